"""Decompositions, how ranks share them, and optimizers whose parameters are exchanged."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from gloo import run_ranks
from hypothesis import given
from hypothesis import strategies as st
from models import communicator, setup_of
from skips import not_possible_here
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import trainers
from trainers.lowrank.decomposition import SharedWork, _by_double_gram, deal, svd, svd_cost
from trainers.lowrank.layers import factorise, make_whole, matrix_weights
from trainers.lowrank.state_projection import Projection, exchange
from trainers.methods.ab_merge import merged_matrix
from trainers.precision import BY_BACKEND


def matrix(rows: int, columns: int, smallest: float = 1e-3, dtype: torch.dtype = torch.float64) -> Tensor:
    """Random bases, singular values from 1 to ``smallest`` in even ratios."""
    generator = torch.Generator().manual_seed(rows + columns)
    k = min(rows, columns)
    u, v = (
        torch.linalg.qr(torch.randn(size, k, dtype=torch.float64, generator=generator)).Q
        for size in (rows, columns)
    )
    values = torch.logspace(0, math.log10(smallest), k, dtype=torch.float64)
    return (u @ torch.diag(values) @ v.T).to(dtype)


def orthogonality_error(basis: Tensor) -> float:
    gram = basis.double().T @ basis.double()
    return (gram - torch.eye(len(gram), dtype=torch.float64)).abs().max().item()


# The decomposition


@pytest.mark.parametrize("shape", [(96, 64), (80, 80)])
def test_by_the_gram_matrix_in_double_precision_nothing_of_single_is_lost(shape: tuple[int, int]) -> None:
    """What a GPU does, on the CPU; also of a matrix whose ranks are of a quarter, and of one with dead neurons."""
    of_factors = matrix(shape[0], 20, dtype=torch.float32) @ matrix(20, shape[1], dtype=torch.float32)
    dead = matrix(*shape, dtype=torch.float32)
    dead[:, 3] = dead[5] = 0
    graded = [matrix(*shape, smallest=smallest, dtype=torch.float32) for smallest in (1e-2, 1e-5, 1e-8)]
    for a in (*graded, of_factors, dead):
        found = _by_double_gram(a, 0.0)
        assert found is not None
        u, values, vt = found
        assert u.shape == (shape[0], min(shape)) and vt.shape == (min(shape), shape[1])
        assert max(orthogonality_error(u), orthogonality_error(vt.T)) < 3e-6
        torch.testing.assert_close(u @ torch.diag(values) @ vt, a, rtol=0, atol=1e-6)
        torch.testing.assert_close(values.double(), torch.linalg.svdvals(a.double()), rtol=0, atol=4e-7)
        assert bool((values.diff() <= 0).all())


class Products(TorchDispatchMode):
    """How precise the device was allowed to be in each product of matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, str]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default):
            self.seen.append(allowed())
        return func(*args, **(kwargs or {}))


def allowed() -> tuple[str, str]:
    if not BY_BACKEND:
        precision = torch.get_float32_matmul_precision()
        return ("ieee", "ieee") if precision == "highest" else (precision, precision)
    return torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision


def decomposed_and_merged() -> None:
    """What decompositions and merges multiply, in both methods."""
    torch.manual_seed(0)
    layer = nn.Linear(24, 20)
    optimizer = torch.optim.AdamW(layer.parameters())
    weight = matrix_weights(layer)[0]
    old = weight.whole
    old.grad = torch.randn(20, 24)
    optimizer.step()
    u, values, vt = svd(old.detach(), cutoff=0.1)
    factors = {"a": nn.Parameter(u * values), "b": nn.Parameter(vt)}
    factorise(weight, factors)
    exchange(optimizer, old, factors["b"], Projection(left=(u * values).T))
    merged_matrix(*factors.values(), *factors.values(), gain=(0.5, 0.5), mixed=True)
    make_whole(weight)
    method = trainers.OIALR(delay=0, update_every=1, full_rank_last_layer=False)
    strategy = method.strategy(setup_of(layer, communicator()))
    for step in range(3):
        strategy.before_pass(step, last=True)


