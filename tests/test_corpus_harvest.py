"""The harvest: documentation is found without running anything, and the question is a fair one."""

import json
import re
from collections import Counter
from pathlib import Path

import numpy
import pytest

from electra.quickstart import harvest as harvest_module
from electra.quickstart.harvest import Docstring, clean_docstring, harvest, is_english, write_jsonl
from electra.quickstart.questions import MASK, package_question
from electra.text.documents import Reader

MODULE = '''
"""The first module of a package that must never be imported by the harvest."""
import pathlib
pathlib.Path(__file__).with_name("was-run").touch()
raise SystemExit("never run me")

class Thing:
    """A thing that is documented in one sentence for the test."""

    def method(self):
        """Return what the method of the thing is said to return, as a `str`.

        >>> Thing().method()
        'this is code'
        """
        def inner():
            "An inner function that has words of its own in the text."

LONG = """PROSE"""
CODE = "x = CALLS"
'''
MODULE = MODULE.replace("PROSE", "This is a long string, and it is all but a docstring.\n" * 5)
MODULE = MODULE.replace("CALLS", "f(y); " * 60)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What the harvest finds in the standard library and in one small package beside it."""
    site = tmp_path_factory.mktemp("machine") / "site-packages"
    for name, content in {
        "small/__init__.py": MODULE,
        "small/tests/test_it.py": '"""The tests of a package are not to be part of it."""',
        "small/_vendor/copy.py": '"""A copy of another package is not to be part of it."""',
        "small/broken.py": '"""This file does not parse and so it is passed over."""\ndef (',
        "small/escape.py": '"""A file with an invalid escape \\d in it is a good one."""',
        "small/latin.py": b'# coding: latin-1\n"""A file in latin-1 with an \xe9 in it."""',
        "small/nul.py": b'"""This file has a \0 in it and it is passed over too."""',
        "again.py": MODULE,
    }.items():
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(harvest_module, "_list_package_folders", lambda: [site])
        docstrings = list(harvest())
    assert not list(site.rglob("was-run"))
    return docstrings


def test_what_is_found_in_a_package(found):
    # The same text counts once: that of MODULE in the first of its two copies.
    both = [each for each in found if each.package in ("again", "small")]
    copy = [each for each in both if each.module in ("again", "small")]
    assert len({each.module for each in copy}) == 1
    names = ["", "Thing", "Thing.method", "Thing.method.inner", ""]
    assert [docstring.name for docstring in copy] == names
    assert copy[2].text == "Return what the method of the thing is said to return, as a str."
    small = {each.module: each.text for each in both if each not in copy}
    assert sorted(small) == ["small.escape", "small.latin"]
    assert "é" in small["small.latin"]


def test_a_part_is_a_sample_of_all_modules(monkeypatch):
    monkeypatch.setattr(harvest_module, "_list_package_folders", lambda: [])
    part = list(harvest(max_chars=300_000))
    assert 300_000 < sum(len(docstring.text) for docstring in part) < 1_000_000
    modules = {docstring.module for docstring in part}
    assert min(modules) < "b"
    assert max(modules) > "u"


def test_the_standard_library_is_english_and_plenty(found):
    python = [docstring for docstring in found if docstring.package == "python"]
    assert sum(len(docstring.text) for docstring in python) > 1_000_000
    modules = {docstring.module for docstring in python}
    assert {"argparse", "asyncio.events", "email.message", "pydoc_data.topics"} <= modules
    assert {"test", "idlelib"}.isdisjoint(module.split(".")[0] for module in modules)
    texts = [docstring.text for docstring in found]
    assert len(set(texts)) == len(texts)
    assert not any(">>>" in text for text in texts if text.startswith("Return"))


def test_documentation_that_is_no_docstring_is_found():
    path = Path(numpy.__file__).parent / "_core/_add_newdocs.py"
    texts = [docstring.text for docstring in harvest_module._read_module(path, "numpy", "m")]
    assert sum(map(len, texts)) > 50_000


def test_cleaning():
    text = """Return the :class:`~a.b.Thing` of ``x``, which goes on over a line
        that was wrapped, and *ends* here.

        Parameters
        ----------
        x : int
            What it is.
        y : str

        .. note:: dropped

        For example::

            code = "dropped"
            more()

        Then text again.

        >>> code()
        'dropped'

        - one item that is long enough to be wrapped, but the next is
        - another item
        ```python
        dropped()
        ```
        The end."""
    assert clean_docstring(text).split("\n") == [
        "Return the a.b.Thing of x, which goes on over a line that was wrapped, and *ends* here.",
        "Parameters", "x : int", "What it is.", "y : str", "For example::", "Then text again.",
        "- one item that is long enough to be wrapped, but the next is", "- another item",
        "The end.",
    ]  # fmt: skip
    assert is_english("Return the name of the file that is open.")
    assert not is_english("x = f(y); y = g(z); z = h(x); w = k(x)")
    assert not is_english("Too short.")


def test_jsonl_is_what_prepare_reads(found, tmp_path):
    path = tmp_path / "docs.jsonl"
    write_jsonl(found[:200], path)
    record = json.loads(path.read_text(encoding="utf-8").splitlines()[0])
    assert record == found[0]._asdict()
    words = [" ".join(" ".join(document).split()) for document in Reader().read([path])]
    assert words == [" ".join(docstring.text.split()) for docstring in found[:200]]


@pytest.fixture(scope="module")
def families(found):
    """The standard library's own packages stand in for installed ones."""
    return [
        docstring._replace(package=docstring.module.split(".")[0])
        for docstring in found
        if docstring.package == "python" and "." in docstring.module
    ]


