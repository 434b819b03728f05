"""What keeps steps even and shows where their time goes: the garbage collector, and a profile."""

import gc
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from torch.profiler import profile, schedule

from electra.checkpoints.checkpoint import Saver, State, describe_networks, write_checkpoint
from electra.checkpoints.metrics import MetricsLog, read_metrics
from electra.config import PretrainConfig, TrainConfig
from electra.errors import require
from electra.files import write_json
from electra.method.flops import count_run, count_true
from electra.pretraining.domains import DomainLosses, Domains
from electra.pretraining.evaluation import evaluate, heldout_batches, view_rows
from electra.pretraining.guard import Skipped, write_skipped
from electra.pretraining.step import Step
from electra.shards.examples import Examples
from electra.shards.store import Shards

PROFILED_STEPS = 3
TRACE = "trace.json.gz"


@contextmanager
def without_collector() -> Iterator[None]:
    """Keep Python's garbage collector out of the context, where it would pause steps.

    The steps make no cycles, so that reference counts free what they leave. Objects that live
    already are never searched again.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


@contextmanager
def profiled(run: Path, train: TrainConfig, first_step: int) -> Iterator[Callable[[], None]]:
    """Yield what to call after each step: `train.profile_step` steps on, a profile is recorded.

    The file TRACE in the run folder has the operations on the CPU and on the device in the format
    of Chrome's traces. One step before the first recorded one warms the profiler up.

    Args:
        run: The run folder.
        train: The settings.
        first_step: Steps done before this session. A session that begins later records nothing.
    """
    before = train.profile_step - first_step - 1
    if not train.profile_step or before < 0:
        yield lambda: None
        return
    plan = schedule(skip_first=before, wait=0, warmup=1, active=PROFILED_STEPS, repeat=1)
    path = str(run / TRACE)
    with profile(
        schedule=plan,
        on_trace_ready=lambda found: found.export_chrome_trace(path),
        acc_events=True,  # there is one cycle; torch 2.11 would warn of further ones
    ) as found:
        yield found.step


PATIENCE = 5
"""Records in a row with a bad sign that raise its alarm."""
LOW_REPLACED_SHARE = 4 / 15
"""Share of the masked tokens that are replaced, below which the discriminator has little to learn:
4% of all tokens where 15% are masked."""
WORSE_THAN_CHANCE = 1.2
"""Generator's loss divided by that of a uniform guess, above which a run diverges."""
LOST_SHARE = 0.1
"""Share of what the discriminator had learnt, before a continued run, whose loss raises an alarm.
What it has learnt is the distance of its loss from that of a constant prediction."""


class Alarms:
    """Reads the records of a session, and tells of each bad sign once while it lasts.

    Args:
        config: The settings of the run.
    """

    def __init__(self, config: PretrainConfig):
        self.config = config
        self.speeds: list[float] = []
        self.num_bad = {"discriminator": 0, "generator": 0, "loss": 0, "speed": 0}
        self.before: dict[str, float] = {}
        """First loss of each domain of a continued run."""
        self.is_worse = {"new": False, "old": False}

    def read(self, record: Mapping[str, Any]) -> list[str]:
        """Return the alarms that a training record raises."""
        loss, constant = record.get("disc_loss"), record.get("constant_disc_loss")
        rate, speed = record.get("replaced_rate"), record["tokens_per_second"]
        start = self.config.optimizer.warmup_steps + self.config.second_stage
        is_warm = record["step"] > start
        low = LOW_REPLACED_SHARE * self.config.method.mask_prob
        is_trained = self.config.method.scheme != "adversarial"  # which only measures it
        mlm_loss = record.get("mlm_loss") if is_trained else None
        chance = math.log(self.config.model.vocab_size)
        usual = statistics.median(self.speeds) if self.speeds else 0.0
        self.speeds.append(speed)
        signs = {
            "discriminator": (
                is_warm and loss is not None and loss >= constant,
                "the discriminator is no better than a constant prediction, after the warm-up of "
                "the learning rate: it learns nothing yet; a lower optimizer.learning_rate, a "
                "smaller generator or a longer warm-up may help",
            ),
            "generator": (
                rate is not None and rate < low,
                f"fewer than {low:.1%} of the tokens are replaced: the generator is too strong, "
                "and the discriminator has little to learn; a smaller generator.hidden_fraction "
                "makes it weaker",
            ),
            "loss": (
                mlm_loss is not None and mlm_loss > WORSE_THAN_CHANCE * chance,
                f"mlm_loss is above {chance:.2f}, the loss of a uniform guess: the run "
                "diverges; a lower optimizer.learning_rate or a longer warm-up may help",
            ),
            "speed": (
                speed < usual / 2,
                f"the speed has fallen to less than half of {usual:,.0f} tokens per second, the "
                "median of this session: another program may use the machine",
            ),
        }
        raised = []
        for name, (is_bad, text) in signs.items():
            self.num_bad[name] = self.num_bad[name] + 1 if is_bad else 0
            if self.num_bad[name] == PATIENCE:
                raised.append(text)
        return raised

    def read_heldout(self, record: Mapping[str, Any]) -> list[str]:
        """Return the alarms that a held-out record of a continued run raises, by domain."""
        raised = []
        for domain, was_worse in self.is_worse.items():
            loss, constant = (record.get(f"{domain}_{n}disc_loss") for n in ("", "constant_"))
            if loss is None or constant is None:
                continue
            before = self.before.setdefault(domain, loss)
            learnt = constant - before
            lost = (loss - before) / learnt if learnt > 0 else 0.0
            self.is_worse[domain] = is_worse = lost > LOST_SHARE
            if is_worse and not was_worse:
                raised.append(
                    f"on the {domain} text the discriminator's loss is {loss:.4f}, and was "
                    f"{before:.4f} before its first step: {lost:.0%} of what it had learnt there "
                    "is lost; a lower optimizer.learning_rate, more generator.warmup_steps, or old "
                    "text among the new may help"
                )
        return raised


