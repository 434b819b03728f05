"""The paper's picture of one text: masked, filled by the generator, judged by the discriminator.

The steps are those of pre-training (method/replaced_token_detection.py), for one row and with every
number shown. Source: figure 2 of the ELECTRA paper.

Shape suffixes: L positions, M masked positions, V vocabulary.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from electra.errors import require
from electra.inference.ask import Candidate
from electra.inference.network import LoadedNetwork
from electra.method.masking import choose_positions


class PictureToken(NamedTuple):
    """A token of the text, and what became of it."""

    original: str
    """As in the vocabulary; a piece that continues a word begins with "##"."""
    start: int
    """Place of its first character in the text."""
    end: int
    is_masked: bool
    token: str
    """What the discriminator read: the generator's sample at a masked position."""
    candidates: list[Candidate]
    """The generator's most probable tokens, the best first; empty unless masked."""
    prob_original: float
    """The generator's probability of the original token; 0 unless masked."""
    prob_token: float
    """The generator's probability of its sample; 0 unless masked."""
    probs_replaced: list[float]
    """Each discriminator's probability that the token was replaced."""


class Picture(NamedTuple):
    """A text through generator and discriminators."""

    tokens: list[PictureToken]
    num_cut: int
    """Tokens at the end of the text that the model's rows do not hold."""


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

    Args:
        generator: None: nothing can be masked.
        discriminators: They judge the same corrupted tokens, so their vocabularies must be equal.
        text: Any text; tokens beyond the shortest of the networks' rows are cut off.
        mask_prob: Share of the tokens that are masked, [CLS] and [SEP] counted, as in the paper;
            0: none.
        positions: Numbers of the tokens that are masked, from 0, in place of `mask_prob`.
        seed: Seed of positions and samples. The sample of a token does not depend on which others
            are masked, except through what the generator reads.
        top: Number of candidates.

    Raises:
        UserError: The vocabularies differ, there is no such position, or no generator to fill it.
    """
    networks = [*discriminators, *([generator] if generator else [])]
    require(bool(networks), "a picture needs a generator or a discriminator")
    tokenizer = networks[0].tokenizer
    require(
        len({network.tokenizer.digest for network in networks}) == 1,
        "the models have different vocabularies: they cannot judge the same tokens",
    )
    require(0 <= mask_prob <= 1, f"mask_prob must lie in 0 to 1, not {mask_prob}")
    ids, offsets = tokenizer.encode_with_offsets(text)
    length = min([len(ids), *(network.max_tokens for network in networks)])
    original_L = torch.tensor(ids[:length], dtype=torch.int64)
    rng = torch.Generator().manual_seed(seed)
    place_L, sample_L = torch.rand(2, length + 2, generator=rng)
    if positions is None:
        masked_L = _choose(original_L, tokenizer.special_ids, mask_prob, place_L)
    else:
        wrong = [place for place in positions if not 0 <= place < length]
        require(not wrong, f"no token {wrong[:1]}: the text has the tokens 0 to {length - 1}")
        masked_L = torch.zeros(length, dtype=torch.bool)
        masked_L[list(positions)] = True
    require(
        generator is not None or not masked_L.any(),
        "the model has no generator, so no token can be masked and replaced",
    )
    places = masked_L.nonzero()[:, 0]
    corrupt_L = original_L.clone()
    log_probs_MV = torch.zeros(len(places), 0)
    if generator is not None and len(places):
        shown_L = original_L.masked_fill(masked_L, tokenizer.mask_id)
        hidden_LH = generator.encode([shown_L.tolist()])[0]
        log_probs_MV = generator.log_probs(hidden_LH[places.to(hidden_LH.device) + 1]).cpu()
        corrupt_L[places] = sample_tokens(log_probs_MV, sample_L[places])
    probs_LD = [
        list(each)
        for each in zip(*(_judge(network, corrupt_L) for network in discriminators), strict=True)
    ] or [[] for _ in range(length)]
    tokens = [
        PictureToken(original, start, end, False, token, [], 0.0, 0.0, probs)
        for original, (start, end), token, probs in zip(
            tokenizer.tokens(original_L.tolist()),
            offsets[:length],
            tokenizer.tokens(corrupt_L.tolist()),
            probs_LD,
            strict=True,
        )
    ]
    for place, log_probs_V in zip(places.tolist(), log_probs_MV, strict=True):
        best = log_probs_V.topk(min(top, tokenizer.vocab_size))
        candidates = map(Candidate, tokenizer.tokens(best.indices.tolist()), _exp(best.values))
        two = torch.stack([original_L[place], corrupt_L[place]])
        prob_original, prob_token = _exp(log_probs_V[two])
        tokens[place] = tokens[place]._replace(
            is_masked=True,
            candidates=list(candidates),
            prob_original=prob_original,
            prob_token=prob_token,
        )
    return Picture(tokens, len(ids) - length)


def _choose(
    ids_L: Tensor, special_ids: Sequence[int], mask_prob: float, uniform_L: Tensor
) -> Tensor:
    """Return which tokens are masked (L,), bool; at least one of a text, unless mask_prob is 0."""
    masked_L = torch.zeros(len(ids_L), dtype=torch.bool)
    if not mask_prob or not len(ids_L):
        return masked_L
    maskable_1L = torch.zeros(1, len(ids_L) + 2, dtype=torch.bool)
    maskable_1L[0, 1:-1] = ~torch.isin(ids_L, torch.tensor(special_ids))
    index_1S, chosen_1S = choose_positions(
        maskable_1L, torch.ones_like(maskable_1L), mask_prob, uniform_L[None]
    )
    masked_L[index_1S[chosen_1S] - 1] = True
    return masked_L


def sample_tokens(log_probs_MV: Tensor, uniform_M: Tensor) -> Tensor:
    """Return the ids (M,) at which the cumulative probabilities pass the uniform numbers."""
    cumulative_MV = log_probs_MV.double().exp().cumsum(dim=1)
    target_M1 = uniform_M.double()[:, None] * cumulative_MV[:, -1:]
    return torch.searchsorted(cumulative_MV, target_M1, right=True)[:, 0].clamp_(
        max=log_probs_MV.shape[1] - 1
    )


def _judge(network: LoadedNetwork, ids_L: Tensor) -> list[float]:
    logits_1L = network.head(network.encode([ids_L.tolist()]))
    return logits_1L.sigmoid()[0, 1 : 1 + len(ids_L)].tolist()


def _exp(log_probs: Tensor) -> list[float]:
    return log_probs.exp().tolist()
