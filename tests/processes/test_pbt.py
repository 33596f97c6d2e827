"""Population-based training: what is bred, what is inherited, and that networks train on."""

from __future__ import annotations

import json
import random
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from populations import populated
from refusals import refused
from simulation import MemoryJournal

import hpo
from hpo import cli
from hpo.campaign.definition import CampaignDefinition
from hpo.campaign.rank.wiring import Assembly
from hpo.cluster.signals import Signals
from hpo.config.layout import Layout
from hpo.individual import COMPLETED, FAILED, INTERRUPTED
from hpo.islands.messages import Surroundings
from hpo.islands.transport import Transport
from hpo.journal.records import Finished
from hpo.ledger.inspection import check
from hpo.ledger.journals import read_directory
from hpo.results.record import load
from hpo.search.kinds.pbt import PbtBreeder, _moved
from hpo.search.population import Member, Population

SPACE = hpo.SearchSpace(
    lr=hpo.Float(1e-4, 1.0, log=True),
    shift=hpo.Float(-1.0, 1.0),
    batch=hpo.Int(1, 64),
    width=hpo.Ordinal(8, 16, 32, 64),
    kind=hpo.Categorical("a", "b", "c"),
)


def member(number: int, loss: float | None, rng: random.Random, history: tuple[int, ...] = ()) -> Member:
    status = FAILED if loss is None else COMPLETED
    return Member(f"0-0-{number}", SPACE.sample(rng), None if loss is None else (loss,), status, history)


def island(losses: list[float | None], rng: random.Random) -> tuple[Population, list[Member]]:
    population = Population()
    members = [member(number, loss, rng) for number, loss in enumerate(losses)]
    for one in members:
        population.add(one)
    return population, members


def test_what_came_from_elsewhere_is_none_of_the_first() -> None:
    rng = random.Random(0)
    population, _ = island([1.0, 2.0], rng)
    for number in range(9):
        population.enter(member(100 + number, 0.0, rng, history=(0, 1)))
    breeder = PbtBreeder(SPACE, pool=3)
    offspring = breeder.breed(population, rng)
    assert (offspring.operator, offspring.inherits, offspring.parents) == ("random", "", ())
    population.add(member(2, 3.0, rng))
    assert breeder.breed(population, rng).operator == "exploit"


@pytest.mark.parametrize("own, expected", [(0, "continue"), (7, "continue"), (8, "exploit"), (9, "exploit")])
def test_the_worst_fifth_exploits_the_best_fifth_and_the_others_go_on(own: int, expected: str) -> None:
    rng = random.Random(own)
    population, members = island([float(number) for number in range(10)], rng)
    seen = set()
    for _ in range(40):
        breeder = PbtBreeder(SPACE, pool=10)
        breeder.learn(members[own])
        offspring = breeder.breed(population, rng)
        assert offspring.operator == expected
        if expected == "continue":
            assert offspring.genome == members[own].genome
            assert offspring.inherits == members[own].id and offspring.parents == (members[own].id,)
        else:
            assert offspring.parents == (offspring.inherits, members[own].id)
        seen.add(offspring.inherits)
    assert seen == ({members[own].id} if expected == "continue" else {"0-0-0", "0-0-1"})


def test_a_failed_lineage_takes_over_a_good_one() -> None:
    rng = random.Random(1)
    population, _ = island([float(number) for number in range(10)], rng)
    breeder = PbtBreeder(SPACE, pool=10)
    breeder.learn(member(99, None, rng))
    offspring = breeder.breed(population, rng)
    assert offspring.operator == "exploit" and offspring.inherits in ("0-0-0", "0-0-1")


def test_only_the_latest_count_and_immigrants_are_no_parents() -> None:
    rng = random.Random(2)
    # The first ones are better than all that came later, in another phase of training.
    population, _ = island([-9.0, -8.0, *(float(number) for number in range(10))], rng)
    population.add(member(100, -100.0, rng, history=(1,)))
    for _ in range(30):
        offspring = PbtBreeder(SPACE, pool=10).breed(population, rng)
        assert offspring.inherits in ("0-0-2", "0-0-3")


