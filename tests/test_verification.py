"""electra verify and electra show: what holds is told so, and all that was changed by its claim."""

import hashlib
import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from commands import run_command, succeed
from refusals import refuse
from runs import flip_bit, ignore
from tasks import small_finetune
from test_golden import BASE, VARIANTS
from test_reproduce import TOY

from electra.assignments import override
from electra.checkpoints.checkpoint import list_checkpoints
from electra.checkpoints.manifest import amend_session
from electra.checkpoints.metrics import read_metrics, to_line
from electra.cli import main
from electra.files import read_object, write_facts, write_hashes, write_json
from electra.finetuning.grid import combine, search
from electra.finetuning.loop import finetune
from electra.interop.export import export
from electra.presets import PRESETS
from electra.pretraining.loop import pretrain, resume
from electra.pretraining.replay import find_shards, reopen
from electra.pretraining.step_rows import show_step
from electra.verification.answers import ANSWER_TOLERANCE, _is_like
from electra.verification.claims import Claims
from electra.verification.verify import find_kind, verify

ROOT = Path(__file__).parent.parent
SUITE = ROOT / "results" / "two-cores" / "table-5"


@pytest.fixture(scope="module")
def made(run, toy_text, toy_tokenizer, toy_shards, toy_question, exported, tmp_path_factory):
    """An artefact of each kind, which no test changes: `damaged` copies them."""
    folder = tmp_path_factory.mktemp("made")
    toy_tokenizer.save(folder / "vocabulary")
    shutil.copytree(toy_shards, folder / "shards")
    shutil.copytree(run, folder / "run")
    shutil.copytree(SUITE, folder / "suite")
    manifest = read_object(folder / "run" / "manifest.json")
    manifest["shards"]["folder"] = "elsewhere/shards"  # found beside the run
    write_json(folder / "run" / "manifest.json", manifest)
    run, config = folder / "run", small_finetune(epochs=1)
    finetune(run, "own", toy_question, folder / "tuned", config, seeds=2, progress=ignore)
    export(run, folder / "exported")
    export(folder / "tuned", folder / "exported-tuned")
    return folder


@pytest.fixture
def damaged(made, tmp_path):
    """A copy of all artefacts, for a test to damage."""
    return Path(shutil.copytree(made, tmp_path / "made"))


def tell(folder, **how):
    """The claims that failed, and all of them."""
    claims = verify(folder, **how)
    return [each for each in claims if each.status == "FAILED"], claims


def snapshot(folder):
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def test_every_artefact_holds_and_is_left_as_it_was(made, toy_text, capsys):
    before = snapshot(made)
    failed, claims = tell(made, text=[str(toy_text)])
    assert not failed
    told = {each.claim: each.told for each in claims if each.status == "ok"}
    assert "run/checkpoints: their steps are computed again" in told
    bits = told["run/checkpoints: their steps are computed again"]
    assert bits == "steps 7 to 12 end with the bits of step-00000012"
    assert told["run/metrics.jsonl: the held-out measures are computed again"] == "step 12, exactly"
    assert told["shards/the first 200 documents of the text have these tokens"] == "200 documents"
    assert told["tuned/seed-1/model: it gives these answers again"] == "8 answers"
    same = "the answers to fixed tokens are those of that model"
    assert {f"exported/{same}", f"exported-tuned/{same}"} <= told.keys()
    assert told["suite/table.tex: tables and numbers follow from the records"] == "word for word"
    unknown = {each.claim for each in claims if each.status == "not checked"}
    assert unknown == {
        "suite/each file matches its sha256",
        "suite/results.json: the records are those of the runs",
    }
    assert snapshot(made) == before
    assert {find_kind(each) for each in made.iterdir()} >= {"run", "shards", "suite", "export"}
    out = succeed(capsys, "verify", made / "vocabulary").out
    assert out.startswith("ok           electra.json: each file matches its sha256 (3 files)\n")
    assert out.endswith(
        "3 claims of " + str(made / "vocabulary") + " hold, 0 failed, 0 not checked\n"
    )


def change(path, old, new):
    """Replace words of a file; an object of ours gets the hash that then fits."""
    content = path.read_text()
    assert old in content, content
    path.write_text(content.replace(old, new, 1))
    if path.suffix == ".json":
        values = json.loads(path.read_text())
        if path.name in values.get("sha256", {}):
            write_own(path, values)


