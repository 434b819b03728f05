"""Output layers of fine-tuning: to rows, pairs of texts, tokens and spans.

Their parameters fit transformers' classes for ELECTRA and ModernBERT, where these have such a head.

Shape suffixes: B rows of the batch, L positions, H hidden size, C classes, S width of the states of
a token, F width of the features that a layer reads, D inner width of a two-layer head, K layers
read as features or places in a beam.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from electra.model.config import EncoderConfig
from electra.model.features_config import FeaturesConfig
from electra.model.heads import PredictionHead
from electra.model.parts import Dropout, Linear

BEAM_SIZE = 20
"""Number of starts that are followed up, and of ends kept for each start. Source:
configure_finetuning.py beam_size."""

INNER_SIZE = 512
"""Inner width D of the two-layer heads. Source: qa_tasks.py."""

UNANSWERABLE_WEIGHT = 0.5
"""Weight of the answerability loss. Source: configure_finetuning.py answerable_weight."""


def _build_inner(config: EncoderConfig) -> nn.Module:
    """Return the part before the last layer of a head of transformers; ELECTRA's has none."""
    return PredictionHead(config) if config.has_inner_layer else nn.Identity()


class ClassifierHead(nn.Module):
    """Dropout and one linear layer on a row's state, or on every token's: float32 logits.

    The state of a row is that of [CLS] (paper; classification_tasks.py get_prediction_module), or
    the mean over its tokens: replaced token detection does not teach [CLS] to sum up its row, and a
    small or briefly trained encoder does not learn this in a few epochs of fine-tuning.

    Args:
        config: Sizes of the encoder.
        num_classes: C; 1 for a regression.
        dropout_prob: Dropout on the state.
        pooling: Which state of the row; none: those of all tokens, as tagging_tasks.py has it,
            without dropout.
    """

    def __init__(
        self,
        config: EncoderConfig,
        num_classes: int,
        dropout_prob: float,
        pooling: Literal["cls", "mean", "none"],
    ):
        super().__init__()
        self.pooling = pooling
        self.inner = _build_inner(config)
        self.dropout = Dropout(dropout_prob)
        self.dense = Linear(config.hidden_size, num_classes)

    def forward(self, hidden_BLH: Tensor, attention_mask_BL: Tensor | None) -> Tensor:
        """Return logits (B, C), or (B, L, C); the mask is False at padding, None without any."""
        if self.pooling == "none":
            state = hidden_BLH.float()
        else:
            state = _pool(hidden_BLH, attention_mask_BL, self.pooling)
        return self.dense(self.dropout(self.inner(state)))


class VectorHead(nn.Module):
    """The state of [CLS], or the mean over the row's tokens, as a float32 vector of length 1."""

    def __init__(self, pooling: Literal["cls", "mean"]):
        super().__init__()
        self.pooling = pooling

    def forward(self, hidden_BLH: Tensor, attention_mask_BL: Tensor | None) -> Tensor:
        """Return vectors (B, H); the mask is False at padding, None without any."""
        return F.normalize(_pool(hidden_BLH, attention_mask_BL, self.pooling), dim=-1)


class PairHead(nn.Module):
    """Dropout and one linear layer on the states of two texts: (B, L, S) to float32 (B, C).

    The layer reads the mean u over the first text's tokens, that of the second, v, |u - v| and
    u * v. Source: Conneau et al. 2017, "Supervised Learning of Universal Sentence Representations"
    (section 3.1), which encodes the two texts apart; here one row holds both. A token's state is
    that of the last layer and its embedding, side by side: the last layer of a discriminator shows
    how plausible a token is rather than what it means.
    """

    def __init__(self, state_size: int, num_classes: int, dropout_prob: float):
        super().__init__()
        self.dropout = Dropout(dropout_prob)
        self.dense = Linear(4 * state_size, num_classes)

    def forward(
        self, state_BLS: Tensor, attention_mask_BL: Tensor | None, token_type_ids_BL: Tensor
    ) -> Tensor:
        """Return float32 logits (B, C).

        [CLS] and the first [SEP] belong to the first text, of segment 0.
        """
        is_second_BL = token_type_ids_BL.bool()
        is_first_BL = ~is_second_BL
        if attention_mask_BL is not None:
            is_first_BL = is_first_BL & attention_mask_BL.bool()
        u_BS, v_BS = _mean(state_BLS, is_first_BL), _mean(state_BLS, is_second_BL)
        pair_BF = torch.cat([u_BS, v_BS, (u_BS - v_BS).abs(), u_BS * v_BS], dim=1)
        return self.dense(self.dropout(pair_BF))


def _pool(
    hidden_BLH: Tensor, attention_mask_BL: Tensor | None, pooling: Literal["cls", "mean"]
) -> Tensor:
    """Return the state of each row (B, H), float32."""
    if pooling == "cls":
        return hidden_BLH[:, 0].float()
    if attention_mask_BL is None:
        return hidden_BLH.float().mean(dim=1)
    return _mean(hidden_BLH, attention_mask_BL)


