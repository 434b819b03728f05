"""The report: one HTML file that needs neither network nor script."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from electra.reports.curves import draw_svg, find_panels
from electra.reports.glossary import GLOSSARY, format_count, format_metric, format_seconds
from electra.reports.runs import Finetuning, Run, replace_text
from electra.reports.style import CSS
from electra.reports.tables import (
    FINETUNING_HEADERS,
    Table,
    average_rows,
    facts_table,
    format_score,
    heldout_table,
    pair_finetunings,
)
from electra.reports.tokens import Sentence, TokenView, describe


def write_page(
    path: Path,
    runs: Sequence[Run],
    *,
    finetunings: Sequence[Finetuning] = (),
    sentences: Sequence[Sentence] = (),
    files: Mapping[str, str] | None = None,
    next_command: str = "",
) -> None:
    """Write the report of one run, or of several side by side.

    Args:
        path: The HTML file; replaced if it exists.
        runs: From `read_runs`; the first gives the page its title.
        finetunings: Scores to show beside those from scratch.
        sentences: Held-out examples, shown token by token.
        files: What else was written: path and what it is.
        next_command: The command that comes next.

    Raises:
        UserError: The file cannot be written.
    """
    title = f"Pre-training {' and '.join(run.name for run in runs)}"
    sections = [
        _head(title, runs),
        '<div class="pair">' if len(runs) == 1 else "<div>",
        "<div>",
        _section("What it learnt", _table(heldout_table(runs)), _gap(runs)),
        _finetunings(finetunings),
        "</div>",
        _section("What this is", _table(facts_table(runs)), _settings(runs)),
        "</div>",
        _curves(runs),
        _sentences(sentences),
        _glossary(),
        _files(files or {}, next_command),
    ]
    replace_text(
        path,
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)} - ELECTRA</title>\n<style>{CSS}</style>\n</head>\n<body>\n"
        + "\n".join(filter(None, sections))
        + "\n</body>\n</html>\n",
    )


def _section(heading: str, *parts: str) -> str:
    body = "\n".join(filter(None, parts))
    return f"<section>\n<h2>{escape(heading)}</h2>\n{body}\n</section>"


def _head(title: str, runs: Sequence[Run]) -> str:
    verdicts = "\n".join(
        f'<p class="lead">{escape(_name(run, runs) + _verdict(run))}</p>' for run in runs
    )
    return (
        '<header>\n<p class="eyebrow">ELECTRA: a text encoder learns by telling replaced tokens '
        f"from original ones</p>\n<h1>{escape(title)}</h1>\n{verdicts}\n</header>"
    )


def _name(run: Run, runs: Sequence[Run]) -> str:
    """Return the name that a sentence about one of several runs begins with."""
    return f"{run.name}: " if len(runs) > 1 else ""


def _verdict(run: Run) -> str:
    """Return the run in two sentences: what it cost, and what it can do."""
    last, heldout = run.last_train, run.last_heldout
    cost = f"{format_metric('step', last.get('step'))} steps"
    if "tokens" in last and "seconds" in last:
        cost += f", {format_count(last['tokens'])} tokens, {format_seconds(last['seconds'])}"
    if heldout.get("mlm_accuracy") is None:
        return f"{cost}. Nothing was held out, so what it learnt was not measured."
    restored = f"restores {heldout['mlm_accuracy']:.0%} of the hidden tokens"
    if "restore_loss" in heldout:
        return f"{cost}. On text it never saw, the generator {restored}."
    if heldout.get("disc_auc") is None:
        return f"{cost}. On text it never saw, the encoder {restored}."
    return (
        f"{cost}. On text it never saw, the generator {restored}, and the discriminator ranks a "
        f"replaced token above an original one {heldout['disc_auc']:.0%} of the time (a coin toss: "
        "50%)."
    )


def _gap(runs: Sequence[Run]) -> str:
    """Return what disc_loss says beside the constant predictor's, for each run."""
    lines = []
    for run in runs:
        loss, constant = (run.last_heldout.get(k) for k in ("disc_loss", "constant_disc_loss"))
        if not loss or not constant:
            continue
        share = 1 - loss / constant
        if share > 0.005:
            text = f"is {share:.0%} below that of a guesser that never looks at the text: that gap "
            text += "is what it has learnt."
        else:
            text = "is not below that of a guesser that never looks at the text: by this measure "
            text += "it has learnt nothing yet."
        text = f"The discriminator's loss {text}"
        lines.append(f'<p class="note">{escape(_name(run, runs) + text)}</p>')
    return "\n".join(lines)


def _table(table: Table) -> str:
    """Return a table; its first column names the rows."""
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
    is_number = column > 0 and all(row[column][:1] in "0123456789-" for row in table.rows)
    return ' class="number"' if is_number else ""


def _settings(runs: Sequence[Run]) -> str:
    return "\n".join(
        f"<details><summary>Every setting of {escape(run.name)}</summary>"
        f"<pre>{escape(json.dumps(run.config, indent=2, ensure_ascii=False))}</pre>"
        f"<pre>{escape(json.dumps(run.manifest, indent=2, ensure_ascii=False))}</pre></details>"
        for run in runs
    )


