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
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuse

from electra.cli import main
from electra.errors import UserError
from electra.files import UNFINISHED, hold, read_object
from electra.shards import merging, pieces
from electra.shards import prepare as prepare_module
from electra.shards.config import PrepareConfig
from electra.shards.layout import COLUMNS, PARTS
from electra.shards.pieces import hash_documents, heldout_limit
from electra.shards.prepare import finish, prepare, prepare_share
from electra.shards.store import open_shards
from electra.shards.writing import ShardWriter
from electra.text.characters import break_words
from electra.text.documents import Reader
from electra.tokenizing import words as encoder_module
from electra.tokenizing.config import TokenizerConfig
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


@pytest.fixture
def make(tokenizer, text_file, tmp_path):
    """Prepare the text in a folder of this name; return the bytes of its files."""

    def make(name, progress=None, **fields):
        prepare([str(text_file)], tokenizer, tmp_path / name, config(**fields), progress)
        return read_files(tmp_path / name)

    return make


def config(**fields):
    return PrepareConfig(**{"workers": 1, "heldout_prob": 0.1, **fields})


def read_files(folder):
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def interrupt(*state, **named):
    raise KeyboardInterrupt


def documents_in(shards):
    """Documents as lists of lines of ids, read back by the offsets alone."""
    found = []
    for shard in shards:
        borders = [*shard.documents.tolist(), len(shard.tokens)]
        ends = [*shard.lines.tolist(), len(shard.tokens)]
        assert borders[0] == ends[0] == 0
        assert set(borders) <= set(ends)
        lines = [(at, shard.tokens[at:end].tolist()) for at, end in itertools.pairwise(ends)]
        assert all(line for _, line in lines)
        for start, stop in itertools.pairwise(borders):
            found.append([line for at, line in lines if start <= at < stop])
    return found


@pytest.mark.parametrize("shard_tokens", [1 << 26, 500, 1])
def test_tokens_in_are_tokens_in_the_shards(
    tokenizer, text_file, tmp_path, shard_tokens, small_batches
):
    out = tmp_path / "out"
    manifest = prepare([str(text_file)], tokenizer, out, config(shard_tokens=shard_tokens))
    documents = list(Reader().read([text_file]))
    expected = [tokenizer.encode_batch(map(break_words, lines)) for lines in documents]
    is_heldout = hash_documents(["\n".join(lines) for lines in documents], 0) < heldout_limit(0.1)
    shards = open_shards(out)
    for part, is_in_part in (("train", ~is_heldout), ("heldout", is_heldout)):
        found = documents_in(getattr(shards, part))
        assert found == list(itertools.compress(expected, is_in_part))
        entry = manifest["parts"][part]
        assert entry["num_documents"] == len(found)
        assert entry["num_lines"] == sum(map(len, found))
        assert entry["num_tokens"] == sum(len(line) for lines in found for line in lines)
        assert entry["num_tokens"] == sum(shard["num_tokens"] for shard in entry["shards"])
    assert shards.manifest == manifest
    assert manifest["heldout"] == "documents chosen by a hash of (seed, text)"
    num_unknown = sum(line.count(tokenizer.unk_id) for lines in expected for line in lines)
    assert manifest["unk_tokens"] == num_unknown == text_file.read_text().count("\u0416")
    assert manifest["text"]["documents"] == len(documents) == 300
    assert manifest["source_files"] == ["corpus.txt"]
    plain = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
    assert shards.digest == hashlib.sha256(plain.encode()).hexdigest()
    sizes = [len(shard.tokens) for shard in shards.train]
    if shard_tokens == 500:
        assert len(sizes) > 3
        assert all(500 <= size < 1500 for size in sizes[:-1])
    if shard_tokens == 1:
        assert len(sizes) == manifest["parts"]["train"]["num_documents"]


def test_any_number_of_workers_gives_the_same_bytes(make, tmp_path, small_batches):
    one, *more = (make(str(workers), workers=workers, shard_tokens=2000) for workers in (1, 2, 3))
    assert more == [one, one]
    assert len(one) > 10
    content = (tmp_path / "1/manifest.json").read_text()
    assert str(tmp_path) not in content
    assert "workers" not in content


ODD = "abE é\u0301ǆİΣς,.-_[]中한\x00\x0c\x85\u00a0\u200d\u2028😀"


