"""Configurations survive the way to a genome and back, through Propulate too; conditions and errors."""

from __future__ import annotations

import itertools
import json
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from spaces import genomes, spaces

from hpo.errors import CampaignError
from hpo.search.kinds.propulate_kinds import make_individual
from hpo.space.space import Categorical, Float, Int, Ordinal, Parameter, Params, SearchSpace, described_space

EXAMPLE = SearchSpace(
    lr=Float(1e-5, 1e-1, log=True),
    depth=Int(1, 8),
    activation=Categorical("relu", "elu"),
    width=Ordinal(32, 64, 128, 256),
    momentum=Float(0.0, 0.99, when={"optimizer": "sgd"}),
    optimizer=Categorical("sgd", "adam"),
)


def same(one: Params, other: Params) -> bool:
    """Equal in order, values, types and signs of zero."""
    return repr(one) == repr(other) and [type(v) for v in one.values()] == [type(v) for v in other.values()]


def reference_active(space: SearchSpace, name: str, values: Params) -> bool:
    """The definition: all conditions hold and the parents that they name are active."""
    return all(
        values[parent] in allowed and reference_active(space, parent, values)
        for parent, allowed in space.parameters[name].when.items()
    )


@given(st.data())
def test_a_configuration_survives_encoding_and_validation_exactly(data: st.DataObject) -> None:
    space = data.draw(spaces())
    params = space.decode(data.draw(genomes(space)))
    genome = space.encode(params)
    assert all(low <= gene <= high for gene, (low, high) in zip(genome, space.limits.values(), strict=True))
    assert same(space.decode(genome), params)
    assert same(space.validate(params), params)
    shuffled = dict(sorted(params.items(), reverse=True))
    assert same(space.validate(shuffled), params)
    assert space.key(shuffled) == space.key(params)


@given(st.data())
def test_a_configuration_survives_propulate_exactly(data: st.DataObject) -> None:
    space = data.draw(spaces())
    params = space.decode(data.draw(genomes(space)))
    one = make_individual(dict(zip(space.names, space.encode(params), strict=True)), space.limits)
    assert same(space.decode([one[name] for name in space.names]), params)
    assert same(space.decode(one.position), params)
    copied = make_individual(np.array(one.position), space.limits)
    assert same(space.decode([copied[name] for name in space.names]), params)


@given(st.data())
def test_only_active_parameters_are_decoded_in_order_of_declaration(data: st.DataObject) -> None:
    space = data.draw(spaces())
    genome = data.draw(genomes(space))
    decoded = {
        name: one.decoder()(gene) for (name, one), gene in zip(space.parameters.items(), genome, strict=True)
    }
    expected = {name: value for name, value in decoded.items() if reference_active(space, name, decoded)}
    assert same(space.decode(genome), expected)


@given(spaces(floats=False, most=5))
def test_size_and_enumeration_agree_with_going_through_all_genomes(space: SearchSpace) -> None:
    every = itertools.product(
        *([one.encoder()(v) for v in one.values()] for one in space.parameters.values())
    )
    reached = {space.key(space.decode(genome)) for genome in every}
    listed = list(space.enumerate())
    assert {space.key(params) for params in listed} == reached
    assert len(listed) == len(reached) == space.size
    assert all(same(space.validate(params), params) for params in listed)


@given(spaces(most=5), st.integers(0, 2**32))
def test_a_space_is_infinite_where_a_float_can_be_active(space: SearchSpace, seed: int) -> None:
    floats = {name for name, one in space.parameters.items() if one.count is None}
    rng = random.Random(seed)
    met = any(floats & set(space.decode(space.sample(rng))) for _ in range(400))
    if met:
        assert space.size is None
        refused(space.enumerate, "Float", "Ordinal")


def test_a_float_that_never_exists_leaves_a_space_finite() -> None:
    space = SearchSpace(a=Int(0, 1), b=Int(0, 1, when={"a": 0}), c=Float(0, 1, when={"a": 1, "b": 1}))
    assert space.size == 3
    assert list(space.enumerate()) == [{"a": 0, "b": 0}, {"a": 0, "b": 1}, {"a": 1}]


