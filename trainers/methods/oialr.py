"""OIALR: after some training at full rank, only matrices of singular values are trained, in orthogonal bases that are
frozen and lose rank at some steps (dissertation, section 4.3, Algorithm 1).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trainers.arguments import check_bounds, check_kinds, check_rules, is_integer
from trainers.communication.buckets import broadcast_tensors
from trainers.lowrank.decomposition import SharedWork, svd, svd_cost
from trainers.lowrank.layers import (
    MatrixWeight,
    factorise,
    make_whole,
    matrix_weights,
    weights_to_factorise,
)
from trainers.lowrank.state_projection import Projection, exchange, remove
from trainers.methods.ab import AB
from trainers.methods.ddp import DDP
from trainers.methods.strategy import (
    Method,
    Setup,
    State,
    Steps,
    Strategy,
    check_steps,
    is_method,
    preparation_of,
    steps_of,
)
from trainers.optim.composite import parameters_in
from trainers.precision import full_precision

_log = logging.getLogger("trainers.methods")


@dataclass(frozen=True, kw_only=True)
class OIALR(Method):
    """Orthogonality-informed adaptive low-rank training.

    After ``delay`` steps, each eligible weight becomes U Σ Vᵀ by a compact singular value decomposition; U and Vᵀ are
    frozen, and the square matrix Σ is trained. Every ``update_every`` steps from then on, Σ = P S Qᵀ is decomposed, U
    becomes U P, Vᵀ becomes Qᵀ Vᵀ and Σ becomes S (Eq. 4.13), without singular values of at most ``sigma_cutoff`` times
    the largest. The u-th update includes the last L · ``layer_step`` · u of L eligible weights, at least one, because
    weights near the output become stable first. All other parameters, biases of these layers included, are trained as
    before; moments of the optimizer are projected to the new coordinates.

    Eligible are trained weights of Linear, Conv1d, Conv2d and MultiheadAttention of suitable shapes that no other layer
    shares (``trainers.lowrank.layers``); weights thawed during a run stay whole.

    At the end, the model is in its low-rank form; ``trainers.merged`` gives it ordinary layers again. A run of a model
    in low-rank form first makes it whole. A compiled model is compiled again where ranks fall, as for ``AB``. Metrics
    are rank/LAYER from the decomposition on, stability/LAYER of the latest update (Eq. 4.6 divided by the number of
    basis vectors; 1 for a basis that did not turn), and ``decomposition_s`` of the busiest rank.

    Args:
        delay (int steps or float fraction of the run; default 1 / 3): steps of full rank; a third of all "yields
            favorable results" (4.3). Table A.1 has 25 000 of about 156 000.
        update_every (int steps or float fraction of the run; default 0.02): steps between updates, at least 1. 0.02 is
            Table A.4's 400 of about 21 500 steps (20 epochs of ETTm2 in batches of 32); A.1's 1000 is 0.0064 of its
            steps. All weights are included after 1 / ``layer_step`` updates, with the defaults at 0.53 of the run.
        sigma_cutoff (float, between 0 and 1; default 0.1): share of the largest singular value up to which singular
            values are dropped. Table A.2 has 0.2, A.4 0.4.
        layer_step (float, above 0 to 1; default 0.1): share of the weights that each update adds.
        full_rank_first_layer (bool; default False): whether the model's first layer stays whole.
        full_rank_last_layer (bool; default True): whether the model's last layer stays whole.
        full_rank_warmup (bool; default True): whether the first ``delay`` steps have full rank. False decomposes before
            the first step, as in Table A.4 against rapid overfitting (4.4.5); updates still count from ``delay`` on.
        synchronisation (DDP, DASO or LocalSGD; default None): method by which ranks train together; None: ``DDP()``.
            If it lets ranks differ, they are synchronised before each decomposition, and wait for that.

    Raises:
        ValueError: a setting is not allowed; in the run: it ends before the first update, except with fractions in
            runs of a step or two.
    """

    delay: Steps = 1 / 3
    update_every: Steps = 0.02
    sigma_cutoff: float = 0.1
    layer_step: float = 0.1
    full_rank_first_layer: bool = False
    full_rank_last_layer: bool = True
    full_rank_warmup: bool = True
    synchronisation: Method | None = None

    def __post_init__(self) -> None:
        check_kinds(self)
        check_steps("OIALR", "delay", self.delay)
        check_steps("OIALR", "update_every", self.update_every, least=1)
        check_bounds(self, sigma_cutoff="above 0 and below 1", layer_step="above 0 and at most 1")
        under = self.synchronisation
        # OIALR and AB would decompose a weight twice, and what is decomposed is whole on each rank.
        decomposes = isinstance(under, (OIALR, AB))
        allowed = under is None or (is_method(under) and not decomposes and preparation_of(under) is None)
        rule = "None, or settings such as DDP(), DASO() or LocalSGD(), without shard"
        check_rules(self, ("synchronisation", allowed, rule))

    def strategy(self, setup: Setup) -> Strategy:
        return _OIALRStrategy(self, setup)


def _of_method_under(name: str) -> Any:
    """Attribute that is that of the strategy by which ranks train together."""
    return property(lambda strategy: getattr(strategy._under, name))


class _OIALRStrategy(Strategy):
    def __init__(self, method: OIALR, setup: Setup) -> None:
        self._method = method
        self._setup = setup
        self._optimizer = setup.optimizer
        self._delay = steps_of(method.delay, setup.total_steps)
        self._every = max(1, steps_of(method.update_every, setup.total_steps))
        if self._delay >= setup.total_steps:
            raise ValueError(
                f"OIALR(delay={method.delay!r}): the run has {setup.total_steps} steps, none would be left to "
                "train low-rank. Lower the delay, or use the method of its synchronisation alone."
            )
        given, first = (method.delay, method.update_every), self._delay + self._every
        # Fractions are meant for longer runs, but are accepted in a trial of a step or two.
        if first >= setup.total_steps and (any(map(is_integer, given)) or sum(given) >= 1):
            raise ValueError(
                f"OIALR(delay={method.delay!r}, update_every={method.update_every!r}): the first update would come "
                f"after {first} steps, and the run has {setup.total_steps}. Lower one of them."
            )
        # The model may have factors from an earlier run, or from this run before it was interrupted.
        _start_whole(setup)
        parameters = list(setup.model.parameters())
        self._full_parameters = sum(p.numel() for p in parameters)
        self._full_trainable = sum(p.numel() for p in parameters if p.requires_grad)
        self._weights = weights_to_factorise(
            "OIALR",
            setup.model,
            setup.optimizer,
            first=not method.full_rank_first_layer,
            last=not method.full_rank_last_layer,
        )
        self._ranks: dict[str, int] = {}
        """Ranks by name of the weight; empty while the model has full rank."""
        self._stability: dict[str, float] = {}
        self._updates = 0
        self._work = SharedWork(setup.communicator)
        self._under = (method.synchronisation or DDP()).strategy(setup)

    replicated = _of_method_under("replicated")
    replica = _of_method_under("replica")
    evaluates_alike = _of_method_under("evaluates_alike")
    changes_rate = _of_method_under("changes_rate")
    reduce_gradients = _of_method_under("reduce_gradients")
    learning_rate = _of_method_under("learning_rate")
    after_step = _of_method_under("after_step")
    end_epoch = _of_method_under("end_epoch")
    evaluating = _of_method_under("evaluating")
    finalise = _of_method_under("finalise")
    synchronise = _of_method_under("synchronise")
    parameters_thawed = _of_method_under("parameters_thawed")
    close = _of_method_under("close")

    @property
    def reparametrises(self) -> bool:
        return True

    @property
    def plans_ahead(self) -> bool:
        method = self._method
        # Only fractions depend on the length of the run.
        return not (is_integer(method.delay) and is_integer(method.update_every)) or self._under.plans_ahead

    def own_state(self) -> State:
        return {"decomposition_s": self._work.own_s, "under": dict(self._under.own_state())}

    def before_pass(self, step: int, *, last: bool) -> None:
        # Not after a step, so that a run never ends with a truncation without training after it.
        if not self._ranks and step >= (self._delay if self._method.full_rank_warmup else 0):
            self._decompose()
        if self._updates < (step - self._delay) // self._every:
            self._update()
        self._under.before_pass(step, last=last)

    def metrics(self) -> dict[str, float]:
        parameters = list(self._setup.model.parameters())
        trained = sum(p.numel() for p in parameters if p.requires_grad)
        layers = {weight.name: weight.layer for weight in self._weights}
        return {
            # Relative to the model at full rank, in whatever form the run got it.
            "trainable_fraction": trained / self._full_trainable,
            "compression_ratio": self._full_parameters / sum(p.numel() for p in parameters),
            **{f"rank/{layers[name]}": float(rank) for name, rank in self._ranks.items()},
            **{f"stability/{layers[name]}": value for name, value in self._stability.items()},
            "decomposition_s": self._work.busiest_s(),
            **self._under.metrics(),
        }

    def state(self) -> State:
        return {
            "updates": self._updates,
            "ranks": dict(self._ranks),
            "stability": dict(self._stability),
            "decomposition_s": self._work.own_s,
            "under": dict(self._under.state()),
        }

    def load(self, state: State) -> None:
        self._updates, self._work.own_s = state["updates"], state["decomposition_s"]
        self._stability = dict(state["stability"])
        self.load_shapes(state)
        self._under.load(state["under"])

    def shapes(self) -> State:
        return {"ranks": dict(self._ranks)}

    def load_shapes(self, saved: State) -> None:
        self._ranks = dict(saved["ranks"])
        changed = [self._reshape(weight, self._ranks.get(weight.name)) for weight in self._weights]
        if any(changed):
            self._under.parameters_changed()

    def state_on_other_ranks(self, states: Sequence[State], *, step: int, same_steps: bool) -> State | None:
        under = self._under.state_on_other_ranks(
            [state["under"] for state in states], step=step, same_steps=same_steps
        )
        if under is None:
            return None
        return {
            **states[0],
            # The number that these ranks would have made; otherwise each step would make an update until it is reached.
            "updates": states[0]["updates"]
            if same_steps
            else max(0, (step - 1 - self._delay) // self._every),
            "decomposition_s": max(state["decomposition_s"] for state in states),
            "under": under,
        }

    @torch.no_grad()
    @full_precision()
    def _decompose(self) -> None:
        """Decompose each eligible weight to U Σ Vᵀ of rank min(m, n), without dropping singular values yet."""
        weights = self._weights
        _log.debug("%d weights are decomposed", len(weights))
        self._under.synchronise()
        found = self._work.run(
            [svd_cost(weight.rows, weight.columns) for weight in weights],
            lambda index: svd(weights[index].matrix(), cutoff=0.0),
            [weight.whole.dtype for weight in weights],
        )
        for weight, (u, values, vt) in zip(weights, found, strict=True):
            old, sigma = weight.whole, nn.Parameter(torch.diag(values))
            factorise(weight, {"u": _frozen(u), "sigma": sigma, "vt": _frozen(vt)})
            # G_Σ = Uᵀ G_W V
            exchange(self._optimizer, old, sigma, Projection(left=u.T, right=vt.T))
            self._ranks[weight.name] = len(values)
        self._under.parameters_changed()

    @torch.no_grad()
    @full_precision()
    def _update(self) -> None:
        """Rotate the bases of the last weights to those of their Σ, and drop small singular values (Eq. 4.13)."""
        self._updates += 1
        # 1e-9 makes up for roundings: 30 weights · 0.1 · u has to be 3 u.
        count = math.floor(len(self._weights) * self._method.layer_step * self._updates + 1e-9)
        weights = self._weights[-max(1, min(count, len(self._weights))) :]
        _log.debug("update %d of the bases of %d weights", self._updates, len(weights))
        self._under.synchronise()
        found = self._work.run(
            [svd_cost(self._ranks[weight.name], self._ranks[weight.name]) for weight in weights],
            lambda index: self._rotations(weights[index]),
            [_precise(weight.factors["sigma"].dtype) for weight in weights],
        )
        for weight, (p, values, qt) in zip(weights, found, strict=True):
            self._rotate(weight, p, values, qt)
        # Needed even if all shapes stayed, because the parameters to average have other coordinates.
        self._under.parameters_changed()

    def _rotations(self, weight: MatrixWeight) -> Sequence[Tensor]:
        """P, S and Qᵀ of a weight's Σ."""
        # These are sent to all ranks, which rotate their bases themselves: they are smaller than the bases, and are
        # needed for each rank's own moments too. On devices with the same roundings, ranks get the same bits; between
        # kinds of devices, bases may differ in the last bits.
        u, sigma, vt = (factor.to(_precise(factor.dtype)) for factor in weight.factors.values())
        p, values, qt = svd(sigma, cutoff=self._method.sigma_cutoff)
        return _keeping_orthogonal(u, p), values, _keeping_orthogonal(vt.T, qt.T).T

    def _rotate(self, weight: MatrixWeight, p: Tensor, values: Tensor, qt: Tensor) -> None:
        u, sigma, vt = weight.factors.values()
        dtype, rank = sigma.dtype, len(values)
        # tr(U Vᵀ V' U'ᵀ) with U' = U P and V' = V Q is tr(Pᵀ Q); it is not finite after a run has diverged.
        stability = (p * qt.T).sum().item() / rank
        if math.isfinite(stability):
            self._stability[weight.name] = stability
        new_u, new_vt = (u.to(p.dtype) @ p).to(dtype), (qt @ vt.to(qt.dtype)).to(dtype)
        new_sigma = torch.diag(values).to(dtype)
        projection = Projection(left=p.T, right=qt.T)
        if rank == len(sigma):
            # The parameters stay the same objects, so that a compiled model is not compiled again.
            for parameter, value in ((u, new_u), (sigma, new_sigma), (vt, new_vt)):
                parameter.copy_(value)
            exchange(self._optimizer, sigma, sigma, projection)
            return
        parameter = nn.Parameter(new_sigma)
        factorise(weight, {"u": _frozen(new_u), "sigma": parameter, "vt": _frozen(new_vt)})
        exchange(self._optimizer, sigma, parameter, projection)
        self._ranks[weight.name] = rank

    @torch.no_grad()
    def _reshape(self, weight: MatrixWeight, rank: int | None) -> bool:
        """Give the weight this rank, or None to make it whole, with any values; returns whether its shape changed."""
        factors = weight.factors
        old = factors["sigma"] if factors else weight.whole
        if (len(old) if factors else None) == rank:
            return False
        if rank is None:
            new = make_whole(weight, old.new_zeros(weight.rows, weight.columns))
        else:
            new = nn.Parameter(old.new_zeros(rank, rank))
            u, vt = old.new_zeros(weight.rows, rank), old.new_zeros(rank, weight.columns)
            factorise(weight, {"u": _frozen(u), "sigma": new, "vt": _frozen(vt)})
        exchange(self._optimizer, old, new)
        return True


