"""Export: a run folder in, Hugging Face folders out that transformers loads with no code of ours.

OUT/                ElectraForPreTraining: the discriminator with its head, and the tokenizer
OUT/generator/      ElectraForMaskedLM: the generator with its head, and the tokenizer
"""

from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from electra.config import EncoderConfig
from electra.corpus.tokenizer import Tokenizer
from electra.files import new_folder, write_json
from electra.model.huggingface import (
    DISCRIMINATOR_HEAD,
    GENERATOR_HEAD,
    config_to_huggingface,
    encoder_to_huggingface,
    head_to_huggingface,
)
from electra.training.checkpoint import FILES, find_checkpoint, read_tensors
from electra.training.pretrained import read_run_config


def export(run: Path, out: Path) -> None:
    """Write the two folders from a run's newest checkpoint.

    Raises:
        UserError: `run` is not a run folder or has no intact checkpoint; `out` exists.
    """
    config = read_run_config(run)
    _, checkpoint = find_checkpoint(run)
    tensors = read_tensors(checkpoint / FILES[0])
    tokenizer = Tokenizer.load(run / "tokenizer")
    discriminator = _below("discriminator.", tensors)
    shared = {
        name: value for name, value in discriminator.items() if name.startswith("embeddings.")
    }
    with new_folder(out) as folder:
        _write(
            folder,
            "ElectraForPreTraining",
            config.model,
            tokenizer,
            encoder_to_huggingface(discriminator)
            | head_to_huggingface(_below("discriminator_head.", tensors), DISCRIMINATOR_HEAD),
        )
        (folder / "generator").mkdir()
        _write(
            folder / "generator",
            "ElectraForMaskedLM",
            config.generator.encoder(config.model),
            tokenizer,
            encoder_to_huggingface(shared | _below("generator.", tensors))
            | head_to_huggingface(_below("generator_head.", tensors), GENERATOR_HEAD),
        )


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }


def _write(
    folder: Path,
    architecture: str,
    config: EncoderConfig,
    tokenizer: Tokenizer,
    tensors: Mapping[str, Tensor],
) -> None:
    tokenizer.write(folder)
    write_json(
        folder / "config.json", config_to_huggingface(config, architecture, tokenizer.pad_id)
    )
    save_file(dict(tensors), folder / "model.safetensors", metadata={"format": "pt"})
