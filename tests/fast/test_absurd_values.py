"""Values that nobody means, everywhere a user can write one: taken and harmless, or refused in sentences."""

from __future__ import annotations

import decimal
import fractions
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec
import numpy
import pytest

import hpo
from hpo import cli
from hpo.campaign.definition import CampaignDefinition
from hpo.cluster import sbatch
from hpo.config import reader as config
from hpo.config.settings import SearchSettings
from hpo.errors import HpoError, UsageError
from hpo.evaluation.conversation import EvaluationOver, to_line
from hpo.task.outcome import judge
from hpo.text import excerpt

LONGEST_LINE = 1500
TEN_YEARS_S = 3650 * 86400.0


def nested(depth: int) -> object:
    value: object = 1
    for number in range(depth):
        value = [value] if number % 2 else {"a": value}
    return value


# What numpy 2.5 says when its numbers are compared with such ones; it is harmless.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The 'generic' unit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning"),
]

VALUES: list[object] = [
    *(10**40, -(10**40), 2**63, 2**64, -(2**63) - 1, 2**53 + 1, 10**5000, -(10**5000), 0, -1),
    *(1e300, 1e308, -1e308, math.nan, math.inf, -math.inf, -0.0, 5e-324, 0.5, 1 + 2j),
    *(True, False, None, b"x", object(), float),
    *("1e999", "", "5", "99999999999d", f"{'9' * 400}d", "1e999s", "٣", "\ud800", "\0", "x" * 10_000),
    *(decimal.Decimal(5), decimal.Decimal("NaN"), decimal.Decimal("1e999")),
    *(fractions.Fraction(10**4000), fractions.Fraction(-(10**4000)), fractions.Fraction(1, 10**4000)),
    *(numpy.int64(5), numpy.int64(-(2**63)), numpy.uint64(2**64 - 1), numpy.float32(3), numpy.float64("nan")),
    *(numpy.bool_(True), numpy.arange(300), numpy.array(3.0), numpy.timedelta64(5, "s"), numpy.longdouble(3)),
    *([], {}, [10**40], [[10**40]], [10**5000], (10**40,), [1e308], ["\ud800"], [None]),
    *({"a": 10**40}, {"a": math.nan}, {"a": 1e308}, {1: 2}, [{"x": 10**40}], [{"x": 10**5000}]),
    *([{"params": {"x": 10**40}, "value": 10**40}], [{"params": {"x": 0.5}, "value": math.nan}]),
    *(nested(40), nested(60), nested(3 * sys.getrecursionlimit())),
]

TOML = [
    *(
        f"1{'0' * 40}",
        f"-1{'0' * 40}",
        str(2**63),
        str(2**64),
        f"1{'0' * 5000}",
        "0",
        "-1",
        f"0x{'f' * 5000}",
    ),
    *("1e300", "1e308", "1e999", "nan", "inf", "-inf", "-0.0", "5e-324", "true", '"1e999"', '""', '"5"'),
    *('"99999999999d"', f'"{"9" * 400}d"', f'"{"x" * 10_000}"', "2020-01-01", "[]", "{}", "[[1, 1e40]]"),
    *(f"[1{'0' * 40}]", f"[[1{'0' * 40}]]", f"{{ a = 1{'0' * 40} }}", f"[{{ x = 1{'0' * 40} }}]"),
    *(
        "[" * 60 + "]" * 60,
        "[" * 5000 + "]" * 5000,
        "{a=" * 60 + "1" + "}" * 60,
        "{a=" * 5000 + "1" + "}" * 5000,
    ),
]

TEXTS = [
    *(f"1{'0' * 40}", f"-1{'0' * 40}", str(2**63), str(2**64), "9" * 5000, "0", "-1", "1e300", "nan", "inf"),
    *("-0.0", "True", "", "99999999999d", "[1]", "x" * 10_000, f"1-{'9' * 40}", f"{'9' * 40}-00:00:00"),
]


def problem(call: Callable[[], object]) -> str | None:
    """What is wrong with how ``call`` ends; None where it returns, or refuses in sentences."""
    try:
        call()
    except UsageError as error:
        lines = str(error).splitlines()
        if not lines or not all(line.strip() and len(line) <= LONGEST_LINE for line in lines):
            return f"told badly: {str(error)[:300]!r}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return None


def sweep(call: Callable[[object], object], values: list[object] = VALUES) -> None:
    found = {excerpt(value): told for value in values if (told := problem(lambda: call(value))) is not None}  # noqa: B023
    assert not found


# --- settings -------------------------------------------------------------------------------------------------------

KEYS = [(section, key) for section, rules in config._RULES.items() for key in rules]


