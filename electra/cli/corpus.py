"""tokenizer and prepare: from text to shards."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from electra.cli.options import DryRun, Set, Toml, print_dry_run, refuse_existing, resolve
from electra.config import PrepareConfig, TokenizerConfig, require

Text = Annotated[
    tuple[str, ...],
    Parameter(
        help="Files, folders or globs of .txt, .jsonl or .parquet, which may be compressed (.gz, "
        ".xz, .zst); - is standard input."
    ),
]


def tokenizer(
    text: Text,
    *,
    out: Path,
    set_: Set = (),
    config: Toml = None,
    dry_run: DryRun = False,
) -> None:
    """Train a WordPiece vocabulary from text: the same text always gives the same file.

    Example: electra tokenizer corpus/*.txt.xz --out vocabulary --set vocab_size=30522

    Parameters
    ----------
    out
        The tokenizer folder to write.
    """
    from electra.corpus.text import TextCounts, read_documents
    from electra.corpus.tokenizer import Tokenizer
    from electra.terminal.live import Progress
    from electra.terminal.printing import print_done

    settings = resolve(TokenizerConfig(), config, set_)
    reading = PrepareConfig()
    files = find_text(text)
    refuse_existing(out)
    if dry_run:
        return print_dry_run(settings, f"read {_describe(files)} and write the tokenizer {out}")
    counts = TextCounts()
    with Progress("vocabulary", unit="documents") as progress:

        def lines() -> Iterator[str]:
            documents = read_documents(
                files, border=reading.border, text_field=reading.text_field, counts=counts
            )
            for number, document in enumerate(documents):
                progress.update(number, None)
                yield from document

        made = Tokenizer.train(lines(), settings)
    made.save(out)
    print_done(
        f"wrote {out}: {made.vocab_size:,} tokens from {counts.characters / 1e6:,.0f} M characters",
        f"electra prepare {shlex.join(text)} --tokenizer {out} --out shards",
    )


def prepare(
    text: Text,
    *,
    tokenizer: Path,
    out: Path,
    engine: Literal["local", "ray"] = "local",
    task: str | None = None,
    finish: bool = False,
    set_: Set = (),
    config: Toml = None,
    dry_run: DryRun = False,
) -> None:
    """Turn text into token shards with a held-out part, which serve every sequence length.

    A document ends at a blank line; with --set border=line or border=file, at the end of each line
    or file. Each record of a .jsonl file and each row of a .parquet file is a document; --set
    text_field=NAME names the field or column that holds its text.

    The same command continues what was interrupted.

    Example: electra prepare corpus/*.txt.xz --tokenizer vocabulary --out shards

    Parameters
    ----------
    tokenizer
        A folder that `electra tokenizer` wrote, a Hugging Face folder, or BERT's vocab.txt.
    out
        The shards folder to write.
    engine
        local: processes of this machine. ray: a Ray cluster.
    task
        I/N: only the share I of N, from 0/N to (N-1)/N, as a job of a queue. --finish follows.
    finish
        Only the last step, when all shares are done.
    """
    from electra.corpus import prepare as preparation
    from electra.corpus.tokenizer import Tokenizer
    from electra.terminal.live import Progress
    from electra.terminal.printing import print_done

    settings = resolve(PrepareConfig(), config, set_)
    share = _parse_share(task) if task else None
    require(not (share and finish), "--task and --finish are two steps; name one of them")
    require(
        engine == "local" or not (share or finish),
        "--engine ray does all tasks and the last step; leave out --task and --finish",
    )
    files = find_text(text)
    loaded = Tokenizer.load(tokenizer)
    refuse_existing(out)
    if dry_run:
        return print_dry_run(settings, f"read {_describe(files)} and write the shards {out}")
    with Progress("preparing", unit="bytes") as progress:

        def tell(done: int, total: int | None, tokens: int) -> None:
            progress.update(done, total, f"{tokens:,} tokens")

        if share:
            number = preparation.prepare_share(text, loaded, out, settings, share, tell)
        elif finish:
            manifest = preparation.finish(text, loaded, out, settings)
        else:
            manifest = preparation.prepare(text, loaded, out, settings, tell, engine=engine)
    if share:
        print_done(
            f"tasks of share {task}: {number:,}",
            f"electra prepare {shlex.join(text)} --tokenizer {tokenizer} --out {out} --finish",
        )
        return
    parts, source = manifest["parts"], manifest["text"]
    notes = [
        f"{parts['train']['num_tokens']:,} tokens in {parts['train']['num_documents']:,} documents",
        f"held out {parts['heldout']['num_tokens']:,} in {parts['heldout']['num_documents']:,}",
        f"unknown tokens {manifest['unk_tokens']:,}",
    ]
    if source["invalid_sequences"]:
        notes.append(f"invalid UTF-8 replaced {source['invalid_sequences']:,} times")
    if manifest["duplicates"]:
        notes.append(f"documents with the text of an earlier one {manifest['duplicates']:,}")
    if manifest["dropped"]:
        found = (f"{number:,} ({reason})" for reason, number in manifest["dropped"].items())
        notes.append(f"documents dropped: {', '.join(found)}")
    print_done(f"wrote {out}: {'; '.join(notes)}", f"electra pretrain {out} --out run")


def _parse_share(text: str) -> tuple[int, int]:
    """Return I and N of "I/N"."""
    number, _, size = text.partition("/")
    is_right = number.isdecimal() and size.isdecimal() and int(number) < int(size)
    require(is_right, f"--task takes I/N with I from 0 to N - 1, not {text!r}")
    return int(number), int(size)


def find_text(text: Sequence[str]) -> Sequence[Path]:
    """Return the files to read, and tell what is passed over and what is waited for."""
    from electra.corpus.sources import find_sources, name_passed_over
    from electra.terminal.printing import print_note

    sources = find_sources(text)
    if sources.passed_over:
        print_note(name_passed_over(sources.passed_over))
    for path in sources.files:
        if path.is_fifo():
            print_note(f"{path} is a pipe; waiting until something is written to it")
    return sources.files


def _describe(files: Sequence[Path]) -> str:
    size = sum(file.stat().st_size for file in files if file.is_file())
    return f"{len(files)} file{'s' if len(files) != 1 else ''} ({size / 1e6:,.1f} MB)"
