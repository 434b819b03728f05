"""Losses by domain: whether continued pre-training makes a model worse.

The discriminator is judged on held-out rows whose replaced tokens stay the same throughout the run.
The loss on the generator's present samples would not show it. It falls while a new generator still
draws implausible words, and rises as the generator learns; neither shows anything about the
discriminator. So the tokens are replaced once, before the discriminator's first step, and kept
in the run folder (`heldout.safetensors`).
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from electra.checkpoints.checkpoint import load_parameters, read_tensors, write_tensors
from electra.checkpoints.folder import read_pretrained
from electra.checkpoints.manifest import amend_manifest, read_manifest
from electra.errors import require
from electra.files import new_file, sha256_file
from electra.method.masking import predict_masked
from electra.method.measures import Measures
from electra.method.objective import Output
from electra.method.replaced_token_detection import ReplacedTokenDetection
from electra.model.batch import Batch
from electra.model.encoder import Encoder
from electra.model.heads import GeneratorHead
from electra.model.masked_lm import MaskedLM
from electra.pretraining.evaluation import evaluate, split_heldout
from electra.pretraining.step import Step

DOMAINS_FILE = "heldout.safetensors"


class DomainLosses:
    """Measures a continued run on the `heldout_rows` of each of its domains."""

    def __init__(self, run: Path, heldout: dict[str, Batch], step: Step, first_step: int):
        self.path, self.heldout, self.step = run / DOMAINS_FILE, heldout, step
        train = step.config.train
        self.first = 0 if train.evaluate_with else step.config.second_stage
        self.corrupt_ids: dict[str, Tensor] = {}
        if heldout and first_step >= self.first and self.path.exists():
            require(
                read_manifest(run).get("heldout") in (None, sha256_file(self.path)),
                f"{self.path} is damaged: its sha256 differs from the manifest's; without it "
                "the losses by domain begin anew",
            )
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
            amend_manifest(self.path.parent, heldout=sha256_file(self.path))
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
            measures.add(Output(*model.judge(corrupt_BL, rows, draw, counts)))
        model.train()
        return measures.record()

    def _find_generator(self, model: ReplacedTokenDetection) -> nn.Module:
        """Return the masked language model that replaces the tokens."""
        train, machine = self.step.config.train, self.step.machine
        if not train.evaluate_with:
            return model.generator
        start = read_pretrained(Path(train.init_from))
        of = start.tokenizer, start.source
        from electra.pretraining.init_from import read_masked_lm

        saved = read_masked_lm(train.evaluate_with, *of, "train.evaluate_with")
        encoder = Encoder(saved.sizes, compute_dtype=machine.dtype)
        masked_lm = MaskedLM(encoder, GeneratorHead(saved.sizes))
        load_parameters(masked_lm.encoder, saved.encoders[0])
        load_parameters(masked_lm.head, saved.head)
        return masked_lm.to(machine.device).eval()