def write_own(path, values):
    """Write an object of ours with the hash of its facts, and those of other files."""
    facts = {name: each for name, each in values.items() if name != "sha256"}
    write_facts(path, facts, values["sha256"])


def sign(folder):
    """Write the record of hashes anew, as somebody who changed a file on purpose would."""
    record = folder / "electra.json"
    facts = {name: each for name, each in read_object(record).items() if name != "sha256"}
    record.unlink()
    write_hashes(folder, **facts)


def change_json(path, **values):
    """Change fields of a JSON file, and write the record of hashes beside it anew, if any."""
    write_json(path, {**read_object(path), **values})
    if (path.parent / "electra.json").exists():
        sign(path.parent)


def forge_weights(run):
    """Change the weights of the last checkpoint, and its hashes, as a liar would."""
    folder = list_checkpoints(run)[-1]
    flip_bit(folder / "model.safetensors", 0.9)
    state = json.loads((folder / "state.json").read_text())
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    state["sha256"]["model.safetensors"] = digest
    write_own(folder / "state.json", state)


def forge_metrics(run, place):
    path = run / "metrics.jsonl"
    records = read_metrics(path)
    records[place]["disc_loss"] += 1e-6
    path.write_text("".join(map(to_line, records)))


def forge_record(suite):
    results = read_object(suite / "results.json")
    scores = results["records"][0]["scores"]
    scores[next(iter(scores))] += 0.01
    write_json(suite / "results.json", results)


def forge_answers(tuned):
    """Answer otherwise, and better, with the scores and the hashes that follow."""
    place = tuned / "seed-1"
    lines = (place / "predictions.tsv").read_text().splitlines()
    right = [n for n, line in enumerate(lines) if line.split("\t")[1] == line.split("\t")[2]]
    for n in right[:30]:
        index, label, *_ = lines[n].split("\t")
        lines[n] = "\t".join([index, label, label, "0.000001", "0.999999"])
    (place / "predictions.tsv").write_text("\n".join(lines) + "\n")
    sign(place)


def forge_export(folder):
    flip_bit(folder / "model.safetensors")
    sign(folder)


