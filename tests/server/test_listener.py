"""One port for every protocol: detection by the first bytes, time-outs, and limits of connections."""

from __future__ import annotations

import logging
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import pytest
import websocket

from admin.atom import AtomClient, queue
from peeklock.amqp.errors import Condition
from peeklock.amqp.frames import AMQP_HEADER, SASL_HEADER
from peeklock.engine.errors import CloseConnection
from peeklock.engine.sasl import SaslClient
from peeklock.entities.authorization import DEFAULT_KEY
from peeklock.limits.server import Limits
from peeklock.server.certificates import ensure_certificates
from raw_client import (
    HOST,
    RawClient,
    Stream,
    WebSocketStream,
    body_of,
    dial,
    dial_tls,
    eventually,
    get,
    health,
    read_to_end,
    trusting,
)
from serving import BrokerThread, StartBroker

T = TypeVar("T")
HASTY = Limits(first_bytes_seconds=0.2, handshake_seconds=0.2, closing_seconds=0.2)
Dial = Callable[[int, Path], Stream]

DIALS: dict[str, Dial] = {
    "plain": lambda port, authority: dial(port),
    "tls": dial_tls,
    "websocket": lambda port, authority: WebSocketStream(port),
    "websocket-tls": WebSocketStream,
}


@pytest.fixture
def broker(start_broker: StartBroker) -> BrokerThread:
    return start_broker(data=None)


@pytest.fixture
def port(broker: BrokerThread) -> int:
    return broker.broker.port


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    return tmp_path / "data" / "tls" / "authority.pem"


def send_and_receive(stream: Stream, *, slowly: bool = False) -> None:
    client = RawClient(stream, slowly=slowly)
    client.open()
    client.send(client.sender(), b"hello")
    client.receiver(credit=1)
    (delivery,) = client.receive(1)
    assert body_of(delivery) == b"hello"
    client.complete(delivery)
    client.close()


def is_closed(stream: Stream) -> bool:
    return read_to_end(stream) == b""


# --- every protocol on one port ---


@pytest.mark.parametrize("how", DIALS)
def test_amqp_works_over_every_transport(port: int, authority: Path, how: str) -> None:
    send_and_receive(DIALS[how](port, authority))


@pytest.mark.parametrize("how", ["plain", "tls", "websocket"])
def test_a_client_that_sends_byte_by_byte_is_served(port: int, authority: Path, how: str) -> None:
    send_and_receive(DIALS[how](port, authority), slowly=True)


def test_health_is_answered_over_http(port: int) -> None:
    assert health(port) == (200, "healthy", "Service is healthy.")


def test_health_is_answered_over_https(port: int, authority: Path) -> None:
    assert get(port, "/health", authority)[0] == 200


def test_an_http_request_that_comes_byte_by_byte_is_answered(port: int) -> None:
    stream = dial(port)
    for byte in b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n":
        stream.sendall(bytes((byte,)))
    assert read_to_end(stream).startswith(b"HTTP/1.1 200")


def test_a_tls_hello_sent_byte_by_byte_is_recognised(port: int, authority: Path) -> None:
    stream = dial(port)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = trusting(authority).wrap_bio(incoming, outgoing, server_hostname=HOST)

    def carry() -> None:
        for byte in outgoing.read():
            stream.sendall(bytes((byte,)))

    def insist(action: Callable[[], T]) -> T:
        while True:
            try:
                return action()
            except ssl.SSLWantReadError:
                carry()
                incoming.write(stream.recv(65536))

    insist(tls.do_handshake)
    tls.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert insist(lambda: tls.read(12)) == b"HTTP/1.1 200"
    stream.close()


def test_every_port_serves_every_protocol(start_broker: StartBroker, authority: Path) -> None:
    broker = start_broker(data=None, further_ports=(0, 0))
    ports = broker.broker.ports
    assert len(set(ports)) == 3
    for port in ports:
        send_and_receive(dial(port))
        send_and_receive(dial_tls(port, authority))
        assert health(port)[0] == 200


def test_a_certificate_of_the_user_is_used(start_broker: StartBroker, tmp_path: Path) -> None:
    own = ensure_certificates(tmp_path / "own", [])
    broker = start_broker(data=None, tls_certificate=own.certificate, tls_key=own.key)
    send_and_receive(dial_tls(broker.broker.port, own.authority))
    assert not (tmp_path / "data" / "tls").exists()


