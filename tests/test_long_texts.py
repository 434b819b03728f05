"""Long texts: their windows, how the windows' answers are joined, and what is cut."""

import dataclasses

import pytest
import torch
import transformers
from commands import refuse_command, run_python_of, succeed
from refusals import refuse
from tasks import ignore, read, small_finetune

from electra.checkpoints.finetuned import read_finetuned
from electra.files import read_object
from electra.finetuning.loop import finetune
from electra.finetuning.network import TaskNetwork, run_network
from electra.inference.models import read_model
from electra.inference.predict import load_model
from electra.interop.export import export
from electra.model.encoder import Encoder
from electra.model.initialisation import init_weights
from electra.tasks.classification import Classification
from electra.tasks.config import FinetuneConfig
from electra.tasks.multi_label import MultiLabel
from electra.tasks.registry import restore_family
from electra.tasks.regression import Regression
from electra.tasks.rows import make_batch, pad_rows
from electra.tasks.texts import JOINS, Example
from electra.training.machine import Machine

CPU = torch.device("cpu")
LENGTH, MOST = 16, 4
SIZE, OVERLAP = 14, 3
FULL = SIZE + (MOST - 1) * (SIZE - OVERLAP)
LABELS = ("no", "yes", "?")
FAMILIES = {
    "classification": Classification(labels=LABELS, metrics=("accuracy",)),
    "multi_label": MultiLabel(labels=LABELS, metrics=("micro_f1",)),
    "regression": Regression(names=LABELS, ranges=((0.0, 1.0),) * 3, metrics=("spearman",)),
}


@pytest.fixture(scope="module")
def words(toy_text, toy_tokenizer):
    """Words of one token each."""
    found = dict.fromkeys(toy_text.read_text().split())
    return [word for word in found if len(toy_tokenizer.encode(word)) == 1]


def say(words, count, start=0):
    """A text of so many tokens."""
    return " ".join(words[(start + 7 * n) % len(words)] for n in range(count))


def window(family, join=None):
    return dataclasses.replace(family, max_windows=MOST, join=join)


@pytest.fixture(scope="module")
def texts(words):
    """Short, as long as a row, and longer, up to what four windows hold and beyond."""
    sizes = [3, SIZE, SIZE + 1, 2 * SIZE, FULL - 1, FULL, FULL + 1, 40 * FULL]
    return [Example(say(words, size, n), None, None) for n, size in enumerate(sizes)]


def cut_by_hand(ids):
    """Windows until one reaches the end."""
    windows = []
    for start in range(0, len(ids), SIZE - OVERLAP):
        windows.append(ids[start : start + SIZE])
        if start + SIZE >= len(ids):
            break
    return windows


def build(family, pretrained):
    encoder = Encoder(pretrained.encoder)
    head = family.build_head(pretrained.encoder, FinetuneConfig(dropout_prob=0.0))
    for module in (encoder, head):
        init_weights(module, 0.1, torch.Generator().manual_seed(1))
    return TaskNetwork(encoder, head, family).eval()


def test_windows_are_those_by_hand_and_what_is_longer_is_cut(texts, toy_tokenizer):
    rows = window(FAMILIES["classification"]).encode(texts, toy_tokenizer, LENGTH)
    cls, sep = toy_tokenizer.cls_id, toy_tokenizer.sep_id
    expected = [cut_by_hand(toy_tokenizer.encode(each.text_a)) for each in texts]
    assert rows.counts.tolist() == [min(len(each), MOST) for each in expected]
    assert rows.counts.tolist() == [1, 1, 2, 3, 4, 4, 4, 4]
    flat = [[cls, *ids, sep] for each in expected for ids in each[:MOST]]
    for row, length, ids in zip(rows.input_ids, rows.lengths, flat, strict=True):
        assert row[:length].tolist() == ids
    assert rows.is_cut == [False] * 6 + [True] * 2
    assert window(FAMILIES["regression"]).max_tokens(LENGTH) == FULL


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("join", JOINS)
def test_answers_are_the_windows_answers_joined(texts, toy_tokenizer, pretrained, name, join):
    family = FAMILIES[name]
    network = build(window(family, join), pretrained)
    rows = network.family.encode(texts, toy_tokenizer, LENGTH)
    found = run_network(network, rows, CPU)["logits"]
    single = TaskNetwork(network.encoder, network.head, family)
    how = {"mean": lambda x: x.mean(0), "max": lambda x: x.amax(0), "first": lambda x: x[0]}[join]
    for text, logits in zip(texts, found, strict=True):
        windows = cut_by_hand(toy_tokenizer.encode(text.text_a))[:MOST]
        one_by_one = [[toy_tokenizer.cls_id, *ids, toy_tokenizer.sep_id] for ids in windows]
        each = [
            run_network(
                single, pad_rows([(ids, len(ids))], {}, toy_tokenizer, [], is_cut=[False]), CPU
            )["logits"][0]
            for ids in one_by_one
        ]
        torch.testing.assert_close(logits, how(torch.stack(each)), atol=1e-6, rtol=1e-6)
    assert rows.is_cut == (
        [False] * 2 + [True] * 6 if join == "first" else [False] * 6 + [True] * 2
    )


