"""Python values for the AMQP 1.0 types (part 1, section 1.6).

What Python has is used as it is: None is null, bool boolean, int long, float double, bytes binary, str
string, uuid.UUID uuid, list list and dict map. The classes here stand for the rest. They are the plain Python
values under another name, so they compare and hash as those, and nothing is checked on construction: whether
a number fits its type is asked when it is encoded.
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
    """Unix milliseconds; never a datetime, since clients send times that datetime cannot hold."""

    __slots__ = ()


class Float(float):
    """32 bits on the wire; digits beyond that are lost there."""

    __slots__ = ()


class Char(str):
    """One Unicode code point."""

    __slots__ = ()


class Symbol(str):
    """ASCII, from a constrained domain; equal to the string of the same letters."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Symbol({super().__repr__()})"


class Decimal32(bytes):
    """An IEEE 754-2008 decimal of 4 bytes, as it came."""

    __slots__ = ()


class Decimal64(bytes):
    """An IEEE 754-2008 decimal of 8 bytes, as it came."""

    __slots__ = ()


class Decimal128(bytes):
    """An IEEE 754-2008 decimal of 16 bytes, as it came."""

    __slots__ = ()


class Described(NamedTuple):
    """A value with a descriptor, usually a ULong or a Symbol, that says how to read it."""

    descriptor: Any
    value: Any


class Encoded(bytes):
    """A value, or several, that somebody has encoded already: written as it is. Never what a decoder gives."""

    __slots__ = ()


class Array(list[Any]):
    """Values of one type, encoded with one constructor.

    `element` is the class of the elements (`UUID`, `Symbol`, `Array`, `type(None)`, ...); the elements of an
    array of `Symbol` may be given as plain str, those of `UInt` as plain int and so on. For an array of
    described values it is `Described(descriptor, class of the value)`, and so are the elements `Described`.
    """

    __slots__ = ("element",)

    def __init__(self, items: Iterable[Any] = (), element: Any = str) -> None:
        super().__init__(items)
        self.element = element

    def __repr__(self) -> str:
        name = self.element.__name__ if isinstance(self.element, type) else repr(self.element)
        return f"Array({super().__repr__()}, {name})"
