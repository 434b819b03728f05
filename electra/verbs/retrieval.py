"""A search by a model for retrieval, and the hard negatives that it finds."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from electra.errors import command, count_of
from electra.terminal.live import Progress
from electra.terminal.printing import print_done, print_json, print_note, print_table
from electra.verbs.arguments import as_list, refuse_file
from electra.verbs.ask import read_asked
from electra.verbs.corpus import Text
from electra.verbs.models import Asked, open_model
from electra.verbs.options import Place, Precision, verb

if TYPE_CHECKING:
    from electra.inference.search import Hit


@verb
def search(
    model: Asked,
    query: str | Sequence[str] | None = None,
    *,
    corpus: Place,
    index: Place | None = None,
    input: Place | None = None,
    top: int = 10,
    json: bool = False,
    precision: Precision = None,
) -> "list[list[Hit]]":
    """Show the passages of a corpus nearest to a query, by a model fine-tuned for retrieval.

    The search compares the query with every passage. With --index, the vectors of the passages are
    kept in a folder; after an interruption, the same command continues this index.

    Example: electra search retriever "gesture recognition" --corpus abstracts.jsonl --index index

    Args:
        model: A folder of `electra finetune --task retrieval`.
        query: The query (in a script, a list of queries); - is standard input. If not given,
            --input is read.
        corpus: A table with the column text, and perhaps id; a text file, or a folder of them; or
            an index.
        index: The index of the corpus: written, or used if it is there.
        input: A file with one query per line; - is standard input.
        top: Number of passages for each query.
        json: Whether to print one JSON object per query, with id, score and text of each passage.

    Returns:
        The passages of each query, with id, score and text, the best first.
    """
    from electra.inference.search import search_corpus

    queries = read_asked(query, input)
    searcher, place = open_model(model, precision).searcher, None if index is None else Path(index)
    with Progress("indexing", unit="passages") as progress:
        found, facts = search_corpus(
            *(searcher, queries, Path(corpus)),
            index=place,
            top=top,
            progress=lambda done, _: progress.update(done, None),
        )
    length = searcher.model.sequence_length
    cut = {"passages": facts["num_cut"], "queries": facts["num_queries_cut"]}
    for what, count in {"passages": facts["num_passages"], "queries": len(queries)}.items():
        if num := cut[what]:
            print_note(f"{num:,} of {count:,} {what} longer than rows of {length} tokens, and cut")
    for each, hits in zip(queries, found, strict=True):
        if json:
            print_json({"query": each, "passages": list(map(asdict, hits))})
        else:
            rows = [(f"{hit.score:.3f}", hit.id, hit.text[:60]) for hit in hits]
            print_table(rows, ("score", "id", each[:60]))
    return found


@verb
def mine(
    model: Place,
    *,
    data: Place,
    out: Place,
    count: int = 4,
    margin: float = 0.05,
    seed: int | None = None,
) -> dict[str, int]:
    """Write the files of a retrieval task with hard negatives found by a retrieval model.

    Hard negatives are passages near a query that do not answer it. A passage whose cosine is not
    below that of the right passage by more than the margin may also be right, and is left out.

    Example: electra mine retriever --data pairs --out pairs-hard

    Args:
        model: A folder of `electra finetune --task retrieval`.
        data: The folder of the task's files, read with the settings of that fine-tuning.
        out: The folder to write, which `electra finetune` reads.
        count: Most negatives that are added to a pair.
        margin: How far the cosine of a negative must be below that of the right passage.
        seed: The seed whose model searches; if not given, the one with the best score on dev.

    Returns:
        The numbers of pairs and of negatives.
    """
    from electra.checkpoints.finetuned import read_finetuned
    from electra.inference.mining import mine as run_mine
    from electra.inference.search import load_searcher

    finetuned = read_finetuned(Path(model), seed)
    with Progress("mining", unit="pairs") as progress:
        found = run_mine(
            *(load_searcher(finetuned), finetuned, Path(data), Path(out)),
            count=count,
            margin=margin,
            progress=progress.update,
        )
    pairs = count_of(found["num_pairs"], "pair")
    print_done(f"wrote {out}: {count_of(found['num_negatives'], 'negative')} for {pairs}")
    return found


@verb
def pair(text: Text, *, out: Place, chars: int = 200) -> int:
    """Write neighbouring passages of texts as the pairs of a retrieval task without labels.

    In each document, the first passage is the query for the second, the third for the fourth, and
    so on. `electra finetune --task retrieval` learns from these pairs before labelled pairs, or
    instead of them.

    Example: electra pair corpus/*.txt.xz --out neighbours.jsonl

    Args:
        out: The table to write, a .jsonl with the columns query and positive.
        chars: Characters of a passage: it has as many whole sentences as fit, one at least.

    Returns:
        The number of pairs.
    """
    from electra.text.passages import write_pairs

    out = Path(out)
    refuse_file(out, (".jsonl",))
    count = write_pairs(out, list(map(str, as_list(text))), chars)
    next_it = command("finetune", "START", "--task", "retrieval", "--data", out,
                      "--out", "retriever", "--set", "dev_fraction=0.05")  # fmt: skip
    print_done(f"wrote {out}: {count_of(count, 'pair')}", next_it)
    return count
