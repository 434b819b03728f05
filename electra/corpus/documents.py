"""Where documents of plain text end: lines in, documents out."""

import html
import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Literal

PlainBorder = Literal["blank", "line", "file"]
Border = PlainBorder | Literal["auto"]

MAX_LINE_CHARS = 100_000
MAX_DOCUMENT_CHARS = 1 << 24
WIKI_PAGE = re.compile(r'<doc id="[^"]*" url="[^"]*" title=".*">\s*')
"""First line of a page that WikiExtractor writes; the last is "</doc>"."""
LONG_DOCUMENT_CHARS = 1 << 20
"""Mean length from which on the documents between blank lines are rather lists of texts."""


def split_documents(
    lines: Iterable[str], border: PlainBorder | Literal["page"]
) -> Iterator[list[str]]:
    """Yield the documents of lines; of border "page", pages of WikiExtractor.

    In lines with unusual white space, each run of white space becomes one space.
    """
    document: list[str] = []
    num_chars = 0
    is_continued = False
    for line in lines:
        # Form feeds, no-break spaces and the like become spaces: BERT deletes some of them, which
        # joins the words on both sides.
        text = line.strip() if line[:-1].isprintable() else " ".join(line.split())
        is_mark = border == "page" and (text == "</doc>" or WIKI_PAGE.fullmatch(text) is not None)
        if border == "page":
            text = "" if is_mark else html.unescape(text)
        is_blank = not text and not is_continued
        is_continued = not line.endswith("\n")
        if text:
            document += [text] if len(text) <= MAX_LINE_CHARS else _cut_line(text)
            num_chars += len(text)
        is_end = (border == "line" and not is_continued) or (border == "blank" and is_blank)
        is_end = is_end or is_mark
        if document and (is_end or num_chars >= MAX_DOCUMENT_CHARS):
            yield document
            document, num_chars = [], 0
    if document:
        yield document


def _cut_line(text: str) -> list[str]:
    """Return a giant line in pieces, cut at spaces if possible."""
    pieces = []
    start = 0
    while len(text) - start > MAX_LINE_CHARS:
        space = text.rfind(" ", start, start + MAX_LINE_CHARS + 1)
        stop = space if space > start else start + MAX_LINE_CHARS
        pieces.append(text[start:stop].strip())
        start = stop
    return [*pieces, text[start:].strip()]


def detect_border(lines: Iterator[str], border: Border) -> tuple[PlainBorder, Iterator[str]]:
    """Return the border of a file's documents, and its lines again.

    Of border "auto", every line is a document if those between blank lines would have
    LONG_DOCUMENT_CHARS characters or more on average: books have fewer. The first
    MAX_DOCUMENT_CHARS characters tell.
    """
    if border != "auto":
        return border, lines
    begin: list[str] = []
    num_chars, num_documents = 0, 0
    is_inside, is_continued = False, False
    for line in lines:
        begin.append(line)
        num_chars += len(line)
        is_blank = not is_continued and not line.strip()
        num_documents += not is_blank and not is_inside
        is_inside = not is_blank
        is_continued = not line.endswith("\n")
        if (
            num_chars >= MAX_DOCUMENT_CHARS
            or num_documents > MAX_DOCUMENT_CHARS // LONG_DOCUMENT_CHARS
        ):
            break
    is_lined = num_chars >= LONG_DOCUMENT_CHARS * max(1, num_documents)
    return "line" if is_lined else "blank", itertools.chain(begin, lines)
