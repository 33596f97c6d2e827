"""Campaign file of one evaluation that trains an individual's schedule from its beginning."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from hpo.errors import CampaignError, UsageError
from hpo.results.listing import listed_launches
from hpo.results.record import load
from hpo.results.result import changed, schedule
from hpo.terminal import one_line, quoted
from hpo.text import plural, toml_key

_IN_PYTHON = """Run it in Python: hpo.Campaign(task, directory="…", evaluations=1, \
schedule=hpo.Result("…").schedule("ID"))."""


def write(directory: Path, identity: str, path: Path) -> str:
    """Write to ``path`` a campaign file that trains the schedule of an individual in one evaluation; returns a sentence
    that says how to run it.

    Raises:
        UsageError: there is no such individual, or ``path`` is taken, or lies where a relative task is not found.
        CampaignError: there is no campaign in ``directory``, or ``path`` cannot be written.
    """
    record = load(directory)
    line = schedule(record, identity)
    if record.identity.get("schedule"):
        raise UsageError(
            f"{directory} trains a schedule already. Change the directory in a copy of its file."
        )
    if path.exists():
        raise UsageError(f"{path} exists. Name another file.")
    task = str(record.identity.get("task"))
    module, _, name = task.rpartition(":")
    if module == "__main__" or not name.isidentifier():
        raise UsageError(f"{directory}: its task is {task}, which no file can name. {_IN_PYTHON}")
    if module.endswith(".py") and not (path.parent / module).exists():
        raise UsageError(
            f"{path}: the campaign's task is {task}, relative to its file, and there is no {path.parent / module}. "
            "Name a file beside the campaign's own."
        )
    sizes = {one.number: one.ranks_per_worker for one in listed_launches(directory)}
    ranks = sizes.get(line[-1].launch, 1)
    head = [
        f"The {plural(len(line), 'interval')} of training that led to {identity} of {one_line(directory)}, from the",
        "beginning in one evaluation: all parameters of the first interval, and then those that change. What the last",
        "interval saves lies in the individual's own directory.",
    ]
    rows = [f"    {_toml(changes)},  # {one.id}" for one, changes in zip(line, changed(line), strict=True)]
    options = record.identity.get("options") or {}
    text = [
        *(f"# {row}" for row in head),
        f"task = {_toml(task)}",
        f"directory = {_toml(f'{directory}-replay-{identity}')}",
        "evaluations = 1",
        "schedule = [",
        *rows,
        "]",
        *(["", "[layout]", f"ranks_per_worker = {ranks}"] if ranks > 1 else []),
        *(["", "[task_options]"] if options else []),
        *(f"{toml_key(name)} = {_toml(value)}" for name, value in options.items()),
    ]
    try:
        path.write_text("\n".join(text) + "\n", encoding="utf-8")
    except OSError as error:
        raise CampaignError(
            f"{path} cannot be written ({error.strerror or error}). Name another file."
        ) from None
    return f"{path}: {plural(len(line), 'interval')}. Train: hpo run {quoted(path)}"


def _toml(value: object) -> str:
    """``value`` as TOML has it, on a line."""
    if value is None:
        raise UsageError(f"a parameter or option is None, which no campaign file can hold. {_IN_PYTHON}")
    if isinstance(value, Mapping):
        inside = ", ".join(f"{toml_key(name)} = {_toml(one)}" for name, one in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    # JSON's texts, numbers and truth values are TOML's but for one control character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
