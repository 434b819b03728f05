"""What is refused is refused in one line."""

import pytest

from electra.errors import UserError


def refuse(words: str, act, /, *given, **named) -> None:
    """Check that a call is refused in one line with these words."""
    with pytest.raises(UserError) as refusal:
        act(*given, **named)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)
