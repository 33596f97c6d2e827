"""What a campaign of search_spaces found, beside the default configuration and the full-rank baseline.

    python jobs/compare.py jobs/digits.toml
    python jobs/compare.py jobs/vit_ab.toml --test-seeds 5

Best and default have been evaluated by the campaign: what they reach on the validation part is taken from its journal.
What they reach on the test part, with which compression and how many bytes sent, is measured here, now that the choice
is made, by the module's own command line on as many ranks and nodes as a worker of the campaign has. Where the campaign
is about another method than DDP, so is the baseline: what the default says of learning rate and schedule, or the
module's BASELINE_OPTIONS, trained by DDP at full rank, and for AB training without groups, too. All is kept in
DIR/test/ and not measured twice, and a call that was stopped goes on. Delete what an earlier version has measured there
to have what it lacks.
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

from compare_table import FULL_RANK, SHARES, Baseline, dominates, places, reached, table

import hpo
from hpo.cluster import slurm_job
from hpo.individual import COMPLETED, Individual
from hpo.task.importing import split_reference

__all__ = ["SHARES", "compared", "main", "measure", "reached", "test_value"]

_LIMIT_S = 86_400.0
"""Three trainings of a large network take hours; ranks that hang end by themselves long before."""

_ENDING_S = 45.0
"""What a training that is stopped has for it, before it is killed: torchrun gives its ranks 30 s."""


def main(arguments: Sequence[str] | None = None) -> int:
    """As the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="campaign file (TOML), which has been run")
    parser.add_argument(
        "--limit",
        type=float,
        default=_LIMIT_S,
        metavar="SECONDS",
        help=f"for the trainings of one configuration (default: {_LIMIT_S:g})",
    )
    parser.add_argument(
        "--test-seeds",
        type=int,
        metavar="N",
        help="trainings of each configuration (default: as many as the task has it, which is three)",
    )
    parser.add_argument(
        "--nodes",
        type=int,
        metavar="N",
        help="that the ranks of a training are on, by srun (default: what the ranks of a worker need in this "
        "allocation of Slurm; outside one 1, unless the campaign's workers sent bytes between nodes)",
    )
    parser.add_argument(
        "--baselines",
        nargs="*",
        metavar="METHOD",
        help="methods to compare with, as the task's option method names them (default: ddp, and ab-no-groups beside "
        "ab; none where the task has no such option, or is about ddp)",
    )
    options = parser.parse_args(arguments)
    if not 0 < options.limit < math.inf:
        parser.error(f"--limit {options.limit:g}: must be a number of seconds above 0.")
    for name in ("test_seeds", "nodes"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} {getattr(options, name)}: must be at least 1.")
    return compared(
        options.file,
        options.limit,
        seeds=options.test_seeds,
        nodes=options.nodes,
        baselines=options.baselines,
    )


def compared(
    file: Path,
    limit_s: float = _LIMIT_S,
    *,
    seeds: int | None = None,
    nodes: int | None = None,
    baselines: Sequence[str] | None = None,
) -> int:
    """Measure what is not measured yet and print all; returns the exit code."""
    try:
        campaign = hpo.Campaign.from_file(file)
        settings, default = campaign.settings, campaign.task.default
        result = hpo.Result(settings.directory)
        chosen = {"best": result.best}
        for one in result.individuals:
            if one.params == default and one.status == COMPLETED:
                chosen["default"] = one
        if "default" in chosen:
            chosen["best"] = best_beside(
                result, chosen["default"], campaign.task.objectives, score_of(campaign.task)
            )
        ranks = settings.layout.ranks_per_worker
        place = Place(
            ranks=ranks,
            nodes=nodes_for(ranks) if nodes is None else nodes,
            too_few=nodes is None
            and needs_nodes(campaign.task, settings.task_options, ranks, chosen["best"]),
        )
        module = importable(str(settings.task), file)
        columns: dict[str, Individual | Baseline] = {
            **chosen,
            **baselines_of(campaign.task, module, baselines),
        }
        tests = {
            name: trained_anew(
                module,
                settings.directory,
                one,
                place,
                flags_of(one.options if isinstance(one, Baseline) else settings.task_options),
                seeds,
                limit_s=limit_s,
            )
            for name, one in columns.items()
        }
    except hpo.HpoError as error:
        print(f"compare: {error}", file=sys.stderr)
        return error.exit_code
    if "default" not in chosen:
        print(
            "compare: the default configuration has no completed evaluation to compare with", file=sys.stderr
        )
    score, objectives = score_of(campaign.task), campaign.task.objectives
    what = measure(module, objectives, score)
    print(table(result, columns, tests, what, tested(objectives, score)[0]))
    print()
    print(places(file, settings.directory))
    return 0


