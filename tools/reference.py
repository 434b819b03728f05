"""Reference runs, which anybody can repeat to the bit: `python -m tools.reference write|verify`.

The text is generated, each run takes seconds on one thread, and results/reference.json has the
sha256 of everything on the way: text, tokenizer, shards, weights, measures. `verify` repeats runs
and compares them.

Bits depend on the CPU and on the version of torch. The runs use only what each x86-64 CPU with AVX2
has (INSTRUCTIONS), but only the recorded CPU was tried. With another torch or CPU,
scores are compared with the interval that is expected of another seed.
"""

import argparse
import os
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch

from electra.checkpoints.checkpoint import find_checkpoint
from electra.checkpoints.manifest import read_manifest
from electra.checkpoints.metrics import OF_THE_MACHINE, read_metrics
from electra.checkpoints.results_files import read_results
from electra.errors import UserError, require, require_choice
from electra.files import read_object, sha256_facts, sha256_file, write_json, write_text
from electra.reports.rendering import Table, to_markdown
from electra.tokenizing.tokenizer import Tokenizer
from electra.training.machine import Machine
from tools.claims import find_half_width

ROOT = Path(__file__).parent.parent
RECORD = ROOT / "results" / "reference.json"
INSTRUCTIONS = {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "COMPATIBLE"}
"""Variables that leave torch AVX2, and MKL's products the instructions that all CPUs have."""
SEEDS = 3
"""Seeds that an interval comes from; the bits are those of seed 0."""

NUMBERS = ("", "s")
NOUNS = {
    "sea": "boat sailor harbour anchor wave captain fisher sail gull island",
    "farm": "farmer horse field fence goat orchard plough barn shepherd meadow",
    "town": "baker street bridge tower clerk market window lamp mayor tavern",
    "wood": "hunter fox owl path oak stream badger clearing thorn nest",
}
VERBS = "see pass need follow help draw leave guard paint remember"
ADJECTIVES = "old small quiet young dark lonely heavy red"
PLACES = "near behind beside below"


class Row(NamedTuple):
    """A reference run."""

    about: str
    words: str
    """Of the command, without --out and the seed."""
    heldout: tuple[str, ...] = ()
    """Scores on held-out text; none: a fine-tuning, which has its own metric."""
    needs: str = ""
    """The row whose run it begins with."""


SIZES = (
    "model.num_hidden_layers=2 generator.hidden_fraction=1 generator.layers_fraction=0.5 "
    "examples.sequence_length=64 optimizer.learning_rate=0.002 optimizer.warmup_steps=10 "
    "train.steps=60 train.batch_size=16 train.log_every=20 train.evaluate_rows=64 "
    "train.evaluate_every=60 train.save_every=60 train.precision=float32 train.device=cpu "
    "train.threads=1"
)
BERT = (
    "model.hidden_size=64 model.num_attention_heads=2 model.embedding_size=64 "
    f"model.intermediate_size=128 {SIZES}"
)
PRETRAIN = f"pretrain text-shards --preset tiny --set {BERT}"
DISC, MLM = ("disc_loss", "disc_auc"), ("mlm_loss", "mlm_accuracy")
ROWS = {
    "rtd": Row("RTD, ELECTRA's body", PRETRAIN, DISC),
    "mlm": Row("masked language modelling", f"{PRETRAIN} method.objective=mlm", MLM),
    "electric": Row("Electric", f"{PRETRAIN} method.objective=electric", ("loss",)),
    "teams": Row("TEAMS", f"{PRETRAIN} method.objective=teams generator.shared_layers=1", DISC),
    "modernbert": Row(
        "RTD, ModernBERT's body, Muon",
        f"{PRETRAIN} model.architecture=modernbert model.local_attention=16 "
        "optimizer.matrices=muon",
        DISC,
    ),
    "deberta": Row(
        "RTD, DeBERTa's body, gradient-disentangled embeddings",
        f"{PRETRAIN} model.architecture=deberta-v2 model.position_buckets=16 "
        "model.max_relative_positions=64 method.sharing=gdes train.updates=apart",
        DISC,
    ),
    "continued": Row(
        "the run rtd, continued on other text",
        f"pretrain other-shards --preset tiny --init-from rtd --set {SIZES}".replace(
            "model.num_hidden_layers=2 ", ""
        ),
        ("new_disc_loss", "disc_auc"),
        needs="rtd",
    ),
    "finetuned": Row(
        "the run rtd, fine-tuned: does the verb agree with its subject?",
        "finetune rtd --task own --data agreement --set own.name=agreement threads=1 epochs=3 "
        "batch_size=16 learning_rate=0.001 reseeds=0 precision=float32",
        needs="rtd",
    ),
}
CORPORA = {"text": ("sea", "farm"), "other": ("town", "wood")}
"""What each text is about; the vocabulary is of both."""
DOCUMENTS, QUESTIONS = 800, {"train": 400, "dev": 400}


