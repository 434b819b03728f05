"""Answers of a model are the same everywhere: verbs, library, service, exports, other programs."""

import datetime
import json
import math
import shutil
import unicodedata
import warnings
from typing import NamedTuple

import numpy as np
import pytest
import torch
from commands import refuse_command, succeed
from networks import draw, make_sizes
from refusals import refuse
from tasks import ignore, read, small_finetune, write_files, write_parquet

import electra
from electra.checkpoints.finetuned import Finetuned
from electra.checkpoints.saved import SavedNetwork
from electra.finetuning.grid import combine, search
from electra.finetuning.loop import finetune
from electra.inference.models import load_models
from electra.inference.predict import keep_columns, load_model
from electra.interop.export import describe, describe_finetuned, write_plain
from electra.model.encoder import Encoder
from electra.model.heads import DiscriminatorHead
from electra.reports.runs import read_folders
from electra.tasks import registry
from electra.tasks.classification import order_labels
from electra.tasks.config import FinetuneConfig
from electra.tasks.registry import FAMILIES, read_inputs, restore_family
from electra.tasks.regression import Regression
from electra.tokenizing.config import TokenizerConfig
from electra.tokenizing.tokenizer import Tokenizer
from electra.training.machine import Machine

transformers = pytest.importorskip("transformers")
LENGTH = 32
BODIES = ("electra", "modernbert", "deberta-v2")


# Heads in other programs


class Head(NamedTuple):
    """A fine-tuned model of random weights, and what it is asked."""

    facts: dict
    records: list
    pooling: str = "cls"


TEXTS = ["the queen sold a boat .", "in 1912", "my neighbour unhesitatingly painted the castle"]
SINGLE = [{"text": text} for text in TEXTS]
PAIRS = [{"text_a": text, "text_b": "the old sailor"} for text in TEXTS]
SENTENCES = [{"tokens": text.split()} for text in TEXTS]
CHOICES = [{"context": text, "choices": ["a boat", "an engine .", "the queen"]} for text in TEXTS]
QUESTIONS = [{"question": "who painted", "context": text} for text in (TEXTS[0], TEXTS[2])]
NAMES = {"family": "classification", "labels": ["no", "yes", "?"]}
SEVERAL = {"family": "multi_label", "labels": ["no", "yes", "?"], "thresholds": [0.5, 0.4, 0.6]}
NUMBER = {"family": "regression", "names": ["stars"], "ranges": [[-1.0, 4.0]]}
NUMBERS = {"family": "regression", "names": ["a", "b"], "ranges": [[0.0, 5.0], [-100.0, 100.0]]}
HEADS = {
    "labels": Head(NAMES | {"columns": ["text"]}, SINGLE),
    "labels of pairs": Head(NAMES | {"columns": ["one", "two"]}, PAIRS),
    "several labels": Head(SEVERAL | {"columns": ["text"]}, SINGLE),
    "a number": Head(NUMBER | {"columns": ["text"]}, SINGLE),
    "a number of pairs": Head(NUMBER | {"columns": ["one", "two"]}, PAIRS),
    "numbers": Head(NUMBERS | {"columns": ["text"]}, SINGLE),
    "tags": Head({"family": "tagging", "labels": ["O", "B-X", "I-X"]}, SENTENCES),
    "choices": Head({"family": "choice", "num_choices": 3}, CHOICES),
    "spans": Head({"family": "squad", "head": "plain", "null_threshold": 0.0}, QUESTIONS),
}


def test_every_family_has_a_head_here():
    without = {"retrieval"}  # whose encoder is the whole network: test_search
    assert {head.facts["family"] for head in HEADS.values()} == {*FAMILIES} - without


def draw_finetuned(head, body, tokenizer):
    """A model with a head whose numbers differ much from text to text."""
    sizes = make_sizes(body, positions=LENGTH, vocab_size=tokenizer.vocab_size)
    config = FinetuneConfig(pooling=head.pooling, sequence_length=LENGTH, device="cpu", threads=1)
    facts = {"task": "own", "columns": [], "label_columns": []} | head.facts
    module = draw(restore_family(facts).build_head(sizes, config), 0.3)
    encoder, parameters = (
        {name: each.detach() for name, each in part.named_parameters()}
        for part in (draw(Encoder(sizes)), module)
    )
    network = SavedNetwork("", sizes, (encoder,), parameters)
    return Finetuned(network, tokenizer, LENGTH, "random", facts=facts, config=config)


