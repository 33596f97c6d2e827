"""Singular value decompositions of many matrices, shared by the ranks.

Each matrix is decomposed by a single rank, which sends the result to all others: no work is done twice, and all ranks
have the same bits. Otherwise, ranks could differ in the signs of singular vectors, which are not determined, or in
roundings.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from trainers.communication.buckets import broadcast_everywhere
from trainers.communication.communicator import Communicator
from trainers.gpu import is_gpu, module_of
from trainers.precision import full_precision

# The Gram matrix is 2.4 times faster, but in single precision loses singular values below 3e-4 of the largest.
GRAM_CUTOFF = 0.05
"""Least cutoff for which singular vectors are computed from the Gram matrix in single precision."""
# On a GPU the Gram matrix is faster, because cuSOLVER's iterations leave most of the GPU idle. Down to this part,
# double precision makes the singular vectors of the longer side as orthogonal as a decomposition in single precision.
DOUBLE_GRAM_REACH = 1e-6
"""Part of the largest singular value below which vectors from the Gram matrix are orthogonalised."""


@full_precision()
def svd(matrix: Tensor, *, cutoff: float) -> tuple[Tensor, Tensor, Tensor]:
    """U (m × k), singular values (k, falling) and Vᵀ (k × n) of ``matrix`` (m × n), in its dtype.

    k is the largest i with σ_i > ``cutoff`` · σ_1 (dissertation, Eq. 5.4), at least 1; all singular values are kept
    with ``cutoff`` 0, and for a matrix of zeros. For a matrix that is not finite all results are NaN with k = 1: the
    run has diverged, and its loss has to show that on every rank.
    """
    # There are no decompositions for types of half precision.
    work = matrix if matrix.dtype in (torch.float32, torch.float64) else matrix.float()
    largest = work.abs().amax()
    if not bool(torch.isfinite(largest)):
        return (matrix[:, :1] * torch.nan, matrix[0, :1] * torch.nan, matrix[:1] * torch.nan)
    # Any basis fits a matrix of zeros, but the Gram matrix would not give orthogonal vectors on both sides.
    zeros, wide = not bool(largest), matrix.shape[0] < matrix.shape[1]
    found: tuple[Tensor, Tensor, Tensor] | None = None
    if not zeros:
        # Scaled, because squares of very large or small entries would leave the range of the type.
        tall = (work / largest).T if wide else work / largest
        if work.is_cuda and work.dtype is torch.float32:
            found = _by_double_gram(tall, cutoff)
        elif cutoff >= GRAM_CUTOFF:
            found = _by_gram(tall)
    u, values, vt = found or torch.linalg.svd(work, full_matrices=False)
    if found is not None:
        values = values * largest
    k = len(values) if zeros else _kept(values, cutoff)
    u, vt = u[:, :k], vt[:k]
    if found is not None:
        # Vectors of the longer side that belong to small singular values are orthogonal only to 1e-4.
        u = _straightened(u)
        if wide:
            u, vt = vt.T, u.T
    return u.to(matrix.dtype), values[:k].to(matrix.dtype), vt.to(matrix.dtype)


def _kept(values: Tensor, cutoff: float) -> int:
    """Number of the falling singular ``values`` that are above ``cutoff`` times the largest, at least 1."""
    return len(values) if cutoff == 0 else max(1, int((values > cutoff * values[0]).sum()))


def _straightened(basis: Tensor) -> Tensor:
    """``basis``, with nearly orthonormal columns, after a Newton-Schulz step, which squares its error."""
    return 1.5 * basis - 0.5 * basis @ (basis.T @ basis)


def _by_double_gram(matrix: Tensor, cutoff: float) -> tuple[Tensor, Tensor, Tensor] | None:
    """Same as ``_by_gram`` in double precision, also for rank-deficient matrices, such as products of low-rank factors;
    None where the decomposition fails.
    """
    try:
        u, values, vt = _by_gram(matrix.double())
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        return None
    # Singular values that are only roundings have no order.
    values, order = values.sort(descending=True)
    u, vt = u[:, order], vt[order]
    if bool(values[_kept(values, cutoff) - 1] <= DOUBLE_GRAM_REACH * values[0]):
        # Householder's Q is orthogonal for any columns, zeros included, and changes large columns by roundings only.
        q, r = torch.linalg.qr(u * values)
        u = torch.where(r.diagonal() < 0, -q, q)
    return u.to(matrix.dtype), values.to(matrix.dtype), vt.to(matrix.dtype)


def _by_gram(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Same as ``torch.linalg.svd`` of a tall matrix, for singular values that are not small compared to the largest.

    Vectors of the longer side are images of the others, and the less orthogonal the smaller their singular values.
    """
    _, vectors = torch.linalg.eigh(matrix.T @ matrix)
    v = vectors.flip(1)
    images = matrix @ v
    # The length of the image is the singular value, with a smaller error than the square root of the eigenvalue.
    lengths = images.norm(dim=0)
    u = images / lengths.clamp(min=torch.finfo(matrix.dtype).tiny)
    return u, lengths, v.T


