"""COCO-LM: replaced token detection, correction of what was replaced, and contrast of rows.

    h_t              states of x_corrupt                                       discriminator
    p_copy           probability that token t is original: 1 - sigmoid of RTD's logit
    p(x_t)           p_copy [x_corrupt_t = x_t] + (1 - p_copy) softmax(x_t)    corrective_head
    L_LM             mean of -log p(x_t) over m; p_copy has no gradient        corrective_loss
    s, s+            states of [CLS] of x_corrupt and of a crop of x           masking.crop
    L_SCL            mean of -log softmax of cos(s, s+), among the cosines of s with all other
                     states of [CLS] in the step, and the same for s+          contrast_loss
    loss             L_MLM + lambda L_Disc + mu L_LM + nu L_SCL                loss

Source: Meng et al. 2021, "COCO-LM: Correcting and Contrasting Text Sequences for Language Model
Pretraining", section 3 (known from notes); model.py of its released code. There the two heads are
linear, and s passes through one more layer. Here the heads are those of RTD and of the generator,
so that RTD's discriminator is kept. docs/DEVIATIONS.md lists all differences.

Shape suffixes: B rows, L positions, S slots for masked positions in a row, H hidden size, N = 2 B
states of [CLS].
"""

import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from electra.method.masking import Counts, Draw, Means, predict_masked
from electra.method.objective import Judgement, Network, Output, Parts
from electra.method.replaced_token_detection import ReplacedTokenDetection
from electra.model.batch import Batch, find_real
from electra.model.heads import GeneratorHead
from electra.model.masked_lm import states_at
from electra.objectives.config import CocoLMConfig
from electra.objectives.masked_language_modelling import mix


class CocoLM(ReplacedTokenDetection):
    """RTD, corrective language modelling and sequence contrast, trained with the generator."""

    def __init__(self, parts: Parts):
        super().__init__(parts)
        method, sizes = cast(CocoLMConfig, parts.method), parts.model
        self.corrective_head = GeneratorHead(sizes) if method.corrective_weight else None
        self.masking.crops = method.contrasts
        weights = {
            "corrective_loss": method.corrective_weight,
            "contrast_loss": method.contrast_weight,
        }
        self.loss_weights |= {name: weight for name, weight in weights.items() if weight}

    @property
    def networks(self) -> dict[str, Network]:
        """Generator, discriminator and corrector: a head on the states of the discriminator."""
        found, head = super().networks, self.corrective_head
        judge, layers = found["discriminator"], len(self.discriminator.layers)
        found["discriminator"] = judge._replace(
            crop_length=crop_length if self.masking.crops else None
        )
        if head is not None:
            found["corrector"] = judge._replace(
                head=head, predicts="tokens", at="chosen", first_layer=layers
            )
        return found

    def forward(self, batch: Batch, draw: Draw, counts: Counts) -> Output:
        """Return the weighted sum of the losses; while the discriminator is frozen, L_MLM."""
        prediction, means = predict_masked(self.generator, self.masking, batch, draw, counts)
        if self.is_resting:
            return Output(prediction.loss, means)
        corrupt_ids_BL = self.masking.corrupt(batch.input_ids_BL, draw, prediction.sampled)
        hidden_BLH = self.discriminator(*batch._replace(input_ids_BL=corrupt_ids_BL).inputs)
        disc_loss, of_disc, judgement = self.judge(corrupt_ids_BL, batch, draw, counts, hidden_BLH)
        losses = {"mlm_loss": prediction.loss, "disc_loss": disc_loss}
        means |= of_disc
        if self.corrective_head is not None:
            log_prob_BS = self.correct(self.corrective_head, hidden_BLH, judgement, batch, draw)
            total = -(log_prob_BS * draw.chosen_BS).sum()
            losses["corrective_loss"] = total / counts.num_chosen
            means["corrective_loss"] = total.detach(), draw.chosen_BS.sum()
        if draw.crop_B is not None:
            crop_BLH = self.discriminator(*crop(batch, draw.crop_B).inputs)
            losses["contrast_loss"], of_contrast = contrast(hidden_BLH[:, 0], crop_BLH[:, 0])
            means |= of_contrast
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


def contrast(state_BH: Tensor, crop_BH: Tensor) -> tuple[Tensor, Means]:
    """Return L_SCL of the rows of a whole step, and its measures."""
    states_NH = F.normalize(torch.cat([state_BH, crop_BH]).float(), dim=-1)
    number_N = torch.arange(len(states_NH), device=states_NH.device)
    is_itself_NN = number_N == number_N[:, None]
    cosine_NN = (states_NH @ states_NH.T).masked_fill(is_itself_NN, -math.inf)
    partner_N = number_N.roll(len(state_BH))
    loss_N = F.cross_entropy(cosine_NN, partner_N, reduction="none")
    is_nearest_N = cosine_NN.argmax(dim=1) == partner_N
    number = torch.ones_like(is_nearest_N).sum()
    return loss_N.mean(), {
        "contrast_loss": (loss_N.detach().sum(), number),
        "contrast_accuracy": (is_nearest_N.sum(), number),
    }


def crop_length(length: int) -> int:
    """Return the length of the crop of a row: a tenth of what [CLS] and [SEP] enclose is cut."""
    return length - (length - 2) // 10


def crop(batch: Batch, uniform_B: Tensor) -> Batch:
    """Return [CLS], a run of nine tenths of the tokens between, and the last [SEP] of each row.

    The uniform numbers choose where the run begins; the tokens before and after it are cut.

    Source: COCO-LM (Meng et al. 2021), span_dataset.py of its released code, which cuts [CLS] and
    [SEP] as any token.
    """
    place_C = torch.arange(crop_length(batch.input_ids_BL.shape[1]), device=uniform_B.device)
    num_real_B1 = find_real(batch).sum(dim=1, keepdim=True)
    cut_B1 = (num_real_B1 - 2) // 10
    before_B1 = torch.minimum((uniform_B[:, None] * (cut_B1 + 1)).long(), cut_B1)
    is_inside_BC = place_C < num_real_B1 - cut_B1 - 1
    index_BC = (place_C + torch.where(is_inside_BC, before_B1, cut_B1)) * (place_C > 0)
    rows = batch._replace(is_next_B=None)
    return rows.each(lambda tensor: tensor.gather(1, index_BC))
