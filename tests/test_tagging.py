import random
from itertools import chain
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from seqeval.metrics import accuracy_score
from seqeval.metrics.sequence_labeling import precision_recall_fscore_support

from electra.tasks.family import Task
from electra.tasks.rows import Rows, make_batch
from electra.tasks.tagging import (
    ENTITY_METRICS,
    TaggedSentence,
    Tagging,
    cut_word_windows,
    read_tagging_task,
)
from electra.tokenizing.tokenizer import Tokenizer

DATA = Path(__file__).parents[2] / "shared/data"
VOCABULARY = DATA / "vocab/bert-base-uncased.txt"
CPU = torch.device("cpu")


def toy_task(*sentences: list[tuple[str, str]]) -> Task:
    """A task with these sentences in train and dev; it asks for entities if a tag is B-PER."""
    examples = [
        TaggedSentence([word for word, _ in each], [tag for _, tag in each], [1] * len(each))
        for each in sentences
    ]
    labels = sorted({tag for each in examples for tag in each.tags})
    metrics = ENTITY_METRICS if "B-PER" in labels else ("accuracy",)
    return Task("toy", Tagging(tuple(labels), metrics), {"train": examples, "dev": examples})


def draw_task(rng: random.Random, num_sentences: int, longest: int) -> Task:
    words = ["boat", "unhesitatingly", "1912", ".", "\x01", "queen's", "Harbour", "Æon"]
    tags = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
    return toy_task(
        *(
            [(rng.choice(words), rng.choice(tags)) for _ in range(rng.randrange(1, longest))]
            for _ in range(num_sentences)
        )
    )


def say(task: Task, rows: Rows, labels) -> dict[str, torch.Tensor]:
    """Outputs by which each scored word, in the order of the rows, has this label."""
    places = torch.zeros_like(rows.targets["labels"])
    places[rows.targets["labels"] >= 0] = torch.tensor(
        [task.family.labels.index(each) for each in labels]
    )
    return {"logits": F.one_hot(places, len(task.family.labels)).float()}


# --- rows ---


def context(sizes: list[int], word: int, words: range) -> list[int]:
    """Tokens on the two sides of a word in the row of these words."""
    sides = range(words.start, word), range(word + 1, words.stop)
    return [sum(sizes[each] for each in side) for side in sides]


@pytest.mark.parametrize("room", [1, 2, 6, 30, 126])
def test_windows_score_every_word_once_where_it_has_most_context(room):
    rng = random.Random(room)
    for _ in range(100):
        largest = min(room, rng.choice((1, 3, 8, room)))
        sizes = [rng.randint(1, largest) for _ in range(rng.randrange(1, 5 * room + 10))]
        windows = cut_word_windows(sizes, room)
        scored = [word for window in windows for word in sorted(window.scored)]
        assert scored == list(range(len(sizes)))
        assert all(window.scored for window in windows)
        assert all(sum(sizes[word] for word in window.words) <= room for window in windows)
        if sum(sizes) <= room:
            assert len(windows) == 1

        for window in windows:
            for word in window.scored:
                left, right = context(sizes, word, window.words)
                others = [each.words for each in windows if word in each.words]
                assert min(left, right) == max(min(context(sizes, word, each)) for each in others)
                # Where the sentence goes on, a quarter of a row of it is seen, words being whole.
                assert left >= room // 4 - largest or window.words.start == 0
                assert right >= room // 4 - largest or window.words.stop == len(sizes)


def test_a_window_that_shows_no_word_best_is_left_out():
    first, between, last = [1] * 10, [1, 4, 4, 1, 1], [10]
    windows = cut_word_windows([*first, *between, *last], 20)
    # A row of words 10 to 14 stood between these two.
    assert [window.words for window in windows] == [range(14), range(11, 16)]
    assert [window.scored for window in windows] == [set(range(12)), set(range(12, 16))]


def test_rows_are_whole_words_labelled_at_their_first_token(toy_tokenizer):
    sentence = [("the", "O"), ("unhesitatingly", "B-PER"), ("\x01", "I-PER"), ("boat", "O")]
    task = toy_task(sentence)
    rows = task.encode(toy_tokenizer, 64)["dev"]
    the, adverb, boat = (toy_tokenizer.encode(each) for each in ("the", "unhesitatingly", "boat"))
    assert len(adverb) > 1
    ids = [*the, *adverb, toy_tokenizer.unk_id, *boat]
    assert rows.input_ids.tolist() == [[toy_tokenizer.cls_id, *ids, toy_tokenizer.sep_id]]
    labels = [task.family.labels.index(tag) for _, tag in sentence]
    inner = [-1] * (len(adverb) - 1)
    expected = [-1, labels[0], labels[1], *inner, labels[2], labels[3], *[-1] * len(boat)]
    assert rows.targets["labels"].tolist() == [expected]
    assert torch.equal(rows.first_lengths, rows.lengths)
    assert make_batch(rows, torch.tensor([0]), CPU).token_type_ids is None
    assert rows.num_cut == 0


def test_only_a_word_longer_than_a_row_is_cut(toy_tokenizer):
    long_word = "a-" * 20
    task = toy_task([("the", "O"), (long_word, "B-PER"), ("boat", "O")], [("boat", "O")])
    rows = task.encode(toy_tokenizer, 16)["dev"]
    assert len(toy_tokenizer.encode(long_word)) == 40
    assert rows.num_cut == 1
    assert int(rows.lengths.max()) == 16
    assert int((rows.targets["labels"] >= 0).sum()) == 4


