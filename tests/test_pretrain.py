"""The loop: bit-exact continuation, refusals, what it writes, and that something is learnt."""

import dataclasses
import json
import os
import platform
import random
import re
import resource
import shutil
import subprocess
import sys
import time
from contextlib import nullcontext
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from commands import refuse_command, succeed
from refusals import refuse
from runs import (
    assert_same_end,
    final_tensors,
    flip_bit,
    ignore,
    limit_files,
    read_records,
    send_at,
    wait_for,
    write_toml,
)
from test_golden import NEXT_SENTENCE, VARIANTS

from electra.assignments import override
from electra.checkpoints.checkpoint import (
    copy_state,
    describe_networks,
    find_checkpoint,
    list_checkpoints,
    load_parameters,
    write_checkpoint,
)
from electra.checkpoints.folder import read_model, read_pretrained, read_run_config
from electra.checkpoints.manifest import amend_session, read_manifest
from electra.checkpoints.metrics import read_curves, read_metrics
from electra.cli import main
from electra.errors import UserError
from electra.files import check_hashes, read_object, write_facts, write_json
from electra.interop.card import describe_run
from electra.interop.export import export
from electra.model.electra import PostNormLayer
from electra.model.encoder import Encoder, find_body
from electra.model.forms import choose_layers
from electra.model.fused.post_norm import FusedPostNormLayer
from electra.pretraining.acceleration import AcceleratedStep
from electra.pretraining.continuation import branch, plan_cooldown
from electra.pretraining.evaluation import evaluate, heldout_rows, split_heldout
from electra.pretraining.journal import Clock, Totals
from electra.pretraining.loop import Due, pretrain, resume
from electra.pretraining.resolution import resolve
from electra.pretraining.start import build_model, count_tokens, fit_to_shards
from electra.processes import Interrupted
from electra.reports.page import write_page
from electra.reports.runs import read_folders, read_runs, read_samples
from electra.settings import to_dict
from electra.shards.config import ExamplesConfig, PrepareConfig
from electra.shards.examples import BLOCK_ROWS, Examples, Rows
from electra.shards.order import permute
from electra.shards.prepare import prepare
from electra.shards.store import Shard, open_shards
from electra.training.machine import Machine, choose_dtype
from electra.training.optimizer import build_optimizer

TWO_STAGE = "method.scheme=two_stage method.sharing=none optimizer.warmup_steps=1"


# Rows


@pytest.fixture(scope="module")
def uneven_shards(toy_text, toy_tokenizer, tmp_path_factory):
    """The toy text in shards of 700 tokens and more; the last one is what is left."""
    folder = tmp_path_factory.mktemp("uneven") / "shards"
    config = PrepareConfig(heldout_prob=0, workers=1, shard_tokens=700)
    prepare([str(toy_text)], toy_tokenizer, folder, config, None)
    shards = open_shards(folder)
    assert len({len(shard.tokens) for shard in shards.train}) > 5
    return shards


def read_rows(shards, length):
    examples = Rows(shards.train, shards.tokenizer, ExamplesConfig(sequence_length=length), 0)
    return examples, examples.rows(np.arange(len(examples)))


@pytest.mark.parametrize("length", [8, 32, 128])
def test_every_token_is_in_exactly_one_row(uneven_shards, length):
    ids, tokenizer = read_rows(uneven_shards, length)[1].input_ids_BL, uneven_shards.tokenizer
    special = torch.tensor([tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id])
    tokens = np.concatenate([shard.tokens for shard in uneven_shards.train])
    assert ids[~torch.isin(ids, special)].tolist() == tokens.tolist()


def test_rows_look_as_in_the_paper(toy_shards):
    shards = open_shards(toy_shards)
    cls_id, sep_id = shards.tokenizer.cls_id, shards.tokenizer.sep_id
    examples, batch = read_rows(shards, 64)
    num_short = num_single = 0
    for ids, real, types in zip(*batch[:3], strict=True):
        length = int(real.sum())
        row = ids[:length].tolist()
        assert (row[0], row[-1]) == (cls_id, sep_id)
        assert not ids[length:].any()
        borders = [place for place, token in enumerate(row) if token == sep_id]
        assert len(borders) in (1, 2)
        num_single += len(borders) == 1
        num_short += length < 64
        expected = [0] * (borders[0] + 1) + [1] * (length - borders[0] - 1) + [0] * (64 - length)
        assert types.tolist() == expected
    # Shares within four deviations of one in ten and five in a hundred.
    n = len(examples)
    assert abs(num_single - 0.1 * n) < 4 * (0.09 * n) ** 0.5
    assert abs(num_short - 0.05 * n) < 4 * (0.0475 * n) ** 0.5


def test_second_segment_begins_at_a_border_if_there_is_one(toy_shards):
    shards = open_shards(toy_shards)
    (shard,) = shards.train
    examples, batch = read_rows(shards, 64)
    lines, documents = set(shard.lines.tolist()), set(shard.documents.tolist())
    for row in np.flatnonzero(examples.is_pair):
        start, count = int(examples.starts[row]), int(examples.counts[row])
        split = start + batch.input_ids_BL[row].tolist().index(shards.tokenizer.sep_id) - 1
        inside, middle = range(start + 1, start + count), start + (count + 1) // 2
        candidates = documents.intersection(inside) or lines.intersection(inside)
        assert split in (candidates or inside)
        nearest = min((abs(border - middle) for border in candidates), default=None)
        assert nearest is None or abs(split - middle) == nearest


SPECIAL = SimpleNamespace(cls_id=2, sep_id=3, pad_id=0, starts_word=np.ones(20_000, dtype=bool))
PAIRS = ExamplesConfig(sequence_length=64, next_sentence=True, single_segment_prob=0)


def write_shard(folder, tokens, lines=(0,), documents=(0,)):
    for name, values in {"tokens": tokens, "lines": lines, "documents": documents}.items():
        values = np.sort(values) if name != "tokens" else np.asarray(values)
        values.astype("<u2" if name == "tokens" else "<u4").tofile(folder / f"shard.{name}")
    return Shard(len(tokens), folder / "shard", {}, "<u2")


