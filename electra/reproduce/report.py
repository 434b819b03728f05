"""The files of a suite's results: records, tables in Markdown and LaTeX, figures, one HTML page."""

import io
import re
from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from electra.files import write_json, write_text
from electra.reports.curves import COLOURS, STYLE
from electra.reports.glossary import format_count
from electra.reports.page import frame_page
from electra.reports.tables import Table, to_html, to_markdown
from electra.reproduce.records import (
    LEAST_SEEDS,
    TOO_FEW,
    Cell,
    compare,
    compare_further,
    name_cell,
)
from electra.reproduce.suite import Suite

MARKERS = "osD^vP"
UNITS = {"flops": "true FLOPs", "steps": "steps", "seconds": "seconds of training"}
LEGEND_COLUMNS = 3
SHIFT = 0.01
"""Distance of two lines' points at one place, as a share of the axis, so that both are visible."""


def write_results(
    out: Path,
    suite: Suite,
    records: Sequence[dict[str, Any]],
    others: Sequence[dict[str, Any]],
    num_runs: int,
    command: str,
) -> list[Cell]:
    """Write a suite's results into a folder, and return its comparisons.

    Written are results.json (everything below is made from it; results/README.md has its
    comparisons), README.md, table.tex, figure.png, figure.svg and index.html. They hold no times,
    so the same runs give the same files.

    Args:
        out: The folder; made if it does not exist.
        suite: The suite.
        records: The finished runs, from `read_records`.
        others: Records that were in the folder, of seeds, rows or tasks that the plan leaves out.
        num_runs: Runs of the whole plan.
        command: The command that repeats the suite.
    """
    cells = compare(suite, records)
    compared = [*cells, *compare_further(suite, records)]
    out.mkdir(parents=True, exist_ok=True)
    table, by_task = tabulate(suite, compared), tabulate_tasks(suite, cells)
    settings, trace = tabulate_settings(suite), trace_runs(records)
    lead = [
        *describe(suite, compared, len(records), num_runs),
        *describe_collapses(suite, records),
        *describe_devices(compared, records),
    ]
    write_json(
        out / "results.json",
        {
            "suite": asdict(suite),
            "command": command,
            "num_runs": num_runs,
            "comparisons": list_comparisons(compared),
            "records": list(records),
            "others": list(others),
        },
    )
    write_text(
        out / "README.md",
        f"# {suite.title}\n\n"
        + "\n\n".join(lead)
        + f"\n\n{to_markdown(table)}\n\n![figure](figure.png)\n\n"
        + f"## Scores by task\n\n{to_markdown(by_task)}\n\n"
        + f"## Settings\n\n{to_markdown(settings)}\n\nWritten by\n\n```sh\n{command}\n```\n\n"
        + f"## Runs\n\n{to_markdown(trace)}\n",
    )
    tables = to_latex(table, suite.title) + to_latex(by_task, f"{suite.title}: scores by task")
    write_text(out / "table.tex", tables)
    svg = draw(suite, cells, out)
    paragraphs = "\n".join(f"<p>{escape(text)}</p>" for text in lead)
    body = (
        f"<header><h1>{escape(suite.title)}</h1>\n{paragraphs}</header>\n{to_html(table)}\n"
        f"<figure>{svg}</figure>\n<h2>Scores by task</h2>\n{to_html(by_task)}\n"
        f"<h2>Settings</h2>\n{to_html(settings)}\n<h2>Runs</h2>\n{to_html(trace)}\n"
        f"<h2>Command</h2>\n<pre>{escape(command)}</pre>"
    )
    write_text(out / "index.html", frame_page(suite.title, body))
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
    paragraphs = [f"The paper: {suite.paper}"]
    here = (
        f"Here: recipe {suite.recipe}; all rows have the same budget, in {UNITS[suite.equal]}. "
        f"A score is the mean of {len(suite.tasks)} tasks on dev, in points, with the 95% interval "
        "over pre-training seeds. Gains are paired by seed, and their intervals pool the noise of "
        "the rows. "
        f"{num_done} of {num_runs} runs are finished."
    )
    if any(cell.fraction < 1 for cell in cells):
        here += " Percentages are shares of the budget."
    if any(cell.shared for cell in cells):
        here += (
            " Rows marked * share the stable part of the longest run of their row and seed, and "
            "have a decay of their own."
        )
    paragraphs.append(here)
    groups = {
        "Holds here": [c for c in cells if c.verdict.endswith("as in the paper")],
        "Does not hold here": [c for c in cells if c.verdict.endswith("against the paper")],
        "Cannot be told at this budget": [c for c in cells if c.verdict == "not separable"],
        f"Fewer than {LEAST_SEEDS} seeds, no winner is named": [
            c for c in cells if c.verdict == TOO_FEW
        ],
        "Differs here, and the paper tells no order": [
            c for c in cells if c.verdict in ("higher", "lower")
        ],
    }
    for title, members in groups.items():
        if members:
            named = "; ".join(
                f"{cell.name} against {cell.against} ({cell.gain})" for cell in members
            )
            paragraphs.append(f"{title}: {named}.")
    return paragraphs


