"""Tokenizers of the library: BERT's, and that of a definition, with the rows that they make."""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from electra.config import TokenizerConfig
from electra.errors import UserError, require
from electra.files import check_hashes, new_folder, parse_json, read_object, write_hashes
from electra.text.documents import MAX_WORD_CHARS
from electra.text.streams import locate, replace_surrogates
from electra.tokenizing.formats import (
    METASPACE,
    SPECIAL_TOKENS,
    Definition,
    Independence,
    declare,
    describe_for_transformers,
    find_independence,
    lowers_case,
    parts_of,
    past_marks,
    read_definition,
    read_normalisation,
    read_sentencepiece,
    show_tokens,
    strips_accents,
    without_space,
)
from electra.tokenizing.training import train_bpe, train_tokens, train_unigram


def build_bert(
    ids: dict[str, int], lowercase: bool, strip_accents: bool, split_ideographs: bool
) -> tokenizers.Tokenizer:
    """Return BERT's WordPiece with BERT's normalisation."""
    backend = tokenizers.Tokenizer(
        models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=MAX_WORD_CHARS)
    )
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=strip_accents, handle_chinese_chars=split_ideographs
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.post_processor = processors.BertProcessing(
        ("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"])
    )
    backend.add_special_tokens(list(SPECIAL_TOKENS))
    backend.encode_special_tokens = True
    return backend


