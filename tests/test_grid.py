"""A search over settings: combinations, their folders, resuming, refusals, and the verb."""

import json
import shutil
import statistics
import warnings

import pytest
from commands import succeed
from refusals import refuse
from tasks import PowerCut, cut_at, ignore, small_finetune, write_files

from electra.assignments import override
from electra.finetuning.grid import CHOSEN_ON_DEV, combine, search, tabulate
from electra.finetuning.loop import finetune

CONFIG = small_finetune(learning_rate=3e-4, layer_lr_decay=1.0, epochs=0)
GRID = ["learning_rate=1e-5,3e-3", "epochs=1,2"]
NAMES = [f"learning_rate={rate},epochs={epochs}" for rate in ("1e-5", "3e-3") for epochs in "12"]


def test_every_combination_has_a_name_and_its_settings():
    found = combine(CONFIG, ["dropout_prob=0"], GRID)
    assert list(found) == NAMES
    for name, config in found.items():
        assert config == override(CONFIG, ["dropout_prob=0", *name.split(",")])
    assert combine(CONFIG, ["epochs=4"], []) == {"": override(CONFIG, ["epochs=4"])}


@pytest.fixture(scope="module")
def found(start, toy_question, tmp_path_factory):
    out = tmp_path_factory.mktemp("search") / "out"
    combinations = combine(CONFIG, [], GRID)
    return search(start, "own", toy_question, out, combinations, seeds=2, progress=ignore), out


def test_the_best_by_the_median_on_dev_comes_first_and_dev_is_named(found):
    results, out = found
    assert json.loads((out / "results.json").read_text()) == results
    assert sorted(path.name for path in out.iterdir() if path.is_dir()) == sorted(NAMES)
    medians = {}
    for name in NAMES:
        seeds = [json.loads(p.read_text()) for p in (out / name).glob("seed-*/results.json")]
        assert len(seeds) == 2
        medians[name] = statistics.median(each["scores"]["accuracy"] for each in seeds)
    ranked = [each["combination"] for each in results["combinations"]]
    assert ranked == sorted(NAMES, key=medians.get, reverse=True)
    assert [each["median"] for each in results["combinations"]] == [medians[n] for n in ranked]
    assert results["best"] == ranked[0]
    assert medians[ranked[0]] > medians[ranked[-1]]
    assert results["notes"][-1] == CHOSEN_ON_DEV
    assert results["notes"][1].startswith("longer than rows of 32 tokens, and cut: 8 of 160 in tr")
    assert (results["metric"], results["num_seeds"]) == ("accuracy", 2)
    table = tabulate(results)
    assert table.headers[:3] == ["learning_rate", "epochs", "accuracy, median on dev"]
    assert [f"learning_rate={row[0]},epochs={row[1]}" for row in table.rows] == ranked


def test_a_combination_is_what_fine_tuning_alone_gives(found, start, toy_question, tmp_path):
    _, out = found
    config = override(CONFIG, NAMES[2].split(","))
    where = (start, "own", toy_question, tmp_path / "alone")
    alone = finetune(*where, config, seeds=2, progress=ignore)
    assert json.loads((out / NAMES[2] / "results.json").read_text())["median"] == alone["median"]


def test_a_value_may_hold_an_equals_sign():
    each = {"combination": "own.text=a=b", "median": 0.5, "std": None, "num_degenerate": 0}
    table = tabulate({"metric": "mcc", "combinations": [each]})
    assert (table.headers[0], table.rows[0][0]) == ("own.text", "a=b")


def test_what_is_finished_is_not_repeated(found, start, toy_question, tmp_path):
    def begin(grid=GRID, seeds=2, progress=ignore, threads=1):
        combinations = combine(CONFIG, [f"threads={threads}"], grid)
        return search(start, "own", toy_question, out, combinations, seeds=seeds, progress=progress)

    out = tmp_path / "out"
    with pytest.raises(PowerCut):
        begin(progress=cut_at(part="dev", combination=NAMES[2], seed=1))
    assert not out.exists()
    refuse("out.incomplete was started with different grid; remove it", lambda: begin(GRID[:1]))
    other = (
        "out.incomplete was started with different seeds; remove it"  # and not with another grid
    )
    refuse(other, lambda: begin(seeds=3, threads=2))
    seen = []
    results = begin(progress=seen.append)
    trained = [(r["combination"], r["seed"], r["run"]) for r in seen if r["part"] == "dev"]
    assert list(dict.fromkeys(trained)) == [(NAMES[2], 1, 5), (NAMES[3], 0, 6), (NAMES[3], 1, 7)]
    whole, _ = found
    for one, two in zip(results["combinations"], whole["combinations"], strict=True):
        assert (one["combination"], one["median"]) == (two["combination"], two["median"])


