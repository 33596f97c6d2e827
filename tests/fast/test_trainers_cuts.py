"""Cuts of parameters into fragments, and when each fragment is due."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainers.methods.fragments import Rota, fragments_of


@given(st.lists(st.integers(0, 20), max_size=6), st.integers(1, 7))
def test_fragments_are_equal_parts_of_all_elements(sizes: list[int], count: int) -> None:
    numbers = torch.arange(sum(sizes))
    tensors = list(torch.split(numbers.clone(), sizes))
    fragments = [torch.cat([numbers[:0], *fragment]) for fragment in fragments_of(tensors, count)]
    assert torch.equal(torch.cat(fragments), numbers)
    assert {len(fragment) - len(numbers) // count for fragment in fragments} <= {0, 1}


def test_fragments_are_views_in_the_order_of_memory_of_what_a_parameter_holds_now() -> None:
    image = torch.nn.Parameter(torch.arange(24.0).view(1, 2, 3, 4).to(memory_format=torch.channels_last))
    (first,), (second,) = fragments_of([image], 2)
    assert torch.equal(torch.cat([first, second]).view(3, 4, 2), image.detach()[0].permute(1, 2, 0))
    halves = fragments_of([image], 2)
    image.data = torch.zeros(1, 2, 3, 4)
    halves[1][0].fill_(1)
    assert torch.equal(image.detach().flatten(), torch.tensor([0.0, 1]).repeat_interleave(12))
    transposed = torch.ones(4, 3).t()
    with pytest.raises(ValueError, match=r"fragments=2: .* shape \(3, 4\) .*Make it contiguous"):
        fragments_of([transposed], 2)
    assert fragments_of([transposed], 1)[0][0] is transposed


def sent(rota: Rota, every: int) -> list[int]:
    rota.since += 1
    return list(rota.due(every))


@given(st.integers(1, 12), st.integers(1, 12))
def test_each_fragment_is_due_once_in_a_period(every: int, count: int) -> None:
    rota = Rota(count=count)
    for _ in range(2):
        steps = [sent(rota, every) for _ in range(every)]
        assert [number for due in steps for number in due] == list(range(count))
        if count <= every:
            for step, due in enumerate(steps, start=1):
                assert due == [i for i in range(count) if (i + 1) * every // count == step]


def test_a_shorter_period_is_caught_up_with_and_a_meeting_begins_a_period() -> None:
    rota = Rota(count=4)
    assert [sent(rota, 8) for _ in range(5)] == [[], [0], [], [1], []]
    assert [sent(rota, 4) for _ in range(3)] == [[2, 3], [0], [1]]
    rota.meet()
    assert [sent(rota, 4) for _ in range(4)] == [[0], [1], [2], [3]]
