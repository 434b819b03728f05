"""Copies of a run in a store: another machine continues from the newest, with the same bits."""

import json
import threading

import pytest
from refusals import refuse
from runs import ignore
from stores import BUCKET

from electra.assignments import override
from electra.checkpoints import copies
from electra.checkpoints.copies import Copier, fetch_copy
from electra.files import make_folder, read_object, write_facts, write_json
from electra.objects import list_sizes, place_of
from electra.pretraining.loop import pretrain

pytest.importorskip("obstore")
WEIGHTS = "checkpoints/step-00000012/model.safetensors"


def config_of(toy_config, url, **more):
    settings = {"copy_to": url, "save_every": 4, **more}
    return override(toy_config, [f"train.{name}={value}" for name, value in settings.items()])


@pytest.mark.filterwarnings("ignore:resuming")
def test_another_machine_continues_from_the_newest_copy(toy_shards, toy_config, tmp_path, proxy):
    url = f"s3://{BUCKET}/{tmp_path.name}"
    proxy.add("expired", "PUT", "step-00000012.json", times=1000)  # the machine is lost before
    config = config_of(toy_config, url)
    with pytest.warns(UserWarning, match="a checkpoint was not copied: .*ExpiredToken"):
        pretrain(toy_shards, tmp_path / "lost", config, ignore)
    proxy.planned.clear()
    newest = max(name for name in list_sizes(place_of(url)) if "/" not in name)
    assert newest in ("step-00000004.json", "step-00000008.json")  # one may be left out
    pretrain(toy_shards, tmp_path / "other", config, ignore)
    lost, other = ((tmp_path / run / WEIGHTS).read_bytes() for run in ("lost", "other"))
    assert lost == other
    sessions = json.loads((tmp_path / "other/manifest.json").read_text())["sessions"]
    assert [each["first_step"] for each in sessions] == [0, int(newest[5:13])]
    assert not (tmp_path / "other/sending").exists()
    assert "step-00000012.json" in list_sizes(place_of(url))
    changed = config_of(toy_config, url, seed=1)
    refuse("seed", pretrain, toy_shards, tmp_path / "third", changed, ignore)
    pretrain(toy_shards, tmp_path / "fourth", config_of(toy_config, "", seed=1), ignore)
    longer = config_of(toy_config, url, seed=1, steps=16)
    refuse(
        "has the copies of another run", pretrain, toy_shards, tmp_path / "fourth", longer, ignore
    )


def test_only_a_url_is_taken(toy_shards, toy_config, tmp_path):
    config = config_of(toy_config, "folder")
    refuse("train.copy_to must be a URL", pretrain, toy_shards, tmp_path / "run", config, ignore)
    assert not (tmp_path / "run").exists()


@pytest.fixture
def run(tmp_path):
    """A run folder with two checkpoints, as far as a copy is concerned."""
    folder = tmp_path / "run"
    for name in ("step-00000001", "step-00000002", "step-00000003"):
        make_folder(folder / "checkpoints" / name)
        (folder / "checkpoints" / name / "model.safetensors").write_text(name)
    write_facts(folder / "manifest.json", {"format": 1, "sessions": [{"first_step": 0}]})
    return folder


def test_a_slow_store_leaves_checkpoints_out_and_blocks_nothing(run, tmp_path, monkeypatch):
    url, goes_on, send = place_of(f"file://{tmp_path}/store"), threading.Event(), copies.send

    def slow(content, target):
        assert goes_on.wait(60)
        send(content, target)

    monkeypatch.setattr(copies, "send", slow)
    copier = Copier(run, url)
    for folder in sorted((run / "checkpoints").iterdir()):
        copier.offer(folder)
        (folder / "model.safetensors").unlink()  # as the run removes old ones
        while copier.waiting and folder.name.endswith("1"):
            pass  # it is being sent
    assert not list_sizes(url)
    goes_on.set()
    copier.finish()
    assert {name for name in list_sizes(url) if name.endswith(".json") and "/" not in name} == {
        "step-00000001.json",
        "step-00000003.json",
    }
    assert fetch_copy(url, tmp_path / "fetched")
    found = tmp_path / "fetched/checkpoints/step-00000003/model.safetensors"
    assert found.read_text() == "step-00000003"
    damaged = tmp_path / "store/step-00000003/checkpoints/step-00000003/model.safetensors"
    damaged.write_text("step-0000000x")
    refuse("model.safetensors is damaged", fetch_copy, url, tmp_path / "again")
    commit = tmp_path / "store/step-00000003.json"
    for name in ("../out", f"{tmp_path}/out"):
        write_json(commit, read_object(commit) | {"sha256": {name: "0" * 64}})
        refuse("is not a file of a run", fetch_copy, url, tmp_path / "again")
    assert not (tmp_path / "again").exists()
