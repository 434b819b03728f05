"""The README's picture: a run's held-out loss, and its encoder's scores on labelled tasks.

The SVG is written as text, so the picture does not depend on the version of matplotlib. With its
own background and a second set of colours for dark mode, the picture is legible on any page.
"""

import math
from collections.abc import Sequence
from html import escape

from electra.reports.runs import Finetuning, Run, pair_finetunings

WIDTH = 480
"""One panel below the other: on a phone, of 360 pixels, letters are still 11 high."""
TOP = 84
"""Height of the titles above a panel. All lengths are in pixels."""
CURVE_HEIGHT = 310
"""Of the upper panel, with titles and labels."""
ROW = 26
"""Height of a task's row."""
CURVE = (62, WIDTH - 20)
"""Left and right end of the curve panel."""
SCORES = (178, 396)
"""Positions of the scores 0 and 1."""

STYLE = """
  text { fill: #1f2328; font: 15px system-ui, -apple-system, "Segoe UI", sans-serif; }
  .title { font-weight: 600; font-size: 17px; }
  .muted { fill: #57606a; }
  .right { text-anchor: end; }
  .middle { text-anchor: middle; }
  .paper { fill: #ffffff; }
  .grid { stroke: #d8dee4; }
  .link { stroke: #8c959f; stroke-width: 2; }
  .before { fill: #ffffff; stroke: #57606a; stroke-width: 2; }
  .after { fill: #0969da; }
  .guess { stroke: #bc4c00; stroke-width: 2; }
  .curve { fill: none; stroke: #0969da; stroke-width: 2; }
  .constant { fill: none; stroke: #bc4c00; stroke-width: 2; stroke-dasharray: 5 4; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .muted { fill: #9198a1; }
    .paper, .before { fill: #0d1117; }
    .grid { stroke: #3d444d; }
    .link { stroke: #656c76; }
    .before { stroke: #9198a1; }
    .after { fill: #58a6ff; }
    .guess { stroke: #f0883e; }
    .curve { stroke: #58a6ff; }
    .constant { stroke: #f0883e; }
  }
"""


def draw_results(run: Run, finetunings: Sequence[Finetuning]) -> str:
    """Return the picture as SVG: held-out loss, and each task's pre-trained and scratch scores.

    Args:
        run: The pre-training run.
        finetunings: Fine-tunings of this run. Tasks need both starts: pre-trained and from scratch.
    """
    pairs = [(a, b) for a, b in pair_finetunings(finetunings).values() if a and b]
    pairs.sort(key=lambda pair: pair[1].median - pair[0].median)
    height = CURVE_HEIGHT + TOP + ROW * len(pairs) + 56
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" viewBox="0 0 {WIDTH} {height}" '
        f'role="img" aria-label="{escape(_describe(run, pairs))}">',
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{height}" rx="8"/>',
        *_draw_curves(run, CURVE_HEIGHT - 64),
        *_draw_scores(pairs, height),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _describe(run: Run, pairs: Sequence[tuple[Finetuning, Finetuning]]) -> str:
    scores = "; ".join(f"{a.task} {a.median:.3f} against {b.median:.3f}" for a, b in pairs)
    return f"{run.name}: scores with pre-trained weights against from scratch: {scores}"


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _draw_curves(run: Run, bottom: float) -> list[str]:
    """Return the panel of the discriminator's held-out loss and the constant predictor's loss."""
    left, right = CURVE
    steps, tokens, seconds = run.cost
    cost = f"{steps} steps, {tokens} tokens, {seconds}"
    parts = [
        _text(20, 30, "Pre-training", "title"),
        _text(20, 50, "discriminator's loss on held-out text, nats", "muted"),
        _text((left + right) / 2, bottom + 42, cost, "muted middle"),
    ]
    names = ("constant_disc_loss", "disc_loss")
    records = [r for r in run.heldout if all(r.get(name) is not None for name in names)]
    if len(records) < 2:
        return parts
    values = [record[name] for record in records for name in names]
    low, high = min(values), max(values)
    margin = 0.1 * (high - low) or 0.1
    low, high = low - margin, high + margin
    top, end = TOP - 10, records[-1]["step"]

    def place(step: int, value: float) -> tuple[float, float]:
        y = bottom - (bottom - top) * (value - low) / (high - low)
        return left + (right - left) * step / end, y

    for value in _list_ticks(low, high):
        y = place(0, value)[1]
        parts.append(_line("grid", left, y, right, y))
        parts.append(_text(left - 6, y + 4, f"{value:.6g}", "muted right"))
    for x_end, step, kind in ((left, 0, "middle"), (right, end, "right")):
        parts.append(_text(x_end, bottom + 21, f"{step:,}", f"muted {kind}"))
    for name, kind in zip(names, ("constant", "curve"), strict=True):
        points = " ".join("{:.1f},{:.1f}".format(*place(r["step"], r[name])) for r in records)
        parts.append(f'<polyline class="{kind}" points="{points}"/>')
    # The constant predictor's loss is above disc_loss and both fall: the label of the upper curve
    # fits above its end, the label of the lower curve below.
    labels = ("best constant prediction", "discriminator")
    for name, label, above in zip(names, labels, (32, -18), strict=True):
        x, y = place(end, records[-1][name])
        parts.append(_text(x, y - above, label, "right"))
    return parts


