"""A labelled question that any harvest can answer: which package does a docstring come from?

Only the prose before the first section (Parameters, Returns ...) is asked about. Every identifier
and every name of a package, of whatever class, is masked by one and the same word, so that what is
left to go by is what the text is about. Train and test never share a module, nor a text.
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
"""Texts that a package needs on either side to take part."""
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
"""Letters of any script: the texts may be a user's own."""
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
"""Words beside its own name that name a package."""
MIN_PART_CHARS = 5
"""Characters from which a package's name is masked inside longer words too ("PyTorch")."""


class LabelledText(NamedTuple):
    """A text and the package it comes from."""

    text: str
    label: str


@dataclass(frozen=True)
class PackageQuestion:
    """Which package does a text come from? Equally many texts of each, in random order.

    Any first part of `train` or `test` is balanced, too.
    """

    packages: tuple[str, ...]
    train: tuple[LabelledText, ...]
    test: tuple[LabelledText, ...]


def package_question(
    docstrings: Iterable[Docstring], num_packages: int, seed: int
) -> PackageQuestion | None:
    """Return the question about the packages with the most texts, or None if fewer than two do.

    A package takes part with at least MIN_TRAIN_TEXTS to learn from and MIN_TEST_TEXTS to ask
    about; where too few have as many, there are fewer than `num_packages`.
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
        # Once more, since what is masked depends on the packages that take part.
        ranked = [name for name in ranked if name not in too_small]
    if len(packages) < 2:
        return None
    return PackageQuestion(tuple(packages), _balance(train, seed), _balance(test, seed))


def _split_texts(
    by_package: Mapping[str, Iterable[Docstring]], seed: int
) -> tuple[dict[str, list[LabelledText]], dict[str, list[LabelledText]]]:
    """Return the masked texts of each package, to learn from and to ask about; each text once."""
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
    """Return the words before the first section, MAX_WORDS at most."""
    lines = []
    for line in text.split("\n"):
        if SECTION.fullmatch(line):
            break
        if not DROPPED.match(line):
            lines.append(line)
    return " ".join(" ".join(lines).split()[:MAX_WORDS])


def _name_pattern(packages: Iterable[str]) -> re.Pattern[str]:
    """Return what matches every word that names one of the packages."""
    names: set[str] = set()
    for package in packages:
        names.update((package, *NICKNAMES.get(package, ())))
    escaped = [re.escape(name) for name in sorted(names, reverse=True)]  # the longer one first
    inside = "|".join(name for name in escaped if len(name) >= MIN_PART_CHARS)
    whole = "|".join(name for name in escaped if len(name) < MIN_PART_CHARS)
    pattern = rf"\b\w*(?:{inside})\w*" if inside else ""
    pattern += "|" if inside and whole else ""
    pattern += rf"\b(?:{whole})\b" if whole else ""
    return re.compile(pattern or r"(?!)", re.IGNORECASE)


def _is_test(docstring: Docstring, seed: int) -> bool:
    """Return the side of a module, the same for all that stands in it."""
    content = f"{seed} {docstring.package} {docstring.module}".encode()
    number = int.from_bytes(hashlib.blake2b(content, digest_size=8).digest())
    return number < TEST_SHARE * 2**64


def _balance(by_label: Mapping[str, Sequence[LabelledText]], seed: int) -> tuple[LabelledText, ...]:
    """Return as many texts of each label as the rarest has: round after round, one of each."""
    rng = random.Random(seed)
    size = min(map(len, by_label.values()))
    columns = [rng.sample(by_label[label], size) for label in sorted(by_label)]
    rounds = [rng.sample(row, len(row)) for row in zip(*columns, strict=True)]
    return tuple(itertools.chain.from_iterable(rounds))
