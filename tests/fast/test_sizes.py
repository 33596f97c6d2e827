"""Modules, folders, functions and constructors of hpo stay small enough to be read at once."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
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


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_and_its_functions_can_be_read_at_once(path: Path) -> None:
    text = path.read_text()
    found = list(functions(ast.parse(text)))
    lines = len(text.splitlines())
    assert lines <= MOST_LINES, f"{lines} lines: split the module by what changes together"
    long = {name: body_lines(one) for name, one in found if body_lines(one) > MOST_LINES_OF_A_FUNCTION}
    assert not long, f"{long}: move parts with a meaning of their own to functions"
    wide = {
        name: parameters(one)
        for name, one in found
        if name.endswith(".__init__")
        and parameters(one) > MOST_PARAMETERS
        and f"{name_of(path)}:{name.removesuffix('.__init__')}" not in PUBLIC
    }
    assert not wide, f"{wide}: pass records, or a port with methods in place of functions"


def test_a_folder_can_be_overlooked() -> None:
    modules = [
        path for package in ("hpo", "trainers", "search_spaces") for path in (ROOT / package).rglob("*.py")
    ]
    counts = Counter(name_of(path.parent) for path in modules if path.name != "__init__.py")
    many = {folder: count for folder, count in counts.items() if count > MOST_MODULES}
    assert not many, f"{many}: make a package of modules that belong together, or merge the smallest"
