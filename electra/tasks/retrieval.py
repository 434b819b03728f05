"""Retrieval: each text gets a vector, and a query's vector is near those of its right passages.

Query and passage are separate rows, read by the same encoder. An item is a query, a passage that
answers it and passages that do not. The passages of the batch's other queries also count as wrong,
except those that are known to be right: equal texts, and other answers to the query.

Sizes: N items, C texts of an item, B items of a batch, P passages of a batch, B * (C - 1), H hidden
size.
"""

import hashlib
import math
import re
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.assignments import from_dict
from electra.errors import import_extra, require
from electra.model.config import EncoderConfig
from electra.model.task_heads import VectorHead
from electra.tasks.config import FinetuneConfig, RetrievalConfig
from electra.tasks.family import Constant, Family, Task, WrittenHead
from electra.tasks.predictions import (
    GOLD,
    NUMBER,
    predictions_name,
    require_right,
    write_predictions,
)
from electra.tasks.record import Asked, Columns, Record, Records, choose_columns, find_splits
from electra.tasks.rows import Outputs, Rows, TaskBatch, encode_texts, pack_rows
from electra.text.table_files import TableFile, read_table
from electra.text.tables import TABLE_FORMATS
from electra.tokenizing.tokenizer import Tokenizer

NEGATIVE = "negative"
"""Column of wrong passages: texts or lists of them; also negative_1, negative_2, ..."""
EMPTY = "is empty; each row needs a query and a passage, so leave the row out"
SCORED_QUERIES = 256
"""Queries that are compared with all passages at a time."""


METRICS = ("ndcg@10", "mrr@10", "recall@100")
DEPTH = 10
"""Ranks that nDCG and MRR look at."""
FOUND = 100
"""Ranks that recall looks at."""
TERM = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]|\w+")
"""The terms that BM25 counts: words, and characters of scripts without spaces between words."""


class Pair(NamedTuple):
    """A query, a passage that answers it, and passages that do not."""

    query: str
    passage: str
    negatives: tuple[str, ...] = ()
    label: int | None = 1
    """1: the passage answers the query; None: that is not known."""


