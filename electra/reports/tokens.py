"""A sentence with the discriminator's verdicts, for the terminal and the page."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple, TypedDict

from electra.errors import count_of
from electra.settings import Within


class SavedToken(TypedDict):
    """A token of samples.json: the fields of a `TokenView` without a threshold."""

    token: str
    original: str
    is_replaced: bool
    prob_replaced: Annotated[float, Within("[0, 1]")]


class SavedRows(TypedDict):
    """samples.json."""

    rows: list[list[SavedToken]]


class TokenView(NamedTuple):
    """One token of a corrupted sentence, and the discriminator's probability for the token."""

    token: str
    """The token after corruption. A piece inside a word begins with "##"."""
    original: str
    is_replaced: bool
    prob_replaced: float
    """The discriminator's probability that the token was replaced."""
    threshold: float = 0.5
    """Probability from which the discriminator suspects a token."""

    @property
    def verdict(self) -> str:
        """Return "caught", "missed", "false alarm", or "" for an original judged as original."""
        if self.is_replaced:
            return "caught" if self.is_suspected else "missed"
        return "false alarm" if self.is_suspected else ""

    @property
    def is_suspected(self) -> bool:
        """Return whether the discriminator's probability reaches the threshold."""
        return self.prob_replaced >= self.threshold


@dataclass(frozen=True)
class Word:
    """A word of a text, or one of its punctuation marks, and the discriminator's verdict."""

    text: str
    start: int
    """Place of its first character in the text."""
    end: int
    prob_replaced: float
    """Probability that the word was replaced: the largest of its pieces."""


Sentence = Sequence[TokenView]


def suspect_as_many(sentences: Sequence[Sentence]) -> list[Sentence]:
    """Return the sentences with the threshold at which as many tokens are suspected as replaced.

    Among seven original tokens for each replaced one, a discriminator that has learnt little gives
    no token a probability of 0.5. The order of its probabilities shows what it has learnt.
    """
    views = [view for sentence in sentences for view in sentence]
    num_replaced = sum(view.is_replaced for view in views)
    probs = sorted((view.prob_replaced for view in views), reverse=True)
    threshold = probs[num_replaced - 1] if num_replaced else 1.0
    return [[view._replace(threshold=threshold) for view in sentence] for sentence in sentences]


def count_least_trusted(sentences: Sequence[Sentence], count: int) -> int:
    """Return how many of the `count` tokens with the highest probabilities were replaced."""
    views = [view for sentence in sentences for view in sentence]
    suspects = sorted(views, key=lambda view: view.prob_replaced, reverse=True)[:count]
    return sum(view.is_replaced for view in suspects)


def describe(sentence: Sentence) -> str:
    """Return a summary such as "3 replaced: 2 caught, 1 missed; 1 false alarm"."""
    count = Counter(token.verdict for token in sentence)
    replaced = count["caught"] + count["missed"]
    alarms = count_of(count["false alarm"], "false alarm")
    return f"{replaced} replaced: {count['caught']} caught, {count['missed']} missed; {alarms}"
