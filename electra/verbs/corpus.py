"""tokenizer, prepare and inspect: from text to shards, and what is in them."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from electra.assignments import override, override_from_toml
from electra.checkpoints.bundled import find_model
from electra.errors import command, count_of, require
from electra.files import read_text
from electra.objects import is_url, place_of
from electra.reports.glossary import format_count
from electra.shards.config import PrepareConfig
from electra.terminal.live import Progress
from electra.terminal.printing import (
    print_done,
    print_json,
    print_lines,
    print_note,
    print_sections,
    print_step,
    print_table,
    print_tokens,
)
from electra.text.config import TextConfig
from electra.tokenizing.config import TokenizerConfig
from electra.verbs.arguments import (
    as_list,
    as_path,
    as_words,
    keeping,
    parse_share,
    refuse_existing,
    repeat,
)
from electra.verbs.options import DryRun, Place, Planned, Set, Toml, Words, settings_of, verb

if TYPE_CHECKING:
    from electra.tokenizing.tokenizer import Tokenizer

Text = Annotated[
    Sequence[str | Path],
    Parameter(
        help="Files, folders or globs of .txt, .jsonl, .parquet, .arrow, .csv or .tsv, which may "
        "be compressed (.bz2, .gz, .xz, .zst); URLs; datasets:NAME; - is standard input."
    ),
]
MOST_IDS = 10_000_000
"""Beyond, the embeddings of any encoder are larger than the memory of a machine."""
SAMPLE_CHARS = 1_000_000
"""Characters of the text that are cut with a new vocabulary, to show what it does."""
MIN_SHARE = 0.001
"""Share of the words from which on a script is worth a note."""
MANY_UNKNOWN = 0.01
"""Share of unknown tokens beyond which a vocabulary does not fit a text."""
FEW_HELDOUT = 20_000
"""Held-out tokens below which a loss says little. At 15% they are 3,000 predictions; if the loss of
one has a standard deviation of 2.5 (assumed), that of their mean is 0.05."""
NEEDS_NO_MARKS = {"Latin", "Greek", "Cyrillic", "Hebrew", "Arabic", "digits", "signs"}
"""Scripts in which a letter without its combining marks is still read as that letter."""


@verb
def tokenizer(
    text: Text = (),
    *,
    out: Place,
    kind: Literal["wordpiece", "bpe", "unigram"] | None = None,
    extend: Place | None = None,
    ids: str | None = None,
    settings: Annotated[Set, settings_of(TokenizerConfig())] = (),
    config: Toml = None,
    dry_run: DryRun = False,
) -> "Tokenizer":
    """Train a vocabulary from text: the same text always gives the same file.

    Example: electra tokenizer corpus/*.txt.xz --out vocabulary --set vocab_size=30522

    Args:
        out: The tokenizer folder to write.
        kind: wordpiece (BERT's; if not given), bpe (byte-level) or unigram (SentencePiece's). The
            same as --set kind=...
        extend: A tokenizer that keeps its tokens and their ids and gains those that shorten this
            text most.
        ids: For sequences other than text: the number of ids, or a file with the name of one id per
            line. `electra prepare` then reads lists of these ids. Cannot be given with TEXT.

    Returns:
        The tokenizer.
    """
    from electra.text.documents import Reader
    from electra.tokenizing.extend import extend as extend_tokenizer
    from electra.tokenizing.tokenizer import Tokenizer

    out, names = Path(out), list(map(str, as_list(text)))
    given = [*([f"kind={kind}"] if kind else []), *as_words(settings)]
    old = Tokenizer.load(Path(extend)) if extend else None
    usual = TokenizerConfig()
    if old and old.kind != "WordLevel":  # which cannot be extended
        usual = override(usual, [f"kind={old.kind.lower()}"])
    resolved = override_from_toml(usual, as_path(config), given)
    refuse_existing(out)
    if ids is not None:
        require(
            not names and not extend and not given and config is None,
            "--ids declares a vocabulary; it takes no text and no settings",
        )
        return _declare(ids, out, dry_run)
    for name in ("kind", "lowercase", "strip_accents", "split_ideographs") if old else ():
        is_old = getattr(resolved, name) == getattr(usual, name)
        require(is_old, f"{name} is that of the old vocabulary, {extend}; leave it out")
    files = find_text(names, resolved)
    if dry_run:
        raise Planned(resolved, f"read {_describe(files)} and write the tokenizer {out}")
    reader = Reader(settings=resolved)
    counts = reader.counts
    sample: list[str] = []
    with Progress("vocabulary", unit="characters") as progress:

        def lines() -> Iterator[str]:
            room = SAMPLE_CHARS
            for document in reader.read(files):
                progress.update(counts.characters, None)
                if room > 0:
                    sample.extend(document)
                    room -= sum(map(len, document))
                yield from document
            progress.update(counts.characters, counts.characters, "read; finding the tokens")

        made = (
            extend_tokenizer(old, lines(), resolved) if old else Tokenizer.train(lines(), resolved)
        )
    made.save(out)
    told = f"{made.vocab_size:,} tokens from {format_count(counts.characters)} characters"
    if old:
        told = f"{made.vocab_size - old.vocab_size:,} tokens added to {old.vocab_size:,}"
    told = "; ".join([told, *_tell_reading(vars(counts))])
    _note_marks(made, sample)
    reading = [
        f"{field.name}={getattr(resolved, field.name)}"
        for field in dataclasses.fields(TextConfig)
        if getattr(resolved, field.name) != field.default
    ]
    prepare_it = command("prepare", *names, "--tokenizer", out, "--out", "shards", *repeat(reading))
    model = extend if extend and (Path(extend) / "model.safetensors").exists() else "MODEL"
    import_it = command("import", model, "--extend", out, "--out", "extended")
    print_done(f"wrote {out}: {told}", import_it if old else prepare_it)
    return made


def _declare(ids: str, out: Path, dry_run: bool) -> "Tokenizer":
    """Write a vocabulary of ids that are no text: so many, or one for each line of a file."""
    from electra.tokenizing.tokenizer import Tokenizer

    if ids.isdecimal():
        require(int(ids) <= MOST_IDS, f"--ids must be <= {MOST_IDS:,}, not {ids}")
        names = list(map(str, range(int(ids))))
    else:
        names = read_text(Path(ids)).removeprefix("\ufeff").splitlines()
    made = Tokenizer.declare(names)
    if dry_run:
        raise Planned(None, f"write {made.vocab_size:,} ids as the tokenizer {out}")
    made.save(out)
    print_done(
        f"wrote {out}: {made.vocab_size - 5:,} ids and 5 special tokens",
        command("prepare", "SEQUENCES.jsonl", "--tokenizer", out, "--out", "shards"),
    )
    return made


def _note_marks(made: "Tokenizer", sample: Sequence[str]) -> None:
    """Say where the vocabulary loses letters of a script, or does not know its characters."""
    from electra.reports.inspection import report_text

    report = report_text(made, sample)
    for script, share in report.scripts.items():
        if share.words < MIN_SHARE * report.total.words:
            continue
        if script not in NEEDS_NO_MARKS and share.marks_removed > 0.05 * share.characters:
            print_note(
                f"strip_accents removes {share.marks_removed / share.characters:.0%} of the "
                f"characters of {script}, which are letters there: --set strip_accents=false keeps "
                "them"
            )
        if share.unknown > MANY_UNKNOWN * share.tokens:
            print_note(
                f"{share.unknown / share.tokens:.1%} of the tokens of {script} are unknown: see "
                "electra inspect TOKENIZER --text FILE"
            )


@verb
def prepare(
    text: Text,
    *,
    tokenizer: Place,
    out: Place,
    engine: Literal["local", "ray"] = "local",
    task: str | None = None,
    finish: bool = False,
    settings: Annotated[Set, settings_of(PrepareConfig())] = (),
    config: Toml = None,
    dry_run: DryRun = False,
) -> dict[str, Any]:
    """Turn text into token shards with a held-out part, which serve every sequence length.

    A document ends at a blank line or, in a long file with hardly any blank lines, at the end of
    each line. --set border=line makes every line a document, border=file every file. Each record of
    a .jsonl file and each row of a .parquet file is a document; --set text_field=NAME names the
    field or column that holds its text.

    The same command continues what was interrupted.

    Example: electra prepare corpus/*.txt.xz --tokenizer vocabulary --out shards

    Args:
        tokenizer: A folder that `electra tokenizer` wrote, a run, a Hugging Face folder, a
            tokenizer.json, BERT's vocab.txt, or a SentencePiece .model.
        out: The shards folder to write, or its URL.
        engine: local: processes of this machine. ray: a Ray cluster.
        task: I/N: do only share I of N, from 0/N to (N-1)/N, as one job of a queue. Run --finish
            after all shares.
        finish: Do only the last step, after all shares are done.

    Returns:
        The contents of manifest.json; of a share its number of "pieces".
    """
    from electra.shards import prepare as preparation
    from electra.tokenizing.tokenizer import Tokenizer

    names, place, words = list(map(str, as_list(text))), Path(tokenizer), as_words(settings)
    resolved = override_from_toml(PrepareConfig(), as_path(config), words)
    share = None if task is None else parse_share(task)
    require(not (share and finish), "--task and --finish are two steps; name one of them")
    require(
        engine == "local" or not (share or finish),
        "--engine ray does the whole preparation; leave out --task and --finish",
    )
    files = find_text(names, resolved)
    loaded = Tokenizer.load(place)
    if not is_url(out):
        refuse_existing(Path(out))
    out = place_of(out)
    if dry_run:
        raise Planned(resolved, f"read {_describe(files)} and write the shards {out}")
    given = (names, loaded, out, resolved)
    incomplete = preparation.incomplete_folder(out)
    kept = keeping(incomplete, "finished piece", "tasks/*/task.json")
    with kept, Progress("preparing", unit="bytes") as progress:

        def tell(done: int, total: int | None, tokens: int) -> None:
            progress.update(done, total, f"{tokens:,} tokens")

        if share:
            manifest = {"pieces": preparation.prepare_share(*given, share, tell)}
        elif finish:
            manifest = preparation.finish(*given)
        else:
            manifest = preparation.prepare(*given, tell, engine=engine)
    if share:
        following = ("prepare", *names, "--tokenizer", place, "--out", out)
        print_done(
            f"pieces of share {task}: {manifest['pieces']:,}",
            command(*following, *repeat(words, as_path(config)), "--finish"),
        )
        return manifest
    _note_unknown(manifest, place)
    _note_heldout(manifest, resolved.heldout_prob)
    is_model = any((place / name).exists() for name in ("model.safetensors", "checkpoints"))
    start = ("--init-from", place) if is_model else ()
    counts = "; ".join(_tell_counts(manifest))
    print_done(f"wrote {out}: {counts}", command("pretrain", out, *start, "--out", "run"))
    return manifest


