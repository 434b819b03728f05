"""What pyproject.toml cannot say: commit and bill of materials are written into what is built."""

import hashlib
import json
import os
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

sys.path.insert(0, str(Path(__file__).parent))
from electra.checkpoints.manifest import COMMIT_FILE, find_commit
from electra.version import __version__

ROOT = Path(__file__).parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

# Files of a wheel have the first date of its format, so that two builds are equal.
os.environ.setdefault("SOURCE_DATE_EPOCH", "315532800")


def write_commit(root: str) -> None:
    """Write the commit into a copy of the package below a folder."""
    path = Path(root) / COMMIT_FILE
    path.unlink(missing_ok=True)  # which may be a hard link
    path.write_text(find_commit() or "", encoding="utf-8")


class BuildPackage(build_py):
    """Also of a wheel."""

    def run(self) -> None:
        """Build the package; an editable one has its .git."""
        super().run()
        if not self.editable_mode:
            write_commit(self.build_lib)


class BuildSource(sdist):
    """Of the source, of which a wheel may be built elsewhere."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Make the folder that is packed."""
        super().make_release_tree(base_dir, files)
        write_commit(base_dir)


class BuildWheel(bdist_wheel):
    """With a bill of materials where PEP 770 has it."""

    def egg2dist(self, egginfo_path: str, distinfo_path: str) -> None:
        """Write the folder of metadata."""
        super().egg2dist(egginfo_path, distinfo_path)
        path = Path(distinfo_path, "sboms", "electra.cdx.json")
        path.parent.mkdir()
        path.write_text(json.dumps(describe(), indent=1) + "\n", encoding="utf-8")


def describe() -> dict[str, Any]:
    """Return CycloneDX's bill of materials, without a date: the encoder, and what is required."""
    licence = [{"license": {"id": PROJECT["license"]}}]
    about = {"name": "electra", "version": __version__, "licenses": licence}
    components: list[dict[str, Any]] = []
    for folder in sorted((ROOT / "electra" / "encoders").iterdir()):
        digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
        model = {"type": "machine-learning-model", "bom-ref": folder.name, "name": folder.name}
        hashes = [{"alg": "SHA-256", "content": digest}]
        components.append({**model, "hashes": hashes, "licenses": licence})
    for requirement in PROJECT["dependencies"]:
        name, bound = re.fullmatch(r"([\w-]+)(.*)", requirement).groups()  # type: ignore[union-attr]
        package = {"type": "library", "bom-ref": name, "name": name, "purl": f"pkg:pypi/{name}"}
        components.append({**package, "scope": "required", "description": bound})
    return {
        **{"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1},
        "metadata": {"component": {"type": "library", "bom-ref": "electra", **about}},
        "components": components,
        "dependencies": [{"ref": "electra", "dependsOn": [each["bom-ref"] for each in components]}],
    }


if __name__ == "__main__":
    setup(cmdclass={"build_py": BuildPackage, "sdist": BuildSource, "bdist_wheel": BuildWheel})
