"""What a campaign's options say of themselves: rules, a signature, a command line's help."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import pytest

import hpo
from search_spaces.options import Count, Folds, Options, Share, divisor


class Base(Options):
    epochs: Count
    """Passes over the training set."""
    part: Share = 0.5
    folds: Folds = 0
    name: Literal["a", "b"] = "a"
    most: Count | None = None


class Own(Base):
    epochs: Count = 12
    heads: Count = 6
    dim: Count = 48

    def rules(self) -> Iterator[hpo.UsageError]:
        yield from divisor("dim", self.dim, heads=self.heads)


def refusals(kind: type[Options] = Own, **given: Any) -> dict[str, str]:
    """The rest of each line of the refusal, by what it begins with."""
    with pytest.raises(hpo.UsageError) as raised:
        kind(**given)
    return dict(line.split(": ", 1) for line in str(raised.value).splitlines())


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({"epochs": 0}, "1"),
        ({"epochs": np.int64(0)}, "1"),
        ({"epochs": "one"}, "integer"),
        ({"most": 0}, "1"),
        ({"part": 1.5}, "less than 1"),
        ({"folds": 1}, "0 or at least 2"),
        ({"name": "c"}, "'a' or 'b'"),
        ({"heads": 5}, "divisor of dim = 48"),
    ],
)
def test_a_wrong_option_is_refused_with_value_rule_and_remedy(given: dict[str, Any], rule: str) -> None:
    ((name, value),) = given.items()
    plain = value.item() if isinstance(value, np.generic) else value
    ((said, sentence),) = refusals(**given).items()
    assert said == f"{name} = {plain!r}" and sentence.startswith("must be ") and rule in sentence
    assert sentence.endswith("Correct it.")


def test_all_wrong_options_are_refused_at_once_and_an_unknown_one_with_the_nearest() -> None:
    given = {"epochs": True, "part": float("nan"), "name": []}
    assert {*refusals(**given)} == {f"{name} = {value!r}" for name, value in given.items()}
    assert '"epochs"' in refusals(epoch=1)["epoch"]


def test_options_of_numpy_are_those_of_python() -> None:
    made = Own(epochs=np.int64(3), part=np.float64(0.25), name=np.str_("b"), most=np.int32(2))
    assert repr(made) == repr(Own(epochs=3, part=0.25, name="b", most=2))


def test_the_signature_and_the_help_are_the_model_s() -> None:
    with pytest.raises(hpo.UsageError, match="epochs is missing"):
        Base()
    signature = inspect.signature(Own)
    assert {name: one.default for name, one in signature.parameters.items()} == {
        "epochs": 12, "part": 0.5, "folds": 0, "name": "a", "most": None, "heads": 6, "dim": 48,
    }  # fmt: skip
    assert Own.describe("epochs") == "Passes over the training set."
    assert Own.describe("dim") == ""
