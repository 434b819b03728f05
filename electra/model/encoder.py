"""The encoder of both networks: embeddings and a stack of layers, ELECTRA's or ModernBERT's.

Shape suffixes: B rows of the batch, L positions, T types of segment, E embedding size, H hidden
size, N heads, K layers read as features.

Parameters are float32. `compute_dtype` is the dtype of activations and matrix products: embeddings
are looked up and normalised in float32 and cast once; parts.py casts the weights.

Source: google-research/electra model/modeling.py; of ModernBERT see modernbert.py.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from electra.config import EncoderConfig
from electra.errors import UserError, require
from electra.model.electra import PostNormLayer
from electra.model.fused import FusedPostNormLayer, FusedPreNormLayer
from electra.model.modernbert import (
    ModernEmbeddings,
    Places,
    PreNormLayer,
    Sees,
    find_places,
    make_mask,
    make_norm,
)
from electra.model.parts import Dropout, DropoutMasks, LayerNorm, Linear, runs_operations

Layer = PostNormLayer | PreNormLayer


def find_layers(model: nn.Module) -> list[nn.Module]:
    """Return the layers of all encoders below a model, each once."""
    return [part for part in model.modules() if isinstance(part, Layer)]


class Embeddings(nn.Module):
    """Token, position and segment embeddings, added and normalised: ids (B, L) to (B, L, E)."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.tokens = nn.Embedding(config.vocab_size, config.embedding_size)
        self.positions = nn.Embedding(config.max_position_embeddings, config.embedding_size)
        self.types = nn.Embedding(config.type_vocab_size, config.embedding_size)
        self.norm = LayerNorm(config.embedding_size, eps=config.layer_norm_eps)

    def forward(self, input_ids_BL: Tensor, token_type_ids_BL: Tensor | None) -> Tensor:
        """Return the embeddings (B, L, E), float32.

        Args:
            input_ids_BL: Token ids, int64.
            token_type_ids_BL: Segment of each token, int64; None: segment 0 throughout.
        """
        positions_LE = self.positions.weight[: input_ids_BL.shape[1]]
        if token_type_ids_BL is None:
            types_BLE = self.types.weight[0]
        elif runs_operations(input_ids_BL.device):  # a look-up's gradient would be a slow scatter
            type_T = torch.arange(self.types.num_embeddings, device=input_ids_BL.device)
            is_type_BLT = token_type_ids_BL[:, :, None] == type_T
            types_BLE = is_type_BLT.to(positions_LE.dtype) @ self.types.weight
        else:  # the same as a choice, which a compiler puts into the sum below
            types_BLE = self.types.weight[0]
            for number, type_E in enumerate(self.types.weight[1:], 1):
                is_type_BL1 = token_type_ids_BL[:, :, None] == number
                types_BLE = torch.where(is_type_BL1, type_E, types_BLE)
        return self.norm(self.tokens(input_ids_BL) + positions_LE + types_BLE)


