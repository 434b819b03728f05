"""Two-stage, adversarial and separate training of generator and discriminator.

In the paper the first two give worse results than joint training by maximum likelihood. They are
here so that the comparison can be repeated. DeBERTaV3 updates the networks separately.

Source: section 3.2 and appendix F.

Shape suffixes: B rows, L positions, S slots for masked positions in a row, M = B * S slots.
"""

from typing import Literal, cast

import torch
import torch.nn.functional as F

from electra.method.masking import Counts, Draw, measure_cloze, sample_chosen
from electra.method.objective import Network, Output, Parts
from electra.method.replaced_token_detection import ReplacedTokenDetection
from electra.model.batch import Batch
from electra.model.likelihood import log_likelihood
from electra.model.masked_lm import MaskedLM
from electra.model.parts import Linear


class TwoStage(ReplacedTokenDetection):
    """RTD in two stages: the generator by L_MLM, then the discriminator with the generator frozen.

    In the second stage the discriminator starts from the generator's weights if all sizes agree,
    otherwise from the generator's embeddings. According to the paper, a discriminator without this
    initialisation sometimes fails to learn. With train.init_from it keeps its own weights.

    Source: section 3.2.
    """

    def __init__(self, parts: Parts):
        super().__init__(parts)
        self.is_trained = parts.starts_trained
        self.loss_weights = {"disc_loss": self.loss_weights["disc_loss"]}

    @property
    def networks(self) -> dict[str, Network]:
        """The generator, trained in the first stage, and the discriminator, in the second."""
        found = super().networks
        return found | {"generator": found["generator"]._replace(trained=1 - self.share_awake)}

    @torch.no_grad()
    def begin_stage(self, stage: int) -> None:
        """Initialise the discriminator from the generator, and freeze the generator.

        In the second stage the generator's loss is still reported, but no longer minimised.
        """
        theirs = cast(MaskedLM, self.generator).encoder.state_dict()
        ours = self.discriminator.state_dict()
        agree = all(name in theirs and theirs[name].shape == t.shape for name, t in ours.items())
        for name, tensor in ours.items() if not self.is_trained else ():
            if agree or name.startswith("embeddings."):
                tensor.copy_(theirs[name])
        super().begin_stage(stage)
        cast(MaskedLM, self.generator).freeze()


class Separate(ReplacedTokenDetection):
    """RTD whose two losses can be minimised one after the other.

    With train.updates=apart each loss has its own update: the discriminator reads tokens sampled
    before the generator's update; with method.sharing=gdes its embeddings are those after it.
    With train.overlap both losses share one update.

    Source: DeBERTaV3, section 3.2, and decoupled_training of its released code.
    """

    def forward(
        self,
        batch: Batch,
        draw: Draw,
        counts: Counts,
        half: Output | Literal["first"] | None = None,
    ) -> Output:
        """Return the output of `ReplacedTokenDetection`, or of one half of it.

        The "first" half is `generate`. The second half is `discriminate`, given the output of the
        first. None: both halves.
        """
        if half is None or self.is_resting:
            return super().forward(batch, draw, counts)
        if half == "first":
            return self.generate(batch, draw, counts)
        return self.discriminate(half, batch, draw, counts)


class Adversarial(ReplacedTokenDetection):
    """RTD with a generator that maximises the discriminator's loss at the masked positions.

        R(x_hat, t) = L_Disc at t, no gradient
        b(t)        = -log sigmoid(w g_t), g_t the generator head's features, no gradient
        loss        = mean over m of -(R - b) log p_G(x_hat_t) + cross-entropy of sigmoid(w g_t)
                      against exp(-R) + lambda L_Disc

    The method is REINFORCE. The baseline b learns the probability that the discriminator gives to
    the correct label. As in the paper, the reward of a position is the loss at this position only.
    The paper leaves two details open: here the baseline has no gradient into the generator, and all
    loss weights except lambda are 1.

    Source: appendix F.
    """

    def __init__(self, parts: Parts):
        super().__init__(parts)
        encoder = cast(MaskedLM, self.generator).encoder
        self.baseline_head = Linear(encoder.config.embedding_size, 1)
        disc_weight = self.loss_weights["disc_loss"]
        self.loss_weights = {"policy_loss": 1.0, "baseline_loss": 1.0, "disc_loss": disc_weight}

    def forward(self, batch: Batch, draw: Draw, counts: Counts) -> Output:
        """Return the sum of policy loss, baseline loss and discriminator loss."""
        if self.is_resting:
            return super().forward(batch, draw, counts)
        generator = cast(MaskedLM, self.generator)
        masked = batch._replace(input_ids_BL=self.masking.mask(batch.input_ids_BL, draw))
        features_ME = generator.features(masked, draw.index_BS)
        prediction = sample_chosen(features_ME, generator.softmax, batch, draw, counts)
        corrupt_ids_BL = self.masking.corrupt(batch.input_ids_BL, draw, prediction.sampled)
        disc_loss, of_disc, judgement = self.judge(corrupt_ids_BL, batch, draw, counts)

        reward_M = judgement.bce_BL.gather(1, draw.index_BS).flatten()
        baseline_M = self.baseline_head(features_ME.detach().float()).squeeze(-1)
        weights_M = (draw.chosen_BS / counts.num_chosen).flatten()
        advantage_M = reward_M + F.logsigmoid(baseline_M).detach()
        log_prob_M, entropy_M = log_likelihood(
            features_ME, *generator.softmax, prediction.sampled.flatten()
        )
        policy_loss = -(advantage_M * log_prob_M * weights_M).sum()
        baseline_bce_M = F.binary_cross_entropy_with_logits(
            baseline_M, (-reward_M).exp(), reduction="none"
        )
        baseline_loss = (baseline_bce_M * weights_M).sum()
        num_chosen = draw.chosen_BS.sum()
        sums = {
            "policy_loss": policy_loss.detach() * counts.num_chosen,
            "baseline_loss": baseline_loss.detach() * counts.num_chosen,
            "generator_entropy": (entropy_M * draw.chosen_BS.flatten()).sum(),
        }
        losses = {
            "policy_loss": policy_loss,
            "baseline_loss": baseline_loss,
            "disc_loss": disc_loss,
        }
        return Output(
            self.weigh(losses),
            measure_cloze(prediction, batch, draw, counts)
            | {name: (value, num_chosen) for name, value in sums.items()}
            | of_disc,
            judgement,
        )
