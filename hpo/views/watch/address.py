"""Address of the live page: a Unix socket in a directory of this user alone, or a local port that asks for a token.

All users of a login node may connect to its ports, and to a socket that uvicorn makes, whatever the umask is: the
directory is what protects the socket."""

from __future__ import annotations

import os
import secrets
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hpo.config import process
from hpo.errors import CampaignError, UsageError
from hpo.terminal import quoted

LOCAL_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})
"""Hosts that a browser may name, also at the near end of ``ssh -L``."""
_LONGEST_PATH = 107  # bytes in the address of a Unix socket
_SUGGESTED_PORT = 8080


@dataclass(frozen=True, kw_only=True)
class Address:
    """An open socket."""

    socket: socket.socket
    token: str | None  # token that opens the page; None if reaching the socket suffices
    lines: tuple[str, ...]  # instructions for a person


@contextmanager
def private_socket() -> Iterator[Address]:
    """A Unix socket, which is removed in the end; CampaignError if none can be made."""
    folder = _private_directory()
    path = folder / "hpo.sock"
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _bind(listening, path)
        tunnel = f"ssh -L {_SUGGESTED_PORT}:{quoted(path)} {quoted(socket.gethostname())}"
        yield Address(
            socket=listening,
            token=None,
            lines=(
                f"On your own computer: {tunnel}",
                f"and open http://localhost:{_SUGGESTED_PORT}/ there. Ctrl-C ends it.",
            ),
        )
    finally:
        listening.close()
        with suppress(OSError):
            path.unlink()
        with suppress(OSError):
            folder.rmdir()


def _bind(listening: socket.socket, path: Path) -> None:
    try:
        listening.bind(os.fspath(path))
        path.chmod(0o600)
        listening.listen()
    except OSError as error:
        raise CampaignError(
            f"{path} cannot be used as a socket ({error.strerror or error}). Use a port: hpo watch DIR --port 0."
        ) from error


def _private_directory() -> Path:
    errors = []
    for place in process.private_places():
        try:
            found = place.stat()
            others = found.st_mode & 0o022 and not found.st_mode & 0o1000
            if found.st_uid not in (0, os.geteuid()) or others:
                raise PermissionError(f"{place} is open to other users")
            folder = Path(tempfile.mkdtemp(prefix="hpo-", dir=place))  # of mode 0700
        except OSError as error:
            errors.append(f"{place}: {error.strerror or error}")
            continue
        if len(os.fsencode(folder / "hpo.sock")) <= _LONGEST_PATH:
            return folder
        errors.append(f"{place}: the path is too long for a socket")
        folder.rmdir()
    raise CampaignError(
        f"No private directory for a socket ({'; '.join(errors)}). Use a port: hpo watch DIR --port 0."
    )


@contextmanager
def local_port(port: int) -> Iterator[Address]:
    """A port of 127.0.0.1; 0 is any free port.

    Raises:
        UsageError: there is no such port.
        CampaignError: it cannot be used.
    """
    if not 0 <= port < 1 << 16:
        raise UsageError(f"hpo watch: --port {port}: must be from 0, for any free port, to 65535")
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", port))
            listening.listen()
        except OSError as error:
            raise CampaignError(
                f"hpo watch: port {port} cannot be used ({error.strerror or error}). Give another, or --port 0 for any "
                "that is free."
            ) from error
        number = listening.getsockname()[1]
        token = secrets.token_urlsafe(32)
        host = quoted(socket.gethostname())
        yield Address(
            socket=listening,
            token=token,
            lines=(
                f"http://127.0.0.1:{number}/?token={token}",
                f"From another computer, first: ssh -L {number}:127.0.0.1:{number} {host}. Ctrl-C ends it.",
            ),
        )
    finally:
        listening.close()
