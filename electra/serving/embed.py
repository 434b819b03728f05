"""An encoder asked for embeddings: of texts, of their words, or of their tokens.

The last layer of a discriminator serves the discriminator's task and is the worst one for
similarity; similarity.py chooses a better one on a dev set. Source: Rep et al. 2024, "Are ELECTRA's
Sentence Embeddings Beyond Repair?".

Shape suffixes: L positions, H hidden size.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch

from electra.serving.network import LoadedEncoder

Pooling = Literal["mean", "cls"]
BATCH_TOKENS = 4096
"""Positions of a batch, padding included."""


class Units(NamedTuple):
    """The words or tokens of a text."""

    starts: np.ndarray
    """Place of each unit's first character in the text (units,), int32."""
    ends: np.ndarray
    """Place behind its last character."""
    states: np.ndarray
    """Embeddings (units, H), float32."""


@torch.inference_mode()
def embed(
    network: LoadedEncoder,
    texts: Sequence[str],
    *,
    layer: int | None = None,
    pooling: Pooling = "mean",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> np.ndarray:
    """Return an embedding of each text (texts, H), float32, which does not depend on the others.

    A text that is longer than the encoder's rows is cut into pieces, of which the mean is taken
    over all positions, or over their [CLS].

    Args:
        network: An encoder, with or without a head.
        texts: Any texts.
        layer: Layer, from 1, whose states are pooled; None: the last.
        pooling: mean: over all positions, [CLS] and [SEP] included, as sentence-transformers does.
            cls: the state of [CLS].
        progress: Called with the number of pieces done and of all pieces.

    Raises:
        UserError: There is no such layer.
    """
    encoded = network.tokenizer.encode_batch(list(texts))
    sums = np.zeros((len(texts), network.encoder.config.hidden_size))
    counts = np.zeros((len(texts), 1))
    for number, _, states_LH in _compute_pieces(network, encoded, layer, progress):
        pooled_LH = states_LH[:1] if pooling == "cls" else states_LH
        sums[number] += pooled_LH.sum(axis=0, dtype=np.float64)
        counts[number] += len(pooled_LH)
    return (sums / counts).astype(np.float32)


@torch.inference_mode()
def embed_units(
    network: LoadedEncoder,
    texts: Sequence[str],
    *,
    unit: Literal["word", "token"] = "word",
    layer: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Units]:
    """Return the embeddings of each text's words or tokens, in order, with their places.

    The embedding of a word is the mean over its tokens. Punctuation marks are words.

    Args:
        network: An encoder, with or without a head.
        texts: Any texts; one without tokens has no units.
        unit: What is embedded.
        layer: Layer, from 1, whose states are taken; None: the last.
        progress: Called with the number of pieces done and of all pieces.

    Raises:
        UserError: There is no such layer.
    """
    encoded = [network.tokenizer.encode_with_offsets(text) for text in texts]
    rows = [ids for ids, _ in encoded]
    size = network.encoder.config.hidden_size
    states = [np.zeros((len(ids), size), np.float32) for ids in rows]
    for number, piece, states_LH in _compute_pieces(network, rows, layer, progress):
        states[number][piece] = states_LH[1:-1]
    found = []
    for (ids, offsets), own in zip(encoded, states, strict=True):
        places = np.array(offsets, np.int32).reshape(-1, 2)
        units = Units(places[:, 0], places[:, 1], own)
        found.append(_join(units, network.tokenizer.starts_word[ids]) if unit == "word" else units)
    return found


def _join(tokens: Units, starts_word: np.ndarray) -> Units:
    """Return the words of which tokens are the pieces; a text's first token begins a word."""
    if not len(starts_word):
        return tokens
    starts_word = starts_word.copy()
    starts_word[0] = True
    firsts = np.flatnonzero(starts_word)
    counts = np.diff([*firsts, len(starts_word)])
    sums = np.add.reduceat(tokens.states, firsts, axis=0)
    return Units(
        tokens.starts[firsts],
        tokens.ends[firsts + counts - 1],
        (sums / counts[:, None]).astype(np.float32),
    )


def _compute_pieces(
    network: LoadedEncoder,
    texts: Sequence[Sequence[int]],
    layer: int | None,
    progress: Callable[[int, int], None],
) -> Iterator[tuple[int, slice, np.ndarray]]:
    """Yield the states (L, H), float32, of all pieces of the texts, in batches of like lengths.

    A piece has the number of its text, its place among the text's ids, and the states of [CLS], its
    ids and [SEP].
    """
    pieces = [
        (number, piece)
        for number, ids in enumerate(texts)
        for piece in (network.cut(ids) if ids else [slice(0, 0)])
    ]
    pieces.sort(key=lambda each: each[1].stop - each[1].start)
    done = 0
    while done < len(pieces):
        end = _end_of_batch(pieces, done)
        batch = pieces[done:end]
        rows = [texts[number][piece] for number, piece in batch]
        states_BLH = network.encode(rows, layer).float().cpu().numpy()
        for (number, piece), row, states_LH in zip(batch, rows, states_BLH, strict=True):
            yield number, piece, states_LH[: len(row) + 2]
        done = end
        progress(done, len(pieces))


def _end_of_batch(pieces: Sequence[tuple[int, slice]], first: int) -> int:
    """Return the end of the batch that begins at `first`; the pieces are sorted by length."""
    end = first + 1
    while end < len(pieces):
        piece = pieces[end][1]
        if (end + 1 - first) * (piece.stop - piece.start + 2) > BATCH_TOKENS:
            break
        end += 1
    return end