def test_a_client_that_does_not_trust_the_certificate_affects_no_other(port: int) -> None:
    context = ssl.create_default_context()
    with pytest.raises(ssl.SSLCertVerificationError):
        context.wrap_socket(dial(port), server_hostname=HOST)
    assert health(port)[0] == 200


# --- garbage ---


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00" * 64,
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"AMQP\x00\x00\x09\x01",
        b"AMQP\x01\x01\x00\x00",
        b"\xff\xfe\xfd\xfc",
    ],
)
def test_garbage_is_answered_with_the_amqp_header(port: int, garbage: bytes) -> None:
    stream = dial(port)
    stream.sendall(garbage)
    assert read_to_end(stream) == AMQP_HEADER
    assert health(port)[0] == 200


@pytest.mark.parametrize("garbage", [b"\x16" + b"\x00" * 200, b"\x16\x03\x01\xff\xff" + b"\xee" * 70000])
def test_garbage_that_starts_like_tls_is_closed(port: int, garbage: bytes) -> None:
    stream = dial(port)
    try:
        stream.sendall(garbage)
        read_to_end(stream)
    except (BrokenPipeError, ConnectionResetError):
        pass
    assert health(port)[0] == 200


def test_garbage_inside_tls_is_answered_with_the_header_too(port: int, authority: Path) -> None:
    stream = dial_tls(port, authority)
    stream.sendall(b"\x00" * 64)
    assert read_to_end(stream) == AMQP_HEADER


def test_garbage_after_the_handshake_closes_the_connection(port: int) -> None:
    client = RawClient.opened(port)
    client.stream.sendall(b"\xff" * 64)
    error = client.closed_with()
    assert error is not None
    assert error.condition == Condition.FRAMING_ERROR


def test_a_broken_http_request_is_refused(port: int) -> None:
    stream = dial(port)
    stream.sendall(b"GET \x00\x01 nonsense\r\n\r\n")
    assert read_to_end(stream).startswith(b"HTTP/1.0 400")


def test_a_connection_that_is_closed_at_once_affects_no_other(port: int) -> None:
    for first in (b"", b"A", b"\x16", b"GET "):
        stream = dial(port)
        stream.sendall(first)
        stream.close()
    assert health(port)[0] == 200


# --- time-outs ---


@pytest.mark.parametrize(
    "sent",
    [b"", b"A", b"AMQ", b"AMQP\x03\x01", b"\x16", b"\x16\x03\x01\x02", b"GE", b"GET /health HTTP/1.1\r\nHo"],
)
def test_a_client_that_stops_sending_before_login_is_closed(start_broker: StartBroker, sent: bytes) -> None:
    port = start_broker(data=None, limits=HASTY).broker.port
    stream = dial(port)
    stream.sendall(sent)
    assert is_closed(stream)


def test_a_client_silent_after_the_tls_handshake_is_closed(start_broker: StartBroker, authority: Path) -> None:
    port = start_broker(data=None, limits=HASTY).broker.port
    assert is_closed(dial_tls(port, authority))


def test_a_client_that_stops_during_sasl_is_closed(start_broker: StartBroker) -> None:
    port = start_broker(data=None, limits=HASTY).broker.port
    stream = dial(port)
    stream.sendall(SASL_HEADER)
    assert read_to_end(stream).startswith(SASL_HEADER)


def test_a_client_that_sends_no_open_is_closed(start_broker: StartBroker) -> None:
    port = start_broker(data=None, limits=HASTY).broker.port
    stream = dial(port)
    stream.sendall(AMQP_HEADER)
    assert read_to_end(stream).startswith(AMQP_HEADER)


def test_a_connection_without_token_or_key_is_closed(start_broker: StartBroker) -> None:
    port = start_broker(data=None, limits=HASTY).broker.port
    trusted = RawClient.opened(port)
    unauthenticated = RawClient.opened(port, sasl=SaslClient())
    error = unauthenticated.closed_with()
    assert error is not None
    assert error.condition == Condition.UNAUTHORIZED_ACCESS
    assert "token" in error.description
    trusted.send(trusted.sender(), b"still here")


def test_a_silent_websocket_is_closed(start_broker: StartBroker) -> None:
    port = start_broker(data=None, limits=HASTY).broker.port
    assert is_closed(WebSocketStream(port))


def test_an_idle_http_connection_is_closed(start_broker: StartBroker) -> None:
    port = start_broker(data=None, limits=HASTY).broker.port
    stream = dial(port)
    stream.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert b"healthy" in read_to_end(stream)


