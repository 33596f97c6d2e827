"""What a sink gets of a campaign: all of it, once, whichever process writes and wherever one dies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from cases import cases
from refusals import refused
from written import Written

from hpo.errors import CampaignError, HpoError
from hpo.individual import Individual
from hpo.journal.curves import Point, Sample
from hpo.loggers import command, registry
from hpo.loggers.log import CampaignLog, sink_folder
from hpo.loggers.sink import LoggedCampaign, distinct, reported


class Remembering:
    """A sink that keeps what it gets, as one that is told apart by id and step does, and fails at its ``fails``-th
    call."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, int], float] = {}
        self.begun: dict[str, dict[str, object]] = {}
        self.ended: dict[str, str] = {}
        self.calls = self.most_open = 0
        self.fails = -1

    def _call(self) -> None:
        self.calls += 1
        if self.calls == self.fails:
            raise RuntimeError("the server is away")

    def started(self, one: Individual) -> None:
        self._call()
        self.begun[one.id] = dict(one.params)
        self.ended.pop(one.id, None)
        self.most_open = max(self.most_open, len(self.begun) - len(self.ended))

    def measured(self, one: Individual, points: Sequence[Point]) -> None:
        assert one.id in self.begun
        for point in points:
            self._call()
            self.rows[one.id, point.step] = point.value

    def sampled(self, one: Individual, samples: Sequence[Sample]) -> None:
        raise AssertionError("there are none")

    def finished(self, one: Individual) -> None:
        self._call()
        self.ended[one.id] = one.status

    def flush(self) -> None:
        self._call()

    def close(self) -> None:
        pass


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> Remembering:
    sink = Remembering()

    def make(name: str, campaign: LoggedCampaign, folder: Path) -> Remembering:
        return sink

    monkeypatch.setattr(registry, "make", make)
    return sink


def _log(campaign: Written) -> CampaignLog:
    return CampaignLog(campaign.path, "tensorboard", sink_folder(campaign.path, None, "tensorboard"))


def _grow(campaign: Written) -> list[Callable[[], object]]:
    """What comes about in a campaign, in parts between which a sink may look."""
    return [
        lambda: campaign.evaluate(0, 3.0),
        lambda: (campaign.start(1), campaign.report(1, 1, 0.5)),
        lambda: (campaign.evaluate(2, None, "failed"), campaign.report(1, 2, 0.25)),
        lambda: (campaign.reopen(2), campaign.finish(1, 0.125)),
        lambda: (campaign.start(2, reopened=1), campaign.report(2, 1, 9.0, attempt=1)),
        lambda: (campaign.finish(2, 9.0, reopened=1), campaign.end()),
    ]


def _whole(sink: Remembering) -> None:
    assert sink.ended == {"0-0-0": "completed", "0-0-1": "completed", "0-0-2": "completed"}
    steps = {
        (f"0-0-{number}", step) for number, count in ((0, 3), (1, 2), (2, 3)) for step in range(1, count + 1)
    }
    assert set(sink.rows) == steps
    assert sink.rows["0-0-1", 2] == 0.25 and sink.rows["0-0-2", 1] == 9.0


@pytest.mark.parametrize("looks", ["after each part", "at the end", "each by a process of its own"])
def test_each_thing_is_written_once_however_often_one_looks(tmp_path, sink, looks):
    campaign = Written(tmp_path / "x")
    log = _log(campaign)
    for part in _grow(campaign):
        part()
        if looks != "at the end":
            log.write()
        if looks.startswith("each"):
            log.close()
            log = _log(campaign)
    log.write()
    _whole(sink)
    assert log.done
    calls = sink.calls
    assert not log.write()
    log.close()
    again = _log(campaign)
    assert not again.write() and sink.calls == calls
    again.close()
    # begun, rows, ends; and as many flushes as there were looks that found something
    assert calls == (3 + 9 + 3 + 1 if looks == "at the end" else 3 + 9 + 4 + 6)


def test_what_went_on_on_another_worker_of_the_launch_comes_in_its_order(tmp_path, sink):
    """The files of the worker that took it over are read before those of the one that began it."""
    campaign = Written(tmp_path / "x")
    for attempt, worker in enumerate((Written(campaign.path, worker=1), campaign)):
        worker.start(3)
        for step in range(3 * attempt + 1, 3 * attempt + 4):
            worker.report(3, step, step / 8, attempt=attempt)
    campaign.finish(3, 0.75)
    campaign.evaluate(4, 0.5)
    log = _log(campaign)
    log.write()
    log.close()
    assert [step for identity, step in sink.rows if identity == "0-0-3"] == [1, 2, 3, 4, 5, 6]
    assert sink.ended == {"0-0-3": "completed", "0-0-4": "completed"}


