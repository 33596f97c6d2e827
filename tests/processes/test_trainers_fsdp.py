"""Models of which each rank has a part: FSDP, its copies, tensor parallelism, and both together."""

from __future__ import annotations

import os
import shutil
import signal
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from cases import cases
from gloo import outcomes_of_ranks, run_ranks
from resuming import After, state_of
from sharded import (
    FSDP,
    HSDP,
    TENSOR,
    Block,
    Net,
    Streamed,
    accuracy,
    assert_as_one_rank,
    samples,
    split_blocks,
    train,
    trained,
)
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import trainers

MANY: dict[str, Any] = {"clip_norm": 0.3, "ema_decay": 0.8, "evaluate_every": 4}


@pytest.mark.parametrize(
    ("ranks", "method", "options"),
    cases(
        [
            (2, FSDP, {**MANY, "activation_checkpointing": ("blocks.*",)}),
            (4, TENSOR, MANY),
            (2, FSDP, {"precision": "bf16"}),
        ],
        nightly=[(2, trainers.FSDP(offload=True, reshard_after_forward=False), MANY)],
    ),
)
def test_training_in_parts_equals_one_rank(
    ranks: int, method: trainers.FSDP, options: dict[str, Any]
) -> None:
    assert_as_one_rank(ranks, method, options)


def trained_by_muon(rank: int, method: Any) -> dict[str, torch.Tensor]:
    # In float64, as the iteration in bfloat16 may round what differs in float32 to other numbers.
    net, data = Net().double(), TensorDataset(samples(96).tensors[0].double(), samples(96).tensors[1])
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    trainers.train(
        net, data, loss=cross_entropy, optimizer=trainers.muon(lr=0.02, others=partial(torch.optim.AdamW, lr=1e-2)),
        epochs=2, batch_size=16 * getattr(method, "tensor", 1) // ranks, method=method,
    )  # fmt: skip
    return state_of(net)


@pytest.mark.parametrize(("ranks", "method"), cases([(2, FSDP)], nightly=[(4, HSDP), (4, TENSOR)]))
def test_muon_orthogonalises_whole_matrices(ranks: int, method: trainers.FSDP) -> None:
    expected = trained_by_muon(0, None)
    for found in run_ranks(ranks, trained_by_muon, method):
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=0, atol=1e-6)


@dataclass(frozen=True)
class OwnSharding(trainers.Method):
    """A user's own method."""

    def prepare(self, model: nn.Module, communicator: Any) -> trainers.DataRanks:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=init_device_mesh("cpu", (communicator.size,)))
        return trainers.DataRanks(communicator.rank, communicator.size)

    def strategy(self, setup: trainers.Setup) -> trainers.Strategy:
        return OwnStrategy()


class OwnStrategy(trainers.Strategy):
    sharded = True


def test_a_method_of_the_users_own_shards() -> None:
    assert_as_one_rank(2, OwnSharding(), {"ema_decay": 0.8})


# Evaluation


def evaluated(rank: int, method: Any, sizes: list[int]) -> list[list[dict[str, float]]]:
    net = Net()
    if method is not None:
        trainers.train(
            net, samples(8), loss=cross_entropy, optimizer=lambda p: torch.optim.SGD(p, lr=0.0), epochs=1,
            batch_size=2, method=method, timeout=timedelta(seconds=20),
        )  # fmt: skip
    metrics = {"accuracy": accuracy, "loss": cross_entropy}
    return [
        [trainers.evaluate(net, made, metrics=metrics, batch_size=3) for made in (samples(n, 3), Streamed(n))]
        for n in sizes
    ]


@pytest.mark.parametrize(
    ("ranks", "method", "most"),
    cases([(4, TENSOR, 8)], nightly=[(2, FSDP, 40), (4, FSDP, 40), (4, TENSOR, 40)]),
)
def test_each_number_of_samples_is_evaluated_as_by_one_rank(ranks: int, method: Any, most: int) -> None:
    sizes = [*range(1, most + 1)]
    expected = evaluated(0, None, sizes)
    for found in run_ranks(ranks, evaluated, method, sizes):
        for of_size, others in zip(found, expected, strict=True):
            for values in of_size:
                assert values == pytest.approx(others[0], abs=1e-5)


# Checkpoints


def checkpointed(rank: int, method: Any, directory: str, stop: int | None) -> Any:
    options = {**MANY, "early_stopping": trainers.EarlyStopping(patience=9, restore_best=True)}
    if stop is None:
        return trained(rank, method, {**options, "checkpoint": directory})
    with pytest.raises(trainers.Interrupted):
        trained(rank, method, {**options, "checkpoint": directory, "interrupt": After(stop)})
    return None


def on(ranks: int, directory: Path, stop: int | None) -> tuple[dict[str, torch.Tensor], list[float]]:
    if ranks == 1:
        return checkpointed(0, FSDP, str(directory), stop)  # type: ignore[no-any-return]
    return run_ranks(ranks, checkpointed, FSDP, str(directory), stop)[0]  # type: ignore[no-any-return]


