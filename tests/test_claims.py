"""Every measured number of README and docs has a claim; a wrong, bold or missing one is told."""

import json
from pathlib import Path

import pytest

import electra
from tools.claims import RECORDS, check_claims, find_measured, list_claims, read_page

ROOT = Path(electra.__file__).parent.parent
SUITE = {
    "commit": "0123456789",
    "gain": {"mean": 2.744, "half_width": 1.94, "seeds": 3},
    "loop": [1.02, 1.0, 1.01],
    "ours": [0.51, 0.5, 0.49],
    "rows": [
        {"row": "rtd", "seed": seed, "scores": {"sst-2": 0.8 + seed / 100, "cola": 0.2}}
        for seed in range(3)
    ],
}
"""A file of results."""
TEXT = "RTD is 2.7 ± 1.9 points above MLM"
PAGE = f"Here {TEXT}."
CLAIM = f"""
[[claims]]
page = "README.md"
text = "{TEXT}"
file = "suite.json"
numbers = [{{ shown = "2.7", field = "gain/mean" }}, {{ shown = "1.9", field = "gain/half_width" }}]
comparison = [{{ gain = "gain/mean", half_width = "gain/half_width", seeds = "gain/seeds" }}]
"""


@pytest.fixture
def tell(tmp_path):
    """Return what is told of a README, its claims and a file of results."""

    def call(page=PAGE, claims=CLAIM, others="[]", withdrawn="[]", **results):
        root = tmp_path / str(len(list(tmp_path.iterdir())))  # a file is read once
        (root / "results").mkdir(parents=True)
        (root / "README.md").write_text(page)
        (root / "results" / "suite.json").write_text(json.dumps(SUITE | results))
        (root / RECORDS).write_text(f"others = {others}\nwithdrawn = {withdrawn}\n{claims}")
        return "\n".join(check_claims(root)[0])

    return call


def claim(text, *numbers, comparison=""):
    """A claim of the results above about a text."""
    lines = ["[[claims]]", 'page = "README.md"', f'text = "{text}"', 'file = "suite.json"']
    lines.append(f"numbers = [{', '.join(f'{{ {number} }}' for number in numbers)}]")
    return "\n".join([*lines, *([f"comparison = [{{ {comparison} }}]"] if comparison else [])])


def test_every_measured_number_has_its_file_and_field():
    problems, counts = check_claims(ROOT)
    assert not problems
    assert counts["claims"] > 50
    assert counts["not kept"] <= 3
    lines = "\n".join(list_claims(ROOT))
    assert "README.md: RTD is 2.7 ± 1.9 points above masked language modelling\n" in lines
    assert "one-gpu/objectives-modern/results.json: 300bba233f\n" in lines


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("RTD is 2.7 ± 1.9", "RTD is 2.8 ± 1.9", "must have the text once, not 0x"),
        ("## In Python", "It takes 7 minutes.\n\n## In Python", ">>7<< minutes"),
        ("## In Python", "SST-2 has 0.912.\n\n## In Python", "SST-2 has >>0.912<<"),
    ],
)
def test_a_number_in_readme_that_is_not_in_the_claims_fails(tmp_path, old, new, told):
    for name in ("docs", "results"):
        (tmp_path / name).symlink_to(ROOT / name)
    text = (ROOT / "README.md").read_text().replace("**", "")
    assert old in text
    (tmp_path / "README.md").write_text(text.replace(old, new))
    assert told in "\n".join(check_claims(tmp_path)[0])


def test_measured_numbers_are_found_in_prose_and_in_tables(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        """# On 2 cores
It took 12 minutes, from 359 to 268 ms, 4.1 **times** as fast; 0.3 GiB, 92 million tokens a
second, 2.7 ± 1 points, 15% and 1,419 MB.

| `a=0.5` | 3 | 0.844 | 71 |

Not measured: 6.8e14 operations, 64 M tokens, 4 x 128, Python 3.11, torch 2.13.0, 1e-3,
`rate=2.5`, [a page](https://a.org/2.5) of 30,522 words.

```
0.75 s
```
<!-- results:begin -->
0.75 s
<!-- results:end -->
"""
    )
    text = read_page(page)
    found = [text[start:end] for start, end in find_measured(text)]
    expected = "12 359 268 4.1 0.3 92 2.7 1 15 1,419 0.844"
    assert found == expected.split()


