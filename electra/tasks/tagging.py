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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from electra.errors import UserError, did_you_mean, require
from electra.model.config import EncoderConfig
from electra.model.task_heads import ClassifierHead, FeatureHead
from electra.tasks.classification import Labelled, order_labels
from electra.tasks.config import FinetuneConfig
from electra.tasks.family import (
    Columns,
    Inputs,
    Record,
    Task,
    WrittenHead,
    find_splits,
    is_plain,
    is_unlabelled,
    name_outputs,
)
from electra.tasks.rows import Outputs, Rows, TaskBatch, encode_words, own_words, pad_rows
from electra.text.table_files import TableFile, read_table, read_text_lines, read_texts
from electra.text.tables import format_of, require_format
from electra.tokenizing.tokenizer import Tokenizer

LISTS = (".jsonl", ".parquet")
"""Formats with a sentence a row, whose words and tags are lists."""
FORMATS = (".txt", ".conll", ".conllu", ".tsv", ".iob", *LISTS)
FIELDS = ("tokens", "tags")
"""Names of the lists."""
TAGS = (FIELDS[1], "ner_tags")
"""Names of the lists of tags, of which the first is taken that is there."""
DOCUMENT_START = "-DOCSTART-"
ENTITY_METRICS = ("f1", "precision", "recall", "accuracy")
ENTITY_TAG = re.compile(r"O|[BIMESLU](-.+)?")
LIKE_ENTITY = re.compile(r"[BI][-_:./|].+|.+[-_:./|][BI]", re.IGNORECASE)
"""Tags that other programs read as those of entities."""
MOST_UNSEEN = 0.01
"""Share of a file's words up to which their tags may be missing in train; more are another set."""
INNER_ROW = re.compile("[0-9]+[-.][0-9]+")
"""Number of a row of CoNLL-U that notes on the words around it: 3-4, 3.1."""


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
    lines: list[int]
    """Line of each word in its file, from 1."""


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
    read = {"train": [(path, read_sentences(path, *columns, (), notes)) for path in files["train"]]}
    tags = {tag for _, part in read["train"] for sentence in part for tag in sentence.tags}
    train, labels = files["train"][0], order_labels(tags)
    require(len(labels) > 1, f"{train}: every tag is {labels[0]!r}; two are needed")
    has_entities = any(tag.startswith(("B-", "I-")) for tag in labels) or all(
        ENTITY_TAG.fullmatch(tag) for tag in labels
    )
    for split in ("dev", "test"):
        for path in files.get(split, ()):
            column: int | None = tag_column
            if split == "test" and _lacks_tags(path, train, *columns, labels):
                column = None
                notes.append(f"{path.name} has no tags; it will be predicted but not scored")
            part = read_sentences(path, word_column, column, labels, notes)
            read.setdefault(split, []).append((path, part))
    for path, part in chain.from_iterable(read.values()):
        notes += _check_tags(path, part, labels, has_entities)
    splits = {split: [each for _, part in parts for each in part] for split, parts in read.items()}
    if has_entities:
        types = sorted({type_of(tag) for tag in labels if tag != "O"})
        labels = ("O", *(_tag(prefix, each) for each in types for prefix in "BI"))
        for sentences in splits.values():
            sentences[:] = [
                each._replace(tags=write_tags(find_entities(each.tags), len(each.tags)))
                for each in sentences
            ]
    elif looks := [tag for tag in labels if LIKE_ENTITY.fullmatch(tag)]:
        notes.append(
            f"tags such as {looks[0]!r} are scored as plain tags, by accuracy; the tags of "
            "entities are O, and B- or I- before the type, such as B-PER"
        )
    numbers = str(word_column), str(tag_column or "last")
    names = FIELDS if format_of(train) in LISTS else numbers
    return Task(
        (data if data.is_dir() else data.parent).resolve().name,
        Tagging(labels, ENTITY_METRICS if has_entities else ("accuracy",)),
        splits,
        files=paths,
        columns=Columns(*((name,) for name in names)),
        notes=tuple(notes),
    )


def _lacks_tags(
    path: Path, train: Path, word_column: int, tag_column: int, labels: Sequence[str]
) -> bool:
    """Return whether a test file has fewer columns than train, or tags that are no labels."""
    if format_of(path) in LISTS:
        table = read_table(path)
        cells = [row.get(_tags_of(table)) or [None] for row in table.rows]
        return is_unlabelled(
            chain.from_iterable(cell if isinstance(cell, list) else [cell] for cell in cells),
            labels,
        )
    most = tag_column or (2 if format_of(train) in LISTS else _count_columns(train))
    if _count_columns(path) < most:
        return True
    read = read_sentences(path, word_column, tag_column, labels, [])
    return is_unlabelled((tag for sentence in read for tag in sentence.tags), labels)


