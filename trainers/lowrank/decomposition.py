"""Singular value decompositions of many matrices, shared by the ranks.

Each matrix is decomposed by one rank, which hands the result to all others: no work is done twice, and all
hold the same bits. Ranks that decomposed for themselves could differ in the signs of singular vectors, which
are not determined, or in roundings.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from trainers.communication.buckets import broadcast_everywhere
from trainers.communication.communicator import Communicator
from trainers.precision import full_precision

GRAM_CUTOFF = 0.05
"""From this cutoff on singular vectors come from the Gram matrix: 2.4 times faster, in single precision blind
for singular values below 3e-4 of the largest."""
DOUBLE_GRAM_REACH = 1e-6
"""Down to this part of the largest, singular vectors of the longer side come from the Gram matrix in double precision
as orthogonal as a single-precision decomposition gives them; below, they are orthogonalised. On a GPU the Gram matrix
is the fast way: cuSOLVER's iterations leave most of it idle."""


@full_precision()
def svd(matrix: Tensor, *, cutoff: float) -> tuple[Tensor, Tensor, Tensor]:
    """U (m × k), singular values (k, falling), Vᵀ (k × n) of ``matrix`` (m × n), in its dtype.

    k is the largest i with σ_i > ``cutoff`` · σ_1 (Eq. 5.4), at least 1; with ``cutoff`` 0, and for a matrix of
    zeros, of which nothing is small beside the rest, all are kept. Of a matrix that is not finite all is NaN:
    the run has diverged, and its loss shall say so, on every rank.
    """
    # Half-precision types have no decompositions.
    work = matrix if matrix.dtype in (torch.float32, torch.float64) else matrix.float()
    largest = work.abs().amax()
    if not bool(torch.isfinite(largest)):
        return (matrix[:, :1] * torch.nan, matrix[0, :1] * torch.nan, matrix[:1] * torch.nan)
    # Zeros have every basis; the Gram matrix would give none that is orthogonal on both sides.
    zeros = not bool(largest)
    found = None
    if not zeros:
        # Squares of very large or small entries would leave the range of the type.
        scaled = work / largest
        if work.is_cuda and work.dtype is torch.float32:
            found = _by_double_gram(scaled, cutoff)
        elif cutoff >= GRAM_CUTOFF:
            found = _by_gram(scaled)
    by_gram = found is not None
    if found is not None:
        u, values, vt = found[0], found[1] * largest, found[2]
    else:
        u, values, vt = torch.linalg.svd(work, full_matrices=False)
    k = len(values) if zeros else _kept(values, cutoff)
    u, vt = u[:, :k], vt[:k]
    if by_gram:
        # Those of small singular values are orthogonal to 1e-4 only.
        if matrix.shape[0] < matrix.shape[1]:
            vt = _straightened(vt.T).T
        else:
            u = _straightened(u)
    return u.to(matrix.dtype), values[:k].to(matrix.dtype), vt.to(matrix.dtype)


def _kept(values: Tensor, cutoff: float) -> int:
    """How many of the singular ``values``, falling, ``cutoff`` leaves."""
    return len(values) if cutoff == 0 else max(1, int((values > cutoff * values[0]).sum()))


def _straightened(basis: Tensor) -> Tensor:
    """``basis``, whose columns are nearly orthonormal, with the square of its error (Newton-Schulz)."""
    return 1.5 * basis - 0.5 * basis @ (basis.T @ basis)


def _by_double_gram(matrix: Tensor, cutoff: float) -> tuple[Tensor, Tensor, Tensor] | None:
    """As ``torch.linalg.svd``, from the Gram matrix in double precision; None where its decomposition fails.

    Also of a rank-deficient matrix, as one is that was multiplied out of low-rank factors.
    """
    if matrix.shape[0] < matrix.shape[1]:
        found = _by_double_gram(matrix.T, cutoff)
        return None if found is None else (found[2].T, found[1], found[0].T)
    try:
        u, values, vt = _by_gram(matrix.double())
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        return None
    # Those of roundings alone come in any order.
    values, order = values.sort(descending=True)
    u, vt = u[:, order], vt[order]
    if bool(values[_kept(values, cutoff) - 1] <= DOUBLE_GRAM_REACH * values[0]):
        # Householder's Q is orthogonal whatever the columns are, also zeros; large ones change by roundings.
        q, r = torch.linalg.qr(u * values)
        u = torch.where(r.diagonal() < 0, -q, q)
    return u.to(matrix.dtype), values.to(matrix.dtype), vt.to(matrix.dtype)


