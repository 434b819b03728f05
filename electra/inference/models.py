"""The models of a service: folders read into memory, and the questions that each can answer."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from electra.checkpoints.bundled import find_model
from electra.checkpoints.checkpoint import list_checkpoints, run_of, step_of
from electra.checkpoints.finetuned import read_finetuned
from electra.checkpoints.folder import read_pretrained, read_run_config
from electra.checkpoints.metrics import read_metrics
from electra.checkpoints.saved import is_finetuned
from electra.errors import UserError, require
from electra.files import named, read_object
from electra.inference.ask import Candidate, detect, fill
from electra.inference.embed import Pooling, embed
from electra.inference.network import LoadedEncoder, LoadedNetwork, load_kept, load_network
from electra.inference.predict import FinetunedModel, load_model
from electra.inference.search import Hit, Index, Searcher, open_index, search
from electra.reports.tokens import Word
from electra.tasks.choice import MultipleChoice
from electra.tasks.retrieval import Retrieval
from electra.text.streams import stamp_of
from electra.training.machine import Machine

MAX_TOP = 50
"""Most candidates that can be asked for."""
TRY = {
    "text": "the chef cooked the meal",
    "text_a": "the chef cooked the meal",
    "text_b": "the meal was cooked by the chef",
    "tokens": ["the", "chef", "cooked", "the", "meal"],
    "question": "who cooked the meal?",
    "context": "the chef cooked the meal for the guests",
    "query": "who cooked the meal?",
    "passage": "the chef cooked the meal for the guests",
    "choices": ["the guests ate the meal", "the meal ate the guests"],
}
"""Values to try a fine-tuned model with, by field: nobody's data."""


class Networks(NamedTuple):
    """The networks of a pre-trained model. They are replaced together when a run continues."""

    step: int | None = None
    """That of the checkpoint; None for a Hugging Face folder, and before the first checkpoint."""
    discriminator: LoadedNetwork | None = None
    generator: LoadedNetwork | None = None
    encoder: LoadedEncoder | None = None
    """The encoder that is kept; None before the first checkpoint."""


@dataclass(eq=False)
class PretrainedModel:
    """A run, one of its checkpoints, or a Hugging Face folder, with its networks."""

    name: str
    folder: Path
    machine: Machine
    networks: Networks = field(default_factory=Networks)
    looked: int = -1
    """Step of the newest checkpoint at the last reading, even if that one is damaged."""
    records: list[dict[str, Any]] = field(default_factory=list)
    stamp: tuple[int, int] | None = None
    """That of metrics.jsonl when its records were read."""
    steps: int | None = None
    """Those of the run when last described, since its folder may be gone; None: it is no run."""

    @property
    def verbs(self) -> list[str]:
        """The questions that the model can answer."""
        _, discriminator, generator, encoder = self.networks
        verbs = {"detect": discriminator, "fill": generator, "embed": encoder}
        verbs["picture"] = discriminator or generator
        return [verb for verb, network in verbs.items() if network]

    @property
    def is_run(self) -> bool:
        """Whether the folder is that of a run, or of one of its checkpoints."""
        return (run_of(self.folder) / "metrics.jsonl").exists()

    def describe(self) -> dict[str, Any]:
        """Return what a user needs to know before asking."""
        step, network = self.networks.step, self.networks.encoder
        if self.is_run or step is not None:  # weights alone, of a run, have no metrics
            with suppress(UserError):
                self.steps = read_run_config(run_of(self.folder)).train.steps
        return {
            "name": self.name,
            "kind": "pre-trained",
            "verbs": self.verbs,
            "step": step,
            "steps": self.steps,
            "is_run": self.is_run,
            "max_tokens": network.max_tokens if network else None,
            "layers": network.num_layers if network else None,
            "vocabulary": network.tokenizer.digest[:12] if network else None,
        }

    def load(self) -> None:
        """Read the newest checkpoint or the folder's networks; those in use stay until then."""
        newest = self._find_newest()
        model = read_pretrained(self.folder)

        def load(predicts: Literal["replaced", "tokens"]) -> LoadedNetwork | None:
            try:
                return load_network(model, model.network(predicts), self.machine)
            except UserError:
                return None

        discriminator, generator = load("replaced"), load("tokens")
        # A generator may be beside the network that is kept.
        own = discriminator or (generator if model.masked_lm is model.kept else None)
        kept = own or load_kept(model, self.machine)
        self.networks = Networks(model.step, discriminator, generator, kept)
        self.looked = newest

    def is_outdated(self) -> bool:
        """Return whether the run has a newer checkpoint than when one was read."""
        return self._find_newest() > self.looked

    def _find_newest(self) -> int:
        """Return the step of the newest checkpoint of a run; -1: there is none."""
        is_run = self.is_run and run_of(self.folder) == self.folder
        folders = list_checkpoints(self.folder) if is_run else []
        return step_of(folders[-1]) if folders else -1

    def detect(self, texts: list[str]) -> list[list[Word]]:
        """Answer texts as `ask.detect`."""
        assert self.networks.discriminator
        return detect(self.networks.discriminator, texts)

    def fill(self, texts: list[str]) -> list[list[list[Candidate]]]:
        """Answer texts as `ask.fill`, with as many candidates as may be asked for."""
        assert self.networks.generator
        return fill(self.networks.generator, texts, MAX_TOP)

    def read_curves(self, after: int) -> tuple[list[dict[str, Any]], bool]:
        """Return the records of metrics.jsonl beyond a step, and whether the run began again.

        A run that was resumed computes some steps again; then all records are returned.
        """
        path = run_of(self.folder) / "metrics.jsonl"
        if (stamp := stamp_of(path)) != self.stamp:
            self.records, self.stamp = read_metrics(path), stamp
        records = self.records
        is_shorter = after > 0 and (not records or records[-1]["step"] < after)
        kept = [each for each in records if is_shorter or each["step"] > after]
        return kept, is_shorter