def describe_collapses(suite: Suite, records: Sequence[dict[str, Any]]) -> list[str]:
    """Return how many fine-tunings of each task answer all examples alike, if any do."""
    # Not in records of older versions.
    collapsed = [task for record in records for task in record.get("collapsed", ())]
    named = [
        f"{task} {collapsed.count(task)} of {len(records)}"
        for task in suite.tasks
        if task in collapsed
    ]
    if not named:
        return []
    return [f"Fine-tunings that collapsed to a constant answer, and count: {', '.join(named)}."]


def describe_devices(cells: Sequence[Cell], records: Sequence[dict[str, Any]]) -> list[str]:
    """Return which compared runs of one seed are from different devices or dtypes, if any are."""
    devices = {
        (name_cell(record["row"], record["fraction"]), record["seed"]): record["devices"]
        for record in records
    }
    named = []
    for cell in cells:
        seeds = [
            str(seed)
            for seed in cell.seeds
            if (cell.against, seed) in devices
            and devices[cell.against, seed] != devices[cell.name, seed]
        ]
        if seeds:
            named.append(f"{cell.name} and {cell.against} (seeds {', '.join(seeds)})")
    if not named:
        return []
    return [
        "Perhaps not computed alike, since the recorded devices or dtypes differ: "
        f"{'; '.join(named)}."
    ]


def tabulate(suite: Suite, cells: Sequence[Cell]) -> Table:
    """Return the comparisons: a line for each cell, and the published rows of other systems."""
    has_paper = any(cell.paper is not None for cell in cells) or bool(suite.published)
    headers = ["", "seeds", "true FLOPs", "score", "gain", "over", "verdict"]
    if has_paper:
        headers += ["paper: score", "paper: gain"]
    rows = []
    for cell in cells:
        line = [
            _name_line(cell),
            str(len(cell.seeds)),
            f"{cell.flops:.2e}",
            str(cell.score),
            "-" if cell.gain is None else _name_gain(cell),
            "-" if cell.gain is None else cell.against,
            cell.verdict,
        ]
        if has_paper:
            line += [
                "-" if value is None else f"{value:.1f}" for value in (cell.paper, cell.paper_gain)
            ]
        rows.append(line)
    for other in suite.published:
        name = f"{other.name} ({other.source}; {other.flops:.1e} FLOPs by the paper's count)"
        rows.append([name, *"------", f"{other.paper:.1f}", "-"])
    return Table(headers, rows)


def _name_gain(cell: Cell) -> str:
    """Return the gain, and of how many seeds it is if the row has others, too."""
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
        rows.append([row.name, ", ".join([*own, *row.set]) or "-"])
    for task, settings in suite.finetune_settings.items():
        rows.append([task, ", ".join(settings) or "-"])
    return Table(["row or task", "settings"], rows)


def tabulate_tasks(suite: Suite, cells: Sequence[Cell]) -> Table:
    """Return the scores of each task: a line for each cell."""
    rows = [[_name_line(cell), *(str(cell.tasks[task]) for task in suite.tasks)] for cell in cells]
    return Table(["", *suite.tasks], rows)


def _name_line(cell: Cell) -> str:
    return cell.name + (" *" if cell.shared else "")


def trace_runs(records: Sequence[dict[str, Any]]) -> Table:
    """Return the table of all runs: what each cost, and the commit and device that made it."""
    rows = [
        [
            record["run"],
            str(record["seed"]),
            f"{record['steps']:,}",
            format_count(record["tokens"]),
            f"{record['flops']['true']:.2e}",
            f"{record['flops']['paper']:.2e}",
            " ".join(commit[:10] for commit in record["commits"]),
            " ".join(record["devices"]),
        ]
        for record in records
    ]
    headers = ["run", "seed", "steps", "tokens", "true FLOPs", "paper's FLOPs", "commit", "device"]
    return Table(headers, rows)


def to_latex(table: Table, caption: str) -> str:
    """Return the table for LaTeX with the package booktabs."""
    lines = [
        " & ".join(map(_escape_latex, cells)) + r" \\" for cells in (table.headers, *table.rows)
    ]
    columns = "l" + "r" * (len(table.headers) - 1)
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            lines[0],
            r"\midrule",
            *lines[1:],
            r"\bottomrule",
            r"\end{tabular}",
            rf"\caption{{{_escape_latex(caption)}}}",
            r"\end{table}",
            "",
        ]
    )


def _escape_latex(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "±": r"$\pm$", "~": r"\textasciitilde{}"}
    special |= {char: f"\\{char}" for char in "&%$#_{}"}
    special["^"] = r"\textasciicircum{}"
    escaped = "".join(special.get(char, char) for char in text)
    signed = re.sub(r"^-(?=\d)", "$-$", escaped)
    return re.sub(r"([\d.]+)e\+0*(\d+)", r"$\1 \\cdot 10^{\2}$", signed)


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
        figure.savefig(out / "figure.png", dpi=160, metadata={"Software": None})
        figure.savefig(out / "figure.svg", metadata=nothing)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata=nothing)
    return "<svg" + text.getvalue().split("<svg", 1)[1]


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
        # Outside, where it lies on no line.
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
