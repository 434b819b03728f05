"""Runs of ModernBERT's and DeBERTaV3's bodies: exported, read back, continued, fine-tuned."""

import dataclasses
import itertools

import pytest
import torch
import transformers
from commands import run_python_of
from networks import assert_same_tensors, rng
from refusals import refuse
from runs import begin, ignore, write_as_published
from tasks import small_finetune
from test_bodies import PUBLISHED

from electra.assignments import override
from electra.checkpoints.checkpoint import load_parameters
from electra.checkpoints.finetuned import read_finetuned
from electra.checkpoints.folder import read_model, read_pretrained
from electra.finetuning.loop import finetune
from electra.inference import similarity
from electra.inference.network import load_encoder
from electra.inference.predict import load_model
from electra.inference.similarity import Pairs, choose_layer
from electra.interop.export import export
from electra.interop.importing import import_model
from electra.model.encoder import Encoder
from electra.model.heads import DiscriminatorHead
from electra.presets import PRESETS, modern_sizes
from electra.pretraining.init_from import fit_to_start
from electra.pretraining.loop import pretrain
from electra.training.optimizer import build_optimizer

TOLERANCE = {"atol": 1e-5, "rtol": 0}
TEXTS = ["the queen sold a boat .", "my neighbour admired an engine yesterday in 1912 ."]
BRIEF = [
    *("examples.sequence_length=32", "optimizer.warmup_steps=2", "train.steps=4"),
    *("train.batch_size=8", "train.log_every=2", "train.evaluate_every=2", "train.save_every=2"),
    *("train.evaluate_rows=16", "train.precision=float32", "train.threads=1"),
    "model.hidden_dropout_prob=0.1",
]


@pytest.fixture(scope="module")
def make_run(toy_shards, tmp_path_factory):
    """Return what makes a run and its export."""

    def make_run(config):
        folder = tmp_path_factory.mktemp("made")
        pretrain(toy_shards, folder / "run", config, ignore)
        export(folder / "run", folder / "hf")
        return folder

    return make_run


MODERN = dataclasses.replace(
    PRESETS["modern-tiny"], model=dataclasses.replace(modern_sizes(64, 3), local_attention=8)
)


@pytest.fixture(scope="module")
def modern(make_run):
    return make_run(override(MODERN, BRIEF))


@pytest.fixture(scope="module")
def config():
    """DeBERTaV3's whole method: its heads, embeddings and updates."""
    config = override(PRESETS["deberta-v3-xsmall"], ["examples.sequence_length=32"])
    return override(dataclasses.replace(config, model=PUBLISHED), BRIEF)


@pytest.fixture(scope="module")
def deberta(make_run, config):
    return make_run(config)


def load(module, tensors):
    load_parameters(module, tensors)
    return module.eval()


@pytest.mark.parametrize("body", ["modern", "deberta"])
def test_lines_of_the_card_use_the_discriminators_head(body, request, monkeypatch):
    folder = request.getfixturevalue(body)
    names = run_python_of(folder / "hf" / "README.md", folder, monkeypatch)
    saved = read_pretrained(folder / "run").kept
    encoder = load(Encoder(saved.sizes), saved.encoders[0])
    head = load(DiscriminatorHead(saved.sizes), saved.head)
    found, inputs = names["probs"].logit(), names["inputs"]
    torch.testing.assert_close(found, head(encoder(inputs["input_ids"])), **TOLERANCE)


def test_a_folder_that_transformers_wrote_is_read(modern, tmp_path):
    model = transformers.AutoModel.from_pretrained(modern / "hf")
    model.save_pretrained(tmp_path / "again")
    transformers.AutoTokenizer.from_pretrained(modern / "hf").save_pretrained(tmp_path / "again")
    expected, found = read_model(modern / "hf"), read_model(tmp_path / "again")
    assert found.encoder == expected.encoder
    assert_same_tensors(found.tensors, expected.tensors)
    refuse("has no discriminator", lambda: read_pretrained(tmp_path / "again").network("replaced"))