@pytest.mark.parametrize("process", ["goes on", "is another one"])
def test_where_a_sink_fails_at_any_call_it_gets_the_rest_later(tmp_path, sink, process):
    # Of all calls, as the test above counts them, a few on every change.
    for fails in cases(range(1, 23, 5), set(range(1, 23)) - set(range(1, 23, 5))):
        campaign = Written(tmp_path / f"x{fails}")
        sink.__init__()  # type: ignore[misc]
        sink.fails = fails
        log, failures = _log(campaign), 0
        for part in (*_grow(campaign), lambda: None):
            part()
            try:
                log.write()
            except CampaignError as error:
                assert "the server is away" in str(error)
                failures += 1
                if process != "goes on":
                    log.close()
                    log = _log(campaign)
        log.close()
        assert failures == 1
        _whole(sink)


def test_afterwards_individuals_are_begun_and_ended_one_after_the_other(tmp_path, sink):
    campaign = Written(tmp_path / "x")
    for number in range(30):
        campaign.evaluate(number, 1.0)
    log = _log(campaign)
    assert str(log.write()) == "30 individuals begun, 30 ended, 90 rows of curves"
    log.close()
    assert sink.most_open == 1 and len(sink.rows) == 90


def test_a_folder_is_one_campaigns_and_one_processs(tmp_path: Path, sink: Remembering) -> None:
    campaign = Written(tmp_path / "a" / "x")
    campaign.evaluate(0, 1.0)
    first = CampaignLog(campaign.path, "wandb", sink_folder(campaign.path, tmp_path / "all", "wandb"))
    assert (tmp_path / "all/x/wandb").is_dir()
    refused(lambda: CampaignLog(campaign.path, "wandb", tmp_path / "all/x/wandb"), "all/x/wandb", "process")
    first.write()
    first.close()
    other = Written(tmp_path / "b" / "x", seed=1)
    shared = sink_folder(other.path, tmp_path / "all", "wandb")
    refused(lambda: CampaignLog(other.path, "wandb", shared), str(shared), "another campaign")
    (tmp_path / "elsewhere").mkdir()
    (other.path / "logs").symlink_to(tmp_path / "elsewhere")
    linked = sink_folder(other.path, None, "wandb")
    refused(lambda: CampaignLog(other.path, "wandb", linked), str(linked.parent), "link")
    assert not list((tmp_path / "elsewhere").iterdir())
    (campaign.path / "logs").write_text("a file of the user's")
    for path, folder in ((campaign.path, campaign.path / "logs/wandb"), (tmp_path, tmp_path / "all/y/wandb")):
        with pytest.raises(CampaignError, match=str(path)):
            CampaignLog(path, "wandb", folder)


def test_a_sink_that_is_not_there_is_refused_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("wandb").mkdir()  # as W&B leaves it where it was used
    monkeypatch.setattr(
        registry, "find_spec", lambda name: None if name != "wandb" else SimpleNamespace(origin=None)
    )
    for name, word in {
        "wandb": "setup.sh wandb",
        "tensorboard": "tensorboardX",
        "tensorbord": '"tensorboard"',
    }.items():
        refused(lambda name=name: command.log(tmp_path / "absent", name, base=None, follow=True), name, word)

    import hpo

    task = hpo.Task(hpo.SearchSpace(x=hpo.Float(0, 1)), lambda trial: 0.0)
    with pytest.raises(HpoError, match=r"wandb.*\n.*trackio.*remove it from \[logging\] sinks"):
        hpo.Campaign(
            task, directory=tmp_path / "x", evaluations=1, isolation="inline", log_sinks=["wandb", "trackio"]
        ).run()
    assert not (tmp_path / "x" / "launches").exists()


NAMES = ["recall@5", "recall_5", "val//acc", "val/acc", "/acc", "acc", "..", "%", "x" * 300, "x" * 301]
NAMES += ["system/cpu", "result/value", "hpo/status", "reported/system/cpu", "_step", "seconds"]


def test_no_two_metrics_become_one_in_any_sink() -> None:
    """Neither those of a report, nor one of these and what its host did or came out in the end."""
    point = Point(id="0-0-0", step=1, value=0.5, time=1.0, began=0.0, metrics=dict.fromkeys(NAMES, 1.0))
    found = reported(point)
    assert len(found) == 1 + len(NAMES) and not any(
        name.startswith(("system/", "result/", "hpo/")) for name in found
    )
    assert len({distinct(name, name.replace("@", "_")[:250], 250) for name in found}) == len(found)
    assert distinct("val/acc", "val/acc", 250) == "val/acc"
