"""Settings of `electra tokenizer`."""

from dataclasses import dataclass
from typing import Annotated, Literal

from electra.settings import AtLeast, Needs
from electra.text.config import TextConfig


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig(TextConfig):
    """Settings of `electra tokenizer`."""

    kind: Literal["wordpiece", "bpe", "unigram"] = "wordpiece"
    """wordpiece: as in BERT. bpe: byte-level, as in GPT-2; no character is unknown. unigram: as in
    SentencePiece."""
    vocab_size: Annotated[int, AtLeast(64)] = 30_522
    """Entries of the vocabulary, including the five special tokens. Source: BERT's uncased English
    vocabulary."""
    lowercase: bool | None = None
    """Whether text is lower-cased before tokenisation. Unset: true for wordpiece, as in BERT, and
    false for the others."""
    strip_accents: bool | None = None
    """Whether combining marks are removed: accents, but also vowel signs of Hindi and Thai and
    voicing marks of Japanese; wordpiece then splits Korean syllables. Unset: the value of
    `lowercase`, as in BERT."""
    split_ideographs: bool | None = None
    """Whether each Chinese character is a word of its own; wordpiece only. Unset: true."""
    min_frequency: Annotated[int, AtLeast(1)] = 2
    """Number of occurrences from which a pair of word pieces is merged; not for unigram."""

    needs = (
        Needs("split_ideographs=True|False", "kind=wordpiece", "the others split no ideographs"),
    )

    @property
    def lowers_case(self) -> bool:
        """`lowercase`, or its value if unset."""
        return self.kind == "wordpiece" if self.lowercase is None else self.lowercase

    @property
    def strips_accents(self) -> bool:
        """`strip_accents`, or its value if unset."""
        return self.lowers_case if self.strip_accents is None else self.strip_accents
