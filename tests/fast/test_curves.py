"""Learning curves: what is reported is on disk and read as one curve an individual, whatever happened in between."""

from __future__ import annotations

import math
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from individuals import make_job

from hpo.errors import UsageError
from hpo.evaluation.recording import Recording
from hpo.individual import COMPLETED
from hpo.journal.curves import (
    CurveFile,
    CurveWriter,
    Point,
    curve_files,
    curve_path,
    decode,
    encode,
    read_from,
    read_rows,
)
from hpo.results.curves import Curves, load
from hpo.task.outcome import TaskOutcome
from hpo.task.trial import Trial

NUMBERS = st.floats() | st.integers(-(2**63), 2**63 - 1)
POINTS = st.builds(
    Point,
    id=st.sampled_from(["0-0-0", "0-0-1", "11-2-345"]),
    step=st.integers(-(2**53), 2**53),
    value=st.floats(),
    time=st.floats(0, 1e12),
    began=st.floats(0, 1e12),
    resumed=st.booleans(),
    metrics=st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
        st.none() | st.booleans() | NUMBERS | st.lists(NUMBERS, max_size=3) | st.just("text\n"),
        max_size=3,
    ),
)


def written(directory: Path, worker: int = 0, launch: int = 1) -> Path:
    return curve_path(directory, launch=launch, island=0, worker=worker)


def points(path: Path) -> list[Point]:
    return [row for row in read_rows(path) if isinstance(row, Point)]


@given(POINTS)
def test_a_row_is_read_as_it_was_written(point: Point) -> None:
    line = encode(point)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert repr(decode(line)) == repr(point)  # NaN is not equal to itself


def test_whatever_a_file_was_cut_to_whole_rows_are_read_and_later_ones_follow(tmp_path: Path) -> None:
    """At every byte; what a follower has read before does not come again."""
    path = written(tmp_path)
    writer = CurveWriter(path, 0.0)
    writer.begin("0-0-0", resumed=False)
    for step in range(3):
        writer.add(step, 0.5, {"loss": math.nan})
    writer.close()
    whole = path.read_bytes()
    ends = [0, *(number + 1 for number, byte in enumerate(whole) if byte == ord("\n"))]
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        rows, offset = read_from(path, 0)
        assert len(rows) == sum(0 < end <= size for end in ends)
        assert offset == max(end for end in ends if end <= size)
        later = CurveWriter(path, 0.0)
        later.begin("0-0-1", resumed=False)
        later.add(7, 1.0, {})
        later.close()
        more, end = read_from(path, offset)
        # The torn line may be whole but for its newline.
        assert [row.id for row in more if isinstance(row, Point)][-1] == "0-0-1" and len(more) <= 2
        assert end == path.stat().st_size and read_from(path, end) == ([], end)


