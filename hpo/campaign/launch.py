"""``hpo run``: starts the ranks of a campaign, or is one of those that a launcher has started."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from hpo import logs
from hpo.campaign.definition import CampaignDefinition, blocked_by_stop, end_stop
from hpo.campaign.live_panel import live_panel
from hpo.campaign.progress import ended_early, used_up
from hpo.campaign.rank.rank import Rank
from hpo.campaign.rank_entry import as_rank
from hpo.campaign.supervisor import MpirunSettings, Supervisor
from hpo.cluster import hosts, schedulers
from hpo.cluster.hosts import Host
from hpo.cluster.mpi_startup import connect
from hpo.cluster.mpirun_command import find_mpirun
from hpo.cluster.schedulers import Allocation
from hpo.cluster.signals import Signals
from hpo.config import process
from hpo.config import reader as config
from hpo.config.layout import MOST_RANKS, Layout
from hpo.errors import EXIT_RESUMABLE, CampaignError, UsageError
from hpo.evaluation.devices import visible_devices
from hpo.journal.directory import check_writable, second_campaign, unwritable
from hpo.ledger.alive import living
from hpo.ledger.entries import Limits
from hpo.ledger.joining import beside
from hpo.ledger.journals import last_launch
from hpo.ledger.launches import budget_use, read_launch
from hpo.ledger.opening import open_ledger, state_of
from hpo.task.limits import UNLIMITED
from hpo.terminal import quoted

_log = logging.getLogger("hpo.campaign")


def run(
    file: Path, ranks: int | None, hostfile: Path | None, signals: Signals, *, join: bool | None = None
) -> int:
    """Run, or go on with, the campaign of ``file``; returns the exit code. HpoError where it cannot begin; under mpirun
    on rank 0 only, the other ranks end silently. ``ranks``: None for the fewest that fit, if the hosts have room for
    them; ``signals`` end this process until the campaign or mpirun runs; ``join``: see
    ``hpo.ledger.joining.Newcomer``."""
    launcher = process.launcher()
    if launcher.rank is not None:
        if ranks is not None and launcher.size not in (None, ranks):
            if launcher.rank:
                return 0
            raise UsageError(
                f"--ranks {ranks}: this launch has {launcher.size} ranks already. Leave --ranks out under mpirun or "
                "srun, or start `hpo run` without them"
            )
        return as_rank(
            lambda: CampaignDefinition.from_file(file, join=join), started_by_us=launcher.started_by_hpo
        )
    campaign = CampaignDefinition.from_file(file, join=join)
    if ranks is not None:
        Layout.plan(ranks=ranks, sizes=campaign.settings.worker_sizes, joins=campaign.may_lack_islands())
    if (sentence := finished(campaign, file)) is not None:
        _log.info(f"{sentence}.")
        return 0
    if (sentence := second_campaign(file, campaign.settings.directory)) is not None:
        _log.info(f"{sentence}.")
    listed = None if hostfile is None else hosts.read_hostfile(hostfile)
    job = None if listed else schedulers.allocation(process.environment())
    ranks = _fewest_ranks(file, campaign.settings, listed, job) if ranks is None else ranks
    if ranks == 1 and listed is None:
        with live_panel(campaign.settings.directory):
            only = Rank(campaign, connect(), signals)
            only.run()
        return only.exit_code
    if job is not None:
        listed = job.shared_out(ranks, campaign.settings.worker_sizes)
    mpirun = find_mpirun()
    if not may_start(campaign):
        return 0
    with live_panel(campaign.settings.directory) as inherited:
        flags = [] if join is None else ["--join" if join else "--alone"]
        command = [sys.executable, "-m", "hpo", "run", str(file), *flags]
        code = Supervisor(
            command,
            campaign.settings,
            ranks,
            MpirunSettings(
                mpirun=mpirun, listed=listed, inherited=inherited, agent=None if job is None else job.agent
            ),
        ).run()
    if code not in (0, EXIT_RESUMABLE) and logs.debugging():
        _log.info(f"what each rank did is in {quoted(logs.debug_folder(campaign.settings.directory))}.")
    return code


def _fewest_ranks(
    file: Path, settings: config.Settings, listed: tuple[Host, ...] | None, job: Allocation | None
) -> int:
    sizes = settings.worker_sizes
    ranks = sum(sizes)
    hosts.check_room(
        ranks,
        f"{file}: islands = {len(sizes)} and ranks_per_worker = {' and '.join(map(str, sorted({*sizes})))}",
        hosts.room(listed, process.environment()) if job is None else job.room,
        "Choose a smaller layout"
        + (f", or insist on this one: --ranks {ranks}" if ranks <= MOST_RANKS else ""),
    )
    several = 1 if job is None else len(job.hosts)
    if listed is None and (idle := idle_gpus(ranks, min(sizes), process.environment(), several)):
        _log.info(idle)
    return ranks


def idle_gpus(
    ranks: int, ranks_per_worker: int, environment: Mapping[str, str], several: int = 1
) -> str | None:
    """Sentence where ``ranks`` leave GPUs of this host, or of ``several`` that are taken to be like it, idle that whole
    workers could use."""
    gpus = several * len(visible_devices(environment))
    most = gpus // ranks_per_worker * ranks_per_worker
    if most <= ranks:
        return None
    where = "this host" if several == 1 else f"the {several} hosts of this job"
    return f"{ranks} of {gpus} GPUs of {where} are used, one by each rank: --ranks {most} uses {most}."


def may_start(campaign: CampaignDefinition) -> bool:
    """Check ``campaign`` and whether its directory can be written and is free: rank 0 does that, too, but its refusal
    would stand between mpirun's own lines. False where `hpo stop` keeps the campaign from beginning."""
    campaign.check()
    directory = campaign.settings.directory
    check_writable(directory)
    beside(directory, lambda: state_of(directory), campaign.newcomer())
    if (sentence := blocked_by_stop(directory)) is not None:
        _log.info(sentence)
        return False
    if os.path.exists(directory / "campaign.json"):
        try:
            end_stop(open_ledger(directory))
        except OSError as error:
            raise unwritable(directory, error) from error
    return True


def finished(campaign: CampaignDefinition, file: Path) -> str | None:
    """Sentence with the remedy, where the campaign of ``file`` has used up its budget and another launch would evaluate
    nothing; None where there is something to do, or the launch has to find that out. Raises what ``Campaign.check``
    does."""
    directory = campaign.settings.directory
    if not os.path.exists(directory / "campaign.json"):
        return None
    try:
        if living(directory):
            return None
        last = read_launch(directory, last_launch(directory))
        state = state_of(directory)
        if last is None or last.end is None or state.stop_pending or state.unseen_commands or state.open:
            return None
        if (state.limits.outcomes or UNLIMITED) != campaign.task.limits:
            return None  # another individual may be the best, or none
        use = budget_use(directory, Limits.of(campaign.settings))
    except CampaignError:  # the launch says what is damaged
        return None
    if not use.complete or any(one.changes for one in campaign.check().known):
        return None
    if use.early is not None:
        reason = ended_early(directory, use.early)
    else:
        reason = used_up(directory, use.final, use.budget, file)
    return f"{directory}: {reason}. What was found: hpo best {quoted(directory)}"
