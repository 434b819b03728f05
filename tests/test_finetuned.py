"""A fine-tuned model in use: it answers files of every format, and transformers answers alike."""

import dataclasses
import io
import json
import lzma
import math
import random
import shlex
import shutil
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from commands import refuse_command, run_python_of, succeed
from refusals import refuse
from runs import flip_bit
from tasks import ignore, small_finetune, write_files

import electra
from electra.assignments import override
from electra.checkpoints.finetuned import read_finetuned
from electra.checkpoints.folder import read_model
from electra.checkpoints.names import expand_classifier
from electra.files import write_json
from electra.finetuning.loop import finetune
from electra.inference.models import load_models
from electra.inference.predict import Answers, list_json, list_rows, load_model, write_answers
from electra.interop.export import describe_finetuned, export
from electra.tasks.record import number_records
from electra.tasks.registry import read_inputs, restore_family
from electra.tasks.rows import make_batch
from electra.text.tables import TABLE_FORMATS
from electra.training.machine import Machine
from electra.verification.verify import verify

CPU = torch.device("cpu")
CONFIG = small_finetune(learning_rate=3e-3, epochs=1, sequence_length=24)
PEOPLE = {"sailor": "B-PER", "doctor": "B-PER", "queen": "B-PER", "boat": "B-ART"}
KEYS = ("missing_keys", "unexpected_keys", "mismatched_keys")


DEV_FILES = {
    **dict.fromkeys(("texts", "mean", "features"), "texts-data/dev.tsv"),
    **{"numbers": "numbers-data/dev.tsv", "tags": "tags-data/dev.conll"},
    **dict.fromkeys(("choices", "bilstm"), "choices-data/dev.tsv"),
    **dict.fromkeys(("plain", "beam"), "plain-data/dev.json"),
}


@pytest.fixture(scope="module")
def sentences(toy_text):
    return [line for line in toy_text.read_text().splitlines() if line][:240]


def write_splits(folder, name, header, lines):
    """Write the first three quarters as train and the rest as dev."""
    cut = len(lines) * 3 // 4
    parts = {"train": lines[:cut], "dev": lines[cut:]}
    return write_files(
        folder, {name.format(split): "\n".join([*header, *parts[split]]) + "\n" for split in parts}
    )


def write_squad(folder, sentences):
    """Who did it? Of every third text what it does not say is asked."""
    for split, part in (("train", sentences[:30]), ("dev", sentences[30:90])):
        paragraphs = []
        for number, place in enumerate(range(0, len(part), 3)):
            context = " ".join(part[place : place + 3])
            answers = [{"text": " ".join(context.split()[:2]), "answer_start": 0}]
            asked = {"id": f"q{number}", "question": "who painted"}
            asked |= {"answers": answers if number % 3 else [], "is_impossible": number % 3 == 0}
            paragraphs.append({"context": context, "qas": [asked]})
        write_files(folder, {f"{split}.json": json.dumps({"data": [{"paragraphs": paragraphs}]})})


