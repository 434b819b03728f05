"""The encoders in the package, whose names take the place of a model's folder."""

import warnings
from collections.abc import Sequence
from pathlib import Path

ENCODERS = Path(__file__).parents[1] / "encoders"
"""Folders as `electra export` writes them, in bfloat16 and with their generators."""


def list_bundled() -> Sequence[str]:
    """Return the names of the encoders in the package."""
    return sorted(path.parent.name for path in ENCODERS.glob("*/config.json"))


def find_model(folder: Path) -> Path:
    """Return the folder of the encoder in the package with this name, or a folder of the user."""
    if len(folder.parts) != 1 or folder.name not in list_bundled():
        return folder
    if folder.exists():
        told = f"{folder} is the folder here, not the encoder in the package"
        warnings.warn(told, stacklevel=1)  # always the same place, so shown once
        return folder
    return ENCODERS / folder
