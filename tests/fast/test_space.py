"""Configurations survive the way to a genome and back, through Propulate too; conditions and errors."""

from __future__ import annotations

import copy
import importlib.util
import itertools
import json
import pickle
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpo.errors import UsageError
from hpo.space.space import Categorical, Float, Genome, Int, Ordinal, Parameter, Params, SearchSpace


def propulates_individual() -> type:
    """``propulate.population.Individual``, without the package's ``__init__``, which starts MPI and takes seconds."""
    package = importlib.util.find_spec("propulate")
    assert package is not None
    assert package.submodule_search_locations is not None
    path = Path(package.submodule_search_locations[0]) / "population.py"
    spec = importlib.util.spec_from_file_location("propulates_population", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Individual


Individual = propulates_individual()

EXAMPLE = SearchSpace(
    lr=Float(1e-5, 1e-1, log=True),
    depth=Int(1, 8),
    activation=Categorical("relu", "elu"),
    width=Ordinal(32, 64, 128, 256),
    momentum=Float(0.0, 0.99, when={"optimizer": "sgd"}),
    optimizer=Categorical("sgd", "adam"),
)

FLOATS = st.sampled_from(
    [
        Float(0, 1),
        Float(-1e15, 1e15),
        Float(1e-300, 1e300, log=True),
        Float(1e-5, 0.1, log=True),
        Float(0, 1e-12),
    ]
)


@st.composite
def parameters(draw: st.DrawFn, parents: dict[str, Parameter], floats: bool) -> Parameter:
    """A small parameter, under conditions on some of the parents."""
    when = {}
    for name in draw(st.lists(st.sampled_from(sorted(parents)), unique=True, max_size=2)) if parents else ():
        values = list(parents[name].values())
        when[name] = draw(st.lists(st.sampled_from(values), min_size=1, max_size=len(values), unique=True))
    kind = draw(st.sampled_from(["int", "log", "categorical", "ordinal", *["float"] * floats]))
    if kind == "float":
        template = draw(FLOATS)
        return Float(template.low, template.high, log=template.log, when=when or None)
    if kind in ("int", "log"):
        low = draw(st.integers(1, 3))
        return Int(low, low + draw(st.integers(0, 3)), log=kind == "log", when=when or None)
    choices = draw(
        st.lists(st.sampled_from(["a", "b", 0, 1.5, True, None]), min_size=1, max_size=3, unique=True)
    )
    return (Categorical if kind == "categorical" else Ordinal)(*choices, when=when or None)


@st.composite
def spaces(draw: st.DrawFn, floats: bool = True, most: int = 6) -> SearchSpace:
    """Spaces with nested conditions, declared in any order."""
    declared: dict[str, Parameter] = {}
    for number in range(draw(st.integers(1, most))):
        parents = {name: one for name, one in declared.items() if one.count is not None}
        declared[f"p{number}"] = draw(parameters(parents, floats))
    names = draw(st.permutations(sorted(declared)))
    return SearchSpace({name: declared[name] for name in names})


def genomes(space: SearchSpace) -> st.SearchStrategy[Genome]:
    """Genomes inside the limits and far outside."""
    genes = [
        st.one_of(
            st.integers(int(low), int(high)) if isinstance(low, int) else st.floats(0, 1),
            st.floats(-1e9, 1e9),
        )
        for low, high in space.limits.values()
    ]
    return st.tuples(*genes)


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
    one = Individual(dict(zip(space.names, space.encode(params), strict=True)), space.limits)
    assert same(space.decode([one[name] for name in space.names]), params)
    assert same(space.decode(one.position), params)
    copied = Individual(np.array(one.position), space.limits)
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
        with pytest.raises(UsageError, match=r"is a Float\. Use Ordinal instead"):
            space.enumerate()


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


def test_limits_are_what_propulate_takes() -> None:
    assert EXAMPLE.limits == {
        "lr": (0.0, 1.0),
        "depth": (0.0, 1.0),
        "activation": (0, 1),
        "width": (0, 3),
        "momentum": (0.0, 1.0),
        "optimizer": (0, 1),
    }
    assert {type(low) for low, _ in EXAMPLE.limits.values()} == {float, int}
    assert len(EXAMPLE) == 6
    assert EXAMPLE.names == tuple(EXAMPLE.limits)


def test_inactive_genes_are_neutral() -> None:
    genome = EXAMPLE.encode({"lr": 1e-5, "depth": 1, "activation": "elu", "width": 64, "optimizer": "adam"})
    assert genome == (0.0, 1 / 16, 1, 1, 0.5, 1)


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
        with pytest.raises(ValueError, match=r"zip\(\)|must be a number, not nan"):
            EXAMPLE.decode(wrong)


GOOD: dict[str, object] = {
    "lr": 0.01,
    "depth": 3,
    "activation": "relu",
    "width": 64,
    "momentum": 0.9,
    "optimizer": "sgd",
}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"Depth": 3}, """'Depth' is no parameter. Did you mean "depth"?"""),
        ({"xyz": 3}, "'xyz' is no parameter. Valid: lr, depth, activation, width, momentum, optimizer."),
        ({"lr": None}, "lr = None: must be a number from 1e-05 to 0.1."),
        ({"lr": 0.2}, "lr = 0.2: must be a number from 1e-05 to 0.1."),
        ({"depth": 3.0}, "depth = 3.0: must be a whole number from 1 to 8."),
        ({"width": 65}, "width = 65: must be one of 32, 64, 128, 256."),
        (
            {"activation": "rleu"},
            """activation = 'rleu': must be one of 'relu', 'elu'. Did you mean "relu"?""",
        ),
        (
            {"optimizer": "adam"},
            "momentum = 0.9: exists only where optimizer is 'sgd', and optimizer is 'adam'. Leave it out.",
        ),
        ({"optimizer": "sdg"}, """optimizer = 'sdg': must be one of 'sgd', 'adam'. Did you mean "sgd"?"""),
    ],
)
def test_what_is_wrong_with_a_configuration(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        EXAMPLE.validate({**GOOD, **change})
    assert str(caught.value) == sentence


def test_all_that_is_wrong_with_a_configuration_is_told_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        EXAMPLE.validate({"lr": 1, "momentum": 0.9, "optimizer": "sgd", "width": 32, "heigth": 1})
    told = str(caught.value).splitlines()
    assert [line.split()[0] for line in told] == ["'heigth'", "lr", "depth", "activation"]
    assert told[2] == "depth is missing. Add it."
    with pytest.raises(UsageError, match="is no configuration: write a dictionary"):
        EXAMPLE.validate([1, 2])


def test_validation_makes_values_canonical() -> None:
    params = EXAMPLE.validate({**GOOD, "momentum": 0, "lr": np.float64(0.0123456789012345)})
    assert repr(params["momentum"]) == "0.0"
    assert params["lr"] == 0.0123456789012
    assert type(params["lr"]) is float
    assert list(params) == list(EXAMPLE.names)


def test_a_parent_that_does_not_exist_is_told() -> None:
    space = SearchSpace(a=Int(0, 1), b=Int(0, 1, when={"a": 0}), c=Int(0, 1, when={"b": 0}))
    with pytest.raises(
        UsageError, match=r"c = 1: exists only where b is 0, and b does not exist here\. Leave it out"
    ):
        space.validate({"a": 1, "c": 1})


@pytest.mark.parametrize(
    ("define", "told"),
    [
        (lambda: SearchSpace(), ["at least one parameter", "Write SearchSpace(lr="]),
        (lambda: SearchSpace(_x=Int(0, 1)), ["'_x'", 'must not begin with "_"', "Write 'x'"]),
        (lambda: SearchSpace({"": Int(0, 1)}), ["''", "printable string"]),
        (lambda: SearchSpace({3: Int(0, 1)}), ["3", "printable string"]),
        (lambda: SearchSpace(x=0.1), ["x = 0.1", "no parameter", "Float(low, high)"]),
        (lambda: SearchSpace([("x", Int(0, 1))]), ["keywords or one dictionary"]),
        (lambda: SearchSpace({"x": Int(0, 1)}, x=Int(0, 1)), ["'x'", "a keyword too", "Remove one"]),
        (
            lambda: SearchSpace(m=Int(0, 1, when={"optimiser": "sgd"}), optimizer=Categorical("sgd", "adam")),
            ["m: when names 'optimiser'", 'Did you mean "optimizer"?'],
        ),
        (lambda: SearchSpace(m=Int(0, 1, when={"m": 1})), ["m needs m", "circle"]),
        (
            lambda: SearchSpace(
                a=Int(0, 1, when={"c": 1}),
                b=Int(0, 1, when={"a": 1}),
                c=Int(0, 1, when={"b": 1}),
                d=Int(0, 1, when={"a": 1}),
            ),
            ["circle", "a needs c needs b needs a", "Remove one"],
        ),
        (
            lambda: SearchSpace(m=Int(0, 1, when={"o": "sdg"}), o=Categorical("sgd", "adam")),
            ["m: when needs o = 'sdg'", "one of 'sgd', 'adam'", 'Did you mean "sgd"?'],
        ),
        (lambda: SearchSpace(m=Int(0, 1, when={"n": 9}), n=Int(0, 8)), ["needs n = 9", "from 0 to 8."]),
        (lambda: SearchSpace(m=Int(0, 1, when={"n": True}), n=Int(0, 8)), ["needs n = True", "from 0 to 8."]),
        (lambda: SearchSpace(m=Int(0, 1, when={"f": 0.5}), f=Float(0, 1)), ["names 'f', a Float", "Ordinal"]),
    ],
)
def test_spaces_that_cannot_be(define: Callable[[], SearchSpace], told: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        define()
    for part in told:
        assert part in str(caught.value)


@given(spaces())
def test_the_description_passes_through_json_without_a_difference(space: SearchSpace) -> None:
    assert space.differences(json.loads(json.dumps(space.describe()))) == []


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
    assert after.differences(before.describe()) == [
        "gone: was removed",
        "lr: high was 0.1, is 0.2",
        "lr: log was true, is false",
        "flag: choices was [1, 2], is [true, 2]",
        'kind: type was "int", is "ordinal"',
        'momentum: when was {"flag": [1, 2]}, is not set',
        'swapped: when was {"flag": [1, 2]}, is {"flag": [2, true]}',
        "new: was added",
    ]
    reordered = {name: before.parameters[name] for name in sorted(before.names)}
    assert SearchSpace(reordered).differences(before.describe()) == []


@pytest.mark.parametrize(
    "copied",
    [
        copy.deepcopy,
        lambda space: pickle.loads(pickle.dumps(space)),
        lambda s: cloudpickle.loads(cloudpickle.dumps(s)),
    ],
)
def test_spaces_can_be_sent_to_other_processes(copied: Callable[[SearchSpace], SearchSpace]) -> None:
    twin = copied(EXAMPLE)
    genome = EXAMPLE.sample(random.Random(0))
    assert same(twin.decode(genome), EXAMPLE.decode(genome))
    assert twin.describe() == EXAMPLE.describe()
    assert list(twin.names) == list(EXAMPLE.names)


def test_enumeration_is_lazy() -> None:
    listed: Iterator[Params] = SearchSpace({f"p{i}": Int(0, 9) for i in range(30)}).enumerate()
    assert next(listed) == {f"p{i}": 0 for i in range(30)}
    assert next(listed)["p29"] == 1
