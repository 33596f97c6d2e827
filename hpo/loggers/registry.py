"""Registry of the sinks: package and class by name."""

from __future__ import annotations

from collections.abc import Iterable
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
_CLASSES = {
    "tensorboard": ("tensorboardX", "TensorBoardSink"),
    "mlflow": ("mlflow", "MLflowSink"),
    "wandb": ("wandb", "WandbSink"),
    "trackio": ("trackio", "TrackioSink"),
}
"""Package that a sink needs, and its class in the module of its name."""


def missing(names: Iterable[str]) -> list[str]:
    """A sentence for each of the sinks whose package is not installed; no package is imported."""
    return [
        f"the sink {name} needs the package {_CLASSES[name][0]}, which is not installed. Run `bash jobs/setup.sh "
        f"{name}`, or `pip install 'hpo-mpi[{name}]'`"
        for name in names
        # A folder "wandb" in the working directory, where W&B keeps its runs, is found as a package without an origin.
        if (found := find_spec(_CLASSES[name][0])) is None or found.origin is None
    ]


def check(name: str) -> None:
    """Raise UsageError where ``name`` is no sink's, or the package of the sink is not installed."""
    if name not in SINKS:
        raise UsageError(f"{excerpt(name)}: must be one of {', '.join(SINKS)}. {suggestion(name, SINKS)}")
    for problem in missing([name]):
        raise UsageError(f"{problem}.")


def make(name: str, campaign: LoggedCampaign, folder: Path) -> Sink:
    """Sink of the given name for a campaign, with its files in ``folder``."""
    # Imported only now, as the packages of other sinks may not be installed.
    sink: Sink = getattr(import_module(f"hpo.loggers.{name}"), _CLASSES[name][1])(campaign, folder)
    return sink
