"""Presets: the paper's sizes, `tiny` and `mini` for two cores, recipes.

"Table 6" and "Table 7" are tables in the appendix of the ELECTRA paper.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from electra.method.config import GeneratorConfig, MethodConfig
from electra.model.config import ElectraConfig, EncoderConfig
from electra.model.deberta_config import DebertaConfig
from electra.model.modernbert_config import ModernBertConfig
from electra.shards.config import ExamplesConfig
from electra.tasks.config import FinetuneConfig
from electra.training.config import OptimizerConfig, PretrainConfig, TrainConfig


def encoder_sizes(
    hidden_size: int,
    num_hidden_layers: int,
    embedding_size: int,
    kind: type[EncoderConfig] = ElectraConfig,
    **changes: Any,
) -> EncoderConfig:
    """Return an encoder with BERT's proportions.

    Attention heads have 64 dimensions, and the feed-forward layer is four times as wide as the
    hidden states.
    """
    return kind(
        embedding_size=embedding_size,
        hidden_size=hidden_size,
        num_hidden_layers=num_hidden_layers,
        num_attention_heads=hidden_size // 64,
        **{"intermediate_size": 4 * hidden_size, **changes},
    )


def modern_sizes(hidden_size: int, num_hidden_layers: int) -> EncoderConfig:
    """Return an encoder of the architecture modernbert, with ModernBERT's proportions.

    Attention heads have 64 dimensions, and the gated feed-forward is 1.5 times as wide as the
    hidden states: of the same width as ELECTRA's, a layer has 0.7 times its parameters. Every third
    layer attends to the whole row, the others to a window of 128 tokens. There is no dropout.

    Source: Warner et al. 2024 (ModernBERT); JHU-CLSP/ettin-encoder-vs-decoder
    pretraining/configs/standard/very_tiny/encoder_very_tiny.yaml.
    """
    return encoder_sizes(
        *(hidden_size, num_hidden_layers, hidden_size, ModernBertConfig),
        intermediate_size=hidden_size * 3 // 2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        layer_norm_eps=1e-5,
    )


def deberta_sizes(hidden_size: int, num_hidden_layers: int, **changes: Any) -> EncoderConfig:
    """Return an encoder of the architecture deberta-v2, with DeBERTaV3's settings."""
    changes = {"layer_norm_eps": 1e-7, **changes}
    return encoder_sizes(hidden_size, num_hidden_layers, hidden_size, DebertaConfig, **changes)


def _deberta(
    hidden_size: int, num_hidden_layers: int, learning_rate: float, batch_size: int
) -> PretrainConfig:
    """Return a size of DeBERTaV3. Source: He et al. 2021; microsoft/DeBERTa rtd.sh."""
    return PretrainConfig(
        model=deberta_sizes(hidden_size, num_hidden_layers, published_heads=True),
        generator=GeneratorConfig(hidden_fraction=1.0, layers_fraction=0.5),
        method=MethodConfig(sharing="gdes"),
        examples=ExamplesConfig(sequence_length=512),
        optimizer=OptimizerConfig(learning_rate=learning_rate),
        train=TrainConfig(steps=1_000_000, batch_size=batch_size, updates="apart"),
    )


def improve(config: PretrainConfig, layers_fraction: float = 0.25) -> PretrainConfig:
    """Return the settings with the recipe `best`.

    Muon for matrices, twice the learning rate, and first embeddings from co-occurrence: the changes
    that won in results/recipes.md, at two layers and a few million tokens. Such embeddings need a
    generator as wide as the discriminator, but with fewer layers. Muon's weights need a weight
    decay of 0.1 (Liu et al. 2025): at 4 x 256, with 0.01, they outgrew the hidden states
    (results/states.md).
    """
    optimizer, train = config.optimizer, config.train
    return dataclasses.replace(
        config,
        generator=GeneratorConfig(hidden_fraction=1.0, layers_fraction=layers_fraction),
        optimizer=dataclasses.replace(
            optimizer, matrices="muon", learning_rate=2 * optimizer.learning_rate, weight_decay=0.1
        ),
        train=dataclasses.replace(train, initial_weights="cooccurrence"),
    )


