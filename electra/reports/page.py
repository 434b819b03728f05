"""HTML pages, each one file without scripts and external resources, from the templates beside."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from electra.assignments import to_dict
from electra.config import ALONE
from electra.files import write_text
from electra.reports.curves import draw_svg, find_panels
from electra.reports.glossary import GLOSSARY
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
    models_table,
    origins_table,
    pair_finetunings,
)
from electra.reports.tokens import Sentence, TokenView, describe


def render_page(template: str, **values: Any) -> str:
    """Return a page of HTML, in which all values are escaped."""
    pages = Environment(
        loader=PackageLoader("electra", "reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    pages.globals["glossary"] = GLOSSARY  # table.html reads it, too
    return pages.get_template(template).render(**values)


def write_page(
    path: Path,
    runs: Sequence[Run],
    *,
    finetunings: Sequence[Finetuning] = (),
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
        models=models_table(models),
        facts=facts_table(runs),
        json=lambda value: json.dumps(value, indent=2, ensure_ascii=False),
        to_dict=to_dict,
        panels=find_panels(runs),
        draw=lambda panel, runs: Markup(draw_svg(panel, runs)),
        sentences=sentences,
        sentences_of=sentences_of,
        describe=describe,
        describe_token=_describe_token,
        files=Table(["path", "content"], [[name, what] for name, what in (files or {}).items()]),
        next_command=next_command,
    )
    write_text(path, page)


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
    network = "encoder" if run.config.method.objective in ALONE else "generator"
    found = [
        metric.sentence.format(value=value, network=network)
        for name, metric in GLOSSARY.items()
        if metric.sentence and (value := heldout.get(name)) is not None
    ]
    if found:
        return f"{cost}. On held-out text, {', and '.join(found)}."
    return f"{cost}. What the network has learnt was not measured on held-out text."


def _describe_gap(run: Run) -> str:
    """Return a comparison of disc_loss with the constant predictor's loss; empty without them.

    For a continued run it is the loss on the new text, at the end and at the beginning.
    """
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
    """Return name, note and up to three bars of each task: pre-trained, from scratch, majority."""
    tasks = []
    for (encoder, task, metric), pair in pair_finetunings(finetunings).items():
        known = [finetuning for finetuning in pair if finetuning]
        bars = [
            _bar("from scratch" if each.from_scratch else "pre-trained", each.score, each.median)
            for each in known
        ]
        majority = known[0].majority
        if majority is not None:
            bars.append(_bar("majority guess", f"{majority:.3f}", majority))
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
