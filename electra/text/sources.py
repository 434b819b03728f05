"""The text files that the user's paths, folders and patterns name, and what form each of them has.

A named file is read, or refused if it is not text. In a folder or a pattern, everything that is not
text is skipped and reported: binary files, other encodings, markup, files about the data, and
folders written by the commands, which would otherwise become part of the next corpus. A folder that
cannot be listed is an error.

The name shows the form of .jsonl, .csv, .tsv, .parquet and .arrow files, and the first characters
that of all others.
"""

import glob
import itertools
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from electra.errors import UserError, did_you_mean, require
from electra.files import parse_json
from electra.text.config import TextConfig
from electra.text.streams import (
    DETECT,
    MAX_INVALID_SHARE,
    STDIN,
    UTF8,
    check_encoding,
    compression_of,
    decode_beginning,
    find_mark,
    is_utf8,
    looks_utf8,
    name_other,
    open_source,
    status_of,
)
from electra.text.tables import (
    FORMATS,
    JSON_LINES,
    NAMED_FORMS,
    PAGES,
    PLAIN,
    SEPARATOR_LINE,
    format_of,
    is_binary,
    tell_separator,
)
from electra.text.urls import find_urls, is_dataset, is_url

AS_USUAL = TextConfig()
FIRST_BYTES = 1 << 16
"""Bytes of the decompressed content that decide whether a file is text."""
MAX_ASCII_BLOCKS = 1 << 10
"""Size of the blocks in which a character that shows the encoding is looked for."""
STRAY_SHARE = 0.005
"""Largest share of invalid characters in any text in UTF-8. Most Latin-1 has a larger one."""
FEW_BYTES = 200
"""With fewer bytes no encoding is guessed to advise it."""

WIKI_PAGE = re.compile(r"""<doc\s(?=[^\n]*\bid=["'])[^\n]*["']\s*>\s*""")
"""First line of a page that WikiExtractor writes, with any attributes; the last is "</doc>"."""
EXTRACT = "its text has to be extracted first"
FOREIGN = {
    r"<mediawiki\b": "a dump of MediaWiki; WikiExtractor makes text of it",
    r"(<!--.*?-->\s*)*(<\?xml[^>]*>\s*)?(<!doctype html|<html)\b": f"HTML; {EXTRACT}",
    r"(<!--.*?-->\s*)*(<\?xml|<!doctype)\b": f"XML; {EXTRACT}",
    r"WARC/\d": f"a WARC archive of web pages; {EXTRACT}",
    r"%!PS|\{\\rtf": f"PostScript or RTF; {EXTRACT}",
    r"--[- \n]*(mysql|mariadb|postgresql|sqlite)\b.*dump": "a dump of SQL",
    r"(insert into|create table)( if not exists)? [`\"\w.]+\s*(\(|values)": "SQL",
    r"(webvtt\b.*\s+)?(\d+\s+)?(\d\d:)?\d\d:\d\d[,.]\d{3} -->": f"subtitles; {EXTRACT}",
    r"# (newdoc|sent_id|text|global\.columns)\b.*\n(#.*\n)*\S+\t\S": "a table of CoNLL-U",
    r"(?-i:[0-9a-f]{32}|[0-9a-f]{40}|[0-9a-f]{64}|[0-9a-f]{128}) [ *]\S": "a list of hashes",
    r"[\[{]\s*\{?\s*'[^'\n]*'\s*:": "Python's way of writing records; write JSON",
}
"""How what is no text begins, in any case, and what it is."""
MARKUP = re.compile(r"<[a-z][\w:.-]*(\s[^<>]*)?/?>.*(</[a-z]|/>)", re.IGNORECASE | re.DOTALL)
JSON_OBJECT = re.compile(r'\{\s*(?:"(?:[^"\\]|\\.)*"\s*:|\}\s*$)')
JSON_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
JSON_ARRAY = re.compile(r'\[\s*(?:\{\s*["}]|"(?:[^"\\]|\\.)*"\s*[,\]])')
FEW_LINES = 10
"""Lines by which JSON lines and tables are recognised."""
PROSE = {".txt", ".text", ".md", ".markdown", ".rst"}
"""Names of plain text, which may hold tags, and tabs between words."""
ABOUT_DATA = {"readme", "license", "licence", "copying", "notice", "citation", "changelog"}
ABOUT_DATA |= {"metadata", "checksums", "manifest", "contributing", "authors", "version"}
SETTINGS_FORMATS = {".yaml", ".yml", ".toml", ".ini", ".cfg", ".lock"}

