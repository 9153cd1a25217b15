"""Brokers that are broken on purpose, each breaking one promise, to test that the checker detects it.

Each function replaces a method of the broker in the process that calls it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, Final

from peeklock.broker.agenda import Agenda
from peeklock.broker.backlog import Backlog
from peeklock.broker.duplicates import History
from peeklock.broker.lock_expiry import LockExpiry
from peeklock.broker.scheduled import Scheduled
from peeklock.broker.settlements import Settlements
from peeklock.broker.transactions import Transaction
from peeklock.store.base import Changes, Committed
from peeklock.store.disk.index.writer import Writer
from peeklock.store.disk.keys import LENGTH_BITS, LENGTH_MASK
from peeklock.store.disk.log import replay as log_replay
from peeklock.store.disk.log import writer as log_writer
from peeklock.store.disk.log.replay import Record, Replay
from peeklock.store.disk.log.segments import Segments
from peeklock.store.disk.log.synced import Synced
from peeklock.store.disk.log.writer import Log
from peeklock.store.disk.store import DiskStore

_SOME: Final = 4
"""One of so many operations is wrong."""
_DELAY: Final = 0.05
"""Seconds by which a commit is later than its acknowledgement."""
_EARLY_MS: Final = 3000


def acknowledge_early() -> None:
    """Acknowledge a commit when it is passed to the store, before it is written."""
    commit, write = DiskStore.commit, Log.commit

    def committed(store: Any, changes: Changes, done: Committed) -> None:
        commit(store, changes, lambda error: None)
        store._post(partial(done, None))

    def written(log: Any) -> None:
        time.sleep(_DELAY)
        write(log)

    _put(DiskStore, "commit", committed)
    _put(Log, "commit", written)


def forget_syncs() -> None:
    """Acknowledge a commit when it is written, without syncing it."""
    _put(log_writer, "sync", lambda descriptor: None)


def free_early() -> None:
    """Free segments of the log before the index is synced that no longer needs them."""
    _put(Writer, "forget_segments", lambda writer, segments: None)


def truncate_damage() -> None:
    """Treat any unreadable record at the end of the log as a torn write."""
    read = Replay._read_segment

    def read_segment(*arguments: Any) -> Iterator[Record]:
        return (record._replace(synced=0) for record in read(*arguments))

    _put(Synced, "read", lambda synced: 0)
    _put(Replay, "_read_segment", read_segment)
    _put(log_replay, "find_records", lambda *_: [])


def skip_verification() -> None:
    """Deliver payloads without comparing their checksums."""

    def read(segments: Any, number: int, places: list[int]) -> list[bytes]:
        descriptor = segments._descriptor(number)
        return [os.pread(descriptor, place & LENGTH_MASK, place >> LENGTH_BITS) for place in places]

    _put(Segments, "read", read)


def forget_removals() -> None:
    """Do not store the removal of some messages."""
    commit, turns = DiskStore.commit, count(1)

    def committed(store: Any, changes: Changes, done: Committed) -> None:
        kept = [removal for removal in changes.removals if next(turns) % _SOME]
        commit(store, replace(changes, removals=kept), done)

    _put(DiskStore, "commit", committed)


def deliver_locked() -> None:
    """Deliver some messages again before their locks expire."""
    from_now, turns = LockExpiry.from_now, count(1)

    def shortened(expiry: Any) -> tuple[int, int]:
        expires_at, locked_until = from_now(expiry)
        return (expiry._agenda.monotonic() + 50 if next(turns) % _SOME == 0 else expires_at), locked_until

    _put(LockExpiry, "from_now", shortened)


def deliver_claimed() -> None:
    """Leave some claimed messages available to receivers."""
    drop, turns = Backlog.drop_some, count(1)

    def dropped(backlog: Any, runs: Any) -> None:
        if next(turns) % _SOME:
            drop(backlog, runs)

    _put(Backlog, "drop_some", dropped)


def trust_the_clock() -> None:
    """Measure durations by the system's clock, which can be set."""
    make = Agenda.__init__

    def made(agenda: Any, clock: Any) -> None:
        make(agenda, clock)
        agenda.monotonic = clock.now

    _put(Agenda, "__init__", made)


def enqueue_early() -> None:
    """Enqueue scheduled messages before their time."""
    read_due, scheduled = DiskStore.read_due, Scheduled.expect

    def read(store: Any, entity: int, now: int, *rest: Any, **more: Any) -> None:
        read_due(store, entity, now + _EARLY_MS, *rest, **more)

    def expect(those: Any, message: Any) -> None:
        scheduled(those, message)
        those._due.expect(message.due_at - _EARLY_MS)

    _put(DiskStore, "read_due", read)
    _put(Scheduled, "expect", expect)


def forget_ids() -> None:
    """Do not detect some duplicates."""
    sift, turns = History.sift, count(1)

    def sifted(history: Any, *arguments: Any) -> Any:
        if next(turns) % _SOME == 0:
            history._taken.clear()
        return sift(history, *arguments)

    _put(History, "sift", sifted)


def shorten_transactions() -> None:
    """Leave out the last message of some transactions."""
    stage, turns = Transaction._stage, count(1)

    def staged(transaction: Any, gather: Any) -> None:
        if next(turns) % _SOME == 0 and len(transaction._sends) > 1:
            transaction._sends.pop()
            gather.waiting -= 1
        stage(transaction, gather)

    _put(Transaction, "_stage", staged)


def forget_counts() -> None:
    """Return messages to the queue without counting the delivery."""
    changed = Settlements.changed

    def unchanged(settlements: Any, message: Any, added: Any = None, **values: Any) -> Any:
        return changed(settlements, message, added, **{**values, "delivery_count": message.delivery_count})

    _put(Settlements, "changed", unchanged)


def _put(owner: Any, name: str, function: Callable[..., Any]) -> None:
    setattr(owner, name, function)


BROKEN: Final[dict[str, Callable[[], None]]] = {
    "acknowledge-early": acknowledge_early,
    "forget-syncs": forget_syncs,
    "free-early": free_early,
    "truncate-damage": truncate_damage,
    "skip-verification": skip_verification,
    "forget-removals": forget_removals,
    "deliver-locked": deliver_locked,
    "enqueue-early": enqueue_early,
    "forget-ids": forget_ids,
    "shorten-transactions": shorten_transactions,
    "forget-counts": forget_counts,
    "deliver-claimed": deliver_claimed,
    "trust-the-clock": trust_the_clock,
}
