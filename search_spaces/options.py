"""Options of a task: one pydantic model per campaign, checked before anything is trained. It imports no torch.

    class MyOptions(Options):
        epochs: Count = 12
        \"\"\"Passes over the training set.\"\"\"
        dim: Count = 48
        heads: Count = 6

        def rules(self) -> Iterator[hpo.UsageError]:        # what depends on several options
            yield from super().rules()
            yield from divisor("dim", self.dim, heads=self.heads)

``MyOptions(epochs=0)`` raises UsageError that names option, value, rule and remedy, with a line for each wrong option.
The command line of ``search_spaces.standalone`` and its help are made from the same fields and the texts under them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator

import hpo
from hpo.spelling import suggestion


def _none_or_several(folds: int) -> int:
    if folds != 0 and folds < 2:
        raise ValueError("0 or at least 2")
    return folds


Count = Annotated[int, Field(ge=1)]
FromZero = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(gt=0, lt=1)]
FromZeroBelowOne = Annotated[float, Field(ge=0, lt=1)]
Precision = Literal["fp32", "tf32", "bf16"]
# Start of a cosine: at the end of the warm-up, or, as timm's by default, at the run's start.
CosineForm = Literal["after-warm-up", "timm"]
Folds = Annotated[int, AfterValidator(_none_or_several)]


class Options(BaseModel):
    """Keywords of a ``make_task``. UsageError lists all wrong options, and, if each is right by itself, all broken
    ``rules``.
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
            raise hpo.UsageError(refusals(error, type(self).model_fields)) from None
        rules: Iterator[hpo.UsageError] | None = self.rules()
        if rules is None:
            raise hpo.UsageError(
                f"{type(self).__name__}.rules returns None: must yield errors. Write yield from super().rules()."
            )
        if broken := [str(error) for error in rules]:
            raise hpo.UsageError("\n".join(broken))

    @field_validator("*", mode="before")
    @classmethod
    def _as_plain(cls, value: object) -> object:
        # Values from a table of results may be numpy's.
        return value.item() if isinstance(value, np.generic) else value

    def rules(self) -> Iterator[hpo.UsageError]:
        """Broken rules that involve several options."""
        yield from ()

    @classmethod
    def describe(cls, name: str) -> str:
        """Text under the option, in its class or in the nearest base that has a text."""
        fields = (getattr(base, "__pydantic_fields__", {}).get(name) for base in cls.__mro__)
        texts = (field.description for field in fields if field is not None and field.description)
        return " ".join(next(texts, "").split())


def refusals(error: ValidationError, known: Iterable[str]) -> str:
    """A line for each wrong option of ``error``; ``known``: the names of all options."""
    lines: dict[str, str] = {}
    for found in error.errors():
        name = str(found["loc"][0])
        if found["type"] == "extra_forbidden":
            line = f"{name}: there is no such option. {suggestion(name, known)}"
        elif found["type"] == "missing":
            line = f"{name} is missing. Give it."
        else:
            rule = re.sub("^(Value error, |Input should be )", "", found["msg"])
            line = str(wrong(name, found["input"], rule))
        lines.setdefault(name, line)
    return "\n".join(lines.values())


def divisor(of: str, total: int, /, **options: int) -> Iterator[hpo.UsageError]:
    """Errors for ``options`` that do not divide ``total``, the option named ``of``."""
    for name, value in options.items():
        if total % value:
            yield wrong(name, value, f"a divisor of {of} = {total}")


def wrong(name: str, value: object, rule: str) -> hpo.UsageError:
    """Error for an option that breaks ``rule``, which may end with a remedy of its own."""
    remedy = "" if rule[-1] in ".?" else ". Correct it."
    return hpo.UsageError(f"{name} = {value!r}: must be {rule}{remedy}")


@contextmanager
def as_usage() -> Iterator[None]:
    """Turns what readers raise about missing or damaged data into UsageError."""
    try:
        yield
    except hpo.HpoError:
        raise
    except (OSError, EOFError, ValueError, ModuleNotFoundError) as error:
        raise hpo.UsageError(str(error)) from error
