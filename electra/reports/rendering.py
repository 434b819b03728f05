"""Tables, and their forms in Markdown and LaTeX; HTML is in table.html, a terminal in printing."""

import re
from collections.abc import Sequence
from typing import NamedTuple


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
