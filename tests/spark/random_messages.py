"""Random messages with values of all types, with heads of the broker and others; and invalid messages."""

from __future__ import annotations

import math
from random import Random
from typing import Any
from uuid import UUID

from peeklock.amqp.encoders import FAILURES
from peeklock.amqp.errors import EncodeError
from peeklock.amqp.types import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from peeklock.broker.heads import head
from peeklock.client import Header, Message, Properties
from peeklock.store.base import StoredMessage

ENQUEUED = 1_893_456_000_000
TEXTS = (
    "",
    "a",
    "snow ☃",
    'quote"',
    "back\\slash",
    "line\n",
    "🎉",
    "\x7f",
    "\x00",
    "x" * 14,
    "y" * 16,
    "z" * 255,
    "w" * 256,
)
RESERVED = ("peeklock-claim", "DeadLetterReason", "DeadLetterErrorDescription")
FAR = (1 << 62, -(1 << 63), (1 << 63) - 1, 253_402_300_799_999, 253_402_300_800_000)


class RandomMessages:
    """Make messages, the same ones for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._number = 0

    def payload(self) -> bytes:
        """Make a valid message; half of them have a head as the broker writes it."""
        while True:
            try:
                return self._broker_head() + self._bare() if self._often() else self._foreign_head() + self._bare()
            except (EncodeError, *FAILURES):  # two keys that are equal, and the like
                continue

    def broken(self) -> bytes:
        random, payload = self._random, bytearray(self.payload())
        at, size = random.randrange(len(payload)), random.randint(1, 5)
        match random.randrange(6):
            case 0:
                del payload[at:]
            case 1:
                payload[at] ^= 1 << random.randrange(8)
            case 2:
                payload[at:at] = random.randbytes(size)
            case 3:
                del payload[at : at + size]
            case 4:
                payload[random.randrange(min(200, len(payload)))] = random.choice(
                    (0, 0x40, 0x53, 0xA1, 0xB0, 0xC1, 0xFF)
                )
            case _:
                payload += self.payload()
        return bytes(payload)

    def count(self, most: int) -> int:
        return self._random.randint(1, most)

    def some(self, names: list[str]) -> list[str]:
        return self._random.sample(names, self._random.randint(1, 6))

    def _often(self, share: float = 0.5) -> bool:
        return self._random.random() < share

    def _broker_head(self) -> bytes:
        random = self._random
        self._number += 1
        stored = StoredMessage(
            sequence_number=self._number,
            enqueued_at=ENQUEUED + self._number,
            payload=b"",
            delivery_count=random.choice((0, 0, 0, 3, 255, 256)),
            expires_at=random.choice((None, None, ENQUEUED + 60_000)),
            state=random.choice((0, 0, 0, 1, 2)),
        )
        return head(stored, None, with_state=self._often(0.7), is_copy=self._often(0.3))

    def _foreign_head(self) -> bytes:
        random = self._random
        self._number += 1
        marks: dict[Any, Any] = {
            Symbol("x-opt-sequence-number"): random.choice((self._number, ULong(self._number), Int(self._number))),
            Symbol("x-opt-enqueued-time"): Timestamp(random.choice((ENQUEUED, ENQUEUED, *FAR))),
            Symbol("x-opt-enqueue-sequence-number"): self._number + 1,
            Symbol("x-opt-message-state"): Int(random.choice((0, 1, 2, 3))),
            Symbol("x-opt-scheduled-enqueue-time"): random.choice((Timestamp(5), Timestamp(FAR[0]), "soon", None, 1.5)),
            Symbol("x-opt-partition-key"): self._scalar(),
            Symbol("x-opt-deadletter-source"): self._text(),
            Symbol("x-other"): self._value(),
        }
        chosen = dict(random.sample(list(marks.items()), random.randint(0, len(marks))))
        header = Header(ttl=self._maybe(UInt(60_000)), delivery_count=UInt(random.choice((0, 1, 300, (1 << 32) - 1))))
        return Message(header=self._maybe(header), message_annotations=self._maybe(chosen, 0.9)).encode()

    def _bare(self) -> bytes:
        random = self._random
        body: dict[str, Any] = {}
        match random.randrange(8):
            case 0:
                body["value"] = self._value()
            case 1:
                body["sequences"] = [
                    [self._value() for _ in range(random.randrange(3))] for _ in range(random.randint(1, 2))
                ]
            case 2:
                pass
            case _:
                sizes = random.choice(((1,), (0,), (255,), (256,), (1000,), (1, 2), (0, 0), (3, 0, 300)))
                body["data"] = [random.randbytes(size) for size in sizes]
        properties = Properties(
            message_id=self._id(),
            user_id=self._maybe(b"u"),
            to=self._maybe(self._text()),
            subject=self._maybe(self._text()),
            reply_to=self._maybe(self._text()),
            correlation_id=self._id(),
            content_type=self._maybe(Symbol("text/plain")),
            absolute_expiry_time=self._maybe(Timestamp(random.choice((0, ENQUEUED, FAR[0]))), 0.2),
            creation_time=self._maybe(Timestamp(5), 0.2),
            group_id=self._maybe(self._text()),
            group_sequence=self._maybe(UInt(7)),
            reply_to_group_id=self._maybe(self._text()),
        )
        application = {self._key(): self._value() for _ in range(random.choice((0, 1, 3, 5, 40)))}
        return Message(
            properties=self._maybe(properties, 0.8),
            application_properties=self._maybe(application, 0.8),
            footer=self._maybe({Symbol("f"): 1}, 0.1),
            **body,
        ).encode()

    def _maybe(self, value: Any, share: float = 0.5) -> Any:
        return value if self._often(share) else None

    def _text(self) -> str:
        return self._random.choice(TEXTS)

    def _id(self) -> Any:
        return self._random.choice((None, self._text(), self._text(), ULong(7), UUID(int=1), b"\x01\xff"))

    def _key(self) -> Any:
        random = self._random
        name = f"key {random.randrange(20)}"
        return random.choice((name, name, self._text(), Symbol("symbol"), random.choice(RESERVED), 5, True, Int(5)))

    def _scalar(self) -> Any:
        random = self._random
        return random.choice(
            (
                None,
                True,
                False,
                UByte(random.randrange(256)),
                UShort(random.randrange(1 << 16)),
                UInt(random.choice((0, 5, 255, 256, (1 << 32) - 1))),
                ULong(random.choice((0, 5, 255, 256, (1 << 64) - 1))),
                Byte(random.randint(-128, 127)),
                Short(random.randint(-(1 << 15), (1 << 15) - 1)),
                Int(random.choice((-(1 << 31), -129, -128, 0, 127, 128, (1 << 31) - 1))),
                random.choice((-(1 << 63), -129, -128, 0, 127, 128, (1 << 63) - 1)),
                Float(1.5),
                random.choice((0.1, math.inf, -0.0)),
                Decimal32(random.randbytes(4)),
                Decimal64(random.randbytes(8)),
                Decimal128(random.randbytes(16)),
                Char(random.choice("aé☃🎉")),
                Timestamp(random.choice((0, -1, ENQUEUED, *FAR))),
                UUID(int=random.getrandbits(128)),
                random.randbytes(random.choice((0, 5, 300))),
                Symbol("s" * random.choice((0, 3, 300))),
                *(self._text() for _ in range(12)),
            )
        )

    def _value(self, depth: int = 0) -> Any:
        random = self._random
        if depth == 3 or self._often(0.85):
            return self._scalar()
        return random.choice(
            (
                [self._value(depth + 1) for _ in range(random.randrange(4))],
                {f"k{each}": self._value(depth + 1) for each in range(random.randrange(4))},
                Array([1, 2], int),
                Described(Symbol("d"), self._value(depth + 1)),
            )
        )
