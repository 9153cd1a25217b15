"""The declared composites: recorded bytes, defaults, and accepted and refused encodings."""

from __future__ import annotations

from dataclasses import fields
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp.values import SCALARS, same
from peeklock.amqp import composites
from peeklock.amqp.codec import decode_value, encode_value
from peeklock.amqp.composites import Composite, FieldType, decode_composite
from peeklock.amqp.errors import Condition, DecodeError, EncodeError
from peeklock.amqp.message import Header, Properties
from peeklock.amqp.performatives import (
    Accepted,
    Attach,
    Begin,
    Close,
    Coordinator,
    Declare,
    Declared,
    Detach,
    Discharge,
    Disposition,
    End,
    Error,
    Flow,
    Modified,
    Open,
    Received,
    Rejected,
    Released,
    SaslChallenge,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
    Source,
    Target,
    TransactionalState,
    Transfer,
)
from peeklock.amqp.types import Array, Described, Int, Symbol, UByte, UInt, ULong, UShort

# Every composite with its code, its fields in the order of the specification, and bytes written down by hand.
RECORDED: list[tuple[int, Composite, str]] = [
    (
        0x10,
        Open(container_id="c", max_frame_size=65536, idle_time_out=120000, offered_capabilities=["a"]),
        "c0 1c 0a a10163 40 7000010000 60ffff 700001d4c0 40 40 e00401a30161 40 40",
    ),
    (
        0x11,
        Begin(remote_channel=0, next_outgoing_id=0, incoming_window=5000, outgoing_window=5000, handle_max=255),
        "c0 14 08 600000 43 7000001388 7000001388 52ff 40 40 40",
    ),
    (
        0x12,
        Attach(
            name="l",
            handle=1,
            role=True,
            snd_settle_mode=0,
            rcv_settle_mode=1,
            source=Source(address="q"),
            target=Target(),
            initial_delivery_count=0,
            max_message_size=256,
        ),
        "c0 52 0e a1016c 5201 41 5000 5001"
        " 005328c01a0b a10171 43 a30b73657373696f6e2d656e64 43 42 40 40 40 40 40 40"
        " 005329c01407 40 43 a30b73657373696f6e2d656e64 43 42 40 40"
        " 40 42 43 800000000000000100 40 40 40",
    ),
    (
        0x13,
        Flow(
            next_incoming_id=0,
            incoming_window=1,
            next_outgoing_id=2,
            outgoing_window=3,
            handle=0,
            delivery_count=0,
            link_credit=100,
        ),
        "c0 10 0b 43 5201 5202 5203 43 43 5264 40 42 42 40",
    ),
    (
        0x14,
        Transfer(handle=0, delivery_id=0, delivery_tag=b"\x01", message_format=0, settled=False),
        "c0 0e 0b 43 43 a00101 43 42 42 40 40 42 42 42",
    ),
    (
        0x15,
        Disposition(role=False, first=1, last=2, settled=True, state=Accepted()),
        "c0 0c 06 42 5201 5202 41 00532445 42",
    ),
    (
        0x16,
        Detach(handle=0, closed=True, error=Error("a:b", "why")),
        "c0 14 03 43 41 00531d c00c03 a303613a62 a103776879 40",
    ),
    (0x17, End(), "c0 02 01 40"),
    (0x18, Close(error=Error("a:b")), "c0 0f 01 00531d c00903 a303613a62 a100 40"),
    (0x1D, Error("a:b", "", {"k": 1}), "c0 10 03 a303613a62 a100 c10602a3016b5501"),
    (0x23, Received(section_number=1, section_offset=2), "c0 05 02 5201 5302"),
    (0x24, Accepted(), "45"),
    (0x25, Rejected(), "c0 02 01 40"),
    (0x26, Released(), "45"),
    (0x27, Modified(delivery_failed=True, undeliverable_here=False), "c0 04 03 41 42 40"),
    (
        0x28,
        Source(
            address="q",
            filter={"f": Described(Symbol("f"), "x")},
            default_outcome=Modified(),
            outcomes=["amqp:accepted:list"],
        ),
        "c0 44 0b a10171 43 a30b73657373696f6e2d656e64 43 42 40 40 c10b02a30166 00a30166a10178"
        " 005327c00403404040 e01501a31261 6d71703a61636365707465643a6c697374 40",
    ),
    (
        0x29,
        Target(address="q", durable=2, expiry_policy="never", timeout=60, dynamic=True),
        "c0 12 07 a10171 5202 a3056e65766572 523c 41 40 40",
    ),
    (0x30, Coordinator(capabilities=["x"]), "c0 07 01 e00401a30178"),
    (0x31, Declare(), "c0 02 01 40"),
    (0x32, Discharge(txn_id=b"\x01", fail=True), "c0 05 02 a00101 41"),
    (0x33, Declared(txn_id=b"\x01"), "c0 04 01 a00101"),
    (0x34, TransactionalState(txn_id=b"\x01", outcome=Released()), "c0 08 02 a00101 00532645"),
    (
        0x40,
        SaslMechanisms(sasl_server_mechanisms=["PLAIN", "X"]),
        "c0 0d 01 e00a02a305504c41494e0158",
    ),
    (
        0x41,
        SaslInit(mechanism="PLAIN", initial_response=b"\x00a", hostname="h"),
        "c0 0f 03 a305504c41494e a0020061 a10168",
    ),
    (0x42, SaslChallenge(challenge=b""), "c0 03 01 a000"),
    (0x43, SaslResponse(response=b"r"), "c0 04 01 a00172"),
    (0x44, SaslOutcome(code=1), "c0 04 02 5001 40"),
    (0x70, Header(durable=True, ttl=5), "c0 08 05 41 5004 5205 42 43"),
    (
        0x73,
        Properties(message_id=7, to="t", content_type="x/y"),
        "c0 0f 07 5307 40 a10174 40 40 40 a303782f79",
    ),
]

