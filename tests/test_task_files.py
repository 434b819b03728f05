"""Files of every task: found by name, read into examples, refused in one line."""

import gzip
import json
import lzma
import os
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import torch
from refusals import refuse
from tasks import PowerCut, ask_file, cut_at, ignore, read, small_finetune, write_files

from electra.assignments import override
from electra.finetuning.loop import finetune
from electra.tasks import classification
from electra.tasks.choice import ChoiceQuestion
from electra.tasks.config import FinetuneConfig
from electra.tasks.registry import read_task
from electra.tasks.squad import SpanQuestion
from electra.tasks.tagging import TaggedSentence
from electra.tasks.texts import Example
from electra.text.table_files import read_table, read_text_lines

DATA = Path(__file__).parents[2] / "shared/data"


def lines(*records):
    return "".join(json.dumps(record) + "\n" for record in records)


def write_parquet(path, records):
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), path)


# --- tasks of the user's own ---

RECORDS = [
    {"text": 'a "fine" day,\nindeed', "label": "good"},
    {"text": "awful, she said", "label": "bad"},
    {"text": "=1+1", "label": "good"},
    {"text": " \u2028 ", "label": "bad"},
]
TRAIN = "text\tlabel\nfine day\tgood\nawful day\tbad\nfine night\tgood\nawful night\tbad\n"
DEV = "label\ttext\ngood\tfine\nbad\tawful\n"


@pytest.mark.parametrize("form", ["csv", "crlf", "csv.gz", "jsonl", "parquet", "parquet.gz"])
def test_every_format_gives_the_same_task(tmp_path, form):
    texts = [each["text"] for each in RECORDS]
    quoted = [(each["text"].replace('"', '""'), each["label"]) for each in RECORDS]
    table = "".join(f'"{text}",{label}\n' for text, label in quoted)
    write_parquet(tmp_path / "x", RECORDS)
    contents = {
        "csv": ("\ufefftext,label\n\n" + table).encode(),
        "crlf": ("text,label\n" + table).replace("\n", "\r\n").encode(),
        "jsonl": lines(*RECORDS).encode(),
        "parquet": (tmp_path / "x").read_bytes(),
    }
    content = contents[form.removesuffix(".gz")]
    content = gzip.compress(content) if form.endswith(".gz") else content
    name = f"train.{form}".replace("crlf", "csv")
    task = read("own", write_files(tmp_path, {name: content, "dev.csv": "text,label\na,good\n"}))
    if form == "crlf":
        texts[0] = texts[0].replace("\n", "\r\n")
    expected = [Example(text, None, label) for text, label in zip(texts, (1, 0, 1, 0), strict=True)]
    assert task.examples["train"] == expected
    assert task.family.labels == ("bad", "good")


TWO_FILES = ("train.jsonl", "dev.jsonl")


def test_own_columns_are_found_by_name_and_test_needs_no_label(tmp_path):
    fields = {"id": 7, "sentence1": 'a "b\tc\u2028d', "sentence2": "e"}
    records = [json.dumps(fields | {"label": i % 2}, ensure_ascii=False) for i in range(4)]
    text = "".join(record + "\r\n\n" for record in records)
    files = {"dev.jsonl": text, "test.tsv": 'sentence1\tsentence2\n"x\ty"\n'}
    files["train.jsonl.xz"] = lzma.compress(text.encode())
    task = read("own", write_files(tmp_path, files))
    assert task.columns == (("sentence1", "sentence2"), ("label",))
    assert task.examples["train"] == task.examples["dev"]
    assert task.examples["train"][1] == Example('a "b\tc\u2028d', "e", 1)
    assert task.examples["test"] == [Example('"x', 'y"', None)]
    assert (task.family.headline, task.family.has_pairs) == ("accuracy", True)


PAIRS = [("question", "sentence"), ("premise", "hypothesis"), ("question1", "question2")]
PAIRS += [("text", "text_pair"), ("sentence1", "sentence2"), ("text", "text_b")]


@pytest.mark.parametrize("pair", PAIRS)
def test_the_columns_of_a_pair_are_found_by_their_names(tmp_path, pair):
    rows = [dict(zip((*pair, "idx", "label"), ("a", "b", n, n % 2), strict=True)) for n in range(4)]
    task = read("own", write_files(tmp_path, dict.fromkeys(TWO_FILES, lines(*rows))))
    assert task.columns == (pair, ("label",))
    assert task.examples["train"][1] == Example("a", "b", 1)
    (note, *_) = task.notes
    assert note.startswith("columns that are not read: idx (read: ")
    chosen = read("own", tmp_path, f"own.text={pair[1]}")
    assert chosen.columns == (pair[1:], ("label",))
    assert f"not read: {pair[0]}, idx" in chosen.notes[0]


def test_columns_that_are_read_need_no_note(tmp_path):
    rows = [{"text": f"{n}", "label": n % 2} for n in range(4)]
    others = [{"text": f"{n} too", "label": n % 2} for n in range(4)]
    files = {"train.jsonl": lines(*rows), "dev.jsonl": lines(*others)}
    assert read("own", write_files(tmp_path, files)).notes == ()


def test_names_of_a_parquets_numbers_are_the_labels_in_its_order(tmp_path):
    names = ["World", "Sports", "Business"]
    for split, labels in (("train", [1, 0, 2, 1, 0, 2]), ("dev", [2]), ("test", [-1])):
        texts = [f"{split} {number}" for number in range(len(labels))]
        write_hub(tmp_path / f"{split}.parquet", {}, text=texts, label=labels)
        if split != "test":
            write_hub(tmp_path / f"{split}.parquet", {"label": names}, text=texts, label=labels)
    task = read("own", tmp_path)
    assert task.family.labels == ("World", "Sports", "Business")
    assert [each.label for each in task.examples["train"]] == [1, 0, 2, 1, 0, 2]
    assert [each.label for split in ("dev", "test") for each in task.examples[split]] == [2, None]


@pytest.mark.parametrize(
    ("labels", "looks"),
    [
        (["a,b", "b,a"], "'a,b'"),
        (["a", "b", "a; b"], "'a; b'"),
        (["x|y", "y|z", "z|x"], "'x|y'"),
        (["Lyon, France", "Paris, France"], ""),
        (["a", "b"], ""),
    ],
)
def test_several_labels_in_a_cell_are_told(tmp_path, labels, looks):
    rows = [{"text": str(n), "label": label} for n, label in enumerate(labels * 2)]
    task = read("own", write_files(tmp_path, {"train.jsonl": lines(*rows), "dev.csv": "text,label\n"
                                              f'x,"{labels[0]}"\n'}))  # fmt: skip
    told = [note for note in task.notes if "several labels in one cell" in note]
    assert [note.startswith(looks) for note in told] == [True] * bool(looks)


def test_what_excel_writes_beside_a_table_is_none_of_it(tmp_path):
    table = "sep=;\r\ntext;label;;\r\na;x;;\r\n;;;\r\nb;y;;\r\n;y;;\r\nd;x;;\r\n;;;\r\n"
    read_as = read_table(write_files(tmp_path, {"a.csv": table}) / "a.csv")
    assert (read_as.columns, list(read_as.lines)) == (("text", "label"), [3, 5, 6, 7])
    assert read_as.column("text") == ["a", "b", "", "d"]
    write_files(tmp_path, {"a.csv": table.replace("d;x;;", "d;x;;z")})
    refuse(
        "a.csv line 7: 4 semicolon-separated fields; it must have 2", read_table, tmp_path / "a.csv"
    )
    write_files(tmp_path, {"train.xlsx": b"PK\x03\x04 xl/workbook.xml"})
    refuse("no train file ... train.xlsx is a workbook; save the sheet", read, "own", tmp_path)


