"""A pre-training run of the architecture modernbert: resumed, exported, read back, fine-tuned."""

import dataclasses
import json
import re
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

import electra
from electra.config import FeaturesConfig, FinetuneConfig, UserError
from electra.finetuning.loop import finetune
from electra.model.encoder import Encoder
from electra.model.heads import (
    ClassifierHead,
    DiscriminatorHead,
    GeneratorHead,
    PairHead,
    build_inner,
)
from electra.model.initialisation import init_weights
from electra.model.span_heads import SpanHead
from electra.model.tagging_head import TaggingHead
from electra.presets import PRESETS, modern_sizes
from electra.pretraining.loop import pretrain, resume
from electra.runs.checkpoint import list_checkpoints
from electra.runs.export import convert_head, export, export_finetuned
from electra.runs.finetuned import Finetuned, read_finetuned
from electra.runs.huggingface_modern import network_to_modernbert
from electra.runs.pretrained import find_network, load_pretrained
from electra.settings import override
from electra.training.optimizer import build_optimizer

ROOT = Path(electra.__file__).parent.parent
TOLERANCE = {"atol": 1e-5, "rtol": 0}
KEYS = ("missing_keys", "unexpected_keys", "mismatched_keys")
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


def load_theirs(kind, folder):
    model, info = kind.from_pretrained(folder, output_loading_info=True)
    assert not any(info[key] for key in KEYS)
    return model.eval()


def load_ours(found):
    encoder = Encoder(found.sizes).eval()
    encoder.load_state_dict(found.encoders[0])
    head = (GeneratorHead if found.predicts == "tokens" else DiscriminatorHead)(found.sizes)
    head.load_state_dict(found.head)
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
    found, _, _ = find_network(folder / "run", "replaced")
    encoder, _ = load_ours(found)
    theirs = load_theirs(transformers.AutoModel, folder / "hf")
    assert type(theirs).__name__ == "ModernBertModel"
    states = encoder(encoded["input_ids"], real)
    torch.testing.assert_close(theirs(**encoded).last_hidden_state[real], states[real], **TOLERANCE)

    found, _, _ = find_network(folder / "run", "tokens")
    encoder, head = load_ours(found)
    theirs = load_theirs(transformers.AutoModelForMaskedLM, folder / "hf" / "generator")
    logits = head(encoder(encoded["input_ids"], real)) @ encoder.embeddings.tokens.weight.T
    torch.testing.assert_close(
        theirs(**encoded).logits[real], (logits + head.bias)[real], **TOLERANCE
    )


def test_an_exported_folder_is_read_back(folder):
    for predicts in ("replaced", "tokens"):
        expected, tokenizer, _ = find_network(folder / "run", predicts)
        found, again, _ = find_network(folder / "hf", predicts)
        assert (found.sizes, again.digest) == (expected.sizes, tokenizer.digest)
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
    expected, found = load_pretrained(folder / "hf"), load_pretrained(tmp_path / "again")
    assert found.encoder == expected.encoder
    assert all(torch.equal(found.tensors[name], each) for name, each in expected.tensors.items())
    with pytest.raises(UserError, match="has no discriminator"):
        find_network(tmp_path / "again", "replaced")