def importable(task: str, file: Path) -> str:
    """The module that ``task`` of the campaign file ``file``, which has been read, names. Where it names the module's
    own file, processes that this one starts find the module there from now on.
    """
    place, _ = split_reference(task)
    if not place.endswith(".py"):
        return place
    path = (file.parent / place).resolve()
    spec = importlib.util.find_spec(path.stem)
    if spec is None or spec.origin is None or Path(spec.origin).resolve() != path:
        raise hpo.UsageError(
            f"task = {task!r}: Python has another module of the name {path.stem!r}, which python -m would start. Give "
            "the file another name."
        )
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(path.parent), os.environ.get("PYTHONPATH")]))
    return path.stem


def baselines_of(task: hpo.Task, module: str, asked: Sequence[str] | None = None) -> dict[str, Baseline]:
    """By name the baselines ``asked`` for; None: those of the sources' tables. Each is the default of the task with
    that method: what the campaign's default says of all but its own method.
    """
    options = getattr(task, "options", None)
    own = getattr(options, "method", None)
    if options is None or own is None:
        return {}
    if asked is None:
        asked = {"ddp": [], "ab": ["ab-no-groups", "ddp"]}.get(own, ["ddp"])
    make_task = importlib.import_module(module).make_task
    given = {name: getattr(options, name) for name in options.model_fields_set}
    changed = baseline_options(module)
    found = {}
    for method in asked:
        of_method = of_baseline({**given, **changed}, method)
        found[{"ddp": FULL_RANK}.get(method, method)] = Baseline(
            id="-".join(map(str, [method, *changed.values()])),
            params=make_task(**of_method).default,
            options=of_method,
        )
    return found


def baseline_options(module: str) -> Mapping[str, Any]:
    """Options that baselines of ``module`` have whatever the campaign's are."""
    return getattr(importlib.import_module(module), "BASELINE_OPTIONS", {})


def of_baseline(options: Mapping[str, Any], method: str) -> dict[str, Any]:
    """``options`` of a task with this method and without a second objective: a baseline is not searched, and what a
    campaign about another method minimises may be constant with this one.
    """
    return {
        **{name: value for name, value in options.items() if name != "second_objective"},
        "method": method,
    }