def test_a_tsv_quoted_as_pandas_does_is_read_as_csv(tmp_path):
    said = 'text\tlabel\n"he said ""no"""\tx\nfine\ty\n"""all"""\tx\n\ty\n'
    files = {"train.tsv": said, "dev.tsv": said.encode("utf-16")}  # Excel's Unicode text
    task = read("own", write_files(tmp_path, files))
    assert [each.text_a for each in task.examples["dev"]] == ['he said "no"', "fine", '"all"', ""]
    assert task.examples["dev"] == task.examples["train"]
    assert task.notes[0] == "1 example of train without text"
    assert task.notes[2] == "4 of 4 dev examples have a text that is also in train"
    raw = write_files(tmp_path, {"train.tsv": said.replace('""no""', '"no')})  # not as CSV has it
    assert read("own", raw).examples["train"][2].text_a == '"""all"""'


def test_a_text_of_csv_may_be_long(tmp_path):
    text = "a" * 200_000
    train = f"text,label\n{text},1\nb,0\nc,1\nd,0\n"
    write_files(tmp_path, {"train.csv": train, "dev.csv": "text,label\na,0\n"})
    assert read("own", tmp_path).examples["train"][0].text_a == text


def test_a_regression_takes_its_range_from_train(tmp_path, toy_tokenizer):
    train = [{"text": "a", "label": -2}, {"text": "b", "label": 0.5}, {"text": "c", "label": "8"}]
    dev = "text,label\na,10.5\nb,-3\n"
    write_files(tmp_path, {"train.jsonl": lines(*train), "dev.csv": dev})
    task = read("own", tmp_path, "own.kind=regression")
    assert task.family.ranges == ((-2.0, 8.0),)
    assert [example.label for example in task.examples["dev"]] == [(10.5,), (-3.0,)]
    assert task.family.metrics == ("spearman", "pearson")
    settings = ("own.kind=regression", "own.metric=pearson")
    assert read("own", tmp_path, *settings).family.headline == "pearson"
    rows = task.encode(toy_tokenizer, 8)
    assert rows["train"].targets["labels"][:, 0].tolist() == pytest.approx([0, 0.25, 1])
    assert rows["dev"].targets["labels"][:, 0].tolist() == pytest.approx([1.25, -0.1])


QUESTION = ChoiceQuestion("a boat", ("sank", "flew", "sang"), 0)


def test_choices_are_columns_or_a_list(tmp_path):
    columns = "text,a,b,c,label\na boat,sank,flew,sang,0\n"
    record = {"text": "a boat", "options": ["sank", "flew", "sang"], "label": 0}
    unlabelled = {key: value for key, value in record.items() if key != "label"}
    one = write_files(tmp_path / "columns", {"train.csv": columns, "dev.csv": columns})
    files = {"dev.jsonl": lines(record), "test.jsonl": lines(unlabelled)}
    two = write_files(tmp_path / "list", files)
    write_parquet(two / "train.parquet", [record])
    for folder, choices in ((one, "a, b,c"), (two, "options")):
        task = read("own", folder, "own.kind=choice", f"own.choices={choices}")
        assert task.examples["train"] == task.examples["dev"] == [QUESTION]
        assert (task.family.num_choices, task.family.metrics) == (3, ("accuracy",))
    assert task.examples["test"] == [QUESTION._replace(label=None)]
    assert task.columns == (("text", "options"), ("label",))


# --- GLUE and SWAG ---

COLA = 'gj04\t1\t\tThe sailors rode.\ngj04\t0\t*\tThe sailors "rode.\n'
STS = "index\tsentence1\tsentence2\tscore\n0\ta boat\ta ship\t4.500\n1\ta boat\tthe queen\t0\n"
MNLI = "index\tsentence1\tsentence2\tgold_label\n0\ta\tb\tneutral\n1\ta\tb\tcontradiction\n"
UNLABELLED = "index\tsentence1\tsentence2\n0\ta\tb\n"


def test_cola_is_found_under_either_name_and_its_test_has_a_header(tmp_path):
    test = "index\tsentence\n0\tBill.\n"
    write_files(tmp_path / "cola", {"train.tsv": COLA, "dev.tsv": COLA, "test.tsv": test})
    for data in (tmp_path, tmp_path / "cola"):
        task = read("CoLA", data)
        assert task.examples["train"][1] == Example('The sailors "rode.', None, 0)
        assert task.examples["test"] == [Example("Bill.", None, None)]
        assert (task.name, task.family.headline, task.epochs) == ("cola", "mcc", 3)


def test_sts_b_has_numbers_for_labels(tmp_path, toy_tokenizer):
    files = {"train.tsv": STS, "dev.tsv": STS, "test.tsv": UNLABELLED}
    write_files(tmp_path / "STS-B", files)
    task = read("sts-b", tmp_path)
    assert [example.label for example in task.examples["train"]] == [(4.5,), (0.0,)]
    assert (task.family.ranges, task.family.headline) == (((0.0, 5.0),), "spearman")
    rows = task.encode(toy_tokenizer, 16)
    assert rows["train"].targets["labels"][:, 0].tolist() == pytest.approx([0.9, 0.0] * 2)
    assert rows["dev"].targets["labels"][:, 0].tolist() == pytest.approx([0.9, 0.0])
    assert rows["test"].targets["labels"].isnan().all()


def test_pairs_without_an_order_are_trained_on_both_ways(tmp_path, toy_tokenizer):
    write_files(tmp_path / "STS-B", {"train.tsv": STS, "dev.tsv": STS})
    tasks = (read("sts-b", tmp_path, f"swap_pairs={swaps}") for swaps in ("true", "false"))
    both, once = (task.encode(toy_tokenizer, 64) for task in tasks)
    assert (len(once["train"]), len(both["train"]), len(both["dev"])) == (2, 4, 2)
    first, swapped = both["train"].input_ids[0], both["train"].input_ids[2]
    size_a, size = int(both["train"].first_lengths[0]), int(both["train"].lengths[0])
    assert swapped[1 : size - size_a].tolist() == first[size_a : size - 1].tolist()
    assert swapped[size - size_a + 1 : size - 1].tolist() == first[1 : size_a - 1].tolist()


def test_mnli_has_two_dev_sets_two_test_sets_and_the_diagnostic_one(tmp_path):
    files = {"train.tsv": MNLI, "dev_matched.tsv": MNLI, "dev_mismatched.tsv": MNLI}
    write_files(tmp_path / "MNLI", files | {"test_matched.tsv": UNLABELLED})
    write_files(tmp_path / "diagnostic", {"diagnostic.tsv": UNLABELLED})
    task = read("MNLI", tmp_path)
    counts = {"train": 2, "dev": 2, "dev_mismatched": 2, "test": 1, "diagnostic": 1}
    assert {split: len(examples) for split, examples in task.examples.items()} == counts
    assert [example.label for example in task.examples["dev_mismatched"]] == [2, 0]
    assert task.examples["diagnostic"][0].label is None


