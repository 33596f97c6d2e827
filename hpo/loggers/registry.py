"""The sinks by name: which package each needs, and how it is made."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

from hpo.config.settings import Sink as SinkName
from hpo.errors import UsageError
from hpo.loggers.sink import LoggedCampaign, Sink
from hpo.spelling import suggestion
from hpo.text import excerpt

SINKS: tuple[str, ...] = get_args(SinkName)


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """``package``: that must be there to be imported; ``module``, ``name``: of the class."""

    package: str
    module: str
    name: str


_KINDS = {
    "tensorboard": _Kind(package="tensorboardX", module="hpo.loggers.tensorboard", name="TensorBoardSink"),
    "mlflow": _Kind(package="mlflow", module="hpo.loggers.mlflow", name="MLflowSink"),
    "wandb": _Kind(package="wandb", module="hpo.loggers.wandb", name="WandbSink"),
    "trackio": _Kind(package="trackio", module="hpo.loggers.trackio", name="TrackioSink"),
}


def missing(names: Iterable[str]) -> list[str]:
    """A sentence for each of these sinks whose package is not installed; nothing is imported."""
    return [
        f"the sink {name} needs the package {_KINDS[name].package}, which is not installed. Run `bash jobs/setup.sh "
        f"{name}`, or `pip install 'hpo-mpi[{name}]'`"
        for name in names
        if not _installed(_KINDS[name].package)
    ]


def _installed(package: str) -> bool:
    """A folder of that name, as W&B leaves one where it is used, is no package."""
    found = find_spec(package)
    return found is not None and found.origin is not None


def check(names: Iterable[str]) -> None:
    """UsageError where one has no such name, or its package is not installed."""
    names = list(names)
    for name in names:
        if name not in SINKS:
            raise UsageError(f"{excerpt(name)}: must be one of {', '.join(SINKS)}. {suggestion(name, SINKS)}")
    if problems := missing(names):
        raise UsageError("\n".join(f"{one}." for one in problems))


def make(name: str, campaign: LoggedCampaign, folder: Path) -> Sink:
    """The sink of this name, which writes what it keeps in files to ``folder``."""
    kind = _KINDS[name]
    sink: Sink = getattr(import_module(kind.module), kind.name)(campaign, folder)
    return sink
