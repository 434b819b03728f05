"""What a tokenizer's definition says, and definitions read from other programs' files.

A definition is what of a `tokenizer.json` determines the ids: the keys of DEFINING. The rest is
left out, because rows are made by this package. The five special tokens are those that the settings
beside the file name, else those with a known name; a tokenizer that lacks some gets them at its
end.

The library applies a definition in four stages: added tokens, normaliser, pre-tokenizer, model. The
model sees one pre-token at a time. So the ids of a stretch of text do not depend on its neighbours
if no added token is matched in text, the normaliser changes each stretch by itself, and the
pre-tokenizer cuts at the same places with and without the neighbours. `find_independence` knows for
which parts that holds; of all others nothing is assumed.
"""

import base64
import re
import struct
import unicodedata
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from electra.errors import UserError, require
from electra.files import parse_json
from electra.text.documents import MAX_WORD_CHARS

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
DEFINING = ("added_tokens", "normalizer", "pre_tokenizer", "decoder", "model")
KNOWN_NAMES = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<cls>", "<s>"),
    "sep": ("[SEP]", "<sep>", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}
"""Names of the special tokens by role, in the order of SPECIAL_TOKENS."""
MODELS = ("WordPiece", "BPE", "Unigram", "WordLevel")
BERT_KINDS = ["WordPiece", "BertNormalizer", "BertPreTokenizer"]


class Definition(NamedTuple):
    """A tokenizer as it is stored."""

    state: dict[str, Any]
    """Content of the `tokenizer.json` under the keys of DEFINING."""
    special_tokens: tuple[str, ...]
    """The tokens in the roles of KNOWN_NAMES."""

    @property
    def tokens(self) -> list[str]:
        """All tokens in id order."""
        ids = _ids_of(self.state)
        return sorted(ids, key=ids.__getitem__)

    @property
    def bert(self) -> dict[str, bool | None] | None:
        """The settings of BERT's normalisation; None: this is another tokenizer than BERT's."""
        state = self.state
        model, normalizer = state["model"], state["normalizer"]
        kinds = [part and part["type"] for part in (model, normalizer, state["pre_tokenizer"])]
        added = {token["content"] for token in state["added_tokens"]}
        is_bert = (
            kinds == BERT_KINDS
            and normalizer.get("clean_text") is True
            and model.get("continuing_subword_prefix", "##") == "##"
            and model.get("max_input_chars_per_word", MAX_WORD_CHARS) == MAX_WORD_CHARS
            and self.special_tokens == SPECIAL_TOKENS
            and added <= set(SPECIAL_TOKENS)
            and model["vocab"].keys() >= set(SPECIAL_TOKENS)
        )
        if not is_bert:
            return None
        return {
            "lowercase": normalizer.get("lowercase", True),
            "strip_accents": normalizer.get("strip_accents"),
            "split_ideographs": normalizer.get("handle_chinese_chars", True),
        }


def read_definition(content: str, settings: Mapping[str, Any]) -> Definition:
    """Return the definition in a `tokenizer.json`; `settings` of the `tokenizer_config.json`.

    Raises:
        UserError: The file is damaged, draws its ids at random, or has an unusable vocabulary.
    """
    try:
        state = parse_json(content, "tokenizer.json")
        state = {key: state.get(key) for key in DEFINING}
        state["added_tokens"] = [dict(token) for token in state["added_tokens"] or []]
        kind = state["model"]["type"]
        require(kind in MODELS, f"its model is {kind}; it must be one of {', '.join(MODELS)}")
        return define(state, settings)
    except UserError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        raise UserError("not a tokenizer.json") from None


def define(state: dict[str, Any], settings: Mapping[str, Any]) -> Definition:
    """Return the definition with its special tokens; those that it lacks are added to `state`."""
    model = state["model"]
    for name in ("dropout", "alpha", "nbest_size"):
        require(not model.get(name), f"its ids are drawn at random: the model has {name}")
    for part in parts_of(state["normalizer"]):
        _require_flags(part, "lowercase", "strip_accents", "handle_chinese_chars", "clean_text")
    ids = _ids_of(state)
    named = {role: _name_of(role, settings, state, ids) for role in KNOWN_NAMES}
    missing = [name for name in named.values() if name not in ids]
    for name in missing:
        ids[name] = len(ids)
    require(
        len(set(named.values())) == len(named),
        "its special tokens must be five different tokens, not "
        + ", ".join(f"{role}={name}" for role, name in named.items()),
    )
    _mind_unknown(state, named["unk"])
    if missing:
        told = ", ".join(f"{name} = {ids[name]}" for name in missing)
        warnings.warn(f"special tokens added at the end of the vocabulary: {told}", stacklevel=2)
    _mark_special(state, [(name, ids[name]) for name in named.values()])
    return Definition(state, tuple(named.values()))


def _ids_of(state: Mapping[str, Any]) -> dict[str, int]:
    """Return all tokens with their ids, which are 0, 1, ... without gaps."""
    vocab = state["model"]["vocab"]
    pairs = (
        [(entry[0], number) for number, entry in enumerate(vocab)]
        if isinstance(vocab, list)
        else list(vocab.items())
    )
    ids = dict(pairs)
    require(len(ids) == len(pairs), "the vocabulary holds a token twice")
    for token in state["added_tokens"]:
        known = ids.setdefault(token["content"], token["id"])
        require(known == token["id"], f"the token {token['content']!r} has two ids")
    require(
        sorted(ids.values()) == list(range(len(ids))),
        "the ids of the vocabulary have gaps, or one stands twice",
    )
    return ids


