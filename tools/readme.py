"""The numbers in README and docs, written from the files in results/: `python -m tools.readme`."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from electra.errors import UserError, require
from electra.files import read_object, write_text
from electra.reports.glossary import format_interval
from electra.reports.rendering import Table, to_markdown
from electra.reports.runs import (
    Finetuning,
    Run,
    finetuning_table,
    format_commit,
    pretraining_table,
    read_finetuning,
    read_runs,
)
from tools.picture import draw_results
from tools.words import describe_gains, describe_mark, mark_table

BEGIN = "<!-- results:begin -->"
END = "<!-- results:end -->"
PAGE = Path("results", "README.md")
"""The page of all results, relative to the README's folder."""
PICTURE = Path("docs", "results.svg")
"""The README's picture, relative to the README's folder."""
GUIDES = {"korean-reviews": Path("docs", "KOREAN.md")}
"""Pages about one run of results/, relative to the README's folder."""
QUICKSTART = "quickstart-"
"""Beginning of the names of the folders with a run and fine-tunings of `electra quickstart`."""
BENCHMARKS = {
    "step": ("step", "A pre-training step beside the same step with transformers' modules"),
    "step-modern-mini": ("step --preset modern-mini", "The same of ModernBERT's architecture"),
    "step-deberta-v3-xsmall": (
        "step --preset deberta-v3-xsmall --batch-size 4 --repeats 7 --threads 2 --compiled",
        "The same of DeBERTa's architecture",
    ),
    "finetune": ("finetune", "Fine-tuning beside transformers' Trainer"),
    "load": ("load", "Reading shuffled rows from shards"),
    "load-many": ("load --copies 84", "The same from 1,008 shards"),
    "latency": ("latency", "Answering a call: torch, ONNX and int8 beside transformers"),
    "serve": ("serve", "The service under 64 clients"),
}
"""Command, after `python -m benchmarks.`, and title of the tables in results/NAME.md."""


class Result(NamedTuple):
    """A pre-training run in results/ and its fine-tunings."""

    run: Run
    folder: Path
    finetunings: Sequence[Finetuning]


def update_readme(readme_path: Path, results_folder: Path) -> list[Path]:
    """Write the results into README, the pages of docs/ and docs/results.svg; return their paths.

    README and pages change only between their two markers. Nothing is written before all contents
    are complete. README shows the run with the most tasks that were fine-tuned with its weights
    and from scratch, the longest among several.

    Args:
        readme_path: The README. The folder docs/ is next to it.
        results_folder: The folder results/. It holds tables of benchmarks and one folder per run.
            A run's folder holds config.json, manifest.json, metrics.jsonl, and a results.json for
            each fine-tuning in folders `finetune-*`.

    Raises:
        UserError: A marker or a file is missing or damaged, or a manifest lacks the command,
            commit, device or seed.
    """
    page_path, picture_path = (readme_path.parent / path for path in (PAGE, PICTURE))
    frames = {path: _read_frame(path) for path in (readme_path, page_path)}
    results = _read_results(results_folder)
    shown = max(results, key=_rank_result)
    blocks = {readme_path: _readme_block(shown), page_path: _page_block(results, results_folder)}
    for result in results:
        if guide := GUIDES.get(result.run.name):
            guide_path = readme_path.parent / guide
            frames[guide_path], blocks[guide_path] = _read_frame(guide_path), _guide_block(result)
    texts = {
        path: f"{before}{BEGIN}\n{blocks[path]}\n{END}{after}"
        for path, (before, after) in frames.items()
    }
    texts[picture_path] = draw_results(shown.run, shown.finetunings)
    for path, text in texts.items():
        write_text(path, text)
    return list(texts)


def _rank_result(result: Result) -> tuple[bool, int, float]:
    """Return what decides which run README shows."""
    tuned, scratch = (
        {each.task for each in result.finetunings if each.from_scratch == is_scratch}
        for is_scratch in (False, True)
    )
    is_quickstart = result.run.name.startswith(QUICKSTART)
    return not is_quickstart, len(tuned & scratch), result.run.last_train.get("tokens", 0)


