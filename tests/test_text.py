"""Reading: every format gives the same documents, and nothing of a hostile text is lost."""

import bz2
import gzip
import json
import lzma
import os
import random
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuse
from tasks import write_parquet

from electra.text import documents as documents_module
from electra.text import sources as sources_module
from electra.text.characters import break_words
from electra.text.config import TextConfig
from electra.text.documents import Reader
from electra.text.sources import find_sources

DOCUMENTS = [
    ["The first line.", "The second, naïve and 中文."],
    ["Another document."],
    ["A third one,", "of three", "lines."],
]


def read(path, border="blank", text_field="text"):
    reader = Reader(settings=TextConfig(text_field=text_field), border=border)
    return list(reader.read([path])), reader.counts


COMPRESS = {".bz2": bz2.compress, ".gz": gzip.compress, ".xz": lzma.compress}


def compress(path, suffix):
    target = path.with_name(path.name + suffix)
    if suffix == ".zst":
        COMPRESS[suffix] = pytest.importorskip("zstandard").compress
    target.write_bytes(COMPRESS[suffix](path.read_bytes()))
    return target


def write_format(folder, kind):
    path = folder / f"corpus{kind}"
    texts = ["\n".join(lines) for lines in DOCUMENTS]
    if kind == ".parquet":
        write_parquet(path, n=[1, 2, 3], text=texts)
    elif kind == ".jsonl":
        path.write_text("".join(json.dumps({"text": t, "n": 1}) + "\n" for t in texts), "utf-8")
    else:
        path.write_text("\n\n".join(texts), "utf-8")
    return path


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz", ".zst"])
@pytest.mark.parametrize("kind", [".txt", ".md", ".jsonl", ".parquet"])
def test_every_format_gives_the_same_documents(tmp_path, kind, suffix):
    path = write_format(tmp_path, kind)
    path = compress(path, suffix) if suffix else path
    documents, counts = read(path)
    assert documents == DOCUMENTS
    assert (sum(counts.forms.values()), counts.documents, counts.lines) == (1, 3, 6)
    assert counts.characters == sum(len(line) for lines in DOCUMENTS for line in lines)
    assert counts.source_bytes == path.stat().st_size
    assert counts.invalid_sequences == 0


