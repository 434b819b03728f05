"""Fine-tuning: an encoder and a task in, a folder of scores out. The loop is here, top to bottom.

Order, new weights and dropout are functions of (seed, step), so a seed's scores are a function of
data, settings and seed. A seed is the unit of work: a command that was interrupted goes on with the
seeds that are not finished.
"""

import dataclasses
import math
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from electra.config import FinetuneConfig, OptimizerConfig, require
from electra.corpus.tokenizer import Tokenizer
from electra.files import hold, read_object, sha256_file, write_hashes, write_json
from electra.finetuning.network import Network, build_network, keep_tokens, predict, restore_tokens
from electra.finetuning.results import describe_task, find_failures, finite, read_seed, summarise
from electra.finetuning.start import TaskRows, encode_task, fit_to_start
from electra.runs.checkpoint import load_parameters, write_tensors
from electra.runs.manifest import LOCK, begin_session, find_commit
from electra.runs.pretrained import Pretrained, load_pretrained
from electra.settings import to_dict
from electra.tasks.registry import read_task, resolve_own
from electra.tasks.rows import Outputs, choose_batches, make_batch
from electra.tasks.task import Task
from electra.training.machine import (
    choose_device,
    choose_dtype,
    choose_layers,
    describe_device,
    prepare_process,
)
from electra.training.optimizer import build_optimizer, learning_rate_at, set_learning_rate
from electra.training.seeds import step_seed

Progress = Callable[[dict[str, Any]], None]
PROGRESS_STEPS = 25
"""Steps between two records of progress."""
LAST_STEPS = 100
"""Steps at the end of a run whose mean loss tells whether it has learnt anything."""
RESEED = 1000
"""What is added to a seed that collapsed, for the one in its place; seeds as drawn lie below."""


@dataclass(frozen=True)
class SeedRun:
    """What one seed gives."""

    model: Network
    outputs: dict[str, Outputs]
    """Of the epoch that counts, for every split but train."""
    record: dict[str, Any]
    """Its results.json: scores of the epoch that counts, every epoch, speed, failures."""


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
    """Fine-tune an encoder with seeds 0, 1, ... and write their folder; return its results.

    What is finished is kept in `<out>.incomplete` until all is: called again, it goes on there.

    Args:
        start: Run folder of `electra pretrain`, a Hugging Face folder, or the folder of another
            fine-tuning, whose encoder goes on to this task.
        task: A name in `registry.TASKS`.
        data: Folder of the task's files.
        out: The folder to write; must not exist.
        config: The settings.
        seeds: How many runs.
        from_scratch: Take sizes and vocabulary from `start` but no weights: the comparison that
            shows what pre-training is worth.
        progress: Is given records by "part": "task", "train", "dev", "seed".

    Raises:
        UserError: Folders, files or settings do not fit, or `<out>.incomplete` has other settings.
    """
    require(not out.exists(), f"{out} exists already; remove it or choose another --out")
    require(1 <= seeds <= RESEED, f"seeds must lie in 1 to {RESEED}, not {seeds}")
    config = resolve_own(task, config)
    question = read_task(task, data, config)
    pretrained = load_pretrained(start)
    config = fit_to_start(config, pretrained, question)
    prepare_process(config.threads)
    settings = {
        "task": question.name,
        "start": pretrained.source,
        "from_scratch": from_scratch,
        "files": {str(path): sha256_file(path) for path in question.files},
        "config": to_dict(config),
    }
    with begin_folder(out, settings, config) as folder:
        rows = encode_task(question, pretrained, config)
        constant = question.find_constant(rows.splits["train"], rows.splits["dev"])
        facts = {
            **describe_task(question, rows.splits, constant),
            "start": str(start),
            "source": pretrained.source,
            "from_scratch": from_scratch,
            "keep_epoch": config.keep_epoch,
            "config": to_dict(config),
            "device": describe_device(choose_device(config.device)),
        }
        progress({"part": "task", **facts})
        for seed in range(seeds):
            train_until_it_learns(
                *(folder, pretrained, question, rows, config),
                seed=seed,
                from_scratch=from_scratch,
                progress=progress,
            )
        results = {**facts, **summarise(folder, question)}
        write_json(folder / "results.json", results)
        return results


def train_until_it_learns(
    folder: Path,
    pretrained: Pretrained,
    task: Task,
    rows: TaskRows,
    config: FinetuneConfig,
    *,
    seed: int,
    from_scratch: bool = False,
    progress: Progress,
) -> None:
    """Write the run of a seed as drawn, and while it collapses that of another in its place.

    There are `config.reseeds` others at most, RESEED apart. Each run has the folder of its own
    seed, `<folder>/seed-N`, and one that is there already is not repeated. The headline is of the
    seeds as drawn (results.py): what replaces a failure is chosen by its success.

    Args:
        folder: The fine-tuning's.
        pretrained: As `train_seed`, like the others.
        task: Likewise.
        rows: Likewise.
        config: Likewise.
        seed: The seed as drawn.
        from_scratch: Likewise.
        progress: Is given "train" and "dev" records with the seed as drawn, and "seed" records.
    """
    longest = config.sequence_length if from_scratch else pretrained.sequence_length
    for attempt in range(config.reseeds + 1):
        number = seed + RESEED * attempt
        seed_folder = folder / f"seed-{number}"
        if not seed_folder.exists():
            run = train_seed(
                pretrained,
                task,
                rows,
                config,
                seed=number,
                from_scratch=from_scratch,
                progress=lambda record: progress({**record, "seed": seed}),
            )
            if attempt:
                run = dataclasses.replace(run, record={**run.record, "replaces": seed})
            _write_seed(seed_folder, run, task, rows, pretrained.tokenizer, config, longest)
        record = read_seed(seed_folder / "results.json")
        progress({"part": "seed", **record})
        if not record["degenerate"]:
            break


