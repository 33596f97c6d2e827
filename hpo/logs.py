"""Log lines: ``info`` and above reach the user as "hpo: …" on standard error; with ``HPO_LOG=debug`` each rank has a
file of all lines. Modules take a logger of the standard library, such as ``logging.getLogger("hpo.islands")``."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from hpo.errors import UsageError
from hpo.terminal import write
from hpo.text import excerpt

LEVEL = "HPO_LOG"
"""Environment variable: "debug", or nothing."""
# Environment variable by which evaluators get the file of their rank.
_FILE = "HPO_LOG_FILE"
_ROOTS = ("hpo", "trainers")


# Not a StreamHandler: an evaluation may redirect standard error.
class _ToUser(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        write(f"hpo: {self.format(record)}", sys.stderr, flush=True)


_shown = logging.getLogger("hpo")
if not _shown.handlers:
    _shown.addHandler(_ToUser(logging.INFO))
    _shown.setLevel(logging.INFO)
    _shown.propagate = False  # a task's logging.basicConfig would show each sentence twice


_manager = logging.Manager(logging.root)
_opened: list[logging.Handler] = []


def keep_loggers() -> None:
    """Enable the loggers again after a task was imported, or the run would fall silent."""
    # logging.config.dictConfig disables all loggers that it does not name. logging.disable is for all loggers of a
    # manager, so these get their own.
    _clear_caches()
    for name in [*logging.root.manager.loggerDict]:
        if name.partition(".")[0] in _ROOTS:
            logger = logging.getLogger(name)
            logger.disabled = False
            logger.manager = _manager


def _clear_caches() -> None:
    """Have all loggers look up their levels again, as setLevel has those of its logger's manager do."""
    logging.root.setLevel(logging.root.level)


def debugging() -> bool:
    """Whether debug files are asked for. UsageError where the variable has another value."""
    value = os.environ.get(LEVEL, "")
    if value not in ("", "debug"):
        raise UsageError(f"{LEVEL}={excerpt(value)}: must be debug. Correct it, or unset it.")
    return value == "debug"


def debug_folder(directory: Path) -> Path:
    return directory / "logs" / "ranks"


def open_debug_file(directory: Path, rank: int) -> None:
    """Write debug lines of this rank, and of evaluators that it starts, to ``DIR/logs/ranks/RANK.log`` if asked for."""
    if debugging():
        os.environ[_FILE] = str(debug_folder(directory).absolute() / f"{rank}.log")
        follow_rank()


def follow_rank() -> None:
    """Write debug lines of this process to the file of its rank, if that has a file."""
    name = os.environ.get(_FILE)
    if not name:
        return
    try:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        handler = logging.FileHandler(name, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        _shown.warning("the debug file %s cannot be written (%s): there is none.", name, error.strerror)
        return
    # A process may run several campaigns in turn, each with a file of its own.
    while _opened:
        former = _opened.pop()
        for root in _ROOTS:
            logging.getLogger(root).removeHandler(former)
        former.close()
    _opened.append(handler)
    handler.setFormatter(
        logging.Formatter("%(asctime)s.%(msecs)03d %(process)d %(name)s: %(message)s", "%F %T")
    )
    for root in _ROOTS:
        logger = logging.getLogger(root)
        logger.setLevel(logging.DEBUG)
        logger.addHandler(handler)
    _clear_caches()
