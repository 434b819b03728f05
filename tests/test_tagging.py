import itertools
import random
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from seqeval.metrics import accuracy_score
from seqeval.metrics.sequence_labeling import get_entities
from seqeval.metrics.sequence_labeling import precision_recall_fscore_support as by_seqeval
from seqeval.scheme import BILOU, IOB1, IOB2, IOBES, Entities
from tasks import read

from electra.tasks.family import Task
from electra.tasks.rows import Rows, make_batch
from electra.tasks.tagging import (
    ENTITY_METRICS,
    ENTITY_TAG,
    Entity,
    TaggedSentence,
    Tagging,
    count_entities,
    cut_word_windows,
    find_entities,
    sum_counts,
    write_tags,
)
from electra.tokenizing.tokenizer import Tokenizer

DATA = Path(__file__).parents[2] / "shared/data"
VOCABULARY = DATA / "vocab/bert-base-uncased.txt"
CPU = torch.device("cpu")


def toy_task(*sentences: list[tuple[str, str]]) -> Task:
    """A task with these sentences in train and dev; it asks for entities if a tag is B-PER."""
    pairs = [zip(*each, strict=True) for each in sentences]
    examples = [TaggedSentence([*words], [*tags]) for words, tags in pairs]
    labels = sorted({tag for each in examples for tag in each.tags})
    metrics = ENTITY_METRICS if "B-PER" in labels else ("accuracy",)
    return Task("toy", Tagging(tuple(labels), metrics), {"train": examples, "dev": examples})


def draw_task(rng: random.Random, num_sentences: int, longest: int) -> Task:
    words = ["boat", "unhesitatingly", "1912", ".", "\x01", "queen's", "Harbour", "Æon"]
    tags = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
    sizes = [rng.randrange(1, longest) for _ in range(num_sentences)]
    return toy_task(*([(rng.choice(words), rng.choice(tags)) for _ in range(n)] for n in sizes))


def say(task: Task, rows: Rows, labels) -> dict[str, torch.Tensor]:
    """Outputs by which each scored word, in the order of the rows, has this label."""
    places = torch.zeros_like(rows.targets["labels"])
    places[rows.targets["labels"] >= 0] = torch.tensor(
        [task.family.labels.index(each) for each in labels]
    )
    return {"logits": F.one_hot(places, len(task.family.labels)).float()}


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
        assert len(windows) == 1 or sum(sizes) > room
        for words, word in ((each.words, word) for each in windows for word in each.scored):
            left, right = context(sizes, word, words)
            others = [each.words for each in windows if word in each.words]
            assert min(left, right) == max(min(context(sizes, word, each)) for each in others)
            # Where the sentence continues, a quarter of a row of it is seen, words being whole.
            assert left >= room // 4 - largest or words.start == 0
            assert right >= room // 4 - largest or words.stop == len(sizes)


def test_a_window_that_shows_no_word_best_is_left_out():
    first, between, last = [1] * 10, [1, 4, 4, 1, 1], [10]
    windows = cut_word_windows([*first, *between, *last], 20)
    # A row of words 10 to 14 stood between these two.
    assert [window.words for window in windows] == [range(14), range(11, 16)]
    assert [window.scored for window in windows] == [set(range(12)), set(range(12, 16))]


def test_rows_are_whole_words_labelled_at_their_first_token(toy_tokenizer):
    task = toy_task([("the", "O"), ("unhesitatingly", "B-PER"), ("\x01", "I-PER"), ("boat", "O")])
    rows = task.encode(toy_tokenizer, 64)["dev"]
    the, adverb, boat = (toy_tokenizer.encode(each) for each in ("the", "unhesitatingly", "boat"))
    ids = [*the, *adverb, toy_tokenizer.unk_id, *boat]
    assert rows.input_ids.tolist() == [[toy_tokenizer.cls_id, *ids, toy_tokenizer.sep_id]]
    o, person, inside = map(task.family.labels.index, ("O", "B-PER", "I-PER"))
    inner = [-1] * (len(adverb) - 1)
    assert inner
    expected = [-1, o, person, *inner, inside, o, *[-1] * len(boat)]
    assert rows.targets["labels"].tolist() == [expected]
    assert torch.equal(rows.first_lengths, rows.lengths)
    assert make_batch(rows, torch.tensor([0]), CPU).token_type_ids is None
    assert rows.num_cut == 0


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
    assert labels == list(itertools.chain(*gold))
    starts = [(toy_tokenizer.encode(word) or [toy_tokenizer.unk_id])[0] for word in words]
    assert rows.input_ids[at_words].tolist() == starts
    guesses = [[rng.choice((tag, "O", "I-PER")) for tag in tags] for tags in gold]
    scores = task.family.score(rows, say(task, rows, itertools.chain(*guesses)))
    theirs = by_seqeval(gold, guesses, average="micro")
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
    task = read("tagging", DATA / "conll2003")
    counts = {split: len(each) for split, each in task.examples.items()}
    assert counts == {"train": 14041, "dev": 3250, "test": 3453}
    tokenizer = Tokenizer.load(VOCABULARY)
    for sequence_length in (32, 128):
        for split, rows in task.encode(tokenizer, sequence_length).items():
            labels = rows.targets["labels"]
            assert int((labels >= 0).sum()) == sum(len(each.words) for each in task.examples[split])
            outputs = {"logits": F.one_hot(labels.clamp(min=0), 9)}
            assert set(task.family.score(rows, outputs).values()) == {1.0}
    pos = read("tagging", DATA / "conll2003", "tagging.tag_column=2")
    assert (len(pos.family.labels), pos.family.metrics) == (45, ("accuracy",))
    chunks = read("tagging", DATA / "conll2003", "tagging.tag_column=3")
    assert {"B-NP", "I-VP"} < set(chunks.family.labels)


