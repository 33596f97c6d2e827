"""DDP against one rank with the joint batch, in double precision, where only roundings may differ."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from cases import cases
from gloo import run_ranks
from models import assert_same_bits, communicator, data, network, sgd
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import trainers
from trainers.communication import averager
from trainers.communication.averager import GradientAverager
from trainers.methods.powersgd import PowerSGDAverager

SAMPLES = 50


def model() -> nn.Module:
    return network(6, 16, 16, 1)


def run(
    rank: int = 0, *, batch_size: int, accumulate: int = 1, clip_norm: float | None = None, **method: Any
) -> tuple[list[Tensor], dict[str, float]]:
    net = model()
    if rank:
        # The loop starts every rank from rank 0's weights.
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.add_(rank)
    result = trainers.train(
        net,
        data(SAMPLES),
        data(SAMPLES),
        loss=nn.functional.mse_loss,
        optimizer=sgd,
        method=trainers.DDP(**method),
        epochs=3,
        batch_size=batch_size,
        accumulate=accumulate,
        clip_norm=clip_norm,
        schedule=trainers.Cosine(warmup_epochs=1),
    )
    return [parameter.detach() for parameter in net.parameters()], result.metrics


def of_rank(rank: int, keywords: dict[str, Any]) -> tuple[list[Tensor], dict[str, float]]:
    return run(rank, **keywords)


# 50 samples in joint batches of 12 do not come out even: five steps of ten, so with 3 ranks and 2 passes
# parts differ.
@pytest.mark.parametrize(
    ("ranks", "keywords"),
    cases(
        [(2, {"batch_size": 6}), (3, {"batch_size": 2, "accumulate": 2, "clip_norm": 0.2})],
        nightly=[(2, {"batch_size": 3, "accumulate": 2}), (3, {"batch_size": 4})],
    ),
)
def test_ranks_and_passes_equal_one_rank_with_the_joint_batch(ranks: int, keywords: dict[str, Any]) -> None:
    expected, metrics = run(batch_size=12, clip_norm=keywords.get("clip_norm"))
    found = run_ranks(ranks, of_rank, keywords)
    for parameters, own_metrics in found:
        torch.testing.assert_close(parameters, expected, rtol=1e-12, atol=1e-12)
        assert own_metrics["train_loss"] == pytest.approx(metrics["train_loss"], rel=1e-12)
        assert own_metrics["validation_loss"] == pytest.approx(metrics["validation_loss"], rel=1e-12)
    assert_same_bits(parameters for parameters, _ in found)


def test_bf16_sends_half_and_strays_little() -> None:
    expected, _ = run(batch_size=12)
    plain, narrow = (run_ranks(2, of_rank, {"batch_size": 6, **c})[0] for c in ({}, {"compression": "bf16"}))
    # Two bytes in place of the eight of double precision.
    assert narrow[1]["bytes_inside_nodes"] == plain[1]["bytes_inside_nodes"] / 4
    assert plain[1]["bytes_between_nodes"] == narrow[1]["bytes_between_nodes"] == 0
    strays = max((a - b).abs().max().item() for a, b in zip(narrow[0], expected, strict=True))
    assert 0 < strays < 0.02


def test_powersgd_of_full_rank_is_exact_and_of_low_rank_sends_less() -> None:
    expected, _ = run(batch_size=12)
    plain, low = (
        run_ranks(2, of_rank, {"batch_size": 6, **c})
        for c in ({}, {"compression": "powersgd", "powersgd_rank": 2})
    )
    # Besides each gradient a flag goes that tells whether the rank has one.
    numbers = sum(p.numel() + 1 for p in expected)
    steps = plain[0][1]["bytes_inside_nodes"] / (2 * 8 * numbers)
    saved = plain[0][1]["bytes_inside_nodes"] - low[0][1]["bytes_inside_nodes"]
    # The layers of 16×6 and 16×16 go as factors, without flags; 1×16 would not be smaller so.
    assert saved == steps * 2 * 8 * (16 * 6 + 1 - 2 * (16 + 6) + 16 * 16 + 1 - 2 * (16 + 16))
    assert_same_bits(parameters for parameters, _ in low)
    strays = max((a - b).abs().max().item() for a, b in zip(low[0][0], expected, strict=True))
    assert 0 < strays < 0.2


class SometimesUsed(nn.Module):
    """``never`` is used nowhere, ``rare`` with every fifth step's batch, if at all."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.used, self.rare, self.never = (nn.Linear(6, 6).double() for _ in range(3))
        self.empty = nn.Parameter(torch.zeros(0, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        x = self.used(x)
        if bool((x[:, 0] > 0.9).any()):
            x = x + self.rare(x)
        return x.mean(1, keepdim=True)


def some_unused(rank: int, batch_size: int, method: trainers.Method) -> list[Tensor]:
    net = SometimesUsed()
    trainers.train(
        net,
        data(SAMPLES),
        loss=nn.functional.mse_loss,
        # Decay and momentum change a parameter with a gradient of zeros.
        optimizer=sgd,
        method=method,
        epochs=2,
        batch_size=batch_size,
    )
    return [parameter.detach() for parameter in net.parameters()]


@pytest.mark.parametrize(
    "method",
    cases(
        [trainers.DDP(compression="powersgd"), trainers.DASO()],  # on one node, DASO and LocalSGD are DDP
        nightly=[trainers.DDP(), trainers.DDP(compression="bf16"), trainers.LocalSGD()],
    ),
    ids=str,
)
def test_what_no_rank_uses_is_left_alone(method: trainers.Method) -> None:
    found = run_ranks(3, some_unused, 2, method)
    assert_same_bits(found)
    start = SometimesUsed()
    assert torch.equal(found[0][-1], start.never.bias)
    assert torch.equal(found[0][-2], start.never.weight)


def unused_now_and_then(
    rank: int, dtype: torch.dtype, wire_dtype: torch.dtype | None, bucket_bytes: int
) -> list[list[bool]]:
    """Whether parameters have a gradient after steps in which ranks (2,), none and (0, 1) had one."""
    comm = communicator()
    parameters = [nn.Parameter(torch.ones(shape, dtype=dtype)) for shape in ((3,), (), (0,))]
    averager = GradientAverager(
        parameters, comm.world, wire_dtype=wire_dtype, keep_none=True, bucket_bytes=bucket_bytes
    )
    found = []
    for ranks in ((2,), (), (0, 1)):
        for parameter in parameters:
            # Zeros of both signs are a gradient, too.
            parameter.grad = torch.full_like(parameter, -0.0) if rank in ranks else None
        averager.arm()
        averager.finish()
        found.append([parameter.grad is not None for parameter in parameters])
    return found


@pytest.mark.parametrize(
    ("dtype", "wire_dtype"),
    cases(
        [(torch.float32, torch.bfloat16), (torch.complex64, None)],
        nightly=[(torch.float32, None), (torch.bfloat16, None)],
    ),
)
def test_a_gradient_of_zeros_is_told_from_none(dtype: torch.dtype, wire_dtype: torch.dtype | None) -> None:
    # An empty one, too: it has a flag like the others.
    expected = [[True, True, True], [False, False, False], [True, True, True]]
    # In one message, and in several.
    for bucket_bytes in (2**20, 1):
        assert run_ranks(3, unused_now_and_then, dtype, wire_dtype, bucket_bytes) == [expected] * 3


def powersgd_beside_plain(rank: int, dtype: torch.dtype) -> list[float]:
    """Feeds one gradient of rank 2 through factors of rank 2, then of rank 1 again and again; errors by
    step."""
    comm = communicator()
    generator = torch.Generator().manual_seed(5)
    precise = torch.complex128 if dtype.is_complex else torch.float64
    common = torch.randn(8, 2, dtype=precise, generator=generator)
    mine = common @ torch.randn(2, 12, dtype=precise, generator=torch.Generator().manual_seed(rank))
    mean = mine.clone()
    comm.world.all_reduce(mean).wait()
    mean /= comm.size
    errors = []
    for columns, steps in ((2, 2), (1, 40)):
        parameter = nn.Parameter(torch.zeros(8, 3, 4, dtype=dtype))
        averager = PowerSGDAverager([parameter], comm.world, rank=columns, seed=0)
        sent = torch.zeros_like(mean)
        for step in range(1, steps + 1):
            parameter.grad = mine.view(8, 3, 4).to(dtype, copy=True)
            averager.arm()
            averager.finish()
            sent += parameter.grad.view(8, 12)
            errors.append((sent / step - mean).norm().item() / mean.norm().item())
    return errors


@pytest.mark.parametrize(
    ("dtype", "rounding"),
    cases(
        [(torch.bfloat16, 0.02), (torch.complex128, 1e-12)],
        nightly=[(torch.float64, 1e-12), (torch.float16, 3e-3)],
    ),
)
def test_powersgd_loses_nothing_of_what_fits_and_feeds_back_what_does_not(
    dtype: torch.dtype, rounding: float
) -> None:
    errors = run_ranks(2, powersgd_beside_plain, dtype)[0]
    assert max(errors[:2]) < rounding
    # What one step misses the next ones bring: the mean of what was sent comes to the gradient as 1 / steps.
    assert errors[2] > 0.1
    assert errors[-1] < 2.5 / 40


def powersgd_with_a_bias_of_rank_0(rank: int) -> tuple[Tensor, Tensor]:
    """Means of gradients of ones, where only rank 0 has used the bias."""
    comm = communicator()
    matrix, bias = nn.Parameter(torch.zeros(8, 12)), nn.Parameter(torch.zeros(8))
    averager = PowerSGDAverager([matrix, bias], comm.world, rank=1, seed=0)
    averager.arm()
    (matrix.sum() + bias.sum() if rank == 0 else matrix.sum()).backward()
    averager.finish()
    averager.close()
    return matrix.grad.clone(), bias.grad.clone()


def test_powersgd_keeps_its_order_where_ranks_lack_a_gradient() -> None:
    for matrix, bias in run_ranks(2, powersgd_with_a_bias_of_rank_0):
        torch.testing.assert_close(matrix, torch.ones(8, 12))
        torch.testing.assert_close(bias, torch.full((8,), 0.5))


def powersgd_with_an_overflow(rank: int, overflows: float) -> tuple[list[Tensor], ...]:
    """The means after a step in which one element of rank 1 is ``overflows``, where that step was left out, and those
    of that step.
    """
    comm = communicator()
    found, during = [], []
    for left_out in (False, True):
        parameters = [nn.Parameter(torch.zeros(8, 12)), nn.Parameter(torch.zeros(6, 2, 5))]
        averager = PowerSGDAverager(parameters, comm.world, rank=1, seed=0)
        for step in range(4):
            if step == 2 and left_out:
                continue
            generator = torch.Generator().manual_seed(2 * step + rank)
            for parameter in parameters:
                parameter.grad = torch.randn(parameter.shape, generator=generator)
            if step == 2 and rank == 1:
                parameters[0].grad[3, 4] = overflows  # type: ignore[index]
            averager.arm()
            averager.finish()
            if step == 2:
                during = [parameter.grad.clone() for parameter in parameters]
        found.append([parameter.grad.clone() for parameter in parameters])
        averager.close()
    return found[0], found[1], during


@pytest.mark.parametrize("overflows", cases([math.inf], nightly=[math.nan]))
def test_powersgd_goes_on_after_a_step_that_overflows_as_if_it_had_not_been(overflows: float) -> None:
    (after, expected, during), (other, _, seen) = run_ranks(2, powersgd_with_an_overflow, overflows)
    for found, same, without in zip(after, other, expected, strict=True):
        assert torch.equal(found, same) and torch.equal(found, without)
    assert not during[0].isfinite().all() and not seen[0].isfinite().all()
    assert during[1].isfinite().all()


class Marked(nn.Module):
    """A block that notes when the backward pass comes to it."""

    def __init__(self, block: nn.Module, note: Callable[[], None]) -> None:
        super().__init__()
        self.block, self.note = block, note

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.block(x)
        y.register_hook(lambda _: self.note())
        return y


def blocks_in_turn(rank: int, compiled: bool) -> list[str]:
    """What happens in a step: the backward pass of each block, and the sending of each message."""
    events: list[str] = []
    send_next = GradientAverager._send_next
    each_bucket = averager.each_bucket  # type: ignore[attr-defined]

    def sent(self: GradientAverager) -> None:
        events.append(f"sent {len(self._under_way)}")
        send_next(self)

    GradientAverager._send_next = sent  # type: ignore[method-assign]
    of_a_block = {"bucket_bytes": 16 * 17 * 4}
    averager.each_bucket = lambda *a, **k: each_bucket(*a, **{**k, **of_a_block})  # type: ignore[attr-defined]
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(3)]
    net = nn.Sequential(
        *(Marked(block, partial(events.append, f"block {place}")) for place, block in enumerate(blocks))
    )
    if compiled:
        for block in blocks:
            block.compile(backend="aot_eager")
    samples = TensorDataset(torch.randn(4, 16), torch.randn(4, 16))
    trainers.train(net, samples, loss=nn.functional.mse_loss, optimizer=sgd, epochs=1, batch_size=2)
    return events


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_of_a_block_are_sent_before_the_backward_pass_of_earlier_blocks(compiled: bool) -> None:
    """Also where blocks are compiled one by one, as ``train`` advises."""
    for events in run_ranks(2, blocks_in_turn, compiled):
        assert events == ["block 2", "sent 0", "block 1", "sent 1", "block 0", "sent 2"]
