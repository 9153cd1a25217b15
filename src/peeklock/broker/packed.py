"""Messages by their numbers, many at once, as one run of bytes: for a client that reads what it has claimed.

Large runs are read as ranges of the store, small ones together as numbers, until there are enough bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from peeklock.broker.claim_records import Span
from peeklock.broker.errors import BrokerError
from peeklock.broker.heads import head
from peeklock.broker.reading import unreadable
from peeklock.store.base import Range, Store, StoredMessage, StoreError

STRETCH: Final = 64
"""So many numbers are read as a range."""
NUMBERS_AT_ONCE: Final = 2048
_NO_LIMIT: Final = 1 << 40

PackedRead = Callable[[list[StoredMessage] | BrokerError, int], None]
"""Messages in order, and the number through which they are all that there is; the rest is to be asked for again."""


class PackedHost(Protocol):
    """The entity."""

    @property
    def id(self) -> int: ...

    def state_of(self, span: Span) -> int | None:
        """The state of all messages between these numbers; None if it is not known."""
        ...

    def is_leaving(self, number: int) -> bool:
        """Whether a commit is on its way that removes that message."""
        ...


def read_packed(
    host: PackedHost,
    store: Store,
    call_soon: Callable[[Callable[[], None]], object],
    spans: Sequence[Span],
    max_bytes: int,
    done: PackedRead,
) -> None:
    """The messages with these numbers that are there, in any state; `spans` are ascending and not empty."""
    messages: list[StoredMessage] = []
    room = max_bytes

    def read_from(at: int) -> None:
        first, last = spans[at]
        if last - first >= STRETCH - 1:
            wanted = Range(
                entity=host.id,
                after=first - 1,
                through=last,
                limit=_NO_LIMIT,
                max_bytes=room,
                state=host.state_of((first, last)),
            )
            store.read(wanted, partial(found, at + 1, last))
            return
        numbers: list[int] = []
        while at < len(spans) and len(numbers) < NUMBERS_AT_ONCE:
            first, last = spans[at]
            if last - first >= STRETCH - 1:
                break
            numbers += range(first, last + 1)
            at += 1
        store.read_numbers(host.id, numbers, room, partial(found, at, numbers[-1]))

    def found(at: int, last: int, answer: list[StoredMessage] | StoreError) -> None:
        nonlocal room
        if isinstance(answer, StoreError):
            done(unreadable(answer), 0)
            return
        messages.extend(message for message in answer if not host.is_leaving(message.sequence_number))
        room -= sum(message.read_size for message in answer)
        if room <= 0:
            done(messages, answer[-1].sequence_number)
        elif at >= len(spans):
            done(messages, last)
        else:
            # Not at once: a store may answer in the same turn, and there may be many spans.
            call_soon(partial(read_from, at))

    read_from(0)


_pack_length: Final = struct.Struct(">I").pack


def pack(messages: Sequence[StoredMessage], are_copies: bool) -> bytes:
    """Each as it is peeked, after its length in four bytes."""
    parts: list[bytes] = []
    for message in messages:
        front = head(message, None, None, True, are_copies)
        parts += (_pack_length(len(front) + message.size), front, message.payload)
        if message.body is not None:
            parts.append(message.body.data)
    return b"".join(parts)
