"""Import of the module that a task's reference names; errors raised in it are explained to its author."""

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
    """Place and name in ``"package.module:name"`` or ``"file.py:name"``; UsageError for any other form."""
    place, separator, name = reference.rpartition(":")
    if not separator or not place or not name.isidentifier():
        raise UsageError(
            f'task = "{reference}": must be "package.module:name" or "file.py:name". '
            f'Write "{(place or name).strip(":")}:task", for example.'
        )
    return place, name


def import_user_module(reference: str, *, base: Path) -> ModuleType:
    """Module that a reference names: a file relative to ``base``, or an importable module. CampaignError where it is
    missing, or raises, with the traceback of the user's code; UsageError where it raises a UsageError."""
    place, name = split_reference(reference)
    _put_first(Path.cwd())
    # Import caches list each folder once: files written since then, as in a notebook, would not be found.
    importlib.invalidate_caches()
    if place.endswith(".py") or "/" in place:
        return _import_file(reference, (base / place).resolve())
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        # Only a missing part of the reference itself is a wrong reference; any other is an import in user code.
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
    """Error to raise in place of an error of the user's code: a UsageError with its place, or with the traceback."""
    ours = (__file__, str(Path(__file__).with_name("task.py")), importlib.__file__)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename not in ours and not frame.filename.startswith("<frozen importlib")
    ]
    if isinstance(error, HpoError):
        # Errors of the bundled campaigns already name the user's options: lines of their code would add nothing.
        place = _place(frames, "hpo", "trainers", "search_spaces")
        start = f'task = "{reference}": {f"{place}: " if place else ""}'
        if isinstance(error, UsageError):
            # Several mistakes reported together have a line each.
            return UsageError("\n".join(start + line for line in str(error).splitlines()))
        return CampaignError(f"{start}{error}")
    shown = traceback.TracebackException.from_exception(error)
    shown.stack = traceback.StackSummary.from_list(frames)
    # A file with a syntax error has no frame, as none of it has run; the traceback's last line names the place.
    place = "" if isinstance(error, SyntaxError) else _place(frames, "hpo", "trainers")
    remedy = f"Correct {place}, or what it is given" if place else "Correct the code that this points to"
    return CampaignError(
        f'task = "{reference}": {what} raised {type(error).__name__}. {remedy}:\n'
        + "".join(shown.format()).rstrip()
    )


_LIBRARIES = tuple(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def _place(frames: Sequence[traceback.FrameSummary], *ours: str) -> str:
    """File and line of the innermost frame outside of the packages ``ours`` and of libraries; "" without any.

    Frames of libraries are skipped because a library usually raises for arguments that its caller gave it; and some,
    such as those of contextlib and dataclasses, lie between the user's code and these packages.
    """
    home = Path(__file__).parents[2]
    not_theirs = tuple(f"{home / name}/" for name in ours)
    # Names such as "<string>" stand for generated code, which has no file to correct.
    written = [frame for frame in frames if not frame.filename.startswith(("<", *not_theirs))]
    own = [frame for frame in written if not frame.filename.startswith(_LIBRARIES)]
    if not own:
        # The task itself may be installed as a library: the outermost frame is the user's.
        folder = f"{Path(frames[0].filename).parent}/" if frames else ""
        own = [frame for frame in written if frame.filename.startswith(folder)]
    return f"{own[-1].filename}, line {own[-1].lineno}" if own else ""


def _import_file(reference: str, path: Path) -> ModuleType:
    if not path.is_file():
        names = sorted(file.name for file in path.parent.glob("*.py"))
        # Compared without ".py", which would make short names look alike.
        near = nearest(path.stem, (Path(name).stem for name in names))
        remedy = suggestion("" if near is None else f"{near}.py", names)
        raise CampaignError(f'task = "{reference}": there is no file {path}. {remedy}')
    _put_first(path.parent)
    name = path.stem
    try:
        spec = importlib.util.find_spec(name) if name.isidentifier() else None
        if spec is not None and spec.origin is not None and Path(spec.origin).resolve() == path:
            return importlib.import_module(name)
        # The plain name imports another module or none, so the file's module gets a name with its path.
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
        # Removed as the import system does it: a second attempt must run the file again, not find half of it.
        sys.modules.pop(name, None)
        raise explained(reference, "the file", error) from error


def _modules_in(folders: list[str]) -> list[str]:
    # pkgutil leaves out folders without __init__.py, which are importable as namespace packages.
    entries = [entry for folder in folders if Path(folder).is_dir() for entry in Path(folder).iterdir()]
    modules = {entry.stem for entry in entries if entry.suffix == ".py" or entry.is_dir()}
    return sorted(name for name in modules if name.isidentifier() and not name.startswith("__"))


def _put_first(directory: Path) -> None:
    """Make the modules in ``directory`` importable, as Python does for a script in that directory."""
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
