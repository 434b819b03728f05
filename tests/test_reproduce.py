"""Suites: what they refuse, equal compute, shared parts, resuming, and what is told of them."""

import dataclasses
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from matplotlib.axes import Axes
from networks import assert_same_tensors
from refusals import refuse
from runs import ignore

from electra.assignments import from_dict, override
from electra.checkpoints.checkpoint import (
    FILES,
    find_checkpoint,
    list_checkpoints,
    read_state,
    read_tensors,
)
from electra.checkpoints.finetuned import read_finetuned
from electra.checkpoints.folder import read_run_config
from electra.cli import main
from electra.files import hold
from electra.presets import PRESETS
from electra.pretraining.continuation import branch
from electra.pretraining.loop import pretrain, resume
from electra.pretraining.networks import sketch_objective
from electra.reproduce import report
from electra.reproduce.plan import (
    Setup,
    count_finetunings,
    find_finetunings,
    find_work,
    finetune_configs,
    keep_plan,
    known_name,
    make_plan,
    open_plan,
)
from electra.reproduce.records import (
    compare,
    compare_further,
    estimate,
    estimate_gain,
    find_known,
    keep_scores,
    read_all_records,
    read_written,
)
from electra.reproduce.run import Session, find_tasks
from electra.reproduce.suite import Ordering, Row, Suite, find_suite, list_suites, read_suite
from electra.settings import to_dict
from electra.shards.store import open_shards
from electra.tasks.config import FinetuneConfig
from electra.tasks.registry import read_task

ROOT = Path(__file__).parent.parent
TOY = """
title = "A toy"
paper = "ELECTRA is above BERT."
preset = "tiny"
reference = "BERT"
budget = 3e10
seeds = 2
tasks = ["own"]
fractions = [0.5, 1.0]
set = ["examples.sequence_length=32", "model.num_hidden_layers=1", "train.batch_size=8",
    "train.initial_weights=bert", "optimizer.decay_fraction=0.5", "train.evaluate_rows=8",
    "train.threads=1"]
[finetune]
all = ["epochs=1", "batch_size=32", "sequence_length=24"]
[[rows]]
name = "ELECTRA"
paper = [70, 80]
[[rows]]
name = "BERT"
set = ["method.objective=mlm"]
paper = [60, 75]
"""


@pytest.fixture
def toy_suite(tmp_path):
    path = tmp_path / "toy.toml"
    path.write_text(TOY)
    return path


@pytest.fixture
def plan_toy(toy_suite, toy_shards):
    """Return what makes the plan of the toy suite with some fields changed."""

    def plan_toy(**changes):
        suite = dataclasses.replace(read_suite(toy_suite), **changes)
        return make_plan(suite, open_shards(toy_shards))

    return plan_toy


@pytest.mark.slow
def test_every_suite_of_the_paper_can_be_planned(toy_shards):
    shards = open_shards(toy_shards)
    small = {
        f"{path}, {recipe}": dataclasses.replace(read_suite(path), recipe=recipe)
        for path in (ROOT / "benchmarks").glob("*/*.toml")
        if path.name != "size.toml"  # what others extend
        and path.parent.name in ("one-gpu", "two-cores")
        for recipe in ("paper", "best")
    }
    assert len(small) == 30
    for name, suite in (list_suites() | small).items():
        plan = make_plan(dataclasses.replace(suite, seeds=1), shards)
        wanted = sum(len(row.fractions or suite.fractions) for row in suite.rows)
        assert len(plan.runs) == wanted, name
        spent: dict[str, list[float]] = {}  # rounded to whole steps
        for run in (each for each in plan.runs if each.config.train.steps > 100):
            compared = spent.setdefault(run.row.against or suite.reference, [])
            compared.append(run.flops["true"] / run.fraction)
        is_equal = all(max(each) / min(each) < 1.001 for each in spent.values())
        assert is_equal or suite.equal != "flops", name


def test_a_short_run_that_branches_off_is_the_run_by_itself(plan_toy, toy_shards, tmp_path):
    trunk, short = plan_toy(budget=1e10).units[0]
    assert short.trunk == trunk.name
    assert short.config.train.steps < trunk.config.train.steps
    pretrain(toy_shards, tmp_path / "trunk", trunk.config, ignore)
    branch(tmp_path / "trunk", tmp_path / "branched", short.config)
    shared = find_checkpoint(tmp_path / "branched")[0]
    assert shared > 0
    resume(tmp_path / "branched", ignore)
    pretrain(toy_shards, tmp_path / "alone", short.config, ignore)
    both = [read_state(find_checkpoint(tmp_path / name)[1]) for name in ("branched", "alone")]
    for file, tensors in both[0].items():
        for name, tensor in tensors.items():
            assert tensor.equal(both[1][file][name]), name
    manifest = json.loads((tmp_path / "branched" / "manifest.json").read_text())
    assert manifest["branched_from"]["run"] == "trunk"
    linear = override(short.config, ["optimizer.decay_fraction=1.0"])
    refuse("no stable part", branch, tmp_path / "trunk", tmp_path / "other", linear)
    for checkpoint in list_checkpoints(tmp_path / "trunk", shared):
        (checkpoint / FILES[0]).write_bytes(b"")
    refuse(f"{shared} is damaged", branch, tmp_path / "trunk", tmp_path / "x", short.config)


@pytest.fixture
def words(toy_suite, toy_shards, toy_question, tmp_path):
    """Return the words of a command about the toy suite."""

    def words(*more, out="out", runs="runs", data=toy_question):
        places = ["--shards", toy_shards, "--data", f"own={data}", "--runs", tmp_path / runs]
        given = ["reproduce", toy_suite, *places, "--out", tmp_path / out, *more]
        return list(map(str, given))

    return words


@pytest.fixture
def refusal(words, capsys):
    """Return what a command about the toy suite says that is refused."""

    def refusal(*more, **places):
        with pytest.raises(SystemExit):
            main(words(*more, **places))
        return capsys.readouterr().err

    return refusal