@given(st.data())
def test_damage_costs_the_lines_that_it_hits(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("damage") / "0001-i000-w0000.jsonl"
    lines = [encode(Point(id=f"0-0-{number}", step=1, value=0.5, time=1.0, began=1.0)) for number in range(5)]
    hit = data.draw(st.integers(0, 4))
    place = data.draw(st.integers(0, len(lines[hit]) - 2))
    byte = data.draw(st.integers(0, 255).filter(lambda byte: byte not in (lines[hit][place], 10, 13)))
    lines[hit] = lines[hit][:place] + bytes([byte]) + lines[hit][place + 1 :]
    path.write_bytes(b"".join(lines))
    assert [point.id for point in points(path)] == [f"0-0-{n}" for n in range(5) if n != hit]


def test_the_first_reports_one_an_interval_and_the_last_are_kept(tmp_path: Path) -> None:
    now = [0.0]
    path = written(tmp_path)
    writer = CurveWriter(path, 1.0, clock=lambda: now[0])
    for attempt in range(2):
        writer.begin("0-0-0", resumed=False)
        for step in range(77):
            now[0] += 0.125
            writer.add(step, float(attempt), {})
        assert writer.finish() is None
    steps = [point.step for point in points(path)]
    assert steps == [*range(50), 57, 65, 73, 76] * 2


@pytest.mark.parametrize("maximize", [True, False])
def test_a_short_training_keeps_its_best_report(tmp_path: Path, maximize: bool) -> None:
    path = written(tmp_path)
    writer = CurveWriter(path, 1.0, clock=lambda: 0.0, maximize=maximize)
    writer.begin("0-0-0", resumed=False)
    for step in range(500):
        writer.add(step, {300: 1.0, 200: -1.0}.get(step, 0.0), {})
    writer.finish()
    assert [point.step for point in points(path)] == [*range(50), 300 if maximize else 200, 499]


# --- one curve of several attempts ------------------------------------------------------------------------------------


ATTEMPTS = st.lists(
    st.tuples(st.booleans(), st.lists(st.integers(0, 6), min_size=1, max_size=6), st.integers(1, 3)),
    min_size=1,
    max_size=5,
)


def curve_of(attempts: list[tuple[bool, list[int], int]]) -> dict[int, float]:
    """By step the value that counts; that of an attempt is its number."""
    found: dict[int, float] = {}
    for number, (resumed, steps, _) in enumerate(attempts):
        found = {step: value for step, value in found.items() if resumed and step < steps[0]}
        found |= dict.fromkeys(steps, float(number))
    return dict(sorted(found.items()))


@given(ATTEMPTS, st.randoms())
def test_one_curve_is_made_of_all_attempts(attempts, random):
    """In whatever order the files of launches and workers are read."""
    attempts.sort(key=lambda one: one[2])
    files = []
    for number, (resumed, steps, launch) in enumerate(attempts):
        same = {"value": number, "time": number, "began": number, "metrics": {"m": number}}
        files.append((launch, [Point(id="0-0-0", step=step, resumed=resumed, **same) for step in steps]))
    random.shuffle(files)
    curves = Curves()
    for launch, rows in files:
        curves.add(launch, rows)
    frame = curves.frame()
    assert dict(zip(frame["step"], frame["value"], strict=True)) == curve_of(attempts)
    assert list(frame["m"]) == list(frame["value"])


def test_the_table_has_a_column_a_metric(tmp_path: Path) -> None:
    one, two = CurveWriter(written(tmp_path), 0.0), CurveWriter(written(tmp_path, worker=1), 0.0)
    one.begin("0-0-0", resumed=False)
    two.begin("0-1-0", resumed=False)
    one.add(2, math.inf, {"loss": 1, "flag": True})
    two.add(1, 0.5, {"loss": 0.25, "note": "x"})
    one.add(1, 1.5, {"list": [1, 2.5]})
    frame = load(tmp_path)
    assert list(frame) == ["id", "step", "value", "time", "loss", "flag", "list", "note"]
    assert list(frame["id"]) == ["0-0-0", "0-0-0", "0-1-0"] and list(frame["step"]) == [1, 2, 1]
    assert list(frame["value"]) == [1.5, math.inf, 0.5]
    assert frame["loss"].isna().tolist() == [True, False, False] and list(frame["loss"])[1:] == [1.0, 0.25]
    assert frame["list"][0] == [1, 2.5] and frame["flag"][1] is True and frame["note"][2] == "x"


# --- what is not ours, and what does not work -------------------------------------------------------------------------


def test_links_and_foreign_files_are_left_alone(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    line = encode(Point(id="0-0-0", step=1, value=0.5, time=1.0, began=1.0))
    (elsewhere / "0001-i000-w0000.jsonl").write_bytes(line)
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "curves").symlink_to(elsewhere)
    assert curve_files(linked) == [] and load(linked).empty

    ours = tmp_path / "ours"
    (ours / "curves").mkdir(parents=True)
    written(ours).symlink_to(elsewhere / "0001-i000-w0000.jsonl")
    os.mkfifo(written(ours, worker=1))
    written(ours, worker=2).mkdir()
    (ours / "curves" / "notes.txt").write_text("mine")
    written(ours, worker=3).write_bytes(b"no row\n" + b'{"type":"point","id":"../../x"}\n' + line)
    assert list(load(ours)["id"]) == ["0-0-0"]

    before = (elsewhere / "0001-i000-w0000.jsonl").read_bytes()
    for path in (written(linked), written(linked, worker=1), *(written(ours, worker=n) for n in range(3))):
        writer = CurveWriter(path, 0.0)
        writer.begin("0-0-0", resumed=False)
        writer.add(1, 1.0, {})
        assert str(path.parent.name) in (writer.finish() or "")
    assert (elsewhere / "0001-i000-w0000.jsonl").read_bytes() == before
    assert [entry.name for entry in elsewhere.iterdir()] == ["0001-i000-w0000.jsonl"]


def test_a_failing_disk_costs_rows_and_is_tried_again(tmp_path: Path) -> None:
    now = [0.0]
    path = written(tmp_path / "gone")
    writer = CurveWriter(path, 0.0, clock=lambda: now[0])
    writer.begin("0-0-0", resumed=False)
    writer.add(1, 1.0, {})
    path.parent.parent.mkdir()
    now[0] = 59.0
    writer.add(2, 1.0, {})
    assert not path.exists()
    now[0] = 61.0
    writer.add(3, 1.0, {})
    assert "No such file" in (writer.finish() or "")
    assert [point.step for point in points(path)] == [3]
    writer.begin("0-0-1", resumed=False)
    writer.add(1, 1.0, {})
    assert writer.finish() is None, "it is said once"


def test_an_evaluation_whose_curve_cannot_be_written_completes(tmp_path: Path) -> None:
    recording = Recording(CurveFile(path=str(written(tmp_path / "gone")), every_s=0.0))
    job = make_job(id="0-0-0", params={}, seed=0, directory=str(tmp_path))
    recording.begin(job)
    trial_of(recording.curve).report(1, 0.5)
    outcome = recording.finish(TaskOutcome(status=COMPLETED, objectives={"value": 1.0}))
    assert outcome.status == COMPLETED and "No such file" in "".join(outcome.remarks.values())


# --- trials -----------------------------------------------------------------------------------------------------------


def trial_of(curve: object) -> Trial:
    link = SimpleNamespace(device="cpu", comm=None, report=lambda *report: False)
    return Trial(link, make_job(id="0-0-0", params={}, seed=0, directory="."), curve=curve)


class Kept(list[Any]):
    """A curve that remembers."""

    def add(self, *row: object) -> None:
        self.append(row)


@pytest.mark.parametrize("name", ["id", "time"])
def test_names_of_columns_are_no_metrics(name: str) -> None:
    curve = Kept()
    with pytest.raises(UsageError, match=rf"{name} = 3"):
        trial_of(curve).report(1, 0.5, **{name: 3})  # type: ignore[arg-type]
    trial_of(curve).report(step=1, value=0.5, loss=1)
    assert len(curve) == 1


def test_all_metrics_are_reported_but_strange_values_and_names_of_columns() -> None:
    curve = Kept()
    trial = trial_of(curve)
    trial.report(0, 0.5, odd=object(), loss=2, self=1, trial=2, report=3)
    assert curve.pop() == (0, 0.5, {"loss": 2, "self": 1, "trial": 2, "report": 3})
    assert "odd" in trial.remarks and trial.metrics == {}
    trial = trial_of(curve)
    report = trial.training(value="value")["report"]
    report(1, {"value": 0.5, "loss": 2.0, "time": 3.0})
    assert curve == [(1, 0.5, {"loss": 2.0})]
    assert list(trial.remarks) == ["time"]
