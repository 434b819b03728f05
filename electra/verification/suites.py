"""Claims of a suite's results: comparisons and tables follow from their records."""

import re
import shlex
import tempfile
from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

from electra.assignments import parse_value
from electra.checkpoints.manifest import read_manifest
from electra.checkpoints.results_files import RunResults, read_results
from electra.errors import count_of, require
from electra.files import read_object
from electra.pretraining.replay import Absent, find_beside
from electra.reproduce.records import read_all_records
from electra.reproduce.report import write_results
from electra.reproduce.suite import Suite
from electra.verification.claims import Claims

WRITTEN = ("README.md", "table.tex")
"""Files of text alone that follow from the records; the page has the figure, whose lines change
with the version of matplotlib."""
TABLE = re.compile(r"^\||[^\\]&|: .*\(.*\)\.$")
"""A line of a table in Markdown or LaTeX, or of what holds and what does not."""
NUMBER = re.compile(r"\d+(?:\.\d+)?")
TOLERANCE = 1e-9
"""Largest difference of a gain, as a share of it: libraries of statistics may round otherwise."""


def verify_suite(claims: Claims, folder: Path) -> None:
    """Prove the claims of a results folder of `electra reproduce`."""
    claims.compare_hashes(folder)
    results: dict[str, Any] = {}
    with claims.prove("results.json: suite and records are read") as tell:
        read_all_records(folder)
        results = read_object(folder / "results.json")
        tell(count_of(len(results["records"]), "record"))
    if not results:
        return
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary)
        with claims.prove("results.json: the comparisons follow from the records"):
            names = ("records", "others", "num_runs", "command")
            suite: Suite = parse_value("suite", results["suite"], Suite)
            write_results(out, suite, *(results[name] for name in names))
            found = read_object(out / "results.json")["comparisons"]
            _require_like(folder / "results.json", results["comparisons"], found)
        for name in WRITTEN:
            with claims.prove(f"{name}: tables and numbers follow from the records") as tell:
                tell(_compare_texts(folder / name, out / name))
    with claims.prove("results.json: the records are those of the runs") as tell:
        tell(_compare_runs(folder, results))


def _compare_texts(path: Path, written: Path) -> str:
    """Return how a file matches the text from the records; refuse other tables or numbers."""
    said, found = (each.read_text(encoding="utf-8").splitlines() for each in (path, written))
    tables = [[line for line in lines if TABLE.search(line)] for lines in (said, found)]
    for one, other in zip_longest(*tables):
        require(one == other, f"{path} has the line {one!r}; the records give {other!r}")
    numbers = [{*NUMBER.findall("".join(lines))} for lines in (said, found)]
    others = ", ".join(sorted(numbers[0] - numbers[1]))
    require(not others, f"{path} has numbers that no record gives: {others}")
    return "word for word" if said == found else "sentences are worded as by another version"


def _require_like(path: Path, said: list[dict[str, Any]], found: list[dict[str, Any]]) -> None:
    """Refuse comparisons that are not those found, to rounding."""
    require(
        len(said) == len(found),
        f"{path}: the records give {len(found)} comparisons, not {len(said)}",
    )
    for one, other in zip(said, found, strict=True):
        for name, value in other.items():
            was = one.get(name)
            if isinstance(value, float) and isinstance(was, float):
                is_same = abs(was - value) <= TOLERANCE * max(1.0, abs(value))
            else:
                is_same = was == value
            require(is_same, f"{path}: {name} of {other['row']} is {was}, not {value}")


def _compare_runs(folder: Path, results: Mapping[str, Any]) -> str:
    """Return how many records have a run at hand that says the same; refuse others."""
    words = shlex.split(str(results["command"]))
    told = next((words[n + 1] for n, word in enumerate(words[:-1]) if word == "--runs"), "")
    if not told:
        raise Absent("the command of the results names no --runs")
    runs, number = find_beside(folder, told), 0
    for record in results["records"]:
        run = runs / record["run"]
        if not (run / "results.json").is_file():
            continue
        number += 1
        found = read_object(run / "results.json", RunResults)
        facts = {"tokens": found["tokens"], "heldout": found["heldout"]}
        facts["shards"] = read_manifest(run)["shards"]["sha256"]
        for name, value in facts.items():
            place = f"{folder / 'results.json'}: {name} of {record['run']}"
            require(record[name] == value, f"{place} is {record[name]}, not {value}")
        for task, score in record["scores"].items():
            place = run / f"finetune-{task}"
            if place.is_dir():
                median = read_results(place, "median")["median"]
                said = f"{folder / 'results.json'}: {task} of {record['run']} is {score}"
                require(score == median, f"{said}, not {median}")
    require(number > 0, f"{runs} has none of the runs")
    return count_of(number, "run")
