"""Access to the live page: every request passes through the guard."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import html
from http import HTTPStatus

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hpo.views.watch.address import LOCAL_NAMES

_SEND_S = 30.0  # a client has to take each piece of an answer within this time

HEADERS = {
    # Scripts come from this server alone, and none from text; plotly sets styles, and makes pictures to be saved.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class Guard:
    """Passes permitted requests on to ``app``.

    A request must name this host, because a page of another name that leads to this address is foreign (DNS rebinding).
    With a ``token`` it must bring the token, or the cookie that follows from it; a page that is requested with the
    token is redirected, so that no address keeps it. Only GET and HEAD pass."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self._token = None if token is None else token.encode()
        # Cookies hold for all ports of a host, where several campaigns may be watched.
        self._cookie = "hpo-" + hashlib.sha256(self._token or b"").hexdigest()[:12]
        self._cookie_value = hashlib.sha256(b"cookie " + (self._token or b"")).hexdigest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await asyncio.wait_for(send(message), _SEND_S)

        answer = self._refusal(HTTPConnection(scope), scope["method"]) or self._app
        await answer(scope, receive, guarded)

    def _refusal(self, request: HTTPConnection, method: str) -> Response | None:
        host = request.headers.get("host", "").lower()
        if _name(host) not in LOCAL_NAMES:
            return _refused(
                f"This page is not served by the name {host[:100]!r}. Open it as http://localhost."
            )
        brought = request.query_params.get("token")
        if self._token is not None:
            by_token = brought is not None and hmac.compare_digest(brought.encode(), self._token)
            cookie = request.cookies.get(self._cookie, "")
            if not by_token and not hmac.compare_digest(cookie.encode(), self._cookie_value.encode()):
                return _refused(
                    "Open the address that `hpo watch` has printed, with its token.", self._retry(request)
                )
        if method not in ("GET", "HEAD"):
            return Response(status_code=HTTPStatus.METHOD_NOT_ALLOWED, headers={"allow": "GET, HEAD"})
        if brought is not None and request.url.path == "/":
            answer = RedirectResponse("./", status_code=HTTPStatus.SEE_OTHER)
            if self._token is not None:
                answer.set_cookie(
                    self._cookie, self._cookie_value, httponly=True, samesite="strict", path="/"
                )
            return answer
        return None

    @staticmethod
    def _retry(request: HTTPConnection) -> str:
        """Link for visitors from another site, as browsers send the cookie only with requests of the page itself."""
        arrived = request.headers.get("sec-fetch-site") == "cross-site" and request.url.path == "/"
        return '<p><a href="./">Go on to the page</a></p>' if arrived else ""


def _name(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host


def _refused(text: str, more: str = "") -> Response:
    return HTMLResponse(
        f"<!doctype html><title>hpo watch</title><p>{html.escape(text)}</p>{more}\n",
        status_code=HTTPStatus.FORBIDDEN,
        headers={"connection": "close"},
    )