NLI = ["entailment", "not_entailment"]
HUB = {
    "cola": (("sentence",), ["unacceptable", "acceptable"], [0, 1]),
    "sst2": (("sentence",), ["negative", "positive"], [0, 1]),
    "mrpc": (("sentence1", "sentence2"), ["not_equivalent", "equivalent"], [0, 1]),
    "stsb": (("sentence1", "sentence2"), None, [0.5, 5.0]),
    "qqp": (("question1", "question2"), ["not_duplicate", "duplicate"], [0, 1]),
    "mnli": (("premise", "hypothesis"), ["entailment", "neutral", "contradiction"], [1, 2]),
    "qnli": (("question", "sentence"), NLI, [0, 1]),
    "rte": (("sentence1", "sentence2"), NLI, [0, 1]),
    "wnli": (("sentence1", "sentence2"), ["not_entailment", "entailment"], [0, 1]),
}


@pytest.mark.parametrize("has_names", [True, False])
@pytest.mark.parametrize("name", HUB)
def test_glue_is_read_as_the_hub_has_it(tmp_path, name, has_names):
    texts, labels, expected = HUB[name]
    texts_of = {column: ["a boat", "a ship"] for column in texts}
    parts = ("_matched", "_mismatched") if name == "mnli" else ("",)
    names = {"label": labels} if labels and has_names else {}
    numbers = [0.5, 5.0] if labels is None else [0, 1]
    expected = expected if labels else [(0.5,), (5.0,)]
    for split in ("train", *(f"{kind}{each}" for kind in ("validation", "test") for each in parts)):
        given = [type(numbers[0])(-1)] * 2 if split.startswith("test") else numbers
        path = tmp_path / name / f"{split}-00000-of-00001.parquet"
        write_hub(path, names, **texts_of, label=given, idx=[0, 1])
    if name == "mnli":
        path = tmp_path / "ax" / "test-00000-of-00001.parquet"
        write_hub(path, names, **texts_of, label=[-1, -1], idx=[0, 1])
    task = read(name, tmp_path)
    assert [each.label for each in task.examples["train"]] == expected
    assert [each.label for each in task.examples["dev"]] == expected
    assert [each.label for each in task.examples["test"]] == [None, None]
    assert len(task.examples) == (6 if name == "mnli" else 3)
    assert task.columns == (tuple(texts), ("label",))
    path = next((tmp_path / name).glob("validation*"))
    assert ask_file(task, path).records[0][task.family.fields[0]] == "a boat"


HEADER = ",video-id,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,label\n"
SWAG = (
    HEADER + '0,a,"The queen, old. She","The queen, old.",She,gold,sold it.,"said ""no"".",ran.,1\n'
    '1,b,A boat.,A boat.,,gold,"It\nsank.",It sold.,It ran.,0\n'
)
FOUR = HEADER.replace("ending2", "ending2,ending3") + "0,a,A.,A.,,g,a,b,c,d,3\n"


def test_swag_is_read_by_column_with_and_without_labels(tmp_path):
    test = SWAG.replace(",label", "").replace(",1\n", "\n").replace(",0\n", "\n")
    train = lzma.compress(SWAG.encode())
    write_files(tmp_path, {"val.csv": SWAG, "test.csv": test, "train.csv.xz": train})
    task = read("SWAG", tmp_path)
    first = ChoiceQuestion("The queen, old.", ("She sold it.", 'She said "no".', "She ran."), 1)
    second = ChoiceQuestion("A boat.", ("It\nsank.", "It sold.", "It ran."), 0)
    assert task.examples["train"] == task.examples["dev"] == [first, second]
    assert task.examples["test"] == [first._replace(label=None), second._replace(label=None)]
    assert (task.family.num_choices, task.family.headline, task.epochs) == (3, "accuracy", 3)
    assert [path.name for path in task.files] == ["train.csv.xz", "val.csv", "test.csv"]


@pytest.mark.parametrize(
    ("name", "folder", "counts", "positives"),
    [
        ("cola", "glue", (8551, 1043, 1063), 721),
        ("SST-2", "glue", (67349, 872, 1821), 444),
        ("swag", "swag_format", (2200, 576), 144 + 2 * 150 + 3 * 147),
    ],
)
def test_real_data_are_read_whole(name, folder, counts, positives):
    if not (DATA / folder).is_dir():
        pytest.skip(f"no data at {DATA / folder}")
    task = read(name, DATA / folder)
    assert tuple(len(examples) for examples in task.examples.values()) == counts
    assert sum(example.label for example in task.examples["dev"]) == positives


# --- tagging ---

IOB2 = "The DT O\nqueen NN B-PER\nof IN I-PER\nSpain NN B-LOC\n\nA DT O\nboat NN O\n"


def tagging(folder, train, dev=IOB2, *settings):
    return read("tagging", write_files(folder, {"train.txt": train, "dev.txt": dev}), *settings)


def test_columns_are_read_into_sentences(tmp_path):
    text = f"-DOCSTART- -X- O\n\n{IOB2}-DOCSTART- -X- O\n\n\nEnd NN O"
    task = tagging(tmp_path, text, IOB2.replace("\n", "\r\n"))
    first, second, third = task.examples["train"]
    tags = ["O", "B-PER", "I-PER", "B-LOC"]
    assert first == TaggedSentence(["The", "queen", "of", "Spain"], tags)
    assert (second.words, third.words) == (["A", "boat"], ["End"])
    assert [each.words for each in task.examples["dev"]] == [first.words, second.words]
    assert task.family.labels == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
    assert task.family.metrics == ("f1", "precision", "recall", "accuracy")
    assert (task.name, task.epochs, task.columns) == (tmp_path.name, 3, (("1",), ("last",)))
    assert [path.name for path in task.files] == ["train.txt", "dev.txt"]


def test_the_columns_can_be_chosen_and_other_tags_are_labels_as_they_are(tmp_path):
    task = tagging(tmp_path, IOB2, IOB2, "tagging.tag_column=2")
    assert task.family.labels == ("DT", "IN", "NN")
    assert task.family.metrics == ("accuracy",)
    swapped = tagging(tmp_path, IOB2, IOB2, "tagging.word_column=2", "tagging.tag_column=1")
    assert swapped.examples["dev"][1] == TaggedSentence(["DT", "NN"], ["A", "boat"])


@pytest.mark.parametrize(
    ("split", "name"),
    [("dev", "valid.conll"), ("dev", "validation.tsv"), ("dev", "val.iob"), ("dev", "testa.txt")]
    + [("test", "test.txt"), ("test", "testb.txt")],
)
def test_files_are_found_by_name(tmp_path, split, name):
    files = {"train.txt": IOB2, name: IOB2, "notes.md": "other files are left alone"}
    write_files(tmp_path, files if split == "dev" else files | {"dev.txt": IOB2})
    assert len(read("tagging", tmp_path).examples[split]) == 2


def test_compressed_files_and_json_lines(tmp_path):
    first = {"tokens": ["New York", "\u2028"], "tags": ["B-LOC", "O"], "id": 1}
    text = lines(first, {"tokens": [], "tags": []}, {"tokens": ["Bill"], "tags": ["B-PER"]})
    files = {"train.jsonl.xz": lzma.compress(text.encode())}
    write_files(tmp_path, files | {"dev.txt.gz": gzip.compress(b"Bill B-PER\n")})
    task = read("tagging", tmp_path)
    bill = TaggedSentence(["Bill"], ["B-PER"])
    assert task.examples["train"] == [TaggedSentence(first["tokens"], first["tags"]), bill]
    assert task.examples["dev"] == [bill]
    assert task.columns == (("tokens",), ("tags",))


