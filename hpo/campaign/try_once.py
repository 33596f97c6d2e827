"""``hpo try``: one evaluation of the default point, in the foreground, with everything it prints."""

from __future__ import annotations

import logging
import random
import select
import socket
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpo import terminal
from hpo.campaign.definition import CampaignDefinition
from hpo.campaign.rank.evaluators import child_factory
from hpo.cluster import hosts
from hpo.config import process
from hpo.errors import CampaignError
from hpo.evaluation.conversation import pack
from hpo.evaluation.crew import ProcessCrew
from hpo.evaluation.devices import bind_device, visible_devices
from hpo.evaluation.evaluator_host import EvaluatorHost
from hpo.evaluation.evaluator_process import EvaluatorProcess
from hpo.evaluation.gpu import inline_device
from hpo.evaluation.inline import InlineCrew
from hpo.individual import COMPLETED, PRUNED, Configuration
from hpo.islands.messages import Surroundings
from hpo.search import campaign_end
from hpo.search.protocols import GO, TrialReport, Verdict
from hpo.task.outcome import TaskOutcome
from hpo.task.task import Task
from hpo.task.trial import Job
from hpo.task.trial_directory import OUTPUT
from hpo.views import text

_log = logging.getLogger("hpo.campaign")

# Characters of a metric.
_MOST_SHOWN = 1_000


def attempt(file: Path) -> int:
    """Evaluate the default point of the campaign of ``file`` (else that of the priors, else the first given point, else
    a random point) on as many ranks as a worker has, all on this machine, in a scratch directory. Returns 0 when it
    completed, else 1."""
    campaign = CampaignDefinition.from_file(file)
    stop, ranks = campaign.settings.stop, max(campaign.settings.worker_sizes)
    campaign_end.check(stop.value, stop.gain, campaign.task.objectives)
    hosts.check_room(
        ranks,
        f"{file}: [layout] ranks_per_worker = {ranks}: its evaluators",
        hosts.cores(),
        "Choose a smaller worker, or try it on a larger machine",
    )
    name, params = _point(campaign.task)
    terminal.write(f"evaluating {name}: {text.params(params)}", flush=True)
    inline = campaign.settings.evaluation.isolation == "inline"
    where = _where(1 if inline else ranks, visible_devices(process.environment()))
    more = f" (a worker of the campaign has {ranks})" if inline and ranks > 1 else ""
    terminal.write(f"on {where}{more}", flush=True)
    with tempfile.TemporaryDirectory(prefix="hpo-try-") as scratch:
        configuration = Configuration(id="try", params=dict(params))
        job = Job(configuration=configuration, seed=campaign.settings.seed, directory=f"{scratch}/try")
        outcome = _inline(campaign, job) if inline else _evaluate(campaign, job)
    terminal.write(f"{outcome.status} after {outcome.seconds:.1f} s")
    for kind in (outcome.objectives or {}), outcome.metrics:
        for key, value in kind.items():
            shown = terminal.one_line(value)
            more = " …" if len(shown) > _MOST_SHOWN else ""
            terminal.write(f"    {terminal.one_line(key)} = {shown[:_MOST_SHOWN]}{more}")
    for remark in outcome.remarks.values():
        _log.info("%s.", terminal.one_line(remark))
    for name in campaign.task.limits.broken(outcome.objectives, outcome.metrics):
        terminal.write(f"breaks the limit of {terminal.one_line(name)}: it would never be the best")
    if outcome.error:
        terminal.write(outcome.error, sys.stderr)
    return 0 if outcome.status in (COMPLETED, PRUNED) else 1


def _point(task: Task) -> tuple[str, Mapping[str, Any]]:
    if task.first is not None:
        return "the default point" if task.default else "the point of the priors", task.first
    if task.points:
        return "the first given point", task.points[0]
    rng = random.Random(0)
    for _ in range(10_000):
        params = task.space.decode(task.space.sample(rng))
        if task.allows(params):
            return "a random point (the task has no default)", params
    raise CampaignError(
        "none of 10 000 random configurations meets the constraints. Give the task a default point"
    )