def test_numbers_are_perturbed_and_nothing_else() -> None:
    rng = random.Random(3)
    population, members = island([1.0] * 10, rng)
    values: dict[str, set[float]] = {"lr": set(), "batch": set()}
    for _ in range(400):
        offspring = PbtBreeder(SPACE, pool=10).breed(population, rng)
        before = SPACE.decode(next(one for one in members if one.id == offspring.inherits).genome)
        after = SPACE.decode(offspring.genome)
        assert (after["width"], after["kind"]) == (before["width"], before["kind"])
        assert after["lr"] != before["lr"] or before["lr"] in (1e-4, 1.0)
        for name, seen in values.items():
            seen.add(round(float(after[name]) / float(before[name]), 3))  # type: ignore[arg-type]
    assert {0.8, 1.2} <= values["lr"] and len(values["lr"]) > 50, "some are drawn anew"
    for n in (hpo.Int(1, 3), hpo.Int(-5, 5), hpo.Int(40, 80, step=20), hpo.Float(1.0, 1.3, step=0.1)):
        space, low, high = hpo.SearchSpace(n=n), n.low, n.high
        population = populated(space, range(10))
        breeder = PbtBreeder(space, pool=10)
        found = {space.decode(breeder.breed(population, rng).genome)["n"] for _ in range(300)}
        assert len(found) > 2 and all(low <= n <= high for n in found)  # type: ignore[operator]


