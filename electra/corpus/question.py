"""A labelled question that any harvest can answer: which package does a docstring come from?

Only the prose before the first section (Parameters, Returns ...) is asked about. Every identifier
and every name of a package, of whatever class, is masked by one and the same word, so that what is
left to go by is what the text is about. Train and test never share a module, nor a text.
"""

import hashlib
import random
import re
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from electra.config import require
from electra.corpus.harvest import STANDARD_LIBRARY, Docstring

TEST_SHARE = 0.2
MIN_WORDS = 8
MAX_WORDS = 64
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
WORD = re.compile(r"[A-Za-z]+")
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


class Question(NamedTuple):
    """A text and the package it comes from."""

    text: str
    label: str


def package_question(
    docstrings: Iterable[Docstring], num_packages: int, seed: int
) -> tuple[list[Question], list[Question]]:
    """Return (train, test): equally many texts of each of the packages with the most of them.

    Raises:
        UserError: there are fewer packages with texts for both.
    """
    by_package: dict[str, list[Docstring]] = defaultdict(list)
    for docstring in docstrings:
        if len(WORD.findall(prose := _find_prose(docstring.text))) >= MIN_WORDS:
            by_package[docstring.package].append(docstring._replace(text=prose))
    packages = sorted(by_package, key=lambda name: (-len(by_package[name]), name))[:num_packages]
    mask = _name_pattern(packages)
    parts: dict[bool, dict[str, list[Question]]] = {False: {}, True: {}}
    seen: set[str] = set()
    for package in packages:
        train: list[Question] = parts[False].setdefault(package, [])
        test: list[Question] = parts[True].setdefault(package, [])
        for docstring in by_package[package]:
            text = mask.sub(MASK, IDENTIFIER.sub(MASK, docstring.text))
            key = text.lower()
            num_words = sum(word != MASK for word in WORD.findall(key))
            if num_words >= MIN_WORDS and key not in seen:
                seen.add(key)
                side = test if _is_test(docstring, seed) else train
                side.append(Question(text, package))
    num_usable = sum(bool(parts[False][name] and parts[True][name]) for name in packages)
    require(
        num_usable >= max(2, num_packages),
        f"num_packages must be 2 to {num_usable} with this documentation, not {num_packages}",
    )
    return _balance(parts[False], seed), _balance(parts[True], seed)


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


def _balance(by_label: dict[str, list[Question]], seed: int) -> list[Question]:
    """Return as many questions of each label as the rarest has, in random order."""
    rng = random.Random(seed)
    size = min(len(questions) for questions in by_label.values())
    chosen = [q for label in sorted(by_label) for q in rng.sample(by_label[label], size)]
    rng.shuffle(chosen)
    return chosen
