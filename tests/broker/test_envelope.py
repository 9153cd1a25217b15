"""The sections that the broker removes from a received message, and those that it adds to a delivery."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.world import SECOND, TOKEN, Receiver, World, delivered
from peeklock.amqp.codec import decode_value, encode_value
from peeklock.amqp.errors import DecodeError
from peeklock.amqp.message import Header, Message, Properties
from peeklock.amqp.sections import HEADER, NULL, PROPERTIES, list_section
from peeklock.amqp.types import Described, Symbol, Timestamp, UByte, UInt, ULong
from peeklock.broker.annex import DURABLE, Annex
from peeklock.broker.bare_message import identity_of, partition_key_of, session_id_of, session_of, split
from peeklock.broker.envelope import (
    AddedProperties,
    dead_letter,
    stamp_expiry,
    with_application_properties,
    with_session_id,
)
from peeklock.broker.errors import BrokerError, InvalidMessage, InvalidProperty, MessageSizeExceeded
from peeklock.broker.heads import (
    _full_head,
    head,
)
from peeklock.broker.incoming import read_incoming
from peeklock.entities.definitions import QueueDefinition
from peeklock.limits.broker import MAX_ID_LENGTH
from peeklock.store.base import StoredMessage

BODY = b"\x00\x53\x75\xa0\x04body"
DAY = 24 * 3600 * SECOND
UINT_MAX = 0xFFFFFFFF


def properties(**fields: Any) -> Properties:
    return Properties(**{"message_id": "id", **fields})


def message_id(bare: bytes) -> Any:
    properties = Message.decode(bare).properties
    return properties.message_id if properties is not None else None


def bare_of(message: Message) -> bytes:
    return read_incoming(message.encode(), False).bare


def kept_annotations(annotations: dict[Any, Any]) -> dict[Any, Any]:
    """Return the sender's annotations that a receiver gets."""
    incoming = read_incoming(Message(message_annotations=annotations, data=[b"x"]).encode(), False)
    out = Message.decode(head(StoredMessage(7, incoming.bare, 1000, annex=incoming.annex), None) + incoming.bare)
    assert out.message_annotations is not None
    return {key: value for key, value in out.message_annotations.items() if key not in ADDED}


ADDED = {"x-opt-sequence-number", "x-opt-enqueued-time"}


# --- in ---


def test_the_bare_message_is_stored_unchanged() -> None:
    bare = Message(
        properties=properties(subject="s"), application_properties={"n": 1, "text": "t"}, data=[b"body"]
    ).encode()
    front = Message(header=Header(durable=True), message_annotations={Symbol("x"): 1}).encode()
    assert read_incoming(bare, False).bare == bare
    assert read_incoming(front + bare, False).bare == bare


@pytest.mark.parametrize(
    "body",
    [
        BODY,
        BODY + BODY,
        b"\x00\x53\x76\x45",  # an empty sequence
        b"\x00\x53\x77\x40",  # null
        b"\x00\x53\x77\xd1\x00\x00\x00\x04\x00\x00\x00\x00",  # an empty map, in the long form
        BODY + b"\x00\x53\x78\xc1\x01\x00",  # with a footer
    ],
)
def test_every_kind_of_body_is_stored_unchanged(body: bytes) -> None:
    written = Message(properties=properties()).encode()
    assert read_incoming(written + body, False).bare == written + body


def test_a_section_with_a_long_descriptor_is_given_the_short_one_that_every_decoder_reads() -> None:
    long = b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x75\xa0\x04body"
    written = Message(properties=properties()).encode()
    assert read_incoming(written + long, False).bare == written + BODY


@pytest.mark.parametrize("identity", ["text", ULong(7), b"\x01\x02", UUID(int=5)])
def test_an_id_of_any_type_is_kept(identity: Any) -> None:
    bare = bare_of(Message(properties=Properties(message_id=identity), data=[b"x"]))
    assert message_id(bare) == identity


