"""Neighbouring passages of a document: training pairs for retrieval from text without labels.

Source: Izacard et al. 2022, "Unsupervised Dense Information Retrieval with Contrastive Learning"
(section 3.2), where two crops of a document are drawn at random instead.
"""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from electra.errors import require
from electra.files import make_folder, new_file
from electra.text.documents import Reader
from electra.text.sources import find_sources

SENTENCE_END = re.compile(r"(?<=[.!?]\s)|(?<=[。\uff01\uff1f।])")


def split_passages(lines: Iterable[str], chars: int) -> list[str]:
    """Return the passages of a document: as many whole sentences as have at most `chars` together.

    A longer sentence is a passage of its own. A sentence without a full stop ends with its line.
    """
    passages: list[str] = []
    for sentence in (each for line in lines for each in SENTENCE_END.split(f"{line} ") if each):
        if passages and len(passages[-1]) + len(sentence.rstrip()) <= chars:
            passages[-1] += sentence
        else:
            passages.append(sentence)
    return [text for each in passages if (text := each.strip())]


def write_pairs(out: Path, texts: Sequence[str], chars: int) -> int:
    """Write neighbouring passages of texts as JSON lines, and return their number.

    In each document the first passage is the `query` of the second, `positive`, the third that of
    the fourth, and so on. `texts` are as for `find_sources`.
    """
    require(chars >= 1, f"chars must be 1 or more, not {chars}")
    documents, count = Reader(border="auto").read(find_sources(texts).files), 0
    make_folder(out.parent)
    with new_file(out) as incomplete, incomplete.open("w", encoding="utf-8") as file:
        for passages in (split_passages(lines, chars) for lines in documents):
            for query, positive in zip(passages[::2], passages[1::2], strict=False):
                file.write(json.dumps({"query": query, "positive": positive}) + "\n")
                count += 1
        listed = ", ".join(texts)
        require(count > 0, f"{listed}: no document has two passages of {chars:,} characters; take "
                "longer documents, or a smaller chars")  # fmt: skip
    return count
