"""The rows of a step for reading: which tokens were masked, and which replaced them.

Rows and masks are functions of (seed, step). A replacement also depends on the generator's weights,
which come from the checkpoint with the nearest step.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from electra.checkpoints.checkpoint import find_checkpoint, list_checkpoints, step_of
from electra.checkpoints.folder import read_run_config
from electra.errors import UserError, require, require_choice
from electra.method.masking import Counts, Draw, predict_masked, replace
from electra.method.objective import Objective
from electra.model.batch import Batch, find_real
from electra.model.fixed_distribution import FixedDistribution
from electra.model.masked_lm import MaskedLM
from electra.pretraining.evaluation import heldout_rows, split_heldout
from electra.pretraining.loop import Session
from electra.pretraining.replay import (
    CPU_NAME,
    begins_alone,
    find_session,
    find_shards,
    reopen,
    tell_unlike,
)
from electra.shards.store import Shards
from electra.tokenizing.tokenizer import Tokenizer

Part = Literal["train", "heldout"]
Drawn = tuple[Batch, Draw, Counts]


class RowToken(NamedTuple):
    """A token of a row."""

    token: str
    """The original. A piece inside a word begins with "##"."""
    segment: int
    masked: bool
    """Whether the position was drawn: to be predicted, or with Electric to be noise."""
    shown: str
    """The input of the network that predicts the original."""
    replacement: str | None
    """The discriminator's input; None: the position was not drawn, or nothing is replaced."""


class StepRows(NamedTuple):
    """Some rows of a step."""

    rows: list[list[RowToken]]
    """Without padding."""
    told: str
    """The meaning of masks and replacements."""


def show_step(
    run: Path, step: int, *, rows: int = 4, part: Part = "train", shards: Path | None = None
) -> StepRows:
    """Return the first rows of a step with masks and replacements, as `electra.show`."""
    require_choice("part", part, get_args(Part))
    config = read_run_config(run)
    last = config.train.steps - 1
    require(0 <= step <= last, f"step must be 0 to {last:,}, not {step:,}")
    require(rows >= 1, f"rows must be >= 1, not {rows}")
    opened, checkpoint = find_shards(run, shards), _find_nearest(run, step)
    session = reopen(run, opened, checkpoint, step)
    tokenizer, machine = opened.tokenizer, session.step.machine
    device = str(find_session(run, step).get("device", machine.name))
    is_like = device == machine.name or (CPU_NAME.search(device) and machine.device.type == "cpu")
    if part == "train" and not is_like:
        first = next(session.batches).rows(slice(0, rows))
        return StepRows(
            _spell(tokenizer, first, None),
            f"masks were drawn on {device}, and cannot be drawn here",
        )
    drawn = _draw_heldout(session, opened, rows) if part == "heldout" else _draw(session, step)
    found: list[list[RowToken]] = []
    with torch.no_grad():
        for batch, draw, counts in drawn:
            found += _spell(tokenizer, batch, _change(session.step.model, batch, draw, counts))
            if len(found) >= rows:
                break
    return StepRows(found[:rows], _tell(run, session, step, checkpoint, part))


def _find_nearest(run: Path, step: int) -> Path | None:
    """Return the intact checkpoint nearest to a step; None if the run's beginning is nearer."""
    kept = list_checkpoints(run)
    places = sorted(kept, key=lambda each: (abs(step_of(each) - step), step_of(each)))
    if not places or (begins_alone(run) and step < abs(step_of(places[0]) - step)):
        return None
    return find_checkpoint(places[0])[1]


def _draw(session: Session, number: int) -> Iterator[Drawn]:
    """Yield the micro-batches of a step with their masks, dropout seeded as in training."""
    step, model = session.step, session.step.model
    stage = model.stage_at(number)
    if stage and model.is_resting:  # of a checkpoint before
        step.begin_stage(stage)
    model.is_resting = stage < len(model.stages) - 1
    step.begin(number, 0.0)
    batch = next(session.batches).to(step.machine.device)
    draw, counts = step.choose(batch, model.masking.draw_uniform(batch, step.rng))
    for micro_batch, rows in step.micro_batches(len(batch.input_ids_BL)):
        if step.machine.device.type != "cuda":
            step.seed_dropout(micro_batch)
        yield batch.rows(rows), draw.rows(rows), counts


