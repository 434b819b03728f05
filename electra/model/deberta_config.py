"""Settings of DeBERTaV3's body."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, Self

from electra.model.config import EncoderConfig
from electra.settings import AtLeast, Needs


@dataclass(frozen=True, kw_only=True)
class DebertaConfig(EncoderConfig):
    """Settings of `model.architecture=deberta-v2`."""

    architecture: str = "deberta-v2"
    position_buckets: Annotated[int, AtLeast(4)] = 256
    """Number of distance buckets on either side. Distances up to half this number have a bucket
    each; larger distances share buckets of logarithmic width."""
    max_relative_positions: Annotated[int, AtLeast(4)] = 512
    """Distance at which the buckets end; all from there on are one."""
    published_heads: bool = False
    """Whether pre-training has DeBERTaV3's heads: the generator has an enhanced mask
    decoder, and the discriminator's head also reads the state of [CLS]. Else both heads are
    ELECTRA's."""
    enhanced_decoder: bool = False
    """Whether the last layer is an enhanced mask decoder. The layer is applied twice to its input
    states; the first queries are the sum of these states and absolute positions.
    published_heads=true turns this on for the generator."""

    run_needs = (
        Needs("method.sharing=all", "model.published_heads=False", "one has a decoder"),
        Needs("model.published_heads", "examples.attend=row", "every token's head reads [CLS]"),
        Needs("model.enhanced_decoder", "model.enhanced_decoder=False", "set published_heads"),
    )
    of_heads = ("published_heads",)

    def check(self) -> None:
        """Check what bounds cannot say."""
        super().check()
        middle = self.position_buckets // 2
        is_far = self.max_relative_positions > middle + 1
        self.must("max_relative_positions", is_far, f"be more than {middle + 1}, half the buckets")

    @property
    def judges_by_row(self) -> bool:
        """Whether the discriminator's head reads the state of [CLS] with each token's."""
        return self.published_heads

    @property
    def applies_last_twice(self) -> bool:
        """Whether the last layer is an enhanced mask decoder."""
        return self.enhanced_decoder

    def of_generator(self, **sizes: Any) -> Self:
        """Return the settings of this encoder's generator, which has other sizes."""
        return dataclasses.replace(self, enhanced_decoder=self.published_heads, **sizes)