@pytest.mark.parametrize(
    "message",
    [
        Message(data=[b"x"]),
        Message(properties=Properties(), data=[b"x"]),
        Message(properties=Properties(subject="s", group_id="g"), data=[b"x"]),
        Message(header=Header(durable=True), application_properties={"n": 1}, data=[b"x"]),
        Message(value="no properties at all"),
    ],
)
def test_a_message_without_an_id_gets_one_and_keeps_everything_else(message: Message) -> None:
    found = Message.decode(bare_of(message))
    assert found.properties is not None
    identity = found.properties.message_id
    assert isinstance(identity, str)
    assert len(identity) == 32
    assert int(identity, 16) >= 0
    found.properties.message_id = None
    assert found.properties == (message.properties or Properties())
    assert (found.application_properties, found.data, found.value) == (
        message.application_properties,
        message.data,
        message.value,
    )


def test_no_two_messages_get_the_same_id() -> None:
    assert len({message_id(bare_of(Message(data=[b"x"]))) for _ in range(100)}) == 100


def test_a_session_id_is_read_only_when_it_matters() -> None:
    encoded = Message(properties=properties(group_id="s"), data=[b"x"]).encode()
    assert read_incoming(encoded, True).session_id == "s"
    assert read_incoming(encoded, False).session_id is None
    assert read_incoming(Message(data=[b"x"]).encode(), True).session_id is None


def test_an_id_of_a_session_that_is_too_long_is_refused() -> None:
    good = Message(properties=properties(group_id="s" * MAX_ID_LENGTH), data=[b"x"]).encode()
    assert read_incoming(good, True).session_id == "s" * MAX_ID_LENGTH
    bad = Message(properties=properties(group_id="s" * (MAX_ID_LENGTH + 1)), data=[b"x"]).encode()
    with pytest.raises(InvalidProperty, match="129 characters"):
        read_incoming(bad, True)


def test_annotations_of_the_broker_are_not_accepted_from_a_sender() -> None:
    forged = {
        Symbol("x-opt-sequence-number"): 999,
        Symbol("x-opt-enqueued-time"): Timestamp(1),
        Symbol("x-opt-enqueue-sequence-number"): 999,
        Symbol("x-opt-locked-until"): Timestamp(1),
        Symbol("x-opt-deadletter-source"): "elsewhere",
        Symbol("x-opt-message-state"): 1,
        Symbol("x-opt-lock-token"): "mine",
    }
    incoming = read_incoming(Message(message_annotations=forged, data=[b"x"]).encode(), False)
    assert incoming.annex is None


def test_other_annotations_of_a_sender_are_unchanged() -> None:
    annotations = {
        Symbol("x-opt-partition-key"): "p",
        Symbol("x-opt-via-partition-key"): "v",
        Symbol("of-my-own"): [1, "two", {"three": 3}],
        Symbol("unset"): None,
    }
    assert kept_annotations(annotations) == annotations


def test_a_partition_key_is_checked() -> None:
    too_long = {Symbol("x-opt-partition-key"): "p" * 129}
    with pytest.raises(InvalidProperty, match="partition key"):
        read_incoming(Message(message_annotations=too_long, data=[b"x"]).encode(), False)
    with pytest.raises(InvalidProperty, match="partition key must be a string"):
        read_incoming(Message(message_annotations={Symbol("x-opt-partition-key"): 5}, data=[b"x"]).encode(), False)


@pytest.mark.parametrize("name", ["x-opt-partition-key", "x-opt-via-partition-key"])
def test_a_binary_partition_key_is_decoded_as_a_string(name: str) -> None:
    assert kept_annotations({Symbol(name): "schlüssel".encode(), Symbol("x-opt-own"): b"mine"}) == {
        name: "schlüssel",
        "x-opt-own": b"mine",
    }


@pytest.mark.parametrize("name", ["x-opt-partition-key", "x-opt-via-partition-key"])
@pytest.mark.parametrize(
    ("key", "reason"), [(b"\xff\xfe", "not valid UTF-8"), (b"p" * 129, "129 characters")], ids=["not text", "too long"]
)
def test_a_partition_key_in_binary_that_is_no_such_string_is_refused(name: str, key: bytes, reason: str) -> None:
    with pytest.raises(InvalidProperty, match=f"partition key .*{reason}"):
        read_incoming(Message(message_annotations={Symbol(name): key}, data=[b"x"]).encode(), False)


