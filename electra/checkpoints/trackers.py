"""Runs in Weights & Biases and in trackio."""

import hashlib
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from electra.checkpoints.manifest import read_manifest
from electra.errors import UserError, import_extra


class Tracker:
    """A run in Weights & Biases or in trackio, whose functions have the same names.

    A resumed folder continues the same run: its name has a digest of the folder's start. A
    package that is not installed or cannot start, such as wandb without an account, is refused.
    """

    def __init__(self, name: str, run: Path, settings: Mapping[str, Any]):
        folder, manifest = run.resolve().name, read_manifest(run)
        first, trunk = manifest["sessions"][0], manifest.get("branched_from")
        began = f"{folder} {trunk} {first.get('command')} {first.get('started')}"
        digest = hashlib.sha256(began.encode()).hexdigest()[:8]
        options = {"id": digest, "dir": str(run)} if name == "wandb" else {}
        self.name, module = name, import_tracker(name)
        try:
            self.run = module.init(
                project=os.environ.get(f"{name.upper()}_PROJECT", "electra"),
                name=f"{folder}-{digest}",
                config=dict(settings),
                resume="allow",
                **options,
            )
        except Exception as error:  # each package has errors of its own
            raise UserError(f"train.tracker={name} does not start: {error}") from None

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Send what was measured at a step; a tracker that fails gets no more records."""
        self._try("log", dict(values), step=step)

    def close(self) -> None:
        """Wait until all is sent."""
        self._try("finish")

    def _try(self, what: str, *given: object, **named: object) -> None:
        if self.run is None:
            return
        try:
            getattr(self.run, what)(*given, **named)
        except Exception as error:
            self.run = None
            warnings.warn(f"train.tracker={self.name} gets no more records: {error}", stacklevel=2)


def import_tracker(name: str) -> ModuleType:
    """Return wandb or trackio, or raise the UserError that says how to install it."""
    return import_extra(name, name, f"train.tracker={name}")
