"""A corrupted sentence with the discriminator's verdicts, for the terminal and the page."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple


class TokenView(NamedTuple):
    """One token of a corrupted sentence, and the discriminator's probability for the token."""

    token: str
    """The token after corruption. A piece inside a word begins with "##"."""
    original: str
    is_replaced: bool
    prob_replaced: float
    """The discriminator's probability that the token was replaced."""

    @property
    def verdict(self) -> str:
        """Return "caught", "missed", "false alarm", or "" for an original judged as original."""
        if self.is_replaced:
            return "caught" if self.is_suspected else "missed"
        return "false alarm" if self.is_suspected else ""

    @property
    def is_suspected(self) -> bool:
        """Return whether the discriminator's probability is at least 0.5."""
        return self.prob_replaced >= 0.5


Sentence = Sequence[TokenView]


def describe(sentence: Sentence) -> str:
    """Return a summary such as "3 replaced: 2 caught, 1 missed; 1 false alarm"."""
    count = Counter(token.verdict for token in sentence)
    replaced = count["caught"] + count["missed"]
    alarms = f"{count['false alarm']} false alarm{'' if count['false alarm'] == 1 else 's'}"
    return f"{replaced} replaced: {count['caught']} caught, {count['missed']} missed; {alarms}"
