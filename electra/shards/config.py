"""Settings of `electra prepare`, and of the rows that are read from shards."""

from dataclasses import dataclass
from typing import Annotated, Literal

from electra.settings import AtLeast, Needs, Settings, Within
from electra.text.config import TextConfig


@dataclass(frozen=True, kw_only=True)
class PrepareConfig(TextConfig):
    """Settings of `electra prepare`: reading text, and writing shards."""

    border: Literal["auto", "blank", "line", "file"] = "auto"
    """Border between two documents: a blank line, every line end, or the end of a file. auto: a
    blank line, but every line end in a file whose documents would have 1,048,576 characters or more
    on average (in its first 16,777,216). A .jsonl or .parquet record is always one document."""
    heldout_prob: Annotated[float, Within("[0, 1)")] = 0.005
    """Share of the documents held out for evaluation, chosen by a hash of their text. So a document
    stays held out when the corpus grows or is reordered, and so do its duplicates."""
    duplicates: Literal["keep", "exact", "near"] = "keep"
    """Duplicates of earlier documents to drop. keep: none. exact: those with the same text. near:
    also those that share most of their runs of five tokens (the extra near-duplicates). Exact
    duplicates are always counted."""
    min_chars: Annotated[int, AtLeast(0)] = 0
    """Minimum number of characters; shorter documents are dropped."""
    max_chars: Annotated[int, AtLeast(0)] = 0
    """Maximum number of characters; longer documents are dropped. 0: no limit."""
    max_repetition: Annotated[float, Within("[0, 1]")] = 1.0
    """Share of a document's runs of ten tokens that repeat an earlier run, above which the document
    is dropped. 1: no limit."""
    languages: str = ""
    """Languages to keep, as ISO 639-1 codes with commas between: "de, en" (the extra languages).
    Empty: all."""
    write_dropped: bool = False
    """Whether dropped documents are written to dropped.jsonl in the shards folder."""
    shard_tokens: Annotated[int, AtLeast(1)] = 1 << 26
    """Size of a shard, tokens. A shard ends with the document that reaches this size, or with its
    task."""
    task_bytes: Annotated[int, AtLeast(1)] = 1 << 25
    """Text of one task, bytes. A compressed file is taken for four times its size. After an
    interruption, finished tasks are not repeated. Each task begins a new shard."""
    workers: Annotated[int, AtLeast(0)] = 0
    """Processes that do tasks at the same time; 0: one per available core, or with Ray as many as
    the cluster has room for. Does not change the result."""
    seed: int = 0
    """Seed of the choice of held-out documents."""


@dataclass(frozen=True, kw_only=True)
class ExamplesConfig(Settings):
    """Settings of the rows that are read from the shards. Source: build_pretraining_dataset.py."""

    sequence_length: Annotated[int, AtLeast(8)] = 128
    """Row length, tokens, including [CLS] and [SEP]."""
    single_segment_prob: Annotated[float, Within("[0, 1]")] = 0.1
    """Share of rows with one segment instead of two."""
    short_prob: Annotated[float, Within("[0, 1]")] = 0.05
    """Share of rows whose length is drawn uniformly from [5, sequence_length]. All other rows are
    full."""
    attend: Literal["row", "document"] = "row"
    """Range of attention. row: all tokens of the row. document: the tokens of the same document in
    the row. Consider document if documents are short and unrelated. It saves no time, and on a GPU
    it rules out the attention kernel without a mask, which is faster."""

    next_sentence: bool = False
    """Whether the objective mlm also learns next-sentence prediction: in half of the rows, drawn at
    random, the second segment comes from a row of another document, if the shard has one. Source:
    Devlin et al. 2019, "BERT", section 3.1."""

    order: Literal["global", "window"] = "global"
    """global: one permutation of all rows per epoch; all shards must be on this machine's disk.
    window: mixes the rows of `window` shards at a time, for a corpus larger than memory or disk
    (shards/windows.py). The resulting weights differ; docs/CORPUS.md describes what is lost."""
    window: Annotated[int, AtLeast(2)] = 64
    """Number of shards, per corpus and group, whose rows are mixed; windows overlap by half."""
    groups: Annotated[int, AtLeast(1)] = 1
    """Number of groups, a power of two, among which the shards of each corpus are divided. Each
    group has the same number of rows of every step, in the order of the processes, so that with one
    machine per group, each machine reads only its part of the shards. Each group has its own
    epochs."""

    section = "examples."
    needs = (
        Needs("window!=64", "order=window"),
        Needs("groups!=1", "order=window"),
        Needs("next_sentence", "single_segment_prob=0", "every row has two segments"),
        Needs("next_sentence", "attend=row", "[CLS] judges both segments"),
    )

    def check(self) -> None:
        """Check the rules that the table cannot express."""
        self.must("groups", self.groups.bit_count() == 1, "be a power of two")
