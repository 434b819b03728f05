"""Multiple choice: rows judged together, SWAG's files, refusals."""

import dataclasses
import lzma
import math
from pathlib import Path

import pytest
import torch

from electra.checkpoints.folder import read_model
from electra.config import FinetuneConfig
from electra.errors import UserError
from electra.finetuning.loop import finetune
from electra.finetuning.network import build_network, keep_tokens, run_network
from electra.finetuning.start import encode_task
from electra.tasks.choice import ChoiceQuestion, MultipleChoice
from electra.tasks.family import Task
from electra.tasks.registry import read_task
from electra.tasks.rows import make_batch
from electra.training.machine import Machine

SWAG_FOLDER = Path(__file__).parents[2] / "shared/data/swag_format"
CPU = torch.device("cpu")
CONFIG = FinetuneConfig(
    learning_rate=2e-3,
    layer_lr_decay=0.9,
    batch_size=16,
    epochs=2,
    reseeds=0,
    sequence_length=32,
    pooling="mean",
    precision="float32",
    threads=1,
)
HEADER = ",video-id,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,label\n"
SWAG = (
    HEADER + '0,a,"The queen, old. She","The queen, old.",She,gold,sold it.,"said ""no"".",ran.,1\n'
    '1,b,A boat.,A boat.,,gold,"It\nsank.",It sold.,It ran.,0\n'
)
UNLABELLED = SWAG.replace(",label", "").replace(",1\n", "\n").replace(",0\n", "\n")


def write(folder, **files):
    for name, content in files.items():
        (folder / f"{name}.csv").write_text(content)
    return folder


def toy(examples, **splits) -> Task:
    return Task("toy", MultipleChoice(len(examples[0].choices)), {"train": examples, **splits})


@pytest.fixture(scope="module")
def pretrained(start):
    return read_model(start)


def build(pretrained, task):
    return build_network(
        pretrained, task.family, CONFIG, machine=Machine(), seed=0, from_scratch=False
    )


# --- rows ---


def test_every_choice_is_a_row_beside_the_context(toy_tokenizer):
    questions = [
        ChoiceQuestion("the queen", ("a boat", "sold", ""), 1),
        ChoiceQuestion("a", ("a", "the castle", "a"), None),
    ]
    rows = toy(questions).encode(toy_tokenizer, 32)["train"]
    assert (len(rows), rows.rows_per_item, rows.input_ids.shape[0]) == (2, 3, 6)
    encode, cls, sep = toy_tokenizer.encode, toy_tokenizer.cls_id, toy_tokenizer.sep_id
    for number, question in enumerate(questions):
        for place, choice in enumerate(question.choices):
            context = [cls, *encode(question.context), sep]
            expected = [*context, *encode(choice), sep]
            row = 3 * number + place
            length = int(rows.lengths[row])
            assert rows.input_ids[row, :length].tolist() == expected
            assert int(rows.first_lengths[row]) == len(context)
    assert rows.targets["labels"].tolist() == [1, -1]
    assert rows.num_cut == 0


def test_a_question_is_cut_once_however_many_of_its_rows_are(toy_tokenizer):
    long = "the old sailor repaired the castle yesterday"
    questions = [
        ChoiceQuestion(long, (long, long, "a"), 0),
        ChoiceQuestion("a", ("a", "a", "a"), 0),
    ]
    rows = toy(questions).encode(toy_tokenizer, 8)["train"]
    assert rows.num_cut == 1
    assert rows.input_ids.shape == (6, 8)


def test_a_batch_keeps_the_rows_of_a_question_together(toy_tokenizer):
    questions = [ChoiceQuestion("a", (f"{'boat ' * n}a", "a"), n % 2) for n in range(5)]
    rows = toy(questions).encode(toy_tokenizer, 32)["train"]
    batch = make_batch(rows, torch.tensor([4, 1]), CPU)
    assert batch.input_ids.shape[0] == 4
    expected = rows.input_ids[[8, 9, 2, 3], : batch.input_ids.shape[1]]
    assert torch.equal(batch.input_ids, expected.long())
    assert batch.targets["labels"].tolist() == [0, 1]


# --- the network ---


