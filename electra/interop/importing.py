"""Other people's weights as Hugging Face folders of ELECTRA or ModernBERT, which every verb reads.

Read are TensorFlow checkpoints of google-research/electra (tensorbundle.py), and Hugging Face
folders of ELECTRA, BERT and ModernBERT: safetensors, whole or in parts, or pytorch_model.bin, of
which only tensors are read. Names are turned into those of transformers' ELECTRA classes; those of
ModernBERT stay.

BERT's encoder is ELECTRA's with embeddings as wide as the hidden states, and its masked language
model is a generator, as ModernBERT's is. Its pooler and its next-sentence head have no place here
and are left over.
"""

import dataclasses
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from electra.checkpoints.checkpoint import read_tensors
from electra.checkpoints.folder import Pretrained, SavedNetwork, tensors_below
from electra.checkpoints.names import (
    DISCRIMINATOR_FILE,
    DISCRIMINATOR_HEAD,
    GENERATOR_HEAD,
    config_from_huggingface,
    encoder_from_huggingface,
    encoder_to_huggingface,
    encoder_to_modernbert,
    head_from_huggingface,
    head_to_huggingface,
    masked_lm_from_modernbert,
    network_head,
    read_discriminator,
)
from electra.config import EncoderConfig
from electra.errors import UserError, require
from electra.files import new_folder, read_object
from electra.interop.export import describe, write_plain
from electra.interop.extend import (
    POSITIONS,
    TOKENS,
    PositionRows,
    extend_positions,
    extend_vocabulary,
    find_pieces,
    rescale_rotary,
)
from electra.interop.tensorflow import find_bundle, read_bundle
from electra.tokenizing.tokenizer import MODEL_MAX_LENGTH, Tokenizer

HEAD_SIZE = 64
"""Width of an attention head in all models of google-research/electra; their checkpoints do not
say it."""
_FROM_BERT = {
    "bert.": "electra.",
    "cls.predictions.transform.": "generator_predictions.",
    "cls.predictions.bias": "generator_lm_head.bias",
}
"""Beginnings of BERT's names, and what takes their place."""
_FROM_TENSORFLOW = {
    "bert/": "electra/",
    "generator/": "electra/",
    "discriminator_predictions/dense_1/": "discriminator_predictions/dense_prediction/",
    "cls/predictions/transform/": "generator_predictions/",
    "cls/predictions/output_bias": "generator_predictions/output_bias",
}
"""Beginnings of TensorFlow's names, in models of ELECTRA and BERT, and what takes their place."""


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
    networks: dict[str, _Network] = {}
    left: list[str] = []
    for path, found in sources.items():
        unused = dict(found.names)
        for role, network in _split(path, found).items():
            if generator and (role == "generator") != (path is generator):
                continue
            require(
                network.sizes.vocab_size == words.vocab_size,
                f"{path} has {network.sizes.vocab_size:,} token embeddings, and its tokenizer "
                f"{words.vocab_size:,} tokens; name the right one by --tokenizer",
            )
            if pieces:
                encoder = extend_vocabulary(network.encoder, pieces)
                network = network.grow(encoder, extend_vocabulary(network.head, pieces))
            if positions and POSITIONS in network.encoder:
                encoder = extend_positions(network.encoder, positions, position_rows)
                network = network.grow(encoder, network.head)
            elif positions:
                longer = rescale_rotary(network.sizes, positions, position_rows)
                network = network._replace(sizes=longer)
            networks[role] = network
            unused = {name: each for name, each in unused.items() if name not in network.used}
        left += [*unused.values(), *found.others]
    total = sum(len(found.tensors) + len(found.others) for found in sources.values())
    require(bool(networks), f"{source}: 0 of {total} tensors can be used: no encoder of ELECTRA")
    with new_folder(out) as written:
        for role, network in networks.items():
            place = written
            if role == "generator":
                place = written / "generator"
                place.mkdir()
            origin = str(generator if generator and role == "generator" else source)
            longest = network.sizes.max_position_embeddings
            facts = extended, longest, origin
            model = describe(network.as_saved(role, extended), *facts)
            write_plain(place, model, positions or MODEL_MAX_LENGTH)
    sizes = {role: network.sizes for role, network in networks.items()}
    num_new = extended.vocab_size - words.vocab_size
    return Imported(sizes, total - len(left), total, left, num_new)


class _Source(NamedTuple):
    tensors: dict[str, Tensor]
    """Under the names of transformers' ELECTRA or ModernBERT classes; those of a generator that
    shares its checkpoint with a discriminator begin with "generator:", and those of a discriminator
    beside ModernBERT with "discriminator:"."""
    names: dict[str, str]
    """Their names in the source."""
    others: list[str]
    """Names of what is no weight."""
    config: dict[str, Any] | None
    """Contents of config.json; None: there is none."""


def _read(path: Path) -> _Source:
    base = find_bundle(path)
    if base:
        theirs, others = read_bundle(base)
        pairs = {name: _from_tensorflow(name) for name in theirs}
        tensors = {
            ours: theirs[name].T.contiguous() if name.endswith("/kernel") else theirs[name]
            for name, ours in pairs.items()
        }
        return _Source(tensors, {ours: name for name, ours in pairs.items()}, others, None)
    config = path / "config.json"
    require(
        config.is_file(),
        f"{path} is neither a TensorFlow checkpoint (NAME.index) nor a Hugging Face folder "
        "(config.json)",
    )
    values = read_object(config)
    kind = values.get("model_type")
    require(
        kind in ("electra", "bert", "modernbert"),
        f"{config}: model_type must be electra, bert or modernbert, not {kind!r}",
    )
    theirs = _read_weights(path)
    rename = _from_modernbert if kind == "modernbert" else _from_huggingface
    pairs = {name: rename(name) for name in theirs}
    if kind == "modernbert":
        judge = read_discriminator(path) or {}
        theirs |= {f"{DISCRIMINATOR_FILE}: {name}": each for name, each in judge.items()}
        pairs |= {f"{DISCRIMINATOR_FILE}: {name}": f"discriminator:{name}" for name in judge}
    if kind == "bert":
        values = {**values, "model_type": "electra", "embedding_size": values.get("hidden_size")}
    floats = {
        ours: theirs[name].float()
        for name, ours in pairs.items()
        if theirs[name].is_floating_point()
    }
    others = [name for name in theirs if not theirs[name].is_floating_point()]
    return _Source(floats, {ours: name for name, ours in pairs.items()}, others, values)