@pytest.mark.parametrize("precision", ["high", "mixed"])
def test_what_stays_is_multiplied_in_full_precision(precision: str) -> None:
    if precision == "mixed" and not BY_BACKEND:
        not_possible_here("before torch 2.9 there is one setting")
    untouched = allowed()
    try:
        if precision == "mixed":
            # After which torch refuses to tell its older setting.
            torch.backends.cuda.matmul.fp32_precision = "tf32"
        else:
            torch.set_float32_matmul_precision(precision)
        set_so = allowed()
        with Products() as products:
            torch.ones(2, 2) @ torch.ones(2, 2)
            decomposed_and_merged()
        assert products.seen[0] == set_so != ("ieee", "ieee")
        assert len(products.seen) > 20
        assert set(products.seen[1:]) == {("ieee", "ieee")}
        assert allowed() == set_so
    finally:
        if precision != "mixed":
            torch.set_float32_matmul_precision("highest")
        if BY_BACKEND:
            torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision = untouched


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_becomes_nan(value: float) -> None:
    a = matrix(5, 4)
    a[2, 3] = value
    u, values, vt = svd(a, cutoff=0.1)
    assert (u.shape, values.shape, vt.shape) == ((5, 1), (1,), (1, 4))
    assert all(t.isnan().all() for t in (u, values, vt))


def test_weights_of_any_size_type_and_rank_decompose() -> None:
    a = matrix(30, 20, dtype=torch.float32)
    values = torch.linalg.svdvals(a)
    low = torch.outer(torch.arange(1.0, 7), torch.ones(5))
    zeros = torch.zeros(6, 4)
    for given_, cutoff, kept in (
        (a, 0.1, int((values > 0.1 * values[0]).sum())),
        (a * 1e-30, 0.1, int((values > 0.1 * values[0]).sum())),
        (a * 1e30, 0.1, int((values > 0.1 * values[0]).sum())),
        *((matrix(*shape, smallest=1e-4, dtype=torch.float32), 0.05, None) for shape in ((96, 64), (64, 96))),
        (low, 0.1, 1),
        (low, 0.0, 5),
        (zeros, 0.0, 4),
        (zeros, 0.1, 4),
        (matrix(20, 30).to(torch.bfloat16), 0.1, None),
    ):
        u, found, vt = svd(given_, cutoff=cutoff)
        half = given_.dtype is torch.bfloat16
        assert {u.dtype, found.dtype, vt.dtype} == {given_.dtype}
        assert len(found) == (len(found) if kept is None else kept)
        expected = torch.linalg.svdvals(given_.float())[: len(found)]
        size = float(expected[0]) or 1.0
        torch.testing.assert_close(
            found.float() / size, expected / size, rtol=0.01 if half else 1e-4, atol=1e-6
        )
        if not half:
            assert max(orthogonality_error(u), orthogonality_error(vt.T)) < 3e-6


