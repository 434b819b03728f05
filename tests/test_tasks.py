import json
import lzma
import math
import os
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from electra.config import FinetuneConfig
from electra.errors import UserError
from electra.settings import override
from electra.tasks.choice import ChoiceQuestion, MultipleChoice
from electra.tasks.classification import Classification, Example
from electra.tasks.family import Task
from electra.tasks.predictions import score
from electra.tasks.registry import read_task
from electra.tasks.rows import choose_batches, cut_pair, encode_texts, make_batch, pack_row
from electra.tasks.tagging import TaggedSentence, Tagging
from electra.text.tables import read_table, read_text_lines
from electra.tokenizing.formats import SPECIAL_TOKENS
from electra.tokenizing.tokenizer import Tokenizer

GLUE_FOLDER = Path(__file__).parents[2] / "shared/data/glue"
CPU = torch.device("cpu")


def write(folder: Path, **files: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        stem, _, suffix = name.rpartition("_")
        (folder / f"{stem}.{suffix}").write_text(content, encoding="utf-8")
    return folder


def own(folder: Path, *settings: str) -> Classification:
    config = override(FinetuneConfig(), [f"own.{setting}" for setting in settings])
    return read_task("own", folder, config)


def toy_task(examples) -> Task:
    return Task("toy", Classification(("f1",), ("n", "y")), {"train": examples})


# --- rows ---


@pytest.mark.parametrize("room", [1, 5, 6, 13])
def test_pairs_are_cut_a_token_at_a_time_from_the_longer_text(room):
    for size_a in range(15):
        for size_b in range(15):
            kept_a, kept_b = size_a, size_b
            while kept_a + kept_b > room:
                if kept_a > kept_b:
                    kept_a -= 1
                else:
                    kept_b -= 1
            assert cut_pair(size_a, size_b, room) == (kept_a, kept_b)


def test_rows_have_special_tokens_and_fit(toy_tokenizer):
    cls, sep = toy_tokenizer.cls_id, toy_tokenizer.sep_id
    assert pack_row([1, 2, 3], None, 8, toy_tokenizer) == ([cls, 1, 2, 3, sep], 5)
    assert pack_row([1, 2, 3], None, 4, toy_tokenizer) == ([cls, 1, 2, sep], 4)
    pair = pack_row([1, 2, 3, 4], [5, 6], 8, toy_tokenizer)
    assert pair == ([cls, 1, 2, 3, sep, 5, 6, sep], 5)


CHARS = "aab the  .,[#\t\n\r\u4e2d\u4e16\u3042\uac00\u00a0\u0085\x01\u200d\u0301\u0327\u00c9\u0130"
CHARS += "\u1e9e\ud83d"


@pytest.mark.parametrize("lowercase", [True, False])
def test_the_first_ids_of_a_text_are_those_of_the_whole(lowercase):
    rng = random.Random(0)
    texts = ["".join(rng.choices(CHARS, k=rng.randrange(400))) for _ in range(1000)]
    letters = [*{*CHARS.lower(), *CHARS} - {"\ud83d", "\n", "\r"}, "##a", "##b", "##the"]
    tokenizer = Tokenizer([*SPECIAL_TOKENS, *letters], lowercase=lowercase)
    whole = tokenizer.encode_batch(texts)
    for most in (1, 3, 20):
        assert encode_texts(tokenizer, texts, most) == [ids[:most] for ids in whole]


class CountingTokenizer(Tokenizer):
    """One that tells how much it was asked to read."""

    num_chars = 0

    def encode_batch(self, texts):
        self.num_chars += sum(map(len, texts))
        return super().encode_batch(texts)


def test_of_a_giant_text_no_more_is_tokenized_than_its_row_takes(toy_tokenizer):
    tokenizer = CountingTokenizer(toy_tokenizer.tokens_by_id)
    giant = "the queen " * 20_000
    pair = toy_task([Example(giant, giant, 0)])
    choice = Task("toy", MultipleChoice(2), {"train": [ChoiceQuestion(giant, (giant, "a"), 0)]})
    sentence = TaggedSentence(["a-" * 100_000], ["O"], [1])
    tagging = Task("toy", Tagging(("O",)), {"train": [sentence]})
    for task in (pair, choice, tagging):
        rows = task.encode(tokenizer, 16)["train"]
        assert rows.lengths.max() == 16
        assert rows.num_cut == 1
    assert tokenizer.num_chars < 2000


def test_batches_carry_ids_mask_segments_and_labels(toy_tokenizer):
    examples = [Example("the queen", "a boat", 1), Example("a", None, 0), Example("a", "", None)]
    rows = toy_task(examples).encode(toy_tokenizer, 8)["train"]
    batch = make_batch(rows, torch.tensor([1, 0, 2]), CPU)
    a, cls, sep = toy_tokenizer.encode("a")[0], toy_tokenizer.cls_id, toy_tokenizer.sep_id
    ids = batch.input_ids
    assert ids[0, :3].tolist() == [cls, a, sep]
    first, second = toy_tokenizer.encode_batch(["the queen", "a boat"])
    kept_a, kept_b = cut_pair(len(first), len(second), 5)
    assert ids[1].tolist() == [cls, *first[:kept_a], sep, *second[:kept_b], sep]
    assert batch.token_type_ids.tolist() == [
        [0] * ids.shape[1],
        [0] * (kept_a + 2) + [1] * (kept_b + 1),
        [0, 0, 0, 1] + [0] * (ids.shape[1] - 4),
    ]
    assert batch.attention_mask.sum(dim=1).tolist() == [3, kept_a + kept_b + 3, 4]
    assert batch.targets["labels"].tolist() == [0, 1, -1]
    assert rows.num_cut == (len(first) + len(second) > 5)


def test_a_batch_of_equal_single_texts_needs_neither_mask_nor_segments(toy_tokenizer):
    examples = [Example("a", None, 0), Example("a", None, 1)]
    rows = toy_task(examples).encode(toy_tokenizer, 8)["train"]
    batch = make_batch(rows, torch.tensor([0, 1]), CPU)
    assert batch.attention_mask is None
    assert batch.token_type_ids is None


def test_an_epoch_holds_every_row_once_with_little_padding():
    lengths = torch.randint(4, 60, (1000,), generator=torch.Generator().manual_seed(0))
    batches = choose_batches(lengths, 16, seed=3, epoch=1)
    assert sorted(torch.cat(batches).tolist()) == list(range(1000))
    assert Counter(map(len, batches)) == {16: 62, 8: 1}
    padded = sum(len(batch) * int(lengths[batch].max()) for batch in batches)
    assert int(lengths.sum()) / padded > 0.93  # 0.53 without sorting
    again = choose_batches(lengths, 16, seed=3, epoch=1)
    assert all(torch.equal(one, other) for one, other in zip(batches, again, strict=True))
    for seed, epoch in ((3, 2), (4, 1)):
        other = choose_batches(lengths, 16, seed=seed, epoch=epoch)
        assert torch.cat(other).tolist() != torch.cat(batches).tolist()


# --- metrics ---


def test_binary_metrics_equal_hand_values():
    # 3 true positives, 1 false positive, 2 false negatives, 4 true negatives
    gold = [1, 1, 1, 0, 1, 1, 0, 0, 0, 0]
    predicted = [1, 1, 1, 1, 0, 0, 0, 0, 0, 0]
    scores = score(("accuracy", "f1", "mcc"), gold, predicted)
    assert scores == pytest.approx(
        {"accuracy": 0.7, "f1": 6 / 9, "mcc": (3 * 4 - 1 * 2) / (4 * 5 * 5 * 6) ** 0.5}
    )


def binary_cases(count):
    """Labels and predictions of random sizes and shares, one class or one answer now and then."""
    rng = np.random.default_rng(0)
    for _ in range(count):
        size = int(rng.integers(1, 40))
        shares = rng.choice([0.0, 0.1, 0.5, 0.9, 1.0], 2)
        gold, predicted = (rng.random(size) < share for share in shares)
        yield gold.astype(int).tolist(), predicted.astype(int).tolist()


@pytest.mark.slow
def test_binary_metrics_equal_their_formulas_in_1000_cases():
    constant = 0
    for gold, predicted in binary_cases(1000):
        pairs = Counter(zip(gold, predicted, strict=True))
        hits, misses = pairs[1, 1], pairs[1, 0]
        alarms, rejections = pairs[0, 1], pairs[0, 0]
        spread = math.sqrt(
            (hits + alarms) * (hits + misses) * (rejections + alarms) * (rejections + misses)
        )
        constant += spread == 0
        wrong = misses + alarms
        assert score(("accuracy", "f1", "mcc"), gold, predicted) == pytest.approx(
            {
                "accuracy": (hits + rejections) / len(gold),
                "f1": 2 * hits / (2 * hits + wrong) if hits else 0.0,
                "mcc": (hits * rejections - alarms * misses) / spread if spread else 0.0,
            }
        )
    assert 200 < constant < 900


def test_correlations_equal_their_formulas_in_1000_cases():
    rng = np.random.default_rng(0)

    def correlate(x, y):
        x, y = x - x.mean(), y - y.mean()
        return float((x * y).sum() / math.sqrt((x * x).sum() * (y * y).sum()))

    def ranks(x):  # of equal values the mean of their places
        return np.array([(x < value).sum() + ((x == value).sum() - 1) / 2 for value in x])

    for _ in range(1000):
        size = int(rng.integers(3, 30))
        gold = rng.integers(0, 6, size).astype(float)  # with ties, as similarity scores have
        predicted = np.round(gold + rng.normal(0, 2, size), int(rng.integers(0, 4)))
        if rng.random() < 0.05:
            predicted[:] = 1.0
        scores = score(("pearson", "spearman"), gold.tolist(), predicted.tolist())
        if len(set(gold)) == 1 or len(set(predicted)) == 1:
            assert scores == {"pearson": 0.0, "spearman": 0.0}
        else:
            assert scores["pearson"] == pytest.approx(correlate(gold, predicted), abs=1e-9)
            rank_correlation = correlate(ranks(gold), ranks(predicted))
            assert scores["spearman"] == pytest.approx(rank_correlation, abs=1e-9)


def test_f1_of_several_labels_is_their_mean():
    scores = score(("f1", "accuracy"), [0, 0, 1, 2], [0, 1, 1, 1])
    assert scores == pytest.approx({"f1": (2 / 3 + 1 / 2 + 0) / 3, "accuracy": 0.5})


def test_constant_predictions_score_without_warnings():
    expected = {"accuracy": 0.5, "f1": 0.0, "mcc": 0.0}
    assert score(expected, [0, 1], [0, 0]) == expected
    assert score(("mcc", "f1"), [1, 1], [1, 1]) == {"mcc": 0.0, "f1": 1.0}


def test_the_constant_answer_is_trains_most_frequent_label(toy_tokenizer):
    train = [Example("a", None, label) for label in (1, 1, 0)]
    dev = [Example("a", None, label) for label in (0, 0, 0, 1)]
    family = Classification(("accuracy", "mcc"), ("n", "y"))
    task = Task("toy", family, {"train": train, "dev": dev})
    rows = task.encode(toy_tokenizer, 8)
    constant = task.family.find_constant(rows["train"], rows["dev"])
    assert constant.scores == {"accuracy": 0.25, "mcc": 0.0}
    assert constant.loss == pytest.approx(-math.log(2 / 3) * 2 / 3 - math.log(1 / 3) / 3)


# --- files of the user's own ---

TRAIN = "text\tlabel\nfine day\tgood\nawful day\tbad\nfine night\tgood\nawful night\tbad\n"
DEV = "label\ttext\ngood\tfine\nbad\tawful\n"


def test_own_tsv_is_read_by_column_name(tmp_path):
    task = own(write(tmp_path, train_tsv=TRAIN, valid_tsv=DEV))
    assert task.family.labels == ("bad", "good")
    assert task.examples["train"][:2] == [
        Example("fine day", None, 1),
        Example("awful day", None, 0),
    ]
    assert task.examples["dev"] == [Example("fine", None, 1), Example("awful", None, 0)]
    assert "test" not in task.examples
    assert (task.family.headline, task.columns) == ("accuracy", ("text", "label"))


def test_own_jsonl_pairs_compressed_with_an_unlabelled_test(tmp_path):
    records = [
        {"id": 7, "sentence1": 'a "b\tc\u2028d', "sentence2": "e", "label": i % 2} for i in range(4)
    ]
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\r\n\n" for record in records)
    write(tmp_path, dev_jsonl=lines, test_tsv='sentence1\tsentence2\n"x\ty"\n')
    (tmp_path / "train.jsonl.xz").write_bytes(lzma.compress(lines.encode()))
    task = own(tmp_path)
    assert task.columns == ("sentence1", "sentence2", "label")
    assert task.examples["train"] == task.examples["dev"]
    assert task.examples["train"][1] == Example('a "b\tc\u2028d', "e", 1)
    assert task.examples["test"] == [Example('"x', 'y"', None)]


def test_own_columns_files_and_metric_can_be_named(tmp_path):
    write(tmp_path, a_tsv=TRAIN.replace("text", "body"), b_tsv=DEV.replace("text", "body"))
    task = own(tmp_path, "train=a.tsv", "dev=b.tsv", "text=body", "metric=f1")
    assert len(task.examples["train"]) == 4
    assert task.family.metrics == ("f1", "accuracy", "mcc")


REFUSALS = [
    (
        {},
        [],
        "{0} has no train file; add train with .tsv, .csv, .jsonl, .parquet, or name it with "
        "own.train",
    ),
    (
        {"train_tsv": TRAIN, "train_jsonl": "{}"},
        [],
        "{0} has several train files: train.jsonl, train.tsv; choose with own.train",
    ),
    ({"train_tsv": TRAIN}, ["dev=x.tsv"], "own.dev: no file {0}/x.tsv"),
    (
        {"train_tsv": TRAIN, "dev_tsv": ""},
        [],
        "{0}/dev.tsv is empty: it must have at least one row",
    ),
    (
        {"train_tsv": TRAIN, "dev_tsv": "text\tlabel\n"},
        [],
        "{0}/dev.tsv is empty: it must have at least one row",
    ),
    (
        {"train_tsv": TRAIN, "dev_tsv": DEV + "\nodd\tfine\n"},
        [],
        "{0}/dev.tsv line 5: unknown label 'odd'; did you mean 'good'?",
    ),
    (
        {"train_tsv": TRAIN, "dev_tsv": "text\tlabels\nfine\tgood\n"},
        [],
        "{0}/dev.tsv: no column 'label'; did you mean 'labels'?",
    ),
    (
        {"train_tsv": TRAIN.replace("text", "txt"), "dev_tsv": DEV},
        [],
        "{0}/train.tsv: no column named text, sentence, text_a, sentence1; choose one of "
        "txt, label with own.text",
    ),
    (
        {"train_tsv": TRAIN + "fine\n", "dev_tsv": DEV},
        [],
        "{0}/train.tsv line 6: 1 tab-separated fields; it must have 2: text, label",
    ),
    (
        {"train_tsv": "text\tlabel\na\tx\nb\tx\n", "dev_tsv": DEV},
        [],
        "{0}/train.tsv: every 'label' is 'x'; two labels are needed",
    ),
    (
        {"train_tsv": "text\tlabel\na\t1.5\nb\t2.5\nc\t3.5\n", "dev_tsv": DEV},
        [],
        "{0}/train.tsv: 'label' has 3 labels in 3 rows; a label must occur twice on average. "
        "Choose another column with own.label",
    ),
    (
        {"train_tsv": TRAIN, "dev_jsonl": '{"text": "a", "label": "good"}\n{"text": "a"}\n'},
        [],
        "{0}/dev.jsonl line 2: no 'label'; it must be text",
    ),
    (
        {"train_tsv": TRAIN, "dev_jsonl": '{"text": "a", "label": 0.5}\n'},
        [],
        "{0}/dev.jsonl line 1: 'label' is 0.5; it must be text",
    ),
    ({"train_tsv": TRAIN, "dev_jsonl": "[1]"}, [], "{0}/dev.jsonl line 1: must be a JSON object"),
    ({"train_tsv": TRAIN, "dev_jsonl": "\n{"}, [], "{0}/dev.jsonl line 2: not valid JSON"),
    (
        {"train_tsv": TRAIN, "dev_xls": "a"},
        ["dev=dev.xls"],
        "{0}/dev.xls must be .tsv, .csv, .jsonl, .parquet, compressed or not, not '.xls'",
    ),
]


@pytest.mark.parametrize(("files", "settings", "message"), REFUSALS)
def test_own_files_that_do_not_fit_are_refused_in_one_line(tmp_path, files, settings, message):
    with pytest.raises(UserError) as refusal:
        own(write(tmp_path, **files), *settings)
    assert str(refusal.value).startswith(message.format(tmp_path))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("read", [read_table, read_text_lines])
def test_a_pipe_that_nobody_writes_is_refused_not_waited_for(tmp_path, read):
    os.mkfifo(tmp_path / "a.tsv")
    with pytest.raises(UserError, match=r"a\.tsv is not a regular file; give one that is"):
        read(tmp_path / "a.tsv")
    os.mkfifo(tmp_path / "task.toml")
    with pytest.raises(UserError, match=r"task\.toml is not a regular file"):
        read_task(str(tmp_path / "task.toml"), tmp_path, FinetuneConfig())


def test_bytes_that_are_not_text_are_refused_with_their_line(tmp_path):
    write(tmp_path, dev_tsv=DEV)
    (tmp_path / "train.tsv").write_bytes(b"text\tlabel\n\xff\tgood\n")
    with pytest.raises(UserError, match=r"train.tsv line 2: not UTF-8 text$"):
        own(tmp_path)


def test_labels_that_do_not_fit_a_line_of_predictions_are_refused(tmp_path):
    lines = "".join(json.dumps({"text": "a", "label": label}) + "\n" for label in "x\tx\t")
    write(tmp_path, train_jsonl=lines, dev_tsv=DEV)
    with pytest.raises(UserError, match=r"train.jsonl line 2: the label '\\t' must be printable"):
        own(tmp_path)


# --- GLUE ---

COLA = 'gj04\t1\t\tThe sailors rode.\ngj04\t0\t*\tThe sailors "rode.\n'


def test_cola_is_found_under_either_name_and_its_test_has_a_header(tmp_path):
    write(tmp_path / "cola", train_tsv=COLA, dev_tsv=COLA, test_tsv="index\tsentence\n0\tBill.\n")
    for data in (tmp_path, tmp_path / "cola"):
        task = read_task("CoLA", data, FinetuneConfig())
        assert task.examples["train"][1] == Example('The sailors "rode.', None, 0)
        assert task.examples["test"] == [Example("Bill.", None, None)]
        assert (task.name, task.family.headline, task.epochs) == ("cola", "mcc", 3)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("colla", (), "unknown task 'colla'; did you mean 'cola'?"),
        ("mnly", (), "unknown task 'mnly'; did you mean 'mnli'?"),
        (
            "cola",
            ("own.text=body",),
            "own.text is for the task 'own'; 'cola' says what its files are",
        ),
        (
            "sst",
            (),
            "{0} has neither a train.tsv nor a folder SST-2 with one; give GLUE's folder or the "
            "task's",
        ),
    ],
)
def test_wrong_task_names_and_folders_are_refused(tmp_path, name, settings, message):
    write(tmp_path / "CoLA", train_tsv=COLA, dev_tsv=COLA)
    with pytest.raises(UserError) as refusal:
        read_task(name, tmp_path, override(FinetuneConfig(), settings))
    assert str(refusal.value) == message.format(tmp_path)