@pytest.fixture(scope="module", params=BODIES)
def make_pair(request, toy_tokenizer, tmp_path_factory):
    """Return what gives a model's answers, and the folder of its export."""

    def make_pair(head):
        model, folder = (
            draw_finetuned(head, request.param, toy_tokenizer),
            tmp_path_factory.mktemp("hf"),
        )
        write_plain(folder, describe_finetuned(model))
        return load_model(model).answer(head.records).records, folder

    return make_pair


def ask_transformers(folder, kind, *texts, **how):
    """The outputs of a class of transformers for one row or some, and the encoding."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = getattr(transformers, f"AutoModelFor{kind}").from_pretrained(folder).eval()
    encoded = tokenizer(*texts, padding=True, return_tensors="pt", **how)
    with torch.no_grad():
        return model, encoded, model(**encoded)


@pytest.mark.parametrize("name", ["labels", "labels of pairs"])
def test_labels(make_pair, name):
    ours, folder = make_pair(HEADS[name])
    asked = zip(*(record.values() for record in HEADS[name].records), strict=True)
    model, _, found = ask_transformers(folder, "SequenceClassification", *map(list, asked))
    for probs, answer in zip(found.logits.softmax(dim=-1).tolist(), ours, strict=True):
        theirs = {f"prob_{model.config.id2label[n]}": prob for n, prob in enumerate(probs)}
        assert theirs == pytest.approx({name: answer[name] for name in theirs}, abs=1e-5)
    assert np.ptp([answer["prob_yes"] for answer in ours]) > 0.01


@pytest.mark.parametrize("name", ["a number", "a number of pairs"])
def test_numbers(make_pair, name):
    ours, folder = make_pair(HEADS[name])
    numbers = [answer["prediction"] for answer in ours]
    asked = zip(*(record.values() for record in HEADS[name].records), strict=True)
    model, _, found = ask_transformers(folder, "SequenceClassification", *map(list, asked))
    assert found.logits[:, 0].tolist() == pytest.approx(numbers, abs=1e-4)
    assert model.config.id2label == {0: "stars"}
    assert max(numbers) - min(numbers) > 0.5
    pipeline = transformers.pipeline("text-classification", model=str(folder))
    fields = ("text", "text_pair")
    given = [dict(zip(fields, each.values(), strict=False)) for each in HEADS[name].records]
    assert [each["score"] for each in pipeline(given)] == pytest.approx(numbers, abs=1e-4)


@pytest.mark.parametrize("name", ["labels of pairs", "a number of pairs"])
def test_pairs_in_a_cross_encoder(make_pair, name):
    """Its lines are those of docs/CLIENTS.md; a number does not go through a sigmoid."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    ours, folder = make_pair(HEADS[name])
    model = sentence_transformers.CrossEncoder(str(folder), device="cpu")
    asked = [tuple(record.values()) for record in PAIRS]
    if name == "a number of pairs":
        numbers = [answer["prediction"] for answer in ours]
        assert model.predict(asked).tolist() == pytest.approx(numbers, abs=1e-4)
        return
    labels = [f"prob_{label}" for label in model.config.id2label.values()]
    for row, answer in zip(model.predict(asked, apply_softmax=True), ours, strict=True):
        assert row.tolist() == pytest.approx([answer[label] for label in labels], abs=1e-5)


