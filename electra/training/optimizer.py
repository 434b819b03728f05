"""AdamW with the paper's groups, and the two schedules.

Source: sections 3.1 and appendix A; optimization.py. The reference's Adam has no bias correction
and multiplies warm-up and decay; the paper names neither (docs/DEVIATIONS.md).
"""

import torch
from torch import nn

from electra.config import OptimizerConfig


def build_optimizer(
    model: nn.Module, config: OptimizerConfig, layer_lr_decay: float = 1.0
) -> torch.optim.AdamW:
    """Return AdamW over every parameter; biases and layer norms are not decayed.

    Args:
        model: Its parameters; a shared one is updated once.
        config: Rates and coefficients.
        layer_lr_decay: Fine-tuning only: each layer learns at this multiple of the layer above it,
            the head at the full rate, the top layer at one multiple below it, the embeddings at the
            lowest. Each group carries its multiple as "lr_scale", which `set_learning_rate` reads.
    """
    depths = {name: _depth(name) for name, _ in model.named_parameters()}
    num_layers = max((depth for depth in depths.values() if depth is not None), default=0)
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        decays = not (name.endswith("bias") or "norm" in name)
        depth = depths[name]
        above = 0 if depth is None else num_layers + 1 - depth
        key = (config.weight_decay if decays else 0.0, layer_lr_decay**above)
        groups.setdefault(key, []).append(parameter)
    return torch.optim.AdamW(
        [
            {"params": parameters, "weight_decay": decay, "lr_scale": scale}
            for (decay, scale), parameters in groups.items()
        ],
        lr=config.learning_rate,
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_epsilon,
        fused=True,
    )


def _depth(name: str) -> int | None:
    """Return 0 for embeddings, i + 1 for layer i, None for what stands above the encoder."""
    parts = name.split(".")
    if "layers" in parts:
        return int(parts[parts.index("layers") + 1]) + 1
    if "embeddings" in parts or "embeddings_project" in parts:
        return 0
    return None


def learning_rate_at(step: int, steps: int, config: OptimizerConfig) -> float:
    """Return the rate of update number `step` (0 is the first): linear warm-up, then linear to 0.

    The first update has rate peak / warmup_steps, the peak is reached at update warmup_steps - 1,
    and the rate would be 0 at update `steps`.
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    return config.learning_rate * (steps - step) / max(1, steps - config.warmup_steps)


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Give every group its share of the rate."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group["lr_scale"]
