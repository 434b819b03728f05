"""Masked and causal language modelling (MLM, LM), and the two objectives between MLM and RTD.

                        input             predicts           trained jointly with
    MLM                 [MASK] at m       x at m             -
    Causal LM           x up to t         x_{t+1} at each t  -
    Replace MLM         x_hat at m        x at m             a generator, as in RTD
    All-Tokens MLM      x_hat at m        x everywhere       a generator, as in RTD

Source: section 3.5 and appendix.

Shape suffixes: B rows, L positions, S slots for masked positions in a row, M positions of all rows,
E embedding size, V vocabulary, K = L - 1 positions with another behind them.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.method.masking import Counts, Draw, Means, predict_chosen, predict_masked
from electra.method.objective import Network, Objective, Output, Parts, describe_generator, learns
from electra.model.batch import Batch, count_real, find_real
from electra.model.config import EncoderConfig
from electra.model.likelihood import log_likelihood
from electra.model.parts import Linear
from electra.model.softmax import loss_and_sample


class MaskedLanguageModelling(Objective):
    """BERT's MLM; `method.shown_at_mask` sets the input at m.

    With `examples.next_sentence`, BERT's other objective as well: next-sentence prediction (NSP),
    from the state of [CLS], whether the second segment follows the first. Source: Devlin et al.
    2019, section 3.1; google-research/bert run_pretraining.py.
    """

    def __init__(self, parts: Parts):
        super().__init__(parts)
        self.mlm = parts.masked_lm()
        self.loss_weights = {"mlm_loss": 1.0}
        self.next_sentence_head: NextSentenceHead | None = None
        if parts.next_sentence:
            self.next_sentence_head = NextSentenceHead(parts.model)
            self.loss_weights["nsp_loss"] = 1.0

    @property
    def networks(self) -> dict[str, Network]:
        """The encoder, which predicts tokens at the masked positions; NSP's head on its states."""
        encoders, num_layers = (self.mlm.encoder,), len(self.mlm.encoder.layers)
        found = {"encoder": Network(encoders, self.mlm.head, "tokens", "chosen")}
        if (head := self.next_sentence_head) is not None:
            found["next_sentence"] = Network(encoders, head, "", "first", first_layer=num_layers)
        return found

    def forward(self, batch: Batch, draw: Draw, counts: Counts) -> Output:
        """Return the loss of predicting the original tokens at the masked positions, and of NSP."""
        prediction, means = predict_masked(self.mlm, self.masking, batch, draw, counts)
        losses, head = {"mlm_loss": prediction.loss}, self.next_sentence_head
        if head is not None:
            assert prediction.first_BH is not None
            assert batch.is_next_B is not None
            logits_B2, label_B = head(prediction.first_BH), 1 - batch.is_next_B.long()
            total = F.cross_entropy(logits_B2, label_B, reduction="sum")
            losses["nsp_loss"] = total / counts.num_rows
            num_right = (logits_B2.argmax(dim=1) == label_B).sum()
            number = torch.full_like(num_right, len(label_B))
            means |= {"nsp_loss": (total.detach(), number), "nsp_accuracy": (num_right, number)}
        return Output(self.weigh(losses), means)


class CausalLanguageModelling(Objective):
    """Predicts the next token, special tokens included, at every position that has one.

    BERT's ablation "LTR & No NSP", in which the encoder is also causal in fine-tuning. Source:
    Devlin et al. 2019, section 5.1.
    """

    def __init__(self, parts: Parts):
        super().__init__(parts)
        self.lm = parts.masked_lm()
        self.loss_weights = {"lm_loss": 1.0}

    @property
    def networks(self) -> dict[str, Network]:
        """The encoder, which predicts the next token at all positions but the last."""
        return {"encoder": Network((self.lm.encoder,), self.lm.head, "next", "followed")}

    def forward(self, batch: Batch, draw: Draw, counts: Counts) -> Output:
        """Return the loss of predicting each next token; nothing of the draw is read."""
        features_BKE = self.lm.head(self.lm.encoder(*batch.inputs)[:, :-1])
        is_real_BK = find_real(batch)[:, 1:]
        num_predicted = counts.num_real - counts.num_rows  # of each row all tokens but the first
        weights_BK = is_real_BK / num_predicted
        prediction = loss_and_sample(
            features_BKE.flatten(0, 1),
            *self.lm.softmax,
            batch.input_ids_BL[:, 1:].flatten(),
            weights_BK.flatten(),
            torch.zeros_like(weights_BK).flatten(),  # what is sampled is not read
        )
        number, num_right = is_real_BK.sum(), (prediction.correct & is_real_BK.flatten()).sum()
        total = prediction.loss.detach() * num_predicted
        means = {"lm_loss": (total, number), "lm_accuracy": (num_right, number)}
        return Output(prediction.loss, means)


