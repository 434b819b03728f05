"""The folder of a fine-tuning: begun under a lock, and a folder in it for each seed."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from electra.checkpoints.checkpoint import write_tensors
from electra.checkpoints.manifest import LOCK, begin_session, find_commit
from electra.config import FinetuneConfig
from electra.errors import require
from electra.files import hold, read_object, write_hashes, write_json
from electra.finetuning.network import TaskNetwork
from electra.finetuning.start import TaskRows
from electra.settings import to_dict
from electra.tasks.family import Task
from electra.tasks.rows import Outputs
from electra.tokenizing.tokenizer import Tokenizer
from electra.training.distributed import wait_for_all
from electra.training.machine import Machine


@dataclass(frozen=True)
class SeedRun:
    """The result of one seed."""

    model: TaskNetwork
    outputs: dict[str, Outputs]
    """By split, without train: the outputs of the selected epoch."""
    record: dict[str, Any]
    """Content of results.json: scores of the selected epoch, every epoch, speed, failures."""


@contextmanager
def begin_folder(out: Path, settings: dict[str, Any], machine: Machine) -> Iterator[Path]:
    """Yield `<out>.incomplete`, new or begun with the same settings, and rename it at the end.

    After an error the folder stays, and another call continues there.

    Raises:
        UserError: The folder was begun with other settings, was not written by a fine-tuning, or is
            in use by another process.
    """
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
            device=machine.name,
            dtype=str(machine.dtype),
            scikit_learn=metadata.version("scikit-learn"),
        )
        yield folder
        folder.rename(out)
        (out / LOCK).unlink()


@contextmanager
def begin_shared_folder(out: Path, settings: dict[str, Any], machine: Machine) -> Iterator[Path]:
    """Yield the folder of `begin_folder` to all processes; process 0 begins and renames it.

    It is renamed when all of them have left it, since each reads the results of the others.
    """
    if machine.rank == 0:
        with begin_folder(out, settings, machine) as folder:
            wait_for_all(machine)
            yield folder
            wait_for_all(machine)
    else:
        wait_for_all(machine)
        yield out.with_name(out.name + ".incomplete")
        wait_for_all(machine)
    wait_for_all(machine)


def write_seed(
    out: Path,
    seed: int,
    run: SeedRun,
    task: Task,
    rows: TaskRows,
    tokenizer: Tokenizer,
    config: FinetuneConfig,
    longest_row: int,
) -> None:
    """Write `<out>/seed-N`: model, predictions, results.

    Args:
        out: The folder of the fine-tuning.
        seed: The number N.
        run: The result of the seed.
        task: The task that the model answers.
        rows: The rows of the predictions.
        tokenizer: The tokenizer of the encoder.
        config: The settings.
        longest_row: Longest rows that the encoder was trained on, tokens.
    """
    folder = out / f"seed-{seed}"
    incomplete = folder.with_name(folder.name + ".incomplete")
    shutil.rmtree(incomplete, ignore_errors=True)
    model = incomplete / "model"
    model.mkdir(parents=True)
    tokenizer.save(model / "tokenizer")
    write_tensors(model / "model.safetensors", dict(run.model.named_parameters()))
    facts = {
        "task": task.name,
        **task.family.facts(),
        "sequence_length": config.sequence_length,
        "longest_row": longest_row,
        "pooling": config.pooling,
        "encoder": to_dict(run.model.encoder.config),
    }
    write_json(model / "config.json", facts)
    write_hashes(model)
    for split, outputs in run.outputs.items():
        task.family.write_predictions(incomplete, split, rows.splits[split], outputs)
    write_json(incomplete / "results.json", {**run.record, "commit": find_commit()})
    incomplete.rename(folder)
