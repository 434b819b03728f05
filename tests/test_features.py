"""An encoder that is read instead of fine-tuned."""

import dataclasses
import json

import pytest
import torch
from refusals import refuse
from tasks import ignore

from electra.checkpoints.folder import read_finetuned, read_model
from electra.config import FinetuneConfig
from electra.errors import UserError
from electra.finetuning.loop import finetune, train_seed
from electra.finetuning.network import build_network, keep_tokens, load_network, run_network
from electra.finetuning.start import Job, encode_task, fit_to_start
from electra.interop.export import export
from electra.model.encoder import Encoder
from electra.presets import FINETUNE_PRESETS, PRESETS
from electra.settings import from_dict, override
from electra.tasks.choice import MultipleChoice
from electra.tasks.family import Task
from electra.tasks.registry import read_task
from electra.training.machine import Machine

CPU = torch.device("cpu")
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
    lines = [line for line in toy_text.read_text().splitlines() if line]
    for split, part in (("train", lines[:300]), ("dev", lines[300:400])):
        tagged = [
            "\n".join(f"{word} {PERSONS.get(word, 'O')}" for word in line.split()) for line in part
        ]
        (folder / f"{split}.txt").write_text("\n\n".join(tagged) + "\n")
    return {"own": toy_question, "tagging": folder}


def test_features_are_the_states_after_the_top_layers(pretrained):
    encoder = Encoder(pretrained.encoder).eval()
    encoder.load_state_dict(pretrained.tensors)
    rng = torch.Generator().manual_seed(0)
    ids = torch.randint(pretrained.encoder.vocab_size, (4, 9), generator=rng)
    mask = torch.arange(9) < torch.tensor([9, 4, 1, 6])[:, None]
    types = torch.randint(2, (4, 9), generator=rng)
    *_, last = states = list(encoder.layer_states(ids, mask, types))
    torch.testing.assert_close(last, encoder(ids, mask, types))
    assert len(states) == pretrained.encoder.num_hidden_layers
    assert not last.requires_grad


@pytest.mark.parametrize("name", [pytest.param("own", marks=pytest.mark.slow), "tagging"])
@pytest.mark.parametrize("combine", ["concat", pytest.param("sum", marks=pytest.mark.slow)])
def test_the_head_learns_and_the_encoder_stays(name, combine, pretrained, data):
    features = dataclasses.replace(CONFIG.features, combine=combine)
    config = dataclasses.replace(CONFIG, features=features, weight_decay=0.1, epochs=4)
    task = read_task(name, data[name], config)
    rows = encode_task(task, pretrained, config)
    run = train_seed(Job(pretrained, task, config), rows, Machine(), seed=0, progress=ignore)
    for key, tensor in run.model.encoder.state_dict().items():
        assert torch.equal(tensor, pretrained.tensors[key]), key
    fresh = build_network(
        pretrained, task.family, config, machine=Machine(), seed=0, from_scratch=False
    )
    for key, tensor in run.model.head.state_dict().items():
        assert not torch.equal(tensor, fresh.head.state_dict()[key]), key
    headline = task.family.find_constant(rows.splits["train"], rows.splits["dev"]).scores[
        task.family.headline
    ]
    assert run.record["scores"][task.family.headline] > max(0.97, headline)
    assert not run.record["degenerate"]


def test_a_read_encoder_has_no_dropout_and_the_head_has(pretrained, data):
    task = read_task("own", data["own"], CONFIG)
    model = build_network(
        pretrained, task.family, CONFIG, machine=Machine(), seed=0, from_scratch=False
    ).train()
    ids = torch.arange(12).view(2, 6)
    one, two = (torch.stack([*model.encoder.layer_states(ids)]) for _ in range(2))
    assert torch.equal(one, two)
    assert not torch.equal(model.head(one, None), model.head(one, None))


def test_settings_are_recorded_and_the_folder_gives_its_predictions(start, data, tmp_path):
    out = tmp_path / "out"
    finetune(start, "own", data["own"], out, CONFIG, seeds=1, progress=ignore)
    saved = from_dict(FinetuneConfig, json.loads((out / "config.json").read_text())["config"])
    assert saved == CONFIG
    task = read_task("own", data["own"], saved)
    model = load_network(read_finetuned(out), task.family, Machine())
    rows = encode_task(task, read_model(start), saved)
    keep_tokens(model, rows.token_ids)
    probs = run_network(model, rows.splits["dev"], CPU)["logits"].softmax(dim=1)
    lines = (out / "seed-0/predictions.tsv").read_text().splitlines()[1:]
    written = torch.tensor([[float(cell) for cell in line.split("\t")[3:]] for line in lines])
    torch.testing.assert_close(written, probs, atol=1e-5, rtol=0)
    refuse("transformers has no class with a BiLSTM", lambda: export(out, tmp_path / "exported"))


def test_what_does_not_fit_the_start_or_the_task_is_refused(pretrained, data):
    task = read_task("own", data["own"], CONFIG)
    kept = dataclasses.replace(pretrained.kept, sizes=PRESETS["small"].model)
    small = dataclasses.replace(pretrained, kept=kept)
    usual = override(FINETUNE_PRESETS["small"], ["features.layers=4"])
    assert fit_to_start(usual, small, task, from_scratch=False).layer_lr_decay == 1
    for config, message in (
        (override(CONFIG, ["features.layers=4"]), "features.layers 4 is more than the 2 layers of"),
        (override(CONFIG, ["reset_layers=3"]), "reset_layers 3 is more than the 2 layers of"),
        (override(CONFIG, ["reset_layers=1"]), "with features.layers 2 it does not: set reset_la"),
        (override(CONFIG, ["layer_lr_decay=0.5"]), "layer_lr_decay 0.5 is for an encoder that le"),
    ):
        refuse(message, fit_to_start, config, pretrained, task, from_scratch=False)
    with pytest.raises(UserError, match="from scratch all layers begin anew: set reset_layers=0"):
        fit_to_start(override(CONFIG, ["reset_layers=1"]), pretrained, task, from_scratch=True)
    choice = Task("swag", MultipleChoice(4), {})
    refuse("features.layers", lambda: fit_to_start(CONFIG, pretrained, choice, from_scratch=False))
