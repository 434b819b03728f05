"""Architecture and sizes of an encoder, and of BiLSTMs on it."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated

from electra.outside import require_known
from electra.settings import AtLeast, Needs, Settings, Within


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(Settings):
    """Architecture and sizes of one encoder. Source: Table 6.

    Names are those of Hugging Face's ElectraConfig, and of its ModernBertConfig and DebertaV2Config
    for what only those architectures have.
    """

    architecture: str = "electra"
    """electra: layers as in BERT, which the paper has. modernbert: the graph of Hugging Face's
    ModernBertModel: norms before attention and feed-forward, rotary positions, a gated
    feed-forward, local attention in most layers. The presets modern-... have it. deberta-v2: the
    graph of DebertaV2Model as DeBERTaV3 sets it: attention by content and by distance. The presets
    deberta-v3-... have it."""
    vocab_size: Annotated[int, AtLeast(1)] = 30_522
    """Entries of the vocabulary. Pre-training takes the value from the shards."""
    embedding_size: Annotated[int, AtLeast(1)]
    """Width of the embeddings. A linear layer projects them to `hidden_size` if the two differ.
    modernbert, deberta-v2: they may not differ."""
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
    """Whether a token attends to itself and the tokens before it alone, as from left to right; the
    objective causal_lm needs it. Masked pairs are still computed, so this saves no time."""
    max_position_embeddings: Annotated[int, AtLeast(1)] = 512
    """Longest row, tokens."""
    type_vocab_size: Annotated[int, AtLeast(1)] = 2
    """Number of segments. modernbert, deberta-v2: they have no segment embeddings; leave it at
    2."""
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
    local_attention: Annotated[int, AtLeast(2)] = 128
    """modernbert: width of the window of local attention, tokens. A token attends to itself and
    local_attention / 2 tokens on either side."""
    global_attn_every_n_layers: Annotated[int, AtLeast(1)] = 3
    """modernbert: every n-th layer, the first included, attends to the whole row, the others to the
    window. 1: all layers attend to the whole row."""
    global_rope_theta: Annotated[float, Within("(0, inf)")] = 160_000.0
    """modernbert: base of the rotary positions in layers that attend to the whole row."""
    local_rope_theta: Annotated[float, Within("(0, inf)")] = 10_000.0
    """modernbert: base of the rotary positions in layers with local attention."""
    norm_bias: bool = False
    """modernbert: whether layer norms have a bias."""
    attention_bias: bool = False
    """modernbert: whether the linear maps of the attention have a bias."""
    mlp_bias: bool = False
    """modernbert: whether the linear maps of the feed-forward have a bias."""
    classifier_bias: bool = False
    """modernbert: whether the inner linear map of the generator's head, and of heads of
    fine-tuning, has a bias."""
    position_buckets: Annotated[int, AtLeast(4)] = 256
    """deberta-v2: buckets of distances to either side. Distances up to half of them have a bucket
    each, farther ones share buckets of logarithmic width."""
    max_relative_positions: Annotated[int, AtLeast(4)] = 512
    """deberta-v2: distance at which the buckets end; all from there on are one."""
    published_heads: bool = False
    """deberta-v2: whether pre-training has DeBERTaV3's heads: the generator has an enhanced mask
    decoder, and the discriminator's head also reads the state of [CLS]. Else both heads are
    ELECTRA's."""
    enhanced_decoder: bool = False
    """deberta-v2: whether the last layer is an enhanced mask decoder. The layer is applied twice to
    the states before it; the first queries are these states and absolute positions, added. A
    generator has it if published_heads is true."""

    needs = (
        Needs("architecture!=electra", "type_vocab_size=2", "it has no segments, and ignores it"),
    )

    def check(self) -> None:
        """Check what the table cannot say."""
        require_known("model.architecture", self.architecture, ONLY, "bodies")
        heads, hidden_size = self.num_attention_heads, self.hidden_size
        divides = hidden_size % heads == 0
        self.must("hidden_size", divides, f"be a multiple of num_attention_heads {heads}")
        of_this = f"in architecture {self.architecture}"
        for each in dataclasses.fields(self):
            if each.name in OF_ONE_ARCHITECTURE - ONLY.get(self.architecture, set()):
                is_unused = getattr(self, each.name) == each.default
                self.must(each.name, is_unused, f"be {each.default} {of_this}")
        is_wide, how = self.embedding_size == hidden_size, f"be hidden_size {hidden_size}"
        self.must("embedding_size", is_wide or self.architecture == "electra", f"{how} {of_this}")
        if self.architecture == "modernbert":
            self.must("local_attention", self.local_attention % 2 == 0, "be even")
            how = "give heads of an even size, for rotary positions"
            self.must("num_attention_heads", self.head_size % 2 == 0, how)
        middle = self.position_buckets // 2
        is_far = self.max_relative_positions > middle + 1
        self.must("max_relative_positions", is_far, f"be more than {middle + 1}, half the buckets")

    @property
    def head_size(self) -> int:
        """Width of an attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def has_norm_bias(self) -> bool:
        """Whether layer norms have a bias."""
        return self.norm_bias or self.architecture != "modernbert"

    def is_local(self, layer: int) -> bool:
        """Return whether a layer, counted from 0, attends to the window of local attention."""
        return self.architecture == "modernbert" and layer % self.global_attn_every_n_layers > 0


ONLY = {
    "electra": frozenset[str](),
    "modernbert": frozenset(
        ("local_attention", "global_attn_every_n_layers", "global_rope_theta", "local_rope_theta")
        + ("norm_bias", "attention_bias", "mlp_bias", "classifier_bias")
    ),
    "deberta-v2": frozenset(
        ("position_buckets", "max_relative_positions", "published_heads", "enhanced_decoder")
    ),
}
"""Fields of EncoderConfig that one architecture alone reads."""

OF_ONE_ARCHITECTURE = frozenset[str]().union(*ONLY.values())

NOT_SIZES = ("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range")
"""Fields of EncoderConfig on which trained weights do not depend."""
