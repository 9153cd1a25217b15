"""Reads many messages by their numbers and joins them into one byte string, for a client that reads its claims.

Long spans are read as ranges of the store; short ones are read together as numbers. Reading stops at a size limit.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final, Protocol

from peeklock.broker.claim_records import Span
from peeklock.broker.errors import BrokerError
from peeklock.broker.heads import head
from peeklock.broker.reading import unreadable
from peeklock.store.base import Range, Store, StoredMessage, StoreError

STRETCH: Final = 64
"""A span of at least this many numbers is read as a range."""
NUMBERS_AT_ONCE: Final = 2048
"""The most numbers of short spans in one read."""
_NO_LIMIT: Final = 1 << 40

PackedRead = Callable[[list[StoredMessage] | BrokerError, int], None]
"""Called with messages in order, and the number up to which the answer is complete. The client asks again after it."""


class PackedHost(Protocol):
    """The entity."""

    @property
    def id(self) -> int: ...

    @property
    def leaving(self) -> Collection[int]:
        """The numbers of messages that are being removed."""
        ...

    def state_of(self, span: Span) -> int | None:
        """Return the state of all messages in the span; None if it is not known or differs."""
        ...


def read_packed(
    host: PackedHost,
    store: Store,
    call_soon: Callable[[Callable[[], None]], object],
    spans: Sequence[Span],
    max_bytes: int,
    done: PackedRead,
) -> None:
    """Read the messages in these spans, in any state. `spans` is ascending and not empty."""
    _Reading(host, store, call_soon, spans, max_bytes, done).read_from(0)


class _Reading:
    """One read. It is a class because closures that call each other are a reference cycle, which would keep the
    messages in memory until the garbage collector runs."""

    def __init__(
        self,
        host: PackedHost,
        store: Store,
        call_soon: Callable[[Callable[[], None]], object],
        spans: Sequence[Span],
        max_bytes: int,
        done: PackedRead,
    ) -> None:
        self._host = host
        self._store = store
        self._call_soon = call_soon
        self._spans = spans
        self._room = max_bytes
        self._done = done
        self._messages: list[StoredMessage] = []

    def read_from(self, at: int) -> None:
        """Read the span at this index if it is long, else as many short spans as follow one another from there."""
        spans = self._spans
        first, last = spans[at]
        if last - first >= STRETCH - 1:
            wanted = Range(
                entity=self._host.id,
                after=first - 1,
                through=last,
                limit=_NO_LIMIT,
                max_bytes=self._room,
                state=self._host.state_of((first, last)),
            )
            self._store.read(wanted, partial(self._on_read, at + 1, last))
            return
        numbers: list[int] = []
        while at < len(spans) and len(numbers) < NUMBERS_AT_ONCE:
            first, last = spans[at]
            if last - first >= STRETCH - 1:
                break
            numbers += range(first, last + 1)
            at += 1
        self._store.read_numbers(self._host.id, numbers, self._room, partial(self._on_read, at, numbers[-1]))

    def _on_read(self, at: int, last: int, answer: list[StoredMessage] | StoreError) -> None:
        if isinstance(answer, StoreError):
            self._done(unreadable(answer), 0)
            return
        leaving = self._host.leaving
        if leaving:
            self._messages += [message for message in answer if message.sequence_number not in leaving]
        else:
            self._messages += answer
        self._room -= sum([message.read_size for message in answer])
        if self._room <= 0:
            self._done(self._messages, answer[-1].sequence_number)
        elif at >= len(self._spans):
            self._done(self._messages, last)
        else:
            # In a turn of its own: a store may answer during the read, and with many spans calls would nest too deeply.
            self._call_soon(partial(self.read_from, at))


_pack_length: Final = struct.Struct(">I").pack


def pack(messages: Sequence[StoredMessage], are_copies: bool) -> bytes:
    """Join the messages: for each its length in four bytes, then the message in the form that a peek returns."""
    parts: list[bytes] = []
    for message in messages:
        front = head(message, None, None, True, are_copies)
        parts += (_pack_length(len(front) + message.size), front, message.payload)
        if message.body is not None:
            parts.append(message.body.data)
    return b"".join(parts)
