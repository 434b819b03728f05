"""Files without labels, read as the records that a fine-tuned model answers.

Each reader takes the file, the columns that the user names, if any, and the facts of the saved
model, whose "columns" are those of its training. Labels in a file are ignored.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from electra.errors import require
from electra.tasks.choice import read_choice_questions
from electra.tasks.conll import JSON_FIELDS, JSON_LINES, TAGGING_FORMATS, read_words
from electra.tasks.squad_files import read_questions
from electra.text.streams import STDIN
from electra.text.tables import TABLE_FORMATS, TableFile, format_of, read_table, read_text_lines

Records = list[dict[str, Any]]
TEXT = ".txt"
QUESTION_COLUMNS = ("question", "context")


def read_text_records(path: Path, columns: Sequence[str], facts: dict[str, Any]) -> Records:
    """Return texts or pairs: the rows of a table, or the lines of plain text that are not blank.

    Raises:
        UserError: The file cannot be read, is empty or lacks a column, or is plain text though the
            model judges pairs.
    """
    trained = tuple(facts["columns"][:-1])  # the last is the label's
    if _is_plain(path):
        require(
            len(trained) == 1 and not columns,
            f"{path} is plain text, a text a line; {' and '.join(columns or trained)} must be "
            f"columns of a {', '.join(TABLE_FORMATS)} file",
        )
        return [{"text": line} for _, line in _read_plain(path)]
    _check_format(path, (TEXT, *TABLE_FORMATS))
    table = read_table(path)
    firsts, *seconds = _take_columns(table, columns, trained)
    if not seconds:
        return [{"text": text} for text in firsts]
    return [{"text_a": a, "text_b": b} for a, b in zip(firsts, seconds[0], strict=True)]


def read_choice_records(path: Path, columns: Sequence[str], facts: dict[str, Any]) -> Records:
    """Return contexts with their choices: the rows of a table.

    Raises:
        UserError: The file cannot be read, is empty or lacks a column, or a question has another
            number of choices than those of training.
    """
    _check_format(path, TABLE_FORMATS)
    table = read_table(path)
    context, *rest = _name_columns(table, columns, facts["columns"][:-1])  # the last is the label's
    begin = rest.pop(0) if facts["begin"] else ""
    questions = read_choice_questions(table, context=context, choices=rest, label=None, begin=begin)
    count = len(questions[0].choices)
    require(
        count == facts["num_choices"],
        f"{path}: {count} choices a row; the model was trained on {facts['num_choices']}",
    )
    return [{"context": each.context, "choices": list(each.choices)} for each in questions]


def read_token_records(path: Path, columns: Sequence[str], facts: dict[str, Any]) -> Records:
    """Return sentences of words: columns, JSON lines, or lines of plain text split at spaces.

    A .txt file is plain text unless the column of the word is named.

    Raises:
        UserError: The file cannot be read or is empty, a line does not fit, or several columns are
            named, or one that is no number.
    """
    require(len(columns) <= 1, f"--columns must name that of the word, not {', '.join(columns)}")
    if _is_plain(path) and not columns:
        lines = [(number, line.split()) for number, line in _read_plain(path)]
        last_words = {words[-1] for _, words in lines}
        require(
            not (last_words <= set(facts["labels"]) and any(map(str.isalnum, last_words))),
            f"{path}: every line ends with a tag, as in a file of columns; if it is one, say which "
            "column is the word's: --columns 1",
        )
        return [{"tokens": words} for _, words in lines]
    if format_of(path) == JSON_LINES:
        sentences = read_words(path, field=columns[0] if columns else JSON_FIELDS[0])
    else:
        _check_format(path, TAGGING_FORMATS)
        column = columns[0] if columns else facts["columns"][0]
        require(
            column.isdecimal() or not columns,
            f"--columns of a {format_of(path)} file must be the word's number, not {column!r}",
        )
        sentences = read_words(path, int(column) if column.isdecimal() else 1)
    return [{"tokens": each.words} for each in sentences]


def read_question_records(path: Path, columns: Sequence[str], facts: dict[str, Any]) -> Records:
    """Return questions: those of SQuAD's or MRQA's files, or the rows of a table.

    The id of a row is that of its column `id`; without such a column, the number of its line.

    Raises:
        UserError: The file cannot be read, is empty or is not of its format.
    """
    if format_of(path) == ".json":
        return _read_questions(path)
    _check_format(path, (".json", *TABLE_FORMATS))
    table = read_table(path)
    if not columns and {"header", "qas"} & set(table.columns):
        return _read_questions(path)
    texts, contexts = _take_columns(table, columns, QUESTION_COLUMNS)
    ids = table.column("id") if "id" in table.columns else map(str, table.lines)
    return [
        {"id": name, "question": text, "context": context}
        for name, text, context in zip(ids, texts, contexts, strict=True)
    ]


def _read_questions(path: Path) -> Records:
    questions = read_questions([path], is_labelled=False)
    return [{"id": each.id, "question": each.text, "context": each.context} for each in questions]


def _is_plain(path: Path) -> bool:
    return path == STDIN or format_of(path) == TEXT


def _read_plain(path: Path) -> list[tuple[int, str]]:
    """Return the lines that are not blank, with their numbers."""
    lines = [(number, line) for number, line in enumerate(read_text_lines(path), 1) if line.strip()]
    require(bool(lines), f"{path} is empty: it must have at least one line of text")
    return lines


def _check_format(path: Path, formats: Sequence[str]) -> None:
    require(
        format_of(path) in formats,
        f"{path} must be {', '.join(formats)}, compressed or not, not {format_of(path)!r}",
    )


def _take_columns(
    table: TableFile, columns: Sequence[str], expected: Sequence[str]
) -> list[list[str]]:
    """Return the values of the columns named, or else of those expected."""
    return [table.column(name) for name in _name_columns(table, columns, expected)]


def _name_columns(table: TableFile, columns: Sequence[str], expected: Sequence[str]) -> list[str]:
    """Return the columns named, or else those expected, all of which are there."""
    require(
        len(columns) in (0, len(expected)),
        f"--columns must name {len(expected)}, as {', '.join(expected)}, not {', '.join(columns)}",
    )
    missing = [name for name in columns or expected if name not in table.columns]
    require(
        not missing,
        f"{table.path}: no column {', '.join(map(repr, missing))}; its columns are "
        f"{', '.join(table.columns)}; say with --columns which to read in place of "
        f"{', '.join(expected)}",
    )
    return list(columns or expected)
