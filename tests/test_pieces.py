"""Pieces: ranges of files are the files, dropped documents are named, mixtures keep shares."""

import gzip
import itertools
import json
import lzma
import resource
from collections import Counter
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuse

from electra.pretraining.loop import pretrain
from electra.shards import cleaning, store
from electra.shards.config import ExamplesConfig, PrepareConfig
from electra.shards.examples import Examples
from electra.shards.order import MIXED_ROWS
from electra.shards.pieces import list_pieces
from electra.shards.prepare import prepare
from electra.shards.store import open_shards
from electra.text import documents
from electra.text.documents import Reader, close_last
from electra.tokenizing.config import TokenizerConfig
from electra.tokenizing.tokenizer import Tokenizer
from electra.tokenizing.words import TokenBatch

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train([" ".join(WORDS)] * 5, TokenizerConfig(vocab_size=80))


def read_ranges(path, borders, border="blank"):
    reader = Reader(border=border)
    found = []
    for start, stop in itertools.pairwise([*borders, None]):
        found += reader.read_range(path, start, stop, reader.range_border(path))
    close_last()
    return found, reader.counts


COMPRESS = {".gz": gzip.compress, ".xz": lzma.compress}


def write_text(folder, name, text):
    """Write a text, compressed as its name says."""
    path = folder / name
    path.write_bytes(COMPRESS.get(path.suffix, bytes)(text.encode()))
    return path


@settings(max_examples=150, deadline=None)
@given(
    text=st.lists(
        st.sampled_from(["\n", "\r\n", "\n\n", " ", "a", "bc", "é", "中文", "\t\n", "\r"]),
        max_size=60,
    ).map("".join),
    borders=st.sets(st.integers(1, 120), max_size=6).map(sorted),
    border=st.sampled_from(["blank", "line", "auto"]),
    suffix=st.sampled_from(["", ".xz"]),
)
def test_ranges_are_the_file(tmp_path_factory, text, borders, border, suffix):
    path = write_text(tmp_path_factory.mktemp("ranges"), f"a.txt{suffix}", text)
    with patch.object(documents, "LONG_DOCUMENT_CHARS", 20):
        reader = Reader(border=border)
        expected, whole = list(reader.read([path])), reader.counts
        found, counts = read_ranges(path, [0, *borders], border)
    assert found == expected
    assert (counts.documents, counts.files_of_lines) == (whole.documents, whole.files_of_lines)
    assert (counts.text_bytes, counts.forms) == (whole.text_bytes, whole.forms)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_documents_without_borders_are_cut_but_not_lost(tmp_path, monkeypatch, suffix):
    monkeypatch.setattr(documents, "WINDOW", 50)
    for text in ("ab cde " * 100, "x\ny " * 100, "é" * 300, "x" * 300):
        path = write_text(tmp_path, f"a.txt{suffix}", text)
        found, counts = read_ranges(path, range(0, 700, 90))
        assert "".join("".join(itertools.chain(*found)).split()) == "".join(text.split())
        assert len(found) > 2
        assert counts.invalid_sequences == 0


