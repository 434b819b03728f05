"""Bytes of files on disk, compressed or not, in any encoding, and at URLs."""

import bz2
import codecs
import gzip
import io
import lzma
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import IO, Any, cast

from electra.errors import UserError, import_extra, require
from electra.text.urls import _explain_url, is_dataset, is_url

STDIN = Path("-")
ZSTD_BITE_BYTES = 512
"""Compressed bytes per call of zstd. The expansion is at most 32,000 times, so 16 MB per call."""
ZSTD_WINDOW_LOG = 31
"""Largest window of zstd, 2 GB: that of `zstd --long=31`. It takes memory as far as the content
fills it. A frame with a larger window is refused."""
BLOCK_BYTES = 1 << 16


@contextmanager
def open_source(path: Path) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Yield the raw file, whose position is the progress, and the stream of decompressed content.

    The first bytes show the compression, whatever the name; without any, both are the same.
    A damaged or unreadable file is a UserError, which can happen at any read of the content.
    """
    open_content = None
    with _explain_url(path), ExitStack() as stack:
        try:
            source = open_stdin() if path == STDIN else stack.enter_context(path.open("rb"))
            first, stream = _look_into(source)
            begins = (each for each, begin, _ in COMPRESSIONS if begin.match(first))
            if open_content := next(begins, None):
                stream = stack.enter_context(open_content(stream))
            yield source, stream
        except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile, OSError) as error:
            said = getattr(error, "strerror", None) or str(error)
            is_damage = open_content and not getattr(error, "errno", None)
            if is_damage and not NO_DAMAGE.search(said):
                raise UserError(f"{path} is damaged or cut off: {said}") from None
            raise UserError(f"{path} cannot be read: {said}") from None


def _look_into(source: IO[bytes]) -> tuple[bytes, IO[bytes]]:
    """Return the first bytes of a file, and the stream of its content with them."""
    first = source.read(COMPRESSION_BYTES)
    if source.seekable():
        source.seek(-len(first), os.SEEK_CUR)
        return first, source
    rest = iter(lambda: source.read(BLOCK_BYTES), b"")
    return first, stream_blocks(chain(filter(None, [first]), rest))


def open_stdin() -> IO[bytes]:
    """Return standard input, or refuse one that was closed, for example by `<&-`.

    The next opened file takes over its descriptor, so the descriptor must not be read.
    """
    if sys.stdin is None or sys.stdin.closed:
        raise UserError("standard input is closed; give it a text, or name files")
    return sys.stdin.buffer


def status_of(path: Path) -> os.stat_result:
    """Return size, kind and times of a file; what a URL answers instead is a UserError."""
    with _explain_url(path):
        return path.stat()


def stamp_of(path: Path) -> tuple[int, int]:
    """Return the size of a file and the time of its last change; of a dataset of a hub, zeros."""
    if is_dataset(path):
        return 0, 0
    status = status_of(path)
    return status.st_size, int(status.st_mtime * 1e9) if is_url(path) else status.st_mtime_ns


@contextmanager
def unchanged(path: Path, stamp: tuple[int, int] | None = None) -> Iterator[None]:
    """Refuse, at the end, a file on this machine's disk that was changed while it was read.

    `stamp` is the result of `stamp_of` when the file was found; None: the result now. Only regular
    files are checked.
    """
    if is_url(path) or not path.is_file():
        yield
        return
    before = stamp or stamp_of(path)
    error = None
    try:
        yield
    except UserError as found:  # what seems damaged may be half of another text
        error = found
    after = stamp_of(path) if path.is_file() else None
    require(
        after == before,
        f"{path} was changed while it was read; run the command again when the file is complete",
    )
    if error:
        raise error


def compression_of(path: Path) -> str:
    """Return the suffix of the compression that a file's name says, such as ".gz", or ""."""
    suffix = path.suffix.lower()
    return suffix if suffix in COMPRESSED_SUFFIXES else ""


def stream_blocks(blocks: Iterator[bytes]) -> IO[bytes]:
    """Return a stream of bytes that arrive in blocks of any size."""
    return io.BufferedReader(cast(Any, _Blocks(blocks)), BLOCK_BYTES)


class _Blocks(io.RawIOBase):
    def __init__(self, blocks: Iterator[bytes]) -> None:
        self.blocks = blocks
        self.rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.rest:
            block = next(self.blocks, None)
            if block is None:
                return 0
            self.rest = memoryview(block)
        size = min(len(buffer), len(self.rest))
        buffer[:size] = self.rest[:size]
        self.rest = self.rest[size:]
        return size


def _open_zstd(source: IO[bytes]) -> IO[bytes]:
    return stream_blocks(_expand_zstd(source))


def _expand_zstd(source: IO[bytes]) -> Iterator[bytes]:
    """Yield a .zst file's content; zstandard's own reader takes a truncated file for a whole."""
    new_frame, error_of_zstd = _load_zstd()
    frame, rest = None, b""
    while data := rest or source.read(ZSTD_BITE_BYTES):
        frame = frame or new_frame()
        try:
            yield frame.decompress(data)
        except error_of_zstd as error:
            limit = f" (at most zstd --long={ZSTD_WINDOW_LOG})" if "memory" in str(error) else ""
            raise EOFError(f"{error}{limit}") from None
        rest = frame.unused_data if frame.eof else b""
        frame = None if frame.eof else frame
    if frame:
        raise EOFError("the end of the last frame is missing")


