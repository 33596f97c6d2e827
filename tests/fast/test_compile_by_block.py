"""Gradients of a model that is compiled block by block are ready one block after the other."""

from __future__ import annotations

import torch
from torch import nn


def test_gradients_of_blocks_are_ready_before_the_backward_of_earlier_blocks() -> None:
    blocks = [nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3)]
    events: list[str] = []
    x = torch.ones(2, 4, requires_grad=True)
    for place, block in enumerate(blocks):
        for parameter in block.parameters():
            parameter.register_post_accumulate_grad_hook(
                lambda _, place=place: events.append(f"ready {place}")
            )
        block.compile(backend="aot_eager")
    for place, block in enumerate(blocks):
        x = block(x)
        x.register_hook(lambda _, place=place: events.append(f"backward {place}"))
    x.sum().backward()
    expected = [f"{what} {place}" for place in (2, 1, 0) for what in ("backward", "ready", "ready")]
    assert events == expected
