"""A model in a folder, loaded once for many calls."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from electra.errors import require, require_choice
from electra.verbs.options import Place, Precision

if TYPE_CHECKING:
    from electra.inference.network import LoadedEncoder, LoadedNetwork
    from electra.inference.predict import FinetunedModel
    from electra.inference.score import Scorer
    from electra.inference.search import Searcher

How = Literal["float32", "bfloat16", "auto"]


@dataclass(frozen=True)
class Model:
    """The networks in a folder; each is read when it is first used, and kept."""

    folder: Path
    seed: int | None = None
    """The seed of a fine-tuning; None: that with the best score on dev."""
    precision: How = "float32"
    """The dtype in which its answers are computed."""

    @cached_property
    def encoder(self) -> "LoadedEncoder":
        """The encoder, without a head."""
        from electra.inference.network import load_encoder

        return load_encoder(self.folder, self.seed, self.precision)

    @cached_property
    def discriminator(self) -> "LoadedNetwork":
        """The discriminator of a run, or of a Hugging Face folder."""
        from electra.inference.ask import load_asked

        return load_asked(self.folder, "replaced", self.precision)

    @cached_property
    def generator(self) -> "LoadedNetwork":
        """The generator, or a masked language model."""
        from electra.inference.ask import load_asked

        return load_asked(self.folder, "tokens", self.precision)

    @cached_property
    def scorer(self) -> "Scorer":
        """The network that pre-training returned, asked how likely sentences are."""
        from electra.inference.score import load_scorer

        return load_scorer(self.folder, precision=self.precision)

    @cached_property
    def finetuned(self) -> "FinetunedModel":
        """The fine-tuned model."""
        from electra.checkpoints.finetuned import read_finetuned
        from electra.inference.predict import load_model

        return load_model(read_finetuned(self.folder, self.seed), precision=self.precision)

    @cached_property
    def searcher(self) -> "Searcher":
        """The model of a fine-tuning for retrieval."""
        from electra.checkpoints.finetuned import read_finetuned
        from electra.inference.search import load_searcher

        return load_searcher(read_finetuned(self.folder, self.seed), self.precision)

    @cached_property
    def is_retrieval(self) -> bool:
        """Whether it is a fine-tuning for retrieval, which has a vector of each text."""
        from electra.checkpoints.finetuned import find_seed
        from electra.checkpoints.saved import is_finetuned

        if not is_finetuned(self.folder):
            return False
        return bool(find_seed(self.folder, self.seed).facts["family"] == "retrieval")


Asked = Place | Model
"""A model: a folder, which every call reads again, or a model that `load` returned."""


def load(folder: Place, *, seed: int | None = None, precision: How = "float32") -> Model:
    """Return the networks in a folder, loaded once for many calls.

    Args:
        folder: A run, an export or another Hugging Face folder, "english-tiny", which comes with
            the package, or a fine-tuning (for a grid, the best one).
        seed: The seed of a fine-tuning whose model answers; None: the best on dev.
        precision: The dtype in which answers are computed: float32, bfloat16, or auto, which is
            bfloat16 on hardware that multiplies it.
    """
    from electra.checkpoints.bundled import find_model
    from electra.checkpoints.checkpoint import run_of
    from electra.checkpoints.manifest import find_best
    from electra.checkpoints.saved import is_finetuned

    require_choice("precision", precision, get_args(How))
    path = find_model(Path(folder))
    require(
        (run_of(path) / "config.json").is_file(),
        f"{path} is neither a run nor an export nor a fine-tuning: it has no config.json",
    )
    require(
        seed is None or is_finetuned(path), f"seed {seed} is for a fine-tuning, which {path} is not"
    )
    return Model(find_best(path) if is_finetuned(path) else path, seed, precision)


def history(folder: Place) -> list[dict[str, Any]]:
    """Return the training metrics of a run or a fine-tuning, as flat records.

    Args:
        folder: A run: the records of metrics.jsonl by step, whose "part" is "train" or "heldout". A
            fine-tuning (for a grid, the best one): the epochs of each seed, with "train_loss" and
            the scores on dev.
    """
    from electra.checkpoints.manifest import find_best
    from electra.checkpoints.metrics import read_curves
    from electra.checkpoints.results_files import read_results
    from electra.checkpoints.saved import is_finetuned

    path = Path(folder)
    if is_finetuned(path):
        results = read_results(find_best(path), "seeds")
        seeds = (results["seeds"] | results.get("replacements", {})).values()
        epochs = [{"seed": each["seed"], **epoch} for each in seeds for epoch in each["epochs"]]
        return [{**epoch, **epoch.pop("scores")} for epoch in epochs]
    is_there = (path / "metrics.jsonl").is_file()
    require(is_there, f"{path} is neither a run nor a fine-tuning: it has no metrics.jsonl")
    return read_curves(path)


def open_model(model: Asked, precision: Precision | None = None) -> Model:
    """Return a model that may be open."""
    if not isinstance(model, Model):
        return load(model, precision=precision or "float32")
    require(
        precision is None, f"the precision of a loaded model is that of `load`, {model.precision}"
    )
    return model
