"""The positions m, the rows with [MASK] at them, and what a network says there: section 2.

All that is random in a step but dropout is drawn here, for all its rows at once (`Masking.draw`),
so that a step computed in pieces, or by several processes, is the same step.

Shape suffixes: B rows, L positions, S slots for chosen positions in a row, V vocabulary.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from electra.config import MethodConfig
from electra.corpus.tokenizer import Tokenizer
from electra.model.batch import Batch, count_real, find_real
from electra.model.masked_lm import FixedDistribution, MaskedLM
from electra.model.softmax import Prediction

SPAN_WORDS = 3.8
"""Words in a span on average. Source: SpanBERT (Joshi et al. 2020), section 3.1; its lengths are
geometric cut at 10, ours are geometric."""


SHOWN = {"mask": (1.0, 0.0), "80/10/10": (0.8, 0.1), "85/15": (0.85, 0.0)}
"""Shares of the chosen positions that show [MASK], and a random token; the rest their own."""


Means = dict[str, tuple[Tensor, Tensor]]
"""Measures by name: the sum over some rows, and the number of its terms."""


class Draw(NamedTuple):
    """The positions m of each row, in a fixed number of slots, and a row's uniform numbers."""

    index_BS: Tensor
    """Position in the row; unused slots hold 0, the place of [CLS], which is never chosen."""
    chosen_BS: Tensor
    """Which slots are used, bool."""
    shown_BS: Tensor
    """Uniform in [0, 1): decides whether [MASK] is shown at the position."""
    random_BS: Tensor
    """Uniform in [0, 1): which random token is shown, where one is."""
    sample_BS: Tensor
    """Uniform in [0, 1): which token the generator draws."""

    def rows(self, rows: slice) -> "Draw":
        """Return the draw of some of the rows."""
        return Draw(*(tensor[rows] for tensor in self))


class Counts(NamedTuple):
    """What losses are divided by.

    Counted over all rows of a step, also where it is computed in pieces: a mean of means is not the
    mean.
    """

    num_chosen: Tensor
    num_real: Tensor
    """Tokens that are not padding."""
    num_maskable: Tensor
    """Tokens that are not special either."""


def replace(input_ids_BL: Tensor, draw: Draw, tokens_BS: Tensor | int) -> Tensor:
    """Return a copy of the ids with `tokens_BS` at the chosen positions."""
    index_BS = draw.index_BS.masked_fill(~draw.chosen_BS, 0)  # unused slots rewrite [CLS]
    tokens_BS = torch.where(draw.chosen_BS, tokens_BS, input_ids_BL[:, :1])
    return input_ids_BL.scatter(1, index_BS, tokens_BS)


