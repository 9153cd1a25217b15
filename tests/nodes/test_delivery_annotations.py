"""Delivery annotations on links: lock tokens that requests accept, and annotations of the sender for the next hop."""

from __future__ import annotations

from uuid import UUID

from nodes.asking import Management, send
from nodes.test_settling_ranges import take
from peeklock.amqp.message import Message
from peeklock.amqp.types import Array, Symbol
from peeklock.client import Connection, ReceiveMode


def test_the_lock_token_in_the_delivery_annotations_works_in_requests(
    connection: Connection, management: Management
) -> None:
    send(connection, b"one")
    (message,) = take(connection.receiver("queue"), 1)
    assert message.message.delivery_annotations is not None
    token = message.message.delivery_annotations["x-opt-lock-token"]
    assert token == message.lock_token
    assert type(token) is UUID
    answer = management.ok("renew-lock", {"lock-tokens": Array([token], UUID)})
    assert len(answer["expirations"]) == 1
    management.ok("update-disposition", {"disposition-status": "completed", "lock-tokens": Array([token], UUID)})
    assert management.peek() == []


def test_delivery_annotations_of_the_sender_arrive_in_every_mode(connection: Connection) -> None:
    annotations = {Symbol("mine"): "yes"}
    connection.sender("queue").send(Message(delivery_annotations=annotations, data=[b"x"]))
    receiver = connection.receiver("queue")
    (locked,) = take(receiver, 1)
    assert locked.message.delivery_annotations == {**annotations, "x-opt-lock-token": locked.lock_token}
    receiver.release(locked, wait=True)
    receiver.close()
    deleted = take(connection.receiver("queue", mode=ReceiveMode.RECEIVE_AND_DELETE), 1)[0]
    assert deleted.message.delivery_annotations == annotations


def test_a_message_that_is_received_and_deleted_has_an_empty_section(connection: Connection) -> None:
    send(connection, b"one")
    (message,) = take(connection.receiver("queue", mode=ReceiveMode.RECEIVE_AND_DELETE), 1)
    assert message.message.delivery_annotations == {}
