"""Convert fine-tuned heads to transformers: class, parameters and fields of config.json.

The class computes the same logits as our head, and can be trained further.

Shape suffixes: H hidden size, C classes.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from electra.config import require

HEAD_FILE = "head.safetensors"
"""A fine-tuned head that transformers has no class with, beside the encoder; under our names."""


class HuggingFaceHead(NamedTuple):
    """The head of a class in transformers."""

    architecture: str
    """Name of the class."""
    tensors: dict[str, Tensor]
    """The head's parameters, under the names of the class."""
    settings: dict[str, Any]
    """The head's fields of config.json."""
    beside: Mapping[str, Tensor] = {}
    """Parameters of a head that the class has not, under our names, for a file of their own."""


def classification_head(
    weight_CH: Tensor, bias_C: Tensor, labels: Sequence[str]
) -> HuggingFaceHead:
    """Return a linear layer on [CLS] as the two-layer head of ElectraForSequenceClassification.

    The class computes out_proj(GELU(dense(h))). Since GELU(x) - GELU(-x) = x, two hidden units with
    opposite weights pass a logit on unchanged. The C pairs of units are repeated as often as H
    units allow, and out_proj averages the copies. Dropout and gradients are then spread over the
    layer as in an ordinary head. The remaining H % 2C units are zero and stay zero in training.

    Args:
        weight_CH: Weight of the linear layer.
        bias_C: Bias of the linear layer.
        labels: Names of the classes; for a regression, one name for the number.

    Raises:
        UserError: There are more than H / 2 classes.
    """
    num_classes, hidden_size = weight_CH.shape
    copies = hidden_size // (2 * num_classes)
    require(
        copies >= 1,
        f"transformers' classifier with {hidden_size} hidden units can hold at most "
        f"{hidden_size // 2} labels of ours, not {num_classes}; use electra predict",
    )
    num_used = 2 * num_classes * copies
    dense_HH = torch.zeros(hidden_size, hidden_size)
    dense_HH[:num_used] = torch.cat([weight_CH, -weight_CH]).repeat(copies, 1)
    out_CH = torch.zeros(num_classes, hidden_size)
    eye_CC = torch.eye(num_classes) / copies
    out_CH[:, :num_used] = torch.cat([eye_CC, -eye_CC], dim=1).repeat(1, copies)
    tensors = {
        "classifier.dense.weight": dense_HH,
        "classifier.dense.bias": torch.zeros(hidden_size),
        "classifier.out_proj.weight": out_CH,
        "classifier.out_proj.bias": bias_C,
    }
    return HuggingFaceHead("ElectraForSequenceClassification", tensors, describe_labels(labels))


def tagging_head(weight_CH: Tensor, bias_C: Tensor, labels: Sequence[str]) -> HuggingFaceHead:
    """Return a linear layer on every position as the head of ElectraForTokenClassification."""
    tensors = {"classifier.weight": weight_CH, "classifier.bias": bias_C}
    return HuggingFaceHead("ElectraForTokenClassification", tensors, name_labels(labels))


def span_head(weight_2H: Tensor, bias_2: Tensor) -> HuggingFaceHead:
    """Return a linear layer to start and end logits as the head of ElectraForQuestionAnswering.

    The class also gives finite logits at positions that cannot be part of an answer, such as the
    question. The caller has to exclude these positions.
    """
    tensors = {"qa_outputs.weight": weight_2H, "qa_outputs.bias": bias_2}
    return HuggingFaceHead("ElectraForQuestionAnswering", tensors, {})


def choice_head(weight_1H: Tensor, bias_1: Tensor) -> HuggingFaceHead:
    """Return a linear layer on each choice's [CLS] as the head of ElectraForMultipleChoice.

    The class has a summary layer before the linear layer. The settings make the summary the hidden
    state of [CLS], unchanged.
    """
    settings = {
        "summary_type": "first",
        "summary_use_proj": False,
        "summary_activation": "linear",  # no activation
    }
    tensors = {"classifier.weight": weight_1H, "classifier.bias": bias_1}
    return HuggingFaceHead("ElectraForMultipleChoice", tensors, settings)


def describe_labels(labels: Sequence[str]) -> dict[str, Any]:
    """Return a classifier's fields of config.json; one label is the name of a number."""
    kind = "regression" if len(labels) == 1 else "single_label_classification"
    return {"problem_type": kind, **name_labels(labels)}


def name_labels(labels: Sequence[str]) -> dict[str, Any]:
    """Return the fields of config.json that name classes."""
    return {
        "id2label": {str(place): label for place, label in enumerate(labels)},
        "label2id": {label: place for place, label in enumerate(labels)},
    }
