"""What is damaged is found, what is whole is kept, nothing is deleted, and the campaign goes on afterwards."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hpo
from hpo import cli
from hpo.errors import CampaignError
from hpo.journal import directory
from hpo.journal import records as journal
from hpo.journal.check import check
from hpo.journal.findings import DAMAGE, LOST, NOTE, Report
from hpo.journal.repair import repair
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
    run(path, EVALUATIONS)
    last = journal_of(path, 2)
    lines = last.read_bytes().splitlines(keepends=True)
    ended = [line for line in lines if b'"type":"ended"' not in line]
    final = next(journal.decode(line) for line in reversed(lines) if b'"type":"finished"' in line)
    begun = {name: final[name] for name in ("island", "worker", "operator", "parents", "retries")}
    begun |= {
        "id": "0-0-99",
        "sequence": 99,
        "params": {"x": 0.5, "n": 3, "kind": "b"},
        "time": final["finished"],
    }
    last.write_bytes(b"".join([*ended, journal.encode({"type": "started", **begun})]))
    return path


@pytest.fixture
def home(original: Path, tmp_path: Path) -> Path:
    shutil.copytree(original, tmp_path / "run")
    return tmp_path / "run"


def journal_of(path: Path, leg: int = 1) -> Path:
    return journal.journal_path(path, leg=leg, island=0, worker=0)


def finals(path: Path) -> Finals:
    """What is on record of the individuals that are finished, each of them once."""
    return {
        one.id: (one.status, one.objectives, one.params, one.started, one.finished)
        for one in load(path).individuals
        if one.finished is not None
    }


def whole_lines(path: Path) -> list[bytes]:
    found = []
    for line in path.read_bytes().splitlines(keepends=True):
        try:
            journal.decode(line)
        except ValueError:
            continue
        found.append(line)
    return found


def kept(path: Path) -> list[Path]:
    return sorted((path / "damaged").glob("*")) if (path / "damaged").exists() else []


def files(path: Path) -> dict[str, bytes]:
    return {str(one.relative_to(path)): one.read_bytes() for one in path.rglob("*") if one.is_file()}


def damages(report: Report) -> str:
    return "\n".join(map(str, report.damaged))


def repaired(path: Path) -> Report:
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
    assert (report.exit_code, report.journals, report.legs, report.lock) == (0, 2, 2, "free")
    assert (report.finished, report.unfinished, report.findings) == (EVALUATIONS, ["0-0-99"], [])
    assert "which will go on: 0-0-99" in str(report) and "Nothing is damaged" in str(report)
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
    assert "journal/0001-i000-w0000.jsonl, line 3, bytes" in out and f"hpo check {home} --repair" in out
    assert cli.main(["check", str(home), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert not told["ok"] and told["repairable"] and told["findings"][0]["lines"] == [3, 3]
    assert cli.main(["check", str(home), "--repair"]) == 0
    out = capsys.readouterr().out
    assert "lost " in out and "done " in out and ".damaged-1" in out and "not on record any more" in out
    assert cli.main(["check", str(home)]) == 0
    assert cli.main(["check", str(home / "nowhere")]) == 1
    err = capsys.readouterr().err
    assert err.startswith("hpo: ") and "holds no campaign" in err and not (home / "nowhere").exists()


def test_strays_are_named_and_left_alone(home: Path) -> None:
    for name in ("journal/.nfs0001", "journal/0001-i000-w0000.jsonl~", "table.csv"):
        (home / name).write_text("something")
    before = files(home)
    report = check(home)
    assert report.exit_code == 0
    assert {one.file for one in report.findings} == {
        "journal/.nfs0001",
        "journal/0001-i000-w0000.jsonl~",
        "table.csv",
    }
    repair(home)
    assert files(home) == before


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
    assert path.read_bytes() == whole[:-1] and not kept(home)
    goes_on(home)


@pytest.mark.parametrize("length", [0, 1, 40])
def test_a_header_that_was_cut_off_does_no_harm(home: Path, length: int) -> None:
    journal_of(home, 2).write_bytes(journal_of(home, 2).read_bytes()[:length])
    assert repair(home).repaired == []
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
    assert "--repair" in str(first) and first.exit_code == 1
    (aside,) = kept(home)
    assert aside.name == f"{path.name}.damaged-1" and aside.read_bytes() == content
    now = path.read_bytes().splitlines(keepends=True)
    assert journal.decode(now[0])["type"] == "header"
    assert [line for line in lines if b'"type":"header"' not in line] == [
        line for line in now[1:] if line in lines
    ]


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
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


@pytest.mark.parametrize("seed", range(3))
def test_after_flipped_bytes_it_goes_on(home: Path, seed: int) -> None:
    rng = random.Random(seed)
    path = journal_of(home)
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content) // 2)] ^= 0x10
    spoilt(home, path, bytes(content))
    goes_on(home)


@pytest.mark.parametrize(("start", "size"), [(0, 512), (512, 512), (600, 1000), (1024, 4096)])
def test_blocks_lost_in_a_power_cut(home: Path, start: int, size: int) -> None:
    path = journal_of(home)
    content = path.read_bytes()
    size = min(size, len(content) - start - 100)
    spoilt(home, path, content[:start] + bytes(size) + content[start + size :])
    goes_on(home)


def test_a_lost_newline_costs_no_record(home: Path) -> None:
    path = journal_of(home)
    before = finals(home)
    content = path.read_bytes()
    lines = content.splitlines()
    path.write_bytes(b"\n".join(lines[:3]) + b"\0" + b"\n".join(lines[3:]) + b"\n")
    assert check(home).exit_code == 1
    repaired(home)
    assert path.read_bytes() == content and finals(home) == before


@pytest.mark.parametrize("how", ["gone", "garbage", "zeros"])
def test_a_header_is_made_anew_from_the_name(home: Path, how: str) -> None:
    path = journal_of(home, 2)
    before = finals(home)
    head, rest = path.read_bytes().split(b"\n", 1)
    path.write_bytes(
        {"gone": b"", "garbage": b"#" * 50 + b"\n", "zeros": bytes(len(head)) + b"\n"}[how] + rest
    )
    assert "header" in damages(check(home))
    assert "header made anew" in str(repaired(home))
    made = next(journal.read_file(path))
    assert (made["leg"], made["island"], made["worker"], made["host"]) == (2, 0, 0, "unknown")
    assert path.read_bytes().split(b"\n", 1)[1] == rest
    assert finals(home) == before
    record = load(home)
    assert record.legs[1].started <= record.legs[1].updated < record.legs[1].started + 60
    goes_on(home)


@pytest.mark.parametrize("content", [b"a table\nof something\n", bytes(5000), os.urandom(3000), b"{}\n" * 10])
def test_a_foreign_file_of_a_journals_name(home: Path, content: bytes) -> None:
    before = finals(home)
    path = journal.journal_path(home, leg=2, island=7, worker=1)
    path.write_bytes(content)
    report = repaired(home)
    assert (report.repaired == []) == (b"\n" not in content)
    assert not kept(home) or kept(home)[0].read_bytes() == content
    assert finals(home) == before
    goes_on(home)


def test_another_version_is_left_alone(home: Path) -> None:
    path = journal_of(home, 2)
    head = journal.decode(path.read_bytes().splitlines(keepends=True)[0])
    path.write_bytes(journal.encode({**head, "version": 2}))
    before = files(home)
    report = repair(home)
    assert report.exit_code == 1 and "version 2 of the journal's format" in damages(report)
    assert report.repaired == [] and files(home) == before


def test_records_that_are_whole_and_make_no_sense(home: Path) -> None:
    path = journal_of(home)
    lines = path.read_bytes().splitlines(keepends=True)
    good = next(journal.decode(line) for line in lines if b'"finished"' in line)
    strange: list[dict[str, object]] = [
        {**good, "id": "../../elsewhere"},
        {**good, "id": "0-0-77"},
        {**good, "objectives": {"value": "best"}},
        {**good, "params": [1]},
        {name: value for name, value in good.items() if name != "operator"},
        {"type": 3},
    ]
    path.write_bytes(b"".join([*lines, *map(journal.encode, strange), journal.encode({"type": "news"})]))
    before = finals_of(lines)
    report = check(home)
    assert report.damaged[0].lines == (len(lines) + 1, len(lines) + len(strange))
    repaired(home)
    assert path.read_bytes() == b"".join([*lines, journal.encode({"type": "news"})])
    assert finals_of(path.read_bytes().splitlines(keepends=True)) == before


@pytest.mark.parametrize(
    ("params", "rule"),
    [
        ({"x": 7.0, "n": 3, "kind": "b"}, "x = 7.0: must be a number from -5.0 to 5.0"),
        ({"x": "rm", "n": 3, "kind": "b"}, "x = 'rm': must be a number"),
        ({"x": 0.5, "n": 3.5, "kind": "b"}, "n = 3.5: must be a whole number"),
        ({"x": 0.5, "n": True, "kind": "b"}, "n = True: must be a whole number"),
        ({"x": 0.5, "n": 3, "kind": "c"}, "kind = 'c': must be one of"),
        ({"x": 0.5, "n": 3}, "kind is missing"),
        ({"x": 0.5, "n": 3, "kind": "b", "z": 1}, "'z' is no parameter"),
        ({"x": 0.5, "n": 3, "kind": ["b"]}, "a parameter or a parent is no single value"),
    ],
)
@pytest.mark.parametrize("kind", ["started", "finished"])
def test_parameters_that_do_not_fit_the_space_reach_no_task(
    home: Path, kind: str, params: dict[str, object], rule: str
) -> None:
    path = journal_of(home, 2)
    lines = path.read_bytes().splitlines(keepends=True)
    place = next(
        number for number in reversed(range(len(lines))) if journal.decode(lines[number])["type"] == kind
    )
    lines[place] = journal.encode({**journal.decode(lines[place]), "params": params})
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


def finals_of(lines: list[bytes]) -> set[str]:
    return {journal.decode(line)["id"] for line in lines if b'"type":"finished"' in line}


# Whose journal is it ----------------------------------------------------------------------------------------------


def test_journals_of_a_campaign_with_another_space(home: Path, tmp_path: Path) -> None:
    before = finals(home)
    other = hpo.Task(hpo.SearchSpace(x=hpo.Float(-5.0, 5.0), y=hpo.Float(0.0, 1.0)), lambda trial: 0.0)
    run(tmp_path / "other", 5, task=other)
    path = journal_of(home, 3)
    shutil.copy(journal_of(tmp_path / "other"), path)  # its header is that of leg 1
    content = path.read_bytes()
    assert "y is no parameter of this campaign" in damages(check(home))
    assert "of another campaign, moved to" in str(repaired(home))
    assert not path.exists() and kept(home)[0].read_bytes() == content
    assert finals(home) == before
    goes_on(home)


def mixed(home: Path, other: Path) -> Path:
    """Put the second leg's journal of ``other`` into ``home``, with a header that fits."""
    run(other, 4, seed=5)
    lines = journal_of(other).read_bytes().splitlines(keepends=True)
    path = journal_of(home, 3)
    path.write_bytes(journal.encode({**journal.decode(lines[0]), "leg": 3}) + b"".join(lines[1:]))
    return path


