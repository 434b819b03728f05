"""What docs/EXTENDING.md adds inside the package: made in a copy of it, and run."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from runs import SMALL, read_records, words_of

import electra
from benchmarks.serve import start_server

PACKAGE = Path(electra.__file__).parent
PAGE = PACKAGE.parent / "docs" / "EXTENDING.md"


def apply_changes(page, root):
    """Make the changes of a page's blocks; what they expect must stand once in the file."""
    for block in re.findall(r"^```diff\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        for name, changes in re.findall(r"^--- (.*)\n((?:(?!---).*\n)*)", block, re.MULTILINE):
            text = (root / name).read_text()
            for change in changes.split("@@\n"):
                lines = change.splitlines(keepends=True)
                old, new = ("".join(x[1:] for x in lines if x[0] in (" ", mark)) for mark in "-+")
                assert text.count(old) == 1, f"{name} has this {text.count(old)} times:\n{old}"
                text = text.replace(old, new)
            (root / name).write_text(text)


@pytest.fixture(scope="module")
def changed(tmp_path_factory):
    """A copy of the package with all changes of the page, and what runs Python with it."""
    root = tmp_path_factory.mktemp("changed")
    shutil.copytree(PACKAGE, root / "electra", ignore=shutil.ignore_patterns("__pycache__"))
    apply_changes(PAGE.read_text(), root)
    shutil.copy(PAGE.parent / "examples" / "epub.py", root / "electra" / "text")

    def run(*words):
        words = [sys.executable, *map(str, words)]
        env = os.environ | {"PYTHONPATH": str(root)}
        done = subprocess.run(words, env=env, cwd=root, capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    run.root = root
    return run


def test_the_changes_fit_the_package(changed):
    """What they do is shown by the slow tests, of which each starts the changed package."""
    for path in (changed.root / "electra").rglob("*.py"):
        ast.parse(path.read_text(), str(path))


@pytest.fixture(scope="module")
def trained(changed, toy_shards, tmp_path_factory):
    """A run whose rate falls by a square root, and what its command said at last."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    settings = SMALL | {"train.steps": 8, "optimizer.warmup_steps": 2, "train.log_every": 1}
    settings |= {"optimizer.learning_rate": 1, "optimizer.decay": "sqrt"}
    words = ["pretrain", toy_shards, "--out", folder, "--set", *words_of(settings)]
    status, last, told = changed("-m", "electra", *words)
    assert status == 0, told
    return folder, last


@pytest.mark.slow
def test_a_metric_is_in_records_the_last_line_and_the_card(changed, trained, tmp_path):
    folder, last = trained
    for record in (*read_records(folder, "train"), *read_records(folder, "heldout")):
        assert 0 <= record["calibration_error"] <= 1
    assert "calibration_error" in last
    status, _, told = changed("-m", "electra", "export", folder, "--out", tmp_path / "exported")
    assert status == 0, told
    assert "calibration_error" in (tmp_path / "exported" / "README.md").read_text()


@pytest.mark.slow
def test_the_calibration_error_is_that_of_ten_bins(changed):
    code = (
        "import torch; from electra.method.measures import *\n"
        "counts = torch.zeros(2, NUM_INTERVALS, dtype=torch.int64)\n"
        "counts[:, -1] = torch.tensor([1, 3])\n"  # probability 1, three of four replaced
        "counts[0, 0] = 4\n"  # probability 0, none of four replaced
        "print(calibration_error(counts))"
    )
    assert float(changed("-c", code)[1]) == pytest.approx(1 / 8, abs=1e-6)


@pytest.mark.slow
def test_the_rate_falls_by_a_square_root_and_is_refused_in_reference_mode(changed, trained):
    rates = [record["learning_rate"] for record in read_records(trained[0], "train")]
    expected = [1 - (done / 6) ** 0.5 for done in range(6)]
    assert rates == pytest.approx([0.5, 1, *expected])
    words = "x --preset small --out y --dry-run --set method.mode=reference optimizer.decay=sqrt"
    status, _, told = changed("-m", "electra", "pretrain", *words.split())
    assert status == 2
    assert "optimizer.decay" in told.splitlines()[-1]


@pytest.mark.slow
def test_chapters_of_a_book_are_documents_in_reading_order(changed, tmp_path):
    parts = {
        "META-INF/container.xml": '<c xmlns="u"><rootfile full-path="in/p.opf"/></c>',
        "in/p.opf": '<p xmlns="o"><item id="b" href="b%20.xhtml"/><item id="a" href="a.xhtml"/>'
        '<itemref idref="a"/><itemref idref="b"/></p>',
        "in/a.xhtml": '<html xmlns="x"><head><title>no</title></head>'
        "<body>The first.</body></html>",
        "in/b .xhtml": '<html xmlns="x"><body><p>The</p><p>second.</p></body></html>',
    }
    with zipfile.ZipFile(tmp_path / "a.epub", "w") as book:
        for name, text in parts.items():
            book.writestr(name, text)
    (tmp_path / "b.epub").write_text("no book")
    code = (
        "import sys; from pathlib import Path; from electra.text.documents import Reader\n"
        "from electra.text.sources import find_sources\n"
        "print(list(Reader().read(find_sources(sys.argv[1:]).files)))"
    )
    told = changed("-c", code, tmp_path / "a.epub")[1]
    assert told.strip() == "[['The first.'], ['The', 'second.']]"
    assert "b.epub is damaged" in changed("-c", code, tmp_path / "b.epub")[2]


@pytest.mark.slow
def test_a_route_answers_as_electra_score(changed, run, monkeypatch, tmp_path):
    texts = ["the queen sold a boat .", " "]
    (tmp_path / "texts").write_text(texts[0])
    words = ["--text", tmp_path / "texts", "--out", tmp_path / "scores.tsv"]
    status, _, told = changed("-m", "electra", "score", run, *words)
    assert status == 0, told
    expected = float((tmp_path / "scores.tsv").read_text().splitlines()[-1].split("\t")[0])
    monkeypatch.chdir(changed.root)
    monkeypatch.setenv("PYTHONPATH", str(changed.root))
    # Not `served`, whose copy of this process has the package as it was.
    words = ["-m", "electra", "serve", str(run), "--port", "0", "--set", "threads=1"]
    process, port = start_server([sys.executable, *words])
    try:
        (model,) = json.load(urlopen(f"http://127.0.0.1:{port}/models"))
        assert "score" in model["verbs"]
        address = f"http://127.0.0.1:{port}/models/run/score"
        headers = {"Content-Type": "application/json"}
        request = Request(address, json.dumps({"texts": texts}).encode(), headers)
        first, blank = json.load(urlopen(request))
    finally:
        process.terminate()
        process.communicate()
    assert first["pll"] == pytest.approx(expected, abs=1e-3)
    assert blank == {"pll": None}


@pytest.mark.slow
def test_a_verb_is_a_command_and_a_name_in_python(changed, run):
    texts = ["the queen sold a boat .", "a young doctor"]
    vectors = electra.embed(run, texts, layer=1)
    lengths = (vectors**2).sum(axis=1) ** 0.5
    expected = float(vectors[0] @ vectors[1]) / lengths.prod()
    status, printed, told = changed("-m", "electra", "compare", run, *texts, "--layer", "1")
    assert (status, printed) == (0, f"cosine {expected:.3f}\n"), told
    code = f"import electra; print(electra.compare({str(run)!r}, *{texts}, layer=1))"
    assert float(changed("-c", code)[1]) == pytest.approx(expected, abs=1e-6)
    assert "compared with" in changed("-m", "electra", "compare", "--help")[1]
