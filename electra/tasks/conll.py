"""Files of tagged words: CoNLL's columns or JSON lines, compressed or not."""

import reprlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from electra.errors import UserError, did_you_mean, require
from electra.tasks.family import Task
from electra.tasks.tagging import (
    ENTITY_METRICS,
    ENTITY_TAG,
    TaggedSentence,
    Tagging,
    find_entities,
    type_of,
    write_tags,
)
from electra.text.tables import format_of, read_table, read_text_lines, stem_of

TAGGING_FILE_NAMES = {
    "train": ("train",),
    "dev": ("dev", "valid", "validation", "val", "testa"),
    "test": ("test", "testb"),
}
JSON_LINES = ".jsonl"
TAGGING_FORMATS = (".txt", ".conll", ".tsv", ".iob", JSON_LINES)
JSON_FIELDS = ("tokens", "tags")
DOCUMENT_START = "-DOCSTART-"


def read_tagging_task(data: Path, *, word_column: int = 1, tag_column: int = 0) -> Task:
    """Return a task named after a folder, from its train, dev and, if there is one, test file.

    Tags name entities if one begins with B- or I-, or if each is O or a prefix alone; entities.py
    has the schemes, all of which become IOB2. Other tags, such as parts of speech, are labels as
    they are. The labels are those of train.

    Args:
        data: The folder.
        word_column: Column of the word in column files, from 1.
        tag_column: Column of the tag, from 1; 0: the last.

    Raises:
        UserError: A file is missing, ambiguous, empty or malformed, train has one label only, or
            dev or test has one that train lacks.
    """
    files = _find_files(data)
    splits = {
        split: read_tagged_sentences(path, word_column, tag_column) for split, path in files.items()
    }
    labels = tuple(sorted({tag for sentence in splits["train"] for tag in sentence.tags}))
    require(len(labels) > 1, f"{files['train']}: every tag is {labels[0]!r}; two are needed")
    has_entities = any(tag.startswith(("B-", "I-")) for tag in labels) or all(
        ENTITY_TAG.fullmatch(tag) for tag in labels
    )
    for split, path in files.items():
        _check_tags(path, splits[split], labels, has_entities)
    if has_entities:
        labels = _list_labels(labels)
        splits = {split: [_to_iob2(each) for each in splits[split]] for split in splits}
    is_json = format_of(files["train"]) == JSON_LINES
    return Task(
        data.resolve().name,
        Tagging(labels, ENTITY_METRICS if has_entities else ("accuracy",)),
        splits,
        files=tuple(files.values()),
        columns=JSON_FIELDS if is_json else (str(word_column), str(tag_column or "last")),
    )


def _find_files(data: Path) -> dict[str, Path]:
    require(data.is_dir(), f"{data} is not a folder; give the one with train and dev files")
    files = {}
    for split, names in TAGGING_FILE_NAMES.items():
        found = sorted(
            path
            for path in data.iterdir()
            if stem_of(path, TAGGING_FORMATS) in names and path.is_file()
        )
        if len(found) > 1:
            listed = ", ".join(path.name for path in found)
            raise UserError(f"{data} has several {split} files: {listed}; keep one of them there")
        if not found and split != "test":
            raise UserError(
                f"{data} has no {split} file; add {' or '.join(names)} with "
                f"{', '.join(TAGGING_FORMATS)}"
            )
        if found:
            files[split] = found[0]
    return files


def _check_tags(
    path: Path, sentences: Sequence[TaggedSentence], train: Sequence[str], has_entities: bool
) -> None:
    tags, types = set(train), {type_of(tag) for tag in train if tag != "O"}
    for sentence in sentences:
        for line, tag in zip(sentence.lines, sentence.tags, strict=True):
            if has_entities and not ENTITY_TAG.fullmatch(tag):
                raise UserError(
                    f"{path} line {line}: the tag {tag!r} must be O or begin with B-, I-, E-, S-, "
                    "L- or U-, as entities' tags do"
                )
            names_known = has_entities and (tag == "O" or type_of(tag) in types)
            if not (names_known or tag in tags):
                raise UserError(
                    f"{path} line {line}: train has no tag {tag!r}{did_you_mean(tag, train)}"
                )


def _list_labels(tags: Sequence[str]) -> tuple[str, ...]:
    """Return O and the two IOB2 labels of each type."""
    types = sorted({type_of(tag) for tag in tags if tag != "O"})
    endings = [f"-{entity_type}" if entity_type else "" for entity_type in types]
    return ("O", *(prefix + ending for ending in endings for prefix in "BI"))


def _to_iob2(sentence: TaggedSentence) -> TaggedSentence:
    return sentence._replace(tags=write_tags(find_entities(sentence.tags), len(sentence.words)))


def read_tagged_sentences(path: Path, word_column: int, tag_column: int) -> list[TaggedSentence]:
    """Return the sentences of a file, none of them empty.

    A column file has a word a line and a blank line after each sentence. Its columns are separated
    by tabs if its first word's line has one, else by spaces. A line that begins with -DOCSTART- is
    no word. If the file begins with a comment, "# ..." as in CoNLL-U, so may every sentence; where
    the word is not the first column, lines numbered 3-4 or 3.1 are no words then, but CoNLL-U's
    notes on those around them.

    A line of a .jsonl file is a sentence: {"tokens": ["A", "boat"], "tags": ["O", "O"]}.

    Args:
        path: The file.
        word_column: Column of the word, from 1; of a column file only, as the next.
        tag_column: Column of the tag, from 1; 0: the last.

    Raises:
        UserError: The file cannot be read or is empty, or a line does not fit.
    """
    if format_of(path) == JSON_LINES:
        sentences = _read_json_lines(path)
    else:
        sentences = _read_columns(path, word_column, tag_column)
    _check_words(path, sentences)
    for sentence in sentences:
        for line, tag in zip(sentence.lines, sentence.tags, strict=True):
            if not tag or " " in tag or not tag.isprintable():
                raise UserError(
                    f"{path} line {line}: the tag {tag!r} must be printable, without spaces and "
                    "not empty"
                )
    return sentences


