"""Folders that release 0.1 wrote: fixtures/release-0.1/README.md says how they came to be."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import electra
from electra.interop.importing import import_model
from electra.pretraining.loop import resume

RELEASE = Path(__file__).parent / "fixtures" / "release-0.1"
NUMBERS = json.loads((RELEASE / "numbers.json").read_text())
TEXTS = NUMBERS["texts"]
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}
BODIES = ("electra", "modernbert")


@pytest.fixture
def release(tmp_path):
    """A copy, since a run and its shards are written to."""
    return shutil.copytree(RELEASE, tmp_path / "release")


@pytest.mark.parametrize("body", BODIES)
def test_a_run_goes_on_from_its_checkpoint(release, body):
    records = []
    resume(release / f"run-{body}", records.append, release / "shards")
    losses = [
        [each["loss"], each["disc_loss"], each["mlm_loss"]]
        for each in records
        if each["part"] == "train"
    ]
    np.testing.assert_allclose(losses, NUMBERS[body]["losses"][3:], **TOLERANCE)


@pytest.mark.parametrize("body", BODIES)
def test_an_export_answers_and_is_imported(release, tmp_path, body):
    folder = release / f"export-{body}"
    import_model(folder, tmp_path / "imported", generator=folder / "generator")
    for each in (folder, tmp_path / "imported"):
        model = electra.load(each)
        found = electra.embed(model, TEXTS)
        np.testing.assert_allclose(found, NUMBERS[body]["embeddings"], **TOLERANCE)
        probs = [[word.prob_replaced for word in text] for text in electra.detect(model, TEXTS)]
        assert [len(each) for each in probs] == [len(each) for each in NUMBERS[body]["detect"]]
        for ours, theirs in zip(probs, NUMBERS[body]["detect"], strict=True):
            np.testing.assert_allclose(ours, theirs, **TOLERANCE)
        assert electra.fill(model, ["the [MASK] sold a boat ."])


def test_a_fine_tuning_answers(release):
    records = [{"text": text} for text in TEXTS]
    found = electra.predict(electra.load(release / "finetuned"), records)
    for ours, theirs in zip(found, NUMBERS["predictions"], strict=True):
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            if isinstance(value, float | dict | list):
                assert ours[name] == pytest.approx(value, **{"rel": 1e-4, "abs": 1e-5})
            else:
                assert ours[name] == value
