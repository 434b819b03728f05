"""The curves of one or more runs, as SVG for the page."""

import html
import io
import math
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter

from electra.reports.glossary import GLOSSARY, Panel, list_panels
from electra.reports.runs import MetricsRecord, Run

# The colours of Okabe and Ito, distinguishable for colour-blind readers.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
INK = "#57606a"
GRID = "#d8dee4"
STYLES: tuple[Literal["-", "--", ":", "-."], ...] = ("-", "--", ":", "-.")
"""The lines of the metrics in one pair of axes."""
MOST_INSIDE = 4
"""Most entries of a legend among the curves; a longer one is drawn below them."""

PAGE_COLOURS = {colour: f"--curve-{i}" for i, colour in enumerate(COLOURS)}
PAGE_COLOURS |= {INK: "--muted", GRID: "--line"}
"""The CSS property that replaces each colour in an SVG, so that the page can have a dark mode."""

STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # part of matplotlib; the page replaces it with its own font
    "font.size": 9,
    "svg.fonttype": "none",
    "text.parse_math": False,
    "axes.edgecolor": GRID,
    "axes.labelcolor": INK,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.formatter.useoffset": False,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "legend.fontsize": 8.5,
    "text.color": INK,
    "lines.linewidth": 1.5,
    "lines.markersize": 4.5,
}


def find_panels(runs: Sequence[Run]) -> list[Panel]:
    """Return the panels for which at least one run has values."""
    records = [record for run in runs for record in (*run.train, *run.heldout)]
    return [
        panel
        for panel in list_panels()
        if any(record.get(name) is not None for name in panel.metrics for record in records)
    ]


def draw_svg(panel: Panel, runs: Sequence[Run]) -> str:
    """Return one panel as an `<svg>` element for the page, in the page's colours."""
    label = f"{panel.title} against {_unit_of_x(runs)}"
    return to_svg(lambda figure: _draw(figure, panel, runs), (4.6, 2.7), panel.title, label)


def to_svg(
    draw: Callable[[Figure], None], size: tuple[float, float], title: str, label: str
) -> str:
    """Return what `draw` draws as an `<svg>` element for the page, in the page's colours.

    `size` is in inches of 72 units. No two pictures of a page may have one title.
    """
    # The salt makes the ids in this picture differ from those in the page's other pictures.
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": title}):
        figure = Figure(figsize=size, layout="constrained", dpi=72)
        draw(figure)
        # The layout of savefig cuts off the label beside ticks of many digits.
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        file = io.StringIO()
        # Without date and creator, the same run gives the same page.
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    # Drop the prologue and the style sheet, because the style would apply to the whole page.
    svg = file.getvalue().split("</defs>", 1)[1]
    svg = svg.replace("xlink:href", "href").replace("font-family: 'DejaVu Sans'; ", "")
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    for colour, name in PAGE_COLOURS.items():
        svg = svg.replace(colour, f"var({name})")
    width, height = (round(72 * each, 1) for each in figure.get_size_inches())
    said = f'role="img" aria-label="{html.escape(label)}"'
    return f'<svg viewBox="0 0 {width} {height}" {said}>{svg.strip()}'