CONLLU = (
    "# sent_id = 1\n# text = vámonos al mar\n"
    "1-2\tvámonos\t_\n1\tvamos\tVERB\n2\tnos\tPRON\n2.1\tx\t_\n3\t#\tSYM\n\n"
    "# sent_id = 2\n1\tmar\tNOUN\n\n"
)
SCHEMES = {
    "IOB1": "a I-X\nb I-X\nc B-X\nd I-Y\ne O\n",
    "IOB2": "a B-X\nb I-X\nc B-X\nd B-Y\ne O\n",
    "BIOES": "a B-X\nb E-X\nc S-X\nd S-Y\ne O\n",
    "BILOU": "a B-X\nb L-X\nc U-X\nd U-Y\ne O\n",
    "BMES": "a B-X\nb E-X\nc S-X\nd S-Y\ne O\n",
}


@pytest.mark.parametrize(
    ("text", "settings", "words"),
    [
        (CONLLU, ["tagging.word_column=2"], [["vamos", "nos", "#"], ["mar"]]),
        ("\u00a0 O\n\x85  B-X\n", [], [["\u00a0", "\x85"]]),
        ("New York\tB-X\n# O\tO\n", [], [["New York", "# O"]]),
        ("# id 1\tdomain=en\n2-3 _ O\n# _ B-X\n\n", [], [["2-3", "#"]]),
        ("# O\nboat B-X\n\n#1 B-X\n\n#  O\n", [], [["#", "boat"], ["#1"], ["#"]]),
        ("#\tO\nboat\tB-X\n\n# text = a # b\n#ad\tI-Y\n", [], [["#", "boat"], ["#ad"]]),
        ("# # B-NP B-X\n1 CD I-NP O\n\n# a text here\na DT B-NP O\n", [], [["#", "1"], ["a"]]),
        ("-DOCSTART- -X- O O\n\n# # O O\nA NN O S-X\n", [], [["#", "A"]]),
        ("#begin document (a); part 0\n#\tSYM\nb\tNN\n\nc\tSYM\n#end\tNN\n\n#end document\n", [],
         [["#", "b"], ["c", "#end"]]),
        ("#\thttp://a [2009]\n1\t#\tO\tO\n2\tb\tB-X\tO\n", ["tagging.word_column=2",
         "tagging.tag_column=3"], [["#", "b"]]),
    ],
    ids=["CoNLL-U's comments and notes", "white space", "tabs", "words like numbers", "two columns",
         "two with tabs", "CoNLL-2000's", "CoNLL-2003's", "CoNLL-2012's comments", "GermEval's"],
)  # fmt: skip
def test_what_is_a_word(tmp_path, text, settings, words):
    task = tagging(tmp_path, text, text, *settings)
    assert [each.words for each in task.examples["train"]] == words
    (column,) = task.columns.inputs
    records, _ = ask_file(task, tmp_path / "dev.txt", column)
    assert [each["tokens"] for each in records] == words


@pytest.mark.parametrize("form", ["{}_PER", "PER-{}", "{}:PER", "PER_{}"])
def test_tags_like_those_of_entities_are_plain_and_said_to_be(tmp_path, form):
    text = f"a {form.format('B')}\nb {form.format('I')}\nc O\n"
    for each in (text, text.replace("B", "b").replace("I", "i")):
        task = tagging(tmp_path, each, each)
        assert task.family.metrics == ("accuracy",)
        (note,) = task.notes
        assert note.startswith("tags such as ")
        assert "scored as plain tags" in note
    assert tagging(tmp_path, IOB2, IOB2, "tagging.tag_column=2").notes == ()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_becomes_iob2(tmp_path, scheme):
    task = tagging(tmp_path, SCHEMES[scheme], SCHEMES["IOB2"])
    assert task.examples["train"] == task.examples["dev"]
    assert task.examples["train"][0].tags == ["B-X", "I-X", "B-X", "B-Y", "O"]
    assert task.family.labels == ("O", "B-X", "I-X", "B-Y", "I-Y")


def test_m_is_within_an_entity(tmp_path):
    text = "a B-X\nb M-X\nc M-X\nd E-X\ne M-Y\nf S-X\n"
    task = tagging(tmp_path, text, text)
    assert task.family.labels == ("O", "B-X", "I-X", "B-Y", "I-Y")
    assert task.examples["train"][0].tags == ["B-X", "I-X", "I-X", "I-X", "B-Y", "B-X"]
    words = tagging(tmp_path, "a B\nb M\nc E\nd S\n", "a S\n")  # as Chinese is cut into words
    assert words.family.metrics == ("f1", "precision", "recall", "accuracy")
    assert words.examples["train"][0].tags == ["B", "I", "I", "B"]


def write_hub(path, names, **columns):
    """A .parquet file as the hub has it; the schema names the numbers of columns of ClassLabel."""
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict(columns)
    for column, labels in names.items():
        feature = datasets.ClassLabel(names=labels)
        is_list = isinstance(columns[column][0], list)
        data = data.cast_column(column, datasets.Sequence(feature) if is_list else feature)
    path.parent.mkdir(exist_ok=True)
    data.to_parquet(str(path))


@pytest.mark.parametrize("column", ["tags", "ner_tags"])
def test_tags_that_are_numbers_have_the_names_of_the_schema(tmp_path, column):
    tags = ["O", "B-PER", "I-PER"]
    columns = {"tokens": [["The", "old", "queen"], ["A"]], column: [[0, 1, 2], [0]]}
    for split in ("train", "validation"):
        write_hub(tmp_path / f"{split}-00000-of-00001.parquet", {column: tags}, **columns)
    task = read("tagging", tmp_path)
    assert [each.tags for each in task.examples["train"]] == [["O", "B-PER", "I-PER"], ["O"]]
    assert task.family.labels == ("O", "B-PER", "I-PER")


def test_prefixes_alone_are_entities(tmp_path):
    task = tagging(tmp_path, "a B\nb I\nc O\nd I\ne B\n", "a S\n")
    assert task.family.labels == ("O", "B", "I")
    assert task.examples["train"][0].tags == ["B", "I", "O", "B", "B"]
    assert task.examples["dev"][0].tags == ["B"]


# --- without labels ---

