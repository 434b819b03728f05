"""Shards: what goes in comes out, the same for any number of workers, and damage is refused."""

import hashlib
import io
import itertools
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuse

from electra.cli import main
from electra.config import PrepareConfig, TokenizerConfig
from electra.errors import UserError
from electra.files import UNFINISHED, hold
from electra.shards import merging, pieces
from electra.shards import prepare as prepare_module
from electra.shards.pieces import hash_documents, heldout_limit
from electra.shards.prepare import finish, prepare, prepare_share
from electra.shards.store import PARTS, ShardWriter, open_shards
from electra.text.documents import Reader, break_words
from electra.tokenizing import words as encoder_module
from electra.tokenizing.tokenizer import Tokenizer, tokens_dtype
from electra.tokenizing.words import WordEncoder

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def make_text(num_documents, seed=0):
    rng = random.Random(seed)
    words = ["alpha", "beta,", "Gamma", "don't", "épsilon", "zeta.", "eta-theta", "中文", "\u0416"]
    words.append("x" * 130)

    def line():
        return " ".join(rng.choices(words, k=rng.randint(1, 12)))

    documents = [[line() for _ in range(rng.randint(1, 5))] for _ in range(num_documents)]
    return "\n\n".join("\n".join(lines) for lines in documents)


@pytest.fixture(scope="module")
def tokenizer():
    text = make_text(200, seed=1).replace("\u0416", "")
    return Tokenizer.train(text.splitlines(), TokenizerConfig(vocab_size=120))


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text(make_text(300), encoding="utf-8")
    return path


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(pieces, "BATCH_CHARS", 2000)
    monkeypatch.setattr(merging, "PART_TOKENS", 300)


def config(**fields):
    return PrepareConfig(**{"workers": 1, "heldout_prob": 0.1, **fields})


def folder_digests(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def documents_in(shards):
    """Documents as lists of lines of ids, read back by the offsets alone."""
    found = []
    for shard in shards:
        borders = [*shard.documents.tolist(), len(shard.tokens)]
        ends = [*shard.lines.tolist(), len(shard.tokens)]
        assert shard.documents[0] == shard.lines[0] == 0
        assert set(shard.documents.tolist()) <= set(shard.lines.tolist())
        lines = [shard.tokens[a:b].tolist() for a, b in itertools.pairwise(ends)]
        assert all(lines)
        for start, stop in itertools.pairwise(borders):
            found.append(
                [line for line, at in zip(lines, ends, strict=False) if start <= at < stop]
            )
    return found


@pytest.mark.parametrize("shard_tokens", [1 << 26, 500, 1])
def test_tokens_in_are_tokens_in_the_shards(
    tokenizer, text_file, tmp_path, shard_tokens, small_batches
):
    manifest = prepare(
        [str(text_file)], tokenizer, tmp_path / "out", config(shard_tokens=shard_tokens)
    )
    documents = list(Reader().read([text_file]))
    expected = [
        tokenizer.encode_batch([break_words(line) for line in lines]) for lines in documents
    ]
    texts = ["\n".join(lines) for lines in documents]
    is_heldout = hash_documents(texts, 0) < heldout_limit(0.1)
    shards = open_shards(tmp_path / "out")
    heldout = [ids for ids, held in zip(expected, is_heldout, strict=True) if held]
    train = [ids for ids, held in zip(expected, is_heldout, strict=True) if not held]
    assert documents_in(shards.train) == train
    assert documents_in(shards.heldout) == heldout
    assert shards.manifest == manifest
    assert manifest["heldout"] == "documents chosen by a hash of (seed, text)"
    for part, found in (("train", train), ("heldout", heldout)):
        entry = manifest["parts"][part]
        assert entry["num_documents"] == len(found)
        assert entry["num_lines"] == sum(map(len, found))
        assert entry["num_tokens"] == sum(len(line) for lines in found for line in lines)
        assert entry["num_tokens"] == sum(shard["num_tokens"] for shard in entry["shards"])
    unknown = [
        index for lines in expected for line in lines for index in line if index == tokenizer.unk_id
    ]
    assert manifest["unk_tokens"] == len(unknown) == text_file.read_text().count("\u0416")
    assert manifest["text"]["documents"] == len(documents) == 300
    assert manifest["source_files"] == ["corpus.txt"]
    assert (
        shards.digest == hashlib.sha256((tmp_path / "out/manifest.json").read_bytes()).hexdigest()
    )
    if shard_tokens == 500:
        sizes = [len(shard.tokens) for shard in shards.train]
        assert len(sizes) > 3
        assert all(500 <= size < 1500 for size in sizes[:-1])
    if shard_tokens == 1:
        assert len(shards.train) == len(train)


def test_any_number_of_workers_gives_the_same_bytes(tokenizer, text_file, tmp_path, small_batches):
    digests = []
    for workers in (1, 2, 3):
        out = tmp_path / str(workers)
        prepare([str(text_file)], tokenizer, out, config(workers=workers, shard_tokens=2000))
        digests.append(folder_digests(out))
    assert digests[0] == digests[1] == digests[2]
    assert len(digests[0]) > 10
    content = (tmp_path / "1/manifest.json").read_text()
    assert str(tmp_path) not in content
    assert "workers" not in content


@settings(max_examples=200, deadline=None)
@given(
    text=st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=200)
)
def test_words_one_by_one_are_the_text_as_a_whole(tokenizer, text):
    text = f"hello {text}"
    batch = WordEncoder(tokenizer).encode_documents([text])
    assert batch.tokens.tolist() == tokenizer.encode(break_words(text))
    assert batch.num_unknown == batch.tokens.tolist().count(tokenizer.unk_id)


