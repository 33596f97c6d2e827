"""Content of a checkpoint, and whether it is of the run that finds it."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainers.checkpoints.callables import same_but_numbers, same_code
from trainers.communication.rank_consistency import shown
from trainers.data.probing import Samples, other_samples
from trainers.names import plain, plain_name
from trainers.optim.composite import kind_of

REMEDY = "Name another directory, or remove it to start from the beginning."
FROZEN = " and frozen"
"""End of the form of a parameter that is frozen as the run begins."""
_OF_THE_DEVICE = ("fused", "foreach", "capturable")
"""Settings of parameter groups that say how an optimizer computes, and not what: another device may need others."""
_NO_SETTINGS = ("params", "param_names", "initial_lr")
_GROUP = " of group "
_NOT_COMPARED = re.compile(
    r", (bucket_bytes=\w+|average_at_epoch_end=True|fragments=1|(shard|wire_dtype|outer_settings)=None)"
)
"""Sizes of messages, whose default depends on the backend, and defaults that earlier versions did not have."""


@dataclass(frozen=True, kw_only=True)
class FunctionFacts:
    """The user's functions as rank 0 sees them, alike on all ranks."""

    functions: dict[str, str]
    """Names and settings, part of a checkpoint's identity; see ``callables``."""
    code: dict[str, str]
    warns: bool = True
    """Whether this rank warns."""


Saved = Mapping[str, Any]
"""Content of a checkpoint, shared and own together: the entries below, and those of a moving average."""
REQUIRED = (
    "best", "buffers", "changed", "code", "counters", "epoch", "evaluation_s", "form", "history", "identity",
    "loss_sum", "model", "optimizer", "reason", "samples", "step", "strategy", "train_s",
)  # fmt: skip


def check_saved(
    saved: Saved,
    *,
    identity: Mapping[str, str],
    form: Mapping[str, str],
    where: str,
    but: Collection[str] = (),
    but_numbers: Collection[str] = (),
) -> None:
    """ValueError unless ``saved`` in ``where`` is of a run with this ``identity`` on a model of this ``form``.

    The settings named in ``but`` may differ, those in ``but_numbers`` in their numbers.
    """
    if missing := [name for name in REQUIRED if name not in saved]:
        raise ValueError(
            f"The checkpoint in {where} is of something else than a run: no {missing[0]}. {REMEDY}"
        )
    differing = [
        f"{name} was {was}, is {identity.get(name)}"
        for name, was in saved["identity"].items()
        if name not in but
        and name.partition(_GROUP)[0] not in _OF_THE_DEVICE
        and _NOT_COMPARED.sub("", was) != _NOT_COMPARED.sub("", str(identity.get(name)))
        and not (name in but_numbers and same_but_numbers(was, identity.get(name, "")))
    ]
    if differing:
        raise ValueError(f"The checkpoint in {where} is of other settings: {'; '.join(differing)}. {REMEDY}")
    _refuse_other_model(saved["form"], form, where)


def compare_code(saved: Saved, now: FunctionFacts, *, where: str, over: bool) -> None:
    """ValueError where ``saved``, from ``where``, is of another lambda than ``now``; a warning where a function has
    other code, which may compute the same, or other numbers. ``over``: nothing is left to be trained.
    """
    codes = saved["code"]
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
        kept = "its result is that of the functions before" if over else "it goes on with the new functions"
        warnings.warn(
            f"The code, or a number in it, of {', '.join(changed)} is not what it was when the checkpoint in {where} "
            f"was written: {kept}. Does it compute something else? {REMEDY}",
            stacklevel=2,
        )


def refuse_other_data(saved: Saved, now: Mapping[str, Samples], *, where: str) -> None:
    """ValueError where ``saved``, from ``where``, is of other data sets than ``now``."""
    for name, samples in now.items():
        if other_samples(saved["samples"].get(name), samples):
            numbers = ", ".join(str(number) for number, _ in samples)
            raise ValueError(
                f"The checkpoint in {where} is of other data: samples {numbers} of {name} are not what they were. "
                f"Is {name} split, listed or made at random? Seed or sort that. {REMEDY}"
            )


def fill_model(
    model: nn.Module,
    state: Mapping[str, Tensor],
    *,
    where: str,
    load: Callable[[nn.Module, dict[str, Any]], object] = nn.Module.load_state_dict,
) -> None:
    """Load ``state``, by plain names, from ``where`` by ``load``; ValueError if it is of another model."""
    # The model's own dictionary, as it also has the versions of its modules' states.
    filled = model.state_dict()
    own, names = _shapes(plain(filled)), {plain_name(name): name for name in filled}
    filled.clear()
    filled.update({names.get(name, name): value for name, value in state.items()})
    try:
        load(model, filled)
    except RuntimeError:
        _refuse_other_model(_shapes(state), own, where)
        raise


@torch.no_grad()
def fill_buffers(model: nn.Module, buffers: Mapping[str, Tensor], *, where: str) -> None:
    """Load ``buffers``, by plain names, also those that the model's state leaves out; ValueError if a buffer is not
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
    model: nn.Module,
    saved_model: Mapping[str, object],
    where: str,
) -> None:
    """Load ``state``, saved beside ``saved_model``; ValueError if it is of parameters grouped otherwise."""
    own = [group["lr"] for group in optimizer.param_groups]
    try:
        optimizer.load_state_dict(_for_device_of(optimizer, state))
    except ValueError as error:
        raise ValueError(f"The checkpoint in {where} is of another optimizer: {error}. {REMEDY}") from error
    for group, rate in zip(optimizer.param_groups, own, strict=True):
        if isinstance(rate, Tensor):
            # A captured step reads this very tensor; that of the file is on the CPU.
            group["lr"] = rate.copy_(torch.as_tensor(group["lr"]))
    # An optimizer around another may have a state of its own form.
    if (
        _types(plain(model.state_dict())) != _types(saved_model)
        or not {"state", "param_groups"} <= state.keys()
    ):
        return
    # torch has given all of a parameter's state its type, also what was more precise, such as NAdam's product.
    for group, was in zip(optimizer.param_groups, state["param_groups"], strict=True):
        for parameter, number in zip(group["params"], was["params"], strict=True):
            if parameter in optimizer.state:
                optimizer.state[parameter] = _as_saved(optimizer.state[parameter], state["state"].get(number))


def _for_device_of(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """``state`` with those settings that depend on the device as ``optimizer`` has them."""
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
    return {name: value.dtype for name, value in state.items() if isinstance(value, Tensor)}


def _shapes(state: Mapping[str, object]) -> dict[str, object]:
    return {name: tuple(value.shape) for name, value in state.items() if isinstance(value, Tensor)}


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
    """Shape of each parameter, and whether it is trained, by plain name."""
    return {
        plain_name(name): f"{tuple(parameter.shape)}{'' if parameter.requires_grad else FROZEN}"
        for name, parameter in model.named_parameters()
    }


def described(optimizer: Optimizer) -> dict[str, str]:
    """The optimizer's kind, and the settings of its parameter groups by name.

    Names of parameters are left out, as those of factors, or of a compiled model, are others.
    """
    found = {"optimizer": kind_of(optimizer)}
    for index, group in enumerate(optimizer.param_groups):
        settings = {name: value for name, value in group.items() if name not in _NO_SETTINGS}
        found.update({f"{name}{_GROUP}{index}": shown(value) for name, value in settings.items()})
    return found
