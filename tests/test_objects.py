"""Objects of a real S3 server, through a proxy of faults: the same bytes, or one line."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from refusals import refuse
from stores import BUCKET

from electra import objects
from electra.objects import copy_object, list_sizes, place_of, read_bytes, send, send_new

pytest.importorskip("obstore")
CONTENT = os.urandom(300_000)
SHA256 = objects.hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(params=["s3", "file"])
def folder(request, tmp_path):
    """An empty folder of each kind of store."""
    if request.param == "file":
        return place_of(f"file://{tmp_path}/a folder")
    request.getfixturevalue("proxy")
    return place_of(f"s3://{BUCKET}/{tmp_path.name}")


def test_objects_are_written_read_and_listed(folder, tmp_path):
    assert (list_sizes(folder), read_bytes(folder / "a")) == ({}, None)
    (tmp_path / "large").write_bytes(CONTENT * 60)  # sent in parts
    send(tmp_path / "large", folder / "deep/large")
    for content in (b"first", CONTENT):
        send(content, folder / "a")
        assert read_bytes(folder / "a") == content
    assert list_sizes(folder) == {"a": len(CONTENT), "deep/large": 60 * len(CONTENT)}
    assert list_sizes(folder / "deep") == {"large": 60 * len(CONTENT)}
    copy_object(folder / "a", tmp_path / "copy", SHA256)
    assert (tmp_path / "copy").read_bytes() == CONTENT
    refuse("a is damaged", copy_object, folder / "a", tmp_path / "copy", "0" * 64)
    refuse("b is missing", copy_object, folder / "b", tmp_path / "copy", SHA256)


def test_of_several_writers_of_a_new_object_one_wins(folder):
    with ThreadPoolExecutor(8) as pool:
        for number in range(3):
            url = folder / f"commit-{number}"
            contents = [f"writer {each}".encode() for each in range(8)]
            won = list(pool.map(lambda content, url=url: send_new(content, url), contents))
            assert won.count(True) == 1
            assert read_bytes(url) == contents[won.index(True)]
            assert send_new(read_bytes(url), url)  # as after an answer that was lost


PASSING = ["slow down", "too many", "reset", "cut", "stall", "flip"]


@pytest.mark.parametrize("kind", PASSING)
def test_what_a_server_or_a_network_does_for_a_moment_changes_no_byte(proxy, tmp_path, kind):
    url = place_of(f"s3://{BUCKET}/read")
    send(CONTENT, url)
    proxy.asked.clear()
    proxy.add(kind, "GET", "/read", times=2)
    copy_object(url, tmp_path / "copy", SHA256)
    assert (tmp_path / "copy").read_bytes() == CONTENT
    assert len(proxy.asked) == 3


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("slow down", "cannot be copied to ... 503 Service Unavailable: SlowDown Please"),
        ("too many", "429 Too Many Requests"),
        ("expired", "403 Forbidden: ExpiredToken The provided token has expired"),
        ("cut", "response body error"),
        ("flip", "read is damaged: its sha256 differs"),
    ],
)
def test_what_lasts_is_one_line(proxy, tmp_path, kind, line):
    url = place_of(f"s3://{BUCKET}/read")
    send(CONTENT, url)
    proxy.add(kind, "GET", "/read", times=1000)
    refuse(line, copy_object, url, tmp_path / "copy", SHA256)


@pytest.mark.parametrize("kind", ["slow down", "lost", "reset"])
@pytest.mark.parametrize("write", [send, send_new])
def test_a_write_whose_answer_is_lost_is_done(proxy, tmp_path, write, kind):
    url = place_of(f"s3://{BUCKET}/{tmp_path.name}")
    proxy.add(kind, "PUT")
    assert write(b"mine", url) in (None, True)
    assert read_bytes(url) == b"mine"
    if write is send_new:
        proxy.add(kind, "PUT")
        assert not send_new(b"another", url)
        assert read_bytes(url) == b"mine"


def test_no_store_is_opened_before_a_fork(tmp_path):
    code = f"""
import os, sys
from electra.objects import place_of, read_bytes
assert read_bytes(place_of("file://{tmp_path}/a")) is None
if not os.fork():
    try:
        read_bytes(place_of("file://{tmp_path}/a"))
    except ValueError as error:
        print(error)
    os._exit(0)
os.wait()
"""
    command = [sys.executable, "-c", code]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "a forked process" in said