def build(content: str, definition: Definition) -> tokenizers.Tokenizer:
    """Return the backend of a definition, whose rows are [CLS] A [SEP] B [SEP] in transformers."""
    try:
        backend = tokenizers.Tokenizer.from_str(f'{{"version": "1.0", {content[1:]}')
    except Exception as error:  # the library raises no narrower one
        raise UserError(f"not a tokenizer.json: {error}") from None
    cls, sep = definition.special_tokens[2:4]
    rows: processors.PostProcessor = processors.TemplateProcessing(
        single=[cls, "$A", sep],
        pair=[cls, "$A", sep, "$B:1", f"{sep}:1"],
        special_tokens=[(token, backend.token_to_id(token)) for token in (cls, sep)],
    )
    parts = parts_of(definition.state["pre_tokenizer"])
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
        """Build BERT's WordPiece from the tokens in id order; settings as in TokenizerConfig.

        Raises:
            UserError: A token occurs twice, or a special token is missing.
        """
        strip_accents = lowercase if strip_accents is None else strip_accents
        ids = {token: index for index, token in enumerate(tokens)}
        require(
            len(ids) == len(tokens),
            "the vocabulary holds a token twice; every line must be a token of its own",
        )
        missing = [token for token in SPECIAL_TOKENS if token not in ids]
        require(not missing, f"the vocabulary lacks the special tokens {', '.join(missing)}")
        backend = build_bert(ids, lowercase, strip_accents, split_ideographs)
        facts = [tuple(tokens), lowercase, strip_accents]
        # Without the setting that every tokenizer had once, so that their digests stay the same.
        digest = _digest(facts if split_ideographs else [*facts, split_ideographs])
        state = {**parse_json(backend.to_str(), "the tokenizer"), "post_processor": None}
        self._set_up(Definition(state, SPECIAL_TOKENS), backend, digest)
        self.is_bert = True
        self.word_border = BERT_BORDER_OR_IDEOGRAPH if split_ideographs else BERT_BORDER

    @classmethod
    def from_definition(cls, definition: Definition) -> Self:
        """Return the tokenizer of a definition.

        Raises:
            UserError: The definition is no tokenizer, or its tokens do not say where words begin.
        """
        if (settings := definition.bert) is not None:
            return cls(definition.tokens, **settings)  # type: ignore[arg-type]
        state = definition.state
        content = json.dumps(state, ensure_ascii=False, sort_keys=True)
        backend = build(content, definition)
        made = cls.__new__(cls)
        made._set_up(definition, backend, _digest([content, definition.special_tokens]))
        made.is_bert = False
        return made

    def _set_up(self, definition: Definition, backend: tokenizers.Tokenizer, digest: str) -> None:
        state = definition.state
        self._backend = backend
        self.definition = definition
        """What determines the ids, as it is stored."""
        self.digest = digest
        """The sha256, in hexadecimal, of everything that determines the ids."""
        self.tokens_by_id = tuple(definition.tokens)
        """The vocabulary in id order, as it stands in the file."""
        self.special_tokens = definition.special_tokens
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

    @classmethod
    def train(cls, texts: Iterable[str], config: TokenizerConfig) -> Self:
        """Return a tokenizer with a new vocabulary; the same corpus gives the same vocabulary."""
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

        The special tokens follow. Text is split at spaces into names.

        Raises:
            UserError: A name is empty, has white space in it, stands twice or is a special token's.
        """
        return cls.from_definition(declare(names))

    @classmethod
    def load(cls, path: str | Path, *, lowercase: bool = True) -> Self:
        """Return the tokenizer of a folder or file.

        A folder holds `tokenizer.json`, or else `vocab.txt` of BERT's WordPiece, or else a `.model`
        of SentencePiece. Its `tokenizer_config.json` names the special tokens and states how a
        `vocab.txt` is normalised. A folder with an `electra.json` must match its hashes.

        Args:
            path: The folder, or one of these files, on disk or at a URL. A `vocab.txt` has one
                token per line.
            lowercase: Whether text is lower-cased, if no file states it. For a folder, a warning
                reports the assumption.

        Raises:
            UserError: The tokenizer is missing, damaged or cannot be used.
        """
        path, settings = locate(path), {}
        if path.is_dir():
            check_hashes(path)
            config_path = path / "tokenizer_config.json"
            settings = read_object(config_path) if config_path.is_file() else {}
            models = sorted(each for each in path.iterdir() if each.suffix == ".model")
            files = [path / "tokenizer.json", path / "vocab.txt", *models]
            path = next((file for file in files if file.is_file()), path)
            if path.name == "vocab.txt":
                settings = read_normalisation(config_path, settings, lowercase)
        require(
            path.is_file(),
            f"no tokenizer at {path}; expected a folder with tokenizer.json, vocab.txt or a "
            "SentencePiece .model, or one of these files",
        )
        content = ""
        if path.suffix != ".model":
            try:
                content = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                raise UserError(f"{path} is not UTF-8 text, so not a vocabulary") from None
        try:
            if path.suffix == ".model":
                return cls.from_definition(read_sentencepiece(path.read_bytes(), settings))
            if path.suffix == ".json":
                return cls.from_definition(read_definition(content, settings))
            tokens = content.replace("\r\n", "\n").removesuffix("\n").split("\n")
            return cls(
                tokens,
                lowercase=settings.get("do_lower_case", lowercase),
                strip_accents=settings.get("strip_accents"),
                split_ideographs=settings.get("tokenize_chinese_chars") is not False,
            )
        except UserError as error:
            raise UserError(f"{path}: {error}") from None

    def save(self, folder: str | Path) -> None:
        """Write a new folder for `load` and for AutoTokenizer of transformers."""
        with new_folder(Path(folder)) as incomplete:
            self.write(incomplete)
            write_hashes(incomplete)

    def write(self, folder: Path, max_length: int | None = None, has_segments: bool = True) -> None:
        """Write the files of `save` into an existing folder.

        Args:
            folder: The existing folder.
            max_length: Tokens of a model's longest row, to which transformers truncates on
                request; None: the vocabulary is no model's.
            has_segments: Whether the model reads token_type_ids, which transformers then gives it.
        """
        (folder / "tokenizer.json").write_text(self._file_content(), encoding="utf-8")
        if self.is_bert:
            (folder / "vocab.txt").write_text(
                "".join(f"{token}\n" for token in self.tokens_by_id), encoding="utf-8", newline="\n"
            )
        settings = describe_for_transformers(self.definition, max_length, has_segments)
        (folder / "tokenizer_config.json").write_text(
            json.dumps(settings, indent=2) + "\n", encoding="utf-8", newline="\n"
        )

    def _file_content(self) -> str:
        """Return the `tokenizer.json`, with what makes rows of texts in transformers."""
        if self.is_bert:
            return self._backend.to_str(pretty=True)  # the backend's `save` raises no OSError
        rows = parse_json(self._backend.to_str(), "the tokenizer")["post_processor"]
        state = {"version": "1.0", "truncation": None, "padding": None, **self.definition.state}
        return json.dumps({**state, "post_processor": rows}, indent=2, ensure_ascii=False)

    @property
    def vocab_size(self) -> int:
        """Number of tokens, including the special tokens."""
        return len(self.tokens_by_id)

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names of a declared vocabulary, whose records may be lists of ids; None: of text."""
        last = tuple(range(self.vocab_size - len(SPECIAL_TOKENS), self.vocab_size))
        is_declared = self.kind == "WordLevel" and self.special_ids == last
        return self.tokens_by_id[: last[0]] if is_declared else None

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without special tokens."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, without special tokens."""
        try:
            encodings = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        except TypeError:
            # An unpaired surrogate is not a character and becomes the replacement character.
            whole = [replace_surrogates(text) for text in texts]
            encodings = self._backend.encode_batch_fast(whole, add_special_tokens=False)
        return [self._clear(encoding.ids) for encoding in encodings]

    def encode_glued(self, text: str) -> list[int]:
        """Return the ids of a text that stands behind another without a space between them."""
        ids = self.encode(text)
        if not self.marks_spaces or not ids or text[:1].isspace():
            return ids
        token = self.tokens_by_id[ids[0]]
        if token[0] not in SPACE_MARKS:
            return ids
        if not token[1:]:
            return ids[1:]
        return [self.ids.get(token[1:], ids[0]), *ids[1:]]

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
        encoding = self._backend.encode(replace_surrogates(text), add_special_tokens=False)
        offsets = encoding.offsets
        if self.strip_accents and not text.isascii():
            offsets = [(start, past_marks(text, end)) for start, end in offsets]
        if not self.is_bert:
            offsets = [without_space(text, start, end) for start, end in offsets]
        return self._clear(encoding.ids), offsets

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
        return self._backend.decode([int(index) for index in ids], skip_special_tokens=False)

    def spell(self, token: str) -> list[int]:
        """Return the ids that the token of another vocabulary of this kind would have here.

        So the row of a token that a vocabulary gains can begin as the mean of the rows of the
        pieces that stood in its place. A token that cannot be spelt is [UNK].
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


def _digest(facts: list[Any]) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def tokens_dtype(vocab_size: int) -> str:
    """Return the numpy dtype that token ids are stored in."""
    return "<u2" if vocab_size <= 65_535 else "<u4"