def write_numbered(folder, num_documents):
    """A shard of 19,990 tokens that are all different; some of its 2,000 lines begin documents."""
    rng = np.random.default_rng(0)
    lines = np.append(0, rng.permutation(np.arange(1, 19_990))[:1999])
    return write_shard(folder, np.arange(10, 20_000), lines, lines[:num_documents])


@pytest.mark.parametrize("num_documents", [2, 300])
def test_half_of_the_rows_have_the_second_segment_of_another_document(num_documents, tmp_path):
    shard = write_numbered(tmp_path, num_documents)
    examples = Rows([shard], SPECIAL, PAIRS, seed=0)
    batch = examples.rows(np.arange(len(examples)))
    lines, read = set(shard.lines.tolist()), []
    at_lines = {True: [], False: []}
    for ids, types, is_next in zip(batch[0], batch[2], batch.is_next_B.tolist(), strict=True):
        a, b = ((ids[(types == each) & (ids >= 10)] - 10).numpy() for each in (0, 1))
        for segment in (a, b):
            assert np.array_equal(segment, np.arange(segment[0], segment[0] + len(segment)))
        of_a, of_b = (set(np.searchsorted(shard.documents, each, side="right")) for each in (a, b))
        goes_on = b[0] == a[-1] + 1 and b[0] not in shard.documents
        assert is_next == goes_on
        assert is_next or not of_a & of_b
        at_lines[is_next].append(int(b[0]) in lines)
        read += [*a, *b]
    n = len(examples)
    if num_documents == 2:  # many partners are of the same long one
        assert 0.1 * n < len(at_lines[False]) < 0.5 * n
        return
    assert abs(len(at_lines[True]) - 0.5 * n) < 4 * (0.25 * n) ** 0.5
    assert np.mean(at_lines[True]) == pytest.approx(np.mean(at_lines[False]), abs=0.1)
    assert min(map(np.mean, at_lines.values())) > 0.8
    assert len(set(read)) > 0.93 * 19_990


def test_one_document_has_no_other(tmp_path, toy_shards, toy_config):
    """To train on, it is refused before there is a run; held out, every segment follows."""
    shard = write_numbered(tmp_path, 1)
    shards = dataclasses.replace(open_shards(toy_shards), train=(shard,))
    nsp = ["method.objective=mlm", "examples.next_sentence=true", "examples.single_segment_prob=0"]
    refuse("one for training", lambda: fit_to_shards(override(toy_config, nsp), shards))
    assert Rows([shard], SPECIAL, PAIRS, 0).rows(np.arange(50)).is_next_B.all()


@pytest.mark.parametrize("size", [1, 2, 3, 17, 64, 1000])
def test_permutation(size):
    places = np.arange(size)
    drawn = [permute(places, size, seed, epoch) for seed in (0, 1) for epoch in (0, 1)]
    for order in drawn:
        assert sorted(order.tolist()) == places.tolist()
    if size > 10:
        assert len({tuple(order.tolist()) for order in drawn}) == 4
        some = places[::3]
        assert permute(some, size, 0, 0).tolist() == drawn[0][::3].tolist()


def test_rows_are_those_of_older_runs(toy_tokenizer, tmp_path):
    """Which go on with the rows that they would have had: a function of seed and step."""
    places = permute(np.arange(12), 1000, seed=3, epoch=2)
    assert places.tolist() == [633, 590, 110, 721, 52, 884, 236, 621, 104, 289, 303, 867]
    assert permute(np.array([5]), 1 << 30, seed=3, epoch=0).tolist() == [67296491]
    shard = write_shard(tmp_path, np.arange(3000) % 100 + 10)
    config = ExamplesConfig(sequence_length=32, short_prob=0.5)
    batch = Examples([shard], toy_tokenizer, config, seed=3).batch(20, 8)
    assert batch.input_ids_BL[:, 1].tolist() == [82, 80, 59, 39, 78, 100, 54, 88]
    assert batch.attention_mask_BL.sum(1).tolist() == [32, 32, 32, 32, 32, 19, 32, 15]


@pytest.mark.parametrize("first_step", [0, 611])
@pytest.mark.parametrize("pairs", [None, PAIRS])
@pytest.mark.parametrize("batch_size", [5, 96, BLOCK_ROWS + 1])
def test_reading_by_blocks_changes_no_batch(uneven_shards, batch_size, pairs, first_step):
    """Over borders of epochs and of blocks, and from a step in the middle on."""
    tokenizer = uneven_shards.tokenizer
    config = dataclasses.replace(pairs or ExamplesConfig(), sequence_length=32)
    examples = Examples(uneven_shards.train, tokenizer, config, seed=0)
    num_steps = BLOCK_ROWS // batch_size + 3
    assert num_steps * batch_size > len(examples)
    batches = examples.batches(first_step, batch_size)
    has_mask = set()
    for step, batch in zip(range(first_step, first_step + num_steps), batches, strict=False):
        expected = examples.batch(step, batch_size)
        for tensor, other in zip(batch, expected, strict=True):
            assert (tensor is None) == (other is None)
            assert tensor is None or (tensor.dtype == other.dtype and torch.equal(tensor, other))
        has_mask.add(batch.attention_mask_BL is not None)
    assert has_mask == ({True, False} if batch_size == 5 else {True})


# Continuation


@pytest.mark.parametrize(
    ("done", "asked", "expected"),
    [
        (3, {}, Due(record=False, save=False, evaluate=False)),
        (4, {}, Due(record=True, save=False, evaluate=False)),
        (5, {}, Due(record=True, save=False, evaluate=False)),  # the first stage ends
        (6, {}, Due(record=True, save=True, evaluate=True)),
        (3, {"save": True}, Due(record=True, save=True, evaluate=False)),
        (3, {"late": True}, Due(record=True, save=True, evaluate=False, end="time")),
        (3, {"told": True, "late": True}, Due(record=True, save=True, evaluate=False, end="told")),
        (12, {"told": True}, Due(record=True, save=True, evaluate=True, end="last")),
    ],
)
def test_what_is_due_after_a_step(toy_config, done, asked, expected):
    """Of 12 steps in two stages, each fourth is logged, and each sixth saved and evaluated."""
    assert Due.after(done, toy_config, (0, 5), **asked) == expected


