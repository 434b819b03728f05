"""Every objective by its name in `method.objective`; a new one is a line here."""

from electra.method.electric import Electric
from electra.method.masked_language_modelling import (
    AllTokensMLM,
    MaskedLanguageModelling,
    ReplaceMLM,
)
from electra.method.objective import Objective, Parts
from electra.method.replaced_token_detection import MaskedOnly, ReplacedTokenDetection
from electra.method.schemes import Adversarial, TwoStage

OBJECTIVES: dict[str, type[Objective]] = {
    "rtd": ReplacedTokenDetection,
    "rtd_masked_only": MaskedOnly,
    "mlm": MaskedLanguageModelling,
    "replace_mlm": ReplaceMLM,
    "all_tokens_mlm": AllTokensMLM,
    "electric": Electric,
}
SCHEMES: dict[str, type[Objective]] = {
    "two_stage": TwoStage,
    "adversarial": Adversarial,
}
"""What stands for "rtd" where the scheme is not joint."""


def build_objective(parts: Parts) -> Objective:
    """Return the objective that the config names, its weights not yet drawn."""
    method = parts.config.method
    if method.scheme != "joint":
        return SCHEMES[method.scheme].build(parts)
    return OBJECTIVES[method.objective].build(parts)