@pytest.mark.slow
@pytest.mark.filterwarnings("default:.*of --earlier are passed over")
def test_a_suite_from_its_file_to_its_page(
    toy_suite, toy_question, words, refusal, tmp_path, capsys, monkeypatch
):
    more = TOY.replace('["own"]', '["own", "cola"]').replace("all =", 'cola = ["epochs=9"]\nall =')
    toy_suite.write_text(more)  # of its tasks one is asked for
    runs, out = tmp_path / "runs", tmp_path / "out"
    one = ("--seeds", 1, "--tasks", "own", "--jobs", 2)
    none = (*one[:-1], 0)

    def said(*given, **places):
        main(words(*given, **places))
        return capsys.readouterr()

    def files():
        return {path.name: path.read_bytes() for path in out.iterdir()}

    plan = said(*one, "--dry-run", "--set", "train.evaluate_rows=4").out  # above the suite's own
    assert re.search(r"4 of 4 runs are left: about .*s of pre-training and .*of fine-tuning", plan)
    assert "nothing was written: no run of" in refusal(*none)
    assert not runs.exists()
    written = []

    def count_and_write(out, suite, records, *rest):
        written.append(len(records))
        return report.write_results(out, suite, records, *rest)

    monkeypatch.setattr("electra.reproduce.run.write_results", count_and_write)
    said(*one)
    assert len(written) == 3, "after each of the two rows, and at the end"
    first = files()
    assert set(first) == {
        "results.json", "README.md", "table.tex", "figure.png", "figure.svg", "index.html"
    }  # fmt: skip
    records = json.loads(first["results.json"])["records"]
    assert len(records) == 4
    for record in records:
        scores = json.loads((runs / record["run"] / "finetune-own/results.json").read_text())
        assert record["scores"]["own"] == scores["median"]
    assert "ELECTRA after 50% *" in first["README.md"].decode()
    # Nothing is left to do: the same command writes the same files.
    said(*one)
    assert files() == first
    # Nor does --jobs 0 begin what a further seed would be.
    said("--seeds", 2, *none[2:])
    assert len(read_all_records(out)) == 4
    assert "4 of 8 runs" in (out / "README.md").read_text()
    said(*one)
    # The results alone are enough: on a machine without the runs nothing is left to do, either.
    assert "all 4 runs are done" in said(*one, "--dry-run", runs="elsewhere").out
    said(*one, runs="elsewhere")
    assert files()["table.tex"] == first["table.tex"]
    assert json.loads(files()["results.json"])["records"] == records
    # Another suite with rows of the same names takes them from there.
    second = {"runs": "elsewhere", "out": "second"}
    earlier = (*one, "--earlier", out, "--dry-run")
    assert "all 4 runs are done" in said(*earlier, **second).out
    # What does not fit there is computed anew.
    toy_suite.write_text(more.replace("3e10", "4e10"))
    output = said(*earlier, **second)
    assert "4 of 4 runs are left" in output.out
    assert "note: 4 records of --earlier are passed over, such as " in output.err
    toy_suite.write_text(more)
    # Records that are scored on other files are passed over, and are refused in --out.
    other = tmp_path / "other"
    shutil.copytree(toy_question, other)
    with (other / "train.tsv").open("a") as file:
        file.write("\nthe queen slept\twoman")
    output = said(*earlier, **second, data=other)
    assert "4 of 4 runs are left" in output.out
    scored = "electra-1-seed-0 was scored on other files of own"
    assert scored in output.err
    assert scored in refusal(*one, runs="elsewhere", data=other)
    # A command that finds nothing of its rows leaves the results as they are.
    others = more.replace('name = "', 'x = 1\nname = "other ')
    toy_suite.write_text(others.replace('= "BERT"', '= "other BERT"\nx = "width"', 1))
    assert "nothing was written: no run of" in refusal(*none, runs="elsewhere")
    assert json.loads(files()["results.json"])["records"] == records
    # Rows that a command leaves out stay in the file.
    first_row, _ = more.rsplit("[[rows]]", 1)
    toy_suite.write_text(first_row.replace('reference = "BERT"', 'reference = "ELECTRA"'))
    said(*one, runs="elsewhere")
    assert [each["row"] for each in read_all_records(out)].count("BERT") == 2
    assert "BERT" not in (out / "table.tex").read_text()
    toy_suite.write_text(more)
    assert "all 4 runs are done" in said(*one, "--dry-run", runs="elsewhere").out
    # Results, and a folder of runs, belong to one comparison.
    toy_suite.write_text(TOY.replace("3e10", "4e10"))
    begun = "results.json: electra-1-seed-0 was started with "
    assert begun in refusal(*one, runs="elsewhere")
    assert "train.steps=" in refusal(*one)
    toy_suite.write_text(TOY.replace("epochs=1", "epochs=2"))
    assert "has fine-tunings of own with epochs=1 " in refusal(*one)
    # Seeds that are scored on other examples cannot be added.
    toy_suite.write_text(more)
    assert "own has other files than " in refusal("--seeds", 2, *one[2:], data=other)


@pytest.mark.slow
def test_of_a_grid_the_best_combination_counts(toy_suite, words, refusal, tmp_path, capsys):
    grid = 'grid = ["learning_rate=1e-6,1e-2"]\n[finetune]'
    one_share = re.sub(r"paper = \[.*\n", "", TOY.replace("[0.5, 1.0]", "[1.0]"))
    toy_suite.write_text(one_share.replace("[finetune]", grid))
    main(words("--seeds", 1, "--jobs", 2))
    records = read_all_records(tmp_path / "out")
    assert len(records) == 2
    for record in records:
        folder = tmp_path / "runs" / record["run"] / "finetune-own"
        names = ["learning_rate=1e-6", "learning_rate=1e-2"]
        scores = [json.loads((folder / name / "results.json").read_text()) for name in names]
        assert record["scores"]["own"] == max(each["median"] for each in scores)
        assert record["chosen"]["own"] in names
        assert record["finetune"]["own"][-1] == "learning_rate=1e-6,1e-2"
    page = (tmp_path / "out/README.md").read_text()
    assert "learning_rate=1e-6,1e-2 in fine-tuning, the best" in page
    capsys.readouterr()
    main(words("--seeds", 1, "--dry-run", runs="elsewhere"))
    assert "all 2 runs are done" in capsys.readouterr().out
    toy_suite.write_text(one_share)
    assert "learning_rate=1e-6,1e-2, not" in refusal("--seeds", 1)


