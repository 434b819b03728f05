"""What would break a user's script or settings: `python -m tools.changes [REF]`.

Names of the library, options of the commands, settings with their defaults, and metrics are
compared with those of a commit or tag, by griffe, which reads both and imports neither. The exit
status is 1 if something breaks and CHANGELOG.md is as it was there.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).parent.parent
PUBLIC = re.compile(r"electra\.(verbs|(\w+\.)?\w*config)\.")
"""The verbs of library and command line, and the settings, in the config.py of each room."""
METRICS = "reports.glossary.GLOSSARY"


def list_changes(before: Any, now: Any) -> Iterator[str]:
    """Yield a line for each change between two versions of the package that breaks users' code."""
    for each in griffe.find_breaking_changes(before, now):
        name = each.obj.path
        if PUBLIC.match(name) and not any(part.startswith("_") for part in name.split(".")):
            old, new = (" ".join(str(value).split()) for value in (each.old_value, each.new_value))
            yield f"{name}: {each.kind.value} ({old} -> {new})"
    yield from (f"metric {name} is gone" for name in _metrics_of(before) - _metrics_of(now))


def _metrics_of(package: Any) -> set[str]:
    return {str(key).strip("'\"") for key in package[METRICS].value.keys}


def load(ref: str = "") -> Any:
    """Return the package of a commit or tag, or that of the working folder."""
    if ref:
        return griffe.load_git("electra", ref=ref, repo=ROOT, allow_inspection=False)
    return griffe.load("electra", search_paths=[ROOT], allow_inspection=False)


def main() -> None:
    """Print the changes since a commit or tag: that named, or else the newest tag, or HEAD~1."""
    git = ["git", "-C", str(ROOT)]
    tag = subprocess.run([*git, "describe", "--tags", "--abbrev=0"], capture_output=True, text=True)
    ref = sys.argv[1] if len(sys.argv) > 1 else tag.stdout.strip() or "HEAD~1"
    changes = sorted({*list_changes(load(ref), load())})
    print("\n".join([*changes, f"{len(changes)} changes since {ref} break what others wrote"]))
    same = subprocess.run([*git, "diff", "--quiet", ref, "--", "CHANGELOG.md"], check=False)
    if changes and not same.returncode:
        sys.exit("CHANGELOG.md does not mention them")


if __name__ == "__main__":
    main()
