"""Export to folders that other programs load without this package.

From a pre-training run, or a Hugging Face folder of ELECTRA:
OUT/                ElectraForPreTraining: the discriminator with its head; or ElectraForMaskedLM if
                    the objective has no discriminator
OUT/generator/      ElectraForMaskedLM: the generator, if there is one

For the architecture modernbert these are ModernBertModel, with the discriminator's head in
discriminator_head.safetensors, and ModernBertForMaskedLM.

From a fine-tuning:
OUT/                ElectraForSequenceClassification, ElectraForTokenClassification,
                    ElectraForQuestionAnswering or ElectraForMultipleChoice; for modernbert the
                    same with ModernBert in their names

Each folder holds config.json, model.safetensors, the tokenizer, and electra.json with the model's
source and the sha256 of the files. The commands of this package check the sha256 on reading. OUT
also has README.md, the model card (card.py).

The form "bert" writes the classes of BERT instead, for programs that know BERT and not ELECTRA;
"sentence-transformers" the encoder up to one layer, and how its states are pooled. OUT/onnx/ is
written on request (onnx.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from electra import __version__
from electra.config import EncoderConfig, UserError, require
from electra.corpus.tokenizer import MODEL_MAX_LENGTH, Tokenizer
from electra.files import new_folder, read_object, write_hashes, write_json, write_text
from electra.runs.bert import DISCRIMINATOR_FILE, to_bert
from electra.runs.card import Card, describe_finetuning, describe_run, write_card
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
from electra.runs.huggingface_modern import network_head, network_to_modernbert, task_head
from electra.runs.manifest import find_commit
from electra.runs.onnx import Graph, write_onnx
from electra.runs.pretrained import (
    Pretrained,
    SavedNetwork,
    find_network,
    is_huggingface,
    load_pretrained,
    read_networks,
    tensors_below,
)
from electra.runs.sentence_transformers import Similarity, cut_layers, write_pooling

Form = Literal["huggingface", "bert"]


@dataclass(frozen=True)
class _Model:
    """An encoder and its head, as classes of transformers have them."""

    sizes: EncoderConfig
    encoder: Mapping[str, Tensor]
    """The encoder's parameters, under our names."""
    head: HuggingFaceHead
    tokenizer: Tokenizer
    length: int
    """Longest row of the training, tokens."""
    source: str


def export(
    run: Path,
    out: Path,
    *,
    form: Form = "huggingface",
    similarity: Similarity | None = None,
    onnx: bool = False,
    int8_text: Sequence[str] = (),
    scores: str = "",
) -> str:
    """Write the networks of a run, from its newest intact checkpoint, and return their class.

    Args:
        run: A run folder, or a Hugging Face folder of ELECTRA, as `electra import` writes it.
        out: The folder to write; must not exist.
        form: huggingface: the classes of ELECTRA, with the generator. bert: those of BERT.
        similarity: Layer and pooling of a folder for sentence-transformers; takes the place of
            `form`.
        onnx: Whether to write onnx/model.onnx, too.
        int8_text: Lines of real text: write onnx/model_int8.onnx, too, compared on them.
        scores: Table of the fine-tunings that began with these weights, for the card.

    Raises:
        UserError: `run` is no such folder or has no intact checkpoint, `out` exists, the form has
            no class for the networks, or a file does not agree with the network.
    """
    generator: SavedNetwork | None = None
    if is_huggingface(run):
        kept, tokenizer, length = _read_folder(run)
        source, facts = str(run), [("source", f"`{run.name}`")]
        if isinstance(kept, SavedNetwork) and kept.predicts == "replaced":
            inside = run / "generator"
            generator = find_network(inside, "tokens")[0] if inside.is_dir() else None
    else:
        networks = read_networks(run)
        kept, tokenizer = networks.kept, Tokenizer.load(run / "tokenizer")
        length = networks.config.examples.sequence_length
        source, facts = f"{run} at step {networks.step}", describe_run(run, networks.step)
        if networks.generator and networks.masked_lm is networks.generator:
            generator = networks.generator

    def describe(network: SavedNetwork | Pretrained) -> _Model:
        if isinstance(network, SavedNetwork) and network.sizes.architecture == "modernbert":
            _refuse_for_modernbert(run, form, bool(similarity), onnx or bool(int8_text))
            head = network_head(network.predicts, network.head)
        elif isinstance(network, Pretrained) or similarity:
            head = HuggingFaceHead("ElectraModel", {}, {})
        elif network.predicts == "tokens":
            tensors = head_to_huggingface(network.head, GENERATOR_HEAD)
            head = HuggingFaceHead("ElectraForMaskedLM", tensors, {})
        else:
            tensors = head_to_huggingface(network.head, DISCRIMINATOR_HEAD)
            head = HuggingFaceHead("ElectraForPreTraining", tensors, {})
        if isinstance(network, Pretrained):
            sizes, encoder = network.encoder, network.tensors
        else:
            sizes, encoder = network.sizes, network.encoders[0]
        return _Model(sizes, encoder, head, tokenizer, length, source)

    model = describe(kept)
    card = Card(out.name, model.head.architecture, model.sizes, facts, scores=scores)
    with new_folder(out) as folder:
        if similarity:
            model = _truncate(model, similarity)
        architecture = _write(
            folder, model, card, form, similarity=similarity, onnx=onnx, int8_text=int8_text
        )
        if generator and form == "huggingface" and not similarity:
            (folder / "generator").mkdir()
            _write_plain(folder / "generator", describe(generator))
    return architecture


