"""Start of a run: settings that match the shards, and initialised networks."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from electra.config import PretrainConfig, UserError, require
from electra.corpus.shards import Shards, fetch_shards
from electra.corpus.tokenizer import Tokenizer
from electra.method.objective import Objective, Parts
from electra.method.registry import build_objective
from electra.model.encoder import Embeddings, Encoder
from electra.model.initialisation import draw_glorot, init_weights, look_at_neighbours
from electra.model.modern_layer import ModernEmbeddings
from electra.pretraining.init_from import size_generator
from electra.pretraining.journal import Show
from electra.runs.checkpoint import load_parameters
from electra.runs.pretrained import SavedNetwork, read_networks
from electra.training.machine import Machine, choose_layers
from electra.training.seeds import step_seed


def fetch_files(several: Iterable[Shards], machine: Machine, show: Show) -> None:
    """Copy shards that lie at URLs to this machine's disk; process 0 shows how far it is."""

    def tell(done: int, total: int) -> None:
        if machine.rank == 0:
            show({"part": "fetching", "done": done, "total": total})

    fetch_shards(several, tell)


def fit_to_shards(config: PretrainConfig, shards: Shards) -> PretrainConfig:
    """Return the settings with the shards' vocabulary size and the frozen generator's size.

    Raises:
        UserError: The shards have no held-out part, or the frozen generator has another vocabulary
            or sizes that the settings cannot express.
    """
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
    generator = size_generator(config.generator, model, sizes, f"generator.frozen_run {run}")
    return dataclasses.replace(config, generator=generator)


def require_equal_shares(config: PretrainConfig, machine: Machine) -> None:
    """Refuse processes that would compute unequal numbers of rows.

    Raises:
        UserError: train.batch_size is not a multiple of the micro-batches of all processes.
    """
    train, num_ranks = config.train, machine.num_ranks
    number = train.accumulation * num_ranks
    require(
        num_ranks == 1 or train.batch_size % number == 0,
        f"train.batch_size {train.batch_size} must be a multiple of {number}, which is "
        f"{num_ranks} processes times train.accumulation {train.accumulation}: set "
        f"train.batch_size={-(-train.batch_size // number) * number}",
    )


def load_frozen(model: Objective, config: PretrainConfig) -> None:
    """Copy the generator's weights from the run `generator.frozen_run`."""
    generator = model.networks["generator"]
    saved = _read_generator(Path(config.generator.frozen_run))
    load_parameters(generator.encoders[0], saved.encoders[0])
    load_parameters(generator.head, saved.head)


def _read_generator(run: Path) -> SavedNetwork:
    """Return the masked language model of another run."""
    found = read_networks(run).masked_lm
    if found is None:
        raise UserError(f"generator.frozen_run {run} has no generator network")
    return found


def build_model(
    config: PretrainConfig,
    tokenizer: Tokenizer,
    machine: Machine,
    frequencies_V: Tensor | None = None,
    embeddings_VE: Tensor | None = None,
) -> Objective:
    """Return the objective with weights initialised from train.seed, on the machine's device.

    The encoder that pre-training returns has the same initial weights for every objective.

    Args:
        config: The settings.
        tokenizer: Special tokens and vocabulary.
        machine: Device, and dtype of activations and matrix products.
        frequencies_V: Token counts from `count_tokens`. The unigram generator needs the counts, and
            train.initial_weights=neighbours and cooccurrence set output biases from the counts, if
            given.
        embeddings_VE: Token embeddings from `embed_tokens` for
            train.initial_weights=cooccurrence; None: random ones, for a model that is only timed or
            loaded.
    """
    train = config.train
    is_plain = train.compile == "yes" or train.sharding != "none"
    architecture = config.model.architecture
    layer = choose_layers(train.layers, architecture, machine.device, is_plain=is_plain)
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
    if config.train.initial_weights != "bert":
        by_embeddings: dict[Embeddings | ModernEmbeddings, list[Encoder]] = {}
        for part in (model.kept, *model.modules()):
            if isinstance(part, Encoder) and part not in by_embeddings.get(part.embeddings, []):
                by_embeddings.setdefault(part.embeddings, []).append(part)
        for encoders in by_embeddings.values():
            if architecture == "electra":
                look_at_neighbours(encoders, std, rng)
            if embeddings_VE is not None:
                with torch.no_grad():
                    encoders[0].embeddings.tokens.weight.copy_(embeddings_VE)
        if frequencies_V is not None:
            model.set_constant_predictions(frequencies_V)
    return model.to(machine.device)


def count_tokens(shards: Shards) -> Tensor:
    """Return the number of occurrences of each token (V) in the train part, plus 1."""
    counts = np.ones(shards.tokenizer.vocab_size)
    for shard in shards.train:
        counts += np.bincount(shard.tokens, minlength=len(counts))
    return torch.from_numpy(counts)