@dataclass(frozen=True)
class Retrieval(Family):
    """Queries and passages. The output is "vectors" (N, C, H), of length 1.

    The target "texts" (N, C) has a number for each text, the same for equal texts; 0: no text. In
    the rows to score (`encode_scored`) the examples come first, and all texts of the other items
    are passages.
    """

    fields: ClassVar[tuple[str, ...]] = ("query", "passage")
    pools: ClassVar[bool] = True
    has_separate_rows: ClassVar[bool] = True

    metrics: tuple[str, ...] = METRICS
    temperature: float = 0.05
    both_directions: bool = True
    corpus: tuple[str, ...] = field(default=(), repr=False, compare=False)
    """Passages to search in; empty: those of the examples."""

    def parse(self, record: Record) -> Pair:
        """Return {"query": ..., "passage": ...} as an example."""
        return Pair(record.text("query"), record.text("passage"), label=None)

    @staticmethod
    def convert(path: Path, asked: Asked) -> Records:
        """Return the pairs of a table with the columns `query` and `passage`."""
        table = read_table(path, separator=asked.separator)
        return Records(table, Columns(choose_columns(table, asked.named, Retrieval.fields)))

    def encode(self, examples: Sequence[Pair], tokenizer: Tokenizer, sequence_length: int) -> Rows:
        """Return items of a query, its passage and its negatives; an item with fewer has blanks."""
        most = max((len(each.negatives) for each in examples), default=0)
        texts = [
            text
            for query, passage, negatives, _ in examples
            for text in (query, passage, *negatives, *[""] * (most - len(negatives)))
        ]
        return _encode(texts, 2 + most, examples, tokenizer, sequence_length)

    def encode_scored(
        self, examples: Sequence[Pair], tokenizer: Tokenizer, sequence_length: int
    ) -> Rows:
        """Return the examples and, if there is a corpus, its passages, two an item."""
        if not self.corpus:
            return self.encode(examples, tokenizer, sequence_length)
        passages = sorted(self.corpus, key=len)
        texts = [*chain.from_iterable(each[:2] for each in examples), *passages]
        return _encode([*texts, *passages[-1:] * (len(texts) % 2)], 2, examples, tokenizer,
                       sequence_length)  # fmt: skip

    def encode_texts(
        self, texts: Sequence[str], tokenizer: Tokenizer, sequence_length: int
    ) -> Rows:
        """Return an item of each text, to be given a vector."""
        return _encode(texts, 1, texts, tokenizer, sequence_length)

    def build_head(self, sizes: EncoderConfig, config: FinetuneConfig) -> nn.Module:
        """Return a module that pools states to a vector of length 1."""
        return VectorHead("cls" if config.pooling == "cls" else "mean")

    def answer(self, head: nn.Module, states: Tensor, batch: TaskBatch) -> Outputs:
        """Return the vectors (B, C, H)."""
        vectors = head(states, batch.attention_mask)
        return {"vectors": vectors.unflatten(0, batch.targets["texts"].shape)}

    def loss(self, outputs: Outputs, batch: TaskBatch) -> Tensor:
        """Return the mean cross-entropy, nats, of a query's passage among all of the batch.

        With `both_directions` it is the mean of this and of the passage's query among all queries.
        Source: van den Oord et al. 2018, "Representation Learning with Contrastive Predictive
        Coding" (equation 4); in-batch negatives: Karpukhin et al. 2020 (section 3.2).
        """
        vectors_BCH, texts_BC = outputs["vectors"], batch.targets["texts"]
        passages_PH, texts_P = vectors_BCH[:, 1:].flatten(0, 1), texts_BC[:, 1:].flatten()
        queries_B, own_B = texts_BC[:, 0], texts_BC[:, 1]
        places_B = torch.arange(len(own_B), device=own_B.device) * (texts_BC.shape[1] - 1)
        logits_BP = vectors_BCH[:, 0] @ passages_PH.T / self.temperature
        # A passage is right for a query if any item of the batch with this query has it.
        is_same_BB = queries_B[:, None] == queries_B
        is_right_BP = is_same_BB.float() @ (own_B[:, None] == texts_P).float() > 0
        is_own_BP = torch.zeros_like(is_right_BP).scatter_(1, places_B[:, None], True)
        is_left_out_BP = (is_right_BP & ~is_own_BP) | (texts_P == 0)
        logits_BP = logits_BP.masked_fill(is_left_out_BP, -torch.inf)
        loss = F.cross_entropy(logits_BP, places_B)
        if self.both_directions:
            rows_B = torch.arange(len(own_B), device=own_B.device)
            loss = (loss + F.cross_entropy(logits_BP[:, places_B].T, rows_B)) / 2
        return loss

    def score(self, rows: Rows, outputs: Outputs) -> dict[str, float]:
        """Return the metrics, means over the queries; empty if the right passages are unknown."""
        if not self.is_labelled(rows.examples[0]):
            return {}
        return score_ranks(_number_queries(rows.examples), rank(rows, outputs))

    def find_constant(self, train: Rows, dev: Rows) -> Constant:
        """Return the scores of BM25 on dev; no loss, as one above chance may have learnt much."""
        pairs: Sequence[Pair] = dev.examples
        passages = self.corpus or tuple(
            dict.fromkeys(text for each in pairs for text in (each.passage, *each.negatives))
        )
        queries, own = zip(*(each[:2] for each in pairs), strict=True)
        scores = score_ranks(_number_queries(pairs), rank_by_bm25(queries, own, passages))
        return Constant(0.0, scores)

    def describe_collapse(self, dev: Rows, outputs: Outputs) -> str | None:
        """Return a note if different queries have the same vector."""
        count = len(dev.examples)
        texts, vectors = dev.targets["texts"][:count, 0], outputs["vectors"][:count, 0]
        if len(texts.unique()) == 1 or len(vectors.unique(dim=0)) > 1:
            return None
        return "every dev query has the same vector"

    def describe_answers(self, rows: Rows, outputs: Outputs) -> list[dict[str, Any]]:
        """Return the cosine of each query and its passage, `prediction`."""
        queries, passages, *_ = outputs["vectors"][: len(rows.examples)].unbind(dim=1)
        return [{NUMBER: round(each, 6)} for each in (queries * passages).sum(dim=1).tolist()]

    def describe_blank(self, example: Any) -> dict[str, Any]:
        """Return no number."""
        return {NUMBER: None}

    def write_predictions(self, folder: Path, split: str, rows: Rows, outputs: Outputs) -> None:
        """Write each pair's identity, its query's number, the passage's rank, the cosine."""
        examples = rows.examples
        is_known = self.is_labelled(examples[0])
        gold = [{GOLD: label if is_known else ""} for label in _digest(examples)]
        answers = self.describe_answers(rows, outputs)
        placed = zip(_number_queries(examples), rank(rows, outputs), answers, strict=True)
        found = [{"query": query, "rank": place, **answer} for query, place, answer in placed]
        write_predictions(folder / predictions_name(split), gold, found)

    def score_answers(self, folder: Path, split: str, examples: Sequence[Any]) -> dict[str, float]:
        """Return the metrics of the ranks in the file."""
        path = folder / predictions_name(split)
        table = read_table(path)
        gold, right = table.column(GOLD), _digest(examples)
        require_right(path, [int(each, 16) for each in gold], [int(each, 16) for each in right])
        queries, ranks = (list(map(int, table.column(name))) for name in ("query", "rank"))
        return score_ranks(queries, ranks)

    def as_transformers(self, parameters: Mapping[str, Tensor]) -> WrittenHead:
        """Return no head: the encoder is the whole network."""
        return WrittenHead("", parameters)

    def facts(self) -> dict[str, Any]:
        """Return the family's name, and what the loss is made with."""
        how = {"temperature": self.temperature, "both_directions": self.both_directions}
        return {"family": "retrieval", "guess": "BM25", **how}

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> Self:
        """Return the family of a saved model."""
        how = {name: facts[name] for name in ("temperature", "both_directions")}
        return from_dict(cls, how)


