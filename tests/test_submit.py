"""Submissions to the GLUE server: every file, seeds and ensembles by hand, refusals."""

import json
import zipfile

import pytest
import torch
from commands import refuse_command
from refusals import refuse

from electra.cli import main
from electra.config import FinetuneConfig
from electra.errors import UserError
from electra.finetuning.loop import finetune
from electra.finetuning.submit import SUBMISSION_FILES, submit
from electra.tasks.choice import MultipleChoice
from electra.tasks.classification import Classification, Example
from electra.tasks.family import Task
from electra.tasks.glue import GLUE
from electra.tasks.predictions import average, predictions_name, read_predictions
from electra.tasks.rows import Rows

UNKNOWN = torch.full((3,), -1)
NO_NUMBER = torch.full((3,), torch.nan)
SPLITS = {"mnli": ("test", "test_mismatched", "diagnostic")}


def logits(*probs):
    return torch.tensor(probs).log()


def write_answers(folder, split, labels, gold, values):
    outputs = {"logits": values if labels else values[:, None]}
    Classification((), labels).write_predictions(folder, split, rows_of(gold), outputs)
    return folder / predictions_name(split)


def rows_of(labels):
    labels = torch.as_tensor(labels)
    ones = torch.ones(len(labels), dtype=torch.int64)
    return Rows(ones[:, None], ones, ones, {"labels": labels}, 0, examples=[Example("", None, 0)])


def write_folder(folder, task, answers, *, scores=(0.5, 0.75)):
    """Write a fine-tuning on a task of GLUE; `answers` holds what each seed says of every split."""
    glue_task = GLUE[task]
    metric = glue_task.metrics[0]
    splits = SPLITS.get(task, ("test",))
    for seed, values in enumerate(answers):
        place = folder / f"seed-{seed}"
        place.mkdir(parents=True)
        for split in splits:
            gold = (UNKNOWN if glue_task.labels else NO_NUMBER)[: len(values)]
            write_answers(place, split, glue_task.labels, gold, values)
    results = {
        "task": task,
        "metric": metric,
        "num_items": {"train": 9, "dev": 9} | {split: len(answers[0]) for split in splits},
        "seeds": {
            str(seed): {"scores": {metric: score}}
            for seed, score in zip(range(len(answers)), scores, strict=False)
        },
    }
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
    answers = {"sts-b": NUMBERS, "mnli": THREE}
    return [
        write_folder(tmp_path / task, task, answers.get(task, TWO))
        for task in GLUE
        if task != "wnli"
    ]


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
    assert " ".join(sorted(answers)) == (
        "AX.tsv CoLA.tsv MNLI-m.tsv MNLI-mm.tsv MRPC.tsv QNLI.tsv QQP.tsv RTE.tsv SST-2.tsv "
        "STS-B.tsv WNLI.tsv"
    )
    for name in ("CoLA", "SST-2", "MRPC", "QQP"):
        assert answers[f"{name}.tsv"] == ["1", "1", "1"]
    for name in ("QNLI", "RTE"):
        assert answers[f"{name}.tsv"] == ["not_entailment"] * 3
    for name in ("MNLI-m", "MNLI-mm", "AX"):
        assert answers[f"{name}.tsv"] == ["neutral", "neutral", "entailment"]
    assert answers["STS-B.tsv"] == ["0.250", "3.250", "5.000"]
    assert answers["WNLI.tsv"] == ["0"] * 146
    origins = {each.name: each.origin for each in said}
    assert origins["CoLA.tsv"] == f"{tmp_path / 'cola'}, seed 1"
    assert origins["WNLI.tsv"] == "majority of train"


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
    # (-0.5 + 0.25) / 2 = -0.125 is cut to the range, (4 + 7) / 2 = 5.5, too
    assert answers["STS-B.tsv"] == ["0.000", "2.875", "5.000"]
    assert said[0].origin == f"{tmp_path / 'cola'}, mean of 2 seeds"


def test_the_same_answers_give_the_same_bytes(folders, tmp_path):
    for name in ("a", "b"):
        submit(folders, tmp_path / f"{name}.zip")
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


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
    with pytest.raises(UserError) as refusal:
        submit(rest, tmp_path / "a.zip")
    assert str(refusal.value).startswith(
        "no answers for QQP.tsv (test of qqp), AX.tsv (diagnostic of mnli); give finished"
    )
    assert sorted(tmp_path.iterdir()) == before
    submit(rest, tmp_path / "a.zip", partial=True)
    assert set(SUBMISSION_FILES) - set(read_zip(tmp_path / "a.zip")) == {"QQP.tsv", "AX.tsv"}


def test_what_does_not_fit_is_refused_and_nothing_written(folders, tmp_path):
    def refused(message, *more, base=folders, out=None):
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(UserError) as refusal:
            submit([*base, *more], out or tmp_path / "a.zip", ensemble=True)
        assert str(refusal.value).startswith(message.format(tmp_path))
        assert "\n" not in str(refusal.value)
        assert sorted(tmp_path.rglob("*")) == before

    twin = write_folder(tmp_path / "twin", "cola", TWO)
    refused("{0}/cola and {0}/twin are both on cola; give one of them", twin)
    own = write_folder(tmp_path / "mine", "cola", TWO)
    (own / "results.json").write_text('{"task": "weather", "seeds": {}}')
    refused("{0}/mine is no fine-tuning on a task of GLUE, but on 'weather'", own)
    refused("cannot read {0}/nowhere/results.json: No such file", tmp_path / "nowhere")
    refused("{0}/twin exists already", out=twin)
    path = tmp_path / "cola/seed-0/test_predictions.tsv"
    text = path.read_text()
    path.write_text("\n".join(text.split("\n")[:-2]) + "\n")
    refused("{0}/cola/seed-0/test_predictions.tsv has 2 answers; its test set has 3 rows")
    path.write_text(text.replace("0.900000", "nan"))
    refused("{0}/cola/seed-0/test_predictions.tsv has answers that are not numbers")
    path.write_text(text.replace("0.900000", "much"))
    refused("{0}/cola/seed-0/test_predictions.tsv does not hold predictions: ")
    path.unlink()
    refused("{0}/cola/seed-0/test_predictions.tsv cannot be read: No such file")


