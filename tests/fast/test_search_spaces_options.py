"""What a campaign's options say of themselves: rules, a signature, a command line's help."""

from __future__ import annotations

import inspect
from typing import Any, Literal

import numpy as np
import pytest

import hpo
from search_spaces.options import Count, Folds, NotNegative, Options, Share, divisor, rule_of


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

    def rules(self) -> None:
        divisor("dim", self.dim, heads=self.heads)


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        (Count, "a whole number of at least 1"),
        (Count | None, "a whole number of at least 1, or left out"),
        (Share, "a number above 0 and below 1"),
        (NotNegative, "a number of at least 0"),
        (Folds, "0, or a whole number of at least 2"),
        (Literal["a", "b"], "'a' or 'b'"),
        (bool, "true or false"),
    ],
)
def test_a_rule_is_read_off_the_annotation(kind: Any, rule: str) -> None:
    assert rule_of(kind) == rule


@pytest.mark.parametrize(
    ("given", "lines"),
    [
        ({"epochs": 0}, ["epochs = 0: must be a whole number of at least 1. Correct it."]),
        (
            {"epochs": True, "part": float("nan"), "name": []},
            [
                "epochs = True: must be a whole number of at least 1. Correct it.",
                "part = nan: must be a number above 0 and below 1. Correct it.",
                "name = []: must be 'a' or 'b'. Correct it.",
            ],
        ),
        ({"heads": 5}, ["heads = 5: must be a divisor of dim = 48. Correct it."]),
        (
            {"epoch": 1},
            ["epoch: there is no such option. There are epochs, part, folds, name, most, heads, dim."],
        ),
    ],
)
def test_all_wrong_options_are_reported_together(given: dict[str, Any], lines: list[str]) -> None:
    with pytest.raises(hpo.UsageError) as raised:
        Own(**given)
    assert sorted(str(raised.value).splitlines()) == sorted(lines)


def test_options_of_numpy_are_those_of_python() -> None:
    made = Own(epochs=np.int64(3), part=np.float64(0.25), name=np.str_("b"), most=np.int32(2))
    assert repr(made) == repr(Own(epochs=3, part=0.25, name="b", most=2))
    with pytest.raises(hpo.UsageError, match=r"^epochs = 0: must be a whole number of at least 1"):
        Own(epochs=np.int64(0))


def test_an_option_without_a_default_is_asked_for() -> None:
    with pytest.raises(hpo.UsageError, match=r"^epochs is missing\. Give it\.$"):
        Base()


def test_the_signature_and_the_help_are_the_model_s() -> None:
    signature = Own.signature()
    assert {name: one.default for name, one in signature.parameters.items()} == {
        "epochs": 12, "part": 0.5, "folds": 0, "name": "a", "most": None, "heads": 6, "dim": 48,
    }  # fmt: skip
    assert all(one.kind is inspect.Parameter.KEYWORD_ONLY for one in signature.parameters.values())
    assert Own.describe("epochs") == "Passes over the training set."
    assert Own.describe("dim") == ""
