"""Check of keyword arguments: an unknown keyword's error names the closest valid keyword."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from hpo.errors import UsageError
from hpo.spelling import suggestion

_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")


def checked_arguments(**remedies: str) -> Callable[[Callable[_Given, _Made]], Callable[_Given, _Made]]:
    """Decorator that raises UsageError for unknown or missing arguments of a method. ``remedies``: sentences on what to
    write instead, by keyword that users of other packages expect."""

    def decorate(init: Callable[_Given, _Made]) -> Callable[_Given, _Made]:
        signature = inspect.signature(init)
        parameters = [one for one in signature.parameters.values() if one.name != "self"]
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        keywords = [one.name for one in parameters if one.kind in kinds]
        name = init.__qualname__.removesuffix(".__init__").split(".<locals>.")[-1]
        takes_any = inspect.Parameter.VAR_KEYWORD in {one.kind for one in parameters}

        @functools.wraps(init)
        def checked(*arguments: _Given.args, **given: _Given.kwargs) -> _Made:
            # Before bind(), whose TypeError would name the keyword but no remedy.
            for keyword in given:
                if keyword not in keywords and not takes_any:
                    remedy = remedies.get(keyword) or suggestion(keyword, keywords)
                    raise UsageError(f"{name} has no keyword {keyword!r}. {remedy}")
            try:
                signature.bind(*arguments, **given)
            except TypeError as error:
                raise UsageError(
                    f"{name}: {error}. Write {name}({', '.join(map(str, parameters))})."
                ) from None
            return init(*arguments, **given)

        return checked

    return decorate
