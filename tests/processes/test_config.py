"""Files and keywords give the same settings; all that is wrong with them is told, with the nearest key."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from places import ROOT
from pydantic import ValidationError

import hpo
from hpo import aliases
from hpo.config import hints, process, reader
from hpo.config import reader as config
from hpo.config.process import Launcher, launcher
from hpo.config.reader import Settings, from_keywords, read_file
from hpo.errors import UsageError

FULL = """
    task = "search_spaces.digits:task"
    directory = "runs/digits"
    evaluations = 64
    deadline = "2h"
    seed = 7
    keep = 1
    restarts = 4
    known = ["runs/earlier", { source = "study.db", study = "a", unknown = "refuse", columns = { lr = "rate" } }]
    points = [{ width = 32, lr = 1e-2 }, "points.csv"]

    [layout]
    islands = 2
    ranks_per_worker = 2
    topology = [[0, 2], [1, 0]]

    [search]
    kind = "genetic"
    crossover = 1
    mutation = 0.5
    random = 0.2
    migration = 0.8
    exchange = "pollination"
    pool = 16
    duplicates = true
    reevaluate = 0.2
    initial = "sobol"
    grid_points = 4
    only = { optimizer = ["sgd", "adam"] }
    inherit = true
    pruner = "halving"
    min_steps = 2
    reduction = 4
    patience = 1
    startup = 8
    promote = false
    reported = "accuracy"
    reference = { accuracy = 0.5, seconds = 60 }
    perturb = ["lr"]

    [[phase]]
    until = 8
    only = { optimizer = ["sgd"] }

    [[island]]

    [[island]]
    kind = "cmaes"
    migration = 0.0

    [evaluation]
    isolation = "fresh"
    timeout = "30min"
    retries = 0
    grace = 5
    start_timeout = "90s"
    hang_timeout = "5min"
    first_failures = "off"
    interface = "ib0"
    checkpoints = true

    [logging]
    curves = false
    every = "0"
    sinks = ["wandb", "tensorboard", "wandb"]
    directory = "logs"
    system = "1min"
    output = "2MB"

    [task_options]
    epochs = 10
    widths = [32, 64]
    nested = { a = [true, "x"] }
"""

FLAT: dict[str, object] = {
    "task": "search_spaces.digits:task",
    "directory": "runs/digits",
    "evaluations": 64,
    "deadline": "2h",
    "seed": 7,
    "keep": 1,
    "restarts": 4,
    "known": [
        Path("runs/earlier"),
        {"source": "study.db", "study": "a", "unknown": "refuse", "columns": {"lr": "rate"}},
    ],
    "points": ({"width": 32, "lr": 1e-2}, "points.csv"),
    "islands": 2,
    "ranks_per_worker": 2,
    "topology": [[0, 2], [1, 0]],
    "kind": "genetic",
    "crossover": 1,
    "mutation": 0.5,
    "random": 0.2,
    "migration": 0.8,
    "exchange": "pollination",
    "pool": 16,
    "duplicates": True,
    "reevaluate": 0.2,
    "initial": "sobol",
    "grid_points": 4,
    "only": {"optimizer": ["sgd", "adam"]},
    "inherit": True,
    "pruner": "halving",
    "min_steps": 2,
    "reduction": 4,
    "patience": 1,
    "startup": 8,
    "promote": False,
    "reported": "accuracy",
    "reference": {"accuracy": 0.5, "seconds": 60.0},
    "perturb": ["lr"],
    "island": [{}, {"kind": "cmaes", "migration": 0.0}],
    "phase": [{"until": 8, "only": {"optimizer": ["sgd"]}}],
    "isolation": "fresh",
    "timeout": 1800,
    "retries": 0,
    "grace": 5,
    "start_timeout": 90.0,
    "hang_timeout": 300,
    "first_failures": "off",
    "interface": "ib0",
    "checkpoints": True,
    "log_curves": False,
    "log_every": 0,
    "log_sinks": ("wandb", "tensorboard"),
    "log_directory": Path("logs"),
    "log_system": 60,
    "log_output": 2_000_000,
    "task_options": {"epochs": 10, "widths": [32, 64], "nested": {"a": [True, "x"]}},
}

LEAST = 'task = "a:b"\ndirectory = "x"\nevaluations = 1\n'


def file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "campaign.toml"
    path.write_text(textwrap.dedent(text))
    return path


def problems(path: Path) -> list[str]:
    """What is told of a file, without the file's name, which must begin each line."""
    with pytest.raises(UsageError) as caught:
        read_file(path)
    lines = str(caught.value).splitlines()
    assert all(line.startswith(f"{path}: ") for line in lines)
    return [line.removeprefix(f"{path}: ") for line in lines]