def _read_frame(path: Path) -> tuple[str, str]:
    """Return the text before the first marker and the text after the second marker."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    for marker in (BEGIN, END):
        count = text.count(marker)
        require(count == 1, f"{path} must have one line {marker!r}, not {count}")
    before, rest = text.split(BEGIN)
    require(END in rest, f"{path} must have {BEGIN!r} before {END!r}")
    return before, rest.split(END)[1]


def _read_results(folder: Path) -> list[Result]:
    folders = sorted(path for path in folder.glob("*") if (path / "config.json").is_file())
    require(bool(folders), f"{folder} holds no run: no folder in it has a config.json")
    results = []
    for run, path in zip(read_runs(folders), folders, strict=True):
        read = map(read_finetuning, sorted(path.glob("finetune-*/results.json")))
        # The folder in results/ names the run. At fine-tuning the run may have had another name.
        finetunings = [dataclasses.replace(each, encoder=run.name) for each in read]
        results.append(Result(run, path, finetunings))
    return results


def _finetuning_rows(results: Sequence[Result]) -> Table:
    tables = [finetuning_table(result.finetunings) for result in results]
    return Table(tables[0].headers, [row for table in tables for row in table.rows])


def _readme_block(result: Result) -> str:
    """Return the scores beside the public mark, or all scores, and what they say in words."""
    marks = mark_table(result.finetunings)
    parts = [
        to_markdown(marks if marks.rows else _finetuning_rows([result])),
        "\n".join(describe_gains(result.finetunings)),
        describe_mark(result.finetunings) if marks.rows else "",
    ]
    return "\n\n".join(part for part in parts if part)


def _guide_block(result: Result) -> str:
    """Return the measures and scores of a run, what they say in words, and where they are."""
    parts = [
        to_markdown(pretraining_table([result.run])),
        to_markdown(_finetuning_rows([result])),
        "\n".join(describe_gains(result.finetunings)),
        f"Commands, commit and device: [results](../results/README.md); the files: "
        f"[results/{result.run.name}](../results/{result.run.name}).",
    ]
    return "\n\n".join(part for part in parts if part)


def _page_block(results: Sequence[Result], folder: Path) -> str:
    """Return all tables of the page, and the seeds, commit and device of every number."""
    parts = [
        "## Pre-training",
        "Measured on the held-out part:",
        to_markdown(pretraining_table([result.run for result in results])),
        "\n".join(_pretraining_origin(result) for result in results),
    ]
    table = _finetuning_rows(results)
    if table.rows:
        parts += [
            "## Fine-tuning",
            "Scores on the development set: median ± standard deviation over the seeds. Brackets "
            "say how many collapsed seeds were replaced by others.",
            to_markdown(table),
            "\n".join(line for result in results for line in _finetuning_origins(result)),
        ]
    for result in results:
        if (marks := mark_table(result.finetunings)).rows:
            parts += [
                f"## `{result.run.name}` beside BERT-Tiny",
                describe_mark(result.finetunings),
                to_markdown(marks),
            ]
    if suites := _describe_suites(folder):
        parts += [
            "## The paper's orderings",
            "Gains of a row over another, in points of the mean of the suite's tasks on dev, with "
            "95% intervals over pre-training seeds. Percentages are shares of the budget.",
            *suites,
        ]
    for name, (command, what) in BENCHMARKS.items():
        path = folder / f"{name}.md"
        if path.is_file():
            parts += [f"## {what}", f"`python -m benchmarks.{command}`"]
            parts.append(path.read_text("utf-8").strip())
    return "\n\n".join(parts)


def _describe_suites(folder: Path) -> list[str]:
    """Return what each suite of `electra reproduce` below results/ found, its recipes together."""
    suites: dict[str, dict[Path, dict[str, Any]]] = {}
    for path in sorted(folder.rglob("results.json")):
        found = read_object(path)
        if "suite" in found:
            page = path.with_name("README.md").relative_to(folder)
            suites.setdefault(found["suite"]["title"], {})[page] = found
    parts = []
    for title, pages in suites.items():
        members = _name_members(pages)
        links = [
            f"[{name}]({page.as_posix()}), {len(found['records'])} of {found['num_runs']} runs"
            for (name, found), page in zip(members.items(), pages, strict=True)
        ]
        parts += [f"### {title}", f"The paper: {next(iter(pages.values()))['suite']['paper']}"]
        gains = _tabulate_gains(members)
        parts += [to_markdown(gains)] if gains.rows else []  # none if no two rows are finished
        parts.append(f"Scores, figure and runs: {'; '.join(links)}.")
    return parts


def _name_members(pages: Mapping[Path, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the results of a suite by their recipe, and by their folder where that is not one."""
    recipes = [f"recipe {found['suite']['recipe']}" for found in pages.values()]
    return {
        recipe if recipes.count(recipe) == 1 else f"{recipe}, {page.parent.as_posix()}": found
        for recipe, (page, found) in zip(recipes, pages.items(), strict=True)
    }


