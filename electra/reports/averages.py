"""GLUE averages, each under the name of its protocol. An average needs the scores of all tasks."""

import statistics
from collections.abc import Mapping, Sequence

from electra.reports.runs import Finetuning

Protocol = Mapping[str, tuple[str, ...]]
"""The metrics of each task. A task's score is their mean.

A metric is one of dev, or one of another split after the name of the split."""

SITE: Protocol = {
    "cola": ("mcc",),
    "sst-2": ("accuracy",),
    "mrpc": ("f1", "accuracy"),
    "sts-b": ("pearson", "spearman"),
    "qqp": ("f1", "accuracy"),
    "mnli": ("accuracy", "dev_mismatched accuracy"),
    "qnli": ("accuracy",),
    "rte": ("accuracy",),
}
HEADLINES: Protocol = {
    **SITE,
    "mrpc": ("accuracy",),
    "sts-b": ("spearman",),
    "qqp": ("accuracy",),
    "mnli": ("accuracy",),
}
PROTOCOLS: dict[str, Protocol] = {
    "GLUE site's metrics, 9 tasks": {**SITE, "wnli": ("accuracy",)},
    "GLUE site's metrics, 8 tasks, no WNLI": SITE,
    "ELECTRA paper's metrics, 8 tasks, no WNLI": HEADLINES,
}
"""The protocols, under their names in tables.

Sources: the leaderboard of gluebenchmark.com, where a task with two metrics counts as their mean
and MNLI as the mean of matched and mismatched; section 3.1 of the paper, with one metric per task.
"""


def average_glue(finetunings: Sequence[Finetuning], protocol: Protocol) -> float | None:
    """Return the mean over tasks of the median over seeds; None if a task or a metric is missing.

    Args:
        finetunings: Fine-tunings of one encoder, one per task. Tasks outside GLUE, and those that
            began with the weights of another task, do not count.
        protocol: One of PROTOCOLS.
    """
    scores = {each.task: each.scores for each in finetunings if not each.after}
    medians = []
    for task, metrics in protocol.items():
        values = [scores.get(task, {}).get(metric, ()) for metric in metrics]
        if not all(values):
            return None
        medians.append(
            statistics.median(statistics.mean(seed) for seed in zip(*values, strict=True))
        )
    return statistics.mean(medians)
