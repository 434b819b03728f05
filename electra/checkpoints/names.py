"""How transformers names what an encoder has: its classes, its parameters, its fields.

One `Architecture` for each body holds the names of the modules, ours to theirs. Both directions
read that table. BERT's encoder is ELECTRA's with embeddings as wide as the hidden states, and its
masked language model is a generator.

Shape suffixes: H hidden size, C classes.
"""

import dataclasses
import re
import reprlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from electra.checkpoints.checkpoint import Weights
from electra.checkpoints.parameters import Tensors, gather, list_parameters, require_layers
from electra.errors import require
from electra.model.config import ElectraConfig, EncoderConfig
from electra.model.deberta_config import DebertaConfig
from electra.model.encoder import Encoder
from electra.model.heads import DiscriminatorHead, GeneratorHead
from electra.model.modernbert_config import ModernBertConfig
from electra.objectives.masked_language_modelling import NextSentenceHead
from electra.tokenizing.tokenizer import Tokenizer

HEAD_FILE = "head.safetensors"
"""A fine-tuned head that transformers has no class with, beside the encoder; under our names."""
DISCRIMINATOR_FILE = "discriminator_head.safetensors"
"""The discriminator's head, likewise, under the names in `Architecture.beside`."""
NEXT_SENTENCE_FILE = "next_sentence_head.safetensors"
"""BERT's pooler and next-sentence head beside a class without them; under our names."""
Modules = Mapping[str, str | tuple[str, ...]]
"""Our name of each module to theirs; {i} is the number of the layer. Several names: the rows of our
matrix are theirs, one after the other. The empty name is the module itself."""
MOST = 1 << 31
"""Bound of a size, excluded."""
MOST_BASE = 1e30
"""Bound of a base of rotary positions, excluded."""


@dataclass(frozen=True)
class Architecture:
    """The names of one body in transformers."""

    model_type: str
    classes: str
    """How the names of its classes begin."""
    prefix: str
    """Prefix of the encoder's parameters in classes with a head."""
    bare_prefix: str
    """The same in the files that are written of the class without a head."""
    encoder: Modules
    heads: Mapping[str, Modules]
    """Names for each kind of head that a class has."""
    fields: Mapping[str, tuple[str, Any]]
    """Name in config.json, and transformers' default, of the fields of `EncoderConfig` there."""
    write_others: Callable[[Any, Tokenizer], dict[str, Any]]
    """Returns the fields of config.json that are no field of `EncoderConfig`."""
    read_config: Callable[[Mapping[str, Any]], EncoderConfig]
    """Returns the sizes. Missing fields have transformers' defaults. Raises UserError if a field
    is wrong, or the model has a feature that our encoder lacks."""
    beside: Modules = field(
        default_factory=lambda: {"dense": "dense", "dense_prediction": "dense_prediction"}
    )
    """Names for the discriminator's head, if no class has it and it has a file of its own."""

    def class_name(self, kind: str) -> str:
        """Return the class with a kind of head, or that of the encoder if there is none."""
        name = f"{self.classes}{f'For{kind}' if kind in self.heads else 'Model'}"
        return {"BertForCausalLM": "BertLMHeadModel"}.get(name, name)

    def write_config(
        self, sizes: EncoderConfig, class_name: str, tokenizer: Tokenizer
    ) -> dict[str, Any]:
        """Return config.json."""
        require(
            not sizes.causal or "CausalLM" in self.heads,
            f"transformers has no causal class of {self.classes} with this head; electra reads it",
        )
        return {
            "model_type": self.model_type,
            "architectures": [class_name],
            **{theirs: getattr(sizes, ours) for ours, (theirs, _) in self.fields.items()},
            **self.write_others(sizes, tokenizer),
            "pad_token_id": tokenizer.pad_id,
            "tie_word_embeddings": True,
        }

    def to_theirs(
        self, encoder: Tensors, head: Tensors | None = None, kind: str = ""
    ) -> dict[str, Tensor]:
        """Return parameters under the names of the class with this kind of head."""
        prefix = self.prefix if kind in self.heads else self.bare_prefix
        parts = [(encoder, self.encoder, prefix)]
        if head and kind in self.heads:
            parts.append((head, self.heads[kind], ""))
        theirs: dict[str, Tensor] = {}
        for tensors, modules, before in parts:
            for name, tensor in tensors.items():
                names = find_theirs(modules, before, name)
                rows = tensor.chunk(len(names)) if len(names) > 1 else [tensor]
                theirs |= dict(zip(names, rows, strict=True))
        return theirs

    def to_beside(self, head: Tensors) -> dict[str, Tensor]:
        """Return a discriminator's head under the names in its own file."""
        return {find_theirs(self.beside, "", name)[0]: each for name, each in head.items()}

    def read_beside(self, theirs: Tensors, sizes: EncoderConfig) -> Weights:
        """Return a discriminator's head from its own file, under our names."""
        find = partial(find_theirs, self.beside, "")
        return gather(partial(DiscriminatorHead, sizes), theirs, find)

    def read_encoder(self, theirs: Tensors, sizes: EncoderConfig) -> Weights:
        """Return an encoder's parameters under our names."""
        prefix = self.prefix if any(name.startswith(self.prefix) for name in theirs) else ""
        require_layers(theirs, prefix + self.before_layers, sizes)
        return gather(partial(Encoder, sizes), theirs, partial(find_theirs, self.encoder, prefix))

    @property
    def before_layers(self) -> str:
        """The part before the number of a layer in the names of the encoder's parameters."""
        names = (each if isinstance(each, str) else each[0] for each in self.encoder.values())
        return next(name.partition("{i}")[0] for name in names if "{i}" in name)

    def read_head(self, kind: str, theirs: Tensors, sizes: EncoderConfig) -> Weights | None:
        """Return the parameters of a head of pre-training under our names; None: it has none."""
        modules = self.heads.get(kind, self.beside if kind == "PreTraining" else {})
        if not modules:
            return None
        head = GeneratorHead if kind.endswith("LM") else DiscriminatorHead
        build = partial(NextSentenceHead if kind == "NextSentencePrediction" else head, sizes)
        find = partial(find_theirs, modules, "")
        has_all = all(each in theirs for name in list_parameters(build) for each in find(name))
        return gather(build, theirs, find) if has_all else None