EVERY_COMPOSITE = pytest.mark.parametrize(
    ("code", "value", "recorded"), [pytest.param(*row, id=type(row[1]).__name__) for row in RECORDED]
)


def decoded(data: bytes) -> Any:
    value, end = decode_composite(data)
    assert end == len(data)
    return value


def composite_bytes(code: int, *values: Any) -> bytes:
    return encode_value(Described(ULong(code), list(values)))


def refusal(code: int, *values: Any) -> str:
    with pytest.raises(DecodeError) as raised:
        decode_composite(composite_bytes(code, *values))
    return raised.value.description


@EVERY_COMPOSITE
def test_a_composite_is_written_with_all_its_fields(code: int, value: Composite, recorded: str) -> None:
    assert value.encode().hex() == f"0053{code:02x}" + recorded.replace(" ", "")


@EVERY_COMPOSITE
def test_a_composite_reads_itself_back(code: int, value: Composite, recorded: str) -> None:
    again = decoded(value.encode())
    assert type(again) is type(value)
    assert again == value


@EVERY_COMPOSITE
def test_a_composite_is_decoded_by_its_symbolic_name_too(code: int, value: Composite, recorded: str) -> None:
    name = encode_value(Symbol(f"amqp:{value.NAME}:list"))
    full_code = b"\x80" + code.to_bytes(8, "big")
    body = value.encode()[3:]
    assert decoded(b"\x00" + name + body) == decoded(b"\x00" + full_code + body) == value


@EVERY_COMPOSITE
def test_a_composite_cut_short_anywhere_is_refused(code: int, value: Composite, recorded: str) -> None:
    data = value.encode()
    for length in range(len(data)):
        with pytest.raises(DecodeError):
            decode_composite(data[:length])


@EVERY_COMPOSITE
def test_one_field_too_many_is_refused(code: int, value: Composite, recorded: str) -> None:
    count = len(fields(value))  # type: ignore[arg-type]
    assert refusal(code, *[None] * (count + 1)) == f"{value.NAME} has {count} fields, not {count + 1}"


@EVERY_COMPOSITE
def test_a_composite_that_is_not_a_list_is_refused(code: int, value: Composite, recorded: str) -> None:
    with pytest.raises(DecodeError, match=f"{value.NAME} must be a list"):
        decode_composite(encode_value(Described(ULong(code), {})))


@EVERY_COMPOSITE
def test_each_field_refuses_a_type_that_is_not_its_own(code: int, value: Composite, recorded: str) -> None:
    for position, field in enumerate(value.FIELDS):
        reason = refusal(code, *[None] * position, 1.5)
        assert reason == f"{field.label} must be {field.type.name}"


