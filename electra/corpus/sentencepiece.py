"""SentencePiece's `.model` files as definitions, without the package.

A `.model` is a protocol buffer. Of its three messages (pieces, trainer, normaliser) only what
determines the ids is read. Source: sentencepiece_model.proto; the tests compare the ids with those
of the package.

Where they differ: of two ways to cut a word that are equally likely in float32, the other may be
taken. SentencePiece never matches a control symbol such as "<s>" in text. Unigram here
finds it, and the special tokens among them become the unknown token.
"""

import base64
import struct
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from electra.config import UserError, require
from electra.corpus.definitions import Definition, define
from electra.corpus.structure import METASPACE

UNIGRAM, BPE = 1, 2
NORMAL, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 3, 4, 5, 6
VARINT, EIGHT_BYTES, DELIMITED, FOUR_BYTES = 0, 1, 2, 5


class Piece(NamedTuple):
    """An entry of the vocabulary."""

    text: str
    score: float
    kind: int


def read_sentencepiece(content: bytes, settings: Mapping[str, Any]) -> Definition:
    """Return the definition in a `.model`.

    Args:
        content: The bytes of the file.
        settings: The values of a `tokenizer_config.json` beside it, which may name special tokens.

    Raises:
        UserError: The file is damaged, or is neither Unigram nor BPE.
    """
    try:
        pieces, trainer, normalizer = _parse(content)
    except (ValueError, IndexError, struct.error, UnicodeDecodeError, TypeError, AttributeError):
        raise UserError("not a SentencePiece model, or cut off") from None
    require(bool(pieces), "not a SentencePiece model: it holds no pieces")
    kind = trainer.get(3, UNIGRAM)
    require(kind in (UNIGRAM, BPE), "a SentencePiece model must be of type unigram or bpe")
    require(
        all(piece.kind != UNUSED for piece in pieces),
        "a SentencePiece model with pieces of type UNUSED cannot be used",
    )
    return define(_build_state(pieces, trainer, normalizer, is_bpe=kind == BPE), settings)


def read_pieces(content: bytes) -> list[Piece]:
    """Return the pieces of a `.model` in id order."""
    return _parse(content)[0]


def _parse(content: bytes) -> tuple[list[Piece], dict[int, Any], dict[int, Any]]:
    pieces: list[Piece] = []
    specs: dict[int, dict[int, Any]] = {2: {}, 3: {}}
    for field, value in _fields(content):
        if field == 1:
            facts = dict(_fields(value))
            (score,) = struct.unpack("<f", facts.get(2, bytes(4)))
            pieces.append(Piece(facts[1].decode(), score, facts.get(3, NORMAL)))
        elif field in specs:
            specs[field] = dict(_fields(value))
    return pieces, specs[2], specs[3]


def _fields(content: bytes) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each field of a message: an integer, or the bytes of the value."""
    place = 0
    while place < len(content):
        key, place = _varint(content, place)
        kind = key & 7
        if kind == VARINT:
            value: int | bytes
            value, place = _varint(content, place)
        else:
            if kind == DELIMITED:
                size, place = _varint(content, place)
            else:
                size = {FOUR_BYTES: 4, EIGHT_BYTES: 8}.get(kind, len(content) + 1)
            value, place = content[place : place + size], place + size
            if place > len(content):
                raise ValueError("the message ends inside a field")
        yield key >> 3, value


def _varint(content: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place


def _build_state(
    pieces: list[Piece], trainer: dict[int, Any], normalizer: dict[int, Any], *, is_bpe: bool
) -> dict[str, Any]:
    normalizers: list[dict[str, Any]] = []
    if charsmap := normalizer.get(2):
        encoded = base64.b64encode(charsmap).decode()
        normalizers.append({"type": "Precompiled", "precompiled_charsmap": encoded})
    if normalizer.get(4, 1):
        runs = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
        normalizers += [{"type": "Strip", "strip_left": True, "strip_right": True}, runs]
    # Pieces that reach across a space need the whole line.
    is_split = not any(METASPACE in piece.text[1:] for piece in pieces if piece.kind == NORMAL)
    # "always" would write a space after each symbol that is found in text, and "first" writes none
    # where the text began with white space.
    has_symbols = any(piece.kind == USER_DEFINED for piece in pieces)
    metaspace = {
        "type": "Metaspace",
        "replacement": METASPACE,
        "prepend_scheme": ("first" if has_symbols else "always")
        if normalizer.get(3, 1)
        else "never",
        "split": is_split,
    }
    unk_id = trainer.get(40, 0)
    has_bytes = any(piece.kind == BYTE for piece in pieces)
    model: dict[str, Any] = {
        "type": "Unigram",
        "unk_id": unk_id,
        "vocab": [[piece.text, piece.score] for piece in pieces],
        "byte_fallback": has_bytes,
    }
    if is_bpe:
        model = {
            "type": "BPE",
            "dropout": None,
            "unk_token": pieces[unk_id].text,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": has_bytes,
            "ignore_merges": False,
            "vocab": {piece.text: number for number, piece in enumerate(pieces)},
            "merges": _find_merges(pieces),
        }
    added = [
        {
            "id": number,
            "content": piece.text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": piece.kind == CONTROL,
        }
        for number, piece in enumerate(pieces)
        if piece.kind in (CONTROL, USER_DEFINED)
    ]
    decoder: dict[str, Any] = metaspace
    if has_bytes:
        spaces = {"type": "Replace", "pattern": {"String": METASPACE}, "content": " "}
        first = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
        parts = [spaces, {"type": "ByteFallback"}, {"type": "Fuse"}, first]
        decoder = {"type": "Sequence", "decoders": parts}
    return {
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": normalizers} if normalizers else None,
        "pre_tokenizer": metaspace,
        "decoder": decoder,
        "model": model,
    }


def _find_merges(pieces: list[Piece]) -> list[list[str]]:
    """Return the merges that give each piece, the best piece first.

    SentencePiece merges whichever neighbours give the piece with the highest score.
    """
    ids = {piece.text: number for number, piece in enumerate(pieces) if piece.kind == NORMAL}
    merges = [
        (-piece.score, ids[piece.text[:cut]], ids[piece.text[cut:]])
        for piece in pieces
        if piece.kind == NORMAL
        for cut in range(1, len(piece.text))
        if piece.text[:cut] in ids and piece.text[cut:] in ids
    ]
    return [[pieces[left].text, pieces[right].text] for _, left, right in sorted(merges)]
