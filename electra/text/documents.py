"""Documents: the parts between the borders of a text, read from files of any format.

A range of a large file holds the documents that begin in it. The range is cut at the first border
of documents at or after its first byte, and it ends where the next range is cut. Both ranges
compute the same cut, so together any ranges give the whole file. If a document has no border
within WINDOW bytes, it is cut at the end of a line, else at a space, else between two characters.
A record is never cut.

Positions are those of the decompressed content. A compressed file has to be read from its
beginning. So a process keeps its last file open, and a range that follows continues there.
"""

import codecs
import html
import io
import itertools
import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal, cast

from electra.errors import UserError
from electra.text.characters import replace_surrogates
from electra.text.config import TextConfig
from electra.text.sources import FIRST_BYTES, WIKI_PAGE, encoding_of, tell_form, why_no_text
from electra.text.streams import (
    STDIN,
    UTF8,
    compression_of,
    find_mark,
    is_utf8,
    name_other,
    open_source,
    stream_blocks,
    transcode,
    unchanged,
)
from electra.text.tables import (
    DATASETS,
    FORMATS,
    JSON_LINES,
    NAMED_FORMS,
    PAGES,
    PLAIN,
    Content,
    Format,
    format_of,
    is_binary,
)
from electra.text.urls import is_dataset, is_url

PlainBorder = Literal["blank", "line", "file"]
Border = PlainBorder | Literal["auto"]
RangeBorder = PlainBorder | Literal["record", "group"]
"""Where a file can be cut into ranges. "record": between lines, which are records. "group": between
the row groups of a .parquet file."""

WIKI_TITLE = re.compile(r"""\stitle=(["'])(.*?)\1(?=\s+[\w:.-]+=|\s*>)""")
MANY_LINES = 1000
"""Lines from which on a file that is one document is worth a note."""
MAX_LINE_CHARS = 100_000
MAX_DOCUMENT_CHARS = 1 << 24
LONG_DOCUMENT_CHARS = 1 << 20
"""Mean length from which on the documents between blank lines are rather lists of texts."""
BLOCK_BYTES = 1 << 20
WINDOW = 1 << 24
"""Bytes in which a range looks for the border of a document."""


@dataclass
class TextCounts:
    """Counts of what has been read so far."""

    source_bytes: int = 0
    """Bytes of the files on disk; of ranges of .parquet files, of the whole files."""
    text_bytes: int = 0
    """Bytes after decompression; of a .parquet file, bytes of the text column only."""
    characters: int = 0
    """Characters of the lines, without leading and trailing white space."""
    lines: int = 0
    """Non-empty lines."""
    documents: int = 0
    files_of_lines: int = 0
    """Files with no or too few blank lines, whose lines are documents for border=auto."""
    files_of_one_document: int = 0
    """Files of MANY_LINES lines or more that are one document for border=auto."""
    forms: dict[str, int] = field(default_factory=dict)
    """Number of files by form."""
    empty: int = 0
    """Records and pages without text, passed over: null, white space, a page's title only."""
    invalid_sequences: int = 0
    """Invalid UTF-8 sequences and unpaired surrogates, replaced by U+FFFD."""


