"""The stored corruption: held-out rows of which a kept generator replaced tokens, once.

The AUC of a run on its own generator's tokens misleads: the tokens of a weak generator are easy to
tell. Here all discriminators of a vocabulary judge the same tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.metrics import roc_auc_score
from torch import Tensor

from electra.assignments import override
from electra.checkpoints.checkpoint import list_checkpoints
from electra.checkpoints.folder import SavedModel, read_pretrained, read_run_config
from electra.errors import require
from electra.files import new_file
from electra.inference.network import load_network
from electra.method.masking import predict_masked
from electra.method.replaced_token_detection import ReplacedTokenDetection
from electra.model.batch import find_real
from electra.pretraining.evaluation import heldout_rows, split_heldout
from electra.pretraining.init_from import load_network as load_weights
from electra.pretraining.start import build_model
from electra.shards.store import open_shards
from electra.training.machine import Machine, prepare_machine


class Corruption(NamedTuple):
    """Rows of ids with their special tokens, and the same rows with replacements."""

    original: list[np.ndarray]
    corrupt: list[np.ndarray]
    tokenizer: str
    """Digest of the tokenizer."""


def corrupt(run: Path, shards: Path, num_rows: int, out: Path) -> None:
    """Let the generator of a run replace tokens of held-out rows, and write the rows.

    `ids` are the rows' original ids, padded with zeros to one length, `replacements` the ids that
    are in their places, or 0 where the original is.
    """
    source, machine = open_shards(shards), Machine()
    config = override(read_run_config(run), [f"train.evaluate_rows={num_rows}"])
    saved, model = read_pretrained(run), build_model(config, source.tokenizer, machine)
    assert isinstance(model, ReplacedTokenDetection)
    assert saved.generator is not None
    load_weights(model.networks["generator"], saved.generator)
    model.eval()
    size, found = config.examples.sequence_length, []
    heldout = heldout_rows(source, config)
    assert heldout
    for rows, draw, counts in split_heldout(model, heldout, config.train.batch_size):
        with torch.no_grad():
            prediction, _ = predict_masked(model.generator, model.masking, rows, draw, counts)
        ids_BL = rows.input_ids_BL * find_real(rows)
        corrupt_BL = model.masking.corrupt(rows.input_ids_BL, draw, prediction.sampled)
        replacements_BL = corrupt_BL * (corrupt_BL != rows.input_ids_BL)
        both = torch.stack([ids_BL, replacements_BL])
        found.append(F.pad(both, (0, size - both.shape[2])).numpy())
    ids, replacements = np.concatenate(found, axis=1).astype(np.uint16)
    with new_file(out) as incomplete, incomplete.open("wb") as file:
        digest = np.array(source.tokenizer.digest)
        np.savez_compressed(file, ids=ids, replacements=replacements, tokenizer=digest)


def read_corruption(path: Path) -> Corruption:
    """Return the rows that `corrupt` wrote, without padding."""
    with np.load(path) as stored:
        ids, replacements = stored["ids"], stored["replacements"]
        lengths = (ids > 0).sum(axis=1)
        corrupt_ids = np.where(replacements, replacements, ids)
        original, changed = (
            [row[:length] for row, length in zip(each, lengths, strict=True)]
            for each in (ids, corrupt_ids)
        )
        return Corruption(original, changed, str(stored["tokenizer"]))


def judge(model: SavedModel, corruption: Corruption) -> dict[str, float]:
    """Return the discriminator's loss over all tokens, nats, and its AUC."""
    machine = prepare_machine("cpu", "float32", 1)
    network = load_network(model, model.network("replaced"), machine)
    require(
        model.tokenizer.digest == corruption.tokenizer,
        f"{model.source} has another vocabulary than the stored corruption",
    )

    def answer(rows: Sequence[Sequence[int]]) -> list[Tensor]:
        ids_BL, real_BL = network.pad(rows)
        is_end_BL = ids_BL == network.tokenizer.sep_id
        types_BL = (is_end_BL.cumsum(dim=1) > is_end_BL) * real_BL  # 1 behind the first [SEP]
        logits_BL = network.head(network.encoder(ids_BL, real_BL, types_BL.long()))
        return [logits_L[is_real_L] for logits_L, is_real_L in zip(logits_BL, real_BL, strict=True)]

    with torch.inference_mode():
        inside = [row[1:-1].tolist() for row in corruption.corrupt]
        logits = torch.cat(network.run(inside, answer))
    pairs = zip(corruption.original, corruption.corrupt, strict=True)
    is_replaced = torch.from_numpy(np.concatenate([a != b for a, b in pairs]))
    loss = F.binary_cross_entropy_with_logits(logits, is_replaced.float())
    return {"loss": loss.item(), "auc": float(roc_auc_score(is_replaced, logits))}


def average(run: Path, last: int) -> SavedModel:
    """Return a run's model with weights averaged over a number of its last checkpoints."""
    models = [read_pretrained(folder) for folder in list_checkpoints(run)[-last:]]
    require(len(models) == last, f"{run} has {len(models)} checkpoints, not {last}")

    def mean(weights: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        return {name: torch.stack([w[name] for w in weights]).mean(dim=0) for name in weights[0]}

    kept = [model.kept for model in models]
    encoder, head = mean([each.encoders[0] for each in kept]), mean([each.head for each in kept])
    return replace(models[-1], kept=replace(kept[-1], encoders=(encoder,), head=head))
