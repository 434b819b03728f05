"""Make the encoder in the package: vocabulary, shards, pre-training, scores, and its folder.

`python -m benchmarks.bundle DATA WORK` takes hours of a core. What is complete in WORK is kept,
and what was interrupted is continued.
"""

import argparse
import shutil
import sys
from pathlib import Path

from electra.checkpoints.bundled import ENCODERS
from electra.cli import main
from electra.errors import command
from electra.files import write_text
from electra.terminal.printing import print_step

NAME = "english-tiny"
CARD = Path(__file__).with_name("english-tiny.md")
"""What no record says: the text, what the encoder does badly, the licence."""
TEXTS = "wikipedia.txt.xz", "novels.txt.xz", "arxiv-abstracts.jsonl.xz"
STEPS = 52_000
"""2.2e15 true FLOPs."""
PRETRAINING = (
    *("train.batch_size=32", "train.threads=1", "optimizer.warmup_steps=300"),
    *("train.save_every=500", "train.evaluate_every=10000"),
)
"""As the suites of results/one-gpu had: a generator of one layer with 16 rows a step has a higher
AUC and lower scores (results/english-tiny-one-layer)."""
FINETUNING = "dropout_prob=0", "score_epochs=last", "reseeds=0", "threads=1"
TASKS = {
    "cola": ("glue/CoLA", "epochs=4", "learning_rate=3e-4"),
    "sst-2": ("glue/SST-2", "epochs=2", "learning_rate=3e-4"),
    "mrpc": ("glue/MRPC", "epochs=4", "learning_rate=3e-4"),
    "sts-b": ("glue/STS-B", "epochs=6", "learning_rate=1e-3"),
    "mnli": ("glue/MNLI", "epochs=2", "learning_rate=3e-4"),
    "qnli": ("glue/QNLI", "epochs=2", "learning_rate=3e-4"),
    "qqp": ("glue/QQP", "epochs=1", "learning_rate=3e-4"),
    "rte": ("glue/RTE", "epochs=6", "learning_rate=3e-4"),
    "tagging": ("conll2003", "epochs=4", "learning_rate=1e-3"),
}
"""Folder and settings, which dev chose for results/wikipedia-novels-modern-6x128; the epochs of
mnli in results/english-tiny/probes."""
ONE_SEED = {"qqp"}
"""With 363,570 pairs to train on and 40,430 in dev."""


def bundle(data: Path, work: Path, steps: int, seeds: int) -> None:
    """Write the folder of the encoder, whose card has the scores of all tasks on dev."""
    texts = [data / "corpus" / name for name in TEXTS]
    vocabulary = make(work / "vocabulary", "tokenizer", *texts, "--set", "vocab_size=8192")
    shards = make(work / "shards", "prepare", *texts, "--tokenizer", vocabulary)
    how = ("--recipe", "best", "--set", *PRETRAINING, f"train.steps={steps}")
    run = make(work / NAME, "pretrain", shards, "--preset", "modern-tiny", *how)
    scores = [
        make(
            *(work / f"finetune-{task}", "finetune", run, "--task", task, "--data", data / folder),
            *("--seeds", 1 if task in ONE_SEED else seeds, "--set", *FINETUNING, *settings),
        )
        for task, (folder, *settings) in TASKS.items()
    ]
    folder = ENCODERS / NAME
    shutil.rmtree(folder, ignore_errors=True)
    make(folder, "export", run, "--dtype", "bfloat16", "--scores", *scores)
    card, written = folder / "README.md", CARD.read_text("utf-8")
    generated, _, _ = card.read_text("utf-8").partition("## Intended use and limits")
    facts = generated.replace("# language:\n# license:", "language: en\nlicense: apache-2.0")
    write_text(card, facts + written)


LAST = {"prepare": "manifest.json", "pretrain": "results.json", "finetune": "results.json"}
"""The file with which a command's folder is complete, if it is not electra.json."""


def make(out: Path, verb: str, *words: object) -> Path:
    """Run the command that writes a folder, unless it is complete."""
    if not (out / LAST.get(verb, "electra.json")).exists():
        line = [str(word) for word in (verb, *words, "--out", out)]
        print_step(command(*line))
        sys.argv = ["electra", *line]  # which manifests name
        main(line)
    return out


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="folder with corpus, glue and conll2003")
    parser.add_argument("work", type=Path, help="folder of what is made on the way")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seeds", type=int, default=3, help="of each fine-tuning")
    given = parser.parse_args()
    bundle(given.data, given.work, given.steps, given.seeds)