def _note_unknown(manifest: dict[str, Any], tokenizer: Path) -> None:
    share = manifest["unk_tokens"] / sum(p["num_tokens"] for p in manifest["parts"].values())
    if share > MANY_UNKNOWN:
        print_note(
            f"{share:.1%} of the tokens are unknown: the vocabulary is not one of this text; see "
            + command("inspect", tokenizer, "--text", "FILE")
        )


def _note_heldout(manifest: dict[str, Any], heldout_prob: float) -> None:
    """Say that the held-out part is too small to measure with, and how it becomes larger."""
    train, heldout = manifest["parts"]["train"], manifest["parts"]["heldout"]
    if not heldout_prob or heldout["num_tokens"] >= FEW_HELDOUT:
        return  # 0 is a choice
    total = train["num_tokens"] + heldout["num_tokens"]
    share = min(0.1, math.ceil(200 * FEW_HELDOUT / total) / 100)
    advice = f"--set heldout_prob={share:g} holds out about {share * total:,.0f}"
    if share <= heldout_prob:  # the few documents that were drawn are short ones
        advice = (
            "a larger heldout_prob, shorter documents (--set border=...) or more text give more"
        )
    elif share * total <= heldout["num_tokens"]:
        advice = "more text gives more"
    print_note(
        f"the held-out part has {heldout['num_tokens']:,} tokens in "
        f"{count_of(heldout['num_documents'], 'document')}, too few to compare losses by "
        f"({FEW_HELDOUT:,} or more are enough); {advice}"
    )


