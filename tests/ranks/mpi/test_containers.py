"""Ranks in containers of their own, started by an mpirun outside: by unshare, with a /tmp and processes of each."""

from __future__ import annotations

import os

import pytest
from namespaces import need_namespaces
from terminal import HPO, Command, Terminal

from hpo.cluster.mpirun_command import find_mpirun


@pytest.mark.timeout(120)
def test_ranks_in_containers_with_their_own_tmp_and_processes_work_with_two_settings(
    terminal: Terminal,
) -> None:
    need_namespaces()
    terminal.task()
    terminal.campaign(evaluations=20)
    temporary = terminal.directory / "tmp"
    temporary.mkdir()
    terminal.environment |= {
        "TMPDIR": str(temporary),
        "PMIX_MCA_gds": "hash",
        "OMPI_MCA_btl": "tcp,self",
    }
    container = ["unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child", "--mount-proc", "sh", "-c"]
    inside = 'mount -t tmpfs tmpfs "$TMPDIR" && mount -t tmpfs tmpfs /dev/shm && exec "$@"'
    mpirun = [find_mpirun(), "-n", "3", "--map-by", ":OVERSUBSCRIBE"]
    line = [*mpirun, *container, inside, "sh", *HPO, "run", "c.toml"]
    Command(terminal, line, terminal.environment).wait(90, returns=0)
    finished = terminal.records("finished")
    assert len({record["id"] for record in finished}) == 20
    assert len(terminal.records("header")) == 3 and not os.listdir(temporary)
