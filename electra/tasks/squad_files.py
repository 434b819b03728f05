"""Questions about contexts, read from SQuAD 1.1 and 2.0 JSON and from MRQA's JSON lines.

Source: rajpurkar.github.io/SQuAD-explorer; github.com/mrqa/MRQA-Shared-Task-2019.
"""

import json
import reprlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from electra.errors import UserError, require
from electra.text.tables import format_of, read_content, read_table

QUESTION_FORMATS = (".json", ".jsonl")
KINDS = {str: "text", int: "a whole number", bool: "true or false", list: "a list", dict: "a map"}


class SpanQuestion(NamedTuple):
    """A question, its context and its answers."""

    id: str
    text: str
    context: str
    """The text that is asked about; questions of one file share the object."""
    answers: tuple[str, ...] | None
    """Right answers; empty: the context holds none; None: unknown."""
    span: tuple[int, int] | None
    """Start and end of the first answer in the context, in characters; None without an answer."""


def find_files(data: Path, split: str, chosen: Sequence[str]) -> tuple[Path, ...]:
    """Return the chosen files of a folder, by default the one whose name begins with the split.

    Raises:
        UserError: A chosen file is missing; or no file is chosen and there are several, or none for
            train or dev.
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
        is_labelled: Whether the answers are known; otherwise answers in the file are ignored.

    Raises:
        UserError: A file cannot be read or does not have its format, an answer is not at its
            position, or two questions have the same id.
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
    """Yield each paragraph and its place in the file, for messages."""
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
    """Yield each line but the header and its place in the file, for messages."""
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
    """Return the texts in `answers` and the span of the first detected answer."""
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
    """Return a value of a JSON object; refuse a missing value or another type."""
    require(type(record) is dict, f"{where}: {reprlib.repr(record)} must be a map with {key!r}")
    require(key in record, f"{where}: no {key!r}; it must be {KINDS[kind]}")
    value = record[key]
    require(
        type(value) is kind, f"{where}: {key!r} is {reprlib.repr(value)}; it must be {KINDS[kind]}"
    )
    return value
