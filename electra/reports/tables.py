"""The tables of runs and fine-tunings. Only the GLUE averages are computed, the rest is read."""

from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

from electra.errors import require
from electra.reports.averages import PROTOCOLS, average_glue
from electra.reports.glossary import GLOSSARY, format_count, format_metric, format_seconds
from electra.reports.placing import place_on_the_papers_curve
from electra.reports.runs import Finetuning, Run

HELDOUT_METRICS = (
    "mlm_loss",
    "mlm_accuracy",
    "sampled_accuracy",
    "replaced_rate",
    "disc_loss",
    "constant_disc_loss",
    "disc_auc",
    "old_disc_loss",
    "new_disc_loss",
    "old_loss",
    "restore_loss",
    "restore_accuracy",
    "generator_entropy",
)
FINETUNING_HEADERS = [
    "encoder",
    "task",
    "metric",
    "pre-trained",
    "from scratch",
    "majority guess",
    "seeds",
]
UNKNOWN = "not recorded"


class Table(NamedTuple):
    """Headers and cells, formatted."""

    headers: list[str]
    rows: list[list[str]]


def heldout_table(runs: Sequence[Run]) -> Table:
    """Return the last held-out metrics, one column per run."""
    rows = [
        [name, *(format_metric(name, run.last_heldout.get(name)) for run in runs)]
        for name in HELDOUT_METRICS
        if any(name in record for run in runs for record in (run.last_train, run.last_heldout))
    ]
    return Table(["on the held-out part", *(run.name for run in runs)], rows)


def pretraining_table(runs: Sequence[Run]) -> Table:
    """Return the cost and the last held-out metrics of each run, one row per run."""
    metrics = ["mlm_accuracy", "disc_loss", "constant_disc_loss", "disc_auc"]
    rows = []
    for run in runs:
        last = run.last_train
        cost = [
            format_metric("step", last.get("step")),
            format_count(last["tokens"]) if "tokens" in last else "-",
            format_seconds(last["seconds"]) if "seconds" in last else "-",
        ]
        reached = [format_metric(name, run.last_heldout.get(name)) for name in metrics]
        rows.append([run.name, *cost, *reached])
    return Table(["run", "steps", "tokens", "time", *metrics], rows)


def finetuning_table(finetunings: Sequence[Finetuning]) -> Table:
    """Return the scores of each task: pre-trained, from scratch and the majority guess.

    The last rows are the GLUE averages whose tasks are complete.
    """
    rows = []
    for (encoder, task, metric), (pretrained, scratch) in pair_finetunings(finetunings).items():
        both = [f for f in (pretrained, scratch) if f]
        majority = both[0].majority
        rows.append(
            [
                encoder,
                task,
                metric,
                format_score(pretrained),
                format_score(scratch),
                "-" if majority is None else f"{majority:.3f}",
                # Both numbers of seeds, if they differ.
                " and ".join(dict.fromkeys(str(len(f.seeds)) for f in both)),
            ]
        )
    return Table(FINETUNING_HEADERS, rows + average_rows(finetunings))


def average_rows(finetunings: Sequence[Finetuning]) -> list[list[str]]:
    """Return a row of `finetuning_table` for each GLUE average whose tasks are complete."""
    rows = []
    for encoder in dict.fromkeys(each.encoder for each in finetunings):
        for name, protocol in PROTOCOLS.items():
            starts = [
                average_glue(
                    [f for f in finetunings if (f.encoder, f.from_scratch) == (encoder, scratch)],
                    protocol,
                )
                for scratch in (False, True)
            ]
            if starts != [None, None]:
                cells = ("-" if value is None else f"{value:.3f}" for value in starts)
                rows.append([encoder, "GLUE average", name, *cells, "-", "-"])
    return rows


