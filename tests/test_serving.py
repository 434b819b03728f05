"""The service: its answers beside the library's, its limits, its end; the picture beside both."""

import asyncio
import contextlib
import gzip
import itertools
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path

import pytest
import tokenizers
import torch
from commands import refuse_command, succeed
from safetensors.torch import load_file

pytest.importorskip("fastapi")

from refusals import refuse
from runs import flip_bit
from services import load_alone, served

from benchmarks.serve import Client, read_memory
from electra.checkpoints.checkpoint import list_checkpoints
from electra.checkpoints.finetuned import read_finetuned
from electra.checkpoints.folder import read_sizes
from electra.checkpoints.metrics import read_metrics
from electra.cli import main
from electra.inference.ask import detect, fill
from electra.inference.embed import embed
from electra.inference.figure_2 import draw_picture, sample_tokens
from electra.inference.models import Embed, load_models
from electra.inference.predict import load_model
from electra.interop.export import export
from electra.reports.glossary import GLOSSARY
from electra.service.connection import MAX_IDLE
from electra.service.queue import BatchQueue, Failed, Full
from electra.service.service import page
from electra.training.machine import Machine

WORDS = ["the", "old", "sailor", "repaired", "a", "boat", ".", "queen", "umbrellas", "xylophone"]


@pytest.fixture(scope="module")
def tuned(run, toy_question, tmp_path_factory):
    folder = tmp_path_factory.mktemp("served") / "tuned"
    words = ["--task", "own", "--data", toy_question, "--out", folder]
    main(["finetune", str(run), *map(str, words), "--set", "epochs=1", "threads=1"])
    return folder


@pytest.fixture(scope="module")
def port(run, tuned):
    with served(run, tuned) as (_, port):
        yield port


def ask(port, *words):
    return asyncio.run(ask_once(Client(port).send, *words))


def ask_raw(port, request):
    return asyncio.run(ask_once(Client(port).send_raw, request))


async def ask_once(send, *words):
    try:
        return await send(*words)
    finally:
        send.__self__.close()


def make_texts(count):
    rng = random.Random(0)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, 60))) for _ in range(count)]


def near(left, right, tolerance=1e-5):
    """Whether two JSON values are equal, numbers within a tolerance."""
    if isinstance(left, float) and isinstance(right, float):
        return abs(left - right) <= tolerance
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(near(left[k], right[k], tolerance) for k in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(near, left, right))
    return left == right