def with_group_id(group_id: Any) -> bytes:
    """Return a message whose group-id has any type."""
    fields = [encode_value("id"), *[NULL] * 9, encode_value(group_id), encode_value(UInt(7))]
    return list_section(PROPERTIES, fields) + BODY


def test_a_binary_session_id_is_decoded_as_a_string() -> None:
    incoming = read_incoming(with_group_id("sitzung ä".encode()), True)
    assert incoming.session_id == "sitzung ä"
    found = Message.decode(incoming.bare)
    assert found.properties == properties(group_id="sitzung ä", group_sequence=7)
    assert found.data == [b"body"]


def test_a_binary_session_id_is_unchanged_without_sessions() -> None:
    assert read_incoming(with_group_id(b"s"), False).bare == with_group_id(b"s")


@pytest.mark.parametrize(("group_id", "reason"), [(b"\xff", "not valid UTF-8"), (5, "must be a string")])
def test_a_session_id_that_is_not_text_is_refused(group_id: Any, reason: str) -> None:
    with pytest.raises(InvalidProperty, match=f"session id .*{reason}"):
        read_incoming(with_group_id(group_id), True)


def test_the_time_of_a_scheduled_message_is_read_and_kept() -> None:
    annotations = {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(5000)}
    assert read_incoming(Message(message_annotations=annotations, data=[b"x"]).encode(), False).scheduled_at == 5000
    assert kept_annotations(annotations) == annotations
    with pytest.raises(InvalidProperty, match="timestamp"):
        read_incoming(
            Message(message_annotations={Symbol("x-opt-scheduled-enqueue-time"): "soon"}, data=[b"x"]).encode(), False
        )


def test_a_delivery_time_of_jms_schedules_a_message_and_is_returned() -> None:
    annotations: dict[Any, Any] = {Symbol("x-opt-delivery-time"): 5000}
    assert read_incoming(Message(message_annotations=annotations, data=[b"x"]).encode(), False).scheduled_at == 5000
    assert kept_annotations(annotations) == annotations
    both = {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(7000)} | annotations
    for order in (both, dict(reversed(both.items()))):
        assert read_incoming(Message(message_annotations=order, data=[b"x"]).encode(), False).scheduled_at == 7000


@pytest.mark.parametrize("moment", ["soon", 1.5, True])
def test_a_delivery_time_that_is_no_moment_is_refused(moment: Any) -> None:
    encoded = Message(message_annotations={Symbol("x-opt-delivery-time"): moment}, data=[b"x"]).encode()
    with pytest.raises(InvalidProperty, match="x-opt-delivery-time must be a timestamp"):
        read_incoming(encoded, False)


@pytest.mark.parametrize(
    ("header", "ttl"),
    [
        (None, None),
        (Header(), None),
        (Header(ttl=0), None),
        (Header(ttl=1500), 1500),
        (Header(ttl=UINT_MAX - 1), UINT_MAX - 1),
    ],
)
def test_the_time_to_live_is_the_header_s(header: Header | None, ttl: int | None) -> None:
    message = Message(header=header, properties=properties(absolute_expiry_time=5, creation_time=1), data=[b"x"])
    assert read_incoming(message.encode(), False).ttl_ms == ttl