@pytest.mark.parametrize(("lowercase", "strip_accents"), [(True, False), (False, None)])
def test_words_one_by_one_whatever_the_normalisation(tokenizer, lowercase, strip_accents):
    other = Tokenizer(tokenizer.tokens_by_id, lowercase=lowercase, strip_accents=strip_accents)
    rng = random.Random(0)
    alphabet = "abE é\u0301ǆİΣς,.-_[]中한\x00\x0c\x85\u00a0\u200d\u2028😀"
    encoder = WordEncoder(other)
    for _ in range(2000):
        text = "a" + "".join(rng.choices(alphabet, k=20))
        assert encoder.encode_documents([text]).tokens.tolist() == other.encode(text)


def test_forgetting_words_changes_nothing(tokenizer, monkeypatch):
    text = make_text(50)
    expected = WordEncoder(tokenizer).encode_documents([text]).tokens.tolist()
    monkeypatch.setattr(encoder_module, "MAX_REMEMBERED_WORDS", 3)
    assert WordEncoder(tokenizer).encode_documents([text]).tokens.tolist() == expected


def test_text_without_tokens_is_left_out(tokenizer, tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\1\1\n\nalpha\n\1\n\nbeta\n\n\1")
    manifest = prepare([str(path)], tokenizer, tmp_path / "out", config())
    assert sum(manifest["parts"][part]["num_documents"] for part in PARTS) == 2
    assert sum(manifest["parts"][part]["num_lines"] for part in PARTS) == 2


def test_heldout_share_follows_the_hash():
    texts = [f"document {number}" for number in range(20_000)]
    hashes = hash_documents(texts, 3)
    share = (hashes < heldout_limit(0.05)).mean()
    assert abs(share - 0.05) < 4 * np.sqrt(0.05 * 0.95 / 20_000)
    assert np.array_equal(hashes[::-1], hash_documents(texts[::-1], 3))
    assert not np.intersect1d(hashes, hash_documents(texts, 4)).size


def test_what_is_held_out_stays_held_out(tokenizer, tmp_path):
    """The corpus grows, is reordered, is read in other parts, and has duplicates."""
    documents = make_text(300).split("\n\n")
    texts = {
        "first": documents,
        "grown": [*documents, *make_text(200, seed=5).split("\n\n")],
        "reordered": documents[::-1],
        "twice": [*documents, *documents],
    }
    heldout = {}
    for name, each in texts.items():
        (tmp_path / f"{name}.txt").write_text("\n\n".join(each))
        prepare(
            [str(tmp_path / f"{name}.txt")], tokenizer, tmp_path / name, config(task_bytes=3000)
        )
        shards = open_shards(tmp_path / name)
        heldout[name] = [str(lines) for lines in documents_in(shards.heldout)]
        assert not set(heldout[name]) & {str(lines) for lines in documents_in(shards.train)}
    assert heldout["reordered"] == heldout["first"][::-1]
    assert heldout["grown"][: len(heldout["first"])] == heldout["first"]
    assert heldout["twice"] == heldout["first"] * 2
    assert len(heldout["first"]) > 10


@pytest.mark.parametrize(
    ("text", "prob", "rule", "train", "heldout"),
    [
        ("alpha\n\nbeta\n\nzeta", 0.0, "the document with the smallest hash", None, ["beta"]),
        ("alpha\n\nbeta\n\nzeta", 0.999999, "the document with the smallest hash", None, ["beta"]),
        ("alpha\n\nalpha\n\nalpha", 0.1, "the first of equal", ["alpha", "alpha"], ["alpha"]),
        ("alpha\n\nalpha\n\nalpha", 0.999999, "the first of equal", ["alpha"] * 2, ["alpha"]),
        ("alpha\nbeta\nzeta", 0.1, "the end of the only document", ["alpha", "beta"], ["zeta"]),
        ("alpha\nbeta\nzeta", 0.9, "the end of the only document", ["alpha"], ["beta", "zeta"]),
        ("alpha beta", 0.1, "the end of the only document", None, None),
    ],
)
def test_no_part_stays_empty(tokenizer, tmp_path, text, prob, rule, train, heldout):
    path = tmp_path / "a.txt"
    path.write_text(text)
    manifest = prepare([str(path)], tokenizer, tmp_path / "out", config(heldout_prob=prob))
    assert manifest["heldout"].startswith(rule)
    shards = open_shards(tmp_path / "out")
    found = [
        [i for lines in documents_in(part) for line in lines for i in line]
        for part in (shards.train, shards.heldout)
    ]
    assert all(found)
    assert sorted(found[0] + found[1]) == sorted(tokenizer.encode(text))
    for ids, words in zip(found, (train, heldout), strict=True):
        assert words is None or ids == tokenizer.encode(" ".join(words))


def test_progress_is_told(tokenizer, text_file, tmp_path):
    told = []
    manifest = prepare(
        [str(text_file)],
        tokenizer,
        tmp_path / "out",
        config(task_bytes=3000),
        lambda *state: told.append(state),
    )
    size = text_file.stat().st_size
    assert len(told) > 5
    assert told == sorted(told)
    assert told[-1] == (size, size, sum(manifest["parts"][part]["num_tokens"] for part in PARTS))


def test_standard_input(tokenizer, text_file, tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text_file.read_bytes())))
    prepare(["-"], tokenizer, tmp_path / "piped", config(), lambda *state: told.append(state))
    assert told[0][1] is None
    assert told[-1][0] == told[-1][1]
    prepare([str(text_file)], tokenizer, tmp_path / "named", config())
    piped, named = folder_digests(tmp_path / "piped"), folder_digests(tmp_path / "named")
    assert piped.pop("manifest.json") != named.pop("manifest.json")
    assert piped == named


