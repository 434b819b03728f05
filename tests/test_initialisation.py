"""How weights begin: BERT's law, and the start that looks at neighbours."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from networks import rng
from scipy import stats

from electra.assignments import override
from electra.model.encoder import Encoder
from electra.model.heads import DiscriminatorHead
from electra.model.initialisation import draw_glorot, init_weights
from electra.presets import PRESETS, encoder_sizes
from electra.pretraining.neighbours import embed_tokens, look_at_neighbours
from electra.pretraining.start import build_model, count_tokens, fit_to_shards
from electra.shards.config import PrepareConfig
from electra.shards.prepare import prepare
from electra.shards.store import open_shards
from electra.tokenizing.config import TokenizerConfig
from electra.tokenizing.tokenizer import Tokenizer
from electra.training.machine import Machine


def test_normal_cut_at_two_deviations():
    """Kolmogorov-Smirnov on 98,304 weights; level 1e-4. Biases are 0, norms 1 and 0."""
    encoder = Encoder(PRESETS["tiny"].model)
    init_weights(encoder, 0.02, torch.Generator().manual_seed(0))
    weights = torch.cat([layer.attention.qkv.weight.flatten() for layer in encoder.layers])
    assert weights.abs().max() <= 0.04
    law = stats.truncnorm(-2, 2, scale=0.02)
    assert stats.kstest(weights[:98_304].detach().numpy(), law.cdf).pvalue > 1e-4
    for name, parameter in encoder.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any()
        elif "norm" in name:
            assert (parameter == 1).all()


def test_glorot_where_no_initialiser_was_named():
    """Uniform in +-sqrt(6 / (in + out)): the projection and the last layer, nothing else."""
    sizes = encoder_sizes(256, 1, 128, vocab_size=50)
    network = torch.nn.ModuleDict({"encoder": Encoder(sizes), "head": DiscriminatorHead(sizes)})
    init_weights(network, 0.02, rng(0))
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    draw_glorot(network, rng(1))
    changed = {n: p for n, p in network.named_parameters() if not torch.equal(p, before[n])}
    bounds = {
        "encoder.embeddings_project.weight": math.sqrt(6 / (128 + 256)),
        "head.dense_prediction.weight": math.sqrt(6 / (256 + 1)),
    }
    assert changed.keys() == bounds.keys()
    for name, bound in bounds.items():
        assert bound * 0.95 < changed[name].abs().max() <= bound


def attention_of_first_layer(encoder, ids):
    states = encoder.embeddings(ids, None)
    if encoder.embeddings_project is not None:
        states = encoder.embeddings_project(states)
    attention = encoder.layers[0].attention
    query, key, _ = (
        attention.qkv(states)
        .view(*states.shape[:2], 3, attention.num_heads, -1)
        .permute(2, 0, 3, 1, 4)
    )
    return (query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5).softmax(dim=-1)


@pytest.mark.parametrize(
    ("embedding_size", "sees", "offsets"),
    [(128, "all", (-1, 1)), (64, "all", (-1, 1)), (64, "before", (-1, -1)), (64, "after", (1, 1))],
)
def test_heads_look_at_the_tokens_beside(embedding_size, sees, offsets):
    """A head's favourite position is its neighbour in over four of ten cases; chance: 1 in 64."""
    config = PRESETS["tiny"].model
    encoder = Encoder(dataclasses.replace(config, embedding_size=embedding_size))
    encoder.sees = sees
    rng = torch.Generator().manual_seed(1)
    init_weights(encoder, 0.02, rng)
    look_at_neighbours([encoder], 0.02, rng)
    ids = torch.randint(5, 30_000, (4, 64), generator=rng)
    probs = attention_of_first_layer(encoder, ids)
    place = torch.arange(64)
    for head, offset in enumerate(offsets):
        inside = (place + offset >= 0) & (place + offset < 64)
        favourite = probs[:, head].argmax(dim=-1)[:, inside]
        assert (favourite == (place + offset)[inside]).float().mean() > 0.4


