"""The files of a suite's results: records, tables in Markdown and LaTeX, figures, one HTML page."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import matplotlib
from markupsafe import Markup
from matplotlib.figure import Figure

from electra.errors import count_of
from electra.files import make_folder, new_file, write_facts, write_text
from electra.reports.curves import COLOURS, STYLE
from electra.reports.glossary import format_count
from electra.reports.page import render_page
from electra.reports.rendering import Table, to_latex, to_markdown
from electra.reports.runs import UNKNOWN, format_commit
from electra.reproduce.records import (
    LEAST_SEEDS,
    TOO_FEW,
    Cell,
    Record,
    compare,
    compare_further,
    name_cell,
)
from electra.reproduce.suite import Suite

MARKERS = "osD^vP"
UNITS = {"flops": "true FLOPs", "steps": "steps", "seconds": "seconds of training"}
VERDICTS = {
    "as in the paper": "Holds here",
    "against the paper": "Does not hold here",
    "not separable": "Cannot be told at this budget",
    "higher": "Differs here, and the paper states no order",
    "lower": "Differs here, and the paper states no order",
}
"""Sentences on the cells with a verdict, in this order."""
LEGEND_COLUMNS = 3
SHIFT = 0.01
"""Distance of two lines' points at one place, as a share of the axis, so that both are visible."""


def write_results(
    out: Path,
    suite: Suite,
    records: Sequence[Record],
    others: Sequence[Record],
    num_runs: int,
    command: str,
) -> list[Cell]:
    """Write a suite's results into a folder, and return its comparisons.

    Writes results.json (the source of all other files; results/README.md has its
    comparisons), README.md, table.tex, figure.png, figure.svg and index.html. They hold no times,
    so the same runs give the same files. `others` are records that were in the folder, of seeds,
    rows or tasks that the plan, of `num_runs`, leaves out; `command` repeats the suite.
    """
    cells = compare(suite, records)
    compared = [*cells, *compare_further(suite, records)]
    make_folder(out)
    content = {
        "suite": asdict(suite),
        "command": command,
        "num_runs": num_runs,
        "comparisons": list_comparisons(compared),
        "records": list(records),
        "others": list(others),
    }
    write_facts(out / "results.json", content)
    title = suite.title
    lead = [
        *describe(suite, compared, len(records), num_runs),
        *describe_collapses(suite, records),
        *describe_devices(compared, records),
        *describe_commits(records),
    ]
    table = tabulate(suite, compared)
    scores = [[_name_line(cell), *map(str, cell.tasks.values())] for cell in cells]
    by_task = Table(["", *suite.tasks], scores)
    settings, runs = tabulate_settings(suite), trace_runs(records)
    parts = [
        *(f"# {title}", *lead, to_markdown(table), "![figure](figure.png)"),
        *("## Scores by task", to_markdown(by_task), "## Settings", to_markdown(settings)),
        *("Written by", f"```sh\n{command}\n```", "## Runs", to_markdown(runs)),
    ]
    write_text(out / "README.md", "\n\n".join(parts) + "\n")
    latex = to_latex(table, title) + to_latex(by_task, f"{title}: scores by task")
    write_text(out / "table.tex", latex)
    tables = {"table": table, "by_task": by_task, "settings": settings, "runs": runs}
    figure = Markup(draw(suite, cells, out))
    page = render_page(
        "suite.html", title=title, lead=lead, figure=figure, command=command, **tables
    )
    write_text(out / "index.html", page)
    return compared


