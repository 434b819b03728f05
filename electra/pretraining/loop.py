"""The pre-training loop: from shards to a run folder.

Row order, masked positions, sampled tokens and dropout are functions of (seed, step). A run that is
interrupted and resumed therefore ends with the same weights as an uninterrupted run; on a CPU the
weights are equal bit for bit.
"""

import dataclasses
import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from electra.checkpoints.checkpoint import (
    copy_state,
    find_checkpoint,
    list_checkpoints,
    load_state,
    read_state,
    set_damaged_aside,
)
from electra.errors import UserError, command
from electra.method.objective import Objective
from electra.model.batch import Batch
from electra.pretraining.guard import MAX_IN_A_ROW
from electra.pretraining.journal import Journal, Show, SilentJournal, Totals, Window, read_totals
from electra.pretraining.opening import Opened, open_run, reopen_run
from electra.pretraining.signals import Requests, heed_signals
from electra.pretraining.step import Step
from electra.processes import Interrupted
from electra.training.config import PretrainConfig, longest_warmup
from electra.training.distributed import (
    any_rank,
    ask_any_rank,
    find_odd_weights,
    from_rank_0,
    gathered,
    is_sharded,
)
from electra.training.optimizer import learning_rate_at


def pretrain(
    shards_folder: Path,
    run: Path,
    config: PretrainConfig,
    show: Show,
    max_seconds: float = math.inf,
    cache: int | None = None,
) -> dict[str, Any]:
    """Pre-train into a run folder, and return the contents of results.json.

    With train.init_from, training begins with the weights and sizes of another model. The same call
    continues an unfinished run, as `resume` does.

    Args:
        shards_folder: Folder that `electra prepare` wrote.
        run: The run folder: new, or of a run that was begun with the same settings.
        config: The settings, from `resolve`; the vocabulary size is taken from the shards.
        show: Called first with {"part": "begin", "tokens", "passes"}: the tokens of the run, and
            how often it reads each corpus, by name. Then with each record of metrics.jsonl when the
            record is written; with {"part": "compiling"} or "counting" before the first record if
            this takes time; with {"part": "fetching", "done", "total"} for each shard file that is
            copied from a URL; with {"part": "start", "text"} if weights of another model are taken;
            with {"part": "alarm", "text"} if a record shows that something is wrong.
        max_seconds: Time after which the run saves and stops, seconds.
        cache: Bytes of shards at URLs that this machine keeps, with order=window. None: all are
            copied before the first step.

    Raises:
        UserError: The folders or settings are not valid, memory is too small, loss and gradient
            stay without finite values, or the run folder cannot be written.
        Interrupted: A signal or the time limit stopped the run; the checkpoint is written.
    """
    end = time.monotonic() + max_seconds
    with open_run(shards_folder, run, config, show, cache) as opened:
        return _train(opened, show, end)


def resume(
    run: Path,
    show: Show,
    shards_folder: Path | None = None,
    max_seconds: float = math.inf,
    cooldown: tuple[Path, PretrainConfig] | None = None,
    cache: int | None = None,
) -> dict[str, Any]:
    """Continue a run from its newest intact checkpoint, and return the contents of results.json.

    A run without a checkpoint starts at step 0.

    Args:
        run: A run folder. The settings are read from its config.json.
        show: As in `pretrain`.
        shards_folder: The shards' folder if it has moved; None: the folder in manifest.json.
        max_seconds: As in `pretrain`.
        cooldown: From `plan_cooldown`: `run` is a new folder, in which another run ends early.
        cache: As in `pretrain`.

    Raises:
        UserError: `run` is not a run folder, is damaged, in use or complete, or the shards are not
            those of the run.
        Interrupted: As in `pretrain`.
    """
    end = time.monotonic() + max_seconds
    with reopen_run(run, show, shards_folder, cooldown, cache) as opened:
        return _train(opened, show, end)


class Due(NamedTuple):
    """The work that follows a step."""

    record: bool
    save: bool
    evaluate: bool
    end: Literal["", "last", "told", "time"] = ""
    """Why no other step follows: the last was done, a signal, or the time limit."""

    @staticmethod
    def after(
        done: int,
        config: PretrainConfig,
        stages: Sequence[int],
        *,
        told: bool = False,
        late: bool = False,
        save: bool = False,
    ) -> "Due":
        """Return what follows a step, given signals to stop or to save and the time limit."""
        train = config.train
        is_last = done == train.steps
        save = save or told or late or is_last or done % train.save_every == 0
        return Due(
            # A log window also ends at a checkpoint, for resuming, and at the end of a stage,
            # because the next stage has a different loss.
            record=save or done % train.log_every == 0 or done in stages,
            save=save,
            evaluate=evaluates(config, done),
            end="last" if is_last else "told" if told else "time" if late else "",
        )


