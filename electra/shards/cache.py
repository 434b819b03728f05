"""A cache of shards, for a corpus that is larger than the disk. It knows all future reads.

With order=window the seed determines which shards each step reads. So files are copied from their
URL in the order of their first use. If there is no room for a file, the file whose next use is
farthest is removed, which is the best choice (Belady 1966). `Keeper` makes these choices without
any file; `electra plan` also uses it. `cached` runs it: one thread of one process copies for all
processes of a machine, which wait until files have their names. A reader keeps its files open, so
that their removal does not affect it.

Nothing here is saved: after a restart the same steps need the same files, and complete files have
their final names. The folder belongs to the cache, which removes only files that a run has copied
there and that are named by their sha256.
"""

import math
import re
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import chain, repeat
from pathlib import Path

import numpy as np

from electra.errors import require
from electra.files import LOCK, cache_folder, format_size, hold, make_folder, write_text
from electra.objects import TRUSTED_SECONDS, fetch, is_url
from electra.processes import Place
from electra.shards.examples import Examples
from electra.shards.order import GlobalOrder, groups_of
from electra.shards.store import FAILED, MAX_FETCHES, Shard
from electra.shards.windows import Use, WindowOrder

NAME = re.compile("[0-9a-f]{64}")
HALVES = 3
"""Half windows of a stream that a block may have rows of: at most two second permutations."""


def size_files(shards: Sequence[Shard], *, everywhere: bool = False) -> list[dict[str, int]]:
    """Return the bytes of the files of each shard that is at a URL, or everywhere, by sha256."""
    return [
        {shard.sha256[column]: size for column, size in shard.num_bytes.items()}
        if everywhere or is_url(shard.path)
        else {}
        for shard in shards
    ]


class Keeper:
    """Chooses which file is copied next, and which ones are removed for it.

    Args:
        files: By shard: the sizes of its files by name.
        limit: Bytes of all files that are kept.
        uses: Returns the shards that a step and all later ones need, in the order of first use.
        horizon: Uses that it looks ahead: two epochs or more.
        steps: Steps of the run.
    """

    def __init__(
        self,
        files: Sequence[dict[str, int]],
        limit: float,
        uses: Callable[[int], Iterator[Use]],
        horizon: int,
        steps: int,
    ):
        self.files, self.limit, self.uses, self.horizon = files, limit, uses, horizon
        self.steps = steps
        self.sizes = {name: size for each in files for name, size in each.items()}
        self.kept: dict[str, int] = {}
        """Sizes of all files that there are, or that are under way, by name."""
        self.right: set[str] = set()
        """Those that are compared with their sha256, or under way."""
        self.loading: set[str] = set()
        self.needed: dict[str, None] = {}
        """Files that are read now."""
        self.used = 0
        self.coming: list[Use] = []
        self.following: Iterator[Use] = iter(())
        self.next_use: dict[str, int] = {}
        """Place in `coming` of the next use of each file."""
        self.missing: deque[str] = deque()
        """Files to copy, in this order."""
        self.farthest: list[str] = []
        """Files that are kept, in the order of the next use."""

    def keep(self, name: str, size: int, *, is_right: bool) -> None:
        """Note a file that was copied before."""
        self.kept[name] = size
        self.used += size
        if is_right:
            self.right.add(name)

    def move(self, step: int, shards: Sequence[int]) -> None:
        """Note that a step reads these shards; -1: shards that are read before any step."""
        needed = dict.fromkeys(chain.from_iterable(self.files[each] for each in shards))
        left = [use for use in self.coming if use.last >= step >= 0]
        if left and len(left) == len(self.coming) and needed.keys() == self.needed.keys():
            return
        self.needed, self.coming = needed, left
        if step >= 0:
            self._look_ahead(step)
        self.next_use = {}
        for number, use in enumerate(self.coming):
            for name in chain.from_iterable(self.files[shard] for shard in use.shards):
                self.next_use.setdefault(name, number)
        missing = (name for name in self.needed | self.next_use if name not in self.right)
        self.missing = deque(missing)
        never = len(self.coming)
        rank = {name: self.next_use.get(name, never) for name in self.kept}
        self.farthest = sorted(rank, key=lambda name: (rank[name], name))

    def _look_ahead(self, step: int) -> None:
        """List the uses of the coming steps, up to the horizon or the end of the run."""
        if not self.coming:
            self.following = self.uses(step)
        while len(self.coming) < self.horizon:
            use = next(self.following)
            if use.first >= self.steps:
                self.following = repeat(use)
                return
            self.coming.append(use)

    def choose(self) -> tuple[str, list[str]] | None:
        """Return the name of the file to be copied, and of those to be removed before; or None."""
        while self.missing and self.missing[0] in self.right:
            self.missing.popleft()
        if not self.missing:
            return None
        wanted = self.missing[0]
        last = -1 if wanted in self.needed else self.next_use[wanted]
        gone = self.free(0 if wanted in self.kept else self.sizes[wanted], last)
        if gone is None:
            return None
        self.used += 0 if wanted in self.kept else self.sizes[wanted]
        self.kept[wanted] = self.sizes[wanted]
        self.right.add(wanted)
        self.loading.add(wanted)
        return wanted, gone

    def free(self, size: int = 0, last: int = -1) -> list[str] | None:
        """Give up files next used after `last`, to free `size` bytes; None: there are too few."""
        gone, used = list[str](), self.used + size
        candidates = filter(self._may_go, reversed(self.farthest))
        while used > self.limit:
            name = next(candidates, None)
            if name is None or self.next_use.get(name, math.inf) <= last:
                return None
            gone.append(name)
            used -= self.kept[name]
        for name in gone:
            self.used -= self.kept.pop(name)
            self.right.discard(name)
        return gone

    def _may_go(self, name: str) -> bool:
        return name in self.kept and name not in self.needed and name not in self.loading


