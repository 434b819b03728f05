"""Filters of a preparation: documents by length, repetition and language, and duplicates.

Nothing is dropped unless a setting asks for it. Filters judge a document by itself, in its piece.
Duplicates are found among all documents, when all pieces are done. Among equal or nearly equal
documents the first one of the corpus is kept.

Near duplicates: the sets of five consecutive tokens of two documents have a Jaccard similarity of
at least SIMILARITY, as estimated by MinHash (the library rensa). Candidates are documents that
agree in all values of a band of their signatures: pairs of similarity 0.8 are found with a
probability of 95%, of 0.9 with 99.99%.

Source: MinHash, Broder 1997, "On the resemblance and containment of documents"; bands, Leskovec,
Rajaraman and Ullman, "Mining of Massive Datasets", section 3.4. Repetition: Rae et al. 2021,
"Scaling Language Models" (Gopher), table A1, on tokens instead of words.
"""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np

from electra.errors import import_extra, require_choice
from electra.shards.config import PrepareConfig
from electra.tokenizing.words import TokenBatch

REPEATED_TOKENS = 10
"""Length of a run of tokens that counts as repeated. Shorter runs are common in natural text."""
LANGUAGE_CHARS = 2000
"""Characters at the beginning of a document by which its language is detected."""
FACTOR = np.uint64(0x9E3779B97F4A7C15)
HASHES_AT_ONCE = 1 << 24


class Filters:
    """The filters of the settings, and how many documents each has dropped, by reason."""

    def __init__(self, config: PrepareConfig) -> None:
        self.config = config
        self.aside: IO[str] | None = None  # for dropped documents that are to be written
        self.dropped: Counter[str] = Counter()
        names = (name.strip().lower() for name in config.languages.split(","))
        self.languages = set(filter(None, names))
        if self.languages:
            self.langid = import_extra("py3langid", "languages", "the setting languages")
            known = dict(self.langid.rank(""))
            for name in sorted(self.languages):
                require_choice("code of languages", name, known)

    def judge_text(self, text: str) -> bool:
        """Return whether a document is dropped by its length or language."""
        config, reason = self.config, ""
        if len(text) < config.min_chars:
            reason = "too short"
        elif config.max_chars and len(text) > config.max_chars:
            reason = "too long"
        elif self.languages:
            language = self.langid.classify(text[:LANGUAGE_CHARS])[0]
            if language not in self.languages:
                reason = f"language {language}"
        if reason:
            self._drop(text, reason)
        return bool(reason)

    def judge_tokens(self, batch: TokenBatch, texts: Sequence[str]) -> np.ndarray:
        """Return which documents of a batch are dropped for their repetition (D,)."""
        is_dropped = np.zeros(len(texts), bool)
        if self.config.max_repetition < 1:
            is_dropped = measure_repetition(batch) > self.config.max_repetition
            for number in np.flatnonzero(is_dropped).tolist():
                self._drop(texts[number], "repetition")
        return is_dropped

    def _drop(self, text: str, reason: str) -> None:
        self.dropped[reason] += 1
        if self.aside:
            write_dropped(self.aside, text, reason)


def write_dropped(file: IO[str], text: str, reason: str) -> None:
    """Write a dropped document as a line of JSON."""
    file.write(json.dumps({"reason": reason, "text": text}, ensure_ascii=False) + "\n")


def measure_repetition(batch: TokenBatch) -> np.ndarray:
    """Return the share of each document's runs of REPEATED_TOKENS tokens that are repeats (D,).

    A document that is shorter than one run has none.
    """
    runs, documents = hash_runs(batch, REPEATED_TOKENS, whole=True)
    found = np.unique(runs * FACTOR + documents.astype(np.uint64), return_index=True)[1]
    size = len(batch.document_lengths)
    num_runs = np.bincount(documents, minlength=size)
    num_different = np.bincount(documents[found], minlength=size)
    return 1 - num_different / np.maximum(num_runs, 1) - (num_runs == 0)


def hash_runs(batch: TokenBatch, length: int, *, whole: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the hash of the run of tokens at each place, and its document; `whole`: none cut."""
    num_tokens = len(batch.tokens)
    documents = np.repeat(np.arange(len(batch.document_lengths)), batch.document_lengths)
    left = np.cumsum(batch.document_lengths)[documents] - np.arange(num_tokens)
    hashes = np.zeros(num_tokens, np.uint64)
    tokens = np.pad(batch.tokens.astype(np.uint64) + np.uint64(1), (0, length))
    for place in range(length):
        values = np.where(left > place, tokens[place : place + num_tokens], np.uint64(0))
        hashes = (hashes ^ values) * FACTOR
        hashes ^= hashes >> np.uint64(29)
    if whole:
        return hashes[left >= length], documents[left >= length]
    return hashes, documents


def find_repeats(files: Sequence[Path]) -> np.ndarray:
    """Return which documents have the same hash as one before, as booleans (N,).

    `files` hold the documents' hashes, in the order of the corpus.
    """
    firsts = np.cumsum([0, *(path.stat().st_size // 8 for path in files)])
    is_repeat = np.zeros(firsts[-1], bool)
    num_passes = -(-len(is_repeat) // HASHES_AT_ONCE)
    for number in range(num_passes):  # each sorts the documents with some of the hashes
        found, places = [], []
        for path, first in zip(files, firsts, strict=False):
            hashes = np.fromfile(path, "<u8")
            inside = np.flatnonzero(hashes % np.uint64(num_passes) == number)
            found.append(hashes[inside])
            places.append(inside + first)
        values, place = np.concatenate(found), np.concatenate(places)
        is_new = np.zeros(len(values), bool)
        is_new[np.unique(values, return_index=True)[1]] = True
        is_repeat[place[~is_new]] = True
    return is_repeat
