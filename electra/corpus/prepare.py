"""From text to token shards: one process reads and writes, a pool of processes tokenises.

The ids of a word do not depend on its context, because BERT's normalisation and WordPiece never
look past a space. So each process caches the ids of words and calls the tokenizer for new words
only. The ids are the same, several times faster than tokenising line by line. Of other tokenizers
line_encoder.py knows what may be cached.
"""

import dataclasses
import json
import multiprocessing
import os
import re
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from electra.config import PrepareConfig, UserError, require
from electra.corpus.compression import STDIN
from electra.corpus.line_encoder import LineEncoder
from electra.corpus.shards import FORMAT, PARTS, VERSION, ShardWriter, tokens_dtype
from electra.corpus.sources import find_sources
from electra.corpus.text import TextCounts, read_documents
from electra.corpus.tokenizer import Tokenizer
from electra.corpus.vocabulary import break_words, replace_surrogates
from electra.files import new_folder
from electra.processes import follow_parent, usable_cores

TellProgress = Callable[[int, int | None, int], None]
"""Called with source bytes read, source bytes in total (None: unknown) and tokens written."""

BATCH_CHARS = 1 << 20
MAX_REMEMBERED_WORDS = 1 << 19
"""Words in the cache of one process, about 100 MB. A full cache is emptied."""
MAX_REMEMBERED_CHARS = 64
PARTS_OF_WORD = re.compile(r"[!-/:-@\[-`{-~]|[^!-/:-@\[-`{-~]+")
SECONDS_BETWEEN_REPORTS = 0.25


class TokenBatch(NamedTuple):
    """Tokens of some documents. Lines and documents without tokens are left out."""

    tokens: np.ndarray
    line_lengths: np.ndarray
    document_lengths: np.ndarray
    num_unknown: int


