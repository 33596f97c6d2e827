"""Views of a campaign: on a terminal, as a report, and as a live page."""

from __future__ import annotations

from importlib.util import find_spec

from hpo.errors import UsageError

FIGURES = ("plotly",)
FIGURE_FILES = ("plotly", "kaleido")
LIVE_PAGE = (*FIGURES, "starlette", "uvicorn")


def require(what: str, packages: tuple[str, ...], extra: str = "page") -> None:
    """Raise UsageError if a package of ``extra`` that ``what`` needs is missing; nothing is imported."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"{what} needs {' and '.join(missing)}, not installed here. Run `bash jobs/setup.sh {extra}`, or `pip "
            f"install 'hpo-mpi[{extra}]'`."
        )
