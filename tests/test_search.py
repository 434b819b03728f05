"""A search by a fine-tuning for retrieval: its index, hard negatives, and what it exports."""

import asyncio
import dataclasses
import json
from dataclasses import asdict

import numpy as np
import pytest
from commands import refuse_command, succeed
from refusals import refuse
from runs import flip_bit
from services import served
from tasks import ignore, small_finetune, write_files
from test_family import draw_task

import electra
from benchmarks.serve import Client, read_memory
from electra.assignments import override
from electra.checkpoints.finetuned import read_finetuned
from electra.finetuning.loop import finetune
from electra.inference import mining, search
from electra.inference.models import load_models
from electra.inference.search import build_index, load_searcher, nearest, open_index
from electra.tasks.config import RetrievalConfig
from electra.tasks.registry import read_task
from electra.training.machine import Machine


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Pairs in both files, whose passages are ids of a corpus."""
    examples = draw_task("retrieval", 240).examples
    passages = dict.fromkeys(each.passage for part in examples.values() for each in part)
    ids = {text: f"p{number}" for number, text in enumerate(passages)}
    files = {"passages.jsonl": lines({"id": ids[text], "text": text} for text in passages)}
    for split, part in examples.items():
        rows = [{"query": each.query, "positive": ids[each.passage]} for each in part]
        files[f"{split}.jsonl"] = lines(rows)
    return write_files(tmp_path_factory.mktemp("pairs"), files)


@pytest.fixture(scope="module")
def tuned(start, data, tmp_path_factory):
    out = tmp_path_factory.mktemp("tuned") / "retriever"
    corpus = RetrievalConfig(corpus="passages.jsonl", cached_rows=16)
    config = small_finetune(epochs=8, sequence_length=24, pooling="mean", retrieval=corpus)
    finetune(start, "retrieval", data, out, config, seeds=1, progress=ignore)
    return out


@pytest.fixture(scope="module")
def searcher(tuned):
    return load_searcher(read_finetuned(tuned))


@pytest.fixture
def small_blocks(monkeypatch):
    for name, size in {"WRITTEN": 16, "COMPARED": 10, "ASKED": 7}.items():
        monkeypatch.setattr(search, name, size)


@pytest.fixture
def index(searcher, data, tmp_path, small_blocks):
    build_index(searcher, data / "passages.jsonl", tmp_path / "index")
    return open_index(tmp_path / "index", searcher)


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_results_have_bm25_as_the_guess_and_verify(tuned, data, tmp_path, capsys):
    results = json.loads((tuned / "results.json").read_text())
    (seed,) = results["seeds"].values()
    assert results["metric"] == "ndcg@10"
    assert seed["scores"].keys() == results["majority"].keys()
    assert seed["scores"]["ndcg@10"] > 0.8 > results["majority"]["ndcg@10"]
    succeed(capsys, "report", tuned, "--out", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "BM25" in page
    assert "constant answer" not in page
    succeed(capsys, "report", tuned, "--out", tmp_path / "report.md")
    assert f"{results['majority']['ndcg@10']:.3f} (BM25)" in (tmp_path / "report.md").read_text()
    out, _ = succeed(capsys, "verify", tuned, "--data", data)
    assert "the scores follow from the answers" in out
    assert "refuted" not in out


def test_the_search_is_that_of_all_cosines(searcher, index, data):
    passages = read_lines(data / "passages.jsonl")
    queries = [each["query"] for each in read_lines(data / "dev.jsonl")]
    vectors, _ = searcher.encode([each["text"] for each in passages])
    assert np.abs(index.vectors_NH - vectors).max() < 1e-3
    asked, _ = searcher.encode(queries)
    assert np.linalg.norm(asked, axis=1) == pytest.approx(np.ones(len(asked)), abs=1e-5)
    cosines = asked @ index.vectors_NH.astype(np.float32).T
    for query, row, hits in zip(
        queries, cosines, search.search(searcher, index, queries, 12)[0], strict=True
    ):
        best = np.sort(row)[::-1][:12]
        assert [hit.score for hit in hits] == pytest.approx(best.tolist(), abs=1e-6), query
        for hit in hits:
            place = [each["id"] for each in passages].index(hit.id)
            assert passages[place]["text"] == hit.text
            assert row[place] == pytest.approx(hit.score, abs=1e-6)
    assert nearest(index.vectors_NH, asked, 1000)[0].shape == (len(queries), len(passages))


def test_an_interrupted_index_is_continued(searcher, index, data, tmp_path, monkeypatch):
    asked, encode = [], search.Searcher.encode

    def count(self, texts, *others):
        asked.append(len(texts))
        if len(asked) == 3:
            raise KeyboardInterrupt
        return encode(self, texts, *others)

    monkeypatch.setattr(search.Searcher, "encode", count)
    corpus, out = data / "passages.jsonl", tmp_path / "again"
    with pytest.raises(KeyboardInterrupt):
        build_index(searcher, corpus, out)
    with (tmp_path / "again.incomplete" / search.VECTORS).open("ab") as file:
        file.write(b"half of a vector")
    other = write_files(tmp_path / "other", {"corpus.jsonl": lines([{"text": "a boat"}])})
    refuse("was started with different corpus", build_index, searcher, other / "corpus.jsonl", out)
    build_index(searcher, corpus, out)
    whole = len(read_lines(corpus))
    assert asked == [16, 16, 16, *[16] * ((whole - 32) // 16), *[whole % 16] * (whole % 16 > 0)]
    for name in (search.VECTORS, search.PASSAGES, search.PLACES, "electra.json"):
        assert (out / name).read_bytes() == (index.folder / name).read_bytes(), name


def test_the_command_and_the_library_find_the_same(tuned, data, tmp_path, capsys):
    (query, *_) = [each["query"] for each in read_lines(data / "dev.jsonl")]
    place, corpus = tmp_path / "index", data / "passages.jsonl"
    words = ["search", tuned, query, "--top", "3"]
    out, _ = succeed(capsys, *words, "--corpus", corpus, "--index", place, "--json")
    found = json.loads(out)["passages"]
    assert len(found) == 3
    for where in (place, str(corpus)):
        (hits,) = electra.search(tuned, [query], corpus=where, top=3)
        assert list(map(asdict, hits)) == found
    out, _ = succeed(capsys, *words, "--corpus", place)
    assert found[0]["id"] in out
    texts = tmp_path / "texts"
    write_files(texts, {"one.txt": "the queen\n\na boat\n", "two.txt": "in 1912 " * 40})
    out, err = succeed(capsys, "search", tuned, "p t " * 20, "--corpus", texts, "--json")
    assert {each["id"] for each in json.loads(out)["passages"]} == {"1", "2", "3"}
    assert "1 of 3 passages longer than rows of 24 tokens, and cut" in " ".join(err.split())
    assert "1 of 1 queries longer than rows of 24 tokens, and cut" in " ".join(err.split())


def test_embeddings_are_the_vectors_of_the_search(tuned, searcher, tmp_path, capsys):
    texts = ["the queen", "", "in 1912 " * 40]
    ours, num_cut = searcher.encode([texts[0], texts[2]])
    assert num_cut == 1
    model = electra.load(tuned)
    vectors = electra.embed(model, texts)
    assert np.isnan(vectors[1]).all()
    assert vectors[[0, 2]] == pytest.approx(ours, abs=1e-6)
    assert electra.embed(model, [""]).shape == (1, 64)
    states = electra.embed(model, texts, pooling="mean")
    assert states[0] / np.linalg.norm(states[0]) == pytest.approx(ours[0], abs=1e-6)
    assert np.abs(states[2] / np.linalg.norm(states[2]) - ours[1]).max() > 1e-3  # of all pieces
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    words = ["embed", tuned, "--input", tmp_path / "texts.txt", "--out"]
    _, err = succeed(capsys, *words, tmp_path / "out.npy")
    assert np.array_equal(np.load(tmp_path / "out.npy"), vectors, equal_nan=True)
    assert "1 of 3 inputs was longer than the run's rows of 24 tokens and was cut" in " ".join(
        err.split()
    )
    _, err = succeed(capsys, *words, tmp_path / "layer.npy", "--layer", "2")
    assert np.load(tmp_path / "layer.npy") == pytest.approx(states, abs=1e-6, nan_ok=True)
    assert "cut" not in err


def test_after_a_fine_tuning_comes_the_search(start, data, tmp_path, capsys):
    out, short = tmp_path / "out", ["epochs=1", "threads=1", "retrieval.corpus=passages.jsonl"]
    given = ["--task", "retrieval", "--data", data, "--out", out, "--set", *short]
    printed, _ = succeed(capsys, "finetune", start, *given)
    assert printed.splitlines()[-1] == f"next: electra search {out} 'a query' --corpus FILE"


WRONG = [
    ("search", {"queries": ["a", " "]}, 422, "query 2 is empty; give it a text"),
    ("search", {"queries": []}, 422, "queries: List should have at least 1 item"),
    ("search", {"queries": ["a"], "top": 51}, 422, "top: Input should be less than or equal to 50"),
    ("search", {"texts": ["a"]}, 422, "unknown field 'texts'"),
    ("embed", {"texts": ["a"], "layer": 1}, 422, "has vectors of its own; leave layer and pooling"),
    ("detect", {"texts": ["a"]}, 404, "cannot detect; it answers predict, embed, search"),
]


def test_the_service_searches_as_the_command_does(tuned, index, data):
    pytest.importorskip("fastapi")
    queries = [each["query"] for each in read_lines(data / "dev.jsonl")][:20]
    expected = electra.search(tuned, queries, corpus=index.folder, top=3)

    async def ask(port, pid):
        client, path = Client(port), f"/models/{tuned.name}"
        for verb, body, status, line in WRONG:
            found, _, answer = await client.send("POST", f"{path}/{verb}", body)
            assert (found, list(answer)) == (status, ["error"])
            assert line in answer["error"]
        _, _, vectors = await client.send("POST", f"{path}/embed", {"texts": [queries[0], " "]})
        assert vectors[1] is None
        assert vectors[0] == pytest.approx(electra.embed(tuned, queries[:1])[0], abs=1e-5)
        memory = []
        for _ in range(2):
            for _ in range(150):
                body = {"queries": queries, "top": 3}
                _, _, answer = await client.send("POST", f"{path}/search", body)
            memory.append(read_memory(pid))
        assert memory[1] - memory[0] < 2 << 20
        client.close()
        return answer

    with served(tuned, "--index", index.folder) as (process, port):
        answer = asyncio.run(ask(port, process.pid))
    for query, hits, found in zip(queries, expected, answer, strict=True):
        assert found["query"] == query
        for ours, theirs in zip(hits, found["passages"], strict=True):
            assert theirs == asdict(ours) | {"score": pytest.approx(ours.score, abs=1e-5)}


def test_an_index_that_is_replaced_is_read_as_it_was(searcher, index, tmp_path):
    before = index.read(len(index.places) - 1)
    index.folder.rename(tmp_path / "moved")
    assert index.read(len(index.places) - 1) == before


def test_an_index_needs_its_model(start, tuned, index, tmp_path):
    refuse("is for a model for retrieval; none of encoder is one", load_models, [start], Machine(),
           index.folder)  # fmt: skip
    refuse("none/electra.json", load_models, [tuned], Machine(), tmp_path / "none")


def test_neighbouring_passages_are_pairs(tmp_path, capsys):
    first = "One is a sentence. It has a second one! And a third? Here is the last."
    text = f"{first}\nNo stop ends this line\n\nAlone.\n\n私は船を見た。君も船を見た。\n"
    (tmp_path / "text.txt").write_text(text)
    out = tmp_path / "pairs.jsonl"
    printed, _ = succeed(capsys, "pair", tmp_path / "text.txt", "--out", out, "--chars", "40")
    assert read_lines(out) == [
        {"query": "One is a sentence. It has a second one!",
         "positive": "And a third? Here is the last."},
    ]  # fmt: skip
    assert "1 pair" in printed
    out = tmp_path / "shorter.jsonl"
    assert electra.pair([tmp_path / "text.txt"], out=out, chars=10) == 3
    assert read_lines(out)[-1] == {"query": "私は船を見た。", "positive": "君も船を見た。"}
    task = read_task("retrieval", out, small_finetune(dev_fraction=0.3))
    assert {name: len(each) for name, each in task.examples.items()} == {"train": 2, "dev": 1}
    (tmp_path / "one.txt").write_text("Alone.\n")
    refuse_command("no document has two passages of 200 characters", capsys, "pair",
                   tmp_path / "one.txt", "--out", tmp_path / "none.jsonl")  # fmt: skip
    refuse(
        "chars must be 1 or more, not 0", electra.pair, [out], out=tmp_path / "none.jsonl", chars=0
    )
    refuse_command("must be a .jsonl", capsys, "pair", out, "--out", tmp_path / "x.tsv")
    assert not [*tmp_path.glob("none*")]


def test_what_cannot_be_searched_is_refused(tuned, searcher, index, data, tmp_path, capsys):
    refuse("query 2 is empty", electra.search, tuned, ["a", " "], corpus=index.folder)
    refuse("top must be 1 or more, not 0", electra.search, tuned, ["a"], corpus=index.folder, top=0)
    refuse("exists already", build_index, searcher, data / "passages.jsonl", index.folder)
    empty = write_files(tmp_path / "empty", {"c.jsonl": lines([{"id": 1, "text": " "}])})
    refuse("c.jsonl line 1: 'text' must be a text that is not empty", electra.search, tuned, ["a"],
           corpus=empty / "c.jsonl")  # fmt: skip
    how = {"index": index.folder}
    refuse("is the index of another corpus than", electra.search, tuned, ["a"],
           corpus=data / "dev.jsonl", **how)  # fmt: skip
    refuse("is an index; leave out", electra.search, tuned, ["a"], corpus=index.folder, **how)
    refuse("'text' must be", build_index, searcher, empty / "c.jsonl", tmp_path / "failed")
    assert not [*tmp_path.glob("failed*")]
    flip_bit(index.folder / search.VECTORS)
    refuse("vectors.f16 is damaged", electra.search, tuned, ["a"], corpus=index.folder)
    refuse_command("there is no file", capsys, "search", tuned, "a", "--corpus", tmp_path / "none")
    refuse("sentence-transformers", electra.export, tuned, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_index_of_another_model_is_refused(start, searcher, index, toy_question, tmp_path):
    another = dataclasses.replace(searcher, weights={"model.safetensors": "0"})
    refuse("is the index of another model", open_index, index.folder, another)
    other = tmp_path / "other"
    electra.finetune(start, task="own", data=toy_question, out=other,
                     settings={"epochs": 1, "threads": 1})  # fmt: skip
    refuse("is a fine-tuning on own: a search needs one on retrieval", electra.search, other,
           ["a"], corpus=index.folder)  # fmt: skip


def test_mined_negatives_are_the_nearest_below_the_margin(
    tuned, searcher, index, data, tmp_path, small_blocks
):
    out = tmp_path / "mined"
    finetuned = read_finetuned(tuned)
    found = mining.mine(searcher, finetuned, data, out, count=3, margin=0.1)
    rows, passages = read_lines(out / "train.jsonl"), read_lines(data / "passages.jsonl")
    assert [row["query"] for row in rows] == [
        each.query for each in read_task("retrieval", data, read_finetuned(tuned).config)
        .examples["train"]
    ]  # fmt: skip
    assert found["num_negatives"] == sum(len(row["negative"]) for row in rows) > 0
    names = [each["id"] for each in passages]
    asked, _ = searcher.encode([row["query"] for row in rows])
    cosines = asked @ index.vectors_NH.astype(np.float32).T
    right = {}
    for row in rows:
        right.setdefault(row["query"], set()).add(row["positive"])
    for row, own in zip(rows, cosines, strict=True):
        limit = own[names.index(row["positive"])] - 0.1
        order = [names[n] for n in np.argsort(-own, kind="stable") if own[n] < limit]
        assert row["negative"] == [n for n in order if n not in right[row["query"]]][:3]
    config = read_finetuned(tuned).config
    again = read_task("retrieval", out, override(config, ["retrieval.corpus=corpus.jsonl"]))
    assert max(len(each.negatives) for each in again.examples["train"]) == 3
    dev = read_task("retrieval", data, config).examples["dev"]
    assert again.examples["dev"] == dev


def test_interrupted_mining_is_continued(tuned, searcher, data, tmp_path, monkeypatch):
    finetuned, out = read_finetuned(tuned), tmp_path / "mined"
    monkeypatch.setattr(search, "ASKED", 20)

    def stop(done, total):
        if done == 40:
            raise KeyboardInterrupt

    whole = mining.mine(searcher, finetuned, data, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        mining.mine(searcher, finetuned, data, out, progress=stop)
    with (tmp_path / "mined.incomplete" / "train.jsonl").open("a") as file:
        file.write('{"query": "half')
    refuse("different count", mining.mine, searcher, finetuned, data, out, count=1)
    assert mining.mine(searcher, finetuned, data, out) == whole
    for name in ("train.jsonl", "dev.jsonl", "electra.json"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_sentence_transformers_has_the_same_vectors(start, data, tmp_path, pooling):
    library = pytest.importorskip("sentence_transformers")
    config = small_finetune(
        epochs=1,
        sequence_length=24,
        pooling=pooling,
        retrieval=RetrievalConfig(corpus="passages.jsonl"),
    )
    out = tmp_path / pooling
    finetune(start, "retrieval", data, out, config, seeds=1, progress=ignore)
    written = electra.export(out, out=tmp_path / "exported", form="sentence-transformers")
    assert written.similarity.pooling == pooling
    texts = ["the queen sold a boat .", "p t x", "a young doctor " * 20, "what [SEP] is [MASK]"]
    vectors, num_cut = load_searcher(read_finetuned(out)).encode(texts)
    assert num_cut == 1
    theirs = library.SentenceTransformer(str(tmp_path / "exported"), device="cpu").encode(texts)
    assert theirs == pytest.approx(vectors, abs=1e-5)
    card = (tmp_path / "exported" / "README.md").read_text()
    assert "SentenceTransformer(" in card
    assert "Layer and pooling" not in card


@pytest.mark.slow
def test_mteb_gives_the_same_scores(tuned, data, tmp_path):
    retrieval = pytest.importorskip("mteb.abstasks.retrieval")
    facts = pytest.importorskip("mteb.abstasks.task_metadata").TaskMetadata
    loaders = pytest.importorskip("mteb.abstasks.retrieval_dataset_loaders")
    make = pytest.importorskip("datasets").Dataset.from_list
    queries, relevant = {}, {}
    for pair in read_lines(data / "dev.jsonl"):
        name = queries.setdefault(pair["query"], f"q{len(queries)}")
        relevant.setdefault(name, {})[pair["positive"]] = 1

    class Own(retrieval.AbsTaskRetrieval):
        metadata = facts(
            name="Own",
            description="A task of these tests.",
            type="Retrieval",
            dataset={"path": "none", "revision": "none"},
            eval_splits=["test"],
            eval_langs=["eng-Latn"],
            main_score="ndcg_at_10",
        )

        def load_data(self, **options):
            asked = make([{"id": name, "text": text} for text, name in queries.items()])
            corpus = make([{**each, "title": ""} for each in read_lines(data / "passages.jsonl")])
            split = loaders.RetrievalSplitData(
                queries=asked, corpus=corpus, relevant_docs=relevant, top_ranked=None
            )
            self.dataset, self.data_loaded = {"default": {"test": split}}, True

    electra.export(tuned, out=tmp_path / "exported", form="sentence-transformers")
    library = pytest.importorskip("sentence_transformers")
    model = library.SentenceTransformer(str(tmp_path / "exported"), device="cpu")
    judged = pytest.importorskip("mteb").evaluate(
        model, Own(), cache=None, show_progress_bar=False, raise_error=True
    )
    (theirs,) = judged.task_results[0].scores["test"]
    (seed,) = json.loads((tuned / "results.json").read_text())["seeds"].values()
    ours = seed["scores"]
    assert 0.5 < ours["ndcg@10"] < 1
    names = {"ndcg@10": "ndcg_at_10", "mrr@10": "mrr_at_10", "recall@100": "recall_at_100"}
    assert {name: theirs[key] for name, key in names.items()} == pytest.approx(
        {name: ours[name] for name in names}, abs=1e-5
    )
