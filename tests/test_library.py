"""`import electra` as scripts use it; docs/LIBRARY.md is run by test_documentation.py."""

from contextlib import nullcontext

import numpy as np
import pytest
from pandas import DataFrame
from refusals import refuse
from runs import SMALL

import electra
from electra.checkpoints.checkpoint import list_checkpoints
from electra.checkpoints.folder import read_run_config
from electra.cli import main
from electra.inference.ask import detect as run_detect
from electra.inference.ask import load_asked

TEXTS = ["the queen sold a boat .", "a young doctor"]
SENTENCES = "sentence-transformers"


def test_answers_are_those_of_the_commands(run):
    model = electra.load(run)
    assert electra.detect(model, TEXTS) == run_detect(load_asked(run, "replaced"), TEXTS)
    ((gap,), (one, two)) = electra.fill(model, ["the [MASK]", "[MASK] [MASK]"], top=2)
    assert len(gap) == len(one) == len(two) == 2
    vectors = electra.embed(model, TEXTS)
    assert vectors.shape == (2, 128)
    assert np.array_equal(electra.embed(electra.load(run), iter(TEXTS)), vectors)
    assert electra.detect(electra.load(list_checkpoints(run)[-1]), TEXTS)
    words = electra.encode(model, TEXTS, unit="word")
    assert [len(each.states) for each in words] == [6, 3]
    assert model.encoder is model.encoder  # is read once


def test_a_script_trains_answers_and_exports(toy_shards, toy_question, tmp_path):
    settings = SMALL | {"model.embedding_size": 64, "train.steps": 20, "train.check_memory": False}
    seen = []
    results = electra.pretrain(
        toy_shards, out=tmp_path / "run", settings=settings, show=seen.append
    )
    assert results["steps"] == 20
    assert seen
    again = {"shards": toy_shards, "out": tmp_path / "run"}
    assert electra.pretrain(**again, settings=settings) == results  # a cell is run again
    refuse(
        "train.batch_size=", electra.pretrain, **again, settings=settings | {"train.batch_size": 2}
    )
    refuse(
        "is not a shards folder",
        electra.pretrain,
        tmp_path,
        out=tmp_path / "run",
        settings=settings,
    )
    brief = {"epochs": 1, "threads": 1}
    places = {"start": tmp_path / "run", "out": tmp_path / "scores"}
    scores = electra.finetune(**places, task="own", data=toy_question, settings=brief)
    assert 0 <= scores["median"] <= 1
    asked = {"task": "own", "data": toy_question, "settings": brief}
    assert electra.finetune(**places, **asked) == scores
    refuse("has 1 seed, not 2", electra.finetune, **places, **asked, seeds=2)
    refuse("started with different", electra.finetune, **places, **asked, from_scratch=True)
    (answer,) = electra.predict(electra.load(tmp_path / "scores"), [{"text": TEXTS[0]}])
    assert answer["prediction"] in ("woman", "other")
    assert (
        electra.export(tmp_path / "run", out=tmp_path / "hf").architecture
        == "ElectraForPreTraining"
    )
    assert "| own |" in (tmp_path / "hf" / "README.md").read_text()  # found beside the run
    found = electra.export(tmp_path / "run", out=tmp_path / "bert", form="bert")
    assert found == ("BertModel", None)
    exported = electra.embed(electra.load(tmp_path / "hf"), TEXTS)
    assert np.allclose(exported, electra.embed(electra.load(tmp_path / "run"), TEXTS), atol=1e-5)


def test_a_script_prepares_scores_and_reports(run, toy_text, toy_tokenizer, tmp_path):
    toy_tokenizer.save(tmp_path / "vocabulary")
    settings = {"heldout_prob": 0.1, "workers": 1}
    given = {"tokenizer": tmp_path / "vocabulary", "settings": settings}
    manifest = electra.prepare([toy_text], out=tmp_path / "shards", **given)
    assert manifest["parts"]["train"]["num_tokens"] > 1000
    refuse("exists already", electra.prepare, [toy_text], out=tmp_path / "shards", **given)
    (first, second) = electra.score(run, TEXTS)
    assert first.text == TEXTS[0]
    assert first.pll < 0
    assert second.num_tokens < first.num_tokens
    electra.report([run], out=tmp_path / "report.html")
    assert "Pre-training" in (tmp_path / "report.html").read_text()


BRIEF = {name: SMALL[name] for name in SMALL if not name.startswith(("model", "generator"))}


