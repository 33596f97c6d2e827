"""Parts of rank 0 besides its worker: the coordinator, the status file and housekeeping."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from hpo.campaign.definition import CampaignDefinition, StartingPoints, first_points
from hpo.campaign.progress import Display
from hpo.campaign.rank.cleanup import Cleanup, begin_cleanup
from hpo.campaign.rank.journal_log import JournalLog
from hpo.campaign.rank.status import Status
from hpo.campaign.rank.wiring import Assembly
from hpo.cluster import schedulers
from hpo.config import process
from hpo.config.reader import Settings
from hpo.errors import CampaignError
from hpo.evaluation.directories import EvaluationDirectories
from hpo.individual import ENQUEUED, birthplace
from hpo.islands.coordinator.budget import Suits
from hpo.islands.coordinator.commands import Commands, point_assignment
from hpo.islands.coordinator.coordinator import Coordinator
from hpo.islands.coordinator.health import Health
from hpo.islands.coordinator.launch import Backlog, EndRules, LaunchRules
from hpo.islands.coordinator.sharing import Sharing
from hpo.islands.coordinator.unseen import UnseenConfigurations
from hpo.islands.coordinator.worker_registry import WorkerRegistry
from hpo.islands.messages import Assignment, End
from hpo.islands.resume.state import ResumeState
from hpo.journal.code_copies import change, keep_copy
from hpo.journal.records import Launched, Record
from hpo.ledger.alive import OtherLaunches, SignOfLife
from hpo.ledger.participation import Participation
from hpo.ledger.reservations import Reservations
from hpo.loggers.processes import SinkProcesses
from hpo.prior_results.configurations import wanted
from hpo.search.phases import Phases
from hpo.space.restricted import restricted
from hpo.space.space import SearchSpace, listable
from hpo.task.code_version import code_of
from hpo.task.known_point import Allows
from hpo.task.task import listed
from hpo.terminal import one_line

_log = logging.getLogger("hpo.campaign")


class Opening(NamedTuple):
    """Parts of a launch that rank 0 has opened."""

    sign: SignOfLife
    participation: Participation
    earlier: ResumeState
    starting: StartingPoints
    known: Sequence[Record]
    """Records of entered results."""
    sinks: SinkProcesses
    ended: Callable[[int], bool]
    """Whether a rank's process is known to have ended."""


def begin_log(assembly: Assembly, opening: Opening) -> JournalLog:
    """Put on record that the launch begins."""
    definition, settings, layout = assembly.definition, assembly.settings, assembly.layout
    earlier, participation = opening.earlier, opening.participation
    assert assembly.writer is not None  # rank 0 leads the first worker
    log = JournalLog(
        assembly.writer,
        settings.directory,
        definition.task,
        islands=layout.islands,
        number=participation.number,
        began=assembly.began,
    )
    code = definition.code or code_of(definition.task)
    keep_copy(settings.directory, code)
    if sentence := change(settings.directory, earlier.code, code.hash):
        _log.info("%s", sentence)
    limits = participation.state.limits
    pruners = (settings.search_of(island).pruner for island in range(layout.islands))
    launched = Launched(
        evaluations=limits.evaluations,
        deadline_s=limits.deadline_s,
        islands=layout.islands,
        workers=len(layout.workers),
        ranks_per_worker=len(layout.workers[0].ranks),
        time=time.time(),
        reference=dict(settings.search.reference) if settings.search.reference else None,
        code=code.hash,
        pruner=next((one for one in pruners if one != "none"), "none"),
        limits=assembly.task.limits,
    )
    log.begin(opening.known, launched)
    return log


