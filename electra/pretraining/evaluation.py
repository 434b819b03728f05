"""Evaluation on held-out rows during pre-training: measures, sample rows, losses by domain.

Masked positions and uniform numbers of a row are the same in every evaluation. They are a function
of its place among the held-out rows alone, so runs of any train.batch_size are measured alike.

Losses by domain say whether continued pre-training makes a model worse. The discriminator is judged
on held-out rows whose replaced tokens stay the same throughout the run. The loss on the generator's
present samples would not tell. It falls while a new generator still draws words that nobody would
write, and rises as the generator learns, and neither says anything of the discriminator. So the
tokens are replaced once, before the discriminator's first step, and kept in the run folder
(`heldout.safetensors`).
"""

from collections.abc import Iterator
from itertools import starmap
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from electra.checkpoints.checkpoint import load_parameters, read_tensors, write_tensors
from electra.checkpoints.folder import read_pretrained
from electra.errors import require
from electra.files import new_file
from electra.method.masking import Counts, Draw, predict_masked
from electra.method.measures import Measures
from electra.method.objective import Judgement, Objective, Output
from electra.method.replaced_token_detection import ReplacedTokenDetection, measure_judgement
from electra.model.batch import Batch, find_real
from electra.model.encoder import Encoder
from electra.model.heads import GeneratorHead
from electra.model.masked_lm import FixedDistribution, MaskedLM
from electra.pretraining.init_from import read_masked_lm
from electra.pretraining.step import Step
from electra.shards.examples import Examples, permute
from electra.shards.store import Shards, open_shards
from electra.tokenizing.tokenizer import Tokenizer
from electra.training.config import PretrainConfig
from electra.training.optimizer import step_seed

NUM_SAMPLES = 8
"""Held-out rows shown token by token in samples.json."""
DOMAINS_FILE = "heldout.safetensors"
Domains = dict[str, Shards]
"""Shards of the `new` text, and of the `old` one if there are any; empty for a run that is not
continued."""


def heldout_rows(shards: Shards, config: PretrainConfig) -> Batch | None:
    """Return the held-out rows of an evaluation, the same rows in every call.

    None if `train.evaluate_rows` is 0.
    """
    if config.train.evaluate_rows == 0:
        return None
    examples = Examples(shards.heldout, shards.tokenizer, config.examples, seed=0)
    count = min(len(examples), config.train.evaluate_rows)
    size = config.train.batch_size
    if config.method.contrasts and count > size:  # its loss depends on the number of rows
        count -= count % size
    return examples.rows(permute(torch.arange(count).numpy(), len(examples), seed=0, epoch=0))


@torch.no_grad()
def evaluate(model: Objective, heldout: Batch, micro_batch_size: int) -> dict[str, Any]:
    """Return the measures on held-out rows, without dropout."""
    model.eval()
    measures = Measures(model.loss_weights)
    for parts in split_heldout(model, heldout, micro_batch_size):
        measures.add(model(*parts))
    model.train()
    return measures.record()


def split_heldout(
    model: Objective, heldout: Batch, micro_batch_size: int
) -> Iterator[tuple[Batch, Draw, Counts]]:
    """Yield the micro-batches of held-out rows, each with its draw and its counts."""
    device = next(model.parameters()).device
    seeds = [step_seed(0, "heldout", row) for row in range(len(heldout.input_ids_BL))]
    for first in range(0, len(seeds), micro_batch_size):
        rows = slice(first, first + micro_batch_size)
        batch = heldout.rows(rows).to(device)
        yield batch, *model.masking.draw_rows(batch, seeds[rows])


@torch.no_grad()
def view_rows(
    model: Objective, heldout: Batch, tokenizer: Tokenizer, micro_batch_size: int
) -> list[list[dict[str, Any]]]:
    """Return the first NUM_SAMPLES held-out rows, token by token.

    A token is a dict of token, original, is_replaced and prob_replaced. The list is empty if the
    objective has no discriminator.
    """
    model.eval()
    first = heldout.rows(slice(0, NUM_SAMPLES))
    enough = starmap(model, split_heldout(model, first, micro_batch_size))
    judgements = [output.judgement for output in enough if output.judgement]
    rows: list[list[dict[str, Any]]] = []
    if not judgements:
        return rows
    judgement = Judgement(*map(torch.cat, zip(*judgements, strict=True)))
    real_BL = find_real(first)
    for row in range(len(judgement.logits_BL)):
        length = int(real_BL[row].sum())
        columns = zip(
            tokenizer.tokens(judgement.corrupt_ids_BL[row, :length].tolist()),
            tokenizer.tokens(first.input_ids_BL[row, :length].tolist()),
            judgement.is_replaced_BL[row, :length].tolist(),
            judgement.logits_BL[row, :length].sigmoid().tolist(),
            strict=True,
        )
        names = ("token", "original", "is_replaced", "prob_replaced")
        rows.append([dict(zip(names, column, strict=True)) for column in columns])
    return rows


