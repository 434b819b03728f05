"""The interface of a family of tasks, and a labelled data set."""

import dataclasses
import hashlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from electra.errors import require
from electra.model.config import EncoderConfig
from electra.model.heads import Kind
from electra.tasks.config import FinetuneConfig
from electra.tasks.predictions import predictions_name, read_answers, write_predictions
from electra.tasks.record import Asked, Columns, Record, Records, read_rows
from electra.tasks.rows import Outputs, Rows, TaskBatch
from electra.tokenizing.tokenizer import Tokenizer


class Constant(NamedTuple):
    """The best constant answer: what a model can reach without reading the text."""

    loss: float
    """Its loss on train."""
    scores: dict[str, float]
    """Its scores on dev."""


class WrittenHead(NamedTuple):
    """A head for transformers' class of a kind."""

    kind: Kind
    parameters: Mapping[str, Tensor]
    """Under the names in the module of `Family.build_head`."""
    settings: Mapping[str, Any] = {}
    """Fields of config.json."""


def name_outputs(names: Sequence[str]) -> dict[str, Any]:
    """Return the fields of config.json that name the outputs of a head, in their order."""
    return {
        "id2label": {str(place): name for place, name in enumerate(names)},
        "label2id": {name: place for place, name in enumerate(names)},
        "num_labels": len(names),  # text-embeddings-inference reads it of ModernBERT
    }


