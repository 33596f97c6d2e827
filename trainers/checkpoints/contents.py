"""What a checkpoint holds, and whether it is of the run that finds it."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainers.checkpoints.callables import same_but_numbers, same_code
from trainers.communication.rank_consistency import shown
from trainers.data.probing import Samples, other_samples
from trainers.methods.strategy import State
from trainers.names import plain, plain_name
from trainers.optim.composite import kind_of

_OF_THE_DEVICE = ("fused", "foreach", "capturable")
"""Entries of an optimizer's parameter groups that say how it computes, and not what: another device may need others."""
_NO_SETTINGS = ("params", "param_names", "initial_lr")
_GROUP = " of group "
FROZEN = " and frozen"
"""End of the form of a parameter that is frozen as the run begins."""
_MESSAGES = re.compile(r", bucket_bytes=\w+")
_ADDED_SINCE = re.compile(r", average_at_epoch_end=True(?=\))")
REMEDY = "Name another directory, or remove it to start anew."


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The user's functions as rank 0 sees them, alike on all ranks.

    Attributes:
        functions (dict): names and settings of the functions, part of a checkpoint's identity; see ``callables``.
        code (dict): digests of their code.
        warns (bool): whether this rank warns.
    """

    functions: dict[str, str]
    code: dict[str, str]
    warns: bool = True


class Best(TypedDict):
    """The model as it was at some epoch, and the strategy's state that gives it the shapes it had then."""

    model: dict[str, Tensor]
    strategy: State


class _Always(TypedDict):
    identity: dict[str, str]
    model: dict[str, Tensor]
    optimizer: dict[str, Any]
    strategy: State
    buffers: dict[str, Tensor]
    best: Best | None
    epoch: int
    step: int
    history: list[dict[str, float]]
    reason: str
    loss_sum: Tensor
    train_s: float
    evaluation_s: float
    counters: dict[str, dict[str, float]]


class Saved(_Always, total=False):
    """Content of a checkpoint, shared and own together."""

    ema: dict[str, Tensor]
    """The moving average of the parameters, where there is one, and that of this rank's buffers."""
    ema_buffers: dict[str, Tensor]
    changed: dict[str, Any]
    """The user's changes of the model and the optimizer's groups in mid-run: see ``trainers.run.thawing``."""
    form: dict[str, str]
    """Forms of the model's parameters as the run began. Checkpoints of earlier versions have none."""
    code: dict[str, str]
    """Digests of the user's functions by name; see ``callables``. Earlier versions have none of them."""
    samples: dict[str, Samples]
    """Summaries of a few samples of the data sets by name; see ``probing``. Earlier versions have none of them."""


def checked(
    found: Mapping[str, object],
    *,
    identity: Mapping[str, str],
    form: Mapping[str, str],
    where: str,
    but: Collection[str] = (),
    but_numbers: Collection[str] = (),
) -> Saved:
    """``found`` in ``where``; ValueError unless it is of a run with this ``identity`` on a model of this ``form``.
    The settings named in ``but`` may differ, those in ``but_numbers`` in their numbers.
    """
    missing = sorted(Saved.__required_keys__ - found.keys())
    if missing:
        raise ValueError(
            f"The checkpoint in {where} is of something else than a run: no {missing[0]}. {REMEDY}"
        )
    saved = cast(Saved, found)
    differing = [
        f"{name} was {was}, is {identity.get(name)}"
        for name, was in saved["identity"].items()
        if name not in but
        and name.partition(_GROUP)[0] not in _OF_THE_DEVICE
        and _compared(was) != _compared(identity.get(name))
        and not (name in but_numbers and same_but_numbers(was, identity.get(name, "")))
    ]
    if differing:
        raise ValueError(f"The checkpoint in {where} is of other settings: {'; '.join(differing)}. {REMEDY}")
    _refuse_other_model(saved.get("form", form), form, where)
    return saved


def compare_code(saved: Saved, now: Facts, *, where: str, over: bool) -> None:
    """ValueError where ``saved``, from ``where``, is of another lambda than ``now``; a warning where a function has
    other code, which may compute the same, or other numbers. ``over``: nothing is left to be trained.
    """
    codes = saved.get("code", {})
    for name, code in now.code.items():
        if "<lambda>" in now.functions[name] and not same_code(codes.get(name), code, captured=False):
            raise ValueError(
                f"The checkpoint in {where} is of other settings: {name} was another lambda. {REMEDY}"
            )
    changed = [
        name
        for name, function in now.functions.items()
        if not same_code(codes.get(name), now.code.get(name))
        or saved["identity"].get(name, function) != function
    ]
    if changed and now.warns:
        kept = (
            "its result is that of the functions before" if over else "the run goes on with the new functions"
        )
        warnings.warn(
            f"The code, or a number in it, of {', '.join(changed)} is not what it was when the checkpoint in {where} "
            f"was written: {kept}. If it computes something else: {REMEDY[0].lower()}{REMEDY[1:]}",
            stacklevel=2,
        )


def refuse_other_data(saved: Saved, now: Mapping[str, Samples], *, where: str) -> None:
    """ValueError where ``saved``, from ``where``, is of other data sets than ``now``."""
    was = saved.get("samples", {})
    for name, samples in now.items():
        if other_samples(was.get(name), samples):
            numbers = ", ".join(str(one[0]) for one in samples)
            raise ValueError(
                f"The checkpoint in {where} is of other data: samples {numbers} of {name} are not what they were. "
                f"If {name} is split, listed or made at random, seed or sort that. Else: "
                f"{REMEDY[0].lower()}{REMEDY[1:]}"
            )