OTHERS = {"folder": "shards", "sha256": "0"}
DAMAGE = {
    "weights": (
        *("run", lambda f: flip_bit(f / "checkpoints/step-00000012/model.safetensors")),
        *("checkpoints/step-00000012/state.json: each file", "model.safetensors does not match"),
    ),
    "moments": (
        *("run", lambda f: flip_bit(f / "checkpoints/step-00000006/optimizer.safetensors")),
        *("checkpoints/step-00000006/state.json: each file", "optimizer.safetensors does not"),
    ),
    "weights with hashes": (
        *("run", forge_weights),
        *("their steps are computed again", "steps 7 to 12 do not end with the bits of"),
    ),
    "settings of a run": (
        *("run", lambda f: change(f / "config.json", '_rate": 0.001', '_rate": 0.002')),
        *("their steps are computed again", "do not end with the bits"),
    ),
    "sizes of a run": (
        *("run", lambda f: change(f / "config.json", 'hidden_layers": 2', 'hidden_layers": 3')),
        *("config.json: it fits the weights", "step-00000006/state.json"),
    ),
    "seed of a run": (
        *("run", lambda f: change(f / "config.json", '"seed": 0', '"seed": 1')),
        *("config.json: it fits the weights", "train.seed is 1"),
    ),
    "measures": (
        *("run", lambda f: forge_metrics(f, -2)),
        *("their steps are computed again", "metrics.jsonl, step 12: disc_loss is"),
    ),
    "held-out measures": (
        *("run", lambda f: forge_metrics(f, -1)),
        *("the held-out measures are computed again", "metrics.jsonl, step 12: disc_loss is"),
    ),
    "results not of the records": (
        *("run", lambda f: forge_metrics(f, -1)),
        *("results.json: it follows from", "results.json: heldout is"),
    ),
    "a lost record": (
        *("run", lambda f: change(f / "metrics.jsonl", '{"part": "train", "step": 8', "{")),
        *("metrics.jsonl: it has all records", "damaged"),
    ),
    "results of a run": (
        *("run", lambda f: change_json(f / "results.json", tokens=1)),
        *("results.json: it follows from", "tokens is 1, not"),
    ),
    "samples": (
        *("run", lambda f: change(f / "samples.json", '_replaced": true', '_replaced": false')),
        "the held-out measures are computed again",
        "samples.json does not hold the model's judgements",
    ),
    "tokenizer of a run": (
        *("run", lambda f: flip_bit(f / "tokenizer/vocab.txt")),
        *("tokenizer/electra.json: each file", "vocab.txt is damaged"),
    ),
    "other shards": (
        *("run", lambda f: change_json(f / "manifest.json", shards=OTHERS)),
        *("manifest.json: its shards are these", "does not hold the shards of"),
    ),
    "shards": (
        *("shards", lambda f: flip_bit(f / "train-00000.tokens")),
        *("manifest.json: each shard", "train-00000.tokens is damaged"),
    ),
    "a missing shard": (
        *("shards", lambda f: (f / "heldout-00000.lines").unlink()),
        *("manifest.json: each shard", "heldout-00000.lines is missing"),
    ),
    "counts of shards": (
        *("shards", lambda f: change_json(f / "manifest.json", unk_tokens=7)),
        *("are counted again", "unk_tokens must be"),
    ),
    "vocabulary": (
        *("vocabulary", lambda f: flip_bit(f / "tokenizer.json")),
        *("electra.json: each file", "tokenizer.json is damaged"),
    ),
    "half a vocabulary": (
        *("vocabulary", lambda f: (change(f / "vocab.txt", "##e\n", "##z\n"), sign(f))),
        *("tokenizer.json: it is read", "vocab.txt is not the file that this vocabulary writes"),
    ),
    "a fine-tuned model": (
        *("tuned", lambda f: flip_bit(f / "seed-0/model/model.safetensors")),
        *("seed-0/model/electra.json: each file", "model.safetensors is damaged"),
    ),
    "answers": (
        *("tuned", lambda f: flip_bit(f / "seed-1/predictions.tsv")),
        *("seed-1/electra.json: each file", "predictions.tsv is damaged"),
    ),
    "answers with hashes": (
        *("tuned", forge_answers),
        *("seed-1/model: it gives these answers again", "the answer to record"),
    ),
    "scores of a seed": (
        *("tuned", lambda f: change_json(f / "seed-0/results.json", scores={"accuracy": 0.999})),
        *("seed-0/results.json: the scores follow", "accuracy of dev is"),
    ),
    "scores": (
        *("tuned", lambda f: change_json(f / "results.json", median=0.999)),
        *("results.json: it follows from the seeds", "median is 0.999, not"),
    ),
    "settings of a fine-tuning": (
        *("tuned", lambda f: change(f / "config.json", '"epochs": 1', '"epochs": 3')),
        *("results.json: its settings are those of config.json", "config differs"),
    ),
    "a missing seed": (
        *("tuned", lambda f: shutil.rmtree(f / "seed-1")),
        *("results.json: it follows from the seeds", "seed"),
    ),
    "an export": (
        *("exported", lambda f: flip_bit(f / "model.safetensors")),
        *("electra.json: each file", "model.safetensors is damaged"),
    ),
    "an export with hashes": (
        *("exported", forge_export),
        *("model.safetensors: the weights are those of that model", "is another tensor"),
    ),
    "an export's settings": (
        *("exported-tuned", lambda f: flip_bit(f / "config.json")),
        *("electra.json: each file", "config.json is damaged"),
    ),
    "a suite's records": (
        *("suite", forge_record),
        *("results.json: the comparisons follow", "results.json: gain of"),
    ),
    "a suite's table": (
        *("suite", lambda f: change(f / "table.tex", "ELECTRA", "ELECTRIC")),
        *("table.tex: tables and numbers", "has the line"),
    ),
    "a suite's verdict": (
        *("suite", lambda f: change(f / "README.md", "lower", "higher")),
        *("README.md: tables and numbers", "has the line"),
    ),
}  # fmt: skip


def test_of_several_folders_a_line_each_and_failures(made, tmp_path, capsys):
    for name in ("one", "other"):
        shutil.copytree(made / "vocabulary", tmp_path / name)
    flip_bit(tmp_path / "other" / "vocab.txt")
    status, out, _ = run_command(capsys, "verify", tmp_path)
    lines = out.splitlines()
    assert status == 1
    assert lines[0] == "ok           one (3 claims hold, 0 failed, 0 not checked)"
    assert lines[1].startswith("FAILED       other/electra.json: each file matches its sha256: ")
    assert lines[-2].startswith("FAILED       other: ")
    assert lines[-1].startswith("4 claims of ")
    _, listed, _ = run_command(capsys, "verify", tmp_path, "--verbose")
    assert len(listed.splitlines()) == 7


