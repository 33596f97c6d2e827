"""Task: search space, evaluation and objectives, and how other processes load it."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, cast

from hpo import aliases, logs
from hpo.arguments import checked_arguments
from hpo.errors import CampaignError, HpoError, UsageError
from hpo.individual import MOST_STEPS
from hpo.space.space import Params, SearchSpace, listable
from hpo.spelling import suggestion
from hpo.task import schedule as schedules
from hpo.task.importing import explained, import_user_module, split_reference
from hpo.task.limits import checked_limits
from hpo.text import excerpt

if TYPE_CHECKING:
    from hpo.task.trial import Trial

MINIMIZE = "minimize"
MAXIMIZE = "maximize"
_DIRECTIONS = (MINIMIZE, MAXIMIZE)

Constraint = Callable[[Params], object]


class Task:
    """Search space, evaluation of a configuration, and objectives.

    Args:
        space (SearchSpace): the parameters.
        evaluate (callable): ``evaluate(trial)``, called on every rank of a worker. Returns the objective's value, or
            a dictionary with each objective by name and further metrics; the value that worker rank 0 returns counts.
        direction (str; default None): "minimize", the same as None, or "maximize", for a single objective, which is
            called "value".
        objectives (dict; default None): directions by name, in place of ``direction``: {"accuracy": "maximize",
            "seconds": "minimize"}.
        constraints (iterable of callables; default ()): functions of the parameters, as a dictionary, that are true
            where the configuration is allowed.
        at_most, at_least (dict; default None): bounds of metrics or objectives by name: {"memory": 70}. A result that
            breaks one counts as completed and is never the best; the search learns where they are kept.
        default (dict; default None): a configuration, evaluated first. None: the point of the centres of all priors, if
            there are any.
        points (iterable of dict; default ()): configurations that are evaluated after ``default``.
        steps (int or callable; default None): how many steps a whole run reports, or a function of the parameters,
            as a dictionary, that returns it. Early stopping then works from the first individuals on.

    Raises:
        UsageError: a definition is not allowed, or ``default`` or a point is no allowed configuration.
    """

    @checked_arguments(
        metric='evaluate returns the value itself: Task(space, evaluate, "maximize"), or objectives={"f1": '
        '"maximize"} where it returns a dictionary.'
    )
    def __init__(
        self,
        space: SearchSpace,
        evaluate: Callable[[Trial], object],
        direction: str | None = None,
        *,
        objectives: Mapping[str, str] | None = None,
        constraints: Iterable[Constraint] = (),
        at_most: Mapping[str, float] | None = None,
        at_least: Mapping[str, float] | None = None,
        default: Mapping[str, object] | None = None,
        points: Iterable[Mapping[str, object]] = (),
        steps: int | Callable[[Params], int] | None = None,
    ) -> None:
        if not isinstance(space, SearchSpace):
            raise UsageError(
                f"Task: space must be a SearchSpace, not {excerpt(space)}. Write hpo.SearchSpace(lr=…)."
            )
        self.space = space
        self.evaluate = _checked_evaluate(evaluate)
        self.objectives: dict[str, str] = checked_objectives(direction, objectives)
        self.constraints: tuple[Constraint, ...] = checked_constraints(constraints)
        self.limits = checked_limits(at_most, at_least)
        self.default: Params | None = None if default is None else self._point("default", default)
        rule = "a list of configurations. Write points=[{…}], or default={…} for one."
        self.points: tuple[Params, ...] = tuple(
            self._point(f"points[{number}]", cast("Mapping[str, object]", point))
            for number, point in enumerate(_checked_list("Task: points", points, rule))
        )
        self.steps: int | Callable[[Params], int] | None = (
            steps if steps is None or callable(steps) else _checked_steps("", steps)
        )
        self.schedule: tuple[Mapping[str, object], ...] = ()
        self.source: TaskSource | None = None

    def __repr__(self) -> str:
        return f"Task({self.space!r}, {self.name}, {self.objectives})"

    @property
    def name(self) -> str:
        """Place of the evaluation function, as ``module:function``."""
        named: object = self.evaluate
        while isinstance(named, functools.partial):
            named = named.func
        named = named if hasattr(named, "__qualname__") else type(named)
        return f"{named.__module__}:{getattr(named, '__qualname__', '')}"

    def allows(self, params: Params) -> bool:
        """Whether all constraints hold.

        Args:
            params (dict): a configuration.

        Raises:
            CampaignError: a constraint raised; the text names it.
        """
        return self._refusing(params) is None

    def run(self, trial: Trial) -> object:
        """Evaluate a trial, which gets choices as the space was given them: with a schedule, all its intervals.

        Args:
            trial (Trial): the trial.
        """
        trial.params = self.space.as_given(trial.params)
        return schedules.train(self, trial) if self.schedule else self.evaluate(trial)

    def steps_of(self, params: Params) -> int | None:
        """Number of steps that a whole run reports; None where the task does not state it.

        Args:
            params (dict): a configuration.

        Raises:
            UsageError: the task's function ``steps`` raised, or returned no number of steps.
        """
        if not callable(self.steps):
            return self.steps
        try:
            steps = self.steps(self.space.as_given(params))
        except Exception as error:
            raise UsageError(
                f"Task: steps, {_place(self.steps)}, raised {type(error).__name__}: {error}, for {params}. It must "
                "return how many steps a whole run reports."
            ) from error
        return _checked_steps(f", returned for {params}", steps)

    @functools.cached_property
    def first(self) -> Params | None:
        """Configuration to evaluate first: the default, or without one the point of the centres of all beliefs (see
        ``SearchSpace.centre``), where the constraints allow it.

        Raises:
            CampaignError: a constraint raised.
        """
        if self.default is not None or self.space.centre is None:
            return self.default
        params = self.space.decode(self.space.centre)
        return params if self.allows(params) else None

    @property
    def listable(self) -> bool:
        """Whether the space is finite and small enough to be listed whole where random draws find nothing new."""
        return listable(self.space)

    def configurations(self) -> Iterator[tuple[Params, str]]:
        """All configurations of a finite space that the constraints allow, with their keys."""
        return (entry for entry in listed(self.space, self.allows) if entry is not None)

    def _refusing(self, params: Params) -> Constraint | None:
        for constraint in self.constraints:
            try:
                answer = constraint(self.space.as_given(params))
                allowed = bool(answer)
            except Exception as error:
                raise CampaignError(
                    f"constraint {_place(constraint)} raised {type(error).__name__}: {error}, for {params}. "
                    "It must return True or False for each configuration of the space."
                ) from error
            # Where it is a violation, as in Optuna, its sign and not its truth was meant.
            if answer is None or (isinstance(answer, Real) and not isinstance(answer, Integral)):
                raise CampaignError(
                    f"constraint {_place(constraint)} returned {excerpt(answer)}, for {params}. It must return True or "
                    "False: compare it, as in violation <= 0."
                )
            if not allowed:
                return constraint
        return None

    def losses(self, objectives: Mapping[str, float]) -> tuple[float, ...]:
        """The objectives' values in order, with the sign that makes smaller better.

        Args:
            objectives (dict): values by name.
        """
        return losses_of(objectives, self.objectives)

    def describe(self) -> dict[str, object]:
        """Space and objectives as JSON-able data; a campaign can only be resumed with the same description."""
        return {"space": self.space.describe(), "objectives": dict(self.objectives)}

    def _point(self, label: str, point: Mapping[str, object]) -> Params:
        try:
            params = self.space.validate(point)
        except UsageError as error:
            raise UsageError("\n".join(f"{label}: {line}" for line in str(error).splitlines())) from None
        if (constraint := self._refusing(params)) is not None:
            raise UsageError(
                f"{label}: constraint {_place(constraint)} refuses {params}. Change one of them."
            )
        return params


def losses_of(values: Mapping[str, float], objectives: Mapping[str, str]) -> tuple[float, ...]:
    """``values`` in the order of ``objectives`` (name to direction), with the sign that makes smaller better."""
    return tuple(-values[name] if way == MAXIMIZE else values[name] for name, way in objectives.items())


def listed(space: SearchSpace, allows: Callable[[Params], bool]) -> Iterator[tuple[Params, str] | None]:
    """All configurations of the finite ``space`` with their keys, with None in place of those that are not allowed, so
    that callers can stop after a number of steps, allowed or not."""
    for params in space.enumerate():
        yield (params, space.key(params)) if allows(params) else None


@dataclass(frozen=True, kw_only=True)
class TaskSource:
    """Source from which a child process loads the task: a reference, or a pickle sent over a private pipe."""

    reference: str | None = None
    """``"package.module:name"`` or ``"file.py:name"``; None for a pickled task."""
    base: str = "."
    """Directory that the reference's file is relative to."""
    options: Mapping[str, object] = field(default_factory=dict)
    """Keywords for the function that the reference names."""
    pickled: bytes | None = field(default=None, repr=False)
    """The pickled task; None with a reference."""
    schedule: tuple[Mapping[str, object], ...] = ()
    """Intervals of a schedule, which the campaign and not the task has."""
    path: tuple[str, ...] = field(default_factory=lambda: tuple(sys.path), repr=False)
    """Module search path of the process that made this source."""

    @classmethod
    def of(cls, task: Task) -> TaskSource:
        """Source that ``load_task`` set, or the pickled task; CampaignError if it cannot be pickled."""
        return task.source or cls(pickled=_pickled(task))

    def load(self) -> Task:
        """Load the task in this process; CampaignError or UsageError if its module has changed."""
        # Compared as resolved paths, so that "." and the same directory by its name are not both added.
        known = {str(Path(entry).resolve()) for entry in sys.path}
        sys.path.extend(entry for entry in self.path if str(Path(entry).resolve()) not in known)
        if self.reference is not None:
            task = load_task(self.reference, base=Path(self.base), options=dict(self.options))
            return schedules.scheduled(task, self.schedule)
        import cloudpickle

        try:
            task = cloudpickle.loads(self.pickled)
        except HpoError:  # raised by the task's own module, with a complete message
            raise
        except Exception as error:
            raise CampaignError(
                f"the task cannot be rebuilt in the evaluator process: {type(error).__name__}: {error}. "
                'Define it in a module that can be imported from anywhere, or use isolation = "inline".'
            ) from error
        return cast(Task, task)


