"""Submissions to the GLUE server: every file, seeds and ensembles by hand, refusals."""

import json
import zipfile

import pytest
import torch
from commands import refuse_command, succeed
from refusals import refuse
from tasks import ignore, small_finetune, write_files

from electra.finetuning.loop import finetune
from electra.finetuning.submit import SUBMISSION_FILES, submit
from electra.tasks.choice import MultipleChoice
from electra.tasks.classification import Classification
from electra.tasks.glue import GLUE
from electra.tasks.predictions import average, predictions_name, read_predictions
from electra.tasks.regression import Regression
from electra.tasks.rows import Rows
from electra.tasks.texts import Example

UNKNOWN = torch.full((3,), -1)
NO_NUMBER = torch.full((3, 1), torch.nan)
SPLITS = {"mnli": ("test", "test_mismatched", "diagnostic")}


def logits(*probs):
    return torch.tensor(probs).log()


def write_answers(folder, split, labels, gold, values):
    family = Classification((), labels) if labels else Regression(ranges=((0.0, 1.0),))
    family.write_predictions(folder, split, rows_of(gold), {"logits": values.view(len(gold), -1)})
    return folder / predictions_name(split)


def rows_of(labels):
    labels = torch.as_tensor(labels)
    ones = torch.ones(len(labels), dtype=torch.int64)
    facts = {"targets": {"labels": labels}, "is_cut": (), "begins": torch.arange(len(ones) + 1)}
    return Rows(ones[:, None], ones, ones, **facts, examples=[Example("", None, 0)])


def write_folder(folder, task, answers, *, scores=(0.5, 0.75)):
    """Write a fine-tuning on a task of GLUE; `answers` holds what each seed says of every split."""
    metric, labels = GLUE[task].metrics[0], GLUE[task].labels
    splits = SPLITS.get(task, ("test",))
    for seed, values in enumerate(answers):
        place = folder / f"seed-{seed}"
        place.mkdir(parents=True)
        for split in splits:
            gold = (UNKNOWN if labels else NO_NUMBER)[: len(values)]
            write_answers(place, split, labels, gold, values)
    seeds = {str(seed): {"scores": {metric: score}} for seed, score in enumerate(scores)}
    counts = {"train": 9, "dev": 9} | dict.fromkeys(splits, len(answers[0]))
    results = {"task": task, "metric": metric, "num_items": counts, "seeds": seeds}
    (folder / "results.json").write_text(json.dumps(results))
    return folder


TWO = [logits([0.6, 0.4], [0.1, 0.9], [0.7, 0.3]), logits([0.45, 0.55], [0.3, 0.7], [0.2, 0.8])]
THREE = [
    logits([0.5, 0.3, 0.2], [0.1, 0.2, 0.7], [0.1, 0.8, 0.1]),
    logits([0.1, 0.3, 0.6], [0.2, 0.2, 0.6], [0.3, 0.5, 0.2]),
]
NUMBERS = [torch.tensor([-0.5, 2.5, 4.0]), torch.tensor([0.25, 3.25, 7.0])]


@pytest.fixture
def folders(tmp_path):
    """Fine-tunings of two seeds on every task but WNLI; the second seed is the better one."""
    answers = dict.fromkeys((task for task in GLUE if task != "wnli"), TWO)
    answers |= {"sts-b": NUMBERS, "mnli": THREE}
    return [write_folder(tmp_path / task, task, each) for task, each in answers.items()]


def read_zip(path):
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        texts = {name: archive.read(name).decode() for name in archive.namelist()}
    answers = {}
    for name, text in texts.items():
        header, *lines = text.removesuffix("\n").split("\n")
        assert header == "index\tprediction"
        assert [line.split("\t")[0] for line in lines] == [str(n) for n in range(len(lines))]
        answers[name] = [line.split("\t")[1] for line in lines]
    return answers


