"""The process of the service: socket, signals, uvicorn."""

import os
import signal
import socket
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn

from electra.errors import UserError
from electra.inference.models import load_models, read_model
from electra.processes import stop_signals
from electra.service.config import ServeConfig
from electra.service.connection import MAX_HEAD_BYTES, Connection
from electra.service.service import Service
from electra.training.machine import prepare_machine

STDIN = 0
BACKLOG = 512
"""Connections that wait to be accepted."""


class Server:
    """A service on a socket, which is bound before the models are read.

    With `follow`, new checkpoints of runs are loaded, and a run may have none yet; without it,
    SIGHUP makes the service read all models again, and the index of a retrieval model. Port 0
    picks a free port; `address` is the service's address on this machine.

    Raises:
        UserError: The address is in use or not of this machine, or a folder is not a model.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        config: ServeConfig,
        host: str,
        port: int,
        *,
        index: Path | None = None,
        token: str | None = None,
        follow: bool = False,
    ):
        self.config, self.follow = config, follow
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self.socket.bind((host, port))
        except (OSError, UnicodeError) as error:
            self.socket.close()
            reason = getattr(error, "strerror", None) or error
            raise UserError(f"cannot listen on {host} port {port}: {reason}") from None
        try:
            machine = prepare_machine("auto", config.precision, config.threads)
            shows_dev = config.dev_examples
            self.models = load_models(folders, machine, index, may_wait=follow, shows_dev=shows_dev)
            self.socket.listen(BACKLOG)  # who connects from now on waits until `run` answers
        except BaseException:
            self.socket.close()
            raise
        name = f"[{host}]" if ":" in host else host
        self.address = f"http://{name}:{self.socket.getsockname()[1]}"
        # With a token any name is safe; without one, only names of this machine are accepted.
        hosts = None if token else [name, "localhost", "127.0.0.1", "[::1]"]
        read = partial(read_model, machine=machine, index=index, shows_dev=shows_dev)
        self.service = Service(self.models, config, read, token=token, hosts=hosts, follow=follow)

    @property
    def is_computing(self) -> bool:
        """Whether an abandoned batch is still computed: its thread ends with the process."""
        return self.service.queue.is_alive

    def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Serve until a signal to stop; then answer the requests in progress and return.

        `ready` is called when signals are handled.
        """
        settings = uvicorn.Config(
            self.service.app,
            http=partial(Connection, max_seconds=self.config.max_seconds),  # type: ignore[arg-type]
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            ws="none",
            proxy_headers=False,
            backlog=BACKLOG,
            log_level="error",
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=15,
            timeout_graceful_shutdown=self.config.stop_seconds,  # type: ignore[arg-type]
        )
        server = uvicorn.Server(settings)
        # uvicorn itself knows no SIGHUP. It raises a signal again when it has stopped; by then
        # there is nothing left to do.
        handlers: dict[signal.Signals, Any] = dict.fromkeys(stop_signals(), server.handle_exit)
        if not self.follow and hasattr(signal, "SIGHUP"):
            handlers[signal.SIGHUP] = self._make_hang_up(server.handle_exit)
        before = {each: signal.signal(each, handler) for each, handler in handlers.items()}
        try:
            ready()
            server.run(sockets=[self.socket])
        finally:
            self.socket.close()
            for each, handler in before.items():
                signal.signal(each, handler)

    def _make_hang_up(self, stop: Any) -> Any:
        """Return the handler of SIGHUP: read models again, or stop if the terminal has closed."""
        had_terminal = os.isatty(STDIN)

        def hang_up(*details: Any) -> None:
            if had_terminal and not os.isatty(STDIN):
                stop(*details)
            else:
                self.service.read_again()

        return hang_up