def test_a_fault_of_this_program_is_no_failed_claim():
    claims = Claims(ignore)
    with pytest.raises(TypeError), claims.prove("a claim"):
        len(3)
    assert not claims.found


def test_a_tag_in_twenty_may_differ_in_bfloat16_alone():
    tags = ["O"] * 40
    few, many = (["B-PER"] * count + tags[count:] for count in (3, 4))
    for computed_in, tolerated in (("float32", [tags]), ("bfloat16", [tags, few])):
        tolerance = ANSWER_TOLERANCE[computed_in]
        like = [_is_like({"tags": tags}, tolerance, {"tags": each}) for each in (tags, few, many)]
        assert like == [each in tolerated for each in (tags, few, many)]


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_told_with_the_file_and_the_claim(damaged, case):
    name, damage, claim, told = DAMAGE[case]
    damage(damaged / name)
    failed, _ = tell(damaged / name)
    assert any(claim in each.claim and told in each.told for each in failed), failed


@pytest.mark.parametrize("start", ["run", "tuned"])
def test_an_export_in_half_the_size_holds_as_rounded(damaged, start):
    out = damaged / "half"
    export(damaged / start, out, dtype="bfloat16")
    failed, claims = tell(out)
    told = {each.claim: each.status for each in claims}
    assert not failed
    assert told["model.safetensors: the weights are those of that model"] == "ok"
    assert told["the answers to fixed tokens are those of that model"] == "not checked"
    forge_export(out)
    (failed,) = tell(out)[0]
    assert "is another tensor than that of the model" in failed.told


def test_what_a_stranger_lacks_is_not_checked(made, damaged):
    shutil.rmtree(damaged / "shards")
    shutil.rmtree(damaged / "run")
    for place in ("tuned/config.json", "exported/electra.json"):
        change(damaged / place, str(made), "gone")
    sign(damaged / "tuned")
    failed, claims = tell(damaged)
    unknown = {each.claim: each.told for each in claims if each.status == "not checked"}
    assert not failed
    assert "tuned/config.json: the weights are those of the start" in unknown
    assert "exported/electra.json: the model that it came from is at hand" in unknown
    assert "exported-tuned/electra.json: the model that it came from is at hand" not in unknown


def test_shards_that_moved_are_named_and_others_refused(damaged, toy_text, toy_tokenizer, capsys):
    (damaged / "shards").rename(damaged / "moved")
    run = damaged / "run"
    claim = "manifest.json: its shards are these"
    status = {each.claim: each.status for each in verify(run)}
    assert status[claim] == "not checked"
    listed = json.loads(succeed(capsys, "verify", run, "--shards", damaged / "moved", "--json").out)
    assert {each["status"] for each in listed} == {"ok"}
    other = damaged / "other.txt"
    other.write_text(toy_text.read_text().replace("boat", "castle"))
    words = ["--tokenizer", damaged / "vocabulary", "--out", damaged / "others"]
    main(["prepare", str(other), *map(str, words), "--set", "workers=1", "heldout_prob=0.1"])
    capsys.readouterr()
    status, out, _ = run_command(capsys, "verify", run, "--shards", damaged / "others")
    assert status == 1
    assert f"FAILED       {claim}: {damaged / 'others'} does not hold the shards of" in out
    assert "another corpus" in out
    failed, _ = tell(damaged / "moved", text=[str(other)])
    assert [each.claim for each in failed] == [
        "the first 200 documents of the text have these tokens"
    ]


def test_a_run_on_another_machine_is_compared_to_a_tolerance(damaged):
    run = damaged / "run"
    amend_session(run, device="Some CPU, 1 thread")
    told = {each.claim: each for each in verify(run)}
    steps = told["checkpoints: their steps are computed again"]
    assert (steps.status, steps.told) == ("ok", "steps 7 to 12 end with the bits of step-00000012")
    evaluated = told["metrics.jsonl: the held-out measures are computed again"]
    assert "losses to 1%, since computed with device" in evaluated.told
    change(run / "config.json", '"learning_rate": 0.001', '"learning_rate": 0.1')
    (failed,) = tell(run)[0]
    assert "metrics.jsonl, step" in failed.told