@dataclass(kw_only=True)
class Reader:
    """Reads documents, each a list of non-empty lines, and counts what has been read so far.

    In lines with unusual white space, each run of white space becomes one space.
    """

    settings: TextConfig = field(default_factory=TextConfig)
    border: Border = "blank"
    """Where a document of plain text ends. A record is always one document."""
    names: Sequence[str] | None = None
    """Names of tokens in id order. Records may then hold lists of integers, of which the names
    become the words of a line."""
    counts: TextCounts = field(default_factory=TextCounts)
    """Updated while reading; complete after the last document."""

    def read(self, paths: Iterable[Path]) -> Iterator[list[str]]:
        """Yield the documents of files, which `find_sources` found; refuse a damaged one."""
        for path in paths:
            with unchanged(path):
                yield from self.read_range(path)

    def read_range(
        self, path: Path, start: int = 0, stop: int | None = None, unit: RangeBorder | None = None
    ) -> Iterator[list[str]]:
        """Yield the documents that begin in a range of a file, from `start` to before `stop`.

        Positions are bytes after decompression; None: the end of the file. In a .parquet file, a
        row group belongs to the range in which it begins. `unit` is that of `range_border`.
        """
        assert unit or (start == 0 and stop is None), f"{path} cannot be read in ranges"
        with self._open(path, start, stop, unit) as (form, content):
            if start == 0:
                self.counts.forms[form] = self.counts.forms.get(form, 0) + 1
            if form == PLAIN:
                yield from self._read_plain(content, unit)
            elif form == PAGES:
                yield from self._count(self._split_pages(content.lines))
            else:
                yield from self._read_records(content, FORMATS[form])

    @contextmanager
    def _open(
        self, path: Path, start: int, stop: int | None, unit: RangeBorder | None
    ) -> Iterator[tuple[str, Content]]:
        """Yield the form and the content of a range of a file."""

        def read(source: IO[bytes], stream: IO[bytes]) -> Content:
            lines = self._read_lines(path, source, stream, is_first=start == 0)
            field = self.settings.text_field
            return Content(path, source, stream, lines, field, self.names, start, stop)

        form = DATASETS if is_dataset(path) else NAMED_FORMS.get(format_of(path), PLAIN)
        if form == DATASETS:
            yield form, read(io.BytesIO(), io.BytesIO())
        elif unit in (None, "group"):
            with open_source(path) as (source, stream):
                if not is_binary(path):
                    encoding = encoding_of(path, self.settings)
                    stream = transcode(stream, encoding, self._count_invalid, path)
                    form, stream = self._peek(path, stream)
                yield form, read(source, stream)
        else:
            with _open_range(path, start, stop, unit) as (source, stream):
                yield JSON_LINES if unit == "record" else PLAIN, read(source, stream)

    def range_border(self, path: Path) -> RangeBorder | None:
        """Return where a file can be cut into ranges; None: it has to be read as a whole.

        Border "auto" is replaced by what the beginning of the file shows.
        """
        if is_dataset(path):
            return None
        if is_binary(path):
            return None if compression_of(path) else FORMATS[NAMED_FORMS[format_of(path)]].border
        if not is_utf8(encoding_of(path, self.settings)):
            return None
        with open_source(path) as (source, stream):
            form, stream = self._peek(path, stream)
            if form != PLAIN:
                return FORMATS[form].border if form in FORMATS else None
            lines = Reader()._read_lines(path, source, stream, is_first=True)
            return _detect_border(lines, self.border)[0]

    def _peek(self, path: Path, stream: IO[bytes]) -> tuple[str, IO[bytes]]:
        """Return the form of a file, and the stream of its content again, in UTF-8."""
        first = stream.read(FIRST_BYTES)
        head, is_whole = first.decode("utf-8", "replace"), len(first) < FIRST_BYTES
        form, kind = tell_form(path, head, self.settings, is_whole=is_whole)
        if not (is_url(path) or path.is_file()):  # a pipe, which was not examined before
            kind = name_other(first) or why_no_text(first, UTF8) or kind
        if form is None or kind:
            raise UserError(f"{path} is not text: {kind}")
        blocks = itertools.chain([first], iter(lambda: stream.read(BLOCK_BYTES), b""))
        return form, stream_blocks(filter(None, blocks))

    def _read_records(self, content: Content, form: Format) -> Iterator[list[str]]:
        """Yield the document of each record."""
        before = self.counts.source_bytes
        for text in form.read(content):
            if form.is_binary:  # else lines are counted
                data = text.encode("utf-8", "replace") if isinstance(text, str) else text
                self.counts.text_bytes += len(data or b"")
            yield from self._split_record(self._decode(text) if isinstance(text, bytes) else text)
        if form.is_binary and not is_dataset(content.path):
            self.counts.source_bytes = before + content.path.stat().st_size

    def _read_plain(self, content: Content, unit: RangeBorder | None) -> Iterator[list[str]]:
        """Yield the documents of plain text; in a range, `unit` decides where they end."""
        counts, border, lines = self.counts, cast(PlainBorder, unit), content.lines
        if unit is None:
            border, lines = _detect_border(lines, self.border)
        is_auto = self.border == "auto" and content.start == 0
        counts.files_of_lines += is_auto and border == "line"
        before = counts.documents, counts.lines
        yield from self._count(_split_documents(lines, border))
        is_one = unit is None and border == "blank" and counts.documents == before[0] + 1
        has_many = counts.lines >= before[1] + MANY_LINES
        counts.files_of_one_document += is_auto and is_one and has_many

    def _split_pages(self, lines: Iterator[str]) -> Iterator[list[str]]:
        """Yield the pages of WikiExtractor; those with only a title are skipped and counted."""
        title: str | None = None
        for is_mark, part in itertools.groupby(
            lines, lambda line: line.strip() == "</doc>" or WIKI_PAGE.fullmatch(line) is not None
        ):
            if is_mark:
                for mark in part:
                    self.counts.empty += title is not None
                    found = WIKI_TITLE.search(mark)
                    begins = mark.strip() != "</doc>"
                    title = html.unescape(found[2] if found else "") if begins else None
                continue
            pages = _split_documents(map(html.unescape, part), "file")
            for page in pages:
                if title is None or page != [" ".join(title.split())]:
                    title = None
                    yield page

    def _count(self, documents: Iterable[list[str]]) -> Iterator[list[str]]:
        counts = self.counts
        for document in documents:
            counts.documents += 1
            counts.lines += len(document)
            counts.characters += sum(map(len, document))
            yield document

    def _count_invalid(self, number: int) -> None:
        self.counts.invalid_sequences += number

    def _split_record(self, text: str | None) -> Iterator[list[str]]:
        """Yield the document of a record; one without text is counted and passed over."""
        if not text or text.isspace():
            self.counts.empty += 1
            return iter(())
        return self._count(_split_documents(self._split_lines(text), "file"))

    def _split_lines(self, text: str) -> Iterator[str]:
        """Yield a record's lines like `_read_lines`, in blocks, as each step copies the text."""
        start = 0
        while start < len(text):
            stop = start + BLOCK_BYTES
            if stop < len(text):
                # Exclude the last character, to avoid a cut between "\r" and "\n".
                cuts = (text.rfind(end, start, stop - 1) + 1 for end in "\n\r ")
                stop = next(filter(None, cuts), stop)
            part = text[start:stop]
            whole = replace_surrogates(part)
            self._count_invalid(whole.count("\ufffd") - part.count("\ufffd"))
            yield from io.StringIO(whole, newline=None)
            start = stop

    def _read_lines(
        self, path: Path, source: IO[bytes], stream: IO[bytes], *, is_first: bool
    ) -> Iterator[str]:
        r"""Yield lines with "\n", and pieces without it: the line continues, or the file ends."""
        counts, before = self.counts, self.counts.source_bytes
        is_seekable = source.seekable()
        rest = b""
        while data := stream.read(BLOCK_BYTES):
            counts.text_bytes += len(data)
            counts.source_bytes = before + source.tell() if is_seekable else counts.text_bytes
            if is_first:
                if mark := find_mark(data):
                    raise UserError(f"{path} is {mark.upper()}; read it with --set encoding={mark}")
                data = data.removeprefix(codecs.BOM_UTF8)
                is_first = False
            data = rest + data
            cut = _find_cut(data)
            yield from io.StringIO(self._decode(data[:cut]), newline=None)
            rest = data[cut:]
        yield from io.StringIO(self._decode(rest), newline=None)

    def _decode(self, data: bytes) -> str:
        text = data.decode("utf-8", "replace")
        if "\ufffd" in text:
            self._count_invalid(text.count("\ufffd") - data.count("\ufffd".encode()))
        return text


