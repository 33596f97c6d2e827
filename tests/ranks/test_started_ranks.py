"""``Campaign.run(ranks=…)`` from a script and from a notebook: the task is defined there, and ranks do not run that."""

from __future__ import annotations

import signal

import pytest
from terminal import Terminal, wait_until

import hpo
from hpo.campaign import handed_on

SCRIPT = """
import os, sys, time
import hpo
from task import note

note("run", "by", os.getpid())
SCALE = 2.0
space = hpo.SearchSpace(x=hpo.Float(-1.0, 1.0))


def evaluate(trial):
    note(trial.id, "began")
    time.sleep(SECONDS)
    return SCALE * trial.params["x"] ** 2


campaign = hpo.Campaign(hpo.Task(space, evaluate), directory="run", kind="random", KEYWORDS)
result = campaign.run(ranks=RANKS)
print(result.reason, len(result.dataframe()), campaign.exit_code)
"""
"""Without ``if __name__ == "__main__"``; notes each process that runs it."""


def write(
    terminal: Terminal, *, seconds: float = 0.0, ranks: int = 2, keywords: str = "evaluations=8"
) -> None:
    terminal.task()  # for its ``note``
    text = SCRIPT.replace("SECONDS", repr(seconds)).replace("RANKS", str(ranks))
    terminal.write("script.py", text.replace("KEYWORDS", keywords))


def workers(terminal: Terminal) -> set[object]:
    return {record["worker"] for record in terminal.records("finished")}


def test_a_script_starts_ranks_which_do_not_run_it(terminal: Terminal) -> None:
    write(terminal, seconds=0.02)
    done = terminal.python("script.py").wait()
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["done", "8", "0"]
    assert workers(terminal) == {0, 1}
    assert terminal.side("by") == ["run"]
    assert terminal.processes() == []
    # What is kept is the code of the script, not of the module that the ranks run.
    assert "SCALE = 2.0" in (next((terminal.directory / "run" / "code").rglob("__main__.py"))).read_text()
    # It goes on from its directory, on another number of ranks.
    write(terminal, seconds=0.02, ranks=1, keywords="evaluations=10")
    done = terminal.python("script.py").wait()
    assert done.stdout.split() == ["done", "10", "0"], done.stderr
    assert "changed" not in done.stderr


def test_ctrl_c_stops_the_campaign_in_good_order_and_the_death_of_the_script_too(terminal: Terminal) -> None:
    write(terminal, seconds=0.3, keywords='evaluations=10**6, grace="1s"')
    command = terminal.python("script.py")
    wait_until(lambda: len(terminal.side("began")) > 2, "evaluations that begin")
    command.signal(signal.SIGINT)
    done = command.wait()
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0::2] == ["stopped", "75"]
    assert terminal.processes() == []

    begun = len(terminal.side("began"))
    command = terminal.python("script.py")
    wait_until(lambda: len(terminal.side("began")) > begun + 2, "evaluations that begin")
    command.signal(signal.SIGKILL)
    command.process.wait(10.0)
    wait_until(lambda: not terminal.processes(), "the end of all processes")
    assert [record["exit"] for record in terminal.records("ended")] == [75, 75]
    command.wait()


def test_what_ranks_cannot_do_is_an_error_of_the_call(terminal: Terminal) -> None:
    write(terminal, ranks=3, keywords="evaluations=8, ranks_per_worker=2")
    done = terminal.python("script.py").wait()
    assert "UsageError" in done.stderr and "multiple" in done.stderr
    # Ranks import a module that runs the campaign: they must not start campaigns in turn.
    write(terminal)
    terminal.write("main.py", "import script")
    done = terminal.python("main.py").wait()
    assert done.returncode == 1
    assert "hpo.errors.UsageError" in done.stderr and 'if __name__ == "__main__"' in done.stderr
    assert terminal.processes() == []
    # What all evaluations say is in the error of a campaign that cannot go on.
    write(terminal, keywords="evaluations=64, first_failures=3")
    script = terminal.directory / "script.py"
    script.write_text(script.read_text().replace('note(trial.id, "began")', 'raise OSError("no such data")'))
    done = terminal.python("script.py").wait()
    assert (
        "hpo.errors.CampaignError" in done.stderr
        and "no such data" in done.stderr.rpartition("CampaignError")[2]
    )


@pytest.mark.parametrize("ranks", [0, True, "2", 3])
def test_the_number_of_ranks_has_to_be_one_and_that_of_the_launch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object, ranks: object
) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    task = hpo.Task(hpo.SearchSpace(x=hpo.Float(0.0, 1.0)), lambda trial: 0.0)
    campaign = hpo.Campaign(task, directory=f"{tmp_path}/run", evaluations=1)
    with pytest.raises(hpo.UsageError, match=r"run\(ranks="):
        campaign.run(ranks=ranks)  # type: ignore[arg-type]


def test_errors_of_ranks_keep_their_class() -> None:
    refusal = handed_on.Refusal(kind="JournalDamaged", text="j, line 3: bad", exit_code=1, path="j", line=3)
    error = refusal.error()
    assert isinstance(error, hpo.JournalDamaged) and (str(error), error.path, error.line) == (
        "j, line 3: bad",
        "j",
        3,
    )
    assert handed_on.Refusal(kind="UsageError", text="x", exit_code=2).error().exit_code == 2


def test_what_was_not_handed_on_is_not_unpickled(tmp_path: object) -> None:
    file = f"{tmp_path}/payload"
    with open(file, "wb") as other:
        other.write(b"cos\nsystem\n(S'touch unpickled'\ntR.")
    with pytest.raises(hpo.CampaignError, match="is not what"):
        handed_on._load("0" * 64, file)


# --- in a notebook ----------------------------------------------------------------------------------------------------

CELLS = [
    """
import hpo
SCALE = 2.0
def evaluate(trial):
    print("a flood", flush=True)
    return SCALE * trial.params["x"] ** 2
task = hpo.Task(hpo.SearchSpace(x=hpo.Float(-1.0, 1.0)), evaluate)
""",
    """
hpo.Campaign(task, directory="run", kind="random", evaluations=8, isolation="inline").run(ranks=2).reason
""",
    """
hpo.Campaign(task, directory="run", kind="random", evaluations=9).run().reason
""",
]


def test_a_notebook_runs_its_own_function_on_ranks_and_shows_a_bar(terminal: Terminal) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    client = nbclient.NotebookClient(
        book, timeout=120, resources={"metadata": {"path": str(terminal.directory)}}
    )
    client.execute(env=terminal.environment)
    _, several, one = (cell.outputs for cell in book.cells)
    for outputs, budget in ((several, 8), (one, 9)):
        bar = outputs[0]["data"]
        assert f'<progress value="{budget}" max="{budget}"' in bar["text/html"]
        assert bar["text/plain"].startswith(f"done: {budget} of {budget}")
        assert outputs[-1]["data"]["text/plain"] == "'done'"
    assert "a flood" not in str([several, one])
    assert workers(terminal) == {0, 1}
    assert terminal.processes() == []
