"""What pyproject.toml cannot say: the commit is written into what is built, which has no .git."""

import os
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

sys.path.insert(0, str(Path(__file__).parent))
from electra.checkpoints.manifest import COMMIT_FILE, find_commit

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


setup(cmdclass={"build_py": BuildPackage, "sdist": BuildSource})
