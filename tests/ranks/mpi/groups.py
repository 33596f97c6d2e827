"""A rank that still listens while the others of its worker make their communicator already: it must hear what was sent
to it and nothing of theirs, and what it is sent must not go into the making."""

from __future__ import annotations

import json
import sys
import time

from mpi4py import MPI

from hpo.islands.transport import MpiTransport

transport = MpiTransport(MPI.COMM_WORLD)
rank, size = transport.rank, transport.size
listener = int(sys.argv[1])
heard: list[tuple[int, bytes]] = []
if rank == listener:
    deadline = time.monotonic() + 60
    while len(heard) < size - 1 and time.monotonic() < deadline:
        heard += transport.poll()
    # The others are inside, and wait for this rank.
    listened = time.monotonic() + 0.5
    while time.monotonic() < listened:
        heard += transport.poll()
else:
    transport.send(listener, b'"early"')
worker = transport.communicator(range(size))
if rank == (listener + 1) % size:
    transport.send(listener, b'"later"')
total = worker.allreduce(rank)
worker.Barrier()
deadline = time.monotonic() + 60
while rank == listener and len(heard) < size and time.monotonic() < deadline:
    heard += transport.poll()
if rank == listener:
    told = sorted((source, data.decode(errors="replace")) for source, data in heard)
    print(json.dumps({"heard": told, "total": total}), flush=True)
worker.Free()
transport.leave(10.0)
