"""Suites: what they refuse, equal compute, shared parts, resuming, and what is told of them."""

import dataclasses
import json
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from electra.cli import main
from electra.config import UserError
from electra.corpus.shards import open_shards
from electra.pretraining.continuation import branch
from electra.pretraining.loop import pretrain, resume
from electra.reports.tables import Table
from electra.reproduce.plan import make_plan
from electra.reproduce.records import compare, estimate
from electra.reproduce.report import to_latex, write_results
from electra.reproduce.suite import Row, Suite, list_suites, read_suite
from electra.runs.checkpoint import find_checkpoint, read_state

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


def test_every_suite_of_the_paper_can_be_planned(toy_shards):
    shards = open_shards(toy_shards)
    folder = Path(__file__).parents[1] / "benchmarks" / "two-cores"
    small = {path.name: read_suite(path) for path in folder.glob("*.toml")}
    assert len(small) == 5
    for name, suite in (list_suites() | small).items():
        plan = make_plan(dataclasses.replace(suite, seeds=1), shards)
        wanted = sum(len(row.fractions or suite.fractions) for row in suite.rows)
        assert len(plan.runs) == wanted, name
        if suite.equal == "flops":  # rounded to whole steps
            spent = [run.flops["true"] / run.fraction for run in plan.runs]
            assert max(spent) / min(spent) < 1.001, name


def test_a_short_run_that_branches_off_is_the_run_by_itself(toy_suite, toy_shards, tmp_path):
    plan = make_plan(read_suite(toy_suite), open_shards(toy_shards))
    trunk, short = plan.units[0]
    assert short.trunk == trunk.name
    assert short.config.train.steps < trunk.config.train.steps
    pretrain(toy_shards, tmp_path / "trunk", trunk.config, lambda record: None)
    branch(tmp_path / "trunk", tmp_path / "branched", short.config)
    assert find_checkpoint(tmp_path / "branched")[0] > 0
    resume(tmp_path / "branched", lambda record: None)
    pretrain(toy_shards, tmp_path / "alone", short.config, lambda record: None)
    both = [read_state(find_checkpoint(tmp_path / name)[1]) for name in ("branched", "alone")]
    for file, tensors in both[0].items():
        for name, tensor in tensors.items():
            assert tensor.equal(both[1][file][name]), name
    manifest = json.loads((tmp_path / "branched" / "manifest.json").read_text())
    assert manifest["branched_from"]["run"] == "trunk"
    linear = dataclasses.replace(
        short.config, optimizer=dataclasses.replace(short.config.optimizer, decay_fraction=1.0)
    )
    with pytest.raises(UserError, match="no stable part"):
        branch(tmp_path / "trunk", tmp_path / "other", linear)


@pytest.mark.slow
def test_a_suite_from_its_file_to_its_page(
    toy_suite, toy_shards, toy_question, tmp_path, capsys, monkeypatch
):
    more = TOY.replace('["own"]', '["own", "cola"]').replace("all =", 'cola = ["epochs=9"]\nall =')
    toy_suite.write_text(more)  # of its tasks one is asked for
    words = ["reproduce", str(toy_suite), "--shards", str(toy_shards), "--data"]
    words += [f"own={toy_question}", "--runs", str(tmp_path / "runs"), "--out"]
    words += [str(tmp_path / "out"), "--jobs", "2", "--seeds", "1", "--tasks", "own"]
    main([*words, "--dry-run", "--set", "train.evaluate_rows=4"])  # above the suite's own value
    assert "4 of 4 runs are left" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists()
    written = []

    def count_and_write(out, suite, records, *others):
        written.append(len(records))
        return write_results(out, suite, records, *others)

    monkeypatch.setattr("electra.reproduce.report.write_results", count_and_write)
    main(words)
    assert len(written) == 3, "after each of the two rows, and at the end"
    first = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert set(first) == {
        "results.json", "README.md", "table.tex", "figure.png", "figure.svg", "index.html"
    }  # fmt: skip
    records = json.loads(first["results.json"])["records"]
    assert len(records) == 4
    for record in records:
        scores = json.loads(
            (tmp_path / "runs" / record["run"] / "finetune-own" / "results.json").read_text()
        )
        assert record["scores"]["own"] == scores["median"]
    readme = first["README.md"].decode()
    assert "ELECTRA, 0.5 of the budget *" in readme
    # Nothing is left to do: the same command writes the same files.
    main(words)
    again = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert again == first
    # The results alone are enough: on a machine without the runs nothing is left to do, either.
    words[words.index("--runs") + 1] = str(tmp_path / "elsewhere")
    main([*words, "--dry-run"])
    assert "0 of 4 runs are left" in capsys.readouterr().out
    main(words)
    again = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert again["table.tex"] == first["table.tex"]
    assert json.loads(again["results.json"])["records"] == records
    toy_suite.write_text(TOY.replace("3e10", "4e10"))
    with pytest.raises(SystemExit):
        main(words)
    assert "results.json: electra-1-seed-0 was begun with " in capsys.readouterr().err
    words[words.index("--runs") + 1] = str(tmp_path / "runs")
    # A folder of runs belongs to one comparison.
    toy_suite.write_text(TOY.replace("3e10", "4e10"))
    with pytest.raises(SystemExit):
        main(words)
    assert "train.steps=" in capsys.readouterr().err
    toy_suite.write_text(TOY.replace("epochs=1", "epochs=2"))
    with pytest.raises(SystemExit):
        main(words)
    assert "was begun with another finetune" in capsys.readouterr().err


