"""Commands to a campaign that runs."""

from __future__ import annotations

import pytest
from terminal import Terminal, wait_until

from hpo import cli
from hpo.results import result as results


def test_a_running_campaign_is_steered(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(terminal.directory)
    run = terminal.directory / "run"

    def given(*words: str) -> str:
        assert cli.main([words[0], "run", *words[1:]]) == 0
        return capsys.readouterr().out

    def state(key: str = "state") -> object:
        return results.status(results.load(run))[key]

    terminal.task(0.02)
    terminal.campaign(evaluations=100_000)
    command = terminal.start("run", "c.toml")
    wait_until(lambda: len(terminal.side()) >= 3, "a few evaluations")
    assert "within seconds" in given("pause")
    wait_until(lambda: state() == "paused" and state("running") == 0, "the pause")
    before = len(terminal.side())
    (run / "commands" / "nonsense").write_text("{")
    given("set", f"evaluations={before + 5}")
    given("enqueue", '{"x": 0.125, "n": 3}')
    wait_until(lambda: len(terminal.records("command")) == 3, "the commands")
    assert len(terminal.side()) == before and state("budget") == {"evaluations": before + 5, "deadline": None}
    given("unpause")
    done = command.wait()
    assert done.returncode == 0 and f"done: {before + 5}/{before + 5} evaluated" in done.stderr
    assert done.stderr.count("commands/nonsense is no command") == 1
    finished = terminal.records("finished")
    assert len(finished) == before + 5 and state() == "done"
    assert (finished[before]["operator"], finished[before]["params"]) == ("enqueued", {"x": 0.125, "n": 3})
