"""The encoder in the package: a model's folder and its name mean the same, and a folder wins."""

import json
from pathlib import Path

import numpy as np
import pytest
from commands import succeed
from tasks import write_files

import electra
from electra.checkpoints.bundled import ENCODERS, list_bundled
from electra.checkpoints.checkpoint import read_tensors
from electra.checkpoints.folder import read_pretrained, read_run_config
from electra.files import check_hashes, read_object
from electra.inference.models import name_folders

NAME = "english-tiny"
SENTENCE = "the battle was fought in 1863 between the union and confederate guitars"


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_its_files_are_small_and_whole():
    assert list_bundled() == [NAME]
    files = [path for path in (ENCODERS / NAME).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 7 * 2**20
    for folder in (ENCODERS / NAME, ENCODERS / NAME / "generator"):
        check_hashes(folder)
        headers = read_tensors(folder / "model.safetensors").headers
        assert {header.dtype for header in headers.values()} == {"bfloat16"}


def test_commands_and_the_library_take_its_name(here, capsys):
    (told,) = map(json.loads, succeed(capsys, "detect", NAME, SENTENCE, "--json").out.splitlines())
    model = electra.load(NAME)
    (words,) = electra.detect(model, [SENTENCE])
    assert read_pretrained(Path(NAME)).source == NAME  # not a path of this machine
    assert [word["prob_replaced"] for word in told["words"]] == [w.prob_replaced for w in words]
    assert max(words, key=lambda word: word.prob_replaced).text == "guitars"
    assert "rome" in succeed(capsys, "fill", NAME, "the city of [MASK] , in italy").out
    assert electra.embed(model, [SENTENCE]).shape == (1, 128)
    assert len(electra.score(NAME, [SENTENCE])) == 1
    assert NAME in succeed(capsys, "inspect", NAME).out
    assert "0 failed" in succeed(capsys, "verify", NAME).out
    assert name_folders([Path(NAME)]) == {NAME: ENCODERS / NAME}
    assert name_folders([Path(f"small={NAME}")]) == {"small": ENCODERS / NAME}
    assert not list(here.iterdir())


def test_it_is_exported_as_it_is(here, capsys):
    succeed(capsys, "export", NAME, "--out", "exported")
    ours, theirs = (read_pretrained(folder) for folder in (ENCODERS / NAME, here / "exported"))
    for network in ("kept", "masked_lm"):
        tensors = [getattr(model, network).encoders[0] for model in (ours, theirs)]
        assert all(tensors[0][name].equal(tensors[1][name]) for name in tensors[0])


def test_other_trainings_begin_with_it(here, toy_question, toy_text, capsys):
    options = ["--out", "tuned", "--set", "epochs=1"]
    succeed(capsys, "finetune", NAME, "--task", "own", "--data", toy_question, *options)
    assert read_object(here / "tuned" / "results.json")["start"] == NAME
    assert (
        "prob_woman" in succeed(capsys, "predict", "tuned", "--input", toy_question / "dev.tsv").out
    )
    tokenizer = ENCODERS / NAME
    succeed(capsys, "prepare", toy_text, "--tokenizer", tokenizer, "--out", "shards")
    how = ["--set", "train.steps=2", "train.batch_size=4", "train.evaluate_rows=8"]
    told = succeed(capsys, "pretrain", "shards", "--init-from", NAME, "--out", "run", *how)
    assert "english-tiny" in told.out + told.err
    assert read_run_config(here / "run").train.init_from == NAME


@pytest.mark.filterwarnings("default:english-tiny")
def test_a_folder_of_its_name_wins_and_this_is_told(here, run, capsys):
    electra.export(run, out=NAME)
    write_files(here, {"texts.txt": SENTENCE})
    told = succeed(capsys, "embed", NAME, "--input", "texts.txt", "--out", "own.npy").err
    assert told.count("english-tiny is the folder here, not the encoder in the package") == 1
    assert np.load("own.npy").shape[-1] == read_run_config(run).model.hidden_size
