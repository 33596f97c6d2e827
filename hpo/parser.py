"""The commands of ``hpo`` and their options, as argparse takes them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from hpo import __version__, terminal
from hpo.errors import EXIT_RESUMABLE
from hpo.individual import CRASHED, FAILED, INVALID, TIMEOUT
from hpo.spelling import suggestion, unrecognized
from hpo.text import excerpt

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

_EXIT_CODES = "exit codes: 0 done, 1 error of the environment, 2 usage, 75 stopped early and resumable"
_STARTS = ("mpirun", "srun")


_Add = Callable[..., argparse.ArgumentParser]
"""Adds a command by its name, help and example, and whether it takes a campaign's "DIR", its "FILE" or neither."""


class Parser(argparse.ArgumentParser):
    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        super()._print_message(terminal.visible(message), file)

    def _check_value(self, action: argparse.Action, value: object) -> None:
        choices = list(action.choices or ())
        if choices and value not in choices:
            raise argparse.ArgumentError(action, f"invalid choice: {value!r}. {suggestion(value, choices)}")

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        self.error(unrecognized(unknown, self))


def make_parser() -> Parser:
    """The parser of the whole command line; ``command`` of the parsed options is the command's name."""
    parser = Parser(
        prog="hpo",
        description="Asynchronous evolutionary search for hyperparameters and architectures, coupled to training.",
        epilog=_EXIT_CODES,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.add_argument(
        "--log",
        choices=("debug",),
        help="write what ranks, evaluators and trainings do to DIR/logs/ranks/RANK.log, as HPO_LOG=debug does",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    def add(name: str, help: str, example: str, takes: str = "DIR") -> argparse.ArgumentParser:
        command = commands.add_parser(
            name,
            help=help,
            description=help,
            epilog=f"example:\n  {example}\n\n{_EXIT_CODES}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        command.set_defaults(command=name, parser=command)
        if takes == "FILE":
            command.add_argument("file", type=Path, metavar="FILE", help="campaign file (TOML)")
        elif takes == "DIR":
            command.add_argument("directory", type=Path, metavar="DIR", help="the campaign's directory")
        return command

    _add_running(add)
    _add_results(add)
    _add_pages(add)
    _add_check(add)
    _add_steering(add)
    return parser


def _add_running(add: _Add) -> None:
    run = add(
        "run",
        "Run the campaign of a file, or go on with it. Outside mpirun it starts mpirun itself; inside, it is a rank.",
        "hpo run jobs/digits.toml --ranks 4      mpirun -n 64 hpo run jobs/digits.toml",
        "FILE",
    )
    run.add_argument(
        "--ranks",
        type=_count,
        metavar="N",
        help="MPI ranks to start, a multiple of ranks_per_worker (default: the fewest that fit)",
    )
    run.add_argument(
        "--hostfile",
        type=Path,
        metavar="HOSTS",
        help="hosts for mpirun to start ranks on, NAME slots=N a line; those that stop answering are left out",
    )
    others = run.add_mutually_exclusive_group()
    others.add_argument(
        "--join",
        action="store_true",
        default=None,
        help="join a launch at work on this host, too (default: those on other hosts, and in other jobs)",
    )
    others.add_argument(
        "--alone", dest="join", action="store_false", default=None, help="do not start beside another launch"
    )
    add(
        "try",
        "Evaluate the default point once, in the foreground, with everything it prints.",
        "hpo try jobs/digits.toml",
        "FILE",
    )
    _add_slurm(
        add(
            "slurm",
            "Submit the campaign of a file to Slurm, as a job that goes on by itself until the budget is used up. "
            "Options of sbatch that are not listed may be given too, as --name=value.",
            "hpo slurm jobs/digits_cluster.toml --nodes 16 --gpus-per-node 4 --time 8:00:00 --dry-run",
            "FILE",
        )
    )


def _add_results(add: _Add) -> None:
    status = add("status", "How a campaign stands, running or not.", "hpo status runs/digits --json")
    shown = status.add_mutually_exclusive_group()
    shown.add_argument("--watch", action="store_true", help="show it until the campaign ends, or Ctrl-C")
    best = add("best", "The best configurations found so far.", "hpo best runs/digits --top 5")
    best.add_argument(
        "--top",
        type=_count,
        metavar="K",
        help="how many (default 1; with several objectives the whole front)",
    )
    show = add(
        "show",
        "All of one individual: configuration, values, error, history, learning curve, where it lies.",
        "hpo show runs/digits 0-1-17      hpo show runs/digits known-3",
    )
    show.add_argument("id", metavar="ID", help="of the individual, such as 0-1-17, or of a known point")
    launches = add("launches", "The launches of a campaign, a line each.", "hpo launches runs/digits")
    for command in (shown, best, show, launches):
        command.add_argument("--json", action="store_true", help="print JSON")
    export = add(
        "export",
        "All individuals as a table or an Optuna study; the suffix chooses the format.",
        "hpo export runs/digits digits.csv      hpo export runs/digits digits.journal",
    )
    export.add_argument(
        "path",
        metavar="PATH",
        help="file to write: .csv, .parquet or .json; of an Optuna study .journal or sqlite:///FILE, which is added to",
    )
    replay = add(
        "replay",
        "Write a campaign file of one evaluation that trains the schedule of an individual from its beginning.",
        "hpo replay runs/digits 0-1-17 jobs/replay.toml",
    )
    replay.add_argument("id", metavar="ID", help="of the individual, as `hpo best` shows it")
    replay.add_argument("path", type=Path, metavar="PATH", help="file to write, beside the campaign's own")
    log = add(
        "log",
        "Write a campaign to a logger, from its files alone: afterwards, or while it runs. What is there stays.",
        "hpo log runs/digits --to tensorboard      hpo log runs/digits --to mlflow --follow",
    )
    log.add_argument("--to", metavar="SINK", required=True, help="tensorboard, mlflow, wandb or trackio")
    log.add_argument("--follow", action="store_true", help="go on until the campaign is complete")
    log.add_argument(
        "--directory",
        type=Path,
        dest="base",
        metavar="D",
        help="write to D/NAME/SINK, where NAME is the campaign's (default: DIR/logs/SINK)",
    )


def _add_check(add: _Add) -> None:
    check = add(
        "check",
        "Whether a campaign's directory is whole; with --repair, keep every whole line.",
        "hpo check runs/digits      hpo check runs/digits --repair",
    )
    check.add_argument("--json", action="store_true", help="print JSON")
    check.add_argument(
        "--repair",
        action="store_true",
        help="rewrite damaged journals with what is whole in them; as they were, they stay in DIR/damaged/",
    )


def _add_pages(add: _Add) -> None:
    report = add(
        "report",
        "One HTML file that shows what campaigns have found, running or not; it needs no network.",
        "hpo report runs/digits      hpo report runs/digits runs/other both.html",
        "",
    )
    report.add_argument(
        "paths",
        type=Path,
        metavar="DIR",
        nargs="+",
        help="directories of campaigns; a path that ends in .html is the output",
    )
    report.add_argument(
        "--output", type=Path, metavar="PATH", help="file to write (default report.html in the first DIR)"
    )
    report.add_argument(
        "--figures",
        type=Path,
        metavar="FOLDER",
        help="write each figure as SVG and PDF, too; needs Chrome and the extra plots",
    )
    watch = add(
        "watch",
        "The report as a live page in a browser, of a campaign that runs or has ended.",
        "hpo watch runs/digits      hpo watch runs/digits --port 0",
    )
    watch.add_argument(
        "--port",
        type=_whole,
        metavar="N",
        help="port of 127.0.0.1, 0 for any that is free; its address has a token (default: a Unix socket for ssh -L)",
    )


def _add_steering(add: _Add) -> None:
    add(
        "stop",
        "Stop a campaign as a signal would. Jobs that Slurm starts again end at once, until `hpo run` is given.",
        "hpo stop runs/digits",
    )
    add("pause", "Start nothing new, over launches; what runs goes on.", "hpo pause runs/digits")
    add("unpause", "Go on after `hpo pause`.", "hpo unpause runs/digits")
    drain = add(
        "drain",
        "Give a worker nothing more in this launch; what it runs goes on.",
        "hpo drain runs/digits 0-3      worker 3 of island 0, which begins the individuals 0-3-0, 0-3-1, …",
    )
    drain.add_argument("worker", metavar="WORKER", help="island and worker, such as 0-3")
    close = add(
        "close",
        "Close a launch that is at work no more, or is not to be any more: others evaluate what it leaves.",
        "hpo close runs/digits 7",
    )
    close.add_argument("launch", type=_count, metavar="LAUNCH", help="number, as `hpo launches` lists it")
    retry = add(
        "retry",
        "Evaluate individuals that failed again, under their ids.",
        "hpo retry runs/digits --status crashed",
    )
    retry.add_argument(
        "--status",
        choices=(FAILED, CRASHED, TIMEOUT, INVALID, "all"),
        default=FAILED,
        help=f"how they ended (default {FAILED})",
    )
    enqueue = add(
        "enqueue",
        "Evaluate configurations before anything that the search proposes. They count for the budget.",
        "hpo enqueue runs/digits '{\"lr\": 0.01}'      hpo enqueue runs/digits points.csv",
    )
    enqueue.add_argument(
        "points",
        metavar="POINTS",
        help="a configuration as JSON, or a table, a campaign's directory or an Optuna storage",
    )
    limits = add(
        "set",
        "Another budget, deadline or end. Against the campaign file, what is changed later holds.",
        "hpo set runs/digits evaluations=200 deadline=8h",
    )
    limits.add_argument(
        "limits",
        metavar="KEY=VALUE",
        nargs="+",
        help="evaluations=N, deadline=DURATION, rank_hours=H, stop_value=V, stop_gain=G or stop_over=N, "
        "with values as in the file",
    )


def _add_slurm(command: argparse.ArgumentParser) -> None:
    shown = {
        "nodes": ("N", "nodes, or the fewest and the most: 2-4"),
        "ntasks-per-node": ("N", "ranks a node (default: its GPUs, else the fewest that fit)"),
        "gpus-per-node": ("N", "GPUs of each node, one a rank in turn"),
        "cpus-per-task": ("N", "CPUs of each rank, for training and data loaders"),
        "time": ("T", "time limit of each job, such as 8:00:00"),
        "partition": ("NAME", "partition"),
        "account": ("NAME", "account"),
    }
    for name, (metavar, help) in shown.items():
        command.add_argument(f"--{name}", metavar=metavar, help=help, dest=f"sbatch {name}")
    command.allow_abbrev = False  # --gpus is an option of sbatch, and not short for --gpus-per-node
    command.add_argument(
        "--start",
        choices=_STARTS,
        default=_STARTS[0],
        help="who starts the ranks: mpirun (the default), by hpo run, or srun, for an MPI that it can start",
    )
    command.add_argument("--mpi", default="pmix", metavar="KIND", help="srun's --mpi (default pmix)")
    command.add_argument(
        "--setup",
        action="append",
        default=[],
        metavar="LINE",
        help="a line of shell to run first, such as 'module load openmpi'; may be given again",
    )
    command.add_argument(
        "--jobs",
        type=_count,
        default=1,
        metavar="N",
        help="submit N equal jobs that work on the campaign together, each as it starts (or --array=0-39%%10)",
    )
    command.add_argument("--dry-run", action="store_true", help="print the script; submit nothing")
    # 75: as scripts of earlier versions mean it.
    command.add_argument("--requeue", type=_whole, nargs="?", const=EXIT_RESUMABLE, help=argparse.SUPPRESS)


def _whole(text: str, least: int = 0) -> int:
    # A number may be too long for Python to read.
    with suppress(ValueError):
        if (number := int(text)) >= least:
            return number
    raise argparse.ArgumentTypeError(f"{excerpt(text)}: must be a whole number from {least}")


def _count(text: str) -> int:
    return _whole(text, least=1)
