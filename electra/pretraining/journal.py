"""The records of a run: measures between two records, alarms, and the writer of the run folder.

`Window` collects the outcomes of steps on every process. `Journal` writes on process 0;
`SilentJournal` replaces it on the others. `Alarms` reads what is written.
"""

import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from operator import mul
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import profile, schedule

from electra.checkpoints.checkpoint import STATE, Saver, State, describe_networks, write_checkpoint
from electra.checkpoints.manifest import amend_session, begin_session
from electra.checkpoints.metrics import MetricsLog, read_metrics
from electra.files import make_folder, read_object, write_facts
from electra.method.flops import count_run, count_stages
from electra.pretraining.evaluation import Domains, evaluate, heldout_rows, view_rows
from electra.pretraining.guard import ACCEPTED, NOT_FINITE, REASONS
from electra.pretraining.step import Outcome, Step
from electra.settings import to_dict
from electra.shards.examples import Examples
from electra.shards.store import Shards
from electra.training.config import PretrainConfig, TrainConfig
from electra.training.distributed import gather_over_ranks, sum_over_ranks

PROFILED_STEPS = 3
TRACE = "trace.json.gz"
Show = Callable[[dict[str, Any]], None]


class Skipped(NamedTuple):
    """A skipped step."""

    step: int
    """Number of the step, from 0."""
    verdict: int
    """NOT_FINITE or SPIKE."""
    grad_norm: float