@pytest.mark.parametrize("workers", [1, 2])
def test_an_interrupted_preparation_goes_on(tokenizer, text_file, tmp_path, workers):
    def interrupt(*state):
        raise KeyboardInterrupt

    settings = config(workers=workers, task_bytes=5000)
    with pytest.raises(KeyboardInterrupt):
        prepare([str(text_file)], tokenizer, tmp_path / "out", settings, interrupt)
    assert not multiprocessing.active_children()
    assert not (tmp_path / "out").exists()
    prepare([str(text_file)], tokenizer, tmp_path / "out", settings)
    prepare([str(text_file)], tokenizer, tmp_path / "clean", settings)
    assert folder_digests(tmp_path / "out") == folder_digests(tmp_path / "clean")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clean", "corpus.txt", "out"]


def kill_workers():
    for child in multiprocessing.active_children():
        os.kill(child.pid, signal.SIGKILL)


def test_a_killed_worker_is_replaced(tokenizer, text_file, tmp_path):
    killed = []

    def kill_once(*state):
        if not killed:
            killed.append(kill_workers())

    text_file.write_text(make_text(3000))
    settings = config(workers=2, task_bytes=5000)
    prepare([str(text_file)], tokenizer, tmp_path / "out", settings, kill_once)
    prepare([str(text_file)], tokenizer, tmp_path / "clean", config(task_bytes=5000))
    assert folder_digests(tmp_path / "out") == folder_digests(tmp_path / "clean")


