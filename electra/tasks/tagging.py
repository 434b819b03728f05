"""Tagging of words: entities, chunks or parts of speech, in CoNLL's columns or JSON lines.

A tag is O, or a prefix and a type such as B-PER, or a prefix alone. One set of rules reads the
entities of every scheme, since a prefix means the same wherever it occurs:

    IOB2    every entity begins with B
    IOB1    I begins an entity; B does so only directly after another entity of its type
    BIOES   E ends an entity, S is one of a single word; also called IOBES
    BILOU   the same with L and U for E and S
    BMES    the same as BIOES with M for I, as Chinese sets have it

Entities are written in IOB2: it has the fewest labels of the schemes, so each is learnt from the
most examples, and transformers' token classifiers and most published files use it.
"""

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from electra.assignments import from_dict
from electra.errors import did_you_mean, require
from electra.model.config import EncoderConfig
from electra.model.task_heads import ClassifierHead, FeatureHead
from electra.tasks.classification import Labelled, order_labels
from electra.tasks.config import FinetuneConfig
from electra.tasks.conll import (
    ENTITY_TAG,
    FIELDS,
    FORMATS,
    LISTS,
    count_columns,
    read_sentences,
    read_words,
    tags_of,
)
from electra.tasks.family import Task, WrittenHead, name_outputs
from electra.tasks.record import Columns, Record, Records, find_splits
from electra.tasks.rows import Outputs, Rows, TaskBatch, encode_words, own_words, pad_rows
from electra.text.tables import format_of
from electra.tokenizing.tokenizer import Tokenizer

ENTITY_METRICS = ("f1", "precision", "recall", "accuracy")
LIKE_ENTITY = re.compile(r"[BI][-_:./|].+|.+[-_:./|][BI]", re.IGNORECASE)
"""Tags that other programs read as those of entities."""
MOST_UNSEEN = 0.01
"""Share of a file's words up to which their tags may be missing in train; more are another set."""


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
    ENTITY_TAG matches each tag.

    Source: conlleval.pl startOfChunk and endOfChunk; for B after E, and for S, which it does not
    know, get_entities of seqeval, which does the same elsewhere. M, which neither knows, is I.
    """
    entities: list[Entity] = []
    before, type_before = "O", ""
    for place, tag in enumerate(tags):
        prefix, entity_type = tag[0], type_of(tag)
        if prefix in "IMEL" and before in "BIM" and entity_type == type_before:
            entities[-1] = entities[-1]._replace(stop=place + 1)
        elif prefix != "O":
            entities.append(Entity(entity_type, place, place + 1))
        before, type_before = prefix, entity_type
    return entities


def write_tags(entities: Iterable[Entity], num_words: int) -> list[str]:
    """Return the IOB2 tags of a sentence's entities."""
    tags = ["O"] * num_words
    for entity_type, start, stop in entities:
        inner = [_tag("I", entity_type)] * (stop - start - 1)
        tags[start:stop] = [_tag("B", entity_type), *inner]
    return tags


def _tag(prefix: str, entity_type: str) -> str:
    return f"{prefix}-{entity_type}" if entity_type else prefix


class EntityCounts(NamedTuple):
    """Numbers of entities; scores without entities are 0, as in conlleval."""

    gold: int = 0
    predicted: int = 0
    correct: int = 0
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
    """Return the counts of each type that either side has, sorted by type, from their tags."""
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
    return EntityCounts(*map(sum, zip(*counts, strict=True)))


class TaggedSentence(NamedTuple):
    """Words and the tag of each."""

    words: list[str]
    tags: list[str]
    """Empty if they are unknown."""


