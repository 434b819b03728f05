"""The pre-training loop: from shards to a run folder.

Row order, masked positions, sampled tokens and dropout are functions of (seed, step). A run that is
interrupted and resumed therefore ends with the same weights as an uninterrupted run; on a CPU the
weights are equal bit for bit.
"""

import dataclasses
import gc
import math
import shutil
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple

from electra.checkpoints.checkpoint import (
    copy_state,
    find_checkpoint,
    list_checkpoints,
    load_state,
    read_state,
    run_of,
    set_damaged_aside,
)
from electra.checkpoints.folder import SavedModel, read_pretrained, read_run_config
from electra.checkpoints.manifest import read_manifest
from electra.checkpoints.metrics import import_tracker
from electra.config import PretrainConfig, TrainConfig, longest_warmup, require_schedule
from electra.errors import UserError, command, require
from electra.files import LOCK, hold, new_folder, sync, write_json
from electra.method.objective import Objective
from electra.model.batch import Batch
from electra.pretraining.acceleration import prepare_step
from electra.pretraining.continuation import read_run, write_branch
from electra.pretraining.evaluation import Domains, open_domains
from electra.pretraining.guard import MAX_IN_A_ROW
from electra.pretraining.init_from import (
    describe_start,
    describe_weights,
    fit_to_start,
    load_network,
    load_start,
    require_vocabulary,
)
from electra.pretraining.journal import Journal, Show, SilentJournal, Totals, Window, read_totals
from electra.pretraining.plan import require_memory
from electra.pretraining.start import (
    build_model,
    count_tokens,
    embed_tokens,
    fit_to_shards,
    read_frozen,
    require_equal_shares,
)
from electra.pretraining.step import Step
from electra.processes import Interrupted, Requests, find_place, heed_signals
from electra.settings import to_dict
from electra.shards.examples import Examples
from electra.shards.store import Shards, fetch_shards, open_shards
from electra.tokenizing.tokenizer import Tokenizer
from electra.training.distributed import (
    any_rank,
    from_rank_0,
    gathered,
    joined,
    spread,
    wait_for_all,
)
from electra.training.machine import Machine, prepare_machine
from electra.training.optimizer import learning_rate_at


def pretrain(
    shards_folder: Path,
    run: Path,
    config: PretrainConfig,
    show: Show,
    max_seconds: float = math.inf,
) -> dict[str, Any]:
    """Pre-train into a run folder, and return the contents of results.json.

    With train.init_from, training begins with the weights and sizes of another model. The same call
    continues an unfinished run, as `resume` does.

    Args:
        shards_folder: Folder that `electra prepare` wrote.
        run: The run folder: new, or of a run that was begun with the same settings.
        config: The settings, from `resolve`; the vocabulary size is taken from the shards.
        show: Called with each record of metrics.jsonl when the record is written; with {"part":
            "compiling"} or "counting" before the first record if this takes time; with {"part":
            "fetching", "done", "total"} for each shard file that is copied from a URL; with
            {"part": "alarm", "text"} if a record shows that something is wrong.
        max_seconds: Time after which the run saves and stops, seconds.

    Raises:
        UserError: The folders or settings are not valid, memory is too small, loss and gradient
            stay without finite values, or the run folder cannot be written.
        Interrupted: A signal or the time limit stopped the run; the checkpoint is written.
    """
    end = time.monotonic() + max_seconds
    train = config.train
    machine = _prepare(train)
    with joined(machine):
        if from_rank_0((run / "config.json").exists()):
            return _resume(run, show, shards_folder, config, machine, end)
        exists = f"{run} exists already and is no run folder; choose another --out"
        require(machine.rank > 0 or not run.exists(), exists)
        shards = open_shards(shards_folder, verify=find_place().local_rank == 0)
        require(
            shards.digest == from_rank_0(shards.digest),
            f"{shards_folder} of this process holds other shards than that of process 0",
        )
        start = read_pretrained(Path(train.init_from)) if train.init_from else None
        if start:
            config = fit_to_start(config, start, {"model.causal"})
            require_vocabulary(start, shards)
        require_schedule(config)
        config = from_rank_0(fit_to_shards(config, shards))  # a machine may have other settings
        domains = _open_domains(shards, config, machine, show)
        model = _build(config, shards, machine, run, start, show)
        require_memory(model, config, machine)
        step = prepare_step(model, config, machine)
        wait_for_all(machine)  # one of them may lack memory
        with _writing(run):
            if machine.rank == 0:
                _create(run, shards, domains, step, start)
            with _hold(run, machine):
                return _train(run, shards, domains, step, show, end)


