"""Registry of the sinks: package and class by name."""

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
class _SinkClass:
    """Place of a sink's class; it is imported when the sink is used, as its package may not be installed."""

    package: str
    """Package that has to be installed."""
    module: str
    name: str


_CLASSES = {
    "tensorboard": _SinkClass(
        package="tensorboardX", module="hpo.loggers.tensorboard", name="TensorBoardSink"
    ),
    "mlflow": _SinkClass(package="mlflow", module="hpo.loggers.mlflow", name="MLflowSink"),
    "wandb": _SinkClass(package="wandb", module="hpo.loggers.wandb", name="WandbSink"),
    "trackio": _SinkClass(package="trackio", module="hpo.loggers.trackio", name="TrackioSink"),
}


def missing(names: Iterable[str]) -> list[str]:
    """A sentence for each of the sinks whose package is not installed; no package is imported."""
    return [
        f"the sink {name} needs the package {_CLASSES[name].package}, which is not installed. Run `bash jobs/setup.sh "
        f"{name}`, or `pip install 'hpo-mpi[{name}]'`"
        for name in names
        if not _installed(_CLASSES[name].package)
    ]


def _installed(package: str) -> bool:
    found = find_spec(package)
    # A folder "wandb" in the working directory, where W&B keeps its runs, is found as a package without an origin.
    return found is not None and found.origin is not None


def check(names: Iterable[str]) -> None:
    """Raise UsageError where a name is no sink's, or the package of a sink is not installed."""
    names = list(names)
    for name in names:
        if name not in SINKS:
            raise UsageError(f"{excerpt(name)}: must be one of {', '.join(SINKS)}. {suggestion(name, SINKS)}")
    if problems := missing(names):
        raise UsageError("\n".join(f"{problem}." for problem in problems))


def make(name: str, campaign: LoggedCampaign, folder: Path) -> Sink:
    """Sink of the given name for a campaign, with its files in ``folder``."""
    place = _CLASSES[name]
    sink: Sink = getattr(import_module(place.module), place.name)(campaign, folder)
    return sink