DATASET_MARKS = {"dataset_info.json", "state.json"}
"""Files of a folder that `datasets` saved. Its text is in its .arrow files."""
WRITTEN_FOLDERS = {
    "a shards folder": {"manifest.json", "tokenizer", "heldout-00000.tokens"},
    "a tokenizer folder": {"tokenizer.json", "tokenizer_config.json"},
    "a model folder": {"config.json", "model.safetensors"},
    "a run or fine-tuning folder": {"config.json", "manifest.json"},
    "a quickstart folder": {"tokenizer", "shards", "run", "exported", "report.html"},
}
"""Folders written by the commands, each recognised by names that no other folder holds together."""
INCOMPLETE = ".incomplete"
"""Suffix of files and folders that a command has not finished."""
UNREPORTED = ("empty", "a folder")
"""Kinds of paths in a folder or a pattern that are skipped without a report."""
MAX_NAMED = 8
"""Skipped files and folders that a message names. The rest is a number."""

Named = Sequence[tuple[Path, str]]


class Source(NamedTuple):
    """The kind of a file, as its name and its first bytes show."""

    form: str | None
    """None: it is no text."""
    kind: str = ""
    """Why it is no text."""
    encoding: str = UTF8


@dataclass(frozen=True)
class Sources:
    """The files to read, each once, and the skipped files and folders."""

    files: tuple[Path, ...]
    passed_over: tuple[tuple[Path, str], ...] = ()
    """Skipped files and folders, each with its kind, such as "binary"."""
    encodings: tuple[tuple[Path, str], ...] = ()
    """Files that are not UTF-8 and the encoding detected for each."""
    links: tuple[tuple[Path, str], ...] = ()
    """Files outside the folder where a link to them was found, and where."""


def find_sources(paths: Sequence[str], settings: TextConfig = AS_USUAL) -> Sources:
    """Return the text files that paths, folders and patterns name; "-" is standard input.

    A folder names all files below it, sorted, without hidden and empty files. A pipe is read only
    if it is named itself. A name may be a URL, or datasets:NAME. A folder that cannot be listed is
    an OSError.
    """
    require(bool(paths), "no text given; name files, folders or globs, or - for standard input")
    encoding = settings.encoding
    check_encoding(encoding)
    files: list[Path] = []
    passed_over: list[tuple[Path, str]] = []
    links: list[tuple[Path, str]] = []
    looks: dict[Path, Source] = {}
    for name in paths:
        require(bool(name), "an empty name among the texts; . is this folder")
        path = Path(name)
        if path == STDIN or is_dataset(name):
            files.append(path)
            continue
        if is_url(name):
            found, rule = find_urls(name), f"{name} names no files with text"
        elif path.is_dir():
            kind = _kind_of(path)
            require(not kind, f"{name} is {kind}, not text")
            found = sorted(_walk(path, passed_over))
            rule = f"the folder {name} holds no files with text"
        elif path.exists():
            # A pipe is not looked into, because that would consume it.
            looks[path] = Source(PLAIN) if path.is_fifo() else look(path, settings)
            kind = looks[path].kind
            as_it_is = kind and look(path, replace(settings, form="text"))[0]
            advice = " (--set form=text reads it as plain text)" if as_it_is else ""
            require(not kind, f"{path} is not text: {kind}{advice}")
            files.append(path)
            continue
        else:
            found = sorted(_match(name, passed_over))
            rule = f"{'no file matches' if glob.has_magic(name) else 'there is no file'} {name}"
        seen = {path: look(path, settings) for path in found}
        looks |= seen
        chosen = _choose_text(seen, passed_over)
        require(bool(chosen), "; ".join(filter(None, (rule, name_passed_over(passed_over)))))
        files += chosen
        links += [] if is_url(name) else _find_links(name, chosen)
    files = list(dict.fromkeys(files))
    told = [(path, looks[path].encoding) for path in files if path in looks]
    others = tuple((path, name) for path, name in told if encoding == DETECT and not is_utf8(name))
    return Sources(tuple(files), tuple(dict.fromkeys(passed_over)), others, tuple(links))