def flags_of(options: Mapping[str, Any]) -> list[str]:
    """``options`` of a task as arguments of its module's command line."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in options.items() if value is not None]


def best_beside(
    result: hpo.Result, default: Individual, objectives: Mapping[str, str], score: str | None = None
) -> Individual:
    """The campaign's best. Of several objectives that is, of the front's points that dominate the default, the one that
    is best in what a test measures; of the whole front where none does. ``score``: as for ``tested``.
    """
    if len(objectives) == 1:
        return result.best
    name, direction = tested(objectives, score)
    sign = 1 if direction == "maximize" else -1
    better = [one for one in result.front if dominates(one, default, objectives)]
    return max(better or result.front, key=lambda one: sign * (one.objectives or {})[name])


def score_of(task: hpo.Task) -> str | None:
    """The name by which the task knows its score, if it has one."""
    return getattr(task, "score", None)


def tested(objectives: Mapping[str, str], score: str | None = None) -> tuple[str, str]:
    """The objective that a test measures too, and its direction: ``score`` where it is one of them, else the last."""
    name = score if score in objectives else [*objectives][-1]
    return str(name), objectives[str(name)]


def measure(module: str, objectives: Mapping[str, str], score: str | None = None) -> str:
    """What a test measures: the objective's name, or for the task's score what ``module`` calls it."""
    name, direction = tested(objectives, score)
    if name not in ("value", score):
        return name
    return str(
        getattr(
            importlib.import_module(module), "MEASURE", "accuracy" if direction == "maximize" else "error"
        )
    )


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a configuration is trained: ``ranks`` in all, on ``nodes``. ``too_few``: one node, for lack of a word about
    others, does not do.
    """

    ranks: int = 1
    nodes: int = 1
    too_few: bool = False

    def command(self, module: str, port: int) -> list[str]:
        """What starts ``module`` there. On several nodes, the first of this allocation of Slurm, srun starts a torchrun
        on each with all of the job's cores there; they meet at ``port`` of the first. Raises CampaignError where ranks
        do not divide among nodes, these are too few, or the allocation has fewer.
        """
        if self.too_few and self.nodes == 1:
            raise hpo.CampaignError(
                f"the campaign's best sent bytes between nodes, and here {self.ranks} ranks would be on one node, "
                "where DASO and local SGD are plain averaging. Run this in an allocation of Slurm like the campaign's, "
                "or name there the nodes of a worker: --nodes N. --nodes 1 measures on one node all the same."
            )
        if self.ranks == 1:
            return [sys.executable, "-m", module]
        if self.ranks % self.nodes:
            raise hpo.CampaignError(
                f"{self.ranks} ranks on {self.nodes} nodes: each must have as many. Name another number by --nodes."
            )
        torchrun = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            f"--nproc-per-node={self.ranks // self.nodes}",
        ]
        if self.nodes == 1:
            return [*torchrun, "--standalone", "-m", module]
        hosts = [one.name for one in slurm_job.allocation(os.environ) or ()]
        if len(hosts) < self.nodes:
            raise hpo.CampaignError(
                f"{self.ranks} ranks on {self.nodes} nodes: "
                + (
                    f"this allocation of Slurm has {len(hosts)}. "
                    if hosts
                    else "no allocation of Slurm is found here. "
                )
                + "Start this inside one of as many (sbatch or salloc), or name fewer by --nodes."
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
    """How many cores this job of Slurm has on each of its nodes, on the one with fewest; None outside of one."""
    cores = os.environ.get("SLURM_JOB_CPUS_PER_NODE", "")
    return min(slurm_job.read_counts(cores)) if cores else None


def nodes_for(ranks: int) -> int:
    """On how many nodes of this job of Slurm a worker of ``ranks`` ranks is: 1 where there is none."""
    here = os.environ.get("SLURM_NTASKS_PER_NODE", "")
    nodes = os.environ.get("SLURM_JOB_NUM_NODES", "")
    if not (here.isdecimal() and nodes.isdecimal() and int(here)):
        return 1
    return min(int(nodes), -(-ranks // int(here)))


def needs_nodes(task: hpo.Task, given: Mapping[str, Any], ranks: int, best: Individual) -> bool:
    """Whether what ``best`` sent between nodes, as the campaign recorded it, takes several nodes: where the options say
    that some of the ``ranks`` pose as a node, one does.
    """
    own = getattr(getattr(task, "options", None), "ranks_per_node", None)
    posing = given.get("ranks_per_node") if own is None else own
    sent = {**best.metrics, **(best.objectives or {})}.get("bytes_between_nodes")
    return isinstance(sent, (int, float)) and sent > 0 and (posing is None or posing >= ranks)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("", 0))
        return int(one.getsockname()[1])


def test_value(
    module: str,
    directory: Path,
    individual: Individual,
    ranks: int,
    flags: list[str],
    seeds: int | None = None,
    *,
    limit_s: float = _LIMIT_S,
) -> float:
    """As ``trained_anew`` on one node: what ``individual`` reaches on the test part."""
    found = trained_anew(module, directory, individual, Place(ranks=ranks), flags, seeds, limit_s=limit_s)
    return float(found["test"])


def trained_anew(
    module: str,
    directory: Path,
    individual: Individual | Baseline,
    place: Place,
    flags: Sequence[str],
    seeds: int | None = None,
    *,
    limit_s: float = _LIMIT_S,
) -> dict[str, Any]:
    """What the module's command line says of ``individual``: "test", what it reaches on the test part in the mean of
    ``seeds`` trainings, and "tests", each of them. Trained unless that was done before. ``seeds`` None: as many as the
    module does, which is three.

    Raises:
        CampaignError: the training failed, or took longer than ``limit_s``.
    """
    counted = "" if seeds is None else f"-{seeds}-seeds"
    path = directory / "test" / f"{individual.id}{counted}.json"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        with tempfile.NamedTemporaryFile("w", suffix=".json", dir=path.parent) as config:
            json.dump({"id": individual.id, "params": individual.params}, config)
            config.flush()
            command = [*place.command(module, _free_port()), f"--config={config.name}", *flags]
            # Not a temporary directory, which is its node's alone; and trainings that are stopped go on from there.
            trainings = path.with_suffix(".run")
            command.append(f"--directory={trainings.resolve()}")
            if seeds is not None:
                command.append(f"--test-seeds={seeds}")
            cores = (cores_of_job() if place.nodes > 1 else None) or os.cpu_count() or 1
            threads = str(max(1, cores * place.nodes // place.ranks))
            print(f"compare: measuring {individual.id} on the test part", file=sys.stderr, flush=True)
            code, printed, errors = _run(command, {"OMP_NUM_THREADS": threads, **os.environ}, limit_s)
        if code is None:
            raise hpo.CampaignError(
                f"{shlex.join(command)} was not done after {limit_s:g} s and was stopped. Give it longer by --limit; "
                f"what is saved of its trainings is not repeated. What it printed:\n{printed}{errors}"
            )
        if code:
            raise hpo.CampaignError(
                f"{shlex.join(command)} returned {code}. What it printed:\n{printed}{errors}"
            )
        # A run that is killed while it writes leaves no half of a result behind.
        partial = path.with_suffix(".partial")
        partial.write_text(printed)
        os.replace(partial, path)
        shutil.rmtree(trainings, ignore_errors=True)
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _run(
    command: Sequence[str], environment: Mapping[str, str], limit_s: float
) -> tuple[int | None, str, str]:
    """The exit code, None if it took longer than ``limit_s``, and what was printed on both streams."""
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