def train_seed(
    pretrained: Pretrained,
    task: Task,
    rows: TaskRows,
    config: FinetuneConfig,
    *,
    seed: int,
    from_scratch: bool = False,
    progress: Progress,
) -> SeedRun:
    """Fine-tune once and measure dev after each epoch; the last counts unless config says best.

    Args:
        pretrained: The encoder to start from.
        task: Loss, metrics and the default number of epochs.
        rows: Its examples, from `encode_task`.
        config: The settings.
        seed: Decides the head's weights, the order and dropout.
        from_scratch: Draw the encoder's weights instead of taking the pre-trained ones.
        progress: Is given "train" records every PROGRESS_STEPS steps and "dev" records.

    Source: section 3.1, appendix B and Table 7; run_finetuning.py, whose loss is the batch's sum
    (method.mode reference).
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
    device = choose_device(config.device)
    model = build_network(
        pretrained,
        task,
        config,
        compute_dtype=choose_dtype(config.precision, device),
        seed=seed,
        from_scratch=from_scratch,
        layer=choose_layers(config.layers, device, compiled=False),
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
            loss = task.loss(model(batch), batch)
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

        outputs = predict(model, dev, device)
        scores = task.score("dev", dev, outputs)
        history.append({"epoch": epoch, "train_loss": finite(train_loss), "scores": scores})
        progress({"part": "dev", "seed": seed, **history[-1]})
        if not kept or config.keep_epoch == "last" or scores[task.headline] > kept.headline:
            keeps_weights = config.keep_epoch == "best"
            weights = {k: v.detach().clone() for k, v in model.named_parameters() if keeps_weights}
            kept = _Kept(epoch, scores[task.headline], outputs, weights)

    assert kept is not None
    if kept.weights:
        load_parameters(model, kept.weights)
    others = {name: each for name, each in rows.splits.items() if name not in ("train", "dev")}
    outputs_of = {"dev": kept.outputs} | {
        name: predict(model, each, device) for name, each in others.items()
    }
    restore_tokens(model, whole_table, rows.token_ids)
    record = {
        "seed": seed,
        "scores": history[kept.epoch - 1]["scores"],
        "other_scores": {
            name: scores
            for name, each in others.items()
            if (scores := task.score(name, each, outputs_of[name]))
        },
        "kept_epoch": kept.epoch,
        **find_failures(
            task,
            dev,
            kept.outputs,
            torch.stack(list(last_losses)).mean().item(),
            task.find_constant(train, dev),
        ),
        "epochs": history,
        "steps": steps,
        "train_seconds": seconds,
        "examples_per_second": len(train) * epochs / seconds,
    }
    return SeedRun(model, outputs_of, record)


class _Kept(NamedTuple):
    """The epoch that counts, so far."""

    epoch: int
    headline: float
    outputs: Outputs
    weights: dict[str, Tensor]
    """Empty where the model's own are those of this epoch when training ends."""


@contextmanager
def begin_folder(out: Path, settings: dict[str, Any], config: FinetuneConfig) -> Iterator[Path]:
    """Give `<out>.incomplete`, new or begun with the same settings, and rename it at the end.

    On an error it stays, to be gone on with.

    Raises:
        UserError: It was begun with others, something else wrote it, or another process does.
    """
    device = choose_device(config.device)
    choose_layers(config.layers, device, compiled=False)  # refused before anything is written
    folder = out.with_name(out.name + ".incomplete")
    settings_path = folder / "config.json"
    lock = folder / LOCK
    is_ours = settings_path.exists() or lock.exists() or not any(folder.glob("*"))
    require(is_ours, f"{folder} is in the way; remove it or choose another --out")
    folder.mkdir(parents=True, exist_ok=True)
    with hold(lock):
        if settings_path.exists():
            begun = read_object(settings_path)
            different = [key for key in settings if settings[key] != begun.get(key)]
            require(
                not different,
                f"{folder} was begun with another {' and '.join(different)}; remove it or choose "
                "another --out",
            )
        else:
            write_json(folder / "manifest.json", {"sessions": []})
            write_json(settings_path, settings)
        begin_session(
            folder,
            device=describe_device(device),
            dtype=str(choose_dtype(config.precision, device)),
            scikit_learn=metadata.version("scikit-learn"),
        )
        yield folder
        folder.rename(out)
        (out / LOCK).unlink()


def _write_seed(
    folder: Path,
    run: SeedRun,
    task: Task,
    rows: TaskRows,
    tokenizer: Tokenizer,
    config: FinetuneConfig,
    longest_row: int,
) -> None:
    """Write a seed's folder: model, predictions, results.

    `longest_row` is that which the encoder was ever trained on, in tokens.
    """
    incomplete = folder.with_name(folder.name + ".incomplete")
    shutil.rmtree(incomplete, ignore_errors=True)
    model = incomplete / "model"
    model.mkdir(parents=True)
    tokenizer.save(model / "tokenizer")
    write_tensors(model / "model.safetensors", dict(run.model.named_parameters()))
    facts = {
        "task": task.name,
        **task.facts(),
        "sequence_length": config.sequence_length,
        "longest_row": longest_row,
        "pooling": config.pooling,
        "encoder": to_dict(run.model.encoder.config),
    }
    write_json(model / "config.json", facts)
    write_hashes(model)
    for split, outputs in run.outputs.items():
        task.write_predictions(incomplete, split, rows.splits[split], outputs)
    write_json(incomplete / "results.json", {**run.record, "commit": find_commit()})
    incomplete.rename(folder)
