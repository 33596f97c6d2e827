"""Bytes of anybody's making: each reader takes them, or says in its own error what is wrong; nothing else happens."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import journals
import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from living import joined
from places import ROOT

from hpo.config import reader as config
from hpo.errors import CampaignError, HpoError, JournalDamaged, UsageError
from hpo.islands import messages
from hpo.journal import directory
from hpo.journal.files import journal_path, read_file
from hpo.journal.machine import THIS_MACHINE
from hpo.ledger.alive import alive_path, living
from hpo.ledger.inspection import check, repair
from hpo.ledger.journals import read_directory
from hpo.ledger.opening import state_of
from hpo.results import overview
from hpo.results import result as results
from hpo.results.record import load
from hpo.search.population import Member
from hpo.views import text
from hpo.views.terminal import best_report

EVERY_KEY = re.findall(
    r"```toml\n# every_key\.toml\n(.*?)```", (ROOT / "hpo" / "README.md").read_text(), re.DOTALL
)[0]

fuzz = settings(suppress_health_check=list(HealthCheck))

DEEP = 100_000

# What is made of bytes ---------------------------------------------------------------------------------------------

_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
)
_values = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)


@st.composite
def mutations(draw: st.DrawFn, original: bytes, tokens: list[bytes]) -> bytes:
    """``original`` with parts cut out, doubled, moved, or replaced by tokens and random bytes."""
    content = original
    for _ in range(draw(st.integers(1, 4))):
        begin = draw(st.integers(0, len(content)))
        end = min(len(content), begin + draw(st.integers(0, 40)))
        piece = draw(st.sampled_from(["cut", "double", "token", "bytes", "move"]))
        if piece == "cut":
            new = b""
        elif piece == "double":
            new = content[begin:end] * 2
        elif piece == "token":
            new = draw(st.sampled_from(tokens))
        elif piece == "bytes":
            new = draw(st.binary(max_size=12))
        else:
            other = draw(st.integers(0, len(content)))
            new = content[other : other + end - begin]
        content = content[:begin] + new + content[end:]
    return content


_watched: list[str] = []
_ACTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "pickle.find_class", "socket.connect")


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if _watched and event in _ACTS:
        _watched.append(f"{event} {arguments}")


sys.addaudithook(_audit)


def reads(read: Callable[[], object], *errors: type[Exception]) -> object:
    """What ``read`` returns, or the one of ``errors`` that it raised; nothing was executed meanwhile."""
    _watched.append("watching")
    try:
        return read()
    except errors as error:
        assert str(error)
        return error
    finally:
        found = _watched[1:]
        _watched.clear()
        assert not found


def within(mib: int, act: Callable[[], object]) -> object:
    """What ``act`` returns; it may not take more memory than so many MiB."""
    tracemalloc.start()
    try:
        return act()
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < mib << 20, f"{peak >> 20} MiB"


# Campaign files ---------------------------------------------------------------------------------------------------

_TOML = [
    *(b"%s = " % name.encode() for name in config._SECTION_OF),
    b"[layout]\n", b"[[island]]\n", b"[search]\n", b"[evaluation]\n", b"[task_options]\n", b"[a.b]\n", b"a.b.c = ",
    b"-1", b"1e400", b"inf", b"nan", b"0x10", b"9223372036854775808", b"2020-01-01", b"07:32:00", b"[1, [2]]",
    b"{a = 1}", b'"\\u0000"', b'"\\U0010FFFF"', b"'''", b'"""', b"true", b"[", b"]", b"=", b"\n", b"#", b"\r", b"\xff",
    b'"' + b"9" * 500 + b'd"', b'"1e5h"', b"9" * 400,
]  # fmt: skip


def _read_settings(path: Path, content: bytes) -> object:
    path.write_bytes(content)
    return reads(lambda: config.read_file(path), UsageError)


@fuzz
@given(content=mutations(EVERY_KEY.encode(), _TOML))
def test_campaign_files_that_were_changed(tmp_path: Path, content: bytes) -> None:
    _read_settings(tmp_path / "c.toml", content)


_BASE = b'task = "a.py:b"\ndirectory = "run"\nevaluations = 3\n'


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"a = " + b"[" * DEEP, id="lists without end"),
        pytest.param(_BASE + b"[task_options]\na = " + b"[" * 300 + b"]" * 300, id="deep lists"),
        pytest.param(_BASE + b"[task_options]\n" + b"a." * 5_000 + b"a = 1", id="a deep key"),
        pytest.param(_BASE + b"seed = " + b"9" * 5_000, id="a number that Python does not read"),
        pytest.param(_BASE + b"[task_options]\na = " + b"9" * 4_000, id="a number that JSON does not have"),
        pytest.param(_BASE + b'deadline = "' + b"9" * 400 + b'd"', id="a duration beyond floats"),
        pytest.param(_BASE.replace(b"run", b"run\\u0000"), id="a path with a zero"),
        pytest.param(_BASE.replace(b'"run"', b'"~no-such-user/run"'), id="a home of nobody"),
    ],
)
def test_campaign_files_that_want_too_much(tmp_path: Path, content: bytes) -> None:
    # The TOML reader itself takes 97 MiB for a key of 5 000 parts.
    within(128, lambda: _read_settings(tmp_path / "c.toml", content))


