"""Parameters of modules in files: names, dtypes and shapes are checked before any is read."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from electra.checkpoints.checkpoint import Header, Weights, read_header, require_weight
from electra.errors import UserError, require
from electra.model.config import EncoderConfig
from electra.model.initialisation import without_weights

Tensors = Mapping[str, Tensor]


def require_layers(tensors: Tensors, before: str, sizes: EncoderConfig) -> None:
    """Raise UserError unless weights have as many layers as the sizes say.

    So absurd sizes are refused before a network is built with them, even one without weights.
    """
    number = count_layers(tensors, before)
    require(
        number == sizes.num_hidden_layers,
        f"num_hidden_layers is {sizes.num_hidden_layers:,}, but the weights have {number:,} "
        f"layers ({before}0, ...)",
    )


def count_layers(tensors: Tensors, before: str) -> int:
    """Return the number of layers; `before` precedes a layer's number in the tensors' names."""
    names = (name.removeprefix(before) for name in tensors if name.startswith(before))
    return len({name.partition(".")[0] for name in names})


def list_parameters(build: Callable[[], nn.Module]) -> dict[str, Tensor]:
    """Return a module's parameters, of which none is allocated."""
    try:
        with without_weights():
            return dict(build().named_parameters())
    except RuntimeError:  # an overflow
        raise UserError("the sizes are too large for any machine") from None


def gather(
    build: Callable[[], nn.Module],
    theirs: Tensors,
    find: Callable[[str], tuple[str, ...]] = lambda name: (name,),
) -> Weights:
    """Return the weights of a module; names, dtypes and shapes are checked before any is read."""
    names, headers = {}, {}
    for name, parameter in list_parameters(build).items():
        names[name] = find(name)
        rows, *rest = parameter.shape
        for each in names[name]:
            require(each in theirs, f"the weights lack {each}")
            found = read_header(theirs, each)
            require_weight(found, each, (rows // len(names[name]), *rest))
        headers[name] = Header(found.dtype, tuple(parameter.shape))

    def read(name: str) -> Tensor:
        parts = [theirs[each] for each in names[name]]
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    return Weights(headers, read)
