"""`electra --version --verbose`: a report of the environment, for a bug report."""

import os
import platform
import sys
from importlib import metadata

from electra.checkpoints.manifest import find_commit
from electra.processes import read_processor, usable_cores
from electra.version import __version__


def describe_environment() -> dict[str, str]:
    """Return name and version or state of what decides how electra runs, torch first."""
    import torch

    facts = {
        "electra": f"{__version__}, commit {find_commit() or 'unknown'}",
        "python": f"{platform.python_version()} ({sys.executable})",
        "system": platform.platform(),
        "cores": f"{usable_cores()} of {os.cpu_count()}, {_find_processor()}",
        "torch": f"{torch.__version__}, CUDA {torch.version.cuda or 'none'}",
    }
    for number in range(torch.cuda.device_count()):
        facts[f"cuda:{number}"] = torch.cuda.get_device_name(number)
    needed = metadata.requires("electra") or []
    names = {line.split(";")[0].strip().split("[")[0] for line in needed}
    for name in sorted({name.split(">")[0].split("<")[0].split("=")[0] for name in names}):
        if name not in ("electra", "torch"):
            facts[name] = _find_version(name)
    return facts


def _find_version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _find_processor() -> str:
    """Return the processor's name and what it has for bfloat16."""
    name, flags = read_processor()
    kinds = sorted({"avx512_bf16", "amx_bf16"} & flags)
    return f"{name}, {' '.join(kinds) or 'no instructions for bfloat16'}"