@pytest.mark.parametrize(
    ("creation", "expiry", "ttl"),
    [
        (1000, 1000 + 100 * DAY, 100 * DAY),  # longer than the header can say
        (1000, 1000 + 3 * DAY, UINT_MAX),  # shorter: the header is right
        (None, 1000 + 100 * DAY, UINT_MAX),
        (1000, None, UINT_MAX),
        (None, None, UINT_MAX),
    ],
)
def test_a_time_to_live_beyond_the_header_is_the_way_from_creation_to_expiry(
    creation: int | None, expiry: int | None, ttl: int
) -> None:
    message = Message(
        header=Header(ttl=UINT_MAX),
        properties=properties(creation_time=creation, absolute_expiry_time=expiry),
        data=[b"x"],
    )
    assert read_incoming(message.encode(), False).ttl_ms == ttl


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\x00",
        b"body",
        b"\x00\x53\x75",
        b"\x00\x53\x75\xa0\xffshort",
        b"\x00\x53\x75\xb0\xff\xff\xff\xff",
        b"\x00\x53\x70\xa0\x01x" + BODY,  # a header that is no list
        b"\x00\x53\x70\xc0\x04\x03\x40\x40\xa1" + BODY,
        b"\x00\x53\x72\xc1\x03\x01\x40\x40" + BODY,  # an odd map
        b"\x00\x53\x70" + encode_value([True, "high", None]) + BODY,
        b"\x00\x53\x99\x40",
        b"\x40" * 50,
    ],
)
def test_bytes_that_are_not_a_message_are_refused(garbage: bytes) -> None:
    with pytest.raises(InvalidMessage, match="could not be decoded"):
        read_incoming(garbage, True)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_refused(garbage: bytes) -> None:
    try:
        incoming = read_incoming(garbage, True)
    except BrokerError:
        return
    head(StoredMessage(1, incoming.bare, 0, annex=incoming.annex), None)


# --- out ---


def stored(**fields: Any) -> StoredMessage:
    return StoredMessage(**{"sequence_number": 5, "payload": BODY, "enqueued_at": 1_800_000_000_000, **fields})


def test_header_and_annotations_are_as_the_contract_has_them() -> None:
    message = delivered(stored(delivery_count=2), 1_800_000_060_000)
    assert message.header == Header(durable=False, priority=4, ttl=None, delivery_count=2)
    assert message.message_annotations == {
        "x-opt-sequence-number": 5,
        "x-opt-enqueued-time": 1_800_000_000_000,
        "x-opt-locked-until": 1_800_000_060_000,
    }
    types = {str(key): type(value) for key, value in message.message_annotations.items()}
    assert types["x-opt-enqueued-time"] is Timestamp
    assert types["x-opt-locked-until"] is Timestamp
    assert all(type(key) is Symbol for key in message.message_annotations)


def test_the_numbers_are_longs_on_the_wire() -> None:
    encoded = head(stored(), None, is_copy=True)
    assert encode_value(Symbol("x-opt-sequence-number")) + b"\x81" + (5).to_bytes(8) in encoded
    assert encode_value(Symbol("x-opt-enqueue-sequence-number")) + b"\x81" + (5).to_bytes(8) in encoded


def test_a_message_without_a_lock_has_no_lock_annotations() -> None:
    annotations = delivered(stored()).message_annotations
    assert annotations is not None
    assert "x-opt-locked-until" not in annotations


@given(
    st.integers(1, 2**44 - 1),
    st.integers(0, 255),
    st.integers(0, 2**42),
    st.one_of(st.none(), st.integers(0, 2**42)),
    st.sampled_from([None, DURABLE]),
    st.booleans(),
)
def test_the_fast_head_is_the_full_head(
    number: int, count: int, enqueued_at: int, locked_until: int | None, annex: bytes | None, is_copy: bool
) -> None:
    message = stored(sequence_number=number, delivery_count=count, enqueued_at=enqueued_at, annex=annex)
    token = None if locked_until is None else TOKEN
    fast = head(message, locked_until, token, is_copy=is_copy)
    full = _full_head(message, locked_until, token, is_copy=is_copy)
    assert Message.decode(fast + BODY) == Message.decode(full + BODY)
    # The same sections in the same order; only the width of the numbers inside may differ.
    assert fast[:3] == full[:3] == b"\x00\x53\x70"


@given(
    st.integers(1, 2**44 - 1),
    st.integers(0, 255),
    st.integers(0, 2**42),
    st.sampled_from([0, 1, 2]),
    st.sampled_from([None, DURABLE]),
    st.booleans(),
)
def test_the_fast_head_of_a_peeked_message_equals_the_full_head(
    number: int, count: int, at: int, state: int, annex: bytes | None, is_copy: bool
) -> None:
    message = stored(sequence_number=number, delivery_count=count, enqueued_at=at, state=state, annex=annex)
    fast = head(message, None, with_state=True, is_copy=is_copy)
    full = _full_head(message, None, None, state, is_copy)
    assert Message.decode(fast + BODY) == Message.decode(full + BODY)
    assert encode_value(Symbol("x-opt-message-state")) + b"\x54" + bytes((state,)) in fast


