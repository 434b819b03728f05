"""Vocabularies that are cut down to what a text needs."""

import json

import pytest
import torch
from commands import refuse_command, succeed
from networks import draw, make_sizes
from refusals import refuse

from electra.checkpoints.saved import SavedNetwork
from electra.interop.export import describe, write_plain
from electra.model.encoder import Encoder
from electra.model.heads import GeneratorHead
from electra.tokenizing.config import TokenizerConfig
from electra.tokenizing.formats import Definition, define
from electra.tokenizing.shrink import shrink
from electra.tokenizing.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers")

TEXT = ["The queen painted a boat.", "  seven boats, seven\u2003queens ", "naïve Ünïcode 漢字 ☃"]
OTHER = "an old sailor sold umbrellas before 1912"


def trained(kind, lines):
    least = {} if kind == "unigram" else {"min_frequency": 1}
    config = TokenizerConfig(kind=kind, vocab_size=420, **least)
    return Tokenizer.train([*lines, *TEXT[:2]], config)


def bytes_for_the_unknown(lines):
    """A BPE as Llama's: merges as strings, and bytes for characters that it has not."""
    state = json.loads(json.dumps(trained("bpe", lines).definition.state))
    letters = sorted({char for line in lines for char in line if char != " "} | {"▁"})
    bytes_ = [f"<0x{number:02X}>" for number in range(256)]
    words = ["▁t", "▁th", "▁the", "he", "▁q", "ue", "▁que", "en", "▁queen", "▁a", "ol"]
    merges = ["▁ t", "▁t h", "▁th e", "h e", "▁ q", "u e", "▁q ue", "e n", "▁que en", "▁ a", "o l"]
    names = ["<unk>", "<s>", "</s>", "<pad>", "<mask>", *bytes_, *letters, *words]
    state |= {
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"},
        "decoder": None,
        "added_tokens": [],
        "model": {
            "type": "BPE", "byte_fallback": True, "unk_token": "<unk>", "fuse_unk": True,
            "vocab": {name: place for place, name in enumerate(names)},
            "merges": merges,
        },
    }  # fmt: skip
    return Tokenizer.from_definition(define(state, {}))


@pytest.fixture(params=["wordpiece", "bpe", "unigram", "bytes"])
def old(request, toy_text):
    lines = toy_text.read_text().splitlines()
    return (
        bytes_for_the_unknown(lines) if request.param == "bytes" else trained(request.param, lines)
    )


def test_the_text_has_the_same_tokens_and_others_can_be_written(old, tmp_path):
    found = shrink(old, lambda: TEXT)
    new = found.tokenizer
    assert new.vocab_size == len(found.kept) < old.vocab_size
    assert [new.tokens_by_id[place] for place in range(new.vocab_size)] == [
        old.tokens_by_id[index] for index in found.kept
    ]
    new.save(tmp_path / "new")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "new")
    for line in TEXT:
        ids = old.encode(line)
        assert [found.kept[index] for index in new.encode(line)] == ids
        mine = theirs(line, add_special_tokens=False).input_ids
        assert [found.kept[index] for index in mine] == ids
    assert found.num_tokens == sum(len(old.encode(line)) for line in TEXT)
    assert new.unk_id not in new.encode(OTHER)
    assert len(new.encode(OTHER)) > len(old.encode(OTHER))
    assert Tokenizer.load(tmp_path / "new").digest == new.digest


def test_rare_tokens_are_spelt_in_others(old):
    text = [*TEXT[:1] * 5, OTHER]
    exact, found = shrink(old, lambda: text), shrink(old, lambda: text, 5)
    assert exact.num_more == 0 < found.num_more
    assert found.tokenizer.vocab_size < exact.tokenizer.vocab_size
    assert found.tokenizer.unk_id not in found.tokenizer.encode(OTHER)


def test_the_score_of_an_unknown_character_stays(toy_text):
    """It depends on the least likely piece, which therefore stays (K_UNK_PENALTY)."""
    old = trained("unigram", toy_text.read_text().splitlines())
    state = json.loads(json.dumps(old.definition.state))
    rare = next(piece for piece in state["model"]["vocab"] if "umbrella" in piece[0])
    rare[1] = -60.0
    new = shrink(Tokenizer.from_definition(Definition(state, old.special_tokens)), lambda: TEXT)
    assert rare[0] in new.tokenizer.tokens_by_id


@pytest.mark.parametrize(
    ("text", "words"), [([], "the text is empty"), ([" ", ""], "the text is empty")]
)
def test_a_text_without_tokens_is_refused(toy_tokenizer, text, words):
    refuse(words, shrink, toy_tokenizer, lambda: text)


def test_what_cannot_be_cut_down_is_refused(toy_tokenizer):
    refuse("not WordLevel", shrink, Tokenizer.declare(["a", "b"]), lambda: ["a"])
    readings = iter([["the queen"], ["the"]])
    refuse("tokens at the first reading", shrink, toy_tokenizer, lambda: next(readings))
    # "qux" is unknown, as no token continues "qu" with an x; without "qu" it would be two tokens.
    tokens = [*toy_tokenizer.special_tokens, "q", "qu", "##ux", "a"]
    texts = ["aux qux", "aux"]
    old = Tokenizer(tokens)
    assert old.encode("qux") == [old.unk_id]
    refuse("'aux qux' would be cut in another way", shrink, old, lambda: texts)
    assert shrink(old, lambda: texts, 2).num_more == 1


@pytest.mark.parametrize("body", ["electra", "modernbert", "deberta-v2"])
@torch.inference_mode()
def test_a_model_gives_the_same_answers(body, toy_text, tmp_path, capsys):
    """The states are the same to the bit in transformers, the generator's scores for each token."""
    lines = toy_text.read_text().splitlines()
    old = trained("unigram" if body == "deberta-v2" else "wordpiece", lines)
    (tmp_path / "text.txt").write_text("\n\n".join(TEXT))
    sizes = make_sizes(body, vocab_size=old.vocab_size + 3)
    encoder, head = draw(Encoder(sizes)), draw(GeneratorHead(sizes))
    saved = SavedNetwork("tokens", sizes, (encoder.state_dict(),), head.state_dict())
    (tmp_path / "old").mkdir()
    write_plain(tmp_path / "old", describe(saved, old, 16, "a test"))
    words = "import", tmp_path / "old", "--keep-vocabulary", tmp_path / "text.txt"
    printed = succeed(capsys, *words, "--out", tmp_path / "new")
    place = next(
        each for each in ("new/generator", "new") if (tmp_path / each / "config.json").exists()
    )
    new = Tokenizer.load(tmp_path / place)
    assert f"kept {new.vocab_size:,} of {old.vocab_size:,} tokens" in " ".join(printed.err.split())
    kept = torch.tensor([old.ids[token] for token in new.tokens_by_id])
    ids = torch.tensor([new.encode(TEXT[0])])
    models = [
        transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / each).eval()
        for each in ("old", place)
    ]
    before, after = (
        model(each, output_hidden_states=True)
        for model, each in zip(models, (kept[ids], ids), strict=True)
    )
    assert torch.equal(before.hidden_states[-1], after.hidden_states[-1])
    torch.testing.assert_close(before.logits[..., kept], after.logits[..., : len(kept)])
    refuse_command("--extend and --keep-vocabulary", capsys, *words, "--extend", "x", "--out", "y")
