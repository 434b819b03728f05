"""What `electra inspect` prints."""

from collections.abc import Sequence
from typing import Any

from electra.reports.inspection import Share, TextReport
from electra.shards.store import Shards
from electra.terminal.printing import print_done, print_step, print_table
from electra.tokenizing.tokenizer import Tokenizer

SHOWN_CHARS, SHOWN_TOKENS = 24, 12


def print_text_report(tokenizer: Tokenizer, report: TextReport) -> None:
    """Print what a tokenizer does with a text."""
    case = "lower-cased" if tokenizer.lowercase else "cased"
    marks = "combining marks removed" if tokenizer.strip_accents else "combining marks kept"
    kept = {
        "words": "words are remembered",
        "spaced words": "words with the space before them are remembered",
        "lines": "nothing is remembered, since ids may depend on a word's neighbours",
    }[tokenizer.independence]
    print_done(
        f"{tokenizer.kind}, {tokenizer.vocab_size:,} tokens, {case}, {marks}; {kept}; special "
        f"tokens {' '.join(tokenizer.special_tokens)}"
    )
    print_step("By script")
    headers = (
        *("script", "words", "tokens a word", "characters a token", "bytes a token"),
        *("split words", "unknown tokens", "marks removed"),
    )
    rows = [*report.scripts.items(), ("all", report.total)]
    print_table([_script_row(name, share) for name, share in rows], headers)
    print_step("Words of the most tokens")
    print_table(
        [
            (len(tokens), _shorten(word), " ".join(tokens[:SHOWN_TOKENS]))
            for word, tokens in report.longest
        ],
        ("tokens", "word", "its first tokens"),
    )
    if report.unknown:
        print_step("Characters outside the vocabulary")
        rows_of_chars = [(char, f"U+{ord(char):04X}", count) for char, count in report.unknown]
        print_table(rows_of_chars, ("character", "code", "words"))
    print_step("Samples")
    for text, tokens in report.samples:
        print_done(text)
        print_done(f"    {' '.join(tokens)}")


def _shorten(word: str) -> str:
    return word if len(word) <= SHOWN_CHARS else f"{word[:SHOWN_CHARS]}..."


def _script_row(name: str, share: Share) -> tuple[str, ...]:
    row = share.row()
    return (
        name,
        f"{share.words:,}",
        f"{row['tokens_per_word']:.2f}",
        f"{row['characters_per_token']:.2f}",
        f"{row['bytes_per_token']:.2f}",
        f"{row['split_share']:.1%}",
        f"{row['unknown_share']:.2%}",
        f"{share.marks_removed:,}",
    )


def print_shards_report(shards: Shards, report: dict[str, Any]) -> None:
    """Print what lies in a shards folder whose files were verified."""
    print_done(f"{shards.folder}: every file matches its sha256; digest {shards.digest[:16]}")
    rows = []
    for name, part in report["parts"].items():
        counts = (f"{part[key]:,}" for key in ("shards", "tokens", "documents", "lines"))
        rows.append((name, *counts, f"{part['unknown_share']:.3%}"))
    print_table(rows, ("part", "shards", "tokens", "documents", "lines", "unknown"))
    print_step("Lengths in tokens")
    lengths = [
        (f"{unit}s of {name}", *(f"{length:,}" for length in part[f"{unit}_lengths"]))
        for name, part in report["parts"].items()
        for unit in ("document", "line")
    ]
    print_table(lengths, ("", "least", "25%", "median", "75%", "greatest"))
    print_step("Scripts of sampled documents")
    for name, part in report["parts"].items():
        shares = list(part["scripts"].items())[:8]
        print_done(f"{name}: {', '.join(f'{script} {share:.1%}' for script, share in shares)}")
    print_step("Documents, decoded")
    for text in report["samples"]:
        print_done(text)
    print_step("A row of pre-training: [masked] tokens, a line for each segment")
    _print_row(report["row"])


def _print_row(row: Sequence[dict[str, Any]]) -> None:
    for segment in (0, 1):
        tokens = [each for each in row if each["segment"] == segment]
        shown = (f"[{each['token']}]" if each["masked"] else each["token"] for each in tokens)
        if tokens:
            print_done(f"{segment}: {' '.join(shown)}")
