"""The paper's picture of one text: masked, filled by the generator, judged by the discriminator.

The steps are those of pre-training (method/replaced_token_detection.py), for one row and with every
number shown. Source: figure 2 of the ELECTRA paper.

Shape suffixes: L positions, M masked positions, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from electra.errors import count_of, require
from electra.inference.ask import Candidate, list_best
from electra.inference.network import LoadedNetwork
from electra.method.masking import choose_positions
from electra.model.softmax import find_first


@dataclass(frozen=True)
class PictureToken:
    """A token of the text with its place, and what became of it."""

    original: str
    """As in the vocabulary; a piece that continues a word begins with "##"."""
    start: int
    end: int
    is_masked: bool
    token: str
    """The discriminator's input: the generator's sample at a masked position."""
    candidates: list[Candidate]
    """The generator's most probable tokens, the best first; empty unless masked."""
    prob_original: float
    """The generator's probability; 0 unless masked."""
    prob_token: float
    probs_replaced: list[float]
    """Each discriminator's probability that the token was replaced."""


class Picture(NamedTuple):
    """A text through generator and discriminators; tokens at its end may be cut."""

    tokens: list[PictureToken]
    num_cut: int


@torch.inference_mode()
def draw_picture(
    generator: LoadedNetwork | None,
    discriminators: Sequence[LoadedNetwork],
    text: str,
    *,
    mask_prob: float = 0.15,
    positions: Sequence[int] | None = None,
    seed: int = 0,
    top: int = 5,
) -> Picture:
    """Return what generator and discriminators make of a text; a function of its arguments.

    Tokens beyond the shortest of the networks' rows are cut off. Among the others, `mask_prob` are
    masked, [CLS] and [SEP] counted, as in the paper, or those at `positions`, from 0. The sample of
    a token does not depend on which others are masked, except through what the generator reads.
    """
    networks = [*discriminators, *([generator] if generator else [])]
    require(bool(networks), "a picture needs a generator or a discriminator")
    tokenizer = networks[0].tokenizer
    is_one = len({network.tokenizer.digest for network in networks}) == 1
    require(is_one, "the models have different vocabularies: they cannot judge the same tokens")
    require(0 <= mask_prob <= 1, f"mask_prob must be 0 to 1, not {mask_prob}")
    ids, offsets = tokenizer.encode_with_offsets(text)
    length = min([len(ids), *(network.max_tokens for network in networks)])
    original_L = torch.tensor(ids[:length], dtype=torch.int64)
    place_L, sample_L = torch.rand(2, length + 2, generator=torch.Generator().manual_seed(seed))
    if positions is None:
        places = _choose(original_L, [*tokenizer.never_in_text], mask_prob, place_L)
    else:
        places = sorted(set(positions))
        wrong = [place for place in positions if not 0 <= place < length]
        require(
            not wrong, f"no token {wrong[:1]}: the text has {count_of(length, 'token')}, from 0"
        )
    can_fill = generator is not None or not places
    require(can_fill, "the model has no generator, so no token can be masked and replaced")
    corrupt_L = original_L
    guesses: dict[int, tuple[list[Candidate], float, float]] = {}
    if generator is not None and places:
        corrupt_L, guesses = _fill(generator, original_L, places, sample_L, top)
    probs_DL = [_judge(network, corrupt_L) for network in discriminators]
    originals, shown = (tokenizer.tokens(each_L.tolist()) for each_L in (original_L, corrupt_L))
    tokens = [
        PictureToken(
            *(originals[place], *offsets[place], place in guesses, shown[place]),
            *guesses.get(place, ([], 0.0, 0.0)),
            [probs_L[place] for probs_L in probs_DL],
        )
        for place in range(length)
    ]
    return Picture(tokens, len(ids) - length)


def _choose(
    ids_L: Tensor, special_ids: Sequence[int], mask_prob: float, uniform_L: Tensor
) -> list[int]:
    """Return the places of the masked tokens; at least one of a text, unless mask_prob is 0."""
    if not mask_prob or not len(ids_L):
        return []
    maskable_1L = torch.zeros(1, len(ids_L) + 2, dtype=torch.bool)
    maskable_1L[0, 1:-1] = ~torch.isin(ids_L, torch.tensor(special_ids))
    index_1S, chosen_1S = choose_positions(
        maskable_1L, torch.ones_like(maskable_1L), mask_prob, uniform_L[None]
    )
    return (index_1S[chosen_1S] - 1).sort().values.tolist()


def _fill(
    generator: LoadedNetwork, original_L: Tensor, places: list[int], sample_L: Tensor, top: int
) -> tuple[Tensor, dict[int, tuple[list[Candidate], float, float]]]:
    """Return the corrupted ids (L,), and the `PictureToken` of each masked place."""
    masked_L = original_L.index_fill(0, torch.tensor(places), generator.tokenizer.mask_id)
    hidden_LH = generator.encode([masked_L.tolist()])[0]
    log_probs_MV = generator.log_probs(hidden_LH[[place + 1 for place in places]]).cpu()
    corrupt_L = original_L.clone()
    corrupt_L[places] = sample_tokens(log_probs_MV, sample_L[places])
    two_M2 = torch.stack([original_L[places], corrupt_L[places]], dim=1)
    probs_M2 = log_probs_MV.gather(1, two_M2).exp().tolist()
    candidates = list_best(generator, log_probs_MV, top)
    told = zip(places, candidates, probs_M2, strict=True)
    return corrupt_L, {place: (best, *probs) for place, best, probs in told}


def sample_tokens(log_probs_MV: Tensor, uniform_M: Tensor) -> Tensor:
    """Return the ids (M,) at which the cumulative probabilities pass the uniform numbers."""
    cumulative_MV = log_probs_MV.double().exp().cumsum(dim=1)
    target_M1 = uniform_M.double()[:, None] * cumulative_MV[:, -1:]
    return find_first(cumulative_MV, target_M1)[:, 0]


def _judge(network: LoadedNetwork, ids_L: Tensor) -> list[float]:
    logits_1L = network.judge([ids_L.tolist()])
    return logits_1L.sigmoid()[0, 1 : 1 + len(ids_L)].tolist()