def test_a_run_goes_on_on_other_numbers_of_ranks(tmp_path: Path) -> None:
    weights, losses = on(4, tmp_path / "whole", None)
    on(4, tmp_path / "saved", 5)
    for name, ranks in (("two", 2), ("one", 1), ("four", 4)):
        shutil.copytree(tmp_path / "saved", tmp_path / name)
        if name == "four":  # by way of one rank
            on(1, tmp_path / name, 3)
        found, found_losses = on(ranks, tmp_path / name, None)
        assert found_losses == pytest.approx(losses, abs=1e-6)
        for key, value in weights.items():
            torch.testing.assert_close(found[key], value, rtol=0, atol=1e-5)
        loaded = trainers.load_trained(Net(), tmp_path / name)
        assert all(torch.equal(value, found[key]) for key, value in loaded.state_dict().items())


def interrupted_at_each(rank: int, method: Any, directory: str) -> None:
    weights, losses = checkpointed(rank, method, f"{directory}/whole", None)
    for stop in range(1, 11):
        checkpointed(rank, method, f"{directory}/{stop}", stop)
        found, found_losses = checkpointed(rank, method, f"{directory}/{stop}", None)
        assert found_losses == losses
        assert all(torch.equal(value, found[key]) for key, value in weights.items()), stop


@pytest.mark.parametrize(("ranks", "method"), cases([(2, FSDP)], nightly=[(4, HSDP), (4, TENSOR)]))
def test_interrupted_at_each_step_it_goes_on_bit_for_bit(ranks: int, method: Any, tmp_path: Path) -> None:
    run_ranks(ranks, interrupted_at_each, method, str(tmp_path))


def saved_bytes(rank: int, directory: str) -> int:
    train(Net(inner=4096), HSDP if directory.endswith("4") else FSDP, checkpoint=directory)
    return sum(path.stat().st_size for path in Path(directory).rglob("*.pt"))


def test_each_part_is_written_once(tmp_path: Path) -> None:
    alone = saved_bytes(0, f"{tmp_path}/1")
    assert run_ranks(4, saved_bytes, f"{tmp_path}/4") == [pytest.approx(alone, rel=0.05)] * 4


def killed_while_writing(rank: int, directory: str) -> None:
    from trainers.checkpoints import checkpoint

    write = checkpoint.write_tensors

    def dying(path: Path, content: object) -> int:
        if (path.parent.name, path.name) == ("step-000000003", "rank-1.pt"):
            path.with_name(path.name + ".partial").write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGKILL)
        return write(path, content)

    checkpoint.write_tensors = dying
    timeout = timedelta(seconds=10)
    trained(rank, FSDP, {**MANY, "checkpoint": directory, "checkpoint_every": 1, "timeout": timeout})


def resumed(rank: int, directory: str) -> Any:
    return trained(rank, FSDP, {**MANY, "checkpoint": directory})


def test_after_a_kill_amid_writing_the_checkpoint_before_counts(tmp_path: Path) -> None:
    outcomes = outcomes_of_ranks(2, killed_while_writing, str(tmp_path / "killed"))
    assert [kind for kind, _ in outcomes] == ["raised", "ended"]
    assert "CommunicationError" in outcomes[0][1]
    assert (tmp_path / "killed" / "latest").read_text().startswith("2\n")
    (weights, losses), _ = run_ranks(2, resumed, str(tmp_path / "whole"))
    for found, found_losses in run_ranks(2, resumed, str(tmp_path / "killed")):
        assert found_losses == losses
        assert all(torch.equal(value, found[key]) for key, value in weights.items())


# After the run


def used(rank: int, method: Any, runs: int, directory: str) -> list[tuple[int, ...]]:
    from torch.distributed.distributed_c10d import _world

    counted = []
    for run in range(runs):
        net, inputs = Net(), samples(4, 5).tensors[0]
        options: dict[str, Any] = {"epochs": 1, "clip_norm": 0.1, "checkpoint": f"{directory}/{run}"}
        train(net, method, **options)
        outputs, state, whole = net.eval()(inputs), state_of(net), trainers.whole(net)
        trainers.save_model(net, f"{directory}/{run}.safetensors")
        assert (whole is None) == (rank > 0)
        if whole is not None:
            assert [type(module) for module in whole.modules()] == [type(m) for m in Net().modules()]
            expected = whole(inputs)
            for other in (
                trainers.load_trained(Net(), f"{directory}/{run}"),
                trainers.load_model(Net(), f"{directory}/{run}.safetensors"),
            ):
                assert torch.equal(other.eval()(inputs), expected)
            assert all(torch.equal(value, state[name]) for name, value in whole.state_dict().items())
            torch.testing.assert_close(outputs, expected)
        counted.append(
            (len(_world.pg_map), *(len([*Path(f"/proc/self/{d}").iterdir()]) for d in ("fd", "task")))
        )
    return counted


@pytest.mark.parametrize(
    ("ranks", "method", "runs"),
    cases([(2, FSDP, 3)], nightly=[(2, FSDP, 50), (4, HSDP, 50), (4, TENSOR, 50)]),
)
def test_models_can_be_used_after_many_runs_in_one_process(
    ranks: int, method: Any, runs: int, tmp_path: Path
) -> None:
    for counted in run_ranks(ranks, used, method, runs, str(tmp_path)):
        assert all(last <= first for last, first in zip(counted[-1], counted[1], strict=True)), counted


