"""Checkpoints: safetensors and JSON, written whole or not at all, verified before they are read.

    checkpoints/step-00001000/model.safetensors      every parameter once, by its own name
                              optimizer.safetensors  Adam's moments, "<moment>/<parameter>"
                              state.json             step, the sha256 of the two files, and where
                                                     each network stands among the parameters

A damaged one is passed over. When the run goes on, it is renamed `step-00001000.damaged`, and
removed once that step is reached again and saved.

Data order, positions, draws and dropout are functions of (seed, step), so the step is all the state
there is besides weights and moments.
"""

import json
import os
import re
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from electra.config import UserError
from electra.files import sha256_file, write_json
from electra.method.objective import Objective
from electra.settings import to_dict

FILES = ("model.safetensors", "optimizer.safetensors")


def save_checkpoint(
    run: Path, step: int, model: Objective, optimizer: torch.optim.Optimizer, keep: int
) -> Path:
    """Write the checkpoint of this step and drop all but the newest `keep`; return its folder.

    Raises:
        OSError: It cannot be written; those written before are as they were.
    """
    folder = run / "checkpoints" / f"step-{step:08d}"
    for left in folder.parent.glob("step-*.incomplete"):  # of a run that was killed
        shutil.rmtree(left)
    incomplete = folder.with_name(folder.name + ".incomplete")
    incomplete.mkdir(parents=True)
    try:
        write_state(incomplete, model, optimizer)
        hashes = {name: sha256_file(incomplete / name) for name in FILES}
        state = {"step": step, "sha256": hashes, **describe_networks(model)}
        write_json(incomplete / "state.json", state)
    except OSError:
        shutil.rmtree(incomplete, ignore_errors=True)
        raise
    if folder.exists():
        _set_aside(folder)
    incomplete.rename(folder)
    for old in list_checkpoints(run)[:-keep]:
        shutil.rmtree(old)
    for damaged in folder.parent.glob("step-*.damaged"):
        if damaged.stem <= folder.name:
            shutil.rmtree(damaged)
    return folder


def list_checkpoints(run: Path) -> list[Path]:
    """Return the folders of the run's complete checkpoints, oldest first."""
    return sorted((run / "checkpoints").glob("step-" + "[0-9]" * 8))


def find_checkpoint(run: Path) -> tuple[int, Path]:
    """Return step and folder of the newest checkpoint whose files are intact.

    Those that are newer and damaged are named in a warning.

    Raises:
        UserError: There is none; the message names what is damaged.
    """
    damaged: list[str] = []
    for folder in reversed(list_checkpoints(run)):
        try:
            step = _verify(folder)
        except PermissionError as error:
            raise UserError(f"cannot read {error.filename}: {error.strerror}") from None
        except (OSError, ValueError, TypeError) as error:
            damaged.append(f"{folder.name} is damaged ({error})")
            continue
        if damaged:
            warnings.warn(
                f"{run}: {'; '.join(damaged)}; taking {folder.name} instead", stacklevel=2
            )
        return step, folder
    raise UserError(f"{run} has no usable checkpoint: {'; '.join(damaged) or 'none was written'}")


def _verify(folder: Path) -> int:
    """Return the step of a checkpoint, or raise what says how it is damaged."""
    state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    try:
        step, hashes = state["step"], [state["sha256"][name] for name in FILES]
    except (KeyError, TypeError):
        raise ValueError("state.json has no step, or not every sha256") from None
    if folder.name != f"step-{step:08d}":
        raise ValueError(f"state.json is of step {step}")
    for name, digest in zip(FILES, hashes, strict=True):
        if sha256_file(folder / name) != digest:
            raise ValueError(f"{name} does not match its sha256")
    return int(step)


def set_damaged_aside(run: Path, intact: Path) -> None:
    """Rename the checkpoints newer than the newest intact one, so that none of them is kept for it.

    Args:
        run: The run folder, which this process must hold.
        intact: What `find_checkpoint` returned.
    """
    for folder in list_checkpoints(run):
        if folder.name > intact.name:
            _set_aside(folder)


def _set_aside(folder: Path) -> None:
    aside = folder.with_name(folder.name + ".damaged")
    shutil.rmtree(aside, ignore_errors=True)
    folder.rename(aside)


def describe_networks(objective: Objective) -> dict[str, Any]:
    """Return what state.json says of an objective's networks.

    "kept" is the role of the network that pre-training is for. "networks" has for each role what
    its head predicts, the sizes of its encoders, and for "encoders" and "head" the places of their
    parameters: {"": "generator.encoder", "embeddings": "discriminator.embeddings"} says that those
    of the encoder stand below generator.encoder, and those of its embeddings, which it shares,
    below discriminator.embeddings.
    """
    names = {module: name for name, module in objective.named_modules()}

    def locate(module: nn.Module) -> dict[str, str]:
        places = {"": names[module]}
        for place, part in module.named_modules():
            parent, _, leaf = place.rpartition(".")
            if place and names[part] != f"{names[module.get_submodule(parent)]}.{leaf}":
                places[place] = names[part]
        return places

    kept, networks = "", {}
    for role, network in objective.networks.items():
        if objective.kept in network.encoders:
            kept = role
        networks[role] = {
            "predicts": network.predicts,
            "sizes": to_dict(network.encoders[0].config),
            "encoders": [locate(encoder) for encoder in network.encoders],
            "head": locate(network.head),
        }
    return {"kept": kept, "networks": networks}


def write_state(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write weights and moments into FILES; `read_state` reads them back.

    The names are those of the objective's own parameters, however it is wrapped when it runs. The
    two functions are what a writer of sharded state would replace.
    """
    parameters = dict(model.named_parameters())
    moments = {
        f"{moment}/{name}": value
        for name, parameter in parameters.items()
        for moment, value in optimizer.state[parameter].items()
    }
    for name, tensors in zip(FILES, (parameters, moments), strict=True):
        write_tensors(folder / name, tensors)


def read_state(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Put the weights and moments of a checkpoint into model and optimizer."""
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


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file.

    Raises:
        OSError: It cannot be written.
    """
    contiguous = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    try:
        save_file(contiguous, path, metadata={"format": "pt"})
    except SafetensorError as error:
        code = re.search(r"\(os error (\d+)\)", str(error))
        if not code:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1])), str(path)) from None
