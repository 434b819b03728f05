"""How a run begins: settings that fit the shards, and networks with their first weights."""

import dataclasses
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from electra.config import PretrainConfig, UserError, require
from electra.corpus.shards import Shards
from electra.corpus.tokenizer import Tokenizer
from electra.method.objective import Objective, Parts
from electra.method.registry import build_objective
from electra.model.encoder import Embeddings, Encoder
from electra.model.initialisation import draw_glorot, init_weights, look_at_neighbours
from electra.runs.checkpoint import load_parameters
from electra.runs.pretrained import SavedNetwork, read_networks, read_run_config
from electra.training.machine import Machine, choose_layers
from electra.training.seeds import step_seed


def fit_to_shards(config: PretrainConfig, shards: Shards) -> PretrainConfig:
    """Return the config with the shards' vocabulary size, after checking that the two fit."""
    require(bool(shards.heldout), f"{shards.folder} has no held-out part; prepare it with one")
    model = dataclasses.replace(config.model, vocab_size=shards.tokenizer.vocab_size)
    config = dataclasses.replace(config, model=model)
    if config.generator.kind != "frozen":
        return config
    run = Path(config.generator.frozen_run)
    sizes = _read_generator(run).sizes
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
    generator = model.networks["generator"]
    saved = _read_generator(Path(config.generator.frozen_run))
    load_parameters(generator.encoders[0], saved.encoders[0])
    load_parameters(generator.head, saved.head)


def _read_generator(run: Path) -> SavedNetwork:
    """Return the masked language model of another run."""
    read_run_config(run)  # says so if it is no run folder
    found = read_networks(run).masked_lm
    if found is None:
        raise UserError(f"generator.frozen_run {run} has no generator network")
    return found


def build_model(
    config: PretrainConfig,
    tokenizer: Tokenizer,
    machine: Machine,
    frequencies_V: Tensor | None = None,
) -> Objective:
    """Return the objective's networks with fresh weights, a function of the seed, on the device.

    The encoder one keeps begins with the same weights whatever the objective is.

    Args:
        config: The settings.
        tokenizer: Special tokens, vocabulary.
        machine: Device, and dtype of activations and matrix products.
        frequencies_V: `count_tokens` of the shards. Without them heads begin without a bias, and
            there can be no unigram generator.
    """
    train = config.train
    layer = choose_layers(train.layers, machine.device, compiled=train.compile == "yes")
    model = build_objective(Parts(config, tokenizer, machine.dtype, frequencies_V, layer))
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
    return model.to(machine.device)


def count_tokens(shards: Shards) -> Tensor:
    """Return how often each token stands in the train part, and once more."""
    counts = np.ones(shards.tokenizer.vocab_size)
    for shard in shards.train:
        counts += np.bincount(shard.tokens, minlength=len(counts))
    return torch.from_numpy(counts)
