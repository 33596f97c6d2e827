"""The packages that figures, report and live page need: the extra ``page``, which jobs/setup.sh installs, and the extra
``plots``."""

from __future__ import annotations

from importlib.util import find_spec

from hpo.errors import UsageError

FIGURES = ("plotly",)
FIGURE_FILES = ("plotly", "kaleido")
LIVE_PAGE = (*FIGURES, "starlette", "uvicorn")


def check(what: str, packages: tuple[str, ...], extra: str = "page") -> None:
    """UsageError where one of ``packages``, which ``what`` needs and ``extra`` installs, is not there; nothing is
    imported."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"{what} needs {' and '.join(missing)}, not installed here. Run `bash jobs/setup.sh {extra}`, or `pip "
            f"install 'hpo-mpi[{extra}]'`."
        )
