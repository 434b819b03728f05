"""The checks before the service's routes: who may ask, how much, and what is counted."""

import asyncio
import hmac
import re
import time
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from electra.errors import count_of
from electra.service.config import ServeConfig
from electra.service.connection import ADMITTED, LONG_HEAD, MAX_HEAD_BYTES
from electra.terminal.printing import print_log

OPEN = ("/", "/health", "/ready")
"""Paths that need no token: the page, which has none of its own, and what a supervisor asks."""
DOCS = ("/docs", "/openapi.json", "/static-offline-docs/")
"""Prefixes of others, which a browser opens without a token."""
HOST = re.compile(r"(\[[^\]]*\]|[^:]*)(:\d*)?")
CLIENT_GONE = 499
"""nginx's status of a request whose client is gone."""
VERB = re.compile(r"/models/([^/]+)/(detect|fill|predict|picture|embed|curves)")


class Meters:
    """Counts and durations of one service with models of these names, for Prometheus."""

    def __init__(self, names: Collection[str], count_waiting: Callable[[], int]):
        self.names = names
        self.registry = CollectorRegistry()
        kept: Any = {"registry": self.registry}
        labels = ["model", "verb", "status"]
        told = "Requests, by model, verb and status."
        self.requests = Counter("electra_requests", told, labels, **kept)
        told = "Time to answer a request."
        self.seconds = Histogram("electra_request_seconds", told, labels[:2], **kept)
        sizes = (1, 2, 4, 8, 16, 32, 64, 128)
        told = "Texts or records that were computed together."
        self.batches = Histogram("electra_batch_items", told, buckets=sizes, **kept)
        self.computing = Counter("electra_compute_seconds", "Time spent computing.", **kept)
        waiting = Gauge("electra_waiting_items", "Texts or records that wait.", **kept)
        waiting.set_function(count_waiting)
        told = "Requests being received or answered."
        self.in_progress = Gauge("electra_requests_in_progress", told, **kept)

    def observe_batch(self, items: int, seconds: float) -> None:
        """Count a batch."""
        self.batches.observe(items)
        self.computing.inc(seconds)

    def observe_request(self, path: str, status: int, seconds: float) -> None:
        """Count a request; those of no model are "other", so that labels stay few."""
        match = VERB.fullmatch(path)
        model, verb = match.groups() if match and match[1] in self.names else ("", "other")
        self.requests.labels(model, verb, str(status)).inc()
        self.seconds.labels(model, verb).observe(seconds)


class Gate:
    """An ASGI application that passes requests within the limits to another one.

    A body is received whole, within its limits of size and time, before a route sees it. Starlette
    and uvicorn have middleware for host names and for concurrent requests, but theirs answer with
    plain text and other statuses. Token and hosts are as in `Service`. Open paths do not
    count towards the limit of requests.
    """

    def __init__(
        self,
        app: ASGIApp,
        config: ServeConfig,
        meters: Meters,
        *,
        token: str | None,
        hosts: Sequence[str] | None,
    ):
        self.app, self.config, self.meters = app, config, meters
        self.token, self.hosts = token, hosts
        self.num_requests = 0
        meters.in_progress.set_function(lambda: self.num_requests)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass on what is not one."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        began, status = time.perf_counter(), 0

        async def note(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-content-type-options", b"nosniff")]
            await send(message)

        is_admitted, gone, body = False, None, b""
        try:
            request = Request(scope, receive)
            is_admitted = scope["state"][ADMITTED] = self._admit(request)
            self.num_requests += is_admitted
            if is_admitted:
                body = await self._receive(request)
            answer = asyncio.ensure_future(self.app(scope, _replay(body, receive), note))
            if body:  # the next message is the end: the client has left, or has its answer
                gone = asyncio.ensure_future(receive())
                gone.add_done_callback(lambda _: answer.cancel())
            await answer
        except HTTPException as error:
            headers = {**(error.headers or {}), "Connection": "close"}
            await refuse(error.status_code, error.detail, headers)(scope, receive, note)
        except asyncio.CancelledError:
            if gone and gone.done():
                status = CLIENT_GONE
            elif not status:  # cancelled by uvicorn after stop_seconds
                headers = {"Retry-After": "5", "Connection": "close"}
                await refuse(503, "the service has stopped", headers)(scope, receive, note)
        finally:
            if gone:
                gone.cancel()
            self.num_requests -= is_admitted
            self._record(scope, status or 500, time.perf_counter() - began)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        self.meters.observe_request(scope["path"], status, seconds)
        if self.config.access_log:
            client, path = (scope["client"] or "-")[0], scope["raw_path"].decode("ascii")
            when = datetime.now(UTC).isoformat(timespec="milliseconds")
            print_log(f"{when} {client} {scope['method']} {path} {status} {seconds:.3f}")

    def _admit(self, request: Request) -> bool:
        """Return whether a request counts among those in progress, or refuse it."""
        headers, scope = request.headers, request.scope
        size = len(scope["raw_path"]) + len(scope["query_string"])
        size += sum(len(name) + len(value) + 4 for name, value in scope["headers"])
        if size > MAX_HEAD_BYTES:
            raise HTTPException(431, LONG_HEAD)
        if "transfer-encoding" in headers and "content-length" in headers:
            raise HTTPException(400, "a request has Transfer-Encoding or Content-Length, not both")
        host = headers.get("host", "")
        name = HOST.fullmatch(host.lower())
        if self.hosts is not None and (name is None or name[1] not in self.hosts):
            raise HTTPException(400, f"this service is not {host!r}; use {self.hosts[0]}")
        path = scope["path"]
        if path in OPEN or path.startswith(DOCS):
            return False
        if self.token is not None:
            given = headers.get("authorization", "").encode("latin-1")
            if not hmac.compare_digest(given, f"Bearer {self.token}".encode()):
                where = {"WWW-Authenticate": "Bearer"}
                raise HTTPException(401, "a token is needed: Authorization: Bearer TOKEN", where)
        if self.num_requests >= self.config.max_requests:
            told = count_of(self.config.max_requests, "request")
            message = f"in progress: {told}; try again in 1 s"
            raise HTTPException(429, message, {"Retry-After": "1"})
        return True

    async def _receive(self, request: Request) -> bytes:
        """Return the body of a request, which is within the limits."""
        length, limit = request.headers.get("content-length", "0"), self.config.max_body_bytes
        if int(length) > limit:
            raise HTTPException(
                413, f"a body of {count_of(int(length), 'byte')}; it may have {limit}"
            )
        body = bytearray()
        try:
            async with asyncio.timeout(self.config.max_seconds):
                async for part in request.stream():
                    body += part
                    if len(body) > limit:
                        raise HTTPException(413, f"a body of more than {count_of(limit, 'byte')}")
        except TimeoutError:
            told = f"no body within {self.config.max_seconds:g} s"
            raise HTTPException(408, told) from None
        except ClientDisconnect:
            raise HTTPException(400, "the client has gone") from None
        return bytes(body)


def refuse(status: int, line: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return an answer with one line of what is wrong."""
    return JSONResponse({"error": line.encode(errors="replace").decode()}, status, headers)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the body once, then what the server says."""
    left = [body]

    async def replay() -> MutableMapping[str, Any]:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return replay
