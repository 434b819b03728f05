"""The run folder: manifest, metrics, its lock, and stopping in good order."""

import json
import math
import platform
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

import electra
from electra.config import require
from electra.files import read_object, write_json, write_text

MAX_NAMED = 5
"""Damaged lines that a warning names."""


LOCK = "lock"
"""The lock file of a run, and of a fine-tuning that is not finished; see `files.hold`."""


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a run or a fine-tuning: its own facts, and "sessions", a list.

    Raises:
        UserError: It is missing or damaged.
    """
    path = folder / "manifest.json"
    manifest = read_object(path)
    if "sessions" not in manifest:  # of an older version, which told of the first session alone
        of_run: dict[str, Any] = {k: manifest.pop(k) for k in ("shards", "seed") if k in manifest}
        manifest = of_run | {"sessions": [manifest]}
    sessions = manifest["sessions"]
    is_list = isinstance(sessions, list) and all(isinstance(each, dict) for each in sessions)
    require(is_list, f"{path} is damaged: sessions must be a list of objects")
    return manifest


def begin_session(folder: Path, **facts: Any) -> None:
    """Add to manifest.json where the numbers from here on come from, and the facts given."""
    manifest = read_manifest(folder)
    packages = ("torch", "numpy", "tokenizers", "safetensors")
    session = {
        "command": ["electra", *sys.argv[1:]],
        "electra": electra.__version__,
        "commit": find_commit(),
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in packages},
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        **facts,
    }
    manifest["sessions"].append(session)
    write_json(folder / "manifest.json", manifest)


def amend_session(folder: Path, **facts: Any) -> None:
    """Replace facts of the session that runs."""
    manifest = read_manifest(folder)
    manifest["sessions"][-1].update(facts)
    write_json(folder / "manifest.json", manifest)


def find_commit() -> str | None:
    """Return the commit the code is at, "+changes" behind it if files differ; None if unknown."""
    root = Path(electra.__file__).parent.parent
    if not (root / ".git").exists():
        return None
    try:
        answers = [
            subprocess.run(
                ["git", "-C", str(root), *words], capture_output=True, text=True, check=True
            ).stdout.strip()
            for words in (
                ["rev-parse", "HEAD"],
                ["status", "--porcelain", "--untracked-files=no"],
            )
        ]
    except (OSError, subprocess.CalledProcessError):
        return None
    return answers[0] + ("+changes" if answers[1] else "")


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
    return record


class StopRequest:
    """Whether somebody asked the process to stop."""

    requested: bool = False


@contextmanager
def stop_on_signal() -> Iterator[StopRequest]:
    """Turn the first SIGINT or SIGTERM into a request the loop sees; a second one acts at once."""
    stop = StopRequest()
    signals = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in signals}

    def request(number: int, frame: FrameType | None) -> None:
        stop.requested = True
        for each in signals:
            signal.signal(each, before[each])

    try:
        for number in signals:
            signal.signal(number, request)
        yield stop
    finally:
        for number in signals:
            signal.signal(number, before[number])
