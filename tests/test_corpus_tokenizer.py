"""The tokenizer: deterministic training, one meaning everywhere, hostile text."""

import json
import pickle
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from refusals import refuse

from electra.config import TokenizerConfig
from electra.tokenizing.tokenizer import Tokenizer

BERT_VOCAB = Path(__file__).parents[2] / "shared" / "data" / "vocab" / "bert-base-uncased.txt"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
HOSTILE = [
    *("", "   ", "Hello, World!", "naïve Ångström İstanbul ß ΑΣΣ", "中文字 mixed中文"),
    *("a\x00b\ufeffc\u200bd", "x" * 150, "e\u0301te\u0301", "😀 emoji 👩‍👩‍👧", "don't stop-gap"),
    *("ﬁ ½ ①", "\uff26\uff55 width", "\x0c\x0bA\x85B", "한국어 텍스트", "##ab #a ##"),
    "U.S.A. (1999)",
    *("\u2028line\u2029", "tab\tnbsp\u00a0end", "\ue000\ufffd"),
]


def corpus(seed=0, size=400):
    """Lines full of ties: every word of many occurs equally often."""
    rng = random.Random(seed)
    words = [
        "".join(rng.choices("abcdefghijklmnoprstuvwé", k=rng.randint(2, 9))) for _ in range(size)
    ]
    lines = words * 5
    rng.shuffle(lines)
    return [" ".join(lines[start : start + 8]) + "." for start in range(0, len(lines), 8)]


@pytest.fixture(scope="module")
def tokenizer():
    english = "the quick brown fox jumps over the lazy dog, and the mask of a hello world"
    return Tokenizer.train([*corpus(), *[english] * 20], TokenizerConfig(vocab_size=600))


def test_ids_are_ordered_as_in_bert(tokenizer):
    tokens = list(tokenizer.tokens_by_id)
    assert tokens[:5] == SPECIAL
    assert tokenizer.special_ids == (0, 1, 2, 3, 4)
    assert tokenizer.pad_id == 0
    assert tokenizer.mask_id == 4
    chars = [token for token in tokens if len(token) == 1]
    assert tokens[5 : 5 + len(chars)] == sorted(chars)
    assert tokenizer.vocab_size == len(tokens) == 600
    # Punctuation never goes on a word, so no entry is spent on it.
    assert "," in chars
    assert "##," not in tokens
    expected = np.array([not token.startswith("##") for token in tokens])
    assert np.array_equal(tokenizer.starts_word, expected)


def test_noise_does_not_eat_the_vocabulary():
    noise = [f"w{chr(code)}d" for code in range(0x4000, 0x4800)]
    trained = Tokenizer.train([*corpus(), *noise], TokenizerConfig(vocab_size=200))
    assert trained.vocab_size == 200
    assert sum(len(token.removeprefix("##")) == 1 for token in trained.tokens_by_id) <= 100
    rare = [*corpus(size=5000), "one \u0416 alone"]
    tokens = Tokenizer.train(rare, TokenizerConfig(vocab_size=200)).tokens_by_id
    assert "\u0436" not in tokens


def test_a_small_corpus_gives_what_it_has_and_an_empty_one_is_refused():
    trained = Tokenizer.train(["a b ab ab"], TokenizerConfig(vocab_size=64))
    assert trained.tokens_by_id == (*SPECIAL, "a", "b", "##a", "##b", "ab")
    for texts in ([], ["", " \n "]):
        refuse("no text to train", Tokenizer.train, texts, TokenizerConfig())


def test_hostile_training_text():
    texts = ["half \ud800 pair", "nul \x00", "\ufeff", "x" * 300_000, *corpus()]
    assert Tokenizer.train(texts, TokenizerConfig(vocab_size=100)).vocab_size == 100


@pytest.mark.parametrize(
    ("lowercase", "strip_accents", "expected"),
    [(True, None, False), (True, False, True), (False, None, True), (False, True, False)],
)
def test_accents_and_casing_travel(tmp_path, lowercase, strip_accents, expected):
    config = TokenizerConfig(vocab_size=100, lowercase=lowercase, strip_accents=strip_accents)
    trained = Tokenizer.train(["Été été ÉTÉ"] * 9, config)
    assert any("é" in token for token in trained.tokens_by_id) is expected
    assert any("E" in token or "É" in token for token in trained.tokens_by_id[5:]) is not lowercase
    trained.save(tmp_path / "t")
    loaded = Tokenizer.load(tmp_path / "t")
    assert (loaded.lowercase, loaded.strip_accents) == (lowercase, trained.strip_accents)
    assert loaded.digest == trained.digest
    assert loaded.encode("Été") == trained.encode("Été")


