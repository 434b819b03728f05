"""Classification of texts and pairs: each has one of several labels."""

import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from electra.assignments import from_dict
from electra.errors import UserError, did_you_mean
from electra.tasks.family import Constant, Family, WrittenHead, name_outputs
from electra.tasks.predictions import (
    GOLD,
    PROB,
    predictions_name,
    read_answers,
    read_ensemble,
    read_predictions,
    require_right,
    score,
)
from electra.tasks.record import Records, read_cells
from electra.tasks.rows import Outputs, Rows, TaskBatch
from electra.tasks.texts import Example, Texts

NUMBER = re.compile(r"[+-]?[0-9]{1,18}(\.[0-9]{1,18})?")


def order_labels(names: Iterable[str]) -> tuple[str, ...]:
    """Return names in the order of their outputs: numbers by value, "2" before "10"; else sorted.

    An export then has label 2 at output 2 if the labels are 0, 1, ..., 11.
    """
    ordered = sorted(names)
    return tuple(sorted(ordered, key=float) if all(map(NUMBER.fullmatch, ordered)) else ordered)


class Labelled(Family):
    """A family whose every item, or every word of an item, has one label.

    The target is "labels", and if classes are weighted "weights"; the output is "logits", a number
    for each label.
    """

    @property
    @abstractmethod
    def labels(self) -> tuple[str, ...]:
        """Names of the labels."""

    def judged(self, rows: Rows, values: Tensor) -> Tensor:
        """Return the items' labels or answers that are scored; by default all."""
        return values

    def decide(self, rows: Rows, outputs: Outputs) -> Tensor:
        """Return the most likely labels."""
        return self.judged(rows, outputs["logits"].argmax(dim=-1))

    def measure(self, rows: Rows, decided: Sequence[float]) -> dict[str, float]:
        """Return the metrics of what was decided; empty if the labels are unknown."""
        if not self.is_labelled(rows.examples[0]):
            return {}
        labels = rows.targets["labels"].tolist()
        return score(self.metrics, labels, decided, len(self.labels))

    def loss(self, outputs: Outputs, batch: TaskBatch) -> Tensor:
        """Return the mean cross-entropy, nats, weighted if there are "weights".

        The labels may be a teacher's probabilities (N, C).
        """
        logits, labels = outputs["logits"].flatten(0, -2), batch.targets["labels"]
        if not labels.is_floating_point():
            labels = labels.flatten()
        if "weights" in batch.targets:
            losses = F.cross_entropy(logits, labels, reduction="none")
            return (losses * batch.targets["weights"]).mean()
        return F.cross_entropy(logits, labels, ignore_index=-1)

    def score(self, rows: Rows, outputs: Outputs) -> dict[str, float]:
        """Return the metrics as fractions; empty if the labels are unknown."""
        return self.measure(rows, self.decide(rows, outputs).tolist())

    def score_ensemble(self, folders: Sequence[Path]) -> dict[str, float]:
        """Return the scores on dev of the mean of the probabilities in the files."""
        together = read_ensemble(folders)
        if together is None:
            return {}
        gold = [together.labels.index(label) for (label,) in together.gold]
        return score(self.metrics, gold, together.values.argmax(axis=1).tolist(), len(self.labels))

    def score_answers(self, folder: Path, split: str, examples: Sequence[Any]) -> dict[str, float]:
        """Return the metrics of the predictions and labels in the file."""
        path = folder / predictions_name(split)
        gold = [self.labels.index(label) for (label,) in read_predictions(path).gold]
        require_right(path, gold, [each.label for each in examples])
        said = [self.labels.index(each["prediction"]) for each in read_answers(path)]
        return score(self.metrics, gold, said, len(self.labels))

    def find_constant(self, train: Rows, dev: Rows) -> Constant:
        """Return loss and scores of always predicting train's most frequent label."""
        labels = self.judged(train, train.targets["labels"])
        counts = Counter(labels.tolist())
        frequent = counts.most_common(1)[0][0]
        weights = train.targets.get("weights")
        sums = labels.new_zeros(0) if weights is None else labels.bincount(weights)
        each = counts.values() if weights is None else sums[sums > 0].tolist()
        shares = torch.tensor([count / len(labels) for count in each])
        count = len(self.judged(dev, dev.targets["labels"]))
        scores = self.measure(dev, [frequent] * count)
        return Constant(torch.special.entr(shares).sum().item(), scores)

    def describe_collapse(self, dev: Rows, outputs: Outputs) -> str | None:
        """Return a note if all predictions are the same but the labels are not."""
        predicted = self.decide(dev, outputs).unique()
        if len(predicted) > 1 or len(self.judged(dev, dev.targets["labels"]).unique()) == 1:
            return None
        return f"every dev prediction is {self.labels[int(predicted)]!r}"

    def list_gold(self, rows: Rows) -> list[dict[str, Any]]:
        """Return the label of each item."""
        names = [*self.labels, ""]  # label -1 is unknown
        return [{GOLD: names[label]} for label in rows.targets["labels"].tolist()]

    def describe_blank(self, example: Any) -> dict[str, Any]:
        """Return no `prediction` and no probabilities."""
        return dict.fromkeys(["prediction", *(PROB + label for label in self.labels)])

    def describe_answers(self, rows: Rows, outputs: Outputs) -> list[dict[str, Any]]:
        """Return the `prediction` for each item, and the probability of each label."""
        decided, shares_of = self.decide(rows, outputs).tolist(), outputs["logits"].softmax(dim=1)
        return [
            {"prediction": self.labels[guess], **name_probs(self.labels, shares)}
            for guess, shares in zip(decided, shares_of.tolist(), strict=True)
        ]


