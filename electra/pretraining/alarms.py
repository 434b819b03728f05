"""Alarms in plain words about a run that computes, but does not learn or has become slow."""

import math
import statistics
from collections.abc import Mapping
from typing import Any

from electra.config import PretrainConfig

PATIENCE = 5
"""Records in a row with a bad sign that raise its alarm."""
LOW_REPLACED_SHARE = 4 / 15
"""Share of the masked tokens that are replaced, below which the discriminator has little to learn:
4% of all tokens where 15% are masked."""
WORSE_THAN_CHANCE = 1.2
"""Generator's loss divided by that of a uniform guess, above which a run diverges."""
LOST_SHARE = 0.1
"""Share of what the discriminator had learnt, before a continued run, whose loss raises an alarm.
What it has learnt is the distance of its loss from that of a constant prediction."""


class Alarms:
    """Reads the records of a session, and tells of each bad sign once while it lasts.

    Args:
        config: The settings of the run.
    """

    def __init__(self, config: PretrainConfig):
        self.config = config
        self.speeds: list[float] = []
        self.num_bad = {"discriminator": 0, "generator": 0, "loss": 0, "speed": 0}
        self.before: dict[str, float] = {}
        """First loss of each domain of a continued run."""
        self.is_worse = {"new": False, "old": False}

    def read(self, record: Mapping[str, Any]) -> list[str]:
        """Return the alarms that a training record raises."""
        loss, constant = record.get("disc_loss"), record.get("constant_disc_loss")
        rate, speed = record.get("replaced_rate"), record["tokens_per_second"]
        start = self.config.optimizer.warmup_steps + self.config.second_stage
        is_warm = record["step"] > start
        low = LOW_REPLACED_SHARE * self.config.method.mask_prob
        is_trained = self.config.method.scheme != "adversarial"  # which only measures it
        mlm_loss = record.get("mlm_loss") if is_trained else None
        chance = math.log(self.config.model.vocab_size)
        usual = statistics.median(self.speeds) if self.speeds else 0.0
        self.speeds.append(speed)
        signs = {
            "discriminator": (
                is_warm and loss is not None and loss >= constant,
                "the discriminator is no better than a constant prediction, after the warm-up of "
                "the learning rate: it learns nothing yet; a lower optimizer.learning_rate, a "
                "smaller generator or a longer warm-up may help",
            ),
            "generator": (
                rate is not None and rate < low,
                f"fewer than {low:.1%} of the tokens are replaced: the generator is too strong, "
                "and the discriminator has little to learn; a smaller generator.hidden_fraction "
                "makes it weaker",
            ),
            "loss": (
                mlm_loss is not None and mlm_loss > WORSE_THAN_CHANCE * chance,
                f"mlm_loss is above {chance:.2f}, the loss of a uniform guess: the run "
                "diverges; a lower optimizer.learning_rate or a longer warm-up may help",
            ),
            "speed": (
                speed < usual / 2,
                f"the speed has fallen to less than half of {usual:,.0f} tokens per second, the "
                "median of this session: another program may use the machine",
            ),
        }
        raised = []
        for name, (is_bad, text) in signs.items():
            self.num_bad[name] = self.num_bad[name] + 1 if is_bad else 0
            if self.num_bad[name] == PATIENCE:
                raised.append(text)
        return raised

    def read_heldout(self, record: Mapping[str, Any]) -> list[str]:
        """Return the alarms that a held-out record of a continued run raises, by domain."""
        raised = []
        for domain, was_worse in self.is_worse.items():
            loss, constant = (record.get(f"{domain}_{n}disc_loss") for n in ("", "constant_"))
            if loss is None or constant is None:
                continue
            before = self.before.setdefault(domain, loss)
            learnt = constant - before
            lost = (loss - before) / learnt if learnt > 0 else 0.0
            self.is_worse[domain] = is_worse = lost > LOST_SHARE
            if is_worse and not was_worse:
                raised.append(
                    f"on the {domain} text the discriminator's loss is {loss:.4f}, and was "
                    f"{before:.4f} before its first step: {lost:.0%} of what it had learnt there "
                    "is lost; a lower optimizer.learning_rate, more generator.warmup_steps, or old "
                    "text among the new may help"
                )
        return raised
