"""Live displays on standard error while a command works.

On a terminal a display is redrawn in place. Elsewhere a display prints plain lines without control
characters.
"""

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from rich import box
from rich.console import Group, RenderableType
from rich.constrain import Constrain
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from electra.reports.glossary import GLOSSARY, format_count, format_metric, format_seconds
from electra.terminal.printing import open_console, print_note, printable

SECONDS_BETWEEN_REFRESHES = 0.1
SECONDS_BETWEEN_LINES = 10.0
LINES_BETWEEN_HEADERS = 20
MAX_WIDTH = 100
# The columns of a log line before those of the metrics: key, two lines of the header, width.
COLUMNS = (
    ("step", "", "step", 7),
    ("tokens_per_second", "token", "per s", 5),
    ("seconds_left", "time", "left", 7),
)
BEFORE = {
    "compiling": "The first steps compile the networks, which takes a minute or two.",
    "counting": "Counting which tokens occur together, for the first embeddings.",
}
"""Notes on work before the first record, by its part."""


class _Screen:
    """A renderable redrawn in place on a terminal. Without a terminal, `draw` does nothing."""

    def __init__(self) -> None:
        self.console = open_console(stderr=True)
        # rich treats FORCE_COLOR as a terminal, but a log file cannot be redrawn.
        is_terminal = sys.stderr.isatty() and not self.console.is_dumb_terminal
        is_terminal = is_terminal and not self.console.quiet
        # Without auto-refresh, because rich's refresh thread would take time from training.
        self.live = (
            # Standard output that goes to a file must not be redirected to the terminal.
            Live(console=self.console, auto_refresh=False, redirect_stdout=sys.stdout.isatty())
            if is_terminal
            else None
        )

    def start(self) -> None:
        if self.live:
            self.live.start()

    @property
    def width(self) -> int:
        # A terminal echoes Ctrl-C as ^C after the display. Without two free columns the echo would
        # wrap, and the next display would be drawn one line too low.
        return min(self.console.width - 2, MAX_WIDTH)

    def draw(self, renderable: RenderableType) -> None:
        if self.live:
            self.live.update(Constrain(renderable, self.width), refresh=True)

    def stop(self) -> None:
        """Keep the last display on the screen, and show the cursor below the display."""
        if self.live:
            self.live.stop()

    def print_line(self, line: str) -> None:
        """Print a line of a log; on a terminal nothing."""
        if not self.live and not self.console.quiet:
            print(line, file=sys.stderr, flush=True)