def _split_documents(lines: Iterable[str], border: PlainBorder) -> Iterator[list[str]]:
    """Yield the documents of lines."""
    document: list[str] = []
    num_chars = 0
    is_continued = False
    for line in lines:
        # Form feeds, no-break spaces and the like become spaces: BERT deletes some of them, which
        # joins the words on both sides.
        text = line.strip() if line[:-1].isprintable() else " ".join(line.split())
        is_blank = not text and not is_continued
        is_continued = not line.endswith("\n")
        if text:
            document += [text] if len(text) <= MAX_LINE_CHARS else _cut_line(text)
            num_chars += len(text)
        is_end = (border == "line" and not is_continued) or (border == "blank" and is_blank)
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
    return [piece for piece in (*pieces, text[start:].strip()) if piece]


def _detect_border(lines: Iterator[str], border: Border) -> tuple[PlainBorder, Iterator[str]]:
    """Return the border of a file's documents, with auto as its beginning shows, and its lines."""
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


def _find_cut(data: bytes) -> int:
    """Return where to cut a block: after the last line, else after a space, else a character."""
    if (newline := data.rfind(b"\n")) >= 0:
        return newline + 1
    # The last byte may be the first half of "\r\n".
    if (carriage_return := data.rfind(b"\r", 0, len(data) - 1)) >= 0:
        return carriage_return + 1
    if len(data) < BLOCK_BYTES:  # cuts depend on the bytes only, not on how many a read returns
        return 0
    if (space := data.rfind(b" ")) > 0:
        return space + 1
    cut = len(data) - 1
    while cut > len(data) - 4 and data[cut] & 0xC0 == 0x80:
        cut -= 1
    return cut


# Ranges

LINE_END = rb"(?:\r\n?+|\n)"
LINE_ENDS = [re.compile(LINE_END), re.compile(rb" "), re.compile(rb"(?s).(?=[^\x80-\xbf])")]
BORDERS: dict[str, list[re.Pattern[bytes]]] = {
    "blank": [re.compile(LINE_END + rb"[ \t\v\f]*+" + LINE_END), *LINE_ENDS],
    "line": LINE_ENDS,
    "file": LINE_ENDS,
    "record": LINE_ENDS[:1],
}
"""Where a range is cut. The first is preferred, as far as it is found within WINDOW."""