def harmless(settings: config.Settings) -> None:
    """It can be sent and written, its numbers are such as can be, and nothing lasts for ever."""
    msgspec.json.encode(settings.model_dump(mode="json"))
    layout, evaluation, logging = settings.layout, settings.evaluation, settings.logging
    assert layout.islands <= 10**6 and layout.ranks_per_worker <= 10**6
    assert settings.search.grid_points <= 100_000
    for seconds in (
        *(settings.deadline_s, evaluation.timeout_s, evaluation.grace_s, evaluation.start_timeout_s),
        *(logging.every_s, logging.system_s),
    ):
        assert seconds is None or 0 <= seconds <= TEN_YEARS_S


@pytest.mark.parametrize("key", config.KEYWORDS)
def test_every_keyword(key: str) -> None:
    sweep(lambda value: harmless(config.from_keywords(**{"directory": "run", "evaluations": 5, key: value})))


@pytest.mark.parametrize("key", list(SearchSettings.model_fields))
def test_every_key_of_an_island(key: str) -> None:
    sweep(lambda value: harmless(config.from_keywords(directory="run", evaluations=5, island=[{key: value}])))


@pytest.mark.parametrize(("section", "key"), KEYS)
def test_every_key_of_a_file(tmp_path: Path, section: str, key: str) -> None:
    path = tmp_path / "c.toml"

    def read(text: object) -> None:
        least = {"task": '"task.py:task"', "directory": '"run"', "evaluations": "5"}
        least.pop("" if section else key, None)
        lines = [f"{name} = {value}" for name, value in least.items()]
        own = [f"{key} = {text}"]
        path.write_text("\n".join([*lines, f"[{section}]", *own] if section else [*own, *lines]))
        harmless(config.read_file(path))

    sweep(read, list(TOML))


@pytest.mark.parametrize("name", ["seed", "evaluations", "islands", "pool"])
def test_whole_numbers_of_numpy_are_whole_numbers(name: str) -> None:
    assert config.from_keywords(**{"directory": "run", "evaluations": 5, name: numpy.int64(7)}) == (
        config.from_keywords(**{"directory": "run", "evaluations": 5, name: 7})
    )