def evaluates(config: PretrainConfig, done: int) -> bool:
    """Return whether an evaluation follows the step.

    A continued run is also evaluated at its start, and before the discriminator's first step.
    """
    train = config.train
    is_due = done > 0 and (done % train.evaluate_every == 0 or done == train.steps)
    is_start = bool(train.init_from) and done in (0, config.second_stage)
    return train.evaluate_rows > 0 and (is_due or is_start)


def _train(opened: Opened, show: Show, end: float) -> dict[str, Any]:
    """Train from the newest checkpoint on, and return the contents of results.json."""
    run, step = opened.run, opened.step
    with closing(step), _begin(opened, show, end) as session:
        session.evaluate_at_start()
        step.model.train()
        for number in range(session.first_step, step.config.train.steps):
            session.take(number)
            due = session.find_due(number + 1)
            if due.record:
                session.record(number + 1)
            if due.save:
                session.save(is_last=bool(due.end))
            if due.evaluate:
                session.evaluate(number + 1)
            if due.end in ("told", "time"):
                raise Interrupted(run, number + 1, in_time=due.end == "time")
    with gathered(step.model):
        results: dict[str, Any] = from_rank_0(session.journal.write_results(session.window.totals))
    if any_rank(session.requests.stops)[0]:  # in the last evaluation: nothing else begins
        raise Interrupted(run, step.config.train.steps)
    return results


@dataclass
class Session:
    """The steps of a run from a checkpoint on, on one process: journal, window and signals.

    Where processes compute together or agree, all of them call the method.
    """

    run: Path
    step: Step
    first_step: int
    """Steps done before."""
    end: float
    """Time on the monotonic clock at which the run saves and stops."""
    batches: Iterator[Batch]
    journal: Journal | SilentJournal
    window: Window
    requests: Requests
    watch: Callable[[int], None] = lambda step: None
    """Takes the number of each step that begins."""
    learning_rate: float = 0.0
    """That of the last step."""
    answer: Callable[[], tuple[bool, ...]] | None = None
    """Answer to the last step's question: whether any process stops, is late or saves."""

    def take(self, number: int) -> None:
        """Run the step with this number."""
        step, window, was_compiled = self.step, self.window, self.step.compiled
        self.watch(number)
        if number in step.model.stages[1:]:
            step.begin_stage(step.model.stage_at(number))
        self.learning_rate = find_learning_rate(number, step.model, step.config)
        began = window.clock.now()
        batch = next(self.batches)
        window.clock.count_wait(began)
        outcome = step(number, batch, self.learning_rate)
        window.add(outcome)
        self.journal.end_of_step()
        if step.prepares:
            window.clock.leave_out(began, int(outcome.num_real))
        if step.compiled != was_compiled:
            self.journal.amend()

    def find_due(self, done: int) -> Due:
        """Return what follows a step; the processes agree.

        Several processes answer a request one step later, so that no step waits for the slowest.
        """
        answer = self._ask() if self.answer is None else self.answer
        told, late, save = answer()
        if save:
            self.requests.saves = False
        self.answer = self._ask() if self.step.machine.num_ranks > 1 else None
        config, stages = self.step.config, self.step.model.stages
        due = Due.after(done, config, stages, told=told, late=late, save=save)
        if due.end and self.answer:  # no later step reads it, and the group may end
            self.answer()
        return due

    def _ask(self) -> Callable[[], tuple[bool, ...]]:
        requests = self.requests
        return ask_any_rank(requests.stops, time.monotonic() >= self.end, requests.saves)

    def record(self, done: int) -> None:
        """End the window with a record; save and stop a run whose losses stay non-finite.

        A run whose processes have different weights is stopped at its last checkpoint.
        """
        if self.step.machine.num_ranks > 1 and not is_sharded(self.step.model):
            self._require_same_weights(done)
        means, skipped = self.window.record(done, self.step.config.train.steps)
        self.journal.write_window(done, means, skipped, self.learning_rate)
        most_bad = self.window.most_bad
        if most_bad >= MAX_IN_A_ROW:
            self.save(is_last=True)
            what = "discriminator" if self.step.config.train.updates == "apart" else "weights"
            raise UserError(
                f"{most_bad} steps in a row before step {done} had no finite loss and gradient; "
                f"none of them changed the {what}; the run is saved: lower "
                "optimizer.learning_rate, or set train.precision=float32; the rows are in "
                f"{self.run / 'skipped'}"
            )

    def _require_same_weights(self, done: int) -> None:
        odd = find_odd_weights(self.step.model)
        if odd:
            who, (rank, name) = ", ".join(map(str, odd)), next(iter(odd.items()))
            raise UserError(
                f"after step {done:,} the weights of process {who} are not those of process 0 "
                f"({rank} first in {name}): they computed different steps; the checkpoints before "
                f"are right: {command('pretrain', '--resume', self.run)}"
            )

    def save(self, *, is_last: bool) -> None:
        """Begin to write a checkpoint; if it is the last of the session, wait until it is there."""
        step = self.step
        with self.window.clock.paused():
            gc.collect()
            is_first = step.machine.rank == 0
            state = copy_state(step.model, step.optimizer, step.memory, is_first=is_first)
            self.journal.save(self.window.totals, state)
            if is_last:
                self.journal.finish()

    def evaluate(self, done: int) -> None:
        """Evaluate on held-out rows, which process 0 does alone."""
        self.step.model.begin_step(done)
        with self.window.clock.paused(), gathered(self.step.model):
            self.journal.evaluate(done, self.window.num_tokens)

    def evaluate_at_start(self) -> None:
        """Evaluate if the run begins, or stopped before this evaluation."""
        self.step.model.begin_step(self.first_step)
        is_due = evaluates(self.step.config, self.first_step)
        if from_rank_0(is_due and not self.journal.is_evaluated(self.first_step)):
            self.evaluate(self.first_step)


