"""Export to folders that other programs load without this package.

docs/ARTEFACTS.md lists the files. The network that is kept is in OUT, and the generator in
OUT/generator. Where transformers has no class with a head, OUT is the encoder, and the head is in
a file beside it; the card has the lines that use both. An ONNX file (onnx.py) holds the network
with its head in either case.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from electra.checkpoints.checkpoint import load_parameters, write_tensors
from electra.checkpoints.finetuned import Finetuned, read_finetuned
from electra.checkpoints.folder import read_pretrained
from electra.checkpoints.manifest import find_commit
from electra.checkpoints.names import (
    ARCHITECTURES,
    DISCRIMINATOR_FILE,
    ELECTRA,
    HEAD_FILE,
    MODERNBERT,
    MODERNBERT_DECODER,
    NEXT_SENTENCE_FILE,
    expand_classifier,
)
from electra.checkpoints.saved import SavedModel, SavedNetwork, is_finetuned
from electra.errors import UserError, require, tell_place
from electra.files import new_folder, read_object, write_hashes, write_json, write_text
from electra.interop.card import describe_finetuning, describe_run, write_card
from electra.interop.gguf import GGUF_FILE, write_gguf
from electra.interop.onnx import Agreements, Graph, list_inputs, write_onnx
from electra.interop.sentence_transformers import Similarity, cut_layers, write_pooling
from electra.model.config import EncoderConfig
from electra.model.heads import DiscriminatorHead, GeneratorHead, Kind
from electra.model.task_heads import ClassifierHead
from electra.tasks.registry import restore_family
from electra.tokenizing.formats import KNOWN_NAMES
from electra.tokenizing.tokenizer import Tokenizer
from electra.version import __version__

Form = Literal["huggingface", "bert", "gguf"]
Dtype = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True)
class Outgoing:
    """A network and the facts in its folder."""

    network: SavedNetwork
    kind: Kind
    module: nn.Module | None
    """The head itself, with its parameters; None: there is none."""
    tokenizer: Tokenizer
    length: int
    """Longest row of the training, tokens."""
    source: str
    has_class: bool = True
    """Whether transformers' class of the kind has such a head."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The fields of config.json of a class with this head."""
    dtype: Dtype = "float32"
    """The dtype of the stored weights."""
    is_of_task: bool = False
    """Whether it is fine-tuned; then a "[SEP]" within a text is plain text."""

    @property
    def graph(self) -> Graph:
        """The whole network."""
        is_number = self.settings.get("problem_type") == "regression"
        sizes, encoder = self.network.sizes, self.network.encoders[0]
        thresholds = [*self.settings.get("thresholds", {}).values()]
        borders = torch.tensor(thresholds).logit(eps=1e-6).tolist()
        head = self.kind, self.module
        return Graph(sizes, encoder, *head, is_number=is_number, borders=borders)

    def cut(self, layer: int) -> "Outgoing":
        """Return the encoder up to a layer, without a head."""
        network = cut_layers(self.network, layer)
        return replace(self, network=network, kind="", module=None, settings={})


def export(
    source: Path,
    out: Path,
    *,
    seed: int | None = None,
    form: Form = "huggingface",
    dtype: Dtype = "float32",
    similarity: Similarity | None = None,
    onnx: bool = False,
    int8_text: Sequence[str] = (),
    scores: str = "",
) -> str:
    """Write the folder of a model, and return its class in transformers.

    Outputs equal the model's in float32, unless `dtype` rounds the weights. The longest row
    is that of the training. Refuses a form without a class for the network, and a file whose
    outputs differ from the network's.

    The arguments are those of `electra.export`; `similarity` takes the place of `form`, `int8_text`
    are lines of real text, and `scores` is a table for the card of a run.
    """
    generator = None
    if is_finetuned(source):
        finetuned = read_finetuned(source, seed)
        outgoing, (facts, scores) = describe_finetuned(finetuned), describe_finetuning(finetuned)
    else:
        model = read_pretrained(source)
        outgoing, generator = describe_pretrained(model)
        facts = (
            [("source", f"`{model.folder.name}`")]
            if model.step is None
            else describe_run(model.folder, model.step)
        )
    outgoing = replace(outgoing, dtype=dtype)
    if similarity or form == "gguf":
        whole = outgoing.network.sizes.num_hidden_layers
        outgoing = outgoing.cut(similarity.layer if similarity else whole)
    with new_folder(out) as folder:
        architecture = _write_form(folder, outgoing, form)
        if similarity:
            write_pooling(folder, outgoing.network.sizes.hidden_size, outgoing.length, similarity)
        parts = {"": outgoing}
        if generator and form == "huggingface" and not similarity:
            generator = parts["generator/"] = replace(generator, dtype=dtype)
            (folder / "generator").mkdir()
            write_plain(folder / "generator", generator)
        agreements = _add_onnx(folder, parts, int8_text) if onnx or int8_text else {}
        card = write_card(
            *(out.name, architecture, (outgoing.kind, outgoing.network.sizes, outgoing.module)),
            *(outgoing.length, facts, scores),
            settings=outgoing.settings,
            similarity=similarity,
            agreements=agreements,
            has_generator=len(parts) > 1,
        )
        _sign(folder, outgoing.source)
        write_text(folder / "README.md", card)  # not signed: its publisher adds to it
    return architecture


