import pytest
import torch

from electra.config import FeaturesConfig
from electra.model.heads import FeatureHead, LayerSum
from electra.model.initialisation import init_weights

LENGTHS = torch.tensor([7, 3, 1, 5])
MASK = torch.arange(7) < LENGTHS[:, None]
KINDS = [(combine, of) for combine in ("concat", "sum") for of in ("tokens", "row")]


def build(combine, of, *, dropout_prob=0.0) -> FeatureHead:
    config = FeaturesConfig(layers=3, combine=combine, lstm_size=5)
    head = FeatureHead(6, 4, config, of=of, dropout_prob=dropout_prob)
    init_weights(head, 0.5, torch.Generator().manual_seed(0))
    return head


def draw_states(seed=0) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(3, 4, 7, 6, generator=rng, requires_grad=True)


@pytest.mark.parametrize(("combine", "of"), KINDS)
def test_padding_changes_nothing_and_gets_no_gradient(combine, of):
    head = build(combine, of)
    states, others = draw_states(), draw_states(seed=1)
    garbage = torch.where(MASK[:, :, None], states, 100 * others)
    logits = head(states, MASK)
    assert logits.shape == ((4, 7, 4) if of == "tokens" else (4, 4))
    torch.testing.assert_close(head(garbage, MASK), logits)
    for row, length in enumerate(LENGTHS.tolist()):
        alone = head(states[:, row : row + 1, :length], None)[0]
        together = logits[row, :length] if of == "tokens" else logits[row]
        torch.testing.assert_close(alone, together)
    logits.square().sum().backward()
    assert torch.equal(states.grad.abs().sum(dim=-1) > 0, MASK.expand(3, 4, 7))


@pytest.mark.parametrize("of", ["tokens", "row"])
def test_both_directions_are_read(of):
    head, states = build("concat", of), draw_states()
    logits = head(states, MASK)
    said = logits[0, 3] if of == "tokens" else logits[0]
    said.sum().backward()
    reached = states.grad[0].abs().sum(dim=-1) > 0
    assert reached[0].all()
    assert not reached[1:].any()


@pytest.mark.parametrize(("combine", "of"), KINDS)
def test_every_parameter_learns_and_the_seed_decides_it(combine, of):
    head = build(combine, of)
    head(draw_states(), MASK).square().sum().backward()
    for name, parameter in head.named_parameters():
        assert parameter.grad.abs().sum() > 0, name
    for one, other in zip(head.parameters(), build(combine, of).parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_sum_begins_as_the_mean_and_follows_its_weights():
    layer_sum, states = LayerSum(3), draw_states()
    torch.testing.assert_close(layer_sum(states), states.mean(dim=0))
    with torch.no_grad():
        layer_sum.weight.copy_(torch.tensor([1.0, 3.0, 4.0]).log())
        layer_sum.scale.fill_(2)
    expected = 2 * (states[0] / 8 + 3 * states[1] / 8 + 4 * states[2] / 8)
    torch.testing.assert_close(layer_sum(states), expected)


def test_sizes_are_bert_s_unless_told():
    head = FeatureHead(768, 9, FeaturesConfig(layers=4), of="tokens", dropout_prob=0.1)
    assert (head.lstm.input_size, head.lstm.hidden_size, head.lstm.num_layers) == (3072, 768, 2)
    assert (head.dense.in_features, head.dense.out_features) == (1536, 9)
    summed = FeaturesConfig(layers=4, combine="sum")
    assert FeatureHead(256, 9, summed, of="tokens", dropout_prob=0.1).lstm.input_size == 256


def test_dropout_in_training_only():
    head, states = build("sum", "tokens", dropout_prob=0.5), draw_states()
    assert not torch.equal(head(states, MASK), head(states, MASK))
    head.eval()
    assert torch.equal(head(states, MASK), head(states, MASK))


def test_half_precision_states_give_float32():
    assert build("concat", "row")(draw_states().bfloat16(), MASK).dtype == torch.float32