class Totals(NamedTuple):
    """The counts of a run over all sessions; a checkpoint holds it in its state.json."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    skipped: int = 0
    records: int = 0
    """Records of metrics.jsonl, but for the evaluation after the last step."""


def read_totals(checkpoint: Path) -> Totals:
    """Return the totals of a run at one of its checkpoints."""
    facts = read_object(checkpoint / STATE)
    return Totals(*(facts[name] for name in Totals._fields))


class Window:
    """The steps between two records, collected on the device without waiting for the device.

    `totals` are those of the run before.
    """

    def __init__(self, step: Step, totals: Totals):
        self.step = step
        self.clock = Clock(totals, step.machine.wait)
        self.num_skipped = totals.skipped
        self.num_bad = 0
        """Steps in a row, up to the last one, without a finite loss and gradient."""
        self.most_bad = 0
        """Largest such number in the steps of the last record."""
        self.num_real = torch.zeros((), dtype=torch.int64, device=step.machine.device)
        self.grad_norms: list[torch.Tensor] = []
        self.verdicts: list[torch.Tensor] = []

    @property
    def totals(self) -> Totals:
        """Totals up to the last record; only the journal knows the number of records."""
        clock = self.clock
        return Totals(clock.step, clock.tokens, clock.seconds, self.num_skipped)

    @property
    def num_tokens(self) -> int:
        """Tokens of the run up to the last step; waits for the device."""
        return self.clock.tokens + int(self.num_real)

    def add(self, outcome: Outcome) -> None:
        """Add the outcome of the next step."""
        self.num_real += outcome.num_real
        self.grad_norms.append(outcome.grad_norm.clone())
        self.verdicts.append(outcome.verdict.clone())

    def record(self, done: int, steps: int) -> tuple[dict[str, Any], list[Skipped]]:
        """Return the means over the window and its skipped steps, and begin the next window.

        All processes of a step call this together, and get the same.
        """
        norms = torch.stack(self.grad_norms).cpu()
        verdicts = torch.stack(self.verdicts).cpu()
        skipped = [
            Skipped(done - len(verdicts) + place, int(verdicts[place]), norms[place].item())
            for place in verdicts.nonzero().flatten().tolist()
        ]
        self.num_skipped += len(skipped)
        self.most_bad = 0
        for verdict in verdicts.tolist():
            self.num_bad = self.num_bad + 1 if verdict == NOT_FINITE else 0
            self.most_bad = max(self.most_bad, self.num_bad)
        accepted = norms[verdicts == ACCEPTED]
        record = {
            **self.clock.record(done, steps, int(self.num_real)),
            **self._compare_ranks(),
            **self.step.measures.record(sum_over_ranks),
            "grad_norm": accepted.mean().item() if len(accepted) else math.nan,
            "skipped": self.num_skipped,
        }
        self.num_real.zero_()
        self.grad_norms, self.verdicts = [], []
        self.clock.waited = 0.0
        return record, skipped

    def _compare_ranks(self) -> dict[str, Any]:
        """Return waiting and peak memory, the most of any process; of several also the least."""
        own = torch.tensor([self.clock.waited, self.step.machine.peak_memory], dtype=torch.float64)
        of_ranks = gather_over_ranks(own)
        record: dict[str, Any] = {}
        for name, of_rank in zip(("data_seconds", "peak_memory"), of_ranks.T, strict=True):
            record[name] = of_rank.max().item()
            if len(of_rank) > 1:
                record |= {
                    f"{name}_least": of_rank.min().item(),
                    f"{name}_rank": int(of_rank.argmax()),
                }
        return record


class Clock:
    """Training time over all sessions of a run, seconds, without evaluations and checkpoints.

    Speed and remaining time leave out the steps that also compiled or captured. `wait` waits until
    the device has finished all queued work, and `now` returns the current time.
    """

    def __init__(
        self, totals: Totals, wait: Callable[[], None], now: Callable[[], float] = time.perf_counter
    ):
        self.step, self.tokens, self.seconds = totals[:3]
        self.wait, self.now = wait, now
        self.since = now()
        self.waited = 0.0
        self.prepared = (0.0, 0, 0)
        """Seconds, tokens and steps of a log window's steps that also compiled or captured."""

    def count_wait(self, began: float) -> None:
        """Count the time since `began` as time waiting for data."""
        self.waited += self.now() - began

    def leave_out(self, began: float, new_tokens: int) -> None:
        """Leave the step since `began` out of the speed; it has `new_tokens` real tokens."""
        self.wait()
        seconds, tokens, steps = self.prepared
        seconds += self.now() - began
        self.prepared = seconds, tokens + new_tokens, steps + 1

    def record(self, step: int, steps: int, new_tokens: int) -> dict[str, Any]:
        """Return progress, speed and remaining time of a run, for a record of metrics.jsonl."""
        now = self.now()
        seconds, self.since = now - self.since, now
        new_steps = step - self.step
        (spent, tokens, count), self.prepared = self.prepared, (0.0, 0, 0)
        self.seconds += seconds
        self.tokens += new_tokens
        self.step = step
        preparing = {"preparing_seconds": spent} if count else {}
        if count < new_steps:
            seconds, new_tokens, new_steps = seconds - spent, new_tokens - tokens, new_steps - count
        return {
            "tokens": self.tokens,
            "seconds": self.seconds,
            **preparing,
            "tokens_per_second": new_tokens / seconds,
            "seconds_left": seconds / new_steps * (steps - step),
        }

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the time inside the context from the training time; queued steps count."""
        self.wait()
        began = self.now()
        yield
        self.since += self.now() - began


PATIENCE = 5
"""Records in a row with a bad sign that raise its alarm."""
LOW_REPLACED_SHARE = 4 / 15
"""Share of the masked tokens that are replaced, below which the discriminator has little to learn:
4% of all tokens where 15% are masked."""
WORSE_THAN_CHANCE = 1.2
"""Generator's loss divided by that of a uniform guess, above which a run diverges."""
LOST_SHARE = 0.1
"""An alarm is raised if a continued run forgets this share of what the discriminator had learnt,
that is of the distance of its loss from that of a constant prediction. Other objectives have no
such prediction; for them it is a share of their first loss."""


