"""An encoder that is read instead of fine-tuned."""

import dataclasses

import pytest
import torch
from networks import assert_same_tensors
from refusals import refuse
from tasks import ignore

from electra.assignments import override
from electra.finetuning.loop import train_seed
from electra.finetuning.network import build_network
from electra.finetuning.start import Job, encode_task, fit_to_start
from electra.model.features_config import FeaturesConfig
from electra.model.initialisation import init_weights
from electra.model.task_heads import FeatureHead, LayerSum
from electra.presets import FINETUNE_PRESETS, PRESETS
from electra.tasks.choice import MultipleChoice
from electra.tasks.family import Task
from electra.tasks.registry import read_task
from electra.training.machine import Machine

CONFIG = override(
    FINETUNE_PRESETS["tiny"],
    ["features.layers=2", "features.lstm_size=24", "features.lstm_layers=1", "epochs=1"]
    + ["batch_size=16", "learning_rate=1e-2", "reseeds=0", "sequence_length=32"]
    + ["precision=float32", "threads=1"],
)
PERSONS = {"old": "B-PER", "sailor": "I-PER", "queen": "B-PER", "doctor": "B-PER"}


@pytest.fixture(scope="module")
def data(toy_text, toy_question, tmp_path_factory):
    """By task: is it about the queen, and which of its words are persons."""
    folder = tmp_path_factory.mktemp("tagging")
    lines = [line.split() for line in toy_text.read_text().splitlines() if line]
    for split, part in (("train", lines[:300]), ("dev", lines[300:400])):
        tagged = ["".join(f"{word} {PERSONS.get(word, 'O')}\n" for word in line) for line in part]
        (folder / f"{split}.txt").write_text("\n".join(tagged))
    return {"own": toy_question, "tagging": folder}


def build_fresh(pretrained, task, config):
    how = {"machine": Machine(), "seed": 0, "from_scratch": False}
    return build_network(pretrained, task.family, config, **how)


@pytest.mark.parametrize("name", [pytest.param("own", marks=pytest.mark.slow), "tagging"])
@pytest.mark.parametrize("combine", ["concat", pytest.param("sum", marks=pytest.mark.slow)])
def test_the_head_learns_and_the_encoder_stays(name, combine, pretrained, data):
    features = dataclasses.replace(CONFIG.features, combine=combine)
    config = dataclasses.replace(CONFIG, features=features, weight_decay=0.1, epochs=4)
    task = read_task(name, data[name], config)
    rows = encode_task(task, pretrained, config)
    run = train_seed(Job(pretrained, task, config), rows, Machine(), seed=0, progress=ignore)
    assert_same_tensors(run.model.encoder.state_dict(), pretrained.tensors)
    fresh = build_fresh(pretrained, task, config).head.state_dict()
    for key, tensor in run.model.head.state_dict().items():
        assert not torch.equal(tensor, fresh[key]), key
    constant = task.family.find_constant(rows.splits["train"], rows.splits["dev"])
    headline = task.family.headline
    assert run.record["scores"][headline] > max(0.97, constant.scores[headline])
    assert not run.record["degenerate"]


def test_a_read_encoder_has_no_dropout_and_no_gradient_and_the_head_has(pretrained, data):
    model = build_fresh(pretrained, read_task("own", data["own"], CONFIG), CONFIG).train()
    ids = torch.arange(12).view(2, 6)
    one, two = (torch.stack([*model.encoder.layer_states(ids)]) for _ in range(2))
    assert torch.equal(one, two)
    assert not one.requires_grad
    assert not torch.equal(model.head(one, None), model.head(one, None))
    model.eval()
    assert torch.equal(model.head(one, None), model.head(one, None))


def test_what_does_not_fit_the_start_or_the_task_is_refused(pretrained, data):
    task = read_task("own", data["own"], CONFIG)
    kept = dataclasses.replace(pretrained.kept, sizes=PRESETS["small"].model)
    small = dataclasses.replace(pretrained, kept=kept)
    usual = override(FINETUNE_PRESETS["small"], ["features.layers=4"])
    assert fit_to_start(usual, small, task, from_scratch=False).layer_lr_decay == 1
    choice = Task("swag", MultipleChoice(4), {"train": []})
    for setting, asked, from_scratch, message in (
        ("features.layers=4", task, False, "features.layers 4 is more than the 2 layers of"),
        ("reset_layers=3", task, False, "reset_layers 3 is more than the 2 layers of"),
        ("reset_layers=1", task, False, "with features.layers 2 it does not: set reset_la"),
        ("layer_lr_decay=0.5", task, False, "layer_lr_decay 0.5 is for an encoder that le"),
        ("reset_layers=1", task, True, "from scratch all layers begin anew: set reset_layers=0"),
        ("epochs=1", choice, False, "features.layers"),
        ("pooling=mean", task, False, "its last states: with features.layers 2 reads none"),
    ):
        refuse(message, fit_to_start, override(CONFIG, [setting]), pretrained, asked, from_scratch)


LENGTHS = torch.tensor([7, 3, 1, 5])
MASK = torch.arange(7) < LENGTHS[:, None]
KINDS = [(combine, of) for combine in ("concat", "sum") for of in ("tokens", "row")]


def build(combine, of) -> FeatureHead:
    config = FeaturesConfig(layers=3, combine=combine, lstm_size=5)
    head = FeatureHead(6, 4, config, of=of, dropout_prob=0.0)
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


def test_half_precision_states_give_float32():
    assert build("concat", "row")(draw_states().bfloat16(), MASK).dtype == torch.float32
