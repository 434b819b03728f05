"""JSON files of ours that others have changed: one line with file, field and type."""

import copy
import json
from typing import Annotated, Any, NotRequired, TypedDict

import pytest
from refusals import refuse

from electra.checkpoints.manifest import read_manifest
from electra.checkpoints.results_files import read_results
from electra.errors import UserError
from electra.files import read_object
from electra.interop.card import describe_run
from electra.reports.page import write_report
from electra.reports.runs import facts_table, read_finetuning, read_runs, read_samples
from electra.reproduce.records import compare, read_all_records
from electra.reproduce.suite import Row, Suite
from electra.settings import AtLeast, Within
from electra.shapes import check_shape
from electra.shards.store import open_shards


class Inner(TypedDict, total=False):
    share: Annotated[float, Within("[0, 1]")]
    names: dict[str, list[str]]


class Shape(TypedDict):
    steps: Annotated[int, AtLeast(1)]
    inner: list[Inner]
    rest: NotRequired[dict[str, Any] | str | None]


RIGHT = {"steps": 3, "inner": [{"share": 1, "names": {"a": ["b"]}}], "unknown": 5}


@pytest.mark.parametrize("rest", [{}, {"rest": None}, {"rest": "x"}, {"rest": {"a": 1}}])
def test_what_has_the_shape_is_taken(rest):
    check_shape(RIGHT | rest, Shape, "file")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"steps": 0}, "file: steps must be a whole number >= 1, not 0"),
        ({"steps": True}, "file: steps must be a whole number >= 1, not True"),
        ({"steps": 3.0}, "file: steps must be a whole number >= 1, not 3.0"),
        ({"steps": 1 << 63}, "file: steps must be a whole number >= 1, not 9223372036854775808"),
        ({"inner": {}}, "file: inner must be a list, not {}"),
        ({"inner": [{}, {"share": 2}]}, "file: inner[1].share must be a number in [0, 1], not 2"),
        ({"inner": [{"names": {"x": [None]}}]}, "inner[0].names.x[0] must be text, not None"),
        ({"rest": 5}, "file: rest must be a JSON object or text or null, not 5"),
        ([], "file: must be a JSON object, not []"),
        ({"steps": ...}, "file: it lacks 'steps'"),
    ],
)
def test_what_has_not_is_named(change, said):
    value = RIGHT | change if isinstance(change, dict) else change
    kept = {k: v for k, v in value.items() if v is not ...} if isinstance(value, dict) else value
    refuse(said, check_shape, kept, Shape, "file")


def test_half_a_surrogate_pair_is_named(tmp_path):
    path = tmp_path / "a.json"
    for content, said in (
        ({"a": [{"b": "x\ud800"}]}, r"a[0].b must be whole characters, not 'x\ud800'"),
        ({"a\udfff": 1}, r"must be whole characters, not 'a\udfff'"),
    ):
        path.write_text(json.dumps(content))
        refuse(said, read_object, path)
    path.write_text(json.dumps({"a": "\N{GRINNING FACE}"}))
    assert read_object(path) == {"a": "\N{GRINNING FACE}"}


JUNK = [None, True, -1, 10**30, 0.5, "", "\ud800", [], {}, [1], [None], {"a": 1}]


def list_changes(value):
    """Yield the value with one part removed or replaced; of a list, the first stands for all."""
    parts = value.items() if isinstance(value, dict) else enumerate(value[:1])
    for key, part in parts:
        for junk in JUNK:
            changed = copy.copy(value)
            changed[key] = junk
            yield changed
        yield {k: v for k, v in value.items() if k != key} if isinstance(value, dict) else []
        if isinstance(part, dict | list):
            for each in list_changes(part):
                changed = copy.copy(value)
                changed[key] = each
                yield changed


def find_refusal(read, *given):
    """Return in which line a reader refuses; empty if it does not."""
    try:
        read(*given)
    except UserError as error:
        said = str(error)
    else:
        said = ""
    assert "\n" not in said
    return said


def read_suite_results(folder):
    records = [each for each in read_all_records(folder) if "cola" in each["scores"]]
    compare(Suite(title="", reference="a", rows=(Row(name="a"),), tasks=("cola",)), records)


RECORD = {
    **{"run": "a-1-seed-0", "row": "a", "fraction": 1.0, "seed": 0, "steps": 9, "tokens": 9},
    **{"flops": {"true": 1.0, "paper": 1.0}, "seconds": 1.0, "heldout": None},
    **{"scores": {"cola": 0.5}, "metrics": {"cola": "mcc"}, "branched_from": None},
    **{"commits": [], "devices": [], "shards": "", "config": {}, "finetune": {"cola": ["a=1"]}},
    "collapsed": [],
}


@pytest.fixture(scope="module")
def folders(run, toy_shards, tmp_path_factory):
    """Folders of each kind, with what reads them."""
    results = tmp_path_factory.mktemp("suite")
    (results / "results.json").write_text(
        json.dumps({"suite": {}, "records": [RECORD], "others": []})
    )
    return {
        "manifest": (run, "manifest.json", (read_manifest, lambda f: facts_table(read_runs([f])))),
        "card": (run, "manifest.json", (lambda f: describe_run(f, 12),)),
        "samples": (run, "samples.json", (read_samples,)),
        "shards": (toy_shards, "manifest.json", (lambda f: open_shards(f, verify=False),)),
        "suite": (results, "results.json", (read_suite_results,)),
    }


@pytest.mark.parametrize("name", ["manifest", "card", "samples", "shards", "suite"])
def test_any_change_is_taken_or_refused(folders, name):
    folder, file, readers = folders[name]
    path = folder / file
    whole = path.read_text()
    num_refused = 0
    value = json.loads(whole)
    value.pop("sha256", None)  # by which every change is seen
    try:
        for changed in list_changes(value):
            path.write_text(json.dumps(changed))
            for read in readers:
                said = find_refusal(read, folder)
                assert said.startswith(str(folder)) or not said, changed
                num_refused += bool(said)
    finally:
        path.write_text(whole)
    assert num_refused > 20
    for read in readers:
        read(folder)


SCORES = {
    **{"task": "cola", "metric": "mcc", "start": "run", "from_scratch": False, "median": 0.5},
    **{"std": None, "num_degenerate": 0, "majority": {"mcc": 0.0}, "device": "a", "commit": None},
    "seeds": {"0": {"seed": 0, "scores": {"mcc": 0.5}, "other_scores": {"x": {"mcc": 0.5}}}},
    "with_replacements": {"median": 0.5, "seeds": {"0": 0}},
}


def test_any_change_of_scores_is_taken_or_refused(tmp_path):
    path, num_refused = tmp_path / "results.json", 0
    for changed in [SCORES, *list_changes(SCORES)]:
        path.write_text(json.dumps(changed))
        found = [
            find_refusal(read_results, tmp_path),
            find_refusal(read_finetuning, path),
            find_refusal(write_report, [tmp_path], tmp_path / "page.md"),
        ]
        num_refused += any(found)
    assert num_refused > 100
