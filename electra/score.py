"""Scoring: sentences and a run of Electric in, pseudo-log-likelihoods out.

Source: Clark et al. 2020, "Pre-Training Transformers as Energy-Based Cloze Models", section 4; the
released code has the training but not this.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from electra.config import UserError, require
from electra.corpus.tokenizer import Tokenizer
from electra.files import write_text
from electra.model.encoder import Encoder
from electra.model.heads import DiscriminatorHead
from electra.training.checkpoint import FILES, find_checkpoint, load_parameters, read_tensors
from electra.training.pretrained import kept_encoder, read_run_config, tensors_below

ROWS = 64
"""Lines scored at a time."""


class Score(NamedTuple):
    """What a line is worth."""

    text: str
    num_tokens: int
    pll: float
    """-sum over its tokens of E(x)_t: the logarithm of their probabilities given one another, but
    for a constant each, nats."""


def read_lines(path: Path) -> list[str]:
    """Return the lines of a UTF-8 file that hold text.

    Raises:
        UserError: It cannot be read, or has none.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}") from None
    lines = [line.strip() for line in lines if line.strip()]
    require(bool(lines), f"{path} holds no line of text")
    return lines


@torch.inference_mode()
def score_lines(
    run: Path, lines: Sequence[str], progress: Callable[[int, int], None] = lambda done, total: None
) -> list[Score]:
    """Return the score of each line, in their order.

    Args:
        run: A run folder whose objective is electric.
        lines: Texts, each no longer than the rows the run was trained on.
        progress: Is told the lines done, and all.

    Raises:
        UserError: It is no such run, or a line is too long or has no tokens.
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
    encoder, head = Encoder(config.model).eval(), DiscriminatorHead(config.model)
    _, checkpoint = find_checkpoint(run)
    tensors = read_tensors(checkpoint / FILES[0])
    load_parameters(encoder, kept_encoder(tensors))
    load_parameters(head, tensors_below("discriminator_head.", tensors))

    scores: dict[int, Score] = {}
    by_length = sorted(range(len(ids)), key=lambda number: len(ids[number]))
    for start in range(0, len(ids), ROWS):
        numbers = by_length[start : start + ROWS]
        rows = [
            torch.tensor([tokenizer.cls_id, *ids[number], tokenizer.sep_id]) for number in numbers
        ]
        input_ids_BL = nn.utils.rnn.pad_sequence(rows, True, tokenizer.pad_id)
        energy_BL = head(encoder(input_ids_BL, input_ids_BL != tokenizer.pad_id))
        for n, row_L in zip(numbers, energy_BL, strict=True):
            pll = -row_L[1 : len(ids[n]) + 1].sum().item()
            scores[n] = Score(lines[n], len(ids[n]), pll)
        progress(len(scores), len(ids))
    return [scores[n] for n in range(len(ids))]


def write_scores(path: Path, scores: Sequence[Score]) -> None:
    """Write a table of the scores, whole or not at all."""
    rows = [
        f"{each.pll:.4f}\t{each.num_tokens}\t{each.text.replace(chr(9), ' ')}\n" for each in scores
    ]
    write_text(path, "pll\ttokens\ttext\n" + "".join(rows))
