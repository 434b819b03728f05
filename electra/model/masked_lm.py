"""Predicting tokens from their context: an encoder under the tied softmax, and its stand-ins.

`MaskedLM` and `FixedDistribution` take the same arguments and return a Prediction.

Shape suffixes: B rows, L positions, S slots for chosen positions in a row, M = B * S of them,
E embedding size, H hidden size, K = L - 1 neighbours in a row, V vocabulary.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from electra.model.batch import Batch
from electra.model.encoder import Encoder
from electra.model.heads import GeneratorHead
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
    """Weighted sum of the negative log-likelihood of the original tokens, nats. Only the loss has a
    gradient."""
    sampled: Tensor
    """One token id sampled from the softmax at each position."""
    correct: Tensor
    """Whether the most probable token is the original token, bool."""

    def view_as(self, positions: Tensor) -> "Prediction":
        """Return the prediction with `sampled` and `correct` in the shape of `positions`."""
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
    """Return loss, sampled tokens and hits, written as the mathematical definition.

    Args:
        features_ME: Features of the generator head, in the compute dtype.
        table_VE: Token embeddings, float32.
        bias_V: Output bias, float32.
        targets_M: Original token ids.
        weights_M: Weight of each position in the loss: 1 / number of masked positions, and 0 in
            unused slots.
        uniform_M: Uniform numbers in [0, 1). The sampled token at position i is the first token
            whose cumulative probability exceeds uniform_M[i] (inverse transform sampling).
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
    """Return loss, sampled tokens and hits in one pass; arguments as for `loss_and_sample_plain`.

    In float32 the losses of the two functions agree to 1e-6 relative, and the gradients to 1e-5 of
    their largest element. Sampled tokens are equal, unless a threshold is within rounding of a
    cumulative probability.
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
        vocab_size = table_VE.shape[0]
        score = _score_in_slices if runs_operations(features_ME.device) else _score
        table_WE = _fill_blocks(table_VE, features_ME.dtype)
        # The padding has probability 0, so it is never sampled.
        bias_W = F.pad(bias_V, (0, len(table_WE) - vocab_size), value=-math.inf)
        scores, grads_features, grads_bias = [], [], []
        grad_table_WE: Tensor | None = None
        for features_CE, targets_C, weights_C, uniform_C in _split(
            CHUNK, features_ME, targets_M, weights_M, uniform_M
        ):
            logits_CW = F.linear(features_CE, table_WE)
            *scored, grad_logits_CW, grad_bias_W = score(
                logits_CW, bias_W, targets_C, weights_C, uniform_C, needs_grad
            )
            scores.append(scored)
            if needs_grad:
                grads_features.append(grad_logits_CW @ table_WE)
                grads_bias.append(grad_bias_W)
                grad_WE = (grad_logits_CW.T @ features_CE).float()
                grad_table_WE = grad_WE if grad_table_WE is None else grad_table_WE + grad_WE
        losses, sampled, correct = zip(*scores, strict=True)
        if needs_grad:
            assert grad_table_WE is not None
            ctx.save_for_backward(
                torch.cat(grads_features),
                grad_table_WE[:vocab_size],
                torch.stack(grads_bias).sum(dim=0)[:vocab_size],
            )
        outputs = (
            torch.stack(losses).sum(),
            torch.cat(sampled).clamp(max=vocab_size - 1),
            torch.cat(correct),
        )
        ctx.mark_non_differentiable(*outputs[1:])
        return outputs

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


def _score(
    logits_CW: Tensor,
    bias_W: Tensor,
    targets_C: Tensor,
    weights_C: Tensor,
    uniform_C: Tensor,
    needs_grad: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return loss, sampled tokens and hits of a chunk, and the loss's gradients.

    The code has whole-tensor operations for torch.compile, which fuses them into a few passes over
    the logits.

    Args:
        logits_CW: Logits without the bias, in the compute dtype.
        bias_W: Output bias, float32; -inf in the padding.
        targets_C: Original token ids.
        weights_C: Weight of each position in the loss.
        uniform_C: Uniform numbers in [0, 1).
        needs_grad: Whether to compute gradients.

    Returns:
        Loss, sampled ids (C), hits (C), gradient of the logits (C, W) and gradient of the bias (W).
        Without needs_grad the last two are not gradients.
    """
    exact_CW = logits_CW.float() + bias_W
    target_logit_C1 = exact_CW.gather(1, targets_C[:, None])
    # Largest logit and sum of each block come from one pass over the logits; the exponentials of a
    # row would need its largest logit first, and so a second pass.
    blocks_CKB = exact_CW.view(len(exact_CW), -1, BLOCK)
    largest_CK = blocks_CKB.amax(dim=-1)
    sums_CK = (blocks_CKB - largest_CK[:, :, None]).exp().sum(dim=-1)
    largest_C1 = largest_CK.amax(dim=-1, keepdim=True)
    block_C1, rest_C1, sum_C1 = _choose_block(
        sums_CK * (largest_CK - largest_C1).exp(), uniform_C[:, None]
    )
    block_CB = _take_block(blocks_CKB, block_C1)
    column_C1 = _choose_column((block_CB - largest_C1).exp(), rest_C1)
    sampled_C = (block_C1 * BLOCK + column_C1).squeeze(1)
    nll_C = (sum_C1.log() + largest_C1 - target_logit_C1).squeeze(1)
    loss, correct_C = (nll_C * weights_C).sum(), (target_logit_C1 == largest_C1).squeeze(1)
    if not needs_grad:
        return loss, sampled_C, correct_C, logits_CW, bias_W
    is_target_CW = torch.arange(len(bias_W), device=bias_W.device) == targets_C[:, None]
    probs_CW = (exact_CW - largest_C1).exp() / sum_C1
    grad_CW = weights_C[:, None] * (probs_CW - is_target_CW.float())
    return loss, sampled_C, correct_C, grad_CW.to(logits_CW.dtype), grad_CW.sum(dim=0)


