"""Every family of tasks is asked the same questions."""

import dataclasses
import json
import math
import random
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from typing import Any, NamedTuple

import pytest
import torch
from refusals import refuse
from sklearn.metrics import f1_score
from tasks import ignore, small_finetune

from electra.errors import UserError
from electra.finetuning.loop import train_seed
from electra.finetuning.network import build_network, keep_tokens, run_network
from electra.finetuning.start import Job, encode_task
from electra.tasks.choice import ChoiceQuestion, MultipleChoice
from electra.tasks.classification import Classification
from electra.tasks.family import Family, Task
from electra.tasks.multi_label import MultiLabel
from electra.tasks.predictions import read_predictions
from electra.tasks.record import Columns, number_records
from electra.tasks.registry import FAMILIES, restore_family
from electra.tasks.regression import Regression
from electra.tasks.retrieval import Pair, Retrieval
from electra.tasks.rows import make_batch
from electra.tasks.squad import SpanExtraction, SpanQuestion
from electra.tasks.tagging import ENTITY_METRICS, TaggedSentence, Tagging
from electra.tasks.texts import Example
from electra.tokenizing.tokenizer import Tokenizer
from electra.training.machine import Machine

CPU = torch.device("cpu")
WHO = ("the old sailor", "a young doctor", "my neighbour", "the queen")
WHAT = ("a boat", "the castle", "an engine", "seven umbrellas")
WHEN = ("yesterday", "in 1912", "before breakfast", "at the harbour")
TAGS = {"old": "B-PER", "sailor": "I-PER", "queen": "B-PER", "boat": "B-ART", "castle": "B-ART"}


def draw_text(rng) -> str:
    """Who is it about?"""
    verb = rng.choice(("repaired", "painted", "admired"))
    return f"{rng.choice(WHO)} {verb} {rng.choice(WHAT)} {rng.choice(WHEN)}"


def draw_label(rng) -> Example:
    text = draw_text(rng)
    return Example(text, None, int("queen" in text))


def draw_number(rng) -> Example:
    """How many of the words are "boat", in fifths."""
    count = rng.randrange(6)
    return Example(" ".join(["boat"] * count + ["queen"] * (5 - count)), "the", (float(count),))


def draw_labels(rng) -> Example:
    """Which of two words are there? Of some texts none."""
    text = draw_text(rng)
    return Example(text, None, tuple(n for n, word in enumerate(("queen", "boat")) if word in text))


def draw_numbers(rng) -> Example:
    """How many of the words are "boat", in fifths, and how many are not, in hundreds."""
    text, _, (count,) = draw_number(rng)
    return Example(text, None, (count, 500 - 100 * count))


def draw_choice(rng) -> ChoiceQuestion:
    """The right ending names the thing of the context: no ending is right by itself."""
    things, label = rng.sample(WHAT[:3], 3), rng.randrange(3)
    endings = tuple(f"painted {thing} ." for thing in things)
    return ChoiceQuestion(f"the queen admired {things[label]} .", endings, label)


def draw_tags(rng) -> TaggedSentence:
    """A sentence of some rows of 32 tokens."""
    words = " ".join(draw_text(rng) for _ in range(5)).split()
    return TaggedSentence(words, [TAGS.get(word, "O") for word in words])


def draw_question(rng) -> SpanQuestion:
    """Who did what when; some sentences do not say when."""
    parts = [rng.choice(each) for each in (WHO, ("repaired", "painted"), WHAT, WHEN)]
    is_answered = rng.random() < 0.6
    asked = rng.choice((0, 2, 3)) if is_answered else 3
    parts = parts if is_answered else parts[:3]
    start = len(" ".join(parts[:asked])) + (asked > 0)
    answers = (parts[asked],) if is_answered else ()
    span = (start, start + len(parts[asked])) if is_answered else None
    text = {0: "the old", 2: "engine", 3: "yesterday"}[asked]
    return SpanQuestion(f"q{rng.random()}", text, " ".join(parts), answers, span)


def draw_pair(rng) -> Pair:
    """Who did what when? The query has a letter for each, so that no word of it is in a passage."""
    places = [rng.randrange(4) for _ in range(3)]
    who, what, when = (each[n] for each, n in zip((WHO, WHAT, WHEN), places, strict=True))
    query = " ".join(each[n] for each, n in zip(("pqrs", "tuvw", "xyzf"), places, strict=True))
    return Pair(query, f"{who} painted {what} {when}", ("the queen",))