def prepare_requests(run, tuned, texts):
    """For each text and verb (path, body, what the library answers to it alone)."""
    discriminator, generator = load_alone(run, "replaced"), load_alone(run, "tokens")
    model = load_model(read_finetuned(tuned), Machine())
    requests = []

    def add(path, body, answer):
        requests.append((f"/models/{path}", body, json.loads(json.dumps(answer, default=asdict))))

    for number, text in enumerate(texts):
        (words,) = detect(discriminator, [text])
        add("run/detect", {"texts": [text]}, [{"text": text, "words": words}])
        gap = f"[MASK] {' '.join(text.split()[:8])} [MASK]"
        gaps = fill(generator, [gap], 3)[0]
        add("run/fill", {"texts": [gap], "top": 3}, [{"text": gap, "gaps": gaps}])
        how = {"layer": 1 + number % 3 // 2, "pooling": ("mean", "cls")[number % 2]}
        embedded = embed(discriminator, [text], **how).tolist()
        add("run/embed", {"texts": [text], **how}, embedded)
        answers = model.answer([{"text": text}])
        cut = [{**answers.records[0], "is_cut": answers.num_cut == 1}]
        add("tuned/predict", {"records": [{"text": text}]}, cut)
        how = {"mask_prob": 0.3, "seed": number}
        drawn = draw_picture(generator, [discriminator], text, **how)
        picture = {"judges": ["run"], "tokens": drawn.tokens, "num_cut": drawn.num_cut}
        add("run/picture", {"text": text, **how}, picture)
    return requests


async def check(client, path, body, expected):
    status, _, answer = await client.send("POST", path, body)
    assert status == 200, answer
    assert near(answer, expected), (path, body)


async def check_all(port, requests, num_clients):
    """Have the requests answered and checked, by many clients at once."""

    async def check_some(first):
        client = Client(port)
        for request in requests[first::num_clients]:
            await check(client, *request)
        client.close()

    await asyncio.gather(*map(check_some, range(num_clients)))


def test_answers_are_those_of_the_library_whatever_is_computed_with_them(run, tuned, port):
    requests = prepare_requests(run, tuned, make_texts(40))
    random.Random(1).shuffle(requests)
    asyncio.run(check_all(port, requests, 64))
    _, _, metrics = ask(port, "GET", "/metrics")
    counted = dict(line.rsplit(" ", 1) for line in metrics.decode().splitlines() if line[0] != "#")
    name = 'electra_requests_total{model="%s",status="200",verb="%s"}'
    assert float(counted[name % ("run", "detect")]) >= 40
    assert float(counted[name % ("tuned", "predict")]) >= 40
    assert float(counted["electra_batch_items_sum"]) > float(counted["electra_batch_items_count"])


DETECT = "/models/run/detect"
GOOD = b'{"texts": ["a"]}'


def post(body=GOOD, path=DETECT, kind="application/json", host="127.0.0.1", method="POST", more=""):
    head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {kind}\r\n{more}"
    if "chunked" not in more or "Length" in more:
        head += f"Content-Length: {len(body)}\r\n"
    return f"{head}\r\n".encode() + body


CHUNK = b"100000\r\n" + b"x" * (1 << 20) + b"\r\n"
CHUNKED = "Transfer-Encoding: chunked\r\n"
ONE_CHUNK = post(b"10\r\n" + GOOD + b"\r\n0\r\n\r\n", more=CHUNKED)
LONG_HEAD = "headers of more than 65536 bytes"
BODIES = [
    ("run/detect", b"texts", 422, "the body: not valid JSON: Expecting value"),
    ("run/detect", b"[" * 200_000, 422, "the body: JSON that is nested too deeply"),
    ("run/detect", b'{"texts": ["\xff\xfe"]}', 422, "the body: not UTF-8"),
    ("run/detect", b'{"texts": [' + b"9" * 9999 + b"]}", 422, "a number of too many digits"),
    ("tuned/predict", b'{"records": [{"n": %s}]}' % (b"9" * 9999), 422, "of too many digits"),
    ("run/detect", b'{"texts": ["a"], "texts": ["b"]}', 422, "'texts' has two values"),
    ("tuned/predict", b'{"records": [{"text": "", "text": 1}]}', 422, "'text' has two values"),
    ("run/detect", b'{"texts": ["a"], "top": 5}', 422, "unknown field 'top'; choose from texts"),
    ("run/fill", b'{"texts": ["a"], "tip": 5}', 422, "unknown field 'tip'; did you mean 'top'?"),
    ("run/detect", b"[]", 422, "must be a JSON object"),
    ("run/detect", b"{}", 422, "texts: Field required"),
    ("run/detect", b'{"texts": []}', 422, "at least 1 item"),
    ("run/detect", b'{"texts": [1]}', 422, "texts.0: Input should be a valid string"),
    ("run/detect", b'{"texts": ["\\ud800"]}', 422, "texts.0: a text has an unpaired"),
    (
        "run/detect",
        b'{"texts": ["a"%s]}' % (b', "a"' * 64),
        422,
        "too many texts: 65, at most 64 per request",
    ),
    ("run/detect", b'{"texts": ["%s"]}' % (b"a" * 20_001), 422, "it may have 20000"),
    ("run/detect", b" " * ((1 << 20) + 1), 413, "bytes; it may have 1048576"),
    ("rum/detect", b"{}", 404, "did you mean 'run'?"),
    ("tuned/detect", b"{}", 404, "tuned cannot detect"),
    ("../../etc/passwd", b"", 404, "Not Found; GET /docs lists the requests"),
    ("run/embed", b'{"texts": ["a"], "poolin": "cls"}', 422, "'poolin'; did you mean 'pooling'?"),
    ("run/fill", GOOD, 422, "the text has no [MASK]"),
    ("run/fill", b'{"texts": ["[MASK]", "a"]}', 422, "the text has no [MASK]"),
    ("run/fill", b'{"texts": ["%s"]}' % (b"[MASK] " * 99), 422, "the model's rows hold"),
    ("run/fill", b'{"texts": ["[MASK]"], "top": 0}', 422, "top: Input should be greater than"),
    ("run/embed", b'{"texts": ["a"], "layer": 3}', 422, "layer must be 0 to 2, not 3"),
    ("tuned/predict", b'{"records": [{"text": ""}, {}]}', 422, "record 2: no 'text'"),
    ("tuned/predict", b'{"records": [{"text": "\\udfff"}]}', 422, "unpaired surrogate"),
    ("run/picture", b'{"text": "a", "positions": [1]}', 422, "no token [1]: the text has 1"),
    ("run/picture", b'{"text": "a", "mask_prob": NaN}', 422, "'NaN' is not a finite"),
    ("run/picture", b'{"text": "a", "seed": 4294967296}', 422, "seed"),
    ("run/picture", b'{"text": "a", "beside": ["tuned"]}', 404, "tuned cannot detect"),
]
WRONG = [(post(body, f"/models/{path}"), *rest) for path, body, *rest in BODIES] + [
    (post(kind="text/plain"), 422, "sent with Content-Type: application/json"),
    (post(gzip.compress(GOOD), more="Content-Encoding: gzip\r\n"), 422, "not UTF-8"),
    (post(method="GET"), 405, "Method Not Allowed; GET /docs lists"),
    (post(b"", "/models/rum/curves", method="GET"), 404, "no model 'rum'"),
    (post(b"").replace(b"Length: 0", b"Length: 999999999999"), 413, "bytes; it may have 1048576"),
    (post(CHUNK * 2, more=CHUNKED), 413, "more than 1,048,576 bytes"),
    (post(host="example.org"), 400, "this service is not 'example.org'"),
    (post(host="127.0.0.1, example.org"), 400, "this service is not"),
    (post(host="example.org@127.0.0.1"), 400, "this service is not"),
    (b"GET /models HTTP/1.1\r\n\r\n", 400, "Missing mandatory Host"),
    (b"GET /models HTTP/1.0\r\n\r\n", 400, "this service is not ''"),
    (post(more="Host: 127.0.0.1\r\n"), 400, "multiple Host"),
    (post(more="Host: example.org\r\n"), 400, "multiple Host"),
    (post(path="http://example.org/models"), 404, "Not Found"),
    (post(path="127.0.0.1:80", method="CONNECT"), 404, "Not Found"),
    (post(more="Content-Length: 3\r\n"), 400, "conflicting Content-Length"),
    (ONE_CHUNK.replace(b"Tr", b"Content-Length: 3\r\nTr", 1), 400, "not both"),
    (ONE_CHUNK.replace(b"d\r\n", b"d\r\nContent-Length: 3\r\n", 1), 400, "not both"),
    (post(more=CHUNKED * 2), 400, "multiple Transfer-Encoding"),
    (post(more="Transfer-Encoding: gzip\r\n"), 400, "Only Transfer-Encoding: chunked"),
    (post(b"zz\r\n", more=CHUNKED), 400, "illegal chunk header"),
    (post(host="a\0b"), 400, "illegal header line"),
    (post(more=f"X: {'a' * 70_000}\r\n"), 431, LONG_HEAD),
    (post(more="a: b\r\n" * 12_000), 431, LONG_HEAD),
    (post(path="/" + "a" * 70_000), 431, LONG_HEAD),
]


@pytest.mark.parametrize(
    ("wrong", "expected", "line"), WRONG, ids=[f"{n}: {each[2]}" for n, each in enumerate(WRONG)]
)
def test_wrong_requests_have_one_clear_line(port, wrong, expected, line):
    status, headers, answer = ask_raw(port, wrong)
    assert (status, list(answer)) == (expected, ["error"])
    assert line in answer["error"]
    assert "\n" not in answer["error"]
    assert headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    "request_",
    [
        post(host="LocalHost:80"),
        post(host="[::1]:80"),
        post(b"10\r\n" + GOOD + b"\r\n0\r\na: b\r\n\r\n", more=CHUNKED),
        post().replace(b"1.1", b"1.0", 1),
        post(more=f"X: {'a' * 60_000}\r\n"),
    ],
)
def test_unusual_requests_are_answered(port, request_):
    status, _, answer = ask_raw(port, request_)
    assert (status, answer[0]["text"]) == (200, "a")


