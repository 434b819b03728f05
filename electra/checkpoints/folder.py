"""The one reader of model folders: a run, a checkpoint, a Hugging Face folder, a fine-tuning.

Names and sizes are read from headers and JSON files, each tensor when it is used.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from electra.assignments import from_dict
from electra.checkpoints.checkpoint import (
    FILES,
    STATE,
    Weights,
    find_checkpoint,
    read_tensors,
    run_of,
)
from electra.checkpoints.manifest import find_best
from electra.checkpoints.names import (
    ARCHITECTURES,
    DISCRIMINATOR_FILE,
    NEXT_SENTENCE_FILE,
    Architecture,
    gather,
    require_layers,
)
from electra.checkpoints.records import Begun, read_results
from electra.errors import UserError, command, refuse_unlike, require, tell_place
from electra.files import check_hashes, named, read_object, sha256_file
from electra.model.config import EncoderConfig
from electra.model.encoder import Encoder
from electra.model.heads import NextSentenceHead
from electra.tasks.config import FinetuneConfig
from electra.tokenizing.tokenizer import Tokenizer
from electra.training.config import PretrainConfig

Predicts = Literal["tokens", "replaced"]
TOKENS = "embeddings.tokens.weight"
"""Name of an encoder's token embeddings."""
WEIGHTS_FILE = FILES[0]
SHORTEST = 3
"""Tokens of the shortest row that says something."""


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


@dataclass(frozen=True)
class Finetuned(SavedModel):
    """The model of one seed of a finished fine-tuning."""

    seed: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    """"task", "family", "columns", and the arguments of `Family.from_facts`."""
    config: FinetuneConfig = field(default_factory=FinetuneConfig)
    """The resolved settings of the fine-tuning."""


def read_model(folder: Path, seed: int | None = None) -> SavedModel:
    """Return the model in a folder of any kind; of a fine-tuning that of a seed, or of the best."""
    return read_finetuned(folder, seed) if is_finetuned(folder) else read_pretrained(folder)


def read_sizes(folder: Path) -> EncoderConfig:
    """Return the sizes of the encoder in a folder, as `read_model` has; no weights are read."""
    folder = named(folder)
    if is_finetuned(folder):
        return find_seed(folder).sizes
    if is_huggingface(folder):
        return _read_sizes(folder)[1]
    return read_run_config(run_of(folder)).model


def read_pretrained(folder: Path) -> SavedModel:
    """Return the pre-trained networks in a folder: the newest intact ones of a run.

    Of a Hugging Face folder the generator may lie in its folder `generator`, as `electra export`
    and `electra import` write it.
    """
    folder = named(folder)
    check_hashes(folder)
    require(
        (run_of(folder) / "config.json").is_file() and not is_finetuned(folder),
        f"{folder} is neither a run of `electra pretrain` nor a Hugging Face folder",
    )
    return _read_huggingface(folder) if is_huggingface(folder) else _read_run(folder)


def is_finetuned(folder: Path) -> bool:
    """Return whether a folder was written by `electra finetune`, finished or not."""
    return "task" in _read_config(folder)


def is_huggingface(folder: Path) -> bool:
    """Return whether a folder holds a model of transformers, as `electra import` writes it."""
    return "model_type" in _read_config(folder)


def _read_config(folder: Path) -> dict[str, Any]:
    """Return what config.json says; empty without one. Damage is told by its hash, if any."""
    path = folder / "config.json"
    if not path.is_file():
        return {}
    try:
        return read_object(path)
    except UserError:
        check_hashes(folder)
        raise


def read_run_config(run: Path) -> PretrainConfig:
    """Return the settings of a run folder."""
    path = run / "config.json"
    require(path.is_file(), f"{run} is not a run folder of `electra pretrain`: no config.json")
    values = read_object(path)
    require(
        "train" in values,
        f"{path} is not the config of a run, but of "
        f"{'a fine-tuning' if 'task' in values else 'another model'}",
    )
    with refuse_unlike(f"{path} is not the config of a run"):
        return from_dict(PretrainConfig, values)


class SavedSeed(NamedTuple):
    """Where the model of one seed of a fine-tuning lies, and what its JSON files say."""

    run: Path
    """The fine-tuning; of a grid, its best."""
    folder: Path
    seed: int
    sizes: EncoderConfig
    config: FinetuneConfig
    facts: dict[str, Any]
    """As in `Finetuned`."""


