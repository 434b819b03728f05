"""Fine-tuning speed in examples per second, ours beside transformers' Trainer.

    python -m benchmarks.finetune --data glue/CoLA --tokenizer vocabulary --out finetune.json

trainer         Trainer with its defaults: float32, shuffled rows, batches padded to the longest row
trainer bf16    trainer with bf16=True
trainer best    trainer bf16 with batches of rows of similar length
ours            the loop of electra/finetuning/loop.py, as in `electra finetune`

All variants have the same sizes, initial weights, batch size, dropout, clipping and rows, and use
AdamW. Ours has one learning rate per layer, and so more parameter groups. Before the timing, both
networks must compute the same loss from the same weights, in float32 without dropout. A repeat is
one pass of each variant, in turn, over the same part of train. The setup before the first step
(networks, optimizers) is not timed.
"""

import argparse
import dataclasses
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from torch import Tensor

from electra.assignments import override
from electra.checkpoints.manifest import find_commit
from electra.checkpoints.names import ELECTRA
from electra.checkpoints.saved import SavedModel, SavedNetwork
from electra.errors import UserError, require
from electra.files import write_json, write_text
from electra.finetuning.loop import train_seed
from electra.finetuning.network import build_network, keep_tokens
from electra.finetuning.start import Job, TaskRows, encode_task
from electra.model.encoder import Encoder
from electra.model.initialisation import init_weights
from electra.model.task_heads import ClassifierHead
from electra.presets import FINETUNE_PRESETS, PRESETS
from electra.reports.rendering import Table, to_markdown
from electra.tasks.classification import Classification
from electra.tasks.config import FinetuneConfig
from electra.tasks.family import Task
from electra.tasks.registry import read_task
from electra.tasks.rows import Rows, make_batch
from electra.tokenizing.tokenizer import Tokenizer
from electra.training.machine import Machine, prepare_machine

TOLERANCE = 1e-4
"""Largest relative difference between losses of the same computation in float32."""
SHIFT = 20.0
"""Added before transformers' extra GELU and subtracted after it. For large inputs GELU is the
identity."""
TRAINERS: dict[str, dict[str, Any]] = {
    "trainer": {},
    "trainer bf16": {"bf16": True},
    "trainer best": {"bf16": True, "train_sampling_strategy": "group_by_length"},
}


class Ours:
    """The loop of electra/finetuning/loop.py."""

    name = "ours"

    def __init__(self, pretrained: SavedModel, task: Task, rows: TaskRows, config: FinetuneConfig):
        self.pretrained, self.task, self.rows, self.config = pretrained, task, rows, config
        self.machine = prepare_machine(config.device, config.precision, config.threads)
        self.dtype = self.machine.dtype

    def time_pass(self, items: Tensor) -> float:
        """Return the seconds of one pass over these examples of train."""
        train = self.rows.splits["train"].take(items)
        dev = train.take(torch.arange(min(len(train), self.config.batch_size)))
        asked = [self.task.examples["train"][item] for item in items[: len(dev)].tolist()]
        dev = dataclasses.replace(dev, examples=asked)
        rows = self.rows._replace(splits={"train": train, "dev": dev})
        job = Job(self.pretrained, self.task, self.config)
        run = train_seed(job, rows, self.machine, seed=0, progress=lambda record: None)
        return run.record["train_seconds"]

    def loss(self, items: Tensor) -> float:
        """Return the loss of one batch with the initial weights, in float32 without dropout."""
        network = build_network(
            self.pretrained,
            self.task.family,
            self.config,
            machine=Machine(),
            seed=0,
            from_scratch=False,
        ).eval()
        keep_tokens(network, self.rows.token_ids)
        batch = make_batch(self.rows.splits["train"], items, torch.device("cpu"))
        with torch.inference_mode():
            return self.task.family.loss(network(batch), batch).item()


class Clock(transformers.TrainerCallback):
    """Timer of an epoch in seconds, including data loading."""

    seconds = 0.0

    def on_epoch_begin(self, *_: Any, **__: Any) -> None:
        """Start the timer."""
        _wait()
        self.began = time.perf_counter()

    def on_epoch_end(self, *_: Any, **__: Any) -> None:
        """Stop the timer."""
        _wait()
        self.seconds = time.perf_counter() - self.began