@pytest.fixture(scope="module", params=[(True, None), (True, False), (False, None)])
def encoder(request, tokenizer):
    """An encoder that remembers the words of the texts before."""
    lowercase, strip_accents = request.param
    tokens = tokenizer.tokens_by_id
    return WordEncoder(Tokenizer(tokens, lowercase=lowercase, strip_accents=strip_accents))


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=200)
       | st.text(st.sampled_from(ODD), max_size=20))  # fmt: skip
def test_words_one_by_one_are_the_text_as_a_whole(encoder, text):
    tokenizer, batch = encoder.tokenizer, encoder.encode_documents([f"hello {text}"])
    assert batch.tokens.tolist() == tokenizer.encode(break_words(f"hello {text}"))


@pytest.mark.parametrize("most", [encoder_module.MAX_REMEMBERED_WORDS, 3])
def test_words_that_are_remembered_or_forgotten_change_nothing(tokenizer, monkeypatch, most):
    monkeypatch.setattr(encoder_module, "MAX_REMEMBERED_WORDS", most)
    text = " ".join(f"alpha{number} beta" for number in range(2000))
    found = WordEncoder(tokenizer).encode_documents([text, text]).tokens.tolist()
    assert found == 2 * tokenizer.encode(text)


def test_heldout_share_follows_the_hash():
    texts = [f"document {number}" for number in range(20_000)]
    hashes = hash_documents(texts, 3)
    share = (hashes < heldout_limit(0.05)).mean()
    assert abs(share - 0.05) < 4 * np.sqrt(0.05 * 0.95 / 20_000)
    assert np.array_equal(hashes[::-1], hash_documents(texts[::-1], 3))
    assert not np.intersect1d(hashes, hash_documents(texts, 4)).size


def test_what_is_held_out_stays_held_out(make, text_file, tmp_path):
    """The corpus grows, is reordered, is read in other parts, and has duplicates."""
    documents = make_text(300).split("\n\n")
    texts = {"first": documents, "reordered": documents[::-1], "twice": documents * 2}
    texts["grown"] = [*documents, *make_text(200, seed=5).split("\n\n")]
    heldout = {}
    for name, each in texts.items():
        text_file.write_text("\n\n".join(each))
        make(name, task_bytes=3000)
        shards = open_shards(tmp_path / name)
        heldout[name] = [str(lines) for lines in documents_in(shards.heldout)]
        assert not set(heldout[name]) & {str(lines) for lines in documents_in(shards.train)}
    assert heldout["reordered"] == heldout["first"][::-1]
    assert heldout["grown"][: len(heldout["first"])] == heldout["first"]
    assert heldout["twice"] == heldout["first"] * 2
    assert len(heldout["first"]) > 10


WITHOUT_TOKENS = "\1\1\n\nalpha\n\1\n\nbeta\n\n\1"


@pytest.mark.parametrize(
    ("text", "prob", "rule", "train", "heldout"),
    [
        ("alpha\n\nbeta\n\nzeta", 0.0, "the document with the smallest hash", None, "beta"),
        ("alpha\n\nbeta\n\nzeta", 0.999999, "the document with the smallest hash", None, "beta"),
        ("alpha\n\nalpha\n\nalpha", 0.1, "the first of equal", "alpha alpha", "alpha"),
        ("alpha\n\nalpha\n\nalpha", 0.999999, "the first of equal", "alpha alpha", "alpha"),
        ("alpha\nbeta\nzeta", 0.1, "the end of the only document", "alpha beta", "zeta"),
        ("alpha\nbeta\nzeta", 0.9, "the end of the only document", "alpha", "beta zeta"),
        ("alpha beta", 0.1, "the end of the only document", None, None),
        (WITHOUT_TOKENS, 0.0, "the document with the smallest hash", "alpha", "beta"),
    ],
)
def test_no_part_stays_empty(
    tokenizer, make, text_file, tmp_path, text, prob, rule, train, heldout
):
    text_file.write_text(text)
    make("out", heldout_prob=prob)
    shards = open_shards(tmp_path / "out")
    assert shards.manifest["heldout"].startswith(rule)
    parts = [documents_in(part) for part in (shards.train, shards.heldout)]
    parts = [[*itertools.chain(*itertools.chain(*documents))] for documents in parts]
    assert all(parts)
    assert sorted(itertools.chain(*parts)) == sorted(tokenizer.encode(text))
    for ids, words in zip(parts, (train, heldout), strict=True):
        assert words is None or ids == tokenizer.encode(words)


