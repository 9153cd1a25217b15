"""Hand-written decoders of `transfer`, `disposition` and `flow`, in addition to the declared ones in `performatives`.

Both decode the same values, and a test compares them. A decoder of this module returns None for unusual encodings,
which the declared decoder handles. Delivery states from this module are shared between deliveries: never change one.
docs/benchmarks.md has the figures.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

from peeklock.amqp.codec import decode_value
from peeklock.amqp.composites import Composite, decode_composite
from peeklock.amqp.performatives import Disposition, Flow, Transfer
from peeklock.amqp.types import Described, UByte, UInt

_UINT: Final = struct.Struct(">I")
_uint_at: Final = _UINT.unpack_from

TRANSFER_START: Final = 0x005314C0
DISPOSITION_START: Final = 0x005315C0
FLOW_START: Final = 0x005313C0
"""The first four octets of the body of a frame: the descriptor, and the constructor of a list of up to 255 octets.
`TRANSFER_START` and `DISPOSITION_START` are of the same kind."""


class TransferForm:
    """The fields of a transfer from message-format on. Many transfers share one instance: never change one."""

    __slots__ = ("aborted", "fields", "message_format", "more", "settled", "state")

    def __init__(
        self, *, message_format: int | None, settled: bool | None, more: bool, state: Any, aborted: bool, fields: int
    ) -> None:
        self.message_format = message_format
        self.settled = settled
        self.more = more
        self.state = state
        self.aborted = aborted
        self.fields = fields
        """The number of these fields that the encoded list has."""


class DispositionFields(NamedTuple):
    """The fields of a disposition that the engine uses."""

    role: bool
    first: int
    last: int | None
    settled: bool
    state: Any


class FlowFields:
    """The fields of a flow that the engine uses."""

    __slots__ = (
        "delivery_count",
        "drain",
        "echo",
        "handle",
        "incoming_window",
        "link_credit",
        "next_incoming_id",
        "next_outgoing_id",
    )

    def __init__(
        self,
        next_incoming_id: int | None,
        incoming_window: int,
        next_outgoing_id: int,
        handle: int | None,
        delivery_count: int | None,
        link_credit: int | None,
        drain: bool,
        echo: bool,
    ) -> None:
        self.next_incoming_id = next_incoming_id
        self.incoming_window = incoming_window
        self.next_outgoing_id = next_outgoing_id
        self.handle = handle
        self.delivery_count = delivery_count
        self.link_credit = link_credit
        self.drain = drain
        self.echo = echo


class _AfterLast(NamedTuple):
    """The fields of a disposition after `last`."""

    settled: bool
    state: Any
    fields: int


_FLOW_FIELDS: Final = 11
_ALL_FIELDS: Final = 8
"""The number of fields of a transfer from message-format on."""

# The fields after the numbers have only a few encodings in practice, so each encoding is decoded once and cached. The
# bounds limit the memory that a peer can use: an encoding that is longer (as with transactions), or new when the cache
# is full, is decoded every time.
_MEMO_LENGTH: Final = 32
_MEMO_ENTRIES: Final = 512
_transfer_forms: Final[dict[bytes, TransferForm]] = {}
_disposition_forms: Final[dict[bytes, _AfterLast]] = {}

# Makes a named tuple from a tuple without calling a Python function.
_named: Final = tuple.__new__

_disposition_of_two: Final = struct.Struct(">IBBBBIBI")


def decode_transfer(
    data: bytes, offset: int, end: int
) -> tuple[int, int | None, bytes | None, TransferForm | None, int]:
    """Decode the transfer that starts at `offset` in a frame that ends at `end`.

    Return handle, delivery-id, delivery-tag, the other fields, and the start of the payload. The other fields are None
    if the declared decoder must decode the transfer. Octets are read one by one, because in compiled code that takes a
    fraction of the time of unpacking them.
    """
    handle: int | None
    delivery_id: int | None
    tag: bytes | None
    try:
        if data[offset + 1] != 0x53 or data[offset + 3] != 0xC0:
            return _UNUSUAL  # another encoding of the descriptor or of the list
        payload_at = offset + 5 + data[offset + 4]
        at = offset + 6
        if data[at] == 0x43:
            handle = 0
            at += 1
        else:
            handle, at = _uint(data, at)
        if data[at] == 0x70:
            delivery_id = data[at + 1] << 24 | data[at + 2] << 16 | data[at + 3] << 8 | data[at + 4]
            at += 5
        else:
            delivery_id, at = _uint(data, at)
        if data[at] == 0xA0:
            tag_at = at + 2
            at = tag_at + data[at + 1]
            tag = data[tag_at:at]
        elif data[at] == 0x40:
            tag = None
            at += 1
        else:
            return _UNUSUAL
    except (IndexError, struct.error, _Unusual):
        return _UNUSUAL
    if handle is None or at > payload_at or payload_at > end:
        return _UNUSUAL
    octets = data[at:payload_at]
    form = _transfer_forms.get(octets) or _transfer_form(octets)
    if form is None or form.fields + 3 != data[offset + 5]:
        return _UNUSUAL
    return handle, delivery_id, tag, form, payload_at


_UNUSUAL: Final = (0, None, None, None, 0)
"""The result for transfers that the declared decoder must decode."""


class _Unusual(Exception):
    """The encoding is unusual, so that the declared decoder must decode it."""


def _uint(data: bytes, at: int) -> tuple[int | None, int]:
    code = data[at]
    if code == 0x70:
        return _uint_at(data, at + 1)[0], at + 5
    if code == 0x52:
        return data[at + 1], at + 2
    if code == 0x43:
        return 0, at + 1
    if code == 0x40:
        return None, at + 1
    raise _Unusual


def _values(octets: bytes, most: int) -> list[Any] | None:
    """Decode a sequence of values. Return None if there are more than `most`."""
    found: list[Any] = []
    at = 0
    while at < len(octets):
        if len(found) == most:
            return None
        value, at = decode_composite(octets, at) if octets[at] == 0 else decode_value(octets, at)
        found.append(value)
    return found


def _transfer_form(octets: bytes) -> TransferForm | None:
    fields = _values(octets, _ALL_FIELDS)
    if fields is None:
        return None
    count = len(fields)
    fields += [None] * (_ALL_FIELDS - count)
    message_format, settled, more, rcv_settle_mode, state, resume, aborted, batchable = fields
    if not (
        isinstance(message_format, UInt | None)
        and _are_flags(settled, more, resume, aborted, batchable)
        and (rcv_settle_mode is None or (isinstance(rcv_settle_mode, UByte) and rcv_settle_mode < 2))
        and isinstance(state, Composite | Described | None)
    ):
        return None
    form = TransferForm(
        message_format=None if message_format is None else int(message_format),
        settled=settled,
        more=more or False,
        state=state,
        aborted=aborted or False,
        fields=count,
    )
    if len(octets) <= _MEMO_LENGTH and len(_transfer_forms) < _MEMO_ENTRIES:
        _transfer_forms[octets] = form
    return form


def _are_flags(*values: Any) -> bool:
    return all(isinstance(value, bool | None) for value in values)


def decode_disposition(data: bytes, offset: int, end: int) -> DispositionFields | None:
    """Decode the disposition in `data` from `offset` to `end`. Return None if its encoding is unusual."""
    first: int | None
    last: int | None
    try:
        start, size, count, role, first_code, first, last_code, last = _disposition_of_two.unpack_from(data, offset)
        if start != DISPOSITION_START or offset + 5 + size != end or role not in (0x41, 0x42):
            return None
        if first_code == 0x70 and last_code == 0x70:
            at = offset + 17
        else:
            first, at = _uint(data, offset + 7)
            last, at = _uint(data, at)
    except (IndexError, struct.error, _Unusual):
        return None
    if first is None or at > end:
        return None
    octets = data[at:end]
    form = _disposition_forms.get(octets) or _disposition_form(octets)
    if form is None or form[2] + 3 != count:
        return None
    return _named(DispositionFields, (role == 0x41, first, last, form[0], form[1]))


def _disposition_form(octets: bytes) -> _AfterLast | None:
    fields = _values(octets, 3)
    if fields is None:
        return None
    count = len(fields)
    fields += [None] * (3 - count)
    settled, state, batchable = fields
    if not (_are_flags(settled, batchable) and isinstance(state, Composite | Described | None)):
        return None
    form = _AfterLast(settled or False, state, count)
    if len(octets) <= _MEMO_LENGTH and len(_disposition_forms) < _MEMO_ENTRIES:
        _disposition_forms[octets] = form
    return form


def decode_flow(data: bytes, offset: int, end: int) -> FlowFields | None:
    """Decode the flow in `data` from `offset` to `end`. Return None if its encoding is unusual."""
    handle: int | None = None
    delivery_count: int | None = None
    link_credit: int | None = None
    drain = echo = False
    try:
        if data[offset + 1] != 0x53 or data[offset + 3] != 0xC0 or offset + 5 + data[offset + 4] != end:
            return None
        count = data[offset + 5]
        if not 4 <= count <= _FLOW_FIELDS:
            return None
        next_incoming_id, at = _uint(data, offset + 6)
        incoming_window, at = _uint(data, at)
        next_outgoing_id, at = _uint(data, at)
        outgoing_window, at = _uint(data, at)
        if count > 4:
            handle, at = _uint(data, at)
        if count > 5:
            delivery_count, at = _uint(data, at)
        if count > 6:
            link_credit, at = _uint(data, at)
        if count > 7:
            _, at = _uint(data, at)
        if count > 8:
            drain = _flag(data[at])
            at += 1
        if count > 9:
            echo = _flag(data[at])
            at += 1
        if count > 10:
            if data[at] != 0x40:
                return None  # the flow has properties
            at += 1
    except (IndexError, struct.error, _Unusual):
        return None
    if at != end or incoming_window is None or next_outgoing_id is None or outgoing_window is None:
        return None
    # Positional arguments, because keyword arguments more than double the cost of the call in interpreted code.
    return FlowFields(
        next_incoming_id, incoming_window, next_outgoing_id, handle, delivery_count, link_credit, drain, echo
    )


def _flag(code: int) -> bool:
    if code == 0x41:
        return True
    if code == 0x42 or code == 0x40:
        return False
    raise _Unusual


def declared_transfer(data: bytes, offset: int, end: int) -> tuple[int, int | None, bytes | None, TransferForm, int]:
    """Decode a transfer in any encoding. The result is that of `decode_transfer`."""
    transfer, payload_at = decode_composite(data[:end], offset)
    assert isinstance(transfer, Transfer)
    form = TransferForm(
        message_format=transfer.message_format,
        settled=transfer.settled,
        more=transfer.more,
        state=transfer.state,
        aborted=transfer.aborted,
        fields=_ALL_FIELDS,
    )
    return transfer.handle, transfer.delivery_id, transfer.delivery_tag, form, payload_at


def declared_disposition(data: bytes, offset: int, end: int) -> DispositionFields:
    """Decode a disposition in any encoding."""
    disposition, _ = decode_composite(data[:end], offset)
    assert isinstance(disposition, Disposition)
    return DispositionFields(
        role=disposition.role,
        first=disposition.first,
        last=disposition.last,
        settled=disposition.settled,
        state=disposition.state,
    )


def declared_flow(data: bytes, offset: int, end: int) -> FlowFields:
    """Decode a flow in any encoding."""
    flow, _ = decode_composite(data[:end], offset)
    assert isinstance(flow, Flow)
    return FlowFields(
        next_incoming_id=flow.next_incoming_id,
        incoming_window=flow.incoming_window,
        next_outgoing_id=flow.next_outgoing_id,
        handle=flow.handle,
        delivery_count=flow.delivery_count,
        link_credit=flow.link_credit,
        drain=flow.drain,
        echo=flow.echo,
    )


def _cache_common_forms() -> None:
    """Fill the caches with the encodings that clients send, before a peer can fill them with others."""
    flags = b"\x41\x42"
    for settled in flags:
        for message_format in (b"\x43", b"\x70\x80\x01\x37\x00"):
            for batchable in (b"\x40", b"\x41", b"\x42"):
                for absent in (b"\x40\x40\x40\x40", b"\x40\x40\x42\x42"):
                    _transfer_form(message_format + bytes((settled, 0x42)) + absent + batchable)
            _transfer_form(message_format + bytes((settled,)))
            _transfer_form(message_format + bytes((settled, 0x42)))
        for code in (0x24, 0x26, 0x27):
            for state in (b"\x45", b"\xc0\x01\x00"):
                for batchable in (b"", b"\x40", b"\x41", b"\x42"):
                    _disposition_form(bytes((settled, 0x00, 0x53, code)) + state + batchable)


_cache_common_forms()
