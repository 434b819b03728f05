"""Settings of the service."""

from dataclasses import dataclass
from typing import Annotated, Literal

from electra.settings import AtLeast, Order, Settings, Within


@dataclass(frozen=True, kw_only=True)
class ServeConfig(Settings):
    """Settings of `electra serve`. A request over a limit gets the HTTP status named there."""

    threads: Annotated[int, AtLeast(0)] = 0
    """CPU threads that compute; 0: one per available core."""
    precision: Literal["float32", "bfloat16", "auto"] = "float32"
    """The dtype in which answers are computed. bfloat16 is faster on hardware that multiplies it
    natively, and changes answers by rounding; auto uses it on such hardware."""
    batch_items: Annotated[int, AtLeast(1)] = 64
    """Texts or records that are computed together at most; 1: one at a time. Does not change the
    answers beyond rounding."""
    max_body_bytes: Annotated[int, AtLeast(1)] = 1 << 20
    """Maximum size of a request's body, bytes. Status 413."""
    max_texts: Annotated[int, AtLeast(1)] = 64
    """Maximum number of texts or records in a request. Status 422."""
    max_chars: Annotated[int, AtLeast(1)] = 20_000
    """Maximum number of characters in a text or a record. Status 422."""
    max_requests: Annotated[int, AtLeast(1)] = 256
    """Maximum number of requests at the same time. Status 429, with a time after which to retry."""
    max_waiting_chars: Annotated[int, AtLeast(1)] = 2_000_000
    """Maximum number of characters in all waiting texts. Status 429, with a time after which to
    retry."""
    max_seconds: Annotated[float, Within("(0, inf)")] = 30.0
    """Time for receiving a request (status 408), and for computing its answer (status 503),
    seconds."""
    access_log: bool = False
    """Write a line for each request to standard error: time, client, method, path, status, seconds.
    Texts are never written."""
    dev_examples: bool = False
    """Show clients some texts of the dev set of a fine-tuned model, to try it with; otherwise the
    example is the service's own."""
    stop_seconds: Annotated[float, Within("(0, inf)")] = 10.0
    """Time for the requests in progress when the service is stopped, seconds."""

    needs = (Order("max_chars", "at most", "max_waiting_chars"),)
