from __future__ import annotations

import collections
import math
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo import outcomes_of_ranks, run_ranks

import hpo
import trainers
from search_spaces import digits
from search_spaces.folds import Fold, cross_validated

FAST = {"epochs": 2, "train_samples": 40, "batch_size": 100, "folds": 4}


def trial(directory: Path | str, **place: int) -> hpo.Trial:
    return hpo.Trial.alone(dict(digits.default), directory=directory, **place)  # type: ignore[arg-type]


# Splits


@pytest.mark.parametrize("classes", [None, [0] * 7 + [1] * 15 + [2] * 3 + [0] * 8])
@pytest.mark.parametrize("folds", [2, 5])
def test_each_sample_is_held_out_once(folds: int, classes: list[int] | None) -> None:
    seen: list[int] = []
    for index in range(folds):
        train, held = Fold(index=index, folds=folds).split(33, classes=classes)
        assert sorted(train + held) == list(range(33))
        assert len(held) in (33 // folds, 33 // folds + 1)
        if classes is not None:
            counts = collections.Counter(classes[sample] for sample in held)
            for one, count in collections.Counter(classes).items():
                assert counts[one] in (count // folds, count // folds + 1)
        seen += held
    assert sorted(seen) == list(range(33))


def test_splits_are_the_same_each_time_and_others_with_another_seed() -> None:
    fold = Fold(index=1, folds=3)
    assert fold.split(30) == fold.split(30)
    assert fold.split(30) != fold.split(30, seed=1)
    for samples, classes, names in (
        (2, None, "2 samples for 3 folds"),
        (5, [0, 0, 1, 1], "4 classes for 5 samples"),
    ):
        with pytest.raises(ValueError, match=names):
            fold.split(samples, classes=classes)


# One after the other


def test_mean_and_deviation_over_the_folds(tmp_path: Path) -> None:
    values = [0.5, 0.75, 1.0]
    seeds = set()

    def evaluate(one: hpo.Trial, fold: Fold) -> dict[str, float]:
        seeds.add(one.seed)
        assert (one.rank, one.size, fold.folds, fold.group) == (0, 1, 3, None)
        return {"value": values[fold.index], "seconds": 2.0}

    watched = trial(tmp_path)
    found = cross_validated(watched, evaluate, folds=3)
    assert found == {
        "value": 0.75,
        "value_deviation": statistics.stdev(values),
        "seconds": 2.0,
        "seconds_deviation": 0.0,
        "value/fold-0": 0.5,
        "value/fold-1": 0.75,
        "value/fold-2": 1.0,
    }
    assert len(seeds) == 3
    assert watched.last_report == (3, 0.75)


def test_a_fold_without_a_result_ends_it(tmp_path: Path) -> None:
    begun = []

    def evaluate(one: hpo.Trial, fold: Fold) -> float:
        begun.append(fold.index)
        return math.nan if fold.index == 1 else 1.0

    found = cross_validated(trial(tmp_path), evaluate, folds=5)
    assert math.isnan(found["value"])
    assert begun == [0, 1]


def test_an_interrupted_individual_goes_on_with_the_folds_that_are_left(tmp_path: Path) -> None:
    begun: list[int] = []

    def evaluate(one: hpo.Trial, fold: Fold) -> float:
        begun.append(fold.index)
        marker = one.directory / "marker"
        if fold.index == 2 and not marker.exists():
            marker.touch()
            raise hpo.Interrupted("saved")
        return fold.index / 4

    with pytest.raises(hpo.Interrupted):
        cross_validated(trial(tmp_path), evaluate, folds=5)
    assert cross_validated(trial(tmp_path), evaluate, folds=5)["value"] == 0.5
    assert begun == [0, 1, 2, 2, 3, 4]


def test_results_of_another_run_in_the_same_directory_are_refused_by_name(tmp_path: Path) -> None:
    cross_validated(trial(tmp_path), lambda one, fold: 0.0, folds=3)
    with pytest.raises(ValueError, match=r"result of a run with folds = 3, and this run has folds = 4"):
        cross_validated(trial(tmp_path), lambda one, fold: 1.0, folds=4)
    other = hpo.Trial.alone({**digits.default, "lr": 0.5}, directory=tmp_path)
    with pytest.raises(ValueError, match=r"params = .*, and this run has params = .*0\.5"):
        cross_validated(other, lambda one, fold: 1.0, folds=3)


@pytest.mark.parametrize("folds", [1, True, 2.0])
def test_wrong_folds(folds: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"folds = .*: must be a whole number of at least 2"):
        cross_validated(trial(tmp_path), lambda one, fold: 0.0, folds=folds)


# Side by side


def trained(rank: int, directory: str, folds: int) -> tuple[dict[str, float], list[int]]:
    size = dist.get_world_size()
    options = {**FAST, "folds": folds}
    found = digits.make_task(**options).evaluate(trial(directory, rank=rank, size=size))  # type: ignore[arg-type]
    return found, [p.stat().st_ino for p in sorted(Path(directory).glob("fold-*/result.json"))]


def values_of(found: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in found.items() if name.startswith("value")}


def test_groups_of_one_rank_find_what_one_rank_alone_finds(tmp_path: Path) -> None:
    alone = digits.make_task(**FAST).evaluate(trial(tmp_path / "alone"))  # type: ignore[arg-type]
    both = run_ranks(2, trained, str(tmp_path / "two"), 4)
    for found, files in both:
        assert values_of(found) == values_of(alone)
        assert found["value_deviation"] > 0
        assert found["bytes_inside_nodes"] == 0
        assert len(files) == 4


def test_ranks_that_do_not_divide_share_each_fold(tmp_path: Path) -> None:
    for found, _ in run_ranks(2, trained, str(tmp_path), 3):
        assert found["bytes_inside_nodes"] > 0
        assert len(values_of(found)) == 5


def placed(rank: int, directory: str, folds: int) -> list[Any]:
    """Four ranks in two groups: who was with whom, and which methods' groups could be made there."""
    seen: list[Any] = []

    def evaluate(one: hpo.Trial, fold: Fold) -> float:
        seen.extend([fold.index, one.rank, one.size, dist.get_process_group_ranks(fold.group)])
        torch.manual_seed(rank)
        model = torch.nn.Linear(3, 2)
        data = torch.utils.data.TensorDataset(torch.ones(8, 3), torch.arange(8) % 2)
        result = trainers.train(
            model,
            data,
            data,
            loss=torch.nn.functional.cross_entropy,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1 * (1 + fold.index)),
            # Two nodes of one rank each: it makes groups of its own.
            method=trainers.DASO(sync_every=1, sync_delay=0),
            topology=trainers.Topology(ranks_per_node=1),
            epochs=2,
            batch_size=2,
            # Folds take different numbers of steps, and meet at none.
            interrupt=one.should_checkpoint if fold.index else None,
            group=fold.group,
        )
        seen.append(model.weight.detach().sum().item())
        return result.metrics["train_loss"]

    found = cross_validated(trial(directory, rank=rank, size=4), evaluate, folds=folds)
    return [*seen, found["value"]]


def one_after_another(rank: int, directory: str) -> list[list[Any]]:
    return [placed(rank, f"{directory}/{turn}", 6) for turn in range(2)]


def test_groups_of_two_ranks_train_one_fold_after_another(tmp_path: Path) -> None:
    """Three rounds, in each of which the method makes other groups, and an evaluation more on the same ranks."""
    ranks = run_ranks(4, one_after_another, str(tmp_path))
    first, second, third, fourth = (turns[0] for turns in ranks)
    assert [one[1:4] for one in (first, second)] == [[0, 2, [0, 1]], [1, 2, [0, 1]]]
    assert [one[1:4] for one in (third, fourth)] == [[0, 2, [2, 3]], [1, 2, [2, 3]]]
    assert first[4] == second[4] != third[4] == fourth[4]
    for turns in ranks:
        for turn in turns:
            # Of each fold its index, rank, size, members, and the weights.
            assert len(turn) == 3 * 5 + 1
    assert [turn[0:15:5] for turn in ranks[0]] == [turn[0:15:5] for turn in ranks[1]] == [[0, 2, 4]] * 2
    assert [turn[0:15:5] for turn in ranks[2]] == [turn[0:15:5] for turn in ranks[3]] == [[1, 3, 5]] * 2


class Stopping(hpo.Trial):
    """Rank 0 hears of a stop before the given call, and tells the others."""

    __slots__ = ("left",)

    def should_checkpoint_soon(self) -> bool:
        return self.should_checkpoint()

    def should_checkpoint(self) -> bool:
        self.left -= 1
        word = torch.tensor(int(self.left < 0))
        dist.broadcast(word, 0)
        return bool(word)


def stopped_and_resumed(rank: int, directory: str) -> tuple[str, int, dict[str, float]]:
    size = dist.get_world_size()
    task = digits.make_task(**FAST)  # type: ignore[arg-type]
    one = Stopping.alone(dict(digits.default), directory=directory, rank=rank, size=size)
    one.left = 17 if rank == 0 else 1_000
    outcome = "finished"
    try:
        task.evaluate(one)
    except (hpo.Interrupted, trainers.Interrupted):
        outcome = "interrupted"
    done = len(list(Path(directory).glob("fold-*/result.json")))
    dist.barrier()
    found = task.evaluate(trial(directory, rank=rank, size=size))
    return outcome, done, found


def test_a_stop_reaches_folds_side_by_side_and_all_go_on(tmp_path: Path) -> None:
    expected = run_ranks(2, trained, str(tmp_path / "whole"), 4)[0][0]
    for outcome, done, found in run_ranks(2, stopped_and_resumed, str(tmp_path / "pieces")):
        assert (outcome, done) == ("interrupted", 2)
        assert values_of(found) == values_of(expected)


def uneven(rank: int, directory: str) -> dict[str, float]:
    def evaluate(one: hpo.Trial, fold: Fold) -> float:
        for _ in range(3 * fold.index + 1):
            assert not one.should_checkpoint()
        return float(fold.index)

    return cross_validated(trial(directory, rank=rank, size=3), evaluate, folds=3)


def test_folds_may_take_different_numbers_of_steps(tmp_path: Path) -> None:
    for found in run_ranks(3, uneven, str(tmp_path)):
        assert found["value"] == 1.0


def failing(rank: int, directory: str) -> None:
    def evaluate(one: hpo.Trial, fold: Fold) -> float:
        if fold.index == 1:
            raise RuntimeError("this fold cannot be evaluated")
        return 1.0

    cross_validated(trial(directory, rank=rank, size=2), evaluate, folds=2)


def test_a_fold_that_fails_ends_the_others(tmp_path: Path) -> None:
    (kind, _), (other, text) = outcomes_of_ranks(2, failing, str(tmp_path), timeout_s=30)
    assert (kind, other) == ("raised", "raised")
    assert "this fold cannot be evaluated" in text