def test_one_logit_a_row_and_the_loss_by_hand(pretrained, toy_tokenizer):
    questions = [ChoiceQuestion("the queen", ("a boat", "sold", "a"), n) for n in range(3)]
    task = toy(questions)
    model = build(pretrained, task)
    assert model.head.dense.weight.shape == (1, 64)
    rows = task.encode(toy_tokenizer, 32)["train"]
    model.eval()
    batch = make_batch(rows, torch.arange(3), CPU)
    outputs = model(batch)
    logits = outputs["logits"]
    assert logits.shape == (3, 3)
    assert logits.dtype == torch.float32
    assert len(set(logits[0].tolist())) == 3
    by_hand = [
        -math.log(math.exp(row[n]) / sum(math.exp(each) for each in row))
        for n, row in enumerate(logits.tolist())
    ]
    assert task.family.loss(outputs, batch).item() == pytest.approx(sum(by_hand) / 3, rel=1e-5)
    best = logits[0].argmax().item()
    assert task.family.score(rows, outputs) == {"accuracy": pytest.approx(1 / 3)}
    assert task.family.describe_collapse(rows, outputs) == f"every dev prediction is '{best}'"


def test_choices_may_be_listed_in_any_order(pretrained, toy_tokenizer):
    task = toy([ChoiceQuestion("the queen", ("a boat", "sold", "a"), 0)])
    turned = toy([ChoiceQuestion("the queen", ("a", "a boat", "sold"), 1)])
    model = build(pretrained, task)
    one, other = (
        run_network(model, each.encode(toy_tokenizer, 32)["train"], CPU)["logits"]
        for each in (task, turned)
    )
    torch.testing.assert_close(one[:, [2, 0, 1]], other)


def test_padding_does_not_change_logits(pretrained):
    rng = torch.Generator().manual_seed(0)
    words = ["the", "old", "sailor", "repaired", "a", "boat", "yesterday"]

    def text():
        count = int(torch.randint(1, 8, (), generator=rng))
        return " ".join(words[int(torch.randint(7, (), generator=rng))] for _ in range(count))

    questions = [ChoiceQuestion(text(), (text(), text(), text(), text()), 0) for _ in range(20)]
    task = toy(questions)
    rows = encode_task(task, pretrained, CONFIG)
    model = build(pretrained, task)
    keep_tokens(model, rows.token_ids)
    together = run_network(model, rows.splits["train"], CPU)["logits"]
    for number in range(len(questions)):
        batch = make_batch(rows.splits["train"], torch.tensor([number]), CPU)
        torch.testing.assert_close(model(batch)["logits"][0], together[number])


def test_the_constant_answer_holds_every_choice_equally_likely(toy_tokenizer):
    task = toy([ChoiceQuestion("a", ("a", "b", "c", "d"), 0)] * 3)
    rows = task.encode(toy_tokenizer, 8)["train"]
    constant = task.family.find_constant(rows, rows)
    assert constant.loss == pytest.approx(math.log(4))
    assert constant.scores == {"accuracy": 0.25}


def test_it_learns_which_choice_fits_the_context(start, tmp_path):
    """The right ending names the same thing as the context: no ending is right by itself."""
    rng = torch.Generator().manual_seed(0)
    things = ["a boat", "the castle", "an engine"]

    def lines(count):
        for number in range(count):
            order = torch.randperm(3, generator=rng).tolist()
            label = int(torch.randint(3, (), generator=rng))
            endings = ",".join(f"painted {things[place]} ." for place in order)
            yield f"{number},x,,the queen admired {things[order[label]]} .,she,g,{endings},{label}"

    write(tmp_path, train=HEADER + "\n".join(lines(240)), val=HEADER + "\n".join(lines(60)))
    write(tmp_path, test=HEADER.replace(",label", "") + "0,x,,a boat,she,g,a,b,c\n")
    config = dataclasses.replace(CONFIG, epochs=5)
    out = tmp_path / "out"
    results = finetune(start, "swag", tmp_path, out, config, seeds=1, progress=lambda record: None)
    assert results["median"] > 0.9
    assert (results["task"], results["metric"], results["num_choices"]) == ("swag", "accuracy", 3)
    assert results["majority"] == {"accuracy": pytest.approx(1 / 3)}
    assert results["num_items"] == {"train": 240, "dev": 60, "test": 1}
    written = (out / "seed-0/predictions.tsv").read_text().splitlines()
    assert written[0] == "index\tlabel\tprediction\tprob_0\tprob_1\tprob_2"
    right = [line.split("\t")[1] == line.split("\t")[2] for line in written[1:]]
    assert sum(right) / len(right) == pytest.approx(results["median"])
    test = (out / "seed-0/test_predictions.tsv").read_text().splitlines()
    assert test[1].startswith("0\t\t")


