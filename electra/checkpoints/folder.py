"""The one reader of model folders: a run, a checkpoint, a Hugging Face folder, a fine-tuning.

Names and sizes are read from headers and JSON files, each tensor when it is used.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from electra.assignments import from_dict
from electra.checkpoints.bundled import ENCODERS, find_model
from electra.checkpoints.checkpoint import (
    FILES,
    STATE,
    Weights,
    find_checkpoint,
    read_tensors,
    run_of,
)
from electra.checkpoints.manifest import read_manifest
from electra.checkpoints.saved import (
    SavedModel,
    SavedNetwork,
    fit_encoder,
    is_finetuned,
    is_huggingface,
)
from electra.errors import refuse_unlike, require
from electra.files import check_hashes, named, read_object
from electra.model.config import EncoderConfig
from electra.tokenizing.tokenizer import Tokenizer
from electra.training.config import PretrainConfig

TOKENS = "embeddings.tokens.weight"
"""Name of an encoder's token embeddings."""


def read_model(folder: Path, seed: int | None = None) -> SavedModel:
    """Return the model in a folder of any kind; of a fine-tuning that of a seed, or of the best."""
    folder = find_model(folder)
    if not is_finetuned(folder):
        return read_pretrained(folder)
    from electra.checkpoints.finetuned import read_finetuned

    return read_finetuned(folder, seed)


def read_sizes(folder: Path) -> EncoderConfig:
    """Return the sizes of the encoder in a folder, as `read_model` has; no weights are read."""
    folder = named(find_model(folder))
    if is_finetuned(folder):
        from electra.checkpoints.finetuned import find_seed

        return find_seed(folder).sizes
    if is_huggingface(folder):
        from electra.checkpoints.huggingface import read_names_and_sizes

        return read_names_and_sizes(folder)[1]
    return read_run_config(run_of(folder)).model


def read_pretrained(folder: Path) -> SavedModel:
    """Return the pre-trained networks in a folder: the newest intact ones of a run.

    The generator of a Hugging Face folder may be in its folder `generator`, as `electra export`
    and `electra import` write it.
    """
    folder = named(find_model(folder))
    check_hashes(folder)
    require(
        (run_of(folder) / "config.json").is_file() and not is_finetuned(folder),
        f"{folder} is neither a run of `electra pretrain` nor a Hugging Face folder",
    )
    if not is_huggingface(folder):
        return _read_run(folder)
    from electra.checkpoints.huggingface import read_huggingface

    found = read_huggingface(folder)
    is_bundled = folder.parent == ENCODERS  # whose path says nothing on another machine
    return replace(found, source=folder.name) if is_bundled else found


def read_run_config(run: Path) -> PretrainConfig:
    """Return the settings of a run folder."""
    path = run / "config.json"
    require(path.is_file(), f"{run} is not a run folder of `electra pretrain`: no config.json")
    values = read_object(path)
    require(
        "train" in values,
        f"{path} is not the config of a run, but of "
        f"{'a fine-tuning' if 'task' in values else 'another model'}",
    )
    if (run / "manifest.json").is_file():
        read_manifest(run)  # which refuses another format
    with refuse_unlike(f"{path} is not the config of a run"):
        return from_dict(PretrainConfig, values)


def _read_run(folder: Path) -> SavedModel:
    """Return the networks of a run's newest intact checkpoint, or of the one that is named."""
    run = run_of(folder)
    config = read_run_config(run)
    step, checkpoint = find_checkpoint(folder)
    tensors = read_tensors(checkpoint / FILES[0])
    state, taken_names = read_object(checkpoint / STATE), set[str]()

    def take(places: Mapping[str, str], added: str = "") -> Weights:
        names = {
            f"{place}.{name}" if place else name: f"{prefix}.{name}"
            for place, prefix in places.items()
            for name in tensors.below(f"{prefix}.")
        }
        taken_names.update((*names.values(), added))
        taken = tensors.rename(names)

        def load(name: str) -> Tensor:
            tensor = taken.read(name)
            return tensor + tensors[added] if added and name == TOKENS else tensor

        return Weights(taken.headers, load)

    def read(role: str) -> SavedNetwork:
        network = state["networks"][role]
        sizes, added = from_dict(EncoderConfig, network["sizes"]), network.get("added", "")
        encoders = [fit_encoder(take(each, added), sizes, role) for each in network["encoders"]]
        return SavedNetwork(network["predicts"], sizes, tuple(encoders), take(network["head"]))

    with refuse_unlike(f"{checkpoint / STATE} does not list the networks: it is damaged"):
        networks = {role: read(role) for role in state["networks"]}
        kept = networks[state["kept"]]
        if "next_sentence" in networks:
            kept = replace(kept, next_sentence=networks["next_sentence"].head)
        if not kept.predicts:
            kept = replace(kept, head={})
    return SavedModel(
        kept,
        Tokenizer.load(run / "tokenizer"),
        config.examples.sequence_length,
        f"{run} at step {step}",
        folder=run,
        generator=networks.get("generator"),
        networks=networks,
        modules={name: tensors[name] for name in tensors.headers.keys() - taken_names},
        step=step,
        files={(checkpoint / FILES[0]).relative_to(run).as_posix(): checkpoint / FILES[0]},
    )