class Alarms:
    """Reads the records of a session, and reports each bad sign once while it lasts."""

    def __init__(self, config: PretrainConfig):
        self.config = config
        self.speeds: dict[bool, list[float]] = {False: [], True: []}
        """Speeds of the first of two stages, whose steps are other ones, and of the second."""
        self.num_bad = {"discriminator": 0, "generator": 0, "loss": 0, "speed": 0}
        self.before: dict[str, float] = {}
        """First loss of each domain of a continued run."""
        self.raised: list[str] = []
        """Alarms of the last held-out record."""
        self.is_worse = {"new": "", "old": ""}
        """The alarm of each domain at the last held-out record; empty: there is none."""

    def read(self, record: Mapping[str, Any]) -> list[str]:
        """Return the alarms that a training record raises."""
        raised = []
        for name, (is_bad, text) in self._find_signs(record).items():
            self.num_bad[name] = self.num_bad[name] + 1 if is_bad else 0
            if self.num_bad[name] == PATIENCE:
                raised.append(text)
        return raised

    def _find_signs(self, record: Mapping[str, Any]) -> dict[str, tuple[bool, str]]:
        """Return for each bad sign whether a record has it, and what it means."""
        config, method = self.config, self.config.method
        loss, mlm_loss, right, speed = (
            record.get(name, math.nan)  # a comparison with NaN is no sign
            for name in ("disc_loss", "mlm_loss", "sampled_accuracy", "tokens_per_second")
        )
        is_warm = record["step"] > config.optimizer.warmup_steps + config.second_stage
        chance = math.log(config.model.vocab_size)
        is_trained = method.scheme != "adversarial"  # which only measures the likelihood
        speeds = self.speeds[record["step"] > config.second_stage]
        usual = statistics.median(speeds) if speeds else 0.0
        speeds.append(speed)
        return {
            "discriminator": (
                is_warm and loss >= record.get("constant_disc_loss", math.nan),
                "the discriminator is no better than a constant prediction, after the warm-up of "
                "the learning rate: it learns nothing yet; a lower optimizer.learning_rate, a "
                "smaller generator or a longer warm-up may help",
            ),
            "generator": (
                "replaced_rate" in record and 1 - right < LOW_REPLACED_SHARE,
                f"fewer than {LOW_REPLACED_SHARE:.0%} of the masked tokens are replaced: the "
                "generator is too strong, and the discriminator has little to learn; a smaller "
                "one, or a higher generator.temperature, makes it weaker",
            ),
            "loss": (
                is_trained and mlm_loss > WORSE_THAN_CHANCE * chance,
                f"mlm_loss is above {chance:.2f}, the loss of a uniform guess: the run "
                "diverges; a lower optimizer.learning_rate or a longer warm-up may help",
            ),
            "speed": (
                speed < usual / 2,
                f"the speed has fallen to less than half of {usual:,.0f} tokens per second, the "
                "median of this session: another program may use the machine",
            ),
        }

    def read_heldout(self, record: Mapping[str, Any]) -> list[str]:
        """Return the alarms that a held-out record of a continued run raises, by domain."""
        raised = []
        for domain, was_worse in self.is_worse.items():
            disc_loss = record.get(f"{domain}_disc_loss")
            loss = record.get(f"{domain}_loss") if disc_loss is None else disc_loss
            if loss is None:
                continue
            before = self.before.setdefault(domain, loss)
            learnt = before
            if disc_loss is not None:
                learnt = (record.get(f"{domain}_constant_disc_loss") or 0.0) - before
            lost = (loss - before) / learnt if learnt > 0 else 0.0
            whose, told = "the loss", f"it has risen by {lost:.0%}"
            if disc_loss is not None:
                whose = "the discriminator's loss"
                told = f"{lost:.0%} of what it had learnt there is lost"
            warmup = "more generator.warmup_steps, " if self.config.method.has_generator else ""
            self.is_worse[domain] = (
                f"on the {domain} text {whose} is {loss:.4f}, and was {before:.4f} before its "
                f"first step: {told}; a lower optimizer.learning_rate, {warmup}or old text among "
                "the new may help"
            ) * (lost > LOST_SHARE)
            if self.is_worse[domain] and not was_worse:
                raised.append(self.is_worse[domain])
        self.raised = raised
        return raised

    def read_end(self) -> list[str]:
        """Return the alarms of a continued run that last at its end, and were raised before."""
        return [text for text in self.is_worse.values() if text and text not in self.raised]


