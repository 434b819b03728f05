"""TEAMS: replaced token detection, and the choice of the original among five tokens.

    c_t              the original and N = 4 tokens sampled from p_G without it,       candidates
                     one after the other without repetition, at each position of m
    h(x_corrupt)_t   states of all layers but the last, which the tasks share
    D                RTD's own last layer and head on h                               discriminator
    S                the selection's own last layer and head on h: softmax over c_t   selector
    L_MWS            mean of -log S(x_t) over m                                       selection_loss
    loss             L_MLM + lambda L_Disc + mu L_MWS                                 loss

A token's logit is the product of its embedding with the features of S. The generator may share its
first layers with h (generator.shared_layers).

Source: Shen et al. 2021, "Training ELECTRA Augmented with Multi-word Selection";
tensorflow/models official/projects/teams. There the encoder that is fine-tuned ends with S's last
layer; here with D's, unless method.kept_layer says otherwise.

Shape suffixes: B rows, L positions, S slots for masked positions in a row, M slots of all rows,
K = 1 + N candidates, H hidden size, E embedding size.
"""

from typing import cast

import torch
from torch import Tensor

from electra.method.masking import Counts, Draw, Means, predict_masked
from electra.method.objective import Network, Output, Parts
from electra.method.replaced_token_detection import ReplacedTokenDetection
from electra.model.batch import Batch
from electra.model.config import EncoderConfig
from electra.model.encoder import Encoder
from electra.model.heads import PredictionHead
from electra.model.masked_lm import states_at
from electra.objectives.config import TeamsConfig

NUM_OTHERS = 4


class Teams(ReplacedTokenDetection):
    """RTD and multi-word selection, trained jointly with the generator."""

    def __init__(self, parts: Parts):
        super().__init__(parts)
        self.masking.num_others = NUM_OTHERS
        kept = self.discriminator  # the selector has a last layer of its own
        self.selector = parts.new_encoder(kept.config, kept.embeddings)
        self.selector.share_layers(kept, kept.config.num_hidden_layers - 1)
        self.selection_head = SelectionHead(parts.model)
        method = cast(TeamsConfig, parts.method)
        self.keeps_selector = method.kept_layer == "selection"
        self.loss_weights["selection_loss"] = method.selection_weight

    @property
    def kept(self) -> Encoder:
        """The encoder that pre-training returns, with the last layer of `method.kept_layer`."""
        return self.selector if self.keeps_selector else self.discriminator

    @property
    def networks(self) -> dict[str, Network]:
        """Generator, discriminator and selector, which adds one layer to those it shares."""
        share, first = self.share_awake, len(self.selector.layers) - 1
        encoders, head = (self.selector,), self.selection_head
        selector = Network(encoders, head, "", "chosen", share, share, first_layer=first)
        return super().networks | {"selector": selector}

    def forward(self, batch: Batch, draw: Draw, counts: Counts) -> Output:
        """Return the weighted sum of the three losses; while the discriminator is frozen, L_MLM."""
        prediction, means = predict_masked(self.generator, self.masking, batch, draw, counts)
        if self.is_resting:
            return Output(prediction.loss, means)
        corrupt_ids_BL = self.masking.corrupt(batch.input_ids_BL, draw, prediction.sampled)
        corrupt = batch._replace(input_ids_BL=corrupt_ids_BL)
        ends = self.discriminator, self.selector
        judging_BLH, selecting_BLH = self.discriminator.fork(ends, *corrupt.inputs)
        disc_loss, of_disc, judgement = self.judge(corrupt_ids_BL, batch, draw, counts, judging_BLH)
        original_BS1 = batch.input_ids_BL.gather(1, draw.index_BS)[:, :, None]
        assert prediction.others is not None
        candidates_BSK = torch.cat([original_BS1, prediction.others], dim=-1)
        selection_loss, of_selection = self.select(selecting_BLH, candidates_BSK, draw, counts)
        losses = {"mlm_loss": prediction.loss, "disc_loss": disc_loss}
        return Output(
            self.weigh(losses | {"selection_loss": selection_loss}),
            means | of_disc | of_selection,
            judgement,
        )

    def select(
        self, hidden_BLH: Tensor, candidates_BSK: Tensor, draw: Draw, counts: Counts
    ) -> tuple[Tensor, Means]:
        """Return the rows' share of L_MWS, and its measures; the original is candidate 0."""
        logits_BSK = self.selection_head.select(
            states_at(draw.index_BS, hidden_BLH), self.selector.embeddings.tokens(candidates_BSK)
        )
        log_prob_BS = logits_BSK.log_softmax(dim=-1)[:, :, 0]
        is_right_BS = logits_BSK[:, :, 0] > logits_BSK[:, :, 1:].amax(dim=-1)
        total, number = -(log_prob_BS * draw.chosen_BS).sum(), draw.chosen_BS.sum()
        return total / counts.num_chosen, {
            "selection_loss": (total.detach(), number),
            "selection_accuracy": ((is_right_BS & draw.chosen_BS).sum(), number),
        }


class SelectionHead(PredictionHead):
    """Float32 logits: which of the candidates was at a position.

    Source: TEAMS, MultiWordSelectionHead of its released code.
    """

    def __init__(self, config: EncoderConfig):
        super().__init__(config, out_size=config.embedding_size)

    def select(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        """Map states (..., H) and the embeddings of K tokens each (..., K, E) to (..., K)."""
        return (embedded * self(hidden).float()[..., None, :]).sum(dim=-1)
