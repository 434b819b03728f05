"""verify and show: what a stranger can check of any folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from electra.errors import count_of
from electra.terminal.printing import print_claim, print_done, print_json, print_row
from electra.verbs.arguments import as_list, as_path
from electra.verbs.options import Place, Words, verb

if TYPE_CHECKING:
    from electra.pretraining.step_rows import StepRows
    from electra.verification.claims import Claim


@verb
def verify(
    folder: Place,
    *,
    shards: Place | None = None,
    text: Words = (),
    data: Place | None = None,
    steps: int = 100,
    verbose: bool = False,
    json: bool = False,
) -> "list[Claim]":
    """Check every claim of a folder (hashes, settings, origin) and recompute some of its results.

    For a run, it recomputes some steps and the last evaluation, and compares the steps with the
    next checkpoint, bit for bit, or with metrics.jsonl. For shards, it counts everything and
    tokenizes some documents again. For a fine-tuning, it recomputes the scores from the answers,
    and some answers from the model. For an export, it compares weights and answers with those of
    the source. For a suite, it rebuilds the tables from the records. It prints a line for each
    claim: ok, FAILED or not checked; for a folder of folders, a line for each folder and each
    failed claim. The exit status is 1 if a claim failed. Nothing is written into the folder.

    Example: electra verify run

    Args:
        folder: A tokenizer, shards, a run, a fine-tuning or a grid, an export, the results of a
            suite, or a folder of such folders, as that of a quickstart.
        shards: For a run: its shards, if they are no longer where its manifest says.
        text: For shards: the text, as it was given to `electra prepare`.
        data: For a fine-tuning: the folder of the task's files, if they have moved.
        steps: For a run: most steps that are computed again.
        verbose: For a folder of folders: also print the claims that hold or were not checked.
        json: Print a list of JSON objects with status, claim and told.

    Returns:
        The claims, with status, claim and told.
    """
    from electra.verification.verify import find_kind
    from electra.verification.verify import verify as run_verify

    folder = Path(folder)
    is_listed = verbose or not folder.is_dir() or bool(find_kind(folder))

    def show_claim(claim: "Claim") -> None:
        if not json and (is_listed or claim.status == "FAILED"):
            print_claim(claim)

    def show_folder(place: Path, claims: "Sequence[Claim]") -> None:
        if not (json or is_listed):
            failed = any(claim.status == "FAILED" for claim in claims)
            print_claim(("FAILED" if failed else "ok", place.name, _count(claims)))

    places = {"shards": as_path(shards), "data": as_path(data)}
    claims = run_verify(
        folder, **places, text=as_list(text), steps=steps, show=show_claim, end=show_folder
    )
    if json:
        print_json([claim._asdict() for claim in claims])
    else:
        print_done(_count(claims, f" of {folder}"))
    return claims


def _count(claims: "Sequence[Claim]", whose: str = "") -> str:
    """Return how many claims hold, failed and were not checked."""
    statuses = [claim.status for claim in claims]
    failed, unknown = statuses.count("FAILED"), statuses.count("not checked")
    hold = count_of(statuses.count("ok"), "claim")
    return f"{hold}{whose} hold, {failed} failed, {unknown} not checked"


@verb
def show(
    run: Place,
    *,
    step: int,
    rows: int = 4,
    part: Literal["train", "heldout"] = "train",
    shards: Place | None = None,
    json: bool = False,
) -> "StepRows":
    """Show the rows of a training step as text, with masked and replaced tokens marked.

    [chef→cook]: chef was replaced by cook. [chef]: chef was masked, and the generator sampled chef
    again. With an objective that replaces nothing, [chef→[MASK]] shows what the encoder read. Rows
    and masks follow from seed and step. Replacements come from the nearest checkpoint, and equal
    those of training only if that checkpoint is of this step.

    Example: electra show run --step 1000

    Args:
        run: A run folder.
        step: Number of the step, from 0, as in the names of RUN/skipped: step 1000 begins with the
            weights of step-00001000.
        rows: Number of rows.
        part: train: the rows of the step. heldout: those of every evaluation.
        shards: The run's shards, if they are no longer where its manifest says.
        json: Print one JSON object: rows, each a list of tokens with token, segment, masked, shown
            and replacement; and told.

    Returns:
        The rows, and what masks and replacements are.
    """
    from electra.pretraining.step_rows import show_step

    found = show_step(Path(run), step, rows=rows, part=part, shards=as_path(shards))
    if json:
        listed = [[token._asdict() for token in row] for row in found.rows]
        print_json({"rows": listed, "told": found.told})
        return found
    for row in found.rows:
        print_row([(each.token, each.masked, each.replacement or each.shown) for each in row])
    print_done(found.told)
    return found
