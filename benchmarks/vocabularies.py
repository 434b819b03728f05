# ruff: noqa: RUF001
"""Tokens of each kind of vocabulary, beside the libraries that train such vocabularies.

    python -m benchmarks.vocabularies --texts FOLDER --fetch --out results/vocabularies.json

FOLDER has a file of lines for each script. With --fetch, it is written from the translations of
LibreOffice that Debian has (`apt-get download`, `dpkg-deb`): its help, and where there is none its
messages, every line once. Without --texts the text is invented: words drawn from a chain of the
characters in a few sentences, frequent and rare ones as in language.

All vocabularies are trained on nine lines of ten, and encode the tenth.
"""

import argparse
import gettext
import random
import subprocess
import tempfile
import time
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from html.parser import HTMLParser
from importlib.metadata import version
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from electra.checkpoints.manifest import find_commit
from electra.files import read_object, write_json, write_text
from electra.reports.rendering import Table, to_markdown
from electra.tokenizing.config import TokenizerConfig
from electra.tokenizing.tokenizer import Tokenizer
from electra.tokenizing.training import ALPHABET_COVERAGE
from electra.training.machine import Machine

LIBRARIES = {
    "wordpiece": ("wordpiece", "tokenizers"),
    "bpe": ("bpe", "tokenizers"),
    "bpe, whole": ("bpe", "sentencepiece"),
    "unigram": ("unigram", "sentencepiece"),
}
PACKAGES = {
    "Latin": "help-de",
    "Cyrillic": "help-ru",
    "Greek": "help-el",
    "Arabic": "l10n-ar",
    "Hebrew": "l10n-he",
    "Devanagari": "help-hi",
    "Bengali": "l10n-bn",
    "Tamil": "l10n-ta",
    "Thai": "l10n-th",
    "Hangul": "help-ko",
    "Hiragana": "help-ja",
    "CJK": "help-zh-cn",
}
"""Script, as Unicode begins the names of its characters, and package: libreoffice-..."""
SOURCES = "sources.json"
"""Of each script the package with its version."""
HELD_OUT = 10
"""The last of so many lines is held out."""
SENTENCES = {
    "Latin": "The old sailor repaired the boat before breakfast and nobody believed her",
    "Cyrillic": "Старый моряк починил лодку ещё до завтрака и никто не поверил ему",
    "Greek": "Ο γέρος ναύτης επισκεύασε τη βάρκα πριν από το πρωινό και κανείς δεν",
    "Arabic": "أصلح البحار العجوز القارب قبل الفطور ولم يصدق أحد الطبيب الشاب",
    "Devanagari": "बूढ़े नाविक ने नाश्ते से पहले नाव की मरम्मत की और किसी ने युवा डॉक्टर पर",
    "Bengali": "বুড়ো নাবিক সকালের খাবারের আগে নৌকা মেরামত করেছিল এবং কেউ বিশ্বাস করেনি",
    "Tamil": "வயதான மாலுமி காலை உணவுக்கு முன் படகை சரிசெய்தார் யாரும் நம்பவில்லை",
    "Thai": "กะลาสีชรา ซ่อมเรือ ก่อนอาหารเช้า และไม่มีใครเชื่อ หมอหนุ่ม ที่อยู่ใกล้",
    "Hangul": "늙은 선원은 아침 식사 전에 배를 고쳤고 아무도 젊은 의사를 믿지 않았다",
    "Han": "老水手 在早饭前 修好了 小船 没有人 相信 住在 港口旁边的 年轻医生",
}


class Row(NamedTuple):
    """Tokens of the same held-out lines, and how many of them are unknown."""

    text: str
    characters: int
    """Of the lines that both were trained on."""
    kind: str
    library: str
    vocab_size: int
    ours: int
    theirs: int
    our_unknown: int
    their_unknown: int


