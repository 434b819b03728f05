"""What every objective returns, and what it is made of.

An objective is a module: `masking` draws a step's random numbers, `forward` turns rows into losses.
docs/OBJECTIVES.md writes a new one as an example.
"""

import dataclasses
from bisect import bisect_right
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn

from electra.config import EncoderConfig, PretrainConfig
from electra.corpus.tokenizer import Tokenizer
from electra.method.masking import Counts, Draw, Masking, Means
from electra.model.batch import Batch
from electra.model.encoder import Embeddings, Encoder
from electra.model.heads import DiscriminatorHead, GeneratorHead
from electra.model.layer import PostNormLayer
from electra.model.masked_lm import FixedDistribution, MaskedLM, TwoTowers


class Judgement(NamedTuple):
    """A discriminator's view of a batch."""

    corrupt_ids_BL: Tensor
    is_replaced_BL: Tensor
    """Label of each token: True where it differs from the original."""
    judged_BL: Tensor
    """The tokens that the loss is about."""
    logits_BL: Tensor
    """Positive where the discriminator believes a token replaced; meaningless at padding."""
    bce_BL: Tensor
    """Its loss at each token, nats; likewise."""


class Output(NamedTuple):
    """What a step is worth. Only the loss carries gradients."""

    loss: Tensor
    """What is minimised, nats: these rows' share of it where a step is computed in pieces."""
    means: Means
    """What to report."""
    judgement: Judgement | None = None
    """None where no discriminator is at work."""


class Network(NamedTuple):
    """One network of an objective, and what the steps of a run ask of it."""

    encoders: tuple[Encoder, ...]
    """One, or the two towers of Electric's noise."""
    head: GeneratorHead | DiscriminatorHead
    predicts: Literal["tokens", "replaced", "energy"]
    """What the head says of a position: which token, whether it was replaced, or an energy."""
    at: Literal["chosen", "all"]
    """The positions it is asked about."""
    trained: float = 1.0
    """Share of the run's steps that train it."""
    run: float = 1.0
    """Share of the run's steps that run it at all."""


class Objective(nn.Module):
    """What is trained, so described that neither loop nor checkpoint nor FLOPs know its name.

    Attributes:
        masking: Chooses the positions.
        loss_weights: Weight of each loss that is minimised now; that of a generator which does not
            learn has none.
        stages: First step of each stage. A stage has a schedule of the learning rate of its own.
        in_released_code: Whether the released code has it (method.mode=reference).
    """

    masking: Masking
    loss_weights: dict[str, float]
    stages: tuple[int, ...] = (0,)
    in_released_code: ClassVar[bool] = False

    @property
    def networks(self) -> dict[str, Network]:
        """The networks by role; the one that is kept is `discriminator` or `encoder`."""
        raise NotImplementedError

    @property
    def kept(self) -> Encoder:
        """The encoder that pre-training is for."""
        raise NotImplementedError

    @classmethod
    def build(cls, parts: "Parts") -> Self:
        """Return it with networks of the configured sizes, their weights not yet drawn."""
        raise NotImplementedError

    def weigh(self, losses: dict[str, Tensor]) -> Tensor:
        """Return the loss that is minimised: the sum of those that have a weight now."""
        return reduce(torch.add, (w * losses[name] for name, w in self.loss_weights.items()))

    def stage_at(self, step: int) -> int:
        """Return the number of the stage that a step belongs to, both counted from 0."""
        return bisect_right(self.stages, step) - 1

    def begin_stage(self, stage: int) -> None:
        """Turn to the stage of this number, counted from 0; the first needs no turn."""

    @torch.no_grad()
    def set_constant_predictions(self, frequencies_V: Tensor) -> None:
        """Set the biases of the heads to the best predictions that look at no text.

        The bias of a softmax is then the logarithm of each token's frequency.

        Args:
            frequencies_V: Times each token occurs, at least once.
        """
        for network in self.networks.values():
            if isinstance(network.head, GeneratorHead):
                network.head.bias.copy_((frequencies_V / frequencies_V.sum()).log())

    def forward(self, batch: Batch, draw: Draw, counts: Counts) -> Output:
        """Return losses and measures.

        Args:
            batch: Original rows.
            draw: What `masking.draw` drew for them. Dropout has torch's own randomness.
            counts: `masking.count` over all rows of the step, of which these may be a part.
        """
        raise NotImplementedError

    def compute(self, batch: Batch, rng: torch.Generator) -> Output:
        """Draw, and return losses and measures of a step that is computed in one piece."""
        draw = self.masking.draw(batch, rng)
        return self(batch, draw, self.masking.count(batch, draw))


