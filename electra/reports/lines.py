"""Log lines of 78 columns, one per record of metrics.jsonl: aligned, and easy to grep."""

from collections.abc import Mapping
from typing import Any

from electra.reports.glossary import format_count, format_metric, format_seconds

# Key in metrics.jsonl, the two lines of the header, the width of the column in characters.
COLUMNS = (
    ("step", "", "step", 7),
    ("tokens_per_second", "token", "per s", 5),
    ("seconds_left", "time", "left", 7),
    ("mlm_loss", "mlm", "loss", 6),
    ("mlm_accuracy", "mlm", "acc", 5),
    ("sampled_accuracy", "drawn", "acc", 5),
    ("replaced_rate", "repl", "rate", 5),
    ("disc_loss", "disc", "loss", 6),
    ("constant_disc_loss", "const", "loss", 6),
    ("disc_auc", "disc", "auc", 5),
    ("learning_rate", "learn", "rate", 6),
    ("grad_norm", "grad", "norm", 4),
)


def header_lines() -> list[str]:
    """Return the two header lines of the columns. Each begins with "#"."""
    return [
        "#" + " ".join(f"{column[number]:>{column[3]}}" for column in COLUMNS)[1:]
        for number in (1, 2)
    ]


def record_line(record: Mapping[str, Any]) -> str:
    """Return the line of a record, with one column per metric and "-" for a missing value.

    A held-out record has no remaining time; its column says "heldout".
    """
    return " ".join(f"{_cell(name, record):>{width}}" for name, _, _, width in COLUMNS)


def domains_line(record: Mapping[str, Any]) -> str:
    """Return the losses of a continued run's domains, beside each other; empty without any."""
    losses = [
        f"{domain} text {format_metric(f'{domain}_disc_loss', record[f'{domain}_disc_loss'])}"
        for domain in ("old", "new")
        if f"{domain}_disc_loss" in record
    ]
    return f"# disc loss on rows that stay the same: {', '.join(losses)}" if losses else ""


def _cell(name: str, record: Mapping[str, Any]) -> str:
    if name == "seconds_left" and record["part"] == "heldout":
        return "heldout"
    value = record.get(name)
    if value is None:
        return "-"
    if name == "step":
        return str(value)
    if name == "tokens_per_second":
        return format_count(value)
    if name == "seconds_left":
        return format_seconds(value)
    if name == "learning_rate":
        return f"{value:.1e}".replace("e-0", "e-")
    if name == "grad_norm":
        return f"{value:.2f}"[:4].rstrip(".")
    return format_metric(name, value)
