"""Settings of the objective and of its generator."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from electra.errors import require
from electra.model.config import EncoderConfig
from electra.settings import AtLeast, Needs, Order, Settings, Within

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
    """Time in which the temperature's distance from 1 falls to 1 / e of itself, as a share of the
    run's steps; 0: the temperature is constant. Source: Fast-ELECTRA (Dong et al. 2024), 0.1 with
    temperature=2 and kind=frozen."""
    disallow_correct: bool = False
    """Whether the original token is excluded from sampling."""
    shared_layers: Annotated[int, AtLeast(0)] = 0
    """rtd, teams, cocolm: number of first layers that the generator shares with the discriminator;
    both must have the same hidden size. Source: TEAMS, whose generator shares 3 of its 6."""
    start: Literal["auto", "layers", "folder", "new"] = "auto"
    """With train.init_from: the weights that the generator starts with. layers: the discriminator's
    lower layers and its embeddings; the head is new. folder: the weights of `start_folder`. new:
    initial weights. auto: the generator of train.init_from, or layers if it has none."""
    start_folder: str = ""
    """start=folder: a run or a Hugging Face folder of a masked language model. The size is taken
    from it."""
    warmup_steps: Annotated[int | None, AtLeast(0)] = None
    """Initial steps that train only the generator; the discriminator and shared embeddings stay
    frozen. These steps have their own learning rate schedule; the rate then warms up again. Unset:
    a tenth of train.steps if train.init_from is set and the generator does not start with the
    weights of a trained generator, else 0."""

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
        Needs("warmup_steps", "shared_layers=0", "the discriminator's layers are frozen"),
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
        embedding_size = discriminator.embedding_size
        return discriminator.of_generator(
            hidden_size=hidden_size,
            embedding_size=embedding_size if discriminator.projects_embeddings else hidden_size,
            intermediate_size=round(discriminator.intermediate_size * fraction),
            num_attention_heads=num_heads,
            num_hidden_layers=self.num_hidden_layers or max(1, num_layers),
        )


OBJECTIVES = {
    "rtd": "method.replaced_token_detection:ReplacedTokenDetection",
    "rtd_masked_only": "method.replaced_token_detection:MaskedOnly",
    "mlm": "objectives.masked_language_modelling:MaskedLanguageModelling",
    "replace_mlm": "objectives.masked_language_modelling:ReplaceMLM",
    "all_tokens_mlm": "objectives.masked_language_modelling:AllTokensMLM",
    "electric": "objectives.electric:Electric",
    "teams": "objectives.teams:Teams",
    "cocolm": "objectives.cocolm:CocoLM",
    "causal_lm": "objectives.masked_language_modelling:CausalLanguageModelling",
}
"""Module and class of each objective, below electra; other packages may have more (outside.py)."""

SCHEMES = {
    ("rtd", "two_stage"): "objectives.schemes:TwoStage",
    ("rtd", "adversarial"): "objectives.schemes:Adversarial",
}
"""Module and class, below electra, for an objective with a scheme other than joint."""


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
    sentences (`electra score`). teams: rtd and, at each masked position, choosing the original
    among five tokens; each of the two has its own last layer. cocolm: rtd, a language model that
    corrects the tokens, and a contrast of each row and its crop with all other rows. causal_lm:
    predicts every token from those before it."""
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

    section = "method."
    tag = "objective"
    kinds: ClassVar[Mapping[str, str]] = dict.fromkeys(OBJECTIVES, "") | {
        **dict.fromkeys(("mlm", "causal_lm"), "objectives.config:AloneConfig"),
        "electric": "objectives.config:ElectricConfig",
        "teams": "objectives.config:TeamsConfig",
        "cocolm": "objectives.config:CocoLMConfig",
    }
    of_others = "objectives"
    has_generator: ClassVar[bool] = True
    """Whether another network makes the input of the one that pre-training returns."""
    run_needs: ClassVar[tuple[Needs | Order, ...]] = ()
    """Rules of the objective for all settings of a run."""
    needs = (
        Needs("mode=reference", "mask_unit=token"),
        Needs("mode=reference", "objective=rtd|mlm", "the released code has no other"),
        Needs("mode=reference", "scheme=joint", "the released code has no other"),
        Needs("generator_steps", "scheme=two_stage"),
        Needs("scheme=two_stage", "sharing=none", "it freezes one network and trains the other"),
        Needs("scheme=adversarial", "sharing!=all", "its two networks have opposite losses"),
    )

    @property
    def contrasts(self) -> bool:
        """Whether the loss compares the rows of a step with each other."""
        return False

    def check(self) -> None:
        """Check the rules that the table cannot express."""
        if self.objective not in OBJECTIVES:
            from electra.outside import require_known

            require_known("method.objective", self.objective, OBJECTIVES, "objectives")
        is_known = self.scheme == "joint" or (self.objective, self.scheme) in SCHEMES
        self.must("scheme", is_known, f"be joint for method.objective {self.objective}")
