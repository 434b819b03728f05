"""The optimizer with the paper's parameter groups, learning rate schedules, and seeds.

An optimizer here, torch's AdamW or one like Muon, keeps this contract:

1. It is built as `kind(groups, lr=, betas=, eps=, fused=True, capturable=)`.
2. A group's "lr" is the rate of `set_learning_rate`; it is a tensor if steps are captured.
3. `step` leaves everything as it is where `found_inf` is set, and divides gradients by `grad_scale`
   (`update_unless`).
4. `step` reads nothing back from the device, and no shape in it depends on a value.
5. `state[parameter]` holds tensors by name, on the parameter's device, which checkpoints keep.
6. A parameter without a gradient stays as it is.
7. The parameters of a group with "num_blocks" 0 are updated element by element: on a GPU they are
   parts of long tensors (flat.py).

The released code's Adam has no bias correction, and its schedule multiplies warm-up and decay. The
paper mentions neither (docs/DEVIATIONS.md).

Source: section 3.1 and appendix A; optimization.py.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from electra.model.parts import TokenTable
from electra.training.config import OptimizerConfig

Mode = Literal["paper", "reference"]

PART = 1 << 16
"""Numbers whose squares are added at a time on a CPU, for the norm of the gradients."""


def build_optimizer(
    model: nn.Module,
    config: OptimizerConfig,
    layer_lr_decay: float = 1.0,
    mode: Mode = "paper",
    captured: bool = False,
) -> torch.optim.Optimizer:
    """Return an optimizer of all parameters, without weight decay for vectors: biases and norms.

    Args:
        model: Module whose parameters are updated; a shared parameter is updated once.
        config: Learning rate, weight decay and Adam's coefficients. With `matrices` muon, the
            matrices of layers and heads are updated by Muon, everything else by AdamW.
        layer_lr_decay: Fine-tuning only: the learning rate of a layer divided by the learning rate
            of the layer above. The head has the full rate, and the embeddings have the lowest. Each
            parameter group has its factor in "lr_scale", which `set_learning_rate` reads.
        mode: paper: torch's AdamW. reference: ReferenceAdamW, with every layer's rate scaled once
            more, because the released code counts the head as one more layer.
        captured: Whether updates will be captured in a CUDA graph. Learning rates are then tensors
            on the device, which `set_learning_rate` writes to.

    Source: optimization.py.
    """
    depths = {name: _depth(name) for name, _ in model.named_parameters()}
    num_layers = max((depth for depth in depths.values() if depth is not None), default=0)
    tables = [part for part in model.modules() if isinstance(part, TokenTable)]
    shared = {weight for table in tables for base in table.base for weight in base.parameters()}
    groups: dict[tuple[float, float, int], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        decays = parameter.ndim > 1
        depth = depths[name]
        above = 0 if depth is None else num_layers + 1 - depth + (mode == "reference")
        num_blocks = _count_blocks(name, parameter) if config.matrices == "muon" else 0
        scale = layer_lr_decay**above
        if name.startswith("generator.") and parameter not in shared:
            scale *= config.generator_rate
        key = (config.weight_decay if decays else 0.0, scale, num_blocks)
        groups.setdefault(key, []).append(parameter)
    with_settings: list[dict[str, Any]] = [
        {"params": parameters, "weight_decay": decay, "lr_scale": scale, "num_blocks": num_blocks}
        for (decay, scale, num_blocks), parameters in groups.items()
    ]
    if captured:
        for group in with_settings:
            group["lr"] = torch.tensor(config.learning_rate, device=group["params"][0].device)
    betas = config.adam_beta1, config.adam_beta2
    settings: dict[str, Any] = dict(lr=config.learning_rate, betas=betas, eps=config.adam_epsilon)
    kind: Any = torch.optim.AdamW
    if config.matrices == "muon":
        from electra.training.muon import Muon

        kind = Muon
    kind = ReferenceAdamW if mode == "reference" else kind
    return kind(with_settings, **settings, fused=True, capturable=captured)


def _count_blocks(name: str, parameter: nn.Parameter) -> int:
    """Return how many matrices a parameter holds for Muon; 0: a vector, or a table of them."""
    if parameter.ndim != 2 or min(parameter.shape) == 1 or "embeddings." in name:
        return 0
    return 3 if ".qkv." in name else 2 if ".intermediate_and_gate." in name else 1


def _depth(name: str) -> int | None:
    """Return a parameter's depth: 0 for embeddings, i + 1 for layer i, None for heads."""
    parts = name.split(".")
    if "layers" in parts:
        return int(parts[parts.index("layers") + 1]) + 1
    if {"embeddings", "embeddings_project", "places"} & set(parts):
        return 0
    return None


