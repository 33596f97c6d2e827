"""A task's options: one pydantic model a campaign, checked before anything is trained. It imports no torch.

    class MyOptions(Options):
        epochs: Count = 12
        \"\"\"Passes over the training set.\"\"\"
        precision: Precision = "fp32"
        dim: Count = 48
        heads: Count = 6

        def rules(self) -> None:                    # what depends on several options
            super().rules()
            divisor("dim", self.dim, heads=self.heads)

``MyOptions(epochs=0)`` raises UsageError that names option, value, rule and remedy; of several wrong options one line
each. The rule is read off the annotation, and so are the command line of ``search_spaces.standalone`` and its help,
for which the text under a field, or under the field of that name in a base class, is used.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic.fields import FieldInfo

import hpo

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Rule:
    """In an annotation: what the option must be, in words, where its type and bounds do not say it."""

    words: str


def _none_or_several(folds: int) -> int:
    if folds != 0 and folds < 2:
        raise ValueError
    return folds


Count = Annotated[int, Field(ge=1)]
FromZero = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(gt=0, lt=1)]
FromZeroBelowOne = Annotated[float, Field(ge=0, lt=1)]
Precision = Literal["fp32", "tf32", "bf16"]
CosineForm = Literal["after-warm-up", "timm"]
"""Where a cosine begins: at the end of the warm-up, or, as timm's by default, at the run's start."""
Folds = Annotated[int, AfterValidator(_none_or_several), Rule("0, or a whole number of at least 2")]


class Options(BaseModel):
    """Keywords of a ``make_task``. UsageError for what is not allowed: all at once, but for ``rules``, which are
    checked where each option is right by itself.
    """

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        validate_default=True,
    )

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            places = dict.fromkeys(str(found["loc"][0]) for found in error.errors())
            raise hpo.UsageError("\n".join(self._refusal(name, given) for name in places)) from None
        with together():
            self.rules()

    @field_validator("*", mode="before")
    @classmethod
    def _as_plain(cls, value: object) -> object:
        return _plain(value)

    def rules(self) -> None:
        """Checks that need several options, by ``refuse``, which may be called more than once."""

    @classmethod
    def kinds(cls) -> dict[str, Any]:
        """Each option's annotation, in the order in which they are shown."""
        hints = get_type_hints(cls, include_extras=True)
        return {name: hints[name] for name in cls.model_fields}

    @classmethod
    def describe(cls, name: str) -> str:
        """What is said of the option, by the class or by the nearest base that says something."""
        for one in cls.__mro__:
            field = getattr(one, "__pydantic_fields__", {}).get(name)
            if field is not None and field.description:
                return " ".join(field.description.split())
        return ""

    @classmethod
    def signature(cls) -> inspect.Signature:
        """That of a function that takes the options as keywords."""
        return inspect.Signature(
            [
                inspect.Parameter(
                    name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=inspect.Parameter.empty if field.is_required() else field.default,
                    annotation=kind,
                )
                for (name, field), kind in zip(cls.model_fields.items(), cls.kinds().values(), strict=True)
            ]
        )

    @classmethod
    def _refusal(cls, name: str, given: dict[str, Any]) -> str:
        if name not in cls.model_fields:
            return f"{name}: there is no such option. There are {', '.join(cls.model_fields)}."
        field = cls.model_fields[name]
        if name not in given and field.is_required():
            return f"{name} is missing. Give it."
        return str(wrong(name, _plain(given.get(name, field.default)), rule_of(cls.kinds()[name])))


def _plain(value: object) -> object:
    """Numbers of numpy, of a table of results, say, are as good as Python's."""
    return value.item() if isinstance(value, np.generic) else value


def rule_of(kind: Any) -> str:
    """What a value of the annotation ``kind`` must be, in words: "a whole number of at least 1"."""
    if get_origin(kind) is Annotated:
        base, *marks = get_args(kind)
        for mark in marks:
            if isinstance(mark, Rule):
                return mark.words
        limits = [one for mark in marks for one in (mark.metadata if isinstance(mark, FieldInfo) else [mark])]
        return " ".join([rule_of(base), " and ".join(filter(None, map(_limit, limits)))]).strip()
    if get_origin(kind) is Literal:
        return " or ".join(map(repr, get_args(kind)))
    if get_origin(kind) in (Union, types.UnionType):
        parts = [rule_of(one) for one in get_args(kind) if one is not type(None)]
        return " or ".join(parts) + (", or left out" if type(None) in get_args(kind) else "")
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return words.get(kind, getattr(kind, "__name__", str(kind)))


def _limit(mark: object) -> str:
    words = {"ge": "of at least", "gt": "above", "le": "at most", "lt": "below"}
    return " and ".join(
        f"{text} {getattr(mark, name):g}" for name, text in words.items() if hasattr(mark, name)
    )


_found: ContextVar[list[str] | None] = ContextVar("found", default=None)
"""What is wrong so far, within ``together``."""


@contextmanager
def together() -> Iterator[None]:
    """Around several checks: UsageError with what all of them found, a line each. One within another adds to it."""
    outer = _found.get()
    found = [] if outer is None else outer
    token = _found.set(found)
    try:
        yield
    except hpo.UsageError as error:
        found.append(str(error))
    finally:
        _found.reset(token)
    if outer is None and found:
        raise hpo.UsageError("\n".join(dict.fromkeys(found)))


def divisor(of: str, total: int, /, **options: int) -> None:
    """Options that divide ``total``, the option named ``of``."""
    for name, value in options.items():
        if total % value:
            refuse(name, value, f"a divisor of {of} = {total}")


def refuse(name: str, value: object, rule: str) -> None:
    """Report an option that breaks a rule: with the others within ``together``, else at once."""
    found, error = _found.get(), wrong(name, value, rule)
    if found is None:
        raise error
    found.append(str(error))


def wrong(name: str, value: object, rule: str) -> hpo.UsageError:
    """The sentence for an option that breaks a rule."""
    return hpo.UsageError(f"{name} = {value!r}: must be {rule}. Correct it.")


# What cannot be said before data are read


@contextmanager
def as_usage() -> Iterator[None]:
    """Around the reading of data: what the reader says of data that are not there, or are not what they should be, is
    the user's to hear.
    """
    try:
        yield
    except hpo.HpoError:
        raise
    except (OSError, EOFError, ValueError, ModuleNotFoundError) as error:
        raise hpo.UsageError(str(error)) from error


def refusing(train: Callable[P, R]) -> Callable[P, R]:
    """``trainers.train``, of which a ValueError that comes before the first step is a UsageError: settings, or a
    checkpoint of others. Later ones stay what they are, with their traceback.
    """

    @functools.wraps(train)
    def wrapped(*given: P.args, **named: P.kwargs) -> R:
        begun, interrupt = False, named.get("interrupt")

        def asked() -> bool:
            nonlocal begun
            begun = True
            return bool(interrupt()) if callable(interrupt) else False

        named["interrupt"] = asked
        try:
            return train(*given, **named)
        except ValueError as error:
            if begun or isinstance(error, hpo.HpoError):
                raise
            raise hpo.UsageError(str(error)) from error

    return wrapped