def _tabulate_gains(members: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return the comparisons of a suite: a line for each, a column for each of its results."""
    lines: dict[tuple[str, str], list[str]] = {}
    for column, found in enumerate(members.values(), start=1):
        for each in found["comparisons"]:
            unknown = [_format_paper(each["paper"]), *["-"] * len(members)]
            line = lines.setdefault((each["row"], each["against"]), unknown)
            line[column] = _format_comparison(each)
    rows = [[*pair, *line] for pair, line in lines.items()]
    return Table(["row", "against", "paper", *members], rows)


def _format_paper(gain: float | str) -> str:
    """Return the paper's gain, or on which side of the other row it has this one, if it says so."""
    return gain or "-" if isinstance(gain, str) else f"{gain:+.1f}"


def _format_comparison(comparison: Mapping[str, Any]) -> str:
    gain = format_interval(comparison["gain"], comparison["half_width"], sign="+")
    verdict = comparison["verdict"].rpartition(", ")[2]  # the sign says higher or lower
    return f"{verdict}: {gain}"


def _pretraining_origin(result: Result) -> str:
    run = result.run
    told = {key: run.tell(key) for key in ("command", "commit", "device")}
    told["seed"] = [run.manifest["seed"]] if "seed" in run.manifest else []
    for key, answers in told.items():
        require(bool(answers), f"{result.folder / 'manifest.json'} lacks {key!r}")
    command = told["command"][0]
    commits = " and ".join(f"`{format_commit(each)}`" for each in told["commit"])
    return (
        f"- `{run.name}`: seed {run.manifest['seed']}, commit {commits}, "
        f"{' and '.join(map(str, told['device']))}; "
        f"`{command if isinstance(command, str) else ' '.join(map(str, command))}`"
    )


def _finetuning_origins(result: Result) -> list[str]:
    """Return a line for each distinct origin of the scores: seeds, commit and device."""
    origins: dict[str, list[str]] = {}
    for finetuning in result.finetunings:
        facts = [f"seeds {', '.join(finetuning.seeds)}"]
        if finetuning.commit:
            facts.append(f"commit `{format_commit(finetuning.commit)}`")
        if finetuning.device:
            facts.append(finetuning.device)
        start = "from scratch" if finetuning.from_scratch else "pre-trained"
        origins.setdefault(", ".join(facts), []).append(f"{finetuning.label} {start}")
    return [f"- `{result.run.name}`, {', '.join(what)}: {facts}" for facts, what in origins.items()]


def main() -> None:
    """Write the tables of `README.md` and docs/ anew, from the folder `results`."""
    written = update_readme(Path("README.md"), Path("results"))
    print(f"wrote {', '.join(map(str, written))}")


if __name__ == "__main__":
    main()
