"""The place of this process among those of torchrun, or alone, and messages between them."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import hpo
from hpo.config import process

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

_PATIENCE = timedelta(seconds=10)


@dataclass(frozen=True, kw_only=True)
class Place:
    """``store``: what the ranks of torchrun share; None: there is no torchrun."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    store: Store | None = None

    @property
    def device(self) -> str:
        """The device of this rank as torch names it; ranks take those of their node in turn."""
        import torch

        devices = torch.cuda.device_count()
        return f"cuda:{self.local_rank % devices}" if devices else "cpu"

    @property
    def backend(self) -> str:
        """What its tensors travel by; the same on all ranks where nodes are alike."""
        import torch

        neighbours = int(process.environment()["LOCAL_WORLD_SIZE"]) if self.store is not None else 1
        # NCCL refuses two ranks on one device.
        return "cpu:gloo,cuda:nccl" if neighbours <= torch.cuda.device_count() else "gloo"

    def report(self, sentence: str) -> None:
        """Print ``sentence`` on standard error, by the first of the ranks that has something to say: what ends one
        mostly ends all. It has been printed when this returns, on all that have come here within seconds.
        """
        if self.store is None:
            print(sentence, file=sys.stderr)
            return
        count = self.store.add("reported", 1)
        if count == 1:
            print(sentence, file=sys.stderr, flush=True)
            self.store.set("printed", "")
        # Who ends first has torchrun end the others: none shall be ended while it speaks, or complain that a peer is
        # gone while it still joins the group.
        with suppress(RuntimeError):
            self.store.wait(["printed"], _PATIENCE)
            if count == self.size:
                self.store.set("all", "")
            self.store.wait(["all"], _PATIENCE)


@contextmanager
def joined() -> Iterator[Place]:
    """Join the group of torchrun, if it started this process."""
    if "TORCHELASTIC_RUN_ID" not in process.environment():
        yield Place()
        return
    import torch
    import torch.distributed as dist

    # Its functions have the group as a default argument: imported later, by the first optimizer, they would
    # keep it and its threads alive, which may abort the process as it exits.
    import torch.distributed.nn.functional
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    from trainers.communication.process_groups import give_back

    store, rank, size = next(rendezvous("env://"))
    place = Place(rank=rank, size=size, local_rank=dist.get_node_local_rank(), store=store)
    if place.device != "cpu":
        # What a task calls just "cuda" is this rank's, too.
        torch.cuda.set_device(place.device)
    dist.init_process_group(
        place.backend,
        store=PrefixStore("group", store),
        rank=rank,
        world_size=size,
        timeout=timedelta(minutes=10),
    )
    try:
        yield place
    finally:
        give_back([None])


@contextmanager
def directory_of(named: Path | None, place: Place) -> Iterator[Path]:
    """The named directory, made if it is not there, or one of rank 0's that all ranks use and that is gone afterwards.

    UsageError if it cannot be made.
    """
    if named is not None:
        try:
            named.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise hpo.UsageError(f"--directory {named}: cannot be made: {error}. Name another.") from error
        yield named
        return
    with tempfile.TemporaryDirectory(prefix="alone-") as own:
        if place.size == 1:
            yield Path(own)
            return
        import torch
        import torch.distributed as dist

        length = 256
        name = torch.frombuffer(bytearray(own.encode().ljust(length, b"\0")), dtype=torch.uint8)
        dist.broadcast(name, src=0)
        yield Path(bytes(name.tolist()).rstrip(b"\0").decode())
        # Rank 0 must not remove what another rank still writes into.
        dist.barrier()
