"""Documents most of whose runs of five tokens are those of an earlier one: MinHash signatures."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from electra.errors import import_extra
from electra.shards.cleaning import FACTOR, hash_runs
from electra.tokenizing.words import TokenBatch

BANDS = 16
SHINGLE_TOKENS = 5
SIGNATURE_SIZE = 128
SIMILARITY = 0.8


def sign_documents(batch: TokenBatch) -> np.ndarray:
    """Return the MinHash signature of each document, uint32 (D, SIGNATURE_SIZE)."""
    rensa = import_extra("rensa", "near-duplicates", "the setting duplicates=near")
    hashes, documents = hash_runs(batch, SHINGLE_TOKENS, whole=False)
    ends = np.cumsum(np.bincount(documents, minlength=len(batch.document_lengths)))
    matrix = rensa.RMinHash.digest_matrix_from_flat_token_hashes(
        hashes, np.concatenate([[0], ends]).astype(np.uint64), num_perm=SIGNATURE_SIZE, seed=1
    )
    return np.array(matrix.to_rows(), np.uint32).reshape(-1, SIGNATURE_SIZE)


def find_near_duplicates(files: Sequence[Path]) -> np.ndarray:
    """Return which documents are near duplicates of one before, as booleans (N,).

    Documents that are linked by pairs of near duplicates form a group, of which the first is kept.
    `files` hold the documents' signatures, in the order of the corpus.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    firsts = np.cumsum([0, *(path.stat().st_size // (4 * SIGNATURE_SIZE) for path in files)])
    num_documents = int(firsts[-1])
    if not num_documents:
        return np.zeros(0, bool)
    width = SIGNATURE_SIZE // BANDS
    keys = np.zeros((BANDS, num_documents), np.uint64)
    for path, first in zip(files, firsts, strict=False):
        signatures = _read_signatures(path)
        inside = slice(first, first + len(signatures))
        for number, column in enumerate(signatures.T):
            values = (keys[number // width, inside] ^ column) * FACTOR
            keys[number // width, inside] = values ^ (values >> np.uint64(29))
    found = np.zeros(0, np.int64)  # pairs, as before * N + after; most are found in many bands
    for keys_N in keys:
        order = np.argsort(keys_N, kind="stable")
        is_same = keys_N[order[1:]] == keys_N[order[:-1]]
        # Each document of a bucket is compared with the bucket's first one and with its neighbour.
        firsts_of = np.concatenate([[True], ~is_same])
        leaders = order[np.flatnonzero(firsts_of)[np.cumsum(firsts_of) - 1]]
        others = np.concatenate([leaders[1:][is_same], order[:-1][is_same]])
        found = np.union1d(found, others * num_documents + np.tile(order[1:][is_same], 2))
    before, after = np.divmod(found, num_documents)
    is_near = _compare(files, firsts, before, after)
    before, after = before[is_near], after[is_near]
    ones = np.ones(len(before), bool)
    links = coo_array((ones, (before, after)), shape=(num_documents, num_documents))
    group = connected_components(links, directed=False)[1]
    is_duplicate = np.ones(num_documents, bool)
    is_duplicate[np.unique(group, return_index=True)[1]] = False
    return is_duplicate


def _compare(
    files: Sequence[Path], firsts: np.ndarray, before: np.ndarray, after: np.ndarray
) -> np.ndarray:
    """Return whether the documents of each pair are as similar as SIMILARITY."""
    step = 1 << 16
    is_near = np.zeros(len(before), bool)
    for start in range(0, len(before), step):
        pairs = np.stack([before, after])[:, start : start + step]
        rows = np.empty((*pairs.shape, SIGNATURE_SIZE), np.uint32)
        part = np.searchsorted(firsts, pairs, side="right") - 1
        for number in np.unique(part):
            inside = part == number
            rows[inside] = _read_signatures(files[number])[pairs[inside] - firsts[number]]
        is_near[start : start + step] = (rows[0] == rows[1]).mean(axis=1) >= SIMILARITY
    return is_near


def _read_signatures(path: Path) -> np.ndarray:
    """Return a file's signatures, of which only those that are used are read."""
    is_empty = not path.stat().st_size  # which cannot be mapped
    values = np.zeros(0, "<u4") if is_empty else np.memmap(path, "<u4", mode="r")
    return values.reshape(-1, SIGNATURE_SIZE)
