"""Networks in a folder: sizes, parameters that are read when they are asked for, tokenizer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from electra.checkpoints.checkpoint import FILES, Weights
from electra.checkpoints.parameters import gather, require_layers
from electra.errors import UserError, require, tell_place
from electra.files import check_hashes, read_object, sha256_file
from electra.model.config import EncoderConfig
from electra.model.encoder import Encoder
from electra.tokenizing.tokenizer import Tokenizer

SHORTEST = 3
"""Tokens of the shortest row that says something."""
Predicts = Literal["tokens", "replaced"]
WEIGHTS_FILE = FILES[0]


@dataclass(frozen=True)
class SavedNetwork:
    """One network of a folder."""

    predicts: Literal["tokens", "next", "replaced", "energy", ""]
    """As in `method.objective.Network`; empty: a bare encoder, or one with the head of a task."""
    sizes: EncoderConfig
    """Sizes of each encoder."""
    encoders: tuple[Mapping[str, Tensor], ...]
    """Parameters of each encoder, shared ones included, under the names in `Encoder`."""
    head: Mapping[str, Tensor] = field(default_factory=dict)
    """Parameters of the head, under the names in the head's class; empty if there is none."""
    next_sentence: Mapping[str, Tensor] = field(default_factory=dict)
    """Parameters of a NextSentenceHead on the same states; empty if there is none."""


@dataclass(frozen=True)
class SavedModel:
    """The networks in a folder with their tokenizer: what another training begins with."""

    kept: SavedNetwork
    """The network that pre-training returns; of a fine-tuning, with the head of the task."""
    tokenizer: Tokenizer
    sequence_length: int
    """Longest row of the pre-training, tokens. Embeddings of later positions are not trained."""
    source: str
    """Folder with step, or with seed and task, for manifests."""
    folder: Path = Path()
    """The folder; of a checkpoint, its run."""
    generator: SavedNetwork | None = None
    """The generator beside the network that is kept; None: there is none."""
    networks: Mapping[str, SavedNetwork] = field(default_factory=dict)
    """All networks of a run by role, such as cocolm's corrector, each with its head."""
    modules: Mapping[str, Tensor] = field(default_factory=dict)
    """A run's parameters outside its networks, such as those of the copy head of all_tokens_mlm,
    under their names in the objective."""
    step: int | None = None
    """Step of the checkpoint of a run."""
    after: str = ""
    """The task that the weights were fine-tuned on since; empty: none."""
    files: Mapping[str, Path] = field(default_factory=dict)
    """The files of weights."""

    def __post_init__(self) -> None:
        """Refuse a model that cannot read a text."""
        num_tokens = self.tokenizer.vocab_size
        for network in (self.kept, *([self.generator] if self.generator else [])):
            num_rows = network.sizes.vocab_size
            require(
                num_tokens <= num_rows,
                f"{self.source}: the tokenizer has {num_tokens:,} tokens, and the embeddings "
                f"{num_rows:,} rows: every token needs one",
            )
        require(
            self.sequence_length >= SHORTEST,
            f"{self.source}: a row of {self.sequence_length} tokens is too short; it must hold "
            f"[CLS], [SEP] and a token of the text",
        )

    @property
    def encoder(self) -> EncoderConfig:
        """Sizes of the encoder that is kept."""
        return self.kept.sizes

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """Parameters of the encoder that is kept."""
        return self.kept.encoders[0]

    @property
    def masked_lm(self) -> SavedNetwork | None:
        """The generator, else `kept`, if it is a masked language model; None otherwise."""
        network = self.generator or self.kept
        is_one = network.predicts == "tokens" and len(network.encoders) == 1
        return network if is_one else None

    @property
    def sha256(self) -> dict[str, str]:
        """The sha256 of each file of weights, by its name in the folder."""
        return {name: sha256_file(path) for name, path in self.files.items()}

    def network(self, predicts: Predicts) -> SavedNetwork:
        """Return the network that predicts "tokens" or "replaced"; refuse a model without it."""
        found = self.masked_lm if predicts == "tokens" else self.kept
        if found is None or found.predicts != predicts:
            wanted = "discriminator" if predicts == "replaced" else "generator"
            has = self.kept.predicts or "nothing: the weights lack an output layer"
            raise UserError(f"{self.source} has no {wanted}; its network predicts {has}")
        return found


def fit_encoder(tensors: Weights, sizes: EncoderConfig, source: str) -> Weights:
    """Return the parameters of an encoder of these sizes, under our names, if they are such."""
    with tell_place(source):
        require_layers(tensors, "layers.", sizes)
        return gather(partial(Encoder, sizes), tensors)


def is_finetuned(folder: Path) -> bool:
    """Return whether a folder was written by `electra finetune`, finished or not."""
    return "task" in read_config_file(folder)


def is_huggingface(folder: Path) -> bool:
    """Return whether a folder holds a model of transformers, as `electra import` writes it."""
    return "model_type" in read_config_file(folder)


def read_config_file(folder: Path) -> dict[str, Any]:
    """Return the content of config.json; empty without one. Damage is found by its hash, if any."""
    path = folder / "config.json"
    if not path.is_file():
        return {}
    try:
        return read_object(path)
    except UserError:
        check_hashes(folder)
        raise
