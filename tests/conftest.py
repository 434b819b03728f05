"""Fixtures: the smallest real things of each kind, made once."""

import dataclasses
import functools
import gc
import io
import json
import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from runs import ignore, send_at
from safetensors.torch import save_file
from stores import Faults, environment, serve_store, spoil

from electra import objects
from electra.assignments import override
from electra.checkpoints.folder import read_model
from electra.checkpoints.names import ELECTRA
from electra.errors import UserError
from electra.files import write_json
from electra.interop.export import export
from electra.model.batch import Batch
from electra.model.encoder import Encoder
from electra.model.initialisation import init_weights
from electra.presets import PRESETS, encoder_sizes
from electra.pretraining.loop import pretrain
from electra.processes import Interrupted
from electra.shards.config import PrepareConfig
from electra.shards.prepare import prepare
from electra.tokenizing import alone, foreign
from electra.tokenizing.config import TokenizerConfig
from electra.tokenizing.tokenizer import Tokenizer
from electra.training import machine
from electra.training.config import PretrainConfig

signal.signal(signal.SIGINT, signal.default_int_handler)  # a command in the background has none
torch.set_num_threads(1)  # the tests run side by side
machine.usable_cores = lambda: 1  # threads of two tests would wait for each other, and count
machine.PEAK_SECONDS = 0.0  # one product, since no test needs the peak


def ask(folder, name):
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        return alone.ask(Path(folder), name)


@functools.wraps(foreign._run_alone)
def run_alone(words, seconds, content=""):
    """A copy of this process asks transformers, which it need not import; `__wrapped__` does."""
    if words[0] != "ask":
        return run_alone.__wrapped__(words, seconds, content)
    import transformers  # noqa: F401

    with ProcessPoolExecutor(1, get_context("fork")) as pool:
        try:
            return json.dumps(pool.submit(ask, *words[1:]).result(seconds))
        except Exception as error:
            raise UserError(" ".join(str(error).split()) or type(error).__name__) from None


foreign._run_alone = run_alone


@pytest.fixture(scope="module", autouse=True)
def _frozen():
    """Each run collects several times, which takes long where much is alive."""
    gc.collect()
    gc.freeze()


def pytest_addoption(parser):
    parser.addoption(
        "--write-golden", action="store_true", help="write tests/golden/ anew instead of comparing"
    )


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def open_terminal(monkeypatch):
    """Return what makes both streams a terminal; in the test, as pytest sets them before it."""

    def open_terminal(columns=80):
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("TERM", "xterm-256color")
        for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
            monkeypatch.delenv(name, raising=False)
        screen = Terminal()
        monkeypatch.setattr(sys, "stdout", screen)
        monkeypatch.setattr(sys, "stderr", screen)
        return screen

    return open_terminal


@pytest.fixture
def batch() -> Batch:
    """Rows of 32 ids below 60: two full ones, of 20, of 3; specials inside; in half B follows A."""
    ids = torch.randint(5, 60, (4, 32), generator=torch.Generator().manual_seed(1))
    length = torch.tensor([32, 20, 3, 32])
    real = torch.arange(32) < length[:, None]
    ids[:, 0], ids[torch.arange(4), length - 1] = 2, 3
    ids[3, 9], ids[3, 10] = 3, 1
    types = (torch.arange(32) > 9).long() * real
    return Batch(ids * real, real, types, None, torch.tensor([True, False, False, True]))


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory) -> Iterator[str]:
    """The address of an S3 server with a bucket."""
    with serve_store(tmp_path_factory.mktemp("store")) as address:
        yield address


@pytest.fixture
def proxy(s3_server, monkeypatch) -> Iterator[Faults]:
    """A proxy of faults before the server, and a client of it that gives up soon."""
    monkeypatch.setattr(objects, "PATIENCE", timedelta(seconds=4))
    monkeypatch.setattr(objects, "IDLE", timedelta(seconds=1))
    objects._open_store.cache_clear()
    with spoil(s3_server) as faults, environment(monkeypatch, faults.address):
        yield faults
    objects._open_store.cache_clear()


@pytest.fixture(scope="session")
def toy_text(tmp_path_factory) -> Path:
    """About 300 documents of grammatical nonsense: learnable, and with borders of every kind."""
    rng = torch.Generator().manual_seed(7)

    def pick(*words: str) -> str:
        return words[int(torch.randint(len(words), (), generator=rng))]

    lines = []
    for _ in range(300):
        for _ in range(1 + int(torch.randint(6, (), generator=rng))):
            subject = pick("the old sailor", "a young doctor", "my neighbour", "the queen")
            verb = pick("repaired", "painted", "admired", "unhesitatingly sold")
            thing = pick("a boat", "the castle", "an engine", "seven umbrellas")
            when = pick("yesterday", "in 1912", "before breakfast", "at the harbour")
            lines.append(f"{subject} {verb} {thing} {when} .")
        lines.append("")
    path = tmp_path_factory.mktemp("text") / "toy.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def toy_tokenizer(toy_text) -> Tokenizer:
    config = TokenizerConfig(vocab_size=120, min_frequency=1)
    return Tokenizer.train(toy_text.read_text().splitlines(), config)