def load_task(reference: str, *, base: Path, options: Mapping[str, object] | None = None) -> Task:
    """Task that a reference names: ``"package.module:name"`` or, relative to ``base``, ``"file.py:name"``, of a Task or
    of a function that takes ``options`` and returns a Task.

    Raises:
        UsageError: the reference or the options are not valid.
        CampaignError: the module is missing or raises, with the traceback of the user's code; or the name is no task.
    """
    module = import_user_module(reference, base=base)
    name = split_reference(reference)[1]
    task = _as_task(reference, module, name, dict(options or {}))
    logs.keep_loggers()
    task.source = TaskSource(reference=reference, base=str(base.resolve()), options=dict(options or {}))
    return task


# --- definitions --------------------------------------------------------------------------------------------


def _checked_evaluate(evaluate: Callable[[Trial], object]) -> Callable[[Trial], object]:
    if not callable(evaluate):
        raise UsageError(f"Task: evaluate must be a function of the trial, not {excerpt(evaluate)}.")
    try:
        # Checked now: a wrong signature would fail every evaluation, hours into a job.
        inspect.signature(evaluate).bind(None)
    except TypeError as error:
        raise UsageError(
            f"Task: evaluate is called with the trial alone, and {_place(evaluate)} does not take that "
            f"({error}). Write def evaluate(trial): …, and functools.partial for anything else."
        ) from None
    except ValueError:
        pass  # some built-in functions have no signature
    return evaluate


