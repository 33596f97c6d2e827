"""What users rely on is where it was: public names and their keywords, modules that they run or import by name, keys of
the campaign file with their defaults, commands with their options, exit codes.

``golden/surface.json`` lists it. A name that goes, or a default that changes, fails; a new one has to be recorded:
``python tests/record.py surface``. Exported columns are those of test_kept_campaign.py."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from places import GOLDEN

import hpo
import trainers
from hpo.config.settings import Section, Settings
from hpo.errors import EXIT_RESUMABLE, CampaignError, UsageError
from hpo.parser import make_parser

RECORDED = GOLDEN / "surface.json"

CAMPAIGNS = [
    f"search_spaces.{name}"
    for name in (
        "assignment",
        "autoformer",
        "bigearthnet",
        "cityscapes_daso",
        "daso_intervals",
        "digits",
        "imagenet_ab",
        "imagenet_daso",
        "imagenet_oialr",
        "vit_ab",
        "vit_oialr",
    )
]
READERS = ["bigearthnet", "bigearthnet_archive", "cifar", "ett", "imagenet"]
RUN = ["hpo", *CAMPAIGNS, *(f"search_spaces.readers.{name}" for name in READERS)]
"""Modules for ``python -m``, or named in campaign files."""

IMPORTED = [
    "search_spaces.folds:cross_validated",
    "search_spaces.folds:Fold",
    "search_spaces.readers.small_images:load_images",
    *(f"{module}:{what}" for module in CAMPAIGNS for what in ("make_task", "untrained")),
    "search_spaces.digits:task",
    "search_spaces.digits:test_accuracy",
]
"""What README, campaign files and jobs/compare.py import by name."""


def keywords(module: ModuleType) -> dict[str, list[str]]:
    """The parameters of each public function, of each class and of its public methods."""
    found: dict[str, list[str]] = {}
    for name in sorted(module.__all__):
        value = getattr(module, name)
        found[name] = _parameters(value)
        for member, function in sorted(vars(value).items()) if inspect.isclass(value) else ():
            if member.startswith("_"):
                continue
            callable_ = function.__func__ if isinstance(function, (classmethod, staticmethod)) else function
            found[f"{name}.{member}"] = _parameters(callable_) if callable(callable_) else []
    return found


def _parameters(value: object) -> list[str]:
    if not callable(value):
        return []
    try:
        return [one for one in inspect.signature(value).parameters if one != "self"]
    except ValueError:  # built into Python: exceptions
        return []


def keys_of_a_campaign_file() -> Iterator[tuple[str, str, object]]:
    """Section ("" at the top), key and default; of the directory and the budget what a file has to give."""
    settings = Settings(directory=Path("directory"), evaluations=1)
    for section in ("", "layout", "search", "evaluation", "stop", "logging"):
        model = getattr(settings, section) if section else settings
        for name, field in type(model).model_fields.items():
            if not isinstance(value := getattr(model, name), Section):
                yield section, str(field.validation_alias or name), value


def surface() -> dict[str, object]:
    keys = {f"{section}.{key}".strip("."): repr(value) for section, key, value in keys_of_a_campaign_file()}
    commands = make_parser()._subparsers._group_actions[0].choices  # type: ignore[union-attr]
    return {
        "hpo": keywords(hpo),
        "trainers": keywords(trainers),
        "run": RUN,
        "imported": IMPORTED,
        "keys": keys,
        "commands": {
            name: sorted(
                option for action in command._actions for option in (action.option_strings or [action.dest])
            )
            for name, command in commands.items()  # type: ignore[union-attr]
        },
        "exit_codes": [0, CampaignError.exit_code, UsageError.exit_code, EXIT_RESUMABLE],
    }


def as_recorded(found: dict[str, object]) -> dict[str, object]:
    recorded: dict[str, object] = json.loads(json.dumps(found))
    return recorded


def test_the_surface_is_what_is_recorded() -> None:
    known, found = json.loads(RECORDED.read_text()), as_recorded(surface())
    for part, what in known.items():
        assert found[part] == what, f"{part}: record a new one, or bring back what is gone"
    assert found.keys() == known.keys()


def test_modules_and_names_are_there() -> None:
    for name in RUN:
        module = find_spec(name)
        assert module is not None, name
        if module.submodule_search_locations is not None:
            assert find_spec(f"{name}.__main__") is not None, name
    for reference in IMPORTED:
        module_name, _, name = reference.partition(":")
        assert hasattr(import_module(module_name), name), reference


def record() -> None:
    RECORDED.write_text(json.dumps(surface(), indent=1) + "\n")
