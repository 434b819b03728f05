"""The texts that a model is asked about, and the file that its answers go to."""

from pathlib import Path

from electra.errors import require
from electra.text.tables import TABLE_FORMATS, format_of, read_table, read_text_lines


def read_sentences(path: Path) -> list[str]:
    """Return the lines of a UTF-8 file, compressed or not, that are not blank: one at least."""
    lines = [line.strip() for line in read_text_lines(path) if line.strip()]
    require(bool(lines), f"{path} holds no line of text")
    return lines


def read_texts(path: Path, column: str | None = None) -> list[str]:
    """Return the texts of a file: the lines that are not blank, or a column of a table."""
    if format_of(path) in TABLE_FORMATS:
        return read_table(path).column(column or "text", fractions=True)
    require(
        column is None,
        f"{path} is plain text, one text per line; {column} must be a column of a "
        f"{', '.join(TABLE_FORMATS)} file",
    )
    return read_sentences(path)
