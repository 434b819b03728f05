"""Entities in sequences of tags, and the counts that their scores are made of.

A tag is O, or a prefix and a type such as B-PER, or a prefix alone. One set of rules reads the
entities of every scheme, since a prefix means the same wherever it occurs:

    IOB2    every entity begins with B
    IOB1    I begins an entity; B does so only directly after another entity of its type
    BIOES   E ends an entity, S is one of a single word; also called IOBES
    BILOU   the same with L and U for E and S

Entities are written in IOB2: it has the fewest labels of the schemes, so each is learnt from the
most examples, and transformers' token classifiers and most published files use it.
"""

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from electra.config import EncoderConfig, FinetuneConfig
from electra.model.heads import FeatureHead, TaggingHead, build_inner
from electra.tasks.family import Constant, Family, Record
from electra.tasks.rows import Outputs, Rows, TaskBatch, encode_words, pad_rows
from electra.tokenizing.tokenizer import Tokenizer

ENTITY_TAG = re.compile(r"O|[BIESLU](-.+)?")


class Entity(NamedTuple):
    """Words `start` to `stop - 1` of a sentence."""

    type: str
    """Empty if tags are prefixes alone."""
    start: int
    stop: int


def type_of(tag: str) -> str:
    """Return the type of a tag that ENTITY_TAG matches; empty for O and for a prefix alone."""
    return tag.partition("-")[2]


def find_entities(tags: Sequence[str]) -> list[Entity]:
    """Return the entities of a sentence, in order.

    Every tag but O belongs to exactly one entity. An entity begins after O, after another type, at
    B, S or U, and after E, L, S or U. No sequence is invalid: I-PER after O begins an entity.

    Args:
        tags: Tags of any of the schemes; ENTITY_TAG matches each.

    Source: conlleval.pl startOfChunk and endOfChunk; for B after E, and for S, which it does not
    know, get_entities of seqeval, which does the same elsewhere.
    """
    entities: list[Entity] = []
    before, type_before = "O", ""
    for place, tag in enumerate(tags):
        prefix, entity_type = tag[0], type_of(tag)
        if prefix in "IEL" and before in "BI" and entity_type == type_before:
            entities[-1] = entities[-1]._replace(stop=place + 1)
        elif prefix != "O":
            entities.append(Entity(entity_type, place, place + 1))
        before, type_before = prefix, entity_type
    return entities


def write_tags(entities: Iterable[Entity], num_words: int) -> list[str]:
    """Return the IOB2 tags of a sentence's entities."""
    tags = ["O"] * num_words
    for entity_type, start, stop in entities:
        ending = f"-{entity_type}" if entity_type else ""
        tags[start:stop] = [f"B{ending}"] + [f"I{ending}"] * (stop - start - 1)
    return tags


@dataclass(frozen=True)
class EntityCounts:
    """Numbers of entities; scores without entities are 0, as in conlleval."""

    gold: int
    predicted: int
    correct: int
    """Predicted entities with the type and both ends of a gold entity."""

    @property
    def precision(self) -> float:
        """Share of the predicted entities that are correct."""
        return self.correct / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        """Share of the gold entities that were found."""
        return self.correct / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        both = self.gold + self.predicted
        return 2 * self.correct / both if both else 0.0


def count_entities(
    gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]
) -> dict[str, EntityCounts]:
    """Return the counts of each type that either side has, sorted by type.

    Args:
        gold: Tags of each sentence.
        predicted: Predicted tags of the same sentences.
    """
    sides = Counter[str](), Counter[str](), Counter[str]()
    for gold_tags, predicted_tags in zip(gold, predicted, strict=True):
        golden, guessed = set(find_entities(gold_tags)), set(find_entities(predicted_tags))
        for counter, entities in zip(sides, (golden, guessed, golden & guessed), strict=True):
            counter.update(entity.type for entity in entities)
    return {
        entity_type: EntityCounts(*(counter[entity_type] for counter in sides))
        for entity_type in sorted(sides[0] | sides[1])
    }


def sum_counts(counts: Iterable[EntityCounts]) -> EntityCounts:
    """Return the counts of all types together, whose scores are micro-averages."""
    counts = list(counts)
    return EntityCounts(
        sum(each.gold for each in counts),
        sum(each.predicted for each in counts),
        sum(each.correct for each in counts),
    )


ENTITY_METRICS = ("f1", "precision", "recall", "accuracy")


class TaggedSentence(NamedTuple):
    """Words and the tag of each."""

    words: list[str]
    tags: list[str]
    lines: list[int]
    """Line of each word in its file, from 1."""


class WordWindow(NamedTuple):
    """The part of a sentence that is one row."""

    words: range
    scored: frozenset[int]
    """The words whose tags are predicted in this row; the others are context."""


