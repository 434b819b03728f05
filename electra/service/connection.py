"""A connection: what is refused before there is a request, and how long a connection may stay."""

import asyncio
import json
import sys
from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 1 << 16
"""Request line and headers; also what may arrive between two parts of a body, such as trailers."""
MAX_IDLE = 256
"""Connections without a request; one more ends the one that has waited longest."""
ROOM_SECONDS = 5.0
"""Time that a new connection has for its request, unless there are twice as many."""
STAGES = 3
"""A request is received, computed and answered, each in `max_seconds` at most."""


class Connection(HttpToolsProtocol):
    """uvicorn's connection with limits; uvicorn and llhttp have none of a head's size and time.

    A request's head may take `max_seconds`, and so may a connection without a request.
    """

    def __init__(self, *args: Any, max_seconds: float, **others: Any):
        super().__init__(*args, **others)
        self.max_seconds = max_seconds
        self.num_read = 0  # bytes since the last head or part of a body
        self.timer: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no request is received or answered."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._await_request()
        if len(self.connections) > MAX_IDLE:  # the requests of many at once may be on their way
            self._make_room()
            self.loop.call_later(ROOM_SECONDS, self._make_room)

    def _make_room(self) -> None:
        idle: Any = [c for c in self.connections if c.is_idle and not c.transport.is_closing()]  # type: ignore
        first: Any = min(idle, key=lambda each: each.timer.when(), default=self)
        waited = self.max_seconds - (first.timer.when() - self.loop.time())
        if len(idle) > (MAX_IDLE if waited >= ROOM_SECONDS else 2 * MAX_IDLE):
            first.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        super().connection_lost(exc)
        if self.timer:
            self.timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Read a part of a request, unless its head or its trailers are too long."""
        self.num_read += len(data)
        super().data_received(data)
        if self.num_read > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(431, f"headers of more than {MAX_HEAD_BYTES} bytes")

    def on_headers_complete(self) -> None:
        """Begin a request that names one host, in one way."""
        self.num_read = 0
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > MAX_HEAD_BYTES:
            raise HTTPException(431, f"headers of more than {MAX_HEAD_BYTES} bytes")
        hosts = [value for name, value in self.headers if name == b"host"]
        authority = self.url.partition(b"://")[2].partition(b"/")[0]  # of http://host/path
        if len(hosts) > 1 or not (self.url.startswith(b"/") or hosts == [authority]):
            raise HTTPException(400, "a request must name one host, and its target nothing else")
        super().on_headers_complete()
        self._limit(STAGES * self.max_seconds)

    def on_body(self, body: bytes) -> None:
        """Take a part of a body, whose size the gate limits."""
        self.num_read = 0
        super().on_body(body)

    def on_response_complete(self) -> None:
        """Wait for the next request, or answer the one that has come already."""
        super().on_response_complete()
        if self.is_idle:
            self._await_request()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request; uvicorn calls this while it handles the parser's error."""
        error = sys.exception()
        reason = error.__context__ if error else None
        if isinstance(reason, HTTPException):
            self._refuse(reason.status_code, reason.detail)
        else:
            self._refuse(400, f"not a request of HTTP: {error}")

    def _await_request(self) -> None:
        self.num_read = 0
        self._limit(self.max_seconds)

    def _limit(self, seconds: float) -> None:
        if self.timer:
            self.timer.cancel()
        self.timer = self.loop.call_later(seconds, self._end)

    def _end(self) -> None:
        """End a connection whose time is up; its client may not read the answer."""
        if self.is_idle and self.num_read and not self.transport.get_write_buffer_size():
            self._refuse(408, f"no whole request within {self.max_seconds:g} s")
        else:
            self.transport.abort()

    def _refuse(self, status: int, line: str) -> None:
        body = json.dumps({"error": line})
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self.transport.write((head + body).encode())
        self.transport.close()
