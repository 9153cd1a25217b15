"""Encoded messages for the outbox: one by one, or in runs that are cut into batches without inspecting each message.

This module makes batches; `encoding` and `outgoing` encode messages, and `sending` has the links.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

from peeklock.amqp.message import Message
from peeklock.client import Batch
from peeklock.client.batches import BATCH_FORMAT, MAX_MESSAGES, envelope

_SHORT_HEAD: Final = 5
_LONG_HEAD: Final = 8
_LONG: Final = 0xB0
"""The constructor, at the fourth place of a data section, whose size has four bytes."""


class Parcel(NamedTuple):
    """An encoded message and its destination."""

    row: int
    """Row number within the task, for error messages."""
    entity: str
    message_id: str
    payload: bytes
    session_id: str | None = None
    partition_key: str | None = None
    source: Any = None
    """The piece that had the row, passed on when the message is refused."""


class Run:
    """Encoded messages that may share a batch, in their order: of one entity, and one session or partition key."""

    def __init__(
        self,
        entity: str,
        session_id: str | None,
        partition_key: str | None,
        items: memoryview,
        ends: Sequence[int],
        rows: Sequence[int],
        message_id: Callable[[int], str],
        source: Any = None,
    ) -> None:
        """`items` are the messages as data sections, one after another; `ends` has the bounds of each."""
        self.entity = entity
        self.session_id = session_id
        self.partition_key = partition_key
        self._items = items
        self._ends = ends
        self._rows = rows
        self._message_id = message_id
        self._source = source

    def __len__(self) -> int:
        return len(self._rows)

    def parcel(self, at: int) -> Parcel:
        start, stop = self._payload(at)
        return Parcel(
            self._rows[at],
            self.entity,
            self._message_id(at),
            bytes(self._items[start:stop]),
            self.session_id,
            self.partition_key,
            self._source,
        )

    def size(self, at: int) -> int:
        """Return the size of a message in bytes."""
        start, stop = self._payload(at)
        return stop - start

    def batch_end(self, start: int, most: int) -> int:
        """Return the end of the batch from `start` with at most `most` bytes, but at least one message."""
        ends = self._ends
        room = most - len(self._envelope(start))
        stop = bisect_right(ends, ends[start] + room, start + 1, min(start + MAX_MESSAGES, len(self)) + 1) - 1
        return max(stop, start + 1)

    def batch(self, start: int, stop: int) -> Batch:
        """Make a batch. A single message has no batch envelope."""
        if stop - start == 1:
            first, last = self._payload(start)
            return Batch(bytes(self._items[first:last]), 0, 1)
        items = self._items[self._ends[start] : self._ends[stop]]
        return Batch(b"".join((self._envelope(start), items)), BATCH_FORMAT, stop - start)

    def _payload(self, at: int) -> tuple[int, int]:
        start = self._ends[at]
        return start + (_LONG_HEAD if self._items[start + 3] == _LONG else _SHORT_HEAD), self._ends[at + 1]

    def _envelope(self, at: int) -> bytes:
        return envelope(self._message_id(at), self.session_id, self.partition_key)


def runs_of(parcels: Iterable[Parcel]) -> Iterator[Run]:
    """Group messages into runs."""
    groups: dict[tuple[str, bool, str | None], list[Parcel]] = {}
    for parcel in parcels:
        in_session = parcel.session_id is not None
        key = parcel.session_id if in_session else parcel.partition_key
        groups.setdefault((parcel.entity, in_session, key), []).append(parcel)
    return map(_run, groups.values())


def _run(parcels: list[Parcel]) -> Run:
    items = [Message(data=[parcel.payload]).encode() for parcel in parcels]
    ends = [0, *accumulate(map(len, items))]
    first = parcels[0]
    return Run(
        first.entity,
        first.session_id,
        first.partition_key,
        memoryview(b"".join(items)),
        ends,
        [parcel.row for parcel in parcels],
        lambda at: parcels[at].message_id,
        first.source,
    )
