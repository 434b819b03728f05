"""Convert parameter names and config.json to and from Hugging Face's format.

In transformers, ElectraForPreTraining is the discriminator with its head, and ElectraForMaskedLM is
the generator with its head. Each class has a separate folder with a copy of the embeddings. Query,
key and value are one matrix here, and three matrices in transformers.

The functions for encoders and their sizes take ModernBERT's, too (huggingface_modern.py).
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from electra.config import MODERNBERT_ONLY, EncoderConfig, UserError, require
from electra.runs.huggingface_modern import (
    config_from_modernbert,
    encoder_from_modernbert,
    encoder_to_modernbert,
    is_modern,
)

# Our name -> Hugging Face's name of each parameter. {i} is the layer, {p} is weight or bias. The
# rows of our qkv matrix are in the order query, key, value.
_POST_NORM_LAYER = {
    "attention.output.{p}": "attention.output.dense.{p}",
    "attention_norm.{p}": "attention.output.LayerNorm.{p}",
    "intermediate.{p}": "intermediate.dense.{p}",
    "output.{p}": "output.dense.{p}",
    "output_norm.{p}": "output.LayerNorm.{p}",
}
_NAMES = {
    "embeddings.tokens.weight": "electra.embeddings.word_embeddings.weight",
    "embeddings.positions.weight": "electra.embeddings.position_embeddings.weight",
    "embeddings.types.weight": "electra.embeddings.token_type_embeddings.weight",
    "embeddings.norm.{p}": "electra.embeddings.LayerNorm.{p}",
    "embeddings_project.{p}": "electra.embeddings_project.{p}",
} | {
    f"layers.{{i}}.{ours}": f"electra.encoder.layer.{{i}}.{theirs}"
    for ours, theirs in _POST_NORM_LAYER.items()
}
_QKV = "layers.{i}.attention.qkv.{p}"
_QKV_THEIRS = "electra.encoder.layer.{i}.attention.self.{part}.{p}"
_PARTS = ("query", "key", "value")
# ElectraConfig's defaults for the fields without a default in EncoderConfig. The defaults of all
# other fields are the same in both classes.
_DEFAULT_SIZES = {
    "embedding_size": 128,
    "hidden_size": 256,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
}
# Fields with only one supported value in our encoder: the default of transformers.
_FIXED = {
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
}
DISCRIMINATOR_HEAD = {
    "dense.{p}": "discriminator_predictions.dense.{p}",
    "dense_prediction.{p}": "discriminator_predictions.dense_prediction.{p}",
}
GENERATOR_HEAD = {
    "dense.{p}": "generator_predictions.dense.{p}",
    "norm.{p}": "generator_predictions.LayerNorm.{p}",
    "bias": "generator_lm_head.bias",
}


def encoder_to_huggingface(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return an Encoder's parameters under Hugging Face's names."""
    if is_modern(tensors):
        return encoder_to_modernbert(tensors)
    theirs = {}
    for name, tensor in tensors.items():
        layer, parameter = _layer_of(name), name.rpartition(".")[2]
        generic = _generic(name, layer)
        if generic == _QKV:
            for part, rows in zip(_PARTS, tensor.chunk(3), strict=True):
                key = _QKV_THEIRS.format(i=layer, part=part, p=parameter)
                theirs[key] = rows.contiguous()
        else:
            theirs[_NAMES[generic].format(i=layer, p=parameter)] = tensor
    return theirs


def encoder_from_huggingface(theirs: Mapping[str, Tensor], num_layers: int) -> dict[str, Tensor]:
    """Return an Encoder's parameters under our names.

    Args:
        theirs: Tensors under Hugging Face's names, with or without the prefix "electra.".
        num_layers: Number of layers of the encoder.

    Raises:
        UserError: A parameter is missing.
    """
    if is_modern(theirs):
        return encoder_from_modernbert(theirs, num_layers)
    theirs = {
        name if name.startswith("electra.") else f"electra.{name}": tensor
        for name, tensor in theirs.items()
    }
    try:
        ours = {}
        for generic, their_generic in _NAMES.items():
            if generic.startswith("embeddings_project") and (
                "electra.embeddings_project.weight" not in theirs
            ):
                continue
            for i, p in _instances(generic, num_layers):
                ours[generic.format(i=i, p=p)] = theirs[their_generic.format(i=i, p=p)]
        for i, p in _instances(_QKV, num_layers):
            parts = [theirs[_QKV_THEIRS.format(i=i, part=part, p=p)] for part in _PARTS]
            ours[_QKV.format(i=i, p=p)] = torch.cat(parts)
    except KeyError as error:
        raise UserError(f"the weights lack {error}; they are not an ELECTRA encoder") from None
    return ours


