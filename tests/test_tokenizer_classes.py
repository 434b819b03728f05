# ruff: noqa: RUF001
"""Folders of other programs: the class that they name decides, as in transformers."""

import base64
import json
import lzma
import operator
import os
import random
import signal
import time
import unicodedata
import warnings
from contextlib import suppress
from itertools import islice
from pathlib import Path
from threading import Thread

import pytest
import tokenizers
import transformers
from languages import TEXTS
from refusals import refuse
from tokenizers import models, pre_tokenizers

from electra.files import read_object, write_json
from electra.interop.importing import import_model
from electra.tokenizing import foreign
from electra.tokenizing.config import TokenizerConfig
from electra.tokenizing.formats import SPECIAL_TOKENS
from electra.tokenizing.tokenizer import Tokenizer
from electra.tokenizing.words import LineEncoder

LINES = [line for text in TEXTS.values() for line in text.splitlines()]
ODD = [
    *("  two  spaces ", "tab\tand\nline", "``quoted'' 1,000.", "ﬁ ½ Ａ，Ångström É ΑΣΣ", "x" * 150),
    *("😀 👩‍👩‍👧 emoji", "nul \x00 bell \x07 \u200b", "नमस्ते दुनिया"),
    *("안녕하세요 세계", "don't — U.S.A.", ""),
]


OF_DEBERTA = {
    "pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3, "pad_piece": "[PAD]", "bos_piece": "[CLS]",
    "eos_piece": "[SEP]", "unk_piece": "[UNK]",
}  # fmt: skip


OF_ALBERT = {
    "pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3, "bos_piece": "[CLS]", "eos_piece": "[SEP]",
    "control_symbols": "[MASK]", "user_defined_symbols": "(,)",
}  # fmt: skip


def write_folder(folder, config=None, **settings):
    folder.mkdir(exist_ok=True)
    write_json(folder / "config.json", {"model_type": "bert", **(config or {})})
    if settings:
        write_json(folder / "tokenizer_config.json", settings)
    return folder


@pytest.fixture(scope="module")
def spm(tmp_path_factory):
    """A SentencePiece model of ten languages, with the normalisation that published ones have."""
    trainer = pytest.importorskip("sentencepiece").SentencePieceTrainer
    folder = tmp_path_factory.mktemp("spm")
    (folder / "text.txt").write_text("\n".join(LINES * 3), encoding="utf-8")
    made = {}
    for name, settings in {"plain": {}, "deberta": OF_DEBERTA, "albert": OF_ALBERT}.items():
        trainer.train(
            input=str(folder / "text.txt"), model_prefix=str(folder / name), vocab_size=900,
            hard_vocab_limit=False, character_coverage=1.0, minloglevel=2, **settings,
        )  # fmt: skip
        made[name] = (folder / f"{name}.model").read_bytes()
    return made


ROLES = ("pad", "unk", "cls", "sep", "mask")


def compare(folder, texts=(*LINES, *ODD)):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = Tokenizer.load(folder)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    for text in texts:
        expected = theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.encode(text) == expected, (text, ours.tokens(ours.encode(text)))
    assert ours.vocab_size == len(theirs)
    for role, number in zip(ROLES, ours.special_ids, strict=True):
        assert number == getattr(theirs, f"{role}_token_id"), role
    return ours


SPM = {
    "xlm-roberta": (
        "XLMRobertaTokenizer",
        "sentencepiece.bpe.model",
        "plain",
        {"pad_token": "<p>"},
    ),
    "albert": ("AlbertTokenizerFast", "spiece.model", "albert", {"keep_accents": True}),
    "deberta": ("DebertaV2Tokenizer", "spm.model", "deberta", {"split_by_punct": True}),
}


@pytest.mark.parametrize("case", SPM)
def test_pieces_have_the_ids_of_the_class(tmp_path, spm, case):
    name, file, model, settings = SPM[case]
    write_folder(tmp_path, {"model_type": "bert"}, tokenizer_class=name, **settings)
    (tmp_path / file).write_bytes(spm[model])
    ours = compare(tmp_path)
    for line in LINES if case == "deberta" else []:
        (content,) = LineEncoder(ours).encode_lines([line])
        assert [*memoryview(content).cast("H")] == ours.encode(line)


