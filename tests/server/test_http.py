"""HTTP on the shared port: pages, administration, and AMQP inside a WebSocket."""

from __future__ import annotations

import json
from contextlib import suppress
from http.client import HTTPConnection

import pytest
import websocket
from aiohttp import web

from peeklock.amqp.errors import Condition
from peeklock.engine.sasl import SaslClient
from peeklock.entities.authorization import AuthorizationRule, Right
from peeklock.entities.namespaces import NamespaceDefinition
from peeklock.limits.server import Limits
from peeklock.nodes.receiving import ReceivingNode
from peeklock.server.http import WRITE_PART
from peeklock.server.shell import Shell
from raw_client import (
    HOST,
    PATIENCE,
    RawClient,
    WebSocketStream,
    body_of,
    dial,
    eventually,
    get,
    health,
    read_to_end,
)
from server.held_store import HeldStore
from serving import BrokerThread, StartBroker

QUICK = Limits(closing_seconds=0.2)


@pytest.fixture
def broker(start_broker: StartBroker) -> BrokerThread:
    return start_broker(data=None, limits=QUICK, administration=None, messaging=None)


@pytest.fixture
def port(broker: BrokerThread) -> int:
    return broker.broker.port


# --- plain requests ---


def test_health_answers_with_the_emulators_json(port: int) -> None:
    status, text = get(port, "/health")
    assert (status, json.loads(text)) == (200, {"status": "healthy", "message": "Service is healthy."})


def test_several_requests_share_a_connection(port: int) -> None:
    connection = HTTPConnection(HOST, port, timeout=PATIENCE)
    for _ in range(3):
        connection.request("GET", "/health")
        response = connection.getresponse()
        response.read()
        assert response.status == 200
    connection.close()


@pytest.mark.parametrize("path", ["/", "/healthy", "/$servicebus", "/$servicebus/websocket/more", "/../health"])
def test_an_unknown_path_is_not_found(port: int, path: str) -> None:
    assert get(port, path)[0] == 404


def test_a_method_that_a_path_does_not_support_is_refused(port: int) -> None:
    connection = HTTPConnection(HOST, port, timeout=PATIENCE)
    connection.request("POST", "/health", body=b"x" * 100)
    assert connection.getresponse().status == 405
    connection.close()


def test_requests_for_no_page_go_to_administration(start_broker: StartBroker) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=f"{request.method} {request.path}")

    port = start_broker(data=None, administration=lambda namespace: answer).broker.port
    assert get(port, "/orders") == (200, "GET /orders")
    assert get(port, "/") == (200, "GET /")
    assert get(port, "/health?api-version=2021-05") == (200, "GET /health")
    assert get(port, "/metrics?api-version=2021-05") == (200, "GET /metrics")
    assert json.loads(get(port, "/health")[1])["status"] == "healthy"
    assert get(port, "/$servicebus/websocket")[0] == 426


# --- WebSocket ---


@pytest.mark.parametrize("path", ["/$servicebus/websocket", "/$servicebus/websocket/", "/%24servicebus/websocket"])
def test_the_path_of_the_websocket_may_end_with_a_slash(port: int, path: str) -> None:
    client = RawClient(WebSocketStream(port, path=path))
    client.open()
    client.send(client.sender(), b"hello")


@pytest.mark.parametrize(
    ("offered", "selected"),
    [
        (("AMQPWSB10",), "AMQPWSB10"),
        (("amqp",), "amqp"),
        (("mqtt", "amqp"), "amqp"),
        (("amqp", "AMQPWSB10"), "amqp"),
        ((), None),
    ],
)
def test_a_subprotocol_that_was_offered_is_selected(port: int, offered: tuple[str, ...], selected: str | None) -> None:
    connection = HTTPConnection(HOST, port, timeout=PATIENCE)
    headers = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    }
    if offered:
        headers["Sec-WebSocket-Protocol"] = ", ".join(offered)
    connection.request("GET", "/$servicebus/websocket", headers=headers)
    response = connection.getresponse()
    assert response.status == 101
    assert response.getheader("Sec-WebSocket-Protocol") == selected
    connection.close()


def test_another_subprotocol_is_refused_with_the_supported_ones(port: int) -> None:
    with pytest.raises(websocket.WebSocketBadStatusException) as refusal:
        WebSocketStream(port, subprotocols=("mqtt",))
    assert refusal.value.status_code == 400
    assert b"AMQPWSB10" in (refusal.value.resp_body or b"")


def test_a_websocket_on_an_unknown_path_is_not_found(port: int) -> None:
    with pytest.raises(websocket.WebSocketBadStatusException, match="404"):
        WebSocketStream(port, path="/websocket")


