import dataclasses
import gzip
import json
import lzma
import math
import random
from itertools import chain
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from seqeval.metrics import accuracy_score
from seqeval.metrics.sequence_labeling import precision_recall_fscore_support
from transformers import ElectraConfig, ElectraForTokenClassification

from electra.checkpoints.folder import read_model
from electra.checkpoints.names import ELECTRA
from electra.config import FinetuneConfig
from electra.errors import UserError
from electra.finetuning.loop import train_seed
from electra.finetuning.network import run_network
from electra.finetuning.start import Job, encode_task
from electra.model.encoder import Encoder
from electra.model.initialisation import init_weights
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
from electra.training.machine import Machine

DATA = Path(__file__).parents[2] / "shared/data"
VOCABULARY = DATA / "vocab/bert-base-uncased.txt"
CPU = torch.device("cpu")
IOB2 = "The DT O\nqueen NN B-PER\nof IN I-PER\nSpain NN B-LOC\n\nA DT O\nboat NN O\n"


def write(folder: Path, **files: str) -> Path:
    for name, content in files.items():
        stem, _, suffix = name.rpartition("_")
        (folder / f"{stem}.{suffix}").write_text(content, encoding="utf-8")
    return folder


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


# --- files ---


def test_columns_are_read_into_sentences(tmp_path):
    text = f"-DOCSTART- -X- O\n\n{IOB2}-DOCSTART- -X- O\n\n\nEnd NN O"
    task = read_tagging_task(write(tmp_path, train_txt=text, dev_txt=IOB2.replace("\n", "\r\n")))
    first, second, third = task.examples["train"]
    assert first.words == ["The", "queen", "of", "Spain"]
    assert first.tags == ["O", "B-PER", "I-PER", "B-LOC"]
    assert first.lines == [3, 4, 5, 6]
    assert (second.words, third.words, third.lines) == (["A", "boat"], ["End"], [13])
    assert [each.words for each in task.examples["dev"]] == [first.words, second.words]
    assert task.family.labels == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
    assert task.family.metrics == ("f1", "precision", "recall", "accuracy")
    assert (task.epochs, task.columns) == (3, ("1", "last"))
    assert [path.name for path in task.files] == ["train.txt", "dev.txt"]


def test_the_columns_can_be_chosen_and_other_tags_are_labels_as_they_are(tmp_path):
    data = write(tmp_path, train_txt=IOB2, dev_txt=IOB2)
    task = read_tagging_task(data, tag_column=2)
    assert task.family.labels == ("DT", "IN", "NN")
    assert task.family.metrics == ("accuracy",)
    swapped = read_tagging_task(data, word_column=2, tag_column=1)
    assert swapped.examples["dev"][1] == TaggedSentence(["DT", "NN"], ["A", "boat"], [6, 7])


@pytest.mark.parametrize(
    ("split", "name"),
    [("dev", "valid.conll"), ("dev", "validation.tsv"), ("dev", "val.iob"), ("dev", "testa.txt")]
    + [("test", "test.txt"), ("test", "testb.txt")],
)
def test_files_are_found_by_name(tmp_path, split, name):
    write(tmp_path, train_txt=IOB2, **({} if split == "dev" else {"dev_txt": IOB2}))
    (tmp_path / name).write_text(IOB2)
    (tmp_path / "notes.md").write_text("other files are left alone")
    assert len(read_tagging_task(tmp_path).examples[split]) == 2


def test_compressed_files_and_json_lines(tmp_path):
    lines = [
        {"tokens": ["New York", "\u2028"], "tags": ["B-LOC", "O"], "id": 1},
        {"tokens": [], "tags": []},
        {"tokens": ["Bill"], "tags": ["B-PER"]},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "train.jsonl.xz").write_bytes(lzma.compress(text.encode()))
    (tmp_path / "dev.txt.gz").write_bytes(gzip.compress(b"Bill B-PER\n"))
    task = read_tagging_task(tmp_path)
    assert task.examples["train"] == [
        TaggedSentence(["New York", "\u2028"], ["B-LOC", "O"], [1, 1]),
        TaggedSentence(["Bill"], ["B-PER"], [3]),
    ]
    assert task.examples["dev"] == [TaggedSentence(["Bill"], ["B-PER"], [1])]
    assert task.columns == ("tokens", "tags")


