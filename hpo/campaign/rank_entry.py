"""Entry of a rank that mpirun has started, and the transfer of a campaign from ``Campaign.run(ranks=…)`` to such ranks.

mpirun closes what its ranks could inherit. So there are two files in memory, without a name in any file system: the
ranks open them by the process that made them and by their numbers in it, which the system allows to the same user
alone. The pickled campaign must have the digest that is in the ranks' command line."""

from __future__ import annotations

import atexit
import hashlib
import os
import socket
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import msgspec

from hpo import errors
from hpo.campaign.definition import CampaignDefinition
from hpo.campaign.rank.rank import Rank
from hpo.cluster import mpirun as processes
from hpo.cluster.mpi_startup import connect
from hpo.cluster.signals import Signals
from hpo.config import process
from hpo.errors import (
    EXIT_REFUSED,
    EXIT_REPORTED,
    EXIT_STORAGE,
    CampaignError,
    HpoError,
    JournalDamaged,
    StorageFailed,
    UsageError,
)
from hpo.islands.messages import End, Hello, encode
from hpo.islands.transport import Transport

_loading = False


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """An error that rank 0 met. ``kind``: its class; ``path`` and ``line``: attributes of JournalDamaged."""

    kind: str
    text: str
    exit_code: int
    path: str = ""
    line: int = 0

    def error(self) -> HpoError:
        kind = getattr(errors, self.kind, CampaignError)
        error: HpoError = kind.__new__(kind, self.text)  # some take other arguments than the text
        error.args = (self.text,)
        error.exit_code = self.exit_code
        if isinstance(error, JournalDamaged):
            error.path, error.line = self.path, self.line
        return error


class CampaignTransfer:
    """Campaign ``definition`` in memory, for ranks on this host, and room for their answer. CampaignError where the
    task cannot be pickled, or the system has no files in memory."""

    def __init__(self, definition: CampaignDefinition) -> None:
        import cloudpickle

        content: bytes = cloudpickle.dumps(definition)
        self._digest = hashlib.sha256(content).hexdigest()
        try:
            self._files = [os.memfd_create(name) for name in ("hpo-campaign", "hpo-answer")]
        except (AttributeError, OSError) as error:
            raise CampaignError(
                f"run(ranks=…): this system has no files in memory ({error}). Start the ranks by mpirun -n N python …"
            ) from error
        with open(self._files[0], "wb", closefd=False) as file:
            file.write(content)

    @property
    def rank(self) -> list[str]:
        """Command line of each rank."""
        places = [f"/proc/{os.getpid()}/fd/{number}" for number in self._files]
        return [sys.executable, "-m", "hpo.campaign.rank_entry", self._digest, *places]

    def refusal(self) -> HpoError | None:
        """Why rank 0 ended, where that is an error."""
        with open(self._files[1], "rb", closefd=False) as file:
            file.seek(0)
            content = file.read()
        return msgspec.json.decode(content, type=Refusal).error() if content else None

    def close(self) -> None:
        for number in self._files:
            os.close(number)


def refuse_while_loading() -> None:
    """UsageError in a rank that is importing the task."""
    if _loading:
        raise UsageError(
            "a module that defines the task, or that the task imports, runs a campaign when it is imported, and the "
            'ranks of run(ranks=…) import it. Put run() below if __name__ == "__main__":'
        )


# --- in the ranks -----------------------------------------------------------------------------------------------------


def as_rank(load: Callable[[], CampaignDefinition], *, started_by_us: bool) -> int:
    """Run one rank under mpirun, of the campaign that ``load`` returns. Only rank 0 speaks and returns a code: mpirun
    would take another rank's code for the death of the job."""
    # From the start: before there are handlers a signal ends the rank, and with it the job.
    with Signals() as signals:
        # Where MPI tolerates deaths it neither starts nor ends without those that died meanwhile.
        with processes.bounded() if process.tolerates_deaths() else nullcontext():
            transport = connect()
        if process.tolerates_deaths():
            atexit.register(processes.set_alarm)
        try:
            definition = load()
        except HpoError as error:
            _send_refusal(transport, error)
            return _refused(transport, error, started_by_us=started_by_us)
        rank = Rank(definition, transport, signals)
        first_speaks = transport.rank == 0 and not started_by_us
        try:
            rank.run()
        except HpoError as error:
            if first_speaks:
                # Where ranks died, it is left by this code and not by what Python would make of the error.
                rank.process_code = error.exit_code
            return _refused(transport, error, started_by_us=started_by_us)
    if first_speaks:
        rank.process_code = rank.exit_code
    return rank.process_code


def _refused(transport: Transport, error: HpoError, *, started_by_us: bool) -> int:
    """Exit code of a rank of a campaign that cannot begin; rank 0 raises ``error`` for the user to read."""
    if transport.rank:
        return 0
    if started_by_us:
        code = EXIT_STORAGE if isinstance(error, StorageFailed) else error.exit_code
        error.exit_code = EXIT_REPORTED + code + (EXIT_REFUSED if code in (1, 2) else 0)
    raise error


def _send_refusal(transport: Transport, error: HpoError) -> None:
    """Send the other ranks word that this rank cannot read the campaign, so that none waits for it."""
    if transport.rank == 0:
        for rank in range(1, transport.size):
            transport.send(rank, encode(End("refused", error.exit_code, str(error))))
    else:
        transport.send(0, encode(Hello(socket.gethostname(), os.getpid(), "", str(error))))
    transport.flush(10.0)


def _load(digest: str, path: str) -> CampaignDefinition:
    import cloudpickle

    global _loading
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise CampaignError(
            f"the process that started this rank is gone, or on another host: {error}"
        ) from error
    if hashlib.sha256(content).hexdigest() != digest:
        raise CampaignError(f"{path} is not what the process that started this rank has written")
    _loading = True
    try:
        definition: CampaignDefinition = cloudpickle.loads(content)
    finally:
        _loading = False
    return definition


def main(digest: str, campaign: str, answer: str) -> int:
    """Run one rank, and return its exit code."""

    def load() -> CampaignDefinition:
        if process.launcher().rank == 0:
            os.truncate(answer, 0)  # an earlier launch may have written it
        return _load(digest, campaign)

    try:
        return as_rank(load, started_by_us=True)
    except HpoError as error:
        refusal = Refusal(
            kind=type(error).__name__,
            text=str(error),
            exit_code=type(error).exit_code,
            path=str(getattr(error, "path", "")),
            line=getattr(error, "line", 0),
        )
        Path(answer).write_bytes(msgspec.json.encode(refusal))
        return error.exit_code


if __name__ == "__main__":
    # Imported, as the module would be loaded twice otherwise.
    from hpo.campaign.rank_entry import main as _main

    sys.exit(_main(*sys.argv[1:]))
