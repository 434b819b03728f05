"""A labelled task built from any held-out text: which punctuation mark follows a word?

The marks are removed from the text and become the tags of the words before them. The answer depends
on the words around, not on the topic. Pre-training has not read the held-out texts, so it has not
seen the marks. Words are those of BERT's normalisation: runs of letters, single Chinese characters.
"""

import itertools
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from electra.corpus.shards import Shard, Shards

MARKS = frozenset(",.;:!?…،؛؟۔।॥、。，！？；：｡､·")  # noqa: RUF001
"""Marks that end a part of a sentence, in several scripts."""
MIN_MARK_SHARE = 0.003
"""Least share of words that a mark follows in the labelled texts; rarer marks are only removed."""
WINDOW_WORDS = 32
"""Words of a passage. Passages are cut without regard to sentences, or their ends would show."""
MIN_PASSAGES = 64
"""Fewest passages of a question."""
MIN_TOKENS = 8 * WINDOW_WORDS
"""Shorter documents, such as single lines, are joined with those that follow."""


class Passage(NamedTuple):
    """Consecutive words of a text, and the mark after each word, "" for none."""

    words: list[str]
    marks: list[str]


class PunctuationQuestion(NamedTuple):
    """The task: labelled passages for training and for testing, of different documents."""

    train: list[Passage]
    test: list[Passage]


def punctuation_question(
    shards: Shards, num_labelled: int, num_asked: int, seed: int
) -> PunctuationQuestion | None:
    """Return a question about the held-out documents, or None if they hold too little.

    A text with fewer passages than asked for gives train and test its passages in proportion.

    Args:
        shards: The shards whose held-out part is asked about.
        num_labelled: Most passages in train.
        num_asked: Most passages in test.
        seed: Seed of the split.
    """
    documents = [
        [passage for passage in cut_passages(tokens) if any(passage.marks)]
        for shard in shards.heldout
        for tokens in join_documents(read_documents(shard, shards))
    ]
    num_passages = sum(map(len, documents))
    if num_passages < MIN_PASSAGES:
        return None
    random.Random(seed).shuffle(documents)
    share = min(1.0, num_passages / (num_labelled + num_asked))
    most = round(share * num_asked)
    test: list[Passage] = []
    while documents and len(test) < most:
        test += documents.pop()
    train = [passage for document in documents for passage in document]
    train, test = train[: round(share * num_labelled)], test[:most]
    if not train:
        return None
    counts = Counter(mark for passage in train for mark in passage.marks)
    least = MIN_MARK_SHARE * counts.total()
    kept = {mark for mark, count in counts.items() if mark and count >= least}

    def keep(passages: list[Passage]) -> list[Passage]:
        return [
            Passage(words, [mark if mark in kept else "" for mark in marks])
            for words, marks in passages
        ]

    return PunctuationQuestion(keep(train), keep(test)) if kept else None


def read_documents(shard: Shard, shards: Shards) -> Iterator[list[str]]:
    """Yield the tokens of each document of a shard."""
    bounds = [*shard.documents.tolist(), len(shard.tokens)]
    for start, stop in itertools.pairwise(bounds):
        yield shards.tokenizer.tokens(shard.tokens[start:stop].tolist())


def join_documents(documents: Iterable[list[str]]) -> Iterator[list[str]]:
    """Yield the documents, short ones joined until they have MIN_TOKENS; the last may be short."""
    joined: list[str] = []
    for tokens in documents:
        joined += tokens
        if len(joined) >= MIN_TOKENS:
            yield joined
            joined = []
    if joined:
        yield joined


def cut_passages(tokens: list[str]) -> Iterator[Passage]:
    """Yield the passages of a document; words that the vocabulary cannot spell are left out."""
    words: list[str] = []
    marks: list[str] = []
    for token in tokens:
        if token.startswith("##") and words:
            words[-1] += token[2:]
        elif token in MARKS:
            if words and not marks[-1]:
                marks[-1] = token
        elif token != "[UNK]":
            words.append(token)
            marks.append("")
    for start in range(0, len(words) - WINDOW_WORDS + 1, WINDOW_WORDS):
        stop = start + WINDOW_WORDS
        yield Passage(words[start:stop], marks[start:stop])


def write_passages(passages: list[Passage], path: Path) -> None:
    """Write passages as a file of words and tags for `electra finetune --task tagging`."""
    lines = (
        "".join(
            f"{word}\t{'B-' + mark if mark else 'O'}\n"
            for word, mark in zip(passage.words, passage.marks, strict=True)
        )
        for passage in passages
    )
    path.write_text("\n".join(lines), encoding="utf-8")