def _count_columns(path: Path) -> int:
    lines = read_text_lines(path)
    model, split = _find_model(lines)
    return len(split(lines[model])) if model >= 0 else 0


def _check_tags(
    path: Path, sentences: Sequence[TaggedSentence], train: Sequence[str], has_entities: bool
) -> list[str]:
    """Refuse tags that are none, and train has none of, unless they are rare: then tell them."""
    types = {type_of(tag) for tag in train if tag != "O"}
    lines: dict[str, int] = {}
    counts = Counter[str]()
    for sentence in sentences:
        counts.update(sentence.tags)
        for tag, line in zip(sentence.tags, sentence.lines, strict=False):
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


def read_sentences(
    path: Path,
    word_column: int,
    tag_column: int | None,
    known: Sequence[str],
    notes: list[str],
    field: str = FIELDS[0],
) -> list[TaggedSentence]:
    """Return the sentences of a file; without a tag column its tags are ignored.

    A column file has a word a line and a blank line after each sentence (`_read_columns`). A row of
    the other formats is a sentence: {"tokens": ["A", "boat"], "tags": ["O", "O"]}. Without a tag
    column it may have no words. `known` are tags that other files have; `notes` are added to.
    """
    if format_of(path) in LISTS:
        sentences = _read_lists(path, field, has_tags=tag_column is not None)
    else:
        sentences = _read_columns(path, word_column, tag_column, known, notes)
        counts = [[str(number + 1) for number in range(len(each.words))] for each in sentences]
        require(
            [each.words for each in sentences] != counts or max(map(len, counts), default=0) < 2,
            f"{path}: column {word_column} numbers the words; name the column of the words, such "
            "as tagging.word_column=2 (of `electra predict`: --columns 2)",
        )
    has_words = any(sentence.words for sentence in sentences)
    require(has_words, f"{path} is empty: it must have at least one word")
    for words, _, lines in sentences:
        if "" in words:
            place = f"{path} line {lines[words.index('')]}"
            raise UserError(f"{place}: the word must not be empty")
    return sentences


def _read_lists(path: Path, field: str, *, has_tags: bool) -> list[TaggedSentence]:
    table = read_table(path)
    words_of = table.lists(field)
    tags_of = table.lists(_tags_of(table)) if has_tags else [()] * len(words_of)
    sentences = []
    for number, (words, tags) in enumerate(zip(words_of, tags_of, strict=True)):
        require(
            not has_tags or len(words) == len(tags),
            f"{table.place(number)}: {len(words)} tokens and {len(tags)} tags; each token must "
            "have one tag",
        )
        if words or not has_tags:
            line = table.lines[number]
            sentences.append(TaggedSentence(list(words), list(tags), [line] * len(words)))
    return sentences


def _tags_of(table: TableFile) -> str:
    """Return the name of the tags' lists; of several columns that hubs have, the entities'."""
    return next((name for name in TAGS if name in table.columns), TAGS[0])


def _find_model(lines: Sequence[str]) -> tuple[int, Callable[[str], list[str]]]:
    """Return which line of a file the others are like (-1: none), and what splits a line."""
    words = [
        number
        for number, line in enumerate(lines)
        if line.strip() and not line.startswith(DOCUMENT_START)
    ]
    model = next((n for n in words if not lines[n].startswith("#")), [*words, -1][0])
    if model >= 0 and "\t" in lines[model]:
        return model, lambda line: line.split("\t")
    # Not split(): words of white space, such as U+00A0, are words.
    return model, lambda line: [cell for cell in line.split(" ") if cell]


