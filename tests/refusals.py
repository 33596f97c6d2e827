"""What a refusal has to say: the value, the option and the remedy, in whatever words."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hpo.errors import UsageError


def refused(call: Callable[[], object], *words: str, error: type[Exception] = UsageError) -> None:
    """``call`` raises ``error``, whose text has all ``words``."""
    with pytest.raises(error) as caught:
        call()
    for word in words:
        assert word in str(caught.value), str(caught.value)