# --- delivery annotations ---


def sent_with(annotations: dict[Any, Any]) -> StoredMessage:
    incoming = read_incoming(Message(delivery_annotations=annotations, data=[b"x"]).encode(), False)
    return stored(payload=incoming.bare, annex=incoming.annex)


@pytest.mark.parametrize("fields", [{}, {"delivery_count": 300}, {"expires_at": 1_800_000_001_000}])
def test_a_locked_message_has_its_lock_token_in_the_byte_order_of_a_uuid(fields: dict[str, int]) -> None:
    message = delivered(stored(**fields), 1_800_000_060_000)
    assert message.delivery_annotations == {"x-opt-lock-token": UUID(bytes=TOKEN)}


@pytest.mark.parametrize("fields", [{}, {"delivery_count": 300}])
def test_a_message_that_is_received_for_good_has_an_empty_section(fields: dict[str, int]) -> None:
    assert delivered(stored(**fields)).delivery_annotations == {}


def test_a_message_that_is_peeked_has_none() -> None:
    assert Message.decode(head(stored(), None, with_state=True) + BODY).delivery_annotations is None


def test_the_delivery_annotations_of_the_sender_are_passed_on() -> None:
    annotations = {Symbol("one"): 1, Symbol("two"): ["2", None]}
    message = sent_with(annotations)
    assert delivered(message).delivery_annotations == annotations
    locked = delivered(message, 1_800_000_060_000)
    assert locked.delivery_annotations == {**annotations, "x-opt-lock-token": UUID(bytes=TOKEN)}
    peeked = Message.decode(head(message, None, with_state=True) + message.payload)
    assert peeked.delivery_annotations == annotations
    assert locked.header == delivered(stored()).header


def test_many_delivery_annotations_are_passed_on() -> None:
    annotations = {Symbol(f"name-{number}"): number for number in range(400)}
    locked = delivered(sent_with(annotations), 1_800_000_060_000)
    assert locked.delivery_annotations == {**annotations, "x-opt-lock-token": UUID(bytes=TOKEN)}


def test_delivery_annotations_behind_other_sections_are_found() -> None:
    written = Message(properties=properties(), data=[b"x"]).encode()
    incoming = read_incoming(written + Message(delivery_annotations={Symbol("late"): 1}).encode(), False)
    assert incoming.bare == written
    assert delivered(stored(annex=incoming.annex)).delivery_annotations == {"late": 1}


def test_delivery_annotations_are_stored_with_other_values() -> None:
    sent = Message(
        header=Header(priority=9),
        delivery_annotations={Symbol("mine"): 1},
        message_annotations={Symbol("x-opt-partition-key"): "p"},
        data=[b"x"],
    )
    annex = read_incoming(sent.encode(), False).annex
    moved = dead_letter(BODY, annex, {}, "q")[1]
    message = delivered(stored(annex=moved))
    assert message.delivery_annotations == {"mine": 1}
    assert message.message_annotations is not None
    assert message.message_annotations["x-opt-partition-key"] == "p"
    assert message.header is not None
    assert message.header.priority == 9


def test_a_lock_token_that_a_sender_wrote_is_not_kept_and_no_annotations_cost_nothing() -> None:
    assert sent_with({Symbol("x-opt-lock-token"): UUID(int=5)}).annex is None
    assert sent_with({}).annex is None


def test_an_annex_without_delivery_annotations_is_unchanged() -> None:
    assert len(decode_value(Annex(priority=1).encode())[0]) == 7
    assert Annex.decode(Annex(priority=1).encode()) == Annex(priority=1)


def test_too_many_delivery_annotations_are_refused() -> None:
    with pytest.raises(MessageSizeExceeded, match="at most 65536"):
        sent_with({Symbol("long"): "x" * 65536})


@pytest.mark.parametrize("section", [b"\xc0\x01\x00", b"\xc1\x03\x01\x40\x40", b"\xc1\x03\x02\x40\x40", b"\x45"])
def test_delivery_annotations_that_are_none_are_refused(section: bytes) -> None:
    with pytest.raises(InvalidMessage):
        read_incoming(b"\x00\x53\x71" + section + BODY, False)


