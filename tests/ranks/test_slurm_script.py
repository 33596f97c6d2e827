"""What `hpo slurm` writes and refuses, and how Slurm's answers are read: without a Slurm."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import journals
import pytest
from programs import called
from terminal import ROOT, wait_until

from hpo import cli
from hpo.cluster import sbatch, slurm_job
from hpo.cluster.hosts import Host
from hpo.config.process import SlurmAttempt, slurm_attempt, slurm_name
from hpo.config.reader import from_keywords
from hpo.errors import CampaignError
from hpo.journal.commands import Stop, asked
from hpo.journal.directory import write_identity
from hpo.ledger.opening import give

EXAMPLE: dict[str, Any] = {
    "file": None,
    "grace_s": 60.0,
    "options": {
        "job-name": "hpo",
        "nodes": "16",
        "ntasks-per-node": "4",
        "gpus-per-node": "4",
        "cpus-per-task": "8",
        "time": "08:00:00",
    },
    "heading": (
        "A campaign as a Slurm job that goes on by itself, job after job, until its budget is used up:",
        "    sbatch jobs/slurm.sbatch jobs/digits_cluster.toml",
        "What `hpo slurm FILE --nodes 16 …` would submit, to be changed by hand. Slurm's warning comes two minutes",
        "before the time limit: more than `grace` in the campaign file by a minute, in which Slurm may be early.",
    ),
}


def test_the_script_to_be_changed_by_hand_is_the_one_that_is_written() -> None:
    assert (ROOT / "jobs" / "slurm.sbatch").read_text() == sbatch.script(**EXAMPLE)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my campaign.toml"
    path.write_text(
        'task = "task.py:task"\ndirectory = "run"\nevaluations = 5\n[layout]\nislands = 4\nranks_per_worker = 2\n'
        "[evaluation]\ngrace = 90\n"
    )
    return path


def dry_run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = cli.main(["slurm", *map(str, arguments), "--dry-run"])
    told = capsys.readouterr()
    return code, told.out, told.err


def directives(text: str) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for line in text.splitlines():
        if line.startswith("#SBATCH "):
            [word] = shlex.split(line.removeprefix("#SBATCH "))
            name, has_value, value = word.removeprefix("--").partition("=")
            found[name] = value if has_value else None
    return found


def test_what_is_asked_for_stands_in_the_script(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--gpus-per-node=4", "--time", "8:00:00", "--qos=long", "--comment=a b", "--exclusive"]
    options += ["--no-kill", "--nice=-5"]
    code, text, err = dry_run(capsys, file, "--nodes", 3, *options, "--setup", "module load openmpi")
    assert (code, err) == (0, "")
    size = {"job-name": "hpo-my campaign", "nodes": "3", "ntasks-per-node": "4", "gpus-per-node": "4"}
    asked_for = {"time": "8:00:00", "qos": "long", "comment": "a b", "nice": "-5"}
    own = {"signal": "B:USR1@150", "requeue": None, "open-mode": "append"}
    assert directives(text) == {**size, **asked_for, "exclusive": None, "no-kill": None, **own}
    assert f"\nfile={shlex.quote(str(file))}\n" in text
    assert "\nmodule load openmpi\n" in text
    assert 'hpo run "$file" --ranks "$SLURM_NTASKS" &' in text
    called("bash", "-n", input=text)


def test_srun_starts_the_ranks_where_it_is_asked_to(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, text, _ = dry_run(capsys, file, "--nodes=2-4", "--start=srun", "--mpi=pmi2")
    assert "srun --mpi=pmi2 " in text and '"$SLURM_NTASKS"' not in text
    larger = file.with_name("larger.toml")
    larger.write_text(file.read_text() + "[[island]]\nranks_per_worker = 8\n")
    _, joined, _ = dry_run(capsys, larger, "--nodes=1", "--jobs=2")
    assert directives(joined)["ntasks-per-node"] == "8", "each job can serve each island"
    _, joined, _ = dry_run(capsys, file, "--nodes=1", "--jobs=2", "--start=srun")
    assert ' hpo run "$file" --ranks "$SLURM_NTASKS" --join &' in joined, (
        "also of fewer ranks than the islands take"
    )
    assert directives(text)["ntasks-per-node"] == "4"  # two workers, for two nodes have to hold four islands
    _, text, _ = dry_run(capsys, file, "--nodes=4", "--ntasks-per-node=3")
    assert directives(text)["ntasks-per-node"] == "3", "workers share them evenly"


@pytest.mark.parametrize(
    ("options", "ranks", "remedies"),
    [
        ([], "2", []),
        (["--gpus-per-node=4"], "4", ["--cpus-per-task=N"]),
        (["--gres=gpu:a100:4"], "4", ["--cpus-per-task=N"]),
        (["--gres=gpu:4", "--cpus-per-gpu=8"], "4", []),
        (["--gpus-per-node=h100:2", "--exclusive"], "2", []),
        (["--gres=scratch:10,gpu:nvidia_a100-40gb:4", "--cpus-per-task=8"], "4", []),
        (["--gres=gpu", "--cpus-per-task=8"], "2", ["--gpus-per-node=N"]),  # what the layout needs
        (["--gpus=16"], "2", ["--gpus-per-node=N", "--cpus-per-task=N"]),
        (["--gres=gpu:a100:1,gpu:h100:2", "--cpus-per-task=8"], "2", ["--gpus-per-node=N"]),
        (["--gres=scratch:4"], "2", []),
    ],
)
def test_there_is_a_rank_for_each_gpu_of_a_node_and_cpus_to_feed_it(
    file: Path, options: list[str], ranks: str, remedies: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, text, err = dry_run(capsys, file, "--nodes=4", *options)
    assert code == 0 and directives(text)["ntasks-per-node"] == ranks
    lines = err.splitlines()
    assert len(lines) == len(remedies) and all(f"Give {one}" in line for one, line in zip(remedies, lines))


def test_what_is_no_plain_word_stays_one_word(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, text, _ = dry_run(capsys, file, "--nodes=2-4", "--start=srun", "--mpi=a; touch b")
    assert "srun --mpi='a; touch b' " in text
    path = "/env $(touch c)`touch d`\"'/bin"
    text = sbatch.script(file=None, grace_s=1.0, options={}, path=path)
    line = next(line for line in text.splitlines() if line.startswith("export PATH="))
    environment = {"PATH": "/usr/bin:/bin"}
    done = called("/bin/bash", "-c", f'{line}; printf %s "$PATH"', cwd=file.parent, env=environment)
    assert done.stdout == f"{path}:/usr/bin:/bin" and list(file.parent.iterdir()) == [file]
    two = file.rename(file.with_name("a\ntouch b.toml"))
    code, out, err = dry_run(capsys, two, "--nodes=2-4")
    assert (code, out) == (2, "") and "one line" in err and len(err.splitlines()) == 1


def test_the_commands_to_follow_a_job_can_be_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.toml"
    path.write_text('task = "task.py:task"\ndirectory = "my $(run)"\nevaluations = 5\n')
    monkeypatch.setattr(sbatch, "submit", lambda text: "7")
    assert cli.main(["slurm", str(path), "--nodes=1", "--output=a b-%j.out"]) == 0
    told = capsys.readouterr().out
    assert "  tail -F 'a b-7.out'\n" in told and "  hpo status 'my $(run)'\n" in told
    assert "hpo stop 'my $(run)', or scancel 7" in told


def test_several_jobs_work_together_on_fewer_workers_each(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    submitted: list[str] = []
    monkeypatch.setattr(sbatch, "submit", lambda text: str(6 + len(submitted.append(text) or submitted)))
    assert cli.main(["slurm", str(file), "--nodes=1", "--jobs=3"]) == 0
    said = capsys.readouterr().out
    assert (
        "jobs 7,8,9 in the queue" in said and "squeue --job 7,8,9" in said and said.count("hpo status") == 1
    )
    assert len(submitted) == 3 and len({*submitted}) == 1
    assert 'hpo run "$file" --ranks "$SLURM_NTASKS" --join &' in submitted[0]
    assert directives(submitted[0])["ntasks-per-node"] == "2", "a worker of two ranks"
    assert "export HPO_SUBMITTED=0" in submitted[0]
    called("bash", "-n", input=submitted[0])
    code, text, _ = dry_run(capsys, file, "--nodes=1", "--array=0-39%10")
    assert code == 0 and directives(text)["array"] == "0-39%10" and " --join &" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["--nodes is missing", "--nodes 4"]),
        (["--nodes=0"], ["--nodes 0", "whole number from 1"]),
        (["--nodes=4-2"], ["--nodes 4-2", "fewest and the most"]),
        (["--nodes=4", "-p", "main"], ["-p:", "--name=value"]),
        (["--nodes=4", "--signal=B:USR1@5"], ["--signal cannot be given", "grace"]),
        (["--nodes=4", "--ntasks=8"], ["--ntasks cannot be given", "--ntasks-per-node"]),
        (["--nodes=3", "--ntasks-per-node=3"], ["9 ranks do not fit", "a multiple of 2"]),
        (["--nodes=4", "--ntasks-per-node=x"], ["--ntasks-per-node x", "whole number from 1"]),
        (["--nodes=4", "--time=2"], ["--time 2", "150 s", "more time"]),
        (["--nodes=4", "--time=0-0:2:30"], ["--time 0-0:2:30", "150 s"]),
        (["--nodes=4", "--gpu-per-node=4"], ["--gpu-per-node", "Did you mean --gpus-per-node?"]),
        (["--nodes=4", "--walltime=8:00:00"], ["--walltime", "Did you mean --time?"]),
        (["--nodes=4", "--dryrun"], ["Did you mean --dry-run?"]),
        (["--nodes=4", "--comment=a\nb"], ["--comment", "one line"]),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(
    file: Path, arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = dry_run(capsys, file, *arguments)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1 and err.startswith("hpo: ")
    assert all(word in err for word in words), err


def test_what_sbatch_says_reaches_the_user(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert cli.main(["slurm", str(file), "--nodes=4"]) == 1
    assert "there is no sbatch on the path" in capsys.readouterr().err
    program(
        tmp_path / "bin", "sbatch", "#!/bin/sh\necho \"unrecognized option '--our-site=long'\" >&2\nexit 1\n"
    )
    assert cli.main(["slurm", str(file), "--nodes=4", "--our-site=long"]) == 1
    assert "sbatch refused the job: unrecognized option '--our-site=long'" in capsys.readouterr().err


# --- the script at work, with another program for hpo -------------------------------------------------------

FAKE = """#!/usr/bin/env bash
if [[ $1 == slurm ]]; then echo "again: $*"; exit ${JOURNAL_SAYS:-75}; fi
[[ -z ${RETURNS:-} ]] || exit $RETURNS
trap 'echo warned; touch "${0%/*}/gone"; exit 75' USR1
trap 'echo terminated' TERM
echo "ranks: $*"
for ((i = 0; i < 600; i++)); do sleep 0.05; done
"""


def run_script(
    tmp_path: Path, *, start: str = "mpirun", **environment: str
) -> subprocess.CompletedProcess[str]:
    """The script of c.toml, which finds its programs in ``tmp_path``."""
    text = sbatch.script(file="c.toml", grace_s=1.0, options={}, start=start, path=str(tmp_path))
    return called("bash", "-c", text, returns=None, env={"PATH": os.environ["PATH"], **environment})


def program(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("number", "reason", "again"),
    [(signal.SIGUSR1, "None", True), (signal.SIGTERM, "None", False), (signal.SIGTERM, "TimeLimit", True)],
    ids=["warning", "scancel", "limit"],
)
def test_the_script_passes_signals_on_and_queues_again_unless_it_was_cancelled(
    tmp_path: Path, number: int, reason: str, again: bool
) -> None:
    program(tmp_path, "hpo", FAKE)
    program(
        tmp_path,
        "scontrol",
        # What it is asked for has ended when it answers, unless the signal came before the script knew the
        # campaign's process: that one is signalled after the answer.
        "#!/usr/bin/env bash\nfor ((i = 0; i < 40; i++)); do [[ -e ${0%/*}/gone ]] || sleep 0.05; done\n"
        f'[[ $* == "show job 7" ]] && echo "JobState=COMPLETING Reason={reason} X=1"\n',
    )
    text = sbatch.script(file="a b.toml", grace_s=1.0, options={}, path=str(tmp_path))
    out = tmp_path / "out.txt"
    with out.open("w") as file:
        job = subprocess.Popen(
            ["bash", "-c", text],
            stdout=file,
            stderr=file,
            env={**os.environ, "SLURM_NTASKS": "8", "SLURM_JOB_ID": "7"},
        )
    try:
        wait_until(lambda: "ranks" in out.read_text(), "the start", seconds=10)
        job.send_signal(number)
        assert job.wait(30) == 75
    finally:
        job.kill()
    lines = out.read_text().splitlines()
    assert lines[:2] == ["ranks: run a b.toml --ranks 8", "warned"]
    assert ("again: slurm a b.toml --requeue 75" in lines) is again


def test_a_signal_that_comes_while_the_campaign_starts_is_passed_on(tmp_path: Path) -> None:
    program(tmp_path, "hpo", FAKE)
    text = sbatch.script(file="c.toml", grace_s=1.0, options={}, path=str(tmp_path))
    started = f"until [[ -s {tmp_path}/out.txt ]]; do sleep 0.01; done"
    assert text.count("campaign=$!") == 1
    with (tmp_path / "out.txt").open("w") as file:
        done = subprocess.run(
            ["bash", "-c", text.replace("campaign=$!", f"{started}; kill -TERM $$; campaign=$!")],
            env={**os.environ, "SLURM_NTASKS": "8", "SLURM_JOB_ID": "7"},
            stdout=file, stderr=file, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 75
    assert (tmp_path / "out.txt").read_text().splitlines() == ["ranks: run c.toml --ranks 8", "warned"]


@pytest.mark.parametrize(
    ("returned", "says", "ends"), [(137, 75, 75), (137, 0, 0), (1, 1, 1), (75, 1, 1), (0, 75, 0)]
)
def test_whatever_the_launcher_returns_the_journal_is_asked(
    tmp_path: Path, returned: int, says: int, ends: int
) -> None:
    program(tmp_path, "hpo", FAKE)
    done = run_script(tmp_path, SLURM_NTASKS="8", RETURNS=str(returned), JOURNAL_SAYS=str(says))
    assert done.returncode == ends
    assert (f"again: slurm c.toml --requeue {returned}\n" in done.stdout) is (returned != 0)


def test_srun_gets_the_number_of_cpus_that_the_job_has(tmp_path: Path) -> None:
    """It takes none from the job's environment, since Slurm 22.05."""
    fake = program(tmp_path, "srun", '#!/usr/bin/env bash\necho "$0" "$@"\n')
    given = run_script(tmp_path, start="srun", SLURM_CPUS_PER_TASK="8").stdout
    assert given == f"{fake} --mpi=pmix --cpus-per-task=8 hpo run c.toml\n"
    assert run_script(tmp_path, start="srun").stdout == f"{fake} --mpi=pmix hpo run c.toml\n"


