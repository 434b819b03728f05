"""Every metric of a run: one record, from which displays, tables, curves and cards read."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from electra.errors import count_of


class Metric(NamedTuple):
    """Description of one key of metrics.jsonl. A new metric is a record here, and nothing else."""

    label: str
    meaning: str
    """Explanation for a newcomer, in the report's glossary."""
    unit: str = "nats"
    """Unit of the axis; empty for a pure number."""
    spec: str = ".3f"
    """Format specification of a value."""
    column: tuple[str, str, int] | None = None
    """Its column in log lines: the two lines of the header, and the width in characters."""
    network: Literal["", "generator", "discriminator", "encoder", "text"] = ""
    """The block of the live display; "text": below that of the discriminator or encoder."""
    panel: str | None = None
    """Title of the report's curves with this metric; metrics of one title share their axes. None:
    its label; empty: it has no curves."""
    summary: bool = False
    """Whether it is among the few in the last line of a command, the table of runs and a card."""
    is_same: bool = False
    """Whether all evaluations of a run measure it on the same input, so that the last line of a
    continued run also shows its first value."""
    sentence: str = ""
    """A report's sentence on its last value on held-out text, with {value} and {network}."""

    @property
    def title(self) -> str:
        """Title of its curves."""
        return self.label[0].upper() + self.label[1:] if self.panel is None else self.panel


