"""Every body, with every head, in every format: written, computed elsewhere alike, read back."""

import dataclasses
from functools import partial

import pytest
import torch
from networks import assert_same_tensors, draw, make_sizes
from refusals import refuse

from electra.checkpoints.checkpoint import read_tensors
from electra.checkpoints.finetuned import Finetuned
from electra.checkpoints.folder import read_model
from electra.checkpoints.names import DEBERTA, DISCRIMINATOR_FILE, HEAD_FILE, MODERNBERT_DECODER
from electra.checkpoints.saved import SavedNetwork
from electra.interop import onnx
from electra.interop.export import convert, describe, describe_finetuned, write_network, write_plain
from electra.model.encoder import Encoder
from electra.model.features_config import FeaturesConfig
from electra.model.heads import DiscriminatorHead, GeneratorHead
from electra.tasks.config import FinetuneConfig
from electra.tasks.registry import FAMILIES as REGISTERED
from electra.tasks.registry import restore_family

transformers = pytest.importorskip("transformers")

FORMATS = (
    *(("electra", "huggingface"), ("electra", "bert"), ("modernbert", "huggingface")),
    *(("modernbert with biases", "huggingface"), ("deberta-v2", "huggingface")),
)
BODIES = ("electra", "modernbert", "deberta-v2")
FACTS = {
    **{"labels": ["a", "b", "c"], "thresholds": [0.5] * 3, "columns": ["one", "two"]},
    **{"names": ["score"], "ranges": [[0.0, 1.0]]},
    **{"num_choices": 3, "head": "plain", "null_threshold": 0.0, "task": "own"},
}
LAYER = {"dense.weight": torch.zeros(1, 1), "dense.bias": torch.zeros(1)}
FAMILIES = {
    restore_family({**FACTS, "family": name}).as_transformers(LAYER).kind: name
    for name in reversed(REGISTERED)
    if name != "retrieval"  # which has no head
}
"""A family for each kind: the first of those that have it."""
PRETRAINING = {"": None, "PreTraining": DiscriminatorHead}
PRETRAINING |= {"MaskedLM": GeneratorHead, "CausalLM": GeneratorHead}
PREDICTS = {"": "", "PreTraining": "replaced", "MaskedLM": "tokens", "CausalLM": "next"}
CASES = [*((kind, "cls") for kind in (*PRETRAINING, *FAMILIES)), ("SequenceClassification", "mean")]
CASES += [("SequenceClassification", "segments"), ("MultipleChoice", "mean")]


def draw_tensors(module):
    return {name: each.detach() for name, each in draw(module).named_parameters()}


def make_outgoing(kind, pooling, sizes, tokenizer, **settings):
    """A network with random weights."""
    sizes = dataclasses.replace(sizes, causal=kind == "CausalLM")
    encoder = (draw_tensors(Encoder(sizes)),)
    if kind in PRETRAINING:
        head = draw_tensors(PRETRAINING[kind](sizes)) if kind else {}
        return describe(SavedNetwork(PREDICTS[kind], sizes, encoder, head), tokenizer, 16, "random")
    facts = {**FACTS, "family": FAMILIES[kind]} | settings
    config = FinetuneConfig(pooling=pooling)
    head = draw_tensors(restore_family(facts).build_head(sizes, config))
    network = SavedNetwork("", sizes, encoder, head)
    return describe_finetuned(Finetuned(network, tokenizer, 16, "", facts=facts, config=config))


def make_inputs(kind, vocab_size=120):
    rng = torch.Generator().manual_seed(1)
    shape = (2, 3, 9) if kind == "MultipleChoice" else (3, 9)
    ids = torch.randint(5, vocab_size, shape, generator=rng)
    mask = torch.ones_like(ids)
    mask[..., -1, 6:] = 0
    return ids * mask, mask, torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 1]).expand(shape) * mask


def read_outputs(found):
    return [each for name, each in found.items() if name.endswith(("logits", "hidden_state"))]


