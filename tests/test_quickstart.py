"""The quickstart with texts of one's own: what cannot be asked is said before, the rest is done."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import runs
from commands import run_command
from runs import words_of

from electra.quickstart import harvest as harvest_module

SMALL = ["tokenizer.vocab_size=200", "prepare.workers=1", "finetune.epochs=1", "finetune.threads=1"]
SMALL += ["finetune.reseeds=0", "seeds=1", "learning_rates=0.001"]
SMALL += words_of(runs.SMALL | {"train.steps": 4}, "pretrain.")
WORDS = {
    "english": "the old sailor painted a boat yesterday before his breakfast at the harbour",
    "french": "le vieux marin a repeint hier son bateau avant le petit déjeuner au port",
    "german": "der alte Seemann strich gestern vor dem Frühstück am Hafen sein Boot neu",
    "chinese": "老水手昨天早饭前在港口给他的船刷了漆",
}


@pytest.fixture(autouse=True)
def _short_probe(monkeypatch):
    monkeypatch.setattr("electra.quickstart.run.PROBE_SECONDS", 0.1)


@pytest.fixture
def texts(tmp_path):
    """Five small files in four languages; of one there are three lines, of one no words."""
    (folder := tmp_path / "texts").mkdir()
    for name, words in WORDS.items():
        lines = [f"{words} {name * (number % 3)} {number}." for number in range(60)]
        turned = [" ".join(words.split()[n % 7 :] + [lines[n]]) for n in range(60)]
        (folder / f"{name}.txt").write_text("\n".join(turned), encoding="utf-8")
    (folder / "short.txt").write_text("Nothing to\nsee in\nhere.")
    return folder


def run(capsys, *words):
    """Return the exit status, standard output and standard error of a tiny quickstart."""
    given = {str(word).partition("=")[0] for word in words}
    small = [each for each in SMALL if each.partition("=")[0] not in given]
    return run_command(capsys, "quickstart", "--set", *small, *words)


def test_files_that_hold_too_little_are_left_out_of_the_question(capsys, texts, tmp_path):
    out = tmp_path / "out"
    status, printed, err = run(capsys, "--text", texts, "--out", out)
    assert status == 0, err
    steps = [line for line in printed.splitlines() if line]
    assert steps[0] == "question: which of 3 files does a text come from?"
    assert any(step.startswith("no fine-tuning on punctuation") for step in steps)
    rows = (out / "package/train.jsonl").read_text().splitlines()
    labels = {json.loads(row)["label"] for row in rows}
    assert labels == {"english.txt", "french.txt", "german.txt"}
    for name in ("report.html", "exported/config.json", "package-scratch/results.json"):
        assert (out / name).is_file()
    card = (out / "exported" / "README.md").read_text()
    median = json.loads((out / "package-pretrained" / "results.json").read_text())["median"]
    assert f"| run | package | accuracy | {median:.3f}" in card


@pytest.mark.slow
def test_comparisons_in_two_processes_give_the_scores_of_one(capsys, texts, tmp_path):
    scores = []
    for threads in (1, 2):
        out = tmp_path / str(threads)
        setting = ["--set", f"finetune.threads={threads}"]
        status, printed, err = run(capsys, "--text", texts, "--out", out, *setting)
        assert status == 0, err
        assert printed.count("electra finetune") == 2
        results = (out / f"package-{start}/results.json" for start in ("pretrained", "scratch"))
        scores.append([json.loads(path.read_text())["combinations"] for path in results])
    assert scores[0] == scores[1]


@pytest.mark.slow
def test_a_killed_quickstart_goes_on(capsys, texts, tmp_path):
    out, more, begun = tmp_path / "out", ["--set", "pretrain.train.steps=40"], {}
    words = ["--text", str(texts), "--out", str(out)]
    small = [each for each in SMALL if "steps" not in each]
    line = [sys.executable, "-m", "electra", "quickstart", *words, *more, *small]
    for pattern in ("shards", "run/checkpoints/step-*", "package-pretrained"):
        with subprocess.Popen(line, stdout=subprocess.DEVNULL) as process:
            while process.poll() is None and not list(out.glob(pattern)):
                time.sleep(0.01)
            process.kill()
        assert process.returncode == -signal.SIGKILL
        whole = out.glob("shards/*[!e]")  # the next start replaces an .incomplete file
        begun = begun or {path: path.stat().st_mtime_ns for path in whole}
    _, _, err = run(capsys, *words, *more, "seeds=2")
    assert len(err.splitlines()) == 1
    assert "out was started with seeds=1, not 2: remove it, or choose another --out" in err
    assert run(capsys, *words, *more)[0] == 0
    assert begun == {path: path.stat().st_mtime_ns for path in begun}
    assert len(json.loads((out / "run/manifest.json").read_text())["sessions"]) == 2
    assert run(capsys, *words[:2], "--out", tmp_path / "whole", *more)[0] == 0
    weights = "run/checkpoints/step-00000040/model.safetensors"
    assert (out / weights).read_bytes() == (tmp_path / "whole" / weights).read_bytes()
    assert f"write {out}-2;" in run(capsys, *words, "--dry-run", *more)[1]  # a whole one is kept


def test_a_single_file_is_pretrained_without_a_question(capsys, texts, tmp_path):
    out = tmp_path / "out"
    _, printed, _ = run(capsys, "--text", texts / "german.txt", "--out", out)
    assert "no fine-tuning on files: it needs two files" in printed.splitlines()[1]
    assert (out / "report.html").is_file()
    assert not (out / "package").exists()


def test_lines_of_one_file_are_asked_for_their_punctuation(capsys, tmp_path):
    words = ["늙은", "선원은", "어제", "아침", "식사", "전에", "항구에서", "자기", "배를", "칠했다"]
    text, out = tmp_path / "korean.txt", tmp_path / "out"
    with text.open("w", encoding="utf-8") as file:
        for number in range(600):
            turned = [words[(number * 7 + place * 3) % len(words)] for place in range(40)]
            turned[number % 30] += "."
            turned[number % 7 + 31] += ","
            file.write(" ".join(turned) + "\n")
    settings = ["--set", "prepare.border=line", "prepare.heldout_prob=0.3"]
    status, printed, err = run(capsys, "--text", text, "--out", out, *settings)
    assert status == 0, err
    assert "question: which punctuation mark follows a word?" in printed
    lines = (out / "punctuation/train.txt").read_text(encoding="utf-8").splitlines()
    assert {line.partition("\t")[2] for line in lines} == {"B-.", "B-,", "O", ""}
    assert re.search(
        r"generator had replaced \d+ of the 10 held-out tokens that the discriminator", printed
    )
    assert re.search(r"vocabulary 100% .* read; finding the tokens\n", err)
    assert "# Counting which tokens occur together" in err
    assert re.search(r"On punctuation, pre-training cannot be judged by one seed", printed)


def test_what_cannot_be_a_quickstart_leaves_nothing(capsys, texts, tmp_path, monkeypatch):
    out = tmp_path / "out"
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(harvest_module, "_list_modules", lambda: [])
    for words, message in (
        (["--text", "-"], "quickstart reads the text several times; save - as a file first"),
        (["--text", tmp_path / "pipe"], "quickstart reads the text several times"),
        ([], "this Python has no documentation to read; name text with --text"),
        (["--text", texts, "--set", "num_packages=1"], "num_packages must be >= 2, not 1"),
    ):
        status, _, err = run(capsys, *words, "--out", out)
        assert (status, len(err.splitlines())) == (2, 1), err
        assert message in err
    assert not out.exists()


def test_ctrl_c_while_it_trains_is_one_line(texts, tmp_path, capsys, monkeypatch):
    shown = []

    def interrupt(display, record):
        if record["part"] == "train" and not shown:  # a second one acts at once
            shown.append(record)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("electra.terminal.live.Display.show", interrupt)
    out = tmp_path / "out"
    status, printed, _ = run(capsys, "--text", texts, "--out", out)
    assert status == 130
    assert re.search(rf"stopped at step \d; {re.escape(str(out))}/run is safe\n\Z", printed)