def test_a_full_file(tmp_path: Path) -> None:
    settings = read_file(file(tmp_path, FULL))
    assert settings.directory == Path("runs/digits")
    assert (settings.evaluations, settings.deadline_s, settings.seed, settings.keep) == (64, 7200.0, 7, 1)
    assert settings.layout.topology == [[0, 2], [1, 0]]
    assert (settings.evaluation.timeout_s, settings.evaluation.grace_s) == (1800.0, 5.0)
    assert settings.evaluation.start_timeout_s == 90.0
    assert (settings.logging.every_s, settings.logging.sinks) == (0.0, ["wandb", "tensorboard"])
    assert settings.logging.directory == Path("logs")
    assert settings.task_options == {"epochs": 10, "widths": [32, 64], "nested": {"a": [True, "x"]}}


def test_a_file_and_keywords_give_the_same_settings(tmp_path: Path) -> None:
    assert from_keywords(**FLAT) == read_file(file(tmp_path, FULL))
    assert from_keywords(**{**FLAT, "directory": Path("runs/digits")}) == from_keywords(**FLAT)


def test_every_key_has_a_name_of_its_own() -> None:
    """Keywords are flat: FLAT names every key of every section, and none twice."""
    sections = {
        Settings: "",
        config.LayoutSettings: "",
        config.SearchSettings: "",
        config.EvaluationSettings: "",
        config.LoggingSettings: "log_",
    }
    names = [
        prefix + str(one.validation_alias or name)
        for section, prefix in sections.items()
        for name, one in section.model_fields.items()
        if name not in ("layout", "search", "evaluation", "logging")
    ]
    assert sorted(names) == sorted(FLAT)


def test_defaults(tmp_path: Path) -> None:
    settings = read_file(file(tmp_path, LEAST))
    assert settings == from_keywords(task="a:b", directory="x", evaluations=1)
    assert settings.search.model_dump() == {
        "kind": "default",
        "crossover": 0.7,
        "mutation": 0.4,
        "random": 0.1,
        "migration": 0.9,
        "exchange": "migration",
        "pool": None,
        "duplicates": False,
        "reevaluate": 0.0,
        "initial": "random",
        "grid_points": 5,
        "only": {},
        "inherit": None,
        "pruner": "none",
        "min_steps": 1,
        "reduction": 3,
        "patience": 0,
        "startup": None,
        "promote": True,
        "reported": None,
        "reference": {},
        "perturb": None,
    }
    assert settings.evaluation.model_dump() == {
        "isolation": "warm",
        "timeout_s": None,
        "retries": 1,
        "grace_s": 60.0,
        "start_timeout_s": 300.0,
        "hang_timeout_s": 120.0,
        "first_failures": 30,
        "interface": None,
        "checkpoints": None,
    }
    assert settings.layout.model_dump() == {"islands": 1, "ranks_per_worker": 1, "topology": "ring"}
    assert (settings.seed, settings.keep, settings.deadline_s, settings.island) == (0, 3, None, ())
    assert settings.known == settings.points == ()


def test_keywords_need_no_task_but_files_do(tmp_path: Path) -> None:
    assert from_keywords(directory="x", deadline=3).task is None
    path = file(tmp_path, 'directory = "x"\nevaluations = 1\n')
    assert problems(path) == ['task is missing. Add task = "package.module:name" at the top.']


