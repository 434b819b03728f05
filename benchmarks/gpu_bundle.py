r"""All that benchmarks.gpu needs on a machine without a package registry, in one folder.

    python -m benchmarks.gpu_bundle --text wikipedia.txt.xz novels.txt.xz --vocab vocab.txt \
        --data glue/CoLA glue/MRPC glue/RTE glue/STS-B --out runs/bundle

Writes OUT/wheels (pure Python packages of the command line), OUT/vocab.txt, and the texts and tasks
in folders OUT/0, OUT/1, ... of at most --limit MiB each, to be sent one after the other. A text is
cut between documents, where a line is blank, and packed with xz; `electra prepare` reads the parts.
The source is the repository itself. Wikipedia and novels of 100 MB (xz) with four tasks of GLUE
make folders of 47, 27 and 26 MiB in ten minutes of a core.
"""

import argparse
import lzma
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PACKAGES = ("cyclopts", "docstring-parser", "rich", "rich-rst")
"""Packages that a machine with torch may lack."""
SLICE = 1 << 22
"""Bytes of text that are compressed at a time."""


def pack_text(text: Path, folder: Path, limit: int) -> list[Path]:
    """Write a text in parts of at most about `limit` compressed bytes, cut between documents.

    Args:
        text: Text, plain or packed with xz; blank lines separate documents.
        folder: Folder of the parts.
        limit: Size after which a part ends at the next blank line, bytes. It may be exceeded by
            what a slice of text takes.
    """
    name = text.name.removesuffix(".xz").removesuffix(".txt")
    parts: list[Path] = []
    with (lzma.open if text.suffix == ".xz" else open)(text, "rb") as source:
        rest = b""
        while rest or (rest := source.read(SLICE)):
            parts.append(folder / f"{name}-{len(parts)}.txt.xz")
            with lzma.open(parts[-1], "wb") as part:
                while rest:
                    cut = rest.rfind(b"\n\n") + 2
                    if parts[-1].stat().st_size >= limit and cut > 1:
                        part.write(rest[:cut])
                        rest = rest[cut:]
                        break
                    part.write(rest)
                    rest = source.read(SLICE)
    return parts


def share_out(paths: Sequence[Path], limit: int) -> list[list[Path]]:
    """Return the paths in groups of at most `limit` bytes, the largest first.

    Raises:
        SystemExit: One of them alone is larger.
    """
    groups: list[list[Path]] = []
    for path in sorted(paths, key=_size, reverse=True):
        if _size(path) > limit:
            raise SystemExit(f"error: {path} has {_size(path):,} bytes, more than the limit")
        for group in groups:
            if sum(map(_size, [*group, path])) <= limit:
                group.append(path)
                break
        else:
            groups.append([path])
    return groups


def write_bundle(
    texts: Sequence[Path], data: Sequence[Path], vocab: Path, out: Path, limit: int
) -> list[list[Path]]:
    """Write the bundle without its wheels, and return the texts and tasks of each folder."""
    parts = out / "parts"
    parts.mkdir(parents=True)
    packed = [part for text in texts for part in pack_text(text, parts, limit // 2)]
    groups = share_out([*packed, *data], limit)
    for number, group in enumerate(groups):
        folder = out / str(number)
        folder.mkdir()
        for path in group:
            if path in packed:
                path.rename(folder / path.name)
            else:
                shutil.copytree(path, folder / "glue" / path.name)
    parts.rmdir()
    shutil.copy(vocab, out / "vocab.txt")
    return groups


def _size(path: Path) -> int:
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return sum(each.stat().st_size for each in files)


def main() -> None:
    """Write the bundle, and print the size of each folder."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", type=Path, nargs="+", required=True)
    parser.add_argument("--data", type=Path, nargs="*", default=[])
    parser.add_argument("--vocab", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=48, help="MiB of a folder")
    arguments = parser.parse_args()
    out: Path = arguments.out
    write_bundle(arguments.text, arguments.data, arguments.vocab, out, arguments.limit * 2**20)
    wheels = ["--no-deps", "--only-binary", ":all:", "-q", "-d", str(out / "wheels")]
    subprocess.run([sys.executable, "-m", "pip", "download", *wheels, *PACKAGES], check=True)
    for folder in sorted(path for path in out.iterdir() if path.is_dir()):
        print(f"{folder}: {_size(folder) / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