@pytest.mark.parametrize("kind", [".txt", ".jsonl", ".parquet"])
@pytest.mark.parametrize("suffix", ["", ".gz", ".xz", ".zst"])
def test_a_cut_off_file_is_refused_by_name(tmp_path, kind, suffix):
    path = write_format(tmp_path, kind)
    path = compress(path, suffix) if suffix else path
    if kind + suffix in (".txt", ".jsonl"):
        pytest.skip("plain text does not tell its end")
    whole = path.read_bytes()
    other = [b"nothing of the kind"] if kind == ".parquet" else []
    for content in (whole[:-3], whole[: len(whole) // 2], *other):
        path.write_bytes(content)
        refuse(f"corpus{kind}{suffix} is damaged or cut off", read, path)


@pytest.mark.parametrize(
    ("border", "expected"),
    [("blank", [["a", "b"], ["c"]]), ("line", [["a"], ["b"], ["c"]]), ("file", [["a", "b", "c"]])],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_borders_and_line_ends(tmp_path, border, expected, newline):
    path = tmp_path / "a.txt"
    path.write_bytes(newline.join(["a", " b ", " ", "", "c"]).encode())
    assert read(path, border)[0] == expected


def test_a_long_file_without_blank_lines_has_a_document_in_every_line(tmp_path, monkeypatch):
    monkeypatch.setattr(documents_module, "LONG_DOCUMENT_CHARS", 12)
    monkeypatch.setattr(documents_module, "MAX_DOCUMENT_CHARS", 24)
    path = tmp_path / "a.txt"
    lines = [["one"], ["two"], ["three"]]
    for text, expected, is_lined in (
        ("one\ntwo\nthree\n", lines, True),
        ("one\ntwo\n\nthree\n", [["one", "two"], ["three"]], False),
        ("one\ntwo\nthree\n\nfour", [["one", "two", "three"], ["four"]], False),  # like a novel
        ("one\ntwo\nthree\n\n\n", lines, True),  # blank lines at the end
        ("one\ntwo\nthree\nfour\nfive\n\nsix", [*lines, ["four"], ["five"], ["six"]], True),
        ("one\n\ntwo\n\nthree three three\n", [["one"], ["two"], ["three three three"]], False),
        ("one\ntwo\n", [["one", "two"]], False),  # too short to tell
    ):
        path.write_text(text)
        documents, counts = read(path, "auto")
        assert documents == expected
        assert counts.files_of_lines == is_lined


def test_a_record_is_a_document_whatever_the_border(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"body": "one\\n\\ntwo"}\n\n{"body": "three"}')
    for border in ("auto", "blank", "line", "file"):
        assert read(path, border, "body")[0] == [["one", "two"], ["three"]]


@pytest.mark.parametrize(
    ("name", "content", "lines", "count"),
    [
        (
            "a.txt",
            b"\xef\xbb\xbfone\xff two\xc3\n\x00nul\x00\n\xef\xbf\xbd kept\npage\x0cbreak",
            ["one\ufffd two\ufffd", "\0nul\0", "\ufffd kept", "page break"],
            2,
        ),
        ("a.jsonl", b'{"text": "a \\ud800 b \\ud83d\\ude00"}', ["a \ufffd b \U0001f600"], 1),
    ],
)
def test_invalid_sequences_are_replaced_and_counted(tmp_path, name, content, lines, count):
    (tmp_path / name).write_bytes(content)
    documents, counts = read(tmp_path / name)
    assert (documents, counts.invalid_sequences) == ([lines], count)


@given(
    data=st.binary(max_size=300) | st.text(max_size=300).map(lambda t: t.encode("utf-8", "replace"))
)
def test_any_bytes_read_as_one_decoding_would(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("any") / "a.txt"
    path.write_bytes(b"start\n\n" + data)
    text = data.decode("utf-8", "replace")
    expected, lines = [["start"]], []
    for line in [*re.split("\r\n|\r|\n", text), ""]:
        words = " ".join(line.split())
        if words:
            lines.append(words)
        elif lines:
            expected.append(lines)
            lines = []
    documents, _ = read(path)
    assert [[" ".join(line.split()) for line in lines] for lines in documents] == expected


@given(
    text=st.text(st.sampled_from("ab é中\r\n\U0001f600"), max_size=400),
    border=st.sampled_from(["blank", "line"]),
)
def test_cutting_giant_lines_loses_nothing(tmp_path_factory, text, border):
    path = tmp_path_factory.mktemp("giant") / "a.txt"
    path.write_bytes(f"start\n{text}".encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents_module, "BLOCK_BYTES", 16)
        patch.setattr(documents_module, "MAX_LINE_CHARS", 7)
        patch.setattr(documents_module, "MAX_DOCUMENT_CHARS", 40)
        documents, counts = read(path, border)
    lines = [line for document in documents for line in document]
    assert "".join("".join(lines).split()) == "".join(f"start{text}".split())
    assert all(0 < len(line) <= 7 for line in lines)
    assert counts.invalid_sequences == 0
    # No word that fits a line is torn, unless a block held no space at all.
    whole = set(f"start {text}".split())
    if all(len(word.encode()) < 6 for word in whole):
        assert set(" ".join(lines).split()) <= whole


PEAK = """
import sys
from pathlib import Path
from electra.shards.config import PrepareConfig
from electra.tokenizing.config import TokenizerConfig
from electra.shards.prepare import prepare
from electra.tokenizing.tokenizer import Tokenizer

if __name__ == "__main__":
    tokenizer = Tokenizer.train(["a 가나다"] * 5, TokenizerConfig(vocab_size=64))
    config = PrepareConfig(workers=1, border=sys.argv[3])
    manifest = prepare(sys.argv[1:2], tokenizer, sys.argv[2], config)
    peak = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]
    print(manifest["text"]["characters"], manifest["text"]["documents"], 1024 * int(peak))
"""


def prepare_and_measure(path, border):
    """Characters, documents, and the most memory that a process of its own took, bytes.

    `getrusage` would not tell: a new process begins with the peak of the one that started it.
    """
    if sys.platform != "linux":
        pytest.skip("the peak of a process is read from /proc")
    command = [sys.executable, "-c", PEAK, str(path), str(path.with_name("shards")), border]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return map(int, done.stdout.split())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suffix", "border"),
    [(".bz2", "blank"), (".gz", "blank"), (".xz", "blank"), (".zst", "blank"), (".gz", "auto")],
)
def test_an_expansion_bomb_is_streamed(tmp_path, suffix, border):
    """The peak is that of a document and a part of a shard, not that of the text or of a shard."""
    path = tmp_path / "bomb.txt"
    path.write_bytes((b"a " * 49 + b"a\n") * 3_000_000)
    bomb = compress(path, suffix)
    assert bomb.stat().st_size < 3_000_000
    path.unlink()
    num_chars, num_documents, peak = prepare_and_measure(bomb, border)
    assert num_chars == 3_000_000 * 99
    cut_documents = -(-num_chars // documents_module.MAX_DOCUMENT_CHARS)
    assert num_documents == (cut_documents if border == "blank" else 3_000_000)
    assert peak < 400e6


@pytest.mark.slow
@pytest.mark.parametrize("kind", [".txt", ".csv", ".jsonl"])
def test_a_line_of_100_mb_is_read_in_pieces(tmp_path, kind):
    path = tmp_path / f"a{kind}"
    body = "가나다 " * 10_000_000
    if kind == ".jsonl":
        path.write_text(json.dumps({"text": body}, ensure_ascii=False))
    else:
        path.write_text(("text\n" if kind == ".csv" else "") + body)
    documents, counts = read(path)
    assert counts.lines == sum(map(len, documents))
    longest = max(len(line) for document in documents for line in document)
    assert longest <= documents_module.MAX_LINE_CHARS
    assert sum(len(line.split()) for document in documents for line in document) == 10_000_000
    *_, peak = prepare_and_measure(path, "auto")
    assert peak < 600e6


def test_zstd_frames_one_after_another(tmp_path):
    zstandard = pytest.importorskip("zstandard")
    path = tmp_path / "a.txt.zst"
    path.write_bytes(zstandard.compress(b"one\n") + zstandard.compress(b"two\n"))
    assert read(path)[0] == [["one", "two"]]


def frame_of(content, window_log):
    """A zstd frame as `zstd --long` writes it to a pipe: a window, no size, one block as it is."""
    header = b"\x28\xb5\x2f\xfd\0" + bytes([window_log - 10 << 3])
    return header + (len(content) << 3 | 1).to_bytes(3, "little") + content


@pytest.mark.parametrize("window_log", [27, 28, 31])
def test_long_windows_of_zstd_are_read(tmp_path, window_log):
    pytest.importorskip("zstandard")
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(frame_of(b'{"text": "one"}\n', window_log))
    assert read(path)[0] == [["one"]]
    path.write_bytes(path.read_bytes()[:-2])
    refuse("is damaged or cut off", read, path)


def test_what_is_too_large_for_zstd_is_not_called_damaged(tmp_path):
    pytest.importorskip("zstandard")
    path = tmp_path / "a.txt.zst"
    path.write_bytes(frame_of(b"one\n", 32))
    refuse("a.txt.zst cannot be read: ... memory ... (at most zstd --long=31)", read, path)


NAMED = b'{"text": "x"}\n{"body": 1, "id": 2}'


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", NAMED, "line 2: no column 'text'; choose from body, id"),
        ("a.jsonl", b'{"text": 3}', "a.jsonl, line 1: 'text' must hold text, not int"),
        ("a.jsonl", b"[1]", "a.jsonl, line 1: must be a JSON object, not [1]"),
        ("a.jsonl", b'{"text": ', "a.jsonl, line 1: not valid JSON"),
        ("a.txt", "text".encode("utf-16"), "a.txt is UTF-16; read it with --set encoding"),
    ],
)
def test_refusals(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    refuse(message, read, tmp_path / name)


@pytest.mark.parametrize(
    ("field", "message"),
    [("body", "no column 'body'; choose from n, text"), ("n", "column 'n' does not hold text")],
)
def test_parquet_columns_are_checked(tmp_path, field, message):
    refuse(message, read, write_format(tmp_path, ".parquet"), text_field=field)


def test_find_sources(tmp_path):
    for name in ("b/two.txt", "a.txt", "b/.hidden/x.txt", ".y.txt", "b/c/three.md"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    (tmp_path / "b/empty.txt").touch()
    (tmp_path / "nothing").mkdir()
    names = ["a.txt", "b/c/three.md", "b/two.txt"]
    assert find_sources([str(tmp_path)]).files == tuple(tmp_path / name for name in names)
    found = find_sources([str(tmp_path / "a.txt"), str(tmp_path / "**/*.txt"), "-"]).files
    assert [path.name for path in found] == ["a.txt", "two.txt", "-"]
    for name, message in (
        ("missing.txt", "there is no file ... missing.txt"),
        ("*.parquet", "no file matches ... *.parquet"),
        ("b/empty.txt", "empty.txt is not text: empty"),
        ("nothing", "nothing holds no files with text"),
    ):
        refuse(message, find_sources, [str(tmp_path / name)])
    refuse("no text given", find_sources, [])


def test_what_is_not_text_is_skipped_and_named(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "stray.txt").write_bytes(b"A \xff in text that is ASCII is read." + b" " * 999)
    hostile = {
        "b.txt.gz": (gzip.compress(b"\0tar\0"), "binary"),
        "image.png": (b"\x89PNG\r\n\x1a\n\0\0", "binary"),
        "latin.txt": ("Größe, naïve: mostly ASCII, not read".encode("latin-1"),
                      "not UTF-8; if it is cp1252, read it with --set encoding=cp1252"),
        "koi8.txt": ("Жизнь".encode("koi8-r"), "binary, or text that is not UTF-8"),
        "utf16.txt": ("text".encode("utf-16"), "UTF-16; read it with --set encoding=utf-16"),
    }  # fmt: skip
    for name, (content, kind) in hostile.items():
        (tmp_path / name).write_bytes(content)
        refuse(f"{name} is not text: {kind}", find_sources, [str(tmp_path / name)])
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "self").symlink_to(tmp_path)
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nothing.txt")
    expected = {name: kind for name, (_, kind) in hostile.items()} | {
        "pipe": "not a regular file",
        "gone.txt": "a link to nothing",
    }
    for name, links in (("", {"self": "a link to a folder"}), ("*", {})):
        found = find_sources([str(tmp_path / name)])
        assert [path.name for path in found.files] == ["a.txt", "stray.txt"]
        assert {path.name: kind for path, kind in found.passed_over} == expected | links
    assert find_sources([str(tmp_path / "pipe")]).files == (tmp_path / "pipe",)
    refuse("/dev/null is not text: not a regular file", lambda: find_sources(["/dev/null"]))
    (tmp_path / "a.txt").unlink()
    (tmp_path / "stray.txt").unlink()
    refuse("pipe (not a regular file)", lambda: find_sources([str(tmp_path)]))


def test_a_character_at_the_end_of_the_first_block_is_no_damage(tmp_path, monkeypatch):
    monkeypatch.setattr(sources_module, "FIRST_BYTES", 3)
    (tmp_path / "a.txt").write_text("a中文")
    assert find_sources([str(tmp_path)]).files == (tmp_path / "a.txt",)


LIST = """
import os, sys
from electra.text.sources import find_sources
os.chdir(sys.argv[1])
os.getuid() or os.setuid(12345)  # permissions hold nobody back who is root
print(find_sources(sys.argv[2:]).files)
"""


@pytest.mark.parametrize("pattern", [".", "**/*.txt", "*/*.txt"])
def test_a_folder_that_cannot_be_listed_is_an_error(tmp_path, pattern):
    for name in ("readable", "closed"):
        (tmp_path / name).mkdir()
    (tmp_path / "readable/a.txt").write_text("text")
    tmp_path.chmod(0o755)
    (tmp_path / "closed").chmod(0)
    command = [sys.executable, "-c", LIST, str(tmp_path), pattern]
    done = subprocess.run(command, capture_output=True, text=True)
    (tmp_path / "closed").chmod(0o755)
    assert re.search(r"PermissionError: \[Errno 13\] Permission denied: '.*closed/?'", done.stderr)


def test_long_words_are_broken_and_others_left_alone():
    address = "https://example.org/" + "/".join(["path"] * 60)
    for text in ("A Donaudampfschifffahrtsgesellschaftskapitän.", "a" * 100, address):
        assert break_words(text) == text
    assert break_words("a" * 250) == " ".join(["a" * 100, "a" * 100, "a" * 50])
    rng = random.Random(0)
    for size in (30, 60, 101, 500):
        run = "".join(rng.choices("한글ǟa═", k=size))
        assert break_words(run).replace(" ", "") == run
