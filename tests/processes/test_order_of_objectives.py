"""A campaign keeps the order of its objectives, whose first says what is best, whatever order its task has later."""

from __future__ import annotations

from pathlib import Path

import hpo
from hpo.campaign.rank.greeting import own_hello

SPACE = hpo.SearchSpace(x=hpo.Float(0.0, 1.0), y=hpo.Float(0.0, 1.0))
COST_FIRST = {"cost": "minimize", "score": "maximize"}
SCORE_FIRST = {"score": "maximize", "cost": "minimize"}


def evaluate(trial: hpo.Trial) -> dict[str, float]:
    return {"cost": trial.params["x"] + trial.params["y"], "score": trial.params["x"]}


def campaign(directory: Path, objectives: dict[str, str], evaluations: int) -> hpo.Campaign:
    task = hpo.Task(SPACE, evaluate, objectives=objectives)
    return hpo.Campaign(task, directory=directory, evaluations=evaluations, isolation="inline", kind="random")


def test_a_campaign_goes_on_in_the_order_in_which_it_began(tmp_path, capsys):
    directory = tmp_path / "run"
    for evaluations, objectives in ((100, COST_FIRST), (110, SCORE_FIRST), (120, COST_FIRST)):
        going_on = campaign(directory, objectives, evaluations)
        given = going_on.task
        result = going_on.run()
        assert [*given.objectives] == [*objectives]  # the user's own stays as it is
        cheapest = min(result.individuals, key=lambda one: one.objectives["cost"])
        assert result.best.id == cheapest.id
        assert f"({cheapest.id})" in capsys.readouterr().err.splitlines()[-1]
    assert len(result.individuals) == 120


def test_ranks_with_another_order_do_not_run_together(tmp_path: Path) -> None:
    first, second = (campaign(tmp_path / "run", objectives, 1) for objectives in (COST_FIRST, SCORE_FIRST))
    hellos = [own_hello(first.settings, one.identity).fingerprint for one in (first, first, second)]
    assert hellos[0] == hellos[1] != hellos[2]
