"""Many messages in one transfer, as Service Bus takes them: each encoded message is a data section of an envelope."""

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
"""What the hosted service takes in a batch even where single messages may be larger."""
_DEFAULT_BYTES: Final = 256 * 1024
ITEM_BYTES: Final = 8
"""The largest head of a data section: what a message adds to a batch besides itself."""
_BATCH_SIZE: Final = Symbol("com.microsoft:max-message-batch-size")
"""In the properties of the peer's attach."""


class Batch(NamedTuple):
    payload: bytes
    message_format: int
    messages: int


def batch_limit(sender: Sender) -> int:
    """The bytes that a batch to this link may have."""
    said = (sender.remote.properties or {}).get(_BATCH_SIZE) if sender.remote is not None else None
    limits = [limit for limit in (sender.max_message_size, said) if isinstance(limit, int) and limit > 0]
    return min(*limits, _MAX_BYTES) if limits else _DEFAULT_BYTES


def fill_batches(messages: Iterable[Message], max_bytes: int, max_messages: int = MAX_MESSAGES) -> Iterator[Batch]:
    """As few batches as the messages fit in, in their order; one that is alone goes as it is, however large."""
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
    """What the service looks at before it opens the batch: where the first message belongs."""
    return Message(
        message_annotations=None if partition_key is None else {PARTITION_KEY: partition_key},
        properties=Properties(message_id=message_id, group_id=session_id),
    ).encode()


def pack(items: list[bytes], head: bytes) -> Batch:
    """Encoded messages behind an envelope; one that is alone needs none."""
    if len(items) == 1:
        return Batch(items[0], 0, 1)
    return Batch(head + Message(data=items).encode(), BATCH_FORMAT, len(items))
