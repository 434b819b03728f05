"""Damaged input for every reader of strangers' bytes: `python -m tools.fuzz [READER ...]`.

Each reader gets inputs that are changed at random, with a seed: bytes are flipped, cut out,
repeated; values of JSON are replaced by others. It may read an input or refuse it with a UserError.
Any other exception, memory of more than BYTES or a time of more than SECONDS is a fault: the input
is written to tests/fixtures/fuzz/READER, which tests/test_fuzz.py reads again, and its traceback
is printed.
"""

import argparse
import bz2
import faulthandler
import gzip
import hashlib
import io
import json
import lzma
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow
import pyarrow.parquet
import torch
from safetensors.torch import load_file

from electra.assignments import override_from_toml
from electra.checkpoints.checkpoint import read_tensors
from electra.checkpoints.finetuned import read_finetuned
from electra.checkpoints.folder import read_pretrained, read_run_config
from electra.checkpoints.manifest import read_manifest
from electra.checkpoints.metrics import read_curves
from electra.checkpoints.results_files import read_results
from electra.errors import UserError, require_choice
from electra.files import HASHES, parse_object, write_facts, write_hashes
from electra.inference.predict import load_model
from electra.interop.export import export
from electra.interop.weights import read_source
from electra.presets import PRESETS
from electra.reproduce.suite import SUITES, read_suite
from electra.shards.store import open_shards
from electra.tasks.conll import read_sentences
from electra.tasks.squad_files import read_questions
from electra.text.config import TextConfig
from electra.text.documents import Reader
from electra.text.sources import find_sources
from electra.text.table_files import read_table, read_texts
from electra.tokenizing.sentencepiece import build_state, read_model
from electra.tokenizing.tokenizer import Tokenizer
from electra.training.machine import Machine
from tools.tensorflow import read_bundle

ROOT = Path(__file__).parent.parent
FOUND = ROOT / "tests" / "fixtures" / "fuzz"
SAMPLES = ROOT / "tests" / "fixtures" / "format-1"
SECONDS, BYTES = 10, 1 << 30
"""Longest time of an input on a CPU, and most memory that it may add."""
ODD: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1 << 63,
    10**30,
    1e308,
    float("nan"),
    "",
    "\ud800",
    "a/b",
)
ODD += ([], {}, [[]], {"": 0}, "x" * 5000)


class Target(NamedTuple):
    """A reader, and what it reads when nothing is damaged."""

    read: Callable[[Path], object]
    """Is given the path of the changed file, or a copy of `folder` with it."""
    seeds: Mapping[str, bytes]
    """Contents of the files that are changed, by name."""
    folder: Path | None = None


def change(content: bytes, rng: random.Random) -> bytes:
    """Return a changed input: its values, if it is JSON or lines of it, or else its bytes."""
    if rng.random() < 0.7 and content[:1] in (b"{", b"["):
        lines = content.splitlines() if content.count(b"\n{") else [content]
        at = rng.randrange(len(lines))
        try:
            lines[at] = json.dumps(_change_value(json.loads(lines[at]), rng)).encode()
            return b"\n".join(lines)
        except ValueError:
            pass
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        content = _change_bytes(content, rng)
    return content


def _change_bytes(content: bytes, rng: random.Random) -> bytes:
    at, end = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    short = min(end, at + rng.choice((1, 2, 4, 8, 64)))
    match rng.randrange(6):
        case 0 if content:
            at = min(at, len(content) - 1)
            return content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]
        case 1:
            return content[:at] + rng.randbytes(short - at) + content[short:]
        case 2:
            return content[:at] + content[short:]
        case 3:
            return content[:short] + content[at:short] * rng.choice((1, 3, 100)) + content[short:]
        case 4:
            return content[:end]
        case _:
            number = rng.choice((0, 1, 127, 255, 1 << 15, 1 << 31, (1 << 32) - 1, (1 << 64) - 1))
            size = rng.choice((1, 2, 4, 8))
            return (
                content[:at] + (number % (1 << 8 * size)).to_bytes(size, "little") + content[end:]
            )


