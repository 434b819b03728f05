"""The network that classifies a row: built, run, and reduced to the vocabulary in use."""

import dataclasses
from typing import Literal

import torch
from torch import Tensor, nn

from electra.config import EncoderConfig
from electra.model.encoder import Encoder
from electra.model.heads import ClassifierHead
from electra.model.initialisation import init_weights
from electra.tasks.rows import Batch, Rows, make_batch
from electra.training.checkpoint import load_parameters
from electra.training.device import step_seed
from electra.training.pretrained import Pretrained

PREDICT_ROWS = 128
"""Rows predicted at a time."""


class Classifier(nn.Module):
    """An encoder and a linear layer on a row's state: token ids to a logit for each label."""

    def __init__(
        self,
        config: EncoderConfig,
        num_labels: int,
        pooling: Literal["cls", "mean"],
        compute_dtype: torch.dtype,
    ):
        super().__init__()
        self.encoder = Encoder(config, compute_dtype=compute_dtype)
        self.head = ClassifierHead(
            config.hidden_size, num_labels, config.hidden_dropout_prob, pooling
        )

    def forward(self, batch: Batch) -> Tensor:
        """Return logits (B, C), float32."""
        states = self.encoder(batch.input_ids, batch.attention_mask, batch.token_type_ids)
        return self.head(states, batch.attention_mask)


def build_classifier(
    pretrained: Pretrained,
    num_labels: int,
    *,
    pooling: Literal["cls", "mean"],
    dropout_prob: float,
    compute_dtype: torch.dtype,
    seed: int,
    from_scratch: bool,
) -> Classifier:
    """Return the encoder under a fresh head, with fine-tuning's own dropout.

    Args:
        pretrained: The encoder's sizes and weights.
        num_labels: Logits of a row.
        pooling: The state that stands for a row: of [CLS], or the mean over its tokens.
        dropout_prob: Dropout everywhere.
        compute_dtype: Dtype of activations and matrix products.
        seed: Decides the weights that are drawn.
        from_scratch: Draw the encoder's weights, too.
    """
    sizes = dataclasses.replace(
        pretrained.encoder,
        hidden_dropout_prob=dropout_prob,
        attention_probs_dropout_prob=dropout_prob,
    )
    model = Classifier(sizes, num_labels, pooling, compute_dtype)
    rng = torch.Generator().manual_seed(step_seed(seed, "classifier", 0))
    init_weights(model.head, sizes.initializer_range, rng)
    if from_scratch:
        init_weights(model.encoder, sizes.initializer_range, rng)
    else:
        load_parameters(model.encoder, pretrained.tensors)
    return model


@torch.inference_mode()
def predict(model: Classifier, rows: Rows, device: torch.device) -> Tensor:
    """Return the logits (N, C) of all rows, in their order, dropout off."""
    model.eval()
    logits = torch.empty(len(rows.labels), model.head.dense.out_features)
    by_length = rows.lengths.argsort(stable=True)
    for start in range(0, len(by_length), PREDICT_ROWS):
        index = by_length[start : start + PREDICT_ROWS]
        logits[index] = model(make_batch(rows, index, device)).cpu()
    return logits


@torch.no_grad()
def keep_tokens(model: Classifier, token_ids: Tensor) -> nn.Embedding:
    """Leave the model the embeddings of these tokens only; return its whole table."""
    embeddings = model.encoder.embeddings
    whole_table = embeddings.tokens
    embeddings.tokens = nn.Embedding.from_pretrained(whole_table.weight[token_ids], freeze=False)
    return whole_table


@torch.no_grad()
def restore_tokens(model: Classifier, whole_table: nn.Embedding, token_ids: Tensor) -> None:
    """Give the model its whole table back, with what the kept tokens have learnt."""
    embeddings = model.encoder.embeddings
    whole_table.to(embeddings.tokens.weight.device)
    whole_table.weight[token_ids] = embeddings.tokens.weight
    embeddings.tokens = whole_table