def export_finetuned(
    finetuned: Finetuned,
    out: Path,
    *,
    form: Form = "huggingface",
    onnx: bool = False,
    int8_text: Sequence[str] = (),
) -> str:
    """Write the folder of a fine-tuned model, and return its class in transformers.

    The class computes the same outputs as the model in float32. The tokenizer truncates texts to
    the sequence length of the fine-tuning.

    Args:
        finetuned: The model of one seed.
        out: The folder to write; must not exist.
        form: As in `export`.
        onnx: As in `export`.
        int8_text: As in `export`.

    Raises:
        UserError: transformers has no class with the model's head, `out` exists, or a file does not
            agree with the network.
    """
    tensors = finetuned.tensors
    if finetuned.encoder.architecture == "modernbert":
        _refuse_for_modernbert(finetuned.run, form, False, onnx or bool(int8_text))
    model = _Model(
        finetuned.encoder,
        tensors_below("encoder.", tensors),
        convert_head(finetuned, tensors_below("head.", tensors)),
        finetuned.tokenizer,
        finetuned.config.sequence_length,
        f"{finetuned.run} at seed {finetuned.seed}",
    )
    facts, scores = describe_finetuning(finetuned)
    card = Card(out.name, model.head.architecture, model.sizes, facts, scores=scores)
    with new_folder(out) as folder:
        return _write(
            folder,
            model,
            card,
            form,
            max_length=finetuned.config.sequence_length,
            onnx=onnx,
            int8_text=int8_text,
        )


def _read_folder(folder: Path) -> tuple[SavedNetwork | Pretrained, Tokenizer, int]:
    """Return the network of a Hugging Face folder: discriminator, generator or bare encoder."""
    (architecture,) = read_object(folder / "config.json").get("architectures") or ["ElectraModel"]
    if architecture == "ElectraForPreTraining":
        return find_network(folder, "replaced")
    if architecture == "ElectraForMaskedLM":
        return find_network(folder, "tokens")
    require(
        architecture == "ElectraModel",
        f"{folder} holds a {architecture}; export the folder of its fine-tuning",
    )
    pretrained = load_pretrained(folder)
    return pretrained, pretrained.tokenizer, pretrained.sequence_length


def _refuse_for_modernbert(run: Path, form: Form, is_cut: bool, onnx: bool) -> None:
    what = (
        "the form bert"
        if form == "bert"
        else "the form sentence-transformers"
        if is_cut
        else "ONNX"
        if onnx
        else ""
    )
    require(
        not what,
        f"{run}: {what} is for the architecture electra; a plain export of modernbert is a folder "
        "that servers, sentence-transformers and torch's ONNX exporter take as it is",
    )


def _convert(model: _Model) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor]]:
    """Return config.json, the tensors, and those of a file of their own."""
    head = model.head
    if model.sizes.architecture == "modernbert":
        return network_to_modernbert(model.sizes, model.encoder, head, model.tokenizer)
    config = config_to_huggingface(model.sizes, head.architecture, model.tokenizer.pad_id)
    return config | head.settings, encoder_to_huggingface(model.encoder) | head.tensors, {}