@pytest.mark.slow
def test_rows_that_differ_in_fine_tuning_alone_have_one_pre_training(
    toy_suite, words, refusal, tmp_path
):
    """BERT's table 5, at toy size."""
    kept, _ = re.sub("(title|paper|reference|fractions|seeds).*", "", TOY).split("[[rows]]", 1)
    kept = kept.replace("3e10", "4\nseeds = 1")
    toy_suite.write_text(f'extends = "bert-table-5"\n{kept}')
    main(words("--jobs", 2))
    runs, (*_, left, with_bilstm) = tmp_path / "runs", read_all_records(tmp_path / "out")
    rows = ("bert", "no-nsp", "ltr-no-nsp", "ltr-no-nsp-bilstm")
    names = [f"{row}-1-seed-0" for row in rows]
    assert sorted(path.name for path in runs.glob("*-seed-0")) == sorted(names)
    assert [each["run"] for each in (left, with_bilstm)] == names[2:]
    assert left["heldout"] == with_bilstm["heldout"]
    tensors = [read_tensors(find_checkpoint(runs / name)[1] / FILES[0]) for name in names]
    assert_same_tensors(*map(dict, tensors[2:]))
    assert "next_sentence_head.pooler.weight" in tensors[0].keys() - tensors[1].keys()
    found = [read_finetuned(runs / name / "finetune-own") for name in names]
    assert [each.encoder.causal for each in found] == [False, False, True, True]
    assert [each.config.bilstm for each in found] == [False, False, False, True]
    assert "fine-tuning: bilstm=true" in (tmp_path / "out" / "README.md").read_text()
    suite = toy_suite.read_text().replace("bert-table-5", str(tmp_path / "table.toml"))
    table = find_suite("bert-table-5").read_text()
    (tmp_path / "table.toml").write_text(table.replace("bilstm=true", "pooling=mean"))
    toy_suite.write_text(suite)
    told = "ltr-no-nsp-bilstm-1-seed-0 has fine-tunings with bilstm=true of the row; choose another"
    assert told in " ".join(refusal().split())


@pytest.mark.slow
def test_a_killed_suite_ends_with_the_same_table(words, tmp_path):
    def command(name):
        given = words("--seeds", 1, runs=name, out=f"{name}-out")
        return [sys.executable, "-m", "electra", *given]

    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    subprocess.run(command("whole"), check=True, capture_output=True)
    first = "electra-1-seed-0"
    for pattern in (f"{first}/metrics.jsonl", f"{first}/finetune*", "bert-1*/metrics.jsonl"):
        process = subprocess.Popen(command("killed"), **quiet)
        while not list((tmp_path / "killed").glob(pattern)):
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.communicate()  # until its worker has also ended, and closed the pipe
    subprocess.run(command("killed"), check=True, capture_output=True)
    tables = [(tmp_path / f"{name}-out" / "table.tex").read_text() for name in ("whole", "killed")]
    assert tables[0] == tables[1]


