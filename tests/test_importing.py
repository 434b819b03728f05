"""Other people's weights: transformers' folders and back."""

from pathlib import Path

import pytest
import torch
from commands import succeed
from refusals import refuse
from runs import ignore
from safetensors.torch import load_file, save_file

from electra.assignments import override
from electra.checkpoints.folder import read_pretrained
from electra.files import read_object, write_json
from electra.inference.network import load_encoder
from electra.interop.importing import import_model
from electra.pretraining.init_from import fit_to_start
from electra.pretraining.loop import pretrain
from electra.shards.config import PrepareConfig
from electra.shards.prepare import prepare
from electra.tokenizing.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers")


def draw_weights(model):
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return model.eval()


def draw_ids(*shape):
    return torch.randint(5, 120, shape, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def bert(toy_tokenizer, tmp_path):
    """A folder of BertForMaskedLM with random weights."""
    config = transformers.BertConfig(
        vocab_size=toy_tokenizer.vocab_size, hidden_size=96, num_hidden_layers=2,
        num_attention_heads=12, intermediate_size=128, max_position_embeddings=32,
    )  # fmt: skip
    model = draw_weights(transformers.BertForMaskedLM(config))
    toy_tokenizer.save(tmp_path / "bert")
    model.save_pretrained(tmp_path / "bert")
    return model, tmp_path / "bert"


def as_shards(folder, model):
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="50KB")
    assert (folder / "model.safetensors.index.json").exists()


def as_parts_of_pickles(folder, model):
    (folder / "model.safetensors").unlink()
    tensors, places = [*model.state_dict().items()], {}
    for number in range(2):
        part = dict(tensors[number::2])
        places |= dict.fromkeys(part, f"pytorch_model-{number}.bin")
        torch.save(part, folder / f"pytorch_model-{number}.bin")
    write_json(folder / "pytorch_model.bin.index.json", {"weight_map": places})


def as_pickle(folder, model):
    (folder / "model.safetensors").unlink()
    tensors = model.state_dict().items()
    old = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): each for name, each in tensors}
    torch.save(old, folder / "pytorch_model.bin")


def without_heads(folder, model):
    config = read_object(folder / "config.json")
    assert config.pop("num_attention_heads") == 12  # as BertConfig has it
    write_json(folder / "config.json", config)


@pytest.mark.parametrize("change", [None, as_shards, as_parts_of_pickles, as_pickle, without_heads])
@torch.no_grad()
def test_bert_is_an_encoder_and_a_generator(bert, tmp_path, change):
    model, folder = bert
    (folder / "electra.json").unlink()
    if change:
        change(folder, model)
    found = import_model(folder, tmp_path / "start")
    assert {*found.networks} == {"encoder", "generator"}
    ids = draw_ids(3, 20)
    encoder = transformers.ElectraModel.from_pretrained(tmp_path / "start").eval()
    states = model.bert(ids).last_hidden_state
    assert torch.allclose(encoder(ids).last_hidden_state, states, atol=1e-5)
    masked_lm = transformers.ElectraForMaskedLM.from_pretrained(tmp_path / "start/generator")
    assert torch.allclose(masked_lm.eval()(ids).logits, model(ids).logits, atol=1e-4)


@torch.no_grad()
def test_a_causal_bert_keeps_its_head(bert, tmp_path):
    _, folder = bert
    config = transformers.BertConfig.from_pretrained(folder, is_decoder=True)
    model = draw_weights(transformers.BertLMHeadModel(config))
    model.save_pretrained(folder)
    assert {*import_model(folder, tmp_path / "start").networks} == {"encoder"}
    assert read_pretrained(tmp_path / "start").kept.predicts == "next"
    theirs = transformers.ElectraForCausalLM.from_pretrained(tmp_path / "start").eval()
    ids = draw_ids(3, 20)
    assert torch.allclose(theirs(ids).logits, model(ids).logits, atol=1e-5)


@pytest.fixture
def modernbert(toy_tokenizer, tmp_path):
    """A folder of ModernBertForMaskedLM with random weights, as transformers writes it."""
    config = transformers.ModernBertConfig(
        vocab_size=toy_tokenizer.vocab_size, hidden_size=64, num_hidden_layers=4,
        num_attention_heads=2, intermediate_size=96, max_position_embeddings=64,
        local_attention=8, pad_token_id=toy_tokenizer.pad_id,
    )  # fmt: skip
    model = draw_weights(transformers.ModernBertForMaskedLM(config))
    model.save_pretrained(tmp_path / "modernbert")
    toy_tokenizer.write(tmp_path / "modernbert", has_segments=False)
    return model, tmp_path / "modernbert"


