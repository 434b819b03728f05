"""All settings of all commands: frozen dataclasses.

A setting is one field of one dataclass. Its type has the bounds, and the string below it gives
meaning, unit and source; `needs` and `check` say what holds across fields. This module does not
import torch, so `--help` and `--dry-run` answer at once. settings.py checks, reads and overrides
settings.

Table 6 and Table 7 are tables of the ELECTRA paper's appendix.
"""

import dataclasses
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal

from electra.errors import require, require_choice
from electra.settings import AtLeast, Needs, Order, Settings, Within


@dataclass(frozen=True, kw_only=True)
class TextConfig(Settings):
    """How text is read: settings of `electra tokenizer` and of `electra prepare`."""

    text_field: str = "text"
    """The field of a .jsonl record, or the column of a table, that holds the text."""
    encoding: str = "utf-8"
    """Encoding of the text, such as euc_kr, shift_jis, gb18030, latin_1 or utf-16; detect: told for
    each file, and said."""
    form: Literal["auto", "text"] = "auto"
    """What lies in a file whose name does not tell, as .jsonl does. auto: its beginning tells:
    plain text, JSON lines, an array of JSON, a table, pages of WikiExtractor; markup is refused.
    text: plain text."""


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig(TextConfig):
    """Settings of `electra tokenizer`."""

    kind: Literal["wordpiece", "bpe", "unigram"] = "wordpiece"
    """BERT's WordPiece; byte-level BPE, as GPT-2's, to which no character is unknown; or Unigram,
    as SentencePiece's."""
    vocab_size: Annotated[int, AtLeast(64)] = 30_522
    """Entries of the vocabulary, including the five special tokens. Source: BERT's uncased English
    vocabulary."""
    lowercase: bool | None = None
    """Whether text is lower-cased before tokenisation. Unset: true for wordpiece, as in BERT, and
    false for the others."""
    strip_accents: bool | None = None
    """Whether combining marks are removed: accents, but also vowels of Hindi and Thai, voiced marks
    of Japanese; wordpiece then takes Korean syllables apart. Unset: the value of `lowercase`, as in
    BERT."""
    split_ideographs: bool | None = None
    """Whether each Chinese character is a word of its own; wordpiece only. Unset: true."""
    min_frequency: Annotated[int, AtLeast(1)] = 2
    """Number of occurrences from which a pair of word pieces is merged; not for unigram."""

    needs = (
        Needs("split_ideographs=True|False", "kind=wordpiece", "the others split no ideographs"),
    )

    @property
    def lowers_case(self) -> bool:
        """`lowercase`, or its value if unset."""
        return self.kind == "wordpiece" if self.lowercase is None else self.lowercase

    @property
    def strips_accents(self) -> bool:
        """`strip_accents`, or its value if unset."""
        return self.lowers_case if self.strip_accents is None else self.strip_accents


