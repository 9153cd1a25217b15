"""Declares the keys of requests and responses of `$management`, and checks the values of requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final
from uuid import UUID

from peeklock.amqp.types import Array, Described, ULong
from peeklock.broker.errors import InvalidProperty
from peeklock.limits.amqp import MAX_FIELD_ITEMS

MAX_SKIP: Final = (1 << 31) - 1
"""The highest value of the AMQP type int, which `skip` has in requests and responses."""


class Kind(Enum):
    """The type of a value, with its name in the documentation."""

    STRING = "string"
    INT = "int"
    LONG = "long"
    UBYTE = "ubyte"
    BOOLEAN = "boolean"
    BINARY = "binary"
    TIMESTAMP = "timestamp"
    UUID = "uuid"
    ULONG = "ulong"
    MAP = "map"
    UUIDS = "array of uuid"
    LONGS = "array of long"
    MAPS = "list of map"
    DESCRIBED = "described list"
    STRINGS = "array of string"
    TIMESTAMPS = "array of timestamp"


def _is_integer(value: Any) -> bool:
    """Return whether the value is an integer that fits a long. SDKs differ in the width that they send."""
    return isinstance(value, int) and not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63


_FITS: dict[Kind, Callable[[Any], bool]] = {
    Kind.STRING: lambda value: isinstance(value, str),
    Kind.INT: _is_integer,
    Kind.LONG: _is_integer,
    Kind.UBYTE: _is_integer,
    Kind.BOOLEAN: lambda value: isinstance(value, bool),
    Kind.BINARY: lambda value: isinstance(value, bytes),
    Kind.UUID: lambda value: isinstance(value, UUID),
    Kind.ULONG: lambda value: _is_integer(value) or isinstance(value, ULong),
    Kind.TIMESTAMP: _is_integer,
    Kind.MAP: lambda value: isinstance(value, dict),
    Kind.UUIDS: lambda value: isinstance(value, list) and all(isinstance(item, UUID) for item in value),
    Kind.LONGS: lambda value: isinstance(value, list) and all(_is_integer(item) for item in value),
    Kind.MAPS: lambda value: isinstance(value, list) and all(isinstance(item, dict) for item in value),
}
"""Functions that check the types of a request's values. Integers of any width are accepted."""


@dataclass(frozen=True, slots=True)
class Field:
    """One key of a request or a response."""

    name: str
    kind: Kind
    required: bool = True
    note: str = ""
    keys: tuple[Field, ...] = ()
    """The keys of a map, or of each map in a list."""
    or_described: bool = False
    """Whether a described list is accepted in place of the map. The operation checks its items."""
    also: tuple[Kind, ...] = ()
    """Other types that are accepted."""
    or_utf8: bool = False
    """Whether a string may be binary with UTF-8. The Python SDK sends strings that it received in that form."""

    @property
    def types(self) -> str:
        """All accepted types, for documentation and errors."""
        *others, last = (kind.value for kind in (self.kind, *self.also))
        return f"{', '.join(others)} or {last}" if others else last

    def check(self, value: Any) -> Any:
        """Return the value, converted if necessary. Raise InvalidProperty if it is missing or has a wrong type."""
        if value is None:
            if self.required:
                raise InvalidProperty(f"The request has no '{self.name}' ({self.kind.value}).")
            return None
        if self.or_described and isinstance(value, Described):
            return value
        if isinstance(value, Array):
            value = list(value)
        elif isinstance(value, str):
            value = str(value)  # a symbol is accepted too
        elif self.or_utf8 and type(value) is bytes:
            try:
                value = value.decode()
            except UnicodeDecodeError:
                raise InvalidProperty(f"'{self.name}' is binary and not valid UTF-8: send a string.") from None
        if not any(_FITS[kind](value) for kind in (self.kind, *self.also)):
            raise InvalidProperty(f"'{self.name}' must be {_article(self.types)}.")
        if isinstance(value, list):
            if not value:
                raise InvalidProperty(f"'{self.name}' is empty.")
            if len(value) > MAX_FIELD_ITEMS:
                raise InvalidProperty(f"'{self.name}' has {len(value)} items; at most {MAX_FIELD_ITEMS} are allowed.")
        return value


def _article(words: str) -> str:
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def check_keys(fields: tuple[Field, ...], given: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the values of a map by key, None for missing ones. Raise InvalidProperty if a value is wrong."""
    return {field.name: field.check(given.get(field.name)) for field in fields}


def check_page(arguments: dict[str, Any], most: int) -> tuple[int, int]:
    """Return `skip` and `top` of a request for one page of a listing. `top` is reduced to `most`."""
    skip, top = arguments["skip"], arguments["top"]
    if not 0 <= skip <= MAX_SKIP:
        raise InvalidProperty(f"'skip' must be between 0 and {MAX_SKIP}.")
    if top < 1:
        raise InvalidProperty("'top' must be at least 1.")
    return skip, min(top, most)
