"""What a power failure leaves of the files that a command writes, in models of file systems.

`recording` notes, in the process of a command, the content of a folder at each of its calls that
names, removes or syncs something, and which file or folder was synced. `rebuild` then writes the
folder as a failure after one of these calls may leave it. Synced content is kept; a model decides
what is left of other content and of names:

    empty, zeros, torn, holes   all names in their order, as ext4 and XFS have it; content that was
                                not synced is missing, zeros, cut, or has blocks of zeros
    names                       files are made and renamed only where their folder was synced, and
                                removed at once
    shuffled                    of what was not synced, each name is there or not; content is cut
"""

import itertools
import os
import pickle
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

MODELS = ("empty", "zeros", "torn", "holes", "names", "shuffled")
BLOCK = 512
"""Bytes that a file system writes together."""
CALLS = ("fsync", "rename", "replace", "unlink", "remove", "mkdir", "rmdir")
ROOT = 0
"""In the place of the inode of the folder itself."""
State = dict[str, bytes | None]
"""Content of each file by its path, None for a folder."""
Names = dict[tuple[int, str], int]
"""Inode of each file and folder, by the inode of its folder and its name."""


class Moment(NamedTuple):
    """What lay in a folder after a call."""

    call: str
    synced: int | None
    """The inode that was synced, if one was."""
    names: Names
    content: dict[int, bytes]
    """Of each file, by inode. Folders are not among them."""


class Change(NamedTuple):
    """A name that a file or folder got, lost or changed."""

    inode: int
    before: tuple[int, str] | None
    after: tuple[int, str] | None


class Recorder:
    """Notes the content of a folder; an inode that is used again gets another number."""

    def __init__(self, root: Path):
        self.root = root
        self.numbers: dict[int, int] = {}
        self.count = 0
        self.known: dict[bytes, bytes] = {}
        """Content by itself, so that moments share what has not changed."""
        self.moments: list[Moment] = []
        self.note("begin")

    def look(self) -> tuple[Names, dict[int, bytes]]:
        """Return the names and the content of all files and folders in it."""
        names: Names = {}
        content: dict[int, bytes] = {}
        numbers, folders = {self.root.stat().st_ino: ROOT}, {str(self.root): ROOT}
        for place, inside, files in os.walk(self.root):
            for name in inside + files:
                path = Path(place, name)
                inode = path.lstat().st_ino
                if inode not in self.numbers:
                    self.count += 1
                number = numbers[inode] = self.numbers.get(inode, self.count)
                names[folders[place], name] = number
                if name in inside:
                    folders[str(path)] = number
                else:
                    read = path.read_bytes()
                    content[number] = self.known.setdefault(read, read)
        self.numbers = numbers
        return names, content

    def note(self, call: str, synced: int | None = None) -> None:
        """Note the content of the folder if something has changed, or an inode was synced."""
        names, content = self.look()
        number = None if synced is None else self.numbers.get(synced)
        if not self.moments or number is not None or (names, content) != self.moments[-1][2:]:
            self.moments.append(Moment(call, number, names, content))


@contextmanager
def recording(root: Path, target: Path) -> Iterator[None]:
    """Note the moments of all calls inside that concern a folder; they are pickled at the end."""
    recorder, lock = Recorder(root), threading.RLock()
    originals: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in CALLS}

    def wrap(name: str) -> Callable[..., Any]:
        def call(*given: Any, **options: Any) -> Any:
            with lock:
                recorder.note(f"before {name}")
                result = originals[name](*given, **options)
                is_sync = name == "fsync"
                recorder.note(f"{name} {given[0]}", os.fstat(given[0]).st_ino if is_sync else None)
                return result

        return call

    for name in CALLS:
        setattr(os, name, wrap(name))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(os, name, original)
        recorder.note("end")
        target.write_bytes(pickle.dumps(recorder.moments))


def list_changes(before: Names, after: Names) -> list[Change]:
    """Return the changes of names between two moments; what is made comes before what it holds."""
    lost = {names: inode for names, inode in before.items() if after.get(names) != inode}
    made = {names: inode for names, inode in after.items() if before.get(names) != inode}
    origin = {inode: names for names, inode in lost.items()}
    changes = [Change(inode, origin.get(inode), names) for names, inode in made.items()]
    moved = {inode for inode, *_ in changes}
    replaced = made.keys()
    return changes + [
        Change(inode, names, None)
        for names, inode in lost.items()
        if inode not in moved and names not in replaced
    ]


def rebuild(moments: list[Moment], stop: int, model: str, rng: random.Random) -> State:
    """Return what a failure after moment `stop` leaves."""
    history = moments[: stop + 1]
    first = history[0]
    durable = dict(first.content)
    pending: list[tuple[Change, bool]] = []  # and whether it is on the disk
    for before, now in itertools.pairwise(history):
        pending += [(change, False) for change in list_changes(before.names, now.names)]
        if now.synced is None:
            continue
        if now.synced in now.content:
            durable[now.synced] = now.content[now.synced]
        pending = [
            (each, done or now.synced in [place[0] for place in each[1:] if place])
            for each, done in pending
        ]
    names = dict(first.names)
    for change, is_done in pending:
        if not is_done and model == "names" and change.after:
            continue
        if not is_done and model == "shuffled" and rng.random() < 0.5:
            continue
        if change.before and names.get(change.before) == change.inode:
            del names[change.before]
        if change.after:
            names[change.after] = change.inode
    latest = {inode: each for moment in history for inode, each in moment.content.items()}
    found: State = {}

    def walk(folder: int, prefix: str) -> None:
        for (place, name), inode in sorted(names.items()):
            if place != folder:
                continue
            if inode in latest:
                synced = durable.get(inode, b"")
                found[prefix + name] = spoil(latest[inode], synced, model, rng)
            else:
                found[prefix + name] = None
                walk(inode, f"{prefix}{name}/")

    walk(ROOT, "")
    return found


def spoil(content: bytes, synced: bytes, model: str, rng: random.Random) -> bytes:
    """Return what is left of content of which a part was synced."""
    kept = synced if content.startswith(synced) else b""
    if content == synced or model in ("empty", "names"):
        return synced
    if model == "zeros":
        return kept + bytes(len(content) - len(kept))
    if model == "holes":
        blocks = (content[at : at + BLOCK] for at in range(0, len(content), BLOCK))
        with_holes = b"".join(rng.choice((each, bytes(len(each)))) for each in blocks)
        return kept + with_holes[len(kept) :]
    return content[: rng.randint(len(kept), len(content))]


def write_state(folder: Path, state: State) -> None:
    """Write what `rebuild` returned in the place of all that a folder holds."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in state.items():
        path = folder / name
        path.mkdir() if content is None else path.write_bytes(content)