@pytest.fixture(scope="module")
def runs(start, sentences, tmp_path_factory):
    """A finished fine-tuning of each kind, by name, and in NAME-data the folder of its files.

    Only texts and tags are trained until they learn; of the others the answers matter, not what
    they are.
    """
    folder, rng = tmp_path_factory.mktemp("runs"), random.Random(0)
    few = sentences[:64]
    things = ["a boat", "a day", "the sea"]
    texts = [f"{line}\t{'woman' if 'queen' in line else 'other'}" for line in sentences]
    numbers = [f"{n}\t{line}\tthe boat .\t{rng.randint(0, 5)}" for n, line in enumerate(few)]
    choices = ["\t".join([x, *rng.sample(things, 3), str(n % 3)]) for n, x in enumerate(few)]
    tags = [
        "".join(f"{word} {PEOPLE.get(word, 'O')}\n" for word in f"{one} {two}".split())
        for one, two in zip(sentences[:160:2], sentences[1:160:2], strict=True)
    ]
    header = ["text\tending0\tending1\tending2\tlabel"]
    write_splits(folder / "texts-data", "{}.tsv", ["text\tlabel"], texts)
    pairs = ["index\tsentence1\tsentence2\tscore"]
    write_splits(folder / "numbers-data", "{}.tsv", pairs, numbers)
    write_splits(folder / "tags-data", "{}.conll", [], tags)
    write_splits(folder / "choices-data", "{}.tsv", header, choices)
    write_squad(folder / "plain-data", sentences)
    choice = ["own.kind=choice", "own.choices=ending0,ending1,ending2"]
    settings = {
        "texts": ("own", "texts", ["epochs=5"], 2),
        "mean": ("own", "texts", ["pooling=mean", "precision=bfloat16", "epochs=2"], 1),
        "features": ("own", "texts", ["features.layers=2", "layer_lr_decay=1"], 1),
        "numbers": ("sts-b", "numbers", [], 1),
        "pairs": ("sts-b", "numbers", ["pooling=segments", "train_examples=40"], 1),
        "bilstm": ("own", "choices", [*choice, "bilstm=true"], 1),
        "choices": ("own", "choices", [*choice, "pooling=cls", "epochs=8"], 1),
        "mean-choices": ("own", "choices", [*choice, "pooling=mean"], 1),
        "tags": ("tagging", "tags", ["epochs=5"], 1),
        "plain": ("squad-2.0", "plain", ["squad.head=plain"], 1),
        "beam": ("squad-2.0", "plain", [], 1),
    }
    for name, (task, data, assignments, seeds) in settings.items():
        config = override(CONFIG, assignments)
        out, how = folder / name, {"seeds": seeds, "progress": ignore}
        finetune(start, task, folder / f"{data}-data", out, config, **how)
    return folder


def predict(run, path, columns=(), seed=None):
    return ask(read_finetuned(run, seed), path, columns)


def ask(finetuned, path, columns=(), **how):
    records, _ = read_inputs(finetuned.facts, path, columns)
    return load_model(finetuned, **how).answer(records)


def encode_file(finetuned, path):
    """The family of a model, and the rows of a file."""
    family, records = restore_family(finetuned.facts), read_inputs(finetuned.facts, path).records
    examples = [family.parse(record) for record in number_records(records)]
    length = finetuned.config.sequence_length
    return family, family.encode(examples, finetuned.tokenizer, length)


LABELS = {"texts": ["other", "woman"], "mean": ["other", "woman"], "features": ["other", "woman"]}
LABELS |= {"numbers": [], "choices": ["0", "1", "2"], "bilstm": ["0", "1", "2"]}


@pytest.mark.parametrize(("name", "labels"), LABELS.items())
def test_dev_gets_the_labels_numbers_and_probabilities_of_training(runs, name, labels):
    finetuned = read_finetuned(runs / name, 0)
    trained_in = finetuned.config.precision
    found = ask(finetuned, runs / DEV_FILES[name], precision=trained_in)
    assert (ask(finetuned, runs / DEV_FILES[name]) == found) is (trained_in == "float32")
    lines = (runs / name / "seed-0" / "predictions.tsv").read_text().splitlines()
    header, *rows = [line.split("\t")[2:] for line in lines]
    assert header == ["prediction", *(f"prob_{label}" for label in labels)]
    for answer, (prediction, *probs) in zip(found.records, rows, strict=True):
        first = prediction if labels else float(prediction)
        assert list(answer.items()) == list(zip(header, [first, *map(float, probs)], strict=True))
    assert len({str(answer) for answer in found.records}) > 10
    results = json.loads((runs / name / "results.json").read_text())
    assert found.num_cut == results["num_cut"]["dev"]
    if name == "texts":
        assert found.num_cut > 0
        assert {row[0] for row in rows} == {"other", "woman"}


def test_dev_sentences_get_the_tags_of_training(runs):
    found = predict(runs / "tags", runs / "tags-data" / "dev.conll")
    text = (runs / "tags" / "seed-0" / "predictions.conll").read_text()
    blocks = [[line.split() for line in block.splitlines()] for block in text.strip().split("\n\n")]
    expected = [([word for word, _, _ in each], [tag for _, _, tag in each]) for each in blocks]
    assert [(each["tokens"], each["tags"]) for each in found.records] == expected
    assert len({tag for _, tags in expected for tag in tags}) > 1
    _, rows = encode_file(read_finetuned(runs / "tags"), runs / "tags-data" / "dev.conll")
    assert len(rows) > len(expected)  # longer than a row


