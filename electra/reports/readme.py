"""The README's numbers, written by a command from the files in results/, never by hand."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from electra.config import UserError, require
from electra.reports.runs import Finetuning, Run, read_finetuning, read_runs, replace_text
from electra.reports.tables import (
    Table,
    finetuning_table,
    format_commit,
    pretraining_table,
    to_markdown,
)

BEGIN = "<!-- results:begin -->"
END = "<!-- results:end -->"
BENCHMARKS = {
    "step": "A pre-training step beside what can be made of transformers' modules",
    "finetune": "Fine-tuning beside transformers' Trainer",
    "load": "Reading shuffled rows from shards",
}
"""What `python -m benchmarks.NAME` times; its table stands in results/NAME.md."""


def update_readme(readme_path: Path, results_folder: Path) -> None:
    """Replace what stands between the two markers by what the files in results/ say.

    Each folder in `results_folder` holds a run's config.json, manifest.json and metrics.jsonl, and
    folders `finetune-*` with the same of its fine-tunings and their results.json. Tables of
    benchmarks stand beside them.

    Raises:
        UserError: A marker or a file is missing or damaged, or a manifest does not say where its
            numbers come from.
    """
    try:
        text = readme_path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read {readme_path}: {error.strerror}") from None
    for marker in (BEGIN, END):
        count = text.count(marker)
        require(count == 1, f"{readme_path} must have one line {marker!r}, not {count}")
    before, rest = text.split(BEGIN)
    require(END in rest, f"{readme_path} must have {BEGIN!r} before {END!r}")
    after = rest.split(END)[1]
    replace_text(readme_path, f"{before}{BEGIN}\n{results_block(results_folder)}\n{END}{after}")


def results_block(results_folder: Path) -> str:
    """Return the README's tables, with the seeds, commit and device of every number."""
    folders = sorted(path for path in results_folder.glob("*") if (path / "config.json").is_file())
    require(bool(folders), f"{results_folder} holds no run: no folder in it has a config.json")
    runs = read_runs(folders)
    parts = ["Pre-training, measured on the held-out part:", to_markdown(pretraining_table(runs))]
    parts.append("\n".join(_origin(run, folder) for run, folder in zip(runs, folders, strict=True)))
    rows, origins = [], []
    for run, folder in zip(runs, folders, strict=True):
        finetunings = [
            read_finetuning(path) for path in sorted(folder.glob("finetune-*/results.json"))
        ]
        # The folder in results/ names the run, whatever it was called when it was fine-tuned.
        finetunings = [dataclasses.replace(each, encoder=run.name) for each in finetunings]
        headers, new_rows = finetuning_table(finetunings)
        rows += new_rows
        origins += _finetuning_origins(run, finetunings)
    if rows:
        parts += [
            "Fine-tuning on the development set, median ± standard deviation over the seeds; "
            "brackets tell where collapsed seeds were replaced by others:",
            to_markdown(Table(headers, rows)),
            "\n".join(origins),
        ]
    for name, what in BENCHMARKS.items():
        path = results_folder / f"{name}.md"
        if path.is_file():
            parts += [f"{what} (`python -m benchmarks.{name}`):", path.read_text("utf-8").strip()]
    return "\n\n".join(parts)


def _origin(run: Run, folder: Path) -> str:
    told = {key: run.tell(key) for key in ("command", "commit", "device")}
    told["seed"] = [run.manifest["seed"]] if "seed" in run.manifest else []
    for key, answers in told.items():
        require(bool(answers), f"{folder / 'manifest.json'} lacks {key!r}")
    command = told["command"][0]
    commits = " and ".join(f"`{format_commit(each)}`" for each in told["commit"])
    return (
        f"- `{run.name}`: seed {run.manifest['seed']}, commit {commits}, "
        f"{' and '.join(map(str, told['device']))}; "
        f"`{command if isinstance(command, str) else ' '.join(map(str, command))}`"
    )


def _finetuning_origins(run: Run, finetunings: Sequence[Finetuning]) -> list[str]:
    """Return a line for each distinct origin of the scores: seeds, commit and device."""
    origins: dict[str, list[str]] = {}
    for finetuning in finetunings:
        facts = [f"seeds {', '.join(finetuning.seeds)}"]
        if finetuning.commit:
            facts.append(f"commit `{format_commit(finetuning.commit)}`")
        if finetuning.device:
            facts.append(finetuning.device)
        start = "from scratch" if finetuning.from_scratch else "pre-trained"
        origins.setdefault(", ".join(facts), []).append(f"{finetuning.task} {start}")
    return [f"- `{run.name}`, {', '.join(what)}: {facts}" for facts, what in origins.items()]