def _mean(hidden_BLH: Tensor, is_counted_BL: Tensor) -> Tensor:
    """Return the mean (B, H), float32, over the positions that count, of which there are some."""
    share_BL = is_counted_BL / is_counted_BL.sum(dim=1, keepdim=True)
    return (hidden_BLH.float() * share_BL[:, :, None]).sum(dim=1)


class SpanHead(nn.Module):
    """One linear layer: a logit to start and a logit to end at each position, each on its own.

    Source: BERT; transformers' ElectraForQuestionAnswering calls the layer `qa_outputs`.
    """

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.inner = _build_inner(config)
        self.dense = Linear(config.hidden_size, 2)

    @property
    def without_initialiser(self) -> list[nn.Module]:
        """Maps for which the released code names no initialiser: all."""
        return [layer for layer in self.modules() if isinstance(layer, Linear)]

    def forward(self, states_BLH: Tensor, token_type_ids_BL: Tensor) -> dict[str, Tensor]:
        """Return `start_logits` and `end_logits`, (B, L) float32."""
        logits_BL2 = self.dense(self.inner(states_BLH.float()))
        forbidden_BL = ~answer_positions(token_type_ids_BL)
        logits_BL2 = logits_BL2.masked_fill(forbidden_BL[:, :, None], -torch.inf)
        start_BL, end_BL = logits_BL2.unbind(dim=-1)
        return {"start_logits": start_BL, "end_logits": end_BL}


class BeamSpanHead(nn.Module):
    """A start, an end given that start, and whether there is an answer at all.

    In training the start is given: the right one. Otherwise the likeliest starts are followed up,
    each with its likeliest ends.

    The layer that judges an end reads [start ; end], of size 2H, for every pair. It is applied as
    W [a ; b] = W1 a + W2 b, W2 b once and one start after the other, so that (B, L, D) is the
    largest tensor where the released code has (B, K, L, 2H).

    Source: section 3.1, after XLNet; qa_tasks.py get_prediction_module.
    """

    def __init__(self, hidden_size: int):
        super().__init__()
        self.start = Linear(hidden_size, 1)
        self.end_inner = Linear(2 * hidden_size, INNER_SIZE)
        self.end = Linear(INNER_SIZE, 1)
        self.unanswerable_inner = Linear(2 * hidden_size, INNER_SIZE)
        self.unanswerable = Linear(INNER_SIZE, 1)

    @property
    def without_initialiser(self) -> list[nn.Module]:
        """Maps for which the released code names no initialiser: all."""
        return [layer for layer in self.modules() if isinstance(layer, Linear)]

    def forward(
        self, states_BLH: Tensor, token_type_ids_BL: Tensor, start_B: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Return float32 `unanswerable` (B,), the log-odds that the row holds no answer, and more.

        Given the starts, these are `start_logits` and `end_logits` (B, L), else the beam, best
        first: `start_scores` (B, K) and `end_scores` (B, K, K), log-probabilities, -inf where a row
        has fewer positions than the beam; `starts` and `ends`, the positions, likewise.
        """
        states_BLH = states_BLH.float()
        allowed_BL = answer_positions(token_type_ids_BL)
        start_logits_BL = self.start(states_BLH).squeeze(-1).masked_fill(~allowed_BL, -torch.inf)
        start_weight_DH, end_weight_DH = self.end_inner.weight.chunk(2, dim=1)
        as_end_BLD = F.linear(states_BLH, end_weight_DH)
        rows_B = torch.arange(len(states_BLH), device=states_BLH.device)

        def end_logits_after(chosen_B: Tensor) -> Tensor:
            start_BH = states_BLH[rows_B, chosen_B]
            as_start_BD = F.linear(start_BH, start_weight_DH, self.end_inner.bias)
            logits_BL = self.end(F.gelu(as_start_BD[:, None] + as_end_BLD)).squeeze(-1)
            return logits_BL.masked_fill(~allowed_BL, -torch.inf)

        outputs = {"unanswerable": self._judge(states_BLH, start_logits_BL)}
        if start_B is not None:
            end_logits_BL = end_logits_after(start_B)
            return {**outputs, "start_logits": start_logits_BL, "end_logits": end_logits_BL}
        start_scores_BK, starts_BK = _beam(start_logits_BL)
        beams = [_beam(end_logits_after(chosen_B)) for chosen_B in starts_BK.unbind(dim=1)]
        end_scores, ends = zip(*beams, strict=True)
        return {
            **outputs,
            "start_scores": start_scores_BK,
            "starts": starts_BK,
            "end_scores": torch.stack(end_scores, dim=1),
            "ends": torch.stack(ends, dim=1),
        }

    def _judge(self, states_BLH: Tensor, start_logits_BL: Tensor) -> Tensor:
        """Return (B,) logits of "no answer" from the expected start's state and that of [CLS]."""
        start_BH = (start_logits_BL.softmax(dim=-1)[:, :, None] * states_BLH).sum(dim=1)
        both_B2H = torch.cat([start_BH, states_BLH[:, 0]], dim=1)
        return self.unanswerable(F.gelu(self.unanswerable_inner(both_B2H))).squeeze(-1)


def answer_positions(token_type_ids_BL: Tensor) -> Tensor:
    """Return the positions that an answer may have: those of the text, and [CLS]; (B, L) bool."""
    is_text_BL = token_type_ids_BL == 1
    # The last position of segment 1 is [SEP]; those before another of its positions are text.
    allowed_BL = is_text_BL & F.pad(is_text_BL[:, 1:], (0, 1))
    allowed_BL[:, 0] = True
    return allowed_BL


def _beam(logits_BL: Tensor) -> tuple[Tensor, Tensor]:
    """Return log-probabilities and positions of the likeliest, (B, K) each, best first."""
    missing = max(0, BEAM_SIZE - logits_BL.shape[1])
    scores_BK, places_BK = logits_BL.log_softmax(dim=-1).topk(BEAM_SIZE - missing)
    return F.pad(scores_BK, (0, missing), value=-torch.inf), F.pad(places_BK, (0, missing))


def span_loss(outputs: dict[str, Tensor], targets: dict[str, Tensor]) -> Tensor:
    """Return the mean cross-entropy of start and end, plus half that of "no answer" if judged.

    Args:
        outputs: Those of a SpanHead, or of a BeamSpanHead that was given the starts.
        targets: `start` and `end` (B,), 0 where the row holds no answer; `unanswerable` (B,).

    Source: qa_tasks.py; the released code adds up the rows of a batch.
    """
    loss = F.cross_entropy(outputs["start_logits"], targets["start"]) / 2
    loss = loss + F.cross_entropy(outputs["end_logits"], targets["end"]) / 2
    if "unanswerable" in outputs:
        loss = loss + UNANSWERABLE_WEIGHT * F.binary_cross_entropy_with_logits(
            outputs["unanswerable"], targets["unanswerable"].float()
        )
    return loss


class LayerSum(nn.Module):
    """The sum of K layers, weighted by a learnt softmax and scaled by a learnt factor.

    It begins as their mean. Source: ELMo, equation 1.
    """

    def __init__(self, num_layers: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_layers))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, states_KBLH: Tensor) -> Tensor:
        """Map the K layers' states to one (B, L, H)."""
        return self.scale * torch.einsum("k,kblh->blh", self.weight.softmax(0), states_KBLH)


