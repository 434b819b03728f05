"""Students that learn the answers of fine-tuned models."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from commands import succeed
from refusals import refuse
from tasks import ignore, small_finetune

from electra.checkpoints.finetuned import read_finetuned
from electra.checkpoints.folder import read_model
from electra.finetuning.loop import Training, finetune
from electra.finetuning.start import encode_task, read_job
from electra.finetuning.teacher import add_answers, read_teachers
from electra.inference.predict import load_model
from electra.tasks.classification import Classification
from electra.tasks.config import FinetuneConfig, TeacherConfig
from electra.tasks.multi_label import MultiLabel
from electra.tasks.regression import Regression
from electra.tasks.rows import TaskBatch, make_batch
from electra.training.machine import Machine

MACHINE = Machine()


@pytest.fixture(scope="module")
def data(toy_text, tmp_path_factory):
    """The subject of each sentence; "wrong" has the labels of train the wrong way round."""
    folder = tmp_path_factory.mktemp("data")
    lines = [line for line in toy_text.read_text().splitlines() if line]
    names = ["other", "woman"]
    for kind in ("right", "wrong"):
        (folder / kind).mkdir()
        for split, part in (("train", lines[:200]), ("dev", lines[200:260])):
            is_wrong = kind == "wrong" and split == "train"
            rows = [f"{line}\t{names[('queen' in line) ^ is_wrong]}" for line in part]
            (folder / kind / f"{split}.tsv").write_text("\n".join(["text\tlabel", *rows]))
    (folder / "more.txt").write_text("\n".join([*lines[300:340], "", *lines[340:400]]))
    return folder


@pytest.fixture(scope="module")
def teacher(start, data, tmp_path_factory):
    """Two seeds that have learnt the question."""
    out = tmp_path_factory.mktemp("teacher") / "out"
    config = small_finetune(epochs=4)
    finetune(start, "own", data / "right", out, config, seeds=2, progress=ignore)
    return out


def teach(start, folder, **teacher):
    config = dataclasses.replace(small_finetune(epochs=4), teacher=TeacherConfig(**teacher))
    job = read_job(read_model(start), "own", folder, config, from_scratch=False)
    rows = encode_task(job.task, job.pretrained, job.config)
    return job, add_answers(job, rows, read_teachers(job), MACHINE)


def test_the_mean_of_the_seeds_answers_is_learnt(start, data, teacher):
    more = str(data / "more.txt")
    job, rows = teach(start, data / "wrong", folders=str(teacher), text=more)
    lines = [line for line in (data / "more.txt").read_text().splitlines() if line]
    texts = [each.text_a for each in job.task.examples["train"]] + lines
    assert len(rows.lesson) == len(texts) == 300
    models = [load_model(read_finetuned(teacher, seed), MACHINE) for seed in (0, 1)]
    answers = [model.answer([{"text": text} for text in texts]).records for model in models]
    probs = torch.tensor(
        [[[each[f"prob_{name}"] for name in ("other", "woman")] for each in own] for own in answers]
    )
    torch.testing.assert_close(rows.lesson.targets["teacher"], probs.mean(0), atol=1e-5, rtol=0)
    assert rows.lesson.targets.keys() == {"teacher"}


def test_the_labels_have_the_rest_of_the_loss(start, data, teacher):
    job, rows = teach(start, data / "wrong", folders=str(teacher), weight=0.25)
    training = Training(job, rows, MACHINE, seed=0)
    batch = make_batch(rows.lesson, torch.arange(8), MACHINE.device)
    outputs = training.model.eval()(batch)
    log_probs = outputs["logits"].log_softmax(-1)
    soft = -(batch.targets["teacher"] * log_probs).sum(-1).mean()
    hard = F.nll_loss(log_probs, batch.targets["labels"])
    torch.testing.assert_close(training.loss(outputs, batch), 0.25 * soft + 0.75 * hard)


def test_a_student_answers_as_its_teacher_whatever_the_labels(
    start, data, teacher, tmp_path, capsys
):
    words = "finetune", start, "--task", "own", "--data", data / "wrong", "--out"
    settings = "--set", "threads=1", "epochs=4", "learning_rate=1e-3", "batch_size=8"
    succeed(capsys, *words, tmp_path / "out", "--teacher", teacher, *settings, "reseeds=0")
    texts = [{"text": f"{who} sold a boat ."} for who in ("the queen", "the old sailor")]
    student = load_model(read_finetuned(tmp_path / "out"), MACHINE).answer(texts).records
    assert [each["prediction"] for each in student] == ["woman", "other"]


@pytest.mark.parametrize(
    ("family", "answers", "loss"),
    [
        (Regression(), lambda x: x, lambda x, y: ((x - y) ** 2).mean()),
        (
            MultiLabel(labels=("a", "b", "c")),
            torch.sigmoid,
            lambda x, y: -(y * F.logsigmoid(x) + (1 - y) * F.logsigmoid(-x)).mean(),
        ),
        (
            Classification(labels=("a", "b", "c")),
            lambda x: x.exp() / x.exp().sum(-1, keepdim=True),
            lambda x, y: (-y * (x - x.logsumexp(-1, keepdim=True))).sum(-1).mean(),
        ),
    ],
    ids=lambda each: type(each).__name__,
)
def test_answers_of_each_family(family, answers, loss):
    theirs, ours = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
    soft = family.soften({"logits": theirs})
    torch.testing.assert_close(soft, answers(theirs))
    batch = TaskBatch(torch.zeros(5, 2), None, None, {"labels": soft})
    torch.testing.assert_close(family.loss({"logits": ours}, batch), loss(ours, soft))


def test_what_no_teacher_can_be_is_refused(start, data, teacher, toy_question, tmp_path):
    rows = [
        line.replace("woman", "queen")
        for line in (data / "right/train.tsv").read_text().split("\n")
    ]
    for split in ("train", "dev"):
        (tmp_path / f"{split}.tsv").write_text("\n".join(rows))
    refuse(
        "both must be fine-tuned on the same labels", teach, start, tmp_path, folders=str(teacher)
    )
    refuse(
        "is not a finished folder of", teach, start, data / "right", folders=str(tmp_path / "none")
    )
    refuse("teacher.text more.txt needs teacher.folders", TeacherConfig, text="more.txt")
    unlabelled = {"text": "more.txt", "folders": "x", "weight": 0.5}
    refuse("a text without labels has no other loss", TeacherConfig, **unlabelled)
    weighted = {"class_weights": "balanced", "teacher": TeacherConfig(folders="x")}
    refuse("class_weights must be none with a teacher", FinetuneConfig, **weighted)
