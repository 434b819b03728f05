"""Other people's weights as Hugging Face folders of ELECTRA or ModernBERT, which every verb reads.

Read are TensorFlow checkpoints of google-research/electra (tensorflow.py), and Hugging Face folders
of ELECTRA, BERT and ModernBERT: safetensors, whole or in parts, or pytorch_model.bin, of which only
tensors are read. BERT's pooler and its next-sentence head have no place here and are left over.

More tokens and longer rows can be made. New rows of the embeddings and of the generator's output
bias are the means of the pieces that a new token replaces, so that a text in new tokens means at
first about what it meant in old ones (Hewitt 2021, "Initializing new word embeddings", uses the
mean of all tokens). New positions repeat the old ones (as in Longformer: Beltagy et al. 2020,
section 5) or lie between them; rotary ones turn more slowly.
"""

import dataclasses
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from electra.checkpoints.checkpoint import Weights, read_tensors
from electra.checkpoints.folder import TOKENS, SavedNetwork, below, find_networks
from electra.checkpoints.names import ARCHITECTURES, DISCRIMINATOR_FILE, ELECTRA, Architecture
from electra.config import EncoderConfig
from electra.errors import UserError, require
from electra.files import new_folder, read_object
from electra.interop.export import describe, write_plain
from electra.interop.tensorflow import find_bundle, read_bundle
from electra.tokenizing.tokenizer import MODEL_MAX_LENGTH, Tokenizer

HEAD_SIZE = 64
"""Width of an attention head in all models of google-research/electra; their checkpoints do not
say it."""
_FROM_TENSORFLOW = {
    "bert/": "electra/",
    "generator/": "electra/",
    "discriminator_predictions/dense_1/": "discriminator_predictions/dense_prediction/",
    "cls/predictions/transform/": "generator_predictions/",
    "cls/predictions/output_bias": "generator_predictions/output_bias",
}
"""Beginnings of TensorFlow's names, in models of ELECTRA and BERT, and what takes their place."""
GENERATOR, JUDGE = "generator:", "discriminator:"
"""Before the names of a generator that shares its checkpoint with a discriminator, and of a
discriminator's head in a file of its own."""
POSITIONS = "embeddings.positions.weight"
OUTPUT_BIAS = "bias"
"""Names in `Encoder` and `GeneratorHead`."""

PositionRows = Literal["interpolate", "repeat"]
"""interpolate: a row of old length takes as many steps through the old positions as the new length
has. repeat: the old positions one after the other, again and again."""


class Imported(NamedTuple):
    """What was found in a source."""

    networks: dict[str, EncoderConfig]
    """Sizes of the networks that were written: "discriminator", "encoder" (one without its head)
    and "generator"."""
    num_loaded: int
    num_tensors: int
    left_over: list[str]
    """Names of tensors that were not used, as in the source."""
    num_new: int
    """Tokens that `extend` has and the source has not."""