def test_what_transformers_leaves_out_of_a_file_is_told(tmp_path, spm):
    """DeBERTa's class of transformers 5 has a normaliser of its own in place of the file's map.

    Its answer is taken, since exported folders are read by it; who names the file has the map.
    """
    folder = write_folder(tmp_path / "hub", {"model_type": "deberta-v2"}, do_lower_case=False)
    write_json(folder / "added_tokens.json", {"[MASK]": 408})
    (folder / "spm.model").write_bytes(spm["deberta"])
    says = (
        rf"not change or cut text as {folder}/spm.model says \(Precompiled\).*name it: --tokenizer"
    )
    with pytest.warns(UserWarning, match=says):
        ours = Tokenizer.load(folder)
    compare(folder)
    assert ours.special_ids == (0, 3, 1, 2, ours.vocab_size - 1)
    with pytest.warns(UserWarning, match="special tokens added"):
        own = Tokenizer.load(folder / "spm.model")
    assert ours.unk_id in ours.encode("\uff0c")
    assert own.unk_id not in own.encode("\uff0c")
    # A class of BERT takes do_lower_case for granted, whatever the tokenizer.json says.
    cased = Tokenizer.train(LINES, TokenizerConfig(vocab_size=900, lowercase=False))
    cased.save(tmp_path / "t")
    (tmp_path / "t" / "electra.json").unlink()
    write_json(tmp_path / "t/tokenizer_config.json", {"tokenizer_class": "BertTokenizer"})
    with pytest.warns(UserWarning, match=r"tokenizer.json says \(case\)"):
        assert Tokenizer.load(tmp_path / "t").lowercase
    assert not Tokenizer.load(tmp_path / "t/tokenizer.json").lowercase
    # Nor does it cut numbers as the file says.
    content = read_object(tmp_path / "t/tokenizer.json")
    digits = {"type": "Digits", "individual_digits": True}
    rules = {"type": "Sequence", "pretokenizers": [content["pre_tokenizer"], digits]}
    write_json(tmp_path / "t/tokenizer.json", {**content, "pre_tokenizer": rules})
    with pytest.warns(UserWarning, match=r"tokenizer.json says \(Digits, case\)"):
        Tokenizer.load(tmp_path / "t")
    rules["type"] = 7
    write_json(tmp_path / "t/tokenizer.json", {**content, "normalizer": rules})
    refuse("tokenizer.json: its normalizer has the type 7", Tokenizer.load, tmp_path / "t")


CORPUS = Path(__file__).parents[2] / "shared/data/corpus"
READERS = {"English": "wikipedia.txt.xz", "Korean": "nsmc-reviews.txt.xz"}
RANGES = {
    "emoji": "\u200d\ufe0f👩🏽🇰🇷abc" + "".join(map(chr, range(0x1F600, 0x1F650))),
    "control": "".join(map(chr, [*range(32), *range(127, 161)])),
    "formats": "\u200b\u200e\u2028\u202e\u3000\ufeffabc", "wide": "，。！？（）ＡＢｃ１２ﬁﬂ½①…",
}  # fmt: skip


def read_lines(kind, number, rng):
    """Real text if the machine has some; else words at random."""
    lines = []
    if kind in READERS and (CORPUS / READERS[kind]).is_file():
        with lzma.open(CORPUS / READERS[kind], "rt", encoding="utf-8") as file:
            lines = [line.strip()[:400] for line in islice(file, 3 * number) if line.strip()]
    chars = RANGES.get(kind) or TEXTS[kind].replace("\n", "")
    while len(lines) < number:
        words = ("".join(rng.choices(chars, k=rng.randint(1, 8))) for _ in range(rng.randint(1, 9)))
        lines.append(" ".join(words))
    return lines[:number]