@torch.no_grad()
def assert_same_outputs(outgoing, theirs, beside):
    """The class in transformers, or its states and the head beside it, answer as our network."""
    graph, rows = outgoing.graph, make_inputs(outgoing.kind)
    ours = graph(*rows)
    ours = list(ours) if isinstance(ours, tuple) else [ours]
    names = ("input_ids", "attention_mask", "token_type_ids")
    inputs = dict(zip(names, rows, strict=True))
    if theirs.config.model_type in ("modernbert", "modernbert-decoder", "deberta-v2"):
        del inputs["token_type_ids"]
    if beside and outgoing.kind == "MultipleChoice":
        inputs = {name: each.flatten(0, 1) for name, each in inputs.items()}
    expected = read_outputs(theirs(**inputs))
    if graph.has_states and not beside:
        expected.insert(0, theirs.base_model(**inputs).last_hidden_state)
    if beside:
        outgoing.module.load_state_dict(dict(beside))
        head = outgoing.module.eval()
        (states,), mask = expected, inputs["attention_mask"].bool()
        if graph.is_pair:
            kept = {name: inputs[name] for name in ("token_type_ids",) if name in inputs}
            words = theirs.embeddings(inputs["input_ids"], **kept)
            expected = [head(torch.cat([states, words], dim=-1), mask, rows[2])]
        elif outgoing.kind == "PreTraining":
            expected = [states, head(states)]
        else:
            expected = [head(states, mask).view(ours[0].shape)]
    for found, each in zip(ours, expected, strict=True):
        assert found.abs().max() > 0.1
        real = rows[1].bool() if graph.is_per_token else slice(None)
        torch.testing.assert_close(found[real], each[real], atol=3e-5, rtol=0)


@pytest.mark.parametrize(("body", "form"), FORMATS)
@pytest.mark.parametrize(("kind", "pooling"), CASES)
def test_round_trip(kind, pooling, body, form, toy_tokenizer, tmp_path):
    sizes = make_sizes(body, 64 if form == "bert" else 32)
    outgoing = make_outgoing(kind, pooling, sizes, toy_tokenizer)
    sizes = outgoing.network.sizes
    if sizes.causal and body == "deberta-v2":
        refuse("transformers has no causal class of", write_network, tmp_path, outgoing, form)
        return
    if form == "bert" and pooling == "cls" and kind in ("SequenceClassification", "MultipleChoice"):
        says = f"no class with the head of ElectraFor{kind}"
        refuse(says, write_network, tmp_path, outgoing, form)
        return
    write = partial(write_network, form=form) if form == "bert" else write_plain
    write(tmp_path, outgoing)
    paths = [tmp_path / name for name in (HEAD_FILE, DISCRIMINATOR_FILE)]
    beside = next((dict(read_tensors(path)) for path in paths if path.exists()), {})
    prefix = {"electra": "Electra", "deberta-v2": "DebertaV2"}.get(body, "ModernBert")
    prefix = prefix if form == "huggingface" else "Bert"
    prefix += "Decoder" if sizes.causal and "modern" in body else ""
    has_class = not beside and kind
    name = f"{prefix}For{kind}" if has_class else f"{prefix}Model"
    name = "BertLMHeadModel" if name == "BertForCausalLM" else name
    options = {"add_pooling_layer": False} if name == "BertModel" else {}
    if body == "deberta-v2" and kind == "PreTraining":
        assert all(each.startswith("mask_predictions.") for each in beside)
        beside = dict(DEBERTA.read_beside(beside, sizes))
    theirs, info = getattr(transformers, name).from_pretrained(
        tmp_path, output_loading_info=True, **options
    )
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    is_lost = kind == "PreTraining" and prefix != "Electra"
    assert bool(beside) == (is_lost or not outgoing.has_class)
    if "Classification" in kind and has_class:
        assert theirs.config.id2label == {0: "a", 1: "b", 2: "c"}
    assert_same_outputs(outgoing, theirs.eval(), beside)
    if form == "huggingface":
        found = read_model(tmp_path)
        assert found.encoder == sizes
        assert_same_tensors(found.tensors, outgoing.network.encoders[0])
        if outgoing.network.predicts:
            assert found.kept.predicts == outgoing.network.predicts
            assert_same_tensors(found.kept.head, outgoing.network.head)


def test_a_causal_encoder_without_a_class(toy_tokenizer, tmp_path):
    sizes = dataclasses.replace(make_sizes("modernbert"), causal=True)
    outgoing = make_outgoing("SequenceClassification", "mean", sizes, toy_tokenizer)
    network = dataclasses.replace(outgoing.network, sizes=sizes)
    outgoing = dataclasses.replace(outgoing, network=network)
    refuse("ModernBert with this head; electra reads it", write_plain, tmp_path, outgoing)


@pytest.mark.parametrize(
    ("window", "half"), [({"sliding_window": 5}, 4), ({"local_attention": 129}, 63), ({}, 63)]
)
def test_the_window_of_a_decoder(window, half):
    assert MODERNBERT_DECODER.read_config(window).local_attention == 2 * half
    refuse(
        "sliding_window must be at least 2, not 1",
        MODERNBERT_DECODER.read_config,
        {"local_attention": 2},
    )


REQUIRED = """vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads
hidden_activation max_position_embeddings initializer_range initializer_cutoff_factor norm_eps
norm_bias layer_norm_eps pad_token_id eos_token_id bos_token_id cls_token_id sep_token_id
global_rope_theta local_rope_theta attention_bias attention_dropout global_attn_every_n_layers
local_attention classifier_activation num_labels id2label label2id classifier_pooling"""
"""Fields without which candle and text-embeddings-inference do not read a ModernBERT classifier.
Source: modernbert.rs of both."""