@pytest.mark.parametrize(
    "settings",
    [
        *("train.layers=plain", "train.precision=bfloat16", "optimizer.matrices=muon"),
        *("method.objective=teams", "method.objective=cocolm", " ".join(NEXT_SENTENCE)),
        " ".join(VARIANTS["deberta"]) + " model.published_heads=true train.initial_weights=bert",
        # In the second stage, at its very beginning, before it.
        *(f"{TWO_STAGE} method.generator_steps={number}" for number in (4, 9, 10)),
    ],
)
def test_interrupted_and_continued_equals_uninterrupted(train, settings):
    """Stopped after step 9, which is neither logged nor saved, with dropout on; all bits equal."""
    assert_continues(train, settings)


def assert_continues(train, *settings):
    whole, parts = train("whole", *settings), train("parts", *settings, stop_at=8)
    resume(parts, ignore)
    assert_same_end(whole, parts)


def test_a_run_ends_early(train, toy_shards, tmp_path):
    """From the middle of a linear decay: its rates up to there, then a line to 0."""
    trunk, cooled = train("trunk", "train.log_every=1 train.evaluate_rows=0"), tmp_path / "cooled"
    start = trunk / "checkpoints" / "step-00000006"
    with pytest.raises(Interrupted):
        resume(cooled, send_at(8), cooldown=plan_cooldown(start, 4))
    resume(cooled, ignore)
    rates, ours = (
        [each["learning_rate"] for each in read_records(run, "train")] for run in (trunk, cooled)
    )
    assert ours[:7] == rates[:7]
    assert ours[7:] == pytest.approx([rates[6] * share for share in (0.75, 0.5, 0.25)])
    assert read_manifest(cooled)["branched_from"] == {"run": "trunk", "step": 6}
    longer = override(read_run_config(cooled), ["train.steps=40"])
    refuse("already ends in a cool-down; extend", pretrain, toy_shards, cooled, longer, ignore)


def test_a_run_that_ends_early_in_its_stable_part_is_a_shorter_run(train, tmp_path):
    stable = "optimizer.decay_fraction=0.5"
    trunk = train("trunk", stable, "train.steps=24 train.keep_checkpoints=9")
    start = trunk / "checkpoints" / "step-00000006"
    resume(tmp_path / "cooled", ignore, cooldown=plan_cooldown(start, 6))
    assert_same_end(tmp_path / "cooled", train("short", stable))


def test_runs_whose_second_stages_begin_apart_share_nothing(toy_config, tmp_path):
    config = override(toy_config, f"{TWO_STAGE} optimizer.decay_fraction=0.25".split())
    write_json(tmp_path / "config.json", to_dict(config))
    shorter = override(config, ["train.steps=8"])
    refuse("has no stable part", branch, tmp_path, tmp_path / "shorter", shorter)


def test_where_a_run_can_end_early(run, tmp_path, monkeypatch, capsys):
    start = run / "checkpoints" / "step-00000006"
    record = read_records(run, "train")[-1]
    seconds = 3.5 * record["tokens"] / record["step"] / record["tokens_per_second"]
    assert plan_cooldown(start, timedelta(seconds=seconds))[1].optimizer.cooldown_steps == 3
    for place, length, words in (
        (run, 4, "step 12, its last"),
        (start, 0, "--cooldown must be at least the time of a step, not 0"),
        (run / "checkpoints" / "step-00000007", 4, "has no usable checkpoint"),
    ):
        refuse(words, plan_cooldown, place, length)
    monkeypatch.chdir(tmp_path)
    words = ["pretrain", "--resume", str(start), "--cooldown"]
    printed = succeed(capsys, *words, "3", "--out", "end", "--dry-run").out
    assert f"would end {start} early and write the run end" in printed
    main([*words, "3", "--out", "end", "--max-time", "0.01s"])  # stops after its first step
    assert "wrote end" not in capsys.readouterr().out
    begun, other = "end was started at step 6 with --cooldown 3", start.with_name("step-00000012")
    refuse_command(begun, capsys, *words, "4", "--out", "end")
    with monkeypatch.context() as inside:
        inside.chdir(run)
        here = ["checkpoints/step-00000006", "--cooldown", "4", "--out", str(tmp_path / "end")]
        refuse_command(begun, capsys, *words[:2], *here)
    refuse_command(begun, capsys, *words[:2], str(other), *words[3:], "3", "--out", "end")
    assert "wrote end" in succeed(capsys, *words, "3", "--out", "end").out
    assert len(read_records(Path("end"), "heldout")) == 2
    alone = ["pretrain", "--cooldown", "3m"]
    late = [*words, "3", "--out", "late", "--max-time", "0s"]
    for more, line in (
        *(([*words, "3"], "--out"), (alone, "--resume RUN"), (late, "--max-time must be > 0")),
        (
            [*words[:2], "end", "--cooldown", "3", "--out", "late"],
            "name the run that it branched from",
        ),
    ):
        refuse_command(line, capsys, *more)
    assert not Path("late").exists()


