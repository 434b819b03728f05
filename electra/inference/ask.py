"""A pre-trained model asked about a text: which words look replaced, and what fills a gap."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from electra.checkpoints.folder import read_pretrained
from electra.errors import count_of, require
from electra.inference.network import PRECISION, LoadedNetwork, load_network
from electra.processes import Tell, silent
from electra.reports.tokens import Word
from electra.tokenizing.tokenizer import Tokenizer
from electra.training.machine import Precision, prepare_machine

MASK = "[MASK]"
MAX_GAPS = 256
"""Gaps filled at a time: each has a probability for every token of the vocabulary."""


@dataclass(frozen=True)
class Candidate:
    """A token that may fill a gap."""

    token: str
    """A piece that continues a word begins with "##"."""
    prob: float


def load_asked(
    folder: Path, predicts: Literal["replaced", "tokens"], precision: Precision = PRECISION
) -> LoadedNetwork:
    """Return the discriminator ("replaced") or the masked language model ("tokens") of a folder.

    The folder is a run, or one of Hugging Face's kind, which may have a generator in its folder
    `generator`.
    """
    model, machine = read_pretrained(folder), prepare_machine("auto", precision, 0)
    return load_network(model, model.network(predicts), machine)


@torch.inference_mode()
def detect(
    network: LoadedNetwork, texts: Sequence[str], progress: Tell = silent
) -> list[list[Word]]:
    """Return the words of each text with their probabilities of being replaced.

    A text that is longer than the discriminator's rows is judged in pieces, which begin at words.
    `progress` is called with the number of pieces done and of all pieces.
    """
    encoded = [network.tokenizer.encode_with_offsets(text) for text in texts]

    def judge(rows: list[Sequence[int]]) -> list[list[float]]:
        probs_BL = network.judge(rows).sigmoid().tolist()
        return [probs_L[1 : 1 + len(row)] for row, probs_L in zip(rows, probs_BL, strict=True)]

    judged = network.run_pieces([ids for ids, _ in encoded], judge, progress)
    return [
        _join(text, *each, list(chain.from_iterable(probs)), network.tokenizer)
        for text, each, probs in zip(texts, encoded, judged, strict=True)
    ]


def _join(
    text: str,
    ids: Sequence[int],
    offsets: Sequence[tuple[int, int]],
    probs: Sequence[float],
    tokenizer: Tokenizer,
) -> list[Word]:
    """Return the words of which tokens are the pieces; white space alone is no word."""
    words: list[Word] = []
    begins = tokenizer.find_words(text, ids, offsets)
    for is_first, (start, end), prob in zip(begins, offsets, probs, strict=True):
        if not is_first:
            last = words.pop()
            start, prob = last.start, max(prob, last.prob_replaced)
        words.append(Word(text[start:end], start, end, prob))
    return [word for word in words if word.text]


@torch.inference_mode()
def fill(network: LoadedNetwork, texts: Sequence[str], top: int = 5) -> list[list[list[Candidate]]]:
    """Return, for each text, the `top` most probable tokens for each [MASK], the best first.

    All gaps of a text are masked at once, as in pre-training. A blank text has no gaps; any other
    text without a gap, or with more tokens than the network's rows, is refused.
    """
    require(top >= 1, f"top must be >= 1, not {top}")
    names = ["the text"] if len(texts) == 1 else [f"text {n}" for n in range(1, len(texts) + 1)]
    encoded = [_encode_gaps(network, *each) for each in zip(texts, names, strict=True)]

    def answer(rows: Sequence[Sequence[int]]) -> list[list[list[Candidate]]]:
        gaps: list[list[list[Candidate]]] = [[] for _ in rows]
        places = [
            (row, place)
            for row, ids in enumerate(rows)
            for place, token_id in enumerate(ids, start=1)
            if token_id == network.tokenizer.mask_id
        ]
        if not places:  # of blank texts
            return gaps
        states_MH = network.encode(rows)[tuple(torch.tensor(places).T)]
        best = (list_best(network, network.log_probs(p), top) for p in states_MH.split(MAX_GAPS))
        for (row, _), candidates in zip(places, chain.from_iterable(best), strict=True):
            gaps[row].append(candidates)
        return gaps

    return network.run(encoded, answer)


def list_best(network: LoadedNetwork, log_probs_MV: Tensor, top: int) -> list[list[Candidate]]:
    """Return the tokens of the highest probabilities (M, V) at each position, the best first."""
    best = log_probs_MV.topk(min(top, network.tokenizer.vocab_size))
    return [
        list(map(Candidate, network.tokenizer.tokens(ids), probs))
        for ids, probs in zip(best.indices.tolist(), best.values.exp().tolist(), strict=True)
    ]


def _encode_gaps(network: LoadedNetwork, text: str, name: str) -> list[int]:
    """Return the ids of a text with the mask's id at each [MASK], or refuse it by its name."""
    tokenizer = network.tokenizer
    require(
        MASK in text or not text.strip(),
        f"{name} has no {MASK}: write one where a token is to be filled in",
    )
    ids = tokenizer.encode_gaps(text.split(MASK))
    require(
        len(ids) <= network.max_tokens,
        f"{name} has {count_of(len(ids), 'token')}; the model's rows hold {network.max_tokens}",
    )
    return ids
