"""``help`` of each public name lists its keywords as they are, and describes each member: a keyword has a line
``name (type, unit; default value): meaning`` under "Args:" or "Attributes:"; without a default it is required."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path

import pytest
from test_documented_surface import keys_of_a_campaign_file

import hpo
import trainers
from search_spaces import folds

REQUIRED = inspect.Parameter.empty
MADE_ELSEWHERE = {hpo.Trial, trainers.Method, trainers.Strategy, trainers.StreamingMetric, trainers.Wrapped}
"""Users do not construct them."""
WORDS = {
    "timedelta": timedelta,
    "DDP": trainers.DDP,
    "Constant": trainers.Constant,
    "Disjoint": trainers.Disjoint,
    "Path": Path,
}
FOLDS = {"folds.cross_validated": folds.cross_validated, "folds.Fold": folds.Fold}
PUBLIC = {f"hpo.{name}": getattr(hpo, name) for name in hpo.__all__} | {
    f"trainers.{name}": getattr(trainers, name) for name in trainers.__all__
}
CONSTRUCTED = {
    name: value
    for name, value in (PUBLIC | FOLDS).items()
    if value not in MADE_ELSEWHERE and not (inspect.isclass(value) and issubclass(value, Exception))
}


def documented(text: str | None) -> dict[str, object]:
    """The keywords that a docstring lists, with their defaults."""
    section = re.search(r"^( *)(?:Args|Attributes):\n((?:\1 +.*\n|\n)*)", f"{text}\n", re.MULTILINE)
    if section is None:
        return {}
    indent = re.match(r" *", section[2])[0]
    found: dict[str, object] = {}
    for names, said in re.findall(rf"^{indent}([\w, *]+) \((.+?)\): ", section[2], re.MULTILINE):
        _, has_default, default = said.partition("; default ")
        for name in names.split(", "):
            assert name not in found, f"{name} is listed twice"
            found[name.lstrip("*")] = eval(default, WORDS) if has_default else REQUIRED
    return found


def signature(value: Callable[..., object]) -> dict[str, object]:
    return {
        name: one.default
        for name, one in inspect.signature(value).parameters.items()
        if name not in ("self", "cls")
    }


def campaign_keywords() -> dict[str, object]:
    """The keys of all sections of a campaign file; ``task`` is the first argument."""
    found: dict[str, object] = {"task": REQUIRED, "directory": REQUIRED}
    for section, key, value in keys_of_a_campaign_file():
        if section or key not in ("task", "directory", "task_options"):
            prefix = {"logging": "log_", "stop": "stop_"}.get(section, "")
            found[prefix + key] = None if key == "evaluations" else value
    return found


def comparable(keywords: Mapping[str, object]) -> dict[str, object]:
    """Keywords with their defaults, functions by what they do."""
    return {name: one.__code__.co_code if inspect.isfunction(one) else one for name, one in keywords.items()}


def compared(found: Mapping[str, object], there: Mapping[str, object]) -> None:
    assert comparable(found) == comparable(there)


@pytest.mark.parametrize("name", CONSTRUCTED)
def test_keywords_are_listed_with_their_defaults(name: str) -> None:
    value = CONSTRUCTED[name]
    compared(
        documented(inspect.getdoc(value)), campaign_keywords() if value is hpo.Campaign else signature(value)
    )


def members() -> dict[str, object]:
    return {
        f"{name}.{member}": value
        for name, one in PUBLIC.items()
        if inspect.isclass(one)
        for member, value in inspect.getmembers(one)
        if not member.startswith("_")
        and (inspect.isroutine(value) or isinstance(value, property) or hasattr(value, "attrname"))
        and getattr(value, "__module__", one.__module__).partition(".")[0] in ("hpo", "trainers")
    }


@pytest.mark.parametrize("name", members())
def test_members_are_described(name: str) -> None:
    value = members()[name]
    described = inspect.getdoc(value)
    assert described, "no docstring"
    package, owner, _ = name.split(".")
    listed = package == "hpo" and owner in ("Campaign", "Trial", "Task", "Search", "Result")
    if listed and inspect.isroutine(value) and callable(value):
        compared(documented(described), signature(value))


def variadic(value: Callable[..., object]) -> set[str]:
    """Names of ``*args`` and ``**kwargs``, of which a docstring may say more than a type."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {name for name, one in inspect.signature(value).parameters.items() if one.kind in kinds}


METHODS = {
    name: value
    for name, value in members().items()
    if name.startswith("trainers.") and inspect.isfunction(value) and set(signature(value)) - variadic(value)
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_of_trainers_list_their_keywords_or_name_them(name: str) -> None:
    """Those with "Args:" list all with their defaults. What a loop of one's own calls, and what a method of one's own
    implements, names each in a sentence otherwise."""
    value = METHODS[name]
    text = inspect.cleandoc(value.__doc__ or "")  # its own: torch's optimizers describe theirs
    named = {one: default for one, default in signature(value).items() if one not in variadic(value)}
    if re.search("^Args:", text, re.MULTILINE):
        compared({one: default for one, default in documented(text).items() if one in named}, named)
        assert all(re.search(rf"^ +\*+{one}: ", text, re.MULTILINE) for one in variadic(value)), (
            "not described"
        )
    elif name.startswith(("trainers.Wrapped.", "trainers.Strategy.")):
        missing = [one for one in named if f"``{one}``" not in text]
        assert not missing, f"not named in the docstring: {missing}"


def test_what_a_trial_holds_is_listed() -> None:
    held = {name for name in hpo.Trial.__slots__ if not name.startswith("_")}
    assert set(documented(inspect.getdoc(hpo.Trial))) == held