def test_the_folder_of_another_task_is_refused(tmp_path):
    write(tmp_path, train_tsv=COLA, dev_tsv=COLA)
    with pytest.raises(UserError, match=r"train.tsv: no column 'sentence'; choose from"):
        read_task("sst-2", tmp_path, FinetuneConfig())


@pytest.mark.skipif(not GLUE_FOLDER.is_dir(), reason=f"no GLUE data at {GLUE_FOLDER}")
@pytest.mark.parametrize(
    ("name", "counts", "positives"),
    [("cola", (8551, 1043, 1063), 721), ("SST-2", (67349, 872, 1821), 444)],
)
def test_real_glue_is_read_whole(name, counts, positives):
    task = read_task(name, GLUE_FOLDER, FinetuneConfig())
    assert (
        len(task.examples["train"]),
        len(task.examples["dev"]),
        len(task.examples["test"]),
    ) == counts
    assert sum(example.label for example in task.examples["dev"]) == positives
    assert all(example.text_a and example.label is None for example in task.examples["test"])


# --- labels that are numbers ---


STS = "index\tsentence1\tsentence2\tscore\n0\ta boat\ta ship\t4.500\n1\ta boat\tthe queen\t0\n"


def test_sts_b_has_numbers_for_labels(tmp_path, toy_tokenizer):
    folder = write(tmp_path / "STS-B", train_tsv=STS, dev_tsv=STS)
    (folder / "test.tsv").write_text("index\tsentence1\tsentence2\n0\ta\tb\n")
    task = read_task("sts-b", tmp_path, FinetuneConfig())
    assert [example.label for example in task.examples["train"]] == [4.5, 0.0]
    assert task.family.labels == ()
    assert task.family.headline == "spearman"
    rows = task.encode(toy_tokenizer, 16)
    assert rows["train"].targets["labels"].tolist() == pytest.approx([0.9, 0.0] * 2)
    assert rows["dev"].targets["labels"].tolist() == pytest.approx([0.9, 0.0])
    assert rows["test"].targets["labels"].isnan().all()