def test_the_better_seed_answers_in_glues_words(folders, tmp_path):
    said = submit(folders, tmp_path / "a.zip")
    answers = read_zip(tmp_path / "a.zip")
    assert answers == {
        **dict.fromkeys(("CoLA.tsv", "SST-2.tsv", "MRPC.tsv", "QQP.tsv"), ["1"] * 3),
        **dict.fromkeys(("QNLI.tsv", "RTE.tsv"), ["not_entailment"] * 3),
        **dict.fromkeys(("MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv"), ["neutral"] * 2 + ["entailment"]),
        **{"STS-B.tsv": ["0.250", "3.250", "5.000"], "WNLI.tsv": ["0"] * 146},
    }
    origins = {each.name: each.origin for each in said}
    assert origins["CoLA.tsv"] == f"{tmp_path / 'cola'}, seed 1"
    assert origins["WNLI.tsv"] == "majority of train"
    submit(folders, tmp_path / "b.zip")
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_a_seed_in_anothers_place_may_answer_but_joins_no_ensemble(tmp_path):
    folder = write_folder(tmp_path / "cola", "cola", TWO)
    (folder / "seed-0").rename(folder / "seed-1000")
    results = json.loads((folder / "results.json").read_text())
    record = {"scores": {"mcc": 0.875}, "replaces": 1}
    results |= {"seeds": {"1": results["seeds"]["1"]}, "replacements": {"1000": record}}
    (folder / "results.json").write_text(json.dumps(results))
    for name, ensemble, what in (("a", False, "seed 1000"), ("b", True, "mean of 1 seeds")):
        said = submit([folder], tmp_path / f"{name}.zip", ensemble=ensemble, partial=True)
        assert said[0].origin == f"{folder}, {what}"


def test_an_ensemble_answers_with_the_mean_of_all_seeds(folders, tmp_path):
    said = submit(folders, tmp_path / "a.zip", ensemble=True)
    answers = read_zip(tmp_path / "a.zip")
    # (0.6 + 0.45) / 2 and so on: label 1 has 0.475, 0.8, 0.55
    assert answers["CoLA.tsv"] == ["0", "1", "1"]
    assert answers["RTE.tsv"] == ["entailment", "not_entailment", "not_entailment"]
    # means 0.3 0.3 0.4; 0.15 0.2 0.65; 0.2 0.65 0.15
    assert answers["MNLI-mm.tsv"] == ["neutral", "neutral", "entailment"]
    # (-0.5 + 0.25) / 2 = -0.125 is cut to the range, (4 + 7) / 2 = 5.5 also
    assert answers["STS-B.tsv"] == ["0.000", "2.875", "5.000"]
    assert said[0].origin == f"{tmp_path / 'cola'}, mean of 2 seeds"


def test_wnlis_own_fine_tuning_answers_it(folders, tmp_path):
    wnli = write_folder(tmp_path / "wnli", "wnli", TWO)
    submit([*folders, wnli], tmp_path / "a.zip")
    assert read_zip(tmp_path / "a.zip")["WNLI.tsv"] == ["1", "1", "1"]


def test_what_is_missing_is_named_and_may_be_left_out(folders, tmp_path):
    results = tmp_path / "mnli/results.json"
    values = json.loads(results.read_text())
    del values["num_items"]["diagnostic"]
    results.write_text(json.dumps(values))
    rest = [folder for folder in folders if folder.name != "qqp"]
    before = sorted(tmp_path.iterdir())
    missing = "no answers for QQP.tsv (test of qqp), AX.tsv (diagnostic of mnli); give finished"
    refuse(missing, submit, rest, tmp_path / "a.zip")
    assert sorted(tmp_path.iterdir()) == before
    submit(rest, tmp_path / "a.zip", partial=True)
    assert set(SUBMISSION_FILES) - set(read_zip(tmp_path / "a.zip")) == {"QQP.tsv", "AX.tsv"}


def test_what_does_not_fit_is_refused_and_nothing_written(folders, tmp_path):
    def refused(message, *more, out="a.zip"):
        before = sorted(tmp_path.rglob("*"))
        named = f"{tmp_path}/{message}"
        refuse(named, submit, [*folders, *more], tmp_path / out, ensemble=True)
        assert sorted(tmp_path.rglob("*")) == before

    twin = write_folder(tmp_path / "twin", "cola", TWO)
    refused(f"cola and {tmp_path}/twin are both on cola; give one of them", twin)
    own = write_folder(tmp_path / "mine", "cola", TWO)
    (own / "results.json").write_text('{"task": "weather", "seeds": {}}')
    refused("mine is a fine-tuning on 'weather', not on a task of GLUE", own)
    (own / "results.json").write_text('{"task": "cola", "best": "rate=1"}')
    refused("mine is a grid, and lacks the folder of its best fine-tuning, rate=1", own)
    for name in ("nowhere", "begun"):
        (tmp_path / "begun").mkdir(exist_ok=True)
        refused(f"{name} is not a finished fine-tuning: it has no results.json", tmp_path / name)
    refused("twin exists already", out="twin")
    path = tmp_path / "cola/seed-0/test_predictions.tsv"
    text = path.read_text()
    for damaged, message in (
        ("\n".join(text.split("\n")[:-2]) + "\n", " has 2 answers; its test set has 3 rows"),
        (text.replace("0.900000", "nan"), " has answers that are not numbers"),
        (text.replace("0.900000", "much"), " does not hold predictions: "),
    ):
        path.write_text(damaged)
        refused(f"cola/seed-0/test_predictions.tsv{message}")
    path.unlink()
    refused("cola/seed-0/test_predictions.tsv cannot be read: No such file")


