"""Messages by their numbers: looking at them without taking them, and fetching deferred ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from peeklock.broker.claim_records import Span
from peeklock.broker.claims import Claims
from peeklock.broker.container import Container
from peeklock.broker.definitions import AnyDefinition
from peeklock.broker.entity import Machinery
from peeklock.broker.errors import BrokerError, EntityNotFound, MessageNotFound
from peeklock.broker.locks import Lock
from peeklock.broker.packed import PackedRead, read_packed
from peeklock.broker.schedule import Scheduling, unreadable
from peeklock.broker.timetable import AGAIN_MS
from peeklock.store.base import ACTIVE, DEFERRED, Counters, Damage, Range, Run, StoredMessage, StoreError

MAX_PEEKED_BYTES: Final = 4 * 1024 * 1024
MAX_NUMBER: Final = (1 << 63) - 1

Peeked = Callable[[list[StoredMessage] | BrokerError], None]
Deleted = Callable[[int | BrokerError], None]
Fetched = Callable[[list[tuple[StoredMessage, Lock | None]] | BrokerError], None]


class Numbered(Scheduling):
    """The part of a container that is asked for by number."""

    def __init__(
        self,
        id: int,
        path: str,
        definition: AnyDefinition,
        machinery: Machinery,
        counters: Counters,
        dead_letters: Container | None,
        transfer_dead_letters: Container | None = None,
    ) -> None:
        super().__init__(id, path, definition, machinery, counters, dead_letters, transfer_dead_letters)
        self.claims = Claims(self, machinery, is_by_session=self.has_sessions)

    def _lock_deferred(self, messages: list[StoredMessage]) -> list[Lock]:
        """Lend deferred messages, of one session where there are sessions. Raises when they cannot be lent."""
        raise NotImplementedError  # abstract

    def _next_waiting(self, after: int, session_id: str | None) -> int:
        """The lowest number above that one that may be a waiting message's; those in between are locked."""
        return after + 1

    def _is_out(self, number: int) -> bool:
        return super()._is_out(number) or self.claims.covers(number)

    def on_message_damaged(self, damage: Damage) -> None:
        super().on_message_damaged(damage)
        self.claims.on_damaged(damage.sequence_number)

    def vanish(self) -> None:
        self.claims.close()
        super().vanish()

    # --- for claims ---

    def pause_for_claim(self) -> bool:
        """Hand out nothing that a claim may find, until `resume_after_claim`; False if that is not possible now."""
        raise NotImplementedError  # abstract

    def resume_after_claim(self) -> None:
        raise NotImplementedError  # abstract

    def lanes_to_claim(self, name: str, most: int) -> list[str | None]:
        """Where to look for messages, in order: session ids, at most so many sessions; None for all messages."""
        return [None]

    def claim_from(self, lane: str | None, name: str) -> int | None:
        """Keep the lane for claims of that name. Returns the number behind which to look; None if it is not to be
        had."""
        raise NotImplementedError  # abstract

    def on_claim_staged(self, lane: str | None, runs: list[Run]) -> None:
        """Active messages of the lane are being set aside: they wait no longer."""
        raise NotImplementedError  # abstract

    def on_claim_made(self, lane: str | None, runs: list[Run]) -> None:
        """They are set aside. The counters are right already."""
        self._note_changes(runs)

    def on_claim_undone(self, lane: str | None, runs: list[Run]) -> None:
        """They wait again: the store refused, or the claim was released. Without runs: nothing was found there, or
        its messages are gone."""
        raise NotImplementedError  # abstract

    def out_numbers(self) -> list[int]:
        """Messages that do not wait: locked, or leaving."""
        return sorted({*self._locks, *self._leaving})

    def state_of(self, span: Span) -> int | None:
        """The state of all messages between these numbers; None if it is not known."""
        return self.claims.state_of(span)

    def is_leaving(self, number: int) -> bool:
        return number in self._leaving

    def read_packed(self, spans: Sequence[Span], max_bytes: int, done: PackedRead) -> None:
        """Messages with these numbers, in any state, up to so many bytes."""
        read_packed(self, self._store, self._machinery.call_soon, spans, max_bytes, done)

    # --- looking ---

    def peek(
        self, first: int, limit: int, session_id: str | None, done: Peeked, max_bytes: int = MAX_PEEKED_BYTES
    ) -> None:
        """Messages from a number on, in any state, ascending; nothing is locked or counted. An empty answer says that
        nothing follows."""

        def found(messages: list[StoredMessage] | StoreError) -> None:
            if isinstance(messages, StoreError):
                done(unreadable(messages))
                return
            there = [message for message in messages if message.sequence_number not in self._leaving]
            if there or not messages:
                done(there)
            else:
                # All of them are on their way out; an empty answer would say that nothing follows.
                self.peek(messages[-1].sequence_number + 1, limit, session_id, done, max_bytes)

        wanted = self._range(max(0, first - 1), limit, session_id, state=None, max_bytes=max_bytes)
        self._store.read(wanted, found)

    def _range(
        self,
        after: int,
        limit: int,
        session_id: str | None,
        *,
        state: int | None,
        max_bytes: int = MAX_PEEKED_BYTES,
    ) -> Range:
        return Range(
            entity=self.id,
            after=after,
            through=MAX_NUMBER,
            limit=limit,
            max_bytes=max_bytes,
            state=state,
            session_id=session_id,
        )

    def delete_before(self, enqueued_before: int, limit: int, session_id: str | None, done: Deleted) -> None:
        """Delete active messages that nobody holds, from the head; `done` hears how many."""
        if not self._may_sweep():
            again = partial(self.delete_before, enqueued_before, limit, session_id, done)
            self._agenda.after(AGAIN_MS // 10, again)
            return
        self._delete_after(0, enqueued_before, limit, session_id, done)

    def _delete_after(
        self, after: int, enqueued_before: int, limit: int, session_id: str | None, done: Deleted, deleted: int = 0
    ) -> None:
        """A page at a time, from the next message that is not locked on: some of a page may be locked, or be large,
        and there may be others behind it."""

        def finish(outcome: int | BrokerError) -> None:
            self._swept()
            done(outcome)

        def found(messages: list[StoredMessage] | StoreError, changed: set[int]) -> None:
            if isinstance(messages, StoreError):
                finish(deleted or unreadable(messages))  # what was deleted before is gone
                return
            if self.doomed:
                finish(deleted or EntityNotFound(self.path))
                return
            leaving = [message for message in messages if self._may_delete(message, enqueued_before, changed)]
            if not leaving:  # no commit for nothing, and not at once: a store may answer in the same turn
                self._machinery.call_soon(lambda: removed((messages, leaving), None))
                return
            removals = self._journal.rest.changes.removals
            for message in leaving:
                self._leaving.add(message.sequence_number)
                self._discard(message)
                removals.append((self.id, message))
            self._journal.rest.then(removed, (messages, leaving))

        def removed(argument: tuple[list[StoredMessage], list[StoredMessage]], error: BrokerError | None) -> None:
            messages, leaving = argument
            for message in leaving:
                self._leaving.discard(message.sequence_number)
                if error is None:
                    self._gone(message)
                else:
                    self._stayed(message)
            count = deleted + len(leaving)
            if error is not None:
                finish(deleted or error)
            elif not messages or count >= limit or messages[-1].enqueued_at >= enqueued_before:
                finish(count)
            else:
                last = messages[-1].sequence_number
                self._delete_after(last, enqueued_before, limit, session_id, done, count)

        after = self._next_waiting(after, session_id) - 1
        wanted = self._range(after, limit - deleted, session_id, state=ACTIVE)
        self._watch(partial(self._store.read, wanted), found)

    def _may_delete(self, message: StoredMessage, enqueued_before: int, changed: set[int]) -> bool:
        number = message.sequence_number
        return message.enqueued_at < enqueued_before and not self._is_out(number) and number not in changed

    def receive_deferred(
        self,
        numbers: list[int],
        session_id: str | None,
        deletes: bool,
        done: Fetched,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Fetch deferred messages: all of them, or none when one is not there to be had.

        `check` raises why the caller may not have them. It is asked when they have been read: a session may have passed
        to another receiver by then.
        """
        self._watch(
            partial(self._read_numbers, numbers),
            partial(self._fetch, numbers, session_id, deletes, done, check),
        )

    def _fetch(
        self,
        numbers: list[int],
        session_id: str | None,
        deletes: bool,
        done: Fetched,
        check: Callable[[], None],
        found: Any,
        changed: set[int],
    ) -> None:
        if isinstance(found, StoreError):
            done(unreadable(found))
            return
        if not changed.isdisjoint(numbers):
            self.receive_deferred(numbers, session_id, deletes, done, check)
            return
        if any(number in self._locks and self._locks[number].settling for number in numbers):
            # One is on its way back, or out: see what becomes of it. A lock that ran out is no reason to refuse.
            self._journal.after_commit(partial(self.receive_deferred, numbers, session_id, deletes, done, check))
            return
        if self.doomed:
            done(EntityNotFound(self.path))
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
            check()
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
            lane.changes.removals.append((self.id, message))

        def deleted(_: Any, error: BrokerError | None) -> None:
            for message in messages:
                self._leaving.discard(message.sequence_number)
                if error is None:
                    self._gone(message)
            done([(message, None) for message in messages] if error is None else error)

        lane.then(deleted, None)

    def _lend(self, messages: list[StoredMessage], done: Fetched) -> None:
        """Lock them. The fetch counts as a delivery; as for any lock, that is stored when they are given back."""
        counted = [self._changed(message, delivery_count=message.delivery_count + 1) for message in messages]
        done(list(zip(counted, self._lock_deferred(counted), strict=True)))
