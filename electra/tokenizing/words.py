"""From documents to token ids, word by word: each word is given to the tokenizer once.

The ids of a word do not depend on its context, because BERT's normalisation and WordPiece never
look past a space, and ASCII punctuation is always a word of its own. So the ids of words are
remembered. The words of a megabyte of text are looked up together, in arrays: a word's bytes are
its key, so a found word is the word itself, and the ids are those of the tokenizer.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from electra.text.characters import break_words, group_texts
from electra.tokenizing.tokenizer import Tokenizer, tokens_dtype

SLICE_BYTES = 1 << 20
"""Bytes of text that are looked up together. The arrays take about 60 times as much memory."""
MAX_REMEMBERED_WORDS = 1 << 19
"""Words in the memory of one process, about 150 MB. A full memory is emptied."""
MAX_REMEMBERED_BYTES = 128
SLOT_BITS = 20
NUM_KEYS = 4
"""Words of up to 8 * NUM_KEYS bytes are looked up in arrays, longer ones in a dictionary."""
MASKS = np.array([(1 << 8 * size) - 1 for size in range(8)] + [2**64 - 1], np.uint64)
FACTORS = np.array(
    [0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93], np.uint64
)
PUNCTUATION = ((33, 15), (58, 7), (91, 6), (123, 4))
"""The ranges of ASCII punctuation: first character, number of characters."""


class TokenBatch(NamedTuple):
    """Tokens of some documents. Lines without tokens are left out."""

    tokens: np.ndarray
    line_lengths: np.ndarray
    document_lengths: np.ndarray
    """Tokens of each document, in the order given; 0 for a document without tokens."""


class WordEncoder:
    """Encoder of documents that remembers the ids of words.

    The definition of its result: each line is `tokenizer.encode(break_words(line))`.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.dtype = np.dtype(tokens_dtype(tokenizer.vocab_size))
        self.entry_of: dict[bytes, int] = {}
        # The ids of entry e are pool[firsts[e] : firsts[e] + counts[e]].
        self.pool = np.zeros(1 << 12, self.dtype)
        self.firsts = np.zeros(1 << 10, np.int64)
        self.counts = np.zeros(1 << 10, np.int64)
        # A table with one place for each hash. A word whose place is taken is in `entry_of` only.
        self.keys = np.zeros((NUM_KEYS, 1 << SLOT_BITS), np.uint64)
        self.sizes = np.zeros(1 << SLOT_BITS, np.uint8)
        self.entries = np.zeros(1 << SLOT_BITS, np.int32)

    def encode_documents(self, documents: Sequence[str]) -> TokenBatch:
        """Return the tokens of documents. The lines of a document are joined by line feeds."""
        parts = [self._encode_lines(part) for part in _cut("\n".join(documents).encode())]
        tokens, line_lengths = map(np.concatenate, zip(*parts, strict=True))
        return _collect(documents, tokens, line_lengths)

    def _encode_lines(self, content: bytes) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens of lines, and the number of tokens of each line."""
        # Behind the end are a line feed, which ends the last word, and room for the keys.
        text = np.frombuffer(content + b"\n" + bytes(8 * NUM_KEYS), np.uint8)
        starts, ends, line_ends = _find_words(text[: len(content) + 1])
        entries = self._find(content, text, starts, ends - starts)
        counts, firsts = self.counts[entries], self.firsts[entries]
        stops = np.cumsum(counts)
        total = int(stops[-1]) if len(stops) else 0
        places = np.repeat(firsts - stops + counts, counts)
        places += np.arange(total)
        words_before = np.searchsorted(starts, line_ends)
        tokens_before = np.concatenate([[0], stops])[words_before]
        return self.pool[places], np.diff(tokens_before, prepend=0)

    def _find(
        self, content: bytes, text: np.ndarray, starts: np.ndarray, sizes: np.ndarray
    ) -> np.ndarray:
        """Return the entry of each word."""
        windows = np.ndarray((len(text) - 7,), "<u8", buffer=text, strides=(1,))
        mixed = sizes.astype(np.uint64)
        parts: list[tuple[np.ndarray | slice, np.ndarray]] = []
        for number in range(NUM_KEYS):
            long = np.flatnonzero(sizes > 8 * number) if number else slice(None)
            rest = np.minimum(sizes[long] - 8 * number, 8)
            key = windows[starts[long] + 8 * number] & MASKS[rest]
            mixed[long] += key * FACTORS[number]
            parts.append((long, key))
        mixed ^= mixed >> np.uint64(29)
        mixed *= FACTORS[0]
        slots = (mixed >> np.uint64(64 - SLOT_BITS)).astype(np.int64)
        is_found = self.sizes[slots] == sizes
        for keys, (long, key) in zip(self.keys, parts, strict=True):
            is_found[long] &= keys[slots[long]] == key
        entries = self.entries[slots].astype(np.int64)
        missing = np.flatnonzero(~is_found)
        if len(missing):
            words = [
                content[start : start + size]
                for start, size in zip(
                    starts[missing].tolist(), sizes[missing].tolist(), strict=True
                )
            ]
            new = {word: index for index, word in zip(missing.tolist(), words, strict=True)}
            if len(self.entry_of) + len(new) > MAX_REMEMBERED_WORDS and self.entry_of:
                self.entry_of.clear()
                self.sizes[:] = 0
                return self._find(content, text, starts, sizes)
            added = self._learn([word for word in new if word not in self.entry_of])
            known = self.entry_of
            entries[missing] = [known[word] if word in known else added[word] for word in words]
            # The words of this slice that are remembered are found in the table from now on.
            places = [
                index for word, index in new.items() if len(word) <= 8 * NUM_KEYS and word in known
            ]
            free = np.array(places, np.int64)
            free = free[self.sizes[slots[free]] == 0]
            _, kept = np.unique(slots[free], return_index=True)
            placed = free[kept]
            slots_of = slots[placed]
            self.sizes[slots_of] = sizes[placed]
            self.entries[slots_of] = entries[placed]
            for keys, (long, key) in zip(self.keys, parts, strict=True):
                whole = np.zeros(len(slots), np.uint64)
                whole[long] = key
                keys[slots_of] = whole[placed]
        return entries

    def _learn(self, words: Sequence[bytes]) -> dict[bytes, int]:
        """Encode new words, remember the short ones, and return the entries of the long ones."""
        # The entries of long words are behind the others, so that the next words replace them.
        words = sorted(words, key=lambda word: len(word) > MAX_REMEMBERED_BYTES)
        ids = self.tokenizer.encode_batch([break_words(word.decode()) for word in words])
        first = len(self.entry_of)
        self.counts = _grow(self.counts, first + len(words))
        self.firsts = _grow(self.firsts, first + len(words))
        counts = np.array([len(each) for each in ids], np.int64)
        begin = int(self.firsts[first - 1] + self.counts[first - 1]) if first else 0
        stops = begin + np.cumsum(counts)
        entries = slice(first, first + len(words))
        self.counts[entries], self.firsts[entries] = counts, stops - counts
        self.pool = _grow(self.pool, int(stops[-1]) if len(words) else 0)
        flat = [index for each in ids for index in each]
        self.pool[begin : begin + len(flat)] = flat
        long: dict[bytes, int] = {}
        for entry, word in enumerate(words, start=first):
            memory = self.entry_of if len(word) <= MAX_REMEMBERED_BYTES else long
            memory[word] = entry
        return long


def _collect(documents: Sequence[str], tokens: np.ndarray, line_lengths: np.ndarray) -> TokenBatch:
    """Return the batch of documents whose lines, also the empty ones, have these lengths."""
    first_lines = np.cumsum([0, *(document.count("\n") + 1 for document in documents[:-1])])
    return TokenBatch(
        tokens, line_lengths[line_lengths > 0], np.add.reduceat(line_lengths, first_lines)
    )


def _cut(content: bytes) -> Iterator[bytes]:
    """Yield parts of about SLICE_BYTES, cut at line feeds, which belong to no part."""
    start = 0
    while len(content) - start > SLICE_BYTES:
        stop = content.find(b"\n", start + SLICE_BYTES)
        if stop < 0:
            break
        yield content[start:stop]
        start = stop + 1
    yield content[start:]


def _find_words(text: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the first byte of each word, the byte after each word, and the line feeds."""
    is_line_end = text == ord("\n")
    is_space = (text == ord(" ")) | is_line_end
    is_alone = np.zeros_like(is_space)
    for first, number in PUNCTUATION:
        is_alone |= text - np.uint8(first) < number
    is_border = is_space | is_alone
    # A word begins behind and a word ends before each border.
    begins = ~is_space
    begins[1:] &= is_border[:-1] | is_alone[1:]
    ends = is_border.copy()
    ends[1:] |= is_alone[:-1]
    ends[1:] &= ~is_space[:-1]
    ends[0] = False
    return np.flatnonzero(begins), np.flatnonzero(ends), np.flatnonzero(is_line_end)