def _change_value(value: Any, rng: random.Random) -> Any:
    """Return a JSON value with one value, or key, of it changed."""
    if not value or not isinstance(value, dict | list) or rng.random() < 0.1:
        return rng.choice(ODD)
    keys = list(value) if isinstance(value, dict) else range(len(value))
    key = rng.choice(keys)
    copy = value.copy()
    match rng.randrange(8):
        case 0:
            del copy[key]
        case 1 if isinstance(copy, dict):
            copy[rng.choice(("", "x", "\ud800"))] = copy.pop(key)
        case 2 if isinstance(copy, list):
            copy.append(copy[key])
        case _:
            copy[key] = _change_value(copy[key], rng)
    return copy


def find_targets(work: Path) -> dict[str, Target]:
    """Return all readers, with samples of what each reads; some samples are written to a folder."""
    text = "The queen sold a boat.\nMy neighbour, 7, said: „naïve“ 中文.\n\nAn engine.\n".encode()
    table = b'id\ttext\tlabel\n1\tsaid "no"\tx\n2\ttwo words\ty\n3\tnaive\tx\n'
    rows = b'{"id": 1, "text": "said no", "label": "x"}\n{"id": 2, "text": "two", "label": "y"}\n'
    tables = {"a.tsv": table, "a.csv": table.replace(b"\t", b","), "a.jsonl": rows}
    words = {"a.txt": b"A DT O\nboat NN B-X\n\nNo DT O\n"}
    words["a.jsonl"] = b'{"tokens": ["A", "boat"], "tags": ["O", "B-X"]}\n'
    tags = partial(read_sentences, word_column=1, tag_column=0, known=(), notes=[])
    samples = unlock(work)
    run, tuned, shards = (samples / name for name in ("run", "finetuned", "shards"))
    whole, bundle = _publish(run, work / "whole"), ROOT / "tests" / "tf_checkpoint"
    pickled = _publish(run, work / "pickled", pickled=True)
    seed, step = "seed-0/model", "checkpoints/step-00000003"
    names = ("tokenizer.json", "tokenizer_config.json", "vocab.txt")
    read_tuned = _read_all(read_results, _read_tuned)
    return {
        "text": Target(_read_documents, _pack(text, table, rows)),
        "table": Target(read_table, tables),
        "lines": Target(read_texts, {"a.txt": text, **tables}),
        "parquet": Target(_read_all(read_table, _read_documents), {"a.parquet": _write_parquet()}),
        "questions": Target(
            lambda path: read_questions(path, is_labelled=True), {"a.json": _write_squad()}
        ),
        "tags": Target(tags, words),
        "settings": Target(_read_settings, {"a.toml": b"[train]\nsteps = 3\nseed = 1\n"}),
        "suite": Target(read_suite, {"a.toml": (SUITES / "table-5.toml").read_bytes()}),
        "pieces": Target(_read_pieces, {"a.model": _write_pieces()}),
        "tokenizer": _in_folder(_read_tokenizer, run / "tokenizer", *names),
        "run": _in_folder(_read_run, run, "manifest.json", "config.json", f"{step}/state.json"),
        "records": _in_folder(read_curves, run, "metrics.jsonl"),
        "shards": _in_folder(open_shards, shards, "manifest.json", "train-00000.lines"),
        "finetuned": _in_folder(
            read_tuned,
            *(tuned, "results.json", "config.json", "manifest.json", "seed-0/results.json"),
            *(f"{seed}/config.json", f"{seed}/tokenizer/tokenizer.json"),
        ),
        "weights": Target(
            lambda path: _read_values(read_tensors(path)),
            {"a.safetensors": (tuned / seed / "model.safetensors").read_bytes()},
        ),
        "published": _in_folder(read_pretrained, whole, "config.json", "model.safetensors"),
        "pickle": _in_folder(
            lambda path: _read_values(read_source(path).own), pickled, "pytorch_model.bin"
        ),
        "tensorflow": _in_folder(
            lambda path: read_bundle(path / "model.ckpt-7"),
            *(bundle, "model.ckpt-7.index", "model.ckpt-7.data-00000-of-00001"),
        ),
    }


