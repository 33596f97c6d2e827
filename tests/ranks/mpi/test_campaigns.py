"""Whole campaigns under mpirun on 1, 2, 4 and 8 ranks."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from cases import cases

from hpo.results.record import load

SCRIPT = Path(__file__).with_name("one_campaign.py")


def run(mpirun, ranks, directory, **keywords):
    """The campaign's record, and what each rank printed of its result. Of kind ``evolution`` if none is given: what
    ``default`` imports takes most of the time of a short campaign."""
    done = mpirun(ranks, SCRIPT, json.dumps({"directory": str(directory), "kind": "evolution", **keywords}))
    printed = [json.loads(line[7:]) for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert len(printed) == ranks
    assert all(one == printed[0] for one in printed), "the ranks disagree on the result"
    return load(directory), printed[0]


def check(record, evaluations):
    individuals = record.individuals
    assert len(individuals) == evaluations
    assert len({one.id for one in individuals}) == evaluations
    assert len({json.dumps(one.params) for one in individuals}) == evaluations
    assert Counter(one.status for one in individuals) == {"completed": evaluations}


@pytest.mark.parametrize(
    ("ranks", "islands", "kind"),
    cases(
        [(4, 2, "genetic")],
        nightly=[(2, 2, "genetic"), (4, 2, "default"), (1, 1, "default"), (4, 1, "cmaes"), (8, 3, "pso")],
    ),
)
def test_inline(mpirun, tmp_path, ranks, islands, kind):
    record, printed = run(
        mpirun,
        ranks,
        tmp_path / "run",
        # Slow enough that no worker uses the budget up before the others have begun.
        task="slow" if islands > 1 else "cheap",
        evaluations=120,
        islands=islands,
        isolation="inline",
        kind=kind,
        migration=0.5,
    )
    check(record, 120)
    assert printed["reason"] == "done" and printed["rows"] == 120
    assert {one.island for one in record.individuals} == set(range(islands))
    assert any(one.operator == "default" and one.params["x"] == 1.0 for one in record.individuals)
    if islands > 1:
        assert any(one.migrations for one in record.individuals)


def test_rank_0_grants_while_it_evaluates_inline(mpirun, tmp_path):
    record, _ = run(mpirun, 3, tmp_path / "run", task="patient", evaluations=6, isolation="inline")
    check(record, 6)


@pytest.mark.parametrize(("ranks", "ranks_per_worker"), cases([(4, 2)], nightly=[(2, 2), (8, 4)]))
def test_inline_workers_of_several_ranks_share_a_communicator(mpirun, tmp_path, ranks, ranks_per_worker):
    settings = {"task": "with_comm", "ranks_per_worker": ranks_per_worker, "isolation": "inline"}
    record, _ = run(mpirun, ranks, tmp_path / "run", evaluations=40, **settings)
    check(record, 40)
    total = ranks_per_worker * (ranks_per_worker + 1) / 2
    for one in record.individuals:
        assert one.value == pytest.approx(one.params["x"] ** 2 + total)


def test_a_campaign_goes_on_with_other_numbers_of_ranks_and_islands(mpirun, tmp_path):
    directory = tmp_path / "run"
    for total, ranks, islands, per_worker in ((20, 4, 2, 1), (40, 2, 1, 2)):
        layout = {"islands": islands, "ranks_per_worker": per_worker}
        record, printed = run(
            mpirun, ranks, directory, evaluations=total, isolation="inline", migration=0.5, **layout
        )
        check(record, total)
        assert printed["reason"] == "done"


def test_campaigns_one_after_the_other_in_one_script_do_not_hear_each_other(mpirun, tmp_path):
    script = tmp_path / "several.py"
    script.write_text(
        """
import sys
import hpo

space = hpo.SearchSpace(x=hpo.Float(0, 1), y=hpo.Float(0, 1))
task = hpo.Task(space, lambda trial: trial.params["x"])
for number in range(5):
    keywords = {"evaluations": 60, "islands": 2, "isolation": "inline", "migration": 1.0, "kind": "evolution"}
    result = hpo.Campaign(task, directory=f"{sys.argv[1]}/{number}", **keywords).run()
    assert len(result.individuals) == 60
sys.stdout.write("fine\\n")
"""
    )
    done = mpirun(4, script, tmp_path)
    assert done.stdout.count("fine") == 4


def test_a_rank_that_cannot_go_on_ends_the_launch_with_a_sentence_and_the_journals_stay_whole(
    mpirun, tmp_path
):
    script = tmp_path / "odd.py"
    script.write_text(
        """
import sys
import hpo

calls = 0

class Task(hpo.Task):
    def losses(self, objectives):
        global calls
        calls += 1
        if len(sys.argv) > 2 and calls > 100:
            raise hpo.CampaignError("odd")
        return super().losses(objectives)

space = hpo.SearchSpace(x=hpo.Float(0, 1))
task = Task(space, lambda trial: trial.params["x"])
hpo.Campaign(task, directory=sys.argv[1], evaluations=1000, isolation="inline", kind="evolution").run()
"""
    )
    done = mpirun(3, script, tmp_path / "run", "odd", check=False)
    assert done.returncode == 1
    assert re.search(r"hpo: rank \d.*odd", done.stderr), done.stderr
    recorded = {one.id for one in load(tmp_path / "run").individuals}
    assert recorded
    mpirun(3, script, tmp_path / "run")
    record = load(tmp_path / "run")
    check(record, 1000)
    assert recorded <= {one.id for one in record.individuals}
