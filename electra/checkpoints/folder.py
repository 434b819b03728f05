"""Read a pre-trained encoder from a run folder, a Hugging Face folder or a fine-tuning."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from electra.checkpoints.checkpoint import FILES, find_checkpoint, read_tensors, run_of
from electra.checkpoints.finetuned import Finetuned, is_finetuned, read_finetuned
from electra.checkpoints.names import (
    DISCRIMINATOR_FILE,
    DISCRIMINATOR_HEAD,
    GENERATOR_HEAD,
    config_from_huggingface,
    encoder_from_huggingface,
    head_from_huggingface,
    masked_lm_from_modernbert,
    read_discriminator,
)
from electra.config import EncoderConfig, PretrainConfig
from electra.errors import UserError, require
from electra.files import check_hashes, read_object, sha256_file
from electra.settings import from_dict
from electra.tokenizing.tokenizer import Tokenizer


@dataclass(frozen=True)
class Pretrained:
    """A pre-trained encoder with its tokenizer, the start of a fine-tuning."""

    encoder: EncoderConfig
    """Sizes of the encoder."""
    tokenizer: Tokenizer
    tensors: dict[str, Tensor]
    """The encoder's parameters, under our names."""
    sequence_length: int
    """Longest row of the pre-training, tokens. Embeddings of later positions are not trained."""
    source: str
    """Folder with step, or with seed and task, for manifests."""
    after: str = ""
    """The task that the weights were fine-tuned on since; empty: none."""


def load_pretrained(folder: Path) -> Pretrained:
    """Return the pre-trained encoder in a folder.

    Args:
        folder: One of three kinds. A run folder, or one of its checkpoints: the encoder that the
            pre-training returns, in RTD the discriminator. A Hugging Face folder: the encoder of
            the model. A folder of `electra finetune`: the encoder of the seed with the best
            headline metric on dev.

    Raises:
        UserError: The folder is none of these kinds, or is damaged.
    """
    check_hashes(folder)
    config_path = run_of(folder) / "config.json"
    require(
        config_path.is_file(),
        f"{folder} is neither a run of `electra pretrain` nor a Hugging Face folder nor one of "
        "`electra finetune`: it has no config.json",
    )
    if is_finetuned(folder):
        return _encoder_of(read_finetuned(folder))
    values = read_object(config_path)
    if "model_type" in values:
        return _read_huggingface(folder, values)
    networks = read_networks(folder)
    return Pretrained(
        networks.kept.sizes,
        networks.tokenizer,
        networks.kept.encoders[0],
        networks.config.examples.sequence_length,
        networks.source,
    )


def _read_huggingface(folder: Path, values: Mapping[str, Any]) -> Pretrained:
    """Return the encoder of a Hugging Face folder.

    Args:
        folder: The folder.
        values: Contents of the folder's config.json.
    """
    theirs = read_tensors(folder / "model.safetensors")
    try:
        encoder = config_from_huggingface(values)
        tensors = encoder_from_huggingface(theirs, encoder.num_hidden_layers)
    except UserError as error:
        raise UserError(f"{folder}: {error}") from None
    return Pretrained(
        encoder, Tokenizer.load(folder), tensors, encoder.max_position_embeddings, str(folder)
    )


def _encoder_of(finetuned: Finetuned) -> Pretrained:
    """Return the encoder of a fine-tuned model, to fine-tune on another task."""
    facts = finetuned.facts
    return Pretrained(
        finetuned.encoder,
        finetuned.tokenizer,
        tensors_below("encoder.", finetuned.tensors),
        facts.get("longest_row", finetuned.config.sequence_length),
        f"{finetuned.run} at seed {finetuned.seed}, fine-tuned on {facts['task']}",
        after=facts["task"],
    )


@dataclass(frozen=True)
class SavedNetwork:
    """One network of a checkpoint."""

    predicts: Literal["tokens", "replaced", "energy"]
    """As in `method.objective.Network`."""
    sizes: EncoderConfig
    """Sizes of each encoder."""
    encoders: tuple[dict[str, Tensor], ...]
    """Parameters of each encoder, shared ones included, under the names in `Encoder`."""
    head: dict[str, Tensor]
    """Parameters of the head, under the names in the head's class; empty if there is none."""