def test_progress_is_told(make, text_file, tmp_path):
    told = []
    make("out", lambda *state: told.append(state), task_bytes=3000)
    size, parts = text_file.stat().st_size, open_shards(tmp_path / "out").manifest["parts"]
    assert len(told) > 5
    assert told == sorted(told)
    assert told[-1] == (size, size, sum(parts[part]["num_tokens"] for part in PARTS))


def test_standard_input(tokenizer, make, text_file, tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text_file.read_bytes())))
    prepare(["-"], tokenizer, tmp_path / "piped", config(), lambda *state: told.append(state))
    assert told[0][1] is None
    assert told[-1][0] == told[-1][1]
    piped, named = read_files(tmp_path / "piped"), make("named")
    assert piped.pop("manifest.json") != named.pop("manifest.json")
    assert piped == named


@pytest.mark.parametrize("workers", [1, 2])
def test_an_interrupted_preparation_goes_on(make, tmp_path, workers):
    given = {"workers": workers, "task_bytes": 5000}
    with pytest.raises(KeyboardInterrupt):
        make("out", interrupt, **given)
    assert not multiprocessing.active_children()
    assert not (tmp_path / "out").exists()
    assert make("out", **given) == make("clean", **given)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clean", "corpus.txt", "out"]


def test_a_killed_worker_is_replaced(make, text_file):
    killed = []

    def kill_once(*state):
        if not killed:
            killed.append([child.kill() for child in multiprocessing.active_children()])

    text_file.write_text(make_text(1000))
    found = make("out", kill_once, workers=2, task_bytes=5000)
    assert len(killed[0]) > 0
    assert found == make("clean", task_bytes=5000)


def test_a_task_that_always_dies_is_a_clear_error(make, tmp_path, monkeypatch):
    monkeypatch.setattr(pieces, "_prepare_in_worker", die)
    says = r"the process of piece \d \(.*corpus.txt, bytes .* killed 3 times"
    with pytest.raises(UserError, match=says):
        make("out", workers=2, task_bytes=20_000)
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.txt"]


def die(task):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_run_leaves_no_process_and_goes_on(tokenizer, make, text_file, tmp_path):
    tokenizer.save(tmp_path / "tokenizer")
    text_file.write_text(make_text(2000))
    given = {"task_bytes": 3000, "duplicates": "exact"}
    words = [text_file, "--tokenizer", tmp_path / "tokenizer", "--out", tmp_path / "out", "--set"]
    words += ["workers=2", "heldout_prob=0.1", *(f"{key}={value}" for key, value in given.items())]
    tasks = tmp_path / "out.incomplete/tasks"
    command = [sys.executable, "-m", "electra", "prepare", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as running:
        while len(list(tasks.glob("*/task.json"))) < 3:
            assert running.poll() is None
            time.sleep(0.001)
        running.kill()
        running.stdout.read()  # ends when every process of the pools has closed it
    assert not (tmp_path / "out").exists()
    finished = {path: path.stat().st_mtime_ns for path in tasks.glob("*/task.json")}
    assert len(finished) >= 3
    told = []

    def look(*state):
        told.append({path: path.stat().st_mtime_ns for path in finished})

    found = make("out", look, **given)
    assert told[-1] == finished  # not done again
    assert found == make("clean", **given)


@pytest.mark.parametrize("step", ["merge_pieces", "move_shards", "_complete", "rename"])
def test_an_interrupt_in_the_last_step(make, text_file, tmp_path, monkeypatch, step):
    text_file.write_text(make_text(100) + "\n\n" + make_text(50))
    given = {"task_bytes": 2000, "duplicates": "exact", "write_dropped": True}
    clean = make("clean", **given)
    assert clean["dropped.jsonl"]
    moved = []

    def replace(self, target):
        if "tasks" not in target.parts:
            moved.append(target)
        return interrupt() if len(moved) > 22 else os.rename(self, target)  # noqa: PTH104

    with monkeypatch.context() as patch:
        if step == "rename":  # after some of the moves
            patch.setattr(Path, "replace", replace)
        else:
            patch.setattr(prepare_module, step, interrupt)
        with pytest.raises(KeyboardInterrupt):
            make("out", **given)
    assert make("out", **given) == clean


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: os.truncate(folder / "plan.json", 0),
        lambda folder: os.truncate(folder / "manifest.json", 0),
        lambda folder: os.truncate(folder / "moves.json", 0),
        lambda folder: os.truncate(folder / "heldout-00000.tokens", 0),
        lambda folder: os.truncate(folder / "train-00000.lines", 4),
        lambda folder: os.truncate(folder / "tokenizer/tokenizer.json", 0),
        lambda folder: (folder / "train-00001.documents").unlink(),
        lambda folder: os.truncate(folder / "tasks/000002/train-00000.tokens", 0),
    ],
    ids=range(8),
)
def test_what_the_last_step_left_damaged_is_written_again(
    make, text_file, tmp_path, monkeypatch, damage
):
    """As by a disk that does not keep what it promised; some shards are moved already."""
    text_file.write_text(make_text(100) + "\n\n" + make_text(50))
    given = {"task_bytes": 2000, "duplicates": "exact"}
    clean = make("clean", **given)
    with monkeypatch.context() as patch:
        patch.setattr(prepare_module, "move_shards", interrupt)
        with pytest.raises(KeyboardInterrupt):
            make("out", **given)
    folder = tmp_path / "out.incomplete"
    for after, before in [*read_object(folder / "moves.json").items()][:2]:
        for column in COLUMNS:
            (folder / f"{before}.{column}").rename(folder / f"{after}.{column}")
    damage(folder)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*out.incomplete is damaged; its shards are written")
        assert make("out", **given) == clean


