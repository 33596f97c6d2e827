"""How ranks reach each other, as far as one host can tell."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest

from hpo.errors import CampaignError
from hpo.evaluation import network


def test_one_host_is_the_loopback_whatever_the_interface() -> None:
    assert network.own_address(("a", "a"), 1, "ib0") == "127.0.0.1"


def test_interface_that_was_named_gives_the_address() -> None:
    assert network.own_address(("a", "b"), 0, "lo") == "127.0.0.1"
    assert network.interface_of("127.0.0.1") == "lo" and network.interface_of("192.0.2.77") is None


@pytest.mark.parametrize(
    ("host", "interface", "words"),
    [
        ("b", "ib7", r"'ib7' has no IPv4 address .*\blo\b"),
        ("localhost", None, r"localhost.*127\.0\.0\.1.*interface"),
        ("nowhere.invalid", None, r"nowhere\.invalid.*interface"),
    ],
)
def test_a_host_that_cannot_be_reached_is_refused(host: str, interface: str | None, words: str) -> None:
    with pytest.raises(CampaignError, match=words):
        network.own_address(("a", host), 0, interface)


def test_shut_connection_ends_both_ways_but_not_the_stores_nor_a_listener() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with closing(socket.create_connection(("127.0.0.1", port))) as client:
            accepted, _ = server.accept()
            with accepted:
                assert {client.fileno(), server.fileno()} <= set(network.open_sockets())
                network.shut_connection(client.fileno(), keep_port=port)
                network.shut_connection(server.fileno(), keep_port=0)
                client.sendall(b"still there")
                assert accepted.recv(100) == b"still there"
                network.shut_connection(client.fileno(), keep_port=0)
                assert accepted.recv(100) == b""
        socket.create_connection(("127.0.0.1", port)).close()
    network.shut_connection(10_000, keep_port=0)
