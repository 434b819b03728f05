"""Continued pre-training: sizes and weights of a run that begins with those of another model.

Only weights are taken (`train.init_from`). Optimizer, schedule and count of steps begin anew. If
the folder has no generator, one is built (`generator.start`): from the discriminator's lower
layers, from another masked language model, or with initial weights. A new generator predicts poorly
at first, and a discriminator that learns from its samples forgets what it knew. So the generator is
trained alone for `generator.warmup_steps` (`Objective.rest_until`).
"""

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from itertools import cycle
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.checkpoints.checkpoint import load_parameters, read_header
from electra.checkpoints.folder import read_pretrained
from electra.checkpoints.saved import SavedModel, SavedNetwork
from electra.errors import UserError, command, require
from electra.method.config import SIZES_OF_GENERATOR, GeneratorConfig
from electra.method.objective import Network, Objective
from electra.model.config import NOT_SIZES, EncoderConfig
from electra.model.heads import GeneratorHead
from electra.objectives.masked_language_modelling import NextSentenceHead
from electra.shards.store import Shards
from electra.tokenizing.tokenizer import Tokenizer
from electra.training.config import PretrainConfig

Origin = Literal["init_from", "folder", "layers", "new"]
"""Where a generator's first weights come from."""
MADE: Collection[Origin | None] = ("layers", "new")
"""Origins of a generator that cannot predict at first."""
MADE_FRACTION = 0.25
"""Share of the discriminator's layers from which a generator is built, if the preset has a narrow
generator. A generator built in this way is as wide as the discriminator."""
NEVER = -1e4
"""Bias of a token that does not exist."""
WARMUP_SHARE = 10
"""train.steps divided by generator.warmup_steps, where a made generator's is not set."""


def fit_to_start(
    config: PretrainConfig, start: SavedModel, given: Collection[str] = ()
) -> PretrainConfig:
    """Return the settings with the sizes of the model that the run begins with.

    Settings that were fitted before come out as they are.

    Args:
        config: The settings, with train.init_from.
        start: The networks in that folder.
        given: Names of settings that the user chose, such as model.hidden_size. All others may
            change.

    Raises:
        UserError: A chosen size contradicts the model's, or the generator's weights cannot be taken
            with these settings.
    """
    weights = config.train.initial_weights
    require(
        not start.kept.sizes.applies_last_twice,
        f"train.init_from {config.train.init_from} is a generator with an enhanced mask decoder: "
        "name the folder of its discriminator, or let `electra import` make an encoder of it",
    )
    require(
        "train.initial_weights" not in given or weights == "bert",
        f"train.initial_weights {weights} is for a run from scratch, and the weights are those of "
        f"train.init_from {config.train.init_from}: leave out the setting",
    )
    model = _fit_encoder(config, start, given)
    generator, origin = _fit_generator(config, model, start, given)
    if generator.warmup_steps is None:
        can_rest = config.method.scheme != "two_stage" and config.method.sharing != "all"
        is_made = origin in MADE and can_rest and not generator.shared_layers
        steps = config.train.steps // WARMUP_SHARE if is_made else 0
        generator = dataclasses.replace(generator, warmup_steps=steps)
    train = dataclasses.replace(config.train, initial_weights="bert")
    return dataclasses.replace(config, model=model, generator=generator, train=train)


def _fit_encoder(
    config: PretrainConfig, start: SavedModel, given: Collection[str]
) -> EncoderConfig:
    """Return the sizes of the encoder in train.init_from, with the dropout of the settings."""
    own, saved = vars(config.model), vars(start.kept.sizes)
    of_new_heads = () if start.kept.predicts else start.kept.sizes.of_heads
    free = {*NOT_SIZES, "vocab_size", "causal", *of_new_heads}
    for name, value in own.items():
        require(
            name in free or f"model.{name}" not in given or value == saved.get(name),
            f"model.{name} {value} contradicts train.init_from {config.train.init_from}, whose "
            f"encoder has {saved.get(name, 'none')}: leave out the setting",
        )
    kept = (*NOT_SIZES, "causal") if "model.causal" in given else NOT_SIZES
    changes = {name: own[name] for name in kept}
    has_one = find_origin(config, start) in ("init_from", "folder")
    for name in of_new_heads:  # which fit a generator that has some
        is_free = has_one and f"model.{name}" not in given
        heads = find_generator(config, start)[0].sizes if is_free else config.model
        changes[name] = vars(heads).get(name, saved[name])
    return dataclasses.replace(start.kept.sizes, **changes)