def kill_on_ray(run, suite):
    """SIGKILL the Ray worker that has begun to write a run of the suite."""
    while not (run / "metrics.jsonl").exists():
        assert suite.poll() is None
        time.sleep(0.02)
    titles = {path.parent.name: path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")}
    workers = [number for number, title in titles.items() if b"ray::_compute_on_ray" in title]
    assert workers
    for number in workers:
        os.kill(int(number), signal.SIGKILL)


@pytest.mark.slow
def test_tasks_of_a_queue_and_of_ray_give_the_same_results(words, tmp_path):
    pytest.importorskip("ray")

    def run(name, *more):
        given = words("--seeds", 1, *more, runs=name, out=f"{name}-out")
        return subprocess.Popen([sys.executable, "-m", "electra", *given])

    assert run("jobs", "--jobs", 2).wait() == 0
    tasks = [run("tasks", "--task", f"{number}/2") for number in range(2)]
    assert [task.wait() for task in tasks] == [0, 0]
    assert not (tmp_path / "tasks-out").exists()
    assert run("tasks", "--jobs", 0).wait() == 0
    ray = run("ray", "--engine", "ray", "--jobs", 2)
    kill_on_ray(tmp_path / "ray" / "bert-1-seed-0", ray)
    assert ray.wait() == 0

    def read(name):
        return [each | {"seconds": 0} for each in read_all_records(tmp_path / f"{name}-out")]

    assert read("jobs") == read("tasks") == read("ray")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "number"),
    [("local", signal.SIGINT), ("local", signal.SIGTERM), ("ray", signal.SIGTERM), ("local", None)],
)
def test_a_suite_that_is_stopped_leaves_checkpoints(words, tmp_path, engine, number):
    """A terminal and a queue signal all processes of a suite, which also signals its runs.

    Ray's processes are as on other machines, which get no signal: without it, those here may end
    before a run is saved.
    """
    pytest.importorskip("ray" if engine == "ray" else "torch")
    # Of the threads that a run is to have, no machine of the cluster has all.
    more = ("train.threads=3",) if engine == "ray" else ()
    given = words("--budget", 1e13, "--seeds", 1, "--jobs", 2, "--engine", engine)
    process = subprocess.Popen(
        [sys.executable, "-m", "electra", *given, "--set", "train.log_every=1", *more],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env=os.environ | {"RAY_OVERRIDE_RESOURCES": '{"CPU": 2}'},
        # As a script's job in the background; a run takes the signal nevertheless.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    rows = ("electra",) if more else ("electra", "bert")
    runs = [tmp_path / "runs" / f"{row}-1-seed-0" for row in rows]
    logs = [run / "metrics.jsonl" for run in runs]
    while not all(log.exists() and log.read_text().count("\n") > 5 for log in logs):
        assert process.poll() is None
        time.sleep(0.2)
    if number:
        (os.kill if engine == "ray" else os.killpg)(process.pid, number)
    else:  # only its runs, which are not taken for done
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            os.kill(int(child), signal.SIGTERM)
    err = " ".join(process.communicate(timeout=300)[1].decode().split())
    assert ("interrupted" if number else "is safe (2 of 2 rows and seeds failed") in err
    assert process.returncode == (130 if number else 2)
    for run, log in zip(runs, logs, strict=True):
        last = json.loads(log.read_text().splitlines()[-1])
        assert find_checkpoint(run)[0] == last["step"]


@pytest.mark.slow
def test_a_row_that_fails_does_not_keep_the_others_back(toy_suite, refusal, start, tmp_path):
    sets = ["model.num_hidden_layers=2", f"train.init_from={start}", "train.also_evaluate=nowhere"]
    broken = f'[[rows]]\nname = "broken"\nset = {json.dumps(sets)}\n'
    text = TOY.replace("[0.5, 1.0]", "[1.0]").replace("[[rows]]", broken + "[[rows]]", 1)
    toy_suite.write_text(re.sub(r"paper = \[.*\n", "", text))
    told = refusal()
    assert "(2 of 6 rows and seeds failed, the others are done)" in told
    assert told.count("nowhere is not a shards folder") == 2
    rows = [each["run"] for each in read_all_records(tmp_path / "out")]
    assert rows == ["electra-1-seed-0", "bert-1-seed-0", "electra-1-seed-1", "bert-1-seed-1"]


def test_runs_that_are_known_are_left_out_but_for_trunks(toy_suite, plan_toy):
    plan = plan_toy(seeds=1)
    names = [run.name for run in plan.without({"electra-1-seed-0", "bert-0.5-seed-0"}).runs]
    assert names == ["electra-1-seed-0", "electra-0.5-seed-0", "bert-1-seed-0"]
    rows = read_suite(toy_suite).rows
    with_bilstm = dataclasses.replace(rows[1], name="BiLSTM", finetune=("bilstm=true",))
    plan = plan_toy(seeds=1, rows=(*rows, with_bilstm))
    assert [len(unit) for unit in plan.units] == [2, 4]
    of_bert = ["bert-1-seed-0", "bert-0.5-seed-0"]
    names = [run.name for run in plan.without({*of_bert, "bilstm-1-seed-0"}).runs]
    assert names[2:] == [*of_bert, "bilstm-0.5-seed-0"], "the run that is copied, and its trunk"


def test_the_work_that_is_left(toy_suite, toy_shards, toy_question, tmp_path):
    suite = dataclasses.replace(read_suite(toy_suite), seeds=1)
    plan = make_plan(suite, open_shards(toy_shards))
    setup = Setup(suite, toy_shards, {"own": toy_question}, tmp_path)
    task = read_task("own", toy_question, FinetuneConfig())
    counts = count_finetunings(setup, plan, {"own": task})
    rows = task.encode(open_shards(toy_shards).tokenizer, 24)["train"]
    encoder = sketch_objective(plan.runs[0].config).kept
    per_token = 3 * sum(encoder.count_flops(float(rows.lengths.float().mean())).values())
    whole = per_token * float(rows.lengths.sum())
    assert counts["ELECTRA", "own"] == pytest.approx(whole, rel=0.1)
    assert counts["BERT", "own"] == counts["ELECTRA", "own"]
    trunk, branched = plan.units[0]
    finetuning = counts["ELECTRA", "own"]
    folder = tmp_path / trunk.name
    folder.mkdir()
    half = trunk.config.train.steps // 2
    (folder / "metrics.jsonl").write_text(json.dumps({"part": "heldout", "step": half}) + "\n")
    share = 1 - half / trunk.config.train.steps
    left = find_work(setup, trunk, counts)
    assert left == (pytest.approx(share * trunk.flops["true"]), finetuning)
    (folder / "results.json").touch()
    assert find_work(setup, trunk, counts) == (0, finetuning)
    with setup.telling(trunk, "own") as tell:  # of a fine-tuning that is on its way
        tell({"part": "task"})
        tell({"part": "train", "step": 20, "steps": 80})
        assert find_work(setup, trunk, counts) == (0, pytest.approx(0.75 * finetuning))
    assert find_work(setup, trunk, counts) == (0, finetuning)
    assert not [*folder.glob("*.share")]
    (folder / "finetune-own").mkdir()
    assert find_work(setup, trunk, counts) == (0, 0)
    # Of the one that branches off, the decay: half of its steps.
    assert find_work(setup, branched, counts) == (branched.flops["true"] / 2, finetuning)


def test_your_own_tasks_have_names(toy_suite, tmp_path):
    suite = dataclasses.replace(read_suite(toy_suite), tasks=("topics", "own"))
    given = [f"topics={tmp_path}", f"own={tmp_path}"]
    assert find_tasks(suite.tasks, None, given) == {"topics": tmp_path, "own": tmp_path}
    refuse("unknown task 'topics'", find_tasks, suite.tasks, None, given[1:])
    row, config = suite.rows[0], PRESETS["tiny"]
    named = {
        task: finetune_configs(suite, row, config, task)[""].own.name
        for task in (*suite.tasks, "cola")
    }
    assert named == {"topics": "topics", "own": "own", "cola": "own"}
    assert [known_name(task) for task in (*named, "tagging")] == ["own", "own", "cola", "tagging"]
    refuse("a task's name is that of a folder", dataclasses.replace, suite, tasks=("../x",))


def test_no_commit_is_none():
    """Of code that knows no commit the table has none, and not the word None."""
    records = [
        {
            **{"run": "a", "seed": 0, "steps": 1, "tokens": 1, "devices": ["CPU"]},
            **{"flops": {"true": 1.0, "paper": 1.0}, "commits": commits},
        }
        for commits in ([], ["a" * 40])
    ]
    assert [row[6] for row in report.trace_runs(records).rows] == ["not recorded", "a" * 10]


@pytest.mark.slow
def test_a_task_that_is_added_is_all_that_is_left(toy_suite, words, toy_question, tmp_path, capsys):
    """Another task of one's own, and minimal pairs, whose scores are those of `electra score`."""
    toy_suite.write_text(TOY.replace("seeds = 2", "seeds = 1").replace("[0.5, 1.0]", "[1.0]"))
    toy_suite.write_text(re.sub("paper = .*", "", toy_suite.read_text()))
    main(words())
    tasks = '["own", "topics", "minimal-pairs"]'
    toy_suite.write_text(toy_suite.read_text().replace('["own"]', tasks))
    pairs = tmp_path / "pairs.tsv"
    more = words()
    place = more.index("--data") + 2
    more[place:place] = [f"topics={toy_question}", f"minimal-pairs={pairs}"]
    with pytest.raises(SystemExit):
        main(more)
    assert "pairs.tsv is no file of pairs" in capsys.readouterr().err
    pairs.write_text(
        "sentence_good\tsentence_bad\tUID\n"
        + "the queen sold a boat .\tboat a sold queen the .\torder\n" * 3
        + "the queen sold a boat .\tthe queen sold boat a .\tend\n"
    )
    capsys.readouterr()
    main([*more, "--dry-run"])
    said = capsys.readouterr().out
    assert said.count("pre-trained; left: topics, minimal-pairs") == 2
    for told in ("train.steps=", "method.objective=", "own.name=topics"):
        assert told in said
    assert re.search(r"2 of 2 runs are left: about 0s of pre-training and \d+s of fine-tun", said)
    main(more)
    for record in read_all_records(tmp_path / "out"):
        assert sorted(record["scores"]) == ["minimal-pairs", "own", "topics"]
        out = tmp_path / f"{record['run']}.json"
        main(
            [
                "score",
                str(tmp_path / "runs" / record["run"]),
                "--pairs",
                str(pairs),
                "--out",
                str(out),
            ]
        )
        assert record["scores"]["minimal-pairs"] == json.loads(out.read_text())["accuracy"]
    assert "| minimal-pairs | - |" in (tmp_path / "out/README.md").read_text()


def test_what_is_refused_before_the_pre_training(toy_suite, refusal, tmp_path):
    (tmp_path / "empty").mkdir()
    assert str(tmp_path / "empty") in refusal(data=tmp_path / "empty")
    toy_suite.write_text(TOY.replace("epochs=1", "train_examples=100000"))
    assert "train_examples 100000 is more than the " in refusal()
    assert not (tmp_path / "runs").exists()


def test_rows_equal_in_seconds_are_of_one_machine(toy_suite, refusal):
    toy_suite.write_text(TOY.replace("budget = 3e10", 'equal = "seconds"\nbudget = 9'))
    for words in (("--engine", "ray"), ("--task", "0/2")):
        assert "computed on one machine; leave --task" in refusal(*words)


def test_a_share_plans_its_own_rows_and_seeds(toy_suite, toy_shards, toy_question, tmp_path):
    setup = Setup(read_suite(toy_suite), toy_shards, {"own": toy_question}, tmp_path / "runs")
    session = Session(setup, tmp_path / "out", share=(2, 3))
    names = ["electra-1-seed-1", "electra-0.5-seed-1"]
    assert [run.name for run in session.plan.runs] == [*session.left] == names


def test_a_fine_tuning_killed_before_its_settings_were_written_is_none(tmp_path):
    folder = tmp_path / "bert-1-seed-0" / "finetune-own.incomplete"
    folder.mkdir(parents=True)
    assert not any(find_finetunings(tmp_path, "own"))
    (folder / "config.json").touch()
    assert [*find_finetunings(tmp_path, "own")] == [folder]


def test_a_fine_tuning_that_is_finished_meanwhile_is_met_by_its_new_name(tmp_path):
    unfinished = tmp_path / "bert-1-seed-0" / "finetune-own.incomplete"
    unfinished.mkdir(parents=True)
    (unfinished / "config.json").touch()
    found = find_finetunings(tmp_path, "own")
    assert next(found) == unfinished
    finished = unfinished.rename(unfinished.with_suffix(""))
    assert [*found] == [finished]


def test_results_of_other_shards_are_not_overwritten_even_if_they_lack_a_task(
    toy_suite, toy_shards, tmp_path
):
    suite = read_suite(toy_suite)
    plan = make_plan(suite, open_shards(toy_shards))
    first = plan.runs[0]
    record = {
        **{"run": first.name, "row": first.row.name, "fraction": 0.5, "seed": 0, "steps": 1},
        **{"tokens": 1, "flops": first.flops, "seconds": 1, "heldout": None, "scores": {}},
        **{"branched_from": None, "commits": [], "devices": [], "shards": "other"},
        **{"config": to_dict(first.config), "finetune": {}, "metrics": {}, "collapsed": []},
    }
    results = {"suite": {}, "records": [record], "others": []}
    (tmp_path / "results.json").write_text(json.dumps(results))
    refuse(
        "was trained on other shards; choose another folder",
        find_known,
        tmp_path,
        [],
        suite,
        plan,
        {},
    )


def test_files_of_others_are_not_overwritten(refusal, tmp_path):
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "README.md").write_text("mine")
    for place in ("project", "project/README.md"):
        told = refusal("--dry-run", out=place)
        assert f"{tmp_path / place} holds no results of a suite" in told
    assert (tmp_path / "project" / "README.md").read_text() == "mine"
    (tmp_path / "begun").mkdir()
    assert read_written(tmp_path / "begun") == []
    (tmp_path / "begun/results.json.incomplete").touch()  # of a command that was killed
    assert read_written(tmp_path / "begun") == []