def dropped(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Return client and reason of the connections that the broker closed, from the log."""
    found = [record for record in caplog.records if record.message in ("connection dropped", "connection refused")]
    return [(record.fields["peer"], record.fields["reason"]) for record in found]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"", "the client sent nothing in time"),
        (b"AM", "the client did not send the first 4 bytes in time"),
        (b"GET /health HTTP/1.1\r\nHo", "no complete HTTP request came in time"),
        (AMQP_HEADER, "the connection was not opened in time"),
    ],
)
def test_the_log_has_the_client_and_the_reason_of_a_closed_connection(
    start_broker: StartBroker, caplog: pytest.LogCaptureFixture, sent: bytes, reason: str
) -> None:
    port = start_broker(data=None, limits=HASTY).broker.port
    stream = dial(port)
    name = "{}:{}".format(*stream.getsockname())
    stream.sendall(sent)
    read_to_end(stream)
    assert dropped(caplog) == [(name, reason)]


def test_the_log_has_the_client_of_a_failed_tls_handshake(port: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="peeklock")
    stream = dial(port)
    name = "{}:{}".format(*stream.getsockname())
    stream.sendall(b"\x16" + b"\x00" * 200)
    read_to_end(stream)
    (record,) = eventually(
        lambda: [record for record in caplog.records if record.message == "connection not established"]
    )
    assert record.fields["peer"] == name  # type: ignore[attr-defined]


def test_a_used_http_connection_is_closed_without_a_log_line(
    start_broker: StartBroker, caplog: pytest.LogCaptureFixture
) -> None:
    port = start_broker(data=None, limits=HASTY).broker.port
    stream = dial(port)
    stream.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert b"healthy" in read_to_end(stream)
    assert dropped(caplog) == []


# --- limits of connections ---


@pytest.mark.parametrize("sent", [b"", b"AM", b"\x16\x03", AMQP_HEADER, b"GET /health HTTP/1.1\r\n"])
def test_too_many_connections_are_refused_until_one_closes(
    start_broker: StartBroker, caplog: pytest.LogCaptureFixture, sent: bytes
) -> None:
    broker = start_broker(data=None, limits=Limits(max_connections=2))
    port = broker.broker.port
    first, second = dial(port), dial(port)
    for stream in (first, second):
        stream.sendall(sent)
    third = dial(port)
    name = "{}:{}".format(*third.getsockname())
    assert is_closed(third)
    assert (name, "too many connections are open") in dropped(caplog)
    first.close()

    def is_served() -> bool:
        with dial(port) as stream:
            try:
                stream.sendall(b"\x00" * 8)
                return read_to_end(stream) == AMQP_HEADER
            except OSError:
                return False

    assert eventually(is_served)
    second.close()


def test_a_websocket_counts_once(start_broker: StartBroker) -> None:
    port = start_broker(data=None, limits=Limits(max_connections=2)).broker.port
    client = RawClient(WebSocketStream(port))
    client.open()
    send_and_receive(dial(port))


def test_a_stopped_broker_closes_silent_connections(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = BrokerThread(tls_folder=tmp_path)
    port = broker.broker.port
    silent, half, hello = dial(port), dial(port), dial(port)
    half.sendall(b"AM")
    hello.sendall(b"\x16\x03\x01")
    eventually(lambda: broker.call(lambda: broker.broker.connections) == 3)
    broker.stop()
    assert all(is_closed(stream) for stream in (silent, half, hello))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, port))


# --- administration, when all connections are in use ---


def taken(broker: BrokerThread) -> list[RawClient]:
    """Return clients that use all ordinary connections."""
    return [RawClient.opened(broker.broker.port) for _ in range(2)]


@pytest.fixture
def full(start_broker: StartBroker) -> Iterator[BrokerThread]:
    broker = start_broker(data=None, limits=Limits(max_connections=2, reserved_connections=2))
    clients = taken(broker)
    yield broker
    assert all(client.engine.opened for client in clients)


def test_administration_with_a_key_is_admitted(full: BrokerThread) -> None:
    atom = AtomClient(full.broker.port)
    assert atom.put("/more", queue()).status == 201
    assert atom.delete("/more").status == 200


def test_administration_with_a_key_is_admitted_over_tls(full: BrokerThread, authority: Path) -> None:
    port = full.broker.port
    token = AtomClient(port).token("queue")
    assert get(port, "/queue?api-version=2021-05", authority, Authorization=token)[0] == 200


def test_health_is_answered_when_all_connections_are_taken(full: BrokerThread) -> None:
    assert health(full.broker.port)[0] == 200


def test_the_reserve_refuses_connections_without_a_key(full: BrokerThread, caplog: pytest.LogCaptureFixture) -> None:
    port = full.broker.port
    assert AtomClient(port, key="wrong").get("/queue").status == 503
    assert get(port, "/metrics")[0] == 503
    with pytest.raises(websocket.WebSocketBadStatusException, match="503"):
        WebSocketStream(port)
    for sent in (AMQP_HEADER, SASL_HEADER, b"\x00" * 8):
        stream = dial(port)
        stream.sendall(sent)
        assert is_closed(stream)
    assert {reason for _, reason in dropped(caplog)} == {"too many connections are open"}


def test_silent_connections_in_the_reserve_are_replaced_by_administration(full: BrokerThread, authority: Path) -> None:
    """Connections that fill the reserve, silent in every state: the oldest is replaced."""
    port = full.broker.port
    silent = [dial(port) for _ in range(20)]
    for stream, sent in zip(silent, [b"", b"\x16\x03", b"GE", b"GET /health HTTP/1.1\r\n"] * 5, strict=True):
        with suppress(OSError):
            stream.sendall(sent)
    assert AtomClient(port).get("/queue").status == 200
    token = AtomClient(port).token("queue")
    assert get(port, "/queue?api-version=2021-05", authority, Authorization=token)[0] == 200
    for stream in silent:
        stream.close()


@pytest.mark.parametrize("resets", [False, True], ids=["closes", "resets"])
def test_every_kind_of_end_of_a_connection_frees_its_place(broker: BrokerThread, authority: Path, resets: bool) -> None:
    port = broker.broker.port
    request = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for sent in (
        b"",
        b"A",
        b"\x16",
        b"\x16\x03\x01",
        b"GE",
        request[:-2],
        request,
        request * 3,
        AMQP_HEADER,
        SASL_HEADER,
    ):
        stream = dial(port)
        with suppress(OSError):
            stream.sendall(sent)
        hang_up(stream, resets)
    for sent in (b"", b"A", request, AMQP_HEADER):
        inside = dial_tls(port, authority)
        inside.sendall(sent)
        hang_up(inside, resets)
    send_and_receive(dial(port))
    send_and_receive(WebSocketStream(port))
    hang_up(WebSocketStream(port).socket.sock, resets)
    eventually(lambda: broker.call(lambda: broker.broker.connections) == 0)


def hang_up(stream: socket.socket, resets: bool) -> None:
    if resets:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.close()


def test_connections_of_one_address_are_limited(start_broker: StartBroker, caplog: pytest.LogCaptureFixture) -> None:
    port = start_broker(data=None, limits=Limits(max_connections_per_address=2)).broker.port
    clients = [RawClient.opened(port) for _ in range(2)]
    third = dial(port)
    assert is_closed(third)
    assert "too many connections from this address are open" in {reason for _, reason in dropped(caplog)}
    with socket.create_connection((HOST, port), timeout=20, source_address=("127.0.0.2", 0)) as elsewhere:
        elsewhere.sendall(b"\x00" * 8)
        assert read_to_end(elsewhere) == AMQP_HEADER
    clients[0].close()
    eventually(lambda: not is_closed_at_once(port))


def is_closed_at_once(port: int) -> bool:
    with dial(port) as stream:
        try:
            stream.sendall(b"\x00" * 8)
            return read_to_end(stream) != AMQP_HEADER
        except OSError:
            return True


# --- failed logins ---


def test_too_many_failed_logins_of_any_kind_block_the_address(start_broker: StartBroker) -> None:
    broker = start_broker(data=None, limits=Limits(max_failed_logins=3))
    port = broker.broker.port
    before = RawClient.opened(port)

    def logs_in(key: str = DEFAULT_KEY) -> bool:
        client = RawClient(dial(port), key=key)
        try:
            client.open()
        except (CloseConnection, ConnectionError):
            return False
        client.close()
        return True

    assert logs_in()
    assert not logs_in("wrong")
    assert AtomClient(port, key="wrong").get("/queue").status == 401
    assert AtomClient(port).get("/queue").status == 200
    assert not logs_in("wrong")
    answer = AtomClient(port).get("/queue")
    assert answer.status == 503
    assert "3 logins from this address failed within a minute" in answer.detail
    assert not logs_in()
    before.send(before.sender(), b"who is in stays in")
    broker.advance(60)
    assert logs_in()
    assert AtomClient(port).get("/queue").status == 200
