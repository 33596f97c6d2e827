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

LOOK_S = 2.0
"""Least seconds between two looks at a campaign that is followed."""
_LONGEST_S = 60.0
"""Most seconds between two looks, and between two attempts at a sink that failed."""


def pause_s(took_s: float) -> float:
    """Seconds to wait after a look of ``took_s`` seconds."""
    # Five times as long as the look, so that at most a sixth of a processor is used.
    return min(max(LOOK_S, 5 * took_s), _LONGEST_S)


class RetryDelay:
    """Delay before a sink that failed is tried again; doubles with each failure in a row."""

    def __init__(self) -> None:
        self._wait_s = 0.0
        self._reported = ""

    def after(self, error: CampaignError) -> tuple[float, str | None]:
        """Seconds to wait, and the message to show; None in its place where the last failure had the same."""
        self._wait_s = min(max(LOOK_S, 2 * self._wait_s), _LONGEST_S)
        sentence = f"{one_line(error)}; it is tried again"
        reported, self._reported = self._reported, sentence
        return self._wait_s, None if reported == sentence else sentence

    def succeeded(self) -> None:
        self._wait_s, self._reported = 0.0, ""


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
    registry.check([name])
    campaign = CampaignLog(directory, name, folder := sink_folder(directory, base, name))
    total, delay = Written(), RetryDelay()
    try:
        while True:
            began = time.monotonic()
            try:
                total.add(campaign.write())
                delay.succeeded()
                wait_s = pause_s(time.monotonic() - began)
            except CampaignError as error:
                if not follow:
                    raise
                wait_s, sentence = delay.after(error)
                if sentence is not None:
                    _log.info("%s.", sentence)
            else:
                if not follow or campaign.done:
                    break
            time.sleep(wait_s)
    except KeyboardInterrupt:
        # The usual end of following; without it, the interrupted log is incomplete.
        if not follow:
            raise
    finally:
        campaign.close()
    write(f"{name}: {total}; its files are in {folder}")
    return 0
