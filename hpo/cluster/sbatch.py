"""Batch script of a Slurm job that goes on by itself until its campaign is done; its options, and its requeue."""

from __future__ import annotations

import logging
import math
import re
import shlex
import shutil
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hpo import aliases
from hpo.cluster.slurm_job import call
from hpo.config import process
from hpo.config import reader as config
from hpo.config.layout import Layout
from hpo.config.settings import Settings
from hpo.errors import EXIT_RESUMABLE, CampaignError, UsageError
from hpo.islands.end_reasons import LOST
from hpo.islands.storage import PATIENCE_S
from hpo.journal.directory import second_campaign
from hpo.ledger.entries import Limits
from hpo.ledger.launches import (
    MOST_IDLE_LAUNCHES,
    consecutive_idle_launches,
    is_complete,
    read_launch_patiently,
)
from hpo.ledger.opening import state_of
from hpo.spelling import nearest
from hpo.terminal import quoted, write
from hpo.text import cut, excerpt

_log = logging.getLogger("hpo.cluster")

# How long a job is put into the queue again and again where Slurm refuses, as its controller may be changing over.
_REQUEUE_S = 60.0
_PAUSE_S = 5.0
# Slurm looks at time limits so seldom that its warning may come this much earlier than was asked.
_EARLY_S = 60

OURS = {
    "signal": "hpo works it out from `grace` in the campaign file",
    "requeue": "the script has it, to go on in another job",
    "no-requeue": "without it the campaign could not go on by itself",
    "open-mode": "the script has it, so that each job's output follows the last one's",
    "ntasks": "hpo starts --nodes times --ntasks-per-node ranks",
    "wrap": "hpo writes the script",
    "parsable": "hpo reads the job's number itself",
    "test-only": "use --dry-run",
}
"""Options that a job must have as they are, and why."""

_OWN_OPTIONS = ("start", "mpi", "setup", "dry-run")
"""Options of ``hpo slurm`` that are none of sbatch."""
_FIRST_OPTIONS = (
    "job-name",
    "nodes",
    "ntasks-per-node",
    "gpus-per-node",
    "cpus-per-task",
    "time",
    "partition",
    "account",
)
"""Options that the script begins with, in this order."""
_GIVE_CPUS = ("cpus-per-task", "cpus-per-gpu", "mincpus", "exclusive")
_COUNT = r"[1-9]\d{0,5}"
_TIME = re.compile(r"(?:(\d{1,6})-)?(\d{1,9})(?::(\d{1,2}))?(?::(\d{1,2}))?")


def warning_s(grace_s: float) -> int:
    """Seconds before the time limit at which Slurm warns, for running evaluations to have their grace."""
    return math.ceil(grace_s + _EARLY_S)