def test_size_of_large_spaces_is_counted_and_not_listed() -> None:
    many = SearchSpace({f"p{i}": Int(0, 2**40) for i in range(40)})
    assert many.size == (2**40 + 1) ** 40
    chains: dict[str, Parameter] = {}
    for i in range(30):
        chains[f"on{i}"] = Categorical(True, False)
        chains[f"a{i}"] = Int(1, 2**50, when={f"on{i}": True})
        chains[f"b{i}"] = Int(1, 7, when={f"a{i}": (3, 2**50)})
    assert SearchSpace(chains).size == (1 + (2**50 - 2) + 2 * 7) ** 30
    # Blocks, and between neighbours a choice where both are on: as many binary words, with 3 for each pair of ones.
    linked: dict[str, Parameter] = {}
    off, on = 1, 0
    for i in range(60):
        linked[f"p{i}"] = Categorical(True, False)
        off, on = off + on, off + 3 * on
        if i:
            linked[f"between{i}"] = Categorical(1, 2, 3, when={f"p{i - 1}": True, f"p{i}": True})
    assert SearchSpace(linked).size == off + on
    star: dict[str, Parameter] = {"root": Int(0, 1000)}
    star |= {f"leaf{i}": Ordinal("x", "y", when={"root": i}) for i in range(100)}
    assert SearchSpace(star).size == 1001 + 100


def test_sampling_is_uniform_and_follows_the_generator() -> None:
    space = SearchSpace(x=Float(0, 1), n=Int(0, 3), c=Categorical("a", "b", "c"))
    rng = random.Random(1)
    drawn = [space.sample(rng) for _ in range(6000)]
    assert drawn[:10] == [space.sample(rng) for rng in [random.Random(1)] for _ in range(10)]
    assert all(isinstance(genome[2], int) for genome in drawn)
    for values, count in (([int(4 * g[0]) for g in drawn], 4), ([g[2] for g in drawn], 3)):
        assert all(abs(values.count(value) / 6000 - 1 / count) < 0.03 for value in range(count))


def test_keys_tell_types_apart_and_not_orders() -> None:
    space = SearchSpace(a=Int(0, 1), b=Float(0, 1))
    one = space.key({"a": 1, "b": 1.0})
    assert len(one) == 32
    assert int(one, 16) >= 0
    assert one == space.key({"b": 1.0, "a": 1})
    others = [{"a": 1.0, "b": 1.0}, {"a": True, "b": 1.0}, {"a": 1, "b": 1}, {"a": "1", "b": 1.0}, {"a": 1}]
    assert len({one, *(space.key(other) for other in others)}) == 6


def test_a_genome_of_the_wrong_length_or_without_a_number_is_refused() -> None:
    for wrong in ((0.5,) * 5, (0.5,) * 7, (float("nan"),) * 6):
        with pytest.raises(ValueError):
            EXAMPLE.decode(wrong)


GOOD: dict[str, object] = {"lr": 0.01, "depth": 3, "activation": "relu", "width": 64} | {
    "momentum": 0.9,
    "optimizer": "sgd",
}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"Depth": 3}, ("'Depth'", '"depth"')),
        ({"xyz": 3}, ("'xyz'", "lr, depth, activation, width, momentum, optimizer")),
        ({"lr": None}, ("lr = None", "from 1e-05 to 0.1")),
        ({"lr": 0.2}, ("lr = 0.2", "from 1e-05 to 0.1")),
        ({"depth": 3.0}, ("depth = 3.0", "from 1 to 8")),
        ({"width": 65}, ("width = 65", "32, 64, 128, 256")),
        ({"activation": "rleu"}, ("activation = 'rleu'", "'relu', 'elu'", '"relu"')),
        ({"optimizer": "adam"}, ("momentum = 0.9", "optimizer is 'sgd'", "optimizer is 'adam'")),
        ({"optimizer": "sdg"}, ("optimizer = 'sdg'", '"sgd"')),
    ],
)
def test_what_is_wrong_with_a_configuration(change: dict[str, object], words: tuple[str, ...]) -> None:
    assert "\n" not in refused(lambda: EXAMPLE.validate({**GOOD, **change}), *words)


def test_all_that_is_wrong_with_a_configuration_is_told_at_once() -> None:
    wrong = {"lr": 1, "momentum": 0.9, "optimizer": "sgd", "width": 32, "heigth": 1}
    told = refused(lambda: EXAMPLE.validate(wrong)).splitlines()
    assert [line.split()[0] for line in told] == ["'heigth'", "lr", "depth", "activation"]
    space = SearchSpace(a=Int(0, 1), b=Int(0, 1, when={"a": 0}), c=Int(0, 1, when={"b": 0}))
    refused(lambda: space.validate({"a": 1, "c": 1}), "c = 1", "b is 0", "b does not exist")
    refused(lambda: EXAMPLE.validate([1, 2]), "[1, 2]", "dictionary")


def test_validation_makes_values_canonical() -> None:
    params = EXAMPLE.validate({**GOOD, "momentum": 0, "lr": np.float64(0.0123456789012345)})
    assert repr(params["momentum"]) == "0.0"
    assert params["lr"] == 0.0123456789012 and type(params["lr"]) is float
    assert list(params) == list(EXAMPLE.names)


CIRCLE = {"a": Int(0, 1, when={"c": 1}), "b": Int(0, 1, when={"a": 1}), "c": Int(0, 1, when={"b": 1})}


