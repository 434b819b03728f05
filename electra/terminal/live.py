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

from electra.reports.glossary import format_count, format_metric, format_seconds
from electra.reports.lines import domains_line, header_lines, record_line
from electra.terminal.printing import open_console, print_note, printable

SECONDS_BETWEEN_REFRESHES = 0.1
SECONDS_BETWEEN_LINES = 10.0
LINES_BETWEEN_HEADERS = 20
MAX_WIDTH = 100
COMPILING = "The first steps compile the networks, which takes a minute or two."

GENERATOR_ROWS = ("mlm_loss", "mlm_accuracy", "sampled_accuracy")
DISCRIMINATOR_ROWS = ("disc_loss", "constant_disc_loss", "disc_auc", "replaced_rate")
DOMAIN_ROWS = ("old_disc_loss", "new_disc_loss")
RESTORER_ROWS = ("restore_loss", "restore_accuracy", "replaced_rate")


class _Screen:
    """A renderable redrawn in place on a terminal. Without a terminal, `draw` does nothing."""

    def __init__(self) -> None:
        self.console = open_console(stderr=True)
        # rich treats FORCE_COLOR as a terminal, but a log file cannot be redrawn.
        is_terminal = sys.stderr.isatty() and not self.console.is_dumb_terminal
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
        print(line, file=sys.stderr, flush=True)


class Display:
    """The pre-training display: a context manager whose `show` takes records of metrics.jsonl."""

    def __init__(self, *, steps: int, title: str = "Pre-training") -> None:
        self._steps = steps
        self._title = printable(title)
        self._train: Mapping[str, Any] = {}
        self._heldout: Mapping[str, Any] = {}
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
        if not self._has_begun:
            self._begin()
        if record["part"] == "compiling":
            if self._screen.live:
                self._screen.draw(Text(COMPILING, "dim"))
            else:
                self._screen.print_line(f"# {COMPILING}")
            return
        if record["part"] == "fetching":
            text = f"fetching shards: {record['done']:,} of {record['total']:,} files"
            if self._screen.live:
                self._screen.draw(Text(text, "dim"))
            elif time.monotonic() > self._told + SECONDS_BETWEEN_LINES:
                self._told = time.monotonic()
                self._screen.print_line(f"# {text}")
            return
        if record["part"] == "alarm":
            print_note(f"step {record['step']:,}: {record['text']}")
            return
        self._num_lines += 1
        if self._screen.live:
            if record["part"] == "heldout":
                self._heldout = record
            else:
                self._train = record
            self._screen.draw(self._panel())
            return
        if self._num_lines % LINES_BETWEEN_HEADERS == 1:
            for line in header_lines():
                self._screen.print_line(line)
        self._screen.print_line(record_line(record))
        if line := domains_line(record):
            self._screen.print_line(line)

    def _begin(self) -> None:
        self._has_begun = True
        self._screen.start()
        if not self._screen.live:
            self._screen.print_line(f"# {self._title}: {self._steps:,} steps.")
            self._screen.print_line(
                "# Learning: disc loss falls below const loss, that of a constant prediction."
            )

    def _panel(self) -> Panel:
        train = self._train
        generator = self._measures("generator", GENERATOR_ROWS)
        restores = "restore_loss" in train
        discriminator = (
            self._measures("encoder", RESTORER_ROWS)
            if restores
            else self._measures(
                "discriminator",
                (*DISCRIMINATOR_ROWS, *(name for name in DOMAIN_ROWS if name in self._heldout)),
            )
        )
        if self._screen.width >= 78:
            measures = Table.grid(expand=True)
            measures.add_row(generator, Text("   "), discriminator)
            body: RenderableType = measures
        else:
            body = Group(generator, Text(), discriminator)
        bottom = [f"{n} {format_metric(n, train.get(n))}" for n in ("learning_rate", "grad_norm")]
        if self._heldout:
            bottom.append(f"held-out at step {self._heldout['step']:,}")
        return Panel(
            Group(self._progress(), Text(), body, Text(), Text(" · ".join(bottom), "dim")),
            title=Text(self._title, style="bold"),
            title_align="left",
            box=box.ROUNDED,
            border_style="dim",
        )

    def _progress(self) -> RenderableType:
        step = max(self._train.get("step", 0), self._heldout.get("step", 0))
        facts = [f"step {step:,} of {self._steps:,}"]
        if self._train:
            facts.append(f"{format_seconds(self._train['seconds_left'])} left")
            facts.append(f"{format_count(self._train['tokens_per_second'])} tokens/s")
        return _bar(facts, step, self._steps)

    def _measures(self, title: str, names: Sequence[str]) -> Table:
        """Return one network's metrics: of the last training record, and of the last held-out."""
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="")
        table.add_column(Text(title, style="bold"), min_width=18)
        table.add_column(Text("train", style="dim"), justify="right", min_width=6)
        table.add_column(Text("held-out", style="dim"), justify="right", min_width=8)
        for name in names:
            label = "constant predictor" if name == "constant_disc_loss" else name
            cells = [Text(label)]
            for part in (self._train, self._heldout):
                loss, constant = part.get("disc_loss"), part.get("constant_disc_loss")
                is_good = name == "disc_loss" and loss and constant and loss < constant
                style = "bold green" if is_good else ""
                cells.append(Text(format_metric(name, part.get(name)), style))
            table.add_row(*cells, style="dim" if name == "constant_disc_loss" else "")
        return table


class Progress:
    """The progress of other long work: a context manager whose `update` takes the amount done."""

    def __init__(self, description: str, *, unit: str) -> None:
        self._description = printable(description)
        self._unit = unit
        self._facts: tuple[float, float | None, str] | None = None
        self._screen = _Screen()
        self._began = self._shown = time.monotonic()

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

        Args:
            done: Amount done, in the unit of the progress.
            total: Amount in total; None if unknown.
            note: Further text to show.
        """
        self._facts = (done, total, printable(note))
        now = time.monotonic()
        pause = SECONDS_BETWEEN_REFRESHES if self._screen.live else SECONDS_BETWEEN_LINES
        if now - self._shown >= pause:
            self._shown = now
            self._show()

    def _show(self) -> None:
        assert self._facts
        done, total, note = self._facts
        self._facts = None
        facts = [self._description, self._amount(done, total)]
        seconds = time.monotonic() - self._began
        if total and 0 < done < total:
            facts.append(f"{format_seconds(seconds * (total - done) / done)} left")
        else:
            facts.append(format_seconds(seconds))
        if note:
            facts.append(note)
        if self._screen.live:
            self._screen.draw(_bar(facts, done, total))
        else:
            share = f" {done / total:4.0%}" if total else ""
            self._screen.print_line(f"{facts[0]}{share}  {' | '.join(facts[1:])}")

    def _amount(self, done: float, total: float | None) -> str:
        # Of a small amount that is not counted in whole numbers, whole units say little.
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