class Family(ABC):
    """A kind of question and its possible answers.

    The `rows` that methods take come from `encode` and hold the examples that they encode. The
    `outputs` are those of the network for all items of the rows.
    """

    metrics: tuple[str, ...]
    """Names of the scores that `score` returns; the first is the headline. Greater is better. Empty
    for a saved model, which is not scored."""
    longest_row: ClassVar[int] = 128
    """Default sequence length, in tokens. Source: Table 7."""
    reads_features: ClassVar[bool] = False
    """Whether the head may be a FeatureHead on a frozen encoder."""
    pools: ClassVar[bool] = False
    """Whether the head reads one state of a row, which `pooling` chooses."""
    has_separate_rows: ClassVar[bool] = False
    """Whether each row of an item is answered without the others, so that rows of like length can
    be computed together; targets then have a column for each row of an item."""
    learns_from_teachers: ClassVar[bool] = False
    """Whether `soften` is there, and `loss` takes what it returns for "labels"."""
    weighs_classes: ClassVar[bool] = False
    """Whether `weigh` can make rare labels count as much as frequent ones."""

    def __init_subclass__(cls) -> None:
        """Do not inherit `as_transformers`: a family's head may differ from its parent's."""
        super().__init_subclass__()
        if "as_transformers" not in vars(cls):
            cls.as_transformers = Family.as_transformers  # type: ignore[method-assign]

    @property
    @abstractmethod
    def fields(self) -> tuple[str, ...]:
        """Names of a record's fields, in the order in which an example begins with them."""

    lists: ClassVar[tuple[str, ...]] = ()
    """Those of `fields` that are lists of texts; all others are text."""

    @staticmethod
    def convert(path: Path, asked: Asked) -> Records:
        """Return the records of a file of inputs: by default a table, or lines of plain text."""
        return read_rows(path, asked)

    def record(self, example: Any) -> dict[str, Any]:
        """Return an example as a record, without its label: what `parse` takes."""
        return dict(zip(self.fields, example, strict=False))

    @property
    def headline(self) -> str:
        """The metric that summaries report and that selects checkpoints."""
        return self.metrics[0]

    @abstractmethod
    def parse(self, record: Record) -> Any:
        """Return a record as an example without a label; refuse missing fields and wrong values."""

    def parse_all(self, records: Records) -> list[Any]:
        """Return the records of a file as examples without a label."""
        return list(map(self.parse, records.asked(self.fields, self.lists)))

    def text_of(self, example: Any) -> str:
        """Return the text that decides between train and dev; by default the first text."""
        return str(example[0])

    def is_blank(self, example: Any) -> bool:
        """Return whether an example has no text at all: there is nothing to answer."""
        fields = self.record(example).values()
        texts = (text for each in fields for text in ([each] if isinstance(each, str) else each))
        return not any(text.strip() for text in texts)

    @classmethod
    def read_task(cls, name: str, data: Path, config: FinetuneConfig) -> "Task":
        """Return the task that `--task NAME` names, for a family of another package."""
        raise NotImplementedError(f"{cls.__name__}.read_task reads the files of {name}")

    def is_labelled(self, example: Any) -> bool:
        """Return whether the right answer to an example is known."""
        return example.label is not None

    @abstractmethod
    def encode(self, examples: Sequence[Any], tokenizer: Tokenizer, sequence_length: int) -> Rows:
        """Return examples as rows of at most `sequence_length` tokens."""

    def encode_scored(
        self, examples: Sequence[Any], tokenizer: Tokenizer, sequence_length: int
    ) -> Rows:
        """Return the rows that scores are computed from; by default those of `encode`."""
        return self.encode(examples, tokenizer, sequence_length)

    def max_tokens(self, sequence_length: int) -> int:
        """Return the tokens of a text that are read, without special tokens."""
        return sequence_length - 2

    @abstractmethod
    def build_head(self, sizes: EncoderConfig, config: FinetuneConfig) -> nn.Module:
        """Return the output layer."""

    @abstractmethod
    def answer(self, head: nn.Module, states: Tensor, batch: TaskBatch) -> Outputs:
        """Return the outputs of the head, float32.

        Args:
            head: The module that `build_head` returned.
            states: Hidden states of the encoder's last layer, (B * C, l, H); for a FeatureHead
                those of K layers, (K, B, l, H).
            batch: The batch that the encoder read.
        """

    @abstractmethod
    def loss(self, outputs: Outputs, batch: TaskBatch) -> Tensor:
        """Return the mean loss of a batch."""

    def soften(self, outputs: Outputs) -> Tensor:
        """Return a teacher's answers (N, ...) as targets for a student's loss."""
        raise NotImplementedError

    def start_head(self, head: nn.Module, train: Rows) -> None:
        """Initialise a new head from train, for example its bias; by default do nothing."""
        return

    def weigh(self, train: Rows) -> Tensor:
        """Return the target "weights" of a balanced loss, (N, ...); they are 1 on average."""
        raise NotImplementedError

    def tally(self, examples: Sequence[Any]) -> Counter[str]:
        """Return how many labelled examples have each label; empty where none names them."""
        return Counter()

    def fit_to_dev(self, dev: Rows, outputs: Outputs) -> tuple[Self, Outputs]:
        """Return the family with values chosen on dev, such as thresholds, and its outputs.

        By default no values are chosen.
        """
        return self, outputs

    @abstractmethod
    def score(self, rows: Rows, outputs: Outputs) -> dict[str, float]:
        """Return every metric as a fraction; empty if the labels are unknown."""

    @abstractmethod
    def find_constant(self, train: Rows, dev: Rows) -> Constant:
        """Return the loss and the scores of the best constant answer."""

    @abstractmethod
    def describe_collapse(self, dev: Rows, outputs: Outputs) -> str | None:
        """Return a note if all predictions on dev are the same but the labels are not."""

    def list_gold(self, rows: Rows) -> list[dict[str, Any]]:
        """Return the columns of each item's right answer, "" where it is unknown; by default none.

        Their names begin with `predictions.GOLD`.
        """
        return [{}] * len(rows)

    def write_predictions(self, folder: Path, split: str, rows: Rows, outputs: Outputs) -> None:
        """Write the predictions on a split into a folder: by default a table, a line an item."""
        answers = self.describe_answers(rows, outputs)
        write_predictions(folder / predictions_name(split), self.list_gold(rows), answers)

    def score_ensemble(self, folders: Sequence[Path]) -> dict[str, float]:
        """Return the scores on dev of the mean of the predictions in these folders.

        Empty for families whose predictions have no mean, and if a prediction is not finite.
        """
        return {}

    def read_answers(self, folder: Path, split: str) -> list[dict[str, Any]]:
        """Return the answers that `write_predictions` saved; empty: too little was saved."""
        return read_answers(folder / predictions_name(split))

    def score_answers(self, folder: Path, split: str, examples: Sequence[Any]) -> dict[str, float]:
        """Return the scores of a split, from the answers that `write_predictions` saved.

        Empty if these are not enough. `examples` are those of the split, or empty if its files are
        not available. Right answers in the folder that differ from the examples' are refused.
        """
        return {}

    def as_transformers(self, parameters: Mapping[str, Tensor]) -> WrittenHead | None:
        """Return a trained head for transformers, with the outputs of `describe_answers`.

        None: no class has such a head, so an export is refused. If the user can change the reason,
        a UserError names it.
        """
        return None

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return what `from_facts` needs to restore the family; "family" is its name."""

    @classmethod
    @abstractmethod
    def from_facts(cls, facts: dict[str, Any]) -> Self:
        """Return the family of a saved model: of its `facts`, "task" and input "columns"."""

    @abstractmethod
    def describe_answers(self, rows: Rows, outputs: Outputs) -> list[dict[str, Any]]:
        """Return a dictionary for each example: the answer and its probability.

        Values are text, numbers and lists of text. All dictionaries have the same keys.
        """

    @abstractmethod
    def describe_blank(self, example: Any) -> dict[str, Any]:
        """Return what a blank example has for an answer: the same keys, without values."""


@dataclass(frozen=True)
class Task:
    """A labelled data set and the family of its questions."""

    name: str
    family: Family
    examples: dict[str, list[Any]]
    """By split: "train" and "dev", which have labels, and splits to predict, such as "test"."""
    epochs: int = 3
    """Default number of passes over train. Source: Table 7."""
    files: tuple[Path, ...] = ()
    """The files that were read, for manifests."""
    columns: Columns = field(default_factory=Columns)
    """The columns of the files that were read."""
    swaps_pairs: bool = False
    """Whether to train on every pair of texts also in reverse order."""
    notes: tuple[str, ...] = ()
    """Notes for the user on how the files were read, a sentence each."""

    def __post_init__(self) -> None:
        """Refuse a split in which only a part has labels, since it cannot be scored."""
        for split, examples in self.examples.items():
            require(
                len(set(map(self.family.is_labelled, examples))) < 2,
                f"{self.name}: some files of {split} have labels and others none; give all of them "
                "labels, or none",
            )

    @property
    def training_examples(self) -> list[Any]:
        """The examples of train, and if `swaps_pairs` their pairs in reverse order."""
        train = self.examples["train"]
        if not self.swaps_pairs:
            return train
        return train + [each._replace(text_a=each.text_b, text_b=each.text_a) for each in train]

    def draw(self, count: int) -> "Task":
        """Return the task with so many examples of train, drawn at random, always the same."""
        train = self.examples["train"]
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
        drawn = [train[place] for place in order[:count].sort().values.tolist()]
        return dataclasses.replace(self, examples={**self.examples, "train": drawn})

    def hold_out(self, fraction: float) -> "Task":
        """Return the task with a share of train as dev.

        Examples are held out by the hash of their text, so equal texts fall on one side.
        """
        setting, train = f"dev_fraction={fraction:g}", self.examples["train"]
        require("dev" not in self.examples, f"{setting}: {self.name} has a dev file; leave it out")
        words = (" ".join(self.family.text_of(each).split()) for each in train)
        digests = [hashlib.sha256(text.encode(errors="replace")).digest() for text in words]
        count = round(fraction * len(train))
        last = sorted(digests)[count - 1] if count else b""
        sides: tuple[list[Any], list[Any]] = [], []
        for digest, example in zip(digests, train, strict=True):
            sides[digest <= last].append(example)
        kept, held = sides
        require(
            bool(kept and held),
            f"{setting} of {len(train):,} examples leaves {len(kept):,} to train on and "
            f"{len(held):,} as dev; both must have one",
        )
        note = (
            f"dev is {len(held):,} of the {len(train):,} examples of train, chosen by a hash of "
            f"their texts ({setting})"
        )
        others = {split: each for split, each in self.examples.items() if split != "train"}
        examples = {"train": kept, "dev": held, **others}
        return dataclasses.replace(self, examples=examples, notes=(*self.notes, note))

    def encode(self, tokenizer: Tokenizer, sequence_length: int) -> dict[str, Rows]:
        """Return the rows of every split, of at most `sequence_length` tokens."""
        others = {split: each for split, each in self.examples.items() if split != "train"}
        trained = {"train": self.training_examples} if "train" in self.examples else {}
        return {
            split: (self.family.encode if split == "train" else self.family.encode_scored)(
                examples, tokenizer, sequence_length
            )
            for split, examples in {**trained, **others}.items()
        }
