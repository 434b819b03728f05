"""How much is done, counted rather than timed: `python -m benchmarks.counts`.

Times on a shared machine differ by a tenth and more; these counts are the same at each repetition
with one version of Python and of torch. Python calls are those of functions and of built-in ones,
operators those that torch dispatches. tests/test_counts.py refuses counts that grow by 5% over
those of tests/fixtures/counts.json.
"""

import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from electra.assignments import override
from electra.checkpoints.folder import read_pretrained
from electra.inference.network import load_kept
from electra.presets import PRESETS
from electra.pretraining.loop import find_learning_rate
from electra.pretraining.start import build_model, count_tokens, fit_to_shards, prepare_step
from electra.shards.config import PrepareConfig
from electra.shards.examples import Examples
from electra.shards.prepare import prepare
from electra.shards.store import open_shards
from electra.tokenizing.config import TokenizerConfig
from electra.tokenizing.tokenizer import Tokenizer
from electra.training.machine import Machine
from tools.reference import write_texts

STEPS = 5
SMALL = [
    *("model.hidden_size=64", "model.num_hidden_layers=2", "model.num_attention_heads=1"),
    *("model.intermediate_size=128", "model.embedding_size=32", "examples.sequence_length=32"),
    *("generator.hidden_fraction=1", "train.batch_size=8", f"train.steps={STEPS}"),
    *("optimizer.warmup_steps=1", "train.precision=float32", "train.device=cpu"),
]
SAMPLE = Path(__file__).parent.parent / "tests" / "fixtures" / "format-1" / "run"


class Operators(TorchDispatchMode):
    """Counts the operators of torch."""

    number = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Count one, and do it."""
        self.number += 1
        return func(*args, **(kwargs or {}))


def count_calls(act: Callable[[], object]) -> int:
    """Return how many functions are called by a function, in this thread."""
    number = 0

    def tell(frame: Any, event: str, argument: Any) -> None:
        nonlocal number
        number += event in ("call", "c_call")

    sys.setprofile(tell)
    try:
        act()
    finally:
        sys.setprofile(None)
    return number


def count_all(folder: Path) -> dict[str, int]:
    """Return the counts of preparing, loading and steps, each after a first time."""
    write_texts(folder)
    text = folder / "text.txt"
    tokenizer = Tokenizer.train(text.read_text().splitlines(), TokenizerConfig(vocab_size=128))
    names = iter(("first", "second"))

    def make() -> None:
        config = PrepareConfig(workers=1, heldout_prob=0.1)
        prepare([str(text)], tokenizer, folder / next(names), config, None)

    def load() -> None:
        load_kept(read_pretrained(SAMPLE), Machine())

    make()
    shards = open_shards(folder / "first")
    config = fit_to_shards(override(PRESETS["small"], SMALL), shards)
    model = build_model(config, shards.tokenizer, Machine(), count_tokens(shards))
    step = prepare_step(model, config, Machine())
    examples = Examples(shards.train, shards.tokenizer, config.examples, config.train.seed)
    model.train()

    def train() -> None:
        for number in range(STEPS):
            batch = examples.batch(number, config.train.batch_size)
            step(number, batch, find_learning_rate(number, model, config))

    load()
    train()
    found = {"prepare: calls": count_calls(make), "load: calls": count_calls(load)}
    found["step: calls"] = count_calls(train) // STEPS
    with Operators() as operators:
        train()
    return found | {"step: operators": operators.number // STEPS}


def count_modules() -> int:
    """Return how many modules `electra --version` imports."""
    code = "import sys, electra.cli\ntry: electra.cli.main(['--version'])\nfinally: "
    code += "print(len(sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return int(done.stderr.split()[-1])


def main() -> None:
    """Print the counts, and the versions that they hold for, as JSON."""
    torch.set_num_threads(1)
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    with tempfile.TemporaryDirectory() as temporary:
        counts = {"start: modules": count_modules(), **count_all(Path(temporary))}
    print(json.dumps({"versions": versions, "counts": counts}, indent=1))


if __name__ == "__main__":
    main()
