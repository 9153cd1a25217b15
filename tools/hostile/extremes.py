"""Encoded values of every AMQP type at its extremes, and invalid values, by name.

They are encoded by hand, because Peeklock's encoders would refuse to write many of them.
"""

from __future__ import annotations

import struct
from typing import Final

_DEEP: Final = 70
"""A depth of nesting that the decoder refuses."""


def sized(code: int, data: bytes) -> bytes:
    """Encode a binary, string or symbol, with a length of one or four bytes, depending on the code."""
    return bytes((code,)) + (struct.pack(">I", len(data)) if code & 0x10 else bytes((len(data),))) + data


def compound(code: int, count: int, body: bytes) -> bytes:
    """Encode a list, map or array with this element count, which may be wrong."""
    return bytes((code,)) + struct.pack(">II", 4 + len(body), count) + body


def listed(*values: bytes) -> bytes:
    return compound(0xD0, len(values), b"".join(values))


def mapped(*values: bytes) -> bytes:
    return compound(0xD1, len(values), b"".join(values))


def string(text: str) -> bytes:
    return sized(0xB1, text.encode())


def symbol(text: str) -> bytes:
    return sized(0xB3, text.encode())


def _nested(depth: int) -> bytes:
    value = b"\x40"
    for _ in range(depth):
        value = listed(value)
    return value


