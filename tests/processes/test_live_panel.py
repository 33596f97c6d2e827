"""The panel on a terminal: what others write stays above it, and the terminal is left in order however the campaign's
process ends. A script stands for that."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import living
import pytest
from places import ROOT
from screens import Person
from terminal import wait_until

from hpo.journal import directory
from hpo.journal.files import JournalWriter, journal_path
from hpo.journal.records import Header, Launched
from hpo.results import overview
from hpo.results.record import load

SCRIPT = """
import os, signal, subprocess, sys, time
from pathlib import Path
from hpo.campaign.live_panel import live_panel
from hpo.config import process

def until(name):
    end = time.monotonic() + 60
    while not Path(name).exists() and time.monotonic() < end:
        time.sleep(0.01)

print("before")
assert process.terminal_columns() is not None
with live_panel(Path("run")) as inherited:
    assert process.panel_shown() and process.terminal_columns() is None
    print("from Python")
    os.write(2, b"\\rbar 1%\\rbar 100%")
    until("drawn")
    subprocess.run(["sh", "-c", "echo; echo from a child"])
    {then}
assert not process.panel_shown()
print("after")
"""


def seated(place: Path, then: str) -> Person:
    """Sits at a terminal, on which SCRIPT runs."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    return Person(place, [sys.executable, "-c", SCRIPT.format(then=then)], variables)


@pytest.fixture
def at_work(tmp_path: Path):
    """A campaign in run/, at work."""
    home = tmp_path / "run"
    directory.write_identity(home, {"task": "t", "objectives": {"value": "minimize"}, "space": {}})
    path = journal_path(home, launch=1, island=0, worker=0)
    with (
        living.at_work(home) as sign,
        JournalWriter(path, Header.of_this_process(launch=1, island=0, worker=0)) as writer,
    ):
        writer.append(Launched(evaluations=9, deadline_s=None, islands=1, workers=3, time=time.time()))
        writer.commit()
        overview.write(home, overview.folded(load(home)), sign)
        yield tmp_path


ABOVE = ["before", "from Python", "bar 100%", "from a child"]
ENDS = {
    "in order, beside a child that goes on": ("subprocess.Popen(['sleep', '60'])", 0, "after"),
    "an error": ("raise ValueError('no\\nmore')", 1, "ValueError: no"),
    "Ctrl-C": ("time.sleep(60)", -signal.SIGINT, "KeyboardInterrupt"),
}


@pytest.mark.parametrize("how", ENDS)
def test_what_is_written_stays_and_the_terminal_is_left_in_order(at_work: Path, how: str) -> None:
    then, code, last = ENDS[how]
    person = seated(at_work, then)
    person.sees("── run ")
    person.sees("3 idle")
    wait_until(lambda: person.rows[:3] == ABOVE[:3], "the bar above the panel", pause_s=0.02)
    assert person.rows[3].startswith("── run ")
    (at_work / "drawn").touch()
    if how == "Ctrl-C":
        person.sees("from a child")
        os.write(person.master, b"\x03")
    assert person.end() == code
    person.sees(last)
    rows = person.rows
    if how == "Ctrl-C":
        rows = [row.removeprefix("^C") for row in rows]
    wait_until(lambda: not person.rows or not person.screen.cursor.hidden, "the cursor")
    assert [row for row in rows if row][:4] == ABOVE
    assert not any("── run " in row for row in rows), rows
    os.close(person.master)


def test_a_killed_campaign_leaves_the_terminal_in_order_and_what_it_started_can_write(at_work: Path) -> None:
    writer = "import pathlib, time; time.sleep(1); print('x', flush=True); pathlib.Path('written').touch()"
    person = seated(
        at_work,
        f"subprocess.Popen([sys.executable, '-c', {writer!r}], pass_fds=inherited, start_new_session=True); "
        "until('shown'); os.kill(os.getpid(), signal.SIGKILL)",
    )
    person.sees("── run ")
    (at_work / "drawn").touch()
    person.sees("from a child")
    (at_work / "shown").touch()
    assert person.end() == -signal.SIGKILL
    assert [row for row in person.rows if row][:4] == ABOVE
    assert not person.screen.cursor.hidden
    wait_until((at_work / "written").exists, "the end of the writer")
    os.close(person.master)


def test_a_panel_that_cannot_be_drawn_prints_what_is_written(at_work: Path) -> None:
    person = seated(
        at_work,
        "from hpo.campaign import live_panel as module; module.Printed.take = None; "
        "subprocess.run(['sh', '-ec', 'echo; for i in 1 2 3 4 5; do sleep 0.2; echo goes on $i; done'], check=True)",
    )
    person.sees("── run ")
    (at_work / "drawn").touch()
    assert person.end() == 0
    person.sees("after")
    rows = person.rows
    # What had just arrived may be lost with the error.
    assert [row for row in rows if "goes on " in row][-4:] == [f"goes on {number}" for number in range(2, 6)]
    assert not any("── run " in row for row in rows) and not person.screen.cursor.hidden
    os.close(person.master)
