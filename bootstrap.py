"""Set up `.venv` for this checkout: `python bootstrap.py [EXTRA]`.

A torch that this Python already has (2.11 or newer, any build) is used as it is and never replaced;
otherwise torch 2.13.0 is installed first. Either way its version is pinned through a constraints
file, so that no dependency can swap it for another build. Only the standard library is used here.
"""

import importlib.util
import os
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

OLDEST_TORCH = (2, 11)
DEFAULT_TORCH = os.environ.get("TORCH_VERSION", "2.13.0")
ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def find_torch() -> tuple[str, Path] | None:
    """Return version and site-packages folder of a torch this Python can import, new enough."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    version = metadata.version("torch")
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_TORCH:
        return None
    return version, Path(spec.origin).parent.parent


def pip(*arguments: str) -> None:
    """Run the venv's pip, quietly; a failure ends the set-up with pip's own words."""
    command = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    if subprocess.run(command, check=False).returncode:
        sys.exit(f"set-up failed at: {' '.join(command)}")


def main() -> None:
    """Create the venv if need be, pin torch, install the project with the named extra."""
    extra = f"[{sys.argv[1]}]" if len(sys.argv) > 1 else ""
    constraints = VENV / "constraints.txt"
    if not PYTHON.exists():
        print("setting up .venv (once; one to three minutes)", flush=True)
        venv.create(VENV, with_pip=True)
    if not constraints.exists():
        found = find_torch()
        if found:
            version, folder = found
            site_packages = next(
                (VENV / "lib").glob("python*/site-packages"), VENV / "Lib/site-packages"
            )
            (site_packages / "machine-torch.pth").write_text(f"{folder}\n")
            print(f"using the machine's torch {version}", flush=True)
        else:
            version = DEFAULT_TORCH
            print(f"installing torch {version}", flush=True)
            pip("install", f"torch=={version}")
        constraints.write_text(f"torch=={version}\n")
    print(f"installing electra{extra}", flush=True)
    pip("install", "--constraint", str(constraints), "--editable", f"{ROOT}{extra}")


if __name__ == "__main__":
    main()