GLOSSARY: dict[str, Metric] = {
    "mlm_loss": Metric(
        "generator's loss",
        "Cross-entropy of the generator on the masked tokens: minus the logarithm of the "
        "probability of the original token, on average. Uniform guessing among V tokens costs "
        "log(V), about 10.3 for V = 30,522. A loss lower by 0.69 means that the original token is "
        "twice as probable.",
        column=("mlm", "loss", 6),
        network="generator",
        summary=True,
        is_same=True,
    ),
    "mlm_accuracy": Metric(
        "generator's accuracy",
        "Share of the masked tokens for which the generator's most probable token is the original "
        "one. BERT's MLM shows one masked token in ten unchanged, and a network that copies it is "
        "right there: its accuracy is up to 0.1 higher than that of an equally good generator.",
        unit="share",
        column=("mlm", "acc", 5),
        network="generator",
        summary=True,
        is_same=True,
        sentence="the {network} restores {value:.0%} of the masked tokens",
    ),
    "sampled_accuracy": Metric(
        "sampled accuracy",
        "Share of the masked tokens for which the generator's sample is the original token. The "
        "generator samples from its probabilities instead of taking the most probable token, so "
        "this is lower than mlm_accuracy. A sample that equals the original token counts as "
        "original, not as replaced.",
        unit="share",
        column=("drawn", "acc", 5),
        network="generator",
        panel="Generator's accuracy",
    ),
    "replaced_rate": Metric(
        "replaced rate",
        "Share of all tokens that differ from the original text: the masked tokens without those "
        "whose sample equals the original. The rate falls as the generator improves, and the "
        "discriminator's task gets harder.",
        unit="share",
        column=("repl", "rate", 5),
        network="text",
    ),
    "disc_loss": Metric(
        "discriminator's loss",
        "Cross-entropy of the discriminator over all tokens, each either replaced or original. The "
        "value alone says little, because few tokens are replaced. Compare it with "
        "constant_disc_loss: a lower disc_loss means that the discriminator has learnt something, "
        "an equal one that the discriminator has learnt nothing.",
        spec=".4f",
        column=("disc", "loss", 6),
        network="discriminator",
        summary=True,
    ),
    "constant_disc_loss": Metric(
        "constant predictor's loss",
        "Loss of the best predictor that ignores the text: the predicted probability of every "
        "token is the replaced rate. A useful discriminator has a lower disc_loss.",
        spec=".4f",
        column=("const", "loss", 6),
        network="discriminator",
        panel="Discriminator's loss",
        summary=True,
    ),
    "disc_auc": Metric(
        "discriminator's AUC",
        "Area under the ROC curve: the probability that the discriminator gives a random replaced "
        "token a higher score than a random original token. 0.5 is chance, 1 is perfect. Unlike "
        "disc_loss, the AUC does not depend on the replaced rate.",
        unit="",
        column=("disc", "auc", 5),
        network="discriminator",
        summary=True,
        sentence="the discriminator ranks a replaced token above an original token {value:.0%} of "
        "the time (chance: 50%)",
    ),
    "old_disc_loss": Metric(
        "discriminator's loss, old text",
        "In continued pre-training: disc_loss on held-out rows of the text that the first weights "
        "were trained on. The replaced tokens of these rows stay the same throughout the run, so a "
        "rise means that the discriminator has become worse there.",
        spec=".4f",
        network="discriminator",
        panel="Discriminator on old and new text",
        summary=True,
        is_same=True,
    ),
    "new_disc_loss": Metric(
        "discriminator's loss, new text",
        "In continued pre-training: the same on held-out rows of the new text, where it should "
        "fall.",
        spec=".4f",
        network="discriminator",
        panel="Discriminator on old and new text",
        summary=True,
        is_same=True,
    ),
    "old_constant_disc_loss": Metric(
        "constant predictor's loss, old text",
        "The best constant prediction on the same rows as old_disc_loss.",
        spec=".4f",
        network="discriminator",
        panel="Discriminator on old and new text",
    ),
    "new_constant_disc_loss": Metric(
        "constant predictor's loss, new text",
        "The best constant prediction on the same rows as new_disc_loss.",
        spec=".4f",
        network="discriminator",
        panel="Discriminator on old and new text",
    ),
    "old_disc_auc": Metric(
        "discriminator's AUC, old text", "The AUC on the same rows as old_disc_loss.", unit=""
    ),
    "new_disc_auc": Metric(
        "discriminator's AUC, new text", "The AUC on the same rows as new_disc_loss.", unit=""
    ),
    "old_loss": Metric(
        "total loss, old text",
        "In continued pre-training by another objective than RTD: the loss on the text that the "
        "first weights were trained on.",
        summary=True,
        is_same=True,
    ),
    "restore_loss": Metric(
        "restoring loss",
        "For the objectives between MLM and RTD: cross-entropy of the encoder on the original "
        "tokens, given the text with the generator's samples. replace_mlm predicts the masked "
        "positions only. all_tokens_mlm predicts all positions, most of which only need copying. "
        "So values of different objectives cannot be compared.",
        network="encoder",
        summary=True,
    ),
    "restore_accuracy": Metric(
        "restoring accuracy",
        "Share of the masked positions for which the encoder's most probable token is the original "
        "one.",
        unit="share",
        network="encoder",
    ),
    "nsp_loss": Metric(
        "next sentence's loss",
        "For mlm with examples.next_sentence: cross-entropy of whether the second segment follows "
        "the first, which it does in half of the rows. Guessing costs log(2), 0.693.",
        network="encoder",
        summary=True,
        is_same=True,
    ),
    "nsp_accuracy": Metric(
        "next sentence's accuracy",
        "For mlm with examples.next_sentence: share of the rows for which the encoder predicts "
        "correctly whether the second segment follows the first; chance is 0.5.",
        unit="share",
        network="encoder",
    ),
    "lm_loss": Metric(
        "next token's loss",
        "For causal_lm: cross-entropy of the encoder on each token, given those before it. It sees "
        "one side only, so the value is not comparable with mlm_loss.",
        network="encoder",
        summary=True,
        is_same=True,
    ),
    "lm_accuracy": Metric(
        "next token's accuracy",
        "For causal_lm: share of the tokens that the encoder finds most probable, given the tokens "
        "before.",
        unit="share",
        network="encoder",
        is_same=True,
        summary=True,
        sentence="the encoder predicts {value:.0%} of the next tokens",
    ),
    "selection_loss": Metric(
        "selection loss",
        "For teams: cross-entropy of choosing the original token, at each masked position, among "
        "five tokens that the generator considers likely. Guessing costs log(5), 1.609.",
        network="discriminator",
        summary=True,
    ),
    "selection_accuracy": Metric(
        "selection accuracy",
        "For teams: share of the masked positions at which the original is chosen; chance is 0.2.",
        unit="share",
        network="discriminator",
    ),
    "corrective_loss": Metric(
        "corrective loss",
        "For cocolm: cross-entropy of the original tokens at the masked positions, by copying the "
        "generator's sample or by a softmax of the discriminator's own.",
        network="discriminator",
        summary=True,
    ),
    "contrast_loss": Metric(
        "contrast loss",
        "For cocolm: cross-entropy of finding a row's crop among the crops and corrupted rows of a "
        "step. With n rows guessing costs log(2n - 1), and the least is log(1 + 2(n - 1) exp(-2)).",
        network="discriminator",
    ),
    "contrast_accuracy": Metric(
        "contrast accuracy",
        "For cocolm: share of the rows and crops whose most similar state is that of their own "
        "crop or row.",
        unit="share",
        network="discriminator",
    ),
    "policy_loss": Metric(
        "policy loss",
        "For adversarial training: the generator's surrogate loss of the policy gradient. Only the "
        "gradient is meaningful; the value says little.",
        spec=".4f",
    ),
    "baseline_loss": Metric(
        "baseline's loss",
        "For adversarial training: error of the generator's prediction of the discriminator's "
        "verdict.",
        spec=".4f",
    ),
    "generator_entropy": Metric(
        "generator's entropy",
        "For adversarial training: mean entropy of the generator's probabilities. Near 0 the "
        "generator always samples the same token, and the discriminator's task becomes easy.",
    ),
    "loss": Metric(
        "total loss",
        "The minimised loss: the weighted sum of the losses above. For RTD: mlm_loss + disc_weight "
        "x disc_loss. The weight (50 in the paper) is large because disc_loss is much smaller than "
        "mlm_loss.",
        panel="",
    ),
    "learning_rate": Metric(
        "learning rate",
        "Step size of the optimizer: rises during warm-up, and decays to 0 at the end, over the "
        "whole run or its last part (optimizer.decay_fraction).",
        unit="",
        spec=".2e",
        column=("learn", "rate", 6),
    ),
    "grad_norm": Metric(
        "gradient norm",
        "L2 norm of the gradient of both networks together, before clipping. It often rises slowly "
        "while the losses fall. A sudden rise, and losses that rise with it, are the first sign of "
        "divergence.",
        unit="",
        spec=".2f",
        column=("grad", "norm", 4),
    ),
    "tokens_per_second": Metric(
        "speed", "Training tokens per second, without padding.", unit="tokens/s", spec=",.0f"
    ),
    "step": Metric("step", "Weight updates so far.", unit="optimizer steps", spec=",d", panel=""),
    "tokens": Metric(
        "tokens",
        "Training tokens so far, without padding. A token read twice counts twice.",
        unit="tokens",
        spec=",d",
        panel="",
    ),
    "seconds": Metric(
        "time", "Training time, without evaluation.", unit="s", spec=",.1f", panel=""
    ),
}
"""The metrics by key, in the order of tables and of the report's glossary."""

