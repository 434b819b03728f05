"""A pre-trained model asked about a text: which words look replaced, and what fills a gap."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from electra.checkpoints.folder import find_network
from electra.errors import require
from electra.inference.network import LoadedNetwork, load_network
from electra.reports.tokens import Word
from electra.tokenizing.tokenizer import Tokenizer
from electra.training.machine import prepare_machine

ROWS = 32
"""Rows of a batch."""
MASK = "[MASK]"


class Candidate(NamedTuple):
    """A token that may fill a gap."""

    token: str
    """A piece that continues a word begins with "##"."""
    prob: float


def load_asked(folder: Path, predicts: Literal["replaced", "tokens"]) -> LoadedNetwork:
    """Return the discriminator ("replaced") or the masked language model ("tokens") of a folder.

    It computes in float32: its answers are those of its exports, on every machine.

    Args:
        folder: A run of `electra pretrain`, or a Hugging Face folder such as `electra export`
            writes, whose generator may lie in a folder `generator` inside.
        predicts: What the network predicts.

    Raises:
        UserError: The folder has no such network, or is damaged.
    """
    return load_network(*find_network(folder, predicts), prepare_machine("auto", "float32", 0))


@torch.inference_mode()
def detect(
    network: LoadedNetwork,
    texts: Sequence[str],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[list[Word]]:
    """Return the words of each text with their probabilities of being replaced.

    A text that is longer than the network's rows is judged in pieces, which begin at words.

    Args:
        network: A discriminator.
        texts: Any texts; one without tokens has no words.
        progress: Called with the number of pieces done and of all pieces.
    """
    tokenizer = network.tokenizer
    encoded = [tokenizer.encode_with_offsets(text) for text in texts]
    pieces = [
        (number, piece) for number, (ids, _) in enumerate(encoded) for piece in network.cut(ids)
    ]
    probs: list[list[float]] = [[0.0] * len(ids) for ids, _ in encoded]
    pieces.sort(key=lambda each: each[1].stop - each[1].start)
    for first in range(0, len(pieces), ROWS):
        batch = pieces[first : first + ROWS]
        hidden_BLH = network.encode([encoded[number][0][piece] for number, piece in batch])
        for (number, piece), row in zip(batch, network.head(hidden_BLH).sigmoid(), strict=True):
            probs[number][piece] = row[1 : 1 + piece.stop - piece.start].tolist()
        progress(first + len(batch), len(pieces))
    return [
        _join(text, ids, offsets, own, tokenizer)
        for text, (ids, offsets), own in zip(texts, encoded, probs, strict=True)
    ]


def _join(
    text: str,
    ids: Sequence[int],
    offsets: Sequence[tuple[int, int]],
    probs: Sequence[float],
    tokenizer: Tokenizer,
) -> list[Word]:
    words: list[Word] = []
    for token_id, (start, end), prob in zip(ids, offsets, probs, strict=True):
        if words and not tokenizer.starts_word[token_id]:
            last = words.pop()
            start, prob = last.start, max(prob, last.prob_replaced)
        words.append(Word(text[start:end], start, end, prob))
    return [word for word in words if word.text]  # tokens of nothing but white space are no words


def fill(network: LoadedNetwork, text: str, top: int = 5) -> list[list[Candidate]]:
    """Return the most probable tokens for each [MASK] of a text, the best first.

    All gaps are empty at once, as in pre-training.

    Args:
        network: A masked language model, such as a generator.
        text: A text with at least one [MASK].
        top: Number of tokens for each.

    Raises:
        UserError: The text has no [MASK], or more tokens than the network's rows.
    """
    return fill_each(network, [text], top)[0]


@torch.inference_mode()
def fill_each(
    network: LoadedNetwork, texts: Sequence[str], top: int = 5
) -> list[list[list[Candidate]]]:
    """Return what `fill` returns, for each text.

    Raises:
        UserError: As `fill`, of any of the texts.
    """
    require(top >= 1, f"top must be >= 1, not {top}")
    tokenizer = network.tokenizer
    rows = [encode_gaps(network, text) for text in texts]
    answers: list[list[list[Candidate]]] = [[] for _ in texts]
    shortest_first = sorted(range(len(rows)), key=lambda number: len(rows[number]))
    for first in range(0, len(rows), ROWS):
        numbers = shortest_first[first : first + ROWS]
        hidden_BLH = network.encode([rows[number] for number in numbers])
        places = [
            (row, place)
            for row, number in enumerate(numbers)
            for place, token_id in enumerate(rows[number], start=1)
            if token_id == tokenizer.mask_id
        ]
        hidden_MH = hidden_BLH[tuple(torch.tensor(places).T)]
        best = network.log_probs(hidden_MH).topk(min(top, tokenizer.vocab_size))
        for (row, _), ids, probs in zip(
            places, best.indices.tolist(), best.values.exp().tolist(), strict=True
        ):
            gap = map(Candidate, tokenizer.tokens(ids), probs)
            answers[numbers[row]].append(list(gap))
    return answers


def encode_gaps(network: LoadedNetwork, text: str) -> list[int]:
    """Return the ids of a text with the mask's id at each [MASK].

    Raises:
        UserError: As `fill`.
    """
    tokenizer = network.tokenizer
    require(MASK in text, f"the text has no {MASK}: write one where a token is to be filled in")
    first, *others = text.split(MASK)
    # The space before a gap belongs to what fills it.
    ids = tokenizer.encode(first.rstrip())
    for part in others:
        ids += [tokenizer.mask_id, *tokenizer.encode_glued(part.rstrip())]
    require(
        len(ids) <= network.max_tokens,
        f"the text has {len(ids)} tokens; the model's rows hold {network.max_tokens}",
    )
    return ids


def describe_words(text: str, words: Sequence[Word]) -> dict[str, Any]:
    """Return the words of a text as JSON can hold them."""
    return {"text": text, "words": [word._asdict() for word in words]}
