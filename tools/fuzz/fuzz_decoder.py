"""Coverage-guided fuzzing of all decoders of a peer's bytes; README.md has the commands.

Any exception except DecodeError is a finding. So is a decoded value that cannot be encoded, or that changes when it
is encoded and decoded again. Composites and messages may raise EncodeError, because they accept strings in place of
symbols, but encode symbols only.
"""

from __future__ import annotations

from typing import Any

import atheris  # type: ignore[import-untyped]
from harness import fuzz

with atheris.instrument_imports(include=["peeklock.amqp"]):
    from peeklock.amqp.codec import decode_value, encode_value
    from peeklock.amqp.composites import Composite, decode_composite
    from peeklock.amqp.errors import DecodeError, EncodeError
    from peeklock.amqp.message import Header, Message, Properties
    from peeklock.amqp.performatives import Attach, Disposition, Open, Rejected, Source, Target, Transfer
    from peeklock.amqp.sections import data_sections, raw_entries, raw_fields, scan
    from peeklock.amqp.types import Array, Described, Symbol, Timestamp, UInt


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
    check_value(data)
    check_composite(data)
    check_message(data)
    check_sections(data)


def check_value(data: bytes) -> None:
    result = decoded(decode_value, data)
    if result is not None:
        value, end = result
        assert 0 < end <= len(data)
        written = encode_value(value)
        again, _ = decode_value(written)
        # Compared as bytes, because NaN is not equal to itself.
        assert encode_value(again) == written


def check_composite(data: bytes) -> None:
    result = decoded(decode_composite, data)
    if result is not None:
        value, end = result
        assert 0 < end <= len(data)
        rewritten = encoded(value) if isinstance(value, Composite) else None
        if rewritten is not None:
            again, _ = decode_composite(rewritten)
            assert again.encode() == rewritten


def check_message(data: bytes) -> None:
    message = decoded(Message.decode, data)
    rewritten = encoded(message) if message is not None else None
    if rewritten is not None:
        assert Message.decode(rewritten).encode() == rewritten


def check_sections(data: bytes) -> None:
    """Check the functions that scan a message without decoding it: every section found must be within the message."""
    decoded(data_sections, data)
    found = decoded(scan, data)
    if found is None:
        return
    for part in (found.properties, found.application_properties):
        if part is not None:
            assert 0 <= part.start <= part.stop <= len(found.bare)
            decoded(lambda bare, part=part: raw_fields(bare, part), found.bare)
            decoded(lambda bare, part=part: raw_entries(bare, part), found.bare)


def examples() -> list[bytes]:
    values: list[Any] = [
        None,
        [1, 2.5, "text", b"bytes", True, Symbol("symbol"), Timestamp(0), UInt(7)],
        {"a": [{}], Symbol("b"): {"c": None}},
        Array([1, 2, 300], int),
        Array([Described(Symbol("x"), 1)], Described(Symbol("x"), int)),
        Described(Symbol("x:y"), [1]),
    ]
    composites: list[Any] = [
        Open(container_id="c", hostname="h", properties={Symbol("product"): "p"}),
        Attach(name="l", handle=0, role=True, source=Source(address="q"), target=Target(address="q")),
        Transfer(handle=0, delivery_id=1, delivery_tag=b"t"),
        Disposition(role=True, first=0, last=4, settled=True, state=Rejected()),
    ]
    message = Message(
        header=Header(durable=True, ttl=1000),
        message_annotations={Symbol("x-opt-a"): 1},
        properties=Properties(message_id="id", group_id="session"),
        application_properties={"a": 1},
        data=[b"body"],
    )
    return [*map(encode_value, values), *(each.encode() for each in composites), message.encode()]


if __name__ == "__main__":
    fuzz(check, examples())
