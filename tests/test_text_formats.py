"""Where text comes from: tables, pages, datasets, URLs, other encodings, ids, hostile bytes."""

import bz2
import csv
import gzip
import io
import json
import lzma
import os
import sys
import tarfile
import zipfile
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from languages import TEXTS
from refusals import refuse
from tasks import write_files, write_parquet

from electra.errors import UserError
from electra.shards.config import PrepareConfig
from electra.shards.pieces import list_pieces
from electra.shards.prepare import prepare
from electra.shards.store import open_shards
from electra.text.config import TextConfig
from electra.text.documents import Reader, close_last
from electra.text.encodings import detect
from electra.text.sources import find_sources, name_first
from electra.text.table_files import read_table
from electra.text.urls import locate
from electra.tokenizing.config import TokenizerConfig
from electra.tokenizing.tokenizer import Tokenizer

COMPRESS = {
    "plain": bytes,
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "lzma": lambda content: lzma.compress(content, lzma.FORMAT_ALONE),
    "zst": lambda content: pytest.importorskip("zstandard").compress(content),
}
ROWS = [("1", 'said "no", twice'), ("2", "two\nlines"), ("3", "naïve 中文")]
DOCUMENTS = [['said "no", twice'], ["two", "lines"], ["naïve 中文"]]


def read(*names, border="blank", **settings):
    settings = TextConfig(**settings)
    sources = find_sources([str(name) for name in names], settings)
    reader = Reader(settings=settings, border=border)
    return list(reader.read(sources.files)), reader.counts


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_tables(tmp_path, newline):
    path = tmp_path / "a.csv"
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file, lineterminator=newline).writerows([("n", "text"), *ROWS])
    assert read(path)[0] == DOCUMENTS
    (tmp_path / "a.csv.xz").write_bytes(lzma.compress(path.read_bytes()))
    assert read(tmp_path / "a.csv.xz")[0] == DOCUMENTS
    path = tmp_path / "a.tsv"  # without quoting
    path.write_text(newline.join(["text\tn", '"five" o\'clock\t1', "", "b\t2"]), newline="")
    assert read(path)[0] == [['"five" o\'clock'], ["b"]]
    refuse("a.tsv: no column 'body'; choose from text, n", lambda: read(path, text_field="body"))
    path.write_text("text\tn\nonly\n")
    refuse("a.tsv line 2: 1 tab-separated fields; it must have 2", lambda: read(path))
    (tmp_path / "b.csv").write_text('n,text\n1,"never closed\n2,b\n')
    refuse("b.csv line 2: not valid CSV: unexpected end of data", lambda: read(tmp_path / "b.csv"))