def import_model(
    source: Path,
    out: Path,
    tokenizer: Path | None = None,
    generator: Path | None = None,
    extend: Path | None = None,
    positions: int = 0,
    position_rows: PositionRows = "interpolate",
) -> Imported:
    """Write the networks of a source as `electra export` writes those of a run.

    Args:
        source: A TensorFlow checkpoint, its folder, or a Hugging Face folder.
        out: The folder to write; must not exist.
        tokenizer: Folder or file of the tokenizer; None: that of the source.
        generator: Another source, of the generator.
        extend: Tokenizer with all tokens of the source's and more. The new tokens begin with the
            means of the pieces that they replace.
        positions: Longest row, tokens; 0: that of the source.
        position_rows: How the embeddings of more positions are made.

    Raises:
        UserError: A source is damaged, or is no model that can be read, or `out` exists.
    """
    sources = {path: _read(path) for path in (source, generator) if path}
    folder = source if source.is_dir() else source.parent
    words = Tokenizer.load(tokenizer or folder)
    extended = Tokenizer.load(extend) if extend else words
    pieces = find_pieces(words, extended) if extend else None
    networks: dict[str, SavedNetwork] = {}
    origins: dict[str, Path] = {}
    for path, found in sources.items():
        for role, network in _find_roles(path, found).items():
            if generator and (role == "generator") != (path is generator):
                continue
            require(
                network.sizes.vocab_size == words.vocab_size,
                f"{path} has {network.sizes.vocab_size:,} token embeddings, and its tokenizer "
                f"{words.vocab_size:,} tokens; name the right one by --tokenizer",
            )
            network = _extend_vocabulary(network, pieces) if pieces else network
            if positions:
                network = _extend_positions(network, positions, position_rows)
            networks[role], origins[role] = network, path
    total = sum(len(found.tensors) + len(found.others) for found in sources.values())
    require(bool(networks), f"{source}: 0 of {total} tensors can be used: no encoder of ELECTRA")
    with new_folder(out) as written:
        for role, network in networks.items():
            place = written / ("generator" if role == "generator" else "")
            place.mkdir(exist_ok=True)
            longest = network.sizes.max_position_embeddings
            outgoing = describe(network, extended, longest, str(origins[role]))
            write_plain(place, outgoing, positions or MODEL_MAX_LENGTH)
    left = [name for found in sources.values() for name in found.list_left()]
    sizes = {role: network.sizes for role, network in networks.items()}
    num_new = extended.vocab_size - words.vocab_size
    return Imported(sizes, total - len(left), total, left, num_new)


class _Source(NamedTuple):
    """The weights of a source."""

    architecture: Architecture
    tensors: dict[str, Tensor]
    """Under the names of the architecture; those of another network begin with GENERATOR, JUDGE."""
    names: dict[str, str]
    """Their names in the source."""
    others: list[str]
    """Names of what is no weight."""
    config: dict[str, Any] | None
    """Contents of config.json; None: there is none."""
    used: set[str]
    """Names of the tensors that were read."""

    def read(self, name: str) -> Tensor:
        """Return a tensor, and note that it was used."""
        self.used.add(name)
        return self.tensors[name]

    def list_left(self) -> list[str]:
        """Return the source's names of the tensors that were not read."""
        return [*(self.names[name] for name in self.names if name not in self.used), *self.others]


def _read(path: Path) -> _Source:
    base = find_bundle(path)
    if base:
        theirs, others = read_bundle(base)
        names = {_from_tensorflow(name): name for name in theirs}
        tensors = {
            ours: theirs[name].T.contiguous() if name.endswith("/kernel") else theirs[name]
            for ours, name in names.items()
        }
        return _Source(ELECTRA, tensors, names, others, None, set())
    config = path / "config.json"
    require(
        config.is_file(),
        f"{path} is neither a TensorFlow checkpoint (NAME.index) nor a Hugging Face folder "
        "(config.json)",
    )
    values = read_object(config)
    kind = values.get("model_type")
    require(
        kind in ARCHITECTURES,
        f"{config}: model_type must be electra, bert or modernbert, not {kind!r}",
    )
    weights = dict(_read_weights(path))
    names = {_from_huggingface(name): name for name in weights}
    if (path / DISCRIMINATOR_FILE).is_file():
        for name, each in read_tensors(path / DISCRIMINATOR_FILE).items():
            names[JUDGE + name] = f"{DISCRIMINATOR_FILE}: {name}"
            weights[names[JUDGE + name]] = each
    others = [name for name, each in weights.items() if not each.is_floating_point()]
    names = {ours: name for ours, name in names.items() if name not in others}
    tensors = {ours: weights[name].float() for ours, name in names.items()}
    return _Source(ARCHITECTURES[str(kind)], tensors, names, others, values, set())


