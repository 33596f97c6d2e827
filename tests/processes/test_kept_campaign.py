"""A campaign directory that an earlier version wrote is read and gone on with (see ``golden/campaign/README.txt``)."""

from __future__ import annotations

import csv
import shutil
from collections import Counter
from pathlib import Path

import pytest
from places import GOLDEN
from terminal import Terminal

import hpo
from hpo.journal.records import decode, encode

KEPT = GOLDEN / "campaign"
ENDS = {"completed": 15, "pruned": 48, "failed": 5, "invalid": 5, "crashed": 3, "interrupted": 1}


@pytest.fixture
def kept(terminal: Terminal) -> Terminal:
    """The campaign in the terminal's directory."""
    shutil.copytree(KEPT, terminal.directory, dirs_exist_ok=True)
    # A cache of versions before 0.1, which nothing reads.
    (terminal.directory / "run/journal/snapshot").write_bytes(bytes(32) + b"folded journals")
    return terminal


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_its_records_are_written_as_they_were() -> None:
    lines = [line for path in (KEPT / "run/journal").iterdir() for line in path.read_bytes().splitlines(True)]
    assert len(lines) == 289
    for line in lines:
        record = decode(line)
        assert record is not None and encode(record) == line


def test_its_table_is_what_it_was(kept: Terminal) -> None:
    kept.hpo("export", "run", "again.csv", returns=0)
    before, now = rows(KEPT / "exported.csv"), rows(kept.directory / "again.csv")
    assert [{name: row[name] for name in before[0]} for row in now] == before


def test_its_status_and_its_best_are_what_they_were(kept: Terminal) -> None:
    status = kept.status()
    counts = {name: count for name, count in status["evaluations"].items() if count}  # type: ignore[union-attr]
    assert counts == ENDS and status["running"] == 0
    assert status["budget"] == {"evaluations": 200, "deadline": None, "rank_hours": None}
    assert status["best"]["id"] == "0-0-16"  # type: ignore[index]
    assert (status["islands"], status["workers"]) == (2, 2)
    assert kept.hpo("check", "run").returncode == 0
    assert "momentum" in kept.hpo("best", "run").stdout


@pytest.mark.parametrize("ranks", [1, 2])
def test_it_goes_on_to_its_budget(ranks: int, kept: Terminal) -> None:
    if ranks == 1:
        text = (kept.directory / "kept.toml").read_text()
        kept.write("kept.toml", text.replace("islands = 2", "islands = 1"))
    before = {one.id: one for one in hpo.Result(kept.directory / "run").individuals}
    kept.hpo("run", "kept.toml", "--ranks", ranks, returns=0)
    after = {one.id: one for one in hpo.Result(kept.directory / "run").individuals}
    assert len(after) == 100 and before.keys() <= after.keys()
    counts = Counter(one.status for one in after.values())
    assert counts["interrupted"] == counts["lost"] == 0
    assert after["1-0-40"].status in ("completed", "pruned"), "the interrupted one went on"
    for identity, one in before.items():
        if one.status not in ("pruned", "interrupted"):  # a paused one may be promoted
            assert after[identity] == one
    keys = Counter(str(sorted(one.params.items())) for one in after.values())
    assert max(keys.values()) == 1, "a configuration was evaluated twice"
