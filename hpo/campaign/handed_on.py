"""How ``Campaign.run(ranks=…)`` hands a campaign on to the ranks that it starts, and hears why they end.

mpirun closes what its ranks could inherit. So there are two files in memory, without a name in any file system: the
ranks open them by the process that made them and by their numbers in it, which the system allows to the same user
alone. What they unpickle has to have the digest that is in their command line."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from hpo import errors
from hpo.errors import CampaignError, HpoError, JournalDamaged, UsageError

if TYPE_CHECKING:
    from hpo.campaign.campaign import Campaign

_loading = False


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """An error that rank 0 met. ``kind``: its class; ``path`` and ``line``: of JournalDamaged."""

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


class HandedOn:
    """``campaign`` in memory, for ranks on this host; and room for their answer.

    Raises:
        CampaignError: the task cannot be pickled, or the system has no files in memory.
    """

    def __init__(self, campaign: Campaign) -> None:
        import cloudpickle

        content: bytes = cloudpickle.dumps(campaign)
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
        """The command line of each rank."""
        places = [f"/proc/{os.getpid()}/fd/{number}" for number in self._files]
        return [sys.executable, "-m", "hpo.campaign.handed_on", self._digest, *places]

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


@contextmanager
def _marked_as_loading() -> Iterator[None]:
    global _loading
    _loading = True
    try:
        yield
    finally:
        _loading = False


def _load(digest: str, path: str) -> Campaign:
    import cloudpickle

    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise CampaignError(
            f"the process that started this rank is gone, or on another host: {error}"
        ) from error
    if hashlib.sha256(content).hexdigest() != digest:
        raise CampaignError(f"{path} is not what the process that started this rank has handed on")
    with _marked_as_loading():
        campaign: Campaign = cloudpickle.loads(content)
    return campaign


def main(digest: str, campaign: str, answer: str) -> int:
    """One rank; returns its exit code."""
    from hpo.campaign import launch
    from hpo.config import reader as config

    def load() -> Campaign:
        if config.launcher().rank == 0:
            os.truncate(answer, 0)  # of an earlier launch
        return _load(digest, campaign)

    try:
        return launch.as_rank(load, started_by_us=True)
    except HpoError as error:
        path, line = (str(error.path), error.line) if isinstance(error, JournalDamaged) else ("", 0)
        refusal = Refusal(
            kind=type(error).__name__,
            text=str(error),
            exit_code=type(error).exit_code,
            path=path,
            line=line,
        )
        with open(answer, "wb") as file:
            file.write(msgspec.json.encode(refusal))
        return error.exit_code


if __name__ == "__main__":
    # Not this module's own: it would be there twice.
    from hpo.campaign.handed_on import main as _main

    sys.exit(_main(*sys.argv[1:]))
