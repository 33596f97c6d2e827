"""The live page: who may read it, what it sends when, and that nothing which a campaign holds stops or fools it."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import journals
import pytest
import synthetic
from starlette.types import ASGIApp

from hpo import views
from hpo.cli import main
from hpo.config import process
from hpo.errors import CampaignError, UsageError
from hpo.journal.curves import CurveWriter, curve_path
from hpo.ledger.journals import journal_files
from hpo.views.figures import registry
from hpo.views.figures.source import Source
from hpo.views.watch import address, parts, server
from hpo.views.watch.access import HEADERS
from hpo.views.watch.page import Page, View
from hpo.views.watch.parts import PagePart, Parts

TOKEN = "a-token"
HOST = ("host", "127.0.0.1:4711")


def ask(app: ASGIApp, target: str, *headers: tuple[str, str], method: str = "GET") -> SimpleNamespace:
    """``status``, ``headers`` and ``body`` of the answer to a request, which is waited for."""
    answer = SimpleNamespace(body=b"")

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            answer.body += message.get("body", b"")

    path, _, query = target.partition("?")
    names = [(name.encode(), value.encode()) for name, value in (headers or (HOST,))]
    scope = {
        "type": "http", "method": method, "path": path, "raw_path": path.encode(), "root_path": "",
        "query_string": query.encode(), "headers": names, "scheme": "http", "server": ("127.0.0.1", 4711),
    }  # fmt: skip
    asyncio.run(asyncio.wait_for(app(scope, receive, send), 20))
    return answer


def page_with(directory: Path, **names: object) -> Page:
    page = Page(directory)
    page.view = View(parts={name: PagePart.of(value) for name, value in names.items()}, reading=False)
    return page


def app_for(directory: Path, token: str | None = TOKEN) -> ASGIApp:
    page = page_with(directory, words={"text": "</script>"}, history=[1, 2])
    return server.application(page, title="<script>alert(1)</script>", token=token)


ROUTES = ("/", "/parts/words", "/page.js", "/plotly.js", "/live.css", "/nothing", "/parts/..%2f..%2fpasswd")


def test_every_route_is_closed_without_the_token(tmp_path: Path) -> None:
    app = app_for(tmp_path)
    cookie = ("cookie", "hpo=a-token; token=a-token")
    tokens = [("", cookie), *((f"?token={token}",) for token in ("", "a-toke", "a-token%20", "ä")), ("",)]
    for (suffix, *headers), route in product(tokens, (*ROUTES, "/view")):
        for method in ("GET", "HEAD", "POST", "OPTIONS", "PUT"):
            answer = ask(app, route + suffix, HOST, *headers, method=method)
            assert answer.status == 403 and answer.headers.items() >= HEADERS.items(), (suffix, route, method)


def test_the_token_becomes_a_cookie_that_opens_all_and_leaves_the_address(tmp_path: Path) -> None:
    app = app_for(tmp_path)
    first = ask(app, f"/?token={TOKEN}")
    assert first.status == 303 and TOKEN not in first.headers["location"]
    cookie, _, attributes = first.headers["set-cookie"].partition(";")
    assert TOKEN not in cookie
    assert {"httponly", "samesite=strict", "path=/"} == set(attributes.lower().replace(" ", "").split(";"))
    brought = ("cookie", f"other=1; {cookie}")
    answers = {route: ask(app, route, HOST, brought) for route in ROUTES}
    assert [one.status for one in answers.values()] == [200] * 5 + [404] * 2
    assert all(one.headers.items() >= HEADERS.items() for one in answers.values())
    assert b"<script>alert" not in answers["/"].body
    # Another server has another token: its cookie is another one, and opens nothing here.
    other = ask(app_for(tmp_path, token="other"), "/?token=other").headers["set-cookie"]
    assert cookie != other.partition(";")[0]


def test_who_comes_by_a_link_elsewhere_can_go_on(tmp_path: Path) -> None:
    """The browser withholds the cookie from a redirect that another site began."""
    app = app_for(tmp_path)
    foreign = ask(app, "/", HOST, ("sec-fetch-site", "cross-site"))
    assert foreign.status == 403 and b'href="./"' in foreign.body
    assert b"href" not in ask(app, "/").body


@pytest.mark.parametrize("token", [None, TOKEN])
def test_a_page_of_another_name_is_refused(tmp_path: Path, token: str | None) -> None:
    app = app_for(tmp_path, token)
    query = "" if token is None else f"?token={token}"

    def status(host: str) -> int:
        return ask(app, "/page.css" + query, ("host", host)).status

    foreign = ("evil.example:80", "localhost.evil.example", "127.0.0.1.evil.example:80", "", "[")
    for host in foreign:
        assert status(host) == 403, host
    for host in ("localhost:8080", "127.0.0.1", "LOCALHOST", "[::1]:9"):
        assert status(host) == 200, host
    assert ask(app, "/page.css" + query, ("accept", "*/*")).status == 403


def test_the_page_can_only_be_read(tmp_path: Path) -> None:
    app = app_for(tmp_path, None)
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        for route in ROUTES:
            answer = ask(app, route, method=method)
            assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD"), (method, route)
    for route in (*ROUTES, "/view"):
        assert ask(app, route, method="HEAD").status in (200, 404)


def test_the_policy_allows_no_foreign_and_no_written_script() -> None:
    policy = {words[0]: words[1:] for words in map(str.split, HEADERS["content-security-policy"].split(";"))}
    assert policy["default-src"] == ["'none'"]
    assert policy["script-src"] == policy["connect-src"] == ["'self'"]
    allowed = {source for sources in policy.values() for source in sources}
    assert allowed <= {"'none'", "'self'", "'unsafe-inline'", "data:", "blob:"}


def test_the_page_has_no_script_in_its_text(tmp_path: Path) -> None:
    text = ask(app_for(tmp_path, None), "/").body.decode()
    assert text.count("<script") == text.count("<script src=") > 3
    assert "://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "onload" not in text


def test_parts_are_the_same_compressed_and_not(tmp_path: Path) -> None:
    app = app_for(tmp_path, None)
    plain = ask(app, "/parts/words")
    packed = ask(app, "/parts/words", HOST, ("accept-encoding", "br, gzip"))
    assert "content-encoding" not in plain.headers and packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.body) == plain.body
    assert json.loads(plain.body) == {"text": "</script>"}
    assert b"<" not in plain.body


def test_who_asks_hears_what_there_is_and_counts_as_a_viewer(tmp_path: Path) -> None:
    page = page_with(tmp_path, words=1)
    app = server.application(page, title="x", token=None)
    assert not page._is_viewed
    first = json.loads(ask(app, "/view").body)
    assert list(first["parts"]) == ["words"] and not first["problem"]
    assert page._is_viewed
    page.view = View(
        parts={**page.view.parts, "history": PagePart.of(2)}, problem="line\nbreak", reading=False
    )
    second = json.loads(ask(app, "/view").body)
    assert second["parts"]["words"] == first["parts"]["words"] and "history" in second["parts"]
    assert second["problem"] == "line\nbreak"


@contextmanager
def watched(directory: Path) -> Iterator[tuple[Page, Callable[[], dict[str, str]]]]:
    """A page with a viewer, and what makes it anew and says the versions of its parts."""
    page = Page(directory)
    now = [0.0]
    page._parts.clock = lambda: now[0]

    def made() -> dict[str, str]:
        for _ in range(2):  # the words follow the figures
            now[0] += 1000.0
            page.look()
            page.step()
            while page._more:
                page.look()  # on a machine at work a figure may take seconds
                page.step()
        return {name: part.version for name, part in page.view.parts.items()}

    yield page, made


def said(page: Page, part: str) -> Any:
    return json.loads(gzip.decompress(page.view.parts[part].data))


def test_a_change_is_seen_in_what_it_changes_alone(tmp_path: Path) -> None:
    home = synthetic.make(tmp_path / "run", evaluations=40)
    with watched(home) as (page, made):
        first = made()
        assert not page.view.problem and not page.view.reading
        words = said(page, "words")
        assert words["figures"] == [one.name for one in registry.FIGURES if one.name in first]
        assert {"history", "curves", "timeline"} <= set(words["figures"])
        assert len(said(page, "details")[0]["ids"]) == 40
        assert made() == first

        writer = CurveWriter(curve_path(home, launch=1, island=0, worker=0), 0.0)
        writer.begin(said(page, "details")[0]["ids"][0], resumed=True)
        writer.add(99, 0.123, {})
        writer.close()
        second = made()
        assert {name for name in first if first[name] != second[name]} in ({"curves"}, {"curves", "budget"})

        _append(home, "9-9-9", 0.99)
        third = made()
        assert {"words", "history", "details"} <= {name for name in second if second[name] != third[name]}
        assert "9-9-9" in said(page, "details")[0]["ids"]


def _append(home: Path, identity: str, value: float) -> None:
    hostile = {"params": {"<script>alert(1)</script>": 1.0}, "error": "<img src=x onerror=alert(1)>"}
    table = journals.finished(identity, {"accuracy": value}, started=1.8e9, finished=1.8e9 + 9, **hostile)
    with open(journal_files(home)[-1].path, "ab") as file:
        file.write(journals.line(table))


def test_nothing_is_made_while_nobody_looks(tmp_path: Path) -> None:
    page = Page(synthetic.make(tmp_path / "run", evaluations=12))
    page.step()
    assert not page.view.parts and not page.view.reading


def test_damage_and_a_deleted_campaign_are_said_and_what_was_seen_stays(tmp_path, capsys):
    home = synthetic.make(tmp_path / "run", evaluations=12)
    last = journal_files(home)[-1].path
    whole = last.read_bytes()
    with watched(home) as (page, made):
        before = made()
        last.write_bytes(whole + b"nonsense\n" + whole.splitlines(keepends=True)[-1])
        assert made() == before
        assert "hpo check" in page.view.problem
        last.write_bytes(whole)
        assert made() == before and not page.view.problem
        os.rename(home, tmp_path / "elsewhere")
        assert made() == before
        assert "holds no campaign" in page.view.problem
    assert capsys.readouterr().err.count("\n") == 2


def test_a_figure_that_fails_is_said_and_costs_no_other(tmp_path, monkeypatch):
    def broken(entry: registry.Entry, sources: list[Source]) -> Any:
        if entry.name == "history":
            raise ZeroDivisionError("<b>broken</b>")
        return drawn(entry, sources)

    drawn = parts.drawn
    monkeypatch.setattr(parts, "drawn", broken)
    with watched(synthetic.make(tmp_path / "run", evaluations=12)) as (page, made):
        found = made()
        assert "ZeroDivisionError" in page.view.problem
        assert "history" not in found and {"hours", "timeline", "words"} <= set(found)


def test_a_costly_part_rests_and_the_others_do_not_wait_for_it() -> None:
    now = [0.0]
    made: list[str] = []

    def drawing(name: str) -> Callable[[Source], object]:
        def draw(source: Source) -> object:
            now[0] += 2.0 if name == "importance" else 0.01
            made.append(name)
            return now[0]

        return draw

    found = Parts(publish=lambda _: None, clock=lambda: now[0], processor=lambda: now[0])
    for task in found._tasks:
        task.make = drawing(task.name)
    source = Source(name="", record=None, curves=None)  # type: ignore[arg-type]
    while now[0] < 200.0:
        found.changed()
        while found.make(source):
            made.append("look")
        now[0] += 0.5
    counts = {name: made.count(name) for name in (*registry.BY_NAME, "words")}
    assert 3 <= counts.pop("importance") <= 5
    assert min(counts.values()) > 100
    assert all(
        made[place + 1] in ("look", "words") for place, name in enumerate(made) if name == "importance"
    )


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_socket_is_private_and_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, own = tmp_path / "shared", tmp_path / "own"
    for folder, mode in ((shared, 0o777), (own, 0o700)):
        folder.mkdir()
        folder.chmod(mode)
    monkeypatch.setattr(process, "private_places", lambda: [tmp_path / "none", shared, own])
    umask = os.umask(0)
    try:
        with address.private_socket() as found:
            path = Path(found.socket.getsockname())
            assert path.parent.parent == own
            assert (_mode(path.parent), _mode(path)) == (0o700, 0o600)
            assert found.token is None and f"ssh -L 8080:{path}" in found.lines[0]
    finally:
        os.umask(umask)
    assert not any(own.iterdir()) and not any(shared.iterdir())
    monkeypatch.setattr(process, "private_places", lambda: [shared])
    with pytest.raises(CampaignError, match=r"open to other users.*--port 0"), address.private_socket():
        pass


def test_a_port_that_cannot_be_used_is_said() -> None:
    with address.local_port(0) as first:
        name, port = first.socket.getsockname()
        assert name == "127.0.0.1"
        assert first.lines[0] == f"http://127.0.0.1:{port}/?token={first.token}"
        assert first.token is not None and len(first.token) >= 43
        with (
            pytest.raises(CampaignError, match=f"port {port} cannot be used.*--port 0"),
            address.local_port(port),
        ):
            pass
    for port in (-1, 65536):
        with pytest.raises(UsageError, match="from 0"), address.local_port(port):
            pass


def test_where_the_page_s_packages_lack_the_extra_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(views, "LIVE_PAGE", ("not_there", "msgspec"))
    assert main(["watch", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "not_there" in said and "bash jobs/setup.sh page" in said
