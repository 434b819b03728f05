"""A run in memory, asked for the pseudo-log-likelihoods (PLL) of sentences and of minimal pairs.

What a run scores with is the network that it keeps:

- Electric: minus the sum of the energies of the tokens, in one pass. Source: Clark et al. 2020,
  "Pre-Training Transformers as Energy-Based Cloze Models", section 4. The released code trains
  Electric but does not score with it.
- A masked language model: the sum of log p(token | all other tokens), a pass for each token, which
  is replaced by [MASK]. Source: Salazar et al. 2020, "Masked Language Model Scoring", section 2.
- A discriminator: the sum of log p(token is original), in one pass. A probability of original does
  not depend on how frequent a token is, so this compares sentences of about the same words only.

The generator of a run is a masked language model, too.

Shape suffixes: B rows, L positions, V vocabulary.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F

from electra.checkpoints.folder import SavedNetwork, read_networks
from electra.checkpoints.manifest import find_commit
from electra.errors import require
from electra.files import write_text
from electra.inference.network import LoadedNetwork, load_network
from electra.text.tables import read_table, read_text_lines
from electra.training.machine import prepare_machine

ROWS = 64
"""Rows of a batch: sentences, or sentences with one token masked."""
BREAKS = str.maketrans("\t\r", "  ")
"""The characters that a field of a table must not contain, and their replacements."""


class Score(NamedTuple):
    """The score of a sentence."""

    text: str
    num_tokens: int
    pll: float
    """Sum over the tokens, nats. Electric's is up to a constant for each token."""


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
    """A network with its head, loaded once for any number of requests."""

    predicts: Literal["tokens", "replaced", "energy"]
    """As in `method.objective.Network`."""
    network: LoadedNetwork
    origin: dict[str, Any]
    """Where the scores come from: run, step, network, what it predicts, device, commit."""

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
        network = self.network
        ids = network.tokenizer.encode_batch(list(sentences))
        for number, (sentence, row) in enumerate(zip(sentences, ids, strict=True), start=1):
            require(
                0 < len(row) <= network.max_tokens,
                f"line {number} has {len(row)} tokens; it must have 1 to {network.max_tokens}, as "
                f"the run's rows: {sentence[:40]!r}",
            )
        plls = [0.0] * len(ids)
        num_done, total = 0, sum(map(len, ids))
        for numbers, positions, rows in self._batches(ids):
            hidden_BLH = network.encode(rows)
            if self.predicts == "tokens":
                tokens_B = torch.tensor(
                    [ids[n][p] for n, p in zip(numbers, positions, strict=True)]
                )
                hidden_BH = hidden_BLH[torch.arange(len(rows)), torch.tensor(positions) + 1]
                log_probs_BV = network.log_probs(hidden_BH)
                found = log_probs_BV.gather(1, tokens_B.to(hidden_BH.device)[:, None])[:, 0]
            else:
                logit_BL = network.head(hidden_BLH)
                log_prob_BL = -logit_BL if self.predicts == "energy" else F.logsigmoid(-logit_BL)
                is_token_BL = torch.arange(log_prob_BL.shape[1]) < torch.tensor(
                    [[len(ids[n]) + 1] for n in numbers]
                )
                found = (log_prob_BL.cpu() * is_token_BL)[:, 1:].sum(dim=1)
            for n, value in zip(numbers, found.tolist(), strict=True):
                plls[n] += value
            num_done += (
                len(rows) if self.predicts == "tokens" else sum(len(ids[n]) for n in numbers)
            )
            progress(num_done, total)
        return [
            Score(text, len(row), pll) for text, row, pll in zip(sentences, ids, plls, strict=True)
        ]

    def _batches(
        self, ids: Sequence[Sequence[int]]
    ) -> Iterator[tuple[list[int], list[int], list[list[int]]]]:
        """Yield numbers of sentences, masked positions (0 if none is masked) and rows of ids."""
        by_length = sorted(range(len(ids)), key=lambda number: len(ids[number]))
        masked = self.predicts == "tokens"
        asked = [(n, p) for n in by_length for p in range(len(ids[n]) if masked else 1)]
        for start in range(0, len(asked), ROWS):
            numbers, positions = map(list, zip(*asked[start : start + ROWS], strict=True))
            rows = [list(ids[n]) for n in numbers]
            if masked:
                for row, position in zip(rows, positions, strict=True):
                    row[position] = self.network.tokenizer.mask_id
            yield numbers, positions, rows


