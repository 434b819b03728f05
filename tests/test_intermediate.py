"""Fine-tuning that starts from what another fine-tuning has made."""

import dataclasses
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from electra.config import FinetuneConfig, UserError
from electra.files import write_json
from electra.finetune import encode_task, finetune
from electra.grid import combine, search
from electra.model.encoder import Encoder
from electra.model.huggingface import config_to_huggingface, encoder_to_huggingface
from electra.model.initialisation import init_weights
from electra.presets import encoder_sizes
from electra.settings import override
from electra.tasks.network import build_network
from electra.tasks.registry import read_task
from electra.training.pretrained import load_pretrained

CONFIG = override(
    FinetuneConfig(),
    ["batch_size=16", "reseeds=0", "epochs=2", "learning_rate=2e-3", "sequence_length=16"]
    + ["layer_lr_decay=1", "pooling=mean", "precision=float32", "threads=1"],
)


def ignore(record):
    pass


@pytest.fixture(scope="module")
def start(toy_tokenizer, tmp_path_factory):
    """A Hugging Face folder with an encoder of one layer, random weights, rows of at most 32."""
    folder = tmp_path_factory.mktemp("start") / "encoder"
    toy_tokenizer.save(folder)
    vocab_size = toy_tokenizer.vocab_size
    sizes = encoder_sizes(64, 1, 32, vocab_size=vocab_size, max_position_embeddings=32)
    encoder = Encoder(sizes)
    init_weights(encoder, 0.1, torch.Generator().manual_seed(0))
    write_json(folder / "config.json", config_to_huggingface(sizes, "ElectraModel", 0))
    save_file(encoder_to_huggingface(encoder.state_dict()), folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def data(toy_text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    lines = [line for line in toy_text.read_text().splitlines() if line]
    for split, part in (("train", lines[:160]), ("dev", lines[160:220])):
        rows = [f"{line}\t{'woman' if 'queen' in line else 'other'}" for line in part]
        (folder / f"{split}.tsv").write_text("\n".join(["text\tlabel", *rows]))
    return folder


@pytest.fixture(scope="module")
def first(start, data, tmp_path_factory):
    """A finished fine-tuning of three seeds."""
    out = tmp_path_factory.mktemp("first") / "first"
    finetune(start, "own", data, out, CONFIG, seeds=3, progress=ignore)
    return out


def test_the_encoder_is_that_of_the_best_seed_on_dev(first, start, data):
    seeds = json.loads((first / "results.json").read_text())["seeds"]
    scores = {seed: record["scores"]["accuracy"] for seed, record in seeds.items()}
    best = max(scores, key=scores.get)
    assert list(scores.values()).count(scores[best]) == 1  # else this test proves nothing
    pretrained = load_pretrained(first)
    tensors = load_file(first / f"seed-{best}/model/model.safetensors")
    kept = {name.removeprefix("encoder."): t for name, t in tensors.items() if "head" not in name}
    assert pretrained.tensors.keys() == kept.keys()
    assert all(torch.equal(pretrained.tensors[name], kept[name]) for name in kept)
    assert pretrained.source == f"{first} at seed {best}, fine-tuned on own"
    assert pretrained.sequence_length == 32
    before = load_pretrained(start)
    assert pretrained.tokenizer.digest == before.tokenizer.digest
    moved = "layers.0.output.weight"
    assert not torch.equal(pretrained.tensors[moved], before.tensors[moved])
    task = read_task("own", data, CONFIG)
    model = build_network(
        pretrained, task, CONFIG, compute_dtype=torch.float32, seed=0, from_scratch=False
    )
    for name, parameter in model.encoder.named_parameters():
        assert torch.equal(parameter, kept[name]), name


def test_fine_tuning_goes_on_from_it_and_says_so(first, start, data, tmp_path):
    """With hardly any steps left, only an encoder that has learnt the question answers it."""
    config = dataclasses.replace(CONFIG, epochs=1, train_examples=64, sequence_length=24)
    arguments = {"seeds": 1, "progress": ignore}
    second = finetune(first, "own", data, tmp_path / "second", config, **arguments)
    plain = finetune(start, "own", data, tmp_path / "plain", config, **arguments)
    assert second["median"] > plain["median"] + 0.05
    assert second["start"] == str(first)
    assert second["source"] == load_pretrained(first).source
    assert json.loads((tmp_path / "second/config.json").read_text())["start"] == second["source"]


def test_an_encoder_from_scratch_knows_only_the_rows_it_had(first, start, data, tmp_path):
    out = tmp_path / "scratch"
    finetune(start, "own", data, out, CONFIG, seeds=1, from_scratch=True, progress=ignore)
    assert load_pretrained(out).sequence_length == 16
    longer = dataclasses.replace(CONFIG, sequence_length=24)
    with pytest.raises(
        UserError, match=r"sequence_length 24 is more than the 16 tokens that .*own"
    ):
        finetune(out, "own", data, tmp_path / "out", longer, seeds=1, progress=ignore)


def test_tokens_that_the_first_task_did_not_have_are_handed_on_as_they_were(first, start, data):
    before, after = load_pretrained(start), load_pretrained(first)
    token_ids = encode_task(read_task("own", data, CONFIG), before, CONFIG).token_ids
    is_used = torch.zeros(before.tokenizer.vocab_size, dtype=torch.bool)
    is_used[token_ids] = True
    one, two = (each.tensors["embeddings.tokens.weight"] for each in (before, after))
    is_moved = (one != two).any(dim=1)
    assert not is_used.all()
    assert is_moved.any()
    assert is_used[is_moved].all()


def test_folders_that_cannot_be_started_from_are_refused(first, start, data, tmp_path):
    def refuse(folder, message):
        with pytest.raises(UserError, match=message) as refusal:
            load_pretrained(folder)
        assert "\n" not in str(refusal.value)

    half = tmp_path / "half.incomplete"
    shutil.copytree(first, half)
    (half / "results.json").unlink()
    refuse(half, "half.incomplete is not a finished folder of `electra finetune`")
    (half / "results.json").write_text("{")
    refuse(half, "results.json is not valid JSON")
    write_json(half / "results.json", {"metric": "f1", "seeds": {"0": {"scores": {}}}})
    refuse(half, "half.incomplete is not a folder that `electra finetune` wrote: KeyError")
    out = tmp_path / "search"
    combinations = combine(CONFIG, [], ["learning_rate=1e-3,2e-3"])
    best = search(start, "own", data, out, combinations, seeds=1, progress=ignore)["best"]
    refuse(out, f"holds several fine-tunings; take one of them: {out}/{best}")
    assert load_pretrained(out / best).source == f"{out}/{best} at seed 0, fine-tuned on own"
