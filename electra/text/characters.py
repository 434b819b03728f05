"""Special cases in a text: surrogates, and words that are too long."""

import re
import unicodedata
from collections.abc import Iterable, Iterator

MAX_WORD_CHARS = 100
"""Characters of the longest word. WordPiece encodes a longer word as one [UNK]. Source: BERT."""

# A code point decomposes into at most four, so a run of a quarter of the limit always fits.
MAX_DECOMPOSITION = 4

LONG_RUN = re.compile(rf"[^\s!-/:-@\[-`{{-~]{{{MAX_WORD_CHARS // MAX_DECOMPOSITION + 1},}}")


def replace_surrogates(text: str) -> str:
    """Return the text with each unpaired surrogate, which is not a character, replaced."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def group_texts(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    """Yield the texts in groups, each of which ends when it has this many characters."""
    group: list[str] = []
    num_chars = 0
    for text in texts:
        group.append(text)
        num_chars += len(text)
        if num_chars >= size:
            yield group
            group, num_chars = [], 0
    if group:
        yield group


def break_words(text: str) -> str:
    """Return the text with spaces inside words that WordPiece would encode as one [UNK].

    The limit of MAX_WORD_CHARS counts characters after the decomposition of accents.
    """
    is_short = max(map(len, text.split()), default=0) < MAX_WORD_CHARS // MAX_DECOMPOSITION
    return text if is_short else LONG_RUN.sub(_break_run, text)


def _break_run(match: re.Match[str]) -> str:
    run = match[0]
    if len(run) <= MAX_WORD_CHARS and len(unicodedata.normalize("NFD", run)) <= MAX_WORD_CHARS:
        return run
    size = MAX_WORD_CHARS if run.isascii() else MAX_WORD_CHARS // MAX_DECOMPOSITION
    return " ".join(run[start : start + size] for start in range(0, len(run), size))
