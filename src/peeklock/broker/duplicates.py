"""Duplicate detection: which message ids an entity has taken, as far back as its window reaches.

Every send asks, so the whole window is in memory: a fingerprint of each id, about 150 bytes in all. The store has
them too, written with the messages they belong to, so a crash neither forgets an id nor remembers one whose message was
refused.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from peeklock.broker.agenda import Agenda, Appointment
from peeklock.broker.envelope import identity_of, partition_key_of
from peeklock.broker.errors import BrokerError, StorageFailed
from peeklock.broker.journal import Journal, Lane
from peeklock.store.base import StoredMessage

if TYPE_CHECKING:
    from peeklock.broker.entity import Done

KEY_BYTES: Final = 16
"""Long enough that two ids with one fingerprint are not to be expected in the life of any broker."""
TIDY_MS: Final = 1000
"""How long what has run out may lie about: it is dropped together, not one by one."""


class History:
    """The ids of one entity."""

    def __init__(self, entity: int, window_ms: int, by_partition: bool, journal: Journal, agenda: Agenda) -> None:
        self.window_ms = window_ms
        self._entity = entity
        self._by_partition = by_partition
        self._journal = journal
        self._agenda = agenda
        self._taken: dict[bytes, int] = {}
        """Fingerprint to when; in that order, but for clocks that were set back."""
        self._tidying: Appointment | None = None

    @property
    def since(self) -> int:
        """What was taken earlier does not count any more."""
        return self._agenda.now() - self.window_ms

    def load(self, rows: list[tuple[bytes, int]]) -> None:
        """At start: what the store remembers."""
        for key, at in sorted(rows, key=lambda row: row[1]):
            self._taken[key] = at
        self._expect_tidying()

    def close(self) -> None:
        if self._tidying is not None:
            self._tidying.cancel()

    def sift(self, lane: Lane, messages: list[StoredMessage], done: Done) -> tuple[list[StoredMessage], Done]:
        """The messages that are new, noted on the lane they are staged on; and who to tell instead of `done`."""
        now, since = self._agenda.now(), self.since
        taken = self._taken
        kept: list[StoredMessage] = []
        noted: list[bytes] = []
        repeated: list[bytes] = []
        for message in messages:
            key = self._key(message)
            at = taken.get(key)
            if at is not None and at > since:
                repeated.append(key)
                continue
            taken.pop(key, None)  # and to the end
            taken[key] = now
            noted.append(key)
            kept.append(message)
        lane.changes.seen += [(self._entity, key, now) for key in noted]
        self._expect_tidying()

        def outcome(error: BrokerError | None) -> None:
            if error is not None:
                for key in noted:
                    taken.pop(key, None)
            elif any(key not in taken for key in repeated):
                # The first one was still on its way when this one came, and the store did not take it.
                error = StorageFailed("The message was taken for a repetition of one that could not be stored.")
            done(error)

        return kept, outcome

    def _key(self, message: StoredMessage) -> bytes:
        identity = identity_of(message.payload)
        if self._by_partition:
            identity += b"\0" + partition_key_of(message.annex)
        return blake2b(identity, digest_size=KEY_BYTES).digest()

    def _expect_tidying(self) -> None:
        if self._tidying is None and self._taken:
            oldest = next(iter(self._taken.values()))
            self._tidying = self._agenda.at(oldest + self.window_ms + TIDY_MS, self._tidy)

    def _tidy(self) -> None:
        self._tidying = None
        since = self.since
        old: list[bytes] = []
        for key, at in self._taken.items():
            if at > since:
                break
            old.append(key)
        for key in old:
            del self._taken[key]
        if old:
            lane = self._journal.rest
            lane.changes.forgotten.append((self._entity, since + 1))
            lane.waiting.append((lambda _, error: None, None))  # what is not dropped now is dropped with the next
            self._journal.wake()
        self._expect_tidying()
