"""The encoder of both networks: embeddings and a stack of layers, of one of the architectures.

Each architecture has a file that defines its embeddings, its layer, and what its layers need to
know of positions (electra.py, modernbert.py, deberta.py); fused/ and triton.py compute the same
faster. The encoder holds one of each and hands them what they need.

Shape suffixes: B rows of the batch, L positions, H hidden size.

Parameters are float32. `compute_dtype` is the dtype of activations and matrix products: embeddings
are looked up and normalised in float32 and cast once; parts.py casts the weights.

Source: google-research/electra model/modeling.py; of the others see their files.
"""

from collections.abc import Iterator
from importlib import import_module
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from electra.model.config import EncoderConfig
from electra.model.parts import (
    Body,
    Dropout,
    DropoutMasks,
    EmbeddingBlock,
    Linear,
    Sees,
    Sight,
    TransformerLayer,
    make_norm,
)

BODIES = {
    "electra": "electra.model.electra",
    "modernbert": "electra.model.modernbert",
    "deberta-v2": "electra.model.deberta",
}
"""Module of each `model.architecture`, imported when an encoder has it: its `BODY`."""


def find_body(architecture: str) -> Body:
    """Return the parts of an architecture, which another package may have."""
    if architecture not in BODIES:
        from electra.outside import load_outside

        other: Body = load_outside("bodies", architecture, Body)
        return other
    body: Body = import_module(BODIES[architecture]).BODY
    return body


def find_layers(model: nn.Module) -> list[nn.Module]:
    """Return the layers of all encoders below a model, each once."""
    return [part for part in model.modules() if isinstance(part, TransformerLayer)]