def test_an_island_overrides_only_what_it_names() -> None:
    settings = from_keywords(**FLAT)
    assert settings.search_of(0) == settings.search
    own = settings.search_of(1)
    assert (own.kind, own.migration) == ("cmaes", 0.0)
    assert (own.mutation, own.exchange) == (0.5, "pollination")
    fewer = from_keywords(directory="x", evaluations=1, islands=3, island=[{"random": 1.0}])
    assert [fewer.search_of(island).random for island in range(3)] == [1.0, 0.1, 0.1]


def test_an_override_may_say_the_default_again() -> None:
    settings = from_keywords(directory="x", evaluations=1, mutation=0.9, island=[{"mutation": 0.4}])
    assert settings.search_of(0).mutation == 0.4


def test_settings_are_frozen_and_json_able() -> None:
    settings = from_keywords(**FLAT)
    with pytest.raises(ValidationError, match="frozen"):
        settings.evaluations = 3
    dumped = settings.model_dump(mode="json")
    assert dumped["directory"] == "runs/digits"
    assert dumped["layout"]["topology"] == [[0, 2], [1, 0]]


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (90, 90.0),
        (0.5, 0.5),
        ("90s", 90.0),
        ("30min", 1800.0),
        ("30m", 1800.0),
        ("2h", 7200.0),
        ("1h30m", 5400.0),
        ("1h30min", 5400.0),
        ("1 h 30 min", 5400.0),
        ("1.5h", 5400.0),
        ("1d", 86400.0),
        ("1d2h3m4s", 93784.0),
        ("1 hour", 3600.0),
        ("2 Days 5 minutes", 173100.0),
        ("08:00:00", 28800.0),
        ("1-00:00:30", 86430.0),
        (datetime.time(8), 28800.0),
        (datetime.timedelta(hours=1), 3600.0),
    ],
)
def test_durations(written: object, seconds: float) -> None:
    assert from_keywords(directory="x", deadline=written).deadline_s == seconds


@pytest.mark.parametrize(
    "written",
    [
        "soon",
        "",
        "h",
        "-1h",
        "1h1h",
        "5min 3m",
        "1w",
        "1e3s",
        "1,5h",
        "08:00",
        "1 hou",
        0,
        -1,
        True,
        "0s",
        float("inf"),
        [1],
    ],
)
def test_what_is_no_duration(written: object) -> None:
    with pytest.raises(UsageError) as caught:
        from_keywords(directory="x", evaluations=1, timeout=written)
    assert str(caught.value) == (
        f"timeout = {written!r}: must be a duration above 0, at most ten years, such as "
        '90 (seconds), "90s", "30min", "1h30m" or "2d".'
    )


@given(st.integers(0, 99), st.integers(0, 99), st.integers(0, 99), st.integers(1, 99))
def test_durations_add_up(days: int, hours: int, minutes: int, seconds: int) -> None:
    written = f"{days}d{hours}h{minutes}min{seconds}s"
    expected = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    assert from_keywords(directory="x", deadline=written).deadline_s == expected


def test_grace_may_be_nothing() -> None:
    assert from_keywords(directory="x", evaluations=1, grace=0).evaluation.grace_s == 0.0


@pytest.mark.parametrize(("written", "meant"), [(1, 1), (500, 500), ("off", None)])
def test_first_failures(written: object, meant: int | None) -> None:
    settings = from_keywords(directory="x", evaluations=1, first_failures=written)
    assert settings.evaluation.first_failures == meant


