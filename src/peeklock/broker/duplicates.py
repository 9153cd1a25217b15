"""Duplicate detection: which message ids an entity has taken, as far back as its window reaches.

Every send asks, so the whole window is in memory: a fingerprint of each id, about 150 bytes in all. The store has
them too, written with the messages they belong to, so a crash neither forgets an id nor remembers one whose message was
refused.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from peeklock.broker.agenda import Agenda, Appointment
from peeklock.broker.envelope import identity_of, partition_key_of, session_of
from peeklock.broker.errors import BrokerError, QuotaExceeded, ServerBusy, StorageFailed
from peeklock.broker.journal import Journal, Lane
from peeklock.limits.broker import MAX_MESSAGE_IDS
from peeklock.store.base import StoredMessage

if TYPE_CHECKING:
    from peeklock.broker.entity import Done

KEY_BYTES: Final = 16
"""Long enough that two ids with one fingerprint are not to be expected in the life of any broker."""
TIDY_MS: Final = 1000
"""How long what has run out may lie about: it is dropped together, not one by one."""


class _Batch:
    """Messages that were noted together; whoever repeats one of them wants to know what became of them."""

    __slots__ = ("is_decided", "is_stored", "lane", "waiting")

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.is_decided = False
        self.is_stored = False
        self.waiting: list[Callable[[], None]] = []
        """What is to be done when it is decided whether they are stored."""

    def decide(self, is_stored: bool) -> None:
        self.is_decided, self.is_stored = True, is_stored
        waiting, self.waiting = self.waiting, []
        for tell in waiting:
            tell()


class History:
    """The ids of one entity."""

    def __init__(
        self,
        entity: int,
        window_ms: int,
        by_partition: bool,
        journal: Journal,
        agenda: Agenda,
        max_ids: int = MAX_MESSAGE_IDS,
    ) -> None:
        self.window_ms = window_ms
        self._max_ids = max_ids
        self._entity = entity
        self._by_partition = by_partition
        self._journal = journal
        self._agenda = agenda
        self._origin = agenda.now() - agenda.monotonic()
        self._taken: dict[bytes, int] = {}
        """Fingerprint to when, in that order."""
        self._under_way: dict[bytes, _Batch] = {}
        """Those of `_taken` whose messages are on their way to the store."""
        self._tidying: Appointment | None = None

    @property
    def since(self) -> int:
        """What was taken earlier does not count any more."""
        return self._time() - self.window_ms

    def _time(self) -> int:
        """Unix time as it was at the start, plus what has passed since.

        A clock that is set makes no window shorter or longer while the broker runs, and the times in the store can be
        compared with those of the next start.
        """
        return self._origin + self._agenda.monotonic()

    def load(self, rows: list[tuple[bytes, int]]) -> None:
        """At start: what the store remembers."""
        now = self._time()
        for key, at in sorted(rows, key=lambda row: row[1]):
            self._taken[key] = min(at, now)  # later if the clock was set back since
        self._expect_tidying()

    def close(self) -> None:
        if self._tidying is not None:
            self._tidying.cancel()

    def sift(self, lane: Lane, messages: list[StoredMessage], done: Done) -> tuple[list[StoredMessage], Done]:
        """The messages that are new, noted on the lane they are staged on; and who to tell instead of `done`.

        ServerBusy when one repeats a message on its way to the store, and other things depend on what becomes of it.
        QuotaExceeded when there are more new ids than can be remembered.
        """
        now, since = self._time(), self.since
        taken, under_way = self._taken, self._under_way
        keys = [self._key(message) for message in messages]
        if len(taken) + len(keys) > self._max_ids:
            self._check_number(keys)
        repeated = [under_way[key] for key in keys if key in under_way and taken[key] > since]
        if lane is not self._journal.sends and any(first.lane is not lane for first in repeated):
            # A sender can be told later that neither was stored. What is removed for it elsewhere would be lost.
            raise ServerBusy("The message repeats one that is being stored; try again.")
        batch = _Batch(lane)
        kept: list[StoredMessage] = []
        noted: list[bytes] = []
        for key, message in zip(keys, messages, strict=True):
            if taken.get(key, since) > since:
                continue
            taken.pop(key, None)  # and to the end
            taken[key] = now
            under_way[key] = batch
            noted.append(key)
            kept.append(message)
        lane.changes.seen += [(self._entity, key, now) for key in noted]
        self._expect_tidying()

        def outcome(error: BrokerError | None) -> None:
            for key in noted:
                if under_way.get(key) is batch:
                    del under_way[key]
                    if error is not None:
                        taken.pop(key, None)
            batch.decide(error is None)
            if error is not None:
                done(error)
            else:
                _when_decided(repeated, done)

        return kept, outcome

    def _check_number(self, keys: list[bytes]) -> None:
        new = {key for key in keys if key not in self._taken}
        if new and len(self._taken) + len(new) > self._max_ids:
            self._forget_old()
            if len(self._taken) + len(new) > self._max_ids:
                raise QuotaExceeded(
                    f"The entity remembers {len(self._taken)} message ids for duplicate detection; the limit is "
                    f"{self._max_ids}. It accepts new ids again when older ones have left its duplicate detection "
                    "window. Shorten the window, or raise --max-message-ids."
                )

    def _key(self, message: StoredMessage) -> bytes:
        identity = identity_of(message.payload)
        if self._by_partition:
            identity += b"\0" + (partition_key_of(message.annex) or session_of(message.payload))
        return blake2b(identity, digest_size=KEY_BYTES).digest()

    def _expect_tidying(self) -> None:
        if self._tidying is None and self._taken:
            oldest = next(iter(self._taken.values()))
            self._tidying = self._agenda.when_elapsed(oldest + self.window_ms + TIDY_MS - self._origin, self._tidy)

    def _tidy(self) -> None:
        self._tidying = None
        self._forget_old()
        self._expect_tidying()

    def _forget_old(self) -> None:
        since = self.since
        old: list[bytes] = []
        for key, at in self._taken.items():
            if at > since:
                break
            old.append(key)
        for key in old:
            del self._taken[key]
            self._under_way.pop(key, None)
        if old:
            lane = self._journal.rest
            lane.changes.forgotten.append((self._entity, since + 1))
            lane.then(lambda _, error: None, None)  # what is not dropped now is dropped with the next


def _when_decided(repeated: list[_Batch], done: Done) -> None:
    """Tell the sender of a repetition, once it is known what became of the messages it repeats.

    They may be on another lane, whose turn is later, or in a commit that is tried again.
    """
    undecided = next((first for first in repeated if not first.is_decided), None)
    if undecided is not None:
        undecided.waiting.append(lambda: _when_decided(repeated, done))
    elif all(first.is_stored for first in repeated):
        done(None)
    else:
        done(StorageFailed("The message was taken for a repetition of one that could not be stored."))