@pytest.mark.parametrize(("recipe", "continues"), [(None, False), ("paper", True)])
def test_the_library_resolves_settings_as_the_command_does(
    run, toy_shards, tmp_path, recipe, continues
):
    """Warm-up, and the sizes of the model that a run begins with; a longer run keeps both."""
    settings = BRIEF | ({"train.init_from": run} if continues else {})
    for steps in (6, 12)[: 1 + continues]:
        settings["train.steps"] = steps
        words = [f"{name}={value}" for name, value in settings.items()]
        words += ["--recipe", recipe] if recipe else []
        longer = pytest.warns(UserWarning, match="steps 6 -> 12") if steps > 6 else nullcontext()
        with longer:
            electra.pretrain(toy_shards, out=tmp_path / "ours", recipe=recipe, settings=settings)
            main(["pretrain", str(toy_shards), "--out", str(tmp_path / "theirs"), "--set", *words])
        ours, theirs = (read_run_config(tmp_path / name) for name in ("ours", "theirs"))
        assert ours == theirs
        assert (ours.train.steps, ours.optimizer.warmup_steps) == (steps, 0)
        assert not continues or ours.model.embedding_size == 32, "that of the model"


MISTAKES = {
    "list of texts": lambda model, run, out: electra.embed(model, "the queen"),
    "a text is a str, not": lambda model, run, out: electra.detect(model, [3]),
    "neither a run nor an export": lambda model, run, out: electra.load(out),
    "seed 1 is for a fine-tuning": lambda model, run, out: electra.load(run, seed=1),
    "'max'": lambda model, run, out: electra.embed(model, TEXTS, pooling="max"),
    "'wrd'": lambda model, run, out: electra.encode(model, TEXTS, unit="wrd"),
    "'tf'": lambda model, run, out: electra.export(run, out=out, form="tf"),
    "a dev set go together": lambda model, run, out: electra.export(run, out=out, form=SENTENCES),
    "recipe.*'?bst": lambda model, run, out: electra.pretrain("shards", out=out, recipe="bst"),
    "mean 'tiny'": lambda model, run, out: electra.pretrain("shards", out=out, preset="tyni"),
    "is not a finished folder": lambda model, run, out: electra.predict(model, [{"text": "a"}]),
}


@pytest.mark.parametrize("line", MISTAKES)
def test_mistakes_are_user_errors(run, tmp_path, line):
    with pytest.raises(electra.UserError, match=line):
        MISTAKES[line](electra.load(run), run, tmp_path / "out")


def test_histories_answers_and_claims_are_records(run, toy_question, tmp_path):
    out, asked = tmp_path / "tuned", {"task": "own", "data": toy_question, "seeds": 2}
    electra.finetune(run, out=out, **asked, settings={"epochs": 2, "threads": 1, "reseeds": 0})
    curves = DataFrame(electra.history(run))
    assert set(curves.part) == {"train", "heldout"}
    assert curves.step.is_monotonic_increasing
    tuned = DataFrame(electra.history(out))
    assert [*zip(tuned.seed, tuned.epoch, strict=True)] == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert tuned[["train_loss", "accuracy"]].notna().all(axis=None)
    answers = DataFrame(electra.predict(out, [{"text": text} for text in TEXTS]))
    assert answers.prediction.isin(["woman", "other"]).all()
    assert [*DataFrame(electra.score(run, TEXTS)).text] == TEXTS
    assert {*DataFrame(electra.verify(out)).columns} == {"status", "claim", "told"}
    refuse("is neither a run nor a fine-tuning", electra.history, toy_question)


def test_a_verb_prints_nothing_and_a_dry_run_writes_nothing(run, toy_text, tmp_path, capfd):
    given = {"out": tmp_path / "vocabulary", "settings": {"vocab_size": 120}}
    with pytest.raises(electra.Planned, match="would read 1 file") as planned:
        electra.tokenizer([toy_text], **given, dry_run=True)
    assert planned.value.settings.vocab_size == 120
    assert not list(tmp_path.iterdir())
    made = electra.tokenizer([toy_text], **given)
    assert made.vocab_size == 120
    assert "tables" in electra.inspect(run)
    assert electra.plan(preset="tiny", settings={"train.threads": 1}, probe_seconds=0.01).memory > 0
    assert electra.flops(preset="tiny")["true"] > 0
    electra.fill(run, "the [MASK]")
    assert electra.predict_file.__name__ == "predict_file"
    assert capfd.readouterr() == ("", "")


def test_names_that_are_not_there():
    assert issubclass(electra.Interrupted, Exception)
    with pytest.raises(AttributeError, match="has no attribute 'detekt'"):
        electra.detekt  # noqa: B018