def test_the_question_is_fair(families):
    question = package_question(families, 4, seed=0)
    train, test = question.train, question.test
    labels = Counter(question.label for question in train)
    assert sorted(labels) == sorted(question.packages)
    assert len(labels) == 4
    assert len({*labels.values()}) == len({*Counter(q.label for q in test).values()}) == 1
    assert len(train) > len(test) > 20
    for part in (train, test):
        assert all(len({q.label for q in part[n : n + 4]}) == 4 for n in range(0, len(part), 4))
    texts = [question.text.lower() for question in train + test]
    assert len(set(texts)) == len(texts)
    for text in texts:
        words = re.findall("[a-z]+", text)
        assert sum(word != MASK for word in words) >= 8
        assert len(text.split()) <= 64
        assert not any(label in words for label in labels)
        assert not re.search(r"\w_\w|[a-z]\w\.[a-z]\w|https?:", text)
    assert question == package_question(families, 4, seed=0)
    assert question != package_question(families, 4, seed=1)


def test_no_module_stands_on_both_sides(families):
    """Each text is marked with the number of its module, as an ordinary word."""
    numbers = {name: number for number, name in enumerate(sorted({d.module for d in families}))}
    letters = str.maketrans("0123456789", "abcdefghij")
    marks = {name: f"q{str(number).translate(letters)}q" for name, number in numbers.items()}
    marked = [d._replace(text=f"In {marks[d.module]} {d.text}") for d in families]
    question = package_question(marked, 4, seed=0)
    train, test = ({q.text.split()[1] for q in side} for side in (question.train, question.test))
    assert train
    assert test
    assert train.isdisjoint(test)


def test_names_that_give_the_answer_away_are_masked():
    given = (
        "Use sklearn or scikit-learn with PyTorch and np.array, torch.nn.Linear or get_it_now of "
        "someThing at https://torch.org to do what it does for the user of it.\nimport torch\n"
        "Parameters\nx : torch.Tensor"
    )
    docstrings = [
        Docstring(package, f"m{n}", "f", f"{first} m{n} {given} A{'b' * n}")
        for package, first in (("torch", "One"), ("sklearn", "Other"))
        for n in range(40)
    ]
    train = package_question(docstrings, 2, seed=0).train
    expected = (
        "Use name or name with name and name, name or name of name at name to do what it does for "
        "the user of it."
    )
    assert [q.text.split(" ", 2)[2] for q in train] == [expected] * len(train) != []


def test_packages_with_too_few_texts_are_left_out(families):
    many = package_question(families, 500, seed=0)
    assert 4 < len(many.packages) < len({docstring.package for docstring in families})
    counts = Counter(question.label for question in many.test)
    assert sorted(counts) == sorted(many.packages)
    assert min(counts.values()) >= 2
    for few in ([d for d in families if d.package == "asyncio"], []):
        assert package_question(few, 4, seed=0) is None
