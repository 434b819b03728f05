"""The folder of a fine-tuning: begun under a lock, with a folder for each seed and results.json."""

import json
import math
import shutil
import statistics
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from electra.assignments import from_dict
from electra.checkpoints.checkpoint import write_tensors
from electra.checkpoints.manifest import FORMAT, begin_session, find_commit
from electra.checkpoints.results_files import Begun, SeedResults, read_results
from electra.errors import UserError, count_of, refuse_unlike, require
from electra.files import (
    HASHES,
    LOCK,
    check_hashes,
    hold,
    make_folder,
    name_failures,
    named,
    new_folder,
    put,
    read_object,
    refuse_existing,
    require_same,
    write_hashes,
    write_json,
)
from electra.finetuning.network import TaskNetwork
from electra.finetuning.start import Job, TaskRows
from electra.settings import to_dict
from electra.shapes import require_fields
from electra.tasks.config import FinetuneConfig
from electra.tasks.family import Family, Task
from electra.tasks.rows import Outputs, Rows
from electra.text.characters import replace_surrogates
from electra.training.distributed import from_rank_0, wait_for_all
from electra.training.machine import Machine

NUM_EXAMPLES = 8
"""Records of dev that are kept with a model; the page of `electra serve` shows them."""
EXAMPLE_CHARS = 1000
"""Characters of such a record, as JSON."""


@contextmanager
def begin_shared_folder(
    out: Path, settings: dict[str, Any], machine: Machine, notes: Sequence[str]
) -> Iterator[Path]:
    """Yield `<out>.incomplete` to all processes, and rename it when all of them have left it.

    Process 0 begins and renames it; each process reads the results of the others. After an error
    the folder stays, and another call with the same settings continues there.
    """
    incomplete = out.with_name(out.name + ".incomplete")
    require(  # a machine of one of several processes is that of a combination of a grid
        machine.num_ranks == 1 or settings == from_rank_0(settings),
        f"process {machine.rank} read other weights or data than process 0; run the command again",
    )
    begun = _begin_folder(out, settings, machine, notes)
    with begun if machine.rank == 0 else nullcontext(incomplete) as folder:
        wait_for_all(machine)
        yield folder
        wait_for_all(machine)
    wait_for_all(machine)


@contextmanager
def _begin_folder(
    out: Path, settings: dict[str, Any], machine: Machine, notes: Sequence[str]
) -> Iterator[Path]:
    """Yield `<out>.incomplete`, new or begun with the same settings, and rename it at the end."""
    folder = out.with_name(out.name + ".incomplete")
    settings_path, lock = folder / "config.json", folder / LOCK
    is_ours = settings_path.exists() or lock.exists() or not any(folder.glob("*"))
    require(
        is_ours,
        f"{folder} already exists and was not written by this command; "
        "remove it or choose another --out",
    )
    make_folder(folder)
    with name_failures(out), hold(lock):
        try:
            refuse_existing(out)  # another process may have finished it in the meantime
            if settings_path.exists():
                _require_begun_with(folder, settings)
            else:
                write_json(settings_path, settings)
            try:
                read_object(folder / "manifest.json")
            except UserError:  # none yet, or damaged: the record of earlier sessions is lost
                write_json(folder / "manifest.json", {"format": FORMAT, "sessions": []})
            begin_session(
                folder,
                device=machine.name,
                dtype=str(machine.dtype),
                scikit_learn=metadata.version("scikit-learn"),
                notes=list(notes),
            )
            yield folder
        except (UserError, OSError):
            # No seed, and no combination of settings, is in it.
            if not any(path.is_dir() for path in folder.iterdir()):
                shutil.rmtree(folder)
            raise
        write_hashes(folder)
        put(folder, out)
        (out / LOCK).unlink()


def read_finished(out: Path, settings: dict[str, Any], seeds: int) -> dict[str, Any]:
    """Return the results of a finished fine-tuning; refuse one with other settings or seeds."""
    _require_begun_with(out, settings)
    results = read_results(out, "seeds")
    number = len(results["seeds"])
    require(number == seeds, f"{out} has {count_of(number, 'seed')}, not {seeds}")
    return results


def _require_begun_with(folder: Path, settings: dict[str, Any]) -> None:
    path = folder / "config.json"
    advice = "remove the folder to begin again"
    try:
        known = read_object(path, Begun)
    except UserError as error:
        raise UserError(f"{error}; {advice}") from None
    with refuse_unlike(f"{path} is not the config of a fine-tuning; {advice}"):
        begun = _by_content(known)
    require_same(folder, begun, _by_content(settings))