def make_coordinator(assembly: Assembly, log: JournalLog, opening: Opening, sharing: Sharing) -> Coordinator:
    """Coordinator of the launch. ``sharing``: its rules on units beside other launches."""
    settings, task, layout = assembly.settings, assembly.task, assembly.layout
    space, earlier = task.space, opening.earlier
    began = process.deadline_from(settings, assembly.transport.now())

    first = first_points(task, opening.starting.points)
    operators = {space.key(params): operator for params, operator in reversed(first)}

    def assigned(label: str, params: Mapping[str, object]) -> Assignment:
        checked = wanted(label, params, space, task.allows)
        return point_assignment(checked, space.key, operators.get(space.key(checked), ENQUEUED))

    coordinator = Coordinator(
        transport=assembly.transport,
        registry=WorkerRegistry(layout.workers, ended=opening.ended),
        rules=_rules(assembly, opening, sharing, began),
        backlog=Backlog(known=earlier.keys, tally=earlier.tally),
        log=log,
        commands=Commands(
            participation=opening.participation,
            sharing=sharing,
            unfinished={one.id: one for one in earlier.pending},
            began=began,
            assigned=assigned,
            left_by=log.left_by,
            failures=log.failures,
            rules=EndRules(
                objectives=task.objectives,
                noisy=any(settings.search_of(island).reevaluate for island in range(layout.islands)),
                on_record=log.evaluated,
            ),
        ),
        health=Health(
            settings.evaluation.first_failures,
            printed=EvaluationDirectories(settings.directory).printed,
            patience_s=settings.evaluation.start_timeout_s,
            leaders={place.leader: len(place.ranks) for place in layout.workers},
            earlier=earlier.tally.worked_and_failed,
        ),
    )
    coordinator.remarks.extend(_remarks_on_kinds(assembly.definition, layout.islands))
    if opening.participation.state.paused:
        coordinator.remarks.append("paused: nothing new starts until `hpo unpause`")
    coordinator.look_at_commands()  # draws what may be evaluated
    return coordinator


def _rules(assembly: Assembly, opening: Opening, sharing: Sharing, began: float) -> LaunchRules:
    """``began``: from when the deadline counts; Unix seconds."""
    settings, islands = assembly.settings, range(assembly.layout.islands)
    evaluation = settings.evaluation
    deadline_s = opening.participation.state.limits.deadline_s
    limits = schedulers.limits()
    requests = assembly.signals.requests
    return LaunchRules(
        ranks=assembly.transport.size,
        evaluations=opening.participation.state.limits.evaluations,
        duplicates=settings.search.duplicates,
        checkpoints=opening.earlier.saves if evaluation.checkpoints is None else evaluation.checkpoints,
        grace_s=evaluation.grace_s,
        timed=evaluation.timeout_s is not None,
        deadline=None if deadline_s is None else began + deadline_s,
        must_end=None if limits is None else lambda: limits.must_end(requests.terminated),
        phases=Phases([phase.until for phase in settings.phase]),
        unseen=_unseen(
            assembly.task.space, assembly.allows, [settings.search_of(island).only for island in islands]
        ),
        reservations=_reservations(assembly, opening.participation, sharing),
        suits=suits(assembly.task.space, settings),
        restarts=process.launcher().started_by_hpo,
    )


def suits(space: SearchSpace, settings: Settings) -> Suits:
    """Rule for islands whose workers differ in size: an individual is evaluated by workers as large as those of an
    island that may propose it, of its own island if it was begun and that may; else by the largest workers."""
    sizes = settings.worker_sizes
    if len({*sizes}) == 1:
        return lambda island, assignment: True
    parts = [restricted(space, settings.search_of(island).only) for island in range(len(sizes))]

    found: dict[tuple[str, str], frozenset[int]] = {}

    def fitting(one: Assignment) -> frozenset[int]:
        genome = space.encode(one.configuration.params)
        islands = [island for island, part in enumerate(parts) if part.project_to_allowed(genome) == genome]
        born = birthplace(one.id)[0] if one.id else None
        fit = [sizes[island] for island in islands if born not in islands or island == born]
        return frozenset(fit or [max(sizes)])

    def is_right(island: int, assignment: Assignment) -> bool:
        of = assignment.id, assignment.key
        if of not in found:
            found[of] = fitting(assignment)
        return sizes[island] in found[of]

    return is_right