def script(
    *,
    file: str | None,
    grace_s: float,
    options: Mapping[str, str | None],
    start: str = "mpirun",
    mpi: str = "pmix",
    path: str | None = None,
    setup: Sequence[str] = (),
    heading: Sequence[str] = (),
    submitted: int | None = None,
    joins: bool = False,
) -> str:
    """Text of the batch script. ``file``: the campaign file, None for the script's first argument; ``grace_s``: seconds
    that running evaluations get to save; ``options``: of sbatch without dashes, None for an option without a value;
    ``start``: "mpirun", by ``hpo run``, or "srun" with its ``mpi``; ``path``: folder whose programs come first, None
    for .venv where the job is submitted; ``setup``: lines to run before; ``heading``: comments at the top;
    ``submitted``: number of the ledger's entries now; ``joins``: several jobs work on the campaign together."""
    own = {"signal": f"B:USR1@{warning_s(grace_s)}", "requeue": None, "open-mode": "append"}
    options = {**options, **own}
    directives = [
        f"#SBATCH --{name}" + ("" if value is None else f"={shlex.quote(value)}")
        for name, value in options.items()
    ]
    campaign = '"$1"' if file is None else shlex.quote(file)
    programs = '"$PWD/.venv/bin"' if path is None else shlex.quote(path)
    return "\n".join(
        [
            "#!/usr/bin/env bash",
            *(f"# {line}" for line in heading),
            *directives,
            "",
            *(setup or ("# What your site needs comes here, for example: module load openmpi",)),
            "set -uo pipefail  # not before: a site's own lines may ask for variables that are not set",
            f'export PATH={programs}:"$PATH"',
            f"file={campaign}",
            *(
                []
                if submitted is None
                else [f"export {process.SUBMITTED}={submitted}  # `hpo stop` since then holds"]
            ),
            "",
            "# SIGUSR1 is Slurm's warning before the time limit; SIGTERM is scancel's, or at the limit Slurm's own.",
            "# What runs may save, and all is on disk when the campaign ends.",
            "campaign= cancelled= early= signalled=",
            'pass_on() { signalled=1; if [[ $campaign ]]; then kill -USR1 "$campaign"; else early=1; fi; }',
            "trap pass_on USR1",
            "past_limit() {",
            "    local own=$SLURM_JOB_ID  # of an array's last task that of the whole array, which names all tasks",
            '    [[ ${SLURM_ARRAY_JOB_ID-} != "$own" ]] || own+=_$SLURM_ARRAY_TASK_ID',
            '    [[ $(timeout 10 scontrol show job "$own" 2>&1) == *Reason=TimeLimit* ]]',
            "}",
            "trap 'pass_on; past_limit || cancelled=1' TERM",
            *_start_of_ranks(start, mpi, joins=joins),
            "campaign=$!",
            "[[ -z $early ]] || pass_on",
            "",
            "# A signal ends `wait`, not what it waits for, which may end meanwhile: it is asked for again.",
            "signalled=1",
            "while [[ $signalled ]]; do",
            "    signalled= code=0",
            '    wait "$campaign" || code=$?',
            "done",
            "campaign=",
            "",
            "# Puts this job into the queue again if the campaign can go on, which its journal says and no launcher's",
            "# code. Not after `hpo stop`, nor when launch after launch gets nothing done.",
            "if ((code)) && [[ -z $cancelled ]]; then",
            '    hpo slurm "$file" --requeue "$code"',
            "    code=$?",
            "fi",
            'exit "$code"',
            "",
        ]
    )


def _start_of_ranks(start: str, mpi: str, *, joins: bool) -> list[str]:
    flag = " --join" if joins else ""
    # A job of one rank is one of a campaign whose islands would take more.
    ranks = ' --ranks "$SLURM_NTASKS"' if joins else ""
    if start != "srun":
        return [f'hpo run "$file" --ranks "$SLURM_NTASKS"{flag} &']
    return [
        "# srun leaves its tasks one core where it is not given a number.",
        f"srun --mpi={shlex.quote(mpi)} ${{SLURM_CPUS_PER_TASK:+--cpus-per-task=$SLURM_CPUS_PER_TASK}} "
        f'hpo run "$file"{ranks}{flag} &',
    ]


# --- what the user asks for -----------------------------------------------------------------------------------------