def _add_onnx(folder: Path, parts: Mapping[str, Outgoing], text: Sequence[str]) -> Agreements:
    """Write onnx/ of each network, beside its folder's weights; return what the card says."""
    agreements: Agreements = {}
    for name, part in parts.items():
        place = folder / name
        found = write_onnx(place, part.graph, part.tokenizer, text, is_beside=bool(name))
        agreements |= {f"{name}onnx/{file}": facts for file, facts in found.items()}
        write_hashes(place / "onnx", source=part.source, electra=__version__)
    return agreements


def describe_pretrained(model: SavedModel) -> tuple[Outgoing, Outgoing | None]:
    """Return what is written of a pre-trained model, and of its generator if it has one."""
    kept = _choose_network(model) if model.step is None else model.kept
    about = model.tokenizer, model.sequence_length, model.source
    beside = model.masked_lm if model.generator and kept.predicts else None
    return describe(kept, *about), describe(beside, *about) if beside else None


def describe(network: SavedNetwork, tokenizer: Tokenizer, length: int, source: str) -> Outgoing:
    """Return a pre-trained network, or an encoder without a head, as transformers has it."""
    if not network.predicts:
        return Outgoing(network, "", None, tokenizer, length, source)
    kinds: dict[str, Kind] = {"tokens": "MaskedLM", "next": "CausalLM"}
    kind = kinds.get(network.predicts, "PreTraining")
    module = (GeneratorHead if kind.endswith("LM") else DiscriminatorHead)(network.sizes)
    load_parameters(module, network.head)
    return Outgoing(network, kind, module, tokenizer, length, source)


def describe_finetuned(model: Finetuned) -> Outgoing:
    """Return a fine-tuned network as the class in transformers has it that has its layers."""
    config, sizes = model.config, model.encoder
    require(
        not (config.features.layers or config.bilstm),
        f"{model.folder}: transformers has no class with a BiLSTM, and torch's exporter none over "
        "rows of several lengths; use electra predict",
    )
    require(
        not sizes.applies_last_twice,
        f"{model.folder}: transformers has no class with an enhanced mask decoder; fine-tune the "
        "discriminator, or use electra predict",
    )
    family, source = restore_family(model.facts), f"{model.folder} at seed {model.seed}"
    with tell_place(model.folder):
        written = family.as_transformers(model.kept.head)
    if written is None:
        raise UserError(
            f"{model.folder}: transformers has no class for the family {model.facts['family']!r}, "
            "or its as_transformers does not name one; use electra predict"
        )
    kind, parameters, settings = written
    if not kind:
        bare = describe(model.kept, model.tokenizer, config.sequence_length, source)
        return replace(bare, is_of_task=True)
    module = family.build_head(sizes, config)
    load_parameters(module, parameters)
    return Outgoing(
        SavedNetwork("", sizes, model.kept.encoders, parameters),
        kind,
        module,
        model.tokenizer,
        config.sequence_length,
        source,
        _has_class(kind, module, sizes),
        {**settings, **_describe_head(kind, module, sizes, config.dropout_prob)},
        is_of_task=True,
    )


def _has_class(kind: Kind, head: nn.Module, sizes: EncoderConfig) -> bool:
    """Return whether transformers' class of a kind has the head of a task."""
    if kind not in ("SequenceClassification", "MultipleChoice"):
        return True
    if not isinstance(head, ClassifierHead):
        return False
    if sizes.architecture == "modernbert":
        return True
    is_expanded = sizes.architecture == "electra" and kind == "SequenceClassification"
    fits = not is_expanded or 2 * head.dense.out_features <= sizes.hidden_size
    return head.pooling == "cls" and fits  # see `expand_classifier`


def _describe_head(
    kind: Kind, head: nn.Module, sizes: EncoderConfig, dropout_prob: float
) -> dict[str, Any]:
    """Return the fields of config.json that make an architecture's class compute a head."""
    pooling = getattr(head, "pooling", "none")
    if sizes.architecture == "modernbert":
        settings: dict[str, Any] = {
            "classifier_dropout": dropout_prob if hasattr(head, "dropout") else 0.0
        }
        return settings | ({} if pooling == "none" else {"classifier_pooling": pooling})
    if sizes.architecture == "electra" and kind == "MultipleChoice":
        # The class has a summary layer before the linear one: the state of [CLS], unchanged.
        return {
            "summary_type": "first",
            "summary_use_proj": False,
            "summary_activation": "linear",  # no activation
        }
    return {}