def test_groups_of_the_optimizer(modern):
    """Muon takes query, key, value, feed-forward and gate apart; norms have no weight decay."""
    encoder = Encoder(read_pretrained(modern / "run").encoder)
    names = {parameter: name for name, parameter in encoder.named_parameters()}
    facts = {
        names[parameter]: (group["num_blocks"], group["weight_decay"] > 0, group["lr_scale"])
        for group in build_optimizer(encoder, MODERN.optimizer, layer_lr_decay=0.5).param_groups
        for parameter in group["params"]
    }
    assert facts["layers.0.attention.qkv.weight"] == (3, True, 0.125)
    assert facts["layers.2.intermediate_and_gate.weight"] == (2, True, 0.5)
    assert facts["layers.1.output.weight"] == (1, True, 0.25)
    assert facts["layers.1.attention_norm.weight"] == (0, False, 0.25)
    assert facts["embeddings.tokens.weight"] == (0, True, 0.0625)
    assert facts["embeddings.norm.weight"] == (0, False, 0.0625)
    assert facts["final_norm.weight"] == (0, False, 1.0)


def test_a_head_of_pairs_lies_beside_the_encoder(modern, toy_text, tmp_path, monkeypatch):
    """By the preset's pooling=segments; the card's lines give the answer of `predict`."""
    lines = [line for line in toy_text.read_text().splitlines() if line][:200]
    for split, part in (("train", lines[:160]), ("dev", lines[160:])):
        rows = [f"{n}\t{line}\tthe queen .\t{5 * ('queen' in line)}" for n, line in enumerate(part)]
        head = "index\tsentence1\tsentence2\tscore"
        (tmp_path / f"{split}.tsv").write_text("\n".join([head, *rows]))
    config, run = small_finetune(pooling="segments", epochs=1, sequence_length=24), tmp_path / "run"
    finetune(modern / "hf", "sts-b", tmp_path, run, config, seeds=1, progress=ignore)
    assert export(run, tmp_path / "hf") == "ModernBertModel"
    names = run_python_of(tmp_path / "hf" / "README.md", tmp_path, monkeypatch)
    asked = [{"text_a": "a text", "text_b": "another one"}]
    (answer,) = load_model(read_finetuned(run)).answer(asked).records
    assert names["logits"].tolist() == pytest.approx([answer["prediction"]], abs=1e-3)


