"""Both networks against transformers' own, on the same random weights: logits and gradients."""

import dataclasses
import json
import shutil

import pytest
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file

from electra.checkpoints.folder import read_model
from electra.checkpoints.names import ELECTRA
from electra.config import OF_ONE_ARCHITECTURE, EncoderConfig
from electra.errors import UserError
from electra.files import write_json
from electra.interop.export import export
from electra.model.encoder import Encoder
from electra.model.heads import DiscriminatorHead, GeneratorHead
from electra.model.initialisation import init_weights
from electra.pretraining.loop import pretrain
from electra.tokenizing.tokenizer import make_tokenizer
from electra.training.machine import Machine

SIZES = EncoderConfig(
    vocab_size=99,
    embedding_size=24,
    hidden_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=80,
    max_position_embeddings=40,
)
TOLERANCE = {"atol": 1e-5, "rtol": 0}


@pytest.fixture(params=[24, 48], ids=["projected", "unprojected"])
def sizes(request):
    return dataclasses.replace(SIZES, embedding_size=request.param)


@pytest.fixture
def rows():
    rng = torch.Generator().manual_seed(0)
    ids = torch.randint(5, SIZES.vocab_size, (4, 32), generator=rng)
    real = torch.arange(32) < torch.tensor([32, 7, 20, 1])[:, None]
    types = (torch.arange(32) > 10).long() * real
    return ids * real, real, types


def build_theirs(architecture, config, tensors):
    values = ELECTRA.write_config(config, architecture, make_tokenizer(config.vocab_size))
    model = getattr(transformers, architecture)(transformers.ElectraConfig(**values))
    unused = model.load_state_dict(tensors, strict=False)
    assert not unused.unexpected_keys
    assert set(unused.missing_keys) <= {"generator_lm_head.weight"}  # tied
    return model.eval()


def build_ours(config, head_type):
    encoder, head = Encoder(config).eval(), head_type(config)
    rng = torch.Generator().manual_seed(1)
    init_weights(encoder, 0.2, rng)  # ten times the usual, so that differences show
    init_weights(head, 0.2, rng)
    with torch.no_grad():  # biases and norms too
        for parameter in (*encoder.parameters(), *head.parameters()):
            if parameter.dim() == 1:
                parameter += 0.1 * torch.randn(parameter.shape, generator=rng)
    return encoder, head


def gradients(module):
    return {name: parameter.grad for name, parameter in module.named_parameters()}


def assert_same_gradients(ours_as_theirs, theirs):
    expected = gradients(theirs)
    expected.pop("generator_lm_head.weight", None)
    assert set(ours_as_theirs) == set(expected)
    for name, gradient in ours_as_theirs.items():
        scale = max(1.0, expected[name].abs().max().item())
        assert (gradient - expected[name]).abs().max() <= 1e-5 * scale, name


def test_discriminator(sizes, rows):
    ids, real, types = rows
    encoder, head = build_ours(sizes, DiscriminatorHead)
    theirs = build_theirs(
        "ElectraForPreTraining",
        sizes,
        ELECTRA.to_theirs(encoder.state_dict(), head.state_dict(), "PreTraining"),
    )
    labels = torch.randint(2, ids.shape, generator=torch.Generator().manual_seed(2))
    logits = head(encoder(ids, real, types))
    output = theirs(input_ids=ids, attention_mask=real.long(), token_type_ids=types, labels=labels)
    torch.testing.assert_close(logits[real], output.logits[real], **TOLERANCE)

    loss = F.binary_cross_entropy_with_logits(logits[real], labels[real].float())
    torch.testing.assert_close(loss, output.loss, **TOLERANCE)
    loss.backward()
    output.loss.backward()
    assert_same_gradients(
        ELECTRA.to_theirs(gradients(encoder), gradients(head), "PreTraining"),
        theirs,
    )


