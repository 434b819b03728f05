"""Ids of lines by any tokenizer, with a memory where that is proven to change nothing.

BERT's tokenizer has an encoder of its own in prepare.py, which also knows its punctuation.
"""

import re
from collections.abc import Iterable, Sequence

import numpy as np

from electra.corpus.tokenizer import Tokenizer
from electra.corpus.vocabulary import break_words

SPACED_WORDS = re.compile(r" *[^ ]+")
MAX_REMEMBERED_WORDS = 1 << 19
"""Words in the memory of one process, about 100 MB. A full memory is emptied."""
MAX_REMEMBERED_CHARS = 64


class LineEncoder(dict[str, bytes]):
    """Memory from stretches of lines to their ids as bytes.

    The stretches are those of `Tokenizer.independence`. Where only whole lines are independent,
    nothing is remembered. The definition of the result: each line is `tokenizer.encode(line)`, of
    WordPiece `tokenizer.encode(break_words(line))`.

    Args:
        tokenizer: The tokenizer.
        dtype: Integer type of an id, as numpy names it.
    """

    def __init__(self, tokenizer: Tokenizer, dtype: str) -> None:
        self.tokenizer = tokenizer
        self.dtype = np.dtype(dtype)
        self.has_longest_word = tokenizer.kind == "WordPiece"

    def __missing__(self, stretch: str) -> bytes:
        (content,) = self._encode([stretch])
        if len(stretch) <= MAX_REMEMBERED_CHARS:
            if len(self) >= MAX_REMEMBERED_WORDS:
                self.clear()
            self[stretch] = content
        return content

    def encode_lines(self, lines: Sequence[str]) -> Iterable[bytes]:
        """Return the ids of each line. In a line no other white space stands than spaces."""
        if self.tokenizer.independence == "lines":
            return self._encode(lines)
        if self.tokenizer.independence == "words":
            return (b"".join(map(self.__getitem__, line.split(" "))) for line in lines)
        return (b"".join(map(self.__getitem__, SPACED_WORDS.findall(line))) for line in lines)

    def _encode(self, texts: Sequence[str]) -> list[bytes]:
        if self.has_longest_word:
            texts = [break_words(text) for text in texts]
        return [np.array(ids, self.dtype).tobytes() for ids in self.tokenizer.encode_batch(texts)]
