"""Several labels and several numbers a text, uneven classes, and what the report shows of them."""

import json
import random
from itertools import product

import numpy as np
import pytest
import torch
from commands import succeed
from refusals import refuse
from sklearn.metrics import (
    confusion_matrix,
    f1_score,
    precision_recall_curve,
    precision_recall_fscore_support,
)
from sklearn.utils.class_weight import compute_sample_weight
from tasks import ignore, read, small_finetune, write_files, write_parquet
from test_family import CASES, draw_task

from electra.checkpoints.finetuned import read_finetuned
from electra.finetuning.loop import finetune
from electra.inference.predict import load_model
from electra.interop.export import export
from electra.reports.judgements import (
    calibrate,
    count_confusions,
    measure_calibration,
    read_judgements,
    tabulate_labels,
)
from electra.tasks.config import FinetuneConfig, OwnTaskConfig
from electra.tasks.multi_label import choose_thresholds
from electra.tasks.rows import make_batch
from electra.tasks.texts import Example

SETS = [["billing", "urgent"], ["defect"], [], ["urgent"]]
ROWS = [{"text": f"text {number}", "label": names} for number, names in enumerate(SETS * 2)]
NAMES = ("billing", "defect", "urgent")
MULTI = "own.kind=multi_label"


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def columns(rows, yes, no):
    return [
        {"text": row["text"]} | {name: yes if name in row["label"] else no for name in NAMES}
        for row in rows
    ]


