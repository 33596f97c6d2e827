"""What ranks get when they start, at sizes that no test machine has."""

from __future__ import annotations

import resource

from hypothesis import given
from hypothesis import strategies as st

from hpo.cluster.mpi_startup import raise_file_limit
from hpo.config.layout import Layout
from hpo.islands.messages import encode
from hpo.islands.resume.start import start_messages, surroundings
from hpo.islands.resume.state import ResumeState


def test_start_messages_of_10_000_ranks_take_less_than_10_mb() -> None:
    layout = Layout.plan(ranks=10_000, sizes=[4] * 100)
    hosts = [f"node{rank // 4:05d}.partition.cluster.example" for rank in range(10_000)]
    starts = start_messages(layout, ResumeState(), 1, hosts)
    assert sum(len(encode(start)) for start in starts) < 10e6


@given(hosts=st.lists(st.sampled_from("abc"), min_size=6, max_size=6), size=st.sampled_from([1, 2, 3]))
def test_each_rank_learns_where_it_runs(hosts: list[str], size: int) -> None:
    layout = Layout.plan(ranks=6, sizes=[size] * 1)
    for rank, found in enumerate(surroundings(layout, hosts)):
        place, _ = layout.place_of(rank)
        assert found.hosts == tuple(hosts[member] for member in place.ranks)
        assert found.local_rank == hosts[:rank].count(hosts[rank])
        assert found.local_size == hosts.count(hosts[rank])
        assert found.local_leaders == sum(hosts[one.leader] == hosts[rank] for one in layout.workers)


def test_as_many_files_may_be_open_as_are_allowed() -> None:
    former = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, former[1]))
        raise_file_limit()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert hard == former[1]
        assert soft == (1 << 16 if hard == resource.RLIM_INFINITY else min(hard, 1 << 16))
        raise_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (soft, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, former)
