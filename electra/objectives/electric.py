"""Electric: an energy-based cloze model, trained by noise-contrastive estimation.

    q(. | x_-t)      noise: one tower reads up to t - 1, the other from t + 1 on     generator
    x_noised         x with tokens sampled from q at m                               replace
    E(x)_t           energy: p(x_t | x_-t) is proportional to exp(-E(x)_t)           energy
    loss             NLL of q over all tokens + lambda NCE                           loss

Every token of x_noised is classified as noise or text. If k of n tokens are noise and
p = exp(-E), the probability of noise is k q / (k q + (n - k) exp(-E)), so the logit is
E + log q + log(k / (n - k)). A sampled token that equals the original counts as noise. k / n is
mask_prob, as in the released code. Special tokens are not classified, because q gives them no
probability; the released code does classify them. After training, -sum_t E(x)_t scores a sentence
(score.py).

Source: Clark et al. 2020, "Pre-Training Transformers as Energy-Based Cloze Models";
run_pretraining.py.

Shape suffixes: B rows, L positions, S slots for masked positions in a row, M positions of all rows,
E embedding size.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.method.masking import Counts, Draw, measure_cloze, replace, sample_chosen
from electra.method.objective import Judgement, Network, Objective, Output, Parts
from electra.model.batch import Batch
from electra.model.encoder import Encoder
from electra.model.heads import DiscriminatorHead, GeneratorHead
from electra.model.likelihood import log_likelihood
from electra.model.masked_lm import states_at


class Electric(Objective):
    """The Electric objective: noise distribution and energy model, trained jointly."""

    def __init__(self, parts: Parts):
        super().__init__(parts)
        # Registered first: checkpoints save the shared embedding block under the first name.
        self.discriminator = parts.encoder(parts.model)
        self.discriminator_head = DiscriminatorHead(parts.model)
        self.generator = build_towers(parts, self.discriminator)
        self.loss_weights = {"mlm_loss": 1.0, "disc_loss": parts.method.disc_weight}

    @property
    def networks(self) -> dict[str, Network]:
        """The noise distribution (two encoders) and the discriminator, which predicts energies."""
        noise, head, share = self.generator, self.discriminator_head, self.share_awake
        energy = Network((self.discriminator,), head, "energy", "all", trained=share, run=share)
        return {
            "generator": Network((noise.before, noise.after), noise.head, "tokens", "all"),
            "discriminator": energy,
        }

    @torch.no_grad()
    def set_constant_predictions(self, frequencies_V: Tensor) -> None:
        """Set the softmax bias, and the energy bias to the unigram entropy, nats."""
        super().set_constant_predictions(frequencies_V)
        probs_V = frequencies_V / frequencies_V.sum()
        entropy = -(probs_V * probs_V.log()).sum().item()
        self.discriminator_head.dense_prediction.bias.fill_(entropy)

    def energy(self, batch: Batch) -> Tensor:
        """Return the energies E(x)_t (B, L), nats; undefined at padding and special tokens."""
        return self.discriminator_head(self.discriminator(*batch.inputs))

    def forward(self, batch: Batch, draw: Draw, counts: Counts) -> Output:
        """Sample noise, classify every token as noise or text, and return losses and measures.

        While the discriminator is frozen, the loss is that of the noise distribution alone.
        """
        input_ids_BL, maskable_BL = batch.input_ids_BL, self.masking.find_maskable(batch)
        features_BLE = self.generator(batch)
        log_q_M, _ = log_likelihood(
            features_BLE.flatten(0, 1), *self.generator.softmax, input_ids_BL.flatten()
        )
        log_q_BL = log_q_M.view_as(input_ids_BL)
        mlm_sum = -(log_q_BL * maskable_BL).sum()

        with torch.no_grad():
            features_ME = states_at(draw.index_BS, features_BLE).flatten(0, 1)
            prediction = sample_chosen(features_ME, self.generator.softmax, batch, draw, counts)
            log_q_sampled_M, _ = log_likelihood(
                features_ME, *self.generator.softmax, prediction.sampled.flatten()
            )
            noised_ids_BL = replace(input_ids_BL, draw, prediction.sampled)
            is_noise_BL = replace(torch.zeros_like(maskable_BL), draw, True)
            log_q_noised_BL = replace(
                log_q_BL.detach(), draw, log_q_sampled_M.view_as(draw.sample_BS)
            )

        num_here = maskable_BL.sum()
        cloze = measure_cloze(prediction, batch, draw, counts)
        cloze["mlm_loss"] = mlm_sum.detach(), num_here
        if self.is_resting:
            return Output(mlm_sum / counts.num_maskable, cloze)

        mask_prob = self.masking.config.mask_prob
        logits_BL = (
            self.energy(batch._replace(input_ids_BL=noised_ids_BL))
            + log_q_noised_BL
            + math.log(mask_prob / (1 - mask_prob))
        )
        bce_BL = F.binary_cross_entropy_with_logits(
            logits_BL, is_noise_BL.float(), reduction="none"
        )
        disc_sum = (bce_BL * maskable_BL).sum()

        return Output(
            self.weigh({"mlm_loss": mlm_sum, "disc_loss": disc_sum}) / counts.num_maskable,
            cloze
            | {
                "disc_loss": (disc_sum.detach(), num_here),
                "replaced_rate": (is_noise_BL.sum(), num_here),
            },
            Judgement(noised_ids_BL, is_noise_BL, maskable_BL, logits_BL.detach(), bce_BL.detach()),
        )


class TwoTowers(nn.Module):
    """p(x_t | all tokens but x_t) at every position of an unmasked row, in one pass.

    One transformer reads from the left, one from the right. The prediction at t reads the states at
    t - 1 of the first and at t + 1 of the second. At the first and the last position of a row (of a
    document, if tokens attend within their document) one side is zero. The token embeddings of the
    first tower are also the table of the softmax.

    Source: run_pretraining.py, two_tower_generator, where the ends wrap around.
    """

    def __init__(self, before: Encoder, after: Encoder, head: GeneratorHead):
        super().__init__()
        self.before, self.after = before, after
        before.sees, after.sees = "before", "after"
        self.head = head

    @property
    def softmax(self) -> tuple[Tensor, Tensor]:
        """Table (V, E) and bias (V,) of the softmax."""
        return self.before.embeddings.tokens.table, self.head.bias

    def forward(self, batch: Batch) -> Tensor:
        """Return the features (B, L, E) that the softmax reads."""
        before_BLH, after_BLH = self.before(*batch.inputs), self.after(*batch.inputs)
        earlier_BKH, later_BKH = before_BLH[:, :-1], after_BLH[:, 1:]
        numbers_BL = batch.document_ids_BL  # 0 at padding
        if numbers_BL is None:
            numbers_BL = batch.attention_mask_BL
        if numbers_BL is not None:
            is_border_BK1 = (numbers_BL[:, 1:] != numbers_BL[:, :-1])[:, :, None]
            earlier_BKH = earlier_BKH.masked_fill(is_border_BK1, 0.0)
            later_BKH = later_BKH.masked_fill(is_border_BK1, 0.0)
        padded = F.pad(earlier_BKH, (0, 0, 1, 0)), F.pad(later_BKH, (0, 0, 0, 1))
        return self.head(torch.cat(padded, dim=-1))


def build_towers(parts: Parts, kept: Encoder) -> TwoTowers:
    """Return the noise distribution: two towers, each of the generator's size."""
    sizes = parts.generator_settings.encoder(parts.model)
    before = parts.encoder(sizes, shared=kept)
    after = parts.new_encoder(sizes, before.embeddings)
    return TwoTowers(before, after, GeneratorHead(sizes, num_towers=2))
