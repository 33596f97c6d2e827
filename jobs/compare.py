"""Comparison of a campaign's best with the default configuration and the full-rank baseline.

    python jobs/compare.py jobs/digits.toml
    python jobs/compare.py jobs/vit_ab.toml --test-seeds 5

Scores on the validation part are the campaign's. Scores on the test part, compression and bytes sent are measured here,
by the module's own command line on as many ranks and nodes as a worker of the campaign has. If the campaign is about
another method than DDP, a baseline is trained by DDP at full rank with the default's learning rate and schedule, or the
module's BASELINE_OPTIONS; for AB training a second baseline has no groups. All is kept in DIR/test/ and not measured
twice, and a call that was stopped can be repeated. Delete results of earlier versions there to have what they lack.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import math
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compare_table import FULL_RANK, SHARES, Baseline, dominates, reached, table

import hpo
from hpo.cluster import slurm_job
from hpo.individual import COMPLETED, Individual
from hpo.task.importing import split_reference

__all__ = ["SHARES", "best_beside", "dominates", "main", "measure", "reached", "tested", "trained_anew"]

# Three trainings of a large network take hours; ranks that hang end by themselves long before.
_LIMIT_S = 86_400.0
# torchrun gives its ranks 30 s to end.
_ENDING_S = 45.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is not measured yet and print all; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="campaign file (TOML), which has been run")
    parser.add_argument(
        "--limit",
        type=float,
        default=_LIMIT_S,
        metavar="SECONDS",
        help=f"time limit for the trainings of one configuration (default: {_LIMIT_S:g})",
    )
    parser.add_argument(
        "--test-seeds",
        type=int,
        metavar="N",
        help="trainings of each configuration (default: three, or those of the task)",
    )
    parser.add_argument(
        "--nodes",
        type=int,
        metavar="N",
        help="nodes of a training, by srun (default: those that a worker's ranks need in this allocation of Slurm; "
        "outside one 1, unless the campaign's workers sent bytes between nodes)",
    )
    parser.add_argument(
        "--baselines",
        nargs="*",
        metavar="METHOD",
        help="methods to compare with, as in the task's option method (default: ddp, and ab-no-groups beside ab; none "
        "if the task has no such option, or is about ddp)",
    )
    options = parser.parse_args(arguments)
    if not 0 < options.limit < math.inf:
        parser.error(f"--limit {options.limit:g}: must be a number of seconds above 0.")
    for name in ("test_seeds", "nodes"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} {getattr(options, name)}: must be at least 1.")
    try:
        print(_compared(options))
    except hpo.HpoError as error:
        print(f"compare: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _compared(options: argparse.Namespace) -> str:
    campaign = hpo.Campaign.from_file(options.file)
    settings, task = campaign.settings, campaign.task
    result = hpo.Result(settings.directory)
    columns: dict[str, Individual | Baseline] = {"best": result.best}
    for individual in result.individuals:
        if individual.params == task.default and individual.status == COMPLETED:
            columns = {"best": best_beside(result, individual, task), "default": individual}
    if "default" not in columns:
        print("compare: the default configuration has no completed evaluation", file=sys.stderr)
    sizes, nodes = settings.worker_sizes, options.nodes
    ranks = sizes[result.best.island % len(sizes)]
    place = Place(
        ranks=ranks,
        nodes=nodes or nodes_for(ranks),
        # One node is a guess, without --nodes and without an allocation of Slurm.
        too_few=not nodes and needs_nodes(task, settings.task_options, ranks, columns["best"]),
    )
    module = importable(str(settings.task), options.file)
    columns.update(baselines_of(task, module, options.baselines))
    tests = {}
    for name, column in columns.items():
        flags = flags_of(column.options if isinstance(column, Baseline) else settings.task_options)
        tests[name] = trained_anew(
            module, settings.directory, column, place, flags, options.test_seeds, limit_s=options.limit
        )
    shown = table(result, columns, tests, measure(module, task), tested(task)[0])
    return "\n".join(filter(None, [shown, getattr(importlib.import_module(module), "PUBLISHED", "")]))


def importable(task: str, file: Path) -> str:
    """The module that ``task`` of the campaign file ``file`` names. If it names the module's own file, processes that
    this process starts find the module there from now on.
    """
    place, _ = split_reference(task)
    if not place.endswith(".py"):
        return place
    path = (file.parent / place).resolve()
    spec = importlib.util.find_spec(path.stem)
    if spec is None or spec.origin is None or Path(spec.origin).resolve() != path:  # such as platform.py
        raise hpo.UsageError(
            f"task = {task!r}: Python has another module of the name {path.stem!r}, which python -m would start. Give "
            "the file another name."
        )
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(path.parent), os.environ.get("PYTHONPATH")]))
    return path.stem


def baselines_of(task: Any, module: str, asked: Sequence[str] | None = None) -> dict[str, Baseline]:
    """Baselines by name: the task's default with each method that is ``asked`` for; None: those of the sources' tables.
    They have no second objective, which may be constant with another method.
    """
    options = getattr(task, "options", None)
    own = getattr(options, "method", None)
    if options is None or own is None:
        return {}
    if asked is None:
        asked = {"ddp": [], "ab": ["ab-no-groups", "ddp"]}.get(own, ["ddp"])
    imported = importlib.import_module(module)
    changed: Mapping[str, Any] = getattr(imported, "BASELINE_OPTIONS", {})
    given = {name: getattr(options, name) for name in options.model_fields_set - {"second_objective"}}
    found = {}
    for method in asked:
        of_method = {**given, **changed, "method": method}
        found[{"ddp": FULL_RANK}.get(method, method)] = Baseline(
            id="-".join(map(str, [method, *changed.values()])),
            params=imported.make_task(**of_method).default,
            options=of_method,
        )
    return found


def flags_of(options: Mapping[str, Any]) -> list[str]:
    """``options`` of a task as arguments of its module's command line."""
    flags = []
    for name, value in options.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{option}" if value else f"--no-{option}")
        elif value is not None:
            flags.append(f"--{option}={value}")
    return flags