def find_need(
    order: WindowOrder, files: Sequence[dict[str, int]], share: int, groups: Sequence[int]
) -> tuple[int, int]:
    """Return the bytes that a cache must hold at least, and the shards whose files they are.

    `order` is one by expected rows, and `share` the rows of a step that a group has.
    """
    sizes = np.array([sum(each.values()) for each in files], dtype=np.int64)
    need = number = 0
    for corpus, streams in enumerate(order.streams):
        first, last = order.mixing.span(corpus, 0, 1)
        share = 2 * int(order.mixing.quotas[corpus]) if last > first else share  # mixed among these
        for stream in (streams[group] for group in groups):
            rows = min(sum(map(stream.count, half)) for half in stream.epoch(0).halves)
            largest = np.sort(sizes[stream.numbers])[-(HALVES + share // rows) * stream.half :]
            need, number = need + int(largest.sum()), number + len(largest)
    return need, number


def require_room(corpus: int, size: int | None) -> None:
    """Refuse a cache that is smaller than what order=global reads, which is the whole corpus."""
    require(
        size is None or corpus <= size,
        f"the shards have {format_size(corpus)}, more than --cache {format_size(size or 0)}, and "
        "examples.order=global reads all of them in every block: set examples.order=window",
    )


def make_keeper(
    examples: Examples,
    files: Sequence[dict[str, int]],
    limit: float,
    steps: int,
    batch_size: int,
    groups: Sequence[int],
) -> Keeper:
    """Return the keeper of a machine that reads these groups; refuse a limit below one window."""
    order = examples.forecast()
    need, number = find_need(order, files, batch_size // order.groups, groups)
    require(
        limit >= need,
        f"--cache {format_size(limit)} is less than the {number:,} shards that "
        f"examples.window={examples.config.window} may read at once: give --cache "
        f"{math.ceil(need / 1e6)}MB or more, or set a smaller examples.window",
    )
    streams = [streams[group] for streams in order.streams for group in groups]
    horizon = 2 * sum(len(stream.epoch(0).halves) for stream in streams)
    return Keeper(files, limit, lambda step: order.uses(step, batch_size, groups), horizon, steps)


@contextmanager
def cached(
    examples: Examples, size: int, steps: int, batch_size: int, place: Place
) -> Iterator[None]:
    """Keep the shards at URLs that the steps read in a cache of this size, bytes.

    Without shards at URLs a note says that there is nothing to keep. With order=global a corpus
    that does not fit is refused.
    """
    files = size_files(examples.shards)
    total = sum({name: each for of_shard in files for name, each in of_shard.items()}.values())
    if not total:
        if place.rank == 0:
            told = "--cache has no effect: it is for shards at a URL, and these are on this machine"
            warnings.warn(told, stacklevel=2)
        yield
        return
    if isinstance(examples.order, GlobalOrder):
        require_room(total, size)
        yield
        return
    first = place.rank - place.local_rank
    groups = groups_of(examples.order.groups, first, first + place.num_local, place.num_ranks)
    keeper = make_keeper(examples, files, size, steps, batch_size, groups)
    folder = cache_folder("window")
    for shard in examples.shards:
        shard.cache = folder if is_url(shard.path) else None
    if place.local_rank > 0:
        yield
        return
    make_folder(folder)
    with hold(folder / LOCK):
        downloads = Downloads(folder, keeper, examples.shards)
        examples.on_read, examples.watched = downloads.read, groups
        try:
            yield
        finally:
            downloads.end()


class Downloads:
    """Copies files in the background as the keeper says; `read` waits for those of a step."""

    def __init__(self, folder: Path, keeper: Keeper, shards: Sequence[Shard]):
        self.folder, self.keeper = folder, keeper
        self.places = {
            shard.sha256[column]: shard.path.with_name(f"{shard.path.name}.{column}")
            for shard in shards
            for column in shard.sha256
        }
        self.changed = threading.Condition()
        self.failure: Exception | None = None
        self.ended = False
        self.copied = self.requests = 0
        """Bytes and files that were copied."""
        (folder / FAILED).unlink(missing_ok=True)
        for path in folder.iterdir():
            status = path.stat()
            if NAME.fullmatch(path.name):
                is_fresh = 0 <= time.time() - status.st_mtime < TRUSTED_SECONDS
                keeper.keep(path.name, status.st_size, is_right=is_fresh)
            elif NAME.fullmatch(path.name.removesuffix(".incomplete")):  # of a process that is gone
                path.unlink()
        self.pool = ThreadPoolExecutor(MAX_FETCHES)

    def read(self, step: int, shards: Sequence[int]) -> None:
        """Wait until the files of these shards are there, which a step reads now."""
        with self.changed:
            self.keeper.move(step, shards)
            self._remove(self.keeper.free() or ())  # of a larger cache before
            self._begin()
            keeper = self.keeper
            need = sum(keeper.sizes[name] for name in keeper.needed)
            require(
                need <= keeper.limit,
                f"step {step:,} reads shards of {format_size(need)} at once, more than --cache "
                f"{format_size(keeper.limit)} holds: give it {math.ceil(need / 1e6)}MB",
            )
            while any(name not in keeper.right or name in keeper.loading for name in keeper.needed):
                if self.failure:
                    raise self.failure
                self.changed.wait()

    def end(self) -> None:
        """Begin no other copy, and wait for those under way."""
        with self.changed:
            self.ended = True
        self.pool.shutdown(cancel_futures=True)
        (self.folder / FAILED).unlink(missing_ok=True)

    def _begin(self) -> None:
        """Begin as many copies as can be under way."""
        while not self.ended and not self.failure and len(self.keeper.loading) < MAX_FETCHES:
            if (choice := self.keeper.choose()) is None:
                return
            name, gone = choice
            self._remove(gone)
            self.pool.submit(self._copy, name)

    def _remove(self, names: Sequence[str]) -> None:
        for name in names:
            (self.folder / name).unlink(missing_ok=True)

    def _copy(self, name: str) -> None:
        """Copy a file, and begin the next one."""
        failure = None
        is_there = (self.folder / name).exists()
        try:
            fetch(self.places[name], name, self.folder)
        except Exception as error:  # the readers would wait for ever
            failure = error
            with suppress(OSError):
                write_text(self.folder / FAILED, str(error))
        with self.changed:
            self.keeper.loading.discard(name)
            if failure:
                self.keeper.right.discard(name)
                self.failure = self.failure or failure
            elif not is_there:
                self.copied += self.keeper.sizes[name]
                self.requests += 1
            self._begin()
            self.changed.notify_all()
