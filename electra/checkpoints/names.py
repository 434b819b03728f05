"""Convert fine-tuned heads to transformers: class, parameters and fields of config.json.

The class computes the same logits as our head, and can be trained further.

Shape suffixes: H hidden size, C classes.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import torch
from torch import Tensor

from electra.checkpoints.checkpoint import read_tensors
from electra.config import MODERNBERT_ONLY, EncoderConfig
from electra.errors import UserError, require
from electra.tokenizing.tokenizer import Tokenizer

HEAD_FILE = "head.safetensors"
"""A fine-tuned head that transformers has no class with, beside the encoder; under our names."""


class HuggingFaceHead(NamedTuple):
    """The head of a class in transformers."""

    architecture: str
    """Name of the class."""
    tensors: dict[str, Tensor]
    """The head's parameters, under the names of the class."""
    settings: dict[str, Any]
    """The head's fields of config.json."""
    beside: Mapping[str, Tensor] = {}
    """Parameters of a head that the class has not, under our names, for a file of their own."""


def classification_head(
    weight_CH: Tensor, bias_C: Tensor, labels: Sequence[str]
) -> HuggingFaceHead:
    """Return a linear layer on [CLS] as the two-layer head of ElectraForSequenceClassification.

    The class computes out_proj(GELU(dense(h))). Since GELU(x) - GELU(-x) = x, two hidden units with
    opposite weights pass a logit on unchanged. The C pairs of units are repeated as often as H
    units allow, and out_proj averages the copies. Dropout and gradients are then spread over the
    layer as in an ordinary head. The remaining H % 2C units are zero and stay zero in training.

    Args:
        weight_CH: Weight of the linear layer.
        bias_C: Bias of the linear layer.
        labels: Names of the classes; for a regression, one name for the number.

    Raises:
        UserError: There are more than H / 2 classes.
    """
    num_classes, hidden_size = weight_CH.shape
    copies = hidden_size // (2 * num_classes)
    require(
        copies >= 1,
        f"transformers' classifier with {hidden_size} hidden units can hold at most "
        f"{hidden_size // 2} labels of ours, not {num_classes}; use electra predict",
    )
    num_used = 2 * num_classes * copies
    dense_HH = torch.zeros(hidden_size, hidden_size)
    dense_HH[:num_used] = torch.cat([weight_CH, -weight_CH]).repeat(copies, 1)
    out_CH = torch.zeros(num_classes, hidden_size)
    eye_CC = torch.eye(num_classes) / copies
    out_CH[:, :num_used] = torch.cat([eye_CC, -eye_CC], dim=1).repeat(1, copies)
    tensors = {
        "classifier.dense.weight": dense_HH,
        "classifier.dense.bias": torch.zeros(hidden_size),
        "classifier.out_proj.weight": out_CH,
        "classifier.out_proj.bias": bias_C,
    }
    return HuggingFaceHead("ElectraForSequenceClassification", tensors, describe_labels(labels))


def tagging_head(weight_CH: Tensor, bias_C: Tensor, labels: Sequence[str]) -> HuggingFaceHead:
    """Return a linear layer on every position as the head of ElectraForTokenClassification."""
    tensors = {"classifier.weight": weight_CH, "classifier.bias": bias_C}
    return HuggingFaceHead("ElectraForTokenClassification", tensors, name_labels(labels))


def span_head(weight_2H: Tensor, bias_2: Tensor) -> HuggingFaceHead:
    """Return a linear layer to start and end logits as the head of ElectraForQuestionAnswering.

    The class also gives finite logits at positions that cannot be part of an answer, such as the
    question. The caller has to exclude these positions.
    """
    tensors = {"qa_outputs.weight": weight_2H, "qa_outputs.bias": bias_2}
    return HuggingFaceHead("ElectraForQuestionAnswering", tensors, {})


def choice_head(weight_1H: Tensor, bias_1: Tensor) -> HuggingFaceHead:
    """Return a linear layer on each choice's [CLS] as the head of ElectraForMultipleChoice.

    The class has a summary layer before the linear layer. The settings make the summary the hidden
    state of [CLS], unchanged.
    """
    settings = {
        "summary_type": "first",
        "summary_use_proj": False,
        "summary_activation": "linear",  # no activation
    }
    tensors = {"classifier.weight": weight_1H, "classifier.bias": bias_1}
    return HuggingFaceHead("ElectraForMultipleChoice", tensors, settings)


