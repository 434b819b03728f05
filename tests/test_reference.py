"""The reference runs: their text is everybody's, and what differs from the record is refused."""

import copy

import pytest
from refusals import refuse

from electra.files import read_object, sha256_file
from tools.reference import RECORD, ROWS, compare, find_versions, tabulate, verify, write_texts


@pytest.fixture
def record():
    return read_object(RECORD)


def test_the_text_is_the_same_on_every_machine(record, tmp_path):
    write_texts(tmp_path)
    for name, digest in record["texts"].items():
        if "." in name:
            assert sha256_file(tmp_path / name) == digest


def test_the_record_has_every_row_and_its_page(record):
    assert [row["name"] for row in record["rows"]] == list(ROWS)
    assert RECORD.with_suffix(".md").read_text() == tabulate(record)
    for row in record["rows"]:
        for score in row["scores"].values():
            assert score["low"] <= score["value"] == score["seeds"][0] <= score["high"]


def test_other_bits_texts_and_scores_are_refused(record):
    row = record["rows"][0]
    scores = {name: each["value"] for name, each in row["scores"].items()}
    (name, score), *_ = row["scores"].items()
    found = {"needs": record["needs"], "texts": record["texts"], "bits": row["bits"]}
    found = copy.deepcopy({**found, "scores": scores})
    assert compare(found, record, row["name"]) == "to the bit"
    found["bits"]["weights"] = "0"
    refuse("other bits than recorded: weights", compare, found, record, row["name"])
    found["needs"]["torch"] = "2.99"
    assert "other bits (weights) with torch 2.99" in compare(found, record, row["name"])
    found["scores"][name] = score["high"] + 0.001
    refuse(f"{name} ... recorded", compare, found, record, row["name"])
    found["texts"]["tokenizer"] = "0"
    refuse("other bits than recorded: tokenizer", compare, found, record, row["name"])
    found["scores"][name] = score["value"]
    found["needs"]["tokenizers"] = "0.99"
    assert "tokenizer" in compare(found, record, row["name"])
    found["texts"]["text.txt"] = "0"
    refuse("text.txt", compare, found, record, row["name"])


@pytest.mark.slow
def test_a_row_comes_again(record, tmp_path, capsys):
    assert verify(["mlm"], tmp_path)
    told = capsys.readouterr().out
    same = find_versions() == record["needs"]
    assert told.startswith("ok      mlm: to the bit" if same else "ok      mlm: mlm_loss")
