"""A network as one function of its inputs: encoder and head, what an ONNX file holds.

Shape suffixes: B rows of the batch, C choices of a row, L positions, H hidden size.
"""

from collections.abc import Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.config import EncoderConfig
from electra.model.encoder import Encoder
from electra.model.heads import ClassifierHead, GeneratorHead, PairHead
from electra.model.span_heads import SpanHead
from electra.runs.checkpoint import load_parameters

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
Kind = Literal[
    "",
    "PreTraining",
    "MaskedLM",
    "SequenceClassification",
    "TokenClassification",
    "QuestionAnswering",
    "MultipleChoice",
]
"""What a network answers, as the names of transformers' classes end; empty: hidden states."""


def list_inputs(sizes: EncoderConfig, head: nn.Module | None) -> tuple[str, ...]:
    """Return the names of a network's inputs."""
    has_segments = sizes.architecture == "electra" or isinstance(head, PairHead)
    return INPUTS if has_segments else INPUTS[:2]


class Graph(nn.Module):
    """A network with the outputs that transformers' class of its kind has, if there is one.

    Args:
        sizes: Sizes of the encoder.
        encoder: The encoder's parameters, under our names.
        kind: What the head answers.
        head: The head, with its parameters; None: there is none.
        is_number: Whether the head's logit is a number, not that of a class.
    """

    def __init__(
        self,
        sizes: EncoderConfig,
        encoder: Mapping[str, Tensor],
        kind: Kind = "",
        head: nn.Module | None = None,
        *,
        is_number: bool = False,
    ) -> None:
        super().__init__()
        self.encoder = Encoder(sizes)  # of plain layers, which torch can trace
        load_parameters(self.encoder, encoder)
        self.kind, self.head, self.is_number = kind, head, is_number
        self.is_pair = isinstance(head, PairHead)
        self.inputs = list_inputs(sizes, head)
        self.eval().requires_grad_(False)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs."""
        if self.kind == "QuestionAnswering":
            return "start_logits", "end_logits"
        return ("logits",) if self.kind else ("last_hidden_state",)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return the outputs, float32."""
        head = self.head
        if self.kind == "MultipleChoice":
            assert isinstance(head, ClassifierHead)
            types = None if token_type_ids is None else token_type_ids.flatten(0, 1)
            mask = attention_mask.flatten(0, 1)
            logit_B1 = head(self.encoder(input_ids.flatten(0, 1), mask, types), mask)
            return logit_B1.view(input_ids.shape[0], input_ids.shape[1])
        hidden_BLH = self.encoder(input_ids, attention_mask, token_type_ids)
        if head is None:
            return hidden_BLH
        if isinstance(head, PairHead):
            embeddings = self.encoder.embeddings(input_ids, token_type_ids)
            states = torch.cat([hidden_BLH, embeddings], dim=-1)
            return head(states, attention_mask, token_type_ids)
        if isinstance(head, ClassifierHead):
            return head(hidden_BLH, attention_mask)
        if isinstance(head, GeneratorHead):
            return F.linear(head(hidden_BLH), self.encoder.embeddings.tokens.weight, head.bias)
        if isinstance(head, SpanHead):  # transformers' class does not forbid positions
            start_BL, end_BL = head.dense(head.inner(hidden_BLH)).unbind(dim=-1)
            return start_BL, end_BL
        return head(hidden_BLH)
