"""metrics.jsonl: what a pre-training run measured, a record a line."""

import json
import math
import threading
import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from electra.files import write_text

MAX_NAMED = 5
"""Damaged lines that a warning names."""


class MetricsLog:
    """metrics.jsonl, a record a line, and the same for TensorBoard where it is installed.

    Args:
        run: The run folder.
        step: Step the run continues from; records beyond it belong to a future that was lost.
    """

    def __init__(self, run: Path, step: int = 0):
        self.path = run / "metrics.jsonl"
        kept = [record for record in read_metrics(self.path) if record["step"] <= step]
        self.last_train = next((r for r in reversed(kept) if r["part"] == "train"), None)
        write_text(self.path, "".join(json.dumps(record) + "\n" for record in kept))
        # Unbuffered: a line that a full disk refuses must not be written again at the end.
        self.file = self.path.open("ab", buffering=0)
        self.tensorboard = None
        self.usual_hook = threading.excepthook
        if find_spec("tensorboard"):
            from torch.utils.tensorboard import SummaryWriter

            # What its thread cannot write, its next call raises here: no need of a traceback there.
            threading.excepthook = self._pass_over
            self.tensorboard = SummaryWriter(str(run / "tensorboard"), purge_step=step + 1)

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a record and see it to the disk."""
        finite = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in record.items()
        }
        line = (json.dumps(finite) + "\n").encode()
        while line:  # a disk that fills up takes a part and then refuses
            line = line[self.file.write(line) :]
        if self.tensorboard:
            for name, value in finite.items():
                if isinstance(value, int | float) and name != "step":
                    self.tensorboard.add_scalar(f"{record['part']}/{name}", value, record["step"])

    def close(self) -> None:
        """Close the files."""
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
    """Return the records of metrics.jsonl.

    A last line that was cut off by a crash is left out; so are damaged lines, with a warning that
    says how many.
    """
    if not path.exists():
        return []
    *lines, _cut = path.read_bytes().split(b"\n")
    records, damaged = [], []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(_read_record(line))
        except (ValueError, KeyError, TypeError):
            damaged.append(str(number))
    if damaged:
        warnings.warn(
            f"{path} has {len(damaged)} damaged of {len(lines)} records, left out: "
            f"line {', '.join(damaged[:MAX_NAMED])}{', ...' * (len(damaged) > MAX_NAMED)}",
            stacklevel=2,
        )
    return records


def _read_record(line: bytes) -> dict[str, Any]:
    record = json.loads(line)
    if not isinstance(record, dict):
        raise ValueError("not an object")
    totals = {"train": ("tokens", "seconds"), "heldout": ()}[record["part"]]
    is_whole = isinstance(record["step"], int)
    if not is_whole or not all(isinstance(record[name], int | float) for name in totals):
        raise ValueError("not a number")
    if not all(isinstance(record[name], int | float | None) for name in record if name != "part"):
        raise ValueError("not a number")
    return record
