"""Readers for the files of runs and fine-tunings; for the formats see docs/ARTEFACTS.md."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from electra.checkpoints.manifest import read_manifest
from electra.checkpoints.metrics import read_metrics
from electra.errors import UserError, require
from electra.files import read_object, read_text
from electra.reports.tokens import Sentence, TokenView, suspect_as_many

PARTS = ("train", "heldout")
MetricsRecord = Mapping[str, Any]


@dataclass(frozen=True)
class Run:
    """A pre-training run: configuration, manifest and metrics."""

    name: str
    config: Mapping[str, Any]
    manifest: Mapping[str, Any]
    train: Sequence[MetricsRecord]
    heldout: Sequence[MetricsRecord]

    def tell(self, key: str) -> list[Any]:
        """Return the distinct values of a key in the manifest's sessions."""
        answers: list[Any] = []
        for session in self.manifest["sessions"]:
            if key in session and session[key] not in answers:
                answers.append(session[key])
        return answers

    @property
    def last_train(self) -> MetricsRecord:
        """Return the last training record; empty if there is none."""
        return self.train[-1] if self.train else {}

    @property
    def last_heldout(self) -> MetricsRecord:
        """Return the last held-out record; empty if nothing was held out."""
        return self.heldout[-1] if self.heldout else {}


@dataclass(frozen=True)
class Finetuning:
    """The scores of one encoder on one task, over all seeds."""

    encoder: str
    """Name of the folder of the pre-trained weights; from scratch, of the encoder's sizes."""
    task: str
    metric: str
    from_scratch: bool
    """Whether the encoder started without its pre-trained weights, for comparison."""
    seeds: tuple[str, ...]
    median: float
    """Median over the seeds as drawn. Old results kept only the replacements of collapsed seeds;
    their median is over the replacements."""
    std: float | None
    """None for a single seed."""
    majority: float | None
    """The metric of a constant prediction, the most frequent label."""
    num_replaced: int
    """Collapsed seeds that were replaced by other seeds."""
    replaced_median: float | None
    """Median with the replacements of collapsed seeds. None if no seed was replaced, and for old
    results, where `median` includes the replacements."""
    num_degenerate: int
    """Seeds that collapsed to a single answer for all examples."""
    commit: str | None
    device: str | None
    scores: Mapping[str, tuple[float, ...]]
    """One score per seed, by metric on dev. The key for another split is "SPLIT METRIC"."""
    after: str = ""
    """The task that the pre-trained weights were fine-tuned on before; empty: none."""

    @property
    def label(self) -> str:
        """Name of the task in tables."""
        return f"{self.task} after {self.after}" if self.after else self.task


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """Return the runs in these folders, named by folder, or by path if folder names repeat.

    Metrics are sorted by step, and each step occurs once. Damaged records of metrics.jsonl are
    left out with a warning.

    Raises:
        UserError: A file is missing or damaged, or metrics.jsonl holds no record.
    """
    count = Counter(folder.name for folder in folders)
    return [_read_run(f, f.name if count[f.name] == 1 else str(f)) for f in folders]


def _read_run(folder: Path, name: str) -> Run:
    require(folder.is_dir(), f"{folder} is not a run folder; see electra pretrain")
    path = folder / "metrics.jsonl"
    require(path.is_file(), f"{folder} is not a run folder: it has no metrics.jsonl")
    by_step = {(record["step"], record["part"]): record for record in read_metrics(path)}
    require(bool(by_step), f"{path} holds no record: the run has not logged anything yet")
    records = [by_step[key] for key in sorted(by_step)]
    train, heldout = ([r for r in records if r["part"] == part] for part in PARTS)
    config = read_object(folder / "config.json")
    return Run(name, config, read_manifest(folder), train, heldout)


def read_finetuning(path: Path) -> Finetuning:
    """Return the scores in a fine-tuning's results.json.

    Raises:
        UserError: The file cannot be read, lacks a field, or is that of a grid.
    """
    values = read_object(path)
    folder = path.parent
    require(
        "best" not in values,
        f"{folder} holds several fine-tunings; take one of them: {folder}/{values.get('best')}",
    )
    try:
        return Finetuning(
            encoder=Path(values["start"]).name,
            task=str(values["task"]),
            metric=str(values["metric"]),
            from_scratch=bool(values["from_scratch"]),
            seeds=tuple(values["seeds"]),
            median=float(values["median"]),
            std=None if values["std"] is None else float(values["std"]),
            majority=values["majority"].get(values["metric"]),
            num_replaced=_count_replaced(values),
            replaced_median=(values.get("with_replacements") or {}).get("median"),
            num_degenerate=int(values["num_degenerate"]),
            commit=values.get("commit"),
            device=values.get("device"),
            scores=_collect_scores(values["seeds"].values()),
            after=str(values.get("after", "")),
        )
    except KeyError as error:
        raise UserError(f"{path} is not a fine-tuning's results: it lacks {error}") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path} is not a fine-tuning's results: {error}") from None


def find_finetunings(run: Path, step: int) -> list[Path]:
    """Return the folders beside a run, of fine-tunings that began with its weights at a step.

    Those from scratch, which took the run's sizes and no weights, are among them, and those of a
    grid are not.
    """
    source = re.compile(rf"{re.escape(run.resolve().name)} at step (\d+)")
    found = []
    for path in sorted(run.resolve().parent.glob("*/results.json")):
        try:
            results = read_object(path)
        except UserError:
            continue
        started = source.fullmatch(Path(str(results.get("source"))).name)
        if not started or "best" in results:
            continue
        if results.get("from_scratch") or int(started[1]) == step:
            found.append(path.parent)
    return found


def _count_replaced(values: Mapping[str, Any]) -> int:
    """Return the number of collapsed seeds that were replaced.

    Old results have no "with_replacements". There the record of a replaced seed is that of its
    replacement, whose number is in "drawn_as".
    """
    if "with_replacements" not in values:
        return sum(
            str(record.get("drawn_as", seed)) != seed for seed, record in values["seeds"].items()
        )
    standing = (values["with_replacements"] or {}).get("seeds", {})
    return sum(str(other) != seed for seed, other in standing.items())


def _collect_scores(seeds: Iterable[Mapping[str, Any]]) -> dict[str, tuple[float, ...]]:
    collected: dict[str, list[float]] = {}
    for record in seeds:
        scores = dict(record.get("scores", {}))
        for split, others in record.get("other_scores", {}).items():
            scores |= {f"{split} {metric}": value for metric, value in others.items()}
        for name, value in scores.items():
            collected.setdefault(name, []).append(float(value))
    return {name: tuple(values) for name, values in collected.items()}


def read_samples(run: Path) -> list[Sentence]:
    """Return the sentences of a run's samples.json; empty before the run has finished.

    As many tokens are suspected as were replaced.

    Raises:
        UserError: The file is damaged.
    """
    path = run / "samples.json"
    if not path.exists():
        return []
    try:
        rows = [[TokenView(**view) for view in row] for row in json.loads(read_text(path))]
    except (ValueError, TypeError) as error:
        raise UserError(f"{path} does not hold rows of tokens: {error}") from None
    return suspect_as_many(rows)


def replace_text(path: Path, text: str) -> None:
    """Write a text file atomically: a reader sees the old content or the new content.

    Raises:
        UserError: The file cannot be written.
    """
    temporary = path.with_name(path.name + ".incomplete")
    try:
        temporary.write_text(text, encoding="utf-8", newline="\n")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UserError(f"cannot write {path}: {error.strerror}") from None