@given(
    rows=st.integers(1, 20),
    columns=st.integers(1, 20),
    cutoff=st.sampled_from([0.0, 0.01, 0.1, 0.9]),
    seed=st.integers(0, 2**16),
)
def test_svd_of_anything(rows: int, columns: int, cutoff: float, seed: int) -> None:
    a = torch.randn(rows, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    u, values, vt = svd(a, cutoff=cutoff)
    # Eq. 5.4
    assert len(values) == int((torch.linalg.svdvals(a) > cutoff * torch.linalg.svdvals(a)[0]).sum())
    assert max(orthogonality_error(u), orthogonality_error(vt.T)) < 1e-8
    # What is dropped is the whole error.
    dropped = torch.linalg.svdvals(a)[len(values) :]
    error = (a - u @ torch.diag(values) @ vt).norm()
    torch.testing.assert_close(error, dropped.square().sum().sqrt(), rtol=1e-7, atol=1e-10)


# Shared among ranks


@given(costs=st.lists(st.floats(0.1, 100), max_size=30), ranks=st.integers(1, 8))
def test_dealing_is_even(costs: list[float], ranks: int) -> None:
    owners = deal(costs, ranks)
    loads = [sum(c for c, o in zip(costs, owners, strict=True) if o == rank) for rank in range(ranks)]
    assert sum(loads) == pytest.approx(sum(costs))
    # The last task of the fullest rank went there when no other had less.
    assert max(loads) <= sum(costs) / ranks + max(costs, default=0.0) + 1e-9


def shared(rank: int, ranks_per_node: int | None) -> tuple[list[list[Tensor]], list[int], Any, bool]:
    comm = communicator(ranks_per_node)
    work = SharedWork(comm)
    known = set(comm.counters())
    done: list[int] = []
    sizes = [(9, 4), (30, 20), (5, 5), (20, 30), (3, 8)]

    def decompose(task: int) -> tuple[Tensor, ...]:
        done.append(task)
        # Ranks that did it themselves would differ in signs.
        sign = -1 if rank % 2 else 1
        u, values, vt = svd(matrix(*sizes[task]).to(dtypes[task]), cutoff=0.1)
        return sign * u, values, sign * vt.T.contiguous().T

    dtypes = [torch.float64, torch.float32, torch.float64, torch.float32, torch.bfloat16]
    found = work.run([svd_cost(*size) for size in sizes], decompose, dtypes)
    assert [[t.dtype for t in task] for task in found] == [[dtype] * 3 for dtype in dtypes]
    assert all(tensor.is_contiguous() for task in found for tensor in task)
    assert work.run([], decompose, []) == []
    assert (work.own_s > 0) == bool(done)
    # All groups are there from the start, or their counters could not be taken up again.
    assert set(comm.counters()) == known
    counters = comm.counters()
    comm.close()
    return [[t.float() for t in task] for task in found], done, counters, len(known) > 2


@pytest.mark.parametrize(("ranks", "per_node"), [(1, None), (2, None), (3, None), (4, 2), (3, 1)])
def test_every_task_is_done_once_and_all_have_the_result(ranks: int, per_node: int | None) -> None:
    found = run_ranks(ranks, shared, per_node) if ranks > 1 else [shared(0, None)]
    assert sorted(task for _, done, _, _ in found for task in done) == list(range(5))
    for results, _, _, several_groups in found:
        assert several_groups == (per_node is not None)
        for task, expected in zip(results, found[0][0], strict=True):
            assert all(torch.equal(a, b) for a, b in zip(task, expected, strict=True))


def one_fails(rank: int) -> str:
    comm = communicator()

    def work(task: int) -> tuple[Tensor, ...]:
        if rank == 1:
            raise ArithmeticError("no convergence")
        return (torch.ones(2),)

    try:
        SharedWork(comm).run([1.0, 1.0], work, [torch.float32] * 2)
    except (ArithmeticError, RuntimeError) as error:
        comm.service.barrier(comm.device)  # all have raised: the ranks are in step, and the channel is whole
        return f"{type(error).__name__}: {error}"
    return "returned"


def test_where_a_decomposition_fails_on_one_rank_all_raise() -> None:
    other, own = run_ranks(2, one_fails)
    assert other.startswith("RuntimeError: rank 1 of 2 could not decompose")
    assert own == "ArithmeticError: no convergence"


# What the optimizer knows

OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, amsgrad=True),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.9, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.5),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.1),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.1),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.1),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=0.1),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.1),
}
PROJECTED = ("sgd", "momentum", "adamw", "nadam", "rmsprop", "adagrad")


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def stepped(make: Any, steps: int = 3) -> tuple[torch.optim.Optimizer, nn.Parameter, nn.Parameter]:
    old, other = nn.Parameter(random(6, 2, 4)), nn.Parameter(random(3))
    optimizer = make([{"params": [other, old]}])
    for step in range(steps):
        old.grad, other.grad = random(6, 2, 4, seed=step + 1), random(3, seed=step + 9)
        optimizer.step()
    return optimizer, old, other