def _encode(
    texts: Sequence[str],
    width: int,
    examples: Sequence[Any],
    tokenizer: Tokenizer,
    sequence_length: int,
) -> Rows:
    """Return texts as rows, `width` an item."""
    ids = [(each, None) for each in encode_texts(tokenizer, texts, sequence_length)]
    numbers = torch.tensor([number_of(text) for text in texts], dtype=torch.int64)
    targets = {"texts": numbers.view(-1, width)}
    counts = [width] * len(numbers.view(-1, width))
    return pack_rows(ids, targets, tokenizer, sequence_length, examples, counts)


def number_of(text: str) -> int:
    """Return a number of 63 bits that identifies a text; 0: it is empty."""
    if not text:
        return 0
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1 or 1


def _digest(examples: Sequence[Pair]) -> list[str]:
    """Return what identifies a pair, 12 digits of a hash."""
    return [f"{number_of(f'{query}{chr(0)}{passage}'):016x}"[4:] for query, passage, *_ in examples]


def _number_queries(examples: Sequence[Pair]) -> list[int]:
    """Return for each example the number of the first one with its query."""
    first: dict[str, int] = {}
    return [first.setdefault(each.query, number) for number, each in enumerate(examples)]


def rank(rows: Rows, outputs: Outputs) -> list[int]:
    """Return the rank of each example's passage among all passages, from 1, by the cosine.

    A passage ranks behind equally near ones; a passage whose cosine is NaN is last.
    """
    count, vectors, texts = len(rows.examples), outputs["vectors"], rows.targets["texts"]
    passages = torch.cat([vectors[:, 1:].flatten(0, 1), vectors[count:, 0]])
    numbers = torch.cat([texts[:, 1:].flatten(), texts[count:, 0]])
    known, places = numbers.unique(return_inverse=True)
    firsts = torch.empty_like(known).scatter_(0, places, torch.arange(len(numbers)))
    passages, first = passages[firsts], int(known[0] == 0)  # the number 0 is no text
    found: list[int] = []
    for part in torch.arange(count).split(SCORED_QUERIES):
        cosines = vectors[part, 0] @ passages.T
        own = cosines.gather(1, torch.searchsorted(known, texts[part, 1:2]))
        found += (len(known) - first - (cosines[:, first:] < own).sum(dim=1)).tolist()
    return found


# Files


def read_retrieval_task(name: str, data: Path, config: FinetuneConfig) -> Task:
    """Return the task of tables with queries and passages; with a corpus, of ids of passages."""
    settings = config.retrieval
    import_extra("bm25s", "retrieval", "the guess of BM25, which a retrieval has to beat,")
    corpus = read_corpus(data, settings)
    files = find_splits(data, TABLE_FORMATS)
    examples = {
        split: [pair for path in paths for pair in _read_pairs(read_table(path), settings, corpus)]
        for split, paths in files.items()
    }
    known = {each.query for each in examples["train"]}
    shared = sum(each.query in known for each in examples.get("dev", ()))
    note = f"{shared:,} of {len(examples.get('dev', ())):,} queries of dev are also in train"
    family = Retrieval(
        temperature=settings.temperature,
        both_directions=settings.both_directions,
        corpus=tuple(corpus.values()),
    )
    return Task(
        name,
        family,
        examples,
        files=(
            *(path for paths in files.values() for path in paths),
            *_corpus_files(data, settings),
        ),
        columns=Columns((settings.query, settings.positive)),
        notes=(note,) if shared else (),
    )


def _corpus_files(data: Path, settings: RetrievalConfig) -> list[Path]:
    folder = data if data.is_dir() else data.parent
    return [folder / settings.corpus] if settings.corpus else []


