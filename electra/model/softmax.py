"""The softmax over the vocabulary: loss and samples of chosen positions in one pass.

`..._plain` is the definition; the other form computes the same faster. Loss, sample and gradient
use the same exponentials. Logits exist for CHUNK positions at a time. On a CPU the float32 work is
done on SLICE rows at a time, so that the rows stay in the cache; compiled or on a GPU, on a whole
chunk. docs/PERFORMANCE.md has timings.

Shape suffixes: M positions, C positions of a chunk, R positions of a slice, E embedding size,
N other tokens, U = 1 + N draws, V vocabulary, W vocabulary padded to whole blocks; K blocks in a
row, B columns of a block.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from electra.model.parts import runs_operations

CHUNK = 4096
"""Positions whose logits exist at a time."""

SLICE = 32
"""Positions of a chunk that a CPU computes at a time."""

BLOCK = 128
"""Columns of a block. Sampling finds the block first, then the column in the block."""


class Prediction(NamedTuple):
    """Loss and sampled tokens of the generator at the masked positions."""

    loss: Tensor
    """Weighted sum of the negative log-likelihood of the original tokens, nats."""
    sampled: Tensor
    """One token id sampled from the softmax at each position."""
    correct: Tensor
    """Whether the most probable token is the original token, bool."""
    others: Tensor | None = None
    """N further token ids at each position, sampled one after the other, each without the original
    token and those before it; None: the distribution has none."""
    first_BH: Tensor | None = None
    """The hidden states of [CLS], with their gradient; None: the distribution has none."""

    def view_as(self, positions: Tensor) -> "Prediction":
        """Return the prediction in the shape of `positions`."""
        sampled, correct = self.sampled.view_as(positions), self.correct.view_as(positions)
        others = None if self.others is None else self.others.unflatten(0, positions.shape)
        return Prediction(self.loss, sampled, correct, others)


def loss_and_sample_plain(
    features_ME: Tensor,
    table_VE: Tensor,
    bias_V: Tensor,
    targets_M: Tensor,
    weights_M: Tensor,
    uniform_MU: Tensor,
    *,
    temperature: float | Tensor = 1.0,
    disallow_correct: bool = False,
) -> Prediction:
    """Return loss, sampled tokens and hits, written as the mathematical definition.

    Args:
        features_ME: Features of the generator head, in the compute dtype.
        table_VE: Token embeddings, float32.
        bias_V: Output bias, float32.
        targets_M: Original token ids.
        weights_M: Weight of each position in the loss: 1 / number of masked positions, and 0 in
            unused slots.
        uniform_MU: Uniform numbers in [0, 1): (M,), or (M, 1 + N) to sample N others. The sampled
            token at position i is the first token whose cumulative probability exceeds the number
            (inverse transform sampling).
        temperature: Divides the logits before sampling; does not affect the loss.
        disallow_correct: Whether the original token is excluded from sampling.

    Source: section 2. Temperature and disallow_correct: run_pretraining.py and
    pretrain_helpers.sample_from_softmax, which apply the temperature first.
    """
    logits_MV = F.linear(features_ME, table_VE.to(features_ME.dtype)).float() + bias_V
    nll_M = F.cross_entropy(logits_MV, targets_M, reduction="none")
    loss = (nll_M * weights_M).sum()
    with torch.no_grad():
        draw_MV = logits_MV / temperature
        taken: list[Tensor] = []
        for uniform_M1 in uniform_MU.view(len(targets_M), -1).split(1, dim=1):
            if taken or disallow_correct:  # the first token may be the original, and drawn again
                gone_M1 = taken[-1] if len(taken) > 1 else targets_M[:, None]
                draw_MV.scatter_(1, gone_M1, -math.inf)
            cumulative_MV = draw_MV.softmax(dim=-1).cumsum(dim=-1)
            taken.append(find_first(cumulative_MV, uniform_M1 * cumulative_MV[:, -1:]))
        sampled_MU = torch.cat(taken, dim=1)
        correct_M = logits_MV.gather(1, targets_M[:, None]).squeeze(1) == logits_MV.amax(dim=-1)
    return Prediction(loss, sampled_MU[:, 0], correct_M, sampled_MU[:, 1:])


def loss_and_sample(
    features_ME: Tensor,
    table_VE: Tensor,
    bias_V: Tensor,
    targets_M: Tensor,
    weights_M: Tensor,
    uniform_MU: Tensor,
    *,
    temperature: float | Tensor = 1.0,
    disallow_correct: bool = False,
) -> Prediction:
    """Return loss, sampled tokens and hits in one pass; arguments as for `loss_and_sample_plain`.

    In float32 the losses of the two functions agree to 1e-6 relative, and the gradients to 1e-5 of
    their largest element. Sampled tokens are equal, unless a threshold is within rounding of a
    cumulative probability.
    """
    options, of_positions_M = (temperature, disallow_correct), (targets_M, weights_M, uniform_MU)
    of_softmax = features_ME, table_VE, bias_V
    loss, sampled_MU, correct_M = _LossAndSample.apply(*of_softmax, options, *of_positions_M)
    return Prediction(loss, sampled_MU[:, 0], correct_M, sampled_MU[:, 1:])


class _LossAndSample(torch.autograd.Function):
    """`loss_and_sample`; gradients are computed with the loss, and scaled in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        features_ME: Tensor,
        table_VE: Tensor,
        bias_V: Tensor,
        options: tuple[float | Tensor, bool],
        *per_position_M: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        needs_grad, vocab_size = any(ctx.needs_input_grad[:3]), len(table_VE)
        # Sampling needs whole blocks; the padding has probability 0, so it is never sampled. It
        # also aligns the rows of the logits: a GPU's matrix products are slow if rows are not
        # aligned, as with a vocabulary of 30,522.
        table_WE = F.pad(table_VE.to(features_ME.dtype), (0, 0, 0, -vocab_size % BLOCK))
        bias_W = F.pad(bias_V, (0, len(table_WE) - vocab_size), value=-math.inf)
        scores, grads_features, grad_bias_W = [], [], torch.zeros_like(bias_W)
        grad_table_WE: Tensor | None = None
        columns = [each.view(len(each), -1) for each in per_position_M]
        for features_CE, *chunk in split_rows(CHUNK, features_ME, *columns):
            logits_CW = F.linear(features_CE, table_WE)
            for logits_RW, *rows in split_to_compute(logits_CW, *chunk):
                *scored, grad_W = _score(
                    logits_RW, bias_W, *rows, options=options, needs_grad=needs_grad
                )
                scores.append(scored)
                if needs_grad:
                    grad_bias_W += grad_W
            if needs_grad:  # by now the logits hold their gradient
                grads_features.append(logits_CW @ table_WE)
                grad_WE = (logits_CW.T @ features_CE).float()
                grad_table_WE = grad_WE if grad_table_WE is None else grad_table_WE + grad_WE
        if grad_table_WE is not None:
            ctx.save_for_backward(
                torch.cat(grads_features), grad_table_WE[:vocab_size], grad_bias_W[:vocab_size]
            )
        losses, sampled, correct = zip(*scores, strict=True)
        sampled_MU = torch.cat(sampled).clamp(max=vocab_size - 1)
        outputs = torch.stack(losses).sum(), sampled_MU, torch.cat(correct)
        ctx.mark_non_differentiable(*outputs[1:])
        return outputs

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        grads, scale = ctx.saved_tensors, grad_outputs[0]
        return (*(each * scale.to(each.dtype) for each in grads), *[None] * 4)


