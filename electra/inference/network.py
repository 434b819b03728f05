"""A pre-trained network in memory, for answers without training."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from electra.checkpoints.checkpoint import load_parameters
from electra.checkpoints.folder import SavedNetwork, load_pretrained
from electra.errors import require
from electra.model.encoder import Encoder
from electra.model.heads import DiscriminatorHead, GeneratorHead
from electra.tokenizing.tokenizer import Tokenizer
from electra.training.machine import Machine, choose_layers, prepare_machine


@dataclass(frozen=True, kw_only=True)
class LoadedEncoder:
    """An encoder with its tokenizer. Shape suffixes: B rows, L positions, H hidden size."""

    encoder: Encoder
    tokenizer: Tokenizer
    max_tokens: int
    """Tokens of the longest row, without [CLS] and [SEP]."""
    machine: Machine

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self.encoder.layers)

    def encode(self, rows: Sequence[Sequence[int]], layer: int | None = None) -> Tensor:
        """Return the hidden states (B, L, H) of rows of ids, between [CLS] and [SEP].

        Args:
            rows: Ids without special tokens; shorter rows are padded at their end.
            layer: Layer, from 1, after which the states are taken; None: the last.

        Raises:
            UserError: There is no such layer.
        """
        if layer is not None:
            require(
                1 <= layer <= self.num_layers,
                f"layer must lie in 1 to {self.num_layers}, not {layer}",
            )
        input_ids_BL, mask_BL = self.pad(rows)
        if layer is None:
            return self.encoder(input_ids_BL, mask_BL)
        return self.encoder.states_after(layer, input_ids_BL, mask_BL)

    def pad(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Return rows of ids between [CLS] and [SEP], and which of them are no padding, (B, L)."""
        tokenizer = self.tokenizer
        tensors = [torch.tensor([tokenizer.cls_id, *row, tokenizer.sep_id]) for row in rows]
        input_ids_BL = torch.nn.utils.rnn.pad_sequence(tensors, True, tokenizer.pad_id)
        input_ids_BL = input_ids_BL.to(self.machine.device)
        return input_ids_BL, input_ids_BL != tokenizer.pad_id

    def cut(self, ids: Sequence[int]) -> Iterator[slice]:
        """Yield slices of a text's ids that fit a row, and begin at words that are not longer."""
        starts_word, length, start = self.tokenizer.starts_word, self.max_tokens, 0
        while start < len(ids):
            end = min(start + length, len(ids))
            cut = end
            while cut < len(ids) and cut > start and not starts_word[ids[cut]]:
                cut -= 1
            end = cut if cut > start else end
            yield slice(start, end)
            start = end


@dataclass(frozen=True, kw_only=True)
class LoadedNetwork(LoadedEncoder):
    """An encoder with its head. Shape suffixes: M positions, H hidden size, V vocabulary."""

    head: DiscriminatorHead | GeneratorHead

    def log_probs(self, hidden_MH: Tensor) -> Tensor:
        """Return log p (M, V) of every token, float32, given the states at masked positions."""
        assert isinstance(self.head, GeneratorHead)
        features_ME = self.head(hidden_MH).float()
        logits_MV = features_ME @ self.encoder.embeddings.tokens.weight.T + self.head.bias
        return F.log_softmax(logits_MV, dim=-1)


def load_encoder(folder: Path) -> LoadedEncoder:
    """Return the encoder in a folder, on the fastest device that there is, in float32.

    Args:
        folder: A run folder, one of its checkpoints, a Hugging Face folder, or a folder of
            `electra finetune`; as for `load_pretrained`.

    Raises:
        UserError: The folder is none of these, or is damaged.
    """
    pretrained = load_pretrained(folder)
    machine = prepare_machine("auto", "float32", 0)
    encoder = Encoder(
        pretrained.encoder,
        layer=choose_layers(
            "auto", pretrained.encoder.architecture, machine.device, is_plain=False
        ),
        compute_dtype=machine.dtype,
    ).eval()
    load_parameters(encoder, pretrained.tensors)
    return LoadedEncoder(
        encoder=encoder.to(machine.device),
        tokenizer=pretrained.tokenizer,
        max_tokens=pretrained.sequence_length - 2,
        machine=machine,
    )


def load_network(
    saved: SavedNetwork,
    tokenizer: Tokenizer,
    sequence_length: int,
    machine: Machine,
    layers: Literal["auto", "plain"] = "auto",
) -> LoadedNetwork:
    """Return a network with its weights, on the machine's device.

    Args:
        saved: The network of a checkpoint or of a folder.
        tokenizer: Its tokenizer.
        sequence_length: Longest row that it was trained with, tokens.
        machine: Device and dtype.
        layers: Class of the layers, as `train.layers`.
    """
    layer = choose_layers(layers, saved.sizes.architecture, machine.device, is_plain=False)
    encoder = Encoder(saved.sizes, layer=layer, compute_dtype=machine.dtype).eval()
    kind = GeneratorHead if saved.predicts == "tokens" else DiscriminatorHead
    head = kind(saved.sizes).eval()
    load_parameters(encoder, saved.encoders[0])
    load_parameters(head, saved.head)
    return LoadedNetwork(
        encoder=encoder.to(machine.device),
        head=head.to(machine.device),
        tokenizer=tokenizer,
        max_tokens=sequence_length - 2,
        machine=machine,
    )
