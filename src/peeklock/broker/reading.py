"""Reads messages by their sequence numbers, and converts errors of the store into errors for clients."""

from __future__ import annotations

from peeklock.broker.errors import BrokerError, QuotaExceeded, StorageFailed
from peeklock.limits.amqp import MAX_NUMBERED_BYTES
from peeklock.store.base import MessagesRead, Store, StoredMessage, StoreError


class TooMuchAtOnce(StoreError):
    """The messages of one request by sequence numbers have too many bytes."""


def read_numbers(store: Store, entity: int, numbers: list[int], done: MessagesRead) -> None:
    """Read all messages with these numbers. The answer is `TooMuchAtOnce` if they are too large for one request."""
    wanted = sorted(set(numbers))

    def found(messages: list[StoredMessage] | StoreError) -> None:
        done(TooMuchAtOnce() if _is_cut(messages, wanted) else messages)

    store.read_numbers(entity, wanted, MAX_NUMBERED_BYTES, found)


def _is_cut(messages: list[StoredMessage] | StoreError, wanted: list[int]) -> bool:
    if isinstance(messages, StoreError) or not messages or messages[-1].sequence_number == wanted[-1]:
        return False
    return sum(message.read_size for message in messages) >= MAX_NUMBERED_BYTES


def unreadable(error: StoreError) -> BrokerError:
    """Return the error for a client whose messages could not be read."""
    if isinstance(error, TooMuchAtOnce):
        limit = MAX_NUMBERED_BYTES >> 20
        return QuotaExceeded(f"The messages have more than {limit} MiB together. Ask for fewer in one request.")
    return StorageFailed(f"The broker could not read from its store: {error}")
