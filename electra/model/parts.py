"""Parts of layers and heads: linear maps, norms, dropout, attention; in any compute dtype.

Activations and matrix products have the encoder's `compute_dtype`. Every weight is cast where it is
used, so that gradients reach the float32 parameters without an autocast context. Normalisation
keeps its statistics in float32 whatever the dtype. Dropout is torch's, or on a CPU multiplies by
masks from a pool, which cost next to nothing.

Shape suffixes: B rows of the batch, L positions, N heads.
"""

from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.model.config import EncoderConfig

SPREAD = 1 << 16
"""Number of places in a pool at which a mask may begin."""
ONE = 1 << 16
"""Number of values of 16 random bits: probabilities are whole multiples of its inverse."""
Sees = Literal["all", "before", "after"]


def runs_operations(device: torch.device) -> bool:
    """Return whether operations run one by one on a CPU, not compiled and not on a GPU.

    There a matrix product is the fastest way to a sum. A compiler fuses sums and choices with the
    operations around them.
    """
    return device.type == "cpu" and not torch.compiler.is_compiling()


def is_any_length() -> bool:
    """Return whether a graph for rows of any length is exported.

    torch 2.11 also calls it exporting when torch.compile traces a step, whose rows have one length.
    """
    return torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()


class Linear(nn.Linear):
    """A linear map whose float32 weights follow the dtype of its input."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in_features) to (..., out_features)."""
        bias = None if self.bias is None else self.bias.to(x.dtype)
        if self.out_features == 1 and not runs_operations(x.device):
            # A sum, which a compiler fuses with what computes x; a product would read x again.
            column = (x * self.weight[0].to(x.dtype)).sum(dim=-1, keepdim=True)
            return column if bias is None else column + bias
        return F.linear(x, self.weight.to(x.dtype), bias)


class TokenTable(nn.Embedding):
    """Token embeddings: ids to rows of a table, or to their shifts from another network's rows.

    With a base this table is learnt as a difference, and the base gets no gradient from here:
    gradient-disentangled embedding sharing (GDES). Source: DeBERTaV3, section 3.2.
    """

    base: tuple["TokenTable", ...] = ()
    """The other network's table, or none; in a tuple, for it is no part of this module."""

    @property
    def table(self) -> Tensor:
        """The rows that look-ups give, of all ids."""
        return sum((each.table.detach() for each in self.base), start=self.weight)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the embeddings of ids."""
        return sum((each(ids).detach() for each in self.base), start=super().forward(ids))

    @torch.no_grad()
    def subtract_base(self) -> None:
        """Subtract the base from this table, so that look-ups return the table's present rows."""
        for each in self.base:
            self.weight -= each.table


class LayerNorm(nn.LayerNorm):
    """Layer normalisation with float32 statistics and parameters, in the dtype of its input."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        if x.dtype == torch.float32 or x.device.type == "cpu":  # the CPU kernel mixes dtypes itself
            return super().forward(x)
        return super().forward(x.float()).to(x.dtype)


class DropoutMasks:
    """The masks of one pass through an encoder on a CPU: slices of pools of random flags.

    Drawing every element of every mask takes a seventh of a step. Here one pool per probability, a
    little larger than the largest mask, is drawn once per pass, and a mask is a view of it that
    begins at a random place. The elements of one mask are independent. Two elements of two masks
    are the same flag with probability 1 / SPREAD, so that their correlation is at most that. An
    element is kept with the probability asked for, to 1 / 131072. All pools are drawn at once, so
    that a layer that is computed twice (recomputed activations) finds the same flags.
    """

    def __init__(self, largest: int, dtype: torch.dtype, probs: Iterable[float]):
        self.dtype = dtype
        self.pools = {prob: self._draw_pool(prob, largest + SPREAD) for prob in probs}

    def _draw_pool(self, prob: float, size: int) -> Tensor:
        if num_kept(prob) == ONE:  # which 16 bits do not hold
            return torch.ones(size, dtype=self.dtype)
        words = torch.empty(-(-size // 4), dtype=torch.int64).random_(-(2**63), 2**63 - 1)
        bits = words.view(torch.int16)[:size]
        return (bits < num_kept(prob) - ONE // 2).to(self.dtype)

    def draw(self, prob: float, shape: tuple[int, ...]) -> Tensor:
        """Return a mask of this shape: 1 where an element is kept, 0 where it is dropped.

        It is a view of the pool of `prob` and must not be written to.
        """
        first = int(torch.randint(SPREAD, ()))
        return self.pools[prob][first : first + torch.Size(shape).numel()].view(shape)


def num_kept(prob: float) -> int:
    """Return how many of the `ONE` values of 16 random bits keep an element."""
    return round((1 - prob) * ONE)


class Dropout(nn.Module):
    """Zero elements with probability `prob` and scale the others up, in training only."""

    def __init__(self, prob: float):
        super().__init__()
        self.prob = prob

    @property
    def scale(self) -> float:
        """Factor of the elements that a mask of DropoutMasks keeps."""
        return ONE / num_kept(self.prob)

    def draw(self, shape: tuple[int, ...], masks: DropoutMasks | None) -> Tensor | None:
        """Return the next mask of this shape; None without masks, or where nothing is dropped."""
        if masks is None or not self.training or self.prob == 0:
            return None
        return masks.draw(self.prob, shape)

    def forward(self, x: Tensor, masks: DropoutMasks | None = None) -> Tensor:
        """Return x, any shape, after dropout by the next of `masks`; None: by torch's own."""
        if masks is None:
            return F.dropout(x, self.prob, self.training)
        kept = self.draw(tuple(x.shape), masks)
        return x if kept is None else x * kept * self.scale


