"""Storage that fails, is slow or comes back, in virtual time: no individual fails for it, and nothing is lost or
counted twice."""

from __future__ import annotations

import errno
import random
from operator import attrgetter

import journals
import pytest
from simulation.campaigns import SPACE, check_that_it_completes, finished, losses, make, records_of
from simulation.pruned import pruned_campaign

import hpo
from hpo.campaign.rank.journal_log import JournalLog
from hpo.config.layout import WorkerPlacement
from hpo.errors import EXIT_RESUMABLE
from hpo.islands.end_reasons import DONE, STORAGE
from hpo.islands.resume.dead_leader import dead_leader_record
from hpo.islands.resume.fold import fold
from hpo.islands.storage import PATIENCE_S, StorageWait
from hpo.journal.files import JournalWriter, journal_path
from hpo.journal.records import Finished, Header, Started
from hpo.results.follow import Follower
from hpo.results.record import Fold as ResultsFold
from hpo.results.record import load

FULL = "runs/x/evaluations/0-0-1: No space left on device"


def between(simulation, begin, end):
    return begin <= simulation.time < end


def break_journal(simulation, rank, begin, end, reached=lambda number: 0):
    journal = simulation.journals[rank]
    tries = []

    def disturb():
        if between(simulation, begin, end):
            tries.append(simulation.time)
            assert len(tries) < 1000, "it is tried again and again without a pause"
            raise OSError(28, "No space left on device", f"journal-{rank}")

    journal.disturb, journal.reached = disturb, reached
    return tries


def break_directories(simulation, rank, begin, end):
    tries = []

    def unwritable():
        if not between(simulation, begin, end):
            return None
        tries.append(simulation.time)
        assert len(tries) < 1000, "it is tried again and again without a pause"
        return FULL

    simulation.crews[rank].unwritable = unwritable
    return tries


def check_budget(simulation, settings):
    """Each individual of the budget has completed, once; a record may be there twice, after a failed sync."""
    records = {record.id: record for record in finished(simulation)}
    assert all(record == records[record.id] for record in finished(simulation))
    assert len(records) == settings["evaluations"] == simulation.coordinator.tally.final
    assert {record.status for record in records.values()} == {"completed"}
    assert len({SPACE.key(record.params) for record in records.values()}) == len(records)


def check_the_next_launch(simulation, settings, seed):
    """It completes the budget; nothing that was begun is forgotten."""
    earlier = {record.id: record for record in finished(simulation)}
    assert {record.status for record in earlier.values()} <= {"completed", "interrupted"}
    records = [*{id(r): r for r in records_of(simulation) if not isinstance(r, Finished)}.values()]
    check_that_it_completes([*records, *earlier.values()], settings, seed)


# --- pauses -----------------------------------------------------------------------------------------------------------


def test_pauses_grow_and_end_after_two_minutes():
    wait, now, tries = StorageWait(), 1000.0, []
    while not wait.over:
        wait.failed(FULL, now)
        tries.append(now - 1000)
        assert wait.retry_at > now
        now = wait.retry_at
    assert tries == [0, 1, 3, 7, 15, 30, 45, 60, 75, 90, 105, 120]
    wait.worked()
    assert (wait.error, wait.over) == (None, False)
    wait.failed(FULL, now)
    assert wait.retry_at == now + 1 and not wait.over


# --- directories of individuals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("rank", [0, 2])
def test_an_individual_waits_for_its_directory(rank, seed):
    simulation, settings = make(seed, workers=4, islands=2, evaluations=60)
    tries = break_directories(simulation, rank, 5, 65)
    seen = []
    simulation.at(50, lambda: seen.append(simulation.coordinator.waited_for_storage(simulation.time)))
    simulation.at(100, lambda: seen.append(simulation.coordinator.waited_for_storage(simulation.time)))
    simulation.run()
    assert simulation.coordinator.end.reason == DONE
    check_budget(simulation, settings)
    assert 3 < len(tries) < 10
    error, seconds = seen[0]
    assert error == FULL and 35 < seconds < 45 and seen[1:] == [None]


# --- journals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rank", [0, 2])
def test_results_wait_for_a_journal_that_comes_back(rank, seed):
    """With some, all or none of what was to be written on the disk in spite of the error."""
    rng = random.Random(seed)
    simulation, settings = make(seed, workers=4, islands=2, evaluations=80)
    tries = break_journal(simulation, rank, 5, 5 + rng.uniform(1, 100), lambda number: rng.randint(0, number))
    simulation.run()
    assert simulation.coordinator.end.reason == DONE
    check_budget(simulation, settings)
    assert 1 <= len(tries) < 20
    state = fold(records_of(simulation), space=SPACE, islands=2, losses=losses)
    assert (state.tally.final, state.pending) == (80, [])