class WordEncoder(dict[str, bytes]):
    """Cache from words to their ids as bytes. The tokenizer encodes a word that is missing."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.dtype = np.dtype(tokens_dtype(tokenizer.vocab_size))
        self.other = LineEncoder(tokenizer, tokens_dtype(tokenizer.vocab_size))

    def __missing__(self, word: str) -> bytes:
        # ASCII punctuation is always a separate word, so most new words consist of cached parts.
        parts = PARTS_OF_WORD.findall(word)
        if len(parts) > 1:
            content = b"".join(map(self.__getitem__, parts))
        else:
            content = np.array(self.tokenizer.encode(break_words(word)), self.dtype).tobytes()
        if len(word) <= MAX_REMEMBERED_CHARS:
            if len(self) >= MAX_REMEMBERED_WORDS:
                self.clear()
            self[word] = content
        return content

    def _encode_lines(self, lines: Sequence[str]) -> Iterable[bytes]:
        if not self.tokenizer.is_bert:
            return self.other.encode_lines(lines)
        return (b"".join(map(self.__getitem__, line.split(" "))) for line in lines)

    def encode_documents(self, documents: Sequence[str]) -> TokenBatch:
        """Return the tokens of documents. The lines of a document are joined by line feeds."""
        contents: list[bytes] = []
        line_sizes: list[int] = []
        document_sizes: list[int] = []
        for document in documents:
            size = 0
            for content in self._encode_lines(document.split("\n")):
                # A line of control characters only has no tokens.
                if content:
                    contents.append(content)
                    line_sizes.append(len(content))
                    size += len(content)
            if size:
                document_sizes.append(size)
        tokens = np.frombuffer(b"".join(contents), self.dtype)
        return TokenBatch(
            tokens,
            np.array(line_sizes, np.int64) // self.dtype.itemsize,
            np.array(document_sizes, np.int64) // self.dtype.itemsize,
            int(np.count_nonzero(tokens == self.tokenizer.unk_id)),
        )


def prepare(
    paths: Sequence[str],
    tokenizer: Tokenizer,
    out: str | Path,
    config: PrepareConfig,
    progress: TellProgress | None = None,
) -> dict[str, Any]:
    """Write the shards folder `out` and return its manifest.

    The same text gives the same bytes for any number of workers. After an error or an interrupt no
    partial folder is left.

    Args:
        paths: Files, folders and patterns, as for `find_sources`.
        tokenizer: Its copy becomes part of the shards folder.
        out: The folder to write; must not exist.
        config: Document borders, held-out share, shard size and number of workers.
        progress: Called a few times a second and once at the end.

    Raises:
        UserError: A path is wrong or damaged, `out` exists, or there is too little text.
        OSError: A folder cannot be listed, or `out` cannot be written.
    """
    sources = find_sources(paths)
    files = sources.files
    counts = TextCounts()
    with new_folder(Path(out)) as folder:
        tokenizer.save(folder / "tokenizer")
        with ExitStack() as stack:
            train, heldout = (
                stack.enter_context(
                    ShardWriter(
                        folder,
                        part,
                        vocab_size=tokenizer.vocab_size,
                        shard_tokens=config.shard_tokens,
                    )
                )
                for part in PARTS
            )
            documents = stack.enter_context(
                closing(
                    read_documents(
                        files, border=config.border, text_field=config.text_field, counts=counts
                    )
                )
            )
            batches = stack.enter_context(closing(_encode(documents, tokenizer, config.workers)))
            report = _throttle(progress, files, counts)
            num_unknown, heldout_rule = _write_batches(batches, train, heldout, config, report)
            parts = {"train": train.finish(), "heldout": heldout.finish()}
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "dtype": tokens_dtype(tokenizer.vocab_size),
            "vocab_size": tokenizer.vocab_size,
            "tokenizer_digest": tokenizer.digest,
            "source_files": [replace_surrogates(path.name) for path in files],
            "passed_over": len(sources.passed_over),
            "text": dataclasses.asdict(counts),
            "unk_tokens": num_unknown,
            "heldout": heldout_rule,
            # The number of workers does not change the shards, so the manifest leaves it out.
            "config": {k: v for k, v in dataclasses.asdict(config).items() if k != "workers"},
            "parts": parts,
        }
        content = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
        (folder / "manifest.json").write_text(content, encoding="utf-8", newline="\n")
    return manifest


def _write_batches(
    batches: Iterable[TokenBatch],
    train: ShardWriter,
    heldout: ShardWriter,
    config: PrepareConfig,
    report: Callable[[int, bool], None],
) -> tuple[int, str]:
    """Write each document to its part; return the count of [UNK] and the rule of the held-out part.

    The rule is the description of the split for the manifest.
    """
    num_documents = num_heldout = num_tokens = num_unknown = 0
    rule = "documents chosen by a hash of (seed, number)"
    for batch, is_last in _mark_last(batches):
        size = len(batch.document_lengths)
        is_heldout = choose_heldout(num_documents, size, config.heldout_prob, config.seed)
        num_documents += size
        num_heldout += int(is_heldout.sum())
        # With few documents the hash can leave a part empty. Neither part may be empty.
        if is_last and num_documents == 1:
            batch, rule = _split_document(batch, config.heldout_prob)
            is_heldout = np.array([False, True])
        elif is_last and num_heldout in (0, num_documents):
            is_heldout[-1] = num_heldout == 0
            rule = "the last document" if num_heldout == 0 else "all but the last document"
        train.write(*_select(batch, ~is_heldout))
        heldout.write(*_select(batch, is_heldout))
        num_tokens += len(batch.tokens)
        num_unknown += batch.num_unknown
        report(num_tokens, is_last)
    require(num_documents > 0, "the files hold no text, only white space")
    return num_unknown, rule


def _split_document(batch: TokenBatch, heldout_prob: float) -> tuple[TokenBatch, str]:
    """Return the only document split in two, and the rule. The second half is held out."""
    num_tokens, num_lines = len(batch.tokens), len(batch.line_lengths)
    require(num_tokens > 1, "the text is a single token; there is nothing to hold out")
    if num_lines > 1:
        num_last = max(1, round(heldout_prob * num_lines))
        line_lengths = batch.line_lengths
        last_tokens = int(line_lengths[-min(num_last, num_lines - 1) :].sum())
        rule = "the last lines of the only document"
    else:
        last_tokens = min(max(1, round(heldout_prob * num_tokens)), num_tokens - 1)
        line_lengths = np.array([num_tokens - last_tokens, last_tokens])
        rule = "the last tokens of the only line"
    document_lengths = np.array([num_tokens - last_tokens, last_tokens])
    return TokenBatch(batch.tokens, line_lengths, document_lengths, batch.num_unknown), rule


def _select(batch: TokenBatch, is_chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the tokens, line lengths and document lengths of the chosen documents."""
    if is_chosen.all():
        return batch.tokens, batch.line_lengths, batch.document_lengths
    document_ends = np.cumsum(batch.document_lengths)
    document_of_line = np.searchsorted(document_ends, np.cumsum(batch.line_lengths))
    return (
        batch.tokens[np.repeat(is_chosen, batch.document_lengths)],
        batch.line_lengths[is_chosen[document_of_line]],
        batch.document_lengths[is_chosen],
    )


