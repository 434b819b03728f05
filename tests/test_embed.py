"""Embeddings of texts, words and tokens: beside transformers, in any company, in both files."""

import io
import sys
from functools import partial

import numpy as np
import pytest
import torch
from commands import refuse_command, succeed
from refusals import refuse

from electra.inference.ask import load_asked
from electra.inference.embed import Units, _join, embed, embed_units, write_embeddings
from electra.inference.network import load_encoder
from electra.text.table_files import read_texts

TEXTS = ["the queen sold a boat .", "", "unhesitatingly", "a young doctor painted the castle ."]


@pytest.fixture(scope="module")
def network(run):
    return load_encoder(run)


def read_hidden_states(model, network, text):
    tokenizer = network.tokenizer
    ids = [tokenizer.cls_id, *tokenizer.encode(text), tokenizer.sep_id]
    with torch.no_grad():
        states = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
    return [each[0].numpy() for each in states]


def test_every_layer_is_that_of_transformers(run, exported, network):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.ElectraModel.from_pretrained(exported).eval()
    for loaded in (network, load_asked(run, "replaced"), load_encoder(exported)):
        for layer in (0, 1, 2, None):
            means = embed(loaded, TEXTS, layer=layer)
            firsts = embed(loaded, TEXTS, layer=layer, pooling="cls")
            units = embed_units(loaded, TEXTS, unit="token", layer=layer)
            for text, mean, first, tokens in zip(TEXTS, means, firsts, units, strict=True):
                if not text:
                    assert np.isnan([mean, first]).all()
                    continue
                states = read_hidden_states(theirs, loaded, text)[-1 if layer is None else layer]
                assert mean == pytest.approx(states.mean(axis=0), abs=1e-5)
                assert first == pytest.approx(states[0], abs=1e-5)
                assert tokens.states == pytest.approx(states[1:-1], abs=1e-5)


def test_an_embedding_does_not_depend_on_the_others(network):
    lines = [f"{'the old sailor admired ' * (n % 7)}a boat {n} ." for n in range(200)]
    together = embed(network, lines)
    for number in (0, 77, 199):
        assert together[number] == pytest.approx(embed(network, lines[number:])[0], abs=1e-5)


def test_words_are_means_of_their_tokens_and_have_places(network):
    text = "the unhesitatingly sold engine."
    (words,) = embed_units(network, [text])
    (tokens,) = embed_units(network, [text], unit="token")
    spans = zip(words.starts, words.ends, strict=True)
    assert [text[a:b] for a, b in spans] == ["the", "unhesitatingly", "sold", "engine", "."]
    for start, end, state in zip(*words, strict=True):
        inside = (tokens.starts >= start) & (tokens.ends <= end)
        assert state == pytest.approx(tokens.states[inside].mean(axis=0), abs=1e-6)
    spaced = Units(np.array([0, 4, 6]), np.array([3, 4, 8]), np.zeros((3, 2), np.float32))
    assert _join(spaced, np.ones(3, bool)).starts.tolist() == [0, 6]  # white space is no word
    (nothing,) = embed_units(network, [""])
    assert nothing.states.shape == (0, 128)


def test_a_long_text_is_embedded_in_pieces_of_whole_words(network):
    text = "the unhesitatingly red sailor sold a boat . " * 10
    (words,) = embed_units(network, [text])
    assert " ".join(text[a:b] for a, b in zip(*words[:2], strict=True)) == text.strip()
    ids = network.tokenizer.encode(text)
    (pieces,) = network.run_pieces([ids], lambda rows: map(network.tokenizer.decode, rows))
    assert len(pieces) > 2
    lengths = [network.tokenizer.encode(piece) for piece in pieces]
    sizes = np.array([[len(each) + 2] for each in lengths])
    expected = (embed(network, pieces) * sizes).sum(axis=0) / sizes.sum()
    assert embed(network, [text])[0] == pytest.approx(expected, abs=1e-5)
    seen = []
    embed(network, [text, "a"], progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] == len(pieces) + 1


