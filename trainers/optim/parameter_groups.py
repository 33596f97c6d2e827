"""Groups of parameters with different settings, chosen by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import nn
from torch.optim import Optimizer

from trainers.names import plain_name
from trainers.optim.composite import kind_of

GroupSettings = Callable[[str, nn.Parameter], Mapping[str, object]]
"""Function from (name, parameter) to settings for that parameter by name; others are the optimizer's own."""


def grouped(model: nn.Module, settings_of: GroupSettings) -> list[dict[str, object]]:
    """Trained parameters of ``model``, in its order, in groups for torch's optimizers, with a group for each different
    settings; ValueError if ``settings_of`` returned something else than a dictionary.
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
        # Compared as text, because settings may be lists or tensors, which are not hashable or not comparable.
        key = repr(sorted(settings.items()))
        groups.setdefault(key, dict(settings))
        members.setdefault(key, []).append(parameter)
    return [{"params": members[key], **settings} for key, settings in groups.items()]


def refuse_unknown_settings(optimizer: Optimizer, groups: list[dict[str, object]]) -> None:
    """Raise ValueError if ``groups`` have a setting that ``optimizer`` does not have."""
    # torch accepts and ignores unknown settings.
    for group in groups:
        for name in group.keys() - {"params"}:
            if name not in optimizer.defaults:
                raise ValueError(
                    f"parameter_groups: {kind_of(optimizer)} has no setting {name!r}. It has "
                    f"{', '.join(optimizer.defaults)}."
                )
