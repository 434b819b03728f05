"""Settings that only some objectives have, and what these ask of the other settings of a run."""

from dataclasses import dataclass
from typing import Annotated, Literal

from electra.method.config import MethodConfig
from electra.settings import Needs, Within

COMPARES = "it compares whole rows of a step; method.contrast_weight=0 does not"


@dataclass(frozen=True, kw_only=True)
class AloneConfig(MethodConfig):
    """Settings of an objective without a generator: `mlm`, `causal_lm`, another package's."""

    has_generator = False


@dataclass(frozen=True, kw_only=True)
class ElectricConfig(MethodConfig):
    """Settings of `method.objective=electric`."""

    run_needs = (
        Needs("method.objective", "generator.kind=network", "its noise is learned"),
        Needs("method.objective", "generator.temperature=1", "it needs the softmax"),
        Needs("method.objective", "generator.disallow_correct=False", "it needs the softmax"),
        Needs("method.objective", "method.sharing!=all", "its noise reads one side"),
        Needs("method.objective", "generator.start!=folder", "its noise has two towers"),
    )


@dataclass(frozen=True, kw_only=True)
class TeamsConfig(MethodConfig):
    """Settings of `method.objective=teams`."""

    selection_weight: Annotated[float, Within("[0, inf)")] = 2.0
    """Weight of selection_loss. Source: the released code, where `disc_weight` is 5."""
    kept_layer: Literal["detection", "selection"] = "detection"
    """Last layer of the encoder that pre-training returns. detection: that of the discriminator,
    which can be exported with its head. selection: that of the selector, as in the released code;
    it has no head."""

    run_needs = (
        Needs("method.objective", "generator.kind=network|frozen", "tokens in context"),
        Needs("method.objective", "model.num_hidden_layers!=1", "its two tasks have a layer each"),
    )


@dataclass(frozen=True, kw_only=True)
class CocoLMConfig(MethodConfig):
    """Settings of `method.objective=cocolm`. Source: COCO-LM."""

    corrective_weight: Annotated[float, Within("[0, inf)")] = 1.0
    """Weight of the loss of the language model; 0: there is none."""
    contrast_weight: Annotated[float, Within("[0, inf)")] = 1.0
    """Weight of the contrast, for which the discriminator also reads a crop with nine tenths of
    each row's tokens. 0 turns this off."""

    run_needs = (
        Needs("method.contrast_weight", "train.accumulation=1", COMPARES),
        Needs("method.contrast_weight", "train.batch_size!=1", COMPARES),
        Needs("method.contrast_weight", "examples.attend=row", COMPARES),
    )

    @property
    def contrasts(self) -> bool:
        """Whether the loss compares the rows of a step with each other."""
        return self.contrast_weight > 0