class Display:
    """The pre-training display: a context manager whose `show` takes records of metrics.jsonl."""

    def __init__(self, *, steps: int, title: str = "Pre-training") -> None:
        self._steps = steps
        self._title = printable(title)
        self._passes = ""
        self._last: dict[str, Mapping[str, Any]] = {"train": {}, "heldout": {}}
        self._has_begun = False
        self._num_lines = 0
        self._told = -math.inf
        self._screen = _Screen()

    def __enter__(self) -> Self:
        return self  # the display begins with the first record, so an early error is one line

    def __exit__(self, *error: object) -> None:
        self._screen.stop()

    def show(self, record: Mapping[str, Any]) -> None:
        """Show a record: redraw the panel on a terminal, print a line of numbers elsewhere."""
        part = record["part"]
        if not self._has_begun:
            self._has_begun = True
            self._screen.start()
        if part == "begin":
            length = f"{self._steps:,} steps, {format_count(record['tokens'])} tokens"
            self._passes = format_passes(record["passes"])
            self._screen.print_line(f"# {self._title}: {length}, {self._passes}.")
        elif part in BEFORE:
            self._tell(BEFORE[part])
        elif part == "fetching":
            text = f"fetching shards: {record['done']:,} of {record['total']:,} files"
            if self._screen.live or time.monotonic() > self._told + SECONDS_BETWEEN_LINES:
                self._told = time.monotonic()
                self._tell(text)
        elif part == "start":
            print_note(record["text"])
        elif part == "alarm":
            print_note(f"step {record['step']:,}: {record['text']}")
        else:
            self._last[part] = record
            self._num_lines += 1
            if self._screen.live:
                self._screen.draw(self._panel())
            else:
                self._print_record(record)

    def _tell(self, text: str) -> None:
        self._screen.draw(Text(text, "dim"))
        self._screen.print_line(f"# {text}")

    def _print_record(self, record: Mapping[str, Any]) -> None:
        if self._num_lines == 1 and "disc_loss" in record:
            self._screen.print_line(
                "# Learning: disc loss falls below const loss, that of a constant prediction."
            )
        if self._num_lines % LINES_BETWEEN_HEADERS == 1:
            for line in header_lines():
                self._screen.print_line(line)
        self._screen.print_line(record_line(record))
        if line := domains_line(record):
            self._screen.print_line(line)

    def _panel(self) -> Panel:
        """Return the progress, and the metrics of the networks beside or below each other."""
        train, heldout = self._last["train"], self._last["heldout"]
        step = max(train.get("step", 0), heldout.get("step", 0))
        facts = [f"step {step:,} of {self._steps:,}"]
        if train:
            facts.append(f"{format_seconds(train['seconds_left'])} left")
            facts.append(f"{format_count(train['tokens_per_second'])} tokens/s")
        judge = "encoder" if "restore_loss" in train else "discriminator"
        networks = [self._measures("generator"), self._measures(judge, "text")]
        body: RenderableType = Group(networks[0], Text(), networks[1])
        if self._screen.width >= 78:
            body = Table.grid(expand=True)
            body.add_row(networks[0], Text("   "), networks[1])
        bottom = [f"{n} {format_metric(n, train.get(n))}" for n in ("learning_rate", "grad_norm")]
        if heldout:
            bottom.append(f"held-out at step {heldout['step']:,}")
        lines = (
            _bar(facts, step, self._steps),
            Text(),
            body,
            Text(),
            Text(" · ".join(bottom), "dim"),
        )
        return Panel(
            Group(*lines),
            title=Text(self._title, style="bold").append(self._passes and f" · {self._passes}"),
            title_align="left",
            box=box.ROUNDED,
            border_style="dim",
        )

    def _measures(self, *networks: str) -> Table:
        """Return the metrics of networks: of the last training record, and the last held-out."""
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="")
        table.add_column(Text(networks[0], style="bold"), min_width=18)
        table.add_column(Text("train", style="dim"), justify="right", min_width=6)
        table.add_column(Text("held-out", style="dim"), justify="right", min_width=8)
        parts = self._last["train"], self._last["heldout"]
        for name, metric in sorted(GLOSSARY.items(), key=lambda item: item[1].network == "text"):
            # Only some runs distinguish old and new text in the held-out part.
            is_shown = any(name in part for part in parts) or metric.column
            if metric.network not in networks or not is_shown:
                continue
            is_constant = name == "constant_disc_loss"
            cells = [Text("constant predictor" if is_constant else name)]
            for part in parts:
                loss, constant = part.get("disc_loss"), part.get("constant_disc_loss")
                is_good = name == "disc_loss" and loss and constant and loss < constant
                cells.append(
                    Text(format_metric(name, part.get(name)), "bold green" if is_good else "")
                )
            table.add_row(*cells, style="dim" if is_constant else "")
        return table


def format_passes(passes: Mapping[str, float]) -> str:
    """Return how often a run reads its text, or each corpus of a mixture."""
    return ", ".join(
        f"{f'{n:,.0f}' if n >= 10 else f'{n:.2g}'} passes over {printable(name)}"
        for name, n in passes.items()
    )


def _columns() -> list[tuple[str, str, str, int]]:
    measured = [(name, *each.column) for name, each in GLOSSARY.items() if each.column]
    return [*COLUMNS, *measured]


def header_lines() -> list[str]:
    """Return the two header lines of the columns of a log. Each begins with "#"."""
    return [
        "#" + " ".join(f"{column[number]:>{column[3]}}" for column in _columns())[1:]
        for number in (1, 2)
    ]


def record_line(record: Mapping[str, Any]) -> str:
    """Return the log line of a record: aligned columns, "-" for a missing value.

    A held-out record has no remaining time; its column says "heldout".
    """
    return " ".join(f"{_cell(name, record):>{width}}" for name, _, _, width in _columns())


SHORT: dict[str, Callable[[Any], str]] = {
    "step": str,
    "tokens_per_second": format_count,
    "seconds_left": format_seconds,
    "learning_rate": lambda rate: f"{rate:.1e}".replace("e-0", "e-"),
    "grad_norm": lambda norm: f"{norm:.2f}"[:4].rstrip("."),
}
"""How a value looks in a log line if that is not the metric's usual format."""
ALSO = {"mlm_loss": "lm_loss", "mlm_accuracy": "lm_accuracy"}
"""The metric that a column of a log line shows if its own is not measured."""


