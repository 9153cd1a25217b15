"""The fast decoder of usual messages returns the same result as the scan."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peeklock.amqp.message import Header, Message, Properties
from peeklock.broker import incoming
from peeklock.broker.errors import InvalidMessage
from peeklock.broker.incoming import Incoming, read_incoming

HEADERS = st.one_of(
    st.none(),
    st.builds(
        Header,
        durable=st.sampled_from([None, True, False]),
        priority=st.sampled_from([None, 4, 9]),
        ttl=st.sampled_from([None, 0, 5000, 0xFFFFFFFF]),
        delivery_count=st.sampled_from([None, 0, 3]),
    ),
)
PROPERTIES = st.one_of(
    st.none(),
    st.builds(
        Properties,
        message_id=st.one_of(st.none(), st.text(max_size=300)),
        subject=st.one_of(st.none(), st.text(max_size=5)),
        group_id=st.one_of(st.none(), st.text(max_size=5)),
    ),
)
MESSAGES = st.builds(
    Message,
    header=HEADERS,
    properties=PROPERTIES,
    application_properties=st.one_of(st.none(), st.just({"a": 1})),
    data=st.lists(st.binary(max_size=300), min_size=1, max_size=2),
)


def fields_of(read: Incoming) -> list[Any]:
    return [read.bare, read.annex, read.ttl_ms, read.session_id, read.scheduled_at]


def short(payload: bytes) -> Incoming | None:
    """Decode with the fast decoder, as a part of other bytes, which must not matter."""
    alone = incoming._read_usual(payload, 0, len(payload))
    for before, behind in ((b"", payload), (payload, b"")):
        among = incoming._read_usual(before + payload + behind, len(before), len(before) + len(payload))
        assert (among is None) == (alone is None)
        assert alone is None or among is None or fields_of(among) == fields_of(alone)
    return alone


def by_scan(payload: bytes) -> list[Any] | None:
    """Decode with the scan: the fast decoder refuses a message with an empty section before the properties."""
    at = 5 + payload[4] if payload[:4] == b"\x00\x53\x70\xc0" and len(payload) > 4 else 0
    try:
        return fields_of(read_incoming(payload[:at] + b"\x00\x53\x71\xc1\x01\x00" + payload[at:], False))
    except InvalidMessage:
        return None


@given(MESSAGES)
def test_the_fast_path_reads_a_message_as_the_scan_does(message: Message) -> None:
    payload = message.encode()
    usual = short(payload)
    if usual is not None:
        assert fields_of(usual) == by_scan(payload)


@given(MESSAGES, st.data())
def test_the_fast_path_refuses_damaged_bytes_that_the_scan_refuses(message: Message, data: Any) -> None:
    payload = bytearray(message.encode())
    payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(payload[: data.draw(st.integers(0, len(payload)))])
    usual = short(damaged)
    if usual is not None:
        assert fields_of(usual) == by_scan(damaged)


@pytest.mark.parametrize(
    ("count", "fields"),
    [
        (1, b"\xa1\x02\xff\xfe"),
        (1, b"\xa1\x20ab"),
        (3, b"\xa1\x02ab"),
        (2, b"\xa1\x02ab\xa1\x05x"),
        (2, b"\xa1\x02ab\x01"),
        (1, b"\x00\x14\x01"),
        (1, b"\x01"),
        (1, b"\x98" + bytes(5)),
        (1, b"\x81" + bytes(7)),
    ],
)
def test_broken_properties_are_left_to_the_scan_which_refuses_them(count: int, fields: bytes) -> None:
    payload = b"\x00\x53\x73\xc0" + bytes((len(fields) + 1, count)) + fields + b"\x00\x53\x75\xa0\x01x"
    assert short(payload) is None
    assert by_scan(payload) is None


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("code", range(256))
def test_a_field_of_any_kind_reads_as_by_the_scan(code: int, count: int) -> None:
    fields = b"\xa1\x01a" * (count - 1) + bytes((code, 4)) + bytes(30)
    payload = b"\x00\x53\x73\xc0" + bytes((len(fields) + 1, count)) + fields + b"\x00\x53\x75\xa0\x01x"
    usual = short(payload)
    if usual is not None:
        assert fields_of(usual) == by_scan(payload)


@pytest.mark.parametrize("size", [10, 1000])
def test_a_plain_message_is_read_by_the_fast_path(size: int) -> None:
    message = Message(header=Header(durable=True, ttl=5000), properties=Properties(message_id="x"), data=[bytes(size)])
    usual = short(message.encode())
    assert usual is not None
    assert usual.ttl_ms == 5000
