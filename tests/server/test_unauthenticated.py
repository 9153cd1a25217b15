"""The memory of unauthenticated connections is limited; the connection that holds the most is dropped first."""

from __future__ import annotations

import socket

import pytest

from peeklock.amqp.frames import AMQP_HEADER, FRAME_HEADER
from peeklock.amqp.message import Message
from peeklock.client import connect
from peeklock.limits.server import Limits
from peeklock.server.unauthenticated import Unauthenticated
from raw_client import HOST, PATIENCE, RawClient, WebSocketStream, eventually
from serving import BrokerThread, StartBroker


class Client:
    def __init__(self) -> None:
        self.reasons: list[str] = []

    def drop(self, reason: str) -> None:
        self.reasons.append(reason)


def test_the_connection_that_holds_the_most_is_dropped_first() -> None:
    clients = [Client() for _ in range(4)]
    pool = Unauthenticated(100)
    for client, size in zip(clients, (10, 60, 30, 0), strict=True):
        pool.hold(client, size)
    assert pool.total == 100
    assert not any(client.reasons for client in clients)
    pool.hold(clients[0], 11)
    assert [len(client.reasons) for client in clients] == [0, 1, 0, 0]
    assert pool.total == 41
    pool.hold(clients[3], 100)
    assert [len(client.reasons) for client in clients] == [0, 1, 0, 1]
    assert pool.total == 41


def test_complete_frames_and_closed_connections_are_not_counted() -> None:
    first, second = Client(), Client()
    pool = Unauthenticated(100)
    pool.hold(first, 90)
    pool.hold(first, 5)
    pool.hold(second, 90)
    pool.forget(first)
    pool.forget(first)
    assert pool.total == 90
    pool.hold(second, 0)
    assert pool.total == 0
    assert not first.reasons


# --- in a broker ---

LIMIT = 1_000_000


@pytest.fixture
def broker(start_broker: StartBroker) -> BrokerThread:
    return start_broker(data=None, limits=Limits(unauthenticated_bytes=LIMIT))


def held(broker: BrokerThread) -> int:
    return broker.call(lambda: broker.broker._admission.unauthenticated.total)


def begin_websocket_message(port: int, size: int) -> WebSocketStream:
    """Send the beginning of a WebSocket message with a declared size of 4,000,000 bytes."""
    stream = WebSocketStream(port)
    stream.socket.sock.sendall(b"\x82\xff" + (4_000_000).to_bytes(8) + bytes(4) + bytes(size))
    return stream


def begin_frame(port: int, size: int) -> socket.socket:
    """Send the beginning of a frame with the maximum size."""
    stream = socket.create_connection((HOST, port), timeout=PATIENCE)
    stream.sendall(AMQP_HEADER + FRAME_HEADER.pack(262_144, 2, 0, 0) + bytes(size))
    return stream


def test_unfinished_websocket_messages_before_login_are_bounded_together(broker: BrokerThread) -> None:
    port = broker.broker.port
    first = begin_websocket_message(port, 300_000)
    eventually(lambda: held(broker) >= 300_000)
    greedy = begin_websocket_message(port, 600_000)
    eventually(lambda: held(broker) >= 900_000)
    others = [begin_websocket_message(port, 200_000)]
    assert greedy.recv(1) == b""
    eventually(lambda: held(broker) < 600_000)
    client = RawClient(WebSocketStream(port))
    client.open()
    client.send(client.sender(), b"hello")
    for stream in (first, *others):
        stream.socket.sock.close()
    eventually(lambda: held(broker) == 0)


@pytest.mark.parametrize("require_tls", [False, True])
def test_unfinished_frames_before_login_are_bounded_together(start_broker: StartBroker, require_tls: bool) -> None:
    limits = Limits(unauthenticated_bytes=LIMIT)
    broker = start_broker(data=None, limits=limits, require_tls=require_tls)
    port = broker.broker.port
    streams = [begin_frame(port, 200_000) for _ in range(8)]
    eventually(lambda: broker.call(lambda: len(broker.broker.shells)) == 4)
    assert held(broker) <= LIMIT
    for stream in streams:
        stream.close()
    eventually(lambda: held(broker) == 0)


def test_a_client_that_has_logged_in_is_not_counted(broker: BrokerThread) -> None:
    stream = WebSocketStream(broker.broker.port)
    client = RawClient(stream)
    client.open()
    sender = client.sender()
    stream.socket.sock.sendall(b"\x82\xff" + (4_000_000).to_bytes(8) + bytes(4) + bytes(3_000_000))
    with connect(broker.connection_string, timeout=20) as other:
        other.sender("queue").send(Message(data=[b"x" * 200_000]))
    assert held(broker) == 0
    assert broker.call(lambda: len(broker.broker.shells)) == 1
    assert sender is not None
