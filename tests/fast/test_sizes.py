"""Modules, folders, functions and constructors of hpo stay small enough to be read at once."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from places import ROOT

MODULES = sorted((ROOT / "hpo").rglob("*.py"))

MOST_LINES = 500
MOST_MODULES = 14
MOST_LINES_OF_A_FUNCTION = 60
"""Of its body, without signature and docstring."""
MOST_PARAMETERS = 8
"""Of a constructor; fields of settings and records, which are dataclasses and structs, do not count."""

PUBLIC = {"hpo/task/task.py:Task", "hpo/campaign/campaign.py:Campaign", "hpo/search/ask_tell.py:Search"}
"""The public face, whose keywords users know."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(tree: ast.Module) -> Iterator[tuple[str, Function]]:
    """All functions with their names, as CLASS.FUNCTION in classes."""
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Function):
                yield f"{node.name}.{child.name}" if isinstance(node, ast.ClassDef) else child.name, child


def body_lines(function: Function) -> int:
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0  # type: ignore[operator]


def parameters(function: Function) -> int:
    """Number of them, without self."""
    given = function.args
    return len([*given.posonlyargs, *given.args, *given.kwonlyargs]) - 1


def test_a_module_and_its_functions_can_be_read_at_once() -> None:
    large: list[str] = []
    for path in MODULES:
        text, name = path.read_text(), name_of(path)
        if (lines := len(text.splitlines())) > MOST_LINES:
            large.append(f"{name}: {lines} lines: split the module by what changes together")
        for function, one in functions(ast.parse(text)):
            if (lines := body_lines(one)) > MOST_LINES_OF_A_FUNCTION:
                large.append(f"{name}: {function}: {lines} lines: move parts with a meaning of their own out")
            owner, _, member = function.rpartition(".")
            if member == "__init__" and parameters(one) > MOST_PARAMETERS and f"{name}:{owner}" not in PUBLIC:
                large.append(
                    f"{name}: {function}: pass records, or a port with methods in place of functions"
                )
    assert not large, "\n".join(large)


def test_a_folder_can_be_overlooked() -> None:
    modules = [
        path for package in ("hpo", "trainers", "search_spaces") for path in (ROOT / package).rglob("*.py")
    ]
    counts = Counter(name_of(path.parent) for path in modules if path.name != "__init__.py")
    many = {folder: count for folder, count in counts.items() if count > MOST_MODULES}
    assert not many, f"{many}: make a package of modules that belong together, or merge the smallest"
