"""A family of tasks of another package: a text has two numbers, in columns `valence` and `arousal`.

`electra finetune RUN --task two_numbers --data FOLDER` reads train and dev tables with the columns
`text`, `valence` and `arousal`, where the entry point `two_numbers:TwoNumbers` is installed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.model.config import EncoderConfig
from electra.model.task_heads import ClassifierHead
from electra.tasks.config import FinetuneConfig
from electra.tasks.family import Constant, Family, Task, WrittenHead, name_outputs
from electra.tasks.predictions import score
from electra.tasks.record import Columns, Record, find_splits
from electra.tasks.rows import Outputs, Rows, TaskBatch, encode_texts, pack_rows
from electra.text.table_files import read_table
from electra.text.tables import TABLE_FORMATS
from electra.tokenizing.tokenizer import Tokenizer

NAMES = ("valence", "arousal")


class Rated(NamedTuple):
    """A text and its two numbers; None: they are unknown."""

    text: str
    label: tuple[float, ...] | None


@dataclass(frozen=True)
class TwoNumbers(Family):
    """A linear layer gives both numbers, standardised by mean and deviation of train."""

    pools: ClassVar[bool] = True

    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    metrics: tuple[str, ...] = ("spearman",)
    fields: ClassVar[tuple[str, ...]] = ("text",)

    @classmethod
    def read_task(cls, name: str, data: Path, config: FinetuneConfig) -> Task:
        """Return the task of a folder's tables."""
        files = find_splits(data, TABLE_FORMATS)
        examples: dict[str, list[Any]] = {}
        for split, paths in files.items():
            for table in map(read_table, paths):
                texts = table.column("text")
                numbers = [[float(x) for x in table.column(each, fractions=True)] for each in NAMES]
                rated = map(Rated, texts, zip(*numbers, strict=True))
                examples.setdefault(split, []).extend(rated)
        known = torch.tensor([each.label for each in examples["train"]])
        mean, deviation = known.mean(0).tolist(), known.std(0).clamp(min=1e-6).tolist()
        family = cls(tuple(mean), tuple(deviation))
        read = tuple(path for each in files.values() for path in each)
        return Task(name, family, examples, files=read, columns=Columns(("text",), NAMES))

    def parse(self, record: Record) -> Rated:
        """Return {"text": ...} as an example."""
        return Rated(record.text("text"), None)

    def encode(self, examples: Sequence[Rated], tokenizer: Tokenizer, sequence_length: int) -> Rows:
        """Return each text as a row; the target holds both numbers, as they are in the files."""
        ids = encode_texts(tokenizer, [each.text for each in examples], sequence_length)
        labels = [each.label or [torch.nan] * len(NAMES) for each in examples]
        targets = {"labels": torch.tensor(labels).view(-1, len(NAMES))}
        texts = [(each, None) for each in ids]
        return pack_rows(texts, targets, tokenizer, sequence_length, examples)

    def build_head(self, sizes: EncoderConfig, config: FinetuneConfig) -> nn.Module:
        """Return a linear layer on one state of a row."""
        pooling = "mean" if config.pooling == "segments" else config.pooling
        return ClassifierHead(sizes, len(NAMES), config.dropout_prob, pooling)

    def answer(self, head: nn.Module, states: Tensor, batch: TaskBatch) -> Outputs:
        """Return both numbers (B, 2), standardised."""
        return {"logits": head(states, batch.attention_mask)}

    def loss(self, outputs: Outputs, batch: TaskBatch) -> Tensor:
        """Return the mean squared error of the standardised numbers."""
        logits, labels = outputs["logits"], batch.targets["labels"]
        mean, deviation = logits.new_tensor(self.mean), logits.new_tensor(self.deviation)
        return F.mse_loss(logits, (labels - mean) / deviation)

    def score(self, rows: Rows, outputs: Outputs) -> dict[str, float]:
        """Return the mean of the two rank correlations."""
        return self._measure(rows, outputs["logits"])

    def _measure(self, rows: Rows, numbers: Tensor) -> dict[str, float]:
        if not self.is_labelled(rows.examples[0]):
            return {}
        pairs = zip(rows.targets["labels"].unbind(1), numbers.unbind(1), strict=True)
        each = [score(["spearman"], gold.tolist(), found.tolist()) for gold, found in pairs]
        return {"spearman": sum(one["spearman"] for one in each) / len(each)}

    def find_constant(self, train: Rows, dev: Rows) -> Constant:
        """Return loss and scores of always answering the means of train."""
        loss = F.mse_loss(self._standard(train), torch.zeros(len(train), 2))
        return Constant(loss.item(), self._measure(dev, torch.zeros(len(dev), len(NAMES))))

    def _standard(self, rows: Rows) -> Tensor:
        labels = rows.targets["labels"]
        return (labels - torch.tensor(self.mean)) / torch.tensor(self.deviation)

    def describe_collapse(self, dev: Rows, outputs: Outputs) -> str | None:
        """Return a note if all predictions are the same."""
        is_one = len(outputs["logits"].unique(dim=0)) == 1 < len(dev)
        return "every dev prediction is the same" if is_one else None

    def describe_answers(self, rows: Rows, outputs: Outputs) -> list[dict[str, Any]]:
        """Return both numbers by name, on the scales of the files."""
        numbers = outputs["logits"] * torch.tensor(self.deviation) + torch.tensor(self.mean)
        return [dict(zip(NAMES, each, strict=True)) for each in numbers.tolist()]

    def describe_blank(self, example: Any) -> dict[str, Any]:
        """Return both names without numbers."""
        return dict.fromkeys(NAMES)

    def as_transformers(self, parameters: Mapping[str, Tensor]) -> WrittenHead:
        """Return a sequence classifier whose two outputs are on the scales of the files."""
        mean, deviation = torch.tensor(self.mean), torch.tensor(self.deviation)
        scaled = {
            "dense.weight": parameters["dense.weight"] * deviation[:, None],
            "dense.bias": parameters["dense.bias"] * deviation + mean,
        }
        settings = {"problem_type": "regression", **name_outputs(NAMES)}
        return WrittenHead("SequenceClassification", {**parameters, **scaled}, settings)

    def facts(self) -> dict[str, Any]:
        """Return the name of the entry point, means and deviations."""
        return {"family": "two_numbers", "mean": self.mean, "deviation": self.deviation}

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> Self:
        """Return the family of a saved model."""
        return cls(tuple(facts["mean"]), tuple(facts["deviation"]))
