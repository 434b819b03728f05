"""Networks and sizes of a Hugging Face folder."""

import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from electra.checkpoints.checkpoint import Weights, read_tensors
from electra.checkpoints.names import (
    ARCHITECTURES,
    DISCRIMINATOR_FILE,
    NEXT_SENTENCE_FILE,
    Architecture,
)
from electra.checkpoints.parameters import gather
from electra.checkpoints.saved import WEIGHTS_FILE, SavedModel, SavedNetwork, read_config_file
from electra.errors import command, require, tell_place
from electra.files import check_hashes, read_object
from electra.model.config import EncoderConfig
from electra.objectives.masked_language_modelling import NextSentenceHead
from electra.tokenizing.tokenizer import Tokenizer

UNTIED = ("generator_lm_head.weight", "cls.predictions.decoder.weight", "decoder.weight")
"""Names in transformers of a softmax's matrix, which here are the token embeddings."""


def find_networks(
    architecture: Architecture, sizes: EncoderConfig, theirs: Weights, judge: Weights | None = None
) -> dict[str, SavedNetwork]:
    """Return the networks that transformers' tensors hold, by what they predict.

    The keys are "replaced" and "tokens" for such heads, "next" for a causal encoder's, and "" if
    there is no head. `judge` is the discriminator's head, if it has a file of its own.
    """
    encoders = (architecture.read_encoder(theirs, sizes),)
    judging = (
        architecture.read_head("PreTraining", theirs, sizes)
        if judge is None
        else architecture.read_beside(judge, sizes)
    )
    found: dict[str, SavedNetwork] = {}
    if judging:
        found["replaced"] = SavedNetwork("replaced", sizes, encoders, judging)
    head = architecture.read_head("CausalLM" if sizes.causal else "MaskedLM", theirs, sizes)
    table = encoders[0]["embeddings.tokens.weight"]
    if head and any(n in theirs and not torch.equal(theirs[n], table) for n in UNTIED):
        warnings.warn(
            "the output matrix is not tied to the embeddings and was not loaded", stacklevel=2
        )
    elif head and sizes.causal:
        found["next"] = SavedNetwork("next", sizes, encoders, head)
    elif head:
        found["tokens"] = SavedNetwork("tokens", sizes, encoders, head)
    return found or {"": SavedNetwork("", sizes, encoders)}


def read_huggingface(folder: Path) -> SavedModel:
    """Return the networks of a Hugging Face folder."""
    architecture, sizes = read_names_and_sizes(folder)
    names = (WEIGHTS_FILE, DISCRIMINATOR_FILE, NEXT_SENTENCE_FILE)
    files = {name: folder / name for name in names if (folder / name).is_file()}
    require(
        WEIGHTS_FILE in files,
        f"{folder} has no {WEIGHTS_FILE}; `{command('import', folder, '--out', 'start')}` turns "
        "pytorch_model.bin, or weights in parts, into a folder that has it",
    )
    found = {name: read_tensors(path) for name, path in files.items()}
    with tell_place(folder):
        judge = found.get(DISCRIMINATOR_FILE)
        networks = find_networks(architecture, sizes, found[WEIGHTS_FILE], judge)
        kept = next(iter(networks.values()))
        if kept.predicts == "replaced" and read_config_file(folder).get("predicts") == "energy":
            kept = replace(kept, predicts="energy")  # of Electric
        if pooler := found.get(NEXT_SENTENCE_FILE):
            kept = replace(kept, next_sentence=gather(partial(NextSentenceHead, sizes), pooler))
    generator = networks.get("tokens") if kept.predicts == "replaced" else None
    if (folder / "generator" / "config.json").is_file():
        check_hashes(folder / "generator")
        inside = read_huggingface(folder / "generator")
        generator = inside.masked_lm
        files |= {f"generator/{name}": path for name, path in inside.files.items()}
    return SavedModel(
        kept,
        Tokenizer.load(folder),
        read_length(folder, sizes),
        str(folder),
        folder=folder,
        generator=generator,
        files=files,
    )


def read_names_and_sizes(folder: Path) -> tuple[Architecture, EncoderConfig]:
    """Return the names and the sizes that config.json of a Hugging Face folder says."""
    values = read_object(folder / "config.json")
    kind = values.get("model_type")
    readable = [each for each in ARCHITECTURES if each != "bert"]
    require(
        str(kind) in readable,
        f"{folder}: model_type must be {' or '.join(readable)}, not {kind!r}"
        + f"; `{command('import', folder, '--out', 'start')}` makes it electra" * (kind == "bert"),
    )
    with tell_place(folder):
        return ARCHITECTURES[str(kind)], ARCHITECTURES[str(kind)].read_config(values)


def read_length(folder: Path, sizes: EncoderConfig) -> int:
    """Return the longest row of a Hugging Face folder, tokens: trained, and with positions.

    It is `sequence_length` in config.json, which exports have, else `model_max_length` in
    tokenizer_config.json. It is at most the number of positions, which is also the default.
    """
    told = read_object(folder / "config.json").get("sequence_length")
    if told is None and (folder / "tokenizer_config.json").is_file():
        told = read_object(folder / "tokenizer_config.json").get("model_max_length")
    most = sizes.max_position_embeddings
    return int(min(told, most)) if isinstance(told, int | float) and told >= 1 else most