class Encoder(nn.Module):
    """Embeddings, a projection where E != H, and the layers: (B, L) ids to (B, L, H) states.

    ModernBERT's last layer is followed by a norm.

    Args:
        config: Architecture, sizes and dropout probabilities.
        layer: Class of the layers, of the config's architecture. None: the plain one, which is the
            definition and can be hooked and adapted. `fused.FusedPostNormLayer` and
            `fused.FusedPreNormLayer` compute the same faster on a CPU.
        embeddings: An embedding block to share with another encoder; None makes a new one.
        compute_dtype: Dtype of activations and matrix products.
        recompute_activations: Whether layers in training keep only their input and compute the rest
            again in the backward pass, under the same dropout.
    """

    def __init__(
        self,
        config: EncoderConfig,
        *,
        layer: type[Layer] | None = None,
        embeddings: Embeddings | ModernEmbeddings | None = None,
        compute_dtype: torch.dtype = torch.float32,
        recompute_activations: bool = False,
    ):
        super().__init__()
        self.config = config
        is_modern = config.architecture == "modernbert"
        self.layer = layer or (PreNormLayer if is_modern else PostNormLayer)
        self.compute_dtype = compute_dtype
        self.recompute_activations = recompute_activations
        if embeddings is None:
            embeddings = ModernEmbeddings(config) if is_modern else Embeddings(config)
        self.embeddings = embeddings
        self.embeddings_project = (
            Linear(config.embedding_size, config.hidden_size)
            if config.embedding_size != config.hidden_size
            else None
        )
        self.layers = nn.ModuleList(
            self.layer(config, number)
            if issubclass(self.layer, PreNormLayer)
            else self.layer(config)
            for number in range(config.num_hidden_layers)
        )
        self.final_norm = make_norm(config) if is_modern else None
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.has_dropout = config.hidden_dropout_prob + config.attention_probs_dropout_prob > 0

    def forward(
        self,
        input_ids_BL: Tensor,
        attention_mask_BL: Tensor | None = None,
        token_type_ids_BL: Tensor | None = None,
        document_ids_BL: Tensor | None = None,
        sees: Sees = "all",
    ) -> Tensor:
        """Return the hidden states (B, L, H) after the last layer, in `compute_dtype`.

        Those at padding are meaningless.

        Args:
            input_ids_BL: Token ids, int64.
            attention_mask_BL: True or 1 at tokens, False or 0 at padding; None: nothing is padding.
            token_type_ids_BL: Segment 0 or 1 of each token; None: all 0.
            document_ids_BL: Number of each token's document, 0 at padding; tokens attend within
                their document. None: within the row.
            sees: Positions that a position attends to: all of them, itself and those before it, or
                itself and those after it.
        """
        x_BLH, masks = self._begin(input_ids_BL, token_type_ids_BL)
        places = self.find_places(input_ids_BL, attention_mask_BL, document_ids_BL, sees)
        for layer, where in zip(self.layers, places, strict=True):
            if self.recompute_activations and self.training:
                x_BLH = checkpoint(
                    layer,
                    *(x_BLH, where, masks),
                    use_reentrant=False,
                    preserve_rng_state=self.has_dropout,
                )
            else:
                x_BLH = layer(x_BLH, where, masks)
        return x_BLH if self.final_norm is None else self.final_norm(x_BLH)

    def count_flops(self, length: int) -> dict[str, float]:
        """Return the operations per position of the forward pass on rows of `length`, by part.

        Matrix products count; a multiply-add is two operations, a look-up none.
        """
        parts: dict[str, float] = {}
        if self.embeddings_project is not None:
            parts["embeddings, projection"] = 2 * self.embeddings_project.weight.numel()
        for layer in self.layers:
            for name, flops in cast(Layer, layer).count_flops(length).items():
                parts[name] = parts.get(name, 0) + flops
        return parts

    @torch.no_grad()
    def layer_states(
        self,
        num_layers: int,
        input_ids_BL: Tensor,
        attention_mask_BL: Tensor | None = None,
        token_type_ids_BL: Tensor | None = None,
    ) -> Tensor:
        """Return the hidden states after each of the top K layers, without gradients.

        The result is (K, B, L, H) in `compute_dtype`, lowest layer first; the last is what
        `forward` returns.

        Args:
            num_layers: K.
            input_ids_BL: Token ids, int64.
            attention_mask_BL: True or 1 at tokens, False or 0 at padding; None: nothing is padding.
            token_type_ids_BL: Segment 0 or 1 of each token; None: all 0.
        """
        states = list(self._outputs(input_ids_BL, attention_mask_BL, token_type_ids_BL))
        return torch.stack(states[-num_layers:])

    @torch.no_grad()
    def states_after(
        self,
        num_layers: int,
        input_ids_BL: Tensor,
        attention_mask_BL: Tensor | None = None,
        token_type_ids_BL: Tensor | None = None,
    ) -> Tensor:
        """Return the hidden states (B, L, H) after the first K layers, without gradients.

        The layers above are not computed. Arguments as in `layer_states`.
        """
        outputs = self._outputs(input_ids_BL, attention_mask_BL, token_type_ids_BL)
        return next(islice(outputs, num_layers - 1, None))

    def find_places(
        self,
        input_ids_BL: Tensor,
        attention_mask_BL: Tensor | None = None,
        document_ids_BL: Tensor | None = None,
        sees: Sees = "all",
    ) -> list[Tensor | None] | list[Places]:
        """Return what each layer needs to know of the positions; arguments as in `forward`.

        For ELECTRA's layers that is what is added to attention scores (broadcasts to
        (B, N, L, L); None: nothing).
        """
        length, device, dtype = input_ids_BL.shape[1], input_ids_BL.device, self.compute_dtype
        forbidden_BNLL = None
        if document_ids_BL is not None:  # 0 at padding
            forbidden_BNLL = document_ids_BL[:, None, :, None] != document_ids_BL[:, None, None, :]
        elif attention_mask_BL is not None:
            forbidden_BNLL = ~attention_mask_BL[:, None, None, :].bool()
        if sees != "all":
            ones_LL = torch.ones(length, length, dtype=torch.bool, device=device)
            hidden_LL = ones_LL.triu(1) if sees == "before" else ones_LL.tril(-1)
            forbidden_BNLL = hidden_LL if forbidden_BNLL is None else forbidden_BNLL | hidden_LL
        if self.config.architecture == "electra":
            return [make_mask(forbidden_BNLL, dtype)] * len(self.layers)
        kinds = [self.config.is_local(number) for number in range(len(self.layers))]
        places = {
            is_local: find_places(
                self.config,
                is_local=is_local,
                length=length,
                forbidden=forbidden_BNLL,
                real_BL=attention_mask_BL,
                documents_BL=document_ids_BL,
                sees=sees,
                dtype=dtype,
                device=device,
            )
            for is_local in sorted(set(kinds))
        }
        return [places[is_local] for is_local in kinds]

    def _outputs(
        self,
        input_ids_BL: Tensor,
        attention_mask_BL: Tensor | None,
        token_type_ids_BL: Tensor | None,
    ) -> Iterator[Tensor]:
        """Yield the hidden states (B, L, H) after each layer, computed as they are asked for."""
        x_BLH, masks = self._begin(input_ids_BL, token_type_ids_BL)
        places = self.find_places(input_ids_BL, attention_mask_BL)
        for number, (layer, where) in enumerate(zip(self.layers, places, strict=True), start=1):
            x_BLH = layer(x_BLH, where, masks)
            is_last = number == len(self.layers)
            yield self.final_norm(x_BLH) if is_last and self.final_norm is not None else x_BLH

    def _begin(
        self, input_ids_BL: Tensor, token_type_ids_BL: Tensor | None
    ) -> tuple[Tensor, DropoutMasks | None]:
        """Return the input of the first layer (B, L, H), and the dropout masks of this pass.

        Without masks (None) dropout is torch's.
        """
        x_BLH = self.embeddings(input_ids_BL, token_type_ids_BL).to(self.compute_dtype)
        masks = None
        if self.training:
            rows, length = input_ids_BL.shape
            masks = self.layer.draw_masks(self.config, rows, length, self.compute_dtype)
        x_BLH = self.dropout(x_BLH, masks)
        if self.embeddings_project is not None:
            x_BLH = self.embeddings_project(x_BLH)
        return x_BLH, masks


