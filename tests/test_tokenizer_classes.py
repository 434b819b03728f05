# ruff: noqa: RUF001
"""Folders of other programs: the class that they name decides, as in transformers."""

import base64
import json
import lzma
import operator
import random
import unicodedata
import warnings
from itertools import islice
from pathlib import Path

import pytest
import tokenizers
import transformers
from languages import TEXTS
from refusals import refuse
from tokenizers import models, pre_tokenizers

from electra.files import write_json
from electra.interop.importing import import_model
from electra.tokenizing.agreement import SAMPLE, require_agreement
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


def compare(folder, texts=(*LINES, *ODD), roles=ROLES):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = Tokenizer.load(folder)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    for text in texts:
        expected = theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.encode(text) == expected, (text, ours.tokens(ours.encode(text)))
    assert ours.vocab_size == len(theirs) or roles == ()
    for role, number in zip(ROLES, ours.special_ids, strict=True):
        assert role not in roles or number == getattr(theirs, f"{role}_token_id"), role
    return ours


FILES = {"AlbertTokenizer": "spiece.model", "DebertaV2Tokenizer": "spm.model"}
FILES |= dict.fromkeys(("XLMRobertaTokenizer", "CamembertTokenizer"), "sentencepiece.bpe.model")
FILES["PreTrainedTokenizer"] = "tokenizer.model"
SPM = {
    "the issue's": ("XLMRobertaTokenizer", "plain", {}),
    "fast": ("XLMRobertaTokenizerFast", "plain", {}),
    "no prefix": ("XLMRobertaTokenizer", "plain", {"add_prefix_space": False}),
    "other names": ("XLMRobertaTokenizer", "plain", {"mask_token": "[MASK]", "pad_token": "[PAD]"}),
    "french": ("CamembertTokenizer", "plain", {}),
    "albert": ("AlbertTokenizer", "albert", {}),
    "albert, cased": ("AlbertTokenizer", "albert", {"do_lower_case": False, "keep_accents": True}),
    "deberta": ("DebertaV2Tokenizer", "deberta", {}),
    "deberta, lower": ("DebertaV2Tokenizer", "deberta", {"do_lower_case": True}),
    "deberta, punctuation": ("DebertaV2Tokenizer", "deberta", {"split_by_punct": True}),
    "deberta, no prefix": ("DebertaV2Tokenizer", "deberta", {"add_prefix_space": False}),
    "deberta, without its names": ("DebertaV2Tokenizer", "plain", {}),
    "backend": ("PreTrainedTokenizerFast", "plain", {}),
}


@pytest.mark.parametrize("case", SPM)
def test_pieces_have_the_ids_of_the_class(tmp_path, spm, case):
    name, model, settings = SPM[case]
    kind = {"model_type": "deberta-v2" if "deberta" in case else "bert"}
    write_folder(tmp_path, kind, tokenizer_class=name, **settings)
    (tmp_path / FILES[name.removesuffix("Fast")]).write_bytes(spm[model])
    without_unk = ("pad", "cls", "sep", "mask")
    roles = {"deberta, without its names": without_unk, "backend": ()}
    ours = compare(tmp_path, roles=roles.get(case, ROLES))
    if name == "DebertaV2Tokenizer":  # the tokenizer.json that transformers writes says the same
        transformers.AutoTokenizer.from_pretrained(tmp_path).save_pretrained(tmp_path)
        (tmp_path / FILES[name]).unlink()
        again = compare(tmp_path, roles=without_unk)
        assert again.encode_batch(ODD) == ours.encode_batch(ODD)
        assert LineEncoder(ours).encode_lines(LINES) is not None


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
    with pytest.warns(UserWarning, match="leaves out its file's map of characters"):
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
    "settings": (CASED, {}),
    "accents": ({**UNCASED, "strip_accents": False}, {}),
    "ideographs": ({**CASED, "tokenize_chinese_chars": False}, {}),
    "other names": (
        {**CASED, "cls_token": "<s>", "mask_token": "<m>"},
        {"added_tokens.json": {"<s>": 12, "<m>": 13}},
    ),
    "map of special tokens": (
        UNCASED,
        {
            "special_tokens_map.json": {"mask_token": {"content": "[MASK]"}},
            "added_tokens.json": {"ente ": 13, "Ete ente": 12},
        },
    ),
    "added tokens": ({**UNCASED, "added_tokens_decoder": ADDED}, {}),
}


