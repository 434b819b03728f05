"""Fine-tuning that starts from what another fine-tuning has made."""

import dataclasses
import json
import shutil

import pytest
import torch
from networks import assert_same_tensors
from refusals import refuse
from safetensors.torch import load_file
from tasks import ignore

from electra.assignments import override
from electra.checkpoints.folder import read_model
from electra.files import write_json
from electra.finetuning.grid import combine, search
from electra.finetuning.loop import finetune
from electra.finetuning.network import build_network
from electra.finetuning.start import encode_task
from electra.tasks.config import FinetuneConfig
from electra.tasks.registry import read_task
from electra.training.machine import Machine

CONFIG = override(
    FinetuneConfig(),
    ["batch_size=16", "reseeds=0", "epochs=2", "learning_rate=1.3e-3", "sequence_length=16"]
    + ["layer_lr_decay=1", "pooling=mean", "precision=float32", "threads=1"],
)


@pytest.fixture(scope="module")
def first(start, toy_question, tmp_path_factory):
    """A finished fine-tuning of three seeds."""
    out = tmp_path_factory.mktemp("first") / "first"
    finetune(start, "own", toy_question, out, CONFIG, seeds=3, progress=ignore)
    return out


def build(pretrained, toy_question, seed=0, **changes):
    """The encoder of a network for the task."""
    config = dataclasses.replace(CONFIG, **changes)
    family = read_task("own", toy_question, config).family
    arguments = {"machine": Machine(), "seed": seed, "from_scratch": False}
    return dict(build_network(pretrained, family, config, **arguments).encoder.named_parameters())


@pytest.mark.parametrize("best", ["0", "1", "2"])
def test_the_encoder_is_that_of_the_best_seed_on_dev(best, first, start, toy_question, tmp_path):
    folder = shutil.copytree(first, tmp_path / "first")
    (folder / "electra.json").unlink()
    results = json.loads((folder / "results.json").read_text())
    for seed, record in results["seeds"].items():
        record["scores"] = {"accuracy": 0.9 if seed == best else 0.8, "f1": 1 / (1 + int(seed))}
    write_json(folder / "results.json", results)
    pretrained, before = read_model(folder), read_model(start)
    tensors = load_file(folder / f"seed-{best}/model/model.safetensors")
    kept = {name.removeprefix("encoder."): t for name, t in tensors.items() if "head" not in name}
    assert_same_tensors(pretrained.tensors, kept)
    assert_same_tensors(build(pretrained, toy_question), kept)
    assert pretrained.source == f"{folder} at seed {best}, fine-tuned on own"
    assert pretrained.sequence_length == 32
    assert pretrained.tokenizer.digest == before.tokenizer.digest
    moved = "layers.0.output.weight"
    assert not torch.equal(pretrained.tensors[moved], before.tensors[moved])


def test_top_layers_begin_anew_if_asked(first, toy_question):
    pretrained = read_model(first)
    ours, other = (build(pretrained, toy_question, seed, reset_layers=1) for seed in (0, 1))
    last = f"layers.{pretrained.encoder.num_hidden_layers - 1}."
    for name, parameter in ours.items():
        assert torch.equal(parameter, pretrained.tensors[name]) != name.startswith(last), name
        if name.startswith(last) and name.endswith("norm.weight"):
            assert (parameter == 1).all()
    assert not torch.equal(other[last + "output.weight"], ours[last + "output.weight"])


def test_fine_tuning_goes_on_from_it_and_says_so(first, start, toy_question, tmp_path):
    """With hardly any steps left, only an encoder that has learnt the question answers it."""
    config = dataclasses.replace(CONFIG, epochs=1, train_examples=64, sequence_length=24)
    arguments = {"seeds": 1, "progress": ignore}
    second = finetune(first, "own", toy_question, tmp_path / "second", config, **arguments)
    plain = finetune(start, "own", toy_question, tmp_path / "plain", config, **arguments)
    assert second["median"] > plain["median"] + 0.05
    assert second["start"] == str(first)
    assert (second["after"], plain["after"]) == ("own", "")
    assert second["source"] == read_model(first).source
    assert json.loads((tmp_path / "second/config.json").read_text())["start"] == second["source"]


def test_an_encoder_from_scratch_knows_only_the_rows_it_had(start, toy_question, tmp_path):
    out = tmp_path / "scratch"
    finetune(start, "own", toy_question, out, CONFIG, seeds=1, from_scratch=True, progress=ignore)
    assert read_model(out).sequence_length == 16
    longer = dataclasses.replace(CONFIG, sequence_length=24)
    arguments = out, "own", toy_question, tmp_path / "out", longer
    says = "sequence_length 24 is more than the 16 tokens that"
    refuse(says, finetune, *arguments, seeds=1, progress=ignore)


def test_tokens_that_the_first_task_lacked_are_handed_on_as_they_were(first, start, toy_question):
    before, after = read_model(start), read_model(first)
    token_ids = encode_task(read_task("own", toy_question, CONFIG), before, CONFIG).token_ids
    is_used = torch.zeros(before.tokenizer.vocab_size, dtype=torch.bool)
    is_used[token_ids] = True
    one, two = (each.tensors["embeddings.tokens.weight"] for each in (before, after))
    is_moved = (one != two).any(dim=1)
    assert not is_used.all()
    assert is_moved.any()
    assert is_used[is_moved].all()


def test_folders_that_cannot_be_started_from_are_refused(first, start, toy_question, tmp_path):
    half = tmp_path / "half.incomplete"
    shutil.copytree(first, half)
    (half / "electra.json").unlink()
    (half / "results.json").unlink()
    refuse("half.incomplete is not a finished folder of `electra finetune`", read_model, half)
    (half / "results.json").write_text("{")
    refuse("results.json, line 1: not valid JSON", read_model, half)
    write_json(half / "results.json", {"metric": "f1", "seeds": {"0": {"scores": {}}}})
    refuse("results.json: seeds.0.scores lacks 'f1'", read_model, half)
    out = tmp_path / "search"
    combinations = combine(CONFIG, [], ["learning_rate=1e-3,2e-3"])
    arguments = start, "own", toy_question, out
    best = search(*arguments, combinations, seeds=1, progress=ignore)["best"]
    with pytest.warns(UserWarning, match=f"its best fine-tuning on dev is {out}/{best}"):
        found = read_model(out)
    assert found.source == f"{out}/{best} at seed 0, fine-tuned on own"
    shutil.move(out / best, tmp_path)
    refuse(
        f"search is a grid, and lacks the folder of its best fine-tuning, {best}", read_model, out
    )