RECORDS = [{"text": f"The text {n}.\n& more.", "timestamp": "2019-04-25T12"} for n in range(15)]
LINES = "".join(json.dumps(record) + "\n" for record in RECORDS)
LONG = {"text": "word " * 20_000, "url": "x"}
FORMS = {
    "c4-train.00000-of-01024.json.gz": (gzip.compress(LINES.encode()), "JSON lines", 15),
    "part-00000": (LINES, "JSON lines", 15),
    "corpus.txt": ("\ufeff" + LINES.replace("\n", "\r\n"), "JSON lines", 15),
    "sequence.json": ("\x1e" + LINES[:-1].replace("\n", "\n\x1e"), "JSON lines", 15),
    "long.json": (json.dumps(LONG) + "\n" + json.dumps(LONG), "JSON lines", 2),
    "one.json": ('{"text": "one", "id": 1}', "JSON lines", 1),
    "pretty.json": (json.dumps(RECORDS[0], indent=2), "JSON", 1),
    "array.json": (json.dumps(RECORDS), "JSON", 15),
    "array": (json.dumps([LONG, LONG], indent=1), "JSON", 2),
    "strings.json": ('["one", "two"]', "JSON", 2),
    "string.json": ('"one"', "JSON lines", 1),
    "marked.csv": ("sep=;\r\nn;text\r\n1;one, two\r\n", "CSV", 1),
    "marked.tsv": ("sep=\t\ntext\tn\none\t1\n", "TSV", 1),
    "marked": ('"sep=|"\ntext|n\none|1\ntwo|2\n', "CSV", 2),
    "beside.csv": ("n;text;;\n1;one;;\n;;;\n2;two;;\n;;;;;\n", "CSV", 2),
    "table": ("n\ttext\n1\tone\n2\ttwo\n", "TSV", 2),
    "table.dat": ('n,text\n1,"one, two"\n2,three\n', "CSV", 2),
    "half.csv": ('n;text;"a,b"\n1;"one; two";x\n2;three;x\n', "CSV", 2),
    "bars.csv": ("n|text\n1|one, two\n", "CSV", 1),
    "tabs.txt": ("one\ttwo\nthree\tfour\nfive\tsix\n", "plain text", 1),
    "music.txt": ("[Music] A song.\n{Laughter}", "plain text", 1),
    "notes": ("[1] A reference.\n\n[2] Another.", "plain text", 2),
    "chat.log": ("<ann> hello\n<ben> hello", "plain text", 1),
    "heading": ("text\nA word.\nAnother.", "plain text", 1),
    "grid.md": ("| n | text |\n| --- | --- |\n| 1 | one |", "plain text", 1),
    "list": ("Shoes, text, other\nA line of prose.", "plain text", 1),
    "sql": ("Create table reservations early.\n\nInsert into the slot.", "plain text", 2),
    "vtt": ("WebVTT is a format of subtitles.", "plain text", 1),
    "page.md": ('<div align="center">\n<b>Title</b></div>', "plain text", 1),
    "quote.txt": ('["No," she said.', "plain text", 1),
    "quotation.txt": ('"All the world is a stage."', "plain text", 1),
    "quoted.txt": ('"No," she said.\n"Yes."', "plain text", 1),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_the_content_tells_the_form_where_the_name_does_not(tmp_path, name):
    content, form, number = FORMS[name]
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    documents, counts = read(path, border="auto")
    assert (dict(counts.forms), len(documents)) == ({form: 1}, number)
    if number == 15:
        assert documents == [[f"The text {n}.", "& more."] for n in range(15)]
    assert not any("timestamp" in line or "url" in line for each in documents for line in each)


NO_TEXT = {
    "pages-articles.xml": ('<mediawiki xmlns="x">\n<page>', "a dump of MediaWiki; WikiExtractor"),
    "page.html": ("<!-- saved -->\n<!DOCTYPE html>\n<p>text</p>", "HTML; its text has to be"),
    "paper.pdf": ("<html><body>Sign in</body></html>", "HTML"),
    "Posts.xml": ('<?xml version="1.0"?>\n<posts><row Id="1" /></posts>', "XML"),
    "part": ("<p>one</p>\n<p>two</p>", "markup"),
    "CC-MAIN.warc.wet": ("WARC/1.0\r\nWARC-Type: warcinfo\r\n", "a WARC archive"),
    "book.rtf": (r"{\rtf1\ansi text}", "PostScript or RTF"),
    "page.sql": ("-- MySQL dump 10.13\nINSERT INTO page VALUES (1)", "a dump of SQL"),
    "film.vtt": ("WEBVTT - a film\n\n00:01.000 --> 00:02.000\nA word.", "subtitles"),
    "film.srt": ("1\n00:00:01,000 --> 00:00:02,000\nA word.", "subtitles"),
    "test.conllu": ("# sent_id = 1\n1\tone\tone\n", "a table of CoNLL-U"),
    "SHA256SUMS": ("e3" * 32 + "  a.txt\n", "a list of hashes"),
    "dicts.txt": ("{'text': 'one'}\n{'text': 'two'}", "Python's way of writing records"),
    "pairs.dat": (
        "one\teins\ntwo\tzwei\nthree\tdrei\n", "a tab-separated table without a column 'text'"
    ),
    "infos.json": ('{"default": {"text": 1}}', "JSON without the field 'text'; choose from def"),
    "config.json": ('{\n  "texts": 1\n}', "JSON without the field 'text'; did you mean 'texts'?"),
    "files.json": ('[{"name": "a"}, {"name": "b"}]', "JSON without the field 'text'"),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_TEXT)
def test_what_holds_no_plain_text_is_refused_and_passed_over_in_a_folder(tmp_path, name):
    content, kind = NO_TEXT[name]
    path = tmp_path / name
    path.write_text(content)
    refuse(f"{name} is not text: {kind} ... (--set form=text reads it as plain text)", read, path)
    refuse(f"{name} is not text: {kind}", lambda: list(Reader().read([path])))
    assert read(path, form="text")[1].forms == {"plain text": 1}
    (tmp_path / "b.txt").write_text("text")
    found = find_sources([str(tmp_path)])
    assert [path.name for path in found.files] == ["b.txt"]
    assert found.passed_over[0][1].startswith(kind)


STRINGS = '"one\\n\\ntwo \\u00e9"\n"a \\"b\\""\n\n"three"\n'


@pytest.mark.parametrize("name", ["-", "pipe", "a", "a.json", "a.jsonl", "a.ndjson", "a.txt"])
def test_strings_of_json_are_documents_whatever_the_way_they_come(tmp_path, monkeypatch, name):
    path = tmp_path / name
    if name == "pipe":
        os.mkfifo(path)
        Thread(target=path.write_text, args=[STRINGS]).start()
    elif name == "-":
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(STRINGS.encode())))
        path = Path(name)
    else:
        path.write_text(STRINGS)
    documents, counts = read(path, border="auto")
    assert documents == [["one", "two é"], ['a "b"'], ["three"]]
    assert counts.forms == {"JSON lines": 1}


