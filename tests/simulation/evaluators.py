"""Evaluator processes in virtual time: what the real ones of a worker do, as far as its crew and hosts can see it.

The evaluators of a worker form a group. An evaluation begins when all of them have begun it. One that fails waits for
the order to leave its group, those that wait for one which has left or died get an error, and one that dies says
nothing more. What becomes of an evaluation is drawn when it begins."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from hpo.evaluation.conversation import (
    Answer,
    CrewOrder,
    Evaluate,
    EvaluationOver,
    Exit,
    FormGroup,
    GroupFormed,
    LeaveGroup,
    Prepared,
    Ready,
    SaveState,
)
from hpo.individual import COMPLETED, FAILED, INTERRUPTED
from hpo.task.outcome import TaskOutcome
from hpo.task.trial import Job

BROKEN_CONNECTION = "RuntimeError: connection closed by peer"


class Surroundings(Protocol):
    """What evaluators need of the simulation."""

    rng: random.Random
    time: float

    def at(self, when: float, action: Callable[[], None]) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Fates:
    """How probable it is that an evaluation of a worker goes wrong in this way; ``dies_starting``: of one evaluator;
    ``start_s``: the mean time that it takes to start."""

    raises: float = 0.04
    raises_on_one: float = 0.04
    dies: float = 0.04
    lags: float = 0.02
    hangs: float = 0.0
    dies_starting: float = 0.01
    start_s: float = 0.2

    @classmethod
    def none(cls, **changes: float) -> Fates:
        """Nothing goes wrong."""
        nothing = {"raises": 0.0, "raises_on_one": 0.0, "dies": 0.0, "lags": 0.0, "dies_starting": 0.0}
        return cls(**{**nothing, **changes})


@dataclass
class Directories:
    """Who evaluates where: at one time only one worker may be at work in a directory."""

    at_work: dict[str, object] = field(default_factory=dict)
    completed: set[tuple[str, float]] = field(default_factory=set)
    """Id and value of each evaluation that a whole worker brought to its end."""
    returned: set[tuple[str, float]] = field(default_factory=set)
    """The same, of each that a worker's rank 0 brought to its end."""


class Worker:
    """The evaluators of a worker's ranks. ``seconds``: how long the next evaluation takes; ``objective``: what it
    returns; ``unwritable``: called with a rank of the worker, why no directory can be made from there; None where it
    can."""

    def __init__(
        self,
        world: Surroundings,
        size: int,
        *,
        seconds: Callable[[], float],
        objective: Callable[[Job], float],
        unwritable: Callable[[int], str | None],
        fates: Fates,
        directories: Directories,
    ) -> None:
        self.world = world
        self.size = size
        self.seconds = seconds
        self.objective = objective
        self.unwritable = unwritable
        self.fates = fates
        self.directories = directories
        self._forming: dict[tuple[object, int], list[SimulatedEvaluator]] = {}

    def joins(self, evaluator: SimulatedEvaluator, order: FormGroup) -> None:
        """``evaluator`` waits for the others; once all have come, they are in the group."""
        members = self._forming.setdefault((order.address, order.generation), [])
        members.append(evaluator)
        if len(members) == self.size:
            group = Group(self, members)
            for one in members:
                one.group = group
                one.say(GroupFormed(order.generation))


class Group:
    """Evaluators that evaluate together."""

    def __init__(self, worker: Worker, members: list[SimulatedEvaluator]) -> None:
        self._worker = worker
        self._members = members
        self._begun: dict[SimulatedEvaluator, Evaluate] = {}
        self._turn = 0
        self._gone = False
        self._saving = False
        self._fails = False
        """Whether a rank fails or dies in this evaluation."""

    def begin(self, evaluator: SimulatedEvaluator, order: Evaluate) -> None:
        if self._gone:
            self._fail(evaluator, order)
            return
        if order.turn != self._turn:
            self._turn, self._saving = order.turn, False
            self._begun.clear()
        self._begun[evaluator] = order
        if len(self._begun) == len(self._members):
            self._run(order)

    def _run(self, order: Evaluate) -> None:
        worker, world = self._worker, self._worker.world
        occupied, job = worker.directories.at_work, order.job
        former = occupied.setdefault(job.directory, self)
        assert former is self, f"two workers are at work in {job.directory}"
        rng, fates = world.rng, worker.fates
        seconds = worker.seconds()
        value = worker.objective(job)
        victim = rng.choice(self._members)
        draw = rng.random()
        cuts = (fates.raises, fates.raises_on_one, fates.dies, fates.lags, fates.hangs)
        limits = [sum(cuts[: number + 1]) for number in range(len(cuts))]
        fate = sum(draw >= limit for limit in limits)
        at_the_end = rng.random() < 0.5
        self._fails = fate < 3
        for member in self._members:
            after = seconds + rng.uniform(0.0, 0.01)
            outcome = TaskOutcome(status=COMPLETED, objectives={"value": value})
            if fate == 0:
                outcome = TaskOutcome(status=FAILED, error="ValueError: of no use")
            elif fate == 1 and at_the_end:
                if member is victim:
                    outcome = TaskOutcome(status=FAILED, error="ValueError: at the end of this rank")
            elif fate in (1, 2) and member is victim:
                after *= rng.random()
                if fate == 2:
                    world.at(world.time + after, member.die)
                    continue
                outcome = TaskOutcome(status=FAILED, error="ValueError: on this rank only")
            elif fate in (1, 2):
                continue  # it waits in a collective
            elif fate == 3 and member is victim:
                after += rng.choice([1.0, 30.0, 1000.0])
            elif fate == 4 and member is victim:
                continue
            world.at(
                world.time + after, lambda member=member, outcome=outcome: self._over(member, order, outcome)
            )

    def save(self, turn: int) -> None:
        """Rank 0 was asked to save: all do so soon."""
        if turn == self._turn and not self._saving and len(self._begun) == len(self._members):
            self._saving = True
            world = self._worker.world
            when = world.time + world.rng.expovariate(2.0)
            for member, order in self._begun.items():
                world.at(
                    when,
                    lambda member=member, order=order: self._over(
                        member, order, TaskOutcome(status=INTERRUPTED)
                    ),
                )

    def _over(self, member: SimulatedEvaluator, order: Evaluate, outcome: TaskOutcome) -> None:
        begun = self._begun.get(member)
        if begun is None or begun.turn != order.turn or not member.alive:
            return
        del self._begun[member]
        if outcome.status == COMPLETED and member is self._members[0]:
            made = (order.job.id, outcome.objectives["value"])
            self._worker.directories.returned.add(made)
            if not self._fails:
                self._worker.directories.completed.add(made)
        self._leave_directory(order)
        member.end_evaluation(order.turn, outcome)

    def _leave_directory(self, order: Evaluate) -> None:
        if not any(begun.turn == order.turn for begun in self._begun.values()):
            occupied = self._worker.directories.at_work
            if occupied.get(order.job.directory) is self:
                del occupied[order.job.directory]

    def _fail(self, member: SimulatedEvaluator, order: Evaluate) -> None:
        self._begun[member] = order
        world = self._worker.world
        failure = TaskOutcome(status=FAILED, error=BROKEN_CONNECTION)
        # When it comes to its next collective.
        when = world.time + world.rng.uniform(0.0, world.rng.choice([0.05, 2.0]))
        world.at(when, lambda: self._over(member, order, failure))

    def left(self, evaluator: SimulatedEvaluator) -> None:
        """``evaluator`` has left the group, or died: who waits for it gets an error."""
        self._gone = True
        evaluator.group = None
        order = self._begun.pop(evaluator, None)
        if order is not None:
            self._leave_directory(order)
        for member, waiting in list(self._begun.items()):
            self._fail(member, waiting)


