"""The generator's softmax over the vocabulary: loss, sample and accuracy from one set of logits.

Shape suffixes: M positions, E embedding size, V vocabulary.

`loss_and_sample_plain` is the definition. `loss_and_sample` computes the same in one pass: the
exponentials that the loss needs are those that the sample and the gradient need, logits exist for
`CHUNK` positions at a time, and float32 work is done on `SLICE` rows so that it stays in the cache.
docs/PERFORMANCE.md has what it gives.
"""

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

CHUNK = 2048
SLICE = 32
BLOCK = 128


class Prediction(NamedTuple):
    """What the generator says at the chosen positions."""

    loss: Tensor
    """Weighted sum of the originals' negative log-likelihood, nats; the only output with a
    gradient."""
    sampled: Tensor
    """One token id drawn from the softmax at each position."""
    correct: Tensor
    """Whether the likeliest token is the original, bool."""

    def view_as(self, positions: Tensor) -> "Prediction":
        """Return it with sampled and correct in the shape of `positions`."""
        return Prediction(
            self.loss, self.sampled.view_as(positions), self.correct.view_as(positions)
        )


def loss_and_sample_plain(
    features_ME: Tensor,
    table_VE: Tensor,
    bias_V: Tensor,
    targets_M: Tensor,
    weights_M: Tensor,
    uniform_M: Tensor,
    *,
    temperature: float = 1.0,
    disallow_correct: bool = False,
) -> Prediction:
    """Return loss, samples and hits, written as the mathematics reads.

    Args:
        features_ME: The generator head's features, in the compute dtype.
        table_VE: Token embeddings, float32.
        bias_V: Output bias, float32.
        targets_M: Original ids.
        weights_M: Weight of each position in the loss: 1 / their number, 0 in unused slots.
        uniform_M: Uniform numbers in [0, 1): position i is given the first token at which the
            cumulative probability exceeds uniform_M[i], hence a draw from the softmax.
        temperature: Divides the logits of the draws; the loss has none.
        disallow_correct: Whether the original is never drawn. Both: run_pretraining.py and
            pretrain_helpers.sample_from_softmax, temperature first.
    """
    logits_MV = F.linear(features_ME, table_VE.to(features_ME.dtype)).float() + bias_V
    nll_M = F.cross_entropy(logits_MV, targets_M, reduction="none")
    loss = (nll_M * weights_M).sum()
    with torch.no_grad():
        draw_MV = logits_MV / temperature
        if disallow_correct:
            draw_MV.scatter_(1, targets_M[:, None], -math.inf)
        cumulative_MV = draw_MV.softmax(dim=-1).cumsum(dim=-1)
        threshold_M1 = uniform_M[:, None] * cumulative_MV[:, -1:]
        sampled_M = torch.searchsorted(cumulative_MV, threshold_M1, right=True).squeeze(-1)
        correct_M = logits_MV.gather(1, targets_M[:, None]).squeeze(1) == logits_MV.amax(dim=-1)
    return Prediction(loss, sampled_M.clamp_(max=table_VE.shape[0] - 1), correct_M)


def loss_and_sample(
    features_ME: Tensor,
    table_VE: Tensor,
    bias_V: Tensor,
    targets_M: Tensor,
    weights_M: Tensor,
    uniform_M: Tensor,
) -> Prediction:
    """Return what `loss_and_sample_plain` returns, in one pass; same arguments.

    Losses agree to 1e-6 relative in float32 and gradients to 1e-5 of their largest element; samples
    are equal but where a threshold falls within rounding of a cumulative probability.
    """
    return Prediction(
        *_LossAndSample.apply(features_ME, table_VE, bias_V, targets_M, weights_M, uniform_M)
    )