@pytest.mark.parametrize("written", [0, -1, True, False, 1.5, "on", "", [30]])
def test_what_is_no_number_of_first_failures(tmp_path: Path, written: object) -> None:
    shown = json.dumps(written)
    assert problems(file(tmp_path, LEAST + f"[evaluation]\nfirst_failures = {shown}\n")) == [
        f'[evaluation] first_failures = {shown}: must be a whole number from 1 to 2**53, or "off".'
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "evalutions = 3",
            "evalutions = 3: there is no such key here. Remove it: evaluations is given, too.",
        ),
        ("islands = 3", "islands = 3: there is no such key here. It belongs in [layout]."),
        ("timout = 3", 'timout = 3: there is no such key here. Did you mean "timeout" in [evaluation]?'),
        ("deadline_s = 3", 'deadline_s = 3: there is no such key here. Did you mean "deadline"?'),
        ("[layot]\nislands = 2", '[layot]: there is no such section. Did you mean "layout"?'),
        ("[islands]\nkind = 2", '[islands]: there is no such section. Did you mean "island"?'),
        ("[options]", '[options]: there is no such section. Did you mean "task_options"?'),
        (
            "[layout]\nseed = 3",
            "[layout] seed = 3: there is no such key here. It belongs at the top, before the first section.",
        ),
        (
            "[evaluation]\nkind = true",
            "[evaluation] kind = true: there is no such key here. It belongs in [search].",
        ),
        (
            "[evaluation]\nretries = 2\nretris = 3",
            "[evaluation] retris = 3: there is no such key here. Remove it: retries is given, too.",
        ),
        (
            "[evaluation]\nretris = 2",
            '[evaluation] retris = 2: there is no such key here. Did you mean "retries"?',
        ),
        (
            '[evaluation]\nmutatoin = "x"',
            '[evaluation] mutatoin = "x": there is no such key here. Did you mean "mutation" in [search]?',
        ),
        (
            "[layout]\nxyzzy = 1",
            "[layout] xyzzy = 1: there is no such key here. Valid: islands, ranks_per_worker, topology.",
        ),
        (
            "[[island]]\nkin = 1",
            '[[island]] number 1, kin = 1: there is no such key here. Did you mean "kind"?',
        ),
        ("[[island]]\nmutation = 2", "[[island]] number 1, mutation = 2: must be a number from 0 to 1."),
        (
            "[[island]]\nislands = 2",
            "[[island]] number 1, islands = 2: there is no such key here. It belongs in [layout].",
        ),
        ('layout = "x"', 'layout = "x": must be a section. Write [layout] and its keys on lines below.'),
        (
            "island = 3",
            "island = 3: must be a table for each island. Write [[island]] and its keys on lines below.",
        ),
        (
            "[island]\nkind = 'pso'",
            'island = {"kind": "pso"}: must be a table for each island. '
            "Write [[island]] and its keys on lines below.",
        ),
        ("seed = -1", "seed = -1: must be a whole number from 0 to 2**63 - 1."),
        ("seed = 1.5", "seed = 1.5: must be a whole number from 0 to 2**63 - 1."),
        ("seed = true", "seed = true: must be a whole number from 0 to 2**63 - 1."),
        ("keep = 'x'", 'keep = "x": must be a whole number from 0 to 2**53.'),
        ("[layout]\nislands = 0", "[layout] islands = 0: must be a whole number from 1 to 1000000."),
        (
            "[layout]\ntopology = 'rng'",
            '[layout] topology = \'rng\': must be "ring", "full" or a matrix. Did you mean "ring"?',
        ),
        (
            "[layout]\nislands = 2\ntopology = [[0]]",
            "[layout] topology = [[0]]: must have 2 rows of 2 numbers, one for each island. "
            'Write [[0, 1], [1, 0]] or "ring".',
        ),
        (
            "[[island]]\n[[island]]\n[[island]]",
            "there are 3 [[island]] tables and islands = 1: table i is for island i. "
            "Remove 2 or raise islands.",
        ),
        (
            "[search]\nkind = 'nelder_mead'",
            '[search] kind = "nelder_mead": must be one of "default", "surrogate", "evolution", '
            '"portfolio", "tpe", "gp", "optuna-cmaes", "genetic", "cmaes", "pso", "nelder-mead", "grid", "random", '
            '"pbt". Did you mean "nelder-mead"?',
        ),
        ("[search]\nmutation = nan", "[search] mutation = NaN: must be a number from 0 to 1."),
        ("[search]\npool = 1", "[search] pool = 1: must be a whole number from 2 to 2**53."),
        ("[search]\nduplicates = 1", "[search] duplicates = 1: must be true or false."),
        (
            "[search]\nexchange = 'polination'",
            '[search] exchange = "polination": must be one of "migration", "pollination". '
            'Did you mean "pollination"?',
        ),
        (
            "[evaluation]\ntimeout = 'soon'",
            '[evaluation] timeout = "soon": must be a duration above 0, at most ten years, such as 90 (seconds), '
            '"90s", "30min", "1h30m" or "2d".',
        ),
        (
            "[evaluation]\nisolation = 'inline'\ntimeout = 3",
            '[evaluation] timeout cannot be kept with isolation = "inline", where nothing could end the '
            'evaluation. Remove timeout or use isolation = "warm".',
        ),
        (
            "[evaluation]\ninterface = ''",
            '[evaluation] interface = "": must be the name of a network interface, such as "ib0".',
        ),
        (
            "[task_options]\nwhen = 2020-01-01",
            'task_options.when = "2020-01-01": must be strings, numbers, true, false, '
            "and lists and tables of these.",
        ),
    ],
)
def test_what_is_wrong_with_a_file(tmp_path: Path, text: str, sentence: str) -> None:
    assert problems(file(tmp_path, LEAST + text)) == [sentence]


