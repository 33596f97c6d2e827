"""The sentence with which `hpo run` refuses to start ranks for a campaign that is finished."""

from __future__ import annotations

import os
from pathlib import Path

from hpo.campaign.campaign import Campaign
from hpo.campaign.known_points import new_points
from hpo.errors import CampaignError
from hpo.islands.coordinator.ending import DONE
from hpo.journal.commands import stop_pending, waiting
from hpo.journal.files import last_launch
from hpo.journal.launches import is_complete, read_launch
from hpo.journal.lock import holder
from hpo.results import overview
from hpo.terminal import quoted


def finished(campaign: Campaign, file: Path) -> str | None:
    """A sentence with the remedy, where the campaign of ``file`` has used up its budget and another launch would
    evaluate nothing; None where there is something to do, or the launch has to find that out.

    Raises:
        UsageError, CampaignError: those of ``Campaign.check``, where the last launch used its budget up.
    """
    directory, budget = campaign.settings.directory, campaign.settings.evaluations
    if not os.path.exists(directory / "campaign.json") or holder(directory) is not None:
        return None
    try:
        last = read_launch(directory, last_launch(directory))
        if last is None or last.end is None or tuple(last.end) != (DONE, 0):
            return None
        if stop_pending(directory) or waiting(directory) or not is_complete(directory, budget):
            return None
    except CampaignError:  # the launch says what is damaged
        return None
    campaign.check()
    if any(one.changes for one in new_points(campaign.settings, campaign.task, {})):
        return None
    count = overview.of(directory).final
    shown = quoted(directory)
    return (
        f"{directory}: all {count} evaluations of the budget are done, so there is nothing to start. To go on, write "
        f"evaluations = {2 * count} in {file}, or give: hpo set {shown} evaluations={2 * count}. What was found: hpo "
        f"best {shown}"
    )
