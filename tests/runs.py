"""What tests of pre-training runs share: stops, full disks, damage, and how two ends compare."""

import dataclasses
import json
import os
import resource
import signal
import time
from pathlib import Path

import torch
from networks import assert_same_tensors
from safetensors.torch import load_file

from electra.assignments import flatten
from electra.checkpoints.checkpoint import find_checkpoint
from electra.checkpoints.folder import read_pretrained
from electra.checkpoints.metrics import OF_THE_MACHINE, read_metrics
from electra.checkpoints.names import DEBERTA
from electra.files import write_json
from electra.pretraining.init_from import load_start
from electra.pretraining.start import build_model, count_tokens, fit_to_shards
from electra.settings import to_dict
from electra.shards.store import open_shards
from electra.training.machine import Machine

SMALL = {
    **{"model.hidden_size": 64, "model.num_attention_heads": 1, "model.embedding_size": 32},
    **{"model.intermediate_size": 64, "model.num_hidden_layers": 1, "generator.hidden_fraction": 1},
    **{"examples.sequence_length": 32, "train.batch_size": 4, "train.evaluate_rows": 8},
    "train.threads": 1,
}
"""Settings of a command's run of a second."""


def words_of(settings, prefix=""):
    """Settings as the words behind --set."""
    return [f"{prefix}{name}={value}" for name, value in settings.items()]


def write_toml(folder, config):
    """Write settings as a file for --config; return its path."""
    given = {name: value for name, value in flatten(to_dict(config)) if value is not None}
    path = folder / "settings.toml"  # TOML has no null
    path.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in given.items()))
    return path


def ignore(record):
    pass


def send_at(step, number=signal.SIGTERM):
    """What shows the records of a run, and sends it a signal at the training record of a step."""

    def show(record):
        if record["step"] == step and record["part"] == "train":
            os.kill(os.getpid(), number)

    return show


def begin(config, shards):
    """The objective of a continued run at its first step, its settings, and what it begins with."""
    start, shards = read_pretrained(Path(config.train.init_from)), open_shards(shards)
    config, counts = fit_to_shards(config, shards), count_tokens(shards)
    model = build_model(config, shards.tokenizer, Machine(), counts)
    load_start(model, config, start, counts)
    return model, config, start


def limit_files(size):
    """Let files grow no further, as on a full disk."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))


def flip_bit(path, place=0.5):
    """Change a bit of one byte at this share of the file."""
    content = bytearray(path.read_bytes())
    content[int(len(content) * place)] ^= 1
    path.write_bytes(content)


def wait_for(path):
    """Wait for what a thread writes."""
    while not path.exists():
        time.sleep(0.01)


def read_records(run, part):
    return [each for each in read_metrics(run / "metrics.jsonl") if each["part"] == part]


def final_tensors(run):
    """Step, weights and moments of the newest checkpoint."""
    step, folder = find_checkpoint(run)
    files = ("model.safetensors", "optimizer.safetensors")
    return step, load_file(folder / files[0]) | load_file(folder / files[1])


def read_measures(run):
    """The records, without what differs each time that a run is repeated."""
    return [
        {name: value for name, value in record.items() if name not in OF_THE_MACHINE}
        for record in read_metrics(run / "metrics.jsonl")
    ]


def assert_same_end(whole, parts, *, all_records=False):
    """All bits of the checkpoints, and what was measured on held-out text."""
    step, tensors = final_tensors(whole)
    step_again, tensors_again = final_tensors(parts)
    assert step == step_again
    assert_same_tensors(tensors, tensors_again)
    assert read_records(whole, "heldout") == read_records(parts, "heldout")
    if all_records:
        assert read_measures(whole) == read_measures(parts)


def write_as_published(saved, place):
    """Both networks as Microsoft publishes them, the discriminator with a head that is no use."""
    place.mkdir()
    for name, network in (("", saved.kept), (".generator", saved.generator)):
        tensors, lm_head = DEBERTA.to_theirs(network.encoders[0]), saved.generator.head
        tensors = {f"deberta.{each}": tensors[each] for each in tensors}
        for each in lm_head:
            part = each.replace("norm", "LayerNorm")
            tensors[f"lm_predictions.lm_head.{part}"] = lm_head[each]
        if network is saved.kept:
            tensors |= DEBERTA.to_beside(network.head)
            positions = saved.generator.encoders[0]["position_embeddings.weight"]
            tensors["deberta.embeddings.position_embeddings.weight"] = torch.ones_like(positions)
        tensors = {key: each.clone() for key, each in tensors.items()}
        torch.save(tensors, place / f"pytorch_model{name}.bin")
    sizes = dataclasses.replace(saved.kept.sizes, published_heads=False)
    write_json(
        place / "config.json", DEBERTA.write_config(sizes, "DebertaV2Model", saved.tokenizer)
    )
    saved.tokenizer.write(place, has_segments=False)