def _where(ranks: int, visible: Sequence[str]) -> str:
    """Number of ranks that evaluate, and the device of each, of the ``visible`` GPUs."""
    several = f"{ranks} ranks" if ranks > 1 else "1 rank"
    if not visible:
        return f"{several}, CPU"
    own = []
    for rank in range(ranks):
        seen, index = bind_device(visible, local_rank=rank, worker_local_rank=rank, worker_local_size=ranks)
        own.append(seen[index or 0])
    return f"{several}, {'GPU' if ranks == 1 else 'GPUs'} {', '.join(own)}"


def _inline(campaign: CampaignDefinition, job: Job) -> TaskOutcome:
    crew = InlineCrew(
        task=campaign.task,
        on_warning=_warn,
        device=inline_device(process.environment(), 0, f"rank 0 on {socket.gethostname()}"),
    )
    crew.start(job)
    if crew.pending:
        crew.evaluate()
    return crew.poll()[0]


def _shown(report: TrialReport) -> Verdict:
    print(f"reported step {report.step}: {report.value}", flush=True)
    return GO


def _warn(text: str) -> None:
    print(f"hpo: {text}", file=sys.stderr, flush=True)


def _evaluate(campaign: CampaignDefinition, job: Job) -> TaskOutcome:
    settings = campaign.settings
    size = max(settings.worker_sizes)
    hosts = (socket.gethostname(),) * size

    def factory(rank: int) -> Callable[[], EvaluatorProcess]:
        around = Surroundings(hosts, rank, size, 1, cores_agreed=True)
        return child_factory(settings, around, rank, campaign.source)

    # The crew and the hosts of the other ranks are different processes in a campaign. Here two queues connect them.
    to_others: deque[tuple[int, dict[str, Any]]] = deque()
    to_crew: deque[dict[str, Any]] = deque()
    crew = ProcessCrew(
        size=size,
        child_factory=factory(0),
        send=lambda rank, message: to_others.append((rank, message)),
        settings=settings.evaluation,
        on_warning=_warn,
        clock=time.time,
    )
    crew.listen(_shown)
    others = {
        rank: EvaluatorHost(
            worker_rank=rank,
            child_factory=factory(rank),
            send=lambda epoch, answer, rank=rank: to_crew.append(  # type: ignore[misc]
                pack(epoch, rank, answer)
            ),
            clock=time.time,
        )
        for rank in range(1, size)
    }
    printed = dict.fromkeys(range(size), 0)
    outcomes: list[TaskOutcome] = []
    try:
        crew.start(job)
        while not outcomes:
            outcomes += crew.poll()
            for other in others.values():
                other.poll()
            while to_others:
                rank, message = to_others.popleft()
                others[rank].receive(message)
            while to_crew:
                crew.receive(to_crew.popleft())
            _show(Path(job.directory), printed)
            waiting = crew.filenos() + [number for one in others.values() for number in one.filenos()]
            select.select(waiting, [], [], 0.05)
        _show(Path(job.directory), printed, all_of_it=True)
    finally:
        crew.close()
        while to_others:
            rank, message = to_others.popleft()
            others[rank].receive(message)
        for other in others.values():
            other.close()
    return outcomes[0]


def _show(directory: Path, printed: dict[int, int], *, all_of_it: bool = False) -> None:
    """Print the ranks' output since the last time: whole lines, which a carriage return ends too, or ``all_of_it``."""
    for rank, position in printed.items():
        try:
            with open(directory / f"{OUTPUT}{rank}.txt", "rb") as file:
                if position > file.seek(0, 2):  # it was shortened: the end is what is new
                    position = printed[rank] = max(0, file.tell() - 4096)
                file.seek(position)
                text = file.read()
        except FileNotFoundError:
            continue
        whole = text if all_of_it else text[: max(text.rfind(b"\n"), text.rfind(b"\r")) + 1]
        printed[rank] += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            print(f"[rank {rank}] {line}" if len(printed) > 1 else line, flush=True)