def _in_folder(read: Callable[[Path], object], folder: Path, *names: str) -> Target:
    """Return a reader of a whole folder, some files of which are changed."""
    return Target(read, {name: (folder / name).read_bytes() for name in names}, folder)


def unlock(work: Path) -> Path:
    """Return copies of a run, shards and a fine-tuning without hashes, to allow any change."""
    folder = work / "samples"
    shutil.copytree(SAMPLES, folder)
    for path in folder.rglob("electra.json"):
        path.unlink()
    states = {*folder.rglob("state.json")}  # which have to have all hashes
    for path in {*folder.rglob("*.json")} - states:
        facts = json.loads(path.read_text(encoding="utf-8"))
        hashes = facts.get("sha256", {})
        if path.name in hashes:
            facts["sha256"] = {name: hashes[name] for name in hashes if name != path.name}
        path.write_text(json.dumps(facts), encoding="utf-8")
    return folder


def _publish(run: Path, out: Path, *, pickled: bool = False) -> Path:
    """Return a folder such as other programs write, with the discriminator of a run."""
    export(run, out)
    (out / "electra.json").unlink()
    if pickled:
        torch.save(load_file(out / "model.safetensors"), out / "pytorch_model.bin")
        (out / "model.safetensors").unlink()
    return out


def _read_documents(path: Path) -> None:
    settings = TextConfig()
    for _ in Reader(settings=settings, border="auto").read(
        find_sources([str(path)], settings).files
    ):
        pass


def _read_all(*readers: Callable[[Path], object]) -> Callable[[Path], None]:
    """Return a function that calls all readers, even if one refuses its input."""

    def read(path: Path) -> None:
        refusals = []
        for each in readers:
            try:
                each(path)
            except UserError as error:
                refusals.append(error)
        if refusals:
            raise refusals[0]

    return read


def _read_settings(path: Path) -> None:
    override_from_toml(PRESETS["tiny"], path)


def _read_tokenizer(folder: Path) -> None:
    """Read a tokenizer that was changed together with its hashes."""
    (folder / HASHES).unlink(missing_ok=True)
    write_hashes(folder)
    Tokenizer.load(folder)


def _read_run(run: Path) -> None:
    """Read a run that was changed together with the hash of its state."""
    for path in run.glob("checkpoints/*/state.json"):
        with suppress(UserError, AttributeError, TypeError):
            facts = parse_object(path.read_bytes(), path)
            hashes = facts.pop("sha256", {})
            write_facts(path, facts, {name: hashes[name] for name in hashes if name != path.name})
    _read_all(read_manifest, read_run_config, read_pretrained)(run)


def _read_pieces(path: Path) -> None:
    build_state(read_model(path.read_bytes()))


def _read_values(weights: Mapping[str, Any]) -> None:
    for name in weights:
        weights[name]


def _read_tuned(folder: Path) -> None:
    found = read_finetuned(folder)
    _read_values(found.kept.head)
    load_model(found, Machine()).answer([{"text": "the queen sold an engine ."}])


def _pack(text: bytes, table: bytes, rows: bytes) -> dict[str, bytes]:
    """Return text in several formats, and compressed."""
    found = {"a.txt": text, "a.tsv": table, "a.jsonl": rows}
    packed: dict[str, Callable[[bytes], bytes]]
    packed = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
    found |= {f"a.txt{suffix}": pack(text) for suffix, pack in packed.items()}
    return found


def _write_parquet() -> bytes:
    table = pyarrow.table({"text": ["said no", "two"], "label": [0, 1], "tags": [["x"], []]})
    pyarrow.parquet.write_table(table, out := io.BytesIO())
    return out.getvalue()


