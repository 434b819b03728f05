"""Export to Hugging Face folders, which transformers loads without this package.

From a pre-training run:
OUT/                ElectraForPreTraining: the discriminator with its head; or ElectraForMaskedLM if
                    the objective has no discriminator
OUT/generator/      ElectraForMaskedLM: the generator, if the run has one

From a fine-tuning:
OUT/                ElectraForSequenceClassification, ElectraForTokenClassification,
                    ElectraForQuestionAnswering or ElectraForMultipleChoice

Each folder holds config.json, model.safetensors, the tokenizer, and electra.json with the model's
source and the sha256 of the files. The commands of this package check the sha256 on reading.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from electra import __version__
from electra.config import UserError, require
from electra.corpus.tokenizer import Tokenizer
from electra.files import new_folder, write_hashes, write_json
from electra.runs.checkpoint import write_tensors
from electra.runs.finetuned import Finetuned
from electra.runs.huggingface import (
    DISCRIMINATOR_HEAD,
    GENERATOR_HEAD,
    config_to_huggingface,
    encoder_to_huggingface,
    head_to_huggingface,
)
from electra.runs.huggingface_heads import (
    HuggingFaceHead,
    choice_head,
    classification_head,
    span_head,
    tagging_head,
)
from electra.runs.manifest import find_commit
from electra.runs.pretrained import SavedNetwork, read_networks, tensors_below


def export(run: Path, out: Path) -> None:
    """Write the Hugging Face folders of a pre-training run, from its newest intact checkpoint.

    Args:
        run: The run folder.
        out: The folder to write; must not exist.

    Raises:
        UserError: `run` is not a run folder or has no intact checkpoint, or `out` exists.
    """
    networks = read_networks(run)
    tokenizer = Tokenizer.load(run / "tokenizer")

    def write(folder: Path, network: SavedNetwork) -> None:
        is_masked_lm = network.predicts == "tokens"
        architecture = "ElectraForMaskedLM" if is_masked_lm else "ElectraForPreTraining"
        head = head_to_huggingface(
            network.head, GENERATOR_HEAD if is_masked_lm else DISCRIMINATOR_HEAD
        )
        tokenizer.write(folder)
        write_model(
            folder,
            f"{run} at step {networks.step}",
            config_to_huggingface(network.sizes, architecture, tokenizer.pad_id),
            encoder_to_huggingface(network.encoders[0]) | head,
        )

    with new_folder(out) as folder:
        write(folder, networks.kept)
        if networks.generator and networks.masked_lm is networks.generator:
            (folder / "generator").mkdir()
            write(folder / "generator", networks.generator)


def export_finetuned(finetuned: Finetuned, out: Path) -> str:
    """Write the Hugging Face folder of a fine-tuned model, and return its class in transformers.

    The class computes the same outputs as the model in float32. The tokenizer truncates texts to
    the sequence length of the fine-tuning.

    Args:
        finetuned: The model of one seed.
        out: The folder to write; must not exist.

    Raises:
        UserError: transformers has no class with the model's head, or `out` exists.
    """
    tensors, tokenizer = finetuned.tensors, finetuned.tokenizer
    head = convert_head(finetuned, tensors_below("head.", tensors))
    encoder = encoder_to_huggingface(tensors_below("encoder.", tensors))
    config = config_to_huggingface(finetuned.encoder, head.architecture, tokenizer.pad_id)
    with new_folder(out) as folder:
        tokenizer.write(folder, max_length=finetuned.config.sequence_length)
        source = f"{finetuned.run} at seed {finetuned.seed}"
        write_model(folder, source, config | head.settings, encoder | head.tensors)
    return head.architecture


def convert_head(finetuned: Finetuned, head: Mapping[str, Tensor]) -> HuggingFaceHead:
    """Return the head of a fine-tuned model as the head of a class in transformers.

    Args:
        finetuned: Facts and settings of the model.
        head: The head's parameters.

    Raises:
        UserError: transformers has no class with the model's head.
    """
    run, facts, pooling = finetuned.run, finetuned.facts, finetuned.config.pooling
    family = facts["family"]
    require(
        not finetuned.config.features.layers,
        f"{run}: transformers has no class that reads features; use electra predict",
    )
    if family == "squad" and facts["head"] != "plain":
        raise UserError(
            f"{run}: transformers has no class with a {facts['head']} head; fine-tune with --set "
            "squad.head=plain to export, or use electra predict"
        )
    if family in ("classification", "choice") and pooling != "cls":
        raise UserError(
            f"{run}: transformers' classifiers read [CLS], which pooling={pooling} is not; "
            "fine-tune with --set pooling=cls to export, or use electra predict"
        )
    require(
        set(head) == {"dense.weight", "dense.bias"},
        f"{run}: transformers has no class with a head of {', '.join(sorted(head))}; use electra "
        "predict",
    )
    weight, bias = head["dense.weight"], head["dense.bias"]
    if family == "tagging":
        return tagging_head(weight, bias, facts["labels"])
    if family == "squad":
        return span_head(weight, bias)
    if family == "choice":
        return choice_head(weight, bias)
    labels = facts["labels"]
    if facts["label_range"]:
        least, greatest = facts["label_range"]
        weight, bias = weight * (greatest - least), bias * (greatest - least) + least
        labels = facts["columns"][-1:]
    return classification_head(weight, bias, labels)


def write_model(
    folder: Path, source: str, config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    """Write config.json, model.safetensors and electra.json into a folder with a tokenizer."""
    write_json(folder / "config.json", config)
    write_tensors(folder / "model.safetensors", tensors)
    write_hashes(folder, source=source, electra=__version__, commit=find_commit())
