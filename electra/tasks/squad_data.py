"""Questions on texts, read from SQuAD 1.1 and 2.0 JSON and from MRQA's JSON lines.

Source: rajpurkar.github.io/SQuAD-explorer; github.com/mrqa/MRQA-Shared-Task-2019.
"""

import json
import reprlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from electra.config import UserError, require
from electra.tasks.table import format_of, read_content, read_table

QUESTION_FORMATS = (".json", ".jsonl")
KINDS = {str: "text", int: "a whole number", bool: "true or false", list: "a list", dict: "a map"}


class SpanQuestion(NamedTuple):
    """A question, the text it is asked of, and its answers."""

    id: str
    text: str
    context: str
    """The text; one and the same object for all its questions."""
    answers: tuple[str, ...] | None
    """Right answers; empty: the text holds none; None: not known."""
    span: tuple[int, int] | None
    """Where the first answer begins and ends in the text, in characters; None without one."""


def find_files(data: Path, split: str, chosen: Sequence[str]) -> tuple[Path, ...]:
    """Return the files chosen of a folder, or else the one whose name begins with the split's.

    Raises:
        UserError: A file is not there; or none is chosen, and there are several, or none of train
            or dev.
    """
    for name in chosen:
        require((data / name).is_file(), f"squad.{split}: no file {data / name}")
    if chosen:
        return tuple(data / name for name in chosen)
    require(data.is_dir(), f"{data} is not a folder; give the one with train and dev files")
    found = sorted(
        path
        for path in data.iterdir()
        if path.name.startswith(split) and format_of(path) in QUESTION_FORMATS and path.is_file()
    )
    names = ", ".join(path.name for path in found)
    require(
        len(found) <= 1, f"{data} has several {split} files: {names}; choose with squad.{split}"
    )
    require(
        bool(found) or split == "test",
        f"{data} has no {split} file; add {split}.json or {split}.jsonl, or name it with "
        f"squad.{split}",
    )
    return tuple(found)


def read_questions(paths: Sequence[Path], *, is_labelled: bool) -> list[SpanQuestion]:
    """Return the questions of some files, one file after the other.

    Args:
        paths: .json files are SQuAD's, .jsonl files MRQA's; compressed or not.
        is_labelled: Whether the answers are known; those of an unlabelled file are not looked at.

    Raises:
        UserError: A file cannot be read or is not of its format, an answer does not stand where it
            is said to, or two questions have one id.
    """
    questions: list[SpanQuestion] = []
    ids: set[str] = set()
    for path in paths:
        kind = format_of(path)
        require(
            kind in QUESTION_FORMATS,
            f"{path} must be {' or '.join(QUESTION_FORMATS)}, compressed or not",
        )
        records = _read_squad(path) if kind == ".json" else _read_mrqa(path)
        for place, record in records:
            context = _take(record, "context", str, place)
            for number, entry in enumerate(_take(record, "qas", list, place), 1):
                id_key = "id" if kind == ".json" else "qid"
                question_id = _take(entry, id_key, str, f"{place} question {number}")
                where = f"{path} question {question_id!r}"
                require(question_id not in ids, f"{where}: an id must be that of one question")
                ids.add(question_id)
                text = _take(entry, "question", str, where)
                known = _take_answers(entry, context, kind, where) if is_labelled else (None, None)
                questions.append(SpanQuestion(question_id, text, context, *known))
    names = ", ".join(map(str, paths))
    require(bool(questions), f"{names}: no questions; there must be at least one")
    return questions


def _read_squad(path: Path) -> Iterator[tuple[str, Any]]:
    """Give each paragraph, and where it stands."""
    try:
        data = json.loads(read_content(path))
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: {error}") from None
    except RecursionError:
        raise UserError(f"{path} is JSON that is nested too deeply") from None
    for number, article in enumerate(_take(data, "data", list, str(path)), 1):
        place = f"{path} article {number}"
        for paragraph_number, paragraph in enumerate(_take(article, "paragraphs", list, place), 1):
            yield f"{place} paragraph {paragraph_number}", paragraph


def _read_mrqa(path: Path) -> Iterator[tuple[str, Any]]:
    """Give each line but the header, and where it stands."""
    table = read_table(path)
    for line, row in zip(table.lines, table.rows, strict=True):
        if "header" not in row:
            yield f"{path} line {line}", row


def _take_answers(
    entry: dict[str, Any], context: str, kind: str, where: str
) -> tuple[tuple[str, ...], tuple[int, int] | None]:
    if kind == ".jsonl":
        return _take_mrqa_answers(entry, context, where)
    listed = _take(entry, "answers", list, where)
    if "is_impossible" in entry and _take(entry, "is_impossible", bool, where):
        require(not listed, f"{where}: is_impossible is true, so it must have no answers")
        return (), None
    require(bool(listed), f"{where}: no answers; it must have one, or is_impossible true")
    answers = []
    for answer in listed:
        text, start = _take(answer, "text", str, where), _take(answer, "answer_start", int, where)
        found = context[start : start + len(text)] if start >= 0 else ""
        require(
            text.strip() != "" and found == text,
            f"{where}: the context has {reprlib.repr(found)} at answer_start {start}; it must have "
            f"the answer, {reprlib.repr(text)}",
        )
        answers.append(text)
    start = listed[0]["answer_start"]
    return tuple(answers), (start, start + len(answers[0]))


def _take_mrqa_answers(
    entry: dict[str, Any], context: str, where: str
) -> tuple[tuple[str, ...], tuple[int, int]]:
    """Return the texts in `answers` and the first place where one was detected."""
    answers = _take(entry, "answers", list, where)
    detected = _take(entry, "detected_answers", list, where)
    for name, values in (("answers", answers), ("detected_answers", detected)):
        require(bool(values), f"{where}: {name!r} is empty; it must have at least one")
    for answer in answers:
        require(type(answer) is str, f"{where}: the answer {reprlib.repr(answer)} must be text")
    spans = _take(detected[0], "char_spans", list, where)
    span: Any = spans[0] if spans else None
    is_pair = type(span) is list and [type(end) for end in span] == [int, int]
    require(
        is_pair and 0 <= span[0] <= span[1] < len(context),
        f"{where}: char_spans begin with {reprlib.repr(span)}; they must begin with the numbers of "
        f"two characters in order, each below the {len(context)} of the context",
    )
    return tuple(answers), (span[0], span[1] + 1)  # theirs is the last character's number


def _take(record: Any, key: str, kind: type, where: str) -> Any:
    """Return a value of a JSON object, refused if it is not there or is of another kind."""
    require(type(record) is dict, f"{where}: {reprlib.repr(record)} must be a map with {key!r}")
    require(key in record, f"{where}: no {key!r}; it must be {KINDS[kind]}")
    value = record[key]
    require(
        type(value) is kind, f"{where}: {key!r} is {reprlib.repr(value)}; it must be {KINDS[kind]}"
    )
    return value