def test_a_folder_of_runs_is_filled_by_one_command_at_a_time(refusal, tmp_path):
    (tmp_path / "runs").mkdir()
    with hold(tmp_path / "runs" / "lock"):
        assert "is in use by " in refusal()
    assert not list((tmp_path / "runs").glob("*"))


def test_what_runs_were_begun_with_may_change_until_there_is_one(toy_suite, toy_shards, tmp_path):
    """Timings of refused settings are not kept, either."""
    suite = read_suite(toy_suite)
    other = dataclasses.replace(suite, finetune={"all": ("epochs=2",)})
    plan = open_plan(suite, toy_shards, tmp_path, 1)
    keep_plan(suite, plan._replace(shards="others", step_seconds={"BERT": 9.0}), tmp_path)
    plan = open_plan(other, toy_shards, tmp_path, 1)
    assert "BERT" not in plan.step_seconds
    keep_plan(other, plan, tmp_path)
    folder = tmp_path / plan.runs[0].name / "finetune-own"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    refuse("own with epochs=2, not epochs=1 ", open_plan, suite, toy_shards, tmp_path, 1)
    keep_plan(other, plan._replace(shards="others"), tmp_path)
    refuse("started with other shards", open_plan, other, toy_shards, tmp_path, 1)


@pytest.mark.parametrize(
    ("name", "row", "steps"),
    [
        ("table-1", "ELECTRA-Small", 1_000_000), ("table-2", "ELECTRA-400K", 400_000),
        ("table-3", "ELECTRA-1.75M", 1_750_000), ("table-4-large", "ELECTRA-400K", 400_000),
        ("table-5", "ELECTRA", 766_000), ("figure-4", "ELECTRA, 128", 766_000),
        ("bert-table-5", "BERT", 766_000), ("weight-sharing", "all weights", 500_000),
        ("figure-3-left", "512, generator 1", 500_000),
    ],
)  # fmt: skip
def test_without_a_budget_the_rows_have_the_papers(toy_shards, name, row, steps):
    plan = make_plan(dataclasses.replace(list_suites()[name], seeds=1), open_shards(toy_shards))
    assert max(run.config.train.steps for run in plan.runs if run.row.name == row) == steps


