"""A pre-training run of the architecture modernbert: resumed, exported, read back, fine-tuned."""

import dataclasses
import itertools
from pathlib import Path

import pytest
import torch
import transformers
from commands import run_python_of
from networks import assert_same_tensors
from refusals import refuse
from tasks import ignore, small_finetune

import electra
from electra.checkpoints.folder import read_finetuned, read_model, read_pretrained
from electra.finetuning.loop import finetune
from electra.inference import similarity
from electra.inference.network import load_encoder
from electra.inference.predict import load_model
from electra.inference.similarity import Pairs, choose_layer
from electra.interop.export import export
from electra.model.encoder import Encoder
from electra.model.heads import DiscriminatorHead, GeneratorHead
from electra.presets import PRESETS, modern_sizes
from electra.pretraining.loop import pretrain
from electra.settings import override
from electra.training.optimizer import build_optimizer

ROOT = Path(electra.__file__).parent.parent
TOLERANCE = {"atol": 1e-5, "rtol": 0}
TEXTS = ["the queen sold a boat .", "my neighbour admired an engine yesterday in 1912 ."]


@pytest.fixture(scope="module")
def config(toy_config):
    model = dataclasses.replace(modern_sizes(64, 3), local_attention=8, hidden_dropout_prob=0.1)
    return override(
        dataclasses.replace(PRESETS["modern-tiny"], model=model),
        [
            *("examples.sequence_length=32", "optimizer.warmup_steps=4", "train.steps=8"),
            *("train.batch_size=8", "train.log_every=4", "train.evaluate_every=4"),
            *("train.save_every=4", "train.evaluate_rows=16", "train.precision=float32"),
            *("train.threads=1", "train.keep_checkpoints=3"),
        ],
    )


@pytest.fixture(scope="module")
def folder(toy_shards, config, tmp_path_factory):
    """A run and its export."""
    folder = tmp_path_factory.mktemp("modern")
    pretrain(toy_shards, folder / "run", config, lambda record: None)
    export(folder / "run", folder / "hf")
    return folder


def load_ours(found):
    encoder = Encoder(found.sizes).eval()
    encoder.load_state_dict(dict(found.encoders[0]))
    head = (GeneratorHead if found.predicts == "tokens" else DiscriminatorHead)(found.sizes)
    head.load_state_dict(dict(found.head))
    return encoder, head