def find_seed(run: Path, seed: int | None = None, *, verify: bool = False) -> SavedSeed:
    """Return what describes the model of one seed of a finished fine-tuning; no weights are read.

    Without a seed, it is the one with the best headline metric on dev, among all seeds and the
    replacements of collapsed seeds. With `verify` the model's files, weights included, are compared
    with their hashes first.
    """
    require(
        is_finetuned(run) and (run / "results.json").is_file(),
        f"{run} is not a finished folder of `electra finetune`: it must have a config.json with a "
        "task, and a results.json",
    )
    run = find_best(run)
    check_hashes(run)
    results = read_results(run, "metric")
    with refuse_unlike(f"{run} is not a folder that `electra finetune` wrote"):
        seeds, columns = results["seeds"] | results.get("replacements", {}), results["columns"]
        headlines = {int(n): each["scores"][results["metric"]] for n, each in seeds.items()}
        config = from_dict(FinetuneConfig, read_object(run / "config.json", Begun)["config"])
    if seed is None:
        seed = max(headlines, key=lambda number: headlines[number])
    require(
        seed in headlines, f"{run} has no seed {seed}; choose from {', '.join(map(str, headlines))}"
    )
    folder = run / f"seed-{seed}" / "model"
    if verify:
        check_hashes(folder)
    facts = read_object(folder / "config.json")
    with refuse_unlike(f"{folder / 'config.json'} is not the config of a fine-tuned model"):
        sizes, task = from_dict(EncoderConfig, facts["encoder"]), str(facts["task"])
    facts |= {"task": task, "columns": columns, "separator": config.own.between}
    return SavedSeed(run, folder, seed, sizes, config, facts)


def read_finetuned(run: Path, seed: int | None = None) -> Finetuned:
    """Return the model of one seed; arguments as for `find_seed`."""
    found = find_seed(named(run), seed, verify=True)
    run, folder, task = found.run, found.folder, found.facts["task"]
    files = {WEIGHTS_FILE: folder / WEIGHTS_FILE}
    tensors = read_tensors(files[WEIGHTS_FILE])
    encoder = _fit(tensors.below("encoder."), found.sizes, str(folder))
    return Finetuned(
        SavedNetwork("", found.sizes, (encoder,), tensors.below("head.")),
        Tokenizer.load(folder / "tokenizer"),
        found.facts.get("longest_row", found.config.sequence_length),
        f"{run} at seed {found.seed}, fine-tuned on {task}",
        folder=run,
        after=task,
        files=files,
        seed=found.seed,
        facts=found.facts,
        config=found.config,
    )


def _fit(tensors: Weights, sizes: EncoderConfig, source: str) -> Weights:
    """Return the parameters of an encoder of these sizes, under our names, if they are such."""
    with tell_place(source):
        require_layers(tensors, "layers.", sizes)
        return gather(partial(Encoder, sizes), tensors)


UNTIED = ("generator_lm_head.weight", "cls.predictions.decoder.weight", "decoder.weight")
"""Names in transformers of a softmax's matrix, which here are the token embeddings."""


def find_networks(
    architecture: Architecture, sizes: EncoderConfig, theirs: Weights, judge: Weights | None = None
) -> dict[str, SavedNetwork]:
    """Return the networks that transformers' tensors hold, by what they predict.

    These are "replaced" and "tokens" if there are such heads, of a causal encoder "next", "" if
    there is none. `judge` is the discriminator's head, if it lies in a file of its own.
    """
    encoders = (architecture.read_encoder(theirs, sizes),)
    judging = (
        architecture.read_head("PreTraining", theirs, sizes)
        if judge is None
        else architecture.read_beside(judge, sizes)
    )
    found: dict[str, SavedNetwork] = {}
    if judging:
        found["replaced"] = SavedNetwork("replaced", sizes, encoders, judging)
    head = architecture.read_head("CausalLM" if sizes.causal else "MaskedLM", theirs, sizes)
    table = encoders[0]["embeddings.tokens.weight"]
    if head and any(n in theirs and not torch.equal(theirs[n], table) for n in UNTIED):
        warnings.warn("the softmax has a matrix of its own, and is left out", stacklevel=2)
    elif head and sizes.causal:
        found["next"] = SavedNetwork("next", sizes, encoders, head)
    elif head:
        found["tokens"] = SavedNetwork("tokens", sizes, encoders, head)
    return found or {"": SavedNetwork("", sizes, encoders)}