@torch.no_grad()
def _start_whole(setup: Setup) -> None:
    """Make weights whole whose factors the optimizer trains, and let it train the whole weights instead."""
    held = parameters_in(setup.optimizer)
    made = []
    for weight in matrix_weights(setup.model):
        trained = [factor for factor in weight.factors.values() if id(factor) in held]
        if trained:
            made.append(make_whole(weight))
            exchange(setup.optimizer, trained[0], made[-1])
            for other in trained[1:]:
                remove(setup.optimizer, other)
    # Products of the same factors may differ in roundings between kinds of devices.
    broadcast_tensors(setup.communicator.service, made)


def _keeping_orthogonal(basis: Tensor, rotation: Tensor) -> Tensor:
    """``rotation``, corrected so that ``basis @ rotation`` is orthonormal despite roundings in ``basis``."""
    # Roundings would otherwise add up over hundreds of updates.
    turned = basis @ rotation
    return 1.5 * rotation - 0.5 * rotation @ (turned.T @ turned)


def _frozen(value: Tensor) -> nn.Parameter:
    return nn.Parameter(value, requires_grad=False)


def _precise(dtype: torch.dtype) -> torch.dtype:
    """Type for rotations of factors of type ``dtype``."""
    # Rotations in half precision would leave bases orthogonal only to a hundredth.
    return dtype if dtype == torch.float64 else torch.float32
