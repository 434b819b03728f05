"""Log-likelihood and entropy of the softmax over the vocabulary at each position.

`log_likelihood_plain` is the definition; `log_likelihood` computes the same faster, as softmax.py.

Shape suffixes: M positions, C positions of a chunk, R positions of a slice, E embedding size,
V vocabulary, W vocabulary padded to whole blocks.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from electra.model.softmax import BLOCK, CHUNK, add_at, split_rows, split_to_compute


def log_likelihood_plain(
    features_ME: Tensor, table_VE: Tensor, bias_V: Tensor, targets_M: Tensor
) -> tuple[Tensor, Tensor]:
    """Return what `log_likelihood` returns, written as the mathematical definition."""
    logits_MV = F.linear(features_ME, table_VE.to(features_ME.dtype)).float() + bias_V
    log_probs_MV = logits_MV.log_softmax(dim=-1)
    entropy_M = -(log_probs_MV.detach().exp() * log_probs_MV.detach()).sum(dim=-1)
    return log_probs_MV.gather(1, targets_M[:, None]).squeeze(1), entropy_M


def log_likelihood(
    features_ME: Tensor, table_VE: Tensor, bias_V: Tensor, targets_M: Tensor
) -> tuple[Tensor, Tensor]:
    """Return log p(target) and the softmax's entropy at each position (M), nats.

    Objectives use this function if they need a log-likelihood per position instead of a mean.
    Logits are computed again in the backward pass. The entropy has no gradient. In float32
    log-likelihoods and entropies agree with `log_likelihood_plain` to 1e-5, and gradients to 1e-5
    of their largest element. Arguments: as for `loss_and_sample_plain`.
    """
    log_probs_M, entropy_M = _LogLikelihood.apply(features_ME, table_VE, bias_V, targets_M)
    return log_probs_M, entropy_M.detach()  # marked twice: torch.compile of 2.11 overlooks the mark


class _LogLikelihood(torch.autograd.Function):
    """`log_likelihood`, with the sum of a row's exponentials kept for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, features_ME: Tensor, table_VE: Tensor, bias_V: Tensor, targets_M: Tensor
    ) -> tuple[Tensor, Tensor]:
        vocab_size = len(table_VE)  # padding aligns the rows of the logits, as above
        table_WE = F.pad(table_VE.to(features_ME.dtype), (0, 0, 0, -vocab_size % BLOCK))
        found = []
        for features_CE, target_C1 in split_rows(CHUNK, features_ME, targets_M[:, None]):
            logits_CV = F.linear(features_CE, table_WE)[:, :vocab_size]
            for each_RV, target_R1 in split_to_compute(logits_CV, target_C1):
                logits_RV = each_RV.float().add_(bias_V)
                largest_R1 = logits_RV.amax(dim=-1, keepdim=True)
                exp_RV = logits_RV.sub_(largest_R1).exp()
                sum_R1 = exp_RV.sum(dim=-1, keepdim=True)
                log_prob_R1 = logits_RV.gather(1, target_R1) - sum_R1.log()
                mean_R1 = exp_RV.mul_(logits_RV).sum(dim=-1, keepdim=True) / sum_R1
                entropy_R1 = sum_R1.log() - mean_R1
                found.append(torch.cat([log_prob_R1, entropy_R1, sum_R1.log() + largest_R1], 1))
        log_prob_M, entropy_M, log_sum_M = torch.cat(found).unbind(1)
        ctx.save_for_backward(features_ME, table_WE, bias_V, targets_M, log_sum_M)
        ctx.mark_non_differentiable(entropy_M)
        return log_prob_M, entropy_M

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        features_ME, table_WE, bias_V, *saved = ctx.saved_tensors
        columns = [each[:, None] for each in (*saved, grad_outputs[0])]
        grads_features, grad_bias_V = [], torch.zeros_like(bias_V)
        grad_table_WE = torch.zeros_like(table_WE, dtype=torch.float32)
        for features_CE, *chunk in split_rows(CHUNK, features_ME, *columns):
            logits_CW = F.linear(features_CE, table_WE)  # overwritten by their gradient
            for each_RV, target_R1, log_sum_R1, grad_R1 in split_to_compute(
                logits_CW[:, : len(bias_V)], *chunk
            ):
                probs_RV = each_RV.float().add_(bias_V).sub_(log_sum_R1).exp_()
                grad_RV = add_at(probs_RV.mul_(-grad_R1), target_R1, grad_R1)
                grad_bias_V += grad_RV.sum(dim=0)
                each_RV.copy_(grad_RV)
            grads_features.append(logits_CW @ table_WE)
            grad_table_WE += logits_CW.T @ features_CE
        return torch.cat(grads_features), grad_table_WE[: len(bias_V)], grad_bias_V, None
