"""The architecture modernbert against transformers' ModernBertModel, and in all that trains."""

import dataclasses
import itertools

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch.utils.flop_counter import FlopCounterMode

from electra.checkpoints.names import MODERNBERT
from electra.config import EncoderConfig
from electra.errors import UserError
from electra.method.flops import count_true
from electra.method.masking import Vocabulary
from electra.method.objective import Parts
from electra.method.registry import build_objective
from electra.model.encoder import Encoder
from electra.model.fused import FusedPreNormLayer
from electra.model.heads import GeneratorHead
from electra.model.initialisation import init_weights
from electra.model.modernbert import PreNormLayer, find_block
from electra.model.parts import DropoutMasks
from electra.presets import PRESETS
from electra.pretraining.plan import make_rows
from electra.settings import override
from electra.tokenizing.tokenizer import make_tokenizer

VOCAB = 99
TOKENIZER = make_tokenizer(VOCAB)
SIZES = EncoderConfig(
    architecture="modernbert",
    vocab_size=VOCAB,
    embedding_size=48,
    hidden_size=48,
    num_hidden_layers=4,
    num_attention_heads=3,
    intermediate_size=80,
    max_position_embeddings=1024,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    layer_norm_eps=1e-5,
    local_attention=32,
)
WITH_BIASES = dataclasses.replace(
    SIZES,
    norm_bias=True,
    attention_bias=True,
    mlp_bias=True,
    classifier_bias=True,
    global_attn_every_n_layers=2,
)
BOTH = (PreNormLayer, FusedPreNormLayer)
TOLERANCE = {"atol": 1e-5, "rtol": 0}


def rng(seed):
    return torch.Generator().manual_seed(seed)


def draw(module, std=0.2):
    """Ten times the usual weights, so that differences show; biases and norms too."""
    init_weights(module, std, rng(1))
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() == 1:
                parameter += 0.1 * torch.randn(parameter.shape, generator=rng(2))
    return module


def convert(sizes, encoder, predicts, head):
    kind = "MaskedLM" if predicts == "tokens" else "PreTraining"
    values = MODERNBERT.write_config(sizes, MODERNBERT.class_name(kind), TOKENIZER)
    return values, MODERNBERT.to_theirs(encoder, head, kind)


def build_theirs(architecture, values, tensors):
    config = transformers.ModernBertConfig(**values)
    model = getattr(transformers, architecture)(config)
    unused = model.load_state_dict(tensors, strict=False)
    assert not unused.unexpected_keys
    assert set(unused.missing_keys) <= {"decoder.weight"}  # tied
    return model.eval()