VALUES: Final[dict[str, bytes]] = {
    "null": b"\x40",
    "true": b"\x41",
    "false": b"\x42",
    "boolean of a byte": b"\x56\x01",
    "boolean of 2": b"\x56\x02",
    "ubyte 0": b"\x50\x00",
    "ubyte 4": b"\x50\x04",
    "ubyte 255": b"\x50\xff",
    "ushort 65535": b"\x60\xff\xff",
    "uint 0": b"\x43",
    "uint 255": b"\x52\xff",
    "uint 2^31": b"\x70\x80\x00\x00\x00",
    "uint 2^32-1": b"\x70\xff\xff\xff\xff",
    "ulong 0": b"\x44",
    "ulong 1": b"\x53\x01",
    "ulong 2^44": b"\x80" + struct.pack(">Q", 1 << 44),
    "ulong 2^63-1": b"\x80" + struct.pack(">Q", (1 << 63) - 1),
    "ulong 2^63": b"\x80" + struct.pack(">Q", 1 << 63),
    "ulong 2^64-1": b"\x80" + b"\xff" * 8,
    "byte -128": b"\x51\x80",
    "byte 127": b"\x51\x7f",
    "short -32768": b"\x61\x80\x00",
    "int -2^31": b"\x71\x80\x00\x00\x00",
    "int 2^31-1": b"\x71\x7f\xff\xff\xff",
    "int -1": b"\x54\xff",
    "long -2^63": b"\x81" + struct.pack(">q", -(1 << 63)),
    "long 2^63-1": b"\x81" + struct.pack(">q", (1 << 63) - 1),
    "long -1": b"\x55\xff",
    "float 1.5": b"\x72" + struct.pack(">f", 1.5),
    "float nan": b"\x72" + struct.pack(">f", float("nan")),
    "float -infinity": b"\x72" + struct.pack(">f", float("-inf")),
    "float largest": b"\x72\x7f\x7f\xff\xff",
    "double -0": b"\x82" + struct.pack(">d", -0.0),
    "double nan": b"\x82" + struct.pack(">d", float("nan")),
    "double signalling nan": b"\x82\x7f\xf0\x00\x00\x00\x00\x00\x01",
    "double infinity": b"\x82" + struct.pack(">d", float("inf")),
    "double largest": b"\x82" + struct.pack(">d", 1.7976931348623157e308),
    "double smallest": b"\x82" + struct.pack(">d", 5e-324),
    "decimal32 0": b"\x74" + bytes(4),
    "decimal32 nan": b"\x74" + b"\xff" * 4,
    "decimal64 infinity": b"\x84\x78" + bytes(7),
    "decimal64 largest": b"\x84\x77\xfb\x86\xf2\x6f\xc0\xff\xff",
    "decimal128 largest": b"\x94\x5f\xff\xed\x09\xbe\xad\x87\xc0\x37\x8d\x8e\x63\xff\xff\xff\xff",
    "decimal128 ones": b"\x94" + b"\x6f" * 16,
    "char a": b"\x73\x00\x00\x00\x61",
    "char 0": b"\x73" + bytes(4),
    "char surrogate": b"\x73\x00\x00\xd8\x00",
    "char beyond unicode": b"\x73\x00\x11\x00\x00",
    "char 2^32-1": b"\x73\xff\xff\xff\xff",
    "timestamp 0": b"\x83" + bytes(8),
    "timestamp -1": b"\x83" + b"\xff" * 8,
    "timestamp -2^63": b"\x83" + struct.pack(">q", -(1 << 63)),
    "timestamp 2^63-1": b"\x83" + struct.pack(">q", (1 << 63) - 1),
    "timestamp in the year 9999": b"\x83" + struct.pack(">q", 253_402_300_799_999),
    "timestamp in the year 10000": b"\x83" + struct.pack(">q", 253_402_300_800_000),
    "uuid": b"\x98" + b"\xff" * 16,
    "binary of nothing": b"\xa0\x00",
    "binary that is no text": b"\xa0\x03\xff\x00\x80",
    "binary of 70000": sized(0xB0, b"\xff" * 70_000),
    "string of nothing": b"\xa1\x00",
    "string": b"\xa1\x01s",
    "string of a number": b"\xa1\x0212",
    "string with nul": b"\xa1\x03a\x00b",
    "string beyond the first plane": sized(0xA1, "\U0001f600\U0010ffff".encode()),
    "string of 129": sized(0xA1, b"x" * 129),
    "string of 70000": sized(0xB1, b"x" * 70_000),
    "string of a surrogate": b"\xa1\x03\xed\xa0\x80",
    "string too long for its characters": b"\xa1\x02\xc0\x80",
    "string cut within a character": b"\xa1\x02\xe2\x82",
    "symbol of nothing": b"\xa3\x00",
    "symbol": b"\xa3\x01s",
    "symbol with nul": b"\xa3\x03a\x00b",
    "symbol that is not ascii": b"\xa3\x02\xc3\xbc",
    "symbol of 70000": sized(0xB3, b"s" * 70_000),
    "list of nothing": b"\x45",
    "list of nothing, with a size": b"\xc0\x01\x00",
    "list": listed(b"\x41", b"\xa1\x01s", b"\x45"),
    "list of 65536": compound(0xD0, 65536, b"\x40" * 65536),
    "list of 65537": compound(0xD0, 65537, b"\x40" * 65537),
    "list nested as deep as may be": _nested(50),
    "list nested too deep": _nested(_DEEP),
    "list of what is no value": listed(b"\xff"),
    "list with a size that is too large": compound(0xD0, 0xFFFFFFFF, b"\x40"),
    "list that does not fill its size": compound(0xD0, 1, b"\x40\x40\x40"),
    "map of nothing": b"\xc1\x01\x00",
    "map": mapped(b"\xa1\x01k", b"\x53\x01"),
    "map by symbol": mapped(b"\xa3\x01k", b"\x83" + struct.pack(">q", 1 << 62)),
    "map of null": mapped(b"\x40", b"\x40"),
    "map of nan": mapped(b"\x82" + struct.pack(">d", float("nan")), b"\x40"),
    "map of a list": mapped(b"\x45", b"\x40"),
    "map of the same twice": mapped(b"\xa1\x01k", b"\x40", b"\xa1\x01k", b"\x41"),
    "map of a key without a value": compound(0xD1, 1, b"\xa1\x01k"),
    "map of a char that is none": mapped(b"\xa1\x01k", b"\x73\x00\x00\xd8\x00"),
    "array of nothing": compound(0xF0, 0, b"\x40"),
    "array of nulls": compound(0xF0, 3, b"\x40"),
    "array of longs": compound(0xF0, 2, b"\x81" + struct.pack(">qq", -(1 << 63), (1 << 63) - 1)),
    "array of ulongs": compound(0xF0, 1, b"\x80" + b"\xff" * 8),
    "array of uuids": compound(0xF0, 1, b"\x98" + bytes(16)),
    "array of strings": compound(0xF0, 2, b"\xa1\x01a\x01b"),
    "array of symbols": compound(0xF0, 2, b"\xa3\x01a\x01b"),
    "array of lists": compound(0xF0, 2, b"\xc0\x01\x00\x01\x00"),
    "array of maps": compound(0xF0, 1, b"\xc1\x01\x00"),
    "array of 2^32-1 nulls": compound(0xF0, 0xFFFFFFFF, b"\x40"),
    "array of described values": compound(0xF0, 1, b"\x00\x53\x01\x50\x01"),
    "array of arrays": compound(0xF0, 1, b"\xe0\x02\x00\x40"),
    "described by a number": b"\x00\x53\x01\xa1\x01s",
    "described by a symbol": b"\x00\xa3\x01d\x83" + b"\x7f" * 8,
    "described by null": b"\x00\x40\x40",
    "described by a list": b"\x00\x45\x45",
    "described by a map": b"\x00\xc1\x01\x00\xc1\x01\x00",
    "described by what is described": b"\x00\x00\x53\x01\x53\x01\x40",
    "described nine times": b"\x00\x53\x01" * 9 + b"\x40",
    "described too often": b"\x00\x53\x01" * _DEEP + b"\x40",
    "timespan": b"\x00" + symbol("com.microsoft:timespan") + b"\x81" + struct.pack(">q", -(1 << 63)),
    "moment": b"\x00" + symbol("com.microsoft:datetime-offset") + b"\x81" + struct.pack(">q", (1 << 63) - 1),
    "timespan of text": b"\x00" + symbol("com.microsoft:timespan") + b"\xa1\x01s",
    "outcome": b"\x00\x53\x24\x45",
    "outcome with too many fields": b"\x00\x53\x24" + listed(b"\x40", b"\x40"),
    "no value": b"\xff",
    "string that ends behind its container": b"\xa1\xffx",
    "list that ends behind its container": b"\xd0\x7f\xff\xff\xff\x00\x00\x00\x01\x40",
    "nothing": b"",
}