def test_white_space_may_be_a_word_and_tabs_part_words_with_spaces(tmp_path):
    write(tmp_path, train_txt="\u00a0 O\n\x85  B-X\n", dev_tsv="New York\tB-X\n# O\tO\n")
    task = read_tagging_task(tmp_path)
    assert task.examples["train"][0].words == ["\u00a0", "\x85"]
    assert task.examples["dev"][0].words == ["New York", "# O"]


def test_conll_us_comments_and_notes_are_no_words(tmp_path):
    text = (
        "# sent_id = 1\n# text = vámonos al mar\n"
        "1-2\tvámonos\t_\n1\tvamos\tVERB\n2\tnos\tPRON\n2.1\tx\t_\n3\t#\tSYM\n\n"
        "# sent_id = 2\n1\tmar\tNOUN\n\n"
    )
    write(tmp_path, train_conll=text, dev_conll=text)
    task = read_tagging_task(tmp_path, word_column=2)
    assert [each.words for each in task.examples["train"]] == [["vamos", "nos", "#"], ["mar"]]
    assert task.family.labels == ("NOUN", "PRON", "SYM", "VERB")


def test_words_in_the_first_column_of_a_commented_file_may_look_like_numbers(tmp_path):
    text = "# id 1\tdomain=en\n2-3 _ O\n# _ B-X\n\n"
    task = read_tagging_task(write(tmp_path, train_txt=text, dev_txt="# O\n".replace("#", "a")))
    assert task.examples["train"] == [TaggedSentence(["2-3", "#"], ["O", "B-X"], [2, 3])]


