"""Limits on the number of connections, which any user of the host may open, and on the time they may do nothing."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_CONNECTIONS = 128
_REQUEST_S = 10.0  # a connection has to make its first request within this time
_LOOK_S = 10.0
_STALLED_LOOKS = 3  # looks in a row at which the client has not taken what was sent


class LimitedConnection(H11Protocol):
    """A connection that ends if its client keeps it waiting; uvicorn has a time-out only between requests."""

    _look: asyncio.TimerHandle | None = None
    _left = 0
    _stalled = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            transport.abort()
            return
        self._look = self.loop.call_later(_REQUEST_S, self._first_request_due)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._look is not None:
            self._look.cancel()
        super().connection_lost(exc)

    def _first_request_due(self) -> None:
        cycle: object = self.cycle  # None before the first request
        if cycle is None:
            self.transport.abort()
        else:
            self._look = self.loop.call_later(_LOOK_S, self._look_at_output)

    def _look_at_output(self) -> None:
        left = self.transport.get_write_buffer_size()
        self._stalled = self._stalled + 1 if left and left >= self._left else 0
        self._left = left
        if self._stalled >= _STALLED_LOOKS:
            self.transport.abort()
        else:
            self._look = self.loop.call_later(_LOOK_S, self._look_at_output)