def test_journals_of_a_campaign_like_it(home: Path, tmp_path: Path) -> None:
    before = finals(home)
    path = mixed(home, tmp_path / "other")
    report = repair(home)
    assert report.exit_code == 1 and "journals of two campaigns are mixed" in damages(report)
    assert "Move those that do not belong here" in damages(report)
    after = finals(home)
    assert {name: after[name] for name in before} == before
    path.rename(tmp_path / "moved")
    assert check(home).exit_code == 0
    goes_on(home)


def test_journals_from_before_the_campaign(home: Path, tmp_path: Path) -> None:
    before = finals(home)
    path = mixed(home, tmp_path / "other")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(journal.encode({**journal.decode(lines[0]), "time": 1e9}) + b"".join(lines[1:]))
    assert "begun before this campaign" in damages(check(home))
    repaired(home)
    assert not path.exists() and finals(home) == before
    goes_on(home)


def test_a_journal_that_was_renamed_gets_its_name_again(home: Path) -> None:
    before = files(home)
    journal_of(home).rename(journal_of(home, 7))
    assert "copied or renamed" in damages(check(home))
    repaired(home)
    assert {name: content for name, content in files(home).items() if "damaged" not in name} == before


def test_a_copy_of_a_journal_is_put_aside(home: Path) -> None:
    before = finals(home)
    shutil.copy(journal_of(home), journal_of(home, 3))
    report = repaired(home)
    assert (
        report.repaired is not None and "a copy" in report.repaired[0] and "0 finished" in report.repaired[0]
    )
    assert not journal_of(home, 3).exists() and finals(home) == before