def test_predictions_come_back_as_they_were_written(tmp_path):
    labels = ("a b", 'c"', "prob_")
    probs = logits([0.2, 0.5, 0.3]).repeat(2, 1)
    read = read_predictions(write_answers(tmp_path, "x", labels, torch.tensor([2, -1]), probs))
    assert (read.labels, read.gold) == (labels, (("prob_",), ("",)))
    assert read.values[1].tolist() == pytest.approx([0.2, 0.5, 0.3])
    gold, predicted = torch.tensor([[1.5], [torch.nan]]), torch.tensor([-2.0, torch.nan])
    numbers = read_predictions(write_answers(tmp_path, "y", (), gold, predicted))
    assert (numbers.labels, numbers.gold) == ((), (("1.5",), ("",)))
    assert numbers.values[0] == -2.0
    refuse("of different items or labels", lambda: average([read, numbers]))


MEANS = {
    # label 1 has 0.475, 0.8, 0.55 on the mean: right, right, right; each seed alone has one wrong
    "labels": (Classification(("accuracy", "f1"), ("n", "y")), [0, 1, 1], TWO, [1.0, 1.0]),
    # means 0.3 0.3 0.7, whose correlation with 0 0.5 1 is that of 0 0 1 with -1 0 1
    "numbers": (
        Regression(("pearson",), ranges=((-1.0, 3.0),)),
        [[0.0], [0.5], [1.0]],
        [torch.tensor([[0.5], [0.0], [1.0]]), torch.tensor([[0.1], [0.6], [0.4]])],
        [3**0.5 / 2],
    ),
    # means 0.3 0.3 0.4 and 0.45 0.3 0.25, though the first seed is right nowhere
    "choices": (
        MultipleChoice(3),
        [2, 0],
        [logits([0.5, 0.1, 0.4], [0.4, 0.5, 0.1]), logits([0.1, 0.5, 0.4], [0.5, 0.1, 0.4])],
        [1.0],
    ),
    "no number": (Classification(("f1",), ("n", "y")), [0, 1, 1], [TWO[0], TWO[0] * torch.nan], []),
}


@pytest.mark.parametrize("case", MEANS)
def test_devs_ensemble_scores_the_mean_of_all_seeds(tmp_path, case):
    family, gold, seeds, expected = MEANS[case]
    places = [tmp_path / f"seed-{number}" for number in range(2)]
    for place, values in zip(places, seeds, strict=True):
        place.mkdir()
        family.write_predictions(place, "dev", rows_of(gold), {"logits": values})
        assert case != "labels" or family.score(rows_of(gold), {"logits": values})["accuracy"] < 0.7
    scores = family.score_ensemble(places)
    assert list(scores.values()) == pytest.approx(expected, abs=1e-4)
    assert [*scores] == [*family.metrics][: len(expected)]


def test_from_fine_tuning_to_a_zip(start, tmp_path, capsys):
    verbs = [f"s\t{n}\t\tthe queen {verb} a boat\n" for n, verb in enumerate(("painted", "sold"))]
    cola = dict.fromkeys(("train.tsv", "dev.tsv"), "".join(verbs * 8))
    cola["test.tsv"] = "index\tsentence\n0\tthe queen\n1\ta boat\n"
    data = write_files(tmp_path / "CoLA", cola)
    config = small_finetune(epochs=1)
    results = finetune(start, "cola", data, tmp_path / "cola", config, seeds=2, progress=ignore)
    assert set(results["ensemble"]) == {"mcc", "accuracy"}
    out = tmp_path / "zips/submission.zip"
    command = ["submit", tmp_path / "cola", "--out", out]
    refuse_command("no answers for SST-2.tsv (test of sst-2), MRPC.tsv", capsys, *command)
    assert not out.parent.exists()
    assert "mean of 2 seeds" in succeed(capsys, *command, "--partial", "--ensemble").out
    answers = read_zip(out)
    assert set(answers) == {"CoLA.tsv", "WNLI.tsv"}
    assert len(answers["CoLA.tsv"]) == 2