def encoding_of(path: Path, settings: TextConfig) -> str:
    """Return the encoding of a file: the one named, or detected where it has more than ASCII."""
    if settings.encoding != DETECT:
        return settings.encoding
    if path == STDIN or is_dataset(path) or path.is_fifo():
        return UTF8  # reading it would consume it
    return look(path, settings).encoding


def _detect(blocks: Iterator[bytes]) -> str:
    """Return the encoding of a file, from where it has more than ASCII; "" if it is no text."""
    from electra.text.encodings import detect

    first = itertools.islice(blocks, MAX_ASCII_BLOCKS)
    told = next((block for block in first if not block.isascii() or b"\0" in block), b"")
    return detect(told + next(blocks, b""))


def name_passed_over(passed_over: Named) -> str:
    """Return a sentence on the skipped files and folders, or "" if there are none."""
    return name_first("skipped, because not text", passed_over)


def name_first(what: str, found: Named) -> str:
    """Return a sentence that names the first files, each with its kind, or "" if there are none."""
    named = [f"{path} ({kind})" for path, kind in found[:MAX_NAMED]]
    if len(found) > MAX_NAMED:
        named.append(f"and {len(found) - MAX_NAMED:,} more")
    return f"{what}: {', '.join(named)}" if named else ""


def _walk(top: Path, passed_over: list[tuple[Path, str]]) -> Iterator[Path]:
    """Yield the files below a folder, except hidden files and folders written by the commands."""
    for name, subfolders, names in os.walk(top, onerror=_raise):
        folder = Path(name)
        entered = []
        for path in (folder / each for each in sorted(subfolders) if not each.startswith(".")):
            kind = "a link to a folder" if path.is_symlink() else _kind_of(path)
            if kind:
                passed_over.append((path, kind))
            else:
                entered.append(path.name)
        subfolders[:] = entered
        is_dataset_folder = DATASET_MARKS.issubset(names)
        for each in names:
            is_hidden = each.startswith(".") or each == "dataset_dict.json"
            if not is_hidden and (each.endswith(".arrow") or not is_dataset_folder):
                yield folder / each


def _raise(error: OSError) -> None:
    raise error


def _kind_of(folder: Path) -> str:
    """Return the kind of a folder written by a command, or "" for any other folder."""
    names = {path.name for path in folder.iterdir()}
    if folder.name.endswith(INCOMPLETE):
        return "an unfinished folder"
    return next((kind for kind, marks in WRITTEN_FOLDERS.items() if marks <= names), "")


def _match(pattern: str, passed_over: list[tuple[Path, str]]) -> Iterator[Path]:
    """Yield the paths that match a pattern, except those in folders written by the commands."""
    parts = Path(pattern).parts
    magic = [number for number, part in enumerate(parts) if glob.has_magic(part)]
    for number in magic:
        looked_through = Path(*parts[:number], "**" if parts[number] == "**" else "")
        # Path.glob refuses absolute patterns. The final slash selects folders only.
        for name in glob.iglob(f"{looked_through}/", recursive=True):  # noqa: PTH207
            list(Path(name).iterdir())  # an OSError, which the glob module would ignore
    kind_of = cache(_kind_of)
    for path in map(Path, glob.iglob(pattern, recursive=True)):  # noqa: PTH207
        lengths = range(min(magic, default=len(parts)), len(path.parts))
        folders = (Path(*path.parts[:length]) for length in lengths)
        written = next((folder for folder in folders if kind_of(folder)), None)
        if written is None:
            yield path
        else:
            passed_over.append((written, kind_of(written)))