@pytest.mark.parametrize("value", ["5.1", "-0.1", "high", "nan", ""])
def test_numbers_out_of_range_are_refused_with_their_line(tmp_path, value):
    folder = write(tmp_path / "STS-B", train_tsv=STS.replace("4.500", value), dev_tsv=STS)
    with pytest.raises(UserError, match=r"line 2: the label must be a number in \[0, 5\]"):
        read_task("sts-b", folder, FinetuneConfig())


def test_pairs_without_an_order_are_trained_on_both_ways(tmp_path, toy_tokenizer):
    folder = write(tmp_path / "STS-B", train_tsv=STS, dev_tsv=STS)
    both, once = (
        read_task("sts-b", folder, FinetuneConfig(swap_pairs=swaps)).encode(toy_tokenizer, 64)
        for swaps in (True, False)
    )
    assert (len(once["train"]), len(both["train"]), len(both["dev"])) == (2, 4, 2)
    first, swapped = both["train"].input_ids[0], both["train"].input_ids[2]
    size_a, size = int(both["train"].first_lengths[0]), int(both["train"].lengths[0])
    assert swapped[1 : size - size_a].tolist() == first[size_a : size - 1].tolist()
    assert swapped[size - size_a + 1 : size - 1].tolist() == first[1 : size_a - 1].tolist()