def test_the_shortest_stretch_is_computed_that_the_limit_allows(damaged):
    run, claim = damaged / "run", "checkpoints: their steps are computed again"
    told = {each.claim: each for each in verify(run, steps=1)}
    assert told[claim] == (
        "not checked",
        claim,
        "the shortest stretch with a kept end has 2 steps: --steps 2",
    )
    told = {each.claim: each for each in verify(run, steps=3)}
    assert told[claim].told == "steps 7 to 8 have the measures of metrics.jsonl, exactly"
    shutil.rmtree(run / "checkpoints" / "step-00000006")
    told = {each.claim: each for each in verify(run)}
    assert told[claim].told == "steps 1 to 12 end with the bits of step-00000012"
    refuse("steps must be >= 1", verify, run, steps=0)
    (damaged / "empty").mkdir()
    refuse("is not a tokenizer", verify, damaged / "empty")
    refuse("there is no folder", verify, damaged / "gone")


@pytest.mark.filterwarnings("ignore:resuming")
def test_runs_that_were_stopped_and_made_longer_hold(train):
    stopped = train("stopped", stop_at=8)
    assert not tell(stopped)[0]
    resume(stopped, ignore)
    failed, claims = tell(stopped)
    assert not failed
    longer = train("stopped", "train.steps=18")
    failed, claims = tell(longer)
    assert not failed
    told = {each.claim: each.told for each in claims}
    assert told["checkpoints: their steps are computed again"] == (
        "steps 13 to 18 end with the bits of step-00000018"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "mlm",
        "replace-mlm",
        "electric",
        "teams",
        "cocolm",
        "causal-lm",
        "next-sentence",
        "two-stage",
        "adversarial",
        "warm-up",
        "sharing-gdes",
        "apart",
        "unigram",
        "reference",
        "spans",
        "documents",
        "modern",
        "deberta",
    ],
)
def test_every_objective_can_be_verified_and_shown(name, toy_shards, tmp_path):
    saving = ["train.save_every=10", "train.evaluate_every=10", "train.evaluate_rows=8"]
    config = override(override(PRESETS["small"], BASE), [*VARIANTS[name], *saving])
    pretrain(toy_shards, tmp_path / "run", override(config, ["train.threads=1"]), ignore)
    failed, claims = tell(tmp_path / "run")
    assert not failed
    assert "not checked" not in {each.status for each in claims}
    for step in (0, 9, 10, config.train.steps - 1):
        assert len(show_step(tmp_path / "run", step, rows=2).rows) == 2
    assert show_step(tmp_path / "run", 10, rows=2, part="heldout").rows