def count_lines(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.slow
def test_killed_at_any_moment_and_continued_equals_uninterrupted(toy_shards, toy_config, tmp_path):
    """kill -9 three times, wherever that falls, a save of a few milliseconds included."""
    config = override(toy_config, ["train.steps=90", "train.save_every=2", "train.log_every=1"])
    pretrain(toy_shards, tmp_path / "whole", config, ignore)
    words = [toy_shards, "--out", tmp_path / "parts", "--config", write_toml(tmp_path, config)]
    command = [sys.executable, "-m", "electra", "pretrain", *words]
    for kill_at in (7, 30, 61):
        with subprocess.Popen(command) as process:
            while count_lines(tmp_path / "parts" / "metrics.jsonl") < kill_at:
                assert process.poll() is None
                time.sleep(0.001)
            time.sleep(0.003 * (kill_at % 5))
            process.kill()
    subprocess.run(command, check=True)
    assert_same_end(tmp_path / "whole", tmp_path / "parts")


@pytest.fixture
def unfinished(run, tmp_path):
    """A run at its last step but without results, as if killed just before them."""
    folder = shutil.copytree(run, tmp_path / "run")
    (folder / "results.json").unlink()
    return folder


def test_a_damaged_checkpoint_is_passed_over_and_replaced(run, unfinished):
    """A stop before its step is reached costs no good one either; without a good one, no run."""
    flip_bit(unfinished / "checkpoints/step-00000012/model.safetensors")
    says = r"run: step-00000012 is damaged .* step-00000006 instead"
    with pytest.warns(UserWarning, match=says), pytest.raises(Interrupted) as stop:
        resume(unfinished, send_at(8))
    steps = [int(folder.name.removeprefix("step-")) for folder in list_checkpoints(unfinished)]
    assert steps == [6, stop.value.step]
    resume(unfinished, ignore)
    assert_same_end(run, unfinished)
    old, new = list_checkpoints(unfinished)
    assert sorted((unfinished / "checkpoints").iterdir()) == [old, new]
    shutil.rmtree(old)
    flip_bit(new / "model.safetensors")
    refuse("step-00000012 is damaged (model.safetensors", find_checkpoint, unfinished)


@pytest.mark.parametrize(
    "content",
    [b"\xff", b"{", b"[]", b"{}", b'{"step": 12, "sha256": {}}', b'{"step": 13, "sha256": {}}']
    + [b'{"step": ' * 100_000, b'{"step": %b}' % (b"9" * 5000), b'{"step": NaN}'],
    ids=range(9),
)
def test_a_damaged_state_is_a_damaged_checkpoint(unfinished, content):
    (unfinished / "checkpoints/step-00000012/state.json").write_bytes(content)
    with pytest.warns(UserWarning, match="step-00000012 is damaged"):
        assert find_checkpoint(unfinished)[0] == 6


def test_a_run_killed_in_its_first_save_begins_again(run, unfinished):
    checkpoint = unfinished / "checkpoints/step-00000006"
    shutil.rmtree(unfinished / "checkpoints/step-00000012")
    checkpoint.rename(checkpoint.with_suffix(".incomplete"))
    resume(unfinished, ignore)
    assert_same_end(run, unfinished)


@pytest.mark.parametrize("limit", [10, 100_000], ids=["metrics", "checkpoint"])
def test_a_full_disk_is_one_line_and_the_run_goes_on_afterwards(run, train, tmp_path, limit):
    checkpoints = tmp_path / "run/checkpoints"

    def fill(record):
        if record["step"] == 8:
            wait_for(checkpoints / "step-00000006")
            limit_files(limit)

    try:
        with pytest.raises(UserError, match=r"File too large; checkpoints .* are whole: electra"):
            train("run", show=fill)
    finally:
        limit_files(resource.RLIM_INFINITY)
    assert [folder.name for folder in checkpoints.iterdir()] == ["step-00000006"]
    resume(tmp_path / "run", ignore)
    assert_same_end(run, tmp_path / "run")


def test_a_disk_that_is_full_from_the_beginning_leaves_nothing(train, tmp_path):
    try:
        limit_files(100)
        refuse("File too large", train, "run")
    finally:
        limit_files(resource.RLIM_INFINITY)
    assert not list(tmp_path.iterdir())


def test_a_run_is_in_one_process_at_a_time(train, tmp_path):
    refused = []

    def try_another(record):
        if record["part"] == "begin":  # before the folder is there
            return
        says = f"{tmp_path}/run is in use by process {os.getpid()} on "
        refuse(says, resume, tmp_path / "run", ignore)
        refused.append(record)

    train("run", "train.steps=2 optimizer.warmup_steps=0", show=try_another)
    assert refused
    assert not (tmp_path / "run/lock").exists()


@pytest.mark.parametrize(("name", "key"), [("config.json", "model"), ("manifest.json", "shards")])
def test_a_damaged_run_is_named(unfinished, name, key):
    path = unfinished / name
    values = json.loads(path.read_bytes())
    changed = [{**values, key: None}, {k: v for k, v in values.items() if k != key}]
    if name == "config.json":
        wrong = {"steps": 1.5, "seed": "x", "precision": "float23", "compile": None}
        changed += [{**values, "train": values["train"] | {k: v}} for k, v in wrong.items()]
    for content in (b"\xff", b"{", b"[]", b"{}", *(json.dumps(each).encode() for each in changed)):
        path.write_bytes(content)
        refuse(name, resume, unfinished, ignore)
    path.unlink()
    refuse(name, resume, unfinished, ignore)


@pytest.mark.parametrize("damage", [flip_bit, lambda path: shutil.rmtree(path.parent)])
def test_a_damaged_tokenizer_is_written_again_when_the_run_goes_on(run, unfinished, damage):
    """The shards have the same one; a run whose shards are others is refused before."""
    damage(unfinished / "tokenizer/tokenizer.json")
    with pytest.warns(UserWarning, match="run/tokenizer is damaged; it is written again"):
        resume(unfinished, ignore)
    names = sorted(path.name for path in (run / "tokenizer").iterdir())
    assert sorted(path.name for path in (unfinished / "tokenizer").iterdir()) == names
    for name in names:
        assert (unfinished / "tokenizer" / name).read_bytes() == (
            run / "tokenizer" / name
        ).read_bytes()


@pytest.mark.parametrize(
    ("damage", "num_lost"),
    [
        (lambda path: os.truncate(path, path.stat().st_size // 2), "4 records"),
        (lambda path: os.truncate(path, 0), "6 records"),
        (Path.unlink, "6 records"),
    ],
    ids=["cut", "emptied", "deleted"],
)
def test_lost_records_of_a_finished_run_are_told(run, tmp_path, damage, num_lost):
    """Its last evaluation is in results.json too."""
    copy = shutil.copytree(run, tmp_path / "copy")
    assert read_curves(copy) == sorted(
        read_metrics(run / "metrics.jsonl"), key=lambda each: each["step"]
    )
    damage(copy / "metrics.jsonl")
    with pytest.warns(UserWarning, match=f"metrics.jsonl has lost {num_lost}: curves have gaps"):
        found = read_curves(copy)
    assert found[-1] == read_object(run / "results.json")["heldout"]
    for read in (lambda: describe_run(copy, 12), lambda: read_folders([copy])):
        with pytest.warns(UserWarning, match="metrics.jsonl has lost"):
            read()


@pytest.mark.parametrize("last", [5, [1], {"step": 1}, {"part": "train"}, {"part": [], "step": 1}])
def test_a_last_evaluation_that_is_none_is_refused(run, tmp_path, last):
    path = shutil.copytree(run, tmp_path / "copy") / "results.json"
    write_json(path, read_object(path) | {"heldout": last})
    refuse("results.json: heldout is not a record of an evaluation", read_curves, path.parent)


def test_a_damaged_record_costs_no_other(run, unfinished):
    """Nor does a last line that was cut off, which is no news after a crash."""
    path = unfinished / "metrics.jsonl"
    lines = path.read_bytes().splitlines()
    for number, damaged in ((1, b"\xff\xfe"), (2, b"[]"), (3, b'{"part": "train", "stop": 8}')):
        path.write_bytes(b"\n".join([*lines[:number], damaged, *lines[number + 1 :], b'{"pa']))
        with pytest.warns(UserWarning, match=f"jsonl has 1 damaged of 6 records, .* {number + 1}$"):
            records = read_metrics(path)
        whole = read_metrics(run / "metrics.jsonl")
        assert records == whole[:number] + whole[number + 1 :]
    with pytest.warns(UserWarning, match="1 damaged|lacks 1 of 5 records"):
        resume(unfinished, ignore)
    assert read_metrics(path) == whole[:3] + whole[4:]


@pytest.mark.parametrize("step", [6, 12])
@pytest.mark.parametrize(
    ("damage", "num_lost"),
    [
        (lambda lines: lines[:-1], 1),
        (lambda lines: lines[1:], 1),
        (lambda lines: lines[:1] + lines[2:], 1),
        (lambda lines: [], None),
        (lambda lines: [*lines, *lines], 0),
        (lambda lines: [*lines, lines[0]], 0),
    ],
    ids=["last", "first", "middle", "all", "doubled", "repeated"],
)
def test_totals_are_those_of_the_checkpoint(run, unfinished, step, damage, num_lost):
    """Which is on the disk when the step is done; metrics.jsonl may lose lines in a crash."""
    path = unfinished / "metrics.jsonl"
    expected = read_object(run / "results.json")
    lines = path.read_text().splitlines(keepends=True)
    lines = lines[:-1] if step == 12 else lines[:2]  # the evaluation is done again
    if step == 6:
        shutil.rmtree(unfinished / "checkpoints/step-00000012")
    path.write_text("".join(damage(lines)))
    num_lost = len(lines) if num_lost is None else num_lost
    says = rf"lacks {num_lost} of {len(lines)} records up to step {step};.* totals are those"
    with pytest.warns(UserWarning, match=says) if num_lost else nullcontext():
        results = resume(unfinished, ignore)
    if step == 6:
        assert results.pop("seconds") > json.loads(lines[-1])["seconds"]
        del expected["seconds"]
    assert results == expected
    records = [(each["part"], each["step"]) for each in read_metrics(path)]
    assert len(records) == len(set(records)) == 6 - num_lost


@pytest.mark.parametrize(("keep_every", "kept"), [(0, [5, 6]), (2, [2, 4, 5, 6])])
def test_the_newest_checkpoints_and_every_other_are_kept(
    toy_shards, toy_config, tmp_path, keep_every, kept
):
    model = build_model(toy_config, open_shards(toy_shards).tokenizer, Machine())
    state = copy_state(model, build_optimizer(model, toy_config.optimizer), {})
    for step in range(1, 7):
        write_checkpoint(tmp_path, step, state, describe_networks(model), 2, keep_every)
    steps = [int(folder.name.removeprefix("step-")) for folder in list_checkpoints(tmp_path)]
    assert steps == kept


# Every objective, from shards to an export


MLM, RTD = "ElectraForMaskedLM", "ElectraForPreTraining"


@pytest.mark.parametrize(
    ("settings", "measures", "architecture"),
    [
        ("method.objective=mlm", {"mlm_loss"}, MLM),
        ("method.objective=rtd_masked_only", {"disc_loss"}, RTD),
        ("method.objective=replace_mlm", {"restore_loss"}, MLM),
        ("method.objective=all_tokens_mlm", {"restore_loss"}, MLM),
        (TWO_STAGE, {"disc_loss"}, RTD),
        ("method.scheme=adversarial", {"generator_entropy"}, RTD),
        ("method.objective=teams", {"selection_loss"}, RTD),
        ("method.objective=cocolm", {"contrast_accuracy"}, RTD),
        ("method.objective=teams method.kept_layer=selection", {"mlm_loss"}, "ElectraModel"),
        (" ".join(VARIANTS["causal-lm"]), {"lm_loss"}, "ElectraForCausalLM"),
        (" ".join(NEXT_SENTENCE), {"mlm_loss", "nsp_loss"}, MLM),
        ("generator.kind=unigram", {"disc_loss", "mlm_loss"}, RTD),
        ("method.sharing=all generator.layers_fraction=1 train.accumulation=3", {"disc_loss"}, RTD),
    ],
)
def test_every_objective_runs(train, tmp_path, settings, measures, architecture):
    run, exported = train("run", settings, "train.steps=6"), tmp_path / "hf"
    heldout = read_object(run / "results.json")["heldout"]
    assert measures <= heldout.keys()
    del heldout["part"]  # no AUC where every chosen token is replaced
    assert all(value is None or np.isfinite(value) for value in heldout.values())
    assert (run / "samples.json").exists() == ("disc_loss" in heldout)
    export(run, exported)
    folders = {exported: architecture}
    if (exported / "generator").exists():
        folders[exported / "generator"] = MLM
    without = ("kind=unigram", "objective=mlm", "kept_layer=selection", "objective=causal_lm")
    assert len(folders) == 1 + (not any(each in settings for each in without))
    for folder, name in folders.items():
        _, info = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
        assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    pretrained = read_model(run)
    load_parameters(Encoder(pretrained.encoder), pretrained.tensors)


@pytest.mark.parametrize("objective", ["rtd", "mlm"])
def test_a_frozen_generator_is_that_of_the_other_run(train, tmp_path, objective):
    """Its weights are those at the end of that run, also after a resume; it learns nothing."""
    first = train("first", f"method.objective={objective}")
    frozen = f"generator.kind=frozen generator.frozen_run={first} method.sharing=none"
    assert_continues(train, frozen, "generator.temperature=2 generator.temperature_decay=0.1")
    assert read_manifest(tmp_path / "whole")["generator"]["source"] == f"{first} at step 12"
    expected = read_pretrained(first).masked_lm
    sizes = ["model.num_hidden_layers=2", "model.embedding_size=32"]
    found = resolve("tiny", assignments=[*frozen.split(), *sizes])  # flops and plan read these
    assert found.generator.hidden_size == expected.sizes.hidden_size
    _, tensors = final_tensors(tmp_path / "whole")
    for part, parameters in (("encoder", expected.encoders[0]), ("head", expected.head)):
        assert parameters
        for name, tensor in parameters.items():
            assert torch.equal(tensors[f"generator.{part}.{name}"], tensor), name
    assert not any(name.startswith("exp_avg/generator.") for name in tensors)
    losses = [each["mlm_loss"] for each in read_metrics(tmp_path / "whole" / "metrics.jsonl")]
    assert all(np.isfinite(losses))
    manifest = read_manifest(tmp_path / "whole")
    manifest["generator"]["sha256"] = {"model.safetensors": "of other weights"}
    write_json(tmp_path / "whole" / "manifest.json", manifest)
    (tmp_path / "whole" / "results.json").unlink()
    shutil.rmtree(tmp_path / "whole" / "checkpoints")
    refuse("does not hold the weights that", resume, tmp_path / "whole", ignore)


def test_the_loss_of_each_stage_is_what_it_minimises(train, toy_config):
    """A stage's last step ends its window, also where nothing else does."""
    run = train("run", TWO_STAGE, "method.generator_steps=7 train.save_every=12")
    assert [record["step"] for record in read_records(run, "train")] == [4, 7, 8, 12]
    for record in read_metrics(run / "metrics.jsonl"):
        if record["step"] <= 7:
            assert record["loss"] == record["mlm_loss"]
        else:
            assert record["loss"] == toy_config.method.disc_weight * record["disc_loss"]


# What a run writes


def test_records_and_files(run, toy_config):
    train, heldout = (read_records(run, part) for part in ("train", "heldout"))
    assert [record["step"] for record in train] == [4, 6, 8, 12]
    assert [record["step"] for record in heldout] == [6, 12]
    for record in train + heldout:
        total = record["mlm_loss"] + toy_config.method.disc_weight * record["disc_loss"]
        assert record["loss"] == pytest.approx(total)
        assert 0 < record["replaced_rate"] < 0.2
    for record in heldout:  # what the run has cost so far
        (same,) = (each for each in train if each["step"] == record["step"])
        assert (record["tokens"], record["flops"]) == (same["tokens"], same["flops"])
    results = read_object(run / "results.json")
    assert results["heldout"] == heldout[-1]
    assert results["tokens"] == train[-1]["tokens"]
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest.keys() == {"format", "shards", "seed", "sessions", "sha256"}
    (session,) = manifest["sessions"]
    assert {"command", "commit", "packages", "device", "dtype", "started"} <= session.keys()
    samples = json.loads((run / "samples.json").read_text())["rows"]
    for row in samples:
        assert row[0]["token"] == "[CLS]"
        assert all(view["is_replaced"] == (view["token"] != view["original"]) for view in row)
    assert any((run / "tensorboard").iterdir())


@pytest.mark.parametrize("dies_at", [6, 12])
def test_a_run_that_dies_in_an_evaluation_has_its_checkpoint(run, train, tmp_path, dies_at):
    """Whatever happens there; the run is continued, and what it had not evaluated is."""

    def die(record):
        if record["part"] == "heldout" and record["step"] == dies_at:
            raise MemoryError

    with pytest.raises(MemoryError):
        train("parts", show=die)
    assert find_checkpoint(tmp_path / "parts")[0] == dies_at
    metrics = tmp_path / "parts/metrics.jsonl"  # what it would have been without the evaluation
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:-1]))
    resume(tmp_path / "parts", ignore)
    assert_same_end(run, tmp_path / "parts")


