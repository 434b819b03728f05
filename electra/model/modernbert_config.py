"""Settings of ModernBERT's body."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from electra.model.config import EncoderConfig
from electra.settings import AtLeast, Within


@dataclass(frozen=True, kw_only=True)
class ModernBertConfig(EncoderConfig):
    """Settings of `model.architecture=modernbert`."""

    architecture: str = "modernbert"
    local_attention: Annotated[int, AtLeast(2)] = 128
    """Width of the window of local attention, tokens. A token attends to itself and
    local_attention / 2 tokens on either side."""
    global_attn_every_n_layers: Annotated[int, AtLeast(1)] = 3
    """Every n-th layer, the first included, attends to the whole row, the others to the
    window. 1: all layers attend to the whole row."""
    global_rope_theta: Annotated[float, Within("(0, inf)")] = 160_000.0
    """Base of the rotary positions in layers that attend to the whole row."""
    local_rope_theta: Annotated[float, Within("(0, inf)")] = 10_000.0
    """Base of the rotary positions in layers with local attention."""
    norm_bias: bool = False
    """Whether layer norms have a bias."""
    attention_bias: bool = False
    """Whether the linear maps of the attention have a bias."""
    mlp_bias: bool = False
    """Whether the linear maps of the feed-forward have a bias."""
    classifier_bias: bool = False
    """Whether the inner linear map of the generator's head, and of heads of
    fine-tuning, has a bias."""
    unread: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "model.global_attn_every_n_layers=1": ("model.local_attention", "model.local_rope_theta")
    }
    is_gated = has_inner_layer = True

    def check(self) -> None:
        """Check what bounds cannot say."""
        super().check()
        self.must("local_attention", self.local_attention % 2 == 0, "be even")
        how = "give heads of an even size, for rotary positions"
        self.must("num_attention_heads", self.head_size % 2 == 0, how)

    @property
    def has_norm_bias(self) -> bool:
        """Whether layer norms have a bias."""
        return self.norm_bias

    @property
    def has_head_bias(self) -> bool:
        """Whether the inner linear map of a head has a bias."""
        return self.classifier_bias

    def is_local(self, layer: int) -> bool:
        """Return whether a layer, counted from 0, attends to the window of local attention."""
        return layer % self.global_attn_every_n_layers > 0
