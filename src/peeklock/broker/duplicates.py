"""Duplicate detection: the message ids that an entity accepted within its window.

Every send looks up ids, so the whole window is in memory: a fingerprint of each id, with its time about 150 bytes. The
store has the ids too, in the commits of their messages. So a crash does not lose an id, and an id whose message was
refused is not kept.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from peeklock.broker.agenda import Agenda, Appointment
from peeklock.broker.bare_message import identity_of, partition_key_of, session_of
from peeklock.broker.errors import BrokerError, QuotaExceeded, ServerBusy, StorageFailed
from peeklock.broker.journal import Journal, Lane
from peeklock.limits.broker import MAX_MESSAGE_IDS
from peeklock.store.base import Store, StoredMessage, StoreError

if TYPE_CHECKING:
    from peeklock.broker.entity import Done
    from peeklock.broker.machinery import Machinery
    from peeklock.entities.definitions import AnyDefinition

KEY_BYTES: Final = 16
"""The length of a fingerprint: long enough that no two ids get the same one by chance."""
TIDY_MS: Final = 1000
"""The time that expired ids may stay, so that many are dropped together."""


class _Batch:
    """Messages whose ids were recorded together. The sender of a duplicate waits for their outcome."""

    __slots__ = ("is_decided", "is_stored", "lane", "waiting")

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.is_decided = False
        self.is_stored = False
        self.waiting: list[Callable[[], None]] = []
        """Called when it is known whether the messages are stored."""

    def decide(self, is_stored: bool) -> None:
        self.is_decided, self.is_stored = True, is_stored
        waiting, self.waiting = self.waiting, []
        for action in waiting:
            action()


class History:
    """The message ids that one entity accepted."""

    def __init__(
        self,
        entity: int,
        window_ms: int,
        by_partition: bool,
        journal: Journal,
        agenda: Agenda,
        store: Store,
        max_ids: int = MAX_MESSAGE_IDS,
    ) -> None:
        self.window_ms = window_ms
        self._max_ids = max_ids
        self._entity = entity
        self._by_partition = by_partition
        self._journal = journal
        self._agenda = agenda
        self._store = store
        self._origin = agenda.now() - agenda.monotonic()
        self._taken: dict[bytes, int] = {}
        """The time of each fingerprint, in the order of the times."""
        self._under_way: dict[bytes, _Batch] = {}
        """Fingerprints whose messages are being committed."""
        self._tidying: Appointment | None = None

    @property
    def since(self) -> int:
        """The start of the window. Earlier ids no longer count."""
        return self._time() - self.window_ms

    def _time(self) -> int:
        """Return the Unix time at the start of the broker plus the time elapsed since.

        Setting the system's clock does not change it. As it is based on Unix time, the times in the store can be
        compared with it after a restart.
        """
        return self._origin + self._agenda.monotonic()

    def load(self, done: Callable[[StoreError | None], None]) -> None:
        """At start: read the ids of the messages that were accepted within the window."""

        def found(rows: list[tuple[bytes, int]] | StoreError) -> None:
            if isinstance(rows, StoreError):
                done(rows)
                return
            now = self._time()
            for key, at in sorted(rows, key=lambda row: row[1]):
                self._taken[key] = min(at, now)  # the stored time is in the future if the clock was set back
            self._expect_tidying()
            done(None)

        self._store.read_seen(self._entity, self.since, found)

    def close(self) -> None:
        if self._tidying is not None:
            self._tidying.cancel()

    def sift(self, lane: Lane, messages: list[StoredMessage], done: Done) -> tuple[list[StoredMessage], Done]:
        """Remove duplicates from messages to be staged on a lane. Return the others, and the callback to use as `done`.

        Raise ServerBusy if a moved message is a duplicate of one that is being committed. Raise QuotaExceeded if the
        entity would have more ids than the limit allows.
        """
        now, since = self._time(), self.since
        taken, under_way = self._taken, self._under_way
        keys = [self._key(message) for message in messages]
        if len(taken) + len(keys) > self._max_ids:
            self._check_number(keys)
        repeated = [under_way[key] for key in keys if key in under_way and taken[key] > since]
        if lane is not self._journal.sends and any(first.lane is not lane for first in repeated):
            # If the first message is not stored, its duplicate fails too. A sender then sends again. A moved message
            # would be lost, because its removal from its source is in the same commit as the duplicate.
            raise ServerBusy("The message repeats one that is being stored; try again.")
        batch = _Batch(lane)
        kept: list[StoredMessage] = []
        noted: list[bytes] = []
        for key, message in zip(keys, messages, strict=True):
            if taken.get(key, since) > since:
                continue
            taken.pop(key, None)  # the key is added again at the end
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
            lane.then(lambda _, error: None, None)  # after a failure, the next call drops these ids from the store too


def make_history(entity: int, definition: AnyDefinition, machinery: Machinery) -> History:
    return History(
        entity,
        definition.duplicate_detection_window_ms,
        definition.enable_partitioning,
        machinery.journal,
        machinery.agenda,
        machinery.store,
        machinery.max_message_ids,
    )


def _when_decided(repeated: list[_Batch], done: Done) -> None:
    """Call `done` for duplicates with the outcome of the first messages, when that is known.

    The first messages may be on another lane, which is committed later, or in a commit that is tried again.
    """
    undecided = next((first for first in repeated if not first.is_decided), None)
    if undecided is not None:
        undecided.waiting.append(lambda: _when_decided(repeated, done))
    elif all(first.is_stored for first in repeated):
        done(None)
    else:
        done(StorageFailed("The message is a duplicate of one that could not be stored. Send it again."))
