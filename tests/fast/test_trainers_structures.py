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


def through_bytes(value: object, like_this: object) -> object:
    tensors: list[Tensor] = []
    described = json.loads(json.dumps(_described(value, tensors)))
    sent = torch.cat([torch.empty(0, dtype=torch.uint8), *(t.reshape(-1).view(torch.uint8) for t in tensors)])
    return _restored(described, _taker(sent), like_this=like_this)


@pytest.mark.parametrize("name", structures())
def test_structures_keep_their_kinds_where_tensors_change_and_ranks_exchange_them(name: str) -> None:
    value = structures()[name]
    doubled = mapped(value, lambda tensor: 2 * tensor)
    assert type(doubled) is type(value)
    for found, before in zip(tensors_in(doubled), tensors_in(value), strict=True):
        assert torch.equal(found, 2 * before)
    if isinstance(doubled, ModelOutput):
        assert doubled.note == "kept" and list(doubled) == ["logits", "hidden"]
    if isinstance(doubled, defaultdict):
        assert doubled["new"] == []
    received = through_bytes(value, like_this=value)
    assert type(received) is type(value) and str(received) == str(value)


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
    assert repr(through_bytes(value, like_this=None)) == repr(value)


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


CANNOT: list[tuple[str, list[object]]] = [
    ("outputs dimensions", [torch.zeros(())] * 2),
    ("outputs list 2 3", [[torch.zeros(3)] * 2] * 2),
    ("outputs (N, 5) (N, 7)", [torch.zeros(3, 7), torch.zeros(3, 5)]),
    ("outputs['cache'] object", [{"cache": object()}] * 2),
    ("outputs NoneType", [torch.zeros(3), None]),
    ("outputs 'a' 'b'", [{"a": torch.zeros(3)}, {"b": torch.zeros(3)}]),
    ("outputs[1] str", [(torch.zeros(3), "text")] * 2),
]


@pytest.mark.parametrize(("words", "batches"), CANNOT)
def test_what_cannot_be_joined_is_named(words: str, batches: list[object]) -> None:
    with pytest.raises(TypeError) as caught:
        joined(batches, [3, 3], "outputs")
    assert all(word in str(caught.value) for word in words.split()) and "\n" not in str(caught.value)
