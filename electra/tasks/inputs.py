"""Files without labels, read as what a fine-tuned model answers: one input after the other.

Each reader takes the file, the columns its user names, if any, and the facts of the saved model,
whose "columns" are those it was trained on. Labels that a file has all the same are not looked at.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from electra.config import require
from electra.corpus.compression import STDIN
from electra.tasks.choice import ChoiceQuestion, read_choice_questions
from electra.tasks.classification import Example
from electra.tasks.conll import FORMATS as TAGGING_FORMATS
from electra.tasks.conll import JSON_FIELDS, JSON_LINES, read_words
from electra.tasks.squad_data import SpanQuestion, read_questions
from electra.tasks.table import FORMATS, TableFile, format_of, read_table, read_text_lines
from electra.tasks.tagging import TaggedSentence

TEXT = ".txt"
QUESTION_COLUMNS = ("question", "context")


def read_texts(path: Path, columns: Sequence[str], facts: dict[str, Any]) -> list[Example]:
    """Return texts or pairs: the rows of a table, or of plain text each line that is not blank.

    Raises:
        UserError: The file cannot be read, is empty or lacks a column, or is plain text though the
            model judges pairs.
    """
    trained = tuple(facts["columns"][:-1])  # the last is the label's
    if _is_plain(path):
        require(
            len(trained) == 1 and not columns,
            f"{path} is plain text, a text a line; {' and '.join(columns or trained)} must be "
            f"columns of a {', '.join(FORMATS)} file",
        )
        return [Example(line, None, None) for _, line in _read_plain(path)]
    _check_format(path, (TEXT, *FORMATS))
    table = read_table(path)
    firsts, *seconds = _take_columns(table, columns, trained)
    pairs = seconds[0] if seconds else [None] * len(firsts)
    return [Example(first, second, None) for first, second in zip(firsts, pairs, strict=True)]


def read_choices(path: Path, columns: Sequence[str], facts: dict[str, Any]) -> list[ChoiceQuestion]:
    """Return questions with their choices: the rows of a table.

    Raises:
        UserError: The file cannot be read, is empty or lacks a column, or a question has another
            number of choices than those of training.
    """
    _check_format(path, FORMATS)
    table = read_table(path)
    context, *rest = _name_columns(table, columns, facts["columns"][:-1])  # the last is the label's
    begin = rest.pop(0) if facts["begin"] else ""
    questions = read_choice_questions(table, context=context, choices=rest, label=None, begin=begin)
    count = len(questions[0].choices)
    require(
        count == facts["num_choices"],
        f"{path}: {count} choices a row; the model was trained on {facts['num_choices']}",
    )
    return questions


def read_sentences(
    path: Path, columns: Sequence[str], facts: dict[str, Any]
) -> list[TaggedSentence]:
    """Return sentences of words: columns, JSON lines, or of plain text each line split at spaces.

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
        sentences = [TaggedSentence(words, [], [number] * len(words)) for number, words in lines]
    elif format_of(path) == JSON_LINES:
        sentences = read_words(path, field=columns[0] if columns else JSON_FIELDS[0])
    else:
        _check_format(path, TAGGING_FORMATS)
        column = columns[0] if columns else facts["columns"][0]
        require(
            column.isdecimal() or not columns,
            f"--columns of a {format_of(path)} file must be the word's number, not {column!r}",
        )
        sentences = read_words(path, int(column) if column.isdecimal() else 1)
    # Rows mark the words that are answered by their tags, so each has one that means nothing.
    return [each._replace(tags=facts["labels"][:1] * len(each.words)) for each in sentences]


def read_asked(path: Path, columns: Sequence[str], facts: dict[str, Any]) -> list[SpanQuestion]:
    """Return questions: the rows of a table with a question and its context, SQuAD's or MRQA's.

    Those of a table are called by its column `id`, or else by the number of their line.

    Raises:
        UserError: The file cannot be read, is empty or is not of its format.
    """
    if format_of(path) == ".json":
        return read_questions([path], is_labelled=False)
    _check_format(path, (".json", *FORMATS))
    table = read_table(path)
    if not columns and {"header", "qas"} & set(table.columns):
        return read_questions([path], is_labelled=False)
    texts, contexts = _take_columns(table, columns, QUESTION_COLUMNS)
    ids = table.column("id") if "id" in table.columns else map(str, table.lines)
    return [
        SpanQuestion(name, text, context, None, None)
        for name, text, context in zip(ids, texts, contexts, strict=True)
    ]


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
