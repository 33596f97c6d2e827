"""Output that is safe for a terminal: control characters are spelt out.

Names, errors, ids and paths come from tasks and journals. Data keep them exactly; code that prints them for a person
calls these functions, as a control sequence in a name could otherwise change the terminal."""

from __future__ import annotations

import re
import shlex
import sys
from typing import TextIO

# C0 and C1 controls, DEL, line separators, bidirectional overrides and isolates; also lone surrogates, which file names
# may hold and no terminal encoding can write.
_UNSAFE = "\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_UNSAFE_IN_TEXT = re.compile(f"[{_UNSAFE}]")
_UNSAFE_IN_LINE = re.compile(f"[\t\n{_UNSAFE}]")


def visible(text: object) -> str:
    r"""``text`` with control characters spelt out, such as ``\x1b``. Newlines and tabs stay, as layout."""
    return _UNSAFE_IN_TEXT.sub(_spelt, str(text))


def one_line(text: object) -> str:
    """``text`` with control characters, newlines and tabs spelt out, for a name or value inside a line."""
    return _UNSAFE_IN_LINE.sub(_spelt, str(text))


def quoted(word: object) -> str:
    """``word`` quoted for a shell command that a user may copy."""
    return shlex.quote(one_line(word))


def write(text: object, file: TextIO | None = None, *, flush: bool = False) -> None:
    """Print ``text``, with control characters spelt out, to ``file`` (default: standard output)."""
    print(visible(text), file=file or sys.stdout, flush=flush)


def write_json(text: str) -> None:
    """Print ``text``, JSON in ASCII as ``json.dumps`` makes it."""
    # json.dumps escapes all control characters except DEL.
    print(text.replace("\x7f", "\\u007f"))


def _spelt(found: re.Match[str]) -> str:
    code = ord(found[0])
    return {9: "\\t", 10: "\\n"}.get(code) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")
