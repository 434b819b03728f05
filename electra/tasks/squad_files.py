"""Records of questions about a context, out of files of SQuAD 1.1 and 2.0, also flat, and of MRQA.

Source: rajpurkar.github.io/SQuAD-explorer; github.com/mrqa/MRQA-Shared-Task-2019.
"""

import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from electra.errors import require
from electra.files import parse_json
from electra.tasks.record import Asked, Columns, Record, Records, choose_columns, require_unique
from electra.text.table_files import TableFile, read_content, read_table
from electra.text.tables import TABLE_FORMATS, format_of, require_format

FORMATS = (".json", ".jsonl", ".parquet")
COLUMNS = ("question", "context")
"""Columns of a table of questions to answer."""


def read_asked(path: Path, asked: Asked) -> Records:
    """Return the questions of SQuAD's or MRQA's files, or the rows of a table.

    The id of a row is that of its column `id`; without such a column, the number of its line.
    """
    require_format(path, (".json", *TABLE_FORMATS))
    require(
        format_of(path) != ".json" or not asked.named,
        f"{path} has no columns, but questions as SQuAD's files; leave --columns out",
    )
    table = None if format_of(path) == ".json" else read_table(path, separator=asked.separator)
    if table is None or (not asked.named and {"header", "qas"} & set(table.columns)):
        records = read_questions(path, is_labelled=False)
        require_unique([records], "id")
        return records
    columns = Columns(("id", *choose_columns(table, asked.named, COLUMNS)))
    if "id" in table.columns:
        return Records(table, columns)
    rows = [{"id": str(n), **row} for n, row in zip(table.lines, table.rows, strict=True)]
    return Records(replace(table, columns=("id", *table.columns), rows=rows), columns, table.rows)


def read_questions(path: Path, *, is_labelled: bool) -> Records:
    """Return the questions of a file with an `id`, `question`, `context`, `answers` and `span`.

    A record of the file is an article of SQuAD's, a paragraph of MRQA's, or a single question, as
    `datasets` has them: {"id", "question", "context", "answers": {"text", "answer_start"}}. In the
    records here, answers are the texts of right answers, and span is start and end of the first in
    the context, in characters, None without an answer. Unless `is_labelled`, both are None.
    """
    require_format(path, FORMATS)
    rows: list[dict[str, Any]] = []
    for context, asked in _list_asked(path):
        name = asked.name("qid" if "qid" in asked.fields else "id")
        asked = Record(f"{path} question {name!r}", asked.fields)
        answers, span = _read_answers(asked, context) if is_labelled else (None, None)
        question = asked.text("question")
        texts = {"id": name, "question": question, "context": context}
        rows.append({**texts, "answers": answers, "span": span})
    require(bool(rows), f"{path}: no questions; there must be at least one")
    names = [repr(row["id"]) for row in rows]
    table = TableFile(path, tuple(rows[0]), rows, names, unit="question")
    kept = [{name: row[name] for name in ("id", *COLUMNS)} for row in rows]
    return Records(table, Columns(("id", *COLUMNS), ("answers", "span")), kept)


def _list_asked(path: Path) -> Iterator[tuple[str, Record]]:
    """Yield each question of a file and its context; a header of MRQA's is passed over."""
    for record in _list_records(path):
        fields = record.fields
        parts = record.parts("paragraphs", "paragraph") if "paragraphs" in fields else [record]
        for paragraph in [] if "header" in fields else parts:
            context, is_one = paragraph.text("context"), "qas" not in paragraph.fields
            for asked in [paragraph] if is_one else paragraph.parts("qas", "question"):
                yield context, asked


def _list_records(path: Path) -> list[Record]:
    """Return the rows of a table; of a .json file its "data", its list, or its lines."""
    if format_of(path) != ".json":
        table = read_table(path)
        return [Record(table.place(number), row) for number, row in enumerate(table.rows)]
    content = read_content(path)
    lines = [(n, line) for n, line in enumerate(content.splitlines(), 1) if line.strip()]
    if len(lines) > 1 and lines[0][1].rstrip().endswith(b"}"):  # as `datasets` has it
        return [
            Record(place, parse_json(line, place))
            for place, line in ((f"{path} line {number}", line) for number, line in lines)
        ]
    data = parse_json(content, path)
    whole = Record(str(path), {"data": data} if isinstance(data, list) else data)
    return whole.parts("data", "record") if "data" in whole.fields else [whole]


Answers = tuple[tuple[str, ...], tuple[int, int] | None]
"""The texts of the right answers, and the span of the first."""


def _read_answers(asked: Record, context: str) -> Answers:
    if "detected_answers" in asked.fields:
        return _mrqa_answers(asked, context)
    listed = asked.fields.get("answers")
    is_flat = isinstance(listed, Mapping)
    if isinstance(listed, Mapping):
        columns = Record(f"{asked.place}, answers", listed)
        texts, starts = columns.texts("text"), columns.take("answer_start", list)
        columns.require(
            len(texts) == len(starts), f"{len(texts)} texts and {len(starts)} answer_start"
        )
        pairs = zip(texts, starts, strict=True)
        listed = [{"text": text, "answer_start": start} for text, start in pairs]
    else:
        listed = asked.take("answers", list)
    if asked.fields.get("is_impossible") is not None and asked.take("is_impossible", bool):
        asked.require(not listed, "is_impossible is true, so it must have no answers")
        return (), None
    asked.require(is_flat or bool(listed), "no answers; it must have one, or is_impossible true")
    spans = []
    for values in listed:
        answer = Record(asked.place, values)
        text, start = answer.text("text"), answer.take("answer_start", int)
        found = context[start : start + len(text)] if start >= 0 else ""
        answer.require(
            text.strip() != "" and found == text,
            f"the context has {reprlib.repr(found)} at answer_start {start}; it must have the "
            f"answer, {reprlib.repr(text)}",
        )
        spans.append((start, start + len(text)))
    return tuple(answer["text"] for answer in listed), spans[0] if spans else None


def _mrqa_answers(asked: Record, context: str) -> Answers:
    """Return the texts in `answers` and the span of the first detected answer."""
    answers, detected = asked.texts("answers"), asked.take("detected_answers", list)
    for name, values in (("answers", answers), ("detected_answers", detected)):
        asked.require(bool(values), f"{name!r} is empty; it must have at least one")
    spans = Record(asked.place, detected[0]).take("char_spans", list)
    span: Any = spans[0] if spans else None
    is_pair = type(span) is list and [type(end) for end in span] == [int, int]
    asked.require(
        is_pair and 0 <= span[0] <= span[1] < len(context),
        f"char_spans begin with {reprlib.repr(span)}; they must begin with the numbers of two "
        f"characters in order, each below the {len(context)} of the context",
    )
    return tuple(answers), (span[0], span[1] + 1)  # MRQA's end is the last character
