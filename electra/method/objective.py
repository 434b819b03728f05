"""The interface of an objective: its networks, its output, and the builder of its networks.

An objective is a module: `masking` draws the random numbers of a step, `forward` computes losses
from rows. docs/OBJECTIVES.md shows how to write a new objective.

Shape suffixes: B rows, L positions, V vocabulary.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from electra.method.config import GeneratorConfig, MethodConfig
from electra.method.masking import Counts, Draw, Masking, Means, Vocabulary
from electra.model.batch import Batch
from electra.model.config import EncoderConfig
from electra.model.encoder import Encoder
from electra.model.heads import GeneratorHead
from electra.model.masked_lm import MaskedLM
from electra.model.parts import EmbeddingBlock, TransformerLayer


class Judgement(NamedTuple):
    """Inputs, labels, logits and losses of the discriminator for some rows."""

    corrupt_ids_BL: Tensor
    """Input token ids."""
    is_replaced_BL: Tensor
    """Label of each token, bool: True where the token counts as replaced."""
    judged_BL: Tensor
    """Tokens that the loss covers, bool."""
    logits_BL: Tensor
    """Positive where the discriminator predicts a replaced token; undefined at padding."""
    bce_BL: Tensor
    """Binary cross-entropy of each token, nats; undefined at padding."""


class Output(NamedTuple):
    """Loss and measures of a micro-batch. Only the loss has a gradient."""

    loss: Tensor
    """The micro-batch's share of the loss that the step minimises, nats."""
    means: Means
    """Measures to report."""
    judgement: Judgement | None = None
    """The discriminator's judgement; None if no discriminator ran."""
    corrupt_ids_BL: Tensor | None = None
    """x_corrupt, if the output is that of `generate`; else None."""


class Network(NamedTuple):
    """One network of an objective, and the share of the steps that train and run it."""

    encoders: tuple[Encoder, ...]
    """One encoder, or the two towers of Electric's noise distribution."""
    head: nn.Module
    predicts: Literal["tokens", "next", "replaced", "energy", ""]
    """Output of the head at a position: logits of the token there or of the next one, the logit of
    a replaced token, or an energy; empty: not used after pre-training."""
    at: Literal["chosen", "all", "followed", "first"]
    """Positions of the predictions: the masked ones, all, all but the last, or [CLS] alone."""
    trained: float = 1.0
    """Share of the run's steps that train the network."""
    run: float = 1.0
    """Share of the run's steps that run the network's forward pass."""
    first_layer: int = 0
    """Number of lower layers whose states another network of the objective has computed."""
    crop_length: Callable[[int], int] | None = None
    """Row length to crop length, if the encoder also reads a crop (without the head); else None."""