class Paragraphs(HTMLParser):
    """The paragraphs of a page of the help."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.is_inside = False

    def handle_starttag(self, tag: str, attrs: object) -> None:
        """Begin a paragraph."""
        if tag == "p":
            self.found.append("")
            self.is_inside = True

    def handle_endtag(self, tag: str) -> None:
        """End a paragraph."""
        self.is_inside = self.is_inside and tag != "p"

    def handle_data(self, data: str) -> None:
        """Take the text of a paragraph."""
        if self.is_inside:
            self.found[-1] += data


def fetch(texts: Path) -> None:
    """Write a file of lines for each script in PACKAGES."""
    texts.mkdir(parents=True, exist_ok=True)
    sources = {}
    for script, name in PACKAGES.items():
        package = f"libreoffice-{name}"
        with tempfile.TemporaryDirectory() as place:
            subprocess.run(["apt-get", "download", "-q", package], cwd=place, check=True)
            (archive,) = Path(place).glob("*.deb")
            sources[script] = archive.stem.replace("%3a", ":")
            subprocess.run(["dpkg-deb", "-x", archive, place], check=True)
            lines = dict.fromkeys(" ".join(text.split()) for text in read_texts(Path(place)))
            (texts / f"{script}.txt").write_text(
                "".join(f"{line}\n" for line in lines if is_written_in(line, script)),
                encoding="utf-8",
            )
    write_json(texts / SOURCES, sources)


def read_texts(folder: Path) -> Iterator[str]:
    """Yield the paragraphs of the help, and the messages, in the order of their files."""
    for path in sorted(folder.rglob("*.mo")):
        with path.open("rb") as file:
            yield from gettext.GNUTranslations(file)._catalog.values()  # type: ignore[attr-defined]
    for path in sorted(folder.rglob("text/**/*.html")):
        page = Paragraphs()
        page.feed(path.read_text(encoding="utf-8"))
        yield from page.found


def is_written_in(line: str, script: str) -> bool:
    """Return whether at least half of the letters of a line are of a script: not untranslated."""
    letters = [unicodedata.name(char, "") for char in line if char.isalpha()]
    scripts = {"Hiragana": ("HIRAGANA", "KATAKANA", "CJK")}.get(script, (script.upper(),))
    return 2 * sum(letter.startswith(scripts) for letter in letters) > len(letters)


def invent(sentence: str, num_lines: int, num_words: int = 3000) -> list[str]:
    """Return lines of words that look like those of the sentence."""
    rng = random.Random(0)
    chain: dict[str, list[str]] = defaultdict(list)
    for word in sentence.split():
        clusters: list[str] = []
        for char in word:
            is_mark = bool(clusters) and unicodedata.category(char)[0] == "M"
            clusters.append(clusters.pop() + char if is_mark else char)
        for left, right in pairwise(["", *clusters, ""]):
            chain[left].append(right)
    words = {"".join(_walk(chain, rng)): None for _ in range(num_words)}
    weights = [1 / (place + 3) for place in range(len(words))]
    drawn = iter(rng.choices([*words], weights, k=12 * num_lines))
    return [
        f"{' '.join(islice(drawn, 7))} , {' '.join(islice(drawn, 5))} ." for _ in range(num_lines)
    ]


def _walk(chain: dict[str, list[str]], rng: random.Random) -> Iterator[str]:
    cluster = rng.choice(chain[""])
    while cluster:
        yield cluster
        cluster = rng.choice(chain[cluster])


def compare(text: str, kind: str, lines: Sequence[str], vocab_size: int) -> Row:
    """Return the tokens of our vocabulary and a library's, of one kind in LIBRARIES."""
    own, library = LIBRARIES[kind]
    heldout = [*lines[HELD_OUT - 1 :: HELD_OUT]]
    train = [line for number, line in enumerate(lines, 1) if number % HELD_OUT]
    # SentencePiece also takes pairs that occur once.
    once = {"min_frequency": 1} if kind == "bpe, whole" else {}
    config = TokenizerConfig(kind=own, vocab_size=vocab_size, lowercase=False, **once)  # type: ignore[arg-type]
    tokenizer = Tokenizer.train(train, config)
    ours = [*chain.from_iterable(tokenizer.encode_batch(heldout))]
    count = _count_sentencepiece if library == "sentencepiece" else _count_tokenizers
    theirs, unknown = count(own, train, heldout, vocab_size)
    characters, our_unknown = sum(map(len, train)), ours.count(tokenizer.unk_id)
    return Row(text, characters, kind, library, vocab_size, len(ours), theirs, our_unknown, unknown)


