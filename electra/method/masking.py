"""Masked positions m, the masked rows, and a network's predictions at m.

`Masking` draws all random numbers of a step except dropout, for all rows of the step at once.
Gradient accumulation and data parallelism therefore do not change the step.

Source: section 2.

Shape suffixes: B rows, L positions, S slots for masked positions in a row, V vocabulary.
"""

import math
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from electra.method.config import MethodConfig
from electra.model.batch import Batch, count_real, find_real
from electra.model.softmax import Prediction, loss_and_sample

SPAN_WORDS = 3.8
"""Mean span length, words. SpanBERT clips its geometric lengths at 10; here they are not clipped.
Source: SpanBERT (Joshi et al. 2020), section 3.1."""
SHOWN = {"mask": (1.0, 0.0), "80/10/10": (0.8, 0.1), "85/15": (0.85, 0.0)}
"""Shares of the masked positions that show [MASK] and a random token; the rest show the original
token."""
Means = dict[str, tuple[Tensor, Tensor]]
"""Measures by name: the sum over some rows, and the number of terms of the sum."""


class Vocabulary(NamedTuple):
    """The facts about a vocabulary that the method needs. Default ids: those of our own ones."""

    starts_word_V: Tensor
    """Whether the token of each id begins a word, bool."""
    mask_id: int = 4
    never_masked_ids: Collection[int] = (0, 2, 3, 4)
    """Ids of [PAD], [CLS], [SEP] and [MASK]."""
    counts_V: Tensor | None = None
    """Number of occurrences of each token in the corpus; None: they were not counted."""

    @property
    def frequencies_V(self) -> Tensor:
        """Number of occurrences of each token, or ones if they were not counted."""
        return torch.ones(self.size) if self.counts_V is None else self.counts_V

    @property
    def size(self) -> int:
        """Number of tokens."""
        return len(self.starts_word_V)


class Draw(NamedTuple):
    """The masked positions m of each row, in a fixed number of slots, and uniform numbers."""

    index_BS: Tensor
    """Position in the row. Unused slots hold 0, the position of [CLS], which is never masked."""
    chosen_BS: Tensor
    """Which slots are used, bool."""
    shown_BS: Tensor
    """Uniform in [0, 1): selects [MASK], a random token or the original as the input."""
    random_BS: Tensor
    """Uniform in [0, 1): selects the random token, where one is shown."""
    sample_BS: Tensor
    """Uniform in [0, 1): selects the token that is sampled from the generator. (B, S, 1 + N) for an
    objective that samples N others."""
    crop_B: Tensor | None = None
    """Uniform in [0, 1): selects where the crop of a row begins. None: nothing is cropped."""

    def rows(self, rows: slice) -> "Draw":
        """Return the draw of some of the rows."""
        tensors: Any = (None if tensor is None else tensor[rows] for tensor in self)
        return Draw(*tensors)


class Counts(NamedTuple):
    """Denominators of the losses, counted over all rows of a step.

    With gradient accumulation every micro-batch is divided by the counts of the whole step, because
    a mean of micro-batch means is not the mean over the step.
    """

    num_chosen: Tensor
    """Masked positions, at least 1."""
    num_real: Tensor
    """Tokens that are not padding."""
    num_maskable: Tensor
    """Tokens that are neither padding nor special tokens."""
    num_rows: Tensor
    """Rows."""


def replace(input_ids_BL: Tensor, draw: Draw, tokens_BS: Tensor | int) -> Tensor:
    """Return a copy of the ids (B, L) with `tokens_BS` at the masked positions."""
    index_BS = draw.index_BS.masked_fill(~draw.chosen_BS, 0)  # unused slots rewrite [CLS]
    tokens_BS = torch.where(draw.chosen_BS, tokens_BS, input_ids_BL[:, :1])
    return input_ids_BL.scatter(1, index_BS, tokens_BS)


def count_slots(mask_prob: float, length: int, mode: str = "paper") -> int:
    """Return the number of slots for masked positions in a row; `mode` as in `MethodConfig`.

    Source: reference mode: configure_pretraining.max_predictions_per_seq.
    """
    if mode == "reference":
        return max(1, int((mask_prob + 0.005) * length))
    return max(1, round(mask_prob * length))