def checked_objectives(direction: object, objectives: object, of: str = "Task") -> dict[str, str]:
    """Directions by objective from the arguments of a task; UsageError, which begins with ``of``, if invalid."""
    if objectives is None:
        return {"value": MINIMIZE if direction is None else _checked_direction(f"{of}: direction", direction)}
    if direction is not None:
        raise UsageError(
            f"{of}: direction = {excerpt(direction)} and objectives = {excerpt(objectives)} are given. "
            "Remove direction: objectives has one for each name."
        )
    named = isinstance(objectives, Mapping) and all(isinstance(name, str) and name for name in objectives)
    if not named or not objectives:
        raise UsageError(
            f"{of}: objectives = {excerpt(objectives)}: must map names to directions. "
            'Write {"f1": "maximize", "seconds": "minimize"}.'
        )
    given = cast("Mapping[str, object]", objectives)
    return {name: _checked_direction(f"{of}: objectives[{name!r}]", value) for name, value in given.items()}


def _checked_steps(where: str, steps: object) -> int:
    if isinstance(steps, bool) or not isinstance(steps, Integral) or not 1 <= int(steps) <= MOST_STEPS:
        raise UsageError(
            f"Task: steps = {excerpt(steps)}{where}: must be the number of steps that a whole run reports, a whole "
            "number from 1 to 2**53, or a function of the parameters that returns it."
        )
    return int(steps)


def _checked_direction(label: str, direction: object) -> str:
    if isinstance(direction, str) and direction in _DIRECTIONS:
        return direction
    meant = isinstance(direction, str) and aliases.VALUES["direction"].get(aliases.folded(direction))
    raise UsageError(
        f'{label} = {excerpt(direction)}: must be "minimize" or "maximize". '
        f"{suggestion(meant or direction, _DIRECTIONS)}"
    )