def _compared(setting: object) -> str:
    """``setting`` without what results do not depend on: sizes of messages, whose default depends on the backend, and
    settings that earlier versions had not, where they leave all as it was.
    """
    return _ADDED_SINCE.sub("", _MESSAGES.sub("", str(setting)))


def fill_model(model: nn.Module, state: Mapping[str, Tensor], *, where: str) -> None:
    """Load ``state``, by plain names, from ``where``; ValueError if it is of another model."""
    # The model's own, as it also says which versions its modules' states are of.
    filled = model.state_dict()
    own, names = _shapes(plain(filled)), {plain_name(name): name for name in filled}
    filled.clear()
    filled.update({names.get(name, name): value for name, value in state.items()})
    try:
        model.load_state_dict(filled)
    except RuntimeError:
        _refuse_other_model(_shapes(state), own, where)
        raise


@torch.no_grad()
def fill_buffers(model: nn.Module, buffers: Mapping[str, Tensor], *, where: str) -> None:
    """Load ``buffers``, by plain names, also those that the model's state leaves out; ValueError if one is not
    there, or of another shape.
    """
    own = plain(dict(model.named_buffers()))
    found = {name: value for name, value in buffers.items() if name in own}
    _refuse_other_model(_shapes(found), _shapes(own), where)
    for name, buffer in own.items():
        buffer.copy_(found[name])


def fill_optimizer(
    optimizer: Optimizer,
    state: dict[str, Any],
    *,
    model: Mapping[str, object],
    saved_model: Mapping[str, object],
    where: str,
) -> None:
    """Load ``state``, saved beside ``saved_model``, now ``model``; ValueError if it is of parameters grouped
    otherwise.
    """
    own = [group["lr"] for group in optimizer.param_groups]
    try:
        optimizer.load_state_dict(_computed_as_by(optimizer, state))
    except ValueError as error:
        raise ValueError(f"The checkpoint in {where} is of another optimizer: {error}. {REMEDY}") from error
    for group, rate in zip(optimizer.param_groups, own, strict=True):
        if isinstance(rate, Tensor):
            # A captured step reads this very tensor; that of the file is on the CPU.
            group["lr"] = rate.copy_(torch.as_tensor(group["lr"]))
    # An optimizer around another may have a state of its own form.
    if _types(model) != _types(saved_model) or not {"state", "param_groups"} <= state.keys():
        return
    # torch has given all of a parameter's state its type, also what was more precise: NAdam's product, say.
    for group, was in zip(optimizer.param_groups, state["param_groups"], strict=True):
        for parameter, number in zip(group["params"], was["params"], strict=True):
            if parameter in optimizer.state:
                optimizer.state[parameter] = _as_saved(optimizer.state[parameter], state["state"].get(number))


def _computed_as_by(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """``state`` with those settings that are of the device as ``optimizer`` has them."""
    groups = [
        {**was, **{name: group[name] for name in _OF_THE_DEVICE if name in group and name in was}}
        for was, group in zip(state.get("param_groups", ()), optimizer.param_groups)
    ]
    return {**state, "param_groups": groups} if len(groups) == len(optimizer.param_groups) else state


def _as_saved(loaded: Any, saved: Any) -> Any:
    """``loaded`` with those tensors of ``saved`` whose type was changed."""
    if isinstance(loaded, Tensor) and isinstance(saved, Tensor):
        return loaded if loaded.dtype is saved.dtype else saved.to(loaded.device)
    if type(loaded) is dict and isinstance(saved, dict):
        return {name: _as_saved(part, saved.get(name)) for name, part in loaded.items()}
    if type(loaded) in (list, tuple) and isinstance(saved, (list, tuple)):
        return type(loaded)(_as_saved(*parts) for parts in zip(loaded, saved, strict=True))
    return loaded


def _types(state: Mapping[str, object]) -> dict[str, torch.dtype]:
    """Of each tensor in ``state``, by name."""
    return {name: value.dtype for name, value in state.items() if isinstance(value, Tensor)}


def _refuse_other_model(saved: Mapping[str, object], own: Mapping[str, object], where: str) -> None:
    """ValueError with the first of the names that ``saved``, from ``where``, and ``own`` differ at."""
    names = [name for name in (*own, *(saved.keys() - own.keys())) if saved.get(name) != own.get(name)]
    if names:
        first, others = names[0], f", and {len(names) - 1} more differ" if len(names) > 1 else ""
        raise ValueError(
            f"The checkpoint in {where} is of another model: {first} was {saved.get(first, 'not there')}, is "
            f"{own.get(first, 'not there')}{others}. {REMEDY}"
        )


def form_of(model: nn.Module) -> dict[str, str]:
    """Of each parameter its shape, and whether it is trained."""
    return {
        plain_name(name): f"{tuple(parameter.shape)}{'' if parameter.requires_grad else FROZEN}"
        for name, parameter in model.named_parameters()
    }


def _shapes(state: Mapping[str, object]) -> dict[str, object]:
    """Of each tensor in ``state``, by name."""
    return {name: tuple(value.shape) for name, value in state.items() if isinstance(value, Tensor)}


def described(optimizer: Optimizer) -> dict[str, str]:
    """The optimizer's kind, and the settings of its parameter groups by name; parameters' own names are not of them:
    those of factors, or of a compiled model, are others.
    """
    found = {"optimizer": kind_of(optimizer)}
    for index, group in enumerate(optimizer.param_groups):
        settings = {name: value for name, value in group.items() if name not in _NO_SETTINGS}
        found.update({f"{name}{_GROUP}{index}": shown(value) for name, value in settings.items()})
    return found