def _count_tokenizers(
    kind: str, train: list[str], heldout: list[str], vocab_size: int
) -> tuple[int, int]:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer: Any = trainers.BpeTrainer(
        vocab_size=vocab_size, min_frequency=2, initial_alphabet=alphabet, show_progress=False
    )
    if kind == "wordpiece":
        backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
        backend.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(
            vocab_size=vocab_size, min_frequency=2, special_tokens=["[UNK]"], show_progress=False
        )
    backend.train_from_iterator(train, trainer)
    tokens = [*chain.from_iterable(each.tokens for each in backend.encode_batch(heldout))]
    return len(tokens), tokens.count("[UNK]")


def _count_sentencepiece(
    kind: str, train: list[str], heldout: list[str], vocab_size: int
) -> tuple[int, int]:
    import sentencepiece

    with tempfile.TemporaryDirectory() as folder:
        text, prefix = Path(folder) / "text.txt", Path(folder) / "made"
        text.write_text("\n".join(train), encoding="utf-8")
        sentencepiece.SentencePieceTrainer.train(
            input=str(text), model_prefix=str(prefix), vocab_size=vocab_size, minloglevel=2,
            model_type=kind, byte_fallback=kind == "bpe", character_coverage=ALPHABET_COVERAGE,
            hard_vocab_limit=False, normalization_rule_name="nfkc", max_sentence_length=1 << 20,
        )  # fmt: skip
        model = sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model")
        ids = [*chain.from_iterable(model.encode(heldout))]
        return len(ids), ids.count(model.unk_id())


def main() -> None:
    """Write the results and a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--texts", type=Path, help="a folder with a .txt file for each script")
    parser.add_argument("--fetch", action="store_true", help="write --texts first")
    parser.add_argument("--out", required=True, type=Path, help="the .json file to write")
    parser.add_argument("--vocab-size", type=int, default=8000)
    options = parser.parse_args()
    if options.fetch:
        fetch(options.texts)
    texts = {name: invent(sentence, 3000) for name, sentence in SENTENCES.items()}
    if options.texts:
        paths = sorted(options.texts.glob("*.txt"))
        texts = {path.stem: path.read_text(encoding="utf-8").split("\n") for path in paths}
    listed = options.texts / SOURCES if options.texts else None
    sources = read_object(listed) if listed and listed.exists() else {}
    rows: list[Row] = []
    began = time.monotonic()
    for name, lines in texts.items():
        for kind in LIBRARIES:
            rows.append(compare(name, kind, lines, options.vocab_size))
            left = (len(texts) * len(LIBRARIES) / len(rows) - 1) * (time.monotonic() - began)
            print(f"{name}, {kind}: {rows[-1].ours / rows[-1].theirs - 1:+.1%}; {left:.0f} s left")
    facts = {
        "texts": ", ".join(sources.values()) or ("given" if options.texts else "invented"),
        **{package: version(package) for package in ("tokenizers", "sentencepiece")},
        "device": Machine().name,
        "commit": find_commit(),
    }
    write_json(options.out, {**facts, "rows": [row._asdict() for row in rows]})
    write_text(options.out.with_suffix(".md"), tabulate(facts, rows))


def tabulate(facts: Mapping[str, str | None], rows: Sequence[Row]) -> str:
    """Return the facts, and the tokens with their difference, in Markdown."""
    headers = ["text", "characters", "kind", "vocabulary", "ours", "library", "difference"]
    headers += ["unknown", "of the library's"]
    cells = [
        [
            *(row.text, f"{row.characters:,}", f"{row.kind}, {row.library}"),
            *(f"{number:,}" for number in (row.vocab_size, row.ours, row.theirs)),
            *(f"{row.ours / row.theirs - 1:+.1%}", f"{row.our_unknown:,}"),
            f"{row.their_unknown:,}",
        ]
        for row in rows
    ]
    told = "; ".join(f"{name}: {value}" for name, value in facts.items())
    head = f"`python -m benchmarks.vocabularies`: tokens of held-out lines. {told}."
    return f"{head}\n\n{to_markdown(Table(headers, cells))}\n"


if __name__ == "__main__":
    main()