@pytest.mark.parametrize("name", ["plain", "beam"])
def test_dev_questions_get_the_answers_of_training(runs, name):
    found = predict(runs / name, runs / "plain-data" / "dev.json")
    paths = [runs / name / "seed-0" / f"{each}.json" for each in ("predictions", "null_odds")]
    texts, odds = (json.loads(path.read_text()) for path in paths)
    assert [(each["id"], each["span"]) for each in found.records] == list(texts.items())
    for each in found.records:
        prob = 1 / (1 + math.exp(-odds[each["id"]]))
        assert each["prob_none"] == pytest.approx(prob, abs=1e-6)
        assert each["answer"] == ("" if odds[each["id"]] > 0 else each["span"])
    questions = json.loads((runs / "plain-data" / "dev.json").read_text())["data"]
    contexts = {
        question["id"]: paragraph["context"]
        for article in questions
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    }
    for each in found.records:
        assert contexts[each["id"]][each["start"] :].startswith(each["span"])


@pytest.mark.parametrize(
    "name", ["texts", "mean", "features", "numbers", "pairs", "choices", "tags", "plain", "beam"]
)
def test_scores_and_some_answers_can_be_verified(runs, name):
    claims = verify(runs / name, data=runs / DEV_FILES.get(name, "numbers-data/x").split("/")[0])
    assert {each.status for each in claims} == {"ok"}, claims
    told = {each.claim: each.told for each in claims}
    assert told["seed-0/model: it gives these answers again"] == "8 answers"


def test_the_seed_that_is_best_on_dev_answers_unless_another_is_asked_for(runs, tmp_path):
    results = json.loads((runs / "texts" / "results.json").read_text())
    scores = {int(seed): each["scores"]["accuracy"] for seed, each in results["seeds"].items()}
    assert read_finetuned(runs / "texts").seed == max(scores, key=scores.get)
    assert read_finetuned(runs / "texts", 1).seed == 1
    first, second = (electra.load(runs / "texts", seed=seed) for seed in (0, 1))
    for each in (first, second):
        weights = read_model(runs / "texts", each.seed).tensors
        kept = each.encoder.encoder.state_dict()
        assert all(torch.equal(kept[name], weights[name]) for name in kept)
    assert not np.array_equal(*(electra.embed(each, ["a boat"]) for each in (first, second)))
    replacement = {**results["seeds"]["1"], "scores": {"accuracy": 2.0}, "replaces": 0}
    for best in (0, 1, 1000):
        for seed, record in results["seeds"].items():
            record["scores"]["accuracy"] = 0.9 if int(seed) == best else 0.8
        results["replacements"] = {"1000": replacement} if best == 1000 else {}
        copy, trained = tmp_path / str(best), min(best, 1)
        (copy / f"seed-{best}").mkdir(parents=True)
        (copy / f"seed-{best}" / "model").symlink_to(runs / "texts" / f"seed-{trained}" / "model")
        for name in ("config.json", "manifest.json"):
            shutil.copy(runs / "texts" / name, copy)
        write_json(copy / "results.json", results)
        assert read_finetuned(copy).seed == best
        path = runs / "texts-data" / "dev.tsv"
        assert predict(copy, path) == predict(runs / "texts", path, seed=trained)


@pytest.mark.parametrize("name", [each for each in DEV_FILES if each != "mean"])
def test_a_loaded_model_reads_no_file_and_answers_alike_in_any_batch(runs, tmp_path, name):
    copy = shutil.copytree(runs / name, tmp_path / "run")
    finetuned = read_finetuned(copy)
    records = read_inputs(finetuned.facts, runs / DEV_FILES[name]).records[:20]
    model = load_model(finetuned)
    shutil.rmtree(copy)
    assert model.answer([]).records == []
    together = model.answer(records).records
    assert len({json.dumps(each) for each in together}) > 1
    assert model.answer(records).records == together
    for record, expected in zip(records, together, strict=True):
        (alone,) = model.answer([record]).records
        for key, value in alone.items():
            is_number = isinstance(value, float)
            expected[key] = pytest.approx(expected[key], abs=1e-5) if is_number else expected[key]
        assert alone == expected