@dataclass(frozen=True)
class SavedNetworks:
    """The networks of a run's newest intact checkpoint, or of the one that was named."""

    run: Path
    config: PretrainConfig
    """The settings of the run."""
    tokenizer: Tokenizer
    step: int
    kept: SavedNetwork
    """The network that pre-training returns."""
    generator: SavedNetwork | None
    """The generator; None if the objective has no generator network."""

    @property
    def source(self) -> str:
        """Run and step, for manifests."""
        return f"{self.run} at step {self.step}"

    @property
    def masked_lm(self) -> SavedNetwork | None:
        """The generator, else `kept`, if it is a masked language model; None otherwise."""
        network = self.generator or self.kept
        is_one = network.predicts == "tokens" and len(network.encoders) == 1
        return network if is_one else None


def read_networks(run: Path) -> SavedNetworks:
    """Return the networks of a run's newest intact checkpoint, or of one of its checkpoints.

    Args:
        run: A run folder, or the folder of a checkpoint in it.

    Raises:
        UserError: `run` is not a run folder or has no intact checkpoint, or state.json does not
            describe the networks.
    """
    config = read_run_config(run_of(run))
    step, checkpoint = find_checkpoint(run)
    tensors = read_tensors(checkpoint / FILES[0])
    state = read_object(checkpoint / "state.json")

    def take(places: Mapping[str, str]) -> dict[str, Tensor]:
        return {
            f"{place}.{name}" if place else name: tensor
            for place, prefix in places.items()
            for name, tensor in tensors_below(f"{prefix}.", tensors).items()
        }

    def read(role: str) -> SavedNetwork:
        network = state["networks"][role]
        return SavedNetwork(
            network["predicts"],
            from_dict(EncoderConfig, network["sizes"]),
            tuple(take(places) for places in network["encoders"]),
            take(network["head"]),
        )

    try:
        generator = read("generator") if "generator" in state["networks"] else None
        kept = read(state["kept"])
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{checkpoint / 'state.json'} does not say which networks there are ({error!r}): the "
            "run is of an older version of electra, or the file is damaged"
        ) from None
    words = Tokenizer.load(run_of(run) / "tokenizer")
    return SavedNetworks(run_of(run), config, words, step, kept, generator)


@dataclass(frozen=True)
class Start:
    """The networks in a folder, with which another pre-training can begin."""

    kept: SavedNetwork
    """The encoder that pre-training returns; of a Hugging Face folder the model."""
    generator: SavedNetwork | None
    """The generator or the masked language model, which may be `kept`; None: there is none."""
    tokenizer: Tokenizer
    source: str
    """Folder, with the step of a run."""
    sha256: dict[str, str]
    """The sha256 of each file of weights, by its name in the folder."""


def read_start(folder: Path) -> Start:
    """Return the networks of a run or a Hugging Face folder of ELECTRA.

    Args:
        folder: A run folder, one of its checkpoints, or a Hugging Face folder. Its generator may
            lie in its folder `generator`, as `electra export` and `electra import` write it.

    Raises:
        UserError: The folder is neither, or is damaged.
    """
    check_hashes(folder)
    path = run_of(folder) / "config.json"
    require(
        path.is_file() and not is_finetuned(folder),
        f"{folder} is neither a run of `electra pretrain` nor a Hugging Face folder",
    )
    values = read_object(path)
    if "model_type" not in values:
        networks = read_networks(folder)
        kept, generator = networks.kept, networks.generator
        checkpoint = Path("checkpoints") / f"step-{networks.step:08d}"
        weights = checkpoint / FILES[0]
        digest = read_object(networks.run / checkpoint / "state.json")["sha256"][FILES[0]]
        words, source = networks.tokenizer, networks.source
    else:
        pretrained = _read_huggingface(folder, values)
        weights = Path("model.safetensors")
        digest = sha256_file(folder / weights)
        theirs, architecture = read_tensors(folder / weights), pretrained.encoder.architecture
        judges = _find_head(folder, theirs, architecture, "replaced")
        fills = None if judges else _find_head(folder, theirs, architecture, "tokens")
        predicts: Literal["tokens", "replaced"] = "tokens" if fills else "replaced"
        head = judges or fills or {}
        kept = SavedNetwork(predicts, pretrained.encoder, (pretrained.tensors,), head)
        generator, words, source = None, pretrained.tokenizer, str(folder)
    sha256 = {weights.as_posix(): digest}
    if (folder / DISCRIMINATOR_FILE).is_file():
        sha256[DISCRIMINATOR_FILE] = sha256_file(folder / DISCRIMINATOR_FILE)
    if (folder / "generator" / "config.json").is_file():
        inside = read_start(folder / "generator")
        generator = inside.generator
        sha256 |= {f"generator/{name}": each for name, each in inside.sha256.items()}
    if generator is None and kept.predicts == "tokens":
        generator = kept
    return Start(kept, generator, words, source, sha256)


