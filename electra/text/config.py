"""Settings of reading text."""

from dataclasses import dataclass
from typing import Literal

from electra.settings import Settings


@dataclass(frozen=True, kw_only=True)
class TextConfig(Settings):
    """How text is read: settings of `electra tokenizer` and of `electra prepare`."""

    text_field: str = "text"
    """The field of a .jsonl record, or the column of a table, that holds the text."""
    encoding: str = "utf-8"
    """Encoding of the text, such as euc_kr, shift_jis, gb18030, latin_1 or utf-16. detect: guess
    it for each file, and report the guess."""
    form: Literal["auto", "text"] = "auto"
    """Format of files whose suffix does not show it. auto: detect it from the first bytes: plain
    text, JSON lines, a JSON array, a table, pages of WikiExtractor; markup is refused. text: plain
    text."""