def pair_finetunings(
    finetunings: Sequence[Finetuning],
) -> dict[tuple[str, str, str], tuple[Finetuning | None, Finetuning | None]]:
    """Return the pairs (pre-trained, from scratch) by (encoder, label of the task, metric).

    Raises:
        UserError: Two fine-tunings have the same key and the same start.
    """
    found: dict[tuple[str, str, str], dict[bool, Finetuning]] = {}
    for finetuning in finetunings:
        key = finetuning.encoder, finetuning.label, finetuning.metric
        starts = found.setdefault(key, {})
        require(
            finetuning.from_scratch not in starts,
            f"two fine-tunings of {finetuning.encoder} on {finetuning.label} are of the same kind "
            f"(from_scratch {finetuning.from_scratch}); report one of them",
        )
        starts[finetuning.from_scratch] = finetuning
    return {key: (starts.get(False), starts.get(True)) for key, starts in found.items()}


def format_score(finetuning: Finetuning | None) -> str:
    """Return the median over the seeds, and the standard deviation for several seeds.

    If collapsed seeds were replaced, their number follows in brackets, with the median that
    includes the replacements if the results have one.
    """
    if finetuning is None:
        return "-"
    spread = "" if finetuning.std is None else f" ± {finetuning.std:.3f}"
    score = f"{finetuning.median:.3f}{spread}"
    if not finetuning.num_replaced:
        return score
    replaced = f"{finetuning.num_replaced} of {len(finetuning.seeds)} replaced"
    if finetuning.replaced_median is None:
        return f"{score} ({replaced})"
    return f"{score} ({finetuning.replaced_median:.3f} with {replaced})"


def format_commit(commit: object) -> str:
    """Return the first ten characters of a commit, and the mark of uncommitted changes, if any."""
    if not commit:
        return UNKNOWN
    name, plus, changes = str(commit).partition("+")
    return f"{name[:10]}{plus}{changes}"


def facts_table(runs: Sequence[Run]) -> Table:
    """Return the settings and the environment of each run, one column per run."""
    facts = [_facts(run) for run in runs]
    rows = [[name, *(column[name] for column in facts)] for name in facts[0]]
    return Table(["", *(run.name for run in runs)], rows)


def _objective(run: Run) -> str:
    method = run.config.get("method", {})  # old runs have no "objective"; they are RTD
    words = [method.get("objective", "rtd")]
    words += [
        method[key]
        for key in ("scheme", "mode")
        if method.get(key, "joint") not in ("joint", "paper")
    ]
    return ", ".join(words)


def _place(run: Run) -> str:
    """Return where the run stands now among the paper's points of FLOPs and scores."""
    planned, steps = run.tell("flops"), run.config.get("train", {}).get("steps")
    done = run.last_train.get("step")
    if not planned or not done or not steps:
        return UNKNOWN
    return place_on_the_papers_curve(planned[-1]["paper"] * done / steps)


def _generator(run: Run) -> str:
    generator = run.config.get("generator", {})
    if run.config.get("method", {}).get("objective") == "mlm":
        return "none"
    if generator.get("kind", "network") != "network":
        return str(generator["kind"])
    read = _section_of(run, "generator")
    width, layers = (generator.get(key) for key in ("hidden_size", "num_hidden_layers"))
    return ", ".join(
        (
            f"width {width}" if width else f"{read('hidden_fraction')} of the width",
            f"{layers} layers" if layers else f"{read('layers_fraction')} of the layers",
        )
    )


def _first_weights(run: Run) -> str:
    if start := run.manifest.get("init_from"):
        return str(start.get("source", UNKNOWN))
    initial = _section_of(run, "train")("initial_weights")
    return "random, as in the paper" if initial == "bert" else f"random, with {initial}"