def find_network(
    folder: Path, predicts: Literal["tokens", "replaced"]
) -> tuple[SavedNetwork, Tokenizer, int]:
    """Return a folder's discriminator or masked language model, its tokenizer and its row length.

    Args:
        folder: A run folder, one of its checkpoints, or a Hugging Face folder of ELECTRA or
            ModernBERT. The masked language model of a Hugging Face folder may lie in its folder
            `generator`, as `electra export` writes it.
        predicts: replaced: the discriminator. tokens: the generator, or the run's own network if
            that is a masked language model.

    Raises:
        UserError: The folder has no such network, or is damaged.
    """
    check_hashes(folder)
    path = run_of(folder) / "config.json"
    require(
        path.is_file() and not is_finetuned(folder),
        f"{folder} is neither a run of `electra pretrain` nor a Hugging Face folder",
    )
    wanted = "discriminator" if predicts == "replaced" else "generator"
    values = read_object(path)
    if "model_type" not in values:
        networks = read_networks(folder)
        found = networks.masked_lm if predicts == "tokens" else networks.kept
        require(
            found is not None and found.predicts == predicts,
            f"{folder} was trained with method.objective={networks.config.method.objective}, which "
            f"has no {wanted}",
        )
        assert found
        return found, networks.tokenizer, networks.config.examples.sequence_length
    inside = folder / "generator"
    if predicts == "tokens" and inside.is_dir():
        return find_network(inside, predicts)
    pretrained = _read_huggingface(folder, values)
    theirs = read_tensors(folder / "model.safetensors")
    head = _find_head(folder, theirs, pretrained.encoder.architecture, predicts)
    require(head is not None, f"{folder} has no {wanted}: its weights lack the output layer")
    assert head is not None
    network = SavedNetwork(predicts, pretrained.encoder, (pretrained.tensors,), head)
    return network, pretrained.tokenizer, pretrained.sequence_length


def _find_head(
    folder: Path,
    theirs: Mapping[str, Tensor],
    architecture: str,
    predicts: Literal["tokens", "replaced"],
) -> dict[str, Tensor] | None:
    """Return the parameters of a Hugging Face folder's head; None if it has no such head.

    Args:
        folder: The folder.
        theirs: Contents of its model.safetensors.
        architecture: That of its encoder.
        predicts: What the head predicts.
    """
    if architecture == "electra":
        names = DISCRIMINATOR_HEAD if predicts == "replaced" else GENERATOR_HEAD
        return head_from_huggingface(theirs, names)
    return (
        read_discriminator(folder) if predicts == "replaced" else masked_lm_from_modernbert(theirs)
    )


def is_huggingface(folder: Path) -> bool:
    """Return whether a folder holds a model of transformers, as `electra import` writes it."""
    path = folder / "config.json"
    return path.is_file() and "model_type" in read_object(path)


def tensors_below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names begin with `prefix`, with the prefix removed."""
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }


def read_run_config(run: Path) -> PretrainConfig:
    """Return the settings of a run folder.

    Raises:
        UserError: `run` is not a run folder, or config.json is damaged.
    """
    path = run / "config.json"
    require(path.is_file(), f"{run} is not a run folder of `electra pretrain`: no config.json")
    values = read_object(path)
    require(
        "train" in values,
        f"{path} is not the config of a run, but of "
        f"{'a fine-tuning' if 'task' in values else 'another model'}",
    )
    try:
        return from_dict(PretrainConfig, values)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is not the config of a run: {error}") from None
