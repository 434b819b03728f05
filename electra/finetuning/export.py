"""Export of fine-tuned models to folders that other programs load without this package.

OUT/                ElectraForSequenceClassification, ElectraForTokenClassification,
                    ElectraForQuestionAnswering or ElectraForMultipleChoice; for modernbert the
                    same with ModernBert in their names
OUT/head.safetensors
                    where transformers has no class with such a head: OUT is then ElectraModel or
                    ModernBertModel, and the card has the lines that use both

An ONNX file holds the network with its head in either case. The other files are those of
interop/export.py.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from electra.checkpoints.checkpoint import load_parameters
from electra.checkpoints.finetuned import Finetuned
from electra.checkpoints.folder import tensors_below
from electra.checkpoints.names import (
    HuggingFaceHead,
    choice_head,
    classification_head,
    describe_labels,
    span_head,
    tagging_head,
    task_head,
)
from electra.errors import UserError, require
from electra.files import new_folder
from electra.interop.card import Card, describe_finetuning
from electra.interop.export import Form, Model, write_export
from electra.interop.onnx import Kind
from electra.model.heads import PairHead
from electra.tasks.registry import restore_family

KINDS: dict[str, Kind] = {
    "classification": "SequenceClassification",
    "tagging": "TokenClassification",
    "squad": "QuestionAnswering",
    "choice": "MultipleChoice",
}
"""What a family of tasks answers."""


def export_finetuned(
    finetuned: Finetuned,
    out: Path,
    *,
    form: Form = "huggingface",
    onnx: bool = False,
    int8_text: Sequence[str] = (),
) -> str:
    """Write the folder of a fine-tuned model, and return its class in transformers.

    The class, or the encoder and its head, compute the same outputs as the model in float32. The
    tokenizer truncates texts to the sequence length of the fine-tuning.

    Args:
        finetuned: The model of one seed.
        out: The folder to write; must not exist.
        form: As in `runs.export.export`.
        onnx: As in `runs.export.export`.
        int8_text: As in `runs.export.export`.

    Raises:
        UserError: The model's head is none of those that can be exported, `out` exists, or a file
            does not agree with the network.
    """
    require_exportable(finetuned)
    tensors, length = finetuned.tensors, finetuned.config.sequence_length
    head = scale_answers(finetuned, tensors_below("head.", tensors))
    module = restore_family(finetuned.facts).build_head(finetuned.encoder, finetuned.config)
    load_parameters(module, head)
    kind = KINDS[finetuned.facts["family"]]
    model = Model(
        finetuned.encoder,
        tensors_below("encoder.", tensors),
        convert_head(finetuned, head),
        kind,
        module,
        finetuned.tokenizer,
        length,
        f"{finetuned.run} at seed {finetuned.seed}",
    )
    facts, scores = describe_finetuning(finetuned)
    card = Card(out.name, kind, model.sizes, facts, scores, is_pair=isinstance(module, PairHead))
    with new_folder(out) as folder:
        return write_export(
            *(folder, model, card, form), max_length=length, onnx=onnx, int8_text=int8_text
        )


def require_exportable(finetuned: Finetuned) -> None:
    """Refuse heads that are no function of one pass over a row.

    Raises:
        UserError: The head is a BiLSTM on features, or the beam of SQuAD.
    """
    run, facts = finetuned.run, finetuned.facts
    require(
        not finetuned.config.features.layers,
        f"{run}: transformers has no class that reads features, and torch's exporter no BiLSTM "
        "over rows of several lengths; use electra predict",
    )
    if facts["family"] == "squad" and facts["head"] != "plain":
        raise UserError(
            f"{run}: transformers has no class with a {facts['head']} head, which searches; "
            "fine-tune with --set squad.head=plain to export, or use electra predict"
        )


def scale_answers(finetuned: Finetuned, head: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a head's parameters; those of a regression give numbers in the labels' range."""
    label_range = finetuned.facts.get("label_range")
    if not label_range:
        return dict(head)
    least, greatest = label_range
    weight, bias = (head[f"dense.{name}"] * (greatest - least) for name in ("weight", "bias"))
    return {**head, "dense.weight": weight, "dense.bias": bias + least}


def convert_head(finetuned: Finetuned, head: Mapping[str, Tensor]) -> HuggingFaceHead:
    """Return the head of a fine-tuned model as the head of a class in transformers.

    Where no class has such a head, it is the bare encoder's, and the head lies beside it.

    Args:
        finetuned: Facts and settings of the model.
        head: The head's parameters, from `scale_answers`.
    """
    facts, pooling = finetuned.facts, finetuned.config.pooling
    family, labels = facts["family"], facts.get("labels") or []
    if facts.get("label_range"):
        labels = facts["columns"][-1:]
    is_modern = finetuned.encoder.architecture == "modernbert"
    is_classifier = family in ("classification", "choice")
    has_class = "inner.dense.weight" in head if is_modern else pooling == "cls"
    if is_classifier and not has_class:
        settings = describe_labels(labels) if family == "classification" else {}
        name = "ModernBertModel" if is_modern else "ElectraModel"
        return HuggingFaceHead(name, {}, settings, head)
    if is_modern:
        # Of a single text, and in multiple choice, segments is the mean.
        pooling = "cls" if pooling == "cls" else "mean"
        dropout_prob = 0.0 if family == "squad" else finetuned.config.dropout_prob
        return task_head(family, head, labels, pooling, dropout_prob)
    weight, bias = head["dense.weight"], head["dense.bias"]
    if family == "tagging":
        return tagging_head(weight, bias, labels)
    if family == "squad":
        return span_head(weight, bias)
    if family == "choice":
        return choice_head(weight, bias)
    return classification_head(weight, bias, labels)
