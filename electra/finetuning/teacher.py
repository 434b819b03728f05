"""Teachers: fine-tuned models whose answers a student learns in place of labels, or beside them.

Teachers are all seeds of one or several fine-tunings of the task. The student learns the mean of
their answers: probabilities by cross-entropy, numbers by squared error. It can also learn from text
without labels. Source: Hinton et al. 2015, "Distilling the Knowledge in
a Neural Network", at a temperature of 1.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from electra.checkpoints.finetuned import Finetuned, find_seed, read_finetuned
from electra.checkpoints.results_files import read_results
from electra.errors import require
from electra.finetuning.network import load_network, run_network
from electra.finetuning.start import Job, TaskRows
from electra.tasks.family import Family
from electra.tasks.registry import restore_family
from electra.tasks.rows import join_rows
from electra.training.machine import Machine


def read_teachers(job: Job) -> list[Finetuned]:
    """Return the models of all seeds of the teachers; refuse those of another task."""
    teachers = [
        read_finetuned(folder, seed)
        for folder in map(Path, job.config.teacher.names)
        for seed in map(int, read_results(find_seed(folder).run, "metric")["seeds"])
    ]
    for teacher in teachers:
        theirs, ours = (
            _describe(each) for each in (restore_family(teacher.facts), job.task.family)
        )
        require(
            theirs == ours,
            f"teacher {teacher.source} answers {theirs}, and {job.task.name} asks for {ours}: both "
            "must be fine-tuned on the same labels",
        )
    return teachers


def _describe(family: Family) -> dict[str, Any]:
    """Return what family and answers are, without what dev chose."""
    chosen = ("thresholds", "windows")
    return {name: value for name, value in family.facts().items() if name not in chosen}


def add_answers(
    job: Job, rows: TaskRows, teachers: Sequence[Finetuned], machine: Machine
) -> TaskRows:
    """Return the rows with those to learn from: train, and text without labels, with "teacher"."""
    weight, parts = job.config.teacher.weight, [rows.splits["train"]]
    parts += [rows.unlabelled] if rows.unlabelled else []
    examples = [each for part in parts for each in part.examples]
    answers = torch.stack([_ask(teacher, examples, machine) for teacher in teachers]).mean(dim=0)
    kept = parts[0].targets if weight < 1 else {}
    lesson = dataclasses.replace(join_rows(parts), targets={**kept, "teacher": answers})
    return rows._replace(lesson=lesson)


def _ask(teacher: Finetuned, examples: Sequence[Any], machine: Machine) -> Tensor:
    """Return the answers of one model to all examples (N, ...), as `Family.soften`."""
    family = restore_family(teacher.facts)
    network = load_network(teacher, family, machine)
    encoded = family.encode(examples, teacher.tokenizer, teacher.config.sequence_length)
    return family.soften(run_network(network, encoded, machine.device))