# --- files ---


def test_swag_is_read_by_column_with_and_without_labels(tmp_path):
    write(tmp_path, val=SWAG, test=UNLABELLED)
    (tmp_path / "train.csv.xz").write_bytes(lzma.compress(SWAG.encode()))
    task = read_task("SWAG", tmp_path, FinetuneConfig())
    first = ChoiceQuestion("The queen, old.", ("She sold it.", 'She said "no".', "She ran."), 1)
    second = ChoiceQuestion("A boat.", ("It\nsank.", "It sold.", "It ran."), 0)
    assert task.examples["train"] == task.examples["dev"] == [first, second]
    assert task.examples["test"] == [first._replace(label=None), second._replace(label=None)]
    assert (task.family.num_choices, task.family.headline, task.epochs) == (3, "accuracy", 3)
    assert [path.name for path in task.files] == ["train.csv.xz", "val.csv", "test.csv"]


@pytest.mark.parametrize(
    ("train", "val", "message"),
    [
        (None, SWAG, "{0} has no train.csv; give SWAG's folder"),
        (SWAG, None, "{0} has no val.csv; give SWAG's folder"),
        ("", SWAG, "{0}/train.csv is empty: it must have at least one row"),
        (
            SWAG.replace("ending", "end"),
            SWAG,
            "{0}/train.csv: no columns ending0, ending1, ...; give SWAG's folder",
        ),
        (
            SWAG,
            SWAG.replace("It ran.", ""),
            "{0}/val.csv line 3: choice 2 is empty; every row must have 3",
        ),
        (
            SWAG,
            SWAG.replace(",It ran.", ""),
            "{0}/val.csv line 3: 9 comma-separated fields; it must have 10: ",
        ),
        (SWAG, SWAG.replace(",1\n", ",3\n"), "{0}/val.csv line 2: unknown label '3'; choose from"),
        (SWAG, SWAG.replace("label", "gold"), "{0}/val.csv: no column 'label'"),
        (SWAG, SWAG.replace("sent1", "sent0"), "{0}/val.csv: no column 'sent1'; did you mean"),
        (SWAG, SWAG.replace('It\nsank."', "It"), "{0}/val.csv line 3: not valid CSV: "),
    ],
)
def test_files_that_are_not_swags_are_refused_in_one_line(tmp_path, train, val, message):
    files = {"train": train, "val": val}
    write(tmp_path, **{name: text for name, text in files.items() if text is not None})
    with pytest.raises(UserError) as refusal:
        read_task("swag", tmp_path, FinetuneConfig())
    assert str(refusal.value).startswith(message.format(tmp_path))
    assert "\n" not in str(refusal.value)


def test_a_split_with_more_choices_than_train_is_refused(tmp_path):
    four = HEADER.replace("ending2", "ending2,ending3") + "0,a,A.,A.,,g,a,b,c,d,3\n"
    write(tmp_path, train=four, val=four)
    assert read_task("swag", tmp_path, FinetuneConfig()).family.num_choices == 4
    write(tmp_path, train=SWAG)
    with pytest.raises(UserError) as refusal:
        read_task("swag", tmp_path, FinetuneConfig())
    rule = "4 choices a row; it must be 3, as in"
    assert str(refusal.value) == f"{tmp_path}/val.csv: {rule} {tmp_path}/train.csv"


@pytest.mark.skipif(not SWAG_FOLDER.is_dir(), reason=f"no data at {SWAG_FOLDER}")
def test_real_data_is_read_whole():
    task = read_task("swag", SWAG_FOLDER, FinetuneConfig())
    assert {split: len(each) for split, each in task.examples.items()} == {
        "train": 2200,
        "dev": 576,
    }
    assert task.family.num_choices == 4
    counts = [sum(q.label == place for q in task.examples["dev"]) for place in range(4)]
    assert counts == [135, 144, 150, 147]
    assert task.examples["train"][1].choices[task.examples["train"][1].label] == "are very common."