class Journal:
    """Writes a run folder on process 0: records, checkpoints, profile and results.

    `totals` were done before this session; `peak` is the FLOP/s of a large matrix product, on all
    processes together; `stack` closes the files and waits for the checkpoint being written.
    """

    def __init__(
        self,
        run: Path,
        shards: Shards,
        examples: Examples,
        domains: Domains,
        step: Step,
        show: Show,
        totals: Totals,
        peak: float,
        stack: ExitStack,
    ):
        self.run, self.step, self.show, self.peak = run, step, show, peak
        self.config, self.model = step.config, step.model
        self.tokenizer, self.examples = shards.tokenizer, examples
        self.networks = describe_networks(self.model)
        self.flops_per_token = count_stages(self.model, self.config.examples.sequence_length)
        machine, first_step = step.machine, totals.step
        begin_session(
            run,
            first_step=first_step,
            device=machine.name,
            dtype=str(machine.dtype),
            processes=machine.num_ranks,
            peak_flops_per_second=peak,
            step=step.describe(),
            flops=count_run(self.model, *self.config.amount),
        )
        self.heldout = heldout_rows(shards, self.config)
        self.domains = self._open_domains(domains, first_step)
        self.alarms = Alarms(self.config)
        name, settings = self.config.train.tracker, to_dict(self.config)
        tracker = None
        if name != "none":
            from electra.checkpoints.trackers import Tracker

            tracker = Tracker(name, run, settings)
        self.log = MetricsLog(run, first_step, tracker)
        self._warn_of_lost_records(totals)
        self.before: dict[str, Any] = {}
        """The first held-out value of each measure of a continued run."""
        for record in read_metrics(run / "metrics.jsonl") if domains else ():
            self.alarms.read_heldout(record)
            self.before = record | self.before if record["part"] == "heldout" else self.before
        self.saver = Saver(run)
        stack.enter_context(closing(self.log))
        self.copier = None
        if self.config.train.copy_to:
            from electra.checkpoints.copies import copying

            self.copier = stack.enter_context(copying(run, self.config.train.copy_to))
        stack.push(self.saver)
        self.end_of_step = stack.enter_context(
            _profiled(run / TRACE, self.config.train, first_step)
        )
        """To be called after each step, for the profile."""
        if step.compiled:
            show({"part": "compiling", "step": first_step})

    def _open_domains(self, domains: Domains, first_step: int) -> Any:
        """Return the losses by domain of a continued run; None without held-out rows."""
        heldout = {name: heldout_rows(each, self.config) for name, each in domains.items()}
        by_domain = {name: rows for name, rows in heldout.items() if rows is not None}
        if not by_domain:
            return None
        from electra.pretraining.domains import DomainLosses

        return DomainLosses(self.run, by_domain, self.step, first_step)

    def _warn_of_lost_records(self, totals: Totals) -> None:
        """Warn if metrics.jsonl has fewer records than the checkpoint counts."""
        lost = totals.records - self.log.num_records + self.is_evaluated(totals.step)
        if lost > 0:
            warnings.warn(
                f"{self.log.path} lacks {lost:,} of {totals.records:,} records up to step "
                f"{totals.step:,}; curves have gaps there, and the totals are those of the "
                "checkpoint",
                stacklevel=3,
            )

    def is_evaluated(self, done: int) -> bool:
        """Return whether the last evaluation was the one after a step."""
        return bool(self.log.last.get("heldout", {}).get("step") == done)

    def amend(self) -> None:
        """Write to the manifest that the form of the step has changed."""
        amend_session(self.run, step=self.step.describe())

    def _write(self, record: dict[str, Any], read: Callable[[dict[str, Any]], list[str]]) -> None:
        """Write a record to metrics.jsonl, and show it and the alarms that it raises."""
        try:
            self.log.write(record)
        except OSError:
            self.saver.wait()  # a checkpoint that does not fit on the disk is removed again
            self.log.flush()
        self.show(record)
        for text in read(record):
            self.show({"part": "alarm", "step": record["step"], "text": text})

    def write_window(
        self, done: int, means: dict[str, Any], skipped: Sequence[Skipped], learning_rate: float
    ) -> None:
        """Write the record of a window, its alarms, and the rows of its skipped steps."""
        epochs = self.examples.epochs(done * self.config.train.batch_size)
        now = self.flops_per_token[done > self.config.second_stage]
        record = {
            "part": "train",
            "step": done,
            **means,
            "flops": self._count_flops(done),
            "mfu": now * means["tokens_per_second"] / self.peak,
            "learning_rate": learning_rate,
            **{f"epochs of {name}": passes for name, passes in epochs.items()},
        }
        self._write(record, self.alarms.read)
        for each in skipped:
            self._write_skipped(each)

    def _count_flops(self, done: int) -> float:
        """Return the true operations of the run up to a step."""
        second, config = self.config.second_stage, self.config
        flops = sum(map(mul, self.flops_per_token, (min(done, second), max(0, done - second))))
        return flops * config.train.batch_size * config.examples.sequence_length

    def _write_skipped(self, skipped: Skipped) -> None:
        """Write the rows of a skipped step to `<run>/skipped/step-N.json`."""
        folder = self.run / "skipped"
        make_folder(folder)
        batch = self.examples.batch(skipped.step, self.config.train.batch_size)
        rows = [" ".join(self.tokenizer.tokens(row)) for row in batch.input_ids_BL.tolist()]
        write_facts(
            folder / f"step-{skipped.step:08d}.json",
            {
                "step": skipped.step,
                "reason": REASONS[skipped.verdict],
                "grad_norm": str(skipped.grad_norm),
                "rows": rows,
            },
        )

    def save(self, totals: Totals, state: State) -> None:
        """Begin to write a checkpoint in the background."""
        train = self.config.train
        facts = {**totals._replace(records=self.log.num_records)._asdict(), **self.networks}
        keep = train.keep_checkpoints, train.keep_every * train.save_every

        def write() -> None:
            self.log.sync()
            checkpoint = write_checkpoint(self.run, totals.step, state, facts, *keep)
            if self.copier:
                self.copier.offer(checkpoint)

        if self.copier:
            self.copier.tell()
        self.saver.save(write)

    def finish(self) -> None:
        """Wait until the checkpoint is written, or raise the OSError that prevented it."""
        self.saver.finish()

    def evaluate(self, done: int, tokens: int) -> None:
        """Evaluate on held-out rows after so many steps and tokens, and write the record."""
        assert self.heldout is not None
        record = {
            "part": "heldout",
            "step": done,
            "tokens": tokens,
            "flops": self._count_flops(done),
            **evaluate(self.model, self.heldout, self.step.micro_rows),
            **(self.domains.measure(done) if self.domains else {}),
        }
        if self.domains:
            self.before = record | self.before
        self._write(record, self.alarms.read_heldout)

    def write_results(self, totals: Totals) -> dict[str, Any]:
        """Write samples.json and results.json, and return the contents of the latter."""
        self.log.sync()
        if self.heldout is not None:
            rows = self.step.micro_rows
            samples = view_rows(self.model, self.heldout, self.tokenizer, rows)
            if samples:
                write_facts(self.run / "samples.json", {"rows": samples})
        results = {
            "steps": totals.step,
            "tokens": totals.tokens,
            "seconds": totals.seconds,
            "flops": count_run(self.model, *self.config.amount),
            "heldout": self.log.last.get("heldout"),
            "before": self.before or None,
        }
        write_facts(self.run / "results.json", results)
        for text in self.alarms.read_end():
            self.show({"part": "alarm", "step": totals.step, "text": text})
        return results


class SilentJournal:
    """Replaces the Journal on all processes but process 0; writes and shows nothing."""

    def do_nothing(self, *given: object) -> None:
        """Do nothing."""

    is_evaluated = end_of_step = amend = write_window = do_nothing
    save = finish = evaluate = write_results = do_nothing


@contextmanager
def _profiled(path: Path, train: TrainConfig, first_step: int) -> Iterator[Callable[[], None]]:
    """Yield what to call after each step; steps from `train.profile_step` on are recorded."""
    before = train.profile_step - first_step - 1
    if not train.profile_step or before < 0:
        yield lambda: None
        return
    plan = schedule(skip_first=before, wait=0, warmup=1, active=PROFILED_STEPS, repeat=1)
    with profile(
        schedule=plan,
        on_trace_ready=lambda found: found.export_chrome_trace(str(path)),
        acc_events=True,  # there is one cycle; torch 2.11 would warn of further ones
    ) as found:
        yield found.step
