"""A pre-trained network in memory, with its head, for answers without training."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from electra.corpus.tokenizer import Tokenizer
from electra.model.encoder import Encoder
from electra.model.heads import DiscriminatorHead, GeneratorHead
from electra.runs.checkpoint import load_parameters
from electra.runs.pretrained import SavedNetwork
from electra.training.machine import Machine, choose_layers


@dataclass(frozen=True)
class LoadedNetwork:
    """An encoder with its head. Shape suffixes: B rows, L positions, M positions, V vocabulary."""

    encoder: Encoder
    head: DiscriminatorHead | GeneratorHead
    tokenizer: Tokenizer
    max_tokens: int
    """Tokens of the longest row, without [CLS] and [SEP]."""
    machine: Machine

    def encode(self, rows: list[list[int]]) -> Tensor:
        """Return the hidden states (B, L, H) of rows of ids, between [CLS] and [SEP]."""
        tokenizer = self.tokenizer
        tensors = [torch.tensor([tokenizer.cls_id, *row, tokenizer.sep_id]) for row in rows]
        input_ids_BL = torch.nn.utils.rnn.pad_sequence(tensors, True, tokenizer.pad_id)
        input_ids_BL = input_ids_BL.to(self.machine.device)
        return self.encoder(input_ids_BL, input_ids_BL != tokenizer.pad_id)

    def log_probs(self, hidden_MH: Tensor) -> Tensor:
        """Return log p (M, V) of every token, float32, given the states at masked positions."""
        assert isinstance(self.head, GeneratorHead)
        features_ME = self.head(hidden_MH).float()
        logits_MV = features_ME @ self.encoder.embeddings.tokens.weight.T + self.head.bias
        return F.log_softmax(logits_MV, dim=-1)


def load_network(
    saved: SavedNetwork, tokenizer: Tokenizer, sequence_length: int, machine: Machine
) -> LoadedNetwork:
    """Return a network with its weights, on the machine's device.

    Args:
        saved: The network of a checkpoint or of a folder.
        tokenizer: Its tokenizer.
        sequence_length: Longest row that it was trained with, tokens.
        machine: Device and dtype.
    """
    layer = choose_layers("auto", machine.device, is_plain=False)
    encoder = Encoder(saved.sizes, layer=layer, compute_dtype=machine.dtype).eval()
    kind = GeneratorHead if saved.predicts == "tokens" else DiscriminatorHead
    head = kind(saved.sizes).eval()
    load_parameters(encoder, saved.encoders[0])
    load_parameters(head, saved.head)
    device = machine.device
    return LoadedNetwork(
        encoder.to(device), head.to(device), tokenizer, sequence_length - 2, machine
    )
