"""The training methods that a task's option ``method`` names: what of each is searched, and the method itself.

A campaign that is about one of them has it in its own space, with the ranges of its source. With another ``method``
those parameters give way to the ones here, so that each campaign's network, data and schedule can be trained, and
searched, with every method; "ddp", the full-rank baseline, has none. Lengths are fractions of the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import hpo

if TYPE_CHECKING:
    import trainers
    from hpo.individual import Scalar
    from hpo.space.space import Parameter
    from hpo.task.task import Constraint

MethodName = Literal["ddp", "daso", "local-sgd", "oialr", "ab", "ab-no-groups"]


def parameters(method: MethodName) -> dict[str, Parameter]:
    """What is searched of ``method``: DASO's B and S (dissertation, 3.3.1), L_W of local SGD, OIALR's parameters of
    Table A.3 (the cutoff in its range; frequency and delay reach further, so that the runs of Table A.1 are inside),
    and AB's of 5.3.3, which states no ranges, with the merge gain, which no source has.
    """
    if method == "daso":
        return {
            "sync_every": hpo.Ordinal(1, 2, 4, 8, 16, 32),  # B
            "sync_delay": hpo.Ordinal(0, 1, 2, 4, 8, 16, 32),  # S; 0 waits for the result
        }
    if method == "local-sgd":
        return {"world_every": hpo.Ordinal(2, 4, 8, 16, 32, 64, 128)}
    if method == "oialr":
        return {
            "sigma_cutoff": hpo.Float(0.01, 0.9),
            "update_every": hpo.Float(0.005, 0.2, log=True),  # the source's stability frequency
            "delay": hpo.Float(0.02, 0.75, log=True),
        }
    if method in ("ab", "ab-no-groups"):
        return {
            "warmup": hpo.Float(0.05, 0.5),  # full rank, all ranks in common
            "ab": hpo.Float(0.005, 0.25, log=True),  # one phase in groups, num_ab_steps
            "rebound": hpo.Float(0.02, 1.0, log=True),  # of a group phase: full rank in common after it
            "lr_rebound": hpo.Float(0.05, 1.0, log=True),  # of a group phase: until the learning rate is back
            "sigma_cutoff": hpo.Float(0.01, 0.5, log=True),
            # 0.5 is the source's merge of groups; see trainers.AB
            **({"merge_gain": hpo.Float(0.5, 1.0)} if method == "ab" else {}),
        }
    return {}


def default(method: MethodName) -> dict[str, Scalar]:
    """A configuration of ``parameters``: B = 4, S = 1 (3.3.1); a third of the run at full rank and the cutoff of Table
    A.1 (4.3); the guidelines of 5.3.3 with the cutoff of Table A.6.
    """
    if method == "daso":
        return {"sync_every": 4, "sync_delay": 1}
    if method == "local-sgd":
        return {"world_every": 8}
    if method == "oialr":
        return {"sigma_cutoff": 0.1, "update_every": 0.02, "delay": 1 / 3}
    if method in ("ab", "ab-no-groups"):
        return {
            "warmup": 0.2, "ab": 0.0333, "rebound": 0.25, "lr_rebound": 0.5, "sigma_cutoff": 0.15,
            **({"merge_gain": 0.5} if method == "ab" else {}),
        }  # fmt: skip
    return {}


def one_at_a_time(params: Mapping[str, Any]) -> bool:
    """S ≤ B: a result is merged before the next synchronisation begins."""
    return bool(params["sync_delay"] <= params["sync_every"])


def constraints(method: MethodName) -> list[Constraint]:
    """Of ``parameters``."""
    return [one_at_a_time] if method == "daso" else []


def make(
    method: MethodName, p: Mapping[str, Any], *, ranks: int, group_size: int | None = None
) -> trainers.Method:
    """``method`` with the parameters ``p``, for a run on ``ranks`` ranks: one alone trains without AB's groups, whose
    size is ``group_size``, None: a node's. DASO on one node is plain averaging.
    """
    import trainers

    if method == "daso":
        return trainers.DASO(sync_every=p["sync_every"], sync_delay=p["sync_delay"])
    if method == "local-sgd":
        return trainers.LocalSGD(world_every=p["world_every"], households=1)
    if method == "oialr":
        return trainers.OIALR(
            sigma_cutoff=p["sigma_cutoff"], update_every=p["update_every"], delay=p["delay"]
        )
    if method in ("ab", "ab-no-groups"):
        groups = method == "ab" and ranks > 1
        return trainers.AB(
            warmup_steps=p["warmup"],
            ab_steps=p["ab"],
            rebound_steps=p["rebound"] * p["ab"],
            lr_rebound_steps=p["lr_rebound"] * p["ab"],
            sigma_cutoff=p["sigma_cutoff"],
            merge_gain=p["merge_gain"] if groups else trainers.AB.merge_gain,
            groups=groups,
            group_size=group_size if groups else None,
        )
    return trainers.DDP()
