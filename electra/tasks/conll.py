"""Records of sentences, whose words may have tags, out of CoNLL's columns, lists or plain text.

A record has `tokens`, `tags`, which are empty if they are not read, and `lines`, the line of each
word in the file.
"""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from electra.errors import UserError, require
from electra.tasks.record import Asked, Columns, Records, is_plain, is_unlabelled, list_records
from electra.text.table_files import TableFile, read_table, read_text_lines, read_texts
from electra.text.tables import format_of, require_format

LISTS = (".jsonl", ".parquet")
"""Formats with a sentence a row, whose words and tags are lists."""
FORMATS = (".txt", ".conll", ".conllu", ".tsv", ".iob", *LISTS)
FIELDS = ("tokens", "tags")
"""Names of the lists."""
TAGS = (FIELDS[1], "ner_tags")
"""Names of the lists of tags, of which the first is taken that is there."""
DOCUMENT_START = "-DOCSTART-"
ENTITY_TAG = re.compile(r"O|[BIMESLU](-.+)?")
INNER_ROW = re.compile("[0-9]+[-.][0-9]+")
"""Number of a row of CoNLL-U that notes on the words around it: 3-4, 3.1."""


def read_words(path: Path, asked: Asked) -> Records:
    """Return sentences of words to tag: columns, lists, or lines of plain text split at spaces.

    A .txt file is plain text unless the column of the word is named.
    """
    named = asked.named
    require(len(named) <= 1, f"--columns must name that of the word, not {', '.join(named)}")
    if is_plain(path) and not named:
        return _read_lines(path, asked)
    require_format(path, FORMATS)
    (column,) = named or asked.columns.inputs
    require(
        format_of(path) in LISTS or column.isdecimal() or not named,
        f"--columns of a {format_of(path)} file must be the word's number, not {column!r}",
    )
    number, field = int(column) if column.isdecimal() else 1, [*named, FIELDS[0]][0]
    return read_sentences(path, number, None, asked.labels, [], field=field)


def _read_lines(path: Path, asked: Asked) -> Records:
    """Return lines of plain text; refuse one that looks like a file of columns."""
    lines = [line.split() for line in read_texts(path)]
    (word,), (tag,) = asked.columns
    place = int(tag) - 1 if tag.isdecimal() else -1
    rows = [words for words in lines if words[:1] != ["#"] and len(words) > max(0, place)]
    tags = {words[place] for words in rows}
    require(
        not (tags <= set(asked.labels) and any(map(str.isalnum, tags))),
        f"{path}: every line has a tag, as in a file of columns; if it is one, say which "
        f"column is the word's: --columns {word if word.isdecimal() else 1}",
    )
    return list_records(path, Columns(("tokens",)), [{"tokens": words} for words in lines])


def read_sentences(
    path: Path,
    word_column: int,
    tag_column: int | None,
    known: Collection[str],
    notes: list[str],
    *,
    field: str = FIELDS[0],
    least: int = 0,
) -> Records:
    """Return the sentences of a file; without a tag column its tags are ignored.

    A column file has one word per line and a blank line after each sentence. In other formats a row
    is a sentence, such as {"tokens": ["A", "boat"], "tags": ["O", "O"]}. It may be empty if there
    is no tag column. `known`: tags in other files. `notes`: list to extend. `least`: number of
    columns of a file with tags, if tags are optional; else 0.
    """
    is_list = format_of(path) in LISTS
    if is_list:
        table = read_table(path)
        sentences, has_tags = _read_lists(table, field, tag_column, known, least)
    else:
        sentences, has_tags = _read_columns(path, word_column, tag_column, known, notes, least)
        words_of = [row["tokens"] for row in sentences.rows]
        counts = [[str(number + 1) for number in range(len(words))] for words in words_of]
        require(
            words_of != counts or max(map(len, counts), default=0) < 2,
            f"{path}: column {word_column} numbers the words; name the column of the words, such "
            "as tagging.word_column=2 (of `electra predict`: --columns 2)",
        )
    has_words = any(row["tokens"] for row in sentences.rows)
    require(has_words, f"{path} is empty: it must have at least one word")
    for row in sentences.rows:
        if "" in row["tokens"]:
            place = f"{path} line {row['lines'][row['tokens'].index('')]}"
            raise UserError(f"{place}: the word must not be empty")
    kept = table.rows if is_list else [{"tokens": row["tokens"]} for row in sentences.rows]
    return Records(sentences, Columns(("tokens",), ("tags",) if has_tags else ()), kept)


