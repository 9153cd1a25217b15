"""Decodes application properties into text: the map column, and the two columns of dead letters.

Strings, numbers, booleans and nulls are cut out of the message. The codec decodes other values, and unusual or invalid
maps. This is one of the compiled modules.
"""

from __future__ import annotations

import json
from typing import Final

from peeklock.amqp.decoders import READERS, new_budget
from peeklock.amqp.errors import DecodeError
from peeklock.amqp.service_bus import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_REASON
from peeklock.spark.heads import encoded_text
from peeklock.spark.texts import plain_text, typed_text

CLAIM_PROPERTY: Final = "peeklock-claim"
"""The application property of a claimed message that has the claim name. Rows do not have it."""

_REASON: Final = DEAD_LETTER_REASON.encode()
_DESCRIPTION: Final = DEAD_LETTER_DESCRIPTION.encode()
_RESERVED: Final = frozenset((CLAIM_PROPERTY.encode(), _REASON, _DESCRIPTION))
_SHORTEST_RESERVED: Final = 2 + len(CLAIM_PROPERTY)
"""The size of the shortest reserved key, with the two bytes before it."""
_LONG_TEXT: Final = 0xB1
"""The constructor of a string of more than 255 bytes."""
_MOST_PAIRS: Final = 32
"""The most pairs of a map that is decoded here, as each key is compared with all others."""

# Constructor: the name of the type, the bytes of the value, and whether it has a sign.
_WHOLE: Final[dict[int, tuple[str, int, bool]]] = {
    0x43: ("uint", 0, False),
    0x44: ("ulong", 0, False),
    0x50: ("ubyte", 1, False),
    0x51: ("byte", 1, True),
    0x52: ("uint", 1, False),
    0x53: ("ulong", 1, False),
    0x54: ("int", 1, True),
    0x55: ("long", 1, True),
    0x60: ("ushort", 2, False),
    0x61: ("short", 2, True),
    0x70: ("uint", 4, False),
    0x71: ("int", 4, True),
    0x80: ("ulong", 8, False),
    0x81: ("long", 8, True),
}
_ESCAPED: Final = bytes(range(0x20)) + b'"\\'
"""The bytes that JSON requires to be escaped in a string."""


