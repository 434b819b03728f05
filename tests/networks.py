"""Networks of random weights that show every difference, and what is the same in two of them."""

from dataclasses import replace

import torch

from electra.model.initialisation import init_weights
from electra.presets import deberta_sizes, encoder_sizes, modern_sizes


def rng(seed):
    return torch.Generator().manual_seed(seed)


def draw(module, std=0.2):
    """Ten times the usual weights; biases and norms too."""
    init_weights(module, std, rng(1))
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() == 1:
                parameter += 0.1 * torch.randn(parameter.shape, generator=rng(2))
    return module


def make_sizes(body, embedding_size=32, positions=16, vocab_size=120):
    """Small sizes of a body; "modernbert with biases" has those that are optional."""
    options = {"vocab_size": vocab_size, "max_position_embeddings": positions}
    if body == "electra":
        return encoder_sizes(64, 2, embedding_size, **options)
    if body == "deberta-v2":
        return deberta_sizes(64, 2, position_buckets=8, max_relative_positions=12, **options)
    names = ("norm_bias", "attention_bias", "mlp_bias", "classifier_bias")
    options |= dict.fromkeys(names, body.endswith("biases"))
    return replace(modern_sizes(64, 3), local_attention=8, **options)


def assert_near_tensors(ours, theirs, tolerance=1e-5, least=0.0):
    """To a share of the largest element of each, or of `least`, by name or in order."""
    if not isinstance(theirs, dict):
        ours, theirs = dict(enumerate(ours)), dict(enumerate(theirs))
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        scale = max(least, tensor.abs().max().item())
        assert (ours[name] - tensor).abs().max() <= tolerance * scale, name


def assert_same_tensors(ours, theirs):
    """To the bit, by name."""
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name