Show = Callable[[dict[str, Any]], None]


class Journal:
    """Writes a run folder: a context manager. Of the processes of a run, process 0 has one.

    Args:
        run: The run folder.
        shards: The shards of the run.
        domains: The shards whose held-out parts tell whether a continued run makes a model worse.
        step: The step, with the settings, the model and the optimizer.
        show: Called with each record and alarm.
        first_step: Steps done before this session.
        peak: Measured FLOP/s of a large matrix product, on all processes together.

    Attributes:
        last: Last record of each part before this session.
    """

    def __init__(
        self,
        run: Path,
        shards: Shards,
        domains: Domains,
        step: Step,
        show: Show,
        first_step: int,
        peak: float,
    ):
        self.run, self.step, self.show, self.peak = run, step, show, peak
        self.config, self.model = step.config, step.model
        self.tokenizer = shards.tokenizer
        config = self.config
        self.examples = Examples(
            shards.train, self.tokenizer, config.examples, config.train.seed, shards.mixture
        )
        self.heldout = heldout_batches(shards, config)
        self.flops_per_token = count_true(self.model, config.examples.sequence_length)
        self.networks = describe_networks(self.model)
        self.micro_batch_size = -(-config.train.micro_batch_size // step.machine.num_ranks)
        self.alarms = Alarms(config)
        self.log = MetricsLog(run, first_step)
        self.last = self.log.last
        self.domains = DomainLosses(run, domains, step, first_step, self.micro_batch_size)
        for record in read_metrics(run / "metrics.jsonl") if domains else ():
            self.alarms.read_heldout(record)
        self.saver = Saver(run)
        self.open = ExitStack()
        self.open.enter_context(closing(self.log))
        self.open.push(self.saver)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait for the checkpoint that is being written, and close the files."""
        self.open.__exit__(kind, error, trace)

    def write(self, record: dict[str, Any]) -> None:
        """Write a record to metrics.jsonl, and show it."""
        try:
            self.log.write(record)
        except OSError:
            self.saver.wait()  # a checkpoint that does not fit on the disk is removed again
            self.log.flush()
        self.show(record)

    def write_window(
        self, done: int, means: dict[str, Any], skipped: Sequence[Skipped], learning_rate: float
    ) -> None:
        """Write the training record of a window, the rows of its skipped steps, and its alarms.

        Args:
            done: Steps done.
            means: The means over the window.
            skipped: The skipped steps of the window.
            learning_rate: Learning rate of the last step.
        """
        size, length = self.config.train.batch_size, self.config.examples.sequence_length
        flops = self.flops_per_token * done * size * length
        speed = self.flops_per_token * means["tokens_per_second"]
        rate = {"flops": flops, "mfu": speed / self.peak, "learning_rate": learning_rate}
        record = {"part": "train", "step": done, **means, **rate}
        epochs = self.examples.epochs(done * size)
        record |= {f"epochs of {name}": passes for name, passes in epochs.items()}
        self.write(record)
        for each in skipped:
            write_skipped(self.run, each, self.examples.batch(each.step, size), self.tokenizer)
        for text in self.alarms.read(record):
            self.show({"part": "alarm", "step": done, "text": text})

    def save(self, done: int, state: State) -> None:
        """Begin to write a checkpoint in the background."""
        train = self.config.train
        keep_every = train.keep_every * train.save_every
        write = partial(write_checkpoint, self.run, done, state, self.networks)
        self.saver.save(partial(write, train.keep_checkpoints, keep_every))

    def finish(self) -> None:
        """Wait until the checkpoint is written.

        Raises:
            OSError: The checkpoint could not be written.
        """
        self.saver.finish()

    def evaluate(self, done: int) -> None:
        """Evaluate on held-out rows, and write the record."""
        device = self.step.machine.device
        measures = evaluate(self.model, self.heldout, device, self.micro_batch_size)
        of_domains = self.domains.measure(done)
        record = {"part": "heldout", "step": done, **measures, **of_domains}
        self.write(record)
        for text in self.alarms.read_heldout(record):
            self.show({"part": "alarm", "step": done, "text": text})

    def write_results(self) -> dict[str, Any]:
        """Write samples.json and results.json, and return the contents of the latter."""
        device, train = self.step.machine.device, self.config.train
        if self.heldout and (
            samples := view_rows(
                self.model, self.heldout[0], self.tokenizer, device, self.micro_batch_size
            )
        ):
            write_json(self.run / "samples.json", samples)
        path = self.run / "metrics.jsonl"
        last = {record["part"]: record for record in read_metrics(path)}
        for part in ("train", "heldout") if train.evaluate_rows else ("train",):
            require(
                last.get(part, {}).get("step") == train.steps,
                f"{path} has no {part} record of step {train.steps}: results.json cannot be "
                "written",
            )
        results = {
            "steps": last["train"]["step"],
            "tokens": last["train"]["tokens"],
            "seconds": last["train"]["seconds"],
            "flops": count_run(self.model, self.config),
            "heldout": last.get("heldout"),
        }
        write_json(self.run / "results.json", results)
        return results