def best_beside(result: hpo.Result, default: Individual, task: Any) -> Individual:
    """The campaign's best. With several objectives it is the member of the front with the best tested objective among
    those that dominate the default, or of the whole front if none does.
    """
    if len(task.objectives) == 1:
        return result.best
    name, direction = tested(task)
    sign = 1 if direction == "maximize" else -1
    better = [member for member in result.front if dominates(member, default, task.objectives)]
    return max(better or result.front, key=lambda member: sign * (member.objectives or {})[name])


def tested(task: Any) -> tuple[str, str]:
    """Name and direction of the objective that a test measures, too: the task's score, else the last."""
    score = getattr(task, "score", None)
    name = score if score in task.objectives else [*task.objectives][-1]
    return str(name), task.objectives[str(name)]


def measure(module: str, task: Any) -> str:
    """Name of the objective that a test measures; for the task's score the module's name for it."""
    name, direction = tested(task)
    if name not in ("value", getattr(task, "score", None)):
        return name
    usual = "accuracy" if direction == "maximize" else "error"
    return str(getattr(importlib.import_module(module), "MEASURE", usual))


@dataclass(frozen=True, kw_only=True)
class Place:
    """Number of ``ranks`` in all and ``nodes`` of a training. ``too_few``: one node, the default, is too few."""

    ranks: int = 1
    nodes: int = 1
    too_few: bool = False

    def command(self, module: str, port: int) -> list[str]:
        """Command that starts ``module`` there. On the first of this allocation's nodes, srun starts a torchrun on each
        with all of the job's cores there; they meet at ``port`` of the first. CampaignError if there are too few nodes.
        """
        if self.too_few and self.nodes == 1:
            raise hpo.CampaignError(
                f"the campaign's best sent bytes between nodes, and here {self.ranks} ranks would be on one node, "
                "where DASO and local SGD are plain averaging. Run this in an allocation of Slurm like the campaign's, "
                "or name there the nodes of a worker: --nodes N. --nodes 1 measures on one node all the same."
            )
        if self.ranks == 1:
            return [sys.executable, "-m", module]
        if self.ranks % self.nodes:  # torchrun starts as many ranks on each node
            raise hpo.CampaignError(
                f"{self.ranks} ranks on {self.nodes} nodes: each must have as many. Name another number by --nodes."
            )
        each = f"--nproc-per-node={self.ranks // self.nodes}"
        torchrun = [sys.executable, "-m", "torch.distributed.run", each]
        if self.nodes == 1:
            return [*torchrun, "--standalone", "-m", module]
        hosts = [host.name for host in slurm_job.allocation(os.environ) or ()]
        if len(hosts) < self.nodes:
            raise hpo.CampaignError(
                f"{self.ranks} ranks on {self.nodes} nodes: this allocation of Slurm has {len(hosts)}. Start this "
                "inside one of as many (sbatch or salloc), or name fewer by --nodes."
            )
        if "SLURM_GPUS_PER_TASK" in os.environ:
            # A node is one task here, and srun would give all of its ranks the GPUs of one.
            raise hpo.CampaignError(
                "this job was given --gpus-per-task, with which the ranks of a node cannot have a GPU each here. Ask "
                "for --gpus-per-node in its place."
            )
        srun = ["srun", f"--nodes={self.nodes}", f"--ntasks={self.nodes}", "--ntasks-per-node=1", "--overlap"]
        srun += [f"--nodelist={','.join(hosts[: self.nodes])}"]
        if (cores := cores_of_job()) is not None:
            # Without a number srun leaves a task one core, for all of the node's ranks.
            srun += [f"--cpus-per-task={cores}"]
        meeting = [f"--nnodes={self.nodes}", "--rdzv-backend=c10d", f"--rdzv-id=compare-{port}"]
        return [*srun, *torchrun, *meeting, f"--rdzv-endpoint={hosts[0]}:{port}", "-m", module]


