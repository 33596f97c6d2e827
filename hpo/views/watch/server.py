"""The routes of the live page."""

from __future__ import annotations

import gzip
import html
from collections.abc import Callable
from functools import cache
from http import HTTPStatus
from importlib.resources import files

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from hpo.views.report import page as report
from hpo.views.watch.access import Guard
from hpo.views.watch.page import Page, View

_JSON = "application/json"
_SCRIPT = "text/javascript; charset=utf-8"
_STYLE = "text/css; charset=utf-8"


def application(page: Page, *, title: str, token: str | None) -> ASGIApp:
    """The guarded routes. ``title``: title of the page before it is made."""
    shell = _shell(title)

    async def index(request: Request) -> Response:
        return HTMLResponse(shell)

    async def part(request: Request) -> Response:
        found = page.view.parts.get(request.path_params["name"])
        if found is None:
            raise HTTPException(HTTPStatus.NOT_FOUND)
        return _packed(request, found.data, _JSON)

    async def view(request: Request) -> Response:
        page.look()
        return Response(_announced(page.view), media_type=_JSON)

    routes = [
        Route("/", index),
        Route("/view", view),
        Route("/parts/{name}", part),
        *(Route(f"/{name}", _asset(make, kind)) for name, (make, kind) in _ASSETS.items()),
    ]
    return Guard(Starlette(routes=routes), token)


def _announced(view: View) -> bytes:
    """Versions of the parts, by which a viewer finds out which to fetch."""
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
