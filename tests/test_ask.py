"""A model asked about a text: detect and fill, beside transformers on the exported folder."""

import io
import json
import math
import sys

import pytest
import torch
from commands import refuse_command, succeed
from refusals import refuse

from electra.inference.ask import detect, fill, load_asked
from electra.inference.embed import embed
from electra.inference.figure_2 import draw_picture

TEXTS = ["the cat sat on a tree .", "", "[MASK] ran", "a cat sat on the unhesitatingly red mat."]


def test_words_have_the_probabilities_of_their_pieces(run, exported):
    """Of a run and of an export; transformers' discriminator has the same ones."""
    transformers = pytest.importorskip("transformers")
    theirs = transformers.ElectraForPreTraining.from_pretrained(exported).eval()
    for folder in (run, exported):
        network = load_asked(folder, "replaced")
        tokenizer = network.tokenizer
        for text, words in zip(TEXTS, detect(network, TEXTS), strict=True):
            ids = [tokenizer.cls_id, *tokenizer.encode(text), tokenizer.sep_id]
            with torch.no_grad():
                probs = theirs(torch.tensor([ids])).logits[0].sigmoid()[1:-1]
            expected = []
            for token_id, prob in zip(ids[1:-1], probs.tolist(), strict=True):
                before = [] if tokenizer.starts_word[token_id] else [expected.pop()]
                expected.append(max(prob, *before, 0))
            assert [word.prob_replaced for word in words] == pytest.approx(expected, abs=1e-5)
            assert [text[word.start : word.end] for word in words] == [word.text for word in words]
    assert [word.text for word in words][-4:] == ["unhesitatingly", "red", "mat", "."]


def test_a_long_text_is_judged_in_pieces_that_begin_at_words(run):
    network = load_asked(run, "replaced")
    text = "the unhesitatingly red cat sat on a mat . " * 20
    (words,) = detect(network, [text])
    assert " ".join(word.text for word in words) == text.strip()
    assert all(0 < word.prob_replaced < 1 for word in words)
    seen = []
    detect(network, [text, "a cat"], lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] > 1


def test_gaps_are_filled_as_by_transformers(run, exported):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.ElectraForMaskedLM.from_pretrained(exported / "generator").eval()
    text = "[MASK] cat sat [MASK]."
    for folder in (run, exported, exported / "generator"):
        network = load_asked(folder, "tokens")
        (gaps,) = fill(network, [text], top=3)
        tokenizer = network.tokenizer
        middle, end = tokenizer.encode("cat sat"), tokenizer.encode(".")
        ids = [tokenizer.cls_id, tokenizer.mask_id, *middle, tokenizer.mask_id, *end]
        with torch.no_grad():
            probs = theirs(torch.tensor([[*ids, tokenizer.sep_id]])).logits[0].softmax(dim=-1)
        for gap, place in zip(gaps, (1, 2 + len(middle)), strict=True):
            best = probs[place].topk(3)
            assert [each.token for each in gap] == tokenizer.tokens(best.indices.tolist())
            assert [each.prob for each in gap] == pytest.approx(best.values.tolist(), abs=1e-5)


def test_folders_without_such_a_network_are_refused(exported, start, tmp_path):
    for folder, predicts, line in (
        (exported / "generator", "replaced", "has no discriminator"),
        (start, "tokens", "has no generator"),
        (tmp_path, "replaced", f"{tmp_path} is neither a run"),
    ):
        refuse(line, load_asked, folder, predicts)


@pytest.mark.parametrize(
    ("texts", "top", "line"),
    [
        (["no gap"], 5, "the text has no [MASK]"),
        (["[MASK]", "no gap"], 5, "text 2 has no [MASK]"),
        (["[MASK] " * 1000], 5, "the text has 1,000 tokens; the model's rows hold"),
        (["[MASK]"], 0, "top must be >= 1"),
    ],
)
def test_texts_that_cannot_be_filled_are_refused(run, texts, top, line):
    refuse(line, lambda: fill(load_asked(run, "tokens"), texts, top))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_answer_that_is_no_number_is_refused(run, value):
    """JSON has no NaN. Weights that are damaged are refused where they are read."""
    discriminator, generator = load_asked(run, "replaced"), load_asked(run, "tokens")
    for network in (discriminator, generator):
        with torch.no_grad():
            network.encoder.embeddings.tokens.weight.fill_(value)
    for act in (
        lambda: detect(discriminator, ["a cat"]),
        lambda: fill(generator, ["a [MASK]"]),
        lambda: embed(discriminator, ["a cat"]),
        lambda: draw_picture(generator, [discriminator], "a cat"),
    ):
        refuse("the model's answer is not a number", act)


def test_both_verbs_print_text_or_json(run, tmp_path, capsys, monkeypatch):
    printed = succeed(capsys, "detect", run, "the cat sat", "--threshold", "0").out
    assert printed.startswith("[the ")
    assert "least trusted: " in printed
    path = tmp_path / "texts.txt"
    path.write_text("the cat\n\na mat\n")
    printed = succeed(capsys, "detect", run, "--input", path, "--json").out
    answers = [json.loads(line) for line in printed.splitlines()]
    assert [answer["text"] for answer in answers] == ["the cat", "", "a mat"]
    assert [word["text"] for word in answers[0]["words"]] == ["the", "cat"]
    assert answers[1]["words"] == []
    succeed(capsys, "detect", run, "--input", path)
    path.write_text("\n\nthe [MASK]\n\n\n")
    printed = succeed(capsys, "fill", run, "--input", path, "--json").out
    assert [len(json.loads(line)["gaps"]) for line in printed.splitlines()] == [0, 0, 1, 0, 0]
    assert len(succeed(capsys, "fill", run, "the [MASK] sat", "--top", "2").out.splitlines()) == 4
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"[MASK] sat\n")))
    printed = succeed(capsys, "fill", run, "--input", "-", "--top", "1", "--json").out
    (gap,) = json.loads(printed)["gaps"]
    assert len(gap) == 1
    for table in ("a.tsv", "a.csv", "a.jsonl"):  # as in embed and predict, and not their lines
        path = tmp_path / table
        content = "label,text\nx,the [MASK]\nx,a [MASK]\n".replace(
            ",", "\t" if "tsv" in table else ","
        )
        path.write_text(
            '{"text": "the [MASK]"}\n{"text": "a [MASK]"}\n' if "json" in table else content
        )
        for verb in ("detect", "fill"):
            printed = succeed(capsys, verb, run, "--input", path, "--json").out
            texts = [json.loads(line)["text"] for line in printed.splitlines()]
            assert texts == ["the [MASK]", "a [MASK]"]
    for words in ([], ["x", "--input", str(path)]):
        refuse_command("give either a text or --input FILE", capsys, "detect", run, *words)