def test_generator_begins_at_the_frequencies(toy_shards, toy_config):
    shards = open_shards(toy_shards)
    config = fit_to_shards(override(toy_config, ["generator.hidden_fraction=1"]), shards)
    model = build_model(config, shards.tokenizer, Machine(), count_tokens(shards))
    tokens = np.concatenate([shard.tokens for shard in shards.train])
    probs = model.generator.head.bias.detach().exp()
    assert probs.sum().item() == pytest.approx(1, abs=1e-5)
    token = int(np.bincount(tokens).argmax())
    assert probs[token].item() == pytest.approx((tokens == token).mean(), rel=0.02)
    assert math.isfinite(model.generator.head.bias.min().item())


@pytest.fixture(scope="module")
def twins(tmp_path_factory):
    """Shards of a text in which "left" and "right" occur in the same contexts, "other" does not."""
    rng = np.random.default_rng(0)
    names = [f"{a}{b}{c}" for a in "klmn" for b in "aeiou" for c in "pqrst"]
    contexts = {"left": names[:30], "right": names[:30], "other": names[60:90]}
    lines = []
    for number in range(3000):
        word = ("left", "right", "other")[number % 3]
        before, after = rng.choice(contexts[word], (2, 3))
        lines.append(" ".join([*before, word, *after]))
    folder = tmp_path_factory.mktemp("twins")
    (folder / "text.txt").write_text("\n".join(lines), encoding="utf-8")
    tokenizer = Tokenizer.train(lines, TokenizerConfig(vocab_size=400))
    config = PrepareConfig(border="line", heldout_prob=0.02, workers=1)
    prepare([str(folder / "text.txt")], tokenizer, folder / "shards", config, lambda *_: None)
    return open_shards(folder / "shards")


def test_tokens_of_the_same_contexts_begin_with_similar_embeddings(twins):
    embeddings = embed_tokens(twins, 16, 0.02, seed=0)
    norms = embeddings.norm(dim=1)
    torch.testing.assert_close(norms, torch.full_like(norms, 0.02 * 4))
    left, right, other = (
        embeddings[twins.tokenizer.encode(word)].mean(dim=0) for word in ("left", "right", "other")
    )
    assert torch.cosine_similarity(left, right, dim=0) > 0.9
    assert torch.cosine_similarity(left, other, dim=0) < 0.5
    assert torch.equal(embeddings, embed_tokens(twins, 16, 0.02, seed=0))


def test_a_token_that_does_not_occur_begins_at_random(twins):
    embeddings = embed_tokens(twins, 16, 0.02, seed=0)
    other = embed_tokens(twins, 16, 0.02, seed=1)
    mask = twins.tokenizer.mask_id
    assert embeddings[mask].norm().item() == pytest.approx(0.08)
    assert not torch.allclose(embeddings[mask], other[mask])


def test_cooccurrence_sets_the_embeddings_of_every_network(twins):
    config = override(
        PRESETS["tiny"], ["train.initial_weights=cooccurrence", "method.sharing=none"]
    )
    config = fit_to_shards(config, twins)
    embeddings = embed_tokens(twins, config.model.embedding_size, 0.02, seed=0)
    model = build_model(config, twins.tokenizer, Machine(), count_tokens(twins), embeddings)
    for encoder in (model.discriminator, model.generator.encoder):
        assert torch.equal(encoder.embeddings.tokens.weight, embeddings)


def test_cooccurrence_leaves_a_narrow_frozen_generator_out(twins):
    num_tokens = twins.tokenizer.vocab_size
    settings = ["train.initial_weights=cooccurrence", f"model.vocab_size={num_tokens}"]
    frozen = ["generator.kind=frozen", "generator.frozen_run=run", "generator.hidden_size=64"]
    config = override(PRESETS["modern-tiny"], [*settings, *frozen, "method.sharing=none"])
    embeddings = torch.ones(num_tokens, config.model.embedding_size)
    model = build_model(config, twins.tokenizer, Machine(), count_tokens(twins), embeddings)
    assert torch.equal(model.discriminator.embeddings.tokens.weight, embeddings)
    assert model.generator.encoder.embeddings.tokens.weight.shape == (num_tokens, 64)