@pytest.mark.parametrize("kind", ["bare", "masked_lm", "pickle"])
@torch.no_grad()
def test_modernbert_is_an_encoder_and_a_generator(modernbert, tmp_path, kind):
    model, folder = modernbert
    if kind == "bare":
        model.model.save_pretrained(folder)
    if kind == "pickle":
        (folder / "model.safetensors").unlink()
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
    found = import_model(folder, tmp_path / "start")
    assert {*found.networks} == ({"encoder"} if kind == "bare" else {"encoder", "generator"})
    assert found.left_over == []  # also decoder.weight of a pickle: it is tied
    assert found.num_tensors > 4 * 5
    ids = draw_ids(3, 20)
    encoder = transformers.AutoModel.from_pretrained(tmp_path / "start").eval()
    assert type(encoder).__name__ == "ModernBertModel"
    assert torch.equal(encoder(ids).last_hidden_state, model.model(ids).last_hidden_state)
    if kind != "bare":
        place = tmp_path / "start/generator"
        masked_lm = transformers.AutoModelForMaskedLM.from_pretrained(place).eval()
        assert torch.equal(masked_lm(ids).logits, model(ids).logits)


@torch.no_grad()
def test_rotary_positions_of_longer_rows_turn_more_slowly(modernbert, tmp_path):
    """The slowest pair turns as far over the longest row as before; the network is theirs."""
    _, folder = modernbert
    old = read_pretrained(folder).kept.sizes
    number = 4 * old.max_position_embeddings
    import_model(folder, tmp_path / "start", positions=number)
    new = read_pretrained(tmp_path / "start").kept.sizes
    assert new.max_position_embeddings == number
    assert new.local_rope_theta == old.local_rope_theta
    width = old.hidden_size // old.num_attention_heads
    slowest = [sizes.global_rope_theta ** -((width - 2) / width) for sizes in (old, new)]
    assert 4 * slowest[1] == pytest.approx(slowest[0])
    encoder = transformers.AutoModel.from_pretrained(tmp_path / "start").eval()
    ids = draw_ids(1, number)
    theirs, ours = encoder(ids).last_hidden_state, load_encoder(tmp_path / "start").encoder(ids)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


def test_modernbert_is_continued_with_a_made_generator(
    modernbert, extended, toy_text, toy_config, tmp_path, capsys
):
    """From the bare encoder, with more tokens; the generator is made of its lower layers."""
    model, folder = modernbert
    tokenizer, path = extended
    model.model.save_pretrained(folder)
    count = len(load_file(folder / "model.safetensors"))
    start = tmp_path / "start"
    printed = succeed(capsys, "import", folder, "--out", start, "--extend", path)
    assert f"{count} of {count} tensors\nnext: electra prepare TEXT --token" in printed.out
    assert "4 new tokens begin as the mean" in printed.err
    assert Tokenizer.load(start).digest == tokenizer.digest
    prepare([str(toy_text)], tokenizer, tmp_path / "shards", PrepareConfig(heldout_prob=0.1), None)
    settings = [f"train.init_from={start}", "train.steps=6", "optimizer.warmup_steps=1"]
    config = override(toy_config, [*settings, "generator.warmup_steps=2"])
    config = fit_to_start(config, read_pretrained(start))
    assert config.model.architecture == "modernbert"
    pretrain(tmp_path / "shards", tmp_path / "run", config, ignore)
    networks = read_pretrained(tmp_path / "run")
    assert networks.kept.sizes.architecture == "modernbert"
    assert networks.generator.sizes.num_hidden_layers == 2
    parts = read_object(tmp_path / "run/manifest.json")["init_from"]["parts"]
    assert (parts["discriminator"], parts["generator"]) == ("init_from", "layers")


def test_a_round_trip_is_identical(exported, tmp_path):
    found = import_model(exported, tmp_path / "found")
    assert found.left_over == []
    import_model(exported, tmp_path / "both", None, exported / "generator")
    for name in ("config.json", "model.safetensors", "vocab.txt", "tokenizer.json"):
        for place in (name, f"generator/{name}"):
            content = (exported / place).read_bytes()
            for out in ("found", "both"):
                assert (tmp_path / out / place).read_bytes() == content
    generator = import_model(exported / "generator", tmp_path / "generator")
    assert {*generator.networks} == {"generator"}


class Harm:
    def __reduce__(self):
        return Path.touch, (Path("harmed"),)


def test_what_is_no_model_is_refused(bert, run, tmp_path, monkeypatch):
    """A pickle that would run code is not run."""
    model, folder = bert
    monkeypatch.chdir(tmp_path)
    for name in ("electra.json", "model.safetensors"):
        (folder / name).unlink()
    out = tmp_path / "out"
    refuse("has no weights: none of", import_model, folder, out)
    torch.save({"bert.embeddings": Harm()}, folder / "pytorch_model.bin")
    refuse("does not hold tensors alone, or is", import_model, folder, out)
    assert not (tmp_path / "harmed").exists()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    del weights["bert.encoder.layer.1.output.dense.bias"], weights["cls.predictions.bias"]
    weights.pop("cls.predictions.decoder.bias", None)
    save_file(weights, folder / "model.safetensors")
    refuse("encoder.layer.1.output.dense.bias", import_model, folder, out)
    refuse("is not a Hugging Face folder: it has no config.json", import_model, tmp_path, out)
    refuse("was written by electra; use it directly", import_model, run, out)
    assert not out.exists()


