"""The management node: valid and invalid requests of every kind.

Every request has one answer, and the connection stays open: each test of an invalid request ends with a valid one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest

from nodes.asking import (
    FOREVER,
    GOOD,
    PEEK,
    Management,
    RequestLinks,
    accept_session,
    annotation,
    body_of,
    defer,
    for_later,
    full_name,
    messages_in,
    number_of,
    receive,
    refusal_of,
    request,
    send,
    status_of,
    token_of,
)
from nodes.conftest import LOCK_MS
from peeklock.amqp.message import Message, Properties
from peeklock.amqp.termini import Target
from peeklock.amqp.types import Array, Int, Symbol, Timestamp, UInt, ULong
from peeklock.broker.agenda import system_clock
from peeklock.broker.errors import StorageFailed
from peeklock.client import Connection, LinkClosed, ReceivedMessage, ReceiveMode, Requester, SendRejected, connect
from peeklock.entities.authorization import ALL_RIGHTS, AuthorizationRule, Right
from peeklock.entities.definitions import QueueDefinition
from peeklock.entities.namespaces import NamespaceDefinition
from peeklock.nodes.operation_table import OPERATIONS
from peeklock.nodes.request_response import ReplyNode
from peeklock.store.base import StoreError
from server.held_store import HeldStore
from serving import BrokerThread, StartBroker

ARGUMENT_ERROR = (400, "com.microsoft:argument-error")
LOST_LOCK = (410, "com.microsoft:message-lock-lost")
LOST_SESSION = (410, "com.microsoft:session-lock-lost")


def works(management: Management) -> bool:
    """Return whether the node still answers on the same links."""
    return status_of(management.ask("peek-message", PEEK)) in (200, 204)


def test_there_is_a_request_for_each_operation() -> None:
    assert {full_name(name) for name in GOOD} == set(OPERATIONS)


# --- what is asked for ---


@pytest.mark.parametrize("name", ["com.microsoft:no-such-operation", "", "peek-message", "READ"])
def test_an_unknown_operation_is_not_implemented(name: str, management: Management) -> None:
    message = Message(application_properties={"operation": name}, value={})
    status, condition, text = refusal_of(management.requester.request(message))
    assert (status, condition) == (501, "amqp:not-implemented")
    assert f"'{name}'" in text
    assert works(management)


@pytest.mark.parametrize("properties", [None, {}, {"operation": None}, {"operation": Int(1)}, {"operation": b"x"}])
def test_a_request_without_an_operation_gets_an_error(
    properties: dict[str, Any] | None, management: Management
) -> None:
    message = Message(application_properties=properties, value={})
    status, condition, text = refusal_of(management.requester.request(message))
    assert (status, condition) == ARGUMENT_ERROR
    assert "'operation'" in text
    assert works(management)


def test_the_operation_may_be_a_symbol(management: Management) -> None:
    message = Message(application_properties={"operation": Symbol("com.microsoft:peek-message")}, value=PEEK)
    assert body_of(management.requester.request(message), 204) == {}


@pytest.mark.parametrize(
    "body",
    [
        {"value": None},
        {"value": "text"},
        {"value": [1]},
        {"value": Array([1], int)},
        {},
        {"data": [b"bytes"]},
        {"sequences": [[1]]},
    ],
    ids=lambda body: next(iter(body), "none"),
)
def test_a_body_that_is_not_a_map_gets_an_error(body: dict[str, Any], management: Management) -> None:
    message = Message(application_properties={"operation": "com.microsoft:peek-message"}, **body)
    status, condition, text = refusal_of(management.requester.request(message))
    assert (status, condition) == ARGUMENT_ERROR
    assert text == "The body of the request must be a map."
    assert works(management)


def required_keys() -> Iterator[Any]:
    for name, operation in OPERATIONS.items():
        for field in operation.request:
            if field.required:
                yield pytest.param(name.removeprefix("com.microsoft:"), field.name, id=f"{name}-{field.name}")


@pytest.mark.parametrize(("operation", "key"), list(required_keys()))
def test_a_missing_key_is_named(operation: str, key: str, management: Management) -> None:
    for body in ({k: v for k, v in GOOD[operation].items() if k != key}, {**GOOD[operation], key: None}):
        status, condition, text = management.refusal(operation, body)
        assert (status, condition) == ARGUMENT_ERROR
        assert f"'{key}'" in text
    assert works(management)


def test_a_missing_key_of_a_message_to_schedule_is_named(management: Management) -> None:
    status, condition, text = management.refusal("schedule-message", {"messages": [{"message-id": "m"}]})
    assert (status, condition) == ARGUMENT_ERROR
    assert "'message'" in text


def all_keys() -> Iterator[Any]:
    for name, operation in OPERATIONS.items():
        for field in operation.request:
            yield pytest.param(name.removeprefix("com.microsoft:"), field.name, id=f"{name}-{field.name}")


@pytest.mark.parametrize(("operation", "key"), list(all_keys()))
def test_the_error_for_a_value_of_the_wrong_type_names_the_key(
    operation: str, key: str, management: Management
) -> None:
    for value in (1.5, [1.5], Array([b"x"], bytes), ULong(2**64 - 1), [Array([ULong(2**64 - 1)], ULong)]):
        status, condition, text = management.refusal(operation, {**GOOD[operation], key: value})
        assert (status, condition) == ARGUMENT_ERROR, value
        assert f"'{key}'" in text
    assert works(management)


@pytest.mark.parametrize("operation", ["receive-by-sequence-number", "cancel-scheduled-message"])
def test_the_error_for_a_number_beyond_a_long_names_the_key(operation: str, management: Management) -> None:
    numbers = Array([1, 2**63], ULong)
    status, condition, text = management.refusal(operation, {**GOOD[operation], "sequence-numbers": numbers})
    assert (status, condition) == ARGUMENT_ERROR
    assert "'sequence-numbers'" in text


@pytest.mark.parametrize(
    ("operation", "key", "empty"),
    [
        ("renew-lock", "lock-tokens", Array([], UUID)),
        ("update-disposition", "lock-tokens", []),
        ("receive-by-sequence-number", "sequence-numbers", Array([], int)),
        ("cancel-scheduled-message", "sequence-numbers", []),
        ("schedule-message", "messages", []),
    ],
)
def test_the_error_for_an_empty_array_names_the_key(
    operation: str, key: str, empty: Any, management: Management
) -> None:
    status, condition, text = management.refusal(operation, {**GOOD[operation], key: empty})
    assert (status, condition) == ARGUMENT_ERROR
    assert text == f"'{key}' is empty."
    assert works(management)


@pytest.mark.parametrize(
    ("operation", "changes"),
    [
        ("peek-message", {"message-count": Int(0)}),
        ("peek-message", {"message-count": Int(-1)}),
        ("receive-by-sequence-number", {"receiver-settle-mode": UInt(2)}),
        ("update-disposition", {"disposition-status": "eaten"}),
        ("update-disposition", {"deadletter-reason": "x" * 4097}),
        ("batch-delete-messages", {"message-count": Int(0)}),
        ("schedule-message", {"messages": [{"message": b"no message"}]}),
        ("get-message-sessions", {"skip": Int(-1)}),
        ("get-message-sessions", {"top": Int(0)}),
    ],
)
def test_a_value_out_of_range_is_refused(operation: str, changes: dict[str, Any], connection: Connection) -> None:
    management = Management(connection, "sessions" if "sessions" in operation else "queue")
    status, _, _ = management.refusal(operation, {**GOOD[operation], **changes})
    assert status == 400
    assert works(management)


def test_a_null_value_counts_as_an_absent_key(
    broker: BrokerThread, connection: Connection, management: Management
) -> None:
    send(connection, b"x")
    nulls = {"session-id": None, "omit-message-body": None}
    assert len(messages_in(management.ok("peek-message", {**PEEK, **nulls}))) == 1
    (message,) = receive(connection.receiver("queue"), 1)
    body = {
        "disposition-status": "completed",
        "lock-tokens": Array([token_of(message)], UUID),
        "deadletter-reason": None,
        "deadletter-description": None,
        "properties-to-modify": None,
        "session-id": None,
    }
    assert management.ok("update-disposition", body, {"com.microsoft:server-timeout": None}) == {}
    item = {**for_later(FOREVER), "message-id": None, "session-id": None, "partition-key": None}
    assert management.ok("schedule-message", {"messages": [item]}) == {"sequence-numbers": [2]}


@pytest.mark.parametrize("wide", [Int, UInt, ULong, int])
def test_integers_may_have_any_width(wide: type[int], connection: Connection, management: Management) -> None:
    numbers = defer(connection, b"x")
    assert len(management.peek(wide(1), wide(5))) == 1
    body = {"sequence-numbers": Array(numbers, wide), "receiver-settle-mode": wide(0)}
    assert len(management.ok("receive-by-sequence-number", body)["messages"]) == 1


def test_lists_are_accepted_as_arrays_and_symbols_as_strings(connection: Connection, management: Management) -> None:
    send(connection, b"x")
    (message,) = receive(connection.receiver("queue"), 1)
    body = {Symbol("disposition-status"): Symbol("completed"), Symbol("lock-tokens"): [token_of(message)]}
    assert management.ok("update-disposition", body) == {}


def test_unknown_keys_are_ignored(management: Management) -> None:
    response = management.ask("peek-message", {**PEEK, "color": "blue", 5: [1]}, {"type": "entity-mgmt"})
    assert body_of(response, 204) == {}


def test_an_unknown_token_is_a_lost_lock(management: Management) -> None:
    for operation in ("renew-lock", "update-disposition"):
        assert management.refusal(operation, GOOD[operation])[:2] == LOST_LOCK
    assert works(management)


def test_a_token_of_another_queue_is_a_lost_lock(connection: Connection, management: Management) -> None:
    send(connection, b"x")
    (message,) = receive(connection.receiver("queue"), 1)
    dead_letters = Management(connection, "queue/$deadletterqueue")
    body = {"lock-tokens": Array([token_of(message)], UUID)}
    assert dead_letters.refusal("renew-lock", body)[:2] == LOST_LOCK
    assert management.ok("renew-lock", body)


def test_a_token_is_good_after_its_link_has_closed_and_on_another_connection(
    broker: BrokerThread, connection: Connection
) -> None:
    send(connection, b"x")
    with connection.receiver("queue", credit=1) as receiver:
        (message,) = receive(receiver, 1)
    with connect(broker.connection_string) as another:
        body = {"disposition-status": "completed", "lock-tokens": Array([token_of(message)], UUID)}
        assert Management(another).ok("update-disposition", body) == {}
    assert broker.counters().active == 0


def test_a_settlement_is_accepted_once(broker: BrokerThread, connection: Connection, management: Management) -> None:
    send(connection, b"x")
    (message,) = receive(connection.receiver("queue"), 1)
    body = {"disposition-status": "completed", "lock-tokens": Array([token_of(message)] * 3, UUID)}
    assert management.ok("update-disposition", body) == {}
    assert management.refusal("update-disposition", body)[:2] == LOST_LOCK


# --- envelopes ---


@pytest.mark.parametrize("id", ["text", ULong(2**64 - 1), UUID(int=5), b"\x00binary\xff", None], ids=repr)
def test_the_message_id_is_returned_unchanged_as_correlation_id(id: Any, connection: Connection) -> None:
    links = RequestLinks(connection)
    for operation in ("peek-message", "no-such-operation"):
        response = links.ask(request(operation, PEEK, id=id))
        assert response.properties == Properties(correlation_id=id)
        assert response.properties is not None
        assert type(response.properties.correlation_id) is type(id)


def test_replies_are_sent_to_the_address_in_reply_to(connection: Connection) -> None:
    here = RequestLinks(connection, address="here")
    there = RequestLinks(connection, address="there")
    here.requests.send(request("peek-message", PEEK, id="by address", reply_to="there"))
    response = there.response()
    assert response.properties == Properties(correlation_id="by address")
    here.requests.send(request("peek-message", PEEK, id="by name", reply_to=there.responses.name))
    response = there.response()
    assert response.properties == Properties(correlation_id="by name")
    assert here.responses.receive(timeout=0) == []


@pytest.mark.parametrize("reply_to", [None, "nobody"])
def test_without_a_valid_reply_to_replies_use_the_nodes_link(reply_to: str | None, connection: Connection) -> None:
    RequestLinks(connection, "sessions", address="elsewhere")
    response = RequestLinks(connection).ask(request("peek-message", PEEK, id="r", reply_to=reply_to))
    assert response.properties == Properties(correlation_id="r")


def test_without_a_link_for_replies_the_request_is_rejected(broker: BrokerThread, connection: Connection) -> None:
    requests = connection.sender("queue/$management")
    with pytest.raises(SendRejected) as refused:
        requests.send(request("peek-message", PEEK, id="r"))
    assert refused.value.condition == "amqp:not-allowed"
    assert "queue/$management" in refused.value.description
    assert works(Management(connection))
    links = RequestLinks(connection)
    links.responses.close()
    requests.send(request("peek-message", PEEK, id="r"))  # the other requester's link takes the reply


def test_an_unreadable_request_is_rejected(connection: Connection) -> None:
    links = RequestLinks(connection)
    for rubbish in (b"", b"\x00", b"rubbish", b"\x00\x53\x77\xc1"):
        if rubbish == b"":
            assert refusal_of(links.ask(rubbish))[:2] == ARGUMENT_ERROR
            continue
        with pytest.raises(SendRejected) as refused:
            links.requests.send(rubbish)
        assert refused.value.condition == "amqp:decode-error"
    assert body_of(links.ask(request("peek-message", PEEK)), 204) == {}


def test_a_settled_request_is_answered(connection: Connection) -> None:
    links = RequestLinks(connection)
    links.requests.send(request("peek-message", PEEK, id="r"), settled=True)
    assert links.response().properties == Properties(correlation_id="r")


def test_a_request_over_the_nodes_size_limit_is_rejected(connection: Connection) -> None:
    links = RequestLinks(connection)
    limit = links.requests.max_message_size
    assert limit == 16 * 1024 * 1024
    assert links.requests.remote is not None
    links.requests.remote.max_message_size = None  # or else the client would not send it
    with pytest.raises(SendRejected) as refused:
        links.requests.send(request("peek-message", {**PEEK, "filler": bytes(limit)}))
    assert refused.value.condition == "amqp:link:message-size-exceeded"
    assert body_of(links.ask(request("peek-message", PEEK)), 204) == {}


def test_many_requests_are_processed_at_a_time(connection: Connection, management: Management) -> None:
    send(connection, *(b"%d" % number for number in range(20)))
    requester = management.requester
    asked = [
        requester.submit(request("peek-message", {"from-sequence-number": 1 + n % 20, "message-count": Int(1)}))
        for n in range(500)
    ]
    for n, id in reversed(list(enumerate(asked))):
        (message,) = messages_in(body_of(requester.response(id), 200))
        assert number_of(message) == 1 + n % 20


def test_replies_without_credit_are_kept_up_to_a_limit(connection: Connection) -> None:
    links = RequestLinks(connection, credit=0)
    for _ in range(1000):
        links.requests.send(request("no-such-operation", {}))  # answered before it is accepted
    with pytest.raises(SendRejected) as refused:
        links.requests.send(request("peek-message", PEEK))
    assert refused.value.condition == "amqp:resource-limit-exceeded"
    assert len(receive(links.responses, 1000)) == 1000
    assert body_of(links.ask(request("peek-message", PEEK)), 204) == {}


def test_requests_of_several_nodes_are_processed_at_a_time(connection: Connection, management: Management) -> None:
    send(connection, b"plain")
    send(connection, b"sessionful", to="sessions", session="s")
    other = Management(connection, "sessions")
    first, second = management.requester.submit(request("peek-message", PEEK)), None
    second = other.requester.submit(request("peek-message", PEEK))
    (message,) = messages_in(body_of(other.requester.response(second), 200))
    assert message.body == b"sessionful"
    (message,) = messages_in(body_of(management.requester.response(first), 200))
    assert message.body == b"plain"


def test_the_error_has_the_tracking_id(management: Management) -> None:
    tracking = {"com.microsoft:tracking-id": "track-me"}
    assert management.refusal("renew-lock", {}, tracking)[2].endswith(" TrackingId:track-me")
    assert "TrackingId" not in management.refusal("renew-lock", {})[2]
    assert management.ask("peek-message", PEEK, tracking)


def test_an_internal_failure_is_reported_without_detail(broker: BrokerThread, management: Management) -> None:
    queue: Any = broker.call(lambda: broker.broker.namespace.queue("queue"))

    def fail(*_: object) -> None:
        raise ValueError("secret")

    queue._store.read = fail
    status, condition, text = management.refusal("peek-message", PEEK)
    assert (status, condition) == (500, "amqp:internal-error")
    assert "secret" not in text
    del queue._store.read
    assert works(management)


def test_an_answer_that_cannot_be_encoded_is_a_failure_inside_the_broker(
    management: Management, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "com.microsoft:renew-lock"
    monkeypatch.setitem(OPERATIONS, name, replace(OPERATIONS[name], run=lambda call: call.answer({"x": 2**64})))
    status, condition, _ = management.refusal("renew-lock", GOOD["renew-lock"])
    assert (status, condition) == (500, "amqp:internal-error")
    assert works(management)


# --- time-outs ---


@pytest.fixture
def held(start_broker: StartBroker) -> tuple[BrokerThread, HeldStore]:
    """Return a broker whose disk blocks on request."""
    store = HeldStore()
    queues = (QueueDefinition(name="queue"), QueueDefinition(name="sessions", requires_session=True))
    return start_broker(*queues, make_store=lambda _: store), store


@pytest.mark.parametrize("key", ["com.microsoft:server-timeout", "server-timeout"])
@pytest.mark.parametrize("kind", [UInt, ULong, int])
def test_the_clients_time_out_is_honoured(key: str, kind: type[int], held: tuple[BrokerThread, HeldStore]) -> None:
    broker, store = held
    with connect(broker.connection_string) as connection:
        management = Management(connection)
        broker.call(store.hold)
        body = {"messages": [for_later(FOREVER)]}
        asked = management.requester.submit(request("schedule-message", body, {key: kind(5000)}))
        assert status_of(management.ask("peek-message", PEEK)) == 204  # so the first one is waiting for its commit
        broker.advance(4.999)
        assert status_of(management.ask("peek-message", PEEK)) == 204
        broker.advance(0.001)
        status, condition, _ = refusal_of(management.requester.response(asked))
        assert (status, condition) == (408, "com.microsoft:timeout")
        broker.call(store.let_go)
        assert len(management.peek()) == 1  # it was only late: the answer was no promise that nothing happens


def test_an_answer_in_time_is_the_only_one(held: tuple[BrokerThread, HeldStore]) -> None:
    broker, _ = held
    with connect(broker.connection_string) as connection:
        links = RequestLinks(connection)
        body = {"messages": [for_later(FOREVER)]}
        assert body_of(links.ask(request("schedule-message", body, {"server-timeout": UInt(5000)})), 200)
        broker.advance(10)
        assert links.responses.receive(timeout=0) == []
        assert body_of(links.ask(request("peek-message", PEEK)), 200)


def test_without_a_time_out_a_request_waits_for_the_store(held: tuple[BrokerThread, HeldStore]) -> None:
    broker, store = held
    with connect(broker.connection_string) as connection:
        management = Management(connection)
        broker.call(store.hold)
        asked = management.requester.submit(request("schedule-message", {"messages": [for_later(FOREVER)]}))
        assert works(management)
        broker.advance(600)
        assert works(management)
        broker.call(store.let_go)
        assert body_of(management.requester.response(asked), 200) == {"sequence-numbers": [1]}


@pytest.mark.parametrize("value", ["5", 1.5, True, b"5"])
def test_a_time_out_that_is_no_number_is_refused(value: Any, management: Management) -> None:
    status, condition, text = management.refusal("peek-message", PEEK, {"com.microsoft:server-timeout": value})
    assert (status, condition) == ARGUMENT_ERROR
    assert "com.microsoft:server-timeout" in text
    assert works(management)


def test_a_failure_of_the_store_is_reported_and_the_next_request_succeeds(held: tuple[BrokerThread, HeldStore]) -> None:
    broker, store = held
    with connect(broker.connection_string) as connection:
        management = Management(connection)
        store.fails = lambda changes: StoreError("broken")
        status, condition, _ = management.refusal("schedule-message", GOOD["schedule-message"])
        assert (status, condition) == (StorageFailed.status, StorageFailed.condition)
        store.fails = lambda changes: None
        assert works(management)


def test_a_receiver_that_deletes_gets_its_message_when_the_store_works_again(
    held: tuple[BrokerThread, HeldStore],
) -> None:
    broker, store = held
    with connect(broker.connection_string) as connection:
        with connection.sender("queue") as sender:
            sender.send(Message(data=[b"x"]))
        store.fails = lambda changes: StoreError("broken")
        with connection.receiver("queue", mode=ReceiveMode.RECEIVE_AND_DELETE, credit=1) as receiver:
            assert receiver.receive(timeout=0.5) == []
            store.fails = lambda changes: None
            received: list[ReceivedMessage] = []
            for _ in range(20):
                broker.advance(1)
                received += receiver.receive(timeout=0.2)
            assert [bytes(message.message.data[0]) for message in received if message.message.data] == [b"x"]


def test_a_client_that_disconnects_before_the_answer_affects_no_other_client(
    held: tuple[BrokerThread, HeldStore],
) -> None:
    broker, store = held
    with connect(broker.connection_string) as connection:
        broker.call(store.hold)
        with connect(broker.connection_string) as leaving:
            management = Management(leaving)
            body = {"server-timeout": UInt(5000)}
            management.requester.submit(request("schedule-message", GOOD["schedule-message"], body))
            assert works(management)
        broker.advance(6)
        broker.call(store.let_go)
        assert len(Management(connection).peek()) == 1


def test_a_request_with_a_message_that_is_being_settled_settles_none(
    held: tuple[BrokerThread, HeldStore],
) -> None:
    broker, store = held
    with connect(broker.connection_string) as connection:
        management = Management(connection)
        send(connection, b"first", b"second")
        first, second = (token_of(message) for message in receive(connection.receiver("queue"), 2))
        broker.call(store.hold)
        body = {"disposition-status": "completed", "lock-tokens": Array([second], UUID)}
        asked = management.requester.submit(request("update-disposition", body))
        both = {**body, "lock-tokens": Array([first, second], UUID)}
        assert management.refusal("update-disposition", both)[:2] == LOST_LOCK
        broker.call(store.let_go)
        assert body_of(management.requester.response(asked), 200) == {}
        assert broker.counters().active == 1
        assert management.ok("update-disposition", {**body, "lock-tokens": Array([first], UUID)}) == {}


class RunningClock:
    """A clock that, once it runs, advances with each reading."""

    now = staticmethod(system_clock.now)

    def __init__(self) -> None:
        self.runs = False
        self.passed = 0

    def monotonic(self) -> int:
        self.passed += self.runs
        return self.passed

    def move(self, milliseconds: int, *, runs: bool) -> None:
        self.passed += milliseconds
        self.runs = runs


@pytest.mark.parametrize("status", ["completed", "suspended", "deferred"])
def test_locks_that_expire_during_a_settlement_are_all_settled_or_none(status: str, start_broker: StartBroker) -> None:
    clock = RunningClock()
    queue = QueueDefinition(name="queue", lock_duration_ms=LOCK_MS)
    broker = start_broker(namespace=NamespaceDefinition(queues=(queue,)), clock=clock)
    outcomes = set()
    with connect(broker.connection_string) as connection:
        management = Management(connection)
        for margin in range(1, 30):
            send(connection, *[b"x"] * 4)
            with connection.receiver("queue", credit=4) as receiver:
                tokens = [token_of(message) for message in receive(receiver, 4)]
            broker.call(partial(clock.move, LOCK_MS - margin, runs=True))
            body = {"disposition-status": status, "lock-tokens": Array(tokens, UUID)}
            answered = status_of(management.ask("update-disposition", body))
            broker.call(partial(clock.move, LOCK_MS, runs=False))
            broker.advance(0)
            found = management.peek()
            states = {annotation(message, "x-opt-message-state") for message in found}
            left = {200: (0, set()), 410: (4, {0})}
            if status == "deferred":
                left[200] = 4, {1}
            assert (len(found), states) == left[answered], margin
            outcomes.add(answered)
            numbers = Array([annotation(message, "x-opt-sequence-number") for message in found], int)
            if states == {1}:
                fetching = {"sequence-numbers": numbers, "receiver-settle-mode": UInt(0)}
                assert status_of(management.ask("receive-by-sequence-number", fetching)) == 200
            elif found:
                with connection.receiver("queue", credit=4, mode=ReceiveMode.RECEIVE_AND_DELETE) as receiver:
                    receive(receiver, 4)
    assert outcomes == {200, 410}


# --- sessions ---


def test_session_operations_require_the_session_lock(broker: BrokerThread, connection: Connection) -> None:
    accept_session(connection, "s")
    operations = ["renew-session-lock", "set-session-state", "get-session-state", "receive-by-sequence-number"]
    with connect(broker.connection_string) as another:
        theirs = Management(another, "sessions")
        for operation in operations:
            status, condition, text = theirs.refusal(operation, {**GOOD[operation], "session-id": "s"})
            assert (status, condition) == LOST_SESSION
            assert "'s'" in text
        assert works(theirs)
    assert Management(connection, "sessions").ok("renew-session-lock", {"session-id": "s"})


@pytest.mark.parametrize("operation", ["renew-session-lock", "set-session-state", "get-session-state"])
def test_the_associated_link_must_hold_the_session(operation: str, connection: Connection) -> None:
    mine, other = accept_session(connection, "mine"), accept_session(connection, "other")
    management = Management(connection, "sessions")
    body = {**GOOD[operation], "session-id": "mine"}
    assert status_of(management.ask(operation, body, {"associated-link-name": mine.name})) == 200
    for name in (other.name, "a link of long ago"):
        assert management.refusal(operation, body, {"associated-link-name": name})[:2] == LOST_SESSION
    mine.close()
    assert management.refusal(operation, body, {"associated-link-name": mine.name})[:2] == LOST_SESSION
    assert works(management)


def test_a_request_without_a_session_id_uses_the_session_of_the_associated_link(connection: Connection) -> None:
    for body, session in ((b"m1", "mine"), (b"o1", "other"), (b"m2", "mine")):
        send(connection, body, to="sessions", session=session)
    mine, other = accept_session(connection, "mine"), accept_session(connection, "other")
    (message,) = receive(mine, 1)
    management = Management(connection, "sessions")
    mine.modify([message], delivery_failed=False, undeliverable_here=True, wait=True)
    fetching = {"sequence-numbers": Array([number_of(message)], int), "receiver-settle-mode": UInt(1)}
    for name, status in ((other.name, 404), ("a link of long ago", 400), (mine.name, 200)):
        asked = management.ask("receive-by-sequence-number", fetching, {"associated-link-name": name})
        assert status_of(asked) == status
    looking = {"from-sequence-number": 1, "message-count": 10}
    for name, count in ((mine.name, 2), (other.name, 1), ("a link of long ago", 3)):
        found = management.ok("peek-message", looking, {"associated-link-name": name})
        assert len(found["messages"]) == count


def test_the_associated_link_of_other_operations_may_be_any(connection: Connection, management: Management) -> None:
    assert status_of(management.ask("peek-message", PEEK, {"associated-link-name": "some sender"})) == 204


def test_a_settlement_for_the_wrong_session_is_410(broker: BrokerThread, connection: Connection) -> None:
    send(connection, b"x", to="sessions", session="mine")
    receiver = accept_session(connection, "mine")
    accept_session(connection, "other")
    (message,) = receive(receiver, 1)
    management = Management(connection, "sessions")
    body = {"disposition-status": "completed", "lock-tokens": Array([token_of(message)], UUID)}
    for wrong in ("other", "of nobody"):
        assert management.refusal("update-disposition", {**body, "session-id": wrong})[:2] == LOST_SESSION
    assert broker.counters("sessions").active == 1
    assert management.ok("update-disposition", {**body, "session-id": "mine"}) == {}
    assert broker.counters("sessions").active == 0


@pytest.mark.parametrize("named", [{}, {"session-id": "mine"}], ids=["without session-id", "with session-id"])
def test_messages_of_a_session_are_settled_only_by_the_connection_that_holds_it(
    named: dict[str, str], broker: BrokerThread, connection: Connection
) -> None:
    send(connection, b"x", to="sessions", session="mine")
    receiver = accept_session(connection, "mine")
    (message,) = receive(receiver, 1)
    tokens = {"lock-tokens": Array([token_of(message)], UUID)}
    with connect(broker.connection_string) as another:
        stranger = Management(another, "sessions")
        for status in ("completed", "abandoned", "suspended", "deferred"):
            body = {"disposition-status": status, **tokens, **named}
            assert stranger.refusal("update-disposition", body)[:2] == LOST_SESSION
        assert stranger.refusal("renew-lock", tokens)[:2] == LOST_SESSION
        # The name of the holder's link is no secret, and says nothing about another connection.
        body = {"disposition-status": "completed", **tokens, **named}
        asked = stranger.ask("update-disposition", body, {"associated-link-name": receiver.name})
        assert status_of(asked) == 410
    assert broker.counters("sessions").active == 1
    assert Management(connection, "sessions").ok("update-disposition", {**body, **named}) == {}
    assert broker.counters("sessions").active == 0


def test_messages_of_a_session_are_settled_by_the_link_that_holds_it(
    broker: BrokerThread, connection: Connection
) -> None:
    send(connection, b"x", to="sessions", session="mine")
    receiver, other = accept_session(connection, "mine"), accept_session(connection, "other")
    (message,) = receive(receiver, 1)
    management = Management(connection, "sessions")
    body = {"disposition-status": "completed", "lock-tokens": Array([token_of(message)], UUID)}
    assert status_of(management.ask("update-disposition", body, {"associated-link-name": other.name})) == 410
    assert status_of(management.ask("update-disposition", body, {"associated-link-name": receiver.name})) == 200


def test_messages_of_a_session_that_another_receiver_holds_are_not_deleted(
    broker: BrokerThread, connection: Connection
) -> None:
    send(connection, b"x", to="sessions", session="mine")
    body = {"message-count": Int(1), "enqueued-time-utc": Timestamp(FOREVER), "session-id": "mine"}
    with connect(broker.connection_string) as another:
        holder = accept_session(another, "mine", credit=0)
        management = Management(connection, "sessions")
        assert management.refusal("batch-delete-messages", body)[:2] == LOST_SESSION
        assert broker.counters("sessions").active == 1
        holder.close()
        assert management.ok("batch-delete-messages", body) == {"message-count": 1}


def test_messages_of_a_session_are_not_renewed_one_by_one(connection: Connection) -> None:
    send(connection, b"x", to="sessions", session="s")
    (message,) = receive(accept_session(connection, "s"), 1)
    management = Management(connection, "sessions")
    status, condition, text = management.refusal("renew-lock", {"lock-tokens": Array([token_of(message)], UUID)})
    assert (status, condition) == (400, "amqp:not-allowed")
    assert "session" in text


@pytest.mark.parametrize(
    "operation", ["renew-session-lock", "set-session-state", "get-session-state", "get-message-sessions"]
)
@pytest.mark.parametrize("entity", ["queue", "queue/$deadletterqueue", "sessions/$deadletterqueue"])
def test_a_queue_without_sessions_has_no_session_operations(
    operation: str, entity: str, connection: Connection
) -> None:
    status, condition, text = Management(connection, entity).refusal(operation, GOOD[operation])
    assert (status, condition) == (400, "amqp:not-allowed")
    assert "has no sessions" in text


def test_deferred_messages_of_a_session_are_fetched_with_its_id(connection: Connection) -> None:
    send(connection, b"x", to="sessions", session="s")
    receiver = accept_session(connection, "s")
    messages = receive(receiver, 1)
    receiver.modify(messages, delivery_failed=False, undeliverable_here=True, wait=True)
    management = Management(connection, "sessions")
    body = {"sequence-numbers": Array([number_of(messages[0])], int), "receiver-settle-mode": UInt(1)}
    status, condition, text = management.refusal("receive-by-sequence-number", body)
    assert (status, condition) == ARGUMENT_ERROR
    assert "'session-id'" in text
    accept_session(connection, "other")
    refused = management.refusal("receive-by-sequence-number", {**body, "session-id": "other"})
    assert refused[:2] == (404, "com.microsoft:message-not-found")
    assert len(management.ok("receive-by-sequence-number", {**body, "session-id": "s"})["messages"]) == 1


def test_scheduling_without_a_session_id_is_refused_where_sessions_are_required(
    broker: BrokerThread, connection: Connection
) -> None:
    management = Management(connection, "sessions")
    status, condition, _ = management.refusal("schedule-message", {"messages": [for_later(FOREVER)]})
    assert (status, condition) == (400, "amqp:not-allowed")
    items = [for_later(broker.clock() + 1000, session="s")]
    assert management.ok("schedule-message", {"messages": items}) == {"sequence-numbers": [1]}
    broker.advance(2)
    assert receive(accept_session(connection, "s"), 1)[0].body == b"later"


def test_a_session_state_larger_than_a_message_is_refused(connection: Connection) -> None:
    accept_session(connection, "s")
    management = Management(connection, "sessions")
    body = {"session-id": "s", "session-state": bytes(256 * 1024 + 1)}
    status, condition, _ = management.refusal("set-session-state", body)
    assert (status, condition) == (403, "amqp:link:message-size-exceeded")
    body["session-state"] = bytes(256 * 1024)
    assert management.ok("set-session-state", body) == {}


def test_peek_message_with_a_session_state_sets_it(connection: Connection) -> None:
    accept_session(connection, "s")
    management = Management(connection, "sessions")
    assert management.ok("peek-message", {"session-id": "s", "session-state": b"odd"}) == {}
    assert management.ok("get-session-state", {"session-id": "s"}) == {"session-state": b"odd"}
    assert management.ok("peek-message", {"session-id": "s", "session-state": None}) == {}
    assert management.ok("get-session-state", {"session-id": "s"}) == {"session-state": None}
    # With a number to start from it is a peek, whatever else it says.
    assert body_of(management.ask("peek-message", {**PEEK, "session-id": "s", "session-state": b"x"}), 204) == {}


# --- peeking, deleting and settling many ---


def test_peek_shows_every_state_in_pages_until_204(
    broker: BrokerThread, connection: Connection, management: Management
) -> None:
    defer(connection, b"deferred")
    management.ok("schedule-message", {"messages": [for_later(FOREVER, b"scheduled")]})
    send(connection, b"locked", b"active")
    receive(connection.receiver("queue", credit=1), 1)
    found, first = [], 0
    while page := management.peek(first, 3):
        assert len(page) <= 3
        found += page
        first = number_of(page[-1]) + 1
    states = [(message.body, annotation(message, "x-opt-message-state")) for message in found]
    assert states == [(b"deferred", 1), (b"scheduled", 2), (b"locked", 0), (b"active", 0)]
    assert all(type(annotation(message, "x-opt-message-state")) is Int for message in found)
    assert all(annotation(message, "x-opt-locked-until") is None for message in found)
    assert all(message.header is not None and message.header.delivery_count == 0 for message in found)


@pytest.mark.interpreted
def test_peeked_messages_are_not_kept_for_a_client_without_credit(
    connection: Connection, management: Management, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(connection, b"x")
    fullness = iter([False, True])  # when the request came, and when its answer was there
    monkeypatch.setattr(ReplyNode, "full", property(lambda _: next(fullness, False)))
    status, condition, description = management.refusal("peek-message", PEEK)
    assert (status, condition) == (403, "amqp:resource-limit-exceeded")
    assert "Too many answers" in description
    assert works(management)


def test_peek_locks_nothing(connection: Connection, management: Management) -> None:
    send(connection, b"x")
    assert len(management.peek()) == 1
    assert receive(connection.receiver("queue"), 1)[0].body == b"x"


def test_peek_may_give_fewer_than_there_are_when_they_are_large(connection: Connection, management: Management) -> None:
    send(connection, *[bytes(250_000)] * 20)
    found, first = 0, 0
    while page := management.peek(first, 100):
        assert sum(len(message.data[0]) for message in page) <= 5 * 1024 * 1024
        found += len(page)
        first = number_of(page[-1]) + 1
    assert found == 20


def test_batch_delete_removes_messages(broker: BrokerThread, connection: Connection, management: Management) -> None:
    send(connection, b"locked", b"first", b"second", b"third")
    receive(connection.receiver("queue", credit=0), 1)
    broker.advance(1)
    before = Timestamp(broker.clock())
    send(connection, b"new")
    body = {"message-count": Int(2), "enqueued-time-utc": before}
    response = management.ok("batch-delete-messages", body)
    assert response == {"message-count": 2}
    assert type(response["message-count"]) is Int
    assert management.ok("batch-delete-messages", {**body, "message-count": Int(100)}) == {"message-count": 1}
    assert body_of(management.ask("batch-delete-messages", body), 204) == {}
    assert [message.body for message in management.peek()] == [b"locked", b"new"]


def test_thousands_of_tokens_are_settled_in_one_request(
    broker: BrokerThread, connection: Connection, management: Management
) -> None:
    count = 5000
    connection.sender("queue").send_all(Message(data=[b"x"]) for _ in range(count))
    tokens = [token_of(message) for message in receive(connection.receiver("queue", credit=1000), count)]
    body = {"disposition-status": "completed", "lock-tokens": Array([*tokens, uuid4()], UUID)}
    assert management.refusal("update-disposition", body)[:2] == LOST_LOCK
    assert broker.counters().active == count
    assert len(management.ok("renew-lock", {"lock-tokens": Array(tokens, UUID)})["expirations"]) == count
    assert management.ok("update-disposition", {**body, "lock-tokens": Array(tokens, UUID)}) == {}
    assert broker.counters().active == 0


def test_a_message_too_large_to_send_is_too_large_to_schedule(start_broker: StartBroker) -> None:
    broker = start_broker(QueueDefinition(name="queue"), QueueDefinition(name="small", max_message_size_in_kilobytes=1))
    with connect(broker.connection_string) as connection:
        for entity, size in (("queue", 256 * 1024), ("small", 1024)):
            management = Management(connection, entity)
            status, condition, _ = management.refusal(
                "schedule-message", {"messages": [for_later(FOREVER, bytes(size))]}
            )
            assert (status, condition) == (403, "amqp:link:message-size-exceeded")
            assert works(management)


# --- rights ---

RULES = {
    right: AuthorizationRule(name=f"{right}Only", primary_key=f"{right}-key", rights=frozenset({right}))
    for right in (Right.SEND, Right.LISTEN)
}


@pytest.fixture
def guarded(start_broker: StartBroker) -> BrokerThread:
    root = AuthorizationRule(name="root", primary_key="root-key", rights=ALL_RIGHTS)
    queues = (
        QueueDefinition(name="queue", authorization_rules=tuple(RULES.values())),
        QueueDefinition(name="another"),
    )
    return start_broker(namespace=NamespaceDefinition(queues=queues, authorization_rules=(root,)))


@contextmanager
def connected(broker: BrokerThread, right: Right | None) -> Iterator[Connection]:
    """Connect with a key that has only that right, or with no key."""
    address = broker.connection_string
    if right is None:
        address = f"amqp://127.0.0.1:{broker.broker.port}"
    else:
        address = address.replace("root-key", f"{right}-key").replace("=root;", f"={right}Only;")
    with connect(address) as connection:
        yield connection


@pytest.mark.parametrize("entity", ["queue", "queue/$deadletterqueue"])
@pytest.mark.parametrize("lacking", [Right.SEND, Right.LISTEN])
def test_each_operation_requires_its_right_and_a_refusal_does_not_detach_the_link(
    entity: str, lacking: Right, guarded: BrokerThread
) -> None:
    having = Right.LISTEN if lacking is Right.SEND else Right.SEND
    with connected(guarded, having) as connection:
        management = Management(connection, entity)
        for name, body in GOOD.items():
            response = management.ask(name, body)
            if OPERATIONS[full_name(name)].right is lacking:
                status, condition, text = refusal_of(response)
                assert (status, condition) == (401, "amqp:unauthorized-access"), name
                assert f"'{lacking}'" in text
            else:
                assert status_of(response) != 401, name
        assert not management.requester.closed


def test_the_right_is_checked_before_the_request_is_parsed(guarded: BrokerThread) -> None:
    with connected(guarded, Right.SEND) as connection:
        assert Management(connection).refusal("peek-message", {})[0] == 401


def test_without_any_claim_the_node_is_closed(guarded: BrokerThread) -> None:
    with connected(guarded, None) as connection:
        with pytest.raises(LinkClosed) as refused:
            connection.requester("queue/$management")
        assert refused.value.condition == "amqp:unauthorized-access"
        with pytest.raises(LinkClosed) as refused:
            connection.sender("queue/$management")
        assert refused.value.condition == "amqp:unauthorized-access"
        assert connection.is_open


def test_a_right_to_one_queue_gives_no_right_to_another(guarded: BrokerThread) -> None:
    with connected(guarded, Right.LISTEN) as connection:
        assert works(Management(connection))
        with pytest.raises(LinkClosed) as refused:
            connection.sender(Target(address="another/$management"))
        assert refused.value.condition == "amqp:unauthorized-access"
        assert works(Management(connection))


def test_an_expired_token_gives_no_right(broker: BrokerThread) -> None:
    with connect(broker.connection_string) as connection:
        management = Management(connection)
        broker.advance(365 * 24 * 3600)
        assert management.refusal("peek-message", PEEK)[:2] == (401, "amqp:unauthorized-access")
        assert not management.requester.closed


def test_an_entity_that_is_not_there_has_no_management_node(connection: Connection) -> None:
    with pytest.raises(LinkClosed) as refused:
        Requester(connection, "nowhere/$management", dynamic=False, timeout=10)
    assert refused.value.condition == "amqp:unauthorized-access"  # there is no token for what is not there
    connection.authenticate("")
    with pytest.raises(LinkClosed) as refused:
        Requester(connection, "nowhere/$management", dynamic=False, timeout=10)
    assert refused.value.condition == "amqp:not-found"
    assert "could not be found" in refused.value.description
    assert works(Management(connection))


# --- dead-letter queues ---


@pytest.mark.parametrize("entity", ["queue/$deadletterqueue", "QUEUE/$DeadLetterQueue"])
def test_a_dead_letter_queue_has_a_management_node_of_its_own(entity: str, connection: Connection) -> None:
    send(connection, b"bad", b"worse")
    receiver = connection.receiver("queue")
    receiver.reject(receive(receiver, 2), wait=True)
    management = Management(connection, entity)
    assert [message.body for message in management.peek()] == [b"bad", b"worse"]
    dead_letters = connection.receiver("queue/$deadletterqueue")
    first, second = receive(dead_letters, 2)
    tokens = Array([token_of(first), token_of(second)], UUID)
    assert len(management.ok("renew-lock", {"lock-tokens": tokens})["expirations"]) == 2
    body = {"disposition-status": "defered", "lock-tokens": tokens}
    assert management.ok("update-disposition", body) == {}
    numbers = Array([number_of(first), number_of(second)], int)
    fetch = {"sequence-numbers": numbers, "receiver-settle-mode": UInt(0)}
    assert len(management.ok("receive-by-sequence-number", fetch)["messages"]) == 2
    assert management.peek() == []


def test_nothing_is_scheduled_into_a_dead_letter_queue(connection: Connection) -> None:
    management = Management(connection, "queue/$deadletterqueue")
    status, condition, _ = management.refusal("schedule-message", GOOD["schedule-message"])
    assert (status, condition) == (400, "amqp:not-allowed")
    assert works(management)


def test_the_dead_letters_of_a_queue_with_sessions_are_peeked_without_one(connection: Connection) -> None:
    send(connection, b"bad", to="sessions", session="s")
    receiver = accept_session(connection, "s")
    receiver.reject(receive(receiver, 1), wait=True)
    (message,) = Management(connection, "sessions/$deadletterqueue").peek()
    assert message.properties is not None
    assert message.properties.group_id == "s"


def test_a_failed_renewal_does_not_extend_the_lock(
    broker: BrokerThread, connection: Connection, management: Management
) -> None:
    send(connection, b"x")
    (message,) = receive(connection.receiver("queue", credit=1), 1)
    tokens = Array([token_of(message), uuid4()], UUID)
    broker.advance(LOCK_MS / 2000)
    assert management.refusal("renew-lock", {"lock-tokens": tokens})[:2] == LOST_LOCK
    broker.advance(LOCK_MS / 2000 + 1)
    assert management.refusal("renew-lock", {"lock-tokens": tokens[:1]})[:2] == LOST_LOCK