class Case(NamedTuple):
    """A family and what is asked of it."""

    family: Family
    draw: Callable[[random.Random], Any]
    columns: tuple[str, ...]
    record: dict[str, Any]
    """A right record."""
    wrong: list[tuple[Any, str]]
    """Wrong records, and words of what is said of them."""
    answer: set[str]
    """Keys of an answer."""
    settings: dict[str, Any]
    """With which it learns `least` of its headline."""
    count: int
    """Examples of train that it learns from."""
    least: float
    giant: Any
    """An example that is far longer than a row."""


GIANT = "the queen " * 20_000
LABELS = ("O", "B-ART", "I-ART", "B-PER", "I-PER")
CASES = {
    "classification": Case(
        *(Classification(("accuracy", "mcc"), ("other", "woman")), draw_label, ("text",)),
        {"text": "x"},
        [
            ({"txt": "x"}, "no 'text', which must be text; it has 'txt'"),
            ({}, "no 'text', which must be text"),
            ({"text": None}, "'text' is None; it must be text"),
            ("x", "'x' must be a dictionary of fields"),
        ],
        {"prediction", "prob_other", "prob_woman"},
        *({"epochs": 4}, 400, 0.97),
        Example(GIANT, None, 0),
    ),
    "regression": Case(
        Regression(("spearman", "pearson"), ("score",), ((0.0, 5.0),), has_pairs=True),
        *(draw_number, ("sentence1", "sentence2")),
        {"text_a": "x", "text_b": "y"},
        [({"text_a": "x", "text": "y"}, "no 'text_b', which must be text; it has 'text_a'")],
        {"prediction"},
        *({"epochs": 15, "pooling": "mean"}, 300, 0.9),
        Example(GIANT, GIANT, (0,)),
    ),
    "several numbers": Case(
        Regression(("spearman", "pearson"), ("few", "many"), ((0.0, 5.0), (0.0, 500.0))),
        *(draw_numbers, ("text",), {"text": "x"}),
        [({"text": 5}, "'text' is 5; it must be text")],
        {"prediction_few", "prediction_many"},
        *({"epochs": 15, "pooling": "mean"}, 300, 0.9),
        Example(GIANT, None, (0, 0)),
    ),
    "several labels": Case(
        MultiLabel(("micro_f1", "macro_f1"), ("queen", "boat")),
        *(draw_labels, ("text",), {"text": "x"}),
        [({"text": None}, "'text' is None; it must be text")],
        {"prediction", "prob_queen", "prob_boat"},
        *({"epochs": 6}, 400, 0.97),
        Example(GIANT, None, ()),
    ),
    "choice": Case(
        *(MultipleChoice(3), draw_choice, ("text", "a", "b", "c")),
        {"context": "x", "choices": ["a", "b", "c"]},
        [
            ({"context": "x", "choices": ["a", "b"]}, "'choices' has 2 texts; it must have 3"),
            ({"context": "x", "choices": ["a", " ", "b"]}, "'choices' has an empty text, choice 1"),
        ],
        {"prediction", "prob_0", "prob_1", "prob_2"},
        *({"epochs": 5, "pooling": "mean"}, 240, 0.9),
        ChoiceQuestion(GIANT, (GIANT, "a", GIANT), 0),
    ),
    "tagging": Case(
        *(Tagging(LABELS, ENTITY_METRICS), draw_tags, ("1",)),
        {"tokens": ["x"]},
        [
            ({"tokens": "a boat"}, "'tokens' is 'a boat'; it must be a list of texts"),
            ({"tokens": ["a", 5]}, "'tokens' is ['a', 5]; it must be a list of texts"),
            ({"tokens": ["a", ""]}, "'tokens' has an empty text; a word must not be empty"),
        ],
        {"tokens", "tags"},
        *({"epochs": 6, "learning_rate": 3e-3}, 100, 0.95),
        TaggedSentence(["a-" * 100_000], ["O"]),
    ),
    "squad": Case(
        *(SpanExtraction("beam", may_be_none=True), draw_question, ("question", "context")),
        {"question": "x", "context": "y"},
        [
            ({"question": "x"}, "no 'context', which must be text"),
            ({"question": "x", "context": "y", "id": 0.5}, "'id' is 0.5; it must be text"),
        ],
        {"id", "answer", "span", "start", "prob_none"},
        *({"epochs": 12, "layer_lr_decay": 1.0, "dropout_prob": 0.0}, 96, 0.9),
        SpanQuestion("q", GIANT, "the queen painted a boat", ("a boat",), (18, 24)),
    ),
    "retrieval": Case(
        *(Retrieval(), draw_pair, ("query", "positive")),
        {"query": "x", "passage": "y"},
        [
            ({"query": "x"}, "no 'passage', which must be text; it has 'query'"),
            ({"query": 5, "passage": "y"}, "'query' is 5; it must be text"),
        ],
        {"prediction"},
        *({"epochs": 12, "pooling": "mean"}, 300, 0.9),
        Pair(GIANT, GIANT, ("a boat",)),
    ),
}
CASES["plain spans"] = CASES["squad"]._replace(family=SpanExtraction("plain", may_be_none=True))


