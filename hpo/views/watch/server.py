"""The routes of the live page."""

from __future__ import annotations

import asyncio
import gzip
import html
from collections.abc import AsyncIterator, Callable
from functools import cache
from http import HTTPStatus
from importlib.resources import files

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from hpo.views.report import page as report
from hpo.views.watch.access import Guard
from hpo.views.watch.page import Page, View

_MOST_STREAMS = 64
_PING_S = 10.0
_JSON = "application/json"
_SCRIPT = "text/javascript; charset=utf-8"
_STYLE = "text/css; charset=utf-8"


class Streams:
    """Open streams of events, which are woken when the view has changed."""

    def __init__(self) -> None:
        self._events: set[asyncio.Event] = set()
        self.closed = False

    def __len__(self) -> int:
        return len(self._events)

    def open(self) -> asyncio.Event:
        event = asyncio.Event()
        self._events.add(event)
        return event

    def drop(self, event: asyncio.Event) -> None:
        self._events.discard(event)

    def wake(self) -> None:
        for event in self._events:
            event.set()

    def close(self) -> None:
        """End all streams."""
        self.closed = True
        self.wake()


def application(page: Page, streams: Streams, *, title: str, token: str | None) -> ASGIApp:
    """The guarded routes. ``title``: title of the page before it is made."""
    shell = _shell(title)

    async def index(request: Request) -> Response:
        return HTMLResponse(shell)

    async def part(request: Request) -> Response:
        found = page.view.parts.get(request.path_params["name"])
        if found is None:
            raise HTTPException(HTTPStatus.NOT_FOUND)
        return _packed(request, found.data, _JSON)

    async def events(request: Request) -> Response:
        if len(streams) >= _MOST_STREAMS or streams.closed:
            raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, headers={"retry-after": "10"})
        kind = "text/event-stream"
        if request.method == "HEAD":
            return Response(media_type=kind)
        return StreamingResponse(_events(page, streams), media_type=kind)

    routes = [
        Route("/", index),
        Route("/events", events),
        Route("/parts/{name}", part),
        *(Route(f"/{name}", _asset(make, kind)) for name, (make, kind) in _ASSETS.items()),
    ]
    return Guard(Starlette(routes=routes), token)


async def _events(page: Page, streams: Streams) -> AsyncIterator[bytes]:
    """Versions of the parts at each change. Viewers that return or were slow miss nothing, as each event is whole."""
    event = streams.open()
    try:
        with page.viewer():
            yield b"retry: 2000\n\n"
            sent = None
            while not streams.closed:
                event.clear()
                if page.view != sent:
                    sent = page.view
                    yield b"event: view\ndata: " + _announced(sent) + b"\n\n"
                try:
                    await asyncio.wait_for(event.wait(), _PING_S)
                except asyncio.TimeoutError:
                    yield b": still here\n\n"
    finally:
        streams.drop(event)


def _announced(view: View) -> bytes:
    versions = {name: part.version for name, part in view.parts.items()}
    return msgspec.json.encode({"problem": view.problem, "reading": view.reading, "parts": versions})


def _packed(request: Request, data: bytes, kind: str) -> Response:
    """Response with compressed ``data``, which is decompressed if the client cannot read it."""
    headers = {"vary": "accept-encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(data, media_type=kind, headers={**headers, "content-encoding": "gzip"})
    return Response(gzip.decompress(data), media_type=kind, headers=headers)


def _own(name: str) -> str:
    return files("hpo.views.watch").joinpath("assets").joinpath(name).read_text(encoding="utf-8")


_ASSETS: dict[str, tuple[Callable[[], str], str]] = {
    "plotly.js": (report.plotly, _SCRIPT),
    "page.js": (lambda: report.asset("page.js"), _SCRIPT),
    "drawers.js": (report.drawers, _SCRIPT),
    "live.js": (lambda: _own("live.js"), _SCRIPT),
    "page.css": (lambda: report.asset("page.css"), _STYLE),
    "live.css": (lambda: _own("live.css"), _STYLE),
}


def _asset(make: Callable[[], str], kind: str) -> Callable[[Request], Response]:
    packed = cache(lambda: gzip.compress(make().encode(), 6, mtime=0))

    def answer(request: Request) -> Response:  # runs in a thread, as the first compression takes a moment
        return _packed(request, packed(), kind)

    return answer


def _shell(title: str) -> str:
    styles = [name for name in _ASSETS if name.endswith(".css")]
    scripts = [name for name in _ASSETS if name.endswith(".js")]
    return "".join(
        [
            report.head(),
            f"<title>{html.escape(title)}</title>\n",
            *(f'<link rel="stylesheet" href="{name}">\n' for name in styles),
            *(f'<script src="{name}" defer></script>\n' for name in scripts),
            "</head>\n",
            report.body(),
            "</body>\n</html>\n",
        ]
    )