def test_a_config_suits_older_readers_and_newer_ones(toy_tokenizer):
    sizes = dataclasses.replace(make_sizes("modernbert"), local_rope_theta=5.0)
    config, _, _ = convert(make_outgoing("SequenceClassification", "cls", sizes, toy_tokenizer))
    assert not set(REQUIRED.split()) - set(config)
    assert config["rope_parameters"]["full_attention"]["rope_theta"] == config["global_rope_theta"]
    assert config["rope_parameters"]["sliding_attention"]["rope_theta"] == 5.0
    assert config["num_labels"] == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("body", "attention"),
    [(body, "eager") for body in BODIES] + [(body, "sdpa") for body in BODIES[:2]],
)
@torch.no_grad()
def test_padding_changes_no_state_and_nothing_is_nan(
    body, attention, dtype, toy_tokenizer, tmp_path
):
    """Most windows of local attention see padding alone, and the last row has no token."""
    sizes = make_sizes(body, positions=64, vocab_size=toy_tokenizer.vocab_size)
    write_plain(tmp_path, make_outgoing("PreTraining", "cls", sizes, toy_tokenizer))
    model = transformers.AutoModel.from_pretrained(
        tmp_path, attn_implementation=attention, dtype=dtype
    ).eval()
    ids = torch.randint(5, 100, (3, 40), generator=torch.Generator().manual_seed(1))
    mask = (torch.arange(40) < torch.tensor([[40], [3], [0]])).long()
    states = model(ids * mask, mask).last_hidden_state
    assert states.dtype == dtype
    assert states.isfinite().all()
    alone = model(ids[1:2, :3], mask[1:2, :3]).last_hidden_state
    assert alone.abs().max() > 0.1
    tolerance = 2e-5 if dtype == torch.float32 else 0.1
    torch.testing.assert_close(states[1:2, :3], alone, atol=tolerance, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize(("kind", "pooling"), CASES)
def test_onnx_agrees(kind, pooling, body, toy_tokenizer, toy_text, tmp_path):
    """In float32 over 20 shapes, and another network is noticed; in int8 beyond chance.

    The weights are random, so that many decisions are as good as ties.
    """
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    sizes = make_sizes(body, 32, 64, toy_tokenizer.vocab_size)
    graph = make_outgoing(kind, pooling, sizes, toy_tokenizer).graph
    text = [line for line in toy_text.read_text().splitlines() if line][:200]
    found = onnx.write_onnx(tmp_path, graph, toy_tokenizer, text, is_beside=True)
    path = tmp_path / "onnx" / "model.onnx"
    agreement = found["model_int8.onnx"]
    assert found[path.name]["difference"] <= 1e-4
    assert agreement["agreement"] >= 0.8
    assert agreement["decisions"] > 40
    assert path.with_name("model_int8.onnx").exists() != ("least" in agreement)
    with torch.no_grad():
        graph.encoder.layers[0].output.weight[3] += 1
    assert onnx.compare_shapes(path, graph) > 1e-3


@pytest.mark.parametrize(
    ("facts", "settings", "message"),
    [
        ({"family": "squad", "head": "beam"}, {}, "no class with a beam head"),
        ({"family": "tagging"}, {"features": FeaturesConfig(layers=2)}, "no class with a BiLSTM"),
        ({"family": "tagging"}, {"bilstm": True}, "no class with a BiLSTM"),
    ],
)
def test_heads_that_no_class_can_hold_are_refused(facts, settings, message, toy_tokenizer):
    network, config = SavedNetwork("", make_sizes("modernbert"), ({},)), FinetuneConfig(**settings)
    tuned = Finetuned(network, toy_tokenizer, 16, "", facts={**FACTS, **facts}, config=config)
    refuse(message, describe_finetuned, tuned)


def test_a_fine_tuned_generator_with_a_decoder_is_refused(toy_tokenizer):
    sizes = dataclasses.replace(make_sizes("deberta-v2"), enhanced_decoder=True)
    tagger = ("TokenClassification", "cls", sizes, toy_tokenizer)
    refuse("no class with an enhanced mask decoder", make_outgoing, *tagger)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("modernbert", "BERT has learned positions, modernbert has not"),
        ("deberta-v2", "BERT has learned positions, deberta-v2 has not"),
        ("electra", "embedding_size 32 must be hidden_size 64, as in base"),
    ],
)
def test_graphs_that_bert_has_not_are_refused(body, message, toy_tokenizer, tmp_path):
    outgoing = make_outgoing("PreTraining", "cls", make_sizes(body), toy_tokenizer)
    refuse(message, write_network, tmp_path, outgoing, "bert")
    assert not list(tmp_path.iterdir())