def _read_weights(folder: Path) -> dict[str, Tensor]:
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
            tensors |= read_tensors(folder / part)
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
    return dict(loaded)


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
    """Return the name of a tensor of ELECTRA or BERT as transformers' ELECTRA classes have it."""
    if name.startswith(("embeddings", "encoder.")):  # of a model without a head
        name = f"electra.{name}"
    for theirs, ours in _FROM_BERT.items():
        if name.startswith(theirs):
            name = ours + name.removeprefix(theirs)
    name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
    return re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)


def _from_modernbert(name: str) -> str:
    """Return the name of a tensor as transformers' ModernBERT classes with a head have it."""
    is_bare = name.startswith(("embeddings.", "layers.", "final_norm."))
    return f"model.{name}" if is_bare else name


class _Network(NamedTuple):
    sizes: EncoderConfig
    encoder: dict[str, Tensor]
    """Parameters of the encoder, under our names."""
    head: dict[str, Tensor]
    """Those of its head; empty: there is none."""
    used: set[str]
    """Their names in the source's `tensors`."""

    def grow(self, encoder: dict[str, Tensor], head: dict[str, Tensor]) -> "_Network":
        """Return the network with more tokens or positions."""
        sizes = dataclasses.replace(self.sizes, vocab_size=len(encoder[TOKENS]))
        if POSITIONS in encoder:
            sizes = dataclasses.replace(sizes, max_position_embeddings=len(encoder[POSITIONS]))
        return _Network(sizes, encoder, head, self.used)

    def as_saved(self, role: str, tokenizer: Tokenizer) -> SavedNetwork | Pretrained:
        """Return the network as it would be read from a folder."""
        if role == "encoder":
            longest = self.sizes.max_position_embeddings
            return Pretrained(self.sizes, tokenizer, self.encoder, longest, "")
        predicts: Literal["tokens", "replaced"] = "tokens" if role == "generator" else "replaced"
        return SavedNetwork(predicts, self.sizes, (self.encoder,), self.head)


def _split(path: Path, found: _Source) -> dict[str, _Network]:
    """Return the networks in a source by role."""
    if found.config is not None and found.config.get("model_type") == "modernbert":
        return _split_modernbert(path, found)
    own = {name: each for name, each in found.tensors.items() if not name.startswith("generator:")}
    theirs = {
        name.removeprefix("generator:"): each
        for name, each in found.tensors.items()
        if name.startswith("generator:")
    }
    masked_lm = head_from_huggingface(found.tensors, GENERATOR_HEAD)
    judge = head_from_huggingface(found.tensors, DISCRIMINATOR_HEAD)
    parts: dict[str, tuple[dict[str, Tensor], dict[str, Tensor], Mapping[str, str]]] = {}
    if not (masked_lm and not theirs and _is_generator(found)):
        parts["discriminator" if judge else "encoder"] = own, judge or {}, DISCRIMINATOR_HEAD
    if masked_lm:
        # Embeddings that a checkpoint does not hold twice are shared.
        embeddings = {n: each for n, each in own.items() if n.startswith("electra.embeddings.")}
        parts["generator"] = (embeddings | theirs) if theirs else own, masked_lm, GENERATOR_HEAD
    networks = {}
    for role, (tensors, head, names) in parts.items():
        try:
            sizes = _read_sizes(tensors, found.config)
            encoder = encoder_from_huggingface(tensors, sizes.num_hidden_layers)
        except UserError as error:
            raise UserError(f"{path}, {role}: {error}") from None
        used = {*encoder_to_huggingface(encoder), *head_to_huggingface(head, names)}
        used |= {f"generator:{name}" for name in used} if role == "generator" else set()
        networks[role] = _Network(sizes, encoder, head, used)
    return networks


def _split_modernbert(path: Path, found: _Source) -> dict[str, _Network]:
    """Return the networks in a folder of ModernBERT by role."""
    try:
        sizes = config_from_huggingface(found.config or {})
        encoder = encoder_from_huggingface(found.tensors, sizes.num_hidden_layers)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    theirs = {*encoder_to_modernbert(encoder, "model.")}
    masked_lm = masked_lm_from_modernbert(found.tensors)
    judge = tensors_below("discriminator:", found.tensors)
    used = theirs | {f"discriminator:{name}" for name in judge}
    networks = {"discriminator" if judge else "encoder": _Network(sizes, encoder, judge, used)}
    if masked_lm:
        used = theirs | {*network_head("tokens", masked_lm).tensors}
        networks["generator"] = _Network(sizes, encoder, masked_lm, used)
    return networks


def _is_generator(found: _Source) -> bool:
    """Return whether a masked language model is an ELECTRA generator; BERT's is an encoder, too."""
    return not any(name.startswith(("cls.", "cls/")) for name in found.names.values())


def _read_sizes(tensors: Mapping[str, Tensor], config: Mapping[str, Any] | None) -> EncoderConfig:
    if config is not None:
        return config_from_huggingface(config)
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
