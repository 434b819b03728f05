"""DeBERTaV3's heads against formulas in float64, and its published folders in and out."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from commands import run_python_of
from networks import assert_same_tensors, draw
from refusals import refuse
from runs import assert_same_end, ignore, send_at, write_as_published
from torch.utils.flop_counter import FlopCounterMode

from electra.checkpoints.checkpoint import load_parameters
from electra.checkpoints.folder import read_pretrained
from electra.interop.export import export
from electra.interop.importing import import_model
from electra.model.deberta import DisentangledLayer, find_rows
from electra.model.encoder import Encoder
from electra.model.fused import FusedDisentangledLayer
from electra.model.heads import DiscriminatorHead
from electra.presets import PRESETS, deberta_sizes
from electra.pretraining.init_from import fit_to_start, load_start
from electra.pretraining.loop import pretrain, resume
from electra.pretraining.start import build_model, count_tokens, fit_to_shards
from electra.processes import Interrupted
from electra.settings import override
from electra.shards.store import open_shards
from electra.training.machine import Machine

SIZES = deberta_sizes(
    *(64, 2),
    vocab_size=99,
    max_position_embeddings=32,
    position_buckets=8,
    max_relative_positions=16,
    published_heads=True,
)
DECODES = dataclasses.replace(SIZES, enhanced_decoder=True)


def norm(x, weight, bias):
    centred = x - x.mean(dim=-1, keepdim=True)
    return centred / (centred.pow(2).mean(dim=-1, keepdim=True) + 1e-7).sqrt() * weight + bias


def apply_layer(p, queries, states):
    """One head and one row: the attention of `queries` over `states`, pair by pair, in float64."""
    q_map, k_map, v_map = p["attention.qkv.weight"].chunk(3)
    q_bias, k_bias, v_bias = p["attention.qkv.bias"].chunk(3)
    table = norm(p["table"], p["places.norm.weight"], p["places.norm.bias"])
    rows, length = find_rows(SIZES, len(states)), len(states)
    q, k, v = queries @ q_map.T + q_bias, states @ k_map.T + k_bias, states @ v_map.T + v_bias
    scores = torch.zeros(length, length, dtype=torch.float64)
    for i in range(length):
        for j in range(length):
            distance = table[rows[i - j + length - 1]]
            by_key, by_query = distance @ k_map.T + k_bias, distance @ q_map.T + q_bias
            scores[i, j] = (q[i] @ k[j] + q[i] @ by_key + by_query @ k[j]) / math.sqrt(3 * 64)
    attended = scores.softmax(dim=-1) @ v @ p["attention.output.weight"].T
    attended = attended + p["attention.output.bias"]
    x = norm(queries + attended, p["attention_norm.weight"], p["attention_norm.bias"])
    inner = F.gelu(x @ p["intermediate.weight"].T + p["intermediate.bias"])
    out = inner @ p["output.weight"].T + p["output.bias"]
    return norm(x + out, p["output_norm.weight"], p["output_norm.bias"])


@pytest.mark.parametrize("layer", [DisentangledLayer, FusedDisentangledLayer])
def test_the_enhanced_mask_decoder_is_its_formula(layer):
    """The last layer twice, over the states before it, from these and absolute positions."""
    encoder = draw(Encoder(DECODES, layer=layer).eval())
    ids = torch.randint(5, 99, (1, 23), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found = encoder(ids)[0]
        assert torch.equal([*encoder.layer_states(ids)][-1][0], found)
        before = next(encoder.layer_states(ids))[0].double()
        p = {name: each.double() for name, each in encoder.layers[1].named_parameters()}
        p |= {name: each.double() for name, each in encoder.named_parameters() if "places" in name}
        p["table"] = p["places.embeddings.weight"]
        queries = before + encoder.position_embeddings.weight[:23].double()
        expected = apply_layer(p, apply_layer(p, queries, before), before)
    torch.testing.assert_close(found.double(), expected, atol=2e-5, rtol=0)


def test_the_discriminators_head_reads_the_state_of_cls():
    head = draw(DiscriminatorHead(SIZES).eval())
    states = torch.randn(2, 7, 64, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        p = {name: each.double() for name, each in head.named_parameters()}
        both = states.double() + states[:, :1].double()
        inner = norm(both, p["norm.weight"], p["norm.bias"]) @ p["dense.weight"].T
        inner = F.gelu(inner + p["dense.bias"])
        expected = (inner @ p["dense_prediction.weight"].T)[..., 0] + p["dense_prediction.bias"]
        torch.testing.assert_close(head(states).double(), expected, atol=1e-5, rtol=0)
        torch.testing.assert_close(head(states[0]), head(states)[0])  # of a row alone


def test_flops_of_the_decoder_are_counted():
    encoder = draw(Encoder(DECODES).eval())
    ids = torch.randint(5, 99, (100, 16))
    with FlopCounterMode(display=False) as counter:
        encoder(ids)
    counted = sum(encoder.count_flops(16).values())
    assert counted == pytest.approx(counter.get_total_flops() / ids.numel(), rel=0.01)


@pytest.fixture(scope="module")
def config(toy_config):
    """DeBERTaV3's whole method: its heads, embeddings and updates."""
    model = dataclasses.replace(SIZES, hidden_dropout_prob=0.1)
    config = override(PRESETS["deberta-v3-xsmall"], ["examples.sequence_length=32"])
    return override(
        dataclasses.replace(config, model=model),
        [
            *("optimizer.warmup_steps=2", "train.steps=4"),
            *("train.batch_size=8", "train.log_every=2", "train.evaluate_every=2"),
            *("train.save_every=2", "train.evaluate_rows=16", "train.precision=float32"),
            *("train.threads=1", "train.keep_checkpoints=3"),
        ],
    )


