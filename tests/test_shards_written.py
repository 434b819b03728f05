"""Shards that are written to a store: the same bytes as on a disk, whatever happens meanwhile."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from refusals import refuse
from stores import BUCKET

from electra import objects
from electra.objects import list_sizes, place_of, read_bytes, send_new
from electra.shards import merging, pieces
from electra.shards.config import PrepareConfig
from electra.shards.layout import COLUMNS
from electra.shards.pieces import list_pieces, prepare_piece
from electra.shards.prepare import finish, prepare, prepare_share
from electra.shards.store import open_shards
from electra.text.sources import find_sources
from electra.tokenizing.config import TokenizerConfig
from electra.tokenizing.tokenizer import Tokenizer
from electra.tokenizing.words import make_encoder
from electra.verification.verify import verify

pytest.importorskip("obstore")
TEXT = "\n\n".join(f"alpha {'beta ' * (n % 7)}gamma {n % 90} delta" for n in range(300))
SETTINGS = PrepareConfig(workers=1, heldout_prob=0.1, task_bytes=1500)


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(["alpha beta gamma delta 0123456789"] * 5, TokenizerConfig())


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_text(TEXT)
    return str(path)


@pytest.fixture(scope="module")
def local(tokenizer, text, tmp_path_factory):
    """What preparation on a disk writes, by settings."""
    made = {}

    def contents(settings):
        if settings not in made:
            folder = tmp_path_factory.mktemp("local") / "shards"
            prepare([text], tokenizer, folder, settings)
            made[settings] = contents_of(folder)
        return made[settings]

    return contents


def contents_of(place):
    """The manifest's bytes, and all columns as a reader gets them."""
    shards, folder = open_shards(place), place_of(place)
    columns = [s.read(c).tobytes() for s in (*shards.train, *shards.heldout) for c in COLUMNS]
    return read_bytes(folder / "manifest.json"), read_bytes(folder / "dropped.jsonl"), columns


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    """Caches and temporary folders of a test; the latter are empty at its end."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    monkeypatch.chdir(tmp_path)
    yield tmp_path / "scratch"
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.fixture
def url(tmp_path):
    return f"file://{tmp_path}/store/shards"


KINDS = {
    "plain": {},
    "exact": {"duplicates": "exact", "write_dropped": True},
    "near": {"duplicates": "near"},
    "all held out by chance": {"heldout_prob": 0.999999},
    "one document": {"border": "file"},
    "several shards a piece": {"shard_tokens": 200, "duplicates": "exact"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_shards_at_a_url_are_those_on_a_disk(local, tokenizer, text, url, tmp_path, kind):
    if kind == "near":
        pytest.importorskip("rensa")
    settings = replace(SETTINGS, **KINDS[kind])
    prepare([text], tokenizer, url, settings)
    assert contents_of(url) == local(settings)
    refuse(f"{url} exists already", prepare, [text], tokenizer, url, settings)
    # A copy of all that is at the URL is also a folder of shards.
    shutil.copytree(tmp_path / "store/shards", tmp_path / "copy")
    assert contents_of(tmp_path / "copy") == local(settings)
    assert {claim.status for claim in verify(tmp_path / "copy")} == {"ok", "not checked"}


def test_shares_write_to_a_url_at_the_same_time(local, tokenizer, text, url):
    given = [text], tokenizer, url, SETTINGS
    prepare_share(*given, (2, 3))
    refuse("pieces are missing ... --task I/3 with I=0-1", finish, *given)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda number: prepare_share(*given, (number, 3)), range(3)))
    finish(*given)
    assert contents_of(url) == local(SETTINGS)


def test_workers_write_to_a_url(local, tokenizer, text, url):
    prepare([text], tokenizer, url, replace(SETTINGS, workers=2))
    assert contents_of(url) == local(SETTINGS)


class Killed(BaseException):
    """In the place of SIGKILL, after which nothing of the process runs."""


@pytest.mark.parametrize("is_done", [True, False], ids=["after", "before"])
def test_killed_at_any_request_the_same_command_ends_right(
    local, tokenizer, text, tmp_path, monkeypatch, is_done
):
    """Every third request that writes is the last of a process, before or after it is done."""
    left = [0]

    def dying(function):
        def act(content, url):
            left[0] -= 1
            is_last = left[0] == 0
            if is_last and not is_done:
                raise Killed
            result = function(content, url)
            if is_last:
                raise Killed
            return result

        return act

    for module in (pieces, merging, sys.modules["electra.shards.prepare"]):
        for name in {"send", "send_new"} & {*vars(module)}:
            monkeypatch.setattr(module, name, dying(getattr(objects, name)))
    settings = replace(SETTINGS, duplicates="exact", task_bytes=4000)
    ends, request = 0, 0
    while not ends:
        request += 3
        left[0] = request
        store = f"file://{tmp_path}/{request}/shards"
        try:
            prepare([text], tokenizer, store, settings)
            ends = request
        except Killed:
            times = {path: path.stat().st_mtime_ns for path in (tmp_path / str(request)).rglob("*")}
            with pytest.raises(ValueError, match="no manifest"):
                open_shards(store)
            prepare([text], tokenizer, store, settings)
            records = [path for path in times if path.name == "task.json"]
            for file in (file for record in records for file in record.parent.iterdir()):
                was_there = not file.name.startswith("rest-")
                assert not was_there or file.stat().st_mtime_ns == times[file]
        assert contents_of(store) == local(settings)
    assert ends > 24


def test_of_two_workers_of_a_piece_one_finishes_it(local, tokenizer, text, proxy):
    store = place_of(f"s3://{BUCKET}/two/shards")
    files = find_sources([text], SETTINGS).files
    encoder = make_encoder(tokenizer)
    for piece in list_pieces(files, SETTINGS, tokenizer.digest)[:3]:
        together = threading.Barrier(3)

        def work(_, piece=piece, together=together):
            together.wait()
            return prepare_piece(piece, encoder, store / "tasks")

        with ThreadPoolExecutor(3) as pool:
            first, *others = pool.map(work, range(3))
        assert all(each == first for each in others)
    done = [line for line in proxy.done if line.startswith("PUT") and "task.json" in line]
    assert len(done) == len({*done}) == 3
    prepare([text], tokenizer, store, SETTINGS)
    assert contents_of(store) == local(SETTINGS)


def test_a_record_of_another_result_stays(tokenizer, text, url):
    piece = list_pieces(find_sources([text], SETTINGS).files, SETTINGS, tokenizer.digest)[1]
    send_new(b"{}", piece.place(place_of(url) / "tasks") / "task.json")
    refuse("task.json holds another result", prepare, [text], tokenizer, url, SETTINGS)


def test_other_settings_and_another_text_are_noticed(local, tokenizer, text, url, tmp_path):
    prepare_share([text], tokenizer, url, SETTINGS, (0, 1))
    other = replace(SETTINGS, seed=1)
    refuse("was started with different seed", prepare, [text], tokenizer, url, other)
    changed = tmp_path / "a.txt"
    changed.write_text(TEXT.replace("alpha", "delta"))
    refuse("pieces are missing or", finish, [str(changed)], tokenizer, url, SETTINGS)
    prepare([str(changed)], tokenizer, url, SETTINGS)
    prepare([str(changed)], tokenizer, tmp_path / "shards", SETTINGS)
    assert contents_of(url) == contents_of(tmp_path / "shards") != local(SETTINGS)


def test_what_is_missing_or_damaged_is_told(tokenizer, text, url, tmp_path, monkeypatch):
    given = [text], tokenizer, url, SETTINGS
    prepare_share(*given, (0, 1))
    tasks = tmp_path / "store/shards/tasks"
    lost = next(tasks.glob("000002-*/train-00000.tokens"))
    content = lost.read_bytes()
    lost.unlink()
    refuse("train-00000.tokens is missing; remove ... task.json", finish, *given)
    lost.write_bytes(content)
    damaged = next(tasks.glob("*/heldout-00000.lines"))
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-1] + b"x")
    refuse("heldout-00000.lines is damaged", finish, *given)
    damaged.write_bytes(content)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: Room(0))
        refuse("the last step needs 0.0 GB in ", finish, *given)
    finish(*given)


class Room:
    def __init__(self, free):
        self.free = free


def test_an_old_list_changes_nothing(local, tokenizer, text, proxy):
    store = place_of(f"s3://{BUCKET}/old/shards")
    assert list_sizes(store / "tasks") == {}
    proxy.add("old list", "list-type", times=1000)
    prepare([text], tokenizer, store, SETTINGS)
    assert contents_of(store) == local(SETTINGS)


def test_faults_of_the_network_change_nothing(local, tokenizer, text, proxy):
    store = place_of(f"s3://{BUCKET}/faults/shards")
    for kind in ("slow down", "too many", "lost"):
        proxy.add(kind, "PUT", times=3)
    for kind in ("reset", "cut", "flip", "slow down"):
        proxy.add(kind, "GET", "tokens", times=2)
    prepare([text], tokenizer, store, SETTINGS)
    assert contents_of(store) == local(SETTINGS)
    proxy.add("expired", "PUT", times=1000)
    refuse("403 Forbidden: ExpiredToken", prepare, [text], tokenizer, store.parent / "b", SETTINGS)


def test_the_disk_holds_one_piece_a_worker(tokenizer, text, url, places, monkeypatch):
    most = [0]

    def watch(function):
        def act(content, target):
            files = [path.stat().st_size for path in places.rglob("*") if path.is_file()]
            most[0] = max(most[0], sum(files))
            return function(content, target)

        return act

    monkeypatch.setattr(pieces, "send", watch(objects.send))
    prepare_share([text], tokenizer, url, SETTINGS, (0, 1))
    sizes = list_sizes(place_of(url) / "tasks")
    of_pieces = {}
    for name, size in sizes.items():
        piece = name.partition("/")[0]
        of_pieces[piece] = of_pieces.get(piece, 0) + size
    assert len(of_pieces) > 5
    assert 0 < most[0] <= max(of_pieces.values())


@pytest.mark.slow
def test_processes_are_killed_and_the_command_ends_right(local, tokenizer, text, proxy, tmp_path):
    tokenizer.save(tmp_path / "vocabulary")
    store = f"s3://{BUCKET}/killed/shards"
    settings = [f"{name}={getattr(SETTINGS, name)}" for name in ("heldout_prob", "task_bytes")]
    command = [sys.executable, "-m", "electra", "prepare", text, "--tokenizer", "vocabulary"]
    command += ["--out", store, "--set", "workers=2", *(w for s in settings for w in ("--set", s))]
    environ = os.environ | {"PYTHONPATH": str(Path(objects.__file__).parents[1])}
    for more in (5, 30):
        proxy.asked.clear()
        process = subprocess.Popen(command, env=environ, start_new_session=True)
        while sum(line.startswith("PUT") for line in proxy.asked) < more:
            assert process.poll() is None
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert read_bytes(place_of(store) / "manifest.json") is None
    subprocess.run(command, env=environ, check=True)
    assert contents_of(store) == local(SETTINGS)
    for left in (tmp_path / "scratch").iterdir():
        shutil.rmtree(left)


@pytest.mark.slow
def test_ray_writes_to_a_store(local, tokenizer, text, proxy, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_TMPDIR", "/tmp")  # names of sockets are short
    store = f"s3://{BUCKET}/ray/shards"
    prepare([text], tokenizer, store, replace(SETTINGS, workers=2), engine="ray")
    assert contents_of(store) == local(SETTINGS)