def test_generator(sizes, rows):
    ids, real, types = rows
    encoder, head = build_ours(sizes, GeneratorHead)
    theirs = build_theirs(
        "ElectraForMaskedLM",
        sizes,
        ELECTRA.to_theirs(encoder.state_dict(), head.state_dict(), "MaskedLM"),
    )
    chosen = real & (torch.rand(ids.shape, generator=torch.Generator().manual_seed(3)) < 0.3)
    hidden = encoder(ids, real, types)
    table = encoder.embeddings.tokens.weight
    logits = head(hidden) @ table.T + head.bias
    output = theirs(
        input_ids=ids,
        attention_mask=real.long(),
        token_type_ids=types,
        labels=ids.masked_fill(~chosen, -100),
    )
    torch.testing.assert_close(logits[real], output.logits[real], **TOLERANCE)

    F.cross_entropy(logits[chosen], ids[chosen]).backward()
    output.loss.backward()
    assert_same_gradients(
        ELECTRA.to_theirs(gradients(encoder), gradients(head), "MaskedLM"),
        theirs,
    )


def test_names_round_trip(sizes):
    encoder, _ = build_ours(sizes, DiscriminatorHead)
    theirs = ELECTRA.to_theirs(encoder.state_dict())
    back = ELECTRA.read_encoder(theirs, sizes)
    assert set(back) == set(encoder.state_dict())
    assert all(torch.equal(back[name], value) for name, value in encoder.state_dict().items())
    tokenizer = make_tokenizer(sizes.vocab_size)
    values = ELECTRA.write_config(sizes, "ElectraForPreTraining", tokenizer)
    assert ELECTRA.read_config(values) == sizes


def test_missing_fields_have_transformers_defaults():
    theirs = transformers.ElectraConfig()
    ours = ELECTRA.read_config({"model_type": "electra"})
    for name, value in dataclasses.asdict(ours).items():
        if name != "architecture" and name not in OF_ONE_ARCHITECTURE:
            assert value == getattr(theirs, name), name


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("position_embedding_type", "relative_key", "must be 'absolute', not 'relative_key'"),
        ("hidden_act", "gelu_new", "must be 'gelu', not 'gelu_new'"),
        ("is_decoder", True, "must be False, not True"),
        ("hidden_size", "256", "must be a whole number from 1, not '256'"),
        ("num_attention_heads", 0, "must be a whole number from 1, not 0"),
        ("layer_norm_eps", None, "must be a number from 0, not None"),
    ],
)
def test_a_model_that_our_encoder_is_not_is_refused(start, tmp_path, field, value, message):
    folder = shutil.copytree(start, tmp_path / "hf")
    values = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", values | {field: value})
    with pytest.raises(UserError, match=f"hf: {field} {message}"):
        read_model(folder)


@pytest.fixture(scope="module")
def exported(toy_shards, toy_config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("export")
    pretrain(toy_shards, folder / "run", toy_config, lambda record: None)
    export(folder / "run", folder / "hf")
    return folder


def test_export_loads_without_our_code(exported, toy_tokenizer, toy_config):
    from electra.checkpoints.checkpoint import find_checkpoint, load_parameters
    from electra.pretraining.start import build_model

    model = build_model(toy_config_with_vocab(toy_config, toy_tokenizer), toy_tokenizer, Machine())
    _, checkpoint = find_checkpoint(exported / "run")
    load_parameters(model, load_file(checkpoint / "model.safetensors"))
    model.eval()
    text, pair = "the queen sold a boat .", "my neighbour admired an engine"
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported / "hf")
    encoded = tokenizer([text, text], [pair, ""], padding=True, return_tensors="pt")
    ours = [toy_tokenizer.cls_id, *toy_tokenizer.encode(text), toy_tokenizer.sep_id]
    assert encoded["input_ids"][0][: len(ours)].tolist() == ours
    arguments = (encoded["input_ids"], encoded["attention_mask"], encoded["token_type_ids"])
    real = encoded["attention_mask"].bool()

    discriminator, info = transformers.AutoModelForPreTraining.from_pretrained(
        exported / "hf", output_loading_info=True
    )
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    logits = model.discriminator_head(model.discriminator(*arguments))
    torch.testing.assert_close(discriminator(**encoded).logits[real], logits[real], **TOLERANCE)

    encoder = transformers.AutoModel.from_pretrained(exported / "hf")
    states = model.discriminator(*arguments)
    torch.testing.assert_close(
        encoder(**encoded).last_hidden_state[real], states[real], **TOLERANCE
    )

    generator, info = transformers.AutoModelForMaskedLM.from_pretrained(
        exported / "hf" / "generator", output_loading_info=True
    )
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    features = model.generator.head(model.generator.encoder(*arguments))
    table, bias = model.generator.softmax
    logits = features @ table.T + bias
    torch.testing.assert_close(generator(**encoded).logits[real], logits[real], **TOLERANCE)


