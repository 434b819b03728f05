"""A pre-training run of the architecture modernbert: resumed, exported, read back, fine-tuned."""

import dataclasses
import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

import electra
from electra.checkpoints.checkpoint import list_checkpoints
from electra.checkpoints.folder import read_finetuned, read_model, read_pretrained
from electra.config import FinetuneConfig
from electra.errors import UserError
from electra.finetuning.loop import finetune
from electra.inference import similarity
from electra.inference.network import load_encoder
from electra.inference.predict import load_model
from electra.inference.similarity import Pairs, choose_layer
from electra.interop.export import export
from electra.model.encoder import Encoder
from electra.model.heads import DiscriminatorHead, GeneratorHead
from electra.presets import PRESETS, modern_sizes
from electra.pretraining.loop import pretrain, resume
from electra.settings import override
from electra.training.optimizer import build_optimizer

ROOT = Path(electra.__file__).parent.parent
TOLERANCE = {"atol": 1e-5, "rtol": 0}
KEYS = ("missing_keys", "unexpected_keys", "mismatched_keys")
TEXTS = ["the queen sold a boat .", "my neighbour admired an engine yesterday in 1912 ."]

SETTINGS = FinetuneConfig(
    learning_rate=1e-2,
    batch_size=16,
    epochs=3,
    reseeds=0,
    sequence_length=24,
    precision="float32",
    device="cpu",
    threads=1,
)


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


def load_theirs(kind, folder):
    model, info = kind.from_pretrained(folder, output_loading_info=True)
    assert not any(info[key] for key in KEYS)
    return model.eval()


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


def test_a_resumed_run_is_the_same_run(folder, toy_shards, config, tmp_path):
    """Bit for bit: interrupted after its first checkpoint, and gone on."""

    class Interrupted(Exception):
        pass

    def stop(record):
        if record["part"] == "heldout" and record["step"] == 4:
            raise Interrupted

    with pytest.raises(Interrupted):
        pretrain(toy_shards, tmp_path / "run", config, stop)
    resume(tmp_path / "run", lambda record: None)
    (expected, found) = (
        load_file(list_checkpoints(each / "run")[-1] / "model.safetensors")
        for each in (folder, tmp_path)
    )
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_transformers_loads_both_networks_of_a_run(folder):
    encoded, real = encode(folder / "hf")
    found = read_pretrained(folder / "run").kept
    encoder, _ = load_ours(found)
    theirs = load_theirs(transformers.AutoModel, folder / "hf")
    assert type(theirs).__name__ == "ModernBertModel"
    states = encoder(encoded["input_ids"], real)
    torch.testing.assert_close(theirs(**encoded).last_hidden_state[real], states[real], **TOLERANCE)

    found = read_pretrained(folder / "run").generator
    encoder, head = load_ours(found)
    theirs = load_theirs(transformers.AutoModelForMaskedLM, folder / "hf" / "generator")
    logits = head(encoder(encoded["input_ids"], real)) @ encoder.embeddings.tokens.weight.T
    torch.testing.assert_close(
        theirs(**encoded).logits[real], (logits + head.bias)[real], **TOLERANCE
    )


def test_an_exported_folder_is_read_back(folder):
    saved, again = read_pretrained(folder / "run"), read_pretrained(folder / "hf")
    assert again.tokenizer.digest == saved.tokenizer.digest
    for found, expected in ((again.kept, saved.kept), (again.generator, saved.generator)):
        assert (found.sizes, found.predicts) == (expected.sizes, expected.predicts)
        for ours, theirs in (
            (found.encoders[0], expected.encoders[0]),
            (found.head, expected.head),
        ):
            assert ours.keys() == theirs.keys()
            assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    facts = json.loads((folder / "hf" / "electra.json").read_text())
    assert "discriminator_head.safetensors" in facts["sha256"]


def test_a_folder_that_transformers_wrote_is_read(folder, tmp_path):
    model = transformers.AutoModel.from_pretrained(folder / "hf")
    model.save_pretrained(tmp_path / "again")
    transformers.AutoTokenizer.from_pretrained(folder / "hf").save_pretrained(tmp_path / "again")
    expected, found = read_model(folder / "hf"), read_model(tmp_path / "again")
    assert found.encoder == expected.encoder
    assert all(torch.equal(found.tensors[name], each) for name, each in expected.tensors.items())
    with pytest.raises(UserError, match="has no discriminator"):
        read_pretrained(tmp_path / "again").network("replaced")