def open_domains(shards: Shards, config: PretrainConfig, *, verify: bool) -> Domains:
    """Return the shards whose held-out parts tell whether a continued run makes a model worse.

    With `verify`, old shards are read whole, and their hashes compared.
    """
    train = config.train
    if not train.init_from or not train.evaluate_rows:
        return {}
    if not train.also_evaluate:
        return {"new": shards}
    old = open_shards(Path(train.also_evaluate), verify=verify)
    require(bool(old.heldout), f"{old.folder} has no held-out part; prepare it with one")
    require(
        old.tokenizer.digest == shards.tokenizer.digest,
        f"train.also_evaluate {old.folder} has another vocabulary than {shards.folder}",
    )
    return {"new": shards, "old": old}


class DomainLosses:
    """Measures a continued run on the `heldout_rows` of each of its domains."""

    def __init__(self, run: Path, heldout: dict[str, Batch], step: Step, first_step: int):
        self.path, self.heldout, self.step = run / DOMAINS_FILE, heldout, step
        train = step.config.train
        self.first = 0 if train.evaluate_with else step.config.second_stage
        self.corrupt_ids: dict[str, Tensor] = {}
        if heldout and first_step >= self.first and self.path.exists():
            self.corrupt_ids = dict(read_tensors(self.path))

    def measure(self, done: int) -> dict[str, Any]:
        """Return the measures of each domain; names begin with new_ and old_.

        For replaced token detection these are the discriminator's measures on fixed rows, from the
        step on at which the tokens are replaced. For other objectives it is the objective's loss on
        the old text, old_loss.
        """
        model, old = self.step.model, self.heldout.get("old")
        if not isinstance(model, ReplacedTokenDetection):
            return {"old_loss": evaluate(model, old, self.step.micro_rows)["loss"]} if old else {}
        if not self.heldout or done < self.first:
            return {}
        if not self.corrupt_ids:
            self.corrupt_ids = self._replace_tokens(model)
            with new_file(self.path) as incomplete:
                write_tensors(incomplete, self.corrupt_ids)
        return {
            f"{name}_{measure}": value
            for name in self.heldout
            for measure, value in self._judge(name, model).items()
            if measure != "loss"
        }

    @torch.no_grad()
    def _replace_tokens(self, model: ReplacedTokenDetection) -> dict[str, Tensor]:
        """Return the corrupted ids of the held-out rows of each domain, int32."""
        model.eval()
        generator, masking = self._find_generator(model), model.masking
        found = {}
        for name, heldout in self.heldout.items():
            parts = []
            for rows, draw, counts in split_heldout(model, heldout, self.step.micro_rows):
                prediction, _ = predict_masked(generator, masking, rows, draw, counts)
                ids_BL = masking.corrupt(rows.input_ids_BL, draw, prediction.sampled)
                parts.append(ids_BL.to("cpu", torch.int32))
            found[name] = torch.cat(parts)
        model.train()
        return found

    @torch.no_grad()
    def _judge(self, name: str, model: ReplacedTokenDetection) -> dict[str, Any]:
        """Return the discriminator's measures on the fixed rows of a domain."""
        model.eval()
        measures, size = Measures({"disc_loss": 1.0}), self.step.micro_rows
        micro_batches = split_heldout(model, self.heldout[name], size)
        for ids_BL, (rows, draw, counts) in zip(
            self.corrupt_ids[name].split(size), micro_batches, strict=True
        ):
            corrupt_BL = ids_BL.to(rows.input_ids_BL.device, torch.int64)
            loss, judgement = model.judge(corrupt_BL, rows, draw, counts)
            measures.add(Output(loss, measure_judgement(judgement), judgement))
        model.train()
        return measures.record()

    def _find_generator(self, model: ReplacedTokenDetection) -> MaskedLM | FixedDistribution:
        """Return the masked language model that replaces the tokens."""
        train, machine = self.step.config.train, self.step.machine
        if not train.evaluate_with:
            return model.generator
        start = read_pretrained(Path(train.init_from))
        of = start.tokenizer, start.source
        saved = read_masked_lm(train.evaluate_with, *of, "train.evaluate_with")
        encoder = Encoder(saved.sizes, compute_dtype=machine.dtype)
        masked_lm = MaskedLM(encoder, GeneratorHead(saved.sizes))
        load_parameters(masked_lm.encoder, saved.encoders[0])
        load_parameters(masked_lm.head, saved.head)
        return masked_lm.to(machine.device).eval()
