"""The start of a fine-tuning: settings resolved for encoder and task, and the task's rows."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from electra.checkpoints.saved import SavedModel
from electra.errors import UserError, require
from electra.files import sha256_file
from electra.presets import finetune_preset
from electra.settings import to_dict
from electra.tasks.config import FinetuneConfig
from electra.tasks.family import Task
from electra.tasks.record import number_records
from electra.tasks.registry import read_inputs, read_task, resolve_own
from electra.tasks.rows import Rows, reduce_vocabulary

UNLABELLED = "unlabelled"


@dataclass(frozen=True)
class Job:
    """The parts that the seeds of a fine-tuning have in common."""

    pretrained: SavedModel
    """The encoder to start from."""
    task: Task
    config: FinetuneConfig
    """The settings, resolved by `fit_to_start`."""
    from_scratch: bool = False
    """Whether to draw the encoder's weights instead of taking the pre-trained ones."""

    def settings(self) -> dict[str, Any]:
        """Return all that decides the results of a seed."""
        return {
            "task": self.task.name,
            "start": self.pretrained.source,
            "weights": self.pretrained.sha256,
            "from_scratch": self.from_scratch,
            "files": {str(path): sha256_file(path) for path in self.task.files},
            "config": to_dict(self.config),
        }


def read_job(
    pretrained: SavedModel, task: str, data: Path, config: FinetuneConfig, *, from_scratch: bool
) -> Job:
    """Return the fine-tuning of an encoder on the task of this name."""
    config = resolve_own(task, config)
    read = read_task(task, data, config)
    return Job(pretrained, read, fit_to_start(config, pretrained, read, from_scratch), from_scratch)


class TaskRows(NamedTuple):
    """All rows of a task; token ids are places in `token_ids`, the vocabulary in use."""

    token_ids: Tensor
    splits: dict[str, Rows]
    unlabelled: Rows | None = None
    """Text without labels that a teacher answers (`teacher.text`)."""
    lesson: Rows | None = None
    """The examples that replace train, with the answers of teachers (`teacher.add_answers`)."""


def encode_task(task: Task, pretrained: SavedModel, config: FinetuneConfig) -> TaskRows:
    """Return the rows of a task; of train only `train_examples` examples, if it is set."""
    if config.train_examples:
        task = task.draw(config.train_examples)
    splits = task.encode(pretrained.tokenizer, config.sequence_length)
    if config.class_weights == "balanced":
        train = splits["train"]
        targets = {**train.targets, "weights": task.family.weigh(train)}
        splits["train"] = dataclasses.replace(train, targets=targets)
    if config.teacher.text:
        told = _read_unlabelled(task, config)
        splits[UNLABELLED] = task.family.encode(told, pretrained.tokenizer, config.sequence_length)
    token_ids, splits = reduce_vocabulary(splits, pretrained.tokenizer.vocab_size)
    return TaskRows(token_ids, splits, splits.pop(UNLABELLED, None))


def _read_unlabelled(task: Task, config: FinetuneConfig) -> list[Any]:
    """Return the examples in `teacher.text` that are not blank."""
    columns, label_columns = map(list, task.columns)
    where = {"task": task.name, "columns": columns, "label_columns": label_columns}
    facts = {**task.family.facts(), **where, "separator": config.own.between}
    found = read_inputs(facts, Path(config.teacher.text))
    examples = map(task.family.parse, number_records(found.records))
    return [each for each in examples if not task.family.is_blank(each)]


def fit_to_start(
    config: FinetuneConfig, pretrained: SavedModel, task: Task, from_scratch: bool
) -> FinetuneConfig:
    """Return the config with unset values taken from the encoder and the task; refuse misfits."""
    count, num_train = config.train_examples, len(task.examples["train"])
    if count > num_train:
        raise UserError(f"train_examples {count} is more than the {num_train} that {task.name} has")
    source, layers, reset = pretrained.source, config.features.layers, config.reset_layers
    longest, most = pretrained.sequence_length, pretrained.encoder.num_hidden_layers
    length = config.sequence_length or min(task.family.longest_row, longest)
    require(
        length <= longest,
        f"sequence_length {length} is more than the {longest} tokens that {source} was trained on; "
        "positions beyond them were never trained",
    )
    require(
        not config.teacher.folders or task.family.learns_from_teachers,
        f"a teacher is for labels and numbers of texts and pairs, not for {task.name}: leave out "
        "teacher.folders",
    )
    require(
        config.class_weights == "none" or task.family.weighs_classes,
        f"class_weights is for one label or several labels a text, not for {task.name}; leave it "
        "out",
    )
    usual = finetune_preset(pretrained.encoder)
    is_pooled = task.family.pools and not layers
    require(
        is_pooled or config.pooling in (usual.pooling, FinetuneConfig.pooling),
        f"pooling {config.pooling} is for one answer to a text, from its last states: "
        f"{f'with features.layers {layers}' if layers else task.name} reads none; leave it out",
    )
    require(
        config.pooling != "cls" or not pretrained.encoder.causal or config.bilstm or not is_pooled,
        f"pooling cls: [CLS] of {source} sees no text, as it is causal; set pooling=mean",
    )
    size = pretrained.encoder.hidden_size
    require(size % 2 == 0 or not config.bilstm, f"bilstm needs an even hidden size, not {size}")
    for name, value in (("reset_layers", reset), ("features.layers", layers)):
        require(value <= most, f"{name} {value} is more than the {most} layers of {source}")
    require(
        not (from_scratch and reset),
        f"reset_layers {reset} is for pre-trained weights; from scratch all layers begin anew: set "
        "reset_layers=0",
    )
    decay = config.layer_lr_decay
    if layers:
        require(
            task.family.reads_features,
            f"features.layers is for classification and tagging, not for {task.name}",
        )
        advice = f"is for an encoder that learns; with features.layers {layers} it does not: set"
        require(reset == 0, f"reset_layers {reset} {advice} reset_layers=0")
        require(
            decay in (1, usual.layer_lr_decay), f"layer_lr_decay {decay} {advice} layer_lr_decay=1"
        )
        decay = 1.0
    return dataclasses.replace(
        config, sequence_length=length, epochs=config.epochs or task.epochs, layer_lr_decay=decay
    )
