"""The start of a run: sizes that fit its shards, the objective, and its first weights.

Shape suffixes: V vocabulary, E embedding size.
"""

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from electra.errors import require
from electra.method.masking import Vocabulary
from electra.method.objective import Objective
from electra.model.encoder import Encoder, find_layers
from electra.model.forms import choose_layers
from electra.model.initialisation import draw_glorot, init_weights
from electra.model.parts import EmbeddingBlock
from electra.pretraining.networks import build_objective
from electra.pretraining.step import Ranking, Step
from electra.shards.store import Shards
from electra.tokenizing.tokenizer import Tokenizer
from electra.training.config import PretrainConfig
from electra.training.distributed import count_parts, shard
from electra.training.machine import Machine
from electra.training.optimizer import step_seed

if TYPE_CHECKING:
    from electra.checkpoints.saved import SavedNetwork

COUNTED_TOKENS = 1 << 22
"""Tokens of a shard that are counted at a time, for which they become int64."""


def fit_to_shards(config: PretrainConfig, shards: Shards) -> PretrainConfig:
    """Return the settings with the shards' vocabulary size and the frozen generator's size.

    Shards without a held-out part are refused, for next-sentence prediction also those of one
    document; so is a frozen generator of another vocabulary, or of sizes that no setting expresses.
    """
    require(bool(shards.heldout), f"{shards.folder} has no held-out part; prepare it with one")
    require(
        not config.examples.next_sentence or any(len(each.documents) > 1 for each in shards.train),
        f"examples.next_sentence takes the second segment of another document, and {shards.folder} "
        "has one for training; separate documents by blank lines",
    )
    num_rows = config.model.vocab_size if config.train.init_from else 0  # a few may have no token
    num_rows = max(num_rows, shards.tokenizer.vocab_size)
    model = dataclasses.replace(config.model, vocab_size=num_rows)
    config = dataclasses.replace(config, model=model)
    if config.generator.kind != "frozen":
        return config
    from electra.pretraining.init_from import fit_to_frozen

    return fit_to_frozen(config, read_frozen(config, shards))


def require_equal_shares(config: PretrainConfig, machine: Machine) -> None:
    """Refuse processes that would compute unequal numbers of rows, or had to compare them."""
    train, num_ranks = config.train, machine.num_ranks
    number = train.accumulation * num_ranks
    require(
        num_ranks == 1 or not config.method.contrasts,
        f"method.objective {config.method.objective} compares the rows of one process, not of "
        f"{num_ranks}: start one, or set method.contrast_weight=0",
    )
    require(
        num_ranks == 1 or train.batch_size % number == 0,
        f"train.batch_size {train.batch_size} must be a multiple of {number}, which is "
        f"{num_ranks} processes times train.accumulation {train.accumulation}: set "
        f"train.batch_size={-(-train.batch_size // number) * number}",
    )


def read_frozen(config: PretrainConfig, shards: Shards) -> "SavedNetwork":
    """Return the masked language model of the run `generator.frozen_run`."""
    setting, of = "generator.frozen_run", (shards.tokenizer, shards.folder)
    from electra.pretraining.init_from import read_masked_lm

    return read_masked_lm(config.generator.frozen_run, *of, setting)


def build_model(
    config: PretrainConfig,
    tokenizer: Tokenizer,
    machine: Machine,
    frequencies_V: Tensor | None = None,
    embeddings_VE: Tensor | None = None,
) -> Objective:
    """Return the objective with weights initialised from train.seed, on the machine's device.

    The encoder that pre-training returns has the same initial weights for every objective, but that
    a causal one does not begin by looking ahead, and that reference mode draws its projection anew.
    `frequencies_V` are from `count_tokens`, for what `needs_frequencies`; and where
    train.initial_weights is not bert, output biases are set from them if they are given.
    `embeddings_VE` are from `embed_tokens`, for train.initial_weights=cooccurrence; None: random
    ones, for a model that is only timed or loaded.
    """
    train = config.train
    is_plain = train.compile == "yes" or train.sharding != "none"
    architecture = config.model.architecture
    layer = choose_layers(train.layers, architecture, machine.device, is_plain=is_plain)
    vocabulary = Vocabulary(
        torch.from_numpy(tokenizer.starts_word),
        tokenizer.mask_id,
        tokenizer.never_in_text,
        frequencies_V,
    )
    model = build_objective(config, vocabulary, machine.dtype, layer)
    rng, others = (
        torch.Generator().manual_seed(step_seed(train.seed, name, 0))
        for name in ("weights", "other weights")
    )
    std = config.model.initializer_range
    init_weights(model, std, others)
    init_weights(model.kept, std, rng)
    if config.method.mode == "reference":
        draw_glorot(model, others)
    if train.initial_weights != "bert":
        by_embeddings: dict[EmbeddingBlock, dict[nn.Module, Encoder]] = {}
        for part in (model.kept, *model.modules()):
            # The weights of a frozen generator, which may be narrower, replace any start.
            if isinstance(part, Encoder) and part.embeddings.tokens.weight.requires_grad:
                by_embeddings.setdefault(part.embeddings, {}).setdefault(part.layers[0], part)
        for encoders in (list(each.values()) for each in by_embeddings.values()):
            if architecture == "electra":
                from electra.pretraining.neighbours import look_at_neighbours

                look_at_neighbours(encoders, std, rng)
            if embeddings_VE is not None:
                with torch.no_grad():
                    encoders[0].embeddings.tokens.weight.copy_(embeddings_VE)
        if frequencies_V is not None:
            model.set_constant_predictions(frequencies_V)
    tokens = model.kept.embeddings.tokens
    for base in tokens.base:  # so that the encoder begins alike, whatever the sharing
        base.load_state_dict(tokens.state_dict())
    tokens.subtract_base()
    return model.to(machine.device)


def count_tokens(shards: Shards) -> Tensor:
    """Return the number of occurrences of each token (V) in the train part, plus 1."""
    counts = np.ones(shards.tokenizer.vocab_size)
    for corpus in shards.train:
        for start in range(0, len(corpus.tokens), COUNTED_TOKENS):
            part = corpus.tokens[start : start + COUNTED_TOKENS]
            counts += np.bincount(part, minlength=len(counts))
    return torch.from_numpy(counts)


def prepare_step(
    model: Objective, config: PretrainConfig, machine: Machine, attention: Ranking | None = None
) -> Step:
    """Return the fastest form of the step for the machine; arguments as for `AcceleratedStep`.

    With train.sharding, several processes divide the model among them, in place.
    """
    num_parts = count_parts(config.train.sharding, machine)
    if num_parts > 1:
        shard(model, find_layers(model), machine, num_parts)
        return Step(model, config, machine)
    if machine.device.type != "cuda" and config.train.compile != "yes":
        return Step(model, config, machine)
    from electra.pretraining.acceleration import AcceleratedStep

    return AcceleratedStep(model, config, machine, attention)
