"""The objective that a configuration names."""

from importlib import import_module

import torch

from electra.config import OBJECTIVES, SCHEMES, PretrainConfig
from electra.method.masking import Vocabulary
from electra.method.objective import Objective, Parts
from electra.model.initialisation import without_weights


def build_objective(parts: Parts) -> Objective:
    """Return the objective that the configuration names, not yet initialised."""
    method = parts.config.method
    name, scheme = method.objective, method.scheme
    place = OBJECTIVES[name] if scheme == "joint" else SCHEMES[name, scheme]
    if parts.config.train.updates == "apart":
        place = "schemes:Separate"
    module, _, class_name = place.partition(":")
    objective: type[Objective] = getattr(import_module(f"electra.method.{module}"), class_name)
    model = objective(parts)
    if parts.config.second_stage:
        model.rest_until(parts.config.second_stage, parts.config.train.steps)
    return model


def sketch_objective(config: PretrainConfig) -> Objective:
    """Return the objective on the meta device: sizes and parameter names, but no weights."""
    with without_weights():
        frequencies_V = torch.ones(config.model.vocab_size)
        vocabulary = Vocabulary(torch.ones(config.model.vocab_size, dtype=torch.bool))
        return build_objective(Parts(config, vocabulary, frequencies_V=frequencies_V))
