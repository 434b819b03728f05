"""Retrieval: its loss and gradient, its scores beside trec_eval, and what is refused."""

import json
import math
import random
from collections import Counter

import pytest
import pytrec_eval
import torch
from refusals import refuse
from tasks import read, write_files

from electra.finetuning.cached_gradients import backward_by_parts
from electra.finetuning.network import build_network
from electra.model.batch import split_by_length
from electra.tasks.config import FinetuneConfig
from electra.tasks.retrieval import (
    METRICS,
    Pair,
    Retrieval,
    number_of,
    rank,
    rank_by_bm25,
    score_ranks,
    split_terms,
)
from electra.tasks.rows import TaskBatch, make_batch
from electra.training.machine import Machine
from electra.training.optimizer import step_seed

CPU = torch.device("cpu")
PAIRS = [
    Pair("who", "the queen sold a boat .", ("the castle",)),
    Pair("what", "a boat", ("an engine", "my neighbour")),
    Pair("when", "in 1912 before breakfast at the harbour the old sailor painted the castle"),
    Pair("who", "a young doctor"),
    Pair("whom", "a boat", ("the harbour",)),
]


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def build(pretrained, dtype, dropout_prob):
    config = FinetuneConfig(dropout_prob=dropout_prob, pooling="mean")
    how = {"machine": Machine(dtype=dtype), "seed": 0, "from_scratch": False}
    return build_network(pretrained, Retrieval(), config, **how).to(dtype).train()


def gradient_of(model, act):
    """The loss, and the gradient in which every parameter that is read has a part."""
    model.zero_grad()
    loss = act()
    found = {name: each.grad.clone() for name, each in model.named_parameters()}
    assert all(each.abs().max() > 0 for name, each in found.items() if "norm" in name)
    return loss, found


def assert_same_gradient(one, other, tolerance=1e-6):
    """To a share of the loss, and of the gradient's greatest component."""
    torch.testing.assert_close(one[0], other[0], rtol=1e-6, atol=0)
    whole, found = (torch.cat([each.flatten() for each in g[1].values()]) for g in (one, other))
    assert (whole - found).abs().max() <= tolerance * whole.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("cached_rows", [0, 1, 3, 100])
def test_the_gradient_by_parts_is_that_of_the_whole_batch(pretrained, dtype, cached_rows):
    model, family = build(pretrained, dtype, 0.0), Retrieval()
    rows = family.encode(PAIRS, pretrained.tokenizer, 32)
    batch = make_batch(rows, torch.arange(len(rows)), CPU)

    def plain():
        loss = family.loss(model(batch), batch)
        (3 * loss).backward()
        return loss.detach()

    def by_parts():
        return backward_by_parts(model, rows, Machine(dtype=dtype), 5, 3, cached_rows)

    # Products of other shapes are rounded in other ways: the test below has the same shapes.
    tolerance = 1e-6 if dtype == torch.float64 else 3e-6
    assert_same_gradient(gradient_of(model, plain), gradient_of(model, by_parts), tolerance)


@pytest.mark.parametrize("layers", ["plain", "fused"])
def test_the_second_pass_has_the_dropout_of_the_first(pretrained, layers):
    model, family, machine = build(pretrained, torch.float32, 0.2), Retrieval(), Machine()
    rows = family.encode(PAIRS, pretrained.tokenizer, 32)
    batch = make_batch(rows, torch.arange(len(rows)), CPU)
    texts = family.encode_texts(
        [text for q, p, n, _ in PAIRS for text in (q, p, *n, *[""] * (2 - len(n)))],
        *(pretrained.tokenizer, 32),
    )

    def plain():
        parts = [*split_by_length(texts.lengths.tolist(), 3)]
        vectors = torch.empty(len(texts), 64)
        for number, part in enumerate(parts):
            machine.seed_dropout(step_seed(5, "part", number))
            found = model(make_batch(texts, torch.tensor(part), CPU))["vectors"][:, 0]
            vectors = vectors.index_copy(0, torch.tensor(part), found)
        loss = family.loss({"vectors": vectors.view(len(PAIRS), 4, -1)}, batch)
        loss.backward()
        return loss.detach()

    expected = gradient_of(model, plain)
    found = gradient_of(model, lambda: backward_by_parts(model, rows, machine, 5, 1, 3))
    assert_same_gradient(expected, found)
    other, _ = gradient_of(model, lambda: backward_by_parts(model, rows, machine, 6, 1, 3))
    assert other != expected[0]