def name_probs(labels: Sequence[str], probs: Sequence[float]) -> dict[str, float]:
    """Return the probability of each label under the name of its column."""
    return {PROB + label: round(prob, 6) for label, prob in zip(labels, probs, strict=True)}


@dataclass(frozen=True)
class Classification(Texts, Labelled):
    """Texts or pairs with one of `labels`."""

    learns_from_teachers: ClassVar[bool] = True
    weighs_classes: ClassVar[bool] = True

    labels: tuple[str, ...] = ()

    @property
    def num_outputs(self) -> int:
        """One for each label."""
        return len(self.labels)

    def encode_labels(self, labels: Sequence[int | None]) -> Tensor:
        """Return the indices (N,) of labels; -1 where they are unknown."""
        return torch.tensor([-1 if each is None else each for each in labels])

    def weigh(self, train: Rows) -> Tensor:
        """Return a weight (N,) for each item: mean count of a label / count of the item's label."""
        labels = train.targets["labels"]
        counts = labels.bincount().float()
        return counts.sum() / ((counts > 0).sum() * counts[labels])

    def soften(self, outputs: Outputs) -> Tensor:
        """Return the probabilities (N, C)."""
        return outputs["logits"].softmax(dim=-1)

    def tally(self, examples: Sequence[Example]) -> Counter[str]:
        """Return the number of examples of each label."""
        return Counter(self.labels[each.label] for each in examples)

    def as_transformers(self, parameters: Mapping[str, Tensor]) -> WrittenHead:
        """Return a sequence classifier."""
        settings = {"problem_type": "single_label_classification", **name_outputs(self.labels)}
        settings |= self.tell_windows()
        return WrittenHead("SequenceClassification", parameters, settings)

    def facts(self) -> dict[str, Any]:
        """Return the family's name and its labels."""
        labels = list(self.labels)
        return {"family": "classification", "labels": labels, **self.tell_windows()}

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> Self:
        """Return the family of a saved model."""
        return from_dict(cls, {"labels": facts["labels"], **cls.restore(facts)})


def read_names(split: str, records: Records, labels: Sequence[str]) -> list[int | None]:
    """Return the index in `labels` of each record's label; None of a split without labels."""
    (column,) = records.columns.labels
    return read_cells(records.table, split, column, lambda cell: find_label(cell, labels), labels)


def find_label(name: str, labels: Sequence[str]) -> int:
    """Return the place of a label in `labels`; refuse an unknown one."""
    if name not in labels:  # called for each row: find the nearest label only on error
        raise UserError(f"unknown label {name!r}{did_you_mean(name, labels)}")
    return labels.index(name)