def _fit_generator(
    config: PretrainConfig, model: EncoderConfig, start: SavedModel, given: Collection[str]
) -> tuple[GeneratorConfig, Origin | None]:
    """Return the generator's settings for an encoder of these sizes, and its weights' origin."""
    generator, origin = config.generator, find_origin(config, start)
    is_chosen = any(f"generator.{name}" in given for name in SIZES_OF_GENERATOR)
    if origin in ("init_from", "folder"):
        saved, source = find_generator(config, start)
        chosen = generator.encoder(model) if is_chosen else None
        generator = size_generator(generator, model, saved.sizes, source)
        require(
            chosen in (None, generator.encoder(model)),
            f"the generator of {source} has {saved.sizes.num_hidden_layers} layers of "
            f"{saved.sizes.hidden_size}, not those of the settings: leave out its sizes",
        )
        _require_shareable(config, start.kept, saved, source)
    elif origin == "layers":
        if not is_chosen and generator.hidden_fraction != 1:
            generator = dataclasses.replace(
                generator, hidden_fraction=1.0, layers_fraction=MADE_FRACTION
            )
        made = generator.encoder(model)
        require(
            made.hidden_size == model.hidden_size
            and made.num_hidden_layers <= model.num_hidden_layers,
            f"generator.start layers takes the lower of {model.num_hidden_layers} layers of "
            f"{model.hidden_size}, not {made.num_hidden_layers} of {made.hidden_size}: set "
            "generator.hidden_fraction=1 generator.layers_fraction=0.25",
        )
    return generator, origin


def require_vocabulary(start: SavedModel, shards: Shards) -> None:
    """Refuse shards with another vocabulary than the model's."""
    prepare_it = command("prepare", "TEXT", "--tokenizer", start.source, "--out", "SHARDS")
    require(
        start.tokenizer.digest == shards.tokenizer.digest,
        f"train.init_from {start.source} has another vocabulary than {shards.folder}: prepare the "
        f"text with its tokenizer, by `{prepare_it}`",
    )


def size_generator(
    generator: GeneratorConfig, model: EncoderConfig, sizes: EncoderConfig, source: str
) -> GeneratorConfig:
    """Return the generator's settings with the sizes of a trained one; refuse other proportions."""
    generator = dataclasses.replace(
        generator, hidden_size=sizes.hidden_size, num_hidden_layers=sizes.num_hidden_layers
    )
    free = {name: getattr(model, name) for name in (*NOT_SIZES, "vocab_size")}
    has, fits = vars(dataclasses.replace(sizes, **free)), vars(generator.encoder(model))
    # Fields of one body alone do not count: the architecture also differs.
    both = [name for name in has if name in fits and has[name] != fits[name]]
    different = [f"{name} {has[name]}, not {fits[name]}" for name in both]
    require(
        not different,
        f"the generator of {source} does not match this model: it has {', '.join(different)}; "
        "choose a model of the same proportions and heads",
    )
    return generator


def fit_to_frozen(config: PretrainConfig, frozen: SavedNetwork) -> PretrainConfig:
    """Return the settings with the sizes of the network of generator.frozen_run."""
    source = f"generator.frozen_run {config.generator.frozen_run}"
    generator = size_generator(config.generator, config.model, frozen.sizes, source)
    return dataclasses.replace(config, generator=generator)


def find_origin(config: PretrainConfig, start: SavedModel) -> Origin | None:
    """Return where the generator's weights come from; None: no generator learns."""
    if not config.method.has_generator or config.generator.kind != "network":
        return None
    chosen = config.generator.start
    if chosen != "auto":
        return chosen
    num_encoders = 2 if config.method.objective == "electric" else 1
    generator = start.generator or start.masked_lm
    has_one = generator is not None and len(generator.encoders) == num_encoders
    return "init_from" if has_one else "layers"


def find_generator(config: PretrainConfig, start: SavedModel) -> tuple[SavedNetwork, str]:
    """Return the trained generator that the run begins with, and its folder."""
    if config.generator.start == "folder":
        folder, of = config.generator.start_folder, (start.tokenizer, start.source)
        return read_masked_lm(folder, *of, "generator.start_folder"), folder
    generator = start.generator or start.masked_lm
    assert generator is not None
    return generator, config.train.init_from


def read_masked_lm(
    folder: str, tokenizer: Tokenizer, owner: Path | str, setting: str
) -> SavedNetwork:
    """Return the masked language model of another folder, of the vocabulary of `owner`."""
    other = read_pretrained(Path(folder))
    if other.masked_lm is None:
        raise UserError(f"{setting} {folder} has no masked language model")
    if other.tokenizer.digest != tokenizer.digest:
        raise UserError(f"{setting} {folder} has another vocabulary than {owner}")
    return other.masked_lm