def _choose_network(model: SavedModel) -> SavedNetwork:
    """Return the network that a Hugging Face folder names, so that the export keeps its class."""
    values = read_object(model.folder / "config.json")
    names = values.get("architectures") or ["ElectraModel"]
    is_one = isinstance(names, list) and len(names) == 1 and isinstance(names[0], str)
    require(is_one, f"{model.folder}: architectures must name one class, not {names!r}")
    name = names[0]
    if name.endswith("ForPreTraining") or DISCRIMINATOR_FILE in model.files:
        return model.kept if model.kept.predicts == "energy" else model.network("replaced")
    if name.endswith("ForMaskedLM"):  # beside which a generator may be
        return model.kept if model.kept.predicts == "tokens" else model.network("tokens")
    if name.endswith("ForCausalLM") and model.kept.predicts == "next":
        return model.kept
    require(
        name.endswith("Model") and not (model.folder / HEAD_FILE).is_file(),
        f"{model.folder} holds a fine-tuned {name}; export the folder of its fine-tuning",
    )
    return replace(model.kept, predicts="", head={})


def convert(
    outgoing: Outgoing, form: Form = "huggingface"
) -> tuple[dict[str, Any], dict[str, Tensor], Mapping[str, Tensor]]:
    """Return config.json and the tensors of the class, and those of a head beside it."""
    sizes, head = outgoing.network.sizes, outgoing.network.head
    require(
        form != "bert" or sizes.architecture == "electra",
        f"BERT has learned positions, {sizes.architecture} has not: export without --as bert",
    )
    known = sizes.architecture in ARCHITECTURES
    require(known, f"transformers has no class of the body {sizes.architecture}: use electra embed")
    architecture = ARCHITECTURES["bert" if form == "bert" else sizes.architecture]
    kind = outgoing.kind if outgoing.has_class else ""
    if sizes.causal and architecture is MODERNBERT and kind in ("", "CausalLM"):
        architecture = MODERNBERT_DECODER
    name = architecture.class_name(kind)
    config = architecture.write_config(sizes, name, outgoing.tokenizer)
    config |= outgoing.settings if outgoing.has_class else {}
    config["sequence_length"] = outgoing.length
    if outgoing.network.predicts == "energy":  # the class is that of a discriminator
        config["predicts"] = "energy"
    has_head = kind in architecture.heads
    require(
        has_head or kind in ("", "PreTraining"),
        f"BERT has no class with the head of {ELECTRA.class_name(kind)}: its own reads a pooler "
        "with tanh; export without --as bert",
    )
    beside = {} if has_head else head
    if outgoing.kind == "PreTraining":
        beside = architecture.to_beside(beside)
    if "inner" in architecture.heads.get(kind, {}):
        head = expand_classifier(head["dense.weight"], head["dense.bias"])
    tensors = architecture.to_theirs(outgoing.network.encoders[0], head, kind)
    pooler = outgoing.network.next_sentence
    if kind == "MaskedLM" and form == "bert" and pooler:
        config["architectures"] = ["BertForPreTraining"]
        tensors |= architecture.to_theirs({}, pooler, "NextSentencePrediction")
    return config, tensors, beside


def write_network(folder: Path, outgoing: Outgoing, form: Form = "huggingface") -> str:
    """Write config.json and the weights into an existing folder, and return the class."""
    config, tensors, beside = convert(outgoing, form)
    write_json(folder / "config.json", config | {"dtype": outgoing.dtype})

    def write(name: str, tensors: Mapping[str, Tensor]) -> None:
        dtype = getattr(torch, outgoing.dtype)
        write_tensors(folder / name, {name: value.to(dtype) for name, value in tensors.items()})

    write("model.safetensors", tensors)
    if beside:
        name = DISCRIMINATOR_FILE if outgoing.kind == "PreTraining" else HEAD_FILE
        write(name, beside)
    (architecture,) = config["architectures"]
    if outgoing.network.next_sentence and architecture != "BertForPreTraining":
        write(NEXT_SENTENCE_FILE, outgoing.network.next_sentence)
    return str(architecture)


def write_plain(folder: Path, outgoing: Outgoing) -> None:
    """Write a network into an existing folder, without a card."""
    _write_form(folder, outgoing, "huggingface")
    _sign(folder, outgoing.source)


def _write_form(folder: Path, outgoing: Outgoing, form: Form) -> str:
    """Write network and tokenizer, and return its class, or its graph in llama.cpp."""
    if form == "gguf":
        return write_gguf(folder / GGUF_FILE, outgoing.network, outgoing.tokenizer, outgoing.length)
    tokenizer, length = outgoing.tokenizer, outgoing.length
    has_segments = "token_type_ids" in list_inputs(outgoing.network.sizes, outgoing.module)
    tokenizer.write(folder, length, has_segments, is_literal=outgoing.is_of_task)
    names = zip(KNOWN_NAMES, tokenizer.special_tokens, strict=True)
    write_json(folder / "special_tokens_map.json", {f"{role}_token": each for role, each in names})
    return write_network(folder, outgoing, form)


def _sign(folder: Path, source: str) -> None:
    write_hashes(folder, source=source, electra=__version__, commit=find_commit())
