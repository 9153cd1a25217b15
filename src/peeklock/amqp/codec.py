"""Single AMQP values, to bytes and back: the way into `decoders`, `encoders` and `arrays`.

Everything that can be wrong with the bytes of a peer is a DecodeError, everything that can be wrong with a
value of ours an EncodeError. Described values stay `Described`; `composites` knows the specification's own.
"""

from __future__ import annotations

from typing import Any

from peeklock.amqp import arrays as arrays  # adds its writer to the table
from peeklock.amqp import decoders, encoders
from peeklock.amqp.decoders import READERS, new_budget
from peeklock.amqp.encoders import write_value
from peeklock.amqp.errors import DecodeError, EncodeError

__all__ = ["DecodeError", "EncodeError", "decode_value", "encode_value"]


def decode_value(data: bytes, offset: int = 0, depth: int = 0) -> tuple[Any, int]:
    """The value at `offset`, which stands inside `depth` others, and the offset behind it."""
    try:
        return READERS[data[offset]](data, offset + 1, depth, new_budget())
    except decoders.FAILURES as error:
        raise decoders.failure(error) from None


def encode_value(value: Any) -> bytes:
    """The value in its smallest encoding."""
    try:
        return write_value(value, 0)
    except encoders.FAILURES as error:
        raise EncodeError(f"a {type(value).__name__} cannot be encoded: {error}") from error
