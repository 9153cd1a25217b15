"""The nine performatives (2.7). All other composites can be imported from here as well."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from peeklock.amqp.composites import (
    BINARY,
    BOOLEAN,
    DELIVERY_STATE,
    MAP,
    STRING,
    SYMBOL_MAP,
    SYMBOLS,
    UBYTE,
    UINT,
    ULONG,
    USHORT,
    Composite,
    composite,
    decode_composite,
    one_of,
)
from peeklock.amqp.outcomes import ERROR, Accepted, Error, Modified, Received, Rejected, Released
from peeklock.amqp.sasl import SaslChallenge, SaslInit, SaslMechanisms, SaslOutcome, SaslResponse
from peeklock.amqp.termini import SOURCE, TARGET, Source, Target
from peeklock.amqp.transactions import Coordinator, Declare, Declared, Discharge, TransactionalState
from peeklock.amqp.types import Described

__all__ = [
    "Accepted",
    "Attach",
    "Begin",
    "Close",
    "Composite",
    "Coordinator",
    "Declare",
    "Declared",
    "Detach",
    "Discharge",
    "Disposition",
    "End",
    "Error",
    "Flow",
    "Modified",
    "Open",
    "Received",
    "Rejected",
    "Released",
    "SaslChallenge",
    "SaslInit",
    "SaslMechanisms",
    "SaslOutcome",
    "SaslResponse",
    "Source",
    "Target",
    "TransactionalState",
    "Transfer",
    "decode_composite",
]

SND_SETTLE_MODE = one_of(UBYTE, 0, 1, 2)
"""sender-settle-mode (2.8.2): unsettled, settled, mixed."""
RCV_SETTLE_MODE = one_of(UBYTE, 0, 1)
"""receiver-settle-mode (2.8.3): first, second."""

UINT_MAX = 0xFFFFFFFF


@composite
@dataclass(slots=True, kw_only=True)
class Open(Composite):
    """open (2.7.1): negotiate connection parameters."""

    CODE: ClassVar[int] = 0x10
    container_id: Annotated[str, STRING]
    hostname: Annotated[str | None, STRING] = None
    max_frame_size: Annotated[int, UINT] = UINT_MAX
    channel_max: Annotated[int, USHORT] = 0xFFFF
    idle_time_out: Annotated[int | None, UINT] = None
    outgoing_locales: Annotated[list[str] | None, SYMBOLS] = None
    incoming_locales: Annotated[list[str] | None, SYMBOLS] = None
    offered_capabilities: Annotated[list[str] | None, SYMBOLS] = None
    desired_capabilities: Annotated[list[str] | None, SYMBOLS] = None
    properties: Annotated[dict[Any, Any] | None, SYMBOL_MAP] = None


@composite
@dataclass(slots=True, kw_only=True)
class Begin(Composite):
    """begin (2.7.2): map a session to a channel."""

    CODE: ClassVar[int] = 0x11
    remote_channel: Annotated[int | None, USHORT] = None
    next_outgoing_id: Annotated[int, UINT]
    incoming_window: Annotated[int, UINT]
    outgoing_window: Annotated[int, UINT]
    handle_max: Annotated[int, UINT] = UINT_MAX
    offered_capabilities: Annotated[list[str] | None, SYMBOLS] = None
    desired_capabilities: Annotated[list[str] | None, SYMBOLS] = None
    properties: Annotated[dict[Any, Any] | None, SYMBOL_MAP] = None


@composite
@dataclass(slots=True, kw_only=True)
class Attach(Composite):
    """attach (2.7.3): attach a link to a session. The role is true for a receiver (2.8.1)."""

    CODE: ClassVar[int] = 0x12
    name: Annotated[str, STRING]
    handle: Annotated[int, UINT]
    role: Annotated[bool, BOOLEAN]
    snd_settle_mode: Annotated[int, SND_SETTLE_MODE] = 2
    rcv_settle_mode: Annotated[int, RCV_SETTLE_MODE] = 0
    source: Annotated[Source | None, SOURCE] = None
    target: Annotated[Target | Coordinator | None, TARGET] = None
    unsettled: Annotated[dict[Any, Any] | None, MAP] = None
    incomplete_unsettled: Annotated[bool, BOOLEAN] = False
    initial_delivery_count: Annotated[int | None, UINT] = None
    max_message_size: Annotated[int | None, ULONG] = None
    offered_capabilities: Annotated[list[str] | None, SYMBOLS] = None
    desired_capabilities: Annotated[list[str] | None, SYMBOLS] = None
    properties: Annotated[dict[Any, Any] | None, SYMBOL_MAP] = None


@composite
@dataclass(slots=True, kw_only=True)
class Flow(Composite):
    """flow (2.7.4): update the state of a session, and of a link if it has a handle."""

    CODE: ClassVar[int] = 0x13
    next_incoming_id: Annotated[int | None, UINT] = None
    incoming_window: Annotated[int, UINT]
    next_outgoing_id: Annotated[int, UINT]
    outgoing_window: Annotated[int, UINT]
    handle: Annotated[int | None, UINT] = None
    delivery_count: Annotated[int | None, UINT] = None
    link_credit: Annotated[int | None, UINT] = None
    available: Annotated[int | None, UINT] = None
    drain: Annotated[bool, BOOLEAN] = False
    echo: Annotated[bool, BOOLEAN] = False
    properties: Annotated[dict[Any, Any] | None, SYMBOL_MAP] = None


@composite
@dataclass(slots=True, kw_only=True)
class Transfer(Composite):
    """transfer (2.7.5): a message, or a part of one, which follows in the frame."""

    CODE: ClassVar[int] = 0x14
    handle: Annotated[int, UINT]
    delivery_id: Annotated[int | None, UINT] = None
    delivery_tag: Annotated[bytes | None, BINARY] = None
    message_format: Annotated[int | None, UINT] = None
    settled: Annotated[bool | None, BOOLEAN] = None
    more: Annotated[bool, BOOLEAN] = False
    rcv_settle_mode: Annotated[int | None, RCV_SETTLE_MODE] = None
    state: Annotated[Composite | Described | None, DELIVERY_STATE] = None
    resume: Annotated[bool, BOOLEAN] = False
    aborted: Annotated[bool, BOOLEAN] = False
    batchable: Annotated[bool, BOOLEAN] = False


@composite
@dataclass(slots=True, kw_only=True)
class Disposition(Composite):
    """disposition (2.7.6): the state of a range of deliveries. The role is true if a receiver sends it (2.8.1)."""

    CODE: ClassVar[int] = 0x15
    role: Annotated[bool, BOOLEAN]
    first: Annotated[int, UINT]
    last: Annotated[int | None, UINT] = None
    settled: Annotated[bool, BOOLEAN] = False
    state: Annotated[Composite | Described | None, DELIVERY_STATE] = None
    batchable: Annotated[bool, BOOLEAN] = False


@composite
@dataclass(slots=True, kw_only=True)
class Detach(Composite):
    """detach (2.7.7): detach a link, and close it if `closed`."""

    CODE: ClassVar[int] = 0x16
    handle: Annotated[int, UINT]
    closed: Annotated[bool, BOOLEAN] = False
    error: Annotated[Error | None, ERROR] = None


@composite
@dataclass(slots=True, kw_only=True)
class End(Composite):
    """end (2.7.8): end a session."""

    CODE: ClassVar[int] = 0x17
    error: Annotated[Error | None, ERROR] = None


@composite
@dataclass(slots=True, kw_only=True)
class Close(Composite):
    """close (2.7.9): close the connection."""

    CODE: ClassVar[int] = 0x18
    error: Annotated[Error | None, ERROR] = None
