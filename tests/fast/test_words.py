"""Words of docstrings, comments and class names.

A docstring or comment begins with a noun phrase or a verb: fragments such as "Of the journal" leave the noun to the
reader.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("hpo", "trainers", "search_spaces", "jobs")
BEGINNINGS = re.compile(r"(Of|As of|That|What|By|In|With|To be|Else)\b")
WORDS = re.compile(
    r"\b(told|handed on|held back|anew|somebody|(?<!zeros and )ones|(this|that|the|another|which) one(?! of\b))\b",
    re.IGNORECASE,
)
LEAST_COMMENTS = 0.03
"""Least share of lines with a comment among lines that are not blank."""
SHARED = {"Interrupted", "Result"}
"""Public names that hpo and trainers both have."""


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Lines and texts of docstrings, those of attributes included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.lineno, str(node.value.value)


@cache
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


@pytest.mark.parametrize("package", PACKAGES)
def test_sentences_begin_with_a_noun_or_a_verb_and_use_plain_words(package: str) -> None:
    wrong = []
    for path in modules(package):
        text = path.read_text()
        for line, sentence in (*docstrings(ast.parse(text)), *paragraphs(text)):
            words = " ".join(sentence.split())
            found = BEGINNINGS.match(words) or WORDS.search(words)
            if found is not None:
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {found[0]!r} in: {words[:90]}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", PACKAGES)
def test_at_least_three_lines_in_a_hundred_have_a_comment(package: str) -> None:
    lines = commented = 0
    for path in modules(package):
        text = path.read_text()
        lines += sum(bool(line.strip()) for line in text.splitlines())
        commented += len({token.start[0] for token in comments(text)})
    assert commented >= LEAST_COMMENTS * lines, f"{package}: {commented} lines with a comment in {lines}"


def test_class_names_are_unique() -> None:
    places = defaultdict(list)
    for package in ("hpo", "trainers"):
        for path in modules(package):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and node.name not in SHARED:
                    places[node.name].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}
