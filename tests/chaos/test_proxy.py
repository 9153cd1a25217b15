"""The proxy forwards bytes unchanged, and cuts connections at the requested place."""

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
    """Accepts one connection and stores what it receives until the connection ends."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.received = b""
        self.ended_by: str = ""
        self.answer = b""
        """Sent after each piece that is received."""
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
                    self.received += data
                    connection.sendall(self.answer)
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


def test_bytes_are_forwarded_unchanged_in_any_split(peer: Peer, client: tuple[Proxy, socket.socket]) -> None:
    _, connection = client
    sent = HEADER + frame(8) + frame(100) + frame(5000)
    for at in range(0, len(sent), 7):
        connection.sendall(sent[at : at + 7])
    connection.shutdown(socket.SHUT_WR)
    peer.join()
    assert peer.received == sent


@pytest.mark.parametrize(("frames", "into"), [(0, 0), (1, 0), (2, 3), (3, 50)])
def test_a_connection_is_cut_after_so_many_frames_and_bytes(
    peer: Peer, client: tuple[Proxy, socket.socket], frames: int, into: int
) -> None:
    proxy, connection = client
    proxy.cut(Cut(which=0.5, from_broker=False, frames=frames, into=into, reset=False))
    sent = [HEADER, frame(20), frame(100), frame(200), frame(300)]
    connection.sendall(b"".join(sent))
    peer.join()
    assert peer.received == b"".join(sent[:frames]) + sent[frames][:into]
    assert peer.ended_by == "end"


def test_a_connection_is_cut_in_the_frames_of_the_broker(peer: Peer, client: tuple[Proxy, socket.socket]) -> None:
    proxy, connection = client
    proxy.cut(Cut(which=0.0, from_broker=True, frames=2, into=3, reset=False))
    peer.answer = HEADER + frame(50) + frame(60)
    connection.sendall(HEADER)
    said = b""
    while data := connection.recv(4096):
        said += data
    assert said == peer.answer[:61]


def test_a_cut_waits_for_a_connection_to_be_made(peer: Peer) -> None:
    proxy = Proxy(lambda: peer.port)
    proxy.cut(Cut(which=0.0, from_broker=False, frames=0, into=3, reset=False))
    with socket.create_connection(("127.0.0.1", proxy.port), SECONDS) as connection:
        connection.sendall(HEADER)
        peer.join()
    assert peer.received == HEADER[:3]
    proxy.stop()


def test_after_cuts_are_cancelled_no_new_connection_is_cut(peer: Peer) -> None:
    proxy = Proxy(lambda: peer.port)
    proxy.cut(Cut(which=0.0, from_broker=False, frames=0, into=0, reset=False))
    proxy.cancel_cuts()
    with socket.create_connection(("127.0.0.1", proxy.port), SECONDS) as connection:
        connection.sendall(HEADER)
        connection.shutdown(socket.SHUT_WR)
        peer.join()
    assert peer.received == HEADER
    proxy.stop()


def test_a_connection_can_be_reset(peer: Peer, client: tuple[Proxy, socket.socket]) -> None:
    proxy, connection = client
    proxy.cut(Cut(which=0.0, from_broker=False, frames=0, into=0, reset=True))
    connection.sendall(HEADER)
    peer.join()
    assert peer.ended_by == "reset"


def test_an_idle_connection_is_cut_too(peer: Peer, client: tuple[Proxy, socket.socket]) -> None:
    proxy, connection = client
    proxy.cut(Cut(which=0.0, from_broker=True, frames=5, into=0, reset=False))
    assert connection.recv(1) == b""