class Pairs(NamedTuple):
    """Minimal pairs: sentences that differ in what makes one of them wrong."""

    good: list[str]
    bad: list[str]
    kinds: list[str]
    """Kind of each pair."""


def read_pairs(path: Path) -> Pairs:
    """Return the pairs of a table with sentence_good, sentence_bad and UID, the kind, as in BLiMP.

    Raises:
        UserError: The file cannot be read, or lacks a column.
    """
    table = read_table(path)
    columns = (table.column(name) for name in ("sentence_good", "sentence_bad", "UID"))
    return Pairs(*columns)


def compare_pairs(pairs: Pairs, good: Sequence[Score], bad: Sequence[Score]) -> dict[str, Any]:
    """Return the share of pairs whose good sentence has the higher PLL; equal ones count half.

    Returns:
        "accuracy", the mean over the kinds, and "kinds", which has each kind's number of pairs and
        accuracy. In BLiMP every kind has 1,000 pairs.

    Source: Warstadt et al. 2020, "BLiMP: The Benchmark of Linguistic Minimal Pairs for English".
    """
    wins: dict[str, list[float]] = {}
    for kind, of_good, of_bad in zip(pairs.kinds, good, bad, strict=True):
        win = 0.5 if of_good.pll == of_bad.pll else float(of_good.pll > of_bad.pll)
        wins.setdefault(kind, []).append(win)
    kinds = {
        kind: {"pairs": len(own), "accuracy": statistics.mean(own)} for kind, own in wins.items()
    }
    return {
        "accuracy": statistics.mean(each["accuracy"] for each in kinds.values()),
        "kinds": kinds,
    }


def load_scorer(run: Path, network: Literal["kept", "generator"] = "kept") -> Scorer:
    """Return the scorer of a run folder; its files are not read again.

    Device, precision and threads are those of the run's settings (`train`). A run that was trained
    on a CUDA device is scored on the CPU if there is none.

    Args:
        run: The run folder, or one of its checkpoints.
        network: The network that pre-training returns, or the generator.

    Raises:
        UserError: `run` is not a run folder, has no intact checkpoint, or has no network that
            scores.
    """
    networks = read_networks(run)
    config, objective = networks.config, networks.config.method.objective
    saved: SavedNetwork | None = networks.kept
    if network == "generator":
        saved = networks.masked_lm if networks.generator else None
    can_score = saved is not None and (saved.predicts != "tokens" or saved is networks.masked_lm)
    require(
        can_score,
        f"{run} was trained with method.objective={objective}, whose {network} network gives no "
        "probabilities of tokens given all others",
    )
    assert saved
    train = config.train
    machine = prepare_machine(
        "cpu" if train.device == "cpu" else "auto", train.precision, train.threads
    )
    tokenizer, length = networks.tokenizer, config.examples.sequence_length
    return Scorer(
        saved.predicts,
        load_network(saved, tokenizer, length, machine),
        {
            "run": run.name,
            "step": networks.step,
            "network": network,
            "predicts": saved.predicts,
            "device": machine.name,
            "commit": find_commit(),
        },
    )


def write_scores(path: Path, scores: Sequence[Score]) -> None:
    """Write a table of the scores, all or none; tabs and carriage returns become spaces."""
    rows = [
        f"{each.pll:.4f}\t{each.num_tokens}\t{each.text.translate(BREAKS)}\n" for each in scores
    ]
    write_text(path, "pll\ttokens\ttext\n" + "".join(rows))
