"""`import electra` as scripts use it; docs/LIBRARY.md is run by test_documentation.py."""

from contextlib import nullcontext

import numpy as np
import pytest

import electra
from electra.checkpoints.folder import read_run_config
from electra.cli import main
from electra.inference.ask import detect as run_detect
from electra.inference.ask import load_asked

TEXTS = ["the queen sold a boat .", "a young doctor"]


def test_answers_are_those_of_the_commands(run):
    model = electra.load(run)
    assert electra.detect(model, TEXTS) == run_detect(load_asked(run, "replaced"), TEXTS)
    ((gap,), (one, two)) = electra.fill(model, ["the [MASK]", "[MASK] [MASK]"], top=2)
    assert len(gap) == len(one) == len(two) == 2
    vectors = electra.embed(model, TEXTS)
    assert vectors.shape == (2, 128)
    words = electra.encode(model, TEXTS, unit="word")
    assert [len(each.states) for each in words] == [6, 3]
    assert model.encoder is model.encoder  # is read once


def test_a_script_trains_answers_and_exports(toy_shards, toy_question, tmp_path):
    settings = {
        **{"model.hidden_size": 64, "model.num_attention_heads": 1, "model.embedding_size": 64},
        **{"model.num_hidden_layers": 1, "model.intermediate_size": 64},
        **{"examples.sequence_length": 32, "train.batch_size": 4, "train.steps": 20},
        **{"train.evaluate_rows": 8, "train.threads": 1, "train.check_memory": False},
    }
    seen = []
    results = electra.pretrain(toy_shards, tmp_path / "run", settings=settings, show=seen.append)
    assert results["steps"] == 20
    assert seen
    scores = electra.finetune(
        *(tmp_path / "run", tmp_path / "scores"),
        task="own",
        data=toy_question,
        settings={"epochs": 1, "threads": 1},
    )
    assert 0 <= scores["median"] <= 1
    (answer,) = electra.predict(electra.load(tmp_path / "scores"), [{"text": TEXTS[0]}])
    assert answer["prediction"] in ("woman", "other")
    assert electra.export(tmp_path / "run", tmp_path / "hf").architecture == "ElectraForPreTraining"
    assert "| own |" in (tmp_path / "hf" / "README.md").read_text()  # found beside the run
    found = electra.export(tmp_path / "run", tmp_path / "bert", form="bert")
    assert found == ("BertModel", None)
    exported = electra.embed(electra.load(tmp_path / "hf"), TEXTS)
    assert np.allclose(exported, electra.embed(electra.load(tmp_path / "run"), TEXTS), atol=1e-5)


BRIEF = {
    **{"examples.sequence_length": 32, "train.batch_size": 4, "train.steps": 6},
    **{"train.evaluate_rows": 8, "train.threads": 1},
}


@pytest.mark.parametrize("recipe", [None, "paper"])
@pytest.mark.parametrize("continues", [False, True])
def test_the_library_resolves_settings_as_the_command_does(
    run, toy_shards, tmp_path, recipe, continues
):
    """Warm-up, and the sizes of the model that a run begins with; a longer run keeps both."""
    settings = BRIEF | ({"train.init_from": run} if continues else {})
    for steps in (6, 40):
        settings["train.steps"] = steps
        words = [f"{name}={value}" for name, value in settings.items()]
        words += ["--recipe", recipe] if recipe else []
        longer = pytest.warns(UserWarning, match="steps 6 -> 40") if steps > 6 else nullcontext()
        with longer:
            electra.pretrain(toy_shards, tmp_path / "ours", recipe=recipe, settings=settings)
            main(["pretrain", str(toy_shards), "--out", str(tmp_path / "theirs"), "--set", *words])
        ours, theirs = (read_run_config(tmp_path / name) for name in ("ours", "theirs"))
        assert ours == theirs
        assert (ours.train.steps, ours.optimizer.warmup_steps) == (steps, 0)
        assert not continues or ours.model.embedding_size == 32, "that of the model"


def test_mistakes_are_user_errors(run, tmp_path):
    model = electra.load(run)
    with pytest.raises(electra.UserError, match=r"give a list of texts, as \['the queen'\]"):
        electra.detect(model, "the queen")
    with pytest.raises(electra.UserError, match="neither a run nor an export nor a fine-tuning"):
        electra.load(tmp_path)
    with pytest.raises(electra.UserError, match="seed 1 is for a fine-tuning, which"):
        electra.load(run, seed=1)
    with pytest.raises(electra.UserError, match="a text is a str, not"):
        electra.detect(model, [3])
    with pytest.raises(electra.UserError, match="pooling must be one of mean, cls, not 'max'"):
        electra.embed(model, TEXTS, pooling="max")
    with pytest.raises(electra.UserError, match="unit must be one of word, token, not 'wrd'"):
        electra.encode(model, TEXTS, unit="wrd")
    with pytest.raises(electra.UserError, match=r"form must be one of .*, not 'tf'"):
        electra.export(run, tmp_path / "out", form="tf")
    with pytest.raises(electra.UserError, match="unknown recipe 'bst'; did you mean 'best'"):
        electra.pretrain("shards", tmp_path / "out", recipe="bst")
    assert issubclass(electra.Interrupted, Exception)
    with pytest.raises(electra.UserError, match="is not a finished folder of `electra finetune`"):
        electra.predict(model, [{"text": "a"}])
    with pytest.raises(electra.UserError, match="unknown preset 'tyni'; did you mean 'tiny'"):
        electra.pretrain("shards", tmp_path / "x", preset="tyni")
    with pytest.raises(electra.UserError, match="a dev set go together"):
        electra.export(run, tmp_path / "x", form="sentence-transformers")
    with pytest.raises(AttributeError, match="has no attribute 'detekt'"):
        electra.detekt  # noqa: B018
