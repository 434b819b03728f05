"""The run folder: manifest, metrics, and stopping in good order."""

import json
import math
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

import electra
from electra.files import write_json


def write_manifest(folder: Path, **facts: Any) -> None:
    """Write manifest.json: where the numbers beside it come from, and the facts given."""
    packages = ("torch", "numpy", "tokenizers", "safetensors")
    write_json(
        folder / "manifest.json",
        {
            "command": ["electra", *sys.argv[1:]],
            "electra": electra.__version__,
            "commit": find_commit(),
            "python": platform.python_version(),
            "packages": {name: metadata.version(name) for name in packages},
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            **facts,
        },
    )


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
        temporary = self.path.with_name("metrics.jsonl.incomplete")
        temporary.write_text("".join(json.dumps(record) + "\n" for record in kept))
        temporary.replace(self.path)
        self.file = self.path.open("a", encoding="utf-8")
        self.tensorboard = None
        if find_spec("tensorboard"):
            from torch.utils.tensorboard import SummaryWriter

            self.tensorboard = SummaryWriter(str(run / "tensorboard"), purge_step=step + 1)

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a record and see it to the disk."""
        finite = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in record.items()
        }
        self.file.write(json.dumps(finite) + "\n")
        self.file.flush()
        if self.tensorboard:
            for name, value in finite.items():
                if isinstance(value, int | float) and name != "step":
                    self.tensorboard.add_scalar(f"{record['part']}/{name}", value, record["step"])

    def close(self) -> None:
        """Close the files."""
        self.file.close()
        if self.tensorboard:
            self.tensorboard.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the records of metrics.jsonl; a last line that was cut off by a crash is left out."""
    if not path.exists():
        return []
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(line))
        except ValueError:
            break
    return records


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
