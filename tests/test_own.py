"""Tasks of the user's own: every format and kind, a task as a file, and refusals."""

import gzip
import json

import pyarrow
import pyarrow.parquet
import pytest
import torch

from electra.config import FinetuneConfig
from electra.errors import UserError
from electra.finetuning.loop import finetune
from electra.settings import override
from electra.tasks.choice import ChoiceQuestion
from electra.tasks.classification import Example
from electra.tasks.registry import read_task

QUICK = ("epochs=1", "reseeds=0", "batch_size=8", "threads=1", "precision=float32")
RECORDS = [
    {"text": 'a "fine" day,\nindeed', "label": "good"},
    {"text": "awful, she said", "label": "bad"},
    {"text": "=1+1", "label": "good"},
    {"text": " \u2028 ", "label": "bad"},
]


def write(folder, **files):
    """Write files; the last underscore of a name stands for the dot."""
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        stem, _, suffix = name.rpartition("_")
        (folder / f"{stem}.{suffix}").write_text(content, encoding="utf-8")
    return folder


def lines(records):
    return "".join(json.dumps(record) + "\n" for record in records)


def own(folder, *settings):
    config = override(FinetuneConfig(), [f"own.{setting}" for setting in settings])
    return read_task("own", folder, config)


def quote(text):
    return '"' + text.replace('"', '""') + '"'


# --- formats ---


@pytest.mark.parametrize("form", ["csv", "crlf", "csv.gz", "jsonl", "parquet", "parquet.gz"])
def test_every_format_gives_the_same_task(tmp_path, form):
    table = "".join(f"{quote(r['text'])},{r['label']}\n" for r in RECORDS)
    contents = {
        "csv": ("\ufefftext,label\n\n" + table).encode(),
        "crlf": ("text,label\n" + table).replace("\n", "\r\n").encode(),
        "jsonl": lines(RECORDS).encode(),
    }
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(RECORDS), tmp_path / "x")
    contents["parquet"] = (tmp_path / "x").read_bytes()
    content = contents[form.removesuffix(".gz")]
    name = f"train.{form}" if form != "crlf" else "train.csv"
    (tmp_path / name).write_bytes(gzip.compress(content) if form.endswith(".gz") else content)
    write(tmp_path, dev_csv="text,label\na,good\n")
    task = own(tmp_path)
    text = RECORDS[0]["text"].replace("\n", "\r\n") if form == "crlf" else RECORDS[0]["text"]
    assert task.examples["train"] == [
        Example(text, None, 1),
        Example("awful, she said", None, 0),
        Example("=1+1", None, 1),
        Example(" \u2028 ", None, 0),
    ]
    assert task.family.labels == ("bad", "good")


def test_a_text_of_csv_may_be_long(tmp_path):
    text = "a" * 200_000
    write(tmp_path, train_csv=f"text,label\n{text},1\nb,0\nc,1\nd,0\n", dev_csv="text,label\na,0\n")
    assert own(tmp_path).examples["train"][0].text_a == text


# --- kinds ---


def test_a_regression_takes_its_range_from_train(tmp_path, toy_tokenizer):
    train = [{"text": "a", "label": -2}, {"text": "b", "label": 0.5}, {"text": "c", "label": "8"}]
    write(tmp_path, train_jsonl=lines(train), dev_csv="text,label\na,10.5\nb,-2\n")
    task = own(tmp_path, "kind=regression")
    assert task.family.label_range == (-2.0, 8.0)
    assert [example.label for example in task.examples["dev"]] == [10.5, -2.0]
    assert task.family.metrics == ("spearman", "pearson")
    assert own(tmp_path, "kind=regression", "metric=pearson").family.headline == "pearson"
    rows = task.encode(toy_tokenizer, 8)
    assert rows["train"].targets["labels"].tolist() == pytest.approx([0, 0.25, 1])
    assert rows["dev"].targets["labels"].tolist() == pytest.approx([1.25, 0])


