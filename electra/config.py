"""Every setting of every verb: frozen dataclasses.

A setting is one field of one dataclass, documented below it with its unit and source. Nothing here
imports torch, so `--help` and `--dry-run` answer at once. "Table 6" and "Table 7" are those of the
ELECTRA paper's appendix. How settings are read and overridden stands in settings.py.
"""

import dataclasses
import difflib
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal


class UserError(ValueError):
    """A user's mistake: one line with the value, the rule and the nearest valid choice."""


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the nearest choice, else the list of choices."""
    choices = list(choices)
    near = difflib.get_close_matches(name, choices, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else f"; choose from {', '.join(choices)}"


def require(rule_holds: bool, message: str) -> None:
    """Raise UserError(message) unless the rule holds."""
    if not rule_holds:
        raise UserError(message)


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """What `electra tokenizer` trains: a WordPiece vocabulary with BERT's normalisation."""

    vocab_size: int = 30_522
    """Entries, the five special tokens included. Source: BERT's uncased English vocabulary."""
    lowercase: bool = True
    """Whether text is lower-cased before it is split."""
    strip_accents: bool | None = None
    """Whether accents are removed; unset: as `lowercase`, which is what BERT does."""
    min_frequency: int = 2
    """Times a pair of pieces must occur to be merged into one."""

    def __post_init__(self) -> None:
        require(self.vocab_size >= 64, f"vocab_size must be at least 64, not {self.vocab_size}")
        require(self.min_frequency >= 1, f"min_frequency must be >= 1, not {self.min_frequency}")


@dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """How `electra prepare` reads text and cuts it into shards."""

    border: Literal["blank", "line", "file"] = "blank"
    """Where one document ends and the next begins: at a blank line, at every line, at a file's end.
    A .jsonl or .parquet record is a document of its own in any case."""
    text_field: str = "text"
    """The field of a .jsonl record, or the column of a .parquet file, that holds the text."""
    heldout_prob: float = 0.005
    """Share of the documents held out for evaluation, chosen by a hash of their number."""
    shard_tokens: int = 1 << 26
    """Tokens after which the next shard begins, at a document's end."""
    workers: int = 0
    """Processes that tokenise; 0: one per core this process may use. Never changes the result."""
    seed: int = 0
    """Seed of the choice of held-out documents."""

    def __post_init__(self) -> None:
        require(
            0 <= self.heldout_prob < 1, f"heldout_prob must lie in [0, 1), not {self.heldout_prob}"
        )
        require(self.shard_tokens >= 1, f"shard_tokens must be >= 1, not {self.shard_tokens}")
        require(self.workers >= 0, f"workers must be >= 0, not {self.workers}")


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Sizes of one encoder, in Hugging Face's ElectraConfig's words. Source: Table 6."""

    vocab_size: int = 30_522
    """Entries of the vocabulary. Taken from the shards in pre-training, never set by hand."""
    embedding_size: int
    """Width of the embedding block; projected to `hidden_size` where the two differ."""
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    """Width inside the feed-forward layer."""
    max_position_embeddings: int = 512
    """Longest row, in tokens."""
    type_vocab_size: int = 2
    """Number of segments."""
    hidden_dropout_prob: float = 0.1
    """Dropout on embeddings and on the output of attention and feed-forward."""
    attention_probs_dropout_prob: float = 0.1
    """Dropout on attention probabilities."""
    layer_norm_eps: float = 1e-12
    initializer_range: float = 0.02
    """Standard deviation of the normal that weights are drawn from, cut at two deviations."""

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


@dataclass(frozen=True, kw_only=True)
class GeneratorConfig:
    """The generator's size, relative to the discriminator's. Source: section 3.2, Table 6."""

    hidden_fraction: float = 0.25
    """Width, feed-forward width and heads as a share of the discriminator's; a head is never
    narrower than the discriminator's, so there is at least one."""
    layers_fraction: float = 1.0
    """Number of layers as a share of the discriminator's."""
    hidden_size: int = 0
    """Width outright; 0: by `hidden_fraction`."""
    num_hidden_layers: int = 0
    """Number of layers outright; 0: by `layers_fraction`."""
    kind: Literal["network", "frozen", "uniform", "unigram"] = "network"
    """network: the paper's. frozen: that of another run, which learns no more. uniform, unigram: no
    network, but draws of any token alike, or in proportion to its frequency."""
    frozen_run: str = ""
    """frozen: the run folder whose generator, or whose masked language model, it is; its size is
    taken from there."""
    temperature: float = 1.0
    """Divides the logits before a token is drawn; above 1, draws are wilder."""
    disallow_correct: bool = False
    """Whether the original token is never drawn."""

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
            self.kind in ("network", "frozen") or self.temperature == 1,
            f"generator.temperature {self.temperature} has no meaning for kind {self.kind}; leave "
            "it at 1",
        )

    def encoder(self, discriminator: EncoderConfig) -> EncoderConfig:
        """Return the generator's sizes for this discriminator.

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
        return dataclasses.replace(
            discriminator,
            hidden_size=hidden_size,
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
"""Every objective by its name, and where it stands below method/. A new one is one line here."""
SCHEMES = {
    ("rtd", "two_stage"): "schemes:TwoStage",
    ("rtd", "adversarial"): "schemes:Adversarial",
}
"""What stands for an objective where the scheme is not joint."""


@dataclass(frozen=True, kw_only=True)
class MethodConfig:
    """What is trained, and how. Source: sections 2, 3.2 and 3.5, Table 6."""

    mode: Literal["paper", "reference"] = "paper"
    """Whose details: the paper's, or those of the released code, quirks included: positions drawn
    with replacement, 85/15, Adam without bias correction, decay during warm-up, Glorot where no
    initialiser was named. docs/DEVIATIONS.md has them one by one."""
    objective: str = "rtd"
    """rtd: replaced token detection. rtd_masked_only: its loss over the masked positions only
    ("ELECTRA 15%"). mlm: masked language modelling. replace_mlm: with the generator's draws instead
    of [MASK]. all_tokens_mlm: likewise, predicting every token, with a copy mechanism.
    electric: an energy-based cloze model, whose encoder scores sentences (`electra score`)."""
    scheme: Literal["joint", "two_stage", "adversarial"] = "joint"
    """How generator and discriminator of rtd are trained: together; one after the other; or the
    generator, by policy gradient, against the discriminator."""
    generator_steps: int = 0
    """two_stage: steps in which the generator is trained alone. Learning rates warm up anew for the
    discriminator. Unset: half of all steps."""
    sharing: Literal["none", "embeddings", "all"] = "embeddings"
    """What the two networks share: nothing; the embedding block (tokens, positions, segments, layer
    norm); or all of the encoder, which must then be equally large."""
    mask_prob: float = 0.15
    """Share of a row's real tokens that the generator predicts; 0.25 for Large."""
    mask_unit: Literal["token", "whole_word", "span"] = "token"
    """What is masked as a whole: tokens; words; spans of 3.8 words on average (SpanBERT)."""
    shown_at_mask: Literal["auto", "mask", "80/10/10", "85/15"] = "auto"
    """What a masked position shows: [MASK]; BERT's 80% [MASK], 10% a random token, 10% the
    original; or the released ELECTRA code's 85% [MASK], 15% the original. auto: [MASK], and 85/15
    in reference mode."""
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
            f"method.scheme two_stage freezes the generator, and what it shares with the "
            f"discriminator cannot be both frozen and trained: set method.sharing=none, not "
            f"{self.sharing}",
        )
        require(
            self.scheme != "adversarial" or self.sharing != "all",
            "method.scheme adversarial sets the two networks against each other; with "
            "method.sharing all they are one: choose embeddings or none",
        )
        require(
            self.generator_steps == 0 or self.scheme == "two_stage",
            f"method.generator_steps {self.generator_steps} needs method.scheme=two_stage",
        )


