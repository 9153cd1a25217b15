"""Encodes and decodes single AMQP values, with `decoders`, `encoders` and `arrays`.

Malformed bytes of a peer raise DecodeError, and values that cannot be encoded raise EncodeError. Described values are
returned as `Described`; `composites` decodes the types that the specification defines.
"""

from __future__ import annotations

from typing import Any

from peeklock.amqp import arrays as arrays  # the import adds the writer of arrays to the table
from peeklock.amqp import decoders, encoders
from peeklock.amqp.decoders import READERS, new_budget
from peeklock.amqp.encoders import write_value
from peeklock.amqp.errors import DecodeError, EncodeError

__all__ = ["DecodeError", "EncodeError", "decode_value", "encode_value"]


def decode_value(data: bytes, offset: int = 0, depth: int = 0) -> tuple[Any, int]:
    """Return the value at `offset` and the offset after it. `depth` is the number of values that it is nested in."""
    try:
        return READERS[data[offset]](data, offset + 1, depth, new_budget())
    except decoders.FAILURES as error:
        raise decoders.failure(error) from None


def encode_value(value: Any) -> bytes:
    """Return the value in its smallest encoding."""
    try:
        return write_value(value, 0)
    except encoders.FAILURES as error:
        raise EncodeError(f"a {type(value).__name__} cannot be encoded: {error}") from error
