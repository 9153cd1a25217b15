"""A message with its sections (3.2), for code that decodes or encodes whole messages.

The broker never decodes and re-encodes the messages that it delivers. It uses this class for requests and answers; the
client and tests use it too.
"""

from __future__ import annotations

import reprlib
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, NamedTuple
from uuid import UUID

from peeklock.amqp import decoders, encoders
from peeklock.amqp.composites import (
    BINARY,
    BOOLEAN,
    MESSAGE_ID,
    STRING,
    SYMBOL,
    TIMESTAMP,
    UBYTE,
    UINT,
    Composite,
    composite,
    read_fields,
    write_symbol_keys,
)
from peeklock.amqp.decoders import READERS, Budget
from peeklock.amqp.errors import DecodeError, EncodeError
from peeklock.amqp.types import Symbol, ULong

MessageId = str | ULong | UUID | bytes


@composite
@dataclass(slots=True, kw_only=True)
class Header(Composite):
    """The header (3.2.1): delivery details of the message."""

    CODE: ClassVar[int] = 0x70
    TRIMMED: ClassVar[bool] = True
    durable: Annotated[bool, BOOLEAN] = False
    priority: Annotated[int, UBYTE] = 4
    ttl: Annotated[int | None, UINT] = None
    first_acquirer: Annotated[bool, BOOLEAN] = False
    delivery_count: Annotated[int, UINT] = 0


@composite
@dataclass(slots=True, kw_only=True)
class Properties(Composite):
    """The properties (3.2.4): the standard properties, which intermediaries must not change."""

    CODE: ClassVar[int] = 0x73
    TRIMMED: ClassVar[bool] = True
    message_id: Annotated[MessageId | None, MESSAGE_ID] = None
    user_id: Annotated[bytes | None, BINARY] = None
    to: Annotated[str | None, STRING] = None
    subject: Annotated[str | None, STRING] = None
    reply_to: Annotated[str | None, STRING] = None
    correlation_id: Annotated[MessageId | None, MESSAGE_ID] = None
    content_type: Annotated[str | None, SYMBOL] = None
    content_encoding: Annotated[str | None, SYMBOL] = None
    absolute_expiry_time: Annotated[int | None, TIMESTAMP] = None
    creation_time: Annotated[int | None, TIMESTAMP] = None
    group_id: Annotated[str | None, STRING] = None
    group_sequence: Annotated[int | None, UINT] = None
    reply_to_group_id: Annotated[str | None, STRING] = None


