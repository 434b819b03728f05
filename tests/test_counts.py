"""What is done is not more than before, counted: see benchmarks/counts.py."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
GOLDEN = Path(__file__).parent / "fixtures" / "counts.json"
MOST = 1.05


@pytest.mark.slow
def test_counts_do_not_grow(request):
    """By 5% at most; `--write-golden` writes them anew, and their difference is then a change."""
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    words = [sys.executable, "-m", "benchmarks.counts"]
    done = subprocess.run(words, cwd=ROOT, env=environment, check=True, capture_output=True)
    found = json.loads(done.stdout)
    if request.config.getoption("--write-golden"):
        GOLDEN.write_text(json.dumps(found, indent=1) + "\n")
    golden = json.loads(GOLDEN.read_text())
    if found["versions"] != golden["versions"]:
        pytest.skip(f"counted with {golden['versions']}")
    for name, count in golden["counts"].items():
        assert found["counts"][name] <= MOST * count, name
