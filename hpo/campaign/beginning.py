"""The sentence with which `hpo run` refuses to start ranks for a campaign that is finished."""

from __future__ import annotations

import os
from pathlib import Path

from hpo.campaign.campaign import Campaign
from hpo.campaign.known_points import new_points
from hpo.campaign.progress import used_up
from hpo.errors import CampaignError
from hpo.journal.commands import stop_pending, waiting
from hpo.journal.files import last_launch
from hpo.journal.launches import is_complete, read_launch, standing_budget
from hpo.journal.lock import holder
from hpo.results import overview
from hpo.terminal import quoted


def finished(campaign: Campaign, file: Path) -> str | None:
    """A sentence with the remedy, where the campaign of ``file`` has used up its budget and another launch would
    evaluate nothing; None where there is something to do, or the launch has to find that out.

    Raises:
        UsageError, CampaignError: those of ``Campaign.check``, where the budget is used up.
    """
    directory, budget = campaign.settings.directory, campaign.settings.evaluations
    if not os.path.exists(directory / "campaign.json") or holder(directory) is not None:
        return None
    try:
        last = read_launch(directory, last_launch(directory))
        if last is None or last.end is None:
            return None
        if stop_pending(directory) or waiting(directory) or not is_complete(directory, budget):
            return None
    except CampaignError:  # the launch says what is damaged
        return None
    campaign.check()
    if any(one.changes for one in new_points(campaign.settings, campaign.task, {})):
        return None
    done, budget = overview.of(directory).final, standing_budget(directory, budget)
    return (
        f"{directory}: {used_up(directory, done, budget, file)}. What was found: hpo best {quoted(directory)}"
    )
