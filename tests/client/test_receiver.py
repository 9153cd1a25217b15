"""Receiving, settling, draining."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from uuid import UUID

import pytest

from client.engine_server import EngineServer
from peeklock.amqp.errors import Condition
from peeklock.amqp.outcomes import Error, Released
from peeklock.client import (
    Connection,
    LinkClosed,
    Message,
    ReceivedMessage,
    ReceiveMode,
    Receiver,
    SettlementFailed,
    connect,
)

CONFIRMED = [ReceiveMode.PEEK_LOCK, ReceiveMode.SETTLE_FIRST]


@pytest.fixture
def connection(server: EngineServer) -> Iterator[Connection]:
    with connect(server.url, timeout=10) as connected:
        yield connected


def take(receiver: Receiver, count: int) -> list[ReceivedMessage]:
    taken: list[ReceivedMessage] = []
    while len(taken) < count:
        got = receiver.receive(count - len(taken))
        assert got, f"only {len(taken)} of {count} came"
        taken += got
    return taken


def numbers(messages: list[ReceivedMessage]) -> list[int]:
    return [int(message.body) for message in messages]


def test_messages_come_in_order_and_can_be_looked_into(server: EngineServer, connection: Connection) -> None:
    server.fill("q", 3)
    messages = take(connection.receiver("q"), 3)
    assert numbers(messages) == [0, 1, 2]
    first = messages[0]
    assert first.message == Message(data=[b"0000000000"])
    assert first.payload == first.message.encode()
    assert isinstance(first.lock_token, UUID)
    assert first.lock_token.bytes_le == first.tag
    assert not first.settled
    assert "bytes" in repr(first)


def test_bodies_of_all_kinds(server: EngineServer, connection: Connection) -> None:
    kinds = [Message(data=[b"a", b"b"]), Message(value={"k": 1}), Message(sequences=[[1], [2]])]
    server.queues["q"].extend(message.encode() for message in kinds)
    assert [message.body for message in take(connection.receiver("q"), 3)] == [b"ab", {"k": 1}, [[1], [2]]]


def test_nothing_in_time_is_an_empty_list(connection: Connection) -> None:
    receiver = connection.receiver("q")
    assert receiver.receive(timeout=0.05) == []
    assert receiver.receive(timeout=0) == []


@pytest.mark.parametrize("credit", [1, 2, 7, 100, 1000])
def test_credit_is_renewed_while_messages_are_received(
    server: EngineServer, connection: Connection, credit: int
) -> None:
    server.fill("q", 2500)
    receiver = connection.receiver("q", credit=credit)
    messages = []
    for _ in range(2500):
        (message,) = receiver.receive()
        receiver.accept(message)
        messages.append(message)
    receiver.confirm()
    assert numbers(messages) == list(range(2500))


def test_no_more_than_the_credit_comes_ahead(server: EngineServer, connection: Connection) -> None:
    server.fill("q", 100)
    receiver = connection.receiver("q", credit=10)
    take(receiver, 4)
    connection.sender("other").send(Message(data=[b"a round trip"]))
    assert len(server.queues["q"]) >= 100 - 4 - 10


def test_without_credit_only_the_requested_messages_arrive(server: EngineServer, connection: Connection) -> None:
    receiver = connection.receiver("q", credit=0)
    assert receiver.receive(5, timeout=0.05) == []
    connection.sender("q").send_all([Message(data=[b"%d" % number]) for number in range(8)])
    connection.sender("other").send(Message(data=[b"a round trip"]))
    assert len(server.queues["q"]) == 8
    assert numbers(take(receiver, 5)) == [0, 1, 2, 3, 4]
    assert len(server.queues["q"]) == 3
    assert numbers(receiver.receive(10)) == [5, 6, 7]


@pytest.mark.parametrize("mode", CONFIRMED)
def test_accepted_messages_are_removed(server: EngineServer, connection: Connection, mode: ReceiveMode) -> None:
    server.fill("q", 20)
    receiver = connection.receiver("q", mode=mode)
    messages = take(receiver, 20)
    receiver.accept(messages[:10], wait=True)
    receiver.accept(messages[10], wait=True)
    receiver.accept(messages[11:], wait=True)
    assert all(message.settled for message in messages)
    connection.sender("other").send(Message(data=[b"a round trip"]))
    assert (list(server.queues["q"]), server.dead_letters) == ([], [])


@pytest.mark.parametrize("mode", CONFIRMED)
def test_released_and_modified_messages_are_redelivered(
    server: EngineServer, connection: Connection, mode: ReceiveMode
) -> None:
    server.fill("q", 2)
    receiver = connection.receiver("q", mode=mode)
    first, second = take(receiver, 2)
    receiver.release(first, wait=True)
    receiver.modify([second], undeliverable_here=True, annotations={"why": "later"}, wait=True)
    assert sorted(numbers(take(receiver, 2))) == [0, 1]
    (modified,) = server.modified
    assert (modified.delivery_failed, modified.undeliverable_here) == (True, True)
    assert modified.message_annotations == {"why": "later"}


def test_rejected_messages_take_their_reason_along(server: EngineServer, connection: Connection) -> None:
    server.fill("q", 2)
    receiver = connection.receiver("q")
    first, second = take(receiver, 2)
    receiver.reject(first, Condition.DEAD_LETTER, "bad", {"DeadLetterReason": "bad"}, wait=True)
    receiver.reject(second, wait=True)
    reasons = [state.error for _, state in server.dead_letters]
    info = {"DeadLetterReason": "bad"}
    assert reasons == [Error(condition=Condition.DEAD_LETTER, description="bad", info=info), None]


def test_any_encoded_state_can_settle(server: EngineServer, connection: Connection) -> None:
    server.fill("q", 1)
    receiver = connection.receiver("q")
    receiver.settle(take(receiver, 1), Released().encode(), wait=True)
    assert numbers(take(receiver, 1)) == [0]


def test_a_lost_lock_is_raised_to_a_waiting_caller(server: EngineServer, connection: Connection) -> None:
    server.fill("q", 2)
    server.locks_are_lost = True
    receiver = connection.receiver("q")
    messages = take(receiver, 2)
    with pytest.raises(SettlementFailed, match="too late") as failed:
        receiver.accept(messages, wait=True)
    assert failed.value.condition == Condition.MESSAGE_LOCK_LOST
    assert set(failed.value.tags) == {message.tag for message in messages}


def test_a_lost_lock_is_raised_later_if_no_caller_waits(server: EngineServer, connection: Connection) -> None:
    server.fill("q", 1)
    server.locks_are_lost = True
    receiver = connection.receiver("q")
    receiver.accept(take(receiver, 1))
    with pytest.raises(SettlementFailed, match="too late"):
        receiver.confirm()
    receiver.confirm()


def test_a_message_is_settled_once_and_by_its_own_receiver(server: EngineServer, connection: Connection) -> None:
    server.fill("q", 1)
    receiver = connection.receiver("q")
    message = take(receiver, 1)[0]
    with pytest.raises(ValueError, match="from another receiver"):
        connection.receiver("q").accept(message)
    receiver.accept(message, wait=True)
    with pytest.raises(ValueError, match="is settled"):
        receiver.accept(message)


def test_received_and_deleted_messages_need_no_settling(server: EngineServer, connection: Connection) -> None:
    server.fill("q", 5)
    messages = take(connection.receiver("q", mode="receive-and-delete"), 5)
    assert all(message.settled for message in messages)


def test_an_unknown_mode_is_refused(connection: Connection) -> None:
    with pytest.raises(ValueError, match="sideways"):
        connection.receiver("q", mode="sideways")


def test_a_drained_receiver_gets_nothing_until_the_next_receive(server: EngineServer, connection: Connection) -> None:
    server.fill("q", 3)
    receiver = connection.receiver("q", credit=10)
    receiver.drain()
    sender = connection.sender("q")
    sender.send(Message(data=[b"7"]))
    assert len(server.queues["q"]) == 1
    assert numbers(take(receiver, 4)) == [0, 1, 2, 7]


def test_draining_without_credit_is_done_already(connection: Connection) -> None:
    connection.receiver("q", credit=0).drain()


def test_a_drain_ends_when_the_last_messages_used_up_the_credit(server: EngineServer, connection: Connection) -> None:
    server.fill("q", 20)
    receiver = connection.receiver("q", credit=0)
    taken = [message for _ in range(4) for message in receiver.receive(5, timeout=0)]
    assert numbers(taken) == list(range(20))


def test_a_receiver_can_be_iterated(server: EngineServer, connection: Connection) -> None:
    server.fill("q", 10)
    receiver = connection.receiver("q")
    assert numbers(list(islice(receiver, 4))) == [0, 1, 2, 3]
    assert numbers(list(receiver.messages(timeout=0.1))) == [4, 5, 6, 7, 8, 9]


def test_closing_releases_messages_that_were_not_received(server: EngineServer, connection: Connection) -> None:
    server.fill("q", 10)
    with connection.receiver("q") as receiver:
        receiver.accept(take(receiver, 2), wait=True)
    assert len(take(connection.receiver("q"), 8)) == 8


def test_closing_the_connection_gives_them_back_too(server: EngineServer) -> None:
    server.fill("q", 10)
    with connect(server.url) as first:
        take(first.receiver("q"), 1)
    with connect(server.url) as second:
        assert len(take(second.receiver("q"), 9)) == 9


def test_a_filter_is_part_of_the_source(connection: Connection) -> None:
    receiver = connection.receiver("q", filter={"com.microsoft:session-filter": "s"}, properties={"p": 1})
    assert receiver.source is not None
    assert receiver.source.filter == {"com.microsoft:session-filter": "s"}


def test_buffered_messages_can_be_received_after_the_link_was_detached(
    server: EngineServer, connection: Connection
) -> None:
    server.fill("q", 3)
    receiver = connection.receiver("q")
    receiver.receive(1)
    receiver.drain()
    receiver.on_detached(Error(condition=Condition.DETACH_FORCED, description="it broke"))
    assert len(receiver.receive(5)) == 2
    with pytest.raises(LinkClosed, match="it broke"):
        receiver.receive(1)