def test_the_page_says_how_to_use_the_discriminators_head(folder, monkeypatch, capsys):
    page = (ROOT / "docs" / "ARCHITECTURES.md").read_text()
    (lines,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(lines.splitlines()) <= 16
    monkeypatch.chdir(folder)
    names = {}
    exec(compile(lines, "ARCHITECTURES.md", "exec"), names)
    assert "0." in capsys.readouterr().out
    found = read_pretrained(folder / "run").kept
    encoder, head = load_ours(found)
    ids = names["encoded"]["input_ids"]
    torch.testing.assert_close(names["logits"], head(encoder(ids)), **TOLERANCE)


def test_an_exported_folder_is_exported_again(folder, tmp_path):
    export(folder / "hf", tmp_path / "again")
    for name in ("model.safetensors", "discriminator_head.safetensors", "config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (folder / "hf" / name).read_bytes()
    export(folder / "hf" / "generator", tmp_path / "generator")
    for name in ("model.safetensors", "config.json"):
        expected = (folder / "hf" / "generator" / name).read_bytes()
        assert (tmp_path / "again" / "generator" / name).read_bytes() == expected
        assert (tmp_path / "generator" / name).read_bytes() == expected


def test_the_card_names_the_class_and_its_lines_use_the_head(folder, monkeypatch):
    card = (folder / "hf" / "README.md").read_text()
    assert "- modernbert\n" in card
    assert "`ModernBertModel` in transformers (ModernBERT's graph). It holds the encoder;" in card
    (lines,) = re.findall(r"^```python\n(.*?)^```$", card, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(folder)
    names = {}
    exec(lines, names)
    found = read_pretrained(folder / "run").kept
    encoder, head = load_ours(found)
    probs = head(encoder(names["inputs"]["input_ids"])).sigmoid()
    torch.testing.assert_close(names["probs"], probs, **TOLERANCE)


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
    settings = dataclasses.replace(SETTINGS, pooling="segments", epochs=1)
    start = folder / "hf"
    finetune(start, "sts-b", place, place / "run", settings, seeds=1, progress=lambda record: None)
    return place


def test_a_head_of_pairs_lies_beside_the_encoder(pairs, tmp_path, monkeypatch):
    """The card's lines give the answer of `predict`."""
    model = read_finetuned(pairs / "run")
    assert export(pairs / "run", tmp_path / "hf") == "ModernBertModel"
    card = (tmp_path / "hf" / "README.md").read_text()
    assert "the head is in `head.safetensors`, used as here:" in card
    code = card.partition("```python\n")[2].partition("```")[0]
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(code, names)
    (answer,) = load_model(model).answer([{"text_a": "a text", "text_b": "another one"}]).records
    assert names["logits"].tolist() == pytest.approx([answer["prediction"]], abs=1e-3)


@pytest.mark.slow
def test_onnx_holds_a_head_of_pairs(pairs, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = read_finetuned(pairs / "run")
    export(pairs / "run", tmp_path / "hf", onnx=True)
    encode = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    encoded = encode(["a text", "the queen sold"], ["another", "a boat ."], padding=True)
    session = onnxruntime.InferenceSession(tmp_path / "hf" / "onnx" / "model.onnx")
    (logits,) = session.run(None, {name: np.array(each) for name, each in encoded.items()})
    records = [
        {"text_a": "a text", "text_b": "another"},
        {"text_a": "the queen sold", "text_b": "a boat ."},
    ]
    expected = [each["prediction"] for each in load_model(model).answer(records).records]
    assert logits[:, 0].tolist() == pytest.approx(expected, abs=1e-3)


@pytest.fixture(scope="module")
def tagger(folder, toy_text, tmp_path_factory):
    """A fine-tuning on words that are people, and its export."""
    place = tmp_path_factory.mktemp("tagger")
    people = {"sailor", "doctor", "queen", "neighbour"}
    lines = [line for line in toy_text.read_text().splitlines() if line][:200]
    for split, part in (("train", lines[:160]), ("dev", lines[160:])):
        rows = (
            "".join(f"{word} {'B-PER' if word in people else 'O'}\n" for word in line.split())
            for line in part
        )
        (place / f"{split}.conll").write_text("\n".join(rows))
    finetune(
        *(folder / "hf", "tagging", place, place / "run", SETTINGS),
        seeds=1,
        progress=lambda record: None,
    )
    return place


def test_a_token_classification_pipeline_finds_the_entities(tagger, tmp_path):
    """From an exported folder, with no code of ours."""
    assert export(tagger / "run", tmp_path / "hf") == "ModernBertForTokenClassification"
    results = json.loads((tagger / "run" / "results.json").read_text())
    assert results["median"] > 0.9
    pipeline = transformers.pipeline(
        "token-classification", str(tmp_path / "hf"), aggregation_strategy="first"
    )
    (entity,) = pipeline("the queen sold a boat yesterday .")
    assert (entity["word"], entity["entity_group"]) == ("queen", "PER")


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
    states = ours.states_after(layer, encoded["input_ids"], real)
    if layer < 3:
        states = ours.final_norm(states)
    states = states * real[:, :, None]
    expected = states.sum(dim=1) / real.sum(dim=1, keepdim=True)
    torch.testing.assert_close(vectors, expected, atol=1e-4, rtol=0)


def favour(layer):
    """Scores of which that of one layer is the best."""
    calls = itertools.count()
    return lambda gold, cosines: 1.0 if next(calls) == layer - 1 else 0.0


def test_sentence_transformers_embeds_with_an_exported_folder(folder):
    """From an exported folder, with no code of ours: the mean of the hidden states."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    model = sentence_transformers.SentenceTransformer(str(folder / "hf"), device="cpu")
    vectors = model.encode(TEXTS, convert_to_tensor=True)
    encoded, real = encode(folder / "hf")
    found = read_pretrained(folder / "run").kept
    encoder, _ = load_ours(found)
    states = encoder(encoded["input_ids"], real) * real[:, :, None]
    expected = states.sum(dim=1) / real.sum(dim=1, keepdim=True)
    torch.testing.assert_close(vectors, expected, atol=1e-4, rtol=0)