def _list_ticks(low: float, high: float) -> list[float]:
    """Return at most six ticks: the multiples of 1, 2 or 5 times a power of ten in the range."""
    power = 10.0 ** math.floor(math.log10((high - low) / 5))
    tick = next(power * n for n in (1, 2, 5, 10) if (high - low) / (power * n) <= 5)
    return [tick * n for n in range(math.ceil(low / tick), math.floor(high / tick) + 1)]


def _draw_scores(pairs: Sequence[tuple[Finetuning, Finetuning]], height: float) -> list[str]:
    """Return the panel of scores: one row per task, largest gain first."""
    zero, one = SCORES
    top = CURVE_HEIGHT + TOP
    bottom = top + ROW * len(pairs) - 8
    parts = [
        _text(20, CURVE_HEIGHT + 30, "Fine-tuning", "title"),
        *_draw_legend(20, CURVE_HEIGHT + 48),
    ]
    for share in (0, 0.25, 0.5, 0.75, 1):
        x = zero + share * (one - zero)
        parts.append(_line("grid", x, top - 14, x, bottom))
        parts.append(_text(x, bottom + 18, f"{share:g}", "muted middle"))

    def place(score: float) -> float:
        return zero + min(max(score, 0), 1) * (one - zero)

    has_replaced = False
    for number, (pretrained, scratch) in enumerate(pairs):
        y = top + ROW * number
        is_replaced = bool(pretrained.num_replaced or scratch.num_replaced)
        has_replaced |= is_replaced
        name = f"{pretrained.task} ({pretrained.metric}){'*' * is_replaced}"
        before, after = place(scratch.median), place(pretrained.median)
        parts.append(_text(zero - 14, y + 5, name, "right"))
        if pretrained.majority is not None:
            guess = place(pretrained.majority)
            parts.append(_line("guess", guess, y - 7, guess, y + 7))
        parts.append(_line("link", before, y, after, y))
        parts.append(f'<circle class="before" cx="{before:.1f}" cy="{y}" r="4.5"/>')
        parts.append(f'<circle class="after" cx="{after:.1f}" cy="{y}" r="5.5"/>')
        gain = pretrained.median - scratch.median
        parts.append(_text(WIDTH - 24, y + 5, f"{gain:+.3f}", "right"))
    note = "median over the seeds; right: the gain"
    if has_replaced:
        note = f"{note}; * seeds replaced"
    parts.append(_text(WIDTH - 24, height - 12, note, "muted right"))
    return parts


def _draw_legend(x: float, y: float) -> list[str]:
    return [
        f'<circle class="after" cx="{x + 6}" cy="{y}" r="5.5"/>',
        _text(x + 18, y + 5, "pre-trained", "muted"),
        f'<circle class="before" cx="{x + 124}" cy="{y}" r="4.5"/>',
        _text(x + 136, y + 5, "from scratch", "muted"),
        _line("guess", x + 250, y - 7, x + 250, y + 7),
        _text(x + 260, y + 5, "constant answer", "muted"),
    ]
