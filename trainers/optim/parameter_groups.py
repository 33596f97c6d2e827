"""Groups of parameters with settings of their own, chosen by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import nn
from torch.optim import Optimizer

from trainers.names import plain_name
from trainers.optim.composite import kind_of

GroupSettings = Callable[[str, nn.Parameter], Mapping[str, object]]
"""(name, parameter) to the optimizer's settings for it, by name; those that are not there are the optimizer's own."""


def grouped(model: nn.Module, settings_of: GroupSettings) -> list[dict[str, object]]:
    """The trained parameters of ``model`` as torch's optimizers take groups: one for each of the settings that
    ``settings_of`` finds, in the order in which the model has them.

    Raises:
        ValueError: ``settings_of`` returned something else than a dictionary.
    """
    groups: dict[str, dict[str, object]] = {}
    members: dict[str, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        settings = settings_of(plain_name(name), parameter)
        if not isinstance(settings, Mapping):
            raise ValueError(
                f"parameter_groups: returned {settings!r} for {plain_name(name)}, and must return a dictionary of the "
                "optimizer's settings for it: {\"weight_decay\": 0.0}, say, or {} for the optimizer's own. Correct it."
            )
        key = repr(sorted(settings.items()))
        groups.setdefault(key, dict(settings))
        members.setdefault(key, []).append(parameter)
    return [{"params": members[key], **settings} for key, settings in groups.items()]


def refuse_unknown_settings(optimizer: Optimizer, groups: list[dict[str, object]]) -> None:
    """ValueError if ``groups`` set something that ``optimizer`` does not have, as torch would not say."""
    for group in groups:
        for name in group.keys() - {"params"}:
            if name not in optimizer.defaults:
                raise ValueError(
                    f"parameter_groups: {kind_of(optimizer)} has no setting {name!r}. It has "
                    f"{', '.join(optimizer.defaults)}."
                )
