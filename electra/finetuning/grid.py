"""Grid search over settings: a fine-tuning for every combination of values, each in its own folder.

The best combination has the highest median on dev over the seeds; the results note that dev
selected it. Collapsed seeds are not replaced unless `reseeds` is set. An interrupted search that is
run again continues with the combinations and seeds that are not finished. The processes that
torchrun started share the combinations.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from electra.assignments import override
from electra.checkpoints.folder import read_model
from electra.checkpoints.results_files import read_results
from electra.errors import require
from electra.files import refuse_existing, write_json
from electra.finetuning.loop import LONGEST_WAIT, Progress, ignore, require_seeds, train_seeds
from electra.finetuning.results import advise_to_remove, begin_shared_folder, is_trained
from electra.finetuning.start import read_job
from electra.reports.rendering import Table
from electra.settings import to_dict
from electra.tasks.config import FinetuneConfig
from electra.training.distributed import joined, wait_for_all
from electra.training.machine import prepare_machine

CHOSEN_ON_DEV = "dev chose the best combination: its score there is not that of unseen examples"


def combine(
    config: FinetuneConfig, fixed: Sequence[str], grid: Sequence[str]
) -> dict[str, FinetuneConfig]:
    """Return the settings of every combination by its name, such as "learning_rate=1e-4,epochs=3".

    All start from `config` and `fixed`, each `field=value`; `grid` has `field=value,value` for each
    field. No combination may occur twice.
    """
    axes = []
    for words in grid:
        name, _, values = (part.strip() for part in words.partition("="))
        choices = [value.strip() for value in values.split(",")]
        require(all(choices), f"grid takes field=value,value, not {words!r}")
        require(
            "/" not in values,
            f"grid values become folder names, so they must not contain /: {words!r}",
        )
        axes.append([f"{name}={choice}" for choice in choices])
    names: dict[FinetuneConfig, str] = {}
    for assignments in product(*axes):
        settings, name = override(config, [*fixed, *assignments]), ",".join(assignments)
        require(settings not in names, f"grid: {name} is the same as {names.get(settings)}")
        names[settings] = name
    return {name: settings for settings, name in names.items()}


def search(
    start: Path,
    task: str,
    data: Path,
    out: Path,
    combinations: Mapping[str, FinetuneConfig],
    *,
    seeds: int,
    from_scratch: bool = False,
    progress: Progress,
) -> dict[str, Any]:
    """Fine-tune with every combination of settings, write a folder and return its results.

    The arguments are those of `finetune`, but for the settings by name, from `combine`. The folder
    has a folder of `finetune` for each combination, and is `<out>.incomplete` until all are
    finished. Records of progress also have "combination" and "run", the run's number. All
    refusals happen before the first run.
    """
    refuse_existing(out)
    require_seeds(seeds)
    pretrained, dev = read_model(start), None
    headlines = set()
    for config in combinations.values():
        job = read_job(pretrained, task, data, config, from_scratch=from_scratch)
        headlines.add(job.task.family.headline)
        dev = dev or job.task.examples["dev"]
        require(job.task.examples["dev"] == dev, "grid: its combinations need one dev set, not two")
    require(
        len(headlines) == 1,
        f"grid: scores of one metric can be compared, not of {' and '.join(sorted(headlines))}",
    )
    machine = prepare_machine(config.device, config.precision, config.threads)
    grid = {name: to_dict(config) for name, config in combinations.items()}
    settings = {**job.settings(), "seeds": seeds, "grid": grid}
    del settings["config"]
    if machine.rank > 0:
        progress = ignore
    shared = begin_shared_folder(out, settings, machine, job.task.notes)
    with joined(machine, LONGEST_WAIT, on_host=True), shared as folder:
        numbered = list(enumerate(combinations.items()))
        for number, (name, config) in numbered[machine.rank :: machine.num_ranks]:
            if not is_trained(folder / name):
                job = read_job(pretrained, task, data, config, from_scratch=from_scratch)
                each = prepare_machine(config.device, config.precision, config.threads)
                alone = dataclasses.replace(each, rank=0, num_ranks=1)

                def tell(
                    record: dict[str, Any], name: str = name, before: int = number * seeds
                ) -> None:
                    run = before + record.get("seed", 0)
                    progress({**record, "combination": name, "run": run})

                train_seeds(job, start, folder / name, alone, seeds, tell)
        wait_for_all(machine)
        results = compare(folder, list(combinations))
        if machine.rank == 0:
            write_json(folder / "results.json", results)
        return results


def compare(folder: Path, names: Sequence[str]) -> dict[str, Any]:
    """Return the scores of the combinations, best first; equal scores keep their order."""
    of_all = ("task", "metric", "start", "source", "from_scratch", "device")
    of_each = ("median", "std", "with_replacements", "num_degenerate", "commit")
    keys = (*of_all, *of_each, "notes", "seeds")
    found = []
    for name in names:
        with advise_to_remove(folder / name, "run it again"):
            found.append({"combination": name, **read_results(folder / name, *keys)})
    found.sort(key=lambda each: each["median"], reverse=True)
    best = found[0]
    return {
        **{key: best[key] for key in (*of_all, *of_each)},
        "num_seeds": len(best["seeds"]),
        "best": best["combination"],
        "notes": [*best["notes"], CHOSEN_ON_DEV],
        "combinations": [{key: each[key] for key in ("combination", *of_each)} for each in found],
    }


def tabulate(results: Mapping[str, Any]) -> Table:
    """Return a row for each combination in the results of a search, best first."""
    rows = []
    for each in results["combinations"]:
        settings = dict(words.split("=", 1) for words in each["combination"].split(","))
        spread = "-" if each["std"] is None else f"{each['std']:.3f}"
        score = [f"{each['median']:.3f}", spread, str(each["num_degenerate"])]
        rows.append([*settings.values(), *score])
    headers = [*settings, f"{results['metric']}, median on dev", "std", "collapsed"]
    return Table(headers, rows)