def choose_positions(
    maskable_BL: Tensor,
    real_BL: Tensor,
    mask_prob: float,
    rng: torch.Generator,
    unit_BL: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Draw k positions of each row uniformly and without replacement among the maskable ones.

    k = round(mask_prob * real tokens of the row), [CLS] and [SEP] counted in, but at least 1, and
    at most what can be masked. Full rows use every slot.

    Args:
        maskable_BL: Where a position may be chosen, bool.
        real_BL: True at tokens, False at padding.
        mask_prob: Share of the real tokens.
        rng: Source of the choice.
        unit_BL: Number of the word or span that each position belongs to. Units are then drawn
            instead of positions, until there are k; the unit that would exceed k is left out,
            unless it is the only one.

    Returns:
        index_BS and chosen_BS of `Draw`.

    Source: section 2 and pretrain_helpers.mask, which draws with replacement, so that it masks
    fewer positions than it says.
    """
    num_slots = max(1, round(mask_prob * maskable_BL.shape[1]))
    wanted_B = (mask_prob * real_BL.sum(dim=1)).round().clamp(min=1)
    count_B = torch.minimum(wanted_B, maskable_BL.sum(dim=1)).clamp(max=num_slots)
    order_BL = torch.rand(maskable_BL.shape, generator=rng, device=maskable_BL.device)
    if unit_BL is not None:
        order_BL = order_BL.gather(1, unit_BL)
    index_BS = order_BL.masked_fill(~maskable_BL, 2.0).topk(num_slots, largest=False).indices
    slot_S = torch.arange(num_slots, device=maskable_BL.device)
    chosen_BS = slot_S < count_B[:, None]
    if unit_BL is not None:
        size_BL = torch.zeros_like(unit_BL).scatter_add_(1, unit_BL, maskable_BL.long())
        unit_BS = unit_BL.gather(1, index_BS)
        is_same_BSS = (unit_BS[:, :, None] == unit_BS[:, None, :]) & chosen_BS[:, None, :]
        whole_BS = chosen_BS & (is_same_BSS.sum(dim=2) == size_BL.gather(1, unit_BS))
        chosen_BS = torch.where(whole_BS.any(dim=1, keepdim=True), whole_BS, chosen_BS)
    return index_BS.masked_fill(~chosen_BS, 0), chosen_BS


def choose_positions_of_reference(
    maskable_BL: Tensor, real_BL: Tensor, mask_prob: float, rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw as many positions as `choose_positions`, but with replacement.

    Of 19 slots at length 128, 17.7 positions are distinct on average. Source:
    pretrain_helpers.mask, configure_pretraining.max_predictions_per_seq.
    """
    length = maskable_BL.shape[1]
    num_slots = max(1, int((mask_prob + 0.005) * length))
    wanted_B = (mask_prob * real_BL.sum(dim=1)).round().clamp(min=1, max=num_slots)
    num_maskable_B1 = maskable_BL.sum(dim=1, keepdim=True)
    uniform_BS = torch.rand((len(maskable_BL), num_slots), generator=rng, device=real_BL.device)
    rank_BS = (uniform_BS * num_maskable_B1).long().clamp_(max=length - 1)
    # The maskable positions of a row in their order, then the others.
    places_BL = (~maskable_BL).int().argsort(dim=1, stable=True)
    slot_S = torch.arange(num_slots, device=real_BL.device)
    chosen_BS = (slot_S < wanted_B[:, None]) & (num_maskable_B1 > 0)
    return places_BL.gather(1, rank_BS).masked_fill(~chosen_BS, 0), chosen_BS


class Masking(nn.Module):
    """Chooses positions, and puts [MASK] there.

    Args:
        config: mask_prob, mask_unit and shown_at_mask.
        tokenizer: Which ids are special, and which begin a word.
    """

    starts_word_V: Tensor

    def __init__(self, config: MethodConfig, tokenizer: Tokenizer):
        super().__init__()
        self.config = config
        by_mode = "mask" if config.mode == "paper" else "85/15"
        self.shown = by_mode if config.shown_at_mask == "auto" else config.shown_at_mask
        self.mask_id, self.vocab_size = tokenizer.mask_id, tokenizer.vocab_size
        self.never_masked_ids = (
            tokenizer.pad_id,
            tokenizer.cls_id,
            tokenizer.sep_id,
            tokenizer.mask_id,
        )
        self.register_buffer(
            "starts_word_V", torch.from_numpy(tokenizer.starts_word), persistent=False
        )

    def draw(self, batch: Batch, rng: torch.Generator) -> Draw:
        """Draw a step's random numbers from `rng`, which is on the device of the batch."""
        real_BL, maskable_BL = find_real(batch), self.find_maskable(batch)
        unit_BL = (
            None
            if self.config.mask_unit == "token"
            else self.find_units(batch.input_ids_BL, maskable_BL, rng)
        )
        if self.config.mode == "reference":
            index_BS, chosen_BS = choose_positions_of_reference(
                maskable_BL, real_BL, self.config.mask_prob, rng
            )
        else:
            index_BS, chosen_BS = choose_positions(
                maskable_BL, real_BL, self.config.mask_prob, rng, unit_BL
            )
        uniform_3BS = torch.rand((3, *index_BS.shape), generator=rng, device=index_BS.device)
        return Draw(index_BS, chosen_BS, *uniform_3BS)

    def count(self, batch: Batch, draw: Draw) -> Counts:
        """Return the counts of these rows."""
        num_maskable = self.find_maskable(batch).sum()
        return Counts(draw.chosen_BS.sum().clamp(min=1), count_real(batch), num_maskable)

    def find_maskable(self, batch: Batch) -> Tensor:
        """Return where a position may be chosen: at tokens that are not special."""
        maskable_BL = find_real(batch).clone()
        for token_id in self.never_masked_ids:
            maskable_BL &= batch.input_ids_BL != token_id
        return maskable_BL

    def find_units(self, input_ids_BL: Tensor, maskable_BL: Tensor, rng: torch.Generator) -> Tensor:
        """Return the number, from 0, of the word or span of words that each position is part of."""
        begins_BL = self.starts_word_V[input_ids_BL]
        if self.config.mask_unit == "span":
            begins_BL &= (
                torch.rand(begins_BL.shape, generator=rng, device=begins_BL.device) < 1 / SPAN_WORDS
            )
        # A special token is on its own, and so is what stands behind it.
        begins_BL |= ~maskable_BL
        begins_BL[:, 1:] |= ~maskable_BL[:, :-1]
        begins_BL[:, 0] = True
        return begins_BL.cumsum(dim=1) - 1

    def mask(self, input_ids_BL: Tensor, draw: Draw) -> Tensor:
        """Return x_masked: [MASK], or what `shown_at_mask` says, at the chosen positions."""
        mask_share, random_share = SHOWN[self.shown]
        is_mask_BS = draw.chosen_BS & (draw.shown_BS < mask_share)
        masked_ids_BL = replace(input_ids_BL, draw._replace(chosen_BS=is_mask_BS), self.mask_id)
        if not random_share:
            return masked_ids_BL
        is_random_BS = draw.chosen_BS & ~is_mask_BS & (draw.shown_BS < mask_share + random_share)
        random_BS = (draw.random_BS * self.vocab_size).long().clamp_(max=self.vocab_size - 1)
        return replace(masked_ids_BL, draw._replace(chosen_BS=is_random_BS), random_BS)

    def corrupt(self, input_ids_BL: Tensor, draw: Draw, sampled_BS: Tensor) -> Tensor:
        """Return x_corrupt: the generator's draws at the chosen positions.

        In reference mode, where a position may be chosen twice, two draws there become the mean of
        their ids, rounded down: some token that nobody drew. Source: pretrain_helpers
        .scatter_update.
        """
        if self.config.mode == "paper":
            return replace(input_ids_BL, draw, sampled_BS)
        zeros_BL = torch.zeros_like(input_ids_BL)
        index_BS = draw.index_BS.masked_fill(~draw.chosen_BS, 0)
        times_BL = zeros_BL.scatter_add(1, index_BS, draw.chosen_BS.long())
        sum_BL = zeros_BL.scatter_add(1, index_BS, sampled_BS * draw.chosen_BS)
        return torch.where(times_BL > 0, sum_BL // times_BL.clamp(min=1), input_ids_BL)


def predict_masked(
    network: MaskedLM | FixedDistribution,
    masking: Masking,
    batch: Batch,
    draw: Draw,
    counts: Counts,
) -> tuple[Prediction, Means]:
    """Return what a network says at the chosen positions of the masked rows, and its measures."""
    masked = batch._replace(input_ids_BL=masking.mask(batch.input_ids_BL, draw))
    prediction = predict(network, masked, batch, draw, counts)
    return prediction, measure_cloze(prediction, batch, draw, counts)


def predict(
    network: MaskedLM | FixedDistribution,
    shown: Batch,
    batch: Batch,
    draw: Draw,
    counts: Counts,
) -> Prediction:
    """Return what a network that is shown some rows says of the original ones at m."""
    prediction: Prediction = network(
        shown,
        draw.index_BS,
        batch.input_ids_BL.gather(1, draw.index_BS),
        draw.chosen_BS / counts.num_chosen,
        draw.sample_BS,
    )
    return prediction


def measure_cloze(prediction: Prediction, batch: Batch, draw: Draw, counts: Counts) -> Means:
    """Return the mean loss, the accuracy, and the accuracy of the draws."""
    num_chosen = draw.chosen_BS.sum()
    is_original_BS = prediction.sampled == batch.input_ids_BL.gather(1, draw.index_BS)
    return {
        "mlm_loss": (prediction.loss.detach() * counts.num_chosen, num_chosen),
        "mlm_accuracy": ((prediction.correct & draw.chosen_BS).sum(), num_chosen),
        "sampled_accuracy": ((is_original_BS & draw.chosen_BS).sum(), num_chosen),
    }