def test_a_record_in_a_range_is_named_by_its_place(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": f"alpha {n}"}) + "\n" for n in range(50)) + "{}\n")
    refuse("after byte 700: no column 'text'", read_ranges, path, [0, 700])


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_giant_records_are_not_cut(tmp_path, monkeypatch, suffix, newline):
    monkeypatch.setattr(documents, "WINDOW", 50)
    monkeypatch.setattr(documents, "BLOCK_BYTES", 64)
    sizes = [1, 100, 2, 30, 61, 9, 3, 150, 5]
    text = "".join(json.dumps({"text": "ab " * size}) + newline for size in sizes)
    path = write_text(tmp_path, f"a.jsonl{suffix}", text)
    expected, _ = read_ranges(path, [0])
    assert [len(" ".join(document)) for document in expected] == [3 * size - 1 for size in sizes]
    for step in (1, 7, 90, 1234):
        found, counts = read_ranges(path, range(0, len(text), step))
        assert (found, counts.text_bytes) == (expected, len(text)), step


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A Parquet file with row groups of 1 to 40 rows, of which one is larger than many a range."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path_factory.mktemp("table") / "a.parquet"
    texts = iter([f"{' '.join(WORDS)} {n} " * (n % 5 + 1) for n in range(500)])
    schema = pyarrow.schema([("n", pyarrow.int64()), ("text", pyarrow.string())])
    sizes = itertools.cycle([1, 40, 7, 12])
    with parquet.ParquetWriter(path, schema, compression="none") as writer:
        while rows := [*itertools.islice(texts, next(sizes))]:
            writer.write_table(pyarrow.table({"n": range(len(rows)), "text": rows}, schema))
    return path


@settings(max_examples=60, deadline=None)
@given(borders=st.sets(st.integers(1, 80_000), max_size=12).map(sorted))
def test_row_groups_in_ranges_are_the_table(table, borders):
    reader = Reader()
    expected, whole = list(reader.read([table])), reader.counts
    assert len(expected) == 500
    found, counts = read_ranges(table, [0, *borders])
    assert found == expected
    assert (counts.text_bytes, counts.forms) == (whole.text_bytes, whole.forms)


def test_a_large_table_is_several_pieces(table, tokenizer, tmp_path):
    config = PrepareConfig(task_bytes=10_000, heldout_prob=0.1, workers=1)
    pieces = list_pieces([table], config, "tokenizer")
    assert len(pieces) == -(-table.stat().st_size // 10_000) > 5
    content = []
    for workers in (1, 2):
        out = tmp_path / str(workers)
        manifest = prepare([str(table)], tokenizer, out, replace(config, workers=workers))
        assert manifest["text"]["documents"] == 500
        content.append({path.name: path.read_bytes() for path in out.glob("*-*")})
    assert content[0] == content[1]
    packed = tmp_path / "a.parquet.gz"  # whose row groups cannot be reached
    packed.write_bytes(gzip.compress(table.read_bytes()))
    assert len(list_pieces([packed], config, "tokenizer")) == 1


def test_pieces_stay_when_the_corpus_grows(tmp_path):
    paths = [tmp_path / f"{number}.txt" for number in range(8)]
    for number, path in enumerate(paths):
        path.write_text("x" * (2500 if number == 3 else 300))

    def list_some(paths):
        return list_pieces(paths, PrepareConfig(task_bytes=1000), "tokenizer")

    pieces, fewer = list_some(paths), list_some(paths[:-1])
    assert [len(piece.ranges) for piece in pieces] == [3, 1, 1, 1, 3, 1]
    cuts = [(each.ranges[0].start, each.ranges[0].stop) for each in pieces[1:4]]
    assert cuts == [(0, 1000), (1000, 2000), (2000, None)]
    assert sum(piece.source_bytes for piece in pieces) == 2500 + 7 * 300
    digests = [piece.digest for piece in pieces]
    assert [piece.digest for piece in fewer] == digests[: len(fewer)]
    paths[3].write_text("y" * 2500)
    is_same = [piece.digest == old for piece, old in zip(list_some(paths), digests, strict=True)]
    assert is_same == [True, *[False] * 3, True, True]


def make_documents(number, seed=0, length=80):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, length)) for _ in range(number)]


def prepare_texts(texts, tokenizer, folder, name, **fields):
    """Return the manifest, the sorted documents of the shards, and what was dropped."""
    path = folder / f"{name}.txt"
    path.write_text("\n\n".join(texts))
    fields = {"workers": 1, "heldout_prob": 0.1, "task_bytes": 5000, **fields}
    manifest = prepare([str(path)], tokenizer, folder / name, PrepareConfig(**fields))
    shards = open_shards(folder / name)
    parts = (np.split(s.tokens, s.documents[1:]) for s in (*shards.train, *shards.heldout))
    dropped = folder / name / "dropped.jsonl"
    lines = dropped.read_text().splitlines() if dropped.exists() else []
    kept = sorted(tokenizer.decode(ids) for part in parts for ids in part)
    return manifest, kept, [json.loads(line) for line in lines]


