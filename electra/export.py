"""Export: a run folder in, Hugging Face folders out that transformers loads with no code of ours.

OUT/                ElectraForPreTraining: the discriminator with its head, and the tokenizer; of an
                    objective without discriminator ElectraForMaskedLM
OUT/generator/      ElectraForMaskedLM: the generator, if there is one, likewise
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
from electra.training.pretrained import generator_of, kept_encoder, read_run_config, tensors_below


def export(run: Path, out: Path) -> None:
    """Write the folders from a run's newest checkpoint.

    Raises:
        UserError: `run` is not a run folder or has no intact checkpoint; `out` exists.
    """
    config = read_run_config(run)
    _, checkpoint = find_checkpoint(run)
    tensors = read_tensors(checkpoint / FILES[0])
    tokenizer = Tokenizer.load(run / "tokenizer")
    kept = kept_encoder(tensors)
    head = tensors_below("discriminator_head.", tensors)
    generator = None if config.method.objective == "mlm" else generator_of(config, tensors)
    with new_folder(out) as folder:
        _write(
            folder,
            "ElectraForPreTraining" if head else "ElectraForMaskedLM",
            config.model,
            tokenizer,
            encoder_to_huggingface(kept)
            | (
                head_to_huggingface(head, DISCRIMINATOR_HEAD)
                if head
                else head_to_huggingface(tensors_below("mlm.head.", tensors), GENERATOR_HEAD)
            ),
        )
        if generator:
            sizes, parameters = generator
            (folder / "generator").mkdir()
            _write(
                folder / "generator",
                "ElectraForMaskedLM",
                sizes,
                tokenizer,
                encoder_to_huggingface(tensors_below("encoder.", parameters))
                | head_to_huggingface(tensors_below("head.", parameters), GENERATOR_HEAD),
            )


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