def _write_pieces() -> bytes:
    """Return a model of SentencePiece with three pieces, as its own library would write it."""

    def piece(text: bytes, score: float, kind: int) -> bytes:
        facts = b"\x0a" + bytes([len(text)]) + text + b"\x15" + struct.pack("<f", score)
        facts += b"\x18" + bytes([kind])
        return b"\x0a" + bytes([len(facts)]) + facts

    trainer = b"\x12\x05\x18\x01\xc0\x02\x00"  # unigram; unknown text is piece 0
    return piece(b"<unk>", 0, 2) + piece(b"\xe2\x96\x81a", -1, 1) + piece(b"b", -2, 1) + trainer


def _write_squad() -> bytes:
    answer = {"text": "a boat", "answer_start": 15}
    asked = [{"id": "1", "question": "What?", "answers": [answer]}]
    paragraph = {"context": "The queen sold a boat.", "qas": asked}
    return json.dumps(
        {"version": "1.1", "data": [{"title": "", "paragraphs": [paragraph]}]}
    ).encode()


class Fault(Exception):
    """A reader exceeds a limit."""


@contextmanager
def limited() -> Iterator[None]:
    """Raise a Fault where something takes too much time, or memory."""

    def stop(*_: object) -> None:
        raise Fault(f"no end in {SECONDS} s")

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    more = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    if more > BYTES:
        raise Fault(f"{more / 2**20:,.0f} MiB more memory")


def try_input(target: Target, name: str, content: bytes, work: Path) -> str:
    """Return how a reader fails at a file's content: a traceback; empty: it reads or refuses it."""
    place = work / "input"
    if target.folder and not place.exists():
        shutil.copytree(target.folder, place)
    path = place / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    try:
        with limited(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            target.read(place if target.folder else path)
    except UserError:
        return ""
    except Exception:
        return traceback.format_exc()
    finally:
        path.write_bytes(target.seeds[name])
    return ""


def fuzz(
    target: Target, seconds: float, seed: int, work: Path, most: int | None = None
) -> tuple[int, dict[str, Any]]:
    """Return how many inputs a reader got, and the first one for each place where it failed."""
    rng, number = random.Random(seed), 0
    faults: dict[str, tuple[str, bytes, str]] = {}
    end = time.monotonic() + seconds
    while time.monotonic() < end and number != most:
        name = rng.choice(sorted(target.seeds))
        content = change(target.seeds[name], rng)
        if told := try_input(target, name, content, work):
            place = [line for line in told.splitlines() if line.startswith("  File")][-1]
            faults.setdefault(place, (name, content, told))
        number += 1
    return number, faults


def keep(reader: str, name: str, content: bytes) -> Path:
    """Write an input into FOUND, and return its path."""
    digest = hashlib.sha256(content).hexdigest()[:8]
    path = FOUND / reader / digest / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def main() -> None:
    """Fuzz readers, and print how many inputs each got and what each did wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("readers", nargs="*", help="all if none is named")
    parser.add_argument("--seconds", type=float, default=60, help="of each reader")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="the time if not given")
    arguments = parser.parse_args()
    faulthandler.enable()
    is_right = True
    with tempfile.TemporaryDirectory() as temporary:
        targets = find_targets(Path(temporary))
        for name in arguments.readers:
            require_choice("reader", name, targets)
        for name in arguments.readers or targets:
            work = Path(temporary) / f"fuzz-{name}"
            number, faults = fuzz(targets[name], arguments.seconds, arguments.seed, work)
            print(
                f"{name}: {number:,} inputs, {len(faults)} faults, seed {arguments.seed}",
                flush=True,
            )
            for file, content, told in faults.values():
                is_right = False
                print(f"{keep(name, file, content)}\n{told}", flush=True)
    if not is_right:
        sys.exit(1)


if __name__ == "__main__":
    main()
