"""Which form of the layers runs on a device."""

from importlib import import_module
from typing import Literal

import torch

from electra.errors import UserError, require
from electra.model.encoder import find_body
from electra.model.parts import TransformerLayer


def choose_layers(
    setting: Literal["auto", "plain", "fused", "triton"],
    architecture: str,
    device: torch.device,
    *,
    is_plain: bool,
) -> type[TransformerLayer]:
    """Return the class of the encoders' layers; "auto" is the fastest class.

    Args:
        setting: `train.layers` in pre-training, `layers` in fine-tuning.
        architecture: That of the encoders.
        device: Device of the networks.
        is_plain: Whether the step is compiled or the model divided among processes, which needs
            the plain layers on a CPU.

    Raises:
        UserError: The setting is fused, and the step needs plain layers or does not run on a CPU.
            Or the setting is triton, and the device is a CPU or Triton is not installed. Or the
            architecture has no such layers.
    """
    body = find_body(architecture)
    if setting == "triton":
        other = "use plain or auto"
        require(body.triton != "", f"layers triton: {architecture} has none; {other}")
        require(device.type != "cpu", f"layers triton: they are for a GPU; {other}")
        try:
            written = import_module("electra.model.triton")
        except ImportError:
            raise UserError(f"layers triton: Triton is not installed; {other}") from None
        own: type[TransformerLayer] = getattr(written, body.triton)
        return own
    can_fuse = device.type == "cpu" and not is_plain
    place = "a compiled step or a divided model" if is_plain else f"device {device.type}"
    if setting == "fused" and not can_fuse:
        raise UserError(f"layers fused: they are for a CPU, not for {place}; use plain or auto")
    require(
        setting != "fused" or body.fused != "", f"layers fused: {architecture} has none; use plain"
    )
    if not can_fuse or setting == "plain" or not body.fused:
        return body.layer
    module, _, name = body.fused.partition(":")
    fused: type[TransformerLayer] = getattr(import_module(f"electra.model.fused.{module}"), name)
    return fused