@pytest.fixture(scope="module")
def folder(toy_shards, config, tmp_path_factory):
    """A run and its export."""
    folder = tmp_path_factory.mktemp("deberta")
    pretrain(toy_shards, folder / "run", config, lambda record: None)
    export(folder / "run", folder / "hf")
    return folder


def test_a_resumed_run_is_the_same_run(folder, toy_shards, config, tmp_path):
    with pytest.raises(Interrupted):
        pretrain(toy_shards, tmp_path / "run", config, send_at(2))
    resume(tmp_path / "run", ignore)
    assert_same_end(folder / "run", tmp_path / "run")


def assert_same(found, expected):
    assert (found.sizes, found.predicts) == (expected.sizes, expected.predicts)
    assert_same_tensors(found.encoders[0], expected.encoders[0])
    assert_same_tensors(found.head, expected.head)


def test_an_exported_folder_is_read_back_and_exported_again(folder, tmp_path):
    saved, again = read_pretrained(folder / "run"), read_pretrained(folder / "hf")
    assert_same(again.kept, saved.kept)
    assert_same(again.generator, saved.generator)
    export(folder / "hf", tmp_path / "again")
    for name in ("model.safetensors", "discriminator_head.safetensors", "config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (folder / "hf" / name).read_bytes()


def test_the_cards_lines_use_the_published_head(folder, monkeypatch):
    names = run_python_of(folder / "hf" / "README.md", folder, monkeypatch)
    found = read_pretrained(folder / "run").kept
    encoder, head = Encoder(found.sizes).eval(), DiscriminatorHead(found.sizes)
    load_parameters(encoder, found.encoders[0])
    load_parameters(head, found.head)
    with torch.no_grad():
        probs = head(encoder(names["inputs"]["input_ids"])).sigmoid()
    torch.testing.assert_close(names["probs"], probs, atol=1e-5, rtol=0)


@pytest.fixture
def published(folder, tmp_path):
    write_as_published(read_pretrained(folder / "hf"), tmp_path / "hub")
    return tmp_path / "hub"


def test_a_published_pair_becomes_a_folder_for_every_verb(published, folder, tmp_path):
    found = import_model(published, tmp_path / "start")
    lost = {"deberta.embeddings.position_embeddings.weight", "lm_predictions.lm_head.bias"}
    lost |= {
        f"lm_predictions.lm_head.{part}.{name}"
        for part in ("dense", "LayerNorm")
        for name in ("weight", "bias")
    }
    assert {*found.left_over} == lost
    assert found.num_loaded == found.num_tensors - 6
    saved, again = read_pretrained(folder / "hf"), read_pretrained(tmp_path / "start")
    assert_same(again.kept, saved.kept)
    assert_same(again.generator, saved.generator)


@pytest.fixture(scope="module")
def plain(toy_shards, config, tmp_path_factory):
    """The export of a run with plain heads."""
    folder = tmp_path_factory.mktemp("plain")
    settings = ["model.published_heads=false", "train.steps=1", "optimizer.warmup_steps=0"]
    pretrain(toy_shards, folder / "run", override(config, settings), lambda record: None)
    export(folder / "run", folder / "hf")
    return folder / "hf"


def begin(config, shards, start, *settings):
    """The networks of a continued run at its first step."""
    config = override(config, [f"train.init_from={start}", "train.updates=joint", *settings])
    saved, shards = read_pretrained(start), open_shards(shards)
    config = fit_to_shards(fit_to_start(config, saved, {s.split("=")[0] for s in settings}), shards)
    counts = count_tokens(shards)
    model = build_model(config, shards.tokenizer, Machine(), counts)
    load_start(model, config, saved, counts)
    return model.eval()


@torch.no_grad()
def assert_begins_with(network, saved):
    """The network computes what the saved one does."""
    encoder = Encoder(saved.sizes).eval()
    load_parameters(encoder, saved.encoders[0])
    ids = torch.randint(5, 99, (2, 23), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(network.encoders[0](ids), encoder(ids), atol=1e-5, rtol=0)
    for name, each in network.head.named_parameters():
        assert torch.equal(each, saved.head[name]), name


@pytest.mark.parametrize("start", ["auto", "layers", "folder", "new"])
@pytest.mark.parametrize("heads", ["published", "plain"])
def test_a_folder_is_continued_with_each_generator(
    folder, plain, toy_shards, config, tmp_path, heads, start
):
    """An import of an export has the generator that lies in it; both kinds of heads go on."""
    source = folder / "hf" if heads == "published" else plain
    found = import_model(source, tmp_path / "start")
    assert ({*found.networks}, found.left_over) == ({"discriminator", "generator"}, [])
    other = [f"generator.start_folder={tmp_path / 'start/generator'}"] * (start == "folder")
    settings = [f"generator.start={start}", *other]
    model = begin(config, toy_shards, tmp_path / "start", *settings)
    saved, generator = read_pretrained(source), model.networks["generator"]
    assert_begins_with(model.networks["discriminator"], saved.kept)
    if start in ("auto", "folder"):
        assert_begins_with(generator, saved.generator)
    else:
        kept, lowest = saved.kept.encoders[0], dict(generator.encoders[0].layers.named_parameters())
        is_taken = all(torch.equal(lowest[name], kept[f"layers.{name}"]) for name in lowest)
        assert is_taken == (start == "layers")
        assert generator.encoders[0].config.enhanced_decoder == (heads == "published")


def test_an_encoder_without_heads_takes_those_of_the_generator(
    folder, plain, toy_shards, config, tmp_path
):
    """A published generator alone: its decoder stays with the generator."""
    refuse("is a generator with an", lambda: begin(config, toy_shards, folder / "hf/generator"))
    for source, has_decoder in ((folder / "hf", True), (plain, False)):
        place = tmp_path / str(has_decoder)
        found = import_model(source / "generator", place)
        assert {*found.networks} == {"encoder", "generator"}
        heads = f"model.published_heads={not has_decoder}".lower()
        model = begin(override(config, [heads]), toy_shards, place)
        assert model.kept.config.published_heads == has_decoder
        assert not model.kept.config.enhanced_decoder
        assert_begins_with(model.networks["generator"], read_pretrained(source).generator)
        says = f"it has published_heads {has_decoder}, not {not has_decoder}, enhanced_decoder"
        refuse(says, begin, config, toy_shards, place, heads)
    other = [f"generator.start_folder={plain / 'generator'}", "generator.start=folder"]
    refuse("it has published_heads", lambda: begin(config, toy_shards, folder / "hf", *other))


def test_a_discriminator_alone_is_continued_with_a_made_generator(
    published, toy_shards, config, tmp_path
):
    (published / "pytorch_model.generator.bin").unlink()
    assert {*import_model(published, tmp_path / "start").networks} == {"discriminator"}
    generator = begin(config, toy_shards, tmp_path / "start").networks["generator"]
    assert generator.encoders[0].config.enhanced_decoder
    assert len(generator.encoders[0].layers) == 1