@dataclass(frozen=True, kw_only=True)
class ExamplesConfig:
    """How rows are cut from the shards. Source: build_pretraining_dataset.py."""

    sequence_length: int = 128
    """Tokens in a row, [CLS] and [SEP] included."""
    single_segment_prob: float = 0.1
    """Share of rows with one segment instead of two."""
    short_prob: float = 0.05
    """Share of rows whose length is drawn from [5, sequence_length] instead of being full."""
    attend: Literal["row", "document"] = "row"
    """What a token attends to: its row; or its own document in it, as if the others were not there.
    Worth trying where documents are short beside the row and have nothing to do with one another;
    it saves no time, and on a GPU costs the attention kernel that works without a mask."""

    def __post_init__(self) -> None:
        require(
            self.sequence_length >= 8, f"sequence_length must be >= 8, not {self.sequence_length}"
        )
        for name in ("single_segment_prob", "short_prob"):
            value = getattr(self, name)
            require(0 <= value <= 1, f"{name} must lie in [0, 1], not {value}")


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW, warm-up and linear decay. Source: section 3.1, Table 6, optimization.py."""

    learning_rate: float = 5e-4
    """Peak."""
    warmup_steps: int = 10_000
    """Steps in which the rate climbs from 0 to its peak; it then falls linearly to 0 at the end.
    Where it is not set, and the run or a stage of it is so short that the preset's would be more
    than a tenth of it, it is a tenth."""
    weight_decay: float = 0.01
    """Decoupled, times the learning rate; none on biases and layer norms."""
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-6
    max_grad_norm: float = 1.0
    """Clip of the global gradient norm of both networks together; inf: none."""

    def __post_init__(self) -> None:
        for name in ("learning_rate", "adam_epsilon"):
            value = getattr(self, name)
            require(0 < value < math.inf, f"{name} must be > 0 and finite, not {value}")
        require(self.warmup_steps >= 0, f"warmup_steps must be >= 0, not {self.warmup_steps}")
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
    """Length, rhythm and machine of a pre-training run."""

    steps: int
    """Optimizer steps."""
    batch_size: int
    """Rows per optimizer step."""
    accumulation: int = 1
    """Pieces in which a step's rows are computed, one after the other, where they do not fit into
    memory together. The step is the same but for rounding and dropout."""
    recompute_activations: bool = False
    """Whether a layer keeps only its input and computes the rest again on the way back (activation
    checkpointing): the same step in less memory, for a sixth to a third more time."""
    seed: int = 0
    """Seed of weights, order, positions, draws and dropout."""
    initial_weights: Literal["bert", "neighbours"] = "bert"
    """bert: the paper's. neighbours: the first layer begins by looking at the tokens beside and the
    generator with each token's frequency, which a short run then need not find out first."""
    log_every: int = 50
    """Steps between two records of metrics.jsonl."""
    evaluate_every: int = 10_000
    """Steps between two evaluations on the held-out part; one always follows the last step."""
    evaluate_rows: int = 1024
    """Held-out rows evaluated, or all there are if fewer; 0: no evaluation."""
    save_every: int = 10_000
    """Steps between two checkpoints; one always follows the last step."""
    keep_checkpoints: int = 2
    """Newest checkpoints kept."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Dtype of activations and matrix products; parameters are float32. auto: bfloat16 where the
    hardware multiplies it natively."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train. auto: a CUDA device if there is one."""
    threads: int = 0
    """CPU threads; 0: one for each core this process may use."""
    check_memory: bool = True
    """Whether a run is refused whose steps, by an estimate, do not fit into the memory that is
    free."""
    compile: Literal["auto", "yes", "no"] = "auto"
    """Whether losses and gradients run through torch.compile. auto: on a CUDA device, if it has a
    working compiler. The first steps then take a minute or two."""
    cuda_graph: bool = True
    """Whether, on a CUDA device, steps are captured once and replayed whole."""
    layers: Literal["auto", "plain", "fused"] = "auto"
    """plain: layers written as the paper's figures read, which hooks and adapters can be put into.
    fused: the same layers with forward and backward written out, faster on a CPU and for nothing
    else. auto: fused on a CPU unless the step is compiled, else plain."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "log_every", "evaluate_every", "save_every"):
            require(getattr(self, name) >= 1, f"{name} must be >= 1, not {getattr(self, name)}")
        for name in ("evaluate_rows", "threads"):
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

    @property
    def micro_batch_size(self) -> int:
        """Rows that are computed at a time; the last piece of a step may have fewer."""
        return -(-self.batch_size // self.accumulation)


@dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    """Everything `electra pretrain` can be told."""

    model: EncoderConfig
    """The discriminator."""
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
        sizes = generator.encoder(self.model)
        require(
            generator.kind != "frozen" or method.sharing == "none",
            "generator.kind frozen cannot share what it does not learn with a discriminator that "
            f"does: set method.sharing=none, not {method.sharing}",
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
            method.generator_steps < self.train.steps,
            f"method.generator_steps {method.generator_steps} must be less than train.steps "
            f"{self.train.steps}",
        )
        if self.train.initial_weights == "neighbours" and generator.kind == "network":
            for encoder in (self.model, self.generator.encoder(self.model)):
                require(
                    encoder.hidden_size >= encoder.embedding_size,
                    "train.initial_weights neighbours needs both networks at least as wide as the "
                    f"embeddings: hidden_size {encoder.hidden_size} is less than embedding_size "
                    f"{encoder.embedding_size}; set generator.hidden_fraction=1",
                )

    @property
    def second_stage(self) -> int:
        """Step at which two_stage turns to the discriminator; 0 for other schemes."""
        if self.method.scheme != "two_stage":
            return 0
        return self.method.generator_steps or self.train.steps // 2

    @property
    def shortest_schedule(self) -> int:
        """Steps of the learning rate's schedule; of two stages, the steps of the shorter one."""
        return min(self.second_stage or self.train.steps, self.train.steps - self.second_stage)