@pytest.mark.parametrize(
    ("written", "remedy"),
    [
        ("n_trials = 10", 'Did you mean "evaluations"?'),
        ("num-samples = 10", 'Did you mean "evaluations"?'),
        ("evaluation = 10", "Did you mean evaluations = 10?"),
        ('evaluations = "10"', "Write evaluations = 10, without quotes."),
        ('evaluations = 1\n[evaluation]\nfirst_failures = "30"', "Write first_failures = 30, without"),
        ("evaluations = 10.0", "Write evaluations = 10."),
        ('evaluations = 1\nsearch = "tpe"', 'Did you mean kind = "tpe" in [search]?'),
        ('evaluations = 1\nsampler = "tpe"', 'Did you mean "kind" in [search]?'),
        ('evaluations = 1\ndirection = "max"', 'hpo.Task(space, evaluate, "maximize")'),
        ("evaluations = 1\nn_jobs = 4", "--ranks N"),
        ("evaluations = 1\n[slurm]\nnodes = 4", "hpo slurm FILE --nodes N"),
        ("evaluations = 1\n[layout]\nislands = 2\nn_islands = 2", "Remove it: islands is given, too."),
        ("evaluations = 1\n[search.layout]\nislands = 2", "Write [layout]: "),
        ("evaluations = 1\n[[search.island]]\nkind = 'tpe'", "Write [[island]]: "),
        ('evaluations = 1\n[search]\nkind = "bayes"', 'Did you mean "default"?'),
        ('evaluations = 1\n[search]\nkind = "TPESampler"', 'Did you mean "tpe"?'),
        ('evaluations = 1\n[search]\npruner = "asha"', 'Did you mean "halving"?'),
        ('evaluations = 1\n[search]\nduplicates = "True"', "Write duplicates = true, without quotes."),
        ('evaluations = 1\n[logging]\nsinks = "wandb"', 'Write sinks = ["wandb"].'),
        ('evaluations = 1\n[logging]\nsinks = "tb"', 'Write sinks = ["tensorboard"].'),
        ('evaluations = 1\n[logging]\nsinks = ["wandb", "tb"]', 'Did you mean "tensorboard"?'),
        (
            'evaluations = 1\n[logging]\nsinks = "mlflow, weights-and-biases"',
            'Write sinks = ["mlflow", "wandb"].',
        ),
        ('evaluations = 1\n[search]\nonly = { opt = "SGD" }', 'only.opt = "SGD": must'),
        ('evaluations = 1\n[search]\nonly = { opt = "SGD" }', 'Write only.opt = ["SGD"].'),
        ('evaluations = 1\n[search]\nreevaluate = "10%"', "Write reevaluate = 0.1, without quotes."),
        ("evaluations = 1\n[search]\nmigration = 10", "Write migration = 0.1."),
        ("evaluations = 1\n[default]\nlr = 1", "hpo.Task(space, evaluate, default={…})"),
        ("evaluations = 1\nsteps = 3", "hpo.Task(space, evaluate, steps=…)"),
        ("evaluations = True", "Write evaluations = true."),
        ("evaluations = 1\nseed = None", "Leave seed out."),
        ({"evaluations": "1e3"}, "Write evaluations=1000, without quotes."),
        ({"evaluations": 1, "seed": None}, "Leave it out"),
        ({"evaluations": 1, "only": {"opt": "SGD"}}, "Write only={'opt': ['SGD']}."),
        ({"evaluations": 1, "points": {"lr": 1}}, "Write points=[{'lr': 1}]."),
        ({"evaluations": 1, "output": "5MB"}, 'Did you mean "log_output"?'),
        ({"evaluations": 1, "layout": {"islands": 2, "foo": 1}}, "There is no keyword 'foo'."),
        ({"evaluations": 1, "load_if_exists": True}, "Leave it out."),
        ({"n_trials": 10}, 'Did you mean "evaluations"?'),
        ({"evaluation": 10}, "Did you mean evaluations=10?"),
        ({"evaluations": "10"}, "Write evaluations=10, without quotes."),
        ({"evaluations": 1, "layout": {"islands": 2}}, "Write islands=2."),
        ({"evaluations": 1, "logging": {"sinks": ["wandb"]}}, "Write log_sinks=['wandb']."),
        ({"evaluations": 1, "logger": "wandb"}, 'Did you mean "log_sinks"?'),
        ({"evaluations": 1, "log_sinks": "wandb"}, "Write log_sinks=['wandb']."),
    ],
)
def test_words_of_other_packages_are_understood(
    tmp_path: Path, written: str | dict[str, object], remedy: str
) -> None:
    with pytest.raises(UsageError) as caught:
        if isinstance(written, str):
            read_file(file(tmp_path, f'task = "a:b"\ndirectory = "run"\n{written}'))
        else:
            from_keywords(directory="run", **written)
    (line,) = str(caught.value).splitlines()
    assert remedy in line