@pytest.mark.parametrize("count", [0, 1, 255, 256, 2000, 2**31])
def test_the_delivery_count_is_that_of_earlier_deliveries(count: int) -> None:
    header = delivered(stored(delivery_count=count)).header
    assert header is not None
    assert header.delivery_count == count


@pytest.mark.parametrize("priority", [0, 4, 9, 255])
def test_a_priority_is_echoed(priority: int) -> None:
    incoming = read_incoming(Message(header=Header(priority=UByte(priority)), data=[b"x"]).encode(), False)
    header = delivered(stored(annex=incoming.annex)).header
    assert header is not None
    assert header.priority == priority


def test_a_dead_letter_has_its_source() -> None:
    annotations = delivered(stored(annex=Annex(dead_letter_source="the/queue").encode())).message_annotations
    assert annotations is not None
    assert annotations["x-opt-deadletter-source"] == "the/queue"


def test_many_annotations_of_a_sender_fit_too() -> None:
    annotations = {Symbol(f"key-{number}"): "value" * 20 for number in range(300)}
    assert kept_annotations(annotations) == annotations


def test_an_annex_survives_the_store() -> None:
    annex = Annex(3, b"\xa3\x01k\x43", 2, "source", 1000, 12, 3)
    assert Annex.decode(annex.encode()) == annex
    every = annex._replace(durable=True, delivery_annotations=b"\xc1\x01\x00")
    for kept in (every, every._replace(durable=False), every._replace(delivery_annotations=b"")):
        assert Annex.decode(kept.encode()) == kept
    assert Annex.decode(None) == Annex()
    assert Annex.decode(encode_value(list(annex[:5]))) == annex._replace(enqueued_number=None, hops=0), "as it once was"


def test_a_copy_has_the_sequence_number_of_the_topic() -> None:
    for annex, given_number in ((None, 5), (Annex(priority=7).encode(), 5), (Annex(enqueued_number=3).encode(), 3)):
        message = stored(annex=annex)
        annotations = Message.decode(head(message, None, is_copy=True) + BODY).message_annotations or {}
        assert (annotations["x-opt-sequence-number"], annotations["x-opt-enqueue-sequence-number"]) == (5, given_number)


@pytest.mark.parametrize("fields", [{}, {"annex": Annex(priority=7).encode()}])
def test_a_message_that_was_not_forwarded_has_one_sequence_number(fields: dict[str, bytes]) -> None:
    annotations = delivered(stored(**fields)).message_annotations or {}
    assert set(annotations) == {"x-opt-sequence-number", "x-opt-enqueued-time"}


@pytest.mark.parametrize("priority", [None, 7])
@pytest.mark.parametrize("durable", [None, False, True])
def test_durable_is_returned_as_the_sender_set_it(durable: bool | None, priority: int | None) -> None:
    fields = [encode_value(durable), encode_value(None if priority is None else UByte(priority))]
    payload = list_section(HEADER, fields) + Message(properties=properties(), data=[b"x"]).encode()
    incoming = read_incoming(payload, False)
    for state in (False, True):
        encoded = head(stored(annex=incoming.annex, payload=incoming.bare), None, with_state=state)
        expected = encode_value(durable or None)
        assert encoded[: 6 + len(expected)] == b"\x00\x53\x70\xc0" + encoded[4:6] + expected


def test_a_durable_field_that_is_not_boolean_is_ignored() -> None:
    payload = list_section(HEADER, [encode_value("yes")]) + Message(properties=properties(), data=[b"x"]).encode()
    assert read_incoming(payload, False).annex is None


def test_a_forwarded_message_has_its_first_sequence_number() -> None:
    message = StoredMessage(7, Message(data=[b"x"]).encode(), 1000, annex=Annex(enqueued_number=3).encode())
    annotations = delivered(message).message_annotations or {}
    assert (annotations["x-opt-sequence-number"], annotations["x-opt-enqueue-sequence-number"]) == (7, 3)


# --- front and body ---