@pytest.mark.parametrize(
    ("define", "words"),
    [
        (lambda: SearchSpace(), ["SearchSpace()", "lr="]),
        (lambda: SearchSpace(_x=Int(0, 1)), ["'_x'", "'x'"]),
        (lambda: SearchSpace({"": Int(0, 1)}), ["''"]),
        (lambda: SearchSpace({3: Int(0, 1)}), ["3"]),
        (lambda: SearchSpace(x=0.1), ["x = 0.1", "Float(low, high)"]),
        (lambda: SearchSpace([("x", Int(0, 1))]), ["('x'", "dictionary"]),
        (lambda: SearchSpace({"x": Int(0, 1)}, x=Int(0, 1)), ["'x'", "Remove one"]),
        (lambda: SearchSpace(m=Int(0, 1, when={"lrr": 0}), lr=Int(0, 1)), ["m:", "'lrr'", '"lr"']),
        (lambda: SearchSpace(m=Int(0, 1, when={"m": 1})), ["m needs m"]),
        (
            lambda: SearchSpace(CIRCLE, d=Int(0, 1, when={"a": 1})),
            ["a needs c needs b needs a", "Remove one"],
        ),
        (lambda: SearchSpace(m=Int(0, 1, when={"n": 9}), n=Int(0, 8)), ["n = 9", "from 0 to 8."]),
        (lambda: SearchSpace(m=Int(0, 1, when={"n": True}), n=Int(0, 8)), ["n = True", "from 0 to 8."]),
        (lambda: SearchSpace(m=Int(0, 1, when={"f": 0.5}), f=Float(0, 1)), ["'f'", "Float", "Ordinal"]),
    ],
)
def test_spaces_that_cannot_be(define: Callable[[], SearchSpace], words: list[str]) -> None:
    refused(define, *words)


@given(st.data())
def test_a_space_comes_back_from_its_description(data: st.DataObject) -> None:
    space = data.draw(spaces())
    described = json.loads(json.dumps(space.describe()))
    assert space.differences(described) == []
    again = described_space(described)
    assert again.describe() == space.describe() and again.names == space.names
    genome = data.draw(genomes(space))
    assert same(again.decode(genome), space.decode(genome))


@pytest.mark.parametrize(
    "wrong", [None, {"a": {"type": "complex"}}, {"a": 3}, {"a": {"type": "float", "low": 1}}]
)
def test_what_describes_no_space_is_refused(wrong: object) -> None:
    refused(lambda: described_space(wrong), "campaign.json describes no search space", error=CampaignError)


def test_differences_are_told_in_sentences() -> None:
    before = SearchSpace(
        lr=Float(1e-5, 0.1, log=True),
        depth=Int(1, 8),
        gone=Int(0, 1),
        flag=Categorical(1, 2),
        kind=Int(1, 2),
        momentum=Float(0, 1, when={"flag": (1, 2)}),
        swapped=Float(0, 1, when={"flag": (1, 2)}),
    )
    after = SearchSpace(
        depth=Int(1, 8),
        lr=Float(1e-5, 0.2),
        flag=Categorical(True, 2),
        kind=Ordinal(1, 2),
        momentum=Float(0, 1),
        swapped=Float(0, 1, when={"flag": (2, True)}),
        new=Int(0, 1),
    )
    words = (
        ("gone:", "removed"),
        ("lr: high", "0.1", "0.2"),
        ("lr: log", "true", "false"),
        ("flag: choices", "[1, 2]", "[true, 2]"),
        ("kind: type", "int", "ordinal"),
        ("momentum: when", '{"flag": [1, 2]}', "not set"),
        ("swapped: when", '{"flag": [1, 2]}', '{"flag": [2, true]}'),
        ("new:", "added"),
    )
    sentences = after.differences(before.describe())
    assert len(sentences) == len(words)
    assert all(word in sentence for sentence, of in zip(sentences, words) for word in of), sentences
    reordered = {name: before.parameters[name] for name in sorted(before.names)}
    assert SearchSpace(reordered).differences(before.describe()) == []


@pytest.mark.parametrize("way", [pickle, cloudpickle])
def test_spaces_can_be_sent_to_other_processes(way: Any) -> None:
    twin = way.loads(way.dumps(EXAMPLE))
    genome = EXAMPLE.sample(random.Random(0))
    assert same(twin.decode(genome), EXAMPLE.decode(genome))
    assert twin.describe() == EXAMPLE.describe()
    assert list(twin.names) == list(EXAMPLE.names)


def test_enumeration_is_lazy() -> None:
    listed: Iterator[Params] = SearchSpace({f"p{i}": Int(0, 9) for i in range(30)}).enumerate()
    assert next(listed) == {f"p{i}": 0 for i in range(30)}
    assert next(listed)["p29"] == 1