def test_the_loss_is_that_of_the_mean(texts, toy_tokenizer, pretrained):
    labelled = [each._replace(label=n % 3) for n, each in enumerate(texts)]
    network = build(window(FAMILIES["classification"]), pretrained)
    rows = network.family.encode(labelled, toy_tokenizer, LENGTH)
    batch = make_batch(rows, torch.tensor([7, 0, 3]), CPU)
    outputs = network(batch)
    mean = outputs["mean"].log_softmax(-1)[range(3), [1, 0, 0]]
    torch.testing.assert_close(network.family.loss(outputs, batch), -mean.mean())
    network.family.loss(outputs, batch).backward()
    assert network.head.get_parameter("dense.weight").grad.abs().sum() > 0


def test_short_texts_have_the_same_answers_to_the_bit(words, toy_tokenizer, pretrained):
    short = [Example(say(words, n, n), None, None) for n in range(1, SIZE + 1)]
    cut = build(FAMILIES["classification"], pretrained)
    windows = TaskNetwork(cut.encoder, cut.head, window(cut.family))
    ours, theirs = (each.family.encode(short, toy_tokenizer, LENGTH) for each in (cut, windows))
    assert torch.equal(ours.input_ids, theirs.input_ids)
    assert torch.equal(ours.begins, theirs.begins)
    found = [run_network(each, ours, CPU)["logits"] for each in (cut, windows)]
    assert torch.equal(*found)


@pytest.mark.parametrize("best", JOINS)
@pytest.mark.parametrize("name", FAMILIES)
def test_dev_chooses_the_join(name, best, toy_tokenizer):
    family, rng = window(FAMILIES[name]), torch.Generator().manual_seed(0)
    right = torch.rand(30, 3, generator=rng)
    labels = {
        "classification": right.argmax(1).tolist(),
        "multi_label": [tuple((row > 0.5).nonzero().flatten().tolist()) for row in right],
        "regression": [tuple(row) for row in right.tolist()],
    }[name]
    dev = family.encode([Example("a", None, each) for each in labels], toy_tokenizer, LENGTH)
    outputs = {way: torch.rand(30, 3, generator=rng) for way in JOINS}
    outputs["logits"] = outputs["mean"]
    outputs[best] = 8 * right - 4 if name == "multi_label" else right
    fitted, joined = family.fit_to_dev(dev, outputs)
    assert (fitted.join, list(joined)) == (best, ["logits"])
    assert fitted.score(dev, joined)[fitted.headline] == pytest.approx(1)
    assert bool(getattr(fitted, "thresholds", ())) is (name == "multi_label")
    facts = {**fitted.facts(), "columns": ["text"]}
    again = restore_family(facts)
    assert dataclasses.replace(again, metrics=fitted.metrics) == fitted


def test_equal_ways_leave_the_mean(toy_tokenizer):
    family = window(FAMILIES["classification"])
    dev = family.encode([Example("a", None, n % 3) for n in range(9)], toy_tokenizer, LENGTH)
    same = torch.rand(9, 3)
    fitted, _ = family.fit_to_dev(dev, dict.fromkeys(("logits", *JOINS), same))
    assert fitted.join == "mean"


def test_parts_of_several_windows_are_taken_and_joined(texts, toy_tokenizer):
    rows = window(FAMILIES["classification"]).encode(texts, toy_tokenizer, LENGTH)
    taken = rows.take(torch.tensor([5, 0, 3]))
    assert taken.counts.tolist() == [4, 1, 3]
    firsts = rows.begins[[5, 0, 3]]
    assert torch.equal(taken.input_ids[taken.begins[:-1]], rows.input_ids[firsts])
    assert rows.item_lengths.tolist() == [5, *[LENGTH] * 7]


# A fine-tuning of which the first window says nothing


@pytest.fixture(scope="module")
def data(toy_text, tmp_path_factory):
    """The subject of a sentence, which is behind 30 words that are always the same."""
    folder = tmp_path_factory.mktemp("long")
    lines = [line for line in toy_text.read_text().splitlines() if line]
    for split, part in (("train", lines[:200]), ("dev", lines[200:260])):
        rows = [
            f"{'the boat ' * 15}{line}\t{'woman' if 'queen' in line else 'other'}" for line in part
        ]
        (folder / f"{split}.tsv").write_text("\n".join(["text\tlabel", *rows]))
    return folder


