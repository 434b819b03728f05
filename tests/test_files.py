"""What files.py promises: JSON or one line, folders that only the holder of their lock clears."""

import json
import os
from pathlib import Path

import pytest
from refusals import refuse

from electra.errors import UserError
from electra.files import copy_folder, new_folder, parse_object, read_object, write_json

DAMAGED = {
    "[" * 100_000: "JSON that is nested too deeply",
    '{"a": ' * 100_000: "JSON that is nested too deeply",
    '{"a": ' + "9" * 5000 + "}": "JSON with a number of too many digits",
    '{"a": NaN}': "not valid JSON: 'NaN' is not a finite number",
    '{"a": -Infinity}': "not valid JSON: '-Infinity' is not a finite number",
    '{"a": 1e999}': "not valid JSON: '1e999' is not a finite number",
    '{"a": 1, "a": 2}': "not valid JSON: 'a' has two values",
    '{"b": {"a": [], "a": 0}}': "not valid JSON: 'a' has two values",
    "{}\n{}": "line 2: not valid JSON: Extra data",
    '{\n"a": "\udc80"}': "line 2: not UTF-8",
    "[1, 2]": "must be a JSON object, not [1, 2]",
    "null": "must be a JSON object, not None",
    "": "line 1: not valid JSON",
}


@pytest.mark.parametrize("text", DAMAGED, ids=range(len(DAMAGED)))
def test_damaged_json_is_one_line(tmp_path, text):
    path = tmp_path / "config.json"
    content = text.encode("utf-8", "surrogateescape")
    path.write_bytes(content)
    for read in (lambda: read_object(path), lambda: parse_object(content, path)):
        said = refuse(f"config.json ... {DAMAGED[text]}", read)
        assert len(said) < 300 + len(str(path))


def test_json_with_a_mark_or_a_key_twice_with_one_value_is_read(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"a": 1.5, "b": {"c": 1, "c": 1}}', encoding="utf-8-sig")
    assert read_object(path) == {"a": 1.5, "b": {"c": 1}}
    assert json.loads(path.read_text("utf-8-sig")) == read_object(path)


def test_a_pipe_in_place_of_a_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    for path in (tmp_path / "config.json", Path("/dev/zero")):
        refuse(f"{path} is not a regular file", read_object, path)


def test_a_pipe_is_not_replaced_by_a_file(tmp_path):
    os.mkfifo(tmp_path / "out.json")
    refuse("out.json is not a regular file", write_json, tmp_path / "out.json", {})
    assert [(path.name, path.is_fifo()) for path in tmp_path.iterdir()] == [("out.json", True)]


def test_what_was_written_stays_if_its_name_was_taken(tmp_path):
    def write():
        with new_folder(tmp_path / "out") as folder:
            (folder / "work").write_text("of hours")
            (tmp_path / "out").mkdir()
            (tmp_path / "out/other").touch()

    with pytest.raises(OSError, match="not empty"):
        write()
    assert (tmp_path / "out.incomplete/work").read_text() == "of hours"


def test_what_cannot_be_copied_is_one_error(tmp_path):
    (tmp_path / "from").mkdir()
    (tmp_path / "from/link").symlink_to("nowhere")
    with pytest.raises(OSError, match="No such file") as refusal:
        copy_folder(tmp_path / "from", tmp_path / "to")
    assert refusal.value.filename == str(tmp_path / "to/link")
    (tmp_path / "from/link").unlink()
    inside = tmp_path / "from/in"
    inside.mkdir(mode=0o500)  # of another user's, or of a medium that cannot be written
    copy_folder(tmp_path / "from", tmp_path / "copy")
    assert (tmp_path / "copy/in").stat().st_mode & 0o200


def test_a_second_writer_neither_clears_nor_replaces(tmp_path):
    with new_folder(tmp_path / "out") as folder:
        (folder / "work").write_text("of hours")
        with pytest.raises(UserError, match="in use by process"), new_folder(tmp_path / "out"):
            pytest.fail("two processes write one folder")
        assert (folder / "work").read_text() == "of hours"
    assert (tmp_path / "out/work").read_text() == "of hours"
    (tmp_path / "link").symlink_to("nothing")
    for name in ("out", "link"):
        with pytest.raises(UserError, match=f"{name} exists already"), new_folder(tmp_path / name):
            pytest.fail("what is there is replaced")