def test_settings_that_are_given_stay(toy_suite, plan_toy):
    suite = read_suite(toy_suite)
    given = ("train.save_every=4", "train.evaluate_every=3", "optimizer.warmup_steps=1")
    given = {"set": (*suite.set, *given)}
    for long, short in plan_toy(**given).units:
        for run in (long, short):
            assert run.config.train.evaluate_every == 3
            assert run.config.optimizer.warmup_steps == 1
        # The last checkpoint of the part that both share is kept.
        train, steps = long.config.train, short.config.train.steps
        assert train.save_every <= 4
        assert 0 <= int(0.5 * steps) - train.save_every * train.keep_every < train.save_every
    rows = tuple(dataclasses.replace(row, paper=()) for row in suite.rows)
    decays = ("generator.temperature=2", "generator.temperature_decay=0.1")
    rows_of_them = tuple(dataclasses.replace(row, set=decays) for row in rows[:1])
    cooled = plan_toy(**given | {"reference": rows[0].name}, rows=rows_of_them)
    assert not any(run.trunk for run in cooled.runs)
    for run in plan_toy(**given, rows=rows, fractions=(1.0,)).runs:
        assert run.config.train.save_every == 4


def test_a_run_from_others_weights_is_that_of_the_plan(toy_suite, toy_shards, start, tmp_path):
    suite = read_suite(toy_suite)
    kept = tuple(each for each in suite.set if "num_hidden_layers" not in each)
    suite = dataclasses.replace(suite, seeds=1, budget=6e9, set=(*kept, f"train.init_from={start}"))
    plan = open_plan(suite, toy_shards, tmp_path, 1)
    for run in plan.runs:
        assert run.config.model.hidden_size == 64
        assert run.flops["true"] == pytest.approx(6e9 * run.fraction, rel=0.05)
        if run.trunk:  # of a row without a generator, which needs no warm-up
            branch(tmp_path / run.trunk, tmp_path / run.name, run.config)
            resume(tmp_path / run.name, ignore)
        else:
            pretrain(toy_shards, tmp_path / run.name, run.config, ignore)
        warmup_steps = read_run_config(tmp_path / run.name).generator.warmup_steps
        assert warmup_steps == (run.config.train.steps // 10 if run.row.name == "ELECTRA" else 0)
    assert [run.name for run in plan.runs if run.trunk] == ["bert-0.5-seed-0"]
    assert open_plan(suite, toy_shards, tmp_path, 1).units == plan.units


def test_a_part_with_a_fixed_number_of_steps_does_not_cost_the_others(toy_suite, plan_toy):
    rows = (Row(name="warm", set=("generator.warmup_steps=50",)),)
    kept = tuple(each for each in read_suite(toy_suite).set if "decay" not in each)
    for run in plan_toy(budget=1e11, rows=rows, reference="warm", set=kept).runs:
        assert run.flops["true"] == pytest.approx(1e11 * run.fraction, rel=0.01)


def test_a_suite_extends_several_files_of_which_later_ones_win(tmp_path):
    def read(name, text):
        (tmp_path / name).write_text(text)
        return read_suite(tmp_path / name)

    (tmp_path / "size.toml").write_text('preset = "tiny"\nbudget = 1e13\nseeds = 2')
    suite = read("own.toml", 'extends = ["table-5", "size.toml"]\nseeds = 5')
    base = read_suite(find_suite("table-5"))
    assert (suite.preset, suite.budget, suite.seeds) == ("tiny", 1e13, 5)
    assert (suite.title, suite.rows) == (base.title, base.rows)
    assert suite.orderings == base.orderings != ()
    suite = read("own.toml", 'extends = "table-5"\nbudget = 1e13\n[[rows]]\nname = "BERT"\n')
    assert suite.orderings == ()  # they are of rows that are not there
    last = read("last.toml", 'extends = ["table-5", "own.toml"]\nseeds = 2')
    assert (last.orderings, last.seeds) == ((), 2)


@pytest.mark.parametrize(
    "results",
    sorted(
        path
        for group in ("two-cores*", "one-gpu")
        for path in ROOT.glob(f"results/{group}/*/results.json")
    ),
    ids=lambda path: f"{path.parts[-3]}-{path.parts[-2]}",
)
def test_results_are_those_of_the_suites(results):
    """A suite that is changed after its results were written no longer says what they are."""
    recorded = json.loads(results.read_text())["suite"]
    folders = (ROOT / "benchmarks" / name for name in (results.parts[-3], "two-cores"))
    paths = (folder / f"{results.parent.name}.toml" for folder in folders)
    suite = read_suite(next(path for path in paths if path.exists()))
    assert from_dict(Suite, recorded | {"recipe": suite.recipe}) == suite  # --recipe differs


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ('reference = "BART"', "row to compare with 'BART'; did you mean 'BERT'"),
        ("seads = 2", "'seads'; did you mean 'seeds'"),
        ("seeds = 1.5", "seeds must be a whole number, not 1.5"),
        ('equal = "joules"', "equal cannot be 'joules'; choose from flops, steps, seconds"),
        ("fractions = [2.0]", "fractions must be in (0, 1], not 2.0"),
        ("fractions = []", "fractions must differ, and be at least one, not none"),
        ('[[orderings]]\nrow = "BART"\nagainst = "ELECTRA"', "orderings 'BART'; did you"),
        ('[[orderings]]\nrow = "ELECTRA"\nagainst = "BERT"', "name another row than BERT"),
        ('extends = "own.toml"', "own.toml extends itself"),
        ("extends = [5]", "extends must be the name of a suite or a list of names, not [5]"),
        ('extends = "table-6"', "unknown suite 'table-6'; did you mean"),
        ('extends = "table-5"\n[[rows]]\nname = "BERT"', "budget_of 'ELECTRA'"),
        ("budget = inf", "budget must be > 0 and finite, not inf"),
        ('tasks = ["rte", "rte"]', "tasks must differ, and be at least one, not rte, rte"),
        ('reference = "!"\n[[rows]]\nname = "!"', "must have a letter or digit, not '!'"),
        ('reference = "a"\n[[rows]]\nname = "a"\npaper = [nan, 1]', "a: the paper's scores"),
        ('[[rows]]\nname = "a"\nside = "hihger"', "side cannot be 'hihger'; did you mean"),
        ('x = "width"', "ELECTRA has no place x on the suite's axis x, 'width'"),
        ("[finetune]\nqnli = []", "finetune 'qnli'; choose from own, all"),
        ('equal = "steps"', "budget is a number of steps, below 1,000,000,000, not 3e+10"),
    ],
)
def test_what_a_suite_refuses(tmp_path, changes, named):
    path, base = tmp_path / "own.toml", tmp_path / "base.toml"
    base.write_text(TOY)
    path.write_text(changes if "extends" in changes else f'extends = "{base}"\n{changes}')
    refuse(named, read_suite, path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"finetune": {"all": ("max_train=9",)}}, "fine-tuning of own: unknown"),
        ({"set": ("train.stepps=9",)}, "settings of all rows: unknown"),
        ({"set": ("train.steps=100",)}, "train.steps follow from seeds and"),
        ({"finetune": {"all": ("threads=1",)}}, "reseeds is 0 in a suite, and threads is"),
        ({"budget": 3e6}, "ELECTRA: its share of the budget, 3e+06, is less than a step"),
        ({"budget": 1e300}, "a budget of 1e+300 is 1,000,000,000 steps or more"),
        ({"rows": (Row(name="BERT"), Row(name="bert!"))}, "rows 'BERT' and 'bert!' differ in"),
    ],
)
def test_what_a_plan_refuses(plan_toy, changes, message):
    refuse(message, plan_toy, **changes)


