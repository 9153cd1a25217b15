"""Going once through a dead-letter queue and taking some of its messages: to send them again, or away.

Messages that are sent again are sent and completed in one transaction, so that each is there exactly once whatever
happens meanwhile. Where the service takes no such transaction a message is completed after it was sent: then it may be
there twice when something goes wrong, and is never lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from uuid import uuid4

from peeklock.amqp.message import Header, Message, Properties
from peeklock.amqp.service_bus import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_REASON
from peeklock.cli.connecting import sentence
from peeklock.cli.messages import sequence_number
from peeklock.cli.output import note
from peeklock.cli.receiving import peek_all
from peeklock.client import ClientError, Connection, ConnectionLost, ReceivedMessage, Receiver, Transactions

Holds = Callable[[Message], bool]
Act = Callable[[Receiver, list[ReceivedMessage]], None]
"""Settles these messages, all or none."""

_AT_ONCE = 40
"""Messages of one transaction: each is one that is sent and one that is completed, and there may be 100."""
_PATIENCE = 2.0
"""Seconds without a message after which there are no more."""


class TransactionRefused(Exception):
    """The service does not do this in a transaction; nothing was done."""


def sweep(connection: Connection, source: str, holds: Holds, most: int, act: Act) -> Iterator[int]:
    """Act on the messages that are there now and for which `holds` is true; says how many at each step.

    `most` is how many at most, 0 for all. What comes meanwhile is left: it may be what was just sent, back again.
    """
    with connection.management(source) as management:
        wanted = {sequence_number(message) for message in peek_all(management) if holds(message)}
    done = 0
    while wanted and (not most or done < most):
        try:
            for count in _pass(connection, source, wanted, most - done if most else 0, act):
                done += count
                yield count
            break
        except TransactionRefused as refused:
            note(f"peeklock: going on without transactions: {refused}")
    if wanted and (not most or done < most):
        note(f"peeklock: {len(wanted)} more are held by other receivers, or deferred")


def _pass(connection: Connection, source: str, wanted: set[int], most: int, act: Act) -> Iterator[int]:
    """Once through the queue. Those that stay are held meanwhile, so that they do not come again and again."""
    held: list[ReceivedMessage] = []
    with connection.receiver(source, credit=0) as receiver:
        try:
            while wanted:
                messages = receiver.receive(min(_AT_ONCE, most) if most else _AT_ONCE, timeout=_PATIENCE)
                if not messages:
                    return
                chosen = [message for message in messages if sequence_number(message.message) in wanted]
                held += messages
                if not chosen:
                    continue
                act(receiver, chosen)
                acted_on = {id(message) for message in chosen}
                held = [message for message in held if id(message) not in acted_on]
                wanted -= {sequence_number(message.message) for message in chosen}
                yield len(chosen)
                if most and not (most := most - len(chosen)):
                    return
        finally:
            left = [message for message in held if not message.settled]
            if left:
                with suppress(ClientError):  # their locks run out
                    receiver.release(left, wait=True)


def complete(receiver: Receiver, messages: list[ReceivedMessage]) -> None:
    """Away with them."""
    receiver.accept(messages, wait=True)


class Resubmitter:
    """Sends messages again and completes those that were."""

    def __init__(self, connection: Connection, source: str, destination: str, *, new_ids: bool) -> None:
        self._connection = connection
        self._source = source
        self._sender = connection.sender(destination)
        self._new_ids = new_ids
        self._transactions: Transactions | None = None
        with suppress(ClientError):  # then without
            self._transactions = connection.transactions()

    def __call__(self, receiver: Receiver, messages: list[ReceivedMessage]) -> None:
        again = [resubmission(message.message, new_id=self._new_ids) for message in messages]
        if self._transactions is None:
            for message, sent in zip(messages, again, strict=True):
                self._sender.send(sent)
                receiver.accept(message, wait=True)
            return
        try:
            self._move(self._transactions, receiver, messages, again)
        except ConnectionLost:
            raise
        except ClientError as error:
            self._transactions = None
            self._give_back(messages)
            raise TransactionRefused(sentence(error)) from None

    def _move(
        self, transactions: Transactions, receiver: Receiver, messages: list[ReceivedMessage], again: list[Message]
    ) -> None:
        with transactions.transaction() as transaction:
            receiver.settle(messages, transaction.outcome(), wait=True)
            under_way = [self._sender.post(message, state=transaction.state) for message in again]
            self._sender.wait_for(lambda: all(sent.done for sent in under_way), None, "the outcomes")
            for sent in under_way:
                if sent.refused is not None:
                    raise sent.refused

    def _give_back(self, messages: list[ReceivedMessage]) -> None:
        """What was settled in a transaction that was rolled back stays locked, and its link cannot settle it again."""
        tokens = [message.lock_token for message in messages if message.settled and message.lock_token is not None]
        if tokens:
            with suppress(ClientError), self._connection.management(self._source) as management:
                management.update_disposition(tokens, "abandoned")


_ADDED = (
    "x-opt-sequence-number",
    "x-opt-enqueued-time",
    "x-opt-enqueue-sequence-number",
    "x-opt-locked-until",
    "x-opt-message-state",
    "x-opt-scheduled-enqueue-time",
    "x-opt-deadletter-source",
)
"""Annotations of the message that was, not of the one that is sent."""


def resubmission(message: Message, *, new_id: bool) -> Message:
    """The message as its sender sent it."""
    annotations = {key: value for key, value in (message.message_annotations or {}).items() if key not in _ADDED}
    properties = message.properties or Properties()
    applied = dict(message.application_properties or {})
    for name in (DEAD_LETTER_REASON, DEAD_LETTER_DESCRIPTION):
        applied.pop(name, None)
    return replace(
        message,
        header=replace(message.header or Header(), delivery_count=0),
        delivery_annotations=None,
        message_annotations=annotations or None,
        properties=replace(properties, message_id=uuid4().hex) if new_id else properties,
        application_properties=applied or None,
    )
