"""The command line. Each command imports the modules that it needs, so that it starts quickly."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

from hpo import __version__, logs, terminal
from hpo.cluster.signals import Signals
from hpo.errors import EXIT_RESUMABLE, HpoError, UsageError
from hpo.parser import make_parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, and return its exit code. A user's mistake is one sentence on standard error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # the terminal may lack parts of Unicode
            stream.reconfigure(errors="backslashreplace")
    parser = make_parser()
    options, unknown = parser.parse_known_args(arguments)
    if "command" not in options:
        if unknown:
            parser.refuse(unknown)
        parser.print_help(sys.stderr)
        return UsageError.exit_code
    if unknown and options.command != "slurm":
        options.parser.refuse(unknown)
    options.unknown = unknown
    if options.log is not None:
        os.environ[logs.LEVEL] = options.log
    try:
        logs.debugging()  # another value of the variable is refused before anything starts
        code = COMMANDS[options.command](options)
    except HpoError as error:
        terminal.write(f"hpo: {error}", sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        code = 0  # the reader (head, less) has gone
    except (KeyboardInterrupt, RuntimeError) as error:
        # Python before 3.12 turns an interrupt into a RuntimeError while a class is made, as in imports.
        if not isinstance(error, KeyboardInterrupt) and not isinstance(error.__cause__, KeyboardInterrupt):
            raise
        from hpo.config import process

        if process.launcher().speaks:
            sentence = "interrupted. Nothing that was recorded is lost: give the same command again"
            print(f"hpo: {sentence}.", file=sys.stderr)
        # Not by return: after an interrupt inside an exec, as of dataclasses in imports, CPython ends by SIGINT.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(EXIT_RESUMABLE)
    _finish_output()
    return code


def _finish_output() -> None:
    """Flush: a reader that has gone must not lead to Python's own exit code 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (BrokenPipeError, ValueError):
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _run(options: argparse.Namespace) -> int:
    with Signals(patience=1) as signals:
        with signals.held():
            from hpo.campaign import launch

        return launch.run(options.file, options.ranks, options.hostfile, signals, join=options.join)


def _try(options: argparse.Namespace) -> int:
    with Signals(patience=1) as signals:
        with signals.held():
            from hpo.campaign import try_once

        return try_once.attempt(options.file)


def _slurm(options: argparse.Namespace) -> int:
    from hpo.cluster import sbatch

    given = {
        name.removeprefix("sbatch "): value
        for name, value in vars(options).items()
        if name.startswith("sbatch ") and value is not None
    }
    return sbatch.command(
        options.file,
        given,
        options.unknown,
        start=options.start,
        mpi=options.mpi,
        setup=options.setup,
        dry_run=options.dry_run,
        jobs=options.jobs,
        returned=options.requeue,
    )


def _steer(options: argparse.Namespace) -> int:
    from hpo.campaign import commands

    given = [
        getattr(options, name)
        for name in ("worker", "status", "points", "limits", "launch")
        if name in options
    ]
    terminal.write(commands.COMMANDS[options.command](options.directory, *given))
    return 0


def _launches(options: argparse.Namespace) -> int:
    if options.json:
        from hpo.results.listing import launches_as_data

        terminal.write_json(json.dumps(launches_as_data(options.directory), indent=2))
    else:
        from hpo.campaign import commands

        terminal.write(commands.launches(options.directory))
    return 0


def _status(options: argparse.Namespace) -> int:
    from hpo.results import overview
    from hpo.views import text

    if options.watch:
        from hpo.views.terminal.live import watch

        with Signals(patience=1):
            return watch(options.directory)
    found = overview.of(options.directory)
    if options.json:
        from hpo.results.listing import launches_as_data

        data = {**found.table(), "launches": launches_as_data(options.directory)}
        terminal.write_json(json.dumps(data, indent=2))
    else:
        terminal.write(text.status(options.directory, found))
    return 0


def _best(options: argparse.Namespace) -> int:
    from hpo.views.terminal import best_report

    if options.json:
        terminal.write_json(best_report.best_json(options.directory, options.top))
    else:
        terminal.write(best_report.best(options.directory, options.top))
    return 0


def _log(options: argparse.Namespace) -> int:
    from hpo.loggers import command

    return command.log(options.directory, options.to, base=options.base, follow=options.follow)


def _show(options: argparse.Namespace) -> int:
    from hpo.views.terminal import show

    printed = show.printed(options.directory, options.id, as_table=options.json)
    (terminal.write_json if options.json else terminal.write)(printed)
    return 0


def _check(options: argparse.Namespace) -> int:
    from hpo.ledger.inspection import check, repair

    report = (repair if options.repair else check)(options.directory)
    if options.json:
        terminal.write_json(json.dumps(report.to_json(), indent=2))
    else:
        terminal.write(report)
    return report.exit_code


def _report(options: argparse.Namespace) -> int:
    from hpo import views
    from hpo.views.report.command import report

    views.require("hpo report", views.FIGURES)
    if options.figures is not None:
        views.require("hpo report --figures", views.FIGURE_FILES, extra="plots")
    terminal.write(report(options.paths, options.output, options.figures, version=__version__))
    return 0


def _watch(options: argparse.Namespace) -> int:
    from hpo import views

    views.require("hpo watch", views.LIVE_PAGE)
    from hpo.views.watch.command import watch

    return watch(options.directory, options.port, version=__version__)


def _export(options: argparse.Namespace) -> int:
    from hpo.loggers import optuna_study

    if optuna_study.is_storage(options.path):
        terminal.write(f"{options.path}: {optuna_study.export(options.directory, options.path)}")
        return 0
    from hpo.results import result as results

    count = results.export(options.directory, options.path)
    terminal.write(f"{options.path}: {count} individuals")
    return 0


def _replay(options: argparse.Namespace) -> int:
    from hpo.results import replay

    terminal.write(replay.write(options.directory, options.id, options.path))
    return 0


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "run": _run,
    "try": _try,
    "slurm": _slurm,
    "status": _status,
    "best": _best,
    "show": _show,
    "export": _export,
    "replay": _replay,
    "log": _log,
    "report": _report,
    "watch": _watch,
    "check": _check,
    "launches": _launches,
    **dict.fromkeys(("stop", "pause", "unpause", "drain", "retry", "enqueue", "set", "close"), _steer),
}
"""Function that runs a command and returns the exit code, by the command's name."""


if __name__ == "__main__":
    sys.exit(main())