def test_quotations_that_are_no_json_further_on_name_the_way_to_read_them(tmp_path):
    path = write_files(tmp_path, {"a.txt": '"Yes."\n' * 20 + "she said.\n"}) / "a.txt"
    refuse("a.txt, line 21: not valid JSON ... --set form=text reads the file", read, path)
    assert read(path, form="text")[0][0][20] == "she said."


def pack(**files):
    """A ZIP archive, as a workbook and a document are."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in files.items():
            archive.writestr(name.replace("__", "/"), text)
    return content.getvalue()


def tar():
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a.txt"))
    return content.getvalue()


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
OTHERS = {
    "a.txt": (POINTER, "a pointer of Git LFS, not the file itself; `git lfs pull`"),
    "a.jsonl": (POINTER, "a pointer of Git LFS"),
    "a.csv": (POINTER, "a pointer of Git LFS"),
    "a.tsv.gz": (POINTER, "a pointer of Git LFS"),
    "a.parquet": (POINTER, "a pointer of Git LFS"),
    "a.arrow": (POINTER, "a pointer of Git LFS"),
    "a.xlsx": (pack(types="", xl__workbook="<workbook>"), "a workbook; save the sheet as .csv"),
    "b.csv": (pack(types="", xl__workbook="<workbook>"), "a workbook; save the sheet as .csv"),
    "a.docx": (pack(types="", word__document="text"), "a document; save or convert it as .txt"),
    "a.zip": (pack(a="text"), "a ZIP archive; unpack it first"),
    "a.tar": (tar(), "a tar archive"),
    "a.tgz": (gzip.compress(tar()), "a tar archive"),
    "a.txt.gz": (gzip.compress(gzip.compress(b"text")), "compressed twice; decompress it once"),
    "b.txt.gz": (b"\0" * 99, "damaged: it does not begin as .gz files do"),
    "a.dat": (b"PAR1\0", "Parquet; name it .parquet"),
    "a.pdf": (b"%PDF-1.7\n\0", "PDF; its text has to be extracted first"),
    "a.xls": (b"\xd0\xcf\x11\xe0\0", "an old file of Excel or Word; save it as .csv"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_another_thing_is_named_with_what_to_do(tmp_path, name):
    content, what = OTHERS[name]
    write_files(tmp_path, {name: content, "text.txt": "text"})
    refuse(f"{name} is not text: {what}", read, tmp_path / name)
    found = find_sources([str(tmp_path)])
    assert [path.name for path in found.files] == ["text.txt"]
    ((_, kind),) = found.passed_over
    assert kind.startswith(what)
    if name.split(".")[1] in ("csv", "jsonl", "tsv", "parquet"):
        refuse(f"{name} is {what}", read_table, tmp_path / name)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.jsonl.zstd", "a.bz2"])
@pytest.mark.parametrize("method", ["plain", "gz", "bz2", "xz", "lzma", "zst"])
def test_the_content_tells_the_compression(tmp_path, name, method):
    lines = LINES.encode()
    write_files(tmp_path, {name: COMPRESS[method](lines)})
    expected = [[f"The text {n}.", "& more."] for n in range(15)]
    assert read(tmp_path / name)[0] == expected
    if name != "a.bz2":
        assert read_table(tmp_path / name).column("text")[0] == RECORDS[0]["text"]


def test_a_compressed_parquet_and_a_compressed_pipe_are_read_whatever_the_name(
    tmp_path, monkeypatch
):
    write_parquet(tmp_path / "a.parquet", text=["one", "two"])
    (tmp_path / "b.parquet").write_bytes(gzip.compress((tmp_path / "a.parquet").read_bytes()))
    (tmp_path / "c.parquet.gz").write_bytes((tmp_path / "a.parquet").read_bytes())
    for name in ("a.parquet", "b.parquet", "c.parquet.gz"):
        assert read(tmp_path / name)[0] == [["one"], ["two"]]
        assert read_table(tmp_path / name).column("text") == ["one", "two"]
    content = io.BytesIO(lzma.compress(b"one\n\ntwo"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(content))
    assert read("-")[0] == [["one"], ["two"]]


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.zst"])
@pytest.mark.parametrize("method", ["plain", "gz", "zst"])
def test_ranges_of_a_file_with_the_wrong_suffix_are_the_whole_file(tmp_path, name, method):
    lines = [f"line {number}" for number in range(9000)]
    write_files(tmp_path, {name: COMPRESS[method]("\n\n".join(lines).encode())})
    config = PrepareConfig(task_bytes=10_000)
    found = []
    for piece in list_pieces([tmp_path / name], config, ""):
        (part,) = piece.ranges
        found += Reader(settings=config).read_range(part.path, part.start, part.stop, part.border)
    close_last()
    assert found == [[line] for line in lines]


def test_links_out_of_a_folder_are_told(tmp_path):
    write_files(tmp_path / "outside", {"c.txt": "c"})
    corpus = write_files(tmp_path / "corpus", {"a.txt": "a"})
    (corpus / "within.txt").symlink_to("a.txt")
    (corpus / "out.txt").symlink_to(tmp_path / "outside/c.txt")
    (tmp_path / "linked").symlink_to(corpus)
    told = (corpus / "out.txt", f"a link to {tmp_path}/outside/c.txt")
    assert find_sources([str(corpus)]).links == (told,)
    assert find_sources([f"{corpus}/*.txt"]).links == (told,)
    assert [path.name for path, _ in find_sources([str(tmp_path / "linked")]).links] == ["out.txt"]
    assert find_sources([str(corpus / "out.txt")]).links == ()  # it is named itself
    assert find_sources([str(tmp_path / "*/*.txt")]).links == ()


def test_standard_input_is_looked_at_as_a_file_is(monkeypatch):
    def give(content):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        return read("-")

    documents, counts = give(LINES.encode())
    assert (len(documents), counts.forms) == (15, {"JSON lines": 1})
    assert give(b"a text")[0] == [["a text"]]
    for content, kind in ((b"<html><p>text</p>", "HTML"), (b"\x89PNG\0", "binary")):
        refuse(f"- is not text: {kind}", give, content)
    monkeypatch.setattr(sys, "stdin", None)  # as Python sets it after <&-
    refuse("standard input is closed; give it a text", lambda: read("-"))


def test_files_about_the_data_are_passed_over(tmp_path):
    about = dict.fromkeys(
        ["README.md", "LICENSE", "settings.yaml"], "looks like a file about the data"
    )
    of_texts = {f"{number}.txt": "a text" for number in range(4)}
    pages = {f"{number}.md": "a page of documentation" for number in range(4)}
    records = {"a.json": LINES, "notes.txt": "text beside records"}
    for name, files, kept, number in (
        ("records", records, [*records], 3),
        ("texts", of_texts, [*of_texts], 3),
        ("pages", pages, [*pages, "README.md"], 2),
    ):
        folder = write_files(tmp_path / name, about)
        write_files(folder / "deep" if name == "records" else folder, files)
        found = find_sources([str(folder)])
        assert [path.name for path in found.files] == kept
        assert len(found.passed_over) == number
    assert len(find_sources([str(folder / name) for name in about]).files) == 3


def test_pages_of_wikiextractor(tmp_path):
    """Attributes in any order and number, as with --revision; entities; pages without text."""
    folder = tmp_path / "AA"
    folder.mkdir()
    page = '<doc id="{0}" url="https://ko.example?curid={0}" title="A &amp; &quot;B&quot;">\n'
    (folder / "wiki_00").write_text(
        page.format(1) + "A &amp; B\n\nfirst &lt;b&gt;\n\nsecond\n\n</doc>\n"
        + page.format(2) + "Other\n\n</doc>\n"
        + '<doc id="10" revid="3" url="https://x" title="T&#39;s">\nT&#39;s\n\nText.\n</doc>\n\n'
        + "<doc title='Redirect' id='11' url='u'>\nRedirect\n\n</doc>\n"
        + '<doc url="u" title="Nothing" id="12" lang="ko">\n</doc>\n'
    )  # fmt: skip
    (folder / "wiki_01.bz2").write_bytes(bz2.compress(
        json.dumps({"id": "3", "text": "Third\n\npage"}).encode() + b"\n"
    ))  # fmt: skip
    (tmp_path / "dump").write_text('<doc id="1" title="One">\nOne\n\npage\n</doc>\n')
    expected = [["A & B", "first <b>", "second"], ["Other"], ["T's", "Text."], ["Third", "page"]]
    documents, counts = read(tmp_path)
    assert documents == [*expected, ["One", "page"]]
    assert (counts.empty, counts.documents) == (2, 5)
    assert counts.forms == {"pages of WikiExtractor": 2, "JSON lines": 1}


def test_null_is_counted_and_passed_over_in_every_format(tmp_path):
    datasets = pytest.importorskip("datasets")
    texts = ["one", None, "two", " "]
    rows = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    table = 'n,text\n1,one\n2,\n3,two\n4," "\n'
    array = json.dumps([{"text": text} for text in texts])
    write_files(tmp_path, {"a.jsonl": rows + "\n", "a": rows, "a.csv": table, "a.json": array})
    write_files(tmp_path / "hub", {"data.jsonl": rows})
    saved = datasets.Dataset.from_dict({"text": texts})
    saved.to_parquet(str(tmp_path / "a.parquet"))
    saved.save_to_disk(str(tmp_path / "saved"))
    places = ["a.jsonl", "a", "a.json", "a.csv", "a.parquet", "saved"]
    for place in (*(tmp_path / name for name in places), f"datasets:{tmp_path}/hub"):
        documents, counts = read(place)
        assert (documents, counts.empty) == ([["one"], ["two"]], 2), place


def write_twice(path, before, after):
    """Read a file of which another program replaces the content after the first document."""
    path.write_bytes(before)
    documents = Reader(border="line").read([path])
    next(documents)
    path.write_bytes(after)
    return list(documents)


@pytest.mark.parametrize("kind", [".txt", ".jsonl", ".txt.gz", ".csv", ".parquet"])
def test_a_text_that_changes_while_it_is_read_is_refused(tmp_path, kind):
    lines = [f"line {number}" for number in range(20_000)]
    path, half = tmp_path / f"a{kind}", tmp_path / f"half{kind}"
    for target, part in ((path, lines), (half, lines[: len(lines) // 2])):
        if kind == ".parquet":
            write_parquet(target, text=part)
            continue
        if kind == ".jsonl":
            part = [json.dumps({"text": line}) for line in part]
        content = "\n".join(["text", *part] if kind == ".csv" else part).encode()
        target.write_bytes(gzip.compress(content) if kind.endswith(".gz") else content)
    before = path.read_bytes()
    for after in (half.read_bytes(), before + before):  # cut, as by another download; appended to
        refuse(f"a{kind} was changed while it was read", write_twice, path, before, after)
    path.write_bytes(before)
    assert len(list(Reader(border="line").read([path]))) == len(lines)


def test_datasets_saved_and_streamed(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"text": ["one\n\n two", "", "naïve"], "n": [1, 2, 3]})
    datasets.DatasetDict({"train": rows}).save_to_disk(str(tmp_path / "saved"))
    assert read(tmp_path / "saved")[0] == [["one", "two"], ["naïve"]]
    refuse("no column 'body'; choose from", lambda: read(tmp_path / "saved", text_field="body"))
    broken = tmp_path / "a.arrow"
    broken.write_bytes(b"no arrow file")
    refuse("a.arrow is damaged or cut off", lambda: read(broken))
    broken.write_bytes(b"ARROW1\0\0")
    refuse("with an index (Feather)", lambda: read(broken))
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub/data.jsonl").write_text('{"text": "streamed"}\n{"text": "lines\\n"}\n')
    assert read(f"datasets:{tmp_path}/hub")[0] == [["streamed"], ["lines"]]
    refuse("hub, record 1: no column", lambda: read(f"datasets:{tmp_path}/hub", text_field="body"))


@pytest.mark.filterwarnings("ignore:UPath .* filesystem not explicitly implemented")
def test_urls(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    pytest.importorskip("upath")
    memory = fsspec.filesystem("memory")
    memory.pipe("/corpus/b.txt", b"second")
    memory.pipe("/corpus/a.txt.xz", lzma.compress(b"first\n\nnext"))
    memory.pipe("/corpus/deep/c.jsonl", b'{"text": "third"}')
    memory.pipe("/corpus/image.png", b"\x89PNG\0")
    try:
        for name in ("memory://corpus", "memory://corpus/**"):
            assert read(name)[0] == [["first"], ["next"], ["second"], ["third"]], name
        assert read("memory://corpus/*.txt")[0] == [["second"]]
        ((path, kind),) = find_sources(["memory://corpus"]).passed_over
        assert (path.name, kind) == ("image.png", "binary")
        refuse("there is no file memory://nowhere", lambda: find_sources(["memory://nowhere"]))
        for url in ("nosuchscheme://x", "reference://x", "jupyter://x", "http://[::1", "tar://x"):
            refuse(f"{url} cannot be read", lambda url=url: find_sources([url]))
        for url in ("ftp://ann:SECRET@localhost:1/x", "zip://x::http://ann:SEC@RET@localhost:1/x"):
            said = refuse("ann:***@localhost", lambda url=url: find_sources([url]))
            assert "RET" not in said
        Tokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]).save(tmp_path / "t")
        for file in (tmp_path / "t").iterdir():
            memory.pipe(f"/vocabulary/{file.name}", file.read_bytes())
        assert Tokenizer.load("memory://vocabulary").digest == Tokenizer.load(tmp_path / "t").digest
        (tmp_path / "a.txt").write_text("on disk")
        url = f"file://{tmp_path}/a.txt"
        assert read(url)[0] == [["on disk"]]
        assert locate(Path(url)).read_text() == "on disk"  # in which two slashes are missing
    finally:
        memory.rm("/corpus", recursive=True)
        memory.rm("/vocabulary", recursive=True)


ENCODINGS = {
    "Korean": ("euc_kr", "cp949"),
    "Japanese": ("shift_jis", "euc_jp", "utf-16"),
    "Chinese": ("gb18030", "gb2312", "utf-16-le", "utf-32"),
    "Russian": ("cp1251", "koi8_r"),
    "Arabic": ("cp1256",),
    "Thai": ("cp874",),
    "Finnish": ("latin_1",),
}


@pytest.mark.parametrize("language", ENCODINGS)
def test_encodings_named_and_detected(tmp_path, language):
    text = TEXTS[language]
    expected = [text.splitlines()]
    (tmp_path / "plain.txt").write_text("plain")
    for name in ENCODINGS[language]:
        path = tmp_path / f"{name}.txt"
        path.write_bytes(text.encode(name))
        documents, counts = read(path, encoding=name)
        assert (documents, counts.invalid_sequences) == (expected, 0), name
        with pytest.raises(UserError, match=r"is not text: .*(encoding=|binary)"):
            find_sources([str(path)])
        if name == "utf-16-le":  # without a mark, only its name shows it
            continue
        assert read(path, encoding="detect")[0] == expected, name
        found = find_sources(
            [str(path), str(tmp_path / "plain.txt")], TextConfig(encoding="detect")
        )
        assert [each.name for each, _ in found.encodings] == [path.name]
        assert f"{path} (" in name_first("detected", found.encodings)
    refuse(
        "encoding must be utf-8, detect or a name",
        find_sources,
        [str(path)],
        TextConfig(encoding="klingon"),
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cp1252", "La mère de Jérôme était fâchée ; où êtes-vous allé l'été dernier, dit-elle ?"),
        ("cp1252", "Não há dúvida: a participação das populações é essencial à educação."),
        ("cp1252", "Det är på hösten som älgarna går över vägarna, så kör försiktigt där."),
        ("cp1250", "Wczoraj późnym wieczorem wróciłem do domu; gęś wciąż gęga pod płotem."),
        ("cp1250", "Tegnap este későn értem haza, mert egész nap a szőlőben dolgoztam."),
    ],
)
def test_western_and_central_europe_are_told_apart(name, text):
    for times in (1, 40):
        assert detect((text * times).encode(name)) == name


@pytest.mark.parametrize(
    "text",
    [
        "The café said “hello” \u2013 and £5.\n\nnaïve résumé\n",
        "It was a naïve idea.",
        "He said mañana.",
        "El Niño hit Perú.",
        "Ångström was a Swede.",
        "½ cup of sugar",
        "Le garçon a été très naïf.",
        "Perché non è più così? Lunedì andrò.",
        "Åsa är på ön.",
        "Mon cœur, ma sœur, ce nœud.",
        "Ses mœurs; le chœur chante une œuvre.",
        "A déjà vu à la carte.",
        "A footnote¹ on déjà vu².",
        "It holds 5 m³ at 50£a day, or ¼ of it.",
    ],
)
def test_a_few_accents_are_western(text):
    for times in (1, 5):
        content = (text * times).encode("cp1252")
        assert content.decode(detect(content)) == text * times


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cp1250", "Příliš žluťoučký kůň úpěl ďábelské ódy."),
        ("cp1250", "Češnje so rdeče, a še ne dovolj zrele."),
        ("cp1250", "Aşa este viaţa în această ţară."),
        ("cp1250", "The president was Lech Wałęsa."),
        ("cp1250", "A town in Poland is called Łódź."),
        ("cp1250", "żółw"),
        ("cp1250", "Dziś ktoś śpi."),
        ("cp1250", "Wrocław has a café."),
        ("cp1251", "Он использует Windows и Word на работе."),
        ("cp1253", "\u0397 Αθήνα είναι η πρωτεύουσα (Athens)."),
    ],
)
def test_other_scripts_and_languages_stay_what_they_are(name, text):
    assert text.encode(name).decode(detect(text.encode(name))) == text


def test_a_text_that_is_ascii_at_first_and_one_with_a_stray_byte_are_detected(tmp_path):
    late, stray = tmp_path / "late.txt", tmp_path / "stray.txt"
    late.write_bytes(b"The preface is in English.\n" * 10_000 + TEXTS["Korean"].encode("euc_kr"))
    stray.write_bytes(TEXTS["Korean"].encode() * 3 + b"\xff")
    assert read(late, encoding="detect")[0][0][10_000:] == TEXTS["Korean"].splitlines()
    documents, counts = read(stray, encoding="detect")
    assert (documents[0][0], counts.invalid_sequences) == (TEXTS["Korean"].splitlines()[0], 1)


def test_what_an_encoding_cannot_hold_is_counted(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("한국어 문장 ".encode("euc_kr") * 9 + b"\xff\xff" + b"\nnext")
    documents, counts = read(path, encoding="euc_kr")
    assert documents[0][1] == "next"
    assert "\ufffd" in documents[0][0]
    assert counts.invalid_sequences >= 1


@pytest.mark.parametrize("names", [[str(number) for number in range(20)], list("ACDEFGHIKLMNPQRS")])
def test_sequences_of_ids_need_no_text(tmp_path, names):
    tokenizer = Tokenizer.declare(names)
    assert tokenizer.special_ids == tuple(range(len(names), len(names) + 5))
    rows = [[number * 7 % 15 for number in range(size)] for size in range(3, 60)]
    path = tmp_path / "a.jsonl"
    records = [{"ids": row} if number % 2 else row for number, row in enumerate(rows)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    tokenizer.save(tmp_path / "t")
    loaded = Tokenizer.load(tmp_path / "t")
    assert (loaded.digest, loaded.names) == (tokenizer.digest, tuple(names))
    config = PrepareConfig(text_field="ids", workers=1, heldout_prob=0.1)
    prepare([str(path)], loaded, tmp_path / "shards", config)
    shards = open_shards(tmp_path / "shards")
    parts = (np.split(s.tokens, s.documents[1:]) for s in (*shards.train, *shards.heldout))
    assert sorted(row.tolist() for part in parts for row in part) == sorted(rows)
    assert loaded.encode(" ".join(names[3:6])) == [3, 4, 5]
    for bad in ([len(names)], [-1], [True], ["A"], [1.0]):
        path.write_text(json.dumps(bad))
        says = "a.jsonl, line 1:  ...  is not an id of the vocabulary"
        refuse(says, prepare, [str(path)], loaded, tmp_path / "never", config)
    for wrong in (["a", "a"], ["a b"], [""], ["[CLS]"]):
        refuse("name", Tokenizer.declare, wrong)


PARTS = [
    *(b"\xef\xbb\xbf", b"\r\n", b"\n\n", b"\0", b"\xed\xa0\x80", b"\xff\xfe", b'"', b",", b"\t"),
    *(b"{", b'{"text": "\\ud800"}', b"</doc>", b'<doc id="1" url="" title="">', b"a" * 50),
    "한".encode(),
]
HOSTILE = st.binary(max_size=200) | st.lists(st.sampled_from(PARTS), max_size=30).map(b"".join)


@pytest.fixture(scope="module")
def byte_level():
    return Tokenizer.train(["a b"] * 3, TokenizerConfig(kind="bpe", vocab_size=270))


@settings(max_examples=300, deadline=None)
@given(data=HOSTILE, suffix=st.sampled_from([".txt", ".csv", ".tsv", ".jsonl", ""]),
       encoding=st.sampled_from(["utf-8", "detect", "utf-16", "cp949", "gb18030"]))  # fmt: skip
def test_hostile_bytes_are_read_or_refused_in_a_line(
    tmp_path_factory, byte_level, data, suffix, encoding
):
    path = tmp_path_factory.getbasetemp() / f"wiki_00{suffix}"
    path.write_bytes(b"text\n" + data)
    reader = Reader(settings=TextConfig(encoding=encoding))
    try:
        documents = list(reader.read([path]))
    except UserError:
        return
    lines = [line for document in documents for line in document]
    counts = reader.counts
    found = (len(documents), len(lines), sum(map(len, lines)))
    assert (counts.documents, counts.lines, counts.characters) == found
    assert not any(byte_level.unk_id in row for row in byte_level.encode_batch(lines))
