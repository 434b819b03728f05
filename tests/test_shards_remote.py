"""Shards in object storage: fetched once, when they are needed, and never damaged."""

import hashlib
import http.server
import json
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from refusals import refuse
from runs import ignore

from electra import objects
from electra.checkpoints.manifest import read_manifest
from electra.files import read_object
from electra.pretraining.loop import pretrain, resume
from electra.shards.config import ExamplesConfig, PrepareConfig
from electra.shards.examples import Examples
from electra.shards.layout import COLUMNS
from electra.shards.prepare import prepare
from electra.shards.store import MAX_FETCHES, fetch_shards, open_shards
from electra.tokenizing import foreign
from electra.tokenizing.config import TokenizerConfig
from electra.tokenizing.tokenizer import Tokenizer

pytest.importorskip("obstore")

TEXT = "\n\n".join(f"alpha {'beta ' * (n % 7)}gamma {n} delta" for n in range(400))
SETTINGS = PrepareConfig(workers=1, heldout_prob=0.1, task_bytes=2000)


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(["alpha beta gamma delta 0123456789"] * 5, TokenizerConfig())


@pytest.fixture(scope="module")
def local(tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("local")
    (folder / "a.txt").write_text(TEXT)
    prepare([str(folder / "a.txt")], tokenizer, folder / "shards", SETTINGS)
    return folder / "shards"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/electra/shards"


@pytest.fixture
def bucket(tmp_path):
    """A folder that is also the store at `url_of`."""
    (tmp_path / "bucket").mkdir()
    return tmp_path / "bucket"


def url_of(folder):
    return f"file://{folder}"


def files_in(folder):
    """The files of a folder by name, without those that reading wrote."""
    paths = (path for path in folder.rglob("*") if path.is_file() and path.stem != "verified")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def upload(folder, target):
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns("verified*"))
    return url_of(target)


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def site(local):
    """A web server without lists of its folders: its URL, and the names that were asked for."""
    asked = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def list_directory(self, path):
            self.send_error(403)

        def do_GET(self):
            asked.append(self.path.rpartition("/")[2])
            if self.path.startswith("/secret"):
                self.send_error(403)
            elif self.path == "/busy.txt" and asked.count("busy.txt") > 3:
                self.send_error(503)
            else:
                super().do_GET()

        def log_message(self, *arguments):
            pass

    handler = partial(Handler, directory=local.parent)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


def test_only_what_is_read_is_fetched_and_only_once(local, bucket, cache, monkeypatch):
    monkeypatch.setattr(foreign, "_ask", pytest.fail)  # the tokenizer is ours, not transformers'
    url = upload(local, bucket / "shards")
    expected = open_shards(local)
    # A command makes a path of the URL, which has one slash.
    for name in (url, Path(url)):
        shards = open_shards(name)
        assert (shards.digest, shards.manifest) == (expected.digest, expected.manifest)
        assert str(shards.folder) == url
    assert len(shards.train) > 5
    before = {path.name for path in cache.iterdir()}
    assert before < {digest(path) for path in (local / "tokenizer").iterdir()}
    assert np.array_equal(shards.train[3].lines, expected.train[3].lines)
    fetched = {path.name for path in cache.iterdir()} - before
    assert fetched == {digest(local / "train-00003.lines")}
    # What was fetched is not asked for again, neither by these nor by another copy of the shards.
    (bucket / "shards/train-00003.lines").unlink()
    again = open_shards(url, verify=False)
    assert np.array_equal(again.train[3].lines, expected.train[3].lines)
    shutil.rmtree(cache)
    again = open_shards(url).train[3]
    refuse(f"{url}/train-00003.lines is missing", lambda: again.lines)


def test_all_is_fetched_several_at_a_time_and_told(local, bucket, cache, monkeypatch):
    url = upload(local, bucket / "shards")
    told, under_way, most, copy = [], [], [], objects.copy_object

    def slow(url, target, sha256):
        under_way.append(url)
        time.sleep(0.02)
        most.append(len(under_way))
        copy(url, target, sha256)
        under_way.remove(url)

    contents = {digest(path) for path in local.iterdir() if path.suffix[1:] in COLUMNS}
    shards = open_shards(url)
    monkeypatch.setattr(objects, "copy_object", slow)
    fetch_shards([open_shards(local), shards], lambda *facts: told.append(facts))
    assert 1 < max(most) <= MAX_FETCHES
    assert told == [(done, len(contents)) for done in range(1, len(contents) + 1)]
    assert contents <= {path.name for path in cache.iterdir()}
    shutil.rmtree(cache)
    (bucket / "shards/train-00002.tokens").unlink()
    refuse("train-00002.tokens", fetch_shards, [shards], lambda *facts: None)


