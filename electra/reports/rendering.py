"""Tables, and their forms in Markdown, HTML and LaTeX; that of a terminal is in printing."""

import re
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from electra.reports.glossary import GLOSSARY


class Table(NamedTuple):
    """Headers and cells, formatted."""

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]

    @property
    def is_number(self) -> list[bool]:
        """Whether all cells of a column are numbers, so that it is aligned to the right."""
        return [
            bool(self.rows) and all(row[column][:1] in "+-.0123456789" for row in self.rows)
            for column in range(len(self.headers))
        ]


def to_markdown(table: Table) -> str:
    """Return the table in Markdown."""
    rulers = ["---:" if right else "---" for right in table.is_number]
    lines = (table.headers, rulers, *table.rows)
    return "\n".join("| " + " | ".join(map(_escape_markdown, cells)) + " |" for cells in lines)


def _escape_markdown(cell: str) -> str:
    return " ".join(cell.split()).replace("|", "\\|").replace("<", "&lt;")


def to_html(table: Table) -> str:
    """Return the table in HTML. The cells of the first column are the row headers."""
    kinds = ["", *(' class="number"' * right for right in table.is_number[1:])]
    head = "".join(
        f'<th scope="col"{kind}>{escape(header)}</th>'
        for header, kind in zip(table.headers, kinds, strict=True)
    )
    rows = "\n".join(
        f'<tr><th scope="row">{_name_row(first)}</th>'
        + "".join(
            f"<td{kind}>{escape(cell)}</td>" for cell, kind in zip(cells, kinds[1:], strict=True)
        )
        + "</tr>"
        for first, *cells in table.rows
    )
    return (
        f'<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{rows}\n</tbody>\n</table></div>"
    )


def _name_row(name: str) -> str:
    """Return the name of a row; that of a metric with its label."""
    note = f' <span class="note">{escape(GLOSSARY[name].label)}</span>' if name in GLOSSARY else ""
    return escape(name) + note


def to_latex(table: Table, caption: str) -> str:
    """Return the table for LaTeX with the package booktabs."""
    head, *rows = (
        " & ".join(map(_escape_latex, cells)) + r" \\" for cells in (table.headers, *table.rows)
    )
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\begin{{tabular}}{{l{'r' * (len(table.headers) - 1)}}}",
            r"\toprule",
            head,
            r"\midrule",
            *rows,
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