def test_pieces_stay_if_the_text_cannot_be_read_again(make, text_file, tmp_path, monkeypatch):
    text_file.write_text(make_text(30) + "\n\n" + make_text(10))
    given = {"duplicates": "exact", "write_dropped": True}
    with monkeypatch.context() as patch:

        def fail(*_):
            raise UserError("a hub does not answer")

        patch.setattr(merging, "read_texts", fail)
        refuse("a hub does not answer", make, "out", **given)
    clean = make("clean", **given)
    assert list((tmp_path / "out.incomplete/tasks").iterdir())
    assert make("out", **given) == clean


def test_what_was_merged_is_kept_for_its_own_text(make, text_file, tmp_path, monkeypatch):
    """Its pieces are gone: the shards are all that is left of the work."""
    clean, text = make("clean"), text_file.read_bytes()
    times = text_file.stat()
    with monkeypatch.context() as patch:
        patch.setattr(
            prepare_module, "move_shards", lambda folder: interrupt(merging.move_shards(folder))
        )
        with pytest.raises(KeyboardInterrupt):
            make("out")
    refuse("was started with different seed", make, "out", seed=1)
    text_file.write_text(make_text(9, seed=9))
    refuse("holds the shards of another text", make, "out")
    text_file.write_bytes(text)
    os.utime(text_file, ns=(times.st_atime_ns, times.st_mtime_ns))
    (tmp_path / "out").mkdir()
    (tmp_path / "out/other").touch()
    refuse("out exists already", make, "out")
    shutil.rmtree(tmp_path / "out")
    (tmp_path / "out").symlink_to("nothing")
    refuse("out exists already", make, "out")
    (tmp_path / "out").unlink()
    assert make("out") == clean


def test_changed_text_and_damaged_tasks_are_done_again(make, text_file, tmp_path):
    tasks = tmp_path / "out.incomplete/tasks"

    def interrupt_later(*state):
        return interrupt() if len(list(tasks.iterdir())) > 4 else None

    with pytest.raises(KeyboardInterrupt):
        make("out", interrupt_later, task_bytes=3000)
    damaged = tasks / "000001/train-00000.tokens"
    damaged.write_bytes(bytes(damaged.stat().st_size))
    refuse("started with different seed, task_bytes; remove it", make, "out", seed=1)
    assert make("out", task_bytes=3000) == make("clean", task_bytes=3000)
    with pytest.raises(KeyboardInterrupt):
        make("changed", interrupt, task_bytes=3000)
    text_file.write_text(make_text(300, seed=9))
    assert make("changed", task_bytes=3000) == make("new", task_bytes=3000)