def test_an_individual_that_ended_twice(home: Path) -> None:
    before = finals(home)
    path = journal_of(home, 2)
    lines = journal_of(home).read_bytes().splitlines(keepends=True)
    good = next(journal.decode(line) for line in lines if b'"finished"' in line)
    content = path.read_bytes()
    path.write_bytes(content + journal.encode(good))
    assert check(home).exit_code == 0, "it says the same twice"
    path.write_bytes(content + journal.encode({**good, "objectives": {"value": -1.0}}))
    assert "had ended otherwise" in damages(check(home))
    repaired(home)
    assert path.read_bytes() == content and finals(home) == before


def test_what_is_odd_and_no_damage(home: Path) -> None:
    path = journal_of(home)
    lines = path.read_bytes().splitlines(keepends=True)
    good = next(journal.decode(line) for line in lines if b'"finished"' in line)
    moved = {
        "type": "migrated",
        "id": "3-0-1",
        "source": 3,
        "target": 0,
        "hop": 1,
        "copy": False,
        "time": 1.0,
    }
    twin = {**good, "id": "0-0-50", "sequence": 50}
    path.write_bytes(b"".join([*lines, journal.encode(moved), journal.encode(twin)]))
    journal_of(home, 2).rename(home / "journal" / "0002")
    journal.JournalWriter(journal_of(home, 3), journal.header(leg=3, island=0, worker=0)).close()
    report = check(home)
    text = str(report)
    assert report.exit_code == 0
    assert "3-0-1 migrated" in text and "launch 2 has no journal" in text
    assert "1 configuration belongs to more than one individual" in text and "is not on record" in text