@pytest.mark.parametrize("n", [hpo.Int(-4, 4, step=2), hpo.Int(2, 6, step=2), hpo.Float(-0.2, 0.2, step=0.1)])
def test_a_value_among_few_goes_to_both_neighbours(n: hpo.Int | hpo.Float) -> None:
    below, middle, above = [*n.values()][n.count // 2 - 1 : n.count // 2 + 2]  # type: ignore[operator]
    moved = {n.decoder()(_moved(n, n.encoder()(middle), random.Random(seed))) for seed in range(20)}
    assert moved == {below, above}


def test_named_choices_go_to_neighbours_or_are_drawn_anew() -> None:
    rng = random.Random(5)
    population, members = island([float(number) for number in range(10)], rng)
    steps = set()
    for _ in range(300):
        offspring = PbtBreeder(SPACE, pool=10, perturb=["width"]).breed(population, rng)
        before = next(one for one in members if one.id == offspring.inherits).genome
        assert [a for i, a in enumerate(before) if i != 3] == [
            a for i, a in enumerate(offspring.genome) if i != 3
        ]
        steps.add(abs(offspring.genome[3] - before[3]))
        assert offspring.genome[3] in (0, 1, 2, 3)
    assert 1 in steps


def test_what_cannot_be_is_refused() -> None:
    refused(lambda: PbtBreeder(SPACE, perturb=["lrr"]), "perturb", "'lrr'", "lr")
    refused(lambda: PbtBreeder(hpo.SearchSpace(kind=hpo.Categorical("a", "b"))), "pbt", "perturb")


def test_checkpoints_are_kept_for_more_than_can_be_chosen() -> None:
    for workers in (1, 4, 50):
        kept = PbtBreeder(SPACE, pool=10, workers=workers).checkpoints_for_others
        assert kept * workers >= 20 and kept >= 3


def climb(trial: hpo.Trial) -> float:
    """Gradient descent on w², ten steps an interval: too large a rate diverges, too small a one stands still."""
    parent = trial.parent_checkpoint
    weight, steps = 100.0, 0
    if parent is not None:
        weight, steps = (float(part) for part in (parent / "state").read_text().split())
    for _ in range(10):
        weight -= trial.params["lr"] * 2 * weight  # type: ignore[operator]
    (trial.directory / "state").write_text(f"{weight!r} {steps + 10}")
    trial.log(steps=steps + 10)
    return abs(weight)


CLIMB = hpo.Task(hpo.SearchSpace(lr=hpo.Float(1e-4, 2.0, log=True), n=hpo.Ordinal(1, 2, 3)), climb)


def inherited(directory: Path) -> dict[str, str]:
    return {
        record.id: record.inherits for record in read_directory(directory) if isinstance(record, Finished)
    }


def settings(directory: Path, **more: Any) -> dict[str, Any]:
    return {"directory": directory, "evaluations": 60, "kind": "pbt", "pool": 6, "isolation": "inline"} | more


def test_lineages_train_on(tmp_path: Path) -> None:
    result = hpo.Campaign(CLIMB, **settings(tmp_path / "run")).run()
    assert check(tmp_path / "run").findings == []
    rows = {one.id: one for one in result.individuals}
    assert len(rows) == 60 and {one.status for one in rows.values()} == {"completed"}
    parents = inherited(tmp_path / "run")
    assert sum(not parent for parent in parents.values()) == 6
    for identity, parent in parents.items():
        if parent:
            assert rows[identity].metrics["steps"] == rows[parent].metrics["steps"] + 10  # type: ignore[operator]
            assert rows[identity].params["n"] == rows[parent].params["n"]
            if rows[identity].operator == "continue":
                assert rows[identity].params == rows[parent].params
    assert {one.operator for one in rows.values()} == {"random", "continue", "exploit"}
    # A lineage has gone far beyond what one interval of its best rate could.
    assert result.best.value is not None and result.best.value < 1e-3
    # In the end the checkpoints of the best few are left.
    assert len(list((tmp_path / "run" / "evaluations").glob("*/state"))) == 3


def test_the_result_is_a_schedule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = tmp_path / "run"
    result = hpo.Campaign(CLIMB, **settings(home)).run()
    parents = inherited(home)
    line = result.schedule()
    assert line[-1] is result.best and len(line) > 2 and not parents[line[0].id]
    assert [parents[one.id] for one in line[1:]] == [one.id for one in line[:-1]]
    assert [one.metrics["steps"] for one in line] == [10 * number for number in range(1, len(line) + 1)]
    assert result.schedule(line[1].id) == line[:2]
    refused(lambda: result.schedule("9-9-9"), "9-9-9")
    capsys.readouterr()
    assert cli.main(["best", str(home), "--json"]) == 0
    [entry] = json.loads(capsys.readouterr().out)
    assert [(one["id"], one["value"]) for one in entry["schedule"]] == [(one.id, one.value) for one in line]
    params: dict[str, object] = {}
    for one, shown in zip(line, entry["schedule"], strict=True):
        assert all(params.get(name) != value for name, value in shown["changed"].items())
        params |= shown["changed"]
        assert params == one.params
    assert cli.main(["best", str(home)]) == 0
    text = capsys.readouterr().out.splitlines()
    start = next(number for number, row in enumerate(text) if row.startswith(f"schedule of {line[-1].id}, "))
    rows = text[start + 1 : start + 1 + len(line)]
    assert [row.split()[0] for row in rows] == [one.id for one in line]
    assert [row.endswith("goes on") for row in rows] == [not one["changed"] for one in entry["schedule"]]


def test_a_schedule_is_trained_again_in_one_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    found = hpo.Campaign(CLIMB, **settings(Path("run"), perturb=["lr", "n"])).run()
    line = found.schedule()
    again = settings(Path("again"), evaluations=1, kind="random", keep=1)
    result = hpo.Campaign(CLIMB, **again, schedule=line).run()
    [one] = result.individuals
    assert (one.value, one.params) == (found.best.value, line[0].params)
    assert one.metrics["steps"] == 10 * len(line)
    left = [path.name for path in (tmp_path / "again/evaluations" / one.id).iterdir()]
    assert sorted(left) == ["schedule.json", "state"]
    refused(
        lambda: hpo.Campaign(CLIMB, **again, schedule=line[1:]).run(), "schedule was", error=hpo.CampaignError
    )
    # By a file, whose evaluators load the task by its name.
    Path("my.py").write_text("from test_pbt import CLIMB")
    rows = [
        'task = "my.py:CLIMB"',
        'directory = "named"',
        "evaluations = 8",
        "[search]",
        'kind = "pbt"',
        "pool = 2",
    ]
    Path("pbt.toml").write_text("\n".join(rows))
    assert cli.main(["run", "pbt.toml"]) == 0
    best = hpo.Result("named").best
    assert cli.main(["replay", "named", best.id, "replay.toml"]) == 0
    assert cli.main(["run", "replay.toml"]) == 0
    assert hpo.Result(f"named-replay-{best.id}").best.value == best.value
    inner = hpo.Task(CLIMB.space, lambda trial: climb(trial))  # which no file can name
    hpo.Campaign(inner, **settings(Path("inner"), evaluations=1)).run()
    capsys.readouterr()
    for arguments, words in (
        (["named", best.id, "replay.toml"], "exists"),
        (["named", "9-9-9", "other.toml"], "9-9-9"),
        (["named", best.id, "elsewhere/other.toml"], "beside the campaign's own"),
        (["inner", "0-0-0", "other.toml"], "schedule=hpo.Result"),
        (["again", one.id, "other.toml"], "trains a schedule already"),
    ):
        assert cli.main(["replay", *arguments]) in (1, 2) and words in capsys.readouterr().err


def test_a_schedule_goes_on_in_the_interval_in_which_it_was_and_counts_steps_on(tmp_path: Path) -> None:
    seen: list[tuple[object, bool, int]] = []

    def evaluate(trial: hpo.Trial) -> float:
        parent = trial.parent_checkpoint
        seen.append((trial.params.get("momentum"), parent is not None, trial.seed))
        if len(seen) == 2:
            raise hpo.Interrupted
        for step in (1, 2):
            trial.report(step, 0.0)
        (trial.directory / "state").write_text((parent / "state").read_text() + "x" if parent else "x")
        return float(len((trial.directory / "state").read_text()))

    task = hpo.Task(
        hpo.SearchSpace(
            optimizer=hpo.Categorical("sgd", "adam"),
            momentum=hpo.Float(0.0, 1.0, when={"optimizer": "sgd"}),
        ),
        evaluate,
        default={"optimizer": "adam"},
        steps=2,
    )
    first = {"optimizer": "sgd", "momentum": 0.5}
    schedule = [first, {"momentum": 0.25}, {"optimizer": "adam"}, {}]
    campaign = settings(tmp_path / "run", evaluations=1, kind="random", schedule=schedule)
    assert hpo.Campaign(task, **campaign).run().reason == "incomplete"
    result = hpo.Campaign(task, **campaign).run()
    assert [one[0] for one in seen] == [0.5, 0.25, 0.25, None, None]
    assert [one[1] for one in seen] == [False, True, True, True, True]
    assert seen[1] == seen[2] and len({one[2] for one in seen}) == 4
    assert result.best.value == 4.0 and result.best.params == first
    assert [*result.curves()["step"]] == [*range(1, 9)]
    for wrong, words in (
        ([{"optimizer": "sgd"}], "interval 1: momentum is missing"),
        ([first, {"lr": 1.0}], "interval 2: 'lr' is no parameter"),
        ([first, {"optimizer": "adam", "momentum": 0.5}], "exists only where optimizer is"),
        ([0.5], "a table of parameters"),
    ):
        refused(lambda wrong=wrong: hpo.Campaign(task, **{**campaign, "schedule": wrong}), words)  # type: ignore[misc]
    refused(lambda: hpo.Campaign(task, **{**campaign, "kind": "pbt"}).run(), "schedule: its intervals")


def test_a_schedule_begins_where_a_checkpoint_was_gone_and_has_one_interval_elsewhere(tmp_path: Path) -> None:
    campaign = settings(tmp_path / "run")
    hpo.Campaign(CLIMB, **{**campaign, "evaluations": 12}).run()
    for state in (tmp_path / "run" / "evaluations").glob("*/state"):
        state.unlink()
    result = hpo.Campaign(CLIMB, **{**campaign, "evaluations": 13}).run()
    [gone] = [one for one in result.individuals if "parent_checkpoint" in one.metrics]
    assert gone.inherits and result.schedule(gone.id) == [gone]
    assert gone.metrics["parent_checkpoint"] == "gone" and gone.metrics["steps"] == 10
    task = hpo.Task(hpo.SearchSpace(x=hpo.Float(0, 1)), lambda trial: 0.0)
    other = hpo.Campaign(task, directory=tmp_path / "other", evaluations=3, isolation="inline").run()
    assert other.schedule() == [other.best]


def test_a_task_that_never_saves_is_told_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    task = hpo.Task(hpo.SearchSpace(lr=hpo.Float(1e-4, 2.0, log=True)), lambda trial: trial.params["lr"])
    hpo.Campaign(task, **settings(tmp_path / "run", evaluations=20)).run()
    assert capfd.readouterr().err.count("Let the task save into trial.directory") == 1
    hpo.Campaign(CLIMB, **settings(tmp_path / "saves", evaluations=20)).run()
    assert "Let the task save" not in capfd.readouterr().err


def test_an_interrupted_child_goes_on_from_its_own_state_and_keeps_its_parent(tmp_path: Path) -> None:
    calls: list[tuple[str, bool]] = []

    def stopped_once(trial: hpo.Trial) -> float:
        mark = trial.directory / "mark"
        calls.append((trial.id, trial.parent_checkpoint is not None))
        if trial.parent_checkpoint is not None and not mark.exists():
            mark.write_text("here")
            raise hpo.Interrupted
        (trial.directory / "state").write_text("x")
        return float(trial.params["lr"])  # type: ignore[arg-type]

    task = hpo.Task(hpo.SearchSpace(lr=hpo.Float(0.0, 1.0)), stopped_once)
    campaign = settings(tmp_path / "run", pool=2, evaluations=3)
    assert hpo.Campaign(task, **campaign).run().reason == "incomplete"
    interrupted = calls[-1]
    result = hpo.Campaign(task, **campaign).run()
    assert calls[-1] == interrupted and interrupted[1], "called again, with its parent's checkpoint"
    assert len(result.individuals) == 3 and len({one.id for one in result.individuals}) == 3


def test_all_lineages_go_on_after_a_stop(tmp_path: Path) -> None:
    calls: list[str] = []

    def evaluate(trial: hpo.Trial) -> float:
        calls.append(trial.id)
        if len(calls) == 14:
            raise hpo.Interrupted
        return climb(trial)

    task = hpo.Task(CLIMB.space, evaluate)
    campaign = settings(tmp_path / "run")
    assert hpo.Campaign(task, **{**campaign, "evaluations": 20}).run().reason == "incomplete"
    before = inherited(tmp_path / "run")
    (stopped,) = [
        one.id
        for one in read_directory(tmp_path / "run")
        if isinstance(one, Finished) and one.status == INTERRUPTED
    ]
    hpo.Campaign(task, **{**campaign, "evaluations": 26}).run()
    after = inherited(tmp_path / "run")
    new = [identity for identity in after if identity not in before]
    assert len(new) == 6 and after[stopped] == before[stopped]
    # It was one lineage's turn, and each of the six has one more: those that are behind go on from a better one.
    rows = {one.id: one for one in load(tmp_path / "run").individuals}
    turns = {identity: rows[identity].parents[-1] for identity in after if after[identity]}
    waited = set(before) - {turns[one] for one in before if one in turns}
    assert len(waited) == 6 and {turns[one] for one in new} == waited


def test_intervals_of_training_do_not_migrate(tmp_path: Path) -> None:
    campaign = hpo.Campaign(CLIMB, **settings(tmp_path / "run", islands=2, island=[{"kind": "random"}]))
    journal = MemoryJournal()
    layout = Layout.plan(ranks=2, sizes=[1] * 2)
    assembly = Assembly(
        definition=CampaignDefinition(campaign.settings, CLIMB),
        transport=Transport(),
        layout=layout,
        signals=Signals(),
        closing=ExitStack(),
    )
    for place, migrates in zip(layout.workers, (True, False)):
        around = Surroundings(("here",), 0, 3, 2)
        idle = SimpleNamespace(listen=lambda on_report: None)  # a crew that is never asked for anything
        leader = assembly.leader(place, idle, journal, around)
        chances = [Member(f"{place.island}-0-{number}", (0.5, 0), (1.0,), COMPLETED) for number in range(20)]
        for one in chances:
            leader._migration.own(one)
        assert any(leader._migration.departures(one) for one in chances) is migrates


def test_digits_train_on_from_a_parent(tmp_path: Path) -> None:
    """Two intervals of two epochs reach what one cannot, and the optimizer's means are taken over."""
    from search_spaces import digits

    task = digits.make_task(epochs=2, train_samples=200)
    campaign = settings(
        tmp_path / "run", evaluations=8, pool=2, perturb=["lr"], isolation="warm", timeout=100, seed=1
    )
    hpo.Campaign(task, **campaign).run()
    record = load(tmp_path / "run")
    rows = {one.id: one for one in record.individuals}
    assert {one.status for one in rows.values()} == {"completed"}, [one.error for one in rows.values()]
    assert not any("parent_checkpoint" in one.metrics for one in rows.values())
    parents = inherited(tmp_path / "run")
    children = [(rows[child], rows[parent]) for child, parent in parents.items() if parent]
    assert len(children) == 6
    better = [child.metrics["train_loss"] < parent.metrics["train_loss"] for child, parent in children]  # type: ignore[operator]
    assert sum(better) >= 4, "training goes on where the parent's ended"
    for child, parent in children:
        changed = {name for name in child.params if child.params[name] != parent.params[name]}
        assert changed <= {"lr"}