class Objective(nn.Module):
    """A pre-training objective: networks and losses.

    The loop, checkpoints and FLOP counts read the description in `networks` and `stages`. They do
    not depend on the objective's name.

    Attributes:
        masking: Chooses the masked positions.
        loss_weights: Weight of each loss that is minimised in the current stage. The loss of a
            generator that is not trained has no weight.
        stages: First step of each stage. Each stage has a learning rate schedule.
        is_resting: Whether the current stage trains the generator alone (`rest_until`).
        share_awake: Share of the run's steps that train the network that pre-training returns.
    """

    needs_frequencies = False
    """Whether the objective reads `Vocabulary.frequencies_V`, for which the corpus is counted."""
    settings = MethodConfig
    """Class of `method.` settings of another package's objective; ours are in its `kinds`."""
    loss_weights: dict[str, float]
    weights_awake: dict[str, float]
    stages: tuple[int, ...] = (0,)
    is_resting = False
    share_awake = 1.0

    def __init__(self, parts: "Parts"):
        super().__init__()
        self.masking = Masking(parts.method, parts.vocabulary)

    @property
    def networks(self) -> dict[str, Network]:
        """The networks by role; pre-training returns the `discriminator` or the `encoder`."""
        raise NotImplementedError

    @property
    def kept(self) -> Encoder:
        """The encoder that pre-training returns: the discriminator's, or else the `encoder`."""
        networks = self.networks
        return networks["discriminator" if "discriminator" in networks else "encoder"].encoders[0]

    def weigh(self, losses: dict[str, Tensor]) -> Tensor:
        """Return the loss that is minimised: the weighted sum over `loss_weights`."""
        return reduce(torch.add, (w * losses[name] for name, w in self.loss_weights.items()))

    def stage_at(self, step: int) -> int:
        """Return the number of the stage of a step; both numbers count from 0."""
        return bisect_right(self.stages, step) - 1

    def begin_stage(self, stage: int) -> None:
        """Prepare the networks and loss weights for a stage."""
        self.is_resting = False
        self.loss_weights = self.weights_awake

    def begin_step(self, step: int) -> None:
        """Set what depends on the number of the step, from 0: the generator's temperature."""
        if isinstance(generator := getattr(self, "generator", None), MaskedLM):
            generator.cool(step)

    def rest_until(self, step: int, num_steps: int) -> None:
        """Let a first stage train the generator alone, by its likelihood (generator.warmup_steps).

        The stage that follows begins at `step` of the run's `num_steps`.
        """
        self.is_resting = True
        self.stages = (0, step)
        self.share_awake = 1 - step / num_steps
        self.weights_awake = self.loss_weights
        self.loss_weights = {"mlm_loss": 1.0}

    @property
    def resting(self) -> list[nn.Parameter]:
        """Parameters that this stage keeps frozen, although its loss may depend on some of them.

        The loss depends on embeddings that the generator shares with the encoder that pre-training
        returns, also on those that only the generator trains.
        """
        if not self.is_resting:
            return []
        bases = self.kept.embeddings.tokens.base
        return [*self.kept.parameters(), *(part for each in bases for part in each.parameters())]

    @torch.no_grad()
    def set_constant_predictions(self, frequencies_V: Tensor) -> None:
        """Set the biases of the heads to the best constant predictions.

        The bias of a softmax becomes the log of each token's relative frequency; each occurs at
        least once.
        """
        for network in self.networks.values():
            if isinstance(network.head, GeneratorHead):
                network.head.bias.copy_((frequencies_V / frequencies_V.sum()).log())

    def forward(self, batch: Batch, draw: Draw, counts: Counts) -> Output:
        """Return loss and measures of a micro-batch.

        Args:
            batch: Original rows of the micro-batch.
            draw: These rows of the draw from `masking.draw`. Dropout uses torch's random numbers.
            counts: Counts over all rows of the step, not of the micro-batch alone.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Parts:
    """Builds the networks of an objective, not yet initialised.

    Args:
        model: Sizes of the encoder that pre-training returns.
        generator_settings: Kind and size of the generator.
        method: Sharing, weights of the losses.
        vocabulary: Special ids, size and frequencies of the vocabulary.
        compute_dtype: Dtype of activations and matrix products.
        layer: Class of the encoders' layers; None: the plain one of the architecture.
        num_steps: Steps of the run, in which the generator's temperature falls.
        recompute_activations: As in `Encoder`.
        next_sentence: Whether rows are for next-sentence prediction.
        starts_trained: Whether the run begins with trained weights (train.init_from).
    """

    model: EncoderConfig
    generator_settings: GeneratorConfig
    method: MethodConfig
    vocabulary: Vocabulary
    compute_dtype: torch.dtype = torch.float32
    layer: type[TransformerLayer] | None = None
    num_steps: int = 1
    recompute_activations: bool = False
    next_sentence: bool = False
    starts_trained: bool = False

    def encoder(self, sizes: EncoderConfig, shared: Encoder | None = None) -> Encoder:
        """Return an encoder, which shares parameters with another one as `method.sharing` says."""
        sharing = self.method.sharing
        if shared is not None and sharing == "all":
            return shared
        embeddings = shared.embeddings if shared is not None and sharing == "embeddings" else None
        encoder = self.new_encoder(sizes, embeddings)
        if shared is not None and sharing == "gdes":
            shared.embeddings.tokens.base = (encoder.embeddings.tokens,)
        return encoder

    def new_encoder(self, sizes: EncoderConfig, embeddings: EmbeddingBlock | None) -> Encoder:
        """Return an encoder on an embedding block; None: on a new one."""
        return Encoder(
            sizes,
            layer=self.layer,
            embeddings=embeddings,
            compute_dtype=self.compute_dtype,
            recompute_activations=self.recompute_activations,
        )

    def masked_lm(self) -> MaskedLM:
        """Return a masked language model of the size of the encoder that pre-training returns."""
        sizes = self.model
        return MaskedLM(self.encoder(sizes), GeneratorHead(sizes))

    def generator(self, kept: Encoder) -> nn.Module:
        """Return the generator, which shares parameters with `kept` as `method.sharing` says."""
        config = self.generator_settings
        if config.kind in ("uniform", "unigram"):
            known = self.vocabulary
            probs_V = torch.ones(known.size) if config.kind == "uniform" else known.frequencies_V
            from electra.model.fixed_distribution import FixedDistribution

            return FixedDistribution(probs_V, disallow_correct=config.disallow_correct)
        sizes = config.encoder(self.model)
        generator = MaskedLM(
            self.encoder(sizes, shared=kept),
            GeneratorHead(sizes),
            temperature=config.temperature,
            decay_steps=config.temperature_decay * self.num_steps,
            disallow_correct=config.disallow_correct,
        )
        if config.shared_layers:
            generator.encoder.share_layers(kept, config.shared_layers)
        if config.kind == "frozen":
            generator.freeze()
        return generator


def learns(generator: nn.Module) -> bool:
    """Return whether the generator is trained, neither frozen nor a fixed distribution."""
    return isinstance(generator, MaskedLM) and not generator.is_frozen


def describe_generator(generator: nn.Module) -> dict[str, Network]:
    """Return the generator's entry of `Objective.networks`; empty for a fixed distribution."""
    if not isinstance(generator, MaskedLM):
        return {}
    trained = 1.0 if learns(generator) else 0.0
    encoders = (generator.encoder,)
    return {"generator": Network(encoders, generator.head, "tokens", "chosen", trained)}