# Messages ---------------------------------------------------------------------------------------------------------

_KINDS = list(messages.KINDS)


def _message(data: bytes) -> None:
    reads(lambda: messages.decode(data), messages.MessageError)


@fuzz
@given(content=st.tuples(st.sampled_from(_KINDS), st.lists(_values, max_size=5)))
def test_messages_of_any_fields(content: tuple[str, list[object]]) -> None:
    try:
        data = msgspec.json.encode([content[0], *content[1]])
    except (TypeError, UnicodeEncodeError):
        return
    _message(data)


_START = messages.encode(
    messages.Start(
        1,
        0,
        0,
        messages.Surroundings(("a",), 0, 1, 1),
        0,
        [Member("0-0-1", (0.5, 2), None, "failed", (), (3, None), "random")],
        ["0-0-1"],
        [],
        {"0-0-1": (1, "")},
    )
)


@fuzz
@given(data=st.binary(max_size=40) | mutations(_START, [b"[", b"1e999"]))
@example(b"[" * DEEP)
@example(b'["Records",' + b"[" * DEEP + b"]" * DEEP + b",[]]")
@example(b'["Recall",' + b"9" * 10_000 + b"]")
@example(b'["Recall",1e999]')
@example(b"[[]]")
@example(b'[{"a":1}]')
@example(b"")
def test_messages_of_any_bytes(data: bytes) -> None:
    _message(data)


# Journals and campaign.json ---------------------------------------------------------------------------------------


def _lines() -> list[dict[str, object]]:
    individual: dict[str, object] = {
        "id": "0-0-1", "island": 0, "worker": 0, "sequence": 1, "params": {"x": 0.5, "kind": "a"},
        "operator": "random", "parents": ["0-0-0"], "retries": 0,
    }  # fmt: skip
    end = {"started": 1.0, "finished": 2.0, "status": "completed", "objectives": {"value": 0.25}}
    return [
        journals.header(),
        journals.launched(time=0.5),
        {"type": "started", **individual, "time": 1.0},
        {"type": "finished", **individual, **end, "metrics": {"loss": "nan", "n": 3}, "error": None},
        {"type": "migrated", "id": "0-0-1", "source": 0, "target": 1, "hop": 1, "copy": False, "time": 3.0},
        {"type": "ended", "reason": "done", "exit": 0, "time": 4.0},
        {
            "type": "known", "number": 1, "params": {"x": 0.25, "kind": "b"}, "status": "completed",
            "objectives": {"value": 0.5}, "source": "a.csv", "origin": "row 1", "time": 5.0,
        },
        {"type": "entered", "source": "a.csv", "told": "1 entered", "time": 6.0},
    ]  # fmt: skip