def head_to_huggingface(
    tensors: Mapping[str, Tensor], names: Mapping[str, str]
) -> dict[str, Tensor]:
    """Return a head's parameters under Hugging Face's names.

    Args:
        tensors: The parameters under our names.
        names: DISCRIMINATOR_HEAD or GENERATOR_HEAD.
    """
    theirs = {}
    for name, tensor in tensors.items():
        module, _, parameter = name.rpartition(".")
        generic = name if name in names else f"{module}.{{p}}"
        theirs[names[generic].format(p=parameter)] = tensor
    return theirs


def head_from_huggingface(
    theirs: Mapping[str, Tensor], names: Mapping[str, str]
) -> dict[str, Tensor] | None:
    """Return a head's parameters under our names, or None if one is missing.

    Args:
        theirs: Tensors under Hugging Face's names.
        names: DISCRIMINATOR_HEAD or GENERATOR_HEAD.
    """
    pairs = {
        ours.format(p=p): their.format(p=p)
        for ours, their in names.items()
        for p in ("weight", "bias")
    }
    if not set(pairs.values()) <= theirs.keys():
        return None
    return {ours: theirs[their] for ours, their in pairs.items()}


def config_to_huggingface(config: EncoderConfig, architecture: str, pad_id: int) -> dict[str, Any]:
    """Return the contents of Hugging Face's config.json.

    Args:
        config: Sizes of the encoder.
        architecture: Class in transformers, such as ElectraForPreTraining.
        pad_id: Id of [PAD].
    """
    return {
        "model_type": "electra",
        "architectures": [architecture],
        "vocab_size": config.vocab_size,
        "embedding_size": config.embedding_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "intermediate_size": config.intermediate_size,
        "hidden_act": "gelu",
        "hidden_dropout_prob": config.hidden_dropout_prob,
        "attention_probs_dropout_prob": config.attention_probs_dropout_prob,
        "max_position_embeddings": config.max_position_embeddings,
        "type_vocab_size": config.type_vocab_size,
        "initializer_range": config.initializer_range,
        "layer_norm_eps": config.layer_norm_eps,
        "pad_token_id": pad_id,
        "tie_word_embeddings": True,
    }


def config_from_huggingface(values: Mapping[str, Any]) -> EncoderConfig:
    """Return the encoder's sizes from Hugging Face's config.json.

    Missing fields have the defaults of transformers' ElectraConfig.

    Raises:
        UserError: The config is not that of an ELECTRA or ModernBERT model, a field is not a
            number, or the model has a feature that our encoder does not support.
    """
    if values.get("model_type") == "modernbert":
        return config_from_modernbert(values)
    for name, expected in {"model_type": "electra", **_FIXED}.items():
        value = values.get(name, _FIXED.get(name))
        require(value == expected, f"{name} must be {expected!r}, not {value!r}")
    sizes: dict[str, Any] = {}
    for field in dataclasses.fields(EncoderConfig):
        if field.name == "architecture" or field.name in MODERNBERT_ONLY:
            continue
        value = values.get(field.name, _DEFAULT_SIZES.get(field.name, field.default))
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if field.type is int:
            fits, rule = (
                isinstance(value, int) and is_number and value >= 1,
                "a whole number from 1",
            )
        else:
            fits, rule = is_number and value >= 0, "a number from 0"
        require(fits, f"{field.name} must be {rule}, not {value!r}")
        sizes[field.name] = value
    return EncoderConfig(**sizes)


def _layer_of(name: str) -> str:
    found = re.match(r"layers\.(\d+)\.", name)
    return found.group(1) if found else ""


def _generic(name: str, layer: str) -> str:
    """Return a parameter's key in the tables: its name with {i} for the layer, {p} at the end."""
    if layer:
        name = name.replace(f"layers.{layer}.", "layers.{i}.", 1)
    if name in _NAMES:
        return name
    return f"{name.rpartition('.')[0]}.{{p}}"


def _instances(generic: str, num_layers: int) -> list[tuple[int, str]]:
    layers = range(num_layers) if "{i}" in generic else range(1)
    parameters = ("weight", "bias") if "{p}" in generic else ("",)
    return [(i, p) for i in layers for p in parameters]