def _require_shareable(
    config: PretrainConfig, kept: SavedNetwork, generator: SavedNetwork, source: str
) -> None:
    """Refuse to share parameters that differ, since those of one network would be lost."""
    sharing, shared = config.method.sharing, range(config.generator.shared_layers)
    names = {"embeddings": ["embeddings."], "all": [""]}.get(sharing, [])
    if shared:
        names += ["embeddings_project.", "places.", *(f"layers.{each}." for each in shared)]
    ours, theirs = (
        {name: each for name, each in network.encoders[0].items() if name.startswith(tuple(names))}
        for network in (kept, generator)
    )
    require(
        ours.keys() == theirs.keys()
        and all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items()),
        f"the generator of {source} has other weights than the encoder of train.init_from "
        f"{config.train.init_from}, and cannot share them: set method.sharing=gdes or none, and "
        "generator.shared_layers=0",
    )


class Beginning(NamedTuple):
    """The first weights of one network of an objective."""

    origin: str
    """An Origin, or the kind of a generator that does not learn."""
    saved: SavedNetwork | None = None
    """The network whose encoders' weights are taken; None: they are new, or loaded elsewhere."""
    head: Mapping[str, Tensor] = {}
    """Parameters of the head; empty: the head is new, or does not learn."""

    @property
    def head_origin(self) -> str:
        """The origin of the head."""
        return self.origin if self.head or not self.saved else "new"


def find_beginnings(
    model: Objective, config: PretrainConfig, start: SavedModel
) -> dict[str, Beginning]:
    """Return what each network of an objective begins with, by role."""
    found = {}
    for role, network in model.networks.items():
        is_kept = model.kept in network.encoders
        if role == "generator" and config.generator.kind != "network":
            found[role] = Beginning(config.generator.kind)
        elif role == "generator":
            origin = find_origin(config, start)
            assert origin is not None
            if origin in ("init_from", "folder"):
                saved = find_generator(config, start)[0]
                found[role] = Beginning(origin, saved, saved.head)
            else:
                found[role] = Beginning(origin, start.kept if origin == "layers" else None)
        elif is_kept:
            found[role] = Beginning("init_from", start.kept, _find_head(role, network, start))
        else:  # an end beside the network that is kept
            saved = start.networks.get(role, start.kept)
            is_own = saved is not start.kept and _fits(network.head, saved.head)
            found[role] = (
                Beginning("init_from", saved, saved.head)
                if is_own
                else Beginning("layers", start.kept)
            )
    return found


def _find_head(role: str, network: Network, start: SavedModel) -> Mapping[str, Tensor]:
    """Return the parameters that a head on the kept encoder begins with; empty: it is new."""
    # A head fits the encoder whose states it was trained on. That encoder may be saved twice: an
    # imported masked language model is the folder's encoder, and its generator.
    if isinstance(network.head, NextSentenceHead):
        return start.kept.next_sentence
    own, generator = start.networks.get(role), start.generator
    for saved in filter(None, (own, start.kept, generator, *start.networks.values())):
        is_asked = saved.predicts == network.predicts if network.predicts else saved is own
        if is_asked and _fits(network.head, saved.head) and _reads(saved, start.kept):
            return saved.head
    return {}


def _fits(module: nn.Module, tensors: Mapping[str, Tensor]) -> bool:
    """Return whether tensors have the names and shapes of a module's parameters."""
    shapes = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
    return shapes == {name: read_header(tensors, name).shape for name in tensors}


def _reads(network: SavedNetwork, kept: SavedNetwork) -> bool:
    """Return whether a network's encoder is the kept one, weight by weight."""
    (ours,), theirs = kept.encoders, network.encoders
    return network is kept or (
        len(theirs) == 1
        and ours.keys() == theirs[0].keys()
        and all(torch.equal(tensor, theirs[0][name]) for name, tensor in ours.items())
    )


def _find_modules(
    model: Objective, start: SavedModel
) -> Iterator[tuple[str, nn.Module, Mapping[str, Tensor]]]:
    """Yield name, module and first weights of what is in no network, such as a copy head."""
    # They are those of a run with the same objective; else they are empty, and the module is new.
    described = {
        parameter
        for network in model.networks.values()
        for part in (*network.encoders, network.head)
        for parameter in part.parameters()
    }
    for name, module in model.named_children():
        if not described.issuperset(module.parameters()):
            taken = {
                key.removeprefix(f"{name}."): tensor
                for key, tensor in start.modules.items()
                if key.startswith(f"{name}.")
            }
            yield name, module, taken if _fits(module, taken) else {}