def read_tagging_task(name: str, data: Path, config: FinetuneConfig) -> Task:
    """Return a task named after a folder, from its train, dev and, if there is one, test file.

    Tags name entities if one begins with B- or I-, or if each is O or a prefix alone; entities of
    every scheme become IOB2. Other tags, such as parts of speech, are labels as they are. The
    labels are those of train; rare others count as wrong. A test file may be without tags.
    Columns are those of TaggingConfig.
    """
    files = find_splits(data, FORMATS)
    columns = word_column, tag_column = config.tagging.word_column, config.tagging.tag_column
    paths = tuple(path for parts in files.values() for path in parts)
    require(
        columns == (1, 0) or not all(format_of(path) in LISTS for path in paths),
        f"tagging.word_column and tag_column are for files with columns, and {data} has none",
    )
    notes: list[str] = []
    records = {"train": [read_sentences(path, *columns, (), notes) for path in files["train"]]}
    train = files["train"][0]
    labels = order_labels({tag for part in records["train"] for tag in tags_of(part)})
    require(len(labels) > 1, f"{train}: every tag is {labels[0]!r}; two are needed")
    for split in ("dev", "test"):
        least = (tag_column or count_columns(train)) if split == "test" else 0
        for path in files.get(split, ()):
            part = read_sentences(path, *columns, labels, notes, least=least)
            if not part.columns.labels:
                notes.append(f"{path.name} has no tags; it will be predicted but not scored")
            records.setdefault(split, []).append(part)
    has_entities = any(tag.startswith(("B-", "I-")) for tag in labels) or all(
        ENTITY_TAG.fullmatch(tag) for tag in labels
    )
    for part in chain(*records.values()):
        notes += _check_tags(part, labels, has_entities)
    if has_entities:
        types = sorted({type_of(tag) for tag in labels if tag != "O"})
        labels = ("O", *(_tag(prefix, each) for each in types for prefix in "BI"))
    elif looks := [tag for tag in labels if LIKE_ENTITY.fullmatch(tag)]:
        notes.append(
            f"tags such as {looks[0]!r} are scored as plain tags, by accuracy; the tags of "
            "entities are O, and B- or I- before the type, such as B-PER"
        )
    numbers = str(word_column), str(tag_column or "last")
    names = FIELDS if format_of(train) in LISTS else numbers
    family = Tagging(labels, ENTITY_METRICS if has_entities else ("accuracy",))
    return Task(
        (data if data.is_dir() else data.parent).resolve().name,
        family,
        {split: list(_tag_all(family, parts)) for split, parts in records.items()},
        files=paths,
        columns=Columns(*((name,) for name in names)),
        notes=tuple(notes),
    )


def _tag_all(family: "Tagging", parts: Iterable[Records]) -> Iterator[TaggedSentence]:
    """Yield the sentences with their tags; those of entities become IOB2."""
    for part in parts:
        for sentence, row in zip(family.parse_all(part), part.table.rows, strict=True):
            tags = row["tags"] if part.columns.labels else []
            if family.metrics == ENTITY_METRICS:
                tags = write_tags(find_entities(tags), len(tags))
            yield sentence._replace(tags=tags)


def _check_tags(records: Records, train: Sequence[str], has_entities: bool) -> list[str]:
    """Refuse invalid tags, and tags that train lacks; if these are rare, report them instead."""
    path, types = records.table.path, {type_of(tag) for tag in train if tag != "O"}
    lines: dict[str, int] = {}
    counts = Counter(tags_of(records))
    for row in records.table.rows if records.columns.labels else ():
        for tag, line in zip(row["tags"], row["lines"], strict=True):
            lines.setdefault(tag, line)
    unseen: dict[str, str] = {}
    for tag, line in lines.items():
        place = f"{path} line {line}"
        require(
            tag != "" and " " not in tag and tag.isprintable(),
            f"{place}: the tag {tag!r} must be printable, without spaces and not empty",
        )
        require(
            not has_entities or ENTITY_TAG.fullmatch(tag) is not None,
            f"{place}: the tag {tag!r} must be O or begin with B-, I-, M-, E-, S-, L- or U-, as "
            "entities' tags do",
        )
        is_entity = has_entities and (tag == "O" or type_of(tag) in types)
        if not is_entity and tag not in train:
            unseen[tag] = f"{place}: train has no tag {tag!r}"
    if not unseen:
        return []
    (tag, told), count = next(iter(unseen.items())), sum(counts[tag] for tag in unseen)
    is_rare = count <= MOST_UNSEEN * counts.total()
    require(is_rare, f"{told}{did_you_mean(tag, train)}")
    return [f"{told}; words with such tags count as wrong: {count:,} of {counts.total():,}"]


class WordWindow(NamedTuple):
    """The part of a sentence that is one row."""

    words: range
    scored: frozenset[int]
    """The words whose tags are predicted in this row; the others are context."""