def test_what_is_not_http_is_refused_and_the_service_goes_on(port):
    for garbage in (b"\x16\x03\x01\x02\x00" * 40, b"GET\r\n\r\n", b"POST / HTTP/99.9\r\n\r\n"):
        status, _, answer = ask_raw(port, garbage)
        assert (status, list(answer)) == (400, ["error"])
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(post()[:-5])  # and gone in the middle of it
    for path, word in (("/health", "alive"), ("/ready", "ready")):
        assert ask(port, "GET", path)[::2] == (200, {"status": word})


def read_end(connection):
    """What still comes from a connection until the service ends it."""
    connection.settimeout(60)
    with contextlib.suppress(ConnectionResetError):
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))
    return b""


def test_slow_and_endless_requests_end_and_idle_connections_make_room(run):
    """Limits that hold before a token is asked for."""
    closed = contextlib.suppress(OSError)  # by the service, while the test writes
    with served(run, limits=["max_seconds=1"]) as (process, port), contextlib.ExitStack() as stack:

        def connect(sent=b""):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            connection.sendall(sent)
            return connection

        before = read_memory(process.pid)
        with closed:
            connect(b"GET / HTTP/1.1\r\nX: " + b"a" * (200 << 20))
        with closed:
            connect(post(b"0\r\n" + b"a: b\r\n" * (16 << 20), more=CHUNKED))
        assert read_memory(process.pid) - before < 50 << 20
        silent, head = connect(), connect(b"GET / HTTP/1.1\r\nX")
        body, chunks = connect(post()[:-5]), connect(post(b"1\r\n \r\n", more=CHUNKED))
        kept = connect(post())
        with closed:  # a byte now and then does not make it longer
            for _ in range(200):
                time.sleep(0.02)
                head.sendall(b"x")
                chunks.sendall(b"1\r\n \r\n")
        assert read_end(silent) == b""
        assert b"HTTP/1.1 408 " in read_end(head)
        assert all(b"no body within 1 s" in read_end(each) for each in (body, chunks))
        assert read_end(kept).count(b"HTTP/1.1 200 ") == 1
        waiting = [connect() for _ in range(MAX_IDLE + 8)]
        assert ask(port, "POST", DETECT, {"texts": ["a"]})[0] == 200
        assert read_end(waiting[0]) == b""


HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_requests_before_garbage_are_answered(run, capfd):
    """And garbage costs no traceback; without access_log nothing is logged."""
    with served(run) as (_, port):
        for request_, count in itertools.product((HEALTH, post(), ONE_CHUNK), (1, 2, 20, 300)):
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(request_ * count + b"garbage\r\n\r\n")
                answers = read_end(client)
            assert answers.count(b"HTTP/1.1 200 ") == count, request_
            assert answers.count(b"HTTP/1.1 400 ") == 1, request_
        ends = lambda each: (each * 50, each * 3 + b"GET /x", each + b"x" * (1 << 17))  # noqa: E731
        for data in itertools.chain(*map(ends, (HEALTH, post(), ONE_CHUNK))):
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(data)  # and gone
        assert ask(port, "GET", "/health")[0] == 200
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("request_", [HEALTH, post()], ids=["get", "post"])
def test_a_client_that_sends_faster_than_it_is_answered_is_not_read_on(run, request_):
    """It is answered as fast as others are, and takes no memory."""
    with served(run) as (process, port), contextlib.ExitStack() as stack:
        before, many = read_memory(process.pid), request_ * 2000
        clients = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(4)
        ]
        for client in clients:
            client.setblocking(False)
        num_sent, num_read, begin = 0, 0, time.monotonic()
        while (took := time.monotonic() - begin) < 2 or (num_read <= 1 << 14 and took < 60):
            for client in clients:
                with contextlib.suppress(BlockingIOError):
                    num_sent += client.send(many)
                with contextlib.suppress(BlockingIOError):
                    num_read += len(client.recv(1 << 20))
        assert min(num_read, num_sent) > 1 << 14
        assert read_memory(process.pid) - before < 50 << 20
        begin = time.monotonic()
        assert ask(port, "GET", "/health")[0] == 200
        assert time.monotonic() - begin < 10, (
            "others do not wait for what is left of their requests"
        )


def test_strangers_cannot_use_up_the_requests(run, monkeypatch):
    """Whoever has no token leaves answers unread, or bodies unsent."""
    token = "a-secret-of-sufficient-length"
    monkeypatch.setenv("ELECTRA_TOKEN", token)
    head = f"Host: a\r\nAuthorization: Bearer {token}\r\n"
    page, docs, wrong = (f"{each} HTTP/1.1\r\nHost: a\r\n" for each in OPEN_REQUESTS)
    with served(run, limits=["max_requests=2"]) as (_, port), contextlib.ExitStack() as stack:
        for begin in (
            [page + "\r\n"] * 6,
            [docs + "Content-Length: 9\r\n\r\n"],
            [wrong + "\r\n"] * 99,
        ):
            for _ in range(8):
                client = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.sendall("".join(begin).encode() * 40)
        assert ask_raw(port, f"GET /models HTTP/1.1\r\n{head}\r\n".encode())[0] == 200


OPEN_REQUESTS = ("GET /", "POST /docs", "GET /models")


def test_text_that_looks_like_anything_is_text(port):
    texts = ["<script>alert(1)</script>", "🙂 ‮abc‬", "a\u200bb\u200d", "\0\x07", "{{7*7}}", ""]
    status, _, answer = ask(port, "POST", "/models/run/detect", {"texts": texts})
    assert status == 200
    assert [each["text"] for each in answer] == texts
    assert answer[-1]["words"] == []


def test_models_curves_and_the_interface_are_described(port, run):
    def get(path):
        status, _, answer = ask(port, "GET", path)
        assert status == 200
        return answer

    models = get("/models")
    assert [(each["name"], each["verbs"]) for each in models] == [
        ("run", ["detect", "fill", "embed", "picture"]),
        ("tuned", ["predict"]),
    ]
    assert models[0]["step"] == models[0]["steps"] == 12
    assert models[1]["labels"] == ["other", "woman"]
    assert models[1]["examples"] == [{"text": "the chef cooked the meal"}]
    curves = get("/models/run/curves")
    assert curves["records"] == read_metrics(run / "metrics.jsonl")
    assert {record["step"] for record in get("/models/run/curves?after=8")["records"]} == {12}
    again = get("/models/run/curves?after=99")
    assert again == {"records": curves["records"], "restarted": True}
    assert ask(port, "GET", "/models/tuned/curves")[0] == 404
    assert b"https://" not in get("/docs")
    assert "/models/{model}/picture" in get("/openapi.json")["paths"]


@pytest.fixture
def held():
    """A queue whose thread waits for the test, and what the thread was asked; `go` frees it."""
    begun, go, batches = threading.Event(), threading.Event(), []

    def answer(values):
        begun.set()
        go.wait(30)
        batches.append([len(value) for value in values])
        return [1 / (value != "bad") for value in values]

    queue = BatchQueue(batch_items=3, max_waiting=300)
    (first,) = queue.submit(answer, ["first"], [5])
    begun.wait(30)
    yield queue, answer, go, batches
    queue.close()
    assert (first.result(), queue.is_alive) == (1, False)


def test_a_full_queue_refuses_with_a_time_to_try_again(held):
    queue, answer, go, batches = held
    taken = queue.submit(answer, ["a", "b", "c"], [299, 1, 1])
    with pytest.raises(Full, match=r"busy; try again in \d+ s") as refused:
        queue.submit(answer, ["d"], [1])
    assert 1 <= refused.value.retry_after <= 60
    taken[0].cancel()
    go.set()
    assert [each.result(30) for each in taken[1:]] == [1, 1]
    assert batches == [[5], [1, 1]]


def test_items_are_batched_by_question_and_length_and_fail_alone(held):
    queue, answer, go, batches = held
    texts = ["a" * n for n in (9, 100, 8, 90, 7, 60)] + ["bad", "fun"]
    *futures, bad, good = (queue.submit(answer, [text], [len(text)])[0] for text in texts)
    go.set()
    assert [each.result(30) for each in (*futures, good)] == [1] * 7
    with pytest.raises(ZeroDivisionError):
        bad.result(30)
    assert [9, 8, 7] in batches


