"""Convert networks of the architecture modernbert to and from transformers' ModernBERT classes.

ModernBertModel is the encoder, and ModernBertForMaskedLM the generator with its head. transformers
has no class with the discriminator's head, which is a file of its own beside the encoder. Heads of
fine-tuning have the layers of transformers' classes (`model.heads.PredictionHead`).
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from electra.config import EncoderConfig, UserError, require
from electra.corpus.tokenizer import Tokenizer
from electra.runs.bert import DISCRIMINATOR_FILE
from electra.runs.checkpoint import read_tensors
from electra.runs.huggingface_heads import HuggingFaceHead, describe_labels, name_labels

# Our name -> Hugging Face's name of each module with parameters. {i} is the layer.
_MODULES = {
    "embeddings.tokens": "embeddings.tok_embeddings",
    "embeddings.norm": "embeddings.norm",
    "layers.{i}.attention_norm": "layers.{i}.attn_norm",
    "layers.{i}.attention.qkv": "layers.{i}.attn.Wqkv",
    "layers.{i}.attention.output": "layers.{i}.attn.Wo",
    "layers.{i}.feed_forward_norm": "layers.{i}.mlp_norm",
    "layers.{i}.intermediate_and_gate": "layers.{i}.mlp.Wi",
    "layers.{i}.output": "layers.{i}.mlp.Wo",
    "final_norm": "final_norm",
}
_PREFIX = "model."
_MASKED_LM = {"dense": "head.dense", "norm": "head.norm", "": "decoder"}
_TASK = {"inner.dense": "head.dense", "inner.norm": "head.norm", "dense": "classifier"}
_CLASSES = {
    "classification": "ModernBertForSequenceClassification",
    "choice": "ModernBertForMultipleChoice",
    "tagging": "ModernBertForTokenClassification",
    "squad": "ModernBertForQuestionAnswering",
}
# ModernBertConfig's defaults of the fields that EncoderConfig has under another name or without a
# default; the defaults of its other fields are the same in both classes.
_DEFAULTS = {
    "vocab_size": 50_368,
    "hidden_size": 768,
    "intermediate_size": 1152,
    "num_hidden_layers": 22,
    "num_attention_heads": 12,
    "max_position_embeddings": 8192,
    "norm_eps": 1e-5,
    "attention_dropout": 0.0,
    "embedding_dropout": 0.0,
    "mlp_dropout": 0.0,
}
_FIXED = {"hidden_activation": "gelu", "classifier_activation": "gelu"}
_SAME = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "max_position_embeddings", "initializer_range", "local_attention"),
    *("norm_bias", "attention_bias", "mlp_bias", "classifier_bias"),
)
"""Fields with the same name in both classes."""


def is_modern(tensors: Mapping[str, Tensor]) -> bool:
    """Return whether an encoder's tensors, under our names or theirs, are those of ModernBERT."""
    return "final_norm.weight" in tensors or f"{_PREFIX}final_norm.weight" in tensors


def encoder_to_modernbert(tensors: Mapping[str, Tensor], prefix: str = "") -> dict[str, Tensor]:
    """Return an Encoder's parameters under the names of ModernBertModel, behind a prefix."""
    theirs = {}
    for name, tensor in tensors.items():
        module, _, parameter = name.rpartition(".")
        layer = re.search(r"\.(\d+)\.", module)
        generic = module if layer is None else module.replace(layer[0], ".{i}.", 1)
        number = layer[1] if layer else ""
        theirs[f"{prefix}{_MODULES[generic].format(i=number)}.{parameter}"] = tensor
    return theirs


def encoder_from_modernbert(theirs: Mapping[str, Tensor], num_layers: int) -> dict[str, Tensor]:
    """Return an Encoder's parameters under our names, with their biases if they have some.

    Args:
        theirs: Tensors under transformers' names, with or without the prefix "model.".
        num_layers: Number of layers of the encoder.

    Raises:
        UserError: A parameter is missing.
    """
    theirs = {name.removeprefix(_PREFIX): tensor for name, tensor in theirs.items()}
    ours = {}
    for module, their_module in _MODULES.items():
        for layer in range(num_layers if "{i}" in module else 1):
            name, their_name = module.format(i=layer), their_module.format(i=layer)
            if name == "layers.0.attention_norm":  # the embeddings are normalised
                continue
            require(
                f"{their_name}.weight" in theirs,
                f"the weights lack {their_name}.weight; they are not a ModernBERT encoder",
            )
            for parameter in ("weight", "bias"):
                if f"{their_name}.{parameter}" in theirs:
                    ours[f"{name}.{parameter}"] = theirs[f"{their_name}.{parameter}"]
    return ours