class SimulatedEvaluator:
    """In the place of an ``EvaluatorProcess``. ``wake``: called when it has said something, or has ended."""

    has_device = False
    must_be_polled = False
    _pids = iter(range(1, 1 << 62))

    def __init__(self, worker: Worker, worker_rank: int, wake: Callable[[], None]) -> None:
        self.pid = next(self._pids)
        self.label = f"worker rank {worker_rank}"
        self.alive = True
        self.group: Group | None = None
        self._worker = worker
        self._rank = worker_rank
        self._wake = wake
        self._said: list[Answer] = []
        self._orders: list[CrewOrder] = []
        self._busy = False
        self._cause: str | None = None
        world = worker.world
        starts = world.time + world.rng.expovariate(1.0 / worker.fates.start_s)
        if world.rng.random() < worker.fates.dies_starting:
            world.at(starts, self.die)
        else:
            address = ("host", self.pid) if worker_rank == 0 else None
            world.at(starts, lambda: self.say(Ready("host", None, address)))

    def say(self, answer: Answer) -> None:
        if self.alive:
            self._said.append(answer)
            self._wake()

    def die(self) -> None:
        """By itself."""
        self.end("was killed by SIGSEGV")

    def end(self, cause: str) -> None:
        if self.alive:
            self.alive, self._cause = False, cause
            if self.group is not None:
                self.group.left(self)
            self._wake()

    def send(self, order: CrewOrder) -> None:
        if not self.alive:
            return
        if self._busy and not isinstance(order, SaveState):  # it reads them when it has ended that
            self._orders.append(order)
        elif isinstance(order, Exit):
            self.end("exited")
        elif isinstance(order, FormGroup):
            self._leave()
            self._worker.joins(self, order)
        elif isinstance(order, LeaveGroup):
            self._leave()
        elif isinstance(order, Evaluate):
            self._evaluate(order)
        elif isinstance(order, SaveState):
            if self.group is not None:
                self.group.save(order.turn)
        else:
            raise TypeError(f"an evaluator does not follow {order!r}")

    def end_evaluation(self, turn: int, outcome: TaskOutcome) -> None:
        """Its evaluation is over: it goes on with what it was sent meanwhile."""
        self._busy = False
        self.say(EvaluationOver(turn=turn, outcome=outcome))
        orders, self._orders = self._orders, []
        for order in orders:
            self.send(order)

    def _leave(self) -> None:
        if self.group is not None:
            self.group.left(self)

    def _evaluate(self, order: Evaluate) -> None:
        error = self._worker.unwritable(self._rank)
        if error is not None:
            outcome = TaskOutcome(status=FAILED, error=error, storage=True)
            self.say(EvaluationOver(turn=order.turn, outcome=outcome))
            return
        if order.confirm:
            self.say(Prepared(order.turn))
        if self.group is None and self._worker.size == 1:
            self.group = Group(self._worker, [self])
        if self.group is not None:
            self._busy = True
            self.group.begin(self, order)

    def receive(self) -> list[Answer]:
        said, self._said = self._said, []
        return said

    def ended(self) -> str | None:
        return self._cause

    @property
    def ending(self) -> bool:
        return not self.alive

    def kill(self) -> None:
        self.end("was killed by SIGKILL")

    def flush(self) -> None:
        pass

    def release(self) -> None:
        pass

    def filenos(self) -> list[int]:
        return []

    def spooled(self) -> str:
        return ""


class NoGuard:
    """There are no processes that could outlive their rank."""

    def watch(self, pids: Iterable[int]) -> None:
        pass

    def close(self) -> None:
        pass