def test_round_trips_keep_the_digest(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "t")
    for path in (tmp_path / "t", tmp_path / "t/tokenizer.json", tmp_path / "t/vocab.txt"):
        loaded = Tokenizer.load(path)
        assert loaded.digest == tokenizer.digest
        assert loaded.encode_batch(HOSTILE) == tokenizer.encode_batch(HOSTILE)
    assert pickle.loads(pickle.dumps(tokenizer)).digest == tokenizer.digest
    cased = Tokenizer.load(tmp_path / "t/vocab.txt", lowercase=False)
    assert cased.digest != tokenizer.digest
    (tmp_path / "crlf.txt").write_bytes(
        (tmp_path / "t/vocab.txt").read_bytes().replace(b"\n", b"\r\n")
    )
    assert Tokenizer.load(tmp_path / "crlf.txt").digest == tokenizer.digest


def test_half_a_surrogate_pair_does_not_stop_encoding(tokenizer):
    assert tokenizer.encode("hello \ud800 world") == tokenizer.encode("hello world")
    assert tokenizer.encode("hello \ud83d\ude00") == tokenizer.encode("hello \U0001f600")


def test_decode_shows_words_and_special_tokens(tokenizer):
    ids = tokenizer.encode("hello world")
    assert tokenizer.decode([tokenizer.cls_id, *ids]) == "[CLS] hello world"
    assert tokenizer.decode(np.array(ids)) == "hello world"


@pytest.mark.parametrize("config", [None, {"model_type": "electra", "vocab_size": 600}])
@pytest.mark.parametrize(
    ("lowercase", "strip_accents"), [(True, None), (True, False), (False, None)]
)
def test_transformers_reads_the_folder_alike(tokenizer, tmp_path, config, lowercase, strip_accents):
    transformers = pytest.importorskip("transformers", minversion="5")
    ours = Tokenizer(tokenizer.tokens_by_id, lowercase=lowercase, strip_accents=strip_accents)
    ours.save(tmp_path / "t")
    if config:
        (tmp_path / "t/config.json").write_text(json.dumps(config))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "t")
    rng = random.Random(0)
    noise = ["".join(chr(rng.choice([rng.randrange(32, 0x250), rng.randrange(0xD7FF)]))
                     for _ in range(30)) for _ in range(200)]  # fmt: skip
    for text in HOSTILE + noise:
        assert theirs(text, add_special_tokens=False)["input_ids"] == ours.encode(text), text


def test_a_vocab_txt_alone_is_lower_case(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "t")
    (tmp_path / "plain").mkdir()
    shutil.copy(tmp_path / "t/vocab.txt", tmp_path / "plain")
    with pytest.warns(UserWarning, match="assuming do_lower_case=true"):
        assert Tokenizer.load(tmp_path / "plain").digest == tokenizer.digest


@pytest.mark.skipif(not BERT_VOCAB.exists(), reason="needs the shared data")
def test_berts_own_vocabulary(tmp_path):
    bert = Tokenizer.load(BERT_VOCAB)
    assert bert.vocab_size == 30_522
    assert bert.special_ids == (0, 100, 101, 102, 103)
    tokens = bert.tokens(bert.encode("Unaffable [MASK]"))
    assert tokens == ["una", "##ffa", "##ble", "[", "mask", "]"]
    bert.save(tmp_path / "bert")
    assert Tokenizer.load(tmp_path / "bert").digest == bert.digest
    assert (tmp_path / "bert/vocab.txt").read_bytes() == BERT_VOCAB.read_bytes()


def test_refusals(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "t")
    refuse("t exists already; remove it or choose another", lambda: tokenizer.save(tmp_path / "t"))
    refuse("nowhere; expected a run, a folder with", lambda: Tokenizer.load(tmp_path / "nowhere"))
    path = tmp_path / "vocab.txt"
    path.write_text("a\nb\n")
    refuse("vocab.txt: the vocabulary lacks the special tokens [PAD]", lambda: Tokenizer.load(path))
    path.write_bytes(b"\xff\xfe\x00")
    refuse("vocab.txt, line 1: not UTF-8", lambda: Tokenizer.load(path))
    original = json.loads((tmp_path / "t/tokenizer.json").read_text())
    new = {"id": 5, "content": "[NEW]"}
    bpe = {"type": "BPE", "vocab": {"a": 0}, "merges": []}
    path = tmp_path / "tokenizer.json"
    for change, message in (
        ({"model": {"type": "Words", "vocab": {}}}, "its model is Words; it must be one of WordP"),
        ({"model": {**bpe, "dropout": 0.1}}, "its ids are drawn at random: the model has dropout"),
        ({"model": bpe, "added_tokens": []}, "has no unknown token; [UNK] must be in it"),
        ({"normalizer": {}}, "not a tokenizer.json"),
        ({"added_tokens": [{}]}, "not a tokenizer.json"),
        ({"normalizer": {**original["normalizer"], "lowercase": 1}}, "lowercase must be true"),
        ({"added_tokens": [new]}, "5 stands twice"),
        ({"added_tokens": [{"id": 9, "content": "[CLS]"}]}, "the token '[CLS]' has two ids"),
    ):
        path.write_text(json.dumps({**original, **change}))
        refuse(message, Tokenizer.load, path)
    assert {entry.name for entry in tmp_path.iterdir()} == {"t", "vocab.txt", "tokenizer.json"}
