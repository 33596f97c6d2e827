"""Suggestions for misspelt names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from hpo.text import MOST_SHOWN, excerpt

if TYPE_CHECKING:
    from argparse import ArgumentParser

_LISTED = 12


def nearest(word: object, valid: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The valid name closest to ``word``, or None without a close match. ``cutoff``: least similarity, from 0 to 1."""
    # Imported here because every command imports this module, but only a mistake needs difflib.
    from difflib import get_close_matches

    # Reversed, so that the first of several names that differ in case only is kept.
    folded = {name.casefold(): name for name in reversed(list(valid))}
    # difflib's time grows with the square of the length, and a value may be a whole file.
    text = (word if isinstance(word, str) else excerpt(word))[:MOST_SHOWN]
    near = get_close_matches(text.casefold(), folded, n=3, cutoff=cutoff)
    # Letters in the wrong order are the likelier mistake: "bset" is "best", although it holds the whole of "set".
    near.sort(key=lambda name: sorted(name) != sorted(text.casefold()))
    return folded[near[0]] if near else None


def suggestion(word: object, valid: Iterable[str]) -> str:
    """A sentence that names the valid name closest to ``word``, or lists the valid names without a close match."""
    names = list(valid)
    near = nearest(word, names)
    if near is not None:
        return f'Did you mean "{near}"?'
    if not names:
        return "There is none to choose from."
    shown = ", ".join(names[:_LISTED])
    return f"Valid: {shown}{f' and {len(names) - _LISTED} more' if len(names) > _LISTED else ''}."


def unrecognized(arguments: Sequence[str], parser: ArgumentParser) -> str:
    """Message that a command does not take ``arguments``, with the option of ``parser`` closest to the first."""
    option = next((word.split("=")[0] for word in arguments if word.startswith("-")), "")
    near = nearest(option, [name for action in parser._actions for name in action.option_strings])
    return f"unrecognized arguments: {' '.join(arguments)}" + (f'. Did you mean "{near}"?' if near else "")
