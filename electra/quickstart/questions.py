"""A labelled task built from any harvest: from which package is a docstring?

The input is the prose before the first section (Parameters, Returns ...). One word masks every
identifier and every name of any package in the question, so that the subject of the text has to
decide. Train and test share no module and no text.
"""

import hashlib
import itertools
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from electra.files import write_text
from electra.quickstart.harvest import STANDARD_LIBRARY, Docstring
from electra.shards.store import Shard, Shards

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

    Each prefix of `train` or `test` is balanced as well.
    """

    packages: tuple[str, ...]
    train: tuple[LabelledText, ...]
    test: tuple[LabelledText, ...]


def package_question(
    docstrings: Iterable[Docstring], num_packages: int, seed: int
) -> PackageQuestion | None:
    """Return the question about the packages with the most texts, or None for fewer than two.

    A package needs MIN_TRAIN_TEXTS texts in train and MIN_TEST_TEXTS texts in test.
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


MARKS = frozenset(",.;:!?…،؛؟۔।॥、。，！？；：｡､·")  # noqa: RUF001
"""Marks that end a part of a sentence, in several scripts."""
MIN_MARK_SHARE = 0.003
"""Least share of words that a mark follows in the labelled texts; rarer marks are only removed."""
WINDOW_WORDS = 32
"""Words of a passage. Passages are cut without regard to sentences, or their ends would show."""
MIN_PASSAGES = 64
"""Fewest passages of a question."""
MIN_TOKENS = 8 * WINDOW_WORDS
"""Shorter documents, such as single lines, are joined with those that follow."""


class Passage(NamedTuple):
    """Consecutive words of a text, and the mark after each word, "" for none."""

    words: list[str]
    marks: list[str]


class PunctuationQuestion(NamedTuple):
    """The task: labelled passages for training and for testing, of different documents."""

    train: list[Passage]
    test: list[Passage]


def punctuation_question(
    shards: Shards, num_labelled: int, num_asked: int, seed: int
) -> PunctuationQuestion | None:
    """Return a question about the held-out documents, or None if they hold too little.

    If there are too few passages, train and test share them in proportion.
    """
    documents = [
        [passage for passage in cut_passages(tokens) if any(passage.marks)]
        for shard in shards.heldout
        for tokens in join_documents(read_documents(shard, shards))
    ]
    num_passages = sum(map(len, documents))
    if num_passages < MIN_PASSAGES:
        return None
    random.Random(seed).shuffle(documents)
    share = min(1.0, num_passages / (num_labelled + num_asked))
    most = round(share * num_asked)
    test: list[Passage] = []
    while documents and len(test) < most:
        test += documents.pop()
    train = [passage for document in documents for passage in document]
    train, test = train[: round(share * num_labelled)], test[:most]
    if not train:
        return None
    counts = Counter(mark for passage in train for mark in passage.marks)
    least = MIN_MARK_SHARE * counts.total()
    kept = {mark for mark, count in counts.items() if mark and count >= least}

    def keep(passages: list[Passage]) -> list[Passage]:
        return [
            Passage(words, [mark if mark in kept else "" for mark in marks])
            for words, marks in passages
        ]

    return PunctuationQuestion(keep(train), keep(test)) if kept else None


def read_documents(shard: Shard, shards: Shards) -> Iterator[list[str]]:
    """Yield the tokens of each document of a shard."""
    bounds = [*shard.documents.tolist(), len(shard.tokens)]
    for start, stop in itertools.pairwise(bounds):
        yield shards.tokenizer.tokens(shard.tokens[start:stop].tolist())


def join_documents(documents: Iterable[list[str]]) -> Iterator[list[str]]:
    """Yield the documents, short ones joined until they have MIN_TOKENS; the last may be short."""
    joined: list[str] = []
    for tokens in documents:
        joined += tokens
        if len(joined) >= MIN_TOKENS:
            yield joined
            joined = []
    if joined:
        yield joined


def cut_passages(tokens: list[str]) -> Iterator[Passage]:
    """Yield the passages of a document; words that the vocabulary cannot spell are left out."""
    words: list[str] = []
    marks: list[str] = []
    for token in tokens:
        if token.startswith("##") and words:
            words[-1] += token[2:]
        elif token in MARKS:
            if words and not marks[-1]:
                marks[-1] = token
        elif token != "[UNK]" and (word := token.removeprefix("▁")):
            words.append(word)
            marks.append("")
    for start in range(0, len(words) - WINDOW_WORDS + 1, WINDOW_WORDS):
        stop = start + WINDOW_WORDS
        yield Passage(words[start:stop], marks[start:stop])


def write_passages(passages: list[Passage], path: Path) -> None:
    """Write passages as a file of words and tags for `electra finetune --task tagging`."""
    lines = (
        "".join(
            f"{word}\t{'B-' + mark if mark else 'O'}\n"
            for word, mark in zip(passage.words, passage.marks, strict=True)
        )
        for passage in passages
    )
    write_text(path, "\n".join(lines))