def _tell_counts(manifest: dict[str, Any]) -> Iterator[str]:
    """Yield what a manifest of shards counts, without what did not occur."""
    train, heldout = manifest["parts"]["train"], manifest["parts"]["heldout"]
    yield f"{train['num_tokens']:,} tokens in {count_of(train['num_documents'], 'document')}"
    yield f"held out {heldout['num_tokens']:,} tokens in {heldout['num_documents']:,}"
    yield f"unknown tokens {manifest['unk_tokens']:,}"
    text = manifest["text"]
    yield from _tell_reading(text)
    if lines := text["files_of_lines"]:
        yield (
            "files with few blank lines or none, each line a document "
            f"{lines:,} (--set border=file: each file one document)"
        )
    if files := text.get("files_of_one_document"):
        yield (
            f"files of many lines without a blank one, each file a document {files:,} (--set "
            "border=line: each line one document)"
        )
    if manifest["duplicates"]:
        yield f"documents with the text of an earlier one {manifest['duplicates']:,}"
    if manifest["dropped"]:
        found = (f"{number:,} ({reason})" for reason, number in manifest["dropped"].items())
        yield f"documents dropped: {', '.join(found)}"


def _tell_reading(counts: Mapping[str, Any]) -> Iterator[str]:
    """Yield what was read as what, and what was not read, of the counts of a text."""
    found = counts.get("forms") or {"plain text": counts["files"]}
    forms = (f"{number:,} as {form}" for form, number in found.items())
    yield f"files read: {', '.join(forms)}"
    if empty := counts.get("empty"):
        yield f"records and pages without text passed over {empty:,}"
    if invalid := counts["invalid_sequences"]:
        yield f"invalid bytes replaced {invalid:,} times (or --set encoding=detect)"


