"""Under which address the ranks of a worker reach each other. A worker on one host never listens beyond 127.0.0.1."""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Sequence

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
        return address_of(interface)
    try:
        # Connecting a datagram socket sends nothing: the kernel only looks up which way leads there.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((others[0], 9))
            address = str(probe.getsockname()[0])
    except OSError as error:
        raise CampaignError(
            f"{hosts[worker_rank]} finds no way to {others[0]}, where another rank of its worker runs: {error}. "
            'Name the network interface that connects them: interface = "ib0" in [evaluation].'
        ) from error
    if address.startswith("127."):
        raise CampaignError(
            f"{hosts[worker_rank]} reaches {others[0]}, where another rank of its worker runs, only as {address}. "
            'Name the network interface that connects them: interface = "ib0" in [evaluation].'
        )
    return address


def address_of(interface: str) -> str:
    """The IPv4 address of a network interface; CampaignError, naming those there are, when it has none."""
    address = _query(interface)
    if address is None:
        known = ", ".join(name for _, name in socket.if_nameindex())
        raise CampaignError(
            f"network interface {interface!r} has no IPv4 address on {socket.gethostname()}: "
            f"set interface in [evaluation] to one that has. There are {known}."
        )
    return address


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
