"""Export to folders that other programs load without this package.

From a pre-training run, or a Hugging Face folder of ELECTRA or ModernBERT:
OUT/                ElectraForPreTraining: the discriminator with its head; or ElectraForMaskedLM if
                    the objective has no discriminator
OUT/generator/      ElectraForMaskedLM: the generator, if there is one

For the architecture modernbert these are ModernBertModel, with the discriminator's head in
discriminator_head.safetensors, and ModernBertForMaskedLM.

Models of a fine-tuning are those of finetuning/export.py.

Each folder holds config.json, model.safetensors, the tokenizer, and electra.json with the model's
source and the sha256 of the files. The commands of this package check the sha256 on reading. OUT
also has README.md, the model card (card.py).

The form "bert" writes the classes of BERT instead, for programs that know BERT and not ELECTRA;
"sentence-transformers" the encoder up to one layer, and how its states are pooled. OUT/onnx/ is
written on request (onnx.py).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from electra.checkpoints.checkpoint import load_parameters, write_tensors
from electra.checkpoints.folder import (
    Pretrained,
    SavedNetwork,
    find_network,
    is_huggingface,
    load_pretrained,
    read_networks,
)
from electra.checkpoints.manifest import find_commit
from electra.checkpoints.names import (
    DISCRIMINATOR_FILE,
    DISCRIMINATOR_HEAD,
    GENERATOR_HEAD,
    HEAD_FILE,
    HuggingFaceHead,
    config_to_huggingface,
    encoder_to_huggingface,
    head_to_huggingface,
    network_head,
    network_to_modernbert,
    to_bert,
)
from electra.config import EncoderConfig
from electra.errors import require
from electra.files import new_folder, read_object, write_hashes, write_json, write_text
from electra.interop.card import Card, describe_run, write_card
from electra.interop.onnx import Graph, Kind, list_inputs, write_onnx
from electra.interop.sentence_transformers import Similarity, cut_layers, write_pooling
from electra.model.heads import DiscriminatorHead, GeneratorHead
from electra.tokenizing.tokenizer import MODEL_MAX_LENGTH, Tokenizer
from electra.version import __version__

Form = Literal["huggingface", "bert"]


@dataclass(frozen=True)
class Model:
    """A network, and its class in transformers."""

    sizes: EncoderConfig
    encoder: Mapping[str, Tensor]
    """The encoder's parameters, under our names."""
    head: HuggingFaceHead
    kind: Kind
    module: nn.Module | None
    """The head itself, with its parameters; None: there is none."""
    tokenizer: Tokenizer
    length: int
    """Longest row of the training, tokens."""
    source: str

    @property
    def graph(self) -> Graph:
        """The whole network."""
        is_number = self.head.settings.get("problem_type") == "regression"
        return Graph(self.sizes, self.encoder, self.kind, self.module, is_number=is_number)


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
        run: A run folder, one of its checkpoints, or a Hugging Face folder as `electra import`
            writes it.
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
        kept, tokenizer = networks.kept, networks.tokenizer
        length = networks.config.examples.sequence_length
        source, facts = networks.source, describe_run(networks.run, networks.step)
        if networks.generator and networks.masked_lm is networks.generator:
            generator = networks.generator

    model = describe(kept, tokenizer, length, source)
    if similarity:
        model = _truncate(model, similarity)
    card = Card(out.name, model.kind, model.sizes, facts, scores=scores)
    with new_folder(out) as folder:
        architecture = write_export(
            *(folder, model, card, form),
            max_length=length if similarity else MODEL_MAX_LENGTH,
            similarity=similarity,
            onnx=onnx,
            int8_text=int8_text,
        )
        if generator and form == "huggingface" and not similarity:
            (folder / "generator").mkdir()
            write_plain(folder / "generator", describe(generator, tokenizer, length, source))
    return architecture


def describe(
    network: SavedNetwork | Pretrained, tokenizer: Tokenizer, length: int, source: str
) -> Model:
    """Return a pre-trained network, or an encoder without a head, as transformers has it.

    Args:
        network: The network.
        tokenizer: Its tokenizer.
        length: Longest row of its training, tokens.
        source: Folder with step, for manifests.
    """
    if isinstance(network, Pretrained):
        head = _no_head(network.encoder)
        facts = tokenizer, length, source
        return Model(network.encoder, network.tensors, head, "", None, *facts)
    is_generator = network.predicts == "tokens"
    module = (GeneratorHead if is_generator else DiscriminatorHead)(network.sizes)
    load_parameters(module, network.head)
    kind: Kind = "MaskedLM" if is_generator else "PreTraining"
    if network.sizes.architecture == "modernbert":
        head = network_head(network.predicts, network.head)
    else:
        names = GENERATOR_HEAD if is_generator else DISCRIMINATOR_HEAD
        tensors = head_to_huggingface(network.head, names)
        head = HuggingFaceHead(f"ElectraFor{kind}", tensors, {})
    facts = tokenizer, length, source
    return Model(network.sizes, network.encoders[0], head, kind, module, *facts)


