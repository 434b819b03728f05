"""The weights of other programs by name, shapes before values; no code of a file ever runs.

Reads Hugging Face folders of ELECTRA, BERT, DeBERTa and ModernBERT (also its decoder):
safetensors, whole or in parts, or pytorch_model.bin. transformers does not read them for us: it has
no class with DeBERTa's discriminator, whose published files are pickles under older names, and it
builds a network of the sizes in config.json before it compares a shape.
"""

import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from electra.checkpoints.checkpoint import Header, Weights, read_tensors, require_finite
from electra.checkpoints.names import ARCHITECTURES, DISCRIMINATOR_FILE, Architecture
from electra.errors import UserError, count_of, require
from electra.files import read_object

_FROM_OLDER = {
    r"LayerNorm\.gamma$": "LayerNorm.weight",
    r"LayerNorm\.beta$": "LayerNorm.bias",
    r"^lm_predictions\.lm_head\.(dense|LayerNorm)\.": r"cls.predictions.transform.\1.",
    r"^lm_predictions\.lm_head\.bias$": "cls.predictions.bias",
    r"^mask_predictions\.classifer\.": "mask_predictions.classifier.",
}
"""Names of older versions of transformers and of microsoft/DeBERTa, and what takes their place."""
GENERATOR_FILE = "pytorch_model.generator.bin"
"""The generator that DeBERTaV3 was trained with, beside its discriminator."""
NOTHING = Weights({}, lambda name: torch.empty(0))


class Source(NamedTuple):
    """The weights of a source, float32, under the names of the architecture."""

    architecture: Architecture
    own: Weights
    generator: Weights
    """Parameters of a generator in the same source; empty: there is none."""
    judge: Weights
    """Parameters of a discriminator's head in a file of its own; empty: there is none."""
    config: dict[str, Any]
    """Contents of config.json."""
    left: dict[str, None]
    """The source's names of what was not read yet; reading a tensor takes it out."""


def read_source(path: Path) -> Source:
    """Return the weights of a Hugging Face folder."""
    config = path / "config.json"
    require(
        config.is_file(),
        f"{path} is not a Hugging Face folder: it has no config.json; `python -m "
        "tools.tensorflow` of electra's repository converts a TensorFlow checkpoint",
    )
    values = read_object(config)
    is_ours = not {"train", "task"}.isdisjoint(values)  # a run's settings, or a fine-tuning's
    require(not is_ours, f"{path} was written by electra; use it directly, no import is needed")
    kind, (*first, last) = values.get("model_type"), ARCHITECTURES
    if str(kind) not in ARCHITECTURES:
        raise UserError(f"{config}: model_type must be {', '.join(first)} or {last}, not {kind!r}")
    left: dict[str, None] = {}

    def take(weights: Weights, before: str = "") -> Weights:
        left.update({before + name: None for name in weights})
        return _note(weights, {_from_huggingface(name): name for name in weights}, left, before)

    own = take(_read_weights(path))
    generator, judge = (
        take(read(path / name), f"{name}: ") if (path / name).is_file() else NOTHING
        for name, read in ((GENERATOR_FILE, _read_pickle), (DISCRIMINATOR_FILE, read_tensors))
    )
    return Source(ARCHITECTURES[str(kind)], own, generator, judge, values, left)


def _note(
    weights: Weights, names: Mapping[str, str], left: dict[str, None], before: str = ""
) -> Weights:
    """Return renamed tensors; reading one removes its old name, after `before`, from `left`."""

    def read(name: str) -> Tensor:
        left.pop(before + names[name], None)
        return weights[names[name]].float()

    return Weights(weights.rename(names).headers, read)


def _read_weights(folder: Path) -> Weights:
    """Return the tensors of a Hugging Face folder under the names there."""
    for name, read in (("model.safetensors", read_tensors), ("pytorch_model.bin", _read_pickle)):
        if (folder / name).is_file():
            return read(folder / name)
        if (index := folder / f"{name}.index.json").is_file():
            return _read_parts(index, read)
    raise UserError(
        f"{folder} has no weights: none of model.safetensors and pytorch_model.bin, whole or in "
        "parts with an .index.json"
    )


def _read_parts(index: Path, read: Callable[[Path], Weights]) -> Weights:
    """Return the tensors of the files beside an index that it names."""
    places = read_object(index).get("weight_map")
    if not isinstance(places, dict):
        raise UserError(f"{index} has no weight_map")
    files = {path.name: path for path in index.parent.iterdir() if path.is_file()}
    named = {str(name).rpartition("/")[2] for name in places.values()}
    absent = sorted(named - files.keys())
    require(
        not absent, f"{index} names {count_of(len(absent), 'file')} that it lacks, as {absent[:1]}"
    )
    owners = {name: part for part in [read(files[name]) for name in sorted(named)] for name in part}
    lacking = sorted(places.keys() - owners.keys())
    require(
        not lacking, f"{index.parent} lacks {len(lacking)} tensors of its index, as {lacking[:1]}"
    )
    headers = {name: part.headers[name] for name, part in owners.items()}
    return Weights(headers, lambda name: owners[name][name])


def _read_pickle(path: Path) -> Weights:
    """Return the tensors of a torch.save file; nothing but tensors is loaded."""
    try:
        if zipfile.is_zipfile(path):  # torch.save never packs, but torch.load unpacks
            with zipfile.ZipFile(path) as packed:
                num_bytes = sum(each.file_size for each in packed.infolist())
            most = path.stat().st_size
            require(num_bytes <= most, f"{num_bytes:,} bytes in a file of {most:,}: is it packed?")
        loaded = torch.load(path, map_location="cpu", weights_only=True)  # runs no code of the file
        is_named = isinstance(loaded, Mapping) and all(
            isinstance(name, str) and isinstance(each, Tensor) for name, each in loaded.items()
        )
        headers = {name: _describe(each) for name, each in loaded.items()} if is_named else {}
    except Exception as error:  # whatever the bytes lead to
        # Leave out torch's advice to run the file's code.
        *_, reason = str(error).strip().rpartition("WeightsUnpickler error: ")
        line = (reason.splitlines() or [type(error).__name__])[0]
        raise UserError(f"{path} does not hold tensors alone, or is damaged: {line}") from None
    require(bool(headers), f"{path} does not hold tensors by name")
    return Weights(headers, lambda name: require_finite(loaded[name], f"{path}: {name}"))


def _describe(tensor: Tensor) -> Header:
    """Return dtype and shape; an invalid dtype if the values are not all stored plainly."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout is not torch.strided or tensor.device.type != "cpu":
        dtype = f"{str(tensor.layout).removeprefix('torch.')} {dtype} on {tensor.device.type}"
    elif tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        dtype = f"{dtype} that repeats fewer values"
    return Header(dtype, tuple(tensor.shape))


def _from_huggingface(name: str) -> str:
    """Return a tensor's name as transformers writes it today."""
    for theirs, ours in _FROM_OLDER.items():
        name = re.sub(theirs, ours, name)
    return name