@pytest.mark.parametrize("seed", range(3))
def test_a_journal_that_cannot_be_written_costs_its_worker_and_not_the_campaign(seed):
    simulation, settings = make(seed, workers=4, islands=2, evaluations=800)
    rng = random.Random(seed)
    for rank in rng.sample([1, 2, 3], rng.randint(1, 3)):
        break_journal(simulation, rank, rng.uniform(0, 20), float("inf"))
    simulation.run()
    assert simulation.coordinator.end.reason == DONE
    check_budget(simulation, settings)


@pytest.mark.parametrize("others", [(), (1, 2, 3)])
@pytest.mark.parametrize("seed", range(2))
def test_without_the_journal_of_rank_0_the_launch_ends_and_the_next_one_goes_on(seed, others):
    simulation, settings = make(seed, workers=4, islands=2, evaluations=1000)
    for rank in (0, *others):
        break_journal(simulation, rank, 5, float("inf"))
    simulation.run()
    end = simulation.coordinator.end
    assert (end.reason, end.exit_code) == (STORAGE, EXIT_RESUMABLE)
    assert "journal-" in end.error and "No space left on device" in end.error
    assert PATIENCE_S < simulation.time < PATIENCE_S + 90
    count = len(finished(simulation))
    check_the_next_launch(simulation, {**settings, "evaluations": count + 30}, seed)


@pytest.mark.parametrize("seed", range(2))
def test_a_slow_sync_trips_nothing(seed):
    """Each takes up to ten seconds, for which its rank hears and says nothing: evaluations take two."""
    simulation, settings = make(seed, workers=6, islands=2, evaluations=60, duration=lambda index: 2.0)
    rng = random.Random(seed)
    for rank, journal in enumerate(simulation.journals):
        journal.disturb = lambda rank=rank: simulation.stall(rank, rng.uniform(0, 10))
    simulation.run()
    assert simulation.coordinator.end.reason == DONE
    assert simulation.time > 60
    assert len(finished(simulation)) == 60
    check_budget(simulation, settings)


def test_a_dead_workers_journal_is_waited_for():
    """What it had stays with it until then: granted anew, it would be beyond the budget."""
    simulation, settings = make(4, workers=4, islands=2, evaluations=60)
    tries = []

    def unreadable():
        if between(simulation, 5, 65):
            tries.append(simulation.time)
            raise FileNotFoundError(2, "No such file or directory", "runs/x/journal")

    simulation.journals[2].unreadable = unreadable
    seen = []
    simulation.at(6, lambda: simulation.kill(2))
    simulation.at(30, lambda: seen.append(simulation.coordinator.waited_for_storage(simulation.time)))
    simulation.at(90, lambda: seen.append(simulation.coordinator.waited_for_storage(simulation.time)))
    simulation.run()
    assert simulation.coordinator.end.reason == DONE
    check_budget(simulation, settings)
    begun = {record.id for record in records_of(simulation) if isinstance(record, Started)}
    assert begun == {record.id for record in finished(simulation)}
    assert 3 < len(tries) < 10
    assert seen[0][0] == "runs/x/journal: No such file or directory" and seen[1] is None


@pytest.mark.parametrize("stopped", [False, True])
def test_a_dead_workers_journal_that_cannot_be_read_for_minutes_is_left_to_the_next_launch(
    stopped, monkeypatch
):
    simulation, settings = make(4, workers=4, islands=2, evaluations=1000)

    def unreadable():
        raise OSError(5, "Input/output error", "runs/x/journal/0001-i001-w0000.jsonl")

    simulation.journals[2].unreadable = unreadable
    simulation.at(6, lambda: simulation.kill(2))
    if stopped:
        simulation.at(10, lambda: simulation.coordinator.stop("stopped"))
    over = []
    monkeypatch.setattr(simulation.coordinator._log, "launch_ended", lambda end: over.append(simulation.time))
    simulation.run()
    end = simulation.coordinator.end
    assert (end.reason, end.exit_code) == ("stopped" if stopped else STORAGE, EXIT_RESUMABLE)
    assert stopped or "Input/output error" in end.error
    assert over[0] < (25 if stopped else PATIENCE_S + 30)
    check_the_next_launch(simulation, {**settings, "evaluations": len(finished(simulation)) + 20}, 4)


