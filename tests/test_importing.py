"""Other people's weights: TensorFlow's checkpoint to the bit, transformers' folders and back."""

import json
import random
import shutil
import struct
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from commands import succeed
from refusals import refuse
from safetensors.torch import load_file, save_file

from electra.checkpoints.checkpoint import Weights, read_header
from electra.checkpoints.folder import read_pretrained
from electra.checkpoints.names import ELECTRA
from electra.cli import main
from electra.config import PrepareConfig
from electra.errors import UserError
from electra.inference.ask import detect, fill, load_asked
from electra.inference.network import load_encoder
from electra.interop.importing import find_roles, import_model
from electra.interop.tensorflow import find_bundle, read_bundle
from electra.interop.weights import NOTHING, Source
from electra.model.encoder import Encoder
from electra.model.heads import DiscriminatorHead, GeneratorHead
from electra.presets import encoder_sizes
from electra.pretraining.init_from import fit_to_start
from electra.pretraining.loop import pretrain
from electra.settings import override
from electra.shards.prepare import prepare
from electra.tokenizing.tokenizer import Tokenizer

CHECKPOINT = Path(__file__).parent / "tf_checkpoint"
sys.path.insert(0, str(CHECKPOINT))
from google_names import list_shapes, values_of  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*has no tokenizer_config.json")
crc32c = pytest.importorskip("google_crc32c")


# TensorFlow


def test_tensors_that_tensorflow_wrote_are_read_to_the_bit():
    tensors, others = read_bundle(find_bundle(CHECKPOINT))
    shapes = list_shapes()
    assert {*tensors, *others} == {*shapes, "global_step"}
    slots = {name for name in shapes if name.endswith(("adam_m", "adam_v"))}
    assert {*others} == {"global_step", *slots}
    for name, tensor in tensors.items():
        assert torch.equal(tensor, torch.from_numpy(values_of(name, shapes[name]))), name


def test_google_s_checkpoint_becomes_a_folder_for_every_verb(tmp_path):
    found = import_model(CHECKPOINT, tmp_path / "start")
    assert (found.num_loaded, found.num_tensors) == (66, 69)
    assert {*found.left_over} == {
        "global_step",
        *(f"electra/embeddings/LayerNorm/beta/{slot}" for slot in ("adam_m", "adam_v")),
    }
    judge = load_file(tmp_path / "start/model.safetensors")
    masked_lm = load_file(tmp_path / "start/generator/model.safetensors")
    shapes = list_shapes()
    for theirs, ours, tensors in (
        ("electra/embeddings/word_embeddings", "embeddings.word_embeddings.weight", judge),
        ("electra/embeddings/word_embeddings", "embeddings.word_embeddings.weight", masked_lm),
        ("generator/encoder/layer_0/output/dense/kernel", "0.output.dense.weight", masked_lm),
        ("electra/encoder/layer_1/output/LayerNorm/gamma", "1.output.LayerNorm.weight", judge),
        ("discriminator_predictions/dense_1/kernel", "dense_prediction.weight", judge),
        ("generator_predictions/output_bias", "generator_lm_head.bias", masked_lm),
    ):
        values = torch.from_numpy(values_of(theirs, shapes[theirs]))
        (name,) = (each for each in tensors if each.endswith(ours) and "attention" not in each)
        expected = values.T if theirs.endswith("kernel") else values
        assert torch.equal(tensors[name], expected), theirs
    (words,) = detect(load_asked(tmp_path / "start", "replaced"), ["the cat sat"])
    assert len(words) == 3
    assert len(fill(load_asked(tmp_path / "start", "tokens"), ["the [MASK]"])[0]) == 1


def test_a_generator_in_the_same_checkpoint_has_sizes_of_its_own():
    """As in Google's small model: a narrower encoder, on the discriminator's embeddings."""
    judge, masked_lm = (encoder_sizes(size, 2, 32, vocab_size=40) for size in (128, 64))
    of_judge = Encoder(judge).state_dict(), DiscriminatorHead(judge).state_dict()
    of_masked_lm = Encoder(masked_lm).state_dict(), GeneratorHead(masked_lm).state_dict()
    tensors = ELECTRA.to_theirs(*of_judge, "PreTraining")
    inner = ELECTRA.to_theirs(*of_masked_lm, "MaskedLM")
    own, generator = (
        Weights({name: read_header(each, name) for name in each}, each.__getitem__)
        for each in (tensors, inner)
    )
    roles = find_roles(CHECKPOINT, Source(ELECTRA, own, generator, NOTHING, None, {}))
    assert {role: each.sizes.hidden_size for role, each in roles.items()} == {
        "discriminator": 128,
        "generator": 64,
    }