class ReferenceAdamW(torch.optim.AdamW):
    """AdamW of the released code: torch's, at a step so late that bias correction has no effect.

    At step t, for small epsilon, an update is (1 - b1^t) / sqrt(1 - b2^t) times the update with
    bias correction: 3.2 times at step 1, 6.6 times at step 12, 1.26 times at step 1000.

    Source: optimization.py AdamWeightDecayOptimizer.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for each in (each for group in self.param_groups for each in group["params"]):
            state = self.state[each]
            if each.grad is not None and not state:
                state["step"] = torch.full((), 2.0**30, device=each.device)  # 1 adds nothing to it
                state["exp_avg"], state["exp_avg_sq"] = (
                    torch.zeros_like(each),
                    torch.zeros_like(each),
                )
        super().step()


def learning_rate_at(step: int, steps: int, config: OptimizerConfig, mode: Mode = "paper") -> float:
    """Return the learning rate of an update: linear warm-up, the peak, linear decay to 0.

    In paper mode the first update has the rate peak / warmup_steps, update warmup_steps - 1 has the
    peak, and update `steps` would have 0. Decay takes the last `decay_fraction` of the steps. In
    reference mode decay also runs during warm-up: the first update has rate 0, and no update has
    the peak.

    Source: section 3.1; reference mode: optimization.py.
    """
    if mode == "reference":
        warmup = min(1.0, step / config.warmup_steps) if config.warmup_steps else 1.0
        return config.learning_rate * (1 - step / steps) * warmup
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    decay_steps = min(steps - config.warmup_steps, max(1, round(config.decay_fraction * steps)))
    peak = config.learning_rate
    return min(peak, peak * (steps - step) / max(1, decay_steps))


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Set the learning rate of every parameter group: `learning_rate` times "lr_scale"."""
    for group in optimizer.param_groups:
        rate = learning_rate * group["lr_scale"]
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def find_norm(gradients: Sequence[Tensor]) -> Tensor:
    """Return the norm of all gradients together, a scalar.

    On a CPU torch adds the squares of one tensor in float32, one after the other, which makes the
    norm of 30 M numbers 0.2% too small. So it is given parts; not of a divided model's tensors.
    """
    parts: list[Tensor] = []
    for each in gradients:
        is_long = each.numel() > PART and each.device.type == "cpu"
        is_whole = is_long and not hasattr(each, "full_tensor")  # of DTensor
        parts += each.flatten().split(PART) if is_whole else [each]
    return nn.utils.get_total_norm(parts, foreach=True)


def update_unless(is_skipped: Tensor, optimizer: torch.optim.Optimizer, divisor: Tensor) -> None:
    """Update the parameters by their gradients over `divisor`, unless the flag is set.

    If it is set, parameters, moments and step counters keep their values, bit for bit: torch's
    fused optimizers look at flag and divisor in their kernels, and Muon reads `read_flags`.

    The flag, a bool, and the divisor of clipping, float32 and at least 1, are on the parameters'
    device. Gradients of a skipped update may be NaN or infinite.
    """
    optimizer.found_inf, optimizer.grad_scale = is_skipped.float(), divisor  # type: ignore[attr-defined]
    optimizer.step()


def step_seed(seed: int, stream: str, step: int) -> int:
    """Return a 63-bit seed: a hash of the run's seed, a stream and the number of the step.

    The stream is the name of a use, such as "dropout" or "order". Different streams have
    uncorrelated random numbers.
    """
    digest = hashlib.blake2b(f"{seed}/{stream}/{step}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