def flip_bit(path, place=0.5):
    """Change a bit of one byte at this share of the file."""
    content = bytearray(path.read_bytes())
    content[int(len(content) * place)] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "name", ["model.safetensors", "config.json", "tokenizer.json", "vocab.txt"]
)
def test_a_flipped_bit_in_an_exported_folder_is_refused(exported, tmp_path, name):
    facts = json.loads((exported / "hf" / "electra.json").read_text())
    assert facts["source"] == f"{exported / 'run'} at step 12"
    for part in ("hf", "hf/generator"):
        folder = shutil.copytree(exported / part, tmp_path / part.replace("/", "-"))
        before = read_model(folder)
        advice = (
            f"{folder / name} is damaged: it does not match its sha256 in {folder}/electra.json"
        )
        # Some of these places are syntax of JSON, whatever the lengths of names in the file.
        for place in range(20):
            flip_bit(folder / name, place / 20)
            with pytest.raises(UserError) as refusal:
                read_model(folder)
            message = str(refusal.value)
            assert message.startswith(advice)
            assert message.endswith(f"changed on purpose, remove {folder / 'electra.json'}")
            assert "\n" not in message
            shutil.copy(exported / part / name, folder / name)
        assert read_model(folder).tokenizer.digest == before.tokenizer.digest


def test_a_folder_that_transformers_saved_over_is_read_without_hashes(exported, tmp_path):
    folder = shutil.copytree(exported / "hf", tmp_path / "hf")
    model = transformers.AutoModelForPreTraining.from_pretrained(folder)
    with torch.no_grad():
        model.electra.embeddings.LayerNorm.bias += 1
    model.save_pretrained(folder)
    with pytest.raises(UserError, match=r"changed on purpose, remove .*electra\.json$"):
        read_model(folder)
    (folder / "electra.json").unlink()
    found = read_model(folder).tensors["embeddings.norm.bias"]
    assert torch.equal(found, model.electra.embeddings.LayerNorm.bias)


def test_a_flipped_bit_in_a_runs_tokenizer_is_refused(exported, tmp_path):
    run = shutil.copytree(exported / "run", tmp_path / "run")
    flip_bit(run / "tokenizer" / "tokenizer.json")
    for read in (read_model, lambda run: export(run, tmp_path / "again")):
        with pytest.raises(UserError, match=r"tokenizer/tokenizer\.json is damaged"):
            read(run)
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "electra.json"])
def test_json_that_is_damaged_is_refused_in_one_line(exported, tmp_path, name):
    folder = shutil.copytree(exported / "hf", tmp_path / "hf")
    if name != "electra.json":  # as in a folder of others
        (folder / "electra.json").unlink(missing_ok=True)
    whole = (folder / name).read_bytes()
    for damage in (whole[:-9], b"[]", b'"\xff"', b"", b"{}"):
        (folder / name).write_bytes(damage)
        with pytest.raises(UserError, match=rf"{name}") as refusal:
            read_model(folder)
        assert "\n" not in str(refusal.value)


def toy_config_with_vocab(config, tokenizer):
    model = dataclasses.replace(config.model, vocab_size=tokenizer.vocab_size)
    return dataclasses.replace(config, model=model)