@pytest.mark.slow
def test_a_killed_suite_ends_with_the_same_table(toy_suite, toy_shards, toy_question, tmp_path):
    def command(name):
        words = ["reproduce", str(toy_suite), "--shards", str(toy_shards), "--data"]
        words += [f"own={toy_question}", "--runs", str(tmp_path / name), "--seeds", "1", "--out"]
        return [sys.executable, "-m", "electra", *words, str(tmp_path / f"{name}-out")]

    subprocess.run(command("whole"), check=True, capture_output=True)
    for number in range(3):
        process = subprocess.Popen(
            command("killed"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(6 + 2 * number)
        process.send_signal(signal.SIGKILL)
        process.wait()
        time.sleep(2)  # its worker ends after it
    subprocess.run(command("killed"), check=True, capture_output=True)
    tables = [(tmp_path / f"{name}-out" / "table.tex").read_text() for name in ("whole", "killed")]
    assert tables[0] == tables[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ('reference = "BART"\n', "'BART' is no row to compare with; did you mean 'BERT'"),
        ("seads = 2\n", "unknown key seads; did you mean 'seeds'"),
        ("seeds = 1.5\n", "seeds must be a int, not 1.5"),
        ('equal = "joules"\n', "equal must be one of flops, steps, seconds, not 'joules'"),
        ("fractions = [2.0]\n", "fractions must lie in (0, 1], not 2.0"),
        ('extends = "table-6"\n', "unknown suite 'table-6'; did you mean"),
        ("[finetune]\nqnli = []\n", "finetune names qnli, which is none of the tasks"),
        ('equal = "steps"', "budget is a number of steps, below 1,000,000,000, not 3e+10"),
    ],
)
def test_what_a_suite_refuses(tmp_path, changes, message):
    path = tmp_path / "own.toml"
    base = tmp_path / "base.toml"
    base.write_text(TOY)
    path.write_text(changes if "extends" in changes else f'extends = "{base}"\n{changes}')
    with pytest.raises(UserError) as refusal:
        read_suite(path)
    assert message in str(refusal.value)


def test_train_steps_belong_to_the_budget(toy_suite, toy_shards):
    suite = dataclasses.replace(read_suite(toy_suite), set=("train.steps=100",))
    with pytest.raises(UserError, match=r"train\.steps follow from seeds and budget"):
        make_plan(suite, open_shards(toy_shards))


def record(row, seed, score):
    flops = {"true": 1.0, "paper": 1.0}
    facts = {"row": row, "fraction": 1.0, "seed": seed, "flops": flops, "branched_from": None}
    return {**facts, "scores": {"own": score}}


def test_differences_are_paired_and_judged():
    suite = Suite(
        title="",
        paper="",
        reference="base",
        tasks=("own",),
        rows=(
            Row(name="base", paper=(50.0,)),
            Row(name="above", paper=(60.0,)),
            Row(name="below", paper=(60.0,)),
            Row(name="near", paper=(60.0,)),
        ),
    )
    base, noise = (0.5, 0.6, 0.7), (0.001, -0.001, 0.0)
    records = []
    for seed, (score, little) in enumerate(zip(base, noise, strict=True)):
        records.append(record("base", seed, score))
        records.append(record("above", seed, score + 0.1 + little))
        records.append(record("below", seed, score - 0.1 + little))
        records.append(record("near", seed, score + 10 * little))
    cells = {cell.name: cell for cell in compare(suite, records)}
    # The seeds' common spread of ten points does not hide a difference within a seed.
    assert cells["above"].verdict == "higher, as in the paper"
    assert cells["below"].verdict == "lower, against the paper"
    assert cells["near"].verdict == "not separable"
    assert cells["base"].verdict == "-"
    assert cells["above"].difference.mean == pytest.approx(10)
    alone = {cell.name: cell for cell in compare(suite, records[:2])}
    assert alone["above"].verdict == "one seed"


def test_the_interval_is_students():
    # 95% of t with 2 degrees of freedom lies within 4.3027.
    values = [1.0, 2.0, 4.0]
    expected = 4.3027 * statistics.stdev(values) / 3**0.5
    assert estimate(values).half_width == pytest.approx(expected, rel=1e-4)
    assert estimate([3.0]).half_width is None


def test_latex_escapes():
    text = to_latex(Table(["a_b"], [["50% & 1 ± 2"]]), "x")
    assert r"a\_b" in text
    assert r"50\% \& 1 $\pm$ 2" in text
