"""``hpo watch``: serves the live page of a campaign until a signal ends it."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from hpo.journal import directory as directories
from hpo.terminal import one_line, write
from hpo.views.watch.address import local_port, private_socket
from hpo.views.watch.page import Page
from hpo.views.watch.server import application

_GRACE_S = 1  # for answers under way
_REQUEST_S = 10.0  # a connection has to make its first request within this time
_MOST_CONNECTIONS = 128  # any user of the host may open some at a port


def watch(directory: Path, port: int | None, *, version: str = "") -> int:
    """Serve the live page of the campaign in ``directory`` until SIGINT or SIGTERM; returns the exit code.

    ``port``: port of 127.0.0.1, 0 for any free port; None: a Unix socket.

    Raises:
        UsageError: there is no such port.
        CampaignError: there is no campaign, or it cannot be served there.
    """
    directories.read_identity(directory)
    asyncio.run(_serve(directory, port, version))
    return 0


class _Connection(H11Protocol):
    """A connection that ends if no request comes, as idle connections of another user would keep viewers out; uvicorn
    has a time-out only between requests."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(_REQUEST_S, self._first_request_due)

    def _first_request_due(self) -> None:
        cycle: object = self.cycle  # None before the first request
        if cycle is None:
            self.transport.abort()


class _Server(uvicorn.Server):
    # uvicorn's own handlers would end the process by the signal again.

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _serve(directory: Path, port: int | None, version: str) -> None:
    loop = asyncio.get_running_loop()
    server: _Server | None = None
    asked = 0
    # Any user of the host can make uvicorn warn of invalid requests.
    log = logging.getLogger("uvicorn.error")
    log.setLevel(logging.ERROR)

    def end() -> None:
        nonlocal asked
        asked += 1
        log.setLevel(logging.CRITICAL)  # answers are cut off on purpose
        if server is not None:
            server.should_exit, server.force_exit = True, asked > 1

    # Handlers come first, so that a signal cannot leave the socket behind.
    for number in _ending_signals():
        loop.add_signal_handler(number, end)
    with private_socket() if port is None else local_port(port) as address:
        page = Page(directory, version=version)
        app = application(page, title=one_line(directory.absolute().name), token=address.token)
        server = _Server(_configuration(app))
        server.should_exit = asked > 0
        page.start()
        try:
            for line in address.lines:
                write(line, sys.stdout, flush=True)
            await server.serve(sockets=[address.socket])
        finally:
            page.close()


def _configuration(app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=_Connection,
        limit_concurrency=_MOST_CONNECTIONS,
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=_GRACE_S,
    )


def _ending_signals() -> list[signal.Signals]:
    hang_up = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *hang_up]
