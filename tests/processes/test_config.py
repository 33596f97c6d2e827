"""Files and keywords give the same settings; what is wrong with them is refused with place, value, rule and remedy."""

from __future__ import annotations

import datetime
import sys
import textwrap
from pathlib import Path

import pytest
from places import ROOT
from programs import called
from refusals import refused

import hpo
from hpo import aliases
from hpo.config import hints, process, reader
from hpo.config.hints import tomllib
from hpo.config.process import Launcher, launcher
from hpo.config.reader import from_keywords, read_file
from hpo.errors import UsageError

FULL = """
    task = "search_spaces.digits:task"
    directory = "runs/digits"
    evaluations = 64
    deadline = "2h"
    rank_hours = 500
    seed = 7
    keep = 1
    restarts = 4
    known = ["runs/earlier", { source = "study.db", study = "a", unknown = "refuse", columns = { lr = "rate" } }]
    points = [{ width = 32, lr = 1e-2 }, "points.csv"]
    schedule = [{ x = 0.5, kind = "a" }, { x = 0.25 }]

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

    [stop]
    value = { accuracy = 0.9, seconds = 60 }
    gain = 0.001
    over = 20

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

LEAST = 'task = "a:b"\ndirectory = "x"\nevaluations = 1\n'


def flat() -> dict[str, object]:
    """The keywords for FULL."""
    found: dict[str, object] = {}
    for name, value in tomllib.loads(textwrap.dedent(FULL)).items():
        if name in ("layout", "search", "evaluation", "stop", "logging"):
            prefix = {"logging": "log_", "stop": "stop_"}.get(name, "")
            found |= {prefix + key: one for key, one in value.items()}
        else:
            found[name] = value
    return found


def file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "campaign.toml"
    path.write_text(textwrap.dedent(text))
    return path


def refusal(tmp_path: Path, written: str | dict[str, object]) -> list[str]:
    """Lines that refuse a file, without its name, which begins each, or keywords."""
    with pytest.raises(UsageError) as caught:
        if isinstance(written, str):
            read_file(file(tmp_path, written))
        else:
            from_keywords(**written)
    start = f"{tmp_path / 'campaign.toml'}: " if isinstance(written, str) else ""
    lines = str(caught.value).splitlines()
    assert all(line.startswith(start) for line in lines)
    return [line.removeprefix(start) for line in lines]


def test_a_file_and_keywords_give_the_same_settings(tmp_path: Path) -> None:
    settings = read_file(file(tmp_path, FULL))
    assert from_keywords(**flat()) == settings
    assert {*flat()} == {*reader.KEYWORDS, "island", "phase"}, "FULL has every key"
    assert settings.directory == Path("runs/digits") and settings.layout.topology == [[0, 2], [1, 0]]
    assert (settings.evaluations, settings.deadline_s, settings.evaluation.timeout_s) == (64, 7200.0, 1800.0)
    assert (settings.logging.every_s, settings.logging.sinks) == (0.0, ["wandb", "tensorboard"])
    assert (settings.logging.output_bytes, settings.evaluation.first_failures) == (2_000_000, None)
    assert settings.task_options == {"epochs": 10, "widths": [32, 64], "nested": {"a": [True, "x"]}}
    assert settings.model_dump(mode="json")["directory"] == "runs/digits"


def test_an_island_overrides_only_what_it_names() -> None:
    settings = from_keywords(**flat())
    assert settings.search_of(0) == settings.search
    own = settings.search_of(1)
    assert (own.kind, own.migration, own.mutation, own.exchange) == ("cmaes", 0.0, 0.5, "pollination")
    fewer = from_keywords(directory="x", evaluations=1, islands=3, random=0.2, island=[{"random": 0.1}])
    assert [fewer.search_of(island).random for island in range(3)] == [0.1, 0.2, 0.2]


DURATIONS = {
    90: 90.0, 0.5: 0.5, "90s": 90.0, "30min": 1800.0, "30m": 1800.0, "2h": 7200.0, "1h30m": 5400.0,
    "1 h 30 min": 5400.0, "1.5h": 5400.0, "1d2h3m4s": 93784.0, "2 Days 5 minutes": 173100.0, "08:00:00": 28800.0,
    "1-00:00:30": 86430.0, datetime.time(8): 28800.0, datetime.timedelta(hours=1): 3600.0,
}  # fmt: skip
NO_DURATIONS = ["soon", "", "-1h", "1h1h", "5min 3m", "1w", "1,5h", "08:00", "1 hou", 0, -1, True, "0s", [1]]


def test_durations_and_sizes() -> None:
    for written, seconds in DURATIONS.items():
        assert from_keywords(directory="x", deadline=written).deadline_s == seconds
    for size, count in {"5mb": 5_000_000, "10 MiB": 10 * 2**20, "2.5GB": 2_500_000_000, "off": None}.items():
        assert from_keywords(directory="x", evaluations=1, log_output=size).logging.output_bytes == count
    assert from_keywords(directory="x", evaluations=1, grace=0).evaluation.grace_s == 0.0
    assert from_keywords(directory="x", evaluations=1, pruner=None).search.pruner == "none"


def test_what_is_no_duration(tmp_path: Path) -> None:
    for written in NO_DURATIONS:
        (line,) = refusal(tmp_path, {"directory": "x", "evaluations": 1, "timeout": written})
        assert line.startswith(f"timeout = {written!r}: must be a duration above 0")


WRONG: list[tuple[str | dict[str, object], str, str]] = [
    # misplaced and misspelt keys
    ("evalutions = 3", "evalutions = 3", "evaluations is given, too"),
    ("islands = 3", "islands = 3", "in [layout]"),
    ("timout = 3", "timout = 3", '"timeout" in [evaluation]'),
    ("deadline_s = 3", "deadline_s = 3", '"deadline"?'),
    ("[layot]\nislands = 2", "[layot]", '"layout"'),
    ("[options]", "[options]", '"task_options"'),
    ("[layout]\nseed = 3", "[layout] seed = 3", "at the top"),
    ("[evaluation]\nkind = true", "[evaluation] kind = true", "in [search]"),
    ("[evaluation]\nretris = 2", "[evaluation] retris = 2", '"retries"?'),
    ('[evaluation]\nmutatoin = "x"', '[evaluation] mutatoin = "x"', '"mutation" in [search]'),
    ("[layout]\nxyzzy = 1", "[layout] xyzzy = 1", "islands, ranks_per_worker, topology"),
    ("[[island]]\nkin = 1", "[[island]] number 1, kin = 1", '"kind"?'),
    ("[[island]]\nislands = 2", "[[island]] number 1, islands = 2", "in [layout]"),
    ("[search.layout]\nislands = 2", '[search] layout = {"islands": 2}', "write [layout]"),
    ('layout = "x"', 'layout = "x": must be a section', "[layout]"),
    ("evaluation = 12", "evaluation = 12: must be a section", '"evaluations"?'),
    ("island = 3", "island = 3: must be a table for each island", "[[island]]"),
    ("[island]\nkind = 'pso'", 'island = {"kind": "pso"}: must be a table', "[[island]]"),
    # values
    ("seed = -1", "seed = -1: must be a whole number from 0", ""),
    ("seed = true", "seed = true: must be a whole number from 0", ""),
    ("keep = 'x'", 'keep = "x": must be a whole number from 0', ""),
    ("[layout]\nislands = 0", "[layout] islands = 0: must be a whole number from 1 to 1000000", ""),
    ("[layout]\ntopology = 'rng'", "[layout] topology = 'rng': must be", '"ring"?'),
    ("[layout]\nislands = 2\ntopology = [[0]]", "[layout] topology = [[0]]: must have 2 rows", '"ring"'),
    ("[[island]]\n[[island]]", "there are 2 [[island]] tables and islands = 1", "raise islands"),
    ("[[island]]\nduplicates = true", "[[island]] number 1: duplicates holds for", "[search]"),
    ("[[island]]\nmutation = 2", "[[island]] number 1, mutation = 2: must be a number from 0 to 1", ""),
    ("[search]\nkind = 'nelder_mead'", '[search] kind = "nelder_mead": must be one of', '"nelder-mead"?'),
    ("[search]\nmutation = nan", "[search] mutation = NaN: must be a number from 0 to 1", ""),
    ("[search]\nmigration = 10", "[search] migration = 10: must be", "Write migration = 0.1."),
    ("[search]\nduplicates = 1", "[search] duplicates = 1: must be true or false", ""),
    ('[search]\nduplicates = "True"', '[search] duplicates = "True"', "Write duplicates = true, without"),
    ("[evaluation]\nfirst_failures = 0", "[evaluation] first_failures = 0: must be", '"off"'),
    ("[evaluation]\ninterface = ''", '[evaluation] interface = "": must be the name', ""),
    (
        "[evaluation]\nisolation = 'inline'\ntimeout = 3",
        "[evaluation] timeout cannot be kept",
        "Remove timeout",
    ),
    ('[logging]\nsinks = "wandb"', '[logging] sinks = "wandb"', 'Write sinks = ["wandb"].'),
    ('[logging]\nsinks = ["wandb", "tb"]', '[logging] sinks = "tb"', '"tensorboard"?'),
    ("[task_options]\nwhen = 2020-01-01", 'task_options.when = "2020-01-01": must be strings', ""),
    (
        "[[phase]]\nuntil = 2\nonly = { a = [1] }\n" * 2,
        "[[phase]] number 2: until = 2 must be above",
        "Order",
    ),
    ('[search]\nonly = { opt = "SGD" }', '[search] only.opt = "SGD": must be a table of choices', ""),
    # words of other packages
    ("n_jobs = 4", "n_jobs = 4", "--ranks N"),
    ('sampler = "tpe"', 'sampler = "tpe"', '"kind" in [search]'),
    ('direction = "max"', 'direction = "max"', 'hpo.Task(space, evaluate, "maximize")'),
    ("[slurm]\nnodes = 4", "[slurm]", "hpo slurm FILE --nodes N"),
    ('[search]\nkind = "TPESampler"', '[search] kind = "TPESampler"', '"tpe"?'),
    ('[search]\npruner = "asha"', '[search] pruner = "asha"', '"halving"?'),
    # keywords
    ({"evalutions": 3}, "evalutions = 3", '"evaluations"?'),
    ({"timeout_s": 3}, "timeout_s = 3", '"timeout"?'),
    ({"islands": True}, "islands = True: must be a whole number from 1", ""),
    ({"island": 3}, "island = 3: must be a table", "island=[{…}, …]"),
    ({"island": [{"kin": 1}]}, "island[0] kin = 1", '"kind"?'),
    ({"island": [{"random": 7}]}, "island[0] random = 7: must be a number from 0 to 1", ""),
    ({"task_options": {"a": {1, 2}}}, "task_options.a = {1, 2}: must be strings", ""),
    ({"seed": None}, "seed = None", "Leave it out"),
    ({"evaluations": "1e3"}, "evaluations = '1e3'", "Write evaluations=1000, without quotes."),
    ({"points": {"lr": 1}}, "points = {'lr': 1}", "Write points=[{'lr': 1}]."),
    ({"layout": {"islands": 2}}, "layout = {'islands': 2}", "islands, ranks_per_worker, topology"),
    ({"output": "5MB"}, "output = '5MB'", '"log_output"?'),
    ({"log_every": -1}, "log_every = -1: must be 0, or a duration", ""),
    ({"load_if_exists": True}, "load_if_exists = True", "Leave it out."),
]
"""File or keywords beside LEAST, where and what is wrong by the rule, and the remedy."""


@pytest.mark.parametrize(("written", "place", "remedy"), WRONG, ids=str)
def test_a_mistake_is_refused(
    tmp_path: Path, written: str | dict[str, object], place: str, remedy: str
) -> None:
    least = {"directory": "x", "evaluations": 1}
    (line,) = refusal(tmp_path, LEAST + written if isinstance(written, str) else {**least, **written})
    assert line.startswith(place) and remedy in line


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    lines = refusal(
        tmp_path, "directory = 3\nevaluation = true\nseeed = 2\n[layout]\nislands = 0\nranks = 4\n"
    )
    places = ["task", "evaluation", "seeed", "[layout] ranks", "directory", "[layout] islands"]
    assert [line.split(" = ")[0].split(" is ")[0] for line in lines] == places


def test_a_directory_and_an_end_are_needed(tmp_path: Path) -> None:
    assert refusal(tmp_path, {"directory": "x"})[0].startswith("neither evaluations nor deadline")
    assert refusal(tmp_path, {"evaluations": 1})[0].startswith("directory is missing")
    assert refusal(tmp_path, 'directory = "x"\nevaluations = 1\n')[0].startswith("task is missing")
    # A misspelt end is one problem, and not two.
    (line,) = refusal(tmp_path, LEAST.replace("evaluations", "evalutions"))
    assert line.endswith('Did you mean "evaluations"?')
    assert from_keywords(evaluations=1, directory="~/x").directory == Path.home() / "x"


def test_words_of_other_packages_are_understood_by_search_run_and_set(tmp_path: Path) -> None:
    space = hpo.SearchSpace(x=hpo.Float(0, 1))
    with pytest.raises(UsageError, match="evaluations"):
        hpo.Search(space, n_trials=3)
    with pytest.raises(UsageError, match="ranks=N"):
        hpo.Campaign(hpo.Task(space, len), directory=tmp_path, evaluations=1).run(n_jobs=2)
    with pytest.raises(UsageError, match='"evaluations"'):
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


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    path = file(tmp_path, LEAST)
    (tmp_path / "mine.py").write_text("import hpo\n")
    for bad, remedy in (
        (tmp_path / "campain.toml", '"campaign.toml"?'),
        (tmp_path, "jobs/NAME.toml"),
        (tmp_path / "mine.py", 'task = "mine.py:NAME"'),
    ):
        assert refused(lambda: read_file(bad), remedy).startswith(str(bad))  # noqa: B023
    path.write_bytes(b'task = "\xff"')
    with pytest.raises(UsageError, match="byte 8 is not UTF-8"):
        read_file(path)


@pytest.mark.parametrize(
    ("text", "place"),
    [("a = \n", ", line 1, column 5: "), ('x = "1"\ny = [1,\n', ""), ("a = True\n", ", line 1, column 5: ")],
)
def test_text_that_is_no_toml_is_refused_with_its_line(tmp_path: Path, text: str, place: str) -> None:
    path = file(tmp_path, text)
    assert refused(lambda: read_file(path), "not valid TOML").startswith(f"{path}{place}")


SLURM_0 = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}
OMPI = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8", "PMIX_RANK": "3"}
LAUNCHERS: list[tuple[dict[str, str], Launcher]] = [
    ({}, Launcher()),
    ({process.STARTED_BY: "12"}, Launcher(supervisor="12")),
    ({**OMPI, process.STARTED_BY: "1"}, Launcher(rank=3, size=8, supervisor="1")),
    ({"OMPI_COMM_WORLD_RANK": "x"}, Launcher()),
    ({"PMIX_RANK": "2"}, Launcher(rank=2)),
    ({"PMI_RANK": "0", "PMI_SIZE": "4"}, Launcher(rank=0, size=4)),
    ({**SLURM_0, "SLURM_PROCID": "5", "SLURM_NTASKS": "8"}, Launcher(rank=5, size=8)),
    ({**SLURM_0, "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "2"}, Launcher(rank=0, size=2)),
    ({**SLURM_0, "SLURM_NTASKS": "2", "PMIX_RANK": "0"}, Launcher(rank=0, size=2)),
    (SLURM_0, Launcher()),
    ({**SLURM_0, "PMI_RANK": "0", "PMI_SIZE": "1"}, Launcher()),
    ({**SLURM_0, "SLURM_NTASKS": "8", "PMI_RANK": "3", "PMI_SIZE": "8"}, Launcher(rank=3, size=8)),
    ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, Launcher()),
    ({**SLURM_0, "SLURM_STEP_ID": "4294967291", "SLURM_NTASKS": "8"}, Launcher()),
    ({**SLURM_0, "SLURM_STEP_ID": "4294967290", "SLURM_NTASKS": "8"}, Launcher()),
]


def test_the_environment_names_the_launcher() -> None:
    for environ, expected in LAUNCHERS:
        assert launcher(environ) == expected, environ


def test_space_task_and_what_status_reads_import_neither_pydantic_nor_numpy_nor_torch() -> None:
    code = (
        "import sys, hpo.space.space, hpo.config.layout, hpo.task.task, hpo.results.overview\n"
        "from hpo.task.metrics import keep; keep('m', [1, 2.0], {}, {}); keep('m', object(), {}, {})\n"
        "print([m for m in ('pydantic', 'numpy', 'torch', 'cloudpickle', 'propulate') if m in sys.modules])"
    )
    assert called(sys.executable, "-c", code, env={"PYTHONPATH": str(ROOT)}).stdout.strip() == "[]"
