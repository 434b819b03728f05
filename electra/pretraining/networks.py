"""The objective that a configuration names, with its networks."""

from importlib import import_module

import torch
from torch import Tensor

from electra.method.config import OBJECTIVES, SCHEMES
from electra.method.masking import Vocabulary
from electra.method.objective import Objective, Parts
from electra.model.initialisation import without_weights
from electra.model.parts import TransformerLayer
from electra.training.config import PretrainConfig


def build_objective(
    config: PretrainConfig,
    vocabulary: Vocabulary,
    compute_dtype: torch.dtype = torch.float32,
    frequencies_V: Tensor | None = None,
    layer: type[TransformerLayer] | None = None,
) -> Objective:
    """Return the objective that the configuration names, not yet initialised.

    Args:
        config: Settings of the run.
        vocabulary: Special ids and size of the vocabulary.
        compute_dtype: As in `Parts`; likewise `frequencies_V` and `layer`.
        frequencies_V: As in `Parts`.
        layer: As in `Parts`.
    """
    method, train = config.method, config.train
    name, scheme = method.objective, method.scheme
    place = OBJECTIVES[name] if scheme == "joint" else SCHEMES[name, scheme]
    if train.updates == "apart":
        place = "objectives.schemes:Separate"
    module, _, class_name = place.partition(":")
    objective: type[Objective] = getattr(import_module(f"electra.{module}"), class_name)
    parts = Parts(
        config.model,
        config.generator,
        method,
        vocabulary,
        compute_dtype=compute_dtype,
        frequencies_V=frequencies_V,
        layer=layer,
        num_steps=config.optimizer.planned_steps or train.steps,
        recompute_activations=train.recompute_activations,
        next_sentence=config.examples.next_sentence,
        starts_trained=bool(train.init_from),
    )
    model = objective(parts)
    if config.second_stage:
        model.rest_until(config.second_stage, train.steps)
    return model


def sketch_objective(config: PretrainConfig) -> Objective:
    """Return the objective on the meta device: sizes and parameter names, but no weights."""
    with without_weights():
        frequencies_V = torch.ones(config.model.vocab_size)
        vocabulary = Vocabulary(torch.ones(config.model.vocab_size, dtype=torch.bool))
        return build_objective(config, vocabulary, frequencies_V=frequencies_V)