@pytest.mark.parametrize(
    ("front", "body"),
    [
        (Message(properties=properties()).encode(), BODY),
        (Message(properties=properties(), application_properties={"a": 1}).encode(), BODY + BODY),
        (Message(properties=properties()).encode(), b"\x00\x53\x77\xa1\x01x"),
        (
            Message(properties=properties(), application_properties={"a": 1}).encode(),
            BODY + b"\x00\x53\x78\xc1\x01\x00",
        ),
        (Message(properties=properties()).encode(), b""),
        # Somebody wrote the properties behind the body: there is nothing to share.
        (BODY + Message(properties=properties()).encode(), b""),
    ],
)
def test_a_message_is_split_before_its_body(front: bytes, body: bytes) -> None:
    assert split(front + body) == (front, body)


UNREADABLE = b"\x00\x53\x73\xc0\x05\x01\xa1\x10ab"
"""A properties section with one field, whose size is beyond the end of the section."""


def test_unreadable_properties_are_refused_in_a_send_and_accepted_in_a_stored_message() -> None:
    bare = UNREADABLE + BODY
    with pytest.raises(InvalidMessage):
        read_incoming(bare, False)
    assert stamp_expiry(bare, 0, 1000) == bare
    assert session_id_of(bare) is None
    assert session_of(bare) == b""
    assert identity_of(bare) == identity_of(UNREADABLE + BODY + BODY) != identity_of(UNREADABLE[:-1] + b"c" + BODY)


def test_a_session_id_may_be_a_string_or_binary() -> None:
    assert session_of(Message(properties=properties(group_id="g")).encode()) == b"g"
    assert session_of(with_group_id(b"g")) == b"g"
    assert session_of(Message(properties=properties()).encode()) == b""


def test_a_partition_key_is_found_among_other_annotations() -> None:
    annotations = {Symbol("x"): 1, Symbol("x-opt-partition-key"): "key", Symbol("y"): [2]}
    annex = read_incoming(Message(message_annotations=annotations, data=[b"x"]).encode(), False).annex
    assert partition_key_of(annex) == b"key"
    assert partition_key_of(None) == b""


# --- time to live, end to end ---


def received(world: World, **fields: Any) -> Message:
    world.send("m", **fields)
    return delivered(Receiver(world, world.queue()).got[-1])


def test_the_three_ways_to_tell_the_expiry_agree() -> None:
    world = World()
    message = received(
        world,
        header=Header(ttl=UInt(60_000)),
        properties=properties(creation_time=Timestamp(5), absolute_expiry_time=Timestamp(6)),
    )
    assert message.header is not None
    assert message.properties is not None
    assert message.message_annotations is not None
    assert message.header.ttl == 60_000
    assert message.properties.absolute_expiry_time == world.clock() + 60_000
    assert message.message_annotations["x-opt-enqueued-time"] == world.clock()


def test_a_message_without_a_time_to_live_gets_the_entity_s() -> None:
    message = received(World(QueueDefinition(name="q", default_message_ttl_ms=5 * SECOND)))
    assert message.header is not None
    assert message.header.ttl == 5 * SECOND


@pytest.mark.parametrize(("asked", "given_"), [(1 * SECOND, 1 * SECOND), (50 * SECOND, 5 * SECOND)])
def test_the_shorter_of_the_two_times_to_live_holds(asked: int, given_: int) -> None:
    message = received(World(QueueDefinition(name="q", default_message_ttl_ms=5 * SECOND)), header=Header(ttl=asked))
    assert message.header is not None
    assert message.header.ttl == given_


def test_without_a_time_to_live_header_and_properties_have_none() -> None:
    message = received(World(), properties=properties(absolute_expiry_time=Timestamp(77)))
    assert message.header is not None
    assert message.header.ttl is None


def test_a_time_to_live_beyond_the_header_is_left_out_of_it() -> None:
    world = World()
    message = received(
        world,
        header=Header(ttl=UINT_MAX),
        properties=properties(creation_time=Timestamp(1000), absolute_expiry_time=Timestamp(1000 + 100 * DAY)),
    )
    assert message.header is not None
    assert message.properties is not None
    assert message.header.ttl is None
    assert message.properties.absolute_expiry_time == world.clock() + 100 * DAY