def resume(
    run: Path,
    show: Show,
    shards_folder: Path | None = None,
    max_seconds: float = math.inf,
    cooldown: tuple[Path, PretrainConfig] | None = None,
) -> dict[str, Any]:
    """Continue a run from its newest intact checkpoint, and return the contents of results.json.

    A run without a checkpoint starts at step 0.

    Args:
        run: A run folder. The settings are read from its config.json.
        show: As in `pretrain`.
        shards_folder: The shards' folder if it has moved; None: the folder in manifest.json.
        max_seconds: As in `pretrain`.
        cooldown: From `plan_cooldown`: `run` is a new folder, in which another run ends early.

    Raises:
        UserError: `run` is not a run folder, is damaged, in use or complete, or the shards are not
            those of the run.
        Interrupted: As in `pretrain`.
    """
    end = time.monotonic() + max_seconds
    train = (cooldown[1] if cooldown else read_run_config(run)).train
    machine = _prepare(train)
    with joined(machine):
        if cooldown and machine.rank == 0:  # which alone reads and writes run folders
            write_branch(run_of(cooldown[0]), cooldown[0], run, cooldown[1])
        return _resume(run, show, shards_folder, None, machine, end)


def _prepare(train: TrainConfig) -> Machine:
    """Return the machine; process 0 imports the tracker, and warns of what is not read here."""
    machine = prepare_machine(train.device, train.precision, train.threads)
    if machine.rank > 0:
        return machine
    if train.tracker != "none":
        import_tracker(train.tracker)
    if train.sharding != "none" and machine.num_ranks == 1:
        warnings.warn("train.sharding divides nothing with one process", stacklevel=2)
    is_divided = train.sharding != "none" and machine.num_ranks > 1
    compiles = train.compile == "yes" or (train.compile == "auto" and machine.device.type == "cuda")
    asked = {name: getattr(train, name) for name in ("autotune", "dependent_launch")}
    for name, is_asked in {**asked, "compile": train.compile == "yes"}.items():
        if is_asked and (is_divided or not compiles):
            warnings.warn(f"train.{name} is not read: the step is not compiled", stacklevel=2)
    return machine


def _resume(
    run: Path,
    show: Show,
    shards_folder: Path | None,
    given: PretrainConfig | None,
    machine: Machine,
    end: float,
) -> dict[str, Any]:
    """Continue a run until `end` on the monotonic clock, with a command's settings if given."""
    with _writing(run), _hold(run, machine):
        found = read_run(run, given, machine.name) if machine.rank == 0 else None
        config, changed, source, ranking, begun_from = from_rank_0(found)
        try:
            place = shards_folder or Path(source["folder"])
            shards = open_shards(place, verify=find_place().local_rank == 0)
        except UserError as error:
            moved = f"; if they are elsewhere: {command('pretrain', 'SHARDS', '--resume', run)}"
            raise UserError(f"{error}{'' if shards_folder else moved}") from None
        if shards.digest != source["sha256"]:
            what = "shards"
            if machine.rank == 0:
                is_same = Tokenizer.load(run / "tokenizer").digest == shards.tokenizer.digest
                what = "corpus" if is_same else "vocabulary"
            raise UserError(
                f"{shards.folder} does not hold the shards of {run}: it has another {what}; choose "
                "another --out"
            )
        is_new = from_rank_0(not list_checkpoints(run))
        if machine.rank == 0 and is_new:
            _require_begun(run, config)
        start = read_pretrained(Path(config.train.init_from)) if begun_from and is_new else None
        domains = _open_domains(shards, config, machine, show)
        if machine.rank == 0:
            _keep_sources(run, shards, domains, machine)
            _keep_tokenizer(run, shards)
        model = _build(config, shards, machine, run, start, show)
        try:
            require_memory(model, config, machine)
        except UserError as error:  # an estimate, and the run is begun
            warnings.warn(str(error), stacklevel=2)
        step = prepare_step(model, config, machine, ranking)
        if changed and machine.rank == 0:
            names = ", ".join(f"{name} {words}" for name, words in changed.items())
            warnings.warn(f"{run} goes on with other settings: {names}", stacklevel=2)
            (run / "results.json").unlink(missing_ok=True)
            sync(run)  # else the run could be complete with these settings
            write_json(run / "config.json", to_dict(config))
        return _train(run, shards, domains, step, show, end)