def _truncate(model: _Model, similarity: Similarity) -> _Model:
    sizes, encoder = cut_layers(model.sizes, model.encoder, similarity.layer)
    return _Model(sizes, encoder, model.head, model.tokenizer, model.length, model.source)


def _write(
    folder: Path,
    model: _Model,
    card: Card,
    form: Form,
    *,
    max_length: int = MODEL_MAX_LENGTH,
    similarity: Similarity | None = None,
    onnx: bool,
    int8_text: Sequence[str],
) -> str:
    """Write all files of an export's main folder, and return the class."""
    head = model.head
    config, tensors, beside = _convert(model)
    if form == "bert":
        config, tensors, beside = to_bert(config, tensors)
    if similarity:
        max_length = model.length
    has_segments = model.sizes.architecture == "electra"
    model.tokenizer.write(folder, max_length=max_length, has_segments=has_segments)
    write_json(folder / "config.json", config)
    write_tensors(folder / "model.safetensors", tensors)
    if beside:
        write_tensors(folder / DISCRIMINATOR_FILE, beside)
    if similarity:
        write_pooling(folder, model.sizes.hidden_size, model.length, similarity)
    (architecture,) = config["architectures"]
    agreements = []
    if onnx or int8_text:
        bare = HuggingFaceHead("ElectraModel", {}, {})
        graph = Graph(model.sizes, model.encoder, bare if architecture.endswith("Model") else head)
        agreements = write_onnx(folder, graph, model.tokenizer, int8_text)
        write_hashes(folder / "onnx", source=model.source, electra=__version__)
    write_text(
        folder / "README.md", write_card(card, architecture, model.length, similarity, agreements)
    )
    write_hashes(folder, source=model.source, electra=__version__, commit=find_commit())
    return architecture


def _write_plain(folder: Path, model: _Model) -> None:
    has_segments = model.sizes.architecture == "electra"
    model.tokenizer.write(folder, has_segments=has_segments)
    config, tensors, _ = _convert(model)
    write_model(folder, model.source, config, tensors)


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
    is_modern = finetuned.encoder.architecture == "modernbert"
    if family in ("classification", "choice") and pooling != "cls" and not is_modern:
        raise UserError(
            f"{run}: transformers' classifiers read [CLS], which pooling={pooling} is not; "
            "fine-tune with --set pooling=cls to export, or use electra predict"
        )
    if is_modern:
        return _convert_modern_head(finetuned, head)
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
    weight, bias, labels = _name_answers(facts, weight, bias)
    return classification_head(weight, bias, labels)


def _name_answers(
    facts: Mapping[str, Any], weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, list[str]]:
    """Return weight and bias of a classifier or, in its range, of a regression; and its labels."""
    if not facts["label_range"]:
        return weight, bias, facts["labels"]
    least, greatest = facts["label_range"]
    return weight * (greatest - least), bias * (greatest - least) + least, facts["columns"][-1:]


def _convert_modern_head(finetuned: Finetuned, head: Mapping[str, Tensor]) -> HuggingFaceHead:
    """Return the head of a fine-tuned model of the architecture modernbert."""
    facts, config = finetuned.facts, finetuned.config
    family = facts["family"]
    labels = facts["labels"] if family in ("classification", "tagging") else []
    require(
        "inner.dense.weight" in head,
        f"{finetuned.run}: transformers' ModernBERT classes read one state of a row, and "
        "pooling=segments has several of a pair of texts; fine-tune with --set pooling=mean or "
        "pooling=cls to export, or use electra predict",
    )
    if family == "classification":
        weight, bias, labels = _name_answers(facts, head["dense.weight"], head["dense.bias"])
        head = {**head, "dense.weight": weight, "dense.bias": bias}
    # Of a single text, and in multiple choice, segments is the mean.
    pooling = "cls" if config.pooling == "cls" else "mean"
    dropout_prob = 0.0 if family == "squad" else config.dropout_prob
    return task_head(family, head, labels, pooling, dropout_prob)


def write_model(
    folder: Path, source: str, config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    """Write config.json, model.safetensors and electra.json into a folder with a tokenizer."""
    write_json(folder / "config.json", config)
    write_tensors(folder / "model.safetensors", tensors)
    write_hashes(folder, source=source, electra=__version__, commit=find_commit())
