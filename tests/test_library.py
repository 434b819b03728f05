"""`import electra` as scripts use it; docs/LIBRARY.md is run by test_documentation.py."""

from contextlib import nullcontext

import numpy as np
import pytest
from runs import SMALL

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
    settings = SMALL | {"model.embedding_size": 64, "train.steps": 20, "train.check_memory": False}
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


BRIEF = {name: SMALL[name] for name in SMALL if not name.startswith(("model", "generator"))}


@pytest.mark.parametrize(("recipe", "continues"), [(None, False), ("paper", True)])
def test_the_library_resolves_settings_as_the_command_does(
    run, toy_shards, tmp_path, recipe, continues
):
    """Warm-up, and the sizes of the model that a run begins with; a longer run keeps both."""
    settings = BRIEF | ({"train.init_from": run} if continues else {})
    for steps in (6, 12):
        settings["train.steps"] = steps
        words = [f"{name}={value}" for name, value in settings.items()]
        words += ["--recipe", recipe] if recipe else []
        longer = pytest.warns(UserWarning, match="steps 6 -> 12") if steps > 6 else nullcontext()
        with longer:
            electra.pretrain(toy_shards, tmp_path / "ours", recipe=recipe, settings=settings)
            main(["pretrain", str(toy_shards), "--out", str(tmp_path / "theirs"), "--set", *words])
        ours, theirs = (read_run_config(tmp_path / name) for name in ("ours", "theirs"))
        assert ours == theirs
        assert (ours.train.steps, ours.optimizer.warmup_steps) == (steps, 0)
        assert not continues or ours.model.embedding_size == 32, "that of the model"


MISTAKES = {
    "one text": (lambda run, out: electra.detect(electra.load(run), "the queen"), "list of texts"),
    "no text": (lambda run, out: electra.detect(electra.load(run), [3]), "a text is a str, not"),
    "no model": (lambda run, out: electra.load(out), "neither a run nor an export"),
    "a seed": (lambda run, out: electra.load(run, seed=1), "seed 1 is for a fine-tuning"),
    "pooling": (lambda run, out: electra.embed(electra.load(run), TEXTS, pooling="max"), "'max'"),
    "unit": (lambda run, out: electra.encode(electra.load(run), TEXTS, unit="wrd"), "'wrd'"),
    "form": (lambda run, out: electra.export(run, out, form="tf"), "'tf'"),
    "no dev set": (
        lambda run, out: electra.export(run, out, form="sentence-transformers"),
        "a dev set go together",
    ),
    "recipe": (lambda run, out: electra.pretrain("shards", out, recipe="bst"), "recipe.*'?bst"),
    "preset": (lambda run, out: electra.pretrain("shards", out, preset="tyni"), "mean 'tiny'"),
    "no fine-tuning": (
        lambda run, out: electra.predict(electra.load(run), [{"text": "a"}]),
        "is not a finished folder of `electra finetune`",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_user_errors(run, tmp_path, name):
    call, line = MISTAKES[name]
    with pytest.raises(electra.UserError, match=line):
        call(run, tmp_path / "out")


def test_names_that_are_not_there():
    assert issubclass(electra.Interrupted, Exception)
    with pytest.raises(AttributeError, match="has no attribute 'detekt'"):
        electra.detekt  # noqa: B018
