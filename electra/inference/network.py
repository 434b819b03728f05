"""A pre-trained network in memory, for answers without training.

Shape suffixes: B rows, L positions, M masked positions, H hidden size, V vocabulary.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from electra.checkpoints.checkpoint import load_parameters
from electra.checkpoints.folder import read_model
from electra.checkpoints.saved import SavedModel, SavedNetwork
from electra.errors import require
from electra.model.batch import pad_rows, split_by_length
from electra.model.config import EncoderConfig
from electra.model.encoder import Encoder
from electra.model.forms import choose_layers
from electra.model.heads import DiscriminatorHead, GeneratorHead
from electra.processes import Tell, silent
from electra.tokenizing.tokenizer import Tokenizer
from electra.training.machine import Machine, Precision, prepare_machine

Row = TypeVar("Row")
Result = TypeVar("Result")
BATCH_TOKENS = 4096
"""Positions of a batch, padding included."""
PRECISION: Precision = "float32"
"""In which a model answers, whatever it was trained in: so are the answers of its exports."""


@dataclass(frozen=True, kw_only=True)
class LoadedEncoder:
    """An encoder with its tokenizer."""

    encoder: Encoder
    tokenizer: Tokenizer
    max_tokens: int
    """Tokens of the longest row, without [CLS] and [SEP]."""
    machine: Machine

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self.encoder.layers)

    def require_layer(self, layer: int) -> None:
        """Raise UserError unless the encoder has this layer; layer 0 is that of the embeddings."""
        has_it = 0 <= layer <= self.num_layers
        require(has_it, f"layer must be 0 to {self.num_layers}, not {layer}")

    def encode(self, rows: Sequence[Sequence[int]], layer: int | None = None) -> Tensor:
        """Return the hidden states (B, L, H) of rows of ids, between [CLS] and [SEP].

        Shorter rows are padded at their end. The states are those after a layer, from 1; 0: the
        input of the first layer; None: the last layer's output. States of a lower layer pass
        through the final norm, if there is one, as in an encoder that ends with this layer. States
        that are not numbers are refused.
        """
        input_ids_BL, mask_BL = self.pad(rows)
        if layer is None:
            return require_numbers(self.encoder(input_ids_BL, mask_BL))
        self.require_layer(layer)
        if layer == 0:
            return require_numbers(self.encoder.embed(input_ids_BL))
        states = self.encoder.layer_states(input_ids_BL, mask_BL)
        state_BLH, norm = next(islice(states, layer - 1, None)), self.encoder.final_norm
        if norm is not None and layer < self.num_layers:
            state_BLH = norm(state_BLH)
        return require_numbers(state_BLH)

    def pad(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Return rows of ids between [CLS] and [SEP] (B, L), and True at what is no padding."""
        tokenizer = self.tokenizer
        whole = [[tokenizer.cls_id, *row, tokenizer.sep_id] for row in rows]
        input_ids_BL, mask_BL, *_ = pad_rows(whole, tokenizer.pad_id).to(self.machine.device)
        assert mask_BL is not None
        return input_ids_BL, mask_BL

    def run(
        self,
        rows: Sequence[Row],
        answer: Callable[[list[Row]], Iterable[Result]],
        progress: Tell = silent,
        length: Callable[[Any], int] = len,
    ) -> list[Result]:
        """Return the answer to each row, in order; rows of like length are asked together.

        A row is ids without special tokens, or what `length` gives the number of ids of. `progress`
        is called with the number of rows done and of all rows.
        """
        answers: dict[int, Result] = {}
        lengths = [length(row) + 2 for row in rows]
        for numbers in split_by_length(lengths, BATCH_TOKENS, BATCH_TOKENS):
            batch = [rows[number] for number in numbers]
            answers.update(zip(numbers, answer(batch), strict=True))
            progress(len(answers), len(rows))
        return [answers[number] for number in range(len(rows))]

    def run_pieces(
        self,
        texts: Sequence[Sequence[int]],
        answer: Callable[[list[Sequence[int]]], Iterable[Result]],
        progress: Tell = silent,
    ) -> list[list[Result]]:
        """Return, of the ids of each text, the answers to their pieces, as `run`."""
        pieces = [list(self._cut(ids)) for ids in texts]
        answers = iter(self.run(list(chain.from_iterable(pieces)), answer, progress))
        return [list(islice(answers, len(own))) for own in pieces]

    def _cut(self, ids: Sequence[int]) -> Iterator[Sequence[int]]:
        """Yield pieces that fit rows and begin at words, unless a word is longer; one at least."""
        start, most = 0, self.max_tokens
        while len(ids) - start > most:
            begins = self.tokenizer.starts_word[ids[start : start + most + 1]].nonzero()[0]
            size = begins.max(initial=0) or most
            yield ids[start : start + size]
            start += size
        yield ids[start:]


@dataclass(frozen=True, kw_only=True)
class LoadedNetwork(LoadedEncoder):
    """An encoder with its head."""

    head: DiscriminatorHead | GeneratorHead

    def log_probs(self, hidden_MH: Tensor) -> Tensor:
        """Return log p (M, V) of every token, float32, given the states at masked positions."""
        assert isinstance(self.head, GeneratorHead)
        features_ME = self.head(hidden_MH).float()
        logits_MV = features_ME @ self.encoder.embeddings.tokens.weight.T + self.head.bias
        log_probs_MV = require_numbers(F.log_softmax(logits_MV, dim=-1))
        return log_probs_MV[:, : self.tokenizer.vocab_size]  # without rows that no token has

    def judge(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Return a discriminator's logits (B, L) of rows of ids, between [CLS] and [SEP]."""
        return require_numbers(self.head(self.encode(rows)))


def require_numbers(values: Tensor) -> Tensor:
    """Return the values if none is NaN or infinite, which JSON cannot hold; -inf is padding."""
    is_number = bool((values < torch.inf).all())
    require(is_number, "the model's answer is not a number: its weights are damaged, or too large")
    return values


def load_encoder(
    folder: Path, seed: int | None = None, precision: Precision = PRECISION
) -> LoadedEncoder:
    """Return the encoder in a folder of any kind, on the fastest device.

    For a fine-tuning it is that of a seed; None: that with the best score on dev.
    """
    return load_kept(read_model(folder, seed), prepare_machine("auto", precision, 0))


def load_kept(model: SavedModel, machine: Machine) -> LoadedEncoder:
    """Return the encoder that pre-training returned, on the machine's device."""
    return LoadedEncoder(
        encoder=_build_encoder(model.encoder, model.tensors, machine),
        tokenizer=model.tokenizer,
        max_tokens=model.sequence_length - 2,
        machine=machine,
    )


def load_network(model: SavedModel, saved: SavedNetwork, machine: Machine) -> LoadedNetwork:
    """Return one of a model's networks with its weights, on the machine's device."""
    kind = GeneratorHead if saved.predicts in ("tokens", "next") else DiscriminatorHead
    head = kind(saved.sizes).eval()
    load_parameters(head, saved.head)
    return LoadedNetwork(
        encoder=_build_encoder(saved.sizes, saved.encoders[0], machine),
        head=head.to(machine.device),
        tokenizer=model.tokenizer,
        max_tokens=model.sequence_length - 2,
        machine=machine,
    )


def _build_encoder(
    sizes: EncoderConfig, tensors: Mapping[str, Tensor], machine: Machine
) -> Encoder:
    layer = choose_layers("auto", sizes.architecture, machine.device, is_plain=False)
    encoder = Encoder(sizes, layer=layer, compute_dtype=machine.dtype).eval()
    load_parameters(encoder, tensors)
    return encoder.to(machine.device)