def find_theirs(modules: Modules, prefix: str, name: str) -> tuple[str, ...]:
    """Return the names of one of our parameters, or of its parts, in transformers."""
    module, _, parameter = name.rpartition(".")
    layer = re.search(r"(?<=^layers\.)\d+", module)
    found = modules[module.replace(f".{layer[0]}.", ".{i}.", 1) if layer else module]
    number = layer[0] if layer else ""
    return tuple(
        f"{prefix}{each.format(i=number)}.{parameter}"
        for each in ([found] if isinstance(found, str) else found)
    )


def expand_classifier(weight_CH: Tensor, bias_C: Tensor) -> dict[str, Tensor]:
    """Return a linear layer on [CLS] as the two layers of ElectraForSequenceClassification.

    The class computes dense(GELU(inner(h))). Since GELU(x) - GELU(-x) = x, two hidden units with
    opposite weights pass a logit on unchanged. The C pairs of units are repeated as often as H
    units allow, at least once, and the second layer averages the copies. Dropout and gradients are
    then spread over the layer as in an ordinary head. The remaining H % 2C units are zero and stay
    zero in training.
    """
    num_classes, hidden_size = weight_CH.shape
    copies = hidden_size // (2 * num_classes)
    num_used = 2 * num_classes * copies
    inner_HH = torch.zeros(hidden_size, hidden_size)
    inner_HH[:num_used] = torch.cat([weight_CH, -weight_CH]).repeat(copies, 1)
    out_CH = torch.zeros(num_classes, hidden_size)
    eye_CC = torch.eye(num_classes) / copies
    out_CH[:, :num_used] = torch.cat([eye_CC, -eye_CC], dim=1).repeat(1, copies)
    return {
        "inner.weight": inner_HH,
        "inner.bias": torch.zeros(hidden_size),
        "dense.weight": out_CH,
        "dense.bias": bias_C,
    }