def describe_parts(model: Objective, config: PretrainConfig, start: SavedModel) -> dict[str, str]:
    """Return the origin of the first weights of each network and each head, for manifests."""
    parts = dict[str, str]()
    for role, found in find_beginnings(model, config, start).items():
        is_kept = model.kept in model.networks[role].encoders  # with method.sharing=all
        parts[role] = "init_from" if is_kept else found.origin
        parts[f"{role} head"] = found.head_origin
    for name, _, taken in _find_modules(model, start):
        parts[name.replace("_", " ")] = "init_from" if taken else "new"
    return parts


def tell_parts(model: Objective, config: PretrainConfig, start: SavedModel) -> str:
    """Return one line: which networks and heads are old, which are new, which are not used."""
    origins = {
        "init_from": f"from {config.train.init_from}",
        "folder": f"from {config.generator.start_folder}",
        "frozen": f"from {config.generator.frozen_run}",
        "layers": "from the encoder's lower layers",
    }
    by_origin = dict[str, list[str]]()
    for part, origin in describe_parts(model, config, start).items():
        by_origin.setdefault(origins.get(origin, origin), []).append(part)
    told = [f"{', '.join(parts)} ({origin})" for origin, parts in by_origin.items()]
    if unused := _find_unused(model, config, start):
        told.append(f"not used: {', '.join(unused)}")
    return f"first weights: {'; '.join(told)}"


def _find_unused(model: Objective, config: PretrainConfig, start: SavedModel) -> list[str]:
    """Return the saved heads, with the networks below them, that a run does not use."""
    kept, generator = start.kept, start.generator
    heads = {f"head that predicts {kept.predicts}": kept.head, "next_sentence": kept.next_sentence}
    heads |= {"generator": generator.head} if generator else {}
    heads |= {role: saved.head for role, saved in start.networks.items()}
    known = [found.head for found in find_beginnings(model, config, start).values()]
    unused = []
    for name, head in heads.items():
        if head and not any(head is each for each in known):
            known.append(head)
            unused.append(name.replace("_", " "))
    return unused


@torch.no_grad()
def load_start(
    model: Objective, config: PretrainConfig, start: SavedModel, frequencies_V: Tensor
) -> None:
    """Copy the weights that a continued run begins with into the objective.

    Heads that are new begin with the best constant predictions for the token counts of the shards.
    Rows of a padded vocabulary that no token has stay, and are never predicted.
    """
    num_tokens = len(frequencies_V)
    frequencies_V = F.pad(frequencies_V, (0, config.model.vocab_size - num_tokens), value=1)
    model.set_constant_predictions(frequencies_V.to(next(model.parameters()).device))
    for role, found in find_beginnings(model, config, start).items():
        network = model.networks[role]
        saved = found.saved.encoders if found.saved else ()
        for encoder, tensors in zip(network.encoders, cycle(saved), strict=False):
            new = {
                name: each
                for name, each in encoder.named_parameters()
                if name.startswith("position_embeddings.")
            }
            load_parameters(encoder, {**new, **tensors})  # of the same names, with fewer layers
        if found.head:
            load_parameters(network.head, found.head)
        if isinstance(network.head, GeneratorHead):
            network.head.bias[num_tokens:] = NEVER
    for _, module, taken in _find_modules(model, start):
        if taken:
            load_parameters(module, taken)
    model.kept.embeddings.tokens.subtract_base()


def load_network(network: Network, saved: SavedNetwork) -> None:
    """Copy the weights of encoders and head into a network of the same sizes."""
    for encoder, tensors in zip(network.encoders, saved.encoders, strict=True):
        load_parameters(encoder, tensors)
    load_parameters(network.head, saved.head)


def describe_start(model: Objective, config: PretrainConfig, start: SavedModel) -> dict[str, Any]:
    """Return the entry of manifest.json for the weights that the run began with."""
    found: dict[str, Any] = {
        "folder": config.train.init_from,
        "source": start.source,
        "sha256": start.sha256,
        "parts": describe_parts(model, config, start),
    }
    if config.generator.start == "folder":
        found["generator"] = describe_weights(config.generator.start_folder)
    return found


def describe_weights(folder: str) -> dict[str, Any]:
    """Return the entry of manifest.json for the weights in a folder."""
    other = read_pretrained(Path(folder))
    return {"source": other.source, "sha256": other.sha256}
