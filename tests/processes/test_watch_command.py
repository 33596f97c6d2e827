"""``hpo watch`` as a person starts and ends it: where it listens, what it sends, and that nothing of it is left."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import journals
import pytest
import synthetic
from terminal import Command, Terminal

from hpo.ledger.journals import journal_files

_PATIENCE_S = 60.0


def _begin(terminal: Terminal) -> Path:
    return synthetic.make(terminal.directory / "run", evaluations=12)


@contextmanager
def _port(terminal: Terminal) -> Iterator[tuple[Command, str, http.client.HTTPConnection]]:
    """The command, the address that it prints, and a connection there."""
    command = terminal.start("watch", "run", "--port", 0)
    assert command.process.stdout is not None
    url = command.process.stdout.readline().strip()
    parts = urlsplit(url)
    assert (parts.scheme, parts.hostname, parts.path) == ("http", "127.0.0.1", "/")
    connection = http.client.HTTPConnection("127.0.0.1", parts.port or 0, timeout=_PATIENCE_S)
    try:
        yield command, f"{parts.path}?{parts.query}", connection
    finally:
        connection.close()


def _views(connection: http.client.HTTPConnection, cookie: str) -> Iterator[dict[str, object]]:
    """What the page says that there is, again and again."""
    end = time.monotonic() + _PATIENCE_S
    while time.monotonic() < end:
        connection.request("GET", "/view", headers={"cookie": cookie})
        yield json.loads(connection.getresponse().read())
        time.sleep(0.1)


def test_what_the_journal_gets_arrives_and_a_signal_ends_it_at_once(terminal: Terminal) -> None:
    home = _begin(terminal)
    with _port(terminal) as (command, target, connection):
        connection.request("GET", target.partition("?")[0])
        assert connection.getresponse().read() and connection.sock is None  # refused, and closed
        connection.request("GET", target)
        answer = connection.getresponse()
        answer.read()
        cookie = answer.headers["set-cookie"].partition(";")[0]
        views = _views(connection, cookie)
        first = next(view for view in views if "history" in view["parts"])
        with open(journal_files(home)[-1].path, "ab") as file:
            file.write(journals.line(journals.finished("9-9-9", {"accuracy": 0.5})))
        next(view for view in views if view["parts"]["history"] != first["parts"]["history"])
        asked = time.monotonic()
        command.process.send_signal(signal.SIGTERM)
        done = command.wait(_PATIENCE_S)
        assert time.monotonic() - asked < 10
    assert (done.returncode, done.stderr) == (0, "")


def test_idle_connections_keep_no_viewer_out(terminal: Terminal) -> None:
    _begin(terminal)
    with _port(terminal) as (command, target, connection), ExitStack() as idle:
        for _ in range(140):  # more than the server takes
            idle.enter_context(socket.create_connection((connection.host, connection.port)))
        end = time.monotonic() + 30
        status = 0
        while status != 303 and time.monotonic() < end:
            connection.request("GET", target)
            answer = connection.getresponse()
            answer.read()
            status = answer.status
            time.sleep(0.5)
        assert status == 303
        command.process.send_signal(signal.SIGTERM)
        assert command.wait(_PATIENCE_S).returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_the_socket_is_this_users_alone_and_is_removed(terminal: Terminal, number: signal.Signals) -> None:
    _begin(terminal)
    runtime = terminal.directory / "runtime"
    runtime.mkdir(mode=0o700)
    command = terminal.start("watch", "run", environment={"XDG_RUNTIME_DIR": str(runtime)})
    assert command.process.stdout is not None
    line = command.process.stdout.readline()
    (path,) = runtime.glob("hpo-*/hpo.sock")
    assert f"ssh -L 8080:{path} " in line
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.sock.settimeout(_PATIENCE_S)
    connection.sock.connect(str(path))
    connection.request("GET", "/")
    assert b"hpo-page" in connection.getresponse().read()
    connection.close()
    command.process.send_signal(number)
    done = command.wait(_PATIENCE_S)
    assert (done.returncode, done.stderr) == (0, "")
    assert not any(runtime.iterdir())


def test_what_is_no_campaign_is_said_and_nothing_listens(terminal: Terminal) -> None:
    done = terminal.hpo("watch", "nowhere", "--port", 0)
    assert (done.returncode, done.stdout) == (1, "")
    assert "nowhere holds no campaign" in done.stderr and "Traceback" not in done.stderr
