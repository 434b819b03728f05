"""A labelled task built from any harvest: from which package is a docstring?

The input is the prose before the first section (Parameters, Returns ...). One word masks every
identifier and every name of any package in the question, so that the subject of the text has to
decide. Train and test share no module and no text.
"""

import hashlib
import itertools
import random
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from electra.quickstart.harvest import STANDARD_LIBRARY, Docstring

TEST_SHARE = 0.2
MIN_WORDS = 8
MAX_WORDS = 64
MIN_TRAIN_TEXTS = 4
MIN_TEST_TEXTS = 2
"""Fewest texts per package in train (MIN_TRAIN_TEXTS) and in test."""
MASK = "name"

SECTION = re.compile(
    r"(parameters|arg(ument)?s|keyword ?arg(ument)?s|attributes|returns?|yields?|raises|warn(ing)?s"
    r"|examples?|notes?|see also|references|methods|usage|shape|inputs?|outputs?"
    r"|:\w+ .*|@\w+ .*)\b:*",
    re.IGNORECASE,
)
DROPPED = re.compile(r"(from [\w.]+ )?import \w|>>>|\$ |explanation:?$", re.IGNORECASE)
IDENTIFIER = re.compile(
    r"\S*://\S+"  # addresses
    r"|\.?\b[A-Za-z_]\w+(?:\.[A-Za-z_]\w*)+"  # dotted
    r"|\b\w*_\w*"  # underscored
    r"|\b\w*[a-z][A-Z]\w*"  # camelCase
)
WORD = re.compile(r"[^\W\d_]+")
"""Letters of any script, because users may supply their own texts."""
NICKNAMES = {
    STANDARD_LIBRARY: ("stdlib", "pep"),
    "huggingface_hub": ("huggingface", "hugging face", "hf"),
    "matplotlib": ("mpl", "pyplot", "plt", "pylab"),
    "networkx": ("nx",),
    "numpy": ("np", "ndarray"),
    "pandas": ("pd",),
    "scipy": ("sp",),
    "sklearn": ("scikit-learn", "scikit"),
    "torch": ("aten",),
    "transformers": ("huggingface", "hugging face", "hf"),
}
"""Other names of packages."""
MIN_PART_CHARS = 5
"""Shortest package name, in characters, that is also masked inside longer words ("PyTorch")."""


class LabelledText(NamedTuple):
    """A text and its package."""

    text: str
    label: str


@dataclass(frozen=True)
class PackageQuestion:
    """The task: packages as labels, and balanced train and test texts in random order.

    Each prefix of `train` or `test` is balanced, too.
    """

    packages: tuple[str, ...]
    train: tuple[LabelledText, ...]
    test: tuple[LabelledText, ...]


def package_question(
    docstrings: Iterable[Docstring], num_packages: int, seed: int
) -> PackageQuestion | None:
    """Return the question about the packages with the most texts, or None for fewer than two.

    A package needs MIN_TRAIN_TEXTS texts in train and MIN_TEST_TEXTS texts in test.

    Args:
        docstrings: The texts and their packages.
        num_packages: Largest number of packages.
        seed: Seed of the split and of the order.
    """
    by_package: dict[str, list[Docstring]] = defaultdict(list)
    for docstring in docstrings:
        if len(WORD.findall(prose := _find_prose(docstring.text))) >= MIN_WORDS:
            by_package[docstring.package].append(docstring._replace(text=prose))
    ranked = sorted(by_package, key=lambda name: (-len(by_package[name]), name))
    while True:
        packages = ranked[:num_packages]
        train, test = _split_texts({name: by_package[name] for name in packages}, seed)
        too_small = {
            name
            for name in packages
            if len(train[name]) < MIN_TRAIN_TEXTS or len(test[name]) < MIN_TEST_TEXTS
        }
        if not too_small:
            break
        # Split again, because the masked names depend on the remaining packages.
        ranked = [name for name in ranked if name not in too_small]
    if len(packages) < 2:
        return None
    return PackageQuestion(tuple(packages), _balance(train, seed), _balance(test, seed))


def _split_texts(
    by_package: Mapping[str, Iterable[Docstring]], seed: int
) -> tuple[dict[str, list[LabelledText]], dict[str, list[LabelledText]]]:
    """Return the masked texts of train and of test by package, each text once."""
    mask = _name_pattern(by_package)
    train: dict[str, list[LabelledText]] = {name: [] for name in by_package}
    test: dict[str, list[LabelledText]] = {name: [] for name in by_package}
    seen: set[str] = set()
    for package, docstrings in by_package.items():
        for docstring in docstrings:
            text = mask.sub(MASK, IDENTIFIER.sub(MASK, docstring.text))
            key = text.lower()
            num_words = sum(word != MASK for word in WORD.findall(key))
            if num_words >= MIN_WORDS and key not in seen:
                seen.add(key)
                side = test if _is_test(docstring, seed) else train
                side[package].append(LabelledText(text, package))
    return train, test


def _find_prose(text: str) -> str:
    """Return the first MAX_WORDS words of the prose before the first section."""
    lines = []
    for line in text.split("\n"):
        if SECTION.fullmatch(line):
            break
        if not DROPPED.match(line):
            lines.append(line)
    return " ".join(" ".join(lines).split()[:MAX_WORDS])


def _name_pattern(packages: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern for all words that name one of the packages."""
    names: set[str] = set()
    for package in packages:
        names.update((package, *NICKNAMES.get(package, ())))
    escaped = [re.escape(name) for name in sorted(names, reverse=True)]  # longer before its prefix
    inside = "|".join(name for name in escaped if len(name) >= MIN_PART_CHARS)
    whole = "|".join(name for name in escaped if len(name) < MIN_PART_CHARS)
    pattern = rf"\b\w*(?:{inside})\w*" if inside else ""
    pattern += "|" if inside and whole else ""
    pattern += rf"\b(?:{whole})\b" if whole else ""
    return re.compile(pattern or r"(?!)", re.IGNORECASE)


def _is_test(docstring: Docstring, seed: int) -> bool:
    """Return whether a docstring belongs to test; all docstrings of a module share the answer."""
    content = f"{seed} {docstring.package} {docstring.module}".encode()
    number = int.from_bytes(hashlib.blake2b(content, digest_size=8).digest())
    return number < TEST_SHARE * 2**64


def _balance(by_label: Mapping[str, Sequence[LabelledText]], seed: int) -> tuple[LabelledText, ...]:
    """Return equally many texts of each label, in rounds of one text per label."""
    rng = random.Random(seed)
    size = min(map(len, by_label.values()))
    columns = [rng.sample(by_label[label], size) for label in sorted(by_label)]
    rounds = [rng.sample(row, len(row)) for row in zip(*columns, strict=True)]
    return tuple(itertools.chain.from_iterable(rounds))
