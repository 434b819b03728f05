"""Every number that a run reports: its name, its unit, how it is written, what it means."""

from collections.abc import Mapping
from typing import NamedTuple


class Metric(NamedTuple):
    """One key of metrics.jsonl, in words."""

    label: str
    unit: str
    """Unit of the axis; empty for a pure number."""
    spec: str
    """How a value is written, as a format specification."""
    meaning: str
    """What a newcomer needs to read it."""


GLOSSARY = {
    "mlm_loss": Metric(
        "generator's loss",
        "nats",
        ".3f",
        "How surprised the generator is by the words that were hidden from it: minus the "
        "logarithm of the probability it gave to the right token, on average. Guessing blindly "
        "among V tokens costs log(V), about 10.3 for 30,522; every 0.69 less means the right token "
        "became twice as likely.",
    ),
    "mlm_accuracy": Metric(
        "generator's accuracy",
        "share",
        ".3f",
        "Share of the hidden tokens where the generator's first choice is the right one.",
    ),
    "sampled_accuracy": Metric(
        "sampled accuracy",
        "share",
        ".3f",
        "Share of the hidden tokens where the generator's draw is the right one. It draws by its "
        "probabilities instead of taking its first choice, so this lies below mlm_accuracy. A draw "
        "that is right counts as original, not as replaced.",
    ),
    "replaced_rate": Metric(
        "replaced rate",
        "share",
        ".3f",
        "Share of all tokens that differ from the original text. Hidden tokens less the lucky "
        "draws: it falls as the generator improves, and the discriminator's task gets harder.",
    ),
    "disc_loss": Metric(
        "discriminator's loss",
        "nats",
        ".4f",
        "How surprised the discriminator is by the truth about each token, replaced or original. "
        "On its own the number says little, because few tokens are replaced: compare it with "
        "constant_disc_loss. Below it, the discriminator has learnt something; equal to it, "
        "nothing.",
    ),
    "constant_disc_loss": Metric(
        "constant predictor's loss",
        "nats",
        ".4f",
        "The loss of the best guesser that never looks at the text: it gives every token the same "
        "probability, the replaced rate itself. The line that disc_loss has to fall below.",
    ),
    "disc_auc": Metric(
        "discriminator's AUC",
        "",
        ".3f",
        "Take one replaced and one original token at random: how often does the discriminator find "
        "the replaced one more suspicious? 0.5 is a coin toss, 1 is perfect. Unlike disc_loss it "
        "does not depend on how many tokens are replaced.",
    ),
    "restore_loss": Metric(
        "restoring loss",
        "nats",
        ".3f",
        "Of the objectives between MLM and RTD: how surprised the encoder is by the original "
        "tokens, having read a text with the generator's draws in it. replace_mlm asks at the "
        "hidden places only, all_tokens_mlm everywhere, where most are copied: compare each with "
        "itself only.",
    ),
    "restore_accuracy": Metric(
        "restoring accuracy",
        "share",
        ".3f",
        "Share of the hidden places where its first choice is the original token.",
    ),
    "policy_loss": Metric(
        "policy loss",
        "nats",
        ".4f",
        "Of adversarial training: what the generator minimises to be rewarded more. Its gradient "
        "has a meaning, its value hardly any.",
    ),
    "baseline_loss": Metric(
        "baseline's loss",
        "nats",
        ".4f",
        "Of adversarial training: how badly the generator foresees what the discriminator says.",
    ),
    "generator_entropy": Metric(
        "generator's entropy",
        "nats",
        ".3f",
        "Of adversarial training: how undecided the generator is. Near 0 it always draws the same "
        "token, and the discriminator has an easy life.",
    ),
    "loss": Metric(
        "total loss",
        "nats",
        ".3f",
        "What training minimises: the losses above, weighted. For RTD mlm_loss + disc_weight x "
        "disc_loss; the weight (50 in the paper) makes up for disc_loss being so much smaller.",
    ),
    "learning_rate": Metric(
        "learning rate",
        "",
        ".2e",
        "Size of the optimizer's steps: climbs during warm-up, then falls in a straight line to 0.",
    ),
    "grad_norm": Metric(
        "gradient norm",
        "",
        ".2f",
        "Length of the gradient of both networks together, before it is clipped. Steady is good; "
        "a lasting climb is the first sign of trouble.",
    ),
    "tokens_per_second": Metric(
        "speed",
        "tokens/s",
        ",.0f",
        "Real tokens, padding not counted, that training takes in each second.",
    ),
    "step": Metric("step", "optimizer steps", ",d", "Updates of the weights so far."),
    "tokens": Metric(
        "tokens", "tokens", ",d", "Real tokens seen so far; one seen twice counts twice."
    ),
    "seconds": Metric("time", "s", ",.1f", "Time spent training, evaluation not counted."),
}
"""In the order in which a reader meets them."""


def format_metric(name: str, value: float | None) -> str:
    """Return the value as this metric is written, or "-" where there is none."""
    return "-" if value is None else format(value, GLOSSARY[name].spec)


def describe_heldout(record: Mapping[str, float | None]) -> dict[str, str]:
    """Return what a run says at its end: the names and values of the measures that matter most."""
    names = (
        ("disc_loss", "constant_disc_loss", "disc_auc", "mlm_accuracy")
        if "disc_loss" in record
        else ("restore_loss", "mlm_loss", "mlm_accuracy")
    )
    return {name: format_metric(name, record[name]) for name in names if name in record}


def format_count(count: float) -> str:
    """Return a large count in four characters and a suffix: 950, 12.3k, 1.20M, 3.40G."""
    suffixes = iter(("", "k", "M", "G", "T"))
    suffix = next(suffixes)
    while abs(count) >= 999.5 and suffix != "T":
        count, suffix = count / 1000, next(suffixes)
    digits = 0 if not suffix or abs(count) >= 99.95 else 1 if abs(count) >= 9.995 else 2
    return f"{count:.{digits}f}{suffix}"


def format_seconds(seconds: float) -> str:
    """Return a time in its two largest units: 42s, 3m05s, 2h07m, 4d06h."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"
