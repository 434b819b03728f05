"""Initial weights for short runs: neighbouring tokens matter from the first step on.

With BERT's initial weights attention is nearly uniform, and the state at [MASK] says little about
its context. Masked language modelling then stays at the entropy of single tokens for thousands of
steps before attention learns that neighbours matter. The "neighbours" start skips these steps: the
first layer attends to the tokens beside, and the generator's bias is the logarithm of each token's
frequency. Only initial values differ; the networks and what they can learn are the same
(docs/PERFORMANCE.md has measurements).

Token embeddings from co-occurrence are a low-rank factor of the positive pointwise mutual
information of neighbouring tokens: its leading eigenvectors, times the roots of their eigenvalues.
Tokens that occur in similar contexts get similar embeddings before the first step.

Source: Levy and Goldberg 2014, "Neural Word Embedding as Implicit Matrix Factorization" (the
matrix); Levy, Goldberg and Dagan 2015, "Improving Distributional Similarity with Lessons Learned
from Word Embeddings" (power 0.75, root of the values, weights by distance). They smooth the
contexts alone; here both sides are smoothed, so the matrix is symmetric.

Shape suffixes: V vocabulary, H hidden size, E embedding size, D size of a head.
"""

import math
import warnings
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.model.electra import Embeddings, PostNormLayer
from electra.model.encoder import Encoder
from electra.shards.store import Shards

WINDOW = 4
"""Largest distance of two tokens that co-occur. A pair at distance d counts 1 / d."""
MAX_TOKENS = 1 << 22
"""Most tokens that are counted, from the beginning of each shard in equal parts."""
SMOOTHING = 0.75
ITERATIONS = 4
"""Products with the matrix that turn a random basis towards its leading eigenvectors."""
SHARPNESS = 16.0
"""Expected score of the neighbour that a head looks at after `look_at_neighbours`, nats. The scores
of other positions have mean 0 and a deviation of about 4 at heads of 64, so that a head favours its
neighbour in half of all cases."""
OFFSETS = {"all": (1, -1), "before": (1, 1), "after": (-1, -1)}
"""Offsets from the token that a head looks at to its own, alternating; by `Encoder.sees`."""


def embed_tokens(shards: Shards, size: int, std: float, seed: int) -> Tensor:
    """Return embeddings (V, E) of which every row has the norm sqrt(size) * std.

    Tokens that do not occur in the train part begin at random. Dimensions beyond V are 0. `std` is
    the root mean square of the values, that of the random start which they replace.
    """
    with warnings.catch_warnings():  # torch 2.11 has the first warning, all versions the second
        warnings.filterwarnings("ignore", message="Sparse invariant checks are implicitly disabled")
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        information_VV = _mutual_information(_count_pairs(shards))
    vocab_size = len(information_VV)
    rng = torch.Generator().manual_seed(seed)
    random_VE = torch.randn(vocab_size, min(size, vocab_size), generator=rng)
    basis_VE = random_VE
    for _ in range(ITERATIONS):  # subspace iteration: the matrix is symmetric
        basis_VE = torch.linalg.qr(information_VV @ basis_VE).Q
    values_E, vectors_EE = torch.linalg.eigh(basis_VE.T @ (information_VV @ basis_VE))
    factor_VE = basis_VE @ vectors_EE * values_E.abs().sqrt()
    norm_V1 = factor_VE.norm(dim=1, keepdim=True)
    factor_VE = torch.where(norm_V1 > 1e-6, factor_VE, random_VE)
    factor_VE *= std * size**0.5 / factor_VE.norm(dim=1, keepdim=True)
    return F.pad(factor_VE, (0, size - factor_VE.shape[1]))


