"""Structures of tensors keep their kinds wherever they go, and what cannot be joined for metrics is named."""

from __future__ import annotations

import json
from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import default_collate

from trainers.communication.gathering import _described, _restored, _taker
from trainers.structures import in_kind, joined, mapped, tensors_in


class Point(NamedTuple):
    x: Tensor
    y: object


@dataclass
class Output:
    logits: Tensor
    hidden: tuple[Tensor, ...] | None = None


class ModelOutput(OrderedDict[str, object]):
    """Refuses what Hugging Face's does, and keeps more than its parts."""

    note = ""

    def update(self, *parts: Any, **named: Any) -> None:
        raise AssertionError


def model_output() -> ModelOutput:
    made = ModelOutput(logits=torch.ones(2, 3), hidden=(torch.zeros(2), None))
    made.note = "kept"
    return made


def structures() -> dict[str, object]:
    a, b = torch.arange(4.0).view(2, 2), torch.tensor([True, False])
    return {
        "tensor": a,
        "dictionary": {"a": a, "b": {"c": b}},
        "list": [a, b],
        "tuple": (a, (b, "text", 3, None)),
        "named": Point(a, [b]),
        "dataclass": Output(a, (a, b)),
        "ordered": OrderedDict(b=b, a=a),
        "default": defaultdict(list, a=a),
        "model output": model_output(),
        "as torch.max gives it": torch.max(a, 0),
        "none": None,
    }


@pytest.mark.parametrize("name", structures())
def test_structures_keep_their_kinds(name: str) -> None:
    value = structures()[name]
    doubled = mapped(value, lambda tensor: 2 * tensor)
    assert type(doubled) is type(value)
    found, before = list(tensors_in(doubled)), list(tensors_in(value))
    assert len(found) == len(before)
    for one, other in zip(found, before, strict=True):
        assert torch.equal(one, 2 * other)
    if isinstance(doubled, ModelOutput):
        assert doubled.note == "kept"
        assert list(doubled) == ["logits", "hidden"]
    if isinstance(doubled, defaultdict):
        assert doubled["new"] == []


@pytest.mark.parametrize("name", structures())
def test_structures_come_back_from_bytes_as_the_first_rank_has_them(name: str) -> None:
    value = structures()[name]
    tensors: list[Tensor] = []
    described = json.loads(json.dumps(_described(value, tensors)))
    sent = torch.cat([torch.empty(0, dtype=torch.uint8), *(t.reshape(-1).view(torch.uint8) for t in tensors)])
    found = _restored(described, _taker(sent), like_this=value)
    assert type(found) is type(value)
    assert str(found) == str(value)


KINDS = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64]
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**60), 2**60),
    st.text(max_size=5),
    st.floats(allow_nan=False),
    st.builds(
        lambda kind, shape: torch.randint(0, 2, tuple(shape)).to(kind),
        st.sampled_from(KINDS),
        st.lists(st.integers(0, 3), max_size=3),
    ),
)
NESTED = st.recursive(
    LEAVES,
    lambda parts: st.one_of(
        st.lists(parts, max_size=3),
        st.lists(parts, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=3), st.integers(0, 9)), parts, max_size=3),
    ),
    max_leaves=8,
)


@given(NESTED)
def test_any_structure_comes_back_from_bytes(value: object) -> None:
    tensors: list[Tensor] = []
    described = json.loads(json.dumps(_described(value, tensors)))
    sent = torch.cat([torch.empty(0, dtype=torch.uint8), *(t.reshape(-1).view(torch.uint8) for t in tensors)])
    found = _restored(described, _taker(sent), like_this=None)
    assert repr(found) == repr(value)


def test_what_torch_stacks_is_of_the_items_kinds() -> None:
    item = (torch.ones(2), ({"a": 1, "b": (2.0, "text")}, [3, 4], Point(torch.zeros(1), (5,))))
    stacked: Any = in_kind(default_collate([item, item, item]), item)
    assert type(stacked) is tuple
    inputs, (first, second, third) = stacked
    assert inputs.shape == (3, 2)
    assert type(stacked[1]) is tuple
    assert first["a"].tolist() == [1, 1, 1]
    assert type(first["b"]) is tuple
    assert first["b"][1] == ["text"] * 3
    assert type(second) is list
    assert isinstance(third, Point)
    assert type(third.y) is tuple


def test_batches_are_joined_part_by_part_and_lists_by_sample() -> None:
    def batch(first: int, samples: int) -> object:
        rows = torch.arange(first, first + samples)
        return {"heads": (rows, rows.view(-1, 1)), "boxes": [torch.zeros(i, 4) for i in rows], "none": None}

    found: Any = joined([batch(0, 3), batch(3, 2)], [3, 2], "outputs")
    assert torch.equal(found["heads"][0], torch.arange(5))
    assert found["heads"][1].shape == (5, 1)
    assert [len(boxes) for boxes in found["boxes"]] == [0, 1, 2, 3, 4]
    assert found["none"] is None


CANNOT: dict[str, list[object]] = {
    "outputs: a tensor without dimensions for a batch": [torch.zeros(())] * 2,
    "outputs: a list of 2 for a batch of 3 samples": [[torch.zeros(3)] * 2] * 2,
    "outputs: of shape (N, 5) in one batch and (N, 7)": [torch.zeros(3, 7), torch.zeros(3, 5)],
    "outputs['cache']: object cannot be joined": [{"cache": object()}] * 2,
    "outputs: NoneType cannot be joined": [torch.zeros(3), None],
    "outputs: other parts in one batch than in another": [{"a": torch.zeros(3)}, {"b": torch.zeros(3)}],
    "outputs[1]: str cannot be joined": [(torch.zeros(3), "text")] * 2,
}


@pytest.mark.parametrize("message", CANNOT)
def test_what_cannot_be_joined_is_named(message: str) -> None:
    with pytest.raises(TypeError) as caught:
        joined(CANNOT[message], [3, 3], "outputs")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
