"""Links that receive a session: the request, the answer to the attach, and the end of the link."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nodes.asking import SESSION_FILTER, Management, accept_session, annotation, for_later, receive, send
from nodes.conftest import LOCK_MS
from nodes.waiting import Waiting
from peeklock.amqp.performatives import Source
from peeklock.amqp.types import Described, Int, Symbol, UInt, ULong
from peeklock.client import Connection, LinkClosed, ReceiveMode, Receiver, connect
from raw_client import eventually
from serving import BrokerThread

LOCKED_UNTIL = "com.microsoft:locked-until-utc"
TIME_OUT = Symbol("com.microsoft:timeout")
DESCRIPTOR = ULong(0x000000137000000C)
TICKS_AT_EPOCH = 621_355_968_000_000_000


def with_filter(connection: Connection, value: Any, on: str = "sessions", **options: Any) -> Receiver:
    return connection.receiver(on, filter={Symbol(SESSION_FILTER): value}, **options)


def with_source(connection: Connection, source: Source) -> Receiver:
    return Receiver(connection, source, credit=1, mode=ReceiveMode.PEEK_LOCK, timeout=10)


def filter_of(receiver: Receiver) -> Any:
    assert receiver.source is not None
    assert receiver.source.filter is not None
    (key,) = receiver.source.filter
    assert (type(key), key) == (Symbol, SESSION_FILTER)
    return receiver.source.filter[key]


def refusal(attach: Callable[[], object]) -> LinkClosed:
    with pytest.raises(LinkClosed) as refused:
        attach()
    return refused.value


# --- what is asked for and what is answered ---


@pytest.mark.parametrize("id", ["a session", "", "ünïcode ✓", "x" * 128])
def test_a_plain_string_filter_is_answered_with_a_plain_string(id: str, connection: Connection) -> None:
    found = filter_of(with_filter(connection, id))
    assert (type(found), found) == (str, id)


def test_a_null_filter_is_answered_with_the_id_of_the_next_session(connection: Connection) -> None:
    send(connection, b"x", to="sessions", session="first")
    found = filter_of(with_filter(connection, None))
    assert (type(found), found) == (str, "first")


@pytest.mark.parametrize("id", ["s", None])
def test_a_described_filter_is_answered_with_a_described_filter(id: str | None, connection: Connection) -> None:
    send(connection, b"x", to="sessions", session="s")
    found = filter_of(with_filter(connection, Described(DESCRIPTOR, id)))
    assert found == Described(DESCRIPTOR, "s")
    assert type(found.descriptor) is ULong


def test_the_source_is_answered_as_it_came(connection: Connection) -> None:
    address = "amqps://some.host:5671/Sessions"
    connection.authenticate("sessions")
    receiver = with_source(connection, Source(address=address, filter={Symbol(SESSION_FILTER): "s"}))
    assert receiver.source is not None
    assert receiver.source.address == address


def test_the_brokers_attach_has_the_end_of_the_lock_in_ticks(broker: BrokerThread, connection: Connection) -> None:
    receiver = with_filter(connection, "s")
    assert receiver.remote is not None
    assert receiver.remote.properties is not None
    until = receiver.remote.properties[LOCKED_UNTIL]
    assert type(until) is int  # long on the wire
    assert until == TICKS_AT_EPOCH + (broker.clock() + LOCK_MS) * 10_000


def test_messages_are_locked_as_long_as_their_session(broker: BrokerThread, connection: Connection) -> None:
    send(connection, b"x", to="sessions", session="s")
    receiver = with_filter(connection, "s", credit=0)
    opened = broker.clock()
    broker.advance(10)
    (message,) = receive(receiver, 1)
    assert annotation(message.message, "x-opt-locked-until") == opened + LOCK_MS
    assert len(message.tag) == 16


def test_only_messages_of_the_session_are_delivered_and_in_order(connection: Connection) -> None:
    for number in range(6):
        send(connection, b"%d" % number, to="sessions", session="ab"[number % 2])
    assert [message.body for message in receive(with_filter(connection, "b"), 3)] == [b"1", b"3", b"5"]
    assert [message.body for message in receive(with_filter(connection, "a"), 3)] == [b"0", b"2", b"4"]


def test_the_empty_string_is_a_session_id(connection: Connection) -> None:
    send(connection, b"of the empty one", to="sessions", session="")
    send(connection, b"of another", to="sessions", session="another")
    receiver = with_filter(connection, "")
    assert receive(receiver, 1)[0].body == b"of the empty one"
    assert receiver.receive(timeout=0) == []
    assert filter_of(with_filter(connection, None)) == "another"
    management = Management(connection, "sessions")
    assert management.ok("set-session-state", {"session-id": "", "session-state": b"x"}) == {}
    assert management.ok("get-session-state", {"session-id": ""}) == {"session-state": b"x"}
    assert len(management.peek(0, 10, **{"session-id": ""})) == 1


def test_a_session_without_messages_may_be_held(connection: Connection) -> None:
    receiver = with_filter(connection, "empty")
    send(connection, b"x", to="sessions", session="empty")
    assert receive(receiver, 1)[0].body == b"x"


# --- refusals ---


@pytest.mark.parametrize("value", [Int(5), b"bytes", ["s"], Described(DESCRIPTOR, Int(5)), "x" * 129])
def test_a_filter_that_names_no_session_is_refused(value: Any, connection: Connection) -> None:
    assert refusal(lambda: with_filter(connection, value)).condition == "com.microsoft:argument-error"
    assert filter_of(with_filter(connection, "s")) == "s"


def test_a_locked_session_cannot_be_locked_again(broker: BrokerThread, connection: Connection) -> None:
    holder = with_filter(connection, "s")
    refused = refusal(lambda: with_filter(connection, "s"))
    assert refused.condition == "com.microsoft:session-cannot-be-locked"
    with connect(broker.connection_string) as another:
        refused = refusal(lambda: with_filter(another, Described(DESCRIPTOR, "s")))
        assert refused.condition == "com.microsoft:session-cannot-be-locked"
        holder.close()
        connection.work()
        assert filter_of(with_filter(another, "s")) == "s"


@pytest.mark.parametrize("entity", ["queue", "queue/$deadletterqueue", "sessions/$deadletterqueue"])
@pytest.mark.parametrize("value", ["s", None, Described(DESCRIPTOR, "s")])
def test_a_filter_on_a_queue_without_sessions_is_not_allowed(entity: str, value: Any, connection: Connection) -> None:
    refused = refusal(lambda: with_filter(connection, value, on=entity))
    assert refused.condition == "amqp:not-allowed"
    assert "no sessions" in refused.description
    assert connection.receiver(entity).source is not None


def test_no_filter_on_a_queue_with_sessions_is_not_allowed(connection: Connection) -> None:
    refused = refusal(lambda: connection.receiver("sessions"))
    assert refused.condition == "amqp:not-allowed"
    assert "requires sessions" in refused.description
    refused = refusal(lambda: with_source(connection, Source(address="sessions", filter={})))
    assert refused.condition == "amqp:not-allowed"


def test_other_filters_do_not_ask_for_a_session(connection: Connection) -> None:
    send(connection, b"x")
    other = {Symbol("apache.org:selector-filter:string"): Described(Symbol("apache.org:selector-filter:string"), "1=1")}
    assert receive(connection.receiver("queue", filter=other), 1)[0].body == b"x"


# --- waiting for the next session ---


def test_an_attach_for_the_next_session_waits_until_a_session_exists(
    broker: BrokerThread, connection: Connection
) -> None:
    waiting = Waiting(connection, broker)
    send(connection, b"x", to="sessions", session="new")
    receiver = waiting.answered()
    assert filter_of(receiver) == "new"
    assert receive(receiver, 1)[0].body == b"x"


def test_an_attach_for_the_next_session_waits_until_a_session_is_free(
    broker: BrokerThread, connection: Connection
) -> None:
    send(connection, b"x", to="sessions", session="s")
    holder = with_filter(connection, None, credit=0)
    waiting = Waiting(connection, broker)
    holder.close()
    assert filter_of(waiting.answered()) == "s"


def test_waiting_links_get_sessions_in_turn(broker: BrokerThread, connection: Connection) -> None:
    first, second = Waiting(connection, broker), Waiting(connection, broker)
    send(connection, b"x", to="sessions", session="a")
    assert filter_of(first.answered()) == "a"
    send(connection, b"x", to="sessions", session="b")
    assert filter_of(second.answered()) == "b"


def test_a_scheduled_message_that_becomes_due_wakes_waiting_links(broker: BrokerThread, connection: Connection) -> None:
    items = [for_later(broker.clock() + 5000, session="s")]
    Management(connection, "sessions").ok("schedule-message", {"messages": items})
    waiting = Waiting(connection, broker)
    broker.advance(5)
    assert filter_of(waiting.answered()) == "s"


@pytest.mark.parametrize("kind", [UInt, ULong, int])
def test_the_clients_time_out_ends_the_wait(kind: type[int], broker: BrokerThread, connection: Connection) -> None:
    waiting = Waiting(connection, broker, properties={TIME_OUT: kind(5000)})
    broker.advance(4.999)
    assert waiting.waiters == 1
    broker.advance(0.001)
    assert refusal(waiting.answered).condition == "com.microsoft:timeout"
    assert waiting.waiters == 0
    remote = waiting.link.remote
    assert remote is not None
    assert (remote.source, remote.target) == (None, None)  # which is how an attach is refused (2.6.3)
    assert filter_of(with_filter(connection, "s")) == "s"


def test_without_a_time_out_the_wait_ends_after_a_minute(broker: BrokerThread, connection: Connection) -> None:
    waiting = Waiting(connection, broker)
    broker.advance(59)
    assert waiting.waiters == 1
    broker.advance(1)
    assert refusal(waiting.answered).condition == "com.microsoft:timeout"


def test_a_time_out_of_nothing_does_not_wait(broker: BrokerThread, connection: Connection) -> None:
    refused = refusal(lambda: accept_session(connection, None, properties={TIME_OUT: UInt(0)}))
    assert refused.condition == "com.microsoft:timeout"


def test_a_link_that_detaches_no_longer_waits_for_a_session(broker: BrokerThread, connection: Connection) -> None:
    waiting = Waiting(connection, broker)
    waiting.link.close()
    eventually(lambda: waiting.waiters == 0)
    send(connection, b"x", to="sessions", session="s")
    assert filter_of(with_filter(connection, None)) == "s"


def test_a_client_that_disconnects_no_longer_waits_for_a_session(broker: BrokerThread, connection: Connection) -> None:
    with connect(broker.connection_string) as leaving:
        waiting = Waiting(leaving, broker)
    eventually(lambda: waiting.waiters == 0)
    send(connection, b"x", to="sessions", session="s")
    assert filter_of(with_filter(connection, None)) == "s"


def test_other_links_work_while_one_waits(broker: BrokerThread, connection: Connection) -> None:
    waiting = Waiting(connection, broker)
    send(connection, b"plain")
    assert receive(connection.receiver("queue"), 1)[0].body == b"plain"
    assert filter_of(with_filter(connection, "named")) == "named"
    assert waiting.waiters == 1


# --- the end ---


def test_an_expired_session_lock_detaches_the_link(broker: BrokerThread, connection: Connection) -> None:
    send(connection, b"x", to="sessions", session="s")
    receiver = with_filter(connection, "s")
    receive(receiver, 1)
    broker.advance(LOCK_MS / 1000)
    refused = refusal(lambda: receiver.receive(timeout=10))
    assert refused.condition == "com.microsoft:session-lock-lost"
    assert "'s'" in refused.description
    (message,) = receive(with_filter(connection, "s"), 1)
    assert message.message.header is not None
    assert message.message.header.delivery_count == 1


def test_a_renewed_lock_does_not_expire(broker: BrokerThread, connection: Connection) -> None:
    receiver = with_filter(connection, "s")
    management = Management(connection, "sessions")
    for _ in range(3):
        broker.advance(LOCK_MS / 1000 - 1)
        management.ok("renew-session-lock", {"session-id": "s"}, {"associated-link-name": receiver.name})
    send(connection, b"x", to="sessions", session="s")
    messages = receive(receiver, 1)
    receiver.accept(messages, wait=True)
    assert broker.counters("sessions").active == 0


def test_a_closed_link_frees_the_session_and_counts_nothing(broker: BrokerThread, connection: Connection) -> None:
    send(connection, b"x", to="sessions", session="s")
    receiver = with_filter(connection, "s")
    receive(receiver, 1)
    receiver.close()
    (message,) = receive(with_filter(connection, "s"), 1)
    assert message.message.header is not None
    assert message.message.header.delivery_count == 0


def test_a_connection_that_breaks_frees_its_sessions(broker: BrokerThread, connection: Connection) -> None:
    breaking = connect(broker.connection_string)
    with_filter(breaking, "s")
    breaking._wire.close()
    eventually(lambda: broker.call(lambda: len(broker.broker.shells)) == 1)
    assert filter_of(with_filter(connection, "s")) == "s"


def test_receive_and_delete_works_in_a_session(broker: BrokerThread, connection: Connection) -> None:
    send(connection, b"first", b"second", to="sessions", session="s")
    receiver = with_filter(connection, "s", mode="receive-and-delete")
    assert [message.body for message in receive(receiver, 2)] == [b"first", b"second"]
    assert broker.counters("sessions").active == 0