def require_schedule(config: PretrainConfig) -> None:
    """Refuse a run that would never reach its learning rate.

    Not among the config's own checks: finished runs without this rule stay readable.
    """
    warmup_steps, steps = config.optimizer.warmup_steps, config.shortest_schedule
    schedule = "steps of the shorter stage" if config.second_stage else "train.steps"
    require(
        warmup_steps < steps,
        f"optimizer.warmup_steps {warmup_steps} must be less than the {steps} {schedule}, for the "
        f"rate to reach its peak and decay: set optimizer.warmup_steps={steps // 10}",
    )


OWN_METRICS = {
    "classification": ("accuracy", "f1", "mcc"),
    "regression": ("spearman", "pearson"),
    "choice": ("accuracy",),
}
"""What is reported of each kind of task of the user's own; the first is the headline if unset."""


@dataclass(frozen=True, kw_only=True)
class OwnTaskConfig:
    """What a task of the user's own is, and what of it stands where in the tables of its folder.

    Given as `--task own --set own.field=value`, or as `--task FILE.toml`, a file of these fields.
    """

    name: str = "own"
    """What the task is called in results and tables."""
    kind: Literal["classification", "regression", "choice"] = "classification"
    """Of a text or a pair: which of several names, or which number; choice: which of several texts
    goes with a text."""
    text: str | None = None
    """Column of the text. Unset: text, sentence, text_a or sentence1, whichever train has first."""
    text_b: str | None = None
    """Column of the second text of a pair. Unset: text_b or sentence2 if train has one, but none if
    `text` is set."""
    choices: str | None = None
    """choice: the columns of the choices, with commas between; a single one holds lists of them."""
    label: str = "label"
    """Column of the label; a test file may lack it. choice: the right one's number, from 0."""
    train: str | None = None
    """File, in the data folder or anywhere. Unset: train.tsv, .csv, .jsonl or .parquet, compressed
    or not."""
    dev: str | None = None
    """Likewise; unset: named dev, validation, valid or val."""
    test: str | None = None
    """Likewise; unset: named test, if there is one."""
    metric: Literal["accuracy", "f1", "mcc", "spearman", "pearson"] | None = None
    """The headline metric; unset: the first of the kind's (OWN_METRICS), which are all reported."""

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
    """What `electra finetune --task squad-1.1` and squad-2.0 find where, and how they answer."""

    train: str = ""
    """Files in the data folder, with commas between, .json (SQuAD) or .jsonl (MRQA), compressed or
    not. Unset: the one whose name begins with train."""
    dev: str = ""
    """Likewise."""
    test: str = ""
    """Likewise; there need be none."""
    head: Literal["beam", "plain"] = "beam"
    """beam: the paper's, the end judged given the start and "no answer" by a classifier; plain: two
    logits a position, as BERT and as transformers' ElectraForQuestionAnswering reads it."""


@dataclass(frozen=True, kw_only=True)
class TaggingConfig:
    """Where `electra finetune --task tagging` finds words and tags in files of columns."""

    word_column: int = 1
    """Column of the word, from 1."""
    tag_column: int = 0
    """Column of the tag, from 1; 0: the last."""

    def __post_init__(self) -> None:
        require(self.word_column >= 1, f"word_column must be >= 1, not {self.word_column}")
        require(self.tag_column >= 0, f"tag_column must be >= 0, not {self.tag_column}")


