"""What is damaged is found, what is whole is kept, nothing is deleted, and the campaign goes on afterwards."""

from __future__ import annotations

import io
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import journals
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from individuals import make_started
from living import at_work, elsewhere

import hpo
from hpo import cli
from hpo.errors import CampaignError
from hpo.journal.files import journal_path, read_file
from hpo.journal.records import Header, decode, encode
from hpo.ledger import inspection
from hpo.ledger.inspection import LOST, NOTE, Inspection, check, repair
from hpo.results.record import CampaignRecord, load

EVALUATIONS = 12
SPACE = hpo.SearchSpace(x=hpo.Float(-5.0, 5.0), n=hpo.Int(1, 8), kind=hpo.Categorical("a", "b"))
TASK = hpo.Task(SPACE, lambda trial: (trial.params["x"] - 1.0) ** 2, default={"x": 0.0, "n": 2, "kind": "a"})

Finals = dict[str, tuple[object, ...]]


@pytest.fixture(autouse=True)
def no_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No power is cut here, and disks are slow."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def run(path: Path, evaluations: int, seed: int = 0, task: hpo.Task = TASK) -> CampaignRecord:
    campaign = hpo.Campaign(
        task, directory=path, evaluations=evaluations, seed=seed, isolation="inline", kind="random"
    )
    return campaign.run().record


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A campaign of two launches; the second was killed in the midst of an evaluation."""
    path = tmp_path_factory.mktemp("original") / "run"
    run(path, EVALUATIONS // 2)
    run(path, EVALUATIONS + 1)
    last = journal_of(path, 2)
    lines = last.read_bytes().splitlines(keepends=True)
    ends = [number for number, line in enumerate(lines) if b'"type":"finished"' in line]
    begun = make_started(
        id="0-1-99", params={"x": 0.5, "n": 3, "kind": "b"}, operator="random", time=time.time()
    )
    last.write_bytes(b"".join([*lines[: ends[-1]], encode(begun)]))
    sorted((path / "ledger").iterdir())[-1].unlink()
    return path


@pytest.fixture
def home(original: Path, tmp_path: Path) -> Path:
    shutil.copytree(original, tmp_path / "run")
    return tmp_path / "run"


def journal_of(path: Path, launch: int = 1) -> Path:
    return journal_path(path, launch=launch, island=0, worker=launch - 1)


def table(line: bytes) -> dict[str, Any]:
    """What a line says, without its checksum."""
    read: dict[str, Any] = json.loads(line)
    del read["crc"]
    return read


def finals(path: Path) -> Finals:
    """What is on record of the individuals that are finished, each of them once."""
    return {
        one.id: (one.status, one.objectives, one.params, one.started, one.finished)
        for one in load(path).individuals
        if one.finished is not None
    }


def lines_of(path: Path) -> list[bytes]:
    """Lines as they are read: they end by a newline alone, where ``bytes.splitlines`` also knows "\\r"."""
    return list(io.BytesIO(path.read_bytes()))


def whole_lines(path: Path) -> list[bytes]:
    found = []
    for line in lines_of(path):
        try:
            decode(line)
        except ValueError:
            continue
        found.append(line)
    return found


def kept(path: Path) -> list[Path]:
    return sorted((path / "damaged").glob("*")) if (path / "damaged").exists() else []


def files(path: Path) -> dict[str, bytes]:
    """All but what launches leave that join and are refused."""
    places = ((one.relative_to(path).parts[0], one) for one in path.rglob("*") if one.is_file())
    every = (one for place, one in places if place not in ("ledger", "launches"))
    return {str(one.relative_to(path)): one.read_bytes() for one in every}


def damages(report: Inspection) -> str:
    return "\n".join(map(str, report.damaged))


def repaired(path: Path) -> Inspection:
    """``path`` after a repair that left it whole, and that a second one does not change."""
    report = repair(path)
    assert report.exit_code == 0, str(report)
    assert check(path).exit_code == 0
    before = files(path)
    second = repair(path)
    assert second.repaired == [] and "nothing was changed" in str(second)
    assert files(path) == before
    return report


def goes_on(path: Path, task: hpo.Task = TASK) -> None:
    """The campaign reaches its budget exactly, from what is there, and changes none of it."""
    before = finals(path)
    pending = set(check(path).unfinished)
    budget = len(before) + len(pending) + 3
    record = run(path, budget, task=task)
    after = finals(path)
    assert {name: after.get(name) for name in before} == before
    assert pending <= set(after) and len(after) == budget
    assert len({json.dumps(one.params) for one in record.individuals}) == len(record.individuals) == budget
    assert check(path).exit_code == 0


# Nothing wrong ----------------------------------------------------------------------------------------------------


def test_a_whole_campaign(home: Path) -> None:
    before = files(home)
    report = check(home)
    assert (report.exit_code, report.journals, report.launches, report.lock) == (0, 2, 2, "stale")
    assert (report.finished, report.unfinished, report.findings) == (EVALUATIONS, ["0-1-99"], [])
    assert "which will go on: 0-1-99" in str(report) and "Nothing is damaged" in str(report)
    assert repair(home).repaired == []
    assert files(home) == before
    goes_on(home)


def test_what_the_command_prints(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", str(home), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] and told["finished"] == EVALUATIONS and told["repaired"] is None
    path = journal_of(home)
    path.write_bytes(path.read_bytes().replace(b'"finished"', b'"finishes"', 1))
    assert cli.main(["check", str(home)]) == 1
    out = capsys.readouterr().out
    assert "journal/0001-i000-w0000.jsonl, line 3: " in out and f"hpo check {home} --repair" in out
    assert cli.main(["check", str(home), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert not told["ok"] and told["repairable"] and told["findings"][0]["lines"] == [3, 3]
    assert cli.main(["check", str(home), "--repair"]) == 0
    out = capsys.readouterr().out
    assert "lost " in out and "done " in out and ".damaged-1" in out
    assert cli.main(["check", str(home)]) == 0
    assert cli.main(["check", str(home / "nowhere")]) == 1
    err = capsys.readouterr().err
    assert err.startswith("hpo: ") and "holds no campaign" in err and not (home / "nowhere").exists()


# Damage -----------------------------------------------------------------------------------------------------------


def test_a_last_record_that_was_cut_off_anywhere_does_no_harm(home: Path) -> None:
    path = journal_of(home, 2)
    whole = path.read_bytes()
    for length in range(whole.rindex(b"\n", 0, -1) + 1, len(whole)):
        path.write_bytes(whole[:length])
        report = repair(home)
        assert report.exit_code == 0 and report.repaired == []
        cut = whole[length - 1 : length] != b"\n"
        assert [one.kind for one in report.findings] == [NOTE] * cut, str(report)
        assert not cut or "cut off" in report.findings[0].text
    for length in (0, 1, 40):  # in its header
        path.write_bytes(whole[:length])
        assert repair(home).repaired == []
    assert not kept(home)
    goes_on(home)


def spoilt(home: Path, path: Path, content: bytes) -> None:
    """Write ``content`` as the journal ``path``: whole records stay, the rest is kept aside, and it goes on."""
    path.write_bytes(content)
    lines = whole_lines(path)
    first = check(home)
    report = repaired(home)
    if first.exit_code == 0:
        assert report.repaired == [] and not kept(home)
        return
    assert first.exit_code == 1
    (aside,) = kept(home)
    assert aside.name == f"{path.name}.damaged-1" and aside.read_bytes() == content
    now = lines_of(path)
    assert isinstance(decode(now[0]), Header)
    assert [line for line in lines if b'"type":"header"' not in line] == [
        line for line in now[1:] if line in lines
    ]


@settings(suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_bytes_flipped_anywhere(
    original: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    home = tmp_path_factory.mktemp("flipped") / "run"
    shutil.copytree(original, home)
    path = journal_of(home, data.draw(st.sampled_from([1, 2])))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    spoilt(home, path, bytes(content))
    shutil.rmtree(home)


def zeros(start: int, size: int) -> Callable[[bytes], bytes]:
    return lambda content: content[:start] + bytes(size) + content[start + size :]


@pytest.mark.parametrize(
    "damage",
    [
        zeros(0, 512),
        zeros(600, 1000),  # a block, as a power cut loses it
        lambda content: (
            b"\n".join(content.splitlines()[:3]) + b"\0" + b"\n".join(content.splitlines()[3:]) + b"\n"
        ),
        # Costs neither time nor memory.
        lambda content: content + b'{"type":"' * 100_000 + b',"crc":"00000000"}' * 100_000 + b"\n\n",
    ],
    ids=["header", "block", "newline", "hostile"],
)
def test_what_is_damaged_is_kept_aside_and_the_rest_goes_on(
    home: Path, damage: Callable[[bytes], bytes]
) -> None:
    path = journal_of(home, 2)
    spoilt(home, path, damage(path.read_bytes()))
    assert kept(home)
    goes_on(home)


@pytest.mark.parametrize("how", ["gone", "garbage", "zeros"])
def test_a_header_is_made_anew_from_the_name(home: Path, how: str) -> None:
    path = journal_of(home, 2)
    before = finals(home)
    head, rest = path.read_bytes().split(b"\n", 1)
    path.write_bytes(
        {"gone": b"", "garbage": b"#" * 50 + b"\n", "zeros": bytes(len(head)) + b"\n"}[how] + rest
    )
    assert "header" in damages(check(home))
    assert "header made from its name" in str(repaired(home))
    made = next(read_file(path))
    assert isinstance(made, Header)
    assert (made.launch, made.island, made.worker, made.host) == (2, 0, 1, "")
    assert path.read_bytes().split(b"\n", 1)[1] == rest
    assert finals(home) == before
    record = load(home)
    assert record.launches[1].started <= record.launches[1].updated < record.launches[1].started + 60
    goes_on(home)


@pytest.mark.parametrize("content", [b"a table\nof something\n", bytes(5000)])
def test_a_foreign_file_of_a_journals_name(home: Path, content: bytes) -> None:
    before = finals(home)
    path = journal_path(home, launch=2, island=7, worker=1)
    path.write_bytes(content)
    report = repaired(home)
    assert (report.repaired == []) == (b"\n" not in content)
    assert not kept(home) or kept(home)[0].read_bytes() == content
    assert finals(home) == before
    goes_on(home)


def test_another_version_is_left_alone(home: Path) -> None:
    path = journal_of(home, 2)
    path.write_bytes(journals.line({**table(path.read_bytes().splitlines()[0]), "version": 2}))
    before = files(home)
    report = repair(home)
    assert report.exit_code == 1 and "version 2 of the journal's format" in damages(report)
    assert report.repaired == [] and files(home) == before


def test_records_that_are_whole_and_make_no_sense(home: Path) -> None:
    path = journal_of(home, 2)
    lines = path.read_bytes().splitlines(keepends=True)
    good = next(table(line) for line in lines if b'"finished"' in line)
    strange: list[dict[str, object]] = [
        {**good, "id": "../../elsewhere"},
        {**good, "id": "0-0-77"},
        {**good, "objectives": {"value": "best"}},
        {**good, "params": [1]},
        {name: value for name, value in good.items() if name != "operator"},
        {"type": 3},
    ]
    news = journals.line({"type": "news"})
    path.write_bytes(b"".join([*lines, *map(journals.line, strange), news]))
    assert check(home).damaged[0].lines == (len(lines) + 1, len(lines) + len(strange))
    repaired(home)
    assert path.read_bytes() == b"".join([*lines, news])


@pytest.mark.parametrize(
    ("kind", "params", "rule"),
    [
        ("started", {"x": 7.0, "n": 3, "kind": "b"}, "x = 7.0"),
        ("finished", {"x": 0.5, "n": 3}, "kind is missing"),
        ("finished", {"x": 0.5, "n": 3, "kind": ["b"]}, "kind = ('b',)"),
        ("finished", {"x": 0.5, "n": 3, "kind": {"b": 1}}, "object"),
    ],
)
def test_parameters_that_do_not_fit_the_space_reach_no_task(
    home: Path, kind: str, params: dict[str, object], rule: str
) -> None:
    path = journal_of(home, 2)
    lines = path.read_bytes().splitlines(keepends=True)
    place = next(number for number in reversed(range(len(lines))) if table(lines[number])["type"] == kind)
    lines[place] = journals.line({**table(lines[place]), "params": params})
    path.write_bytes(b"".join(lines))
    before = files(home)
    with pytest.raises(hpo.JournalDamaged) as caught:
        run(home, EVALUATIONS + 3)
    assert files(home) == before  # nothing was evaluated
    assert (caught.value.path, caught.value.line) == (path, place + 1)
    assert rule in str(caught.value) and "`hpo check DIR`" in str(caught.value)
    assert check(home).exit_code == 1
    repaired(home)
    goes_on(home)


# Whose records are they -------------------------------------------------------------------------------------------


def test_records_of_a_campaign_with_another_space(home: Path, tmp_path: Path) -> None:
    before = finals(home)
    other = hpo.Task(hpo.SearchSpace(x=hpo.Float(-5.0, 5.0), y=hpo.Float(0.0, 1.0)), lambda trial: 0.0)
    run(tmp_path / "other", 5, task=other)
    path = journal_of(home, 2)
    foreign = journal_of(tmp_path / "other").read_bytes().splitlines(keepends=True)[1:]
    content = path.read_bytes() + b"".join(foreign)
    path.write_bytes(content)
    assert "'y' is no parameter" in damages(check(home))
    repaired(home)
    assert kept(home)[0].read_bytes() == content and finals(home) == before
    goes_on(home)


def test_an_individual_that_ended_twice(home: Path) -> None:
    before = finals(home)
    path = journal_of(home, 2)
    lines = journal_of(home).read_bytes().splitlines(keepends=True)
    good = next(table(line) for line in lines if b'"finished"' in line)
    content = path.read_bytes()
    path.write_bytes(content + journals.line(good))
    assert check(home).exit_code == 0, "it says the same twice"
    path.write_bytes(content + journals.line({**good, "objectives": {"value": -1.0}}))
    assert "had ended otherwise" in damages(check(home))
    repaired(home)
    assert path.read_bytes() == content and finals(home) == before


# campaign.json and signs of life ----------------------------------------------------------------------------------


def replaced(old: str, new: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(path.read_text().replace(old, new))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(path.read_bytes()[:40]),
        Path.unlink,
        replaced('"version": 1', '"version": 9'),
        lambda path: path.write_bytes(b'{"version": 1, "objectives": [3]}'),
        replaced('"value"', '"score"'),
        replaced('"x"', '"z"'),
    ],
)
def test_campaign_json(home: Path, spoil: Callable[[Path], object]) -> None:
    whole = (home / "campaign.json").read_bytes()
    spoil(home / "campaign.json")
    report = repair(home)
    assert report.exit_code == 1 and report.damaged[0].file == "campaign.json" and report.repaired == []
    (home / "campaign.json").write_bytes(whole)
    goes_on(home)


@pytest.fixture
def damaged(home: Path) -> Iterator[Path]:
    path = journal_of(home)
    path.write_bytes(path.read_bytes().replace(b'"finished"', b'"finishes"', 1))
    return home


def test_nothing_is_repaired_while_somebody_is_at_work(damaged: Path) -> None:
    with at_work(damaged):
        before = files(damaged)
        assert check(damaged).lock == "live" and "at work" in str(check(damaged))
        with pytest.raises(CampaignError, match="is in use by process"):
            repair(damaged)
        assert files(damaged) == before
    repaired(damaged)


def test_a_launch_that_has_died_is_not_in_the_way(damaged: Path) -> None:
    elsewhere(damaged, age_s=3600)
    report = check(damaged)
    assert report.lock == "stale" and "on n17 since" in str(report) and "has died" in str(report)
    repaired(damaged)
    goes_on(damaged)


# A repair that is cut off -----------------------------------------------------------------------------------------


def test_a_repair_that_was_cut_off_is_repeated(damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = journal_of(damaged).read_bytes()

    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(inspection, "write_atomically", full)
        with pytest.raises(CampaignError, match=r"cannot be repaired \(No space left on device\)"):
            repair(damaged)
    assert journal_of(damaged).read_bytes() == content
    report = repaired(damaged)
    (aside,) = kept(damaged)
    assert aside.read_bytes() == content and [one.kind for one in report.findings] == [LOST]
    goes_on(damaged)
    path = journal_of(damaged)  # each damaged state is kept
    path.write_bytes(path.read_bytes().replace(b'"finished"', b'"finishes"', 1))
    repair(damaged)
    assert [one.name for one in kept(damaged)] == [f"{path.name}.damaged-{number}" for number in (1, 2)]
