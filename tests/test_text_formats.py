"""Where text comes from: tables, pages, datasets, URLs, other encodings, ids, hostile bytes."""

import bz2
import csv
import json
import lzma

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from languages import TEXTS

from electra.config import PrepareConfig
from electra.errors import UserError
from electra.shards.prepare import prepare
from electra.shards.store import open_shards
from electra.text.documents import Reader
from electra.text.sources import find_sources, name_encodings
from electra.tokenizing.tokenizer import Tokenizer

ROWS = [("1", 'said "no", twice'), ("2", "two\nlines"), ("3", "naïve 中文")]
DOCUMENTS = [['said "no", twice'], ["two", "lines"], ["naïve 中文"]]


def read(*names, **more):
    sources = find_sources([str(name) for name in names], more.get("encoding", "utf-8"))
    reader = Reader(**more)
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
    with pytest.raises(UserError, match=r"a\.tsv: no column 'body'; choose from text, n"):
        read(path, text_field="body")
    path.write_text("text\tn\nonly\n")
    with pytest.raises(UserError, match=r"a\.tsv line 2: 1 tab-separated fields; it must have 2"):
        read(path)
    (tmp_path / "b.csv").write_text('n,text\n1,"never closed\n2,b\n')
    with pytest.raises(UserError, match=r"b\.csv line 2: not valid CSV: unexpected end of data"):
        read(tmp_path / "b.csv")


def test_pages_of_wikiextractor(tmp_path):
    folder = tmp_path / "AA"
    folder.mkdir()
    page = '<doc id="{0}" url="https://ko.example?curid={0}" title="A &amp; &quot;B&quot;">\n'
    (folder / "wiki_00").write_text(
        page.format(1) + "A &amp; B\n\nfirst &lt;b&gt;\n\nsecond\n\n</doc>\n"
        + page.format(2) + "Other\n\n</doc>\n"
    )  # fmt: skip
    (folder / "wiki_01.bz2").write_bytes(bz2.compress(
        json.dumps({"id": "3", "text": "Third\n\npage"}).encode() + b"\n"
    ))  # fmt: skip
    expected = [["A & B", "first <b>", "second"], ["Other"], ["Third", "page"]]
    assert read(tmp_path)[0] == expected


def test_datasets_saved_and_streamed(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"text": ["one\n\n two", "", "naïve"], "n": [1, 2, 3]})
    datasets.DatasetDict({"train": rows}).save_to_disk(str(tmp_path / "saved"))
    assert read(tmp_path / "saved")[0] == [["one", "two"], ["naïve"]]
    with pytest.raises(UserError, match=r"no column 'body'; choose from text, n"):
        read(tmp_path / "saved", text_field="body")
    broken = tmp_path / "a.arrow"
    broken.write_bytes(b"no arrow file")
    with pytest.raises(UserError, match=r"a\.arrow is damaged or cut off"):
        read(broken)
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub/data.jsonl").write_text('{"text": "streamed"}\n{"text": "lines\\n"}\n')
    assert read(f"datasets:{tmp_path}/hub")[0] == [["streamed"], ["lines"]]
    with pytest.raises(UserError, match=r"hub, record 1: no column 'body'"):
        read(f"datasets:{tmp_path}/hub", text_field="body")


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
        with pytest.raises(UserError, match=r"there is no file memory://nowhere"):
            find_sources(["memory://nowhere"])
        with pytest.raises(UserError, match=r"nosuchscheme://x cannot be read"):
            find_sources(["nosuchscheme://x"])
        Tokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]).save(tmp_path / "t")
        for file in (tmp_path / "t").iterdir():
            memory.pipe(f"/vocabulary/{file.name}", file.read_bytes())
        assert Tokenizer.load("memory://vocabulary").digest == Tokenizer.load(tmp_path / "t").digest
        (tmp_path / "a.txt").write_text("on disk")
        assert read(f"file://{tmp_path}/a.txt")[0] == [["on disk"]]
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
    for name in ENCODINGS[language]:
        path = tmp_path / f"{name}.txt"
        path.write_bytes(text.encode(name))
        documents, counts = read(path, encoding=name)
        assert documents == expected, name
        assert counts.invalid_sequences == 0
        (tmp_path / "plain.txt").write_text("plain")
        if name != "latin_1":  # a tenth of its bytes at most is not ASCII, so it passes as damaged
            with pytest.raises(UserError, match=r"is not text: .*(encoding=|binary)"):
                find_sources([str(path)])
        if name == "utf-16-le":  # without a mark, only its name tells it
            continue
        assert read(path, encoding="detect")[0] == expected, name
        found = find_sources([str(path), str(tmp_path / "plain.txt")], "detect")
        assert [each.name for each, _ in found.encodings] == [path.name]
        assert f"{path} (" in name_encodings(found.encodings)
    with pytest.raises(UserError, match="encoding must be utf-8, detect or a name such as"):
        find_sources([str(path)], "klingon")


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
    found = []
    for shard in (*shards.train, *shards.heldout):
        ends = [*shard.documents[1:].tolist(), len(shard.tokens)]
        starts = shard.documents.tolist()
        found += [shard.tokens[a:b].tolist() for a, b in zip(starts, ends, strict=True)]
    assert sorted(found) == sorted(rows)
    assert loaded.encode(" ".join(names[3:6])) == [3, 4, 5]
    for bad in ([len(names)], [-1], [True], ["A"], [1.0]):
        path.write_text(json.dumps(bad))
        with pytest.raises(UserError, match=r"a\.jsonl, line 1: .* is no id of the vocabulary"):
            prepare([str(path)], loaded, tmp_path / "never", config)
    for wrong in (["a", "a"], ["a b"], [""], ["[CLS]"]):
        with pytest.raises(UserError, match="name"):
            Tokenizer.declare(wrong)


PARTS = [
    *(b"\xef\xbb\xbf", b"\r\n", b"\n\n", b"\0", b"\xed\xa0\x80", b"\xff\xfe", b'"', b",", b"\t"),
    *(b"{", b'{"text": "\\ud800"}', b"</doc>", b'<doc id="1" url="" title="">', b"a" * 50),
    "한".encode(),
]
HOSTILE = st.binary(max_size=200) | st.lists(st.sampled_from(PARTS), max_size=30).map(b"".join)


@pytest.fixture(scope="module")
def byte_level():
    from electra.config import TokenizerConfig

    return Tokenizer.train(["a b"] * 3, TokenizerConfig(kind="bpe", vocab_size=270))


@settings(max_examples=1000, deadline=None)
@given(data=HOSTILE, suffix=st.sampled_from([".txt", ".csv", ".tsv", ".jsonl", ""]),
       encoding=st.sampled_from(["utf-8", "detect", "utf-16", "cp949", "gb18030"]))  # fmt: skip
def test_hostile_bytes_are_read_or_refused_in_a_line(
    tmp_path_factory, byte_level, data, suffix, encoding
):
    path = tmp_path_factory.getbasetemp() / f"wiki_00{suffix}"
    path.write_bytes(b"text\n" + data)
    reader = Reader(encoding=encoding)
    counts = reader.counts
    try:
        documents = list(reader.read([path]))
    except UserError:
        return
    lines = [line for document in documents for line in document]
    assert counts.lines == len(lines)
    assert counts.characters == sum(map(len, lines))
    assert counts.documents == len(documents)
    ids = byte_level.encode_batch(lines)
    assert byte_level.unk_id not in {index for row in ids for index in row}
