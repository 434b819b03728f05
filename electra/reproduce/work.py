"""What is finished of a plan, what is left, and how long the rest takes on this machine.

What is finished is what lies on disk: a run with results.json, and its fine-tunings.
"""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from electra.checkpoints.folder import SavedModel, SavedNetwork
from electra.checkpoints.metrics import read_metrics
from electra.errors import require
from electra.files import read_object, sha256_file
from electra.finetuning.start import fit_to_start, require_examples
from electra.method.flops import FORWARD_AND_BACKWARD
from electra.method.registry import sketch_objective
from electra.reproduce.plan import (
    Plan,
    PlannedRun,
    find_finetunings,
    finetune_config,
    probe_step,
)
from electra.reproduce.suite import Suite
from electra.shards.store import open_shards
from electra.tasks.family import Task
from electra.tasks.registry import read_task

SAMPLE = 200
"""Training examples of a task whose lengths are measured."""


class Work(NamedTuple):
    """Pre-training and fine-tuning, in true FLOPs or in seconds."""

    pretraining: float
    finetuning: float


Finetunings = Mapping[tuple[str, str], float]
"""True FLOPs of a fine-tuning, by the name of the row and the task."""


class Setup(NamedTuple):
    """A suite, and where its shards, tasks and runs lie."""

    suite: Suite
    shards: Path
    data: Mapping[str, Path]
    """The folder of each task."""
    runs: Path
    """The folder of all runs."""

    def finetuning(self, run: PlannedRun, task: str) -> Path:
        """Return the folder of a fine-tuning of a run."""
        return self.runs / run.name / f"finetune-{task}"

    def is_pretrained(self, run: PlannedRun) -> bool:
        """Return whether the pre-training of a run is finished."""
        return (self.runs / run.name / "results.json").exists()

    def is_done(self, run: PlannedRun) -> bool:
        """Return whether a run and all its fine-tunings are finished."""
        return self.is_pretrained(run) and not self.unfinished_tasks(run)

    def unfinished_tasks(self, run: PlannedRun) -> list[str]:
        """Return the tasks on which a run is not fine-tuned yet."""
        return [task for task in self.suite.tasks if not self.finetuning(run, task).exists()]


def read_tasks(setup: Setup, plan: Plan) -> dict[str, Task]:
    """Return the tasks of a suite."""
    suite, config = setup.suite, plan.runs[0].config
    return {
        task: read_task(task, setup.data[task], finetune_config(suite, config, task))
        for task in suite.tasks
    }


def digest_files(task: Task) -> str:
    """Return a digest of the files of a task, whatever their folder."""
    return _digest([sha256_file(path) for path in task.files])


def find_digest(finetuning: Path) -> str:
    """Return the same digest of the files that a fine-tuning reads."""
    return _digest(read_object(finetuning / "config.json")["files"].values())


def _digest(digests: Iterable[str]) -> str:
    return hashlib.sha256(" ".join(sorted(digests)).encode()).hexdigest()


def require_same_data(data: Mapping[str, str], runs: Path) -> None:
    """Refuse tasks whose files are not those that the runs in a folder are scored on."""
    for task, digest in data.items():
        for place in find_finetunings(runs, task):
            require(
                find_digest(place) == digest,
                f"{task} has other files than {place}; scores on different data cannot be "
                "compared: choose another --runs",
            )


def count_finetunings(
    setup: Setup, plan: Plan, tasks: Mapping[str, Task]
) -> dict[tuple[str, str], float]:
    """Return the true FLOPs of the training of each fine-tuning; evaluations are not counted.

    The mean length of a task's rows is that of a sample. Settings that do not fit a task are
    refused here, before the pre-training.
    """
    tokenizer = open_shards(setup.shards, verify=False).tokenizer
    configs = {run.row.name: run.config for run in plan.runs}
    encoders = {name: sketch_objective(config).kept for name, config in configs.items()}
    counts = {}
    for task, question in tasks.items():
        train = question.training_examples
        sample = train[:: -(-len(train) // SAMPLE)]
        for name, encoder in encoders.items():
            longest = configs[name].examples.sequence_length
            start = SavedModel(SavedNetwork("", encoder.config, ({},)), tokenizer, longest, name)
            config = finetune_config(setup.suite, configs[name], task)
            config = fit_to_start(config, start, question, from_scratch=False)
            rows = question.family.encode(sample, tokenizer, config.sequence_length)
            if len(rows) == len(sample):  # not several windows of an example
                require_examples(config.train_examples, len(train), question)
            lengths = rows.lengths.float()
            examples = (config.train_examples or len(train)) * config.epochs
            tokens = examples * lengths.sum().item() / len(sample)
            passes = 1 if config.features.layers else FORWARD_AND_BACKWARD
            forward = sum(encoder.count_flops(round(lengths.mean().item())).values())
            counts[name, task] = passes * forward * tokens
    return counts


def find_work(setup: Setup, run: PlannedRun, finetunings: Finetunings) -> Work:
    """Return the true FLOPs that are left of a run, from the files that it writes.

    Of a run that shares a part with another, only its own part counts. A fine-tuning counts until
    it is finished.
    """
    pretraining = 0.0
    if not setup.is_pretrained(run):
        steps = [each["step"] for each in read_metrics(setup.runs / run.name / "metrics.jsonl")]
        left = run.flops["true"] * (1 - max(steps, default=0) / run.config.train.steps)
        pretraining = min(run.own_flops, left)
    tasks = setup.unfinished_tasks(run)
    return Work(pretraining, sum(finetunings[run.row.name, task] for task in tasks))


def estimate_seconds(plan: Plan, left: Mapping[str, Work]) -> Work:
    """Return the time of the work that is left on this machine, one run at a time, seconds.

    A FLOP of a fine-tuning is taken to last as long as one of its row's pre-training, which is
    timed. Evaluations are not in it.
    """
    timed = dict(plan.step_seconds)
    pretraining = finetuning = 0.0
    for run in plan.runs:
        if run.name not in left:
            continue
        if run.row.name not in timed:
            timed[run.row.name] = probe_step(run.config)
        seconds = timed[run.row.name] * run.config.train.steps / run.flops["true"]
        pretraining += seconds * left[run.name].pretraining
        finetuning += seconds * left[run.name].finetuning
    return Work(pretraining, finetuning)