def test_no_composite_is_without_recorded_bytes() -> None:
    assert {type(value) for _, value, _ in RECORDED} == set(composites.BY_CODE.values())


states = st.sampled_from([Accepted(), Rejected(Error("a:b")), Modified(True), Described(Symbol("x"), [1])])

PLAIN: list[tuple[FieldType, st.SearchStrategy[Any]]] = [
    (composites.BOOLEAN, st.booleans()),
    (composites.UBYTE, st.integers(0, 255)),
    (composites.USHORT, st.integers(0, 0xFFFF)),
    (composites.UINT, st.integers(0, 300) | st.integers(0, 0xFFFFFFFF)),
    (composites.ULONG, st.integers(0, 300) | st.integers(0, 2**64 - 1)),
    (composites.TIMESTAMP, st.integers(-(2**63), 2**63 - 1)),
    (composites.BINARY, SCALARS[bytes]),
    (composites.STRING, SCALARS[str]),
    (composites.SYMBOL, SCALARS[Symbol].map(str)),
    (composites.SYMBOLS, st.lists(SCALARS[Symbol].map(str), max_size=3)),
    (composites.MAP, st.dictionaries(SCALARS[Symbol], SCALARS[UInt], max_size=3)),
    (composites.SYMBOL_MAP, st.dictionaries(SCALARS[Symbol], SCALARS[UInt], max_size=3)),
    (composites.MESSAGE_ID, st.one_of(SCALARS[str], SCALARS[ULong], SCALARS[UUID], SCALARS[bytes])),
    (composites.DELIVERY_STATE, states),
]


@st.composite
def any_composite(draw: st.DrawFn) -> Composite:
    """Return one of the recorded values, with generated values in the fields of general types."""
    value = draw(st.sampled_from([row[1] for row in RECORDED]))
    drawn = {}
    for field in value.FIELDS:
        strategy = next((strategy for kind, strategy in PLAIN if kind is field.type), None)
        if strategy is None:
            drawn[field.name] = getattr(value, field.name)
        elif field.mandatory or draw(st.booleans()):
            drawn[field.name] = draw(strategy)
    return type(value)(**drawn)


@given(any_composite())
def test_generated_fields_survive_with_their_types(value: Composite) -> None:
    again = decoded(value.encode())
    assert type(again) is type(value)
    for field in value.FIELDS:
        assert same(getattr(again, field.name), getattr(value, field.name)), field.label


def test_absent_and_null_fields_take_the_default_of_the_specification() -> None:
    assert decoded(composite_bytes(0x10, "c")) == Open(
        container_id="c", hostname=None, max_frame_size=0xFFFFFFFF, channel_max=65535, idle_time_out=None
    )
    nulls = decoded(composite_bytes(0x12, "l", UInt(0), False, *[None] * 11))
    absent = decoded(composite_bytes(0x12, "l", UInt(0), False))
    assert nulls == absent == Attach(name="l", handle=0, role=False)
    assert (absent.snd_settle_mode, absent.rcv_settle_mode, absent.incomplete_unsettled) == (2, 0, False)
    assert decoded(composite_bytes(0x28)) == Source(durable=0, expiry_policy="session-end", timeout=0, dynamic=False)
    assert decoded(composite_bytes(0x70)) == Header(
        durable=False, priority=4, ttl=None, first_acquirer=False, delivery_count=0
    )


def test_fields_are_plain_python_values_but_maps_keep_their_types() -> None:
    attach = decoded(
        Attach(
            name="l",
            handle=7,
            role=True,
            max_message_size=1,
            source=Source(distribution_mode="move", capabilities=["queue"], filter={"k": UInt(5)}),
            properties={"com.microsoft:timeout": UInt(1)},
        ).encode()
    )
    plain = [attach.handle, attach.snd_settle_mode, attach.max_message_size, attach.source.distribution_mode]
    assert [type(value) for value in plain] == [int, int, int, str]
    assert [type(name) for name in attach.source.capabilities] == [str]
    assert same(attach.properties, {Symbol("com.microsoft:timeout"): UInt(1)})
    assert same(attach.source.filter, {Symbol("k"): UInt(5)})


