"""``hpo log``: writes a campaign to a sink, afterwards or while it runs, from any host that sees its directory."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from hpo.errors import CampaignError
from hpo.loggers import registry
from hpo.loggers.log import CampaignLog, Written, sink_folder
from hpo.terminal import one_line, write

_log = logging.getLogger("hpo.loggers")

_SHORTEST_S = 2.0
"""Least seconds between two looks at a campaign that is followed."""
_LONGEST_S = 60.0
"""Most seconds between two looks, and between two attempts at a sink that failed."""


class Following:
    """Repeated looks at a campaign; each writes what is new, and the next comes later while the sink fails."""

    def __init__(self, log: CampaignLog) -> None:
        self._log = log
        self.written = Written()
        self.failed = False
        """Whether the last look failed, so that records are missing in the sink."""
        self._wait_s = 0.0
        self._reported = ""

    def look(self) -> tuple[float, str]:
        """Write what is new; returns the seconds until the next look, and a message for the user or ""."""
        began = time.monotonic()
        try:
            self.written.add(self._log.write())
        except CampaignError as error:
            self.failed = True
            self._wait_s = min(max(_SHORTEST_S, 2 * self._wait_s), _LONGEST_S)
            message = f"{one_line(error)}; it is tried again"
            if message == self._reported:
                return self._wait_s, ""
            self._reported = message
            return self._wait_s, message
        self.failed, self._wait_s, self._reported = False, 0.0, ""
        # Five times as long as the look, so that at most a sixth of a processor is used.
        return min(max(_SHORTEST_S, 5 * (time.monotonic() - began)), _LONGEST_S), ""


def log(directory: Path, name: str, *, base: Path | None, follow: bool) -> int:
    """Write to the sink ``name`` the records that it does not have yet; returns the exit code.

    Args:
        directory (path): directory of the campaign.
        name (str): name of the sink.
        base (path): directory of the sinks' files (see ``hpo.loggers.log.sink_folder``).
        follow (bool): whether to continue until the campaign is complete, or Ctrl-C is pressed.

    Raises:
        HpoError: the sink's package is not installed, there is no campaign, or the sink failed.
    """
    registry.check(name)
    folder = sink_folder(directory, base, name)
    campaign = CampaignLog(directory, name, folder)
    following = Following(campaign)
    try:
        if not follow:
            following.written = campaign.write()
        while follow:
            wait_s, message = following.look()
            if message:
                _log.info("%s.", message)
            if campaign.done and not following.failed:
                break
            time.sleep(wait_s)
    except KeyboardInterrupt:
        # The usual end of following; without it, the interrupted log is incomplete.
        if not follow:
            raise
    finally:
        campaign.close()
    write(f"{name}: {following.written}; its files are in {folder}")
    return 0
