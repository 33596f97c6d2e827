"""Version of the code that evaluates: the task's file and the files beside it that it imports, with a hash of all.

Imports are read, also those inside functions, and nothing is executed. Of a notebook or the script that is run, where
much may change that does not matter, only the source of the function that evaluates is taken, with the functions,
classes and constants there that it names: constants are numbers, text, truth values and None."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import os
import re
import sys
import textwrap
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from hpo.task.importing import split_reference

if TYPE_CHECKING:
    from hpo.task.task import Task

MOST_FILES = 200
MOST_BYTES = 2 << 20
"""Largest size of all files of a version together; files beyond it are no part of the version."""
BY_VALUE = "__main__.py"
"""The file that holds what was defined in a notebook or script."""

_HOME = Path(__file__).resolve().parents[2]
_OURS = tuple(_HOME / name for name in ("hpo", "trainers", "search_spaces"))
_OF_EACH_CLASS = frozenset({"__module__", "__doc__", "__dict__", "__weakref__", "__firstlineno__"})
_INSTALLED = frozenset({"site-packages", "dist-packages"})


@dataclass(frozen=True)
class CodeVersion:
    """``files``: content by name, relative to the directory of the task's file or package, with "/"."""

    files: Mapping[str, bytes]

    @functools.cached_property
    def hash(self) -> str:
        """Twelve hexadecimal digits of BLAKE2b over names and contents; "" where there are no files."""
        digest = hashlib.blake2b(digest_size=6)
        for name, content in sorted(self.files.items()):
            for part in (os.fsencode(name), content):
                digest.update(len(part).to_bytes(8, "big") + part)
        return digest.hexdigest() if self.files else ""

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
    evaluate = _definition(task.evaluate)
    module = getattr(evaluate, "__module__", None) or "__main__"
    if source is not None and source.reference is not None:
        module, _ = split_reference(source.reference)
        if module.endswith(".py") or "/" in module:
            named = (Path(source.base) / module).resolve()
            return _Files(named.parent).add(named)
    path = _file_of(sys.modules[module])
    if module != "__main__" and path is not None:
        return _Files.of_module(module, path).add(path)
    script = _file_of(sys.modules.get("__main__"))
    files = _Files(Path.cwd() if script is None else script.parent)
    if text := _source_of(evaluate, files):
        files.keep(BY_VALUE, text.encode("utf-8", "surrogatepass"))
    return files.found


def _definition(value: object) -> object:
    """The function or class whose source says what ``value`` does."""
    while isinstance(value, functools.partial):
        value = value.func
    value = getattr(value, "__func__", getattr(value, "fget", value))
    return value if hasattr(value, "__qualname__") else type(value)


def _file_of(module: ModuleType | None) -> Path | None:
    name = getattr(module, "__file__", None)
    return Path(name).resolve() if isinstance(name, str) and name.endswith(".py") else None


class _Files:
    """Files below ``root``, the directory of the task's file or its package, with what they import from there.

    ``base``: where absolute imports are looked for first.
    """

    def __init__(self, root: Path, base: Path | None = None) -> None:
        self.root = root.resolve()
        self.found: dict[str, bytes] = {}
        self._bytes = 0
        # A bundled task is itself in one of these.
        self._ours = [path for path in _OURS if not self.root.is_relative_to(path)]
        prefixes = [Path(prefix).resolve() for prefix in (sys.prefix, sys.base_prefix)]
        self._bases = [self.root if base is None else base]
        self._bases += [
            entry
            for entry in dict.fromkeys(Path(entry).resolve() for entry in sys.path)
            if (entry.is_relative_to(self.root) or self.root.is_relative_to(entry))
            and _INSTALLED.isdisjoint(entry.parts)
            and not any(entry.is_relative_to(prefix) for prefix in prefixes)
        ]

    @classmethod
    def of_module(cls, name: str, path: Path) -> _Files:
        """For the module ``name`` in the file ``path``: below its outermost package, if it is in one."""
        depth = name.count(".") + (path.name == "__init__.py")
        # The file that a campaign file names need not be called as its module is.
        if depth and path.parents[depth - 1].name == name.split(".")[0]:
            return cls(path.parents[depth - 1], path.parents[depth])
        return cls(path.parent)

    def add(self, path: Path) -> dict[str, bytes]:
        """Take the file at ``path`` and all that it imports, unless it is no file that belongs to these; all files."""
        waiting = [path]
        for candidate in waiting:  # grows by what is imported
            name = self._take(candidate)
            if name is not None:
                own = candidate.resolve()
                waiting += self.imported(self.found[name], own)
                waiting += [
                    parent / "__init__.py" for parent in own.parents if parent.is_relative_to(self.root)
                ]
        return self.found

    def _take(self, path: Path) -> str | None:
        """The name of a file that was not there before."""
        # Compared before the disk is asked, where most candidates are no files.
        if not path.is_relative_to(self.root) or not os.path.isfile(path):
            return None
        path = path.resolve()
        if not path.is_relative_to(self.root) or any(path.is_relative_to(ours) for ours in self._ours):
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

    def imported(self, source: bytes | str, path: Path | None) -> Iterator[Path]:
        """Where the files may be that ``source`` imports; ``path``: its own, None where it has none."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Python says them when it imports the file
                tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError):
            return
        for node in ast.walk(tree):
            bases, names = self._bases, []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" if node.module else alias.name for alias in node.names]
                if node.level:
                    bases = [] if path is None else [*path.parents][node.level - 1 : node.level]
            for base in bases:
                for name in names:
                    place = base
                    for part in name.split("."):
                        yield place / f"{part}.py"
                        place /= part
                        yield place / "__init__.py"


def _source_of(evaluate: object, files: _Files) -> str:
    """Source of ``evaluate`` and of all that it names in its notebook or script; empty where there is no source. Files
    of the modules that it uses go to ``files``.
    """
    main = sys.modules.get("__main__")
    texts: dict[str, None] = {}
    waiting: list[tuple[str, object]] = [("evaluate", evaluate)]
    seen: set[int] = set()
    for name, value in waiting:  # grows by what is named
        if value is None or isinstance(value, (bool, int, float, str)):
            texts[f"{name} = {value!r}"] = None
            continue
        value = value if isinstance(value, ModuleType) else _definition(value)
        module = value if isinstance(value, ModuleType) else sys.modules.get(str(value.__module__))
        if id(value) in seen:
            continue
        seen.add(id(value))
        if module is not main:
            if (path := _file_of(module)) is not None:
                files.add(path)
            continue
        try:
            text = textwrap.dedent(inspect.getsource(value)).rstrip()  # type: ignore[arg-type]
        except (OSError, TypeError, SyntaxError, IndexError):
            # Python finds no source of a notebook's classes, but of their methods.
            if isinstance(value, type):
                waiting += [(base.__name__, base) for base in value.__bases__]
                waiting += [item for item in vars(value).items() if item[0] not in _OF_EACH_CLASS]
            continue
        texts[text] = None
        for place in files.imported(text, None):
            files.add(place)
        closure = inspect.getclosurevars(value).nonlocals if inspect.isfunction(value) else {}
        known = {**vars(main), **closure}
        words = list(dict.fromkeys(re.findall(r"[^\W\d]\w*", text)))
        waiting += [(word, known[word]) for word in words if word in known]
        packages = [known[word] for word in words if isinstance(known.get(word), ModuleType)]
        # After ``import package.module`` the package alone is among the names.
        within = [sys.modules.get(f"{package.__name__}.{word}") for package in packages for word in words]
        waiting += [(module.__name__, module) for module in within if module is not None]
    return "\n\n".join(texts) + "\n" if texts else ""