def test_an_error_has_three_fields_and_a_description_even_when_none_was_given() -> None:
    error = Error(Condition.NOT_FOUND)
    error.description = None  # type: ignore[assignment]
    described, _ = decode_value(error.encode())
    assert described.value == ["amqp:not-found", "", None]
    assert type(described.value[0]) is Symbol


def test_an_error_without_description_reads_as_an_empty_one() -> None:
    assert decoded(composite_bytes(0x1D, Symbol("a:b"))) == Error("a:b", "", None)
    assert decoded(composite_bytes(0x1D, Symbol("a:b"), None, None)) == Error("a:b", "", None)


def test_several_symbols_are_an_array_even_if_there_is_one_or_none() -> None:
    described, _ = decode_value(SaslMechanisms(["PLAIN"]).encode())
    assert same(described.value, [Array([Symbol("PLAIN")], Symbol)])
    described, _ = decode_value(Coordinator(capabilities=[]).encode())
    assert same(described.value, [Array([], Symbol)])


def test_a_single_symbol_where_several_may_stand_is_a_list_of_one() -> None:
    assert decoded(composite_bytes(0x40, Symbol("PLAIN"))) == SaslMechanisms(["PLAIN"])


def test_strings_and_symbols_stand_for_each_other() -> None:
    assert decoded(composite_bytes(0x1D, "a:b", Symbol("why"))) == Error("a:b", "why")
    assert decoded(composite_bytes(0x40, Array(["PLAIN"], str))) == SaslMechanisms(["PLAIN"])
    assert decoded(composite_bytes(0x40, "PLAIN")) == SaslMechanisms(["PLAIN"])
    assert decoded(composite_bytes(0x73, Symbol("id"))).message_id == "id"


@pytest.mark.parametrize("message_id", ["id", ULong(7), UUID(int=1), b"\x01"])
def test_a_message_id_keeps_its_type(message_id: Any) -> None:
    properties = decoded(Properties(message_id=message_id, correlation_id=message_id).encode())
    assert same(properties.message_id, message_id)
    assert same(properties.correlation_id, message_id)


def test_unknown_described_values_are_unchanged() -> None:
    state = Described(Symbol("com.example:state:list"), [Int(1)])
    assert same(decoded(encode_value(state)), state)
    assert same(decoded(Disposition(role=True, first=0, state=state).encode()).state, state)
    assert same(decoded(composite_bytes(0x99, "x")), Described(ULong(0x99), ["x"]))


def test_composites_inside_composites_get_their_class() -> None:
    state = TransactionalState(b"t", Rejected(Error("com.microsoft:dead-letter", info={"k": "v"})))
    disposition = decoded(Disposition(role=True, first=3, state=state).encode())
    assert disposition.state == state
    attach = decoded(Attach(name="l", handle=0, role=False, target=Coordinator(capabilities=["x"])).encode())
    assert attach.target == Coordinator(capabilities=["x"])


def test_the_offset_returned_is_where_the_payload_starts() -> None:
    transfer = Transfer(handle=0, delivery_id=1, delivery_tag=b"t").encode()
    value, end = decode_composite(b"\xff" + transfer + b"payload", 1)
    assert value.delivery_tag == b"t"
    assert end == 1 + len(transfer)


