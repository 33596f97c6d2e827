"""The bounded pool of an island against a reference that sorts everything each time."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from populations import population_of

from hpo.individual import COMPLETED, FAILED
from hpo.search.models.pareto import dominates
from hpo.search.population import Member, Population

BEST, RECENT, FAILURES = 4, 3, 2


class Reference:
    """The same by brute force: ranks are counted and sorted anew after each event."""

    def __init__(self):
        self.best, self.recent, self.failures = [], [], []

    def add(self, member):
        if member.losses is None:
            self.failures = [*self.failures, member][-FAILURES:]
            return
        self.recent = [*self.recent, member][-RECENT:]
        self.best.append(member)
        self.sort()
        del self.best[BEST:]
        self.sort()

    def discard(self, identity):
        self.recent = [one for one in self.recent if one.id != identity]
        self.best = [one for one in self.best if one.id != identity]
        self.failures = [one for one in self.failures if one.id != identity]
        self.sort()

    def rank(self, member):
        if len(member.losses) == 1:
            return member.losses[0]
        return sum(dominates(other.losses, member.losses) for other in self.best)

    def crowding(self, member):
        """Deb's distance among those of the same rank, of which the older come first where they are equal."""
        if len(member.losses) == 1:
            return 0.0
        alike = sorted(
            (one for one in self.best if self.rank(one) == self.rank(member)), key=lambda one: one.age
        )
        total = 0.0
        for place in range(len(member.losses)):
            line = sorted(alike, key=lambda one: one.losses[place])
            index, width = line.index(member), line[-1].losses[place] - line[0].losses[place]
            if index in (0, len(line) - 1):
                return math.inf
            if width:
                total += (line[index + 1].losses[place] - line[index - 1].losses[place]) / width
        return total

    def sort(self):
        keys = {one.id: (self.rank(one), -self.crowding(one), one.age) for one in self.best}
        self.best.sort(key=lambda one: keys[one.id])


values = st.integers(0, 5).map(float)


def events(objectives):
    """Losses to add (None: it failed), or how far back the one to be discarded came."""
    losses = st.tuples(*[values] * objectives)
    return st.lists(st.one_of(losses, st.none(), st.integers(0, 8)), max_size=40)


def play(story):
    population, reference = Population(best=BEST, recent=RECENT, failures=FAILURES), Reference()
    for number, event in enumerate(story):
        if isinstance(event, int):
            population.discard(str(number - event))
            reference.discard(str(number - event))
        else:
            member = Member(str(number), (0.5,), event, FAILED if event is None else COMPLETED)
            population.add(member)
            reference.add(member)
        assert [one.id for one in population.best] == [one.id for one in reference.best]
        ranks = [one.rank if len(one.losses) == 1 else int(one.rank) for one in population.best]
        assert ranks == [reference.rank(one) for one in reference.best]
        assert [one.rank for one in population.best] == sorted(one.rank for one in population.best)
        assert [one.id for one in population.recent] == [one.id for one in reference.recent]
        assert [one.id for one in population.failures] == [one.id for one in reference.failures]
        everyone = [one.id for one in population]
        assert len(set(everyone)) == len(everyone) == len(population)
        assert set(everyone) == {one.id for one in (*reference.best, *reference.recent)}
    return population


@given(events(1))
def test_one_objective_is_sorted_by_value_older_first(story):
    play(story)


@given(events(2))
def test_several_objectives_are_sorted_by_how_many_dominate(story):
    play(story)


def test_of_equal_rank_the_least_crowded_come_first_and_the_most_crowded_go():
    losses = [(0.0, 10.0), (1.0, 8.0), (2.0, 5.0), (2.5, 4.5), (10.0, 0.0)]
    population = population_of((((0.5,), one) for one in losses), into=Population(best=4))
    # Over widths of 10 and 10: "1" 0.2 + 0.5, "2" 0.15 + 0.35, "3" 0.8 + 0.5; then "2" is gone.
    assert [one.id[-1] for one in population.best] == ["0", "4", "3", "1"]
    assert [one.rank for one in population.best] == [0.0, 0.25, 0.5, 0.75]


def test_what_is_beyond_the_reference_comes_last():
    population = Population(reference=(5.0, 5.0))
    for number, losses in enumerate([(0.0, 6.0), (4.0, 4.0), (4.5, 4.5), (5.0, 5.0), (9.0, 9.0)]):
        population.add(Member(str(number), (0.5,), losses, COMPLETED))
    assert [one.id for one in population.best] == ["1", "2", "3", "0", "4"]
    population.discard("1")
    assert [one.id for one in population.best] == ["2", "3", "0", "4"]
    assert [one.dominators for one in population.best] == [0, 1, 0, 3]


def test_counts_go_on_beyond_the_bounds():
    population = play([(float(number),) for number in range(20)] + [None] * 5 + [25])
    assert population.completed == 20 and population.seen == 25
    assert [one.losses for one in population.best] == [(1.0,), (2.0,), (3.0,)]
