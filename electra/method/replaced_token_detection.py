"""Replaced token detection: section 2 of the ELECTRA paper, symbol by symbol.

    x            the original tokens                              input_ids_BL
    m            k masked positions, without replacement          draw.index_BS (masking.py)
    x_masked     replace(x, m, [MASK])                            masking.mask
    p_G(. | x_masked)  the generator's softmax at m               generator (model/masked_lm.py)
    x_hat        one token sampled from p_G at each position      prediction.sampled
    x_corrupt    replace(x, m, x_hat)                             masking.corrupt
    D(x_corrupt, t)    is token t original or replaced?           discriminator, discriminator_head
    L_MLM        mean of -log p_G(x_i | x_masked) over m          mlm_loss
    L_Disc       mean binary cross-entropy over all real tokens   disc_loss
    loss         L_MLM + lambda L_Disc                            loss

Sampling has no gradient. The paper's D is the probability that a token is original. Here, as in the
released code, label 1 and a positive logit mean replaced. A sampled token that equals the original
token counts as original.

Shape suffixes: B rows, L positions, S slots for masked positions in a row.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from electra.method.masking import Counts, Draw, Means, predict_masked, replace
from electra.method.objective import (
    Judgement,
    Network,
    Objective,
    Output,
    Parts,
    describe_generator,
    learns,
)
from electra.model.batch import Batch, count_real, find_real
from electra.model.heads import DiscriminatorHead


class ReplacedTokenDetection(Objective):
    """The RTD objective: generator and discriminator, trained jointly."""

    def __init__(self, parts: Parts):
        super().__init__(parts)
        # Registered first: checkpoints save the shared embedding block under the first name.
        self.discriminator = parts.encoder(parts.model)
        self.discriminator_head = DiscriminatorHead(parts.model)
        self.generator = parts.generator(self.discriminator)
        self.loss_weights = {"disc_loss": parts.method.disc_weight}
        if learns(self.generator):
            self.loss_weights = {"mlm_loss": 1.0, **self.loss_weights}

    @property
    def networks(self) -> dict[str, Network]:
        """The generator, unless it is a fixed distribution, and the discriminator."""
        encoders, head, share = (self.discriminator,), self.discriminator_head, self.share_awake
        discriminator = Network(encoders, head, "replaced", "all", trained=share, run=share)
        return describe_generator(self.generator) | {"discriminator": discriminator}

    @torch.no_grad()
    def set_constant_predictions(self, frequencies_V: Tensor) -> None:
        """Set the softmax bias, and the discriminator's bias to the log-odds of `prior_prob`.

        If the discriminator has to learn its bias, the hidden states collapse towards a constant:
        after 5.7 M tokens they had an effective rank of 4.
        """
        super().set_constant_predictions(frequencies_V)
        prob = self.prior_prob
        self.discriminator_head.dense_prediction.bias.fill_(math.log(prob / (1 - prob)))

    @property
    def prior_prob(self) -> float:
        """Probability that a judged token is replaced if the generator is never right."""
        return self.masking.config.mask_prob

    def forward(self, batch: Batch, draw: Draw, counts: Counts) -> Output:
        """Return L_MLM + lambda L_Disc, with measures and the judgement of the corrupted rows.

        While the discriminator is frozen, L_MLM alone.
        """
        first = self.generate(batch, draw, counts)
        if self.is_resting:
            return Output(first.loss, first.means)
        second = self.discriminate(first, batch, draw, counts)
        loss = first.loss + second.loss if learns(self.generator) else second.loss
        return Output(loss, second.means, second.judgement)

    def generate(self, batch: Batch, draw: Draw, counts: Counts) -> Output:
        """Return L_MLM, its measures, and x_corrupt."""
        prediction, means = predict_masked(self.generator, self.masking, batch, draw, counts)
        corrupt_ids_BL = self.masking.corrupt(batch.input_ids_BL, draw, prediction.sampled)
        return Output(prediction.loss, means, corrupt_ids_BL=corrupt_ids_BL)

    def discriminate(self, first: Output, batch: Batch, draw: Draw, counts: Counts) -> Output:
        """Return lambda L_Disc of the x_corrupt of `generate`, with the measures of both."""
        assert first.corrupt_ids_BL is not None
        disc_loss, of_disc, judgement = self.judge(first.corrupt_ids_BL, batch, draw, counts)
        loss = self.loss_weights["disc_loss"] * disc_loss
        return Output(loss, first.means | of_disc, judgement)

    def judge(
        self,
        corrupt_ids_BL: Tensor,
        batch: Batch,
        draw: Draw,
        counts: Counts,
        hidden_BLH: Tensor | None = None,
    ) -> tuple[Tensor, Means, Judgement]:
        """Return the rows' share of L_Disc, its measures, and the judgement.

        `hidden_BLH` are the discriminator's states of x_corrupt; None: they are computed here.
        """
        is_replaced_BL = corrupt_ids_BL != batch.input_ids_BL
        if hidden_BLH is None:
            corrupt = batch._replace(input_ids_BL=corrupt_ids_BL)
            hidden_BLH = self.discriminator(*corrupt.inputs)
        logits_BL = self.discriminator_head(hidden_BLH)
        bce_BL = F.binary_cross_entropy_with_logits(
            logits_BL, is_replaced_BL.float(), reduction="none"
        )
        weights_BL = self.find_weights(batch, draw, counts)
        disc_loss = (bce_BL * weights_BL).sum()
        judgement = Judgement(
            corrupt_ids_BL, is_replaced_BL, weights_BL > 0, logits_BL.detach(), bce_BL.detach()
        )
        return disc_loss, measure_judgement(disc_loss, judgement, batch, counts), judgement

    def find_weights(self, batch: Batch, draw: Draw, counts: Counts) -> Tensor:
        """Return the weight of each token in L_Disc (B, L): they sum to 1 over a step's rows."""
        return find_real(batch) / counts.num_real


class MaskedOnly(ReplacedTokenDetection):
    """ELECTRA 15%: RTD with L_Disc over the masked positions only. Source: section 3.5."""

    prior_prob = 0.5  # 1 would be exact before training, but its log-odds are infinite

    def find_weights(self, batch: Batch, draw: Draw, counts: Counts) -> Tensor:
        """Return equal weights of the masked positions, and 0 elsewhere (B, L)."""
        nowhere_BL = torch.zeros_like(batch.input_ids_BL, dtype=torch.bool)
        return replace(nowhere_BL, draw, True) / counts.num_chosen


def measure_judgement(
    disc_loss: Tensor, judgement: Judgement, batch: Batch, counts: Counts
) -> Means:
    """Return the rows' share of L_Disc, and the share of replaced tokens among the judged."""
    is_judged_BL = judgement.judged_BL
    return {
        "disc_loss": (disc_loss.detach() * counts.num_real, count_real(batch)),
        "replaced_rate": ((judgement.is_replaced_BL & is_judged_BL).sum(), is_judged_BL.sum()),
    }
