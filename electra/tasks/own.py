"""A task of the user's own: TSV or JSONL files with a text, or a pair of texts, and a label."""

from pathlib import Path

from electra.config import OwnTaskConfig, UserError, require
from electra.corpus.compression import compression_of
from electra.tasks.classification import Classification, read_examples
from electra.tasks.table import FORMATS, Table, format_of, read_table

METRICS = ("accuracy", "f1", "mcc")
TEXT_COLUMNS = ("text", "sentence", "text_a", "sentence1")
TEXT_B_COLUMNS = ("text_b", "sentence2")
FILE_NAMES = {"train": ("train",), "dev": ("dev", "validation", "valid", "val"), "test": ("test",)}


def read_own_task(data: Path, config: OwnTaskConfig) -> Classification:
    """Return a task from a folder's train, dev and, if there is one, test file.

    The labels are those of train, sorted; whole numbers count as names.

    Raises:
        UserError: A file or column is missing or ambiguous, a file is empty, dev or test has a
            label that train lacks, or the labels of train are not those of a classification.
    """
    files = {split: _find_file(data, split, getattr(config, split)) for split in FILE_NAMES}
    tables = {split: read_table(path) for split, path in files.items() if path is not None}
    text, text_b = _choose_columns(tables["train"], config)
    labels = _collect_labels(tables["train"], config.label)
    examples = {
        split: read_examples(
            table,
            labels,
            text=text,
            text_b=text_b,
            label=None if split == "test" and config.label not in table.columns else config.label,
        )
        for split, table in tables.items()
    }
    return Classification(
        name="own",
        labels=labels,
        metrics=(config.metric, *(metric for metric in METRICS if metric != config.metric)),
        examples=examples,
        files=tuple(table.path for table in tables.values()),
        columns=tuple(column for column in (text, text_b, config.label) if column),
    )


def _find_file(data: Path, split: str, chosen: str | None) -> Path | None:
    if chosen is not None:
        require((data / chosen).is_file(), f"own.{split}: no file {data / chosen}")
        return data / chosen
    require(data.is_dir(), f"{data} is not a folder; give the one with train and dev files")
    found = sorted(
        path for path in data.iterdir() if _stem(path) in FILE_NAMES[split] and path.is_file()
    )
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise UserError(f"{data} has several {split} files: {names}; choose one with own.{split}")
    if not found and split != "test":
        names = " or ".join(split + suffix for suffix in FORMATS)
        raise UserError(f"{data} has no {split} file; add {names}, or name it with own.{split}")
    return found[0] if found else None


def _stem(path: Path) -> str:
    """Return the name without format and compression, or nothing if it is no table."""
    kind = format_of(path)
    name = path.name.removesuffix(compression_of(path))
    return name.removesuffix(kind) if kind in FORMATS else ""


def _choose_columns(train: Table, config: OwnTaskConfig) -> tuple[str, str | None]:
    if config.text is not None:
        return config.text, config.text_b
    text = next((column for column in TEXT_COLUMNS if column in train.columns), None)
    if text is None:
        raise UserError(
            f"{train.path}: no column named {', '.join(TEXT_COLUMNS)}; choose one of "
            f"{', '.join(train.columns)} with own.text"
        )
    detected = next((column for column in TEXT_B_COLUMNS if column in train.columns), None)
    return text, config.text_b or detected


def _collect_labels(train: Table, column: str) -> tuple[str, ...]:
    names = train.column(column)
    labels = tuple(sorted(set(names)))
    if len(labels) < 2:
        raise UserError(f"{train.path}: every {column!r} is {labels[0]!r}; two labels are needed")
    if 2 * len(labels) > len(names):
        raise UserError(
            f"{train.path}: {column!r} has {len(labels)} labels in {len(names)} rows; a label must "
            "occur twice on average. Choose another column with own.label"
        )
    for line, name in zip(train.lines, names, strict=True):
        require(
            name != "" and name.isprintable(),
            f"{train.path} line {line}: the label {name!r} must be printable and not empty",
        )
    return labels