@verb
def inspect(
    folder: Place,
    *,
    text: Words = (),
    json: bool = False,
    settings: Annotated[
        Set, Parameter(help="How --text is read: text_field=NAME, encoding=NAME, form=text.")
    ] = (),
) -> dict[str, Any]:
    """Show what a tokenizer does with a text, or the contents of a shards folder or a run.

    For shards, it checks the sha256 of every file. For a run, a fine-tuning or an export, it shows
    the tables of `electra report` and held-out samples.

    Example: electra inspect vocabulary --text corpus/*.txt.xz

    Args:
        folder: A tokenizer, as for `electra prepare`, a shards folder (either may be at a URL), a
            run, a fine-tuning or an export.
        text: The text for a tokenizer: files, folders or globs.
        json: Print one JSON object.

    Returns:
        Its contents, as with --json.
    """
    from electra.reports.inspection import describe_text, report_text
    from electra.text.documents import Reader
    from electra.tokenizing.tokenizer import Tokenizer

    folder, words = find_model(place_of(folder)), as_words(settings)
    require(
        folder.suffix != ".toml" or not folder.is_file(),
        f"{folder} is a mixture; inspect its shards folders one by one",
    )
    is_shards = (folder / "manifest.json").is_file()
    if not text:
        require(is_url(folder) or folder.exists(), f"{folder} does not exist")
        require(not words, "--set is for reading a --text")
        if not is_url(folder) and any((folder / name).is_file() for name in OF_TRAINING):
            return _inspect_training(folder, json=json)
        require(
            is_shards or is_url(folder),
            f"{folder} is not a shards folder; to see what a tokenizer does, name a text by --text",
        )
        return _inspect_shards(folder, json=json)
    loaded = Tokenizer.load(folder / "tokenizer" if is_shards else folder)
    resolved = override_from_toml(TokenizerConfig(), None, words)
    reader = Reader(settings=resolved, names=loaded.names)
    documents = reader.read(find_text(list(map(str, as_list(text))), resolved))
    report = report_text(loaded, (line for document in documents for line in document))
    if json:
        print_json(report.as_json())
    else:
        print_sections(describe_text(loaded, report))
    return report.as_json()


def _inspect_shards(folder: Path, *, json: bool) -> dict[str, Any]:
    from electra.reports.inspection import describe_shards, report_shards
    from electra.shards.store import open_shards

    with Progress("reading", unit="documents") as progress:
        shards = open_shards(folder, verify="anew")
        found = report_shards(shards, progress.update)
    if json:
        print_json(found)
    else:
        print_sections(describe_shards(shards, found))
    return found


OF_TRAINING = ("config.json", "metrics.jsonl", "results.json")
"""One of them is in every run, fine-tuning and export, and in no shards folder."""


def _inspect_training(folder: Path, *, json: bool) -> dict[str, Any]:
    """Print the tables of a report about a run, a fine-tuning or an export, and samples."""
    from electra.reports.runs import list_tables, read_folders, read_samples

    found = read_folders([folder])
    tables, samples = list_tables(found), read_samples(folder) if found.runs else []
    rows = [[token._asdict() for token in row] for row in samples]
    content = {"tables": [table._asdict() for table in tables], "samples": rows}
    if json:
        print_json(content)
        return content
    for table in tables:
        print_table(table.rows, table.headers)
        print_lines([""])
    for row in samples[:1]:
        print_step("A held-out row, as the discriminator judges it")
        print_tokens(row)
    if samples:
        print_lines([f"{folder / 'samples.json'}: {count_of(len(samples), 'such row')}"])
    print_done(f"read {folder}", command("report", folder, "--out", "report.html"))
    return content


def find_text(text: Sequence[str], settings: TextConfig) -> Sequence[Path]:
    """Return the files to read, and print what is passed over and what is waited for."""
    from electra.text.sources import find_sources, name_first, name_passed_over

    sources = find_sources(text, settings)
    if sources.encodings:
        print_note(name_first("encodings detected", sources.encodings))
    if sources.links:
        print_note(name_first("read from outside the folder, through links", sources.links))
    if sources.passed_over:
        print_note(name_passed_over(sources.passed_over))
    for path in sources.files:
        if path.is_fifo():
            print_note(f"{path} is a pipe; waiting until something is written to it")
    return sources.files


def _describe(files: Sequence[Path]) -> str:
    size = sum(file.stat().st_size for file in files if file.is_file())
    return f"{count_of(len(files), 'file')} ({size / 1e6:,.1f} MB)"