def _load_zstd() -> tuple[Callable[[], Any], type[Exception]]:
    """Return a function that makes a frame's decompressor, and the error for an invalid frame."""
    if sys.version_info >= (3, 14):
        zstd = import_module("compression.zstd")
        options = {zstd.DecompressionParameter.window_log_max: ZSTD_WINDOW_LOG}
        return lambda: zstd.ZstdDecompressor(options=options), zstd.ZstdError
    zstandard = import_extra("zstandard", "zstd", "reading a file that zstd compressed")
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << ZSTD_WINDOW_LOG)
    return decompressor.decompressobj, zstandard.ZstdError


COMPRESSIONS: tuple[tuple[Callable[[IO[bytes]], Any], re.Pattern[bytes], tuple[str, ...]], ...] = (
    (gzip.open, re.compile(rb"\x1f\x8b"), (".gz", ".gzip")),
    (bz2.open, re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"), (".bz2", ".bzip2")),
    (lzma.open, re.compile(rb"\xfd7zXZ\0|\]\0\0"), (".xz", ".lzma")),
    (_open_zstd, re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"), (".zst", ".zstd")),
)
"""How compressed content is opened, how it begins, and the suffixes of its files."""
COMPRESSION_BYTES = 10
COMPRESSED_SUFFIXES = {suffix for *_, suffixes in COMPRESSIONS for suffix in suffixes}
NO_DAMAGE = re.compile("memory|dictionary|support", re.IGNORECASE)
"""Messages of a decompressor on a sound file that it cannot read."""

OTHERS = {
    rb"version https://git-lfs\.github\.com/": (
        "a pointer of Git LFS, not the file itself; `git lfs pull` fetches it"
    ),
    rb"(?s)PK\x03\x04.*?(xl/[_w]|spreadsheet)": "a workbook; save the sheet as .csv in UTF-8",
    rb"(?s)PK\x03\x04.*?(word/|epub|opendocument)": "a document; save or convert it as .txt",
    rb"PK\x03\x04": "a ZIP archive; unpack it first",
    rb"(?s).{257}ustar": "a tar archive; `tar -xf` unpacks it",
    rb"7z\xbc\xaf|Rar!\x1a|\x04\x22\x4d\x18|\x1f\x9d|LZIP\x01": (
        "an archive of 7-Zip, RAR, LZ4, compress or lzip; unpack it first"
    ),
    rb"\xd0\xcf\x11\xe0": "an old file of Excel or Word; save it as .csv or .txt in UTF-8",
    rb"SQLite format 3\0": "an SQLite database; export the table as .csv",
    rb"%PDF-": "PDF; its text has to be extracted first",
    rb"PAR1": "Parquet; name it .parquet",
    rb"ARROW1\0\0": "an Arrow file with an index (Feather); save it as .parquet",
}
"""How files begin that are no text and no table, in bytes, and what to do with them."""


def name_other(first: bytes) -> str:
    """Return what a file that begins with these bytes is instead of text or a table, or ""."""
    first = first[:BLOCK_BYTES]
    if any(begin.match(first) for _, begin, _ in COMPRESSIONS):
        return "compressed twice; decompress it once"
    return next((what for begin, what in OTHERS.items() if re.match(begin, first)), "")


# Encodings

UTF8, DETECT = "utf-8", "detect"
BOMS = {
    codecs.BOM_UTF32_LE: "utf-32",  # before UTF-16, whose mark it begins with
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
MAX_INVALID_SHARE = 0.1
"""Largest share of invalid characters in a text; in UTF-8, of those that are not ASCII."""


def check_encoding(name: str) -> None:
    """Raise UserError if Python knows no encoding of text of this name."""
    try:
        is_known = name == DETECT or codecs.lookup(name)._is_text_encoding
    except LookupError:
        is_known = False
    require(
        bool(is_known),
        f"encoding must be {UTF8}, {DETECT} or a name such as euc_kr, shift_jis, gb18030, latin_1 "
        f"or utf-16, not {name!r}",
    )


def is_utf8(name: str) -> bool:
    """Return whether this is a name of UTF-8."""
    return name != DETECT and codecs.lookup(name).name == UTF8


def find_mark(first: bytes) -> str:
    """Return the encoding whose byte-order mark a text begins with, or ""."""
    return next((name for bom, name in BOMS.items() if first.startswith(bom)), "")


def looks_utf8(first: bytes, stray: float = 0.0) -> bool:
    """Return whether a text is UTF-8, some bytes of which may be invalid: a share `stray` of it."""
    text, num_invalid = decode_beginning(first, UTF8)
    others = len(text) - len(text.encode("ascii", "ignore"))
    return num_invalid <= max(MAX_INVALID_SHARE * others, stray * len(text))


def decode_beginning(first: bytes, encoding: str) -> tuple[str, int]:
    """Return the text that begins with these bytes, and how many of its characters are invalid."""
    # A last character that is cut off is none of them, so `final` stays False.
    text = codecs.getincrementaldecoder(encoding)("replace").decode(first)
    return text, text.count("\ufffd") - first.count("\ufffd".encode())


def transcode(
    stream: IO[bytes], encoding: str, count: Callable[[int], None], path: Path
) -> IO[bytes]:
    """Return a stream of the same text in UTF-8.

    `count` is called with the number of invalid sequences, each of which becomes U+FFFD.
    """

    def blocks() -> Iterator[bytes]:
        decoder = codecs.getincrementaldecoder(encoding)("replace")
        data = None
        while data != b"":
            data = stream.read(BLOCK_BYTES)
            try:
                text = decoder.decode(data, final=not data)
            except UnicodeError as error:  # as of utf-16 without a mark
                raise UserError(f"{path} is not {encoding}: {error}") from None
            count(text.count("\ufffd"))
            yield text.encode("utf-8", "replace")

    return stream if is_utf8(encoding) else stream_blocks(blocks())