def _cell(name: str, record: Mapping[str, Any]) -> str:
    if name == "seconds_left" and record["part"] == "heldout":
        return "heldout"
    value = record.get(name, record.get(ALSO.get(name, "")))
    return SHORT[name](value) if name in SHORT and value is not None else format_metric(name, value)


def domains_line(record: Mapping[str, Any]) -> str:
    """Return the losses of a continued run's domains, beside each other; empty without any."""
    losses = [
        f"{domain} text {format_metric(f'{domain}_disc_loss', record[f'{domain}_disc_loss'])}"
        for domain in ("old", "new")
        if f"{domain}_disc_loss" in record
    ]
    return f"# disc loss on rows that stay the same: {', '.join(losses)}" if losses else ""


class Progress:
    """The progress of other long work: a context manager whose `update` takes the amount done."""

    def __init__(self, description: str, *, unit: str) -> None:
        self._description = printable(description)
        self._unit = unit
        self._facts: tuple[float, float | None, str] | None = None
        self._screen = _Screen()
        self._began = self._shown = time.monotonic()
        self._marks = [(self._began, 0.0)] * 2

    def __enter__(self) -> Self:
        self._screen.start()
        self._screen.draw(Text(self._description))
        return self

    def __exit__(self, *error: object) -> None:
        if self._facts:
            self._show()
        self._screen.stop()

    def update(self, done: float, total: float | None, note: str = "") -> None:
        """Record the progress, and show it if the last refresh is long enough ago.

        Most calls show nothing, so calls at every step are cheap.
        """
        self._facts = (done, total, printable(note))
        now = time.monotonic()
        pause = SECONDS_BETWEEN_REFRESHES if self._screen.live else SECONDS_BETWEEN_LINES
        if now - self._shown >= pause or done == total:  # what follows may take long
            self._shown = now
            self._show()

    def _show(self) -> None:
        assert self._facts
        done, total, note = self._facts
        self._facts = None
        facts = [self._description, self._amount(done, total)]
        now = time.monotonic()
        # By the speed of the last half: what was done before an interrupt took no time.
        if now - self._began >= 2 * (self._marks[1][0] - self._began):
            self._marks = [self._marks[1], (now, done)]
        since, before = self._marks[0] if done > self._marks[0][1] else (self._began, 0.0)
        if total and 0 < done < total:
            facts.append(f"{format_seconds((now - since) * (total - done) / (done - before))} left")
        else:
            facts.append(format_seconds(now - self._began))
        if note:
            facts.append(note)
        self._screen.draw(_bar(facts, done, total))
        share = f" {done / total:4.0%}" if total else ""
        self._screen.print_line(f"{facts[0]}{share}  {' | '.join(facts[1:])}")

    def _amount(self, done: float, total: float | None) -> str:
        # For a small amount that is not counted in whole numbers, whole units say little.
        digits = 2 if total and total < 100 and not float(total).is_integer() else 0
        scale, digits, unit = (1e6, 1, "MB") if self._unit == "bytes" else (1, digits, self._unit)
        amount = f"{done / scale:,.{digits}f}"
        if total is not None:
            amount += f" of {total / scale:,.{digits}f}"
        return f"{amount} {unit}"


def show_finetuning(progress: Progress, runs: int) -> Callable[[Mapping[str, Any]], None]:
    """Return a function that shows fine-tuning records as the joint progress of all runs."""
    scores = ""

    def show(record: Mapping[str, Any]) -> None:
        nonlocal scores
        if record["part"] == "train":
            done = record.get("run", record["seed"]) * record["steps"] + record["step"]
            note = f"seed {record['seed']}, epoch {record['epoch']}"
            if "combination" in record:
                note = f"{record['combination']}, {note}"
            progress.update(done, runs * record["steps"], note + scores)
        elif record["part"] == "dev":
            items = record["scores"].items()
            scores = "; dev " + ", ".join(f"{name} {value:.3f}" for name, value in items)

    return show


def _bar(facts: Sequence[str], done: float, total: float | None) -> RenderableType:
    """Return the facts on one line and, if the total is known, a bar of full width below."""
    line = Text(" · ".join(facts), overflow="ellipsis", no_wrap=True)
    if not total:
        return line
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(ratio=1)
    grid.add_column(justify="right", width=4)
    bar = ProgressBar(total=total, completed=done, complete_style="blue", finished_style="green")
    grid.add_row(bar, Text(f"{done / total:.0%}"))
    return Group(line, grid)