def _read_lists(
    table: TableFile, field: str, tag_column: int | None, known: Collection[str], least: int
) -> tuple[TableFile, bool]:
    """Return a table's sentences, and whether they have tags."""
    name = next((name for name in TAGS if name in table.columns), TAGS[0])
    has_tags = tag_column is not None
    if least:
        cells = [row.get(name) or [None] for row in table.rows]
        found = (tag for each in cells for tag in (each if isinstance(each, list) else [each]))
        has_tags = not is_unlabelled(found, known)
    words_of = table.lists(field)
    tags_of = table.lists(name) if has_tags else [()] * len(words_of)
    rows, lines = [], []
    for number, (words, tags) in enumerate(zip(words_of, tags_of, strict=True)):
        require(
            not has_tags or len(words) == len(tags),
            f"{table.place(number)}: {len(words)} tokens and {len(tags)} tags; each token must "
            "have one tag",
        )
        if words or not has_tags:
            lines.append(table.lines[number])
            places = [table.lines[number]] * len(words)
            rows.append({"tokens": list(words), "tags": list(tags), "lines": places})
    return replace(table, columns=FIELDS, rows=rows, lines=lines, names={}), has_tags


def tags_of(records: Records) -> Iterator[str]:
    """Yield the tags of all words; none if they are not read."""
    for row in records.table.rows if records.columns.labels else ():
        yield from row["tags"]


def count_columns(path: Path) -> int:
    """Return how many columns a file has: words and tags, if it has lists."""
    if format_of(path) in LISTS:
        return len(FIELDS)
    lines = read_text_lines(path)
    model, split = _find_model(lines)
    return len(split(lines[model])) if model >= 0 else 0


def _find_model(lines: Sequence[str]) -> tuple[int, Callable[[str], list[str]]]:
    """Return the number of the line that shows the columns (-1: none), and how to split lines."""
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
    path: Path,
    word_column: int,
    tag_column: int | None,
    known: Collection[str],
    notes: list[str],
    least: int,
) -> tuple[TableFile, bool]:
    """Return the sentences of a file with a word a line, and whether they have tags."""
    lines = read_text_lines(path)
    model, split_line = _find_model(lines)
    split = [split_line(line) for line in lines]
    if model < 0:
        return TableFile(path, FIELDS, [], []), False
    first, num_columns = model + 1, len(split[model])
    if num_columns < least:
        tag_column = None
    _check_columns(f"{path} line {first}", num_columns, word_column, tag_column)
    place = (tag_column or 0) - 1  # tag_column 0 is the last column
    # A line with # before a sentence holds a word if it has all columns, and its tag is known or is
    # an entity tag. Other such lines are comments, such as "# text = ..." in CoNLL-U.
    tags = {*known, *_list_tags(lines, split, num_columns, place)}
    # If rows are numbered, rows such as 3-4 and 3.1 are not words.
    is_numbered = word_column > 1 and any(row[0] == "1" for row in split if len(row) == num_columns)
    rows: list[dict[str, list[Any]]] = [{"tokens": [], "tags": [], "lines": []}]
    passed: list[str] = []
    for number, (line, row) in enumerate(zip(lines, split, strict=True), 1):
        words, found, numbers = rows[-1].values()
        if not line.strip() or line.startswith(DOCUMENT_START):
            rows.append({"tokens": [], "tags": [], "lines": []})
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
            found.extend([] if tag_column is None else [row[place]])
    if passed:
        count = f"{len(passed):,} lines, such as {passed[0]!r},"
        notes.append(
            f"{path.name}: {count} are treated as comments, because their tag occurs nowhere else"
        )
    rows = [each for each in rows if each["tokens"]]
    has_tags = tag_column is not None
    if least and is_unlabelled((tag for each in rows for tag in each["tags"]), known):
        has_tags = False
    return TableFile(path, FIELDS, rows, [each["lines"][0] for each in rows]), has_tags


def _list_tags(
    lines: Sequence[str], split: Sequence[Sequence[str]], num_columns: int, place: int
) -> Iterator[str]:
    """Yield the tags of lines that cannot be comments."""
    borders = ("#", DOCUMENT_START)
    begins = [not line.strip() or line.startswith(borders) for line in ["", *lines[:-1]]]
    for line, row, is_first in zip(lines, split, begins, strict=True):
        if len(row) == num_columns and not (is_first and line.startswith("#")):
            yield row[place]


def _check_columns(place: str, num_columns: int, word_column: int, tag_column: int | None) -> None:
    require(
        num_columns >= 2 or tag_column is None,
        f"{place}: one column; a word and its tag are needed, with a tab or spaces between them",
    )
    columns = (("word_column", word_column, 1), ("tag_column", tag_column or 0, 0))
    for name, column, least in columns:
        if not least <= column <= num_columns:
            raise UserError(f"{place}: {name} must be {least} to {num_columns}, not {column}")
    require(
        tag_column is None or (tag_column or num_columns) != word_column,
        f"{place}: word_column and tag_column must differ; both are column {word_column} of "
        f"{num_columns}",
    )
