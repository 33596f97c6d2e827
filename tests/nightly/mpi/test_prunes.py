"""Early stopping for real: a thousand prunes of trials of two ranks."""

from __future__ import annotations

from collections import Counter
from json import dumps
from pathlib import Path

import pytest

from hpo.journal.records import Finished
from hpo.ledger.journals import read_directory
from hpo.results import result as results
from hpo.results.record import load

SCRIPT = Path(__file__).with_name("pruned_campaign.py")


@pytest.mark.timeout(180)
def test_a_thousand_prunes_of_two_rank_trials_end_without_a_deadlock(mpirun, tmp_path):
    directory = tmp_path / "run"
    keywords = {
        "directory": str(directory),
        "evaluations": 1150,
        "ranks_per_worker": 2,
        "kind": "random",
        "pruner": "halving",
        "reduction": 3,
        "timeout": 60,
    }
    done = mpirun(4, SCRIPT, dumps(keywords), timeout=170)
    assert done.stdout.count("REASON done") == 4
    record = load(directory)
    assert len(record.individuals) == 1150
    counts = Counter(one.status for one in record.individuals)
    assert set(counts) == {"pruned", "completed"}, [one.error for one in record.individuals if one.error][:1]
    ends = [one for one in read_directory(directory) if isinstance(one, Finished)]
    assert sum(one.status == "pruned" for one in ends) >= 1000
    # Those that saved themselves went on from there when they were promoted.
    promoted = [one for one in ends if one.resumed_at_step]
    assert promoted and all(one.metrics["begun_at"] == one.resumed_at_step for one in promoted)
    assert all(one.params["saves"] for one in promoted)
    # The pruned ones show how far they got and what they had reached.
    table = results.dataframe(record.individuals, ["value"])
    pruned = table[table.status == "pruned"]
    assert pruned["metrics.pruned_step"].isin(range(1, 10)).all() and pruned["value"].notna().all()
    best = results.best(record, 1)[0]
    assert best.status == "completed"
    assert best.params["x"] == min(one.params["x"] for one in record.individuals if one.status == "completed")
    rest = sorted(path.name for path in (directory / "evaluations").iterdir() if (path / "steps").exists())
    assert len(rest) <= 3, "checkpoints of pruned ones are removed in the end"
