"""The memory of unauthenticated connections is limited; the connection that holds the most is dropped first."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from types import SimpleNamespace
from typing import cast

import pytest
from aiohttp import web

from peeklock.amqp.frames import AMQP_HEADER, FRAME_HEADER
from peeklock.amqp.message import Message
from peeklock.client import connect, sas_token
from peeklock.entities.authorization import DEFAULT_KEY, DEFAULT_KEY_NAME
from peeklock.limits.server import Limits
from peeklock.server.request_memory import RequestMemory, head_size
from peeklock.server.unauthenticated import Unauthenticated
from raw_client import HOST, PATIENCE, RawClient, WebSocketStream, dial, eventually, read_to_end
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


# --- requests on one HTTP connection ---


def request(headers: int = 10_000, *, has_body: bool = False) -> web.BaseRequest:
    content = SimpleNamespace(total_bytes=0, total_raw_bytes=0, is_eof=lambda: not has_body)
    raw = [(b"X", b"x" * (headers - 23))]
    made = SimpleNamespace(method="GET", raw_path="/", raw_headers=raw, content=content, body_exists=has_body)
    assert head_size(cast(web.BaseRequest, made)) == headers
    return cast(web.BaseRequest, made)


def feed(request: web.BaseRequest, memory: RequestMemory, size: int) -> None:
    """Receive bytes of the request's body."""
    memory.receive(size)
    content = cast(SimpleNamespace, request.content)
    content.total_bytes += size
    content.total_raw_bytes += size


def test_an_incomplete_head_counts_as_bytes_and_as_text() -> None:
    memory = RequestMemory()
    memory.receive(4000)
    memory.receive(3000)
    assert memory.held == 14_000


def test_a_head_counts_until_its_response_is_written() -> None:
    memory = RequestMemory()
    memory.receive(10_000)
    memory.begin(request())
    assert memory.held == 20_000
    memory.set_unread(70_000)
    memory.end()
    assert memory.held == 90_000
    memory.set_unread(0)
    assert memory.held == 0


def test_a_verified_request_and_its_body_do_not_count() -> None:
    memory = RequestMemory()
    memory.receive(10_500)
    verified = request(has_body=True)
    memory.begin(verified)
    memory.mark_verified()
    assert memory.is_verified_body
    feed(verified, memory, 5_000_000)
    assert memory.held == 0


def test_the_body_of_a_request_without_a_verified_token_counts_as_far_as_it_is_buffered() -> None:
    memory = RequestMemory()
    memory.receive(10_000)
    refused = request(has_body=True)
    memory.begin(refused)
    feed(refused, memory, 100_000)
    assert memory.held == 120_000
    memory.end()
    assert memory.held == 120_000
    for _ in range(20):
        feed(refused, memory, 100_000)
    assert memory.held == 20_000 + 512 * 1024
    cast(SimpleNamespace, refused.content).is_eof = lambda: True
    assert memory.held == 0


def test_requests_behind_one_that_is_not_over_count_with_their_parsed_heads() -> None:
    memory = RequestMemory()
    memory.receive(20_000)
    memory.begin(request())
    assert memory.held == 20_000 + 82 * 10_000
    memory.end()
    assert memory.held == 20_000
    memory.begin(request())
    memory.end()
    assert memory.held == 0


def test_inexact_sizes_do_not_add_up() -> None:
    """Spaces and the sizes of chunks are not in the size of a request."""
    memory = RequestMemory()
    for _ in range(1000):
        memory.receive(10_100)
        memory.begin(request())
        memory.end()
        assert memory.held == 0


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


HEADER = b"X: " + b"x" * 7995 + b"\r\n"
HEAD = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"


def begin_head(port: int, headers: int, first: bytes = b"") -> socket.socket:
    """Send a request without the end of its head, after other bytes."""
    stream = dial(port)
    stream.sendall(first + HEAD + HEADER * headers)
    return stream


def test_incomplete_http_heads_are_bounded_together(broker: BrokerThread, caplog: pytest.LogCaptureFixture) -> None:
    port = broker.broker.port
    first = begin_head(port, 20)
    eventually(lambda: held(broker) >= 320_000)
    greedy = begin_head(port, 38)
    eventually(lambda: held(broker) >= 920_000)
    last = begin_head(port, 10)
    assert read_to_end(greedy) == b""
    eventually(lambda: 480_000 <= held(broker) < 520_000)
    assert any("hold too much memory" in str(record.__dict__.get("fields")) for record in caplog.records)
    last.sendall(b"\r\n")
    assert last.recv(65536).startswith(b"HTTP/1.1 200")
    eventually(lambda: 320_000 <= held(broker) < 360_000)
    for stream in (first, last):
        stream.close()
    eventually(lambda: held(broker) == 0)


def test_later_heads_of_a_connection_count(broker: BrokerThread) -> None:
    stream = begin_head(broker.broker.port, 0, first=HEAD + HEADER * 30 + b"\r\n")
    assert stream.recv(65536).startswith(b"HTTP/1.1 200")
    stream.sendall(HEADER * 25)
    eventually(lambda: 400_000 <= held(broker) < 420_000)
    stream.sendall(b"\r\n")
    assert stream.recv(65536).startswith(b"HTTP/1.1 200")
    eventually(lambda: held(broker) == 0)
    stream.close()


def test_a_head_counts_while_the_body_of_its_refused_request_is_awaited(broker: BrokerThread) -> None:
    stream = dial(broker.broker.port)
    stream.sendall(
        b"POST /queue/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n" + HEADER * 25 + b"\r\n"
    )
    assert stream.recv(65536).startswith(b"HTTP/1.1 401")
    eventually(lambda: 400_000 <= held(broker) < 420_000)
    stream.sendall(bytes(10))
    eventually(lambda: held(broker) == 0)
    stream.close()


def test_requests_behind_responses_that_are_not_read_count(start_broker: StartBroker) -> None:
    broker = start_broker(data=None, limits=Limits(unauthenticated_bytes=10 * LIMIT))
    stream = dial(broker.broker.port, receive_buffer=4096)
    stream.settimeout(0.5)
    requests = HEAD + b"\r\n"
    with suppress(TimeoutError):  # the broker has stopped reading
        while True:
            stream.sendall(requests.replace(b"health", b"metrics") * 100)
    eventually(lambda: held(broker) > LIMIT)
    stream.close()
    eventually(lambda: held(broker) == 0)


def test_a_body_with_a_verified_token_does_not_count(broker: BrokerThread) -> None:
    size = 250_000
    url = f"http://{HOST}:{broker.broker.port}/queue"
    token = sas_token(url, DEFAULT_KEY_NAME, DEFAULT_KEY, time.time() + 600)
    stream = dial(broker.broker.port)
    head = f"POST /queue/messages HTTP/1.1\r\nHost: localhost\r\nAuthorization: {token}\r\nContent-Length: {size}\r\n"
    stream.sendall(head.encode() + HEADER * 2 + b"\r\n" + bytes(size - 1))
    eventually(lambda: broker.call(lambda: len(broker.broker._http._connections)) == 1)
    eventually(lambda: held(broker) == 0)
    stream.sendall(b"x")
    assert stream.recv(65536).startswith(b"HTTP/1.1 201")
    stream.close()


def test_the_head_of_a_request_for_a_websocket_is_limited(broker: BrokerThread) -> None:
    stream = dial(broker.broker.port)
    stream.sendall(
        b"GET /$servicebus/websocket HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n" + HEADER * 3 + b"\r\n"
    )
    assert stream.recv(65536).startswith(b"HTTP/1.1 431")
    stream.close()
