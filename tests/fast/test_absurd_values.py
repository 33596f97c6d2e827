"""Values that nobody means, everywhere a user can write one: taken and harmless, or refused in sentences."""

from __future__ import annotations

import decimal
import fractions
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hpo
from hpo import cli
from hpo.config import reader as config
from hpo.config.settings import SearchSettings
from hpo.errors import UsageError
from hpo.evaluation.conversation import EvaluationOver, to_line
from hpo.task.outcome import judge

LONGEST_LINE = 1500
TEN_YEARS_S = 3650 * 86400.0

# What numpy 2.5 says when its numbers are compared with such ones; it is harmless.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The 'generic' unit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning"),
]
sweep = settings(
    max_examples=5 * settings.default.max_examples,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
"""Many pairs of a place and a value: each place is met by a few values, and nightly by many."""


def nested(depth: int) -> object:
    value: object = 1
    for number in range(depth):
        value = [value] if number % 2 else {"a": value}
    return value


VALUES: list[object] = [
    *(10**40, -(2**63) - 1, 2**53 + 1, 10**5000, 0, -1, 1e308, math.nan, -math.inf, 0.5, 1 + 2j),
    *(True, None, b"x", object(), float, "", "5", "99999999999d", "1e999s", "٣", "\ud800", "\0"),
    *("x" * 10_000, decimal.Decimal("NaN"), fractions.Fraction(-(10**4000)), numpy.int64(5)),
    *(numpy.float64("nan"), numpy.bool_(True), numpy.arange(300), numpy.timedelta64(5, "s")),
    *([], {}, [10**5000], (10**40,), ["\ud800"], [None], {"a": math.nan}, {1: 2}, [{"x": 10**40}]),
    *([{"params": {"x": 0.5}, "value": math.nan}], nested(60)),
]
TOML = [
    *(f"1{'0' * 40}", str(2**63), f"1{'0' * 5000}", "0", "-1", "1e999", "nan", "-inf", "true", '""'),
    *('"5"', "{}", '"99999999999d"', f'"{"x" * 10_000}"', "2020-01-01", "[]", "[[1, 1e40]]"),
    *(f"{{ a = 1{'0' * 40} }}", f"[{{ x = 1{'0' * 40} }}]", "[" * 5000 + "]" * 5000),
]
TEXTS = [f"1{'0' * 40}", "9" * 5000, "0", "-1", "1e300", "nan", "True", "", "[1]", "x" * 10_000]
VALUE = st.one_of(st.sampled_from(VALUES), st.integers(), st.floats(), st.text(), st.lists(st.integers()))


def check(call: Callable[[object], object], value: object) -> None:
    """``call`` returns, or refuses in sentences."""
    try:
        call(value)
    except UsageError as error:
        lines = str(error).splitlines()
        assert lines and all(line.strip() and len(line) <= LONGEST_LINE for line in lines)


# --- settings -------------------------------------------------------------------------------------------------------

KEYS = [(section, key) for section, rules in config._RULES.items() for key in rules]


def harmless(settings: config.Settings) -> None:
    """It can be sent and written, its numbers are such as can be, and nothing lasts for ever."""
    msgspec.json.encode(settings.model_dump(mode="json"))
    layout, evaluation = settings.layout, settings.evaluation
    assert layout.islands <= 10**6 and layout.ranks_per_worker <= 10**6
    durations = (settings.deadline_s, evaluation.timeout_s, evaluation.grace_s, settings.logging.every_s)
    assert all(seconds is None or 0 <= seconds <= TEN_YEARS_S for seconds in durations)


@sweep
@given(place=st.sampled_from(KEYS), text=st.sampled_from(TOML))
def test_every_key_of_a_file(tmp_path: Path, place: tuple[str, str], text: str) -> None:
    path, (section, key) = tmp_path / "c.toml", place

    def read(text: object) -> None:
        least = {"task": '"task.py:task"', "directory": '"run"', "evaluations": "5"}
        least.pop("" if section else key, None)
        lines = [f"{name} = {value}" for name, value in least.items()]
        own = [f"{key} = {text}"]
        path.write_text("\n".join([*lines, f"[{section}]", *own] if section else [*own, *lines]))
        harmless(config.read_file(path))

    check(read, text)


def evaluate(trial: hpo.Trial) -> float:
    for step in 1, 2, 3:
        trial.report(step, float(trial.params["x"] or 0))
    return float(trial.params["x"] or 0)


SPACE = hpo.SearchSpace(
    x=hpo.Float(0.0, 1.0), n=hpo.Int(1, 8), c=hpo.Categorical("a", 2, None), o=hpo.Ordinal(1, 2.5)
)
POINT: dict[str, object] = {"x": 0.5, "n": 3, "c": "a", "o": 1}
TASK = hpo.Task(SPACE, evaluate)


# --- the command line -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds a campaign of five evaluations in run/, and its file."""
    folder = tmp_path_factory.mktemp("campaign")
    (folder / "task.py").write_text(
        "import hpo\ntask = hpo.Task(hpo.SearchSpace(x=hpo.Float(0, 1)), lambda trial: trial.params['x'])\n"
    )
    (folder / "c.toml").write_text('task = "task.py:task"\ndirectory = "run"\nevaluations = 5\n')
    hpo.Campaign(TASK, directory=folder / "run", evaluations=5, isolation="inline").run()
    return folder


def options() -> Iterator[tuple[str, ...]]:
    """All that take a number, each with its command; FOLDER stands for the campaign's."""
    yield "run", "c.toml", "--ranks"
    yield "best", "run", "--top"
    yield "best", "run", "--json", "--top"
    for name in ("nodes", "gpus-per-node", "ntasks-per-node"):
        nodes, cpus = ["--nodes=2"] * (name != "nodes"), ["--cpus-per-task=4"] * name.startswith("gpus")
        yield "slurm", "c.toml", "--dry-run", *nodes, *cpus, f"--{name}"


@sweep
@given(line=st.sampled_from([*options()]), text=st.sampled_from(TEXTS))
def test_every_number_on_the_command_line(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    line: tuple[str, ...],
    text: str,
) -> None:
    monkeypatch.chdir(folder)

    def command(text: object) -> None:
        try:
            code = cli.main([*line[:-1], f"{line[-1]}={text}"])
        except SystemExit as ended:
            code = int(ended.code or 0)
        told = capsys.readouterr()
        assert code in (0, 2) and (code == 0) is (told.err == ""), told.err
        assert code == 2 or line[0] != "run", "no such number of ranks is meant"
        assert all(len(one) <= LONGEST_LINE for one in told.err.splitlines())

    check(command, text)


# --- Python ---------------------------------------------------------------------------------------------------------


def hashable(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def asked(told: object = None, **keywords: object) -> hpo.Search:
    search = hpo.Search(SPACE, kind="random", **keywords)
    search.tell(search.ask(), told)
    return search


def points(result: object = 1.0, **keywords: object) -> object:
    return hpo.known_points([{**POINT, "value": result}], SPACE, **keywords)


def from_keywords(**given: object) -> None:
    harmless(config.from_keywords(**{"directory": "run", "evaluations": 5, **given}))


PLACES: list[Callable[[object], object]] = [
    lambda v: hpo.Float(v, 1.0),
    lambda v: hpo.Float(0.0, v),
    lambda v: hpo.Float(1.0, 2.0, log=v),
    lambda v: hpo.Float(0.0, 1.0, when=v),
    lambda v: hpo.SearchSpace(n=hpo.Int(0, 3), x=hpo.Float(0, 1, when={"n": v})),
    lambda v: hpo.Int(v, 1),
    lambda v: hpo.Int(0, v),
    lambda v: hpo.Categorical(v, "b"),
    lambda v: hpo.Ordinal(1, v),
    lambda v: hpo.SearchSpace(v),
    lambda v: hpo.SearchSpace({v if hashable(v) else "x": hpo.Int(0, 1)}),
    lambda v: hpo.Task(v, evaluate),
    lambda v: hpo.Task(SPACE, v),
    lambda v: hpo.Task(SPACE, evaluate, v),
    lambda v: hpo.Task(SPACE, evaluate, objectives=v),
    lambda v: hpo.Task(SPACE, evaluate, constraints=v),
    lambda v: hpo.Task(SPACE, evaluate, default=v),
    lambda v: hpo.Task(SPACE, evaluate, default={**POINT, v: 1} if hashable(v) else POINT),
    lambda v: hpo.Task(SPACE, evaluate, points=v),
    lambda v: hpo.Task(SPACE, evaluate, points=[v]),
    lambda v: hpo.Campaign(v, directory="run", evaluations=1),
    lambda v: hpo.Campaign.from_file(v if isinstance(v, (str, Path)) and v else 5),
    lambda v: hpo.Search(v),
    lambda v: hpo.Search(SPACE, v),
    lambda v: asked(seed=v),
    lambda v: asked(constraints=v),
    lambda v: asked(v),
    lambda v: hpo.Search(SPACE).tell(v, 1.0),
    lambda v: hpo.Search(SPACE).enter(v, 1.0),
    lambda v: hpo.Search(SPACE).enter({**POINT, v: 1} if hashable(v) else POINT, 1.0),
    lambda v: hpo.Search(SPACE).enter(POINT, v),
    lambda v: points(v),
    lambda v: hpo.known_points([v], SPACE),
    lambda v: hpo.known_points([], v),
    lambda v: points(objectives=v),
    lambda v: points(default=v),
    lambda v: None if callable(v) else points(allows=v),
    lambda v: points(unknown=v),
    lambda v: points(columns=v),
    lambda v: points(study=v),
    lambda v: hpo.Trial.alone(v),
    lambda v: hpo.Trial.alone({}, directory=v),
    lambda v: isinstance(v, numpy.bool_) or hpo.Trial.alone(POINT).report(v, 1.0),
    lambda v: hpo.Trial.alone(POINT).report(1, v),
    lambda v: msgspec.json.encode(hpo.Trial.alone(POINT).log(a=v)),
    lambda v: hpo.Result(v),
    lambda v: judge({"value": v}, ["value"]),
    lambda v: to_line(EvaluationOver(turn=1, outcome=judge({"value": 1.0, "m": v}, ["value"]))),
    *(lambda v, key=key: from_keywords(**{key: v}) for key in config.KEYWORDS),
    *(lambda v, key=key: from_keywords(island=[{key: v}]) for key in SearchSettings.model_fields),
    *(
        lambda v, key=key: hpo.Search(SPACE, **{"kind": "grid", key: v}).ask()
        for key in SearchSettings.model_fields
    ),
    *(lambda v, name=name: hpo.Task(SPACE, evaluate, default={**POINT, name: v}) for name in POINT),
    *(lambda v, name=name: hpo.Task(SPACE, evaluate, points=[{**POINT, name: v}]) for name in POINT),
    *(lambda v, name=name: hpo.Search(SPACE).enter({**POINT, name: v}, 1.0) for name in POINT),
    *(lambda v, name=name: hpo.known_points([{**POINT, "value": 1.0, name: v}], SPACE) for name in POINT),
]
"""Every place in Python that takes a value from a user."""


@pytest.mark.parametrize("part", range(10))
@sweep
@given(data=st.data(), value=VALUE)
def test_every_place_in_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int, data: st.DataObject, value: object
) -> None:
    monkeypatch.chdir(tmp_path)
    number = data.draw(st.sampled_from(range(part, len(PLACES), 10)))
    check(PLACES[number], value)


def test_results_of_a_campaign(tmp_path: Path) -> None:
    task = hpo.Task(
        hpo.SearchSpace(x=hpo.Float(0.0, 1.0)),
        lambda trial: {"a": trial.params["x"], "b": -trial.params["x"]},
        objectives={"a": "minimize", "b": "minimize"},
    )
    result = hpo.Campaign(task, directory=tmp_path / "run", evaluations=4, isolation="inline").run()
    for value in VALUES:
        check(result.hypervolume, value)
        check(lambda value: result.hypervolume({"a": value, "b": 1.0}), value)
        with suppress(hpo.CampaignError):  # four evaluations are too few for the importance
            check(result.importance, value)