@pytest.mark.parametrize(
    ("code", "values", "reason"),
    [
        (0x10, [], "open.container-id is mandatory"),
        (0x10, [None], "open.container-id is mandatory"),
        (0x12, [UInt(1)], "attach.name must be a string"),
        (0x12, ["l", 1], "attach.handle must be a uint"),
        (0x12, ["l", UInt(1)], "attach.role is mandatory"),
        (0x12, ["l", UInt(1), UByte(1)], "attach.role must be a boolean"),
        (0x12, ["l", UInt(1), True, UByte(3)], "attach.snd-settle-mode must be a ubyte, one of 0, 1, 2"),
        (0x12, ["l", UInt(1), True, None, UByte(2)], "attach.rcv-settle-mode must be a ubyte, one of 0, 1"),
        (0x12, ["l", UInt(1), True, None, None, "q"], "attach.source must be a source"),
        (0x12, ["l", UInt(1), True, None, None, Target()], "attach.source must be a source"),
        (
            0x12,
            ["l", UInt(1), True, *[None] * 3, Source()],
            "attach.target must be a target or a coordinator",
        ),
        (0x12, ["l", UInt(1), True, *[None] * 4, [1]], "attach.unsettled must be a map"),
        (0x16, [UInt(1), True, Accepted()], "detach.error must be an error"),
        (0x16, [UInt(1), True, Described(Symbol("x"), 1)], "detach.error must be an error"),
        (0x15, [True, UInt(1), None, None, Symbol("accepted")], "disposition.state must be a delivery state"),
        (0x11, [UInt(1)], "begin.remote-channel must be a ushort"),
        (0x11, [UShort(1), None, UInt(1), UInt(1)], "begin.next-outgoing-id is mandatory"),
        (0x28, ["q", UInt(3)], "source.durable must be a uint, one of 0, 1, 2"),
        (0x40, [Array([1], UInt)], "sasl-mechanisms.sasl-server-mechanisms must be a symbol or an array"),
        (0x44, [UByte(5)], "sasl-outcome.code must be a ubyte, one of 0, 1, 2, 3, 4"),
        (0x34, [], "transactional-state.txn-id is mandatory"),
        (0x73, [Int(1)], "properties.message-id must be a ulong, a uuid, a binary or a string"),
    ],
)
def test_a_wrong_or_missing_field_is_named(code: int, values: list[Any], reason: str) -> None:
    assert reason in refusal(code, *values)


def test_an_undescribed_value_is_not_a_composite() -> None:
    with pytest.raises(DecodeError, match="a described value is expected"):
        decode_composite(encode_value([1]))


def test_a_list_whose_size_does_not_fit_its_fields_is_refused() -> None:
    with pytest.raises(DecodeError, match="the size of end is not the size of its elements"):
        decode_composite(bytes.fromhex("005317c003014040"))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (Detach(handle=-1), "detach.handle must be a uint: -1 does not fit a uint"),
        (Detach(handle=None), "detach.handle is mandatory"),  # type: ignore[arg-type]
        (Detach(handle="1"), "detach.handle must be a uint, not a str"),  # type: ignore[arg-type]
        (Detach(handle=0, closed=1), "detach.closed must be a boolean"),  # type: ignore[arg-type]
        (Detach(handle=0, error=Accepted()), "detach.error must be an error"),  # type: ignore[arg-type]
        (Open(container_id=b"c"), "open.container-id must be a string"),  # type: ignore[arg-type]
        (Open(container_id="c", channel_max=65536), "open.channel-max must be a ushort"),
        (Open(container_id="c", offered_capabilities="a"), "open.offered-capabilities"),  # type: ignore[arg-type]
        (Open(container_id="c", properties=[1]), "open.properties must be a map"),  # type: ignore[arg-type]
        (Error("é"), "error.condition must be a symbol: a symbol must be ASCII"),
        (Properties(message_id=object()), "properties.message-id must be"),  # type: ignore[arg-type]
    ],
)
def test_a_field_that_cannot_be_written_is_named(value: Composite, reason: str) -> None:
    with pytest.raises(EncodeError) as raised:
        value.encode()
    assert reason in raised.value.description


def test_a_composite_may_be_in_place_of_any_value() -> None:
    assert encode_value([Accepted()]) == bytes.fromhex("c0 05 01 00532445")


def test_large_composites_use_the_wide_list() -> None:
    source = Source(address="q" * 300)
    assert source.encode()[:4] == b"\x00\x53\x28\xd0"
    assert decoded(source.encode()) == source


def test_secrets_stay_out_of_the_representation() -> None:
    for value in (SaslInit("PLAIN", b"secret"), SaslResponse(b"secret"), SaslChallenge(b"secret")):
        assert "secret" not in repr(value)


def test_a_string_for_a_symbol_may_hold_letters_that_no_symbol_has() -> None:
    error = decoded(composite_bytes(0x1D, "ü", "", {"ü": 1}))
    assert (error.condition, error.info) == ("ü", {"ü": 1})
    with pytest.raises(EncodeError, match=r"error\.info must be a map: a symbol must be ASCII"):
        Error("a:b", info=error.info).encode()
