"""What the journals say of a campaign's launches; and that ranks which start slowly may be tried again."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import journals
import pytest
from msgspec.structs import replace

import hpo
from hpo.campaign.rank import greeting
from hpo.campaign.rank.greeting import greet, greeting_s, own_hello
from hpo.errors import EXIT_RESUMABLE, CampaignError, RanksDied
from hpo.islands.messages import Hello, encode
from hpo.islands.transport import Transport
from hpo.journal.commands import Set
from hpo.journal.directory import write_identity
from hpo.ledger.entries import Limits
from hpo.ledger.launches import (
    LaunchOnRecord,
    consecutive_idle_launches,
    is_complete,
    made_progress,
    read_launch,
)
from hpo.ledger.opening import give

ENDED = {"type": "ended", "reason": "stopped", "exit": 75, "time": 9.0}


def finished(number: int, status: str = "completed", **fields: object) -> dict[str, object]:
    return journals.finished(f"0-0-{number}", **{"status": status, **fields})


def test_a_launch_is_read_and_one_that_never_began_is_none(tmp_path: Path) -> None:
    assert read_launch(tmp_path, 1) is None
    journals.write(tmp_path, [], 1, job="7.2")
    assert read_launch(tmp_path, 1) == LaunchOnRecord(number=1, job="7.2")
    plan = {"evaluations": 3, "deadline_s": None, "islands": 1, "workers": 1}
    journals.write(tmp_path, [{"type": "launched", **plan, "time": 5.0}, ENDED], 2)
    assert read_launch(tmp_path, 2) == LaunchOnRecord(number=2, began=5.0, end=("stopped", 75))


def test_a_budget_is_complete_when_so_many_have_ended_for_good(tmp_path: Path) -> None:
    assert not is_complete(tmp_path, Limits(evaluations=3))
    journals.write(tmp_path, [finished(1, "failed")])
    assert not is_complete(tmp_path, Limits(evaluations=1)), "used up by failures alone"
    journals.write(tmp_path, [finished(0), finished(1, "failed"), finished(2, "interrupted")])
    assert is_complete(tmp_path, Limits(evaluations=2)) and not is_complete(tmp_path, Limits(evaluations=3))
    journals.write(tmp_path, [finished(3, type="started", time=1.0)], worker=1)
    assert not is_complete(tmp_path, Limits(evaluations=3))
    # The second end of the same individual does not count, nor that of an earlier run of one that goes on.
    journals.write(
        tmp_path, [finished(0), finished(4, "pruned"), finished(4, type="started", time=1.0, promoted=2)], 2
    )
    assert not is_complete(tmp_path, Limits(evaluations=3))
    journals.write(tmp_path, [finished(4, promoted=2)], 3)
    assert is_complete(tmp_path, Limits(evaluations=3))
    assert not is_complete(tmp_path, Limits())


def test_a_budget_that_was_set_counts_until_the_file_says_something_new(tmp_path: Path) -> None:
    write_identity(tmp_path, {})
    journals.write(tmp_path, [journals.launched(evaluations=3), finished(0), finished(1)])
    assert not is_complete(tmp_path, Limits(evaluations=3))
    give(tmp_path, Set(time=1.0, by="me@here", evaluations=2))
    assert is_complete(tmp_path, Limits(evaluations=3)) and not is_complete(tmp_path, Limits(evaluations=4))


def test_a_failure_that_was_reopened_is_still_to_be_evaluated(tmp_path: Path) -> None:
    reopened = {"type": "reopened", "id": "0-0-1", "number": 1, "reason": "sick", "time": 3.0}
    journals.write(tmp_path, [finished(0), finished(1, "failed")])
    assert is_complete(tmp_path, Limits(evaluations=2))
    journals.write(tmp_path, [reopened], 2)
    assert not is_complete(tmp_path, Limits(evaluations=2))
    journals.write(tmp_path, [finished(1, "failed", reopened=1)], 3)
    assert is_complete(tmp_path, Limits(evaluations=2))


def test_what_was_saved_is_progress_and_what_was_killed_is_none(tmp_path: Path) -> None:
    journals.write(tmp_path, [finished(0, "interrupted", error="killed after its grace"), ENDED])
    assert not made_progress(tmp_path, 1)
    journals.write(tmp_path, [finished(0, "interrupted")], worker=1)
    assert made_progress(tmp_path, 1)


def test_consecutive_idle_launches_are_counted_from_the_last_and_of_one_job(tmp_path: Path) -> None:
    assert consecutive_idle_launches(tmp_path) == 0
    journals.write(tmp_path, [], 1, job="6.0")
    journals.write(tmp_path, [], 2, job="7.0")
    journals.write(tmp_path, [ENDED], 3, job="7.1")
    assert consecutive_idle_launches(tmp_path) == 3
    assert consecutive_idle_launches(tmp_path, "7") == 2
    assert consecutive_idle_launches(tmp_path, "8") == 0
    journals.write(tmp_path, [finished(0, "failed")], 4, job="7.2")
    journals.write(tmp_path, [], 5, job="7.2")
    assert consecutive_idle_launches(tmp_path) == consecutive_idle_launches(tmp_path, "7") == 1


# --- the greeting -----------------------------------------------------------------------------------------------------


class Silent(Transport):
    """A thousand ranks of which only rank 0 has started."""

    size = 1000


@pytest.mark.parametrize(("start_timeout", "waits_s"), [(10, 120 + 50), ("300s", 300 + 50)])
def test_ranks_that_start_too_slowly_may_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_timeout: object, waits_s: float
) -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += 1.0

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep, time=time.time)
    monkeypatch.setattr(greeting, "time", clock)
    task = hpo.Task(hpo.SearchSpace(x=hpo.Float(0, 1)), lambda trial: 0.0)
    campaign = hpo.Campaign(task, directory=tmp_path / "run", evaluations=1, start_timeout=start_timeout)
    with pytest.raises(RanksDied, match=f"{waits_s:.0f} s") as caught:
        greet(
            Silent(),
            own_hello(campaign.settings, campaign.identity),
            greeting_s(campaign.settings, Silent.size),
        )
    assert caught.value.exit_code == EXIT_RESUMABLE
    assert now[0] == waits_s + 1


class Pair(Transport):
    """Rank 0, and rank 1 which has said ``hello``."""

    size = 2

    def __init__(self, hello: Hello) -> None:
        super().__init__()
        self._inbox.append((1, encode(hello)))


def test_all_ranks_must_read_the_same_campaign(tmp_path: Path) -> None:
    task = hpo.Task(hpo.SearchSpace(x=hpo.Float(0, 1)), lambda trial: 0.0)

    def hello(evaluations: int = 1, name: str = "a") -> Hello:
        settings = hpo.Campaign(task, directory=tmp_path / "run", evaluations=evaluations).settings
        return replace(own_hello(settings, {"task": name}), host=f"host{evaluations}{name}")

    mine = hello()
    assert greet(Pair(hello()), mine, 10.0) == [mine, mine]
    for other in (hello(evaluations=2), hello(name="b")):
        with pytest.raises(CampaignError, match=f"rank 1 on {other.host}"):
            greet(Pair(other), mine, 10.0)
    with pytest.raises(CampaignError, match="rank 1 on host1a: cannot begin"):
        greet(Pair(replace(mine, error="cannot begin")), mine, 10.0)
