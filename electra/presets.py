"""The paper's presets, ours for two cores, and the quickstart's recipe.

"Table 6" and "Table 7" are those of the ELECTRA paper's appendix.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from electra.config import (
    EncoderConfig,
    ExamplesConfig,
    FinetuneConfig,
    GeneratorConfig,
    MethodConfig,
    OptimizerConfig,
    PrepareConfig,
    PretrainConfig,
    QuickstartConfig,
    TokenizerConfig,
    TrainConfig,
)


def encoder_sizes(
    hidden_size: int, num_hidden_layers: int, embedding_size: int, **changes: Any
) -> EncoderConfig:
    """Return BERT's proportions: heads of 64, feed-forward four times the width."""
    return EncoderConfig(
        embedding_size=embedding_size,
        hidden_size=hidden_size,
        num_hidden_layers=num_hidden_layers,
        num_attention_heads=hidden_size // 64,
        intermediate_size=4 * hidden_size,
        **changes,
    )


PRESETS: Mapping[str, PretrainConfig] = {
    # Ours, not the paper's: what two laptop cores can train in minutes.
    "tiny": PretrainConfig(
        model=encoder_sizes(128, 4, 128, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
        generator=GeneratorConfig(hidden_fraction=1.0, layers_fraction=0.5),
        method=MethodConfig(disc_weight=5.0),
        optimizer=OptimizerConfig(learning_rate=1e-3, warmup_steps=300, adam_beta2=0.98),
        train=TrainConfig(
            steps=6500,
            batch_size=64,
            initial_weights="neighbours",
            evaluate_every=500,
            save_every=500,
        ),
    ),
    "small": PretrainConfig(
        model=encoder_sizes(256, 12, 128),
        train=TrainConfig(steps=1_000_000, batch_size=128),
    ),
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
}
"""Table 6 of the paper, but for `tiny`."""


FINETUNE_PRESETS: Mapping[str, FinetuneConfig] = {
    # Ours, not the paper's.
    "tiny": FinetuneConfig(layer_lr_decay=1.0, pooling="mean"),
    "small": FinetuneConfig(),
    "base": FinetuneConfig(learning_rate=1e-4),
    "large": FinetuneConfig(learning_rate=5e-5, layer_lr_decay=0.9),
}
"""Table 7 of the paper, but for `tiny`."""


def finetune_preset(encoder: EncoderConfig) -> FinetuneConfig:
    """Return the preset of the narrowest size that is at least as wide as the encoder."""
    for name in FINETUNE_PRESETS:
        if encoder.hidden_size <= PRESETS[name].model.hidden_size:
            return FINETUNE_PRESETS[name]
    return FINETUNE_PRESETS["large"]


QUICKSTART = QuickstartConfig(
    tokenizer=TokenizerConfig(vocab_size=8192),
    prepare=PrepareConfig(heldout_prob=0.02),
    pretrain=dataclasses.replace(
        PRESETS["tiny"],
        # Half of tiny's depth: in minutes, more tokens teach more than more layers.
        model=dataclasses.replace(PRESETS["tiny"].model, num_hidden_layers=2),
        train=dataclasses.replace(PRESETS["tiny"].train, steps=4000, batch_size=32),
    ),
    finetune=dataclasses.replace(
        FINETUNE_PRESETS["tiny"], learning_rate=1e-3, batch_size=16, epochs=15
    ),
)