@contextmanager
def _begin(opened: Opened, show: Show, end: float) -> Iterator[Session]:
    """Yield a session that begins at the newest checkpoint, and end what it has opened."""
    run, shards, examples, domains, step = opened
    machine = step.machine
    totals = _load_newest(run, step)
    peak = machine.measure_peak() * machine.num_ranks
    batches = examples.batches(totals.step, step.config.train.batch_size)
    with heed_signals() as requests, ExitStack() as stack:
        journal = (
            Journal(run, shards, examples, domains, step, show, totals, peak, stack)
            if machine.rank == 0
            else SilentJournal()
        )
        stack.enter_context(_without_collector())
        session = Session(
            run, step, totals.step, end, batches, journal, Window(step, totals), requests
        )
        if machine.num_ranks > 1:
            from electra.training.watchdog import watched

            session.watch = stack.enter_context(watched(machine))
        yield session


def _load_newest(run: Path, step: Step) -> Totals:
    """Load the newest intact checkpoint, if there is one, on all processes; return its totals."""
    totals, checkpoint = Totals(), None
    if step.machine.rank == 0 and list_checkpoints(run):
        _, checkpoint = find_checkpoint(run)
        set_damaged_aside(run, checkpoint)
        totals = read_totals(checkpoint)
    totals = from_rank_0(totals)
    if totals.step:
        load_step(step, totals.step, checkpoint)
    return totals


def load_step(step: Step, done: int, checkpoint: Path | None) -> None:
    """Load the checkpoint after so many steps; process 0 reads it for all."""
    for stage in range(1, step.model.stage_at(done - 1) + 1):
        step.begin_stage(stage)
    state = read_state(checkpoint) if checkpoint else None
    load_state(state, step.model, step.optimizer, step.memory)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Keep Python's garbage collector from pausing steps, which make no cycles."""
    gc.collect()
    freezes = not gc.get_freeze_count()  # what the caller has frozen stays so
    if freezes:
        gc.freeze()  # what lives already is never searched again
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        if freezes:
            gc.unfreeze()


def find_learning_rate(step: int, model: Objective, config: PretrainConfig) -> float:
    """Return the learning rate of a step, by the schedule of the stage of the step."""
    stage, optimizer, steps = model.stage_at(step), config.optimizer, config.train.steps
    begin = steps - optimizer.cooldown_steps
    if step > begin:
        peak = find_learning_rate(begin, model, config)
        return peak * (steps - step) / optimizer.cooldown_steps
    first, end = (*model.stages, optimizer.planned_steps or steps)[stage : stage + 2]
    if step < (config.generator.warmup_steps or 0):
        warmup_steps = min(optimizer.warmup_steps, longest_warmup(end - first))
        optimizer = dataclasses.replace(optimizer, warmup_steps=warmup_steps)
    return learning_rate_at(step - first, end - first, optimizer, config.method.mode)