def _finetunings(finetunings: Sequence[Finetuning]) -> str:
    """Return for each task three bars: pre-trained, from scratch, majority guess."""
    if not finetunings:
        return ""
    parts = [
        "<p>The same network, fine-tuned on a labelled task from the pre-trained weights and from "
        "random ones. The median over the seeds, ± their standard deviation. Where collapsed seeds "
        "were replaced by others, brackets say so.</p>"
    ]
    is_one = len({finetuning.encoder for finetuning in finetunings}) == 1
    for (encoder, task, metric), pair in pair_finetunings(finetunings).items():
        name = task if is_one else f"{task}, {encoder}"
        bars = [
            _bar(
                start, format_score(finetuning), finetuning.median, "own" if start[0] == "p" else ""
            )
            for start, finetuning in zip(("pre-trained", "from scratch"), pair, strict=True)
            if finetuning
        ]
        known = [finetuning for finetuning in pair if finetuning]
        majority = known[0].majority
        if majority is not None:
            bars.append(_bar("majority guess", f"{majority:.3f}", majority, ""))
        seeds = " and ".join(dict.fromkeys(str(len(f.seeds)) for f in known))
        note = f"{metric}, {seeds} seed{'' if seeds == '1' else 's'}"
        if failed := sum(f.num_degenerate for f in known):
            note += f"; {failed} of the runs ended with one answer for everything"
        parts.append(
            f'<h3>{escape(name)} <span class="note">({escape(note)})</span></h3>\n'
            f'<div class="bars">{"".join(bars)}</div>'
        )
    if rows := average_rows(finetunings):
        parts.append(_table(Table(FINETUNING_HEADERS, rows)))
    return _section("What it is worth", *parts)


def _bar(name: str, score: str, value: float, kind: str) -> str:
    width = 100 * min(max(value, 0), 1)
    return (
        f'<span>{name}</span><span class="track" aria-hidden="true">'
        f'<span class="fill {kind}" style="width:{width:.1f}%"></span></span><span>{score}</span>'
    )


def _curves(runs: Sequence[Run]) -> str:
    figures = "\n".join(
        f"<figure><figcaption><strong>{escape(panel.title)}</strong> "
        f"<span>{escape(panel.caption)}</span></figcaption>\n{draw_svg(panel, runs)}</figure>"
        for panel in find_panels(runs)
    )
    note = (
        '<p class="note">Lines: the text it trains on. Circles: text it never trains on. '
        "The first twentieth of a run may lie outside the frame.</p>"
    )
    return _section("How it learnt", note, f'<div class="curves">\n{figures}\n</div>')


def _sentences(sentences: Sequence[Sentence]) -> str:
    if not sentences:
        return ""
    legend = (
        "<p>The generator has filled gaps in sentences that were never trained on. A frame marks a "
        "token it changed, with the original struck out above it. The number below each token, and "
        "its shade, is the discriminator's probability that the token was replaced; it has not "
        "seen the original. Bold from 50% on: there it says &ldquo;replaced&rdquo;. "
        "A token that begins with ## continues the word before it.</p>"
    )
    parts = [
        f'<div class="sentence">{"".join(map(_token, sentence))}</div>\n'
        f'<p class="note">{escape(describe(sentence))}</p>'
        for sentence in sentences
    ]
    return _section("What it sees", legend, *parts)


def _token(view: TokenView) -> str:
    classes = ["token"]
    classes += ["replaced"] * view.is_replaced + ["suspected"] * view.is_suspected
    said = f"{view.token}: replaced with probability {view.prob_replaced:.0%}"
    said += f"; in place of {view.original}, {view.verdict}" if view.is_replaced else "; original"
    if view.verdict == "false alarm":
        said += ", false alarm"
    original = f'<span class="original">{escape(view.original)}</span>' * view.is_replaced
    return (
        f'<span class="{" ".join(classes)}" style="--prob:{view.prob_replaced:.3f}" '
        f'title="{escape(said)}" role="img" aria-label="{escape(said)}">{original}'
        f'<span class="text">{escape(view.token)}</span>'
        f'<span class="prob">{view.prob_replaced:.0%}</span></span>'
    )


def _glossary() -> str:
    items = "\n".join(
        f"<div><dt>{name} <span>{escape(', '.join(filter(None, metric[:2])))}</span></dt>\n"
        f"<dd>{escape(metric.meaning)}</dd></div>"
        for name, metric in GLOSSARY.items()
    )
    intro = (
        "<p>Two networks play a game. Some tokens of a text are hidden; the <em>generator</em> "
        "guesses what stood there, and its guesses are put in. The <em>discriminator</em> reads "
        "the result and says of every token whether it was replaced. The generator is thrown away "
        "afterwards; the discriminator is the encoder that you keep.</p>"
    )
    return _section("What the words mean", intro, f"<dl>\n{items}\n</dl>")


def _files(files: Mapping[str, str], next_command: str) -> str:
    if not files and not next_command:
        return ""
    rows = [[path, what] for path, what in files.items()]
    following = (
        f"<p>What comes next:</p>\n<pre>{escape(next_command)}</pre>" if next_command else ""
    )
    return _section("Files", _table(Table(["path", "what it is"], rows)) if rows else "", following)
