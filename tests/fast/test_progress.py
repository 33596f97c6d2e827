"""The line of a running campaign, and its last one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hpo
from hpo.campaign.progress import Display
from hpo.config.reader import from_keywords
from hpo.individual import COMPLETED
from hpo.islands.coordinator.tally import BestSoFar, Tally
from hpo.results import overview
from hpo.results.record import load
from hpo.views import text
from hpo.views.report.command import read
from hpo.views.report.health import findings
from hpo.views.terminal import best_report, panel


def evaluate(trial: hpo.Trial) -> float:
    if trial.params["n"] > 6:
        raise hpo.Pruned
    return float(trial.params["n"])


def test_the_last_line_counts_pruned_individuals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = hpo.Task(hpo.SearchSpace(n=hpo.Int(1, 10)), evaluate)
    hpo.Campaign(task, directory=tmp_path / "run", evaluations=10, isolation="inline").run()
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("done: 10/10 evaluated  best 1 ") and last.endswith("  0 failed  4 pruned")


@pytest.mark.parametrize(
    ("pruner", "last", "said"), [("halving", None, 1), ("halving", 1, 0), ("none", None, 0)]
)
def test_a_pruner_without_reports_is_said_in_the_run_in_status_and_in_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pruner: str, last: int | None, said: int
) -> None:
    def reporting(trial: hpo.Trial) -> float:
        if last is not None:
            trial.report(last, 1.0)
        return 1.0

    home = tmp_path / "run"
    task = hpo.Task(hpo.SearchSpace(n=hpo.Int(1, 9)), reporting)
    for evaluations, there in ((2, 0), (6, said)):  # each launch reads the earlier from the journals
        hpo.Campaign(task, directory=home, evaluations=evaluations, isolation="inline", pruner=pruner).run()
        assert capsys.readouterr().err.count("no evaluation has called trial.report") == there
        kept, record = overview.read(home), load(home)
        assert kept is not None and len(kept.remarks) == there
        assert kept.remarks == kept.table()["remarks"] == overview.folded(record).remarks
        shown = [text.status(home, kept), *(one.text for one in findings(read([home])[0]))]
        assert sum("no evaluation has called" in one for one in shown) == 2 * there


class Alone(SimpleNamespace):
    """A coordinator of which no other launch knows."""

    alone = True
    ended_early = None

    @property
    def final(self) -> int:
        found: int = self.tally.final
        return found


def launch_of(directory: Path, **limits: Any) -> tuple[Any, Display]:
    """A coordinator, and the display of a launch that began at 100 s with ten evaluated before."""
    coordinator = Alone(
        **{"evaluations": None, "deadline": None, **limits},
        tally=Tally(counts={COMPLETED: 10}),
        counts={},
        futile_ends={},
        busy=2,
        paused=False,
        stopping=None,
        waited_for_storage=lambda now: None,
    )
    task = hpo.Task(hpo.SearchSpace(n=hpo.Int(1, 9)), evaluate)
    display = Display(from_keywords(directory=directory, evaluations=1), task, workers=3)
    display.update(coordinator, 100.0)  # type: ignore[arg-type]
    return coordinator, display


@pytest.mark.parametrize(
    ("done", "limits", "shown"),
    [
        (120, {"evaluations": 250}, ["130/250 evaluated", "2.0/s", "0:01:00 left"]),
        (30, {"evaluations": 100}, ["40/100 evaluated", "30.0/min", "0:02:00 left"]),
        (30, {"evaluations": 100, "deadline": 190.0}, ["0:00:30 left"]),
        (30, {"evaluations": 100, "deadline": 9000.0}, ["0:02:00 left"]),
        (30, {"deadline": 7360.0}, ["40 evaluated", "2:00:00 left"]),
        (1, {"evaluations": 3000}, ["11/3000 evaluated", "1.0/min"]),
        (0, {"evaluations": 100}, ["10/100 evaluated"]),
    ],
)
def test_rate_and_time_left_are_those_of_this_launch(
    tmp_path: Path, done: int, limits: dict[str, Any], shown: list[str]
) -> None:
    coordinator, display = launch_of(tmp_path, **limits)
    coordinator.tally.counts[COMPLETED] += done
    parts = display.line(coordinator, 160.0).split("  ")
    assert {*shown} <= {*parts} and "2/3 workers busy" in parts
    assert done or not any("left" in part or "/h" in part for part in parts)


@pytest.mark.parametrize(
    ("done", "budget", "shown"), [(10, 10, "all 10 evaluations"), (10, 5, "the budget is 5"), (9, 10, "")]
)
def test_a_launch_with_nothing_to_evaluate_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], done: int, budget: int, shown: str
) -> None:
    coordinator, _ = launch_of(tmp_path, evaluations=budget, end=None)
    task = hpo.Task(hpo.SearchSpace(n=hpo.Int(1, 9)), evaluate)
    Display(from_keywords(directory=tmp_path, evaluations=1), task, workers=3, done=done).finish(
        coordinator, "done", 1.0
    )
    said = capsys.readouterr().err
    assert shown in said and ("evaluations=20" in said) == bool(shown)


@pytest.mark.parametrize(
    ("objectives", "losses", "shown"),
    [
        (None, (-0.75,), "best -0.75 (0-0-1)"),
        ({"accuracy": "maximize"}, (-0.75,), "best 0.75 (0-0-1)"),
        ({"accuracy": "maximize", "seconds": "minimize"}, (-0.75, 12.5), "best accuracy 0.75, seconds 12.5 (0-0-1)"),
    ],
)  # fmt: skip
def test_of_several_objectives_the_line_names_each(
    tmp_path: Path, objectives: dict[str, str] | None, losses: tuple[float, ...], shown: str
) -> None:
    coordinator, _ = launch_of(tmp_path)
    coordinator.tally.enter(BestSoFar(losses, "0-0-1"))
    task = hpo.Task(hpo.SearchSpace(n=hpo.Int(1, 9)), evaluate, objectives=objectives)
    display = Display(from_keywords(directory=tmp_path, evaluations=1), task, workers=3)
    assert shown in display.line(coordinator, 160.0).split("  ")


@pytest.mark.parametrize(("several", "way"), [(False, "maximize"), (True, "minimize")])
def test_values_that_differ_in_their_last_digits_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], several: bool, way: str
) -> None:
    objectives = {"energy": way, **({"seconds": "minimize"} if several else {})}

    def evaluate(trial: hpo.Trial) -> dict[str, float]:
        energy = 1e9 + trial.params["n"] / 10
        return dict(zip(objectives, (energy, energy if way == "maximize" else -energy)))

    task = hpo.Task(hpo.SearchSpace(n=hpo.Int(1, 3)), evaluate, objectives=objectives)
    home = tmp_path / "run"
    hpo.Campaign(task, directory=home, evaluations=3, isolation="inline", kind="grid").run()
    kept, best = overview.read(home), "1000000000.1" if way == "minimize" else "1000000000.3"
    assert kept is not None and kept.best == overview.folded(load(home)).best
    for shown in (
        capsys.readouterr().err.splitlines()[-1],
        text.status(home, kept),
        panel.line(kept, kept.taken),
        best_report.best(home, None),
    ):
        assert best in shown