@dataclass(frozen=True, kw_only=True)
class FeaturesConfig:
    """An encoder that is read instead of fine-tuned: its states go into BiLSTMs, which learn.

    Source: BERT's feature-based approach (section 5.3 of its paper), whose best has `layers` 4.
    """

    layers: int = 0
    """Layers whose states are read, from the top down; 0: the encoder is fine-tuned."""
    combine: Literal["concat", "sum"] = "concat"
    """concat: the layers' states side by side; sum: ELMo's learnt weighted sum of them."""
    lstm_size: int = 0
    """Units of a BiLSTM in each direction; 0: the encoder's hidden size, as BERT's 768 are."""
    lstm_layers: int = 2
    """BiLSTMs, each on the one before it."""

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
    """Everything `electra finetune` can be told. Source: Table 7; sizes: FINETUNE_PRESETS."""

    learning_rate: float = 3e-4
    """Peak, of the head; layers below it learn at less."""
    layer_lr_decay: float = 0.8
    """Each layer learns at this multiple of the rate of the layer above it."""
    warmup_fraction: float = 0.1
    """Share of the steps in which the rate climbs from 0; it then falls linearly to 0."""
    weight_decay: float = 0.0
    """Decoupled, times the learning rate. Table 7 has 0, the released code 0.01."""
    max_grad_norm: float = 1.0
    """Clip of the global norm of the gradient; inf: none."""
    mode: Literal["paper", "reference"] = "paper"
    """reference: as the released code has it, the loss is the batch's sum instead of its mean, Adam
    has no bias correction, decay runs during warm-up, and every layer's rate is scaled once more
    (the top one's is layer_lr_decay squared). Its weight_decay is 0.01."""
    batch_size: int = 32
    """Examples per optimizer step."""
    train_examples: int = 0
    """Examples of train to use, drawn at random, the same ones for every seed; 0: all."""
    epochs: int = 0
    """Passes over train. 0: the task's, which is 3, for SQuAD 2, for GLUE's RTE and STS-B 10."""
    sequence_length: int = 0
    """Longest row in tokens, special ones included; longer texts are cut at their end, those of
    SQuAD and tagging into several rows. 0: 128, for tagging 256, for SQuAD 512, or what the encoder
    was pre-trained on if that is shorter."""
    dropout_prob: float = 0.1
    """Dropout in the encoder and before the classifier, whatever pre-training used."""
    pooling: Literal["cls", "mean"] = "cls"
    """The state the classifier reads: that of [CLS], as in the paper, or the mean over the row's
    tokens, which a small or short-trained encoder needs, since nothing has taught its [CLS]."""
    reseeds: int = 2
    """How often a seed whose run collapses is repeated as another. Results are those of the seeds
    as drawn; beside them stands the median with the others in place of the collapsed. Of a grid the
    default is 0."""
    swap_pairs: bool = True
    """Train on every pair of MRPC and STS-B in both orders, as the released code does."""
    keep_epoch: Literal["last", "best"] = "last"
    """Whose weights and scores count. "best" chooses by the headline metric on dev, so that the
    dev score is no longer that of unseen examples; results say which."""
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
            self.sequence_length == 0 or self.sequence_length >= 8,
            f"sequence_length must be 0 or >= 8, not {self.sequence_length}",
        )
        for name in ("train_examples", "epochs", "reseeds", "threads"):
            require(getattr(self, name) >= 0, f"{name} must be >= 0, not {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class QuickstartConfig:
    """The recipe of `electra quickstart`: every step's settings, sized for five minutes."""

    tokenizer: TokenizerConfig
    prepare: PrepareConfig
    pretrain: PretrainConfig
    finetune: FinetuneConfig
    pretrain_seconds: int = 180
    """Pre-training takes about this long: as many steps as this machine does in the time, but never
    more than `pretrain.train.steps`."""
    num_packages: int = 8
    """Packages among which the question "which one does this text come from?" chooses."""
    num_labelled: int = 160
    """Labelled texts to fine-tune on: twenty for each package. Labels are few where they cost
    somebody's time, and there pre-training counts most."""
    num_asked: int = 1000
    """Texts asked about."""
    seeds: int = 5
    """Fine-tunings, with and without pre-training; their median counts."""

    def __post_init__(self) -> None:
        for name, least in (
            ("pretrain_seconds", 1),
            ("num_packages", 2),
            ("num_labelled", 2 * self.num_packages),  # each label twice, as a task of one's own
            ("num_asked", self.num_packages),
            ("seeds", 1),
        ):
            value = getattr(self, name)
            require(value >= least, f"{name} must be at least {least}, not {value}")
