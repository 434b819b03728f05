"""What a session writes into the run folder: records, checkpoints, evaluations, skipped rows."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from electra.config import require
from electra.corpus.examples import Examples
from electra.corpus.shards import Shards
from electra.files import write_json
from electra.method.flops import count_run, count_true
from electra.pretraining.alarms import Alarms
from electra.pretraining.domains import DomainLosses, Domains
from electra.pretraining.evaluation import evaluate, heldout_batches, view_rows
from electra.pretraining.guard import Skipped, write_skipped
from electra.pretraining.step import Step
from electra.runs.checkpoint import State, describe_networks, write_checkpoint
from electra.runs.metrics import MetricsLog, read_metrics
from electra.runs.saving import Saver

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