# campaign.json and lock -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:40]), "not valid JSON"),
        (lambda path: path.unlink(), "holds no campaign"),
        (
            lambda path: path.write_bytes(path.read_bytes().replace(b'"version": 1', b'"version": 9')),
            "version 9",
        ),
        (lambda path: path.write_bytes(b'{"version": 1, "objectives": [3]}'), "describes no campaign"),
        (lambda path: path.write_text(path.read_text().replace('"value"', '"score"')), "no journal fits it"),
        (lambda path: path.write_text(path.read_text().replace('"x"', '"z"')), "no journal fits it"),
    ],
)
def test_campaign_json(home: Path, spoil: Callable[[Path], object], words: str) -> None:
    whole = (home / "campaign.json").read_bytes()
    spoil(home / "campaign.json")
    report = repair(home)
    assert report.exit_code == 1 and report.damaged[0].file == "campaign.json" and words in damages(report)
    assert report.repaired == []
    (home / "campaign.json").write_bytes(whole)
    goes_on(home)


@pytest.fixture
def damaged(home: Path) -> Iterator[Path]:
    path = journal_of(home)
    path.write_bytes(path.read_bytes().replace(b'"finished"', b'"finishes"', 1))
    return home


def test_nothing_is_repaired_while_somebody_is_at_work(damaged: Path) -> None:
    lock = directory.acquire(damaged)
    before = files(damaged)
    assert check(damaged).lock == "live" and "at work" in str(check(damaged))
    with pytest.raises(CampaignError, match="is in use by process"):
        repair(damaged)
    assert files(damaged) == before
    lock.release()
    repaired(damaged)


@pytest.mark.parametrize("fields", [{"pid": 2**22 + 1}, {"machine": "elsewhere"}])
def test_a_stale_lock_is_not_in_the_way(damaged: Path, fields: dict[str, object]) -> None:
    directory.acquire(damaged)
    path = damaged / "lock"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    os.utime(path, (0, 0))
    report = check(damaged)
    assert report.lock == "stale" and "stale and not in the way" in str(report)
    repaired(damaged)
    goes_on(damaged)


# A repair that is cut off -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("links", [True, False])
def test_a_repair_that_was_cut_off_is_repeated(
    damaged: Path, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = journal_of(damaged).read_bytes()
    if not links:

        def refuse(*paths: object) -> None:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(os, "link", refuse)

    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(directory, "write_atomically", full)
        with pytest.raises(CampaignError, match=r"cannot be repaired \(No space left on device\)"):
            repair(damaged)
    assert journal_of(damaged).read_bytes() == content
    assert check(damaged).lock == "free"
    report = repaired(damaged)
    (aside,) = kept(damaged)
    assert aside.read_bytes() == content and [one.kind for one in report.findings] == [LOST]
    assert DAMAGE not in [one.kind for one in report.findings]
    goes_on(damaged)


def test_each_damaged_state_is_kept(damaged: Path) -> None:
    repaired(damaged)
    path = journal_of(damaged)
    path.write_bytes(path.read_bytes().replace(b'"finished"', b'"finishes"', 1))
    repair(damaged)
    assert [one.name for one in kept(damaged)] == [f"{path.name}.damaged-{number}" for number in (1, 2)]


def test_a_large_hostile_line_costs_neither_time_nor_memory(home: Path) -> None:
    path = journal_of(home)
    path.write_bytes(path.read_bytes() + b'{"type":"' * 100_000 + b',"crc":"00000000"}' * 100_000 + b"\n\n")
    spoilt(home, path, path.read_bytes())
