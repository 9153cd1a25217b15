"""Python values for the AMQP 1.0 types (part 1, section 1.6).

Python's own types are used where they match: None is null, bool boolean, int long, float double, bytes binary,
str string, uuid.UUID uuid, list list and dict map. The classes in this module represent the other types. They are
subclasses of plain Python types, and compare and hash like them. The constructors check nothing: whether a number fits
its type is checked when it is encoded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple


class _Number(int):
    __slots__ = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({int(self)})"

    __str__ = int.__repr__


class UByte(_Number):
    __slots__ = ()


class UShort(_Number):
    __slots__ = ()


class UInt(_Number):
    __slots__ = ()


class ULong(_Number):
    __slots__ = ()


class Byte(_Number):
    __slots__ = ()


class Short(_Number):
    __slots__ = ()


class Int(_Number):
    __slots__ = ()


class Timestamp(_Number):
    """Unix milliseconds. It is not a datetime, because clients send times beyond the range of datetime."""

    __slots__ = ()


class Float(float):
    """A float of 32 bits. A value with more digits is rounded when it is encoded."""

    __slots__ = ()


class Char(str):
    """One Unicode code point."""

    __slots__ = ()


class Symbol(str):
    """ASCII text. It equals the string with the same characters."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Symbol({super().__repr__()})"


class Decimal32(bytes):
    """The 4 bytes of an IEEE 754-2008 decimal."""

    __slots__ = ()


class Decimal64(bytes):
    """The 8 bytes of an IEEE 754-2008 decimal."""

    __slots__ = ()


class Decimal128(bytes):
    """The 16 bytes of an IEEE 754-2008 decimal."""

    __slots__ = ()


class Described(NamedTuple):
    """A value with a descriptor, which defines its type. The descriptor is usually a ULong or a Symbol."""

    descriptor: Any
    value: Any


class Encoded(bytes):
    """One or several encoded values, which are written unchanged. Decoders never return this type."""

    __slots__ = ()


class Array(list[Any]):
    """Values of one type, which are encoded with one constructor.

    `element` is the class of the elements (`UUID`, `Symbol`, `Array`, `type(None)`, ...). The elements of an array of
    `Symbol` may be plain str, the elements of an array of `UInt` plain int, and so on. For an array of described
    values, `element` is `Described(descriptor, class of the value)`, and the elements are `Described`.
    """

    __slots__ = ("element",)

    def __init__(self, items: Iterable[Any] = (), element: Any = str) -> None:
        super().__init__(items)
        self.element = element

    def __repr__(self) -> str:
        name = self.element.__name__ if isinstance(self.element, type) else repr(self.element)
        return f"Array({super().__repr__()}, {name})"
