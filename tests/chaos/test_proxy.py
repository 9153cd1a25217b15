"""The proxy passes bytes on as they are, and cuts where it is told."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from tools.chaos.proxy import Cut, Proxy

HEADER = b"AMQP\0\1\0\0"
SECONDS = 20


def frame(size: int) -> bytes:
    return size.to_bytes(4) + bytes((2, 0, 0, 0)) + b"x" * (size - 8)


class Peer:
    """Takes one connection and keeps what it hears until that ends."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.heard = b""
        self.ended_by: str = ""
        self.says = b""
        """Once it has heard something."""
        self.connected = threading.Event()
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        connection, _ = self._socket.accept()
        connection.settimeout(SECONDS)
        self.connected.set()
        with connection:
            try:
                while data := connection.recv(4096):
                    self.heard += data
                    connection.sendall(self.says)
                self.ended_by = "end"
            except ConnectionResetError:
                self.ended_by = "reset"

    def join(self) -> None:
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()
        self._socket.close()


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.join()


@pytest.fixture
def client(peer: Peer) -> Iterator[tuple[Proxy, socket.socket]]:
    proxy = Proxy(lambda: peer.port)
    with socket.create_connection(("127.0.0.1", proxy.port), SECONDS) as connection:
        assert peer.connected.wait(SECONDS)
        yield proxy, connection
    peer.join()
    proxy.stop()


def test_bytes_pass_as_they_are_however_they_are_cut_up(peer: Peer, client: tuple[Proxy, socket.socket]) -> None:
    _, connection = client
    sent = HEADER + frame(8) + frame(100) + frame(5000)
    for at in range(0, len(sent), 7):
        connection.sendall(sent[at : at + 7])
    connection.shutdown(socket.SHUT_WR)
    peer.join()
    assert peer.heard == sent


@pytest.mark.parametrize(("frames", "into"), [(0, 0), (1, 0), (2, 3), (3, 50)])
def test_a_connection_is_cut_after_so_many_frames_and_bytes(
    peer: Peer, client: tuple[Proxy, socket.socket], frames: int, into: int
) -> None:
    proxy, connection = client
    proxy.cut(Cut(which=0.5, from_broker=False, frames=frames, into=into, reset=False))
    sent = [HEADER, frame(20), frame(100), frame(200), frame(300)]
    connection.sendall(b"".join(sent))
    peer.join()
    assert peer.heard == b"".join(sent[:frames]) + sent[frames][:into]
    assert peer.ended_by == "end"


def test_a_connection_is_cut_in_what_the_broker_says(peer: Peer, client: tuple[Proxy, socket.socket]) -> None:
    proxy, connection = client
    proxy.cut(Cut(which=0.0, from_broker=True, frames=2, into=3, reset=False))
    peer.says = HEADER + frame(50) + frame(60)
    connection.sendall(HEADER)
    said = b""
    while data := connection.recv(4096):
        said += data
    assert said == peer.says[:61]


def test_a_cut_waits_for_a_connection_to_be_made(peer: Peer) -> None:
    proxy = Proxy(lambda: peer.port)
    proxy.cut(Cut(which=0.0, from_broker=False, frames=0, into=3, reset=False))
    with socket.create_connection(("127.0.0.1", proxy.port), SECONDS) as connection:
        connection.sendall(HEADER)
        peer.join()
    assert peer.heard == HEADER[:3]
    proxy.stop()


def test_a_proxy_that_relents_cuts_no_new_connection(peer: Peer) -> None:
    proxy = Proxy(lambda: peer.port)
    proxy.cut(Cut(which=0.0, from_broker=False, frames=0, into=0, reset=False))
    proxy.relent()
    with socket.create_connection(("127.0.0.1", proxy.port), SECONDS) as connection:
        connection.sendall(HEADER)
        connection.shutdown(socket.SHUT_WR)
        peer.join()
    assert peer.heard == HEADER
    proxy.stop()


def test_a_connection_can_be_reset(peer: Peer, client: tuple[Proxy, socket.socket]) -> None:
    proxy, connection = client
    proxy.cut(Cut(which=0.0, from_broker=False, frames=0, into=0, reset=True))
    connection.sendall(HEADER)
    peer.join()
    assert peer.ended_by == "reset"


def test_a_connection_on_which_nothing_passes_is_cut_as_well(peer: Peer, client: tuple[Proxy, socket.socket]) -> None:
    proxy, connection = client
    proxy.cut(Cut(which=0.0, from_broker=True, frames=5, into=0, reset=False))
    assert connection.recv(1) == b""