@pytest.mark.parametrize(("tag", "expected"), [("FW", 199 / 200), ("I-NEW", 199 / 200)])
def test_a_rare_tag_that_train_lacks_counts_as_wrong(tmp_path, toy_tokenizer, tag, expected):
    """As in conlleval; a note says so."""
    seen = ("B-X", "O") if "-" in tag else ("NN", "DT")
    text = "".join(f"a {each}\n\n" for each in seen * 100)
    (tmp_path / "train.txt").write_text(text)
    (tmp_path / "dev.txt").write_text(text.removesuffix(f"{seen[1]}\n\n") + f"{tag}\n")
    task = read("tagging", tmp_path)
    assert task.notes[0].endswith(f"'{tag}'; words with such tags count as wrong: 1 of 200")
    rows = task.encode(toy_tokenizer, 16)["dev"]
    logits = F.one_hot(rows.targets["labels"].clamp(min=0), len(task.family.labels))
    assert task.family.score(rows, {"logits": logits})["accuracy"] == pytest.approx(expected)


def test_the_loss_is_the_mean_over_scored_words(toy_tokenizer):
    task = draw_task(random.Random(0), 4, 20)
    rows = task.encode(toy_tokenizer, 16)["train"]
    batch = make_batch(rows, torch.arange(len(rows)), CPU)
    labels = batch.targets["labels"]
    shape = (*labels.shape, len(task.family.labels))
    logits = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    pairs = zip(logits.log_softmax(dim=-1)[labels >= 0], labels[labels >= 0], strict=True)
    scored = [log_probs[label].item() for log_probs, label in pairs]
    assert len(scored) == sum(len(sentence.words) for sentence in task.examples["train"])
    loss = task.family.loss({"logits": logits}, batch)
    assert loss.item() == pytest.approx(-sum(scored) / len(scored))


def test_predictions_are_lines_that_conlleval_reads(toy_tokenizer, tmp_path):
    task = toy_task([("New York", "B-LOC"), ("\u2028", "O"), ("Bill", "B-PER")], [("a", "O")])
    rows = task.encode(toy_tokenizer, 16)["dev"]
    said = say(task, rows, ["B-LOC", "O", "O", "B-PER"])
    task.family.write_predictions(tmp_path, "dev", rows, said)
    assert (tmp_path / "predictions.conll").read_text() == (
        "New_York B-LOC B-LOC\n_ O O\nBill B-PER O\n\na O B-PER\n\n"
    )
    assert (tmp_path / "types.tsv").read_text() == (
        "type\tprecision\trecall\tf1\tgold\tpredicted\tcorrect\n"
        "LOC\t1.000000\t1.000000\t1.000000\t1\t1\t1\n"
        "PER\t0.000000\t0.000000\t0.000000\t1\t1\t0\n"
    )
    plain = toy_task([("a\ud800", "DT"), ("boat", "NN")])
    rows = plain.encode(toy_tokenizer, 16)["dev"]
    plain.family.write_predictions(tmp_path, "test", rows, say(plain, rows, ["DT", "DT"]))
    assert (tmp_path / "test_predictions.conll").read_text() == "a? DT DT\nboat NN DT\n\n"
    assert not (tmp_path / "test_types.tsv").exists()