def _score(
    logits_RW: Tensor,
    bias_W: Tensor,
    target_R1: Tensor,
    weight_R1: Tensor,
    uniform_RU: Tensor,
    *,
    options: tuple[float | Tensor, bool],
    needs_grad: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return loss, sampled tokens, hits and the bias's gradient; logits become their gradient."""
    exact_RW = logits_RW.float().add_(bias_W)  # an add of mixed dtypes takes twice as long
    target_logit_R1 = exact_RW.gather(1, target_R1)
    # Largest logit and sum of each block come from one pass over the logits where these operations
    # are compiled; the exponentials of a row would need its largest logit first, a second pass.
    blocks_RKB = exact_RW.view(len(exact_RW), -1, BLOCK)
    largest_RK1 = blocks_RKB.amax(dim=-1, keepdim=True)
    exp_RKB = blocks_RKB.sub_(largest_RK1).exp_()
    largest_R1 = largest_RK1.amax(dim=1)
    scale_RK = (largest_RK1.squeeze(2) - largest_R1).exp()
    sums_RK = exp_RKB.sum(dim=-1) * scale_RK
    sum_R1 = sums_RK.sum(dim=-1, keepdim=True)
    temperature, disallow_correct = options
    taken: list[Tensor] = []
    left_RKB, scale_of_left_RK = exp_RKB, scale_RK
    if isinstance(temperature, Tensor) or temperature != 1:
        left_RKB, scale_of_left_RK = exp_RKB ** (1 / temperature), scale_RK ** (1 / temperature)
    for uniform_R1 in uniform_RU.split(1, dim=1):
        if taken or disallow_correct:
            gone_R1 = taken[-1] if len(taken) > 1 else target_R1
            left_RKB = left_RKB.flatten(1).scatter(1, gone_R1, 0.0).view_as(exp_RKB)
        if left_RKB is not exp_RKB:
            sums_RK = left_RKB.sum(dim=-1) * scale_of_left_RK
        taken.append(_draw(left_RKB, scale_of_left_RK, sums_RK, uniform_R1))
    loss = ((sum_R1.log() + largest_R1 - target_logit_R1) * weight_R1).sum()
    sampled_RU = torch.cat(taken, dim=1)
    correct_R = (target_logit_R1 == largest_R1).squeeze(1)
    if not needs_grad:
        return loss, sampled_RU, correct_R, bias_W
    exp_RKB.mul_((scale_RK * (weight_R1 / sum_R1))[:, :, None])
    grad_RW = add_at(exact_RW, target_R1, -weight_R1)
    logits_RW.copy_(grad_RW)
    return loss, sampled_RU, correct_R, grad_RW.sum(dim=0)


def _draw(exp_RKB: Tensor, scale_RK: Tensor, sums_RK: Tensor, uniform_R1: Tensor) -> Tensor:
    """Return a token (R, 1) drawn in proportion to exp * scale, of which each block has a sum."""
    cumulative_RK = sums_RK.cumsum(dim=-1)  # over the whole row it would take longer
    threshold_R1 = uniform_R1 * cumulative_RK[:, -1:]
    block_R1 = find_first(cumulative_RK, threshold_R1)
    rest_R1 = threshold_R1 - (cumulative_RK.gather(1, block_R1) - sums_RK.gather(1, block_R1))
    block_RB = exp_RKB.gather(1, block_R1[:, :, None].expand(-1, -1, BLOCK)).squeeze(1)
    column_R1 = find_first((block_RB * scale_RK.gather(1, block_R1)).cumsum(dim=-1), rest_R1)
    return block_R1 * BLOCK + column_R1


def find_first(cumulative_RK: Tensor, threshold_R1: Tensor) -> Tensor:
    """Return the first place (R, 1) in each row whose cumulative weight exceeds the threshold."""
    found_R1 = torch.searchsorted(cumulative_RK, threshold_R1, right=True)
    return found_R1.clamp_(max=cumulative_RK.shape[1] - 1)


def add_at(x_RW: Tensor, column_R1: Tensor, amount_R1: Tensor) -> Tensor:
    """Return x with an amount added in one column of each row; may overwrite x."""
    if runs_operations(x_RW.device):
        return x_RW.scatter_add_(1, column_R1, amount_R1)
    # A choice, which a compiler fuses with what computes x; a scatter would write x out first.
    is_column_RW = torch.arange(x_RW.shape[1], device=x_RW.device) == column_R1
    return x_RW + is_column_RW * amount_R1


def split_rows(size: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Return tensors of one length in parts of at most `size` rows, as views."""
    return zip(*(each.split(size) for each in tensors), strict=True)


def split_to_compute(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Return tensors in the parts that are computed at a time."""
    return split_rows(SLICE if runs_operations(tensors[0].device) else CHUNK, *tensors)
