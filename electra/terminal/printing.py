"""Printing of results on standard output, and of errors and notes on standard error.

So a result can be piped while notes and progress stay on the terminal.
"""

import json
import os
import re
import sys
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleDimensions
from rich.table import Table as RuledTable
from rich.text import Text

from electra.errors import hide_passwords
from electra.processes import find_place
from electra.reports.rendering import Table
from electra.reports.tokens import Sentence, TokenView, Word, describe
from electra.text.characters import replace_surrogates

SIZE = re.compile("[1-9][0-9]{0,3}")
"""Values that COLUMNS and LINES may have; anything else is as if they were not set."""
JOINERS = "\u200c\u200d"
"""They join and part letters of Persian and of the scripts of India."""
LEAST_COLUMNS = 20
"""In fewer, the help would be wrapped for ever."""


class PipeConsole(Console):
    """A console of any size that raises BrokenPipeError; rich's own exits with status 1."""

    def __init__(self, **how: Any):
        said = {
            name: value
            for name, value in os.environ.items()
            if name not in ("COLUMNS", "LINES") or SIZE.fullmatch(value)
        }
        super().__init__(_environ=said, **how)

    @property  # type: ignore[misc]
    def size(self) -> ConsoleDimensions:
        """Return the width and height of the terminal; the width is at least LEAST_COLUMNS."""
        width, height = super().size
        return ConsoleDimensions(max(width, LEAST_COLUMNS), height)

    def on_broken_pipe(self) -> None:
        """Raise the BrokenPipeError again. rich calls this method while handling that error."""
        raise


IS_SILENT = ContextVar("IS_SILENT", default=False)
"""Whether a script is the caller, so that progress and result are not printed."""


@contextmanager
def silenced() -> Iterator[None]:
    """Print nothing meanwhile."""
    before = IS_SILENT.set(True)
    try:
        yield
    finally:
        IS_SILENT.reset(before)


def open_console(*, stderr: bool = False) -> PipeConsole:
    """Return a console that prints text verbatim, without markup, emoji and highlighting."""
    plain = {"highlight": False, "markup": False, "emoji": False}
    return PipeConsole(stderr=stderr, quiet=IS_SILENT.get(), **plain)


def print_error(message: str) -> None:
    """Print an error message as one line to standard error."""
    _print_aside(Text("error: ", "bold red"), message)


def _print_aside(word: Text, message: str) -> None:
    line = word.append(printable(message), "default not bold")
    open_console(stderr=True).print(line, soft_wrap=True)


def print_note(note: str) -> None:
    """Print a note as one line to standard error; of several processes, number 0 does."""
    if find_place().rank == 0:
        _print_aside(Text("note: ", "bold yellow"), note)


def print_log(line: str) -> None:
    """Print a line of a log to standard error; a full disk or a closed pipe loses it."""
    with suppress(OSError):
        sys.stderr.write(printable(line) + "\n")
        sys.stderr.flush()


def print_done(what: str, next_command: str = "") -> None:
    """Print what was written and, on a separate line for copying, the next command."""
    console = open_console()
    console.print(Text(printable(what)), soft_wrap=True)
    if next_command:
        line = Text("next: ", "dim").append(printable(next_command), "not dim bold")
        console.print(line, soft_wrap=True)


def print_lines(lines: Sequence[str]) -> None:
    """Print results verbatim, for another program to read."""
    if IS_SILENT.get():
        return
    sys.stdout.writelines(line + "\n" for line in lines)
    sys.stdout.flush()


def print_json(values: object) -> None:
    """Print a JSON value on one line; unpaired surrogates are replaced."""
    print_lines([replace_surrogates(json.dumps(values, ensure_ascii=False, allow_nan=False))])


def print_step(title: str) -> None:
    """Print the headline of a step, usually its command line."""
    open_console().print(Text("\n").append(printable(title), "bold"), soft_wrap=True)


def print_plan(settings: Mapping[str, object], action: str) -> None:
    """Print the plan of a dry run: one line per setting in the form of --set, then the action."""
    console = open_console()
    for name, value in settings.items():
        line = Text(printable(f"{name}=")).append(printable(as_word(value)), "bold")
        console.print(line, soft_wrap=True)
    console.print(Text(printable(f"would {action}; nothing was written")), soft_wrap=True)


def as_word(value: object) -> str:
    """Return the value of a setting as --set takes it."""
    if value is None or value == "":
        return "none"  # it is unset
    return str(value).lower() if isinstance(value, bool) else str(value)


