"""Whether continued pre-training makes a model worse: losses on the old and the new text.

The discriminator is judged on held-out rows whose replaced tokens stay the same throughout the run.
The loss on the generator's present samples would not tell. It falls while a new generator still
draws words that nobody would write, and rises as the generator learns, and neither says anything of
the discriminator. So the tokens are replaced once, before the discriminator's first step, and kept
in the run folder (`heldout.safetensors`).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from electra.checkpoints.checkpoint import load_parameters, read_tensors, write_tensors
from electra.checkpoints.folder import read_pretrained
from electra.config import PretrainConfig
from electra.errors import require
from electra.method.masking import Counts, Draw, predict_masked
from electra.method.measures import Measures
from electra.method.objective import Output
from electra.method.replaced_token_detection import ReplacedTokenDetection, measure_judgement
from electra.model.batch import Batch
from electra.model.encoder import Encoder
from electra.model.heads import GeneratorHead
from electra.model.masked_lm import FixedDistribution, MaskedLM
from electra.pretraining.evaluation import evaluate, heldout_batches, split_heldout
from electra.pretraining.init_from import read_masked_lm
from electra.pretraining.step import Step
from electra.shards.store import Shards, open_shards

FILE = "heldout.safetensors"
Domains = dict[str, Shards]
"""Shards of the `new` text, and of the `old` one if there are any; empty for a run that is not
continued."""


def open_domains(shards: Shards, config: PretrainConfig, *, verify: bool) -> Domains:
    """Return the shards whose held-out parts tell whether the model becomes worse.

    Args:
        shards: The shards of the run.
        config: The settings.
        verify: Whether to read the old shards whole and compare their hashes.

    Raises:
        UserError: The old shards have no held-out part, or another vocabulary.
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


def describe_old(domains: Domains) -> dict[str, str] | None:
    """Return folder and sha256 of the old shards for manifests; None: there are none."""
    old = domains.get("old")
    return {"folder": str(old.folder), "sha256": old.digest} if old else None


class DomainLosses:
    """Measures a continued run on the held-out parts of its domains.

    Args:
        run: The run folder.
        domains: The shards.
        step: The step, with the model and the settings.
        first_step: Steps done before this session.
        micro_batch_size: Rows per micro-batch.
    """

    def __init__(
        self, run: Path, domains: Domains, step: Step, first_step: int, micro_batch_size: int
    ):
        self.path = run / FILE
        self.model, self.config, self.machine = step.model, step.config, step.machine
        self.micro_batch_size = micro_batch_size
        self.batches = {
            name: heldout_batches(shards, self.config) for name, shards in domains.items()
        }
        self.first = 0 if self.config.train.evaluate_with else self.config.second_stage
        self.corrupt_ids: dict[str, Tensor] = {}
        if self.batches and first_step >= self.first and self.path.exists():
            self.corrupt_ids = dict(read_tensors(self.path))

    def measure(self, done: int) -> dict[str, Any]:
        """Return the measures of each domain; names begin with new_ and old_.

        For replaced token detection these are disc_loss, constant_disc_loss and disc_auc on fixed
        rows, from the step on at which the tokens are replaced. For other objectives it is the
        objective's loss on the old text, old_loss.

        Args:
            done: Steps done.
        """
        if not isinstance(self.model, ReplacedTokenDetection):
            old = self.batches.get("old")
            device = self.machine.device
            return (
                {"old_loss": evaluate(self.model, old, device, self.micro_batch_size)["loss"]}
                if old
                else {}
            )
        if not self.batches or done < self.first:
            return {}
        if not self.corrupt_ids:
            self.corrupt_ids = self._replace_tokens()
            temporary = self.path.with_name(self.path.name + ".incomplete")
            write_tensors(temporary, self.corrupt_ids)
            temporary.replace(self.path)
        found: dict[str, Any] = {}
        for name in self.batches:
            record = self._judge(name, self.model)
            for measure in ("disc_loss", "constant_disc_loss", "disc_auc"):
                found[f"{name}_{measure}"] = record[measure]
        return found

    @torch.no_grad()
    def _replace_tokens(self) -> dict[str, Tensor]:
        """Return the corrupted ids of each held-out batch, int32, as "domain/number"."""
        self.model.eval()
        generator, masking = self._find_generator(), self.model.masking
        found = {}
        for name, batches in self.batches.items():
            for number, batch in enumerate(batches):
                parts = []
                for rows, draw, counts in self._split(batch, number):
                    prediction, _ = predict_masked(generator, masking, rows, draw, counts)
                    ids_BL = masking.corrupt(rows.input_ids_BL, draw, prediction.sampled)
                    parts.append(ids_BL.to("cpu", torch.int32))
                found[f"{name}/{number}"] = torch.cat(parts)
        self.model.train()
        return found

    @torch.no_grad()
    def _judge(self, name: str, model: ReplacedTokenDetection) -> dict[str, Any]:
        model.eval()
        measures = Measures({"disc_loss": 1.0})
        for number, batch in enumerate(self.batches[name]):
            ids_BL = self.corrupt_ids[f"{name}/{number}"]
            done = 0
            for rows, draw, counts in self._split(batch, number):
                some_BL = ids_BL[done : done + len(rows.input_ids_BL)]
                done += len(some_BL)
                some_BL = some_BL.to(rows.input_ids_BL.device, torch.int64)
                loss, judgement = model.judge(some_BL, rows, draw, counts)
                measures.add(Output(loss, measure_judgement(judgement), judgement))
        model.train()
        return measures.record()

    def _split(self, batch: Batch, number: int) -> Iterator[tuple[Batch, Draw, Counts]]:
        device = self.machine.device
        return split_heldout(self.model, batch, number, device, self.micro_batch_size)

    def _find_generator(self) -> MaskedLM | FixedDistribution:
        """Return the masked language model that replaces the tokens."""
        train = self.config.train
        if not train.evaluate_with:
            assert isinstance(self.model, ReplacedTokenDetection)
            return self.model.generator
        start = read_pretrained(Path(train.init_from))
        saved, _ = read_masked_lm(train.evaluate_with, start, "train.evaluate_with")
        encoder = Encoder(saved.sizes, compute_dtype=self.machine.dtype)
        masked_lm = MaskedLM(encoder, GeneratorHead(saved.sizes))
        load_parameters(masked_lm.encoder, saved.encoders[0])
        load_parameters(masked_lm.head, saved.head)
        return masked_lm.to(self.machine.device).eval()
