"""Token embeddings from co-occurrence, as a start for short runs.

The embeddings are a low-rank factor of the positive pointwise mutual information of neighbouring
tokens: its leading eigenvectors, times the roots of their eigenvalues. Tokens that occur in similar
contexts get similar embeddings before the first step.

Source: Levy and Goldberg 2014, "Neural Word Embedding as Implicit Matrix Factorization" (the
matrix); Levy, Goldberg and Dagan 2015, "Improving Distributional Similarity with Lessons Learned
from Word Embeddings" (power 0.75, root of the values, weights by distance). They smooth the
contexts alone; here both sides are smoothed, so the matrix is symmetric.

Shape suffixes: V vocabulary, E embedding size.
"""

import warnings

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from electra.corpus.shards import Shards

WINDOW = 4
"""Largest distance of two tokens that co-occur. A pair at distance d counts 1 / d."""
MAX_TOKENS = 1 << 22
"""Most tokens that are counted, from the beginning of each shard in equal parts."""
SMOOTHING = 0.75
ITERATIONS = 4
"""Products with the matrix that turn a random basis towards its leading eigenvectors."""


def embed_tokens(shards: Shards, size: int, std: float, seed: int) -> Tensor:
    """Return embeddings (V, E) of which every row has the norm sqrt(size) * std.

    Tokens that do not occur begin at random.

    Args:
        shards: The train part is counted.
        size: Embedding size E. Dimensions beyond V are 0.
        std: Root mean square of the values, that of the random start it replaces.
        seed: Seed of the decomposition and of the tokens that do not occur.
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
    for shard in shards.train:
        tokens = shard.tokens[: MAX_TOKENS // len(shards.train)].astype(np.int64)
        for distance in range(1, WINDOW + 1):
            before, after = tokens[:-distance], tokens[distance:]
            for first, second in ((before, after), (after, before)):
                keys.append((first * vocab_size + second) * WINDOW + distance - 1)
    sorted_keys = np.sort(np.concatenate(keys))
    weights = (1 / (1 + sorted_keys % WINDOW)).astype(np.float32)
    pairs = sorted_keys // WINDOW
    starts = np.flatnonzero(np.diff(pairs, prepend=-1))
    places = np.stack([pairs[starts] // vocab_size, pairs[starts] % vocab_size])
    return torch.sparse_coo_tensor(
        torch.from_numpy(places),
        torch.from_numpy(np.add.reduceat(weights, starts)),
        (vocab_size, vocab_size),
        check_invariants=False,
        is_coalesced=True,
    )


def _mutual_information(counts_VV: Tensor) -> Tensor:
    """Return the positive pointwise mutual information (V, V), sparse, of symmetric counts.

    The probability of a token is that of its occurrences to the power SMOOTHING.
    """
    (first, second), number = counts_VV.indices(), counts_VV.values()
    occurrences_V = counts_VV.sum(dim=1).to_dense()
    smoothed_V = occurrences_V**SMOOTHING
    prob_V = smoothed_V / smoothed_V.sum()
    information = (number / number.sum() / prob_V[first] / prob_V[second]).log()
    is_positive = information > 0
    positive_VV = torch.sparse_coo_tensor(
        torch.stack([first, second])[:, is_positive],
        information[is_positive],
        counts_VV.shape,
        check_invariants=False,
        is_coalesced=True,
    )
    return positive_VV.to_sparse_csr()  # its products are several times faster
