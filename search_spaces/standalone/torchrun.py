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
    """Rank of this process, and the ``store`` that the ranks of torchrun share; None: without torchrun."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    store: Store | None = None

    @property
    def device(self) -> str:
        """Device of this rank as torch names it; the ranks of a node use its devices in turn."""
        import torch

        devices = torch.cuda.device_count()
        return f"cuda:{self.local_rank % devices}" if devices else "cpu"

    @property
    def backend(self) -> str:
        """Backend of the process group; the same on all ranks if nodes are alike."""
        import torch

        neighbours = int(process.environment()["LOCAL_WORLD_SIZE"]) if self.store is not None else 1
        # NCCL refuses two ranks on one device.
        return "cpu:gloo,cuda:nccl" if neighbours <= torch.cuda.device_count() else "gloo"

    def report(self, sentence: str) -> None:
        """Print ``sentence`` on standard error once, by the first rank that reports: a problem of one rank mostly is
        one of all. It has been printed when this returns, on all ranks that report within seconds.
        """
        if self.store is None:
            print(sentence, file=sys.stderr)
            return
        count = self.store.add("reported", 1)
        if count == 1:
            print(sentence, file=sys.stderr, flush=True)
            self.store.set("printed", "")
        # torchrun ends all ranks once one has ended: none may be ended while it prints, or complain that a peer is gone
        # while it still joins the group.
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

    # The functions of this module have the group as a default argument: imported later, by the first optimizer, they
    # would keep it and its threads alive, which may abort the process as it exits.
    import torch.distributed.nn.functional
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    from trainers.communication.process_groups import give_back

    store, rank, size = next(rendezvous("env://"))
    place = Place(rank=rank, size=size, local_rank=dist.get_node_local_rank(), store=store)
    if place.device != "cpu":
        # The device that a task calls just "cuda" has to be this rank's, too.
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
    """The named directory, made if it is missing, or a temporary one of rank 0 that all ranks use."""
    if named is not None:
        try:
            named.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise hpo.UsageError(f"--directory {named}: cannot be made: {error}. Name another.") from error
        yield named
        return
    with tempfile.TemporaryDirectory(prefix="alone-") as own:
        if place.store is None:
            yield Path(own)
            return
        import torch.distributed as dist

        if place.rank == 0:
            place.store.set("directory", own)
        yield Path(place.store.get("directory").decode())
        # Rank 0 must not remove what another rank still writes into.
        dist.barrier()