@contextmanager
def _open_range(
    path: Path, start: int, stop: int | None, border: str
) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Yield the raw file of UTF-8 text, and the content of one of its ranges."""
    global _last
    if not (_last and _last.reaches(path, start)):
        close_last()
        _last = _Content(path)
    content, _last = _last, None
    try:
        yield content.source, stream_blocks(content.read_range(start, stop, BORDERS[border]))
    except BaseException:
        content.close()
        raise
    _last = content


class _Content:
    """The content of one file, read forward, with a buffer of its last bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.open = ExitStack()
        self.source, self.stream = self.open.enter_context(open_source(path))
        is_compressed = self.source is not self.stream
        self.is_plain = not is_compressed and path != STDIN and self.source.seekable()
        self.buffer = b""
        self.first = 0
        """Position of the first byte in the buffer."""

    def close(self) -> None:
        """Close the file. An error of its decompression becomes a UserError."""
        self.open.__exit__(*sys.exc_info())

    def reaches(self, path: Path, start: int) -> bool:
        """Return whether this content belongs to the file and can still reach the range's start."""
        return self.path == path and (self.is_plain or self.first <= max(start - 1, 0))

    def skip_to(self, place: int) -> None:
        """Drop the bytes before this place, or before the end of the content."""
        if self.is_plain and not self.first <= place <= self.first + len(self.buffer):
            self.stream.seek(place)
            self.buffer, self.first = b"", place
        while self.first + len(self.buffer) < place:
            self.first += len(self.buffer)
            self.buffer = self.stream.read(BLOCK_BYTES)
            if not self.buffer:
                return
        self.buffer = self.buffer[max(place - self.first, 0) :]
        self.first = max(place, self.first)

    def grow(self) -> bool:
        """Append a block to the buffer, and return whether there was one."""
        block = self.stream.read(BLOCK_BYTES)
        self.buffer += block
        return bool(block)

    def take_line(self) -> Iterator[bytes]:
        """Yield the bytes up to the end of the line, a block at a time, and drop them."""
        found = None
        while not found and (self.buffer or self.grow()):
            found = LINE_ENDS[0].search(self.buffer)
            if found and found.end() == len(self.buffer) and self.grow():
                found = None  # "\n" may follow "\r"
                continue
            size = found.end() if found else len(self.buffer)
            part, self.buffer = self.buffer[:size], self.buffer[size:]
            self.first += size
            yield part

    def find_cut(self, place: int, borders: list[re.Pattern[bytes]]) -> int | None:
        """Return where ranges are cut at this place; None: a record's end is beyond WINDOW."""
        if place == 0:
            return 0
        more = True
        while more:
            begin = place - 1 - self.first
            room = len(self.buffer) - begin
            is_whole = room > WINDOW + 1
            for border in borders if is_whole else borders[:1]:
                found = border.search(self.buffer, begin, begin + WINDOW)
                # A match at the end of the window or of the buffer could be longer: "\r\n".
                found = border.match(self.buffer, found.start()) if found else None
                if found and found.end() < len(self.buffer):
                    return self.first + found.end()
            if is_whole:
                if borders == BORDERS["record"]:
                    return None
                break
            more = self.grow()
        begin = place - 1 - self.first
        if not more and (found := borders[0].search(self.buffer, begin)):
            return self.first + found.end()
        return self.first + min(len(self.buffer), begin + WINDOW)

    def read_range(
        self, start: int, stop: int | None, borders: list[re.Pattern[bytes]]
    ) -> Iterator[bytes]:
        """Yield the bytes of a range, which must not begin before the buffer."""
        stop = sys.maxsize if stop is None else stop
        self.skip_to(max(start - 1, 0))
        place = self.find_cut(start, borders)
        if place is None:
            deque(self.take_line(), maxlen=0)  # the end of a record of an earlier range
            place = self.first
            if place >= stop:
                return
        while place < stop - 1:
            self.skip_to(place)
            if not self.buffer and not self.grow():
                return
            block = self.buffer[: stop - 1 - place]
            place += len(block)
            yield block
        self.skip_to(stop - 1)
        end = self.find_cut(stop, borders)
        if end is None:
            yield from self.take_line()
        elif place < end:
            yield self.buffer[place - self.first : end - self.first]


_last: _Content | None = None


def close_last() -> None:
    """Close the file that this process keeps open."""
    global _last
    last, _last = _last, None
    if last:
        last.close()