def _find_links(name: str, files: Sequence[Path]) -> Iterator[tuple[Path, str]]:
    """Yield the files that are not in the folder of a name or pattern, but linked from there."""
    plain = itertools.takewhile(lambda part: not glob.has_magic(part), Path(name).parts)
    top, place_of = Path(*plain).resolve(), cache(Path.resolve)
    for path in files:
        place = place_of(path) if path.is_symlink() else place_of(path.parent) / path.name
        if not place.is_relative_to(top):
            yield path, f"a link to {place}"


def _choose_text(looks: Mapping[Path, Source], passed_over: list[tuple[Path, str]]) -> list[Path]:
    """Return the text files, and report what else is there, such as files about the data."""
    texts = [path for path, source in looks.items() if source.form]
    formats = Counter(map(format_of, texts))
    homes = {
        folder
        for path in texts
        if looks[path].form not in (PLAIN, PAGES)
        for folder in path.parents
    }
    chosen = []
    for path, (form, kind, _) in looks.items():
        is_rare = 2 * formats[format_of(path)] < len(texts)
        is_about = path.name.partition(".")[0].lower() in ABOUT_DATA
        is_beside = path.parent in homes and (is_about or format_of(path) not in (".txt", ".text"))
        if form == PLAIN and (
            is_beside or (is_rare and (is_about or format_of(path) in SETTINGS_FORMATS))
        ):
            kind = "looks like a file about the data, such as a README; pass it by name to read it"
        if kind not in UNREPORTED and path.name.endswith(INCOMPLETE):
            kind = "an unfinished file"
        if not kind:
            chosen.append(path)
        elif kind not in UNREPORTED:
            passed_over.append((path, kind))
    return chosen


def look(path: Path, settings: TextConfig) -> Source:
    """Return the form and the encoding of a file, or why it is no text, by its first bytes."""
    try:
        status = status_of(path)
    except FileNotFoundError:
        return Source(None, "a link to nothing")
    if not stat.S_ISREG(status.st_mode):
        return Source(None, "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file")
    if not status.st_size:
        return Source(None, "empty")
    name = settings.encoding
    with open_source(path) as (source, stream):
        first, is_compressed = stream.read(FIRST_BYTES), source is not stream
        if name == DETECT and not is_binary(path):
            rest = iter(lambda: stream.read(FIRST_BYTES), b"")
            name = _detect(itertools.chain([first], rest))
    if is_binary(path):
        form = NAMED_FORMS[format_of(path)]
        is_one = bool(FORMATS[form].begins) and first.startswith(FORMATS[form].begins)
        other = "" if is_one else name_other(first)
        return Source(None, other) if other else Source(form)
    is_told = settings.encoding != DETECT
    why = why_no_text(first, name) if is_told else "" if name else "binary"
    if kind := name_other(first) or why:
        if kind == "binary" and compression_of(path) and not is_compressed:
            kind = f"damaged: it does not begin as {compression_of(path)} files do"
        return Source(None, kind)
    head, _ = decode_beginning(first, name)
    return Source(*tell_form(path, head, settings, is_whole=len(first) < FIRST_BYTES), name)


def why_no_text(first: bytes, encoding: str) -> str:
    """Return why a file that begins with these bytes is no text in this encoding, or ""."""
    if not is_utf8(encoding):
        return "" if _is_mostly(first, encoding) else f"not {encoding}"
    if mark := find_mark(first):
        return f"{mark.upper()}; read it with --set encoding={mark}"
    if b"\0" in first:
        return "binary"
    if looks_utf8(first, STRAY_SHARE):
        return ""
    from electra.text.encodings import guess

    try:
        likely = guess(first) if len(first) >= FEW_BYTES else ""
    except UserError:
        likely = ""
    is_text = _is_mostly(first, UTF8)
    likely = likely or ("cp1252" if is_text else "")
    advice = f"; if it is {likely}, read it with --set encoding={likely}" if likely else ""
    return f"{'' if is_text else 'binary, or text that is '}not UTF-8{advice}"


