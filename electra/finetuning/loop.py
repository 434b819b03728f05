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
from electra.checkpoints.folder import Pretrained, load_pretrained
from electra.config import FinetuneConfig, OptimizerConfig
from electra.errors import require
from electra.files import sha256_file, write_json
from electra.finetuning.folder import SeedRun, begin_shared_folder, write_seed
from electra.finetuning.network import (
    build_network,
    keep_tokens,
    restore_tokens,
    run_network,
)
from electra.finetuning.results import describe_task, find_failures, finite, read_seed, summarise
from electra.finetuning.start import TaskRows, encode_task, fit_to_start
from electra.model.encoder import choose_layers
from electra.settings import to_dict
from electra.tasks.family import Task
from electra.tasks.registry import read_task, resolve_own
from electra.tasks.rows import Outputs, choose_batches, make_batch
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
"""Steps at the end of a run whose mean loss shows whether the model has learnt anything."""
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
    spread: bool = True,
) -> dict[str, Any]:
    """Fine-tune an encoder with seeds 0, 1, ..., write a folder and return its results.

    Finished seeds are kept in `<out>.incomplete` until all are finished. Another call with the same
    arguments continues there. The processes that torchrun started share the seeds.

    Args:
        start: Run folder of `electra pretrain`, a Hugging Face folder, or the folder of another
            fine-tuning, whose encoder is trained further.
        task: A name in `registry.TASKS`.
        data: Folder of the task's files.
        out: The folder to write; must not exist.
        config: The settings.
        seeds: Number of seeds.
        from_scratch: Take sizes and vocabulary from `start` but no weights: the baseline that shows
            the value of pre-training.
        progress: Called with records, whose "part" is "task", "train", "dev" or "seed", of the
            seeds of process 0.
        spread: Whether the processes share the seeds; False: this one trains all of them.

    Raises:
        UserError: Folders, files or settings do not fit together, or `<out>.incomplete` was begun
            with other settings.
    """
    require(not out.exists(), f"{out} exists already; remove it or choose another --out")
    require(1 <= seeds <= RESEED, f"seeds must lie in 1 to {RESEED}, not {seeds}")
    config = resolve_own(task, config)
    question = read_task(task, data, config)
    pretrained = load_pretrained(start)
    config = fit_to_start(config, pretrained, question, from_scratch)
    machine = prepare_machine(config.device, config.precision, config.threads)
    if not spread:
        machine = dataclasses.replace(machine, rank=0, num_ranks=1)
    # Also called by build_network, but a refusal must come before the folder is made.
    architecture = pretrained.encoder.architecture
    choose_layers(config.layers, architecture, machine.device, is_plain=False)
    settings = {
        "task": question.name,
        "start": pretrained.source,
        "from_scratch": from_scratch,
        "files": {str(path): sha256_file(path) for path in question.files},
        "config": to_dict(config),
    }
    with joined(machine, LONGEST_WAIT), begin_shared_folder(out, settings, machine) as folder:
        if machine.rank > 0:
            progress = ignore
        rows = encode_task(question, pretrained, config)
        constant = question.family.find_constant(rows.splits["train"], rows.splits["dev"])
        facts = {
            **describe_task(question, rows.splits, constant),
            "start": str(start),
            "source": pretrained.source,
            "after": "" if from_scratch else pretrained.after,
            "from_scratch": from_scratch,
            "keep_epoch": config.keep_epoch,
            "config": to_dict(config),
            "device": machine.name,
        }
        progress({"part": "task", **facts})
        longest = config.sequence_length if from_scratch else pretrained.sequence_length

        def train(seed: int, number: int) -> None:
            run = train_seed(
                *(pretrained, question, rows, config, machine),
                seed=number,
                from_scratch=from_scratch,
                progress=lambda record: progress({**record, "seed": seed}),
            )
            if number != seed:
                run.record["replaces"] = seed
            tokenizer = pretrained.tokenizer
            write_seed(folder, number, run, question, rows, tokenizer, config, longest)

        for seed in range(machine.rank, seeds, machine.num_ranks):
            train_until_it_learns(folder, seed, config.reseeds, train, progress)
        wait_for_all(machine)
        results = {**facts, **summarise(folder, question)}
        if machine.rank == 0:
            write_json(folder / "results.json", results)
        return results


def ignore(record: dict[str, Any]) -> None:
    """Show nothing of a record: of several processes, process 0 shows its own."""


def train_until_it_learns(
    folder: Path, seed: int, reseeds: int, train: Callable[[int, int], None], progress: Progress
) -> None:
    """Train a seed as drawn and, while the run collapses, a replacement with another seed.

    Each run has its own folder, `<folder>/seed-N`; a run whose folder exists is not repeated. The
    headline score is that of the seeds as drawn (results.py), because replacements are selected by
    success.

    Args:
        folder: The folder of the fine-tuning.
        seed: The seed as drawn.
        reseeds: Maximum number of replacements. Their seeds are RESEED apart.
        train: Called with the seed as drawn and the seed to train with; writes the run's folder.
        progress: Called with a "seed" record for each run.
    """
    for number in range(seed, seed + RESEED * reseeds + 1, RESEED):
        if not (folder / f"seed-{number}").exists():
            train(seed, number)
        record = read_seed(folder / f"seed-{number}" / "results.json")
        progress({"part": "seed", **record})
        if not record["degenerate"]:
            break


