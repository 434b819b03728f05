"""SentencePiece's `.model` files: their pieces, and the tokenizer that their own rules make.

The file is a protocol buffer. sentencepiece's own module for it needs the package protobuf, which
nothing else here does.
"""

import base64
import struct
from collections.abc import Iterator, Sequence
from io import BytesIO
from typing import Any, NamedTuple

from electra.errors import UserError, require
from electra.tokenizing.formats import METASPACE, OUTER_SPACES, special_token

UNIGRAM, BPE = 1, 2
NORMAL, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 3, 4, 5, 6


class Piece(NamedTuple):
    """An entry of the vocabulary."""

    text: str
    score: float
    kind: int = NORMAL


class Model(NamedTuple):
    """The contents of a `.model` file."""

    pieces: list[Piece]
    is_bpe: bool
    unk_id: int
    normalizer: list[dict[str, Any]]
    """The map of characters, if there is one, as a normaliser."""
    joins_spaces: bool
    """Whether spaces at the ends, and all but one of several, are removed."""
    begins_with_space: bool

    @property
    def symbols(self) -> list[dict[str, Any]]:
        """The added tokens: control symbols, which are special, and user-defined symbols."""
        return [
            special_token(piece.text, number) | {"special": piece.kind == CONTROL}
            for number, piece in enumerate(self.pieces)
            if piece.kind in (CONTROL, USER_DEFINED)
        ]


def read_model(content: bytes) -> Model:
    """Return what a file says."""
    pieces: list[Piece] = []
    specs: dict[int, dict[int, Any]] = {2: {}, 3: {}}
    try:
        for field, value in read_fields(content):
            if field == 1:
                facts = dict(read_fields(value))
                (score,) = struct.unpack("<f", facts.get(2, bytes(4)))
                pieces.append(Piece(facts[1].decode(), score, facts.get(3, NORMAL)))
            elif field in specs:
                specs[field] = dict(read_fields(value))
        charsmap = base64.b64encode(specs[3].get(2, b"")).decode()
    except (ValueError, LookupError, struct.error, TypeError, AttributeError, OverflowError):
        raise UserError("not a SentencePiece model, or cut off") from None
    require(bool(pieces), "not a SentencePiece model: it holds no pieces")
    trainer, normalizer = specs[2], specs[3]
    kind = trainer.get(3, UNIGRAM)
    require(kind in (UNIGRAM, BPE), "a SentencePiece model must be of type unigram or bpe")
    require(
        all(piece.kind != UNUSED for piece in pieces),
        "a SentencePiece model with pieces of type UNUSED cannot be used",
    )
    unk_id = trainer.get(40, 0)
    require(
        isinstance(unk_id, int) and unk_id < len(pieces),
        f"not a SentencePiece model: unknown text has the id {unk_id!r} of {len(pieces)} pieces",
    )
    maps = [{"type": "Precompiled", "precompiled_charsmap": charsmap}] if charsmap else []
    flags = (bool(normalizer.get(number, 1)) for number in (4, 3))
    return Model(pieces, kind == BPE, unk_id, maps, *flags)


def build_state(model: Model) -> dict[str, Any]:
    """Return the state of the tokenizer that encodes as SentencePiece itself."""
    pieces, normalizers = model.pieces, list(model.normalizer)
    if model.joins_spaces:
        # Not Strip: it removes all white space, including what the map keeps.
        normalizers += [
            {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}
            for pattern, content in ((OUTER_SPACES, ""), (" {2,}", " "))
        ]
    # Pieces that reach across a space need the whole line.
    is_split = not any(METASPACE in piece.text[1:] for piece in pieces if piece.kind == NORMAL)
    # "always" would write a space after each symbol that is found in text, and "first" writes none
    # where the text began with white space.
    has_symbols = any(piece.kind == USER_DEFINED for piece in pieces)
    begins = ("first" if has_symbols else "always") if model.begins_with_space else "never"
    decoder = write_spaces(begins, is_split)
    has_bytes = any(piece.kind == BYTE for piece in pieces)
    if has_bytes:
        spaces = {"type": "Replace", "pattern": {"String": METASPACE}, "content": " "}
        first = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
        parts = [spaces, {"type": "ByteFallback"}, {"type": "Fuse"}, first]
        decoder = {"type": "Sequence", "decoders": parts}
    build = _build_bpe if model.is_bpe else build_unigram
    return {
        "added_tokens": model.symbols,
        "normalizer": {"type": "Sequence", "normalizers": normalizers} if normalizers else None,
        "pre_tokenizer": write_spaces(begins, is_split),
        "decoder": decoder,
        "model": build(pieces, model.unk_id, has_bytes),
    }


def write_spaces(begins: str, is_split: bool = True) -> dict[str, Any]:
    """Return the pre-tokenizer and decoder that writes spaces as METASPACE."""
    return {
        "type": "Metaspace",
        "replacement": METASPACE,
        "prepend_scheme": begins,
        "split": is_split,
    }


def build_unigram(pieces: Sequence[Piece], unk_id: int, has_bytes: bool = False) -> dict[str, Any]:
    """Return the model of Unigram."""
    vocab = [[piece.text, piece.score] for piece in pieces]
    return {"type": "Unigram", "unk_id": unk_id, "vocab": vocab, "byte_fallback": has_bytes}


def _build_bpe(pieces: Sequence[Piece], unk_id: int, has_bytes: bool) -> dict[str, Any]:
    """Return the model of BPE, with the merges that give each piece, the best piece first."""
    ids = {piece.text: number for number, piece in enumerate(pieces)}
    normal = {piece.text for piece in pieces if piece.kind == NORMAL}
    merges = [
        (-piece.score, ids[piece.text[:cut]], ids[piece.text[cut:]])
        for piece in pieces
        if piece.kind == NORMAL
        for cut in range(1, len(piece.text))  # SentencePiece merges whichever neighbours give it
        if piece.text[:cut] in normal and piece.text[cut:] in normal
    ]
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": pieces[unk_id].text,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": has_bytes,
        "ignore_merges": False,
        "vocab": ids,
        "merges": [[pieces[left].text, pieces[right].text] for _, left, right in sorted(merges)],
    }


def read_fields(content: bytes) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each field of a protocol buffer: an integer, or the value's bytes.

    What is cut off or no protocol buffer is a ValueError, IndexError or OverflowError.
    """
    stream = BytesIO(content)
    while stream.tell() < len(content):
        number, kind = divmod(read_varint(stream), 8)
        if kind == 0:
            yield number, read_varint(stream)
            continue
        require(kind in (1, 2, 5), "an unknown wire type")
        size = {1: 8, 5: 4}.get(kind) or read_varint(stream)  # fixed, or in front of the value
        value = stream.read(size)
        require(len(value) == size, "a value ends outside its message")
        yield number, value


def read_varint(stream: BytesIO) -> int:
    """Return a number of seven bits a byte."""
    value = 0
    for shift in range(0, 70, 7):
        byte = stream.read(1)[0]
        value |= (byte & 127) << shift
        if byte < 128:
            return value
    raise UserError("a number is too long")
