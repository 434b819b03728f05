"""One sentence as both networks see it, for the terminal and the page."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple


class TokenView(NamedTuple):
    """One token of a corrupted sentence, and what the discriminator makes of it."""

    token: str
    """As the generator left it; a piece inside a word begins with "##"."""
    original: str
    is_replaced: bool
    prob_replaced: float
    """The discriminator's probability that the token was replaced."""

    @property
    def verdict(self) -> str:
        """Return "caught", "missed", "false alarm", or "" for an original believed to be one."""
        if self.is_replaced:
            return "caught" if self.is_suspected else "missed"
        return "false alarm" if self.is_suspected else ""

    @property
    def is_suspected(self) -> bool:
        """Return whether the discriminator thinks it more likely replaced than not."""
        return self.prob_replaced >= 0.5


Sentence = Sequence[TokenView]


def describe(sentence: Sentence) -> str:
    """Return the score in words: "3 replaced: 2 caught, 1 missed; 1 false alarm"."""
    count = Counter(token.verdict for token in sentence)
    replaced = count["caught"] + count["missed"]
    alarms = f"{count['false alarm']} false alarm{'' if count['false alarm'] == 1 else 's'}"
    return f"{replaced} replaced: {count['caught']} caught, {count['missed']} missed; {alarms}"
