"""Fine-tuning: trains an encoder on a task with several seeds and writes a folder of scores.

Data order, new weights and dropout are functions of (seed, step), so the scores of a seed depend
only on data, settings and seed. A seed is the unit of work: an interrupted command that is run
again continues with the seeds that are not finished.
"""

import dataclasses
import math
import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from electra.checkpoints.checkpoint import load_parameters
from electra.checkpoints.folder import read_model
from electra.errors import require
from electra.files import refuse_existing, write_json
from electra.finetuning.cached_gradients import backward_by_parts
from electra.finetuning.network import build_network, keep_tokens, restore_tokens, run_network
from electra.finetuning.results import (
    SeedRun,
    begin_shared_folder,
    describe_cuts,
    describe_job,
    finite,
    is_trained,
    read_seed,
    summarise,
    write_seed,
)
from electra.finetuning.start import Job, TaskRows, encode_task, read_job
from electra.finetuning.teacher import add_answers, read_teachers
from electra.model.forms import choose_layers
from electra.tasks.config import FinetuneConfig
from electra.tasks.family import Family
from electra.tasks.rows import Outputs, TaskBatch, choose_batches, make_batch
from electra.training.config import OptimizerConfig
from electra.training.distributed import joined, wait_for_all
from electra.training.machine import Machine, prepare_machine
from electra.training.optimizer import (
    build_optimizer,
    learning_rate_at,
    set_learning_rate,
    step_seed,
)

LONGEST_WAIT = timedelta(days=30)
"""Time that a process waits for the seeds of the others."""
Progress = Callable[[dict[str, Any]], None]
PROGRESS_STEPS = 25
"""Steps between two progress records."""
LAST_STEPS = 100
"""Steps at the end of a run, or its last quarter if that is shorter, whose mean loss shows whether
the model has learnt anything."""
CHANCE = 0.99
"""A run has learnt nothing if its last steps have more than this share of the loss of the best
constant answer."""
RESEED = 1000
"""Added to a collapsed seed to get its replacement; the seeds as drawn are smaller."""


def finetune(
    start: Path,
    task: str,
    data: Path,
    out: Path,
    config: FinetuneConfig,
    *,
    seeds: int,
    from_scratch: bool = False,
    progress: Progress,
) -> dict[str, Any]:
    """Fine-tune an encoder with seeds 0, 1, ..., write a folder and return its results.

    Finished seeds are kept in `<out>.incomplete` until all are finished. Another call with the same
    arguments continues there; one with other settings is refused. The processes that torchrun
    started share the seeds. Arguments are as in `electra.finetune`. `progress` is called with
    records, whose "part" is "task", "train", "dev" or "seed", of the seeds of process 0.
    """
    refuse_existing(out)
    require_seeds(seeds)
    job = read_job(read_model(start), task, data, config, from_scratch=from_scratch)
    machine = prepare_machine(config.device, config.precision, config.threads)
    return train_seeds(job, start, out, machine, seeds, progress)


def require_seeds(seeds: int) -> None:
    """Refuse a number of seeds that is out of range."""
    require(1 <= seeds <= RESEED, f"seeds must be 1 to {RESEED}, not {seeds}")


def ignore(record: dict[str, Any]) -> None:
    """Show nothing of a record: of several processes, process 0 shows its own."""


def train_seeds(
    job: Job, start: Path, out: Path, machine: Machine, seeds: int, progress: Progress
) -> dict[str, Any]:
    """Train the seeds of this process, and return the results of all seeds, as in `out`."""
    # Also called by build_network, but a refusal must come before the folder is made.
    architecture = job.pretrained.encoder.architecture
    choose_layers(job.config.layers, architecture, machine.device, is_plain=False)
    teachers = read_teachers(job)
    told = {"teachers": [each.sha256 for each in teachers]} if teachers else {}
    shared = begin_shared_folder(out, job.settings() | told, machine, job.task.notes)
    with joined(machine, LONGEST_WAIT, on_host=True), shared as folder:
        if machine.rank > 0:
            progress = ignore
        rows = encode_task(job.task, job.pretrained, job.config)
        if teachers:
            rows = add_answers(job, rows, teachers, machine)
        facts = describe_job(job, rows, start, machine)
        progress({"part": "task", **facts})
        for seed in range(machine.rank, seeds, machine.num_ranks):
            train_until_it_learns(folder, job, rows, machine, seed, progress)
        wait_for_all(machine)
        cuts = describe_cuts(rows.splits, job.config)
        task = dataclasses.replace(job.task, notes=(*job.task.notes, *cuts))
        results = {**facts, **summarise(folder, task, seeds)}
        if machine.rank == 0:
            write_json(folder / "results.json", results)
        return results


