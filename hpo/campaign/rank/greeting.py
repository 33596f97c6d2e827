"""Start of a launch: each rank says hello to rank 0, which waits for all."""

from __future__ import annotations

import hashlib
import os
import socket
import time
from collections.abc import Callable, Sequence

import msgspec

from hpo.config import process
from hpo.config import reader as config
from hpo.errors import CampaignError, RanksDied
from hpo.evaluation.cores import read_host
from hpo.islands.messages import Hello, decode
from hpo.islands.transport import Transport
from hpo.journal.machine import THIS_MACHINE

_GREETING_S = 120.0
_GREETING_OF_A_RANK_S = 0.05


def greeting_s(settings: config.Settings, ranks: int) -> float:
    """Seconds that rank 0 waits for the others to start; they wait twice as long, as it folds the journals, too."""
    return max(_GREETING_S, settings.evaluation.start_timeout_s) + _GREETING_OF_A_RANK_S * ranks


def own_hello(settings: config.Settings, identity: dict[str, object]) -> Hello:
    """Hello of this rank."""
    return Hello(
        host=socket.gethostname(),
        pid=os.getpid(),
        fingerprint=_fingerprint(settings, identity),
        error=None,
        cores=read_host(process.environment()).fingerprint,
        machine=THIS_MACHINE.identity,
    )


def _fingerprint(settings: config.Settings, identity: dict[str, object]) -> str:
    """Equal on two ranks that would run the same campaign."""
    objectives = identity.get("objectives")
    # Ranks send one another losses in the order of the objectives.
    order = [*objectives] if isinstance(objectives, dict) else []
    content = {"identity": identity, "order": order, "settings": settings.model_dump(mode="json")}
    return hashlib.blake2b(msgspec.json.encode(content, order="sorted"), digest_size=8).hexdigest()


def greet(transport: Transport, mine: Hello, waits_s: float) -> list[Hello]:
    """Hellos by rank, once rank 0 has all. CampaignError where a rank could not begin, or reads another campaign;
    RanksDied where a rank said nothing for ``waits_s``."""
    hellos = {0: mine}
    deadline = time.monotonic() + waits_s
    while len(hellos) < transport.size:
        if transport.failed():
            raise RanksDied(
                f"rank {min(transport.failed())} died before the campaign began. Look for its own message above"
            )
        for source, data in transport.poll():
            hello = decode(data)
            if not isinstance(hello, Hello):
                continue
            if hello.error is not None:
                raise CampaignError(f"rank {source} on {hello.host}: {hello.error}")
            if hello.fingerprint != mine.fingerprint:
                raise CampaignError(
                    f"rank {source} on {hello.host} reads another campaign or task than rank 0 on {mine.host}. "
                    "All ranks must see the same campaign file and the same code: check that both lie on a shared "
                    "file system"
                )
            hellos[source] = hello
        if time.monotonic() > deadline:
            missing = [rank for rank in range(transport.size) if rank not in hellos]
            raise RanksDied(
                f"ranks {', '.join(map(str, missing[:8]))}{' …' if len(missing) > 8 else ''} did not start within "
                f"{waits_s:.0f} s. Look for their own messages; if they are slow, raise [evaluation] start_timeout"
            )
        time.sleep(0.001)
    return [hellos[rank] for rank in range(transport.size)]


def ended_here(hellos: Sequence[Hello]) -> Callable[[int], bool]:
    """Whether the process of a rank is known to have ended, which can be seen of those on this machine alone.
    ``hellos``: by rank."""
    identity = THIS_MACHINE.identity
    here = {
        rank: (hello.pid, THIS_MACHINE.process_started(hello.pid))
        for rank, hello in enumerate(hellos)
        if hello.machine == identity
    }
    return lambda rank: rank in here and not THIS_MACHINE.is_running(*here[rank])
