"""Requests that wait for a message: how they end, and what they may hold."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection

import pytest

from peeklock.client import Message, connect
from peeklock.entities.authorization import AuthorizationRule, Right, default_authorization_rule
from peeklock.entities.definitions import QueueDefinition
from peeklock.entities.namespaces import NamespaceDefinition
from peeklock.entities.settings import PROFILES
from peeklock.rest import usage
from peeklock.store.base import Changes, StoreError
from raw_client import HOST, PATIENCE, eventually
from rest.asking import Answer, RestClient
from server.held_store import HeldStore
from serving import BrokerThread, StartBroker

LISTENER = AuthorizationRule(name="listener", primary_key="key-of-listener", rights=frozenset({Right.LISTEN}))
HEAD = "/queue/messages/head"


@pytest.fixture
def broker(start_broker: StartBroker) -> BrokerThread:
    return start_broker(data=None)


@pytest.fixture
def rest(broker: BrokerThread) -> RestClient:
    return RestClient(broker.broker.port)


def waiting(broker: BrokerThread, path: str = "queue") -> int:
    """How many stand at the queue."""
    return broker.call(lambda: len(broker.broker.namespace.entity(path).watchers))


def locked(broker: BrokerThread) -> int:
    return broker.call(lambda: len(broker.broker.namespace.queue("queue").locks.by_number))


@contextmanager
def asked(
    broker: BrokerThread, rest: RestClient, method: str = "POST", path: str = HEAD, count: int = 1
) -> Iterator[HTTPConnection]:
    """A request that waits."""
    connection = rest.connect()
    try:
        rest.begin(connection, method, path)
        eventually(lambda: waiting(broker) == count)
        yield connection
    finally:
        connection.close()


# --- how it ends ---


@pytest.mark.parametrize(("method", "status"), [("POST", 201), ("DELETE", 200)])
def test_a_receive_waits_for_a_message(broker: BrokerThread, rest: RestClient, method: str, status: int) -> None:
    with asked(broker, rest, method) as connection:
        rest.send("one")
        answer = rest.end(connection)
    assert (answer.status, answer.body) == (status, b"one")
    assert waiting(broker) == 0


def test_a_receive_ends_after_its_time_out(broker: BrokerThread, rest: RestClient) -> None:
    with asked(broker, rest, path=HEAD + "?timeout=30") as connection:
        broker.advance(29)
        assert waiting(broker) == 1
        broker.advance(2)
        assert rest.end(connection).status == 204
        # And the connection can be used again.
        rest.begin(connection, "POST", HEAD + "?timeout=0")
        assert rest.end(connection).status == 204


@pytest.mark.parametrize(("query", "seconds"), [("", 60), ("?timeout=100000", 600)])
def test_a_receive_waits_a_minute_by_default_and_has_a_maximum(
    broker: BrokerThread, rest: RestClient, query: str, seconds: int
) -> None:
    with asked(broker, rest, path=HEAD + query) as connection:
        broker.advance(seconds - 1)
        assert waiting(broker) == 1
        broker.advance(1)
        assert rest.end(connection).status == 204


def test_receives_are_served_in_turn_with_others(broker: BrokerThread, rest: RestClient) -> None:
    with asked(broker, rest) as first, asked(broker, rest, count=2) as second:
        rest.send("one")
        rest.send("two")
        assert [rest.end(first).body, rest.end(second).body] == [b"one", b"two"]


def test_a_client_that_disconnects_while_it_waits_receives_no_message(broker: BrokerThread, rest: RestClient) -> None:
    with asked(broker, rest):
        pass
    eventually(lambda: waiting(broker) == 0)
    rest.send("one")
    assert rest.lock().broker_properties["DeliveryCount"] == 1


def test_a_message_is_released_if_the_client_disconnects_before_the_answer(start_broker: StartBroker) -> None:
    """It is larger than what the system buffers, and the client goes without reading it."""
    broker = start_broker(data=None, profile=PROFILES["premium"])
    rest = RestClient(broker.broker.port)
    rest.send(b"x" * (30 << 20))
    line = socket.socket()
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    line.connect((HOST, rest.port))
    line.sendall(f"POST {HEAD} HTTP/1.1\r\nHost: {HOST}\r\nAuthorization: {rest.token()}\r\n\r\n".encode())
    eventually(lambda: locked(broker) == 1)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    line.close()
    eventually(lambda: locked(broker) == 0)
    again = rest.lock()
    assert (again.status, again.broker_properties["DeliveryCount"], len(again.body)) == (201, 1, 30 << 20)


def test_a_message_deleted_for_a_disconnected_client_is_logged(
    start_broker: StartBroker, caplog: pytest.LogCaptureFixture
) -> None:
    store = HeldStore()
    broker = start_broker(data=None, make_store=lambda call_soon: store)
    rest = RestClient(broker.broker.port)
    rest.send("one")
    broker.call(store.hold)
    with asked(broker, rest, "DELETE"):
        eventually(lambda: store.held)
    eventually(lambda: broker.broker.connections == 0)
    broker.call(store.let_go)
    eventually(lambda: "a message was received and deleted, but the client had disconnected" in caplog.text)
    assert broker.counters().active == 0
    assert waiting(broker) == 0


def test_a_message_that_cannot_be_deleted_is_still_waited_for(start_broker: StartBroker) -> None:
    store = HeldStore()
    broker = start_broker(data=None, make_store=lambda call_soon: store)
    rest = RestClient(broker.broker.port)
    rest.send("one")
    refused: list[Changes] = []

    def refuse(changes: Changes) -> StoreError | None:
        if not changes.removals:
            return None
        refused.append(changes)
        return StoreError("not now")

    store.fails = refuse
    with asked(broker, rest, "DELETE") as connection:
        eventually(lambda: refused)
        store.fails = lambda changes: None
        broker.advance(2)
        assert rest.end(connection).body == b"one"


def test_a_receive_ends_when_its_entity_is_deleted(broker: BrokerThread, rest: RestClient) -> None:
    with asked(broker, rest) as connection:
        assert rest.ask("DELETE", "/queue").status == 200
        refused = rest.end(connection)
    assert (refused.status, "could not be found" in refused.detail) == (404, True)


def test_a_receive_ends_when_the_entity_is_disabled(broker: BrokerThread, rest: RestClient) -> None:
    with asked(broker, rest) as connection:
        body = (
            '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><QueueDescription '
            'xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"><Status>ReceiveDisabled</Status>'
            "</QueueDescription></content></entry>"
        )
        assert rest.ask("PUT", "/queue", body, If_Match="*").status == 200
        refused = rest.end(connection)
    assert (refused.status, "(status ReceiveDisabled)" in refused.detail) == (400, True)


def test_a_receive_ends_when_its_rule_is_removed(start_broker: StartBroker) -> None:
    rules = (default_authorization_rule(), LISTENER)
    namespace = NamespaceDefinition(queues=(QueueDefinition(name="queue"),), authorization_rules=rules)
    broker = start_broker(data=None, namespace=namespace)
    rest = RestClient(broker.broker.port, "listener", "key-of-listener")
    with asked(broker, rest) as connection:
        broker.call(lambda: broker.broker.namespace.keys.set("", (default_authorization_rule(),)))
        refused = rest.end(connection)
    assert (refused.status, "'listener' was changed or removed" in refused.detail) == (401, True)


def test_a_receive_ends_when_its_token_has_had_its_grace(broker: BrokerThread, rest: RestClient) -> None:
    connection = rest.connect()
    rest.begin(connection, "POST", HEAD + "?timeout=600", Authorization=rest.token(expires_in=10))
    eventually(lambda: waiting(broker) == 1)
    broker.advance(300)
    assert waiting(broker) == 1
    broker.advance(11)
    refused = rest.end(connection)
    connection.close()
    assert (refused.status, "The token expired while the request was waiting" in refused.detail) == (401, True)


def test_a_receive_ends_when_the_broker_stops(broker: BrokerThread, rest: RestClient) -> None:
    with asked(broker, rest) as connection:
        broker.call(broker.broker._http.end_waits)
        refused = rest.end(connection)
        assert rest.ask("POST", HEAD).status == 503, "no other waits any more"
    assert (refused.status, "The broker is stopping" in refused.detail) == (503, True)


# --- what it may hold ---


def test_the_waiting_receives_of_a_key_are_limited(
    broker: BrokerThread, rest: RestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "MAX_WAITING_RECEIVES_OF_RULE", 2)
    with asked(broker, rest) as first, asked(broker, rest, count=2):
        refused = rest.ask("POST", HEAD)
        assert (refused.status, "2 receives with this key are waiting" in refused.detail) == (503, True)
        rest.send("one")
        assert rest.end(first).status == 201
        with asked(broker, rest, count=2):
            pass


def test_only_so_many_receives_wait_in_all(
    broker: BrokerThread, rest: RestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "MAX_WAITING_RECEIVES", 1)
    with asked(broker, rest):
        assert rest.ask("POST", HEAD).status == 503
    eventually(lambda: waiting(broker) == 0)
    with asked(broker, rest):
        pass


def test_locked_bytes_are_limited_and_a_receive_waits_for_room(
    broker: BrokerThread, rest: RestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "MAX_HELD_BYTES", 100_000)
    with asked(broker, rest) as waiting_first, asked(broker, rest, count=2) as waiting_second:
        for _ in range(2):
            rest.send(b"x" * 150_000)
        first = rest.end(waiting_first)
        assert first.status == 201
        refused = rest.ask("POST", HEAD + "?timeout=0")
        assert (refused.status, "Complete or unlock some" in refused.detail) == (403, True)
        assert rest.ask("DELETE", first.location).status == 200
        assert rest.end(waiting_second).status == 201


def test_a_wait_ends_when_so_many_requests_are_behind_it_that_no_more_are_read(
    broker: BrokerThread, rest: RestClient
) -> None:
    """The end of the client would not be noticed, and it would be given messages that nobody takes."""
    request = f"POST {HEAD} HTTP/1.1\r\nHost: {HOST}\r\nAuthorization: {rest.token()}\r\n\r\n".encode()
    for first in (request, request * 200):
        with socket.create_connection((HOST, rest.port)) as line:
            line.sendall(first)
            if first == request:
                eventually(lambda: waiting(broker) == 1)
                line.sendall(request * 200)
            line.settimeout(PATIENCE)
            answer = b"".join(iter(lambda line=line: line.recv(65536), b""))  # type: ignore[misc]
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.count(b"HTTP/1.1") == 1
        assert b"Too many requests were sent on this connection while" in answer
    eventually(lambda: waiting(broker) == 0)
    rest.send("one")
    assert rest.lock().broker_properties["DeliveryCount"] == 1


def test_a_few_requests_behind_one_that_waits_are_answered_in_turn(broker: BrokerThread, rest: RestClient) -> None:
    request = f"DELETE {HEAD} HTTP/1.1\r\nHost: {HOST}\r\nAuthorization: {rest.token()}\r\n\r\n".encode()
    with socket.create_connection((HOST, rest.port)) as line:
        line.sendall(request * 5)
        eventually(lambda: waiting(broker) == 1)
        for number in range(5):
            rest.send(f"message {number}")
        line.settimeout(PATIENCE)
        answer = b""
        while b"message 4" not in answer:
            answer += line.recv(65536)
    assert answer.count(b"HTTP/1.1 200 OK") == 5


def test_the_bytes_of_request_bodies_being_read_are_limited(rest: RestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "MAX_RULE_BODIES_BYTES", 1)
    answer = rest.ask("POST", "/queue/messages", b"x" * 200_000)
    assert (answer.status, "too many request bodies at once" in answer.detail) == (503, True)


def test_amqp_and_http_clients_can_settle_with_each_others_lock_tokens(broker: BrokerThread, rest: RestClient) -> None:
    rest.send("one")
    with connect(broker.connection_string) as connection:
        receiver = connection.receiver("queue")
        (message,) = receiver.receive(1, timeout=10)
        token = message.lock_token
        assert rest.ask("DELETE", f"/queue/messages/1/{token}").status == 200
        connection.sender("queue").send(Message(data=[b"two"]))
    assert _body(rest.take(timeout=10)) == b"two"


def _body(answer: Answer) -> bytes:
    assert answer.status == 200
    return answer.body