def tune(start, data, out, **changes):
    config = small_finetune(epochs=6, sequence_length=24, **changes)
    return finetune(start, "own", data, out, config, seeds=1, progress=ignore)


@pytest.fixture(scope="module")
def tuned(start, data, tmp_path_factory):
    """By pooling, and its results; "cut" is without windows."""
    folder = tmp_path_factory.mktemp("tuned")
    results = {
        name: tune(start, data, folder / name, **changes)
        for name, changes in {
            "cls": {"max_windows": 4},
            "mean": {"max_windows": 4, "pooling": "mean"},
            "cut": {},
        }.items()
    }
    return folder, results


def test_windows_are_learnt_from_where_the_first_says_nothing(tuned):
    _, results = tuned
    constant = results["cut"]["majority"]["accuracy"]
    assert results["cut"]["median"] == constant
    assert results["cls"]["median"] > constant + 0.1
    (join,) = [seed["join"] for seed in results["cls"]["seeds"].values()]
    assert (
        f"windows of a long text are joined by {join} (seed 0), as dev chose"
        in (results["cls"]["notes"])
    )
    assert results["cls"]["num_cut"] == {"train": 0, "dev": 0}
    assert results["cut"]["num_cut"] == {"train": 200, "dev": 60}


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("join", JOINS)
def test_the_card_answers_a_long_text_as_predict(
    tuned, tmp_path, monkeypatch, words, pooling, join
):
    folder, _ = tuned
    model = read_finetuned(folder / pooling)
    known = model.facts["windows"]
    monkeypatch.setitem(known, "join", join)
    monkeypatch.setattr("electra.interop.export.read_finetuned", lambda *_: model)
    export(folder / pooling, tmp_path / "hf")
    card = tmp_path / "hf" / "README.md"
    text, prose = say(words, 90), card.read_text()
    card.write_text(prose.replace('"a text"', f'"{text}"'))
    logits = run_python_of(card, tmp_path, monkeypatch)["logits"]
    answers = load_model(model, Machine()).answer([{"text": text}])
    probs = [answers.records[0][f"prob_{name}"] for name in ("other", "woman")]
    assert logits.softmax(-1).tolist() == pytest.approx(probs, abs=1e-5)
    told = "Of a text its first 24 tokens" if join == "first" else "in up to 4 windows of 24 tokens"
    assert told in prose
    if pooling == "cls":
        assert read_object(tmp_path / "hf" / "config.json")["windows"] == known
        pipe = transformers.pipeline("text-classification", str(tmp_path / "hf"), top_k=None)
        alone = {each["label"]: each["score"] for each in pipe([text], truncation=True)[0]}
        is_same = alone["woman"] == pytest.approx(probs[1], abs=1e-5)
        assert is_same is (join == "first")


def test_what_is_longer_than_the_windows_is_said(tuned, tmp_path, capsys, words):
    folder, _ = tuned
    read_most = read_model("cls", folder / "cls", Machine()).describe()["max_tokens"]
    assert read_most == 22 + 3 * 17
    (tmp_path / "in.txt").write_text(f"{say(words, read_most)}\n{say(words, read_most + 1)}\n")
    _, err = succeed(capsys, "predict", folder / "cls", "--input", tmp_path / "in.txt")
    assert "1 of 2 inputs was longer than the run's windows (73 tokens) and was cut" in err


def test_what_training_cuts_is_in_its_notes(start, data, tmp_path):
    config = small_finetune(epochs=1, sequence_length=12, max_windows=2)
    results = finetune(start, "own", data, tmp_path / "out", config, seeds=1, progress=ignore)
    told = "longer than 2 windows of 12 tokens, and cut: 200 of 200 in train, 60 of 60 in dev"
    assert f"{told} (sequence_length, max_windows)" in results["notes"]


def test_refusals(start, tmp_path, capsys):
    refuse("max_windows must be >= 1, not 0", FinetuneConfig, max_windows=0)
    for split in ("train", "dev"):
        (tmp_path / f"{split}.tsv").write_text("text_a\ttext_b\tlabel\n" + "a\tb\t0\nb\ta\t1\n" * 4)
    told = "max_windows 4 is for labels and numbers of single texts, not for own"
    refuse(f"{told}; leave it out", read, "own", tmp_path, "max_windows=4")
    out = tmp_path / "out"
    words = "finetune", start, "--task", "own", "--data", tmp_path, "--out", out
    refuse_command(told, capsys, *words, "--set", "max_windows=4")
    assert not out.exists()
