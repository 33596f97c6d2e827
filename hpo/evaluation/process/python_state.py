"""Global state of Python and of the process that an evaluation may change."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # whose getsignal makes no enum members, 60 µs an evaluation
import builtins
import gc
import locale
import logging
import os
import resource
import signal
import socket
import sys
import time
import warnings
from typing import Any

from hpo.evaluation.process.state_kind import Kind, attribute, entries, items, of_module

_SIGNALS = tuple(int(number) for number in signal.valid_signals() if number < signal.SIGRTMIN)
_TIMERS = signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF
_LIMITS = tuple(sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}))


def _put_environment(value: dict[bytes, bytes]) -> None:
    zone = os.environ.get("TZ")
    for name in os.environb.keys() - value.keys():
        del os.environb[name]
    for name, text in value.items():
        if os.environb.get(name) != text:
            os.environb[name] = text
    if os.environ.get("TZ") != zone:
        time.tzset()


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _put_signals(value: dict[int, Any]) -> None:
    for number, handler in value.items():
        if handler is not None and signal.getsignal(number) != handler:  # None: set by native code
            signal.signal(number, handler)


def _put_limits(value: dict[int, tuple[int, int]]) -> None:
    for number, limits in value.items():
        if resource.getrlimit(number) != limits:
            resource.setrlimit(number, limits)


def _put_filters(value: list[Any]) -> None:
    warnings.filters[:] = value  # type: ignore[index]
    # Modules remember which warnings they have given, and would leave these out under the restored filters, too.
    getattr(warnings, "_filters_mutated", lambda: None)()


_NEW_LOGGER = logging.NOTSET, True, False, (), ()


def _loggers() -> dict[str, tuple[Any, ...]]:
    """Loggers that anything was set for, by name. Others come into being wherever a module asks for its own."""
    named = [*logging.root.manager.loggerDict.items(), ("", logging.root)]
    found = {name: _logger_state(logger) for name, logger in named if isinstance(logger, logging.Logger)}
    return {name: state for name, state in found.items() if state != _NEW_LOGGER}


def _logger_state(logger: logging.Logger) -> tuple[Any, ...]:
    return logger.level, logger.propagate, logger.disabled, tuple(logger.handlers), tuple(logger.filters)


def _put_loggers(value: dict[str, tuple[Any, ...]]) -> None:
    for name in {*value, *_loggers()}:
        logger = logging.getLogger(name)
        state = value.get(name, _NEW_LOGGER)
        if _logger_state(logger) != state:
            logger.setLevel(state[0])
            logger.propagate, logger.disabled = state[1:3]
            logger.handlers[:], logger.filters[:] = state[3:]


def _event_loop(module: Any) -> tuple[Any, ...]:
    """Policy of event loops, its state for this thread, and whether the loop there has been closed."""
    policy = module._event_loop_policy
    local = dict(vars(policy._local)) if hasattr(policy, "_local") else {}
    loop = local.get("_loop")
    return policy, local, loop is not None and loop.is_closed()


def _put_event_loop(module: Any, value: tuple[Any, ...]) -> None:
    module._event_loop_policy, local, _ = value
    if hasattr(value[0], "_local"):
        vars(value[0]._local).clear()
        vars(value[0]._local).update(local)


def _flushes_denormals() -> bool:
    """Whether the processor takes numbers too small for a normal representation for 0: a mode of this thread."""
    return sys.float_info.min / 4 == 0.0


KINDS: dict[str, Kind] = {
    # A timer's signal must not come when its handler is no longer there.
    "timers": Kind(
        lambda: tuple(signal.getitimer(timer) == (0.0, 0.0) for timer in _TIMERS),
        lambda value: [
            signal.setitimer(timer, 0.0) for timer, off in zip(_TIMERS, value, strict=True) if off
        ],
    ),
    "signal handlers": Kind(lambda: {number: _signal.getsignal(number) for number in _SIGNALS}, _put_signals),
    "blocked signals": Kind(
        lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        lambda value: signal.pthread_sigmask(signal.SIG_SETMASK, value),
    ),
    "environment variables": Kind(lambda: dict(vars(os.environ)["_data"]), _put_environment),
    "umask": Kind(_umask, os.umask),
    "resource limits": Kind(lambda: {limit: resource.getrlimit(limit) for limit in _LIMITS}, _put_limits),
    "priority": Kind(
        lambda: os.getpriority(os.PRIO_PROCESS, 0),
        lambda value: os.setpriority(os.PRIO_PROCESS, 0, value),
    ),
    "processors": Kind(lambda: os.sched_getaffinity(0), lambda value: os.sched_setaffinity(0, value)),
    "locale": Kind(
        lambda: locale.setlocale(locale.LC_ALL), lambda value: locale.setlocale(locale.LC_ALL, value)
    ),
    "builtins": entries(lambda: vars(builtins)),
    "sys.path": items(lambda: sys.path),
    "sys.meta_path": items(lambda: sys.meta_path),
    "sys.argv": items(lambda: sys.argv),
    "sys.stdin": attribute(sys, "stdin"),
    "sys.excepthook": attribute(sys, "excepthook"),
    "trace function": Kind(sys.gettrace, sys.settrace),
    "profile function": Kind(sys.getprofile, sys.setprofile),
    "recursion limit": Kind(sys.getrecursionlimit, sys.setrecursionlimit),
    "garbage collection": Kind(gc.isenabled, lambda value: gc.enable() if value else gc.disable()),
    "captured warnings": Kind(
        lambda: logging._warnings_showwarning is not None,  # type: ignore[attr-defined]
        logging.captureWarnings,
    ),
    "warnings.showwarning": attribute(warnings, "showwarning"),
    "warning filters": Kind(lambda: list(warnings.filters), _put_filters),
    "loggers": Kind(_loggers, _put_loggers),
    # The function, as loggers remember which levels are disabled.
    "logging.disable": Kind(lambda: logging.root.manager.disable, logging.disable),
    "default time-out of sockets": Kind(socket.getdefaulttimeout, socket.setdefaulttimeout),
    "flushing of denormal numbers": Kind(
        _flushes_denormals, lambda value: sys.modules["torch"].set_flush_denormal(value)
    ),
    "tempfile.tempdir": of_module(
        "tempfile", lambda module: module.tempdir, lambda module, value: setattr(module, "tempdir", value)
    ),
    "start method of multiprocessing": of_module(
        "multiprocessing",
        lambda module: module.get_start_method(allow_none=True),
        lambda module, value: module.set_start_method(value, force=True),
    ),
    # A task that closed its loop would leave none for the next one's asyncio.get_event_loop().
    "event loop of asyncio": of_module("asyncio.events", _event_loop, _put_event_loop),
    "decimal context": of_module(
        "decimal",
        lambda module: module.getcontext().__reduce__()[1],
        lambda module, value: module.setcontext(module.Context(*value)),
    ),
    "NumPy's handling of floating-point errors": of_module(
        "numpy",
        lambda module: (dict(module.geterr()), module.geterrcall()),
        lambda module, value: (module.seterr(**value[0]), module.seterrcall(value[1])),
    ),
}
"""Kinds by name, in the order in which they are put back. tempfile and others are imported by some tasks only."""
