"""The speedrun's stored corruption, averages of checkpoints, intervals, and claims."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from runs import SMALL, words_of

from benchmarks.speedrun.corruption import average, corrupt, judge, read_corruption
from benchmarks.speedrun.records import (
    BUDGET,
    LEAST_SEEDS,
    TARGET,
    TASKS,
    Claim,
    judge_claim,
    write_list,
)
from benchmarks.speedrun.trials import REFERENCE, judge_runs, pretrain_rows, tabulate
from electra.assignments import parse_toml, parse_value
from electra.checkpoints.folder import read_pretrained, read_run_config
from electra.errors import UserError
from electra.reproduce.suite import read_suite

ROOT = Path(__file__).parent.parent


def read_heldout(run):
    return json.loads((run / "results.json").read_text())["heldout"]


@pytest.fixture
def stored(run, toy_shards, tmp_path):
    corrupt(run, toy_shards, 16, tmp_path / "stored.npz")
    return tmp_path / "stored.npz"


def test_a_run_judges_its_own_corruption_as_in_its_own_evaluation(run, stored):
    found = judge(read_pretrained(run), read_corruption(stored))
    own = read_heldout(run)
    assert found["auc"] == pytest.approx(own["disc_auc"], abs=1e-3)  # counted in intervals there
    assert found["loss"] == pytest.approx(own["disc_loss"], abs=1e-6)


def test_another_vocabulary_is_refused(run, stored):
    other = read_corruption(stored)._replace(tokenizer="another")
    with pytest.raises(UserError, match="another vocabulary than the stored corruption"):
        judge(read_pretrained(run), other)


def test_an_average_is_the_mean_of_the_last_checkpoints(run):
    first, last = (read_pretrained(run / "checkpoints" / f"step-{n:08d}") for n in (6, 12))
    both = average(run, 2)
    for name, tensor in last.tensors.items():
        expected = (first.tensors[name].double() + tensor.double()) / 2
        assert both.tensors[name].double() == pytest.approx(expected, abs=1e-7)
        assert average(run, 1).tensors[name].equal(tensor)
    assert not both.kept.head["dense.weight"].equal(last.kept.head["dense.weight"])
    with pytest.raises(UserError, match="has 2 checkpoints, not 3"):
        average(run, 3)


def test_trials_are_judged_once_and_the_files_that_explain_them_are_kept(
    run, stored, tmp_path, capsys
):
    (tmp_path / "best-1-seed-0").symlink_to(run)
    out = tmp_path / "out"
    judge_runs([tmp_path / "best-1-seed-0"], stored, [1, 2], out)
    written = (out / "heldout.json").read_text()
    assert sorted(path.name for path in (out / "best-1-seed-0").iterdir()) == [
        "config.json",
        "metrics.jsonl",
    ]
    record = json.loads(written)["records"]["best-1-seed-0, mean of 1"]
    assert (record["trial"], record["seed"], record["steps"]) == ("best", 0, 12)
    assert str(tmp_path) not in written
    judge_runs([tmp_path / "best-1-seed-0"], stored, [1], out)
    assert (out / "heldout.json").read_text() == written
    assert "| best | 2 | 1 | 12 |" in capsys.readouterr().out
    stored.write_bytes(b"")
    with pytest.raises(UserError, match="is of another corruption"):
        judge_runs([tmp_path / "best-1-seed-0"], stored, [1], out)


def test_differences_are_paired_by_seed_and_have_the_noise_of_all_trials():
    """In the mean the trial is 0.05 above best; around it, and around best, the seeds are noisy.

    Residuals of rows and seeds are +-0.005, +-0.005 and so on: of two rows and two seeds their
    squares sum to 1e-4, with one degree of freedom, for which t is 12.7062.
    """
    aucs = {"best": (0.70, 0.72), "narrow": (0.74, 0.78), "one seed": (0.73,)}
    rows = [
        {"trial": trial, "average": 1, "seed": seed, "date": "", "steps": 1, "auc": auc}
        for trial, seeds in aucs.items()
        for seed, auc in enumerate(seeds)
    ]
    mean = {**rows[2], "average": 4, "auc": 0.741}
    page = tabulate([row | {"loss": 0.3, "own_auc": 0.8} for row in (*rows, mean)])
    assert f"AUC: sd {math.sqrt(2e-4):.4f} over 2 seeds of best" in page
    assert f"+0.0500 ± {12.7062 * math.sqrt(2 * 1e-4 / 2):.4f}" in page
    assert (
        "| one seed | 1 | 1 | 1 | 0.7300 | 0.3000 | 0.8000 | +0.0300 | +0.0000 | too few seeds |"
        in page
    )
    assert "| narrow | 4 | 1 | 1 | 0.7410 | 0.3000 | 0.8000 | +0.0010 |" in page


@pytest.mark.parametrize(
    ("aucs", "verdict"),
    [
        ((0.71, 0.72, 0.73), "+0.0100 ± 0.0000 | +0.0000 ± 0.0000 | passed"),
        ((0.69, 0.70, 0.71), "-0.0100 ± 0.0000 | +0.0000 ± 0.0000 | failed"),
        # t = 0.01 / (0.02 / sqrt(3)) = 0.87 with two degrees
        ((0.73, 0.70, 0.74), "| +0.0000 ± 0.0000 | not separable"),
    ],
)
def test_a_trial_passes_whose_gain_lies_above_0(aucs, verdict):
    records = [
        {"trial": trial, "average": 1, "seed": seed, "date": "", "steps": 1, "auc": auc}
        for trial, each in (("best", (0.70, 0.71, 0.72)), ("other", aucs))
        for seed, auc in enumerate(each)
    ]
    assert verdict in tabulate([row | {"loss": 0.3, "own_auc": 0.8} for row in records])


def make_results(scores, flops=4.5e14):
    """A suite's results with a row, whose score on all tasks is the same, and a slower baseline."""
    row = {"row": "narrow", "flops": {"true": flops}, "seconds": 50.0}
    base = {"row": "best", "flops": {"true": 6.8e14}, "seconds": 100.0}
    own = [row | {"scores": dict.fromkeys(TASKS, score / 100)} for score in scores]
    return {"records": [*own, base]}


