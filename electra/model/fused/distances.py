"""Scores by distance of disentangled attention, written out."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from electra.model.fused.products import product, score_back


class Distances(NamedTuple):
    """Queries and keys of all distances between two positions, in disentangled attention.

    The score of i and j by their distance is a column of the product of i with all keys, one column
    further to the right for each j, so all scores are a strided view of the products. Only for the
    T distances are scores gathered and gradients scattered. A band of b positions reads
    W = L + b - 1 of the distances, and products are computed a band at a time. Z = N * B, not
    B * N; P = B * b.
    """

    q_NTD: Tensor
    """From distance -(L - 1) to L - 1, query less key."""
    k_NTD: Tensor
    """From distance L - 1 to -(L - 1)."""

    @property
    def scale(self) -> float:
        """Factor of the three scores together."""
        return float((3 * self.k_NTD.shape[2]) ** -0.5)

    def score(self, q_ZLD: Tensor, k_ZLD: Tensor) -> Tensor:
        """Return scale * (q k^T + the two scores by distance), (Z, L, L)."""
        by_query_ZLL = q_ZLD.new_empty(*q_ZLD.shape[:2], q_ZLD.shape[1])
        for rows, columns in _bands(q_ZLD.shape[1]):
            by_query_ZLL[:, rows].copy_(self._multiply(k_ZLD, rows, self.q_NTD[:, columns]))
        # Transposed all at once: to add transposed bands, torch has no vectorised loop.
        scores_ZLL = torch.baddbmm(
            by_query_ZLL.transpose(1, 2), q_ZLD, k_ZLD.transpose(1, 2), alpha=self.scale
        )
        for rows, columns in _bands(q_ZLD.shape[1]):
            scores_ZLL[:, rows].add_(self._multiply(q_ZLD, rows, self.k_NTD[:, columns]))
        return scores_ZLL

    def _multiply(self, x_ZLD: Tensor, rows: slice, other_NWD: Tensor) -> Tensor:
        """Return the scores (Z, b, L) of a band."""
        x_NPD = _cut(x_ZLD, rows, len(other_NWD))
        return _skew(product(x_NPD, other_NWD.transpose(1, 2), self.scale), x_ZLD.shape[1])

    def score_back(
        self, dscores_ZLL: Tensor, q: Tensor, k: Tensor, dq: Tensor, dk: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Write the gradients of query and key; return those of `q_NTD` and `k_NTD`, float32."""
        (N, T, D), (Z, L, _) = self.k_NTD.shape, dscores_ZLL.shape
        score_back(dscores_ZLL, q, k, self.scale, dq, dk)
        found = []
        for x_ZLD, dx_ZLD, other_NTD, d_ZLL in (
            (k, dk, self.q_NTD, dscores_ZLL.transpose(1, 2).contiguous()),
            (q, dq, self.k_NTD, dscores_ZLL),
        ):
            dother_NTD = torch.zeros(N, T, D)
            for rows, columns in _bands(L):
                other_NWD, x_NPD = other_NTD[:, columns], _cut(x_ZLD, rows, N)
                # What no pair reads stays zero.
                d_NPW = d_ZLL.new_zeros(N, x_NPD.shape[1], other_NWD.shape[1])
                _skew(d_NPW, L).copy_(d_ZLL[:, rows])
                dx_ZLD[:, rows] += product(d_NPW, other_NWD, self.scale).view(Z, -1, D)
                dother_NTD[:, columns] += product(d_NPW.transpose(1, 2), x_NPD, self.scale)
            found.append(dother_NTD)
        return found[0], found[1]


_BAND = 64
"""Positions of a band: fewer make small products, more compute distances that none reads."""


def _bands(length: int) -> Iterator[tuple[slice, slice]]:
    """Yield the positions of each band, and the columns of the distances that they read."""
    for start in range(0, length, _BAND):
        stop = min(start + _BAND, length)
        yield slice(start, stop), slice(length - stop, 2 * length - 1 - start)


def _cut(x_ZLD: Tensor, rows: slice, num_heads: int) -> Tensor:
    """Return the positions of a band, of each head those of all rows (N, B * b, D)."""
    return x_ZLD[:, rows].reshape(num_heads, -1, x_ZLD.shape[2])


def _skew(products: Tensor, length: int) -> Tensor:
    """Return the view (Z, b, L) of (N, B * b, W): row i, column j has column j - i + b - 1."""
    width = products.shape[2]
    band = width - length + 1
    shape = products.numel() // (band * width), band, length
    return products.as_strided(shape, (band * width, width - 1, 1), band - 1)