@pytest.mark.parametrize("sequence_length", [8, 13, 32])
def test_no_word_is_lost_or_scored_twice(toy_tokenizer, sequence_length):
    rng = random.Random(sequence_length)
    task = draw_task(rng, 60, 60)
    rows = task.encode(toy_tokenizer, sequence_length)["dev"]
    assert int(rows.lengths.max()) <= sequence_length
    gold = [sentence.tags for sentence in task.examples["dev"]]
    words = [word for sentence in task.examples["dev"] for word in sentence.words]
    at_words = rows.targets["labels"] >= 0
    labels = [task.family.labels[label] for label in rows.targets["labels"][at_words]]
    assert labels == list(chain(*gold))
    starts = [(toy_tokenizer.encode(word) or [toy_tokenizer.unk_id])[0] for word in words]
    assert rows.input_ids[at_words].tolist() == starts

    guesses = [[rng.choice((tag, "O", "I-PER")) for tag in tags] for tags in gold]
    scores = task.family.score(rows, say(task, rows, chain(*guesses)))
    theirs = precision_recall_fscore_support(gold, guesses, average="micro")
    expected = [theirs[2], theirs[0], theirs[1], accuracy_score(gold, guesses)]
    assert list(scores.values()) == pytest.approx(expected)
    assert tuple(scores) == task.family.metrics
    assert 0.1 < scores["f1"] < 0.9


@pytest.mark.slow
@pytest.mark.skipif(
    not (DATA / "conll2003").is_dir() or not VOCABULARY.is_file(),
    reason=f"no CoNLL-2003, or no vocabulary of BERT's, in {DATA}",
)
def test_conll_2003_is_read_whole_and_every_word_scored_once():
    task = read_tagging_task(DATA / "conll2003")
    assert {split: len(each) for split, each in task.examples.items()} == {
        "train": 14041,
        "dev": 3250,
        "test": 3453,
    }
    tokenizer = Tokenizer.load(VOCABULARY)
    for sequence_length in (32, 128):
        for split, rows in task.encode(tokenizer, sequence_length).items():
            at_words = rows.targets["labels"] >= 0
            assert int(at_words.sum()) == sum(len(each.words) for each in task.examples[split])
            outputs = {"logits": F.one_hot(rows.targets["labels"].clamp(min=0), 9)}
            assert set(task.family.score(rows, outputs).values()) == {1.0}
    pos = read_tagging_task(DATA / "conll2003", tag_column=2)
    assert (len(pos.family.labels), pos.family.metrics) == (45, ("accuracy",))
    chunks = read_tagging_task(DATA / "conll2003", tag_column=3)
    assert {"B-NP", "I-VP"} < set(chunks.family.labels)


# --- answers ---


def test_the_loss_is_the_mean_over_scored_words(toy_tokenizer):
    task = draw_task(random.Random(0), 4, 20)
    rows = task.encode(toy_tokenizer, 16)["train"]
    batch = make_batch(rows, torch.arange(len(rows)), CPU)
    shape = (*batch.input_ids.shape, len(task.family.labels))
    logits = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    total, count = 0.0, 0
    for row, labels in zip(logits.log_softmax(dim=-1), batch.targets["labels"], strict=True):
        for log_probs, label in zip(row, labels.tolist(), strict=True):
            if label >= 0:
                total, count = total - log_probs[label].item(), count + 1
    assert count == sum(len(sentence.words) for sentence in task.examples["train"])
    assert task.family.loss({"logits": logits}, batch).item() == pytest.approx(total / count)


def test_predictions_are_lines_that_conlleval_reads(toy_tokenizer, tmp_path):
    sentences = [("New York", "B-LOC"), ("\u2028", "O"), ("Bill", "B-PER")], [("a", "O")]
    task = toy_task(*sentences)
    rows = task.encode(toy_tokenizer, 16)["dev"]
    task.family.write_predictions(
        tmp_path, "dev", rows, say(task, rows, ["B-LOC", "O", "O", "B-PER"])
    )
    assert (tmp_path / "predictions.conll").read_text() == (
        "New_York B-LOC B-LOC\n_ O O\nBill B-PER O\n\na O B-PER\n\n"
    )
    assert (tmp_path / "types.tsv").read_text() == (
        "type\tprecision\trecall\tf1\tgold\tpredicted\tcorrect\n"
        "LOC\t1.000000\t1.000000\t1.000000\t1\t1\t1\n"
        "PER\t0.000000\t0.000000\t0.000000\t1\t1\t0\n"
    )
    plain = toy_task([("a\ud800", "DT"), ("boat", "NN")])
    plain.examples["test"] = plain.examples["dev"]
    rows = plain.encode(toy_tokenizer, 16)["test"]
    plain.family.write_predictions(tmp_path / "..", "test", rows, say(plain, rows, ["DT", "DT"]))
    assert (tmp_path / "../test_predictions.conll").read_text() == "a? DT DT\nboat NN DT\n\n"
    assert not (tmp_path / "../test_types.tsv").exists()


# --- the network ---