class _LossAndSample(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        features_ME: Tensor,
        table_VE: Tensor,
        bias_V: Tensor,
        targets_M: Tensor,
        weights_M: Tensor,
        uniform_M: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        needs_grad = any(ctx.needs_input_grad[:3])
        num_positions, vocab_size = features_ME.shape[0], table_VE.shape[0]
        num_blocks = -(-vocab_size // BLOCK)
        table = table_VE.to(features_ME.dtype)
        loss = torch.zeros((), device=features_ME.device)
        sampled_M = torch.empty_like(targets_M)
        correct_M = torch.empty_like(targets_M, dtype=torch.bool)
        # Padded to whole blocks with zeros, so that a sample can be found block first.
        probs_buffer = features_ME.new_zeros(SLICE, num_blocks * BLOCK, dtype=torch.float32)
        grad_features_ME = torch.empty_like(features_ME)
        grad_table_VE: Tensor | None = None
        grad_bias_V = torch.zeros_like(bias_V)

        for start in range(0, num_positions, CHUNK):
            chunk = slice(start, min(start + CHUNK, num_positions))
            logits_MV = F.linear(features_ME[chunk], table)
            for low in range(start, chunk.stop, SLICE):
                rows = slice(low, min(low + SLICE, chunk.stop))
                logits_RV = logits_MV[low - start : rows.stop - start]
                padded_RV = probs_buffer[: len(logits_RV)]
                probs_RV = padded_RV[:, :vocab_size]
                probs_RV.copy_(logits_RV).add_(bias_V)  # one pass would mix dtypes: twice as slow
                target_R1 = targets_M[rows, None]
                largest_R1 = probs_RV.amax(dim=-1, keepdim=True)
                target_logit_R1 = probs_RV.gather(1, target_R1)
                correct_M[rows] = (target_logit_R1 == largest_R1).squeeze(1)
                probs_RV.sub_(largest_R1).exp_()
                sampled_M[rows], sum_R1 = _sample(padded_RV, uniform_M[rows, None])
                nll_R1 = sum_R1.log() + largest_R1 - target_logit_R1
                loss += (nll_R1.squeeze(1) * weights_M[rows]).sum()
                if needs_grad:  # d loss / d logits = weight * (softmax - onehot), over the logits
                    probs_RV.mul_(weights_M[rows, None] / sum_R1)
                    probs_RV.scatter_add_(1, target_R1, -weights_M[rows, None])
                    grad_bias_V += probs_RV.sum(dim=0)
                    logits_RV.copy_(probs_RV)
            if needs_grad:
                torch.matmul(logits_MV, table, out=grad_features_ME[chunk])
                grad_chunk_VE = (logits_MV.T @ features_ME[chunk]).float()
                grad_table_VE = (
                    grad_chunk_VE if grad_table_VE is None else grad_table_VE.add_(grad_chunk_VE)
                )

        if needs_grad:
            ctx.save_for_backward(grad_features_ME, grad_table_VE, grad_bias_V)
        ctx.mark_non_differentiable(sampled_M, correct_M)
        return loss, sampled_M.clamp_(max=vocab_size - 1), correct_M

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        scale = grad_outputs[0]
        grad_features_ME, grad_table_VE, grad_bias_V = ctx.saved_tensors
        return (
            grad_features_ME * scale.to(grad_features_ME.dtype),
            grad_table_VE * scale,
            grad_bias_V * scale,
            None,
            None,
            None,
        )


def log_likelihood(
    features_ME: Tensor, table_VE: Tensor, bias_V: Tensor, targets_M: Tensor
) -> tuple[Tensor, Tensor]:
    """Return log p(target) of each position, with its gradient, and the softmax's entropy, nats.

    For objectives that need more of a position than its share in a mean. Logits exist for `CHUNK`
    positions at a time and are computed again on the way back.
    """

    def chunk(features_CE: Tensor, targets_C: Tensor) -> tuple[Tensor, Tensor]:
        logits_CV = F.linear(features_CE, table_VE.to(features_CE.dtype)).float() + bias_V
        log_probs_CV = logits_CV.log_softmax(dim=-1)
        entropy_C = -(log_probs_CV.detach().exp() * log_probs_CV.detach()).sum(dim=-1)
        return log_probs_CV.gather(1, targets_C[:, None]).squeeze(1), entropy_C

    parts = [
        checkpoint(chunk, features_CE, targets_C, use_reentrant=False)
        for features_CE, targets_C in zip(
            features_ME.split(CHUNK), targets_M.split(CHUNK), strict=True
        )
    ]
    log_probs, entropies = zip(*parts, strict=True)
    return torch.cat(log_probs), torch.cat(entropies)


def _sample(weights_RV: Tensor, uniform_R1: Tensor) -> tuple[Tensor, Tensor]:
    """Draw a column of each row in proportion to its weight; return the columns and the row sums.

    First a block of BLOCK columns by the cumulative sum of block sums, then a column within it: the
    same inverse of the cumulative distribution, without its full length.
    """
    blocks_RKB = weights_RV.view(len(weights_RV), -1, BLOCK)
    sums_RK = blocks_RKB.sum(dim=-1)
    cumulative_RK = sums_RK.cumsum(dim=-1)
    sum_R1 = cumulative_RK[:, -1:]
    threshold_R1 = uniform_R1 * sum_R1
    block_R1 = torch.searchsorted(cumulative_RK, threshold_R1, right=True)
    block_R1.clamp_(max=blocks_RKB.shape[1] - 1)
    before_R1 = cumulative_RK.gather(1, block_R1) - sums_RK.gather(1, block_R1)
    block_RB = blocks_RKB.gather(1, block_R1[:, :, None].expand(-1, -1, BLOCK)).squeeze(1)
    within_R1 = torch.searchsorted(
        block_RB.cumsum(dim=-1), threshold_R1 - before_R1, right=True
    ).clamp_(max=BLOCK - 1)
    return (block_R1 * BLOCK + within_R1).squeeze(1), sum_R1
