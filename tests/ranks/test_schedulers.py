"""PBS, LSF and Flux, by stand-ins for their commands on the path that print what these print."""

from __future__ import annotations

import math
import os
import stat
import time
from pathlib import Path

import pytest
from cases import cases
from namespaces import LOGIN, Hosts
from places import JOBS
from programs import called
from terminal import Terminal

from hpo.cluster import schedulers
from hpo.cluster.hosts import Host
from hpo.cluster.schedulers import Allocation, expanded

QSTAT = """[[ $* == "-f 12.pbs1" ]] || exit 153
printf 'Job Id: 12.pbs1\\n    Job_Name = hpo\\n    resources_used.walltime = 00:00:10\\n    job_state = R\\n'
printf '    exec_host = n1/0*8+n2/0*8\\n    Resource_List.walltime = 00:10:00\\n'
printf '    Variable_List = PBS_O_HOME=/home/user,\\n\\tPBS_O_WORKDIR=/home/user\\n    stime = %s\\n\\n' "BEGAN"
"""
TORQUE = (
    "printf 'Job Id: 12.pbs1\\n    start_time = Thu Feb 22 14:27:48 2018\\n    Walltime.Remaining = 3593\\n'"
)
BJOBS = '[[ $* == "-noheader -o time_left 7[2]" ]] && echo "SAID"'
FLUX = """case "$*" in
    "job timeleft") echo SAID ;;
    "resource list --no-header --states=free,allocated --format {nnodes} {ncores} {ngpus} {nodelist}")
        printf '%s\\n' "2 128 8 n[1-2]" "0 0 0 " ;;
    *) exit 1 ;;
esac
"""
PBS, LSF, FLUX_URI = (
    {"PBS_JOBID": "12.pbs1"},
    {"LSB_JOBID": "7", "LSB_BATCH_JID": "7[2]"},
    {"FLUX_URI": "local:///x"},
)


def stand_in(folder: Path, name: str, script: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("SLURM_JOB_ID", *PBS, *LSF, *FLUX_URI):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return tmp_path / "bin"


def test_hosts_and_slots_of_a_job(programs: Path, tmp_path: Path) -> None:
    lines = tmp_path / "nodes"
    lines.write_text("n1\nn1\nn2\nn2\n")
    stand_in(programs, "flux", FLUX)
    for name, environment, slots in (
        ("PBS", PBS | {"PBS_NODEFILE": str(lines)}, 2),
        ("LSF", LSF | {"LSB_MCPU_HOSTS": "n1 2 n2 2"}, 2),
        ("LSF", LSF | {"LSB_DJOB_HOSTFILE": str(lines)}, 2),
        ("Flux", FLUX_URI, 4),
    ):
        found = schedulers.allocation(environment)
        assert found is not None and found.hosts == (Host("n1", slots), Host("n2", slots)), name
        assert found.room[1] == f"cores of the hosts of this {name} job"
    lines.write_text("n1\nn1\n")
    nothing = [PBS, LSF, {}, PBS | {"PBS_NODEFILE": str(lines)}, LSF | {"LSB_MCPU_HOSTS": "n1 2 n2"}]
    stand_in(programs, "flux", "echo '2 128 8'")
    assert [schedulers.allocation(environment) for environment in (*nothing, FLUX_URI)] == [None] * 6
    assert schedulers.allocation(FLUX_URI | {"SLURM_JOB_ID": "7"}) is None


def test_ranks_are_shared_out_in_whole_workers_unless_slots_were_asked_for() -> None:
    def slots(*asked: int, ranks: int, size: int) -> list[int]:
        hosts = tuple(Host(f"n{number}", count) for number, count in enumerate(asked))
        job = Allocation(schedulers._SCHEDULERS[0], hosts)
        return [host.slots for host in job.shared_out(ranks, [size])]

    assert slots(1, 8, 8, ranks=17, size=1) == [1, 8, 8]
    assert slots(64, 64, 64, ranks=6, size=2) == [2] * 3
    assert slots(64, 64, ranks=12, size=4) == [8] * 2
    assert slots(1, 1, ranks=16, size=4) == [8] * 2


def test_a_list_of_hosts_is_expanded() -> None:
    assert expanded("a[08-10,12],b,c[1]-x") == ["a08", "a09", "a10", "a12", "b", "c1-x"]
    assert expanded("") == []


@pytest.mark.parametrize(
    ("job", "command", "script", "left_s"),
    [
        (PBS, "qstat", QSTAT, 500),
        (PBS, "qstat", QSTAT.replace("walltime = 00:10", "walltim = 00:10"), math.inf),
        (PBS, "qstat", QSTAT.replace("stime", "etime"), math.inf),
        (PBS, "qstat", TORQUE, 3593),
        (PBS, "qstat", "exit 35", math.inf),
        (LSF, "bjobs", BJOBS.replace("SAID", "0:12 L"), 720),
        (LSF, "bjobs", BJOBS.replace("SAID", "01:00:05 X"), 3605),
        (LSF, "bjobs", BJOBS.replace("SAID", "-"), math.inf),
        (LSF, "bjobs", "", math.inf),
        (FLUX_URI, "flux", FLUX.replace("SAID", "3600"), 3600),
        (FLUX_URI, "flux", FLUX.replace("SAID", str(2**32 - 1)), math.inf),
    ],
)
def test_the_time_left_of_a_job(
    programs: Path,
    monkeypatch: pytest.MonkeyPatch,
    job: dict[str, str],
    command: str,
    script: str,
    left_s: float,
) -> None:
    stand_in(programs, command, script.replace("BEGAN", time.ctime(time.time() - 100)))
    for name, value in job.items():
        monkeypatch.setenv(name, value)
    limits = schedulers.limits()
    assert limits is not None and limits.end - time.time() == pytest.approx(left_s, abs=5)
    assert limits.must_end(1000.0) == 1000 + (5 if job is FLUX_URI else 10) - 5


@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    ("agent", "variables"),
    cases(
        [("pbs_tmrsh", PBS)], nightly=[("blaunch", {"LSB_JOBID": "7", "LSB_MCPU_HOSTS": f"{LOGIN} 8 n1 8"})]
    ),
)
def test_a_campaign_uses_all_hosts_of_its_job_and_stops_before_its_end(
    terminal: Terminal, agent: str, variables: dict[str, str]
) -> None:
    """The scheduler's own program starts what runs on the other host: there is no ssh."""
    terminal.saving_task(2000)
    terminal.campaign("evaluation.grace = 5", evaluations=4, task="saving.py:task")
    nodes = terminal.write("nodes", f"{LOGIN}\nn1\n")
    began = time.ctime(time.time() - 565)
    with Hosts(terminal, "n1") as hosts:
        programs = terminal.directory / "hosts.d/bin"
        (programs / "ssh").rename(programs / agent)
        stand_in(programs, "ssh", "exit 255")
        stand_in(programs, "qstat", QSTAT.replace("BEGAN", began))
        stand_in(programs, "bjobs", "echo 00:00:35 L")
        terminal.environment |= variables | {"PBS_NODEFILE": str(nodes)}
        done = hosts.start("run", "c.toml", "--ranks", 2).wait(100, returns=75)
    assert {record["host"] for record in terminal.records("header")} == {LOGIN, "n1"}, done.stderr
    ended = terminal.records("ended")[-1]
    assert (ended["reason"], ended["exit"]) == ("stopped", 75)