ABSENT = object()
UNLABELLED_FORMS = [-1, "-1", -1.0, "", None, "?", ABSENT]
KINDS = {
    "classification": ({"text": "a"}, ["0", "1"], []),
    "pairs": ({"text_a": "a", "text_b": "b"}, [0, 1], []),
    "regression": ({"text": "a"}, [0, 2.5], ["own.kind=regression"]),
    "sets": ({"text": "a"}, [["x"], ["x", "y"]], ["own.kind=multi_label"]),
    "choice": ({"text": "a", "o": ["b", "c"]}, [0, 1], ["own.kind=choice", "own.choices=o"]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_has_no_labels_is_answered_and_not_scored(tmp_path, toy_tokenizer, kind):
    fields, labels, settings = KINDS[kind]
    train = lines(*(fields | {"label": label} for label in labels * 2))
    for unknown in UNLABELLED_FORMS:
        record = fields if unknown is ABSENT else fields | {"label": unknown}
        files = {"train.jsonl": train, "dev.jsonl": train, "test.jsonl": lines(record, record)}
        task = read("own", write_files(tmp_path, files), *settings)
        assert [each.label for each in task.examples["test"]] == [None, None]
        rows = task.encode(toy_tokenizer, 16)["test"]
        logits = torch.zeros(2, 1 if "regression" in str(settings) else len(task.family.labels))
        assert task.family.score(rows, {"logits": logits}) == {}
        if unknown != "":
            (tmp_path / "dev.jsonl").write_text(lines(record, record))
            refuse("dev.jsonl", lambda settings=settings: read("own", tmp_path, *settings))
    some = lines(fields | {"label": labels[0]}, fields | {"label": None})
    write_files(tmp_path, {"dev.jsonl": train, "test.jsonl": some})
    refuse("test.jsonl line 2: 'label' is None", lambda: read("own", tmp_path, *settings))


def test_minus_one_is_a_label_where_train_has_it(tmp_path):
    train = "text,label\na,-1\nb,1\nc,-1\nd,1\n"
    files = {"train.csv": train, "dev.csv": train, "test.csv": "text,label\na,-1\n"}
    assert read("own", write_files(tmp_path, files)).examples["test"] == [Example("a", None, 0)]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *(("test.txt", f"The{tag}\nboat{tag}\n") for tag in ("", " DT", "\tDT\t")),
        *(("test.conll", f"The DT {tag}\nboat DT {tag}\n") for tag in "_?"),
        *(("test.jsonl", lines({"tokens": ["The", "boat"]} | tags))
          for tags in ({}, {"tags": None}, {"tags": []}, {"tags": [-1, -1]})),
    ],
)  # fmt: skip
def test_words_without_tags_are_answered_and_not_scored(tmp_path, toy_tokenizer, name, content):
    write_files(tmp_path, {name: content})
    task = tagging(tmp_path, IOB2)
    (sentence,) = task.examples["test"]
    assert (sentence.words, sentence.tags) == (["The", "boat"], [])
    rows = task.encode(toy_tokenizer, 16)["test"]
    outputs = {"logits": torch.zeros(*rows.targets["labels"].shape, 5)}
    assert int((rows.targets["labels"] >= 0).sum()) == 2
    assert task.family.score(rows, outputs) == {}
    task.family.write_predictions(tmp_path, "test", rows, outputs)
    assert (tmp_path / "test_predictions.conll").read_text() == "The _ O\nboat _ O\n\n"
    assert task.notes == (f"{name} has no tags; it will be predicted but not scored",)


# --- files found by name, in parts, and a part of train as dev ---


def test_files_are_found_in_any_case_and_in_parts(tmp_path):
    write_files(tmp_path, {"Validation.TSV": DEV})
    parts = [tmp_path / f"train-0000{part}-of-00002.parquet" for part in range(2)]
    for part, path in enumerate(parts):
        write_parquet(path, RECORDS[part::2])
    task = read("own", tmp_path)
    texts = [RECORDS[place]["text"] for place in (0, 2, 1, 3)]
    assert [each.text_a for each in task.examples["train"]] == texts
    assert len(task.examples["dev"]) == 2
    parts[0].unlink()
    refuse("has only train-00001-of-00002.parquet of 2 parts; add", read, "own", tmp_path)
    parts[1].rename(tmp_path / "train-00000-of-00001.parquet")
    refuse("train-00000-of-00001.parquet: every 'label' is 'bad'", read, "own", tmp_path)
    for part, name in enumerate(("train", "dev", "test-0-of-2", "test-1-of-2")):
        text = TRAIN if part < 3 else "text\tlabel\na text\t\n"
        write_files(tmp_path / "mixed", {f"{name}.tsv": text})
    refuse("own: some files of test have labels and others none", read, "own", tmp_path / "mixed")
    cola = {"TRAIN.TSV": COLA, "Dev.tsv.gz": gzip.compress(COLA.encode())}
    assert len(read("cola", write_files(tmp_path / "CoLA", cola)).examples["dev"]) == 2


def test_a_share_of_train_is_dev_and_equal_texts_stay_together(tmp_path):
    rows = [f"text {n % 70},{n % 2}\n" for n in range(200)]
    path = write_files(tmp_path, {"all.csv": "text,label\n" + "".join(rows)}) / "all.csv"
    refuse("has no dev file; add one named dev, or make a share", read, "own", path)
    task = read("own", path, "dev_fraction=0.1")
    dev, train = ({each.text_a for each in task.examples[split]} for split in ("dev", "train"))
    assert not dev & train
    assert 20 <= len(task.examples["dev"]) <= 22
    assert len(task.examples["train"]) + len(task.examples["dev"]) == 200
    assert "(dev_fraction=0.1)" in task.notes[-1]
    path.write_text("text,label\n" + "".join(reversed(rows)))
    again = read("own", path, "dev_fraction=0.1").examples["dev"]
    assert sorted(again) == sorted(task.examples["dev"])
    refuse("leaves 200 to train on and 0 as dev", read, "own", path, "dev_fraction=0.001")
    both = dict.fromkeys(("train.csv", "dev.csv"), path.read_bytes())
    write_files(tmp_path / "both", both)
    refuse("own has a dev file", read, "own", tmp_path / "both", "dev_fraction=0.1")


def test_a_share_of_pairs_swapped_and_of_questions(tmp_path, toy_tokenizer):
    write_files(tmp_path / "STS-B", {"train.tsv": STS + STS.split("\n", 1)[1].replace("boat", "b")})
    task = read("sts-b", tmp_path, "dev_fraction=0.5")
    assert [len(task.examples[split]) for split in ("train", "dev")] == [2, 2]
    assert len(task.encode(toy_tokenizer, 16)["train"]) == 4
    asked = [flat(id=n, context=f"{CONTEXT} {n % 4}") for n in range(8)]
    write_files(tmp_path / "squad", {"train.jsonl": lines(*asked)})
    task = read("squad-1.1", tmp_path / "squad", "dev_fraction=0.25")
    assert len({each.context for each in task.examples["dev"]}) == 1
    assert [len(task.examples[split]) for split in ("train", "dev")] == [6, 2]


def test_rows_of_qqp_with_too_few_columns_are_left_out_and_said(tmp_path):
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    row, short = "1\t2\t3\ta\tb\t1\n", "4\t5\t6\n"
    files = {"train.tsv": header + row + short + row + "4\n", "dev.tsv": header + row}
    task = read("qqp", write_files(tmp_path, files))
    assert task.examples["train"] == [Example("a", "b", 1)] * 2
    assert task.notes == ("train.tsv: 2 of 4 rows have fewer than 6 columns and are left out",)
    write_files(tmp_path, {"test.tsv": header + short})
    refuse("test.tsv line 2: 3 tab-separated fields; it must have 6", lambda: read("qqp", tmp_path))


def test_a_csv_may_have_another_separator(tmp_path):
    table = 'text;label\n"a; b, c";x\nd;y\n"e\nf";x\ng;y\n'
    write_files(tmp_path, {"train.csv": table, "dev.csv": table})
    task = read("own", tmp_path, "own.separator=;")
    assert task.examples == read("own", tmp_path).examples
    assert [each.text_a for each in task.examples["train"]] == ["a; b, c", "d", "e\nf", "g"]
    records, _ = ask_file(task, tmp_path / "dev.csv", separator=";")
    assert records[0] == {"text": "a; b, c"}
    write_files(tmp_path, {"new.csv": "text,id\na;b,1\n", "one.csv": "text\na, b\n"})
    rows = [{"text": "a;b", "id": "1"}]
    found = ask_file(task, tmp_path / "new.csv", separator=";")
    assert found == ([{"text": "a;b"}], rows)
    found = ask_file(task, tmp_path / "one.csv", separator=";")
    assert found.records == [{"text": "a, b"}]
    tabs = write_files(tmp_path / "tabs", {"train.csv": TRAIN, "dev.csv": TRAIN})
    assert len(read("own", tabs, "own.separator=\\t").examples["train"]) == 4
    refuse("own.separator must be one character", read, "own", tabs, "own.separator=ab")
    write_files(tmp_path, {"dev.csv": "a;b\nc"})
    refuse("line 2: 1 semicolon-separated", read, "own", tmp_path, "own.separator=;")
    lists = write_files(tmp_path / "lists", {"train.jsonl": lines(*RECORDS), "dev.jsonl": "{}"})
    refuse("own.separator is for .csv and .tsv", read, "own", lists, "own.separator=;")