TYPES = ("PER", "LOC", "geo-area")
PREFIXES = {"IOB1": "IB", "IOB2": "BI", "BIOES": "BIES", "BILOU": "BILU", "BMES": "BMES"}
STRICT = {"IOB1": IOB1, "IOB2": IOB2, "BIOES": IOBES, "BILOU": BILOU}


def draw_entities(rng: random.Random, num_words: int) -> list[Entity]:
    """Entities of one to four words, often with no word between them."""
    entities, place = [], rng.choice((0, 0, 1, 2))
    while place < num_words:
        stop = min(num_words, place + rng.choice((1, 1, 2, 3, 4)))
        entities.append(Entity(rng.choice(TYPES), place, stop))
        place = stop + rng.choice((0, 0, 1, 3))
    return entities


def write_in(scheme: str, entities: list[Entity], num_words: int) -> list[str]:
    tags = ["O"] * num_words
    for number, (entity_type, start, stop) in enumerate(entities):
        middle = "I" * (stop - start)
        if scheme == "IOB1":
            before = entities[number - 1] if number else None
            touches = before and (before.type, before.stop) == (entity_type, start)
            prefixes = "B" + middle[1:] if touches else middle
        elif scheme == "IOB2":
            prefixes = "B" + middle[1:]
        else:
            end, single = "LU" if scheme == "BILOU" else "ES"
            middle = middle.replace("I", "M") if scheme == "BMES" else middle
            prefixes = single if stop - start == 1 else "B" + middle[2:] + end
        tags[start:stop] = [f"{prefix}-{entity_type}" for prefix in prefixes]
    return tags


def draw_tags(rng: random.Random, scheme: str) -> list[str]:
    """Tags of the scheme: in half of the cases valid, else valid with noise, or noise alone."""
    num_words = rng.randrange(1, 13)
    every_tag = ["O", *(f"{p}-{t}" for p in PREFIXES[scheme] for t in TYPES)]
    noise = rng.choice((0, 0, 0.2, 1))
    tags = write_in(scheme, draw_entities(rng, num_words), num_words)
    return [rng.choice(every_tag) if rng.random() < noise else tag for tag in tags]


def disturb(rng: random.Random, tags: list[str], scheme: str) -> list[str]:
    others = itertools.cycle(draw_tags(rng, scheme))
    return [other if rng.random() < 0.3 else tag for tag, other in zip(tags, others, strict=False)]


@pytest.mark.parametrize("scheme", PREFIXES)
def test_what_is_written_in_a_scheme_is_found(scheme):
    rng = random.Random(0)
    for _ in range(1000):
        num_words = rng.randrange(1, 13)
        entities = draw_entities(rng, num_words)
        tags = write_in(scheme, entities, num_words)
        assert find_entities(tags) == entities
        assert all(ENTITY_TAG.fullmatch(tag) for tag in tags)
        strict = [tag.replace("M-", "I-") for tag in tags]  # which seqeval does not know
        theirs = Entities([strict], STRICT.get(scheme, IOBES)).entities[0]
        assert [each.to_tuple()[1:] for each in theirs] == [tuple(each) for each in entities]
        if scheme == "IOB2":
            assert write_tags(entities, num_words) == tags


@pytest.mark.parametrize("scheme", ["IOB1", "IOB2", "BIOES"])
def test_entities_are_seqevals_in_valid_and_invalid_sequences(scheme):
    rng = random.Random(1)
    num_invalid = 0
    for _ in range(2000):
        tags = draw_tags(rng, scheme)
        found = find_entities(tags)
        assert [(t, start, stop - 1) for t, start, stop in found] == get_entities(tags)
        num_invalid += write_in(scheme, found, len(tags)) != tags
        assert find_entities(write_tags(found, len(tags))) == found
    assert num_invalid > 500


@pytest.mark.parametrize("scheme", ["IOB1", "IOB2", "BIOES"])
def test_scores_are_seqevals(scheme):
    rng = random.Random(2)
    for _ in range(20):
        gold = [draw_tags(rng, scheme) for _ in range(rng.choice((1, 10, 200)))]
        guessed = [disturb(rng, tags, scheme) for tags in gold]
        counts = count_entities(gold, guessed)
        for average, found in (("micro", [sum_counts(counts.values())]), (None, counts.values())):
            ours = [(each.precision, each.recall, each.f1, each.gold) for each in found]
            theirs = by_seqeval(gold, guessed, average=average, zero_division=0)
            assert np.ravel(ours) == pytest.approx(np.ravel(np.transpose(theirs)))
    nothing = sum_counts([])
    assert (nothing.precision, nothing.recall, nothing.f1) == (0, 0, 0)
