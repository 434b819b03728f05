"""A run of Electric in memory, asked for the pseudo-log-likelihoods of sentences.

Source: Clark et al. 2020, "Pre-Training Transformers as Energy-Based Cloze Models", section 4. The
released code trains Electric but does not score with it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from electra.config import require
from electra.corpus.tokenizer import Tokenizer
from electra.files import write_text
from electra.model.encoder import Encoder
from electra.model.heads import DiscriminatorHead
from electra.runs.checkpoint import load_parameters
from electra.runs.pretrained import read_networks
from electra.tasks.table import read_text_lines
from electra.training.machine import Machine, choose_layers, prepare_machine

ROWS = 64
"""Sentences of a batch."""
BREAKS = str.maketrans("\t\r", "  ")
"""The characters that a field of a table must not contain, and their replacements."""


class Score(NamedTuple):
    """The score of a sentence."""

    text: str
    num_tokens: int
    pll: float
    """Minus the sum of the energies E(x)_t of the tokens, in nats. Up to a constant for each token,
    an energy is -log p(token | all other tokens)."""


def read_sentences(path: Path) -> list[str]:
    """Return the lines of a UTF-8 file, compressed or not, that are not blank.

    Raises:
        UserError: The file cannot be read, or holds no text.
    """
    lines = [line.strip() for line in read_text_lines(path) if line.strip()]
    require(bool(lines), f"{path} holds no line of text")
    return lines


@dataclass(frozen=True)
class Scorer:
    """An encoder with its energy head, loaded once for any number of requests."""

    encoder: Encoder
    head: DiscriminatorHead
    tokenizer: Tokenizer
    max_tokens: int
    """Tokens of the longest sentence: the run's rows without [CLS] and [SEP]."""
    machine: Machine

    @torch.inference_mode()
    def score(
        self,
        sentences: Sequence[str],
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> list[Score]:
        """Return the score of each sentence, in order.

        Args:
            sentences: Texts of 1 to `max_tokens` tokens.
            progress: Called with the number of sentences done and of all sentences.

        Raises:
            UserError: A sentence is too long or has no tokens; the message has its number, from 1.
        """
        ids = self.tokenizer.encode_batch(list(sentences))
        for number, (sentence, row) in enumerate(zip(sentences, ids, strict=True), start=1):
            require(
                0 < len(row) <= self.max_tokens,
                f"line {number} has {len(row)} tokens; it must have 1 to {self.max_tokens}, as the "
                f"run's rows: {sentence[:40]!r}",
            )
        scores: dict[int, Score] = {}
        by_length = sorted(range(len(ids)), key=lambda number: len(ids[number]))
        cls_id, sep_id, pad_id = self.tokenizer.cls_id, self.tokenizer.sep_id, self.tokenizer.pad_id
        for start in range(0, len(ids), ROWS):
            numbers = by_length[start : start + ROWS]
            rows = [torch.tensor([cls_id, *ids[number], sep_id]) for number in numbers]
            input_ids_BL = nn.utils.rnn.pad_sequence(rows, True, pad_id).to(self.machine.device)
            energy_BL = self.head(self.encoder(input_ids_BL, input_ids_BL != pad_id)).cpu()
            for n, row_L in zip(numbers, energy_BL, strict=True):
                pll = -row_L[1 : len(ids[n]) + 1].sum().item()
                scores[n] = Score(sentences[n], len(ids[n]), pll)
            progress(len(scores), len(ids))
        return [scores[n] for n in range(len(ids))]


def load_scorer(run: Path) -> Scorer:
    """Return the scorer of a run folder; its files are not read again.

    Device, precision and threads are those of the run's settings (`train`). A run that was trained
    on a CUDA device is scored on the CPU if there is none.

    Raises:
        UserError: `run` is not a run folder, its objective is not electric, or it has no intact
            checkpoint.
    """
    networks = read_networks(run)
    config, network = networks.config, networks.kept
    require(
        network.predicts == "energy",
        f"{run} was trained with method.objective={config.method.objective}, which gives no "
        "energies; score needs a run with electric",
    )
    train = config.train
    machine = prepare_machine(
        "cpu" if train.device == "cpu" else "auto", train.precision, train.threads
    )
    layer = choose_layers("auto", machine.device, compiled=False)
    encoder = Encoder(config.model, layer=layer, compute_dtype=machine.dtype).eval()
    head = DiscriminatorHead(config.model)
    load_parameters(encoder, network.encoders[0])
    load_parameters(head, network.head)
    return Scorer(
        encoder.to(machine.device),
        head.to(machine.device),
        Tokenizer.load(run / "tokenizer"),
        config.examples.sequence_length - 2,
        machine,
    )


def write_scores(path: Path, scores: Sequence[Score]) -> None:
    """Write a table of the scores, all or none; tabs and carriage returns become spaces."""
    rows = [
        f"{each.pll:.4f}\t{each.num_tokens}\t{each.text.translate(BREAKS)}\n" for each in scores
    ]
    write_text(path, "pll\ttokens\ttext\n" + "".join(rows))