def test_a_record_needs_no_more_than_the_fields_of_its_family(runs):
    asked = {"question": "who painted", "context": "the queen painted a boat ."}
    model = load_model(read_finetuned(runs / "plain"))
    named, numbered = model.answer([asked | {"id": "x", "other": 5}, asked]).records
    assert (named["id"], numbered["id"]) == ("x", "2")
    assert named | {"id": "2"} == numbered
    parsed = model.parse([asked, asked])  # records of several requests are computed together
    assert [model.answer_examples([each]).records[0]["id"] for each in parsed] == ["1", "2"]
    refuse("record 2: no 'context', which must", lambda: model.answer([asked, {"question": "x"}]))
    tagger = load_model(read_finetuned(runs / "tags"))
    assert tagger.answer([{"tokens": []}]).records == [{"tokens": [], "tags": []}]


TEXTS = ["the queen painted a boat .", 'a "young" doctor, unhesitatingly', "in 1912"]


def write_table(path, columns, rows):
    """A table written by hand: no field has a tab, and those with commas are quoted as CSV has."""
    if path.suffix == ".jsonl":
        lines = [json.dumps(dict(zip(columns, row, strict=True))) for row in rows]
    elif path.suffix == ".csv":
        quoted = [['"' + cell.replace('"', '""') + '"' for cell in row] for row in (columns, *rows)]
        lines = [",".join(row) for row in quoted]
    else:
        lines = ["\t".join(row) for row in (columns, *rows)]
    path.write_text("\n\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("suffix", [each for each in TABLE_FORMATS if each != ".parquet"])
def test_tables_of_every_format_and_plain_text_are_answered_alike(runs, tmp_path, suffix):
    path = tmp_path / "plain.txt.xz"
    path.write_bytes(lzma.compress("\n".join(TEXTS).encode()))
    expected = predict(runs / "texts", path).records
    assert len(expected) == 3
    rows = [[str(number), text] for number, text in enumerate(TEXTS)]
    table = write_table(tmp_path / f"table{suffix}", ["label", "text"], rows)
    assert predict(runs / "texts", table).records == expected
    table = write_table(tmp_path / f"other{suffix}", ["id", "review"], rows)
    assert predict(runs / "texts", table, ["review"]).records == expected


def test_pairs_may_have_other_columns(runs, tmp_path):
    rows = [["the boat .", text] for text in TEXTS]
    trained = write_table(tmp_path / "a.tsv", ["sentence2", "sentence1"], rows)
    named = write_table(tmp_path / "b.jsonl", ["second", "first"], rows)
    expected = predict(runs / "numbers", trained)
    assert predict(runs / "numbers", named, ["first", "second"]) == expected
    assert predict(runs / "numbers", named, ["second", "first"]) != expected


def test_words_in_columns_lists_and_lines_are_tagged_alike(runs, tmp_path):
    def tag(name, text, *columns):
        (tmp_path / name).write_text(text)
        return predict(runs / "tags", tmp_path / name, columns).records

    asked = [text.split() for text in TEXTS]
    expected = tag("lines.txt", "\n".join(TEXTS))
    assert [each["tokens"] for each in expected] == asked
    assert all(len(each["tags"]) == len(each["tokens"]) for each in expected)
    for name, line, columns in (("a.conll", "{}\n", ()), ("columns.txt", "NN {} O\n", ("2",))):
        blocks = ["".join(map(line.format, words)) for words in asked]
        assert tag(name, "\n".join(blocks), *columns) == expected
    lines = [json.dumps({"tokens": words, "words": words[::-1]}) for words in [[], *asked]]
    lists = "\n".join(lines)
    assert tag("lists.jsonl", lists) == [{"tokens": [], "tags": []}, *expected]
    backwards = tag("lists.jsonl", lists, "words")[1:]
    assert [each["tokens"][::-1] for each in backwards] == asked


def test_questions_in_tables_and_in_mrqas_format_are_answered_alike(runs, tmp_path):
    data = json.loads((runs / "plain-data" / "dev.json").read_text())
    paragraphs = data["data"][0]["paragraphs"]
    expected = predict(runs / "plain", runs / "plain-data" / "dev.json").records
    rows = [[each["qas"][0]["question"], each["context"]] for each in paragraphs]
    table = write_table(tmp_path / "table.jsonl", ["question", "context"], rows)
    found = predict(runs / "plain", table).records
    assert [each["id"] for each in found] == [str(2 * n + 1) for n in range(len(rows))]
    assert [each | {"id": ""} for each in found] == [each | {"id": ""} for each in expected]
    rows = [[f"q{number}", *row] for number, row in enumerate(rows)]
    table = write_table(tmp_path / "named.tsv", ["id", "asked", "text"], rows)
    assert predict(runs / "plain", table, ["asked", "text"]).records == expected
    for each in paragraphs:
        each["qas"][0]["qid"] = each["qas"][0].pop("id")
    lines = [json.dumps(each) for each in ({"header": {}}, *paragraphs)]
    (tmp_path / "mrqa.jsonl").write_text("\n".join(lines))
    assert predict(runs / "plain", tmp_path / "mrqa.jsonl").records == expected


def test_squad_1_always_answers(runs):
    model = read_finetuned(runs / "beam")
    never = dataclasses.replace(model, facts=model.facts | {"null_threshold": -2.75})
    always = dataclasses.replace(model, facts=model.facts | {"task": "squad-1.1"})
    path = runs / "plain-data" / "dev.json"
    by_threshold, by_task = (ask(each, path).records for each in (never, always))
    assert all(each["answer"] == each["span"] for each in by_task)
    odds = json.loads((runs / "beam" / "seed-0" / "null_odds.json").read_text())
    assert [each["answer"] == "" for each in by_threshold] == [x > -2.75 for x in odds.values()]


def test_long_texts_are_cut_and_counted_and_progress_is_told(runs, tmp_path):
    (tmp_path / "texts.txt").write_text("queen " * 40 + "\n" + "queen\n" * 150)
    finetuned, told = read_finetuned(runs / "texts"), []
    records, _ = read_inputs(finetuned.facts, tmp_path / "texts.txt")
    found = load_model(finetuned).answer(records, lambda done, total: told.append((done, total)))
    assert found.num_cut == 1
    assert told[0][0] <= 32  # the long text, and few that are padded to it
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert len(told) > 2
    assert told[-1] == (151, 151)


MANY = "queen " * 99
CUT = {
    "numbers": ({"text_a": "a", "text_b": "a boat"}, {"text_b": MANY}),
    "choices": ({"context": "a day", "choices": ["a", "b", "x"]}, {"choices": ["a", "b", MANY]}),
    "tags": ({"tokens": ["queen"] * 99}, {"tokens": ["a", "sailor" * 16]}),
    "plain": ({"question": "who", "context": MANY}, {"question": MANY}),
}


@pytest.mark.parametrize("name", CUT)
def test_a_service_marks_what_is_cut_and_shows_no_text_of_dev(runs, name):
    """Whatever the kind of task; what windows read whole is not cut."""
    own, other = (
        load_models([runs / name], Machine(), shows_dev=shown)[name] for shown in (False, True)
    )
    whole, change = CUT[name]
    answers = own.predict(own.model.parse([whole, whole | change, whole]))
    assert [each["is_cut"] for each in answers] == [False, True, False]
    (record,) = own.describe()["examples"]
    assert len(own.predict(own.model.parse([record]))) == 1
    dev = (runs / DEV_FILES[name]).read_text()
    assert not any(text in dev for text in record.values() if isinstance(text, str))
    of_dev = other.describe()["examples"]
    assert of_dev == list(read_finetuned(runs / name).facts["examples"])
    assert record not in of_dev


REFUSED = [
    ("texts", "a.tsv", "texts\tid\nx\t1\n", [], "a.tsv: no column 'text'; its columns are texts, "),
    ("texts", "a.jsonl", "", [], "a.jsonl is empty: it must have at least one row"),
    ("texts", "a.txt", " \n", [], "a.txt holds no line of text"),
    ("texts", "a.md", "x", [], "a.md must be .txt, .tsv, "),
    ("texts", "a.tsv", "a\nx\n", ["a", "b"], "--columns must name 1, as text, not a, b"),
    ("texts", "a.txt", "x\n", ["text"], "a.txt is plain text, a text a line; text must be columns"),
    ("numbers", "a.txt", "x\n", [], "a.txt is plain text, a text a line; sentence1 and sentence2 "),
    ("tags", "a.txt", "queen B-PER\n\na O\n", [], "a.txt: every line has a tag, as in a file of"),
    ("tags", "a.conll", "queen\n", ["2"], "a.conll line 1: word_column must be 1 to 1, not 2"),
    ("tags", "a.conll", "queen\n", ["word"], "--columns of a .conll file must be the word's numbe"),
    ("tags", "a.conll", "queen\n", ["1", "2"], "--columns must name that of the word, not 1, 2"),
    ("tags", "a.jsonl", '{"tokens": ["a", ""]}', [], "a.jsonl line 1: the word must not be empty"),
    ("plain", "a.txt", "x\n", [], "a.txt must be .json, .tsv, "),
    ("choices", "a.tsv", "text\ta\tb\nx\ty\tz\n", [], "a.tsv: no column 'ending0', 'ending1', "),
    ("choices", "a.tsv", "text\ta\tb\nx\ty\tz\n", ["text", "a", "b"], "--columns must name 4, as "),
    ("plain", "a.tsv", "question\tid\nx\t1\n", [], "a.tsv: no column 'context'; its columns are q"),
    ("plain", "a.tsv", "question\tcontext\tid\nx\t\tq7\n", [], "question 'q7': its context has no"),
]  # fmt: skip


@pytest.mark.parametrize(("run", "name", "content", "columns", "message"), REFUSED)
def test_files_that_do_not_fit_are_refused_in_one_line(
    runs, tmp_path, run, name, content, columns, message
):
    (tmp_path / name).write_text(content)
    message = f"{tmp_path}/{message}" if message.startswith(name) else message
    refuse(message, predict, runs / run, tmp_path / name, columns)


def test_folders_that_are_no_finished_fine_tuning_are_refused(runs, start, tmp_path):
    for folder in (tmp_path, start, tmp_path / "nowhere"):
        refuse("is not a finished folder of `electra finetune`", read_finetuned, folder)
    refuse("texts has no seed 7; choose from 0, 1", read_finetuned, runs / "texts", 7)
    shutil.copy(runs / "texts" / "config.json", tmp_path)
    refuse("and a results.json", read_finetuned, tmp_path)
    write_json(tmp_path / "results.json", {"metric": "accuracy"})
    refuse("manifest.json", read_finetuned, tmp_path)
    shutil.copy(runs / "texts" / "manifest.json", tmp_path)
    refuse("is not a folder that `electra finetune` wrote", read_finetuned, tmp_path)
    shutil.copy(runs / "texts" / "results.json", tmp_path)
    refuse("seed-0/model/config.json", read_finetuned, tmp_path, 0)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer/tokenizer.json"])
def test_a_flipped_bit_in_a_fine_tuned_model_is_refused(runs, tmp_path, name):
    run = shutil.copytree(runs / "tags", tmp_path / "tags")
    path = run / "seed-0" / "model" / name
    flip_bit(path)
    for read in (lambda run: read_finetuned(run).tokenizer, read_model):
        refuse(f"{path} is damaged: it does not match its sha256 in", read, run)
    (path.parent / "electra.json").unlink()  # of an older electra
    path.write_bytes((runs / "tags" / "seed-0" / "model" / name).read_bytes())
    assert predict(run, runs / "tags-data" / "dev.conll").records


def test_answers_are_written_whole_as_json_lines_or_as_a_table(tmp_path):
    found = Answers([{"prediction": "a\tb", "x": 0.5, "tags": ["O", "New York", " "]}] * 2, 0)
    write_answers(tmp_path / "new" / "out.jsonl", found)
    lines = (tmp_path / "new" / "out.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == found.records
    write_answers(tmp_path / "out.tsv", found)
    row = "a b\t0.5\tO New_York _"
    assert (tmp_path / "out.tsv").read_text() == f"prediction\tx\ttags\n{row}\n{row}\n"
    half = Answers([{"tokens": ["é\ud800"]}], 0)
    assert list_json(half) == ['{"tokens": ["é�"]}']
    assert list_rows(half) == ["tokens", "é�"]


def test_the_verb_answers_a_file_or_standard_input(runs, tmp_path, capsys, monkeypatch):
    (tmp_path / "in.txt").write_text("\n".join(TEXTS))
    expected = predict(runs / "texts", tmp_path / "in.txt").records
    out = tmp_path / "out.jsonl"
    words = ["predict", runs / "texts", "--input", tmp_path / "in.txt"]
    printed = succeed(capsys, *words, "--out", out, "--dry-run").out
    assert "would answer 3 inputs of" in printed
    assert not out.exists()
    printed = succeed(capsys, *words, "--out", out).out
    assert [json.loads(line) for line in out.read_text().splitlines()] == expected
    seed = read_finetuned(runs / "texts").seed
    assert printed.strip() == f"wrote {out}: 3 answers of seed {seed} of {runs / 'texts'}"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(TEXTS).encode())))
    for each in (words, [*words[:-1], "-"]):
        assert succeed(capsys, *each).out == out.read_text()
    named = write_table(tmp_path / "in.tsv", ["review", "label"], [["queen " * 40, ""]])
    words = ["predict", runs / "texts", "--input", named, "--columns", "review"]
    printed, err = succeed(capsys, *words, "--seed", "1")
    assert len(printed.splitlines()) == 1, err
    assert "note: 1 of 1 inputs was longer than the run's rows of 24 tokens and was cut" in err
    for name, message in (("out.jsonl", f"{out} exists already"), ("out.csv", "not '.csv'")):
        refuse_command(message, capsys, *words, "--out", tmp_path / name)