def test_a_task_that_always_dies_is_a_clear_error(tokenizer, text_file, tmp_path, monkeypatch):
    monkeypatch.setattr(pieces, "_prepare_in_worker", die)
    with pytest.raises(
        UserError, match=r"the process of piece \d \(.*corpus.txt, bytes .* killed 3 times"
    ):
        prepare([str(text_file)], tokenizer, tmp_path / "out", config(workers=2, task_bytes=20_000))
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.txt"]


def die(task):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_run_leaves_no_process_and_goes_on(tokenizer, text_file, tmp_path):
    tokenizer.save(tmp_path / "tokenizer")
    text_file.write_text(make_text(2000))
    words = [text_file, "--tokenizer", tmp_path / "tokenizer", "--out", tmp_path / "out", "--set"]
    words += ["workers=2", "task_bytes=3000", "heldout_prob=0.1", "duplicates=exact"]
    tasks = tmp_path / "out.incomplete/tasks"
    command = [sys.executable, "-m", "electra", "prepare", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as running:
        while len(list(tasks.glob("*/task.json"))) < 3:
            assert running.poll() is None
            time.sleep(0.001)
        running.kill()
        # The output ends when every process of the pools has closed it.
        running.stdout.read()
    assert not (tmp_path / "out").exists()
    finished = {path: path.stat().st_mtime_ns for path in tasks.glob("*/task.json")}
    assert len(finished) >= 3
    told = []
    settings = config(task_bytes=3000, duplicates="exact")

    def look(*state):
        told.append({path: path.stat().st_mtime_ns for path in finished})

    prepare([str(text_file)], tokenizer, tmp_path / "out", settings, look)
    assert told[-1] == finished  # not done again
    prepare([str(text_file)], tokenizer, tmp_path / "clean", settings)
    assert folder_digests(tmp_path / "out") == folder_digests(tmp_path / "clean")


@pytest.mark.parametrize("step", ["merge_pieces", "move_shards", "_complete", "rename"])
def test_an_interrupt_in_the_last_step(tokenizer, text_file, tmp_path, monkeypatch, step):
    text_file.write_text(make_text(100) + "\n\n" + make_text(50))
    settings = config(task_bytes=2000, duplicates="exact", write_dropped=True)
    prepare([str(text_file)], tokenizer, tmp_path / "clean", settings)
    assert (tmp_path / "clean/dropped.jsonl").stat().st_size > 0

    def stop(*arguments, **named):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if step == "rename":  # after some of the moves
            moved = []

            def replace(self, target):
                moved.append(target)
                if len(moved) > 12:
                    raise KeyboardInterrupt
                return os.rename(self, target)  # noqa: PTH104

            patch.setattr(Path, "replace", replace)
        else:
            patch.setattr(prepare_module, step, stop)
        with pytest.raises(KeyboardInterrupt):
            prepare([str(text_file)], tokenizer, tmp_path / "out", settings)
    prepare([str(text_file)], tokenizer, tmp_path / "out", settings)
    assert folder_digests(tmp_path / "out") == folder_digests(tmp_path / "clean")


def test_changed_text_and_damaged_tasks_are_done_again(tokenizer, text_file, tmp_path):
    def interrupt(*state):
        if len(list((tmp_path / "out.incomplete/tasks").iterdir())) > 4:
            raise KeyboardInterrupt

    settings = config(task_bytes=3000)
    with pytest.raises(KeyboardInterrupt):
        prepare([str(text_file)], tokenizer, tmp_path / "out", settings, interrupt)
    damaged = next((tmp_path / "out.incomplete/tasks").glob("000001/train-00000.tokens"))
    damaged.write_bytes(bytes(damaged.stat().st_size))
    with pytest.raises(UserError, match="begun with another seed and task_bytes; remove it"):
        prepare([str(text_file)], tokenizer, tmp_path / "out", config(seed=1))
    prepare([str(text_file)], tokenizer, tmp_path / "out", settings)
    prepare([str(text_file)], tokenizer, tmp_path / "clean", settings)
    assert folder_digests(tmp_path / "out") == folder_digests(tmp_path / "clean")
    with pytest.raises(KeyboardInterrupt):
        prepare([str(text_file)], tokenizer, tmp_path / "changed", settings, interrupt_now)
    text_file.write_text(make_text(300, seed=9))
    prepare([str(text_file)], tokenizer, tmp_path / "changed", settings)
    prepare([str(text_file)], tokenizer, tmp_path / "new", settings)
    assert folder_digests(tmp_path / "changed") == folder_digests(tmp_path / "new")


def interrupt_now(*state):
    raise KeyboardInterrupt


def test_shares_of_tasks_give_the_same_bytes(tokenizer, text_file, tmp_path):
    arguments = [str(text_file)], tokenizer, tmp_path / "out", config(task_bytes=3000)
    with pytest.raises(
        UserError, match=r"[\d]+ of [\d]+ pieces are missing .*: 0, 1, 2, .*--finish"
    ):
        finish(*arguments)
    done = [prepare_share(*arguments, (number, 4)) for number in (3, 1, 0)]
    refuse("pieces are missing", lambda: finish(*arguments))
    done.append(prepare_share(*arguments, (2, 4)))
    assert len(list((tmp_path / "out.incomplete/tasks").iterdir())) == sum(done) > 8
    finish(*arguments)
    prepare([str(text_file)], tokenizer, tmp_path / "clean", config(task_bytes=3000))
    assert folder_digests(tmp_path / "out") == folder_digests(tmp_path / "clean")
    with pytest.raises(UserError, match="need files that can be read again, not the pipe -"):
        prepare_share(["-"], tokenizer, tmp_path / "other", config(), (0, 2))


def test_what_a_killed_run_left_is_replaced(tokenizer, text_file, tmp_path):
    prepare([str(text_file)], tokenizer, tmp_path / "clean", config())
    shutil.copytree(tmp_path / "clean", tmp_path / "out.incomplete")
    (tmp_path / "out.incomplete/train-00007.tokens").write_bytes(b"left over")
    with pytest.raises(UserError, match=r"out\.incomplete is in the way; finish or move it"):
        prepare([str(text_file)], tokenizer, tmp_path / "out", config())
    (tmp_path / "out.incomplete" / UNFINISHED).touch()
    prepare([str(text_file)], tokenizer, tmp_path / "out", config())
    assert folder_digests(tmp_path / "out") == folder_digests(tmp_path / "clean")
    assert not (tmp_path / "out.incomplete").exists()


def test_a_second_preparation_leaves_the_first_alone(tokenizer, text_file, tmp_path):
    """Nothing is finished yet, so that the second one finds an empty folder and a lock."""
    arguments = [str(text_file)], tokenizer, tmp_path / "out", config(task_bytes=3000)
    refused = []

    def again(*state):
        if not refused:
            for changed in (config(task_bytes=3000), config(seed=1)):
                refuse("out.incomplete is in use by process", prepare, *arguments[:3], changed)
            refused.append((tmp_path / "out.incomplete" / UNFINISHED).exists())

    prepare(*arguments, again)
    assert refused == [True]
    prepare(*arguments[:2], tmp_path / "clean", arguments[3])
    assert folder_digests(tmp_path / "out") == folder_digests(tmp_path / "clean")
    (tmp_path / "fresh.incomplete").mkdir()
    with hold(tmp_path / "fresh.incomplete" / UNFINISHED):
        with pytest.raises(UserError, match=r"fresh\.incomplete is in use"):
            prepare(*arguments[:2], tmp_path / "fresh", arguments[3])
        assert (tmp_path / "fresh.incomplete" / UNFINISHED).exists()


def test_a_file_whose_name_is_not_utf8(tokenizer, text_file, tmp_path):
    text_file.rename(tmp_path / "caf\udce9.txt")
    manifest = prepare([str(tmp_path)], tokenizer, tmp_path / "out", config())
    assert manifest["source_files"] == ["caf\ufffd.txt"]
    open_shards(tmp_path / "out")


def test_what_the_verbs_wrote_is_no_text(tokenizer, text_file, tmp_path):
    folder = text_file.parent
    first = prepare([str(folder)], tokenizer, folder / "out", config())
    tokenizer.save(folder / "deep/down/vocabulary")
    shutil.copytree(folder / "out", folder / "again.incomplete")
    (folder / "deep/run").mkdir()
    for name in ("config.json", "manifest.json", "results.json"):
        (folder / "deep/run" / name).write_text("{}")
    for number, words in enumerate((str(folder), str(folder / "**/*"))):
        again = prepare([words], tokenizer, tmp_path / f"outside-{number}", config())
        assert again.pop("passed_over") == 4 + number
        assert again == {key: value for key, value in first.items() if key != "passed_over"}
    with pytest.raises(UserError, match="out is a shards folder, not text"):
        prepare([str(folder / "out")], tokenizer, tmp_path / "third", config())


@pytest.mark.parametrize(
    ("name", "content", "changes", "message"),
    [
        ("blank.txt", " \n\n\t\n", {}, "the files hold no text"),
        ("one.txt", "alpha", {}, "the text is a single token"),
        ("no.txt", None, {}, "there is no file"),
        ("a.txt", "alpha", {"shard_tokens": 1 << 40}, "shard_tokens"),
        ("bad.jsonl", '{"text": "alpha"}\n{"txt": "beta"}', {"workers": 2}, "line 2: no column"),
    ],
)
def test_refusals_leave_nothing(tokenizer, tmp_path, name, content, changes, message):
    path = tmp_path / name
    if content:
        path.write_text(content)
    refuse(message, lambda: prepare([str(path)], tokenizer, tmp_path / "out", config(**changes)))
    assert not list(tmp_path.glob("out*"))


def test_damage_is_refused_by_name(tokenizer, text_file, tmp_path):
    whole = tmp_path / "whole"
    prepare([str(text_file)], tokenizer, whole, config(shard_tokens=1000))
    names = [path.name for path in whole.glob("*-*")]
    assert len(names) >= 12
    rng = random.Random(0)
    for name in names:
        path = whole / name
        content = path.read_bytes()
        position = rng.randrange(len(content))
        flipped = bytearray(content)
        flipped[position] ^= 1 << rng.randrange(8)
        for damaged, message in (
            (bytes(flipped), "its sha256 differs from the manifest's"),
            (content[: rng.randrange(len(content))], f"bytes, not {len(content):,}"),
            (content + b"\0", f"bytes, not {len(content):,}"),
        ):
            path.write_bytes(damaged)
            with pytest.raises(UserError, match=f"{name} is damaged: .*{message}"):
                open_shards(whole)
        path.write_bytes(bytes(flipped))
        open_shards(whole, verify=False)  # of several processes one reads every byte
        path.unlink()
        refuse(f"{name} is missing", open_shards, whole)
        path.write_bytes(content)
    open_shards(whole)


def test_flipped_bits_without_a_change_of_the_file(tokenizer, text_file, tmp_path):
    """As a disk does. That all was right is believed for a day, and never by inspect."""
    out = tmp_path / "out"
    prepare([str(text_file)], tokenizer, out, config())
    open_shards(out)
    path, memory = out / "train-00000.tokens", out / "verified.json"
    times = path.stat()
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    refuse("tokens is damaged: its sha256", lambda: open_shards(out))
    facts = json.loads(memory.read_text())
    status = path.stat()
    facts["modified"][path.name] = [status.st_mtime_ns, status.st_ctime_ns]
    memory.write_text(json.dumps(facts))
    open_shards(out)
    refuse("tokens is damaged: its sha256", lambda: open_shards(out, verify="anew"))
    with pytest.raises(SystemExit, match="2"):
        main(["inspect", str(out)])
    os.utime(memory, (0, time.time() - 25 * 3600))
    refuse("tokens is damaged: its sha256", lambda: open_shards(out))


def test_foreign_folders_are_refused(tokenizer, text_file, tmp_path):
    out = tmp_path / "out"
    prepare([str(text_file)], tokenizer, out, config())
    original = (out / "manifest.json").read_text()
    manifest = json.loads(original)
    without_shards = {**manifest, "parts": {**manifest["parts"], "heldout": {"shards": []}}}
    refuse("is not a shards folder (no manifest.json)", lambda: open_shards(tmp_path))
    for content, message in (
        ("{", "manifest.json, line 1: not valid JSON"),
        ("[]", "must be a JSON object"),
        ('{"format": "run", "version": 1, "dtype": 1}', "is not the manifest of a shards folder"),
        (json.dumps({**manifest, "version": 2}), "has format version 2; this electra reads 1"),
        (json.dumps({**manifest, "dtype": "<u4"}), "is damaged: dtype '<u4' is wrong"),
        (json.dumps({**manifest, "parts": {}}), "is damaged: a field is missing"),
        (json.dumps(without_shards), "is damaged: no shard of part heldout"),
    ):
        (out / "manifest.json").write_text(content)
        refuse(message, open_shards, out)
    (out / "manifest.json").write_text(original)
    shutil.rmtree(out / "tokenizer")
    refuse("no tokenizer at", lambda: open_shards(out))
    Tokenizer([*SPECIAL, "alpha"]).save(out / "tokenizer")
    refuse("is not the tokenizer these shards were prepared with", lambda: open_shards(out))


def test_a_shard_without_tokens_is_refused(tokenizer, text_file, tmp_path):
    manifest = prepare([str(text_file)], tokenizer, tmp_path / "out", config())
    (entry,) = manifest["parts"]["heldout"]["shards"]
    for column in ("tokens", "lines", "documents"):
        (tmp_path / f"out/heldout-00000.{column}").write_bytes(b"")
        entry[f"num_{column}"] = 0
        entry["sha256"][column] = hashlib.sha256().hexdigest()
    (tmp_path / "out/manifest.json").write_text(json.dumps(manifest))
    refuse("heldout-00000.tokens is damaged:", lambda: open_shards(tmp_path / "out"))


def test_large_vocabularies_take_four_bytes(tmp_path):
    assert tokens_dtype(65_535) == "<u2"
    assert tokens_dtype(65_536) == "<u4"
    large = Tokenizer([*SPECIAL, *(f"w{number}" for number in range(70_000))])
    path = tmp_path / "a.txt"
    path.write_text("w1 w69999\n\nw68000 w2")
    prepare([str(path)], large, tmp_path / "out", config())
    shards = open_shards(tmp_path / "out")
    assert shards.manifest["dtype"] == "<u4"
    tokens = np.concatenate([shards.train[0].tokens, shards.heldout[0].tokens])
    assert large.tokens(tokens) == ["w1", "w69999", "w68000", "w2"]


@given(
    lengths=st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=4), min_size=1, max_size=12),
    shard_tokens=st.integers(1, 40),
    cut=st.integers(0, 12),
)
@settings(max_examples=60, deadline=None)
def test_batches_do_not_show_in_the_shards(tmp_path_factory, lengths, shard_tokens, cut):
    def write(batches):
        folder = tmp_path_factory.mktemp("writer")
        start = 0
        with ShardWriter(folder, "train", vocab_size=1000, shard_tokens=shard_tokens) as writer:
            for batch in batches:
                sizes = np.array([sum(document) for document in batch], dtype=np.int64)
                lines = np.array([line for document in batch for line in document], dtype=np.int64)
                tokens = np.arange(start, start + sizes.sum(), dtype="<u2")
                writer.write(tokens, lines, sizes)
                start += len(tokens)
            return writer.finish(), folder_digests(folder)

    assert write([lengths]) == write([lengths[:cut], lengths[cut:]])
    entry = write([lengths])[0]
    assert entry["num_documents"] == len(lengths)
    assert all(shard["num_tokens"] >= shard_tokens for shard in entry["shards"][:-1])