@pytest.fixture
def extended(toy_tokenizer, tmp_path):
    """The toy tokenizer with whole words, a piece, and one that it cannot divide."""
    more = ["boats", "##sailor", "umbrellaboat", "☃"]
    assert not {*more} & {*toy_tokenizer.tokens_by_id}
    tokenizer = Tokenizer([*toy_tokenizer.tokens_by_id, *more])
    tokenizer.save(tmp_path / "extended")
    return tokenizer, tmp_path / "extended"


def test_new_tokens_are_the_means_of_their_pieces(bert, extended, toy_tokenizer, tmp_path):
    _, folder = bert
    tokenizer, path = extended
    import_model(folder, tmp_path / "old")
    found = import_model(folder, tmp_path / "new", extend=path)
    assert found.num_new == 4
    pieces = {word: toy_tokenizer.encode(word) for word in ("boats", "umbrellaboat", "☃")}
    assert pieces["☃"] == [toy_tokenizer.unk_id]
    # Inside a word the pieces are those that follow a first letter.
    words = (toy_tokenizer.encode(f"{letter}sailor") for letter in "abcdeqy")
    inside = next(ids[1:] for ids in words if len(toy_tokenizer.tokens(ids)[0]) == 1)
    assert toy_tokenizer.unk_id not in inside
    pieces["##sailor"] = inside
    assert {sizes.vocab_size for sizes in found.networks.values()} == {tokenizer.vocab_size}
    assert Tokenizer.load(tmp_path / "new").digest == tokenizer.digest
    for place in (".", "generator"):
        old, new = (
            load_file(tmp_path / start / place / "model.safetensors") for start in ("old", "new")
        )
        assert old.keys() == new.keys()
        changed = {name for name, each in old.items() if not torch.equal(each, new[name])}
        bias = {"generator_lm_head.bias"} if place == "generator" else set()
        assert changed == {"electra.embeddings.word_embeddings.weight"} | bias
        for name in changed:
            assert torch.equal(new[name][: toy_tokenizer.vocab_size], old[name])
            for word, ids in pieces.items():
                row = new[name][tokenizer.tokens_by_id.index(word)]
                assert torch.allclose(row, old[name][ids].mean(dim=0))


@pytest.mark.parametrize("how", ["repeat", "interpolate"])
@torch.no_grad()
def test_longer_positions(bert, tmp_path, how):
    """Both networks read longer rows, and repeated positions leave short ones as they were."""
    _, folder = bert
    import_model(folder, tmp_path / "old")
    import_model(folder, tmp_path / "new", positions=50, position_rows=how)
    name, ids = "electra.embeddings.position_embeddings.weight", draw_ids(2, 50)
    starts = [tmp_path / start for start in ("old", "new")]
    old, new = (load_file(each / "generator/model.safetensors")[name] for each in starts)
    before, model = (transformers.ElectraModel.from_pretrained(each).eval() for each in starts)
    assert new.shape == (50, 96)
    assert model(ids).last_hidden_state.shape == (2, 50, 96)
    assert read_object(tmp_path / "new/tokenizer_config.json")["model_max_length"] == 50
    if how == "repeat":
        assert torch.equal(new, torch.cat([old, old[:18]]))
        assert torch.equal(*(each(ids[:, :32]).last_hidden_state for each in (before, model)))
    else:
        assert torch.allclose(new[[0, -1]], old[[0, -1]])
        part = 20 * 31 / 49  # the place of position 20 among the old ones
        below = int(part)
        between = old[below] + (part - below) * (old[below + 1] - old[below])
        assert torch.allclose(new[20], between, atol=1e-5)


@pytest.mark.parametrize(
    ("body", "options", "words"),
    [
        ("bert", {"extend": "less"}, "lacks 1 tokens of the model's, as ["),
        ("bert", {"extend": "cased"}, "has lowercase False"),
        ("bert", {"positions": 31}, "--positions 31 is less"),
        ("bert", {"position_rows": "repeat"}, "--position-rows is for --positions"),
        ("modernbert", {"positions": 8}, "--positions 8 is less"),
        ("modernbert", {"positions": 128, "position_rows": "repeat"}, "modernbert has none"),
    ],
)
def test_what_cannot_grow_is_refused(request, toy_tokenizer, tmp_path, body, options, words):
    _, folder = request.getfixturevalue(body)
    tokens = toy_tokenizer.tokens_by_id
    Tokenizer([*tokens[:-1], "another", "word"]).save(tmp_path / "less")
    Tokenizer(tokens, lowercase=False).save(tmp_path / "cased")
    if "extend" in options:
        options = {"extend": tmp_path / options["extend"]}
    refuse(words, import_model, folder, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