class FeatureHead(nn.Module):
    """Layers of an encoder, a BiLSTM over the row's tokens and a linear layer: float32 logits.

    Padding never changes the logits of a token or a row. This head does not decide whether the
    encoder learns; the code that supplies the states does.

    Args:
        hidden_size: H.
        num_classes: C.
        config: K; whether its layers are side by side (F = K * H) or become their LayerSum
            (F = H); and the BiLSTMs, each on the one before it.
        of: What is classified: each token by its own state, or the row by both last states.
        dropout_prob: Dropout on the features and before the linear layer.
    """

    def __init__(
        self,
        hidden_size: int,
        num_classes: int,
        config: FeaturesConfig,
        *,
        of: Literal["tokens", "row"],
        dropout_prob: float,
    ):
        super().__init__()
        self.num_layers, self.of = config.layers, of
        is_sum = config.combine == "sum"
        self.layer_sum = LayerSum(config.layers) if is_sum else None
        features_size = hidden_size if is_sum else config.layers * hidden_size
        self.dropout = Dropout(dropout_prob)
        lstm_size = config.lstm_size or hidden_size
        self.lstm = nn.LSTM(
            features_size, lstm_size, config.lstm_layers, batch_first=True, bidirectional=True
        )
        self.dense = Linear(2 * lstm_size, num_classes)

    def forward(self, states_KBLH: Tensor, attention_mask_BL: Tensor | None) -> Tensor:
        """Return logits (B, L, C) of tokens, or (B, C) of rows, which are padded at their ends."""
        states_KBLH = states_KBLH.float()
        if self.layer_sum is None:
            features_BLF = self.dropout(states_KBLH.permute(1, 2, 0, 3).flatten(2))
        else:
            features_BLF = self.dropout(self.layer_sum(states_KBLH))
        states_BLF, last_BF = run_lstm(self.lstm, features_BLF, attention_mask_BL)
        return self.dense(self.dropout(last_BF if self.of == "row" else states_BLF))


def run_lstm(
    lstm: nn.LSTM, features_BLF: Tensor, attention_mask_BL: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the states (B, L, F) of a BiLSTM over rows, and its last ones (B, F).

    Rows are padded at their ends, which the states before do not depend on. Both directions are
    side by side.
    """
    num_rows, num_positions = features_BLF.shape[:2]
    lengths_B = torch.full((num_rows,), num_positions)
    if attention_mask_BL is not None:
        lengths_B = attention_mask_BL.sum(dim=1).cpu()
    packed = pack_padded_sequence(features_BLF, lengths_B, batch_first=True, enforce_sorted=False)
    outputs, (last, _) = lstm(packed)
    states_BLF, _ = pad_packed_sequence(outputs, batch_first=True, total_length=num_positions)
    return states_BLF, torch.cat([last[-2], last[-1]], dim=-1)  # the top layer's two directions