def write_texts(folder: Path) -> None:
    """Write two texts and a task in a small language, the same at every time and place.

    `random()` of a seed is the one function that Python promises never to change.
    """
    for number, (name, topics) in enumerate(CORPORA.items()):
        draw = Draw(number)
        lines = (line for _ in range(DOCUMENTS) for line in draw.document(draw.choose(topics)))
        write_text(folder / f"{name}.txt", "\n".join(lines))
    for number, (split, count) in enumerate(QUESTIONS.items(), len(CORPORA)):
        draw, rows = Draw(number), ["text\tlabel"]
        for _ in range(count):
            agrees = draw.random() < 0.5
            sentence = draw.sentence(draw.choose(CORPORA["text"]), agrees)
            rows.append(f"{sentence}\t{'right' if agrees else 'wrong'}")
        (folder / "agreement").mkdir(exist_ok=True)
        write_text(folder / "agreement" / f"{split}.tsv", "\n".join(rows) + "\n")


class Draw:
    """Sentences of the small language, drawn with a seed."""

    def __init__(self, seed: int):
        self.random = random.Random(seed).random

    def choose(self, choices: Sequence[str]) -> str:
        """Return one of several words; the first ones are drawn more often, as in a language."""
        return choices[int(self.random() ** 2 * len(choices))]

    def phrase(self, topic: str, number: str) -> str:
        """Return a noun with its article and, at times, an adjective."""
        adjective = f"{self.choose(ADJECTIVES.split())} " if self.random() < 0.4 else ""
        return f"the {adjective}{self.choose(NOUNS[topic].split())}{number}"

    def sentence(self, topic: str, agrees: bool = True) -> str:
        """Return a sentence whose verb agrees with its subject, or does not."""
        one, other = (self.choose(NUMBERS) for _ in NUMBERS)
        subject = self.phrase(topic, one)
        if self.random() < 0.5:
            subject += f" {self.choose(PLACES.split())} {self.phrase(topic, other)}"
        ending = "" if (one == "s") == agrees else "s"
        verb = self.choose(VERBS.split()) + ending
        return f"{subject} {verb} {self.phrase(topic, self.choose(NUMBERS))} ."

    def document(self, topic: str) -> Iterator[str]:
        """Yield the lines of a document, and a blank one."""
        for _ in range(3 + int(6 * self.random())):
            yield self.sentence(topic)
        yield ""


def run_command(folder: Path, words: str) -> None:
    """Run a command in a folder, with the instructions of all CPUs, unless it is done there."""
    out = folder / words.rpartition("--out ")[2]
    if (out / "results.json").exists() or (out / "tokenizer.json").exists():
        return
    environment = {**os.environ, **INSTRUCTIONS, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, "-m", "electra", *shlex.split(words)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"electra {words}: {done.stderr.strip().splitlines()[-1]}")


def prepare_texts(folder: Path) -> None:
    """Write the texts, the tokenizer and the shards of both texts, unless they are there."""
    write_texts(folder)
    run_command(folder, "tokenizer text.txt other.txt --set vocab_size=256 --out tokenizer")
    for name in CORPORA:
        how = "--set heldout_prob=0.2 workers=1"
        if not (folder / f"{name}-shards").exists():
            words = f"prepare {name}.txt --tokenizer tokenizer {how} --out {name}-shards"
            run_command(folder, words)


