"""Replaced token detection: section 2 of the ELECTRA paper, symbol by symbol.

    x            the original tokens                              input_ids_BL
    m            k positions, drawn without replacement           choose_positions
    x_masked     replace(x, m, [MASK])                            replace
    p_G(. | x_masked)  generator's softmax at m                   generator, generator_head, predict
    x_hat        one draw from p_G at each position, no gradient  prediction.sampled_M
    x_corrupt    replace(x, m, x_hat)                             replace
    D(x_corrupt, t)    was token t replaced?                      discriminator, discriminator_head
    L_MLM        mean of -log p_G(x_i | x_masked) over m          mlm_loss
    L_Disc       mean binary cross-entropy over all real tokens   disc_loss
    loss         L_MLM + lambda L_Disc                            loss

The paper's D is the probability that a token is original; as in the released code, label 1 and a
positive logit mean replaced here. A draw that equals the original counts as original.

Shape suffixes: B rows, L positions, S slots for chosen positions in a row, M = B * S of them
together, H hidden size.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.config import MethodConfig
from electra.model.encoder import Encoder
from electra.model.heads import DiscriminatorHead, GeneratorHead
from electra.model.softmax import Prediction, loss_and_sample


class Positions(NamedTuple):
    """The positions m, in a fixed number of slots per row."""

    index_BS: Tensor
    """Position in the row; unused slots hold 0, the place of [CLS], which is never chosen."""
    chosen_BS: Tensor
    """Which slots are used, bool."""


def choose_positions(
    maskable_BL: Tensor, real_BL: Tensor, mask_prob: float, rng: torch.Generator
) -> Positions:
    """Draw k positions of each row uniformly and without replacement among the maskable ones.

    k = round(mask_prob * real tokens of the row), [CLS] and [SEP] counted in, but at least 1, and
    at most what can be masked. Full rows use every slot.

    Source: section 2 and pretrain_helpers.mask, which draws with replacement, so that it masks
    fewer positions than it says.
    """
    num_slots = max(1, round(mask_prob * maskable_BL.shape[1]))
    wanted_B = (mask_prob * real_BL.sum(dim=1)).round().clamp(min=1)
    count_B = torch.minimum(wanted_B, maskable_BL.sum(dim=1)).clamp(max=num_slots)
    order_BL = torch.rand(maskable_BL.shape, generator=rng, device=maskable_BL.device)
    index_BS = order_BL.masked_fill(~maskable_BL, 2.0).topk(num_slots, largest=False).indices
    slot_S = torch.arange(num_slots, device=maskable_BL.device)
    chosen_BS = slot_S < count_B[:, None]
    return Positions(index_BS.masked_fill(~chosen_BS, 0), chosen_BS)


def replace(input_ids_BL: Tensor, positions: Positions, tokens_BS: Tensor | int) -> Tensor:
    """Return a copy of the ids with `tokens_BS` at the chosen positions."""
    current_BS = input_ids_BL.gather(1, positions.index_BS)
    tokens_BS = torch.where(positions.chosen_BS, tokens_BS, current_BS)
    return input_ids_BL.scatter(1, positions.index_BS, tokens_BS)


class Output(NamedTuple):
    """Losses, and what is needed to describe both networks. Only the losses carry gradients."""

    loss: Tensor
    """L_MLM + lambda L_Disc, nats."""
    mlm_loss: Tensor
    """Mean over the chosen positions of all rows."""
    disc_loss: Tensor
    """Mean over the real tokens of all rows, [CLS] and [SEP] included."""
    num_chosen: Tensor
    """Number of chosen positions."""
    num_correct: Tensor
    """Chosen positions at which the generator's likeliest token is the original."""
    num_sampled_correct: Tensor
    """Chosen positions at which its draw is the original."""
    corrupt_ids_BL: Tensor
    is_replaced_BL: Tensor
    """Label of each token: True where it differs from the original."""
    real_BL: Tensor
    """True at tokens, False at padding."""
    disc_logits_BL: Tensor
    """Positive where the discriminator believes a token replaced; meaningless at padding."""


