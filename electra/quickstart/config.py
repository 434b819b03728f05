"""Settings of the quickstart, and what they are by default."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated

from electra.presets import FINETUNE_PRESETS, PRESETS
from electra.settings import AtLeast, Order, Settings
from electra.shards.config import PrepareConfig
from electra.tasks.config import FinetuneConfig
from electra.text.config import TextConfig
from electra.tokenizing.config import TokenizerConfig
from electra.training.config import PretrainConfig

BEGUN, REPORT = "quickstart.json", "report.html"
"""Files in a quickstart's folder: text and settings, the first; and the last."""


@dataclass(frozen=True, kw_only=True)
class QuickstartConfig(Settings):
    """Settings of all steps of `electra quickstart`, sized for some minutes."""

    tokenizer: TokenizerConfig
    prepare: PrepareConfig
    pretrain: PretrainConfig
    finetune: FinetuneConfig
    max_chars: Annotated[int, AtLeast(1)] = 15_000_000
    """Characters of the packages' documentation that are read; pre-training reads less than that in
    some minutes. Texts named with --text are read whole."""
    pretrain_seconds: Annotated[int, AtLeast(1)] = 120
    """Time for pre-training, seconds. The number of steps is what this machine computes in the
    time, at most `pretrain.train.steps`."""
    min_tokens: Annotated[int, AtLeast(0)] = 1_500_000
    """Minimum number of tokens for pre-training, even if a slow or busy machine takes longer."""
    max_seconds: Annotated[int, AtLeast(1)] = 360
    """Longest time for pre-training, seconds, estimated from the first steps."""
    num_packages: Annotated[int, AtLeast(2)] = 8
    """Number of classes: the task is to name the Python package that a text comes from."""
    num_labelled: Annotated[int, AtLeast(1)] = 160
    """Labelled texts for fine-tuning, twenty per package. Few labels, because labels are expensive,
    and pre-training helps most if labels are few."""
    num_passages: Annotated[int, AtLeast(2)] = 300
    """Labelled passages for the question which punctuation mark follows a word."""
    num_asked: Annotated[int, AtLeast(1)] = 400
    """Texts or passages in the dev set."""
    seeds: Annotated[int, AtLeast(1)] = 3
    """Fine-tunings with each learning rate, with and without pre-training; the median is
    reported."""
    learning_rates: str = "0.0005,0.001"
    """Learning rates of fine-tuning, separated by commas. Pre-trained and from scratch, the best on
    dev is reported."""

    needs = (
        Order("pretrain_seconds", "at most", "max_seconds"),
        Order("num_packages", "at most", "num_asked"),
    )

    def check(self) -> None:
        """Check the rules that the table cannot express."""
        # Each label twice, the rule of `own` tasks.
        is_enough = self.num_labelled >= 2 * self.num_packages
        self.must("num_labelled", is_enough, f"be at least twice num_packages {self.num_packages}")
        for name, usual in vars(TextConfig()).items():
            is_left = getattr(self.tokenizer, name) == usual
            self.must(f"tokenizer.{name}", is_left, f"be left out: set prepare.{name}")


QUICKSTART = QuickstartConfig(
    tokenizer=TokenizerConfig(vocab_size=8192),
    prepare=PrepareConfig(heldout_prob=0.04),
    pretrain=dataclasses.replace(
        PRESETS["tiny"],
        # Half the depth of tiny: for a few minutes, more tokens help more than more layers.
        model=dataclasses.replace(PRESETS["tiny"].model, num_hidden_layers=2),
        train=dataclasses.replace(PRESETS["tiny"].train, steps=8000, batch_size=16),
    ),
    finetune=dataclasses.replace(
        FINETUNE_PRESETS["tiny"], learning_rate=1e-3, batch_size=16, epochs=12, score_epochs="last"
    ),
)