def describe_labels(labels: Sequence[str]) -> dict[str, Any]:
    """Return a classifier's fields of config.json; one label is the name of a number."""
    kind = "regression" if len(labels) == 1 else "single_label_classification"
    return {"problem_type": kind, **name_labels(labels)}


def name_labels(labels: Sequence[str]) -> dict[str, Any]:
    """Return the fields of config.json that name classes."""
    return {
        "id2label": {str(place): label for place, label in enumerate(labels)},
        "label2id": {label: place for place, label in enumerate(labels)},
    }


DISCRIMINATOR_FILE = "discriminator_head.safetensors"
"""The discriminator's head, under the names in `DiscriminatorHead`."""
_BERT_CLASSES = {
    "ElectraModel": "BertModel",
    "ElectraForPreTraining": "BertModel",
    "ElectraForMaskedLM": "BertForMaskedLM",
    "ElectraForTokenClassification": "BertForTokenClassification",
    "ElectraForQuestionAnswering": "BertForQuestionAnswering",
}
_BERT_NAMES = {
    "electra.": "bert.",
    "generator_predictions.": "cls.predictions.transform.",
    "generator_lm_head.bias": "cls.predictions.bias",
}
"""Beginnings of ELECTRA's names, and what BERT has in their place."""
_DISCRIMINATOR = "discriminator_predictions."


def to_bert(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor]]:
    """Return config.json and parameters of BERT's class, and the discriminator's head, if any.

    Args:
        config: config.json of ELECTRA's class.
        tensors: Parameters of ELECTRA's class, under the names in transformers.

    Raises:
        UserError: The network is a ModernBERT, the embeddings have another width than the hidden
            states, or BERT has no class with such a head.
    """
    require(
        config["model_type"] == "electra",
        "BERT has learned positions and norms after its layers' parts, modernbert rotary positions "
        "and norms before them: export without --as bert, for all that have ModernBERT",
    )
    embedding_size, hidden_size = config["embedding_size"], config["hidden_size"]
    require(
        embedding_size == hidden_size,
        f"BERT has no projection of embeddings: embedding_size {embedding_size} must be "
        f"hidden_size {hidden_size}, as in base and large; export without --as bert, or with "
        "--onnx",
    )
    (architecture,) = config["architectures"]
    require(
        architecture in _BERT_CLASSES,
        f"BERT has no class with the head of {architecture}: its own reads a pooler with tanh; "
        "export without --as bert, or with --onnx",
    )
    theirs: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        for ours, their in _BERT_NAMES.items():
            if name.startswith(ours):
                name = their + name.removeprefix(ours)
        theirs[name] = tensor
    head = {
        name.removeprefix(_DISCRIMINATOR): theirs.pop(name)
        for name in list(theirs)
        if name.startswith(_DISCRIMINATOR)
    }
    if _BERT_CLASSES[architecture] == "BertModel":
        theirs = {name.removeprefix("bert."): tensor for name, tensor in theirs.items()}
    kept = {name: value for name, value in config.items() if name != "embedding_size"}
    classes = [_BERT_CLASSES[architecture]]
    return kept | {"model_type": "bert", "architectures": classes}, theirs, head


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
_MODERN_CLASSES = {
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
_MODERN_FIXED = {"hidden_activation": "gelu", "classifier_activation": "gelu"}
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
    return HuggingFaceHead(_MODERN_CLASSES[family], _rename(head, _TASK), settings)


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
        **_MODERN_FIXED,
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
    for name, expected in _MODERN_FIXED.items():
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
    hints = get_type_hints(EncoderConfig)
    for field in dataclasses.fields(EncoderConfig):
        if field.name == "architecture" or field.name in MODERNBERT_ONLY:
            continue
        value = values.get(field.name, _DEFAULT_SIZES.get(field.name, field.default))
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if hints[field.name] is int:
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