def _keep_sources(run: Path, shards: Shards, domains: Domains, machine: Machine) -> None:
    """Write where the shards of a run are now; refuse other old ones, and tell another dtype."""
    manifest = read_manifest(run)
    old, evaluated = domains.get("old"), manifest.get("also_evaluate")
    require(
        not (old and evaluated) or old.digest == evaluated["sha256"],
        f"train.also_evaluate {old and old.folder} does not hold the shards that {run} began with: "
        "their losses could not be compared; choose another --out",
    )
    manifest["shards"]["folder"] = str(shards.folder)
    if old and evaluated:
        evaluated["folder"] = str(old.folder)
    write_json(run / "manifest.json", manifest)
    now = str(machine.dtype).removeprefix("torch.")
    before = (manifest["sessions"] or [{}])[-1].get("dtype", now).removeprefix("torch.")
    if before != now:
        told = f"in {now}, before in {before}; --set train.precision={before} keeps it"
        warnings.warn(f"{run} goes on {told}", stacklevel=2)


def _keep_tokenizer(run: Path, shards: Shards) -> None:
    """Write the run's tokenizer again where it is damaged; the shards of the run have the same."""
    try:
        Tokenizer.load(run / "tokenizer")
    except UserError:
        told = f"{run / 'tokenizer'} is damaged; it is written again, as {shards.folder} has it"
        warnings.warn(told, stacklevel=2)
        shutil.rmtree(run / "tokenizer", ignore_errors=True)
        shards.tokenizer.save(run / "tokenizer")


def _require_begun(run: Path, config: PretrainConfig) -> None:
    """Refuse other weights than a run began with, which no checkpoint holds yet."""
    manifest = read_manifest(run)
    start = manifest.get("init_from") or {}
    known = {"train.init_from": start, "generator.start_folder": start.get("generator")}
    for name, described in (known | {"generator.frozen_run": manifest.get("generator")}).items():
        at = attrgetter(name)(config)
        require(
            not described or describe_weights(at)["sha256"] == described["sha256"],
            f"{name} {at} does not hold the weights that {run} began with; choose another --out",
        )


def _hold(run: Path, machine: Machine) -> AbstractContextManager[None]:
    """Lock the run folder, which process 0 writes."""
    return hold(run / LOCK) if machine.rank == 0 else nullcontext()


@contextmanager
def _writing(run: Path) -> Iterator[None]:
    """Turn an OSError (full disk, missing permission) into a UserError that says how to resume."""
    try:
        yield
    except BrokenPipeError:  # the reader of the standard output has gone; no file has failed
        raise
    except OSError as error:
        what = f"{error.filename or run}: {error.strerror or error}"
        if (run / "config.json").exists():
            what += "; checkpoints written before are whole: "
            what += command("pretrain", "--resume", run)
        raise UserError(what) from None


def _open_domains(shards: Shards, config: PretrainConfig, machine: Machine, show: Show) -> Domains:
    """Return the shards to evaluate on; those at URLs, and the run's own, are copied here."""
    require_equal_shares(config, machine)
    domains = open_domains(shards, config, verify=machine.rank == 0)

    def tell(done: int, total: int) -> None:
        if machine.rank == 0:
            show({"part": "fetching", "done": done, "total": total})

    fetch_shards([shards, *domains.values()], tell)
    return domains


def _build(
    config: PretrainConfig,
    shards: Shards,
    machine: Machine,
    run: Path,
    start: SavedModel | None,
    show: Show,
) -> Objective:
    """Return the initialised objective, on the device; `start` is None if a checkpoint follows."""
    # Counting reads every token of the shards, so it is done only when needed.
    initial, frequencies_V, embeddings_VE = config.train.initial_weights, None, None
    # A checkpoint and process 0 replace the weights of others, which need no start.
    is_new = from_rank_0(not list_checkpoints(run))
    if (initial != "bert" and is_new) or config.generator.kind == "unigram" or start:
        frequencies_V = count_tokens(shards)
    if initial == "cooccurrence" and machine.rank == 0 and is_new:
        show({"part": "counting", "step": 0})
        sizes, seed = config.model, config.train.seed
        embeddings_VE = embed_tokens(shards, sizes.embedding_size, sizes.initializer_range, seed)
    model = build_model(config, shards.tokenizer, machine, frequencies_V, embeddings_VE)
    if is_new:
        if start and frequencies_V is not None:
            load_start(model, config, start, frequencies_V)
        if config.generator.kind == "frozen":
            load_network(model.networks["generator"], read_frozen(config, shards))
        for parameter in model.parameters():
            spread(None, parameter)
    return model


