"""Hard negatives: passages that a model finds near a query, and that do not answer it.

A passage that is nearer to the query than its right one, or nearly as near, may be right although
it is not labelled. So only passages whose cosine is below the right one's by a margin are used.
Source: Moreira et al. 2024, "NV-Retriever" (section 4, TopK-MarginPos).
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from electra import files
from electra.checkpoints.finetuned import Finetuned
from electra.errors import require
from electra.inference import search
from electra.processes import Tell, silent
from electra.tasks.registry import RETRIEVAL, read_task
from electra.tasks.retrieval import NEGATIVE, Pair, read_corpus
from electra.text.table_files import read_table

DEPTH = 100
"""Passages nearest a query that are looked at."""
CORPUS = "corpus.jsonl"


def mine(
    searcher: search.Searcher,
    finetuned: Finetuned,
    data: Path,
    out: Path,
    *,
    count: int = 4,
    margin: float = 0.05,
    progress: Tell = silent,
) -> dict[str, int]:
    """Write a task's files with hard negatives in train; return how many train has.

    At most `count` are added to a pair; their cosines are below that of its right passage by more
    than `margin`. With a corpus (`retrieval.corpus`) the cells are ids, and the corpus is written
    as well. The work of an interrupted call is kept. `progress` is called with the pairs done.
    """
    files.refuse_existing(out)
    require(count >= 1, f"count must be 1 or more, not {count}")
    require(margin >= 0, f"margin must be 0 or more, not {margin}")
    task = read_task(RETRIEVAL, data, finetuned.config)
    corpus = read_corpus(data, finetuned.config.retrieval)
    names = {text: name for name, text in reversed(corpus.items())}
    train: list[Pair] = task.examples["train"]
    texts = [text for each in train for text in (each.passage, *each.negatives)]
    passages = list(dict.fromkeys(corpus.values() or texts))
    hashes = {str(path): files.sha256_file(path) for path in task.files}
    settings = {"weights": searcher.weights, "files": hashes, "count": count, "margin": margin}
    with search.begun(out, settings) as (folder, _):
        place = folder / CORPUS
        if not place.exists():
            rows = (
                {"id": names.get(text, str(n)), "text": text} for n, text in enumerate(passages)
            )
            files.write_text(place, "".join(map(_to_line, rows)))
        if not (folder / "index").exists():
            search.build_index(searcher, place, folder / "index")
        index = search.open_index(folder / "index", searcher)
        _write_train(searcher, index, train, passages, names, folder, settings, progress)
        found = sum(map(len, read_table(folder / "train.jsonl").lists(NEGATIVE)))
        for split in task.examples.keys() - {"train"}:
            lines = (_to_line(_name(each, names)) for each in task.examples[split])
            files.write_text(folder / f"{split}.jsonl", "".join(lines))
        shutil.rmtree(folder / "index")
        if not corpus:
            place.unlink()
    return {"num_pairs": len(train), "num_negatives": found}


def _write_train(
    searcher: search.Searcher,
    index: search.Index,
    train: Sequence[Pair],
    passages: Sequence[str],
    names: Mapping[str, str],
    folder: Path,
    settings: Mapping[str, Any],
    progress: Tell,
) -> None:
    """Append the missing pairs of train to those that are already written."""
    right: dict[str, set[str]] = {}
    for each in train:
        right.setdefault(each.query, set()).add(each.passage)
    numbers = {text: number for number, text in enumerate(passages)}
    with (folder / "train.jsonl").open("a+b") as file:
        file.seek(0)
        lines = [line for line in file if line.endswith(b"\n")]
        file.truncate(sum(map(len, lines)))
        done = len(lines)
        for block in search.blocks_of(train[done:], search.ASKED):
            queries_QH, _ = searcher.encode([each.query for each in block])
            scores, near = search.nearest(index.vectors_NH, queries_QH, DEPTH)
            own_QH = index.vectors_NH[[numbers[each.passage] for each in block]]
            limits = (queries_QH * own_QH.astype(np.float32)).sum(axis=1) - settings["margin"]
            for each, *row, limit in zip(block, scores, near, limits, strict=True):
                candidates = (passages[n] for s, n in zip(*row, strict=True) if s < limit)
                known = {*right[each.query], *each.negatives}
                fresh = [text for text in candidates if text not in known][: settings["count"]]
                pair = each._replace(negatives=(*each.negatives, *fresh))
                file.write(_to_line(_name(pair, names)).encode())
            file.flush()
            done += len(block)
            progress(done, len(train))


def _name(pair: Pair, names: Mapping[str, str]) -> dict[str, Any]:
    """Return a pair as a row of a table, by the ids of its passages if they have some."""
    passage, *wrong = (names.get(text, text) for text in (pair.passage, *pair.negatives))
    return {"query": pair.query, "positive": passage, NEGATIVE: wrong}


def _to_line(row: Mapping[str, Any]) -> str:
    return json.dumps(row) + "\n"