def choose_layers(
    setting: Literal["auto", "plain", "fused", "triton"],
    architecture: Literal["electra", "modernbert"],
    device: torch.device,
    *,
    is_plain: bool,
) -> type[Layer]:
    """Return the class of the encoders' layers; "auto" is the fastest class.

    Args:
        setting: `train.layers` in pre-training, `layers` in fine-tuning.
        architecture: Of the encoders.
        device: Device of the networks.
        is_plain: Whether the step is compiled or the model divided among processes, which needs
            the plain layers on a CPU.

    Raises:
        UserError: The setting is fused, and the step needs plain layers or does not run on a CPU.
            Or the setting is triton, and the device is a CPU, Triton is not installed, or the
            architecture is modernbert.
    """
    is_modern = architecture == "modernbert"
    if setting == "triton":
        require(not is_modern, "layers triton: architecture modernbert has none; use plain or auto")
        require(device.type != "cpu", "layers triton: they are for a GPU; use plain or auto")
        try:
            from electra.model.triton import TritonPostNormLayer
        except ImportError:
            raise UserError("layers triton: Triton is not installed; use plain or auto") from None
        return TritonPostNormLayer
    can_fuse = device.type == "cpu" and not is_plain
    place = "a compiled step or a divided model" if is_plain else f"device {device.type}"
    require(
        can_fuse or setting != "fused",
        f"layers fused: they are for a CPU, not for {place}; use plain or auto",
    )
    if can_fuse and setting != "plain":
        return FusedPreNormLayer if is_modern else FusedPostNormLayer
    return PreNormLayer if is_modern else PostNormLayer