def read_texts(folder: Path) -> dict[str, str]:
    """Return a digest of each text, of the tokenizer and of the shards."""
    texts = [*sorted(folder.glob("*.txt")), *sorted(folder.glob("agreement/*.tsv"))]
    found = {path.relative_to(folder).as_posix(): sha256_file(path) for path in texts}
    found["tokenizer"] = Tokenizer.load(folder / "tokenizer").digest
    for name in CORPORA:
        shards = read_object(folder / f"{name}-shards" / "manifest.json")
        found[f"{name}-shards"] = sha256_facts(shards["parts"])
    return found


def list_commands(name: str, seeds: int) -> list[str]:
    """Return the commands of a row: the first is that of seed 0, or of all seeds."""
    row = ROWS[name]
    if not row.heldout:
        return [f"{row.words} --seeds {seeds} --out {name}"]
    outs = [f"{name}-{seed}" if seed else name for seed in range(seeds)]
    return [f"{row.words} train.seed={seed} --out {out}" for seed, out in enumerate(outs)]


def read_row(name: str, folder: Path) -> dict[str, Any]:
    """Return the digests of weights and measures of a row, and its scores, of seed 0."""
    row, run = ROWS[name], folder / name
    if not row.heldout:
        results = read_results(run, "metric", "seeds")
        place, metric = run / "seed-0", results["metric"]
        bits = {
            "weights": sha256_file(place / "model" / "model.safetensors"),
            "measures": sha256_facts(results["seeds"]["0"]["scores"]),
        }
        return {"bits": bits, "scores": {metric: results["seeds"]["0"]["scores"][metric]}}
    records = [_leave_out(record) for record in read_metrics(run / "metrics.jsonl")]
    weights = sha256_file(find_checkpoint(run)[1] / "model.safetensors")
    scores = {each: records[-1][each] for each in row.heldout}
    return {"bits": {"weights": weights, "measures": sha256_facts({"": records})}, "scores": scores}


def _leave_out(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record without machine-dependent values and hash."""
    return {key: record[key] for key in record if key not in {*OF_THE_MACHINE, "sha256"}}


def find_versions() -> dict[str, str]:
    """Return what the bits of a run depend on, beside the code."""
    capability = torch.backends.cpu.get_cpu_capability()
    return {
        "torch": torch.__version__,
        "tokenizers": version("tokenizers"),
        "instructions": "AVX2" if capability.startswith("AVX") else capability,
        "processor": Machine().name.rpartition(",")[0],  # no other one has been tried
    }


def find_interval(scores: Sequence[float]) -> tuple[float, float]:
    """Return the interval in which one more seed's score is in 95 of 100 cases."""
    half = find_half_width(scores) * (len(scores) + 1) ** 0.5
    mean = statistics.mean(scores)
    return mean - half, mean + half


def write(folder: Path) -> None:
    """Run all rows with all seeds in a folder, and write the record and its table."""
    prepare_texts(folder)
    commands = {name: list_commands(name, SEEDS) for name in ROWS}
    for stage in (False, True):  # rows that need others come last
        now = [each for name in ROWS if bool(ROWS[name].needs) == stage for each in commands[name]]
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(partial(run_command, folder), now))
    rows = []
    for name, row in ROWS.items():
        found = read_row(name, folder)
        scores = {}
        for score, value in found["scores"].items():
            of_seeds = [_read_score(name, score, folder, seed) for seed in range(SEEDS)]
            low, high = find_interval(of_seeds)
            scores[score] = {"value": value, "low": low, "high": high, "seeds": of_seeds}
        facts: dict[str, Any] = {
            "name": name,
            "about": row.about,
            "command": f"electra {commands[name][0]}",
        }
        session = read_manifest(folder / name)["sessions"][0]
        facts |= {"commit": session["commit"], "bits": found["bits"], "scores": scores}
        rows.append(facts)
    record = {"command": "python -m tools.reference write", "device": session["device"]}
    record |= {"python": session["python"], "needs": find_versions()}
    record |= {"variables": INSTRUCTIONS, "texts": read_texts(folder), "rows": rows}
    write_json(RECORD, record)
    write_text(RECORD.with_suffix(".md"), tabulate(record))


def _read_score(name: str, score: str, folder: Path, seed: int) -> float:
    """Return a score of a seed of a row."""
    if not ROWS[name].heldout:
        seeds = read_results(folder / name, "seeds")["seeds"]
        return float(seeds[str(seed)]["scores"][score])
    run = folder / (f"{name}-{seed}" if seed else name)
    return float(read_metrics(run / "metrics.jsonl")[-1][score])