def encode(folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    encoded = tokenizer(TEXTS, padding=True, return_tensors="pt")
    assert set(encoded) == {"input_ids", "attention_mask"}
    return encoded, encoded["attention_mask"].bool()


def test_a_folder_that_transformers_wrote_is_read(folder, tmp_path):
    model = transformers.AutoModel.from_pretrained(folder / "hf")
    model.save_pretrained(tmp_path / "again")
    transformers.AutoTokenizer.from_pretrained(folder / "hf").save_pretrained(tmp_path / "again")
    expected, found = read_model(folder / "hf"), read_model(tmp_path / "again")
    assert found.encoder == expected.encoder
    assert_same_tensors(found.tensors, expected.tensors)
    refuse("has no discriminator", lambda: read_pretrained(tmp_path / "again").network("replaced"))


@pytest.mark.parametrize("page", ["the card", "the guide"])
def test_lines_of_the_pages_use_the_discriminators_head(folder, page, monkeypatch):
    path = ROOT / "docs" / "ARCHITECTURES.md" if "guide" in page else folder / "hf" / "README.md"
    names = run_python_of(path, folder, monkeypatch)
    encoder, head = load_ours(read_pretrained(folder / "run").kept)
    inputs = names.get("encoded") or names["inputs"]
    logits = head(encoder(inputs["input_ids"]))
    found = names["probs"].logit() if "probs" in names else names["logits"]
    torch.testing.assert_close(found, logits, **TOLERANCE)


def test_groups_of_the_optimizer(folder, config):
    """Muon takes query, key, value, feed-forward and gate apart; norms have no weight decay."""
    found = read_pretrained(folder / "run").kept
    encoder, _ = load_ours(found)
    names = {parameter: name for name, parameter in encoder.named_parameters()}
    optimizer = build_optimizer(encoder, config.optimizer, layer_lr_decay=0.5)
    facts = {
        names[parameter]: (group["num_blocks"], group["weight_decay"] > 0, group["lr_scale"])
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    assert facts["layers.0.attention.qkv.weight"] == (3, True, 0.125)
    assert facts["layers.2.intermediate_and_gate.weight"] == (2, True, 0.5)
    assert facts["layers.1.output.weight"] == (1, True, 0.25)
    assert facts["layers.1.attention_norm.weight"] == (0, False, 0.25)
    assert facts["embeddings.tokens.weight"] == (0, True, 0.0625)
    assert facts["embeddings.norm.weight"] == (0, False, 0.0625)
    assert facts["final_norm.weight"] == (0, False, 1.0)


@pytest.fixture(scope="module")
def pairs(folder, toy_text, tmp_path_factory):
    """A fine-tuning on pairs of sentences by the preset's pooling=segments."""
    place = tmp_path_factory.mktemp("pairs")
    lines = [line for line in toy_text.read_text().splitlines() if line][:200]
    for split, part in (("train", lines[:160]), ("dev", lines[160:])):
        rows = [f"{n}\t{line}\tthe queen .\t{5 * ('queen' in line)}" for n, line in enumerate(part)]
        (place / f"{split}.tsv").write_text(
            "\n".join(["index\tsentence1\tsentence2\tscore", *rows])
        )
    settings = small_finetune(pooling="segments", epochs=1, sequence_length=24)
    finetune(folder / "hf", "sts-b", place, place / "run", settings, seeds=1, progress=ignore)
    return place


def test_a_head_of_pairs_lies_beside_the_encoder(pairs, tmp_path, monkeypatch):
    """The card's lines give the answer of `predict`."""
    model = read_finetuned(pairs / "run")
    assert export(pairs / "run", tmp_path / "hf") == "ModernBertModel"
    names = run_python_of(tmp_path / "hf" / "README.md", tmp_path, monkeypatch)
    (answer,) = load_model(model).answer([{"text_a": "a text", "text_b": "another one"}]).records
    assert names["logits"].tolist() == pytest.approx([answer["prediction"]], abs=1e-3)


@pytest.mark.parametrize("layer", [1, 3])
def test_sentence_transformers_embeds_up_to_a_layer(folder, toy_text, tmp_path, monkeypatch, layer):
    """Whichever layer a dev set chooses, with the final norm behind it."""
    library = pytest.importorskip("sentence_transformers")
    lines = [line for line in toy_text.read_text().splitlines() if line][:20]
    pairs = Pairs(lines[::2], lines[1::2], [float(n % 5) for n in range(10)], "dev")
    encoder = load_encoder(folder / "run")
    chosen = choose_layer(encoder, pairs)
    assert [each.layer for each in chosen.scores] == [1, 2, 3, 1, 2, 3]
    # The embeddings of another layer: as if it had been the best.
    monkeypatch.setattr(similarity, "score_spearman", favour(layer))
    chosen = choose_layer(encoder, pairs)
    assert (chosen.layer, chosen.pooling) == (layer, "mean")
    assert export(folder / "run", tmp_path / "st", similarity=chosen) == "ModernBertModel"
    assert not (tmp_path / "st" / "discriminator_head.safetensors").exists()
    model = library.SentenceTransformer(str(tmp_path / "st"), device="cpu")
    vectors = model.encode(TEXTS, convert_to_tensor=True)
    encoded, real = encode(folder / "hf")
    found = read_pretrained(folder / "run").kept
    ours, _ = load_ours(found)
    states = [*ours.layer_states(encoded["input_ids"], real)][layer - 1]
    if layer < 3:
        states = ours.final_norm(states)
    states = states * real[:, :, None]
    expected = states.sum(dim=1) / real.sum(dim=1, keepdim=True)
    torch.testing.assert_close(vectors, expected, atol=1e-4, rtol=0)


def favour(layer):
    """Scores of which that of one layer is the best."""
    calls = itertools.count()
    return lambda gold, cosines: 1.0 if next(calls) == layer - 1 else 0.0
