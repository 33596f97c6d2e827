"""What is shown on a terminal cannot be an order to it, whoever wrote it; and commands that are shown can be copied."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import journals
import pytest
from living import at_work
from terminal import Terminal

import hpo
from hpo import cli, terminal
from hpo.journal import directory
from hpo.journal.files import journal_path
from hpo.ledger.inspection import NOTE, Finding

HOSTILE = "\x1b]0;owned\x07\x1b[2J\r\x7f\x9b31m\u202egpj\u2066\u2028"
OBEYED = re.compile(r"[^\n\t -~\xa0-\u2027\u202f-\u2065\u206a-\ud7ff\ue000-\U0010ffff]")


@pytest.mark.parametrize(
    ("text", "shown", "in_a_line"),
    [
        ("two\n\tlines, ünïcode – ✓", "two\n\tlines, ünïcode – ✓", r"two\n\tlines, ünïcode – ✓"),
        ("\x1b[31m\r\x00\x7f\x9b", r"\x1b[31m\x0d\x00\x7f\x9b", r"\x1b[31m\x0d\x00\x7f\x9b"),
        ("a\u202eb\u2069\u2029\udcff", r"a\u202eb\u2069\u2029\udcff", r"a\u202eb\u2069\u2029\udcff"),
    ],
)
def test_what_a_terminal_would_obey_is_spelt_out(text: str, shown: str, in_a_line: str) -> None:
    assert terminal.visible(text) == terminal.visible(shown) == shown
    assert terminal.one_line(text) == in_a_line


WORDS = ["run", "my run", "$(touch x)", "`touch x`", "a'b\"c", "a\\b", "", "~"]


def test_a_quoted_word_is_that_word_to_a_shell_and_harmless_on_a_terminal(tmp_path: Path) -> None:
    line = ["bash", "-c", f"printf '%s|' {' '.join(map(terminal.quoted, WORDS))}"]
    done = subprocess.run(line, capture_output=True, cwd=tmp_path, timeout=30, check=True)
    assert done.stdout.decode().split("|")[:-1] == WORDS and not list(tmp_path.iterdir())
    hostile = terminal.quoted("\x1b[2J'\\ $x\n")
    assert terminal.one_line(hostile) == hostile


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A campaign of two objectives whose every text is hostile."""
    path = tmp_path / "run"
    ways = {f"f1{HOSTILE}": "maximize", "cost\n": "minimize"}
    directory.write_identity(path, {"task": f"a{HOSTILE}", "objectives": ways, "space": {}, "seed": 0})
    records: list[dict[str, object]] = []
    for number, status in enumerate(["completed", "completed", "failed", "crashed"]):
        complete = status == "completed"
        record = journals.finished(
            f"0-0-{number}",
            dict.fromkeys(ways, float(number)) if complete else None,
            params={f"p{HOSTILE}\n": HOSTILE, "line": "a\nbest  9.9 by nobody"},
            operator=HOSTILE,
            status=status,
            metrics={f"m{HOSTILE}": HOSTILE},
            error=None if complete else f"{status} {HOSTILE}\nTraceback",
        )
        records.append(record)
    journals.write(path, [*records, {"type": "ended", "reason": HOSTILE, "exit": 0, "time": 3.0}])
    return path


def shown(capsys: pytest.CaptureFixture[str], *line: object) -> str:
    cli.main([*map(str, line)])
    told = capsys.readouterr()
    assert OBEYED.search(told.out + told.err) is None, repr(told)
    return told.out + told.err


def test_what_a_journal_says_is_shown_and_not_obeyed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for line in ("status", home), ("best", home), ("best", home, "--top", 1), ("show", home, "0-0-2"):
        assert r"\x1b" in shown(capsys, *line)
    status = shown(capsys, "status", home)
    assert r"a\nbest  9.9 by nobody" in status
    assert len([line for line in status.splitlines() if line.startswith("best")]) == 1


def test_json_and_exports_are_exact(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = json.loads(shown(capsys, "status", home, "--json"))
    assert status["best"]["params"][f"p{HOSTILE}\n"] == HOSTILE
    assert json.loads(shown(capsys, "best", home, "--json"))[0]["task"] == f"a{HOSTILE}"
    assert json.loads(shown(capsys, "check", home, "--json"))["task"] == f"a{HOSTILE}"
    shown(capsys, "export", home, tmp_path / "all.json")
    row = json.loads((tmp_path / "all.json").read_text())[0]
    assert (row["operator"], row[f"metrics.m{HOSTILE}"]) == (HOSTILE, HOSTILE)


def test_errors_name_paths_and_words_harmlessly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert r"\x1b[2J" in shown(capsys, "status", tmp_path / "a\x1b[2Jb")
    with pytest.raises(SystemExit):
        cli.main(["status", "run", "--\x1b[2J"])
    assert r"--\x1b[2J" in capsys.readouterr().err
    finding = Finding(kind=NOTE, file="a\nb", text="c\x1b")
    assert str(finding) == r"note    a\nb: c\x1b"


def test_commands_that_are_shown_name_a_directory_as_one_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "my $(run)"
    space = hpo.SearchSpace(x=hpo.Float(0, 1))
    task = hpo.Task(space, lambda trial: 1 / 0 if trial.params["x"] else 0.0, default={"x": 0.0})
    hpo.Campaign(task, directory=home, evaluations=3, isolation="inline", kind="random").run()
    last = next(line for line in capsys.readouterr().err.splitlines() if "says why" in line)
    assert f"`hpo status '{home}'`" in last
    with at_work(home), pytest.raises(hpo.CampaignError) as caught:
        hpo.Campaign(task, directory=home, evaluations=4, isolation="inline", kind="random").run()
    assert f"`hpo stop '{home}'`" in str(caught.value)
    path = journal_path(home, launch=1, island=0, worker=0)
    path.write_bytes(path.read_bytes().replace(b'"id"', b'"ld"'))
    assert f"`hpo check '{home}' --repair`" in shown(capsys, "check", home)


def test_try_shows_metrics_and_errors_harmlessly_and_the_tasks_output_as_it_is(terminal: Terminal) -> None:
    terminal.write(
        "task.py",
        "import hpo\n"
        "def evaluate(trial):\n"
        "    print('\\x1b[32mgreen\\nepoch 1\\repoch 2', end='')\n"
        "    trial.log(**{'a\\x1b\\nb': 'c\\x1b'})\n"
        "    raise ValueError('\\x1b[2J')\n"
        "task = hpo.Task(hpo.SearchSpace(x=hpo.Float(0, 1)), evaluate)\n",
    )
    terminal.campaign()
    done = terminal.hpo("try", "c.toml")
    assert done.returncode == 1 and "failed after" in done.stdout
    assert "\x1b[32mgreen\nepoch 1\nepoch 2\n" in done.stdout and "    a\\x1b\\nb = c\\x1b\n" in done.stdout
    assert "\x1b" not in done.stderr and r"ValueError: \x1b[2J" in done.stderr


def test_an_interrupt_that_comes_while_a_class_is_made_is_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(options: object) -> int:
        raise RuntimeError(
            "Error calling __set_name__ on 'member_descriptor' instance"
        ) from KeyboardInterrupt()

    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setitem(cli.COMMANDS, "status", interrupted)
    monkeypatch.setattr("os._exit", leave)
    with pytest.raises(SystemExit) as caught:
        cli.main(["status", "run"])
    assert (
        caught.value.code == 75
        and "interrupted. Nothing that was recorded is lost" in capsys.readouterr().err
    )