def test_damaged_and_foreign_checkpoints_are_refused(tmp_path):
    """100 flipped bits, 20 truncations, another file: refused with the reason, or not used."""
    base, rng = CHECKPOINT / "model.ckpt-7", random.Random(0)
    whole, _ = read_bundle(base)
    num_harmless = 0
    names = ("model.ckpt-7.index", "model.ckpt-7.data-00000-of-00001")
    for number in range(120):
        folder = tmp_path / str(number)
        shutil.copytree(CHECKPOINT, folder)
        path = folder / names[number % 2]
        content = bytearray(path.read_bytes())
        if number < 100:
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        else:
            del content[rng.randrange(len(content)) :]
        path.write_bytes(content)
        with suppress(UserError):
            tensors, _ = read_bundle(folder / "model.ckpt-7")
            # The bit was that of a slot, of the step, or of the empty part of the footer.
            num_harmless += 1
            assert {*tensors} == {*whole}
            assert all(torch.equal(each, whole[name]) for name, each in tensors.items())
    assert num_harmless < 10
    (folder / names[1]).unlink()
    shutil.copy(base.with_name(names[0]), folder)
    refuse("data-00000-of-00001 is missing", lambda: read_bundle(folder / "model.ckpt-7"))
    (folder / names[0]).write_bytes(b"an index" * 100)
    refuse("index is damaged, or is no checkpoint:", lambda: read_bundle(folder / "model.ckpt-7"))
    shutil.copytree(CHECKPOINT, tmp_path / "two")
    shutil.copy(base.with_name(names[0]), tmp_path / "two/other.index")
    assert find_bundle(tmp_path / "two").name == "model.ckpt-7"  # as the file `checkpoint` says
    (tmp_path / "two/checkpoint").unlink()
    refuse("holds several checkpoints; name one of them", lambda: find_bundle(tmp_path / "two"))
    assert find_bundle(tmp_path / "two/model.ckpt-7.index").name == "model.ckpt-7"


def test_a_number_that_never_ends_is_refused(tmp_path):
    magic = struct.pack("<Q", 0xDB4775248B80FB57)
    (tmp_path / "x.index").write_bytes(b"\xff" * 40 + magic)
    refuse("a number is too long", lambda: read_bundle(tmp_path / "x"))


# Hugging Face


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers")


def draw_weights(model):
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return model.eval()


@pytest.fixture
def bert(transformers, toy_tokenizer, tmp_path):
    """A folder of BertForMaskedLM with random weights."""
    config = transformers.BertConfig(
        vocab_size=toy_tokenizer.vocab_size, hidden_size=64, num_hidden_layers=2,
        num_attention_heads=2, intermediate_size=128, max_position_embeddings=32,
    )  # fmt: skip
    model = draw_weights(transformers.BertForMaskedLM(config))
    toy_tokenizer.save(tmp_path / "bert")
    model.save_pretrained(tmp_path / "bert")
    return model, tmp_path / "bert"


def as_shards(folder, model):
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="50KB")
    assert (folder / "model.safetensors.index.json").exists()


def as_pickle(folder, model):
    (folder / "model.safetensors").unlink()
    old = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): value
           for name, value in model.state_dict().items()}  # fmt: skip
    torch.save(old, folder / "pytorch_model.bin")


@pytest.mark.parametrize("change", [None, as_shards, as_pickle])
def test_bert_is_an_encoder_and_a_generator(bert, transformers, tmp_path, change):
    model, folder = bert
    (folder / "electra.json").unlink()
    if change:
        change(folder, model)
    found = import_model(folder, tmp_path / "start")
    assert {*found.networks} == {"encoder", "generator"}
    ids = torch.randint(5, model.config.vocab_size, (3, 20))
    encoder = transformers.ElectraModel.from_pretrained(tmp_path / "start").eval()
    masked_lm = transformers.ElectraForMaskedLM.from_pretrained(tmp_path / "start/generator")
    with torch.no_grad():
        states = model.bert(ids).last_hidden_state
        assert torch.allclose(encoder(ids).last_hidden_state, states, atol=1e-5)
        assert torch.allclose(masked_lm.eval()(ids).logits, model(ids).logits, atol=1e-4)


