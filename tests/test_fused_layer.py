"""The fused layer in an encoder, beside the plain one; and dropout's masks."""

import math

import pytest
import torch
import torch.nn.functional as F
from networks import assert_near_tensors
from torch import nn

from electra.model import masked_lm
from electra.model.electra import PostNormLayer
from electra.model.encoder import Encoder
from electra.model.fused import FusedPostNormLayer
from electra.model.initialisation import init_weights
from electra.model.parts import ONE, SPREAD, Dropout, DropoutMasks, num_kept
from electra.presets import encoder_sizes
from electra.pretraining.loop import pretrain
from electra.settings import override

BOTH = (PostNormLayer, FusedPostNormLayer)


def test_evaluation_keeps_nothing_for_a_backward_pass():
    layer = FusedPostNormLayer(encoder_sizes(64, 1, 32)).eval()
    with torch.no_grad():
        assert layer(torch.randn(2, 5, 64), None, None).grad_fn is None


class PooledPostNormLayer(PostNormLayer):
    """The plain layer under the fused one's dropout."""

    mask_sizes = FusedPostNormLayer.mask_sizes


def encoder_of(layer_class, dropout_prob):
    probs = {"hidden_dropout_prob": dropout_prob, "attention_probs_dropout_prob": dropout_prob / 2}
    encoder = Encoder(encoder_sizes(128, 2, 32, vocab_size=50, **probs), layer=layer_class).train()
    init_weights(encoder, 0.1, torch.Generator().manual_seed(0))
    return encoder


def loss_and_gradients(encoder):
    """The loss of some states, and the gradients of the encoder's parameters."""
    ids = torch.randint(50, (4, 16), generator=torch.Generator().manual_seed(1))
    torch.manual_seed(3)
    states = encoder(ids)
    loss = F.cross_entropy(states.flatten(0, 1), ids.flatten())
    loss.backward()
    return loss.item(), {name: p.grad for name, p in encoder.named_parameters()}


def assert_same(actual, expected):
    """Within the bounds that FusedPostNormLayer states."""
    assert actual[0] == pytest.approx(expected[0], rel=1e-6)
    assert_near_tensors(actual[1], expected[1], least=1)


def test_an_encoder_is_the_same_of_either_class():
    """Loss and gradients, dropout on; the two have the same parameters."""
    plain, fused = (encoder_of(each, 0.1) for each in (PooledPostNormLayer, FusedPostNormLayer))
    assert plain.state_dict().keys() == fused.state_dict().keys()
    assert_same(loss_and_gradients(fused), loss_and_gradients(plain))


def test_plain_layers_are_left_to_torchs_dropout():
    """Other elements are dropped, as many: means over many passes agree."""
    ids = torch.zeros(1, 16, dtype=torch.int64)
    means = []
    for layer_class in BOTH:
        torch.manual_seed(0)
        encoder = encoder_of(layer_class, 0.1)
        states = torch.stack([encoder(ids).detach() for _ in range(100)])
        means.append(states.mean(dim=0))
        deviation = states.std(dim=0) / 10
    assert not torch.equal(*means)
    assert ((means[0] - means[1]).abs() / deviation).mean() < 2


@pytest.mark.parametrize("layer_class", BOTH)
def test_only_plain_layers_call_their_parts(layer_class):
    """A forward hook on the attention sees its output in one class, and is passed by in the other.

    The hook changes nothing: the encoder computes what it computes without.
    """
    encoder, seen = encoder_of(layer_class, 0.0), []
    expected = loss_and_gradients(encoder_of(FusedPostNormLayer, 0.0))
    for layer in encoder.layers:
        layer.attention.register_forward_hook(lambda part, given, y: seen.append(y.shape))
    assert_same(loss_and_gradients(encoder), expected)
    assert seen == ([(4, 16, 128)] * 2 if layer_class is PostNormLayer else [])


class LowRank(nn.Module):
    """An adapter (LoRA): a frozen linear map plus a product of two thin ones."""

    def __init__(self, frozen):
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Linear(frozen.in_features, 4, bias=False)
        self.up = nn.Linear(4, frozen.out_features, bias=False)

    def forward(self, x):
        return self.frozen(x) + self.up(self.down(x))


def test_an_adapter_in_a_plain_layer_is_the_sum_in_a_fused_one():
    """With W + U D in place of W the fused layers compute the same, and the adapter learns."""
    adapted, summed = encoder_of(PostNormLayer, 0.0), encoder_of(FusedPostNormLayer, 0.0)
    for plain, fused in zip(adapted.layers, summed.layers, strict=True):
        adapter = plain.attention.qkv = LowRank(plain.attention.qkv)
        init_weights(nn.ModuleList([adapter.down, adapter.up]), 0.1, torch.Generator())
        with torch.no_grad():
            fused.attention.qkv.weight += adapter.up.weight @ adapter.down.weight
    loss, gradients = loss_and_gradients(adapted)
    expected_loss, expected = loss_and_gradients(summed)
    assert loss == pytest.approx(expected_loss, rel=1e-6)
    for number, layer in enumerate(adapted.layers):
        adapter = layer.attention.qkv
        whole = expected[f"layers.{number}.attention.qkv.weight"]
        for actual, gradient in (
            (adapter.up.weight.grad, whole @ adapter.down.weight.T),
            (adapter.down.weight.grad, adapter.up.weight.T @ whole),
        ):
            assert_near_tensors([actual], [gradient], least=1)
            assert gradient.abs().max() > 1e-4
        assert adapter.frozen.weight.grad is None
    assert gradients["embeddings.tokens.weight"] is not None


