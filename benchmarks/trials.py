"""Damage, hostile input, kills and races at small size, each command in a process of its own.

    python -m benchmarks.trials [SERIES ...] --out results/trials.json

A series is a function that takes the folder of `make_chain` and yields trials; a new one is such a
function in SERIES. The program prints how many trials of each series ended how, and --out takes the
counts: those of series that are not named are kept. Tracebacks, silent, lost and hung must be 0.
"""

import argparse
import errno
import hashlib
import importlib
import json
import os
import pickle
import pkgutil
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import electra
from benchmarks.power import MODELS, Moment, State, rebuild, recording, write_state
from electra.checkpoints.checkpoint import find_checkpoint, list_checkpoints
from electra.checkpoints.manifest import find_commit
from electra.cli import main as run_electra
from electra.errors import UserError
from electra.files import read_object, write_json, write_text
from electra.reports.rendering import Table, to_markdown
from electra.training.machine import Machine

SECONDS = 120
"""Longest time of a command."""
BYTES = 2 << 30
"""Most memory of a command; one that asks for more ends in a traceback."""
ENDS = {
    "done": "status 0, with the right result",
    "refused": "status 2 and one line, nothing written",
    "noted": "status 0 and a note",
    "recovered": "killed, and done by the same command",
    "traceback": "a traceback, another status, or more than 2 GiB",
    "silent": "status 0 where it must not be, or a wrong result",
    "lost": "refused what is right, or not in one line, or something half-written",
    "hung": f"no end in {SECONDS} seconds",
}
FAULTS = ("traceback", "silent", "lost", "hung")
SMALL = [
    *("model.hidden_size=64", "model.num_attention_heads=1", "model.embedding_size=32"),
    *("model.intermediate_size=96", "model.num_hidden_layers=1", "generator.hidden_fraction=1"),
    *("examples.sequence_length=32", "train.steps=40", "train.batch_size=4", "train.threads=1"),
    *("train.evaluate_rows=8", "train.save_every=10", "train.log_every=5"),
]
MEMOS = {"tensorboard", "verified.json", "lock", ".unfinished", "plan.json"}
"""What a command may leave in a folder that it reads or writes."""
ONCE = ["epochs=1", "threads=1", "reseeds=0"]
PREPARED = ["heldout_prob=0.1", "workers=1"]
VERBS = {
    "tokenizer": ["text.txt", "--out", "vocabulary", "--set", "vocab_size=120"],
    "prepare": ["text.txt", "--tokenizer", "vocabulary", "--out", "shards", "--set", *PREPARED],
    "pretrain": ["shards", "--out", "run", "--set", *SMALL],
    "finetune": ["run", "--task", "own", "--data", "task", "--out", "scores", "--set", *ONCE],
    "export": ["run", "--out", "exported"],
    "import": ["exported", "--out", "imported"],
    "embed": ["run", "--input", "task/dev.tsv", "--out", "vectors.npy"],
    "score": ["run", "--pairs", "pairs.tsv", "--out", "scored.json"],
    "predict": ["scores", "--input", "task/dev.tsv", "--out", "answers.jsonl"],
    "report": ["run", "scores", "--out", "report.html"],
}
"""Commands that write, in the order of the chain; each has one --out."""


MATRIX = re.compile(r"layers?\.0\..*(intermediate.dense|Wi)\.weight")
"""A matrix that every reader of a model reads."""
FEW = [
    each.replace("=40", "=2").replace("embedding_size=32", "embedding_size=64") for each in SMALL
]
BODIES = {
    "electra": ([each.replace("=40", "=2") for each in SMALL], []),
    "modernbert": (["model.architecture=modernbert", *FEW], []),
    "deberta-v2": (["model.architecture=deberta-v2", *FEW], []),
    "bert": (FEW, ["--as", "bert"]),
}
"""Settings of `pretrain` and options of `export`."""
SHORT = ["train.steps=2", "train.batch_size=4", "train.evaluate_rows=0", "train.threads=1"]
READERS = [
    ["embed", "copy", "--input", "task/dev.tsv", "--out", "new.npy"],
    ["detect", "copy", "the queen sold a boat"],
    ["finetune", "copy", "--task", "own", "--data", "task", "--out", "new", "--set", *ONCE],
    ["export", "copy", "--out", "new"],
    ["pretrain", "shards", "--init-from", "copy", "--out", "new", "--set", *SHORT],
]
LONGER = [each.replace("steps=40", "steps=41") for each in SMALL]
OURS = {
    "run/manifest.json": (
        ["report", "copy", "--out", "new.html"],
        ["export", "copy", "--out", "new"],
        ["pretrain", "shards", "--out", "copy", "--set", *LONGER],
    ),
    "run/config.json": (["report", "copy", "--out", "new.html"],),
    "run/results.json": (["inspect", "copy"],),
    "run/samples.json": (["report", "copy", "--out", "new.html"],),
    "scores/results.json": (
        ["report", "copy", "--out", "new.html"],
        ["predict", "copy", "--input", "task/dev.tsv", "--out", "new.jsonl"],
    ),
    "scores/config.json": (["export", "copy", "--out", "new"],),
    "exported/config.json": (["report", "copy", "--out", "new.html"],),
    "exported/electra.json": (["report", "copy", "--out", "new.html"],),
    "shards/manifest.json": (
        ["inspect", "copy"],
        ["pretrain", "copy", "--out", "new", "--set", *SHORT],
    ),
}
"""Our own JSON files, and commands that read them."""
REFUSED = ("refused",)
Harm = Callable[[Path], object]
"""Damages a folder."""