class PropertyMaps:
    """The columns of this section; a column that is not wanted is None.

    Senders often write the same properties into message after message. So each distinct section is decoded once, into
    an entry, and a row has the number of its entry. Entry 0 has no properties.

    `wants_map` selects the column of all properties, `wants_typed` the column of the values that are not text, with
    their types.
    """

    def __init__(
        self,
        count: int,
        wants_map: bool,
        wants_typed: bool,
        reasons: list[bytes | None] | None,
        descriptions: list[bytes | None] | None,
        is_typed: bool,
        checks: bool,
    ) -> None:
        self.entries: list[int] = [0] * count
        """The number of the entry of each row."""
        self.keys: list[bytes] = []
        """The keys of all entries, one entry after another."""
        self.values: list[bytes | None] = []
        self.sizes: list[int] | None = [0] if wants_map else None
        """The number of keys of each entry."""
        self.typed_keys: list[bytes] = []
        self.typed_values: list[bytes | None] = []
        self.typed_sizes: list[int] | None = [0] if wants_typed else None
        self.is_wanted = wants_map or wants_typed or reasons is not None or descriptions is not None
        self._reasons = reasons
        self._descriptions = descriptions
        self._is_typed = is_typed
        self._checks = checks
        self._count = 1
        """The number of entries."""
        self._known: dict[bytes, int] = {}
        """The entry of each section that `_read_map` has read."""
        self._reserved: dict[int, dict[bytes, bytes]] = {}
        """The reserved properties of the entries that have some, by entry."""

    def clear(self, row: int) -> None:
        self.entries[row] = 0

    def read(self, data: bytes, at: int, end: int, row: int) -> None:
        """Decode the section whose value is between `at` and `end`; of several in a message the last counts."""
        section = data[at:end]
        entry = self._known.get(section, 0)
        if not entry:
            if data[at] != 0xC1 or not self._read_map(data, at + 2, end):
                self._read_any_map(data, at, row)
                return
            self._known[section] = entry = self._count
            self._count += 1
        self.entries[row] = entry
        if self._reserved and entry in self._reserved:
            reserved = self._reserved[entry]
            if self._reasons is not None and _REASON in reserved:
                self._reasons[row] = reserved[_REASON]
            if self._descriptions is not None and _DESCRIPTION in reserved:
                self._descriptions[row] = reserved[_DESCRIPTION]

    def _read_map(self, data: bytes, at: int, end: int) -> bool:
        """Decode the pairs behind the count at `at` into a new entry; return False if one is unusual."""
        pairs = data[at] >> 1
        if data[at] & 1 or pairs > _MOST_PAIRS:
            return False
        keys: list[bytes] = []
        values: list[bytes | None] = []
        typed_keys: list[bytes] = []
        typed_values: list[bytes | None] = []
        reserved: dict[bytes, bytes] = {}
        typed_sizes = self.typed_sizes
        is_typed, checks = self._is_typed, self._checks
        i = at + 1
        text: bytes | None
        while i < end:
            if data[i] != 0xA1:
                return False
            behind = i + 2 + data[i + 1]
            key = data[i + 2 : behind]
            if checks:
                key.decode()
            if behind - i >= _SHORTEST_RESERVED and key in _RESERVED:
                if data[behind] != 0xA1 or key in reserved:
                    return False
                i = behind + 2 + data[behind + 1]
                reserved[key] = data[behind + 2 : i]
                if checks:
                    reserved[key].decode()
                continue
            if key in keys:
                return False
            keys.append(key)
            if data[behind] == 0xA1:
                i = behind + 2 + data[behind + 1]
                text = data[behind + 2 : i]
                if checks:
                    text.decode()
                if is_typed:
                    text = _quoted(text)
            else:
                text, i = _value(data, behind, end, is_typed)
                if typed_sizes is not None and data[behind] != _LONG_TEXT:
                    typed_keys.append(key)
                    typed_values.append(text if is_typed else _value(data, behind, end, True)[0])
            values.append(text)
        if i != end or len(keys) + len(reserved) != pairs:
            return False
        self._add(keys, values, typed_keys, typed_values)
        if reserved:
            self._reserved[self._count] = reserved
        return True

    def _add(
        self,
        keys: list[bytes],
        values: list[bytes | None],
        typed_keys: list[bytes],
        typed_values: list[bytes | None],
    ) -> None:
        sizes = self.sizes
        if sizes is not None:
            sizes.append(len(keys))
            self.keys += keys
            self.values += values
        sizes = self.typed_sizes
        if sizes is not None:
            sizes.append(len(typed_keys))
            self.typed_keys += typed_keys
            self.typed_values += typed_values

    def _read_any_map(self, data: bytes, at: int, row: int) -> None:
        value, _ = READERS[data[at]](data, at + 1, 1, new_budget())
        if not isinstance(value, dict):
            raise DecodeError("the application-properties section is not a map")
        value.pop(CLAIM_PROPERTY, None)
        if DEAD_LETTER_REASON in value:
            reason = encoded_text(value.pop(DEAD_LETTER_REASON))
            if self._reasons is not None:
                self._reasons[row] = reason
        if DEAD_LETTER_DESCRIPTION in value:
            description = encoded_text(value.pop(DEAD_LETTER_DESCRIPTION))
            if self._descriptions is not None:
                self._descriptions[row] = description
        texts: dict[bytes, bytes | None] = {}
        typed: dict[bytes, bytes | None] = {}
        for name, each in value.items():
            # If several names are equal as text, the last one counts, in both columns.
            key = str(plain_text(name)).encode()
            if self.sizes is not None:
                texts[key] = typed_text(each).encode() if self._is_typed else encoded_text(each)
            if self.typed_sizes is not None:
                typed.pop(key, None)
                if type(each) is not str:
                    typed[key] = typed_text(each).encode()
        self._add(list(texts), list(texts.values()), list(typed), list(typed.values()))
        self.entries[row] = self._count
        self._count += 1


def _value(data: bytes, at: int, end: int, is_typed: bool) -> tuple[bytes | None, int]:
    """Return the text of the value at `at`, and the offset behind it."""
    constructor = data[at]
    if constructor == 0x41:
        return b'{"boolean":true}' if is_typed else b"true", at + 1
    if constructor == 0x42:
        return b'{"boolean":false}' if is_typed else b"false", at + 1
    if constructor == 0x40:
        return b'{"null":null}' if is_typed else None, at + 1
    whole = _WHOLE.get(constructor)
    if whole is not None:
        name, width, is_signed = whole
        behind = at + 1 + width
        if behind <= end:
            number = str(int.from_bytes(data[at + 1 : behind], "big", signed=is_signed))
            return (f'{{"{name}":{number}}}' if is_typed else number).encode(), behind
    value, behind = READERS[constructor](data, at + 1, 2, new_budget())
    return (typed_text(value).encode() if is_typed else encoded_text(value)), behind


def _quoted(text: bytes) -> bytes:
    if len(text.translate(None, _ESCAPED)) == len(text):
        return b'{"string":"' + text + b'"}'
    return b'{"string":' + json.dumps(text.decode(), ensure_ascii=False).encode() + b"}"
