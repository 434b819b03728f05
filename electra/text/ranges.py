"""Ranges of large files: each document belongs to the range in which it begins.

A range is cut at the first border of documents at or after its first byte, and it ends where the
next range is cut. Both ranges compute the same cut, so together they are the file, for any ranges.
If a document has no border within WINDOW bytes, it is cut at the end of a line, else at a space,
else between two characters. Only a record is never cut.

Positions are those of the decompressed content. A compressed file has to be read from its
beginning. So a process keeps its last file open, and a range that follows goes on from there.
"""

import re
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, cast

from electra.text.streams import STDIN, compression_of, open_source

BLOCK_BYTES = 1 << 20
WINDOW = 1 << 24
"""Bytes in which a range looks for the border of a document."""

LINE_END = rb"(?:\r\n?+|\n)"
LINE_ENDS = [re.compile(LINE_END), re.compile(rb" "), re.compile(rb"(?s).(?=[^\x80-\xbf])")]
BORDERS: dict[str, list[re.Pattern[bytes]]] = {
    "blank": [re.compile(LINE_END + rb"[ \t\v\f]*+" + LINE_END), *LINE_ENDS],
    "line": LINE_ENDS,
    "file": LINE_ENDS,
    "record": LINE_ENDS[:1],
}
"""Where a range is cut. What stands first is preferred, as far as it is found within WINDOW."""


@contextmanager
def open_range(
    path: Path, start: int, stop: int | None, border: str
) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Yield the raw file and the content of one of its ranges.

    Args:
        path: A file of UTF-8 text, which may be compressed.
        start: First byte of the range.
        stop: The byte after the range; None: the end of the content.
        border: Where a document ends: "blank", "line", "file", or "record": at the end of a line,
            however long it is.

    Raises:
        UserError: The file is damaged or unreadable. This can happen at any read.
    """
    content = _take(path, start)
    try:
        part = Range(content, start, stop, BORDERS[border])
        yield content.source, cast(IO[bytes], part)
    except BaseException:
        content.close()
        raise
    global _last
    _last = content


class Content:
    """The content of one file, read forward, with a buffer of its last bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.open = ExitStack()
        self.source, self.stream = self.open.enter_context(open_source(path))
        self.is_plain = not compression_of(path) and path != STDIN and self.source.seekable()
        self.buffer = b""
        self.first = 0
        """Position of the first byte in the buffer."""

    def close(self) -> None:
        """Close the file. An error of its decompression becomes a UserError."""
        self.open.__exit__(*sys.exc_info())

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
        """Return where ranges are cut at this place, which must not be before the buffer.

        None: at the end of the line, which is a record and not within WINDOW.
        """
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


class Range:
    """The bytes of one range, as far as readers of text need a stream."""

    def __init__(
        self, content: Content, start: int, stop: int | None, borders: list[re.Pattern[bytes]]
    ) -> None:
        self.content = content
        self.start = start
        self.stop = stop
        self.borders = borders
        self.blocks = self._read()
        self.rest = b""

    def read(self, size: int) -> bytes:
        """Return this many bytes, or those that are left."""
        while len(self.rest) < size and (block := next(self.blocks, b"")):
            self.rest += block
        data, self.rest = self.rest[:size], self.rest[size:]
        return data

    def _read(self) -> Iterator[bytes]:
        content = self.content
        content.skip_to(max(self.start - 1, 0))
        found = content.find_cut(self.start, self.borders)
        if found is None:
            deque(content.take_line(), maxlen=0)  # the end of a record of an earlier range
            if self.stop is not None and content.first >= self.stop:
                return
        place = content.first if found is None else found
        if self.stop is None:
            content.skip_to(place)
            while content.buffer or content.grow():
                block = content.buffer
                content.first += len(block)
                content.buffer = b""
                yield block
            return
        last = self.stop - 1
        while place < last:
            content.skip_to(place)
            if not content.buffer and not content.grow():
                return
            block = content.buffer[: last - place]
            place += len(block)
            yield block
        content.skip_to(last)
        stop = content.find_cut(self.stop, self.borders)
        if stop is None:
            yield from content.take_line()
        elif place < stop:
            yield content.buffer[place - content.first : stop - content.first]


_last: Content | None = None


def close_last() -> None:
    """Close the file that this process keeps open."""
    global _last
    last, _last = _last, None
    if last:
        last.close()


def _take(path: Path, start: int) -> Content:
    """Return the last content if it is of this file and not beyond `start`, else open the file."""
    global _last
    if _last and _last.path == path and (_last.is_plain or _last.first <= max(start - 1, 0)):
        last, _last = _last, None
        return last
    close_last()
    return Content(path)
