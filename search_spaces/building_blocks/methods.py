"""The training methods that a task's option ``method`` names.

A campaign about a method searches it in the ranges of its source. With another ``method`` the parameters here take
their place, so that every method can train, and be searched with, each campaign's network, data and schedule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import hpo

if TYPE_CHECKING:
    import trainers
    from hpo.individual import Scalar
    from hpo.space.space import Parameter
    from hpo.task.task import Constraint

MethodName = Literal["ddp", "fsdp", "daso", "local-sgd", "oialr", "ab", "ab-no-groups"]


def one_at_a_time(params: Mapping[str, Any]) -> bool:
    """S ≤ B: a result is merged before the next synchronisation begins."""
    return bool(params["sync_delay"] <= params["sync_every"])


@dataclass(frozen=True, kw_only=True)
class OfferedMethod:
    """Class of a training method in ``trainers``, its search, where lengths are fractions of the run, and keywords
    that are not searched.
    """

    kind: str
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    default: Mapping[str, Scalar] = field(default_factory=dict)
    constraints: tuple[Constraint, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)


# No source states ranges for AB (dissertation, 5.3.3); the default is its guidelines with the cutoff of Table A.6.
_AB = {
    "warmup": hpo.Float(0.05, 0.5),  # full rank, all ranks in common
    "ab": hpo.Float(0.005, 0.25, log=True),  # one phase in groups, num_ab_steps
    "rebound": hpo.Float(0.02, 1.0, log=True),  # fraction of a group phase: full rank in common after it
    "lr_rebound": hpo.Float(0.05, 1.0, log=True),  # fraction of a group phase: until the rate is back
    "sigma_cutoff": hpo.Float(0.01, 0.5, log=True),
}
_AB_DEFAULT = {"warmup": 0.2, "ab": 0.0333, "rebound": 0.25, "lr_rebound": 0.5, "sigma_cutoff": 0.15}

METHODS: dict[MethodName, OfferedMethod] = {
    "ddp": OfferedMethod(kind="DDP"),
    "fsdp": OfferedMethod(kind="FSDP"),
    "daso": OfferedMethod(
        kind="DASO",
        parameters={
            "sync_every": hpo.Ordinal(1, 2, 4, 8, 16, 32),  # B
            "sync_delay": hpo.Ordinal(0, 1, 2, 4, 8, 16, 32),  # S; 0 waits for the result
        },
        default={"sync_every": 4, "sync_delay": 1},  # section 3.3.1
        constraints=(one_at_a_time,),
    ),
    "local-sgd": OfferedMethod(
        kind="LocalSGD",
        parameters={"world_every": hpo.Ordinal(2, 4, 8, 16, 32, 64, 128)},  # L_W
        default={"world_every": 8},
        fixed={"households": 1},
    ),
    # The cutoff has the range of Table A.3; frequency and delay reach further, so that Table A.1's runs are inside.
    "oialr": OfferedMethod(
        kind="OIALR",
        parameters={
            "sigma_cutoff": hpo.Float(0.01, 0.9),
            "update_every": hpo.Float(0.005, 0.2, log=True),  # the source's stability frequency
            "delay": hpo.Float(0.02, 0.75, log=True),
        },
        default={"sigma_cutoff": 0.1, "update_every": 0.02, "delay": 1 / 3},  # section 4.3, Table A.1
    ),
    # A merge gain of 0.5 is the source's merge of groups; no source searches it.
    "ab": OfferedMethod(
        kind="AB",
        parameters={**_AB, "merge_gain": hpo.Float(0.5, 1.0)},
        default={**_AB_DEFAULT, "merge_gain": 0.5},
    ),
    "ab-no-groups": OfferedMethod(kind="AB", parameters=_AB, default=_AB_DEFAULT),
}


def make(
    method: MethodName, p: Mapping[str, Any], *, ranks: int, group_size: int | None = None
) -> trainers.Method:
    """``method`` with the parameters ``p``; AB has groups of ``group_size`` ranks, None: of a node's, if there are
    several ``ranks``.
    """
    import trainers

    offered = METHODS[method]
    keywords = {**{name: p[name] for name in offered.parameters}, **offered.fixed}
    if offered.kind == "AB":
        groups = method == "ab" and ranks > 1
        keywords = {
            "warmup_steps": p["warmup"],
            "ab_steps": p["ab"],
            "rebound_steps": p["rebound"] * p["ab"],
            "lr_rebound_steps": p["lr_rebound"] * p["ab"],
            "sigma_cutoff": p["sigma_cutoff"],
            "groups": groups,
            **({"merge_gain": p["merge_gain"], "group_size": group_size} if groups else {}),
        }
    made: trainers.Method = getattr(trainers, offered.kind)(**keywords)
    return made