def test_tags(make_pair):
    ours, folder = make_pair(HEADS["tags"])
    model, encoded, found = ask_transformers(folder, "TokenClassification", TEXTS)
    for row, answer in enumerate(ours):
        tags = found.logits[row].argmax(dim=-1).tolist()
        first = {word: place for place, word in reversed([*enumerate(encoded.word_ids(row))])}
        places, end = [], 0
        for word in answer["tokens"]:  # of transformers' words some are parts of ours
            start = TEXTS[row].index(word, end)
            end = start + len(word)
            places.append(encoded.char_to_token(row, start))
        assert set(places) <= set(first.values())
        assert [model.config.id2label[tags[place]] for place in places] == answer["tags"]
    assert len({tag for answer in ours for tag in answer["tags"]}) > 1


def test_choices(make_pair):
    ours, folder = make_pair(HEADS["choices"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForMultipleChoice.from_pretrained(folder).eval()
    for record, answer in zip(CHOICES, ours, strict=True):
        contexts = [record["context"]] * 3
        encoded = tokenizer(contexts, record["choices"], padding=True, return_tensors="pt")
        with torch.no_grad():
            logits = model(**{name: each[None] for name, each in encoded.items()}).logits[0]
        expected = [answer[f"prob_{number}"] for number in range(3)]
        assert logits.softmax(dim=0).tolist() == pytest.approx(expected, abs=1e-5)


def test_spans(make_pair):
    ours, folder = make_pair(HEADS["spans"])
    for record, answer in zip(QUESTIONS, ours, strict=True):
        _, encoded, found = ask_transformers(
            folder, "QuestionAnswering", *record.values(), return_token_type_ids=True
        )
        is_text = torch.tensor([place == 1 for place in encoded.sequence_ids(0)])
        scores = found.start_logits[0][:, None] + found.end_logits[0]
        scores = scores.masked_fill(~(is_text[:, None] & is_text).triu(), -math.inf)
        first, last = divmod(int(scores.argmax()), len(scores))
        start, end = encoded.token_to_chars(first).start, encoded.token_to_chars(last).end
        assert record["context"][start:end] == answer["span"]
        none = (found.start_logits[0, 0] + found.end_logits[0, 0] - scores.max()).sigmoid()
        assert none.item() == pytest.approx(answer["prob_none"], abs=1e-5)


class Inherited(Regression):
    """A family that does not say how it is written."""


def test_no_family_inherits_how_it_is_written(make_pair, monkeypatch):
    monkeypatch.setitem(registry.FAMILIES, "two", Inherited)
    head = Head(HEADS["numbers"].facts | {"family": "two"}, SINGLE)
    refuse("no class for the family 'two', or its as_transformers", make_pair, head)


def test_several_numbers(make_pair):
    ours, folder = make_pair(HEADS["numbers"])
    model, _, found = ask_transformers(folder, "SequenceClassification", TEXTS)
    expected = [[answer["prediction_a"], answer["prediction_b"]] for answer in ours]
    np.testing.assert_allclose(found.logits.numpy(), expected, atol=2e-3)
    assert np.ptp([second for _, second in expected]) > 20
    assert (model.config.id2label, model.config.problem_type) == ({0: "a", 1: "b"}, "regression")


def test_several_labels(make_pair):
    """transformers' pipeline has the same probabilities, and config.json the thresholds."""
    ours, folder = make_pair(HEADS["several labels"])
    pipeline = transformers.pipeline("text-classification", model=str(folder))
    config = pipeline.model.config
    assert config.problem_type == "multi_label_classification"
    assert config.thresholds == {"no": 0.5, "yes": 0.4, "?": 0.6}
    for answer, found in zip(ours, pipeline(TEXTS, top_k=None), strict=True):
        theirs = {each["label"]: each["score"] for each in found}
        assert theirs == pytest.approx({n: answer[f"prob_{n}"] for n in theirs}, abs=1e-5)
        said = [n for n, least in config.thresholds.items() if answer[f"prob_{n}"] >= least]
        assert answer["prediction"] == said
    assert np.ptp([answer["prob_yes"] for answer in ours]) > 0.01


# One precision, one line for each line


@pytest.fixture(scope="module")
def tuned(start, toy_question, tmp_path_factory):
    """A classifier that was trained in bfloat16."""
    folder = tmp_path_factory.mktemp("tuned") / "tuned"
    config = small_finetune(epochs=1, sequence_length=24, precision="bfloat16")
    finetune(start, "own", toy_question, folder, config, seeds=1, progress=ignore)
    return folder


def predict_by_command(capsys, folder, path, *words):
    printed, err = succeed(capsys, "predict", folder, "--input", path, *words)
    return [json.loads(line) for line in printed.splitlines()], err


def serve(served, records):
    """The answers of a service, without its mark of records that were cut."""
    found = served.predict(served.model.parse(records))
    return [{name: each[name] for name in each if name != "is_cut"} for each in found]


def test_a_model_trained_in_bfloat16_answers_in_float32_everywhere(tuned, tmp_path, capsys):
    (tmp_path / "in.txt").write_text("\n".join(TEXTS))
    found, _ = predict_by_command(capsys, tuned, tmp_path / "in.txt")
    rounded, _ = predict_by_command(capsys, tuned, tmp_path / "in.txt", "--precision", "bfloat16")
    served = load_models([tuned], Machine())["tuned"]
    answers = [
        serve(served, SINGLE),
        electra.predict(tuned, SINGLE),
        electra.predict(electra.load(tuned), SINGLE),
    ]
    for each in answers:
        for one, other in zip(each, found, strict=True):
            assert one == pytest.approx(other, abs=2e-6)
    assert rounded != found
    assert electra.predict(electra.load(tuned, precision="bfloat16"), SINGLE) == rounded
    refuse(
        "unknown precision 'float8'; did you mean 'float32'",
        electra.load,
        tuned,
        precision="float8",
    )


def test_the_precision_of_a_model_is_that_of_its_every_answer(run):
    """In bfloat16 all answers change by the rounding, and by no more."""
    exact, rounded = electra.load(run), electra.load(run, precision="bfloat16")
    answers = [
        [
            [word.prob_replaced for words in electra.detect(model, TEXTS) for word in words],
            [each.prob for each in electra.fill(model, ["the [MASK] sold"], top=1)[0][0]],
            electra.embed(model, TEXTS).ravel().tolist(),
            [each.pll / each.num_tokens for each in electra.score(model, TEXTS)],
        ]
        for model in (exact, rounded)
    ]
    for one, other in zip(*answers, strict=True):
        assert one != other
        assert one == pytest.approx(other, abs=0.1)


BLANK = {
    "labels": ("in.txt", "\nin 1912\n \n\n", [1, 3, 4], 4),
    "labels of pairs": ("in.tsv", "one\ttwo\n\t\na\t\n \t \n\tb\n", [1, 3], 4),
    "several labels": ("in.txt", "\n\na\n", [1, 2], 3),
    "numbers": ("in.txt", "\nb\n", [1], 2),
    "a number": ("in.jsonl", '{"text": ""}\n\n{"text": "a"}\n', [1], 2),
    "a number of pairs": ("in.csv", 'n,one,two\n7,"",""\n8,a,b\n', [1], 2),
    "tags": ("in.txt", "a boat\n\nin 1912\n", [2], 3),
    "choices": ("in.tsv", "c\t0\t1\t2\n\t\t \t\nx\ta\tb\tc\n", [1], 2),
    "spans": ("in.tsv", "question\tcontext\twhere\n\t\tx\nwho\tthe queen\ty\n", [1], 2),
}
COLUMNS = {"choices": (["c", "0", "1", "2"], ["label"]), "tags": (["1"], ["last"])}


@pytest.mark.parametrize("name", HEADS)
def test_what_has_no_text_has_a_line_and_no_answer(name, toy_tokenizer, tmp_path):
    file, content, blank, count = BLANK[name]
    (tmp_path / file).write_text(content)
    model = draw_finetuned(HEADS[name], "electra", toy_tokenizer)
    columns = zip(("columns", "label_columns"), COLUMNS.get(name, ()), strict=False)
    facts = model.facts | dict(columns)
    records, rows = read_inputs(facts, tmp_path / file)
    answers = load_model(model).answer(records)
    assert len(records) == len(rows) == len(answers.records) == count
    assert list(answers.blank) == blank
    keys = {tuple(answer) for answer in answers.records}
    assert len(keys) == 1
    for number, answer in enumerate(answers.records, 1):
        missing = [value for key, value in answer.items() if key not in ("id", "tokens")]
        assert all(value in (None, []) for value in missing) is (number in blank)
    asked = [record for number, record in enumerate(records, 1) if number not in blank]
    alone = load_model(model).answer(asked).records
    given = [answer for n, answer in enumerate(answers.records, 1) if n not in blank]
    ids = ("id",) if name == "spans" else ()
    for one, other in zip(alone, given, strict=True):
        assert {k: v for k, v in one.items() if k not in ids} == {
            k: v for k, v in other.items() if k not in ids
        }
    nothing = load_model(model).answer([records[blank[0] - 1]] * 2)
    assert [tuple(each) for each in nothing.records] == [*keys] * 2


def test_blank_lines_are_counted_and_columns_are_kept(tuned, tmp_path, capsys):
    (tmp_path / "in.txt").write_text("the queen\n\na boat\n\n")
    found, err = predict_by_command(capsys, tuned, tmp_path / "in.txt", "--keep")
    assert [each["text"] for each in found] == ["the queen", "", "a boat", ""]
    assert [each["prediction"] is None for each in found] == [False, True, False, True]
    assert "note: 2 inputs without text (2, 4): each has no answer" in err
    out = tmp_path / "out.tsv"
    (tmp_path / "in.csv").write_text('when,text,n\n2020,"a, boat",7\n2021,,8\n')
    succeed(capsys, "predict", tuned, "--input", tmp_path / "in.csv", "--keep", "--out", out)
    header, *rows = [line.split("\t") for line in out.read_text().splitlines()]
    assert header == ["when", "text", "n", "prediction", "prob_other", "prob_woman"]
    assert [row[:3] for row in rows] == [["2020", "a, boat", "7"], ["2021", "", "8"]]
    assert rows[1][3:] == ["", "", ""]
    again = ["predict", tuned, "--input", out, "--out", tmp_path / "again.tsv"]
    refuse_command("the answers also have a column 'prediction'", capsys, *again, "--keep")
    assert not (tmp_path / "again.tsv").exists()
    day = datetime.date(2020, 2, 1)
    write_parquet(tmp_path / "in.parquet", day=[day, day], text=["a boat", "the queen"])
    found, _ = predict_by_command(capsys, tuned, tmp_path / "in.parquet", "--keep")
    assert [each["day"] for each in found] == ["2020-02-01"] * 2


def test_columns_that_are_the_answers_own_may_be_kept(toy_tokenizer, tmp_path):
    for name, record, clash in (
        ("tags", {"id": 5, "tokens": ["a", "boat"]}, "tags"),
        ("spans", {"id": 5, "question": "who", "context": "a boat"}, "span"),
    ):
        model, path = draw_finetuned(HEADS[name], "electra", toy_tokenizer), tmp_path / "in.jsonl"
        path.write_text(json.dumps(record))
        facts = model.facts | {"columns": ["tokens"], "label_columns": ["tags"]}
        records, rows = read_inputs(facts, path)
        answers = load_model(model).answer(records)
        (kept,) = keep_columns(rows, answers).records
        assert kept == record | answers.records[0]
        other = [rows[0] | {clash: "other"}]
        refuse(f"the answers also have a column '{clash}'", keep_columns, other, answers)


# Scripts without spaces


UNSPACED = {
    "Thai": "ภาษาไทยเป็นภาษาที่มีการเขียนโดยไม่เว้นวรรคระหว่างคำ",
    "Lao": "ພາສາລາວເປັນພາສາທີ່ບໍ່ມີຍະຫວ່າງລະຫວ່າງຄຳ",
    "Khmer": "ភាសាខ្មែរសរសេរដោយមិនមានដកឃ្លារវាងពាក្យ",
    "Burmese": "မြန်မာဘာသာစကားသည်စကားလုံးများကြားတွင်နေရာလွတ်မရှိပါ",
    "Chinese": "我们昨天在北京的图书馆里读了很多书",
    "Japanese": "わたしはきのうとしょかんでほんをよみましたコンピューター",
}


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
@pytest.mark.parametrize("script", UNSPACED)
def test_words_of_a_script_without_spaces_are_tokens(script, kind):
    line = UNSPACED[script]
    parts = [line[start : start + 4] for start in range(0, len(line), 2)]
    options = {"lowercase": False, "strip_accents": False} if kind == "wordpiece" else {}
    config = TokenizerConfig(kind=kind, vocab_size=320 if kind == "bpe" else 200, **options)
    tokenizer = Tokenizer.train([*parts, "the queen"] * 99, config)
    text = f"the queen {line}."
    ids, offsets = tokenizer.encode_with_offsets(text)
    begins = tokenizer.find_words(text, ids, offsets)
    starts = [start for is_first, (start, _) in zip(begins, offsets, strict=True) if is_first]
    inside = [start for start in starts if 10 < start < 10 + len(line)]
    assert len(inside) > 2
    assert not any(unicodedata.category(text[start]).startswith("M") for start in inside)
    assert text[0 : starts[1]].strip() == "the"
    ends = {end for _, end in offsets}
    assert {*starts[1:]} <= {*ends, *(end + 1 for end in ends)}, "a word ends where a token does"


def test_detect_and_embed_judge_the_words_of_thai(tmp_path):
    line = UNSPACED["Thai"]
    config = TokenizerConfig(vocab_size=300, min_frequency=1, lowercase=False, strip_accents=False)
    tokenizer = Tokenizer.train([line, line[:20], "the queen"] * 9, config)
    sizes = make_sizes("electra", positions=64, vocab_size=tokenizer.vocab_size)
    parts = draw(Encoder(sizes)), draw(DiscriminatorHead(sizes))
    network = SavedNetwork("replaced", sizes, (parts[0].state_dict(),), parts[1].state_dict())
    write_plain(tmp_path, describe(network, tokenizer, 64, "random"))
    text = f"the {line[:14]} {line[14:]}"
    (words,) = electra.detect(tmp_path, [text])
    assert len(words) > 5
    assert "".join(word.text for word in words) == text.replace(" ", "")
    assert all(word.text == text[word.start : word.end] for word in words)
    (units,) = electra.encode(tmp_path, [text], unit="word")
    assert [*units.starts] == [word.start for word in words]


def test_a_text_in_other_scripts_has_the_words_that_it_had(toy_tokenizer):
    for text in ("unhesitatingly naïve café", "слово", "पत्नी की", "한국어 문장", ""):
        ids, offsets = toy_tokenizer.encode_with_offsets(text)
        found = toy_tokenizer.find_words(text, ids, offsets)
        assert found[1:].tolist() == toy_tokenizer.starts_word[ids][1:].tolist()


# Grids, and folders as models


def test_a_grid_is_its_best_model(run, toy_question, tmp_path, capsys):
    """In every verb, which says so; and the card of the run has its score."""
    folder = tmp_path / "here"
    shutil.copytree(run, folder / "run")
    config = small_finetune(epochs=1, sequence_length=24)
    combinations = combine(config, [], ["learning_rate=1e-6,3e-3"])
    grid, task = folder / "grid", (folder / "run", "own", toy_question)
    best = grid / search(*task, grid, combinations, seeds=1, progress=ignore)["best"]
    expected = electra.predict(best, SINGLE)
    note = f"{grid} is a grid; its best fine-tuning on dev is {best}"
    (tmp_path / "in.txt").write_text("\n".join(TEXTS))
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        found, err = predict_by_command(capsys, grid, tmp_path / "in.txt")
    assert found == expected
    assert err.count(f"note: {note}") == 1
    with pytest.warns(UserWarning, match="is a grid"):
        loaded = electra.load(grid)
    assert loaded.folder == best
    with pytest.warns(UserWarning, match="is a grid"):
        served = load_models([grid], Machine())["grid"]
    assert serve(served, SINGLE) == expected
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        printed = succeed(capsys, "export", grid, "--out", tmp_path / "hf").out
    assert f"wrote {tmp_path / 'hf'}: seed 0 of {best} as Electra" in printed
    assert f"{best} at seed 0" in (tmp_path / "hf" / "electra.json").read_text()
    with pytest.warns(UserWarning, match="is a grid"):
        assert read_folders([grid]) == read_folders([best])
    with pytest.warns(UserWarning, match="is a grid"):
        electra.export(folder / "run", out=folder / "exported")
    card = (folder / "exported" / "README.md").read_text()
    score = json.loads((best / "results.json").read_text())["median"]
    assert f"| own | accuracy | {score:.3f} |" in card


def test_a_folder_is_asked_as_a_loaded_model_is(run, exported, tuned):
    model = electra.load(run)
    masked = ["the [MASK] sold a boat ."]
    for folder in (run, str(run), exported):
        assert electra.detect(folder, TEXTS)[0] == pytest.approx(electra.detect(model, TEXTS)[0])
        one, other = electra.fill(folder, masked), electra.fill(model, masked)
        assert [each.token for each in one[0][0]] == [each.token for each in other[0][0]]
        for layer in (None, 0, 1):
            vectors = electra.embed(folder, TEXTS, layer=layer)
            assert vectors == pytest.approx(electra.embed(model, TEXTS, layer=layer), abs=1e-5)
        plls = [[each.pll for each in electra.score(asked, TEXTS)] for asked in (folder, model)]
        assert plls[0] == pytest.approx(plls[1], abs=1e-4)
        (units,) = electra.encode(folder, TEXTS[:1], layer=0)
        assert units.states.shape[1] == 128
    assert electra.predict(str(tuned), SINGLE) == electra.predict(electra.load(tuned), SINGLE)
    refuse("is not a finished folder of `electra finetune`", electra.predict, run, SINGLE)


@pytest.mark.parametrize("body", BODIES)
def test_layer_0_is_what_the_first_layer_reads(body, toy_tokenizer, tmp_path):
    write_plain(tmp_path, describe_finetuned(draw_finetuned(HEADS["tags"], body, toy_tokenizer)))
    theirs = transformers.AutoModel.from_pretrained(tmp_path).eval()
    (ours,) = electra.encode(tmp_path, TEXTS[:1], layer=0)
    ids = transformers.AutoTokenizer.from_pretrained(tmp_path)(TEXTS[0], return_tensors="pt")
    with torch.no_grad():
        states = theirs(**ids, output_hidden_states=True).hidden_states[0][0, 1:-1]
    assert ours.states == pytest.approx(states.numpy(), abs=1e-5)


# Labels that are numbers


@pytest.mark.parametrize(
    ("names", "ordered"),
    [
        ([str(n) for n in range(12)], [str(n) for n in range(12)]),
        (["10", "-1", "+2", "03"], ["-1", "+2", "03", "10"]),
        (["10.0", "2.5", "1.0"], ["1.0", "2.5", "10.0"]),
        (["b", "10", "9"], ["10", "9", "b"]),
        (["1" * 5000, "2"], ["1" * 5000, "2"]),
    ],
)
def test_whole_numbers_are_in_their_order(names, ordered):
    assert list(order_labels(names)) == ordered


@pytest.mark.parametrize("kind", ["classification", "tagging"])
def test_label_2_is_output_2_of_an_export(kind, toy_tokenizer, tmp_path):
    if kind == "tagging":
        rows = "".join(f"word{n} {n}\nother {11 - n}\n\n" for n in range(12))
        write_files(tmp_path, {"train.txt": rows, "dev.txt": rows})
    else:
        rows = "text\tlabel\n" + "".join(f"text {n}\t{n % 12}\n" for n in range(24))
        write_files(tmp_path, {"train.tsv": rows, "dev.tsv": rows})
    task = read("own" if kind == "classification" else "tagging", tmp_path)
    head = Head(task.family.facts() | {"columns": list(task.columns.inputs)}, [])
    outgoing = describe_finetuned(draw_finetuned(head, "electra", toy_tokenizer))
    assert outgoing.settings["id2label"] == {str(n): str(n) for n in range(12)}