def test_a_batch_of_long_texts_is_small(monkeypatch, held):
    queue, answer, go, batches = held
    monkeypatch.setattr("electra.service.queue.BATCH_SIZE", 100)
    futures = queue.submit(answer, ["a" * n for n in (101, 60, 41, 59)], [101, 60, 41, 59])
    go.set()
    assert [each.result(30) for each in futures] == [1] * 4
    assert batches[1:] == [[101], [60], [41, 59]]


def test_a_panic_of_a_library_does_not_end_the_computing(held):
    """A pattern that searches too long makes tokenizers panic, which is no Exception of Python."""
    queue, _, go, _ = held
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0}, "[UNK]"))
    pattern = tokenizers.Regex("(x+x+)+y")
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Split(pattern, "isolated")
    bad, good = queue.submit(
        lambda texts: [len(backend.encode(text).ids) for text in texts], ["x" * 40, "ab"], [1, 1]
    )
    go.set()
    with pytest.raises(Failed, match="PanicException: Onig: Regex search error"):
        bad.result(60)
    assert good.result(60) == 1
    assert queue.is_alive


def test_busy_services_refuse_with_429(run):
    body = {"texts": [" ".join(WORDS * 40)] * 20}

    async def ask_many(port):
        words = ("POST", DETECT, body)
        return await asyncio.gather(*(ask_once(Client(port).send, *words) for _ in range(24)))

    limits = ("max_requests=2", "batch_items=1")
    with served(run, limits=limits) as (_, port), contextlib.ExitStack() as stack:
        answers = asyncio.run(ask_many(port))
        many = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            for _ in range(MAX_IDLE + 50)
        ]
        assert ask(port, "GET", "/health")[0] == 200  # by now they are accepted
        for each in many:
            each.sendall(post())
        assert {each.recv(12) for each in many} <= {b"HTTP/1.1 200", b"HTTP/1.1 429"}
    assert {status for status, _, _ in answers} == {200, 429}
    whole = [answer for status, _, answer in answers if status == 200]
    assert all(answer == whole[0] for answer in whole)
    refused = [each[1:] for each in answers if each[0] == 429]
    assert all(int(headers["retry-after"]) >= 1 for headers, _ in refused)
    assert all("try again" in answer["error"] for _, answer in refused)


def test_what_nobody_waits_for_is_not_computed(run):
    request = post(json.dumps({"texts": [" ".join(WORDS * 100)] * 32}).encode())
    counted = rb'electra_requests_total{model="run",status="([0-9]+)",verb="detect"} (.*)'
    with served(run, limits=["batch_items=1"]) as (_, port):
        for _ in range(8):
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(request)
        counts = []
        while sum(float(count) for _, count in counts) < 8:
            counts = re.findall(counted, ask(port, "GET", "/metrics")[2])
        assert counts == [(b"499", b"8.0")]


@pytest.mark.parametrize(
    ("count", "seconds", "statuses"), [(4, 60, {200}), (32, 1, {200, 429, 503})]
)
def test_a_stopped_service_answers_what_it_has_time_for(run, capfd, count, seconds, statuses):
    body = {"texts": [" ".join(WORDS * 100)] * 16}

    async def stop_while_asking(process, port):
        clients, watch = [Client(port) for _ in range(count)], Client(port)
        for client in clients:  # connected, so that the request is in progress at the stop
            await client.send("GET", "/health")
        asked = [asyncio.create_task(c.send("POST", DETECT, body)) for c in clients]
        num_going = 0
        while num_going + sum(task.done() for task in asked) <= count:  # `watch` is one more
            metrics = (await watch.send("GET", "/metrics"))[2].decode()
            num_going = float(re.search(r"^electra_requests_in_progress (.*)", metrics, re.M)[1])
        process.send_signal(signal.SIGTERM)
        answers = await asyncio.gather(*asked)
        for client in (*clients, watch):
            client.close()
        return answers

    with served(run, limits=[f"stop_seconds={seconds}"]) as (process, port):
        answers = asyncio.run(stop_while_asking(process, port))
        assert {status for status, _, _ in answers} <= statuses
        assert all(len(answer) == (16 if status == 200 else 1) for status, _, answer in answers)
        assert process.wait(30) == 0
        assert "stopped" in process.stdout.read()
    assert "Traceback" not in capfd.readouterr().err


def test_other_machines_need_a_token(run, capsys, monkeypatch):
    monkeypatch.delenv("ELECTRA_TOKEN", raising=False)
    words = "serve", run, "--host", "0.0.0.0"
    refuse_command("opens the service to other machines: set ELECTRA_TOKEN", capsys, *words)
    monkeypatch.setenv("ELECTRA_TOKEN", "short")
    refuse_command("at least 16", capsys, "serve", run)
    token = "a-secret-of-sufficient-length"
    monkeypatch.setenv("ELECTRA_TOKEN", token)
    with served(run, "--host", "0.0.0.0") as (_, port):
        for given, expected in (("X: ", 401), ("Bearer wrong", 401), (f"Bearer {token}", 200)):
            request = f"GET /models HTTP/1.1\r\nHost: any\r\nAuthorization: {given}\r\n\r\n"
            assert ask_raw(port, request.encode())[0] == expected
        for path, expected in (("models", 401), ("metrics", 401), ("docs", 200)):
            assert (
                ask_raw(port, f"GET /{path} HTTP/1.1\r\nHost: any\r\n\r\n".encode())[0] == expected
            )
        described = ask(port, "GET", "/openapi.json")[2]
        assert described["components"]["securitySchemes"]["HTTPBearer"]["scheme"] == "bearer"
        assert ask(port, "GET", "/health")[0] == 200