@pytest.mark.parametrize("both", [False, True])
def test_right_passages_of_a_batch_are_no_wrong_answers(pretrained, both):
    """By hand: a loop over queries and passages by their texts."""
    rows = Retrieval().encode(PAIRS, pretrained.tokenizer, 32)
    rng = torch.Generator().manual_seed(0)
    vectors = torch.randn(*rows.targets["texts"].shape, 8, generator=rng)
    right = {}
    for query, passage, *_ in PAIRS:
        right.setdefault(query, set()).add(passage)
    losses, backward = [], []
    texts = [(each.passage, *each.negatives) for each in PAIRS]
    for item, pair in enumerate(PAIRS):
        own, wrong, others = vectors[item, 0] @ vectors[item, 1] / 0.1, [], []
        for other, passages in enumerate(texts):
            for place, text in enumerate(passages, 1):
                if text not in right[pair.query]:
                    wrong.append(vectors[item, 0] @ vectors[other, place] / 0.1)
            if pair.passage not in right[PAIRS[other].query]:
                others.append(vectors[other, 0] @ vectors[item, 1] / 0.1)
        losses.append(torch.stack([own, *wrong]).logsumexp(0) - own)
        backward.append(torch.stack([own, *others]).logsumexp(0) - own)
    assert len(wrong) == 7  # of "whom": not "a boat" of another query, which also answers it
    expected = torch.stack(losses).mean()
    if both:
        expected = (expected + torch.stack(backward).mean()) / 2
    family = Retrieval(temperature=0.1, both_directions=both)
    batch = TaskBatch(rows.input_ids, None, None, rows.targets)
    torch.testing.assert_close(family.loss({"vectors": vectors}, batch), expected)


def score_by_trec(run, right):
    measures = pytrec_eval.RelevanceEvaluator(
        {query: dict.fromkeys(each, 1) for query, each in right.items()},
        {"ndcg_cut.10", "recip_rank", "recall.100"},
    ).evaluate(run)
    # trec_eval's reciprocal rank has no cut: below 1 / 10 it is one beyond rank 10.
    found = [
        (m["ndcg_cut_10"], m["recip_rank"] * (m["recip_rank"] >= 0.1), m["recall_100"])
        for m in measures.values()
    ]
    return [sum(column) / len(found) for column in zip(*found, strict=True)]


@pytest.mark.parametrize("has_corpus", [False, True])
def test_scores_are_those_of_trec_eval(toy_tokenizer, has_corpus):
    """Vectors at random; queries with several answers, passages of several queries."""
    rng = random.Random(0)
    names = [f"passage {number}" for number in range(301)]
    pairs = [Pair(f"query {n % 60}", rng.choice(names[:200]), label=1) for n in range(100)]
    pairs = list(dict.fromkeys(pairs))
    family = Retrieval(corpus=tuple(names) if has_corpus else ())
    rows = family.encode_scored(pairs, toy_tokenizer, 8)
    table = torch.nn.functional.normalize(torch.randn(1000, 5), dim=1)
    of = {text: table[n] for n, text in enumerate([*names, *(f"query {n}" for n in range(60))])}
    by_number = {number_of(text): vector for text, vector in of.items()}
    vectors = torch.stack([by_number[n] for n in rows.targets["texts"].flatten().tolist()])
    passages = names if has_corpus else sorted({each.passage for each in pairs})
    right, run = {}, {}
    for query, passage, *_ in pairs:
        right.setdefault(query, []).append(passage)
        run[query] = {text: float(of[query] @ of[text]) for text in passages}
    scores = family.score(rows, {"vectors": vectors.unflatten(0, (-1, 2))})
    assert list(scores) == list(METRICS)
    assert list(scores.values()) == pytest.approx(score_by_trec(run, right), abs=1e-6)
    assert min(scores.values()) > 0


def test_equal_vectors_and_damaged_ones_find_nothing(toy_tokenizer):
    rows = Retrieval().encode(PAIRS, toy_tokenizer, 32)
    vectors = torch.ones(*rows.targets["texts"].shape, 4)
    assert rank(rows, {"vectors": vectors}) == [8] * 5  # behind all others
    assert rank(rows, {"vectors": vectors * torch.nan}) == [8] * 5
    assert Retrieval().describe_collapse(rows, {"vectors": vectors})
    vectors[1, 0] = 2
    assert Retrieval().describe_collapse(rows, {"vectors": vectors}) is None


def test_bm25_is_that_of_its_formula(toy_text):
    passages = tuple(line for line in toy_text.read_text().splitlines() if line)[:80]
    queries = ("the queen sold a boat yesterday", "Castle in 1912", "nothing of it")
    own = tuple(random.Random(1).sample(passages, 3))
    texts = [split_terms(each) for each in dict.fromkeys(passages)]
    mean = sum(map(len, texts)) / len(texts)
    documents = Counter(term for text in texts for term in set(text))

    def score(query, text):
        found = 0.0
        for term in split_terms(query):
            count, having = text.count(term), documents[term]
            idf = math.log(1 + (len(texts) - having + 0.5) / (having + 0.5))
            found += idf * count / (count + 1.5 * (0.25 + 0.75 * len(text) / mean))
        return round(found, 4)

    expected = []
    for query, passage in zip(queries, own, strict=True):
        mine = score(query, split_terms(passage))
        expected.append(sum(score(query, text) >= mine for text in texts))
    assert rank_by_bm25(queries, own, passages) == expected
    assert expected[2] == len(texts)
    assert split_terms("Ein Übel: 東京 ไทย") == ["ein", "übel", "東", "京", "ไ", "ท", "ย"]