SCHEMES = {
    "IOB1": "a I-X\nb I-X\nc B-X\nd I-Y\ne O\n",
    "IOB2": "a B-X\nb I-X\nc B-X\nd B-Y\ne O\n",
    "BIOES": "a B-X\nb E-X\nc S-X\nd S-Y\ne O\n",
    "BILOU": "a B-X\nb L-X\nc U-X\nd U-Y\ne O\n",
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_becomes_iob2(tmp_path, scheme):
    task = read_tagging_task(write(tmp_path, train_txt=SCHEMES[scheme], dev_txt=SCHEMES["IOB2"]))
    assert task.examples["train"] == task.examples["dev"]
    assert task.examples["train"][0].tags == ["B-X", "I-X", "B-X", "B-Y", "O"]
    assert task.family.labels == ("O", "B-X", "I-X", "B-Y", "I-Y")


def test_prefixes_alone_are_entities(tmp_path):
    task = read_tagging_task(write(tmp_path, train_txt="a I\nb O\n", dev_txt="a S\n"))
    assert task.family.labels == ("O", "B", "I")
    assert task.examples["dev"][0].tags == ["B"]


REFUSALS = [
    ({"dev_txt": IOB2}, {}, "{0} has no train file; add train with .txt, .conll, .tsv, .iob, .js"),
    (
        {"train_txt": IOB2, "test_txt": IOB2},
        {},
        "{0} has no dev file; add dev with .txt,",
    ),
    (
        {"train_txt": IOB2, "train_jsonl": "{}"},
        {},
        "{0} has several train files: train.jsonl, train.txt; keep one of them there",
    ),
    ({"dev_txt": ""}, {}, "{0}/dev.txt is empty: it must have at least one word"),
    ({"dev_txt": "-DOCSTART- O\n\n"}, {}, "{0}/dev.txt is empty: it must have at least one word"),
    ({"dev_jsonl": '{"tokens": [], "tags": []}'}, {}, "{0}/dev.jsonl is empty: it must have"),
    (
        {"dev_txt": "\nA O\nboat NN O\n"},
        {},
        "{0}/dev.txt line 3: 3 columns; it must have 2, as line 2 has",
    ),
    ({"dev_txt": "A\nboat\n"}, {}, "{0}/dev.txt line 1: one column; a word and its tag are needed"),
    ({"dev_tsv": "\tO\n"}, {}, "{0}/dev.tsv line 1: the word must not be empty"),
    ({"dev_tsv": "A\tO \n"}, {}, "{0}/dev.tsv line 1: the tag 'O ' must be printable, without"),
    ({"dev_tsv": "A\t\n"}, {}, "{0}/dev.tsv line 1: the tag '' must be printable, without spaces"),
    ({}, {"tag_column": 4}, "{0}/train.txt line 1: tag_column must lie in 0 to 3, not 4"),
    ({}, {"word_column": 0}, "{0}/train.txt line 1: word_column must lie in 1 to 3, not 0"),
    (
        {},
        {"word_column": 3},
        "{0}/train.txt line 1: word_column and tag_column must differ; both are column 3 of 3",
    ),
    (
        {"dev_txt": "A O\n\nBill B-PERS\n"},
        {},
        "{0}/dev.txt line 3: train has no tag 'B-PERS'; did you mean 'B-PER'?",
    ),
    (
        {"dev_txt": "A O\nBill PER\n"},
        {},
        "{0}/dev.txt line 2: the tag 'PER' must be O or begin with B-, I-, E-, S-, L- or U-, as",
    ),
    ({"dev_txt": "A B\n"}, {}, "{0}/dev.txt line 1: train has no tag 'B'; choose from"),
    (
        {"dev_txt": "A DT O\nB NNP O\n"},
        {"tag_column": 2},
        "{0}/dev.txt line 2: train has no tag 'NNP'; did you mean 'NN'?",
    ),
    ({"train_txt": "A O\n"}, {}, "{0}/train.txt: every tag is 'O'; two are needed"),
    ({"train_txt": "A X\n", "dev_txt": "A X\n"}, {}, "{0}/train.txt: every tag is 'X'; two are"),
    (
        {"dev_jsonl": '{"tokens": ["a"], "ner_tags": ["O"]}'},
        {},
        "{0}/dev.jsonl: no column 'tags'; did you mean 'ner_tags'?",
    ),
    (
        {"dev_jsonl": '\n{"tokens": ["a", "b"], "tags": ["O"]}'},
        {},
        "{0}/dev.jsonl line 2: 2 tokens and 1 tags; each token must have one tag",
    ),
    (
        {"dev_jsonl": '{"tokens": ["a"], "tags": [0]}'},
        {},
        "{0}/dev.jsonl line 1: 'tags' is [0]; it must be a list of texts",
    ),
]


@pytest.mark.parametrize(("files", "columns", "message"), REFUSALS)
def test_files_that_do_not_fit_are_refused_in_one_line(tmp_path, files, columns, message):
    others = {} if "{0} has no" in message else {"train_txt": IOB2}
    if not any(name.startswith("dev") for name in files) and others:
        others["dev_txt"] = IOB2
    with pytest.raises(UserError) as refusal:
        read_tagging_task(write(tmp_path, **{**others, **files}), **columns)
    assert str(refusal.value).startswith(message.format(tmp_path))
    assert "\n" not in str(refusal.value)


def test_a_file_for_a_folder_is_refused(tmp_path):
    write(tmp_path, train_txt=IOB2)
    with pytest.raises(UserError, match=r"train\.txt is not a folder; give the one with train"):
        read_tagging_task(tmp_path / "train.txt")


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


@pytest.mark.parametrize("lowercase", [True, False])
def test_words_are_cased_and_accented_as_the_tokenizer_does(toy_tokenizer, lowercase):
    letters = [*"Éeécafw", *(f"##{letter}" for letter in "Éeécafw")]
    special = toy_tokenizer.tokens_by_id[:5]
    tokenizer = Tokenizer([*special, *letters], lowercase=lowercase)
    task = toy_task([("Éwé", "O"), ("CAFÉ", "N")])
    tokens = tokenizer.tokens(task.encode(tokenizer, 16)["dev"].input_ids[0].tolist())
    expected = "e ##w ##e c ##a ##f ##e" if lowercase else "É ##w ##é [UNK]"
    assert tokens[1:-1] == expected.split()


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


def test_the_constant_answer_is_trains_commonest_label(toy_tokenizer):
    task = toy_task([("a", "O"), ("boat", "O"), ("queen", "B-PER")], [("the", "O")])
    rows = task.encode(toy_tokenizer, 16)
    constant = task.family.find_constant(rows["train"], rows["dev"])
    assert constant.scores == {"f1": 0, "precision": 0, "recall": 0, "accuracy": 0.75}
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert constant.loss == pytest.approx(entropy)


def test_one_prediction_for_all_is_told(toy_tokenizer):
    task = toy_task([("a", "O"), ("queen", "B-PER")])
    rows = task.encode(toy_tokenizer, 16)["dev"]
    collapse = task.family.describe_collapse(rows, say(task, rows, ["O", "O"]))
    assert collapse == "every dev prediction is 'O'"
    assert task.family.describe_collapse(rows, say(task, rows, ["O", "B-PER"])) is None
    same = toy_task([("a", "O")])
    rows = same.encode(toy_tokenizer, 16)["dev"]
    assert same.family.describe_collapse(rows, say(same, rows, ["O"])) is None


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


@pytest.fixture(scope="module")
def pretrained(start):
    return read_model(start)


def test_the_head_is_that_of_transformers_token_classifier(pretrained):
    task = toy_task([("a", "O"), ("queen", "B-PER"), ("boat", "I-PER")])
    head = task.family.build_head(pretrained.encoder, FinetuneConfig()).eval()
    init_weights(head, 0.1, torch.Generator().manual_seed(1))
    encoder = Encoder(pretrained.encoder).eval()
    encoder.load_state_dict(pretrained.tensors)
    name = "ElectraForTokenClassification"
    config = ELECTRA.write_config(pretrained.encoder, name, pretrained.tokenizer)
    theirs = ElectraForTokenClassification(ElectraConfig(**config, num_labels=3)).eval()
    tensors = ELECTRA.to_theirs(encoder.state_dict(), head.state_dict(), "TokenClassification")
    theirs.load_state_dict(tensors)
    batch = make_batch(task.encode(pretrained.tokenizer, 16)["dev"], torch.tensor([0]), CPU)
    with torch.inference_mode():
        ours = task.family.answer(head, encoder(batch.input_ids, None, None), batch)["logits"]
        torch.testing.assert_close(ours, theirs(batch.input_ids).logits)


@pytest.mark.slow
def test_it_learns_from_sentences_longer_than_a_row(pretrained, toy_text):
    tags = {"old": "B-PER", "sailor": "I-PER", "queen": "B-PER", "boat": "B-ART", "castle": "B-ART"}
    words = toy_text.read_text().split()
    sentences = [words[start : start + 40] for start in range(0, 4800, 40)]
    tagged = [[(word, tags.get(word, "O")) for word in sentence] for sentence in sentences]
    examples = toy_task(*tagged).examples["train"]
    task = dataclasses.replace(
        toy_task(*tagged), examples={"train": examples[:100], "dev": examples[100:]}
    )
    config = FinetuneConfig(
        learning_rate=3e-3,
        layer_lr_decay=0.9,
        batch_size=16,
        epochs=6,
        sequence_length=32,
        precision="float32",
        threads=1,
    )
    rows = encode_task(task, pretrained, config)
    assert len(rows.splits["dev"]) > 2 * len(task.examples["dev"])
    job = Job(pretrained, task, config)
    run = train_seed(job, rows, Machine(), seed=0, progress=lambda record: None)
    assert run.record["scores"]["f1"] > 0.95
    assert not run.record["degenerate"]
    outputs = run_network(run.model, rows.splits["dev"], CPU)
    assert outputs["logits"].shape == (*rows.splits["dev"].input_ids.shape, len(task.family.labels))
