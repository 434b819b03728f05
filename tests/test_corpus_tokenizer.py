"""The tokenizer: deterministic training, one meaning everywhere, hostile text."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
from refusals import refuse
from tasks import write_files

from electra.files import write_json
from electra.tokenizing.config import TokenizerConfig
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
    chars = [token for token in tokens if len(token) == 1]
    assert tokens[5 : 5 + len(chars)] == sorted(chars)
    assert tokenizer.vocab_size == len(tokens) == 600
    assert "," in chars  # which never continues a word, so no entry is spent on it
    assert "##," not in tokens
    assert [*tokenizer.starts_word] == [not token.startswith("##") for token in tokens]


def test_noise_does_not_eat_the_vocabulary():
    noise = [f"w{chr(code)}d" for code in range(0x4000, 0x4800)]
    trained = Tokenizer.train([*corpus(), *noise], TokenizerConfig(vocab_size=200))
    assert trained.vocab_size == 200
    assert sum(len(token.removeprefix("##")) == 1 for token in trained.tokens_by_id) <= 100
    rare = [*corpus(size=5000), "one \u0416 alone"]
    tokens = Tokenizer.train(rare, TokenizerConfig(vocab_size=200)).tokens_by_id
    assert "\u0436" not in tokens


def test_a_small_corpus_gives_what_it_has():
    trained = Tokenizer.train(["a b ab ab"], TokenizerConfig(vocab_size=64))
    assert trained.tokens_by_id == (*SPECIAL, "a", "b", "##a", "##b", "ab")


def test_hostile_training_text():
    texts = ["half \ud800 pair", "nul \x00", "\ufeff", "x" * 300_000, *corpus()]
    assert Tokenizer.train(texts, TokenizerConfig(vocab_size=100)).vocab_size == 100


def test_round_trips_keep_the_digest(tokenizer, tmp_path):
    folder = tmp_path / "t"
    tokenizer.save(folder)
    vocabulary = (folder / "vocab.txt").read_bytes()
    (tmp_path / "crlf.txt").write_bytes(vocabulary.replace(b"\n", b"\r\n"))
    paths = (folder, folder / "tokenizer.json", folder / "vocab.txt", tmp_path / "crlf.txt")
    for loaded in map(Tokenizer.load, paths):
        assert loaded.digest == tokenizer.digest
        assert loaded.encode_batch(HOSTILE) == tokenizer.encode_batch(HOSTILE)
    cased = Tokenizer.load(folder / "vocab.txt", lowercase=False)
    assert cased.digest != tokenizer.digest
    plain = write_files(tmp_path / "plain", {"vocab.txt": vocabulary})
    with pytest.warns(UserWarning, match="assuming do_lower_case=true"):
        assert Tokenizer.load(plain).digest == tokenizer.digest


def test_decode_shows_words_and_special_tokens(tokenizer):
    ids = tokenizer.encode("hello world")
    assert tokenizer.decode([tokenizer.cls_id, *ids]) == "[CLS] hello world"
    assert tokenizer.decode(np.array(ids)) == "hello world"
    assert tokenizer.encode("hello \ud800 world") == ids  # half a surrogate pair
    assert tokenizer.encode("hello \ud83d\ude00") == tokenizer.encode("hello \U0001f600")


@pytest.mark.parametrize("config", [None, {"model_type": "electra", "vocab_size": 600}])
@pytest.mark.parametrize(
    ("lowercase", "strip_accents"), [(True, None), (True, False), (False, None)]
)
def test_transformers_reads_the_folder_alike(tokenizer, tmp_path, config, lowercase, strip_accents):
    transformers = pytest.importorskip("transformers", minversion="5")
    ours = Tokenizer(tokenizer.tokens_by_id, lowercase=lowercase, strip_accents=strip_accents)
    ours.save(tmp_path / "t")
    if config:
        write_json(tmp_path / "t/config.json", config)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "t")
    rng = random.Random(0)
    codes = [*range(32, 0x250), *range(0, 0xD7FF, 99)]
    noise = ["".join(map(chr, rng.choices(codes, k=30))) for _ in range(200)]
    for text in HOSTILE + noise:
        assert theirs(text, add_special_tokens=False)["input_ids"] == ours.encode(text), text


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


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a\nb\n", "vocab.txt: the vocabulary lacks the special tokens [PAD]"),
        (b"\xff\xfe\x00", "vocab.txt, line 1: not UTF-8"),
    ],
)
def test_lists_of_words_that_are_refused(tmp_path, content, words):
    (tmp_path / "vocab.txt").write_bytes(content)
    refuse(words, Tokenizer.load, tmp_path / "vocab.txt")


BPE = {"type": "BPE", "vocab": {"a": 0}, "merges": []}
NO_TOKENIZER = "not a tokenizer.json"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": {"type": "Words", "vocab": {}}}, "its model is Words; it must be one of WordP"),
        ({"model": {**BPE, "dropout": 0.1}}, "its ids are drawn at random: the model has dropout"),
        ({"model": BPE, "added_tokens": []}, "has no unknown token; [UNK] must be in it"),
        ({"normalizer": {}}, "not a usable tokenizer: "),
        ({"normalizer": {"type": "Nonsense"}}, "not a usable tokenizer: "),
        ({"added_tokens": [{}]}, NO_TOKENIZER),
        ({"normalizer": {"type": "BertNormalizer", "lowercase": 1}}, "lowercase must be true"),
        ({"added_tokens": [{"id": 5, "content": "[NEW]"}]}, "5 occurs twice"),
        ({"added_tokens": [{"id": 9, "content": "[CLS]"}]}, "the token '[CLS]' has two ids"),
    ],
)
def test_files_that_are_refused(tokenizer, tmp_path, change, words):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({**tokenizer.definition.state, **change}))
    refuse(words, Tokenizer.load, path)


def test_places_that_are_refused(tokenizer, tmp_path):
    refuse("nowhere; expected a run, a folder with", Tokenizer.load, tmp_path / "nowhere")
    refuse("exists already; remove it or choose another", tokenizer.save, tmp_path)
