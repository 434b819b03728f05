"""Answers of a model are the same everywhere: verbs, library, service, exports, other programs."""

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from networks import draw, make_sizes
from refusals import refuse

from electra.checkpoints.folder import Finetuned, SavedNetwork
from electra.config import FinetuneConfig
from electra.inference.predict import load_model
from electra.interop.export import describe_finetuned, write_plain
from electra.model.encoder import Encoder
from electra.model.heads import ClassifierHead
from electra.tasks import registry
from electra.tasks.classification import Classification
from electra.tasks.family import WrittenHead, name_outputs
from electra.tasks.registry import FAMILIES, restore_family

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
NAMES = {"family": "classification", "labels": ["no", "yes", "?"], "label_range": None}
NUMBER = NAMES | {"labels": [], "label_range": [-1.0, 4.0]}
HEADS = {
    "labels": Head(NAMES | {"columns": ["text", "label"]}, SINGLE),
    "labels of pairs": Head(NAMES | {"columns": ["one", "two", "label"]}, PAIRS),
    "a number": Head(NUMBER | {"columns": ["text", "stars"]}, SINGLE),
    "a number of pairs": Head(NUMBER | {"columns": ["one", "two", "score"]}, PAIRS),
    "tags": Head({"family": "tagging", "labels": ["O", "B-X", "I-X"]}, SENTENCES),
    "choices": Head({"family": "choice", "num_choices": 3, "begin": ""}, CHOICES),
    "spans": Head({"family": "squad", "head": "plain", "null_threshold": 0.0}, QUESTIONS),
}


def test_every_family_has_a_head_here():
    assert {head.facts["family"] for head in HEADS.values()} == {*FAMILIES}


def draw_finetuned(head, body, tokenizer):
    """A model with a head whose numbers differ much from text to text."""
    sizes = make_sizes(body, positions=LENGTH, vocab_size=tokenizer.vocab_size)
    config = FinetuneConfig(pooling=head.pooling, sequence_length=LENGTH, device="cpu", threads=1)
    facts = {"task": "own", "columns": []} | head.facts
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
    assert model.config.id2label == {0: HEADS[name].facts["columns"][-1]}
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


class TwoNumbers(Classification):
    """A regression with two targets, each with a range of its own."""

    ranges = ((0.0, 5.0), (-100.0, 100.0))

    def build_head(self, sizes, config):
        return ClassifierHead(sizes, 2, config.dropout_prob, "cls")

    def describe_answers(self, rows, outputs):
        least, greatest = torch.tensor(self.ranges).T
        numbers = least + (greatest - least) * outputs["logits"]
        return [{"number_0": one, "number_1": other} for one, other in numbers.tolist()]

    def describe_blank(self, example):
        return {"number_0": None, "number_1": None}


class TwoWritten(TwoNumbers):
    """The same, whose export says how its numbers are written."""

    def as_transformers(self, parameters):
        least, greatest = torch.tensor(self.ranges).T
        size = greatest - least
        scaled = {
            "dense.weight": parameters["dense.weight"] * size[:, None],
            "dense.bias": parameters["dense.bias"] * size + least,
        }
        settings = {"problem_type": "regression", **name_outputs(["a", "b"])}
        return WrittenHead("SequenceClassification", {**parameters, **scaled}, settings)


@pytest.mark.parametrize("family", [TwoNumbers, TwoWritten])
def test_two_targets_are_right_or_refused(family, make_pair, monkeypatch):
    """A family inherits no way to be written: its parent's would lose the ranges."""
    monkeypatch.setitem(registry.FAMILIES, "two", family)
    head = Head(NUMBER | {"family": "two", "columns": ["text", "a,b"]}, SINGLE)
    if family is TwoNumbers:
        refuse("no class for the family 'two', or its as_transformers", make_pair, head)
        return
    ours, folder = make_pair(head)
    _, _, found = ask_transformers(folder, "SequenceClassification", TEXTS)
    expected = [[*answer.values()] for answer in ours]
    np.testing.assert_allclose(found.logits.numpy(), expected, atol=2e-3)
    assert np.ptp([second for _, second in expected]) > 20
