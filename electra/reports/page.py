"""The report: one HTML file without scripts and external resources."""

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
    to_html,
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
    """Write the report of one run, or of several runs side by side.

    Args:
        path: The HTML file. An existing file is replaced.
        runs: The runs, from `read_runs`. Their names form the title.
        finetunings: Fine-tunings from the pre-trained weights and from scratch.
        sentences: Held-out examples, shown token by token.
        files: Descriptions of other written files, by path.
        next_command: The command to run next.

    Raises:
        UserError: The file cannot be written.
    """
    title = f"Pre-training {' and '.join(run.name for run in runs)}"
    sections = [
        _head(title, runs),
        '<div class="pair">' if len(runs) == 1 else "<div>",
        "<div>",
        _section("Results", to_html(heldout_table(runs)), _gap(runs)),
        _finetunings(finetunings),
        "</div>",
        _section("Configuration", to_html(facts_table(runs)), _settings(runs)),
        "</div>",
        _curves(runs),
        _sentences(sentences),
        _glossary(),
        _files(files or {}, next_command),
    ]
    replace_text(path, frame_page(title, "\n".join(filter(None, sections))))


def frame_page(title: str, body: str) -> str:
    """Return a whole page of HTML, with the style sheet inside, around a body in HTML."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)} - ELECTRA</title>\n<style>{CSS}</style>\n</head>\n<body>\n"
        f"{body}\n</body>\n</html>\n"
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
        f"from original tokens</p>\n<h1>{escape(title)}</h1>\n{verdicts}\n</header>"
    )


def _name(run: Run, runs: Sequence[Run]) -> str:
    """Return the prefix of a sentence about a run: the run's name if there are several runs."""
    return f"{run.name}: " if len(runs) > 1 else ""


def _verdict(run: Run) -> str:
    """Return two sentences: the cost of the run, and its held-out metrics."""
    last, heldout = run.last_train, run.last_heldout
    cost = f"{format_metric('step', last.get('step'))} steps"
    if "tokens" in last and "seconds" in last:
        cost += f", {format_count(last['tokens'])} tokens, {format_seconds(last['seconds'])}"
    if heldout.get("mlm_accuracy") is None:
        return f"{cost}. Nothing was held out, so what the network has learnt was not measured."
    restored = f"restores {heldout['mlm_accuracy']:.0%} of the masked tokens"
    if "restore_loss" in heldout:
        return f"{cost}. On held-out text, the generator {restored}."
    if heldout.get("disc_auc") is None:
        return f"{cost}. On held-out text, the encoder {restored}."
    return (
        f"{cost}. On held-out text, the generator {restored}, and the discriminator ranks a "
        f"replaced token above an original token {heldout['disc_auc']:.0%} of the time (chance: "
        "50%)."
    )


def _gap(runs: Sequence[Run]) -> str:
    """Return, for each run, a comparison of disc_loss with the constant predictor's loss."""
    lines = []
    for run in runs:
        loss, constant = (run.last_heldout.get(k) for k in ("disc_loss", "constant_disc_loss"))
        if not loss or not constant:
            continue
        share = 1 - loss / constant
        if share > 0.005:
            text = f"is {share:.0%} below that of a predictor that ignores the text: this gap "
            text += "is what it has learnt."
        else:
            text = "is not below that of a predictor that ignores the text: by this measure "
            text += "it has learnt nothing yet."
        text = f"The discriminator's loss {text}"
        lines.append(f'<p class="note">{escape(_name(run, runs) + text)}</p>')
    return "\n".join(lines)


def _settings(runs: Sequence[Run]) -> str:
    return "\n".join(
        f"<details><summary>All settings of {escape(run.name)}</summary>"
        f"<pre>{escape(json.dumps(run.config, indent=2, ensure_ascii=False))}</pre>"
        f"<pre>{escape(json.dumps(run.manifest, indent=2, ensure_ascii=False))}</pre></details>"
        for run in runs
    )


def _finetunings(finetunings: Sequence[Finetuning]) -> str:
    """Return three bars for each task: pre-trained, from scratch, majority guess."""
    if not finetunings:
        return ""
    parts = [
        "<p>Scores of the same network on labelled tasks, fine-tuned from the pre-trained weights "
        "and from random weights: median ± standard deviation over the seeds. Brackets give the "
        "number of collapsed seeds that were replaced by other seeds.</p>"
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
            note += f"; {failed} of the runs collapsed to a single answer for all examples"
        parts.append(
            f'<h3>{escape(name)} <span class="note">({escape(note)})</span></h3>\n'
            f'<div class="bars">{"".join(bars)}</div>'
        )
    if rows := average_rows(finetunings):
        parts.append(to_html(Table(FINETUNING_HEADERS, rows)))
    return _section("Fine-tuning", *parts)


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
        '<p class="note">Lines: training text. Circles: held-out text. '
        "The first 5% of the steps may lie outside the frame.</p>"
    )
    return _section("Training curves", note, f'<div class="curves">\n{figures}\n</div>')


def _sentences(sentences: Sequence[Sentence]) -> str:
    if not sentences:
        return ""
    legend = (
        "<p>Held-out sentences in which the generator has filled the masked positions. A frame "
        "marks a replaced token, with the original token struck out above. The number below each "
        "token, and the shade, is the discriminator's probability that the token was replaced. "
        "The discriminator does not see the original. A bold number marks a suspected token; as "
        "many tokens are suspected as were replaced. A token that begins with ## continues the "
        "previous token's word.</p>"
    )
    parts = [
        f'<div class="sentence">{"".join(map(_token, sentence))}</div>\n'
        f'<p class="note">{escape(describe(sentence))}</p>'
        for sentence in sentences
    ]
    return _section("Examples", legend, *parts)


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
        "<p>Two networks are trained together. Some tokens of a text are masked. The "
        "<em>generator</em> predicts the masked tokens, and samples from its predictions replace "
        "the masks. The <em>discriminator</em> reads the result and predicts for every token "
        "whether it was replaced. After pre-training the generator is discarded; the "
        "discriminator is the pre-trained encoder.</p>"
    )
    return _section("Glossary", intro, f"<dl>\n{items}\n</dl>")


def _files(files: Mapping[str, str], next_command: str) -> str:
    if not files and not next_command:
        return ""
    rows = [[path, what] for path, what in files.items()]
    following = f"<p>Next command:</p>\n<pre>{escape(next_command)}</pre>" if next_command else ""
    return _section("Files", to_html(Table(["path", "content"], rows)) if rows else "", following)