def test_damage_is_refused_and_not_kept(local, bucket, cache):
    url = upload(local, bucket / "shards")
    path = bucket / "shards/train-00001.tokens"
    whole = path.read_bytes()

    def read():
        return open_shards(url).train[1].tokens

    for damaged in (whole[:-2], bytes(len(whole)), b""):
        path.write_bytes(damaged)
        refuse(f"{url}/train-00001.tokens is damaged: ", read)
        assert not (cache / digest(local / "train-00001.tokens")).exists()
    path.write_bytes(whole)
    assert read().tobytes() == whole
    assert not list(cache.glob("*.incomplete"))
    (bucket / "shards/tokenizer/vocab.txt").write_bytes(b"other")
    shutil.rmtree(cache)
    refuse("tokenizer/vocab.txt is damaged", read)
    (bucket / "shards/tokenizer/electra.json").unlink()
    refuse("tokenizer/electra.json is missing", read)
    nothing = url_of(bucket / "nothing")
    refuse(f"{nothing} is not a shards folder", open_shards, nothing)


def test_names_of_a_foreign_folder_do_not_lead_out_of_the_cache(local, bucket):
    url = upload(local, bucket / "shards")
    manifest = json.dumps(read_object(local / "manifest.json"))  # without its own sha256
    right = digest(local / "train-00000.tokens")
    (bucket / "shards/manifest.json").write_text(manifest.replace(right, "../../evil"))
    shard = open_shards(url).train[0]
    refuse("train-00000.tokens cannot be checked: '../../evil' is", lambda: shard.tokens)


def test_of_several_readers_one_fetches(local, site, cache):
    url, asked = site
    path = objects.place_of(f"{url}/shards/train-00002.tokens")
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: objects.fetch(path, digest(local / path.name)), range(8)))
    assert [each.read_bytes() for each in found] == [(local / path.name).read_bytes()]
    assert asked == [path.name]
    assert [each.name for each in cache.iterdir()] == [digest(local / path.name)]


def test_what_a_killed_process_left_is_replaced(local, cache):
    cache.mkdir(parents=True)
    right = digest(local / "train-00000.tokens")
    (cache / f"{right}.incomplete").write_bytes(b"half" * 10_000)
    found = objects.fetch(objects.place_of(url_of(local / "train-00000.tokens")), right)
    assert digest(found) == right
    assert not (cache / f"{right}.incomplete").exists()


def test_a_run_reads_shards_of_a_web_server(local, site, toy_config, tmp_path):
    url, asked = site
    runs = {"here": [], "there": []}
    pretrain(local, tmp_path / "here", toy_config, runs["here"].append)
    pretrain(Path(f"{url}/shards"), tmp_path / "there", toy_config, runs["there"].append)
    losses = [[each["loss"] for each in records if "loss" in each] for records in runs.values()]
    assert losses[0] == losses[1] != []
    told = [each["done"] for each in runs["there"] if each["part"] == "fetching"]
    assert told == list(range(1, len(told) + 1)) != []
    shard_files = [name for name in asked if name.startswith(("train-", "heldout-"))]
    assert len(shard_files) == len({*shard_files})
    facts = {"folder": f"{url}/shards", "sha256": open_shards(local).digest}
    assert read_manifest(tmp_path / "there")["shards"] == facts
    (tmp_path / "there/results.json").unlink()
    resume(tmp_path / "there", ignore)  # finds its shards by the URL
    refuse("/secret/manifest.json cannot be read: 403", open_shards, f"{url}/secret")


def test_a_text_that_a_web_server_no_longer_gives_is_refused(local, site, tokenizer, tmp_path):
    (local.parent / "busy.txt").write_text(TEXT)
    given = [f"{site[0]}/busy.txt"], tokenizer, tmp_path / "out", SETTINGS
    refuse("busy.txt cannot be read: 503", prepare, *given)


def test_a_mixture_of_shards_here_and_there(local, bucket, tmp_path):
    url = upload(local, bucket / "shards")
    text = '[[corpus]]\nshards = "{}"\n[[corpus]]\nshards = "{}"\n'
    (tmp_path / "mixture.toml").write_text(text.format(url, local))
    (bucket / "mixture.toml").write_text(text.format(upload(local, bucket / "second"), "shards"))
    config = ExamplesConfig(sequence_length=32)
    for place in (tmp_path / "mixture.toml", url_of(bucket / "mixture.toml")):
        shards = open_shards(place)
        assert len(shards.train) == 2 * len(open_shards(local).train)
        rows = Examples(shards.train, shards.tokenizer, config, 0, shards.mixture)
        assert len(rows.batch(0, 8).input_ids_BL) == 8


def test_a_place_that_cannot_be_written_is_told(local, site, tokenizer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(objects, "PATIENCE", timedelta(seconds=1))  # 501 may pass
    objects._open_store.cache_clear()
    given = [str(local.parent / "a.txt")], tokenizer, f"{site[0]}/never", SETTINGS
    refuse("/never/plan.json cannot be written: ", prepare, *given)
