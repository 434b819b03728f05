"""What a tokenizer does with a text, and the contents of a shards folder."""

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, dataclass, field
from functools import cache
from itertools import chain
from typing import Any

import numpy as np
import torch
from fontTools import unicodedata as fonttools

from electra.errors import require
from electra.method.config import MethodConfig
from electra.method.masking import Masking, Vocabulary
from electra.processes import Tell, silent
from electra.reports.rendering import Table
from electra.shards.config import ExamplesConfig
from electra.shards.examples import Examples
from electra.shards.store import Shard, Shards
from electra.text.characters import break_words
from electra.tokenizing.tokenizer import Tokenizer

SAMPLE_CHARS = 10_000_000
"""Characters of a text that are looked at; a share of the text says as much as the whole."""
NUM_LONGEST = 10
NUM_SAMPLES = 5
MAX_SAMPLE_CHARS = 200
SHOWN_CHARS, SHOWN_TOKENS = 24, 12
COUNTED = ("shards", "tokens", "documents", "lines")
Sections = dict[str, Table | list[str]]
"""The fields under each headline; the first has none."""
SAMPLED_DOCUMENTS, SAMPLED_TOKENS = 2000, 2000
"""Documents of each part whose scripts are counted, at equal distances."""

DIGITS, SIGNS = "digits", "signs"
LETTERS = ("Lu", "Ll", "Lt", "Lo")


@cache
def script_of(char: str) -> str:
    """Return the script of a letter, such as "Latin" or "Old Italic", or "digits", or "signs".

    Marks that go with any script, such as accents and variation selectors, are signs.
    """
    category = unicodedata.category(char)
    if category == "Nd":
        return DIGITS
    if category[0] not in "LM":
        return SIGNS
    plain = unicodedata.normalize("NFKC", char)  # of a superscript or a wide letter, the letter
    letter = next((each for each in plain if unicodedata.category(each) in LETTERS), char)
    script = fonttools.script_name(fonttools.script(letter))
    if script not in ("Common", "Inherited", "Unknown"):
        return script
    known = [fonttools.script_name(code) for code in fonttools.script_extension(letter)]
    if len(known) == 1 and known != [script]:
        return known[0]
    # Among several scripts, that which the name begins with: KATAKANA-HIRAGANA, ARABIC FATHATAN.
    first = unicodedata.name(letter, SIGNS).split()[0].split("-")[0].capitalize()
    return first if first in known else SIGNS


def script_of_word(word: str) -> str:
    """Return the script of a word: that of its first letter, else digits or signs."""
    scripts = [script_of(char) for char in word]
    letters = (script for script in scripts if script not in (DIGITS, SIGNS))
    return next(letters, DIGITS if DIGITS in scripts else SIGNS)


@dataclass
class Share:
    """Counts of the words of one script."""

    words: int = 0
    characters: int = 0
    bytes: int = 0
    """In UTF-8."""
    tokens: int = 0
    unknown: int = 0
    """Unknown tokens."""
    split: int = 0
    """Words of several tokens."""
    marks_removed: int = 0
    """Combining marks that normalisation removes, after decomposition: accents, and in some scripts
    vowels."""

    def add(self, count: int, word: str, ids: Sequence[int], tokenizer: Tokenizer) -> None:
        """Count a word that occurs `count` times."""
        marks = unicodedata.normalize("NFD", word) if tokenizer.strip_accents else ""
        self.words += count
        self.characters += count * len(word)
        self.bytes += count * len(word.encode("utf-8", "replace"))
        self.tokens += count * len(ids)
        self.unknown += count * ids.count(tokenizer.unk_id)
        self.split += count * (len(ids) > 1)
        self.marks_removed += count * sum(unicodedata.category(char) == "Mn" for char in marks)

    def row(self) -> dict[str, float]:
        """Return the counts, and their ratios as fractions."""
        words, tokens = max(self.words, 1), max(self.tokens, 1)
        return {
            **asdict(self),
            "tokens_per_word": self.tokens / words,
            "characters_per_token": self.characters / tokens,
            "bytes_per_token": self.bytes / tokens,
            "unknown_share": self.unknown / tokens,
            "split_share": self.split / words,
        }


