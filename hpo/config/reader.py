"""Reads campaign files and keywords. All mistakes are reported together, each with its place, rule and remedy."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from hpo import aliases
from hpo.config import hints
from hpo.config.settings import (
    EvaluationSettings,
    IslandSettings,
    LayoutSettings,
    LoggingSettings,
    PhaseSettings,
    SearchSettings,
    Section,
    Settings,
    StopSettings,
)
from hpo.errors import UsageError
from hpo.spelling import nearest, suggestion
from hpo.text import cut, excerpt

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

__all__ = [
    "KEYWORDS",
    "EvaluationSettings",
    "LayoutSettings",
    "LoggingSettings",
    "SearchSettings",
    "Settings",
    "StopSettings",
    "from_keywords",
    "limits",
    "read_file",
]

_TOP = ""
_SECTIONS: dict[str, type[Section]] = {
    _TOP: Settings,
    "layout": LayoutSettings,
    "search": SearchSettings,
    "evaluation": EvaluationSettings,
    "stop": StopSettings,
    "logging": LoggingSettings,
}
_PREFIX = {"logging": "log_", "stop": "stop_"}
"""Prefix of a section's keys as keywords: without it they would be unclear, or another section's."""


def _rules(section: type[Section]) -> dict[str, str]:
    return {
        str(field.validation_alias or name): str(field.description)
        for name, field in section.model_fields.items()
        if name not in _SECTIONS
    }


_RULES = {name: _rules(section) for name, section in _SECTIONS.items()}
"""Rules by key, as a file writes it, by section."""
_SECTION_OF = {key: section for section in reversed(_RULES) for key in _RULES[section]}
KEYWORDS = {
    _PREFIX.get(section, "") + key: (section, key) for section, rules in _RULES.items() for key in rules
}
"""Section and key by keyword."""
_TABLES: dict[str, type[Section]] = {"island": IslandSettings, "phase": PhaseSettings}
"""Tables of which there may be several."""
_RULES |= {name: _rules(section) for name, section in _TABLES.items()}
_HEADERS = [name for name in (*_SECTIONS, "task_options", *_TABLES) if name]
_BUDGETS = ("evaluations", "deadline", "rank_hours")
LIMITS = (*_BUDGETS, "stop_value", "stop_gain", "stop_over")
"""Keywords of the settings that ``hpo set`` may change."""


def read_file(path: Path) -> Settings:
    """The settings in a campaign file; UsageError that says all that is wrong with it."""
    try:
        data = tomllib.loads(path.read_bytes().decode())
    except FileNotFoundError:
        near = suggestion(path.name, sorted(one.name for one in path.parent.glob("*.toml")))
        raise UsageError(f"{cut(str(path))}: there is no such campaign file. {near}") from None
    except OSError as error:
        raise UsageError(
            f"{cut(str(path))} cannot be read: {error.strerror}. Name a campaign file, such as jobs/NAME.toml."
        ) from None
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path}: byte {error.start} is not UTF-8, as TOML must be. Save it as UTF-8."
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(hints.syntax(path, str(error))) from None
    except (RecursionError, ValueError):  # Python refuses to read very long numbers
        raise UsageError(_too_much(path)) from None
    reader = _Reader(path)
    if "task" not in data:
        reader.problems.append('task is missing. Add task = "package.module:name" at the top.')
    try:
        return reader.settings(reader.sorted_file(data))
    except RecursionError:
        raise UsageError(_too_much(path)) from None


def _too_much(path: Path) -> str:
    return (
        f"{path} cannot be read as TOML: a number has thousands of digits, or tables lie a thousand deep in one "
        "another. Write a smaller number, or less deep tables."
    )


def from_keywords(**flat: object) -> Settings:
    """The settings in keywords, which are the keys of all sections; UsageError like ``read_file``."""
    reader = _Reader(None)
    try:
        return reader.settings(reader.sorted_keywords(flat))
    except RecursionError:
        raise UsageError(
            "a keyword has tables or lists that lie hundreds deep in one another, or in themselves. Write less deep "
            "values."
        ) from None


def limits(words: Sequence[str]) -> Settings:
    """The limits in ``words`` such as "evaluations=40" and "deadline=2h", with values as a campaign file has them; what
    is not given is not among the fields set. UsageError that says all that is wrong."""
    given: dict[str, object] = {}
    for word in words:
        key, equals, value = word.partition("=")
        key = key.strip()
        if not equals or key not in LIMITS:
            meant = suggestion(aliases.SETTINGS.get(aliases.folded(key), key), LIMITS)
            rule = f"{'=…, '.join(LIMITS[:-1])}=… or {LIMITS[-1]}=…"
            raise UsageError(f"{excerpt(word)}: must be {rule}, such as evaluations=40. {meant}")
        if key in given:
            raise UsageError(f"{key} is given twice. Give it once.")
        given[key] = hints.written(value.strip())
    reader = _Reader(None, limited=False)
    return reader.settings(reader.sorted_keywords({"directory": ".", **given}))


# --- what is wrong, in sentences ----------------------------------------------------------------------------


class _Reader:
    """Turns what is written, in the file or where ``path`` is None in keywords, into settings or problems. ``limited``:
    something is to end the campaign."""

    def __init__(self, path: Path | None, *, limited: bool = True) -> None:
        self._path = path
        self._limited = limited
        self.problems: list[str] = []
        self._meant: set[str] = set()
        """Keys at the top that were most likely meant by those that do not exist."""

    def settings(self, data: Mapping[str, object]) -> Settings:
        """The settings in ``data``, by section; UsageError with all problems found here and before."""
        ends = any(data.get(key) is not None for key in _BUDGETS) or self._meant.intersection(_BUDGETS)
        if self._limited and not ends:
            self.problems.append(
                "neither evaluations nor deadline is given, so nothing would end it. Add evaluations = 100."
            )
        try:
            settings = Settings.model_validate(data)
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                self._add(detail)
        else:
            if not self.problems:
                return settings
        start = "" if self._path is None else f"{self._path}: "
        raise UsageError("\n".join(start + problem for problem in self.problems))

    def sorted_file(self, data: Mapping[str, object]) -> dict[str, object]:
        kept: dict[str, object] = {}
        for key, value in data.items():
            if key in _TABLES:
                kept[key] = self._tables(key, value)
            elif key in _RULES[_TOP]:
                kept[key] = value
            elif key not in _SECTIONS and isinstance(value, Mapping):
                remedy = aliases.ELSEWHERE.get(aliases.folded(key)) or suggestion(key, _HEADERS)
                self.problems.append(f"[{key}]: there is no such section. {remedy}")
            elif key not in _SECTIONS:
                self._note("", key, value, f"there is no such key here. {_remedy(_TOP, key, data)}")
                self._meant.add(
                    aliases.SETTINGS.get(aliases.folded(key)) or nearest(key, _RULES[_TOP]) or key
                )
            elif isinstance(value, Mapping):
                kept[key] = self._known(key, value, self._start(key))
            else:
                near = nearest(key, _RULES[_TOP])
                self._meant.add(near or key)
                meant = f'Did you mean "{near}"?' if near else f"Write [{key}] and its keys on lines below."
                self._note("", key, value, f"must be a section. {meant}")
        return kept

    def sorted_keywords(self, flat: Mapping[str, object]) -> dict[str, object]:
        top: dict[str, object] = {}
        sections: dict[str, dict[str, object]] = {}
        for key, value in flat.items():
            if key in _TABLES:
                top[key] = self._tables(key, value)
            elif key in _SECTIONS:
                near = nearest(key, _RULES[_TOP])
                self._meant.add(near or key)
                keys = ", ".join(_PREFIX.get(key, "") + one for one in _RULES[key])
                meant = f'Did you mean "{near}"?' if near else f"Its keys are keywords themselves: {keys}."
                self._note("", key, value, f"there is no such keyword. {meant}")
            elif key not in KEYWORDS:
                alias = _PREFIX.get(_SECTION_OF.get(key, _TOP), "") + key if key in _SECTION_OF else None
                alias = alias or aliases.SETTINGS.get(aliases.folded(key))
                remedy = aliases.ELSEWHERE.get(aliases.folded(key)) or suggestion(alias or key, KEYWORDS)
                self._note("", key, value, f"there is no such keyword. {remedy}")
                self._meant.add(alias or nearest(key, KEYWORDS) or key)
            else:
                section, name = KEYWORDS[key]
                (top if section == _TOP else sections.setdefault(section, {}))[name] = value
        return {**top, **sections}

    def _tables(self, name: str, tables: object) -> list[dict[str, object]]:
        if isinstance(tables, (list, tuple)) and all(isinstance(table, Mapping) for table in tables):
            return [self._known(name, one, self._start(name, i)) for i, one in enumerate(tables)]
        form = f"{name}=[{{…}}, …]" if self._path is None else f"[[{name}]] and its keys on lines below"
        self._note("", name, tables, f"must be a table for each {name}. Write {form}.")
        return []

    def _known(self, section: str, table: Mapping[str, object], start: str) -> dict[str, object]:
        for key, value in table.items():
            if key not in _RULES[section]:
                self._note(start, key, value, f"there is no such key here. {_remedy(section, key, table)}")
        return {key: value for key, value in table.items() if key in _RULES[section]}

    def _start(self, section: str, number: int | None = None) -> str:
        if number is not None:
            return f"{section}[{number}] " if self._path is None else f"[[{section}]] number {number + 1}, "
        return f"[{section}] " if section and self._path is not None else ""

    def _note(self, start: str, key: str, value: object, rule: str) -> None:
        problem = f"{start}{key} = {excerpt(value, as_json=self._path is not None)}: {rule}"
        if problem not in self.problems:  # a value that may be of several kinds is none of each
            self.problems.append(problem)

    def _add(self, detail: ErrorDetails) -> None:
        place, kind = detail["loc"], detail["type"]
        section = str(place[0]) if place and place[0] in _RULES else _TOP
        if kind == "value_error":
            for sentence in str(detail["ctx"]["error"]).splitlines():
                first_word = sentence.replace(",", " ").split()[0]
                self.problems.append(self._start(_SECTION_OF.get(first_word, _TOP)) + sentence)
            return
        tables = str(place[0]) if place[0] in _TABLES else ""
        number = int(place[1]) if tables else None
        key = str(place[2] if tables else place[1] if section else place[0])
        start = self._start(tables or section, number)
        if kind == "missing":
            example = '= "runs/NAME"' if key == "directory" else f", {_RULES[section][key]}"
            self.problems.append(f"{start}{key} is missing. Add {key} {example}.".replace(" ,", ","))
            return
        rule = _RULES[section][key]
        shown_key = ".".join(map(str, place[:2])) if key == "task_options" else key
        rest = place[1 + (2 if tables else bool(section)) :]
        if key in ("only", "reference") and rest:
            shown_key += f".{rest[0]}"
        keyword = self._path is None
        if keyword:
            shown_key = _PREFIX.get(section, "") + shown_key
        remedy = hints.remedy(
            _TABLES[tables] if tables else _SECTIONS[section],
            key,
            detail["input"],
            shown_key,
            keyword=keyword and not tables,
            item=len(place) > 1 + (2 if tables else bool(section)),
        )
        self._note(start, shown_key, detail["input"], f"must be {rule}. {remedy}".rstrip())


def _remedy(section: str, key: str, given: Collection[str]) -> str:
    """Sentence about a key that ``section`` does not have, beside the keys that are ``given``."""
    if section and key in _HEADERS and f"{key}s" not in _RULES[section]:
        return f"No section lies in another: write {f'[[{key}]]' if key in _TABLES else f'[{key}]'}."
    alias = None if key in _SECTION_OF else aliases.SETTINGS.get(aliases.folded(key))
    if alias is None and aliases.folded(key) in aliases.ELSEWHERE:
        return aliases.ELSEWHERE[aliases.folded(key)]
    if key in _SECTION_OF and f"{key}s" not in _RULES[section]:  # island, where islands is meant
        return f"It belongs {_home(_SECTION_OF[key])}."
    name = KEYWORDS[alias][1] if alias else nearest(key, _RULES[section]) or nearest(key, _SECTION_OF)
    if name is None:
        return suggestion(key, _RULES[section])
    if name in given:
        return f"Remove it: {name} is given, too."
    return f'Did you mean "{name}"{"" if name in _RULES[section] else f" {_home(_SECTION_OF[name])}"}?'


def _home(section: str) -> str:
    return f"in [{section}]" if section else "at the top, before the first section"