OTHER_MASKS = ["method.mask_unit=span", "method.objective=teams", "method.mode=reference"]


@pytest.mark.parametrize("setting", ["method.disc_weight=5", *OTHER_MASKS])
def test_evaluation_does_not_depend_on_how_rows_are_divided(toy_shards, toy_config, setting):
    """No more rows at a time than in a step, and the same masks, samples and measures."""
    shards = open_shards(toy_shards)
    config = fit_to_shards(override(toy_config, ["train.evaluate_rows=20", setting]), shards)
    model = build_model(config, shards.tokenizer, Machine(), count_tokens(shards))
    seen = []
    model.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0].input_ids_BL)))
    heldout = heldout_rows(shards, config)
    expected = evaluate(model, heldout, config.train.micro_batch_size)
    assert seen == [8, 8, 4]
    whole = [each[1] for each in split_heldout(model, heldout, 20)]
    for changes, sizes in (
        (["train.accumulation=3"], [3, 3, 3, 3, 3, 3, 2]),
        (["train.batch_size=16"], [16, 4]),
        (["train.batch_size=1"], [1] * 20),
    ):
        other = override(config, changes)
        assert heldout_rows(shards, other).input_ids_BL.equal(heldout.input_ids_BL)
        seen.clear()
        found = evaluate(model, heldout, other.train.micro_batch_size)
        assert seen == sizes
        assert found == pytest.approx(expected, rel=1e-5)
        parts = [each[1] for each in split_heldout(model, heldout, sizes[0])]
        for joined, all_at_once in zip(
            map(torch.cat, list(zip(*parts, strict=True))[:5]), whole[0], strict=False
        ):
            assert joined.equal(all_at_once)
    fewer = override(config, ["train.evaluate_rows=5"])
    (_, first, _), *_ = split_heldout(model, heldout_rows(shards, fewer), 5)
    assert first.index_BS.equal(whole[0].index_BS[:5]), "rows keep their masks among fewer"


