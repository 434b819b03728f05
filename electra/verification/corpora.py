"""Claims of a tokenizer and of shards: files as they are written, counts, and the text's tokens."""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import numpy as np

from electra.assignments import from_dict
from electra.errors import count_of, require
from electra.files import HASHES
from electra.pretraining.replay import Absent
from electra.shards.cleaning import Filters
from electra.shards.config import PrepareConfig
from electra.shards.layout import COLUMNS
from electra.shards.pieces import list_pieces, read_texts
from electra.shards.store import Shard, Shards, open_shards
from electra.text.documents import TextCounts
from electra.text.sources import find_sources
from electra.tokenizing.tokenizer import Tokenizer
from electra.tokenizing.words import make_encoder
from electra.verification.claims import Claims

DOCUMENTS = 200
"""Documents of the text that are tokenized again."""
BLOCK = 1 << 22
"""Tokens that are looked at at a time."""


def verify_tokenizer(claims: Claims, folder: Path) -> None:
    """Prove the claims of a tokenizer's folder."""
    claims.compare_hashes(folder)
    prove_tokenizer(claims, folder)


def prove_tokenizer(claims: Claims, folder: Path) -> None:
    """Compare the files of a tokenizer with those that its vocabulary is written as."""
    with claims.prove(
        "tokenizer.json: it is read, and its files are those of one vocabulary"
    ) as tell:
        tokenizer = Tokenizer.load(folder)
        with tempfile.TemporaryDirectory() as temporary:
            written = Path(temporary) / "tokenizer"
            tokenizer.save(written)
            for path in (each for each in sorted(written.iterdir()) if each.name != HASHES):
                own = folder / path.name
                require(own.is_file(), f"{own} is missing")
                same = own.read_bytes() == path.read_bytes()
                require(same, f"{own} is not the file that this vocabulary writes")
        tell(f"{tokenizer.kind}, {tokenizer.vocab_size:,} tokens")


def verify_shards(claims: Claims, folder: Path, text: Sequence[str] = ()) -> None:
    """Prove the claims of a shards folder; `text` is what it was prepared from, if at hand."""
    claims.compare_hashes(folder)
    prove_tokenizer(claims.inside("tokenizer"), folder / "tokenizer")
    shards: Shards | None = None
    with claims.prove("manifest.json: it fits the files and the tokenizer") as tell:
        shards = open_shards(folder, verify=False)
        tell(f"digest {shards.digest[:16]}")
    if shards is None:
        return
    with claims.prove("manifest.json: tokens, lines and documents are counted again") as tell:
        tell(_count(shards))
    with claims.prove(f"the first {DOCUMENTS} documents of the text have these tokens") as tell:
        if not text:
            raise Absent("--text names the text, as it was given to electra prepare")
        tell(_tokenize(shards, text))


def _count(shards: Shards) -> str:
    """Return the counts of all shards; refuse those that are not the manifest's."""
    unknown = 0
    for name, part in (("train", shards.train), ("heldout", shards.heldout)):
        entry = shards.manifest["parts"][name]
        sums = dict.fromkeys(COLUMNS, 0)
        for shard in part:
            unknown += _count_unknown(shard, shards.tokenizer)
            for column in COLUMNS:
                sums[column] += len(shard.read(column))
            for starts in (shard.lines, shard.documents):
                rises = starts[0] == 0 and (np.diff(starts.astype(np.int64)) > 0).all()
                right = rises and starts[-1] < len(shard.tokens)
                require(bool(right), f"{shard.path}: its lines or documents are not in order")
        for column, number in sums.items():
            said = entry[f"num_{column}"]
            require(said == number, f"{name} has {number:,} {column}, not {said:,}")
    said = shards.manifest["unk_tokens"]
    require(said == unknown, f"unk_tokens must be {unknown:,}, not {said:,}")
    parts = shards.manifest["parts"]
    return (
        f"{parts['train']['num_tokens']:,} and {parts['heldout']['num_tokens']:,} held-out tokens"
    )


def _count_unknown(shard: Shard, tokenizer: Tokenizer) -> int:
    """Return the unknown tokens of a shard; refuse ids that no token has."""
    count = 0
    for start in range(0, len(shard.tokens), BLOCK):
        part = shard.tokens[start : start + BLOCK]
        require(int(part.max()) < tokenizer.vocab_size, f"{shard.path}.tokens: ids without token")
        count += int(np.count_nonzero(part == tokenizer.unk_id))
    return count


def _tokenize(shards: Shards, text: Sequence[str]) -> str:
    """Return how many documents of the text are in the shards, in order; refuse other shards."""
    manifest = shards.manifest
    config = from_dict(PrepareConfig, {**asdict(PrepareConfig()), **manifest["config"]})
    files, tokenizer = find_sources(text, config).files, shards.tokenizer
    pieces, names = list_pieces(files, config, tokenizer.digest), tokenizer.names
    read = (each for piece in pieces for each in read_texts(piece, TextCounts(), names))
    filters = Filters(config)
    texts = [each for each in islice(read, DOCUMENTS) if not filters.judge_text(each)]
    batch = make_encoder(tokenizer).encode_documents(texts)
    expected = np.split(batch.tokens, np.cumsum(batch.document_lengths)[:-1])
    parts = [_Reader(shards.train), _Reader(shards.heldout)]
    found = [tokens for tokens in expected if any(part.take(tokens) for part in parts)]
    some = [tokens for tokens in expected if len(tokens)]
    if len(some) == 1 and not found:  # the only document is divided
        found = some if np.array_equal(np.concatenate([p.rest() for p in parts]), some[0]) else []
    missing, dropped = len(some) - len(found), sum(manifest["dropped"].values())
    require(
        bool(found) and missing <= dropped,
        f"{missing:,} of {len(some):,} documents are not in the shards, which dropped {dropped:,}",
    )
    return count_of(len(found), "document")


class _Reader:
    """The documents of a part, one after the other."""

    def __init__(self, part: Sequence[Shard]) -> None:
        self.documents = self._read(part)
        self.next = next(self.documents, None)

    def _read(self, part: Sequence[Shard]) -> Iterator[np.ndarray]:
        for shard in part:
            ends = (*shard.documents[1:].tolist(), len(shard.tokens))
            for start, end in zip(shard.documents.tolist(), ends, strict=True):
                yield shard.tokens[start:end]

    def take(self, tokens: np.ndarray) -> bool:
        """Return whether the next document is this one, and continue to the one behind it."""
        is_next = self.next is not None and np.array_equal(self.next, tokens)
        if is_next:
            self.next = next(self.documents, None)
        return is_next

    def rest(self) -> np.ndarray:
        """Return the tokens of the next document."""
        return np.empty(0, np.int64) if self.next is None else self.next
