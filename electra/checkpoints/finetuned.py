"""The models of a fine-tuning's folder."""

from dataclasses import dataclass, field
from operator import index
from pathlib import Path
from typing import Any, NamedTuple

from electra.assignments import from_dict
from electra.checkpoints.checkpoint import read_tensors
from electra.checkpoints.manifest import find_best, read_manifest
from electra.checkpoints.results_files import Begun, read_results
from electra.checkpoints.saved import (
    WEIGHTS_FILE,
    SavedModel,
    SavedNetwork,
    fit_encoder,
    is_finetuned,
)
from electra.errors import refuse_unlike, require
from electra.files import check_hashes, named, read_object
from electra.model.config import EncoderConfig
from electra.tasks.config import FinetuneConfig
from electra.tokenizing.tokenizer import Tokenizer


@dataclass(frozen=True)
class Finetuned(SavedModel):
    """The model of one seed of a finished fine-tuning."""

    seed: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    """"task", "family", "columns" and "label_columns", and what else `Family.from_facts` reads."""
    config: FinetuneConfig = field(default_factory=FinetuneConfig)
    """The resolved settings of the fine-tuning."""


class SavedSeed(NamedTuple):
    """The folder of the model of one seed of a fine-tuning, and its JSON files' content."""

    run: Path
    """The fine-tuning; of a grid, its best."""
    folder: Path
    seed: int
    sizes: EncoderConfig
    config: FinetuneConfig
    facts: dict[str, Any]
    """As in `Finetuned`."""


def find_seed(run: Path, seed: int | None = None, *, verify: bool = False) -> SavedSeed:
    """Return what describes the model of one seed of a finished fine-tuning; no weights are read.

    Without a seed, it is the one with the best headline metric on dev, among all seeds and the
    replacements of collapsed seeds. With `verify` the model's files, weights included, are compared
    with their hashes first.
    """
    require(
        is_finetuned(run) and (run / "results.json").is_file(),
        f"{run} is not a finished folder of `electra finetune`: it must have a config.json with a "
        "task, and a results.json",
    )
    run = find_best(run)
    check_hashes(run)
    read_manifest(run)  # which refuses another format
    results = read_results(run, "metric")
    with refuse_unlike(f"{run} is not a folder that `electra finetune` wrote"):
        seeds = results["seeds"] | results.get("replacements", {})
        columns = {name: results[name] for name in ("columns", "label_columns")}
        headlines = {int(n): each["scores"][results["metric"]] for n, each in seeds.items()}
        config = from_dict(FinetuneConfig, read_object(run / "config.json", Begun)["config"])
        if seed is None:
            seed = max(headlines, key=lambda number: headlines[number])
    require(
        seed in headlines, f"{run} has no seed {seed}; choose from {', '.join(map(str, headlines))}"
    )
    folder = run / f"seed-{seed}" / "model"
    if verify:
        check_hashes(folder)
    facts = read_object(folder / "config.json")
    with refuse_unlike(f"{folder / 'config.json'} is not the config of a fine-tuned model"):
        sizes, task = from_dict(EncoderConfig, facts["encoder"]), str(facts["task"])
        facts["longest_row"] = index(facts["longest_row"])
    facts |= {"task": task, **columns, "separator": config.own.between}
    return SavedSeed(run, folder, seed, sizes, config, facts)


def read_finetuned(run: Path, seed: int | None = None) -> Finetuned:
    """Return the model of one seed; arguments as for `find_seed`."""
    found = find_seed(named(run), seed, verify=True)
    run, folder, task = found.run, found.folder, found.facts["task"]
    files = {WEIGHTS_FILE: folder / WEIGHTS_FILE}
    tensors = read_tensors(files[WEIGHTS_FILE])
    encoder = fit_encoder(tensors.below("encoder."), found.sizes, str(folder))
    return Finetuned(
        SavedNetwork("", found.sizes, (encoder,), tensors.below("head.")),
        Tokenizer.load(folder / "tokenizer"),
        found.facts["longest_row"],
        f"{run} at seed {found.seed}, fine-tuned on {task}",
        folder=run,
        after=task,
        files=files,
        seed=found.seed,
        facts=found.facts,
        config=found.config,
    )
