"""Raw sections: found, extracted and joined, compared with the decoded message."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp.values import scalars
from peeklock.amqp.codec import decode_value, encode_value
from peeklock.amqp.errors import DecodeError
from peeklock.amqp.message import Header, Message, Properties
from peeklock.amqp.sections import (
    APPLICATION_PROPERTIES,
    HEADER,
    MESSAGE_ANNOTATIONS,
    NULL,
    PROPERTIES,
    data_sections,
    first_field_is_null,
    list_section,
    map_section,
    raw_entries,
    raw_fields,
    replace_section,
    scan,
    value_end,
)
from peeklock.amqp.types import Symbol

texts = st.text(max_size=20)
headers = st.none() | st.builds(Header, durable=st.booleans(), ttl=st.none() | st.integers(0, 0xFFFFFFFF))
annotations = st.none() | st.dictionaries(texts.filter(str.isascii).map(Symbol), texts, max_size=4)
properties = st.none() | st.builds(
    Properties, message_id=st.none() | texts | st.uuids(), subject=st.none() | texts, to=st.none() | texts
)
application_properties = st.none() | st.dictionaries(texts, scalars, max_size=4)
bodies = st.lists(st.binary(max_size=30) | st.just(bytes(300)), min_size=1, max_size=3)
messages = st.builds(
    Message,
    header=headers,
    delivery_annotations=annotations,
    message_annotations=annotations,
    properties=properties,
    application_properties=application_properties,
    data=bodies,
)


def bare_of(message: Message) -> bytes:
    return Message(
        properties=message.properties,
        application_properties=message.application_properties,
        data=message.data,
        sequences=message.sequences,
        value=message.value,
    ).encode()


def section_value(data: bytes, part: slice | None) -> bytes | None:
    return None if part is None else data[part]


def encoded_value(section: bytes | None) -> bytes | None:
    return None if section is None else section[3:]


# --- scanning ---


@given(message=messages)
def test_the_sections_of_a_message_are_found_where_they_are(message: Message) -> None:
    data = message.encode()
    found = scan(data)
    assert found.bare == bare_of(message)
    header = None if message.header is None else message.header.encode()
    assert section_value(found.data, found.header) == encoded_value(header)
    own_properties = None if message.properties is None else message.properties.encode()
    assert section_value(found.bare, found.properties) == encoded_value(own_properties)
    if message.message_annotations is None:
        assert found.annotations is None
    else:
        assert found.annotations is not None
        assert decode_value(found.data, found.annotations.start) == (
            message.message_annotations,
            found.annotations.stop,
        )
    if message.application_properties is None:
        assert found.application_properties is None
    else:
        assert found.application_properties is not None
        assert found.application_properties.stop <= len(found.bare)
        assert decode_value(found.bare, found.application_properties.start)[1] == found.application_properties.stop


@pytest.mark.parametrize(
    "message",
    [
        Message(data=[b"x"]),
        Message(sequences=[[1, 2], []]),
        Message(value={"a": [1, None]}),
        Message(value=None),
        Message(data=[b"x"], footer={Symbol("f"): 1}),
        Message(data=[bytes(70_000)]),
        Message(value="v" * 300),
    ],
)
def test_any_kind_of_body_belongs_to_the_bare_message(message: Message) -> None:
    assert scan(message.encode()).bare == message.encode()


@given(message=messages)
def test_annotations_behind_the_body_are_found_and_the_bare_message_closes_ranks(message: Message) -> None:
    sections = Message(data=message.data, properties=message.properties).encode()
    stray = Message(header=Header(durable=True), message_annotations={Symbol("late"): 1}).encode()
    cut = len(sections) - len(Message(data=message.data).encode())
    found = scan(sections[:cut] + stray + sections[cut:] + Message(delivery_annotations={}).encode())
    assert found.bare == sections
    assert found.header is not None
    assert decode_value(found.data, found.annotations.start)[0] == {Symbol("late"): 1}  # type: ignore[union-attr]
    own_properties = None if message.properties is None else message.properties.encode()
    assert section_value(found.bare, found.properties) == encoded_value(own_properties)


@pytest.mark.parametrize("descriptor", [b"\x80" + (0x75).to_bytes(8, "big"), b"\xa3\x10amqp:data:binary"])
def test_a_section_with_a_long_or_symbolic_descriptor_is_understood(descriptor: bytes) -> None:
    plain = Message(properties=Properties(message_id="m"), data=[b"body"])
    head = Message(properties=Properties(message_id="m")).encode()
    found = scan(head + b"\x00" + descriptor + b"\xa0\x04body")
    assert found.bare == plain.encode()
    assert found.properties is not None


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"hello", "described"),
        (b"\x00\x53", "end within a value"),
        (b"\x00\x53\x75", "end within a value"),
        (b"\x00\x53\x75\xa0", "ends"),
        (b"\x00\x53\x75\xa0\x05abc", "ends in the middle"),
        (b"\x00\x53\x75\xb0\xff\xff\xff\xffabc", "ends in the middle"),
        (b"\x00\x53\x79\xa0\x00", "0x79 is not a message section"),
        (b"\x00\x53\x10\xa0\x00", "0x10 is not a message section"),
        (b"\x00\x53\x70\xa0\x00", "header section is not a list"),
        (b"\x00\x53\x72\x45", "message-annotations section is not a map"),
        (b"\x00\x53\x73\xc1\x01\x00", "properties section is not a list"),
        (b"\x00\x53\x74\x45", "application-properties section is not a map"),
        (b"\x00\x53\x77\x3f", "constructor 0x3f"),
        (b"\x00\x53\x77" + b"\x00" * 2000, "ends|descriptors"),
    ],
)
def test_bytes_that_are_not_a_message_are_refused_with_the_reason(data: bytes, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        scan(data)


@given(data=st.binary(max_size=80) | messages.map(Message.encode), cut=st.integers(0, 80))
def test_any_bytes_are_scanned_or_refused(data: bytes, cut: int) -> None:
    try:
        found = scan(data[: len(data) - cut] if cut < len(data) else data)
        if found.properties is not None:
            raw_fields(found.bare, found.properties)
        if found.application_properties is not None:
            list(raw_entries(found.bare, found.application_properties))
    except DecodeError:
        pass


# --- values ---


@given(value=scalars | st.lists(scalars, max_size=4) | st.dictionaries(texts, scalars, max_size=3), rest=st.binary())
def test_a_value_ends_where_decoding_it_ends(value: Any, rest: bytes) -> None:
    encoded = encode_value(value)
    assert value_end(encoded + rest, 0) == len(encoded)


def test_a_described_value_ends_behind_its_value() -> None:
    assert value_end(b"\x00\x53\x24\x45\x40", 0) == 4
    assert value_end(b"\x00\xa3\x03a:b\xa1\x02hi\x40", 0) == 10


def test_descriptors_in_front_of_descriptors_have_a_limit() -> None:
    with pytest.raises(DecodeError):
        value_end(b"\x00\x43" * 100 + b"\x40", 0)


# --- lists and maps ---


@given(fields=st.lists(scalars, max_size=8) | st.just(["x" * 300]) | st.just([None] * 300))
def test_a_list_section_returns_its_fields(fields: list[Any]) -> None:
    encoded = [encode_value(field) for field in fields]
    section = list_section(PROPERTIES, encoded)
    assert section[:3] == b"\x00\x53\x73"
    assert raw_fields(section, slice(3, len(section))) == encoded
    assert decode_value(section, 3)[1] == len(section)


@given(entries=st.dictionaries(texts, scalars, max_size=8) | st.just({"k": "x" * 300}))
def test_a_map_section_returns_its_entries(entries: dict[str, Any]) -> None:
    encoded = [(encode_value(key), encode_value(value)) for key, value in entries.items()]
    section = map_section(APPLICATION_PROPERTIES, [part for entry in encoded for part in entry])
    assert section[:3] == b"\x00\x53\x74"
    assert list(raw_entries(section, slice(3, len(section)))) == encoded
    assert list(decode_value(section, 3)[0]) == list(entries)


def test_an_empty_list_has_no_fields() -> None:
    assert raw_fields(b"\x45", slice(0, 1)) == []
    assert first_field_is_null(b"\x45", slice(0, 1))


@pytest.mark.parametrize(
    ("fields", "is_null"), [([], True), ([None], True), ([None, "x"], True), (["x"], False), ([0, None], False)]
)
def test_whether_the_first_field_is_null_can_be_asked(fields: list[Any], is_null: bool) -> None:
    section = list_section(HEADER, [encode_value(field) for field in fields])
    assert first_field_is_null(section, slice(3, len(section))) is is_null


def test_a_list_with_more_elements_than_bytes_is_refused_before_it_is_read() -> None:
    with pytest.raises(DecodeError, match="has more elements than bytes"):
        raw_fields(b"\xd0\x00\x00\x00\x05\xff\xff\xff\xff\x40", slice(0, 10))


def test_a_list_whose_elements_leave_its_size_is_refused() -> None:
    data = b"\xc0\x04\x02\x40\xa1\x05hello"
    with pytest.raises(DecodeError, match="are longer than its size"):
        raw_fields(data, slice(0, 6))


def test_a_map_with_a_key_alone_is_refused() -> None:
    section = map_section(MESSAGE_ANNOTATIONS, [NULL])
    with pytest.raises(DecodeError, match="key without a value"):
        list(raw_entries(section, slice(3, len(section))))


# --- putting together ---


def test_a_section_is_replaced_in_its_place() -> None:
    message = Message(properties=Properties(subject="s"), application_properties={"a": 1}, data=[b"body"]).encode()
    found = scan(message)
    given_id = Properties(message_id="new", subject="s").encode()
    replaced = Message.decode(replace_section(found.bare, found.properties, given_id))
    assert replaced.properties == Properties(message_id="new", subject="s")
    assert replaced.application_properties == {"a": 1}
    assert replaced.data == [b"body"]


def test_a_missing_section_is_inserted_at_the_front() -> None:
    found = scan(Message(data=[b"body"]).encode())
    replaced = Message.decode(replace_section(found.bare, found.properties, Properties(message_id="new").encode()))
    assert replaced.properties == Properties(message_id="new")
    assert replaced.data == [b"body"]


# --- batches ---


@given(inside=st.lists(messages.map(Message.encode), max_size=5), envelope=annotations)
def test_the_messages_of_a_batch_are_its_data_sections(inside: list[bytes], envelope: dict[Any, Any] | None) -> None:
    batch = Message(message_annotations=envelope, data=inside).encode()
    assert data_sections(batch) == inside


def test_a_batch_with_long_descriptors_is_understood() -> None:
    batch = b"\x00\x80" + (0x75).to_bytes(8, "big") + b"\xa0\x02hi"
    assert data_sections(batch) == [b"hi"]


def test_a_message_without_data_is_a_batch_of_none() -> None:
    assert data_sections(Message(value="x").encode()) == []


@pytest.mark.parametrize("batch", [b"\x00\x53\x75\xa1\x02hi", b"\x00\x53\x75\xa0\x05hi", b"junk"])
def test_bytes_that_are_not_a_batch_are_refused(batch: bytes) -> None:
    with pytest.raises(DecodeError):
        data_sections(batch)
