"""A tokenizer's definition, and definitions read from other programs' files.

A definition is the part of a `tokenizer.json` that determines the ids: the keys of DEFINING. The
rest is left out, because this package builds the rows. The five special tokens are those named by
the settings beside the file, else those with a known name; missing ones are added at the end.

The library applies a definition in four stages: added tokens, normaliser, pre-tokenizer, model. The
model sees one pre-token at a time. So the ids of a stretch of text do not depend on its neighbours
if no added token is matched in text, the normaliser changes each stretch by itself, and the
pre-tokenizer cuts at the same places with and without the neighbours. `find_independence` lists the
parts for which that holds; for all other parts nothing is assumed.
"""

import re
import unicodedata
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

from electra.errors import UserError, require
from electra.text.characters import MAX_WORD_CHARS

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
State = dict[str, Any]
"""Content of a `tokenizer.json`, under the keys of DEFINING."""
BERT_KINDS = ["WordPiece", "BertNormalizer", "BertPreTokenizer"]


class Definition(NamedTuple):
    """A tokenizer as it is stored."""

    state: State
    special_tokens: tuple[str, ...]
    """The tokens in the roles of KNOWN_NAMES."""

    @property
    def tokens(self) -> list[str]:
        """All tokens in id order."""
        ids = ids_of(self.state)
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


def define(state: State, settings: Mapping[str, Any]) -> Definition:
    """Return the definition with the special tokens of the settings, else those of known names.

    Those that it lacks are added to `state`.
    """
    ids = ids_of(state)
    named = {role: _name_of(role, settings, state, ids) for role in KNOWN_NAMES}
    missing = [name for name in dict.fromkeys(named.values()) if name not in ids]
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
    added = {token["content"]: token for token in state["added_tokens"]}
    for name in named.values():
        added.setdefault(name, special_token(name, ids[name]))["special"] = True
    state["added_tokens"] = sorted(added.values(), key=lambda token: token["id"])
    return Definition(state, tuple(named.values()))


def number_tokens(tokens: Iterable[str], place: str = "line") -> dict[str, int]:
    """Return the id of each token; none may occur twice."""
    ids: dict[str, int] = {}
    for number, token in enumerate(tokens):
        known = ids.setdefault(token, number)
        if known != number:
            raise UserError(
                f"{place} {number + 1} has the token {token!r} of {place} {known + 1} again"
            )
    return ids


def text_of(token: object) -> str:
    """Return the text of a token in a settings file, which may have flags; "" if there is none."""
    text = token.get("content") if isinstance(token, Mapping) else token
    return text if isinstance(text, str) else ""


def ids_of(state: Mapping[str, Any]) -> dict[str, int]:
    """Return all tokens with their ids, which are 0, 1, ... without gaps."""
    vocab = state["model"]["vocab"]
    is_list = isinstance(vocab, list)
    ids = number_tokens((entry[0] for entry in vocab), "piece") if is_list else dict(vocab)
    for token in state["added_tokens"]:
        known = ids.setdefault(token["content"], token["id"])
        require(
            known == token["id"],
            f"the token {token['content']!r} has two ids, {known} and {token['id']}",
        )
    for number, known in enumerate(sorted(ids.values())):
        if number != known:
            wrong = f"{known} occurs twice" if known < number else f"no token has the id {number}"
            raise UserError(f"the {len(ids)} tokens must have the ids from 0 on; {wrong}")
    return ids


def _name_of(
    role: str, settings: Mapping[str, Any], state: Mapping[str, Any], ids: Mapping[str, int]
) -> str:
    model = state["model"]
    if role == "unk" and (own := model.get("unk_token")) is not None:
        require(own in ids, f"its unknown token {own!r} is not in the vocabulary")
        return str(own)
    if role == "unk" and model.get("unk_id") is not None:
        return str(model["vocab"][model["unk_id"]][0])
    if stated := text_of(settings.get(f"{role}_token")):
        return stated
    names = KNOWN_NAMES[role]
    return next((name for name in names if name in ids), names[0])


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


def define_bert(
    tokens: Iterable[str],
    lower: bool,
    strip: bool | None,
    split: bool,
    settings: Mapping[str, Any] = {},
) -> Definition:
    """Return BERT's WordPiece of tokens in id order; flags as BertNormalizer's."""
    ids = number_tokens(tokens)
    missing = [token for token in SPECIAL_TOKENS if token not in ids]
    require(not missing, f"the vocabulary lacks the special tokens {', '.join(missing)}")
    state: State = {
        "added_tokens": [],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": split,
            "strip_accents": strip,
            "lowercase": lower,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": MAX_WORD_CHARS,
            "vocab": ids,
        },
    }
    return define(state, settings)


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

UNSPACED = re.compile(
    "[\u0e00-\u109f\u1780-\u17ff\u1950-\u1aaf\ua9e0-\ua9ff\uaa60-\uaadf"
    f"\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f{IDEOGRAPHS.pattern[1:]}"
)
"""Characters of scripts that have no spaces between words: Thai, Lao, Tibetan, Burmese, Khmer, the
Tai scripts, Japanese and Chinese."""
FOLLOWING = frozenset("\u0e30\u0e32\u0e33\u0e45\u0eb0\u0eb2\u0eb3")
"""Vowels of Thai and Lao that are letters in Unicode, and are written behind a consonant."""

