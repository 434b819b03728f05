"""One number for all of GLUE, where every task that it needs is there; which number, is said."""

import statistics
from collections.abc import Mapping, Sequence

from electra.reports.runs import Finetuning

Protocol = Mapping[str, tuple[str, ...]]
"""What counts of each task: metrics of dev, or of another split after its name; their mean does."""

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
"""By how they are called in tables. Sources: gluebenchmark.com's leaderboard, on which two metrics
of a task count as their mean, MNLI as the mean of matched and mismatched; section 3.1 of the paper,
whose averages are of one metric a task."""


def average_glue(finetunings: Sequence[Finetuning], protocol: Protocol) -> float | None:
    """Return the mean over tasks of the median over seeds; None if a task or a metric is missing.

    Args:
        finetunings: Of one encoder, one a task; other tasks than GLUE's do not count.
        protocol: One of PROTOCOLS.
    """
    scores = {each.task: each.scores for each in finetunings}
    medians = []
    for task, metrics in protocol.items():
        values = [scores.get(task, {}).get(metric, ()) for metric in metrics]
        if not all(values):
            return None
        medians.append(
            statistics.median(statistics.mean(seed) for seed in zip(*values, strict=True))
        )
    return statistics.mean(medians)