def to_csv(rows):
    return "\n".join([",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)])


FORMS = {
    "lists": ({"train.jsonl": lines(ROWS), "dev.jsonl": lines(ROWS)}, []),
    "cells": (
        dict.fromkeys(
            ("train.csv", "dev.csv"),
            to_csv([row | {"label": " |".join(row["label"])} for row in ROWS]),
        ),
        ["own.label_separator=|"],
    ),
    "columns": (
        {"train.csv": to_csv(columns(ROWS, 1, 0)), "dev.jsonl": lines(columns(ROWS, True, False))},
        ["own.label=billing, defect,urgent"],
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_task(tmp_path, form):
    files, settings = FORMS[form]
    task = read("own", write_files(tmp_path, files), MULTI, *settings)
    assert task.family.labels == NAMES
    assert task.family.metrics == ("micro_f1", "macro_f1")
    assert [each.label for each in task.examples["train"]] == [(0, 2), (1,), (), (2,)] * 2
    assert task.examples["dev"] == task.examples["train"]
    told = " ".join(task.notes)
    assert "no label applies to 2 of 8 examples of train" in told
    assert "dev chooses the threshold of each label" in told


def test_lists_of_parquet_may_be_numbers_with_names(tmp_path):
    write_parquet(tmp_path / "train.parquet", **{name: [r[name] for r in ROWS] for name in ROWS[0]})
    write_files(tmp_path, {"dev.jsonl": lines(ROWS)})
    assert read("own", tmp_path, MULTI).examples["train"][0] == Example("text 0", None, (0, 2))


def wrong(at, **fields):
    """Files of which a row of dev is another."""
    dev = [row | fields if number == at else row for number, row in enumerate(ROWS)]
    return {"train.jsonl": lines(ROWS), "dev.jsonl": lines(dev)}


COLUMNS, CELLS = FORMS["columns"], FORMS["cells"]
BAD = [
    (wrong(1, label=["defekt"]), "dev.jsonl line 2: unknown label 'defekt'; did you mean 'defect'"),
    (wrong(2, label="defect"), "dev.jsonl line 3: 'label' is 'defect'; it must be a list of texts"),
    (wrong(2, label=None), "dev.jsonl line 3: 'label' is None; it must be a list of texts"),
    (wrong(0, label=[1, 2]), "dev.jsonl line 1: 'label' is [1, 2]; it must be a list of texts"),
    ({"train.jsonl": lines(ROWS[1::4] * 2), "dev.jsonl": lines(ROWS)},
     "train.jsonl: the labels of every row are ['defect']; two different sets are needed"),
    ({"train.jsonl": lines(ROWS[2::4] * 2), "dev.jsonl": lines(ROWS)}, "every row are []"),
    ({"train.jsonl": lines(ROWS[:3]), "dev.jsonl": lines(ROWS)}, "a label must occur twice on av"),
    ({"train.jsonl": lines([*ROWS, {"text": "a", "label": [""]}]), "dev.jsonl": lines(ROWS)},
     "train.jsonl line 9: 'label' is empty"),
    (CELLS[0], "'label' has text, not lists; say what is between the labels of a cell, such as"),
    (COLUMNS[0] | {"dev.csv": to_csv(columns(ROWS, "yes", "no"))} | {"dev.jsonl": ""},
     "several dev files"),
    ({"train.csv": to_csv(columns(ROWS, 1, 0)), "dev.csv": to_csv(columns(ROWS, 2, 0))},
     "dev.csv line 2: 'billing' is '2'; it must be 0 or 1, or false or true", *COLUMNS[1]),
    (COLUMNS[0], "no column 'bill'; did you mean 'billing'?", "own.label=bill,defect"),
    (COLUMNS[0], "own.label names 'defect' twice", "own.label=defect,defect"),
    (COLUMNS[0], "own.label must be another column than the texts", "own.label=text,defect"),
]  # fmt: skip


@pytest.mark.parametrize(("files", "words", "settings"), [(*each[:2], each[2:]) for each in BAD])
def test_what_does_not_fit_is_refused_in_one_line(tmp_path, files, words, settings):
    refuse(words, read, "own", write_files(tmp_path, files), MULTI, *settings)


def test_lists_are_not_one_label_and_numbers_are_finite(tmp_path):
    folder = write_files(tmp_path, FORMS["lists"][0])
    refuse("line 1: 'label' is a list; own.kind=multi_label takes several", read, "own", folder)
    refuse("label_separator , needs own.kind=multi_label", OwnTaskConfig, label_separator=",")
    rows = [{"text": str(n), "a": n, "b": n * 10} for n in range(4)]
    for name, value in (("a", "inf"), ("b", "nan"), ("b", None)):
        files = {"train.jsonl": lines(rows), "dev.jsonl": lines([rows[0] | {name: value}, rows[1]])}
        settings = ("own.kind=regression", "own.label=a,b")
        said = refuse(f"dev.jsonl line 1: '{name}'", read, "own",
                      write_files(tmp_path / "numbers", files), *settings)  # fmt: skip
        assert "number" in said


def test_several_numbers_have_ranges_of_their_own(tmp_path, toy_tokenizer):
    rows = [{"text": str(n), "a": n, "b": -10 * n} for n in range(5)]
    files = dict.fromkeys(("train.jsonl", "dev.jsonl"), lines(rows))
    task = read("own", write_files(tmp_path, files), "own.kind=regression", "own.label=a,b")
    assert task.family.ranges == ((0.0, 4.0), (-40.0, 0.0))
    assert task.columns == (("text",), ("a", "b"))
    encoded = task.encode(toy_tokenizer, 16)["dev"]
    said = encoded.targets["labels"].clone()
    said[:, 1] = 1 - said[:, 1]
    scores = task.family.score(encoded, {"logits": said})
    assert scores == pytest.approx(
        {"spearman": 0, "pearson": 0, "spearman a": 1, "pearson a": 1, "spearman b": -1}
        | {"pearson b": -1}
    )


@pytest.mark.parametrize("seed", range(5))
def test_thresholds_have_the_best_f1(seed):
    rng = np.random.default_rng(seed)
    probs = rng.integers(0, 12, (40, 4)) / 12  # many are equal
    gold = rng.random((40, 4)) < probs
    gold[:, 3] = False
    for label, threshold in enumerate(choose_thresholds(gold, probs, "macro_f1")[:3]):
        said = probs[:, label] >= threshold
        precision, recall, _ = precision_recall_curve(gold[:, label], probs[:, label])
        best = (2 * precision * recall / (precision + recall).clip(1e-9)).max()
        *_, f1, _ = precision_recall_fscore_support(gold[:, label], said, average="binary")
        assert f1 == pytest.approx(best)


@pytest.mark.parametrize("seed", range(5))
def test_thresholds_have_the_best_micro_f1_of_all_combinations(seed):
    rng = np.random.default_rng(seed)
    probs = rng.integers(0, 5, (12, 3)) / 5
    gold = rng.random((12, 3)) < probs * [1, 0.5, 0.1]
    borders = np.arange(-1, 12, 2) / 10
    scores = [
        f1_score(gold, probs >= each, average="micro", zero_division=0.0)
        for each in product(borders, repeat=3)
    ]
    said = probs >= choose_thresholds(gold, probs, "micro_f1")
    assert f1_score(gold, said, average="micro", zero_division=0.0) == pytest.approx(max(scores))


def test_weights_are_those_of_scikit_learn(toy_tokenizer):
    rows = draw_task("classification", 50).encode(toy_tokenizer, 16)["train"]
    labels = rows.targets["labels"]
    expected = compute_sample_weight("balanced", labels.numpy())
    weights = CASES["classification"].family.weigh(rows)
    assert weights.tolist() == pytest.approx(expected.tolist())
    rows = draw_task("several labels", 50).encode(toy_tokenizer, 16)["train"]
    weights = CASES["several labels"].family.weigh(rows)
    for label, column in enumerate(rows.targets["labels"].T.numpy()):
        expected = compute_sample_weight("balanced", column)
        assert weights[:, label].tolist() == pytest.approx(expected.tolist())


@pytest.mark.parametrize("name", ["classification", "several labels"])
def test_a_balanced_constant_answer_has_the_loss_that_no_other_constant_beats(name, toy_tokenizer):
    family, rows = CASES[name].family, draw_task(name, 60).encode(toy_tokenizer, 16)
    train = rows["train"]
    train.targets["weights"] = family.weigh(train)
    least = family.find_constant(train, rows["dev"]).loss
    batch = make_batch(train, torch.arange(len(train)), torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    for scale in (0.0, 0.1, 1.0):
        logits = (torch.randn(family.num_outputs, generator=generator) * scale).expand(60, -1)
        loss = family.loss({"logits": logits}, batch).item()
        assert loss == pytest.approx(least) if scale == 0 else loss > least


@pytest.mark.parametrize("is_weighted", [False, True])
def test_a_new_head_begins_as_the_constant_answer(is_weighted, toy_tokenizer, toy_config):
    family, rows = CASES["several labels"].family, draw_task("several labels", 60)
    rows = rows.encode(toy_tokenizer, 16)
    train = rows["train"]
    train.targets.update({"weights": family.weigh(train)} if is_weighted else {})
    head = family.build_head(toy_config.model, FinetuneConfig())
    torch.nn.init.zeros_(head.dense.weight)
    family.start_head(head, train)
    batch = make_batch(train, torch.arange(len(train)), torch.device("cpu"))
    loss = family.loss({"logits": head.dense.bias.expand(len(train), -1)}, batch)
    assert loss.item() == pytest.approx(family.find_constant(train, rows["dev"]).loss)


def test_as_many_labels_as_a_row_has_tokens_are_kept(toy_tokenizer):
    """A batch cuts targets of tokens to its longest row, and no others."""
    family = CASES["several labels"].family
    texts = [Example("a boat", None, (1,)), Example("the", None, ())]
    rows = family.encode(texts, toy_tokenizer, 16)
    family = type(family)(labels=tuple(map(str, range(rows.input_ids.shape[1]))))
    rows = family.encode(texts, toy_tokenizer, 16)
    batch = make_batch(rows, torch.tensor([1]), torch.device("cpu"))
    assert batch.input_ids.shape[1] < rows.input_ids.shape[1] == batch.targets["labels"].shape[1]


def test_class_weights_are_refused_where_there_are_no_classes(start, tmp_path):
    rows = [{"text": str(n), "label": n / 2} for n in range(6)]
    files = dict.fromkeys(("train.jsonl", "dev.jsonl"), lines(rows))
    refuse(
        "class_weights is for one label or several labels a text, not for own",
        finetune, start, "own", write_files(tmp_path / "data", files), tmp_path / "out",
        small_finetune(class_weights="balanced", own=OwnTaskConfig(kind="regression")),
        seeds=1, progress=ignore,
    )  # fmt: skip


@pytest.fixture(scope="module")
def sets_data(tmp_path_factory):
    """Texts whose labels are which of two words they have."""
    rng, folder = random.Random(0), tmp_path_factory.mktemp("sets")
    splits = {"train": 200, "dev": 60, "test": 40}
    for split, count in splits.items():
        drawn = [CASES["several labels"].draw(rng) for _ in range(count)]
        names = ("queen", "boat")
        rows = [{"text": each.text_a, "label": [names[n] for n in each.label]} for each in drawn]
        write_files(folder, {f"{split}.jsonl": lines(rows)})
    return folder


@pytest.fixture(scope="module")
def tuned(start, sets_data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tuned") / "sets"
    config = small_finetune(
        epochs=4,
        sequence_length=24,
        class_weights="balanced",
        own=OwnTaskConfig(kind="multi_label"),
    )
    finetune(start, "own", sets_data, folder, config, seeds=2, progress=ignore)
    return folder


def test_dev_chooses_thresholds_that_are_kept(tuned, sets_data, capsys):
    results = json.loads((tuned / "results.json").read_text())
    assert {*results["ensemble"]} == {"micro_f1", "macro_f1"}
    assert results["columns"] == ["text"]
    assert results["label_columns"] == ["label"]
    assert "test" in results["seeds"]["0"]["other_scores"]
    model = read_finetuned(tuned)
    thresholds = model.facts["thresholds"]
    assert len(thresholds) == 2
    texts = [json.loads(line) for line in (sets_data / "dev.jsonl").read_text().splitlines()]
    answers = load_model(model).answer(texts).records
    assert {*answers[0]} == {"prediction", "prob_boat", "prob_queen"}
    for answer in answers:
        probs = [answer["prob_boat"], answer["prob_queen"]]
        found = zip(("boat", "queen"), probs, thresholds, strict=True)
        assert answer["prediction"] == [name for name, prob, least in found if prob >= least]
    judged = read_judgements(tuned)
    said = [[name for name in judged.labels if name in each["prediction"]] for each in answers]
    places = [[judged.labels[n] for n in row.nonzero()[0]] for row in judged.said_NC]
    assert places == said
    out, _ = succeed(capsys, "predict", tuned, "--input", sets_data / "test.jsonl")
    assert json.loads(out.splitlines()[0]).keys() == answers[0].keys()


def test_the_cards_lines_answer_alike(tuned, tmp_path):
    export(tuned, tmp_path / "hf")
    card = (tmp_path / "hf" / "README.md").read_text()
    assert "model.config.thresholds" in card
    assert "if prob >= thresholds[label]" in card


def test_the_report_shows_labels_and_calibration(tuned, tmp_path, capsys):
    succeed(capsys, "report", tuned, "--out", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    judged = read_judgements(tuned)
    assert "Answers of sets" in page
    assert f"(ECE): {calibrate(judged).error:.3f}" in page
    assert "Confusion matrix" not in page
    table = tabulate_labels(judged)
    scores = precision_recall_fscore_support(judged.gold_NC, judged.said_NC, zero_division=0.0)
    expected = {label: row for label, *row in zip(judged.labels, *scores, strict=True)}
    for label, count, *row in table.rows:
        *shares, support = expected[label]
        assert (int(count), [float(each) for each in row]) == (
            support,
            pytest.approx(shares, abs=1e-3),
        )


def test_calibration_is_that_of_torchmetrics():
    classification = pytest.importorskip("torchmetrics.functional.classification")
    rng = np.random.default_rng(0)
    probs = rng.random(500).astype(np.float32)
    is_right = rng.random(500) < probs**2
    found = measure_calibration(probs, is_right)
    # Theirs turns probabilities below a half into those of the other label, so they are left out.
    sure = probs > 0.5
    theirs = classification.binary_calibration_error(
        torch.tensor(probs[sure]), torch.tensor(is_right[sure]).int(), n_bins=10
    )
    assert measure_calibration(probs[sure], is_right[sure]).error == pytest.approx(float(theirs))
    assert len(found.confidence) == 10
    assert measure_calibration(np.array([1.0, 0.0]), np.array([True, False])).error == 0


@pytest.mark.parametrize("count", [3, 25])
def test_confusions_are_those_of_scikit_learn(tmp_path, count):
    rng = np.random.default_rng(0)
    labels = [f"{number:02}" for number in range(count)]
    gold, probs = rng.integers(0, count, 400), rng.dirichlet(np.ones(count), 400)
    head = "\t".join(["index", "label", "prediction", *(f"prob_{label}" for label in labels)])
    rows = [
        "\t".join([str(n), labels[gold[n]], "", *(f"{each:.6f}" for each in probs[n])])
        for n in range(400)
    ]
    write_files(tmp_path, {})
    (tmp_path / "seed-0").mkdir()
    (tmp_path / "seed-0" / "predictions.tsv").write_text("\n".join([head, *rows]))
    results = {"metric": "accuracy", "seeds": {"0": {"scores": {"accuracy": 0.5}}}}
    (tmp_path / "results.json").write_text(json.dumps(results))
    judged = read_judgements(tmp_path)
    names, counts = count_confusions(judged)
    expected = confusion_matrix(gold, judged.probs_NC.argmax(axis=1))
    assert counts.sum() == 400
    assert len(names) == min(count, 12)
    if count == 3:
        assert counts.tolist() == expected.tolist()
    else:
        kept = [labels.index(name) for name in names[:-1]]
        assert counts[:-1, :-1].tolist() == expected[np.ix_(kept, kept)].tolist()
