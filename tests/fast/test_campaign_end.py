"""Ends of a campaign before its budget is used up: a value that is good enough, too small a gain, hours used up."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from cases import cases
from simulation.joint_campaigns import SimpleLaunches

import hpo
from hpo import cli
from hpo.campaign.definition import CampaignDefinition
from hpo.campaign.launch import finished
from hpo.config import reader
from hpo.errors import UsageError
from hpo.individual import COMPLETED
from hpo.islands.end_reasons import DONE, HOURS, NO_GAIN, REACHED
from hpo.journal.commands import Pause, Set, Stop
from hpo.ledger.entries import Commanded, Completed, Drew, Joined, Limits, Opened
from hpo.ledger.fold import LedgerState
from hpo.results import curves
from hpo.results.record import load
from hpo.results.result import Result
from hpo.search.campaign_end import BestOverTime, losses_to_reach, noise_of
from hpo.search.population import Member, Population
from hpo.task.limits import checked_limits
from hpo.views.figures.source import Source
from hpo.views.report.summary import summary

ASKED = {"time": 0.0, "by": "me"}
TWO = {"accuracy": "maximize", "seconds": "minimize"}
SPACE = hpo.SearchSpace(x=hpo.Float(0.0, 1.0))


# --- the expected gain ----------------------------------------------------------------------------------------------


def gain_by_hand(ends: list[tuple[float, float | None]], over: int) -> float | None:
    losses = [math.inf if loss is None else loss for _, loss in sorted(ends, key=lambda one: one[0])]
    seen = math.ceil(1.5 * over)
    if len(losses) < max(30, seen + 1) or math.isinf(min(losses[:-seen])):
        return None
    now, last, earlier = min(losses), min(losses[:-over]), min(losses[:-seen])
    return 0.5 * (last - now) + 0.25 * (earlier - last)


@pytest.mark.parametrize("seed", cases(range(20), range(20, 200)))
def test_the_expected_gain_does_not_depend_on_the_order_of_the_journals(seed: int) -> None:
    rng = random.Random(seed)
    number, over = rng.randint(1, 2500), rng.choice([1, 7, 20, 50, 1000])
    losses = [rng.choice([None, round(rng.gauss(0, 1), 1), rng.expovariate(0.1)]) for _ in range(number)]
    ends = list(zip(rng.sample(range(10**6), number), losses))
    expected = gain_by_hand([(float(at), loss) for at, loss in ends], over)
    rng.shuffle(ends)
    history = BestOverTime()
    for at, loss in ends:
        history.add(float(at), None if loss is None else (loss,))
    found = history.expected_gain(over)
    assert found is None if expected is None else found == pytest.approx(expected)


def test_the_noise_is_that_of_repeated_evaluations() -> None:
    rng, population = random.Random(0), Population(best=400)
    for place in range(100):
        for again in range(3):
            loss = place / 100 + rng.gauss(0, 0.1)
            population.add(Member(f"0-{again}-{place}", (float(place),), (loss,), COMPLETED))
    assert noise_of([population]) == pytest.approx(0.1, rel=0.25)
    once = Population()
    once.add(Member("0-0-0", (1.0,), (1.0,), COMPLETED))
    assert noise_of([once]) == 0.0 == noise_of([])


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "objectives", "losses"),
    [
        (0.9, {"value": "maximize"}, (-0.9,)),
        ({"value": 0.5}, {"value": "minimize"}, (0.5,)),
        ({"seconds": 60, "accuracy": 0.9}, TWO, (-0.9, 60)),
        ({"accuracy": 0.9}, TWO, (-0.9, math.inf)),
        (0.9, TWO, "table"),
        ({"acuracy": 0.9}, TWO, '"accuracy"'),
    ],
)
def test_a_value_names_objectives_of_the_task(value: Any, objectives: dict[str, str], losses: Any) -> None:
    if isinstance(losses, str):
        with pytest.raises(UsageError, match=losses):
            losses_to_reach(value, objectives)
    else:
        assert losses_to_reach(value, objectives) == losses


@pytest.mark.parametrize(
    "wrong",
    [
        *({"stop_value": one} for one in (math.nan, math.inf, {}, "good", True, {"value": "good"})),
        *({"stop_gain": one} for one in (0, -0.1, math.nan, "small")),
        *({"stop_over": one} for one in (0, 1.5, 10**6)),
        *({"rank_hours": one} for one in (0, -3, math.nan, math.inf, "5h")),
    ],
    ids=str,
)
def test_nonsense_is_refused_with_its_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"{next(iter(wrong))}.*must be"):
        reader.from_keywords(directory="x", evaluations=9, **wrong)


def test_hours_alone_end_a_campaign_and_a_value_alone_may_not() -> None:
    assert reader.from_keywords(directory="x", rank_hours=3).rank_hours == 3
    with pytest.raises(UsageError, match="nothing would end it"):
        reader.from_keywords(directory="x", stop_value=3)


# --- the ledger -------------------------------------------------------------------------------------------------------


def after(*entries: Any) -> LedgerState:
    state = LedgerState()
    for number, entry in enumerate(entries, start=1):
        state.take(
            type(entry)(**{name: getattr(entry, name) for name in entry.__struct_fields__} | {"n": number})
        )
    return state


def test_an_early_end_holds_until_what_it_came_from_changes() -> None:
    limits = Limits(evaluations=10, stop_value=0.9)
    begun = (
        Opened(limits=limits, in_file=limits, islands=1, seed=0),
        Joined(launch=1, workers=1, first_worker=0, in_file=limits),
        Drew(launch=1, fresh=4),
        Completed(final=0, reason=f"{REACHED}: 0-0-1"),
    )
    assert not after(*begun).may_draw(), "although units are held and free"
    for keeps in (Pause(**ASKED), Stop(**ASKED), Set(**ASKED, evaluations=20), Set(**ASKED, stop_value=0.9)):
        assert after(*begun, Commanded(request=keeps)).completed is not None
    for ends in ({"stop_value": 0.95}, {"stop_gain": 0.1}, {"rank_hours": 5.0}):
        assert after(*begun, Commanded(request=Set(**ASKED, **ends))).may_draw()
    tight = Limits(evaluations=10, stop_value=0.9, outcomes=checked_limits({"memory": 1}, None))
    for in_file, goes_on in ((limits, False), (Limits(evaluations=10), True), (tight, True)):
        state = after(*begun)
        assert (state.end_with(in_file) is None) == goes_on
        state = after(*begun, Joined(launch=2, workers=1, first_worker=1, in_file=in_file))
        assert state.may_draw() == goes_on


# --- campaigns --------------------------------------------------------------------------------------------------------


def run(home: Path, **settings: Any) -> Result:
    task = hpo.Task(SPACE, lambda trial: 1 - (trial.params["x"] - 0.3) ** 2, direction="maximize")
    given = {"evaluations": 300, "isolation": "inline", **settings}
    return hpo.Campaign(task, directory=home, **given).run()


def state_of(home: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert cli.main(["status", str(home), "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


def test_a_value_that_is_reached_ends_the_campaign_until_it_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "run"
    found = run(home, stop_value=0.99)
    assert found.reason == REACHED and found.best is not None and found.best.value >= 0.99
    ended = len(found.dataframe())
    assert ended < 100
    assert state_of(home, capsys)["state"] == "done"
    assert cli.main(["enqueue", str(home), '{"x": 0.9}']) == 0 and "has ended" in capsys.readouterr().out
    assert run(home, stop_value=0.99).reason == REACHED and len(Result(home).dataframe()) == ended
    assert cli.main(["set", str(home), "stop_value=1.5"]) == 0
    whole = run(home, stop_value=0.99)  # against the file, what was set holds
    assert whole.reason == DONE and len(whole.dataframe()) == 300
    assert 0.9 in list(whole.dataframe()["params.x"])
    assert cli.main(["set", str(home), "stop_value={accuracy=1}"]) == 2


def test_an_end_is_judged_again_where_limits_of_outcomes_change(tmp_path: Path) -> None:
    given: dict[str, Any] = {"directory": tmp_path / "run", "evaluations": 4, "stop_value": 0.9}
    for most, reason, ended, has_best in ((60, REACHED, 1, 1), (40, DONE, 4, 0), (70, REACHED, 4, 4)):
        task = hpo.Task(
            SPACE, lambda trial: {"value": 1.0, "memory": 50}, "maximize", at_most={"memory": most}
        )
        definition = CampaignDefinition(reader.from_keywords(**given), task)
        assert finished(definition, tmp_path / "c.toml") is None
        found = hpo.Campaign(task, isolation="inline", **given).run()
        assert (found.reason, len(found.dataframe()), len(found.front)) == (reason, ended, has_best)
        assert finished(definition, tmp_path / "c.toml") is not None


def test_of_several_objectives_one_individual_has_all_values(tmp_path: Path) -> None:
    task = hpo.Task(
        hpo.SearchSpace(x=hpo.Float(0.0, 1.0), y=hpo.Float(0.0, 1.0)),
        lambda trial: {"accuracy": trial.params["x"], "seconds": trial.params["x"] + trial.params["y"]},
        objectives=TWO,
    )
    goal = {"accuracy": 0.6, "seconds": 0.9}
    settings: dict[str, Any] = {"directory": tmp_path / "run", "evaluations": 500, "isolation": "inline"}
    found = hpo.Campaign(task, stop_value=goal, kind="random", **settings).run().dataframe()
    reach = (found["objectives.accuracy"] >= 0.6) & (found["objectives.seconds"] <= 0.9)
    assert list(reach) == [False] * (len(reach) - 1) + [True]
    with pytest.raises(UsageError, match="one objective"):
        hpo.Campaign(task, stop_gain=0.1, **settings).check()


def test_too_small_a_gain_ends_the_campaign_and_the_report_says_it(tmp_path: Path) -> None:
    home = tmp_path / "run"
    found = run(home, stop_gain=1e-3, stop_over=20)
    assert found.reason == NO_GAIN and 31 <= len(found.dataframe()) < 150
    said = summary(Source(name="run", record=load(home), curves=curves.Curves().frame()))
    assert any(one.label == "20 more evaluations" for one in said.facts)


def test_a_gain_within_the_noise_of_repeated_evaluations_ends_the_campaign(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Evaluations of microseconds end before the journals would be read.
    monkeypatch.setattr("hpo.islands.coordinator.launch._LEAST_PAUSE_S", 0.0)
    monkeypatch.setattr("hpo.islands.coordinator.launch._SHARE", float("inf"))
    rng = random.Random(0)
    home, task = tmp_path / "run", hpo.Task(SPACE, lambda trial: trial.params["x"] + rng.gauss(0, 0.3))
    settings: dict[str, Any] = {"evaluations": 400, "isolation": "inline", "kind": "evolution"}
    found = hpo.Campaign(
        task, directory=home, stop_gain=1e-12, stop_over=20, reevaluate=0.4, **settings
    ).run()
    assert found.reason == NO_GAIN
    assert cli.main(["status", str(home)]) == 0 and "differ by 0." in capsys.readouterr().out


def test_hours_are_those_of_all_ranks_of_all_launches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limit_s, mean_s, sizes = 3600.0, 30.0, (2, 2)
    campaign = SimpleLaunches(3, tmp_path, budget=5000, mean_s=mean_s, rank_hours=limit_s / 3600)
    for _ in range(3):
        campaign.start(8, sizes)
        campaign.world.sleep(40.0)
    campaign.run()
    late = campaign.start(4, sizes)
    used_s = campaign.ledger.state.rank_s
    ended = campaign.run()
    ends = [one.coordinator.end for one in campaign.begun]
    assert all(end is not None and (end.reason, end.exit_code) == (HOURS, 0) for end in ends)
    assert late.coordinator.final == len(ended), "nothing is begun by a launch that comes later"
    # Of each of twelve workers what runs, and what begins until others show their hours.
    assert limit_s <= used_s == campaign.ledger.state.rank_s <= limit_s + 12 * 2 * (3 * mean_s)