def _read_columns(
    path: Path, word_column: int, tag_column: int | None, known: Sequence[str], notes: list[str]
) -> list[TaggedSentence]:
    """Return the sentences of a file with a word a line."""
    lines = read_text_lines(path)
    model, split_line = _find_model(lines)
    if model < 0:
        return []
    split = [split_line(line) for line in lines]
    first, num_columns = model + 1, len(split[model])
    _check_columns(f"{path} line {first}", num_columns, word_column, tag_column)
    place = (tag_column or 0) - 1  # of tag_column 0 the last
    whole = [row for row in split if len(row) == num_columns]
    borders = ("#", DOCUMENT_START)
    begins = [not line.strip() or line.startswith(borders) for line in ["", *lines[:-1]]]
    # Before a sentence a line with # holds a word if it has the columns and a tag that is known, of
    # another line or an entity's; others are comments, such as "# text = ..." in CoNLL-U.
    tags = {*known} | {
        row[place]
        for line, row, is_first in zip(lines, split, begins, strict=True)
        if len(row) == num_columns and not (is_first and line.startswith("#"))
    }
    # Then rows 3-4 and 3.1 are no words.
    is_numbered = word_column > 1 and any(row[0] == "1" for row in whole)
    sentences, passed = [TaggedSentence([], [], [])], []
    for number, (line, row) in enumerate(zip(lines, split, strict=True), 1):
        words, tags_of, numbers = sentences[-1]
        if not line.strip() or line.startswith(DOCUMENT_START):
            sentences.append(TaggedSentence([], [], []))
            continue
        is_like = len(row) == num_columns
        if line.startswith("#") and not words:
            is_tag = is_like and (row[place] in tags or ENTITY_TAG.fullmatch(row[place]))
            if not (is_tag or (is_like and num_columns == 1)):
                passed += [line] if is_like else []
                continue
        if not is_like:
            raise UserError(
                f"{path} line {number}: {len(row)} columns; it must have {num_columns}, as line "
                f"{first} has"
            )
        if not (is_numbered and INNER_ROW.fullmatch(row[0])):
            words.append(row[word_column - 1])
            numbers.append(number)
            tags_of.extend([] if tag_column is None else [row[place]])
    if passed:
        count = f"{len(passed):,} lines, such as {passed[0]!r},"
        notes.append(
            f"{path.name}: {count} are treated as comments, because their tag occurs nowhere else"
        )
    return [sentence for sentence in sentences if sentence.words]


def _check_columns(place: str, num_columns: int, word_column: int, tag_column: int | None) -> None:
    require(
        num_columns >= 2 or tag_column is None,
        f"{place}: one column; a word and its tag are needed, with a tab or spaces between them",
    )
    columns = (("word_column", word_column, 1), ("tag_column", tag_column or 0, 0))
    for name, column, least in columns:
        if not least <= column <= num_columns:
            raise UserError(f"{place}: {name} must lie in {least} to {num_columns}, not {column}")
    require(
        tag_column is None or (tag_column or num_columns) != word_column,
        f"{place}: word_column and tag_column must differ; both are column {word_column} of "
        f"{num_columns}",
    )


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
        return TaggedSentence(words, [], [])

    def is_blank(self, example: TaggedSentence) -> bool:
        """Return whether there are no words; white space may be one."""
        return not example.words

    def read_inputs(
        self, path: Path, columns: Sequence[str], trained: Columns, separator: str = ""
    ) -> Inputs:
        """Return sentences of words: columns, JSON lines, or lines of plain text split at spaces.

        A .txt file is plain text unless the column of the word is named.
        """
        require(
            len(columns) <= 1, f"--columns must name that of the word, not {', '.join(columns)}"
        )
        if is_plain(path) and not columns:
            lines = [line.split() for line in read_texts(path)]
            (word,), (tag,) = trained
            place = int(tag) - 1 if tag.isdecimal() else -1
            rows = [words for words in lines if words[:1] != ["#"] and len(words) > max(0, place)]
            tags = {words[place] for words in rows}
            require(
                not (tags <= set(self.labels) and any(map(str.isalnum, tags))),
                f"{path}: every line has a tag, as in a file of columns; if it is one, say which "
                f"column is the word's: --columns {word if word.isdecimal() else 1}",
            )
            found: list[dict[str, Any]] = [{"tokens": words} for words in lines]
            return Inputs(found, found)
        require_format(path, FORMATS)
        (column,) = columns or trained.inputs
        require(
            format_of(path) in LISTS or column.isdecimal() or not columns,
            f"--columns of a {format_of(path)} file must be the word's number, not {column!r}",
        )
        number, field = int(column) if column.isdecimal() else 1, [*columns, FIELDS[0]][0]
        sentences = read_sentences(path, number, None, self.labels, [], field)
        found = list(map(self.record, sentences))
        return Inputs(found, read_table(path).rows if format_of(path) in LISTS else found)

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

        predictions.conll has `word label prediction` a line and a blank line after each sentence,
        as conlleval reads it; white space within a word, and a label that is unknown, becomes "_".
        types.tsv has a line a type.
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
        return cls(tuple(facts["labels"]))

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
