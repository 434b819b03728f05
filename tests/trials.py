"""Damage, hostile input and kills at small size: `python -m tests.trials [SERIES ...]`.

A series is a function that takes the folder of `make_chain` and yields trials; a new one is such a
function in SERIES. The program prints how many trials of each series ended how. Tracebacks, silent,
lost and hung must be 0.
"""

import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from electra.cli import main as run_electra
from electra.terminal.printing import print_note, print_table

SECONDS = 120
"""Longest time of a command."""
ENDS = ("done", "refused", "noted", "recovered")
FAULTS = ("traceback", "silent", "lost", "hung")
SMALL = [
    *("model.hidden_size=64", "model.num_attention_heads=1", "model.embedding_size=32"),
    *("model.intermediate_size=64", "model.num_hidden_layers=1", "generator.hidden_fraction=1"),
    *("examples.sequence_length=32", "train.steps=40", "train.batch_size=4", "train.threads=1"),
    *("train.evaluate_rows=8", "train.save_every=10", "train.log_every=5"),
]
ONCE = ["epochs=1", "threads=1", "reseeds=0"]


class Trial(NamedTuple):
    """A command in the folder of a chain, and how it may end."""

    name: str
    words: list[str]
    allowed: tuple[str, ...] = ("refused",)
    """done: status 0. noted: status 0 and a note. refused: status 2 and one line. recovered: killed
    and done by the same command."""
    kill_after: float | None = None
    """Seconds after which the command is killed and given again."""
    check: Callable[[], bool] = lambda: True
    """Whether the result is right, after status 0."""


class Ended(NamedTuple):
    """How a command ended: None as its status if it was killed."""

    status: int | None
    err: str


def carry_out(words: list[str], seconds: float = SECONDS) -> Ended:
    """Run a command of electra in a process of its own, and kill it after some seconds."""
    with tempfile.TemporaryFile() as out:
        child = os.fork()
        if not child:
            status = 1
            try:
                os.setsid()
                for stream in (1, 2):
                    os.dup2(out.fileno(), stream)
                sys.stdout, sys.stderr = (os.fdopen(stream, "w") for stream in (1, 2))
                run_electra(words)
                status = 0
            except SystemExit as stop:
                status = int(stop.code or 0)
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                sys.stderr.flush()
                os._exit(status)
        end = time.monotonic() + seconds
        while True:
            done, code = os.waitpid(child, os.WNOHANG)
            if done or time.monotonic() > end:
                break
            time.sleep(0.02)
        if not done:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
        out.seek(0)
        err = out.read().decode("utf-8", "replace")
    return Ended(os.waitstatus_to_exitcode(code) if done else None, err)


def judge(trial: Trial) -> str:
    """Run a trial and return its end: one of ENDS or FAULTS."""
    is_killed = False
    if trial.kill_after is not None:
        is_killed = carry_out(trial.words, trial.kill_after).status is None
        if not is_killed:  # it was faster
            return "done"
    ended = carry_out(trial.words)
    if ended.status is None:
        return "hung"
    if "Traceback" in ended.err or ended.status not in (0, 2):
        return "traceback"
    if ended.status == 0:
        end = "recovered" if is_killed else "noted" if "note: " in ended.err else "done"
        allowed = end in trial.allowed or (end == "noted" and "done" in trial.allowed)
        return end if allowed and trial.check() else "silent"
    lines = [line for line in ended.err.splitlines() if line.startswith("error: ")]
    return "refused" if len(lines) == 1 and "refused" in trial.allowed else "lost"


