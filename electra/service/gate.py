"""What stands before the service's routes: who may ask, how much, and what is counted."""

import asyncio
import hmac
import json
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

from electra.config import ServeConfig

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

OPEN = ("/", "/health", "/ready")
"""Paths that need no token: the page, which has none of its own, and what a supervisor asks."""
VERB = re.compile(r"/models/[^/]+/(detect|fill|predict|picture|embed|curves)")


class Meters:
    """Counts and durations of one service, for Prometheus.

    Args:
        count_waiting: Returns the number of items that wait.
    """

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, count_waiting: Callable[[], int]):
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "electra_requests",
            "Requests, by verb and status.",
            ["verb", "status"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "electra_request_seconds", "Time to answer a request.", ["verb"], registry=self.registry
        )
        self.batches = Histogram(
            "electra_batch_items",
            "Texts or records that were computed together.",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128),
            registry=self.registry,
        )
        self.computing = Counter(
            "electra_compute_seconds", "Time spent computing.", registry=self.registry
        )
        waiting = Gauge(
            "electra_waiting_items", "Texts or records that wait.", registry=self.registry
        )
        waiting.set_function(count_waiting)
        self.in_progress = Gauge(
            "electra_requests_in_progress",
            "Requests being received or answered.",
            registry=self.registry,
        )

    def observe_batch(self, items: int, seconds: float) -> None:
        """Count a batch."""
        self.batches.observe(items)
        self.computing.inc(seconds)

    def observe_request(self, path: str, status: int, seconds: float) -> None:
        """Count a request; paths that do not exist are one verb, so that labels stay few."""
        match = VERB.fullmatch(path)
        verb = match[1] if match else "other"
        self.requests.labels(verb, str(status)).inc()
        self.seconds.labels(verb).observe(seconds)

    def render(self) -> bytes:
        """Return all meters in Prometheus' text format."""
        return generate_latest(self.registry)


class Refused(Exception):
    """A request that is refused before it reaches a route."""

    def __init__(self, status: int, message: str, headers: Sequence[tuple[str, str]] = ()):
        super().__init__(message)
        self.status, self.headers = status, headers


class Gate:
    """An ASGI application that lets requests within the limits through to another.

    A body is received whole, within its limits of size and time, before a route sees it.

    Args:
        app: The application behind the gate.
        config: Limits.
        meters: Where requests are counted.
        token: As in `Service`.
        hosts: As in `Service`.
    """

    def __init__(
        self,
        app: Callable[[Scope, Receive, Send], Awaitable[None]],
        config: ServeConfig,
        meters: Meters,
        *,
        token: str | None,
        hosts: Sequence[str] | None,
    ):
        self.app, self.config, self.meters = app, config, meters
        self.token, self.hosts = token, hosts
        self.num_requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass on what is not one."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        began, status = time.perf_counter(), 500

        async def note(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-content-type-options", b"nosniff")]
            await send(message)

        self.num_requests += 1
        self.meters.in_progress.set(self.num_requests)
        try:
            body = await self._admit(scope, receive)
            await self.app(scope, _replay(body, receive), note)
        except Refused as error:
            await _answer(note, error)
        finally:
            self.num_requests -= 1
            self.meters.in_progress.set(self.num_requests)
            self.meters.observe_request(scope["path"], status, time.perf_counter() - began)

    async def _admit(self, scope: Scope, receive: Receive) -> bytes:
        """Return the body of a request.

        Raises:
            Refused: The request is not within the limits, or not allowed.
        """
        config = self.config
        headers = {name.decode("latin-1"): value for name, value in scope["headers"]}
        host = headers.get("host", b"").decode("latin-1")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if self.hosts is not None and name not in self.hosts:
            raise Refused(400, f"this service is not {host!r}; use {self.hosts[0]}")
        if self.token is not None and scope["path"] not in OPEN:
            given = headers.get("authorization", b"")
            if not hmac.compare_digest(given, f"Bearer {self.token}".encode()):
                where = ("WWW-Authenticate", "Bearer")
                raise Refused(401, "a token is needed: Authorization: Bearer TOKEN", [where])
        if self.num_requests > config.max_requests and scope["path"] not in OPEN:
            message = f"{config.max_requests} requests are in progress; try again in 1 s"
            raise Refused(429, message, [("Retry-After", "1")])
        length = headers.get("content-length", b"0")
        limit = config.max_body_bytes
        if not length.isdigit() or len(length) > 12 or int(length) > limit:
            raise Refused(413, f"a body of {length.decode('latin-1')} bytes; {limit} are allowed")
        try:
            async with asyncio.timeout(config.max_seconds):
                return await self._receive(receive, limit)
        except TimeoutError:
            raise Refused(408, f"no body within {config.max_seconds:g} s") from None

    async def _receive(self, receive: Receive, limit: int) -> bytes:
        parts, size, is_more = [], 0, True
        while is_more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Refused(400, "the client has gone")
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > limit:
                raise Refused(413, f"a body of more than {limit} bytes")
            is_more = message.get("more_body", False)
        return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the body once, then what the server says."""
    left = [body]

    async def replay() -> MutableMapping[str, Any]:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return replay


async def _answer(send: Send, error: Refused) -> None:
    body = json.dumps({"error": str(error)}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
        *((name.lower().encode(), value.encode()) for name, value in error.headers),
    ]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
