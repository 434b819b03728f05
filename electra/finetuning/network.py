"""The network of a fine-tuning: built, loaded, run, and reduced to the vocabulary in use."""

import dataclasses
import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from electra.checkpoints.checkpoint import load_parameters
from electra.checkpoints.finetuned import Finetuned
from electra.checkpoints.saved import SavedModel
from electra.model.batch import split_by_length
from electra.model.config import EncoderConfig
from electra.model.encoder import Encoder
from electra.model.forms import choose_layers
from electra.model.initialisation import draw_glorot, init_weights
from electra.model.parts import TokenTable
from electra.model.task_heads import FeatureHead, PairHead, run_lstm
from electra.processes import Tell, silent
from electra.tasks.config import FinetuneConfig
from electra.tasks.family import Family
from electra.tasks.rows import Outputs, Rows, TaskBatch, make_batch
from electra.training.machine import Machine
from electra.training.optimizer import step_seed

PREDICT_ROWS = 128
"""Rows of a batch of predictions."""
PREDICT_TOKENS = 512
"""Tokens of such a batch on a CPU, with padding. A larger one is no faster and has more padding:
docs/PERFORMANCE.md. The number does not depend on the threads, so answers do not either."""


class TaskNetwork(nn.Module):
    """An encoder and the head of a family of tasks; a FeatureHead reads the states of K layers."""

    def __init__(self, encoder: Encoder, head: nn.Module, family: Family):
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.family = family

    @property
    def bilstm(self) -> nn.LSTM | None:
        """The BiLSTM before the head, if there is one."""
        return getattr(self.head, "bilstm", None)

    def forward(self, batch: TaskBatch) -> Outputs:
        """Return the outputs for a batch's items, float32."""
        rows = batch.input_ids, batch.attention_mask, batch.token_type_ids
        if isinstance(self.head, FeatureHead):
            states = torch.stack([*self.encoder.layer_states(*rows)][-self.head.num_layers :])
        else:
            states = self.encoder(*rows)
        if self.bilstm is not None:
            states, _ = run_lstm(self.bilstm, states.float(), batch.attention_mask)
        if isinstance(self.head, PairHead):
            embeddings = self.encoder.embeddings(batch.input_ids, batch.token_type_ids)
            states = torch.cat([states.float(), embeddings], dim=-1)
        return self.family.answer(self.head, states, batch)


def build_network(
    pretrained: SavedModel,
    family: Family,
    config: FinetuneConfig,
    *,
    machine: Machine,
    seed: int,
    from_scratch: bool,
) -> TaskNetwork:
    """Return the encoder under a new head, with the dropout of fine-tuning.

    An encoder that is frozen (`features.layers`) has no dropout.
    """
    dropout_prob = 0.0 if config.features.layers else config.dropout_prob
    sizes = dataclasses.replace(
        pretrained.encoder,
        hidden_dropout_prob=dropout_prob,
        attention_probs_dropout_prob=dropout_prob,
    )
    layer = choose_layers(config.layers, sizes.architecture, machine.device, is_plain=False)
    encoder = Encoder(sizes, layer=layer, compute_dtype=machine.dtype)
    head = _build_head(family, sizes, config)
    rng = torch.Generator().manual_seed(step_seed(seed, "classifier", 0))
    init_weights(head, sizes.initializer_range, rng)
    draw_glorot(head, rng)
    if from_scratch or config.reset_layers:
        init_weights(encoder, sizes.initializer_range, rng)
    if not from_scratch:
        kept = sizes.num_hidden_layers - config.reset_layers
        reset = tuple(f"layers.{number}." for number in range(kept, sizes.num_hidden_layers))
        fresh = {name: each for name, each in encoder.named_parameters() if name.startswith(reset)}
        load_parameters(encoder, {**pretrained.tensors, **fresh})
    return TaskNetwork(encoder, head, family)


def _build_head(family: Family, sizes: EncoderConfig, config: FinetuneConfig) -> nn.Module:
    """Return a family's head, which has the BiLSTM before it, if any, as a part."""
    head, size = family.build_head(sizes, config), sizes.hidden_size
    if config.bilstm:
        head.bilstm = nn.LSTM(size, size // 2, batch_first=True, bidirectional=True)
    return head


def load_network(finetuned: Finetuned, family: Family, machine: Machine) -> TaskNetwork:
    """Return a saved fine-tuned network on a machine; refuse a damaged file of parameters."""
    config = finetuned.config
    # A model trained with fused layers on a CPU may answer on another device.
    setting: Literal["plain", "auto"] = "plain" if config.layers == "plain" else "auto"
    architecture = finetuned.encoder.architecture
    layer = choose_layers(setting, architecture, machine.device, is_plain=False)
    encoder = Encoder(finetuned.encoder, layer=layer, compute_dtype=machine.dtype)
    head = _build_head(family, finetuned.encoder, config)
    model = TaskNetwork(encoder, head, family)
    load_parameters(encoder, finetuned.tensors)
    load_parameters(head, finetuned.kept.head)
    return model.to(machine.device)


@torch.inference_mode()
def run_network(
    model: TaskNetwork, rows: Rows, device: torch.device, progress: Tell = silent
) -> Outputs:
    """Return the outputs for all items in their order, without dropout; empty if there are none.

    Dimensions of the length of a batch's rows are padded to the longest batch: logits with -inf,
    integers with -1. The network is left in evaluation mode. `progress` is called with the number
    of items done and of all items.
    """
    model.eval()
    sizes = (rows.item_lengths * rows.counts).tolist()
    max_items = max(1, PREDICT_ROWS // int(rows.counts.max())) if sizes else 1
    max_tokens = PREDICT_TOKENS if device.type == "cpu" else None
    collected: Outputs = {}
    num_done = 0
    for numbers in split_by_length(sizes, max_items, max_tokens):
        items = torch.tensor(numbers)
        for name, values in model(make_batch(rows, items, device)).items():
            if name not in collected:  # the first batch has the longest rows
                fill = -math.inf if values.is_floating_point() else -1
                shape = (len(rows), *values.shape[1:])
                collected[name] = torch.full(shape, fill, dtype=values.dtype)
            place: tuple[Any, ...] = (items, *map(slice, values.shape[1:]))
            collected[name][place] = values.cpu()
        num_done += len(items)
        progress(num_done, len(rows))
    return collected


@torch.no_grad()
def keep_tokens(model: TaskNetwork, token_ids: Tensor) -> TokenTable:
    """Reduce the model's token embeddings to those of `token_ids`; return the whole table."""
    embeddings = model.encoder.embeddings
    whole_table = embeddings.tokens
    embeddings.tokens = TokenTable.from_pretrained(whole_table.weight[token_ids], freeze=False)
    return whole_table


@torch.no_grad()
def restore_tokens(model: TaskNetwork, whole_table: TokenTable, token_ids: Tensor) -> None:
    """Give the model its whole embedding table back, updated for the tokens that were kept."""
    embeddings = model.encoder.embeddings
    whole_table.to(embeddings.tokens.weight.device)
    whole_table.weight[token_ids] = embeddings.tokens.weight
    embeddings.tokens = whole_table
