"""How a run begins: settings that fit the shards, and networks with their first weights."""

import dataclasses
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor

from electra.config import EncoderConfig, PretrainConfig, UserError, require
from electra.corpus.shards import Shards
from electra.corpus.tokenizer import Tokenizer
from electra.method.objective import Objective, Parts
from electra.method.registry import build_objective
from electra.model.encoder import Embeddings, Encoder
from electra.model.initialisation import draw_glorot, init_weights, look_at_neighbours
from electra.model.layer import PostNormLayer
from electra.model.masked_lm import MaskedLM
from electra.runs.checkpoint import FILES, find_checkpoint, load_parameters, read_tensors
from electra.runs.pretrained import generator_of, read_run_config
from electra.training.seeds import step_seed


def fit_to_shards(config: PretrainConfig, shards: Shards) -> PretrainConfig:
    """Return the config with the shards' vocabulary size, after checking that the two fit."""
    require(bool(shards.heldout), f"{shards.folder} has no held-out part; prepare it with one")
    model = dataclasses.replace(config.model, vocab_size=shards.tokenizer.vocab_size)
    config = dataclasses.replace(config, model=model)
    if config.generator.kind != "frozen":
        return config
    run = Path(config.generator.frozen_run)
    sizes, _ = _read_generator(run)
    require(
        Tokenizer.load(run / "tokenizer").digest == shards.tokenizer.digest,
        f"generator.frozen_run {run} has another vocabulary than {shards.folder}",
    )
    generator = dataclasses.replace(
        config.generator, hidden_size=sizes.hidden_size, num_hidden_layers=sizes.num_hidden_layers
    )
    same = dataclasses.replace(
        sizes,
        hidden_dropout_prob=model.hidden_dropout_prob,
        attention_probs_dropout_prob=model.attention_probs_dropout_prob,
    )
    require(
        same == generator.encoder(model),
        f"generator.frozen_run {run} has proportions that this model's settings cannot give: "
        f"embedding_size {sizes.embedding_size}, {sizes.num_attention_heads} heads, "
        f"intermediate_size {sizes.intermediate_size}; choose model's alike",
    )
    return dataclasses.replace(config, generator=generator)


def load_frozen(model: Objective, config: PretrainConfig) -> None:
    """Give the generator the weights of the run it is frozen from."""
    generator = cast(MaskedLM, model.get_submodule("generator"))
    load_parameters(generator, _read_generator(Path(config.generator.frozen_run))[1])


def _read_generator(run: Path) -> tuple[EncoderConfig, dict[str, Tensor]]:
    """Return the masked language model of another run."""
    config = read_run_config(run)
    _, checkpoint = find_checkpoint(run)
    found = generator_of(config, read_tensors(checkpoint / FILES[0]))
    if found is None:
        raise UserError(f"generator.frozen_run {run} has no generator network")
    return found


def build_model(
    config: PretrainConfig,
    tokenizer: Tokenizer,
    compute_dtype: torch.dtype,
    frequencies_V: Tensor | None = None,
    layer: type[PostNormLayer] = PostNormLayer,
) -> Objective:
    """Return the objective's networks with fresh weights, a function of the seed.

    The encoder one keeps begins with the same weights whatever the objective is.

    Args:
        config: The settings.
        tokenizer: Special tokens, vocabulary.
        compute_dtype: Dtype of activations and matrix products.
        frequencies_V: `count_tokens` of the shards. Without them heads begin without a bias, and
            there can be no unigram generator.
        layer: Class of the encoders' layers; `choose_layers` has the one for a run. All have the
            same weights.
    """
    model = build_objective(Parts(config, tokenizer, compute_dtype, frequencies_V, layer))
    rng, others = (
        torch.Generator().manual_seed(step_seed(config.train.seed, name, 0))
        for name in ("weights", "other weights")
    )
    std = config.model.initializer_range
    init_weights(model, std, others)
    init_weights(model.kept, std, rng)
    if config.method.mode == "reference":
        draw_glorot(model, others)
    if config.train.initial_weights == "neighbours":
        by_embeddings: dict[Embeddings, list[Encoder]] = {}
        for part in (model.kept, *model.modules()):
            if isinstance(part, Encoder) and part not in by_embeddings.get(part.embeddings, []):
                by_embeddings.setdefault(part.embeddings, []).append(part)
        for encoders in by_embeddings.values():
            look_at_neighbours(encoders, std, rng)
        if frequencies_V is not None:
            model.set_constant_predictions(frequencies_V)
    return model


def count_tokens(shards: Shards) -> Tensor:
    """Return how often each token stands in the train part, and once more."""
    counts = np.ones(shards.tokenizer.vocab_size)
    for shard in shards.train:
        counts += np.bincount(shard.tokens, minlength=len(counts))
    return torch.from_numpy(counts)