def test_shares_of_tasks_give_the_same_bytes(tokenizer, make, text_file, tmp_path):
    arguments = [str(text_file)], tokenizer, tmp_path / "out", config(task_bytes=3000)
    refuse("pieces are missing ... submit all shares (--task I/N) again", finish, *arguments)
    tasks = tmp_path / "out.incomplete/tasks"
    for left, age in ((tasks / "0.old.incomplete", 1e6), (tasks / "0.new.incomplete", 0)):
        left.mkdir(parents=True)  # by a process that was killed, and by one that is at work
        os.utime(left, (time.time() - age,) * 2)
    done = [prepare_share(*arguments, (number, 4)) for number in (3, 1, 0)]
    assert [path.name for path in tasks.glob("*.incomplete")] == ["0.new.incomplete"]
    left.rmdir()
    refuse("submit --task I/4 with I=2 again", finish, *arguments)
    done.append(prepare_share(*arguments, (2, 4)))
    for piece in (0, done[0] + done[1]):  # one of the first share and one of the third
        shutil.rmtree(tasks / f"{piece:06}")
    refuse("2 of ... submit --task I/4 with I=0,2 again, or leave out --finish", finish, *arguments)
    for number in (2, 0):
        prepare_share(*arguments, (number, 4))
    assert len(list(tasks.iterdir())) == sum(done) > 8
    finish(*arguments)
    assert read_files(tmp_path / "out") == make("clean", task_bytes=3000)
    for name in ("begun.incomplete/plan.json.5f", "taken.incomplete/text"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    assert prepare_share(arguments[0], tokenizer, tmp_path / "begun", config(), (0, 99)) <= 1
    taken = arguments[0], tokenizer, tmp_path / "taken", config(), (0, 2)
    refuse("taken.incomplete already exists and was not written by", prepare_share, *taken)
    pipe = ["-"], tokenizer, tmp_path / "other", config(), (0, 2)
    refuse("need files that can be read again, not the pipe -", prepare_share, *pipe)


def test_what_a_killed_run_left_is_replaced(make, tmp_path):
    clean, left = make("clean"), tmp_path / "out.incomplete"
    shutil.copytree(tmp_path / "clean", left)
    (left / "train-00007.tokens").write_bytes(b"left over")
    refuse("out.incomplete already exists and was not written by this command; remove", make, "out")
    (left / UNFINISHED).touch()
    assert make("out") == clean
    assert not left.exists()


def test_a_second_preparation_leaves_the_first_alone(make, tmp_path):
    """Nothing is finished yet, so that the second one finds an empty folder and a lock."""
    refused = []

    def again(*state):
        if not refused:
            for changed in ({"task_bytes": 3000}, {"seed": 1}):
                refuse("out.incomplete is in use by process", make, "out", **changed)
            refused.append((tmp_path / "out.incomplete" / UNFINISHED).exists())

    assert make("out", again, task_bytes=3000) == make("clean", task_bytes=3000)
    assert refused == [True]
    (tmp_path / "fresh.incomplete").mkdir()
    with hold(tmp_path / "fresh.incomplete" / UNFINISHED):
        refuse("fresh.incomplete is in use", make, "fresh")
        assert (tmp_path / "fresh.incomplete" / UNFINISHED).exists()


def test_a_file_whose_name_is_not_utf8(tokenizer, text_file, tmp_path):
    text_file.rename(tmp_path / "caf\udce9.txt")
    prepare([str(tmp_path)], tokenizer, tmp_path / "out", config())
    assert open_shards(tmp_path / "out").manifest["source_files"] == ["caf\ufffd.txt"]


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
        assert again == first | {"passed_over": 4 + number}
    third = [str(folder / "out")], tokenizer, tmp_path / "third", config()
    refuse("out is a shards folder, not text", prepare, *third)


@pytest.mark.parametrize(
    ("name", "content", "changes", "message"),
    [
        ("blank.txt", " \n\n\t\n", {}, "the files hold no text"),
        ("one.txt", "alpha", {}, "the text is a single token"),
        ("a.txt", "alpha", {"shard_tokens": 1 << 40}, "shard_tokens"),
        ("bad.jsonl", '{"text": "alpha"}\n{"txt": "beta"}', {"workers": 2}, "line 2: no column"),
    ],
)
def test_refusals_leave_nothing(tokenizer, tmp_path, name, content, changes, message):
    path = tmp_path / name
    path.write_text(content)
    refuse(message, prepare, [str(path)], tokenizer, tmp_path / "out", config(**changes))
    assert not list(tmp_path.glob("out*"))


def test_damage_is_refused_by_name(make, tmp_path):
    whole, rng = tmp_path / "whole", random.Random(0)
    names = [name for name in make("whole", shard_tokens=1000) if "-" in name]
    assert len(names) >= 12
    for name in names:
        path = whole / name
        content = path.read_bytes()
        flipped = bytearray(content)
        flipped[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(flipped)
        open_shards(whole, verify=False)  # of several processes one reads every byte
        for damaged, message in (
            (flipped, "its sha256 differs from the manifest's"),
            (content[: rng.randrange(len(content))], f"bytes, not {len(content):,}"),
            (content + b"\0", f"bytes, not {len(content):,}"),
        ):
            path.write_bytes(damaged)
            with pytest.raises(UserError, match=f"{name} is damaged: .*{message}"):
                open_shards(whole)
        path.unlink()
        refuse(f"{name} is missing", open_shards, whole)
        path.write_bytes(content)
    open_shards(whole)


def test_flipped_bits_without_a_change_of_the_file(make, tmp_path):
    """As a disk does. That all was right is believed for a day, and never by inspect."""
    out, says = tmp_path / "out", "tokens is damaged: its sha256"
    make("out")
    open_shards(out)
    path, memory = out / "train-00000.tokens", out / "verified.json"
    times = path.stat()
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    refuse(says, open_shards, out)
    facts, status = json.loads(memory.read_text()), path.stat()
    facts["modified"][path.name] = [status.st_mtime_ns, status.st_ctime_ns]
    memory.write_text(json.dumps(facts))
    open_shards(out)
    refuse(says, open_shards, out, verify="anew")
    with pytest.raises(SystemExit, match="2"):
        main(["inspect", str(out)])
    os.utime(memory, (0, time.time() - 25 * 3600))
    refuse(says, open_shards, out)


def test_foreign_folders_are_refused(make, tmp_path):
    out = tmp_path / "out"
    original = make("out")["manifest.json"]
    manifest = json.loads(original)
    assert manifest.pop("sha256").keys() == {"manifest.json"}
    nothing = {"num_tokens": 0, "num_lines": 0, "num_documents": 0, "shards": []}
    without_shards = {**manifest, "parts": {**manifest["parts"], "heldout": nothing}}
    refuse("is not a shards folder (no manifest.json)", lambda: open_shards(tmp_path))
    for content, message in (
        ("{", "manifest.json, line 1: not valid JSON"),
        ('{"format": "run", "version": 1, "dtype": 1}', "is not the manifest of a shards folder"),
        (
            json.dumps({**manifest, "version": 2}),
            "has format 2; this version of electra reads format 1: prepare",
        ),
        (json.dumps({**manifest, "dtype": "<u4"}), "is damaged: dtype '<u4' is wrong"),
        (json.dumps({**manifest, "parts": {}}), "manifest.json: parts lacks 'heldout', 'train'"),
        (json.dumps({**manifest, "text": 5}), "manifest.json: text must be a JSON object, not 5"),
        (json.dumps(manifest).replace('"num_lines": ', '"num_lines": -'), "must be a whole number"),
        (json.dumps(without_shards), "is damaged: no shard of part heldout"),
    ):
        (out / "manifest.json").write_text(content)
        refuse(message, open_shards, out)
    (entry,) = manifest["parts"]["heldout"]["shards"]
    for column in ("tokens", "lines", "documents"):
        (out / f"heldout-00000.{column}").write_bytes(b"")
        entry[f"num_{column}"] = 0
        entry["sha256"][column] = hashlib.sha256().hexdigest()
    (out / "manifest.json").write_text(json.dumps(manifest))
    refuse("num_tokens must be a whole number >= 1, not 0", open_shards, out)
    (out / "manifest.json").write_bytes(original)
    shutil.rmtree(out / "tokenizer")
    refuse("no tokenizer at", lambda: open_shards(out))
    Tokenizer([*SPECIAL, "alpha"]).save(out / "tokenizer")
    refuse("is not the tokenizer these shards were prepared with", lambda: open_shards(out))


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


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=4), min_size=1, max_size=12),
    shard_tokens=st.integers(1, 40),
    cut=st.integers(0, 12),
)
def test_batches_do_not_show_in_the_shards(tmp_path_factory, lengths, shard_tokens, cut):
    def write(*batches):
        folder = tmp_path_factory.mktemp("writer")
        start = 0
        writer = ShardWriter(folder, "train", vocab_size=1000, shard_tokens=shard_tokens)
        for batch in batches:
            sizes = np.array([sum(document) for document in batch], dtype=np.int64)
            lines = np.array([line for document in batch for line in document], dtype=np.int64)
            writer.write(np.arange(start, start + sizes.sum(), dtype="<u2"), lines, sizes)
            start += sizes.sum()
        return writer.finish(), read_files(folder)

    whole = write(lengths)
    assert whole == write(lengths[:cut], lengths[cut:])
    assert whole[0]["num_documents"] == len(lengths)
    assert all(shard["num_tokens"] >= shard_tokens for shard in whole[0]["shards"][:-1])