@dataclass(frozen=True)
class Parts:
    """Makes the networks of an objective, their weights not yet drawn.

    Args:
        config: Sizes, sharing, kind of generator.
        tokenizer: Special tokens, vocabulary.
        compute_dtype: Dtype of activations and matrix products.
        frequencies_V: Times each token occurs in the corpus; only the unigram generator asks.
        layer: Class of the encoders' layers.
    """

    config: PretrainConfig
    tokenizer: Tokenizer
    compute_dtype: torch.dtype = torch.float32
    frequencies_V: Tensor | None = None
    layer: type[PostNormLayer] = PostNormLayer

    def encoder(self, sizes: EncoderConfig, shared: Encoder | None = None) -> Encoder:
        """Return an encoder; it shares with `shared` what `method.sharing` says."""
        sharing = self.config.method.sharing
        if shared is not None and sharing == "all":
            return shared
        embeddings = shared.embeddings if shared is not None and sharing == "embeddings" else None
        return self._new_encoder(sizes, embeddings)

    def _new_encoder(self, sizes: EncoderConfig, embeddings: Embeddings | None) -> Encoder:
        return Encoder(
            sizes,
            layer=self.layer,
            embeddings=embeddings,
            compute_dtype=self.compute_dtype,
            recompute_activations=self.config.train.recompute_activations,
        )

    def masked_lm(self) -> MaskedLM:
        """Return a masked language model of the full size, the one that is kept."""
        sizes = self.config.model
        return MaskedLM(self.encoder(sizes), GeneratorHead(sizes))

    def generator(self, kept: Encoder) -> MaskedLM | FixedDistribution:
        """Return the generator of the network that is kept."""
        config = self.config.generator
        if config.kind == "uniform":
            probs_V = torch.ones(self.tokenizer.vocab_size)
            return FixedDistribution(probs_V, disallow_correct=config.disallow_correct)
        if config.kind == "unigram":
            assert self.frequencies_V is not None
            return FixedDistribution(self.frequencies_V, disallow_correct=config.disallow_correct)
        sizes = config.encoder(self.config.model)
        generator = MaskedLM(
            self.encoder(sizes, shared=kept),
            GeneratorHead(sizes),
            temperature=config.temperature,
            disallow_correct=config.disallow_correct,
        )
        if config.kind == "frozen":
            generator.freeze()
        return generator

    def two_towers(self, kept: Encoder) -> TwoTowers:
        """Return Electric's noise, of the generator's size each tower."""
        sizes = self.config.generator.encoder(self.config.model)
        before = self.encoder(sizes, shared=kept)
        after = self._new_encoder(sizes, before.embeddings)
        both = dataclasses.replace(sizes, hidden_size=2 * sizes.hidden_size)
        return TwoTowers(before, after, GeneratorHead(both))

    def masking(self) -> Masking:
        """Return what chooses and masks positions."""
        return Masking(self.config.method, self.tokenizer)


def learns(generator: MaskedLM | FixedDistribution) -> bool:
    """Return whether the generator is a network that is trained."""
    return isinstance(generator, MaskedLM) and not generator.is_frozen


def describe_generator(generator: MaskedLM | FixedDistribution) -> dict[str, Network]:
    """Return the generator under its role; nothing where it is no network."""
    if isinstance(generator, FixedDistribution):
        return {}
    trained = 1.0 if learns(generator) else 0.0
    encoders = (generator.encoder,)
    return {"generator": Network(encoders, generator.head, "tokens", "chosen", trained)}