def test_a_causal_bert_keeps_its_head(bert, transformers, toy_tokenizer, tmp_path):
    _, folder = bert
    config = transformers.BertConfig.from_pretrained(folder, is_decoder=True)
    model = draw_weights(transformers.BertLMHeadModel(config))
    model.save_pretrained(folder)
    assert {*import_model(folder, tmp_path / "start").networks} == {"encoder"}
    assert read_pretrained(tmp_path / "start").kept.predicts == "next"
    ids = torch.randint(5, config.vocab_size, (3, 20))
    theirs = transformers.ElectraForCausalLM.from_pretrained(tmp_path / "start").eval()
    with torch.no_grad():
        assert torch.allclose(theirs(ids).logits, model(ids).logits, atol=1e-5)


@pytest.fixture
def modernbert(transformers, toy_tokenizer, tmp_path):
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
def test_modernbert_is_an_encoder_and_a_generator(modernbert, transformers, tmp_path, kind):
    model, folder = modernbert
    if kind == "bare":
        model.model.save_pretrained(folder)
    if kind == "pickle":
        (folder / "model.safetensors").unlink()
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
    found = import_model(folder, tmp_path / "start")
    assert {*found.networks} == ({"encoder"} if kind == "bare" else {"encoder", "generator"})
    assert found.left_over == (["decoder.weight"] if kind == "pickle" else [])  # is tied
    assert found.num_tensors > 4 * 5
    ids = torch.randint(5, model.config.vocab_size, (3, 20))
    encoder = transformers.AutoModel.from_pretrained(tmp_path / "start").eval()
    assert type(encoder).__name__ == "ModernBertModel"
    with torch.no_grad():
        assert torch.equal(encoder(ids).last_hidden_state, model.model(ids).last_hidden_state)
        if kind != "bare":
            place = tmp_path / "start/generator"
            masked_lm = transformers.AutoModelForMaskedLM.from_pretrained(place).eval()
            assert torch.equal(masked_lm(ids).logits, model(ids).logits)


def test_rotary_positions_of_longer_rows_turn_more_slowly(modernbert, transformers, tmp_path):
    """The slowest pair turns as far over the longest row as before; the network is theirs."""
    model, folder = modernbert
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
    ids = torch.randint(5, model.config.vocab_size, (1, number))
    with torch.no_grad():
        theirs, ours = encoder(ids).last_hidden_state, load_encoder(tmp_path / "start").encoder(ids)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


def test_what_does_not_fit_modernbert_is_refused(modernbert, tmp_path):
    _, folder = modernbert
    with pytest.raises(UserError, match="repeat is for learned positions; modernbert has none"):
        import_model(folder, tmp_path / "out", positions=128, position_rows="repeat")
    refuse("--positions 8 is less", lambda: import_model(folder, tmp_path / "out", positions=8))
    assert not (tmp_path / "out").exists()


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
    pretrain(tmp_path / "shards", tmp_path / "run", config, lambda record: None)
    networks = read_pretrained(tmp_path / "run")
    assert networks.kept.sizes.architecture == "modernbert"
    assert networks.generator.sizes.num_hidden_layers == 2
    manifest = json.loads((tmp_path / "run/manifest.json").read_text())
    assert manifest["init_from"]["parts"]["discriminator"] == "init_from"
    assert manifest["init_from"]["parts"]["generator"] == "layers"


def test_a_round_trip_is_identical(exported, tmp_path):
    found = import_model(exported, tmp_path / "found")
    assert found.left_over == []
    import_model(exported, tmp_path / "both", None, exported / "generator")
    for name in ("config.json", "model.safetensors", "vocab.txt", "tokenizer.json"):
        for place in (name, f"generator/{name}"):
            content = (exported / place).read_bytes()
            assert (tmp_path / "found" / place).read_bytes() == content
            assert (tmp_path / "both" / place).read_bytes() == content
    generator = import_model(exported / "generator", tmp_path / "generator")
    assert {*generator.networks} == {"generator"}


class Harm:
    def __reduce__(self):
        return Path.touch, (Path("harmed"),)