METASPACE = "\u2581"
SQUEEZED_SPACES = r"\s{2,}|[\n\r\t]"
"""Characters that DeBERTa's tokenizer of transformers replaces by one space."""
OUTER_SPACES = r"\A +| +\z"
"""Characters that SentencePiece removes at the ends of a text."""
BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
"""How SentencePiece writes a byte of a character that is not in the vocabulary."""

# These map characters, or characters with the combining marks that follow them. They never look
# past a space: it composes with nothing, and nothing is reordered across it.
BLIND_TO_NEIGHBOURS = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt"}
WHOLE_TEXT = {"type": "Metaspace", "replacement": " ", "prepend_scheme": "first", "split": False}
"""Puts a space before a text that begins with none, and cuts nothing."""
WORDS = (
    r"'(?:[stmd]|re|ve|ll)| ?[\p{L}\p{M}][\p{L}\p{M}\u200c\u200d]*| ?\p{N}[\p{N}\p{M}]*"
    r"| ?[^\s\p{L}\p{M}\p{N}][^\s\p{L}\p{N}]*|\s+(?!\S)|\s+"
)
"""GPT-2's pattern of words, in which combining marks and joiners stay in their word: GPT-2's own
cuts words of Hindi and Thai at each vowel sign."""
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
    - GPT-2's pattern (ByteLevel) joins the last space before a word to that word; Metaspace cuts
      before each space: "spaced words". " word" on its own begins with its space already, so no
      other space is added.
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
    if others and first == {**WHOLE_TEXT, "prepend_scheme": first.get("prepend_scheme")}:
        first = others[0]
    is_byte_level = (first["type"] == "ByteLevel" and first.get("use_regex", True)) or (
        first["type"] == "Split" and first["pattern"] == {"Regex": WORDS}
    )
    is_metaspace = first["type"] == "Metaspace" and first.get("split", True)
    # BertNormalizer adds spaces around ideographs: at the end of a word they affect the next word.
    return "spaced words" if (is_byte_level or is_metaspace) and not has_bert else "lines"


def place_prefix(definition: Mapping[str, Any], scheme: Literal["first", "never"]) -> Any:
    """Return the pre-tokenizer that puts the space of a first word before the whole text, or none.

    transformers cuts a text at special tokens and then pre-tokenizes each part. ByteLevel and
    Metaspace would put a space before every part, also before a full stop behind a [MASK].
    """
    parts = parts_of(definition["pre_tokenizer"])
    strips = any(
        part.get("strip_left") or part.get("pattern") == {"Regex": OUTER_SPACES}
        for part in parts_of(definition["normalizer"])
    )
    first, *others = parts or [{"type": None}]
    begins = first.get("prepend_scheme") != "never" and first.get("add_prefix_space", True)
    if first["type"] == "Metaspace" and begins and not strips:
        first = {key: first[key] for key in first if key != "add_prefix_space"}
        parts = [{**first, "prepend_scheme": scheme}, *others]
    elif first["type"] == "ByteLevel" and begins and not others:
        parts = [{**WHOLE_TEXT, "prepend_scheme": scheme}, {**first, "add_prefix_space": False}]
    else:
        return definition["pre_tokenizer"]
    return {"type": "Sequence", "pretokenizers": parts} if len(parts) > 1 else parts[0]


def absorb_space(tokens: Sequence[Mapping[str, Any]], mask: str) -> list[Any]:
    """Return the added tokens; in transformers the mask then absorbs the space before it."""
    return [
        {**token, "lstrip": token.get("lstrip", False) or token["content"] == mask}
        for token in tokens
    ]


def _is_blind(normalizer: Mapping[str, Any]) -> bool:
    if normalizer["type"] == "Replace":
        one_space = {"pattern": {"Regex": SQUEEZED_SPACES}, "content": " "}.items()
        is_blind = " " not in normalizer["pattern"].get("String", " ")
        return is_blind or one_space <= normalizer.items()
    if normalizer["type"] == "Strip":  # a stretch never ends with a space
        return normalizer.get("strip_left") is False
    return normalizer["type"] in BLIND_TO_NEIGHBOURS | {"BertNormalizer"}


def strips_accents(definition: Mapping[str, Any]) -> bool:
    """Return whether the normaliser removes combining marks."""
    return any(
        part["type"] == "StripAccents"
        or (
            part["type"] == "BertNormalizer"
            and part.get("lowercase" if part.get("strip_accents") is None else "strip_accents")
        )
        for part in parts_of(definition["normalizer"])
    )


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
    mark, or with an ideograph: so words end where BERT's do, but have the marks before them.
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


def begins_unspaced(before: str, char: str) -> bool:
    """Return whether a word may begin between two characters because their script has no spaces.

    Marks, and letters that modify the character before them, begin none.
    """
    has_no_spaces = UNSPACED.match(char) or UNSPACED.match(before)
    follows = unicodedata.category(char) in ("Mn", "Mc", "Me", "Lm") or char in FOLLOWING
    return bool(has_no_spaces) and not follows


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
    """Return the byte of each character of byte-level tokens. Source: GPT-2's bytes_to_unicode."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(plain)]
    chars = {chr(byte): byte for byte in plain}
    return chars | {chr(256 + place): byte for place, byte in enumerate(others)}


def _bytes_of_piece(token: str) -> bytes:
    byte = BYTE_TOKEN.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace(METASPACE, " ").encode()


WRITTEN_FOR_TRANSFORMERS = "electra_definition"
"""Setting with those parts of a definition that were changed when it was written."""
