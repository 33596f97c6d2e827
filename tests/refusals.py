"""What a refusal has to say: the value, the option and the remedy, in whatever words."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hpo.errors import UsageError


def refused(call: Callable[[], object], *words: str, error: type[Exception] = UsageError) -> str:
    """The text of the ``error`` that ``call`` raises, which has all ``words``."""
    with pytest.raises(error) as caught:
        call()
    text = str(caught.value)
    assert all(word in text for word in words), text
    return text