class Theirs:
    """transformers' Trainer with its ElectraForSequenceClassification.

    Args:
        name: A key of TRAINERS.
        ours: The variant with the weights and settings to copy.
        rows: The rows of train with ids of the full vocabulary.
        folder: The folder of the tokenizer, also Trainer's output folder.
    """

    def __init__(self, name: str, ours: Ours, rows: Rows, folder: Path):
        self.name, self.config, self.folder = name, ours.config, folder
        self.dtype = torch.bfloat16 if TRAINERS[name].get("bf16") else torch.float32
        self.model = build_classifier(ours)
        self.features = describe_rows(rows)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.collator = transformers.DataCollatorWithPadding(tokenizer)

    def time_pass(self, items: Tensor) -> float:
        """Return the seconds of one pass over these examples of train."""
        config, clock = self.config, Clock()
        arguments = transformers.TrainingArguments(
            output_dir=str(self.folder),
            num_train_epochs=1,
            per_device_train_batch_size=config.batch_size,
            learning_rate=config.learning_rate,
            weight_decay=config.weight_decay,
            max_grad_norm=config.max_grad_norm,
            warmup_steps=config.warmup_fraction,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=not torch.cuda.is_available(),
            dataloader_pin_memory=torch.cuda.is_available(),
            **TRAINERS[self.name],
        )
        trainer = transformers.Trainer(
            model=self.model,
            args=arguments,
            train_dataset=[self.features[item] for item in items.tolist()],
            data_collator=self.collator,
            callbacks=[clock],
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
        return clock.seconds

    def loss(self, items: Tensor) -> float:
        """Return the loss of one batch with the initial weights, in float32 without dropout."""
        batch = self.collator([self.features[item] for item in items.tolist()])
        with torch.inference_mode():
            return self.model.to("cpu").eval()(**batch).loss.item()


def build_classifier(ours: Ours) -> Any:
    """Return transformers' classifier with our initial weights.

    Its head has an additional linear layer and a GELU. Their weights are set to the identity.
    """
    network = build_network(
        ours.pretrained,
        ours.task.family,
        ours.config,
        machine=Machine(),
        seed=0,
        from_scratch=False,
    )
    sizes, dense = network.encoder.config, cast(ClassifierHead, network.head).dense
    name, tokenizer = "ElectraForSequenceClassification", ours.pretrained.tokenizer
    values = ELECTRA.write_config(sizes, name, tokenizer) | {"num_labels": dense.out_features}
    model = transformers.ElectraForSequenceClassification(transformers.ElectraConfig(**values))
    weight, bias = dense.weight.detach(), dense.bias.detach()
    head = {
        "classifier.dense.weight": torch.eye(sizes.hidden_size),
        "classifier.dense.bias": torch.full((sizes.hidden_size,), SHIFT),
        "classifier.out_proj.weight": weight,
        "classifier.out_proj.bias": bias - SHIFT * weight.sum(dim=1),
    }
    model.load_state_dict(ELECTRA.to_theirs(network.encoder.state_dict()) | head)
    return model


def describe_rows(rows: Rows) -> list[dict[str, Any]]:
    """Return rows as dictionaries in the format of transformers' tokenizer."""
    columns = (rows.input_ids, rows.lengths, rows.first_lengths, rows.targets["labels"])
    return [
        {
            "input_ids": ids[:length],
            "token_type_ids": [0] * first + [1] * (length - first),
            "attention_mask": [1] * length,
            "labels": label,
        }
        for ids, length, first, label in zip(*(c.tolist() for c in columns), strict=True)
    ]


def build_variants(
    task_name: str,
    data: Path,
    tokenizer: Tokenizer,
    preset: str,
    settings: Sequence[str],
    folder: Path,
) -> list[Any]:
    """Return all variants with the same random weights, ours last.

    Raises:
        UserError: The task is not a classification.
    """
    config = dataclasses.replace(
        FINETUNE_PRESETS[preset], pooling="cls", epochs=1, sequence_length=128
    )
    config = override(config, settings)
    task = read_task(task_name, data, config)
    require(
        isinstance(task.family, Classification) and bool(task.family.labels),
        f"{task_name} is not a classification; choose another task, such as cola",
    )
    sizes = dataclasses.replace(PRESETS[preset].model, vocab_size=tokenizer.vocab_size)
    encoder = Encoder(sizes)
    init_weights(encoder, sizes.initializer_range, torch.Generator().manual_seed(0))
    pretrained = SavedModel(
        SavedNetwork("", sizes, (encoder.state_dict(),)), tokenizer, 128, "random weights"
    )
    tokenizer.save(folder / "tokenizer")
    ours = Ours(pretrained, task, encode_task(task, pretrained, config), config)
    whole = task.encode(tokenizer, config.sequence_length)["train"]
    return [*(Theirs(name, ours, whole, folder / "tokenizer") for name in TRAINERS), ours]


def check_losses(variants: Sequence[Any], items: Tensor) -> dict[str, float]:
    """Return each variant's loss on one batch.

    Raises:
        SystemExit: A loss differs from ours by more than TOLERANCE.
    """
    losses = {variant.name: variant.loss(items) for variant in variants}
    for name, loss in losses.items():
        if not abs(loss - losses["ours"]) <= TOLERANCE * losses["ours"]:  # also if it is NaN
            raise SystemExit(f"error: {name} computes {loss}, ours {losses['ours']}")
    return losses


def measure(variants: Sequence[Any], *, steps: int, repeats: int) -> dict[str, Any]:
    """Return each variant's seconds for `repeats` passes over `steps` batches, and its speed."""
    ours = variants[-1]
    num_train = len(ours.rows.splits["train"])
    num_items = min(num_train, steps * ours.config.batch_size)
    seconds: dict[str, list[float]] = {variant.name: [] for variant in variants}
    rng = torch.Generator().manual_seed(0)
    for repeat in range(repeats + 1):
        items = torch.randperm(num_train, generator=rng)[:num_items]
        for variant in variants:
            taken = variant.time_pass(items)
            if repeat:  # the first repeat is a warm-up
                seconds[variant.name].append(taken)
        print(f"repeat {repeat} of {repeats}", file=sys.stderr, flush=True)
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    return {
        variant.name: {
            "dtype": str(variant.dtype).removeprefix("torch."),
            "seconds": seconds[variant.name],
            "examples": num_items,
            "examples_per_second": num_items / medians[variant.name],
            "times_trainer": medians["trainer"] / medians[variant.name],
            "times_best": medians["trainer best"] / medians[variant.name],
        }
        for variant in variants
    }


def tabulate(results: dict[str, Any]) -> Table:
    """Return the table of speeds, one row per variant."""
    rows = []
    for name, result in results.items():
        slow, fast = (result["examples"] / f(result["seconds"]) for f in (max, min))
        rows.append(
            [
                name,
                result["dtype"],
                f"{result['examples_per_second']:,.0f} ({slow:,.0f} to {fast:,.0f})",
                f"{result['times_trainer']:.2f}",
                f"{result['times_best']:.2f}",
            ]
        )
    headers = ["fine-tuning", "dtype", "examples/s, median (range)", "x trainer", "x best"]
    return Table(headers, rows)


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main() -> None:
    """Check the losses, measure, print a table, and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", default="cola")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument(
        "--tokenizer", type=Path, required=True, help="BERT's vocab.txt, or a folder"
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--preset", default="small", choices=list(FINETUNE_PRESETS))
    parser.add_argument("--steps", type=int, default=32, help="batches per pass")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--set", nargs="*", default=[])
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder:
        try:
            variants = build_variants(
                arguments.task,
                arguments.data,
                Tokenizer.load(arguments.tokenizer),
                arguments.preset,
                arguments.set,
                Path(folder),
            )
        except UserError as error:
            parser.error(str(error))
        ours = variants[-1]
        config = ours.config
        losses = check_losses(variants, torch.arange(config.batch_size))
        print(f"losses agree: {losses}", flush=True)
        results = measure(variants, steps=arguments.steps, repeats=arguments.repeats)
    lengths = ours.rows.splits["train"].lengths
    record = {
        "device": ours.machine.name,
        "commit": find_commit(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "preset": arguments.preset,
        "task": ours.task.name,
        "batch_size": config.batch_size,
        "mean_length": lengths.float().mean().item(),
        "longest": lengths.max().item(),
        "settings": arguments.set,
        "losses": losses,
        "variants": results,
    }
    title = (
        f"{record['device']}, torch {torch.__version__}, transformers {transformers.__version__}, "
        f"preset {arguments.preset}, {ours.task.name} (rows of {record['mean_length']:.1f} tokens "
        f"on average), batch {config.batch_size}, medians of {arguments.repeats} interleaved "
        f"passes over {results['ours']['examples']:,} examples, commit {record['commit']}"
    )
    table = f"{title}\n\n{to_markdown(tabulate(results))}"
    if arguments.out:
        write_json(arguments.out, record)
        write_text(arguments.out.with_suffix(".md"), table + "\n")
    print(table)


if __name__ == "__main__":
    main()