def _facts(run: Run) -> dict[str, str]:
    model, train = _section_of(run, "model"), _section_of(run, "train")
    last = run.last_train
    tokens, seconds = last.get("tokens"), last.get("seconds")
    versions = [
        {"electra": session.get("electra", UNKNOWN), **session.get("packages", {})}
        for session in run.manifest["sessions"]
    ]
    return {
        "objective": _objective(run),
        "encoder": f"{model('num_hidden_layers')} layers, width {model('hidden_size')}, "
        f"{model('num_attention_heads')} heads",
        "generator": _generator(run),
        "first weights": _first_weights(run),
        "vocabulary": f"{model('vocab_size')} tokens",
        "batch": f"{train('batch_size')} rows of {_section_of(run, 'examples')('sequence_length')} "
        "tokens",
        "masked": f"{_section_of(run, 'method')('mask_prob')} of the tokens",
        "steps": f"{format_metric('step', last.get('step'))} of {train('steps')}",
        "text read": UNKNOWN if tokens is None else f"{tokens:,} tokens",
        "operations": f"{last['flops']:.2e} FLOPs" if "flops" in last else UNKNOWN,
        "on the paper's curve": _place(run),
        "time": UNKNOWN if seconds is None else format_seconds(seconds),
        "device": " and ".join(map(str, run.tell("device"))) or UNKNOWN,
        "dtype": " and ".join(map(str, run.tell("dtype"))).replace("torch.", "") or UNKNOWN,
        "seed": str(run.manifest.get("seed", UNKNOWN)),
        "commit": " and ".join(map(format_commit, run.tell("commit"))) or UNKNOWN,
        "packages": " and ".join(
            dict.fromkeys(
                ", ".join(f"{name} {version}" for name, version in each.items())
                for each in versions
            )
        ),
    }


def _section_of(run: Run, name: str) -> Callable[[str], str]:
    """Return a function from a field of one section of the run's configuration to its text."""
    section = run.config.get(name) or {}

    def read(key: str) -> str:
        value = section.get(key, "?")
        return f"{value:,}" if isinstance(value, int) else str(value)

    return read


def write_tables(runs: Sequence[Run], finetunings: Sequence[Finetuning]) -> str:
    """Return Markdown: runs and their held-out measures, where they come from, and scores."""
    tables = [pretraining_table(runs), domains_table(runs), facts_table(runs)]
    if finetunings:
        tables.append(finetuning_table(finetunings))
    return "\n\n".join(to_markdown(table) for table in tables if table.rows) + "\n"


def domains_table(runs: Sequence[Run]) -> Table:
    """Return the losses of continued runs on old and new text, one row per evaluation."""
    metrics = [
        name
        for name in ("old_disc_loss", "old_disc_auc", "new_disc_loss", "new_disc_auc")
        if any(name in record for run in runs for record in run.heldout)
    ]
    rows = [
        [run.name, format_metric("step", record["step"])]
        + [format_metric(name, record.get(name)) for name in metrics]
        for run in runs
        for record in run.heldout
        if any(name in record for name in metrics)
    ]
    return Table(["continued run", "step", *metrics], rows)


def to_markdown(table: Table) -> str:
    """Return the table in Markdown. Columns of numbers are aligned to the right."""
    is_number = [_is_numeric(table, column) for column in range(len(table.headers))]
    lines = [table.headers, ["---:" if right else "---" for right in is_number], *table.rows]
    return "\n".join("| " + " | ".join(map(_escape, cells)) + " |" for cells in lines)


def _escape(cell: str) -> str:
    return " ".join(cell.split()).replace("|", "\\|").replace("<", "&lt;")


def to_html(table: Table) -> str:
    """Return a table in HTML. The cells of the first column are the row headers."""
    head = "".join(
        f'<th scope="col"{_number_class(header, table, column)}>{escape(header)}</th>'
        for column, header in enumerate(table.headers)
    )
    rows = "\n".join(
        f'<tr><th scope="row">{_row_name(first)}</th>'
        + "".join(
            f"<td{_number_class(cell, table, number)}>{escape(cell)}</td>"
            for number, cell in enumerate(cells, start=1)
        )
        + "</tr>"
        for first, *cells in table.rows
    )
    return (
        f'<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{rows}\n</tbody>\n</table></div>"
    )


def _row_name(name: str) -> str:
    if name not in GLOSSARY:
        return escape(name)
    return f'{escape(name)} <span class="note">{escape(GLOSSARY[name].label)}</span>'


def _number_class(cell: str, table: Table, column: int) -> str:
    return ' class="number"' if column > 0 and _is_numeric(table, column) else ""


def _is_numeric(table: Table, column: int) -> bool:
    return bool(table.rows) and all(row[column][:1] in "+-0123456789" for row in table.rows)


def differs(one: Finetuning, other: Finetuning) -> bool:
    """Return whether two medians differ by more than their two standard deviations together."""
    return abs(one.median - other.median) > (one.std or 0.0) + (other.std or 0.0)
