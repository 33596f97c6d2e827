"""Every rank sends to every other one what nobody polls for, small and large, and then leaves."""

from __future__ import annotations

import time

from mpi4py import MPI

from hpo.islands.transport import MpiTransport

transport = MpiTransport(MPI.COMM_WORLD)
for other in range(transport.size):
    for size in (10, 10_000_000):
        transport.send(other, b"x" * size)
    if transport.rank == 0:
        time.sleep(0.01)  # ranks that are not equally far
begun = time.monotonic()
complete = transport.leave(30.0)
waiting = MPI.COMM_WORLD.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)
print(f"complete={complete} waiting={waiting} soon={time.monotonic() - begun < 20}", flush=True)
