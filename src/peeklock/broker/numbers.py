"""Messages by their numbers: looking at them without taking them, and fetching deferred ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from peeklock.broker.container import Lock
from peeklock.broker.errors import BrokerError, MessageNotFound
from peeklock.broker.schedule import Scheduling, unreadable
from peeklock.store.base import DEFERRED, Range, StoredMessage, StoreError

MAX_PEEKED_BYTES: Final = 4 * 1024 * 1024
MAX_NUMBER: Final = (1 << 63) - 1

Peeked = Callable[[list[StoredMessage] | BrokerError], None]
Deleted = Callable[[int | BrokerError], None]
Fetched = Callable[[list[tuple[StoredMessage, Lock | None]] | BrokerError], None]


class Numbered(Scheduling):
    """The part of a container that is asked for by number."""

    def _lock_deferred(self, message: StoredMessage) -> Lock:
        """Lend a deferred message. Raises when the caller may not have it."""
        raise NotImplementedError  # abstract

    def peek(self, first: int, limit: int, session_id: str | None, done: Peeked) -> None:
        """Messages from a number on, in any state but expired ones, ascending; nothing is locked or counted."""

        def found(messages: list[StoredMessage] | StoreError) -> None:
            if isinstance(messages, StoreError):
                done(unreadable(messages))
                return
            done([message for message in messages if message.sequence_number not in self._leaving])

        wanted = Range(
            entity=self.entity,
            after=max(0, first - 1),
            through=MAX_NUMBER,
            limit=limit,
            max_bytes=MAX_PEEKED_BYTES,
            state=None,
            session_id=session_id,
        )
        self._store.read(wanted, found)

    def delete_before(self, enqueued_before: int, limit: int, session_id: str | None, done: Deleted) -> None:
        """Delete active messages that nobody holds, from the head; `done` hears how many."""

        def found(messages: list[StoredMessage] | StoreError) -> None:
            if isinstance(messages, StoreError):
                done(unreadable(messages))
                return
            lane = self._journal.rest
            leaving = []
            for message in messages:
                number = message.sequence_number
                if message.enqueued_at < enqueued_before and number not in self._locks and number not in self._leaving:
                    self._leaving.add(number)
                    self._discard(message)
                    lane.changes.removals.append((self.entity, message))
                    leaving.append(message)
            lane.waiting.append((deleted, leaving))
            self._journal.wake()

        def deleted(messages: list[StoredMessage], error: BrokerError | None) -> None:
            for message in messages:
                self._leaving.discard(message.sequence_number)
                if error is None:
                    self._gone(message)
                else:
                    self._returned(message)
            self._swept()
            done(len(messages) if error is None else error)

        if not self._may_sweep():
            again = partial(self.delete_before, enqueued_before, limit, session_id, done)
            self._agenda.at(self._agenda.now() + 100, again)
            return
        wanted = Range(
            entity=self.entity,
            through=MAX_NUMBER,
            limit=limit,
            max_bytes=MAX_PEEKED_BYTES,
            session_id=session_id,
        )
        self._store.read(wanted, found)

    def receive_deferred(self, numbers: list[int], session_id: str | None, deletes: bool, done: Fetched) -> None:
        """Fetch deferred messages: all of them, or none when one is not there to be had."""
        self._store.read_numbers(
            self.entity, sorted(set(numbers)), partial(self._fetch, numbers, session_id, deletes, done)
        )

    def _fetch(self, numbers: list[int], session_id: str | None, deletes: bool, done: Fetched, found: Any) -> None:
        if isinstance(found, StoreError):
            done(unreadable(found))
            return
        now = self._agenda.now()
        there: dict[int, StoredMessage] = {}
        for message in found:
            number = message.sequence_number
            if message.state != DEFERRED or number in self._locks or number in self._leaving:
                continue
            if self.has_sessions and message.session_id != session_id:
                continue
            if message.expires_at is not None and message.expires_at <= now:
                self._expire(message)  # a deferred message expires when somebody asks for it
                continue
            there[number] = message
        missing = next((number for number in numbers if number not in there), None)
        if missing is not None:
            done(MessageNotFound(f"No deferred message of '{self.path}' has the sequence number {missing}."))
            return
        wanted = [there[number] for number in dict.fromkeys(numbers)]
        try:
            if deletes:
                self._fetch_for_good(wanted, done)
            else:
                self._lend(wanted, done)
        except BrokerError as failure:
            done(failure)

    def _fetch_for_good(self, messages: list[StoredMessage], done: Fetched) -> None:
        lane = self._journal.rest
        for message in messages:
            self._leaving.add(message.sequence_number)
            lane.changes.removals.append((self.entity, message))

        def deleted(_: Any, error: BrokerError | None) -> None:
            for message in messages:
                self._leaving.discard(message.sequence_number)
                if error is None:
                    self._gone(message)
            done([(message, None) for message in messages] if error is None else error)

        lane.waiting.append((deleted, None))
        self._journal.wake()

    def _lend(self, messages: list[StoredMessage], done: Fetched) -> None:
        """Lock them and count the delivery, which must be durable before anybody sees it."""
        lane = self._journal.rest
        counted = [self._changed(message, None, delivery_count=message.delivery_count + 1) for message in messages]
        locks = [self._lock_deferred(message) for message in counted]
        for message, lock in zip(counted, locks, strict=True):
            lock.settling = True
            lane.changes.updates.append((self.entity, message, DEFERRED))

        def lent(_: Any, error: BrokerError | None) -> None:
            for lock in locks:
                if error is None:
                    lock.settling = False
                else:
                    self._drop_lock(lock)
            done(list(zip(counted, locks, strict=True)) if error is None else error)

        lane.waiting.append((lent, None))
        self._journal.wake()