@pytest.mark.slow
def test_ten_thousand_lines_have_the_tokens_of_deberta(tmp_path):
    """Of the class in transformers; by the file's own rules, of sentencepiece.

    So Microsoft's code and the slow class of transformers 4 encode. transformers 5 has one class.
    """
    sentencepiece, rng = pytest.importorskip("sentencepiece"), random.Random(0)
    kinds = (*READERS, "Russian", "Chinese", *RANGES)
    lines = [line for kind in kinds for line in read_lines(kind, 1250, rng)]
    folder, path = write_folder(tmp_path / "hub", {"model_type": "deberta-v2"}), tmp_path / "t.txt"
    path.write_text("\n".join(" ".join(line.split()) for line in lines), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(path), model_prefix=str(folder / "spm"), vocab_size=8000, minloglevel=2,
        **OF_DEBERTA,
    )  # fmt: skip
    with pytest.warns(UserWarning, match="does not change or cut text as"):
        Tokenizer.load(folder)
    ours = compare(folder, lines)
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path / "fast")
    assert compare(tmp_path / "fast", lines[::10]).digest == ours.digest
    with pytest.warns(UserWarning, match="special tokens added"):
        own = Tokenizer.load(folder / "spm.model")
    assert own.special_ids == ours.special_ids
    theirs = sentencepiece.SentencePieceProcessor(str(folder / "spm.model"))
    expected, found = theirs.encode(lines), own.encode_batch(lines)
    ties = [pair for pair in zip(expected, found, strict=True) if pair[0] != pair[1]]
    assert len(ties) < 10
    for pair in ties:  # equally likely, or jamo that the library's map does not join
        scores = [sum(map(theirs.get_score, ids)) for ids in pair]
        texts = ["".join(map(theirs.id_to_piece, ids)) for ids in pair]
        assert texts[0] != texts[1] or scores[0] == pytest.approx(scores[1], abs=1e-4), pair
        assert len({unicodedata.normalize("NFC", text) for text in texts}) == 1, texts
    assert sum(map(operator.ne, found, ours.encode_batch(lines))) > 1000
    own.save(tmp_path / "own")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "own")
    assert again(lines, add_special_tokens=False)["input_ids"] == found


WORDS = [*SPECIAL_TOKENS, "été", "ete", "Ete", "東", "##京", "東京", "a"]
UNCASED, CASED = {"do_lower_case": True}, {"do_lower_case": False}
ADDED = {
    "12": {"content": "ENTE", "normalized": True},
    "0": {"content": "[PAD]", "special": True},
    "13": {"content": "東京 東", "normalized": False, "lstrip": True},
}
BERT = {
    "ideographs": ("BertTokenizer", {**CASED, "tokenize_chinese_chars": False}, {}),
    "other names": (
        "ElectraTokenizerFast",
        {**CASED, "cls_token": "<s>", "mask_token": "<m>"},
        {"added_tokens.json": {"<s>": 12, "<m>": 13}},
    ),
    "map of special tokens": (
        "DistilBertTokenizer",
        {**UNCASED, "strip_accents": False},
        {
            "special_tokens_map.json": {"mask_token": {"content": "[MASK]"}},
            "added_tokens.json": {"ente ": 13, "Ete ente": 12},
        },
    ),
    "added tokens": ("BertTokenizer", {**UNCASED, "added_tokens_decoder": ADDED}, {}),
}


@pytest.mark.parametrize("case", BERT)
def test_bert_folders_are_read_with_their_settings(tmp_path, case):
    name, settings, files = BERT[case]
    write_folder(tmp_path, tokenizer_class=name, **settings)
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    for file, content in files.items():
        write_json(tmp_path / file, content)
    texts = [*ODD, "Été ÉTÉ ete Ete", "東京 東京a 東 京", "an Ete ente a ENTE ente. x東京 東"]
    ours = compare(tmp_path, texts)
    transformers.AutoTokenizer.from_pretrained(tmp_path).save_pretrained(tmp_path)
    assert compare(tmp_path, texts).encode_batch(texts) == ours.encode_batch(texts)