@dataclass(frozen=True)
class Embed:
    """A request for embeddings (`embed.embed`); equal requests are computed together."""

    encoder: LoadedEncoder
    layer: int
    pooling: Pooling

    def __call__(self, texts: list[str]) -> list[list[float] | None]:
        """Return the embeddings of texts; None: of a blank one."""
        found = embed(self.encoder, texts, layer=self.layer, pooling=self.pooling)
        return _list_rows(texts, found)


def _list_rows(texts: list[str], found: np.ndarray) -> list[list[float] | None]:
    rows = zip(texts, found.tolist(), strict=True)
    return [row if text.strip() else None for text, row in rows]


@dataclass(eq=False)
class TaskModel:
    """A fine-tuned model."""

    name: str
    model: FinetunedModel
    task: str
    folder: Path
    dev_examples: Sequence[Mapping[str, Any]] = ()
    """Records of the dev set that clients may see."""
    searcher: Searcher | None = None
    """The same model, if it is for retrieval."""
    index: Index | None = None
    """The corpus that it searches."""

    @property
    def verbs(self) -> list[str]:
        """The questions that the model can answer."""
        verbs = {"predict": True, "embed": self.searcher, "search": self.index}
        return [verb for verb, part in verbs.items() if part]

    def describe(self) -> dict[str, Any]:
        """Return what a user needs to know before asking."""
        family = self.model.network.family
        return {
            "name": self.name,
            "kind": "fine-tuned",
            "verbs": self.verbs,
            "task": self.task,
            "family": family.facts()["family"],
            "labels": list(getattr(family, "labels", None) or []),
            "fields": list(family.fields),
            "examples": list(self.dev_examples) or [self._example()],
            "has_dev_examples": bool(self.dev_examples),
            "max_tokens": family.max_tokens(self.model.sequence_length),
        }

    def _example(self) -> dict[str, Any]:
        family = self.model.network.family
        example = {field: TRY[field] for field in family.fields if field in TRY}
        if isinstance(family, MultipleChoice):
            example["choices"] = list(islice(cycle(TRY["choices"]), family.num_choices))
        return example

    def predict(self, examples: list[Any]) -> Sequence[Any]:
        """Answer parsed records, those of several requests together; `is_cut` marks cut ones."""
        answers = self.model.answer_examples(examples)
        marked = zip(answers.records, answers.is_cut, strict=True)
        return [{**record, "is_cut": is_cut} for record, is_cut in marked]

    def embed(self, texts: list[str]) -> list[list[float] | None]:
        """Return the vectors of texts, as `Embed` its embeddings."""
        assert self.searcher
        return _list_rows(texts, self.searcher.embed(texts)[0])


@dataclass(frozen=True)
class Search:
    """A request for passages (`search.search`); equal requests are computed together."""

    model: TaskModel
    top: int

    def __call__(self, queries: list[str]) -> list[list[Hit]]:
        """Return the passages nearest each query."""
        assert self.model.searcher
        assert self.model.index
        return search(self.model.searcher, self.model.index, queries, self.top)[0]


ServedModel = PretrainedModel | TaskModel


def load_models(
    folders: Sequence[Path], machine: Machine, index: Path | None = None, **how: bool
) -> dict[str, ServedModel]:
    """Return the models of some folders by name, each as of `read_model`."""
    named = name_folders(folders)
    models = {name: read_model(name, each, machine, index, **how) for name, each in named.items()}
    has_one = index is None or any("search" in model.verbs for model in models.values())
    listed = ", ".join(named)
    require(has_one, f"--index {index} is for a model for retrieval; none of {listed} is one")
    return models


def read_model(
    name: str,
    folder: Path,
    machine: Machine,
    index: Path | None = None,
    *,
    may_wait: bool = False,
    shows_dev: bool = False,
) -> ServedModel:
    """Return the model of a folder; one for retrieval searches in the index, if there is one.

    With `may_wait` a run may have no checkpoint; with `shows_dev` the examples of a fine-tuned
    model are those of its dev set.
    """
    if is_finetuned(folder):
        finetuned = read_finetuned(folder)
        examples = finetuned.facts["examples"] if shows_dev else ()
        task = str(finetuned.facts["task"])
        tuned = TaskModel(name, load_model(finetuned, machine), task, folder, examples)
        if isinstance(tuned.model.network.family, Retrieval):
            tuned.searcher = Searcher(tuned.model, finetuned.sha256)
            tuned.index = open_index(index, tuned.searcher) if index else None
        return tuned
    model = PretrainedModel(name, folder, machine)
    is_empty = model.is_run and not list_checkpoints(run_of(folder))
    if not (is_empty and may_wait):
        model.load()
    return model


def name_folders(words: Sequence[Path]) -> dict[str, Path]:
    """Return folders by name: NAME in NAME=FOLDER, else the folder's name, with a step."""
    folders: dict[str, Path] = {}
    for word in words:
        given, equals, rest = str(word).partition("=")
        is_named = equals and "/" not in given and not word.exists()
        folder = find_model(Path(rest) if is_named else word)
        name = given if is_named else _name(folder)
        require(folder.is_dir(), f"{folder} is not a folder")
        require("/" not in name, f"model name {name!r} must not contain /")
        require(
            name not in folders,
            f"two models are called {name}: give one of them a name, as NAME={folder}",
        )
        folders[name] = folder
    return folders


def _name(folder: Path) -> str:
    """Return the name of a folder as it was given: a link's, not that of what it points to."""
    run = run_of(folder)
    name = named(run).name
    return name if run == folder else f"{name}@{read_object(folder / 'state.json').get('step')}"