def test_duplicates_are_counted_and_on_request_dropped(tokenizer, tmp_path):
    pytest.importorskip("rensa")
    texts = make_documents(60)
    similar = [text.replace(text.split()[40], "omicron", 1) for text in texts[:8]]
    given = [*texts, *texts[:10], *similar], tokenizer, tmp_path
    manifest, kept, _ = prepare_texts(*given, "keep")
    assert (manifest["duplicates"], manifest["dropped"], len(kept)) == (10, {}, 78)
    manifest, kept, dropped = prepare_texts(*given, "a", duplicates="exact", write_dropped=True)
    assert (manifest["dropped"], len(kept)) == ({"duplicate": 10}, 68)
    assert dropped == [{"reason": "duplicate", "text": text} for text in texts[:10]]
    near = {"duplicates": "near", "write_dropped": True}
    manifest, kept, dropped = prepare_texts(*given, "near", **near)
    assert manifest["dropped"] == {"duplicate": 10, "near duplicate": 8}
    assert Counter(each["reason"] for each in dropped) == manifest["dropped"]
    assert kept == sorted(texts)
    nothing = (prepare_texts, *given, "nothing")
    refuse("only white space or what is dropped", *nothing, duplicates="near", min_chars=10_000)


def test_a_run_of_tokens_has_the_same_hash_wherever_it_stands():
    words = np.arange(7, dtype=np.uint16)
    batch = TokenBatch(np.tile(words, 3), np.full(3, 7), np.full(3, 7))
    hashes, _ = cleaning.hash_runs(batch, 5, whole=False)
    assert len({tuple(each) for each in hashes.reshape(3, 7)}) == 1


def test_filters_say_what_they_drop(tokenizer, tmp_path):
    texts = make_documents(40)
    corpus = [*texts, "alpha", " ".join(texts[:4]), " ".join(WORDS * 20), "beta"]
    limits = {"min_chars": 10, "max_chars": 1500, "max_repetition": 0.5, "write_dropped": True}
    manifest, kept, dropped = prepare_texts(corpus, tokenizer, tmp_path, "filtered", **limits)
    assert manifest["dropped"] == {"repetition": 1, "too long": 1, "too short": 2}
    assert manifest["text"]["documents"] == 44
    written = open_shards(tmp_path / "filtered")
    parts = (*written.train, *written.heldout)
    unknown = sum(np.count_nonzero(part.tokens == tokenizer.unk_id) for part in parts)
    assert manifest["unk_tokens"] == unknown
    assert kept == sorted(texts)
    assert sorted(each["text"] for each in dropped) == sorted(corpus[40:])
    nothing = (prepare_texts, corpus, tokenizer, tmp_path, "nothing")
    refuse("only white space or what is dropped", *nothing, min_chars=10_000)
    assert not list(tmp_path.glob("nothing*/"))


def test_the_language_filter(tokenizer, tmp_path):
    pytest.importorskip("py3langid")
    english = "The ship left the harbour in the morning, and nobody knew where she was going."
    german = "Das Schiff verließ am Morgen den Hafen, und niemand wusste, wohin es fahren würde."
    texts = [f"{english} {n}" for n in range(9)] + [f"{german} {n}" for n in range(4)]
    manifest, kept, _ = prepare_texts(texts, tokenizer, tmp_path, "a", languages="en, fr")
    assert manifest["dropped"] == {"language de": 4}
    assert len(kept) == 9
    prepare = (prepare_texts, texts, tokenizer, tmp_path, "b")
    refuse("unknown code of languages 'english'", *prepare, languages="english")
    assert len(prepare_texts(texts, tokenizer, tmp_path, "c", languages="DE")[1]) == 4


