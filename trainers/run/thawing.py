"""Layers that the user thaws or freezes, and parameter groups that the user adds, in mid-run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from torch import Tensor, nn

from trainers.checkpoints.contents import fill_buffers, fill_model, fill_optimizer
from trainers.communication.channel import CommunicationError
from trainers.communication.rank_consistency import refuse_other_settings
from trainers.methods.strategy import Setup, State, Strategy
from trainers.modes import Modes
from trainers.names import plain_name, renamed
from trainers.optim.composite import Composite, parameters_in
from trainers.optim.moving_average import MovingAverage
from trainers.run.model_checks import refuse_foreign_tensors


class Thawing:
    """Keeps what ranks exchange to what the optimizer trains, and a checkpoint to what the user has changed.

    Without it each rank would train a thawed layer, or the parameters of an added group, for itself. ``modes`` are
    those of the model's modules as the run began; None: the caller sets them.
    """

    def __init__(
        self,
        setup: Setup,
        strategy: Strategy,
        *,
        average: MovingAverage | None = None,
        modes: Modes | None = None,
    ) -> None:
        self._setup = setup
        self._strategy = strategy
        self._average = average
        self._modes = modes
        # A method of the user's own may exchange parameters without saying so.
        self._active = setup.trained.asked or not strategy.reparametrises
        if not setup.trained.asked:
            setup.trained.exchanged()
        self._began = {name: parameter.requires_grad for name, parameter in self._named().items()}
        self._own_names = {plain_name(name): name for name, _ in setup.model.named_parameters()}
        """The model's names, by which strategies know weights, of the plain names in checkpoints."""
        self._groups = len(setup.optimizer.param_groups)
        self._beside: list[nn.Parameter] = []
        """Parameters of the optimizer that were not exchanged as the step began."""
        self._groups_then = self._groups
        self._stale: set[int] = set()
        """Those of ``_beside``, by id, that were frozen and had a gradient already, which zero_grad may leave at 0."""

    def begin_step(self, step: int, *, agree: bool) -> None:
        """Have the strategy exchange what is trained from ``step`` on; before its forward pass, on every rank.

        Ranks compare what is thawed and frozen with ``agree``, as after an epoch or an evaluation, or where a rank
        finds that something is trained in addition. ValueError if not all have changed the same, or the optimizer has
        tensors that are not the model's; CommunicationError if other ranks have changed it after another step.
        """
        if not self._active:
            return
        setup = self._setup
        added = self._find_added()
        if not (added or agree):
            return
        changes = f"thawed or added: {self._names(added)}; frozen: {self._names(setup.trained.frozen())}"
        try:
            # A single setting, as ranks compare at an epoch's end: a rank that has changed nothing may be there
            # already, and then both end with what differs.
            refuse_other_settings(
                setup.communicator.service, {f"parameters thawed or frozen before step {step + 1}": changes}
            )
        except CommunicationError as error:
            if not added:
                raise
            raise CommunicationError(
                f"Rank {setup.communicator.rank} trains {self._names(added)} from step {step + 1} on, and other ranks "
                f"have not said so. Thaw layers and add parameter groups after the same step on all ranks. ({error})"
            ) from error
        if added:
            refuse_foreign_tensors(
                setup.model.parameters(), setup.optimizer, remedy="Add what is trained to the model, too."
            )
            self._exchange()
            self._find_added()

    def check_step(self) -> None:
        """ValueError where the optimizer is about to train what ranks have not exchanged."""
        if not self._active:
            return
        trained = self._setup.trained
        others = [
            p
            for p in (*self._beside, *trained.beside(self._all_groups()[self._groups_then :]))
            if p not in trained and (p.requires_grad or (p.grad is not None and id(p) not in self._stale))
        ]
        if others:
            raise ValueError(
                f"{self._names(others)}: trained since this step's forward pass has begun, so that ranks could not "
                "exchange the gradients. Thaw layers and add parameter groups between steps: in report or on_step, or "
                "in a loop of your own before the forward pass."
            )

    def state(self) -> dict[str, Any]:
        """Changes by the user since the run began, by name; empty where nothing has changed."""
        named, optimizer = self._named(), self._setup.optimizer
        names = {id(parameter): name for name, parameter in named.items()}
        trained = {
            name: named[name].requires_grad
            for name, began in self._began.items()
            if name in named
            and (began != named[name].requires_grad or named[name] in self._setup.trained)
            and not (began and named[name].requires_grad)
        }
        added = self._all_groups()[self._groups :]
        groups = [[names.get(id(parameter), "") for parameter in group["params"]] for group in added]
        parts = []
        if isinstance(optimizer, Composite):
            parts = [optimizer.part_of_group(self._groups + index) for index in range(len(groups))]
        modes = {
            plain_name(f"{name}."): module.training
            for name, module in self._setup.model.named_modules()
            if self._modes is not None and self._modes.get(module, module.training) != module.training
        }
        found = {"trained": trained, "groups": groups, "parts": parts, "modes": modes}
        return {name: value for name, value in found.items() if value}

    def fill(
        self,
        saved: Mapping[str, Any],
        *,
        where: str,
        complete: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda saved: saved,
    ) -> Mapping[str, Any]:
        """Restore model, optimizer and strategy from ``saved`` in ``where``; ValueError where it does not fit them.

        Returns what ``complete`` makes of ``saved`` once the optimizer has the saved parameters.
        """
        model, optimizer = self._setup.model, self._setup.optimizer
        self._repeat_changes(saved.get("changed", {}))
        saved = complete(saved)
        # The strategy first, as it may have to give model and optimizer other shapes.
        self._strategy.load(self.own_names(saved["strategy"]))
        fill_model(model, saved["model"], where=where, load=self._strategy.load_model_state)
        fill_optimizer(optimizer, saved["optimizer"], model=model, saved_model=saved["model"], where=where)
        fill_buffers(model, saved["buffers"], where=where)
        self._setup.communicator.set_counters(saved["counters"])
        return saved

    def own_names(self, state: State) -> State:
        """``state`` of the strategy by the model's names, in place of plain names."""
        return cast(State, renamed(state, lambda name: self._own_names.get(name, name)))

    def _repeat_changes(self, state: Mapping[str, Any]) -> None:
        if not state:
            return
        named, optimizer = self._named(), self._setup.optimizer
        changed = {named[n]: is_now for n, is_now in state.get("trained", {}).items() if n in named}
        for parameter in changed:
            parameter.requires_grad_(True)
        held = parameters_in(optimizer)
        groups = state.get("groups", ())
        for names, number in zip(groups, state.get("parts", [-1] * len(groups)), strict=True):
            parameters = {name: named[name] for name in names if name in named}
            if not held.issuperset(map(id, parameters.values())):
                part = optimizer.parts[number] if isinstance(optimizer, Composite) else optimizer
                part.add_param_group(_group_like(part.param_groups[0], parameters))
        self._all_groups()
        modes = state.get("modes", {})
        for name, module in self._setup.model.named_modules():
            module.training = modes.get(plain_name(f"{name}."), module.training)
        self._exchange()
        for parameter, trained in changed.items():
            parameter.requires_grad_(trained)  # only now, as what was frozen later has been exchanged, too

    def _find_added(self) -> list[nn.Parameter]:
        """Trained parameters of the optimizer that are not exchanged."""
        groups = self._all_groups()
        self._beside, self._groups_then = self._setup.trained.beside(groups), len(groups)
        self._stale = {id(p) for p in self._beside if not p.requires_grad and p.grad is not None}
        return [parameter for parameter in self._beside if parameter.requires_grad]

    def _all_groups(self) -> list[dict[str, Any]]:
        """The optimizer's groups, also those that the user has added to a part of a composite optimizer."""
        optimizer = self._setup.optimizer
        if isinstance(optimizer, Composite):
            optimizer.adopt()
        return optimizer.param_groups

    def _exchange(self) -> None:
        self._strategy.parameters_thawed()
        self._setup.trained.exchanged()
        if self._average is not None:
            self._average.include(self._setup.model)

    def _named(self) -> dict[str, nn.Parameter]:
        return {plain_name(name): parameter for name, parameter in self._setup.model.named_parameters()}

    def _names(self, parameters: Sequence[nn.Parameter]) -> str:
        names = {id(parameter): name for name, parameter in self._named().items()}
        return (
            ", ".join(names.get(id(p), f"a tensor of shape {tuple(p.shape)}") for p in parameters) or "none"
        )


def _group_like(group: Mapping[str, Any], parameters: Mapping[str, nn.Parameter]) -> dict[str, Any]:
    """A parameter group with the settings of ``group``, until a checkpoint's are loaded."""
    settings = {
        name: value.clone() if isinstance(value, Tensor) else value
        for name, value in group.items()
        if name not in ("params", "param_names")
    }
    named = "param_names" in group
    return {**settings, "params": [*parameters.items()] if named else [*parameters.values()]}