def _score_in_slices(
    logits_CW: Tensor,
    bias_W: Tensor,
    targets_C: Tensor,
    weights_C: Tensor,
    uniform_C: Tensor,
    needs_grad: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return what `_score` returns, computed on SLICE rows at a time; overwrites `logits_CW`."""
    loss, grad_bias_W = torch.zeros(()), torch.zeros_like(bias_W)
    sampled_C, correct_C = torch.empty_like(targets_C), torch.empty_like(targets_C).bool()
    buffer_RW = torch.empty((SLICE, len(bias_W)))
    for low in range(0, len(targets_C), SLICE):
        rows = slice(low, low + SLICE)
        logits_RW = logits_CW[rows]
        target_R1, weights_R1 = targets_C[rows, None], weights_C[rows, None]
        probs_RW = buffer_RW[: len(logits_RW)]
        probs_RW.copy_(logits_RW).add_(bias_W)  # an add of mixed dtypes takes twice as long
        largest_R1 = probs_RW.amax(dim=-1, keepdim=True)
        target_logit_R1 = probs_RW.gather(1, target_R1)
        correct_C[rows] = (target_logit_R1 == largest_R1).squeeze(1)
        probs_RW.sub_(largest_R1).exp_()
        blocks_RKB = probs_RW.view(len(probs_RW), -1, BLOCK)
        block_R1, rest_R1, sum_R1 = _choose_block(blocks_RKB.sum(dim=-1), uniform_C[rows, None])
        column_R1 = _choose_column(_take_block(blocks_RKB, block_R1), rest_R1)
        sampled_C[rows] = (block_R1 * BLOCK + column_R1).squeeze(1)
        loss += ((sum_R1.log() + largest_R1 - target_logit_R1) * weights_R1).sum()
        if needs_grad:
            probs_RW.mul_(weights_R1 / sum_R1)
            probs_RW.scatter_add_(1, target_R1, -weights_R1)
            grad_bias_W += probs_RW.sum(dim=0)
            logits_RW.copy_(probs_RW)
    return loss, sampled_C, correct_C, logits_CW, grad_bias_W


def _fill_blocks(table_VE: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the table (W, E) in `dtype`, padded with zeros to a whole number of blocks.

    Sampling needs whole blocks. The padding also aligns the rows of the logits: a GPU's matrix
    products are slow if rows are not aligned, as with a vocabulary of 30,522.
    """
    return F.pad(table_VE.to(dtype), (0, 0, 0, -len(table_VE) % BLOCK))


def log_likelihood(
    features_ME: Tensor, table_VE: Tensor, bias_V: Tensor, targets_M: Tensor
) -> tuple[Tensor, Tensor]:
    """Return log p(target) and the softmax's entropy at each position (M), nats.

    Objectives use this function if they need a log-likelihood per position instead of a mean.
    Logits exist for CHUNK positions at a time, and are recomputed in the backward pass. The entropy
    has no gradient. `log_likelihood_plain` is the definition; in float32 log-likelihoods and
    entropies agree with it to 1e-5, and gradients to 1e-5 of their largest element.

    Args:
        features_ME: Features of the generator head, in the compute dtype.
        table_VE: Token embeddings, float32.
        bias_V: Output bias, float32.
        targets_M: Token ids.
    """
    if runs_operations(features_ME.device):
        return _LogLikelihood.apply(features_ME, table_VE, bias_V, targets_M)
    parts = [
        checkpoint(
            log_likelihood_plain,
            features_CE,
            _fill_blocks(table_VE, features_CE.dtype),
            bias_V,
            targets_C,
            use_reentrant=False,
            preserve_rng_state=False,
        )
        for features_CE, targets_C in _split(CHUNK, features_ME, targets_M)
    ]
    log_probs, entropies = zip(*parts, strict=True)
    return torch.cat(log_probs), torch.cat(entropies)


def log_likelihood_plain(
    features_ME: Tensor, table_WE: Tensor, bias_V: Tensor, targets_M: Tensor
) -> tuple[Tensor, Tensor]:
    """Return what `log_likelihood` returns, written as the mathematical definition.

    Args:
        features_ME: Features of the generator head, in the compute dtype.
        table_WE: Token embeddings; rows beyond the bias are padding.
        bias_V: Output bias, float32.
        targets_M: Token ids.
    """
    logits_MW = F.linear(features_ME, table_WE.to(features_ME.dtype))
    log_probs_MV = (logits_MW[:, : len(bias_V)].float() + bias_V).log_softmax(dim=-1)
    entropy_M = -(log_probs_MV.detach().exp() * log_probs_MV.detach()).sum(dim=-1)
    return log_probs_MV.gather(1, targets_M[:, None]).squeeze(1), entropy_M


class _LogLikelihood(torch.autograd.Function):
    """`log_likelihood` on a CPU: the float32 work is done on SLICE rows at a time."""

    @staticmethod
    def forward(
        ctx: Any, features_ME: Tensor, table_VE: Tensor, bias_V: Tensor, targets_M: Tensor
    ) -> tuple[Tensor, Tensor]:
        table_VE = table_VE.to(features_ME.dtype)
        log_prob_M, entropy_M, log_sum_M = (torch.empty(len(targets_M)) for _ in range(3))
        columns = [each[:, None] for each in (targets_M, log_prob_M, entropy_M, log_sum_M)]
        buffer_RV, exp_buffer_RV = torch.empty((2, SLICE, len(bias_V)))
        for features_CE, *chunk in _split(CHUNK, features_ME, *columns):
            logits_CV = F.linear(features_CE, table_VE)
            for each_RV, target_R1, *out in _split(SLICE, logits_CV, *chunk):
                logits_RV = buffer_RV[: len(each_RV)].copy_(each_RV).add_(bias_V)
                largest_R1 = logits_RV.amax(dim=-1, keepdim=True)
                exp_RV = torch.exp(logits_RV.sub_(largest_R1), out=exp_buffer_RV[: len(each_RV)])
                sum_R1 = exp_RV.sum(dim=-1, keepdim=True)
                log_prob_R1, entropy_R1, log_sum_R1 = out
                log_prob_R1.copy_(logits_RV.gather(1, target_R1) - sum_R1.log())
                mean_R1 = exp_RV.mul_(logits_RV).sum(dim=-1, keepdim=True) / sum_R1
                entropy_R1.copy_(sum_R1.log() - mean_R1)
                log_sum_R1.copy_(sum_R1.log() + largest_R1)
        ctx.save_for_backward(features_ME, table_VE, bias_V, targets_M, log_sum_M)
        ctx.mark_non_differentiable(entropy_M)
        return log_prob_M, entropy_M

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        features_ME, table_VE, bias_V, *saved = ctx.saved_tensors
        columns = [each[:, None] for each in (*saved, grad_outputs[0])]
        grad_features_ME = torch.empty_like(features_ME)
        grad_table_VE, grad_bias_V = torch.zeros(table_VE.shape), torch.zeros_like(bias_V)
        buffer_RV = torch.empty((SLICE, len(bias_V)))
        for features_CE, grad_CE, *chunk in _split(CHUNK, features_ME, grad_features_ME, *columns):
            logits_CV = F.linear(features_CE, table_VE)  # overwritten by their gradient
            for each_RV, target_R1, log_sum_R1, grad_R1 in _split(SLICE, logits_CV, *chunk):
                grad_RV = buffer_RV[: len(each_RV)].copy_(each_RV).add_(bias_V)
                grad_RV.sub_(log_sum_R1).exp_().mul_(-grad_R1).scatter_add_(1, target_R1, grad_R1)
                grad_bias_V += grad_RV.sum(dim=0)
                each_RV.copy_(grad_RV)
            torch.mm(logits_CV, table_VE, out=grad_CE)
            grad_table_VE += logits_CV.T @ features_CE
        return grad_features_ME, grad_table_VE, grad_bias_V, None


def _split(size: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Return tensors of one length in parts of at most `size` rows, as views."""
    return zip(*(each.split(size) for each in tensors), strict=True)


def _choose_block(sums_RK: Tensor, uniform_R1: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return a block of each row (R, 1), what is left of its threshold, and row sums (R, 1).

    The cumulative sum over blocks gives the block, and the cumulative sum within the block gives
    the column (`_choose_column`). The result is that of a cumulative sum over the whole row, which
    would take longer.

    Args:
        sums_RK: Sum of each block's weights, which are at least 0.
        uniform_R1: Uniform numbers in [0, 1).
    """
    cumulative_RK = sums_RK.cumsum(dim=-1)
    sum_R1 = cumulative_RK[:, -1:]
    threshold_R1 = uniform_R1 * sum_R1
    block_R1 = torch.searchsorted(cumulative_RK, threshold_R1, right=True)
    block_R1.clamp_(max=sums_RK.shape[1] - 1)
    before_R1 = cumulative_RK.gather(1, block_R1) - sums_RK.gather(1, block_R1)
    return block_R1, threshold_R1 - before_R1, sum_R1


def _take_block(blocks_RKB: Tensor, block_R1: Tensor) -> Tensor:
    """Return one block of each row, (R, B)."""
    return blocks_RKB.gather(1, block_R1[:, :, None].expand(-1, -1, BLOCK)).squeeze(1)


def _choose_column(weights_RB: Tensor, rest_R1: Tensor) -> Tensor:
    """Return the first column (R, 1) of each row whose cumulative weight exceeds `rest_R1`."""
    cumulative_RB = weights_RB.cumsum(dim=-1)
    return torch.searchsorted(cumulative_RB, rest_R1, right=True).clamp_(max=BLOCK - 1)


class MaskedLM(nn.Module):
    """p(. | x_masked) at chosen positions: the generator, and the whole of MLM pre-training.

    Args:
        encoder: The encoder; its token embeddings are also the table of the softmax.
        head: The output layer.
        temperature: Divides the logits from which tokens are drawn; the loss has none.
        disallow_correct: Whether the original token is never drawn.
    """

    def __init__(
        self,
        encoder: Encoder,
        head: GeneratorHead,
        *,
        temperature: float = 1.0,
        disallow_correct: bool = False,
    ):
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.temperature = temperature
        self.disallow_correct = disallow_correct
        self.is_frozen = False

    def freeze(self) -> None:
        """Exclude the parameters from training, and switch dropout off for good."""
        self.is_frozen = True
        self.requires_grad_(False)
        self.eval()

    def train(self, mode: bool = True) -> Self:
        """Set the mode as torch's; a frozen model stays in evaluation mode, without dropout."""
        return super().train(mode and not self.is_frozen)

    def features(self, batch: Batch, index_BS: Tensor) -> Tensor:
        """Return the features (M, E) at chosen positions that the softmax reads.

        Args:
            batch: Rows as the encoder is to see them.
            index_BS: Chosen positions.
        """
        hidden_BLH = self.encoder(*batch)
        index_BSH = index_BS[:, :, None].expand(-1, -1, hidden_BLH.shape[-1])
        return self.head(hidden_BLH.gather(1, index_BSH).flatten(0, 1))

    @property
    def softmax(self) -> tuple[Tensor, Tensor]:
        """Table (V, E) and bias (V,) of the softmax."""
        return self.encoder.embeddings.tokens.weight, self.head.bias

    def forward(
        self,
        batch: Batch,
        index_BS: Tensor,
        targets_BS: Tensor,
        weights_BS: Tensor,
        uniform_BS: Tensor,
    ) -> Prediction:
        """Return loss, drawn tokens and hits at the chosen positions; the latter two (B, S).

        Args:
            batch: Rows, corrupted at the chosen positions.
            index_BS: Chosen positions.
            targets_BS: Original ids at these positions.
            weights_BS: Weight of each position in the loss, 0 in unused slots.
            uniform_BS: Uniform numbers in [0, 1) that decide the draws.
        """
        features_ME = self.features(batch, index_BS)
        arguments = (
            features_ME,
            *self.softmax,
            targets_BS.flatten(),
            weights_BS.flatten(),
            uniform_BS.flatten(),
        )
        if self.temperature == 1.0 and not self.disallow_correct:
            prediction = loss_and_sample(*arguments)
        else:
            prediction = loss_and_sample_plain(
                *arguments, temperature=self.temperature, disallow_correct=self.disallow_correct
            )
        return prediction.view_as(index_BS)


class TwoTowers(nn.Module):
    """p(x_t | all tokens but x_t) at every position of an unmasked row, in one pass.

    One transformer reads from the left, one from the right. The prediction at t reads the states at
    t - 1 of the first and at t + 1 of the second. At the first and the last position of a row one
    side is zero; where tokens attend within their document, also at those of a document.

    Args:
        before: The tower that attends to earlier positions; its token embeddings are also the table
            of the softmax.
        after: The tower that attends to later positions.
        head: The output layer; its input is twice as wide as a tower.

    Source: run_pretraining.py, two_tower_generator, where the ends wrap around.
    """

    def __init__(self, before: Encoder, after: Encoder, head: GeneratorHead):
        super().__init__()
        self.before = before
        self.after = after
        self.head = head

    @property
    def softmax(self) -> tuple[Tensor, Tensor]:
        """Table (V, E) and bias (V,) of the softmax."""
        return self.before.embeddings.tokens.weight, self.head.bias

    def forward(self, batch: Batch) -> Tensor:
        """Return the features (B, L, E) that the softmax reads."""
        before_BLH = self.before(*batch, sees="before")
        after_BLH = self.after(*batch, sees="after")
        earlier_BKH, later_BKH = before_BLH[:, :-1], after_BLH[:, 1:]
        numbers_BL = batch.document_ids_BL  # 0 at padding
        if numbers_BL is None:
            numbers_BL = batch.attention_mask_BL
        if numbers_BL is not None:
            is_border_BK1 = (numbers_BL[:, 1:] != numbers_BL[:, :-1])[:, :, None]
            earlier_BKH = earlier_BKH.masked_fill(is_border_BK1, 0.0)
            later_BKH = later_BKH.masked_fill(is_border_BK1, 0.0)
        return self.head(
            torch.cat(
                [
                    nn.functional.pad(earlier_BKH, (0, 0, 1, 0)),
                    nn.functional.pad(later_BKH, (0, 0, 0, 1)),
                ],
                dim=-1,
            )
        )


class FixedDistribution(nn.Module):
    """A generator without context: every position has the same distribution.

    Args:
        probs_V: The distribution, up to a factor: uniform, or the number of times that each token
            occurs in the corpus (unigram).
        disallow_correct: Whether the original token is never drawn.

    Source: run_pretraining.py, uniform_generator.
    """

    probs_V: Tensor

    def __init__(self, probs_V: Tensor, *, disallow_correct: bool = False):
        super().__init__()
        self.register_buffer("probs_V", probs_V.double() / probs_V.double().sum(), persistent=False)
        self.disallow_correct = disallow_correct

    def forward(
        self,
        batch: Batch,
        index_BS: Tensor,
        targets_BS: Tensor,
        weights_BS: Tensor,
        uniform_BS: Tensor,
    ) -> Prediction:
        """Return what `MaskedLM.forward` returns; same arguments, a loss without gradient."""
        last = len(self.probs_V) - 1
        cumulative_V = self.probs_V.cumsum(0)
        threshold_BS = uniform_BS.double() * cumulative_V[-1]
        if self.disallow_correct:  # draw from what is left, and step over the original's stretch
            prob_BS = self.probs_V[targets_BS]
            threshold_BS = uniform_BS.double() * (cumulative_V[-1] - prob_BS)
            is_behind_BS = threshold_BS >= cumulative_V[targets_BS] - prob_BS
            threshold_BS = threshold_BS + is_behind_BS * prob_BS
        sampled_BS = torch.searchsorted(cumulative_V, threshold_BS, right=True).clamp_(max=last)
        nll_BS = -self.probs_V[targets_BS].clamp(min=math.exp(-100)).log().float()
        correct_BS = self.probs_V[targets_BS] == self.probs_V.max()
        return Prediction((nll_BS * weights_BS).sum(), sampled_BS, correct_BS)
