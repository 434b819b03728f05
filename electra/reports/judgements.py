"""Answers of a fine-tuned classifier to its dev set: labels that it confuses, how sure it is.

Sizes: N texts, C labels.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from electra.checkpoints.manifest import find_best
from electra.checkpoints.results_files import read_results
from electra.files import read_object
from electra.reports.curves import COLOURS, INK, to_svg
from electra.reports.rendering import Table
from electra.tasks.predictions import predictions_name, read_predictions

MOST_LABELS = 20
"""Labels that a table has, the most frequent first."""
MOST_CONFUSED = 12
"""Labels of a matrix, of which the last stands for all the others."""
OTHERS = "others"
BINS = 10


class Judgements(NamedTuple):
    """The answers of one seed to the dev set."""

    name: str
    """That of the folder."""
    seed: str
    labels: tuple[str, ...]
    gold_NC: np.ndarray
    """Whether a text has a label."""
    said_NC: np.ndarray
    """Whether it was predicted."""
    probs_NC: np.ndarray
    is_single: bool
    """Whether each text has one label."""


class Calibration(NamedTuple):
    """How often predictions of a confidence are right, by bins of the confidence."""

    confidence: np.ndarray
    """Mean confidence of each bin that is not empty."""
    share: np.ndarray
    """Share of its predictions that are right."""
    counts: np.ndarray
    """Its predictions."""
    error: float
    """Mean distance of the two, each bin weighted by its predictions (ECE)."""


def read_judgements(folder: Path) -> Judgements | None:
    """Return the answers of the seed that is best on dev; None if there are no probabilities.

    Numbers, tags and spans have none, and neither has a folder without predictions.
    """
    run = find_best(folder)
    results = read_results(run, "metric", "seeds")
    seeds = results["seeds"] | results.get("replacements", {})  # as `find_seed` chooses
    scores = {n: each["scores"][results["metric"]] for n, each in seeds.items()}
    seed = max(scores, key=lambda number: scores[number])
    path = run / f"seed-{seed}" / predictions_name("dev")
    if not path.exists():
        return None
    read = read_predictions(path)
    if not read.labels or not np.isfinite(read.values).all():
        return None
    is_single = results.get("family") != "multi_label"
    sets = [names if isinstance(names, tuple) else (names,) for (names,) in read.gold]
    gold = np.array([[label in names for label in read.labels] for names in sets])
    if is_single:
        said = read.values.argmax(axis=1)[:, None] == np.arange(len(read.labels))
    else:
        facts = read_object(path.parent / "model" / "config.json")
        said = read.values >= np.array(facts["thresholds"])
    return Judgements(folder.absolute().name, seed, read.labels, gold, said, read.values, is_single)


def measure_calibration(confidence: np.ndarray, is_right: np.ndarray) -> Calibration:
    """Return how well confidences in [0, 1] fit what is right, in BINS bins of equal width.

    Source: Guo et al. 2017, "On Calibration of Modern Neural Networks".
    """
    places = np.minimum((confidence * BINS).astype(int), BINS - 1)
    counts = np.bincount(places, minlength=BINS)
    kept = counts > 0
    means, shares = (
        np.bincount(places, each, minlength=BINS)[kept] / counts[kept]
        for each in (confidence, is_right)
    )
    error = float((np.abs(means - shares) * counts[kept]).sum() / counts.sum())
    return Calibration(means, shares, counts[kept], error)


def calibrate(judged: Judgements) -> Calibration:
    """Return the calibration of the likeliest labels, or of all labels where there are several."""
    if not judged.is_single:
        return measure_calibration(judged.probs_NC.ravel(), judged.gold_NC.ravel())
    is_right = (judged.gold_NC & judged.said_NC).any(axis=1)
    return measure_calibration(judged.probs_NC.max(axis=1), is_right)


def count_confusions(judged: Judgements) -> tuple[list[str], np.ndarray]:
    """Return the labels that are shown, and how many texts of each got each prediction (C, C)."""
    counts_CC = judged.gold_NC.T.astype(int) @ judged.said_NC.astype(int)
    names = list(judged.labels)
    if len(names) > MOST_CONFUSED:
        kept = np.sort(np.argsort(-judged.gold_NC.sum(axis=0), kind="stable")[: MOST_CONFUSED - 1])
        groups = np.full(len(names), MOST_CONFUSED - 1)
        groups[kept] = np.arange(MOST_CONFUSED - 1)
        together = np.zeros((MOST_CONFUSED, MOST_CONFUSED), int)
        np.add.at(together, (groups[:, None], groups[None, :]), counts_CC)
        return [*(names[place] for place in kept), OTHERS], together
    return names, counts_CC


def tabulate_labels(judged: Judgements) -> Table:
    """Return the scores of each label, the most frequent first."""
    gold, said = judged.gold_NC, judged.said_NC
    right, has, got = (each.sum(axis=0) for each in (gold & said, gold, said))
    rows = []
    for place in np.argsort(-has, kind="stable")[:MOST_LABELS]:
        counts = (right[place], got[place]), (right[place], has[place])
        shares = [part / max(1, whole) for part, whole in counts]
        shares.append(2 * right[place] / max(1, has[place] + got[place]))
        scores = [f"{share:.3f}" for share in shares]
        rows.append([judged.labels[place], f"{has[place]:,}", *scores])
    return Table(["label", "texts", "precision", "recall", "F1"], rows)


def describe_judgements(judged: Judgements) -> dict[str, Any]:
    """Return what the page shows of a classifier."""
    found = calibrate(judged)
    pictures = [
        {
            "title": "Calibration",
            "caption": "On the diagonal, of the answers with a probability of 80% four in five are "
            "right. The larger a point, the more answers. Expected calibration error (ECE): "
            f"{found.error:.3f}.",
            "svg": _draw_calibration(judged, found),
        }
    ]
    if judged.is_single:
        pictures.insert(
            0,
            {
                "title": "Confusion matrix",
                "caption": "Numbers of texts; the shade is the share of the row.",
                "svg": _draw_confusions(judged),
            },
        )
    return {
        "name": judged.name,
        "note": f"{len(judged.gold_NC):,} texts of dev, answered by seed {judged.seed}, the best",
        "pictures": pictures,
        "labels": tabulate_labels(judged),
        "is_part": len(judged.labels) > MOST_LABELS,
    }


def _draw_calibration(judged: Judgements, found: Calibration) -> str:
    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1], "--", color=INK)
        sizes = 12 + 160 * found.counts / found.counts.max()
        axes.plot(found.confidence, found.share, color=COLOURS[0], alpha=0.5)
        axes.scatter(found.confidence, found.share, sizes, COLOURS[0], clip_on=False, zorder=3)
        axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
        axes.set_xlabel("probability of the answer" if judged.is_single else "probability")
        axes.set_ylabel("share that is right" if judged.is_single else "share that has the label")

    title = f"Calibration of {judged.name}"
    return to_svg(draw, (4.6, 3.4), title, f"{title}: ECE {found.error:.3f}")


def _draw_confusions(judged: Judgements) -> str:
    names, counts = count_confusions(judged)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for (row, column), share in np.ndenumerate(shares):
            shade = to_rgba(COLOURS[0], round(float(share) * 0.6, 3))
            axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, color=shade, linewidth=0))
            if counts[row, column]:
                said = f"{counts[row, column]:,}"
                axes.text(column, row, said, ha="center", va="center", fontsize=8)
        count = len(names)
        axes.set(xlim=(-0.5, count - 0.5), ylim=(count - 0.5, -0.5), aspect="equal")
        axes.set_xticks(range(count), names, rotation=45, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(count), names)
        axes.grid(visible=False)
        axes.set_xlabel("predicted")
        axes.set_ylabel("label")

    side = max(3.4, 1.6 + 0.36 * len(names))
    title = f"Confusion matrix of {judged.name}"
    return to_svg(draw, (side + 0.6, side), title, title)