def train_until_it_learns(
    folder: Path, job: Job, rows: TaskRows, machine: Machine, seed: int, progress: Progress
) -> None:
    """Train a seed as drawn and, while the run collapses, a replacement with another seed.

    Each run has its own folder, `<folder>/seed-N`; a run whose folder is whole is not repeated. The
    headline score is that of the seeds as drawn (`summarise`), because replacements are selected by
    success. The seeds of replacements are RESEED apart.
    """
    for number in range(seed, seed + RESEED * job.config.reseeds + 1, RESEED):
        path = folder / f"seed-{number}"
        if not is_trained(path):
            run = train_seed(
                job, rows, machine, number, lambda record: progress({**record, "seed": seed})
            )
            if number != seed:
                run.record["replaces"] = seed
            write_seed(path, run, job, rows)
        record = read_seed(path)
        progress({"part": "seed", **record})
        if not record["degenerate"]:
            break


def train_seed(
    job: Job, rows: TaskRows, machine: Machine, seed: int, progress: Progress
) -> SeedRun:
    """Fine-tune with one seed, and evaluate on dev after the epochs that `score_epochs` names.

    The last epoch is selected, or the best on dev with `keep_epoch=best`.

    Source: section 3.1, appendix B and Table 7; run_finetuning.py, whose loss is the sum over the
    batch (mode reference).
    """
    config, dev = job.config, rows.splits["dev"]
    training = Training(job, rows, machine, seed)
    history: list[dict[str, Any]] = []
    best: Scored | None = None
    for epoch in range(1, training.epochs + 1):
        train_loss = training.train_epoch(epoch, progress)
        if config.score_epochs == "last" and epoch < training.epochs:
            continue
        outputs = run_network(training.model, dev, machine.device)
        family, outputs = job.task.family.fit_to_dev(dev, outputs)
        scores = family.score(dev, outputs)
        history.append({"epoch": epoch, "train_loss": finite(train_loss), "scores": scores})
        progress({"part": "dev", "seed": seed, **history[-1]})
        if (
            best is None
            or config.keep_epoch == "last"
            or scores[family.headline] > best.scores[family.headline]
        ):
            named = training.model.named_parameters() if config.keep_epoch == "best" else ()
            weights = {name: each.detach().clone() for name, each in named}
            best = Scored(epoch, family, scores, outputs, weights)

    assert best is not None
    if best.weights:
        load_parameters(training.model, best.weights)
    training.model.family = best.family
    outputs_of = {"dev": best.outputs} | {
        split: run_network(training.model, each, machine.device)
        for split, each in rows.splits.items()
        if split not in ("train", "dev")
    }
    restore_tokens(training.model, training.whole_table, rows.token_ids)
    record = describe_seed(training, rows, history, best, outputs_of)
    return SeedRun(training.model, outputs_of, record)


class Scored(NamedTuple):
    """An epoch after which dev was scored."""

    epoch: int
    family: Family
    """With what dev decides."""
    scores: dict[str, float]
    outputs: Outputs
    """For dev."""
    weights: dict[str, Tensor]
    """Empty if the last epoch is selected, whose weights the model has when training ends."""


