"""Messages with all sections, compared with recorded bytes and with qpid-proton."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import proton
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp.values import SCALARS, same, values
from peeklock.amqp.codec import encode_value
from peeklock.amqp.errors import DecodeError, EncodeError
from peeklock.amqp.message import NO_VALUE, Header, Message, Properties
from peeklock.amqp.performatives import Declare
from peeklock.amqp.types import Described, Symbol, Timestamp, UInt, ULong

FULL = Message(
    header=Header(durable=True, ttl=5),
    delivery_annotations={"x-opt-lock-token": UUID(int=1)},
    message_annotations={"x-opt-sequence-number": 1},
    properties=Properties(message_id="i", group_id="s"),
    application_properties={"a": UInt(1)},
    data=[b"one", b"two"],
    footer={"f": None},
)
RECORDED = (
    "005370 c00805 41 5004 5205 42 43"
    "005371 c12402 a310782d6f70742d6c6f636b2d746f6b656e 98" + "00" * 15 + "01"
    "005372 c11a02 a315782d6f70742d73657175656e63652d6e756d626572 5501"
    "005373 c0100b a10169 40 40 40 40 40 40 40 40 40 a10173"
    "005374 c10602 a10161 5201"
    "005375 a0036f6e65"
    "005375 a00374776f"
    "005378 c10502 a30166 40"
)

maps = st.dictionaries(SCALARS[Symbol], values, max_size=3)
bodies = st.one_of(
    st.fixed_dictionaries({"data": st.lists(SCALARS[bytes], min_size=1, max_size=3)}),
    st.fixed_dictionaries({"sequences": st.lists(st.lists(values, max_size=3), min_size=1, max_size=3)}),
    st.fixed_dictionaries({"value": values}),
)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    message = Message(**draw(bodies))
    message.header = draw(st.none() | st.builds(Header, ttl=st.none() | st.integers(0, 2**32 - 1)))
    message.properties = draw(st.none() | st.builds(Properties, subject=SCALARS[str]))
    message.delivery_annotations = draw(st.none() | maps)
    message.message_annotations = draw(st.none() | maps)
    message.application_properties = draw(st.none() | st.dictionaries(SCALARS[str], values, max_size=3))
    message.footer = draw(st.none() | maps)
    return message


def refusal(data: bytes) -> str:
    with pytest.raises(DecodeError) as raised:
        Message.decode(data)
    return raised.value.description


def test_a_message_is_written_in_the_order_of_the_specification() -> None:
    assert FULL.encode().hex() == RECORDED.replace(" ", "")


def test_recorded_bytes_read_as_the_message() -> None:
    assert Message.decode(bytes.fromhex(RECORDED)) == FULL


@given(messages())
def test_every_message_is_encoded_and_decoded_unchanged(message: Message) -> None:
    again = Message.decode(message.encode())
    for name in Message.__slots__:
        assert same(getattr(again, name), getattr(message, name)), name


def test_a_message_cut_short_within_a_section_is_refused() -> None:
    data = FULL.encode()
    ends = {0}
    for section in (b"\x00\x53\x70", b"\x00\x53\x71", b"\x00\x53\x72", b"\x00\x53\x73", b"\x00\x53\x74"):
        ends.add(data.index(section))
    ends |= {data.index(b"\x00\x53\x75"), data.rindex(b"\x00\x53\x75"), data.index(b"\x00\x53\x78")}
    for length in set(range(len(data))) - ends:
        with pytest.raises(DecodeError):
            Message.decode(data[:length])


def test_sections_are_found_in_any_order() -> None:
    parts = [
        Message(data=[b"x"]).encode(),
        Message(properties=Properties(to="t")).encode(),
        Message(delivery_annotations={"k": 1}).encode(),
        Message(header=Header(priority=9)).encode(),
    ]
    message = Message.decode(b"".join(parts))
    assert message == Message(
        data=[b"x"],
        properties=Properties(to="t"),
        delivery_annotations={"k": 1},
        header=Header(priority=9),
    )


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("amqp:header:list", [True], Message(header=Header(durable=True))),
        ("amqp:delivery-annotations:map", {Symbol("k"): 1}, Message(delivery_annotations={"k": 1})),
        ("amqp:message-annotations:map", {Symbol("k"): 1}, Message(message_annotations={"k": 1})),
        ("amqp:properties:list", ["id"], Message(properties=Properties(message_id="id"))),
        ("amqp:application-properties:map", {"k": 1}, Message(application_properties={"k": 1})),
        ("amqp:data:binary", b"x", Message(data=[b"x"])),
        ("amqp:amqp-sequence:list", [1], Message(sequences=[[1]])),
        ("amqp:amqp-value:*", 1, Message(value=1)),
        ("amqp:footer:map", {Symbol("k"): 1}, Message(footer={"k": 1})),
    ],
)
def test_sections_are_decoded_by_their_symbolic_names(name: str, value: Any, expected: Message) -> None:
    assert Message.decode(encode_value(Described(Symbol(name), value))) == expected


def test_a_value_of_null_is_not_the_same_as_no_value() -> None:
    assert Message.decode(Message(value=None).encode()).value is None
    assert Message.decode(Message(data=[b""]).encode()).value is NO_VALUE


def test_the_body_has_the_sections_of_the_message() -> None:
    assert Message(data=[b"x"]).body == b"x"
    assert Message(data=[b"x", b"y"]).body == [b"x", b"y"]
    assert Message(value=None).body is None
    assert Message(sequences=[[1]]).body == [[1]]
    assert Message().body == []


def test_annotation_keys_are_symbols_and_application_property_keys_strings() -> None:
    message = Message.decode(
        Message(message_annotations={"a": 1}, application_properties={"a": 1}, footer={"a": 1}).encode()
    )
    assert same(message.message_annotations, {Symbol("a"): 1})
    assert same(message.footer, {Symbol("a"): 1})
    assert same(message.application_properties, {"a": 1})


def test_a_value_may_be_a_composite_and_reads_as_described() -> None:
    message = Message.decode(Message(value=Declare()).encode())
    assert same(message.value, Described(ULong(0x31), [None]))


@pytest.mark.parametrize(
    ("recorded", "reason"),
    [
        ("005379 40", "no message section has the descriptor 121"),
        ("00a30178 40", "no message section has the descriptor Symbol('x')"),
        ("00a10178 40", "no message section has the descriptor 'x'"),
        ("0045 40", "no message section has the descriptor []"),
        ("a10178", "a message section must be a described value"),
        ("005370 a10178", "header must be a list"),
        ("005372 45", "the message-annotations section must be a map"),
        ("005374 40", "the application-properties section must be a map"),
        ("005375 a10178", "the data section must be a binary"),
        ("005376 a10178", "the amqp-sequence section must be a list"),
        ("005370 45 005370 45", "a second header section"),
        ("005377 40 005377 40", "a second amqp-value section"),
        ("005377 40 005375 a000", "the body mixes"),
        ("005375 a000 005376 45", "the body mixes"),
        ("005370 c00201 a000", "header.durable must be a boolean"),
        ("005375", "the bytes end within a value"),
    ],
)
def test_a_malformed_message_is_refused_with_the_reason(recorded: str, reason: str) -> None:
    assert reason in refusal(bytes.fromhex(recorded))


@pytest.mark.parametrize(
    "message",
    [
        Message(data=["text"]),  # type: ignore[list-item]
        Message(application_properties=[1]),  # type: ignore[arg-type]
        Message(message_annotations={"é": 1}),
        Message(value=object()),
        Message(sequences=[5]),  # type: ignore[list-item]
    ],
    ids=["data", "application_properties", "message_annotations", "value", "sequences"],
)
def test_a_message_that_cannot_be_written_is_refused(message: Message) -> None:
    with pytest.raises(EncodeError):
        message.encode()


def test_proton_reads_our_message() -> None:
    theirs = proton.Message()
    theirs.decode(
        Message(
            header=Header(durable=True, priority=7, ttl=60000, delivery_count=2),
            message_annotations={"x-opt-enqueued-time": Timestamp(1)},
            properties=Properties(
                message_id=ULong(5),
                to="t",
                subject="s",
                content_type="x/y",
                creation_time=1000,
                group_sequence=3,
            ),
            application_properties={"k": "v"},
            value=["body"],
        ).encode()
    )
    assert (theirs.durable, theirs.priority, theirs.ttl, theirs.delivery_count) == (True, 7, 60, 2)
    assert theirs.annotations == {"x-opt-enqueued-time": 1}
    assert (theirs.id, theirs.address, theirs.subject) == (5, "t", "s")
    assert (theirs.content_type, theirs.creation_time, theirs.group_sequence) == ("x/y", 1, 3)
    assert theirs.properties == {"k": "v"}
    assert theirs.body == ["body"]


def test_we_read_a_message_of_proton() -> None:
    theirs = proton.Message(
        body=b"body",
        id="i",
        correlation_id=UUID(int=5),
        durable=True,
        ttl=60,
        reply_to="r",
        properties={"k": proton.int32(1)},
        annotations={proton.symbol("x-opt-partition-key"): "p"},
    )
    theirs.inferred = True
    message = Message.decode(bytes(theirs.encode()))
    assert message.header == Header(durable=True, ttl=60000)
    assert message.properties is not None
    assert (message.properties.message_id, message.properties.reply_to) == ("i", "r")
    assert message.properties.correlation_id == UUID(int=5)
    assert message.application_properties == {"k": 1}
    assert message.message_annotations == {"x-opt-partition-key": "p"}
    assert message.body == b"body"