@pytest.mark.parametrize("name", ["BertTokenizer", "ElectraTokenizerFast", "DistilBertTokenizer"])
@pytest.mark.parametrize("case", BERT)
def test_bert_folders_are_read_with_their_settings(tmp_path, name, case):
    settings, files = BERT[case]
    write_folder(tmp_path, tokenizer_class=name, **settings)
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    for file, content in files.items():
        write_json(tmp_path / file, content)
    texts = [*ODD, "Été ÉTÉ ete Ete", "東京 東京a 東 京", "an Ete ente a ENTE ente. x東京 東"]
    compare(tmp_path, texts)
    transformers.AutoTokenizer.from_pretrained(tmp_path).save_pretrained(tmp_path)
    compare(tmp_path, texts)
    # The settings decide over the tokenizer.json, as in transformers.
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config["do_lower_case"] = not config["do_lower_case"]
    write_json(tmp_path / "tokenizer_config.json", config)
    compare(tmp_path, texts)


@pytest.mark.parametrize("begins", [True, False])
def test_vocab_json_and_merges(tmp_path, begins):
    vocab = {char: index for index, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges = [("e", "r"), ("Ġ", "a"), ("#", "#"), ("a", "b"), ("Ġ", ".")]
    for token in (*map("".join, merges), "<s>", "<pad>", "</s>", "<unk>", "<mask>"):
        vocab[token] = len(vocab)
    write_folder(tmp_path, tokenizer_class="RobertaTokenizer", add_prefix_space=begins)
    write_json(tmp_path / "vocab.json", vocab)
    lines = ["#version: 0.2", *map(" ".join, merges)]
    (tmp_path / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    compare(tmp_path, [*LINES, *ODD, "aber ## ab a."])


@pytest.mark.parametrize(
    ("settings", "config", "message"),
    [
        ({"tokenizer_class": "KoBertTokenizer"}, {}, "of the class KoBertTokenizer and no tok"),
        ({"tokenizer_class": "T5TokenizerFast"}, {}, "of the class T5Tokenizer and no tokenizer"),
        ({}, {"tokenizer_class": "BertJapaneseTokenizer"}, "of the class BertJapaneseTokenizer"),
        ({"tokenizer_class": "ElectraTokenizer"}, {}, "nor vocab.txt, which its class ElectraT"),
        ({"tokenizer_class": "RobertaTokenizer"}, {}, "nor vocab.json with merges.txt, which its"),
        ({"do_lower_case": "no"}, {}, "do_lower_case must be true or false, not 'no'"),
        ({"added_tokens_decoder": {"x": 1}}, {}, "not a tokenizer"),
        ({"added_tokens_decoder": {"7000": {"content": "new"}}}, {}, "no token has the id 407"),
    ],
)
def test_folders_that_are_refused(tmp_path, spm, settings, config, message):
    write_folder(tmp_path, config, **settings)
    (tmp_path / "a.model").write_bytes(spm["plain"])
    refuse(message, Tokenizer.load, tmp_path)


def test_added_pieces_stand_behind_the_model(tmp_path, spm):
    """As DeBERTa-v3's: the mask is the only token that its spm.model lacks."""
    write_folder(tmp_path, {"model_type": "deberta-v2"}, do_lower_case=False, vocab_type="spm")
    write_json(tmp_path / "added_tokens.json", {"[MASK]": 408})
    (tmp_path / "spm.model").write_bytes(spm["deberta"])
    ours = compare(tmp_path)
    assert ours.special_ids == (0, 3, 1, 2, ours.vocab_size - 1)
    assert ours.independence == "spaced words"
    for line in LINES:
        (content,) = LineEncoder(ours).encode_lines([line])
        assert [*memoryview(content).cast("H")] == ours.encode(line)


def test_an_import_has_the_ids_of_the_class(tmp_path, spm):
    """They were one too small, and [PAD] stood behind the vocabulary instead of at 1."""
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


def test_an_import_that_transformers_cuts_otherwise_is_refused(tmp_path):
    """transformers takes do_lower_case for granted, whatever the tokenizer.json says."""
    config = TokenizerConfig(vocab_size=900, lowercase=False)
    tokenizer = Tokenizer.train([*LINES, *SAMPLE] * 2, config)
    tokenizer.save(tmp_path / "t")
    write_json(tmp_path / "t/config.json", {"model_type": "bert"})
    require_agreement(tmp_path / "t", tokenizer)
    write_json(tmp_path / "t/tokenizer_config.json", {"tokenizer_class": "BertTokenizer"})
    refuse("BertTokenizer of transformers", lambda: require_agreement(tmp_path / "t", tokenizer))


def repeat(stage, part, number):
    return {stage: {"type": "Sequence", f"{stage}s": [part] * number}}


WRONG_MAP = base64.b64encode(b"\x08\0\0\0\xff\xff\xff\xffab").decode()
REPLACE = {"type": "Replace", "content": "aa"}
SPLIT = {"type": "Split", "behavior": "Isolated", "invert": False}
DAMAGES = {
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
    refuse(str(tmp_path), Tokenizer.load, tmp_path)
    assert capfd.readouterr().err == ""


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