def _read_fields(
    values: Mapping[str, Any], fields: Mapping[str, tuple[str, Any]], fixed: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the fields of EncoderConfig, given their names and defaults in config.json."""
    for name, expected in fixed.items():
        value = values.get(name, expected)
        require(value == expected, f"{name} must be {expected!r}, not {value!r}")
    sizes = {}
    for ours, (name, default) in fields.items():
        value = values.get(name, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if isinstance(default, bool):
            fits, rule = isinstance(value, bool), "true or false"
        elif isinstance(default, int):
            fits = is_number and isinstance(value, int) and 1 <= value < MOST
            rule = f"less than {MOST:,}" if is_number and value >= MOST else "a whole number from 1"
        else:
            fits, rule = is_number and 0 <= value < MOST, f"a number from 0, less than {MOST:,}"
        require(fits, f"{name} must be {rule}, not {value!r}")
        sizes[ours] = value
    return sizes


def _fields(
    kind: type[EncoderConfig], names: Collection[str], renamed: Mapping[str, str], **defaults: Any
) -> dict[str, tuple[str, Any]]:
    """Return names and defaults of fields in config.json."""
    own = {each.name: each.default for each in dataclasses.fields(kind)}
    return {
        name: (renamed.get(name, name), defaults[name] if name in defaults else own[name])
        for name in names
    }


# The names of ELECTRA and BERT

_POST_NORM: Modules = {
    "embeddings.tokens": "embeddings.word_embeddings",
    "embeddings.positions": "embeddings.position_embeddings",
    "embeddings.types": "embeddings.token_type_embeddings",
    "embeddings.norm": "embeddings.LayerNorm",
    "embeddings_project": "embeddings_project",
    "layers.{i}.attention.qkv": tuple(
        f"encoder.layer.{{i}}.attention.self.{part}" for part in ("query", "key", "value")
    ),
    "layers.{i}.attention.output": "encoder.layer.{i}.attention.output.dense",
    "layers.{i}.attention_norm": "encoder.layer.{i}.attention.output.LayerNorm",
    "layers.{i}.intermediate": "encoder.layer.{i}.intermediate.dense",
    "layers.{i}.output": "encoder.layer.{i}.output.dense",
    "layers.{i}.output_norm": "encoder.layer.{i}.output.LayerNorm",
}
_ELECTRA_FIELDS = _fields(
    ElectraConfig,
    [each.name for each in dataclasses.fields(ElectraConfig) if each.name != "architecture"],
    {"causal": "is_decoder"},
    embedding_size=128,
    hidden_size=256,
    num_hidden_layers=12,
    num_attention_heads=4,
    intermediate_size=1024,
)


def _read_electra(values: Mapping[str, Any]) -> EncoderConfig:
    fixed = {
        "hidden_act": "gelu",
        "position_embedding_type": "absolute",
        "add_cross_attention": False,
    }
    return ElectraConfig(**_read_fields(values, _ELECTRA_FIELDS, fixed))


_ELECTRA_LM: Modules = {
    "dense": "generator_predictions.dense",
    "norm": "generator_predictions.LayerNorm",
    "": "generator_lm_head",
}
ELECTRA = Architecture(
    model_type="electra",
    classes="Electra",
    prefix="electra.",
    bare_prefix="electra.",
    encoder=_POST_NORM,
    heads={
        "PreTraining": {
            "dense": "discriminator_predictions.dense",
            "dense_prediction": "discriminator_predictions.dense_prediction",
        },
        "MaskedLM": _ELECTRA_LM,
        "CausalLM": _ELECTRA_LM,
        "SequenceClassification": {"inner": "classifier.dense", "dense": "classifier.out_proj"},
        "TokenClassification": {"dense": "classifier"},
        "QuestionAnswering": {"dense": "qa_outputs"},
        "MultipleChoice": {"dense": "classifier"},
    },
    fields=_ELECTRA_FIELDS,
    write_others=lambda sizes, tokenizer: {"hidden_act": "gelu"},
    read_config=_read_electra,
)


def _write_bert(sizes: EncoderConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    require(
        sizes.embedding_size == sizes.hidden_size,
        f"BERT has no projection of embeddings: embedding_size {sizes.embedding_size} must be "
        f"hidden_size {sizes.hidden_size}, as in base and large; export without --as bert, or with "
        "--onnx",
    )
    return {"hidden_act": "gelu"}


_BERT_LM: Modules = {
    "dense": "cls.predictions.transform.dense",
    "norm": "cls.predictions.transform.LayerNorm",
    "": "cls.predictions",
}
BERT = Architecture(
    model_type="bert",
    classes="Bert",
    prefix="bert.",
    bare_prefix="",
    encoder=_POST_NORM,
    heads={
        "MaskedLM": _BERT_LM,
        "NextSentencePrediction": {"pooler": "bert.pooler.dense", "dense": "cls.seq_relationship"},
        "CausalLM": _BERT_LM,
        "TokenClassification": {"dense": "classifier"},
        "QuestionAnswering": {"dense": "qa_outputs"},
    },
    fields={name: each for name, each in _ELECTRA_FIELDS.items() if name != "embedding_size"},
    write_others=_write_bert,
    read_config=lambda values: _read_electra(
        {"num_attention_heads": 12, **values, "embedding_size": values.get("hidden_size")}
    ),
)

# The names of ModernBERT

_TASK: Modules = {"inner.dense": "head.dense", "inner.norm": "head.norm", "dense": "classifier"}
_RENAMED = {
    "layer_norm_eps": "norm_eps",
    "attention_probs_dropout_prob": "attention_dropout",
    "hidden_dropout_prob": "embedding_dropout",
}
_MODERN_FIXED = {"hidden_activation": "gelu", "classifier_activation": "gelu"}
_MODERN_FIELDS = _fields(
    ModernBertConfig,
    (
        *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
        *("num_attention_heads", "max_position_embeddings", "initializer_range", "local_attention"),
        *("norm_bias", "attention_bias", "mlp_bias", "classifier_bias", *_RENAMED),
    ),
    _RENAMED,
    vocab_size=50_368,
    hidden_size=768,
    intermediate_size=1152,
    num_hidden_layers=22,
    num_attention_heads=12,
    max_position_embeddings=8192,
    layer_norm_eps=1e-5,
    attention_probs_dropout_prob=0.0,
    hidden_dropout_prob=0.0,
)


def _write_modern(sizes: ModernBertConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the names that all versions of transformers and the servers read."""
    bases = {"full_attention": sizes.global_rope_theta, "sliding_attention": sizes.local_rope_theta}
    return {
        **_MODERN_FIXED,
        "initializer_cutoff_factor": 2.0,
        "layer_norm_eps": sizes.layer_norm_eps,  # as candle calls it
        "mlp_dropout": sizes.hidden_dropout_prob,
        "global_attn_every_n_layers": sizes.global_attn_every_n_layers,
        "global_rope_theta": sizes.global_rope_theta,
        "local_rope_theta": sizes.local_rope_theta,
        "rope_parameters": {  # what the newest transformers reads in place of the two bases
            kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()
        },
        "decoder_bias": True,
        "classifier_pooling": "cls",
        "classifier_dropout": 0.0,
        "bos_token_id": tokenizer.cls_id,
        "cls_token_id": tokenizer.cls_id,
        "eos_token_id": tokenizer.sep_id,
        "sep_token_id": tokenizer.sep_id,
    }


def _read_modern(values: Mapping[str, Any]) -> ModernBertConfig:
    sizes = _read_fields(values, _MODERN_FIELDS, _MODERN_FIXED)
    embedding, inner = sizes["hidden_dropout_prob"], values.get("mlp_dropout", 0.0)
    require(
        embedding == inner,
        f"embedding_dropout {embedding} and mlp_dropout {inner} must be the same here",
    )
    full, sliding = _read_bases(values)
    return ModernBertConfig(
        embedding_size=sizes["hidden_size"],
        global_attn_every_n_layers=_read_period(values, sizes["num_hidden_layers"]),
        global_rope_theta=full,
        local_rope_theta=sliding,
        **sizes,
    )


def _read_period(values: Mapping[str, Any], num_layers: int) -> int:
    """Return the n of "every n-th layer attends to the whole row"."""
    types = values.get("layer_types")
    if types is None:
        period = values.get("global_attn_every_n_layers", 3)
        require(type(period) is int, f"global_attn_every_n_layers must be a number, not {period!r}")
        return int(period)
    full = "full_attention"
    require(
        isinstance(types, list) and len(types) == num_layers,
        f"layer_types must be a list of {num_layers:,} layers, not {reprlib.repr(types)}",
    )
    places = [place for place, kind in enumerate(types) if kind == full]
    period = places[1] if len(places) > 1 else num_layers
    expected = ["sliding_attention" if place % period else full for place in range(num_layers)]
    require(
        types == expected,
        f"layer_types must be full_attention in every n-th layer, the first included, not "
        f"{reprlib.repr(types)}",
    )
    return period


def _read_bases(values: Mapping[str, Any]) -> tuple[float, float]:
    """Return the bases of the rotary positions of global and of local attention."""
    tables = values.get("rope_parameters") or {}
    require(
        isinstance(tables, dict) and all(isinstance(each or {}, dict) for each in tables.values()),
        f"rope_parameters must be objects by kind of attention, not {reprlib.repr(tables)}",
    )
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
            isinstance(base, int | float) and not isinstance(base, bool) and 0 < base < MOST_BASE,
            f"{name} must be a number above 0, less than {MOST_BASE:g}, not {base!r}",
        )
        bases.append(float(base))
    require(not values.get("rope_scaling"), "rope_scaling must not be set")
    return bases[0], bases[1]