def test_a_number_below_trains_least_is_a_label_like_any_other(tmp_path, toy_tokenizer):
    train = "text,label\na,0\nb,5\n"
    write(tmp_path, train_csv=train, dev_csv="text,label\na,-1\nb,4\n", test_csv="text\na\n")
    task = own(tmp_path, "kind=regression")
    rows = task.encode(toy_tokenizer, 8)
    answers = {"logits": torch.tensor([[0.1], [0.9]])}
    assert task.family.score(rows["dev"], answers) == pytest.approx(
        {"spearman": 1.0, "pearson": 1.0}
    )
    assert task.family.score(rows["test"], {"logits": torch.tensor([[0.1]])}) == {}


QUESTION = ChoiceQuestion("a boat", ("sank", "flew", "sang"), 0)


def test_choices_are_columns_or_a_list(tmp_path):
    columns = "text,a,b,c,label\na boat,sank,flew,sang,0\n"
    record = {"text": "a boat", "options": ["sank", "flew", "sang"], "label": 0}
    one = write(tmp_path / "columns", train_csv=columns, dev_csv=columns)
    two = write(tmp_path / "list", dev_jsonl=lines([record]))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([record]), two / "train.parquet")
    (two / "test.jsonl").write_text(lines([{k: v for k, v in record.items() if k != "label"}]))
    for folder, choices in ((one, "a, b,c"), (two, "options")):
        task = own(folder, "kind=choice", f"choices={choices}")
        assert task.examples["train"] == task.examples["dev"] == [QUESTION]
        assert (task.family.num_choices, task.family.metrics) == (3, ("accuracy",))
    assert task.examples["test"] == [QUESTION._replace(label=None)]
    assert task.columns == ("text", "options", "label")