def _by_content(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings without folders' names and threads."""
    kept = {name: settings[name] for name in settings.keys() - {"start", "config", "grid"}}
    configs = settings.get("grid", {"": settings.get("config", {})})
    read = {name: from_dict(FinetuneConfig, each) for name, each in configs.items()}
    what = {name: replace(each, threads=0) for name, each in read.items()}
    files = [*settings["files"].values()]
    fields = {"grid": what} if "grid" in settings else to_dict(what[""])
    return {**fields, **kept, "files": files}


@dataclass(frozen=True)
class SeedRun:
    """The result of one seed."""

    model: TaskNetwork
    outputs: dict[str, Outputs]
    """By split, without train: the outputs of the selected epoch."""
    record: dict[str, Any]
    """Content of results.json: scores of the selected epoch, every epoch, speed, failures."""


def is_trained(folder: Path) -> bool:
    """Return whether the folder of a seed or a combination is there and whole.

    A damaged one is removed, and a warning says so.
    """
    if not folder.exists():
        return False
    try:
        require((folder / HASHES).is_file(), f"{folder / HASHES} is missing")
        for path in folder.rglob(HASHES):
            check_hashes(path.parent)
    except UserError as error:
        reason = str(error).partition(";")[0]
        warnings.warn(f"{reason}; {folder.name} is trained again", stacklevel=2)
        shutil.rmtree(folder)
        return False
    return True


def write_seed(folder: Path, run: SeedRun, job: Job, rows: TaskRows) -> None:
    """Write the folder of a seed: model, predictions, results."""
    family = run.model.family
    with new_folder(folder) as incomplete:
        model = incomplete / "model"
        model.mkdir()
        job.pretrained.tokenizer.save(model / "tokenizer")
        write_tensors(model / "model.safetensors", dict(run.model.named_parameters()))
        facts = {
            "task": job.task.name,
            **family.facts(),
            "sequence_length": job.config.sequence_length,
            # That the encoder was trained on in the end.
            "longest_row": (job.config if job.from_scratch else job.pretrained).sequence_length,
            "pooling": job.config.pooling,
            "encoder": to_dict(run.model.encoder.config),
            "examples": list_examples(family, rows.splits["dev"]),
        }
        write_json(model / "config.json", facts)
        write_hashes(model)
        for split, outputs in run.outputs.items():
            family.write_predictions(incomplete, split, rows.splits[split], outputs)
        write_json(incomplete / "results.json", {**run.record, "commit": find_commit()})
        write_hashes(incomplete)


def list_examples(family: Family, dev: Rows) -> list[dict[str, Any]]:
    """Return a few short records from all over dev, for those who try the model."""
    records = [family.record(each) for each in dev.examples]
    lines = [json.dumps(each, ensure_ascii=False) for each in records]
    fit = [
        each
        for each, line in zip(records, lines, strict=True)
        if len(line) <= EXAMPLE_CHARS and line == replace_surrogates(line)
    ]
    return fit[:: max(1, len(fit) // NUM_EXAMPLES)][:NUM_EXAMPLES]


def finite(value: float) -> float | None:
    """Return the value, or None if it is NaN or infinite, which JSON cannot represent."""
    return value if math.isfinite(value) else None


def describe_job(job: Job, rows: TaskRows, start: Path, machine: Machine) -> dict[str, Any]:
    """Return the facts of a fine-tuning, and the scores of the best constant answer."""
    task, splits = job.task, rows.splits
    constant = task.family.find_constant(splits["train"], splits["dev"])
    return {
        "task": task.name,
        "metric": task.family.headline,
        **task.family.facts(),
        "columns": list(task.columns.inputs),
        "label_columns": list(task.columns.labels),
        "num_examples": {split: len(examples) for split, examples in task.examples.items()},
        "num_items": {split: len(each) for split, each in splits.items()},
        "num_cut": {split: each.num_cut for split, each in splits.items()},
        "majority": constant.scores,
        "start": str(named(start)),
        "source": job.pretrained.source,
        "after": "" if job.from_scratch else job.pretrained.after,
        "from_scratch": job.from_scratch,
        "keep_epoch": job.config.keep_epoch,
        "config": to_dict(job.config),
        "device": machine.name,
    }


def describe_cuts(splits: Mapping[str, Rows], config: FinetuneConfig) -> list[str]:
    """Return a note of how many examples of each split are longer than the rows, if any are."""
    names = ["sequence_length", "max_windows"][: 1 + (config.max_windows > 1)]
    what = f"{config.max_windows} windows" if names[1:] else "rows"
    cut = {split: rows for split, rows in splits.items() if rows.num_cut}
    counts = (f"{rows.num_cut:,} of {len(rows):,} in {split}" for split, rows in cut.items())
    told = f"longer than {what} of {config.sequence_length} tokens, and cut: {', '.join(counts)}"
    return [f"{told} ({', '.join(names)})"] if cut else []


@contextmanager
def advise_to_remove(folder: Path, why: str) -> Iterator[None]:
    """Add to a refusal the advice to remove a folder, which can be computed again."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{error}; remove {folder} to {why}") from None


def read_seed(folder: Path) -> dict[str, Any]:
    """Return a finished seed's results.json; refuse a missing or damaged file."""
    with advise_to_remove(folder, "run the seed again"):
        path = folder / "results.json"
        record = read_object(path, SeedResults)
        optional = {"replaces", "other_scores", "max_windows", "join"}
        require_fields(record, SeedResults.__annotations__.keys() - optional, path)
        return record


def summarise(folder: Path, task: Task, seeds: int) -> dict[str, Any]:
    """Return the statistics of the headline metric over the first seeds, as drawn.

    Collapsed seeds count. "with_replacements" has the same statistics with each collapsed seed
    replaced by its last replacement, which is a selection; None if no seed was replaced. Time and
    speed cover all runs. "ensemble" is of the seeds as drawn; empty for a single one.
    """
    found = [read_seed(path.parent) for path in folder.glob("seed-*[0-9]/results.json")]
    # A call before this one may have been for more seeds.
    runs = [record for record in found if record.get("replaces", record["seed"]) < seeds]
    runs.sort(key=lambda record: record["seed"])
    drawn = {record["seed"]: record for record in runs if "replaces" not in record}
    others = {record["seed"]: record for record in runs if "replaces" in record}
    # A file system may show the folders of other machines late.
    missing = sorted(set(range(seeds)) - drawn.keys())
    require(not missing, f"{folder} lacks seeds {missing}; run the command again")
    notes = list(task.notes) + [
        f"{_name_seed(record)} collapsed: {'; '.join(record['notes'])}"
        for record in runs
        if record["notes"]
    ]
    joins = ", ".join(f"{r['join']} (seed {r['seed']})" for r in runs if "join" in r)
    notes += [f"windows of a long text are joined by {joins}, as dev chose"] if joins else []
    with_replacements = None
    if others:
        last = {record["replaces"]: seed for seed, record in others.items()}
        standing = {seed: last.get(seed, seed) for seed in drawn}
        spread = _measure_spread(task, [(drawn | others)[seed] for seed in standing.values()])
        with_replacements = {**spread, "seeds": {str(n): other for n, other in standing.items()}}
        changes = ", ".join(f"seed {other} in place of {n}" for n, other in sorted(last.items()))
        notes.append(
            f"the median is that of the seeds as drawn; with {changes} it is {spread['median']:.3f}"
        )
    together = [folder / f"seed-{seed}" for seed in drawn]
    return {
        **_measure_spread(task, drawn.values()),
        "with_replacements": with_replacements,
        "ensemble": task.family.score_ensemble(together) if len(drawn) > 1 else {},
        "num_degenerate": sum(record["degenerate"] for record in drawn.values()),
        "notes": notes,
        "train_seconds": sum(record["train_seconds"] for record in runs),
        "examples_per_second": statistics.median(r["examples_per_second"] for r in runs),
        "commit": " and ".join(sorted({str(record["commit"]) for record in runs})),
        "seeds": {str(seed): record for seed, record in drawn.items()},
        "replacements": {str(seed): record for seed, record in others.items()},
    }


def _measure_spread(task: Task, records: Iterable[dict[str, Any]]) -> dict[str, float | None]:
    values = [record["scores"][task.family.headline] for record in records]
    return {
        "median": statistics.median(values),
        "mean": statistics.mean(values),
        "std": statistics.stdev(values) if len(values) > 1 else None,
    }


def _name_seed(record: dict[str, Any]) -> str:
    place = f", in place of seed {record['replaces']}," if "replaces" in record else ""
    return f"seed {record['seed']}{place}"