def _reservations(assembly: Assembly, participation: Participation, sharing: Sharing) -> Reservations | None:
    """Reservations of configurations among launches; None where they may come twice. A launch alone makes them only in
    finite spaces and for a grid, where another launch might not find what is left."""
    settings, islands = assembly.settings, range(assembly.layout.islands)
    grid = any(settings.search_of(island).kind == "grid" for island in islands)
    if settings.search.duplicates:
        return None
    always = grid or assembly.task.space.size is not None

    def needed() -> bool:
        return always or not sharing.alone

    found = Reservations(settings.directory, participation.number, participation.read_closed, needed=needed)
    try:
        if needed():
            found.check()
    except OSError as error:
        _log.info(
            f"{one_line(settings.directory)} takes no symbolic links ({error.strerror}), so launches that are at work "
            "together may evaluate configurations twice."
        )
    return found


def _remarks_on_kinds(definition: CampaignDefinition, islands: int) -> list[str]:
    """Sentences about kinds that model one objective, where there are several."""
    objectives = len(definition.task.objectives)
    searches = map(definition.settings.search_of, range(islands if objectives > 1 else 0))
    return [
        f'kind = "{kind}" models one objective: with {objectives} it proposes as "evolution" does'
        for kind in dict.fromkeys(one.kind for one in searches if one.traits.one_objective)
    ]


def _unseen(
    whole: SearchSpace, allows: Allows, only: Sequence[Mapping[str, Sequence[object]]]
) -> list[UnseenConfigurations]:
    """Configurations that each island can still evaluate. ``only``: allowed choices by island."""
    parts = [part for place, part in enumerate(only) if part not in only[:place]]
    spaces = [restricted(whole, part) for part in parts]
    unseen = [
        UnseenConfigurations(partial(listed, space, allows) if listable(space) else None) for space in spaces
    ]
    return [unseen[parts.index(part)] for part in only]


def begin_launch(assembly: Assembly, opening: Opening) -> Housekeeping:
    """Begin the launch on rank 0: make its coordinator and what shows and keeps its state."""
    settings, layout, objectives = assembly.settings, assembly.layout, assembly.task.objectives
    earlier, participation = opening.earlier, opening.participation
    log = begin_log(assembly, opening)
    others = OtherLaunches(settings.directory, opening.sign)
    sharing = Sharing(participation, others)
    coordinator = make_coordinator(assembly, log, opening, sharing)
    done = coordinator.tally.final
    display = Display(settings, assembly.task, workers=len(layout.workers), done=done)
    islands = range(settings.layout.islands)
    repeats = earlier.repeats or any(settings.search_of(one).reevaluate for one in islands)
    status = Status(
        settings.directory,
        opening.sign,
        earlier=earlier,
        log=log,
        limits=lambda: participation.state.limits,
        objectives=objectives,
        knows_all=lambda: sharing.alone and not repeats,
        watched=process.panel_shown(),
    )
    cleanup = begin_cleanup(
        settings,
        objectives=len(objectives),
        islands=layout.islands,
        removes=sharing.alone and participation.number > 1,
        earlier=earlier,
    )
    return Housekeeping(participation, coordinator, display, status, sharing, cleanup, opening.sinks)


@dataclass(eq=False)
class Housekeeping:
    """Duties of rank 0 beside the protocol: shows how it goes, removes checkpoints, closes the launch."""

    participation: Participation
    coordinator: Coordinator
    display: Display
    status: Status
    sharing: Sharing
    cleanup: Cleanup | None
    sinks: SinkProcesses
    _remarked: bool = False

    def __call__(self, now: float) -> None:
        if not self._remarked and (remarks := self.status.remarks(self.coordinator)):
            self._remarked = True
            self.coordinator.remarks.extend(remarks)
        with suppress(OSError):  # the reader may be gone
            while self.coordinator.remarks:
                _log.info("%s.", one_line(self.coordinator.remarks.popleft()))
        self.display.update(self.coordinator, now)
        self.status.update(self.coordinator, now)
        if self.cleanup is not None and self.sharing.alone:
            self.cleanup.step(now, self.coordinator.reopened_ids)
        with suppress(OSError):  # the reader may be gone
            self.sinks.look()

    def leave(self, end: End, now: float) -> None:
        """Show how the launch ended, and close it; where that fails, the next launch closes it."""
        self.display.finish(self.coordinator, end.reason, now)
        with suppress(OSError, CampaignError):
            self.participation.close(end.reason, end.exit_code, at_rest=self.coordinator.all_ended)
