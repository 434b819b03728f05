"""metrics.jsonl: the measures of a pre-training run, one JSON record per line."""

import json
import math
import threading
import warnings
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from electra.errors import UserError, refuse_unlike
from electra.files import parse_object, read_object, sha256_facts, sync, write_text

if TYPE_CHECKING:
    from electra.checkpoints.trackers import Tracker

OF_THE_MACHINE = frozenset(
    ("seconds", "preparing_seconds", "tokens_per_second", "seconds_left", "mfu")
    + ("data_seconds", "data_seconds_least", "data_seconds_rank")
    + ("peak_memory", "peak_memory_least", "peak_memory_rank")
)
"""Keys of a record whose values differ each time that the same run is repeated."""
MAX_NAMED = 5
"""Maximum number of damaged lines that a warning names."""


class MetricsLog:
    """Writer of metrics.jsonl, of TensorBoard's files if it is installed, and to a tracker.

    Records after `step`, from which the run continues, are removed, because the run computes these
    steps again. `last` has the last record of each part; `num_records` is the number in the file.
    """

    def __init__(self, run: Path, step: int = 0, tracker: "Tracker | None" = None):
        self.path = run / "metrics.jsonl"
        kept = [record for record in read_metrics(self.path) if record["step"] <= step]
        self.last = {record["part"]: record for record in kept}
        self.num_records = len(kept)
        write_text(self.path, "".join(map(to_line, kept)))
        # Unbuffered: a buffer would write a line again on closing after a full disk refused it.
        self.file = self.path.open("ab", buffering=0)
        self.unwritten = b""
        self.tracker, self.tensorboard = tracker, None
        self.usual_hook = threading.excepthook
        if find_spec("tensorboard"):
            from torch.utils.tensorboard import SummaryWriter

            # TensorBoard writes in a thread. An OSError of the thread is raised again by the next
            # call in this thread, so the thread's traceback is not printed.
            threading.excepthook = self._pass_over
            self.tensorboard = SummaryWriter(str(run / "tensorboard"), purge_step=step + 1)

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a record to metrics.jsonl, TensorBoard's files and the tracker's run.

        Numbers that are not finite become null. What cannot be written is an OSError.
        """
        finite = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in record.items()
        }
        self.last[record["part"]] = finite
        self.num_records += 1
        self.unwritten += to_line(finite).encode()
        self.flush()
        values = {
            f"{record['part']}/{name}": value
            for name, value in finite.items()
            if isinstance(value, int | float) and name != "step"
        }
        if self.tracker:
            self.tracker.log(values, record["step"])
        if self.tensorboard:
            for name, value in values.items():
                self.tensorboard.add_scalar(name, value, record["step"])

    def flush(self) -> None:
        """Write what an earlier `write` could not, or raise the OSError again."""
        while self.unwritten:  # a nearly full disk takes a part of a line before the write fails
            self.unwritten = self.unwritten[self.file.write(self.unwritten) :]

    def sync(self) -> None:
        """Wait until the records are on the disk, before a checkpoint counts them."""
        sync(self.path)

    def close(self) -> None:
        """Close files and tracker, and restore the hook for exceptions in threads."""
        self.file.close()
        if self.tracker:
            self.tracker.close()
        try:
            if self.tensorboard:
                self.tensorboard.close()
        finally:
            threading.excepthook = self.usual_hook

    def _pass_over(self, failure: threading.ExceptHookArgs) -> None:
        if not isinstance(failure.exc_value, OSError):
            self.usual_hook(failure)


def to_line(record: Mapping[str, Any]) -> str:
    """Return the line of a record in metrics.jsonl, which holds the sha256 of its other fields."""
    return json.dumps({**record, "sha256": sha256_facts(record)}) + "\n"


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the records of metrics.jsonl; an empty list if the file does not exist.

    An unfinished last line, left by a crash, and repeated records are skipped. Damaged lines are
    skipped with a warning.
    """
    if not path.exists():
        return []
    *lines, _cut = path.read_bytes().split(b"\n")
    records: dict[tuple[Any, Any], dict[str, Any]] = {}
    damaged = []
    for number, line in enumerate(lines, start=1):
        try:
            record = _read_record(line)
            records.setdefault(_place(record), record)
        except (ValueError, KeyError, TypeError, OverflowError):
            damaged.append(str(number))
    if damaged:
        warnings.warn(
            f"{path} has {len(damaged)} damaged of {len(lines)} records, left out: "
            f"line {', '.join(damaged[:MAX_NAMED])}{', ...' * (len(damaged) > MAX_NAMED)}",
            stacklevel=2,
        )
    return list(records.values())


def read_curves(run: Path) -> list[dict[str, Any]]:
    """Return the records of a run by step; a warning reports how many of them are lost.

    The newest checkpoint states their number. The last evaluation is always included, because
    results.json repeats it.
    """
    path, lost = run / "metrics.jsonl", 0
    records = read_metrics(path)
    for state in sorted(run.glob("checkpoints/step-????????/state.json"))[-1:]:
        with suppress(UserError, KeyError, TypeError):  # damage is reported when weights are read
            totals = read_object(state)
            # The checkpoint is written before the evaluation after the same step.
            ends = {"train": totals["step"] + 1, "heldout": totals["step"]}
            lost = totals["records"] - sum(each["step"] < ends[each["part"]] for each in records)
    results = run / "results.json"
    if results.is_file() and (last := read_object(results).get("heldout")):
        with refuse_unlike(f"{results}: heldout is not a record of an evaluation"):
            record = _read_record(json.dumps(last).encode())
        if not any(_place(each) == _place(record) for each in records):
            records.append(record)
            lost += 1
    if lost > 0:
        warnings.warn(f"{path} has lost {lost:,} records: curves have gaps there", stacklevel=2)
    return sorted(records, key=lambda record: int(record["step"]))


def _place(record: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return what distinguishes the records of a run."""
    return record.get("part"), record.get("step")


def _read_record(line: bytes) -> dict[str, Any]:
    record = parse_object(line, "a record")
    if record.pop("sha256", None) not in (None, sha256_facts(record)):
        raise ValueError("not what was written")
    totals = {"train": ("tokens", "seconds"), "heldout": ()}[record["part"]]
    numbers = [record[name] for name in totals]
    others = [value for name, value in record.items() if name != "part" and value is not None]
    if not all(type(each) in (int, float) and math.isfinite(each) for each in numbers + others):
        raise ValueError("not a number")
    if type(record["step"]) is not int or record["step"] < 0:
        raise ValueError("not a step")
    return record
