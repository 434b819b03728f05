"""A search by vectors: a corpus as an index in a folder, and its passages that are nearest a query.

An index holds the vector of each passage in float16, and the passages. The search compares a query
with every vector, block by block: it is exact but for the rounding, and needs as much memory as a
block. An index that is interrupted is continued.

Shape suffixes: N passages, Q queries, K passages found, H hidden size.
"""

import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np
import torch

from electra import files
from electra.checkpoints.finetuned import Finetuned
from electra.errors import UserError, refuse_unlike, require
from electra.finetuning.network import run_network
from electra.inference.embed import Pooling
from electra.inference.network import PRECISION, require_numbers
from electra.inference.predict import FinetunedModel, load_model
from electra.interop.sentence_transformers import Similarity
from electra.processes import Tell, silent
from electra.tasks.retrieval import Retrieval
from electra.text.documents import Reader
from electra.text.sources import find_sources
from electra.text.streams import open_source
from electra.text.table_files import read_table
from electra.text.tables import TABLE_FORMATS, format_of
from electra.training.machine import Precision

VECTORS, PASSAGES, PLACES, BEGUN = "vectors.f16", "passages.jsonl", "places.i64", "begun.json"
WRITTEN = 2048
"""Passages that are given vectors, and written, at a time."""
COMPARED = 1 << 14
"""Vectors that queries are compared with at a time."""
ASKED = 1024
"""Queries that are compared at a time."""
Item = TypeVar("Item")


@dataclass(frozen=True)
class Hit:
    """A passage that was found."""

    id: str
    """The passage's `id` in the table, or without that column its number in the corpus, from 1."""
    score: float
    """Cosine of its vector and the query's."""
    text: str


@dataclass(frozen=True)
class Searcher:
    """A model for retrieval, in memory."""

    model: FinetunedModel
    weights: dict[str, str]
    """The sha256 of its weights."""

    def encode(self, texts: Sequence[str], progress: Tell = silent) -> tuple[np.ndarray, int]:
        """Return the vectors of texts (N, H), float32, and how many texts were cut."""
        family = self.model.network.family
        assert isinstance(family, Retrieval)
        rows = family.encode_texts(texts, self.model.tokenizer, self.model.sequence_length)
        outputs = run_network(self.model.network, rows, self.model.machine.device, progress)
        return require_numbers(outputs["vectors"][:, 0]).numpy(), rows.num_cut

    def embed(self, texts: Sequence[str]) -> tuple[np.ndarray, int]:
        """Return the same, with NaN for a blank text."""
        size, num_cut = self.model.network.encoder.config.hidden_size, 0
        vectors = np.full((len(texts), size), np.nan, np.float32)
        asked = [number for number, text in enumerate(texts) if text.strip()]
        if asked:
            vectors[asked], num_cut = self.encode([texts[number] for number in asked])
        return vectors, num_cut


@dataclass(frozen=True)
class Index:
    """The index of a corpus, on the disk."""

    folder: Path
    facts: dict[str, Any]
    vectors_NH: np.ndarray
    """float16."""
    places: np.ndarray
    """Byte at which each passage begins."""
    lines: np.ndarray
    """The bytes of the passages, those of the file that was opened, whatever is there now."""

    def read(self, number: int) -> tuple[str, str]:
        """Return id and text of a passage by its number, from 0."""
        begin, *rest = map(int, self.places[number : number + 2])
        line = self.lines[begin : rest[0] if rest else None].tobytes()
        passage = files.parse_object(line, f"{self.folder / PASSAGES} line {number + 1}")
        return passage["id"], passage["text"]


def load_searcher(finetuned: Finetuned, precision: Precision = PRECISION) -> Searcher:
    """Return the model of a fine-tuning for retrieval; refuse any other."""
    model = load_model(finetuned, precision=precision)
    task = finetuned.facts["task"]
    require(
        isinstance(model.network.family, Retrieval),
        f"{finetuned.folder} is a fine-tuning on {task}: a search needs one on retrieval",
    )
    return Searcher(model, finetuned.sha256)


