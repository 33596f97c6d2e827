"""How the ranks of a worker reach each other. A worker on one host never listens beyond 127.0.0.1."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress

from hpo.errors import CampaignError

_LOOPBACK = "127.0.0.1"
_SIOCGIFADDR = 0x8915


def own_address(hosts: Sequence[str], worker_rank: int, interface: str | None) -> str:
    """The IPv4 address of this rank's host that the other ranks of the worker reach.

    ``hosts``: host names by worker rank. Raises CampaignError when there is none but the loopback one.
    """
    others = [host for host in hosts if host != hosts[worker_rank]]
    if not others:
        return _LOOPBACK
    if interface is not None:
        if (named := _query(interface)) is not None:
            return named
        known = ", ".join(name for _, name in socket.if_nameindex())
        raise CampaignError(
            f"network interface {interface!r} has no IPv4 address on {socket.gethostname()}: "
            f"set interface in [evaluation] to an interface that has. There are {known}."
        )
    try:
        # Connecting a datagram socket sends nothing: the kernel only looks up which way leads there.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((others[0], 9))
            address = str(probe.getsockname()[0])
            reason = f"only {address} leads there"
    except OSError as error:
        address, reason = _LOOPBACK, str(error)
    if not address.startswith("127."):
        return address
    raise CampaignError(
        f"{hosts[worker_rank]} does not reach {others[0]}, where its worker has another rank: {reason}. "
        'Name the network interface that connects them: interface = "ib0" in [evaluation].'
    )


def interface_of(address: str) -> str | None:
    """The network interface that has this IPv4 address, None when there is none."""
    return next((name for _, name in socket.if_nameindex() if _query(name) == address), None)


def _query(interface: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", interface.encode()[:15])
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def open_sockets() -> dict[int, int]:
    """Inodes of this process's sockets by descriptor."""
    found: dict[int, int] = {}
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the descriptor of this very listing
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith("socket:"):
                found[int(name)] = int(target[len("socket:[") : -1])
    return found


def shut_connection(number: int, *, keep_port: int) -> None:
    """Close a connection both ways, unless it is the store's, by which the ranks find each other again.

    A listening socket is left as well: gloo ends the process when accepting fails.
    """
    # An OSError where it was closed meanwhile, an IndexError where it is no connection of the network at all.
    with suppress(OSError, IndexError), socket.socket(fileno=os.dup(number)) as connection:
        listens = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if not listens and keep_port not in (connection.getsockname()[1], connection.getpeername()[1]):
            connection.shutdown(socket.SHUT_RDWR)