@dataclass
class TextReport:
    """What a tokenizer does with a text. Words are separated by white space."""

    total: Share = field(default_factory=Share)
    scripts: dict[str, Share] = field(default_factory=dict)
    """By the script of a word's first letter, the most frequent script first."""
    longest: list[tuple[str, list[str]]] = field(default_factory=list)
    """The words of the most tokens, each with its tokens."""
    unknown: list[tuple[str, int]] = field(default_factory=list)
    """The characters outside the vocabulary in the most words, each with the number of words."""
    samples: list[tuple[str, list[str]]] = field(default_factory=list)
    """Lines and their tokens."""

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON can hold it."""
        return {
            "total": self.total.row(),
            "scripts": {name: share.row() for name, share in self.scripts.items()},
            "longest": [{"word": word, "tokens": tokens} for word, tokens in self.longest],
            "unknown": dict(self.unknown),
            "samples": [{"text": text, "tokens": tokens} for text, tokens in self.samples],
        }


def report_text(tokenizer: Tokenizer, lines: Iterable[str]) -> TextReport:
    """Return what a tokenizer does with the first SAMPLE_CHARS of a text; refuse one without words.

    Each word is encoded as in running text, after a space.
    """
    counts: Counter[str] = Counter()
    report = TextReport()
    num_chars = 0
    for line in lines:
        if len(report.samples) < NUM_SAMPLES:
            start = line[:MAX_SAMPLE_CHARS]
            report.samples.append((start, tokenizer.tokens(tokenizer.encode(start))))
        counts.update(line.split())
        num_chars += len(line)
        if num_chars >= SAMPLE_CHARS:
            break
    require(bool(counts), "the text holds no words")
    scripts: dict[str, Share] = defaultdict(Share)
    lengths: list[tuple[int, str]] = []
    suspect: Counter[str] = Counter()
    before = " " if tokenizer.marks_spaces else ""
    words, is_broken = list(counts.items()), tokenizer.kind == "WordPiece"
    for first in range(0, len(words), 4096):
        part = words[first : first + 4096]
        texts = [before + (break_words(word) if is_broken else word) for word, _ in part]
        for (word, count), ids in zip(part, tokenizer.encode_batch(texts), strict=True):
            scripts[script_of_word(word)].add(count, word, ids, tokenizer)
            lengths.append((-len(ids), word))
            if tokenizer.unk_id in ids:
                suspect.update(dict.fromkeys(word, count))
    report.total = Share(*map(sum, zip(*map(astuple, scripts.values()), strict=True)))
    report.scripts = dict(sorted(scripts.items(), key=lambda item: -item[1].words))
    for _, word in sorted(lengths)[:NUM_LONGEST]:
        tokens = tokenizer.encode(before + (break_words(word) if is_broken else word))
        report.longest.append((word[:MAX_SAMPLE_CHARS], tokenizer.tokens(tokens)))
    strange = [each for each in suspect.items() if tokenizer.unk_id in tokenizer.encode(each[0])]
    report.unknown = sorted(strange, key=lambda item: (-item[1], item[0]))[:NUM_LONGEST]
    return report


def describe_text(tokenizer: Tokenizer, report: TextReport) -> Sections:
    """Return what `report_text` found, to be printed."""
    case = "lower-cased" if tokenizer.lowercase else "cased"
    marks = "combining marks removed" if tokenizer.strip_accents else "combining marks kept"
    kept = {
        "words": "words are remembered",
        "spaced words": "words with the space before them are remembered",
        "lines": "nothing is remembered, since ids may depend on a word's neighbours",
    }[tokenizer.independence]
    headers = (
        *("script", "words", "tokens a word", "characters a token", "bytes a token"),
        *("split words", "unknown tokens", "marks removed"),
    )
    formats = {
        **{"words": ",", "tokens_per_word": ".2f", "characters_per_token": ".2f"},
        **{"bytes_per_token": ".2f", "split_share": ".1%", "unknown_share": ".2%"},
        "marks_removed": ",",
    }
    rows = [
        [name, *(format(share.row()[key], spec) for key, spec in formats.items())]
        for name, share in (*report.scripts.items(), ("all", report.total))
    ]
    longest = [
        [
            str(len(tokens)),
            word if len(word) <= SHOWN_CHARS else f"{word[:SHOWN_CHARS]}...",
            " ".join(tokens[:SHOWN_TOKENS]),
        ]
        for word, tokens in report.longest
    ]
    sections: Sections = {
        "": [
            f"{tokenizer.kind}, {tokenizer.vocab_size:,} tokens, {case}, {marks}; {kept}; special "
            f"tokens {' '.join(tokenizer.special_tokens)}"
        ],
        "By script": Table(headers, rows),
        "Words of the most tokens": Table(("tokens", "word", "its first tokens"), longest),
    }
    if report.unknown:
        strange = [[char, f"U+{ord(char):04X}", str(count)] for char, count in report.unknown]
        sections["Characters outside the vocabulary"] = Table(
            ("character", "code", "words"), strange
        )
    samples = [[text, f"    {' '.join(tokens)}"] for text, tokens in report.samples]
    return sections | {"Samples": list(chain.from_iterable(samples))}


def report_shards(shards: Shards, progress: Tell = silent) -> dict[str, Any]:
    """Return the contents of a shards folder whose files were verified.

    Returns:
        "parts": for train and heldout the numbers of tokens, lines, documents and shards, the
        lengths of lines and documents in tokens (least, quartiles, greatest), the share of unknown
        tokens, and the share of each script in the letters of the beginnings of SAMPLED_DOCUMENTS.
        "samples": the beginnings of documents of train, decoded.
        "row": the first row of pre-training: its tokens, segments and masked positions.
    """
    tokenizer = shards.tokenizer
    parts = {"train": shards.train, "heldout": shards.heldout}
    sizes = {name: sum(len(shard.documents) for shard in part) for name, part in parts.items()}
    total = sum(min(size, SAMPLED_DOCUMENTS) for size in sizes.values())
    done = 0
    report: dict[str, Any] = {"parts": {}, "samples": []}
    for name, part in parts.items():
        num_tokens = sum(len(shard.tokens) for shard in part)
        num_unknown = sum(int(np.count_nonzero(s.tokens == tokenizer.unk_id)) for s in part)
        letters: Counter[str] = Counter()
        chosen = np.unique(np.linspace(0, sizes[name] - 1, SAMPLED_DOCUMENTS).astype(int))
        for place, document in enumerate(chosen.tolist()):
            ids = _read_document(part, document)
            text = tokenizer.decode(each for each in ids if each != tokenizer.unk_id)
            letters.update(script_of(char) for char in text if not char.isspace())
            if name == "train" and place % max(1, len(chosen) // NUM_SAMPLES) == 0:
                report["samples"].append(text[:MAX_SAMPLE_CHARS])
            done += 1
            progress(done, total)
        report["parts"][name] = {
            "shards": len(part),
            "tokens": num_tokens,
            "lines": sum(len(shard.lines) for shard in part),
            "documents": sizes[name],
            "line_lengths": _quartiles(_lengths(s.lines, s.tokens) for s in part),
            "document_lengths": _quartiles(_lengths(s.documents, s.tokens) for s in part),
            "unknown_share": num_unknown / num_tokens,
            "scripts": {script: count / letters.total() for script, count in letters.most_common()},
        }
    report["samples"] = report["samples"][:NUM_SAMPLES]
    report["row"] = render_row(shards)
    return report


def describe_shards(shards: Shards, report: dict[str, Any]) -> Sections:
    """Return what `report_shards` found, to be printed."""
    parts = report["parts"]
    counts = [
        [name, *(f"{part[key]:,}" for key in COUNTED), f"{part['unknown_share']:.3%}"]
        for name, part in parts.items()
    ]
    lengths = [
        [f"{unit}s of {name}", *(f"{length:,}" for length in part[f"{unit}_lengths"])]
        for name, part in parts.items()
        for unit in ("document", "line")
    ]
    scripts = {
        name: ", ".join(f"{script} {share:.1%}" for script, share in [*part["scripts"].items()][:8])
        for name, part in parts.items()
    }
    row = {
        segment: " ".join(
            f"[{each['token']}]" if each["masked"] else each["token"]
            for each in report["row"]
            if each["segment"] == segment
        )
        for segment in (0, 1)
    }
    return {
        "": [f"{shards.folder}: every file matches its sha256; digest {shards.digest[:16]}"],
        "Parts": Table(("part", *COUNTED, "unknown"), counts),
        "Lengths in tokens": Table(("", "least", "25%", "median", "75%", "greatest"), lengths),
        "Scripts of sampled documents": [f"{name}: {text}" for name, text in scripts.items()],
        "Documents, decoded": report["samples"],
        "A row of pre-training: [masked] tokens, a line for each segment": [
            f"{segment}: {tokens}" for segment, tokens in row.items() if tokens
        ],
    }


def render_row(shards: Shards) -> list[dict[str, Any]]:
    """Return a row of pre-training: token, segment and whether it is masked, at each position.

    The settings are the defaults of `electra pretrain`, and the seed is 0.
    """
    tokenizer = shards.tokenizer
    batch = Examples(shards.train, tokenizer, ExamplesConfig(), seed=0).batch(0, 1)
    vocabulary = Vocabulary(
        torch.from_numpy(tokenizer.starts_word), tokenizer.mask_id, tokenizer.never_in_text
    )
    draw, _ = Masking(MethodConfig(), vocabulary).draw(batch, torch.Generator().manual_seed(0))
    masked = set(draw.index_BS[0][draw.chosen_BS[0]].tolist())
    ids = batch.input_ids_BL[0].tolist()
    types = batch.token_type_ids_BL[0].tolist()
    return [
        {"token": token, "segment": segment, "masked": place in masked}
        for place, (token, segment) in enumerate(zip(tokenizer.tokens(ids), types, strict=True))
        if ids[place] != tokenizer.pad_id
    ]


def _read_document(part: Sequence[Shard], number: int) -> list[int]:
    for shard in part:
        if number < len(shard.documents):
            start = int(shard.documents[number])
            stop = int(shard.documents[number + 1]) if number + 1 < len(shard.documents) else None
            return shard.tokens[start:stop][:SAMPLED_TOKENS].tolist()
        number -= len(shard.documents)
    raise IndexError(number)


def _lengths(starts: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    return np.diff(starts.astype(np.int64), append=len(tokens))


def _quartiles(lengths: Iterable[np.ndarray]) -> list[int]:
    counts = (np.unique(each, return_counts=True) for each in lengths)  # few of billions differ
    values, numbers = map(np.concatenate, zip(*counts, strict=True))
    places = (0, 0.25, 0.5, 0.75, 1)
    return np.quantile(values, places, weights=numbers, method="inverted_cdf").tolist()
