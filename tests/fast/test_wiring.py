"""A campaign's settings reach the leaders and the coordinator."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from individuals import make_assignment, make_candidate
from simulation import MemoryJournal
from simulation.ledger import MemoryStore

import hpo
from hpo.campaign.definition import CampaignDefinition, StartingPoints, first_points
from hpo.campaign.rank import coordinating, wiring
from hpo.campaign.rank.evaluators import Jobs, curve_file, trial_seed
from hpo.campaign.rank.wiring import Assembly
from hpo.cluster.signals import Signals
from hpo.config.layout import Layout
from hpo.config.reader import from_keywords
from hpo.evaluation.cores import cores_here
from hpo.evaluation.directories import EvaluationDirectories
from hpo.individual import Attempt, Configuration, Scalar
from hpo.islands.coordinator.sharing import Sharing
from hpo.islands.leader.island import LeaderSettings
from hpo.islands.leader.migration import MigrationSettings
from hpo.islands.messages import Assignment, Remark, Surroundings, decode
from hpo.islands.resume.state import ResumeState
from hpo.islands.transport import Transport
from hpo.ledger.closing import closing
from hpo.ledger.entries import Limits, Opened
from hpo.ledger.joining import Newcomer
from hpo.ledger.ledger import Ledger
from hpo.ledger.participation import join
from hpo.search.protocols import SearchContext
from hpo.search.stopping_rules import PruningSettings
from hpo.task.code_version import CodeVersion

SPACE = hpo.SearchSpace(x=hpo.Float(0, 1), kind=hpo.Categorical("a", "b", "c"))
DEFAULT: dict[str, Scalar] = {"x": 0.1, "kind": "a"}
POINT: dict[str, Scalar] = {"x": 0.2, "kind": "b"}
GIVEN: dict[str, Scalar] = {"x": 0.3, "kind": "c"}
TASK = hpo.Task(
    SPACE,
    lambda trial: 0.0,
    "maximize",
    default=DEFAULT,
    points=[POINT],
    steps=lambda params: 9 if params["kind"] == "a" else "nine",
)
KEYS: dict[str, Any] = {
    "evaluations": 50,
    "deadline": 600,
    "seed": 7,
    "keep": 4,
    "islands": 3,
    "topology": [[0, 2, 0], [0, 0, 3], [4, 5, 0]],
    "kind": "evolution",
    "migration": 0.25,
    "exchange": "pollination",
    "duplicates": True,
    "pruner": "halving",
    "min_steps": 7,
    "reduction": 5,
    "patience": 2,
    "startup": 6,
    "promote": False,
    "retries": 3,
    "grace": 11,
    "timeout": 22,
    "start_timeout": 33,
    "first_failures": 12,
    "phase": [{"until": 8, "only": {"kind": ["a"]}}, {"until": 20, "only": {"kind": ["a", "b"]}}],
}
"""Every key that leaders and coordinators follow, none of them at its default."""


class Recorder:
    """Stands in for a leader, coordinator or watch over failures, and keeps what it is given."""

    def __init__(self, *values: Any, **keywords: Any) -> None:
        self.given = SimpleNamespace(**keywords)
        self.values = values
        self.remarks: list[str] = []

    def look_at_commands(self) -> None:
        pass


@pytest.fixture(autouse=True)
def recorders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wiring, "Leader", Recorder)
    monkeypatch.setattr(coordinating, "Coordinator", Recorder)
    monkeypatch.setattr(coordinating, "Health", Recorder)


def assembly(directory: Path, task: hpo.Task = TASK, **changes: Any) -> Assembly:
    """Of three workers."""
    settings = from_keywords(directory=directory, **{**KEYS, **changes})
    made = Assembly(
        definition=CampaignDefinition(settings, task, code=CodeVersion({})),
        transport=Transport(),
        layout=Layout.plan(ranks=3, sizes=[1] * settings.layout.islands),
        signals=Signals(),
        closing=ExitStack(),
    )
    made.writer = MemoryJournal()  # type: ignore[assignment]
    return made


def leader(made: Assembly, island: int = 0) -> Any:
    """What the leader of the first worker of ``island`` is given."""
    layout = made.layout
    around = Surroundings(("here",), 0, 4, 2)
    built: Any = made.leader(layout.of_island(island)[0], object(), made.writer, around)
    return built.given


def coordinator(made: Assembly, earlier: ResumeState | None = None) -> Any:
    """The recorder in place of the coordinator."""
    settings = made.settings
    limits = Limits(evaluations=settings.evaluations, deadline_s=settings.deadline_s)
    ledger = Ledger(MemoryStore())
    ledger.append(lambda state: Opened(limits=limits, in_file=limits, islands=1, seed=0))
    participation = join(ledger, closing, Newcomer(), layout=lambda first: made.layout, in_file=limits)  # type: ignore[arg-type]
    starting = StartingPoints(points=[GIVEN], known=[], left_out=[])
    opening = coordinating.Opening(
        object(),  # type: ignore[arg-type]
        participation,
        earlier or ResumeState(),
        starting,
        [],
        object(),  # type: ignore[arg-type]
        lambda rank: False,
    )
    log = coordinating.begin_log(made, opening)
    return coordinating.make_coordinator(made, log, opening, Sharing(participation))


def test_a_kind_that_models_one_objective_says_so(tmp_path: Path) -> None:
    several = hpo.Task(SPACE, lambda trial: {}, objectives={"a": "minimize", "b": "maximize"})
    for task, kind, said in ((several, "optuna-cmaes", 1), (several, "tpe", 0), (TASK, "optuna-cmaes", 0)):
        made = assembly(tmp_path, task, kind=kind, reported="a" if task is several else None)
        assert len([one for one in coordinator(made).remarks if '"optuna-cmaes"' in one]) == said


def test_a_leader_follows_the_settings(tmp_path: Path) -> None:
    made = assembly(tmp_path)
    given = leader(made)
    assert given.settings == LeaderSettings(
        seed=7,
        losses=TASK.losses,
        allows=made.allows,
        migration=MigrationSettings(probability=0.25, copy=True, emigrants=(0, 2, 0), ring=False),
        retries=3,
        duplicates=True,
        durable_starts=True,
        grace_s=11.0,
        keep=4,
        pruning=PruningSettings(
            rule="halving", min_steps=7, reduction=5, patience=2, startup=6, promote=False
        ),
        steps=made.steps,
        reported="value",
        sign=-1.0,
        reference=None,
    )
    assert given.islands == [[0], [1], [2]]
    # One call that fails neither ends the rank nor its evaluation, and is said.
    assert [made.steps(one) for one in (DEFAULT, POINT)] == [9, None]
    assert "'nine'" in json.loads(made.transport.poll()[0][1])[2]


def test_an_island_follows_its_own_settings(tmp_path: Path) -> None:
    own = {"migration": 0.5, "exchange": "migration", "pruner": "median", "min_steps": 3}
    made = assembly(tmp_path, island=[{}, own])
    first, second, third = (leader(made, island).settings for island in range(3))
    assert second.migration == MigrationSettings(probability=0.5, copy=False, emigrants=(0, 0, 3))
    assert (second.pruning.rule, second.pruning.min_steps, second.pruning.reduction) == ("median", 3, 5)
    assert third.migration == MigrationSettings(probability=0.25, copy=True, emigrants=(4, 5, 0))
    assert third.pruning == first.pruning != second.pruning
    for topology, emigrants in (("ring", (0, 0, 1)), ("full", (1, 0, 1))):
        migration = leader(assembly(tmp_path, topology=topology), 1).settings.migration
        assert (migration.emigrants, migration.ring) == (emigrants, topology == "ring")


def test_of_several_objectives_the_leader_knows_which_is_reported_and_what_is_not_wanted(
    tmp_path: Path,
) -> None:
    task = hpo.Task(SPACE, lambda trial: {}, objectives={"seconds": "minimize", "accuracy": "maximize"})
    reference = {"seconds": 60.0, "accuracy": 0.8}
    given = leader(assembly(tmp_path, task, reported="accuracy", reference=reference)).settings
    assert (given.reported, given.sign, given.reference) == (None, -1.0, (60.0, -0.8))
    assert leader(assembly(tmp_path, task, reported="seconds")).settings.sign == 1.0


def test_a_breeder_knows_its_campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Any] = []

    def searched(*given: Any) -> tuple[object, object]:
        heard.extend(given)
        return "space", "breeder"

    monkeypatch.setattr(wiring, "searched", searched)
    made = assembly(tmp_path, islands=2, topology="ring")
    given = leader(made, 1)
    assert (given.space, given.breeder) == ("space", "breeder")
    assert heard == [
        SPACE,
        made.settings,
        1,
        SearchContext(
            clock=made.transport.now,
            all_workers=3,
            local_workers=2,
            cores=cores_here(),
            workers=1,
            islands=2,
            evaluations=50,
            inline=False,
            offers=given.worker.jobs.offers,
        ),
    ]


def test_a_constraint_that_raises_refuses_and_is_named_once(tmp_path: Path) -> None:
    def ratio(params: dict[str, Any]) -> bool:
        return 1 / params["x"] < 5

    task = hpo.Task(hpo.SearchSpace(x=hpo.Int(0, 9)), lambda trial: 0.0, constraints=[ratio])
    made = assembly(tmp_path, task, phase=[])
    allows = leader(made).settings.allows
    assert [allows({"x": x}) for x in (0, 1, 0)] == [False, True, False]
    (remark,) = [decode(data) for _, data in made.transport.poll()]
    assert isinstance(remark, Remark)
    assert "ZeroDivisionError: division by zero, for {'x': 0}" in remark.sentence
    # Where the finite space is gone through, it is refused, too.
    unseen = coordinator(made).given.rules.unseen[0]
    taken: set[str] = set()
    found = [
        one.params["x"] for one in iter(lambda: unseen.next(taken, lambda key: not taken.add(key)), None)
    ]
    assert sorted(found) == [*range(1, 10)]


@pytest.mark.parametrize(
    ("parameter", "settings", "reserves"),
    [
        (hpo.Float(0, 1), {}, False),
        (hpo.Float(0, 1), {"kind": "grid"}, True),
        (hpo.Int(1, 10**9), {}, True),
        (hpo.Int(1, 10), {"duplicates": True}, False),
    ],
)
def test_configurations_that_launches_may_breed_twice_are_reserved(
    tmp_path: Path, parameter: hpo.Int | hpo.Float, settings: dict[str, Any], reserves: bool
) -> None:
    task = hpo.Task(hpo.SearchSpace(x=parameter), lambda trial: 0.0)
    rules = coordinator(
        assembly(tmp_path, task, **{"phase": [], "duplicates": False, **settings})
    ).given.rules
    if rules.reservations is not None:
        rules.reservations.take("a key")
    assert any(path.is_symlink() for path in tmp_path.rglob("*")) is reserves


def test_individuals_are_evaluated_by_workers_as_large_as_on_islands_that_may_propose_them(
    tmp_path: Path,
) -> None:
    space = hpo.SearchSpace(x=hpo.Float(0, 1), depth=hpo.Ordinal(4, 12, 48))
    island = [{"only": {"depth": [4]}}, {"only": {"depth": [4, 48]}, "ranks_per_worker": 8}]
    settings = from_keywords(directory=tmp_path, evaluations=4, islands=2, island=island)
    right = coordinating.suits(space, settings)

    def islands(identity: str, depth: int) -> list[int]:
        configuration = Configuration(id=identity, params={"x": 0.5, "depth": depth})
        key = space.key(configuration.params)
        return [one for one in (0, 1) if right(one, Assignment(configuration=configuration, key=key))]

    assert [islands("", depth) for depth in (4, 48, 12)] == [[0, 1], [1], [1]]
    assert [islands(born, 4) for born in ("0-0-0", "1-0-0", "2-0-0")] == [[0], [1], [0, 1]]
    assert islands("0-0-1", 48) == [1], "what its island may not propose any more"


def test_trials_are_seeded_by_the_campaigns_seed(tmp_path: Path) -> None:
    candidate = make_candidate(
        token=0, id="0-0-3", sequence=3, genome=(), params={}, key="", operator="random"
    )
    seeds = [leader(assembly(tmp_path, seed=seed)).worker.jobs(candidate).seed for seed in (7, 8)]
    assert seeds == [trial_seed(7, "0-0-3"), trial_seed(8, "0-0-3")]
    assert trial_seed(0, "0-0-3") != trial_seed(1, "0-0-3") != trial_seed(1, "0-0-4")
    assert (
        Jobs(EvaluationDirectories(tmp_path), 7)(replace(candidate, attempt=Attempt(retries=1))).seed
        == seeds[0]
    )


def test_the_coordinator_follows_the_settings(tmp_path: Path) -> None:
    made = assembly(tmp_path)
    before = made.transport.now()
    given = coordinator(made).given
    rules = given.rules
    assert rules.evaluations == 50
    assert before + 600 <= rules.deadline <= made.transport.now() + 600
    assert (rules.duplicates, rules.grace_s, rules.timed, rules.must_end) == (True, 11.0, True, None)
    assert [rules.phases.at(granted) for granted in (7, 8, 19, 20)] == [0, 1, 1, 2]
    assert list(given.registry.places) == [0, 1, 2]
    assert given.health.values == (12,)
    assert (given.health.given.patience_s, given.health.given.leaders) == (33.0, {0: 1, 1: 1, 2: 1})


def test_without_limits_the_coordinator_has_none(tmp_path: Path) -> None:
    none = {"evaluations": None, "timeout": None, "first_failures": "off", "phase": []}
    given = coordinator(assembly(tmp_path, **none)).given
    assert (given.rules.evaluations, given.rules.timed, given.health.values) == (None, False, (None,))
    assert given.rules.phases.at(1000) == 0
    assert coordinator(assembly(tmp_path, deadline=None)).given.rules.deadline is None
    made = assembly(tmp_path, isolation="inline", timeout=None, checkpoints=None)
    assert not leader(made).settings.durable_starts
    # Without a setting, whether the task saves is seen from what it did.
    saves = {None: (True, False), True: (True, True), False: (False, False)}
    for said, expected in saves.items():
        made = assembly(tmp_path, checkpoints=said)
        found = [coordinator(made, ResumeState(saves=seen)).given.rules.checkpoints for seen in (True, False)]
        assert tuple(found) == expected


def test_a_point_is_called_by_where_it_comes_from(tmp_path: Path) -> None:
    pending = make_assignment(params={"x": 0.5, "kind": "a"}, key="", operator="random", id="0-0-5")
    earlier = ResumeState(pending=[pending], keys={"known"})
    made = coordinator(assembly(tmp_path), earlier)
    points = [
        (DEFAULT, "default"),
        (POINT, "given"),
        (GIVEN, "given"),
        ({"x": 0.25, "kind": "b"}, "enqueued"),
    ]
    assert [made.given.commands.assigned("", params) for params, _ in points] == [
        make_assignment(params=params, key=SPACE.key(params), operator=name) for params, name in points
    ]
    assert first_points(TASK, [GIVEN]) == points[:3]
    assert made.given.commands.unfinished == {"0-0-5": pending}
    assert made.given.backlog.known == {"known"} and made.given.backlog.tally is earlier.tally


def test_an_island_ends_when_its_own_choices_are_used_up(tmp_path: Path) -> None:
    """Each is given what it can still evaluate, and islands of the same choices share it."""
    own = [{"only": {"kind": ["a"]}}, {}, {"only": {"kind": ["a"]}}]
    first, second, third = coordinator(assembly(tmp_path, island=own)).given.rules.unseen
    assert first is third is not second


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({}, (4.0, None, True)),
        ({"log_curves": False, "log_system": 5}, (None, 5.0, True)),
        ({"log_system": 5}, (4.0, 5.0, True)),
        ({"log_curves": False}, None),
    ],
)
def test_reports_and_samples_of_the_system_are_kept_as_the_settings_say(
    tmp_path: Path, changes: dict[str, Any], kept: tuple[object, ...] | None
) -> None:
    made = assembly(tmp_path, log_every=4, **changes)
    file = curve_file(made.settings, made.layout.workers[1], 1, {"value": "maximize"})
    assert (None if file is None else (file.every_s, file.system_s, file.maximize)) == kept