def _draw_heldout(session: Session, shards: Shards, rows: int) -> Iterator[Drawn]:
    """Yield held-out rows with the masks of every evaluation."""
    step = session.step
    step.model.eval()
    heldout = heldout_rows(shards, step.config)
    if heldout is None:
        raise UserError("the run has no evaluations: train.evaluate_rows is 0")
    yield from split_heldout(step.model, heldout.rows(slice(0, rows)), step.micro_rows)


class _Changed(NamedTuple):
    """Rows (B, L) and their inputs to both networks."""

    drawn_BL: Tensor
    """Bool: the positions that were drawn."""
    shown_BL: Tensor
    """The input of the network that predicts the originals."""
    corrupt_BL: Tensor | None
    """The discriminator's input; None: nothing is replaced."""


def _change(model: Objective, batch: Batch, draw: Draw, counts: Counts) -> _Changed:
    """Return what an objective makes of rows, in the state that its checkpoint and stage gave."""
    ids_BL, generator = batch.input_ids_BL, getattr(model, "generator", None)
    drawn_BL = replace(torch.zeros_like(ids_BL, dtype=torch.bool), draw, True)
    if _predicts_next(model):
        return _Changed(torch.zeros_like(drawn_BL), ids_BL, None)
    shown_BL = model.masking.mask(ids_BL, draw)
    if isinstance(generator, MaskedLM | FixedDistribution):
        if model.is_resting:
            return _Changed(drawn_BL, shown_BL, None)
        prediction, _ = predict_masked(generator, model.masking, batch, draw, counts)
        corrupt_BL = model.masking.corrupt(ids_BL, draw, prediction.sampled)
        return _Changed(drawn_BL, shown_BL, corrupt_BL)
    if generator is None:
        return _Changed(drawn_BL, shown_BL, None)
    judgement = model(batch, draw, counts).judgement  # of Electric, whose noise reads whole rows
    return _Changed(drawn_BL, ids_BL, judgement.corrupt_ids_BL if judgement else None)


def _predicts_next(model: Objective) -> bool:
    return all(network.at == "followed" for network in model.networks.values())


def _spell(tokenizer: Tokenizer, batch: Batch, changed: _Changed | None) -> list[list[RowToken]]:
    """Return the tokens of rows, without padding; None: their masks are not known."""
    ids_BL, real_BL = batch.input_ids_BL, find_real(batch)
    nothing = _Changed(torch.zeros_like(real_BL), ids_BL, None)
    drawn_BL, shown_BL, corrupt_BL = changed or nothing
    rows = []
    for row, length in enumerate(real_BL.sum(dim=1).tolist()):
        drawn = drawn_BL[row, :length].tolist()
        originals, shown, put = (
            tokenizer.tokens((ids_BL if each is None else each)[row, :length].tolist())
            for each in (ids_BL, shown_BL, corrupt_BL)
        )
        kept = [
            token if is_drawn and corrupt_BL is not None else None
            for token, is_drawn in zip(put, drawn, strict=True)
        ]
        segments = batch.token_type_ids_BL[row, :length].tolist()
        columns = zip(originals, segments, drawn, shown, kept, strict=True)
        rows.append([RowToken(*column) for column in columns])
    return rows


def _tell(run: Path, session: Session, step: int, checkpoint: Path | None, part: Part) -> str:
    """Return what the masks and replacements of a step are."""
    model, name = session.step.model, session.step.config.method.objective
    if _predicts_next(model):
        return f"{name} masks nothing: every token is predicted from those before it"
    if getattr(model, "generator", None) is None:
        return f"{name} replaces nothing: it predicts the masked tokens"
    if model.is_resting:
        return (
            f"the generator is trained alone before step {model.stages[-1]:,}: nothing is replaced"
        )
    if checkpoint is None and not begins_alone(run):
        return "no checkpoint is kept: replacements are those of random weights"
    which = checkpoint.name if checkpoint else "the run's first weights"
    if part == "heldout" or session.first_step != step:
        return f"replacements are those that {which} would make"
    unlike = tell_unlike(run, session.step, step, step + 1)
    differ = f"; computed otherwise ({unlike}), so a few may differ" if unlike else ""
    return f"replacements are those of training, which continued from {which}{differ}"
