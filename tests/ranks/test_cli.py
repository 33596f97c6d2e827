"""The command line as a user types it: what each command prints, what it refuses and how, and its exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cases import cases
from skips import not_possible_here
from terminal import Terminal

import hpo
from hpo import cli
from hpo.journal.commands import Stop, asked
from hpo.journal.directory import second_campaign, write_identity
from hpo.ledger.alive import living
from hpo.ledger.opening import give


def refused(done: subprocess.CompletedProcess[str], code: int, *words: str, lines: int = 1) -> None:
    """``done`` failed with ``code`` and so many lines that hold all ``words``, and no traceback."""
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr, f"{word!r} is not in: {done.stderr}"
    said = done.stderr.splitlines()
    assert said[0].startswith("hpo: ") and len(said) == lines, done.stderr


Typed = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def typed(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Typed]:
    """``typed(*arguments)``: the command in this process, for what is refused before anything starts."""
    monkeypatch.chdir(terminal.directory)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = {*sys.modules}

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        words = [*map(str, arguments)]
        try:
            code = cli.main(words)
        except SystemExit as ended:
            code = int(ended.code or 0)
        printed = capsys.readouterr()
        return subprocess.CompletedProcess(words, code, printed.out, printed.err)

    yield run
    for name in {*sys.modules} - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(terminal.directory)):
            del sys.modules[name]


BASE = 'task = "task.py:task"\ndirectory = "run"\nevaluations = 5\n'
SPACE = "import hpo\ntask = hpo.Task(hpo.SearchSpace({}), lambda trial: 0.0)\n"
REFUSED: list[tuple[dict[str, str], list[str], int, list[str]]] = [
    # the campaign file
    ({"c.toml": BASE + "deadlin = 9"}, ["run", "c.toml"], 2, ["c.toml", "deadlin = 9", '"deadline"?']),
    ({"c.toml": BASE.replace("5", '"many"')}, ["run", "c.toml"], 2, ['evaluations = "many"']),
    ({"c.toml": BASE + "[task_options]\nepochs = 3"}, ["run", "c.toml"], 2, ["(epochs)", "Remove them"]),
    ({}, ["run", "absent.toml"], 2, ["absent.toml", "c.toml"]),
    ({}, ["run", "."], 2, ["."]),
    # the task
    ({"c.toml": BASE.replace("y:task", "y:tusk")}, ["run", "c.toml"], 1, ["no 'tusk'", '"task"?']),
    ({"c.toml": BASE.replace("task.py:", "tusk.py:")}, ["run", "c.toml"], 1, ["tusk.py", '"task.py"?']),
    ({"c.toml": BASE.replace("task.py:", "tusk:")}, ["run", "c.toml"], 1, ['"tusk"']),
    ({"task.py": SPACE.format("x=hpo.Float(2.0, 1.0)")}, ["run", "c.toml"], 2, ["line 2", "Float(1.0, 2.0)"]),
    # the layout
    ({"c.toml": BASE + "layout.islands = 3"}, ["run", "c.toml", "--ranks", "2"], 2, ["3 is the nearest"]),
    ({"c.toml": BASE + "layout.islands = 3000"}, ["run", "c.toml"], 2, ["3000 ranks", "--ranks 3000"]),
    (
        {"c.toml": BASE + "layout = { islands = 1000000, ranks_per_worker = 1000000 }"},
        ["run", "c.toml"],
        2,
        [f"{10**12} ranks", "Choose a smaller layout"],
    ),
    ({"c.toml": BASE + "layout.ranks_per_worker = 1000000"}, ["try", "c.toml"], 2, ["a smaller worker"]),
    (
        {"c.toml": BASE + "layout.islands = 30", "hosts": "node1 slots=2\n"},
        ["run", "c.toml", "--hostfile", "hosts"],
        2,
        ["2 slots in the hostfile"],
    ),
    ({}, ["run", "c.toml", "--ranks", "2", "--hostfile", "nowhere"], 2, ["hostfile nowhere"]),
    # directories
    *(({}, [command, "nowhere"], 1, ["nowhere holds no campaign"]) for command in ("status", "best", "stop")),
    ({}, ["export", "nowhere", "t.csv"], 1, ["nowhere holds no campaign"]),
    ({}, ["export", "run", "table.xls"], 2, ["table.xls", ".csv", ".parquet"]),
    *(
        (
            {"c.toml": BASE.replace("run", name)},
            ["run", "c.toml"],
            1,
            [f"{name} cannot be used", "Not a directory"],
        )
        for name in ("task.py", "task.py/run")
    ),
]
"""Files, a command, its exit code and words of its one line."""


@pytest.mark.parametrize(("files", "arguments", "code", "words"), REFUSED, ids=str)
def test_what_cannot_be_is_refused_before_anything_starts(
    terminal: Terminal, typed: Typed, files: dict[str, str], arguments: list[str], code: int, words: list[str]
) -> None:
    terminal.task()
    for name, text in {"c.toml": BASE, **files}.items():
        terminal.write(name, text)
    refused(typed(*arguments), code, *words)
    assert not (terminal.directory / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["COMMAND", "run ", "status "]),
        (["rnu"], ["rnu", "run"]),
        (["run"], ["FILE"]),
        (["run", "c.toml", "--ranks", "two"], ["--ranks", "'two'"]),
        (["run", "c.toml", "--ranks", "0"], ["--ranks", "whole number from 1"]),
        (["best", "run", "--top", "0"], ["--top", "whole number from 1"]),
    ],
)
def test_commands_that_are_not_valid(typed: Typed, arguments: list[str], words: list[str]) -> None:
    done = typed(*arguments)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert all(word in done.stderr for word in words)


def test_what_does_not_suit_the_task_is_said_at_once(terminal: Terminal, typed: Typed) -> None:
    terminal.task()
    text = 'points = [{ x = 9.0 }, { y = 1.0 }]\n[search]\nreported = "loss"\npruner = "median"\n'
    terminal.write("c.toml", BASE + text + '[[island]]\nonly = { kind = ["z"] }\n')
    done = typed("run", "c.toml")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    for word in (
        "[search] reported = 'loss'",
        "[[island]] number 1, only",
        "points, number 1: x",
        "number 2",
    ):
        assert word in done.stderr
    assert not (terminal.directory / "run").exists()


def test_where_nothing_completes_the_error_is_shown(terminal: Terminal, typed: Typed) -> None:
    terminal.write("task.py", FAILING)
    terminal.campaign('[evaluation]\nisolation = "inline"', evaluations=6)
    done = typed("run", "c.toml")
    assert done.returncode == 1
    error = "KeyError: 'learning_rate'"
    for words in ("failed: 6/6 evaluated", "no evaluation has completed", f"0-0-5 the latest: {error}"):
        assert words in done.stderr
    status = typed("status", "run").stdout
    assert "failed: no evaluation completed" in status and error in status
    assert error in typed("best", "run").stdout
    again = typed("run", "c.toml")
    assert again.returncode == 1 and "no evaluation has completed" in again.stderr


def test_ranks_that_a_launcher_has_started_are_not_asked_for(terminal: Terminal) -> None:
    terminal.task()
    terminal.campaign(evaluations=6)
    done = terminal.mpirun(2, "run", "c.toml", "--ranks", 4)
    assert done.returncode == 2 and "--ranks 4: this launch has 2 ranks already" in done.stderr
    assert "Traceback" not in done.stderr and not (terminal.directory / "run").exists()


FAILING = """
import hpo

