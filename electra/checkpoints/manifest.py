"""The manifest of a run or a fine-tuning: command, versions and machine of each session."""

import hashlib
import platform
import subprocess
import sys
import warnings
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

from electra.errors import hide_passwords, require
from electra.files import check_hashes, read_object, write_facts
from electra.settings import AtLeast
from electra.shapes import check_shape
from electra.version import __version__

COMMIT_FILE = Path("electra", "commit.txt")
"""Place beside what is installed where the build writes the commit (setup.py)."""


FORMAT = 1
"""Format of the folders of runs and fine-tunings. Another number is refused."""
Step = Annotated[int, AtLeast(0)]


class Flops(TypedDict):
    """Operations of a whole run."""

    true: float
    paper: float
    """By the paper's count."""


class Form(TypedDict, total=False):
    """How a session computes a step."""

    attention: dict[str, list[str]]
    """Kernels, fastest first, for rows with and without a mask."""


class Session(TypedDict, total=False):
    """One command's part in a folder, and where it ran; the fields that are read."""

    electra: str
    commit: str | None
    packages: dict[str, str]
    first_step: Step
    device: str
    dtype: str
    step: Form
    flops: Flops


class Origin(TypedDict):
    """Shards that a run reads."""

    folder: str
    sha256: str


class Start(TypedDict):
    """Weights that a run began with."""

    source: str
    sha256: dict[str, str]
    generator: NotRequired["Start"]


class Branch(TypedDict):
    """The checkpoint that a run began with."""

    run: str
    step: Step


class Manifest(TypedDict):
    """manifest.json of a run or a fine-tuning."""

    format: int
    sessions: list[Session]
    shards: NotRequired[Origin]
    seed: NotRequired[int]
    init_from: NotRequired[Start | None]
    also_evaluate: NotRequired[Origin | None]
    heldout: NotRequired[str]
    generator: NotRequired[Start | None]
    branched_from: NotRequired[Branch | None]


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the `Manifest` of a run or a fine-tuning; refuse a folder of another format."""
    path = folder / "manifest.json"
    manifest = read_object(path)
    found = manifest.get("format")
    require(
        found == FORMAT,
        f"{path} has {'no format' if found is None else f'format {found}'}; this version of "
        f"electra reads format {FORMAT}: write the folder again",
    )
    check_shape(manifest, Manifest, path)
    return manifest


def begin_session(folder: Path, **facts: Any) -> None:
    """Append a session to manifest.json: command, versions, commit, start time and `facts`."""
    manifest = read_manifest(folder)
    packages = ("torch", "numpy", "tokenizers", "safetensors")
    session = {
        "command": ["electra", *map(hide_passwords, sys.argv[1:])],
        "electra": __version__,
        "commit": find_commit(),
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in packages},
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        **facts,
    }
    manifest["sessions"].append(session)
    write_facts(folder / "manifest.json", manifest)


def amend_manifest(folder: Path, **facts: Any) -> None:
    """Replace facts of a whole run in manifest.json."""
    write_facts(folder / "manifest.json", read_manifest(folder) | facts)


def amend_session(folder: Path, **facts: Any) -> None:
    """Replace facts of the current session, the last in manifest.json."""
    manifest = read_manifest(folder)
    manifest["sessions"][-1].update(facts)
    write_facts(folder / "manifest.json", manifest)


@cache
def find_commit() -> str | None:
    """Return the commit of the code, installed or in its repository; None if it is unknown.

    It is looked for once: what is changed later is not what runs.

    If tracked files differ, "+changes-" and the beginning of the sha256 of their difference follow.
    """
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        built = root / COMMIT_FILE
        return (built.read_text(encoding="utf-8") or None) if built.is_file() else None
    try:
        answers = [
            subprocess.run(
                ["git", "-C", str(root), *words], capture_output=True, check=True
            ).stdout.strip()
            for words in (["rev-parse", "HEAD"], ["diff", "HEAD"])
        ]
    except (OSError, subprocess.CalledProcessError):
        return None
    name, changes = answers[0].decode(), answers[1]
    return name + (f"+changes-{hashlib.sha256(changes).hexdigest()[:8]}" if changes else "")


def find_best(run: Path) -> Path:
    """Return the best fine-tuning of a grid's folder; any other folder as it is.

    A warning names the fine-tuning.
    """
    path = run / "results.json"
    check_hashes(run)
    best = read_object(path).get("best") if path.is_file() else None
    if best is None:
        return run
    found = run / str(best)
    require(
        "/" not in str(best) and (found / "results.json").is_file(),
        f"{run} is a grid, and lacks the folder of its best fine-tuning, {best}",
    )
    warnings.warn(f"{run} is a grid; its best fine-tuning on dev is {found}", stacklevel=1)
    return found
