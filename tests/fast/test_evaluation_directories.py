"""What a campaign touches in ``DIR/evaluations/``: the directories of its own individuals, and nothing else."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from cases import cases
from individuals import make_candidate, make_job
from simulation.campaigns import fall_sick, make, records_of
from written import Written

import hpo
from hpo.campaign.rank.cleanup import Cleanup, begin_cleanup, keep_only_best
from hpo.campaign.rank.evaluators import Jobs
from hpo.config.layout import Layout
from hpo.evaluation.directories import EvaluationDirectories
from hpo.evaluation.inline import InlineCrew
from hpo.individual import Individual
from hpo.islands.resume.fold import fold
from hpo.islands.resume.state import Resting, ResumeState
from hpo.journal.records import Reopened
from hpo.ledger.journals import read_directory

SEEN: list[set[str]] = []
"""By evaluation, which individuals had saved weights when it began."""


def evaluate(trial: hpo.Trial) -> float:
    SEEN.append({path.parent.name for path in trial.directory.parent.glob("*/weights")})
    (trial.directory / "weights").write_text(trial.id)
    x = trial.params["x"]
    assert isinstance(x, float)
    return x**2


def campaign(directory: Path, evaluations: int, isolation: str = "inline") -> hpo.Result:
    task = hpo.Task(hpo.SearchSpace(x=hpo.Float(-5, 5)), evaluate)
    return hpo.Campaign(task, directory=directory, evaluations=evaluations, isolation=isolation, keep=1).run()


def files(root: Path) -> dict[str, str]:
    """Content by path of all that is below ``root`` and holds no weights; links as where they lead."""
    found = {}
    for folder, folders, names in os.walk(root):
        for name in [*folders, *names]:
            path = Path(folder, name)
            if path.is_symlink():
                found[str(path.relative_to(root))] = f"-> {os.readlink(path)}"
            elif path.is_file() and name != "weights":
                found[str(path.relative_to(root))] = path.read_text()
    return found


@pytest.mark.parametrize("isolation", cases(["inline"], nightly=["warm"]))
def test_what_the_campaign_did_not_make_stays(isolation: str, tmp_path: Path) -> None:
    elsewhere, evaluations = tmp_path / "elsewhere", tmp_path / "run" / "evaluations"
    campaign(tmp_path / "run", 2, isolation)
    for path in (
        elsewhere / "thesis.txt",
        evaluations / "my_plots" / "a.png",
        evaluations / "0-0-5_backup" / "weights.bin",
        evaluations / "0-0-3" / "named as an individual to come.txt",
        evaluations / "9-9-9" / "named as an individual that there is not.txt",
        evaluations / "notes.txt",
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    (evaluations / "linked").symlink_to(elsewhere)
    (evaluations / "0-0-5").symlink_to(elsewhere)
    (evaluations / "1-0-0").symlink_to(tmp_path / "nothing is there")
    before = files(evaluations)
    for budget in (6, 12, 18):
        result = campaign(tmp_path / "run", budget, isolation)
        assert [one.status for one in result.individuals] == ["completed"] * budget
        assert files(evaluations) == before and (elsewhere / "thesis.txt").read_text() == "mine"
        assert result.best is not None
        assert [path.parent.name for path in evaluations.glob("*/weights")] == [result.best.id]
    assert not {"0-0-3", "0-0-5"} & {one.id for one in result.individuals}


def test_an_individual_whose_directory_was_moved_and_linked_is_left_alone(tmp_path: Path) -> None:
    evaluations = tmp_path / "run" / "evaluations"
    best = campaign(tmp_path / "run", 6).best
    assert best is not None
    (evaluations / best.id).rename(tmp_path / "archive")
    (evaluations / best.id).symlink_to(tmp_path / "archive")
    result = campaign(tmp_path / "run", 40)
    assert len(result.individuals) == 40 and result.best is not None and result.best.id != best.id
    assert (tmp_path / "archive" / "weights").read_text() == best.id
    directories = EvaluationDirectories(tmp_path / "run")
    directories.forget(best.id)
    assert not directories.holds(best.id) and directories.existing(best.id) is None
    assert (tmp_path / "archive" / "weights").exists()


@pytest.mark.parametrize("resumed", [True, False])
def test_a_link_in_the_place_of_an_individual_fails_that_one(resumed: bool, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "thesis.txt").write_text("mine")
    (tmp_path / "0-0-0").symlink_to(tmp_path / "elsewhere")
    job = make_job(id="0-0-0", params={"x": 1.0}, seed=0, directory=str(tmp_path / "0-0-0"), resumed=resumed)
    crew = InlineCrew(task=hpo.Task(hpo.SearchSpace(x=hpo.Float(-5, 5)), evaluate))
    crew.start(job)
    (outcome,) = crew.poll()
    assert outcome.status == "failed" and outcome.error is not None
    assert "is a symbolic link, which hpo does not follow. Remove it" in outcome.error
    assert files(tmp_path / "elsewhere") == {"thesis.txt": "mine"}


def test_a_failing_storage_makes_no_child_begin_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directories = EvaluationDirectories(tmp_path)
    assert not directories.holds("0-0-0")
    directories.path("0-0-0").mkdir(parents=True)
    (directories.path("0-0-0") / "weights").write_text("x")
    assert directories.holds("0-0-0")

    def fails(path: object) -> list[str]:
        raise OSError(errno.ESTALE, "Stale file handle", str(path))

    monkeypatch.setattr(os, "listdir", fails)
    with pytest.raises(OSError, match="Stale"):
        directories.holds("0-0-0")
    child = make_candidate(
        token=0, id="0-0-1", sequence=1, genome=(), params={}, key="", operator="", inherits="0-0-0"
    )
    with pytest.raises(OSError, match="Stale"):
        Jobs(directories, seed=0)(child)
    assert directories.may_hold("0-0-0"), "a launch goes on, and what cannot be asked is not removed"


def saved(home: Path) -> set[str]:
    return {path.parent.name for path in (home / "evaluations").glob("*/weights")}


def all_saved(home: Path) -> list[Individual]:
    """What a campaign has that was cut off: all of its individuals have saved."""
    found = campaign(home, 10).individuals
    for one in found:
        folder = home / "evaluations" / one.id
        folder.mkdir(exist_ok=True)
        (folder / "weights").write_text("old")
    return sorted(found, key=lambda one: one.value or 0.0)


def test_a_launch_evaluates_before_what_earlier_ones_saved_is_removed(tmp_path: Path) -> None:
    home = tmp_path / "run"
    old = {one.id for one in all_saved(home)}
    SEEN.clear()
    campaign(home, 11)
    assert len(SEEN) == 1 and len(old & SEEN[0]) > 1
    assert len(saved(home)) == 1


def test_of_what_earlier_launches_saved_the_best_and_what_is_evaluated_again_stays(tmp_path: Path) -> None:
    home = tmp_path / "run"
    ordered = [one.id for one in all_saved(home)]
    mine = home / "evaluations" / "9-9-9" / "weights"
    mine.parent.mkdir()
    mine.write_text("mine")
    space = hpo.SearchSpace(x=hpo.Float(-5, 5))
    earlier = fold(
        read_directory(home), space=space, islands=1, losses=lambda objectives: tuple(objectives.values())
    )
    earlier.resting = {ordered[7]: Resting(0, "", 0.0)}
    cleanup = Cleanup(home, 2, earlier)
    cleanup.step(0.0, {ordered[5]})
    cleanup.step(0.0, {ordered[5]})  # it takes little of rank 0's time
    assert len(saved(home)) >= 10
    for now in range(1, 100):
        cleanup.step(1000.0 * now, {ordered[5]})
    assert saved(home) == {ordered[0], ordered[1], ordered[5], ordered[7], "9-9-9"}


PHASE = [{"until": 5, "only": {"n": [1]}}]


@pytest.mark.parametrize(
    ("objectives", "keywords", "removes"),
    [
        (1, {}, True),
        (2, {}, False),
        (1, {"kind": "pbt"}, False),
        (1, {"islands": 2, "island": [{}, {"kind": "pbt"}]}, False),
        (1, {"inherit": True}, False),
        (1, {"phase": PHASE}, False),
        (1, {"phase": PHASE, "inherit": False}, True),
    ],
)
def test_what_others_may_go_on_from_stays_until_the_campaign_is_done(
    objectives: int,
    keywords: dict[str, Any],
    removes: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at_once: list[object] = []
    monkeypatch.setattr(
        "hpo.campaign.rank.cleanup.keep_only_best",
        lambda home, keep, *, needed: at_once.append((keep, needed)),
    )
    space = hpo.SearchSpace(x=hpo.Float(-5, 5), n=hpo.Ordinal(1, 2))
    task = hpo.Task(space, evaluate, objectives=dict.fromkeys("ab"[:objectives], "minimize"))
    made = hpo.Campaign(task, directory=tmp_path / "run", evaluations=10, keep=2, **keywords)
    layout = Layout.plan(ranks=2, sizes=[1] * made.settings.layout.islands)

    def cleanup(launch: int, earlier: ResumeState) -> Cleanup | None:
        return begin_cleanup(
            made.settings, objectives=objectives, islands=layout.islands, removes=launch > 1, earlier=earlier
        )

    repeated = ResumeState(repeats=True, resting={"0-0-1": Resting(0, "", 0.0)})
    assert cleanup(1, ResumeState()) is cleanup(1, repeated) is None and not at_once
    assert (cleanup(2, ResumeState()) is not None) is removes and not at_once
    # Where configurations were evaluated again, what is on record says which are the best.
    assert cleanup(2, repeated) is None and at_once == [(2, repeated.resting)] * removes


def test_what_is_unfinished_and_its_first_parent_stay_beside_the_best(tmp_path: Path) -> None:
    campaign = Written(tmp_path)
    for number in range(8):
        campaign.evaluate(number, float(number))
    campaign.finish(8, status="interrupted", parents=("0-0-5", "0-0-7"))
    campaign.start(9, parents=("0-0-6", "0-0-7"))
    for number in range(10):
        folder = tmp_path / "evaluations" / f"0-0-{number}"
        folder.mkdir(parents=True)
        (folder / "weights").write_text("saved")
    keep_only_best(tmp_path, 2, needed=["0-0-3"])
    assert saved(tmp_path) == {f"0-0-{number}" for number in (0, 1, 3, 5, 6, 8, 9)}


def test_the_coordinator_names_what_it_reopens() -> None:
    simulation, _ = make(3, workers=4, islands=1, evaluations=200, first_failures=None)
    fall_sick(simulation, 2, 1.0)
    simulation.run()
    reopened = {record.id for record in records_of(simulation) if isinstance(record, Reopened)}
    assert reopened and set(simulation.coordinator.reopened_ids) == reopened


def test_a_launch_that_hung_before_an_evaluation_keeps_out_of_the_copy_of_another(tmp_path: Path) -> None:
    """The other has closed it meanwhile, and goes on with what it had only begun."""
    directories = EvaluationDirectories(tmp_path)
    facts = {"token": 0, "id": "0-0-0", "sequence": 0, "genome": (), "params": {}, "key": "", "operator": ""}
    candidate, other = make_candidate(**facts), make_candidate(**facts, resumed=True, contested=True)
    assert Jobs(directories, 0)(other).directory.endswith("0-0-0.attempt-2")
    assert Jobs(directories, 0)(candidate).directory == str(tmp_path / "evaluations" / "0-0-0")


def test_launches_that_copy_at_the_same_time_have_a_directory_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directories = EvaluationDirectories(tmp_path)
    first = directories.first("0-0-0")
    first.mkdir(parents=True)
    (first / "weights").write_text("1")
    attempts = directories._attempts("0-0-0")
    monkeypatch.setattr(directories, "_attempts", lambda identity: attempts)
    copies = [directories.copy("0-0-0") for _ in range(2)]
    assert [(path.name, whole) for path, whole in copies] == [
        ("0-0-0.attempt-2", True),
        ("0-0-0.attempt-3", True),
    ]
    assert all((path / "weights").read_text() == "1" for path, _ in copies)
