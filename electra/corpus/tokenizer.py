"""The tokenizer: BERT's normalisation and WordPiece, saved as a folder.

A tokenizer is defined by its tokens in id order and two settings of normalisation. These three
values determine ids and digest, whatever file they were loaded from.

A literal "[MASK]" in a corpus is encoded as `[`, `mask`, `]`, never as the special id.
(transformers loads the same folder and encodes it as the mask token, as its users expect.)
"""

import hashlib
import json
import unicodedata
import warnings
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from electra.config import TokenizerConfig, UserError, require
from electra.corpus.vocabulary import (
    MAX_WORD_CHARS,
    SPECIAL_TOKENS,
    replace_surrogates,
    train_tokens,
)
from electra.files import check_hashes, new_folder, read_object, write_hashes

MODEL_MAX_LENGTH = 512
"""Positions of the published ELECTRA models; written to the settings for transformers."""


class Tokenizer:
    """BERT's WordPiece tokenizer: from text to ids and back."""

    def __init__(
        self, tokens: Sequence[str], *, lowercase: bool = True, strip_accents: bool | None = None
    ) -> None:
        """Build from the tokens in id order; without `strip_accents`, `lowercase` decides.

        Raises:
            UserError: A token occurs twice, or a special token is missing.
        """
        self.tokens_by_id = tuple(tokens)
        self.lowercase = lowercase
        self.strip_accents = lowercase if strip_accents is None else strip_accents
        ids = {token: index for index, token in enumerate(self.tokens_by_id)}
        require(
            len(ids) == len(self.tokens_by_id),
            "the vocabulary holds a token twice; every line must be a token of its own",
        )
        missing = [token for token in SPECIAL_TOKENS if token not in ids]
        require(not missing, f"the vocabulary lacks the special tokens {', '.join(missing)}")
        self.special_ids = tuple(ids[token] for token in SPECIAL_TOKENS)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = self.special_ids
        self._backend = _build_backend(ids, lowercase, self.strip_accents)

    @classmethod
    def train(cls, texts: Iterable[str], config: TokenizerConfig) -> Self:
        """Return a tokenizer with a new vocabulary; the same corpus gives the same vocabulary."""
        return cls(
            train_tokens(texts, config),
            lowercase=config.lowercase,
            strip_accents=config.strip_accents,
        )

    @classmethod
    def load(cls, path: str | Path, *, lowercase: bool = True) -> Self:
        """Return the tokenizer of a folder, a `tokenizer.json` or BERT's plain `vocab.txt`.

        A folder holds `tokenizer.json`, or else `vocab.txt` and `tokenizer_config.json`, which
        states whether text is lower-cased. A folder with an `electra.json` must match its hashes.

        Args:
            path: The folder or the file. A `vocab.txt` has one token per line.
            lowercase: Whether text is lower-cased, if no file states it. For a folder, a warning
                reports the assumption.

        Raises:
            UserError: The tokenizer is missing or damaged, or is not a WordPiece tokenizer with
                BERT's normalisation.
        """
        path, strip_accents = Path(path), None
        if path.is_dir():
            check_hashes(path)
            if (path / "tokenizer.json").is_file():
                path = path / "tokenizer.json"
            elif (path / "vocab.txt").is_file():
                lowercase, strip_accents = _read_normalisation(path, lowercase)
                path = path / "vocab.txt"
        require(
            path.is_file(),
            f"no tokenizer at {path}; expected a folder with tokenizer.json or vocab.txt, or one "
            "of these files",
        )
        try:
            content = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise UserError(f"{path} is not UTF-8 text, so not a vocabulary") from None
        try:
            if path.suffix == ".json":
                return cls._from_json(content)
            tokens = content.replace("\r\n", "\n").removesuffix("\n").split("\n")
            return cls(tokens, lowercase=lowercase, strip_accents=strip_accents)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None

    @classmethod
    def _from_json(cls, content: str) -> Self:
        try:
            state = json.loads(content)
            model, normalizer = state["model"], state["normalizer"]
            kinds = [str(part["type"]) for part in (model, normalizer, state["pre_tokenizer"])]
            bert = ["WordPiece", "BertNormalizer", "BertPreTokenizer"]
            message = f"made of {', '.join(kinds)}; only {', '.join(bert)} can be used"
            require(kinds == bert, message)
            by_id = sorted(model["vocab"].items(), key=lambda item: item[1])
            added = {token["content"] for token in state.get("added_tokens", [])} - {
                *model["vocab"]
            }
            flags = normalizer["clean_text"], normalizer["handle_chinese_chars"]
            lowercase, strip_accents = normalizer["lowercase"], normalizer["strip_accents"]
        except UserError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UserError("not a tokenizer.json of a WordPiece tokenizer") from None
        require(flags == (True, True), "clean_text and handle_chinese_chars must be on, as in BERT")
        require(
            isinstance(lowercase, bool) and isinstance(strip_accents, bool | None),
            f"lowercase and strip_accents must be true or false, not {lowercase!r}, "
            f"{strip_accents!r}",
        )
        require(
            [index for _, index in by_id] == list(range(len(by_id))),
            "the ids of the vocabulary have gaps",
        )
        require(not added, f"added tokens outside the vocabulary: {', '.join(sorted(added))}")
        return cls(
            [token for token, _ in by_id],
            lowercase=lowercase,
            strip_accents=strip_accents,
        )

    def save(self, folder: str | Path) -> None:
        """Write a new folder for `load` and for AutoTokenizer of transformers."""
        with new_folder(Path(folder)) as incomplete:
            self.write(incomplete)
            write_hashes(incomplete)

    def write(self, folder: Path, max_length: int = MODEL_MAX_LENGTH) -> None:
        """Write the files of `save` into an existing folder.

        Args:
            folder: The existing folder.
            max_length: Tokens of the longest row; transformers truncates to it on request.
        """
        content = self._backend.to_str(pretty=True)  # the backend's `save` raises no OSError
        (folder / "tokenizer.json").write_text(content, encoding="utf-8")
        (folder / "vocab.txt").write_text(
            "".join(f"{token}\n" for token in self.tokens_by_id), encoding="utf-8", newline="\n"
        )
        settings = {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": self.lowercase,
            "strip_accents": self.strip_accents,
            "tokenize_chinese_chars": True,
            "model_max_length": max_length,
            **{f"{token[1:-1].lower()}_token": token for token in SPECIAL_TOKENS},
        }
        (folder / "tokenizer_config.json").write_text(
            json.dumps(settings, indent=2) + "\n", encoding="utf-8", newline="\n"
        )

    @property
    def vocab_size(self) -> int:
        """Number of tokens, including the special tokens."""
        return len(self.tokens_by_id)

    @cached_property
    def digest(self) -> str:
        """The sha256, in hexadecimal, of everything that determines the ids."""
        content = json.dumps([self.tokens_by_id, self.lowercase, self.strip_accents])
        return hashlib.sha256(content.encode()).hexdigest()

    @cached_property
    def starts_word(self) -> np.ndarray:
        """Whether the token of each id begins a word, as booleans (vocab_size,)."""
        return np.array([not token.startswith("##") for token in self.tokens_by_id])

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
        return [encoding.ids for encoding in encodings]

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids of a text and the (start, end) character offsets of each token.

        Several tokens of one character, such as the letters of a Korean syllable, share its
        offsets. An accent that normalisation removes belongs to the token of its letter, so that a
        cut at a token never separates them.
        """
        encoding = self._backend.encode(replace_surrogates(text), add_special_tokens=False)
        if not self.strip_accents or text.isascii():
            return encoding.ids, encoding.offsets
        return encoding.ids, [(start, _past_marks(text, end)) for start, end in encoding.offsets]

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Return the token of each id."""
        return [self.tokens_by_id[index] for index in ids]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the readable text of these ids, including special tokens."""
        return self._backend.decode([int(index) for index in ids], skip_special_tokens=False)

    def __reduce__(self) -> tuple:
        """Pickle the three defining values; the backend is rebuilt from them."""
        return _rebuild, (self.tokens_by_id, self.lowercase, self.strip_accents)


def make_tokenizer(vocab_size: int) -> Tokenizer:
    """Return a tokenizer of this vocabulary size with placeholder words, for tests and timings."""
    words = (f"w{number}" for number in range(len(SPECIAL_TOKENS), vocab_size))
    return Tokenizer([*SPECIAL_TOKENS, *words])


def _read_normalisation(folder: Path, assumed: bool) -> tuple[bool, bool | None]:
    """Return do_lower_case and strip_accents of a folder's tokenizer_config.json.

    Args:
        folder: The folder; the file may be missing.
        assumed: The value of do_lower_case if the file does not state it. A warning reports it.
    """
    path = folder / "tokenizer_config.json"
    settings = read_object(path) if path.is_file() else {}
    lowercase, strip_accents = settings.get("do_lower_case"), settings.get("strip_accents")
    require(
        settings.get("tokenize_chinese_chars", True) is True,
        f"{path}: tokenize_chinese_chars must be true, as in BERT",
    )
    for name, value in (("do_lower_case", lowercase), ("strip_accents", strip_accents)):
        require(
            value is None or isinstance(value, bool),
            f"{path}: {name} must be true or false, not {value!r}",
        )
    if lowercase is None:
        lowercase = assumed
        warnings.warn(
            f"{folder} has no tokenizer_config.json that states whether text is lower-cased; "
            f"assuming do_lower_case={str(assumed).lower()}",
            stacklevel=3,
        )
    return lowercase, strip_accents


def _rebuild(tokens: tuple[str, ...], lowercase: bool, strip_accents: bool) -> Tokenizer:
    return Tokenizer(tokens, lowercase=lowercase, strip_accents=strip_accents)


def _past_marks(text: str, end: int) -> int:
    while end < len(text) and unicodedata.category(text[end]) == "Mn":
        end += 1
    return end


def _build_backend(
    ids: dict[str, int], lowercase: bool, strip_accents: bool
) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(
        models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=MAX_WORD_CHARS)
    )
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=strip_accents
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.post_processor = processors.BertProcessing(
        ("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"])
    )
    backend.add_special_tokens(list(SPECIAL_TOKENS))
    backend.encode_special_tokens = True
    return backend