def _read_weights(folder: Path) -> Mapping[str, Tensor]:
    """Return the tensors of a Hugging Face folder under the names there."""
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").is_file():
        return read_tensors(folder / "model.safetensors")
    if index.is_file():
        places = read_object(index).get("weight_map")
        require(isinstance(places, dict), f"{index} has no weight_map")
        assert isinstance(places, dict)
        tensors: dict[str, Tensor] = {}
        for part in sorted({Path(str(name)).name for name in places.values()}):
            tensors.update(read_tensors(folder / part))
        lacking = sorted(set(places) - set(tensors))
        require(
            not lacking, f"{folder} lacks {len(lacking)} tensors of its index, as {lacking[:1]}"
        )
        return tensors
    path = folder / "pytorch_model.bin"
    require(
        path.is_file(),
        f"{folder} has no weights: none of model.safetensors, {index.name} and {path.name}",
    )
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)  # runs no code of the file
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise UserError(f"{path} does not hold tensors alone, or is damaged: {reason}") from None
    require(
        isinstance(loaded, Mapping) and all(isinstance(each, Tensor) for each in loaded.values()),
        f"{path} does not hold tensors by name",
    )
    return loaded


def _from_tensorflow(name: str) -> str:
    """Return a variable's name as transformers has it."""
    is_generators = name.startswith("generator/")
    for theirs, ours in _FROM_TENSORFLOW.items():
        if name.startswith(theirs):
            name = ours + name.removeprefix(theirs)
    name = re.sub(r"/layer_(\d+)/", r"/layer/\1/", name)
    if name == "generator_predictions/output_bias":
        return "generator_lm_head.bias"
    name = re.sub("/(kernel|gamma)$", "/weight", name)
    name = re.sub("/beta$", "/bias", name)
    name = re.sub("_embeddings$", "_embeddings/weight", name)
    return ("generator:" if is_generators else "") + name.replace("/", ".")


def _from_huggingface(name: str) -> str:
    """Return a tensor's name without what older versions of transformers wrote."""
    name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
    return re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)


def _find_roles(path: Path, found: _Source) -> dict[str, SavedNetwork]:
    """Return the networks in a source by role: discriminator, encoder without a head, generator."""
    inner = below(GENERATOR, Weights(found.tensors, found.read))
    own = Weights([name for name in found.tensors if ":" not in name], found.read)
    judge = below(JUDGE, Weights(found.tensors, found.read))
    architecture = found.architecture
    try:
        networks = find_networks(architecture, _read_sizes(own, found.config), own, judge)
        if inner:  # embeddings that a checkpoint does not hold twice are shared
            shared = [name for name in own if not name.startswith("electra.encoder.")]
            parts = {**dict.fromkeys(shared, own), **dict.fromkeys(inner, inner)}
            both = Weights(parts, lambda name: parts[name][name])
            sizes = _read_sizes(both, found.config)
            networks["tokens"] = find_networks(architecture, sizes, both)["tokens"]
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    # BERT's masked language model, and ModernBERT's, is an encoder as well.
    is_generator = architecture is ELECTRA and not any(
        name.startswith("cls/") for name in found.names.values()
    )
    roles = {}
    if "replaced" in networks:
        roles["discriminator"] = networks["replaced"]
    elif inner or "tokens" not in networks or not is_generator:
        sizes = _read_sizes(own, found.config)
        roles["encoder"] = SavedNetwork("", sizes, (architecture.read_encoder(own, sizes),))
    if "tokens" in networks:
        roles["generator"] = networks["tokens"]
    return roles


def _read_sizes(tensors: Mapping[str, Tensor], config: Mapping[str, Any] | None) -> EncoderConfig:
    """Return an encoder's sizes, from config.json or else from the shapes of ELECTRA's tensors."""
    if config is not None:
        return ARCHITECTURES[config["model_type"]].read_config(config)
    layers = {
        int(name.split(".")[3]) for name in tensors if name.startswith("electra.encoder.layer.")
    }

    def shape(name: str) -> torch.Size:
        if name not in tensors:
            raise UserError(f"the weights lack {name}; they are not an ELECTRA encoder")
        return tensors[name].shape

    vocab_size, embedding_size = shape("electra.embeddings.word_embeddings.weight")
    inner_size, hidden_size = shape("electra.encoder.layer.0.intermediate.dense.weight")
    require(
        hidden_size % HEAD_SIZE == 0,
        f"hidden states of {hidden_size} are no whole number of heads of {HEAD_SIZE}",
    )
    return EncoderConfig(
        vocab_size=vocab_size,
        embedding_size=embedding_size,
        hidden_size=hidden_size,
        num_hidden_layers=len(layers),
        num_attention_heads=hidden_size // HEAD_SIZE,
        intermediate_size=inner_size,
        max_position_embeddings=shape("electra.embeddings.position_embeddings.weight")[0],
        type_vocab_size=shape("electra.embeddings.token_type_embeddings.weight")[0],
    )