def draw_task(name: str, count: int, seed: int = 0) -> Task:
    """A task with as many examples in train, and a third of them in dev."""
    case, rng = CASES[name], random.Random(seed)
    examples = [case.draw(rng) for _ in range(count + count // 3)]
    splits = {"train": examples[:count], "dev": examples[count:]}
    return Task("toy", case.family, splits, columns=Columns(case.columns))


def build(pretrained, family, **changes):
    config = small_finetune(**changes)
    return build_network(
        *(pretrained, family, config), machine=Machine(), seed=0, from_scratch=False
    )


@pytest.fixture(params=CASES)
def name(request):
    return request.param


def test_every_family_is_asked():
    families = {type(case.family) for case in CASES.values()}
    assert families == set(FAMILIES.values())


def test_facts_restore_the_family(name):
    case = CASES[name]
    facts = {**case.family.facts(), "columns": [*case.columns], "task": "squad-2.0"}
    restored = restore_family(json.loads(json.dumps(facts)))
    assert restored == dataclasses.replace(case.family, metrics=restored.metrics)


def test_no_other_family_is_restored_from_wrong_facts(name):
    facts = {**CASES[name].family.facts(), "columns": [*CASES[name].columns], "task": "squad-2.0"}
    own = CASES[name].family.facts().keys() - {"family", "guess"}
    odd = (None, True, -1, 0.5, 1e30, "", "ab", [], [[]], [None], {}, {"": 0})
    for key, value in product(own, odd):
        with suppress(UserError):
            assert restore_family(facts | {key: value}).facts()[key] == value, (key, value)
        less = {each: facts[each] for each in facts.keys() - {key}}
        said = f"config.json of a fine-tuned ... model: these are not its facts: it lacks '{key}'"
        refuse(said, restore_family, less)


class CountingTokenizer(Tokenizer):
    """One that counts how much it was asked to read."""

    num_chars = 0

    def encode_batch(self, texts):
        self.num_chars += sum(map(len, texts))
        return super().encode_batch(texts)


def test_of_a_giant_text_no_more_is_tokenized_than_its_row_takes(name, toy_tokenizer):
    case, tokenizer = CASES[name], CountingTokenizer(toy_tokenizer.tokens_by_id)
    small = case.draw(random.Random(0))
    rows = case.family.encode([case.giant, small], tokenizer, 64)
    assert rows.lengths.max() <= 64
    assert rows.num_cut == 1
    assert tokenizer.num_chars < 3000


def test_only_pairs_are_swapped(name):
    task = draw_task(name, 6)
    assert task.training_examples == task.examples["train"]


def test_part_of_train_is_drawn_by_examples(name, pretrained):
    task = draw_task(name, 30)
    drawn = task.draw(7).examples
    assert drawn["dev"] == task.examples["dev"]
    order = [id(each) for each in task.examples["train"]]
    places = [order.index(id(each)) for each in drawn["train"]]
    assert len(places) == 7
    assert places == sorted({*places})


@pytest.mark.parametrize(("least", "greatest"), [(0.0, 1e-5), (0.0, 5.0), (1.7e9, 1.7e9 + 1000)])
def test_numbers_of_any_size_are_learnt_and_answered(toy_tokenizer, tmp_path, least, greatest):
    family = Regression(("pearson",), ("label",), ((least, greatest),))
    labels = [least + share * (greatest - least) for share in (0, 0.015, 0.03, 1)]
    rows = family.encode([Example("a", None, (label,)) for label in labels], toy_tokenizer, 8)
    targets = rows.targets["labels"]
    assert targets[:, 0].tolist() == pytest.approx([0, 0.015, 0.03, 1], abs=1e-6)
    family.write_predictions(tmp_path, "dev", rows, {"logits": targets})
    read = read_predictions(tmp_path / "predictions.tsv")
    for numbers in (read.values[:, 0].tolist(), [float(label) for (label,) in read.gold]):
        assert numbers == pytest.approx(labels, rel=1e-15, abs=1e-4 * (greatest - least))


def test_padding_does_not_change_outputs(name, pretrained):
    task = draw_task(name, 20)
    rows = encode_task(task, pretrained, small_finetune(sequence_length=32))
    model, train = build(pretrained, task.family, pooling="mean"), rows.splits["train"]
    keep_tokens(model, rows.token_ids)
    together = run_network(model, train, CPU)
    for number in range(len(train)):
        batch = make_batch(train, torch.tensor([number]), CPU)
        for key, values in model(batch).items():
            if key in ("logits", "start_logits", "end_logits", "unanswerable"):
                place = (number, *map(slice, values.shape[1:]))
                torch.testing.assert_close(values[0], together[key][place])


def test_choices_may_be_listed_in_any_order(pretrained):
    family = MultipleChoice(3)
    model = build(pretrained, family)
    one, other = (
        family.encode([ChoiceQuestion("the queen", texts, 0)], pretrained.tokenizer, 32)
        for texts in (("a boat", "sold", "a"), ("a", "a boat", "sold"))
    )
    one, other = (run_network(model, rows, CPU)["logits"] for rows in (one, other))
    torch.testing.assert_close(one[:, [2, 0, 1]], other)


def test_what_is_unlabelled_has_predictions_and_no_scores(name, pretrained, tmp_path):
    family, case = CASES[name].family, CASES[name]
    asked = [family.parse(record) for record in number_records([case.record] * 2)]
    rows = family.encode(asked, pretrained.tokenizer, 16)
    outputs = run_network(build(pretrained, family), rows, CPU)
    assert family.score(rows, outputs) == {}
    answers = family.describe_answers(rows, outputs)
    assert [set(each) for each in answers] == [case.answer] * 2
    family.write_predictions(tmp_path, "test", rows, outputs)
    assert all(path.name.startswith("test_") for path in tmp_path.iterdir())
    if (tmp_path / "test_predictions.tsv").exists():
        assert (tmp_path / "test_predictions.tsv").read_text().splitlines()[1].startswith("0\t\t")


def test_scores_follow_from_the_answers_that_are_kept(name, pretrained, tmp_path):
    family, rng = CASES[name].family, random.Random(0)
    examples = [CASES[name].draw(rng) for _ in range(24)]
    rows = family.encode(examples, pretrained.tokenizer, 32)
    outputs = run_network(build(pretrained, family), rows, CPU)
    if name == "regression":  # numbers of an untrained network would be equal when rounded
        outputs = {"logits": torch.rand(24, 1, generator=torch.Generator().manual_seed(0))}
    family.write_predictions(tmp_path, "dev", rows, outputs)
    expected, found = family.score(rows, outputs), family.score_answers(tmp_path, "dev", examples)
    assert found == pytest.approx(expected, abs=1e-3)
    kept = family.read_answers(tmp_path, "dev")
    for one, other in zip(kept, family.describe_answers(rows, outputs), strict=True):
        for key, value in one.items():
            is_number = isinstance(value, float)
            assert other[key] == (pytest.approx(value, abs=1e-6) if is_number else value)
    others = [*examples[12:], *examples[:12]]
    refuse("those of the task's files", family.score_answers, tmp_path, "dev", others)


def test_records_that_do_not_fit_are_refused_by_number(name):
    case = CASES[name]
    for wrong, words in case.wrong:
        refuse(
            f"record 2: {words}",
            lambda wrong=wrong: [*map(case.family.parse, number_records([case.record, wrong]))],
        )


def test_one_prediction_for_all_is_told(name, pretrained):
    family, rng = CASES[name].family, random.Random(0)
    example = CASES[name].draw(rng)
    rows = family.encode([example] * 3, pretrained.tokenizer, 32)
    outputs = run_network(build(pretrained, family), rows, CPU)
    note = family.describe_collapse(rows, outputs)
    if isinstance(family, SpanExtraction):
        assert note is not None
        return
    if isinstance(family, Retrieval):  # equal queries; test_retrieval.py has others
        assert note is None
        return
    labels = rows.targets["labels"]
    if not isinstance(family, Tagging):
        assert note is None  # the right answers are all the same
        others = torch.arange(3).to(labels.dtype).view(-1, *(1,) * (labels.dim() - 1))
        rows = dataclasses.replace(rows, targets={"labels": others.expand(3, *labels.shape[1:])})
    outputs["logits"] = outputs["logits"] * 0 + 0.5 + torch.arange(outputs["logits"].shape[-1])
    told = family.describe_collapse(rows, outputs)
    assert told.startswith("every dev prediction is ")
    endings = {"regression": " 2.5", "several numbers": " 2.5, 750.0"}  # on the labels' scale
    assert told.endswith(endings.get(name, ""))


def check_constant(name, rows, dev, constant):
    """By hand: the loss and the headline of the best answer that reads no text."""
    labels = rows.targets.get("labels")
    if name == "choice":
        expected = math.log(3), 1 / 3
    elif name == "retrieval":  # BM25 finds no word
        expected = 0.0, 0.0
    elif name.endswith(("regression", "numbers")):
        expected = labels.numpy().var(axis=0).mean(), 0.0
    elif name == "several labels":
        shares, gold = labels.mean(dim=0), dev.targets["labels"]
        losses = -(shares * shares.log() + (1 - shares) * (1 - shares).log())

        def micro_f1(gold, said):
            return f1_score(gold, [said] * len(gold), average="micro", zero_division=0.0)

        said = max(product([0, 1], repeat=2), key=lambda said: micro_f1(labels, said))
        expected = losses.mean().item(), micro_f1(gold, said)
    else:
        counts = torch.bincount(labels[labels >= 0])
        shares = counts / counts.sum()
        is_right = dev.targets["labels"][dev.targets["labels"] >= 0] == counts.argmax()
        accuracy = 0.0 if name == "tagging" else is_right.float().mean().item()
        expected = -(shares * shares.log()).nansum().item(), accuracy
    assert (constant.loss, next(iter(constant.scores.values()))) == pytest.approx(expected)


@pytest.mark.parametrize("name", [each for each in CASES if "answer" not in CASES[each].answer])
def test_the_constant_answer_reads_no_text(name, toy_tokenizer):
    rows = draw_task(name, 40).encode(toy_tokenizer, 32)
    constant = CASES[name].family.find_constant(rows["train"], rows["dev"])
    check_constant(name, rows["train"], rows["dev"], constant)


SLOW = ("regression", "several numbers", "tagging", "squad", "plain spans")


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=pytest.mark.slow) if each in SLOW else each for each in CASES]
)
def test_it_learns_what_can_be_learnt(name, pretrained, tmp_path):
    case, task = CASES[name], draw_task(name, CASES[name].count)
    if isinstance(case.family, SpanExtraction):
        task.examples["dev"] = task.examples["train"]
    config = small_finetune(sequence_length=32, **case.settings)
    rows = encode_task(task, pretrained, config)
    run = train_seed(Job(pretrained, task, config), rows, Machine(), seed=0, progress=ignore)
    headline = case.family.headline
    constant = case.family.find_constant(rows.splits["train"], rows.splits["dev"])
    assert run.record["scores"][headline] > max(case.least, constant.scores[headline])
    assert not run.record["degenerate"]
    losses = [epoch["train_loss"] for epoch in run.record["epochs"]]
    assert losses[-1] < (constant.loss or losses[0]) / 2
    assert losses[-1] < losses[0]
    case.family.write_predictions(tmp_path, "dev", rows.splits["dev"], run.outputs["dev"])
    if isinstance(case.family, SpanExtraction):
        n_best = json.loads((tmp_path / "nbest.json").read_text())
        assert list(n_best) == [question.id for question in task.examples["dev"]]
        shares = [sum(text["probability"] for text in texts) for texts in n_best.values()]
        assert shares == pytest.approx([1] * len(n_best))
    answers = case.family.describe_answers(rows.splits["dev"], run.outputs["dev"])
    assert len(answers) == len(task.examples["dev"])
    assert len({json.dumps(each) for each in answers}) > 1