class Training:
    """A network in training with one seed, and how far it is."""

    def __init__(self, job: Job, rows: TaskRows, machine: Machine, seed: int):
        config = job.config
        self.job, self.seed, self.machine = job, seed, machine
        self.train = rows.lesson or rows.splits["train"]
        self.epochs = config.epochs or job.task.epochs
        self.steps = self.epochs * math.ceil(len(self.train) / config.batch_size)
        self.step, self.seconds = 0, 0.0
        self.last_losses: deque[Tensor] = deque(
            maxlen=max(1, min(LAST_STEPS, self.steps // 4))  # not those before it has learnt
        )
        self.model = build_network(
            *(job.pretrained, job.task.family, config),
            machine=machine,
            seed=seed,
            from_scratch=job.from_scratch,
        )
        job.task.family.start_head(self.model.head, rows.splits["train"])
        self.whole_table = keep_tokens(self.model, rows.token_ids)
        self.model.to(machine.device)
        self.optimizer_config = OptimizerConfig(
            learning_rate=config.learning_rate,
            warmup_steps=round(config.warmup_fraction * self.steps),
            weight_decay=config.weight_decay,
            max_grad_norm=config.max_grad_norm,
        )
        learns = self.model.head if config.features.layers else self.model
        self.optimizer = build_optimizer(
            learns, self.optimizer_config, config.layer_lr_decay, config.mode
        )

    def loss(self, outputs: Outputs, batch: TaskBatch) -> Tensor:
        """Return the mean loss of a batch, of which a teacher's answers have `teacher.weight`."""
        family, weight = self.job.task.family, self.job.config.teacher.weight
        if "teacher" not in batch.targets:
            return family.loss(outputs, batch)
        soft = batch._replace(targets={"labels": batch.targets["teacher"]})
        loss = family.loss(outputs, soft)
        return loss if weight == 1 else weight * loss + (1 - weight) * family.loss(outputs, batch)

    def train_epoch(self, epoch: int, progress: Progress) -> float:
        """Train on every item once, and return the mean loss."""
        model, optimizer, config = self.model, self.optimizer, self.job.config
        lengths = self.train.item_lengths
        model.train()
        began, loss_sum = time.perf_counter(), torch.zeros((), device=self.machine.device)
        for items in choose_batches(lengths, config.batch_size, seed=self.seed, epoch=epoch):
            rate = learning_rate_at(self.step, self.steps, self.optimizer_config, config.mode)
            set_learning_rate(optimizer, rate)
            loss = self.backward(items)
            nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm, foreach=True)
            optimizer.step()
            optimizer.zero_grad()

            loss_sum += loss * len(items)
            self.last_losses.append(loss)
            self.step += 1
            if self.step % PROGRESS_STEPS == 0:
                spent = self.seconds + time.perf_counter() - began
                speed = len(self.train) * self.epochs * self.step / self.steps / spent
                left = spent / self.step * (self.steps - self.step)
                place = {"epoch": epoch, "step": self.step, "steps": self.steps}
                pace = {"examples_per_second": speed, "seconds_left": left}
                record = {"part": "train", "seed": self.seed, **place, "loss": finite(loss.item())}
                progress(record | pace)
        train_loss = loss_sum.item() / len(self.train)
        self.seconds += time.perf_counter() - began
        return train_loss

    def backward(self, items: Tensor) -> Tensor:
        """Add the gradient of some items' loss to that of the weights, and return the loss."""
        config, family, device = self.job.config, self.job.task.family, self.machine.device
        factor = len(items) if config.mode == "reference" else 1
        seed = step_seed(self.seed, "dropout", self.step)
        if family.has_separate_rows:
            cached = config.retrieval.cached_rows
            taken = self.train.take(items)
            return backward_by_parts(self.model, taken, self.machine, seed, factor, cached)
        self.machine.seed_dropout(seed)
        batch = make_batch(self.train, items, device)
        loss = self.loss(self.model(batch), batch)
        (loss * factor).backward()
        return loss.detach()


def describe_seed(
    training: Training,
    rows: TaskRows,
    history: list[dict[str, Any]],
    best: Scored,
    outputs_of: dict[str, Outputs],
) -> dict[str, Any]:
    """Return the content of a seed's results.json."""
    family, train, dev = best.family, rows.splits["train"], rows.splits["dev"]
    last_loss = torch.stack(list(training.last_losses)).mean().item()
    chance = family.find_constant(train, dev).loss
    notes = [family.describe_collapse(dev, best.outputs)]
    if not math.isfinite(last_loss):
        notes.append("the loss is no longer finite")
    elif chance and last_loss > CHANCE * chance:  # 0: the drawn examples have one label
        notes.append(f"the loss ends at {last_loss:.3f}, that of a constant answer is {chance:.3f}")
    others = {
        split: family.score(rows.splits[split], outputs)
        for split, outputs in outputs_of.items()
        if split != "dev"
    }
    return {
        "seed": training.seed,
        "scores": best.scores,
        "other_scores": {split: scores for split, scores in others.items() if scores},
        "kept_epoch": best.epoch,
        "degenerate": any(notes),
        "notes": [note for note in notes if note],
        **family.facts().get("windows", {}),
        "epochs": history,
        "steps": training.steps,
        "train_seconds": training.seconds,
        "examples_per_second": len(training.train) * training.epochs / training.seconds,
    }
