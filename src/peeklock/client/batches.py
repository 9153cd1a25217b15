"""Batches of Service Bus: one transfer whose data sections are encoded messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from peeklock.amqp.message import Message, MessageId, Properties
from peeklock.amqp.types import Symbol
from peeklock.client.management import PARTITION_KEY
from peeklock.client.sender import Sender

BATCH_FORMAT: Final = 0x80013700
MAX_MESSAGES: Final = 1000
_MAX_BYTES: Final = 1024 * 1024
"""The hosted service's limit of a batch, even where a single message may be larger."""
_DEFAULT_BYTES: Final = 256 * 1024
ITEM_BYTES: Final = 8
"""The largest head of a data section: the bytes that a batch adds to each message."""
_BATCH_SIZE: Final = Symbol("com.microsoft:max-message-batch-size")
"""The property of the peer's attach with the maximum size of a batch."""


class Batch(NamedTuple):
    payload: bytes
    message_format: int
    messages: int


def batch_limit(sender: Sender) -> int:
    """Return the largest size of a batch on this link, in bytes."""
    said = (sender.remote.properties or {}).get(_BATCH_SIZE) if sender.remote is not None else None
    limits = [limit for limit in (sender.max_message_size, said) if isinstance(limit, int) and limit > 0]
    return min(*limits, _MAX_BYTES) if limits else _DEFAULT_BYTES


def fill_batches(messages: Iterable[Message], max_bytes: int, max_messages: int = MAX_MESSAGES) -> Iterator[Batch]:
    """Yield as few batches as possible, in order. A message alone in its batch is sent as it is, whatever its size."""
    items: list[bytes] = []
    head, size = b"", 0
    for message in messages:
        item = message.encode()
        if items and (size + len(item) + ITEM_BYTES > max_bytes or len(items) == max_messages):
            yield pack(items, head)
            items = []
        if not items:
            properties = message.properties or Properties()
            key = (message.message_annotations or {}).get(PARTITION_KEY)
            head = envelope(properties.message_id, properties.group_id, key)
            size = len(head)
        items.append(item)
        size += len(item) + ITEM_BYTES
    if items:
        yield pack(items, head)


def envelope(message_id: MessageId | None, session_id: str | None, partition_key: str | None) -> bytes:
    """Return the annotations by which the service routes a batch, from its first message."""
    return Message(
        message_annotations=None if partition_key is None else {PARTITION_KEY: partition_key},
        properties=Properties(message_id=message_id, group_id=session_id),
    ).encode()


def pack(items: list[bytes], head: bytes) -> Batch:
    """Encoded messages in an envelope; a single message has none."""
    if len(items) == 1:
        return Batch(items[0], 0, 1)
    return Batch(head + Message(data=items).encode(), BATCH_FORMAT, len(items))