def test_vocab_json_and_merges(tmp_path):
    vocab = {char: index for index, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges = [("e", "r"), ("Ġ", "a"), ("#", "#"), ("a", "b"), ("Ġ", ".")]
    for token in (*map("".join, merges), "<s>", "<pad>", "</s>", "<unk>", "<mask>"):
        vocab[token] = len(vocab)
    write_folder(tmp_path, tokenizer_class="RobertaTokenizer", add_prefix_space=True)
    write_json(tmp_path / "vocab.json", vocab)
    lines = ["#version: 0.2", *map(" ".join, merges)]
    (tmp_path / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    compare(tmp_path, [*LINES, *ODD, "aber ## ab a."])


@pytest.mark.parametrize(
    ("settings", "config", "message"),
    [
        ({"tokenizer_class": "KoBertTokenizer"}, {}, "it has no class KoBertTokenizer, and the f"),
        ({"tokenizer_class": "T5TokenizerFast"}, {}, "neither tokenizer.json nor spiece.model of"),
        ({"tokenizer_class": "ElectraTokenizer"}, {}, "neither tokenizer.json nor vocab.txt of Be"),
        (
            {"tokenizer_class": "RobertaTokenizer", "do_lower_case": "no"},
            {},
            "tokenizer_config.json: do_lower_case must be true or false, not 'no'",
        ),
        ({"tokenizer_class": "a\ud800"}, {}, "tokenizer_class must be whole characters"),
        ({"added_tokens_decoder": {"7000": {"content": "new"}}}, {}, "name that tokenizer_class"),
    ],
)
@pytest.mark.filterwarnings("ignore:special tokens added")
def test_folders_that_are_refused(tmp_path, spm, settings, config, message):
    write_folder(tmp_path, config, **settings)
    (tmp_path / "a.model").write_bytes(spm["plain"])
    refuse(message, Tokenizer.load, tmp_path)


def test_an_import_has_the_ids_of_the_class(tmp_path, spm, monkeypatch):
    """Those of a process of its own, which conftest.py saves the other tests."""
    monkeypatch.setattr(foreign, "_run_alone", foreign._run_alone.__wrapped__)
    folder = write_folder(tmp_path / "theirs", tokenizer_class="XLMRobertaTokenizer")
    (folder / "sentencepiece.bpe.model").write_bytes(spm["plain"])
    ours = compare(folder)
    config = transformers.BertConfig(
        vocab_size=ours.vocab_size, hidden_size=8, num_hidden_layers=1, num_attention_heads=1,
        intermediate_size=8, max_position_embeddings=16,
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained(folder)
    import_model(folder, tmp_path / "ours")
    imported = Tokenizer.load(tmp_path / "ours")
    assert imported.encode_batch(LINES) == ours.encode_batch(LINES)
    assert (imported.pad_id, imported.mask_id) == (1, ours.vocab_size - 1)


def test_our_own_folders_and_files_need_no_transformers(tmp_path, monkeypatch):
    own, other = tmp_path / "own", tmp_path / "other"
    tokenizer = Tokenizer.train(LINES, TokenizerConfig(kind="bpe", vocab_size=900))
    for folder in (own, other):
        tokenizer.save(folder)
    (other / "electra.json").unlink()
    digests = [Tokenizer.load(path).digest for path in (own, other)]
    monkeypatch.setattr(foreign, "find_spec", lambda name: None)
    assert [Tokenizer.load(own).digest] * 2 == digests == [tokenizer.digest] * 2
    assert Tokenizer.load(other / "tokenizer.json").vocab_size == tokenizer.vocab_size
    refuse("which transformers reads: pip install 'electra[hf]'", Tokenizer.load, other)


@pytest.mark.filterwarnings("ignore:special tokens added")
def test_what_transformers_cannot_read_is_read_as_it_is(tmp_path):
    """A tokenizer.json of BPE in a folder of DeBERTa, whose class is Unigram."""
    backend = make_words()
    backend.save(
        str(write_folder(tmp_path, tokenizer_class="DebertaV2Tokenizer") / "tokenizer.json")
    )
    with pytest.warns(UserWarning, match="transformers cannot read the tokenizer: .*alone is read"):
        ours = Tokenizer.load(tmp_path)
    assert ours.encode("a") == [0]


def repeat(stage, part, number):
    return {stage: {"type": "Sequence", f"{stage}s": [part] * number}}


WRONG_MAP = base64.b64encode(b"\x08\0\0\0\xff\xff\xff\xffab").decode()
REPLACE = {"type": "Replace", "content": "aa"}
SPLIT = {"type": "Split", "behavior": "Isolated", "invert": False}
LONG = {"type": "WordPiece", "unk_token": "a", "vocab": {"a": 0}}
DAMAGES = {
    "long words": {"model": {**LONG, "max_input_chars_per_word": 100_000}},
    "an empty list": {"model": {"type": "Unigram", "unk_id": 0, "vocab": []}},
    "no words": {"model": {"type": "WordPiece", "unk_token": "[UNK]", "vocab": {}}},
    "an empty BPE": {"model": {"type": "BPE", "vocab": {}, "merges": []}},
    "unknown beyond": {"model": {"type": "Unigram", "unk_id": 5, "vocab": [["a", 0.0]]}},
    "not a number": {"model": {"type": "Unigram", "unk_id": 0, "vocab": [["a", None]]}},
    "a lacking merge": {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}},
    "no map": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}},
    "a cut map": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "////f2FiYw=="}},
    "a wrong map": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": WRONG_MAP}},
    "a pattern without end": {"pre_tokenizer": {**SPLIT, "pattern": {"Regex": "(a|aa)+$"}}},
    "no pattern": {"pre_tokenizer": {**SPLIT, "pattern": {"Regex": "("}}},
    "pieces of no length": {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
    "no type": {"pre_tokenizer": {}},
    "doubling": repeat("normalizer", {**REPLACE, "pattern": {"String": "a"}}, 64),
    "doubling, inserted": repeat("decoder", {**REPLACE, "pattern": {"Regex": ""}}, 40),
    "bytes of bytes": repeat("normalizer", {"type": "ByteLevel"}, 40),
    "a list": {"normalizer": [1]},
    "a text": {"added_tokens": "abc"},
    "an id that is no number": {"added_tokens": [{"id": "7", "content": "x"}]},
}