# --- application properties that settlements change ---


def test_properties_are_added_and_replaced_and_other_properties_keep_their_bytes() -> None:
    uri = Described(Symbol("com.microsoft:uri"), "http://example.org")
    bare = Message(properties=properties(), application_properties={"kept": uri, "replaced": 1}, data=[b"x"]).encode()
    changed = with_application_properties(bare, {Symbol("replaced"): "now text", "added": 2.5})
    found = Message.decode(changed)
    assert found.application_properties == {"kept": uri, "replaced": "now text", "added": 2.5}
    assert found.data == [b"x"]
    assert encode_value(uri) in changed


@pytest.mark.parametrize("message", [Message(properties=properties(), data=[b"x"]), Message(data=[b"x"])])
def test_properties_are_added_where_there_were_none(message: Message) -> None:
    found = Message.decode(with_application_properties(message.encode(), {"added": 1}))
    assert found.application_properties == {"added": 1}
    assert found.properties == message.properties
    assert found.data == [b"x"]


@pytest.mark.parametrize("data", [b"", b"x" * 300])
def test_properties_are_added_to_the_usual_message_as_to_any_other(data: bytes) -> None:
    message = Message(properties=properties(), data=[data])
    usual, front = message.encode(), Message(properties=properties()).encode()
    unusual = front + message.encode()[len(front) :] + Message(data=[b""]).encode()
    added = AddedProperties({"added": 1, "text": "y"})
    assert added.to(usual) + Message(data=[b""]).encode() == added.to(unusual)
    assert added.to(front) + usual[len(front) :] == added.to(usual)


@pytest.mark.parametrize("end", [b"\x00\x53\x75\xb0\x00\x00", b"\x00\x53\x75\xa0", b"\x00\x53\x75\xa0\x05x"])
def test_a_truncated_message_is_not_parsed_by_the_fast_path(end: bytes) -> None:
    with pytest.raises(DecodeError):
        AddedProperties({"added": 1}).to(Message(properties=properties()).encode() + end)


def test_no_changes_change_nothing() -> None:
    bare = Message(data=[b"x"]).encode()
    assert with_application_properties(bare, {}) is bare


def test_a_written_value_can_be_read_again() -> None:
    encoded = with_application_properties(BODY, {"n": 1})
    assert decode_value(encoded[3:])[0] == {"n": 1}


def test_a_session_id_that_is_named_beside_the_message_is_written_into_it() -> None:
    bare = Message(properties=Properties(message_id="m", subject="s"), data=[b"x"]).encode()
    message = Message.decode(with_session_id(bare, "the session"))
    assert message.properties == Properties(message_id="m", subject="s", group_id="the session")
    assert message.data == [b"x"]


def test_a_message_with_unreadable_application_properties_can_be_changed() -> None:
    unreadable = b"\x00\x53\x74\xc1\x03\x02\xa1\x09"  # a key that is longer than the map
    bare = Message(properties=Properties(message_id="m"), data=[b"x"]).encode()
    properties, body = bare[:-6], bare[-6:]
    assert body == b"\x00\x53\x75\xa0\x01x"
    message = Message.decode(with_application_properties(properties + unreadable + body, {"a": 1}))
    assert message.application_properties == {"a": 1}
    assert message.data == [b"x"]


@pytest.mark.parametrize("identity", ["x" * MAX_ID_LENGTH, "ä" * MAX_ID_LENGTH, b"x" * 500, ULong(7), UUID(int=1)])
def test_an_id_of_any_type_is_accepted_and_a_string_up_to_its_limit(identity: Any) -> None:
    payload = Message(properties=Properties(message_id=identity), data=[b"x"]).encode()
    assert message_id(read_incoming(payload, False).bare) == identity


@pytest.mark.parametrize("length", [MAX_ID_LENGTH + 1, 300])
def test_an_id_that_is_too_long_is_refused(length: int) -> None:
    payload = Message(properties=Properties(message_id="x" * length), data=[b"x"]).encode()
    with pytest.raises(InvalidProperty, match=f"message id has {length} characters"):
        read_incoming(payload, False)