def suite_of(*rows, reference="b", **changes):
    """Return a suite of rows, which are named or whole."""
    rows = tuple(row if isinstance(row, Row) else Row(name=row) for row in rows)
    return Suite(title="t", paper="p", reference=reference, tasks=("own",), rows=rows, **changes)


def record(row, seed, score, fraction=1.0):
    flops = {"true": 1e9 * fraction, "paper": 1.0}
    facts = {"row": row, "fraction": fraction, "seed": seed, "flops": flops, "branched_from": None}
    return {**facts, "scores": {"own": score}, "collapsed": []}


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """Return the places and scores of each series of points of a suite's figure, by its label."""
    series = {}

    def note(self, x, y, *rest, label="", **settings):
        series[label or len(series)] = (x, y)
        return errorbar(self, x, y, *rest, label=label, **settings)

    errorbar = Axes.errorbar
    monkeypatch.setattr(Axes, "errorbar", note)

    def drawn(suite, records):
        series.clear()
        report.draw(suite, compare(suite, records), tmp_path)
        return series

    return drawn


def test_a_line_of_a_figure_has_the_scores_after_one_share_of_the_budget(drawn):
    rows = (Row(name="narrow", x=0.5), Row(name="wide", x=1.0))
    suite = suite_of(*rows, reference="wide", x="width", fractions=(0.5, 1.0))
    scores = {("narrow", 0.5): 0.1, ("narrow", 1.0): 0.2, ("wide", 0.5): 0.3, ("wide", 1.0): 0.4}
    lines = drawn(suite, [record(row, 0, score, share) for (row, share), score in scores.items()])
    near = {
        label: (pytest.approx(x, abs=0.005), pytest.approx(y)) for label, (x, y) in lines.items()
    }
    assert near == {"after 50%": ([0.5, 1.0], [10, 30]), "whole budget": ([0.5, 1.0], [20, 40])}


def test_rows_are_dots_at_one_share_of_the_budget_and_else_lines_side_by_side(drawn):
    suite = suite_of("a", "b", fractions=(0.1, 1.0))
    records = [record(row, 0, 0.5, share) for row in ("a", "b") for share in (0.1, 1.0)]
    assert drawn(suite, records[::2]) == {0: (50.0, 0), 1: (50.0, 1)}
    lines = drawn(suite, records)
    (a, _), (b, _) = lines["a"], lines["b"]
    assert a[0] < 1e8 < b[0]
    assert a[1] < 1e9 < b[1]
    assert [*a, *b] == pytest.approx([1e8, 1e9, 1e8, 1e9], rel=0.02)


def test_scores_of_other_tasks_are_kept():
    config = to_dict(PRESETS["tiny"])
    fewer = {name: value for name, value in config["train"].items() if name != "profile_step"}
    old = record("a", 0, 0.5) | {"run": "a-0", "shards": "x", "collapsed": ["rte"]}
    old |= {"config": config | {"train": fewer}}  # of a version without this setting
    old |= {"scores": {"own": 0.5, "rte": 0.7}}
    new = old | {"config": config, "scores": {"own": 0.6}, "collapsed": []}
    (kept,) = keep_scores([new], [old])
    assert kept["scores"] == {"own": 0.6, "rte": 0.7}
    assert kept["collapsed"] == ["rte"]
    other = new | {"shards": "y"}
    assert keep_scores([other], [old]) == [other]
    assert keep_scores([new], []) == [new]


def test_runs_that_were_not_computed_alike_are_told():
    cpu, suite = {"devices": ["CPU, float32"]}, suite_of("a", "b")
    records = [record(row, seed, 0.5) | cpu for row in "ab" for seed in (0, 1)]
    cells = compare(suite, records)
    assert report.describe_devices(cells, records) == []
    records[1]["devices"] = ["CPU, bfloat16"]
    (told,) = report.describe_devices(cells, records)
    assert "a and b (seeds 1)" in told


def test_a_gain_of_fewer_seeds_than_the_score_says_so():
    suite = suite_of("a", "b")
    records = [record("a", 0, 0.5), record("a", 1, 0.6), record("b", 0, 0.4)]
    assert "10.0 (1 of the seeds)" in report.tabulate(suite, compare(suite, records)).rows[0]