def test_a_token_may_be_in_a_file(run, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("ELECTRA_TOKEN", raising=False)
    token, file = "a-secret-of-sufficient-length", tmp_path / "token"
    with_file = ("serve", run, "--token-file", file)
    refuse_command("cannot read", capsys, *with_file)
    for content in ("short\n", f"{token}\n{token}\n", "", "é" * 20):
        file.write_text(content)
        refuse_command(f"{file} must have at least 16 printable ASCII", capsys, *with_file)
    file.write_bytes(b"\xff" * 20)
    refuse_command("not UTF-8", capsys, *with_file)
    file.write_text(token + "\n")
    with served(run, "--host", "0.0.0.0", "--token-file", file) as (_, port):
        for given, expected in ((token, 200), (f"{token}x", 401)):
            request = f"GET /models HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {given}\r\n\r\n"
            assert ask_raw(port, request.encode())[0] == expected
    monkeypatch.setenv("ELECTRA_TOKEN", token)
    refuse_command("are both given; leave one out", capsys, *with_file)


def test_texts_of_the_dev_set_are_shown_if_asked_for(tuned, toy_question, port):
    dev = (toy_question / "dev.tsv").read_text()
    own = ask(port, "GET", "/models")[2][1]["examples"]
    assert [each["text"] in dev for each in own] == [False]
    assert ask(port, "POST", "/models/tuned/predict", {"records": own})[0] == 200
    with served(tuned, limits=["dev_examples=true"]) as (_, other):
        (model,) = ask(other, "GET", "/models")[2]
    assert len(model["examples"]) > 1
    assert all(each["text"] in dev for each in model["examples"])


def test_a_record_that_is_cut_is_marked(port):
    records = [{"text": "the queen"}, {"text": "the queen " * 600}, {"text": ""}]
    status, _, answers = ask(port, "POST", "/models/tuned/predict", {"records": records})
    assert (status, [each["is_cut"] for each in answers]) == (200, [False, True, False])


def test_the_access_log_has_a_line_for_each_request_and_no_text(run, capfd):
    with served(run, limits=["access_log=true"]) as (_, port):
        ask(port, "POST", DETECT, {"texts": ["a secret text"]})
        ask_raw(port, post(b"{}", path="/models/%0a/detect?text=secret"))
        ask_raw(port, post(host="example.org"))
    lines = capfd.readouterr().err.splitlines()
    day = r"20\d\d-\d\d-\d\dT[0-9:.]+\+00:00 127.0.0.1"
    for line, (path, status) in zip(lines, (("run", 200), ("%0a", 404), ("run", 400)), strict=True):
        assert re.fullmatch(rf"{day} POST /models/{path}/detect {status} \d+\.\d+", line)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full device here")
def test_a_log_without_room_stops_no_request(run):
    with Path("/dev/full").open("w") as full:
        words = [sys.executable, "-m", "electra", "serve", str(run), "--port", "0"]
        words += ["--set", "access_log=true"]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=full, text=True)
        port = int(re.search(r":(\d+) ", process.stdout.readline())[1])
        assert [ask(port, "GET", path)[0] for path in ("/models", "/health")] == [200, 200]
        process.terminate()
        assert process.wait(60) == 0


