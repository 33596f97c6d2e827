"""``Campaign.run(ranks=…)`` from a script and from a notebook: the task is defined there, and ranks do not run that."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import journals
import pytest
from terminal import Terminal, wait_until

import hpo
from hpo.campaign import rank_entry, start_ranks

SCRIPT = """
import os, sys, time
import hpo
from task import note

note("run", "by", os.getpid())
SCALE = 2.0
space = hpo.SearchSpace(x=hpo.Float(-1.0, 1.0))


def evaluate(trial):
    note(trial.id, "began")
    note(",".join(map(str, sorted(os.sched_getaffinity(0)))), "cores")
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
    done = terminal.python("script.py").wait(returns=0)
    assert done.stdout.split() == ["done", "8", "0"]
    assert workers(terminal) == {0, 1}
    assert terminal.side("by") == ["run"]
    assert terminal.processes() == []
    if len(os.sched_getaffinity(0)) > 1:
        first, second = (set(map(int, listed.split(","))) for listed in set(terminal.side("cores")))
        assert not first & second and first | second == os.sched_getaffinity(0)
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
    done = command.wait(returns=0)
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


def test_an_error_of_ranks_is_one_of_the_call(terminal: Terminal) -> None:
    # Ranks import a module that runs the campaign: they must not start campaigns in turn.
    write(terminal)
    terminal.write("main.py", "import script")
    done = terminal.python("main.py").wait(returns=1)
    assert "hpo.errors.UsageError" in done.stderr and 'if __name__ == "__main__"' in done.stderr
    assert terminal.processes() == []


@pytest.mark.parametrize("ranks", [0, True, "2", 3])
def test_the_number_of_ranks_has_to_be_one_and_that_of_the_launch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ranks: object
) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    task = hpo.Task(hpo.SearchSpace(x=hpo.Float(0.0, 1.0)), lambda trial: 0.0)
    campaign = hpo.Campaign(task, directory=tmp_path / "run", evaluations=1)
    with pytest.raises(hpo.UsageError, match=r"run\(ranks="):
        campaign.run(ranks=ranks)  # type: ignore[arg-type]


def test_errors_of_ranks_keep_their_class() -> None:
    refusal = rank_entry.Refusal(kind="JournalDamaged", text="j, line 3: bad", exit_code=1, path="j", line=3)
    error = refusal.error()
    assert isinstance(error, hpo.JournalDamaged)
    assert (str(error), error.path, error.line) == ("j, line 3: bad", "j", 3)
    assert rank_entry.Refusal(kind="UsageError", text="x", exit_code=2).error().exit_code == 2


def test_what_was_not_transferred_is_not_unpickled(tmp_path: Path) -> None:
    file = tmp_path / "payload"
    file.write_bytes(b"cos\nsystem\n(S'touch unpickled'\ntR.")
    with pytest.raises(hpo.CampaignError, match="is not what"):
        rank_entry._load("0" * 64, str(file))


# --- in a notebook ----------------------------------------------------------------------------------------------------

CELLS = [
    """
import hpo
SCALE = 2.0
def evaluate(trial):
    import os, pathlib, time
    print("a flood", flush=True)
    pathlib.Path(f"began-{os.getpid()}").touch()
    give_up = time.monotonic() + 60
    while len(list(pathlib.Path().glob("began-*"))) < 2 and time.monotonic() < give_up:
        time.sleep(0.01)    # until the other rank has begun one, too
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


def test_a_notebook_runs_its_own_function_on_ranks_and_shows_the_panel(terminal: Terminal) -> None:
    import nbclient
    import nbformat

    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    client = nbclient.NotebookClient(
        book, timeout=120, resources={"metadata": {"path": str(terminal.directory)}}
    )
    client.execute(env=terminal.environment)
    _, several, one = (cell.outputs for cell in book.cells)
    for outputs, budget in ((several, 8), (one, 9)):
        panel = outputs[0]["data"]
        for form in panel["text/html"], panel["text/plain"]:
            assert "done" in form and f"{budget} of {budget}" in form
        assert outputs[-1]["data"]["text/plain"] == "'done'"
    assert "a flood" not in str([several, one])
    assert workers(terminal) == {0, 1, 2}
    assert terminal.processes() == []


@pytest.mark.parametrize(("evaluations", "reason"), [(1, "done"), (2, "stopped")])
def test_a_campaign_that_was_stopped_before_it_was_started_again_is_not_done(
    evaluations: int, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = hpo.Task(hpo.SearchSpace(x=hpo.Float(0, 1)), float)

    class Stopped:
        """Its ranks died, and before it could start them again `hpo stop` was given."""

        launch = 1

        def __init__(self, *arguments: object, **keywords: object) -> None: ...

        def run(self) -> int:
            journals.write(
                tmp_path / "run", [journals.finished("0-0-0", params={"x": 0.5}, status="completed")]
            )
            return 0

    monkeypatch.setattr(start_ranks, "Supervisor", Stopped)
    result = hpo.Campaign(task, directory=tmp_path / "run", evaluations=evaluations).run(ranks=2)
    assert result.reason == reason
