"""What the parts of a tokenizer's definition say: which tokens begin a word, what may be cut apart.

A definition is the content of a `tokenizer.json`. The library applies it in four stages: added
tokens, normaliser, pre-tokenizer, model. The model sees one pre-token at a time. So the ids of a
stretch of text do not depend on its neighbours if no added token is matched in text, the normaliser
changes each stretch by itself, and the pre-tokenizer cuts at the same places with and without the
neighbours. This module knows for which parts that holds; of all others nothing is assumed.
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal

from electra.errors import require

Independence = Literal["words", "spaced words", "lines"]
"""Stretches of a line whose ids do not depend on the rest of it, if the only white space in the
line are spaces, as in the lines of `Reader`: words without the spaces, which have no ids;
words with the spaces before them; or only whole lines."""

IDEOGRAPHS = re.compile(
    "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002ceaf"
    "\U0002f800-\U0002fa1f]"
)
"""Chinese characters, each a word of its own. Source: BERT's _is_chinese_char."""

METASPACE = "\u2581"
BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
"""How SentencePiece writes a byte of a character that is not in the vocabulary."""

# Each of them maps characters, or characters with the combining marks that follow them, and so
# never looks past a space: it composes with nothing, and nothing is reordered across it.
BLIND_TO_NEIGHBOURS = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt"}
DROP_SPACES = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit"}


def parts_of(stage: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """Return the parts of a normaliser, pre-tokenizer or decoder in order, without sequences."""
    if not stage:
        return []
    if stage["type"] != "Sequence":
        return [stage]
    name = next(key for key in stage if key != "type")
    return [part for inner in stage[name] for part in parts_of(inner)]


def find_independence(definition: Mapping[str, Any]) -> Independence:
    """Return the shortest stretches of a line whose ids are proven not to depend on the rest.

    - A pre-tokenizer that drops white space never looks past it: "words".
    - GPT-2's pattern (ByteLevel) gives a space to the word after it, and of several spaces the
      last; Metaspace cuts before each space: "spaced words", since " word" begins with its space
      alone, too, and so gets no other one.
    - An added token that is matched in text may reach across spaces, and a normaliser may replace
      them: "lines".
    """
    if any(not token["special"] for token in definition["added_tokens"]):
        return "lines"
    normalizers = parts_of(definition["normalizer"])
    pre_tokenizers = parts_of(definition["pre_tokenizer"])
    has_bert = any(part["type"] == "BertNormalizer" for part in normalizers)
    if not pre_tokenizers or not all(map(_is_blind, normalizers)):
        return "lines"
    first, *others = pre_tokenizers
    if first["type"] in DROP_SPACES:
        depends = any(part.get("prepend_scheme") == "first" for part in others)
        return "lines" if depends else "words"
    is_byte_level = first["type"] == "ByteLevel" and first.get("use_regex", True)
    is_metaspace = first["type"] == "Metaspace" and first.get("split", True)
    # BertNormalizer writes spaces around ideographs: at the end of a word they would be another's.
    return "spaced words" if (is_byte_level or is_metaspace) and not has_bert else "lines"


def _is_blind(normalizer: Mapping[str, Any]) -> bool:
    if normalizer["type"] == "Replace":
        return " " not in normalizer["pattern"].get("String", " ")
    return normalizer["type"] in BLIND_TO_NEIGHBOURS | {"BertNormalizer"}


def strips_accents(definition: Mapping[str, Any]) -> bool:
    """Return whether the normaliser removes combining marks."""
    return any(
        part["type"] == "StripAccents"
        or (part["type"] == "BertNormalizer" and _strips_of_bert(part))
        for part in parts_of(definition["normalizer"])
    )


def _strips_of_bert(part: Mapping[str, Any]) -> bool:
    strip = part.get("strip_accents")
    return bool(part.get("lowercase")) if strip is None else bool(strip)


def lowers_case(definition: Mapping[str, Any]) -> bool:
    """Return whether the normaliser writes all letters small."""
    return any(
        part["type"] == "Lowercase" or (part["type"] == "BertNormalizer" and part.get("lowercase"))
        for part in parts_of(definition["normalizer"])
    )


def show_tokens(definition: Mapping[str, Any], tokens: Sequence[str]) -> list[tuple[bool, str]]:
    """Return for each token whether it begins a word, and its text without marks.

    Where spaces are part of the tokens ("Ġ" of byte-level BPE, "▁" of SentencePiece), a token
    begins a word if it begins with one, with a character that is no letter, digit or combining
    mark, or with an ideograph: so words end where BERT's do.

    Raises:
        UserError: The tokens do not say where words begin.
    """
    model = definition["model"]
    if model["type"] == "WordLevel":
        return [(True, token) for token in tokens]
    prefix = model.get("continuing_subword_prefix")
    if prefix:
        return [(not token.startswith(prefix), token.removeprefix(prefix)) for token in tokens]
    stages = [*parts_of(definition["normalizer"]), *parts_of(definition["pre_tokenizer"])]
    if any(part["type"] == "ByteLevel" for part in stages):
        return [_show_bytes(_bytes_of(token)) for token in tokens]
    writes_spaces = any(
        part["type"] == "Metaspace"
        or (part["type"] == "Replace" and part.get("content") == METASPACE)
        for part in stages
    )
    require(
        writes_spaces and not model.get("end_of_word_suffix"),
        "its tokens do not say where a word begins: they have neither a prefix for the pieces "
        'inside a word ("##") nor a sign for the space before it ("Ġ", "▁")',
    )
    return [_show_bytes(_bytes_of_piece(token)) for token in tokens]


def _show_bytes(content: bytes) -> tuple[bool, str]:
    text = content.decode("utf-8", "backslashreplace")
    if content[:1] in (b" ", b"\t", b"\n", b"\r"):
        return True, text[1:] or METASPACE
    is_inside_character = content >= b"\x80" and text.startswith("\\")
    return not is_inside_character and not _continues(text[:1]), text


@cache
def _continues(char: str) -> bool:
    return bool(char) and unicodedata.category(char)[0] in "LMN" and not IDEOGRAPHS.match(char)


def _bytes_of(token: str) -> bytes:
    """Return the bytes of a byte-level token; a character that stands for none is itself."""
    table = _byte_table()
    return b"".join(
        bytes([table[char]]) if char in table else char.encode("utf-8", "replace") for char in token
    )


@cache
def _byte_table() -> dict[str, int]:
    """Return the byte of each character of byte-level tokens.

    Printable bytes of Latin-1 stand for themselves, the others for the characters from 256 on.
    Source: GPT-2's bytes_to_unicode.
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(plain)]
    chars = {chr(byte): byte for byte in plain}
    return chars | {chr(256 + place): byte for place, byte in enumerate(others)}


def _bytes_of_piece(token: str) -> bytes:
    byte = BYTE_TOKEN.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace(METASPACE, " ").encode()


def without_space(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the borders of a stretch of text without white space at its ends."""
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    return start, end


def past_marks(text: str, end: int) -> int:
    """Return the place behind the combining marks that stand at `end`."""
    while end < len(text) and unicodedata.category(text[end]) == "Mn":
        end += 1
    return end
