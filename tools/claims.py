"""What results say in words, so that no sentence about them is typed by hand."""

from collections.abc import Mapping, Sequence

from electra.reports.rendering import Table
from electra.reports.runs import Finetuning, pair_finetunings

BERT_TINY: Mapping[str, float] = {
    "sst-2": 0.832,
    "mrpc": 0.711,
    "sts-b": 0.736,
    "qqp": 0.834,
    "mnli": 0.702,
    "qnli": 0.815,
    "rte": 0.572,
    "cola": 0.0,
}
"""Scores of BERT-Tiny (two layers of 128, trained on TPUs for a million steps) on GLUE's test sets,
by the metric that our fine-tuning reports. Source: README of google-research/bert."""
STAND_INS: Mapping[str, str] = {
    "qqp": "our own split of QQP",
    "mnli": "29,490 of MNLI's 392,702 training pairs, official matched dev set",
    "qnli": "train set of QNLI rebuilt from SQuAD, official dev set",
}
"""What stands in for data of GLUE that we do not have."""


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
    """Return our scores on dev, pre-trained and from scratch, beside those of BERT-Tiny on test."""
    rows = []
    for pretrained, scratch in pair_finetunings(finetunings).values():
        if pretrained is None or pretrained.task not in BERT_TINY:
            continue
        mark = BERT_TINY[pretrained.task]
        rows.append(
            [
                pretrained.label,
                pretrained.metric,
                pretrained.score,
                scratch.score if scratch else "-",
                f"{mark:.3f}",
                "above" if pretrained.median > mark else "below",
                STAND_INS.get(pretrained.task, "GLUE's own train and dev sets"),
            ]
        )
    return Table(
        ["task", "metric", "pre-trained, dev", "from scratch, dev", "BERT-Tiny, test", "", "data"],
        rows,
    )


def describe_mark(finetunings: Sequence[Finetuning]) -> str:
    """Return a sentence on how many dev scores are above the test scores of BERT-Tiny."""
    marked = _marked(finetunings)
    direct = [each for each in marked if not each.after]
    above = [each.task for each in direct if each.median > BERT_TINY[each.task]]
    below = [each.task for each in direct if each.median <= BERT_TINY[each.task]]
    text = (
        "A public mark is BERT-Tiny, two layers of 128, trained on TPUs for a million steps. Our "
        f"scores on dev are above its scores on test for {len(above)} of {len(direct)} tasks"
    )
    text += f" ({', '.join(above)})" if above else ""
    text += f", and below for {', '.join(below)}." if below else "."
    passed = {each.task: each for each in marked if each.median > BERT_TINY[each.task]}
    if won := [passed[task].label for task in below if task in passed]:
        text += (
            " With weights fine-tuned on another task first (intermediate training, Phang "
            f"et al. 2018) it is {len(above) + len(won)}: also {', '.join(won)}."
        )
    return text


def _marked(finetunings: Sequence[Finetuning]) -> list[Finetuning]:
    return [each for each in finetunings if each.task in BERT_TINY and not each.from_scratch]
