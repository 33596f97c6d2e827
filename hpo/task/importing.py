"""Imports the module that a task's reference names, and describes for its author what goes wrong there."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from hpo.errors import CampaignError, HpoError, UsageError
from hpo.spelling import nearest, suggestion


def split_reference(reference: str) -> tuple[str, str]:
    """The place and the name in ``"package.module:name"`` or ``"file.py:name"``; UsageError otherwise."""
    place, separator, name = reference.rpartition(":")
    if not separator or not place or not name.isidentifier():
        raise UsageError(
            f'task = "{reference}": must be "package.module:name" or "file.py:name". '
            f'Write "{(place or name).strip(":")}:task", for example.'
        )
    return place, name


def import_user_module(reference: str, *, base: Path) -> ModuleType:
    """The module that a reference names: a file relative to ``base``, or an importable module.

    Raises CampaignError, with the traceback of the user's code, if it is missing or raises; a UsageError
    raised in it stays one.
    """
    place, name = split_reference(reference)
    _put_first(Path.cwd())
    # Files written since the last import, as in a notebook, are otherwise not seen.
    importlib.invalidate_caches()
    if place.endswith(".py") or "/" in place:
        return _import_file(reference, (base / place).resolve())
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if place != missing and not place.startswith(f"{missing}."):
            raise explained(reference, "its module", error) from error
    except (Exception, SystemExit) as error:
        raise explained(reference, "its module", error) from error
    parent, _, last = missing.rpartition(".")
    if (base / f"{place}.py").is_file():
        remedy = f'Write "{place}.py:{name}" for the file in {base}.'
    else:
        folders = list(getattr(sys.modules.get(parent), "__path__", [])) if parent else [str(Path.cwd())]
        remedy = suggestion(last, _modules_in(folders))
    raise CampaignError(
        f'task = "{reference}": there is no module "{last}" in {parent or Path.cwd()}. {remedy}'
    )


def explained(reference: str, what: str, error: BaseException) -> HpoError:
    """What to raise for what the user's code raised: a UsageError with its place, else with the traceback."""
    ours = (__file__, str(Path(__file__).with_name("task.py")), importlib.__file__)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename not in ours and not frame.filename.startswith("<frozen importlib")
    ]
    if isinstance(error, HpoError):
        # The bundled campaigns' sentences name options, which the user gave: their lines add nothing.
        place = _place(frames, "hpo", "trainers", "search_spaces")
        start = f'task = "{reference}": {f"{place}: " if place else ""}'
        if isinstance(error, UsageError):
            # Several mistakes that are reported together are a line each.
            return UsageError("\n".join(start + line for line in str(error).splitlines()))
        return CampaignError(f"{start}{error}")
    shown = traceback.TracebackException.from_exception(error)
    shown.stack = traceback.StackSummary.from_list(frames)
    # What cannot be parsed is in no frame: the traceback ends with its line.
    place = "" if isinstance(error, SyntaxError) else _place(frames, "hpo", "trainers")
    remedy = f"Correct {place}, or what it is given" if place else "Correct the code that this points to"
    return CampaignError(
        f'task = "{reference}": {what} raised {type(error).__name__}. {remedy}:\n'
        + "".join(shown.format()).rstrip()
    )


_LIBRARIES = tuple(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def _place(frames: Sequence[traceback.FrameSummary], *ours: str) -> str:
    """File and line of the innermost frame that is neither of the packages ``ours`` nor of a library; else nothing.

    What a library raises, it raises for what it was given; and between the user's code and ours lie its frames, too, as
    of contextlib and of the functions that dataclasses write.
    """
    home = Path(__file__).parents[2]
    not_theirs = tuple(f"{home / name}/" for name in ours)
    written = [one for one in frames if not one.filename.startswith(("<", *not_theirs))]
    own = [one for one in written if not one.filename.startswith(_LIBRARIES)]
    if not own:
        # A task may be installed, too. The outermost frame is its own.
        folder = f"{Path(frames[0].filename).parent}/" if frames else ""
        own = [one for one in written if one.filename.startswith(folder)]
    return f"{own[-1].filename}, line {own[-1].lineno}" if own else ""


def _import_file(reference: str, path: Path) -> ModuleType:
    if not path.is_file():
        names = sorted(one.name for one in path.parent.glob("*.py"))
        near = nearest(path.stem, (Path(name).stem for name in names))  # what all names end in is no likeness
        remedy = suggestion("" if near is None else f"{near}.py", names)
        raise CampaignError(f'task = "{reference}": there is no file {path}. {remedy}')
    _put_first(path.parent)
    name = path.stem
    try:
        spec = importlib.util.find_spec(name) if name.isidentifier() else None
        if spec is not None and spec.origin is not None and Path(spec.origin).resolve() == path:
            return importlib.import_module(name)
        # The plain name belongs to another module: this one gets a name that says which file it is.
        name = f"task file {path}"
        if name in sys.modules:
            return sys.modules[name]
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise UsageError(f"{path} is not a Python file. Its name must end in .py.")
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    except (Exception, SystemExit) as error:
        sys.modules.pop(name, None)
        raise explained(reference, "the file", error) from error


def _modules_in(folders: list[str]) -> list[str]:
    # pkgutil would leave out packages without __init__.py, which can be imported too.
    entries = [entry for folder in folders if Path(folder).is_dir() for entry in Path(folder).iterdir()]
    modules = {entry.stem for entry in entries if entry.suffix == ".py" or entry.is_dir()}
    return sorted(name for name in modules if name.isidentifier() and not name.startswith("__"))


def _put_first(directory: Path) -> None:
    """Make the modules in ``directory`` importable, as for a script that lies there."""
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