def _by_gram(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As ``torch.linalg.svd``, for singular values that are not small beside the largest. The vectors of the
    longer side come from the others and are as orthogonal as the singular values are large.
    """
    if matrix.shape[0] < matrix.shape[1]:
        v, values, ut = _by_gram(matrix.T)
        return ut.T, values, v.T
    _, vectors = torch.linalg.eigh(matrix.T @ matrix)
    v = vectors.flip(1)
    images = matrix @ v
    # Of the image the length is the singular value, more exactly than the eigenvalue's root is.
    lengths = images.norm(dim=0)
    u = images / lengths.clamp(min=torch.finfo(matrix.dtype).tiny)
    return u, lengths, v.T


class SharedWork:
    """Deals tasks to ranks, the dearest first, and spreads what each brought. Collective."""

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self.own_s = 0.0
        """Seconds that this rank has worked."""
        # Makes the groups now: a resumed run goes on counting what groups send that are there.
        broadcast_everywhere(communicator, [], source=0)

    @torch.no_grad()
    def run(
        self, costs: Sequence[float], work: Callable[[int], Sequence[Tensor]], dtypes: Sequence[torch.dtype]
    ) -> list[list[Tensor]]:
        """For every task what ``work(task)``, called on one rank, returned: tensors of ``dtypes[task]``, as
        many for each task, of up to two dimensions.
        """
        communicator = self._communicator
        if not costs:
            return []
        owners = deal(costs, communicator.size)
        begin = self._now()
        own: dict[int, list[Tensor]] = {}
        failure: Exception | None = None
        try:
            for task, owner in enumerate(owners):
                if owner == communicator.rank:
                    own[task] = [tensor.contiguous() for tensor in work(task)]
        except Exception as error:
            failure = error
        self.own_s += self._now() - begin
        if communicator.size > 1:
            self._agree_that_all_worked(failure)
        if failure is not None:
            raise failure
        if communicator.size == 1:
            return [own[task] for task in range(len(costs))]
        shapes = self._shapes(own, len(costs))
        results: list[list[Tensor]] = [[] for _ in costs]
        for owner in range(communicator.size):
            tasks = [task for task in range(len(costs)) if owners[task] == owner]
            for task in tasks:
                results[task] = own.get(task) or [
                    torch.empty(shape, dtype=dtypes[task], device=communicator.device)
                    for shape in shapes[task]
                ]
            tensors = [tensor for task in tasks for tensor in results[task]]
            broadcast_everywhere(communicator, tensors, source=owner)
        return results

    def _agree_that_all_worked(self, failure: Exception | None) -> None:
        """RuntimeError on the ranks that did their part where another has failed: it shares nothing with them."""
        communicator = self._communicator
        flag = torch.tensor([failure is not None], dtype=torch.int64, device="cpu")
        failed = [rank for rank, one in enumerate(communicator.service.all_gather(flag)) if one.item()]
        if failed and failure is None:
            raise RuntimeError(
                f"rank {failed[0]} of {communicator.size} could not decompose its share of the weights. Its own error "
                "says why."
            )

    def _now(self) -> float:
        """Seconds, when all that was started on the device is done: at decompositions only, which are rare."""
        if self._communicator.device.type == "cuda":
            torch.cuda.synchronize(self._communicator.device)
        return time.perf_counter()

    def _shapes(self, own: dict[int, list[Tensor]], tasks: int) -> list[list[tuple[int, ...]]]:
        """The shapes of each task's tensors, known to the owners only so far."""
        communicator = self._communicator
        counts = torch.tensor([max((len(tensors) for tensors in own.values()), default=0)], device="cpu")
        per_task = max(int(count.item()) for count in communicator.service.all_gather(counts))
        # Dimensions one higher than they are, so that 0 means that there is none.
        table = torch.zeros(tasks, per_task, 2, dtype=torch.int64, device="cpu")
        for task, tensors in own.items():
            for index, tensor in enumerate(tensors):
                for axis, length in enumerate(tensor.shape):
                    table[task, index, axis] = length + 1
        summed = communicator.service.all_reduce(table).wait().tolist()
        return [[tuple(length - 1 for length in shape if length) for shape in task] for task in summed]


def deal(costs: Sequence[float], ranks: int) -> list[int]:
    """The rank of each task, such that no rank has much more than the others: longest first (LPT)."""
    loads, owners = [0.0] * ranks, [0] * len(costs)
    for task in sorted(range(len(costs)), key=lambda task: -costs[task]):
        rank = min(range(ranks), key=loads.__getitem__)
        owners[task] = rank
        loads[rank] += costs[task]
    return owners


def svd_cost(rows: int, columns: int) -> float:
    """Operations, up to a constant, that the decomposition of such a matrix takes."""
    short, long = sorted((rows, columns))
    return float(long * short * short + 4 * short**3)
