"""Checkpoints: safetensors and JSON, written whole or not at all, verified before they are read.

    checkpoints/step-00001000/model.safetensors      every parameter once, by its own name
                              optimizer.safetensors  Adam's moments, "<moment>/<parameter>"
                              state.json             step, and the sha256 of the two files

Data order, positions, draws and dropout are functions of (seed, step), so the step is all the state
there is besides weights and moments.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from electra.config import UserError
from electra.files import sha256_file, write_json

FILES = ("model.safetensors", "optimizer.safetensors")


def save_checkpoint(
    run: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, keep: int
) -> Path:
    """Write the checkpoint of this step and drop all but the newest `keep`; return its folder."""
    folder = run / "checkpoints" / f"step-{step:08d}"
    if folder.exists():
        return folder
    incomplete = folder.with_name(folder.name + ".incomplete")
    shutil.rmtree(incomplete, ignore_errors=True)
    incomplete.mkdir(parents=True)
    parameters = dict(model.named_parameters())
    moments = {
        f"{moment}/{name}": value
        for name, parameter in parameters.items()
        for moment, value in optimizer.state[parameter].items()
    }
    for name, tensors in zip(FILES, (parameters, moments), strict=True):
        contiguous = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
        save_file(contiguous, incomplete / name, metadata={"format": "pt"})
    hashes = {name: sha256_file(incomplete / name) for name in FILES}
    write_json(incomplete / "state.json", {"step": step, "sha256": hashes})
    incomplete.rename(folder)
    for old in list_checkpoints(run)[:-keep]:
        shutil.rmtree(old)
    return folder


def list_checkpoints(run: Path) -> list[Path]:
    """Return the folders of the run's complete checkpoints, oldest first."""
    return sorted((run / "checkpoints").glob("step-" + "[0-9]" * 8))


def find_checkpoint(run: Path) -> tuple[int, Path]:
    """Return step and folder of the newest checkpoint whose files are intact.

    Raises:
        UserError: There is none; the message names what is damaged.
    """
    damaged = []
    for folder in reversed(list_checkpoints(run)):
        try:
            state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
            for name, digest in state["sha256"].items():
                if sha256_file(folder / name) != digest:
                    raise ValueError(f"{name} does not match its sha256")
            return state["step"], folder
        except (OSError, ValueError, KeyError) as error:
            damaged.append(f"{folder.name} is damaged ({error})")
    raise UserError(f"{run} has no usable checkpoint: {'; '.join(damaged) or 'none was written'}")


def load_checkpoint(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Put the checkpoint's weights and moments into model and optimizer."""
    load_parameters(model, load_file(folder / FILES[0]))
    parameters = dict(model.named_parameters())
    for key, value in load_file(folder / FILES[1]).items():
        moment, name = key.split("/", 1)
        state: dict[str, Any] = optimizer.state[parameters[name]]
        state[moment] = value.to(parameters[name].device)


@torch.no_grad()
def load_parameters(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy tensors into the parameters of the same names; every one must be there and fit."""
    for name, parameter in model.named_parameters():
        if name not in tensors:
            raise UserError(f"the checkpoint lacks {name!r}")
        if tensors[name].shape != parameter.shape:
            raise UserError(
                f"{name!r} is {tuple(tensors[name].shape)} in the checkpoint, "
                f"{tuple(parameter.shape)} in the model"
            )
        parameter.copy_(tensors[name])


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file.

    Raises:
        UserError: It is not one, or truncated.
    """
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot read {path}: {error}") from None