def tell_form(
    path: Path, head: str, settings: TextConfig, *, is_whole: bool
) -> tuple[str | None, str]:
    """Return the form of a file, by its name or first characters; or None and the reason.

    `is_whole`: whether `head` is the whole file.
    """
    kind = format_of(path)
    if kind in NAMED_FORMS:
        return NAMED_FORMS[kind], ""
    head = head.removeprefix("\ufeff").lstrip()
    if settings.form == "text":
        return PLAIN, ""
    if WIKI_PAGE.match(head):
        return PAGES, ""
    for pattern, what in FOREIGN.items():
        if re.match(pattern, head, re.IGNORECASE):
            return None, what
    lines = head.split("\n")
    if len(lines) > 1 and not is_whole:
        lines.pop()  # cut off
    lines = [line for line in lines if line.strip()][:FEW_LINES]
    if head[:1] == '"' and _are_strings(lines, is_prose=kind in PROSE):
        return JSON_LINES, ""
    if head[:1] in ("{", "["):
        return _tell_json(head, lines, settings.text_field, is_whole=is_whole)
    if kind not in PROSE and MARKUP.match(head):
        return None, f"markup; {EXTRACT}"
    return _tell_table(lines, settings.text_field, is_prose=kind in PROSE)


def _tell_json(
    head: str, lines: Sequence[str], text_field: str, *, is_whole: bool
) -> tuple[str | None, str]:
    """Return the form of what begins with a bracket: JSON or plain text."""
    values = [_parse_record(line) for line in lines]
    records: list[Any] = [value for value in values if value is not None]
    form = JSON_LINES
    if 2 * len(records) > len(lines):
        if len(lines) == 1 and isinstance(records[0], list) and {*map(type, records[0])} != {int}:
            form, records = "JSON", records[0]
    elif not (JSON_OBJECT if head[0] == "{" else JSON_ARRAY).match(head):
        return PLAIN, ""
    elif len(lines) > 1 or head[0] == "[":
        form = "JSON"
        value = _parse_record(head) if is_whole else None
        records = value if isinstance(value, list) else [value]
        if value is None and f'"{text_field}"' not in head:
            return None, f"JSON without the field {text_field!r}"
    found = [each for each in records if isinstance(each, dict) and each]
    if found and not any(text_field in each for each in found):
        return None, f"JSON without the field {text_field!r}{did_you_mean(text_field, found[0])}"
    return form, ""


def _are_strings(lines: Sequence[str], *, is_prose: bool) -> bool:
    """Return whether each line is a string of JSON; one line of prose is rather a quotation."""
    is_one = is_prose and len(lines) == 1
    return not is_one and all(JSON_STRING.fullmatch(line.strip()) for line in lines)


def _parse_record(line: str) -> Any:
    """Return the object or the list that a line is; None: it is something else."""
    try:
        value = parse_json(line.strip(), "")
    except UserError:
        return None
    return value if isinstance(value, dict | list) else None


def _tell_table(lines: Sequence[str], text_field: str, *, is_prose: bool) -> tuple[str | None, str]:
    """Return the form of lines: a table with the column that holds the text, or plain text."""
    if lines and SEPARATOR_LINE.fullmatch(lines[0]):
        lines = lines[1:]
    if len(lines) > 1:
        separator = tell_separator(lines[0])
        columns = [name.strip('" \r') for name in lines[0].split(separator)]
        is_even = len({line.count("\t") for line in lines}) == 1
        is_table = is_even if separator == "\t" else lines[1].count(separator) >= len(columns) - 1
        is_table = is_table and len(columns) > 1 and bool(columns[0])  # one of Markdown has none
        if text_field in columns and is_table:
            return ("TSV" if separator == "\t" else "CSV"), ""
        if "\t" in lines[0] and is_even and len(lines) > 2 and not is_prose:
            return None, f"a tab-separated table without a column {text_field!r}"
    return PLAIN, ""


def _is_mostly(first: bytes, encoding: str) -> bool:
    """Return whether most of a text is valid in an encoding."""
    try:
        text, num_invalid = decode_beginning(first, encoding)
    except UnicodeError:
        return False
    return num_invalid <= MAX_INVALID_SHARE * len(text)