def make_chain(folder: Path) -> None:
    """Write a vocabulary, shards, a run, a fine-tuning and an export into a folder."""
    subjects, verbs = ("the sailor", "a doctor", "the queen"), ("painted", "sold", "admired")
    lines = [
        f"{subjects[n % 3]} {verbs[n // 3 % 3]} {n % 7} boats in {1900 + n % 50} ." + "\n" * (n % 4)
        for n in range(800)
    ]
    (folder / "text.txt").write_text("\n".join(lines))
    (folder / "task").mkdir()
    for split, count in (("train", 24), ("dev", 12)):
        rows = "".join(f"the queen {verb}\t{verb}\n" for verb in verbs[:2]) * (count // 2)
        (folder / "task" / f"{split}.tsv").write_text(f"text\tlabel\n{rows}")
    for words in (
        ["tokenizer", "text.txt", "--out", "vocabulary", "--set", "vocab_size=120"],
        ["prepare", "text.txt", "--tokenizer", "vocabulary", "--out", "shards"]
        + ["--set", "heldout_prob=0.1", "workers=1"],
        ["pretrain", "shards", "--out", "run", "--set", *SMALL],
        ["finetune", "run", "--task", "own", "--data", "task", "--out", "scores", "--set", *ONCE],
        ["export", "run", "--out", "exported"],
    ):
        ended = carry_out(words)
        if ended.status != 0:
            raise SystemExit(f"electra {' '.join(words)}: {ended.err}")


def list_damages(content: bytes) -> dict[str, bytes]:
    """Return what a file of this content may become."""
    middle = len(content) // 2
    return {
        "emptied": b"",
        "cut": content[:middle],
        "flipped": content[:middle] + bytes([content[middle] ^ 0x55]) + content[middle + 1 :],
        "zeros": bytes(len(content)),
        "nested": b"[" * 100_000,
        "other": b'{"a": 1}',
    }


def try_damage(folder: Path) -> Iterator[Trial]:
    """Each file of each kind, damaged in each way, is refused by a command that reads it."""
    detect = ["detect", "RUN", "the queen sold a boat"]
    readers = {
        "vocabulary": ["prepare", "text.txt", "--tokenizer", "COPY", "--out", "new"],
        "shards": ["pretrain", "COPY", "--out", "new", "--set", *SMALL],
        "run/checkpoints/step-00000040": detect,
        "exported": detect,
        "scores/seed-0/model": ["predict", "RUN", "--input", "task/dev.tsv"],
    }
    for name, reader in readers.items():
        top = name.split("/")[0]
        files = [path for path in sorted((folder / name).glob("*")) if path.is_file()]
        for path in files:
            if path.suffix in (".md", ".txt", "") and path.name != "vocab.txt":
                continue
            for damage, content in list_damages(path.read_bytes()).items():
                copy = folder / f"copy-{top}"
                for old in (copy, folder / "new"):
                    shutil.rmtree(old, ignore_errors=True)
                shutil.copytree(folder / top, copy)
                (copy / path.relative_to(folder / top)).write_bytes(content)
                words = [{"RUN": copy.name, "COPY": copy.name}.get(word, word) for word in reader]
                # A run has older checkpoints, which take the place of a damaged one, with a note.
                # What was verified, and when, is only remembered: it is found out again.
                others = {"run": ("noted",), "shards": ("done",) * (path.name == "verified.json")}
                allowed = ("refused", *others.get(top, ()))
                yield Trial(f"{path.relative_to(folder)} {damage}", words, allowed)


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
            path.write_bytes(content)
            for verb, words in commands.items():
                shutil.rmtree(folder / "new", ignore_errors=True)
                for new in folder.glob("new.*"):
                    new.unlink()
                given = [path.name if word == "FILE" else word for word in words]
                yield Trial(f"{verb} {kind}{suffix}", [verb, *given], ("done", "refused"))


def try_kills(folder: Path) -> Iterator[Trial]:
    """A command that was killed is done by the same command, with the same result."""
    commands = {
        "tokenizer": (["text.txt"], ["vocab_size=120"], "vocabulary/vocab.txt"),
        "prepare": (
            ["text.txt", "--tokenizer", "vocabulary"],
            ["heldout_prob=0.1", "workers=1"],
            "shards/manifest.json",
        ),
        "pretrain": (["shards"], SMALL, "run/checkpoints/step-00000040/model.safetensors"),
        "finetune": (["run", "--task", "own", "--data", "task"], ONCE, ""),
        "export": (["run"], [], "exported/model.safetensors"),
    }
    for verb, (words, settings, result) in commands.items():
        for tenths in (1, 3, 6, 10, 15):
            out = folder / f"killed-{verb}-{tenths}"
            command = [verb, *words, "--out", out.name, *(["--set", *settings] if settings else [])]
            top, _, rest = result.partition("/")

            def is_same(out: Path = out, top: str = top, rest: str = rest) -> bool:
                same = (out / rest).read_bytes() == (folder / top / rest).read_bytes()
                return same if rest else (out / "results.json").is_file()

            check = is_same if result else (out / "results.json").is_file
            yield Trial(
                f"{verb} after {tenths / 10} s", command, ("recovered",), tenths / 10, check
            )


SERIES = {"damage": try_damage, "hostile": try_hostile, "kills": try_kills}


def main(names: list[str]) -> int:
    """Run some series, or all; print their counts, and return the number of faults."""
    rows, faults = [], 0
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        make_chain(Path(place))
        for name in names or SERIES:
            counts: Counter[str] = Counter()
            for trial in SERIES[name](Path(place)):
                end = judge(trial)
                counts[end] += 1
                if end in FAULTS:
                    print_note(f"{name}: {trial.name}: {end}")
            faults += sum(counts[fault] for fault in FAULTS)
            rows.append([name, counts.total(), *(counts[end] for end in (*ENDS, *FAULTS))])
        os.chdir("/")
    print_table(rows, ["series", "trials", *ENDS, *FAULTS])
    return faults


if __name__ == "__main__":
    sys.exit(bool(main(sys.argv[1:])))