def test_each_row_has_its_own_masks(toy_shards, toy_config):
    shards = open_shards(toy_shards)
    config = fit_to_shards(toy_config, shards)
    model = build_model(config, shards.tokenizer, Machine())
    ((_, draw, _),) = split_heldout(model, heldout_rows(shards, config), 16)
    assert len(draw.sample_BS.unique()) == draw.sample_BS.numel()
    assert len(draw.index_BS.unique(dim=0)) == 16


def test_samples_do_not_depend_on_accumulation(run, train):
    found = []
    for folder in (run, train("parts", "train.accumulation=3")):
        rows = read_object(folder / "samples.json")["rows"]
        found.append([[view["original"] for view in row] for row in rows])
    assert len(found[0]) == 8
    assert found[0] == found[1]


def test_a_held_out_record_between_two_log_windows_counts_the_tokens_since(run, train):
    between = train("between", "train.log_every=12 train.evaluate_every=4 train.save_every=12")
    tokens = {each["step"]: each["tokens"] for each in read_records(between, "heldout")}
    expected = {each["step"]: each["tokens"] for each in read_records(run, "train")}
    assert tokens == {step: expected[step] for step in (4, 8, 12)}


def test_passes_over_the_text_are_told_first_and_many_with_a_note(train, toy_shards, toy_config):
    shards, seen = open_shards(toy_shards), []
    config = override(toy_config, ["train.evaluate_rows=0"])
    examples = Examples(shards.train, shards.tokenizer, config.examples, seed=0)
    train("run", "train.evaluate_rows=0", show=seen.append)
    begin = {"part": "begin", "step": 0, "tokens": 12 * 8 * 32}
    assert seen[0] == begin | {"passes": {"the text": pytest.approx(96 / len(examples))}}
    # A row a step would be read more than 40 times in so many steps.
    steps, fewer = 41 * len(examples), 40 * len(examples)
    with pytest.warns(UserWarning, match=f"reads the text 41 times.*set train.steps={fewer}$"):
        train("many", f"train.batch_size=1 train.steps={steps}", stop_at=4)


