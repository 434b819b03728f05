"""Ids of lines by any tokenizer, with a memory where that is proven to change nothing.

BERT's tokenizer has an encoder of its own in encoder.py, which also knows its punctuation.
"""

import re
from collections.abc import Iterable, Sequence

import numpy as np

from electra.corpus.encoder import TokenBatch, WordEncoder
from electra.corpus.shards import tokens_dtype
from electra.corpus.tokenizer import Tokenizer
from electra.corpus.vocabulary import break_words, group_texts

SPACED_WORDS = re.compile(r" *[^ ]+")
MAX_REMEMBERED_WORDS = 1 << 19
"""Words in the memory of one process, about 100 MB. A full memory is emptied."""
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
    nothing is remembered. The definition of the result: each line is `tokenizer.encode(line)`, of
    WordPiece `tokenizer.encode(break_words(line))`.

    Args:
        tokenizer: The tokenizer.
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
        lines = [document.split("\n") for document in documents]
        contents = list(self.encode_lines([line for each in lines for line in each]))
        line_lengths = np.array([len(each) for each in contents], np.int64) // self.dtype.itemsize
        first_lines = np.cumsum([0, *(len(each) for each in lines[:-1])])
        tokens = np.frombuffer(b"".join(contents), self.dtype)
        return TokenBatch(
            tokens,
            line_lengths[line_lengths > 0],
            np.add.reduceat(line_lengths, first_lines),
            int(np.count_nonzero(tokens == self.tokenizer.unk_id)),
        )

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
        return [
            np.array(ids, self.dtype).tobytes()
            for group in group_texts(texts, GROUP_CHARS)
            for ids in self.tokenizer.encode_batch(group)
        ]
