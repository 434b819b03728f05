"""Files that are either whole or not there: atomic writes, and hashes to tell damage."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any


def write_json(path: Path, value: Any) -> None:
    """Write JSON through a temporary name, so that a reader sees the old file or the new one."""
    temporary = path.with_name(path.name + ".incomplete")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(value, file, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def sha256_file(path: Path) -> str:
    """Return the hex sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
