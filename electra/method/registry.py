"""The objective that a configuration names."""

from importlib import import_module

import torch

from electra.config import OBJECTIVES, SCHEMES, PretrainConfig
from electra.method.masking import Vocabulary
from electra.method.objective import Objective, Parts
from electra.model.initialisation import without_weights
from electra.outside import load_outside


def find_objective(config: PretrainConfig) -> type[Objective]:
    """Return the class of the objective that the configuration names."""
    name, scheme = config.method.objective, config.method.scheme
    objective: type[Objective]
    if name not in OBJECTIVES:
        objective = load_outside("objectives", name, Objective)
        return objective
    place = OBJECTIVES[name] if scheme == "joint" else SCHEMES[name, scheme]
    if config.train.updates == "apart":
        place = "schemes:Separate"
    module, _, class_name = place.partition(":")
    objective = getattr(import_module(f"electra.method.{module}"), class_name)
    return objective


def needs_frequencies(config: PretrainConfig) -> bool:
    """Return whether the objective or its generator is built from counts of the corpus."""
    return find_objective(config).needs_frequencies or config.generator.kind == "unigram"


def build_objective(parts: Parts) -> Objective:
    """Return the objective that the configuration names, not yet initialised."""
    model = find_objective(parts.config)(parts)
    if parts.config.second_stage:
        model.rest_until(parts.config.second_stage, parts.config.train.steps)
    return model


def sketch_objective(config: PretrainConfig) -> Objective:
    """Return the objective on the meta device: sizes and parameter names, but no weights."""
    with without_weights():
        vocabulary = Vocabulary(torch.ones(config.model.vocab_size, dtype=torch.bool))
        return build_objective(Parts(config, vocabulary))