def test_what_is_no_model_is_refused(bert, run, tmp_path, monkeypatch):
    """A pickle that would run code is not run."""
    model, folder = bert
    monkeypatch.chdir(tmp_path)
    (folder / "electra.json").unlink()
    (folder / "model.safetensors").unlink()
    refuse("has no weights: none of", lambda: import_model(folder, tmp_path / "out"))
    torch.save({"bert.embeddings": Harm()}, folder / "pytorch_model.bin")
    refuse("does not hold tensors alone, or is", lambda: import_model(folder, tmp_path / "out"))
    assert not (tmp_path / "harmed").exists()
    torch.save([1, 2], folder / "pytorch_model.bin")
    refuse("does not hold tensors by name", lambda: import_model(folder, tmp_path / "out"))
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    del weights["bert.encoder.layer.1.output.dense.bias"], weights["cls.predictions.bias"]
    weights.pop("cls.predictions.decoder.bias", None)
    save_file(weights, folder / "model.safetensors")
    refuse("encoder.layer.1.output.dense.bias", lambda: import_model(folder, tmp_path / "out"))
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "model_type": "gpt2"}))
    refuse("modernbert or deberta-v2, not 'gpt2'", lambda: import_model(folder, tmp_path / "out"))
    refuse("neither a TensorFlow checkpoint", lambda: import_model(tmp_path, tmp_path / "out"))
    refuse("electra's own and needs no import", lambda: import_model(run, tmp_path / "out"))
    short = tmp_path / "short.txt"
    short.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")
    refuse("has 40 token embeddings,", lambda: import_model(CHECKPOINT, tmp_path / "out", short))
    assert not (tmp_path / "out").exists()


def test_the_command_says_what_was_loaded(tmp_path, capsys):
    printed = succeed(capsys, "import", CHECKPOINT, "--out", tmp_path / "start")
    assert "loaded 66 of 69 tensors" in printed.out
    assert "left over: " in printed.err
    with pytest.raises(SystemExit):
        main(["import", str(CHECKPOINT), "--out", str(tmp_path / "start")])


# More tokens, longer rows


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
    words = (toy_tokenizer.encode(f"{letter}sailor") for letter in "abcdeqy")
    pieces_inside = next(ids[1:] for ids in words if len(toy_tokenizer.tokens(ids)[0]) == 1)
    assert toy_tokenizer.unk_id not in pieces_inside
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
            for word in ("boats", "umbrellaboat", "☃"):
                pieces = toy_tokenizer.encode(word)
                assert torch.allclose(
                    new[name][tokenizer.encode(word)[0]], old[name][pieces].mean(dim=0)
                )
            # Inside a word the pieces are those that follow a first letter.
            inside = tokenizer.tokens_by_id.index("##sailor")
            assert torch.allclose(new[name][inside], old[name][pieces_inside].mean(dim=0))
    assert toy_tokenizer.encode("☃") == [toy_tokenizer.unk_id]


@pytest.mark.parametrize("how", ["repeat", "interpolate"])
def test_longer_positions(bert, transformers, tmp_path, how):
    """Both networks read longer rows, and repeated positions leave short ones as they were."""
    _, folder = bert
    import_model(folder, tmp_path / "old")
    import_model(folder, tmp_path / "new", positions=50, position_rows=how)
    name = "electra.embeddings.position_embeddings.weight"
    old, new = (
        load_file(tmp_path / start / "generator/model.safetensors")[name]
        for start in ("old", "new")
    )
    assert new.shape == (50, 64)
    if how == "repeat":
        assert torch.equal(new, torch.cat([old, old[:18]]))
    else:
        assert torch.allclose(new[[0, -1]], old[[0, -1]])
        part = 20 * 31 / 49  # the place of position 20 among the old ones
        below = int(part)
        between = old[below] + (part - below) * (old[below + 1] - old[below])
        assert torch.allclose(new[20], between, atol=1e-5)
    ids = torch.randint(5, 100, (2, 50))
    model = transformers.ElectraModel.from_pretrained(tmp_path / "new").eval()
    assert model(ids).last_hidden_state.shape == (2, 50, 64)
    settings = json.loads((tmp_path / "new/tokenizer_config.json").read_text())
    assert settings["model_max_length"] == 50
    if how == "repeat":
        before = transformers.ElectraModel.from_pretrained(tmp_path / "old").eval()
        states = [each(ids[:, :32]).last_hidden_state for each in (before, model)]
        assert torch.equal(*states)


def test_what_cannot_grow_is_refused(bert, toy_tokenizer, tmp_path):
    _, folder = bert
    less = Tokenizer([*toy_tokenizer.tokens_by_id[:-1], "another", "word"])
    less.save(tmp_path / "less")
    with pytest.raises(UserError, match=r"lacks 1 tokens of the model's, as \["):
        import_model(folder, tmp_path / "out", extend=tmp_path / "less")
    Tokenizer(toy_tokenizer.tokens_by_id, lowercase=False).save(tmp_path / "cased")
    refuse("has lowercase False", import_model, folder, tmp_path / "out", extend=tmp_path / "cased")
    refuse("--positions 31 is less", lambda: import_model(folder, tmp_path / "out", positions=31))
    assert not (tmp_path / "out").exists()