def read_corpus(data: Path, settings: RetrievalConfig) -> dict[str, str]:
    """Return the passages of the corpus by their ids; none: there is no corpus."""
    found: dict[str, str] = {}
    for path in _corpus_files(data, settings):
        require(path.is_file(), f"retrieval.corpus: no file {path}")
        table = read_table(path)
        rows = zip(*map(table.column, ("id", "text")), strict=True)
        for number, (name, text) in enumerate(rows):
            place = table.place(number)
            require(text.strip() != "", f"{place}: 'text' is empty; leave the row out")
            require(name not in found, f"{place}: a row above also has the id {name!r}")
            found[name] = text
    return found


def _read_pairs(
    table: TableFile, settings: RetrievalConfig, corpus: Mapping[str, str]
) -> Iterator[Pair]:
    """Yield each pair of a table once, with the negatives of all its rows."""
    names = [name for name in table.columns if name.split("_")[0] == NEGATIVE]
    read = partial(_read_passages, table, corpus, settings.corpus)
    queries = table.column(settings.query)
    right = [passage for (passage,) in read(settings.positive)]
    columns = [read(name) for name in names]
    wrong: dict[tuple[str, str], list[str]] = {}
    answers: dict[str, set[str]] = {}
    for number, pair in enumerate(zip(queries, right, strict=True)):
        require(pair[0].strip() != "", f"{table.place(number)}: {settings.query!r} {EMPTY}")
        wrong.setdefault(pair, []).extend(text for column in columns for text in column[number])
        answers.setdefault(pair[0], set()).add(pair[1])
    for (query, passage), texts in wrong.items():
        both = reprlib.repr(next(iter(answers[query].intersection(texts)), ""))
        require(
            answers[query].isdisjoint(texts),
            f"{table.path}: for {reprlib.repr(query)} the passage {both} is both right and wrong; "
            "leave it out of the negatives",
        )
        yield Pair(query, passage, tuple(dict.fromkeys(texts)))


def _read_passages(
    table: TableFile, corpus: Mapping[str, str], corpus_name: str, column: str
) -> list[tuple[str, ...]]:
    """Return the passages in each cell of a column, a text or a list, or those of their ids."""
    is_list = isinstance(table.rows[0].get(column), list)
    cells = table.lists(column) if is_list else [(cell,) for cell in table.column(column)]
    for number, texts in enumerate(cells):
        for text in texts:
            place = f"{table.place(number)}: {column!r}"
            require(text.strip() != "", f"{place} {EMPTY}")
            require(
                not corpus or text in corpus,
                f"{place} is {reprlib.repr(text)}, an id that {corpus_name} lacks",
            )
    return [tuple(corpus.get(text, text) for text in texts) for texts in cells]


# Scores


def score_ranks(queries: Sequence[int], ranks: Sequence[int]) -> dict[str, float]:
    """Return METRICS, means over the queries, from the rank of each right passage of a query.

    Args:
        queries: Number of the query of each right passage.
        ranks: Rank of the passage among all passages, from 1.

    nDCG@10 is the sum of 1 / log2(1 + rank) over the right passages in the first ten ranks, divided
    by the greatest possible sum; MRR@10 is 1 / rank of the first right passage, or 0; recall@100 is
    the share of the right passages that are in the first hundred ranks. Source: trec_eval.
    """
    by_query: dict[int, list[int]] = {}
    for query, place in zip(queries, ranks, strict=True):
        by_query.setdefault(query, []).append(place)

    def gain(places: Sequence[int]) -> float:
        return sum(1 / math.log2(1 + place) for place in places if place <= DEPTH)

    each = by_query.values()
    first = [min(places) for places in each]
    return {
        "ndcg@10": fmean(gain(places) / gain(range(1, len(places) + 1)) for places in each),
        "mrr@10": fmean(1 / place if place <= DEPTH else 0.0 for place in first),
        "recall@100": fmean(fmean(place <= FOUND for place in places) for places in each),
    }


def split_terms(text: str) -> list[str]:
    """Return the terms of a text, in lower case."""
    return TERM.findall(text.lower())


@lru_cache(maxsize=2)  # each seed asks for the same
def rank_by_bm25(
    queries: tuple[str, ...], own: tuple[str, ...], passages: tuple[str, ...]
) -> list[int]:
    """Return the rank of each query's own passage among all passages by BM25 (Lucene's, k1 1.5).

    A passage is behind those with the same score. Equal passages count once.
    """
    library = import_extra("bm25s", "retrieval", "BM25")
    places = {text: place for place, text in enumerate(dict.fromkeys(passages))}
    index = library.BM25(method="lucene", k1=1.5, b=0.75)
    index.index([split_terms(text) for text in places], show_progress=False)
    found = []
    for query, passage in zip(queries, own, strict=True):
        terms = [term for term in split_terms(query) if term in index.vocab_dict]
        scores = index.get_scores(terms) if terms else np.zeros(len(places), np.float32)
        found.append(int((scores >= scores[places[passage]]).sum()))
    return found
