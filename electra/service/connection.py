"""A connection: how long it may stay, and how much of it is read ahead."""

import asyncio
import json
import sys
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_HEAD_BYTES = 1 << 16
"""Request line and headers; also what may arrive between two parts of a body, such as trailers."""
LONG_HEAD = f"headers of more than {MAX_HEAD_BYTES} bytes"
ADMITTED = "is_admitted"
"""The gate's note in a request's `state`: whether the request counts as one in progress."""
MAX_IDLE = 256
"""Connections without an admitted request; one more ends the one that has waited longest."""
ROOM_SECONDS = 5.0
"""Time that a new connection has for its request, unless there are twice as many."""
STAGES = 3
"""A request is received, computed and answered, in `STAGES` * `max_seconds` together at most."""


class Reading(FlowControl):
    """uvicorn's flow control, which stays paused while part of the next request is buffered.

    uvicorn resumes reading with each answer, so a fast client could fill the memory.
    """

    def __init__(self, transport: asyncio.Transport, conn: h11.Connection):
        super().__init__(transport)
        self.conn = conn

    def resume_reading(self) -> None:
        """Resume reading, unless the buffer holds more than this request."""
        if self.conn.their_state is not h11.DONE or not self.conn.trailing_data[0]:
            super().resume_reading()


class Connection(H11Protocol):
    """uvicorn's connection, with limits on the time of a head and on waiting connections.

    A request's head may take `max_seconds`, and so may the wait for a request.
    """

    def __init__(self, *args: Any, max_seconds: float, **others: Any):
        super().__init__(*args, **others)
        self.max_seconds = max_seconds
        self.timer: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no request is received or answered."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a request."""
        super().connection_made(transport)
        self.flow = Reading(transport, self.conn)
        self._limit(self.max_seconds)
        if len(self.connections) > MAX_IDLE:  # the requests of many at once may be on their way
            self._make_room()
            self.loop.call_later(ROOM_SECONDS, self._make_room)

    def _make_room(self) -> None:
        alive: list[Any] = [each for each in self.connections if not each.transport.is_closing()]
        idle = [c for c in alive if c.is_idle or not c.cycle.scope["state"].get(ADMITTED)]
        first: Any = min(idle, key=lambda each: each.timer.when(), default=self)
        waited = self.max_seconds - (first.timer.when() - self.loop.time())
        if len(idle) > (MAX_IDLE if waited >= ROOM_SECONDS else 2 * MAX_IDLE):
            first.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        super().connection_lost(exc)
        if self.timer:
            self.timer.cancel()

    def handle_events(self) -> None:
        """Begin the next request, if its head is there."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._limit(STAGES * self.max_seconds)

    def on_response_complete(self) -> None:
        """Begin the next request, or wait for it."""
        super().on_response_complete()
        self.flow.resume_reading()
        if self.is_idle:
            self._limit(self.max_seconds)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request; uvicorn calls this while it handles h11's error."""
        error = sys.exception()
        if getattr(error, "error_status_hint", 400) == 431:
            return self._refuse(431, LONG_HEAD)
        reason = str(error).partition(": bytearray")[0]  # without the bytes that follow
        self._refuse(400, f"not a request of HTTP: {reason}")

    def _limit(self, seconds: float) -> None:
        if self.timer:
            self.timer.cancel()
        self.timer = self.loop.call_later(seconds, self._end)

    def _end(self) -> None:
        """End a connection whose time is up; its client may not read the answer."""
        is_begun = self.is_idle and self.conn.trailing_data[0]
        if is_begun and not self.transport.get_write_buffer_size():
            return self._refuse(408, f"no whole request within {self.max_seconds:g} s")
        self.abort()

    def abort(self) -> None:
        """End the connection at once; an answer that is on its way is dropped."""
        if self.cycle:
            self.cycle.disconnected = True
        self.transport.abort()

    def _refuse(self, status: int, line: str) -> None:
        if not self.is_idle:
            if self.cycle.response_started:
                return self.abort()
            self.cycle.disconnected = True  # no answer follows this one
        body = json.dumps({"error": line})
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self.transport.write((head + body).encode())
        self.transport.close()