def test_the_page_says_how_to_use_the_discriminators_head(folder, monkeypatch, capsys):
    page = (ROOT / "docs" / "ARCHITECTURES.md").read_text()
    (lines,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(lines.splitlines()) <= 16
    monkeypatch.chdir(folder)
    names = {}
    exec(compile(lines, "ARCHITECTURES.md", "exec"), names)
    assert "0." in capsys.readouterr().out
    found, _, _ = find_network(folder / "run", "replaced")
    encoder, head = load_ours(found)
    ids = names["encoded"]["input_ids"]
    torch.testing.assert_close(names["logits"], head(encoder(ids)), **TOLERANCE)


@pytest.mark.parametrize("form", [{"form": "bert"}, {"onnx": True}])
def test_forms_for_electra_alone_are_refused(folder, tmp_path, form):
    with pytest.raises(UserError, match="is for the architecture electra"):
        export(folder / "run", tmp_path / "out", **form)
    assert not (tmp_path / "out").exists()


def test_groups_of_the_optimizer(folder, config):
    """Muon takes query, key, value, feed-forward and gate apart; norms have no weight decay."""
    found, _, _ = find_network(folder / "run", "replaced")
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


# Fine-tuned heads

HEADS = {
    "classification": (lambda sizes: ClassifierHead(64, 3, 0.1, "cls", build_inner(sizes)), "cls"),
    "mean": (lambda sizes: ClassifierHead(64, 3, 0.1, "mean", build_inner(sizes)), "mean"),
    "choice": (lambda sizes: ClassifierHead(64, 1, 0.1, "mean", build_inner(sizes)), "segments"),
    "tagging": (lambda sizes: TaggingHead(64, 3, 0.1, build_inner(sizes)), "cls"),
    "squad": (lambda sizes: SpanHead(64, build_inner(sizes)), "cls"),
}


def convert(head, sizes, family, pooling, kind="plain"):
    """The head of a fine-tuned model, as transformers' class has it."""
    facts = {"family": family, "labels": ["a", "b", "c"], "label_range": None, "head": kind}
    finetuned = Finetuned(Path("run"), 0, facts, sizes, FinetuneConfig(pooling=pooling))
    return convert_head(finetuned, head.state_dict())


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("has_biases", [False, True])
def test_heads_are_those_of_transformers_classes(name, has_biases, folder):
    pretrained = load_pretrained(folder / "hf")
    sizes = dataclasses.replace(pretrained.encoder, classifier_bias=has_biases)
    build, pooling = HEADS[name]
    family = "classification" if name == "mean" else name
    head = build(sizes).eval()
    init_weights(head, 0.2, torch.Generator().manual_seed(0))
    encoder = Encoder(sizes).eval()
    encoder.load_state_dict(pretrained.tensors)
    converted = convert(head, sizes, family, pooling)
    config, tensors, _ = network_to_modernbert(
        sizes, pretrained.tensors, converted, pretrained.tokenizer
    )
    kind = getattr(transformers, converted.architecture)
    theirs = kind(transformers.ModernBertConfig(**config)).eval()
    theirs.load_state_dict(tensors)
    encoded, real = encode(folder / "hf")
    states = encoder(encoded["input_ids"], real)
    if family == "squad":
        types = torch.where(real, 1, 0)
        output, ours = theirs(**encoded), head(states, types)
        allowed = ours["start_logits"].isfinite()
        for which in ("start_logits", "end_logits"):
            torch.testing.assert_close(output[which][allowed], ours[which][allowed], **TOLERANCE)
        return
    if family == "choice":
        output = theirs(**{key: value[None] for key, value in encoded.items()}).logits
        torch.testing.assert_close(output, head(states, real).view(1, 2), **TOLERANCE)
        return
    logits = head(states) if family == "tagging" else head(states, real)
    expected = theirs(**encoded).logits
    if family == "tagging":
        logits, expected = logits[real], expected[real]
    torch.testing.assert_close(expected, logits, **TOLERANCE)
    assert theirs.config.id2label == {0: "a", 1: "b", 2: "c"}


def test_what_transformers_classes_cannot_hold_is_refused(folder):
    sizes = load_pretrained(folder / "hf").encoder
    with pytest.raises(
        UserError, match="read one state of a row, and pooling=segments has several"
    ):
        convert(PairHead(128, 3, 0.1), sizes, "classification", "segments")
    with pytest.raises(UserError, match="no class with a beam head"):
        convert(SpanHead(64), sizes, "squad", "cls", "beam")
    features = FinetuneConfig(features=FeaturesConfig(layers=2))
    with pytest.raises(UserError, match="no class that reads features"):
        convert_head(Finetuned(Path("run"), 0, {"family": "tagging"}, sizes, features), {})


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
    settings = FinetuneConfig(
        learning_rate=1e-2,
        batch_size=16,
        epochs=3,
        reseeds=0,
        sequence_length=24,
        precision="float32",
        device="cpu",
        threads=1,
    )
    finetune(
        *(folder / "hf", "tagging", place, place / "run", settings),
        seeds=1,
        progress=lambda record: None,
    )
    return place


def test_a_token_classification_pipeline_finds_the_entities(tagger, tmp_path):
    """From an exported folder, with no code of ours."""
    model = read_finetuned(tagger / "run")
    assert export_finetuned(model, tmp_path / "hf") == "ModernBertForTokenClassification"
    results = json.loads((tagger / "run" / "results.json").read_text())
    assert results["median"] > 0.9
    pipeline = transformers.pipeline(
        "token-classification", str(tmp_path / "hf"), aggregation_strategy="first"
    )
    (entity,) = pipeline("the queen sold a boat yesterday .")
    assert (entity["word"], entity["entity_group"]) == ("queen", "PER")


def test_sentence_transformers_embeds_with_an_exported_folder(folder):
    """From an exported folder, with no code of ours: the mean of the hidden states."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    model = sentence_transformers.SentenceTransformer(str(folder / "hf"), device="cpu")
    vectors = model.encode(TEXTS, convert_to_tensor=True)
    encoded, real = encode(folder / "hf")
    found, _, _ = find_network(folder / "run", "replaced")
    encoder, _ = load_ours(found)
    states = encoder(encoded["input_ids"], real) * real[:, :, None]
    expected = states.sum(dim=1) / real.sum(dim=1, keepdim=True)
    torch.testing.assert_close(vectors, expected, atol=1e-4, rtol=0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the exporter and what it imports
def test_onnx_answers_alike(folder, tmp_path):
    """torch's exporter, on the model that transformers makes of an exported folder."""
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = load_theirs(transformers.AutoModel, folder / "hf")
    encoded, real = encode(folder / "hf")
    arguments = encoded["input_ids"], encoded["attention_mask"]
    torch.onnx.export(model, arguments, tmp_path / "model.onnx", dynamo=True)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    names = [each.name for each in session.get_inputs()]
    values = {name: tensor.numpy() for name, tensor in zip(names, arguments, strict=True)}
    states = torch.from_numpy(session.run(None, values)[0])
    expected = model(**encoded).last_hidden_state
    torch.testing.assert_close(states[real], expected[real], atol=1e-4, rtol=0)
