"""Export: write Hugging Face folders, which transformers loads with no code of ours.

Of a pre-training:
OUT/                ElectraForPreTraining, the discriminator with its head; ElectraForMaskedLM where
                    the objective has no discriminator
OUT/generator/      ElectraForMaskedLM, the generator, if there is one

Of a fine-tuning:
OUT/                ElectraForSequenceClassification, ElectraForTokenClassification,
                    ElectraForQuestionAnswering or ElectraForMultipleChoice

Each folder holds config.json, model.safetensors, the tokenizer, and electra.json: where the model
came from and the sha256 of the files, which our own verbs check when they read the folder.
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
from electra.runs.pretrained import SavedNetwork, read_networks, read_run_config, tensors_below


def export(run: Path, out: Path) -> None:
    """Write the folders of a pre-training from the newest checkpoint of its run folder.

    Raises:
        UserError: `run` is not a run folder or has no intact checkpoint; `out` exists.
    """
    read_run_config(run)  # says so if it is no run folder
    networks = read_networks(run)
    tokenizer = Tokenizer.load(run / "tokenizer")

    def write(folder: Path, network: SavedNetwork) -> None:
        is_masked_lm = network.predicts == "tokens"
        architecture = "ElectraForMaskedLM" if is_masked_lm else "ElectraForPreTraining"
        head = head_to_huggingface(
            network.head, GENERATOR_HEAD if is_masked_lm else DISCRIMINATOR_HEAD
        )
        tokenizer.write(folder)
        _write(
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
    """Write the folder of a fine-tuned model; return the name of its class in transformers.

    The class computes what the model computes in float32. The tokenizer truncates at the sequence
    length of the fine-tuning.

    Raises:
        UserError: transformers has no class with such a head; `out` exists.
    """
    tensors, tokenizer = finetuned.tensors, finetuned.tokenizer
    head = convert_head(finetuned, tensors_below("head.", tensors))
    encoder = encoder_to_huggingface(tensors_below("encoder.", tensors))
    config = config_to_huggingface(finetuned.encoder, head.architecture, tokenizer.pad_id)
    with new_folder(out) as folder:
        tokenizer.write(folder, max_length=finetuned.config.sequence_length)
        source = f"{finetuned.run} at seed {finetuned.seed}"
        _write(folder, source, config | head.settings, encoder | head.tensors)
    return head.architecture


def convert_head(finetuned: Finetuned, head: Mapping[str, Tensor]) -> HuggingFaceHead:
    """Return the head of a fine-tuned model as one of transformers' classes.

    Args:
        finetuned: The model's facts and settings.
        head: The head's parameters.

    Raises:
        UserError: transformers has no class with such a head.
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


def _write(
    folder: Path, source: str, config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    """Write what belongs beside the tokenizer in a folder."""
    write_json(folder / "config.json", config)
    write_tensors(folder / "model.safetensors", tensors)
    write_hashes(folder, source=source, electra=__version__, commit=find_commit())