def masked_lm_from_modernbert(theirs: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """Return the parameters of a GeneratorHead, or None if they are missing."""
    found = _rename(theirs, {their: ours for ours, their in _MASKED_LM.items()})
    found.pop("weight", None)  # the table of the softmax, which is the token embeddings
    return found if {"dense.weight", "norm.weight", "bias"} <= found.keys() else None


def read_discriminator(folder: Path) -> dict[str, Tensor] | None:
    """Return the parameters of a DiscriminatorHead in an exported folder; None if it has none."""
    path = folder / DISCRIMINATOR_FILE
    return read_tensors(path) if path.is_file() else None


def _rename(tensors: Mapping[str, Tensor], names: Mapping[str, str]) -> dict[str, Tensor]:
    """Return the tensors of the modules in `names` under the modules' new names."""
    renamed = {}
    for name, tensor in tensors.items():
        module, _, parameter = name.rpartition(".")
        if module in names:
            renamed[f"{names[module]}.{parameter}".removeprefix(".")] = tensor
    return renamed


def network_head(predicts: str, head: Mapping[str, Tensor]) -> HuggingFaceHead:
    """Return the head of a pre-trained network; the discriminator's is for a file of its own.

    Args:
        predicts: As in `method.objective.Network`.
        head: The head's parameters.
    """
    if predicts == "tokens":
        return HuggingFaceHead("ModernBertForMaskedLM", _rename(head, _MASKED_LM), {})
    return HuggingFaceHead("ModernBertModel", {}, {}, head)


def network_to_modernbert(
    sizes: EncoderConfig,
    encoder: Mapping[str, Tensor],
    head: HuggingFaceHead,
    tokenizer: Tokenizer,
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return config.json and the tensors of the class.

    Args:
        sizes: Sizes of the encoder.
        encoder: Its parameters.
        head: From `network_head` or `task_head`.
        tokenizer: Its special tokens.
    """
    config = config_to_modernbert(sizes, head.architecture, tokenizer) | head.settings
    prefix = "" if head.architecture == "ModernBertModel" else _PREFIX
    return config, encoder_to_modernbert(encoder, prefix) | head.tensors


def task_head(
    family: str,
    head: Mapping[str, Tensor],
    labels: Sequence[str],
    pooling: str,
    dropout_prob: float,
) -> HuggingFaceHead:
    """Return a head of fine-tuning as that of the class in transformers, which has its layers.

    Args:
        family: Family of the task.
        head: The head's parameters, `heads.PredictionHead` and a linear layer.
        labels: Names of the classes; for a regression, one name for the number; those of choices
            and questions are not used.
        pooling: The row's state that a classifier reads: cls or mean.
        dropout_prob: Of the dropout before the last layer.
    """
    settings: dict[str, Any] = {"classifier_dropout": dropout_prob}
    if family in ("classification", "choice"):
        settings["classifier_pooling"] = pooling
    if family == "classification":
        settings |= describe_labels(labels)
    if family == "tagging":
        settings |= name_labels(labels)
    return HuggingFaceHead(_CLASSES[family], _rename(head, _TASK), settings)


def config_to_modernbert(
    config: EncoderConfig, architecture: str, tokenizer: Tokenizer
) -> dict[str, Any]:
    """Return the contents of Hugging Face's config.json.

    The names of rotary bases and local attention are those that all versions of transformers and
    the servers read; the newest transformers turns them into lists and tables.

    Args:
        config: Sizes of the encoder.
        architecture: Class in transformers, such as ModernBertModel.
        tokenizer: Its special tokens.
    """
    return {
        "model_type": "modernbert",
        "architectures": [architecture],
        **{name: getattr(config, name) for name in _SAME},
        **_FIXED,
        "initializer_cutoff_factor": 2.0,
        "norm_eps": config.layer_norm_eps,
        "attention_dropout": config.attention_probs_dropout_prob,
        "embedding_dropout": config.hidden_dropout_prob,
        "mlp_dropout": config.hidden_dropout_prob,
        "global_attn_every_n_layers": config.global_attn_every_n_layers,
        "global_rope_theta": config.global_rope_theta,
        "local_rope_theta": config.local_rope_theta,
        "decoder_bias": True,
        "classifier_pooling": "cls",
        "classifier_dropout": 0.0,
        "pad_token_id": tokenizer.pad_id,
        "bos_token_id": tokenizer.cls_id,
        "cls_token_id": tokenizer.cls_id,
        "eos_token_id": tokenizer.sep_id,
        "sep_token_id": tokenizer.sep_id,
        "tie_word_embeddings": True,
    }


def config_from_modernbert(values: Mapping[str, Any]) -> EncoderConfig:
    """Return the encoder's sizes from Hugging Face's config.json.

    Missing fields have the defaults of transformers' ModernBertConfig.

    Raises:
        UserError: A field has a wrong type, or the model has a feature that our encoder lacks.
    """
    for name, expected in _FIXED.items():
        value = values.get(name, expected)
        require(value == expected, f"{name} must be {expected!r}, not {value!r}")
    own = {field.name: field.default for field in EncoderConfig.__dataclass_fields__.values()}
    sizes = {name: values.get(name, _DEFAULTS.get(name, own[name])) for name in _SAME}
    for name, value in sizes.items():
        kind = type(_DEFAULTS.get(name, own[name]))
        require(
            type(value) is kind or (kind is float and type(value) is int),
            f"{name} must be {_WORDS[kind]}, not {value!r}",
        )
    norm_eps, attention, embedding, inner = (
        _read_number(values, name)
        for name in ("norm_eps", "attention_dropout", "embedding_dropout", "mlp_dropout")
    )
    require(
        embedding == inner,
        f"embedding_dropout {embedding} and mlp_dropout {inner} must be the same here",
    )
    full, sliding = _read_bases(values)
    return EncoderConfig(
        architecture="modernbert",
        embedding_size=sizes["hidden_size"],
        layer_norm_eps=norm_eps,
        attention_probs_dropout_prob=attention,
        hidden_dropout_prob=embedding,
        global_attn_every_n_layers=_read_period(values, sizes["num_hidden_layers"]),
        global_rope_theta=full,
        local_rope_theta=sliding,
        **sizes,
    )


_WORDS = {int: "a whole number", float: "a number", bool: "true or false"}


def _read_number(values: Mapping[str, Any], name: str) -> float:
    value = values.get(name, _DEFAULTS[name])
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"{name} must be a number, not {value!r}")
    return float(value)


def _read_period(values: Mapping[str, Any], num_layers: int) -> int:
    """Return the n of "every n-th layer attends to the whole row"."""
    types = values.get("layer_types")
    if types is None:
        period = values.get("global_attn_every_n_layers", 3)
        require(type(period) is int, f"global_attn_every_n_layers must be a number, not {period!r}")
        return int(period)
    full = "full_attention"
    require(isinstance(types, list), f"layer_types must be a list, not {types!r}")
    places = [place for place, kind in enumerate(types) if kind == full]
    period = places[1] if len(places) > 1 else num_layers
    expected = ["sliding_attention" if place % period else full for place in range(num_layers)]
    require(
        types == expected,
        f"layer_types must be full_attention in every n-th layer, the first included, not {types}",
    )
    return period


def _read_bases(values: Mapping[str, Any]) -> tuple[float, float]:
    """Return the bases of the rotary positions of global and of local attention."""
    tables = values.get("rope_parameters") or {}
    bases: list[float] = []
    for kind, name, default in (
        ("full_attention", "global_rope_theta", 160_000.0),
        ("sliding_attention", "local_rope_theta", 10_000.0),
    ):
        table = tables.get(kind) or {}
        rope_type = table.get("rope_type", "default")
        require(rope_type == "default", f"rope_type must be 'default', not {rope_type!r}")
        base = table.get("rope_theta", values.get(name, default))
        if base is None and kind == "sliding_attention":  # of the first ModernBERT models
            base = bases[0]
        require(
            isinstance(base, int | float) and not isinstance(base, bool),
            f"{name} must be a number, not {base!r}",
        )
        bases.append(float(base))
    require(not values.get("rope_scaling"), "rope_scaling must not be set")
    return bases[0], bases[1]
