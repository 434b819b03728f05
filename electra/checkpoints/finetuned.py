"""Read a fine-tuned model from a folder of `electra finetune`: facts, settings and files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from electra.checkpoints.checkpoint import read_tensors
from electra.config import EncoderConfig, FinetuneConfig
from electra.errors import UserError, require
from electra.files import check_hashes, read_object
from electra.settings import from_dict
from electra.tokenizing.tokenizer import Tokenizer


@dataclass(frozen=True)
class Finetuned:
    """The model of one seed of a finished fine-tuning."""

    run: Path
    """Folder of the fine-tuning."""
    seed: int
    facts: dict[str, Any]
    """"task", "family", "columns", and the arguments of `Family.from_facts`."""
    encoder: EncoderConfig
    """Sizes of the encoder."""
    config: FinetuneConfig
    """The resolved settings of the fine-tuning."""

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The parameters, read from the file: "encoder.x" of the encoder, "head.x" of the head."""
        return read_tensors(_model_folder(self.run, self.seed) / "model.safetensors")

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, read from the model's folder."""
        return Tokenizer.load(_model_folder(self.run, self.seed) / "tokenizer")


def is_finetuned(folder: Path) -> bool:
    """Return whether a folder was written by `electra finetune`, finished or not."""
    path = folder / "config.json"
    return path.is_file() and "task" in read_object(path)


def read_finetuned(run: Path, seed: int | None = None) -> Finetuned:
    """Return the model of one seed.

    Args:
        run: A finished folder of `electra finetune`.
        seed: The seed. None: the seed with the best headline metric on dev, among all seeds and the
            replacements of collapsed seeds.

    Raises:
        UserError: `run` is not a finished folder of `electra finetune`, does not have the seed, or
            the model is damaged.
    """
    require(
        is_finetuned(run) and (run / "results.json").is_file(),
        f"{run} is not a finished folder of `electra finetune`: it must have a config.json with a "
        "task, and a results.json",
    )
    results = read_object(run / "results.json")
    require(
        "best" not in results,
        f"{run} holds several fine-tunings; take one of them: {run}/{results.get('best')}",
    )
    try:
        headlines = {
            int(number): record["scores"][results["metric"]]
            for number, record in (results["seeds"] | results.get("replacements", {})).items()
        }
        columns = results["columns"]
        config = from_dict(FinetuneConfig, read_object(run / "config.json")["config"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{run} is not a folder that `electra finetune` wrote: {error!r}") from None
    if seed is None:
        seed = max(headlines, key=lambda number: headlines[number])
    require(
        seed in headlines,
        f"{run} has no seed {seed}; choose from {', '.join(map(str, headlines))}",
    )
    check_hashes(_model_folder(run, seed))
    path = _model_folder(run, seed) / "config.json"
    facts = read_object(path)
    try:
        encoder = from_dict(EncoderConfig, facts["encoder"])
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is not the config of a fine-tuned model: {error!r}") from None
    return Finetuned(run, seed, {**facts, "columns": columns}, encoder, config)


def _model_folder(run: Path, seed: int) -> Path:
    return run / f"seed-{seed}" / "model"