def losses_of_200_steps(toy_shards, toy_config, tmp_path, *settings):
    run, seen = tmp_path / str(len(list(tmp_path.iterdir()))), []
    settings = [
        *("model.hidden_dropout_prob=0", "model.attention_probs_dropout_prob=0"),
        *("train.steps=200", "train.log_every=1", "train.evaluate_every=200"),
        *("train.save_every=200", "train.seed=3", "train.spike_sigmas=inf"),
        *("optimizer.learning_rate=2e-3", "optimizer.warmup_steps=10"),
        *settings,
    ]
    pretrain(toy_shards, run, override(toy_config, settings), seen.append)
    return torch.tensor([record["loss"] for record in seen if record["part"] == "train"])


@pytest.mark.slow
def test_200_steps_by_either_path(toy_shards, toy_config, tmp_path, monkeypatch):
    """Fast and plain softmax and layers, the same seed, without dropout.

    Until a draw on the edge between two tokens falls to the other, losses agree to 1e-5; from then
    on the runs differ as two of other seeds do: no loss by more than 15%, the mean over 50 steps by
    no more than 6%. So does bfloat16.
    """
    arguments = (toy_shards, toy_config, tmp_path)
    fast = losses_of_200_steps(*arguments, "train.layers=fused")
    bfloat16 = losses_of_200_steps(*arguments, "train.layers=fused", "train.precision=bfloat16")
    monkeypatch.setattr(masked_lm, "loss_and_sample", masked_lm.loss_and_sample_plain)
    plain = losses_of_200_steps(*arguments, "train.layers=plain")
    assert len(plain) == 200
    assert not torch.equal(fast, plain)
    torch.testing.assert_close(fast[:20], plain[:20], rtol=1e-5, atol=0)
    for other in (fast, bfloat16):
        torch.testing.assert_close(other, plain, rtol=0.15, atol=0)
        means = (each.view(4, 50).mean(dim=1) for each in (other, plain))
        torch.testing.assert_close(*means, rtol=0.06, atol=0)


# --- masks ---


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_masks_keep_the_share_they_say(dtype):
    """A million elements: the share, neighbours and two masks at a time, within 4 deviations."""
    torch.manual_seed(0)
    masks = DropoutMasks(1_000_000, dtype, [0.1])
    one, two = (masks.draw(0.1, (1000, 1000)).double() for _ in range(2))
    assert one.unique().tolist() == [0.0, 1.0]
    for kept in (one, two):
        assert kept.mean().item() == pytest.approx(0.9, abs=4 * math.sqrt(0.09 / 1e6))
        for other in (kept.roll(1, 1), kept.roll(1, 0), kept.roll(7, 0)):
            both = (kept * other).mean().item()
            assert both == pytest.approx(0.81, abs=4 * math.sqrt(0.81 * 0.19 / 1e6))
    both = (one * two).mean().item()
    assert both == pytest.approx(0.81, abs=4 * math.sqrt(0.81 * 0.19 / 1e6))


def test_two_masks_are_the_same_flags_from_another_place():
    """That is what the class says of them; two passes share nothing."""
    torch.manual_seed(0)
    masks = DropoutMasks(200_000, torch.float32, [0.1])
    one, two = (masks.draw(0.1, (200_000,)) for _ in range(2))
    shift = (two.data_ptr() - one.data_ptr()) // one.itemsize
    assert 0 < abs(shift) < SPREAD
    early, late = (one, two) if shift > 0 else (two, one)
    assert torch.equal(early[abs(shift) :], late[: -abs(shift)])
    other = DropoutMasks(200_000, torch.float32, [0.1]).draw(0.1, (200_000,))
    assert (one * other).mean().item() == pytest.approx(0.81, abs=0.004)


def test_a_mask_of_the_largest_size_fits_the_pool_wherever_it_begins(monkeypatch):
    masks = DropoutMasks(100, torch.float32, [0.5])
    last = torch.tensor(SPREAD - 1)
    monkeypatch.setattr(torch, "randint", lambda *_: last)
    assert masks.draw(0.5, (100,)).shape == (100,)


def test_probabilities_are_exact_to_one_in_131072():
    for prob in (0.1, 0.15, 0.5, 1 / 3):
        assert num_kept(prob) / ONE == pytest.approx(1 - prob, abs=2**-17)
        assert Dropout(prob).scale == pytest.approx(1 / (1 - prob), rel=2**-15)


def test_dropout_scales_what_it_keeps_and_its_gradient_alike():
    torch.manual_seed(0)
    x = torch.ones(1000, requires_grad=True)
    out = Dropout(0.1).train()(x, DropoutMasks(1000, torch.float32, [0.1]))
    assert sorted(out.unique().tolist()) == pytest.approx([0.0, 1 / 0.9], rel=1e-4)
    out.sum().backward()
    assert torch.equal(x.grad, out)
    assert torch.equal(Dropout(0.1).eval()(x, DropoutMasks(1000, torch.float32, [0.1])), x)


def test_without_dropout_nothing_is_drawn():
    assert Dropout(0.0).train().draw((3,), DropoutMasks(3, torch.float32, [])) is None