def test_a_run_without_evaluations(train, tmp_path):
    """Nothing is measured on held-out text, and the report says so."""
    run = train("run", "train.evaluate_rows=0")
    results = read_object(run / "results.json")
    assert (results["heldout"], results["steps"]) == (None, 12)
    assert {record["part"] for record in read_metrics(run / "metrics.jsonl")} == {"train"}
    assert not (run / "samples.json").exists()
    write_page(tmp_path / "page.html", read_runs([run]), sentences=read_samples(run))
    assert "was not measured on held-out text" in (tmp_path / "page.html").read_text()


def test_shards_that_moved_are_named_once(unfinished, toy_shards, tmp_path):
    moved = shutil.copytree(toy_shards, tmp_path / "moved")
    manifest = read_manifest(unfinished)
    manifest["shards"]["folder"] = "gone"
    write_json(unfinished / "manifest.json", manifest)
    says = f"gone ... if they are elsewhere: electra pretrain SHARDS --resume {unfinished}"
    refuse(says, lambda: resume(unfinished, ignore))
    resume(unfinished, ignore, moved)
    assert read_manifest(unfinished)["shards"]["folder"] == str(moved)


def test_the_manifest_tells_of_every_session(unfinished):
    (session,) = read_manifest(unfinished)["sessions"]
    resume(unfinished, ignore)
    sessions = read_manifest(unfinished)["sessions"]
    assert [each["first_step"] for each in sessions] == [0, 12]
    assert sessions[0] == session
    assert sessions[1].keys() == session.keys()


@pytest.mark.parametrize(("number", "says"), [(None, "no format"), (2, "format 2")])
def test_a_run_of_another_format_is_refused(unfinished, number, says):
    path = unfinished / "manifest.json"
    write_facts(path, {**read_object(path), "format": number})
    says = f"manifest.json has {says}; this version of electra reads format 1: write the folder"
    refuse(says, lambda: resume(unfinished, ignore))
    refuse(says, read_pretrained, unfinished)


def test_the_manifest_tells_that_the_compiler_failed(train, monkeypatch):
    """In the middle of a run on a device that compiles where that is not asked for by name."""

    def fail(module, inputs):
        raise RuntimeError("no compiler")

    by_torch = torch.compile
    monkeypatch.setattr("electra.pretraining.acceleration._compiles", lambda config, device: True)
    monkeypatch.setattr("electra.pretraining.opening.prepare_step", AcceleratedStep)
    monkeypatch.setattr(torch, "compile", lambda model, **options: by_torch(model, backend=fail))
    with pytest.warns(UserWarning, match="torch.compile fails, continuing without it"):
        run = train("run", "train.steps=1 optimizer.warmup_steps=0")
    (session,) = read_manifest(run)["sessions"]
    assert not session["step"]["compiled"]
    assert session["step"]["compiler_failure"].startswith("at step 0: ")


def test_a_resumed_run_keeps_its_attention_kernels(unfinished, monkeypatch):
    ranking = {"masked": ["MATH"], "unmasked": ["FLASH_ATTENTION", "MATH"]}
    amend_session(unfinished, step={"attention": ranking})
    monkeypatch.setattr("electra.pretraining.opening.prepare_step", AcceleratedStep)
    resume(unfinished, ignore)
    assert read_manifest(unfinished)["sessions"][1]["step"]["attention"] == ranking


def test_the_clock_is_honest_on_a_device_with_a_queue():
    """Queued steps count before a pause; a step that compiles counts in no speed."""

    class Device:
        time, queued = 0.0, 0.0

        def wait(self):
            self.time, self.queued = self.time + self.queued, 0.0

    device = Device()
    clock = Clock(Totals(), device.wait, lambda: device.time)
    device.time += 60  # compiling
    device.queued += 4
    clock.leave_out(0.0, 1000)
    device.queued += 9 * 2
    with clock.paused():
        device.time += 100
    device.wait()
    record = clock.record(10, 20, 10_000)
    assert record == {
        "tokens": 10_000,
        "seconds": 60 + 4 + 18,
        "preparing_seconds": 64,
        "tokens_per_second": 500,
        "seconds_left": 20,
    }
    device.queued += 10
    device.wait()
    assert "preparing_seconds" not in clock.record(15, 20, 5000)


@pytest.mark.slow
def test_learns_the_toy_language(train):
    """300 steps: the generator far better than chance, the discriminator below the constant."""
    run = train(
        "run",
        "train.steps=300 train.batch_size=16 train.evaluate_every=300 train.evaluate_rows=500",
        "train.save_every=300 optimizer.warmup_steps=20 optimizer.learning_rate=2e-3",
        "model.hidden_dropout_prob=0 model.attention_probs_dropout_prob=0",
    )
    (heldout,) = read_records(run, "heldout")
    assert heldout["mlm_accuracy"] > 0.3
    assert heldout["disc_loss"] < 0.97 * heldout["constant_disc_loss"]
    assert heldout["disc_auc"] > 0.6


