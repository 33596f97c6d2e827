"""Makes text safe for a terminal: control characters are spelt out.

Names, errors, ids and paths come from tasks and journals. Data keep them exactly; whatever writes
them for a person to read calls these functions."""

from __future__ import annotations

import re
import shlex
import sys
from typing import TextIO

_OBEYED = "\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
"""C0 and C1 controls, DEL, line separators, bidirectional overrides and isolates; and half a surrogate pair, which a
file's name may hold and no terminal can be sent."""
_IN_LAYOUT = re.compile(f"[{_OBEYED}]")
_IN_A_LINE = re.compile(f"[\t\n{_OBEYED}]")


def visible(text: object) -> str:
    r"""``text`` with ``\x1b`` and the like in the place of control characters. Newlines and tabs, the layout of a text
    of several lines, stay."""
    return _IN_LAYOUT.sub(_spelt, str(text))


def one_line(text: object) -> str:
    """``visible`` for a name or a value inside a line, where a newline or tab is no layout either."""
    return _IN_A_LINE.sub(_spelt, str(text))


def quoted(word: object) -> str:
    """``word`` as one word of a shell command that is shown to be copied; bash's ``$'…'`` where it holds control
    characters."""
    text = str(word)
    if _IN_A_LINE.search(text) is None:
        return shlex.quote(text)
    return f"$'{''.join(map(_in_bash, text))}'"


def write(text: object, file: TextIO | None = None, *, flush: bool = False) -> None:
    """Print a text of one line or several, made ``visible``, to ``file`` (standard output)."""
    print(visible(text), file=file or sys.stdout, flush=flush)


def write_json(text: str) -> None:
    """Print JSON that is ASCII, as ``json.dumps`` makes it: it spells all controls out but DEL."""
    print(text.replace("\x7f", "\\u007f"))


def _spelt(found: re.Match[str]) -> str:
    code = ord(found[0])
    return {9: "\\t", 10: "\\n"}.get(code) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")


def _in_bash(character: str) -> str:
    if _IN_A_LINE.match(character):
        return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))
    return f"\\{character}" if character in "\\'" else character