def test_a_row_enters_the_noise_of_a_gain_once():
    base = Row(name="base", fractions=(1.0,))
    suite = suite_of(base, "own", "other", reference="base", fractions=(0.5, 1.0))
    generator = np.random.default_rng(0)
    places = [("base", 1.0), *((name, share) for name in ("own", "other") for share in (0.5, 1.0))]
    scores = {place: dict(enumerate(generator.normal(size=3))) for place in places}
    records = []
    for (name, share), values in scores.items():
        records += [record(name, seed, each / 100, share) for seed, each in values.items()]
    for cell in compare(suite, records)[1:]:
        own, share = cell.row.name, cell.fraction
        other = "other" if own == "own" else "own"
        gain = estimate_gain(scores[own, share], scores["base", 1.0], [scores[other, share]])
        assert cell.gain == pytest.approx(gain)


def test_collapsed_fine_tunings_are_told(toy_suite):
    suite = read_suite(toy_suite)
    records = [record("BERT", 0, 0.5) | {"collapsed": ["own"]}, record("BERT", 1, 0.6)]
    assert "own 1 of 2" in report.describe_collapses(suite, records)[0]
    assert report.describe_collapses(suite, records[1:]) == []


def test_data_of_another_task_is_refused():
    refuse(
        "names tagging, which is not a task of the suite", find_tasks, ["own"], None, ["tagging=x"]
    )


def test_uncommitted_changes_are_told():
    facts = {"run": "BERT", "steps": 1, "tokens": 1, "devices": []}
    made = record("BERT", 0, 0.5) | facts | {"commits": ["0123456789abcdef+changes"]}
    assert "0123456789+changes" in report.trace_runs([made]).rows[0]
    assert report.describe_commits([made, made]) == []
    assert "several commits: BERT" in report.describe_commits([made, made | {"commits": ["f"]}])[0]


def test_gains_are_paired_and_judged():
    papers = {"base": 50.0, "above": 60.0, "below": 60.0, "near": 60.0}
    rows = [Row(name=name, paper=(score,)) for name, score in papers.items()]
    suite = suite_of(*rows, "silent", Row(name="told", side="higher"), reference="base")
    gains = {"base": (0, 0), "above": (0.1, 1), "below": (-0.1, 1), "near": (0, 10)}
    gains |= {"silent": (-0.1, 1), "told": (0.1, 1)}
    records = [
        record(name, seed, score + gain + share * little)
        for seed, (score, little) in enumerate(((0.5, 0.001), (0.6, -0.001), (0.7, 0.0)))
        for name, (gain, share) in gains.items()
    ]
    cells = {cell.name: cell for cell in compare(suite, records)}
    # The seeds' common spread of ten points does not hide a gain within a seed.
    assert {name: cell.verdict for name, cell in cells.items()} == {
        **{"base": "-", "near": "not separable", "silent": "lower"},
        **{"above": "higher, as in the paper", "told": "higher, as in the paper"},
        "below": "lower, against the paper",
    }
    told = report.describe(suite, list(cells.values()), 3, 3)
    assert told[-1].startswith("Differs here, and the paper states no order: silent against base")
    assert cells["above"].gain.mean == pytest.approx(10)
    lower = Ordering(row="told", against="silent", side="lower")
    orderings = (lower, Ordering(row="above", against="told"))
    further = dataclasses.replace(suite, orderings=orderings)
    told, above = compare_further(further, records)
    assert (told.against, told.verdict) == ("silent", "higher, against the paper")
    assert told.gain.mean == pytest.approx(20)
    assert (above.against, above.verdict) == ("told", "not separable")
    unfinished = [each for each in records if each["row"] != "silent"]
    assert len(compare_further(further, unfinished)) == 1
    for few in (1, 2):
        early = {cell.name: cell for cell in compare(suite, records[: few * len(gains)])}
        assert early["above"].verdict == "too few seeds"
        told = report.describe(suite, [early["above"]], few, 3)
        assert told[-1].endswith("Below 3 seeds no winner is named.")


def test_the_interval_is_students():
    # 95% of t with 2 degrees of freedom is within 4.3027.
    values = [1.0, 2.0, 4.0]
    expected = 4.3027 * statistics.stdev(values) / 3**0.5
    assert estimate(values).half_width == pytest.approx(expected, rel=1e-4)
    assert estimate([3.0]).half_width is None


def test_intervals_of_a_noisy_row_seldom_exclude_zero_without_a_gain():
    """A row of twice the noise of the five others, three seeds, 1,000 draws."""
    generator, noise = np.random.default_rng(1), np.array([2, 1, 1, 1, 1, 1])[:, None]
    excluded = 0
    for _ in range(1000):
        own, base, *others = [dict(enumerate(row)) for row in noise * generator.normal(size=(6, 3))]
        excluded += estimate_gain(own, base, others).excludes_zero
    assert excluded < 90


def test_the_interval_of_a_gain_pools_the_rows_noise():
    generator = np.random.default_rng(3)
    scores = 75 + generator.normal(size=(4, 3))
    own, base, *others = [dict(enumerate(row)) for row in scores]
    # Two rows alone: the paired t-test.
    alone = estimate_gain(own, base, [])
    low, high = scipy.stats.ttest_rel(scores[0], scores[1]).confidence_interval()
    assert alone.mean - alone.half_width == pytest.approx(low)
    assert alone.mean + alone.half_width == pytest.approx(high)
    # All rows: least squares with a mean for each row and each seed.
    rows, seeds = np.indices(scores.shape).reshape(2, -1)
    design = np.concatenate([np.eye(4)[rows], np.eye(3)[seeds][:, 1:]], axis=1)
    solution, (residual,), rank, _ = np.linalg.lstsq(design, scores.ravel())
    degrees = scores.size - rank
    gain = estimate_gain(own, base, others)
    assert gain.mean == pytest.approx(solution[0] - solution[1])
    error = (residual / degrees * 2 / 3) ** 0.5
    assert gain.half_width == pytest.approx(scipy.stats.t.ppf(0.975, degrees) * error)
    # A noisier row does not enter, and is itself compared by the paired t-test.
    noisy = {0: 60.0, 1: 70.0, 2: 66.0}
    assert estimate_gain(own, base, [*others, noisy]) == gain
    assert estimate_gain(noisy, base, [own, *others]) == estimate_gain(noisy, base, [])
    # Rows without noise can also be compared.
    assert estimate_gain(base, base, [base, base]).half_width == 0
    # A row without one of the seeds does not enter, and a single seed has no interval.
    assert estimate_gain(own, base, [{0: 1.0}]) == alone
    assert estimate_gain({0: 3.0}, base, others).half_width is None
