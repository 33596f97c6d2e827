"""The map between values and genes is exact, and definitions that cannot be are refused with a remedy."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from refusals import refused

import hpo
from hpo.errors import UsageError
from hpo.space.parameters import Categorical, Ordinal, Parameter
from hpo.space.ranges import Float, Int
from hpo.space.space import described_space

SPACE = hpo.SearchSpace(x=Float(0.0, 1.0))
TASK = hpo.Task(SPACE, lambda trial: 0.0)

GENES = st.one_of(
    st.floats(0.0, 1.0),
    st.floats(-1e308, 1e308),
    st.sampled_from([0.0, -0.0, 1.0, 5e-324, 1 - 2**-53, 2**-53, 0.5]),
)


def same(one: object, other: object) -> bool:
    """Equal in value, type and sign of zero."""
    return type(one) is type(other) and repr(one) == repr(other)


def survives(parameter: Parameter, value: object) -> bool:
    """Whether a value comes back from its gene exactly."""
    gene = parameter.encoder()(value)
    low, high = parameter.limits
    return low <= gene <= high and same(parameter.decoder()(gene), value)


def built(kind: Callable[..., Parameter], *arguments: object, **keywords: object) -> Parameter:
    """The parameter, or another example where the definition is one of those refused."""
    try:
        return kind(*arguments, **keywords)
    except UsageError:
        assume(False)
        raise


@st.composite
def linear_floats(draw: st.DrawFn) -> Float:
    offset = draw(st.one_of(st.just(0.0), st.floats(-1e15, 1e15), st.floats(-1e300, 1e300)))
    width = draw(st.floats(1.0, 10.0)) * 10.0 ** draw(st.integers(-310, 299))
    parameter = built(Float, offset, offset + width)
    assert isinstance(parameter, Float)
    return parameter


@st.composite
def log_floats(draw: st.DrawFn) -> Float:
    low = draw(st.floats(1.0, 10.0)) * 10.0 ** draw(st.integers(-300, 299))
    ratio = draw(
        st.one_of(st.floats(1.0, 10.0), st.floats(1.0, 10.0).map(lambda exponent: 10.0 ** (30 * exponent)))
    )
    parameter = built(Float, low, min(low * ratio, 1e300), log=True)
    assert isinstance(parameter, Float)
    return parameter


FLOATS = st.one_of(
    linear_floats(),
    log_floats(),
    st.sampled_from(
        [
            Float(1e-300, 1e300, log=True),
            Float(-1e300, 1e300),
            Float(-1e15, 1e15),
            Float(0.0, 1e-12),
            Float(0.0, 1e-310),
            Float(1e15, 1e15 + 2**20),
            Float(-1 - 2**-30, -1),
            Float(-1.0, 1e-20),
            Float(0.4999999999999, 1.4999999999999),
            Float(math.pi, 10 * math.pi, log=True),
            Float(1.0, 1.000002, log=True),
            Float(1e-300, 1 + 2**-52, log=True),
            Float(1 - 2**-53, 1e300, log=True),
        ]
    ),
)


@given(FLOATS, GENES)
def test_what_a_float_decodes_to_comes_back_exactly(parameter: Float, gene: float) -> None:
    value = parameter.decoder()(gene)
    assert parameter.low <= value <= parameter.high
    assert survives(parameter, value)
    assert same(parameter.canonical(value), value)


@given(FLOATS, st.floats(0.0, 1.0))
def test_a_given_float_moves_by_less_than_a_step_and_comes_back_exactly(parameter, part):
    low, high = parameter.low, parameter.high
    given_value = min(max(low + part * (high - low), low), high)
    value = parameter.canonical(given_value)
    assert survives(parameter, value)
    if parameter.log:
        assert value == pytest.approx(given_value, rel=5.1e-12, abs=0.0)
    else:
        assert abs(value - given_value) <= 1.01e-12 * (high - low) + math.ulp(max(abs(low), abs(high)))


@given(FLOATS)
def test_the_ends_of_a_range_stay_as_given(parameter: Float) -> None:
    decode, encode = parameter.decoder(), parameter.encoder()
    for gene, end in ((0.0, parameter.low), (1.0, parameter.high)):
        assert same(decode(gene), end)
        assert encode(end) == (gene if parameter.low < parameter.high else parameter.neutral)
        assert same(parameter.canonical(end), end)


@pytest.mark.parametrize(
    ("parameter", "values"),
    [
        (Int(32, 160, step=32), [32, 64, 96, 128, 160]),
        (Int(1, 10, step=4), [1, 5, 9]),
        (Int(3, 9, step=7), [3]),
        (Float(0.1, 0.5, step=0.1), [0.1, 0.2, 0.3, 0.4, 0.5]),
        (Float(-1, 1, step=0.75), [-1.0, -0.25, 0.5]),
        (Float(0, 1, step=1 / 3), [0.0, 0.3333333333333, 0.6666666666667, 1.0]),
        (Float(1e-3, 4e-3, step=1e-3), [1e-3, 2e-3, 3e-3, 4e-3]),
        (Float(0.6, 0.7 + 0.1, step=0.1), [0.6, 0.7, 0.7 + 0.1]),
        (Int(10**12, 10**12 + 5, step=2), [10**12, 10**12 + 2, 10**12 + 4]),
    ],
)
def test_a_range_with_steps_ends_at_its_last_value(parameter: Float | Int, values: list[float]) -> None:
    assert [*parameter.values()] == values and parameter.count == len(values)
    assert (parameter.low, parameter.high) == (values[0], values[-1])
    assert all(survives(parameter, one) and same(parameter.canonical(one), one) for one in values)
    decoded = [parameter.decoder()((place + 0.5) / 400) for place in range(400)]
    assert sorted({*decoded}) == values
    assert {decoded.count(one) for one in values} <= {400 // len(values), -(-400 // len(values))}
    with pytest.raises(
        ValueError, match=f"in steps of {parameter.step!r}" if len(values) > 1 else "number from"
    ):
        parameter.canonical(values[0] + (1 if isinstance(parameter, Int) else (parameter.step or 0.0) / 7))
    described = hpo.SearchSpace(x=parameter).describe()
    assert described_space(described).parameters["x"] == parameter
    assert "step" not in Int(1, 8).describe() and "step" not in Float(0, 1).describe()


@given(
    st.floats(-1e6, 1e6),
    st.floats(1e-4, 1e4),
    st.integers(0, 3000),
    st.sampled_from([0.0, 0.3]),
    st.floats(0, 1),
)
def test_values_in_steps_come_back_exactly(
    low: float, step: float, number: int, more: float, gene: float
) -> None:
    parameter = built(Float, low, low + (number + more) * step, step=step)
    assert parameter.count == number + 1
    value = parameter.decoder()(gene)
    assert survives(parameter, value) and same(parameter.canonical(value), value)
    assert value == pytest.approx(low + round((value - low) / step) * step, abs=1e-9 * step)


def test_float_values_have_no_negative_zero() -> None:
    parameter = Float(-1.0, 1.0)
    assert same(parameter.decoder()(0.5 - 1e-14), 0.0)
    assert same(Float(-0.0, 1.0).low, 0.0)
    assert same(parameter.canonical(-0.0), 0.0)


@pytest.mark.parametrize("parameter", [Float(0, 7), Float(0.1, 7, log=True), Int(0, 7), Int(1, 7, log=True)])
def test_genes_are_numbers_also_numpys(parameter: Parameter) -> None:
    decode = parameter.decoder()
    for gene in (0.0, 0.3, 1.0):
        assert same(decode(np.float64(gene)), decode(gene))
        assert same(decode(np.float32(gene)), decode(float(np.float32(gene))))
    with pytest.raises(ValueError, match="nan"):
        decode(math.nan)


@st.composite
def ints(draw: st.DrawFn) -> Int:
    if draw(st.booleans()):
        low, high = sorted(draw(st.lists(st.integers(1, 2**40), min_size=2, max_size=2)))
        return Int(low, high, log=True)
    low = draw(st.integers(-(2**53), 2**53))
    return Int(low, min(low + draw(st.integers(0, 2**50 - 1)), 2**53))


@given(ints(), st.data())
@example(Int(1, 2**40, log=True), None)
@example(Int(-(2**49), 2**49 - 1), None)
@example(Int(2**53 - 2**50 + 1, 2**53), None)
def test_every_int_comes_back_exactly(parameter: Int, data: st.DataObject | None) -> None:
    low, high = parameter.low, parameter.high
    values = {low, min(low + 1, high), (low + high) // 2, max(high - 1, low), high}
    if data is not None:
        values.add(data.draw(st.integers(low, high)))
        decoded = parameter.decoder()(data.draw(GENES))
        assert isinstance(decoded, int)
        values.add(decoded)
    for value in values:
        assert survives(parameter, value), value
        assert same(parameter.canonical(value), value)


def test_the_cells_of_a_linear_int_are_equal() -> None:
    parameter = Int(-2, 4)
    counts = [0] * 7
    for step in range(7000):
        counts[int(parameter.decoder()((step + 0.5) / 7000)) + 2] += 1
    assert counts == [1000] * 7


def test_the_cell_of_a_logarithmic_int_is_its_share_of_the_logarithm() -> None:
    parameter = Int(1, 100, log=True)
    decode, steps = parameter.decoder(), 200_000
    counts = dict.fromkeys(range(1, 101), 0)
    for step in range(steps):
        counts[int(decode((step + 0.5) / steps))] += 1
    width = math.log(100.5 / 0.5)
    for value, count in counts.items():
        assert count / steps == pytest.approx(math.log((value + 0.5) / (value - 0.5)) / width, abs=2 / steps)


def test_a_logarithmic_float_spreads_over_magnitudes() -> None:
    parameter = Float(1e-4, 1.0, log=True)
    assert [parameter.decoder()(quarter / 4) for quarter in range(5)] == [1e-4, 1e-3, 1e-2, 1e-1, 1.0]


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**53), 2**53),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(),
)


@given(st.lists(SCALARS, min_size=1, max_size=8), GENES, st.sampled_from([Categorical, Ordinal]))
def test_every_choice_comes_back_exactly(choices: list[str], gene: float, kind: type[Categorical]) -> None:
    parameter = built(kind, *choices)
    for choice in choices:
        canonical = parameter.canonical(choice)
        assert survives(parameter, canonical)
        assert same(canonical, choice) or canonical == 0.0
    value = parameter.decoder()(gene)
    assert survives(parameter, value)


def test_a_choice_is_met_by_its_own_kind_only() -> None:
    assert same(Categorical(0.5, 1.0).canonical(1), 1.0)
    assert same(Categorical(np.int64(3), np.float64(0.5), np.str_("a")).choices[0], 3)
    for parameter, value in ((Categorical(1, 2), True), (Categorical(True, False), 1), (Categorical("1"), 1)):
        with pytest.raises(ValueError, match=repr(parameter.choices[0])):
            parameter.canonical(value)


OUTSIDE = [
    True,
    "0.5",
    None,
    math.nan,
    math.inf,
    10**400,
    [0.5],
    np.zeros(3),
    Fraction(10**400),
    np.timedelta64(1, "s"),
]


@pytest.mark.parametrize("value", OUTSIDE)
def test_a_range_takes_only_numbers_inside(value: object) -> None:
    for parameter, more in ((Float(0, 1), (1.0000001, -1)), (Int(0, 8), (1.0, 9, -1))):
        for wrong in (value, *more):
            with pytest.raises(ValueError, match=f"number from {parameter.low!r} to {parameter.high!r}"):
                parameter.canonical(wrong)


def test_a_float_takes_whole_numbers_and_numpys() -> None:
    assert same(Float(0, 10).canonical(3), 3.0)
    assert same(Float(0, 10).canonical(np.float32(0.5)), 0.5)
    assert same(Int(0, 10).canonical(np.int64(3)), 3)


@pytest.mark.parametrize(
    ("define", "words"),
    [
        (lambda: Float(0.1, 0.01), ["Float(0.1, 0.01)", "Write Float(0.01, 0.1)"]),
        (lambda: Float(1.0, 0.1, log=True), ["1.0, 0.1", "Write Float(0.1, 1.0, log=True)"]),
        (lambda: Float(0, 0, log=True), ["Float(0, 0, log=True)", "low > 0", "drop log=True"]),
        (lambda: Float(-1, 1, log=True), ["Float(-1, 1, log=True)", "low > 0", "Raise low"]),
        (lambda: Float(1e-310, 1, log=True), ["1e-310", "1e-300", "Raise low"]),
        (lambda: Float(1, 1.0000001, log=True), ["1.0000001", "1.000001", "Drop log=True"]),
        (lambda: Float(1e15, 1e15 + 1), ["1000000000000001.0", "add low in the task"]),
        (lambda: Float(math.nan, 1), ["Float(nan, 1)", "low", "0.1"]),
        (lambda: Float(0, math.inf), ["not inf", "high", "0.1"]),
        (lambda: Float(0, 1e301), ["1e+301", "1e300"]),
        (lambda: Float(0, 10**400), ["high", "1e300"]),
        (lambda: Float(False, 1), ["not False", "low"]),
        (lambda: Float("0", 1), ["not '0'", "low"]),
        (lambda: Float(0, 1, log=1), ["not 1", "log"]),
        (lambda: Int(3, 1), ["Int(3, 1)", "Write Int(1, 3)"]),
        (lambda: Int(0, 8, log=True), ["Int(0, 8, log=True)", "low >= 1", "Raise low"]),
        (lambda: Int(1, 2**41, log=True), ["log=True", "2**40", "use Float"]),
        (lambda: Int(0, 2**50), ["Int(0, ", "2**50", "Narrow"]),
        (lambda: Int(0, 2**53 + 1), ["9007199254740993", "2**53", "Use Float"]),
        (lambda: Int(0.0, 8), ["not 0.0", "low", "Use Float"]),
        (lambda: Int(False, 8), ["not False", "low"]),
        (lambda: Categorical(), ["Categorical()", 'Write Categorical("a", "b")']),
        (lambda: Ordinal([1, 2]), ["Ordinal([1, 2])", "Ordinal(*choices)"]),
        (lambda: Categorical("a", "b", "a"), ["'a' equals 'a'", "Remove one"]),
        (lambda: Categorical(1, True), ["True equals 1", "as strings"]),
        (lambda: Ordinal(1, 1.0), ["1.0 equals 1", "as strings"]),
        (lambda: Categorical(math.nan), ["not nan", "Choose by a name"]),
        (lambda: Categorical(2**60), ["1152921504606846976", "2**53", "Choose by a name"]),
        (lambda: Categorical(Fraction(10**400)), ["Fraction", "Choose by a name"]),
        (lambda: Categorical(print, len), ["built-in function print", "look it up in the task"]),
        (lambda: Categorical("\ud800"), ["'\\ud800'", "Choose by a name"]),
        (lambda: Int(0, 1, when="sgd"), ["when='sgd'", 'when={"optimizer": "sgd"}']),
        (lambda: Int(0, 1, when={}), ["when={}", 'when={"optimizer": "sgd"}']),
        (lambda: Int(0, 1, when={"a": ()}), ["'a'", "drop the condition"]),
        (lambda: Int(1, 10, step=2, log=True), ["step=2", "log=True", "Drop one"]),
        (lambda: Int(0, 10, step=0), ["step must be above 0", "not 0"]),
        (lambda: Int(0, 10, step=1.5), ["step must be a whole number", "1.5"]),
        (lambda: Int(0, 10, step=1.0), ["step must be a whole number", "1.0"]),  # type: ignore[arg-type]
        (lambda: Int(0, 10, step=True), ["step must be a whole number", "True"]),
        (lambda: Float(0, 1, step=-0.1), ["step must be above 0", "-0.1"]),
        (lambda: Float(0, 1, step=math.nan), ["step must be a finite number"]),
        (lambda: Float(0, 1, step=1e-13), ["step=1e-13 is too small"]),
        (lambda: Float(1e12, 1e12 + 9999, step=500), ["step=500.0 is too small"]),
        (lambda: Float(0, 1, logs=True), ["'logs'", '"log"']),
        (lambda: Float(0), ["'high'", "Write Float("]),
        (lambda: Int(0, 1, True), ["Int", "positional"]),
        (lambda: Ordinal(1, 2, wen={"x": 1}), ["Ordinal", "'wen'", '"when"']),
        (lambda: hpo.SearchSpace(1, 2), ["SearchSpace", "positional"]),
        (lambda: hpo.Task(SPACE, print, metric="f1"), ["'metric'", "evaluate returns the value itself"]),
        (lambda: hpo.Task(SPACE, print, objective={}), ["'objective'", '"objectives"']),
        (lambda: hpo.Task(SPACE), ["'evaluate'"]),
        (lambda: hpo.Task(SPACE, print, "minimize", objectives={"f1": "maximize"}), ["Remove direction"]),
        (lambda: hpo.Task(SPACE, print, "maximize", objectives={"f1": "maximize"}), ["Remove direction"]),
        (lambda: hpo.Campaign(TASK), ["'directory'"]),
        (lambda: hpo.Campaign(TASK, "run"), ["Campaign", "positional"]),
        (lambda: hpo.Campaign(TASK, directory="run", evaluatons=3), ["evaluatons", '"evaluations"']),
        (lambda: hpo.Search(), ["'space'"]),
        (lambda: hpo.Search(SPACE, sed=1), ["sed", '"seed"']),
    ],
)
def test_definitions_that_cannot_be(define: Callable[[], object], words: list[str]) -> None:
    refused(define, *words)


def test_parameters_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Float(0, 1).low = 3.0


@pytest.mark.parametrize("value", [1, 0.0, -0.0, -2.5, 1e300, 5e-324])
@pytest.mark.parametrize("log", [False, True])
def test_a_range_may_be_one_value(value: float, log: bool) -> None:
    if log and value < 1e-300:
        return
    parameter = Float(value, value, log=log)
    assert same(parameter.low, float(value) + 0.0) and parameter.count == 1
    assert list(parameter.values()) == [parameter.low]
    assert same(parameter.canonical(value), parameter.low) and survives(parameter, parameter.low)
    for gene in (0.0, 0.3, 1.0, -7.0, math.inf):
        assert same(parameter.decoder()(gene), parameter.low)
    with pytest.raises(ValueError, match="a gene must be a number"):
        parameter.decoder()(math.nan)


@pytest.mark.parametrize("choices", [(8, 4, 16), (1.0, 3, 2), (3, 1, 2)])
def test_numbers_in_order_ascend_or_descend(choices: tuple[float, ...]) -> None:
    refused(lambda: Ordinal(*choices), f"Write Ordinal({', '.join(map(repr, sorted(choices)))})")
    for order in sorted(choices), sorted(choices, reverse=True):
        assert list(Ordinal(*order).choices) == order
    assert Ordinal(*map(str, choices)).choices == tuple(map(str, choices))
    assert Ordinal(*choices, "auto").choices == (*choices, "auto")
    assert Categorical(*choices).choices == choices