def test_scores_by_hand():
    found = score_ranks([0, 0, 2, 3], [1, 12, 5, 400])
    assert found["mrr@10"] == pytest.approx((1 + 1 / 5) / 3)
    assert found["recall@100"] == pytest.approx(2 / 3)
    best = 1 + 1 / math.log2(3)
    assert found["ndcg@10"] == pytest.approx((1 / best + 1 / math.log2(6)) / 3)


TRAIN = [{"query": "who", "positive": "a"}, {"query": "what", "positive": "b"}]
CORPUS = lines([{"id": "1", "text": "a boat"}, {"id": 2, "text": "the castle"}])
FORMS = {
    "triples": {"train.tsv": "query\tpositive\tnegative\nwho\ta boat\tthe castle\n"},
    "lists": {"train.jsonl": lines([{"query": "who", "positive": "a boat", "negative": ["x", "y"]},
                                    {"query": "who", "positive": "the castle", "negative": []}])},
    "several": {"train.csv": "query,positive,negative_1,negative_2\nwho,a boat,x,y\n"},
    "again": {"train.csv": "query,positive,negative\nwho,a boat,x\nwho,a boat,y\nwho,a boat,x\n"},
}  # fmt: skip
READ = {
    "triples": [Pair("who", "a boat", ("the castle",))],
    "lists": [Pair("who", "a boat", ("x", "y")), Pair("who", "the castle")],
    "several": [Pair("who", "a boat", ("x", "y"))],
    "again": [Pair("who", "a boat", ("x", "y"))],
}


@pytest.mark.parametrize("form", FORMS)
def test_pairs_and_triples_of_any_table(tmp_path, form):
    files = {**FORMS[form], "dev.jsonl": lines(TRAIN)}
    task = read("retrieval", write_files(tmp_path, files))
    assert task.examples["train"] == READ[form]
    assert task.examples["dev"] == [Pair("who", "a"), Pair("what", "b")]
    assert task.notes == ("1 of 2 queries of dev are also in train",)


def test_with_a_corpus_the_cells_are_ids(tmp_path):
    rows = [{"q": "who", "doc": "2", "negative": "1"}]
    files = {"train.jsonl": lines(rows), "dev.jsonl": lines(rows), "all.jsonl": CORPUS}
    settings = ("retrieval.query=q", "retrieval.positive=doc", "retrieval.corpus=all.jsonl")
    task = read("retrieval", write_files(tmp_path, files), *settings)
    assert task.examples["dev"] == [Pair("who", "the castle", ("a boat",))]
    assert task.family.corpus == ("a boat", "the castle")
    assert [path.name for path in task.files] == ["train.jsonl", "dev.jsonl", "all.jsonl"]


def changed(**values):
    return {"train.jsonl": lines([TRAIN[0], TRAIN[1] | values]), "dev.jsonl": lines(TRAIN)}


WITH = "retrieval.corpus=all.jsonl"
ALL = {"all.jsonl": CORPUS}
BAD = [
    (changed(positive=""), "train.jsonl line 2: 'positive' is empty; each row needs a query and"),
    (changed(positive=None), "train.jsonl line 2: 'positive' is None; it must be text"),
    (changed(query=" "), "train.jsonl line 2: 'query' is empty"),
    (changed(negative="x"), "train.jsonl line 1: no 'negative'; it must be text"),
    ({"train.jsonl": lines([{"query": "who"}] * 2), "dev.jsonl": lines(TRAIN)},
     "train.jsonl: no column 'positive'"),  # answers in dev alone
    ({"train.jsonl": lines(TRAIN), "dev.jsonl": lines([{"query": "who"}])},
     "dev.jsonl: no column 'positive'"),
    ({"train.jsonl": lines([TRAIN[0] | {"negative": "x"}, TRAIN[0] | {"negative": "a"}])}
     | {"dev.jsonl": lines(TRAIN)}, "for 'who' the passage 'a' is both right and wrong"),
    (changed() | ALL, "line 1: 'positive' is 'a', an id that all", WITH),
    (changed(), "retrieval.corpus: no file ... all.jsonl", WITH),
    (changed() | {"all.jsonl": CORPUS * 2}, "line 3: a row above also has the id '1'", WITH),
    (changed() | {"all.jsonl": lines([{"id": 1, "text": ""}])}, "line 1: 'text' is empty", WITH),
    (changed() | {"all.jsonl": lines([{"text": "x"}])}, "all.jsonl: no column 'id'", WITH),
]  # fmt: skip


@pytest.mark.parametrize(("files", "words", "settings"), [(*each[:2], each[2:]) for each in BAD])
def test_what_does_not_fit_is_refused_in_one_line(tmp_path, files, words, settings):
    refuse(words, read, "retrieval", write_files(tmp_path, files), *settings)


def test_settings_of_retrieval_are_for_it_alone(tmp_path):
    words = "retrieval.temperature is for retrieval, not for own"
    refuse(words, read, "own", tmp_path, "retrieval.temperature=1")
