"""Every setting of every verb: frozen dataclasses, the paper's presets, strict overrides.

A setting is one field of one dataclass, documented below it with its unit and source. Nothing here
imports torch, so `--help` and `--dry-run` answer at once. "Table 6" and "Table 7" are those of the
ELECTRA paper's appendix.
"""

import dataclasses
import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints


class UserError(ValueError):
    """A user's mistake: one line with the offending value, the rule and the nearest valid choice."""


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the nearest choice, else the list of choices."""
    choices = list(choices)
    near = difflib.get_close_matches(name, choices, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else f"; choose from {', '.join(choices)}"


def require(rule_holds: bool, message: str) -> None:
    """Raise UserError(message) unless the rule holds."""
    if not rule_holds:
        raise UserError(message)


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """What `electra tokenizer` trains: a WordPiece vocabulary with BERT's normalisation."""

    vocab_size: int = 30_522
    """Entries, the five special tokens included. Source: BERT's uncased English vocabulary."""
    lowercase: bool = True
    """Whether text is lower-cased before it is split."""
    strip_accents: bool | None = None
    """Whether accents are removed; unset: as `lowercase`, which is what BERT does."""
    min_frequency: int = 2
    """Times a pair of pieces must occur to be merged into one."""

    def __post_init__(self) -> None:
        require(self.vocab_size >= 64, f"vocab_size must be at least 64, not {self.vocab_size}")
        require(self.min_frequency >= 1, f"min_frequency must be >= 1, not {self.min_frequency}")


@dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """How `electra prepare` reads text and cuts it into shards."""

    border: Literal["blank", "line", "file"] = "blank"
    """Where one document ends and the next begins: at a blank line, at every line, at a file's end.
    A .jsonl or .parquet record is a document of its own in any case."""
    text_field: str = "text"
    """The field of a .jsonl record, or the column of a .parquet file, that holds the text."""
    heldout_prob: float = 0.005
    """Share of the documents held out for evaluation, chosen by a hash of their number."""
    shard_tokens: int = 1 << 26
    """Tokens after which the next shard begins, at a document's end."""
    workers: int = 0
    """Processes that tokenise; 0: one for each core this process may use. Never changes the result."""
    seed: int = 0
    """Seed of the choice of held-out documents."""

    def __post_init__(self) -> None:
        require(
            0 <= self.heldout_prob < 1, f"heldout_prob must lie in [0, 1), not {self.heldout_prob}"
        )
        require(self.shard_tokens >= 1, f"shard_tokens must be >= 1, not {self.shard_tokens}")
        require(self.workers >= 0, f"workers must be >= 0, not {self.workers}")