# --- again or not -------------------------------------------------------------------------------------------


ENDED = {"type": "ended", "reason": "stopped", "exit": 75, "time": 9.0}


def write_launch(
    directory: Path,
    number: int,
    *ends: tuple[str, str | None],
    job: str = "",
    end: dict[str, object] | None = ENDED,
) -> None:
    """A launch that finished individuals with these statuses and errors. ``end``: None where it was killed."""
    records = [
        journals.finished(f"0-0-{number}", status=status, error=error)
        for number, (status, error) in enumerate(ends)
    ]
    journals.write(directory, [*records, *([end] if end else [])], number, job=job or f"7.{number - 1}")


class Queue:
    """Attempts at job 7 of a campaign of 5 evaluations."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.name = "7"
        self.requeued = 0
        self.refusals: list[str] = []
        self._settings = from_keywords(directory=directory, evaluations=5)

    def call(self, line: list[str], *rest: object) -> tuple[int, str, str]:
        assert line == ["scontrol", "requeue", self.name]
        if self.refusals:
            return 1, "", self.refusals.pop()
        self.requeued += 1
        return 0, "", ""

    def after(self, number: int, returned: int) -> tuple[int, str]:
        """What becomes of attempt ``number``, whose launcher returned that."""
        return sbatch.requeue(self._settings, SlurmAttempt("7", number), returned)


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Queue:
    queue = Queue(tmp_path)
    monkeypatch.setattr(sbatch, "call", queue.call)
    return queue


AGAIN = (75, "")


def test_a_job_that_gets_nothing_done_again_and_again_leaves_the_queue(queue: Queue) -> None:
    write_launch(queue.directory, 1, ("completed", None))
    write_launch(queue.directory, 2)
    write_launch(queue.directory, 3, ("interrupted", "ended by the campaign"))
    assert queue.after(2, 75) == AGAIN
    write_launch(queue.directory, 4)
    with pytest.raises(CampaignError, match="3 launches in a row finished no evaluation"):
        queue.after(3, 75)
    write_launch(queue.directory, 5, ("interrupted", None))  # it saved itself, and will go on from there
    assert queue.after(4, 75) == AGAIN
    write_identity(queue.directory, {})
    give(queue.directory, Stop(**asked()))
    code, sentence = queue.after(4, 75)
    assert code == 75 and "hpo stop" in sentence
    assert queue.requeued == 2


def test_slurm_is_asked_again_while_its_controller_does_not_answer(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sbatch, "_PAUSE_S", 0.0)
    write_launch(queue.directory, 1, ("completed", None))
    queue.refusals = ["Unable to contact slurm controller"] * 3
    assert queue.after(0, 75) == AGAIN
    queue.refusals = ["Access denied"] * 3
    monkeypatch.setattr(sbatch, "_REQUEUE_S", 0.0)
    with pytest.raises(CampaignError, match="Access denied"):
        queue.after(0, 75)


@pytest.mark.parametrize(
    ("ends", "end", "job", "returned", "after"),
    [
        # A launch that was killed goes on in the queue, whatever its launcher returned.
        (1, None, "", 137, AGAIN),
        (1, None, "", 1, AGAIN),
        (4, None, "", 137, AGAIN),
        (5, None, "", 137, (0, "campaign is complete")),
        # A launch that came to its end is believed, as where a rank dies while MPI ends.
        (1, 0, "", 137, (0, "")),
        (1, 1, "", 137, (1, "")),
        # An earlier job's launch says nothing of a job whose own never began.
        (1, 0, "6.0", 1, (1, "")),
        (1, 0, "6.0", 2, (2, "")),
        (1, 0, "6.0", 75, AGAIN),
        (1, 0, "6.0", 137, AGAIN),
    ],
)
def test_a_job_goes_into_the_queue_again_where_its_campaign_can_go_on(
    queue: Queue, ends: int, end: int | None, job: str, returned: int, after: tuple[int, str]
) -> None:
    ended = None if end is None else {**ENDED, "exit": end}
    write_launch(queue.directory, 1, *[("completed", None)] * ends, job=job, end=ended)
    code, sentence = queue.after(0, returned)
    assert code == after[0] and after[1] in sentence
    assert queue.requeued == (after == AGAIN)


def test_attempts_that_never_begin_come_to_an_end_too(queue: Queue) -> None:
    assert [queue.after(number, 137) for number in range(2)] == [AGAIN] * 2
    with pytest.raises(CampaignError, match="3 launches in a row"):
        queue.after(2, 137)
    write_launch(queue.directory, 1, ("completed", None))
    for number in 1, 2:
        assert queue.after(number, 137) == AGAIN
    with pytest.raises(CampaignError, match="3 launches in a row"):
        queue.after(3, 137)
    # Together with those that began and got nothing done.
    write_launch(queue.directory, 2, job="7.4")
    assert queue.after(4, 75) == AGAIN
    assert queue.after(5, 75) == AGAIN
    with pytest.raises(CampaignError, match="3 launches in a row"):
        queue.after(6, 75)


def test_the_last_task_of_an_array_is_put_into_the_queue_again_alone(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the number of the array, which would name all tasks."""
    task = {"SLURM_JOB_ID": "7", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}
    for name, value in task.items():
        monkeypatch.setenv(name, value)
    queue.name = "7_3"
    assert queue.after(0, 137) == AGAIN and queue.requeued == 1
    assert slurm_name({**task, "SLURM_JOB_ID": "8"}) == "8" and slurm_name({}) == ""


