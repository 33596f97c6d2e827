"""Nine optimizers of Keras as parameters of a search space, and as torch's optimizers.

    space = hpo.SearchSpace(width=…, **optimizers.parameters())
    trainers.train(…, optimizer=lambda weights: optimizers.make(weights, trial.params))

``optimizer`` chooses an optimizer; all other parameters but ``lr`` exist only for the optimizers that have them. The
same holds for ``schedules()`` and ``make_schedule``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import hpo

# torch is imported where optimizers are made, because the ranks that search read the space and need no torch.
if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    import trainers
    from hpo.individual import Scalar
    from hpo.space.space import Parameter

OPTIMIZERS = ("adadelta", "adagrad", "adam", "amsgrad", "adamax", "ftrl", "nadam", "rmsprop", "sgd")
SCHEDULES = ("exponential", "inverse-time", "polynomial")

_ADAMS = ("adam", "amsgrad", "adamax", "nadam")


def parameters() -> dict[str, Parameter]:
    """``optimizer``, its learning rate ``lr``, and parameters of some optimizers only."""

    def only(*owners: str) -> dict[str, tuple[str, ...]]:
        return {"optimizer": owners}

    return {
        "optimizer": hpo.Categorical(*OPTIMIZERS),
        "lr": hpo.Float(1e-5, 1.0, log=True),
        "beta1": hpo.Float(0.5, 0.99, when=only(*_ADAMS)),
        "beta2": hpo.Float(0.9, 0.9999, when=only(*_ADAMS)),
        "rho": hpo.Float(0.8, 0.999, when=only("adadelta", "rmsprop")),
        "momentum": hpo.Float(0.0, 0.99, when=only("rmsprop", "sgd")),
        "nesterov": hpo.Categorical(False, True, when=only("sgd")),
        "centered": hpo.Categorical(False, True, when=only("rmsprop")),
        "initial_accumulator": hpo.Float(1e-3, 1.0, log=True, when=only("adagrad", "ftrl")),
        "lr_power": hpo.Float(-1.0, 0.0, when=only("ftrl")),
        "l1": hpo.Float(1e-8, 1e-1, log=True, when=only("ftrl")),
        "l2": hpo.Float(1e-8, 1e-1, log=True, when=only("ftrl")),
        "beta": hpo.Float(0.0, 1.0, when=only("ftrl")),
        "epsilon": hpo.Float(1e-10, 1e-2, log=True, when=only("adadelta", "adagrad", "rmsprop", *_ADAMS)),
    }


def make(weights: Iterable[nn.Parameter], params: Mapping[str, Scalar]) -> Optimizer:
    """Optimizer that ``params`` choose, with its own parameters."""
    from torch import optim

    import trainers

    p: dict[str, Any] = dict(params)
    kind, lr = p["optimizer"], p["lr"]
    if kind == "sgd":
        # torch refuses Nesterov's momentum of 0; without momentum, both are plain gradient descent.
        nesterov = p["nesterov"] and p["momentum"] > 0
        return optim.SGD(weights, lr=lr, momentum=p["momentum"], nesterov=nesterov)
    if kind == "ftrl":
        own = {name: p[name] for name in ("lr_power", "initial_accumulator", "l1", "l2", "beta")}
        return trainers.Ftrl(weights, lr=lr, **own)
    epsilon = p["epsilon"]
    if kind == "adadelta":
        return optim.Adadelta(weights, lr=lr, rho=p["rho"], eps=epsilon)
    if kind == "adagrad":
        return optim.Adagrad(weights, lr=lr, initial_accumulator_value=p["initial_accumulator"], eps=epsilon)
    if kind == "rmsprop":
        return optim.RMSprop(
            weights, lr=lr, alpha=p["rho"], momentum=p["momentum"], centered=p["centered"], eps=epsilon
        )
    betas = p["beta1"], p["beta2"]
    if kind == "adamax":
        return optim.Adamax(weights, lr=lr, betas=betas, eps=epsilon)
    if kind == "nadam":
        return optim.NAdam(weights, lr=lr, betas=betas, eps=epsilon)
    return optim.Adam(weights, lr=lr, betas=betas, eps=epsilon, amsgrad=kind == "amsgrad")


def schedules() -> dict[str, Parameter]:
    """``schedule``, and the parameters of TensorFlow's ExponentialDecay, InverseTimeDecay and PolynomialDecay."""
    return {
        "schedule": hpo.Categorical(*SCHEDULES),
        # Factor of the rate over the whole run; a factor for each epoch would depend on the length of the run.
        "final_fraction": hpo.Float(1e-3, 1.0, log=True, when={"schedule": "exponential"}),
        # Ratio of the first rate to the last, minus 1.
        "decay": hpo.Float(1e-1, 1e3, log=True, when={"schedule": "inverse-time"}),
        "power": hpo.Float(0.25, 4.0, log=True, when={"schedule": "polynomial"}),
        "end_fraction": hpo.Float(1e-4, 1.0, log=True, when={"schedule": "polynomial"}),
    }


def make_schedule(params: Mapping[str, Scalar], *, epochs: int) -> trainers.Schedule:
    """Schedule that ``params`` choose, for a run of ``epochs``."""
    import trainers

    p: dict[str, Any] = dict(params)
    if p["schedule"] == "exponential":
        return trainers.Exponential(rate_factor=p["final_fraction"], every_epochs=epochs)
    if p["schedule"] == "inverse-time":
        return trainers.InverseTime(decay=p["decay"], every_epochs=epochs)
    return trainers.Polynomial(power=p["power"], min_lr=p["lr"] * p["end_fraction"])