@pytest.mark.parametrize(
    ("kind", "projected"), [*((kind, True) for kind in OPTIMIZERS), ("adagrad", False), ("adamw", False)]
)
def test_an_exchanged_parameter_goes_on_being_trained(kind: str, projected: bool) -> None:
    optimizer, old, other = stepped(OPTIMIZERS[kind])
    left, right = random(5, 6), random(8, 7)
    new = nn.Parameter(random(5, 7))
    before = {name: v.clone() if isinstance(v, Tensor) else v for name, v in optimizer.state[old].items()}
    exchange(optimizer, old, new, Projection(left=left, right=right) if projected else None)
    assert [id(p) for p in optimizer.param_groups[0]["params"]] == [id(other), id(new)]
    assert old not in optimizer.state
    assert old.grad is None
    if projected and kind in PROJECTED:
        assert optimizer.state[new].keys() == before.keys()
        for name, value in optimizer.state[new].items():
            was = before[name]
            if isinstance(was, Tensor) and was.dim():
                first = name in ("exp_avg", "momentum_buffer", "grad_avg")
                a, b = (left, right) if first else (left**2, right**2)
                # Beside a mean, whose square the optimizer takes off, it is the variance that goes through squares.
                mean = before["grad_avg"].view(6, 8) if name == "square_avg" else torch.zeros(6, 8)
                expected = a @ (was.view(6, 8) - mean**2) @ b + (left @ mean.to(left) @ right) ** 2
                torch.testing.assert_close(value, expected)
            else:
                assert value == was
    elif kind == "adagrad":
        assert torch.equal(optimizer.state[new]["sum"], torch.full_like(new, 0.5))
    else:
        assert new not in optimizer.state
    value = new.detach().clone()
    new.grad, other.grad = random(5, 7, seed=20), random(3)
    optimizer.step()
    assert (new - value).abs().min() > 0
    optimizer.load_state_dict(optimizer.state_dict())


def test_a_centred_second_moment_stays_above_its_mean_s_square() -> None:
    """Else the optimizer takes the root of a negative number: inputs with a direction in common suffice for that."""
    old = nn.Parameter(torch.zeros(32, 48, dtype=torch.float64))
    optimizer = torch.optim.RMSprop([old], lr=0.1, centered=True)

    def gradient(seed: int) -> Tensor:
        return torch.outer(1 + random(32, seed=seed), 1 + 0.3 * random(48, seed=seed + 10_000))

    for step in range(100):
        old.grad = gradient(step)
        optimizer.step()
    u, _, vt = torch.linalg.svd(sum(gradient(step) for step in range(50)), full_matrices=False)
    new = nn.Parameter(torch.zeros(32, 32, dtype=torch.float64))
    exchange(optimizer, old, new, Projection(left=u.T, right=vt.T))
    state = optimizer.state[new]
    assert (state["square_avg"] >= state["grad_avg"].square()).all()
    for step in range(100, 120):
        new.grad = u.T @ gradient(step) @ vt.T
        optimizer.step()
        assert new.isfinite().all()


def test_moments_of_complex_parameters_begin_anew_as_squares_of_their_parts_go_through_no_map() -> None:
    old = nn.Parameter(torch.complex(random(6, 8), random(6, 8, seed=1)))
    optimizer = torch.optim.Adam([old], lr=0.1)
    old.grad = torch.complex(random(6, 8, seed=2), random(6, 8, seed=3))
    optimizer.step()
    u, _, vh = torch.linalg.svd(old.detach(), full_matrices=False)
    new = nn.Parameter(u.mH @ old.detach() @ vh.mH)
    exchange(optimizer, old, new, Projection(left=u.mH, right=vh.mH))
    new.grad = torch.complex(random(6, 6, seed=4), random(6, 6, seed=5))
    optimizer.step()
    assert new.isfinite().all()


def test_state_that_no_map_is_known_for_begins_anew() -> None:
    codes = torch.zeros(6, 2, 4, dtype=torch.uint8)
    for name, other in (
        ("further", [random(6, 8)]),
        ("further", {"inner": random(6, 8)}),
        ("further", codes),
        # One number for a whole layer, as NovoGrad has it.
        ("exp_avg_sq", torch.tensor(1.0)),
    ):
        optimizer, old, _ = stepped(OPTIMIZERS["adamw"])
        optimizer.state[old][name] = other
        new = nn.Parameter(random(5, 8))
        exchange(optimizer, old, new, Projection(left=random(5, 6)))
        assert new not in optimizer.state