class ReplacedTokenDetection(nn.Module):
    """Generator and discriminator, trained together.

    Args:
        generator: Encoder of the generator; shares its embedding block with the discriminator.
        generator_head: Its output layer; the softmax is tied to the token embeddings.
        discriminator: Encoder of the discriminator, the network one keeps.
        discriminator_head: Its output layer.
        config: mask_prob and disc_weight (lambda).
        mask_id: Id of [MASK].
        never_masked_ids: Ids at which no position is chosen: [PAD], [CLS], [SEP], [MASK].
        predict: The softmax of the generator: loss and draws from features and token table.
    """

    def __init__(
        self,
        *,
        generator: Encoder,
        generator_head: GeneratorHead,
        discriminator: Encoder,
        discriminator_head: DiscriminatorHead,
        config: MethodConfig,
        mask_id: int,
        never_masked_ids: Sequence[int],
        predict: Callable[..., Prediction] = loss_and_sample,
    ):
        super().__init__()
        # First, so that the shared embedding block is saved under its name.
        self.discriminator = discriminator
        self.discriminator_head = discriminator_head
        self.generator = generator
        self.generator_head = generator_head
        self.config = config
        self.mask_id = mask_id
        self.never_masked_ids = tuple(never_masked_ids)
        self.predict = predict

    def forward(
        self,
        input_ids_BL: Tensor,
        attention_mask_BL: Tensor | None,
        token_type_ids_BL: Tensor,
        rng: torch.Generator,
    ) -> Output:
        """Corrupt the rows with the generator and judge every token with the discriminator.

        Args:
            input_ids_BL: Original token ids, int64.
            attention_mask_BL: True at real tokens; None where no row is padded.
            token_type_ids_BL: Segment of each token.
            rng: Source of positions and draws, on the device of the ids. Dropout has torch's own.
        """
        real_BL = (
            torch.ones_like(input_ids_BL, dtype=torch.bool)
            if attention_mask_BL is None
            else attention_mask_BL
        )
        maskable_BL = real_BL.clone()
        for token_id in self.never_masked_ids:
            maskable_BL &= input_ids_BL != token_id
        positions = choose_positions(maskable_BL, real_BL, self.config.mask_prob, rng)
        weights_M = positions.chosen_BS.flatten().float()
        original_BS = input_ids_BL.gather(1, positions.index_BS)

        masked_ids_BL = replace(input_ids_BL, positions, self.mask_id)
        hidden_BLH = self.generator(masked_ids_BL, attention_mask_BL, token_type_ids_BL)
        hidden_MH = hidden_BLH.gather(
            1, positions.index_BS[:, :, None].expand(-1, -1, hidden_BLH.shape[-1])
        ).flatten(0, 1)
        prediction = self.predict(
            self.generator_head(hidden_MH),
            self.generator.embeddings.tokens.weight,
            self.generator_head.bias,
            original_BS.flatten(),
            weights_M,
            torch.rand(weights_M.shape, generator=rng, device=weights_M.device),
        )

        sampled_BS = prediction.sampled_M.view_as(original_BS)
        corrupt_ids_BL = replace(input_ids_BL, positions, sampled_BS)
        is_replaced_BL = corrupt_ids_BL != input_ids_BL
        disc_logits_BL = self.discriminator_head(
            self.discriminator(corrupt_ids_BL, attention_mask_BL, token_type_ids_BL)
        )
        bce_BL = F.binary_cross_entropy_with_logits(
            disc_logits_BL, is_replaced_BL.float(), reduction="none"
        )
        disc_loss = (bce_BL * real_BL).sum() / real_BL.sum()

        return Output(
            loss=prediction.loss + self.config.disc_weight * disc_loss,
            mlm_loss=prediction.loss.detach(),
            disc_loss=disc_loss.detach(),
            num_chosen=weights_M.sum(),
            num_correct=(prediction.correct_M * weights_M).sum(),
            num_sampled_correct=((sampled_BS == original_BS) & positions.chosen_BS).sum(),
            corrupt_ids_BL=corrupt_ids_BL,
            is_replaced_BL=is_replaced_BL,
            real_BL=real_BL,
            disc_logits_BL=disc_logits_BL.detach(),
        )
