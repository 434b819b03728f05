"""The question which punctuation mark follows a word, asked of held-out text."""

from types import SimpleNamespace

import numpy as np
import pytest

from electra.quickstart.questions import (
    MIN_PASSAGES,
    MIN_TOKENS,
    WINDOW_WORDS,
    cut_passages,
    join_documents,
    punctuation_question,
)
from electra.quickstart.run import describe_gain, describe_learnt
from electra.reports.runs import Finetuning
from electra.reports.tokens import TokenView
from electra.shards.config import PrepareConfig
from electra.shards.prepare import prepare
from electra.shards.store import open_shards
from electra.tokenizing.config import TokenizerConfig
from electra.tokenizing.tokenizer import Tokenizer


def test_marks_become_tags_of_the_words_before_them():
    tokens = [
        *[",", "un", "##know", "##n", ".", ",", "[UNK]", "(", "chef", ")", "!"],
        *["word"] * (WINDOW_WORDS - 4),
    ]
    (passage,) = cut_passages(tokens)  # the rest of a document is none
    assert passage.words[:5] == ["unknown", "(", "chef", ")", "word"]
    assert passage.marks[:5] == [".", "", "", "!", ""]
    assert len(passage.words) == len(passage.marks) == WINDOW_WORDS
    assert list(cut_passages(["word"] * (WINDOW_WORDS - 1))) == [], "the rest of a document"
    assert len(list(cut_passages(["word"] * (2 * WINDOW_WORDS + 5)))) == 2


def test_short_documents_are_joined():
    long, short = ["a"] * MIN_TOKENS, ["b"] * (MIN_TOKENS // 2)
    joined = list(join_documents([long, short, short, short]))
    assert joined == [long, short + short, short]


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Shards of documents of which each names itself in every word."""
    folder = tmp_path_factory.mktemp("punctuation")
    rng = np.random.default_rng(0)
    lines = []
    for number in range(400):
        name = "".join(chr(97 + digit) for digit in divmod(number, 20))
        words = [name] * 70
        for place in rng.integers(0, 70, 8):
            words[place] = name + ".,"[place % 2]
        words[3] += ";"  # rare: once in 70 words, and in one document of ten
        lines.append(" ".join(words if number % 10 == 0 else [w.strip(";") for w in words]))
    text = folder / "text.txt"
    text.write_text("\n".join(lines), encoding="utf-8")
    tokenizer = Tokenizer.train(lines, TokenizerConfig(vocab_size=1000, min_frequency=1))
    config = PrepareConfig(border="line", heldout_prob=0.5, workers=1)
    prepare([str(text)], tokenizer, folder / "shards", config, lambda *_: None)
    return open_shards(folder / "shards")


def test_train_and_test_are_of_different_documents(shards):
    question = punctuation_question(shards, 60, 80, seed=0)
    assert (len(question.train), len(question.test)) == (60, 80)
    train, test = ({w for each in part for w in each.words} for part in question[:2])
    assert not train & test
    assert {mark for passage in question.train for mark in passage.marks} == {"", ".", ","}


def test_little_text_is_shared_in_proportion_or_not_asked(shards):
    question = punctuation_question(shards, 3000, 1000, seed=0)
    assert len(question.train) > 2 * len(question.test) > 0
    few = shards.heldout[0]
    end = int(few.documents[MIN_PASSAGES // 4])
    few = SimpleNamespace(tokens=few.tokens[:end], documents=few.documents[: MIN_PASSAGES // 4])
    shards = type(shards)(**{**vars(shards), "heldout": (few,)})
    assert punctuation_question(shards, 60, 80, seed=0) is None


def make_finetuning(median, std):
    return Finetuning("run", "task", "f1", False, ("0",), median, std, None, 0, None, 0, "", "", {})


@pytest.mark.parametrize(
    ("pretrained", "scratch", "verdict"),
    [
        ((0.5, 0.01), (0.4, 0.02), "pays"),
        ((0.4, 0.02), (0.5, 0.01), "hurts"),
        ((0.5, 0.06), (0.4, 0.05), "makes no difference"),
        ((0.5, None), (0.4, 0.1), "cannot be judged by one seed"),
    ],
)
def test_the_verdict_is_that_of_the_scores(pretrained, scratch, verdict):
    sentence = describe_gain(make_finetuning(*pretrained), make_finetuning(*scratch))
    assert sentence.startswith(f"On task, pre-training {verdict}")


def test_what_was_learnt_stands_beside_a_unigram_guess():
    frequent = [TokenView("the", "the", False, 0.1)] * 30 + [TokenView("[SEP]", "[SEP]", False, 0)]
    rare = [TokenView("hapax", "hapax", False, 0.2)] * 7
    caught = [TokenView("a", "b", True, 0.3)] * 13
    frequency_of = {"the": 1000, "a": 500, "hapax": 1}
    assert describe_learnt([frequent + rare + caught], frequency_of) == (
        "The generator had replaced 10 of the 10 held-out tokens that the discriminator trusts "
        "least, 3 of the 10 rarest tokens, and 26% of all tokens."
    )
