"""Decodes application properties into text: the map column, and the two columns of dead letters.

Strings, numbers, booleans and nulls are cut out of the message; any other value, and any map that is unusual or wrong,
is left to the codec. Compiled in a compiled Peeklock.
"""

from __future__ import annotations

import json
from typing import Final

from peeklock.amqp.decoders import READERS, new_budget
from peeklock.amqp.errors import DecodeError
from peeklock.spark.heads import encoded_text
from peeklock.spark.texts import plain_text, typed_text

CLAIM_PROPERTY: Final = "peeklock-claim"
"""The application property that marks a claimed message; no row shows it."""
REASON: Final = "DeadLetterReason"
DESCRIPTION: Final = "DeadLetterErrorDescription"

_REASON: Final = REASON.encode()
_DESCRIPTION: Final = DESCRIPTION.encode()
_RESERVED: Final = frozenset((CLAIM_PROPERTY.encode(), _REASON, _DESCRIPTION))
_SHORTEST_RESERVED: Final = 2 + len(CLAIM_PROPERTY)
"""With the two bytes in front of it."""
_LONG_TEXT: Final = 0xB1
"""The constructor of a string of more than 255 bytes."""
_MOST_PAIRS: Final = 32
"""Of a map whose keys are compared one by one."""

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
"""What JSON does not have in a string as it is."""


class PropertyMaps:
    """The columns of this section; a column that is not wanted is None.

    `count` is the number of rows where the map column is wanted, `typed_count` where the column is wanted that has the
    values that are no text, with their types.
    """

    def __init__(
        self,
        count: int | None,
        typed_count: int | None,
        reasons: list[bytes | None] | None,
        descriptions: list[bytes | None] | None,
        is_typed: bool,
        checks: bool,
    ) -> None:
        self.keys: list[bytes] = []
        """Of all rows, one behind the other."""
        self.values: list[bytes | None] = []
        self.sizes: list[int] | None = None if count is None else [0] * count
        """How many of them a row has."""
        self.typed_keys: list[bytes] = []
        self.typed_values: list[bytes | None] = []
        self.typed_sizes: list[int] | None = None if typed_count is None else [0] * typed_count
        self.is_wanted = not (count is None and typed_count is None and reasons is None and descriptions is None)
        self._reasons = reasons
        self._descriptions = descriptions
        self._is_typed = is_typed
        self._checks = checks
        # Senders often write the same properties into message after message.
        self._last = b""
        """The section that was read last, of those that `_read_map` reads; what follows is what it had."""
        self._last_keys: list[bytes] = []
        self._last_values: list[bytes | None] = []
        self._last_typed_keys: list[bytes] = []
        self._last_typed_values: list[bytes | None] = []
        self._last_reserved: dict[bytes, bytes] = {}

    def clear(self, row: int) -> None:
        """Drop the entries of a row, which must be the newest that has some."""
        sizes = self.sizes
        if sizes is not None and sizes[row]:
            kept = len(self.keys) - sizes[row]
            del self.keys[kept:]
            del self.values[kept:]
            sizes[row] = 0
        sizes = self.typed_sizes
        if sizes is not None and sizes[row]:
            kept = len(self.typed_keys) - sizes[row]
            del self.typed_keys[kept:]
            del self.typed_values[kept:]
            sizes[row] = 0

    def read(self, data: bytes, at: int, end: int, row: int) -> None:
        """Decode the section whose value is between `at` and `end`; of several in a message the last counts."""
        self.clear(row)
        section = data[at:end]
        if section == self._last:
            self._add_last(row)
        elif data[at] == 0xC1 and self._read_map(data, at + 2, end):
            self._last = section
            self._add_last(row)
        else:
            self._read_any_map(data, at, row)

    def _add_last(self, row: int) -> None:
        reserved = self._last_reserved
        if reserved:
            if self._reasons is not None and _REASON in reserved:
                self._reasons[row] = reserved[_REASON]
            if self._descriptions is not None and _DESCRIPTION in reserved:
                self._descriptions[row] = reserved[_DESCRIPTION]
        sizes = self.sizes
        if sizes is not None:
            keys = self._last_keys
            sizes[row] = len(keys)
            self.keys += keys
            self.values += self._last_values
        sizes = self.typed_sizes
        if sizes is not None:
            keys = self._last_typed_keys
            sizes[row] = len(keys)
            self.typed_keys += keys
            self.typed_values += self._last_typed_values

    def _read_map(self, data: bytes, at: int, end: int) -> bool:
        """Decode the entries behind the count at `at`; return False if one is unusual."""
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
        self._last_keys, self._last_values = keys, values
        self._last_typed_keys, self._last_typed_values = typed_keys, typed_values
        self._last_reserved = reserved
        return True

    def _read_any_map(self, data: bytes, at: int, row: int) -> None:
        value, _ = READERS[data[at]](data, at + 1, 1, new_budget())
        if not isinstance(value, dict):
            raise DecodeError("the application-properties section is not a map")
        value.pop(CLAIM_PROPERTY, None)
        if REASON in value:
            reason = encoded_text(value.pop(REASON))
            if self._reasons is not None:
                self._reasons[row] = reason
        if DESCRIPTION in value:
            description = encoded_text(value.pop(DESCRIPTION))
            if self._descriptions is not None:
                self._descriptions[row] = description
        sizes = self.sizes
        if sizes is not None:
            texts: dict[bytes, bytes | None] = {}
            for name, each in value.items():
                text = typed_text(each).encode() if self._is_typed else encoded_text(each)
                texts[str(plain_text(name)).encode()] = text
            sizes[row] = len(texts)
            self.keys += list(texts)
            self.values += list(texts.values())
        sizes = self.typed_sizes
        if sizes is not None:
            # Of names that are the same as text the last one counts, here as there.
            by_name = {str(plain_text(name)).encode(): each for name, each in value.items()}
            typed = {name: typed_text(each).encode() for name, each in by_name.items() if type(each) is not str}
            sizes[row] = len(typed)
            self.typed_keys += list(typed)
            self.typed_values += list(typed.values())


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