def test_a_request_without_an_upgrade_is_refused_with_426(port: int) -> None:
    status, text = get(port, "/$servicebus/websocket")
    assert status == 426
    assert "WebSocket" in text


def test_amqp_frames_may_be_split_anywhere(port: int) -> None:
    client = RawClient(WebSocketStream(port), slowly=True)
    client.open()
    client.send(client.sender(), b"hello")


def test_a_text_message_closes_the_websocket_as_unsupported_data(port: int) -> None:
    stream = WebSocketStream(port)
    stream.socket.send("AMQP?")
    opcode, data = stream.socket.recv_data()
    assert opcode == websocket.ABNF.OPCODE_CLOSE
    assert int.from_bytes(data[:2]) == 1003


def test_a_message_of_the_websocket_that_is_too_large_ends_it(port: int) -> None:
    stream = WebSocketStream(port)
    with suppress(ConnectionResetError):  # the broker does not read the whole message
        stream.sendall(bytes(5 * 1024 * 1024))
        opcode, data = stream.socket.recv_data()
        assert opcode == websocket.ABNF.OPCODE_CLOSE
        assert int.from_bytes(data[:2]) == 1009
    assert health(port)[0] == 200


def test_a_ping_is_answered(port: int) -> None:
    stream = WebSocketStream(port)
    stream.socket.ping(b"there?")
    opcode, data = stream.socket.recv_data(control_frame=True)
    assert (opcode, data) == (websocket.ABNF.OPCODE_PONG, b"there?")


def test_output_is_split_into_messages_of_a_limited_size(port: int) -> None:
    client = RawClient(WebSocketStream(port))
    client.open()
    bodies = [bytes((number,)) * 200_000 for number in range(8)]
    client.send(client.sender(), *bodies)
    sizes: list[int] = []
    receive = client.stream.recv

    def measured(size: int) -> bytes:
        data = receive(size)
        sizes.append(len(data))
        return data

    client.stream.recv = measured  # type: ignore[method-assign]
    client.receiver(credit=8)
    assert [body_of(delivery) for delivery in client.receive(8)] == bodies
    assert max(sizes) <= WRITE_PART


def test_a_lost_websocket_is_released(broker: BrokerThread, port: int) -> None:
    client = RawClient(WebSocketStream(port))
    client.open()
    client.receiver()
    client.stream.socket.sock.close()  # type: ignore[attr-defined]
    eventually(lambda: broker.call(lambda: broker.broker.connections) == 0)


def test_the_brokers_close_arrives_before_the_websocket_ends(port: int) -> None:
    client = RawClient(WebSocketStream(port), sasl=SaslClient())
    client.open()
    client.stream.sendall(b"\xff" * 64)
    error = client.closed_with()
    assert error is not None
    assert error.condition == Condition.FRAMING_ERROR
    assert client.stream.recv(1) == b""


def deliveries_to(shell: Shell) -> int:
    return sum(node._link.unsettled for node in shell.peer.nodes if isinstance(node, ReceivingNode))


def test_a_websocket_that_is_not_read_is_throttled_alone(broker: BrokerThread, port: int) -> None:
    sender = RawClient.opened(port)
    link = sender.sender()
    unread = RawClient(WebSocketStream(port))
    unread.open()
    unread.receiver(credit=100_000)
    shell = next(shell for shell in broker.broker.shells if "websocket" in shell.peer.name)
    while not broker.call(lambda: shell.connection.congested):
        sender.send(link, *(bytes(200_000) for _ in range(20)))
    sent = broker.call(lambda: deliveries_to(shell))
    other = RawClient(WebSocketStream(port))
    other.open()
    other.receiver(credit=100_000)
    sender.send(link, *(bytes(200_000) for _ in range(20)), b"the last")
    while body_of(other.receive(1)[0]) != b"the last":
        pass
    assert broker.call(lambda: deliveries_to(shell)) == sent
    unread.stream.socket.sock.close()  # type: ignore[attr-defined]
    eventually(lambda: shell not in broker.broker.shells)


def test_a_websocket_is_not_read_while_its_messages_wait_for_the_store(start_broker: StartBroker) -> None:
    store = HeldStore()
    limits = Limits(unsaved_high=1_000_000, unsaved_low=500_000, closing_seconds=0.2)
    broker = start_broker(data=None, limits=limits, make_store=lambda call: store)
    client = RawClient(WebSocketStream(broker.broker.port))
    client.open()
    link = client.sender()
    (shell,) = broker.broker.shells
    broker.call(store.hold)
    for _ in range(20):
        client.post(link, bytes(200_000), settled=True)
        client.write()
    eventually(lambda: broker.call(lambda: not shell.reading))
    assert broker.call(lambda: shell.peer.unsaved_bytes) < 2_000_000
    broker.call(store.let_go)
    eventually(lambda: broker.call(lambda: broker.broker.namespace.queue("queue").counters.active) == 20)