MODERNBERT = Architecture(
    model_type="modernbert",
    classes="ModernBert",
    prefix="model.",
    bare_prefix="",
    encoder={
        "embeddings.tokens": "embeddings.tok_embeddings",
        "embeddings.norm": "embeddings.norm",
        "layers.{i}.attention_norm": "layers.{i}.attn_norm",
        "layers.{i}.attention.qkv": "layers.{i}.attn.Wqkv",
        "layers.{i}.attention.output": "layers.{i}.attn.Wo",
        "layers.{i}.feed_forward_norm": "layers.{i}.mlp_norm",
        "layers.{i}.intermediate_and_gate": "layers.{i}.mlp.Wi",
        "layers.{i}.output": "layers.{i}.mlp.Wo",
        "final_norm": "final_norm",
    },
    heads={
        "MaskedLM": {"dense": "head.dense", "norm": "head.norm", "": "decoder"},
        "SequenceClassification": _TASK,
        "TokenClassification": _TASK,
        "QuestionAnswering": _TASK,
        "MultipleChoice": _TASK,
    },
    fields=_MODERN_FIELDS,
    write_others=_write_modern,
    read_config=_read_modern,
)


def _write_decoder(sizes: ModernBertConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    # Half of local_attention is the number of tokens that a token sees, itself included.
    return {**_write_modern(sizes, tokenizer), "local_attention": sizes.local_attention + 2}


def _read_decoder(values: Mapping[str, Any]) -> ModernBertConfig:
    whole = _read_fields(values, {"whole": ("local_attention", 128)}, {})["whole"]
    # transformers also writes the half (sliding_window), and uses that field.
    window = _read_fields(values, {"window": ("sliding_window", max(1, whole // 2))}, {})["window"]
    require(window > 1, f"sliding_window must be at least 2, not {window}")
    sizes = _read_modern({**values, "local_attention": 2 * (window - 1)})
    return dataclasses.replace(sizes, causal=True)


MODERNBERT_DECODER = dataclasses.replace(
    MODERNBERT,
    model_type="modernbert-decoder",
    classes="ModernBertDecoder",
    encoder={
        **MODERNBERT.encoder,
        "layers.{i}.attention.qkv": tuple(f"layers.{{i}}.attn.{part}_proj" for part in "qkv"),
    },
    heads={"CausalLM": {"dense": "lm_head.dense", "norm": "lm_head.norm", "": "decoder"}},
    write_others=_write_decoder,
    read_config=_read_decoder,
)

# The names of DeBERTa

_DEBERTA_FIELDS = _fields(
    DebertaConfig,
    (
        *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "layer_norm_eps"),
        *("num_attention_heads", "max_position_embeddings", "initializer_range"),
        *("position_buckets", "hidden_dropout_prob", "attention_probs_dropout_prob"),
    ),
    {},
    vocab_size=128_100,
    hidden_size=1536,
    intermediate_size=6144,
    num_hidden_layers=24,
    num_attention_heads=24,
    layer_norm_eps=1e-7,
)
_OF_V3: Mapping[str, tuple[Any, Any, str]] = {
    "hidden_act": ("gelu", "gelu", "the encoder has no other activation"),
    "relative_attention": (True, False, "attention without distances is BERT's"),
    "position_biased_input": (False, True, "version 3 adds no positions to the embeddings"),
    "share_att_key": (True, False, "version 3 maps distances as it maps states"),
    "norm_rel_ebd": ("layer_norm", "none", "version 3 normalises the table of distances"),
    "type_vocab_size": (0, 0, "version 3 has no segments"),
    "conv_kernel_size": (0, 0, "the convolution of version 2 is not built"),
}
"""Fields of config.json with the value of version 3, the only one that is built; transformers'
default; and the reason."""
_OF_HEADS = ("published_heads", "enhanced_decoder")
"""Fields that are ours alone; of other programs' weights the names of the tensors say them."""


def _write_deberta(sizes: DebertaConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    longest, farthest = sizes.max_position_embeddings, sizes.max_relative_positions
    return {
        **{name: value for name, (value, *_) in _OF_V3.items()},
        **{name: True for name in _OF_HEADS if getattr(sizes, name)},
        "max_relative_positions": -1 if farthest == longest else farthest,
        "pos_att_type": "p2c|c2p",
        "pooler_hidden_size": sizes.hidden_size,
        "pooler_hidden_act": "gelu",
        "pooler_dropout": 0,
        "legacy": True,
    }


def _read_deberta(values: Mapping[str, Any]) -> DebertaConfig:
    for name, (expected, default, reason) in _OF_V3.items():
        value = values.get(name, default)
        require(value == expected, f"{name} must be {expected!r}, not {value!r}: {reason}")
    kinds = values.get("pos_att_type") or []
    words = kinds.lower().split("|") if isinstance(kinds, str) else kinds
    require(
        isinstance(words, list) and sorted(str(each).strip() for each in words) == ["c2p", "p2c"],
        f"pos_att_type must be 'p2c|c2p', not {kinds!r}: version 3 has both terms and no other",
    )
    sizes = _read_fields(values, _DEBERTA_FIELDS | _fields(DebertaConfig, _OF_HEADS, {}), {})
    hidden_size, heads = sizes["hidden_size"], sizes["num_attention_heads"]
    derived = {"embedding_size": hidden_size, "attention_head_size": hidden_size // heads}
    _read_fields(values, {}, derived)
    farthest = values.get("max_relative_positions", -1)
    require(type(farthest) is int, f"max_relative_positions must be a number, not {farthest!r}")
    return DebertaConfig(
        embedding_size=hidden_size,
        max_relative_positions=farthest if farthest > 0 else sizes["max_position_embeddings"],
        **sizes,
    )


_CLASSIFIER: Modules = {"inner": "pooler.dense", "dense": "classifier"}
DEBERTA = Architecture(
    model_type="deberta-v2",
    classes="DebertaV2",
    prefix="deberta.",
    bare_prefix="",
    encoder={
        **_POST_NORM,
        "position_embeddings": "embeddings.position_embeddings",
        "places.embeddings": "encoder.rel_embeddings",
        "places.norm": "encoder.LayerNorm",
        "layers.{i}.attention.qkv": tuple(
            f"encoder.layer.{{i}}.attention.self.{part}_proj" for part in ("query", "key", "value")
        ),
    },
    heads={
        "MaskedLM": BERT.heads["MaskedLM"],
        "SequenceClassification": _CLASSIFIER,
        "TokenClassification": {"dense": "classifier"},
        "QuestionAnswering": {"dense": "qa_outputs"},
        "MultipleChoice": _CLASSIFIER,
    },
    fields=_DEBERTA_FIELDS,
    write_others=_write_deberta,
    read_config=_read_deberta,
    beside={
        "norm": "mask_predictions.LayerNorm",
        "dense": "mask_predictions.dense",
        "dense_prediction": "mask_predictions.classifier",
    },
)
ARCHITECTURES = {
    each.model_type: each for each in (ELECTRA, BERT, MODERNBERT, MODERNBERT_DECODER, DEBERTA)
}
"""By config.json's model_type; the bodies also by the name of `EncoderConfig.architecture`."""