def load(model_class, folder):
    loaded, info = model_class.from_pretrained(folder, output_loading_info=True)
    assert not any(info[key] for key in KEYS), info
    return loaded.eval()


def test_a_classifier_exports_and_its_pipeline_answers_alike(runs, sentences, tmp_path):
    assert export(runs / "texts", tmp_path / "hf") == "ElectraForSequenceClassification"
    pipeline = transformers.pipeline("text-classification", model=str(tmp_path / "hf"))
    texts = [*sentences[:20], "queen " * 40, "the queen [SEP] [MASK] sold"]
    (tmp_path / "in.txt").write_text("\n".join(texts))
    found = pipeline(texts, top_k=None, truncation=True)
    for ours, each in zip(predict(runs / "texts", tmp_path / "in.txt").records, found, strict=True):
        assert each[0]["label"] == ours["prediction"]
        for answered in each:
            assert answered["score"] == pytest.approx(ours[f"prob_{answered['label']}"], abs=1e-5)


def test_a_tagger_exports_and_its_pipeline_answers_alike(runs, sentences, tmp_path):
    assert export(runs / "tags", tmp_path / "hf")
    (tmp_path / "in.txt").write_text("\n".join(sentences[:30]))
    words = {"model": str(tmp_path / "hf"), "aggregation_strategy": "first"}
    pipeline = transformers.pipeline("token-classification", **words)
    num_entities = 0
    ours = ask(read_finetuned(runs / "tags"), tmp_path / "in.txt").records
    for sentence, each in zip(sentences, ours, strict=False):
        expected, place = set(), 0
        for word, tag in zip(each["tokens"], each["tags"], strict=True):
            if tag != "O":
                expected.add((place, place + len(word), tag[2:]))
            place += len(word) + 1
        found = pipeline(sentence)
        assert {(one["start"], one["end"], one["entity_group"]) for one in found} == expected
        num_entities += len(expected)
    assert num_entities > 20