def _name_of(
    role: str, settings: Mapping[str, Any], state: Mapping[str, Any], ids: Mapping[str, int]
) -> str:
    model = state["model"]
    if role == "unk" and (own := model.get("unk_token")) is not None:
        require(own in ids, f"its model gives unknown text the token {own!r}, which it lacks")
        return str(own)
    if role == "unk" and model.get("unk_id") is not None:
        return str(model["vocab"][model["unk_id"]][0])
    stated = settings.get(f"{role}_token")
    stated = stated.get("content") if isinstance(stated, Mapping) else stated
    if isinstance(stated, str) and stated:
        return stated
    names = KNOWN_NAMES[role]
    return next((name for name in names if name in ids), names[0])


def _mark_special(state: dict[str, Any], special: list[tuple[str, int]]) -> None:
    added = {token["content"]: token for token in state["added_tokens"]}
    for name, token_id in special:
        token = added.setdefault(name, special_token(name, token_id))
        token["special"] = True
    state["added_tokens"] = sorted(added.values(), key=lambda token: token["id"])


def _mind_unknown(state: dict[str, Any], unk: str) -> None:
    """Make a model that would drop unknown text in silence give it the unknown token."""
    model = state["model"]
    stages = [*parts_of(state["normalizer"]), *parts_of(state["pre_tokenizer"])]
    knows_bytes = any(part["type"] == "ByteLevel" for part in stages)
    if model["type"] == "BPE" and not knows_bytes and model.get("unk_token") is None:
        require(unk in model["vocab"], f"its model has no unknown token; {unk} must be in it")
        model["unk_token"] = unk
    if model["type"] == "Unigram":
        require(model.get("unk_id") is not None, "its model has no unk_id")


def read_normalisation(path: Path, settings: Mapping[str, Any], assumed: bool) -> dict[str, Any]:
    """Return the settings of a tokenizer_config.json, complete and checked.

    Args:
        path: The file; it may be missing.
        settings: Its values.
        assumed: The value of do_lower_case if the file does not state it. A warning reports it.
    """
    _require_flags(settings, "do_lower_case", "strip_accents", "tokenize_chinese_chars", path=path)
    if settings.get("do_lower_case") is None:
        warnings.warn(
            f"{path.parent} has no tokenizer_config.json that states whether text is lower-cased; "
            f"assuming do_lower_case={str(assumed).lower()}",
            stacklevel=3,
        )
        return {**settings, "do_lower_case": assumed}
    return dict(settings)


def _require_flags(values: Mapping[str, Any], *names: str, path: Path | None = None) -> None:
    for name in names:
        value, place = values.get(name), f"{path}: " if path else ""
        is_flag = value is None or isinstance(value, bool)
        require(is_flag, f"{place}{name} must be true or false, not {value!r}")


def declare(names: Sequence[str]) -> Definition:
    """Return the definition of `Tokenizer.declare`."""
    for name in names:
        require(
            name != "" and not any(map(str.isspace, name)) and name not in SPECIAL_TOKENS,
            f"the name {name!r} must be a word without white space, and no special token",
        )
    vocab = {name: index for index, name in enumerate([*names, *SPECIAL_TOKENS])}
    require(len(vocab) == len(names) + len(SPECIAL_TOKENS), "a name stands twice")
    state = {
        "added_tokens": [special_token(name, vocab[name]) for name in SPECIAL_TOKENS],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]"},
    }
    return Definition(state, SPECIAL_TOKENS)


def special_token(name: str, token_id: int) -> dict[str, Any]:
    """Return the entry of a special token in a `tokenizer.json`."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": name, **flags, "special": True}


def describe_for_transformers(
    definition: Definition, max_length: int | None, has_segments: bool
) -> dict[str, Any]:
    """Return the `tokenizer_config.json` of a folder; arguments as of `Tokenizer.write`."""
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    if bert := definition.bert:
        settings = {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": bert["lowercase"],
            "strip_accents": bert["strip_accents"],
            "tokenize_chinese_chars": bert["split_ideographs"],
        }
    if max_length:
        settings["model_max_length"] = max_length
    for role, token in zip(KNOWN_NAMES, definition.special_tokens, strict=True):
        settings[f"{role}_token"] = token
    segments = ["token_type_ids"] if has_segments else []
    settings["model_input_names"] = ["input_ids", *segments, "attention_mask"]
    return settings


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


UNIGRAM, BPE = 1, 2
NORMAL, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 3, 4, 5, 6
VARINT, EIGHT_BYTES, DELIMITED, FOUR_BYTES = 0, 1, 2, 5


class Piece(NamedTuple):
    """An entry of the vocabulary."""

    text: str
    score: float
    kind: int


def read_sentencepiece(content: bytes, settings: Mapping[str, Any]) -> Definition:
    """Return the definition in a `.model`; `settings` of a `tokenizer_config.json` beside it.

    The file is a protobuf message. sentencepiece's own module for it needs the package protobuf,
    which nothing else here does, so `_fields` reads it.

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
    begins = ("first" if has_symbols else "always") if normalizer.get(3, 1) else "never"
    metaspace = decoder = write_spaces(begins, is_split)
    unk_id = trainer.get(40, 0)
    has_bytes = any(piece.kind == BYTE for piece in pieces)
    model = build_unigram(pieces, unk_id, has_bytes)
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
        special_token(piece.text, number) | {"special": piece.kind == CONTROL}
        for number, piece in enumerate(pieces)
        if piece.kind in (CONTROL, USER_DEFINED)
    ]
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
