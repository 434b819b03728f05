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
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from electra.errors import require
from electra.method.masking import Counts, Draw, Masking, measure_cloze, replace
from electra.method.objective import Judgement, Network, Objective, Output, Parts
from electra.model.batch import Batch
from electra.model.encoder import Encoder
from electra.model.heads import DiscriminatorHead
from electra.model.masked_lm import TwoTowers, log_likelihood, loss_and_sample


class Electric(Objective):
    """The Electric objective: noise distribution and energy model, trained jointly.

    Args:
        generator: The noise distribution q.
        discriminator: The encoder that pre-training returns.
        discriminator_head: Maps hidden states to energies.
        masking: Chooses the positions that receive noise.
        disc_weight: Lambda, the weight of the NCE loss.
    """

    def __init__(
        self,
        *,
        generator: TwoTowers,
        discriminator: Encoder,
        discriminator_head: DiscriminatorHead,
        masking: Masking,
        disc_weight: float,
    ):
        super().__init__()
        # Registered first: checkpoints save the shared embedding block under the first name.
        self.discriminator = discriminator
        self.discriminator_head = discriminator_head
        self.generator = generator
        self.masking = masking
        self.loss_weights = {"mlm_loss": 1.0, "disc_loss": disc_weight}

    @property
    def kept(self) -> Encoder:
        """The discriminator's encoder, which pre-training returns."""
        return self.discriminator

    @classmethod
    def build(cls, parts: Parts) -> Self:
        """Return the objective with networks of the configured sizes.

        Raises:
            UserError: The settings ask for a generator other than the two towers.
        """
        generator, sharing = parts.config.generator, parts.config.method.sharing
        is_plain = generator.kind == "network" and generator.temperature == 1
        require(
            is_plain and not generator.disallow_correct and sharing != "all",
            "method.objective electric has a noise distribution of its own, whose probabilities "
            "count: generator.kind network, temperature 1, disallow_correct false and "
            "method.sharing embeddings or none",
        )
        discriminator = parts.encoder(parts.config.model)
        return cls(
            generator=parts.two_towers(discriminator),
            discriminator=discriminator,
            discriminator_head=DiscriminatorHead(parts.config.model),
            masking=parts.masking(),
            disc_weight=parts.config.method.disc_weight,
        )

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
        return self.discriminator_head(self.discriminator(*batch))

    def forward(self, batch: Batch, draw: Draw, counts: Counts) -> Output:
        """Sample noise, classify every token as noise or text, and return losses and measures.

        While the discriminator rests, the loss is that of the noise distribution alone.
        """
        input_ids_BL, maskable_BL = batch.input_ids_BL, self.masking.find_maskable(batch)
        features_BLE = self.generator(batch)
        log_q_M, _ = log_likelihood(
            features_BLE.flatten(0, 1), *self.generator.softmax, input_ids_BL.flatten()
        )
        log_q_BL = log_q_M.view_as(input_ids_BL)
        mlm_sum = -(log_q_BL * maskable_BL).sum()

        with torch.no_grad():
            index_BSE = draw.index_BS[:, :, None].expand(-1, -1, features_BLE.shape[-1])
            features_ME = features_BLE.gather(1, index_BSE).flatten(0, 1)
            prediction = loss_and_sample(
                features_ME,
                *self.generator.softmax,
                input_ids_BL.gather(1, draw.index_BS).flatten(),
                (draw.chosen_BS / counts.num_chosen).flatten(),
                draw.sample_BS.flatten(),
            ).view_as(draw.index_BS)
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