def _checked_list(label: str, given: object, rule: str) -> list[object]:
    """The entries of an iterable that is not a function, a text or a mapping."""
    try:
        if not callable(given) and not isinstance(given, (str, bytes, Mapping)):
            return list(given)  # type: ignore[call-overload, no-any-return]
    except TypeError:
        pass
    raise UsageError(f"{label} = {excerpt(given)}: must be {rule}")


def checked_constraints(constraints: object) -> tuple[Constraint, ...]:
    """The entries of ``constraints``; UsageError where it is no list of functions."""
    rule = "a list of functions of the parameters, true where allowed. Write constraints=[…]."
    checked = _checked_list("constraints", constraints, rule)
    for number, constraint in enumerate(checked):
        if not callable(constraint):
            raise UsageError(
                f"constraints[{number}] = {excerpt(constraint)}: must be a function of the parameters."
            )
    return tuple(cast("list[Constraint]", checked))


def _place(function: object) -> str:
    """Name of a function with the file and line of its definition, as many functions are called <lambda>."""
    code = getattr(function, "__code__", None)
    name = getattr(function, "__qualname__", repr(function))
    return name if code is None else f"{name} ({code.co_filename}, line {code.co_firstlineno})"


# --- by value -----------------------------------------------------------------------------------------------


def _pickled(task: Task) -> bytes:
    import cloudpickle

    try:
        return bytes(cloudpickle.dumps(task))
    except Exception as error:
        parts = {
            "evaluate": task.evaluate,
            "steps": task.steps,
            **{_place(constraint): constraint for constraint in task.constraints},
        }
        raise CampaignError(
            f"the task cannot be sent to an evaluator process because of {_culprit(parts) or error}. "
            "Create that inside evaluate, or define the task in a module and name it in a campaign file, "
            'or use isolation = "inline".'
        ) from error


def _culprit(parts: Mapping[str, object], depth: int = 5) -> str | None:
    """Description of the first of the named objects that cannot be pickled, and of the variable that prevents it."""
    import cloudpickle

    for name, part in parts.items():
        try:
            cloudpickle.dumps(part)
        except Exception as error:
            deeper = None
            # The depth is bounded, as functions may use each other in a circle.
            if inspect.isfunction(part) and depth:
                variables = inspect.getclosurevars(part)
                deeper = _culprit({**variables.globals, **variables.nonlocals}, depth - 1)
            return f"{name}, which uses {deeper}" if deeper else f"{name}, which cannot be pickled ({error})"
    return None


# --- by name ------------------------------------------------------------------------------------------------


def _as_task(reference: str, module: ModuleType, name: str, options: dict[str, object]) -> Task:
    tasks = [n for n, value in vars(module).items() if isinstance(value, Task)]
    if name not in vars(module):
        functions = [
            n
            for n, value in vars(module).items()
            if inspect.isfunction(value) and value.__module__ == module.__name__
        ]
        raise CampaignError(
            f'task = "{reference}": the module has no {name!r}. {suggestion(name, tasks + functions)}'
        )
    found = vars(module)[name]
    if isinstance(found, Task):
        if options:
            raise UsageError(
                f'task = "{reference}" is a Task, and task options are given ({", ".join(options)}). '
                "Remove them, or name a function that takes them as keywords and returns a Task."
            )
        return found
    if not callable(found):
        raise CampaignError(
            f'task = "{reference}" is a {type(found).__name__}: must be an hpo.Task, or a function that '
            f"returns one. {suggestion(name, tasks)}"
        )
    _check_options(reference, found, options)
    try:
        task = found(**options)
    except (Exception, SystemExit) as error:
        raise explained(reference, "the function", error) from error
    if not isinstance(task, Task):
        raise CampaignError(
            f'task = "{reference}" returned a {type(task).__name__}; it must return an hpo.Task.'
        )
    return task


def _check_options(reference: str, function: Callable[..., object], options: Mapping[str, object]) -> None:
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # some built-in functions have no signature
        return
    keywords = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    names = [p.name for p in keywords]
    problems = []
    if not any(p.kind == p.VAR_KEYWORD for p in parameters):
        problems += [
            f'task option "{option}": unknown to "{reference}". {suggestion(option, names)}'
            for option in options
            if option not in names
        ]
    problems += [
        f'task option "{p.name}" is missing: "{reference}" is a function that needs it. '
        "Give it in [task_options], or name a Task."
        for p in keywords
        if p.default is p.empty and p.name not in options
    ]
    if problems:
        raise UsageError("\n".join(problems))
