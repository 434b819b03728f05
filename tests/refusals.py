"""What is refused is refused in one line."""

import pytest

from electra.errors import UserError


def refuse(words: str, act) -> None:
    """Check that it is refused in one line with these words."""
    with pytest.raises(UserError) as refusal:
        act()
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)