# Refusals


FROZEN = "generator.kind=frozen method.sharing=none generator.frozen_run="


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ("optimizer.warmup_steps=12", "optimizer.warmup_steps=1"),
        ("train.layers=fused train.compile=yes", "not for a compiled step"),
        (FROZEN + "{unigram}", "has no masked language model"),
        (FROZEN + "{none}", "is neither a run"),
        (FROZEN + "{run} model.embedding_size=16", "embedding_size 32"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_written(run, train, tmp_path, settings, says):
    folders = {"none": tmp_path / "none", "run": run, "unigram": tmp_path / "unigram"}
    if "unigram" in settings:
        train("unigram", "generator.kind=unigram train.evaluate_rows=0")
    refuse(says, train, "new", settings.format(**folders))
    assert not (tmp_path / "new").exists()


# The machine


def test_what_one_process_on_a_cpu_does_not_read_is_told(train):
    with (
        pytest.warns(UserWarning, match="sharding has no effect with one process"),
        pytest.warns(UserWarning, match="autotune has no effect: the step is not compiled"),
    ):
        train("run", "train.steps=5 train.sharding=full train.autotune=true")


def test_dtype_where_torch_is_built_without_onednn(monkeypatch):
    """There its question about bfloat16 does not exist."""

    def missing():
        raise AttributeError("'_OpNamespace' 'mkldnn' object has no such attribute")

    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", missing)
    assert choose_dtype("auto", torch.device("cpu")) == torch.float32


@pytest.mark.skipif(platform.machine() != "x86_64", reason="flags of x86")
def test_bfloat16_is_for_processors_that_multiply_it():
    """Where oneDNN would emulate it, a step takes several times as long as in float32."""
    flags = Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0].split()
    multiplies = not {"avx512_bf16", "amx_bf16"}.isdisjoint(flags)
    expected = torch.bfloat16 if multiplies else torch.float32
    assert choose_dtype("auto", torch.device("cpu")) == expected


@pytest.mark.parametrize(
    ("setting", "device", "compiled", "expected"),
    [
        ("auto", "cpu", False, FusedPostNormLayer),
        ("auto", "cpu", True, PostNormLayer),
        ("auto", "cuda", False, PostNormLayer),
        ("plain", "cpu", False, PostNormLayer),
        ("fused", "cpu", False, FusedPostNormLayer),
        ("fused", "cpu", True, "not for a compiled step or a divided model; use plain or auto"),
        ("fused", "cuda", False, "not for device cuda; use plain or auto"),
        ("triton", "cpu", True, "they are for a GPU; use plain or auto"),
        ("triton of a body without", "cuda", True, "a body without has none; use plain or auto"),
        ("fused of a body without", "cpu", False, "a body without has none; use plain"),
        pytest.param(
            *("triton", "cuda", True, "Triton is not installed"),
            marks=pytest.mark.skipif(find_spec("triton") is not None, reason="it is installed"),
        ),
    ],
)
def test_layers_are_those_that_the_machine_runs_best(
    setting, device, compiled, expected, monkeypatch
):
    without = find_body("electra")._replace(triton="", fused="")
    bodies = {"a body without": without, "electra": find_body("electra")}
    monkeypatch.setattr("electra.model.forms.find_body", bodies.__getitem__)
    setting, _, body = setting.partition(" of ")
    is_refused = isinstance(expected, str)
    says = f"layers {setting}: .*{expected}"
    with pytest.raises(UserError, match=says) if is_refused else nullcontext():
        chosen = choose_layers(setting, body or "electra", torch.device(device), is_plain=compiled)
        assert chosen is expected


READERS = {
    "config.json": lambda path: read_run_config(path.parent),
    "manifest.json": lambda path: read_manifest(path.parent),
    "results.json": read_object,
    "samples.json": lambda path: read_samples(path.parent),
    "shards/manifest.json": lambda path: open_shards(path.parent, verify=False),
    "shards/tokenizer/electra.json": lambda path: check_hashes(path.parent),
}


def flip_digits(text, rng):
    """Yield a JSON text with one digit of a value changed, and so it: of a float not always."""
    masked = re.sub(r'"[^"]*":', lambda name: "_" * len(name[0]), text)
    places = [place for place, char in enumerate(masked) if char.isdigit()]
    for place in rng.sample(places, min(40, len(places))):
        changed = f"{text[:place]}{(int(text[place]) + 1) % 10}{text[place + 1 :]}"
        if json.loads(changed) != json.loads(text):
            yield changed


@pytest.mark.parametrize("name", READERS)
def test_a_flipped_digit_of_what_we_wrote_is_seen(run, toy_shards, tmp_path, name):
    copy, read = tmp_path / "copy", READERS[name]
    shutil.copytree(toy_shards if name.startswith("shards/") else run, copy)
    path = copy / name.removeprefix("shards/")
    text = path.read_text()
    for changed in flip_digits(text, random.Random(0)):
        path.write_text(changed)
        refuse(f"{path.parent}/ ... damaged", read, path)
    path.write_text(json.dumps(json.loads(text), sort_keys=True))  # as another program writes it
    read(path)


def test_a_flipped_digit_of_a_record_costs_this_record_alone(run, tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    whole = read_metrics(run / "metrics.jsonl")
    for number, line in enumerate(lines):
        for changed in flip_digits(line, random.Random(number)):
            path.write_text("".join([*lines[:number], changed, *lines[number + 1 :]]))
            with pytest.warns(UserWarning, match=rf"left out: line {number + 1}$"):
                assert read_metrics(path) == whole[:number] + whole[number + 1 :]


def test_settings_are_changed_on_purpose_without_their_hash(unfinished):
    path = unfinished / "config.json"
    config = json.loads(path.read_text())
    config["optimizer"]["learning_rate"] *= 2
    path.write_text(json.dumps(config))
    says = f"{path} is damaged: it does not match the sha256 in it ... on purpose, remove its sha"
    refuse(says, resume, unfinished, ignore)
    del config["sha256"]
    path.write_text(json.dumps(config))
    resume(unfinished, ignore)