def train_seed(
    pretrained: Pretrained,
    task: Task,
    rows: TaskRows,
    config: FinetuneConfig,
    machine: Machine,
    *,
    seed: int,
    from_scratch: bool = False,
    progress: Progress,
) -> SeedRun:
    """Fine-tune with one seed, and evaluate on dev after the epochs that `score_epochs` names.

    The last epoch is selected, or the best on dev with `keep_epoch=best`.

    Args:
        pretrained: The encoder to start from.
        task: Provides the loss, the metrics and the default number of epochs.
        rows: The encoded examples, from `encode_task`.
        config: The settings.
        machine: Device, and dtype of activations and matrix products.
        seed: Seed of the head's weights, the data order and dropout.
        from_scratch: Draw the encoder's weights instead of taking the pre-trained ones.
        progress: Called with "train" records every PROGRESS_STEPS steps and with "dev" records.

    Source: section 3.1, appendix B and Table 7; run_finetuning.py, whose loss is the sum over the
    batch (mode reference).
    """
    train, dev = rows.splits["train"], rows.splits["dev"]
    epochs = config.epochs or task.epochs
    steps = epochs * math.ceil(len(train) / config.batch_size)
    optimizer_config = OptimizerConfig(
        learning_rate=config.learning_rate,
        warmup_steps=round(config.warmup_fraction * steps),
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
    )
    device, family = machine.device, task.family
    model = build_network(
        pretrained,
        family,
        config,
        machine=machine,
        seed=seed,
        from_scratch=from_scratch,
    )
    whole_table = keep_tokens(model, rows.token_ids)
    model.to(device)
    learns = model.head if config.features.layers else model
    optimizer = build_optimizer(learns, optimizer_config, config.layer_lr_decay, config.mode)
    history: list[dict[str, Any]] = []
    kept: _Kept | None = None
    step, seconds = 0, 0.0
    last_losses: deque[Tensor] = deque(maxlen=LAST_STEPS)

    for epoch in range(1, epochs + 1):
        model.train()
        began, loss_sum = time.perf_counter(), torch.zeros((), device=device)
        for items in choose_batches(train.item_lengths, config.batch_size, seed=seed, epoch=epoch):
            torch.manual_seed(step_seed(seed, "dropout", step))
            set_learning_rate(
                optimizer, learning_rate_at(step, steps, optimizer_config, config.mode)
            )
            batch = make_batch(train, items, device)
            loss = family.loss(model(batch), batch)
            (loss * len(items) if config.mode == "reference" else loss).backward()
            nn.utils.clip_grad_norm_(
                model.parameters(), optimizer_config.max_grad_norm, foreach=True
            )
            optimizer.step()
            optimizer.zero_grad()

            loss_sum += loss.detach() * len(items)
            last_losses.append(loss.detach())
            step += 1
            if step % PROGRESS_STEPS == 0:
                spent = seconds + time.perf_counter() - began
                speed = len(train) * epochs * step / steps / spent
                left = spent / step * (steps - step)
                place = {"seed": seed, "epoch": epoch, "step": step, "steps": steps}
                pace = {"examples_per_second": speed, "seconds_left": left}
                progress({"part": "train", **place, "loss": finite(loss.item()), **pace})
        train_loss = loss_sum.item() / len(train)
        seconds += time.perf_counter() - began

        if config.score_epochs == "last" and epoch < epochs:
            continue
        outputs = run_network(model, dev, device)
        scores = family.score(dev, outputs)
        history.append({"epoch": epoch, "train_loss": finite(train_loss), "scores": scores})
        progress({"part": "dev", "seed": seed, **history[-1]})
        if not kept or config.keep_epoch == "last" or scores[family.headline] > kept.headline:
            keeps_weights = config.keep_epoch == "best"
            weights = {k: v.detach().clone() for k, v in model.named_parameters() if keeps_weights}
            kept = _Kept(epoch, scores[family.headline], outputs, weights)

    assert kept is not None
    if kept.weights:
        load_parameters(model, kept.weights)
    others = {name: each for name, each in rows.splits.items() if name not in ("train", "dev")}
    outputs_of = {"dev": kept.outputs} | {
        name: run_network(model, each, device) for name, each in others.items()
    }
    restore_tokens(model, whole_table, rows.token_ids)
    record = {
        "seed": seed,
        "scores": next(each["scores"] for each in history if each["epoch"] == kept.epoch),
        "other_scores": {
            name: scores
            for name, each in others.items()
            if (scores := family.score(each, outputs_of[name]))
        },
        "kept_epoch": kept.epoch,
        **find_failures(
            family,
            dev,
            kept.outputs,
            torch.stack(list(last_losses)).mean().item(),
            family.find_constant(train, dev),
        ),
        "epochs": history,
        "steps": steps,
        "train_seconds": seconds,
        "examples_per_second": len(train) * epochs / seconds,
    }
    return SeedRun(model, outputs_of, record)


class _Kept(NamedTuple):
    """The epoch that is selected so far."""

    epoch: int
    headline: float
    outputs: Outputs
    weights: dict[str, Tensor]
    """Empty if the last epoch is selected, whose weights the model has when training ends."""
