"""Fine-tuned heads in transformers' words: the class, its parameters and what its config.json adds.

Each answers as ours does. Shape suffixes: H hidden, C classes.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

GELU_IS_IDENTITY = 6.0
"""From here on GELU(x) is x in float32: the normal distribution has 1e-9 left above it."""


class HuggingFaceHead(NamedTuple):
    """What stands on the encoder in one of transformers' classes."""

    architecture: str
    tensors: dict[str, Tensor]
    settings: dict[str, Any]
    """Of config.json, beside the encoder's."""


def bound_states(gamma_H: Tensor, beta_H: Tensor) -> Tensor:
    """Return (H,) what the absolute values of a layer norm's outputs never exceed.

    A normalised vector's mean square is at most 1, so none of its H values exceeds sqrt(H).
    """
    return gamma_H.abs() * len(gamma_H) ** 0.5 + beta_H.abs()


def classification_head(
    weight_CH: Tensor, bias_C: Tensor, *, bound_H: Tensor, labels: Sequence[str]
) -> HuggingFaceHead:
    """Return a linear layer on [CLS] as ElectraForSequenceClassification, which has two.

    Theirs is out_proj(GELU(dense(h))). Our h passes through the first unchanged, but for rounding:
    dense adds to each value what lifts it to where GELU is the identity, and the bias of out_proj
    takes it away again.

    Args:
        weight_CH: Of our layer.
        bias_C: Likewise.
        bound_H: What the absolute values of h never exceed.
        labels: Their names; of a regression one, that of the number.
    """
    lift_H = (bound_H + GELU_IS_IDENTITY).ceil()
    lowered_C = bias_C.double() - weight_CH.double() @ lift_H.double()
    tensors = {
        "classifier.dense.weight": torch.eye(len(lift_H)),
        "classifier.dense.bias": lift_H,
        "classifier.out_proj.weight": weight_CH,
        "classifier.out_proj.bias": lowered_C.float(),
    }
    kind = "regression" if len(labels) == 1 else "single_label_classification"
    settings = {"problem_type": kind, **_name_labels(labels)}
    return HuggingFaceHead("ElectraForSequenceClassification", tensors, settings)


def tagging_head(weight_CH: Tensor, bias_C: Tensor, labels: Sequence[str]) -> HuggingFaceHead:
    """Return a linear layer on every position as ElectraForTokenClassification."""
    tensors = {"classifier.weight": weight_CH, "classifier.bias": bias_C}
    return HuggingFaceHead("ElectraForTokenClassification", tensors, _name_labels(labels))


def span_head(weight_2H: Tensor, bias_2: Tensor) -> HuggingFaceHead:
    """Return the logits of starts and ends as ElectraForQuestionAnswering.

    Theirs are finite at positions where no answer may stand, too: its users leave these out.
    """
    tensors = {"qa_outputs.weight": weight_2H, "qa_outputs.bias": bias_2}
    return HuggingFaceHead("ElectraForQuestionAnswering", tensors, {})


def choice_head(weight_1H: Tensor, bias_1: Tensor) -> HuggingFaceHead:
    """Return a logit for each choice's [CLS] as ElectraForMultipleChoice, without its summary."""
    settings = {
        "summary_type": "first",
        "summary_use_proj": False,
        "summary_activation": "linear",  # theirs for "none"
    }
    tensors = {"classifier.weight": weight_1H, "classifier.bias": bias_1}
    return HuggingFaceHead("ElectraForMultipleChoice", tensors, settings)


def _name_labels(labels: Sequence[str]) -> dict[str, Any]:
    return {
        "id2label": {str(place): label for place, label in enumerate(labels)},
        "label2id": {label: place for place, label in enumerate(labels)},
    }