class Trial(NamedTuple):
    """A command in the folder of a chain, and how it may end."""

    name: str
    words: list[str]
    allowed: tuple[str, ...] = REFUSED
    prepare: Callable[[], object] = lambda: None
    """Called before the command."""
    is_cut: bool = False
    """Whether a power failure ended an earlier start of the command."""
    fault: str = ""
    """Fault of system calls, as faults.c reads it. A refused command is repeated without it."""
    kill_after: float | None = None
    """Seconds after which the command is killed and given again."""
    rival_after: float | None = None
    """Seconds after which another process begins with the same command."""
    check: Callable[[], object] = lambda: True
    """Whether the result is right, after status 0."""


class Ended(NamedTuple):
    """How a command ended: None as its status if it was killed."""

    status: int | None
    err: str

    @property
    def is_refusal(self) -> bool:
        """Whether the command was refused in one line."""
        lines = [line for line in self.err.splitlines() if line.startswith("error: ")]
        return self.status == 2 and len(lines) == 1


class Started:
    """A command of electra in a process of its own."""

    def __init__(self, words: list[str], inside: AbstractContextManager[None] | None = None):
        self.out = tempfile.TemporaryFile()  # noqa: SIM115
        self.pid = os.fork()
        if self.pid:
            return
        status = 1
        try:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_DATA, (BYTES, BYTES))
            for stream in (1, 2):
                os.dup2(self.out.fileno(), stream)
            sys.stdout, sys.stderr = (os.fdopen(stream, "w") for stream in (1, 2))
            with inside or nullcontext():
                run_electra(words)
            status = 0
        except SystemExit as stop:
            status = int(stop.code or 0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def wait(self, seconds: float = SECONDS) -> Ended:
        """Return how the command ended; kill it after some seconds."""
        end = time.monotonic() + seconds
        while not (found := os.waitpid(self.pid, os.WNOHANG))[0] and time.monotonic() < end:
            time.sleep(0.01)
        done, code = found
        if not done:
            os.killpg(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        self.out.seek(0)
        with self.out:
            err = self.out.read().decode("utf-8", "replace")
        return Ended(os.waitstatus_to_exitcode(code) if done else None, err)


def judge(trial: Trial) -> tuple[str, str]:
    """Run a trial and return its end, one of ENDS, and what was printed."""
    trial.prepare()
    out = out_of(trial)
    is_killed, faulty, is_there = trial.is_cut, [], out.exists()
    if trial.fault:
        faulty = [Started(trial.words, failing(trial.fault)).wait()]
        if not faulty[0].is_refusal:
            return judge_end(trial, faulty[0], [], is_killed=False), faulty[0].err
        is_killed = True
    if trial.kill_after is not None:
        is_killed = Started(trial.words).wait(trial.kill_after).status is None
    is_done = trial.kill_after is not None and not is_killed
    commands = [] if is_done else [Started(trial.words)]
    if trial.rival_after is not None:
        time.sleep(trial.rival_after)
        commands.append(Started(trial.words))
    every = [command.wait() for command in commands] or [Ended(0, "")]
    # Of two, the one that was not refused is judged, and the other one is as a refusal has to be.
    ended, *others = sorted(every, key=lambda each: each.status != 0)
    end = judge_end(trial, ended, others, is_killed, is_there)
    return end, "\n".join(each.err for each in [*faulty, *every])


def out_of(trial: Trial) -> Path:
    """Return what a command writes."""
    return Path(dict(zip(trial.words, trial.words[1:], strict=False)).get("--out", "nothing"))


def judge_end(
    trial: Trial, ended: Ended, others: list[Ended], is_killed: bool, is_there: bool = False
) -> str:
    """Return the end of a trial, one of ENDS; `is_there`: its --out was there before."""
    if None in (ended.status, *(each.status for each in others)):
        return "hung"
    if any("Traceback" in each.err or each.status not in (0, 2) for each in (ended, *others)):
        return "traceback"
    if not all(each.status == 0 or each.is_refusal for each in others):
        return "lost"
    out = out_of(trial)
    is_left = Path(f"{out}.incomplete").exists()
    if ended.status == 0:
        end = "recovered" if is_killed else "noted" if "note: " in ended.err else "done"
        allowed = end in trial.allowed or (end != "refused" and "done" in trial.allowed)
        return end if allowed and not is_left and trial.check() else "silent"
    if is_killed and ended.is_refusal and out.exists() and trial.check():
        return "recovered"  # it was killed when all was done
    is_new = is_left or (out.exists() and not is_there)
    is_right = ended.is_refusal and "refused" in trial.allowed and not is_new
    return "refused" if is_right else "lost"


def carry_out(*words: object) -> None:
    """Run a command that must be done."""
    ended = Started([str(word) for word in words]).wait()
    if ended.status != 0:
        raise SystemExit(f"electra {' '.join(map(str, words))}: {ended.err}")


def make_chain(folder: Path) -> None:
    """Write into a folder what each of VERBS writes, from a text, a task and pairs."""
    subjects, verbs = ("the sailor", "a doctor", "the queen"), ("painted", "sold", "admired")
    lines = [
        f"{subjects[n % 3]} {verbs[n // 3 % 3]} {n % 7} boats in {1900 + n % 50} ." + "\n" * (n % 4)
        for n in range(800)
    ]
    (folder / "text.txt").write_text("\n".join(lines))
    pairs = "the queen sold a boat\tboat a sold queen the\torder\n" * 4
    (folder / "pairs.tsv").write_text(f"sentence_good\tsentence_bad\tUID\n{pairs}")
    (folder / "task").mkdir()
    for split, count in (("train", 24), ("dev", 12)):
        rows = "".join(f"the queen {verb}\t{verb}\n" for verb in verbs[:2]) * (count // 2)
        (folder / "task" / f"{split}.tsv").write_text(f"text\tlabel\n{rows}")
    for verb, words in VERBS.items():
        carry_out(verb, *words)
    (folder / "CoLA").mkdir()
    judged = "".join(f"x\t{n % 2}\t\tthe queen sold {n} boats\n" for n in range(24))
    for split in ("train", "dev"):
        (folder / f"CoLA/{split}.tsv").write_text(judged)
    (folder / "CoLA/test.tsv").write_text("index\tsentence\n0\ta queen sold\n1\tsold a the\n")
    carry_out(
        "finetune", "run", "--task", "cola", "--data", "CoLA", "--out", "cola", "--set", *ONCE
    )
    (folder / "suite.toml").write_text(SUITE)
    carry_out("reproduce", *CUT["reproduce"][:-1], "1")
    remove(folder / name_of(CUT["reproduce"]))


def remove(*paths: Path) -> None:
    """Remove what is there, whole or incomplete."""
    for path in [*paths, *(path.with_name(f"{path.name}.incomplete") for path in paths)]:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def with_out(verb: str, out: str) -> list[str]:
    """Return a command of VERBS with another --out."""
    words = [verb, *VERBS[verb]]
    words[words.index("--out") + 1] = out
    return words


def is_same(first: Path, second: Path) -> bool:
    """Return whether two files, or the files of two folders, have the same bytes.

    Files are left out that show when and how fast something was done, by name and by form.
    """
    if first.is_file():
        return first.read_bytes() == second.read_bytes() or first.suffix in (".html", ".json")
    if first.name == "checkpoints":  # older ones may be left
        first, second = (list_checkpoints(each.parent)[-1] for each in (first, second))
    names = [{path.name for path in each.iterdir()} - MEMOS for each in (first, second)]
    times = {"manifest.json", "results.json", "metrics.jsonl", "verified.json", "tensorboard"}
    times |= {"README.md", "electra.json", "state.json"}
    return names[0] == names[1] and all(
        is_same(first / name, second / name) for name in names[0] - times
    )


# The series


def list_damages(content: bytes) -> dict[str, bytes | None]:
    """Return what a file of this content may become; None: it is missing."""
    middle = len(content) // 2
    return {
        "missing": None,
        "emptied": b"",
        "cut": content[:middle],
        "flipped": content[:middle] + bytes([content[middle] ^ 0x55]) + content[middle + 1 :],
        "zeros": bytes(len(content)),
        "nested": b"[" * 100_000,
        "other": b'{"a": 1}',
    }


def try_damage(folder: Path) -> Iterator[Trial]:
    """Damage each file that a command reads in each way: refused, reported, or harmless."""
    detect = ["detect", "COPY", "the queen sold a boat"]
    predict = ["predict", "COPY", "--input", "task/dev.tsv"]
    prepare = ["prepare", "text.txt", "--tokenizer", "COPY", "--out", "new", "--set", *PREPARED]
    readers = {
        "vocabulary": (prepare, "."),
        "shards": (["pretrain", "COPY", "--out", "new", "--set", *SMALL], "."),
        "run": (detect, "checkpoints/step-00000040"),
        "run/": (detect, "tokenizer"),
        "exported": (detect, "."),
        "scores": (predict, "seed-0/model"),
        "scores/": (predict, "seed-0/model/tokenizer"),
    }
    copy, new = folder / "copy", folder / "new"
    for top, (reader, inner) in readers.items():
        words = ["copy" if word == "COPY" else word for word in reader]
        place = folder / top / inner
        hashes = {"electra.json"}  # without them, nothing is compared
        for path in sorted(each for each in place.iterdir() if each.is_file()):
            for damage, content in list_damages(path.read_bytes()).items():

                def harm(
                    top: str = top, path: Path = path, content: bytes | None = content
                ) -> None:
                    remove(copy, new)
                    shutil.copytree(folder / top, copy)
                    target = copy / path.relative_to(folder / top)
                    target.unlink() if content is None else target.write_bytes(content)

                allowed, check = ("refused",), lambda: True
                if inner.startswith("checkpoints"):  # an older one takes its place
                    allowed = ("noted",)
                if path.name in hashes and damage == "missing":
                    allowed = ("done",)
                if path.name == "README.md":  # not signed: its publisher adds to it
                    allowed = ("done",)
                if path.name == "verified.json":  # what was verified when is found out again
                    allowed, check = ("done",), lambda: is_same(folder / "run", new)
                name = f"{path.relative_to(folder)} {damage}"
                yield Trial(name, words, allowed, harm, check=check)


def try_hostile(folder: Path) -> Iterator[Trial]:
    """Any bytes as text, table or task are read, or refused in one line."""
    contents = {
        "nothing": b"",
        "nul": b"the queen\0sold\tsold\n" * 9,
        "latin": "text\tlabel\ncaf\xe9 \xff\tsold\n".encode("latin-1") * 9,
        "one line": b"queen " * 100_000,
        "quotes": b'text\tlabel\n"the queen\tsold\n' * 9,
        "nested": b'{"text": ' + b"[" * 100_000,
        "numbers": b'{"text": ' + b"9" * 5000 + b"}\n",
        "null": b'{"text": null}\n' * 9,
        "wide": b"text\tlabel\n" + b"\t" * 5000 + b"\n",
        "escapes": b"\x1b[2J\x07\xe2\x80\xae the queen\n" * 9,
    }
    commands = {
        "tokenizer": ["FILE", "--out", "new", "--set", "vocab_size=120"],
        "prepare": ["FILE", "--tokenizer", "vocabulary", "--out", "new", "--set", "workers=1"],
        "predict": ["scores", "--input", "FILE"],
        "embed": ["run", "--input", "FILE", "--out", "new.npy"],
        "score": ["run", "--pairs", "FILE", "--out", "new.json"],
        "detect": ["run", "--input", "FILE"],
    }
    for kind, content in contents.items():
        for suffix in (".txt", ".tsv", ".jsonl"):
            path = folder / f"hostile{suffix}"
            for verb, words in commands.items():

                def write(path: Path = path, content: bytes = content) -> None:
                    path.write_bytes(content)
                    remove(folder / "new", folder / "new.npy", folder / "new.json")

                given = [path.name if word == "FILE" else word for word in words]
                yield Trial(f"{verb} {kind}{suffix}", [verb, *given], ("done", "refused"), write)


def try_kills(folder: Path) -> Iterator[Trial]:
    """Repeating a killed command completes it, with the same result."""
    for verb, words in VERBS.items():
        whole = folder / words[words.index("--out") + 1]
        for hundredths in (5, 15, 30, 60, 100, 150):
            out = folder / f"killed-{hundredths}-{whole.name}"
            yield Trial(
                f"{verb} after {hundredths / 100} s",
                with_out(verb, out.name),
                ("recovered", "done"),
                kill_after=hundredths / 100,
                check=partial(is_same, whole, out),
            )


def try_races(folder: Path) -> Iterator[Trial]:
    """Of two processes that write one --out, one succeeds; the other succeeds or is refused."""
    for verb, words in VERBS.items():
        whole = folder / words[words.index("--out") + 1]
        for hundredths in (0, 2, 5, 10, 20, 40, 80):
            out = folder / f"raced-{hundredths}-{whole.name}"
            yield Trial(
                f"{verb} after {hundredths / 100} s",
                with_out(verb, out.name),
                ("done",),
                rival_after=hundredths / 100,
                check=partial(is_same, whole, out),
            )


CUT = {
    "tokenizer": VERBS["tokenizer"],
    "prepare": [*VERBS["prepare"], "task_bytes=8000", "write_dropped=true", "min_chars=40"],
    "pretrain": [*VERBS["pretrain"], "train.keep_checkpoints=1"],
    "finetune": [*VERBS["finetune"], "--seeds", "2"],
    "export": VERBS["export"],
    "import": VERBS["import"],
    "embed": VERBS["embed"],
    "score": VERBS["score"],
    "predict": VERBS["predict"],
    "report": VERBS["report"],
    "submit": ["cola", "--partial", "--out", "submission.zip"],
    # Its runs and fine-tunings are done before: other processes do them, as `pretrain` does.
    "reproduce": [
        *("suite.toml", "--shards", "shards", "--data", "own=task", "--runs", "suite-runs"),
        *("--out", "suite", "--jobs", "0"),
    ],
    "quickstart": [
        *("--text", "text.txt", "--out", "quick", "--set", "tokenizer.vocab_size=120"),
        *("prepare.workers=1", *(f"pretrain.{each}" for each in FEW)),
    ],
}
"""Commands that a failure of the power ends; what they write is in the folder `cut`."""
SUITE = f"""
title = "A suite"
preset = "tiny"
reference = "RTD"
equal = "steps"
budget = 2
seeds = 1
tasks = ["own"]
set = {[each for each in FEW if "train.steps" not in each]}
[finetune]
all = ["epochs=1"]
[[rows]]
name = "RTD"
[[rows]]
name = "MLM"
set = ["method.objective=mlm"]
"""
STATES = 24
"""Most states of a command after a failure of the power."""


def name_of(given: list[str]) -> str:
    """Return what a command writes."""
    return given[given.index("--out") + 1]


def cut_words(verb: str, given: list[str]) -> list[str]:
    """Return a command that writes into the folder `cut`."""
    name = name_of(given)
    return [verb, *(f"cut/{name}" if word == name else word for word in given)]


def try_power(folder: Path) -> Iterator[Trial]:
    """Repeating a command after a power failure completes it, unless it was complete.

    The states are those of the models of `power`, without duplicates, and the last of each model.
    Finished results are whole, and a run that has removed a checkpoint has another one.
    """
    place, notes, rng = folder / "cut", folder / "moments", random.Random(0)
    for verb, given in CUT.items():
        words, name = cut_words(verb, given), name_of(given)
        remove(place)
        place.mkdir()
        if (ended := Started(words, recording(place, notes)).wait()).status != 0:
            raise SystemExit(f"electra {' '.join(words)}: {ended.err}")
        whole = folder / f"uncut-{name}"
        remove(whole)
        shutil.move(place / name, whole)
        moments: list[Moment] = pickle.loads(notes.read_bytes())
        removals = [
            n for n, each in enumerate(moments) if re.match(r"rmdir .*step-\d+$", each.call)
        ]
        states: dict[str, tuple[str, int, State]] = {}
        for model in MODELS:
            for stop in range(len(moments)):
                state = rebuild(moments, stop, model, rng)
                content = {
                    name: each and hashlib.sha256(each).digest() for name, each in state.items()
                }
                states.setdefault(repr(content), (model, stop, state))
        last = [each for each in states.values() if each[1] == len(moments) - 1]
        others = [each for each in states.values() if each[1] < len(moments) - 1]
        chosen = rng.sample(others, min(STATES, len(others)))
        for model, stop, state in sorted([*chosen, *last], key=lambda each: each[1]):
            kept: list[bool] = []

            def cut(
                state: State = state,
                name: str = name,
                whole: Path = whole,
                is_last: bool = stop == len(moments) - 1,
                is_saved: bool = bool(removals) and stop >= removals[0],
                kept: list[bool] = kept,
            ) -> None:
                write_state(place, state)
                is_there = (place / name).exists()
                kept.append(not is_last or (is_there and is_same(whole, place / name)))
                if is_saved:
                    kept.append(any(find_intact(place / name)))

            def check(name: str = name, whole: Path = whole, kept: list[bool] = kept) -> bool:
                return all(kept) and is_same(whole, place / name)

            yield Trial(
                f"{verb}, {model} after {stop} of {len(moments)}: {moments[stop].call}",
                words,
                ("recovered",),
                cut,
                is_cut=True,
                check=check,
            )


def find_intact(run: Path) -> Iterator[Path]:
    """Yield the intact checkpoints of a run."""
    for folder in list_checkpoints(run):
        with suppress(UserError):
            yield find_checkpoint(folder)[1]


@contextmanager
def failing(fault: str) -> Iterator[None]:
    """Let system calls of this process fail, if faults.c is loaded."""
    os.environ["FAULT"] = fault
    yield
    del os.environ["FAULT"]


def try_faults(folder: Path) -> Iterator[Trial]:
    """If a system call fails, a command succeeds, or is refused in one line and works later.

    A file system without fsync makes no difference; one without locks is noted.
    """
    rng = random.Random(0)
    failures = {
        "write": (errno.EIO, errno.ENOSPC, errno.EDQUOT),
        "fsync": (errno.EIO,),
        "close": (errno.EIO,),
        "rename": (errno.EIO, errno.ENOSPC),
    }
    faults: list[tuple[str, tuple[str, ...]]] = [
        (f"{call} {number} {first} {count}", ("recovered", "done"))
        for call, numbers in failures.items()
        for number in numbers
        for first, count in ((0, 1), (rng.randint(1, 6), 1), (rng.randint(0, 9), 999))
    ]
    faults += [("write 0 0 999999", ("done",)), (f"fsync {errno.EINVAL} 0 999999", ("done",))]
    faults += [(f"flock {number} 0 999999", ("noted",)) for number in (errno.ENOLCK, errno.ENOSYS)]
    place = folder / "cut"
    for verb, given in CUT.items():
        words, whole = cut_words(verb, given), folder / f"uncut-{name_of(given)}"
        remove(place, whole)
        place.mkdir()
        carry_out(*words)
        shutil.move(place / name_of(given), whole)

        def begin() -> None:
            remove(place)
            place.mkdir()

        for fault, allowed in faults:
            if fault.startswith("flock") and (Path(name_of(given)).suffix or verb == "reproduce"):
                allowed = ("done",)  # files need no lock, and the runs of a suite are elsewhere
            yield Trial(
                f"{verb}, {fault}",
                words,
                allowed,
                begin,
                fault=f"{fault} cut/",
                check=partial(is_same, whole, place / whole.name.removeprefix("uncut-")),
            )


def load_faults() -> None:
    """Begin this program anew with the system calls of faults.c, unless it has them."""
    if "FAULTS" in os.environ:
        return
    library = Path(tempfile.gettempdir()) / f"electra-faults-{os.getpid()}.so"
    source = Path(__file__).with_name("faults.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    words = [sys.executable, "-m", "benchmarks.trials", *sys.argv[1:]]
    os.execve(words[0], words, os.environ | {"LD_PRELOAD": str(library), "FAULTS": str(library)})


def rewrite(name: str, change: Callable[[Any], Any], folder: Path) -> None:
    """Change a file of tensors, of JSON, or of bytes."""
    path = folder / name
    if path.suffix == ".safetensors":
        save_file(change(load_file(path)), path, {"format": "pt"})
    else:
        value = json.loads(path.read_text())
        if "electra.json" not in name:
            value.pop("sha256", None)  # by which every change would be seen
        path.write_text(json.dumps(change(value)))


def write_bytes(name: str, content: bytes, folder: Path) -> None:
    """Write a file."""
    (folder / name).write_bytes(content)


def list_tensor_damages() -> Iterator[tuple[str, Harm, tuple[str, ...]]]:
    """Yield damages of a weight matrix: name, function, and allowed ends of a reader."""
    changes: dict[str, Callable[[Tensor], Tensor]] = {
        "transposed": lambda x: x.T.contiguous(),
        "scalar": lambda x: x.sum(),
        "empty": lambda x: x[:0],
        "cut": lambda x: x[:, 1:].contiguous(),
        "flat": lambda x: x.flatten(),
        "one more axis": lambda x: x[None],
        "not finite": lambda x: x / 0,
        "too large for float32": lambda x: x.double() * 1e300,
    }
    dtypes = ("int64", "uint8", "bool", "complex64", "float8_e4m3fn", "float8_e8m0fnu")
    rights = ("float16", "bfloat16", "float64")
    changes |= {name: partial(Tensor.to, dtype=getattr(torch, name)) for name in dtypes + rights}
    for name, change in changes.items():
        for form in ("model.safetensors", "pytorch_model.bin"):

            def harm(folder: Path, change: Any = change, form: str = form) -> None:
                tensors = load_file(folder / "model.safetensors")
                (folder / "model.safetensors").unlink()
                tensors[next(filter(MATRIX.search, tensors))] = change(
                    tensors[next(filter(MATRIX.search, tensors))]
                )
                save = save_file if form == "model.safetensors" else torch.save
                save(tensors, folder / form)

            yield f"{form} {name}", harm, ("done",) if name in rights else REFUSED
    pickles: dict[str, Callable[[dict[str, Tensor]], Any]] = {
        "of meta tensors": lambda all: {name: each.to("meta") for name, each in all.items()},
        "of sparse tensors": lambda all: {name: each.to_sparse() for name, each in all.items()},
        "of repeated values": lambda all: {
            name: torch.zeros(1).expand(each.shape) for name, each in all.items()
        },
        "of lists": lambda all: {name: each.tolist() for name, each in all.items()},
        "of numbered tensors": lambda all: dict(enumerate(all.values())),
        "of one tensor": lambda all: next(iter(all.values())),
        "of code": lambda all: {**all, "code": Path("x")},
        "of nothing": lambda all: {},
    }
    for name, make in pickles.items():

        def pickle(folder: Path, make: Any = make) -> None:
            torch.save(make(load_file(folder / "model.safetensors")), folder / "pytorch_model.bin")
            (folder / "model.safetensors").unlink()

        yield f"pytorch_model.bin {name}", pickle, REFUSED
    others: dict[str, Callable[[dict[str, Tensor]], dict[str, Tensor]]] = {
        "without a matrix": lambda all: {
            name: each for name, each in all.items() if name != next(filter(MATRIX.search, all))
        },
        "without tensors": lambda all: {},
        "of other names": lambda all: {f"x.{name}": each for name, each in all.items()},
        "with one layer more": lambda all: {
            **all,
            **{n.replace(".0.", ".1."): e.clone() for n, e in all.items() if ".0." in n},
        },
    }
    for name, of_all in others.items():
        yield f"model.safetensors {name}", partial(rewrite, "model.safetensors", of_all), REFUSED
    more = partial(rewrite, "model.safetensors", lambda all: all | {"more": torch.ones(2)})
    yield "model.safetensors with a tensor more", more, ("done",)


def list_byte_damages(rng: random.Random) -> Iterator[tuple[str, Harm, tuple[str, ...]]]:
    """Yield damages of model.safetensors: of its header, its length and its values."""

    def change(make: Callable[[bytes], bytes]) -> Harm:
        def harm(folder: Path) -> None:
            path = folder / "model.safetensors"
            path.write_bytes(make(path.read_bytes()))

        return harm

    def with_header(header: bytes, _: bytes) -> bytes:
        return len(header).to_bytes(8, "little") + header + bytes(64)

    def cut(share: float, content: bytes) -> bytes:
        return content[: int(share * len(content))]

    def flip(where: float) -> Callable[[bytes], bytes]:
        def make(content: bytes) -> bytes:
            size = 8 + int.from_bytes(content[:8], "little")
            place = (
                int(where * size) if where < 1 else size + int((where - 1) * (len(content) - size))
            )
            return content[:place] + bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :]

        return make

    entry = b'{"x":{"dtype":"F32","shape":%s,"data_offsets":%s}}'
    headers = {
        "nested": b"[" * 100_000,
        "a number of 5,000 digits": entry % (b"[" + b"9" * 5000 + b"]", b"[0,64]"),
        "an absurd shape": entry % (b"[1099511627776,1099511627776]", b"[0,64]"),
        "a negative shape": entry % (b"[-4,-4]", b"[0,64]"),
        "places beyond the end": entry % (b"[4,4]", b"[1000,1064]"),
        "another dtype": entry.replace(b"F32", b"F33") % (b"[4,4]", b"[0,64]"),
        "no table": b"[]",
    }
    for name, header in headers.items():
        yield f"header: {name}", change(partial(with_header, header)), REFUSED
    for share in (0.0, 0.001, 0.3, 0.999):
        yield f"cut at {share:.1%}", change(partial(cut, share)), REFUSED
    yield "length of the header", change(lambda all: b"\xff" * 8 + all[8:]), REFUSED
    yield "bytes more", change(lambda all: all + bytes(100)), REFUSED
    for number in range(12):
        yield f"header, flipped bit {number}", change(flip(rng.random())), ("refused", "done")
    for number in range(3):
        yield f"values, flipped bit {number}", change(flip(1 + rng.random())), ("refused", "done")


def replace_part(key: str, value: Any, folder: Path) -> None:
    """Replace a part of tokenizer.json."""
    rewrite("tokenizer.json", lambda all: all | {key: value}, folder)


JUNK: list[Any] = [
    *(None, True, -1, 0, 1.5, 10**9, 10**30, 1e300, "x", "", "\ud800"),
    *([], {}, [[]], {"type": "x"}),
]


def spoil(seed: float) -> Callable[[Any], Any]:
    """Return what makes one value of JSON, drawn by the seed, another one."""

    def change(values: Any) -> Any:
        draw, place = random.Random(seed), values
        while True:
            keys = [*place] if isinstance(place, dict) else range(len(place))
            key = draw.choice(keys)
            is_leaf = not (isinstance(place[key], dict | list) and place[key])
            if is_leaf or draw.random() < 0.3:
                place[key] = draw.choice(JUNK)
                return values
            place = place[key]

    return change


def list_json_damages(rng: random.Random) -> Iterator[tuple[str, Harm, tuple[str, ...]]]:
    """Yield damages of a model's JSON files: changed values, and text that is no JSON."""
    for name, number in (("config.json", 30), ("tokenizer.json", 40), ("tokenizer_config.json", 8)):
        for each in range(number):
            change = partial(rewrite, name, spoil(rng.random()))
            yield f"{name}, changed value {each}", change, ("refused", "done")
        for damage, content in list_damages(b'{"a": 1}' * 9).items():
            allowed = ("refused", "done") if name == "tokenizer_config.json" else REFUSED
            if content is not None:
                yield f"{name} {damage}", partial(write_bytes, name, content), allowed
    replace = {"type": "Replace", "pattern": {"Regex": ""}, "content": "x" * 1000}
    split = {"type": "Split", "behavior": "Isolated", "invert": False}
    parts: dict[str, tuple[str, Any]] = {
        "a normaliser that grows": (
            "normalizer",
            {"type": "Sequence", "normalizers": [replace, replace, replace]},
        ),
        "a pattern without end": ("pre_tokenizer", {**split, "pattern": {"Regex": "(a+a+)+b"}}),
        "a pattern that is none": ("pre_tokenizer", {**split, "pattern": {"Regex": "(?<=a+)["}}),
        "an empty vocabulary": ("model", {"type": "WordPiece", "vocab": {}, "unk_token": "[UNK]"}),
        "tokens without ids": ("added_tokens", [{"id": 10**9, "content": "far", "special": True}]),
        "a charsmap": ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
        "no unknown token": (
            "model",
            {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 5, "byte_fallback": False},
        ),
    }
    for name, (key, value) in parts.items():
        # A class of transformers has one of its own, and a note says what it leaves out.
        allowed = (*REFUSED, "noted") if key == "pre_tokenizer" else REFUSED
        yield f"tokenizer.json with {name}", partial(replace_part, key, value), allowed


def try_weights(folder: Path) -> Iterator[Trial]:
    """Damaged folders of weights, without hashes like other people's: refused, or read correctly.

    Each damage is given to `import`, whose folder has to be readable, and to one of READERS.
    """
    from transformers import AutoTokenizer  # loaded once, and not in each process

    AutoTokenizer.from_pretrained(folder / "exported")
    rng = random.Random(0)
    for body, (settings, options) in BODIES.items():
        run, model = f"run-{body}", folder / body
        carry_out("pretrain", "shards", "--out", run, "--set", *settings)
        carry_out("export", run, "--out", body, *options)
        remove(model / "electra.json", model / "generator", model / "vocab.txt")
        damages = [*list_tensor_damages(), *list_byte_damages(rng), *list_json_damages(rng)]
        for number, (name, harm, allowed) in enumerate(damages):

            def prepare(model: Path = model, harm: Harm = harm) -> None:
                remove(folder / "copy", folder / "new", folder / "new.npy")
                harm(shutil.copytree(model, folder / "copy"))

            def is_readable() -> bool:
                words = ["embed", "new", "--input", "task/dev.tsv", "--out", "new.npy"]
                return Started(words).wait().status == 0

            words = ["import", "copy", "--out", "new"]
            yield Trial(f"import {body}: {name}", words, allowed, prepare, check=is_readable)
            if body == "bert":
                continue
            reader = READERS[number % len(READERS)]
            ends = REFUSED if "pytorch_model.bin" in name else allowed  # import alone reads it
            yield Trial(f"{reader[0]} {body}: {name}", reader, ends, prepare)


def try_shapes(folder: Path) -> Iterator[Trial]:
    """Our own JSON files with one value changed: refused, or harmless."""
    rng = random.Random(0)
    copy = folder / "copy"
    for path, commands in OURS.items():
        top, name = path.split("/")
        for number in range(24):

            def harm(top: str = top, name: str = name, seed: float = rng.random()) -> None:
                remove(copy, *(folder / each for each in ("new", "new.html", "new.jsonl")))
                rewrite(name, spoil(seed), shutil.copytree(folder / top, copy))

            words = commands[number % len(commands)]
            yield Trial(f"{words[0]}: {path} {number}", words, ("refused", "done", "noted"), harm)


SERIES: dict[str, Callable[[Path], Iterator[Trial]]] = {
    "damage": try_damage,
    "hostile": try_hostile,
    "kills": try_kills,
    "races": try_races,
    "shapes": try_shapes,
    "power": try_power,
    "faults": try_faults,
    "weights": try_weights,
}


def run_series(name: str, folder: Path) -> dict[str, int]:
    """Return the number of trials by kind of end; print each fault when it is found."""
    counts: Counter[str] = Counter()
    trials = [*SERIES[name](folder)]
    began = told = time.monotonic()
    for number, trial in enumerate(trials, 1):
        end, err = judge(trial)
        counts[end] += 1
        if end in FAULTS:
            print(f"{name}: {trial.name}: {end}\n{err}", flush=True)
        now = time.monotonic()
        if now > told + 10 or number == len(trials):
            left = (now - began) / number * (len(trials) - number)
            print(f"{name}: {number} of {len(trials)} trials, {left:.0f} s left", flush=True)
            told = now
    return {"trials": counts.total(), **{end: counts[end] for end in ENDS}}


def tabulate(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the counts as a page in Markdown."""
    headers = ["trials", *ENDS, "commit", "device"]
    rows = [[name, *(str(found[each]) for each in headers)] for name, found in results.items()]
    told = [f"- {end}: {meaning}" for end, meaning in ENDS.items()]
    lines = [
        "`python -m benchmarks.trials`",
        "",
        to_markdown(Table(["series", *headers], rows)),
        "",
    ]
    return "\n".join([*lines, *told]) + "\n"


def main() -> int:
    """Run some series, or all; print and write their counts, and return the number of faults."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("series", nargs="*", metavar="SERIES", choices=[*SERIES, []])
    parser.add_argument("--out", type=Path, help="the .json file to write, beside a table")
    options = parser.parse_args()
    names = options.series or [*SERIES]
    if "faults" in names:
        load_faults()
    for module in pkgutil.walk_packages(electra.__path__, "electra."):
        if not module.name.endswith("__main__"):  # loaded once, and not in each process
            importlib.import_module(module.name)
    out = options.out and options.out.resolve()
    results = read_object(out) if out and out.exists() else {}
    origin = {"commit": find_commit(), "device": Machine().name}
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        make_chain(Path(place))
        for name in names:
            results[name] = {**run_series(name, Path(place)), **origin}
            if out:
                write_json(out, results)
                write_text(out.with_suffix(".md"), tabulate(results))
        os.chdir("/")
    print(tabulate({name: results[name] for name in names}))
    return sum(results[name][fault] for name in names for fault in FAULTS)


if __name__ == "__main__":
    sys.exit(bool(main()))
