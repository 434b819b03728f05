"""Pre-train text encoders by replaced token detection, and prove how good they are."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from electra.version import __version__ as __version__

if TYPE_CHECKING:
    from electra.verbs import *  # noqa: F403


def __getattr__(name: str) -> Any:
    """Return a verb, or what verbs give and raise; torch is imported when a verb is called."""
    if name == "__all__" or not name.startswith("_"):
        verbs = import_module("electra.verbs")
        if name in verbs.__all__ or name == "__all__":
            return getattr(verbs, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__getattr__("__all__"))
