"""The first message to each rank of a launch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Sequence
from itertools import islice

from hpo.config.layout import Layout
from hpo.individual import is_known
from hpo.islands.messages import Start, Surroundings
from hpo.islands.resume.known import other_tasks
from hpo.islands.resume.state import ResumeState
from hpo.search.early_stopping import MOST_RESTING
from hpo.search.population import Member

# The latest pruned individuals, for leaders to breed by, beside those that they may go on with.
_MOST_SHOWN = 64


def start_messages(
    layout: Layout,
    state: ResumeState,
    launch: int,
    hosts: Sequence[str],
    *,
    cores: Sequence[str] = (),
    lineages: Container[int] = (),
    holds: Callable[[str], bool] = lambda identity: True,
    elsewhere: Callable[[str], bool] = lambda identity: False,
) -> list[Start]:
    """The first message to each rank; leaders alone get a population. ``hosts``, ``cores``: see ``surroundings``;
    ``lineages``: islands whose individuals go on from each other; ``holds``: whether an individual's checkpoint is
    still there, without which it does not go on; ``elsewhere``: whether it belongs to another launch at work, which
    alone may continue it and let it migrate."""
    first, tasks = (layout.workers[0].worker, layout.first_island), other_tasks(state)
    starts = [Start(launch, *first, where, 0, [], [], [], {}) for where in surroundings(layout, hosts, cores)]
    for island in sorted({place.island for place in layout.workers}):
        places = layout.of_island(island)
        population = state.populations.get(island)
        members: list[Member] = []
        owned: dict[int, list[str]] = {}
        if population is not None:
            leaders = [place.leader for place in places]
            paused = [one for one in population.pruned if one.id in state.resting]
            paused.sort(key=lambda one: (state.resting[one.id].finished, one.id))
            # The latest alone: leaders keep no more, and the search for a checkpoint takes a while.
            most = MOST_RESTING * len(leaders)
            held = (one for one in paused[: -2 * most - 1 : -1] if holds(one.id))
            paused = [*islice(held, most)][::-1]
            resting = share([one.id for one in paused], leaders)
            completed = list(reversed(list(population)))  # worst first: the last counts as most recent
            if island in lineages:
                recent = population.recent
                completed = [one for one in completed if one not in recent] + recent
                ends = [one.id for one in recent if not one.history and one.id not in state.continued]
                owned = share([one for one in ends if holds(one) and not elsewhere(one)], leaders)
            else:
                native = (one.id for one in population.best if not is_known(one.id))
                owned = share([one for one in native if not elsewhere(one)], leaders)
            owned = {leader: owned[leader] + resting[leader] for leader in leaders}
            latest = population.pruned[-_MOST_SHOWN:]
            shown = {one.id for one in latest}
            pruned = [*(one for one in paused if one.id not in shown), *latest]
            members += [*population.failures, *pruned, *completed]
        reports = [*state.reports.get(island, ())]
        for place in places:
            starts[place.leader] = Start(
                launch,
                *first,
                starts[place.leader].surroundings,
                -(-state.begun.get(island, 0) // len(places)),
                members,
                mine := owned.get(place.leader, []),
                reports,
                {one: state.resting[one][:2] for one in mine if one in state.resting},
                tasks,
            )
    return starts


def surroundings(layout: Layout, hosts: Sequence[str], cores: Sequence[str] = ()) -> list[Surroundings]:
    """Place of each rank. ``hosts``: by rank; ``cores``: by rank, equal for ranks that see the same cores of a host."""
    seen: dict[str, set[str]] = {}
    for host, one in zip(hosts, cores):
        seen.setdefault(host, set()).add(one)
    sizes = Counter(hosts)
    leaders = Counter(hosts[place.leader] for place in layout.workers)
    before: Counter[str] = Counter()
    found = []
    for rank, host in enumerate(hosts):
        own = tuple(hosts[member] for member in layout.place_of(rank)[0].ranks)
        found.append(
            Surroundings(own, before[host], sizes[host], leaders[host], len(seen.get(host, ())) == 1)
        )
        before[host] += 1
    return found


def share(identities: Sequence[str], leaders: Sequence[int]) -> dict[int, list[str]]:
    """Deal an island's individuals to its leaders in turn."""
    owned: dict[int, list[str]] = {leader: [] for leader in leaders}
    for index, identity in enumerate(identities):
        owned[leaders[index % len(leaders)]].append(identity)
    return owned
