"""What a task returns or raises becomes a status; nothing that is not finite counts as a value."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpo.evaluation.conversation import EvaluationOver, answer_of, to_line
from hpo.task.outcome import TaskOutcome, alike, judge, summary_line
from hpo.task.trial import Trial, attempt


class Tensor:
    """Stands for a 0-d tensor: all that is known of one is ``item``."""

    def __init__(self, *elements: object) -> None:
        self.elements = elements

    def item(self) -> object:
        if len(self.elements) != 1:
            raise RuntimeError(f"a Tensor with {len(self.elements)} elements cannot be converted to Scalar")
        return self.elements[0]


@pytest.mark.parametrize(
    "returned",
    [0.5, np.float32(0.5), np.array(0.5), np.array([0.5]), Tensor(0.5), Fraction(1, 2), {"value": 0.5}],
)
def test_numbers_of_all_kinds_complete(returned: object) -> None:
    outcome = judge(returned, ("value",))
    assert (outcome.status, outcome.objectives, outcome.error) == ("completed", {"value": 0.5}, None)
    assert type(outcome.objectives["value"]) is float


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, np.float32("nan"), Tensor(math.nan), 10**400])
def test_not_finite_is_invalid(bad: object) -> None:
    for returned in (bad, {"value": bad, "epochs": 3}):
        outcome = judge(returned, ("value",))
        assert outcome.status == "invalid" and outcome.objectives is None and "'value' is" in outcome.error


@pytest.mark.parametrize(
    "bad",
    [None, "0.5", True, np.bool_(True), 1j, [0.5], (0.5, 0.5), np.zeros(3), Tensor(1, 2), object(), Decimal],
)
def test_wrong_type_fails_with_a_sentence(bad: object) -> None:
    for returned in (bad, {"value": bad}):
        outcome = judge(returned, ("value",))
        assert outcome.status == "failed" and outcome.objectives is None
        assert "None" in outcome.error if bad is None else type(bad).__name__ in outcome.error


def test_dictionary_holds_objectives_and_metrics() -> None:
    outcome = judge({"seconds": 3, "f1": 0.5, "note": "ok", "epochs": np.int64(7)}, ("f1", "seconds"))
    assert outcome.objectives == {"f1": 0.5, "seconds": 3.0} and list(outcome.objectives) == ["f1", "seconds"]
    assert outcome.metrics == {"note": "ok", "epochs": 7}


@pytest.mark.parametrize(
    ("returned", "objectives", "words"),
    [
        ({"valeu": 0.5}, ("value",), ["'value'", "Rename 'valeu' to 'value'."]),
        ({"f1": 0.5, "epochs": 3}, ("f1", "seconds"), ["'seconds'"]),
        (0.5, ("f1", "seconds"), ["0.5", "'f1', 'seconds'"]),
        (None, ("f1", "seconds"), ["None", "'f1', 'seconds'"]),
    ],
)
def test_what_lacks_an_objective_fails_with_its_name(
    returned: object, objectives: tuple[str, ...], words: list[str]
) -> None:
    outcome = judge(returned, objectives)
    assert outcome.status == "failed" and outcome.no_value and outcome.objectives is None
    assert all(word in outcome.error for word in words), outcome.error


@given(st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.floats())))
def test_whatever_is_returned_no_nan_gets_past(returned: object) -> None:
    for outcome in (judge(returned, ("value",)), judge({"value": returned, "extra": returned}, ("value",))):
        if outcome.status == "completed":
            assert outcome.objectives is not None and math.isfinite(outcome.objectives["value"])
        else:
            assert outcome.objectives is None and outcome.error
        again = answer_of(to_line(EvaluationOver(turn=1, outcome=outcome)))
        assert isinstance(again, EvaluationOver)
        assert (again.outcome.status, again.outcome.objectives) == (outcome.status, outcome.objectives)


def test_what_comes_from_a_process_is_refused_where_judge_would_refuse_it() -> None:
    line = to_line(EvaluationOver(turn=1, outcome=TaskOutcome(status="completed", objectives={"value": 1.5})))
    with pytest.raises(ValueError, match="not finite"):
        answer_of(line.replace(b"1.5", b"NaN"))
    with pytest.raises(ValueError, match="'finished' is no status"):
        answer_of(line.replace(b"completed", b"finished"))
    whole = json.loads(line)
    with pytest.raises(ValueError, match="at least length 1"):
        answer_of(json.dumps({**whole, "outcome": []}).encode())


def test_traceback_keeps_its_end_and_hides_our_frames(tmp_path: Path) -> None:
    def user(trial: Trial) -> float:
        raise ValueError("y" * 20_000)

    outcome = attempt(user, Trial.alone({}, directory=tmp_path), ("value",))
    assert outcome.status == "failed" and len(outcome.error) < 12_100 and outcome.error.endswith("yyy")

    def shorter(trial: Trial) -> float:
        raise ValueError("no such model")

    outcome = attempt(shorter, Trial.alone({}, directory=tmp_path), ("value",))
    assert "trial.py" not in outcome.error and "in shorter" in outcome.error
    assert outcome.error.endswith("ValueError: no such model")


def test_a_line_of_a_traceback_names_the_user_s_place(tmp_path: Path) -> None:
    module = tmp_path / "my_task.py"
    module.write_text("import json\ndef evaluate(trial):\n    json.loads('{')\n    return 1.0\n")
    names: dict[str, Any] = {}
    exec(compile(module.read_text(), str(module), "exec"), names)
    failed = attempt(names["evaluate"], Trial.alone({}, directory=tmp_path / "own"), ("value",))
    assert summary_line(failed.error or "").startswith(
        "json.decoder.JSONDecodeError: Expecting property name"
    )
    assert summary_line(failed.error or "").endswith(" (my_task.py, line 3)")
    judged = attempt(lambda trial: "no", Trial.alone({}, directory=tmp_path / "own"), ("value",))
    assert ", line" not in summary_line(judged.error or "")
    assert summary_line("y" * 150 + "x" * 151) == f"{'y' * 150} … {'x' * 147}", "remedies stand at the end"


def test_numbers_do_not_tell_errors_apart() -> None:
    shapes = ("shapes cannot be multiplied (32x8 and 9x6)", "shapes cannot be multiplied (32x39 and 40x6)")
    assert alike(shapes[0]) == alike(shapes[1]) != alike("KeyError: 'lr'") != alike("KeyError: 'width'")
    assert alike("returned '0.7367' of type str") == alike("returned '1.2e-05' of type str")