class SharedWork:
    """Divides tasks among the ranks by their costs, and sends the results to all ranks. Collective."""

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self.own_s = 0.0
        """Seconds that this rank has spent on tasks."""
        # Makes the channels now, because a resumed run restores the counters of existing channels only.
        broadcast_everywhere(communicator, [], source=0)

    @torch.no_grad()
    def run(
        self, costs: Sequence[float], work: Callable[[int], Sequence[Tensor]], dtypes: Sequence[torch.dtype]
    ) -> list[list[Tensor]]:
        """Results of all tasks on all ranks, with similar ``costs`` for each rank; RuntimeError if another rank fails.

        ``work`` is called on a single rank for the number of a task; it returns tensors of up to two dimensions, of the
        task's entry in ``dtypes``, and equally many for each task.
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
            # Raised after the exchange, so that the other ranks do not wait for this rank's results.
            failure = error
        self.own_s += self._now() - begin
        failed = communicator.service.number_of_each(int(failure is not None))
        if failure is not None:
            raise failure
        if any(failed):
            raise RuntimeError(
                f"rank {failed.index(1)} of {communicator.size} could not decompose its share of the weights. Its own "
                "error says why."
            )
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

    def busiest_s(self) -> float:
        """``own_s`` of the rank that has spent most. Collective."""
        own_s = torch.tensor([self.own_s], dtype=torch.float64, device="cpu")
        return max(float(part.item()) for part in self._communicator.service.all_gather(own_s))

    def _now(self) -> float:
        """Time in seconds after all operations on the device have ended; called only around the rare decompositions."""
        if is_gpu(self._communicator.device):
            module_of(self._communicator.device).synchronize(self._communicator.device)
        return time.perf_counter()

    def _shapes(self, own: dict[int, list[Tensor]], tasks: int) -> list[list[tuple[int, ...]]]:
        """Shapes of the tensors of all tasks, from the ranks that have them."""
        service = self._communicator.service
        per_task = max(service.number_of_each(max((len(tensors) for tensors in own.values()), default=0)))
        # Lengths plus 1, so that 0 means that the tensor does not have the dimension.
        table = torch.zeros(tasks, per_task, 2, dtype=torch.int64, device="cpu")
        for task, tensors in own.items():
            for index, tensor in enumerate(tensors):
                for axis, length in enumerate(tensor.shape):
                    table[task, index, axis] = length + 1
        summed = service.all_reduce(table).wait().tolist()
        return [[tuple(length - 1 for length in shape if length) for shape in task] for task in summed]


def deal(costs: Sequence[float], ranks: int) -> list[int]:
    """Rank of each task, with similar total costs for all ranks (LPT scheduling)."""
    # The most expensive task first, always to the rank with the least costs so far.
    loads, owners = [0.0] * ranks, [0] * len(costs)
    for task in sorted(range(len(costs)), key=lambda task: -costs[task]):
        rank = min(range(ranks), key=loads.__getitem__)
        owners[task] = rank
        loads[rank] += costs[task]
    return owners


def svd_cost(rows: int, columns: int) -> float:
    """Number of operations, up to a constant, of the decomposition of a matrix of ``rows`` × ``columns``."""
    short, long = sorted((rows, columns))
    return float(long * short * short + 4 * short**3)
