"""A model in memory, asked for the pseudo-log-likelihoods (PLL) of sentences and of minimal pairs.

A run, and likewise its export, scores with the network that pre-training returns:

- Electric: minus the sum of the energies of the tokens, in one pass. Source: Clark et al. 2020,
  "Pre-Training Transformers as Energy-Based Cloze Models", section 4. The released code trains
  Electric but does not score with it.
- A masked language model: the sum of log p(token | all other tokens), a pass for each token, which
  is replaced by [MASK]. Source: Salazar et al. 2020, "Masked Language Model Scoring", section 2.
- A causal language model: the sum of log p(token | the tokens before it), in one pass.
- A discriminator: the sum of log p(token is original), in one pass. A probability of original does
  not depend on how frequent a token is, so this compares sentences of about the same words only.

The generator of a run is also a masked language model. The corrector of cocolm gives log p(token)
by its softmax, in one pass, in which it reads the token itself.

Shape suffixes: B rows, L positions, V vocabulary.
"""

import itertools
import math
import reprlib
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F

from electra.checkpoints.folder import read_pretrained, read_run_config
from electra.checkpoints.manifest import find_commit
from electra.checkpoints.saved import SavedModel
from electra.errors import count_of, require
from electra.files import write_text
from electra.inference.network import PRECISION, LoadedNetwork, load_network
from electra.model.heads import GeneratorHead
from electra.model.likelihood import log_likelihood
from electra.processes import Tell, silent
from electra.text.table_files import read_table
from electra.training.machine import Machine, Precision, prepare_machine

BREAKS = str.maketrans("\t\r\n", "   ")
Asked = Literal["kept", "generator", "corrector"]


class Score(NamedTuple):
    """The score of a sentence."""

    text: str
    num_tokens: int
    pll: float
    """Sum over the tokens, nats; of a blank sentence NaN. Electric's is up to a constant for each
    token."""


@dataclass(frozen=True)
class Scorer:
    """A network with its head, loaded once for any number of requests."""

    predicts: Literal["tokens", "next", "replaced", "energy"]
    """As in `method.objective.Network`."""
    network: LoadedNetwork
    masks: bool
    """Whether a token that is asked for is replaced by [MASK]."""
    origin: dict[str, Any]
    """Where the scores come from: run, step, network, what it predicts, device, commit."""

    @torch.inference_mode()
    def score(self, sentences: Sequence[str], progress: Tell = silent) -> list[Score]:
        """Return the score of each sentence, in order; refuse one that is too long for a row.

        A sentence of which the vocabulary leaves nothing is also refused, unless it is blank.
        """
        network = self.network
        encoded = network.tokenizer.encode_batch(list(sentences))
        for sentence, ids in zip(sentences, encoded, strict=True):
            require(
                0 < len(ids) <= network.max_tokens or not sentence.strip(),
                f"the sentence {reprlib.repr(sentence)} has {count_of(len(ids), 'token')}; it must "
                f"have 1 to {network.max_tokens}, as the model's rows",
            )
        if not self.masks:
            ask = self._ask_softmax if self.predicts in ("tokens", "next") else self._ask
            plls = network.run(encoded, ask, progress)
        else:
            places = [(ids, place) for ids in encoded for place in range(len(ids))]
            found = network.run(places, self._ask_masked, progress, lambda each: len(each[0]))
            log_probs = iter(found)
            plls = [sum(itertools.islice(log_probs, len(ids))) for ids in encoded]
        plls = [pll if ids else math.nan for pll, ids in zip(plls, encoded, strict=True)]
        return list(map(Score, sentences, map(len, encoded), plls))

    def _ask(self, rows: list[list[int]]) -> list[float]:
        """Return the sum over the tokens of each row, without [CLS] and [SEP]."""
        logit_BL = self.network.judge(rows)
        log_prob_BL = -logit_BL if self.predicts == "energy" else F.logsigmoid(-logit_BL)
        pairs = zip(log_prob_BL.cpu(), rows, strict=True)
        return [log_prob_L[1 : 1 + len(row)].sum().item() for log_prob_L, row in pairs]

    def _ask_softmax(self, rows: list[list[int]]) -> list[float]:
        """Return the sum over the tokens of each row of log p, at the token or the one before."""
        network, (ids_BL, _) = self.network, self.network.pad(rows)
        assert isinstance(network.head, GeneratorHead)
        states_BLH = network.encode(rows)
        states_BKH = states_BLH[:, :-1] if self.predicts == "next" else states_BLH[:, 1:]
        log_prob_M, _ = log_likelihood(
            network.head(states_BKH).flatten(0, 1),
            *(network.encoder.embeddings.tokens.table, network.head.bias),
            ids_BL[:, 1:].flatten(),
        )
        pairs = zip(log_prob_M.view(len(rows), -1).cpu(), rows, strict=True)
        return [log_prob_K[: len(row)].sum().item() for log_prob_K, row in pairs]

    def _ask_masked(self, asked: list[tuple[list[int], int]]) -> list[float]:
        """Return log p of the token at a place of each row, given all others."""
        mask_id = self.network.tokenizer.mask_id
        rows = [[*ids[:place], mask_id, *ids[place + 1 :]] for ids, place in asked]
        places_B, tokens_B = torch.tensor([(place + 1, ids[place]) for ids, place in asked]).T
        hidden_BH = self.network.encode(rows)[torch.arange(len(rows)), places_B]
        log_probs_BV = self.network.log_probs(hidden_BH)
        tokens_B1 = tokens_B[:, None].to(log_probs_BV.device)
        return log_probs_BV.gather(1, tokens_B1)[:, 0].tolist()