MNLI = "index\tsentence1\tsentence2\tgold_label\n0\ta\tb\tneutral\n1\ta\tb\tcontradiction\n"


def test_mnli_has_two_dev_sets_two_test_sets_and_the_diagnostic_one(tmp_path):
    unlabelled = "index\tsentence1\tsentence2\n0\ta\tb\n"
    folder = write(tmp_path / "MNLI", train_tsv=MNLI, test_matched_tsv=unlabelled)
    for name in ("dev_matched", "dev_mismatched"):
        (folder / f"{name}.tsv").write_text(MNLI)
    write(tmp_path / "diagnostic", diagnostic_tsv=unlabelled)
    task = read_task("MNLI", tmp_path, FinetuneConfig())
    assert {split: len(examples) for split, examples in task.examples.items()} == {
        "train": 2,
        "dev": 2,
        "dev_mismatched": 2,
        "test": 1,
        "diagnostic": 1,
    }
    assert [example.label for example in task.examples["dev_mismatched"]] == [2, 0]
    assert task.examples["diagnostic"][0].label is None


def test_correlations():
    gold, predicted = [1.0, 2.0, 3.0, 4.0], [1.0, 4.0, 9.0, 16.0]
    scores = score(("pearson", "spearman"), gold, predicted)
    assert scores["spearman"] == pytest.approx(1)
    assert scores["pearson"] == pytest.approx(0.9843740386976972)
    assert score(("pearson", "spearman"), gold, [2.0] * 4) == {"pearson": 0, "spearman": 0}


def test_qnli_may_be_compressed(tmp_path):
    text = "index\tquestion\tsentence\tlabel\n0\tWho?\tThe queen.\tentailment\n"
    text += "1\tWhy?\tA boat.\tnot_entailment\n"
    folder = write(tmp_path / "QNLI", dev_tsv=text)
    (folder / "train.tsv.xz").write_bytes(lzma.compress(text.encode()))
    task = read_task("qnli", tmp_path, FinetuneConfig())
    assert [example.label for example in task.examples["train"]] == [0, 1]
    assert task.examples["train"][0].text_b == "The queen."
    (folder / "dev.tsv").unlink()
    with pytest.raises(UserError, match=r"has no dev\.tsv"):
        read_task("qnli", tmp_path, FinetuneConfig())