def rows_of(length, is_padded):
    ids = torch.randint(5, VOCAB, (3, length), generator=rng(length))
    if not is_padded:
        return ids, None
    real = torch.arange(length) < torch.tensor([length, max(1, length // 2), 1])[:, None]
    return ids * real, real


# Parity


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param(SIZES, id="no-biases", marks=pytest.mark.slow),
        pytest.param(WITH_BIASES, id="biases"),
    ],
)
@pytest.mark.parametrize("layer", BOTH)
def test_states_are_those_of_transformers_at_every_length(sizes, layer):
    """Over rows in which local attention is dense, in blocks, and wider than the row."""
    encoder = draw(Encoder(sizes, layer=layer).eval())
    theirs = build_theirs("ModernBertModel", *convert(sizes, encoder.state_dict(), "replaced", {}))
    count = sum(parameter.numel() for parameter in encoder.parameters())
    assert count == sum(parameter.numel() for parameter in theirs.parameters())
    lengths = (1, 2, 16, 17, 18, 48, 49, 64, 65, 100, 128, 257, 512, 1024)
    assert {find_block(length, 16) for length in lengths} == {0, 16}
    for length, is_padded in itertools.product(lengths, (False, True)):
        ids, real = rows_of(length, is_padded)
        mask = None if real is None else real.long()
        with torch.no_grad():
            expected = theirs(input_ids=ids, attention_mask=mask).last_hidden_state
            states = encoder(ids, real)
        is_token = torch.ones_like(ids, dtype=torch.bool) if real is None else real
        torch.testing.assert_close(states[is_token], expected[is_token], **TOLERANCE)


@pytest.mark.parametrize("sizes", [SIZES, WITH_BIASES], ids=["no-biases", "biases"])
@pytest.mark.parametrize("layer", BOTH)
@pytest.mark.parametrize("length", [24, 130])
def test_logits_and_gradients_are_those_of_transformers(sizes, layer, length):
    encoder, head = draw(Encoder(sizes, layer=layer)), draw(GeneratorHead(sizes))
    theirs = build_theirs(
        "ModernBertForMaskedLM",
        *convert(sizes, encoder.state_dict(), "tokens", head.state_dict()),
    )
    ids, real = rows_of(length, is_padded=True)
    chosen = real & (torch.rand(ids.shape, generator=rng(3)) < 0.3)
    logits = head(encoder(ids, real)) @ encoder.embeddings.tokens.weight.T + head.bias
    labels = ids.masked_fill(~chosen, -100)
    output = theirs(input_ids=ids, attention_mask=real.long(), labels=labels)
    torch.testing.assert_close(logits[real], output.logits[real], **TOLERANCE)
    F.cross_entropy(logits[chosen], ids[chosen]).backward()
    output.loss.backward()
    gradients = [
        {name: parameter.grad for name, parameter in module.named_parameters()}
        for module in (encoder, head)
    ]
    _, ours = convert(sizes, gradients[0], "tokens", gradients[1])
    expected = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    expected.pop("decoder.weight", None)
    assert ours.keys() == expected.keys()
    for name, gradient in ours.items():
        # transformers' embeddings have no gradient at [PAD], which no token attends to.
        scale = max(1.0, expected[name].abs().max().item())
        assert (gradient - expected[name]).abs().max() <= 1e-5 * scale, name


@pytest.mark.parametrize("sizes", [SIZES, WITH_BIASES], ids=["no-biases", "biases"])
def test_names_and_sizes_round_trip(sizes):
    encoder = draw(Encoder(sizes))
    for kind in ("", "MaskedLM"):
        theirs = MODERNBERT.to_theirs(encoder.state_dict(), {}, kind)
        back = MODERNBERT.read_encoder(theirs, sizes)
        assert back.keys() == encoder.state_dict().keys()
        assert all(torch.equal(back[name], each) for name, each in encoder.state_dict().items())
    values = MODERNBERT.write_config(sizes, "ModernBertModel", TOKENIZER)
    assert MODERNBERT.read_config(values) == sizes
    # As the newest transformers writes it: lists and tables in place of numbers.
    config = transformers.ModernBertConfig(**values)
    assert config.layer_types == [
        "sliding_attention" if sizes.is_local(layer) else "full_attention" for layer in range(4)
    ]
    assert MODERNBERT.read_config(config.to_dict()) == sizes


def test_missing_fields_have_transformers_defaults():
    found = MODERNBERT.read_config({"model_type": "modernbert"})
    assert found == MODERNBERT.read_config(transformers.ModernBertConfig().to_dict())
    assert (found.hidden_size, found.num_hidden_layers, found.layer_norm_eps) == (768, 22, 1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_activation": "silu"}, "hidden_activation must be 'gelu', not 'silu'"),
        ({"hidden_size": "768"}, "hidden_size must be a whole number from 1, not '768'"),
        ({"norm_bias": 1}, "norm_bias must be true or false, not 1"),
        ({"mlp_dropout": 0.1}, "embedding_dropout 0.0 and mlp_dropout 0.1 must be the same"),
        ({"norm_eps": None}, "norm_eps must be a number from 0, not None"),
        (
            {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]},
            "layer_types must be full_attention in every n-th layer",
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}},
            "rope_type must be 'default', not 'yarn'",
        ),
    ],
)
def test_a_model_that_our_encoder_is_not_is_refused(change, message):
    with pytest.raises(UserError, match=message):
        MODERNBERT.read_config({"model_type": "modernbert", **change})


# The layers