# --- questions ---

CONTEXT = "The old sailor sold a boat. The queen painted it."
NO_ANSWER = {"id": "q2", "question": "Who?", "answers": [], "is_impossible": True}
FIRST = SpanQuestion("q1", "What was sold?", CONTEXT, ("a boat",), (20, 26))


def squad(*entries: dict) -> str:
    return json.dumps({"data": [{"paragraphs": [{"context": CONTEXT, "qas": list(entries)}]}]})


def entry(answer: str = "a boat", start: int = 20, **other) -> dict:
    answers = [{"text": answer, "answer_start": start}]
    return {"id": "q1", "question": "What was sold?", "answers": answers} | other


def flat(**other) -> dict:
    """A question as `datasets` has it."""
    answers = {"text": ["a boat"], "answer_start": [20]}
    return {"id": 7, "question": "What was sold?", "context": CONTEXT, "answers": answers} | other


def mrqa(**other) -> str:
    detected = [{"text": "a boat", "char_spans": [[20, 25]], "token_spans": [[4, 5]]}]
    asked = {"qid": "m1", "question": "What was sold?", "answers": ["A boat", "boat"]}
    record = {"context": CONTEXT, "qas": [asked | {"detected_answers": detected} | other]}
    return lines({"header": {"dataset": "x"}}, record)


def test_squad_files_are_read_compressed_or_not(tmp_path):
    train = squad(entry(is_impossible=False), NO_ANSWER)
    files = {"train-v2.0.json.xz": lzma.compress(train.encode()), "dev-v1.1.json": squad(entry())}
    files["test.json"] = squad({"id": "t", "question": "What?"})
    task = read("squad-1.1", write_files(tmp_path, files))
    none = SpanQuestion("q2", "Who?", CONTEXT, (), None)
    unknown = SpanQuestion("t", "What?", CONTEXT, None, None)
    assert task.examples == {"train": [FIRST, none], "dev": [FIRST], "test": [unknown]}
    assert [path.name for path in task.files] == [*files]


def test_mrqas_spans_include_the_last_character_and_several_files_are_named(tmp_path):
    files = {"train-a.json": squad(entry(id="a")), "dev.json": squad(entry())}
    write_files(tmp_path, files | {"train-b.jsonl.gz": gzip.compress(mrqa().encode())})
    listed = "several train files: train-a.json, train-b.jsonl.gz; choose with squad.train"
    refuse(listed, lambda: read("squad-1.1", tmp_path))
    task = read("squad-1.1", tmp_path, "squad.train=train-b.jsonl.gz, train-a.json")
    first = FIRST._replace(id="m1", answers=("A boat", "boat"))
    assert task.examples["train"] == [first, FIRST._replace(id="a")]


@pytest.mark.parametrize("form", ["jsonl", "parquet", "json lines", "json list", "json data"])
def test_flat_questions_are_read_in_every_format(tmp_path, form):
    none = {"text": [], "answer_start": []}
    records = [flat(), flat(id=8, answers=none)]
    name = f"train-00000-of-00001-0a1b2c.{form.partition(' ')[0]}"
    if form == "parquet":
        write_parquet(tmp_path / name, records)
    else:
        whole = {"json list": records, "json data": {"data": records}}.get(form)
        write_files(tmp_path, {name: lines(*records) if whole is None else json.dumps(whole)})
    test = lines(flat(answers=none), {k: v for k, v in flat(id="x").items() if k != "answers"})
    write_files(tmp_path, {"validation.jsonl": lines(*records), "test.jsonl": test})
    task = read("squad-2.0", tmp_path)
    answered = FIRST._replace(id="7")
    assert task.examples["train"] == task.examples["dev"]
    assert task.examples["train"] == [answered, answered._replace(id="8", answers=(), span=None)]
    unknown = answered._replace(answers=None, span=None)
    assert task.examples["test"] == [unknown, unknown._replace(id="x")]
    records, _ = ask_file(task, tmp_path / name)
    assert [each["id"] for each in records] == ["7", "8"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.jsonl", lines(flat(answers={"text": ["a"], "answer_start": []})), "1 texts and 0 answ"),
        ("x.jsonl", lines(flat(answers={"text": "a boat"})), "'text' is 'a boat'; it must be a li"),
        ("x.jsonl", lines(flat(answers=None)), "'answers' is None; it must be a list"),
        ("x.json", lines(flat(), {})[:-2] + "]", "line 2: not valid JSON"),
        ("x.json", b"\xff", "line 1: not UTF-8"),
        ("x.json", "[]", "no questions"),
        ("x.json", "1", "1 must be a dictionary"),
        ("x.json", '{"data": {}}', "'data' is {}; it must be a list"),
        ("x.json", '{"data": [{}]}', "record 1: no 'context'"),
        ("x.json", squad().replace(f'"{CONTEXT}"', "1"), "paragraph 1: 'context' is 1; it must be"),
        ("x.json", squad(entry(), {"id": 0.5}), "record 1 paragraph 1 question 2: 'id' is 0.5"),
        ("x.json", squad(entry(), entry()), "question 'q1': an id must be that of one"),
        ("x.json", squad(entry(answers=[])), "no answers; it must have one, or is_impossible"),
        ("x.json", squad(entry(is_impossible=True)), "is_impossible is true, so"),
        ("x.json", squad(entry(is_impossible="no")), "'is_impossible' is 'no'; it must be true or"),
        ("x.json", squad(entry(start=21)), "' boat.' at answer_start 21; it must have the answer"),
        ("x.json", squad(entry(start=True)), "'answer_start' is True; it must be a whole"),
        ("x.json", squad(entry("", 3)), "'' at answer_start 3"),
        ("x.json", "[" * 100_000, "nested too deeply"),
        ("x.jsonl", "[]\n", "line 1: must be a JSON object"),
        ("x.jsonl", '\n{"context": "a"}', "line 2: no 'id'"),
        ("x.jsonl", mrqa(answers=[]), "question 'm1': 'answers' is empty"),
        ("x.jsonl", mrqa(answers=[3]), "'answers' is [3]; it must be a list of texts"),
        ("x.jsonl", mrqa(detected_answers=[{"char_spans": [[20, 49]]}]), "with [20, 49]; they"),
        ("x.jsonl", mrqa(detected_answers=[{"char_spans": []}]), "char_spans begin with None"),
        ("x.tsv", "", "must be .json, .jsonl"),
    ],
)
def test_questions_that_do_not_fit_are_refused_in_one_line(tmp_path, name, content, words):
    write_files(tmp_path, {name: content})
    refuse(words, read, "squad-1.1", tmp_path, f"squad.train={name}")


# --- refusals ---