def evaluate(trial):
    return trial.params["learning_rate"]

task = hpo.Task(hpo.SearchSpace(x=hpo.Float(0.0, 1.0)), evaluate)
"""


def test_ranks_that_are_asked_for_are_not_refused_for_lack_of_cores(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal.task(0.01)
    terminal.campaign('layout.islands = 5\nevaluation.isolation = "inline"', evaluations=10)
    environment = {"SLURM_JOB_ID": "7", "SLURM_TASKS_PER_NODE": "1", "SLURM_JOB_CPUS_PER_NODE": "1"}
    done = terminal.start("run", "c.toml", environment=environment).wait()
    refused(done, 2, "5 ranks", "each of the 1 CPUs in this Slurm job", "--ranks 5")
    terminal.hpo("run", "c.toml", "--ranks", 5, returns=0)


@pytest.mark.parametrize("wrong", cases(["task"], nightly=["layout", "file"]))
def test_under_mpirun_one_rank_speaks_for_all(terminal: Terminal, wrong: str) -> None:
    terminal.task()
    terminal.campaign(
        {"layout": "[layout]\nranks_per_worker = 2", "file": "deadlin = 3", "task": ""}[wrong],
        task="task.py:tusk" if wrong == "task" else "task.py:task",
    )
    done = terminal.mpirun(3, "run", "c.toml")
    assert done.returncode == (1 if wrong == "task" else 2)
    ours = [line for line in done.stderr.splitlines() if line.startswith("hpo: ")]
    word = {"layout": "2 and 4 are the nearest that do", "file": '"deadline"?', "task": '"task"?'}[wrong]
    assert len(ours) == 1 and word in ours[0], done.stderr
    assert "Traceback" not in done.stderr


def test_a_finished_campaign_starts_no_ranks_and_says_how_to_go_on(terminal: Terminal, typed: Typed) -> None:
    terminal.task(0.0)
    terminal.campaign(evaluations=3)
    assert terminal.hpo("run", "c.toml").returncode == 0
    for ranks in ([], ["--ranks", "2"]):
        done = typed("run", "c.toml", *ranks)
        assert done.returncode == 0
        assert "evaluations = 6 in c.toml" in done.stderr and "hpo set run evaluations=6" in done.stderr
    nothing = typed("retry", "run")
    assert nothing.returncode == 0 and "nothing to evaluate again" in nothing.stdout
    assert len(terminal.records("launched")) == 1 and not [*terminal.directory.glob("run/commands/*")]
    # Ranks that are there already say it, too.
    done = terminal.mpirun(2, "run", "c.toml")
    assert done.returncode == 0 and "hpo set run evaluations=6" in done.stderr
    terminal.campaign(evaluations=2)
    assert "3 evaluations are done, and the budget is 2" in typed("run", "c.toml").stderr
    terminal.campaign(evaluations=3)

    assert typed("set", "run", "evaluations=4").returncode == 0
    assert "4/4 evaluated" in terminal.hpo("run", "c.toml").stderr
    terminal.campaign(evaluations=5)
    assert "5/5 evaluated" in terminal.hpo("run", "c.toml").stderr
    assert len(terminal.records("finished")) == 5


def test_a_second_campaign_in_another_folder_is_announced(
    terminal: Terminal, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal.task(0.0)
    terminal.campaign(evaluations=1)
    assert second_campaign(Path("c.toml"), Path("run")) is None
    assert typed("run", "c.toml").returncode == 0
    other = terminal.directory / "other"
    other.mkdir()
    monkeypatch.chdir(other)
    first = typed("run", "../c.toml").stderr
    assert "second campaign" in first and f"cd {terminal.directory}" in first
    terminal.campaign(evaluations=2)
    assert "second campaign" not in typed("run", "../c.toml").stderr
    assert second_campaign(Path("../c.toml"), Path("elsewhere")) is None


# --- directories that cannot be used --------------------------------------------------------------------------------


@pytest.fixture
def unwritable(terminal: Terminal) -> Iterator[Path]:
    """A directory in which not even root can make a file."""
    path = terminal.directory / "sealed"
    path.mkdir()
    if os.geteuid():
        path.chmod(0o500)
        yield path
        path.chmod(0o700)
        return
    if subprocess.run(["chattr", "+i", str(path)], capture_output=True, check=False).returncode:
        not_possible_here("root may write everywhere, as chattr +i does not work on this file system")
    yield path
    subprocess.run(["chattr", "-i", str(path)], check=True)


def test_an_unwritable_directory(terminal: Terminal, typed: Typed, unwritable: Path) -> None:
    terminal.task()
    for name, ranks in ((unwritable.name, 1), (f"{unwritable.name}/run", 2)):
        terminal.write("c.toml", BASE.replace('"run"', f'"{name}"'))
        refused(typed("run", "c.toml", "--ranks", ranks), 1, f"{name} cannot be used", "Name a directory")


def test_a_directory_with_other_files(terminal: Terminal, typed: Typed) -> None:
    terminal.task()
    terminal.campaign()
    (terminal.directory / "run").mkdir()
    terminal.write("run/thesis.tex", "")
    refused(typed("run", "c.toml"), 1, "'thesis.tex'", "new or empty directory")
    assert os.listdir(terminal.directory / "run") == ["thesis.tex"]


# --- a campaign's life ----------------------------------------------------------------------------------------------

OPTIONS = """
import hpo