@dataclass(frozen=True, kw_only=True)
class PrepareConfig(TextConfig):
    """Settings of `electra prepare`: reading text, and writing shards."""

    border: Literal["auto", "blank", "line", "file"] = "auto"
    """Border between two documents: a blank line, every line end, or the end of a file. auto: a
    blank line, but every line end in a file whose documents would have 1,048,576 characters or more
    on average (in its first 16,777,216). A .jsonl or .parquet record is always one document."""
    heldout_prob: Annotated[float, Within("[0, 1)")] = 0.005
    """Share of the documents held out for evaluation, chosen by a hash of their text. So a document
    stays held out when the corpus grows or is reordered, and so do its duplicates."""
    duplicates: Literal["keep", "exact", "near"] = "keep"
    """Which duplicates of earlier documents are dropped: none, those with the same text, or also
    those of which most runs of five tokens are the same (the extra near-duplicates). Those with the
    same text are counted in any case."""
    min_chars: Annotated[int, AtLeast(0)] = 0
    """Characters below which a document is dropped."""
    max_chars: Annotated[int, AtLeast(0)] = 0
    """Characters above which a document is dropped; 0: no limit."""
    max_repetition: Annotated[float, Within("[0, 1]")] = 1.0
    """Share of a document's runs of ten tokens that repeat an earlier run, above which the document
    is dropped. 1: no limit."""
    languages: str = ""
    """Languages to keep, as ISO 639-1 codes with commas between: "de, en" (the extra languages).
    Empty: all."""
    write_dropped: bool = False
    """Whether dropped documents are written to dropped.jsonl in the shards folder."""
    shard_tokens: Annotated[int, AtLeast(1)] = 1 << 26
    """Most tokens of a shard. A shard ends with the document that reaches this size, or with its
    task."""
    task_bytes: Annotated[int, AtLeast(1)] = 1 << 25
    """Text of one task, bytes. A compressed file is taken for four times its size. A task is the
    unit that is not begun again after an interrupt, and gives a shard of its own."""
    workers: Annotated[int, AtLeast(0)] = 0
    """Processes that do tasks at the same time; 0: one per available core, or with Ray as many as
    the cluster has room for. Does not change the result."""
    seed: int = 0
    """Seed of the choice of held-out documents."""


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(Settings):
    """Architecture and sizes of one encoder. Source: Table 6.

    Names are those of Hugging Face's ElectraConfig, and of its ModernBertConfig and DebertaV2Config
    for what only those architectures have.
    """

    architecture: Literal["electra", "modernbert", "deberta-v2"] = "electra"
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
    objective causal_lm needs it. The pairs that are hidden are computed all the same."""
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
        heads, hidden_size = self.num_attention_heads, self.hidden_size
        divides = hidden_size % heads == 0
        self.must("hidden_size", divides, f"be a multiple of num_attention_heads {heads}")
        of_this = f"in architecture {self.architecture}"
        for each in dataclasses.fields(self):
            if each.name in OF_ONE_ARCHITECTURE - ONLY[self.architecture]:
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
SIZES_OF_GENERATOR = ("hidden_fraction", "layers_fraction", "hidden_size", "num_hidden_layers")
"""Fields of GeneratorConfig."""


@dataclass(frozen=True, kw_only=True)
class GeneratorConfig(Settings):
    """Kind and size of the generator. Source: section 3.2, Table 6."""

    hidden_fraction: Annotated[float, Within("(0, 1]")] = 0.25
    """Hidden size, feed-forward width and number of heads, as a share of the discriminator's. The
    head size is the discriminator's; the generator has at least one head."""
    layers_fraction: Annotated[float, Within("(0, 1]")] = 1.0
    """Number of layers, as a share of the discriminator's."""
    hidden_size: Annotated[int, AtLeast(0)] = 0
    """Hidden size; 0: computed from `hidden_fraction`."""
    num_hidden_layers: Annotated[int, AtLeast(0)] = 0
    """Number of layers; 0: computed from `layers_fraction`."""
    kind: Literal["network", "frozen", "uniform", "unigram"] = "network"
    """network: a trained generator, as in the paper. frozen: the generator of another run, not
    trained further. uniform: no network, all tokens are equally likely. unigram: no network, tokens
    are sampled in proportion to their frequency in the shards."""
    frozen_run: str = ""
    """frozen: run folder of the generator or the masked language model. The size is taken from this
    run."""
    temperature: Annotated[float, Within("(0, inf)")] = 1.0
    """Divides the logits before sampling. Values above 1 make the samples more diverse."""
    temperature_decay: Annotated[float, Within("[0, inf)")] = 0.0
    """Share of the run's steps in which the temperature's distance from 1 falls to 1 / e of itself;
    0: the temperature stays. Source: Fast-ELECTRA (Dong et al. 2024), 0.1 with temperature=2 and
    kind=frozen."""
    disallow_correct: bool = False
    """Whether the original token is excluded from sampling."""
    shared_layers: Annotated[int, AtLeast(0)] = 0
    """rtd, teams, cocolm: the generator's first layers that are also the discriminator's; both must
    have the same hidden size. Source: TEAMS, whose generator shares 3 of its 6."""
    start: Literal["auto", "layers", "folder", "new"] = "auto"
    """With train.init_from, weights that the generator begins with. layers: the discriminator's
    lower layers and its embeddings; the head is new. folder: those of `start_folder`. new: initial
    weights. auto: the generator of train.init_from, or layers if it has none."""
    start_folder: str = ""
    """start=folder: a run or a Hugging Face folder of a masked language model. The size is taken
    from it."""
    warmup_steps: Annotated[int | None, AtLeast(0)] = None
    """First steps, in which the generator is trained alone: the discriminator is at rest, and so
    are shared embeddings. The learning rate has a schedule of its own, and warms up again for the
    steps that follow. Unset: a tenth of train.steps if train.init_from is set and the generator
    does not begin with trained weights of a generator, else 0."""

    section = "generator."
    needs = (
        Needs("kind=frozen", "frozen_run"),
        Needs("frozen_run", "kind=frozen"),
        Needs("start=folder", "start_folder"),
        Needs("start_folder", "start=folder"),
        Needs("start!=auto", "kind=network", "the others do not learn"),
        Needs("warmup_steps", "kind=network", "the others do not learn"),
        Needs("temperature!=1", "kind=network|frozen", "the others have no logits"),
        Needs("temperature_decay", "temperature!=1"),
        Needs("shared_layers", "kind=network", "the others have no layers to train"),
        Needs("warmup_steps", "shared_layers=0", "the discriminator's layers rest"),
    )

    def encoder(self, discriminator: EncoderConfig) -> EncoderConfig:
        """Return the generator's sizes for a discriminator.

        Raises:
            UserError: The hidden size is not a multiple of the number of heads.

        Source: run_pretraining.py get_generator_config.
        """
        hidden_size = self.hidden_size or round(discriminator.hidden_size * self.hidden_fraction)
        fraction = hidden_size / discriminator.hidden_size
        head_size = discriminator.head_size
        num_heads = max(1, hidden_size // head_size)
        require(
            hidden_size % num_heads == 0,
            f"the generator's hidden_size {hidden_size} must be a multiple of its {num_heads} "
            f"heads; {hidden_size - hidden_size % head_size} is",
        )
        num_layers = round(discriminator.num_hidden_layers * self.layers_fraction)
        is_projected = discriminator.architecture == "electra"
        return dataclasses.replace(
            discriminator,
            hidden_size=hidden_size,
            embedding_size=discriminator.embedding_size if is_projected else hidden_size,
            intermediate_size=round(discriminator.intermediate_size * fraction),
            num_attention_heads=num_heads,
            num_hidden_layers=self.num_hidden_layers or max(1, num_layers),
            enhanced_decoder=discriminator.published_heads,
        )


OBJECTIVES = {
    "rtd": "replaced_token_detection:ReplacedTokenDetection",
    "rtd_masked_only": "replaced_token_detection:MaskedOnly",
    "mlm": "masked_language_modelling:MaskedLanguageModelling",
    "replace_mlm": "masked_language_modelling:ReplaceMLM",
    "all_tokens_mlm": "masked_language_modelling:AllTokensMLM",
    "electric": "electric:Electric",
    "teams": "teams:Teams",
    "cocolm": "cocolm:CocoLM",
    "causal_lm": "masked_language_modelling:CausalLanguageModelling",
}
"""Module and class below method/ of each objective. A new objective is one more line here."""
ALONE = ("mlm", "causal_lm")
"""Objectives without a generator."""
SCHEMES = {("rtd", "two_stage"): "schemes:TwoStage", ("rtd", "adversarial"): "schemes:Adversarial"}
"""Module and class below method/ for an objective with a scheme other than joint."""


@dataclass(frozen=True, kw_only=True)
class MethodConfig(Settings):
    """Objective and training method. Source: sections 2, 3.2 and 3.5, Table 6."""

    mode: Literal["paper", "reference"] = "paper"
    """paper: as the paper says. reference: as the released code does: masked positions are drawn
    with replacement, 85/15, Adam without bias correction, decay during warm-up, Glorot
    initialisation where the code names no initialiser. docs/DEVIATIONS.md lists all differences."""
    objective: str = "rtd"
    """rtd: replaced token detection. rtd_masked_only: RTD with the discriminator's loss over the
    masked positions only ("ELECTRA 15%"). mlm: masked language modelling. replace_mlm: MLM with
    tokens sampled from a generator instead of [MASK]. all_tokens_mlm: replace_mlm that predicts
    every token, with a copy mechanism. electric: an energy-based cloze model, whose encoder scores
    sentences (`electra score`). teams: rtd and, at each masked position, the choice of the original
    among five tokens, with a last layer each. cocolm: rtd, beside it a language model that corrects
    the tokens, and the contrast of a row and its crop with all other rows. causal_lm: every token
    from those before it."""
    scheme: Literal["joint", "two_stage", "adversarial"] = "joint"
    """rtd: how generator and discriminator are trained. joint: together. two_stage: first the
    generator, then the discriminator. adversarial: the generator maximises the discriminator's
    loss, by policy gradient."""
    generator_steps: Annotated[int, AtLeast(0)] = 0
    """two_stage: steps of the first stage, which trains the generator. The learning rate warms up
    again in the second stage. 0: half of all steps."""
    sharing: Literal["none", "embeddings", "gdes", "all"] = "embeddings"
    """Parameters that the two networks share. embeddings: the embedding block (tokens, positions,
    segments, layer norm). gdes: gradient-disentangled embedding sharing: the encoder's token
    embeddings are the generator's, without gradient, plus a table of its own that begins at zero;
    exports hold the sum (DeBERTaV3). all: the whole encoder; both networks must have the same
    sizes."""
    mask_prob: Annotated[float, Within("(0, 1)")] = 0.15
    """Share of a row's real tokens that are masked. Source: 0.15 for Small and Base, 0.25 for Large
    (Table 6)."""
    mask_unit: Literal["token", "whole_word", "span"] = "token"
    """Unit of masking: single tokens, whole words, or spans of 3.8 words on average (SpanBERT)."""
    shown_at_mask: Literal["auto", "mask", "80/10/10", "85/15"] = "auto"
    """Input at the masked positions. mask: [MASK]. 80/10/10: as in BERT, 80% [MASK], 10% a random
    token, 10% the original token. 85/15: as in the released code, 85% [MASK], 15% the original
    token. auto: in paper mode 80/10/10 for the objective mlm, which is BERT's (section 3.5), and
    mask for the others; 85/15 in reference mode."""
    disc_weight: Annotated[float, Within("[0, inf)")] = 50.0
    """Lambda, the weight of the discriminator's loss."""
    selection_weight: Annotated[float, Within("[0, inf)")] = 2.0
    """teams: weight of the loss of the choice. Source: the released code, where `disc_weight` is
    5."""
    kept_layer: Literal["detection", "selection"] = "detection"
    """teams: last layer of the encoder that pre-training returns. detection: that of the
    discriminator, which can be exported with its head. selection: that of the choice, as in the
    released code; without a head."""
    corrective_weight: Annotated[float, Within("[0, inf)")] = 1.0
    """cocolm: weight of the loss of the language model; 0: there is none. Source: COCO-LM."""
    contrast_weight: Annotated[float, Within("[0, inf)")] = 1.0
    """cocolm: weight of the contrast, for which the discriminator also reads a crop of each row, of
    nine tenths of its tokens; 0: it does not. Source: COCO-LM."""

    section = "method."
    needs = (
        Needs("mode=reference", "mask_unit=token"),
        Needs("mode=reference", "objective=rtd|mlm", "the released code has no other"),
        Needs("mode=reference", "scheme=joint", "the released code has no other"),
        Needs("generator_steps", "scheme=two_stage"),
        Needs("scheme=two_stage", "sharing=none", "it freezes one network and trains the other"),
        Needs("scheme=adversarial", "sharing!=all", "its two networks have opposite losses"),
        Needs("selection_weight!=2", "objective=teams"),
        Needs("kept_layer=selection", "objective=teams"),
        Needs("corrective_weight!=1", "objective=cocolm"),
        Needs("contrast_weight!=1", "objective=cocolm"),
    )

    @property
    def contrasts(self) -> bool:
        """Whether the loss compares the rows of a step with each other."""
        return self.objective == "cocolm" and self.contrast_weight > 0

    def check(self) -> None:
        """Check what the table cannot say."""
        require_choice("method.objective", self.objective, OBJECTIVES)
        is_known = self.scheme == "joint" or (self.objective, self.scheme) in SCHEMES
        self.must("scheme", is_known, f"be joint for method.objective {self.objective}")


@dataclass(frozen=True, kw_only=True)
class ExamplesConfig(Settings):
    """Settings of the rows that are read from the shards. Source: build_pretraining_dataset.py."""

    sequence_length: Annotated[int, AtLeast(8)] = 128
    """Row length, tokens, including [CLS] and [SEP]."""
    single_segment_prob: Annotated[float, Within("[0, 1]")] = 0.1
    """Share of rows with one segment instead of two."""
    short_prob: Annotated[float, Within("[0, 1]")] = 0.05
    """Share of rows whose length is drawn uniformly from [5, sequence_length]. All other rows are
    full."""
    attend: Literal["row", "document"] = "row"
    """Range of attention. row: all tokens of the row. document: the tokens of the same document in
    the row. Consider document if documents are short and unrelated. It saves no time, and on a GPU
    it rules out the attention kernel without a mask, which is faster."""

    next_sentence: bool = False
    """Whether rows are for next-sentence prediction, which the objective mlm then learns as well:
    half of them, drawn at random, have the second segment of a row of another document, if their
    shard has one. Source: Devlin et al. 2019, "BERT", section 3.1."""

    section = "examples."
    needs = (
        Needs("next_sentence", "single_segment_prob=0", "every row has two segments"),
        Needs("next_sentence", "attend=row", "[CLS] judges both segments"),
    )


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Settings):
    """AdamW or Muon, and the learning rate's schedule. Source: section 3.1, Table 6."""

    learning_rate: Annotated[float, Within("(0, inf)")] = 5e-4
    """Peak learning rate."""
    warmup_steps: Annotated[int, AtLeast(0)] = 10_000
    """Steps of linear warm-up from 0 to the peak. If the setting is not given, and the preset's
    value exceeds a tenth of the run or of its shorter stage, the value is this tenth."""
    decay_fraction: Annotated[float, Within("(0, 1]")] = 1.0
    """Last part of the schedule, in which the rate decays linearly to 0. Before it the rate stays
    at the peak (warm-up, stable, decay). 1: decay begins when warm-up ends, as in the paper. Less
    than 1: up to the decay, runs of every length are the same run. Source: Hu et al. 2024
    (MiniCPM), section 4."""
    cooldown_steps: Annotated[int, AtLeast(0)] = 0
    """Last steps of a run that ends early, in which the rate decays linearly to 0 from what it is.
    Before them it is that of `planned_steps`. `pretrain --cooldown` sets both."""
    planned_steps: Annotated[int, AtLeast(0)] = 0
    """Steps of the run that the rate was planned for; 0: `train.steps`."""
    generator_rate: Annotated[float, Within("(0, inf)")] = 1.0
    """Learning rate of the parameters that only the generator has, as a multiple of the rate of all
    others; shared embeddings have the rate of the others. The code of DeBERTaV3 (He et al. 2021)
    has an option for two rates, where embeddings shared by gdes have the generator's."""
    weight_decay: Annotated[float, Within("[0, inf)")] = 0.01
    """Decoupled weight decay, multiplied by the learning rate. Biases and layer norms have none."""
    adam_beta1: Annotated[float, Within("[0, 1)")] = 0.9
    """Decay of Adam's first moment per step."""
    adam_beta2: Annotated[float, Within("[0, 1)")] = 0.999
    """Decay of Adam's second moment per step."""
    adam_epsilon: Annotated[float, Within("(0, inf)")] = 1e-6
    """Added to the denominator of Adam's update."""
    max_grad_norm: Annotated[float, Within("(0, inf]")] = 1.0
    """Maximum global norm of the gradient of an update; inf: no clipping."""
    matrices: Literal["adamw", "muon"] = "adamw"
    """Optimizer of the matrices in layers and heads. muon: momentum updates, made orthogonal, at
    the same learning rate (training/muon.py). All other parameters have AdamW."""

    section = "optimizer."


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Settings):
    """Length, batches, logging, checkpoints and hardware of a pre-training run."""

    steps: Annotated[int, AtLeast(1)]
    """Optimizer steps."""
    batch_size: Annotated[int, AtLeast(1)]
    """Rows per optimizer step."""
    accumulation: Annotated[int, AtLeast(1)] = 1
    """Micro-batches per optimizer step (gradient accumulation). Use more than 1 if the rows of a
    step do not fit into memory. The step is the same except for rounding and dropout."""
    updates: Literal["joint", "apart"] = "joint"
    """joint: one update of both losses, as in ELECTRA. apart: the generator's update, by its own
    clipped gradient, then the discriminator's, on tokens that the generator sampled before its
    update, as in DeBERTaV3. optimizer.generator_rate scales the generator's learning rate."""
    sharding: Literal["none", "full", "hybrid"] = "none"
    """How several processes hold the model. none: each holds all of it, which is fastest. full:
    each holds a part of every parameter, gradient and moment, and gathers the weights of a layer
    when it computes the layer (FSDP2). hybrid: so divided among the processes of one machine, with
    a copy on every machine. full and hybrid are for models that do not fit otherwise; their steps
    are neither compiled nor captured."""
    recompute_activations: bool = False
    """Activation checkpointing: each layer saves only its input, and recomputes its activations in
    the backward pass. Saves memory, and takes a sixth to a third more time."""
    seed: Annotated[int, AtLeast(0)] = 0
    """Seed of initial weights, row order, masked positions, sampled tokens and dropout."""
    init_from: str = ""
    """Continued pre-training: a run, one of its checkpoints, or a Hugging Face folder, as `electra
    import` and `electra export` write it, whose weights this run begins with. The optimizer, the
    schedule and the count of steps begin anew. The encoder's sizes are taken from it."""
    also_evaluate: str = ""
    """With init_from: shards of the text that its weights were trained on. Their held-out part is
    evaluated beside that of the new text."""
    evaluate_with: str = ""
    """With init_from: a run or a Hugging Face folder whose masked language model replaces, once,
    the tokens of the held-out rows that old_disc_loss and new_disc_loss are measured on. Unset: the
    run's own generator replaces them, before the discriminator's first step. The losses of two runs
    can be compared if both name the same folder."""
    initial_weights: Literal["bert", "neighbours", "cooccurrence"] = "bert"
    """bert: as in the paper. neighbours: the first layer starts with attention to adjacent tokens,
    and output biases start at the log token frequencies. cooccurrence: the same, and token
    embeddings start as a factor of the tokens' mutual information, counted in some seconds. Meant
    for short runs. The architectures modernbert and deberta-v2 have no position embeddings to find
    adjacent tokens by: neighbours is refused, and cooccurrence leaves the first layer as it is."""
    log_every: Annotated[int, AtLeast(1)] = 50
    """Steps between two records of metrics.jsonl."""
    evaluate_every: Annotated[int, AtLeast(1)] = 10_000
    """Steps between two evaluations on held-out rows. The last step is always evaluated."""
    evaluate_rows: Annotated[int, AtLeast(0)] = 1024
    """Held-out rows of an evaluation, at most; 0: no evaluation."""
    save_every: Annotated[int, AtLeast(1)] = 10_000
    """Steps between two checkpoints. The last step always writes a checkpoint."""
    keep_checkpoints: Annotated[int, AtLeast(1)] = 2
    """Number of newest checkpoints to keep; older checkpoints are removed."""
    keep_every: Annotated[int, AtLeast(0)] = 0
    """Every keep_every-th checkpoint is kept as well: those at multiples of keep_every * save_every
    steps. 0: none."""
    tracker: Literal["none", "wandb", "trackio"] = "none"
    """Where the records of metrics.jsonl and the settings go as well: to Weights & Biases, or to
    trackio. The project is electra, unless WANDB_PROJECT or TRACKIO_PROJECT names another. A run
    that is resumed stays one run there; steps that it computes again are sent again."""
    profile_step: Annotated[int, AtLeast(0)] = 0
    """Step after which torch's profiler records 3 steps, in a file trace.json.gz of the run folder,
    which https://ui.perfetto.dev opens; 0: no profile."""
    spike_sigmas: Annotated[float, Within("(0, inf]")] = 6.0
    """A step is skipped if the logarithm of its gradient norm exceeds the mean of the last 128 by
    this many of their standard deviations, after the warm-up of the learning rate; inf: never. A
    normal variable exceeds 6 once in 10^9 steps, and clipping bounds what smaller deviations can
    do. Source: OLMo-core, which compares the norms themselves."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Dtype of activations and matrix products; parameters are float32. auto: bfloat16 if the
    hardware multiplies bfloat16 natively, else float32."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to train on. auto: cuda if a CUDA device is available, else cpu."""
    threads: Annotated[int, AtLeast(0)] = 0
    """CPU threads; 0: one per available core."""
    check_memory: bool = True
    """Whether to refuse a run if the estimated memory of a step exceeds the free memory."""
    compile: Literal["auto", "yes", "no"] = "auto"
    """Whether the objective runs through torch.compile. auto: on a CUDA device with a working
    compiler. Compilation makes the first steps take a minute or two."""
    combine_kernels: bool = True
    """Whether compiled kernels that do not depend on each other share a launch. Most of a step's
    kernels are small sums for the gradients of biases and norms."""
    autotune: bool = False
    """Whether torch.compile times several kernels for each matrix product on a CUDA device, when a
    run begins. Takes minutes."""
    dependent_launch: bool = False
    """Whether a compiled kernel may be launched before the kernel before it has ended (programmatic
    dependent launch), on a GPU of compute capability 9.0 or above."""
    cuda_graph: bool = True
    """Whether the step is captured as a CUDA graph and replayed, on a CUDA device."""
    layers: Literal["auto", "plain", "fused", "triton"] = "auto"
    """plain: layers of ordinary modules, which support hooks and adapters. fused: the same layers,
    as one autograd function with a written-out forward and backward pass, for a CPU without
    torch.compile. triton: the same layers with attention over short rows and feed-forward as Triton
    kernels, for a CUDA device. auto: fused on a CPU without torch.compile, else plain."""

    section = "train."
    needs = (
        Needs("also_evaluate", "init_from", "it shows whether trained weights become worse"),
        Needs("evaluate_with", "init_from", "it shows whether trained weights become worse"),
        Order("accumulation", "at most", "batch_size"),
    )

    def check(self) -> None:
        """Check what the table cannot say."""
        self.must("seed", self.seed < 2**63, "be less than 2^63")

    @property
    def micro_batch_size(self) -> int:
        """Rows per micro-batch; the last micro-batch of a step may have fewer."""
        return -(-self.batch_size // self.accumulation)


@dataclass(frozen=True, kw_only=True)
class PretrainConfig(Settings):
    """All settings of `electra pretrain`."""

    model: EncoderConfig
    """Sizes of the encoder that pre-training returns: in RTD, the discriminator."""
    generator: GeneratorConfig = field(default_factory=GeneratorConfig)
    method: MethodConfig = field(default_factory=MethodConfig)
    examples: ExamplesConfig = field(default_factory=ExamplesConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    train: TrainConfig

    needs = (
        Order("examples.sequence_length", "at most", "model.max_position_embeddings"),
        Order("method.generator_steps", "less than", "train.steps"),
        Order("generator.warmup_steps", "less than", "train.steps"),
        Order("optimizer.cooldown_steps", "at most", "train.steps"),
        Needs("method.mode=reference", "optimizer.matrices=adamw"),
        Needs("method.mode=reference", "optimizer.decay_fraction=1"),
        Needs("method.mode=reference", "optimizer.generator_rate=1"),
        Needs("method.mode=reference", "model.architecture=electra"),
        Needs("train.sharding!=none", "optimizer.matrices=adamw", "Muon needs whole matrices"),
        *(
            Needs(each, f"method.objective!={'|'.join(ALONE)}", "it has no generator")
            for each in (
                *("generator.kind=frozen", "generator.start!=auto", "generator.warmup_steps"),
                "optimizer.generator_rate!=1",
            )
        ),
        Needs("generator.kind=frozen", "method.sharing=none", "shared parameters are trained"),
        Needs("generator.kind!=network", "method.scheme=joint", "it does not learn"),
        Needs("generator.temperature!=1", "method.scheme!=adversarial", "it rewards the softmax"),
        Needs("generator.disallow_correct", "method.scheme!=adversarial", "it rewards the softmax"),
        Needs("generator.kind!=network", "method.sharing!=all", "it does not learn"),
        Needs("method.sharing=gdes", "generator.kind=network", "the others have no embeddings"),
        Needs("method.objective=teams", "generator.kind=network|frozen", "tokens in context"),
        Needs("generator.shared_layers", "method.objective=rtd|teams|cocolm"),
        Needs("generator.shared_layers", "method.scheme=joint"),
        Needs("generator.shared_layers", "method.sharing=embeddings|gdes"),
        Needs("generator.shared_layers", "train.updates=joint", "an update each, not two"),
        Needs("method.objective=electric", "generator.kind=network", "its noise is learned"),
        Needs("method.objective=electric", "generator.temperature=1", "it needs the softmax"),
        Needs("generator.disallow_correct", "method.objective!=electric", "it needs the softmax"),
        Needs("method.objective=electric", "method.sharing!=all", "its noise reads one side"),
        Needs("method.objective=electric", "generator.start!=folder", "its noise has two towers"),
        Needs("method.objective=causal_lm", "model.causal", "a token must not see the next one"),
        Needs("model.causal", "method.objective=causal_lm", "the others read both sides"),
        Needs("method.mask_unit!=token", "method.objective!=causal_lm", "it masks nothing"),
        Needs("method.shown_at_mask!=auto", "method.objective!=causal_lm", "it masks nothing"),
        Needs("examples.next_sentence", "method.objective=mlm"),
        Needs("examples.next_sentence", "method.mode=paper", "the released code has none"),
        Needs("train.updates=apart", "method.objective=rtd"),
        Needs("train.updates=apart", "method.scheme=joint", "the others have their own order"),
        Needs("train.updates=apart", "method.sharing=gdes|none", "an update each, not two"),
        Needs("train.updates=apart", "method.mode=paper", "the released code has one update"),
        Needs("train.updates=apart", "generator.kind=network", "the others do not learn"),
        Needs("generator.start!=auto", "train.init_from"),
        Needs("generator.warmup_steps", "method.sharing!=all", "one of two networks rests"),
        Needs("method.sharing=all", "model.published_heads=False", "one has a decoder"),
        Needs("model.published_heads", "examples.attend=row", "every token's head reads [CLS]"),
        Needs("model.enhanced_decoder", "model.enhanced_decoder=False", "published_heads sets it"),
        Needs(
            "generator.warmup_steps",
            "method.scheme!=two_stage",
            "its first stage is the same, of method.generator_steps",
        ),
        Needs("optimizer.generator_rate!=1", "generator.kind=network"),
        Needs("optimizer.generator_rate!=1", "method.scheme=joint"),
        Needs("optimizer.generator_rate!=1", "method.sharing!=all", "one network has one rate"),
        Needs(
            "train.initial_weights=neighbours",
            "model.architecture=electra",
            "the others have no position embeddings; cooccurrence needs none",
        ),
    )

    def check(self) -> None:
        """Check what the table cannot say."""
        model, sharing, scheme = self.model, self.method.sharing, self.method.scheme
        starts = self.train.initial_weights
        self.must("model.type_vocab_size", model.type_vocab_size >= 2, "be >= 2, for two segments")
        learns = self.generator.kind == "network" and self.method.objective not in ALONE
        generator = self.generator.encoder(model) if learns else model
        is_as_wide = generator.hidden_size == model.hidden_size
        self.must(
            f"generator.{'layers' if is_as_wide else 'hidden'}_fraction",
            sharing != "all" or generator == model,
            "be 1 for method.sharing all: networks of one size",
        )
        self.must(
            "model.num_hidden_layers",
            self.method.objective != "teams" or model.num_hidden_layers > 1,
            "be at least 2 for method.objective teams, whose two tasks have a last layer each",
        )
        self.must(
            "train.steps",
            scheme != "two_stage" or self.train.steps > 1,
            "be at least 2 for method.scheme two_stage",
        )
        for name, is_so, how in (
            ("train.accumulation", self.train.accumulation == 1, "be 1"),
            ("train.batch_size", self.train.batch_size > 1, "be at least 2"),
            ("examples.attend", self.examples.attend == "row", "be row"),
        ):
            how += f" for method.contrast_weight {self.method.contrast_weight:g}"
            is_so = is_so or not self.method.contrasts
            self.must(name, is_so, f"{how}, which compares whole rows of a step (0: does not)")
        self.must(
            "model.embedding_size",
            starts == "bert" or model.architecture != "electra" or model.embedding_size % 2 == 0,
            f"be even for train.initial_weights {starts}",
        )
        shared, most = self.generator.shared_layers, generator.num_hidden_layers
        self.must(
            "generator.shared_layers",
            not shared or (is_as_wide and shared <= most <= model.num_hidden_layers),
            f"be at most the generator's {most} layers, with generator.hidden_fraction=1 and "
            "generator.layers_fraction at most 1",
        )
        takes = sharing in ("embeddings", "gdes") or scheme == "two_stage"
        self.must(
            "generator.hidden_fraction",
            not takes or model.architecture == "electra" or is_as_wide,
            f"be 1 for method.sharing {sharing}, method.scheme {scheme}, in architecture "
            f"{model.architecture}; a generator with generator.layers_fraction=0.25 is small too",
        )
        narrow = min(model.hidden_size, generator.hidden_size)
        self.must(
            "model.embedding_size",
            starts == "bert" or model.embedding_size <= narrow,
            f"be at most {narrow}, the hidden size of the narrowest network, for "
            f"train.initial_weights {starts} (bert: of any size)",
        )

    @property
    def second_stage(self) -> int:
        """First step after two_stage's first stage or generator.warmup_steps; 0: one stage."""
        if self.method.scheme != "two_stage":
            return self.generator.warmup_steps or 0
        return self.method.generator_steps or self.train.steps // 2

    @property
    def shortest_schedule(self) -> int:
        """Steps of the learning rate schedule; with two stages, the steps of the shorter stage.

        The generator's warm-up does not count: there the rate warms up in a tenth of its steps.
        """
        rest = self.train.steps - self.second_stage
        return min(self.second_stage or rest, rest) if self.method.scheme == "two_stage" else rest


_SIZES = tuple(f"generator.{name}" for name in SIZES_OF_GENERATOR)
_OF_JUDGES = ("method.disc_weight", "train.evaluate_with")
UNREAD = {
    "method.objective=mlm|causal_lm": (
        *("generator.", "method.sharing", "model.published_heads"),
        *_OF_JUDGES,
    ),
    "method.objective=causal_lm": ("method.mask_prob",),
    "method.objective=replace_mlm|all_tokens_mlm": _OF_JUDGES,
    "method.objective=electric": ("method.shown_at_mask", "train.evaluate_with"),
    "generator.kind=uniform|unigram": ("method.sharing", "method.shown_at_mask", *_SIZES),
    "generator.kind=frozen": _SIZES,
    "model.global_attn_every_n_layers=1": ("model.local_attention", "model.local_rope_theta"),
    "generator.num_hidden_layers": ("generator.layers_fraction",),
    "generator.hidden_size": ("generator.hidden_fraction",),
    "train.evaluate_rows=0": ("train.also_evaluate", "train.evaluate_with", "train.evaluate_every"),
}
"""Settings, or the beginnings of their names, that no rule refuses and nothing reads, by when."""


def tell_unread(config: PretrainConfig, given: Collection[str]) -> Iterator[str]:
    """Yield a sentence for each setting, of those that were given, that the run will not read."""
    for when, names in UNREAD.items():
        name, value, is_so = config.look_up(when)
        unread = sorted(each for each in given if is_so and each.startswith(names))
        yield from (f"{each} is not read with {name} {value}" for each in unread)
    train = config.train
    if train.profile_step >= train.steps:
        yield f"train.profile_step is not read: {train.profile_step} is no step before the last"


def longest_warmup(steps: int) -> int:
    """Return the longest warm-up of a schedule of so many steps, if none is set: a tenth."""
    return steps // 10


def require_schedule(config: PretrainConfig) -> None:
    """Refuse a run whose warm-up is as long as its schedule, or whose rate falls below 0.

    This rule is not part of PretrainConfig, because finished runs that break the rule must stay
    readable.
    """
    begin = config.train.steps - config.optimizer.cooldown_steps
    planned = config.optimizer.planned_steps or begin
    require(
        begin <= planned,
        f"optimizer.planned_steps {planned} must be at least {begin}, the steps before cooldown",
    )
    warmup_steps, steps = config.optimizer.warmup_steps, config.shortest_schedule
    schedule = "train.steps"
    if config.second_stage:
        schedule = (
            "steps after generator.warmup_steps"
            if config.generator.warmup_steps
            else "steps of the shorter stage"
        )
    require(
        warmup_steps < steps,
        f"optimizer.warmup_steps {warmup_steps} must be less than the {steps} {schedule}, for the "
        f"rate to reach its peak and decay: set optimizer.warmup_steps={longest_warmup(steps)}",
    )


OWN_METRICS = {
    "classification": ("accuracy", "f1", "mcc"),
    "regression": ("spearman", "pearson"),
    "choice": ("accuracy",),
}
"""Metrics of each kind of the user's own task. The first is the default headline metric."""


@dataclass(frozen=True, kw_only=True)
class OwnTaskConfig(Settings):
    """Settings of the user's own task: kind, files, columns and headline metric.

    The settings are given as `--task own --set own.field=value`, or as `--task FILE.toml`, a file
    of these fields.
    """

    name: str = "own"
    """Name of the task in results and tables."""
    kind: Literal["classification", "regression", "choice"] = "classification"
    """classification: a text or a pair of texts has one of several labels. regression: a text or a
    pair of texts has a number. choice: one of several texts goes with a text."""
    text: str | None = None
    """Column of the text. Unset: the first of text, sentence, text_a and sentence1 that train
    has."""
    text_b: str | None = None
    """Column of the second text of a pair. Unset: text_b or sentence2 if train has the column and
    `text` is unset, else no second text."""
    choices: str | None = None
    """choice: columns of the choices, separated by commas. A single column holds lists of
    choices."""
    label: str = "label"
    """Column of the label; may be missing in the test file. choice: number of the correct choice,
    from 0."""
    train: str | None = None
    """Training file; a relative path is in the data folder. Unset: train.tsv, .csv, .jsonl or
    .parquet, compressed or not."""
    dev: str | None = None
    """Dev file, as `train`. Unset: the file named dev, validation, valid, val or testa."""
    test: str | None = None
    """Test file, as `train`. Unset: the file named test, if there is one."""
    separator: str = ""
    """Character between the columns of a .csv or .tsv; a tab may be written as \\t. Unset: the
    comma, semicolon, tab or bar that is most frequent in the first line of a .csv, and a tab in a
    .tsv."""
    metric: Literal["accuracy", "f1", "mcc", "spearman", "pearson"] | None = None
    """Headline metric. Unset: the first metric of the kind in OWN_METRICS. All metrics of the kind
    are reported. f1: of two labels that of the last in the alphabet, else the mean over labels."""

    section = "own."
    needs = (
        Needs("kind=choice", "choices"),
        Needs("choices", "kind=choice"),
        Needs("text_b", "kind!=choice", "the choices go with own.text alone"),
    )

    def check(self) -> None:
        """Check what the table cannot say."""
        if self.metric:
            require_choice(f"own.metric of a {self.kind}", self.metric, OWN_METRICS[self.kind])
        self.must("name", self.name.isprintable() and self.name != "", "be printable, not empty")
        is_apart = self.label not in (self.text, self.text_b)
        self.must("label", is_apart, "be another column than the texts")
        is_character = len(self.between) <= 1 and self.between not in ('"', "\r", "\n")
        self.must("separator", is_character, "be one character, not a quotation mark")

    @property
    def between(self) -> str:
        """`separator` itself; a tab may be written as two characters."""
        return self.separator.replace("\\t", "\t")


@dataclass(frozen=True, kw_only=True)
class SquadConfig(Settings):
    """Files and head of `electra finetune --task squad-1.1` and `--task squad-2.0`."""

    train: str = ""
    """Training files in the data folder, separated by commas: .json, .jsonl or .parquet of SQuAD,
    of MRQA, or flat as of `datasets`. Unset: the file whose name begins with train."""
    dev: str = ""
    """Dev files, as `train`. Unset: the file whose name begins with dev or valid, or is val."""
    test: str = ""
    """Test files, as `train`; optional. Unset: the file whose name begins with test."""
    head: Literal["beam", "plain"] = "beam"
    """beam: as in the paper; predicts the end given the start, and "no answer" by a classifier.
    plain: start and end logits at each position, as in BERT and in transformers'
    ElectraForQuestionAnswering."""


@dataclass(frozen=True, kw_only=True)
class TaggingConfig(Settings):
    """Columns of the files of `electra finetune --task tagging`."""

    word_column: Annotated[int, AtLeast(1)] = 1
    """Number of the word's column, from 1."""
    tag_column: Annotated[int, AtLeast(0)] = 0
    """Number of the tag's column, from 1; 0: the last column."""

    section = "tagging."


@dataclass(frozen=True, kw_only=True)
class FeaturesConfig(Settings):
    """Feature-based training: BiLSTMs are trained on the hidden states of a frozen encoder.

    Source: BERT's feature-based approach (Devlin et al. 2019, section 5.3), which works best with
    `layers` 4.
    """

    layers: Annotated[int, AtLeast(0)] = 0
    """Number of top layers whose hidden states are features; 0: the encoder is fine-tuned."""
    combine: Literal["concat", "sum"] = "concat"
    """concat: the layers' hidden states are concatenated. sum: learnt weighted sum of the layers'
    hidden states, as in ELMo."""
    lstm_size: Annotated[int, AtLeast(0)] = 0
    """Units of a BiLSTM per direction; 0: the encoder's hidden size, as in BERT (768)."""
    lstm_layers: Annotated[int, AtLeast(1)] = 2
    """Number of stacked BiLSTMs."""

    section = "features."
    needs = (
        Needs("combine!=concat", "layers", "4, as BERT has it"),
        Needs("lstm_size", "layers", "4, as BERT has it"),
        Needs("lstm_layers!=2", "layers", "4, as BERT has it"),
    )


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig(Settings):
    """All settings of `electra finetune`. Source: Table 7; FINETUNE_PRESETS has the presets."""

    learning_rate: Annotated[float, Within("(0, inf)")] = 3e-4
    """Peak learning rate of the head; lower layers have lower rates."""
    layer_lr_decay: Annotated[float, Within("(0, 1]")] = 0.8
    """Learning rate of a layer divided by the learning rate of the layer above."""
    warmup_fraction: Annotated[float, Within("[0, 1)")] = 0.1
    """Share of the steps with linear warm-up from 0. Linear decay to 0 follows."""
    weight_decay: Annotated[float, Within("[0, inf)")] = 0.0
    """Decoupled weight decay, multiplied by the learning rate. Source: Table 7 has 0, the released
    code 0.01."""
    max_grad_norm: Annotated[float, Within("(0, inf]")] = 1.0
    """Maximum global norm of the gradient; inf: no clipping."""
    mode: Literal["paper", "reference"] = "paper"
    """reference: as in the released code, the loss is the sum over the batch instead of the mean,
    Adam has no bias correction, decay runs during warm-up, and each layer's learning rate is scaled
    once more (the top layer's by layer_lr_decay squared). The released code's weight_decay is 0.01.
    """
    batch_size: Annotated[int, AtLeast(1)] = 32
    """Examples per optimizer step."""
    train_examples: Annotated[int, AtLeast(0)] = 0
    """Number of training examples to use, drawn at random, the same for every seed; 0: all."""
    dev_fraction: Annotated[float, Within("[0, 1)")] = 0.0
    """Share of train that becomes the dev set if there is no dev file, such as 0.1. It follows a
    hash of the texts, so equal texts (of a pair the first, of questions the context) fall on one
    side."""
    epochs: Annotated[int, AtLeast(0)] = 0
    """Passes over train. 0: the task's default, which is 10 for GLUE's RTE and STS-B, 2 for SQuAD,
    and 3 for all other tasks."""
    sequence_length: Annotated[int, AtLeast(0)] = 0
    """Longest row, tokens, including special tokens. Longer texts are truncated; in SQuAD and
    tagging they are split into several rows. 0: 512 for SQuAD, 256 for tagging, 128 for all other
    tasks, and at most the row length of the pre-training."""
    dropout_prob: Annotated[float, Within("[0, 1)")] = 0.1
    """Dropout probability in the encoder and before the classifier. Replaces the pre-training's."""
    pooling: Literal["cls", "mean", "segments"] = "cls"
    """Hidden states that the classifier reads. cls: that of [CLS], as in the paper. mean: the mean
    over the row's tokens. segments: of a pair of texts the mean over each of them, the absolute
    difference and the product of the two means, of hidden states and embeddings; of a single text,
    and in multiple choice, as mean. A causal encoder has no use for cls without a BiLSTM.
    Use segments for a small or briefly trained encoder: no pre-training loss trains the hidden
    state of [CLS] directly, and few examples do not teach attention to compare two texts."""
    bilstm: bool = False
    """Whether a BiLSTM with new weights stands between encoder and head; its two directions are
    together as wide as the hidden states. Source: BERT's ablation "LTR & No NSP + BiLSTM" (Devlin
    et al. 2019, table 5)."""
    reseeds: Annotated[int, AtLeast(0)] = 2
    """Maximum number of replacements of a seed whose run collapses, each with another seed. The
    results are those of the original seeds. The median with replacements is reported separately.
    The default in a grid is 0."""
    reset_layers: Annotated[int, AtLeast(0)] = 0
    """Top layers that begin with new weights instead of the pre-trained ones. The last layer of a
    small discriminator tells above all whether a token was replaced. Source: Zhang et al. 2021,
    "Revisiting Few-sample BERT Fine-tuning" (section 5)."""
    swap_pairs: bool = True
    """Train on every pair of MRPC and STS-B in both orders, as the released code does."""
    keep_epoch: Literal["last", "best"] = "last"
    """Epoch whose weights and scores are kept. best: the epoch with the best headline metric on
    dev. The dev score is then no longer a score on unseen examples. The results say whether last or
    best was used."""
    score_epochs: Literal["all", "last"] = "all"
    """Epochs after which dev is scored. last: the last one only, which saves time if dev is large
    beside train."""
    own: OwnTaskConfig = field(default_factory=OwnTaskConfig)
    squad: SquadConfig = field(default_factory=SquadConfig)
    tagging: TaggingConfig = field(default_factory=TaggingConfig)
    features: FeaturesConfig = field(default_factory=FeaturesConfig)
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """As in pre-training."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """As in pre-training."""
    threads: Annotated[int, AtLeast(0)] = 0
    """CPU threads; 0: one for each core this process may use."""
    layers: Literal["auto", "plain", "fused"] = "auto"
    """As in pre-training."""

    needs = (
        Needs("keep_epoch=best", "score_epochs=all"),
        Needs("bilstm", "features.layers=0", "they have BiLSTMs"),
    )

    def check(self) -> None:
        """Check what the table cannot say."""
        self.must("sequence_length", not 0 < self.sequence_length < 8, "be 0 or >= 8")