def run(layer_class, dtype, length, dropout_prob, is_local, sizes=SIZES):
    """Return the output of a layer and every gradient of a weighted sum of it."""
    sizes = dataclasses.replace(
        sizes, hidden_dropout_prob=dropout_prob, attention_probs_dropout_prob=dropout_prob / 2
    )
    layer = draw(layer_class(sizes, int(is_local))).train(dropout_prob > 0)
    encoder = Encoder(sizes, compute_dtype=dtype)
    real = torch.arange(length) < torch.tensor([length, length // 2 + 1])[:, None]
    places = encoder.find_places(real.long(), real)[int(is_local)]
    x = torch.randn(2, length, 48, generator=rng(5)).to(dtype).requires_grad_()
    weights = torch.randn(2, length, 48, generator=rng(6)) * real[:, :, None]
    torch.manual_seed(2)
    masks = None
    if dropout_prob:
        masks = DropoutMasks(2 * length * 3 * length, dtype, {dropout_prob, dropout_prob / 2})
    y = layer(x, places, masks)
    (y.float() * weights).sum().backward()
    gradients = {name: parameter.grad for name, parameter in layer.named_parameters()}
    return y.detach() * real[:, :, None], {"x": x.grad.float(), **gradients}


@pytest.mark.parametrize("length", [10, 40, 130])
@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize("dropout_prob", [0.0, 0.2])
@pytest.mark.parametrize("sizes", [SIZES, WITH_BIASES], ids=["no-biases", "biases"])
def test_the_fused_layer_is_the_plain_one(length, is_local, dropout_prob, sizes):
    (plain, plain_grads), (fused, fused_grads) = (
        run(each, torch.float32, length, dropout_prob, is_local, sizes) for each in BOTH
    )
    torch.testing.assert_close(fused, plain, atol=2e-6 * plain.abs().max().item(), rtol=0)
    assert fused_grads.keys() == plain_grads.keys()
    for name, gradient in fused_grads.items():
        largest = plain_grads[name].abs().max()
        assert (gradient - plain_grads[name]).abs().max() <= 1e-5 * largest, name


@pytest.mark.parametrize("is_local", [False, True])
def test_in_bfloat16_both_layers_are_as_far_from_float32(is_local):
    exact, exact_grads = run(PreNormLayer, torch.float32, 130, 0.0, is_local)

    def distance(layer_class):
        y, grads = run(layer_class, torch.bfloat16, 130, 0.0, is_local)
        errors = [(y - exact).norm() / exact.norm()]
        errors += [(grads[name] - each).norm() / each.norm() for name, each in exact_grads.items()]
        return torch.stack(errors)

    plain, fused = map(distance, BOTH)
    assert (fused <= 1.5 * plain).all(), (fused / plain).tolist()


def test_scores_of_rotated_vectors_depend_on_the_distance_only():
    places = Encoder(SIZES).find_places(torch.zeros(1, 64, dtype=torch.long))[0]
    q, k = torch.randn(2, 1, 16, generator=rng(0))
    q, k = (places.rotate(x.expand(64, 16)) for x in (q, k))
    scores = q @ k.T
    for distance in (-5, 0, 1, 20):
        diagonal = scores.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), **TOLERANCE)
    assert scores.diagonal(1).mean() != scores.diagonal(2).mean()


@pytest.mark.parametrize("layer", BOTH)
@pytest.mark.parametrize("sees", ["all", "before", "after"])
def test_packed_documents_have_the_states_that_they_have_alone(layer, sees):
    """Wherever they stand in a row: rotary positions need no restart at a document's border."""
    encoder = draw(Encoder(SIZES, layer=layer).eval())
    ids = torch.randint(5, VOCAB, (2, 140), generator=rng(0))
    lengths = [[60, 80], [1, 99]]
    numbers = torch.tensor([[1] * 60 + [2] * 80, [1] * 1 + [2] * 99 + [0] * 40])
    with torch.no_grad():
        states = encoder(ids, document_ids_BL=numbers, sees=sees)
        for row, sizes in enumerate(lengths):
            start = 0
            for size in sizes:
                part = slice(start, start + size)
                alone = encoder(ids[row : row + 1, part], sees=sees)
                torch.testing.assert_close(states[row, part], alone[0], **TOLERANCE)
                start += size


def test_initial_weights_that_write_to_the_hidden_states_are_smaller():
    encoder = Encoder(dataclasses.replace(SIZES, num_hidden_layers=8))
    init_weights(encoder, 0.02, rng(0))
    expected = 0.02 * 0.88  # of a normal cut at two deviations
    layer = encoder.layers[3]
    for module in (encoder.embeddings.tokens, layer.attention.qkv, layer.intermediate_and_gate):
        assert module.weight.std().item() == pytest.approx(expected, rel=0.05)
    for module in (layer.attention.output, layer.output):
        assert module.weight.std().item() == pytest.approx(expected / 4, rel=0.05)


# Training


@pytest.mark.parametrize("length", [64, 128, 520])
@pytest.mark.parametrize(
    "settings",
    [
        [],
        ["method.objective=mlm"],
        ["method.objective=replace_mlm", "generator.layers_fraction=0.5"],
        ["method.sharing=none", "generator.hidden_fraction=0.5"],
    ],
)
def test_true_count_is_that_of_torch(settings, length):
    config = override(
        PRESETS["modern-mini"],
        [
            *("model.num_hidden_layers=4", "model.vocab_size=500", "model.local_attention=64"),
            *("model.max_position_embeddings=1024", f"examples.sequence_length={length}"),
            *settings,
        ],
    )
    objective = build_objective(Parts(config, Vocabulary(torch.ones(500, dtype=torch.bool))))
    batch = make_rows(config, 2, seed=0)
    with FlopCounterMode(display=False) as counter:
        objective.compute(batch, torch.Generator()).loss.backward()
    tokens = batch.input_ids_BL.numel()
    assert count_true(objective, length) == pytest.approx(
        counter.get_total_flops() / tokens, rel=0.01
    )