@pytest.mark.parametrize(("num_labels", "size"), [(1, 32), (3, 256), (128, 256)])
def test_pairs_of_gelu_units_are_a_linear_layer(num_labels, size):
    rng = torch.Generator().manual_seed(0)
    states = torch.randn(500, size, generator=rng) * torch.randn(size, generator=rng).exp()
    weight = torch.randn(num_labels, size, generator=rng) / size**0.5
    bias = torch.randn(num_labels, generator=rng)
    tensors = expand_classifier(weight, bias)
    inner = F.gelu(F.linear(states, tensors["inner.weight"], tensors["inner.bias"]))
    found = F.linear(inner, tensors["dense.weight"], tensors["dense.bias"])
    expected = F.linear(states.double(), weight.double(), bias.double())
    assert expected.abs().max() > 3
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=0)


def test_of_more_labels_than_pairs_of_units_the_encoder_is_exported(runs):
    tuned = read_finetuned(runs / "texts")
    many = {"dense.weight": torch.ones(33, 64), "dense.bias": torch.ones(33)}
    facts = tuned.facts | {"labels": [f"x{number}" for number in range(33)]}
    kept = dataclasses.replace(tuned.kept, head=many)
    tuned = dataclasses.replace(tuned, kept=kept, facts=facts)
    assert describe_finetuned(tuned).has_class is False


