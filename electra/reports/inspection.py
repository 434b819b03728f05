"""What a tokenizer does with a text, and what lies in a shards folder."""

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch

from electra.config import ExamplesConfig, MethodConfig
from electra.errors import require
from electra.method.masking import Masking, Vocabulary
from electra.shards.examples import Examples
from electra.shards.store import Shard, Shards
from electra.tokenizing.tokenizer import Tokenizer
from electra.tokenizing.training import script_of, script_of_word
from electra.tokenizing.vocabulary import break_words

SAMPLE_CHARS = 10_000_000
"""Characters of a text that are looked at; a share of the text says as much as the whole."""
NUM_LONGEST = 10
NUM_SAMPLES = 5
MAX_SAMPLE_CHARS = 200
SAMPLED_DOCUMENTS = 2000
"""Documents of each part whose scripts are counted, at equal distances."""


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

    def row(self) -> dict[str, float]:
        """Return the counts, and their ratios as fractions."""
        return {
            **asdict(self),
            "tokens_per_word": self.tokens / max(self.words, 1),
            "characters_per_token": self.characters / max(self.tokens, 1),
            "bytes_per_token": self.bytes / max(self.tokens, 1),
            "unknown_share": self.unknown / max(self.tokens, 1),
            "split_share": self.split / max(self.words, 1),
        }


@dataclass
class TextReport:
    """What a tokenizer does with a text. Words are what stands between white space."""

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
    """Return what a tokenizer does with the first SAMPLE_CHARS of a text.

    Each word is encoded as it is in running text, after a space.

    Raises:
        UserError: There is no text.
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
    strange: Counter[str] = Counter()
    words = list(counts)
    before = " " if tokenizer.marks_spaces else ""
    for first in range(0, len(words), 4096):
        part = words[first : first + 4096]
        texts = [before + (break_words(word) if tokenizer.is_bert else word) for word in part]
        for word, ids in zip(part, tokenizer.encode_batch(texts), strict=True):
            count = counts[word]
            num_unknown = ids.count(tokenizer.unk_id)
            marks = unicodedata.normalize("NFD", word) if tokenizer.strip_accents else ""
            for share in (scripts[script_of_word(word)], report.total):
                share.words += count
                share.characters += count * len(word)
                share.bytes += count * len(word.encode("utf-8", "replace"))
                share.tokens += count * len(ids)
                share.unknown += count * num_unknown
                share.split += count * (len(ids) > 1)
                share.marks_removed += count * sum(
                    unicodedata.category(char) == "Mn" for char in marks
                )
            lengths.append((len(ids), word))
            if num_unknown:
                for char in set(word):
                    if tokenizer.unk_id in tokenizer.encode(char):
                        strange[char] += count
    report.scripts = dict(sorted(scripts.items(), key=lambda item: -item[1].words))
    for _, word in sorted(lengths, key=lambda each: (-each[0], each[1]))[:NUM_LONGEST]:
        shown = word[:MAX_SAMPLE_CHARS]
        report.longest.append((shown, tokenizer.tokens(tokenizer.encode(before + shown))))
    report.unknown = sorted(strange.items(), key=lambda item: (-item[1], item[0]))[:NUM_LONGEST]
    return report


def report_shards(
    shards: Shards, progress: Callable[[int, int], None] = lambda done, total: None
) -> dict[str, Any]:
    """Return what lies in a shards folder whose files were verified.

    Args:
        shards: The folder.
        progress: Called with the number of documents looked at, and of all that will be.

    Returns:
        "parts": for train and heldout the numbers of tokens, lines, documents and shards, the
        lengths of lines and documents in tokens (least, quartiles, greatest), the share of unknown
        tokens, and the share of each script in the letters of SAMPLED_DOCUMENTS.
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
            "line_lengths": _quartiles([_lengths(s.lines, s.tokens) for s in part]),
            "document_lengths": _quartiles([_lengths(s.documents, s.tokens) for s in part]),
            "unknown_share": num_unknown / num_tokens,
            "scripts": {script: count / letters.total() for script, count in letters.most_common()},
        }
    report["samples"] = report["samples"][:NUM_SAMPLES]
    report["row"] = render_row(shards)
    return report


def render_row(shards: Shards, step: int = 0) -> list[dict[str, Any]]:
    """Return a row of pre-training: token, segment and whether it is masked, at each position.

    The settings are the defaults of `electra pretrain`, and the seed is 0.
    """
    tokenizer = shards.tokenizer
    batch = Examples(shards.train, tokenizer, ExamplesConfig(), seed=0).batch(step, 1)
    vocabulary = Vocabulary(
        torch.from_numpy(tokenizer.starts_word), tokenizer.mask_id, tokenizer.never_in_text
    )
    draw = Masking(MethodConfig(), vocabulary).draw(batch, torch.Generator().manual_seed(0))
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
            return shard.tokens[start:stop][:SAMPLED_DOCUMENTS].tolist()
        number -= len(shard.documents)
    raise IndexError(number)


def _lengths(starts: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    return np.diff(starts.astype(np.int64), append=len(tokens))


def _quartiles(lengths: Sequence[np.ndarray]) -> list[int]:
    return np.quantile(np.concatenate(lengths), (0, 0.25, 0.5, 0.75, 1)).astype(int).tolist()
