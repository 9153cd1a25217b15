"""Many messages in one transfer, as Service Bus takes them: each encoded message is a data section of an envelope."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from peeklock.amqp.message import Message, Properties
from peeklock.client.management import PARTITION_KEY
from peeklock.client.sender import Sender

BATCH_FORMAT: Final = 0x80013700
MAX_MESSAGES: Final = 1000
_MAX_BYTES: Final = 1024 * 1024
"""What the hosted service takes in a batch even where single messages may be larger."""
_DEFAULT_BYTES: Final = 256 * 1024
_ITEM_BYTES: Final = 8
"""The largest head of a data section."""


class Batch(NamedTuple):
    payload: bytes
    message_format: int
    messages: int


def batch_limit(sender: Sender) -> int:
    """The bytes that a batch to this link may have."""
    return min(sender.max_message_size or _DEFAULT_BYTES, _MAX_BYTES)


def fill_batches(messages: Iterable[Message], max_bytes: int, max_messages: int = MAX_MESSAGES) -> Iterator[Batch]:
    """As few batches as the messages fit in, in their order; one that is alone goes as it is, however large."""
    items: list[bytes] = []
    envelope, size = b"", 0
    for message in messages:
        item = message.encode()
        if items and (size + len(item) + _ITEM_BYTES > max_bytes or len(items) == max_messages):
            yield _batch(envelope, items)
            items = []
        if not items:
            envelope = _envelope(message)
            size = len(envelope)
        items.append(item)
        size += len(item) + _ITEM_BYTES
    if items:
        yield _batch(envelope, items)


def _batch(envelope: bytes, items: list[bytes]) -> Batch:
    if len(items) == 1:
        return Batch(items[0], 0, 1)
    return Batch(envelope + Message(data=items).encode(), BATCH_FORMAT, len(items))


def _envelope(first: Message) -> bytes:
    """What the service looks at before it opens the batch: where the first message belongs."""
    properties = first.properties or Properties()
    key = (first.message_annotations or {}).get(PARTITION_KEY)
    envelope = Message(
        message_annotations=None if key is None else {PARTITION_KEY: key},
        properties=Properties(message_id=properties.message_id, group_id=properties.group_id),
    )
    return envelope.encode()