def read_words(
    path: Path, word_column: int = 1, field: str = JSON_FIELDS[0]
) -> list[TaggedSentence]:
    """Return the sentences of a file without tags, or whose tags are ignored.

    As `read_tagged_sentences`, except that a column file may have a single column, and that a line
    of a .jsonl file without words is a sentence, too.

    Args:
        path: The file.
        word_column: Column of the word, from 1, of a column file.
        field: Name of the list of words, of a .jsonl file.

    Raises:
        UserError: The file cannot be read or has no word, or a line does not fit.
    """
    if format_of(path) == JSON_LINES:
        table = read_table(path)
        sentences = []
        for line, row in zip(table.lines, table.rows, strict=True):
            words = _read_list(f"{path} line {line}", row, field)
            sentences.append(TaggedSentence(words, [], [line] * len(words)))
    else:
        sentences = _read_columns(path, word_column, None)
    _check_words(path, sentences)
    return sentences


def _check_words(path: Path, sentences: Sequence[TaggedSentence]) -> None:
    has_words = any(sentence.words for sentence in sentences)
    require(has_words, f"{path} is empty: it must have at least one word")
    for sentence in sentences:
        for line, word in zip(sentence.lines, sentence.words, strict=True):
            require(word != "", f"{path} line {line}: the word must not be empty")


def _read_columns(path: Path, word_column: int, tag_column: int | None) -> list[TaggedSentence]:
    lines = read_text_lines(path)
    has_comments = lines[0].startswith("# ")
    blocks = _split_blocks(lines, has_comments)
    if not blocks:
        return []
    first_number, first_line = blocks[0][0]
    separator = "\t" if "\t" in first_line else " "
    num_columns = len(_split_line(first_line, separator))
    _check_columns(f"{path} line {first_number}", num_columns, word_column, tag_column)
    has_notes = has_comments and word_column != 1
    sentences = []
    for block in blocks:
        sentence = TaggedSentence([], [], [])
        for number, line in block:
            columns = _split_line(line, separator)
            if len(columns) != num_columns:
                raise UserError(
                    f"{path} line {number}: {len(columns)} columns; it must have {num_columns}, "
                    f"as line {first_number} has"
                )
            if not has_notes or columns[0].isdecimal():
                sentence.words.append(columns[word_column - 1])
                sentence.lines.append(number)
                if tag_column is not None:
                    sentence.tags.append(columns[tag_column - 1])  # of tag_column 0 the last
        if sentence.words:
            sentences.append(sentence)
    return sentences


def _split_blocks(lines: list[str], has_comments: bool) -> list[list[tuple[int, str]]]:
    """Return the numbered lines of each sentence."""
    blocks: list[list[tuple[int, str]]] = [[]]
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith(DOCUMENT_START):
            blocks.append([])
        elif blocks[-1] or not has_comments or not line.startswith("#"):
            blocks[-1].append((number, line))
    return [block for block in blocks if block]


def _split_line(line: str, separator: str) -> list[str]:
    # Not split(): words of white space, such as U+00A0, are words.
    columns = line.split(separator)
    return columns if separator == "\t" else [column for column in columns if column]


def _check_columns(place: str, num_columns: int, word_column: int, tag_column: int | None) -> None:
    require(
        num_columns >= 2 or tag_column is None,
        f"{place}: one column; a word and its tag are needed, with a tab or spaces between them",
    )
    require(
        1 <= word_column <= num_columns,
        f"{place}: word_column must lie in 1 to {num_columns}, not {word_column}",
    )
    if tag_column is None:
        return
    require(
        0 <= tag_column <= num_columns,
        f"{place}: tag_column must lie in 0 to {num_columns}, not {tag_column}",
    )
    require(
        (tag_column or num_columns) != word_column,
        f"{place}: word_column and tag_column must differ; both are column {word_column} of "
        f"{num_columns}",
    )


def _read_json_lines(path: Path) -> list[TaggedSentence]:
    table = read_table(path)
    sentences = []
    for line, row in zip(table.lines, table.rows, strict=True):
        words, tags = (_read_list(f"{path} line {line}", row, name) for name in JSON_FIELDS)
        if len(words) != len(tags):
            raise UserError(
                f"{path} line {line}: {len(words)} tokens and {len(tags)} tags; each token must "
                "have one tag"
            )
        if words:
            sentences.append(TaggedSentence(words, tags, [line] * len(words)))
    return sentences


def _read_list(place: str, row: dict[str, Any], name: str) -> list[str]:
    if name not in row:
        raise UserError(f"{place}: no {name!r}{did_you_mean(name, row)}")
    values = row[name]
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise UserError(f"{place}: {name!r} must be a list of texts, not {reprlib.repr(values)}")
    return values
