"""metrics.jsonl: the measures of a pre-training run, one JSON record per line."""

import json
import math
import threading
import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from electra.files import parse_object, write_text

OF_THE_MACHINE = frozenset(
    ("seconds", "preparing_seconds", "tokens_per_second", "seconds_left", "mfu")
    + ("data_seconds", "data_seconds_least", "data_seconds_rank")
    + ("peak_memory", "peak_memory_least", "peak_memory_rank")
)
"""Keys of a record whose values differ each time that the same run is repeated."""
MAX_NAMED = 5
"""Maximum number of damaged lines that a warning names."""


class MetricsLog:
    """Writer of metrics.jsonl, and of TensorBoard's files if TensorBoard is installed.

    Args:
        run: The run folder.
        step: Step that the run continues from. Later records are removed, because the run computes
            these steps again.

    Attributes:
        last: Last record of each part.
        num_records: Records in the file.
    """

    def __init__(self, run: Path, step: int = 0):
        self.path = run / "metrics.jsonl"
        kept = [record for record in read_metrics(self.path) if record["step"] <= step]
        self.last = {record["part"]: record for record in kept}
        self.num_records = len(kept)
        write_text(self.path, "".join(json.dumps(record) + "\n" for record in kept))
        # Unbuffered: a buffer would write a line again on closing after a full disk refused it.
        self.file = self.path.open("ab", buffering=0)
        self.unwritten = b""
        self.tensorboard = None
        self.usual_hook = threading.excepthook
        if find_spec("tensorboard"):
            from torch.utils.tensorboard import SummaryWriter

            # TensorBoard writes in a thread. An OSError of the thread is raised again by the next
            # call in this thread, so the thread's traceback is not printed.
            threading.excepthook = self._pass_over
            self.tensorboard = SummaryWriter(str(run / "tensorboard"), purge_step=step + 1)

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a record to metrics.jsonl and to TensorBoard's files.

        Numbers that are not finite become null.

        Raises:
            OSError: The record cannot be written.
        """
        finite = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in record.items()
        }
        self.last[record["part"]] = finite
        self.num_records += 1
        self.unwritten += (json.dumps(finite) + "\n").encode()
        self.flush()
        if self.tensorboard:
            for name, value in finite.items():
                if isinstance(value, int | float) and name != "step":
                    self.tensorboard.add_scalar(f"{record['part']}/{name}", value, record["step"])

    def flush(self) -> None:
        """Write what an earlier `write` could not.

        Raises:
            OSError: The record cannot be written.
        """
        while self.unwritten:  # a nearly full disk takes a part of a line before the write fails
            self.unwritten = self.unwritten[self.file.write(self.unwritten) :]

    def close(self) -> None:
        """Close the files and restore the hook for exceptions in threads."""
        self.file.close()
        try:
            if self.tensorboard:
                self.tensorboard.close()
        finally:
            threading.excepthook = self.usual_hook

    def _pass_over(self, failure: threading.ExceptHookArgs) -> None:
        if not isinstance(failure.exc_value, OSError):
            self.usual_hook(failure)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the records of metrics.jsonl; an empty list if the file does not exist.

    An unfinished last line, which a crash can leave, is skipped, and so are records that are there
    already. Damaged lines are skipped with a warning.
    """
    if not path.exists():
        return []
    *lines, _cut = path.read_bytes().split(b"\n")
    records: dict[tuple[str, int], dict[str, Any]] = {}
    damaged = []
    for number, line in enumerate(lines, start=1):
        try:
            record = _read_record(line)
            records.setdefault((record["part"], record["step"]), record)
        except (ValueError, KeyError, TypeError, OverflowError):
            damaged.append(str(number))
    if damaged:
        warnings.warn(
            f"{path} has {len(damaged)} damaged of {len(lines)} records, left out: "
            f"line {', '.join(damaged[:MAX_NAMED])}{', ...' * (len(damaged) > MAX_NAMED)}",
            stacklevel=2,
        )
    return list(records.values())


def _read_record(line: bytes) -> dict[str, Any]:
    record = parse_object(line, "a record")
    totals = {"train": ("tokens", "seconds"), "heldout": ()}[record["part"]]
    numbers = [record[name] for name in totals]
    others = [value for name, value in record.items() if name != "part" and value is not None]
    if not all(type(each) in (int, float) and math.isfinite(each) for each in numbers + others):
        raise ValueError("not a number")
    if type(record["step"]) is not int or record["step"] < 0:
        raise ValueError("not a step")
    return record
