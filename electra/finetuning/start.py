"""The start of a fine-tuning: settings resolved for encoder and task, and the task's rows."""

import dataclasses
from typing import NamedTuple

import torch
from torch import Tensor

from electra.checkpoints.folder import Pretrained
from electra.config import FinetuneConfig
from electra.errors import require
from electra.presets import finetune_preset
from electra.tasks.family import Task
from electra.tasks.rows import Rows, reduce_vocabulary


class TaskRows(NamedTuple):
    """All rows of a task; token ids are places in `token_ids`, the vocabulary in use."""

    token_ids: Tensor
    splits: dict[str, Rows]


def encode_task(task: Task, pretrained: Pretrained, config: FinetuneConfig) -> TaskRows:
    """Return the rows of a task, those of train reduced to `train_examples` items if it is set.

    Raises:
        UserError: `train_examples` is more than train has.
    """
    splits = task.encode(pretrained.tokenizer, config.sequence_length)
    train, count = splits["train"], config.train_examples
    require_examples(count, len(train), task)
    if count:
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
        splits["train"] = train.take(order[:count].sort().values)
    return TaskRows(*reduce_vocabulary(splits, pretrained.tokenizer.vocab_size))


def require_examples(count: int, most: int, task: Task) -> None:
    """Refuse `train_examples` that are more than a task has."""
    require(count <= most, f"train_examples {count} is more than the {most} that {task.name} has")


def fit_to_start(
    config: FinetuneConfig, pretrained: Pretrained, task: Task, from_scratch: bool
) -> FinetuneConfig:
    """Return the config with unset values taken from the encoder and the task.

    Raises:
        UserError: Rows would be longer than those that the encoder was trained on, its tokenizer
            has more tokens than its embedding table, it has fewer layers than are named, or
            layers are to begin anew that have no pre-trained weights.
    """
    num_tokens, vocab_size = pretrained.tokenizer.vocab_size, pretrained.encoder.vocab_size
    require(
        num_tokens <= vocab_size,
        f"{pretrained.source}: the tokenizer has {num_tokens} tokens, the encoder {vocab_size}",
    )
    longest = pretrained.sequence_length
    length = config.sequence_length or min(task.family.longest_row, longest)
    require(
        length <= longest,
        f"sequence_length {length} is more than the {longest} tokens that {pretrained.source} was "
        "trained on; positions beyond them were never trained",
    )
    most = pretrained.encoder.num_hidden_layers
    require(
        config.reset_layers <= most,
        f"reset_layers {config.reset_layers} is more than the {most} layers of {pretrained.source}",
    )
    require(
        not (from_scratch and config.reset_layers),
        f"reset_layers {config.reset_layers} is for pre-trained weights; from scratch all layers "
        "begin anew: set reset_layers=0",
    )
    config = fit_features(config, pretrained, task)
    return dataclasses.replace(config, sequence_length=length, epochs=config.epochs or task.epochs)


def fit_features(config: FinetuneConfig, pretrained: Pretrained, task: Task) -> FinetuneConfig:
    """Return the config without settings that have no meaning for a frozen encoder.

    Raises:
        UserError: The family's head cannot read features, `features.layers` is more than the layers
            of the encoder, or settings are for an encoder that learns.
    """
    layers, most = config.features.layers, pretrained.encoder.num_hidden_layers
    if not layers:
        return config
    require(
        config.reset_layers == 0,
        f"reset_layers {config.reset_layers} is for an encoder that learns; with features.layers "
        f"{layers} it does not: set reset_layers=0",
    )
    require(
        task.family.reads_features,
        f"features.layers is for classification and tagging, not for {task.name}",
    )
    require(
        layers <= most,
        f"features.layers {layers} is more than the {most} layers of {pretrained.source}",
    )
    usual = finetune_preset(pretrained.encoder).layer_lr_decay
    require(
        config.layer_lr_decay in (1, usual),
        f"layer_lr_decay {config.layer_lr_decay} is for an encoder that learns; with "
        f"features.layers {layers} it does not: set layer_lr_decay=1",
    )
    return dataclasses.replace(config, layer_lr_decay=1.0)
