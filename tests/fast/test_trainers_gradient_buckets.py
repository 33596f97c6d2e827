"""Gradients that lie in the buckets by which ranks average them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
from torch import Tensor, nn

from trainers.communication.channel import Channel
from trainers.communication.gradient_buckets import InPlaceAverager

ALONE = Channel(name="alone", ranks=(0,), rank=0, group=None, timeout=timedelta(seconds=9), next_is_near=True)
INPUTS = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.other, self.unused = (nn.Linear(4, 4) for _ in range(3))
        self.filters = nn.Conv2d(2, 2, 2).to(memory_format=torch.channels_last)

    def forward(self, inputs: Tensor, *, both: bool) -> Tensor:
        found = self.one(inputs)
        if both:
            found = (
                self.other(found) + self.filters(found.view(5, 2, 2, 1).expand(5, 2, 2, 2)).flatten(1).sum()
            )
        return found.square().sum()


def bytes_of(tensors: list[Tensor]) -> int:
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


@pytest.mark.parametrize("passes", [1, 2, 3])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_lie_in_the_buckets_and_are_the_same(passes: int, set_to_none: bool) -> None:
    model, other = Branches(), Branches()
    averager = InPlaceAverager(model.parameters(), ALONE, keep_none=True)
    for step in range(3):
        model.zero_grad(set_to_none=set_to_none)
        other.zero_grad(set_to_none=set_to_none)
        for number in range(passes):
            # A pass of its own may lack some, and so may all of a step.
            both = step != 1 and number != 1
            if number == passes - 1:
                averager.arm()
            for net in (model, other):
                net(INPUTS[number], both=both).backward()
        averager.finish()
        for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
            assert (ours.grad is None) == (theirs.grad is None)
            if ours.grad is not None and theirs.grad is not None:
                assert torch.equal(ours.grad, theirs.grad) and ours.grad.stride() == theirs.grad.stride()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        buckets = [bucket.flat for bucket in averager._buckets]
        assert bytes_of([*gradients, *buckets]) == bytes_of(buckets)


def test_no_second_copy_is_left_by_passes_before_the_last() -> None:
    model = nn.Sequential(nn.Linear(4, 64), nn.Linear(64, 4))
    averager = InPlaceAverager(model.parameters(), ALONE, keep_none=True)
    for _ in range(2):
        model(INPUTS[0]).sum().backward()
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        assert len(gradients) == 4
        buckets = [bucket.flat for bucket in averager._buckets]
        assert bytes_of([*gradients, *buckets]) <= 1.1 * sum(gradient.nbytes for gradient in gradients)


def test_gradients_that_the_user_has_replaced_count() -> None:
    model = nn.Linear(4, 1)
    averager = InPlaceAverager(model.parameters(), ALONE, keep_none=True)
    model(INPUTS[0]).sum().backward()
    model.weight.grad = torch.full_like(model.weight, 2.0)
    averager.arm()
    averager.finish()
    assert model.weight.grad.eq(2).all()
    averager.arm()
    averager.send()
    replaced = model.weight.grad = torch.zeros_like(model.weight)
    averager.finish()
    assert model.weight.grad is replaced and replaced.eq(2).all()


@pytest.mark.parametrize("alias", [lambda gradient: gradient, lambda gradient: gradient.detach()[:1]])
def test_a_gradient_that_is_kept_stays_what_it_was(alias: Callable[[Tensor], Tensor]) -> None:
    model = nn.Linear(4, 4)
    averager = InPlaceAverager(model.parameters(), ALONE, keep_none=True)
    kept, places = list[Tensor](), list[int]()
    for step in range(4):
        model.zero_grad()
        averager.arm()
        model(INPUTS[step % 3]).square().sum().backward()
        averager.finish()
        assert model.weight.grad is not None
        places.append(averager._buckets[0].flat.data_ptr())
        if step == 1:
            kept = [alias(model.weight.grad), alias(model.weight.grad).clone()]
    assert torch.equal(*kept)
    assert places[0] == places[1] != places[2] == places[3]
