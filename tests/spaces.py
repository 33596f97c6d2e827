"""Search spaces for properties that Hypothesis tests."""

from __future__ import annotations

from hypothesis import strategies as st

from hpo.space.space import Categorical, Float, Genome, Int, Ordinal, Parameter, SearchSpace

FLOATS = st.sampled_from(
    [
        Float(0, 1),
        Float(-1e15, 1e15),
        Float(1e-300, 1e300, log=True),
        Float(1e-5, 0.1, log=True),
        Float(0, 1e-12),
        Float(0.1, 0.7, step=0.1),
    ]
)


@st.composite
def parameters(draw: st.DrawFn, parents: dict[str, Parameter], floats: bool, large: bool) -> Parameter:
    """A parameter, under conditions on some of the parents; a small one unless ``large``."""
    when = {}
    for name in draw(st.lists(st.sampled_from(sorted(parents)), unique=True, max_size=2)) if parents else ():
        values = list(parents[name].values())
        when[name] = draw(st.lists(st.sampled_from(values), min_size=1, max_size=len(values), unique=True))
    kinds = ["int", "log", "categorical", "ordinal", *["float"] * floats, *["thousand", "many"] * large]
    kind = draw(st.sampled_from(kinds))
    if kind == "thousand":
        return Int(1, 1000, log=True, when=when or None)
    if kind == "many":
        return Categorical(*range(40), when=when or None)
    if kind == "float":
        template = draw(FLOATS)
        return Float(template.low, template.high, log=template.log, step=template.step, when=when or None)
    if kind in ("int", "log"):
        low, step = draw(st.integers(1, 3)), 1 if kind == "log" else draw(st.integers(1, 2))
        return Int(low, low + draw(st.integers(0, 3)) * step, log=kind == "log", step=step, when=when or None)
    values = st.sampled_from(["a", "b", 0, 1.5, True, None, (), (0, ("a", 1.5))])
    choices = draw(st.lists(values, min_size=2, max_size=4, unique=True))
    return (Categorical if kind == "categorical" else Ordinal)(*choices, when=when or None)


@st.composite
def spaces(draw: st.DrawFn, floats: bool = True, most: int = 6, large: bool = False) -> SearchSpace:
    """Spaces with nested conditions, declared in any order."""
    declared: dict[str, Parameter] = {}
    for number in range(draw(st.integers(1, most))):
        parents = {name: one for name, one in declared.items() if one.count is not None}
        declared[f"p{number}"] = draw(parameters(parents, floats, large))
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