def test_what_cannot_be_served_is_refused(run, tmp_path, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for words, line in (
            ([tmp_path / "nowhere"], "nowhere is not a folder"),
            ([tmp_path / "grid" / "rate=3e-4"], "grid/rate=3e-4 is not a folder"),
            ([tmp_path], "neither a run of `electra pretrain` nor a Hugging Face folder"),
            ([run, run], "two models are called run"),
            ([run, "--port", port], f"cannot listen on 127.0.0.1 port {port}"),
            ([run, "--port", "99999"], "must be 0 to 65535"),
            ([run, "--set", "max_chars=3000000"], "must be at most max_waiting_chars"),
            ([], "serve needs FOLDERS"),
        ):
            refuse_command(line, capsys, "serve", *words)
    assert "would serve" in succeed(capsys, "serve", run, "--dry-run").out


def test_a_picture_is_the_papers_steps(run):
    generator, discriminator = load_alone(run, "tokens"), load_alone(run, "replaced")
    text = " ".join(WORDS[:6])

    def draw(text=text, **how):
        return draw_picture(generator, [discriminator], text, **how)

    plain = draw(mask_prob=0).tokens
    assert [each.token for each in plain] == [each.original for each in plain]
    (words,) = detect(discriminator, [text])
    expected = max(word.prob_replaced for word in words)
    assert max(each.probs_replaced[0] for each in plain) == pytest.approx(expected, abs=1e-6)
    place = [each.original for each in plain].index("a")
    alone = draw(positions=[place], top=4).tokens
    assert [each.is_masked for each in alone].count(True) == 1
    masked = alone[place]
    gap = text[: masked.start] + "[MASK]" + text[masked.end :]
    ((expected,),) = fill(generator, [gap], 4)
    assert [each.token for each in masked.candidates] == [each.token for each in expected]
    probs = [each.prob for each in masked.candidates]
    assert probs == pytest.approx([each.prob for each in expected], abs=1e-6)
    for seed in range(20):
        drawn = draw(mask_prob=0.4, seed=seed)
        count = sum(each.is_masked for each in drawn.tokens)
        assert count == round(0.4 * (len(drawn.tokens) + 2))
        assert drawn == draw(mask_prob=0.4, seed=seed)
    assert draw("").tokens == []
    long = draw("a " * 99)
    assert (len(long.tokens), long.num_cut) == (30, 69)


def test_samples_follow_the_generators_probabilities():
    """Over a grid of uniform numbers every token is drawn in its share, to the grid's step."""
    log_probs_V = torch.randn(50, generator=torch.Generator().manual_seed(0)).log_softmax(dim=0)
    count = 10_000
    drawn = sample_tokens(log_probs_V.expand(count, 50), (torch.arange(count) + 0.5) / count)
    shares_V = drawn.bincount(minlength=50) / count
    assert (shares_V - log_probs_V.exp()).abs().max() <= 1 / count + 1e-6


def test_a_fine_tuned_answer_that_is_no_number_is_refused(tuned):
    model = load_model(read_finetuned(tuned), Machine())
    with torch.no_grad():
        model.network.head.dense.weight.fill_(torch.nan)
    refuse("answer is not a number", lambda: model.answer([{"text": "a"}]))


def test_checkpoints_exports_and_other_networks_are_models(run, exported, start, tmp_path):
    older, newer = list_checkpoints(run)
    link = tmp_path / "linked"
    link.symlink_to(exported)
    given = [older, newer, Path(f"mine={exported}"), exported / "generator", link]
    models = load_models(given, Machine())
    assert list(models) == ["run@6", "run@12", "mine", "generator", "linked"]
    assert models["mine"].verbs == ["detect", "fill", "embed", "picture"]
    assert models["generator"].verbs == ["fill", "embed", "picture"]
    names = ("run@6", "run@12", "mine")
    found = [models[name].detect(["the queen sold a boat"])[0] for name in names]
    early, late, mine = ([word.prob_replaced for word in words] for words in found)
    assert [word.text for word in found[0]] == [word.text for word in found[1]]
    assert early != late
    assert mine == pytest.approx(late, abs=1e-5)
    alone = load_models([start], Machine())[start.name]
    assert alone.verbs == ["embed"]
    assert len(Embed(alone.networks.encoder, 1, "mean")(["the queen"])[0]) == 64
    bare = shutil.copytree(run, tmp_path / "bare", ignore=shutil.ignore_patterns("metrics.jsonl"))
    assert load_models([bare], Machine())["bare"].describe()["steps"] == 12


def test_what_is_kept_is_not_the_generator_beside_it(train, tmp_path):
    """Of a masked language model with a generator in its folder, here smaller."""
    export(train("run", "method.objective=replace_mlm", "train.steps=6"), tmp_path / "first")
    (model,) = load_models([tmp_path / "first"], Machine()).values()
    kept, generator = model.networks.encoder, model.networks.generator
    assert kept.encoder.config == read_sizes(tmp_path / "first") != generator.encoder.config
    export(tmp_path / "first", tmp_path / "again")
    first, again = (load_file(tmp_path / each / "model.safetensors") for each in ("first", "again"))
    assert all(tensor.equal(again[name]) for name, tensor in first.items())


def test_a_run_whose_folder_is_gone_is_still_described_and_read_later(run, tmp_path):
    folder = shutil.copytree(run, tmp_path / "run")
    (model,) = load_models([folder], Machine()).values()
    told = model.describe()
    folder.rename(tmp_path / "moved")
    assert model.describe() == told | {"is_run": False}
    (tmp_path / "moved").rename(folder)
    model.looked = 6
    (folder / "config.json").rename(tmp_path / "config.json")
    refuse("is neither a run", model.load)
    assert model.is_outdated()  # so the next look tries again


def ask_texts(port, name, verb="detect"):
    status, _, answer = ask(port, "POST", f"/models/{name}/{verb}", {"texts": [" ".join(WORDS)]})
    assert status == 200
    return answer


def test_a_replaced_folder_is_read_again_at_a_hang_up(run, tuned, tmp_path, capfd):
    """Requests in progress end on the old weights; what cannot be read replaces nothing."""
    old, new = (shutil.copytree(run, tmp_path / name) for name in ("old", "new"))
    shutil.rmtree(list_checkpoints(old)[-1])
    current = tmp_path / "current"
    current.symlink_to(old)
    task = shutil.copytree(tuned, tmp_path / "task")
    body = {"texts": [" ".join(WORDS * 60)] * 8}

    def point(folder):
        (tmp_path / "next").symlink_to(folder)
        (tmp_path / "next").replace(current)

    async def ask_through(process, port):
        """Ask before, while and after the model is replaced."""
        *clients, watch = [Client(port) for _ in range(5)]
        asked = [asyncio.create_task(c.send("POST", "/models/m/detect", body)) for c in clients]
        await watch.send("GET", "/health")
        process.send_signal(signal.SIGHUP)
        answers = [await each for each in asked]
        for client in (*clients, watch):
            client.close()
        return answers

    with served(f"m={current}", task, limits=["batch_items=1"]) as (process, port):

        def wait_for(line):
            while line not in (found := process.stdout.readline()):
                assert found

        expected = [ask_texts(port, "m")]
        alone = ask(port, "POST", "/models/m/detect", body)[2]
        point(new)
        assert ask_texts(port, "m") == expected[0]
        answers = asyncio.run(ask_through(process, port))
        wait_for("read m again from")
        wait_for("read task again from")
        expected.append(ask_texts(port, "m"))
        assert expected[0] != expected[1]
        after = ask(port, "POST", "/models/m/detect", body)[2]
        assert {status for status, _, _ in answers} == {200}
        assert all(near(answer, alone) or near(answer, after) for _, _, answer in answers)
        (task / "seed-0").rename(tmp_path / "away")
        point(tmp_path / "nowhere")
        process.send_signal(signal.SIGHUP)
        point(old)
        process.send_signal(signal.SIGHUP)
        wait_for("read m again from")
        assert ask_texts(port, "m") == expected[0]
        status, _, _ = ask(port, "POST", "/models/task/predict", {"records": [{"text": "a"}]})
        assert status == 200
    assert "note: task was not replaced: " in capfd.readouterr().err


def test_a_terminal_that_is_closed_ends_the_service(run):
    """But a hang-up that somebody sends while it is open does not."""
    owner, terminal = os.openpty()
    words = [sys.executable, "-m", "electra", "serve", str(run), "--port", "0"]
    process = subprocess.Popen(words, stdin=terminal, stdout=subprocess.PIPE, text=True)
    os.close(terminal)
    assert "serving run" in process.stdout.readline()
    process.send_signal(signal.SIGHUP)
    assert "read run again from" in process.stdout.readline()
    os.close(owner)
    process.send_signal(signal.SIGHUP)
    assert process.communicate(timeout=60)[0] == "stopped\n"
    assert process.returncode == 0


def test_a_damaged_checkpoint_is_read_once(run, tmp_path):
    folder = shutil.copytree(run, tmp_path / "run")
    flip_bit(list_checkpoints(folder)[-1] / "model.safetensors")
    with pytest.warns(UserWarning, match="step-00000012 is damaged"):
        (model,) = load_models([folder], Machine()).values()
    assert (model.networks.step, model.is_outdated()) == (6, False)


def test_a_run_that_goes_on_is_followed(run, tmp_path):
    """Before its first checkpoint it has curves; then each new checkpoint is taken up."""
    folder = shutil.copytree(run, tmp_path / "run")
    kept = folder / "checkpoints"
    hidden = kept.rename(tmp_path / "hidden")
    kept.mkdir()

    def wait_for(step):
        end = time.monotonic() + 60
        while (found := ask(port, "GET", "/models")[2][0])["step"] != step:
            assert time.monotonic() < end, found
            time.sleep(0.1)
        return found

    with served(folder, "--no-open", verb="page") as (_, port):
        assert wait_for(None)["verbs"] == []
        body = {"text": "the queen"}
        status, _, answer = ask(port, "POST", "/models/run/picture", body)
        assert (status, "before its first checkpoint" in answer["error"]) == (404, True)
        assert ask(port, "GET", "/models/run/curves")[2]["records"]
        pictures = []
        for name, step in (("step-00000006", 6), ("step-00000012", 12)):
            (hidden / name).rename(kept / name)
            assert wait_for(step)["verbs"] == ["detect", "fill", "embed", "picture"]
            pictures.append(ask(port, "POST", "/models/run/picture", body)[2])
    assert pictures[0] != pictures[1]


@pytest.mark.slow
def test_a_minute_of_64_clients_with_wrong_requests_among_them(run, tuned):
    """No answer that is not right or a clear refusal, and memory stays where it was."""
    requests = prepare_requests(run, tuned, make_texts(100))
    counts = {"right": 0, "refused": 0}

    async def ask_on(port, number, end):
        rng, client = random.Random(number), Client(port)
        while time.monotonic() < end:
            is_wrong = rng.random() < 0.1
            counts["refused" if is_wrong else "right"] += 1
            if is_wrong:
                request, expected, line = rng.choice(WRONG)
                status, _, answer = await client.send_raw(request)
                assert status == 429 or (status == expected and line in answer["error"])
            else:
                await check(client, *rng.choice(requests))
        client.close()

    async def ask_for(port, seconds):
        end = time.monotonic() + seconds
        await asyncio.gather(*(ask_on(port, number, end) for number in range(64)))

    with served(run, tuned) as (process, port):
        asyncio.run(ask_for(port, 10))
        before = read_memory(process.pid)
        asyncio.run(ask_for(port, 60))
        grown = read_memory(process.pid) - before
    assert min(counts.values()) > 100
    assert grown < 100 << 20


def test_curves_on_the_page_are_named_as_in_the_glossary():
    html = asyncio.run(page()).body.decode()
    (titles,) = re.findall(r"const TITLES = (\{.*?\});", html)
    panels = re.findall(r'^  \{ name: "(\w+)"', html, re.MULTILINE)
    assert len(panels) == 6
    for name in panels:
        assert json.loads(titles)[name] == GLOSSARY[name].title != ""
