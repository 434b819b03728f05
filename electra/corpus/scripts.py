"""The script of a character, from its name in Unicode."""

import unicodedata
from functools import cache

RENAMED = {"CJK": "Han", "FULLWIDTH": "", "HALFWIDTH": "", "MATHEMATICAL": "signs"}
DIGITS, SIGNS = "digits", "signs"


@cache
def script_of(char: str) -> str:
    """Return the script of a letter, such as "Latin" or "Hangul", or "digits", or "signs"."""
    category = unicodedata.category(char)
    if category == "Nd":
        return DIGITS
    if category[0] not in "LM":
        return SIGNS
    first, *others = unicodedata.name(char, "unknown").split()
    name = RENAMED.get(first, first.split("-")[0].capitalize())
    return name or (others[0].capitalize() if others else SIGNS)


def script_of_word(word: str) -> str:
    """Return the script of a word: that of its first letter, else digits or signs."""
    scripts = [script_of(char) for char in word]
    letters = (script for script in scripts if script not in (DIGITS, SIGNS, "Combining"))
    return next(letters, DIGITS if DIGITS in scripts else SIGNS)
