"""What the commands print once: results on standard output, errors and notes on standard error.

A result can therefore be piped while its making is watched.
"""

import sys
from collections.abc import Mapping, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from electra.reports.tokens import Sentence, TokenView, describe


class PipeConsole(Console):
    """A console that raises BrokenPipeError, where rich's own ends the program with status 1."""

    def on_broken_pipe(self) -> None:
        """Leave the error to the caller; rich calls this while it handles one."""
        raise


def open_console(*, stderr: bool = False) -> PipeConsole:
    """Return a console that prints text as it is."""
    return PipeConsole(stderr=stderr, highlight=False, markup=False, emoji=False)


def print_error(message: str) -> None:
    """Print a user's mistake as one line, to standard error."""
    console = open_console(stderr=True)
    line = Text("error: ", "bold red").append(printable(message), "default not bold")
    console.print(line, soft_wrap=True)


def print_note(note: str) -> None:
    """Print something the user should know, to standard error."""
    open_console(stderr=True).print(
        Text("note: ", "bold yellow").append(printable(note), "default not bold"), soft_wrap=True
    )


def print_done(what: str, next_command: str = "") -> None:
    """Print what was written and, on a line of its own to copy, the command that comes next."""
    console = open_console()
    console.print(Text(printable(what)), soft_wrap=True)
    if next_command:
        line = Text("next: ", "dim").append(printable(next_command), "not dim bold")
        console.print(line, soft_wrap=True)


def print_lines(lines: Sequence[str]) -> None:
    """Print results as they are, for another program to read."""
    sys.stdout.writelines(line + "\n" for line in lines)
    sys.stdout.flush()


def print_step(title: str) -> None:
    """Print the headline of a step: the command that does it, where there is one."""
    open_console().print(Text("\n").append(printable(title), "bold"), soft_wrap=True)


def print_plan(settings: Mapping[str, object], action: str) -> None:
    """Print what a dry run would do: every setting on a line as --set takes it, then the deed."""
    console = open_console()
    for name, value in settings.items():
        word = str(value).lower() if value is None or isinstance(value, bool) else str(value)
        line = Text(printable(f"{name}=")).append(printable(word), "bold")
        console.print(line, soft_wrap=True)
    console.print(Text(printable(f"would {action}; nothing was written")), soft_wrap=True)


def print_table(rows: Sequence[Sequence[object]], headers: Sequence[str]) -> None:
    """Print rows under headers: ruled on a terminal, plain columns elsewhere; numbers right."""
    console = open_console()
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    is_number = [
        bool(cells) and all(row[column][:1] in "0123456789.-+" for row in cells)
        for column in range(len(headers))
    ]
    if sys.stdout.isatty():
        table = Table(box=box.ROUNDED, border_style="dim", header_style="bold")
        for header, right in zip(headers, is_number, strict=True):
            table.add_column(Text(header), justify="right" if right else "left", overflow="fold")
        for row in cells:
            table.add_row(*map(Text, row))
        console.print(table)
        return
    cells = [list(headers), *cells]
    widths = [max(cell_len(row[column]) for row in cells) for column in range(len(headers))]
    cells.insert(1, ["-" * width for width in widths])
    for row in cells:
        padded = [
            " " * (width - cell_len(cell)) + cell
            if right
            else cell + " " * (width - cell_len(cell))
            for cell, width, right in zip(row, widths, is_number, strict=True)
        ]
        print("  ".join(padded).rstrip(), flush=True)


def print_tokens(sentence: Sentence) -> None:
    """Print a sentence as both networks see it, three lines high, in blocks as wide as the screen.

    Above a replaced token stands the original; below each token, the discriminator's probability
    that it was replaced.
    """
    console = open_console()
    labels = ("original", "sentence", "replaced?")
    margin = max(map(len, labels)) + 2
    block: list[TokenView] = []
    blocks = [block]
    width = margin
    for view in sentence:
        width += _column_width(view)
        if block and width > console.width:
            block = []
            blocks.append(block)
            width = margin + _column_width(view)
        block.append(view)
    for block in blocks:
        lines = [Text().append(f"{label:<{margin}}", "dim") for label in labels]
        for view in block:
            for line, (cell, style) in zip(lines, _token_cells(view), strict=True):
                gap = " " * (_column_width(view) - cell_len(cell))
                line.append(cell, style).append(gap)
        for line in lines:
            line.rstrip()
            console.print(line, soft_wrap=True)
    console.print(Text(describe(sentence), style="dim"))


def _token_cells(view: TokenView) -> tuple[tuple[str, str], ...]:
    """Return a token's three cells, each with its style."""
    original = printable(view.original) if view.is_replaced else ""
    token = f"[{printable(view.token)}]" if view.is_replaced else printable(view.token)
    style = {"caught": "bold green", "missed": "bold red", "false alarm": "yellow"}.get(
        view.verdict, ""
    )
    return (original, "dim"), (token, style), (f"{view.prob_replaced:.0%}", style or "dim")


def _column_width(view: TokenView) -> int:
    return 1 + max(cell_len(cell) for cell, _ in _token_cells(view))


def printable(text: str) -> str:
    """Return the text without control characters, which could turn the terminal upside down."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