@pytest.mark.parametrize(("name", "shape"), [("texts", (16,)), ("choices", (16, 3))])
def test_an_exported_classifier_can_be_trained_further(runs, tmp_path, name, shape):
    kind = export(runs / name, tmp_path / "hf")
    theirs = getattr(transformers, kind).from_pretrained(tmp_path / "hf")
    _, rows = encode_file(read_finetuned(runs / name), runs / DEV_FILES[name])
    batch = make_batch(rows, torch.arange(16), CPU)
    inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
    if shape != (16,):
        inputs["token_type_ids"] = batch.token_type_ids
    inputs = {key: each.long().unflatten(0, shape) for key, each in inputs.items()}
    for module in theirs.electra.modules():  # the head's noise alone
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    torch.manual_seed(0)
    with torch.no_grad():
        exact = theirs.eval()(**inputs).logits
        noisy = torch.stack([theirs.train()(**inputs).logits for _ in range(30)])
    assert (noisy - exact).std() < 0.2 * exact.abs().mean()
    labels = exact.argmin(dim=1)  # the contrary of what it has learnt
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = theirs(**inputs, labels=labels).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


BESIDE = {
    "mean": {"text": "a text"},
    "pairs": {"sentence1": "a text", "sentence2": "another one"},
    "mean-choices": {
        "text": "a text",
        "ending0": "an ending",
        "ending1": "another one",
        "ending2": "b",
    },
}
"""What the cards of heads that no class of transformers holds ask of the encoder and the head."""


