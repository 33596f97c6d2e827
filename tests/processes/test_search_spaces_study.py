"""The study of data assignment: its experiments, Eq. A.3, and several seeds by one command."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

import hpo
import trainers
from search_spaces import assignment, resnet20_study
from search_spaces.building_blocks.recipes import Run

EXPERIMENTS = get_args(resnet20_study.Experiment)


def recipe(p: dict[str, Any], **options: Any) -> Any:
    chosen = assignment.Options(ranks_per_worker=16, batch_size=128, epochs=182, width=2, **options)
    return assignment.recipe({"assignment": "shards", **p}, chosen, Run(data={"classes": 10}, ranks=16))


def test_the_experiments_have_the_study_s_configurations() -> None:
    counts = {name: len(resnet20_study.configurations(name, 16)) for name in EXPERIMENTS}
    worlds = len(resnet20_study.WORLD_EVERY)
    assert counts == {
        "E1": 1, "E2.1": 2, "E2.2": 2 + 3 + 3 + 7, "E2.3": 6 * 3, "E3.1": 2 * worlds,
        "E3.2.1": 3 * worlds, "E3.2.2": 3 * worlds, "E3.2.3": 3 * worlds, "E3.2.4": 3 * 5 * worlds,
        "E3.3": 2 * 2 * (6 + 5),
    }  # fmt: skip
    # Of fewer ranks what they can do.
    assert len(resnet20_study.configurations("E3.1", 2)) == 2 * worlds
    assert [*resnet20_study.configurations("E1", 1)] == ["disjoint"]
    with pytest.raises(hpo.UsageError, match=r"^experiment = 'E3.3': .* ranks_per_worker = 1"):
        resnet20_study.make_task(experiment="E3.3", ranks_per_worker=1)


def test_households_and_neighbourhoods_share_data_as_in_the_study() -> None:
    found = resnet20_study.configurations("E3.2.4", 16)
    one = found["H = 8, S_H = 2, L_W = 64, effective batch constant"]
    assert one.params == {
        "assignment": "coarse", "copies": 4, "world_every": 64, "household": 2, "neighbourhood": 1,
    }  # fmt: skip
    assert one.options == {"batch_rule": "effective"}
    (both,) = [
        one
        for name, one in resnet20_study.configurations("E3.3", 16).items()
        if name == "H = 4, L_N = 2, L_W = 4, full overlap between neighbourhoods"
    ]
    made = assignment._local_sgd(dict(both.params), assignment.Options(ranks_per_worker=16), Run())
    assert isinstance(made, trainers.LocalSGD)
    assert (made.households, made.neighbourhoods, made.neighbourhood_every) == (4, 8, 2)
    # Periods go on over epochs: H = 8, L_W = 128 averages 67 times in 182 epochs of 47 steps.
    assert not made.average_at_epoch_end
    held = trainers.Coarse(shards=8).holders(64, 16, seed=0)
    # Two neighbourhoods of eight ranks: within one no sample twice, and each has all of them.
    for ranks in (range(8), range(8, 16)):
        assert sorted(int(one) for rank in ranks for one in held[rank]) == [*range(64)]


@pytest.mark.parametrize(
    ("household", "every", "local"), [(2, 128, 61), (8, 2, 11), (4, 2, 13), (1, 128, 115), (16, 64, 8)]
)
def test_local_batches_are_those_of_equation_a_3(household: int, every: int, local: int) -> None:
    p = {"household": household, "world_every": every}
    assert recipe(p, batch_rule="effective").samples_a_step == 16 * local
    assert recipe(p).samples_a_step is None
    joined = trainers.effective_batch_size(
        batch_size=8 * assignment.batch_growth(p, 16),
        ranks=16,
        households=16 // household,
        world_every=every,  # type: ignore[arg-type]
    )
    assert joined == pytest.approx(128)


def test_the_rate_grows_with_the_batch_after_a_warm_up() -> None:
    found = recipe({"household": 2, "world_every": 128}, batch_rule="effective", lr_rule="linear")
    full = found.optimizer(found.network.parameters()).param_groups[0]["lr"]
    assert full == pytest.approx(0.1 * 128 * 8 / 135)

    def rate(epoch: float) -> float:
        return float(found.schedule.rate(full, epoch=epoch, epochs=182))

    assert [rate(0), rate(5)] == pytest.approx([0.1, full])
    assert [rate(90.9), rate(91), rate(136.4), rate(136.5)] == pytest.approx(
        [full, full / 10, full / 10, full / 100]
    )


def test_fine_grained_copies_need_not_divide_the_ranks() -> None:
    task = assignment.make_task(ranks_per_worker=16)
    fine = {**assignment.default, "assignment": "fine-grained"}
    assert all(task.allows({**fine, "copies": copies}) for copies in (2, 4, 6, 8, 10, 12, 14))
    assert not task.allows({**fine, "assignment": "coarse", "copies": 6})


def test_all_seeds_of_an_experiment_by_one_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "study.toml"
    file.write_text(
        f"""
        task = "search_spaces.resnet20_study:make_task"
        directory = "{tmp_path / "run"}"
        evaluations = 100
        [search]
        kind = "grid"
        [evaluation]
        isolation = "inline"
        [task_options]
        experiment = "E1"
        seeds = 2
        ranks_per_worker = 1
        epochs = 1
        batch_size = 4
        train_samples = 8
        width = 2
        """
    )
    hpo.Campaign.from_file(file).run()
    found = hpo.Result(tmp_path / "run").individuals
    assert sorted(one.params["seed"] for one in found) == [0, 1]
    assert len({one.value for one in found}) <= 2
    capsys.readouterr()
    assert resnet20_study.main([str(tmp_path / "run")]) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["configuration", "accuracy", "seeds"]
    assert row.split()[0] == "disjoint" and "±" in row and row.split()[-1] == "2"
    assert resnet20_study.main([str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith("search_spaces.resnet20_study: ")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("folds", 2),
        ("method", "oialr"),
        ("architecture", "deep"),
        ("second_objective", "bytes_between_nodes"),
    ],
)
def test_what_the_study_decides_is_refused(option: str, value: object) -> None:
    with pytest.raises(hpo.UsageError, match=rf"^{option} = {value!r}: must be "):
        resnet20_study.make_task(**{option: value})


def test_configurations_have_as_many_households_as_they_say() -> None:
    for name, one in resnet20_study.configurations("E3.2.1", 4).items():
        assert name.startswith(f"H = {4 // one.params['household']}, ")
    assert not resnet20_study.configurations("E3.3", 2)
