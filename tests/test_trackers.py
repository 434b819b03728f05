"""Weights & Biases and trackio get what metrics.jsonl gets, and a resumed run is one run there."""

import json
import os
import subprocess
import sys

import pytest
from refusals import refuse
from test_clients import install

from electra.assignments import flatten, override
from electra.checkpoints.metrics import OF_THE_MACHINE, read_metrics
from electra.files import read_object
from electra.pretraining.loop import pretrain
from tools.clients import Environment

TRACKERS = Environment(
    (
        *("wandb==0.31.0", "trackio==0.43.0", "gradio-client==2.7.2", "brotli==1.2.1"),
        *("orjson==3.13.0", "python-multipart==0.0.34", "httpx==0.28.1", "httpcore==1.0.9"),
        *("sniffio==1.3.1", "pillow==12.3.0", "websockets==17.4"),
    )
)
SETTINGS = ["model.num_hidden_layers=1", "examples.sequence_length=32", "train.batch_size=4"]
SETTINGS += ["train.log_every=2", "train.evaluate_every=2", "train.threads=1"]
# The file is a log of LevelDB's, of less than a block: a head, then records of checksum, size, kind
# and bytes.
READ_WANDB = """
import json, sys
from pathlib import Path
from wandb.proto.wandb_internal_pb2 import Record
runs = {}
for path in sorted(Path(sys.argv[1]).glob("wandb/offline-run-*/*.wandb")):
    data = path.read_bytes()[7:]
    while data:
        size = 7 + int.from_bytes(data[4:6], "little")
        record, data = Record.FromString(data[7:size]), data[size:]
        values = {(each.key or each.nested_key[0]): json.loads(each.value_json)
                  for each in (*record.history.item, *record.run.config.update)}
        if record.HasField("run"):
            run = runs.setdefault(record.run.run_id, {"name": record.run.display_name, "logs": []})
            run["config"] = values
        if record.HasField("history"):
            run["logs"].append({"step": record.history.step.num, **values})
print(json.dumps(list(runs.values())))
"""
READ_TRACKIO = """
import json
from trackio.sqlite_storage import SQLiteStorage as Storage
print(json.dumps([
    {"name": name, "config": Storage.get_run_config("electra", name),
     "logs": Storage.get_logs("electra", name)}
    for name in Storage.get_runs("electra")]))
"""


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_tracker_that_is_not_installed_is_named_before_anything_is_written(
    name, toy_shards, toy_config, tmp_path
):
    config = override(toy_config, [f"train.tracker={name}"])
    words = f"train.tracker={name} needs {name}: pip install 'electra[{name}]'"
    refuse(words, lambda: pretrain(toy_shards, tmp_path / "run", config, print))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "code"), [("wandb", READ_WANDB), ("trackio", READ_TRACKIO)])
def test_a_tracker_has_the_records_of_a_resumed_run_as_one_run(name, code, toy_shards, tmp_path):
    run = tmp_path / "run"
    settings = os.environ | {"WANDB_MODE": "offline", "TRACKIO_DIR": str(tmp_path / "trackio")}
    settings["PYTHONPATH"] = os.pathsep.join([str(install(TRACKERS)), *sys.path])
    command = ["-m", "electra", "pretrain", toy_shards, "--preset", "tiny", "--out", run, "--set"]
    command += [*SETTINGS, f"train.tracker={name}"]
    for words in ([*command, "train.steps=4"], [*command, "train.steps=8"], ["-c", code, run]):
        words = [sys.executable, "-W", "ignore", *map(str, words)]
        done = subprocess.run(words, env=settings, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout.splitlines()[-1])
    assert found["name"].startswith("run-")
    config = read_object(run / "config.json")
    assert dict(flatten(config)).items() <= dict(flatten(found["config"])).items()
    logged = {(each["step"], key): each[key] for each in found["logs"] for key in each}
    records = read_metrics(run / "metrics.jsonl")
    assert [each["step"] for each in records if each["part"] == "train"] == [2, 4, 6, 8]
    for record in records:
        for key in record.keys() - {"part", "step"} - OF_THE_MACHINE:
            assert logged[record["step"], f"{record['part']}/{key}"] == record[key]
