"""The objective that a configuration names, with its networks."""

from importlib import import_module

import torch

from electra.method.config import OBJECTIVES, SCHEMES
from electra.method.masking import Vocabulary
from electra.method.objective import Objective, Parts
from electra.model.initialisation import without_weights
from electra.model.parts import TransformerLayer
from electra.training.config import PretrainConfig


def find_objective(config: PretrainConfig) -> type[Objective]:
    """Return the class of the objective that the configuration names."""
    name, scheme = config.method.objective, config.method.scheme
    objective: type[Objective]
    if name not in OBJECTIVES:
        from electra.outside import load_outside

        objective = load_outside("objectives", name, Objective)
        return objective
    place = OBJECTIVES[name] if scheme == "joint" else SCHEMES[name, scheme]
    if config.train.updates == "apart" or config.train.overlap:
        place = "objectives.schemes:Separate"
    module, _, class_name = place.partition(":")
    objective = getattr(import_module(f"electra.{module}"), class_name)
    return objective


def needs_frequencies(config: PretrainConfig) -> bool:
    """Return whether the objective or its generator is built from counts of the corpus."""
    return find_objective(config).needs_frequencies or config.generator.kind == "unigram"


def build_objective(
    config: PretrainConfig,
    vocabulary: Vocabulary,
    compute_dtype: torch.dtype = torch.float32,
    layer: type[TransformerLayer] | None = None,
) -> Objective:
    """Return the objective that the configuration names, not yet initialised; see `Parts`."""
    method, train = config.method, config.train
    parts = Parts(
        config.model,
        config.generator,
        method,
        vocabulary,
        compute_dtype=compute_dtype,
        layer=layer,
        num_steps=config.optimizer.planned_steps or train.steps,
        recompute_activations=train.recompute_activations,
        next_sentence=config.examples.next_sentence,
        starts_trained=bool(train.init_from),
    )
    model = find_objective(config)(parts)
    if config.second_stage:
        model.rest_until(config.second_stage, train.steps)
    return model


def sketch_objective(config: PretrainConfig) -> Objective:
    """Return the objective on the meta device: sizes and parameter names, but no weights."""
    with without_weights():
        vocabulary = Vocabulary(torch.ones(config.model.vocab_size, dtype=torch.bool))
        return build_objective(config, vocabulary)
