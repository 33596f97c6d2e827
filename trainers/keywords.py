"""Fields of values as keywords of a function that takes these values: ``clip_norm=1.0`` beside
``optimisation=Optimisation(clip_norm=1.0)``.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    _Value = TypeVar("_Value", bound=DataclassInstance)
_Function = TypeVar("_Function", bound=Callable[..., Any])


def with_fields_of(*kinds: type[DataclassInstance]) -> Callable[[_Function], _Function]:
    """Give a function, whose last parameter takes further keywords, the fields of ``kinds`` in its signature and, from
    the "Args:" of ``kinds``, in its docstring.
    """

    def given(function: _Function) -> _Function:
        own = inspect.signature(function)
        *parameters, _ = own.parameters.values()
        for kind in kinds:
            parameters += [
                inspect.Parameter(
                    field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type
                )
                for field in fields(kind)
            ]
        function.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        if function.__doc__:  # none under python -OO
            before, arguments, after = _parts(function.__doc__)
            of_kinds = "".join(_parts(kind.__doc__ or "")[1] for kind in kinds)
            function.__doc__ = f"{before}{arguments}{of_kinds}{after}"
        return function

    return given


def combined(name: str, given: _Value | None, kind: type[_Value], keywords: dict[str, Any]) -> _Value:
    """The argument ``name``, ``given`` or the default ``kind``, with those of its fields that are in ``keywords``,
    which are taken out of there.

    Raises:
        ValueError: ``given`` is of another kind, or sets a field that is in ``keywords``, too.
    """
    if given is None:
        given = kind()
    elif not isinstance(given, kind):
        raise ValueError(f"{name} = {given!r}: must be a trainers.{kind.__name__}(…), or None. Correct it.")
    changed = {}
    for field in fields(kind):
        if field.name in keywords:
            if getattr(given, field.name) != field.default:
                raise ValueError(
                    f"{field.name} is given twice: as a keyword, and in {name}. Leave one of them out."
                )
            changed[field.name] = keywords.pop(field.name)
    return replace(given, **changed) if changed else given


def refuse_unknown(function: Callable[..., object], keywords: Iterable[str]) -> None:
    """TypeError if there are ``keywords``; names the nearest that ``function`` has."""
    for name in keywords:
        near = difflib.get_close_matches(name, inspect.signature(function).parameters, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"help(trainers.{function.__name__}) lists all."
        raise TypeError(f"{function.__name__}() has no keyword {name!r}. {hint}")


def _parts(docstring: str) -> tuple[str, str, str]:
    """What stands before the first argument, the arguments, and what stands after them; without the indentation."""
    text = inspect.cleandoc(docstring) + "\n"
    found = re.search(r"^Args:\n((?: +.*\n)+)", text, re.MULTILINE)
    assert found is not None
    return text[: found.start(1)], found[1], text[found.end(1) :]
