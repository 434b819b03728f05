"""HTML pages, each one file without scripts and external resources, from the templates beside."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from electra.assignments import to_dict
from electra.errors import command
from electra.files import make_folder, write_text
from electra.reports.curves import draw_svg, find_panels
from electra.reports.glossary import GLOSSARY, Metric
from electra.reports.judgements import Judgements, describe_judgements, read_judgements
from electra.reports.rendering import Table
from electra.reports.runs import (
    Finetuning,
    Model,
    Run,
    average_rows,
    count_seeds,
    facts_table,
    finetuning_table,
    heldout_table,
    is_run,
    models_table,
    origins_table,
    pair_finetunings,
    read_folders,
    read_samples,
    write_tables,
)
from electra.reports.tokens import Sentence, TokenView, describe

TERMS = {
    "accuracy": "Share of the examples of dev that are answered right.",
    "f1": "Harmonic mean of precision, the share of what is found that is right, and recall, the "
    "share of what is right that is found. 0 to 1.",
    "mcc": "Matthews correlation of answers and labels: 1 is perfect, 0 is any constant answer, "
    "however frequent a label is.",
    "macro_f1": "Mean of the F1 of all labels: a rare label counts as much as a frequent one.",
    "micro_f1": "F1 of all labels together, each pair of a text and a label being one answer.",
    "spearman": "Correlation of the ranks of predicted and true numbers: 1 is the same order.",
    "pearson": "Linear correlation of predicted and true numbers: 1 is a straight line.",
    "exact": "Share of the questions whose answer is one of the given ones, word for word.",
    "from scratch": "The same encoder with random weights, fine-tuned alike: the gap is what "
    "pre-training gives.",
    "ndcg@10": "Of a search: each right passage among the first ten counts, the more the higher it "
    "is; 1: all are on top.",
    "BM25": "A search by words: a passage scores by how often it has the query's words, and how "
    "rare these are.",
    "constant answer": "The score of one answer to everything, which fits train best: the most "
    "frequent label, the mean of numbers, equal chances of choices.",
    "calibration": "Whether probabilities are what they say: of the answers with 80%, four in five "
    "are right. ECE is the mean distance between the two.",
    "collapsed": "A fine-tuning whose answers are no better than a constant one. Another seed, or "
    "a lower learning rate, may learn.",
}
"""The words of fine-tuning, for a newcomer."""
NUM_SHOWN = 2
"""Examples on the page; the others are folded."""


@cache
def _read_templates() -> Environment:
    """Return the templates of the pages, which take longer to read than to fill in."""
    pages = Environment(
        loader=PackageLoader("electra", "reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    pages.globals["glossary"] = GLOSSARY  # table.html also reads it
    return pages


def render_page(template: str, **values: Any) -> str:
    """Return a page of HTML, in which all values are escaped."""
    return _read_templates().get_template(template).render(**values)


def write_report(folders: Sequence[Path], out: Path) -> str:
    """Write a page about folders, or their tables alone as .md; return the next command."""
    found = read_folders(folders)
    make_folder(out.parent)
    if out.suffix.lower() == ".md":
        write_text(out, write_tables(found))
        return ""
    runs = [folder for folder in folders if is_run(folder)]
    shown = next((run for run in runs if (run / "samples.json").exists()), None)
    following = _find_next(folders, runs)
    tuned = [
        folder for folder in folders if not is_run(folder) and (folder / "results.json").exists()
    ]
    judged = [each for each in map(read_judgements, tuned) if each]
    write_page(
        out,
        found.runs,
        finetunings=found.finetunings,
        judged=judged,
        models=found.models,
        sentences=read_samples(shown) if shown else (),
        sentences_of=found.runs[runs.index(shown)].name if shown else "",
        files={str(folder): "read" for folder in folders},
        next_command=following,
    )
    return following


def _find_next(folders: Sequence[Path], runs: Sequence[Path]) -> str:
    """Return the command that continues with the first run, fine-tuning or model."""
    saved = next((run for run in runs if any((run / "checkpoints").glob("step-*"))), None)
    if saved:
        return command("export", saved, "--out", "exported")
    tuned = next((folder for folder in folders if (folder / "results.json").exists()), None)
    if runs:
        return ""
    if tuned:
        return command("predict", tuned, "--input", "FILE")
    return command("finetune", folders[0], "--task", "own", "--data", "FOLDER", "--out", "results")


def write_page(
    path: Path,
    runs: Sequence[Run],
    *,
    finetunings: Sequence[Finetuning] = (),
    judged: Sequence[Judgements] = (),
    models: Sequence[Model] = (),
    sentences: Sequence[Sentence] = (),
    sentences_of: str = "",
    files: Mapping[str, str] | None = None,
    next_command: str = "",
) -> None:
    """Write the report of runs side by side, of fine-tunings and of models.

    `sentences_of` names the run whose sentences are shown beside other runs.
    """
    encoders = {each.encoder for each in finetunings}
    page = render_page(
        "report.html",
        title=_name_page(runs, finetunings, models),
        runs=runs,
        name=lambda run: f"{run.name}: " if len(runs) > 1 else "",
        describe_run=_describe_run,
        describe_gap=_describe_gap,
        heldout=heldout_table(runs),
        tasks=_list_tasks(finetunings, is_one=len(runs) < 2 and len(encoders) == 1),
        averages=Table(finetuning_table([]).headers, average_rows(finetunings)),
        is_spread=any(each.std is not None for each in finetunings),
        is_replaced=any(each.num_replaced for each in finetunings),
        origins=origins_table(finetunings),
        judged=[{**describe_judgements(each), "draw": Markup} for each in judged],
        models=models_table(models),
        facts=facts_table(runs),
        json=lambda value: json.dumps(value, indent=2, ensure_ascii=False),
        to_dict=to_dict,
        panels=find_panels(runs),
        measured=_list_measured(runs),
        terms=_list_terms(finetunings, is_judged=bool(judged)),
        draw=lambda panel, runs: Markup(draw_svg(panel, runs)),
        sentences=sentences[:NUM_SHOWN],
        folded=sentences[NUM_SHOWN:],
        sentences_of=sentences_of,
        describe=describe,
        describe_token=_describe_token,
        files=Table(["path", "content"], [[name, what] for name, what in (files or {}).items()]),
        next_command=next_command,
    )
    write_text(path, page)


def _list_measured(runs: Sequence[Run]) -> dict[str, Metric]:
    """Return the records of the glossary whose metrics these runs have."""
    records = [record for run in runs for record in (*run.train, *run.heldout)]
    found = {name for record in records for name, value in record.items() if value is not None}
    return {name: metric for name, metric in GLOSSARY.items() if name in found}


def _list_terms(finetunings: Sequence[Finetuning], *, is_judged: bool) -> dict[str, str]:
    """Return the words of the fine-tunings on the page, explained."""
    words = {each.metric for each in finetunings}
    words |= {"calibration"} if is_judged else set()
    words |= {"from scratch"} if any(each.from_scratch for each in finetunings) else set()
    words |= {"collapsed"} if any(each.num_degenerate for each in finetunings) else set()
    words |= {each.guess for each in finetunings if each.majority is not None}
    return {word: meaning for word, meaning in TERMS.items() if word in words}


def _name_page(
    runs: Sequence[Run], finetunings: Sequence[Finetuning], models: Sequence[Model]
) -> str:
    """Return the title: what was pre-trained, else what was fine-tuned, else the models."""
    if runs:
        return f"Pre-training {' and '.join(run.name for run in runs)}"
    if finetunings:
        tasks = dict.fromkeys(each.task for each in finetunings)
        return f"Fine-tuning on {' and '.join(tasks)}"
    return f"Model {' and '.join(each.name for each in models)}"


def _describe_run(run: Run) -> str:
    """Return two sentences: the cost of the run, and its held-out metrics."""
    heldout, (steps, *others) = run.last_heldout, run.cost
    cost = ", ".join(
        [f"{steps} steps", *(f"{others[0]} tokens", others[1])[: 2 * ("-" not in others)]]
    )
    network = "generator" if run.config.method.has_generator else "encoder"
    found = [
        metric.sentence.format(value=value, network=network)
        for name, metric in GLOSSARY.items()
        if metric.sentence and (value := heldout.get(name)) is not None
    ]
    if found:
        return f"{cost}. On held-out text, {', and '.join(found)}."
    return f"{cost}. The network was not measured on held-out text."


def _describe_gap(run: Run) -> str:
    """Return a comparison of disc_loss with the constant predictor's loss; empty without them."""
    # For a continued run it is the loss on the new text, at the end and at the beginning.
    known = [each["new_disc_loss"] for each in run.heldout if "new_disc_loss" in each]
    if known:
        return (
            "On held-out rows of the new text, whose replaced tokens stay the same, the "
            f"discriminator's loss was {known[0]:.4f} at first, and is {known[-1]:.4f} now."
        )
    loss, constant = (run.last_heldout.get(name) for name in ("disc_loss", "constant_disc_loss"))
    if not loss or not constant:
        return ""
    share = 1 - loss / constant
    if share > 0.005:
        return (
            f"The discriminator's loss is {share:.0%} below that of a predictor that ignores the "
            "text: this gap is what it has learnt."
        )
    return (
        "The discriminator's loss is not below that of a predictor that ignores the text: by this "
        "measure it has learnt nothing yet."
    )


