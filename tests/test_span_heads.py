import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from electra.model.initialisation import draw_glorot
from electra.model.task_heads import BEAM_SIZE, BeamSpanHead, SpanHead, answer_positions, span_loss
from electra.presets import PRESETS

HIDDEN = 24


def segments(*sizes: tuple[int, int, int]) -> torch.Tensor:
    """Rows of this many tokens of segment 0, segment 1 and padding."""
    return torch.tensor([[0] * a + [1] * b + [0] * pad for a, b, pad in sizes])


def random_batch(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """States, segments and targets."""
    rng = torch.Generator().manual_seed(seed)
    types = segments((5, 35, 0), (8, 22, 10), (4, 3, 33))
    states = torch.randn(*types.shape, HIDDEN, generator=rng, requires_grad=True)
    places = {"start": [9, 0, 4], "end": [12, 0, 5], "unanswerable": [0, 1, 0]}
    return states, types, {name: torch.tensor(values) for name, values in places.items()}


def random_head(seed: int = 0) -> BeamSpanHead:
    head = BeamSpanHead(HIDDEN)
    rng = torch.Generator().manual_seed(seed)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=rng)
    return head


class NaiveHead:
    """The released code's way with the same weights: every pair of states side by side."""

    def __init__(self, head: BeamSpanHead, states, allowed):
        self.weights = dict(head.named_parameters())
        self.states, self.allowed = states, allowed

    def dense(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def two_layers(self, name: str, *parts: torch.Tensor) -> torch.Tensor:
        inner = F.gelu(self.dense(f"{name}_inner", torch.cat(parts, dim=-1)))
        return self.dense(name, inner)[..., 0]

    def start_log_probs(self):
        logits = self.dense("start", self.states)[..., 0]
        return torch.where(self.allowed, logits, -1e30).log_softmax(-1)

    def end_log_probs(self, starts):
        """(B, K, L) given starts (B, K), from pairs (B, K, L, 2H)."""
        chosen = self.states.gather(1, starts[:, :, None].expand(-1, -1, HIDDEN))
        pairs = torch.broadcast_tensors(chosen[:, :, None], self.states[:, None])
        logits = self.two_layers("end", *pairs)
        return torch.where(self.allowed[:, None], logits, -1e30).log_softmax(-1)

    def unanswerable(self):
        expected = torch.einsum("bl,blh->bh", self.start_log_probs().exp(), self.states)
        return self.two_layers("unanswerable", expected, self.states[:, 0])

    def loss(self, targets):
        rows = torch.arange(len(self.states))
        start = self.start_log_probs()[rows, targets["start"]]
        end = self.end_log_probs(targets["start"][:, None])[rows, 0, targets["end"]]
        judged = F.softplus((1 - 2.0 * targets["unanswerable"]) * self.unanswerable())
        return (-(start + end) / 2 + judged / 2).mean()


def test_answers_stand_in_the_text_or_at_cls():
    types = segments((4, 4, 2), (3, 1, 6))
    assert answer_positions(types).nonzero().tolist() == [[0, 0], [0, 4], [0, 5], [0, 6], [1, 0]]


def test_beam_head_trains_as_the_one_that_writes_every_pair_out():
    head, (states, types, targets) = random_head(), random_batch()
    loss = span_loss(head(states, types, targets["start"]), targets)
    expected = NaiveHead(head, states, answer_positions(types)).loss(targets)
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-5)
    inputs = {"states": states, **dict(head.named_parameters())}
    ours, theirs = (torch.autograd.grad(each, list(inputs.values())) for each in (loss, expected))
    for name, gradient, by_naive in zip(inputs, ours, theirs, strict=True):
        torch.testing.assert_close(gradient, by_naive, atol=1e-5, rtol=1e-5)
        is_shift = name in ("start.bias", "end.bias")  # of all logits alike: no gradient
        assert is_shift or by_naive.abs().max() > 1e-3, name


@torch.no_grad()
def test_beam_head_finds_the_pairs_of_the_one_that_writes_every_pair_out():
    head, (states, types, _) = random_head(), random_batch()
    outputs, allowed = head(states, types), answer_positions(types)
    naive = NaiveHead(head, states, allowed)
    torch.testing.assert_close(outputs["unanswerable"], naive.unanswerable())
    starts, ends = naive.start_log_probs(), naive.end_log_probs(outputs["starts"])
    for row, num_allowed in enumerate(allowed.sum(dim=1).tolist()):
        beam = min(num_allowed, BEAM_SIZE)
        scores, places = starts[row].topk(beam)
        assert outputs["starts"][row, :beam].tolist() == places.tolist()
        torch.testing.assert_close(outputs["start_scores"][row, :beam], scores)
        assert (outputs["start_scores"][row, beam:] == -torch.inf).all()
        scores, places = ends[row, :beam].topk(beam)
        assert outputs["ends"][row, :beam, :beam].tolist() == places.tolist()
        torch.testing.assert_close(outputs["end_scores"][row, :beam, :beam], scores)


@torch.no_grad()
def test_the_beam_has_one_size_in_rows_of_any_length():
    head, (states, _, _) = random_head(), random_batch()
    outputs = head(states[:, :7], segments((3, 4, 0)).expand(3, 7))
    assert outputs["starts"].shape == outputs["start_scores"].shape == (3, BEAM_SIZE)
    assert outputs["ends"].shape == outputs["end_scores"].shape == (3, BEAM_SIZE, BEAM_SIZE)
    assert outputs["end_scores"][:, 0].isfinite().sum(dim=-1).tolist() == [4, 4, 4]


def test_beam_head_never_holds_all_pairs():
    head, (states, types, _) = random_head(), random_batch()
    sizes = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            sizes.extend(x.numel() for x in torch.utils._pytree.tree_leaves(out) if x is not None)
            return out

    with Watch(), torch.no_grad():
        head(states, types)
    assert max(sizes) == types.numel() * 512


def test_plain_head_answers_in_the_text_or_at_cls():
    states, types = torch.randn(1, 14, HIDDEN), segments((5, 9, 0))
    head = SpanHead(replace(PRESETS["small"].model, hidden_size=HIDDEN))
    outputs, logits = head(states, types), head.dense(states)
    places = {"start": torch.tensor([7]), "end": torch.tensor([8])}
    by_hand = 0.0
    for column, name in enumerate(places):
        found = outputs[f"{name}_logits"]
        torch.testing.assert_close(found[:, 5:13], logits[:, 5:13, column])
        assert (found[:, 1:5] == -torch.inf).all()
        by_hand -= found.log_softmax(dim=-1)[0, places[name]] / 2
    torch.testing.assert_close(span_loss(outputs, places), by_hand.squeeze())


@pytest.mark.parametrize("head", [SpanHead(PRESETS["small"].model), BeamSpanHead(256)])
def test_span_heads_are_drawn_as_the_released_code_does(head):
    draw_glorot(head, torch.Generator().manual_seed(0))
    for name, weight in head.named_parameters():
        if name.endswith("weight"):
            bound = math.sqrt(6 / sum(weight.shape))
            assert 0.95 * bound < weight.abs().max() <= bound, name