@pytest.mark.slow
def test_a_grid_and_a_suite_with_its_runs_hold_and_are_told_apart(
    run, toy_shards, toy_question, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    combinations = combine(small_finetune(epochs=1), [], ["learning_rate=1e-5,3e-3"])
    search(run, "own", toy_question, tmp_path / "grid", combinations, seeds=1, progress=ignore)
    assert not tell(tmp_path / "grid")[0]
    change_json(tmp_path / "grid" / "results.json", best="learning_rate=1e-5")
    (failed,) = tell(tmp_path / "grid")[0]
    assert failed.claim == "results.json: it follows from the combinations"
    Path("toy.toml").write_text(TOY.replace("3e10", "1e10"))
    words = f"--shards {toy_shards} --data own={toy_question} --runs runs --out suite --jobs 1"
    monkeypatch.setattr("sys.argv", ["electra", "reproduce", "toy.toml", *words.split()])
    main(sys.argv[1:])
    failed, claims = tell(tmp_path / "suite")
    assert not failed
    told = {each.claim: each.told for each in claims}
    assert told["results.json: the records are those of the runs"] == "8 runs"
    for place in Path("runs").glob("*-seed-*"):
        assert not tell(place)[0]
    for path in Path("runs").glob("electra-1-seed-0/results.json"):
        change_json(path, tokens=3)
    (failed,) = tell(tmp_path / "suite")[0]
    assert "tokens of electra-1-seed-0" in failed.told


# electra show


def test_what_is_shown_is_what_training_reads(run, toy_shards):
    """The rows, masks and replacements of a step, as the step itself computes them."""
    shards = find_shards(run)
    session = reopen(run, shards, run / "checkpoints" / "step-00000006")
    outcome = session.step(6, next(session.batches), 1e-3)
    corrupt_BL = torch.cat([each.judgement.corrupt_ids_BL for each in outcome.outputs])
    found = show_step(run, 6, rows=8)
    assert found.told == "replacements are those of training, which continued from step-00000006"
    originals = session_rows(run, shards, 6)
    for row, corrupt_L, ids_L in zip(found.rows, corrupt_BL, originals, strict=True):
        assert [each.token for each in row] == shards.tokenizer.tokens(ids_L[: len(row)].tolist())
        read = shards.tokenizer.tokens(corrupt_L[: len(row)].tolist())
        assert [each.replacement or each.token for each in row] == read
        masked = [each for each in row if each.masked]
        assert len(masked) == max(1, round(0.15 * len(row)))
        assert {each.shown for each in masked} == {"[MASK]"}
        assert all(
            each.replacement is None and each.shown == each.token for each in row if not each.masked
        )
    assert any(each.replacement not in (None, each.token) for row in found.rows for each in row)
    assert show_step(run, 5).told == "replacements are those that step-00000006 would make"
    assert show_step(run, 1).told.startswith("replacements are those that the run's first weights")


def session_rows(run, shards, step):
    session = reopen(run, shards, None, step)
    return next(session.batches).input_ids_BL


def test_rows_and_masks_need_no_weights(damaged):
    run = damaged / "run"
    before = show_step(run, 9)
    shutil.rmtree(run / "checkpoints")
    after = show_step(run, 9)
    for one, other in zip(before.rows, after.rows, strict=True):
        assert [each[:4] for each in one] == [each[:4] for each in other]
    amend_session(run, device="NVIDIA of another machine")
    unknown = show_step(run, 9)
    assert unknown.told == "masks were drawn on NVIDIA of another machine, and cannot be drawn here"
    assert [[t.token for t in row] for row in unknown.rows] == [
        [t.token for t in row] for row in before.rows
    ]
    assert not any(each.masked for row in unknown.rows for each in row)


@pytest.mark.parametrize(
    ("changes", "told", "replaces"),
    [
        ("method.objective=mlm", "mlm replaces nothing", False),
        ("method.objective=causal_lm model.causal=true", "causal_lm masks nothing", False),
        ("method.objective=electric", "replacements are those of training", True),
        ("method.objective=replace_mlm", "replacements are those of training", True),
        ("generator.warmup_steps=4 optimizer.warmup_steps=1", "trained alone before step 4", False),
    ],
)
def test_other_objectives_are_shown_as_they_are(train, changes, told, replaces):
    run = train("run", changes, "train.steps=6", "train.save_every=3", "train.evaluate_every=6")
    found = show_step(run, 3)
    assert told in found.told
    tokens = [each for row in found.rows for each in row]
    assert any(each.masked for each in tokens) == ("masks nothing" not in told)
    assert any(each.replacement for each in tokens) == replaces
    if changes.startswith("generator.warmup"):
        assert "replacements are those that" in show_step(run, 5).told


def test_the_verb_prints_rows(run, capsys, open_terminal):
    out = succeed(capsys, "show", run, "--step", 6, "--rows", 2).out
    lines = out.splitlines()
    found = show_step(run, 6, rows=2)
    assert len(lines) == 5
    for line, row in zip(lines[::2], found.rows, strict=False):
        for each in row:
            same = f"[{each.token}]"
            changed = f"[{each.token}→{each.replacement}]"
            assert not each.masked or (same if each.replacement == each.token else changed) in line
    assert lines[-1] == found.told
    printed = json.loads(succeed(capsys, "show", run, "--step", 6, "--rows", 2, "--json").out)
    assert printed["told"] == found.told
    assert printed["rows"][0][0] == {
        **{"token": found.rows[0][0].token, "segment": 0, "masked": False},
        **{"shown": found.rows[0][0].token, "replacement": None},
    }
    heldout = show_step(run, 11, rows=3, part="heldout")
    assert len(heldout.rows) == 3
    assert heldout.told == "replacements are those that step-00000012 would make"
    status, _, err = run_command(capsys, "show", run, "--step", 12)
    assert status == 2
    assert "step must be 0 to 11, not 12" in err
    screen = open_terminal()
    main(["show", str(run), "--step", "6", "--rows", "1"])
    assert "\x1b[1;31m[" in screen.getvalue()