def _throttle(
    progress: TellProgress | None, files: Sequence[Path], counts: TextCounts
) -> Callable[[int, bool], None]:
    """Return a function that reports progress a few times a second, and once at the end."""
    is_known = all(path != STDIN and path.is_file() for path in files)
    total = sum(path.stat().st_size for path in files) if is_known else None
    told = 0.0

    def report(num_tokens: int, is_last: bool) -> None:
        nonlocal told
        if progress and (is_last or time.monotonic() - told >= SECONDS_BETWEEN_REPORTS):
            told = time.monotonic()
            progress(counts.source_bytes, total, num_tokens)

    return report


def choose_heldout(first: int, num_documents: int, prob: float, seed: int) -> np.ndarray:
    """Return which documents are held out, as booleans (num_documents,).

    The choice depends on the seed and the document's number only.

    Args:
        first: Number of the first document.
        num_documents: How many documents to choose from.
        prob: Probability that a document is held out.
        seed: Seed of the choice.

    Source: the finaliser of SplitMix64, applied to the document's number.
    """
    with np.errstate(over="ignore"):
        state = np.arange(first, first + num_documents, dtype=np.uint64)
        state += np.uint64(seed % 2**64) * np.uint64(0xD1342543DE82EF95)
        state = (state + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    return state.astype(np.float64) < prob * 2.0**64


def _encode(
    documents: Iterable[list[str]], tokenizer: Tokenizer, workers: int
) -> Generator[TokenBatch]:
    """Yield the tokens of the documents in batches, in the order of the documents."""
    batches = _batch_documents(documents)
    workers = workers or usable_cores()
    if workers == 1:
        yield from map(WordEncoder(tokenizer).encode_documents, batches)
        return
    pool = ProcessPoolExecutor(
        workers,
        # A forked process can hang if its parent had threads, as torch and tokenizers have.
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
        initargs=(tokenizer,),
    )
    pending: deque[Future[TokenBatch]] = deque()
    try:
        for batch in batches:
            pending.append(pool.submit(_encode_in_worker, batch))
            if len(pending) > 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool:
        raise UserError(
            "a tokenising process was killed, possibly for lack of memory; "
            f"try fewer workers than {workers}"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _batch_documents(documents: Iterable[list[str]]) -> Iterator[list[str]]:
    batch: list[str] = []
    num_chars = 0
    for lines in documents:
        batch.append("\n".join(lines))
        num_chars += len(batch[-1])
        if num_chars >= BATCH_CHARS:
            yield batch
            batch, num_chars = [], 0
    if batch:
        yield batch


_worker_encoder: WordEncoder


def _start_worker(tokenizer: Tokenizer) -> None:
    global _worker_encoder
    follow_parent()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _worker_encoder = WordEncoder(tokenizer)


def _encode_in_worker(documents: list[str]) -> TokenBatch:
    return _worker_encoder.encode_documents(documents)


def _mark_last(batches: Iterable[TokenBatch]) -> Iterator[tuple[TokenBatch, bool]]:
    """Yield each batch that has tokens, and whether it is the last one."""
    previous = None
    for batch in batches:
        if len(batch.tokens):
            if previous is not None:
                yield previous, False
            previous = batch
    if previous is not None:
        yield previous, True