def choose_positions(
    maskable_BL: Tensor,
    real_BL: Tensor,
    mask_prob: float,
    uniform_BL: Tensor,
    unit_BL: Tensor | None = None,
    *,
    cuts: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return k masked positions of each row, drawn uniformly without replacement.

    k = round(mask_prob * real tokens of the row), where [CLS] and [SEP] count as real tokens. k is
    at least 1 and at most the number of maskable positions. Full rows use every slot.

    Args:
        maskable_BL: Which positions may be masked, bool.
        real_BL: True at tokens, False at padding.
        mask_prob: Share of the real tokens to mask.
        uniform_BL: Uniform numbers in [0, 1).
        unit_BL: Number of the word or span of each position. Whole units are then drawn until k
            positions are masked. The unit that would exceed k is left out, unless it is the only
            unit.
        cuts: Whether that unit is cut instead, so that its beginning is masked, as in SpanBERT.

    Returns:
        index_BS and chosen_BS of `Draw`.

    Source: section 2 and pretrain_helpers.mask. The latter draws with replacement and therefore
    masks fewer distinct positions than k.
    """
    num_slots = count_slots(mask_prob, maskable_BL.shape[1])
    wanted_B = (mask_prob * real_BL.sum(dim=1)).round().clamp(min=1)
    count_B = torch.minimum(wanted_B, maskable_BL.sum(dim=1)).clamp(max=num_slots)
    order_BL = uniform_BL if unit_BL is None else uniform_BL.gather(1, unit_BL)
    if cuts:  # what is left of the last unit is its beginning
        place_L = torch.arange(order_BL.shape[1], device=order_BL.device)
        order_BL = order_BL.double() + place_L * 2.0**-40
    index_BS = order_BL.masked_fill(~maskable_BL, 2.0).topk(num_slots, largest=False).indices
    slot_S = torch.arange(num_slots, device=maskable_BL.device)
    chosen_BS = slot_S < count_B[:, None]
    if unit_BL is not None and not cuts:
        size_BL = torch.zeros_like(unit_BL).scatter_add_(1, unit_BL, maskable_BL.long())
        unit_BS = unit_BL.gather(1, index_BS)
        is_same_BSS = (unit_BS[:, :, None] == unit_BS[:, None, :]) & chosen_BS[:, None, :]
        whole_BS = chosen_BS & (is_same_BSS.sum(dim=2) == size_BL.gather(1, unit_BS))
        chosen_BS = torch.where(whole_BS.any(dim=1, keepdim=True), whole_BS, chosen_BS)
    return index_BS.masked_fill(~chosen_BS, 0), chosen_BS


def choose_positions_of_reference(
    maskable_BL: Tensor, real_BL: Tensor, mask_prob: float, uniform_BS: Tensor
) -> tuple[Tensor, Tensor]:
    """Return k masked positions of each row, drawn uniformly with replacement.

    Arguments are those of `choose_positions`; there is a uniform number for each slot, and k may
    exceed the maskable positions. At length 128, 19 slots hold 17.7 distinct positions on average.

    Source: pretrain_helpers.mask.
    """
    num_slots = uniform_BS.shape[1]
    wanted_B = (mask_prob * real_BL.sum(dim=1)).round().clamp(min=1, max=num_slots)
    num_maskable_B1 = maskable_BL.sum(dim=1, keepdim=True)
    rank_BS = (uniform_BS * num_maskable_B1).long()
    # The maskable positions of a row in row order, followed by all other positions.
    places_BL = (~maskable_BL).int().argsort(dim=1, stable=True)
    slot_S = torch.arange(num_slots, device=real_BL.device)
    chosen_BS = (slot_S < wanted_B[:, None]) & (num_maskable_B1 > 0)
    return places_BL.gather(1, rank_BS).masked_fill(~chosen_BS, 0), chosen_BS


class Masking(nn.Module):
    """Chooses the masked positions and builds the masked and the corrupted rows.

    The settings that it reads are objective, mask_prob, mask_unit, shown_at_mask and mode.
    """

    starts_word_V: Tensor
    num_others = 0
    """N, the other tokens that are sampled at each masked position."""
    crops = False
    """Whether the objective also reads a crop of each row."""

    def __init__(self, config: MethodConfig, vocabulary: Vocabulary):
        super().__init__()
        self.config = config
        in_paper = "80/10/10" if config.objective == "mlm" else "mask"
        by_mode = in_paper if config.mode == "paper" else "85/15"
        self.shown = by_mode if config.shown_at_mask == "auto" else config.shown_at_mask
        self.mask_id, self.vocab_size = vocabulary.mask_id, vocabulary.size
        self.never_masked_ids = vocabulary.never_masked_ids
        self.register_buffer("starts_word_V", vocabulary.starts_word_V, persistent=False)

    def draw(self, batch: Batch, rng: torch.Generator) -> tuple[Draw, Counts]:
        """Return what `choose` returns, with uniform numbers from a random number generator."""
        return self.choose(batch, self.draw_uniform(batch, rng))

    def draw_rows(self, batch: Batch, seeds: Sequence[int]) -> tuple[Draw, Counts]:
        """Return what `draw` returns, but that each row has the random numbers of its own seed."""
        shapes, rng = self._shapes(1, batch.input_ids_BL.shape[1]), torch.Generator()
        sizes = [math.prod(shape) for shape in shapes]
        rows = [torch.rand(sum(sizes), generator=rng.manual_seed(seed)) for seed in seeds]
        parts = zip(*(row.split(sizes) for row in rows), strict=True)
        uniform = [
            torch.cat([each.view(shape) for each in part], dim=shape.index(1)).flatten()
            for part, shape in zip(parts, shapes, strict=True)
        ]
        return self.choose(batch, torch.cat(uniform).to(batch.input_ids_BL.device))

    def draw_uniform(
        self, batch: Batch, rng: torch.Generator, part: tuple[int, int] = (0, 1)
    ) -> Tensor:
        """Return uniform numbers in [0, 1) for `choose`, of rows that are one part of a step.

        `part` is (number of this part, number of parts); all parts have equally many rows. Numbers
        are drawn for all rows, so that those of a row do not depend on the parts, and in one call,
        so that the rest of a draw can be compiled.
        """
        (B, L), (number, num_parts) = batch.input_ids_BL.shape, part
        shapes = self._shapes(B * num_parts, L)
        sizes = [math.prod(shape) for shape in shapes]
        uniform = torch.rand(sum(sizes), generator=rng, device=batch.input_ids_BL.device)
        if num_parts == 1:
            return uniform
        views = (each.view(shape) for each, shape in zip(uniform.split(sizes), shapes, strict=True))
        own = [each.narrow(max(0, each.ndim - 2), number * B, B).flatten() for each in views]
        return torch.cat(own)

    def choose(self, batch: Batch, uniform: Tensor) -> tuple[Draw, Counts]:
        """Return masked positions and uniform numbers of rows, and their counts."""
        real_BL, maskable_BL = find_real(batch), self.find_maskable(batch)
        shapes = self._shapes(*batch.input_ids_BL.shape)
        parts = uniform.split([math.prod(shape) for shape in shapes])
        views = [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
        crop_B = views.pop() if self.crops else None
        *of_spans, positions, slots = views
        unit_BL = (
            None
            if self.config.mask_unit == "token"
            else self.find_units(batch.input_ids_BL, maskable_BL, *of_spans)
        )
        if self.config.mode == "reference":
            index_BS, chosen_BS = choose_positions_of_reference(
                maskable_BL, real_BL, self.config.mask_prob, positions
            )
        else:
            index_BS, chosen_BS = choose_positions(
                *(maskable_BL, real_BL, self.config.mask_prob, positions, unit_BL),
                cuts=self.config.mask_unit == "span",
            )
        shown_BS, random_BS, *samples = slots
        sample_BS = torch.stack(samples, dim=-1) if self.num_others else samples[0]
        draw = Draw(index_BS, chosen_BS, shown_BS, random_BS, sample_BS, crop_B)
        return draw, self.count(batch, draw)

    def _shapes(self, B: int, L: int) -> list[tuple[int, ...]]:
        """Return the shapes of uniform numbers: of spans if masked, positions, slots, crops."""
        S = count_slots(self.config.mask_prob, L, self.config.mode)
        of_spans = [(B, L)] if self.config.mask_unit == "span" else []
        of_slots = (3 + self.num_others, B, S)
        of_crops = [(B,)] if self.crops else []
        return [*of_spans, (B, S if self.config.mode == "reference" else L), of_slots, *of_crops]

    def count(self, batch: Batch, draw: Draw) -> Counts:
        """Return the denominators of the losses over these rows."""
        num_chosen, num_maskable = draw.chosen_BS.sum(), self.find_maskable(batch).sum()
        num_rows = torch.full_like(num_chosen, len(draw.chosen_BS))
        return Counts(num_chosen.clamp(min=1), count_real(batch), num_maskable, num_rows)

    def find_maskable(self, batch: Batch) -> Tensor:
        """Return which positions may be masked (B, L), bool: all but padding and special tokens."""
        maskable_BL = find_real(batch).clone()
        for token_id in self.never_masked_ids:
            maskable_BL &= batch.input_ids_BL != token_id
        return maskable_BL

    def find_units(
        self, input_ids_BL: Tensor, maskable_BL: Tensor, uniform_BL: Tensor | None = None
    ) -> Tensor:
        """Return the number of each position's word (B, L), or span, which `uniform_BL` ends."""
        begins_BL = self.starts_word_V[input_ids_BL]
        if uniform_BL is not None:
            begins_BL &= uniform_BL < 1 / SPAN_WORDS
        # A special token is a unit by itself, and the token after it begins a new unit.
        begins_BL |= ~maskable_BL
        begins_BL[:, 1:] |= ~maskable_BL[:, :-1]
        return begins_BL.cumsum(dim=1) - 1

    def mask(self, input_ids_BL: Tensor, draw: Draw) -> Tensor:
        """Return x_masked (B, L): the rows with the input of `shown_at_mask` at m."""
        mask_share, random_share = SHOWN[self.shown]
        is_mask_BS = draw.chosen_BS & (draw.shown_BS < mask_share)
        masked_ids_BL = replace(input_ids_BL, draw._replace(chosen_BS=is_mask_BS), self.mask_id)
        if not random_share:
            return masked_ids_BL
        is_random_BS = draw.chosen_BS & ~is_mask_BS & (draw.shown_BS < mask_share + random_share)
        random_BS = (draw.random_BS * self.vocab_size).long()
        return replace(masked_ids_BL, draw._replace(chosen_BS=is_random_BS), random_BS)

    def corrupt(self, input_ids_BL: Tensor, draw: Draw, sampled_BS: Tensor) -> Tensor:
        """Return x_corrupt (B, L): the rows with the sampled tokens at the masked positions.

        In reference mode a position may be drawn more than once. The corrupted id there is the mean
        of the sampled ids, rounded down, and so may be a token that was not sampled.

        Source: section 2; reference mode: pretrain_helpers.scatter_update.
        """
        if self.config.mode == "paper":
            return replace(input_ids_BL, draw, sampled_BS)
        zeros_BL = torch.zeros_like(input_ids_BL)
        times_BL = zeros_BL.scatter_add(1, draw.index_BS, draw.chosen_BS.long())
        sum_BL = zeros_BL.scatter_add(1, draw.index_BS, sampled_BS * draw.chosen_BS)
        return torch.where(times_BL > 0, sum_BL // times_BL.clamp(min=1), input_ids_BL)


def predict_masked(
    network: nn.Module, masking: Masking, batch: Batch, draw: Draw, counts: Counts
) -> tuple[Prediction, Means]:
    """Return a network's prediction at the masked positions of x_masked, and its measures."""
    masked = batch._replace(input_ids_BL=masking.mask(batch.input_ids_BL, draw))
    prediction = predict_chosen(network, masked, batch, draw, counts)
    return prediction, measure_cloze(prediction, batch, draw, counts)


def predict_chosen(
    network: nn.Module, shown: Batch, batch: Batch, draw: Draw, counts: Counts
) -> Prediction:
    """Return a network's prediction of the original tokens at the masked positions."""
    prediction: Prediction = network(
        shown,
        draw.index_BS,
        batch.input_ids_BL.gather(1, draw.index_BS),
        draw.chosen_BS / counts.num_chosen,
        draw.sample_BS,
    )
    return prediction


@torch.no_grad()
def sample_chosen(
    features_ME: Tensor, softmax: tuple[Tensor, Tensor], batch: Batch, draw: Draw, counts: Counts
) -> Prediction:
    """Return the prediction of a softmax that reads these features at the masked positions."""
    targets_BS = batch.input_ids_BL.gather(1, draw.index_BS)
    at_each = targets_BS, draw.chosen_BS / counts.num_chosen, draw.sample_BS
    prediction = loss_and_sample(features_ME, *softmax, *(each.flatten() for each in at_each))
    return prediction.view_as(draw.index_BS)


def measure_cloze(prediction: Prediction, batch: Batch, draw: Draw, counts: Counts) -> Means:
    """Return loss, accuracy and accuracy of the sampled tokens over the masked positions."""
    num_chosen = draw.chosen_BS.sum()
    is_original_BS = prediction.sampled == batch.input_ids_BL.gather(1, draw.index_BS)
    return {
        "mlm_loss": (prediction.loss.detach() * counts.num_chosen, num_chosen),
        "mlm_accuracy": ((prediction.correct & draw.chosen_BS).sum(), num_chosen),
        "sampled_accuracy": ((is_original_BS & draw.chosen_BS).sum(), num_chosen),
    }
