"""Resubmit or delete selected messages of a dead-letter queue, in one pass over the queue.

A resubmission sends messages and completes the dead-lettered ones in one transaction, so that each message exists
exactly once after any failure. If the service refuses the transaction, each message is completed after it was sent. A
failure can then duplicate a message, but not lose it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from uuid import uuid4

from peeklock.amqp.message import Header, Message, Properties
from peeklock.amqp.service_bus import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_REASON
from peeklock.cli.connecting import error_text
from peeklock.cli.messages import sequence_number
from peeklock.cli.output import note
from peeklock.cli.receiving import peek_all
from peeklock.client import ClientError, Connection, ConnectionLost, ReceivedMessage, Receiver, Transactions

Predicate = Callable[[Message], bool]
Act = Callable[[Receiver, list[ReceivedMessage]], None]
"""Settles messages, all or none."""

_BATCH = 40
"""Messages in one transaction. Each takes two operations, a send and a settlement, of the 100 that are allowed."""
_WAIT = 2.0
"""Seconds to wait for a message before the queue counts as empty."""


class TransactionRefused(Exception):
    """The service refused the transaction; no message was sent or settled."""


def sweep(connection: Connection, source: str, matches: Predicate, most: int, act: Act) -> Iterator[int]:
    """Act on the messages in the queue that match, at most `most` or all with 0. Yields the number of each step.

    Messages that arrive later are left: they may be resubmitted messages that were dead-lettered again.
    """
    with connection.management(source) as management:
        wanted = {sequence_number(message) for message in peek_all(management) if matches(message)}
    done = 0
    while wanted and (not most or done < most):
        try:
            for count in _pass(connection, source, wanted, most - done if most else 0, act):
                done += count
                yield count
            break
        except TransactionRefused as refused:
            note(f"peeklock: continuing without transactions: {refused}")
    if wanted and (not most or done < most):
        note(f"peeklock: {len(wanted)} further messages are locked by other receivers or deferred")


def _pass(connection: Connection, source: str, wanted: set[int], most: int, act: Act) -> Iterator[int]:
    """Receive each message of the queue once. Messages that stay are kept locked, so that they are not redelivered."""
    held: list[ReceivedMessage] = []
    with connection.receiver(source, credit=0) as receiver:
        try:
            while wanted:
                messages = receiver.receive(min(_BATCH, most) if most else _BATCH, timeout=_WAIT)
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
                with suppress(ClientError):  # if this fails, the locks expire
                    receiver.release(left, wait=True)


def complete(receiver: Receiver, messages: list[ReceivedMessage]) -> None:
    """Complete messages, which removes them."""
    receiver.accept(messages, wait=True)


class Resubmitter:
    """Sends messages again and completes the dead-lettered ones."""

    def __init__(self, connection: Connection, source: str, destination: str, *, new_ids: bool) -> None:
        self._connection = connection
        self._source = source
        self._sender = connection.sender(destination)
        self._new_ids = new_ids
        self._transactions: Transactions | None = None
        with suppress(ClientError):  # without transactions if the service refuses the link
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
            self._abandon(messages)
            raise TransactionRefused(error_text(error)) from None

    def _move(
        self, transactions: Transactions, receiver: Receiver, messages: list[ReceivedMessage], again: list[Message]
    ) -> None:
        with transactions.transaction() as transaction:
            receiver.settle(messages, transaction.outcome(), wait=True)
            in_flight = [self._sender.post(message, state=transaction.state) for message in again]
            self._sender.wait_for(lambda: all(sent.done for sent in in_flight), None, "the outcomes")
            for sent in in_flight:
                if sent.refused is not None:
                    raise sent.refused

    def _abandon(self, messages: list[ReceivedMessage]) -> None:
        """Abandon messages by lock token after a rollback.

        They are still locked, and their link cannot settle them a second time.
        """
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
"""Annotations that the service added to the dead-lettered message, and that are not sent again."""


def resubmission(message: Message, *, new_id: bool) -> Message:
    """The message as its sender sent it, without what the service added."""
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
