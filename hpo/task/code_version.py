"""Which code of the user's evaluates: the task's file and the files beside it that it imports, with a hash of all.

Imports are read, also those inside functions, and nothing is executed. Of a notebook or the script that is run, where
much may change that does not matter, only the function that evaluates is taken, with what it uses of there: functions,
classes, and constants that are numbers, text, truth values or None."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import os
import sys
import sysconfig
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING

from hpo.task.importing import split_reference

if TYPE_CHECKING:
    from hpo.task.task import Task

MOST_FILES = 200
MOST_BYTES = 2 << 20
"""Of all files of a version together. What is beyond is no part of it."""
BY_VALUE = "__main__.py"
"""The file that holds what was defined in a notebook or script."""

_HOME = Path(__file__).resolve().parents[2]
_OURS = tuple(_HOME / name for name in ("hpo", "trainers", "search_spaces"))
_LIBRARIES = tuple(
    Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_INSTALLED = frozenset({"site-packages", "dist-packages"})


@dataclass(frozen=True)
class CodeVersion:
    """``files``: content by name, relative to the directory of the task's file or package, with "/"."""

    files: Mapping[str, bytes]

    @functools.cached_property
    def hash(self) -> str:
        """Twelve hexadecimal digits of BLAKE2b over names and contents; "" where there are no files."""
        if not self.files:
            return ""
        digest = hashlib.blake2b(digest_size=6)
        for name, content in sorted(self.files.items()):
            for part in (os.fsencode(name), content):
                digest.update(len(part).to_bytes(8, "big") + part)
        return digest.hexdigest()

    def differences(self, other: CodeVersion) -> list[str]:
        """The names of the files that are not the same in both, sorted."""
        names = sorted({*self.files, *other.files})
        return [name for name in names if self.files.get(name) != other.files.get(name)]


def code_of(task: Task) -> CodeVersion:
    """The code of ``task`` as it is on disk, or in a notebook's memory, now; without files where it cannot be read."""
    try:
        return CodeVersion(_files_of(task))
    # The user's code may hold anything, and what is only mentioned to the user must not end a launch.
    except Exception:
        return CodeVersion({})


def _files_of(task: Task) -> dict[str, bytes]:
    source = task.source
    if source is not None and source.reference is not None:
        place, _ = split_reference(source.reference)
        if place.endswith(".py") or "/" in place:
            path = (Path(source.base) / place).resolve()
            files = _Files(path.parent)
        else:
            path = _file_of(sys.modules[place]) or Path()
            files = _Files.of_module(place, path)
        files.add(path)
        return files.found
    evaluate = _unwrapped(task.evaluate)
    name = getattr(evaluate, "__module__", None) or "__main__"
    defined_in = _file_of(sys.modules.get(name))
    if name != "__main__" and defined_in is not None:
        files = _Files.of_module(name, defined_in)
        files.add(defined_in)
        return files.found
    script = _file_of(sys.modules.get("__main__"))
    files = _Files(Path.cwd() if script is None else script.parent)
    by_value = _ByValue(files)
    by_value.visit("evaluate", task.evaluate)
    if by_value.texts:
        text = "\n\n".join(by_value.texts) + "\n"
        files.keep(BY_VALUE, text.encode("utf-8", "surrogatepass"))
    return files.found


def _unwrapped(function: object) -> object:
    while isinstance(function, functools.partial):
        function = function.func
    return function if hasattr(function, "__qualname__") else type(function)


def _file_of(module: ModuleType | None) -> Path | None:
    name = getattr(module, "__file__", None)
    return Path(name).resolve() if isinstance(name, str) and name.endswith(".py") else None


