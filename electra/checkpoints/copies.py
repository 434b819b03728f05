"""Copies of a run in a store, one for each checkpoint, from which the run continues elsewhere.

    URL/step-00001000/...      the checkpoint, with what else of the run folder continues it
    URL/step-00001000.json     the sha256 of each of these files, and of the run's first session

The JSON file is written last, and once; without it there is no copy. Nothing is removed.
"""

import json
import os
import re
import shutil
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypedDict

from electra.checkpoints.manifest import read_manifest
from electra.errors import UserError, require
from electra.files import (
    is_inside,
    make_folder,
    new_folder,
    parse_object,
    sha256_facts,
    sha256_file,
)
from electra.objects import copy_object, is_url, list_sizes, place_of, read_bytes, send, send_new
from electra.shapes import check_shape

OF_RUN = ("config.json", "manifest.json", "metrics.jsonl", "heldout.safetensors", "tokenizer")
"""Files that continue a run, beside a checkpoint."""
STAGING = "sending"
"""The folder in the run of what is being sent: links to files that the run may remove meanwhile."""


class Commit(TypedDict):
    """The JSON file of a copy."""

    began: str
    """sha256 of the run's first session: two runs differ in it."""
    sha256: dict[str, str]


def place_of_copies(url: str) -> Path:
    """Return the place of a run's copies, which must be a URL."""
    require(is_url(url), f"train.copy_to must be a URL, such as s3://bucket/run, not {url!r}")
    return place_of(url)


def fetch_copy(url: Path, run: Path) -> bool:
    """Write a run folder from the newest copy of a run; return whether there is one."""
    name = _find_newest(url)
    if not name:
        return False
    with new_folder(run) as folder:
        for file, sha256 in _read_commit(url / f"{name}.json")["sha256"].items():
            told = f"{url / name}.json is damaged: {file!r} is not a file of a run"
            require(is_inside(file), told)
            make_folder((folder / file).parent)
            copy_object(url / name / file, folder / file, sha256)
    return True


class Copier:
    """Sends checkpoints in a thread; while one is sent, the newest of the others waits."""

    def __init__(self, run: Path, url: Path):
        self.run, self.url = run, url
        self.began = sha256_facts(read_manifest(run)["sessions"][0])
        newest = _find_newest(url)
        is_same = not newest or _read_commit(url / f"{newest}.json")["began"] == self.began
        require(is_same, f"{url} has the copies of another run; choose another train.copy_to")
        shutil.rmtree(run / STAGING, ignore_errors=True)  # of a killed process
        self.lock = threading.Lock()
        self.waiting: Path | None = None
        self.thread: threading.Thread | None = None
        self.failure = ""

    def offer(self, checkpoint: Path) -> None:
        """Send a checkpoint after the previous one, unless a newer one is offered first."""
        staged = _stage(self.run, checkpoint)
        with self.lock:
            passed_over, self.waiting = self.waiting, staged
            if self.thread is None:
                self.thread = threading.Thread(target=self._work, name="copies", daemon=True)
                self.thread.start()
        if passed_over:
            shutil.rmtree(passed_over)

    def _work(self) -> None:
        while True:
            with self.lock:
                folder, self.waiting = self.waiting, None
                if folder is None:
                    self.thread = None
                    return
            try:
                self._send(folder)
            except (UserError, OSError) as error:  # reported by the thread of the run
                self.failure = str(error)
            shutil.rmtree(folder, ignore_errors=True)

    def _send(self, folder: Path) -> None:
        commit = self.url / f"{folder.name}.json"
        if read_bytes(commit) is not None:
            return
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        names = [path.relative_to(folder).as_posix() for path in files]
        hashes = {name: sha256_file(path) for name, path in zip(names, files, strict=True)}
        for name in names:
            send(folder / name, self.url / folder.name / name)
        content = json.dumps({"began": self.began, "sha256": hashes}, indent=2).encode()
        told = f"{commit} was written by another process meanwhile: is the run continued twice?"
        require(send_new(content, commit), told)

    def tell(self) -> None:
        """Warn if a checkpoint could not be sent."""
        if self.failure:
            told = f"a checkpoint was not copied: {self.failure}; the run continues"
            self.failure = ""
            warnings.warn(told, stacklevel=2)

    def finish(self) -> None:
        """Wait until the newest checkpoint is sent."""
        while thread := self.thread:
            thread.join()
        with suppress(OSError):
            (self.run / STAGING).rmdir()
        self.tell()


def _stage(run: Path, checkpoint: Path) -> Path:
    """Return a folder of the files to send; the checkpoint's files are hard links if possible."""
    staged = run / STAGING / checkpoint.name
    shutil.rmtree(staged, ignore_errors=True)
    inside = staged / checkpoint.relative_to(run)
    make_folder(inside)
    for path in checkpoint.iterdir():
        try:
            os.link(path, inside / path.name)
        except OSError:  # of a file system without links
            shutil.copyfile(path, inside / path.name)
    for name in OF_RUN:
        if (run / name).is_dir():
            shutil.copytree(run / name, staged / name)
        elif (run / name).exists():
            shutil.copyfile(run / name, staged / name)
    return staged


def _find_newest(url: Path) -> str:
    """Return the name of the newest whole copy; "": there is none."""
    names = (re.fullmatch(r"(step-\d{8})\.json", name) for name in list_sizes(url))
    return max((name[1] for name in names if name), default="")


def _read_commit(path: Path) -> Commit:
    commit = parse_object(read_bytes(path) or b"", path)
    check_shape(commit, Commit, path)
    return Commit(began=commit["began"], sha256=commit["sha256"])


@contextmanager
def copying(run: Path, url: str) -> Iterator[Copier]:
    """Yield what sends a run's checkpoints; wait for the last, unless Ctrl-C is repeated."""
    copier = Copier(run, place_of_copies(url))
    try:
        yield copier
    except KeyboardInterrupt:
        raise
    except BaseException:
        copier.finish()
        raise
    copier.finish()