@pytest.mark.parametrize(
    ("keywords", "sentence"),
    [
        ({"evaluations": 10**40}, f"evaluations = {10**40}: must be a whole number from 1 to 2**53."),
        (
            {"evaluations": 10**5000},
            "evaluations = a whole number of 16610 bits: must be a whole number from",
        ),
        ({"islands": 10**7}, "islands = 10000000: must be a whole number from 1 to 1000000."),
        ({"grid_points": 10**11}, "grid_points = 100000000000: must be a whole number from 2 to 100000."),
        ({"grace": 1e300}, "grace = 1e+300: must be 0, or a duration above 0, at most ten years, such as 90"),
        (
            {"deadline": "3651d"},
            "deadline = '3651d': must be a duration above 0, at most ten years, such as 90",
        ),
        ({"task_options": {"a": [2**63]}}, f"task_options: {2**63}: a whole number must be from -2**63 to"),
        ({"points": [{"x": 10**40}]}, f"points: {10**40}: a whole number must be from -2**63 to 2**63 - 1."),
        (
            {"islands": 10**6, "topology": [[0]]},
            "must have 1000000 rows of 1000000 numbers, one for each island.",
        ),
    ],
)
def test_the_rule_is_told(keywords: dict[str, object], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        config.from_keywords(**{"directory": "run", "evaluations": 5, **keywords})
    assert sentence in str(caught.value)


def evaluate(trial: hpo.Trial) -> float:
    for step in 1, 2, 3:
        trial.report(step, float(trial.params["x"] or 0))
    return float(trial.params["x"] or 0)


SPACE = hpo.SearchSpace(
    x=hpo.Float(0.0, 1.0), n=hpo.Int(1, 8), c=hpo.Categorical("a", 2, None), o=hpo.Ordinal(1, 2.5)
)
POINT: dict[str, object] = {"x": 0.5, "n": 3, "c": "a", "o": 1}
TASK = hpo.Task(SPACE, evaluate)


def largest(key: str) -> object:
    """The largest number that the key takes; None where it takes none."""
    for value in (2**63 - 1, 2**53, TEN_YEARS_S, 100_000, 1.0, 0.5):
        try:
            config.from_keywords(**{"directory": "run", "evaluations": 5, key: value})
        except UsageError:
            continue
        return value
    return None


NUMBERS = [key for _, key in KEYS if largest(key) is not None and key not in ("islands", "ranks_per_worker")]
OF_PRUNERS = ("min_steps", "reduction", "patience", "startup")


@pytest.mark.parametrize(
    ("key", "pruner"),
    [
        (key, pruner)
        for key in NUMBERS
        for pruner in (("halving", "median") if key in OF_PRUNERS else ("none",))
    ],
)
def test_the_largest_value_that_is_taken_is_harmless(tmp_path: Path, key: str, pruner: str) -> None:
    keywords = {"evaluations": 3, "isolation": "inline", "pruner": pruner, key: largest(key)}
    if key == "timeout":
        keywords["isolation"] = "warm"
    if key == "evaluations":
        keywords["deadline"] = 0.2
    result = hpo.Campaign(TASK, directory=tmp_path / "run", **keywords).run()
    counts = result.status["evaluations"]
    assert isinstance(counts, dict) and counts["completed"] + counts["pruned"] == sum(counts.values()) >= 3


def test_settings_of_many_islands_are_checked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config.from_keywords(directory=tmp_path / "run", evaluations=1, islands=10**6, island=[{}, {}])
    campaign = CampaignDefinition(settings, TASK)
    asked = []
    problems_of = campaign._problems_of
    monkeypatch.setattr(campaign, "_problems_of", lambda search: asked.append(search) or problems_of(search))
    campaign.check()
    assert len(asked) == 3


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
    for name in ("nodes", "gpus-per-node", "time", *sbatch._COUNTS):
        nodes, cpus = ["--nodes=2"] * (name != "nodes"), ["--cpus-per-task=4"] * name.startswith("gpus")
        yield "slurm", "c.toml", "--dry-run", *nodes, *cpus, f"--{name}"


@pytest.mark.parametrize("line", list(options()), ids=lambda line: f"{line[0]} {line[-1]}")
def test_every_number_on_the_command_line(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    line: tuple[str, ...],
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

    sweep(command, list(TEXTS))


# --- Python ---------------------------------------------------------------------------------------------------------


def hashable(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def with_key(value: object) -> Mapping[object, object]:
    return {**POINT, value: value} if hashable(value) else POINT


def asked(value: object = None, **keywords: object) -> hpo.Search:
    search = hpo.Search(SPACE, kind="random", **keywords)
    search.tell(search.ask(), value)
    return search


def points(value: object = 1.0, **keywords: object) -> object:
    return hpo.known_points([{**POINT, "value": value}], SPACE, **keywords)


def alone() -> hpo.Trial:
    return hpo.Trial.alone({"x": 0.5})


PYTHON: dict[str, Callable[[object], object]] = {
    "Float low": lambda value: hpo.Float(value, 1.0),
    "Float high": lambda value: hpo.Float(0.0, value),
    "Float high log": lambda value: hpo.Float(1e-5, value, log=True),
    "Float log": lambda value: hpo.Float(1.0, 2.0, log=value),
    "Float when": lambda value: hpo.Float(0.0, 1.0, when=value),
    "Float when value": lambda value: hpo.SearchSpace(n=hpo.Int(0, 3), x=hpo.Float(0, 1, when={"n": value})),
    "Int low": lambda value: hpo.Int(value, 1),
    "Int high": lambda value: hpo.Int(0, value),
    "Int high log": lambda value: hpo.Int(1, value, log=True),
    "Categorical": lambda value: hpo.Categorical(value, "b"),
    "Categorical alone": lambda value: hpo.Categorical(value),
    "Ordinal": lambda value: hpo.Ordinal(1, value),
    "SearchSpace": lambda value: hpo.SearchSpace(value),
    "SearchSpace parameter": lambda value: hpo.SearchSpace(x=value),
    "SearchSpace name": lambda value: hpo.SearchSpace({value if hashable(value) else "x": hpo.Int(0, 1)}),
    "Task space": lambda value: hpo.Task(value, evaluate),
    "Task evaluate": lambda value: hpo.Task(SPACE, value),
    "Task direction": lambda value: hpo.Task(SPACE, evaluate, value),
    "Task objectives": lambda value: hpo.Task(SPACE, evaluate, objectives=value),
    "Task objective": lambda value: hpo.Task(SPACE, evaluate, objectives={"a": value}),
    "Task constraints": lambda value: hpo.Task(SPACE, evaluate, constraints=value),
    "Task constraint": lambda value: hpo.Task(SPACE, evaluate, constraints=[value]),
    "Task default": lambda value: hpo.Task(SPACE, evaluate, default=value),
    "Task default key": lambda value: hpo.Task(SPACE, evaluate, default=with_key(value)),
    "Task points": lambda value: hpo.Task(SPACE, evaluate, points=value),
    "Task point": lambda value: hpo.Task(SPACE, evaluate, points=[value]),
    "Campaign task": lambda value: hpo.Campaign(value, directory="run", evaluations=1),
    "Campaign file": lambda value: hpo.Campaign.from_file(
        value if isinstance(value, (str, Path)) and value else 5
    ),
    "Search space": lambda value: hpo.Search(value),
    "Search direction": lambda value: hpo.Search(SPACE, value),
    "Search seed": lambda value: asked(seed=value),
    "Search constraints": lambda value: asked(constraints=value),
    "Search constraint": lambda value: hpo.Search(SPACE, constraints=[value]),
    "Search tell": lambda value: asked(value),
    "Search tell what": lambda value: hpo.Search(SPACE).tell(value, 1.0),
    "Search enter": lambda value: hpo.Search(SPACE).enter(value, 1.0),
    "Search enter key": lambda value: hpo.Search(SPACE).enter(with_key(value), 1.0),
    "Search enter value": lambda value: hpo.Search(SPACE).enter(POINT, value),
    "known_points value": lambda value: points(value),
    "known_points rows": lambda value: hpo.known_points([value], SPACE),
    "known_points space": lambda value: hpo.known_points([], value),
    "known_points objectives": lambda value: points(objectives=value),
    "known_points objective": lambda value: points(objectives={"value": value}),
    "known_points default": lambda value: points(default=value),
    "known_points allows": lambda value: None if callable(value) else points(allows=value),
    "known_points unknown": lambda value: points(unknown=value),
    "known_points columns": lambda value: points(columns=value),
    "known_points column": lambda value: points(columns={"x": value}),
    "known_points study": lambda value: points(study=value),
    "Trial.alone": lambda value: hpo.Trial.alone(value),
    "Trial.alone directory": lambda value: hpo.Trial.alone({}, directory=value),
    # numpy warns that its truth values will be no whole numbers.
    "Trial.report step": lambda value: isinstance(value, numpy.bool_) or alone().report(value, 1.0),
    "Trial.report value": lambda value: alone().report(1, value),
    "Trial.log": lambda value: msgspec.json.encode(alone().log(a=value)),
    "Result": lambda value: hpo.Result(value),
    "returned": lambda value: judge(value, ["value"]),
    "returned objective": lambda value: judge({"value": value}, ["value"]),
    "returned metric": lambda value: to_line(
        EvaluationOver(turn=1, outcome=judge({"value": 1.0, "m": value}, ["value"]))
    ),
}
for name in POINT:
    PYTHON |= {
        f"Task default {name}": lambda value, name=name: hpo.Task(
            SPACE, evaluate, default={**POINT, name: value}
        ),
        f"Task point {name}": lambda value, name=name: hpo.Task(
            SPACE, evaluate, points=[{**POINT, name: value}]
        ),
        f"Search enter {name}": lambda value, name=name: hpo.Search(SPACE).enter({**POINT, name: value}, 1.0),
        f"known_points {name}": lambda value, name=name: hpo.known_points(
            [{**POINT, "value": 1.0, name: value}], SPACE
        ),
        f"known_points default {name}": lambda value, name=name: hpo.known_points(
            [{"value": 1.0}], SPACE, default={**POINT, name: value}
        ),
    }


@pytest.mark.parametrize("place", list(PYTHON))
def test_every_place_in_python(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sweep(PYTHON[place])


@pytest.mark.parametrize("key", list(SearchSettings.model_fields))
def test_every_setting_of_a_search_that_is_asked(key: str) -> None:
    for kind in ("random", "grid", "evolution"):
        sweep(lambda value: hpo.Search(SPACE, **{"kind": kind, key: value}).ask())  # noqa: B023


def test_every_source_of_known_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sweep(lambda value: hpo.known_points(value, SPACE))


def test_results_of_a_campaign(tmp_path: Path) -> None:
    task = hpo.Task(
        hpo.SearchSpace(x=hpo.Float(0.0, 1.0)),
        lambda trial: {"a": trial.params["x"], "b": -trial.params["x"]},
        objectives={"a": "minimize", "b": "minimize"},
    )
    result = hpo.Campaign(task, directory=tmp_path / "run", evaluations=4, isolation="inline").run()
    sweep(result.hypervolume)
    sweep(lambda value: result.hypervolume({"a": value, "b": 1.0}))

    def importance(value: object) -> None:
        try:
            result.importance(value)
        except HpoError as error:
            if not isinstance(error, UsageError):  # of four evaluations nothing can be said
                assert "evaluations have completed" in str(error)

    sweep(importance)
