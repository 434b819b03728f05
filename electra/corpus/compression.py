"""Byte streams from plain or compressed files. A truncated file raises an error."""

import bz2
import gzip
import io
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import IO, Any

from electra.config import UserError

STDIN = Path("-")
ZSTD_BITE_BYTES = 512
"""Compressed bytes per call of zstd. The expansion is at most 32,000 times, so 16 MB per call."""


@contextmanager
def open_source(path: Path) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Yield the raw file, whose position is the progress, and the stream of decompressed content.

    Raises:
        UserError: The file is damaged or unreadable. This can happen at any read of the content.
    """
    compression = compression_of(path)
    with ExitStack() as stack:
        try:
            source = sys.stdin.buffer if path == STDIN else stack.enter_context(path.open("rb"))
            is_plain = not compression
            stream = source if is_plain else stack.enter_context(DECOMPRESSORS[compression](source))
            yield source, stream
        except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
            raise UserError(f"{path} is damaged or cut off: {error}") from None
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror or error}") from None


def compression_of(path: Path) -> str:
    """Return the suffix of the file's compression, such as ".gz", or "" for a plain file."""
    suffix = path.suffix.lower()
    return suffix if suffix in DECOMPRESSORS else ""


def import_extra(module: str, extra: str, purpose: Path | str) -> ModuleType:
    """Return a module that not everybody needs, such as the one that reads this file.

    Raises:
        UserError: The module is not installed; the message names the extra that installs it.
    """
    try:
        return import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        what = f"reading {purpose}" if isinstance(purpose, Path) else purpose
        raise UserError(f"{what} needs {package}: pip install 'electra[{extra}]'") from None


def _open_zstd(source: IO[bytes]) -> IO[bytes]:
    path = Path(source.name)
    if sys.version_info >= (3, 14):
        return import_module("compression.zstd").open(source)
    return io.BufferedReader(_ZstdStream(source, import_extra("zstandard", "zstd", path)))


class _ZstdStream(io.RawIOBase):
    """Content of a .zst file; a truncated file is an error, unlike in zstandard's own stream."""

    def __init__(self, source: IO[bytes], zstandard: ModuleType) -> None:
        self.source = source
        self.zstandard = zstandard
        self.frame = zstandard.ZstdDecompressor().decompressobj()
        self.is_between_frames = True
        self.input = b""
        self.output = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.output:
            self.input = self.input or self.source.read(ZSTD_BITE_BYTES)
            if not self.input:
                if not self.is_between_frames:
                    raise EOFError("the end of the last frame is missing")
                return 0
            self._expand()
        size = min(len(buffer), len(self.output))
        buffer[:size] = self.output[:size]
        self.output = self.output[size:]
        return size

    def _expand(self) -> None:
        if self.frame.eof:
            self.frame = self.zstandard.ZstdDecompressor().decompressobj()
        try:
            self.output = memoryview(self.frame.decompress(self.input))
        except self.zstandard.ZstdError as error:
            raise EOFError(str(error)) from None
        self.input = self.frame.unused_data if self.frame.eof else b""
        self.is_between_frames = self.frame.eof


DECOMPRESSORS: dict[str, Callable[[IO[bytes]], Any]] = {
    ".bz2": bz2.open,
    ".gz": gzip.open,
    ".xz": lzma.open,
    ".zst": _open_zstd,
}
