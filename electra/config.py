"""All settings of all commands: frozen dataclasses.

A setting is one field of one dataclass. The string below a field gives meaning, unit and source.
This module does not import torch, so `--help` and `--dry-run` answer at once. settings.py reads and
overrides settings.

Table 6 and Table 7 are tables of the ELECTRA paper's appendix.
"""

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Literal

from electra.errors import did_you_mean, require


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """Settings of `electra tokenizer`."""

    kind: Literal["wordpiece", "bpe", "unigram"] = "wordpiece"
    """BERT's WordPiece; byte-level BPE, as GPT-2's, to which no character is unknown; or Unigram,
    as SentencePiece's."""
    vocab_size: int = 30_522
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
    min_frequency: int = 2
    """Number of occurrences from which a pair of word pieces is merged; not for unigram."""
    text_field: str = "text"
    """The field of a .jsonl record, or the column of a table, that holds the text."""
    encoding: str = "utf-8"
    """Encoding of the text, as in `electra prepare`."""

    def __post_init__(self) -> None:
        require(self.vocab_size >= 64, f"vocab_size must be at least 64, not {self.vocab_size}")
        require(self.min_frequency >= 1, f"min_frequency must be >= 1, not {self.min_frequency}")
        require(
            self.split_ideographs is None or self.kind == "wordpiece",
            f"split_ideographs is a setting of wordpiece; kind={self.kind} has none",
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
class PrepareConfig:
    """Settings of `electra prepare`: reading text, and writing shards."""

    border: Literal["auto", "blank", "line", "file"] = "auto"
    """Border between two documents: a blank line, every line end, or the end of a file. auto: a
    blank line, but every line end in a file whose documents would have 1,048,576 characters or more
    on average (in its first 16,777,216). A .jsonl or .parquet record is always one document."""
    text_field: str = "text"
    """The field of a .jsonl record, or the column of a .parquet file, that holds the text."""
    encoding: str = "utf-8"
    """Encoding of the text, such as euc_kr, shift_jis, gb18030, latin_1 or utf-16; detect: told for
    each file, and said."""
    heldout_prob: float = 0.005
    """Share of the documents held out for evaluation, chosen by a hash of their text. So a document
    stays held out when the corpus grows or is reordered, and so do its duplicates."""
    duplicates: Literal["keep", "exact", "near"] = "keep"
    """Which duplicates of earlier documents are dropped: none, those with the same text, or also
    those of which most runs of five tokens are the same (the extra near-duplicates). Those with the
    same text are counted in any case."""
    min_chars: int = 0
    """Characters below which a document is dropped."""
    max_chars: int = 0
    """Characters above which a document is dropped; 0: no limit."""
    max_repetition: float = 1.0
    """Share of a document's runs of ten tokens that repeat an earlier run, above which the document
    is dropped. 1: no limit."""
    languages: str = ""
    """Languages to keep, as ISO 639-1 codes with commas between: "de, en" (the extra languages).
    Empty: all."""
    write_dropped: bool = False
    """Whether dropped documents are written to dropped.jsonl in the shards folder."""
    shard_tokens: int = 1 << 26
    """Most tokens of a shard. A shard ends with the document that reaches this size, or with its
    task."""
    task_bytes: int = 1 << 25
    """Text of one task, bytes. A compressed file is taken for four times its size. A task is the
    unit that is not begun again after an interrupt, and gives a shard of its own."""
    workers: int = 0
    """Processes that do tasks at the same time; 0: one per available core, or with Ray as many as
    the cluster has room for. Does not change the result."""
    seed: int = 0
    """Seed of the choice of held-out documents."""

    def __post_init__(self) -> None:
        require(
            0 <= self.heldout_prob < 1, f"heldout_prob must lie in [0, 1), not {self.heldout_prob}"
        )
        for name in ("min_chars", "max_chars", "workers"):
            value = getattr(self, name)
            require(value >= 0, f"{name} must be >= 0, not {value}")
        for name in ("shard_tokens", "task_bytes"):
            value = getattr(self, name)
            require(value >= 1, f"{name} must be >= 1, not {value}")
        require(
            0 <= self.max_repetition <= 1,
            f"max_repetition must lie in [0, 1], not {self.max_repetition}",
        )


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Architecture and sizes of one encoder. Source: Table 6.

    Names are those of Hugging Face's ElectraConfig, and of its ModernBertConfig for what only that
    architecture has.
    """

    architecture: Literal["electra", "modernbert"] = "electra"
    """electra: layers as in BERT, which the paper has. modernbert: the graph of Hugging Face's
    ModernBertModel: norms before attention and feed-forward, rotary positions, a gated
    feed-forward, local attention in most layers. The presets modern-... have it."""
    vocab_size: int = 30_522
    """Entries of the vocabulary. Pre-training takes the value from the shards."""
    embedding_size: int
    """Width of the embeddings. A linear layer projects them to `hidden_size` if the two differ.
    modernbert: they may not differ."""
    hidden_size: int
    """Width of the hidden states."""
    num_hidden_layers: int
    """Number of transformer layers."""
    num_attention_heads: int
    """Attention heads per layer; must divide `hidden_size`."""
    intermediate_size: int
    """Width inside the feed-forward layer."""
    max_position_embeddings: int = 512
    """Longest row, tokens."""
    type_vocab_size: int = 2
    """Number of segments. modernbert: it has no segment embeddings; leave it at 2."""
    hidden_dropout_prob: float = 0.1
    """Dropout probability of the embeddings and of the outputs of attention and feed-forward.
    modernbert: of the embeddings and inside the feed-forward (its embedding_dropout and
    mlp_dropout)."""
    attention_probs_dropout_prob: float = 0.1
    """Dropout probability of the attention probabilities. modernbert: and of the attention output
    (its attention_dropout)."""
    layer_norm_eps: float = 1e-12
    """Added to the variance in layer norms (ModernBertConfig: norm_eps)."""
    initializer_range: float = 0.02
    """Standard deviation of the normal distribution of initial weights, truncated at two standard
    deviations. modernbert: divided by sqrt(2 num_hidden_layers) where a layer adds its result to
    the hidden states."""
    local_attention: int = 128
    """modernbert: width of the window of local attention, tokens. A token attends to itself and
    local_attention / 2 tokens on either side."""
    global_attn_every_n_layers: int = 3
    """modernbert: every n-th layer, the first included, attends to the whole row, the others to the
    window. 1: all layers attend to the whole row."""
    global_rope_theta: float = 160_000.0
    """modernbert: base of the rotary positions in layers that attend to the whole row."""
    local_rope_theta: float = 10_000.0
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

    def __post_init__(self) -> None:
        for name in (
            "vocab_size",
            "embedding_size",
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "intermediate_size",
            "max_position_embeddings",
            "type_vocab_size",
        ):
            require(getattr(self, name) >= 1, f"{name} must be >= 1, not {getattr(self, name)}")
        require(
            self.hidden_size % self.num_attention_heads == 0,
            f"hidden_size {self.hidden_size} must be a multiple of num_attention_heads "
            f"{self.num_attention_heads}",
        )
        for name in ("layer_norm_eps", "initializer_range"):
            value = getattr(self, name)
            require(0 <= value < math.inf, f"{name} must be >= 0 and finite, not {value}")
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            value = getattr(self, name)
            require(0 <= value < 1, f"{name} must lie in [0, 1), not {value}")
        if self.architecture == "electra":
            for field_ in dataclasses.fields(self):
                value = getattr(self, field_.name)
                require(
                    field_.name not in MODERNBERT_ONLY or value == field_.default,
                    f"{field_.name} {value} is for architecture modernbert; electra has "
                    f"{field_.default}",
                )
            return
        require(
            self.embedding_size == self.hidden_size,
            f"embedding_size {self.embedding_size} must be hidden_size {self.hidden_size}: the "
            "architecture modernbert has no layer between embeddings and hidden states",
        )
        require(
            self.type_vocab_size == 2,
            f"type_vocab_size {self.type_vocab_size} is for architecture electra; modernbert has "
            "no segment embeddings: leave it at 2",
        )
        require(
            self.local_attention >= 2 and self.local_attention % 2 == 0,
            f"local_attention must be even and >= 2, not {self.local_attention}",
        )
        require(
            self.global_attn_every_n_layers >= 1,
            f"global_attn_every_n_layers must be >= 1, not {self.global_attn_every_n_layers}",
        )
        for name in ("global_rope_theta", "local_rope_theta"):
            value = getattr(self, name)
            require(0 < value < math.inf, f"{name} must be > 0 and finite, not {value}")
        require(
            self.head_size % 2 == 0,
            f"rotary positions need heads of an even size, not {self.head_size}: set "
            "num_attention_heads",
        )

    @property
    def head_size(self) -> int:
        """Width of an attention head."""
        return self.hidden_size // self.num_attention_heads

    def is_local(self, layer: int) -> bool:
        """Return whether a layer, counted from 0, attends to the window of local attention."""
        return self.architecture == "modernbert" and layer % self.global_attn_every_n_layers > 0


MODERNBERT_ONLY = frozenset(
    ("local_attention", "global_attn_every_n_layers", "global_rope_theta", "local_rope_theta")
    + ("norm_bias", "attention_bias", "mlp_bias", "classifier_bias")
)
"""Fields of EncoderConfig that the architecture electra does not read."""


NOT_SIZES = ("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range")
"""Fields of EncoderConfig on which trained weights do not depend."""
SIZES_OF_GENERATOR = ("hidden_fraction", "layers_fraction", "hidden_size", "num_hidden_layers")
"""Fields of GeneratorConfig."""


@dataclass(frozen=True, kw_only=True)
class GeneratorConfig:
    """Kind and size of the generator. Source: section 3.2, Table 6."""

    hidden_fraction: float = 0.25
    """Hidden size, feed-forward width and number of heads, as a share of the discriminator's. The
    head size is the discriminator's; the generator has at least one head."""
    layers_fraction: float = 1.0
    """Number of layers, as a share of the discriminator's."""
    hidden_size: int = 0
    """Hidden size; 0: computed from `hidden_fraction`."""
    num_hidden_layers: int = 0
    """Number of layers; 0: computed from `layers_fraction`."""
    kind: Literal["network", "frozen", "uniform", "unigram"] = "network"
    """network: a trained generator, as in the paper. frozen: the generator of another run, not
    trained further. uniform: no network, all tokens are equally likely. unigram: no network, tokens
    are sampled in proportion to their frequency in the shards."""
    frozen_run: str = ""
    """frozen: run folder of the generator or the masked language model. The size is taken from this
    run."""
    temperature: float = 1.0
    """Divides the logits before sampling. Values above 1 make the samples more diverse."""
    disallow_correct: bool = False
    """Whether the original token is excluded from sampling."""
    start: Literal["auto", "layers", "folder", "new"] = "auto"
    """With train.init_from, weights that the generator begins with. layers: the discriminator's
    lower layers and its embeddings; the head is new. folder: those of `start_folder`. new: initial
    weights. auto: the generator of train.init_from, or layers if it has none."""
    start_folder: str = ""
    """start=folder: a run or a Hugging Face folder of a masked language model. The size is taken
    from it."""
    warmup_steps: int | None = None
    """First steps, in which the generator is trained alone: the discriminator is at rest, and so
    are shared embeddings. The learning rate has a schedule of its own, and warms up again for the
    steps that follow. Unset: a tenth of train.steps if train.init_from is set and the generator
    does not begin with trained weights of a generator, else 0."""

    def __post_init__(self) -> None:
        for name in ("hidden_fraction", "layers_fraction"):
            value = getattr(self, name)
            require(0 < value <= 1, f"generator.{name} must lie in (0, 1], not {value}")
        for name in ("hidden_size", "num_hidden_layers"):
            require(
                getattr(self, name) >= 0,
                f"generator.{name} must be >= 0, not {getattr(self, name)}",
            )
        require(
            0 < self.temperature < math.inf,
            f"generator.temperature must be > 0 and finite, not {self.temperature}",
        )
        require(
            (self.kind == "frozen") == bool(self.frozen_run),
            "generator.kind=frozen and generator.frozen_run=RUN go together; "
            f"now they are {self.kind} and {self.frozen_run or 'unset'}",
        )
        require(
            (self.start == "folder") == bool(self.start_folder),
            "generator.start=folder and generator.start_folder=FOLDER go together; "
            f"now they are {self.start} and {self.start_folder or 'unset'}",
        )
        for name, unset in (("start", "auto"), ("warmup_steps", None)):
            value = getattr(self, name)
            require(
                self.kind == "network" or value in (unset, 0),
                f"generator.{name} {value} is of a generator that learns, not of kind {self.kind}",
            )
        require(
            (self.warmup_steps or 0) >= 0,
            f"generator.warmup_steps must be >= 0, not {self.warmup_steps}",
        )
        require(
            self.kind in ("network", "frozen") or self.temperature == 1,
            f"generator.temperature {self.temperature} has no meaning for kind {self.kind}; leave "
            "it at 1",
        )

    def encoder(self, discriminator: EncoderConfig) -> EncoderConfig:
        """Return the generator's sizes for a discriminator.

        Raises:
            UserError: The hidden size is not a multiple of the number of heads.

        Source: run_pretraining.py get_generator_config.
        """
        hidden_size = self.hidden_size or round(discriminator.hidden_size * self.hidden_fraction)
        fraction = hidden_size / discriminator.hidden_size
        head_size = discriminator.hidden_size // discriminator.num_attention_heads
        num_heads = max(1, hidden_size // head_size)
        require(
            hidden_size % num_heads == 0,
            f"the generator's hidden_size {hidden_size} must be a multiple of its {num_heads} "
            f"heads; {hidden_size - hidden_size % head_size} is",
        )
        num_layers = round(discriminator.num_hidden_layers * self.layers_fraction)
        is_modern = discriminator.architecture == "modernbert"
        return dataclasses.replace(
            discriminator,
            hidden_size=hidden_size,
            embedding_size=hidden_size if is_modern else discriminator.embedding_size,
            intermediate_size=round(discriminator.intermediate_size * fraction),
            num_attention_heads=num_heads,
            num_hidden_layers=self.num_hidden_layers or max(1, num_layers),
        )


OBJECTIVES = {
    "rtd": "replaced_token_detection:ReplacedTokenDetection",
    "rtd_masked_only": "replaced_token_detection:MaskedOnly",
    "mlm": "masked_language_modelling:MaskedLanguageModelling",
    "replace_mlm": "masked_language_modelling:ReplaceMLM",
    "all_tokens_mlm": "masked_language_modelling:AllTokensMLM",
    "electric": "electric:Electric",
}
"""Module and class below method/ of each objective. A new objective is one more line here."""
SCHEMES = {
    ("rtd", "two_stage"): "schemes:TwoStage",
    ("rtd", "adversarial"): "schemes:Adversarial",
}
"""Module and class below method/ for an objective with a scheme other than joint."""


@dataclass(frozen=True, kw_only=True)
class MethodConfig:
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
    sentences (`electra score`)."""
    scheme: Literal["joint", "two_stage", "adversarial"] = "joint"
    """rtd: how generator and discriminator are trained. joint: together. two_stage: first the
    generator, then the discriminator. adversarial: the generator maximises the discriminator's
    loss, by policy gradient."""
    generator_steps: int = 0
    """two_stage: steps of the first stage, which trains the generator. The learning rate warms up
    again in the second stage. 0: half of all steps."""
    sharing: Literal["none", "embeddings", "all"] = "embeddings"
    """Parameters that the two networks share. embeddings: the embedding block (tokens, positions,
    segments, layer norm). all: the whole encoder; both networks must have the same sizes."""
    mask_prob: float = 0.15
    """Share of a row's real tokens that are masked. Source: 0.15 for Small and Base, 0.25 for Large
    (Table 6)."""
    mask_unit: Literal["token", "whole_word", "span"] = "token"
    """Unit of masking: single tokens, whole words, or spans of 3.8 words on average (SpanBERT)."""
    shown_at_mask: Literal["auto", "mask", "80/10/10", "85/15"] = "auto"
    """Input at the masked positions. mask: [MASK]. 80/10/10: as in BERT, 80% [MASK], 10% a random
    token, 10% the original token. 85/15: as in the released code, 85% [MASK], 15% the original
    token. auto: in paper mode 80/10/10 for the objective mlm, which is BERT's (section 3.5), and
    mask for the others; 85/15 in reference mode."""
    disc_weight: float = 50.0
    """Lambda, the weight of the discriminator's loss."""

    def __post_init__(self) -> None:
        require(0 < self.mask_prob < 1, f"mask_prob must lie in (0, 1), not {self.mask_prob}")
        require(
            0 <= self.disc_weight < math.inf,
            f"disc_weight must be >= 0 and finite, not {self.disc_weight}",
        )
        require(
            self.objective in OBJECTIVES,
            f"method.objective cannot be {self.objective!r}"
            f"{did_you_mean(self.objective, OBJECTIVES)}",
        )
        require(
            self.mode == "paper" or self.mask_unit == "token",
            f"method.mode reference masks tokens; mask_unit {self.mask_unit} needs mode paper",
        )
        known = [objective for objective, scheme in SCHEMES if scheme == self.scheme]
        require(
            self.scheme == "joint" or self.objective in known,
            f"method.scheme {self.scheme} is a way of training {' or '.join(known)}, not "
            f"{self.objective}",
        )
        require(
            self.scheme != "two_stage" or self.sharing == "none",
            f"method.scheme two_stage freezes the generator, and shared parameters cannot be both "
            f"frozen and trained: set method.sharing=none, not "
            f"{self.sharing}",
        )
        require(
            self.scheme != "adversarial" or self.sharing != "all",
            "method.scheme adversarial needs two networks, and with method.sharing all there is "
            "only one encoder: choose embeddings or none",
        )
        require(
            self.generator_steps == 0 or self.scheme == "two_stage",
            f"method.generator_steps {self.generator_steps} needs method.scheme=two_stage",
        )


@dataclass(frozen=True, kw_only=True)
class ExamplesConfig:
    """Settings of the rows that are read from the shards. Source: build_pretraining_dataset.py."""

    sequence_length: int = 128
    """Row length, tokens, including [CLS] and [SEP]."""
    single_segment_prob: float = 0.1
    """Share of rows with one segment instead of two."""
    short_prob: float = 0.05
    """Share of rows whose length is drawn uniformly from [5, sequence_length]. All other rows are
    full."""
    attend: Literal["row", "document"] = "row"
    """Range of attention. row: all tokens of the row. document: the tokens of the same document in
    the row. Consider document if documents are short and unrelated. It saves no time, and on a GPU
    it rules out the attention kernel without a mask, which is faster."""

    def __post_init__(self) -> None:
        require(
            self.sequence_length >= 8, f"sequence_length must be >= 8, not {self.sequence_length}"
        )
        for name in ("single_segment_prob", "short_prob"):
            value = getattr(self, name)
            require(0 <= value <= 1, f"{name} must lie in [0, 1], not {value}")


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW or Muon, and the learning rate's schedule. Source: section 3.1, Table 6."""

    learning_rate: float = 5e-4
    """Peak learning rate."""
    warmup_steps: int = 10_000
    """Steps of linear warm-up from 0 to the peak. If the setting is not given, and the preset's
    value exceeds a tenth of the run or of its shorter stage, the value is this tenth."""
    decay_fraction: float = 1.0
    """Last part of the schedule, in which the rate decays linearly to 0. Before it the rate stays
    at the peak (warm-up, stable, decay). 1: decay begins when warm-up ends, as in the paper. Less
    than 1: up to the decay, runs of every length are the same run. Source: Hu et al. 2024
    (MiniCPM), section 4."""
    generator_rate: float = 1.0
    """Learning rate of the parameters that only the generator has, as a multiple of the rate of all
    others; shared embeddings have the rate of the others. The code of DeBERTaV3 (He et al. 2021)
    has an option for two rates."""
    weight_decay: float = 0.01
    """Decoupled weight decay, multiplied by the learning rate. Biases and layer norms have none."""
    adam_beta1: float = 0.9
    """Decay of Adam's first moment per step."""
    adam_beta2: float = 0.999
    """Decay of Adam's second moment per step."""
    adam_epsilon: float = 1e-6
    """Added to the denominator of Adam's update."""
    max_grad_norm: float = 1.0
    """Maximum global norm of the gradient of both networks; inf: no clipping."""
    matrices: Literal["adamw", "muon"] = "adamw"
    """Optimizer of the matrices in layers and heads. muon: momentum updates, made orthogonal, at
    the same learning rate (training/muon.py). All other parameters have AdamW."""

    def __post_init__(self) -> None:
        for name in ("learning_rate", "generator_rate", "adam_epsilon"):
            value = getattr(self, name)
            require(0 < value < math.inf, f"{name} must be > 0 and finite, not {value}")
        require(self.warmup_steps >= 0, f"warmup_steps must be >= 0, not {self.warmup_steps}")
        require(
            0 < self.decay_fraction <= 1,
            f"decay_fraction must lie in (0, 1], not {self.decay_fraction}; 1: no stable part",
        )
        require(
            0 <= self.weight_decay < math.inf,
            f"weight_decay must be >= 0 and finite, not {self.weight_decay}",
        )
        for name in ("adam_beta1", "adam_beta2"):
            value = getattr(self, name)
            require(0 <= value < 1, f"{name} must lie in [0, 1), not {value}")
        require(
            self.max_grad_norm > 0,
            f"max_grad_norm must be > 0, not {self.max_grad_norm}; inf does not clip",
        )


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Length, batches, logging, checkpoints and hardware of a pre-training run."""

    steps: int
    """Optimizer steps."""
    batch_size: int
    """Rows per optimizer step."""
    accumulation: int = 1
    """Micro-batches per optimizer step (gradient accumulation). Use more than 1 if the rows of a
    step do not fit into memory. The step is the same except for rounding and dropout."""
    sharding: Literal["none", "full", "hybrid"] = "none"
    """How several processes hold the model. none: each holds all of it, which is fastest. full:
    each holds a part of every parameter, gradient and moment, and gathers the weights of a layer
    when it computes the layer (FSDP2). hybrid: so divided among the processes of one machine, with
    a copy on every machine. full and hybrid are for models that do not fit otherwise; their steps
    are neither compiled nor captured."""
    recompute_activations: bool = False
    """Activation checkpointing: each layer saves only its input, and recomputes its activations in
    the backward pass. Saves memory, and takes a sixth to a third more time."""
    seed: int = 0
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
    for short runs. The architecture modernbert has no position embeddings to find adjacent tokens
    by: neighbours is refused, and cooccurrence leaves the first layer as it is."""
    log_every: int = 50
    """Steps between two records of metrics.jsonl."""
    evaluate_every: int = 10_000
    """Steps between two evaluations on held-out rows. The last step is always evaluated."""
    evaluate_rows: int = 1024
    """Held-out rows of an evaluation, at most; 0: no evaluation."""
    save_every: int = 10_000
    """Steps between two checkpoints. The last step always writes a checkpoint."""
    keep_checkpoints: int = 2
    """Number of newest checkpoints to keep; older checkpoints are removed."""
    keep_every: int = 0
    """Every keep_every-th checkpoint is kept as well: those at multiples of keep_every * save_every
    steps. 0: none."""
    profile_step: int = 0
    """Step after which torch's profiler records 3 steps, in a file trace.json.gz of the run folder,
    which https://ui.perfetto.dev opens; 0: no profile."""
    spike_sigmas: float = 6.0
    """A step is skipped if the logarithm of its gradient norm exceeds the mean of the last 128 by
    this many of their standard deviations, after the warm-up of the learning rate; inf: never. A
    normal variable exceeds 6 once in 10^9 steps, and clipping bounds what smaller deviations can
    do. Source: OLMo-core, which compares the norms themselves."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Dtype of activations and matrix products; parameters are float32. auto: bfloat16 if the
    hardware multiplies bfloat16 natively, else float32."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to train on. auto: cuda if a CUDA device is available, else cpu."""
    threads: int = 0
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

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "log_every", "evaluate_every", "save_every"):
            require(getattr(self, name) >= 1, f"{name} must be >= 1, not {getattr(self, name)}")
        for name in ("evaluate_rows", "threads", "keep_every", "profile_step"):
            require(getattr(self, name) >= 0, f"{name} must be >= 0, not {getattr(self, name)}")
        require(0 <= self.seed < 2**63, f"seed must lie in 0 to 2^63 - 1, not {self.seed}")
        require(
            1 <= self.accumulation <= self.batch_size,
            f"train.accumulation must lie in 1 to batch_size {self.batch_size}, not "
            f"{self.accumulation}",
        )
        require(
            self.keep_checkpoints >= 1,
            f"keep_checkpoints must be >= 1, not {self.keep_checkpoints}",
        )
        for name in ("also_evaluate", "evaluate_with"):
            require(
                not getattr(self, name) or bool(self.init_from),
                f"train.{name} is for a run with train.init_from, whose weights may become worse",
            )
        require(
            self.spike_sigmas > 0,
            f"spike_sigmas must be > 0, not {self.spike_sigmas}; inf skips no spike",
        )

    @property
    def micro_batch_size(self) -> int:
        """Rows per micro-batch; the last micro-batch of a step may have fewer."""
        return -(-self.batch_size // self.accumulation)


@dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    """All settings of `electra pretrain`."""

    model: EncoderConfig
    """Sizes of the encoder that pre-training returns: in RTD, the discriminator."""
    generator: GeneratorConfig = field(default_factory=GeneratorConfig)
    method: MethodConfig = field(default_factory=MethodConfig)
    examples: ExamplesConfig = field(default_factory=ExamplesConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    train: TrainConfig

    def __post_init__(self) -> None:
        require(
            self.examples.sequence_length <= self.model.max_position_embeddings,
            f"examples.sequence_length {self.examples.sequence_length} must not exceed "
            f"model.max_position_embeddings {self.model.max_position_embeddings}",
        )
        require(
            self.model.type_vocab_size >= 2,
            "model.type_vocab_size must be >= 2, since a row has two segments, not "
            f"{self.model.type_vocab_size}",
        )
        method, generator = self.method, self.generator
        require(
            method.mode == "paper" or self.optimizer.matrices == "adamw",
            "method.mode reference has the released code's Adam for all parameters; "
            f"optimizer.matrices {self.optimizer.matrices} needs mode paper: set "
            "optimizer.matrices=adamw",
        )
        require(
            method.mode == "paper" or self.optimizer.decay_fraction == 1,
            "method.mode reference has the released code's schedule, which decays from the first "
            f"step on: set optimizer.decay_fraction=1, not {self.optimizer.decay_fraction}",
        )
        require(
            self.train.sharding == "none" or self.optimizer.matrices == "adamw",
            f"train.sharding {self.train.sharding} divides the matrices that optimizer.matrices "
            f"{self.optimizer.matrices} needs whole: set optimizer.matrices=adamw",
        )
        sizes = generator.encoder(self.model)
        require(
            generator.kind != "frozen" or method.sharing == "none",
            "generator.kind frozen cannot share parameters with the discriminator, which is "
            f"trained: set method.sharing=none, not {method.sharing}",
        )
        require(
            method.sharing != "all" or sizes == self.model,
            f"method.sharing all needs networks of equal size, not {sizes.hidden_size} x "
            f"{sizes.num_hidden_layers} beside {self.model.hidden_size} x "
            f"{self.model.num_hidden_layers}: set generator.hidden_fraction=1 "
            "generator.layers_fraction=1",
        )
        require(
            generator.kind == "network" or (method.scheme == "joint" and method.sharing != "all"),
            f"generator.kind {generator.kind} does not learn: it goes with method.scheme joint, "
            "and with method.sharing embeddings or none",
        )
        require(
            generator.start == "auto" or (bool(self.train.init_from) and method.objective != "mlm"),
            f"generator.start {generator.start} is for an objective with a generator, and for a "
            "run with train.init_from",
        )
        if self.optimizer.generator_rate != 1:
            is_apart = generator.kind == "network" and method.sharing != "all"
            require(
                is_apart and method.objective != "mlm" and method.scheme == "joint",
                f"optimizer.generator_rate {self.optimizer.generator_rate} needs a generator that "
                "learns beside the discriminator (method.scheme joint), with parameters of its "
                "own: set optimizer.generator_rate=1",
            )
            require(
                method.mode == "paper",
                "method.mode reference has one learning rate: set optimizer.generator_rate=1",
            )
        if generator.warmup_steps:
            require(
                method.objective != "mlm" and method.scheme != "two_stage",
                f"generator.warmup_steps {generator.warmup_steps} needs an objective with a "
                "generator, and a scheme other than two_stage, whose first stage is the same: set "
                "method.generator_steps",
            )
            require(
                method.sharing != "all",
                f"generator.warmup_steps {generator.warmup_steps} needs two networks, of which one "
                "can rest: set method.sharing=embeddings or none",
            )
        for name, value in (
            ("method.generator_steps", method.generator_steps),
            ("generator.warmup_steps", generator.warmup_steps or 0),
        ):
            require(
                value < self.train.steps,
                f"{name} {value} must be less than train.steps {self.train.steps}",
            )
        if self.model.architecture == "modernbert":
            self._require_modernbert(sizes)
        if self.train.initial_weights != "bert" and generator.kind == "network":
            for encoder in (self.model, self.generator.encoder(self.model)):
                require(
                    encoder.hidden_size >= encoder.embedding_size,
                    f"train.initial_weights {self.train.initial_weights} needs both networks at "
                    f"least as wide as the embeddings: hidden_size {encoder.hidden_size} is less "
                    f"than embedding_size {encoder.embedding_size}; set "
                    f"generator.hidden_fraction=1 or model.embedding_size={encoder.hidden_size}",
                )

    def _require_modernbert(self, generator: EncoderConfig) -> None:
        """Refuse what the architecture modernbert has no place for.

        Args:
            generator: Sizes of the generator.
        """
        method, hidden_size = self.method, self.model.hidden_size
        require(
            method.mode == "paper",
            "method.mode reference follows the released code, which has no model.architecture "
            "modernbert: set method.mode=paper",
        )
        has_generator = method.objective != "mlm" and self.generator.kind == "network"
        require(
            not has_generator
            or method.sharing != "embeddings"
            or generator.hidden_size == hidden_size,
            f"method.sharing embeddings needs a generator as wide as the model ({hidden_size}, not "
            f"{generator.hidden_size}), since the architecture modernbert has no layer between "
            "embeddings and hidden states: set generator.hidden_fraction=1 and, for a small "
            "generator, generator.layers_fraction=0.25",
        )
        require(
            self.train.initial_weights != "neighbours",
            "train.initial_weights neighbours needs position embeddings, which the architecture "
            "modernbert has not: set train.initial_weights=cooccurrence or bert",
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


def longest_warmup(steps: int) -> int:
    """Return the longest warm-up of a schedule of so many steps, if none is set: a tenth."""
    return steps // 10


def require_schedule(config: PretrainConfig) -> None:
    """Refuse a run whose warm-up is as long as its schedule.

    This rule is not part of PretrainConfig, because finished runs that break the rule must stay
    readable.

    Raises:
        UserError: optimizer.warmup_steps is not less than the steps of the schedule.
    """
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
class OwnTaskConfig:
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
    """Dev file, as `train`. Unset: the file named dev, validation, valid or val."""
    test: str | None = None
    """Test file, as `train`. Unset: the file named test, if there is one."""
    metric: Literal["accuracy", "f1", "mcc", "spearman", "pearson"] | None = None
    """Headline metric. Unset: the first metric of the kind in OWN_METRICS. All metrics of the kind
    are reported."""

    def __post_init__(self) -> None:
        is_choice = self.kind == "choice"
        require(
            self.name != "" and self.name.isprintable(),
            f"own.name must be printable and not empty, not {self.name!r}",
        )
        require(
            is_choice == (self.choices is not None),
            f"own.choices goes with own.kind choice and with no other; kind is {self.kind}, "
            f"choices {self.choices or 'none'}",
        )
        require(
            not (is_choice and self.text_b),
            f"own.text_b {self.text_b!r} is of pairs; the choices go with own.text alone",
        )
        require(
            self.metric is None or self.metric in OWN_METRICS[self.kind],
            f"own.metric {self.metric} is not measured of a {self.kind}"
            f"{did_you_mean(str(self.metric), OWN_METRICS[self.kind])}",
        )


@dataclass(frozen=True, kw_only=True)
class SquadConfig:
    """Files and head of `electra finetune --task squad-1.1` and `--task squad-2.0`."""

    train: str = ""
    """Training files in the data folder, separated by commas: .json (SQuAD) or .jsonl (MRQA),
    compressed or not. Unset: the file whose name begins with train."""
    dev: str = ""
    """Dev files, as `train`. Unset: the file whose name begins with dev."""
    test: str = ""
    """Test files, as `train`; optional. Unset: the file whose name begins with test."""
    head: Literal["beam", "plain"] = "beam"
    """beam: as in the paper; predicts the end given the start, and "no answer" by a classifier.
    plain: start and end logits at each position, as in BERT and in transformers'
    ElectraForQuestionAnswering."""


@dataclass(frozen=True, kw_only=True)
class TaggingConfig:
    """Columns of the files of `electra finetune --task tagging`."""

    word_column: int = 1
    """Number of the word's column, from 1."""
    tag_column: int = 0
    """Number of the tag's column, from 1; 0: the last column."""

    def __post_init__(self) -> None:
        require(self.word_column >= 1, f"word_column must be >= 1, not {self.word_column}")
        require(self.tag_column >= 0, f"tag_column must be >= 0, not {self.tag_column}")


@dataclass(frozen=True, kw_only=True)
class FeaturesConfig:
    """Feature-based training: BiLSTMs are trained on the hidden states of a frozen encoder.

    Source: BERT's feature-based approach (Devlin et al. 2019, section 5.3), which works best with
    `layers` 4.
    """

    layers: int = 0
    """Number of top layers whose hidden states are features; 0: the encoder is fine-tuned."""
    combine: Literal["concat", "sum"] = "concat"
    """concat: the layers' hidden states are concatenated. sum: learnt weighted sum of the layers'
    hidden states, as in ELMo."""
    lstm_size: int = 0
    """Units of a BiLSTM per direction; 0: the encoder's hidden size, as in BERT (768)."""
    lstm_layers: int = 2
    """Number of stacked BiLSTMs."""

    def __post_init__(self) -> None:
        for name, least in (("layers", 0), ("lstm_size", 0), ("lstm_layers", 1)):
            value = getattr(self, name)
            require(value >= least, f"features.{name} must be >= {least}, not {value}")
        for field_ in dataclasses.fields(self):
            value = getattr(self, field_.name)
            require(
                self.layers > 0 or value == field_.default,
                f"features.{field_.name} {value} is for an encoder that is read, not fine-tuned: "
                "set features.layers, to 4 as BERT has it",
            )


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig:
    """All settings of `electra finetune`. Source: Table 7; FINETUNE_PRESETS has the presets."""

    learning_rate: float = 3e-4
    """Peak learning rate of the head; lower layers have lower rates."""
    layer_lr_decay: float = 0.8
    """Learning rate of a layer divided by the learning rate of the layer above."""
    warmup_fraction: float = 0.1
    """Share of the steps with linear warm-up from 0. Linear decay to 0 follows."""
    weight_decay: float = 0.0
    """Decoupled weight decay, multiplied by the learning rate. Source: Table 7 has 0, the released
    code 0.01."""
    max_grad_norm: float = 1.0
    """Maximum global norm of the gradient; inf: no clipping."""
    mode: Literal["paper", "reference"] = "paper"
    """reference: as in the released code, the loss is the sum over the batch instead of the mean,
    Adam has no bias correction, decay runs during warm-up, and each layer's learning rate is scaled
    once more (the top layer's by layer_lr_decay squared). The released code's weight_decay is 0.01.
    """
    batch_size: int = 32
    """Examples per optimizer step."""
    train_examples: int = 0
    """Number of training examples to use, drawn at random, the same for every seed; 0: all."""
    epochs: int = 0
    """Passes over train. 0: the task's default, which is 10 for GLUE's RTE and STS-B, 2 for SQuAD,
    and 3 for all other tasks."""
    sequence_length: int = 0
    """Longest row, tokens, including special tokens. Longer texts are truncated; in SQuAD and
    tagging they are split into several rows. 0: 512 for SQuAD, 256 for tagging, 128 for all other
    tasks, and at most the row length of the pre-training."""
    dropout_prob: float = 0.1
    """Dropout probability in the encoder and before the classifier. Replaces the pre-training's."""
    pooling: Literal["cls", "mean", "segments"] = "cls"
    """Hidden states that the classifier reads. cls: that of [CLS], as in the paper. mean: the mean
    over the row's tokens. segments: of a pair of texts the mean over each of them, the absolute
    difference and the product of the two means, of hidden states and embeddings; of a single text,
    and in multiple choice, as mean.
    Use segments for a small or briefly trained encoder: no pre-training loss trains the hidden
    state of [CLS] directly, and few examples do not teach attention to compare two texts."""
    reseeds: int = 2
    """Maximum number of replacements of a seed whose run collapses, each with another seed. The
    results are those of the original seeds. The median with replacements is reported separately.
    The default in a grid is 0."""
    reset_layers: int = 0
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
    threads: int = 0
    """CPU threads; 0: one for each core this process may use."""
    layers: Literal["auto", "plain", "fused"] = "auto"
    """As in pre-training."""

    def __post_init__(self) -> None:
        require(
            0 < self.learning_rate < math.inf,
            f"learning_rate must be > 0 and finite, not {self.learning_rate}",
        )
        require(
            0 < self.layer_lr_decay <= 1,
            f"layer_lr_decay must lie in (0, 1], not {self.layer_lr_decay}",
        )
        for name in ("warmup_fraction", "dropout_prob"):
            value = getattr(self, name)
            require(0 <= value < 1, f"{name} must lie in [0, 1), not {value}")
        require(
            0 <= self.weight_decay < math.inf,
            f"weight_decay must be >= 0 and finite, not {self.weight_decay}",
        )
        require(
            self.max_grad_norm > 0,
            f"max_grad_norm must be > 0, not {self.max_grad_norm}; inf does not clip",
        )
        require(self.batch_size >= 1, f"batch_size must be >= 1, not {self.batch_size}")
        require(
            self.keep_epoch == "last" or self.score_epochs == "all",
            "keep_epoch best needs the score of every epoch: set score_epochs=all, not "
            f"{self.score_epochs}",
        )
        require(
            self.sequence_length == 0 or self.sequence_length >= 8,
            f"sequence_length must be 0 or >= 8, not {self.sequence_length}",
        )
        for name in ("train_examples", "epochs", "reset_layers", "reseeds", "threads"):
            require(getattr(self, name) >= 0, f"{name} must be >= 0, not {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class QuickstartConfig:
    """Settings of all steps of `electra quickstart`, sized for some minutes."""

    tokenizer: TokenizerConfig
    prepare: PrepareConfig
    pretrain: PretrainConfig
    finetune: FinetuneConfig
    max_chars: int = 15_000_000
    """Characters of the packages' documentation that are read; pre-training reads less than that in
    some minutes. Texts named with --text are read whole."""
    pretrain_seconds: int = 120
    """Time for pre-training, seconds. The number of steps is what this machine computes in the
    time, at most `pretrain.train.steps`."""
    min_tokens: int = 1_500_000
    """Tokens that pre-training reads at least, on a slow or busy machine in a longer time."""
    max_seconds: int = 360
    """Longest time for pre-training, seconds, estimated from the first steps."""
    num_packages: int = 8
    """Number of classes: the task is to name the Python package that a text comes from."""
    num_labelled: int = 160
    """Labelled texts for fine-tuning, twenty per package. Few labels, because labels are expensive,
    and pre-training helps most if labels are few."""
    num_passages: int = 300
    """Labelled passages for the question which punctuation mark follows a word."""
    num_asked: int = 400
    """Texts or passages in the dev set."""
    seeds: int = 3
    """Fine-tunings with each learning rate, with and without pre-training; the median is
    reported."""
    learning_rates: str = "0.0005,0.001"
    """Learning rates of fine-tuning, separated by commas. Pre-trained and from scratch, the best on
    dev is reported."""

    def __post_init__(self) -> None:
        for name, least in (
            ("max_chars", 1),
            ("pretrain_seconds", 1),
            ("min_tokens", 0),
            ("max_seconds", self.pretrain_seconds),
            ("num_packages", 2),
            ("num_labelled", 2 * self.num_packages),  # each label twice, the rule of `own` tasks
            ("num_passages", 2),
            ("num_asked", self.num_packages),
            ("seeds", 1),
        ):
            value = getattr(self, name)
            require(value >= least, f"{name} must be at least {least}, not {value}")


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """Limits of `electra serve`; a request beyond them is refused with one line."""

    threads: int = 0
    """CPU threads that compute; 0: one per available core."""
    batch_items: int = 64
    """Texts or records that are computed together at most; 1: one at a time. Does not change the
    answers beyond rounding."""
    max_body_bytes: int = 1 << 20
    """Size of a request's body, bytes. Status 413."""
    max_texts: int = 64
    """Texts or records of a request. Status 422."""
    max_chars: int = 20_000
    """Characters of a text or a record. Status 422."""
    max_requests: int = 256
    """Requests at a time; further ones have status 429 and a time after which to try again."""
    max_waiting_chars: int = 2_000_000
    """Characters of all texts that wait to be computed. Status 429, likewise."""
    max_seconds: float = 30.0
    """Time for receiving a request (status 408), and for computing its answer (status 503),
    seconds."""
    stop_seconds: float = 10.0
    """Time for the requests in progress when the service is stopped, seconds."""

    def __post_init__(self) -> None:
        require(self.threads >= 0, f"threads must be >= 0, not {self.threads}")
        for name in ("batch_items", "max_body_bytes", "max_texts", "max_chars", "max_requests"):
            value = getattr(self, name)
            require(value >= 1, f"{name} must be >= 1, not {value}")
        require(
            self.max_waiting_chars >= self.max_chars,
            f"max_waiting_chars={self.max_waiting_chars} must be at least max_chars="
            f"{self.max_chars}: otherwise a text within the limit would never be taken",
        )
        for name in ("max_seconds", "stop_seconds"):
            value = getattr(self, name)
            require(0 < value < math.inf, f"{name} must be positive and finite, not {value}")