def cores_of_job() -> int | None:
    """Fewest cores that this job of Slurm has on a node; None outside a job."""
    cores = os.environ.get("SLURM_JOB_CPUS_PER_NODE", "")
    return min(slurm_job.read_counts(cores)) if cores else None


def nodes_for(ranks: int) -> int:
    """Number of nodes of a worker of ``ranks`` ranks in this job of Slurm; 1 outside a job."""
    per_node = os.environ.get("SLURM_NTASKS_PER_NODE", "")
    nodes = os.environ.get("SLURM_JOB_NUM_NODES", "")
    if not (per_node.isdecimal() and nodes.isdecimal() and int(per_node)):
        return 1
    return min(int(nodes), -(-ranks // int(per_node)))


def needs_nodes(task: Any, given: Mapping[str, Any], ranks: int, best: Any) -> bool:
    """Whether ``best`` has sent bytes between nodes that were not some of its ``ranks`` posing as nodes."""
    own = getattr(getattr(task, "options", None), "ranks_per_node", None)
    posing = given.get("ranks_per_node") if own is None else own
    sent = {**best.metrics, **(best.objectives or {})}.get("bytes_between_nodes")
    return isinstance(sent, (int, float)) and sent > 0 and (posing is None or posing >= ranks)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def trained_anew(
    module: str,
    directory: Path,
    column: Individual | Baseline,
    place: Place,
    flags: Sequence[str],
    seeds: int | None = None,
    *,
    limit_s: float = _LIMIT_S,
) -> dict[str, Any]:
    """Output of the module's command line for a configuration: "test", its mean score on the test part over ``seeds``
    trainings, and "tests", each of them. An earlier output in ``directory`` is returned without any training.

    Raises:
        CampaignError: the training failed, or took longer than ``limit_s``.
    """
    counted = "" if seeds is None else f"-{seeds}-seeds"
    path = directory / "test" / f"{column.id}{counted}.json"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        with tempfile.NamedTemporaryFile("w", suffix=".json", dir=path.parent) as config:
            json.dump({"id": column.id, "params": column.params}, config)
            config.flush()
            command = [*place.command(module, _free_port()), f"--config={config.name}", *flags]
            # All nodes see this directory, and trainings that are stopped are continued there.
            trainings = path.with_suffix(".run")
            command.append(f"--directory={trainings.resolve()}")
            if seeds is not None:
                command.append(f"--test-seeds={seeds}")
            cores = (cores_of_job() if place.nodes > 1 else None) or os.cpu_count() or 1
            threads = str(max(1, cores * place.nodes // place.ranks))
            print(f"compare: measuring {column.id} on the test part", file=sys.stderr, flush=True)
            code, printed, errors = _run(command, {"OMP_NUM_THREADS": threads, **os.environ}, limit_s)
        if code != 0:
            end = f"was stopped after {limit_s:g} s (--limit)" if code is None else f"returned {code}"
            raise hpo.CampaignError(
                f"{shlex.join(command)} {end}. Correct what it printed, or give it longer, and start this again: "
                f"trainings continue.\n{printed}{errors}"
            )
        # A call that is killed while it writes leaves no half of a result.
        partial = path.with_suffix(".partial")
        partial.write_text(printed)
        os.replace(partial, path)
        shutil.rmtree(trainings, ignore_errors=True)
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _run(
    command: Sequence[str], environment: Mapping[str, str], limit_s: float
) -> tuple[int | None, str, str]:
    """Exit code, None if it took longer than ``limit_s``, and what was printed on both streams."""
    with (
        tempfile.TemporaryFile("w+") as printed,
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, env=environment, stdout=printed, stderr=errors) as process,
    ):
        code: int | None = None
        try:
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(limit_s)
        finally:
            if code is None:
                # torchrun ends its ranks when it is asked to end; killed, it would leave them.
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_ENDING_S)
                process.kill()
        for file in (printed, errors):
            file.seek(0)
        return code, printed.read(), errors.read()


if __name__ == "__main__":
    sys.exit(main())
