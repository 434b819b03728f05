"""The queue of a service: items of many requests, computed together by one thread.

Requests wait in order. The thread takes the oldest item, and with it others that have the same
question and the nearest lengths, up to a limit. This keeps padding small, a long text does not
delay short ones, and items whose caller has left are dropped between two batches. The answer to an
item must not depend on the others; the library's functions ensure this up to rounding.
"""

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any

BATCH_SIZE = 32_000
"""Largest sum of the sizes in a batch; only a single item may exceed it."""
Question = Callable[[list[Any]], Sequence[Any]]
"""Answers a list of items, in order. Equal questions are computed together."""


class Full(Exception):
    """The queue is full; it should be empty after `retry_after` seconds."""

    def __init__(self, retry_after: int):
        super().__init__(f"the service is busy; try again in {retry_after} s")
        self.retry_after = retry_after


class Failed(Exception):
    """An item caused a failure that is no Exception, such as a panic of Rust."""


@dataclass(eq=False)
class _Item:
    question: Question
    value: Any
    size: int
    future: Future = field(default_factory=Future)


class BatchQueue:
    """Items that wait, up to a sum of their sizes, and the thread that computes them.

    The thread calls `observe` with the number of items and the seconds of each batch.
    """

    def __init__(
        self,
        batch_items: int,
        max_waiting: int,
        observe: Callable[[int, float], None] = lambda items, seconds: None,
    ):
        self.batch_items, self.max_waiting, self.observe = batch_items, max_waiting, observe
        self._waiting: list[_Item] = []
        self._size = 0
        self._speed = 0.0  # size per second, a moving average
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name="compute", daemon=True)
        self._thread.start()

    @property
    def num_waiting(self) -> int:
        """Items that wait now."""
        return len(self._waiting)

    @property
    def is_alive(self) -> bool:
        """Whether items are still computed."""
        return self._thread.is_alive()

    def submit(
        self, question: Question, values: Sequence[Any], sizes: Sequence[int]
    ) -> list[Future]:
        """Return the futures of the answers to values of these sizes; takes all or none.

        A queue without room raises Full. An empty queue takes everything.
        """
        items = list(map(_Item, [question] * len(values), values, sizes))
        with self._changed:
            if self._waiting and self._size + sum(sizes) > self.max_waiting:
                seconds = self._size / self._speed if self._speed else 1.0
                raise Full(min(60, max(1, round(seconds))))
            self._waiting += items
            self._size += sum(sizes)
            self._changed.notify()
        return [item.future for item in items]

    def close(self, seconds: float | None = None) -> None:
        """Compute waiting items and end the thread; after some seconds, stop waiting for it."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(seconds)

    def _work(self) -> None:
        while batch := self._take():
            began = time.perf_counter()
            _compute(batch)
            seconds = time.perf_counter() - began
            speed = sum(item.size for item in batch) / max(seconds, 1e-6)
            self._speed = 0.9 * self._speed + 0.1 * speed if self._speed else speed
            self.observe(len(batch), seconds)

    def _take(self) -> list[_Item]:
        """Wait for items and return those of the next batch; none when the queue is closed."""
        with self._changed:
            while True:
                # The caller of a cancelled future has gone: its time was up.
                self._waiting = [each for each in self._waiting if not each.future.cancelled()]
                if self._waiting or self._is_closed:
                    break
                self._changed.wait()
            if not self._waiting:
                return []
            oldest = self._waiting[0]
            same = [each for each in self._waiting if each.question == oldest.question]
            same.sort(key=lambda each: (each is not oldest, abs(each.size - oldest.size)))
            sums = itertools.accumulate(each.size for each in same[: self.batch_items])
            batch = same[: max(1, sum(size <= BATCH_SIZE for size in sums))]
            taken = set(map(id, batch))
            self._waiting = [each for each in self._waiting if id(each) not in taken]
            self._size = sum(each.size for each in self._waiting)
            return batch


def _compute(batch: list[_Item]) -> None:
    """Answer the items together; if that fails, in halves, so that only the failing one fails."""
    try:
        answers = batch[0].question([item.value for item in batch])
        answered = list(zip(batch, answers, strict=True))
    except BaseException as error:  # a panic of a tokenizer is no Exception
        if len(batch) > 1:
            half = len(batch) // 2
            _compute(batch[:half])
            return _compute(batch[half:])
        if not isinstance(error, Exception):
            error = Failed(f"not to be computed: {type(error).__name__}: {error}")
        with contextlib.suppress(InvalidStateError):  # the caller has left
            batch[0].future.set_exception(error)
        return
    for item, answer in answered:
        with contextlib.suppress(InvalidStateError):
            item.future.set_result(answer)
