"""electra inspect, and the kinds, extension and declared ids of electra tokenizer, as used."""

import json

import numpy as np
import pytest
from commands import refuse_command, succeed
from languages import TEXTS

from electra.cli import main
from electra.reports.inspection import _quartiles, script_of
from electra.shards.store import open_shards
from electra.tokenizing.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "languages.txt"
    path.write_text("\n\n".join(TEXTS.values()) + "\n\n" + "\n\n".join(TEXTS.values()))
    return path


@pytest.fixture(scope="module")
def shards(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    words = ["--kind", "bpe", "--set", "vocab_size=600"]
    main(["tokenizer", str(corpus), "--out", str(folder / "bpe"), *words])
    words = ["--set", "workers=1", "heldout_prob=0.2"]
    out = ["--tokenizer", str(folder / "bpe"), "--out", str(folder / "shards")]
    main(["prepare", str(corpus), *out, *words])
    return folder / "shards"


def test_shards_of_any_tokenizer_hold_the_text(shards):
    found = open_shards(shards)
    assert found.tokenizer.kind == "BPE"
    texts = []
    for shard in (*found.train, *found.heldout):
        ends = [*shard.documents[1:].tolist(), len(shard.tokens)]
        for start, end in zip(shard.documents.tolist(), ends, strict=True):
            texts.append(found.tokenizer.decode(shard.tokens[start:end].tolist()))
    expected = [" ".join(text.splitlines()) for text in TEXTS.values()] * 2
    assert sorted(texts) == sorted(expected)


def test_inspect_shards(shards, capsys):
    report = json.loads(succeed(capsys, "inspect", shards, "--json").out)
    for name, counts in open_shards(shards).manifest["parts"].items():
        part = report["parts"][name]
        assert part["tokens"] == counts["num_tokens"]
        assert part["documents"] == counts["num_documents"]
        assert part["unknown_share"] == 0
        assert sum(part["scripts"].values()) == pytest.approx(1)
        least, *_, greatest = part["document_lengths"]
        assert 0 < least <= greatest <= part["tokens"]
    assert report["samples"]
    row = report["row"]
    assert row[0] == {"token": "[CLS]", "segment": 0, "masked": False}
    assert row[-1]["token"] == "[SEP]"
    assert 0 < sum(each["masked"] for each in row) < len(row) / 2
    shown = succeed(capsys, "inspect", shards).out
    for words in ("every file matches its sha256", "Hangul", "0: [CLS]"):
        assert words in shown


def test_lengths_are_counted_a_shard_at_a_time():
    assert _quartiles(np.full(10, length) for length in (3, 1, 2)) == [1, 1, 2, 3, 3]


def test_inspect_a_tokenizer(shards, corpus, capsys):
    for folder in (shards.parent / "bpe", shards):
        shown = succeed(capsys, "inspect", folder, "--text", corpus).out
        assert "BPE, 600 tokens, cased, combining marks kept" in shown
        assert "Devanagari" in shown
    printed = succeed(capsys, "inspect", shards.parent / "bpe", "--text", corpus, "--json").out
    report = json.loads(printed)
    assert report["total"]["unknown"] == 0
    refuse_command("name a text by --text", capsys, "inspect", shards.parent / "bpe")


def test_lost_letters_are_said(tmp_path, capsys):
    (tmp_path / "hindi.txt").write_text(TEXTS["Hindi"])
    words = ["tokenizer", str(tmp_path / "hindi.txt"), "--set", "vocab_size=200"]
    said = " ".join(succeed(capsys, *words, "--out", tmp_path / "stripped").err.split())
    assert "of the characters of Devanagari, which are letters there" in said
    printed = succeed(capsys, *words, "strip_accents=false", "--out", tmp_path / "kept").err
    assert "Devanagari" not in printed


def test_the_scripts_that_are_told_have_names(tmp_path, capsys):
    for script, chars in {
        "Latin": "éªʰ\u2102\uff21\U0001d538", "Greek": "µ", "Han": "々", "Katakana": "ｶー",
        "Hangul": "ﾡ", "Old Italic": "𐌀", "Thai": "ก", "digits": "٣", "Tangut": "𗀀",
        "signs": "\u0301\ufe0f\U000e0100\u02bc☎", "Arabic": "\u064b",
    }.items():  # fmt: skip
        assert {char: script_of(char) for char in chars} == dict.fromkeys(chars, script)
    (tmp_path / "signs.txt").write_text("❤️ ☎️ ✔️ ☀️ a cafe\u0301\n" * 50)
    signs, out = tmp_path / "signs.txt", tmp_path / "vocabulary"
    assert "characters of" not in succeed(capsys, "tokenizer", signs, "--out", out).err
    shown = succeed(capsys, "inspect", out, "--text", signs).out
    assert "signs" in shown
    assert "Variation" not in shown


def test_a_vocabulary_is_extended(shards, corpus, tmp_path, capsys):
    old = shards.parent / "bpe"
    words = ["tokenizer", corpus, "--extend", old, "--out"]
    printed = succeed(capsys, *words, tmp_path / "new", "--set", "vocab_size=650").out
    assert "50 tokens added to 600" in " ".join(printed.split())
    assert Tokenizer.load(tmp_path / "new").tokens_by_id[:600] == Tokenizer.load(old).tokens_by_id
    kind = ("--kind", "wordpiece")
    refuse_command("kind is that of the old vocabulary", capsys, *words, tmp_path / "no", *kind)


def test_ids_are_declared_and_prepared(corpus, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "names.txt").write_text("\ufeff" + "\n".join("ACDEFG"))
    named = {"20": map(str, range(20)), "names.txt": "ACDEFG"}
    for ids, names in named.items():
        main(["tokenizer", "--ids", ids, "--out", f"of-{ids}"])
        assert Tokenizer.load(tmp_path / f"of-{ids}").names == tuple(names)
    (tmp_path / "a.jsonl").write_text('[0, 1, 2, 3]\n{"text": [4, 5, 5]}\n[1, 1]\n')
    words = ["prepare", "a.jsonl", "--tokenizer", "of-names.txt", "--out", "shards"]
    main([*words, "--set", "workers=1"])
    found = open_shards(tmp_path / "shards")
    tokens = [index for shard in (*found.train, *found.heldout) for index in shard.tokens.tolist()]
    assert sorted(tokens) == sorted([0, 1, 2, 3, 4, 5, 5, 1, 1])
    printed = succeed(capsys, "inspect", "of-names.txt", "--text", "a.jsonl", "--json").out
    assert json.loads(printed.splitlines()[-1])["total"]["tokens"] == 9
    words = "tokenizer", corpus, "--ids", 20, "--out", "no"
    refuse_command("it takes no text", capsys, *words)


def test_a_vocabulary_of_another_text_is_noted(toy_text, toy_tokenizer, corpus, tmp_path, capsys):
    toy_tokenizer.save(tmp_path / "vocabulary")
    for path, is_foreign in ((toy_text, False), (corpus, True)):
        out = ["--tokenizer", str(tmp_path / "vocabulary"), "--out", str(tmp_path / path.stem)]
        printed = succeed(capsys, "prepare", path, *out, "--set", "workers=1").err
        assert ("of the tokens are unknown" in printed) == is_foreign


def test_a_run_and_its_samples_are_shown(run, tmp_path, capsys):
    main(["inspect", str(run)])
    said = capsys.readouterr().out
    for told in (
        "disc_auc",
        "learning rate",
        "replaced?",
        "samples.json: ",
        "next: electra report",
    ):
        assert told in said
    main(["inspect", str(run), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["tables"][0]["headers"][0] == "run"
    assert found["samples"][0][0].keys() >= {"token", "original", "is_replaced", "prob_replaced"}
    (tmp_path / "nothing").mkdir()
    with pytest.raises(SystemExit):
        main(["inspect", str(tmp_path / "nothing")])
    assert "is not a shards folder" in capsys.readouterr().err
