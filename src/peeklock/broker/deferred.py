"""Receives deferred messages by their sequence numbers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from peeklock.broker.errors import BrokerError, EntityNotFound, MessageNotFound
from peeklock.broker.locks import Lock
from peeklock.broker.reading import read_numbers, unreadable
from peeklock.store.base import DEFERRED, StoredMessage, StoreError

if TYPE_CHECKING:
    from peeklock.broker.machinery import Machinery
    from peeklock.broker.message_queue import MessageQueue

Fetched = Callable[[list[tuple[StoredMessage, Lock | None]] | BrokerError], None]
Check = Callable[[], None]


def _no_check() -> None: ...


class Deferred:
    """The deferred messages of one queue."""

    def __init__(self, queue: MessageQueue, machinery: Machinery) -> None:
        self._queue = queue
        self._store = machinery.store
        self._journal = machinery.journal
        self._agenda = machinery.agenda

    def receive(
        self,
        numbers: list[int],
        session_id: str | None,
        deletes: bool,
        done: Fetched,
        check: Check = _no_check,
    ) -> None:
        """Receive deferred messages: all of them, or none if one is not available.

        `check` raises a BrokerError if the client may not receive the messages. It is called after the read, because
        another receiver may hold the session by then.
        """
        queue = self._queue
        queue.watches.read(
            partial(read_numbers, self._store, queue.id, numbers),
            partial(self._fetch, numbers, session_id, deletes, done, check),
        )

    def _fetch(
        self,
        numbers: list[int],
        session_id: str | None,
        deletes: bool,
        done: Fetched,
        check: Check,
        found: Any,
        changed: set[int],
    ) -> None:
        queue = self._queue
        if isinstance(found, StoreError):
            done(unreadable(found))
            return
        if not changed.isdisjoint(numbers):
            self.receive(numbers, session_id, deletes, done, check)
            return
        locks = queue.locks.by_number
        if any(number in locks and locks[number].settling for number in numbers):
            # A message is being settled, which may be the return after its lock expired: try again after the commit.
            self._journal.after_commit(partial(self.receive, numbers, session_id, deletes, done, check))
            return
        if queue.is_deleting:
            done(EntityNotFound(queue.path))
            return
        now = self._agenda.now()
        there: dict[int, StoredMessage] = {}
        for message in found:
            number = message.sequence_number
            if message.state != DEFERRED or number in locks or number in queue.leaving:
                continue
            if queue.has_sessions and message.session_id != session_id:
                continue
            if message.expires_at is not None and message.expires_at <= now:
                queue.expiry.expire(message)  # a deferred message expires when a client requests it
                continue
            there[number] = message
        missing = next((number for number in numbers if number not in there), None)
        if missing is not None:
            done(MessageNotFound(f"No deferred message of '{queue.path}' has the sequence number {missing}."))
            return
        wanted = [there[number] for number in dict.fromkeys(numbers)]
        try:
            check()
            if deletes:
                self._remove(wanted, done)
            else:
                self._lock(wanted, done)
        except BrokerError as failure:
            done(failure)

    def _remove(self, messages: list[StoredMessage], done: Fetched) -> None:
        queue, lane = self._queue, self._journal.rest
        for message in messages:
            queue.leaving.add(message.sequence_number)
            lane.changes.removals.append((queue.id, message))

        def deleted(_: Any, error: BrokerError | None) -> None:
            for message in messages:
                queue.leaving.discard(message.sequence_number)
                if error is None:
                    queue.on_removed(message)
            done([(message, None) for message in messages] if error is None else error)

        lane.then(deleted, None)

    def _lock(self, messages: list[StoredMessage], done: Fetched) -> None:
        """Lock the messages. This counts as a delivery; as for any lock, the count is stored when they are returned."""
        changed = self._queue.settlements.changed
        counted = [changed(message, delivery_count=message.delivery_count + 1) for message in messages]
        done(list(zip(counted, self._queue.lock_deferred(counted), strict=True)))