_TINY = TrainConfig(steps=6500, batch_size=64, evaluate_every=500, save_every=500)
_MINI = TrainConfig(steps=5000, batch_size=32, evaluate_every=500, save_every=250)
_SMALL = TrainConfig(steps=1_000_000, batch_size=128)
_SHALLOW = GeneratorConfig(hidden_fraction=1.0, layers_fraction=0.25)
_PAPER: Mapping[str, PretrainConfig] = {
    # Not in the paper: sizes that two laptop cores can train, in minutes or in hours, with Small's
    # settings.
    "tiny": PretrainConfig(model=encoder_sizes(128, 4, 128), train=_TINY),
    "mini": PretrainConfig(model=encoder_sizes(256, 4, 128), train=_MINI),
    "small": PretrainConfig(model=encoder_sizes(256, 12, 128), train=_SMALL),
    "base": PretrainConfig(
        model=encoder_sizes(768, 12, 768),
        generator=GeneratorConfig(hidden_fraction=1 / 3),
        examples=ExamplesConfig(sequence_length=512),
        optimizer=OptimizerConfig(learning_rate=2e-4),
        train=TrainConfig(steps=766_000, batch_size=256),
    ),
    "large": PretrainConfig(
        model=encoder_sizes(1024, 24, 1024),
        method=MethodConfig(mask_prob=0.25),
        examples=ExamplesConfig(sequence_length=512),
        optimizer=OptimizerConfig(learning_rate=2e-4),
        train=TrainConfig(steps=400_000, batch_size=2048),
    ),
    # Not in the paper: ModernBERT's layers with the settings of Small. Without a layer between
    # embeddings and hidden states, a generator with the model's embeddings is as wide as the model;
    # it has a quarter of the layers.
    "modern-tiny": PretrainConfig(model=modern_sizes(128, 6), generator=_SHALLOW, train=_TINY),
    # The body of Ettin's 17M.
    "modern-mini": PretrainConfig(model=modern_sizes(256, 7), generator=_SHALLOW, train=_SMALL),
    # Layers as wide as those of Small, and more of them: 82 MFLOP a token, to 70 of Small.
    "modern-small": PretrainConfig(model=modern_sizes(256, 16), generator=_SHALLOW, train=_SMALL),
    # DeBERTaV3's sizes; the script only continues small, which has the settings of xsmall here.
    "deberta-v3-xsmall": _deberta(384, 12, 3e-4, 64),
    "deberta-v3-small": _deberta(768, 6, 3e-4, 64),
    "deberta-v3-base": _deberta(768, 12, 1e-4, 256),
    "deberta-v3-large": _deberta(1024, 24, 1e-4, 256),
    # Not published: the size of `tiny`, with Small's settings and buckets for rows of 128.
    "deberta-tiny": PretrainConfig(
        model=deberta_sizes(
            *(128, 4),
            position_buckets=64,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        ),
        generator=GeneratorConfig(hidden_fraction=1.0, layers_fraction=0.5),
        train=_TINY,
    ),
}


def _best_on_two_cores(
    model: EncoderConfig, train: TrainConfig, layers_fraction: float, decay_fraction: float = 1.0
) -> PretrainConfig:
    return improve(
        PretrainConfig(
            model=model,
            generator=GeneratorConfig(hidden_fraction=1.0),
            method=MethodConfig(disc_weight=5.0),
            optimizer=OptimizerConfig(
                learning_rate=1e-3, warmup_steps=300, adam_beta2=0.98, decay_fraction=decay_fraction
            ),
            train=train,
        ),
        layers_fraction,
    )


def _without_dropout(config: PretrainConfig) -> EncoderConfig:
    """Return a preset's sizes for hardly repeated text: no dropout, wide embeddings."""
    return dataclasses.replace(
        config.model,
        embedding_size=config.model.hidden_size,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )


RECIPES: Mapping[str, Mapping[str, PretrainConfig]] = {
    "paper": _PAPER,
    "best": {name: improve(config) for name, config in _PAPER.items()}
    | {
        "tiny": _best_on_two_cores(_without_dropout(_PAPER["tiny"]), _TINY, 0.5),
        "mini": _best_on_two_cores(_without_dropout(_PAPER["mini"]), _MINI, 0.25, 0.4),
        "modern-tiny": _best_on_two_cores(_PAPER["modern-tiny"].model, _TINY, 0.5),
        "deberta-tiny": _best_on_two_cores(_PAPER["deberta-tiny"].model, _TINY, 0.5),
    },
}
"""Pre-training settings by recipe and size. `paper` is as published (table 6 of the paper, and for
`tiny` and `mini` the settings of Small). `best` has what was found by experiment, at the size of
`tiny`; at the paper's sizes, and with `deberta-tiny`, it has not been measured."""
PRESETS: Mapping[str, PretrainConfig] = dict(RECIPES["paper"]) | {
    name: RECIPES["best"][name] for name in ("tiny", "mini", "modern-tiny", "deberta-tiny")
}
"""Pre-training settings by size, if no recipe is named: the paper's, and the best for `tiny`,
`mini`, `modern-tiny` and `deberta-tiny`.

On a GPU the paper's settings are not the fastest. 128 rows of 128 tokens do not fill it: more rows
a step, with a learning rate to match, take less time for each. examples.short_prob=0 leaves out
the attention mask, which rules out the fastest attention kernel.
"""
FINETUNE_PRESETS: Mapping[str, FinetuneConfig] = {
    # Not in the paper.
    "tiny": FinetuneConfig(layer_lr_decay=1.0, pooling="segments"),
    # Dropout costs short fine-tunings more than it gives: docs/PERFORMANCE.md.
    "mini": FinetuneConfig(
        learning_rate=5e-4, layer_lr_decay=1.0, pooling="segments", dropout_prob=0.0
    ),
    "small": FinetuneConfig(),
    "base": FinetuneConfig(learning_rate=1e-4),
    "large": FinetuneConfig(learning_rate=5e-5, layer_lr_decay=0.9),
}
"""Fine-tuning presets by size. Source: table 7 of the paper, except `tiny` and `mini`."""


def finetune_preset(encoder: EncoderConfig) -> FinetuneConfig:
    """Return the fine-tuning preset of the smallest size at least as wide as the encoder.

    Among several sizes of this width, it is that of the shallowest at least as deep as the encoder,
    else of the deepest. An encoder wider than `large` gets the preset `large`. A causal encoder has
    the mean in place of [CLS], which sees no text.
    """
    sizes = {name: PRESETS[name].model for name in FINETUNE_PRESETS}
    wide = [name for name in sizes if encoder.hidden_size <= sizes[name].hidden_size] or ["large"]
    same = [name for name in wide if sizes[name].hidden_size == sizes[wide[0]].hidden_size]
    deep = [n for n in same if encoder.num_hidden_layers <= sizes[n].num_hidden_layers]
    preset = FINETUNE_PRESETS[(deep or same[-1:])[0]]
    is_blind = encoder.causal and preset.pooling == "cls"
    return dataclasses.replace(preset, pooling="mean") if is_blind else preset
