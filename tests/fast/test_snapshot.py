"""What a launch goes on with is the same with a snapshot as without, whatever becomes of the journals and of the
snapshot meanwhile."""

from __future__ import annotations

import os
import random
from collections import deque
from pathlib import Path
from typing import Any

import msgspec
import pytest
from individuals import changed
from simulation import MemoryInbox
from simulation.campaigns import SPACE, ask, disturb, fail_storage, fall_sick, hang, losses, make, slow
from simulation.pruned import pruned_campaign

import hpo
from hpo.islands.resume import snapshot
from hpo.islands.resume.fold import fold, fold_directory
from hpo.islands.resume.individuals import failures
from hpo.islands.resume.state import Resting, ResumeState
from hpo.journal.commands import Stop
from hpo.journal.directory import write_identity
from hpo.journal.evaluations import CurrentEvaluations
from hpo.journal.files import (
    fence,
    journal_files,
    journal_name,
    journal_part,
    journal_path,
    read_directory,
    read_file,
)
from hpo.journal.inspection import repair
from hpo.journal.records import Finished, Header, Known, Launched, Record, Reopened, encode
from hpo.search.population import Population

SEEDS, LAUNCHES = 8, 5


@pytest.fixture(autouse=True)
def larger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes journals for a megabyte larger than they are: as large as those that are worth a snapshot."""
    monkeypatch.setattr(
        snapshot, "_bytes", lambda journals: bool(journals) * (1 << 20) + sum(size for _, size, _ in journals)
    )


def folded(directory: Path, islands: int, *, take_snapshot: bool = False) -> ResumeState:
    return fold_directory(directory, space=SPACE, islands=islands, losses=losses, take_snapshot=take_snapshot)


def folded_anew(directory: Path, islands: int) -> ResumeState:
    torn: list[Path] = []
    state = fold(read_directory(directory, torn), space=SPACE, islands=islands, losses=losses)
    state.torn = [path.name for path in torn]
    return state


def described(state: ResumeState) -> str:
    """All of it, with types: 1 is not 1.0."""

    state.snapshot = b""
    return repr(msgspec.to_builtins(state, enc_hook=plain, order="deterministic"))


def plain(value: object) -> object:
    if isinstance(value, Population):
        return value.state
    if isinstance(value, CurrentEvaluations):
        return {name: held for name, held in vars(value).items() if name != "_ends"}
    return list(value) if isinstance(value, deque) else sorted(value)  # type: ignore[call-overload]


def fits(directory: Path, islands: int) -> bool:
    return snapshot.read(directory, snapshot.stamps(journal_files(directory)), islands) is not None


def write(directory: Path, place: tuple[int, int, int], records: list[Record], part: int = 0) -> None:
    launch, island, worker = place
    header = Header(version=1, launch=launch, island=island, worker=worker, time=10.0 * launch)
    path = journal_path(directory, launch=launch, island=island, worker=worker)
    path.parent.mkdir(exist_ok=True)
    with journal_part(path, part).open("xb") as file:
        file.write(b"".join(map(encode, [header, *records])))


def run_launch(
    directory: Path, launch: int, earlier: ResumeState, islands: int, seed: int, inbox: MemoryInbox
) -> None:
    rng = random.Random(f"snapshot/{seed}/{launch}")
    workers, budget = rng.randint(islands, 6), 8 * launch
    of = {"workers": workers, "islands": islands, "evaluations": budget, "earlier": earlier, "inbox": inbox}
    recorded = of["recorded"] = list(read_directory(directory))
    if seed % 3:
        simulation, _ = make(seed * LAUNCHES + launch, hang_timeout=1.0, first_failures=30, **of, **slow(rng))
    else:
        simulation, _ = pruned_campaign(seed * LAUNCHES + launch, **of)
    until = disturb(simulation, rng, workers)
    hang(simulation, rng, workers)
    for rank in rng.sample(range(workers), workers // 2):
        fall_sick(simulation, rank, rng.uniform(0, 4))
    fail_storage(simulation, rng, workers)
    ask(simulation, rng, inbox, workers)
    inbox.forget(Stop)
    simulation.run(until=min(until, 60.0))
    began = Launched(
        evaluations=budget,
        deadline_s=None,
        islands=islands,
        workers=workers,
        time=10.0 * launch,
        code="0a" * 6,
        contested=rng.random() < 0.3,
    )
    reopened = [
        Reopened(id=again.id, number=again.reopened, reason="r", time=10.0 * launch)
        for _, again in failures(recorded, space=SPACE)
        if again.id and rng.random() < 0.3
    ]
    points = [
        Known(
            number=launch * 3 + number,
            params={"x": rng.uniform(-5, 5), "y": 0.5, "kind": "a"},
            status="completed",
            objectives={"value": rng.random()},
            source="elsewhere",
            origin=str(number),
            time=10.0 * launch,
        )
        for number in range(rng.choice([0, 3]))
    ]
    for index, (leader, journal) in enumerate(zip(simulation.leaders, simulation.journals, strict=True)):
        place = leader.place
        first: list[Record] = [] if index else [began, *points, *reopened]
        write(directory, (launch, place.island, place.worker), [*first, *journal.committed])


def change(directory: Path, rng: random.Random) -> None:
    """Something that may become of journals and snapshot between two launches."""
    files, kind = journal_files(directory), rng.randrange(11)
    path, names = rng.choice(files), [name for name in map(journal_name, files) if name]
    name, data = names[files.index(path)], path.read_bytes()
    records = list(read_file(path, []))
    taken = directory / "journal/snapshot"
    if kind == 0:  # as a power cut leaves it
        path.write_bytes(data[: rng.randrange(len(data) // 2, len(data))])
    elif kind == 1:
        at = rng.randrange(len(data))
        path.write_bytes(data[:at] + b"#" + data[at + 1 :])
        repair(directory)
    elif kind in (2, 10):  # by a writer that was given up, or an earlier hpo; or in a launch that did no more
        ends = [one for one in records if isinstance(one, Finished)]
        for end in rng.sample(ends, min(3, len(ends))):
            again = Reopened(id=end.id, number=end.reopened + 1, reason="r", time=1.0)
            other = changed(end, reopened=end.reopened + 1, status="failed", objectives=None)
            launch = name.launch if kind == 2 else max(one.launch for one in names)
            write(directory, (launch, *name[1:3]), [rng.choice([again, other])], part=rng.randrange(2, 10**6))
    elif kind == 3:
        fence(path)
    elif kind == 4 and not name.part:  # written twice, after a write that failed
        write(directory, name[:3], records[len(records) // 2 :], part=rng.randrange(2, 10**6))
    elif kind == 5:  # of an overlapping launch
        write(directory, (name.launch, name.island, 1000 + rng.randrange(1000)), records[1:])
    elif kind == 6 and len(files) > 3:
        path.unlink()
    elif kind == 7 and data.endswith(b"\n"):
        path.write_bytes(data + data[data.rfind(b"\n", 0, -1) + 1 :])
    elif kind == 8 and taken.exists():
        found = bytearray(taken.read_bytes())
        found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
        taken.write_bytes(found)
    elif kind == 9 and taken.exists():
        taken.write_bytes(taken.read_bytes()[: rng.randrange(taken.stat().st_size)])


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_launch_goes_on_with_the_same_whether_there_is_a_snapshot_or_not(seed: int, tmp_path: Path) -> None:
    rng = random.Random(f"snapshot/{seed}")
    task = {"task": "a:b", "objectives": {"value": "minimize"}, "space": SPACE.describe(), "seed": 0}
    write_identity(tmp_path, task)
    (tmp_path / "journal").mkdir()
    islands = rng.randint(1, 3)
    inbox = MemoryInbox()
    for launch in range(1, LAUNCHES + 1):
        taken = folded(tmp_path, islands, take_snapshot=True)
        if taken.snapshot and rng.random() < 0.8:
            snapshot.write_beside(tmp_path, taken.snapshot)()
            assert fits(tmp_path, islands)
        expected = described(folded_anew(tmp_path, islands))
        assert described(taken) == expected
        assert described(folded(tmp_path, islands)) == expected, "from the snapshot alone"
        run_launch(tmp_path, launch, taken, islands, seed, inbox)
        for _ in range(rng.choice([0, 0, 1, 2])):
            change(tmp_path, rng)
        if rng.random() < 0.2:
            islands = rng.randint(1, 3)


def three_launches(directory: Path) -> None:
    write_identity(directory, {"task": "a:b", "objectives": {"value": "minimize"}, "seed": 0})
    state, inbox = ResumeState(), MemoryInbox()
    for launch in (1, 2):
        run_launch(directory, launch, state, 2, 1, inbox)
        state = folded(directory, 2)
    snapshot.write_beside(directory, folded(directory, 2, take_snapshot=True).snapshot)()
    run_launch(directory, 3, state, 2, 1, inbox)


def test_only_a_plain_file_made_for_this_campaign_and_by_this_code_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    three_launches(tmp_path)
    path, expected = tmp_path / "journal/snapshot", described(folded_anew(tmp_path, 2))
    good = path.read_bytes()
    assert fits(tmp_path, 2) and not fits(tmp_path, 1)
    kept = path.rename(tmp_path / "kept")
    path.symlink_to(kept)
    assert not fits(tmp_path, 2)
    path.unlink()
    path.mkdir()
    assert not fits(tmp_path, 2)
    path.rmdir()
    os.mkfifo(path)
    assert not fits(tmp_path, 2) and described(folded(tmp_path, 2)) == expected
    path.unlink()
    with path.open("wb") as sparse:
        sparse.truncate(1 << 40)
    assert not fits(tmp_path, 2)
    path.write_bytes(good)
    with monkeypatch.context() as other:
        other.setattr(snapshot, "_code", lambda: b"another version's")
        assert not fits(tmp_path, 2)
    assert fits(tmp_path, 2)
    write_identity(tmp_path, {"task": "another", "objectives": {"value": "minimize"}, "seed": 0})
    assert not fits(tmp_path, 2)


def test_ids_and_configurations_of_a_snapshot_are_checked_like_those_of_journals(tmp_path: Path) -> None:
    three_launches(tmp_path)
    journals = snapshot.stamps(journal_files(tmp_path))
    expected = described(folded_anew(tmp_path, 2))

    def forged(wrong: str) -> None:
        found = snapshot.read(tmp_path, journals, 2)
        assert found is not None
        members = next(iter(found.born.values()))
        member = members.best[0]
        if wrong == "id":
            found.configurations["../../home"] = found.configurations[member.id]
            member.id = "../../home"
        elif wrong == "resting":
            found.folded.resting["../.."] = Resting(0, "", 0.0)
        else:
            found.configurations[member.id] = {"x": 1e9}
        data = snapshot.encode(tmp_path, journals[: found.journals], 2, found)
        (tmp_path / "journal/snapshot").write_bytes(data)
        assert described(folded(tmp_path, 2)) == expected
        (tmp_path / "journal/snapshot").write_bytes(good)

    good = (tmp_path / "journal/snapshot").read_bytes()
    for wrong in ("id", "resting", "params"):
        forged(wrong)


def test_a_campaign_takes_snapshots_and_goes_on_from_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, used = snapshot.read, []

    def noted(*arguments: Any) -> object:
        found = read(*arguments)
        used.append(0 if found is None else found.journals)
        return found

    monkeypatch.setattr(snapshot, "read", noted)
    task = hpo.Task(SPACE, lambda trial: float(trial.params["x"]))
    for launch in range(1, 5):
        campaign = hpo.Campaign(
            task, directory=tmp_path, evaluations=20 * launch, isolation="inline", kind="random"
        )
        result = campaign.run()
        assert [one.status for one in result.individuals] == ["completed"] * 20 * launch
    assert used == [0, 0, 1, 2]
    assert len({SPACE.key(one.params) for one in result.individuals}) == 80
    assert [path.name for path in (tmp_path / "journal").iterdir() if not journal_name(path)] == ["snapshot"]