JOURNAL = b"".join(map(journals.line, _lines()))
IDENTITY = {
    "task": "a.py:b",
    "options": {},
    "space": {
        "x": {"type": "float", "low": 0.0, "high": 1.0, "log": False},
        "kind": {"type": "categorical", "choices": ["a", "b"]},
    },
    "objectives": {"value": "minimize"},
    "seed": 0,
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fuzz") / "run"
    directory.write_identity(path, IDENTITY)
    journal_path(path, launch=1, island=0, worker=0).parent.mkdir(parents=True)
    return path


def _journal(home: Path, content: bytes) -> None:
    """All that reads a journal, and its repair."""
    path = journal_path(home, launch=1, island=0, worker=0)
    path.write_bytes(content)
    read = reads(lambda: list(read_directory(home, [])), CampaignError)
    report = check(home)
    msgspec.json.encode(report.to_json())
    assert str(report)
    if not isinstance(read, HpoError):
        assert report.damaged or not report.repairable


def _inspected(home: Path) -> None:
    """What a user does to a campaign of somebody else."""

    def inspect() -> None:
        record = load(home)
        text.status(home, overview.of(home))
        results.best(record, 3)
        results._json(results._columns(record.individuals, list(record.objectives)))
        results.dataframe(record.individuals).to_csv()
        best_report.best(home, None)
        best_report.best_json(home, 3)

    reads(inspect, CampaignError)


@fuzz
@given(
    content=mutations(JOURNAL, [b"\n", b"\0" * 64, b'{"type":"finished",', b',"crc":"00000000"}\n', JOURNAL])
)
@example(content=b"".join(map(journals.line, [{**journals.header(), "version": 99}, *_lines()[1:]])))
def test_journals_of_any_bytes_and_their_repairs(
    home: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    path = journal_path(home, launch=1, island=0, worker=0)
    _journal(home, content)
    _inspected(home)
    error = reads(lambda: next(read_file(path), None), CampaignError)
    foreign = isinstance(error, CampaignError) and not isinstance(error, JournalDamaged)
    repair(home)
    assert bool(check(home).damaged) == foreign, check(home)
    if foreign:
        assert path.read_bytes() == content
    shutil.rmtree(home / "damaged", ignore_errors=True)
    _inspected(home)


@fuzz
@given(
    which=st.integers(0, 7),
    name=st.sampled_from(sorted({name for line in _lines() for name in line})),
    value=_values,
    drop=st.booleans(),
)
def test_journals_whose_checksums_fit(home: Path, which: int, name: str, value: object, drop: bool) -> None:
    lines = _lines()
    lines[which] = {**lines[which], name: value}
    if drop:
        del lines[which][name]
    try:
        content = b"".join(map(journals.line, lines))
    except (TypeError, ValueError):
        return
    _journal(home, content)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"[" * DEEP + b"\n", id="lists without end"),
        pytest.param(b'{"type":"a","x":' + b"[" * 1_000 + b"]" * 1_000, id="deep"),
        pytest.param(b'{"type":"finished","id":' + b"9" * 100_000, id="a large number"),
        pytest.param(b'{"type":"a","x":"' + b"a" * 1_000_000 + b'"', id="a long text"),
    ],
)
def test_journals_that_want_too_much(home: Path, content: bytes) -> None:
    import zlib

    line = b'%b,"crc":"%08x"}\n' % (content, zlib.crc32(content))
    within(64, lambda: _journal(home, journals.line(_lines()[0]) + line * 2))


def test_a_journal_of_zeros_that_is_larger_than_the_memory(home: Path) -> None:
    """It costs no disk. What is read of it at a time is bounded, and it is no data."""
    path = journal_path(home, launch=1, island=0, worker=0)
    path.write_bytes(JOURNAL)
    os.truncate(path, 1 << 40)
    try:
        with pytest.raises(CampaignError, match="not a whole record"):
            within(400, lambda: list(read_file(path)))
    finally:
        path.write_bytes(JOURNAL)


@fuzz
@given(
    content=mutations(
        msgspec.json.encode({"version": 1, **IDENTITY}), [b"[", b"null", b"1e999", b'"version":1', b"{}"]
    )
)
@example(b"[" * DEEP)
@example(b'{"version":1}')
@example(b'{"version":1,"a":' + b"9" * 10_000 + b"}")
@example(b"\xff\xfe")
@example(b"null")
def test_campaign_json_of_any_bytes(home: Path, content: bytes) -> None:
    path = home / "campaign.json"
    whole = path.read_bytes()
    path.write_bytes(content)
    try:
        reads(lambda: directory.read_identity(home), CampaignError)
        reads(lambda: directory.check_identity(home, IDENTITY), CampaignError)
        report = check(home)
        msgspec.json.encode(report.to_json())
        if not report.damaged:
            _inspected(home)
    finally:
        path.write_bytes(whole)


_SIGN: dict[str, object] = {
    "host": "h", "machine": THIS_MACHINE.identity, "pid": 1, "process_started": None, "time": 1.0, "token": "t",
}  # fmt: skip


@fuzz
@given(content=mutations(msgspec.json.encode(_SIGN), [b"[", b"{"]))
def test_signs_of_life_of_any_bytes(home: Path, content: bytes) -> None:
    if not state_of(home).open:
        joined(home)
    (launch,) = state_of(home).open
    path = alive_path(home, launch)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    reads(lambda: str(living(home)), CampaignError)
    str(check(home))


# Exports ----------------------------------------------------------------------------------------------------------


@fuzz
@given(
    params=st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=6), _scalars, max_size=4
    ),
    metrics=st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=6), _scalars, max_size=4
    ),
    error=st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    suffix=st.sampled_from([".csv", ".json", ".parquet"]),
)
@example(params={}, metrics={"a\0b": None}, error="no\0 end", suffix=".csv")
def test_exports_of_any_values(
    home: Path, params: dict[str, object], metrics: dict[str, object], error: str | None, suffix: str
) -> None:
    lines = _lines()
    lines[2]["params"] = lines[3]["params"] = params
    lines[3] |= {"metrics": metrics, "error": error}
    path = journal_path(home, launch=1, island=0, worker=0)
    path.write_bytes(b"".join(map(journals.line, lines)))
    table = home.parent / f"table{suffix}"
    # The individual and the known point.
    assert reads(lambda: results.export(home, table), CampaignError) == 2 and table.stat().st_size