CAPTIONS = {
    "Generator's loss": "The lower, the better the generator knows the language.",
    "Discriminator's loss": "The gap below the dashed line is what the discriminator has learnt.",
    "Discriminator on old and new text": "Held-out rows whose replaced tokens stay the same. A "
    "rise means that the discriminator has become worse; at the constant predictor's loss it has "
    "learnt nothing.",
    "Discriminator's AUC": "0.5 is chance, 1 is perfect.",
    "Generator's accuracy": "Accuracy of the most probable token, and of the sampled token.",
    "Replaced rate": "The better the generator's samples, the lower.",
    "Restoring loss": "The lower, the more the encoder has learnt.",
    "Generator's entropy": "Near 0, all samples are the same token.",
    "Learning rate": "Rises in the warm-up, and decays to 0 at the end.",
    "Speed": "A dip means that the machine had other work.",
    "Gradient norm": "A sudden rise is a sign of divergence if the losses also rise.",
}
"""What to look for in the report's curves, by title, in their order; others follow without."""


class Panel(NamedTuple):
    """The metrics in one pair of axes, and a caption on what to look for."""

    title: str
    metrics: tuple[str, ...]
    caption: str


def list_panels() -> list[Panel]:
    """Return the panels of the report's curves."""
    titles = dict.fromkeys((*CAPTIONS, *filter(None, (each.title for each in GLOSSARY.values()))))
    return [
        Panel(
            title,
            tuple(name for name, each in GLOSSARY.items() if each.title == title),
            CAPTIONS.get(title, ""),
        )
        for title in titles
    ]


def summarise(record: Mapping[str, float | None]) -> dict[str, float]:
    """Return the few most important metrics that a held-out record has."""
    return {
        name: value
        for name, metric in GLOSSARY.items()
        if metric.summary and (value := record.get(name)) is not None
    }


def format_metric(name: str, value: float | None) -> str:
    """Return the value in the metric's format, or "-" for None."""
    return "-" if value is None else format(value, GLOSSARY[name].spec)


def describe_heldout(
    record: Mapping[str, float | None], before: Mapping[str, float | None] | None = None
) -> dict[str, str]:
    """Return `summarise`, formatted, for the end of a run.

    `before` is a continued run's first held-out record, whose values follow in brackets.
    """
    told = {name: format_metric(name, value) for name, value in summarise(record).items()}
    for name in told:
        if GLOSSARY[name].is_same and (first := (before or {}).get(name)) is not None:
            told[name] += f" ({format_metric(name, first)} before)"
    return told


def format_count(count: float) -> str:
    """Return a count with three significant digits and a suffix: 950, 12.3k, 1.20M, 3.40G."""
    suffixes = iter(("", "k", "M", "G", "T"))
    suffix = next(suffixes)
    while abs(count) >= 999.5 and suffix != "T":
        count, suffix = count / 1000, next(suffixes)
    digits = 0 if not suffix or abs(count) >= 99.95 else 1 if abs(count) >= 9.995 else 2
    return f"{count:.{digits}f}{suffix}"


def format_interval(mean: float, half_width: float | None, sign: str = "") -> str:
    """Return a mean in points and the half width of its interval: 1.2 ± 0.7.

    Where both would look alike, they have two digits, which show the larger one.
    """
    if half_width is None:
        return f"{mean:{sign}z.1f}"
    digits = 2 if f"{abs(mean):.1f}" == f"{half_width:.1f}" else 1
    return f"{mean:{sign}z.{digits}f} ± {half_width:.{digits}f}"


def format_about(seconds: float) -> str:
    """Return an estimated duration in words: about 12 minutes, about 350 days."""
    sizes = {"year": 365 * 86400, "day": 86400, "hour": 3600, "minute": 60}
    unit = next((unit for unit, size in sizes.items() if seconds >= 2 * size), "minute")
    number = float(f"{max(1, seconds / sizes[unit]):.2g}")
    return f"about {count_of(round(number), unit)}"


def format_seconds(seconds: float) -> str:
    """Return a duration in its two largest units: 42s, 3m05s, 2h07m, 4d06h."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"
