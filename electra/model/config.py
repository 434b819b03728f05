"""Architecture and sizes of an encoder: what all bodies have, and what ELECTRA's has."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

from electra.settings import AtLeast, Needs, Order, Settings, Within


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(Settings):
    """Architecture and sizes of an encoder: the settings of all architectures. Source: Table 6.

    `architecture` selects the class; an architecture with more settings has a subclass for them.
    Names are those of Hugging Face's ElectraConfig, ModernBertConfig and DebertaV2Config.
    """

    architecture: str = "electra"
    """electra: layers as in BERT, as in the paper. modernbert: the graph of Hugging Face's
    ModernBertModel: norms before attention and feed-forward, rotary positions, a gated
    feed-forward, local attention in most layers. The presets modern-... use it. deberta-v2: the
    graph of DebertaV2Model with the settings of DeBERTaV3: attention by content and by distance.
    The presets deberta-v3-... use it."""
    vocab_size: Annotated[int, AtLeast(1)] = 30_522
    """Entries of the vocabulary. Pre-training takes the value from the shards."""
    embedding_size: Annotated[int, AtLeast(1)]
    """Width of the embeddings. electra: a linear layer projects them to `hidden_size` if the two
    differ. In the other architectures both must be equal."""
    hidden_size: Annotated[int, AtLeast(1)]
    """Width of the hidden states."""
    num_hidden_layers: Annotated[int, Within("[1, 1000]")]
    """Number of transformer layers. More than 1,000 are taken for a damaged file, before a network
    of them is built."""
    num_attention_heads: Annotated[int, AtLeast(1)]
    """Attention heads per layer; must divide `hidden_size`."""
    intermediate_size: Annotated[int, AtLeast(1)]
    """Width inside the feed-forward layer."""
    causal: bool = False
    """Whether a token attends only to itself and the tokens before it; required by the objective
    causal_lm. Masked pairs are still computed, so this saves no time."""
    max_position_embeddings: Annotated[int, AtLeast(1)] = 512
    """Longest row, tokens."""
    hidden_dropout_prob: Annotated[float, Within("[0, 1)")] = 0.1
    """Dropout probability of the embeddings and of the outputs of attention and feed-forward.
    modernbert: of the embeddings and inside the feed-forward (its embedding_dropout and
    mlp_dropout)."""
    attention_probs_dropout_prob: Annotated[float, Within("[0, 1)")] = 0.1
    """Dropout probability of the attention probabilities. modernbert: and of the attention output
    (its attention_dropout)."""
    layer_norm_eps: Annotated[float, Within("[0, inf)")] = 1e-12
    """Added to the variance in layer norms (ModernBertConfig: norm_eps)."""
    initializer_range: Annotated[float, Within("[0, inf)")] = 0.02
    """Standard deviation of the normal distribution of initial weights, truncated at two standard
    deviations. modernbert: divided by sqrt(2 num_hidden_layers) where a layer adds its result to
    the hidden states."""
    tag = "architecture"
    kinds: ClassVar[Mapping[str, str]] = {
        "electra": "model.config:ElectraConfig",
        "modernbert": "model.modernbert_config:ModernBertConfig",
        "deberta-v2": "model.deberta_config:DebertaConfig",
    }
    of_others = "bodies"
    run_needs: ClassVar[tuple[Needs | Order, ...]] = ()
    """Rules of the body for all settings of a run."""
    unread: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Settings that no rule refuses and the body does not read, by when."""
    of_heads: ClassVar[tuple[str, ...]] = ()
    """Fields on which the heads of pre-training depend, and the layers do not."""
    projects_embeddings: ClassVar[bool] = False
    """Whether the embeddings may be narrower than the hidden states."""
    has_segments: ClassVar[bool] = False
    """Whether a token's segment has an embedding."""
    is_gated: ClassVar[bool] = False
    """Whether the feed-forward is gated."""
    has_inner_layer: ClassVar[bool] = False
    """Whether heads of fine-tuning have a layer as the generator's before their last one."""

    def check(self) -> None:
        """Check the rules that the table cannot express."""
        if self.architecture not in self.kinds:
            from electra.outside import require_known

            require_known("model.architecture", self.architecture, self.kinds, "bodies")
        heads, hidden_size = self.num_attention_heads, self.hidden_size
        divides = hidden_size % heads == 0
        self.must("hidden_size", divides, f"be a multiple of num_attention_heads {heads}")
        is_wide = self.embedding_size == hidden_size
        how = f"be hidden_size {hidden_size} in architecture {self.architecture}"
        self.must("embedding_size", is_wide or self.projects_embeddings, how)

    @property
    def head_size(self) -> int:
        """Width of an attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def num_segments(self) -> int:
        """Number of segments that a row may have."""
        return 2

    @property
    def has_norm_bias(self) -> bool:
        """Whether layer norms have a bias."""
        return True

    @property
    def has_head_bias(self) -> bool:
        """Whether the inner linear map of the generator's head has a bias."""
        return True

    @property
    def judges_by_row(self) -> bool:
        """Whether the discriminator's head reads the state of [CLS] with each token's."""
        return False

    @property
    def applies_last_twice(self) -> bool:
        """Whether the last layer is applied twice, as in an enhanced mask decoder."""
        return False

    def of_generator(self, **sizes: Any) -> Self:
        """Return the settings of this encoder's generator, which has other sizes."""
        return dataclasses.replace(self, **sizes)


@dataclass(frozen=True, kw_only=True)
class ElectraConfig(EncoderConfig):
    """Settings of `model.architecture=electra`."""

    type_vocab_size: Annotated[int, AtLeast(1)] = 2
    """Number of segments."""

    run_needs = (Needs("model.architecture", "model.type_vocab_size!=1", "rows have two segments"),)
    projects_embeddings = has_segments = True

    @property
    def num_segments(self) -> int:
        """Number of segments that a row may have."""
        return self.type_vocab_size


NOT_SIZES = ("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range")
"""Fields of EncoderConfig on which trained weights do not depend."""