def list_comparisons(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Return the gains in points with the half widths of their intervals, and the verdicts.

    `paper` is the paper's gain, or the row's side where it prints no scores.
    """
    return [
        {
            "row": cell.name,
            "against": cell.against,
            "gain": cell.gain.mean,
            "half_width": cell.gain.half_width,
            "paper": cell.row.side if cell.paper_gain is None else cell.paper_gain,
            "verdict": cell.verdict,
        }
        for cell in cells
        if cell.gain is not None
    ]


def describe(suite: Suite, cells: Sequence[Cell], num_done: int, num_runs: int) -> list[str]:
    """Return what the paper says, what was compared, and which of its orderings hold here."""
    tasks = count_of(len(suite.tasks), "task")
    here = (
        f"Here: recipe {suite.recipe}; rows that are compared have the same budget, in "
        f"{UNITS[suite.equal]}. A score is the mean of {tasks} on dev, in points, with the 95% "
        "interval over pre-training seeds. Gains are paired by seed, and their intervals pool the "
        "noise of the rows. "
        f"{num_done} of {num_runs} runs are finished."
    )
    if suite.grid:
        here += f" Of {' '.join(suite.grid)} in fine-tuning, the best on dev counts."
    if any(cell.fraction < 1 for cell in cells):
        here += " Percentages are shares of the budget."
    if any(cell.shared for cell in cells):
        here += (
            " Rows marked * share the stable part of the longest run of their row and seed, and "
            "have a decay of their own."
        )
    if any(cell.verdict.endswith(TOO_FEW) for cell in cells):
        here += f" Below {LEAST_SEEDS} seeds no winner is named."
    groups: dict[str, list[str]] = {title: [] for title in VERDICTS.values()}
    for cell in cells:
        verdict = cell.verdict.rpartition(", ")[2]
        if verdict in VERDICTS:
            named = f"{cell.name} against {cell.against} ({cell.gain})"
            groups[VERDICTS[verdict]].append(named)
    found = [f"{title}: {'; '.join(named)}." for title, named in groups.items() if named]
    paper = [f"The paper: {suite.paper}"] if suite.paper else []
    return [*paper, here, *found]


def describe_collapses(suite: Suite, records: Sequence[Record]) -> list[str]:
    """Return how many fine-tunings of each task are no better than a constant answer, if any."""
    collapsed = [task for record in records for task in record["collapsed"]]
    counts = {task: collapsed.count(task) for task in suite.tasks if task in collapsed}
    named = ", ".join(f"{task} {count} of {len(records)}" for task, count in counts.items())
    collapse = "Fine-tunings that collapsed, no better than a constant answer, and count"
    return [f"{collapse}: {named}."] if named else []


def describe_devices(cells: Sequence[Cell], records: Sequence[Record]) -> list[str]:
    """Return which compared runs of one seed are from different devices or dtypes, if any are."""
    devices = {
        (name_cell(record["row"], record["fraction"]), record["seed"]): {*record["devices"]}
        for record in records
    }
    named = []
    for cell in cells:
        seeds = [
            str(seed)
            for seed in cell.seeds
            if devices.get((cell.against, seed)) not in (None, devices[cell.name, seed])
        ]
        if seeds:
            named.append(f"{cell.name} and {cell.against} (seeds {', '.join(seeds)})")
    differ = "Perhaps not computed alike, since the recorded devices or dtypes differ"
    return [f"{differ}: {'; '.join(named)}."] if named else []


def describe_commits(records: Sequence[Record]) -> list[str]:
    """Return which rows have runs of different commits, if any have."""
    commits: dict[str, set[object]] = defaultdict(set)
    for record in records:
        commits[record["row"]].update(record["commits"])
    named = [row for row, each in commits.items() if len(each) > 1]
    told = "Perhaps not of the same code, since these rows have runs of several commits"
    return [f"{told}: {', '.join(named)}."] if named else []


def tabulate(suite: Suite, cells: Sequence[Cell]) -> Table:
    """Return the comparisons: a line for each cell, and the published rows of other systems."""
    headers = ["", "seeds", "true FLOPs", "score", "gain", "over", "verdict"]
    rows = [
        [
            _name_line(cell),
            str(len(cell.seeds)),
            f"{cell.flops:.2e}",
            str(cell.score),
            *(["-", "-"] if cell.gain is None else [_name_gain(cell), cell.against]),
            cell.verdict,
        ]
        for cell in cells
    ]
    if suite.published or any(cell.paper is not None for cell in cells):
        headers += ["paper: score", "paper: gain"]
        for row, cell in zip(rows, cells, strict=True):
            printed = (cell.paper, cell.paper_gain)
            row += ["-" if value is None else f"{value:.1f}" for value in printed]
    for other in suite.published:
        name = f"{other.name} ({other.source}; {other.flops:.1e} FLOPs by the paper's count)"
        rows.append([name, *"------", f"{other.paper:.1f}", "-"])
    return Table(headers, rows)


def _name_gain(cell: Cell) -> str:
    """Return the gain, and of how many seeds it is if the row has more."""
    others = len(cell.seeds) > cell.num_pairs
    return f"{cell.gain} ({cell.num_pairs} of the seeds)" if others else str(cell.gain)


def tabulate_settings(suite: Suite) -> Table:
    """Return what was trained and how: settings of all rows, of each row and of each task."""
    everywhere = [f"preset {suite.preset}", f"recipe {suite.recipe}"]
    if suite.budget is not None:
        everywhere.append(f"budget {suite.budget:g} {UNITS[suite.equal]}")
    rows = [["all rows", ", ".join([*everywhere, *suite.set])]]
    for row in suite.rows:
        own = [f"preset {row.preset}"] if row.preset else []
        own += [*row.set, *(f"fine-tuning: {each}" for each in row.finetune)]
        rows.append([row.name, ", ".join(own) or "-"])
    for task, settings in suite.finetune_settings.items():
        rows.append([task, ", ".join(settings) or "-"])
    return Table(["row or task", "settings"], rows)


def _name_line(cell: Cell) -> str:
    return cell.name + (" *" if cell.shared else "")


def trace_runs(records: Sequence[Record]) -> Table:
    """Return the table of all runs: what each cost, and the commit and device that made it."""
    rows = [
        [
            record["run"],
            str(record["seed"]),
            f"{record['steps']:,}",
            format_count(record["tokens"]),
            f"{record['flops']['true']:.2e}",
            f"{record['flops']['paper']:.2e}",
            " ".join(map(format_commit, record["commits"])) or UNKNOWN,
            " ".join(record["devices"]),
        ]
        for record in records
    ]
    headers = ["run", "seed", "steps", "tokens", "true FLOPs", "paper's FLOPs", "commit", "device"]
    return Table(headers, rows)


def draw(suite: Suite, cells: Sequence[Cell], out: Path) -> str:
    """Write the figure as figure.png and figure.svg, and return it as SVG for a page.

    A suite with an axis `x`, or with a row that has scores after several fractions, has lines;
    others have a dot for each row, since at one budget there is no distance to show.
    """
    has_lines = bool(suite.x) or len(cells) > len({cell.row.name for cell in cells})
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": suite.title}):
        height = 4.2 if has_lines else 1.2 + 0.45 * len(cells)
        figure = Figure(figsize=(7.2, height), layout="constrained")
        (_draw_lines if has_lines else _draw_dots)(figure, suite, cells)
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        with new_file(out / "figure.png") as path:
            figure.savefig(path, format="png", dpi=160, metadata={"Software": None})
        with new_file(out / "figure.svg") as path:
            figure.savefig(path, format="svg", metadata=nothing)
    return "<svg" + (out / "figure.svg").read_text(encoding="utf-8").split("<svg", 1)[1]


def _draw_lines(figure: Figure, suite: Suite, cells: Sequence[Cell]) -> None:
    panel = figure.subplots()
    lines: dict[str, list[Cell]] = {}
    for cell in cells:
        # On an axis of its own, each fraction of the budget has a line.
        name = name_cell(cell.row.line, cell.fraction).strip() if suite.x else cell.row.name
        lines.setdefault(name, []).append(cell)
    if not suite.x:
        panel.set_xscale("log")
    places = [_find_place(cell) for cell in cells]
    least, most = min(places), max(places)
    for number, (name, of_line) in enumerate(lines.items()):
        members = sorted(of_line, key=_find_place)
        share = SHIFT * (number - (len(lines) - 1) / 2)
        panel.errorbar(
            [
                place + share * (most - least) if suite.x else place * (most / least) ** share
                for place in map(_find_place, members)
            ],
            [cell.score.mean for cell in members],
            yerr=[cell.score.half_width or 0 for cell in members],
            color=COLOURS[number % len(COLOURS)],
            marker=MARKERS[number % len(MARKERS)],
            linestyle=("-", "--", ":", "-.")[number % 4],
            capsize=3,
            label=name or "whole budget",
        )
    panel.set_xlabel(suite.x or "true FLOPs")
    panel.set_ylabel("score, points")
    if len(lines) > 1 or suite.rows[0].line:
        # Outside, where it covers no line.
        figure.legend(loc="outside upper center", ncols=LEGEND_COLUMNS, handlelength=4)


def _find_place(cell: Cell) -> float:
    return cell.flops if cell.row.x is None else cell.row.x


def _draw_dots(figure: Figure, suite: Suite, cells: Sequence[Cell]) -> None:
    panel = figure.subplots()
    for number, cell in enumerate(cells):
        panel.errorbar(
            cell.score.mean,
            number,
            xerr=cell.score.half_width or 0,
            color=COLOURS[cell.row.name == suite.reference],
            marker=MARKERS[0],
            capsize=3,
        )
    panel.set_yticks(range(len(cells)), [cell.name for cell in cells])
    panel.invert_yaxis()
    panel.set_xlabel("score, points; mean and 95% interval over pre-training seeds")
