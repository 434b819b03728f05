"""Output layers on an encoder that answer a question with a span of the text in the same row.

Shape suffixes: B rows of the batch, L positions, H hidden size, K starts of the beam, D inner width
of a two-layer head.

A row is [CLS] question [SEP] text [SEP], of which text [SEP] is segment 1. An answer may begin and
end at tokens of the text; [CLS] stands for "no answer here". All other positions have logit -inf.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.model.mixed_precision import Linear

BEAM_SIZE = 20
"""Number of starts that are followed up, and of ends kept for each start. Source:
configure_finetuning.py beam_size."""
INNER_SIZE = 512
"""Inner width D of the two-layer heads. Source: qa_tasks.py."""
UNANSWERABLE_WEIGHT = 0.5
"""Weight of the answerability loss. Source: configure_finetuning.py answerable_weight."""


class SpanHead(nn.Module):
    """One linear layer: a logit to start and a logit to end at each position, each on its own.

    Source: BERT; transformers' ElectraForQuestionAnswering calls the layer `qa_outputs`.

    Args:
        hidden_size: H.
        inner: From `heads.build_inner`; None: nothing.
    """

    def __init__(self, hidden_size: int, inner: nn.Module | None = None):
        super().__init__()
        self.inner = inner or nn.Identity()
        self.dense = Linear(hidden_size, 2)

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
    """Return which positions an answer may stand at: those of the text, and [CLS]; (B, L) bool."""
    is_text_BL = token_type_ids_BL == 1
    # The last one is [SEP]: the text is what has another position of segment 1 behind it.
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
        outputs: Of a SpanHead, or of a BeamSpanHead that was given the starts.
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
