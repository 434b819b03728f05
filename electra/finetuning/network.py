"""The network that a task fine-tunes: built, run, and reduced to the vocabulary in use."""

import dataclasses
import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from electra.config import FinetuneConfig
from electra.model.encoder import Encoder
from electra.model.feature_head import FeatureHead
from electra.model.initialisation import draw_glorot, init_weights
from electra.model.layer import PostNormLayer
from electra.runs.checkpoint import load_parameters
from electra.runs.finetuned import Finetuned
from electra.runs.pretrained import Pretrained
from electra.tasks.rows import Outputs, Rows, TaskBatch, make_batch
from electra.tasks.task import Task
from electra.training.machine import choose_dtype, choose_layers
from electra.training.seeds import step_seed

PREDICT_ROWS = 128
"""Rows predicted at a time."""


class Network(nn.Module):
    """An encoder and a task's output layer on its states; a FeatureHead reads those of K layers."""

    def __init__(self, encoder: Encoder, head: nn.Module, task: Task):
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.task = task

    def forward(self, batch: TaskBatch) -> Outputs:
        """Return what the network says of a batch's items, float32."""
        rows = batch.input_ids, batch.attention_mask, batch.token_type_ids
        if isinstance(self.head, FeatureHead):
            states = self.encoder.layer_states(self.head.num_layers, *rows)
        else:
            states = self.encoder(*rows)
        return self.task.answer(self.head, states, batch)


def build_network(
    pretrained: Pretrained,
    task: Task,
    config: FinetuneConfig,
    *,
    compute_dtype: torch.dtype,
    seed: int,
    from_scratch: bool,
    layer: type[PostNormLayer] = PostNormLayer,
) -> Network:
    """Return the encoder under a fresh head, with fine-tuning's own dropout; none if it is read.

    Args:
        pretrained: The encoder's sizes and weights.
        task: Whose head it gets.
        config: Dropout, and what the head reads.
        compute_dtype: Dtype of activations and matrix products.
        seed: Decides the weights that are drawn.
        from_scratch: Draw the encoder's weights, too.
        layer: Class of the encoder's layers.
    """
    dropout_prob = 0.0 if config.features.layers else config.dropout_prob
    sizes = dataclasses.replace(
        pretrained.encoder,
        hidden_dropout_prob=dropout_prob,
        attention_probs_dropout_prob=dropout_prob,
    )
    encoder = Encoder(sizes, layer=layer, compute_dtype=compute_dtype)
    head = task.build_head(sizes, config)
    rng = torch.Generator().manual_seed(step_seed(seed, "classifier", 0))
    init_weights(head, sizes.initializer_range, rng)
    draw_glorot(head, rng)
    if from_scratch:
        init_weights(encoder, sizes.initializer_range, rng)
    else:
        load_parameters(encoder, pretrained.tensors)
    return Network(encoder, head, task)


def load_network(finetuned: Finetuned, task: Task, device: torch.device) -> Network:
    """Return a fine-tuned network as it was saved, in the compute dtype of its settings.

    Raises:
        UserError: Its file is damaged or lacks a parameter.
    """
    config = finetuned.config
    compute_dtype = choose_dtype(config.precision, device)
    # A model trained with fused layers on a CPU may answer on another device.
    setting: Literal["plain", "auto"] = "plain" if config.layers == "plain" else "auto"
    layer = choose_layers(setting, device, compiled=False)
    encoder = Encoder(finetuned.encoder, layer=layer, compute_dtype=compute_dtype)
    head = task.build_head(finetuned.encoder, config)
    model = Network(encoder, head, task)
    load_parameters(model, finetuned.tensors)
    return model.to(device)


@torch.inference_mode()
def predict(
    model: Network,
    rows: Rows,
    device: torch.device,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Outputs:
    """Return what the network says of all items, in their order, dropout off.

    A dimension that is as long as a batch's rows is filled up with -inf. `progress` is told the
    items done, and all.
    """
    model.eval()
    collected: Outputs = {}
    num_done = 0
    longest_first = rows.item_lengths.argsort(descending=True, stable=True)
    for items in longest_first.split(max(1, PREDICT_ROWS // rows.rows_per_item)):
        for name, values in model(make_batch(rows, items, device)).items():
            if name not in collected:  # of the longest rows, so that all others fit
                fill = -math.inf if values.is_floating_point() else -1
                shape = (len(rows), *values.shape[1:])
                collected[name] = torch.full(shape, fill, dtype=values.dtype)
            collected[name][(items, *map(slice, values.shape[1:]))] = values.cpu()
        num_done += len(items)
        progress(num_done, len(rows))
    return collected


@torch.no_grad()
def keep_tokens(model: Network, token_ids: Tensor) -> nn.Embedding:
    """Leave the model the embeddings of these tokens only; return its whole table."""
    embeddings = model.encoder.embeddings
    whole_table = embeddings.tokens
    embeddings.tokens = nn.Embedding.from_pretrained(whole_table.weight[token_ids], freeze=False)
    return whole_table


@torch.no_grad()
def restore_tokens(model: Network, whole_table: nn.Embedding, token_ids: Tensor) -> None:
    """Give the model its whole table back, with what the kept tokens have learnt."""
    embeddings = model.encoder.embeddings
    whole_table.to(embeddings.tokens.weight.device)
    whole_table.weight[token_ids] = embeddings.tokens.weight
    embeddings.tokens = whole_table
