"""Coverage-guided fuzzing of everything that decodes a peer's bytes; README.md says how to run it.

Any exception but DecodeError is a finding. So is a value that was read and cannot be written, or that is
another one when it is read back. Composites and messages may refuse to be written, with an EncodeError,
because they read strings for symbols and write symbols only.
"""

from __future__ import annotations

import sys
from typing import Any

import atheris

with atheris.instrument_imports(include=["peeklock.amqp"]):
    from peeklock.amqp.codec import decode_value, encode_value
    from peeklock.amqp.composites import Composite, decode_composite
    from peeklock.amqp.errors import DecodeError, EncodeError
    from peeklock.amqp.message import Message


def decoded(decode: Any, data: bytes) -> Any:
    try:
        return decode(data)
    except DecodeError:
        return None


def encoded(value: Any) -> bytes | None:
    try:
        written: bytes = value.encode()
    except EncodeError:
        return None
    return written


def check(data: bytes) -> None:
    result = decoded(decode_value, data)
    if result is not None:
        value, end = result
        assert 0 < end <= len(data)
        written = encode_value(value)
        again, _ = decode_value(written)
        # By bytes, because a NaN is not equal to itself.
        assert encode_value(again) == written

    result = decoded(decode_composite, data)
    if result is not None:
        value, end = result
        assert 0 < end <= len(data)
        rewritten = encoded(value) if isinstance(value, Composite) else None
        if rewritten is not None:
            again, _ = decode_composite(rewritten)
            assert again.encode() == rewritten

    message = decoded(Message.decode, data)
    rewritten = encoded(message) if message is not None else None
    if rewritten is not None:
        assert Message.decode(rewritten).encode() == rewritten


def main() -> None:
    atheris.Setup(sys.argv, check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