@dataclass(frozen=True)
class Tagging(Family):
    """Sentences whose every word has one of `labels`.

    Source: tagging_tasks.py and tagging_metrics.py, which drop words that do not fit into a row and
    score the others, lower-case and strip accents of any vocabulary, put all tokens in segment 1
    and count the loss twice; we do none of this.
    """

    longest_row: ClassVar[int] = 256

    reads_features: ClassVar[bool] = True

    labels: tuple[str, ...]
    """All tags."""
    metrics: tuple[str, ...] = ()
    """ENTITY_METRICS, or accuracy alone if the tags name no entities."""

    def parse(self, record: Record) -> TaggedSentence:
        """Return {"tokens": [...]}, a list of words, as a sentence; it may be empty."""
        words = record.texts("tokens")
        record.require("" not in words, "'tokens' has an empty text; a word must not be empty")
        # `encode` marks the words to answer by their tags, so every word gets an arbitrary one.
        return TaggedSentence(words, [self.labels[0]] * len(words), [])

    def encode(
        self, examples: Sequence[TaggedSentence], tokenizer: Tokenizer, sequence_length: int
    ) -> Rows:
        """Return the windows of every sentence, in order.

        Target "labels" is the label of a word at its first token in the window that scores it, and
        -1 elsewhere. Read row by row, the labels are those of the words, each once and in order.
        """
        room = sequence_length - 2
        label_ids = {label: place for place, label in enumerate(self.labels)}
        vocabulary = list(dict.fromkeys(word for each in examples for word in each.words))
        tokens_of = {
            word: tokens or [tokenizer.unk_id]  # of a control character nothing is left
            for word, tokens in zip(
                vocabulary, encode_words(tokenizer, vocabulary, room + 1), strict=True
            )
        }
        rows, targets, num_cut = [], [], 0
        for sentence in examples:
            tokens = [tokens_of[word][:room] for word in sentence.words]
            num_cut += any(len(tokens_of[word]) > room for word in sentence.words)
            for window in cut_word_windows([len(each) for each in tokens], room):
                row, labels = [tokenizer.cls_id], [-1]
                for word in window.words:
                    label = label_ids[sentence.tags[word]] if word in window.scored else -1
                    row += tokens[word]
                    labels += [label] + [-1] * (len(tokens[word]) - 1)
                rows.append([*row, tokenizer.sep_id])
                targets.append(torch.tensor([*labels, -1]))
        no_words = torch.zeros(0, 0, dtype=torch.int64)
        labels_NL = pad_sequence(targets, True, padding_value=-1) if targets else no_words
        return pad_rows(
            rows,
            [len(row) for row in rows],
            {"labels": labels_NL},
            pad_id=tokenizer.pad_id,
            num_cut=num_cut,
            examples=examples,
        )

    def build_head(self, sizes: EncoderConfig, config: FinetuneConfig) -> nn.Module:
        """Return dropout and a linear layer on every position, or BiLSTMs on features."""
        size, num_labels, dropout_prob = sizes.hidden_size, len(self.labels), config.dropout_prob
        if config.features.layers:
            return FeatureHead(
                size, num_labels, config.features, of="tokens", dropout_prob=dropout_prob
            )
        return TaggingHead(size, num_labels, dropout_prob, build_inner(sizes))

    def answer(self, head: nn.Module, states: Tensor, batch: TaskBatch) -> Outputs:
        """Return logits (B, l, labels)."""
        if isinstance(head, FeatureHead):
            return {"logits": head(states, batch.attention_mask)}
        return {"logits": head(states)}

    def loss(self, outputs: Outputs, batch: TaskBatch) -> Tensor:
        """Return the mean cross-entropy over the scored words, nats."""
        logits, labels = outputs["logits"], batch.targets["labels"]
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-1)

    def score(self, rows: Rows, outputs: Outputs) -> dict[str, float]:
        """Return the metrics over all words as fractions."""
        return self._score_tags(rows.examples, self._decide(rows, outputs))

    def _decide(self, rows: Rows, outputs: Outputs) -> list[list[str]]:
        """Return the most likely tag of each word of each sentence."""
        guesses = iter(_guess(rows, outputs).tolist() if len(rows) else [])
        return [
            [self.labels[guess] for guess in islice(guesses, len(sentence.words))]
            for sentence in rows.examples
        ]

    def _score_tags(
        self, sentences: Sequence[TaggedSentence], predicted: Sequence[Sequence[str]]
    ) -> dict[str, float]:
        gold = [sentence.tags for sentence in sentences]
        pairs = [
            pair for tags in zip(gold, predicted, strict=True) for pair in zip(*tags, strict=True)
        ]
        scores = {"accuracy": sum(one == other for one, other in pairs) / len(pairs)}
        if self.metrics == ENTITY_METRICS:
            overall = sum_counts(count_entities(gold, predicted).values())
            scores |= {"f1": overall.f1, "precision": overall.precision, "recall": overall.recall}
        return {metric: scores[metric] for metric in self.metrics}

    def find_constant(self, train: Rows, dev: Rows) -> Constant:
        """Return loss and scores of always predicting train's most frequent label."""
        labels = train.targets["labels"]
        counts = torch.bincount(labels[labels >= 0])
        shares = counts / counts.sum()
        guess = self.labels[int(shares.argmax())]
        predicted = [[guess] * len(sentence.words) for sentence in dev.examples]
        return Constant(
            torch.special.entr(shares).sum().item(), self._score_tags(dev.examples, predicted)
        )

    def describe_collapse(self, dev: Rows, outputs: Outputs) -> str | None:
        """Return a note if all predictions are the same but the labels are not."""
        labels, predicted = dev.targets["labels"], _guess(dev, outputs).unique()
        if len(predicted) > 1 or len(labels[labels >= 0].unique()) == 1:
            return None
        return f"every dev prediction is {self.labels[int(predicted)]!r}"

    def write_predictions(self, folder: Path, split: str, rows: Rows, outputs: Outputs) -> None:
        """Write each word with its label and prediction, and for entities the scores by type.

        predictions.conll has `word label prediction` a line and a blank line after each sentence,
        as conlleval reads it; white space within a word becomes "_". types.tsv has a line a type.
        """
        predicted = self._decide(rows, outputs)
        before = "" if split == "dev" else f"{split}_"
        lines = []
        for sentence, guesses in zip(rows.examples, predicted, strict=True):
            for word, label, guess in zip(sentence.words, sentence.tags, guesses, strict=True):
                lines.append(f"{'_'.join(word.split()) or '_'} {label} {guess}\n")
            lines.append("\n")
        text = "".join(lines)  # half a surrogate pair, which JSON can hold, is no character
        (folder / f"{before}predictions.conll").write_text(text, "utf-8", errors="replace")
        if self.metrics == ENTITY_METRICS:
            counts = count_entities((sentence.tags for sentence in rows.examples), predicted)
            (folder / f"{before}types.tsv").write_text(_format_types(counts), encoding="utf-8")

    def facts(self) -> dict[str, Any]:
        """Return the family's name and its labels."""
        return {"family": "tagging", "labels": list(self.labels)}

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> Self:
        """Return the family of a saved model."""
        return cls(tuple(facts["labels"]))

    def describe_answers(self, rows: Rows, outputs: Outputs) -> list[dict[str, Any]]:
        """Return each sentence's `tokens`, which are its words, and their `tags`."""
        predicted = self._decide(rows, outputs)
        return [
            {"tokens": sentence.words, "tags": tags}
            for sentence, tags in zip(rows.examples, predicted, strict=True)
        ]


