"""Hosts on this machine, made of namespaces: each has a name, a network, shared memory and processes of its own.

Processes hold them, and nothing else does: they have no names in the system that could clash or be left over, and
they end with the process that made them, however that ends. Needs Linux, root and iproute2."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from benchmarks.two_nodes import Unavailable, call, check_tools
from skips import not_possible_here
from terminal import HPO, Command, Terminal

LOGIN = "login"

_HOLD = """
set -e
echo {name} > /proc/sys/kernel/hostname
mount -t tmpfs shm /dev/shm
mount --bind {hosts} /etc/hosts
ip link set lo up
echo ready
{hold}
"""
"""What holds a host: its first process."""

_SSH = """#!/bin/bash
# ssh [OPTIONS] HOST COMMAND: what it starts has no environment of the caller's, and it waits for a host that is silent.
while [[ $1 == -* ]]; do [[ $1 == -o ]] && shift; shift; done
host=$1; shift
[[ -e {folder}/$host.pid ]] || exit 255
nsenter --all -t "$(<{folder}/$host.pid)" env -i TMPDIR=/dev/shm {variables} bash -c "$*"
code=$?
[[ ! -e {folder}/$host.silent ]] || exec sleep infinity
exit $code
"""
_VARIABLES = (
    "PATH",
    "HOME",
    "PYTHONPATH",
    "OMP_NUM_THREADS",
    "OMPI_ALLOW_RUN_AS_ROOT",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
)


class Hosts:
    """Hosts of these ``names`` for a ``with``, and one more on which commands are given: it reaches the others by
    ssh, as mpirun does, and has their names. On each network, which is an interface of every host, the first of
    ``names`` has the address 10.N.0.2; names stand for those on the first one, and a host's own for 127.0.1.1 where
    it is asked itself, as on Debian. ``resolving``: whether hosts have each other's names, too."""

    def __init__(
        self, terminal: Terminal, *names: str, networks: Sequence[str] = ("eth0",), resolving: bool = True
    ) -> None:
        self._terminal = terminal
        self._folder = terminal.directory / "hosts.d"
        self._names = (LOGIN, *names)
        self._networks = tuple(networks)
        self._resolving = resolving
        self._holders: dict[str, subprocess.Popen[str]] = {}
        self._pids: dict[str, int] = {}

    def __enter__(self) -> Hosts:
        need_namespaces()
        self._folder.mkdir()
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._remove()

    def address(self, name: str, network: str = "eth0") -> str:
        return f"10.{self._networks.index(network)}.0.{self._names.index(name) + 1}"

    def start(self, *arguments: object) -> Command:
        """``hpo`` with these arguments, given on the host for that."""
        ssh = self._folder / "bin"
        environment = {**self._terminal.environment, "TMPDIR": "/dev/shm"}
        environment["PATH"] = f"{ssh}{os.pathsep}{environment['PATH']}"
        line = [*self._inside(LOGIN), *HPO, *map(str, arguments)]
        return Command(self._terminal, line, environment)

    def kill(self, name: str, *, power: bool = False) -> None:
        """All its processes at once, and then nothing answers there any more. Its connections are closed, as those of
        a host that is shut down; with ``power`` nothing leaves it from the first moment on, as where power fails."""
        if power:
            self._silence(name)
        (self._folder / f"{name}.pid").unlink()
        os.kill(self._pids[name], signal.SIGKILL)
        self._holders[name].wait(10)

    def cut_off(self, name: str) -> None:
        """Its networks go, for good; its processes run on, and reach the file system."""
        self._silence(name)
        (self._folder / f"{name}.pid").unlink()

    def freeze(self, name: str) -> None:
        """Its networks go, and its processes stop, as where a virtual machine is suspended."""
        self.cut_off(name)
        self._signal(name, signal.SIGSTOP)

    def wake(self, name: str) -> None:
        """Its networks and its processes go on after ``freeze``; no new command reaches it."""
        self._link(name, "up")
        self._signal(name, signal.SIGCONT)

    def _silence(self, name: str) -> None:
        (self._folder / f"{name}.silent").touch()
        self._link(name, "down")

    def _link(self, name: str, state: str) -> None:
        for network in self._networks:
            self._ip(LOGIN, "link", "set", f"{name}-{network}", state)

    def _signal(self, name: str, number: signal.Signals) -> None:
        """To each process of the host but its first, until none is missed: those of a host share its PID namespace."""
        own = os.readlink(f"/proc/{self._pids[name]}/ns/pid")
        reached = {self._pids[name]}
        while new := set(_in_namespace(own)) - reached:
            for pid in new:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    pass
            reached |= new

    # --- making and removing --------------------------------------------------------------------------------------

    def _make(self) -> None:
        for name in self._names:
            self._hold(name)
        for number, network in enumerate(self._networks):
            bridge = f"bridge{number}"
            # Left to itself it takes one of its plugs' addresses, and another when that one is pulled.
            hardware = f"02:00:00:00:00:{number:02x}"
            self._ip(LOGIN, "link", "add", bridge, "address", hardware, "type", "bridge")
            self._ip(LOGIN, "address", "add", f"{self.address(LOGIN, network)}/24", "dev", bridge)
            self._ip(LOGIN, "link", "set", bridge, "up")
            for name in self._names[1:]:
                plug = f"{name}-{network}"
                # Both ends are born inside: nothing is ever seen, or has to be unique, outside.
                call(
                    *("ip", "link", "add", network, "netns", str(self._pids[name]), "type", "veth"),
                    *("peer", "name", plug, "netns", str(self._pids[LOGIN])),
                )
                self._ip(name, "address", "add", f"{self.address(name, network)}/24", "dev", network)
                self._ip(name, "link", "set", network, "up")
                self._ip(LOGIN, "link", "set", plug, "master", bridge, "up")
        programs = self._folder / "bin"
        programs.mkdir()
        environment = self._terminal.environment
        kept = [name for name in environment if name in _VARIABLES or name.endswith("_MARK")]
        variables = " ".join(f"{name}='{environment[name]}'" for name in kept)
        (programs / "ssh").write_text(_SSH.format(folder=self._folder, variables=variables))
        (programs / "ssh").chmod(0o755)

    def _hold(self, name: str) -> None:
        known = self._names if self._resolving or name == LOGIN else ()
        hosts = self._folder / f"{name}.hosts"
        hosts.write_text(
            f"127.0.0.1 localhost\n127.0.1.1 {name}\n"
            + "".join(f"{self.address(other)} {other}\n" for other in known if other != name)
        )
        # The one for commands sees all processes: it could not start any on the others otherwise.
        own = [] if name == LOGIN else ["--pid", "--fork", "--kill-child", "--mount-proc"]
        # A shell that waits takes in orphans, as an init does.
        hold = "exec sleep infinity" if name == LOGIN else "sleep infinity & wait"
        script = _HOLD.format(name=name, hosts=hosts, hold=hold)
        unshare = ("unshare", "--net", "--uts", "--ipc", "--mount", *own)
        holder = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *unshare, "bash", "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._holders[name] = holder
        assert holder.stdout is not None and holder.stderr is not None
        if holder.stdout.readline() != "ready\n":
            raise Unavailable(f"host {name}: {holder.stderr.read().strip()}")
        children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()
        self._pids[name] = holder.pid if name == LOGIN else int(children[0])
        (self._folder / f"{name}.pid").write_text(str(self._pids[name]))

    def _inside(self, name: str) -> list[str]:
        """What stands before a command to make it run on a host."""
        there = f"--wd={self._terminal.directory}"
        return ["nsenter", "--net", "--uts", "--ipc", "--mount", there, "-t", str(self._pids[name])]

    def _ip(self, name: str, *words: str) -> None:
        call(*self._inside(name), "ip", *words)

    def _remove(self) -> None:
        # What runs on the host for commands would keep it.
        self._terminal.kill()
        for holder in self._holders.values():
            holder.kill()
            holder.communicate(timeout=10)


def _in_namespace(namespace: str) -> Iterator[int]:
    """Ids of the processes in a PID namespace."""
    for pid in psutil.pids():
        try:
            if os.readlink(f"/proc/{pid}/ns/pid") == namespace:
                yield pid
        except OSError:  # it ended meanwhile
            continue


def need_namespaces() -> None:
    """Skip where this process cannot make hosts; what has to be installed for it says so."""
    try:
        check_tools()
        call("unshare", "--net", "ip", "link", "add", "x", "type", "bridge")
    except Unavailable as reason:
        pytest.skip(str(reason)) if "Install" in str(reason) else not_possible_here(str(reason))


def cut_off_host(name: str) -> list[str]:
    """What stands before a command to run it on a host of its own that no network reaches. The host dies with the
    process that this makes, however that ends. Needs Linux and root."""
    script = f'echo {name} > /proc/sys/kernel/hostname; mount -t tmpfs shm /dev/shm; ip link set lo up; "$@"; exit $?'
    spaces = ("--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
    return ["unshare", *spaces, "bash", "-c", script, name]
