"""Metrics that a task logs are kept as they are, from the evaluator to the tables; or a remark says that not."""

from __future__ import annotations

import json
import math
from enum import IntEnum
from fractions import Fraction
from pathlib import Path

import journals
import numpy as np
import pandas
import pytest
import torch
from terminal import Terminal

import hpo
from hpo.evaluation.conversation import EvaluationOver, answer_of, to_line
from hpo.individual import Metric
from hpo.journal.files import journal_path
from hpo.ledger.inspection import check
from hpo.results import result as results
from hpo.results.record import load
from hpo.task.metrics import MOST_CHARACTERS, MOST_NUMBERS, keep
from hpo.task.outcome import judge
from hpo.task.trial import Trial, attempt


class Level(IntEnum):
    HIGH = 3


def kept(value: object) -> tuple[Metric | str, str]:
    """What is kept of ``value``, "nothing" where that is so; and what is said of it."""
    metrics: dict[str, Metric] = {"m": "what was there before"}
    remarks: dict[str, str] = {}
    keep("m", value, metrics, remarks)
    return metrics.get("m", "nothing"), remarks.get("m", "")


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (None, None), (True, True), (np.bool_(False), False), (torch.tensor(True), True),
        (3, 3), (np.int64(7), 7), (Level.HIGH, 3), (2**70, 2.0**70), (torch.tensor(5), 5),
        (0.1, 0.1), (np.float32(0.5), 0.5), (np.array(0.5), 0.5), (torch.tensor(0.5, requires_grad=True), 0.5),
        (Fraction(1, 2), 0.5), (np.array([[0.5]]), 0.5),
        ("text", "text"), (np.str_("text"), "text"), ("\ud800", "\\ud800"),
        ("x" * MOST_CHARACTERS, "x" * MOST_CHARACTERS),
        ([], []), ([1, 2.5], [1, 2.5]), ((1, 2), [1, 2]), ([np.float64(1), np.int8(2), Level.HIGH], [1.0, 2, 3]),
        ([torch.tensor(0.5), np.array(2)], [0.5, 2]),
        (np.arange(3), [0, 1, 2]), (np.array([0.5]), [0.5]), (torch.ones(2, dtype=torch.bfloat16), [1.0, 1.0]),
        (torch.ones(2, requires_grad=True), [1.0, 1.0]), (pandas.Series([1.5, 2.5]), [1.5, 2.5]),
        (list(range(MOST_NUMBERS)), list(range(MOST_NUMBERS))),
    ],
)  # fmt: skip
def test_numbers_text_and_flat_lists_are_kept_whole(value: object, plain: Metric) -> None:
    found, remark = kept(value)
    assert (found, remark) == (plain, "")
    assert type(found) is type(plain)
    if isinstance(found, list):
        assert [type(one) for one in found] == [type(one) for one in plain]


class Broken:
    ndim = 1

    def __len__(self) -> int:
        raise OSError("gone")

    def tolist(self) -> list[float]:
        raise OSError("gone")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": 1}, ["dict"]),
        (object(), ["object"]),
        (1j, ["complex"]),
        (Path("x"), ["Path"]),
        ([1, "2"], ["list", "str"]),
        ([True], ["bool"]),
        ([[1.0]], ["list"]),
        (np.zeros((3, 4)), ["ndarray", "(3, 4)"]),
        (torch.zeros(2, 2), ["Tensor", "(2, 2)"]),
        (np.array(["a"]), ["ndarray", "str"]),
        (torch.ones(2, device="meta"), ["Tensor"]),
        (range(3), ["range"]),
        ([0.0] * (MOST_NUMBERS + 1), ["1,001", "1,000", "trial.directory"]),
        (np.zeros(10**6), ["1,000,000"]),
        (Broken(), ["Broken", "OSError"]),
    ],
)
def test_what_is_not_kept_is_said_with_the_rule(value: object, words: list[str]) -> None:
    found, remark = kept(value)
    assert found == "nothing"
    assert all(word in remark for word in ("'m'", *words)), remark


def test_text_that_is_too_long_is_cut_and_that_is_said() -> None:
    found, remark = kept("x" * 12_345)
    assert found == "x" * MOST_CHARACTERS + "…"
    assert "12,345" in remark and "10,000" in remark