# --- the log ---


def refusals(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    return [record.fields for record in caplog.records if record.message == "request refused"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET \x00 nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET /" + b"a" * 10_000 + b" HTTP/1.1\r\n\r\n",
    ],
)
def test_malformed_http_is_logged_in_one_line_without_a_traceback(
    port: int, caplog: pytest.LogCaptureFixture, request_bytes: bytes
) -> None:
    stream = dial(port)
    stream.sendall(request_bytes)
    assert b" 400 " in read_to_end(stream)
    (fields,) = refusals(caplog)
    assert (fields["peer"], fields["status"]) == (HOST, 400)
    assert not any(record.exc_info for record in caplog.records)
    assert len(str(fields["reason"])) <= 200


@pytest.mark.parametrize(
    ("frame", "reason"),
    [(b"\x81\x80\x00\x00\x00\x00", "text"), (b"\x83\x80\x00\x00\x00\x00", "opcode")],
    ids=["text", "unknown"],
)
def test_the_log_has_the_reason_of_a_closed_websocket(
    port: int, caplog: pytest.LogCaptureFixture, frame: bytes, reason: str
) -> None:
    stream = WebSocketStream(port)
    stream.socket.sock.sendall(frame)
    with suppress(websocket.WebSocketException, OSError):
        while stream.recv(1):
            pass
    (record,) = eventually(lambda: [record for record in caplog.records if record.message == "websocket closed"])
    fields = record.fields  # type: ignore[attr-defined]
    assert str(fields["peer"]).endswith("(websocket)")
    assert reason in str(fields["reason"])


# --- web pages ---

UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    "Sec-WebSocket-Protocol": "AMQPWSB10",
}


def status_of(port: int, path: str, method: str = "GET", **headers: str) -> int:
    connection = HTTPConnection(HOST, port, timeout=PATIENCE)
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        assert not [name for name, _ in response.getheaders() if name.lower().startswith("access-control")]
        return response.status
    finally:
        connection.close()


def test_a_foreign_origin_gets_no_websocket(port: int) -> None:
    path = "/$servicebus/websocket"
    assert status_of(port, path, **UPGRADE, Origin="https://evil.example") == 403
    assert status_of(port, path, **UPGRADE, Origin="null") == 403
    assert status_of(port, path, **UPGRADE, Origin=f"http://{HOST}:{port}") == 101
    assert status_of(port, path, **UPGRADE) == 101


@pytest.mark.parametrize("path", ["/health", "/metrics", "/queue", "/nowhere", "/$servicebus/websocket"])
def test_a_foreign_host_is_refused_on_every_path(port: int, path: str, caplog: pytest.LogCaptureFixture) -> None:
    assert status_of(port, path, Host="evil.example") == 403
    assert status_of(port, path, **UPGRADE, Host="evil.example") == 403
    assert "request refused" in caplog.text


def test_nothing_is_allowed_by_cors(port: int) -> None:
    asked = {"Access-Control-Request-Method": "DELETE", "Access-Control-Request-Headers": "authorization"}
    assert status_of(port, "/queue", "OPTIONS", Origin="https://evil.example", **asked) == 403
    assert status_of(port, "/health", Origin=f"http://localhost:{port}") == 403
    assert status_of(port, "/health", Origin=f"http://{HOST}:{port}") == 200


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /health HTTP/1.0\r\n", b"200"),
        (b"GET /health HTTP/1.1\r\n", b"400"),
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n", b"400"),
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\nOrigin: null\r\n", b"400"),
        (b"GET http://evil.example/health HTTP/1.1\r\nHost: evil.example\r\n", b"403"),
    ],
)
def test_a_request_has_one_host_and_at_most_one_origin(port: int, head: bytes, status: bytes) -> None:
    stream = dial(port)
    stream.sendall(head + b"Connection: close\r\n\r\n")
    assert read_to_end(stream)[9:12] == status


def test_metrics_on_a_network_require_a_token_unless_the_host_is_loopback(
    start_broker: StartBroker,
) -> None:
    rule = AuthorizationRule(name="owner", primary_key="own", rights=frozenset({Right.MANAGE}))
    namespace = NamespaceDefinition(authorization_rules=(rule,))
    port = start_broker(data=None, host="0.0.0.0", namespace=namespace).broker.port
    assert status_of(port, "/health", Host="bus.example") == 200
    assert status_of(port, "/metrics") == 200
    assert status_of(port, "/metrics", Host="bus.example") == 401