def job_script(
    file: Path,
    settings: Settings,
    options: Mapping[str, str | None],
    *,
    start: str,
    mpi: str,
    path: str,
    setup: Sequence[str] = (),
    joins: bool = False,
) -> str:
    """Script of a job for the campaign of ``file``; UsageError for a layout or options that cannot be. ``joins``: it is
    one of several jobs that work on the campaign together."""
    given = dict(options)
    if re.search(r"[\n\r\ud800-\udfff]", str(file)):
        raise UsageError(f"{str(file)!r}: a job's script needs a name of one line, in UTF-8. Rename it.")
    sizes = settings.worker_sizes
    most, least = _nodes(given.get("nodes"))
    if given.get("ntasks-per-node") is None:
        fewest, unit = max(sizes) if joins else sum(sizes), min(sizes)
        needed = math.ceil(fewest / least / unit) * unit
        given["ntasks-per-node"] = str(_gpus_per_node(given) or needed)
    for name, value in given.items():
        if value is not None and re.search(r"[\n\r\0]", value):
            raise UsageError(f"--{name}: {excerpt(value)} must be one line.")
    value = str(given["ntasks-per-node"])
    if not re.fullmatch(_COUNT, value):
        raise UsageError(
            f"--ntasks-per-node {cut(value)}: must be a whole number from 1 to 999999. Correct it."
        )
    per_node = int(value)
    # A layout that fits two numbers of nodes in a row fits all above them.
    for nodes in sorted({least, min(least + 1, most), most}):
        Layout.plan(ranks=nodes * per_node, sizes=sizes, joins=joins)
    warning, limit_s = warning_s(settings.evaluation.grace_s), _limit_s(given.get("time"))
    if limit_s is not None and limit_s <= warning:
        raise UsageError(
            f"--time {given['time']}: Slurm's warning comes {warning} s before the time limit (grace and "
            f"{_EARLY_S} s in which Slurm may be early), so nothing would run. Give more time, or set a smaller grace."
        )
    given.setdefault("job-name", f"hpo-{file.stem}")
    sorted_options = {name: given[name] for name in _FIRST_OPTIONS if given.get(name) is not None}
    sorted_options |= {name: value for name, value in given.items() if name not in _FIRST_OPTIONS}
    return script(
        file=str(file),
        grace_s=settings.evaluation.grace_s,
        options=sorted_options,
        start=start,
        mpi=mpi,
        path=path,
        setup=setup,
        heading=(
            "A campaign as a Slurm job that goes on by itself, job after job; written by "
            f"`hpo slurm {quoted(file)}`.",
        ),
        submitted=_entries(settings.directory),
        joins=joins,
    )


def _entries(directory: Path) -> int:
    """Number of entries of the campaign's ledger."""
    return state_of(directory).entries if (directory / "campaign.json").exists() else 0


def advice(options: Mapping[str, str | None]) -> Iterator[str]:
    """Sentences where a job asks for GPUs, and not for a rank for each, or for no CPUs to feed them."""
    if not any(name.startswith("gpus") for name in options) and "gpu" not in (options.get("gres") or ""):
        return
    if not {"ntasks-per-node", "gpus-per-node"} & {*options} and _gpus_per_node(options) is None:
        yield (
            "the job asks for GPUs and does not say how many a node has, so each node gets the fewest ranks that the "
            "layout needs, and each rank uses one GPU. Give --gpus-per-node=N, or --ntasks-per-node=N"
        )
    if not {*_GIVE_CPUS} & {*options}:
        yield (
            "the job asks for GPUs and not for CPUs: where your site sets no other default, each rank gets one, for "
            "training and data loaders together. Give --cpus-per-task=N: a node's CPUs, which sinfo -o '%P %c %G' "
            "shows, divided by its ranks"
        )


def _gpus_per_node(options: Mapping[str, str | None]) -> int | None:
    """GPUs of a node in ``--gpus-per-node`` or ``--gres``; None where neither gives a number."""
    number = r"(?:[A-Za-z][\w.-]*:)?([1-9]\d{0,5})"
    if found := re.fullmatch(number, options.get("gpus-per-node") or ""):
        return int(found[1])
    asked = [
        one for one in (options.get("gres") or "").split(",") if one.split(":")[0] in ("gpu", "gres/gpu")
    ]
    found = re.fullmatch(rf"(?:gres/)?gpu:{number}", asked[0]) if len(asked) == 1 else None
    return int(found[1]) if found else None


def _nodes(value: str | None) -> tuple[int, int]:
    found = re.fullmatch(rf"({_COUNT})(?:-({_COUNT}))?", value or "")
    if found is None or int(found[2] or found[1]) < int(found[1]):
        raise UsageError(
            f"--nodes {cut(str(value))}: must be a whole number from 1 to 999999, or the fewest and the most. "
            "Write for example: --nodes 4"
        )
    return int(found[2] or found[1]), int(found[1])