def test_the_attempt_at_a_job_is_known_from_the_environment() -> None:
    assert slurm_attempt({}) is None
    assert slurm_attempt({"SLURM_JOB_ID": "x"}) is None
    assert slurm_attempt({"SLURM_JOB_ID": "7"}) == SlurmAttempt("7", 0)
    assert slurm_attempt({"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "12"}) == SlurmAttempt("7", 12)
    assert SlurmAttempt.parse(str(SlurmAttempt("7", 12))) == SlurmAttempt("7", 12)
    assert [SlurmAttempt.parse(text) for text in ("", "7", "7.x", "7.1.2", f"7.{'1' * 5000}")] == [None] * 5


# --- what Slurm says ----------------------------------------------------------------------------------------


def test_a_job_is_read() -> None:
    shown = "JobId=7 StartTime=2026-11-21T10:00:00 EndTime=2026-11-21T18:30:00 Deadline=N/A"
    job = slurm_job.read_job(shown, "KillOnBadExit = 0\nKillWait                = 30 sec\n")
    assert time.localtime(job.end)[:6] == (2026, 11, 21, 18, 30, 0)
    assert job.kill_wait_s == 30
    assert job.must_end(None) == job.end - 5
    assert job.must_end(1000.0) == 1025.0
    unlimited = slurm_job.read_job("JobId=7 EndTime=Unknown", "")
    assert unlimited.must_end(None) == float("inf")


@pytest.mark.parametrize(("tasks", "slots"), [("4(x3),2", (4, 4, 4, 2)), ("2", (2,) * 4), ("", (1,) * 4)])
def test_hosts_of_an_allocation_are_read(
    monkeypatch: pytest.MonkeyPatch, tasks: str, slots: tuple[int, ...]
) -> None:
    monkeypatch.setattr(slurm_job, "call", lambda line: (0, "n0\nn1\nn2\nn3\n", ""))
    monkeypatch.setattr("shutil.which", lambda name: name)
    found = slurm_job.allocation({"SLURM_JOB_NODELIST": "n[0-3]", "SLURM_TASKS_PER_NODE": tasks})
    assert found == tuple(Host(f"n{number}", count) for number, count in enumerate(slots))


def test_states_are_read() -> None:
    told = "n0 allocated\nn1 down\nn2 idle*\nn3 draining\nn4 down*\nn5 mixed\nn6 fail\n"
    assert slurm_job.read_states(told) == {"n1", "n2", "n4", "n6"}


def test_outside_a_job_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_job, "call", lambda *line: pytest.fail(f"{line}"))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert slurm_job.limits() is None
    assert slurm_job.allocation({}) is None