@pytest.mark.parametrize("layer", [1, 3])
def test_sentence_transformers_embeds_up_to_a_layer(modern, toy_text, tmp_path, monkeypatch, layer):
    """Whichever layer a dev set chooses, with the final norm behind it."""
    library = pytest.importorskip("sentence_transformers")
    lines = [line for line in toy_text.read_text().splitlines() if line][:20]
    pairs = Pairs(lines[::2], lines[1::2], [float(n % 5) for n in range(10)], "dev")
    encoder = load_encoder(modern / "run")
    chosen = choose_layer(encoder, pairs)
    assert [each.layer for each in chosen.scores] == [1, 2, 3, 1, 2, 3]
    # The embeddings of another layer: as if it had been the best.
    monkeypatch.setattr(similarity, "score", favour(layer))
    chosen = choose_layer(encoder, pairs)
    assert (chosen.layer, chosen.pooling) == (layer, "mean")
    assert export(modern / "run", tmp_path / "st", similarity=chosen) == "ModernBertModel"
    assert not (tmp_path / "st" / "discriminator_head.safetensors").exists()
    model = library.SentenceTransformer(str(tmp_path / "st"), device="cpu")
    vectors = model.encode(TEXTS, convert_to_tensor=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(modern / "hf")
    encoded = tokenizer(TEXTS, padding=True, return_tensors="pt")
    assert set(encoded) == {"input_ids", "attention_mask"}
    real, saved = encoded["attention_mask"].bool(), read_pretrained(modern / "run").kept
    ours = load(Encoder(saved.sizes), saved.encoders[0])
    states = [*ours.layer_states(encoded["input_ids"], real)][layer - 1]
    if layer < 3:
        states = ours.final_norm(states)
    states = states * real[:, :, None]
    expected = states.sum(dim=1) / real.sum(dim=1, keepdim=True)
    torch.testing.assert_close(vectors, expected, atol=1e-4, rtol=0)


def favour(layer):
    """Scores of which that of one layer is the best."""
    calls = itertools.count()
    return lambda names, gold, cosines: {"spearman": float(next(calls) == layer - 1)}


def assert_same(found, expected):
    assert (found.sizes, found.predicts) == (expected.sizes, expected.predicts)
    assert_same_tensors(found.encoders[0], expected.encoders[0])
    assert_same_tensors(found.head, expected.head)


def test_an_exported_folder_is_read_back_and_exported_again(deberta, tmp_path):
    saved, again = read_pretrained(deberta / "run"), read_pretrained(deberta / "hf")
    assert_same(again.kept, saved.kept)
    assert_same(again.generator, saved.generator)
    export(deberta / "hf", tmp_path / "again")
    for name in ("model.safetensors", "discriminator_head.safetensors", "config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (deberta / "hf" / name).read_bytes()


@pytest.fixture
def published(deberta, tmp_path):
    write_as_published(read_pretrained(deberta / "hf"), tmp_path / "hub")
    return tmp_path / "hub"


def test_a_published_pair_becomes_a_folder_for_every_verb(published, deberta, tmp_path):
    found = import_model(published, tmp_path / "start")
    lost = {"deberta.embeddings.position_embeddings.weight", "lm_predictions.lm_head.bias"}
    lost |= {
        f"lm_predictions.lm_head.{part}.{name}"
        for part in ("dense", "LayerNorm")
        for name in ("weight", "bias")
    }
    assert {*found.left_over} == lost
    assert found.num_loaded == found.num_tensors - 6
    saved, again = read_pretrained(deberta / "hf"), read_pretrained(tmp_path / "start")
    assert_same(again.kept, saved.kept)
    assert_same(again.generator, saved.generator)


@pytest.fixture(scope="module")
def plain(make_run, config):
    """The export of a run with plain heads."""
    settings = ["model.published_heads=false", "train.steps=1", "optimizer.warmup_steps=0"]
    return make_run(override(config, settings)) / "hf"


def begin_with(start, config, shards, *settings):
    """The networks of a continued run at its first step."""
    config = override(config, [f"train.init_from={start}", "train.updates=joint", *settings])
    given = {setting.split("=")[0] for setting in settings}
    return begin(fit_to_start(config, read_pretrained(start), given), shards)[0].eval()


@torch.no_grad()
def assert_begins_with(network, saved):
    """The network computes what the saved one does."""
    encoder = load(Encoder(saved.sizes), saved.encoders[0])
    ids = torch.randint(5, 99, (2, 23), generator=rng(1))
    torch.testing.assert_close(network.encoders[0](ids), encoder(ids), atol=1e-5, rtol=0)
    assert_same_tensors(dict(network.head.named_parameters()), dict(saved.head))


@pytest.mark.parametrize("start", ["auto", "layers", "folder", "new"])
@pytest.mark.parametrize("heads", ["published", "plain"])
def test_a_folder_is_continued_with_each_generator(
    deberta, plain, toy_shards, config, tmp_path, heads, start
):
    """An import of an export has the generator in it; both kinds of heads continue."""
    source = deberta / "hf" if heads == "published" else plain
    found = import_model(source, tmp_path / "start")
    assert ({*found.networks}, found.left_over) == ({"discriminator", "generator"}, [])
    other = [f"generator.start_folder={tmp_path / 'start/generator'}"] * (start == "folder")
    settings = [f"generator.start={start}", *other]
    model = begin_with(tmp_path / "start", config, toy_shards, *settings)
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
    deberta, plain, toy_shards, config, tmp_path
):
    """A published generator alone: its decoder stays with the generator."""
    refuse("is a generator with an", begin_with, deberta / "hf/generator", config, toy_shards)
    for source, has_decoder in ((deberta / "hf", True), (plain, False)):
        place = tmp_path / str(has_decoder)
        found = import_model(source / "generator", place)
        assert {*found.networks} == {"encoder", "generator"}
        heads = f"model.published_heads={not has_decoder}".lower()
        model = begin_with(place, override(config, [heads]), toy_shards)
        assert model.kept.config.published_heads == has_decoder
        assert not model.kept.config.enhanced_decoder
        assert_begins_with(model.networks["generator"], read_pretrained(source).generator)
        says = f"it has published_heads {has_decoder}, not {not has_decoder}, enhanced_decoder"
        refuse(says, begin_with, place, config, toy_shards, heads)
    other = [f"generator.start_folder={plain / 'generator'}", "generator.start=folder"]
    refuse("it has published_heads", lambda: begin_with(deberta / "hf", config, toy_shards, *other))


def test_a_discriminator_alone_is_continued_with_a_made_generator(
    published, toy_shards, config, tmp_path
):
    (published / "pytorch_model.generator.bin").unlink()
    assert {*import_model(published, tmp_path / "start").networks} == {"discriminator"}
    generator = begin_with(tmp_path / "start", config, toy_shards).networks["generator"]
    assert generator.encoders[0].config.enhanced_decoder
    assert len(generator.encoders[0].layers) == 1
