"""What is refused is refused in one line."""

import re

import pytest

from electra.errors import UserError


def refuse(words: str, act, /, *given, **named) -> str:
    """Check that a call is refused in one line with these words; " ... " stands for any."""
    with pytest.raises(UserError) as refusal:
        act(*given, **named)
    said = str(refusal.value)
    assert re.search(".*".join(map(re.escape, words.split(" ... "))), said), said
    assert "\n" not in said
    return said
