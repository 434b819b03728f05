"""Programs of other people judge what we wrote, and give our numbers."""

import json
import os
import random
import subprocess
import sys

import pytest

from electra.inference.score import compare_pairs, load_scorer, read_pairs

PROGRAM = os.environ.get("BABYLM_PIPELINE", "")
"""A clone of github.com/babylm/evaluation-pipeline-2025; the variable names its folder."""
WORDS = (
    "the",
    "queen",
    "sold",
    "a",
    "boat",
    "my",
    "neighbour",
    "admired",
    "an",
    "engine",
    "castle",
)


@pytest.mark.slow
@pytest.mark.skipif(not PROGRAM, reason="BABYLM_PIPELINE names no clone of BabyLM's program")
def test_the_organisers_program_of_babylm_prefers_the_same_sentences(exported, tmp_path):
    draw = random.Random(0)
    pairs = []
    for number in range(60):
        words = draw.sample(WORDS, draw.randint(3, 9))
        good, bad = " ".join(words) + " .", " ".join(reversed(words)) + " ."
        kind = f"kind_{number % 3}"
        facts = {"field": "syntax", "linguistics_term": "order", "UID": kind, "pairID": number}
        pairs.append({"sentence_good": good, "sentence_bad": bad, **facts})
    data = tmp_path / "pairs"
    data.mkdir()
    lines = "".join(json.dumps(pair) + "\n" for pair in pairs)
    (data / "pairs.jsonl").write_text(lines)
    generator = exported / "generator"
    words = ["--model_path_or_name", generator, "--backend", "mlm", "--task", "blimp"]
    words += ["--data_path", data, "--output_dir", tmp_path, "--save_predictions"]
    program = "evaluation_pipeline.sentence_zero_shot.run"
    environment = {**os.environ, "PYTHONPATH": PROGRAM, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", program, *words]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    (path,) = tmp_path.rglob("predictions.json")
    (report,) = tmp_path.rglob("best_temperature_report.txt")
    preferred = [
        each["pred"].strip()
        for kind in json.loads(path.read_text()).values()
        for each in kind["predictions"]
    ]
    asked = read_pairs(data / "pairs.jsonl")
    scores = load_scorer(generator).score([*asked.good, *asked.bad])
    own = compare_pairs(asked, scores)
    good, bad = scores[: len(pairs)], scores[len(pairs) :]
    ours = {(a if a.pll > b.pll else b).text for a, b in zip(good, bad, strict=True)}
    assert {*preferred} == ours
    assert own["ties"] == 0  # which the program counts as right, and we as wrong
    theirs = float(report.read_text().split("### AVERAGE ACCURACY\n")[1].split()[0])
    assert theirs == pytest.approx(100 * own["accuracy"], abs=0.005)
