"""Folders of the present format, of fixtures/format-1/make.py, are read as they were written."""

import json
import shutil
from pathlib import Path

import pytest

import electra
from electra.pretraining.loop import resume

FOLDER = Path(__file__).parent / "fixtures" / "format-1"


def test_shards_a_run_and_a_fine_tuning_are_read(tmp_path):
    folder = shutil.copytree(FOLDER, tmp_path / "folder")
    numbers = json.loads((folder / "numbers.json").read_text())
    records = []
    resume(folder / "run", records.append, folder / "shards")
    losses = [each["loss"] for each in records if each["part"] == "train"]
    assert losses == pytest.approx(numbers["losses"][3:], rel=1e-4)
    asked = [{"text": text} for text in numbers["texts"]]
    found = electra.predict(electra.load(folder / "finetuned"), asked)
    for ours, theirs in zip(found, numbers["predictions"], strict=True):
        assert ours.pop("prediction") == theirs.pop("prediction")
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-5)