@pytest.mark.parametrize(
    ("given", "meant"), [("5mb", 5_000_000), ("10 MiB", 10 * 2**20), ("2.5GB", 2_500_000_000)]
)
def test_sizes(given: str, meant: int) -> None:
    assert from_keywords(directory="x", evaluations=1, log_output=given).logging.output_bytes == meant


@pytest.mark.parametrize("written", [None, False, "none"])
def test_no_pruner(written: object) -> None:
    assert from_keywords(directory="x", evaluations=1, pruner=written).search.pruner == "none"


def test_words_of_other_packages_are_understood_by_search_run_and_set(tmp_path: Path) -> None:
    space = hpo.SearchSpace(x=hpo.Float(0, 1))
    with pytest.raises(UsageError, match=r"hpo\.Campaign has evaluations"):
        hpo.Search(space, n_trials=3)
    with pytest.raises(UsageError, match=r"ranks=N"):
        hpo.Campaign(hpo.Task(space, len), directory=tmp_path, evaluations=1).run(n_jobs=2)
    with pytest.raises(UsageError, match=r'Did you mean "evaluations"'):
        reader.limits(["n_trials=50"])


def test_aliases_lead_to_settings_and_values_that_there_are() -> None:
    assert {*aliases.SETTINGS.values()} <= {*reader.KEYWORDS}
    for alias, name in aliases.SETTINGS.items():
        own = aliases.folded(reader.KEYWORDS[name][1])
        others = {aliases.folded(key) for key in reader._SECTION_OF} - {own}
        assert alias not in others, f"{alias} is a setting itself"
    for key, values in aliases.VALUES.items():
        if key != "direction":
            section = reader._SECTIONS[reader._SECTION_OF[key]]
            for value in {*values.values()}:
                assert hints.accepts(section, key, value) or hints.accepts(section, key, [value])
    assert {*aliases.SBATCH.values()} <= aliases.SBATCH_OPTIONS


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    path = file(tmp_path, "directory = 3\nevaluation = true\nseeed = 2\n[layout]\nislands = 0\nranks = 4\n")
    told = problems(path)
    assert [line.split(" = ")[0].split(" is ")[0] for line in told] == [
        "task",
        "evaluation",
        "seeed",
        "[layout] ranks",
        "neither evaluations nor deadline",
        "directory",
        "[layout] islands",
    ]