def print_table(rows: Sequence[Sequence[object]], headers: Sequence[str]) -> None:
    """Print a table: ruled on a terminal, plain columns elsewhere. Numbers are right-aligned."""
    if IS_SILENT.get():
        return None
    table = Table(headers, [[printable(str(cell)) for cell in row] for row in rows])
    if not sys.stdout.isatty():
        return print_lines(_align(table))
    ruled = RuledTable(box=box.ROUNDED, border_style="dim", header_style="bold")
    for header, right in zip(headers, table.is_number, strict=True):
        ruled.add_column(Text(header), justify="right" if right else "left", overflow="fold")
    for row in table.rows:
        ruled.add_row(*map(Text, row))
    open_console().print(ruled)


def print_sections(sections: Mapping[str, Table | Sequence[str]]) -> None:
    """Print tables and lines, each under its headline."""
    for title, content in sections.items():
        if title:
            print_step(title)
        if isinstance(content, Table):
            print_table(content.rows, content.headers)
            continue
        for line in content:
            print_done(line)


def _align(table: Table) -> list[str]:
    """Return the lines of a table in plain columns, for a file or another program."""
    widths = [max(map(cell_len, column)) for column in zip(table.headers, *table.rows, strict=True)]
    lines = []
    for line in (table.headers, ["-" * width for width in widths], *table.rows):
        cells = []
        for cell, width, right in zip(line, widths, table.is_number, strict=True):
            gap = " " * (width - cell_len(cell))
            cells.append(gap + cell if right else cell + gap)
        lines.append("  ".join(cells).rstrip())
    return lines


def print_tokens(sentence: Sentence) -> None:
    """Print a corrupted sentence in blocks of three lines, as wide as the screen.

    The first line has the originals of replaced tokens, the second the sentence, the third the
    discriminator's probability that each token was replaced.
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


def print_words(text: str, words: Sequence[Word], threshold: float) -> None:
    """Print a text with its suspected words marked, and the ten least trusted below it."""
    if IS_SILENT.get():  # a script may ask of many texts
        return
    console, line, end = open_console(), Text(), 0
    for word in words:
        line.append(printable(text[end : word.start]))
        is_suspected = word.prob_replaced >= threshold
        mark = f"[{word.text} {word.prob_replaced:.0%}]" if is_suspected else word.text
        line.append(printable(mark), "bold red" if is_suspected else "")
        end = word.end
    console.print(line.append(printable(text[end:])), soft_wrap=True)
    least = sorted(words, key=lambda word: word.prob_replaced, reverse=True)[:10]
    told = ", ".join(f"{printable(word.text)} {word.prob_replaced:.0%}" for word in least)
    console.print(Text(f"least trusted: {told}", "dim"), soft_wrap=True)


def print_claim(claim: tuple[str, str, str]) -> None:
    """Print a line for a claim: whether it holds, what it is, and what was found."""
    status, said, told = map(printable, claim)
    style = {"ok": "green", "FAILED": "bold red"}.get(status, "yellow")
    line = Text(f"{status:<11}  ", style).append(said, "default not bold")
    end = f" ({told})" if status == "ok" else f": {told}"
    open_console().print(line.append(end * bool(told), "default not bold"), soft_wrap=True)


def print_row(tokens: Sequence[tuple[str, bool, str]]) -> None:
    """Print a row: tokens, whether each was masked, and what is there now; pieces are joined."""
    line = Text()
    for token, is_masked, put in tokens:
        is_piece = token.startswith("##")
        line.append("" if is_piece or not line else " ")
        if not is_masked:
            line.append(printable(token.removeprefix("##")))
        elif put == token:
            line.append(printable(f"[{token}]"), "cyan")
        else:
            line.append(printable(f"[{token}→{put}]"), "bold red")
    open_console().print(line, soft_wrap=True)
    print_lines([""])


def _token_cells(view: TokenView) -> tuple[tuple[str, str], ...]:
    """Return (text, style) for each of a token's three lines."""
    original = printable(view.original) if view.is_replaced else ""
    token = f"[{printable(view.token)}]" if view.is_replaced else printable(view.token)
    style = {"caught": "bold green", "missed": "bold red", "false alarm": "yellow"}.get(
        view.verdict, ""
    )
    return (original, "dim"), (token, style), (f"{view.prob_replaced:.0%}", style or "dim")


def _column_width(view: TokenView) -> int:
    return 1 + max(cell_len(cell) for cell, _ in _token_cells(view))


def printable(text: str) -> str:
    """Return the text without passwords and control characters, which could garble the terminal."""
    text = hide_passwords(text)

    def is_harmless(char: str) -> bool:
        return char.isprintable() or char in JOINERS or unicodedata.category(char) == "Zs"

    return "".join(char if is_harmless(char) else "\N{REPLACEMENT CHARACTER}" for char in text)