def test_a_number_is_the_fields_value_rounded_as_shown(tell):
    assert not tell()
    assert "2.7 is shown, and the file has 2.8" in tell(gain=SUITE["gain"] | {"mean": 2.8})
    page, shown = (text.replace("1.9", "1.8") for text in (PAGE, CLAIM))
    assert "1.8 is shown, and the file has 1.94" in tell(page, shown)
    assert "no field 'mode'; there are mean, half_width" in tell(
        claims=CLAIM.replace("mean", "mode")
    )
    assert "cannot read" in tell(claims=CLAIM.replace("suite.json", "lost.json"))
    assert "typed by hand" in tell(claims=CLAIM.replace("suite.json", "notes/domain.json"))
    assert "suite.json has no commit" in tell(commit=None)
    assert "KeyError('numbers')" in tell(claims=CLAIM.replace("numbers =", "other ="))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0.81", 'shown = "0.81", field = "rows/row=rtd/*/scores/sst-2", of = "mean"'),
        ("0.02 more", 'shown = "0.02", field = "rows/row=rtd/*/scores/sst-2", of = "half_width"'),
        ("51 points", 'shown = "51", field = "rows/*/scores/@mean", of = "max", times = 100'),
        (
            "60%",
            'shown = "60", field = "rows/0/scores/sst-2", minus = "rows/0/scores/cola", '
            "times = 100",
        ),
        ("4.0", 'shown = "4.0", field = "rows/seed=0/scores/sst-2", over = "rows/0/scores/cola"'),
        ("17 s", 'shown = "17", field = "loop/1", times = 1000, per = 60'),
    ],
)
def test_numbers_are_made_of_fields(tell, text, number):
    claims = claim(text, number)
    assert not tell(text, claims)
    assert tell(text, claims, rows=[], loop=[])


COMPARES = 'gain = "gain/mean", half_width = "gain/half_width", seeds = "gain/seeds"'


@pytest.mark.parametrize(
    ("gain", "told"),
    [
        ({"mean": 2.7, "half_width": 2.8, "seeds": 3}, "[-0.1, 5.5], is not above 0"),
        ({"mean": -2.7, "half_width": 1.9, "seeds": 3}, "is not above 0"),
        ({"mean": 2.7, "half_width": 1.9, "seeds": 2}, "2 seeds are fewer than 3"),
    ],
)
def test_above_is_refused_where_the_interval_holds_0_or_seeds_are_few(tell, gain, told):
    page = "RTD is above MLM."
    claims = claim(page, comparison=COMPARES)
    assert not tell(page, claims)
    assert told in tell(page, claims, gain=gain)


def test_a_comparison_may_be_of_the_other_direction(tell):
    page = "MLM is below RTD."
    claims = claim(page, comparison=f"{COMPARES}, sign = -1")
    assert "is not above 0" in tell(page, claims)
    assert not tell(page, claims, gain={"mean": -2.7, "half_width": 1.9, "seeds": 3})


def test_a_comparison_names_its_interval_or_says_that_it_has_none(tell):
    number = 'shown = "2.7", field = "gain/mean"'
    bold = claim("2.7 points", number)  # the rest of the sentence also counts
    assert "says 'above'" in tell("RTD is 2.7 points above MLM.", bold)
    assert not tell("RTD is 2.7 points above MLM (one seed).", bold)
    assert "says 'above'" in tell("One: one seed. RTD is 2.7 points above MLM.", bold)
    assert not tell("The lines above. It has 2.7 points.", bold)
    assert not tell("| RTD, above | 2.7 points |", bold)


def test_lists_are_compared_by_their_interval(tell):
    text = "A step is 2.0 times as fast."
    number = 'shown = "2.0", field = "loop", of = "median", over = "ours"'
    claims = claim(text, number, comparison='more = "loop", less = "ours"')
    assert not tell(text, claims)
    assert "is not above 0" in tell(text, claims, loop=[0.1, 1.0, 3.0])
    assert "2 seeds are fewer than 3" in tell(text, claims, loop=[1.0, 1.01], ours=[0.5, 0.505])
    assert "one value has no interval" in tell(text, claims, loop=[1.0], ours=[0.5])


def test_numbers_without_a_file_have_a_kind_and_a_reason(tell):
    page = "MLM sees 15% of the tokens."
    one = '{ page = "README.md", phrase = "15% of", kind = "published", why = "the share" }'
    assert not tell(page, "claims = []", f"[{one}]")
    assert ">>15<<" in tell(page, "claims = []")
    assert "needs `why`" in tell(page, "claims = []", f"[{one.replace('the share', '')}]")
    assert "one of the kinds" in tell(page, "claims = []", f"[{one.replace('published', 'true')}]")
    assert "is not there" in tell("MLM.", "claims = []", f"[{one}]")


def test_what_was_withdrawn_stays_away(tell):
    one = '[{ date = 2026-11-28, page = "README.md", text = "Here RTD", why = "it is not" }]'
    assert "'Here RTD' was withdrawn, and is there" in tell(withdrawn=one)