def _guess(rows: Rows, outputs: Outputs) -> Tensor:
    """Return the most likely label of each scored word, in order."""
    return outputs["logits"].argmax(dim=-1)[rows.targets["labels"] >= 0]


def _format_types(counts: dict[str, EntityCounts]) -> str:
    lines = ["type\tprecision\trecall\tf1\tgold\tpredicted\tcorrect\n"]
    for entity_type, each in counts.items():
        scores = f"{each.precision:.6f}\t{each.recall:.6f}\t{each.f1:.6f}"
        lines.append(f"{entity_type}\t{scores}\t{each.gold}\t{each.predicted}\t{each.correct}\n")
    return "".join(lines)


def cut_word_windows(sizes: Sequence[int], room: int) -> list[WordWindow]:
    """Return the windows of a sentence: whole words, each scored once, where it has most context.

    A row begins half a row before the end of the one before it, or later if the next word would not
    fit otherwise. A word's context is the tokens on its shorter side.

    Args:
        sizes: Tokens of each word, each 1 to `room`.
        room: Tokens of a row.
    """
    begins = [0, *accumulate(sizes)]
    rows, start, stop = [], 0, 0
    while stop < len(sizes):
        stop = bisect_right(begins, begins[start] + room) - 1
        rows.append(range(start, stop))
        if stop < len(sizes):
            start = bisect_left(begins, max(begins[stop] - room // 2, begins[stop + 1] - room))
    most, owner = [-1] * len(sizes), [0] * len(sizes)
    for number, words in enumerate(rows):
        for word in words:
            left = begins[word] - begins[words.start]
            right = begins[words.stop] - begins[word + 1]
            if min(left, right) > most[word]:
                most[word], owner[word] = min(left, right), number
    windows = [
        WordWindow(words, frozenset(word for word in words if owner[word] == number))
        for number, words in enumerate(rows)
    ]
    return [window for window in windows if window.scored]
