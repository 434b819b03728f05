"""The weights of other programs by name, shapes before values; no code of a file ever runs.

Read are TensorFlow checkpoints of google-research/electra (tensorflow.py), and Hugging Face folders
of ELECTRA, BERT, DeBERTa and ModernBERT (its decoder, too): safetensors, whole or in parts, or
pytorch_model.bin.
"""

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from electra.checkpoints.checkpoint import (
    Header,
    Weights,
    read_header,
    read_tensors,
    require_finite,
)
from electra.checkpoints.names import ARCHITECTURES, DISCRIMINATOR_FILE, ELECTRA, Architecture
from electra.errors import UserError, require
from electra.files import read_object
from electra.interop.tensorflow import find_bundle, read_bundle

_FROM_TENSORFLOW = {
    "bert/": "electra/",
    "generator/": "electra/",
    "discriminator_predictions/dense_1/": "discriminator_predictions/dense_prediction/",
    "cls/predictions/transform/": "generator_predictions/",
    "cls/predictions/output_bias": "generator_predictions/output_bias",
}
"""Beginnings of TensorFlow's names, in models of ELECTRA and BERT, and what takes their place."""
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
_OF_DISCRIMINATOR = ("electra.encoder.", "discriminator_predictions.")
"""What a generator in the same TensorFlow checkpoint does not share."""
NOTHING = Weights({}, lambda name: torch.empty(0))


class Source(NamedTuple):
    """The weights of a source, float32, under the names of the architecture."""

    architecture: Architecture
    own: Weights
    generator: Weights
    """Of a generator in the same source; empty: there is none."""
    judge: Weights
    """Of a discriminator's head in a file of its own; empty: there is none."""
    config: dict[str, Any] | None
    """Contents of config.json; None: there is none."""
    left: dict[str, None]
    """The source's names of what was not read yet; reading a tensor takes it out."""


def read_source(path: Path) -> Source:
    """Return the weights of a TensorFlow checkpoint, its folder, or a Hugging Face folder."""
    base = find_bundle(path)
    if base:
        theirs, others = read_bundle(base)
        turned = {
            name: each.T.contiguous() if name.endswith("/kernel") else each
            for name, each in theirs.items()
        }
        headers = {name: read_header(turned, name) for name in turned}
        weights = Weights(headers, lambda name: require_finite(turned[name], f"{base}: {name}"))
        inner = {_from_tensorflow(n): n for n in theirs if n.startswith("generator/")}
        names = {_from_tensorflow(n): n for n in theirs if not n.startswith("generator/")}
        if inner:  # its head stands among the discriminator's tensors, as shared embeddings do
            shared = {n: each for n, each in names.items() if not n.startswith(_OF_DISCRIMINATOR)}
            inner = shared | inner
            names = {n: each for n, each in names.items() if not n.startswith("generator_")}
        left: dict[str, None] = {name: None for name in (*theirs, *others)}
        own, generator = (_note(weights, each, left) for each in (names, inner))
        return Source(ELECTRA, own, generator, NOTHING, None, left)
    config = path / "config.json"
    require(
        config.is_file(),
        f"{path} is neither a TensorFlow checkpoint (NAME.index) nor a Hugging Face folder "
        "(config.json)",
    )
    values = read_object(config)
    is_ours = not {"train", "task"}.isdisjoint(values)  # a run's settings, or a fine-tuning's
    require(not is_ours, f"{path} is electra's own and needs no import: every command reads it")
    kind, (*first, last) = values.get("model_type"), ARCHITECTURES
    if str(kind) not in ARCHITECTURES:
        raise UserError(f"{config}: model_type must be {', '.join(first)} or {last}, not {kind!r}")
    left = {}

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
    """Return tensors under new names; what is read leaves `left`, whose names `before` begins."""

    def read(name: str) -> Tensor:
        left.pop(before + names[name], None)
        return weights[names[name]].float()

    return Weights(weights.rename(names).headers, read)


def _join(parts: list[Weights]) -> Weights:
    """Return the tensors of several files."""
    owners = {name: part for part in parts for name in part}
    headers = {name: part.headers[name] for name, part in owners.items()}
    return Weights(headers, lambda name: owners[name][name])


def _read_weights(folder: Path) -> Weights:
    """Return the tensors of a Hugging Face folder under the names there."""
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").is_file():
        return read_tensors(folder / "model.safetensors")
    if index.is_file():
        places = read_object(index).get("weight_map")
        require(isinstance(places, dict), f"{index} has no weight_map")
        assert isinstance(places, dict)
        parts = sorted({Path(str(name)).name for name in places.values()})
        tensors = _join([read_tensors(folder / part) for part in parts])
        lacking = sorted(set(places) - set(tensors))
        require(
            not lacking, f"{folder} lacks {len(lacking)} tensors of its index, as {lacking[:1]}"
        )
        return tensors
    path = folder / "pytorch_model.bin"
    require(
        path.is_file(),
        f"{folder} has no weights: none of model.safetensors, {index.name} and {path.name}",
    )
    return _read_pickle(path)


def _read_pickle(path: Path) -> Weights:
    """Return the tensors of a file of torch.save, of which nothing but tensors is read."""
    try:
        if zipfile.is_zipfile(path):  # torch stores, and would unpack what says that it is packed
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
        # Before its reason torch advises to run the file's code.
        *_, reason = str(error).strip().rpartition("WeightsUnpickler error: ")
        line = (reason.splitlines() or [type(error).__name__])[0]
        raise UserError(f"{path} does not hold tensors alone, or is damaged: {line}") from None
    require(bool(headers), f"{path} does not hold tensors by name")
    return Weights(headers, lambda name: require_finite(loaded[name], f"{path}: {name}"))


def _describe(tensor: Tensor) -> Header:
    """Return dtype and shape; a dtype that no weight has, if the values are not there as such."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout is not torch.strided or tensor.device.type != "cpu":
        dtype = f"{str(tensor.layout).removeprefix('torch.')} {dtype} on {tensor.device.type}"
    elif tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        dtype = f"{dtype} that repeats fewer values"
    return Header(dtype, tuple(tensor.shape))


def _from_tensorflow(name: str) -> str:
    """Return a variable's name as transformers has it."""
    for theirs, ours in _FROM_TENSORFLOW.items():
        if name.startswith(theirs):
            name = ours + name.removeprefix(theirs)
    name = re.sub(r"/layer_(\d+)/", r"/layer/\1/", name)
    if name == "generator_predictions/output_bias":
        return "generator_lm_head.bias"
    name = re.sub("/(kernel|gamma)$", "/weight", name)
    name = re.sub("/beta$", "/bias", name)
    name = re.sub("_embeddings$", "_embeddings/weight", name)
    return name.replace("/", ".")


def _from_huggingface(name: str) -> str:
    """Return a tensor's name as transformers writes it today."""
    for theirs, ours in _FROM_OLDER.items():
        name = re.sub(theirs, ours, name)
    return name