class Pairs(NamedTuple):
    """Minimal pairs: sentences that differ in what makes one of them wrong, and their kinds."""

    good: list[str]
    bad: list[str]
    kinds: list[str]


def read_pairs(path: Path) -> Pairs:
    """Return the pairs of a table as BLiMP's: sentence_good, sentence_bad and UID, the kind."""
    table = read_table(path)
    pairs = Pairs(*map(table.column, ("sentence_good", "sentence_bad", "UID")))
    for number, both in enumerate(zip(pairs.good, pairs.bad, strict=True)):
        is_pair = all(map(str.strip, both))
        require(is_pair, f"{table.place(number)}: a sentence is blank; a pair has two")
    return pairs


def compare_pairs(pairs: Pairs, scores: Sequence[Score]) -> dict[str, Any]:
    """Return the share of pairs whose good sentence has the higher PLL; ties are not preferred.

    `scores` are those of the good sentences, then of the bad ones. The accuracy is the mean over
    the kinds. In BLiMP every kind has 1,000 pairs.

    Source: Warstadt et al. 2020, "BLiMP: The Benchmark of Linguistic Minimal Pairs for English".
    """
    wins: dict[str, list[bool]] = {}
    half = len(pairs.good)
    for kind, good, bad in zip(pairs.kinds, scores[:half], scores[half:], strict=True):
        wins.setdefault(kind, []).append(good.pll > bad.pll)
    ties = sum(good.pll == bad.pll for good, bad in zip(scores[:half], scores[half:], strict=True))
    kinds = {
        kind: {"pairs": len(own), "accuracy": statistics.mean(own)} for kind, own in wins.items()
    }
    accuracy = statistics.mean(each["accuracy"] for each in kinds.values())
    return {"pairs": half, "ties": ties, "accuracy": accuracy, "kinds": kinds}


def load_scorer(folder: Path, network: Asked = "kept", precision: Precision = PRECISION) -> Scorer:
    """Return the scorer of a run, a checkpoint or a Hugging Face folder, by one of its networks.

    Device and threads are those of the run's settings (`train`). A run that was trained on a CUDA
    device is scored on the CPU if there is none.
    """
    model = read_pretrained(folder)
    generator = model.masked_lm if model.generator else None
    corrector = model.networks.get("corrector")
    found = {"kept": model.kept, "generator": generator, "corrector": corrector}
    saved = found[network]
    masks = saved is not None and saved is model.masked_lm
    is_likelihood = saved is not None and saved.predicts not in ("", "tokens")
    require(
        masks or is_likelihood or (saved is not None and network == "corrector"),
        f"{folder}: its {network} network is missing, or gives no probabilities of tokens given "
        "all others",
    )
    assert saved
    assert saved.predicts
    machine = _choose_machine(model, precision)
    loaded = load_network(model, saved, machine)
    origin = {
        "run": model.folder.name,
        "step": model.step,
        "network": network,
        "predicts": saved.predicts,
        "device": machine.name,
        "commit": find_commit(),
    }
    return Scorer(saved.predicts, loaded, masks, origin)


def _choose_machine(model: SavedModel, precision: Precision) -> Machine:
    if model.step is None:
        return prepare_machine("auto", precision, 0)
    train = read_run_config(model.folder).train
    return prepare_machine("cpu" if train.device == "cpu" else "auto", precision, train.threads)


def write_scores(path: Path, scores: Sequence[Score]) -> None:
    """Write a table of the scores, all or none; tabs and line ends become spaces."""
    lines = (
        f"{f'{pll:.4f}' if number else ''}\t{number}\t{text.translate(BREAKS)}\n"
        for text, number, pll in scores
    )
    write_text(path, "pll\ttokens\ttext\n" + "".join(lines))