@pytest.mark.parametrize("name", ["pbs", "lsf", "flux"])
def test_a_script_submits_itself_again_while_its_campaign_can_go_on(
    programs: Path, tmp_path: Path, name: str
) -> None:
    (tmp_path / "jobs").symlink_to(JOBS)
    submit = 'echo "$* ${left-}" >> submitted.txt; cat > /dev/null'
    for command in ("qsub", "bsub"):
        stand_in(programs, command, submit)
    stand_in(programs, "flux", f"[[ $1 == resource ]] && echo 8 || {{ {submit}; }}")
    stand_in(programs, "hpo", 'echo "$*" >> ran.txt; [[ ! -e cancel ]] || kill -TERM $PPID; exit "$(<code)"')
    (tmp_path / "nodes").write_text("n1\n" * 8)
    environment = {
        **os.environ,
        "PBS_O_WORKDIR": str(tmp_path),
        "PBS_NODEFILE": str(tmp_path / "nodes"),
        "LSB_DJOB_NUMPROC": "8",
        "file": "my campaign.toml",
    }
    ran, submitted = tmp_path / "ran.txt", tmp_path / "submitted.txt"
    for code, left, again in ((75, "", 19), (75, "2", 1), (75, "1", None), (0, "", None), (1, "", None)):
        (tmp_path / "code").write_text(str(code))
        submitted.unlink(missing_ok=True)
        script = JOBS / f"{name}.sh"
        called(
            "bash",
            str(script),
            returns=code,
            cwd=tmp_path,
            env=environment | ({"left": left} if left else {}),
        )
        assert ran.read_text().splitlines()[-1] == "run my campaign.toml --ranks 8"
        assert submitted.exists() is (again is not None)
        assert again is None or str(again) in submitted.read_text()
    (tmp_path / "code").write_text("75")
    (tmp_path / "cancel").touch()
    called("bash", str(script), returns=75, cwd=tmp_path, env=environment)
    assert not submitted.exists()
