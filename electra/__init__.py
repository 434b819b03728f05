"""Pre-train text encoders by replaced token detection, and prove how good they are."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from electra.version import __version__

if TYPE_CHECKING:
    from electra.errors import UserError
    from electra.library import (
        Model,
        detect,
        embed,
        encode,
        export,
        fill,
        finetune,
        load,
        predict,
        prepare,
        pretrain,
        report,
        score,
        show,
        verify,
    )
    from electra.processes import Interrupted

__all__ = ["Interrupted", "Model", "UserError", "__version__", "detect", "embed", "encode"]
__all__ += ["export", "fill", "finetune", "load", "predict", "prepare", "pretrain"]
__all__ += ["report", "score", "show", "verify"]
PLACES = {"UserError": "errors", "Interrupted": "processes"}


def __getattr__(name: str) -> Any:
    """Return a name of the library; torch is imported with the first one."""
    if name in __all__:
        return getattr(import_module(f"electra.{PLACES.get(name, 'library')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
