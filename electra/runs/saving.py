"""Checkpoints written in the background, while the next steps run."""

import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

Write = Callable[[], object]


class Saver:
    """Writes one checkpoint at a time in a thread: a context manager.

    A step waits for the copy of the state to host memory, and for the writing of the checkpoint
    before. A checkpoint that the disk refuses is told in a warning, and the run goes on; only the
    last one of a session has to succeed (`finish`).

    Args:
        run: The run folder, for messages.
    """

    def __init__(self, run: Path):
        self.run = run
        self.thread: threading.Thread | None = None
        self.failure: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        """Wait for the thread, except at a second Ctrl-C, which ends the process at once."""
        if kind is None or not issubclass(kind, KeyboardInterrupt):
            self._join()

    def save(self, write: Write) -> None:
        """Start writing a checkpoint, after the one before it is written.

        Args:
            write: Writes the checkpoint from copied tensors; may raise OSError.
        """
        self.wait()

        def run() -> None:
            try:
                write()
            except BaseException as error:  # raised again in the thread of the run
                self.failure = error

        # A daemon does not keep a process alive that is to end at once.
        self.thread = threading.Thread(target=run, name="checkpoint", daemon=True)
        self.thread.start()

    def wait(self) -> None:
        """Wait until no checkpoint is being written; warn if the disk has refused it."""
        try:
            self.finish()
        except OSError as error:
            what = f"{error.filename or self.run}: {error.strerror or error}"
            warnings.warn(
                f"a checkpoint could not be written: {what}; the ones before it are whole, and "
                "the run goes on",
                stacklevel=2,
            )

    def finish(self) -> None:
        """Wait until no checkpoint is being written.

        Raises:
            OSError: The checkpoint could not be written.
        """
        self._join()
        failure, self.failure = self.failure, None
        if failure:
            raise failure

    def _join(self) -> None:
        if self.thread:
            self.thread.join()
            self.thread = None