class _Files:
    """Files below ``root``, the directory of the task's file or its package, with what they import from there."""

    def __init__(self, root: Path, *, package: bool = False) -> None:
        self.root = root.resolve()
        self.found: dict[str, bytes] = {}
        self._bytes = 0
        # A task may itself be installed, or be one of the bundled ones.
        self._others = [path for path in (*_OURS, *_LIBRARIES) if not self.root.is_relative_to(path)]
        entries = [self.root.parent if package else self.root, *(Path(entry).resolve() for entry in sys.path)]
        self._bases = [
            entry
            for entry in dict.fromkeys(entries)
            if (entry.is_relative_to(self.root) or self.root.is_relative_to(entry))
            and not self._foreign(entry)
        ]

    @classmethod
    def of_module(cls, name: str, path: Path) -> _Files:
        """For the module ``name`` in the file ``path``: below its outermost package."""
        parts = tuple(name.split("."))
        package = path.name == "__init__.py"
        place = path.parent if package else path.with_suffix("")
        # The file that a campaign file names need not be called as its module is.
        if place.parts[-len(parts) :] != parts or (len(parts) == 1 and not package):
            return cls(path.parent)
        return cls(place.parents[len(parts) - 2] if len(parts) > 1 else place, package=True)

    def add(self, path: Path) -> None:
        """Take the file at ``path`` and all that it imports; nothing where it is no file that belongs to these."""
        waiting = [path]
        for one in waiting:  # grows
            name = self._take(one)
            if name is not None:
                waiting += self.imported(self.found[name], one.resolve())
                waiting += self._packages_of(one.resolve())

    def _take(self, path: Path) -> str | None:
        """The name of a file that was not there before."""
        # Compared before the disk is asked, where most candidates are no files.
        if not path.is_relative_to(self.root) or not os.path.isfile(path):
            return None
        path = path.resolve()
        if not path.is_relative_to(self.root) or self._foreign(path):
            return None
        name = path.relative_to(self.root).as_posix()
        if name in self.found or path.stat().st_size > MOST_BYTES:
            return None
        return name if self.keep(name, path.read_bytes()) else None

    def keep(self, name: str, content: bytes) -> bool:
        """Whether there was room for the file."""
        if len(self.found) >= MOST_FILES or self._bytes + len(content) > MOST_BYTES:
            return False
        self.found[name] = content
        self._bytes += len(content)
        return True

    def _foreign(self, path: Path) -> bool:
        return any(path.is_relative_to(one) for one in self._others) or (
            path.is_relative_to(self.root) and not _INSTALLED.isdisjoint(path.relative_to(self.root).parts)
        )

    def _packages_of(self, path: Path) -> Iterator[Path]:
        for parent in path.parents:
            if not parent.is_relative_to(self.root):
                return
            yield parent / "__init__.py"

    def imported(self, source: bytes | str, path: Path | None) -> Iterator[Path]:
        """Where the files may be that ``source`` imports; ``path``: its own, None where it has none."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Python says them when it imports the file
                tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError):
            return
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield from _candidates(self._bases, alias.name.split("."))
            elif isinstance(node, ast.ImportFrom):
                bases = self._bases
                if node.level:
                    if path is None or node.level > len(path.parents):
                        continue
                    bases = [path.parents[node.level - 1]]
                stem = node.module.split(".") if node.module else []
                for alias in node.names:
                    yield from _candidates(bases, [*stem, alias.name])


def _candidates(bases: Sequence[Path], parts: list[str]) -> Iterator[Path]:
    for base in bases:
        path = base
        for part in parts:
            path = path / part
            yield path / "__init__.py"
            yield path.with_name(f"{part}.py")


class _ByValue:
    """The source of functions without a module that can be imported, and of what they use; files of what they import
    go to ``files``."""

    def __init__(self, files: _Files) -> None:
        self.texts: list[str] = []
        self._files = files
        self._seen: set[object] = set()

    def visit(self, name: str, value: object) -> None:
        if value is None or isinstance(value, (bool, int, float, str)):
            text = f"{name} = {value!r}"
            if text not in self._seen:
                self._seen.add(text)
                self.texts.append(text)
            return
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        if isinstance(value, functools.partial):
            self.visit(name, value.func)
            for key, argument in (*enumerate(value.args), *value.keywords.items()):
                self.visit(f"{name}_{key}", argument)
        elif inspect.ismethod(value):
            self.visit(name, value.__func__)
            self.visit(type(value.__self__).__name__, type(value.__self__))
        elif inspect.isfunction(value) or isinstance(value, type):
            module = sys.modules.get(value.__module__)
            if value.__module__ != "__main__" and getattr(module, "__file__", None) is not None:
                self._module(module)
            elif value.__module__ not in sys.builtin_module_names:
                self._definition(name, value)
        elif callable(value):
            self.visit(type(value).__name__, type(value))

    def _module(self, module: ModuleType | None) -> None:
        path = _file_of(module)
        if path is not None:
            self._files.add(path)

    def _definition(self, name: str, value: object) -> None:
        functions = [value, *vars(value).values()] if isinstance(value, type) else [value]
        members = [getattr(one, "__func__", getattr(one, "fget", one)) for one in functions]
        codes = [(one, one.__code__) for one in members if inspect.isfunction(one)]
        try:
            text = textwrap.dedent(inspect.getsource(value))  # type: ignore[arg-type]
        except (OSError, TypeError, SyntaxError, IndexError):
            digests = " ".join(_digest(code) for _, code in codes)
            text = f"# {name}: there is no source; its code is {digests}"
        self.texts.append(text.rstrip())
        for path in self._files.imported(text, None):
            self._files.add(path)
        for base in value.__bases__ if isinstance(value, type) else ():
            self.visit(base.__name__, base)
        for function, code in codes:
            for free, cell in zip(code.co_freevars, function.__closure__ or ()):
                if cell.cell_contents is not value:
                    self.visit(free, cell.cell_contents)
            names = list(dict.fromkeys(_names(code)))
            values = {used: function.__globals__[used] for used in names if used in function.__globals__}
            for used, one in values.items():
                self.visit(used, one)
            modules = [one for one in values.values() if isinstance(one, ModuleType)]
            for module in modules:  # grows by what ``import package.module`` makes reachable
                inside = (sys.modules.get(f"{module.__name__}.{used}") for used in names)
                modules += [one for one in inside if one is not None and one not in modules]
                self._module(module)
        wrapped = getattr(value, "__wrapped__", None)
        if wrapped is not None:
            self.visit(name, wrapped)


def _names(code: CodeType) -> Iterator[str]:
    """The names that ``code`` and the functions in it may look up among the globals."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _digest(code: CodeType) -> str:
    digest = hashlib.blake2b(code.co_code, digest_size=6)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            text = _digest(constant)
        elif isinstance(constant, frozenset):
            text = repr(sorted(map(repr, constant)))  # whose order differs from process to process
        else:
            text = repr(constant)
        digest.update(text.encode("utf-8", "surrogatepass"))
    digest.update(repr(code.co_names).encode())
    return digest.hexdigest()