GOOD = [TARGET + gain for gain in (0.3, 0.5, 0.7, 0.9, 1.1)]


@pytest.mark.parametrize(
    ("results", "verdict"),
    [
        (make_results(GOOD), "record"),
        (make_results(GOOD[:4]), "no: 4 seeds, not 5"),
        (make_results(GOOD, 4.6e14), "no: 4.600e+14 FLOPs"),
        # t = 0.3 / (0.3162 / sqrt(5)) = 2.12 with four degrees, p = 0.05
        (make_results([score - 0.4 for score in GOOD]), "no: not above the target at p < 0.01"),
        # t = 3.54, p = 0.012: excluded by the two-sided interval of 95%, and yet no record
        (make_results([score - 0.2 for score in GOOD]), "no: not above the target at p < 0.01"),
    ],
)
def test_a_record_has_five_seeds_its_flops_and_a_mean_above_the_target(results, verdict):
    claim = Claim(date="2026-11-28", what="", track="free body", row="narrow", flops=4.5e14)
    _, time, found = judge_claim(claim, results)
    assert (time, found) == ("0.50", verdict)


def test_claims_are_listed_before_and_after_their_runs(tmp_path):
    claims, results = tmp_path / "claims", tmp_path / "results"
    for folder in (claims, results / "narrow", results / "trials"):
        folder.mkdir(parents=True)
    facts = {"date": "2026-11-28", "what": "a change", "track": "free body", "row": "narrow"}
    lines = [f'{name} = "{value}"' for name, value in facts.items()]
    for name in ("narrow", "wide"):
        (claims / f"{name}.toml").write_text("\n".join([*lines, "flops = 4.5e14"]))
    (results / "narrow" / "results.json").write_text(json.dumps(make_results(GOOD)))
    trial = {
        "trial": "best",
        "average": 1,
        "seed": 0,
        "date": "",
        "steps": 1,
        "loss": 0.3,
        "auc": 0.7,
    }
    trials = {"records": {"best": {**trial, "own_auc": 0.8}}}
    (results / "trials" / "heldout.json").write_text(json.dumps(trials))
    write_list(claims, results)
    page = (results / "RECORDS.md").read_text()
    cost = "free body | 4.50e+14 | 1.51"
    assert f"| narrow: a change | {cost} | 70.5 ± 0.5 | 0.50 | record |" in page
    assert f"| wide: a change | {cost} | - | - | not run yet |" in page


def test_rows_and_seeds_that_are_asked_for_are_pre_trained_alone(toy_shards, tmp_path):
    settings = json.dumps([*words_of(SMALL), "train.evaluate_every=1"])
    suite = tmp_path / "suite.toml"
    suite.write_text(
        f'title = ""\nreference = "wide"\npreset = "tiny"\nset = {settings}\n'
        'equal = "steps"\nbudget = 2\nseeds = 2\ntasks = ["cola"]\n'
        '[[rows]]\nname = "wide"\n[[rows]]\nname = "rare masks"\nset = ["method.mask_prob=0.1"]\n'
    )
    runs = tmp_path / "runs"
    for _ in range(2):  # the second finds them finished
        pretrain_rows(suite, toy_shards, runs, ["rare masks"], [1])
    assert [path.name for path in runs.iterdir()] == ["rare-masks-1-seed-1"]
    config = read_run_config(runs / "rare-masks-1-seed-1")
    assert (config.train.steps, config.train.seed, config.method.mask_prob) == (2, 1, 0.1)
    with pytest.raises(UserError, match="did you mean 'rare masks'"):
        pretrain_rows(suite, toy_shards, runs, ["rare mask"], [])


def test_the_stored_corruption_of_the_repository_is_whole():
    corruption = read_corruption(ROOT / "benchmarks" / "speedrun" / "corruption.npz")
    assert len(corruption.original) == 2048
    changed = [a != b for a, b in zip(corruption.original, corruption.corrupt, strict=True)]
    assert 0.10 < np.concatenate(changed).mean() < 0.15  # of 15% masked, some were drawn again
    assert not any(each[[0, -1]].any() for each in changed)  # [CLS] and [SEP] stay


@pytest.mark.parametrize(
    "path", sorted((ROOT / "benchmarks" / "claims").glob("*.toml")), ids=lambda path: path.stem
)
def test_a_claim_has_a_suite_with_its_row_and_cost(path):
    claim = parse_value("claim", parse_toml(path), Claim)
    suite = read_suite(ROOT / "benchmarks" / "speedrun" / path.name)
    (row,) = (row for row in suite.rows if row.name == claim.row)
    assert [BUDGET * fraction for fraction in suite.fractions_of(row)] == pytest.approx(
        [claim.flops]
    )
    assert (suite.tasks, suite.seeds, suite.budget) == (TASKS, LEAST_SEEDS, BUDGET)
    assert suite.reference == suite.rows[0].name == REFERENCE