def test_scores_on_two_dev_sets_are_not_compared(start, toy_question, tmp_path):
    data = shutil.copytree(toy_question, tmp_path / "data", ignore=shutil.ignore_patterns("dev*"))
    combinations = combine(CONFIG, [], ["dev_fraction=0.1,0.3"])
    where = start, "own", data, tmp_path / "out", combinations
    refuse("need one dev set, not two", lambda: search(*where, seeds=1, progress=ignore))


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        (["learning_rate"], "grid takes field=value,value, not 'learning_rate'"),
        (["learning_rate=1,,2"], "grid takes field=value,value, not 'learning_rate=1,,2'"),
        (["learning_rat=1,2"], "'learning_rat'; did you mean 'learning_rate'"),
        (["epochs=1,many"], "epochs must be a whole number, not 'many'"),
        (["epochs=1,2", "epochs=3"], "epochs is set twice: 1 and 3"),
        (["batch_size=2,3"], "batch_size is set twice: 9 and 2"),
        (["learning_rate=1e-4,0.0001"], "learning_rate=0.0001 is the same as learning_rate=1e"),
        (["own.dev=a/dev.tsv,b/dev.tsv"], "grid values become folder names, so"),
        (["dropout_prob=0.1,1"], "dropout_prob"),
        (["sequence_length=16,64"], "sequence_length 64 is more than the 32 tokens"),
        (["squad.head=beam,plain"], "squad.head is for squad-1.1 and squad-2.0, not for own"),
        (["own.metric=f1,mcc"], "scores of one metric can be compared, not of f1 and mcc"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_runs(
    grid, message, start, toy_question, tmp_path
):
    def begin():
        combinations = combine(CONFIG, ["batch_size=9"], grid)
        search(start, "own", toy_question, tmp_path / "out", combinations, seeds=1, progress=ignore)

    refuse(message, begin)
    assert list(tmp_path.iterdir()) == []


def test_the_verb(start, toy_question, tmp_path, capsys):
    for split in ("train", "dev"):
        header, *rows = (toy_question / f"{split}.tsv").read_text().splitlines()
        rows = [f"when\t{header}", *(f"{number}\t{row}" for number, row in enumerate(rows))]
        write_files(tmp_path / "task", {f"{split}.tsv": "\n".join(rows)})
    words = ["finetune", start, "--task", "own", "--data", tmp_path / "task"]
    words += ["--out", tmp_path / "out", "--set", "epochs=1", "threads=1"]
    words += ["--grid", "learning_rate=1e-3,3e-3"]
    printed, told = succeed(capsys, *words, "--dry-run")
    unread = "note: columns that are not read: when (read: "
    assert unread in told
    assert "fine-tune once with each of learning_rate=1e-3 learning_rate=3e-3" in printed
    assert "(columns text, label; 160 in train, 60 in dev; labels of train: " in printed
    assert [path.name for path in tmp_path.iterdir()] == ["task"]
    printed, told = succeed(capsys, *words)
    assert unread in told
    best = json.loads((tmp_path / "out/results.json").read_text())["best"]
    settings = json.loads((tmp_path / "out" / best / "config.json").read_text())["config"]
    assert settings["reseeds"] == 0
    lines = printed.splitlines()
    assert lines[0].split()[:3] == ["learning_rate", "accuracy,", "median"]
    assert lines[2].split()[0] == best.partition("=")[2]
    assert f"note: {CHOSEN_ON_DEV}" in told
    assert lines[-1] == f"next: electra predict {tmp_path}/out/{best} --input FILE"
    words = "report", tmp_path / "out", "--out", tmp_path / "report.html"
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        _, told = succeed(capsys, *words)
    assert f"its best fine-tuning on dev is {tmp_path}/out/{best}" in told
    score = json.loads((tmp_path / "out" / best / "results.json").read_text())["median"]
    assert f"{score:.3f}" in (tmp_path / "report.html").read_text()