OWN = {"train.tsv": TRAIN, "dev.tsv": DEV}
NUMBERS = {"train.csv": "text,label\na,1\nb,2\n", "dev.csv": "text,label\na,1\n"}
REGRESSION, CHOICE = "own.kind=regression", "own.kind=choice"
CHOICES = dict.fromkeys(("train.csv", "dev.csv"), "text,a,b,label\na,b,c,0\n")
TAGS = {"train.txt": IOB2, "dev.txt": IOB2}
ENDINGS = {"train.csv": SWAG, "val.csv": SWAG}


def change(files, name, old, new):
    return files | {name: files[name].replace(old, new)}


def choices(dev, *train):
    """Files of questions whose choices are the letters of a word."""
    records = [{"text": "a", "o": [*each], "label": 0} for each in (dev, *train)]
    return {"train.jsonl": lines(*records[1:]), "dev.jsonl": lines(records[0])}


def trained(files, **others):
    """The file that is trained on, with another dev file."""
    name = next(iter(files))
    return {name: files[name]} | {name.replace("_", "."): text for name, text in others.items()}


BAD_FILES = {
    "own": [
        ({}, "no train file; add train with .tsv, .csv, .jsonl, .parquet, or name it with"),
        ({"train.json": "[]"}, "or name it with own.train; train.json is none of these"),
        (OWN | {"train.jsonl": "{}"}, "several train files: train.jsonl, train.tsv; choose"),
        (OWN, "own.dev: no file", "own.dev=x.tsv"),
        (OWN | {"dev.tsv": "text\tlabel\n"}, "dev.tsv is empty"),
        (OWN | {"dev.tsv": DEV + "\nodd\tfine\n"}, "line 5: unknown label 'odd'; did you"),
        (OWN | {"test.tsv": "text\tlabel\na\tz\n"}, "test.tsv line 2: unknown label 'z'"),
        (change(OWN, "dev.tsv", "label", "labels"), "no column 'label'; did you mean 'labe"),
        (change(OWN, "train.tsv", "text", "txt"), "choose one of txt, label with own.text"),
        (OWN | {"train.tsv": TRAIN + "fine\n"}, "line 6: 1 tab-separated fields; it must"),
        (OWN | {"train.tsv": "text\tlabel\na\tx\nb\tx\n"}, "every 'label' is 'x'; two labe"),
        (OWN | {"train.tsv": "text\tlabel\na\t1.5\nb\t2.5\n"}, "2 labels in 2 rows; a labe"),
        (trained(OWN, dev_jsonl='{"text": "a", "label": "good"}\n{"text": "a"}'),
         "dev.jsonl line 2: no 'label'; it must be text"),
        (trained(OWN, dev_jsonl='{"text": "a", "label": 0.5}'), "'label' is 0.5"),
        ({"train.jsonl": lines({"text_a": "a", "label": 1}, {"text_b": "c", "label": 0}) * 2},
         "train.jsonl line 2: no 'text_a'; it must be text"),
        (change(OWN, "train.tsv", "good", ""), "line 2: 'label' is empty; leave the row out"),
        (OWN | {"train.tsv": TRAIN + "a\tgood \n" * 2}, "'good ' and 'good' differ only in spa"),
        (OWN | {"train.tsv": TRAIN + '"a\nb"\tgood\n'}, "its cells are quoted, name it .csv"),
        (trained(OWN, dev_parquet="no"), "dev.parquet is damaged or cut of"),
        (OWN | {"dev.xls": "a"}, "must be .tsv, .csv, .jsonl, .parquet, c", "own.dev=dev.xls"),
        (OWN | {"train.tsv": b"text\tlabel\n\xff\tgood\n"}, "train.tsv line 2: not UTF-8 t"),
        ({"train.jsonl": lines(*({"text": "a", "label": x} for x in "x\tx\t")), "dev.tsv": DEV},
         "train.jsonl line 2: the label '\\t' must be printable"),
        ({"train.csv": 'text,label\n"b\nc",y\n"d"e,x\n', "dev.tsv": DEV}, "line 4: not valid CSV"),
        ({"train.csv": "text,text,label\na,b,x\n", "dev.tsv": DEV}, "two columns are named"),
        (change(NUMBERS, "train.csv", "b,2", "b,inf"), "line 3: 'label' must be", REGRESSION),
        (change(NUMBERS, "train.csv", "b,2", "b,1_000"), "a number, not '1_000'", REGRESSION),
        (change(NUMBERS, "dev.csv", "a,1", "a,-1e39"), "dev.csv line 2: the label", REGRESSION),
        (change(NUMBERS, "train.csv", "b,2", "b,1.000000001"), "'label' is 1 in fl", REGRESSION),
        (trained(NUMBERS, dev_jsonl='{"text": "a", "label": null}'),
         "dev.jsonl line 1: 'label' is None; it must be text or a number", REGRESSION),
        (CHOICES, "line 2: 'a' is 'b'; it must be a list of texts", CHOICE, "own.choices=a"),
        (choices("bc", "bc", "bcd"), "line 2: 'choices' has 3 texts; it must have 2", CHOICE,
         "own.choices=o"),
        (choices("bcd", "bc"), "dev.jsonl line 1: 'choices' has 3 texts; it must have 2, as in",
         CHOICE, "own.choices=o"),
        (choices("bc", "b"), "line 1: 1 choice; there must be two or more", CHOICE,
         "own.choices=o"),
    ],
    "colla": [({}, "unknown task 'colla'; did you mean 'cola'?")],
    "cola": [
        ({}, "own.text applies only to --task own; 'cola' defines its own", "own.text=body"),
        ({}, "squad.head is for squad-1.1 and squad-2.0, not for cola", "squad.head=plain"),
    ],
    "sst": [({}, "neither a file named train ... nor a folder SST-2 with one; give GLUE's folder")],
    "sst-2": [({"train.tsv": COLA, "dev.tsv": COLA}, "train.tsv: no column 'sentence'")],
    "sts-b": [
        (dict.fromkeys(("train.tsv", "dev.tsv"), STS.replace("4.500", value)), "number in [0, 5]")
        for value in ("5.1", "-0.1", "high", "nan", "")
    ],
    "swag": [
        (change(ENDINGS, "train.csv", "ending", "end"), "no columns ending0, ending1, ..."),
        (change(ENDINGS, "val.csv", "It ran.", ""), "line 3: 'choices' has an empty text, c"),
        (ENDINGS | {"val.csv": FOUR}, "val.csv line 2: 'choices' has 4 texts; it must have 3"),
    ],
    "tagging": [
        (TAGS | {"train.jsonl": "{}"}, "train.jsonl, train.txt; keep one of them there"),
        ({each: "1\ta\tX\n2\tb\tY\n" for each in TAGS}, "column 1 numbers the words; "),
        (TAGS, "line 1: tag_column must be 0 to 3, not 4", "tagging.tag_column=4"),
        (TAGS, "both are column 3 of 3", "tagging.word_column=3"),
        (trained(TAGS, dev_txt="A DT O\nB NNP O\n"),
         "line 2: train has no tag 'NNP'; did you mean 'NN'?", "tagging.tag_column=2"),
        (TAGS | {"train.txt": "A O\n"}, "train.txt: every tag is 'O'; two are needed"),
        *((trained(TAGS, dev_txt=text), words) for text, words in (
            ("-DOCSTART- O\n\n", "dev.txt is empty"),
            ("\nA O\nboat NN O\n", "line 3: 3 columns; it must have 2,"),
            ("A\nboat\n", "line 1: one column; a word and its tag are"),
            ("\tO\n", "line 1: the word must not be empty"),
            ("A\tO \n", "line 1: the tag 'O ' must be printable"),
            ("A O\nBill PER\n", "line 2: the tag 'PER' must be O or be"),
        )),
        *((trained(TAGS, dev_jsonl=text), words) for text, words in (
            ('{"tokens": ["a"], "pos_tags": ["O"]}', "no column 'tags'; did you mean 'pos_tags'?"),
            ('{"tokens": ["a"], "tags": [1]}', "names of numbers are read from a .parquet file"),
            ('\n{"tokens": ["a", "b"], "tags": ["O"]}', "line 2: 2 tokens and 1 tags"),
            ('{"tokens": ["a"], "tags": [0]}', "line 1: 'tags' is [0]; it must be a list of texts"),
        )),
    ],
    "squad-1.1": [
        ({}, "add train with .json, .jsonl, .parquet, or name it with squad.tra"),
    ],
    "squad-2.0": [
        (dict.fromkeys(("train.json", "dev.json"), squad(entry())), "is the task squad-1.1"),
    ],
}  # fmt: skip
"""By task: files, what is said of them, and settings."""