class Encoder(nn.Module):
    """Embeddings, a projection where E != H, and the layers: (B, L) ids to (B, L, H) states.

    Args:
        config: Architecture, sizes and dropout probabilities.
        layer: Class of the layers, from `choose_layers`; None: the definition of the architecture.
        embeddings: An embedding block to share with another encoder; None makes a new one.
        compute_dtype: Dtype of activations and matrix products.
        recompute_activations: Whether layers in training keep only their input and compute the rest
            again in the backward pass, under the same dropout.

    Attributes:
        sees: Positions that a position attends to: all of them, itself and those before it, or
            itself and those after it. In a causal encoder, those before it.
    """

    def __init__(
        self,
        config: EncoderConfig,
        *,
        layer: type[TransformerLayer] | None = None,
        embeddings: EmbeddingBlock | None = None,
        compute_dtype: torch.dtype = torch.float32,
        recompute_activations: bool = False,
    ):
        super().__init__()
        body = find_body(config.architecture)
        self.config = config
        self.layer = layer or body.layer
        self.compute_dtype = compute_dtype
        self.sees: Sees = "before" if config.causal else "all"
        self.recompute_activations = recompute_activations
        self.embeddings = body.embeddings(config) if embeddings is None else embeddings
        self.embeddings_project = (
            Linear(config.embedding_size, config.hidden_size)
            if config.embedding_size != config.hidden_size
            else None
        )
        self.places = body.places(config)
        self.layers = nn.ModuleList(
            self.layer(config, number) for number in range(config.num_hidden_layers)
        )
        self.final_norm = make_norm(config) if body.ends_with_norm else None
        self.position_embeddings = (
            nn.Embedding(config.max_position_embeddings, config.hidden_size)
            if config.applies_last_twice
            else None
        )
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.has_dropout = config.hidden_dropout_prob + config.attention_probs_dropout_prob > 0

    @property
    def without_initialiser(self) -> list[nn.Module]:
        """Maps for which the released code names no initialiser."""
        return [] if self.embeddings_project is None else [self.embeddings_project]

    def forward(
        self,
        input_ids_BL: Tensor,
        attention_mask_BL: Tensor | None = None,
        token_type_ids_BL: Tensor | None = None,
        document_ids_BL: Tensor | None = None,
    ) -> Tensor:
        """Return the hidden states (B, L, H) after the last layer, in `compute_dtype`.

        Those at padding are meaningless.

        Args:
            input_ids_BL: Token ids, int64.
            attention_mask_BL: True or 1 at tokens, False or 0 at padding; None: nothing is padding.
            token_type_ids_BL: Segment 0 or 1 of each token; None: all 0.
            document_ids_BL: Number of each token's document, 0 at padding; tokens attend within
                their document. None: within the row.
        """
        rows = input_ids_BL, attention_mask_BL, token_type_ids_BL, document_ids_BL
        return self.fork((self,), *rows)[0]

    def fork(
        self, ends: tuple["Encoder", ...], ids_BL: Tensor, *rows: Tensor | None
    ) -> list[Tensor]:
        """Return `forward` of encoders that differ in the last layer; shared layers run once."""
        attention_mask_BL, types_BL, document_ids_BL = rows
        x_BLH, masks = self._begin(ids_BL, types_BL)
        places = self.find_places(ids_BL, attention_mask_BL, document_ids_BL)
        last = len(self.layers) - 1
        for number in range(last):
            x_BLH = self._run_layer(number, x_BLH, places[number], masks)
        return [end._run_layer(last, x_BLH, places[last], masks) for end in ends]

    def share_layers(self, other: "Encoder", num_layers: int) -> None:
        """Take another encoder's first layers, and the parts between embeddings and layers."""
        self.embeddings_project, self.places = other.embeddings_project, other.places
        for number in range(num_layers):
            self.layers[number] = other.layers[number]

    def _run_layer(
        self, number: int, x_BLH: Tensor, where: Any, masks: DropoutMasks | None
    ) -> Tensor:
        """Return the hidden states (B, L, H) after a layer; after the last one, those to return."""

        def run(*more: Tensor) -> Tensor:
            if self.recompute_activations and self.training:
                states: Tensor = checkpoint(
                    self.layers[number],
                    *(x_BLH, where, masks, *more),
                    use_reentrant=False,
                    preserve_rng_state=self.has_dropout,
                )
            else:
                states = self.layers[number](x_BLH, where, masks, *more)
            return states

        is_last = number == len(self.layers) - 1
        if is_last and self.position_embeddings is not None:  # DeBERTa's EnhancedMaskDecoder
            positions_LH = self.position_embeddings.weight[: x_BLH.shape[1]]
            return run(run(x_BLH + positions_LH.to(x_BLH.dtype)))
        y_BLH = run()
        return self.final_norm(y_BLH) if is_last and self.final_norm is not None else y_BLH

    def count_flops(self, length: int, first_layer: int = 0) -> dict[str, float]:
        """Return the operations per position of the forward pass on rows of `length`, by part.

        Matrix products count; a multiply-add is two operations, a look-up none. For an encoder that
        begins with the states of another, count from its first layer on.
        """
        parts: dict[str, float] = {}
        if self.embeddings_project is not None and not first_layer:
            parts["embeddings, projection"] = 2 * self.embeddings_project.weight.numel()
        for layer in list(self.layers)[first_layer:]:
            for name, flops in cast(TransformerLayer, layer).count_flops(length).items():
                parts[name] = parts.get(name, 0) + flops
        if self.position_embeddings is not None:  # the last layer again, and its queries apart
            for name, flops in cast(TransformerLayer, self.layers[-1]).count_flops(length).items():
                parts[name] += flops
            parts["attention, projections"] += 12 * self.config.hidden_size**2
        return parts

    def find_places(
        self,
        input_ids_BL: Tensor,
        attention_mask_BL: Tensor | None = None,
        document_ids_BL: Tensor | None = None,
    ) -> list[Any]:
        """Return what each layer needs to know of the positions; arguments as in `forward`."""
        length, device, dtype = input_ids_BL.shape[1], input_ids_BL.device, self.compute_dtype
        found: list[Any] = self.places(
            Sight(length, device, dtype, attention_mask_BL, document_ids_BL, self.sees)
        )
        return found

    @torch.no_grad()
    def embed(self, input_ids_BL: Tensor) -> Tensor:
        """Return what the first layer reads (B, L, H), for rows of one segment; no gradients."""
        return self._begin(input_ids_BL, None)[0]

    @torch.no_grad()
    def layer_states(
        self,
        input_ids_BL: Tensor,
        attention_mask_BL: Tensor | None = None,
        token_type_ids_BL: Tensor | None = None,
    ) -> Iterator[Tensor]:
        """Yield the hidden states (B, L, H) after each layer, without gradients.

        They are computed as they are asked for. Arguments as in `forward`.
        """
        x_BLH, masks = self._begin(input_ids_BL, token_type_ids_BL)
        places = self.find_places(input_ids_BL, attention_mask_BL)
        for number in range(len(self.layers)):
            x_BLH = self._run_layer(number, x_BLH, places[number], masks)
            yield x_BLH

    def _begin(
        self, input_ids_BL: Tensor, token_type_ids_BL: Tensor | None
    ) -> tuple[Tensor, DropoutMasks | None]:
        """Return the first layer's input (B, L, H), and the masks; None: torch's dropout."""
        x_BLH = self.embeddings(input_ids_BL, token_type_ids_BL).to(self.compute_dtype)
        config, masks = self.config, None
        sizes = self.layer.mask_sizes(config, *input_ids_BL.shape) if self.training else ()
        if sizes:
            probs = {config.hidden_dropout_prob, config.attention_probs_dropout_prob} - {0.0}
            masks = DropoutMasks(max(sizes), self.compute_dtype, sorted(probs))
        x_BLH = self.dropout(x_BLH, masks)
        if self.embeddings_project is not None:
            x_BLH = self.embeddings_project(x_BLH)
        return x_BLH, masks