class NoValue:
    """The class of NO_VALUE."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "NO_VALUE"


NO_VALUE = NoValue()
"""The message has no amqp-value section. (None is a section with the value null.)"""


@dataclass(slots=True, kw_only=True)
class Message:
    """A message (3.2). Its body is either data sections, or amqp-sequence sections, or an amqp-value."""

    header: Header | None = None
    delivery_annotations: dict[Any, Any] | None = None
    message_annotations: dict[Any, Any] | None = None
    properties: Properties | None = None
    application_properties: dict[Any, Any] | None = None
    data: list[bytes] = field(default_factory=list)
    sequences: list[list[Any]] = field(default_factory=list)
    value: Any = NO_VALUE
    footer: dict[Any, Any] | None = None

    @property
    def body(self) -> Any:
        """The body: the bytes of one data section, a list of several ones, the amqp-value, or the sequences."""
        if self.data:
            return self.data[0] if len(self.data) == 1 else self.data
        return self.value if self.value is not NO_VALUE else self.sequences

    def encode(self) -> bytes:
        try:
            return b"".join(self._sections())
        except encoders.FAILURES as error:
            raise EncodeError(f"the message cannot be encoded: {error}") from error

    def _sections(self) -> list[bytes]:
        sections = []
        if self.header is not None:
            sections.append(self.header.encode())
        if self.delivery_annotations is not None:
            sections.append(b"\x00\x53\x71" + write_symbol_keys(self.delivery_annotations, 1))
        if self.message_annotations is not None:
            sections.append(b"\x00\x53\x72" + write_symbol_keys(self.message_annotations, 1))
        if self.properties is not None:
            sections.append(self.properties.encode())
        if self.application_properties is not None:
            sections.append(b"\x00\x53\x74" + encoders.write_map(self.application_properties, 1))
        sections += [b"\x00\x53\x75" + encoders.write_binary(data, 1) for data in self.data]
        sections += [b"\x00\x53\x76" + encoders.write_list(sequence, 1) for sequence in self.sequences]
        if self.value is not NO_VALUE:
            sections.append(b"\x00\x53\x77" + encoders.write_value(self.value, 1))
        if self.footer is not None:
            sections.append(b"\x00\x53\x78" + write_symbol_keys(self.footer, 1))
        return sections

    @classmethod
    def decode(cls, data: bytes) -> Message:
        """Decode a message. Its sections may be in any order."""
        try:
            return read_message(data)
        except decoders.FAILURES as error:
            raise decoders.failure(error) from None


def read_message(data: bytes) -> Message:
    message = Message()
    budget = decoders.new_budget()
    seen: set[int] = set()
    offset = 0
    while offset < len(data):
        code, offset = read_section_code(data, offset, budget)
        section = SECTIONS[code]
        if code in seen and not section.repeats:
            raise DecodeError(f"the message has a second {section.name} section")
        if code in BODY and seen & BODY - {code}:
            raise DecodeError("the body mixes data, amqp-sequence and amqp-value sections")
        seen.add(code)
        if section.kind is not None:
            value, offset = read_fields(section.kind, data, offset, 0, budget)
        elif section.constructors and data[offset] not in section.constructors:
            raise DecodeError(f"the {section.name} section must be a {section.holds}")
        else:
            value, offset = READERS[data[offset]](data, offset + 1, 1, budget)
        if section.repeats:
            getattr(message, section.attribute).append(value)
        else:
            setattr(message, section.attribute, value)
    return message


def read_section_code(data: bytes, offset: int, budget: Budget) -> tuple[int, int]:
    """Return the code of the descriptor at `offset`, and the offset after the descriptor."""
    if data[offset] != 0x00:
        raise DecodeError("a message section must be a described value")
    if data[offset + 1] == 0x53:
        descriptor, offset = data[offset + 2], offset + 3
    else:
        descriptor, offset = READERS[data[offset + 1]](data, offset + 2, 1, budget)
    code = SECTION_CODES.get(descriptor) if isinstance(descriptor, Symbol) else descriptor
    if not isinstance(code, int) or code not in SECTIONS:
        raise DecodeError(f"no message section has the descriptor {reprlib.repr(descriptor)}")
    return code, offset


class Section(NamedTuple):
    """A kind of section, with the constructors that its value may have."""

    name: str
    attribute: str
    holds: str = ""
    constructors: tuple[int, ...] = ()
    kind: type[Composite] | None = None
    repeats: bool = False


MAPS = (0xC1, 0xD1)

SECTIONS = {
    0x70: Section("header", "header", "list", kind=Header),
    0x71: Section("delivery-annotations", "delivery_annotations", "map", MAPS),
    0x72: Section("message-annotations", "message_annotations", "map", MAPS),
    0x73: Section("properties", "properties", "list", kind=Properties),
    0x74: Section("application-properties", "application_properties", "map", MAPS),
    0x75: Section("data", "data", "binary", (0xA0, 0xB0), repeats=True),
    0x76: Section("amqp-sequence", "sequences", "list", (0x45, 0xC0, 0xD0), repeats=True),
    0x77: Section("amqp-value", "value", "*"),
    0x78: Section("footer", "footer", "map", MAPS),
}
BODY = {0x75, 0x76, 0x77}
SECTION_CODES = {f"amqp:{section.name}:{section.holds}": code for code, section in SECTIONS.items()}
