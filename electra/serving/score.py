"""Scoring: the pseudo-log-likelihoods of sentences, by a run of Electric.

Source: Clark et al. 2020, "Pre-Training Transformers as Energy-Based Cloze Models", section 4. The
released code trains Electric but does not score with it.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from electra.config import require
from electra.corpus.tokenizer import Tokenizer
from electra.files import write_text
from electra.model.encoder import Encoder
from electra.model.heads import DiscriminatorHead
from electra.runs.checkpoint import FILES, find_checkpoint, load_parameters, read_tensors
from electra.runs.pretrained import kept_encoder, read_run_config, tensors_below
from electra.tasks.table import read_text_lines
from electra.training.machine import choose_device, choose_dtype, choose_layers, prepare_process

ROWS = 64
"""Lines of a batch."""
BREAKS = str.maketrans("\t\r", "  ")
"""What a field of a table may not hold."""


class Score(NamedTuple):
    """The score of a line."""

    text: str
    num_tokens: int
    pll: float
    """Minus the sum of the energies E(x)_t of the line's tokens, in nats. Up to a constant for each
    token, an energy is -log p(token | all other tokens)."""


def read_sentences(path: Path) -> list[str]:
    """Return the lines that hold text of a UTF-8 file, compressed or not.

    Raises:
        UserError: The file cannot be read, or holds no text.
    """
    lines = [line.strip() for line in read_text_lines(path) if line.strip()]
    require(bool(lines), f"{path} holds no line of text")
    return lines


@torch.inference_mode()
def score_lines(
    run: Path, lines: Sequence[str], progress: Callable[[int, int], None] = lambda done, total: None
) -> list[Score]:
    """Return the score of each line, in the order of the lines.

    Device, precision and threads are those of the run's settings (`train`); without a CUDA device,
    a run that was trained on one is scored on the CPU.

    Args:
        run: A run folder whose objective is electric.
        lines: Texts, none longer than the rows that the run was trained on.
        progress: Called with the number of lines done and of all lines.

    Raises:
        UserError: `run` is not such a folder, or a line is too long or has no tokens.
    """
    config = read_run_config(run)
    require(
        config.method.objective == "electric",
        f"{run} was trained with method.objective={config.method.objective}, which gives no "
        "energies; score needs a run with electric",
    )
    tokenizer = Tokenizer.load(run / "tokenizer")
    longest = config.examples.sequence_length - 2
    ids = tokenizer.encode_batch(list(lines))
    for number, (line, row) in enumerate(zip(lines, ids, strict=True), start=1):
        require(
            0 < len(row) <= longest,
            f"line {number} has {len(row)} tokens; it must have 1 to {longest}, as the run's rows: "
            f"{line[:40]!r}",
        )
    prepare_process(config.train.threads)
    device = choose_device("cpu" if config.train.device == "cpu" else "auto")
    compute_dtype = choose_dtype(config.train.precision, device)
    layer = choose_layers("auto", device, compiled=False)
    encoder = Encoder(config.model, layer=layer, compute_dtype=compute_dtype).eval()
    head = DiscriminatorHead(config.model)
    _, checkpoint = find_checkpoint(run)
    tensors = read_tensors(checkpoint / FILES[0])
    load_parameters(encoder, kept_encoder(tensors))
    load_parameters(head, tensors_below("discriminator_head.", tensors))
    encoder.to(device)
    head.to(device)

    scores: dict[int, Score] = {}
    by_length = sorted(range(len(ids)), key=lambda number: len(ids[number]))
    for start in range(0, len(ids), ROWS):
        numbers = by_length[start : start + ROWS]
        rows = [
            torch.tensor([tokenizer.cls_id, *ids[number], tokenizer.sep_id]) for number in numbers
        ]
        input_ids_BL = nn.utils.rnn.pad_sequence(rows, True, tokenizer.pad_id).to(device)
        energy_BL = head(encoder(input_ids_BL, input_ids_BL != tokenizer.pad_id)).cpu()
        for n, row_L in zip(numbers, energy_BL, strict=True):
            pll = -row_L[1 : len(ids[n]) + 1].sum().item()
            scores[n] = Score(lines[n], len(ids[n]), pll)
        progress(len(scores), len(ids))
    return [scores[n] for n in range(len(ids))]


def write_scores(path: Path, scores: Sequence[Score]) -> None:
    """Write a table of the scores, whole or not at all; tabs and carriage returns become spaces."""
    rows = [
        f"{each.pll:.4f}\t{each.num_tokens}\t{each.text.translate(BREAKS)}\n" for each in scores
    ]
    write_text(path, "pll\ttokens\ttext\n" + "".join(rows))