def find_pieces(old: Tokenizer, new: Tokenizer) -> list[list[int]]:
    """Return the old ids whose mean each new token begins with, in the order of the new ids.

    An old token has its own id. A new one has those of the pieces that stood in its place
    (`Tokenizer.spell`).

    Raises:
        UserError: The new vocabulary lacks an old token, is of another kind, or normalises text in
            another way.
    """
    for name in ("kind", "lowercase", "strip_accents"):
        ours, theirs = getattr(old, name), getattr(new, name)
        require(
            ours == theirs,
            f"the extended tokenizer has {name} {theirs}, the model's {ours}: a text would have "
            "other tokens in both",
        )
    lacking = sorted({*old.tokens_by_id} - {*new.tokens_by_id})
    require(
        not lacking,
        f"the extended tokenizer lacks {len(lacking):,} tokens of the model's, as {lacking[:1]}; "
        "`electra tokenizer --extend` keeps all of them",
    )
    ids = {token: index for index, token in enumerate(old.tokens_by_id)}
    return [[ids[token]] if token in ids else old.spell(token) for token in new.tokens_by_id]


def _extend_vocabulary(network: SavedNetwork, pieces: list[list[int]]) -> SavedNetwork:
    """Return a network with a row for each token: the mean of its pieces, from `find_pieces`."""

    def extend(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        extended = dict(tensors)
        for name in {TOKENS, OUTPUT_BIAS} & tensors.keys():
            old = tensors[name]
            rows = [old[each[0]] if len(each) == 1 else old[each].mean(dim=0) for each in pieces]
            extended[name] = torch.stack(rows)
        return extended

    return SavedNetwork(
        network.predicts,
        dataclasses.replace(network.sizes, vocab_size=len(pieces)),
        (extend(network.encoders[0]),),
        extend(network.head),
    )


def _extend_positions(network: SavedNetwork, number: int, how: PositionRows) -> SavedNetwork:
    """Return a network that reads longer rows.

    Rotary positions turn more slowly. The base of the global layers grows with the length to the
    power d / (d - 2), where d is the width of a head: the slowest pair of dimensions then turns as
    far over the longest row as before, and the fastest one as far over one token. Windows and base
    of local layers stay.

    Raises:
        UserError: There are more positions already, or rotary ones were to be repeated.

    Source: "NTK-aware" interpolation, section 3.1 of Peng et al. 2023 (YaRN).
    """
    sizes, tensors = network.sizes, dict(network.encoders[0])
    most = sizes.max_position_embeddings
    is_learned = POSITIONS in tensors
    require(
        is_learned or how == "interpolate",
        f"--position-rows {how} is for learned positions; rotary ones are rescaled: leave it out",
    )
    require(
        number >= most,
        f"--positions {number} is less than the {most} of the model; more can be made, not fewer",
    )
    longer = dataclasses.replace(sizes, max_position_embeddings=number)
    if is_learned:
        old = tensors[POSITIONS]
        if how == "repeat":
            rows = old[torch.arange(number) % len(old)]
        else:
            rows = F.interpolate(old.T[None], number, mode="linear", align_corners=True)[0].T
        tensors[POSITIONS] = rows.contiguous()
    else:
        factor = (number / most) ** (sizes.head_size / (sizes.head_size - 2))
        longer = dataclasses.replace(longer, global_rope_theta=sizes.global_rope_theta * factor)
    return dataclasses.replace(network, sizes=longer, encoders=(tensors,))
