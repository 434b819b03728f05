"""The choice of the layer and pooling of an encoder that best show sentence similarity.

The last layer of a discriminator is specialised for the discriminator's task. On STS-B lower layers
are better. Source: Rep et al. 2024, "Are ELECTRA's Sentence Embeddings Beyond Repair?".

Shape suffixes: P poolings, K layers, N sentences, B rows of the batch, L positions, H hidden size.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from electra.errors import UserError, require
from electra.files import sha256_file
from electra.inference.embed import Pooling
from electra.inference.network import LoadedEncoder, require_numbers
from electra.interop.sentence_transformers import LayerScore, Similarity
from electra.processes import Tell, silent
from electra.tasks.predictions import score
from electra.tasks.record import find_split
from electra.text.table_files import read_table

COLUMNS = ("sentence1", "sentence2", "score")
"""As in STS-B."""
POOLINGS: tuple[Pooling, ...] = ("mean", "cls")
NUM_COMPARED = 32
"""Sentences on which sentence-transformers is compared with our embeddings."""


class Pairs(NamedTuple):
    """Pairs of sentences with the scores that people gave, and the files with their sha256."""

    first: list[str]
    second: list[str]
    scores: list[float]
    data: str


def read_pairs(path: Path, columns: Sequence[str] = ()) -> Pairs:
    """Return the pairs of a table, or of a folder's dev set: two sentences, and their score."""
    columns = columns or COLUMNS
    require(len(columns) == 3, f"--columns must name two texts and a score, not {len(columns)}")
    require(path.exists(), f"there is no file {path}")
    found = find_split(path, "dev", (".tsv",)) if path.is_dir() else [path]
    require(bool(found), f"{path} has no dev.tsv; name the file")
    tables = list(map(read_table, found))
    first, second, scores = (
        [cell for table in tables for cell in table.column(name, fractions=True)]
        for name in columns
    )
    try:
        numbers = [float(score) for score in scores]
    except ValueError as error:
        raise UserError(f"{path}, {columns[2]}: {error}") from None
    odd = next((each for each in numbers if not math.isfinite(each)), None)
    require(odd is None, f"{path}, {columns[2]}: a score is {odd}; it must be a finite number")
    require(len(set(numbers)) > 1, f"{path}: all scores are {numbers[0]}; they must differ")
    files = "; ".join(f"{file.name}, sha256 {sha256_file(file)}" for file in found)
    return Pairs(first, second, numbers, files)


def choose_layer(network: LoadedEncoder, pairs: Pairs, progress: Tell = silent) -> Similarity:
    """Return the layer and the pooling whose cosines agree best with the scores of the pairs.

    Sentences are cut to the encoder's rows, as sentence-transformers does.
    """
    sentences = list(dict.fromkeys([*pairs.first, *pairs.second]))
    place = {sentence: number for number, sentence in enumerate(sentences)}
    first = [place[sentence] for sentence in pairs.first]
    second = [place[sentence] for sentence in pairs.second]
    ids = network.tokenizer.encode_batch(sentences)
    rows = [each[: network.max_tokens] for each in ids]
    pooled_NPKH = network.run(rows, lambda batch: _pool_layers(network, batch), progress)
    pooled_PKNH = np.stack(pooled_NPKH, axis=2)
    scores = []
    poolings = POOLINGS[:1] if network.encoder.config.causal else POOLINGS  # [CLS] sees no text
    for states_KNH, pooling in zip(pooled_PKNH, poolings, strict=False):
        for layer, states_NH in enumerate(states_KNH, start=1):
            units_NH = states_NH / np.linalg.norm(states_NH, axis=1, keepdims=True)
            cosines = (units_NH[first] * units_NH[second]).sum(axis=1)
            found = score(["spearman"], pairs.scores, cosines.tolist())
            scores.append(LayerScore(layer, pooling, found["spearman"]))
    best = max(scores, key=lambda each: each.spearman)
    return Similarity(
        best.layer,
        best.pooling,
        scores,
        pairs.data,
        len(pairs.scores),
        sentences[:NUM_COMPARED],
        pooled_PKNH[POOLINGS.index(best.pooling), best.layer - 1, :NUM_COMPARED],
    )


@torch.inference_mode()
def _pool_layers(network: LoadedEncoder, rows: Sequence[Sequence[int]]) -> np.ndarray:
    """Return the states of rows of ids (B, P, K, H), float32: pooled in two ways, of all layers."""
    input_ids_BL, mask_BL = network.pad(rows)
    states_KBLH = torch.stack([*network.encoder.layer_states(input_ids_BL, mask_BL)]).float()
    require_numbers(states_KBLH)
    final_norm = network.encoder.final_norm
    if final_norm is not None:  # an encoder that ends with a lower layer has it there
        states_KBLH[:-1] = final_norm(states_KBLH[:-1])
    share_BL1 = (mask_BL / mask_BL.sum(dim=1, keepdim=True))[:, :, None]
    means_KBH = (states_KBLH * share_BL1).sum(dim=2)
    return torch.stack([means_KBH, states_KBLH[:, :, 0]]).permute(2, 0, 1, 3).cpu().numpy()
