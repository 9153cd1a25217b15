"""The hand-written codec of transfer, disposition and flow has exactly the same results as the declared one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peeklock.amqp import fast_decoders, fast_encoders
from peeklock.amqp.composites import decode_composite
from peeklock.amqp.errors import DecodeError
from peeklock.amqp.fast_decoders import (
    DispositionFields,
    declared_disposition,
    declared_flow,
    declared_transfer,
    decode_disposition,
    decode_flow,
    decode_transfer,
)
from peeklock.amqp.fast_encoders import TransferEncoder, encode_disposition, encode_uint
from peeklock.amqp.frames import encode_frame
from peeklock.amqp.performatives import (
    Accepted,
    Composite,
    Declared,
    Disposition,
    Error,
    Flow,
    Modified,
    Received,
    Rejected,
    Released,
    TransactionalState,
    Transfer,
)
from peeklock.amqp.types import Described, ULong

uints = st.integers(0, 300) | st.integers(0, 0xFFFFFFFF)
flags = st.booleans()
texts = st.text(max_size=300)
outcomes: st.SearchStrategy[Any] = st.one_of(
    st.just(Accepted()),
    st.just(Released()),
    st.builds(Rejected, error=st.none() | st.builds(Error, condition=st.just("a:b"), description=texts)),
    st.builds(
        Modified,
        delivery_failed=st.none() | flags,
        undeliverable_here=st.none() | flags,
        message_annotations=st.none() | st.just({"key": "value"}),
    ),
)
states: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    outcomes,
    st.builds(Received, section_number=uints, section_offset=uints),
    st.builds(TransactionalState, txn_id=st.binary(max_size=32), outcome=st.none() | outcomes),
    st.builds(Declared, txn_id=st.binary(max_size=32)),
    st.builds(Described, st.integers(0x1000, 0x2000).map(ULong), st.just([])),
)
transfers = st.builds(
    Transfer,
    handle=uints,
    delivery_id=st.none() | uints,
    delivery_tag=st.none() | st.binary(max_size=32) | st.just(bytes(16)),
    message_format=st.none() | st.just(0) | st.just(0x80013700) | uints,
    settled=st.none() | flags,
    more=flags,
    rcv_settle_mode=st.none() | st.integers(0, 1),
    state=states,
    resume=flags,
    aborted=flags,
    batchable=flags,
)
dispositions = st.builds(
    Disposition, role=flags, first=uints, last=st.none() | uints, settled=flags, state=states, batchable=flags
)
flows = st.builds(
    Flow,
    next_incoming_id=st.none() | uints,
    incoming_window=uints,
    next_outgoing_id=uints,
    outgoing_window=uints,
    handle=st.none() | uints,
    delivery_count=st.none() | uints,
    link_credit=st.none() | uints,
    available=st.none() | uints,
    drain=flags,
    echo=flags,
    properties=st.none() | st.just({"key": "value"}),
)
around = st.binary(max_size=20)


FLOW_FIELDS = (
    "next_incoming_id",
    "incoming_window",
    "next_outgoing_id",
    "handle",
    "delivery_count",
    "link_credit",
    "drain",
    "echo",
)


def encode_trimmed(value: Composite, keep: int) -> bytes:
    """Encode only the first `keep` fields, like a peer that omits trailing fields."""
    full = value.encode()
    assert full[3] == 0xC0
    body = full[6:]
    at = 0
    for _ in range(keep):
        _, at = _any_value(body, at)
    return full[:3] + bytes((0xC0, at + 1, keep)) + body[:at]


def _any_value(data: bytes, at: int) -> tuple[Any, int]:
    return fast_decoders.decode_composite(data, at) if data[at] == 0 else fast_decoders.decode_value(data, at)


def outcome_of(read: Any, *arguments: Any) -> Any:
    try:
        return read(*arguments)
    except DecodeError:
        return DecodeError


# --- transfer ---


def transfer_fields(read: Any, data: bytes, at: int, end: int) -> Any:
    """What was read; None where it is left to the declared path."""
    handle, delivery_id, tag, form, payload_at = read(data, at, end)
    if form is None:
        return None
    rest = (form.message_format, form.settled, form.more, form.state, form.aborted)
    return handle, delivery_id, tag, rest, payload_at


def quickly(data: bytes, at: int, end: int) -> Any:
    return transfer_fields(decode_transfer, data, at, end)


def declared(data: bytes, at: int, end: int) -> Any:
    return transfer_fields(declared_transfer, data, at, end)


def expected_transfer(transfer: Transfer, payload_at: int) -> Any:
    rest = (transfer.message_format, transfer.settled, transfer.more, transfer.state, transfer.aborted)
    return transfer.handle, transfer.delivery_id, transfer.delivery_tag, rest, payload_at


@given(transfer=transfers, before=around, payload=around, after=around)
def test_a_transfer_is_read_alike_on_both_paths(
    transfer: Transfer, before: bytes, payload: bytes, after: bytes
) -> None:
    encoded = transfer.encode()
    data = before + encoded + payload + after
    end = len(data) - len(after)
    expected = expected_transfer(transfer, len(before) + len(encoded))
    assert declared(data, len(before), end) == expected
    assert quickly(data, len(before), end) in (expected, None)


@given(transfer=transfers, keep=st.integers(1, 11))
def test_a_transfer_without_its_last_fields_is_read_alike(transfer: Transfer, keep: int) -> None:
    transfer.state = None
    data = encode_trimmed(transfer, keep)
    fields = quickly(data, 0, len(data))
    assert fields in (declared(data, 0, len(data)), None)


@pytest.mark.parametrize("handle", [0, 1, 255, 256, 70000])
@pytest.mark.parametrize("delivery_id", [None, 0, 1, 255, 256, 0xFFFFFFFF])
@pytest.mark.parametrize("tag", [None, b"", b"abc", bytes(16), bytes(32)])
def test_the_usual_transfers_are_read_on_the_fast_path(handle: int, delivery_id: int | None, tag: bytes | None) -> None:
    for settled in (None, False, True):
        transfer = Transfer(handle=handle, delivery_id=delivery_id, delivery_tag=tag, message_format=0, settled=settled)
        data = transfer.encode() + b"payload"
        assert quickly(data, 0, len(data)) == expected_transfer(transfer, len(data) - 7)


@given(transfer=transfers, spoiled=st.integers(0, 60), octet=st.integers(0, 255), payload=around)
def test_a_spoiled_transfer_is_refused_or_read_alike(
    transfer: Transfer, spoiled: int, octet: int, payload: bytes
) -> None:
    data = bytearray(transfer.encode() + payload)
    data[3 + spoiled % (len(data) - 3)] = octet
    wrong = bytes(data)
    fields = outcome_of(quickly, wrong, 0, len(wrong))
    assert fields is None or fields == outcome_of(declared, wrong, 0, len(wrong))


@given(data=st.binary(max_size=60))
def test_any_bytes_behind_a_transfers_descriptor_are_refused_or_read_alike(data: bytes) -> None:
    wrong = b"\x00\x53\x14\xc0" + data
    fields = outcome_of(quickly, wrong, 0, len(wrong))
    assert fields is None or fields == outcome_of(declared, wrong, 0, len(wrong))


def test_a_transfer_that_is_longer_than_its_frame_is_left_to_the_declared_path() -> None:
    data = Transfer(handle=0, delivery_id=1000, delivery_tag=bytes(16), message_format=0).encode()
    assert quickly(data + data, 0, len(data)) is not None
    assert quickly(data + data, 0, len(data) - 1) is None


@pytest.mark.parametrize("count", [10, 12])
def test_a_field_count_that_is_wrong_is_not_believed(count: int) -> None:
    data = bytearray(Transfer(handle=0, delivery_id=1000, delivery_tag=bytes(16), message_format=0).encode())
    assert data[5] == 11
    data[5] = count
    assert quickly(bytes(data), 0, len(data)) is None


@given(
    channel=st.integers(0, 65535),
    handle=uints,
    delivery_id=st.integers(256, 0xFFFFFFFF),
    tag=st.binary(min_size=16, max_size=16),
    settled=flags,
    payload=st.binary(max_size=300),
)
def test_a_transfer_is_written_alike_on_both_paths(
    channel: int, handle: int, delivery_id: int, tag: bytes, settled: bool, payload: bytes
) -> None:
    declared = Transfer(handle=handle, delivery_id=delivery_id, delivery_tag=tag, message_format=0, settled=settled)
    frame = encode_frame(channel, declared.encode() + payload)
    encoder = TransferEncoder(channel, handle)
    assert encoder.encode(delivery_id, tag, settled, len(payload)) + payload == frame
    assert encoder.overhead == len(frame) - len(payload)


@pytest.mark.parametrize("delivery_id", [0, 1, 255])
def test_a_low_delivery_id_may_be_written_with_four_octets(delivery_id: int) -> None:
    frame = TransferEncoder(3, 7).encode(delivery_id, bytes(16), False, 5) + b"hello"
    assert int.from_bytes(frame[:4]) == len(frame)
    transfer = Transfer(handle=7, delivery_id=delivery_id, delivery_tag=bytes(16), message_format=0, settled=False)
    assert declared(frame, 8, len(frame)) == expected_transfer(transfer, len(frame) - 5)


# --- disposition ---


def expected_disposition(value: Disposition) -> DispositionFields:
    return DispositionFields(value.role, value.first, value.last, value.settled, value.state)


@given(disposition=dispositions, before=around, after=around)
def test_a_disposition_is_read_alike_on_both_paths(disposition: Disposition, before: bytes, after: bytes) -> None:
    data = before + disposition.encode() + after
    end = len(data) - len(after)
    expected = expected_disposition(disposition)
    assert declared_disposition(data, len(before), end) == expected
    assert decode_disposition(data, len(before), end) in (expected, None)


@given(disposition=dispositions, keep=st.integers(2, 6))
def test_a_disposition_without_its_last_fields_is_read_alike(disposition: Disposition, keep: int) -> None:
    disposition.state = Accepted()
    data = encode_trimmed(disposition, keep)
    fields = decode_disposition(data, 0, len(data))
    assert fields in (declared_disposition(data, 0, len(data)), None)


@pytest.mark.parametrize("role", [False, True])
@pytest.mark.parametrize("first", [0, 200, 256, 0xFFFFFFFF])
@pytest.mark.parametrize("last", [None, 0, 200, 256, 0xFFFFFFFF])
@pytest.mark.parametrize("state", [Accepted(), Released(), Modified(delivery_failed=True), Rejected()])
def test_the_usual_dispositions_are_read_on_the_fast_path(role: bool, first: int, last: int | None, state: Any) -> None:
    for settled in (False, True):
        disposition = Disposition(role=role, first=first, last=last, settled=settled, state=state)
        data = disposition.encode()
        # A short one at the very end of what was read may be left to the declared path.
        assert decode_disposition(data + bytes(8), 0, len(data)) == expected_disposition(disposition)
        assert decode_disposition(data, 0, len(data)) in (expected_disposition(disposition), None)


@given(disposition=dispositions, spoiled=st.integers(0, 60), octet=st.integers(0, 255))
def test_a_spoiled_disposition_is_refused_or_read_alike(disposition: Disposition, spoiled: int, octet: int) -> None:
    data = bytearray(disposition.encode())
    data[3 + spoiled % (len(data) - 3)] = octet
    wrong = bytes(data)
    fields = outcome_of(decode_disposition, wrong, 0, len(wrong))
    assert fields is None or fields == outcome_of(declared_disposition, wrong, 0, len(wrong))


@given(data=st.binary(max_size=60))
def test_any_bytes_behind_a_dispositions_descriptor_are_refused_or_read_alike(data: bytes) -> None:
    wrong = b"\x00\x53\x15\xc0" + data
    fields = outcome_of(decode_disposition, wrong, 0, len(wrong))
    assert fields is None or fields == outcome_of(declared_disposition, wrong, 0, len(wrong))


@given(role=flags, first=uints, last=uints, settled=flags, state=states)
def test_a_disposition_is_written_alike_on_both_paths(
    role: bool, first: int, last: int, settled: bool, state: Any
) -> None:
    if isinstance(state, Described):
        state = Accepted()
    declared = Disposition(role=role, first=first, last=last, settled=settled, state=state).encode()
    encoded_state = b"\x40" if state is None else state.encode()
    assert encode_disposition(role, first, last, settled, encoded_state) == declared


# --- flow ---


def flow_fields(read: Any, data: bytes, at: int, end: int) -> Any:
    """What was read; None where it is left to the declared path."""
    found = read(data, at, end)
    return found and tuple(getattr(found, name) for name in FLOW_FIELDS)


def quick_flow(data: bytes, at: int, end: int) -> Any:
    return flow_fields(decode_flow, data, at, end)


def slow_flow(data: bytes, at: int, end: int) -> Any:
    return flow_fields(declared_flow, data, at, end)


@given(flow=flows, before=around, after=around)
def test_a_flow_is_read_alike_on_both_paths(flow: Flow, before: bytes, after: bytes) -> None:
    data = before + flow.encode() + after
    end = len(data) - len(after)
    expected = tuple(getattr(flow, name) for name in FLOW_FIELDS)
    assert slow_flow(data, len(before), end) == expected
    assert quick_flow(data, len(before), end) == (expected if flow.properties is None else None)


@given(flow=flows, keep=st.integers(4, 11))
def test_a_flow_without_its_last_fields_is_read_alike(flow: Flow, keep: int) -> None:
    flow.properties = None
    data = encode_trimmed(flow, keep)
    assert quick_flow(data, 0, len(data)) == slow_flow(data, 0, len(data))


@given(flow=flows, spoiled=st.integers(0, 60), octet=st.integers(0, 255))
def test_a_spoiled_flow_is_refused_or_read_alike(flow: Flow, spoiled: int, octet: int) -> None:
    data = bytearray(flow.encode())
    data[3 + spoiled % (len(data) - 3)] = octet
    wrong = bytes(data)
    fields = quick_flow(wrong, 0, len(wrong))
    assert fields is None or fields == outcome_of(slow_flow, wrong, 0, len(wrong))


@given(data=st.binary(max_size=60))
def test_any_bytes_behind_a_flows_descriptor_are_refused_or_read_alike(data: bytes) -> None:
    wrong = b"\x00\x53\x13\xc0" + data
    fields = quick_flow(wrong, 0, len(wrong))
    assert fields is None or fields == outcome_of(slow_flow, wrong, 0, len(wrong))


# --- all ---


@given(value=uints)
def test_a_uint_is_written_in_its_smallest_form(value: int) -> None:
    transfer = Transfer(handle=value)
    assert transfer.encode()[6:].startswith(encode_uint(value))


def test_the_tables_of_known_forms_stay_bounded() -> None:
    for number in range(3000):
        state = Received(section_number=number, section_offset=0)
        data = Disposition(role=True, first=1000, last=2000, state=state).encode()
        assert decode_disposition(data, 0, len(data)) == declared_disposition(data, 0, len(data))
        data = Transfer(handle=0, delivery_id=1000, delivery_tag=bytes(16), state=state).encode()
        assert quickly(data, 0, len(data)) == declared(data, 0, len(data))
    assert len(fast_decoders._disposition_forms) <= fast_decoders._MEMO_ENTRIES
    assert len(fast_decoders._transfer_forms) <= fast_decoders._MEMO_ENTRIES
    assert all(len(form) <= fast_decoders._MEMO_LENGTH for form in fast_decoders._transfer_forms)


def test_forms_that_clients_send_are_known_in_advance() -> None:
    accepted = b"\x41" + Accepted().encode() + b"\x42"
    assert fast_decoders._disposition_forms[accepted].state == Accepted()
    assert fast_decoders._transfer_forms[fast_encoders._AFTER_TAG[False]].settled is False
    assert fast_decoders._transfer_forms[fast_encoders._AFTER_TAG[True]].settled is True
    assert decode_composite(b"\x00" + accepted[2:])[0] == Accepted()