GOOD = "text,label\na,x\nb,y\nc,x\nd,y\n"
CHOICES = "text,a,b,label\na,b,c,0\n"
LISTS = {"text": "a", "o": ["b", "c"], "label": 1}
OTHER = [LISTS, LISTS | {"o": ["b", "c", "d"]}]
REFUSALS = [
    (
        {"train_csv": 'text,label\na,x\n"b\nc",y\n"d"e,x\n', "dev_csv": GOOD},
        [],
        "{0}/train.csv line 5: not valid CSV: ",
    ),
    (
        {"train_csv": 'text,label\na,x\n"b\nc\n', "dev_csv": GOOD},
        [],
        "{0}/train.csv line 3: not valid CSV: unexpected end of data",
    ),
    (
        {"train_csv": GOOD + "a,b,c\n", "dev_csv": GOOD},
        [],
        "{0}/train.csv line 6: 3 comma-separated fields; it must have 2: text, label",
    ),
    (
        {"train_csv": "text,text,label\na,b,x\n", "dev_csv": GOOD},
        [],
        "{0}/train.csv: two columns are named 'text'",
    ),
    ({"train_csv": GOOD, "dev_parquet": "no"}, [], "{0}/dev.parquet is damaged or cut off: "),
    ({"train_csv": GOOD, "dev_csv": ""}, [], "{0}/dev.csv is empty: it must have at least one row"),
    (
        {"train_csv": GOOD, "dev_csv": "text,gold\na,x\n"},
        [],
        "{0}/dev.csv: no column 'label'; choose from text, gold",
    ),
    (
        {"train_csv": GOOD, "dev_csv": "text,label\na,x\nb,why\n"},
        [],
        "{0}/dev.csv line 3: unknown label 'why'; did you mean 'y'?",
    ),
    (
        {"train_csv": GOOD, "dev_csv": GOOD, "test_csv": "text,label\na,z\n"},
        [],
        "{0}/test.csv line 2: unknown label 'z'; choose from x, y",
    ),
    (
        {"train_csv": "text,label\na,1.5\nb,2\nc,inf\n", "dev_csv": GOOD},
        ["kind=regression"],
        "{0}/train.csv line 4: the label must be a number, not 'inf'",
    ),
    (
        {"train_csv": "text,label\na,1\nb,1_000\n", "dev_csv": "text,label\na,1\n"},
        ["kind=regression"],
        "{0}/train.csv line 3: the label must be a number, not '1_000'",
    ),
    (
        {"train_csv": "text,label\na,1\nb,1e308\n", "dev_csv": "text,label\na,1\n"},
        ["kind=regression"],
        "{0}/train.csv line 3: the label 1e+308 is beyond float32 on the scale from 1 to 1e+308",
    ),
    (
        {"train_csv": "text,label\na,1\nb,2\n", "dev_csv": "text,label\na,-1e39\n"},
        ["kind=regression"],
        "{0}/dev.csv line 2: the label -1e+39 is beyond float32 on the scale from 1 to 2",
    ),
    (
        {"train_csv": "text,label\na,1\nb,1.000000001\n", "dev_csv": "text,label\na,1\n"},
        ["kind=regression"],
        "{0}/train.csv: every 'label' is 1 in float32; two different numbers are needed",
    ),
    (
        {"train_csv": "text,label\na,1.5\n", "dev_jsonl": '{"text": "a", "label": null}'},
        ["kind=regression"],
        "{0}/dev.jsonl line 1: 'label' is None; it must be text or a number",
    ),
    (
        {"train_csv": "text,label\na,3\nb,3.0\n", "dev_csv": "text,label\na,1\n"},
        ["kind=regression"],
        "{0}/train.csv: every 'label' is 3 in float32; two different numbers are needed",
    ),
    (
        {"train_csv": CHOICES, "dev_csv": CHOICES},
        ["kind=choice", "choices=a,d"],
        "{0}/train.csv: no column 'd'",
    ),
    (
        {"train_csv": CHOICES, "dev_csv": CHOICES.replace("b,c,0", "b,c,2")},
        ["kind=choice", "choices=a,b"],
        "{0}/dev.csv line 2: unknown label '2'; choose from 0, 1",
    ),
    (
        {"train_csv": CHOICES, "dev_csv": CHOICES},
        ["kind=choice", "choices=a"],
        "{0}/train.csv line 2: 'a' is 'b'; it must be a list of texts",
    ),
    (
        {"train_jsonl": lines(OTHER), "dev_jsonl": lines([LISTS])},
        ["kind=choice", "choices=o"],
        "{0}/train.jsonl line 2: 3 choices; it must have 2, as the first row has",
    ),
    (
        {"train_jsonl": lines([LISTS]), "dev_jsonl": lines(OTHER[1:])},
        ["kind=choice", "choices=o"],
        "{0}/dev.jsonl: 3 choices a row; it must be 2, as in {0}/train.jsonl",
    ),
    (
        {"train_jsonl": lines([LISTS | {"o": ["b"]}]), "dev_jsonl": lines([LISTS])},
        ["kind=choice", "choices=o"],
        "{0}/train.jsonl line 1: 1 choice; there must be two or more",
    ),
    ({}, ["name=CoLA"], "own.name 'CoLA' is the name of another task; choose one that is not"),
]


@pytest.mark.parametrize(("files", "settings", "message"), REFUSALS)
def test_what_does_not_fit_is_refused_in_one_line(tmp_path, files, settings, message):
    with pytest.raises(UserError) as refusal:
        own(write(tmp_path, **files), *settings)
    assert str(refusal.value).startswith(message.format(tmp_path))
    assert "\n" not in str(refusal.value)


def test_a_number_of_parquet_has_a_row_not_a_line(tmp_path):
    table = pyarrow.table({"text": ["a", None], "label": ["x", "y"]})
    pyarrow.parquet.write_table(table, tmp_path / "dev.parquet")
    write(tmp_path, train_csv=GOOD)
    with pytest.raises(UserError, match=r"dev.parquet row 2: 'text' is None; it must be text$"):
        own(tmp_path)


# --- a task as a file ---

TASK = 'name = "weather"\ntext = "body"\nlabel = "mood"\ntrain = "all.csv"\nmetric = "mcc"\n'
WEATHER = "id,body,mood\n0,fine day,good\n1,bad day,bad\n2,fine,good\n3,bad,bad\n"


@pytest.fixture
def weather(tmp_path):
    write(tmp_path / "data", all_csv=WEATHER, dev_csv=WEATHER)
    return write(tmp_path, weather_toml=TASK)