def _list_tasks(finetunings: Sequence[Finetuning], *, is_one: bool) -> list[dict[str, Any]]:
    """Return name, note and up to three bars of each task: pre-trained, from scratch, constant."""
    tasks = []
    for (encoder, task, metric), pair in pair_finetunings(finetunings).items():
        known = [finetuning for finetuning in pair if finetuning]
        bars = [
            _bar("from scratch" if each.from_scratch else "pre-trained", each.score, each.median)
            for each in known
        ]
        majority = known[0].majority
        if majority is not None:
            bars.append(_bar(known[0].guess, f"{majority:.3f}", majority))
        seeds = count_seeds(known)
        note = f"{metric}, {seeds} seed{'' if seeds == '1' else 's'}"
        if failed := sum(each.num_degenerate for each in known):
            note += f"; {failed} of the runs collapsed, no better than a constant answer"
        tasks.append({"name": task if is_one else f"{task}, {encoder}", "note": note, "bars": bars})
    return tasks


def _bar(name: str, score: str, value: float) -> dict[str, str]:
    width = f"{100 * min(max(value, 0), 1):.1f}"
    kind = "own" if name == "pre-trained" else ""
    return {"name": name, "score": score, "width": width, "kind": kind}


def _describe_token(view: TokenView) -> str:
    said = f"{view.token}: replaced with probability {view.prob_replaced:.0%}"
    said += f"; in place of {view.original}, {view.verdict}" if view.is_replaced else "; original"
    return said + ", false alarm" * (view.verdict == "false alarm")