def make(epochs=1, high=1.0):
    return hpo.Task(hpo.SearchSpace(x=hpo.Float(0.0, high)), lambda trial: trial.params["x"] * epochs)

def other():
    return make()
"""


EDITS = (
    (1, "task.py:make", "epochs = 2", ["options.epochs", "was 1, is 2"]),
    (2, "task.py:make", "epochs = 1\nhigh = 2.0", ["options.high", "x: high was 1.0, is 2.0"]),
    (1, "task.py:other", "", ['task was "task.py:make", is "task.py:other"']),
)
"""Ranks, what is edited, and what is said of it."""


def test_what_was_edited_is_named_on_resume(terminal: Terminal) -> None:
    terminal.write("task.py", OPTIONS)
    inline = '[evaluation]\nisolation = "inline"\n[task_options]\n'
    terminal.campaign(f"{inline}epochs = 1", evaluations=5, task="task.py:make")
    assert terminal.hpo("run", "c.toml").returncode == 0
    before = terminal.records("finished")

    for ranks, task, options, words in EDITS:
        terminal.campaign(inline + options, evaluations=10, task=task)
        done = terminal.hpo("run", "c.toml", "--ranks", ranks)
        refused(done, 1, "run holds another campaign", *words, "Undo the change", 'known = ["run"]')
    assert terminal.records("finished") == before

    terminal.campaign(f"{inline}epochs = 1", evaluations=10, task="task.py:make")
    assert terminal.hpo("run", "c.toml").returncode == 0
    assert terminal.records("finished")[:5] == before and len(terminal.records("finished")) == 10


def test_a_job_that_slurm_starts_again_after_a_stop_ends_with_0(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal.task()
    terminal.campaign()
    run = terminal.directory / "run"
    write_identity(run, hpo.Campaign.from_file(terminal.directory / "c.toml").identity)
    give(run, Stop(**asked()))
    monkeypatch.setitem(terminal.environment, "SLURM_RESTART_COUNT", "1")
    for done in terminal.hpo("run", "c.toml", "--ranks", 2), terminal.mpirun(2, "run", "c.toml"):
        assert done.returncode == 0 and done.stderr.count("nothing is started: `hpo stop ") == 1
        assert terminal.side() == [] and not (run / "launches").exists()


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0 and capsys.readouterr().out == f"hpo {hpo.__version__}\n"


def test_from_the_first_run_to_the_export(terminal: Terminal, typed: Typed) -> None:
    terminal.task(0.01)
    terminal.campaign("[layout]\nislands = 2", evaluations=16, kind="default")
    done = terminal.hpo("run", "c.toml", "--ranks", 3)
    assert done.returncode == 0 and done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith("done: 16/16 evaluated")

    status = terminal.status()
    assert status["evaluations"]["completed"] == sum(status["evaluations"].values()) == 16
    assert status["budget"] == {"evaluations": 16, "deadline": None, "rank_hours": None}
    assert (status["running"], status["islands"], status["workers"]) == (0, 2, 3)
    text = typed("status", "run").stdout
    assert "state             done" in text and "16 completed" in text and status["best"]["id"] in text

    identity = json.loads((terminal.directory / "run" / "campaign.json").read_text())
    top = json.loads(typed("best", "run", "--json", "--top", 3).stdout)
    assert [one["value"] for one in top] == sorted(one["value"] for one in top) and len(top) == 3
    assert (top[0]["id"], top[0]["params"]) == (status["best"]["id"], status["best"]["params"])
    assert all((one["task"], one["options"]) == (identity["task"], identity["options"]) for one in top)
    assert top[0]["id"] in typed("best", "run").stdout

    for suffix in "csv", "json":
        done = typed("export", "run", f"table.{suffix}")
        assert (done.returncode, done.stdout) == (0, f"table.{suffix}: 16 individuals\n")
    rows = json.loads((terminal.directory / "table.json").read_text())
    assert len({row["id"] for row in rows}) == 16
    assert (
        (terminal.directory / "table.csv").read_text().startswith("id,island,worker,sequence,status,value,")
    )

    assert "no campaign is running" in typed("stop", "run").stdout
    assert typed("run", "c.toml").returncode == 0 and len(terminal.side()) == 16


def test_a_reader_that_goes_away_does_not_end_the_campaign(terminal: Terminal) -> None:
    terminal.task(0.01)
    terminal.campaign(evaluations=20)
    command = terminal.start("run", "c.toml")
    command.process.stderr.close()
    command.process.stdout.close()
    assert command.process.wait(60) == 0
    assert terminal.status()["evaluations"]["completed"] == 20


@pytest.mark.parametrize("isolation", ["warm", "inline"])
def test_a_task_may_change_its_working_directory(terminal: Terminal, isolation: str) -> None:
    terminal.write(
        "task.py",
        "import hpo, os\n\n\ndef evaluate(trial):\n    assert os.path.exists('c.toml')\n"
        "    parent = trial.directory.parent\n    os.chdir('/')\n    (trial.directory / 'model').write_text('x')\n"
        "    trial.report(1, 0.5)\n    assert trial.directory.parent == parent\n    return 0.0\n\n\n"
        "task = hpo.Task(hpo.SearchSpace(x=hpo.Float(0.0, 1.0)), evaluate)\n",
    )
    terminal.campaign(f'[evaluation]\nisolation = "{isolation}"\n', evaluations=4)
    terminal.hpo("run", "c.toml", returns=0)
    run = terminal.directory / "run"
    assert len([*run.glob("evaluations/*/model")]) == 3 and len(hpo.Result(run).curves()) == 4
    assert not living(run)