def test_no_metric_fails_an_evaluation(tmp_path: Path) -> None:
    def evaluate(trial: Trial) -> dict[str, object]:
        trial.log(curve=Broken(), shape=(2, 3))
        return {"value": 1.0, "table": {"a": 1}, "loss": torch.tensor([0.5, 0.25])}

    outcome = attempt(evaluate, Trial.alone({}, directory=tmp_path), ("value",))
    assert (outcome.status, outcome.metrics) == ("completed", {"shape": [2, 3], "loss": [0.5, 0.25]})
    assert list(outcome.remarks) == ["curve", "table"]
    over = EvaluationOver(turn=1, outcome=outcome)
    assert answer_of(to_line(over)) == over
    failed = judge({"metrics": [1], "valeu": 1.0}, ("value",))
    assert (failed.status, failed.metrics) == ("failed", {"metrics": [1], "valeu": 1.0})


LISTS = [[1, 2**60], [0.5, math.nan, -math.inf], []]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A campaign whose individuals log lists."""

    def evaluate(trial: Trial) -> float:
        number = int(trial.id.split("-")[-1])
        trial.log(whole=[number, 2**60], curve=LISTS[number % 3], mixed=[1.5] if number % 2 else "text")
        return 1.0 / (1 + number)

    task = hpo.Task(hpo.SearchSpace(x=hpo.Float(0, 1)), evaluate)
    hpo.Campaign(task, directory=tmp_path / "run", evaluations=3, isolation="inline", kind="random").run()
    return tmp_path / "run"


def test_lists_go_through_journal_results_and_tables(home: Path, tmp_path: Path) -> None:
    individuals = hpo.Result(home).individuals
    assert repr([one.metrics["curve"] for one in individuals]) == repr(LISTS)
    whole = [[number, 2**60] for number in range(3)]
    assert [one.metrics["whole"] for one in individuals] == whole
    assert repr(list(hpo.Result(home).dataframe()["metrics.curve"])) == repr(LISTS)
    space = hpo.SearchSpace(x=hpo.Float(0, 1))
    assert len(hpo.known_points(home, space)) == 3
    for suffix in ("csv", "parquet", "json"):
        table = tmp_path / f"all.{suffix}"
        assert results.export(home, table) == len(hpo.known_points(table, space)) == 3
    rows = json.loads((tmp_path / "all.json").read_text())
    words = [[1, 2**60], [0.5, "nan", "-inf"], []]
    assert [row["metrics.curve"] for row in rows] == words
    csv = pandas.read_csv(tmp_path / "all.csv")
    assert [json.loads(cell) for cell in csv["metrics.curve"]] == words
    assert list(csv["metrics.mixed"]) == ["text", "[1.5]", "text"]
    parquet = pandas.read_parquet(tmp_path / "all.parquet")
    assert [list(cell) for cell in parquet["metrics.whole"]] == whole
    assert [len(cell) for cell in parquet["metrics.curve"]] == [2, 3, 0]
    assert math.isnan(parquet["metrics.curve"][1][1])
    assert check(home).exit_code == 0


@pytest.mark.parametrize("metric", [{"a": 1}, [[1]], ["text"], [True], [None]])
def test_a_journal_with_another_metric_is_damaged(home: Path, metric: object) -> None:
    path = journal_path(home, launch=1, island=0, worker=0)
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    place = next(number for number, line in enumerate(lines) if line["type"] == "finished")
    for line in lines:
        del line["crc"]
    lines[place]["metrics"]["curve"] = metric
    path.write_bytes(b"".join(map(journals.line, lines)))
    assert "metrics" in str(check(home)) and check(home).damaged
    with pytest.raises(hpo.JournalDamaged, match=f"line {place + 1}: .*metrics"):
        load(home)


LOGGING = """
import hpo

def evaluate(trial):
    trial.log(curve=[0.5, 0.25], table={"a": 1})
    return {"value": trial.params["x"], "note": "x" * 20_000}

task = hpo.Task(hpo.SearchSpace(x=hpo.Float(0, 1)), evaluate)
"""


def test_the_user_is_told_once_a_launch_and_name(terminal: Terminal) -> None:
    terminal.write("task.py", LOGGING)
    for evaluations, ranks in ((8, 2), (12, 1)):
        terminal.campaign("[layout]\nislands = 1", evaluations=evaluations)
        done = terminal.hpo("run", "c.toml", "--ranks", ranks, returns=0)
        told = [line for line in done.stderr.splitlines() if line.startswith("hpo: metric")]
        assert sorted(line.split("'")[1] for line in told) == ["note", "table"], done.stderr
    assert all(one["metrics"]["curve"] == [0.5, 0.25] for one in terminal.records("finished"))
    assert {len(one["metrics"]["note"]) for one in terminal.records("finished")} == {MOST_CHARACTERS + 1}
    tried = terminal.hpo("try", "c.toml")
    assert tried.stderr.count("hpo: metric") == 2 and "    curve = [0.5, 0.25]\n" in tried.stdout