def cut_word_windows(sizes: Sequence[int], room: int) -> list[WordWindow]:
    """Return the windows of a sentence: whole words, each scored once, where it has most context.

    A row begins half a row before the end of the one before it, or later if the next word would not
    fit otherwise. A window that has no word to score is left out.
    Each word has 1 to `room` tokens.
    """
    begins = [0, *accumulate(sizes)]
    windows, start, stop = [], 0, 0
    while stop < len(sizes):
        stop = bisect_right(begins, begins[start] + room) - 1
        windows.append(range(start, stop))
        if stop < len(sizes):
            start = bisect_left(begins, max(begins[stop] - room // 2, begins[stop + 1] - room))
    owners = own_words(windows, begins) if windows else []
    scored = [
        WordWindow(words, frozenset(word for word in words if owners[word] == number))
        for number, words in enumerate(windows)
    ]
    return [window for window in scored if window.scored]


@dataclass(frozen=True)
class Tagging(Labelled):
    """Sentences whose every word has one of `labels`.

    Source: tagging_tasks.py and tagging_metrics.py, which drop words that do not fit into a row and
    score the others, lower-case and strip accents of any vocabulary, put all tokens in segment 1
    and count the loss twice; we do none of this.
    """

    fields: ClassVar[tuple[str, ...]] = ("tokens",)
    lists: ClassVar[tuple[str, ...]] = ("tokens",)
    convert = staticmethod(read_words)
    longest_row: ClassVar[int] = 256
    reads_features: ClassVar[bool] = True

    labels: tuple[str, ...] = ()
    """All tags."""
    metrics: tuple[str, ...] = ()
    """ENTITY_METRICS, or accuracy alone if the tags name no entities."""

    def is_labelled(self, example: TaggedSentence) -> bool:
        """Return whether the tags of a sentence are known."""
        return bool(example.tags)

    def parse(self, record: Record) -> TaggedSentence:
        """Return {"tokens": [...]}, a list of words, as a sentence; it may be empty."""
        words = record.texts("tokens")
        record.require("" not in words, "'tokens' has an empty text; a word must not be empty")
        return TaggedSentence(words, [])

    def is_blank(self, example: TaggedSentence) -> bool:
        """Return whether there are no words; white space may be one."""
        return not example.words

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
        rows: list[tuple[list[int], int]] = []
        targets, is_cut = [], []
        for sentence in examples:
            tokens = [tokens_of[word][:room] for word in sentence.words]
            is_cut.append(any(len(tokens_of[word]) > room for word in sentence.words))
            for window in cut_word_windows([len(each) for each in tokens], room):
                row, labels = [tokenizer.cls_id], [-1]
                for word in window.words:
                    # An unknown label may be any: it marks a word to answer.
                    known = label_ids.get(sentence.tags[word], 0) if sentence.tags else 0
                    label = known if word in window.scored else -1
                    row += tokens[word]
                    labels += [label] + [-1] * (len(tokens[word]) - 1)
                rows.append(([*row, tokenizer.sep_id], len(row) + 1))
                targets.append(torch.tensor([*labels, -1]))
        no_words = torch.zeros(0, 0, dtype=torch.int64)
        labels_NL = pad_sequence(targets, True, padding_value=-1) if targets else no_words
        return pad_rows(
            *(rows, {"labels": labels_NL}, tokenizer, examples),
            is_cut=is_cut,
            are_tokens_judged=True,
        )

    def build_head(self, sizes: EncoderConfig, config: FinetuneConfig) -> nn.Module:
        """Return dropout and a linear layer on every position, or BiLSTMs on features."""
        size, count, drop = sizes.hidden_size, len(self.labels), config.dropout_prob
        if config.features.layers:
            return FeatureHead(size, count, config.features, of="tokens", dropout_prob=drop)
        return ClassifierHead(sizes, count, drop, "none")

    def answer(self, head: nn.Module, states: Tensor, batch: TaskBatch) -> Outputs:
        """Return logits (B, l, labels)."""
        return {"logits": head(states, batch.attention_mask)}

    def judged(self, rows: Rows, values: Tensor) -> Tensor:
        """Return the values of the words at their first tokens, in order."""
        return values[rows.targets["labels"] >= 0]

    def measure(self, rows: Rows, decided: Sequence[float]) -> dict[str, float]:
        """Return the metrics over all words as fractions; empty if the tags are unknown."""
        if not self.is_labelled(rows.examples[0]):
            return {}
        gold = [sentence.tags for sentence in rows.examples]
        return self._measure_tags(gold, self._spell(rows, decided))

    def _measure_tags(
        self, gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]
    ) -> dict[str, float]:
        pairs = list(zip(chain(*gold), chain(*predicted), strict=True))
        scores = {"accuracy": sum(one == other for one, other in pairs) / len(pairs)}
        if self.metrics == ENTITY_METRICS:
            overall = sum_counts(count_entities(gold, predicted).values())
            scores |= {"f1": overall.f1, "precision": overall.precision, "recall": overall.recall}
        return {metric: scores[metric] for metric in self.metrics}

    def score_ensemble(self, folders: Sequence[Path]) -> dict[str, float]:
        """Return nothing: the files hold tags, which have no mean."""
        return {}

    def read_answers(self, folder: Path, split: str) -> list[dict[str, Any]]:
        """Return the tags of each sentence, and its words with "_" in place of white space."""
        kept = self._read_kept(folder, split)
        return [{"tokens": list(words), "tags": list(tags)} for words, _, tags in kept]

    def score_answers(self, folder: Path, split: str, examples: Sequence[Any]) -> dict[str, float]:
        """Return the metrics of the tags in the file."""
        kept = self._read_kept(folder, split)
        gold = [list(tags) for _, tags, _ in kept]
        right = [each.tags for each in examples] or gold
        is_right = list(map(list, right)) == gold
        require(is_right, f"{folder}: the labels of {split} are not those of the task's files")
        return self._measure_tags(gold, [tags for *_, tags in kept])

    def _read_kept(self, folder: Path, split: str) -> list[tuple[tuple[str, ...], ...]]:
        """Return the words, labels and predicted tags of each sentence of predictions.conll."""
        before = "" if split == "dev" else f"{split}_"
        text = (folder / f"{before}predictions.conll").read_text("utf-8")
        blocks = (block.split("\n") for block in text.strip("\n").split("\n\n"))
        return [tuple(zip(*(line.split(" ") for line in block), strict=True)) for block in blocks]

    def _spell(self, rows: Rows, decided: Iterable[float]) -> list[list[str]]:
        """Return the tag of each word of each sentence, from the numbers of the labels."""
        numbers = iter(decided)
        return [[self.labels[int(next(numbers))] for _ in each.words] for each in rows.examples]

    def _decide_tags(self, rows: Rows, outputs: Outputs) -> list[list[str]]:
        """Return the most likely tag of each word of each sentence."""
        return self._spell(rows, self.decide(rows, outputs).tolist() if len(rows) else [])

    def write_predictions(self, folder: Path, split: str, rows: Rows, outputs: Outputs) -> None:
        """Write each word with its label and prediction, and for entities the scores by type.

        predictions.conll has one `word label prediction` per line and a blank line after each
        sentence, as conlleval reads it; white space within a word, and an unknown label, becomes
        "_". types.tsv has one line per type.
        """
        predicted = self._decide_tags(rows, outputs)
        before = "" if split == "dev" else f"{split}_"
        lines = []
        for sentence, guesses in zip(rows.examples, predicted, strict=True):
            labels = sentence.tags or ["_"] * len(guesses)
            for word, label, guess in zip(sentence.words, labels, guesses, strict=True):
                lines.append(f"{'_'.join(word.split()) or '_'} {label} {guess}\n")
            lines.append("\n")
        text = "".join(lines)  # half a surrogate pair, which JSON can hold, is no character
        (folder / f"{before}predictions.conll").write_text(text, "utf-8", errors="replace")
        if self.metrics == ENTITY_METRICS and self.is_labelled(rows.examples[0]):
            counts = count_entities((sentence.tags for sentence in rows.examples), predicted)
            lines = ["type\tprecision\trecall\tf1\tgold\tpredicted\tcorrect\n"]
            for name, each in counts.items():
                scores = f"{each.precision:.6f}\t{each.recall:.6f}\t{each.f1:.6f}"
                numbers = f"{each.gold}\t{each.predicted}\t{each.correct}"
                lines.append(f"{name}\t{scores}\t{numbers}\n")
            (folder / f"{before}types.tsv").write_text("".join(lines), encoding="utf-8")

    def as_transformers(self, parameters: Mapping[str, Tensor]) -> WrittenHead:
        """Return a token classifier; the tag of a word is that of its first token."""
        return WrittenHead("TokenClassification", parameters, name_outputs(self.labels))

    def facts(self) -> dict[str, Any]:
        """Return the family's name and its labels."""
        return {"family": "tagging", "labels": list(self.labels)}

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> Self:
        """Return the family of a saved model."""
        return from_dict(cls, {"labels": facts["labels"]})

    def describe_blank(self, example: TaggedSentence) -> dict[str, Any]:
        """Return no words and no tags."""
        return {"tokens": [], "tags": []}

    def describe_answers(self, rows: Rows, outputs: Outputs) -> list[dict[str, Any]]:
        """Return each sentence's `tokens`, which are its words, and their `tags`."""
        predicted = self._decide_tags(rows, outputs)
        return [
            {"tokens": sentence.words, "tags": tags}
            for sentence, tags in zip(rows.examples, predicted, strict=True)
        ]