def asked_alone(rank: int) -> str:
    net = Net()
    train(net, FSDP, epochs=1, timeout=timedelta(seconds=2))
    if rank:
        return ""
    with pytest.raises(trainers.CommunicationError, match="called by each") as caught:
        trainers.whole(net)
    return str(caught.value)


def test_a_rank_that_asks_alone_for_the_whole_model_is_told() -> None:
    assert run_ranks(2, asked_alone)[0]


def split_by_some(model: nn.Module, mesh: Any) -> None:
    if dist.get_rank():
        raise ZeroDivisionError("of the user")
    split_blocks(model, mesh)


def alone(rank: int) -> None:
    split_alone = trainers.FSDP(tensor=2, parallelize=split_by_some)
    with pytest.raises(ZeroDivisionError if rank else trainers.CommunicationError):
        train(Net(), split_alone, timeout=timedelta(seconds=10))


def evaluated_alone(rank: int) -> None:
    net = Net()
    train(net, FSDP, epochs=1)
    group = [dist.new_group([only]) for only in range(2)][rank]  # type: ignore[no-untyped-call]
    with pytest.raises(ValueError, match=r"sharded over 2 ranks, and 1 would"):
        trainers.evaluate(net, samples(8), metrics={"accuracy": accuracy}, batch_size=4, group=group)


def test_what_a_rank_does_alone_is_named() -> None:
    outcomes = outcomes_of_ranks(2, alone)
    assert outcomes[0] == ("returned", None), outcomes
    run_ranks(2, evaluated_alone)


# Bytes


def bytes_sent(rank: int, method: Any) -> float:
    options = {"epochs": 1, "accumulate": 2, "topology": trainers.Topology(ranks_per_node=2)}
    metrics = train(Net(), method, **options).metrics
    return metrics["bytes_inside_nodes"] + metrics["bytes_between_nodes"]


@pytest.mark.parametrize("method", cases([HSDP], nightly=[FSDP]))
def test_bytes_are_those_of_the_shapes(method: trainers.FSDP) -> None:
    shard = method.shard or 4
    net = Net()
    padded = {
        module: sum(4 * shard * -(-len(p) // shard) * (p.numel() // len(p)) for p in module.parameters())
        for module in net.children()
    }
    blocks = padded.pop(net.blocks)
    passes, steps, copies = 2, 6, 4 // shard
    # Blocks are gathered for either pass, the rest once; all is reduced in each pass, and summed over copies in a step.
    of_pass = (3 * blocks + 2 * sum(padded.values())) * (shard - 1) / shard
    of_step = 2 * (blocks + sum(padded.values())) / shard * (copies - 1) / copies
    expected = 4 * steps * (passes * of_pass + of_step)
    assert run_ranks(4, bytes_sent, method) == [pytest.approx(expected, rel=0.01)] * 4


# What is refused


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.blocks[1].up.weight = self.blocks[0].up.weight  # type: ignore[union-attr]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks[1](self.blocks[0](x))  # type: ignore[no-any-return]


REFUSED: dict[str, tuple[nn.Module, dict[str, Any], str]] = {
    "width": (
        Net(inner=33),
        {"tensor": 2, "parallelize": split_blocks},
        r"blocks\.0\.up\.weight .*33, which 2",
    ),
    "tied": (Tied(), {"blocks": ("blocks.*",)}, r"blocks\.1\.up\.weight belongs to blocks\.0 and blocks\.1"),
    "shard": (Net(), {"shard": 3}, "shard . tensor = 3 does not divide the 2 ranks"),
    "names": (Net(), {"blocks": ("layers.*",)}, "no module is called 'layers"),
    "nothing split": (Net(), {"tensor": 2, "parallelize": print}, "split no layer"),
    "types": (
        nn.Sequential(nn.Linear(12, 5), nn.Linear(5, 5).bfloat16()),
        {"blocks": ()},
        "bfloat16 and torch.float32",
    ),
}


def refused(rank: int) -> None:
    for net, options, sentence in REFUSED.values():
        with pytest.raises(ValueError, match=sentence):
            train(net, trainers.FSDP(**options))
    optimizer = torch.optim.SGD((net := Net()).parameters(), lr=0.1)
    for unable in (trainers.lars, trainers.lamb):
        with pytest.raises(RuntimeError, match="lacks an operation for sharded tensors"):
            train(Net(), FSDP, optimizer=partial(unable, lr=0.1))
    with pytest.raises(ValueError, match=r"use trainers\.train"):
        trainers.wrap(net, optimizer, method=FSDP, epochs=1, steps_per_epoch=1)


def test_what_cannot_be_sharded_is_refused_with_the_remedy() -> None:
    run_ranks(2, refused)
    with pytest.raises(ValueError, match="synchronisation"):
        trainers.OIALR(synchronisation=FSDP)
    with pytest.raises(ValueError, match="parallelize"):
        trainers.FSDP(tensor=2)