def _read_huggingface(folder: Path) -> SavedModel:
    """Return the networks of a Hugging Face folder."""
    architecture, sizes = _read_sizes(folder)
    names = (WEIGHTS_FILE, DISCRIMINATOR_FILE, NEXT_SENTENCE_FILE)
    files = {name: folder / name for name in names if (folder / name).is_file()}
    require(
        WEIGHTS_FILE in files,
        f"{folder} has no {WEIGHTS_FILE}; `{command('import', folder, '--out', 'start')}` turns "
        "pytorch_model.bin, or weights in parts, into a folder that has it",
    )
    found = {name: read_tensors(path) for name, path in files.items()}
    with tell_place(folder):
        judge = found.get(DISCRIMINATOR_FILE)
        networks = find_networks(architecture, sizes, found[WEIGHTS_FILE], judge)
        kept = next(iter(networks.values()))
        if kept.predicts == "replaced" and _read_config(folder).get("predicts") == "energy":
            kept = replace(kept, predicts="energy")  # of Electric
        if pooler := found.get(NEXT_SENTENCE_FILE):
            kept = replace(kept, next_sentence=gather(partial(NextSentenceHead, sizes), pooler))
    generator = networks.get("tokens") if kept.predicts == "replaced" else None
    if (folder / "generator" / "config.json").is_file():
        check_hashes(folder / "generator")
        inside = _read_huggingface(folder / "generator")
        generator = inside.masked_lm
        files |= {f"generator/{name}": path for name, path in inside.files.items()}
    return SavedModel(
        kept,
        Tokenizer.load(folder),
        read_length(folder, sizes),
        str(folder),
        folder=folder,
        generator=generator,
        files=files,
    )


def _read_sizes(folder: Path) -> tuple[Architecture, EncoderConfig]:
    """Return the names and the sizes that config.json of a Hugging Face folder says."""
    values = read_object(folder / "config.json")
    kind = values.get("model_type")
    readable = [each for each in ARCHITECTURES if each != "bert"]
    require(
        str(kind) in readable,
        f"{folder}: model_type must be {' or '.join(readable)}, not {kind!r}"
        + f"; `{command('import', folder, '--out', 'start')}` makes it electra" * (kind == "bert"),
    )
    with tell_place(folder):
        return ARCHITECTURES[str(kind)], ARCHITECTURES[str(kind)].read_config(values)


def read_length(folder: Path, sizes: EncoderConfig) -> int:
    """Return the longest row of a Hugging Face folder, tokens: trained, and with positions.

    It is `sequence_length` of config.json, which exports have, else `model_max_length` of
    tokenizer_config.json; at most, and if neither says anything, the number of positions.
    """
    told = read_object(folder / "config.json").get("sequence_length")
    if told is None and (folder / "tokenizer_config.json").is_file():
        told = read_object(folder / "tokenizer_config.json").get("model_max_length")
    most = sizes.max_position_embeddings
    return int(min(told, most)) if isinstance(told, int | float) and told >= 1 else most


def _read_run(folder: Path) -> SavedModel:
    """Return the networks of a run's newest intact checkpoint, or of the one that is named."""
    run = run_of(folder)
    config = read_run_config(run)
    step, checkpoint = find_checkpoint(folder)
    tensors = read_tensors(checkpoint / FILES[0])
    state, taken_names = read_object(checkpoint / STATE), set[str]()

    def take(places: Mapping[str, str], added: str = "") -> Weights:
        names = {
            f"{place}.{name}" if place else name: f"{prefix}.{name}"
            for place, prefix in places.items()
            for name in tensors.below(f"{prefix}.")
        }
        taken_names.update((*names.values(), added))
        taken = tensors.rename(names)

        def load(name: str) -> Tensor:
            tensor = taken.read(name)
            return tensor + tensors[added] if added and name == TOKENS else tensor

        return Weights(taken.headers, load)

    def read(role: str) -> SavedNetwork:
        network = state["networks"][role]
        sizes, added = from_dict(EncoderConfig, network["sizes"]), network.get("added", "")
        encoders = [_fit(take(each, added), sizes, role) for each in network["encoders"]]
        return SavedNetwork(network["predicts"], sizes, tuple(encoders), take(network["head"]))

    with refuse_unlike(
        f"{checkpoint / STATE} does not say which networks there are: the run is of an older "
        "version of electra, or the file is damaged"
    ):
        networks = {role: read(role) for role in state["networks"]}
        kept = networks[state["kept"]]
        if "next_sentence" in networks:
            kept = replace(kept, next_sentence=networks["next_sentence"].head)
        if not kept.predicts:
            kept = replace(kept, head={})
    return SavedModel(
        kept,
        Tokenizer.load(run / "tokenizer"),
        config.examples.sequence_length,
        f"{run} at step {step}",
        folder=run,
        generator=networks.get("generator"),
        networks=networks,
        modules={name: tensors[name] for name in tensors.headers.keys() - taken_names},
        step=step,
        files={(checkpoint / FILES[0]).relative_to(run).as_posix(): checkpoint / FILES[0]},
    )