def describe_vectors(finetuned: Finetuned) -> Similarity:
    """Return the pooling of a model for retrieval, and what sentence-transformers must give."""
    texts = [text for each in finetuned.facts["examples"] for text in each.values()]
    pooling: Pooling = "cls" if finetuned.facts["pooling"] == "cls" else "mean"
    vectors, _ = load_searcher(finetuned).encode(texts)
    layers = finetuned.encoder.num_hidden_layers
    return Similarity(layers, pooling, (), "", 0, texts, vectors, is_normalised=True)


def read_passages(corpus: Path) -> Iterator[tuple[str, str]]:
    """Yield id and text of the passages of a table, or of the documents of text files.

    A .jsonl is read line by line, other tables are read whole. A row without text is refused.
    """
    if not (corpus.is_file() and format_of(corpus) in TABLE_FORMATS):
        documents = Reader(border="auto").read(find_sources([str(corpus)]).files)
        yield from ((str(n), " ".join(lines)) for n, lines in enumerate(documents, 1))
        return
    for number, (place, row) in enumerate(_read_rows(corpus), 1):
        text = row.get("text")
        is_text = isinstance(text, str) and text.strip() != ""
        require(is_text, f"{place}: 'text' must be a text that is not empty")
        yield str(row.get("id", number)), str(text)


def _read_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of a table with their places."""
    if format_of(path) != ".jsonl":
        table = read_table(path)
        yield from zip(map(table.place, range(len(table.rows))), table.rows, strict=True)
        return
    with open_source(path) as (_, stream):
        for number, line in enumerate(stream, 1):
            if line.strip():
                yield (place := f"{path} line {number}"), files.parse_object(line, place)


def build_index(searcher: Searcher, corpus: Path, out: Path, progress: Tell = silent) -> None:
    """Write the index of a corpus, or continue one that was interrupted.

    An incomplete one, in `<out>.incomplete`, is continued if model and corpus are the same.
    `progress` gets the number of passages done as both arguments: the total is unknown.
    """
    with begun(out, {"weights": searcher.weights, "corpus": _hash(corpus)}) as (folder, facts):
        facts |= _write_passages(searcher, corpus, folder, progress)


def _hash(corpus: Path) -> list[str]:
    """Return the sha256 of each file of a corpus."""
    return list(map(files.sha256_file, find_sources([str(corpus)]).files))


@contextmanager
def begun(out: Path, settings: dict[str, Any]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the folder that becomes `out`, new or begun with the same settings, and its facts.

    The facts, to which the caller adds, are written beside the hashes. After a UserError the
    folder is removed, so the next attempt starts anew.
    """
    files.refuse_existing(out)
    folder, facts = out.with_name(f"{out.name}.incomplete"), dict(settings)
    is_ours = not folder.exists() or (folder / BEGUN).exists() or not any(folder.iterdir())
    require(is_ours, f"{folder} was not started by this command; remove it or choose another name")
    files.make_folder(folder)
    with files.hold(folder / files.LOCK):
        if (folder / BEGUN).exists():
            files.require_same(folder, files.read_object(folder / BEGUN), settings)
        else:
            files.write_json(folder / BEGUN, {**settings, "done": 0, "num_cut": 0})
        try:
            yield folder, facts
        except UserError:
            shutil.rmtree(folder)
            raise
        (folder / BEGUN).unlink()
        files.write_hashes(folder, **facts)
        files.put(folder, out)
        (out / files.LOCK).unlink()


def _write_passages(
    searcher: Searcher, corpus: Path, folder: Path, progress: Tell
) -> dict[str, int]:
    """Write the passages anew, and the vectors of those whose blocks are not done."""
    size, place, done = searcher.model.network.encoder.config.hidden_size, 0, 0
    state = files.read_object(folder / BEGUN)
    with ExitStack() as stack:
        vectors, texts, places = (
            stack.enter_context((folder / name).open(mode))
            for name, mode in ((VECTORS, "ab"), (PASSAGES, "wb"), (PLACES, "wb"))
        )
        vectors.truncate(2 * size * state["done"])
        for block in blocks_of(read_passages(corpus), WRITTEN):
            for name, text in block:
                line = json.dumps({"id": name, "text": text}) + "\n"
                places.write(np.int64(place).tobytes())
                place += texts.write(line.encode())
            done += len(block)
            if done > state["done"]:
                found, cut = searcher.encode([text for _, text in block])
                vectors.write(found.astype("<f2").tobytes())
                vectors.flush()
                state |= {"done": done, "num_cut": state["num_cut"] + cut}
                files.write_json(folder / BEGUN, state)
            progress(done, done)
        require(done > 0, f"{corpus} holds no passage")
    return {"num_passages": done, "num_cut": state["num_cut"], "hidden_size": size}


