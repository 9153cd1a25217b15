"""The annex of a stored message: the parts of its header and annotations that are stored with the bare message."""

from __future__ import annotations

from typing import Final, NamedTuple

from peeklock.amqp.codec import decode_value, encode_value

UINT_MAX: Final = 0xFFFFFFFF
DEFAULT_PRIORITY: Final = 4


class Annex(NamedTuple):
    """The parts of the header and the annotations that the sender set. Stored as an AMQP list."""

    priority: int | None = None
    annotations: bytes = b""
    """The message annotations: encoded keys and values."""
    annotation_fields: int = 0
    dead_letter_source: str | None = None
    ttl_ms: int | None = None
    """The time to live of a scheduled message. It starts when the message is enqueued."""
    enqueued_number: int | None = None
    """For a forwarded message: its sequence number in the entity that the client sent it to."""
    hops: int = 0
    """The number of times that the message was forwarded."""
    delivery_annotations: bytes = b""
    """The sender's delivery annotations, which are delivered with the message: an encoded map, or empty."""
    durable: bool = False
    """The flag in the sender's header. Every message is stored; JMS clients see this as the delivery mode."""

    def encode(self) -> bytes:
        # Few messages have the last two fields, so they are left out when they have their defaults.
        fields = list(self)
        if not self.durable:
            del fields[-1 if self.delivery_annotations else -2 :]
        return encode_value(fields)

    def encode_if_any(self) -> bytes | None:
        return None if self == _EMPTY_ANNEX else self.encode()

    @classmethod
    def decode(cls, data: bytes | None) -> Annex:
        return cls() if data is None else cls(*decode_value(data)[0])


_EMPTY_ANNEX: Final = Annex()
DURABLE: Final = Annex(durable=True).encode()
"""The annex of a durable message without other annotations."""