def _grow(values: np.ndarray, size: int) -> np.ndarray:
    """Return the array with room for at least `size` values."""
    if size <= len(values):
        return values
    return np.concatenate(
        [values, np.zeros(max(size, 2 * len(values)) - len(values), values.dtype)]
    )


SPACED_WORDS = re.compile(r" *[^ ]+")
MAX_REMEMBERED_CHARS = 64
GROUP_CHARS = 1 << 18
"""Characters that are given to the tokenizer together, or more. Its answer takes much more memory
than the ids alone."""


def make_encoder(tokenizer: Tokenizer) -> "WordEncoder | LineEncoder":
    """Return the fastest encoder of documents whose ids are those of the tokenizer."""
    return WordEncoder(tokenizer) if tokenizer.is_bert else LineEncoder(tokenizer)


class LineEncoder(dict[str, bytes]):
    """Memory from stretches of lines to their ids as bytes.

    The stretches are those of `Tokenizer.independence`. Where only whole lines are independent,
    nothing is remembered. The result for each line is that of `tokenizer.encode(line)`; for
    WordPiece, of `tokenizer.encode(break_words(line))`.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.dtype = np.dtype(tokens_dtype(tokenizer.vocab_size))
        self.has_longest_word = tokenizer.kind == "WordPiece"

    def __missing__(self, stretch: str) -> bytes:
        (content,) = self._encode([stretch])
        if len(stretch) <= MAX_REMEMBERED_CHARS:
            if len(self) >= MAX_REMEMBERED_WORDS:
                self.clear()
            self[stretch] = content
        return content

    def encode_documents(self, documents: Sequence[str]) -> TokenBatch:
        """Return the tokens of documents. The lines of a document are joined by line feeds."""
        contents = list(self.encode_lines("\n".join(documents).split("\n")))
        line_lengths = np.array([len(each) for each in contents], np.int64) // self.dtype.itemsize
        tokens = np.frombuffer(b"".join(contents), self.dtype)
        return _collect(documents, tokens, line_lengths)

    def encode_lines(self, lines: Sequence[str]) -> Iterable[bytes]:
        """Return the ids of each line. Spaces are the only white space in a line."""
        if self.tokenizer.independence == "lines":
            return self._encode(lines)
        if self.tokenizer.independence == "words":
            return (b"".join(map(self.__getitem__, line.split(" "))) for line in lines)
        return (b"".join(map(self.__getitem__, SPACED_WORDS.findall(line))) for line in lines)

    def _encode(self, texts: Sequence[str]) -> list[bytes]:
        if self.has_longest_word:
            texts = [break_words(text) for text in texts]
        return [
            np.array(ids, self.dtype).tobytes()
            for group in group_texts(texts, GROUP_CHARS)
            for ids in self.tokenizer.encode_batch(group)
        ]