def test_journals_that_cannot_be_read_for_now_are_not_taken_for_empty_ones(tmp_path):
    run = journals.campaign(tmp_path / "run", [], [], [finished_of(0)], space=SPACE)
    task = hpo.Task(SPACE, lambda trial: 0.0)
    first = JournalWriter(journal_path(run, launch=1, island=0, worker=9), Header.of_this_process(**PLACE))
    log = JournalLog(first, run, task, islands=1, number=1, began=0.0)
    worker, other = (WorkerPlacement(index=one, island=0, worker=one, ranks=(one,)) for one in (2, 3))
    assert len(log.dead_leader_record(worker, may_run=False).finished) == 1
    assert log.dead_leader_record(other, may_run=True).finished == []
    path = journal_path(run, launch=1, island=0, worker=2)
    run.rename(tmp_path / "gone")
    with pytest.raises(FileNotFoundError):
        log.dead_leader_record(worker, may_run=False)
    (tmp_path / "gone").rename(run)
    path.unlink()
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        log.dead_leader_record(worker, may_run=False)


def test_what_a_leader_writes_after_it_was_given_up_does_not_count(tmp_path, monkeypatch):
    """Also where rank 0 could put that on record at the second attempt alone."""
    run = journals.campaign(tmp_path / "run", [], [], [finished_of(0)], space=SPACE)
    task = hpo.Task(SPACE, lambda trial: 0.0)
    journal_path(run, launch=1, island=0, worker=0).unlink()
    first = JournalWriter(journal_path(run, launch=1, island=0, worker=0), Header.of_this_process(**PLACE))
    log = JournalLog(first, run, task, islands=1, number=1, began=0.0)
    worker = WorkerPlacement(index=2, island=0, worker=2, ranks=(2,))

    def late(number):
        with open(journal_path(run, launch=1, island=0, worker=2), "ab") as file:
            file.write(journals.line(finished_of(number)))

    with monkeypatch.context() as patched:

        def fails(handle):
            raise OSError(errno.EIO, "Input/output error")

        patched.setattr("hpo.journal.files.os.fsync", fails)
        with pytest.raises(OSError, match="Input/output"):
            log.dead_leader_record(worker, may_run=True)
    late(1)
    assert [end.id for _, end in log.dead_leader_record(worker, may_run=True).finished] == ["0-2-0"]
    late(2)
    follower = Follower(run)
    follower.poll()
    for record in (load(run), follower.record()):
        assert [one.id for one in record.individuals] == ["0-2-0"]
    first.close()


PLACE = {"launch": 1, "island": 0, "worker": 0}


def finished_of(number):
    return journals.finished(f"0-2-{number}", 0.5, params={"x": 1.0, "y": number / 4, "kind": "a"})


# --- records that are written twice -----------------------------------------------------------------------------------


def again(records, rng):
    """What a journal holds whose writes failed: of each batch a part, then all of it."""
    found, rest = [], list(records)
    while rest:
        size = rng.randint(1, 8)
        batch, rest = rest[:size], rest[size:]
        for _ in range(rng.randint(0, 2)):
            found += batch[: rng.randint(0, len(batch))]
        found += batch
    return found


@pytest.mark.parametrize("seed", range(3))
def test_what_is_written_twice_counts_once(seed):
    rng = random.Random(seed)
    simulation, _ = pruned_campaign(seed) if seed % 2 else make(seed, migration=1.0)
    simulation.run()
    once, twice = [], []
    for rank, journal in enumerate(simulation.journals):
        header = Header(version=1, launch=1, island=0, worker=rank, time=0.0)
        once += [header, *journal.committed]
        twice += [header, *again(journal.committed, rng)]
    assert len(twice) > len(once) or len(once) < 10
    first, second = (fold(one, space=SPACE, islands=2, losses=losses) for one in (once, twice))
    assert first.tally == second.tally
    assert (first.keys, first.pending, first.begun) == (second.keys, second.pending, second.begun)
    assert (first.resting, first.continued) == (second.resting, second.continued)
    for island, population in first.populations.items():
        other = second.populations[island]
        for part in (list, attrgetter("recent"), attrgetter("pruned"), attrgetter("failures")):
            assert repr(part(population)) == repr(part(other))
    results = []
    for records in (once, twice):
        folding = ResultsFold()
        folding.add(records)
        results.append((folding.individuals(), folding.launches))
    assert results[0] == results[1]


def test_what_a_dead_leader_wrote_twice_is_not_counted_for_another():
    """Which ends it had reported follows from their number."""
    simulation, _ = make(3, workers=1, islands=1, evaluations=10)
    simulation.run()
    records = simulation.journals[0].committed
    found = [
        dead_leader_record(one, space=SPACE, islands=1, losses=losses).finished
        for one in (records, again(records, random.Random(2)))
    ]
    assert len(found[0]) == 10 and found[0] == found[1]