class EmbeddingBlock(nn.Module):
    """Embeddings of a body: ids (B, L) and segments to (B, L, E), float32."""

    tokens: TokenTable


def make_norm(config: EncoderConfig) -> LayerNorm:
    """Return a layer norm of the hidden size, with a bias if the config has it."""
    return LayerNorm(config.hidden_size, eps=config.layer_norm_eps, bias=config.has_norm_bias)


class TokenEmbeddings(EmbeddingBlock):
    """Token embeddings, normalised: ids (B, L) to (B, L, H). The layers handle positions."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.tokens = TokenTable(config.vocab_size, config.hidden_size)
        self.norm = make_norm(config)

    def forward(self, input_ids_BL: Tensor, token_type_ids_BL: Tensor | None = None) -> Tensor:
        """Return the embeddings (B, L, H), float32; there are no segments."""
        return self.norm(self.tokens(input_ids_BL))


class TransformerLayer(nn.Module):
    """A layer of an encoder: its definition, or another form of the same parameters."""

    @classmethod
    def mask_sizes(cls, config: EncoderConfig, num_rows: int, length: int) -> tuple[int, ...]:
        """Return the sizes of the dropout masks of a pass in training; none: dropout is torch's.

        The encoder draws the masks before the first layer and hands them to every layer.
        """
        return ()

    def count_flops(self, length: int) -> dict[str, float]:
        """Return the operations per position of the forward pass on rows of `length`, by part."""
        raise NotImplementedError

    def scale_outputs(self) -> None:
        """Scale weights just drawn, where the architecture asks for it."""


class Body(NamedTuple):
    """The parts of an architecture."""

    settings: type[EncoderConfig]
    """Class of the settings from which the other parts are made."""
    embeddings: Callable[[Any], EmbeddingBlock]
    places: Callable[[Any], nn.Module]
    """Maps a `Sight` to what each layer needs to know of the positions, a list."""
    layer: type[TransformerLayer]
    """The definition, which can be hooked and adapted."""
    fused: str = ""
    """Module and class below model/fused/: the same, faster on a CPU. Empty: there is none."""
    triton: str = ""
    """Class in model/triton.py: the same, of Triton's kernels. Empty: there is none."""
    ends_with_norm: bool = False
    """Whether a norm follows the last layer."""


class Sight(NamedTuple):
    """Which positions of a batch attend to which: what every architecture makes its masks of."""

    length: int
    device: torch.device
    dtype: torch.dtype
    """The dtype of the scores."""
    real_BL: Tensor | None
    """False or 0 at padding; None: nothing is padding."""
    documents_BL: Tensor | None
    """Number of each token's document, 0 at padding; None: tokens attend within the row."""
    sees: Sees

    def find_forbidden(self) -> Tensor | None:
        """Return True where a pair's score must not count; broadcasts to (B, N, L, L)."""
        forbidden_BNLL = None
        if self.documents_BL is not None:  # 0 at padding
            documents_BL = self.documents_BL
            forbidden_BNLL = documents_BL[:, None, :, None] != documents_BL[:, None, None, :]
        elif self.real_BL is not None:
            forbidden_BNLL = ~self.real_BL[:, None, None, :].bool()
        if self.sees != "all":
            ones_LL = torch.ones(self.length, self.length, dtype=torch.bool, device=self.device)
            hidden_LL = ones_LL.triu(1) if self.sees == "before" else ones_LL.tril(-1)
            hidden_BNLL = hidden_LL[None, None]
            forbidden_BNLL = hidden_BNLL if forbidden_BNLL is None else forbidden_BNLL | hidden_BNLL
        return forbidden_BNLL

    def make_mask(self, forbidden: Tensor | None) -> Tensor | None:
        """Return what is added to scores: 0, or nearly the least number where forbidden."""
        if forbidden is None:
            return None
        # Half of the least number: kernels multiply scores by log2(e), and a row in which all is
        # hidden (such as padding, for a tower that looks ahead) must stay finite.
        least = torch.finfo(self.dtype).min / 2
        zeros = torch.zeros(forbidden.shape, dtype=self.dtype, device=forbidden.device)
        return zeros.masked_fill_(forbidden, least)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    dropout: Dropout,
    masks: DropoutMasks | None,
) -> Tensor:
    """Return softmax(q k^T / sqrt(D) + mask) v, (B, N, queries, D), or in blocks (B, N, J, C, D).

    The choice is between two kernels of one function and changes no module, so it is made here:
    torch's fused CPU kernel has a backward pass several times slower than these products, and none
    at all with dropout.
    """
    scale = q.shape[-1] ** -0.5
    if q.device.type == "cpu":
        scores = (q * scale) @ k.transpose(-1, -2)
        if mask is not None:
            scores = scores + mask
        return dropout(scores.softmax(dim=-1), masks) @ v
    shape = q.shape
    if q.ndim == 5:  # kernels take four dimensions
        assert mask is not None
        heads_last = (0, 2, 1, 3, 4)
        q, k, v = (each.permute(heads_last).flatten(0, 1) for each in (q, k, v))
        mask = mask.expand(shape[0], 1, *mask.shape[2:]).permute(heads_last).flatten(0, 1)
    prob = dropout.prob if dropout.training else 0.0
    context = F.scaled_dot_product_attention(q, k, v, mask, prob, scale=scale)
    if len(shape) == 5:
        context = context.unflatten(0, (shape[0], shape[2])).transpose(1, 2)
    return context
