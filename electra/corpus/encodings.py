"""Text in other encodings than UTF-8, as a stream of UTF-8."""

import codecs
import io
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import IO, Any, cast

from electra.config import UserError, require

UTF8, DETECT = "utf-8", "detect"
UTF16_BOMS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
BLOCK_BYTES = 1 << 16
BOMS = {
    codecs.BOM_UTF32_LE: "utf-32",  # before UTF-16, whose mark it begins with
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
CANDIDATES = ["cp949", "cp932", "euc_jp", "gb18030", "big5", "cp1251", "koi8_r", "cp1252"]
CANDIDATES += ["cp1250", "cp1253", "cp1254", "cp1255", "cp1256", "cp874"]
"""Korean, Japanese, Chinese, Cyrillic, Western and Central European, Greek, Turkish, Hebrew, Arabic
and Thai; each holds the older encodings of its script, such as EUC-KR, Shift_JIS and Latin-1."""


def check_encoding(name: str) -> None:
    """Refuse a name that is no encoding of text.

    Raises:
        UserError: Python knows no such encoding.
    """
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


def detect(first: bytes) -> str:
    """Return the encoding of a text that begins with these bytes; "" if it is no text.

    Raises:
        UserError: The text is not UTF-8, and the package that tells encodings is not installed.
    """
    mark = next((name for bom, name in BOMS.items() if first.startswith(bom)), "")
    if mark:
        return mark
    try:
        codecs.getincrementaldecoder(UTF8)().decode(first)
        return "" if b"\0" in first else UTF8
    except UnicodeDecodeError:
        if b"\0" in first:
            return ""
    return guess(first)


def guess(first: bytes) -> str:
    """Return which of CANDIDATES a text without marks is in; "" if it is in none.

    Raises:
        UserError: The package that tells encodings is not installed.
    """
    try:
        charset_normalizer = import_module("charset_normalizer")
    except ImportError:
        raise UserError(
            "telling encodings needs charset_normalizer: pip install 'electra[encodings]'; or name "
            "the encoding: --set encoding=NAME"
        ) from None
    # The last character may be incomplete.
    found = charset_normalizer.from_bytes(
        first[: first.rfind(b"\n") + 1] or first, cp_isolation=CANDIDATES
    )
    best = found.best()
    if best is None:
        return ""
    western = first.decode("cp1252", "replace")
    is_same = best.encoding == "cp1250" and western == first.decode("cp1250", "replace")
    return "cp1252" if is_same else str(best.encoding)


def transcode(
    stream: IO[bytes], encoding: str, count: Callable[[int], None], path: Path
) -> IO[bytes]:
    """Return a stream of the same text in UTF-8.

    Args:
        stream: Text in the encoding.
        encoding: Its name; UTF-8 is passed on as it is.
        count: Called with the number of invalid sequences, each of which becomes U+FFFD.
        path: For messages. A stream that cannot begin as the encoding does is a UserError.
    """
    if is_utf8(encoding):
        return stream
    return io.BufferedReader(cast(Any, _Transcoded(stream, encoding, count, path)), BLOCK_BYTES)


class _Transcoded(io.RawIOBase):
    def __init__(
        self, stream: IO[bytes], encoding: str, count: Callable[[int], None], path: Path
    ) -> None:
        self.stream, self.encoding, self.path = stream, encoding, path
        self.decoder = codecs.getincrementaldecoder(encoding)("replace")
        self.count = count
        self.is_open = True
        self.rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.rest and self.is_open:
            data = self.stream.read(BLOCK_BYTES)
            self.is_open = bool(data)
            try:
                text = self.decoder.decode(data, final=not data)
            except UnicodeError as error:  # as of utf-16 without a mark
                raise UserError(f"{self.path} is not {self.encoding}: {error}") from None
            self.count(text.count("\ufffd"))
            self.rest = memoryview(text.encode("utf-8", "replace"))
        size = min(len(buffer), len(self.rest))
        buffer[:size] = self.rest[:size]
        self.rest = self.rest[size:]
        return size