def _create(
    run: Path, shards: Shards, domains: Domains, step: Step, start: SavedModel | None
) -> None:
    """Write a run folder with tokenizer, manifest and settings."""
    config = step.config
    source = {"folder": str(shards.folder), "sha256": shards.digest}
    manifest = {"shards": source, "seed": config.train.seed, "sessions": []}
    if start:
        old = domains.get("old")
        manifest["init_from"] = describe_start(step.model, config, start)
        manifest["also_evaluate"] = old and {"folder": str(old.folder), "sha256": old.digest}
    if config.generator.kind == "frozen":
        manifest["generator"] = describe_weights(config.generator.frozen_run)
    with new_folder(run) as folder:
        shards.tokenizer.save(folder / "tokenizer")
        write_json(folder / "manifest.json", manifest)
        write_json(folder / "config.json", to_dict(config))


class Due(NamedTuple):
    """What follows a step."""

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
        """Return what follows a step, where a signal may ask to stop or to save, or it is late."""
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


def _train(
    run: Path, shards: Shards, domains: Domains, step: Step, show: Show, end: float
) -> dict[str, Any]:
    """Train from the newest checkpoint on, and return the contents of results.json."""
    with closing(step), _begin(run, shards, domains, step, show, end) as session:
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
    learning_rate: float = 0.0
    """Of the last step."""

    def take(self, number: int) -> None:
        """Run the step with this number."""
        step, window, was_compiled = self.step, self.window, self.step.compiled
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
        """Return what follows a step; the processes agree."""
        requests = self.requests
        told, late, save = any_rank(requests.stops, time.monotonic() >= self.end, requests.saves)
        config, stages = self.step.config, self.step.model.stages
        return Due.after(done, config, stages, told=told, late=late, save=save)

    def record(self, done: int) -> None:
        """End the window with a record; a run whose losses stay not finite ends, saved."""
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

    def save(self, *, is_last: bool) -> None:
        """Begin to write a checkpoint; if it is the last of the session, wait until it is there."""
        step, self.requests.saves = self.step, False
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
            self.journal.evaluate(done)

    def evaluate_at_start(self) -> None:
        """Evaluate if the run begins, or stopped before this evaluation."""
        self.step.model.begin_step(self.first_step)
        is_due = evaluates(self.step.config, self.first_step)
        if from_rank_0(is_due and not self.journal.is_evaluated(self.first_step)):
            self.evaluate(self.first_step)


@contextmanager
def _begin(
    run: Path, shards: Shards, domains: Domains, step: Step, show: Show, end: float
) -> Iterator[Session]:
    """Yield a session that begins at the newest checkpoint, and end what it has opened."""
    train, machine = step.config.train, step.machine
    totals = _load_newest(run, step)
    peak = machine.measure_peak() * machine.num_ranks
    examples = Examples(
        shards.train, shards.tokenizer, step.config.examples, train.seed, shards.mixture
    )
    batches = examples.batches(totals.step, train.batch_size)
    with heed_signals() as requests, ExitStack() as stack:
        journal = (
            Journal(run, shards, examples, domains, step, show, totals, peak, stack)
            if machine.rank == 0
            else SilentJournal()
        )
        stack.enter_context(_without_collector())
        window = Window(step, totals)
        yield Session(run, step, totals.step, end, batches, journal, window, requests)


def _load_newest(run: Path, step: Step) -> Totals:
    """Load the newest intact checkpoint, if there is one, on all processes; return its totals."""
    totals, checkpoint = Totals(), None
    if step.machine.rank == 0 and list_checkpoints(run):
        _, checkpoint = find_checkpoint(run)
        set_damaged_aside(run, checkpoint)
        totals = read_totals(run, checkpoint)
    totals = from_rank_0(totals)
    if totals.step:
        for stage in range(1, step.model.stage_at(totals.step - 1) + 1):
            step.begin_stage(stage)
        state = read_state(checkpoint) if checkpoint else None
        load_state(state, step.model, step.optimizer, step.memory)
    return totals


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
