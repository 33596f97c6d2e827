"""Words of docstrings, comments and class names, in the packages whose sentences have been reviewed.

A docstring or comment begins with a noun phrase or a verb: fragments such as "Of the journal" leave the noun to the
reader. A package is added to ``DONE`` when its sentences hold; ``LATER`` has its modules that are still to come.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DONE = (
    "hpo/*.py",
    "hpo/space/*.py",
    "hpo/task/*.py",
    "hpo/config/*.py",
    "hpo/loggers/*.py",
    "hpo/prior_results/*.py",
    "hpo/search/kinds/*.py",
    "hpo/search/models/*.py",
    "hpo/results/analysis/*.py",
    "trainers/checkpoints/*.py",
    "trainers/communication/*.py",
    "trainers/data/*.py",
    "trainers/evaluation/*.py",
    "trainers/lowrank/*.py",
    "trainers/methods/*.py",
    "trainers/optim/*.py",
    "search_spaces/building_blocks/architecture_search/*.py",
    "search_spaces/building_blocks/data_sets/*.py",
    "search_spaces/building_blocks/recipe_parts/*.py",
    "search_spaces/networks/*.py",
    "search_spaces/readers/*.py",
)
LATER = {
    "hpo/individual.py",
    "hpo/cli.py",
    "hpo/parser.py",
    "hpo/task/code_version.py",
    "hpo/task/outcome.py",
    "hpo/task/trial.py",
    "hpo/config/reader.py",
    "trainers/checkpoints/contents.py",
    "trainers/data/assignment.py",
}
BEGINNINGS = re.compile(r"(Of|As of|That|What|By|In|With|To be|Else)\b")
WORDS = re.compile(
    r"\b(told|handed on|held back|anew|somebody|(?<!zeros and )ones|(this|that|the|another|which) one(?! of\b))\b",
    re.IGNORECASE,
)
LEAST_COMMENTS = 0.03
"""Least share of lines with a comment among lines that are not blank."""
SHARED = {"Interrupted", "Result", "Settings", "Communicator", "Link", "Row", "Table", "Assignment", "Order"}
"""Class names that several packages have: the first two are public, and the others still to be renamed."""


def modules(pattern: str) -> list[Path]:
    found = sorted(ROOT.glob(pattern))
    assert found, f"{pattern}: there is no such module. Correct DONE."
    return [path for path in found if str(path.relative_to(ROOT)) not in LATER]


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Lines and texts of docstrings, those of attributes included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.lineno, str(node.value.value)


def comments(text: str) -> list[tokenize.TokenInfo]:
    """Comments without directives to tools."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    directives = re.compile(r"#\s*(noqa|type:|pragma|fmt:)")
    return [
        token for token in tokens if token.type == tokenize.COMMENT and not directives.match(token.string)
    ]


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """First lines and texts of comments; comments on consecutive lines of their own are one text."""
    begun, words, next_line = 0, "", -1
    for token in comments(text):
        alone = token.line.lstrip().startswith("#")
        if not (alone and token.start[0] == next_line):
            if words:
                yield begun, words
            begun, words = token.start[0], ""
        words = f"{words} {token.string.lstrip('# ')}".strip()
        next_line = token.start[0] + 1 if alone else -1
    if words:
        yield begun, words


@pytest.mark.parametrize("pattern", DONE)
def test_sentences_begin_with_a_noun_or_a_verb_and_use_plain_words(pattern: str) -> None:
    wrong = []
    for path in modules(pattern):
        text = path.read_text()
        for line, sentence in (*docstrings(ast.parse(text)), *paragraphs(text)):
            words = " ".join(sentence.split())
            found = BEGINNINGS.match(words) or WORDS.search(words)
            if found is not None:
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {found[0]!r} in: {words[:90]}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("pattern", DONE)
def test_at_least_three_lines_in_a_hundred_have_a_comment(pattern: str) -> None:
    lines = commented = 0
    for path in modules(pattern):
        text = path.read_text()
        lines += sum(bool(line.strip()) for line in text.splitlines())
        commented += len({token.start[0] for token in comments(text)})
    assert commented >= LEAST_COMMENTS * lines, f"{pattern}: {commented} lines with a comment in {lines}"


def test_class_names_of_reviewed_packages_are_unique() -> None:
    places = defaultdict(list)
    for package in ("hpo", "trainers"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef):
                    places[node.name].append(path)
    reviewed = {path for pattern in DONE for path in modules(pattern)}
    shared = {
        name: [str(path.relative_to(ROOT)) for path in paths]
        for name, paths in places.items()
        if len(paths) > 1 and not reviewed.isdisjoint(paths) and name not in SHARED
    }
    assert not shared
