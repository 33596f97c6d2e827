"""Who owns whom and who leaves, against a reference that sorts everything each time."""

from __future__ import annotations

import journals
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulation.campaigns import SPACE, losses

from hpo.individual import COMPLETED
from hpo.islands.leader import migration
from hpo.islands.leader.migration import Migration, MigrationSettings
from hpo.islands.resume.fold import fold
from hpo.journal.records import Header, Migrated
from hpo.search.population import Member

HERE, ISLANDS = 0, [[0, 1], [2], [3, 4]]


class Journal:
    def __init__(self):
        self.records = []

    def append(self, record):
        self.records.append(record)

    def commit(self):
        pass


def make(copy, emigrants=(0, 1, 2)):
    journal = Journal()
    settings = MigrationSettings(probability=1.0, copy=copy, emigrants=emigrants)
    moving = Migration(settings, seed=0, here=HERE, islands=ISLANDS, journal=journal, clock=lambda: 7.0)
    return moving, journal


def member(number, loss, history=()):
    return Member(str(number), (0.5,), (loss,), COMPLETED, history)


class Reference:
    """What is owned, by id in order of arrival."""

    def __init__(self, copy, limit):
        self.copy, self.limit, self.owned = copy, limit, {}

    def own(self, one):
        self.owned.pop(one.id, None)
        self.owned[one.id] = one
        if len(self.owned) > self.limit:
            del self.owned[max(self.owned.values(), key=lambda other: other.losses).id]

    def departures(self):
        left = []
        for target, count in ((1, 1), (2, 2)):
            fit = [one for one in self.owned.values() if target not in one.history]
            for one in sorted(fit, key=lambda other: other.losses)[:count]:
                left.append((one.id, target, (*one.history, HERE)))
                if self.copy:
                    one.history = (*one.history, target)
                else:
                    del self.owned[one.id]
        return left


stories = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 4).map(float), st.sampled_from([(), (1,), (2, 1)])),
    max_size=30,
)


@given(stories, st.booleans(), st.lists(st.booleans(), min_size=30, max_size=30))
def test_the_best_that_were_not_there_leave(story, copy, leaving):
    moving, journal = make(copy)
    limit, migration._OWNED = migration._OWNED, 5
    try:
        reference = Reference(copy, 5)
        for (number, loss, history), leaves in zip(story, leaving):
            moving.own(member(number, loss, history))
            reference.own(member(number, loss, history))
            if not leaves:
                continue
            departures = moving.departures(member(number, loss))
            expected = reference.departures()
            records = journal.records[len(journal.records) - len(expected) :]
            assert [(one.id, one.target) for one in records] == [left[:2] for left in expected]
            assert [(one.traveller.id, one.traveller.history) for one in departures] == [
                (identity, history) for identity, _, history in expected
            ]
            for departure, (_, target, _) in zip(departures, expected):
                assert departure.gateway in ISLANDS[target]
                assert departure.left is not copy
    finally:
        migration._OWNED = limit


@pytest.mark.parametrize(
    ("ring", "dead", "gateways"),
    [
        (True, [1], {2, 3}),
        (True, [1, 2, 3], {4}),
        (True, [1, 2, 3, 4], set()),
        (False, [1], set()),
        (True, [2, 3], {1}),
    ],
)
def test_a_ring_goes_on_behind_an_island_without_workers(ring, dead, gateways):
    settings = MigrationSettings(probability=1.0, copy=True, emigrants=(0, 1, 0, 0), ring=ring)
    journal = Journal()
    islands = [(0,), (1,), (2, 3), (4,)]
    moving = Migration(settings, seed=0, here=0, islands=islands, journal=journal, clock=lambda: 7.0)
    moving.lose(frozenset(dead))
    found = set()
    for number in range(20):
        moving.own(member(number, float(-number)))
        found |= {one.gateway for one in moving.departures(member(number, 0.0))}
    assert found == gateways


@pytest.mark.parametrize(("copy", "homes"), [(False, {1}), (True, {0, 1})])
def test_the_next_launch_has_migrants_on_the_islands_where_they_live(copy, homes):
    found = fold(
        [
            Header(version=1, launch=1, island=0, worker=0, time=0.0),
            journals.record(journals.finished("0-0-0", 6.0, params={"x": 1.0, "y": 2.0, "kind": "a"})),
            Migrated(id="0-0-0", source=0, target=1, hop=1, copy=copy, time=3.0),
        ],
        space=SPACE,
        islands=2,
        losses=losses,
    )
    assert {island for island, members in found.populations.items() if len(members)} == homes