@pytest.fixture(scope="module")
def corpora(tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixture")
    for name, number in (("small", 60), ("large", 300)):
        prepare_texts(make_documents(number, number), tokenizer, folder, name)
    return folder


def write_mixture(folder, value, small, large):
    path = folder / f"{value}-{small}-{large}.toml"
    numbers = {"small": small, "large": large}.items()
    path.write_text("".join(f'[[corpus]]\nshards = "{n}"\n{value} = {v}\n' for n, v in numbers))
    return path


def make_examples(path):
    shards = open_shards(path)
    config = ExamplesConfig(sequence_length=32)
    return Examples(shards.train, shards.tokenizer, config, 0, shards.mixture)


def test_weights_are_shares_of_rows(corpora):
    examples = make_examples(write_mixture(corpora, "weight", 3, 1))
    ((_, _, drawn),) = examples.order.draw(0, 0, 2 * MIXED_ROWS)
    num_small = int(examples.order.firsts[1])
    for window in np.split(drawn, 2):
        assert np.count_nonzero(window < num_small) == MIXED_ROWS * 3 // 4
    assert not np.array_equal(drawn[:MIXED_ROWS], drawn[MIXED_ROWS:])
    # At any place: the same rows as from the beginning, and each epoch of a corpus is whole.
    ((_, _, some),) = examples.order.draw(0, 70_000, 70_100)
    assert np.array_equal(some, drawn[70_000:70_100])
    large, size = drawn[drawn >= num_small] - num_small, len(examples) - num_small
    times = np.bincount(large, minlength=size)
    assert len(large) // size <= times.min()
    assert times.max() <= len(large) // size + 1
    passes = examples.epochs(MIXED_ROWS)
    assert passes["small"] == pytest.approx(MIXED_ROWS * 0.75 / num_small)
    assert passes["large"] == pytest.approx(MIXED_ROWS * 0.25 / size)


def test_repeats_are_passes(corpora):
    examples = make_examples(write_mixture(corpora, "repeats", 2, 1))
    passes = examples.epochs(100_000)
    assert passes["small"] / passes["large"] == pytest.approx(2, rel=1e-3)
    alone = Examples(open_shards(corpora / "large").train, examples.tokenizer, examples.config, 0)
    first = int(examples.order.firsts[1])
    assert np.array_equal(
        examples.open[()].counts[first:], alone.open[()].counts
    )  # cut as without the mixture


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (["weight = 1"], "a corpus has shards, and weight or repeats"),
        (['shards = "small"\nweight = 0'], "must be a number above 0, not 0"),
        (['shards = "small"\nweight = 1e-9', 'shards = "large"\nweight = 1'], "of 65,536 rows"),
        (['shards = "small"\nrepeats = 1e-9', 'shards = "large"'], "give it more repeats"),
        (['shards = "small"', 'shards = "small"'], "is named twice"),
        (['shards = "small"', 'shards = "{toy}"'], "another tokenizer"),
        (['shards = "inner.toml"'], "inner.toml is a mixture itself"),
        ([], "it has no table"),
        (["["], "is not valid TOML"),
        (["weight = " + "[" * 100_000], "is not valid TOML"),
        (["weight = " + "9" * 5000], "is not valid TOML"),
    ],
)
def test_refusals_of_mixtures(corpora, toy_shards, tables, message):
    text = "".join(f"[[corpus]]\n{table}\n" for table in tables).replace("{toy}", str(toy_shards))
    (corpora / "inner.toml").write_text('[[corpus]]\nshards = "small"')
    (corpora / "bad.toml").write_text(text)
    refuse(message, make_examples, corpora / "bad.toml")


def test_a_mixture_may_open_the_files_of_all_its_corpora(corpora):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (store.SPARE_FILES, before[1]))
        shards = open_shards(write_mixture(corpora, "weight", 1, 1))
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert limit == store.SPARE_FILES + 3 * len(shards.train + shards.heldout)
    refuse("vm.max_map_count", store.allow_open_files, corpora, 1 << 31)


def test_a_run_on_a_mixture_tells_its_epochs(corpora, toy_config, tmp_path):
    records = []
    pretrain(write_mixture(corpora, "weight", 1, 1), tmp_path / "run", toy_config, records.append)
    first, *_, last = (record for record in records if record.get("part") == "train")
    assert last["epochs of small"] > first["epochs of small"] > first["epochs of large"] > 0


@pytest.mark.slow
def test_ray_gives_the_same_bytes(tokenizer, tmp_path):
    pytest.importorskip("ray")
    path = write_text(tmp_path, "a.txt.gz", "\n\n".join(make_documents(400)))
    settings = PrepareConfig(task_bytes=20_000, heldout_prob=0.1, workers=2)
    made = []
    for engine in ("local", "ray"):
        out = tmp_path / engine
        manifest = prepare([str(path)], tokenizer, out, settings, engine=engine)
        made.append((manifest, {each.name: each.read_bytes() for each in out.glob("*-*")}))
    assert made[0] == made[1]
    assert len(made[0][1]) > 6
