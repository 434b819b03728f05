"""Tokenizers of the library: BERT's, and that of a definition, with the rows that they make."""

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import tokenizers
from tokenizers import processors

from electra.errors import UserError, require, tell_place
from electra.files import check_hashes, new_folder, parse_json, write_hashes, write_json
from electra.objects import is_url
from electra.text.characters import replace_surrogates
from electra.tokenizing.formats import (
    METASPACE,
    SPECIAL_TOKENS,
    WRITTEN_FOR_TRANSFORMERS,
    Definition,
    Independence,
    State,
    absorb_space,
    begins_unspaced,
    define_bert,
    describe_for_transformers,
    find_independence,
    lowers_case,
    number_tokens,
    parts_of,
    place_prefix,
    show_tokens,
    special_token,
    strips_accents,
)

if TYPE_CHECKING:
    from electra.tokenizing.config import TokenizerConfig

CANNOT = "the tokenizer cannot encode this text"


@contextmanager
def _no_panic(what: str) -> Iterator[None]:
    """Raise UserError where the library panics, which is no Exception."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise UserError(f"{what}: {error}") from None


def build(state: State, definition: Definition) -> tokenizers.Tokenizer:
    """Return the backend of a state, whose rows are [CLS] A [SEP] B [SEP] in transformers."""
    try:
        backend = tokenizers.Tokenizer.from_str(json.dumps({"version": "1.0", **state}))
    except Exception as error:  # the library raises no narrower one
        raise UserError(f"not a tokenizer.json: {error}") from None
    cls, sep = definition.special_tokens[2:4]
    rows: processors.PostProcessor = processors.TemplateProcessing(
        single=[cls, "$A", sep],
        pair=[cls, "$A", sep, "$B:1", f"{sep}:1"],
        special_tokens=[(token, backend.token_to_id(token)) for token in (cls, sep)],
    )
    parts = parts_of(state["pre_tokenizer"])
    if any(part["type"] == "ByteLevel" for part in parts):
        # As ours, the offsets of transformers then leave out the spaces.
        rows = processors.Sequence([processors.ByteLevel(trim_offsets=True), rows])
    backend.post_processor = rows
    backend.encode_special_tokens = True
    return backend


BERT_BORDER = re.compile(r"[ \t\r\n!-/:-@\[-`{-~]")
BERT_BORDER_OR_IDEOGRAPH = re.compile(r"[ \t\r\n!-/:-@\[-`{-~\u4e00-\u9fff]")
"""Characters before which a word of BERT's ends whatever follows: white space, ASCII punctuation,
and the ideographs that are words of their own. BertNormalizer keeps each of them, changes none of
them in dependence on others, and removes the other control characters, which are therefore no
borders."""
SPACE = re.compile(r"(?<=\S) ")
SPACE_MARKS = (METASPACE, "\u0120")
"""How a token writes the space before it: SentencePiece, and byte-level BPE (Ġ)."""


class Tokenizer:
    """Text to ids and back, with the five special tokens that rows are made of."""

    word_border: re.Pattern[str] | None
    """Places before which a text may be cut: the ids before the cut stay the same. None: no place
    of any text is known to be one."""

    def __init__(
        self,
        tokens: Sequence[str],
        *,
        lowercase: bool = True,
        strip_accents: bool | None = None,
        split_ideographs: bool = True,
    ) -> None:
        """Build BERT's WordPiece from the tokens in id order; settings as in TokenizerConfig."""
        strips = lowercase if strip_accents is None else strip_accents
        self._set_up(define_bert(tokens, lowercase, strips, split_ideographs))

    @classmethod
    def from_definition(cls, definition: Definition) -> Self:
        """Return the tokenizer of a definition."""
        made = cls.__new__(cls)
        made._set_up(definition)
        return made

    def _set_up(self, definition: Definition) -> None:
        state = definition.state
        self._backend = build(state, definition)
        self.definition = definition
        """What determines the ids, as it is stored."""
        self.tokens_by_id = tuple(definition.tokens)
        """The vocabulary in id order, as in the file."""
        self.special_tokens = definition.special_tokens
        content = json.dumps(state, ensure_ascii=False, sort_keys=True)
        facts: list[Any] = [content, definition.special_tokens]
        bert = definition.bert
        self.is_bert = bert is not None
        if bert:
            facts = [self.tokens_by_id, bert["lowercase"], strips_accents(state)]
            # A setting that every tokenizer had once, so that their digests stay the same.
            facts += [] if bert["split_ideographs"] else [False]
        self.digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
        """The sha256, in hexadecimal, of everything that determines the ids."""
        self.ids = {token: index for index, token in enumerate(self.tokens_by_id)}
        """The id of each token of the vocabulary."""
        ids = [self.ids[token] for token in self.special_tokens]
        self.special_ids = tuple(ids)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = ids
        self.never_in_text = frozenset((self.pad_id, self.cls_id, self.sep_id, self.mask_id))
        """Ids of the special tokens that text never has: all but [UNK]."""
        self.kind: str = state["model"]["type"]
        """WordPiece, BPE, Unigram or WordLevel."""
        self.lowercase = lowers_case(state)
        self.strip_accents = strips_accents(state)
        self._shown = show_tokens(state, self.tokens_by_id)
        self.starts_word = np.array([begins for begins, _ in self._shown])
        """Whether the token of each id begins a word, as booleans (vocab_size,)."""
        self.independence: Independence = find_independence(state)
        """The stretches of a line whose ids do not depend on the rest of it."""
        self.word_border = None if self.independence == "lines" else SPACE
        if bert:
            self.word_border = BERT_BORDER_OR_IDEOGRAPH if bert["split_ideographs"] else BERT_BORDER

    @classmethod
    def train(cls, texts: Iterable[str], config: "TokenizerConfig") -> Self:
        """Return a tokenizer with a new vocabulary; the same corpus gives the same vocabulary."""
        from electra.tokenizing.training import train_bpe, train_tokens, train_unigram

        if config.kind == "bpe":
            return cls.from_definition(train_bpe(texts, config))
        if config.kind == "unigram":
            return cls.from_definition(train_unigram(texts, config))
        return cls(
            train_tokens(texts, config),
            lowercase=config.lowers_case,
            strip_accents=config.strips_accents,
            split_ideographs=config.split_ideographs is not False,
        )

    @classmethod
    def declare(cls, names: Sequence[str]) -> Self:
        """Return the vocabulary of sequences that are no text: ids 0, 1, ... have these names.

        The special tokens follow. Text is split at spaces into names, which must be different.
        """
        for name in names:
            require(
                name != "" and not any(map(str.isspace, name)) and name not in SPECIAL_TOKENS,
                f"the name {name!r} must be a word without white space, and no special token",
            )
        vocab = number_tokens([*names, *SPECIAL_TOKENS], "name")
        state: State = {
            "added_tokens": [special_token(name, vocab[name]) for name in SPECIAL_TOKENS],
            "normalizer": None,
            "pre_tokenizer": {"type": "WhitespaceSplit"},
            "decoder": None,
            "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]"},
        }
        return cls.from_definition(Definition(state, SPECIAL_TOKENS))

    @classmethod
    def load(cls, path: str | Path, *, lowercase: bool = True) -> Self:
        """Return the tokenizer of a folder or file.

        A folder holds `tokenizer.json`, or else the vocabulary of the class of transformers that
        its `tokenizer_config.json` names: `vocab.txt` of BERT's WordPiece, a `.model` of
        SentencePiece, `vocab.json` and `merges.txt` of RoBERTa. A folder with an `electra.json`
        must match its hashes.

        Args:
            path: The folder, or a file of it, on disk or at a URL. A `vocab.txt` has one token per
                line.
            lowercase: Whether text is lower-cased, if no file states it. For a folder, a warning
                reports the assumption.

        Raises:
            UserError: The tokenizer is missing, damaged or cannot be used.
        """
        from electra.tokenizing.foreign import read_definition

        path = Path(path)
        if is_url(path):
            from electra.text.urls import locate

            path = locate(path)
        if path.is_dir():
            check_hashes(path)
        definition = read_definition(path, lowercase)
        with tell_place(path):
            return cls.from_definition(definition)

    def save(self, folder: str | Path) -> None:
        """Write a new folder for `load` and for AutoTokenizer of transformers."""
        with new_folder(Path(folder)) as incomplete:
            self.write(incomplete)
            write_hashes(incomplete)

    def write(
        self,
        folder: Path,
        max_length: int | None = None,
        has_segments: bool = True,
        is_literal: bool = False,
    ) -> None:
        """Write the files of `save` into an existing folder.

        `max_length`: a model's longest row, to which transformers truncates on request; None: there
        is no model. `has_segments`: transformers returns token_type_ids. `is_literal`: transformers
        reads a "[SEP]" within a text as plain text, as `encode` does.
        """
        settings = describe_for_transformers(self.definition, max_length, has_segments)
        settings |= {"split_special_tokens": True} if is_literal else {}
        state, written = self.definition.state, self.definition.state
        if self.is_bert:
            lines = "".join(f"{token}\n" for token in self.tokens_by_id)
            (folder / "vocab.txt").write_text(lines, encoding="utf-8", newline="\n")
        if self.marks_spaces:
            tokens = absorb_space(state["added_tokens"], self.special_tokens[-1])
            written = state | {
                "added_tokens": tokens,
                "pre_tokenizer": place_prefix(state, "first"),
            }
        kept = {key: state[key] for key in state if state[key] != written[key]}
        settings |= {WRITTEN_FOR_TRANSFORMERS: kept} if kept else {}
        rows = parse_json(self._backend.to_str(), "the tokenizer")["post_processor"]
        whole = {"version": "1.0", "truncation": None, "padding": None, **written}
        content = json.dumps(whole | {"post_processor": rows}, indent=2, ensure_ascii=False)
        (folder / "tokenizer.json").write_text(content, encoding="utf-8")
        write_json(folder / "tokenizer_config.json", settings)

    @property
    def vocab_size(self) -> int:
        """Number of tokens, including the special tokens."""
        return len(self.tokens_by_id)

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names of a declared vocabulary, whose records may be lists of ids; else None."""
        last = tuple(range(self.vocab_size - len(SPECIAL_TOKENS), self.vocab_size))
        is_declared = self.kind == "WordLevel" and self.special_ids == last
        return self.tokens_by_id[: last[0]] if is_declared else None

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without special tokens."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, without special tokens."""
        return self._encode(self._backend, texts)

    def _encode(self, backend: tokenizers.Tokenizer, texts: Sequence[str]) -> list[list[int]]:
        with _no_panic(CANNOT):
            try:
                encodings = backend.encode_batch_fast(texts, add_special_tokens=False)
            except TypeError:
                # An unpaired surrogate is not a character and becomes the replacement character.
                whole = [replace_surrogates(text) for text in texts]
                encodings = backend.encode_batch_fast(whole, add_special_tokens=False)
        return [self._clear(encoding.ids) for encoding in encodings]

    def encode_gaps(self, parts: Sequence[str]) -> list[int]:
        """Return the ids of parts of a text with the mask between them, as in transformers.

        The space before a gap belongs to what fills it. There is no space before a part that begins
        without one.
        """
        first, *others = [*(part.rstrip() for part in parts[:-1]), parts[-1]]
        ids = self.encode(first)
        for part in self._encode(self._glued, others):
            ids += [self.mask_id, *part]
        return ids

    @cached_property
    def _glued(self) -> tokenizers.Tokenizer:
        """The backend that puts no space before a text."""
        state = self.definition.state
        cut = place_prefix(state, "never")
        if cut == state["pre_tokenizer"]:
            return self._backend
        return build({**state, "pre_tokenizer": cut}, self.definition)

    @cached_property
    def marks_spaces(self) -> bool:
        """Whether the space before a word is part of its tokens."""
        return not self.is_bert and any(token[:1] in SPACE_MARKS for token in self.tokens_by_id)

    def _clear(self, ids: list[int]) -> list[int]:
        """Return the ids with [UNK] where text spells another special token of the vocabulary."""
        if self.never_in_text.isdisjoint(ids):
            return ids
        return [self.unk_id if index in self.never_in_text else index for index in ids]

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids of a text and the (start, end) character offsets of each token.

        Several tokens of one character, such as the letters of a Korean syllable or the bytes of a
        character, share its offsets. An accent that normalisation removes belongs to the token of
        its letter, so that a cut at a token never separates them. White space belongs to no token:
        a token of nothing else is empty, at the end of its space.
        """
        with _no_panic(CANNOT):
            encoding = self._backend.encode(replace_surrogates(text), add_special_tokens=False)
        offsets = encoding.offsets
        if self.strip_accents and not text.isascii():
            letters = (*(unicodedata.category(char) != "Mn" for char in text), True)
            offsets = [(start, letters.index(True, end)) for start, end in offsets]
        if not self.is_bert:
            signs = [self.tokens_by_id[index] in SPACE_MARKS for index in encoding.ids]
            words = [text[start:end].lstrip() for start, end in offsets]
            offsets = [  # an added space gets the position of the first character
                (start, start)
                if is_sign and word
                else (end - len(word), end - len(word) + len(word.rstrip()))
                for is_sign, word, (start, end) in zip(signs, words, offsets, strict=True)
            ]
        return self._clear(encoding.ids), offsets

    def find_words(
        self, text: str, ids: Sequence[int], offsets: Sequence[tuple[int, int]]
    ) -> np.ndarray:
        """Return which tokens of a text begin a word, as booleans, from `encode_with_offsets`.

        The first one does. Where a script has no spaces between words, such as Thai, each token
        does, unless it begins within a character.
        """
        begins = self.starts_word[list(ids)]
        begins[:1] = True
        behind = 0
        for number, (start, end) in enumerate([] if text.isascii() else offsets):
            if 0 < behind <= start < end:
                begins[number] |= begins_unspaced(text[start - 1], text[start])
            behind = max(behind, end)
        return begins

    def normalize(self, text: str) -> str:
        """Return the text as the model sees it, before it is cut."""
        normalizer = self._backend.normalizer
        return normalizer.normalize_str(text) if normalizer else text

    def pre_tokenize(self, lines: Iterable[str]) -> Iterator[list[str]]:
        """Yield the words of each line as the model gets them."""
        cut = self._backend.pre_tokenizer.pre_tokenize_str
        for line in lines:
            yield [word for word, _ in cut(self.normalize(line))]

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Return the token of each id to be read: "##" before a piece inside a word."""
        return [self._readable[index] for index in ids]

    @cached_property
    def _readable(self) -> tuple[str, ...]:
        return tuple(text if begins else f"##{text}" for begins, text in self._shown)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the readable text of these ids, including special tokens."""
        with _no_panic("the tokenizer cannot decode these ids"):
            return self._backend.decode([int(index) for index in ids], skip_special_tokens=False)

    def spell(self, token: str) -> list[int]:
        """Return the ids that the token of another vocabulary of this kind would have here.

        The row of a token that is new in a vocabulary can start as the mean of the rows of these
        ids. A token that cannot be spelt is [UNK].
        """
        prefix = "##" if self.kind == "WordPiece" and token.startswith("##") else ""
        if not prefix:
            return [each.id for each in self._backend.model.tokenize(token)] or [self.unk_id]
        ids, rest = [], token[2:]
        while rest:
            size = next((n for n in range(len(rest), 0, -1) if f"##{rest[:n]}" in self.ids), 0)
            if not size:
                return [self.unk_id]
            ids.append(self.ids[f"##{rest[:size]}"])
            rest = rest[size:]
        return ids or [self.unk_id]

    def __reduce__(self) -> tuple:
        """Pickle the definition; the backend is rebuilt from it."""
        return Tokenizer.from_definition, (self.definition,)


def make_tokenizer(vocab_size: int) -> Tokenizer:
    """Return a tokenizer of this vocabulary size with placeholder words, for tests and timings."""
    words = (f"w{number}" for number in range(len(SPECIAL_TOKENS), vocab_size))
    return Tokenizer([*SPECIAL_TOKENS, *words])


def tokens_dtype(vocab_size: int) -> str:
    """Return the numpy dtype that token ids are stored in."""
    return "<u2" if vocab_size <= 65_535 else "<u4"