def blocks_of(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield the items in lists of `size`, of which the last may be shorter."""
    rest = iter(items)
    return iter(lambda: list(islice(rest, size)), [])


def open_index(folder: Path, searcher: Searcher) -> Index:
    """Return an index whose vectors are those of this model; refuse any other, and damage."""
    files.check_hashes(folder)
    facts = files.read_object(folder / files.HASHES)
    with refuse_unlike(f"{folder} is not an index"):
        weights, shape = facts["weights"], (facts["num_passages"], facts["hidden_size"])
    require(
        weights == searcher.weights,
        f"{folder} is the index of another model; build it anew, or search with that one",
    )
    vectors = np.memmap(folder / VECTORS, "<f2", "r", shape=shape)
    places = np.memmap(folder / PLACES, "<i8", "r", shape=shape[:1])
    return Index(folder, facts, vectors, places, np.memmap(folder / PASSAGES, mode="r"))


def nearest(
    vectors_NH: np.ndarray, queries_QH: np.ndarray, top: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the cosines of the nearest passages (Q, K), and their numbers, the best first."""
    queries = torch.from_numpy(queries_QH)
    scores, numbers = torch.empty(len(queries), 0), torch.empty(len(queries), 0, dtype=torch.int64)
    for start in range(0, len(vectors_NH), COMPARED):
        block = torch.from_numpy(vectors_NH[start : start + COMPARED].astype(np.float32))
        best = (queries @ block.T).topk(min(top, len(block)))
        scores = torch.cat([scores, best.values], dim=1)
        numbers = torch.cat([numbers, best.indices + start], dim=1)
        scores, order = scores.topk(min(top, scores.shape[1]))
        numbers = numbers.gather(1, order)
    return scores.numpy(), numbers.numpy()


def refuse_empty(queries: Sequence[str]) -> None:
    """Refuse a query without text by its number, from 1."""
    for number, query in enumerate(queries, 1):
        require(query.strip() != "", f"query {number} is empty; give it a text")


def search(
    searcher: Searcher, index: Index, queries: Sequence[str], top: int
) -> tuple[list[list[Hit]], int]:
    """Return of each query the nearest passages, the best first, and how many queries were cut."""
    require(top >= 1, f"top must be 1 or more, not {top}")
    refuse_empty(queries)
    found, num_cut = [], 0
    for part in blocks_of(queries, ASKED):
        vectors, cut = searcher.encode(part)
        num_cut += cut
        each = nearest(index.vectors_NH, vectors, top)
        for scores, numbers in zip(*each, strict=True):
            hits = zip(scores.tolist(), map(index.read, numbers), strict=True)
            found.append([Hit(name, score, text) for score, (name, text) in hits])
    return found, num_cut


def search_corpus(
    searcher: Searcher,
    queries: Sequence[str],
    corpus: Path,
    *,
    index: Path | None = None,
    top: int = 10,
    progress: Tell = silent,
) -> tuple[list[list[Hit]], dict[str, Any]]:
    """Return what `search` finds in an index or in a text, and the facts of index and queries.

    For a text the index is written to `index`, or used if it is there; without a name it is removed
    when the search ends.
    """
    is_one = (corpus / VECTORS).is_file() and (corpus / files.HASHES).is_file()
    require(not (is_one and index), f"{corpus} is an index; leave out the name of another")
    with TemporaryDirectory() as folder:
        place = corpus if is_one else index or Path(folder) / "index"
        if not place.exists():
            build_index(searcher, corpus, place, progress)
        opened = open_index(place, searcher)
        require(
            is_one or opened.facts["corpus"] == _hash(corpus),
            f"{place} is the index of another corpus than {corpus}; choose another name",
        )
        found, num_cut = search(searcher, opened, queries, top)
        return found, opened.facts | {"num_queries_cut": num_cut}