def _read_folder(folder: Path) -> tuple[SavedNetwork | Pretrained, Tokenizer, int]:
    """Return the network of a Hugging Face folder: discriminator, generator or bare encoder."""
    (architecture,) = read_object(folder / "config.json").get("architectures") or ["ElectraModel"]
    if architecture == "ElectraForPreTraining" or (folder / DISCRIMINATOR_FILE).is_file():
        return find_network(folder, "replaced")
    if architecture in ("ElectraForMaskedLM", "ModernBertForMaskedLM"):
        return find_network(folder, "tokens")
    is_bare = architecture in ("ElectraModel", "ModernBertModel")
    require(
        is_bare and not (folder / HEAD_FILE).is_file(),
        f"{folder} holds a fine-tuned {architecture}; export the folder of its fine-tuning",
    )
    pretrained = load_pretrained(folder)
    return pretrained, pretrained.tokenizer, pretrained.sequence_length


def _no_head(sizes: EncoderConfig) -> HuggingFaceHead:
    name = "ModernBertModel" if sizes.architecture == "modernbert" else "ElectraModel"
    return HuggingFaceHead(name, {}, {})


def convert(model: Model) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return config.json and the tensors of the class."""
    head = model.head
    if model.sizes.architecture == "modernbert":
        return network_to_modernbert(model.sizes, model.encoder, head, model.tokenizer)
    config = config_to_huggingface(model.sizes, head.architecture, model.tokenizer.pad_id)
    return config | head.settings, encoder_to_huggingface(model.encoder) | head.tensors


def _truncate(model: Model, similarity: Similarity) -> Model:
    sizes, encoder = cut_layers(model.sizes, model.encoder, similarity.layer)
    return dataclasses.replace(
        model, sizes=sizes, encoder=encoder, head=_no_head(sizes), kind="", module=None
    )


def write_export(
    folder: Path,
    model: Model,
    card: Card,
    form: Form,
    *,
    max_length: int,
    similarity: Similarity | None = None,
    onnx: bool,
    int8_text: Sequence[str],
) -> str:
    """Write all files of an export's main folder, and return the class.

    Args:
        folder: The folder, empty.
        model: The network.
        card: What its card says.
        form: As in `export`.
        max_length: Tokens to which transformers truncates.
        similarity: As in `export`.
        onnx: As in `export`.
        int8_text: As in `export`.
    """
    config, tensors = convert(model)
    beside = model.head.beside
    if form == "bert":
        config, tensors, judge = to_bert(config, tensors)
        beside = judge or beside
    has_segments = "token_type_ids" in list_inputs(model.sizes, model.module)
    model.tokenizer.write(folder, max_length=max_length, has_segments=has_segments)
    write_json(folder / "config.json", config)
    write_tensors(folder / "model.safetensors", tensors)
    if beside:
        name = DISCRIMINATOR_FILE if model.kind == "PreTraining" else HEAD_FILE
        write_tensors(folder / name, beside)
    if similarity:
        write_pooling(folder, model.sizes.hidden_size, model.length, similarity)
    (architecture,) = config["architectures"]
    agreements = []
    if onnx or int8_text:
        agreements = write_onnx(folder, model.graph, model.tokenizer, int8_text)
        write_hashes(folder / "onnx", source=model.source, electra=__version__)
    write_text(
        folder / "README.md", write_card(card, architecture, model.length, similarity, agreements)
    )
    write_hashes(folder, source=model.source, electra=__version__, commit=find_commit())
    return architecture


def write_plain(folder: Path, model: Model, max_length: int = MODEL_MAX_LENGTH) -> None:
    """Write a network into an existing folder, without a card."""
    has_segments = model.sizes.architecture == "electra"
    model.tokenizer.write(folder, max_length=max_length, has_segments=has_segments)
    if model.head.beside:
        write_tensors(folder / DISCRIMINATOR_FILE, model.head.beside)
    write_model(folder, model.source, *convert(model))


def write_model(
    folder: Path, source: str, config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    """Write config.json, model.safetensors and electra.json into a folder with a tokenizer."""
    write_json(folder / "config.json", config)
    write_tensors(folder / "model.safetensors", tensors)
    write_hashes(folder, source=source, electra=__version__, commit=find_commit())
