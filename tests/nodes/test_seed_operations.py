"""All request/response operations, with exactly the keys and types of the public documentation.

If its versions of 2017 and 2021 differ, there is a test for each.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from nodes.asking import (
    FOREVER,
    SUBSCRIPTION,
    Management,
    RequestLinks,
    accept_session,
    annotation,
    body_of,
    defer,
    messages_in,
    number_of,
    receive,
    refusal_of,
    request,
    rules_in,
    send,
    token_of,
)
from nodes.conftest import LOCK_MS
from peeklock.amqp.message import Message, Properties
from peeklock.amqp.transactions import Coordinator, Declare, Discharge, TransactionalState
from peeklock.amqp.types import Array, Described, Int, Symbol, Timestamp, UByte, UInt, ULong
from peeklock.client import Connection, connect
from peeklock.entities.definitions import QueueDefinition
from peeklock.entities.namespaces import NamespaceDefinition
from serving import BrokerThread, StartBroker

TIME_OUT = {"com.microsoft:server-timeout": UInt(30_000)}


def uuids(*tokens: UUID) -> Array:
    return Array(tokens, UUID)


def longs(*numbers: int) -> Array:
    return Array(numbers, int)


def item(due: int, body: bytes, **keys: Any) -> dict[str, Any]:
    """Return a message to schedule with all documented keys, whose values are copied from the message."""
    annotations: dict[Any, Any] = {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(due)}
    for key in ("partition-key", "via-partition-key"):
        if key in keys:
            annotations[Symbol(f"x-opt-{key}")] = keys[key]
    properties = Properties(message_id=keys["message-id"], group_id=keys.get("session-id"))
    message = Message(message_annotations=annotations, properties=properties, data=[body])
    return {**keys, "message": message.encode()}


# --- messages ---


def test_renew_lock(broker: BrokerThread, connection: Connection, management: Management) -> None:
    send(connection, b"first", b"second")
    first, second = receive(connection.receiver("queue"), 2)
    broker.advance(40)
    body = management.ok("renew-lock", {"lock-tokens": uuids(token_of(second), token_of(first))}, TIME_OUT)
    assert set(body) == {"expirations"}
    assert type(body["expirations"]) is Array
    assert body["expirations"].element is Timestamp
    assert body["expirations"] == [broker.clock() + LOCK_MS] * 2
    broker.advance(40)
    assert management.ok("renew-lock", {"lock-tokens": uuids(token_of(first))})


def test_renew_lock_of_a_lost_lock_is_410(broker: BrokerThread, connection: Connection, management: Management) -> None:
    send(connection, b"first", b"second")
    lost = receive(connection.receiver("queue", credit=1), 1)[0]
    broker.advance(LOCK_MS / 1000 + 1)
    status, condition, _ = management.refusal("renew-lock", {"lock-tokens": uuids(token_of(lost))}, TIME_OUT)
    assert (status, condition) == (410, "com.microsoft:message-lock-lost")


def test_a_deferred_message_is_renewed_by_its_lock_token(
    broker: BrokerThread, connection: Connection, management: Management
) -> None:
    numbers = defer(connection, b"aside")
    body = {"sequence-numbers": longs(*numbers), "receiver-settle-mode": UByte(1)}
    token = management.ok("receive-by-sequence-number", body)["messages"][0]["lock-token"]
    broker.advance(30)
    expirations = management.ok("renew-lock", {"lock-tokens": uuids(token)})["expirations"]
    assert expirations == [broker.clock() + LOCK_MS]


def test_peek_message(connection: Connection, management: Management) -> None:
    send(connection, b"first", b"second", b"third")
    wanted = {"from-sequence-number": 2, "message-count": Int(10)}
    response = management.ask("peek-message", wanted, TIME_OUT)
    second, third = messages_in(body_of(response, 200))
    assert (second.body, third.body) == (b"second", b"third")
    assert [number_of(message) for message in (second, third)] == [2, 3]
    assert all(set(each) == {"message"} for each in response.value["messages"])


def test_peek_message_returns_at_most_the_requested_count(connection: Connection, management: Management) -> None:
    send(connection, b"first", b"second", b"third")
    wanted = {"from-sequence-number": 1, "message-count": Int(2)}
    assert [each.body for each in messages_in(management.ok("peek-message", wanted))] == [b"first", b"second"]


def test_peek_message_past_the_last_one_is_204(connection: Connection, management: Management) -> None:
    send(connection, b"only")
    response = management.ask("peek-message", {"from-sequence-number": 2, "message-count": Int(1)}, TIME_OUT)
    assert body_of(response, 0xCC) == {}


@pytest.mark.parametrize("version", [2017, 2021])
def test_schedule_message(version: int, broker: BrokerThread, connection: Connection, management: Management) -> None:
    due = broker.clock() + 60_000
    keys: dict[str, Any] = {"session-id": "s", "partition-key": "s"}  # of 2017, where they are required
    if version == 2021:
        keys = {"via-partition-key": "v"}
    items = [item(due, b"first", **{"message-id": "1", **keys}), item(due, b"second", **{"message-id": "2", **keys})]
    body = management.ok("schedule-message", {"messages": items}, TIME_OUT)
    assert set(body) == {"sequence-numbers"}
    assert type(body["sequence-numbers"]) is Array
    assert body["sequence-numbers"].element is int  # long on the wire
    assert body["sequence-numbers"] == [1, 2]
    assert broker.counters().scheduled == 2
    receiver = connection.receiver("queue")
    assert receiver.receive(timeout=0) == []
    broker.advance(60)
    messages = [received.message for received in receive(receiver, 2)]
    assert [message.body for message in messages] == [b"first", b"second"]
    for message in messages:
        assert message.properties is not None
        assert message.properties.group_id == keys.get("session-id")
        assert annotation(message, "x-opt-partition-key") == keys.get("partition-key")
        assert annotation(message, "x-opt-via-partition-key") == keys.get("via-partition-key")
        assert annotation(message, "x-opt-scheduled-enqueue-time") == due


@pytest.mark.parametrize(
    "identity", ["text", ULong(7), UUID(int=5), b"\xff\xfe"], ids=["string", "ulong", "uuid", "binary"]
)
def test_a_scheduled_message_may_have_an_id_of_any_type(
    identity: Any, broker: BrokerThread, connection: Connection, management: Management
) -> None:
    later = item(broker.clock() + 60_000, b"later", **{"message-id": identity})
    assert management.ok("schedule-message", {"messages": [later]}, TIME_OUT) == {"sequence-numbers": [1]}
    broker.advance(60)
    (received,) = receive(connection.receiver("queue"), 1)
    assert received.message.properties is not None
    assert received.message.properties.message_id == identity
    assert type(received.message.properties.message_id) is type(identity)


def test_texts_of_a_schedule_request_may_be_binary(
    broker: BrokerThread, connection: Connection, management: Management
) -> None:
    later = item(broker.clock() + 60_000, b"later", **{"message-id": "m"})
    later |= {"partition-key": "ä".encode(), "via-partition-key": b"v"}
    assert management.ok("schedule-message", {"messages": [later]}) == {"sequence-numbers": [1]}
    sessions = Management(connection, "sessions")
    assert sessions.ok("schedule-message", {"messages": [{**later, "session-id": "sitzung ä".encode()}]})
    broker.advance(60)
    (received,) = receive(accept_session(connection, "sitzung ä"), 1)
    assert received.message.properties is not None
    assert received.message.properties.group_id == "sitzung ä"


@pytest.mark.parametrize("key", ["session-id", "partition-key", "via-partition-key"])
def test_invalid_binary_text_of_a_schedule_request_is_refused(
    key: str, broker: BrokerThread, management: Management
) -> None:
    later = item(broker.clock() + 60_000, b"later", **{"message-id": "m"})
    refused = management.refusal("schedule-message", {"messages": [{**later, key: b"\xff"}]})
    assert refused[:2] == (400, "com.microsoft:argument-error")
    assert refused[2].startswith(f"'{key}' is binary and not valid UTF-8")
    assert broker.counters().scheduled == 0


def test_cancel_scheduled_message(broker: BrokerThread, connection: Connection, management: Management) -> None:
    items = [item(broker.clock() + 1000, body, **{"message-id": "m"}) for body in (b"first", b"second")]
    numbers = management.ok("schedule-message", {"messages": items})["sequence-numbers"]
    # 200 with an empty map: the version of 2017 lists the numbers in the answer, that of 2021 does not.
    assert management.ok("cancel-scheduled-message", {"sequence-numbers": longs(numbers[0])}, TIME_OUT) == {}
    broker.advance(2)
    assert receive(connection.receiver("queue"), 1)[0].body == b"second"
    assert broker.counters().active == 1


def test_cancel_of_a_number_that_is_not_scheduled_is_404(connection: Connection, management: Management) -> None:
    send(connection, b"active")
    for number in (1, 77):
        status, condition, text = management.refusal("cancel-scheduled-message", {"sequence-numbers": longs(number)})
        assert (status, condition) == (404, "com.microsoft:message-not-found")
        assert str(number) in text


# --- sessions ---


def test_renew_session_lock(broker: BrokerThread, connection: Connection) -> None:
    management = Management(connection, "sessions")
    accept_session(connection, "s")
    broker.advance(40)
    body = management.ok("renew-session-lock", {"session-id": "s"}, TIME_OUT)
    assert set(body) == {"expiration"}
    assert type(body["expiration"]) is Timestamp
    assert body["expiration"] == broker.clock() + LOCK_MS


def test_renew_session_lock_of_an_unlocked_session_is_410(connection: Connection) -> None:
    status, condition, text = Management(connection, "sessions").refusal("renew-session-lock", {"session-id": "s"})
    assert (status, condition) == (410, "com.microsoft:session-lock-lost")
    assert "'s'" in text


def test_peek_session_message(connection: Connection) -> None:
    send(connection, b"a1", to="sessions", session="a")
    send(connection, b"b1", to="sessions", session="b")
    send(connection, b"a2", to="sessions", session="a")
    management = Management(connection, "sessions")
    wanted = {"from-sequence-number": 0, "message-count": Int(10), "session-id": "a"}
    response = management.ask("peek-message", wanted, TIME_OUT)
    assert [message.body for message in messages_in(body_of(response, 200))] == [b"a1", b"a2"]
    response = management.ask("peek-message", {**wanted, "from-sequence-number": 4}, TIME_OUT)
    assert body_of(response, 204) == {}


@pytest.mark.parametrize("operation", ["set-session-state", "peek-message"])
def test_set_session_state(operation: str, connection: Connection) -> None:
    """In the versions of 2017, the name of the operation is peek-message."""
    management = Management(connection, "sessions")
    accept_session(connection, "s")
    assert management.ok(operation, {"session-id": "s", "session-state": b"\x00opaque\xff"}, TIME_OUT) == {}
    body = management.ok("get-session-state", {"session-id": "s"}, TIME_OUT)
    assert body == {"session-state": b"\x00opaque\xff"}
    assert type(body["session-state"]) is bytes


def test_get_session_state_of_a_session_without_one_is_null(connection: Connection) -> None:
    management = Management(connection, "sessions")
    accept_session(connection, "s")
    assert management.ok("get-session-state", {"session-id": "s"}) == {"session-state": None}


def test_null_clears_the_session_state(connection: Connection) -> None:
    management = Management(connection, "sessions")
    accept_session(connection, "s")
    management.ok("set-session-state", {"session-id": "s", "session-state": b"x"})
    assert management.ok("set-session-state", {"session-id": "s", "session-state": None}) == {}
    assert management.ok("get-session-state", {"session-id": "s"}) == {"session-state": None}


def test_empty_bytes_clear_the_session_state(connection: Connection) -> None:
    management = Management(connection, "sessions")
    accept_session(connection, "s")
    management.ok("set-session-state", {"session-id": "s", "session-state": b"x"})
    assert management.ok("set-session-state", {"session-id": "s", "session-state": b""}) == {}
    assert management.ok("get-session-state", {"session-id": "s"}) == {"session-state": None}


@pytest.mark.parametrize("operation", ["set-session-state", "get-session-state"])
def test_the_state_of_an_unlocked_session_is_410(operation: str, connection: Connection) -> None:
    management = Management(connection, "sessions")
    status, condition, _ = management.refusal(operation, {"session-id": "s", "session-state": b""})
    assert (status, condition) == (410, "com.microsoft:session-lock-lost")


def test_enumerate_sessions(connection: Connection) -> None:
    for id in ("a", "b", "c"):
        send(connection, b"x", to="sessions", session=id)
    management = Management(connection, "sessions")
    wanted = {"last-updated-time": Timestamp(FOREVER), "skip": Int(0), "top": Int(2)}
    body = management.ok("get-message-sessions", wanted, TIME_OUT)
    assert set(body) == {"skip", "sessions-ids"}
    assert type(body["skip"]) is Int
    assert type(body["sessions-ids"]) is Array
    assert body["sessions-ids"].element is str
    first = list(body["sessions-ids"])
    rest = management.ok("get-message-sessions", {**wanted, "skip": Int(2)})["sessions-ids"]
    assert sorted(first + list(rest)) == ["a", "b", "c"]
    assert body_of(management.ask("get-message-sessions", {**wanted, "skip": Int(3)}, TIME_OUT), 204) == {}


def test_enumerate_sessions_whose_state_was_set_after_a_time(broker: BrokerThread, connection: Connection) -> None:
    management = Management(connection, "sessions")
    send(connection, b"x", to="sessions", session="without state")
    for id in ("early", "late"):
        accept_session(connection, id)
        management.ok("set-session-state", {"session-id": id, "session-state": b"x"})
        broker.advance(10)
    since = Timestamp(broker.clock() - 15_000)
    wanted = {"last-updated-time": since, "skip": Int(0), "top": Int(10)}
    assert management.ok("get-message-sessions", wanted)["sessions-ids"] == ["late"]
    everything = {**wanted, "last-updated-time": Timestamp(FOREVER)}
    found = management.ok("get-message-sessions", everything)["sessions-ids"]
    assert sorted(found) == ["early", "late", "without state"]


def test_the_session_state_survives_a_restart(start_broker: StartBroker, tmp_path: Path) -> None:
    namespace = NamespaceDefinition(queues=(QueueDefinition(name="sessions", requires_session=True),))
    before = BrokerThread(namespace=namespace, data=tmp_path / "data")
    try:
        with connect(before.connection_string) as connection:
            accept_session(connection, "s")
            Management(connection, "sessions").ok("set-session-state", {"session-id": "s", "session-state": b"kept"})
    finally:
        before.stop()
    with connect(start_broker().connection_string) as connection:
        accept_session(connection, "s")
        management = Management(connection, "sessions")
        assert management.ok("get-session-state", {"session-id": "s"}) == {"session-state": b"kept"}


# --- deferred messages ---


def test_receive_by_sequence_number_with_a_lock(
    broker: BrokerThread, connection: Connection, management: Management
) -> None:
    numbers = defer(connection, b"first", b"second")
    body = {"sequence-numbers": longs(*reversed(numbers)), "receiver-settle-mode": UByte(1)}
    response = management.ok("receive-by-sequence-number", body, TIME_OUT)
    second, first = messages_in(response)
    assert (first.body, second.body) == (b"first", b"second")
    for found, encoded in zip(response["messages"], (second, first), strict=True):
        assert set(found) == {"lock-token", "message"}
        assert type(found["lock-token"]) is UUID
        assert encoded.delivery_annotations == {"x-opt-lock-token": found["lock-token"]}
        assert annotation(encoded, "x-opt-locked-until") == broker.clock() + LOCK_MS
        assert annotation(encoded, "x-opt-message-state") == 1
    assert broker.counters().deferred == 2


def test_receive_by_sequence_number_and_delete(
    broker: BrokerThread, connection: Connection, management: Management
) -> None:
    numbers = defer(connection, b"gone")
    body = {"sequence-numbers": longs(*numbers), "receiver-settle-mode": UByte(0)}
    response = management.ok("receive-by-sequence-number", body, TIME_OUT)
    assert [message.body for message in messages_in(response)] == [b"gone"]
    assert set(response["messages"][0]) == {"message"}
    assert broker.counters().deferred == 0


def test_receive_by_a_number_that_is_not_deferred_is_404(connection: Connection, management: Management) -> None:
    (number,) = defer(connection, b"aside")
    send(connection, b"active")
    for missing in (number + 1, 999):
        body = {"sequence-numbers": longs(number, missing), "receiver-settle-mode": UByte(1)}
        status, condition, text = management.refusal("receive-by-sequence-number", body, TIME_OUT)
        assert (status, condition) == (404, "com.microsoft:message-not-found")
        assert str(missing) in text
    body = {"sequence-numbers": longs(number), "receiver-settle-mode": UByte(1)}
    assert len(management.ok("receive-by-sequence-number", body)["messages"]) == 1  # and nothing was locked before


def fetched(connection: Connection, management: Management, *bodies: bytes) -> list[UUID]:
    """Receive deferred messages, and return their lock tokens."""
    body = {"sequence-numbers": longs(*defer(connection, *bodies)), "receiver-settle-mode": UByte(1)}
    return [found["lock-token"] for found in management.ok("receive-by-sequence-number", body)["messages"]]


def test_update_disposition_completed(broker: BrokerThread, connection: Connection, management: Management) -> None:
    tokens = fetched(connection, management, b"first", b"second")
    body = {"disposition-status": "completed", "lock-tokens": uuids(*tokens)}
    assert management.ok("update-disposition", body, TIME_OUT) == {}
    counters = broker.counters()
    assert (counters.active, counters.deferred) == (0, 0)


def test_update_disposition_abandoned_with_properties(
    broker: BrokerThread, connection: Connection, management: Management
) -> None:
    tokens = fetched(connection, management, b"first")
    properties = {"attempt": Int(1), "by": "me"}
    body = {"disposition-status": "abandoned", "lock-tokens": uuids(*tokens), "properties-to-modify": properties}
    assert management.ok("update-disposition", body, TIME_OUT) == {}
    assert broker.counters().deferred == 1  # a deferred message goes back to the deferred ones
    (message,) = management.peek()
    assert message.application_properties == properties


def test_update_disposition_suspended_with_reason(connection: Connection, management: Management) -> None:
    tokens = fetched(connection, management, b"bad")
    body = {
        "disposition-status": "suspended",
        "lock-tokens": uuids(*tokens),
        "deadletter-reason": "why",
        "deadletter-description": "because",
        "properties-to-modify": {"seen": True},
    }
    assert management.ok("update-disposition", body, TIME_OUT) == {}
    (dead,) = receive(connection.receiver("queue/$deadletterqueue"), 1)
    assert dead.body == b"bad"
    assert dead.message.application_properties == {
        "DeadLetterReason": "why",
        "DeadLetterErrorDescription": "because",
        "seen": True,
    }


@pytest.mark.parametrize("spelling", ["defered", "deferred"])
def test_update_disposition_deferred_in_both_spellings(
    spelling: str, broker: BrokerThread, connection: Connection, management: Management
) -> None:
    send(connection, b"aside")
    (message,) = receive(connection.receiver("queue"), 1)
    body = {"disposition-status": spelling, "lock-tokens": uuids(token_of(message))}
    assert management.ok("update-disposition", body, TIME_OUT) == {}
    assert broker.counters().deferred == 1


def test_update_disposition_of_a_lost_lock_is_410_and_settles_none(
    broker: BrokerThread, connection: Connection, management: Management
) -> None:
    send(connection, b"mine")
    (message,) = receive(connection.receiver("queue"), 1)
    body = {"disposition-status": "completed", "lock-tokens": uuids(token_of(message), uuid4())}
    status, condition, _ = management.refusal("update-disposition", body, TIME_OUT)
    assert (status, condition) == (410, "com.microsoft:message-lock-lost")
    assert broker.counters().active == 1
    assert management.ok("update-disposition", {**body, "lock-tokens": uuids(token_of(message))}) == {}


# --- rules ---

SQL_RULE = {
    "sql-filter": {"expression": "color = 'red'"},
    "sql-rule-action": {"expression": "SET seen = 1"},
}
CORRELATION_RULE = {
    "correlation-filter": {
        "correlation-id": "c",
        "message-id": "m",
        "to": "t",
        "reply-to": "r",
        "label": "l",
        "session-id": "s",
        "reply-to-session-id": "rs",
        "content-type": "text/plain",
        "properties": {"x": Int(1)},
    },
    "sql-rule-action": None,
}
RULE_LIST = 0x0000013700000004
SQL_FILTER = 0x000001370000006
TRUE_FILTER = 0x000001370000007
FALSE_FILTER = 0x000001370000008
CORRELATION_FILTER = 0x000001370000009
EMPTY_ACTION = 0x0000013700000005
SQL_ACTION = 0x0000013700000006
ALL_RULES = {"top": Int(100), "skip": Int(0)}


def described(value: Any) -> tuple[int, list[Any]]:
    """Return the descriptor code and the items of a described list."""
    assert type(value) is Described
    assert type(value.descriptor) is ULong
    assert type(value.value) is list
    return int(value.descriptor), value.value


def listed(body: dict[str, Any]) -> list[tuple[str, tuple[int, list[Any]], tuple[int, list[Any]]]]:
    """Return name, filter and action of each rule in the response to enumerate-rules."""
    found = []
    for rule in rules_in(body):
        code, (filter, action, name, *_) = described(rule)
        assert code == RULE_LIST
        assert type(name) is str
        found.append((name, described(filter), described(action)))
    return found


def test_add_rule_with_a_sql_filter_and_an_action(connection: Connection, subscription: Management) -> None:
    assert subscription.ok("add-rule", {"rule-name": "r", "rule-description": SQL_RULE}, TIME_OUT) == {}
    _, (name, (filter, condition), (action, statement)) = listed(subscription.ok("enumerate-rules", ALL_RULES))
    assert name == "r"
    assert (filter, condition[0]) == (SQL_FILTER, "color = 'red'")
    assert (action, statement[0]) == (SQL_ACTION, "SET seen = 1")
    connection.sender("topic").send(Message(application_properties={"color": "red"}, data=[b"x"]))
    plain, changed = receive(connection.receiver(SUBSCRIPTION), 2)  # that of $Default too
    assert plain.message.application_properties == {"color": "red"}
    assert changed.message.application_properties == {"color": "red", "seen": 1, "RuleName": "r"}


def test_add_rule_with_a_correlation_filter(connection: Connection, subscription: Management) -> None:
    assert subscription.ok("add-rule", {"rule-name": "r", "rule-description": CORRELATION_RULE}, TIME_OUT) == {}
    _, (name, (filter, tested), (action, nothing)) = listed(subscription.ok("enumerate-rules", ALL_RULES))
    assert (name, filter) == ("r", CORRELATION_FILTER)
    assert tested == ["c", "m", "t", "r", "l", "s", "rs", "text/plain", {"x": 1}]
    assert (action, nothing) == (EMPTY_ACTION, [])
    subscription.ok("remove-rule", {"rule-name": "$Default"})
    properties = Properties(
        correlation_id="c",
        message_id="m",
        to="t",
        reply_to="r",
        subject="l",
        group_id="s",
        reply_to_group_id="rs",
        content_type=Symbol("text/plain"),
    )
    sender = connection.sender("topic")
    sender.send(Message(properties=properties, application_properties={"x": Int(2)}, data=[b"another"]))
    sender.send(Message(properties=properties, application_properties={"x": Int(1)}, data=[b"the one"]))
    receiver = connection.receiver(SUBSCRIPTION)
    assert receive(receiver, 1)[0].body == b"the one"
    assert receiver.receive(timeout=0) == []


def test_remove_rule(subscription: Management) -> None:
    assert subscription.ok("remove-rule", {"rule-name": "$Default"}, TIME_OUT) == {}
    assert body_of(subscription.ask("enumerate-rules", ALL_RULES), 204) == {}
    status, condition, text = subscription.refusal("remove-rule", {"rule-name": "$Default"}, TIME_OUT)
    assert (status, condition) == (404, "amqp:not-found")
    assert "could not be found" in text


def test_get_rules(subscription: Management) -> None:
    for name, expression in (("all", "1=1"), ("none", "1=0"), ("some", "x > 1")):
        description = {"sql-filter": {"expression": expression}, "sql-rule-action": None}
        subscription.ok("add-rule", {"rule-name": name, "rule-description": description})
    nothing = (EMPTY_ACTION, [])
    default, *others = listed(subscription.ok("enumerate-rules", ALL_RULES, TIME_OUT))
    assert default == ("$Default", (TRUE_FILTER, []), nothing)
    assert [(name, code) for name, (code, _), _ in others] == [
        ("all", TRUE_FILTER),
        ("none", FALSE_FILTER),
        ("some", SQL_FILTER),
    ]
    assert all(action == nothing for _, _, action in others)
    page = listed(subscription.ok("enumerate-rules", {"top": Int(2), "skip": Int(1)}, TIME_OUT))
    assert [name for name, _, _ in page] == ["all", "none"]
    page = listed(subscription.ok("enumerate-rules", {"top": Int(2), "skip": Int(3)}, TIME_OUT))
    assert [name for name, _, _ in page] == ["some"]


# --- in a transaction (2021: the request's transfer carries a transactional state) ---


class Transaction:
    """One transaction of a connection, and management requests that belong to it."""

    def __init__(self, connection: Connection, entity: str = "queue") -> None:
        connection.authenticate(entity)
        self._coordinator = connection.sender(Coordinator())
        self._links = RequestLinks(connection, entity)
        self.id: bytes = self._coordinator.send(Message(value=Declare())).txn_id

    def ask(self, operation: str, body: dict[str, Any]) -> Message:
        message = request(operation, body, TIME_OUT, id="r", reply_to="my replies")
        return self._links.ask(message, TransactionalState(self.id))

    def discharge(self, *, fail: bool = False) -> None:
        self._coordinator.send(Message(value=Discharge(self.id, fail)))


@pytest.mark.parametrize("commits", [True, False])
def test_schedule_message_in_a_transaction(
    commits: bool, broker: BrokerThread, connection: Connection, management: Management
) -> None:
    transaction = Transaction(connection)
    items = [item(broker.clock() + 1000, b"later", **{"message-id": "m"})]
    numbers = body_of(transaction.ask("schedule-message", {"messages": items}), 200)["sequence-numbers"]
    assert len(numbers) == 1
    assert management.peek() == []
    transaction.discharge(fail=not commits)
    assert [number_of(message) for message in management.peek()] == (list(numbers) if commits else [])


@pytest.mark.parametrize("commits", [True, False])
def test_update_disposition_in_a_transaction(
    commits: bool, broker: BrokerThread, connection: Connection, management: Management
) -> None:
    (token,) = fetched(connection, management, b"aside")
    transaction = Transaction(connection)
    body = {"disposition-status": "completed", "lock-tokens": uuids(token)}
    assert body_of(transaction.ask("update-disposition", body), 200) == {}
    assert broker.counters().deferred == 1
    transaction.discharge(fail=not commits)
    assert broker.counters().deferred == (0 if commits else 1)


def test_other_operations_cannot_be_part_of_a_transaction(connection: Connection) -> None:
    transaction = Transaction(connection)
    response = transaction.ask("peek-message", {"from-sequence-number": 1, "message-count": Int(1)})
    status, condition, text = refusal_of(response)
    assert (status, condition) == (400, "amqp:not-allowed")
    assert "peek-message" in text


def test_a_transaction_that_is_not_open_is_refused(connection: Connection) -> None:
    links = RequestLinks(connection)
    message = request("schedule-message", {"messages": [item(0, b"x", **{"message-id": "m"})]}, id="r")
    status, condition, _ = refusal_of(links.ask(message, TransactionalState(b"never declared")))
    assert (status, condition) == (400, "amqp:transaction:unknown-id")