def test_something_must_end_a_campaign() -> None:
    with pytest.raises(
        UsageError, match=r"^neither evaluations nor deadline is given.*Add evaluations = 100\.$"
    ):
        from_keywords(directory="x")


def test_a_misspelt_end_is_one_problem_and_not_two(tmp_path: Path) -> None:
    found = problems(file(tmp_path, LEAST.replace("evaluations", "evalutions")))
    assert len(found) == 1 and found[0].endswith('Did you mean "evaluations"?')
    with pytest.raises(
        UsageError, match=r'^dedline = 3: there is no such keyword\. Did you mean "deadline"\?$'
    ):
        from_keywords(directory="x", dedline=3)


def test_a_directory_is_needed() -> None:
    with pytest.raises(UsageError, match=r'^directory is missing\. Add directory = "runs/NAME"\.$'):
        from_keywords(evaluations=1)
    assert from_keywords(evaluations=1, directory="~/x").directory == Path.home() / "x"


@pytest.mark.parametrize(
    ("keywords", "sentence"),
    [
        ({"evalutions": 3}, 'evalutions = 3: there is no such keyword. Did you mean "evaluations"?'),
        ({"timeout_s": 3}, 'timeout_s = 3: there is no such keyword. Did you mean "timeout"?'),
        ({"kind": "psso"}, 'Did you mean "pso"?'),
        ({"islands": True}, "islands = True: must be a whole number from 1 to 1000000."),
        ({"island": 3}, "island = 3: must be a table for each island. Write island=[{…}, …]."),
        ({"island": [{"kin": 1}]}, 'island[0] kin = 1: there is no such key here. Did you mean "kind"?'),
        ({"island": [{"random": 7}]}, "island[0] random = 7: must be a number from 0 to 1."),
        ({"task_options": {"a": {1, 2}}}, "task_options.a = {1, 2}: must be strings, numbers"),
    ],
)
def test_what_is_wrong_with_keywords(keywords: dict[str, object], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        from_keywords(**{"directory": "x", "evaluations": 1, **keywords})
    told = str(caught.value)
    assert sentence in told
    assert len(told.splitlines()) == 1


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    path = file(tmp_path, LEAST)
    for bad, told in (
        (tmp_path / "campain.toml", 'there is no such campaign file. Did you mean "campaign.toml"?'),
        (tmp_path, "is a directory. Name a campaign file, such as jobs/NAME.toml."),
    ):
        with pytest.raises(UsageError) as caught:
            read_file(bad)
        assert str(caught.value).startswith(str(bad))
        assert str(caught.value).endswith(told)
    path.write_bytes(b'task = "\xff"')
    assert problems(path) == ["byte 8 is not UTF-8, as TOML must be. Save it as UTF-8."]


@pytest.mark.parametrize(
    ("text", "place"),
    [("a = \n", ", line 1, column 5: "), ('x = "1"\ny = [1,\n', ""), ("[layout\n", ", line 1, column 8: ")],
)
def test_text_that_is_no_toml_is_told_with_its_line(tmp_path: Path, text: str, place: str) -> None:
    path = file(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        read_file(path)
    assert str(caught.value).startswith(f"{path}{place}")
    assert "not valid TOML" in str(caught.value)


def test_a_python_file_is_no_campaign_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import hpo\n")
    with pytest.raises(UsageError, match=r'mine\.py: is Python, .* task = "mine\.py:NAME"'):
        read_file(tmp_path / "mine.py")


def test_a_key_with_the_name_of_a_section_is_named(tmp_path: Path) -> None:
    path = file(tmp_path, 'task = "t.py:task"\nevaluation = 12\n\n[evaluation]  # how\ntimeout = 5\n')
    with pytest.raises(UsageError) as caught:
        read_file(path)
    assert str(caught.value).startswith(f"{path}, line 4, ") and "above it evaluation = … is a key" in str(
        caught.value
    )
    assert str(caught.value).endswith('Did you mean "evaluations"?')


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, Launcher()),
        ({process.STARTED_BY: "12"}, Launcher(supervisor="12")),
        (
            {
                "OMPI_COMM_WORLD_RANK": "3",
                "OMPI_COMM_WORLD_SIZE": "8",
                "PMIX_RANK": "3",
                process.STARTED_BY: "1",
            },
            Launcher(rank=3, size=8, kind="openmpi", supervisor="1"),
        ),
        ({"PMIX_RANK": "2"}, Launcher(rank=2, kind="openmpi")),
        ({"PMI_RANK": "0", "PMI_SIZE": "4"}, Launcher(rank=0, size=4, kind="mpich")),
        (
            {"SLURM_STEP_ID": "0", "SLURM_PROCID": "5", "SLURM_NTASKS": "8"},
            Launcher(rank=5, size=8, kind="slurm"),
        ),
        (
            {"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "2"},
            Launcher(rank=1, size=2, kind="slurm"),
        ),
        (
            {"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_NTASKS": "2", "PMIX_RANK": "1"},
            Launcher(rank=1, size=2, kind="slurm"),
        ),
        ({"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, Launcher()),
        (
            {
                "SLURM_STEP_ID": "0",
                "SLURM_PROCID": "0",
                "SLURM_NTASKS": "1",
                "PMI_RANK": "0",
                "PMI_SIZE": "1",
            },
            Launcher(),
        ),
        (
            {
                "SLURM_STEP_ID": "0",
                "SLURM_PROCID": "3",
                "SLURM_NTASKS": "8",
                "PMI_RANK": "3",
                "PMI_SIZE": "8",
            },
            Launcher(rank=3, size=8, kind="mpich"),
        ),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, Launcher()),
        ({"SLURM_STEP_ID": "4294967291", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, Launcher()),
        ({"SLURM_STEP_ID": "4294967290", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, Launcher()),
        ({"OMPI_COMM_WORLD_RANK": "x"}, Launcher()),
    ],
)
def test_what_the_environment_says_of_the_launch(environ: dict[str, str], expected: Launcher) -> None:
    assert launcher(environ) == expected


def test_the_environment_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPO_TEST_ONLY", "before")
    copied = process.environment()
    copied["HPO_TEST_ONLY"] = "after"
    assert process.environment()["HPO_TEST_ONLY"] == "before"


def test_space_layout_and_task_import_neither_pydantic_nor_numpy_nor_torch() -> None:
    code = (
        "import sys, hpo.space.space, hpo.config.layout, hpo.task.task\n"
        "print([m for m in ('pydantic', 'numpy', 'torch', 'cloudpickle', 'propulate') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_keys_of_logging_are_named_as_they_were_written(tmp_path: Path) -> None:
    """As keywords they have a prefix, as ``directory`` is another there."""
    path = file(tmp_path, f'{LEAST}[logging]\nsinks = ["tensorbord"]\nevery = -1\nlog_system = 1\n')
    assert [problem.partition(": ")[0] for problem in problems(path)] == [
        "[logging] log_system = 1",
        "[logging] every = -1",
        '[logging] sinks = "tensorbord"',
    ]
    assert 'Did you mean "tensorboard"?' in problems(path)[2]
    with pytest.raises(UsageError, match=r"^log_every = -1: must be 0, or a duration"):
        from_keywords(directory="x", evaluations=1, log_every=-1)
    with pytest.raises(UsageError, match=r'curves = True: .*Did you mean "log_curves"'):
        from_keywords(directory="x", evaluations=1, curves=True)