@pytest.fixture(scope="session")
def start(toy_tokenizer, tmp_path_factory) -> Path:
    """A Hugging Face folder with an encoder of two layers and random weights."""
    folder = tmp_path_factory.mktemp("start") / "encoder"
    toy_tokenizer.save(folder)
    sizes = encoder_sizes(
        64, 2, 32, vocab_size=toy_tokenizer.vocab_size, max_position_embeddings=32
    )
    encoder = Encoder(sizes)
    init_weights(encoder, 0.1, torch.Generator().manual_seed(0))
    write_json(folder / "config.json", ELECTRA.write_config(sizes, "ElectraModel", toy_tokenizer))
    save_file(ELECTRA.to_theirs(encoder.state_dict()), folder / "model.safetensors")
    return folder


@pytest.fixture(scope="session")
def pretrained(start):
    return read_model(start)


@pytest.fixture(scope="session")
def toy_shards(toy_text, toy_tokenizer, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("prepared") / "shards"
    config = PrepareConfig(heldout_prob=0.1, workers=1)
    prepare([str(toy_text)], toy_tokenizer, folder, config, None)
    return folder


@pytest.fixture(scope="session")
def many_shards(toy_text, toy_tokenizer, tmp_path_factory) -> Path:
    """The toy text in some 40 shards."""
    folder = tmp_path_factory.mktemp("many") / "shards"
    config = PrepareConfig(heldout_prob=0.1, workers=1, shard_tokens=400)
    prepare([str(toy_text)], toy_tokenizer, folder, config, None)
    return folder


@pytest.fixture(scope="session")
def toy_config() -> PretrainConfig:
    """Two layers of 128, dropout on, AdamW, 12 steps of 8 rows of 32 tokens."""
    model = encoder_sizes(128, 2, 32)
    return override(
        dataclasses.replace(PRESETS["tiny"], model=model),
        [
            "examples.sequence_length=32", "optimizer.warmup_steps=4", "optimizer.matrices=adamw",
            "optimizer.learning_rate=1e-3", "train.initial_weights=neighbours", "train.steps=12",
            "train.batch_size=8", "train.log_every=4", "train.evaluate_every=6", "train.threads=1",
            "train.save_every=6", "train.evaluate_rows=16", "train.precision=float32",
        ],
    )  # fmt: skip


@pytest.fixture(scope="session")
def run(toy_shards, toy_config, tmp_path_factory) -> Path:
    """A finished run of `toy_config`. Many tests read the folder, and none writes into it."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    pretrain(toy_shards, folder, toy_config, ignore)
    return folder


@pytest.fixture
def train(toy_shards, toy_config, tmp_path):
    """Return what begins or continues a run of `toy_config` with some changes, by its name."""

    def train(name, *changes, show=ignore, stop_at=None, shards=toy_shards, **options):
        """Return its folder. With `stop_at` a signal stops it after the step behind that one."""
        config = override(toy_config, " ".join(changes).split())
        arguments = shards, tmp_path / name, config
        if stop_at is None:
            pretrain(*arguments, show, **options)
        else:
            with pytest.raises(Interrupted) as stop:
                pretrain(*arguments, send_at(stop_at), **options)
            assert stop.value.step == stop_at + 1
        return tmp_path / name

    return train


@pytest.fixture(scope="session")
def exported(run, tmp_path_factory) -> Path:
    """The export of `run`, which no test writes into, either."""
    folder = tmp_path_factory.mktemp("exported") / "exported"
    export(run, folder)
    return folder


@pytest.fixture(scope="session")
def toy_question(toy_text, tmp_path_factory) -> Path:
    """A task of one's own that can be learnt: is the sentence about the queen?"""
    folder = tmp_path_factory.mktemp("question")
    lines = [line for line in toy_text.read_text().splitlines() if line]
    for split, part in (("train", lines[:160]), ("dev", lines[160:220])):
        rows = [f"{line}\t{'woman' if 'queen' in line else 'other'}" for line in part]
        (folder / f"{split}.tsv").write_text("\n".join(["text\tlabel", *rows]))
    return folder