def _limit_s(value: str | None) -> int | None:
    """Seconds of a time limit as sbatch reads it; None for no limit, and for a form that sbatch refuses."""
    if (found := _TIME.fullmatch(value or "")) is None:
        return None
    days, *parts = (None if part is None else int(part) for part in found.groups())
    given = [part for part in parts if part is not None]
    # Minutes come first, as in 90 and 90:30, unless days or three numbers say that hours do.
    if days is None and len(given) < 3:
        given.insert(0, 0)
    hours, minutes, seconds = (*given, 0, 0)[:3]
    return (((days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def _near_miss(name: str) -> str | None:
    """Option that was most likely meant; None where sbatch has ``name``, or none is near: sites have own options."""
    if name in aliases.SBATCH_OPTIONS:
        return None
    known = aliases.SBATCH.get(aliases.folded(name))
    # A letter or two differ.
    return known or nearest(name, [*aliases.SBATCH_OPTIONS, *_OWN_OPTIONS], cutoff=0.8)


def sbatch_options(words: Sequence[str]) -> dict[str, str | None]:
    """Options for sbatch by name without dashes, None for an option without a value. UsageError for a word that is no
    long option, or an option that the script sets itself."""
    options: dict[str, str | None] = {}
    left = deque(words)
    while left:
        word = left.popleft()
        if not re.match(r"--[a-zA-Z]", word):
            raise UsageError(f"{word}: not understood. Write options as --name=value, such as --qos=long.")
        name, equals, value = word[2:].partition("=")
        if name in OURS:
            raise UsageError(f"--{name} cannot be given: {OURS[name]}. Leave it out.")
        if (near := _near_miss(name)) is not None:
            raise UsageError(
                f"--{name}: sbatch has no such option. Did you mean --{near}? If your site has it, write it into "
                "the script that --dry-run prints."
            )
        if not equals and left and not left[0].startswith("-"):
            equals, value = "=", left.popleft()
        options[name] = value if equals else None
    return options


def command(
    file: Path,
    options: Mapping[str, str | None],
    unknown: Sequence[str],
    *,
    start: str,
    mpi: str,
    setup: Sequence[str],
    dry_run: bool,
    jobs: int = 1,
    returned: int | None = None,
) -> int:
    """``hpo slurm``: show or submit the job, or several ``jobs`` that work together; or, in a job whose launcher
    ``returned`` that code, put it into the queue again if its campaign can go on. UsageError for a wrong file or
    option, CampaignError where Slurm refuses."""
    options = {**options, **sbatch_options(unknown)}
    settings = config.read_file(file)
    if returned is not None:
        attempt = process.slurm_attempt()
        if attempt is None:
            raise UsageError(
                "--requeue is for the script of a job. Submit one with: hpo slurm FILE --nodes N"
            )
        code, sentence = requeue(settings, attempt, returned)
        if sentence:
            _log.info("%s", sentence)
        return code
    if "nodes" not in options:
        raise UsageError(
            "--nodes is missing: how many nodes is the job to have? Write for example: --nodes 4"
        )
    path = str(Path(sys.executable).parent)
    joins = jobs > 1 or "array" in options
    text = job_script(file, settings, options, start=start, mpi=mpi, path=path, setup=setup, joins=joins)
    second = second_campaign(file, settings.directory)
    for remark in (*advice(options), *([second] if second else [])):
        _log.info("%s.", remark)
    if dry_run:
        print(text, end="")
        return 0
    if joins:
        _submit_several(text, jobs, settings.directory)
        return 0
    number = submit(text)
    output = options.get("output") or "slurm-%j.out"
    directory, job = quoted(settings.directory), quoted(number)
    write(f"job {number} is in the queue. Follow it:")
    write(f"  squeue --job {job}")
    write(f"  tail -F {quoted(output.replace('%j', number).replace('%A', number))}")
    write(f"  hpo status {directory}")
    # srun kills its tasks at scancel's SIGTERM.
    write(f"Stop it for good: hpo stop {directory}" + ("." if start == "srun" else f", or scancel {job}."))
    return 0


def _submit_several(text: str, jobs: int, directory: Path) -> None:
    """Submit ``jobs`` equal jobs, and say which are in the queue, also where Slurm refuses the others."""
    numbers: list[str] = []
    try:
        while len(numbers) < jobs:
            numbers.append(submit(text))
    finally:
        if numbers:
            named = ",".join(numbers)
            plural = "s" * (len(numbers) > 1)
            write(f"job{plural} {named} in the queue, to work on the campaign together. Follow them:")
            write(f"  squeue --job {named}")
            write(f"  hpo status {quoted(directory)}")
            write(f"  hpo launches {quoted(directory)}")
            write(f"Stop all for good: hpo stop {quoted(directory)}.")


def submit(text: str) -> str:
    """Hand the script to sbatch, and return the job's number; CampaignError with what sbatch said."""
    if shutil.which("sbatch") is None:
        raise CampaignError(
            "there is no sbatch on the path, so no Slurm to submit to. Run this on a login node of the cluster, or "
            "keep the script of --dry-run"
        )
    code, out, err = call(["sbatch", "--parsable"], text)
    if code:
        raise CampaignError(f"sbatch refused the job: {err or out}")
    return out.split(";")[0].strip()


def requeue(settings: Settings, attempt: process.SlurmAttempt, returned: int) -> tuple[int, str]:
    """Put this job into the queue again if its campaign can go on; the code that the job is to return, and a sentence,
    empty where all is said. ``returned``: the launcher's code, which counts only where the journal says nothing: a
    launch that met an error before it began returns 1 or 2. StorageFailed where the journals cannot be read,
    CampaignError where Slurm refuses or launch after launch got nothing done."""
    directory, job = settings.directory, attempt.job
    last = read_launch_patiently(directory, PATIENCE_S, job=job)
    begun = last is not None and last.job == str(attempt)
    end = last.end if last is not None and begun else None
    if (end is None or end[0] == LOST) and is_complete(directory, Limits.of(settings)):
        return 0, f"the campaign is complete, so job {job} ends with 0 and not with its launcher's {returned}"
    if end is not None and end[1] != EXIT_RESUMABLE:
        return end[1], ""
    if not begun and returned in (1, 2):
        return returned, ""
    if state_of(directory).keeps_from_joining(process.submitted()):
        return EXIT_RESUMABLE, f"job {job} is not put into the queue again: `hpo stop` was asked for"
    former = process.SlurmAttempt.parse(last.job) if last is not None else None
    # Attempts that came to no launch at all are on no record.
    idle = attempt.number - (former.number if former is not None and former.job == job else -1)
    in_vain = consecutive_idle_launches(directory, job) + idle
    if in_vain >= MOST_IDLE_LAUNCHES:
        raise CampaignError(
            f"job {job} is not put into the queue again: {in_vain} launches in a row finished no evaluation. Look "
            "above for what ends them; if they are too short for one evaluation, give them more time, or let the task "
            "save"
        )
    # Written before Slurm is asked: it ends this process with the job, maybe before scontrol has returned.
    write(f"hpo: job {job} goes into the queue again", sys.stderr, flush=True)
    name, until = process.slurm_name() or job, time.monotonic() + _REQUEUE_S
    while (answer := call(["scontrol", "requeue", name]))[0] and time.monotonic() < until:
        time.sleep(_PAUSE_S)
    code, out, err = answer
    if code:
        raise CampaignError(
            f"Slurm did not put job {job} into the queue again: {err or out}. Submit it again"
        )
    return EXIT_RESUMABLE, ""
