"""Folders that release 0.1 wrote: fixtures/release-0.1/README.md says how they came to be."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import electra
from electra.interop.importing import import_model
from electra.pretraining.loop import resume
from electra.shards.config import PrepareConfig
from electra.shards.prepare import prepare
from electra.tokenizing.config import TokenizerConfig
from electra.tokenizing.tokenizer import Tokenizer

RELEASE = Path(__file__).parent / "fixtures" / "release-0.1"
NUMBERS = json.loads((RELEASE / "numbers.json").read_text())
TEXTS = NUMBERS["texts"]
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}
BODIES = ("electra", "modernbert")


@pytest.fixture
def release(tmp_path):
    """A copy, since a run and its shards are written to."""
    return shutil.copytree(RELEASE, tmp_path / "release")


def test_the_same_text_has_the_same_identity(release, tmp_path):
    """Prepared again, it continues the runs of before: the manifest is the same to the byte."""
    lines = [
        f"{who} {verb} {what} ."
        for who in ("the queen", "my neighbour", "a young doctor", "the sailor")
        for verb in ("sold", "admired", "painted")
        for what in ("a boat", "an engine", "the castle", "seven umbrellas")
    ]
    (tmp_path / "text.txt").write_text("\n\n".join("\n".join(lines[n::12]) for n in range(12)))
    tokenizer = Tokenizer.train(lines, TokenizerConfig(vocab_size=100, min_frequency=1))
    config = PrepareConfig(heldout_prob=0.3, workers=1)
    prepare([str(tmp_path / "text.txt")], tokenizer, tmp_path / "shards", config)
    found, expected = (each / "shards/manifest.json" for each in (tmp_path, release))
    assert found.read_bytes() == expected.read_bytes()


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