def test_predictions_come_back_as_they_were_written(tmp_path):
    labels = ("a b", 'c"', "prob_")
    probs = logits([0.2, 0.5, 0.3]).repeat(2, 1)
    read = read_predictions(write_answers(tmp_path, "x", labels, torch.tensor([2, -1]), probs))
    assert (read.labels, read.gold, read.answers) == (labels, ("prob_", ""), [1, 1])
    assert read.values[1].tolist() == pytest.approx([0.2, 0.5, 0.3])
    gold, predicted = torch.tensor([1.5, torch.nan]), torch.tensor([-2.0, torch.nan])
    numbers = read_predictions(write_answers(tmp_path, "y", (), gold, predicted))
    assert (numbers.labels, numbers.gold, numbers.answers[0]) == ((), ("1.5000", ""), -2.0)
    refuse("of different items or labels", lambda: average([read, numbers]))


def write_dev(folder, task, seeds):
    """Write what each seed says of dev, from targets and outputs."""
    for number, (rows, outputs) in enumerate(seeds):
        place = folder / f"seed-{number}"
        place.mkdir(parents=True)
        task.family.write_predictions(place, "dev", rows, outputs)


def score_ensemble(folder, task, seeds):
    return task.family.score_ensemble([folder / f"seed-{seed}" for seed in seeds])


def test_devs_ensemble_scores_the_mean_of_all_seeds(tmp_path):
    task = Task("toy", Classification(("accuracy", "f1"), ("n", "y")), {})
    gold = rows_of([0, 1, 1])
    # label 1 has 0.475, 0.8, 0.55 on the mean: right, right, right; each seed alone has one wrong
    first = logits([0.6, 0.4], [0.1, 0.9], [0.7, 0.3])
    second = logits([0.45, 0.55], [0.3, 0.7], [0.2, 0.8])
    assert task.family.score(gold, {"logits": first})["accuracy"] == pytest.approx(2 / 3)
    assert task.family.score(gold, {"logits": second})["accuracy"] == pytest.approx(2 / 3)
    write_dev(tmp_path / "two", task, [(gold, {"logits": each}) for each in (first, second)])
    assert score_ensemble(tmp_path / "two", task, [0, 1]) == {"accuracy": 1.0, "f1": 1.0}
    nan = torch.full((3, 2), torch.nan)
    write_dev(tmp_path / "nan", task, [(gold, {"logits": each}) for each in (first, nan)])
    assert score_ensemble(tmp_path / "nan", task, [0, 1]) == {}


def test_devs_ensemble_of_numbers_and_of_choices(tmp_path):
    numbers = Task("toy", Classification(("pearson",), label_range=(-1.0, 3.0)), {})
    gold = rows_of([0.0, 0.5, 1.0])
    seeds = [torch.tensor([[0.5], [0.0], [1.0]]), torch.tensor([[0.1], [0.6], [0.4]])]
    write_dev(tmp_path / "numbers", numbers, [(gold, {"logits": each}) for each in seeds])
    # means 0.3 0.3 0.7, whose correlation with 0 0.5 1 is that of 0 0 1 with -1 0 1
    expected = {"pearson": pytest.approx(3**0.5 / 2, abs=1e-4)}
    assert score_ensemble(tmp_path / "numbers", numbers, [0, 1]) == expected
    choices = Task("toy", MultipleChoice(3), {})
    gold = rows_of([2, 0])
    seeds = [logits([0.5, 0.1, 0.4], [0.4, 0.5, 0.1]), logits([0.1, 0.5, 0.4], [0.5, 0.1, 0.4])]
    write_dev(tmp_path / "choices", choices, [(gold, {"logits": each}) for each in seeds])
    # means 0.3 0.3 0.4 and 0.45 0.3 0.25, though the first seed is right nowhere
    assert score_ensemble(tmp_path / "choices", choices, [0, 1]) == {"accuracy": 1.0}


COLA = "".join(
    f"s\t{n % 2}\t\tthe queen {'sold' if n % 2 else 'painted'} a boat\n" for n in range(16)
)


def test_from_fine_tuning_to_a_zip(start, tmp_path, capsys):
    data = tmp_path / "CoLA"
    data.mkdir()
    for split in ("train", "dev"):
        (data / f"{split}.tsv").write_text(COLA)
    (data / "test.tsv").write_text("index\tsentence\n0\tthe queen\n1\ta boat\n")
    config = FinetuneConfig(epochs=1, reseeds=0, threads=1, precision="float32")
    results = finetune(
        start, "cola", data, tmp_path / "cola", config, seeds=2, progress=lambda record: None
    )
    assert set(results["ensemble"]) == {"mcc", "accuracy"}
    out = tmp_path / "zips/submission.zip"
    command = ["submit", str(tmp_path / "cola"), "--out", str(out)]
    refuse_command("no answers for SST-2.tsv (test of sst-2), MRPC.tsv", capsys, *command)
    assert not out.parent.exists()
    main([*command, "--partial", "--ensemble"])
    answers = read_zip(out)
    assert set(answers) == {"CoLA.tsv", "WNLI.tsv"}
    assert len(answers["CoLA.tsv"]) == 2
    assert "mean of 2 seeds" in capsys.readouterr().out
