"""The gradient of a loss of a whole batch, whose rows pass through the network part by part.

A contrastive loss compares all texts of a batch, and large batches are better, but the activations
of a large batch do not fit into memory. So the vectors are computed without a graph, the loss gives
the gradient of each vector, and a second pass of each part, with the same dropout, takes it to the
weights. The result is the gradient of the batch. Source: Gao et al. 2021, "Scaling Deep Contrastive
Learning Batch Size under Memory Limited Setup" (section 3), GradCache.
"""

import dataclasses

import torch
from torch import Tensor

from electra.finetuning.network import TaskNetwork
from electra.model.batch import split_by_length
from electra.tasks.rows import Rows, TaskBatch, make_batch
from electra.training.machine import Machine
from electra.training.optimizer import step_seed

PART_TOKENS = 8192
"""Tokens of a part, with padding, if all activations are kept."""


def backward_by_parts(
    model: TaskNetwork, taken: Rows, machine: Machine, seed: int, factor: float, cached_rows: int
) -> Tensor:
    """Add the gradient of `factor` times a batch's loss to that of the weights; return the loss.

    The family `has_separate_rows`, and its output is "vectors". `taken` are the items of the batch,
    `seed` is the step's dropout seed, and `cached_rows` is the number of rows of a part; only one
    part's activations are kept. 0: those of all parts are kept.
    """
    shape = len(taken), len(taken.lengths) // len(taken)
    targets = {name: values.view(-1, 1) for name, values in taken.targets.items()}
    rows = dataclasses.replace(taken, targets=targets, begins=torch.arange(len(taken.lengths) + 1))
    limits = (cached_rows, None) if cached_rows else (len(rows), PART_TOKENS)
    parts = list(map(torch.tensor, split_by_length(rows.lengths.tolist(), *limits)))

    def run(number: int) -> Tensor:
        machine.seed_dropout(step_seed(seed, "part", number))
        found: Tensor = model(make_batch(rows, parts[number], machine.device))["vectors"]
        return found

    with torch.set_grad_enabled(not cached_rows):
        computed = torch.cat([run(number) for number in range(len(parts))])
    if cached_rows:
        computed.requires_grad_()
    order = torch.cat(parts).argsort().to(computed.device)
    vectors = computed[order].view(*shape, -1)
    batch = TaskBatch(
        *(taken.input_ids, None, None),
        {name: values.to(machine.device) for name, values in taken.targets.items()},
    )
    loss = model.family.loss({"vectors": vectors}, batch)
    (loss * factor).backward()
    if cached_rows:
        assert computed.grad is not None
        for number, grad in enumerate(computed.grad.split([len(part) for part in parts])):
            run(number).backward(grad)
    return loss.detach()