def _count_pairs(shards: Shards) -> Tensor:
    """Return the symmetric counts (V, V), sparse, of tokens within WINDOW of each other."""
    vocab_size = shards.tokenizer.vocab_size
    keys = []  # of a pair and its distance: one sort brings equal pairs together
    for corpus in shards.train:
        tokens = corpus.tokens[: MAX_TOKENS // len(shards.train)].astype(np.int64)
        for distance in range(1, WINDOW + 1):
            before, after = tokens[:-distance], tokens[distance:]
            for first, second in ((before, after), (after, before)):
                keys.append((first * vocab_size + second) * WINDOW + distance - 1)
    sorted_keys = np.sort(np.concatenate(keys))
    weights = (1 / (1 + sorted_keys % WINDOW)).astype(np.float32)
    pairs = sorted_keys // WINDOW
    starts = np.flatnonzero(np.diff(pairs, prepend=-1))
    places = torch.from_numpy(np.stack(np.divmod(pairs[starts], vocab_size)))
    return _sparse(places, torch.from_numpy(np.add.reduceat(weights, starts)), vocab_size)


def _mutual_information(counts_VV: Tensor) -> Tensor:
    """Return the positive pointwise mutual information (V, V), sparse, of symmetric counts."""
    (first, second), number = counts_VV.indices(), counts_VV.values()
    occurrences_V = counts_VV.sum(dim=1).to_dense()
    smoothed_V = occurrences_V**SMOOTHING
    prob_V = smoothed_V / smoothed_V.sum()
    information = (number / number.sum() / prob_V[first] / prob_V[second]).log()
    is_positive = information > 0
    places = counts_VV.indices()[:, is_positive]
    positive_VV = _sparse(places, information[is_positive], len(counts_VV))
    return positive_VV.to_sparse_csr()  # its products are several times faster


def _sparse(places: Tensor, values: Tensor, size: int) -> Tensor:
    """Return a sparse square matrix of values at places (2, values) in order."""
    return torch.sparse_coo_tensor(
        places, values, (size, size), check_invariants=False, is_coalesced=True
    )


@torch.no_grad()
def look_at_neighbours(encoders: list[Encoder], std: float, rng: torch.Generator) -> None:
    """Let the first layer of encoders that share an embedding block attend to neighbouring tokens.

    Position embeddings become random Fourier features sqrt(2) std [sin(w t), cos(w t)] of position
    t, with w uniform in [0, pi): nearly orthogonal to one another, of the token embeddings' own
    deviation, and moved by an offset through a rotation. The keys of a head are its queries rotated
    by the offset: alternately one back and one ahead, or always to the one side that is seen. Value
    and output are an orthogonal matrix and twice its transpose, so that the double of what is
    looked at is added. `std` is the standard deviation of the token embeddings.
    """
    positions = cast(Embeddings, encoders[0].embeddings).positions.weight
    size = positions.shape[1]
    frequencies = math.pi * torch.rand(size // 2, generator=rng)
    phases = torch.arange(len(positions))[:, None] * frequencies
    positions.copy_(math.sqrt(2) * std * torch.cat([phases.sin(), phases.cos()], dim=1))
    for encoder in encoders:
        project_HE = torch.eye(encoder.config.hidden_size, size)
        if encoder.embeddings_project is not None:
            nn.init.orthogonal_(encoder.embeddings_project.weight, generator=rng)
            project_HE = encoder.embeddings_project.weight
        attention = cast(PostNormLayer, encoder.layers[0]).attention
        query_HH, key_HH, value_HH = attention.qkv.weight.chunk(3)
        for head, rows in enumerate(torch.arange(len(query_HH)).chunk(attention.num_heads)):
            looks_DE = torch.randn(len(rows), size, generator=rng)
            looks_DE *= math.sqrt(2 * SHARPNESS / (size * math.sqrt(len(rows))))
            query_HH[rows] = looks_DE @ project_HE.T
            offset = OFFSETS[encoder.sees][head % 2]
            key_HH[rows] = looks_DE @ _rotation(frequencies, offset) @ project_HE.T
        nn.init.orthogonal_(value_HH, generator=rng)
        attention.output.weight.copy_(2 * value_HH.T)


def _rotation(frequencies: Tensor, offset: int) -> Tensor:
    """Return the (E, E) matrix that turns the features of position t into those of t + offset."""
    cos, sin = (torch.diag(f(offset * frequencies)) for f in (torch.cos, torch.sin))
    return torch.cat([torch.cat([cos, sin], dim=1), torch.cat([-sin, cos], dim=1)])