@pytest.mark.parametrize(
    ("task", "files", "words", "settings"),
    [(task, *case[:2], case[2:]) for task, cases in BAD_FILES.items() for case in cases],
)
def test_files_and_settings_that_do_not_fit_are_refused_in_one_line(
    tmp_path, task, files, words, settings
):
    refuse(words, read, task, write_files(tmp_path, files), *settings)


def test_a_number_of_parquet_has_a_row_not_a_line(tmp_path):
    write_parquet(tmp_path / "dev.parquet", [{"text": "a", "label": "x"}, {"label": "y"}])
    write_files(tmp_path, trained(OWN))
    refuse("dev.parquet row 2: 'text' is None; it must be text", read, "own", tmp_path)


@pytest.mark.parametrize("open_it", [read_table, read_text_lines])
def test_a_pipe_that_nobody_writes_is_refused_not_waited_for(tmp_path, open_it):
    for name in ("a.tsv", "task.toml"):
        os.mkfifo(tmp_path / name)
    refuse("a.tsv is not a regular file; give one that is", lambda: open_it(tmp_path / "a.tsv"))
    refuse("is not a regular file", lambda: read(str(tmp_path / "task.toml"), tmp_path))
    refuse("a.tsv is not a folder", lambda: read("tagging", tmp_path / "a.tsv"))


# --- a task as a file ---

TASK = 'name = "weather"\ntext = "body"\nlabel = "mood"\ntrain = "all.csv"\nmetric = "mcc"\n'
WEATHER = "id,body,mood\n0,fine day,good\n1,bad day,bad\n2,fine,good\n3,bad,bad\n"


@pytest.fixture
def weather(tmp_path):
    write_files(tmp_path / "data", {"all.csv": WEATHER, "dev.csv": WEATHER})
    return write_files(tmp_path, {"weather.toml": TASK})


def test_empty_cells_are_a_row_but_at_the_end(tmp_path):
    write_files(tmp_path, {"a.tsv": "text\tlabel\n\t\n\nb\t1\n\t\n\n"})
    rows = [{"text": "", "label": ""}, {"text": "b", "label": "1"}]
    assert read_table(tmp_path / "a.tsv").rows == rows


def test_a_tagging_task_has_columns_where_files_have_them_and_a_name_of_its_own(tmp_path):
    row = '{"tokens": ["A", "boat"], "tags": ["O", "B-X"]}\n'
    write_files(tmp_path / "mrpc", {"train.jsonl": row * 2, "dev.jsonl": row})
    refuse("the folder 'mrpc' is the name of another task", read, "tagging", tmp_path / "mrpc")
    columns = "tagging.word_column=3"
    refuse("are for files with columns", read, "tagging", tmp_path / "mrpc", columns)


def test_a_file_says_what_the_settings_would(weather):
    task = read(str(weather / "weather.toml"), weather / "data")
    settings = [f"own.{line}".replace('"', "").replace(" = ", "=") for line in TASK.splitlines()]
    same = read("own", weather / "data", *settings)
    assert (task.name, task.examples, task.family) == ("weather", same.examples, same.family)
    assert task.examples["train"][:2] == [Example("fine day", None, 1), Example("bad day", None, 0)]
    assert task.family.metrics == ("mcc", "accuracy", "f1", "macro_f1")
    assert [path.name for path in task.files] == ["weather.toml", "all.csv", "dev.csv"]


@pytest.mark.parametrize(
    ("task", "settings", "words"),
    [
        ('lable = "mood"', [], "weather.toml: unknown field 'lable' in 'lable'; did you mean"),
        ("kind = regression", [], "weather.toml is not valid TOML: "),
        ('kind = "regresion"', [], "weather.toml: kind cannot be 'regresion'; did you mean"),
        ('[own]\nkind = "choice"', [], "weather.toml: unknown field 'own' in 'own.kind'"),
        ('kind = "choice"', [], "weather.toml: own."),
        ('name = "swag"', [], "own.name 'swag' is the name of another task"),
        ('train = "dev.csv"', [], "dev.csv is used for two splits; give each split its own"),
        ('text = "x"\nlabel = "x"', [], "own.label must be another column than the texts"),
        (TASK, ["own.text=id"], "own.text applies only to --task own"),
        (TASK, ["own.name=x"], "own.name applies only to --task own"),
        (None, [], "weather.toml: No such file"),
    ],
)
def test_files_of_tasks_that_do_not_fit_are_refused(weather, task, settings, words):
    path = weather / "weather.toml"
    path.unlink() if task is None else path.write_text(task)
    config = override(FinetuneConfig(), settings)
    refuse(words, lambda: read_task(str(path), weather / "data", config))


def test_results_have_the_tasks_name_and_a_changed_file_is_noticed(weather, start):
    def begin(progress=ignore):
        config = small_finetune(epochs=1, batch_size=8)
        arguments = (start, str(path), weather / "data", weather / "out", config)
        return finetune(*arguments, seeds=2, progress=progress)

    path = weather / "weather.toml"
    with pytest.raises(PowerCut):
        begin(cut_at(part="dev", seed=1))
    path.write_text(TASK.replace("mood", "id"))
    refuse("labels in 4 rows", begin)
    path.write_text(TASK + "# the same, but who knows\n")
    refuse("out.incomplete was started with different files; remove it", begin)
    path.write_text(TASK)
    results = begin()
    assert (results["task"], results["metric"]) == ("weather", "mcc")
    assert results["config"]["own"]["text"] == "body"


def test_nothing_is_written_for_data_that_do_not_fit(weather, start):
    (weather / "data" / "dev.csv").write_text("body,mood\na,good\nb,so so\n")
    before = sorted(weather.rglob("*"))
    words = {"data": "dev.csv line 3: unknown label 'so so'", "nowhere": "is not a folder"}
    for data, said in words.items():
        given = (start, str(weather / "weather.toml"), weather / data, weather / "out")
        refuse(said, finetune, *given, small_finetune(), seeds=1, progress=ignore)
    assert sorted(weather.rglob("*")) == before


def test_only_an_unknown_label_costs_a_search_for_the_nearest(monkeypatch):
    monkeypatch.setattr(classification, "did_you_mean", None)  # 0.3 ms a row with three labels
    places = [classification.find_label(name, ("a", "b")) for name in "abba"]
    assert places == [0, 1, 1, 0]
