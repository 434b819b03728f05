"""COCO-LM: replaced token detection, and a language model that corrects what was replaced.

    h_t              states of x_corrupt                                       discriminator
    p_copy           probability that token t is original: 1 - sigmoid of RTD's logit
    p(x_t)           p_copy [x_corrupt_t = x_t] + (1 - p_copy) softmax(x_t)    corrective_head
    L_LM             mean of -log p(x_t) over m; p_copy has no gradient        corrective_loss
    loss             L_MLM + lambda L_Disc + mu L_LM                           loss

Source: Meng et al. 2021, "COCO-LM: Correcting and Contrasting Text Sequences for Language Model
Pretraining", section 3. The heads of its released code are one linear layer each; here RTD's and
the generator's, so that the discriminator is that of RTD.

Shape suffixes: B rows, L positions, S slots for masked positions in a row, H hidden size.
"""

from torch import Tensor

from electra.method.masked_language_modelling import mix
from electra.method.masking import Counts, Draw, predict_masked
from electra.method.objective import Judgement, Network, Output, Parts
from electra.method.replaced_token_detection import ReplacedTokenDetection, measure_judgement
from electra.model.batch import Batch
from electra.model.heads import GeneratorHead
from electra.model.masked_lm import states_at


class CocoLM(ReplacedTokenDetection):
    """RTD and corrective language modelling, trained jointly with the generator."""

    in_released_code = False

    def __init__(self, parts: Parts):
        super().__init__(parts)
        config = parts.config
        self.corrective_head: GeneratorHead | None = None
        if config.method.corrective_weight:
            self.corrective_head = GeneratorHead(config.model)
            self.loss_weights["corrective_loss"] = config.method.corrective_weight

    @property
    def networks(self) -> dict[str, Network]:
        """Generator, discriminator and corrector: a head on the states of the discriminator."""
        found, head = super().networks, self.corrective_head
        if head is not None:
            layers = len(self.discriminator.layers)
            found["corrector"] = found["discriminator"]._replace(
                head=head, predicts="tokens", at="chosen", first_layer=layers
            )
        return found

    def forward(self, batch: Batch, draw: Draw, counts: Counts) -> Output:
        """Return the weighted sum of the losses; while the discriminator rests, L_MLM."""
        prediction, means = predict_masked(self.generator, self.masking, batch, draw, counts)
        if self.is_resting:
            return Output(prediction.loss, means)
        corrupt_ids_BL = self.masking.corrupt(batch.input_ids_BL, draw, prediction.sampled)
        hidden_BLH = self.discriminator(*batch._replace(input_ids_BL=corrupt_ids_BL))
        disc_loss, judgement = self.judge(corrupt_ids_BL, batch, draw, counts, hidden_BLH)
        losses = {"mlm_loss": prediction.loss, "disc_loss": disc_loss}
        means |= measure_judgement(judgement)
        if self.corrective_head is not None:
            log_prob_BS = self.correct(self.corrective_head, hidden_BLH, judgement, batch, draw)
            total = -(log_prob_BS * draw.chosen_BS).sum()
            losses["corrective_loss"] = total / counts.num_chosen
            means["corrective_loss"] = total.detach(), draw.chosen_BS.sum()
        return Output(self.weigh(losses), means, judgement)

    def correct(
        self,
        head: GeneratorHead,
        hidden_BLH: Tensor,
        judgement: Judgement,
        batch: Batch,
        draw: Draw,
    ) -> Tensor:
        """Return log p of the original tokens (B, S); the judgement's p_copy has no gradient."""
        at_each = batch.input_ids_BL, judgement.logits_BL, judgement.is_replaced_BL
        original_BS, logit_BS, is_replaced_BS = (each.gather(1, draw.index_BS) for each in at_each)
        features_BSE = head(states_at(draw.index_BS, hidden_BLH))
        table_VE = self.discriminator.embeddings.tokens.table
        return mix(features_BSE, table_VE, head.bias, original_BS, -logit_BS, ~is_replaced_BS)