def tabulate(record: Mapping[str, Any]) -> str:
    """Return the page of a record."""
    needs, rows = record["needs"], []
    for row in record["rows"]:
        for score, each in row["scores"].items():
            interval = f"{each['low']:.4f} to {each['high']:.4f}"
            hashes = [row["bits"][name][:12] for name in ("weights", "measures")]
            rows.append([row["name"], row["about"], score, f"{each['value']:.4f}", interval])
            rows[-1] += hashes
    headers = ["run", "what", "score", "seed 0", f"interval of {SEEDS} seeds"]
    headers += ["weights", "measures"]
    return f"""# Reference runs

`python -m tools.reference verify` repeats them, `make verify-reference` one of pre-training and one
of fine-tuning. Scores are those of held-out text, or of dev. The interval is that in which one more
seed is expected in 95 of 100 cases. The last columns begin the sha256 of the weights and of all
measures, which reference.json has in full.

Recorded with torch {needs["torch"]} and tokenizers {needs["tokenizers"]} on {record["device"]},
limited to {needs["instructions"]}.

{to_markdown(Table(headers, rows))}
"""


def compare(found: Mapping[str, Any], record: Mapping[str, Any], name: str) -> str:
    """Return how a repeated row equals its record.

    Args:
        found: `needs`, `texts`, and `bits` and `scores` of the row.
        record: What results/reference.json has.
        name: The row.

    Raises:
        UserError: Bits differ where they must be equal, or a score is outside its interval.
    """
    (row,) = (each for each in record["rows"] if each["name"] == name)
    unlike = [each for each in record["needs"] if found["needs"][each] != record["needs"][each]]
    others = [
        each
        for part, mine in (("texts", found["texts"]), ("bits", found["bits"]))
        for each, digest in (record if part == "texts" else row)[part].items()
        if mine.get(each) != digest
    ]
    told = f"{name}: other bits than recorded: {', '.join(others)}"
    if not unlike:
        require(not others, told)
        return "to the bit"
    texts = record["texts"].keys() & others
    if "tokenizers" in unlike:
        texts -= {each for each in texts if "." not in each}
    require(not texts, told)
    scores = []
    for score, value in found["scores"].items():
        low, high = (row["scores"][score][side] for side in ("low", "high"))
        told = f"{score} {value:.4f}, recorded {low:.4f} to {high:.4f}"
        require(low <= value <= high, f"{name}: {told}")
        scores.append(told)
    why = ", ".join(f"{each} {found['needs'][each]}" for each in unlike)
    same = "the same bits" if not others else f"other bits ({', '.join(others)})"
    return f"{'; '.join(scores)}; {same} with {why}"


def verify(names: Sequence[str], folder: Path) -> bool:
    """Repeat rows in a folder, and print how each fares; return whether all hold."""
    record = read_object(RECORD)
    prepare_texts(folder)
    facts = {"needs": find_versions(), "texts": read_texts(folder)}
    needed = [ROWS[name].needs for name in names if ROWS[name].needs]
    is_right = True
    for name in dict.fromkeys([*needed, *names]):
        run_command(folder, list_commands(name, 1)[0])
        try:
            told = f"ok      {name}: {compare({**facts, **read_row(name, folder)}, record, name)}"
        except UserError as error:
            told, is_right = f"FAILED  {error}", False
        print(told, flush=True)
    return is_right


def main() -> None:
    """Write the record, or repeat rows of it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("action", choices=("write", "verify"))
    parser.add_argument("rows", nargs="*", help=f"of {', '.join(ROWS)}; all if none is named")
    parser.add_argument("--work", type=Path, help="an empty folder for the runs, which are kept")
    arguments = parser.parse_args()
    for name in arguments.rows:
        require_choice("row", name, ROWS)
    with tempfile.TemporaryDirectory() as temporary:
        folder: Path = arguments.work or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if arguments.action == "write":
            write(folder)
        elif not verify(arguments.rows or list(ROWS), folder):
            sys.exit(1)


if __name__ == "__main__":
    main()
