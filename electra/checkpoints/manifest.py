"""The manifest of a run or a fine-tuning: command, versions and machine of each session."""

import hashlib
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from electra.errors import require
from electra.files import read_object, write_json
from electra.version import __version__


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a run or a fine-tuning: facts of the folder, and a list "sessions"."""
    path = folder / "manifest.json"
    manifest = read_object(path)
    if "sessions" not in manifest:  # older versions wrote the first session's facts at the top
        of_run: dict[str, Any] = {k: manifest.pop(k) for k in ("shards", "seed") if k in manifest}
        manifest = of_run | {"sessions": [manifest]}
    sessions = manifest["sessions"]
    is_list = isinstance(sessions, list) and all(isinstance(each, dict) for each in sessions)
    require(is_list, f"{path} is damaged: sessions must be a list of objects")
    return manifest


def begin_session(folder: Path, **facts: Any) -> None:
    """Append a session to manifest.json: command, versions, commit, start time and `facts`."""
    manifest = read_manifest(folder)
    packages = ("torch", "numpy", "tokenizers", "safetensors")
    session = {
        "command": ["electra", *sys.argv[1:]],
        "electra": __version__,
        "commit": find_commit(),
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in packages},
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        **facts,
    }
    manifest["sessions"].append(session)
    write_json(folder / "manifest.json", manifest)


def amend_session(folder: Path, **facts: Any) -> None:
    """Replace facts of the current session, the last in manifest.json."""
    manifest = read_manifest(folder)
    manifest["sessions"][-1].update(facts)
    write_json(folder / "manifest.json", manifest)


def find_commit() -> str | None:
    """Return the commit of the code; None if it is unknown.

    If tracked files differ, "+changes-" and the beginning of the sha256 of their difference follow.
    """
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
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