@pytest.mark.parametrize("name", ["texts", "numbers", "tags", "plain", "choices", *BESIDE])
def test_the_card_of_every_head_has_its_scores_and_code_that_runs(
    runs, tmp_path, name, monkeypatch
):
    architecture = export(runs / name, tmp_path / "hf")
    card = (tmp_path / "hf" / "README.md").read_text()
    results, settings = (
        json.loads((runs / name / f"{each}.json").read_text()) for each in ("results", "config")
    )
    std = "" if results["std"] is None else f" ± {results['std']:.3f}"
    seed = str(read_finetuned(runs / name).seed)
    own = results["seeds"][seed]["scores"][results["metric"]]
    assert f"| this model on dev | {results['metric']} {own:.3f} |" in card
    assert f" {results['median']:.3f}{std} |" in card
    assert all(digest in card for digest in settings["files"].values())
    names = run_python_of(tmp_path / "hf" / "README.md", tmp_path, monkeypatch)
    assert architecture in card
    refuse("BERT has no projection of", lambda: export(runs / name, tmp_path / "bert", form="bert"))
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]
    assert (architecture == "ElectraModel") is (name in BESIDE)
    if name not in BESIDE:
        return
    load(transformers.AutoModel, tmp_path / "hf")
    asked = BESIDE[name]
    table = write_table(tmp_path / "in.tsv", list(asked), [list(asked.values())])
    (answer,) = ask(read_finetuned(runs / name), table).records
    if name == "pairs":
        assert names["logits"].tolist() == pytest.approx([answer["prediction"]], abs=1e-3)
        assert names["labels"] == ["score"]
        return
    probs = [value for key, value in answer.items() if key.startswith("prob_")]
    probs = torch.tensor(probs)[: len(names["logits"])]
    # Probabilities, not logits: the logarithm of a small one magnifies the rounding of answers.
    expected = probs / probs.sum()
    torch.testing.assert_close(names["logits"].softmax(dim=0), expected, atol=1e-5, rtol=0)


def test_the_verb_exports_a_fine_tuning(runs, tmp_path, capsys):
    out = tmp_path / "the queen's"
    words = ["export", runs / "texts", "--out", out, "--seed", "1"]
    printed = succeed(capsys, *words, "--dry-run").out
    assert f"would read seed 1 of {runs / 'texts'} and write {out}" in printed
    assert not out.exists()
    printed = succeed(capsys, *words).out
    wrote, following = printed.strip().splitlines()
    assert wrote == f"wrote {out}: seed 1 of {runs / 'texts'} as ElectraForSequenceClassification"
    *words, code = shlex.split(following)
    assert words == ["next:", "python", "-c"]
    exec(code)
    config = json.loads((out / "config.json").read_text())
    assert config["id2label"] == {"0": "other", "1": "woman"}
    assert config["label2id"] == {"other": 0, "woman": 1}
    printed = succeed(capsys, "export", runs / "mean", "--out", tmp_path / "mean").out
    wrote, following = printed.strip().splitlines()
    assert wrote.endswith("as ElectraModel, with its head in head.safetensors")
    assert following.endswith("mean/README.md has lines that use both")