def make_words():
    model = models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]")
    return tokenizers.Tokenizer(model)


@pytest.mark.parametrize("name", DAMAGES)
@pytest.mark.filterwarnings("ignore")
def test_hostile_files_are_one_line(tmp_path, capfd, name):
    state = json.loads(make_words().to_str()) | DAMAGES[name]
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    began = time.monotonic()
    refuse(str(tmp_path), Tokenizer.load, tmp_path)
    assert time.monotonic() - began < foreign.TRIAL_SECONDS + 10  # and the start of a process
    assert capfd.readouterr().err == ""


@pytest.mark.filterwarnings("ignore")
def test_a_tokenizer_without_end_is_ended(tmp_path, monkeypatch):
    make_words().save(str(tmp_path / "tokenizer.json"))
    monkeypatch.setattr(foreign, "TRIAL_SECONDS", 0.001)
    refuse("not a usable tokenizer: it takes more than 0.001 seconds", Tokenizer.load, tmp_path)


@pytest.mark.filterwarnings("ignore:special tokens added")
def test_an_interrupt_ends_the_trial_of_a_tokenizer(tmp_path, monkeypatch):
    """At once: its process is ended, whatever the tokenizer does in it."""
    make_words().save(str(tmp_path / "tokenizer.json"))
    endless, began = tmp_path / "endless.py", tmp_path / "began"
    endless.write_text(
        "import os, time, pathlib\n"
        f"pathlib.Path({str(began)!r}).write_text(str(os.getpid()))\n"
        "time.sleep(100)\n"
    )
    monkeypatch.setattr(foreign.alone, "__file__", str(endless))

    def interrupt():
        for _ in range(1000):
            time.sleep(0.01)
            if began.exists() and began.read_text():
                break
        os.kill(os.getpid(), signal.SIGINT)

    thread = Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            Tokenizer.load(tmp_path)
    finally:
        thread.join()
    with suppress(ChildProcessError):  # subprocess has waited for it
        assert os.WTERMSIG(os.waitpid(int(began.read_text()), 0)[1]) == signal.SIGKILL


@pytest.mark.filterwarnings("ignore")
def test_a_text_that_stops_the_library_is_refused(tmp_path):
    backend = make_words()
    pattern = tokenizers.Regex("(b|bb)+$")
    backend.pre_tokenizer = pre_tokenizers.Split(pattern, "isolated")
    backend.save(str(tmp_path / "tokenizer.json"))
    loaded = Tokenizer.load(tmp_path)
    for encode in (loaded.encode, loaded.encode_with_offsets):
        refuse("the tokenizer cannot encode this text", encode, "b" * 99 + "!")


VOCAB = '{"model": {"type": "%s", "vocab": %s}}'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("\n".join([*WORDS, "x", "a"]), "line 14 has the token 'a' of line 12 again"),
        (
            VOCAB % ("Unigram", '[["a", 0], ["b", 0], ["b", 0]]'),
            "piece 3 has the token 'b' of piece 2 again",
        ),
        (VOCAB % ("WordLevel", '{"a": 0, "b": 1, "a": 2}'), "'a' has two values"),
    ],
)
def test_a_doubled_token_is_named(tmp_path, content, message):
    path = tmp_path / ("tokenizer.json" if content[0] == "{" else "vocab.txt")
    path.write_text(content, encoding="utf-8")
    refuse(message, Tokenizer.load, path)