def test_a_file_says_what_the_settings_would(weather):
    task = read_task(str(weather / "weather.toml"), weather / "data", FinetuneConfig())
    settings = [line.replace('"', "").replace(" = ", "=") for line in TASK.splitlines()]
    same = own(weather / "data", *settings)
    assert task.examples == same.examples
    assert (task.name, task.family.metrics, task.family.labels) == (
        "weather",
        same.family.metrics,
        ("bad", "good"),
    )
    assert [path.name for path in task.files] == ["weather.toml", "all.csv", "dev.csv"]


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        ('lable = "mood"', [], "{0}/weather.toml: unknown field 'lable' in 'lable'; did you mean"),
        ("kind = regression", [], "{0}/weather.toml is not valid TOML: "),
        ('kind = "regresion"', [], "{0}/weather.toml: kind cannot be 'regresion'; did you mean"),
        ('[own]\nkind = "choice"', [], "{0}/weather.toml: unknown field 'own' in 'own.kind'"),
        ('kind = "choice"', [], "{0}/weather.toml: own.kind choice needs own.choices"),
        ('name = "swag"', [], "own.name 'swag' is the name of another task"),
        (TASK, ["own.text=id"], "own.text is for the task 'own'; '{0}/weather.toml' says what"),
        (TASK, ["own.name=x"], "own.name is for the task 'own'; '{0}/weather.toml' says what"),
        (None, [], "cannot read {0}/weather.toml: No such file"),
    ],
)
def test_files_of_tasks_that_do_not_fit_are_refused(weather, task, settings, message):
    path = weather / "weather.toml"
    path.unlink() if task is None else path.write_text(task)
    with pytest.raises(UserError) as refusal:
        read_task(str(path), weather / "data", override(FinetuneConfig(), settings))
    assert str(refusal.value).startswith(message.format(weather))
    assert "\n" not in str(refusal.value)


class PowerCut(Exception):
    pass


def test_results_have_the_tasks_name_and_a_changed_file_is_noticed(weather, start):
    def cut_in_seed_1(record):
        if record["part"] == "dev" and record["seed"] == 1:
            raise PowerCut

    path, data, config = (
        weather / "weather.toml",
        weather / "data",
        override(FinetuneConfig(), QUICK),
    )
    arguments = (start, str(path), data, weather / "out", config)
    with pytest.raises(PowerCut):
        finetune(*arguments, seeds=2, progress=cut_in_seed_1)
    path.write_text(TASK.replace("mood", "id"))
    write(data, all_csv=WEATHER)
    with pytest.raises(UserError, match="labels in 4 rows"):
        finetune(*arguments, seeds=2, progress=lambda record: None)
    path.write_text(TASK + "# the same, but who knows\n")
    with pytest.raises(UserError, match=r"out.incomplete was begun with another files; remove it"):
        finetune(*arguments, seeds=2, progress=lambda record: None)
    path.write_text(TASK)
    results = finetune(*arguments, seeds=2, progress=lambda record: None)
    assert (results["task"], results["metric"]) == ("weather", "mcc")
    assert results["config"]["own"]["text"] == "body"


@pytest.mark.parametrize(
    ("split", "content", "message"),
    [
        ("dev", "body,mood\na,good\nb,so so\n", "dev.csv line 3: unknown label 'so so'"),
        ("test", "body,mood\na,soso\n", "test.csv line 2: unknown label 'soso'"),
        ("dev", "body,label\na,good\n", "dev.csv: no column 'mood'"),
        ("all", "", "all.csv is empty"),
    ],
)
def test_nothing_is_written_for_data_that_do_not_fit(weather, start, split, content, message):
    (weather / "data" / f"{split}.csv").write_text(content)
    before = sorted(weather.rglob("*"))
    config = override(FinetuneConfig(), QUICK)
    for data in (weather / "data", weather / "nowhere"):
        with pytest.raises(UserError) as refusal:
            finetune(
                start, str(weather / "weather.toml"), data, weather / "out", config,
                seeds=1, progress=lambda record: None,
            )  # fmt: skip
        expected = message if data.exists() else f"no file {data}"
        assert expected in str(refusal.value)
    assert sorted(weather.rglob("*")) == before