class ReplaceMLM(Objective):
    """MLM whose input has tokens sampled from the generator instead of [MASK].

    The paper gives no weights for the two losses; both weights are 1. The two losses share
    parameters in the embeddings only.
    """

    restores: Literal["chosen", "all"] = "chosen"

    def __init__(self, parts: Parts):
        super().__init__(parts)
        # Registered first: checkpoints save the shared embedding block under the first name.
        self.mlm = parts.masked_lm()
        self.generator = parts.generator(self.mlm.encoder)
        self.loss_weights = {"restore_loss": 1.0}
        if learns(self.generator):
            self.loss_weights = {"mlm_loss": 1.0, **self.loss_weights}

    @property
    def networks(self) -> dict[str, Network]:
        """The generator and the encoder that restores tokens."""
        share = self.share_awake
        encoder = Network(
            (self.mlm.encoder,), self.mlm.head, "tokens", self.restores, trained=share, run=share
        )
        return describe_generator(self.generator) | {"encoder": encoder}

    def forward(self, batch: Batch, draw: Draw, counts: Counts) -> Output:
        """Corrupt the rows with the generator, and return the loss of restoring the originals.

        While the encoder is frozen, the generator's loss alone.
        """
        prediction, means = predict_masked(self.generator, self.masking, batch, draw, counts)
        if self.is_resting:
            return Output(prediction.loss, means)
        corrupt_ids_BL = self.masking.corrupt(batch.input_ids_BL, draw, prediction.sampled)
        is_replaced_BL = corrupt_ids_BL != batch.input_ids_BL
        loss, restore_means = self.restore(corrupt_ids_BL, batch, draw, counts)
        means["replaced_rate"] = is_replaced_BL.sum(), count_real(batch)
        losses = {"mlm_loss": prediction.loss, "restore_loss": loss}
        return Output(self.weigh(losses), means | restore_means)

    def restore(
        self, corrupt_ids_BL: Tensor, batch: Batch, draw: Draw, counts: Counts
    ) -> tuple[Tensor, Means]:
        """Return the encoder's loss at the masked positions, and its measures."""
        corrupt = batch._replace(input_ids_BL=corrupt_ids_BL)
        restored = predict_chosen(self.mlm, corrupt, batch, draw, counts)
        num_chosen = draw.chosen_BS.sum()
        return restored.loss, {
            "restore_loss": (restored.loss.detach() * counts.num_chosen, num_chosen),
            "restore_accuracy": ((restored.correct & draw.chosen_BS).sum(), num_chosen),
        }


class AllTokensMLM(ReplaceMLM):
    """Replace MLM that predicts every token, with a copy mechanism.

    p(x_t) = D [x_corrupt_t = x_t] + (1 - D) softmax(x_t), where D = sigmoid(w h_t + b) is the
    probability that the token is copied from the input. Source: section 3.5.
    """

    restores = "all"

    def __init__(self, parts: Parts):
        super().__init__(parts)
        self.copy_head = Linear(parts.model.hidden_size, 1)

    def restore(
        self, corrupt_ids_BL: Tensor, batch: Batch, draw: Draw, counts: Counts
    ) -> tuple[Tensor, Means]:
        """Return the encoder's loss at every real token, and its measures."""
        ids_BL = batch.input_ids_BL
        hidden_BLH = self.mlm.encoder(*batch._replace(input_ids_BL=corrupt_ids_BL).inputs)
        copy_logits_BL = self.copy_head(hidden_BLH.float()).squeeze(-1)
        features_BLE, is_same_BL = self.mlm.head(hidden_BLH), corrupt_ids_BL == ids_BL
        log_prob_BL = mix(features_BLE, *self.mlm.softmax, ids_BL, copy_logits_BL, is_same_BL)
        loss = -(log_prob_BL * find_real(batch)).sum()
        return loss / counts.num_real, {"restore_loss": (loss.detach(), count_real(batch))}


def mix(
    features_BSE: Tensor,
    table_VE: Tensor,
    bias_V: Tensor,
    targets_BS: Tensor,
    copy_logits_BS: Tensor,
    is_same_BS: Tensor,
) -> Tensor:
    """Return log p(target) (B, S): D [input = target] + (1 - D) softmax(target), in logarithms.

    The softmax has the arguments of `log_likelihood`. `copy_logits_BS` are the log-odds of D.
    """
    features_ME, targets_M = features_BSE.flatten(0, 1), targets_BS.flatten()
    log_softmax_M, _ = log_likelihood(features_ME, table_VE, bias_V, targets_M)
    log_new_BS = F.logsigmoid(-copy_logits_BS) + log_softmax_M.view_as(targets_BS)
    log_copied_BS = torch.logaddexp(F.logsigmoid(copy_logits_BS), log_new_BS)
    return torch.where(is_same_BS, log_copied_BS, log_new_BS)


class NextSentenceHead(nn.Module):
    """BERT's pooler and a classifier: does the second segment follow? Float32 logits (B, 2).

    The first logit is that of "it follows". Source: google-research/bert, modeling.py and
    run_pretraining.py get_next_sentence_output.
    """

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.pooler = Linear(config.hidden_size, config.hidden_size)
        self.dense = Linear(config.hidden_size, 2)

    def forward(self, first_BH: Tensor) -> Tensor:
        """Map the states of [CLS] (B, H) to logits (B, 2)."""
        return self.dense(self.pooler(first_BH).float().tanh())
