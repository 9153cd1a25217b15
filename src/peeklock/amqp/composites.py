"""Declares, encodes and decodes the composite types of the specification (part 1, section 1.4).

A composite is a dataclass whose fields are annotated with their AMQP type:

    @composite
    @dataclass(slots=True, kw_only=True)
    class Begin(Composite):
        CODE: ClassVar[int] = 0x11
        remote_channel: Annotated[int | None, USHORT] = None
        next_outgoing_id: Annotated[int, UINT]

A field without a default is mandatory. Fields are plain Python values (int for uint, str for symbol); only values
inside maps have the AMQP types of `types`. This module does not know the meaning of the classes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from peeklock.amqp import decoders, encoders
from peeklock.amqp.arrays import write_array
from peeklock.amqp.decoders import READERS, Budget, Reader, binary, compound_header, constant, plain
from peeklock.amqp.encoders import NULL, WRITERS, Writer
from peeklock.amqp.errors import DecodeError, EncodeError
from peeklock.amqp.types import Array, Described, Symbol, ULong
from peeklock.limits.amqp import MAX_VALUE_DEPTH

NULL_CODE = 0x40


class FieldType(NamedTuple):
    """The type of a field: its name in error messages, the readers by constructor, and the writer."""

    name: str
    readers: Mapping[int, Reader]
    write: Writer


class Field(NamedTuple):
    """A field of a composite."""

    name: str
    label: str
    """The name in errors for peers: `attach.initial-delivery-count`."""
    type: FieldType
    mandatory: bool
    default: bytes
    """The bytes to write if there is no value."""


class Composite:
    """The base class of all composites. `encode` writes every field, because some clients read them by index."""

    __slots__ = ()

    CODE: ClassVar[int]
    TRIMMED: ClassVar[bool] = False
    """Whether `encode` omits trailing nulls."""
    NAME: ClassVar[str]
    """The name in the specification: `transactional-state`."""
    FIELDS: ClassVar[tuple[Field, ...]]
    MANDATORY: ClassVar[tuple[Field, ...]]

    def encode(self) -> bytes:
        return encode_composite(self, 0)


C = TypeVar("C", bound=Composite)

BY_CODE: dict[int, type[Composite]] = {}
BY_NAME: dict[str, type[Composite]] = {}


def kebab(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).replace("_", "-").lower()


def composite(cls: type[C]) -> type[C]:
    """Register a dataclass under its code and its symbolic name (`amqp:begin:list`)."""
    hints = get_type_hints(cls, include_extras=True)
    cls.NAME = kebab(cls.__name__)
    declared = []
    for field in fields(cls):  # type: ignore[arg-type]
        annotation = hints[field.name]
        if get_origin(annotation) is not Annotated:
            raise TypeError(f"{cls.__name__}.{field.name} has no annotation with its AMQP type")
        kind: FieldType = get_args(annotation)[1]
        default = NULL if field.default in (MISSING, None) else kind.write(field.default, 0)
        label = f"{cls.NAME}.{kebab(field.name)}"
        declared.append(Field(field.name, label, kind, field.default is MISSING, default))
    cls.FIELDS = tuple(declared)
    cls.MANDATORY = tuple(field for field in declared if field.mandatory)
    BY_CODE[cls.CODE] = cls
    BY_NAME[f"amqp:{cls.NAME}:list"] = cls
    WRITERS[cls] = encode_composite
    return cls


def encode_composite(value: Composite, depth: int) -> bytes:
    if depth >= MAX_VALUE_DEPTH:
        raise encoders.too_deep()
    parts = []
    for name, label, kind, mandatory, default in value.FIELDS:
        item = getattr(value, name)
        if item is None:
            if mandatory:
                raise EncodeError(f"{label} is mandatory")
            parts.append(default)
            continue
        try:
            parts.append(kind.write(item, depth + 2))
        except EncodeError as error:
            raise EncodeError(f"{label} must be {kind.name}: {error.description}") from error
        except encoders.FAILURES as error:
            raise EncodeError(f"{label} must be {kind.name}, not a {type(item).__name__}") from error
    if value.TRIMMED:
        while parts and parts[-1] == NULL:
            parts.pop()
    descriptor = b"\x00\x53" + bytes((value.CODE,))
    if not parts:
        return descriptor + b"\x45"
    body = b"".join(parts)
    if len(body) < 255:
        return descriptor + b"\xc0" + encoders.narrow_body(len(parts), body)
    return descriptor + b"\xd0" + encoders.wide_body(len(parts), body)


def decode_composite(data: bytes, offset: int = 0) -> tuple[Any, int]:
    """Return the described value at `offset`, and the offset after it. Unknown types are returned as `Described`."""
    try:
        if data[offset] != 0x00:
            raise DecodeError("a described value is expected")
        return read_described(data, offset + 1, 0, decoders.new_budget())
    except decoders.FAILURES as error:
        raise decoders.failure(error) from None


def read_described(data: bytes, offset: int, depth: int, budget: Budget) -> tuple[Any, int]:
    """Read a described value, as `decoders.described` does, but return a known composite as its class."""
    if depth >= MAX_VALUE_DEPTH:
        raise decoders.too_deep()
    if data[offset] == 0x53:
        cls = BY_CODE.get(data[offset + 1])
        if cls is not None:
            return read_fields(cls, data, offset + 2, depth, budget)
    descriptor, offset = READERS[data[offset]](data, offset + 1, depth + 1, budget)
    cls = class_of(descriptor)
    if cls is not None:
        return read_fields(cls, data, offset, depth, budget)
    value, offset = READERS[data[offset]](data, offset + 1, depth + 1, budget)
    return Described(descriptor, value), offset


def class_of(descriptor: Any) -> type[Composite] | None:
    if isinstance(descriptor, ULong):
        return BY_CODE.get(descriptor)
    return BY_NAME.get(descriptor) if isinstance(descriptor, Symbol) else None


def read_fields(cls: type[Composite], data: bytes, offset: int, depth: int, budget: Budget) -> tuple[Composite, int]:
    """Read the list after the descriptor of a composite."""
    code = data[offset]
    offset += 1
    if code == 0x45:
        count, end = 0, offset
    elif code in (0xC0, 0xD0):
        count, offset, end = compound_header(code, data, offset)
    else:
        raise DecodeError(f"{cls.NAME} must be a list")
    if count > len(cls.FIELDS):
        raise DecodeError(f"{cls.NAME} has {len(cls.FIELDS)} fields, not {count}")
    depth += 2
    values = {}
    for field in cls.FIELDS[:count]:
        code = data[offset]
        offset += 1
        if code == NULL_CODE:
            continue
        reader = field.type.readers.get(code)
        if reader is None:
            raise must_be(field)
        try:
            values[field.name], offset = reader(data, offset, depth, budget)
        except NotAllowedHere:
            raise must_be(field) from None
    if offset != end:
        raise decoders.wrong_size(cls.NAME)
    for field in cls.MANDATORY:
        if field.name not in values:
            raise DecodeError(f"{field.label} is mandatory")
    return cls(**values), offset


class NotAllowedHere(Exception):
    """The constructor of a value is allowed, but the field does not allow the value."""


def must_be(field: Field) -> DecodeError:
    return DecodeError(f"{field.label} must be {field.type.name}")


def one_of(kind: FieldType, *allowed: Any) -> FieldType:
    """Return a type that is restricted to some values (1.3, `choice`)."""

    def restricted(reader: Reader) -> Reader:
        def read(data: bytes, offset: int, depth: int, budget: Budget) -> tuple[Any, int]:
            value, offset = reader(data, offset, depth, budget)
            if value not in allowed:
                raise NotAllowedHere
            return value, offset

        return read

    name = f"{kind.name}, one of {', '.join(map(str, allowed))}"
    return FieldType(name, {code: restricted(reader) for code, reader in kind.readers.items()}, kind.write)


def described_as(name: str, *kinds: type[Composite]) -> FieldType:
    """Return a type for fields that have one of these composites. Without `kinds`, it allows any described value."""

    def read(data: bytes, offset: int, depth: int, budget: Budget) -> tuple[Any, int]:
        value, offset = read_described(data, offset, depth, budget)
        if kinds and not isinstance(value, kinds):
            raise NotAllowedHere
        return value, offset

    def write(value: Any, depth: int) -> bytes:
        if not isinstance(value, kinds or (Composite, Described)):
            raise TypeError
        return encoders.write_value(value, depth)

    return FieldType(name, {0x00: read}, write)


def typed(*codes: int) -> dict[int, Reader]:
    return {code: READERS[code] for code in codes}


def read_one_symbol(reader: Reader) -> Reader:
    def read(data: bytes, offset: int, depth: int, budget: Budget) -> tuple[Any, int]:
        value, offset = reader(data, offset, depth, budget)
        return [value], offset

    return read


def read_symbols(reader: Reader) -> Reader:
    def read(data: bytes, offset: int, depth: int, budget: Budget) -> tuple[Any, int]:
        values, offset = reader(data, offset, depth, budget)
        if values.element not in (Symbol, str):
            raise NotAllowedHere
        return [str(value) for value in values], offset

    return read


def write_symbols(value: Any, depth: int) -> bytes:
    if isinstance(value, str):
        raise TypeError
    return write_array(Array(value, Symbol), depth)


def write_symbol_keys(value: Any, depth: int) -> bytes:
    """Write a map whose keys are symbols (2.8.14, 3.2.10); plain string keys are written as symbols."""
    keyed = {Symbol(key) if isinstance(key, str) else key: item for key, item in value.items()}
    return encoders.write_map(keyed, depth)


def write_id(value: Any, depth: int) -> bytes:
    """Write a message id (3.2.11 to 3.2.14): ulong, uuid, binary or string."""
    return encoders.write_value(ULong(value) if type(value) is int else value, depth)


# Old peers send strings instead of symbols, and symbols instead of strings. So each field accepts both.
TEXT = {
    0xA1: binary(decoders.text, False, "string"),
    0xB1: binary(decoders.text, True, "string"),
    0xA3: binary(decoders.ascii_text, False, "symbol"),
    0xB3: binary(decoders.ascii_text, True, "symbol"),
}

BOOLEAN = FieldType("a boolean", typed(0x41, 0x42, 0x56), encoders.write_boolean)
UBYTE = FieldType("a ubyte", {0x50: plain(">B")}, encoders.write_ubyte)
USHORT = FieldType("a ushort", {0x60: plain(">H")}, encoders.write_ushort)
UINT = FieldType("a uint", {0x43: constant(0), 0x52: plain(">B"), 0x70: plain(">I")}, encoders.write_uint)
ULONG = FieldType("a ulong", {0x44: constant(0), 0x53: plain(">B"), 0x80: plain(">Q")}, encoders.write_ulong)
TIMESTAMP = FieldType("a timestamp", {0x83: plain(">q")}, encoders.write_timestamp)
BINARY = FieldType("a binary", typed(0xA0, 0xB0), encoders.write_binary)
STRING = FieldType("a string", TEXT, encoders.write_string)
SYMBOL = FieldType("a symbol", TEXT, encoders.write_symbol)
SYMBOLS = FieldType(
    "a symbol or an array of symbols",
    {code: read_one_symbol(reader) for code, reader in TEXT.items()}
    | {code: read_symbols(READERS[code]) for code in (0xE0, 0xF0)},
    write_symbols,
)
MAP = FieldType("a map", typed(0xC1, 0xD1), encoders.write_map)
SYMBOL_MAP = FieldType("a map", typed(0xC1, 0xD1), write_symbol_keys)
MESSAGE_ID = FieldType(
    "a ulong, a uuid, a binary or a string",
    typed(0x44, 0x53, 0x80, 0x98, 0xA0, 0xB0) | TEXT,
    write_id,
)
DELIVERY_STATE = described_as("a delivery state")
