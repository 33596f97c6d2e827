"""``hpo log``: write a campaign to a sink, afterwards or while it runs, from any host that sees its directory."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from hpo.errors import CampaignError
from hpo.loggers import registry
from hpo.loggers.log import CampaignLog, Written, sink_folder
from hpo.terminal import one_line, write

LOOK_S = 2.0
"""Between two looks at a campaign that is followed."""
_LONGEST_S = 60.0


def pause_s(took_s: float) -> float:
    """How long to wait after a look that took this long: it must not take much of a processor."""
    return min(max(LOOK_S, 5 * took_s), _LONGEST_S)


class Patience:
    """How long to wait before a sink that failed is tried again: longer and longer."""

    def __init__(self) -> None:
        self._wait_s = 0.0
        self._said = ""

    def after(self, error: CampaignError) -> tuple[float, str | None]:
        """Seconds to wait, and what to say: None where that was said of the last failure, too."""
        self._wait_s = min(max(LOOK_S, 2 * self._wait_s), _LONGEST_S)
        sentence = f"{one_line(error)}; it is tried again"
        said, self._said = self._said, sentence
        return self._wait_s, None if said == sentence else sentence

    def succeeded(self) -> None:
        self._wait_s, self._said = 0.0, ""


def log(directory: Path, name: str, *, base: Path | None, follow: bool) -> int:
    """Write what the sink ``name`` has not got yet, with ``follow`` until the campaign is complete or Ctrl-C is
    pressed; returns the exit code. ``base``: below which the sink's files lie (see ``hpo.loggers.log.sink_folder``).

    Raises:
        HpoError: the sink's package is not installed, there is no campaign, or the sink failed.
    """
    registry.check([name])
    campaign = CampaignLog(directory, name, folder := sink_folder(directory, base, name))
    total, patience = Written(), Patience()
    try:
        while True:
            began = time.monotonic()
            try:
                total.add(campaign.write())
                patience.succeeded()
                wait_s = pause_s(time.monotonic() - began)
            except CampaignError as error:
                if not follow:
                    raise
                wait_s, sentence = patience.after(error)
                if sentence is not None:
                    write(f"hpo: {sentence}.", sys.stderr, flush=True)
            else:
                if not follow or campaign.done:
                    break
            time.sleep(wait_s)
    except KeyboardInterrupt:
        if not follow:
            raise
    finally:
        campaign.close()
    write(f"{name}: {total}; its files are in {folder}")
    return 0
