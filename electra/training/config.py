"""Settings of `electra pretrain`: all of them, and those of the optimizer and of the run."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from electra.errors import require
from electra.method.config import GeneratorConfig, MethodConfig
from electra.model.config import EncoderConfig
from electra.settings import AtLeast, Needs, Order, Settings, Within
from electra.shards.config import ExamplesConfig


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Settings):
    """AdamW or Muon, and the learning rate's schedule. Source: section 3.1, Table 6."""

    learning_rate: Annotated[float, Within("(0, inf)")] = 5e-4
    """Peak learning rate."""
    warmup_steps: Annotated[int, AtLeast(0)] = 10_000
    """Steps of linear warm-up from 0 to the peak. If the setting is not given, and the preset's
    value exceeds a tenth of the run or of its shorter stage, the value is this tenth."""
    decay_fraction: Annotated[float, Within("(0, 1]")] = 1.0
    """Share of the schedule, at its end, in which the rate decays linearly to 0. Before the decay,
    the rate stays at the peak (warm-up, stable, decay). 1: decay begins when warm-up ends, as in
    the paper. Less than 1: runs of different lengths are identical up to the decay. Source: Hu et
    al. 2024 (MiniCPM), section 4."""
    cooldown_steps: Annotated[int, AtLeast(0)] = 0
    """Last steps of a run that ends early, in which the rate decays linearly to 0. Before them, the
    rate follows the schedule for `planned_steps`. `pretrain --cooldown` sets both."""
    planned_steps: Annotated[int, AtLeast(0)] = 0
    """Steps of the run that the rate was planned for; 0: `train.steps`."""
    generator_rate: Annotated[float, Within("(0, inf)")] = 1.0
    """Learning rate of the generator's own parameters, as a multiple of the rate of all others,
    shared embeddings included. The code of DeBERTaV3 (He et al. 2021) has an option for two rates,
    where embeddings shared by gdes have the generator's rate."""
    weight_decay: Annotated[float, Within("[0, inf)")] = 0.01
    """Decoupled weight decay, multiplied by the learning rate. Biases, norms and other
    vectors have none."""
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
    """How several processes hold the model. none: each holds the whole model, which is fastest.
    full: each holds a part of every parameter, gradient and moment, and gathers the weights of a
    layer when it computes the layer (FSDP2). hybrid: like full among the processes of one machine,
    with a copy on every machine. full and hybrid are for models that do not fit otherwise; their
    steps are neither compiled nor captured."""
    recompute_activations: bool = False
    """Activation checkpointing: each layer saves only its input, and recomputes its activations in
    the backward pass. Saves memory, and takes a sixth to a third more time."""
    seed: Annotated[int, AtLeast(0)] = 0
    """Seed of initial weights, row order, masked positions, sampled tokens and dropout."""
    init_from: str = ""
    """Folder whose weights this run starts with (continued pre-training): a run, one of its
    checkpoints, or a Hugging Face folder, as `electra import` and `electra export` write. The
    optimizer, the schedule and the step count start anew. The encoder's sizes come from this
    folder."""
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
    and output biases start at the log token frequencies. cooccurrence: as neighbours, and token
    embeddings start as a factor of the tokens' mutual information, computed in a few seconds. Meant
    for short runs. The architectures modernbert and deberta-v2 have no position embeddings to find
    adjacent tokens by: neighbours is refused, and cooccurrence does not change the first layer."""
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
    copy_to: str = ""
    """URL, such as s3://bucket/run, to which each checkpoint is copied in the background, with all
    other files that resuming needs. A run that is not on this machine continues from the newest
    copy. If copying takes longer than save_every steps, some checkpoints are not copied. Empty: no
    copies."""
    tracker: Literal["none", "wandb", "trackio"] = "none"
    """Service that also receives the settings and the records of metrics.jsonl: Weights & Biases,
    or trackio. The project is electra, unless WANDB_PROJECT or TRACKIO_PROJECT names another. A
    resumed run stays one run there; recomputed steps are sent again."""
    profile_step: Annotated[int, AtLeast(0)] = 0
    """Step after which torch's profiler records 3 steps, in a file trace.json.gz of the run folder,
    which https://ui.perfetto.dev opens; 0: no profile."""
    spike_sigmas: Annotated[float, Within("(0, inf]")] = 6.0
    """After warm-up, a step is skipped if the logarithm of its gradient norm exceeds the mean of
    the last 128 by this many standard deviations; inf: never. A normal variable exceeds 6 once in
    10^9 steps, and clipping bounds what smaller deviations can do. Source: OLMo-core, which
    compares the norms themselves."""
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
    overlap: bool = False
    """Whether the generator's backward pass runs at the same time as the discriminator's forward
    pass, in its own CUDA stream. Each network is then compiled by itself."""
    layers: Literal["auto", "plain", "fused", "triton"] = "auto"
    """plain: layers of ordinary modules, which support hooks and adapters. fused: the same layers,
    as one autograd function with a written-out forward and backward pass, for a CPU without
    torch.compile. triton: the same layers with Triton kernels for attention (not in float32;
    deberta-v2: any rows; the others: rows of at most 128 positions) and, except in modernbert, for
    GELU and each residual with its norm, for a CUDA device; modernbert's windows in longer rows are
    Flash attention. auto: fused on a CPU without torch.compile, else plain."""

    section = "train."
    needs = (
        Needs("also_evaluate", "init_from", "it shows whether trained weights become worse"),
        Needs("evaluate_with", "init_from", "it shows whether trained weights become worse"),
        Order("accumulation", "at most", "batch_size"),
    )

    def check(self) -> None:
        """Check the rules that the table cannot express."""
        self.must("seed", self.seed < 2**63, "be less than 2^63")

    @property
    def micro_batch_size(self) -> int:
        """Rows per micro-batch; the last micro-batch of a step may have fewer."""
        return -(-self.batch_size // self.accumulation)


OF_GENERATORS = (
    *("generator.kind=frozen", "generator.start!=auto", "generator.warmup_steps"),
    "optimizer.generator_rate!=1",
)
"""Conditions of `Needs` that an objective without a generator cannot meet."""


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
        Needs("generator.kind=frozen", "method.sharing=none", "shared parameters are trained"),
        Needs("generator.kind!=network", "method.scheme=joint", "it does not learn"),
        Needs("generator.temperature!=1", "method.scheme!=adversarial", "it rewards the softmax"),
        Needs("generator.disallow_correct", "method.scheme!=adversarial", "it rewards the softmax"),
        Needs("generator.kind!=network", "method.sharing!=all", "it does not learn"),
        Needs("method.sharing=gdes", "generator.kind=network", "the others have no embeddings"),
        Needs("generator.shared_layers", "method.objective=rtd|teams|cocolm"),
        Needs("generator.shared_layers", "method.scheme=joint"),
        Needs("generator.shared_layers", "method.sharing=embeddings|gdes"),
        Needs("generator.shared_layers", "train.updates=joint", "an update each, not two"),
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
        Needs("train.overlap", "method.objective=rtd"),
        Needs("train.overlap", "method.scheme=joint", "the others have one graph"),
        Needs("train.overlap", "train.updates=joint", "an update each, one after the other"),
        Needs("train.overlap", "generator.kind=network", "the others do not learn"),
        Needs("generator.start!=auto", "train.init_from"),
        Needs("generator.warmup_steps", "method.sharing!=all", "one of two networks is frozen"),
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
        """Check the rules that the table cannot express."""
        for rule in (*self.method.run_needs, *self.model.run_needs):
            rule.check(self)
        for each in OF_GENERATORS:
            name, value, is_so = self.look_up(each)
            needed = f"{name} {value} needs an objective with a generator, not"
            require(self.method.has_generator or not is_so, f"{needed} {self.method.objective}")
        model, sharing, scheme = self.model, self.method.sharing, self.method.scheme
        starts = self.train.initial_weights
        learns = self.generator.kind == "network" and self.method.has_generator
        generator = self.generator.encoder(model) if learns else model
        is_as_wide = generator.hidden_size == model.hidden_size
        self.must(
            f"generator.{'layers' if is_as_wide else 'hidden'}_fraction",
            sharing != "all" or generator == model,
            "be 1 for method.sharing all: networks of one size",
        )
        self.must(
            "train.steps",
            scheme != "two_stage" or self.train.steps > 1,
            "be at least 2 for method.scheme two_stage",
        )
        self.must(
            "model.embedding_size",
            starts == "bert" or not model.projects_embeddings or model.embedding_size % 2 == 0,
            f"be even for train.initial_weights {starts}",
        )
        groups = self.examples.groups
        self.must(
            "train.batch_size",
            self.train.batch_size % groups == 0,
            f"be a multiple of examples.groups {groups}",
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
            not takes or model.projects_embeddings or is_as_wide,
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
    def amount(self) -> tuple[int, int, int]:
        """Row length in tokens, rows per step, and steps of the run."""
        return self.examples.sequence_length, self.train.batch_size, self.train.steps

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
