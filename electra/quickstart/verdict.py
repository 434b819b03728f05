"""The last lines of the quickstart: what the encoder has learnt, and whether pre-training paid."""

from collections.abc import Mapping, Sequence

from electra.reports.claims import differs
from electra.reports.runs import Finetuning
from electra.reports.tokens import Sentence, count_least_trusted

NUM_SUSPECTS = 10


def describe_learnt(samples: Sequence[Sentence], frequency_of: Mapping[str, float]) -> str:
    """Return a sentence on the tokens that the discriminator trusts least, beside a unigram guess.

    Args:
        samples: The held-out rows of a run.
        frequency_of: Occurrences of each token in the training text.
    """
    rarity = [
        [view._replace(prob_replaced=-frequency_of[view.token]) for view in row] for row in samples
    ]
    views = [view for row in samples for view in row]
    share = sum(view.is_replaced for view in views) / len(views)
    return (
        f"Of the {NUM_SUSPECTS} held-out tokens that the discriminator trusts least, "
        f"{count_least_trusted(samples, NUM_SUSPECTS)} were replaced; of the {NUM_SUSPECTS} rarest "
        f"tokens, {count_least_trusted(rarity, NUM_SUSPECTS)}; of all tokens, {share:.0%}."
    )


def describe_gain(pretrained: Finetuning, scratch: Finetuning) -> str:
    """Return a sentence that compares two fine-tunings on one task.

    A difference counts if it exceeds the two standard deviations together.
    """
    gain = pretrained.median - scratch.median
    spread = (pretrained.std or 0.0) + (scratch.std or 0.0)
    if not differs(pretrained, scratch):
        verdict = "makes no difference beyond the spread of the seeds"
    else:
        verdict = "pays" if gain > 0 else "hurts"
    return (
        f"On {pretrained.task}, pre-training {verdict}: {pretrained.metric} "
        f"{pretrained.median:.3f} against {scratch.median:.3f} from scratch "
        f"({gain:+.3f}, spread {spread:.3f})."
    )