@pytest.mark.parametrize("unit", ["text", "word"])
def test_both_files_hold_the_same(network, tmp_path, monkeypatch, unit):
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr("electra.inference.embed.CHUNK", 10)
    texts = TEXTS * 4  # two parts
    paths = [tmp_path / f"out{kind}" for kind in (".npy", ".parquet")]
    encode = partial(embed if unit == "text" else embed_units, network, layer=1)
    how = {"size": 128, "facts": {"unit": unit}}
    counts = [write_embeddings(path, encode, texts, **how) for path in paths]
    array, table = np.load(paths[0]), parquet.read_table(paths[1])
    assert [len(array), table.num_rows] == counts
    states, rows = np.stack(table["embedding"].to_numpy()), table["row"].to_numpy()
    if unit == "text":
        assert np.array_equal(array, states, equal_nan=True)
        assert np.array_equal(rows, np.arange(len(texts)))
        assert table["text"].to_pylist() == texts
        assert array == pytest.approx(embed(network, texts, layer=1), abs=1e-6, nan_ok=True)
    else:
        assert np.array_equal(array["embedding"], states)
        assert np.array_equal(array["row"], rows)
        assert np.array_equal(array["end"], table["end"].to_numpy())
        words = [texts[e["row"]][e["start"] : e["end"]] for e in array]
        assert table["text"].to_pylist() == words
        assert words[-7:] == ["a", "young", "doctor", "painted", "the", "castle", "."]
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".npy", ".parquet"]
    write_embeddings(paths[1], encode, ["a \ud800 b"], **how)  # half a character
    assert parquet.read_table(paths[1])["text"][0].as_py() in ("a \ufffd b", "a")


def test_the_verb_reads_lines_and_tables(run, tmp_path, capsys, monkeypatch):
    (tmp_path / "texts.txt").write_text("the queen\na boat\n")
    (tmp_path / "table.tsv").write_text("title\tother\nthe queen\t1\na boat\t2\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the queen\na boat")))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lines.ndjson").write_text('{"text": "the queen"}\n{"text": "a boat"}\n')
    inputs = ["texts.txt"], ["table.tsv", "--column", "title"], ["-"], ["lines.ndjson"]
    for number, words in enumerate(inputs):
        printed = succeed(capsys, "embed", run, "--input", *words, "--out", f"{number}.npy").out
        assert "2 embeddings of 128 numbers, one for each text" in printed
        assert np.array_equal(np.load("0.npy"), np.load(f"{number}.npy"))
    (tmp_path / "blank.txt").write_text("\nthe queen\n \na boat\n\n")
    printed, err = succeed(capsys, "embed", run, "--input", "blank.txt", "--out", "blank.npy")
    assert "5 embeddings" in printed
    assert "note: 3 inputs without text (1, 3, 5): each has NaN" in err
    found = np.load("blank.npy")
    assert np.isnan(found[[0, 2, 4]]).all()
    assert np.array_equal(found[[1, 3]], np.load("0.npy"))
    succeed(capsys, "embed", run, "--input", "blank.txt", "--unit", "word", "--out", "words.npy")
    assert np.load("words.npy")["row"].tolist() == [1, 1, 3, 3]


def test_what_cannot_be_embedded_is_refused(run, network, tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("the queen\n")
    (tmp_path / "empty.txt").write_text("\n")
    refuse("holds no line of text", read_texts, tmp_path / "empty.txt")
    refuse("must be lines of text, or a .tsv", read_texts, tmp_path / "texts.json")
    refuse("; title must be a column of", read_texts, tmp_path / "texts.txt", "title")
    refuse("layer must be", embed, network, TEXTS, layer=3)
    given = ["embed", run, "--input", tmp_path / "texts.txt", "--out"]
    for words, message in (
        (["x.txt"], "must be a .npy or .parquet file, not '.txt'"),
        (["texts.npy", "--layer", "-1"], "layer must be 0 to 2, not -1"),
        (["x.npy", "--unit", "word", "--pooling", "cls"], "is for --unit text"),
    ):
        refuse_command(message, capsys, *given, tmp_path / words[0], *words[1:])
    assert {path.name for path in tmp_path.iterdir()} == {"texts.txt", "empty.txt"}