def _draw(figure: Figure, panel: Panel, runs: Sequence[Run]) -> None:
    """Draw a panel: lines for training, circles for the held-out part."""
    axes = figure.subplots()
    keys: dict[str, Line2D] = {}
    unit_of_x = _unit_of_x(runs)
    metrics = [
        metric
        for metric in panel.metrics
        if any(metric in record for run in runs for record in (*run.train, *run.heldout))
    ]
    for run_number, run in enumerate(runs):
        for number, metric in enumerate(metrics):
            is_alone = len(runs) == 1
            colour = COLOURS[(number if is_alone else run_number) % len(COLOURS)]
            style = STYLES[number % len(STYLES)]
            if train := list(_points(run, without_scraps(run.train), metric, unit_of_x)):
                axes.plot(*zip(*train, strict=True), style, color=colour, alpha=0.75)
                name = metric if len(metrics) > 1 else "training"
                key = Line2D([], [], color=colour)
                key.set_linestyle(style if is_alone else "-")
                keys[name if is_alone else run.name] = key
            if heldout := list(_points(run, run.heldout, metric, unit_of_x)):
                joined = "None" if train else style
                points = tuple(zip(*heldout, strict=True))
                axes.plot(
                    *points, marker="o", linestyle=joined, color=colour, markerfacecolor="none"
                )
                if not any(metric in record for each in runs for record in each.train):
                    key = Line2D([], [], color=colour, linestyle=style if is_alone else "-")
                    keys[metric if is_alone else run.name] = key
    for metric, style in zip(metrics[1:], STYLES[1:], strict=False) if len(runs) > 1 else ():
        keys[metric] = Line2D([], [], color=INK, linestyle=style)
    if any(record.get(panel.metrics[0]) is not None for run in runs for record in run.heldout):
        circle = Line2D([], [], color=INK, marker="o", linestyle="", markerfacecolor="none")
        keys["held-out"] = circle
    if len(keys) > MOST_INSIDE:
        figure.set_figheight(figure.get_figheight() + 0.1 * len(keys))
        figure.legend(keys.values(), keys.keys(), loc="outside lower center", ncols=2)
    elif len(keys) > 1:
        axes.legend(keys.values(), keys.keys(), handlelength=1.6)
    unit = GLOSSARY[panel.metrics[0]].unit
    axes.set_xlabel(unit_of_x)
    axes.set_ylabel(f"{panel.metrics[0]} ({unit})" if unit else panel.metrics[0])
    axes.set_xlim(left=0)
    axes.set_ylim(*_limits(axes, panel))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    if panel.metrics[0] == "tokens_per_second":
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))


def without_scraps(records: Sequence[MetricsRecord]) -> list[MetricsRecord]:
    """Return training records without those of few steps beside others, whose means are noise.

    A window ends early at a checkpoint and at the last step.
    """
    steps = [0, *(record["step"] for record in records)]
    windows = [end - begin for begin, end in pairwise(steps)]
    beside = [windows[max(0, i - 1) : i] + windows[i + 1 : i + 2] for i in range(len(windows))]
    return [
        record
        for record, window, others in zip(records, windows, beside, strict=True)
        if 4 * window >= min(others, default=0)
    ]


def _unit_of_x(runs: Sequence[Run]) -> str:
    """Return the unit of the x axis: operations, if the runs' steps differ in them."""
    last = [run.last_train for run in runs]
    flops = [each["flops"] / each["step"] if each.get("flops") else math.nan for each in last]
    is_one = math.isclose(min(flops), max(flops), rel_tol=1e-3) or any(map(math.isnan, flops))
    return "optimizer steps" if is_one else "true FLOPs"


def _points(
    run: Run, records: Sequence[MetricsRecord], metric: str, unit: str
) -> Iterator[tuple[float, float]]:
    known = np.array([(0, 0), *((each["step"], each.get("flops", 0)) for each in run.train)], float)
    flops = np.interp([record["step"] for record in records], *known.T)
    for record, place in zip(records, flops.tolist(), strict=True):
        value = record.get(metric)
        if value is not None and math.isfinite(value):
            yield record["step"] if unit == "optimizer steps" else place, value


def _limits(axes: Axes, panel: Panel) -> tuple[float, float]:
    """Return the y axis's limits without the first 5% of steps, which would flatten the rest."""
    if not axes.lines or panel.metrics[0] == "learning_rate":
        return axes.get_ylim()
    points = np.concatenate([line.get_xydata() for line in axes.lines])
    values = points[points[:, 0] >= points[:, 0].max() / 20, 1]
    low, high = float(values.min()), float(values.max())
    margin = (high - low) * 0.08 or abs(high) * 0.1 or 1
    # The axis of a nearly constant metric starts at 0, so that noise looks small.
    is_level = panel.metrics[0] in ("tokens_per_second", "grad_norm")
    return 0 if is_level else low - margin, high + margin
