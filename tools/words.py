"""Sentences about results, so that none of them is typed by hand."""

from collections.abc import Mapping, Sequence

from electra.reports.rendering import Table
from electra.reports.runs import Finetuning, pair_finetunings

BERT_TINY: Mapping[str, tuple[float, float]] = {
    "mnli": (0.654, 0.683),
    "qnli": (0.779, 0.812),
    "qqp": (0.811, 0.843),
    "mrpc": (0.699, 0.729),
    "sts-b": (0.665, 0.806),
}
"""Scores of BERT-Tiny (two layers of 128, trained on TPUs for a million steps) on GLUE's dev sets,
by the metric that our fine-tuning reports: fine-tuned by Adam, hardly tuned, and by M-FAC. Source:
the cards of M-FAC/bert-tiny-finetuned-*, means of five runs."""
ON_TEST: Mapping[str, float] = {
    **{"sst-2": 0.832, "mrpc": 0.711, "sts-b": 0.736, "qqp": 0.834},
    **{"mnli": 0.702, "qnli": 0.815, "rte": 0.572, "cola": 0.0},
}
"""Its scores on the test sets, with which scores on dev cannot be compared: dev chose our settings.
Source: README of google-research/bert."""
OTHER_DATA: Mapping[str, str] = {
    "qqp": "our own split of QQP",
    "mnli": "29,490 of MNLI's 392,702 training pairs, official matched dev set",
    "qnli": "train set of QNLI rebuilt from SQuAD, official dev set",
    "conll2003": "CoNLL-2003, English",
    "scicite": "SciCite, 7,320 sentences of train",
}
"""Data that are not GLUE's own."""


def describe_gains(finetunings: Sequence[Finetuning]) -> list[str]:
    """Return lines that say on which tasks pre-training helps, hurts or makes no difference.

    Tasks without one of the two starts are left out. The largest gains come first.
    """
    pairs = [pair for pair in pair_finetunings(finetunings).values() if all(pair)]
    gains: dict[str, list[tuple[float, str]]] = {"helps": [], "same": [], "hurts": []}
    for pretrained, scratch in pairs:
        assert pretrained
        assert scratch
        gain = pretrained.median - scratch.median
        kind = "same" if not pretrained.differs(scratch) else "helps" if gain > 0 else "hurts"
        seeds = ", one seed" if None in (pretrained.std, scratch.std) else ""
        gains[kind].append((gain, f"{pretrained.task} ({gain:+.3f} {pretrained.metric}{seeds})"))
    named = {
        kind: ", ".join(text for _, text in sorted(found, reverse=True))
        for kind, found in gains.items()
    }
    words = {
        "helps": "Pre-training helps on",
        "same": "It makes no difference beyond the spread of the seeds on",
        "hurts": "It hurts on",
    }
    return [f"- {words[kind]} {text}." for kind, text in named.items() if text]


def mark_table(finetunings: Sequence[Finetuning]) -> Table:
    """Return our scores on dev, pre-trained and from scratch, beside those of BERT-Tiny.

    Without a task of BERT-Tiny's there are no rows.
    """
    rows = []
    pairs = [pair for pair in pair_finetunings(finetunings).values() if pair[0]]
    is_beside = any(each and each.task in ON_TEST for each, _ in pairs)
    for pretrained, scratch in pairs if is_beside else ():
        assert pretrained
        marks = BERT_TINY.get(pretrained.task)
        rows.append(
            [
                pretrained.label,
                pretrained.metric,
                pretrained.score,
                scratch.score if scratch else "-",
                " / ".join(f"{mark:.3f}" for mark in marks or ()) or "-",
                _compare(pretrained) if marks else "",
                f"{ON_TEST[pretrained.task]:.3f}" if pretrained.task in ON_TEST else "-",
                OTHER_DATA.get(pretrained.task, "GLUE's own"),
            ]
        )
    ours = ["task", "metric", "pre-trained, dev", "from scratch, dev"]
    return Table([*ours, "BERT-Tiny, dev: Adam / M-FAC", "", "BERT-Tiny, test", "data"], rows)


def describe_mark(finetunings: Sequence[Finetuning]) -> str:
    """Return sentences that compare dev scores with those of BERT-Tiny on dev."""
    text = (
        "A public mark is BERT-Tiny, two layers of 128, trained on TPUs for a million steps, and "
        "fine-tuned by Adam and by M-FAC."
    )
    found: dict[str, list[str]] = {"above both": [], "between": [], "below both": []}
    for each in finetunings:
        if each.task in BERT_TINY and not each.from_scratch and not each.after:
            found[_compare(each)].append(each.task)
    told = [f"{word} for {', '.join(tasks)}" for word, tasks in found.items() if tasks]
    if told:
        text += f" Ours are {'; '.join(told)}."
    return text + " BERT-Tiny's scores on test are not compared with ours on dev."


def _compare(finetuning: Finetuning) -> str:
    """Return how a dev score compares with BERT-Tiny's two."""
    number = sum(finetuning.median > mark for mark in BERT_TINY[finetuning.task])
    return ("below both", "between", "above both")[number]
