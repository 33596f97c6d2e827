"""Curves of real campaigns: of evaluations that complete, crash and are retried, are pruned, and go on in a later
launch."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import hpo
from hpo.journal import curves as curves_on_disk
from hpo.journal.commands import Stop, asked
from hpo.ledger.inspection import check
from hpo.ledger.opening import give
from hpo.results.curves import load, system

STEPS = 6
CRASHES, FALLS_BEHIND, STOPS = 1, 2, 3


def make_task(home: Path) -> hpo.Task:
    """By sequence number: one that completes, one that crashes, one that is worse than the others, one during which the
    campaign is stopped. Values of a run that went on are ten higher; what was done after saving is lost."""

    def evaluate(trial: hpo.Trial) -> float:
        number = int(trial.id.split("-")[-1])
        saved = trial.directory / "step"
        begin = int(saved.read_text()) if saved.exists() else 0
        for step in range(begin + 1, STEPS + 1):
            value = 50.0 if number == FALLS_BEHIND else -number
            trial.report(step, value + (10 if begin else 0), loss=1 / step, odd=object())
            if begin or number not in (CRASHES, STOPS):
                continue
            if step == 3:
                saved.write_text("3")
            elif step == 5 and number == CRASHES:
                os._exit(1)
            elif step == 5:
                give(home, Stop(**asked()))
                end = time.monotonic() + 30
                while time.monotonic() < end:
                    if trial.should_checkpoint():
                        raise hpo.Interrupted
                    time.sleep(0.01)
        return float(-number)

    return hpo.Task(hpo.SearchSpace(x=hpo.Float(0, 1)), evaluate, steps=STEPS)


@pytest.mark.parametrize(("isolation", "every"), [("warm", 0), ("inline", "1h")])
def test_curves_of_a_campaign(tmp_path, monkeypatch, isolation, every):
    monkeypatch.setattr(curves_on_disk, "_IN_FULL", 1)  # of which ``every`` = 0 knows nothing
    home = tmp_path / "run"
    inline = isolation == "inline"
    task = make_task(home)
    if inline:
        whole = task.evaluate
        task.evaluate = lambda trial: 0.0 if trial.id == f"0-0-{CRASHES}" else whole(trial)
    keywords = {"kind": "random", "pruner": "halving", "min_steps": 2, "promote": False, "log_every": every}
    campaign = hpo.Campaign(task, directory=home, evaluations=4, isolation=isolation, **keywords)
    assert campaign.run().reason == "stopped"
    result = hpo.Campaign(task, directory=home, evaluations=4, isolation=isolation, **keywords).run()
    assert [one.status for one in result.individuals] == ["completed", "completed", "pruned", "completed"]

    frame = result.curves()
    assert list(frame) == ["id", "step", "value", "time", "loss"]
    curves = {
        identity.split("-")[-1]: dict(zip(one["step"], one["value"], strict=True))
        for identity, one in frame.groupby("id")
    }
    began_again = {
        str(number): {step: -number + (10 if step > 3 else 0) for step in range(1, STEPS + 1)}
        for number in ([STOPS] if inline else [CRASHES, STOPS])
    }
    whole = dict.fromkeys(range(1, STEPS + 1), 0.0)
    expected = {"0": whole, str(FALLS_BEHIND): {1: 50.0, 2: 50.0}, **began_again}
    if every:  # the first and the last of each attempt; what came before a crash is gone
        kept = {"0": (1, 6), str(CRASHES): (1, 4, 6), str(FALLS_BEHIND): (1, 2), str(STOPS): (1, 4, 6)}
        expected = {
            number: {step: curve[step] for step in kept[number] if step in curve}
            for number, curve in expected.items()
        }
    assert curves == expected
    assert frame["loss"].tolist() == [1 / step for step in frame["step"]]
    assert check(home).exit_code == 0
    assert len(hpo.known_points(home, task.space)) >= 3


def test_what_is_off_leaves_nothing(tmp_path: Path) -> None:
    task = hpo.Task(hpo.SearchSpace(x=hpo.Float(0, 1)), lambda trial: trial.report(1, 0.5) or 1.0)
    settings = {"evaluations": 2, "isolation": "inline", "log_curves": False}
    result = hpo.Campaign(task, directory=tmp_path / "run", **settings).run()
    assert not (tmp_path / "run" / "curves").exists() and result.curves().empty


def test_samples_of_what_evaluations_use(tmp_path: Path) -> None:
    """Of the evaluator and what it started, named by the individual that ran."""

    def evaluate(trial: hpo.Trial) -> float:
        child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        held = bytearray(os.urandom(1)) * 200_000_000
        files, end = Path(directory), time.monotonic() + 30
        while (
            time.monotonic() < end and sum(one.read_bytes().count(b'"sample"') for one in files.glob("*")) < 3
        ):
            time.sleep(0.05)
        child.kill()
        child.wait()
        return float(len(held))

    home = tmp_path / "run"
    directory = str(home / "curves")
    task = hpo.Task(hpo.SearchSpace(x=hpo.Float(0, 1)), evaluate)
    hpo.Campaign(task, directory=home, evaluations=1, log_curves=False, log_system=1).run()
    found = system(home)
    found = found[found["id"] == "0-0-0"]
    assert len(found) >= 2 and load(home).empty
    assert found["memory"].max() > 200_000_000 and found["cpu"].max() > 0.05
    assert found["gpu"].isna().all(), "it does not use CUDA"
